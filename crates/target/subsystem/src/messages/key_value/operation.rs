//! One operation on one key of a partition, as a single command or an entry of a batch. docs/kv-commands.md §2

use kv::vector::{Comparison, Element, Function, Operand, VectorError};
use kv::{Atomic, AtomicResult, Attributes, Condition, KeyHash, Leased, PairPlace, Processor, Stored};
use wire::kv::StoreOptions;
use wire::kv::batch::{Operation, STORE_WITH_ATTRIBUTES, StoreAttributes};
use wire::kv::operation::{
    AtomicFunction, AtomicOperation, AtomicOptions, ElementCode, PIN_IF_ROOM, VectorComparison,
    VectorFunction, pin_seconds, vector_parts,
};
use wire::opcode::KvOpcode;
use wire::status::Status;

/// The longest vector that is processed, bytes: bounds the time taken from other lanes of the reactor.
pub(crate) const VECTOR_BYTES_MAX: u32 = 1 << 20;

/// Budget of vector bytes for the operations of one batch.
pub(crate) const BATCH_VECTOR_BYTES_MAX: u32 = 16 << 20;

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// The status.
    pub(crate) status: Status,
    /// Content of the result dwords: the value's length, the previous number, or a sum.
    pub(crate) result: u64,
    /// Bytes of data written to the given room.
    pub(crate) data_bytes: usize,
}

impl Done {
    pub(crate) fn new(status: Status, result: u64) -> Self {
        Self { status, result, data_bytes: 0 }
    }
}

/// State that the operations of a command share beside the partition.
pub(crate) struct Effort<'a> {
    /// Budget of vector bytes left to process.
    pub(crate) vector_bytes: u32,
    /// Scratch for data whose requested length is not known yet.
    pub(crate) scratch: &'a mut Vec<u8>,
}

/// The status that an operation failed with, or its result.
type Outcome = Result<Done, Status>;

/// Executes an operation. Its data goes into `room`, as far as it fits.
#[inline]
pub(crate) fn operate(
    processor: &mut Processor,
    hash: KeyHash,
    operation: &Operation<'_>,
    room: &mut [u8],
    effort: &mut Effort<'_>,
) -> Done {
    let outcome = match operation.opcode {
        KvOpcode::RETRIEVE => retrieve(processor, hash, operation.key, room),
        KvOpcode::STORE => match StoreOptions::from_bits(operation.options) {
            Some(options) => {
                Ok(Done::new(store(processor, hash, operation.key, operation.operand, options), 0))
            }
            None => store_with_attributes(processor, hash, operation),
        },
        _ => rare(processor, hash, operation, room, effort),
    };
    outcome.unwrap_or_else(|status| Done::new(status.with_dnr(), 0))
}

#[inline(never)]
fn rare(
    processor: &mut Processor,
    hash: KeyHash,
    operation: &Operation<'_>,
    room: &mut [u8],
    effort: &mut Effort<'_>,
) -> Outcome {
    match operation.opcode {
        KvOpcode::DELETE => {
            // Deleting a missing key is no error, unless a host enables one, which is not supported. wire §23
            processor.delete(hash, operation.key);
            Ok(Done::new(Status::SUCCESS, 0))
        }
        KvOpcode::EXIST => {
            let place = processor.find(hash, operation.key).ok_or(Status::KEY_DOES_NOT_EXIST)?;
            Ok(Done::new(Status::SUCCESS, processor.value_bytes(place) as u64))
        }
        KvOpcode::PIN => pin(processor, hash, operation),
        KvOpcode::ATOMIC => {
            let Operation { kind, options, operand, .. } = *operation;
            let atomic = AtomicOperation::from_bytes(kind, options, operand).ok_or(Status::INVALID_FIELD)?;
            change_number(processor, hash, operation.key, &atomic)
        }
        KvOpcode::VECTOR_SCALAR | KvOpcode::VECTOR_VECTOR | KvOpcode::VECTOR_FILTER => {
            vector(processor, hash, operation, room, effort)
        }
        KvOpcode::VECTOR_REDUCE => reduce(processor, hash, operation, effort),
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// Pins a pair, or takes a pin back. docs/kv-commands.md §3.5
fn pin(processor: &mut Processor, hash: KeyHash, operation: &Operation<'_>) -> Outcome {
    let seconds = pin_seconds(operation.operand).ok_or(Status::INVALID_FIELD)?;
    if operation.options & !PIN_IF_ROOM != 0 || operation.kind != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let leased = match seconds {
        0 if processor.unpin(hash, operation.key) => Leased::Done,
        0 => Leased::Absent,
        _ => processor.pin(hash, operation.key, seconds),
    };
    match leased {
        Leased::Done => Ok(Done::new(Status::SUCCESS, 0)),
        Leased::Absent => Err(Status::KEY_DOES_NOT_EXIST),
        Leased::Full if operation.options == PIN_IF_ROOM => Ok(Done::new(Status::SUCCESS, 0)),
        Leased::Full => Err(Status::CAPACITY_EXCEEDED),
    }
}

#[inline]
fn retrieve(processor: &mut Processor, hash: KeyHash, key: &[u8], room: &mut [u8]) -> Outcome {
    let place = processor.find(hash, key).ok_or(Status::KEY_DOES_NOT_EXIST)?;
    processor.touch(place);
    let value = processor.value(place);
    let data_bytes = value.len().min(room.len());
    match value.as_whole() {
        Some(bytes) => room[..data_bytes].copy_from_slice(&bytes[..data_bytes]),
        None => {
            let mut copied = 0;
            while copied < data_bytes {
                let part = value.part(copied);
                let count = part.len().min(data_bytes - copied);
                room[copied..copied + count].copy_from_slice(&part[..count]);
                copied += count;
            }
        }
    }
    Ok(Done { status: Status::SUCCESS, result: value.len() as u64, data_bytes })
}

/// The outcome of a store. wire §23
pub(crate) fn status_of(stored: Stored) -> Status {
    match stored {
        Stored::Done => Status::SUCCESS,
        Stored::Exists => Status::KEY_EXISTS.with_dnr(),
        Stored::NotFound => Status::KEY_DOES_NOT_EXIST.with_dnr(),
        Stored::NoMemory | Stored::LogFull => Status::CAPACITY_EXCEEDED.with_dnr(),
        Stored::TooLarge => Status::INVALID_VALUE_SIZE.with_dnr(),
    }
}

/// The condition of a Store; `None` if its options contradict each other.
#[inline]
pub(crate) fn condition(options: StoreOptions) -> Option<Condition> {
    match (options.contains(StoreOptions::MUST_EXIST), options.contains(StoreOptions::MUST_NOT_EXIST)) {
        (false, false) => Some(Condition::Always),
        (true, false) => Some(Condition::Present),
        (false, true) => Some(Condition::Absent),
        (true, true) => None,
    }
}

/// Stores the value of an operation whose operand begins with attributes. docs/kv-commands.md §4.3
#[cold]
fn store_with_attributes(processor: &mut Processor, hash: KeyHash, operation: &Operation<'_>) -> Outcome {
    // Nothing else keeps the options from being those of a Store.
    let options = StoreOptions::from_bits(operation.options & !STORE_WITH_ATTRIBUTES);
    let condition = options.and_then(condition).ok_or(Status::INVALID_FIELD)?;
    let (given, value) = StoreAttributes::split(operation.operand).ok_or(Status::INVALID_FIELD)?;
    let attributes = attributes(processor, given);
    let stored = processor.store(hash, operation.key, value, attributes, condition);
    Ok(Done::new(status_of(stored), 0))
}

/// Attributes of a pair that is stored now.
pub(crate) fn attributes(processor: &Processor, given: StoreAttributes) -> Attributes {
    let StoreAttributes { ttl_s, flags } = given;
    let expiry_s = if ttl_s == 0 { 0 } else { processor.now_s().saturating_add(ttl_s) };
    Attributes { flags, expiry_s }
}

/// Stores a value.
pub(crate) fn store(
    processor: &mut Processor,
    hash: KeyHash,
    key: &[u8],
    value: &[u8],
    options: StoreOptions,
) -> Status {
    let Some(condition) = condition(options) else { return Status::INVALID_FIELD.with_dnr() };
    status_of(processor.store(hash, key, value, Attributes::default(), condition))
}

/// Changes the number that is the value of a key.
fn change_number(processor: &mut Processor, hash: KeyHash, key: &[u8], atomic: &AtomicOperation) -> Outcome {
    let AtomicOperation { operand, second, initial, options, .. } = *atomic;
    let action = match atomic.function {
        AtomicFunction::ADD => Atomic::Add(operand),
        AtomicFunction::ADD_UP_TO => Atomic::AddUpTo { operand, limit: second },
        AtomicFunction::TAKE_AWAY => Atomic::TakeAway(operand),
        AtomicFunction::MIN => Atomic::Min(operand),
        AtomicFunction::MAX => Atomic::Max(operand),
        AtomicFunction::AND => Atomic::And(operand),
        AtomicFunction::OR => Atomic::Or(operand),
        AtomicFunction::XOR => Atomic::Xor(operand),
        AtomicFunction::SWAP => Atomic::Swap(operand),
        AtomicFunction::COMPARE_AND_SWAP => Atomic::CompareAndSwap { expected: second, new: operand },
        _ => return Err(Status::INVALID_FIELD),
    };
    let width = if options.contains(AtomicOptions::NARROW) { 4 } else { 8 };
    let place = match processor.find(hash, key) {
        Some(place) if processor.value_bytes(place) != width => return Err(Status::INVALID_VALUE_SIZE),
        Some(place) => place,
        None if options.contains(AtomicOptions::CREATE) => {
            let value = &initial.to_le_bytes()[..width];
            let stored = processor.store(hash, key, value, Attributes::default(), Condition::Absent);
            if stored != Stored::Done {
                return Err(status_of(stored));
            }
            processor.find(hash, key).ok_or(Status::KEY_DOES_NOT_EXIST)?
        }
        None => return Err(Status::KEY_DOES_NOT_EXIST),
    };
    match processor.atomic(hash, key, place, action) {
        AtomicResult::Done(before) | AtomicResult::Unchanged(before) => {
            Ok(Done::new(Status::SUCCESS, before))
        }
        AtomicResult::Length(_) => Err(Status::INVALID_VALUE_SIZE),
        AtomicResult::NoMemory => Err(Status::CAPACITY_EXCEEDED),
    }
}

fn element(code: ElementCode) -> Option<Element> {
    Some(match code {
        ElementCode::U8 => Element::U8,
        ElementCode::U16 => Element::U16,
        ElementCode::U32 => Element::U32,
        ElementCode::U64 => Element::U64,
        ElementCode::I8 => Element::I8,
        ElementCode::I16 => Element::I16,
        ElementCode::I32 => Element::I32,
        ElementCode::I64 => Element::I64,
        ElementCode::F32 => Element::F32,
        ElementCode::F64 => Element::F64,
        _ => return None,
    })
}

fn function(code: u8) -> Option<Function> {
    Some(match VectorFunction::from_raw(code) {
        VectorFunction::ADD => Function::Add,
        VectorFunction::MIN => Function::Min,
        VectorFunction::MAX => Function::Max,
        VectorFunction::AND => Function::And,
        VectorFunction::OR => Function::Or,
        VectorFunction::XOR => Function::Xor,
        _ => return None,
    })
}

fn comparison(code: u8) -> Option<Comparison> {
    Some(match VectorComparison::from_raw(code) {
        VectorComparison::LESS => Comparison::Less,
        VectorComparison::LESS_OR_EQUAL => Comparison::LessOrEqual,
        VectorComparison::EQUAL => Comparison::Equal,
        VectorComparison::NOT_EQUAL => Comparison::NotEqual,
        VectorComparison::GREATER_OR_EQUAL => Comparison::GreaterOrEqual,
        VectorComparison::GREATER => Comparison::Greater,
        _ => return None,
    })
}

fn vector_status(error: VectorError) -> Status {
    match error {
        VectorError::Length => Status::INVALID_VALUE_SIZE,
        VectorError::Function => Status::INVALID_FIELD,
        VectorError::NoMemory => Status::CAPACITY_EXCEEDED,
    }
}

/// Arguments of a vector operation: offset of the vector, its element, the opcode, and the vector's length in bytes.
fn begin_vector(
    processor: &mut Processor,
    hash: KeyHash,
    operation: &Operation<'_>,
    effort: &mut Effort<'_>,
) -> Result<(PairPlace, Element, u8, u64), Status> {
    let (code, function) = vector_parts(operation.kind);
    let element = element(code).ok_or(Status::INVALID_FIELD)?;
    let place = processor.find(hash, operation.key).ok_or(Status::KEY_DOES_NOT_EXIST)?;
    let length = u32::try_from(processor.value_bytes(place)).unwrap_or(u32::MAX);
    if length > VECTOR_BYTES_MAX {
        return Err(Status::INVALID_VALUE_SIZE);
    }
    effort.vector_bytes =
        effort.vector_bytes.checked_sub(length).ok_or(Status::COMMAND_SIZE_LIMIT_EXCEEDED)?;
    Ok((place, element, function, length.into()))
}

/// One element out of an operand, which may be a whole word.
fn scalar(operand: &[u8], element: Element) -> Result<&[u8], Status> {
    match operand.len() {
        length if length == element.bytes() || length == 8 => Ok(&operand[..element.bytes()]),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn vector(
    processor: &mut Processor,
    hash: KeyHash,
    operation: &Operation<'_>,
    room: &mut [u8],
    effort: &mut Effort<'_>,
) -> Outcome {
    let (place, element, code, length) = begin_vector(processor, hash, operation, effort)?;
    let key = (hash, operation.key, place);
    let scratch = &mut *effort.scratch;
    scratch.clear();
    let mut result = length;
    let done = if operation.opcode == KvOpcode::VECTOR_FILTER {
        let comparison = comparison(code).ok_or(Status::INVALID_FIELD)?;
        let operand = scalar(operation.operand, element)?;
        let done = processor.vector_filter(place, (element, comparison), operand, scratch);
        result = scratch.len() as u64;
        done
    } else {
        let function = function(code).ok_or(Status::INVALID_FIELD)?;
        let old = (!room.is_empty()).then_some(&mut *scratch);
        let operand = if operation.opcode == KvOpcode::VECTOR_SCALAR {
            Operand::Scalar(scalar(operation.operand, element)?)
        } else {
            Operand::Vector(operation.operand)
        };
        processor.vector_update(key, (element, function), operand, old)
    };
    done.map_err(vector_status)?;
    let data_bytes = scratch.len().min(room.len());
    room[..data_bytes].copy_from_slice(&scratch[..data_bytes]);
    Ok(Done { status: Status::SUCCESS, result, data_bytes })
}

fn reduce(
    processor: &mut Processor,
    hash: KeyHash,
    operation: &Operation<'_>,
    effort: &mut Effort<'_>,
) -> Outcome {
    let (place, element, code, _) = begin_vector(processor, hash, operation, effort)?;
    let function = function(code).ok_or(Status::INVALID_FIELD)?;
    let initial = scalar(operation.operand, element)?;
    let mut state = [0; 8];
    let width = element.bytes();
    state[..width].copy_from_slice(initial);
    processor.vector_reduce(place, (element, function), &mut state[..width]).map_err(vector_status)?;
    Ok(Done::new(Status::SUCCESS, u64::from_le_bytes(state)))
}

#[cfg(test)]
mod tests {
    use kv::Settings;
    use proptest::prelude::*;
    use wire::kv::operation::vector_kind;

    use super::*;

    struct Partition {
        processor: Processor,
        scratch: Vec<u8>,
    }

    impl Partition {
        fn new() -> Self {
            let settings = Settings { memory_bytes: 8 << 20, ..Settings::default() };
            Self { processor: Processor::new(settings).expect("memory"), scratch: Vec::new() }
        }

        fn run(&mut self, operation: &Operation<'_>) -> (Done, Vec<u8>) {
            let mut room = vec![0; operation.room_bytes as usize];
            let hash = self.processor.hash(operation.key);
            let mut effort = Effort { vector_bytes: BATCH_VECTOR_BYTES_MAX, scratch: &mut self.scratch };
            let done = operate(&mut self.processor, hash, operation, &mut room, &mut effort);
            room.truncate(done.data_bytes);
            (done, room)
        }
    }

    fn operation<'a>(opcode: KvOpcode, operand: &'a [u8]) -> Operation<'a> {
        Operation { opcode, options: 0, kind: 0, room_bytes: 0, key: b"k", operand }
    }

    #[test]
    fn pairs_are_pinned_and_unpinned() {
        fn pin(partition: &mut Partition, options: u8, operand: &[u8]) -> Status {
            partition.run(&Operation { options, ..operation(KvOpcode::PIN, operand) }).0.status
        }
        let mut partition = Partition::new();
        let seconds = &[9, 0, 0, 0];
        assert_eq!(pin(&mut partition, 0, seconds), Status::KEY_DOES_NOT_EXIST.with_dnr());
        partition.run(&operation(KvOpcode::STORE, &[1; 5 << 20]));
        assert_eq!(pin(&mut partition, 0, seconds), Status::CAPACITY_EXCEEDED.with_dnr(), "more than half");
        assert_eq!(pin(&mut partition, PIN_IF_ROOM, seconds), Status::SUCCESS);
        partition.run(&operation(KvOpcode::STORE, &[1; 1 << 20]));
        for (options, operand) in [(2, &seconds[..]), (0, &[9]), (0, &[255; 8])] {
            assert_eq!(pin(&mut partition, options, operand), Status::INVALID_FIELD.with_dnr());
        }
        assert_eq!(pin(&mut partition, 0, &[9, 0, 0, 0, 0, 0, 0, 0]), Status::SUCCESS);
        assert_eq!(partition.processor.counters().pinned_count, 1);
        assert_eq!(pin(&mut partition, 0, &[0; 4]), Status::SUCCESS);
        assert_eq!(partition.processor.counters().pinned_count, 0);
    }

    #[test]
    fn values_are_stored_found_cut_to_their_room_and_deleted() {
        let mut partition = Partition::new();
        let absent = Status::KEY_DOES_NOT_EXIST.with_dnr();
        assert_eq!(partition.run(&operation(KvOpcode::RETRIEVE, b"")).0.status, absent);
        assert_eq!(partition.run(&operation(KvOpcode::EXIST, b"")).0.status, absent);
        let value = vec![7; 100_000];
        assert_eq!(partition.run(&operation(KvOpcode::STORE, &value)).0.status, Status::SUCCESS);
        let fresh =
            Operation { options: StoreOptions::MUST_NOT_EXIST.bits(), ..operation(KvOpcode::STORE, b"x") };
        assert_eq!(partition.run(&fresh).0.status, Status::KEY_EXISTS.with_dnr());
        assert_eq!(
            partition.run(&Operation { options: 3, ..fresh }).0.status,
            Status::INVALID_FIELD.with_dnr()
        );
        let (done, data) =
            partition.run(&Operation { room_bytes: 70_000, ..operation(KvOpcode::RETRIEVE, b"") });
        assert_eq!((done.status, done.result), (Status::SUCCESS, 100_000));
        assert!(data == value[..70_000]);
        assert_eq!(partition.run(&operation(KvOpcode::EXIST, b"")).0.result, 100_000);
        assert_eq!(partition.run(&operation(KvOpcode::DELETE, b"")).0.status, Status::SUCCESS);
        assert_eq!(partition.run(&operation(KvOpcode::DELETE, b"")).0.status, Status::SUCCESS);
        assert_eq!(partition.run(&operation(KvOpcode::RETRIEVE, b"")).0.status, absent);
    }

    #[test]
    fn numbers_change_if_they_have_the_width_that_was_meant() {
        let mut partition = Partition::new();
        let mut run = |atomic: AtomicOperation| {
            let bytes = atomic.to_bytes();
            let (kind, options) = (atomic.function.raw(), atomic.options.bits());
            let done = partition.run(&Operation { kind, options, ..operation(KvOpcode::ATOMIC, &bytes) }).0;
            (done.status, done.result)
        };
        let add = AtomicOperation::new(AtomicFunction::ADD, 5);
        assert_eq!(run(add).0, Status::KEY_DOES_NOT_EXIST.with_dnr());
        assert_eq!(run(add.narrow().or_create(u64::from(u32::MAX))), (Status::SUCCESS, u32::MAX.into()));
        assert_eq!(run(add).0, Status::INVALID_VALUE_SIZE.with_dnr());
        assert_eq!(run(add.narrow()), (Status::SUCCESS, 4));
        let swap = AtomicOperation::compare_and_swap(9, 1).narrow();
        assert_eq!(run(swap), (Status::SUCCESS, 9));
        assert_eq!(run(swap), (Status::SUCCESS, 1), "unchanged, as the number before tells");
        assert!(swap.took_effect(9) && !swap.took_effect(1));
        let unknown = AtomicOperation::new(AtomicFunction::from_raw(0x0A), 1);
        assert_eq!(run(unknown).0, Status::INVALID_FIELD.with_dnr());
    }

    #[test]
    fn vectors_are_updated_folded_and_filtered() {
        let mut partition = Partition::new();
        let vector: Vec<u8> = (0..1000u32).flat_map(u32::to_le_bytes).collect();
        partition.run(&operation(KvOpcode::STORE, &vector));
        let add = vector_kind(ElementCode::U32, VectorFunction::ADD.raw());
        let one = Operation { kind: add, ..operation(KvOpcode::VECTOR_SCALAR, &[1, 0, 0, 0]) };
        let (done, old) = partition.run(&Operation { room_bytes: 8, ..one });
        assert_eq!((done.status, done.result, old), (Status::SUCCESS, 4000, vector[..8].to_vec()));
        let (done, _) =
            partition.run(&Operation { kind: add, ..operation(KvOpcode::VECTOR_VECTOR, &vector) });
        assert_eq!(done.status, Status::SUCCESS);
        let (done, _) =
            partition.run(&Operation { kind: add, ..operation(KvOpcode::VECTOR_REDUCE, &[0; 8]) });
        assert_eq!(done.result, 1000 + 2 * 999 * 1000 / 2);
        let above = vector_kind(ElementCode::U32, VectorComparison::GREATER.raw());
        let limit = 1995u64.to_le_bytes();
        let filter = Operation { kind: above, room_bytes: 4, ..operation(KvOpcode::VECTOR_FILTER, &limit) };
        let (done, kept) = partition.run(&filter);
        assert_eq!((done.result, kept), (8, 1997u32.to_le_bytes().to_vec()));
        for (kind, operand, status) in [
            (add, &[1u8, 0][..], Status::INVALID_FIELD),
            (vector_kind(ElementCode::F32, VectorFunction::XOR.raw()), &[0; 4], Status::INVALID_FIELD),
            (vector_kind(ElementCode::from_raw(10), 0), &[0; 4], Status::INVALID_FIELD),
            (vector_kind(ElementCode::U32, 6), &[0; 4], Status::INVALID_FIELD),
        ] {
            let (done, _) = partition.run(&Operation { kind, ..operation(KvOpcode::VECTOR_SCALAR, operand) });
            assert_eq!(done.status, status.with_dnr(), "kind {kind:#x}");
        }
        let short = Operation { kind: add, ..operation(KvOpcode::VECTOR_VECTOR, &vector[4..]) };
        assert_eq!(partition.run(&short).0.status, Status::INVALID_VALUE_SIZE.with_dnr());
    }

    #[test]
    fn a_batch_works_on_so_many_bytes_of_vectors_and_no_more() {
        let mut partition = Partition::new();
        partition.run(&operation(KvOpcode::STORE, &[0; 4096]));
        let add = vector_kind(ElementCode::U8, VectorFunction::ADD.raw());
        let update = Operation { kind: add, ..operation(KvOpcode::VECTOR_SCALAR, &[1]) };
        let hash = partition.processor.hash(b"k");
        let mut effort = Effort { vector_bytes: 8191, scratch: &mut partition.scratch };
        let processor = &mut partition.processor;
        assert_eq!(operate(processor, hash, &update, &mut [], &mut effort).status, Status::SUCCESS);
        let refused = operate(processor, hash, &update, &mut [], &mut effort);
        assert_eq!(refused.status, Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr());
    }

    proptest! {
        /// Every operation that a host can encode ends with a status.
        #[test]
        fn no_operation_makes_the_target_panic(
            operations in prop::collection::vec(
                (0u8..=255, 0u8..4, any::<u8>(), 0u32..300, prop::collection::vec(any::<u8>(), 0..40)), 1..40,
            ),
            opcodes in prop::collection::vec(prop::sample::select(vec![0x01u8, 0x02, 0x10, 0x14, 0x85, 0x88, 0x89, 0x8A, 0x8C]), 40),
        ) {
            let mut partition = Partition::new();
            for ((raw, options, kind, room_bytes, operand), opcode) in operations.iter().zip(opcodes) {
                let opcode = if *raw < 16 { *raw } else { opcode };
                let operation = Operation {
                    opcode: KvOpcode::from_raw(opcode), options: *options, kind: *kind, room_bytes: *room_bytes, key: b"k", operand,
                };
                let (done, data) = partition.run(&operation);
                prop_assert!(data.len() <= *room_bytes as usize && done.data_bytes == data.len());
            }
        }
    }
}
