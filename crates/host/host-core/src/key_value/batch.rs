//! Batches: many key-value operations in one capsule, sent by two commands, with outcomes in the same order.

use wire::identify::command_set::KvVendorCommands;
use wire::kv::batch::{
    BatchCollect, BatchSubmit, OUTCOME_HEADER_BYTES, Operation, Operations, Outcomes, STORE_WITH_ATTRIBUTES,
    StoreAttributes, collected_bytes,
};
use wire::kv::operation::{AtomicOperation, ElementCode, VectorComparison, VectorFunction, vector_kind};
use wire::kv::presence::presence_bytes;
use wire::kv::{Key, StoreOptions};
use wire::opcode::KvOpcode;

use super::{KeyValueNamespace, Pin};
use crate::namespace::InvalidCommand;
use crate::reconnect::Class;
use crate::submit::{Command, Moves};
use wire::id::Nsid;

/// Key-value operations that are sent in one capsule. Each has its own outcome: the failure of one does not stop the
/// next. Operations on one key are executed in order, and no other command is executed between operations whose keys
/// are on one partition of the target.
///
/// On a lane a batch is two commands, submitted one directly after the other: [`collect`](Self::collect) with a buffer
/// of [`outcome_bytes`](Self::outcome_bytes) and [`submit`](Self::submit) with [`data`](Self::data). Both complete; if
/// Submit fails while Collect is outstanding, `cancel` Collect. The blocking and asynchronous
/// handles do this.
#[derive(Clone, Debug)]
pub struct Batch {
    data: Vec<u8>,
    count: u16,
    outcome_bytes: u32,
    nsid: Nsid,
    count_max: u16,
    bytes_max: u32,
    key_bytes_max: u16,
    /// Whether outcomes are one bit each.
    is_presence: bool,
    has_attributes: bool,
}

impl Batch {
    pub(super) fn new(namespace: &KeyValueNamespace, is_presence: bool) -> Self {
        let vendor = namespace.vendor();
        Self {
            data: Vec::new(),
            count: 0,
            outcome_bytes: 0,
            nsid: namespace.nsid(),
            count_max: u16::try_from(vendor.batch_operations_max).unwrap_or(u16::MAX),
            bytes_max: vendor.batch_bytes_max.min(namespace.transfer_bytes_max),
            key_bytes_max: namespace.long_key_bytes_max(),
            is_presence,
            has_attributes: vendor.commands.contains(KvVendorCommands::ATTRIBUTES),
        }
    }

    /// An empty batch with the same limits.
    pub(super) fn empty_one(&self) -> Self {
        Self { data: Vec::new(), count: 0, outcome_bytes: 0, ..*self }
    }

    /// Number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The key of the first operation, if a command itself has room for it.
    #[must_use]
    pub fn first_key(&self) -> Option<Key> {
        self.first_long_key().and_then(Key::new)
    }

    /// The key of the first operation.
    #[must_use]
    pub fn first_long_key(&self) -> Option<&[u8]> {
        Operations::new(&self.data).next()?.ok().map(|operation| operation.key)
    }

    /// Removes all operations and keeps the memory.
    pub fn clear(&mut self) {
        self.data.clear();
        self.count = 0;
        self.outcome_bytes = 0;
    }

    /// Adds an operation. Its key may be longer than 16 bytes if the controller
    /// [supports that](KeyValueNamespace::long_key_bytes_max).
    ///
    /// # Errors
    /// [`InvalidCommand::BatchFull`] or [`InvalidCommand::KeyLength`]; the batch is unchanged.
    #[inline]
    pub fn push(&mut self, operation: &Operation<'_>) -> Result<(), InvalidCommand> {
        let full = InvalidCommand::BatchFull { operations: self.count, bytes: self.bytes_max };
        let (length, limit) = (operation.key.len(), self.key_bytes_max);
        if length > usize::from(limit) || length == 0 {
            return Err(InvalidCommand::KeyLength { length, limit });
        }
        let outcome_bytes = if self.is_presence {
            presence_bytes(self.count.saturating_add(1))
        } else {
            operation.outcome_bytes().saturating_add(self.outcome_bytes as usize)
        };
        let start = self.data.len();
        if self.count >= self.count_max {
            return Err(full);
        }
        let is_pushed = operation.append_to(&mut self.data);
        let bytes = self.data.len().saturating_add(outcome_bytes);
        if !is_pushed || bytes > self.bytes_max as usize {
            self.data.truncate(start);
            return Err(full);
        }
        self.count = self.count.saturating_add(1);
        self.outcome_bytes = u32::try_from(outcome_bytes).unwrap_or(u32::MAX);
        Ok(())
    }

    /// Stores a value.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    #[inline]
    pub fn store(&mut self, key: &Key, value: &[u8], options: StoreOptions) -> Result<(), InvalidCommand> {
        let operation = Operation::new(KvOpcode::STORE, key);
        self.push(&Operation { operand: value, options: options.bits(), ..operation })
    }

    /// Stores a value with attributes: a time to live, and flags as memcached's clients have them.
    ///
    /// # Errors
    /// As [`push`](Self::push), and [`InvalidCommand::Unsupported`].
    pub fn store_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: StoreOptions,
        attributes: StoreAttributes,
    ) -> Result<(), InvalidCommand> {
        let operation = Operation { options: options.bits(), ..Operation::on(KvOpcode::STORE, key) };
        if attributes == StoreAttributes::default() {
            return self.push(&Operation { operand: value, ..operation });
        }
        if !self.has_attributes {
            return Err(InvalidCommand::Unsupported("values with attributes"));
        }
        let operand = [&attributes.to_bytes(), value].concat();
        let options = options.bits() | STORE_WITH_ATTRIBUTES;
        self.push(&Operation { operand: &operand, options, ..operation })
    }

    /// Retrieves a value's first `length` bytes.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    #[inline]
    pub fn retrieve(&mut self, key: &Key, length: u32) -> Result<(), InvalidCommand> {
        self.push(&Operation { room_bytes: length, ..Operation::new(KvOpcode::RETRIEVE, key) })
    }

    /// Deletes a key and its value.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn delete(&mut self, key: &Key) -> Result<(), InvalidCommand> {
        self.push(&Operation::new(KvOpcode::DELETE, key))
    }

    /// Tests whether a key exists; the result is its value's length.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn exist(&mut self, key: &Key) -> Result<(), InvalidCommand> {
        self.push(&Operation::new(KvOpcode::EXIST, key))
    }

    /// Pins a pair, or takes a pin back. docs/kv-commands.md §3.5
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn pin(&mut self, key: &[u8], pin: Pin) -> Result<(), InvalidCommand> {
        self.push(&pin.operation(key, &pin.parts().1.to_le_bytes()))
    }

    /// Atomically changes a number; the result is its previous value.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    #[inline]
    pub fn atomic(&mut self, key: &Key, atomic: &AtomicOperation) -> Result<(), InvalidCommand> {
        let operands = atomic.to_bytes();
        // Trailing zero words are not sent.
        let length = match (atomic.second, atomic.initial) {
            (0, 0) => 8,
            (_, 0) => 16,
            _ => 24,
        };
        self.push(&Operation {
            kind: atomic.function.raw(),
            options: atomic.options.bits(),
            operand: operands.get(..length).unwrap_or(&operands),
            ..Operation::new(KvOpcode::ATOMIC, key)
        })
    }

    /// Applies a function with one operand to every element of a vector. With `room` it returns the first bytes of the
    /// vector before the change.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn vector_scalar(
        &mut self,
        key: &Key,
        (element, function): (ElementCode, VectorFunction),
        operand: u64,
        room_bytes: u32,
    ) -> Result<(), InvalidCommand> {
        let kind = vector_kind(element, function.raw());
        let operand = &operand.to_le_bytes();
        self.push(&Operation { kind, room_bytes, operand, ..Operation::new(KvOpcode::VECTOR_SCALAR, key) })
    }

    /// Applies a function to each element of a vector and the element at the same index of `operands`. With `room` it
    /// returns the first bytes of the vector before the change.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn vector_vector(
        &mut self,
        key: &Key,
        (element, function): (ElementCode, VectorFunction),
        operands: &[u8],
        room_bytes: u32,
    ) -> Result<(), InvalidCommand> {
        let kind = vector_kind(element, function.raw());
        let operation = Operation::new(KvOpcode::VECTOR_VECTOR, key);
        self.push(&Operation { kind, room_bytes, operand: operands, ..operation })
    }

    /// Reduces a vector to one element, starting with `initial`: the result's low bytes.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn vector_reduce(
        &mut self,
        key: &Key,
        (element, function): (ElementCode, VectorFunction),
        initial: u64,
    ) -> Result<(), InvalidCommand> {
        let kind = vector_kind(element, function.raw());
        let operand = &initial.to_le_bytes();
        self.push(&Operation { kind, operand, ..Operation::new(KvOpcode::VECTOR_REDUCE, key) })
    }

    /// Returns the elements of a vector that satisfy a comparison with the operand.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn vector_filter(
        &mut self,
        key: &Key,
        (element, comparison): (ElementCode, VectorComparison),
        operand: u64,
        room_bytes: u32,
    ) -> Result<(), InvalidCommand> {
        let kind = vector_kind(element, comparison.raw());
        let operand = &operand.to_le_bytes();
        self.push(&Operation { kind, room_bytes, operand, ..Operation::new(KvOpcode::VECTOR_FILTER, key) })
    }

    /// The data of Submit.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Takes the data of Submit out of the batch; [`restore`](Self::restore) returns it.
    #[must_use]
    pub fn take_data(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.data)
    }

    /// Puts back data that was taken.
    pub fn restore(&mut self, data: Vec<u8>) {
        self.data = data;
    }

    /// Length of Collect's buffer, bytes.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a header has a few bytes")]
    pub fn outcome_bytes(&self) -> u32 {
        self.outcome_bytes.max(u32::try_from(OUTCOME_HEADER_BYTES).expect("a few bytes"))
    }

    /// The command that receives the outcomes, submitted first. Batches outstanding on a lane need different tags.
    #[must_use]
    pub fn collect(&self, tag: u32) -> Command {
        let buffer_bytes = self.outcome_bytes();
        let sqe = BatchCollect { buffer_bytes, tag }.to_sqe(self.nsid);
        Command::new(sqe, Class::Other, Moves::AtMostFromController, buffer_bytes)
    }

    /// The command that carries the operations, with `length` bytes of data.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a batch is filled within a transfer, of 32 bits")]
    pub fn submit(&self, tag: u32, length: usize) -> Command {
        let data_bytes = u32::try_from(length).expect("within a transfer");
        let Self { count, is_presence, outcome_bytes, .. } = *self;
        let submit = BatchSubmit { data_bytes, count, is_presence, tag, outcome_bytes };
        Command::new(submit.to_sqe(self.nsid), Class::Other, Moves::ToController, data_bytes)
    }

    /// Reads the outcomes from Collect's buffer and result.
    #[must_use]
    pub fn outcomes(buffer: &[u8], result: u64) -> Outcomes<'_> {
        let length = usize::try_from(collected_bytes(result)).unwrap_or(usize::MAX);
        Outcomes::new(buffer.get(..length).unwrap_or(buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_value::tests::{key, namespace};
    use wire::kv::batch::Operations;
    use wire::kv::operation::AtomicFunction;

    #[test]
    fn a_batch_takes_what_the_controller_takes() {
        let mut batch = namespace(KvVendorCommands::all()).batch().expect("a batch");
        let full = |operations| InvalidCommand::BatchFull { operations, bytes: 4096 };
        assert_eq!(batch.retrieve(&key("k"), 4096).unwrap_err(), full(0));
        assert!(batch.is_empty() && batch.data().is_empty());
        batch.store(&key("k"), &[1; 100], StoreOptions::empty()).unwrap();
        batch.retrieve(&key("k"), 2000).unwrap();
        assert_eq!(batch.retrieve(&key("k"), 2000).unwrap_err(), full(2));
        batch.atomic(&key("n"), &AtomicOperation::new(AtomicFunction::ADD, 1)).unwrap();
        batch.delete(&key("k")).unwrap();
        assert_eq!(batch.delete(&key("k")).unwrap_err(), full(4));
        assert_eq!(Operations::new(batch.data()).count(), 4);
        assert_eq!(batch.outcome_bytes(), 4 * 16 + 2000);
        batch.clear();
        assert_eq!((batch.len(), batch.outcome_bytes()), (0, 16));
    }

    #[test]
    fn keys_may_be_as_long_as_the_controller_takes_them() {
        let mut batch = namespace(KvVendorCommands::all()).presence_batch().expect("a batch");
        let exist = |key| Operation::on(KvOpcode::EXIST, key);
        let long = [7; 251];
        assert_eq!(batch.push(&exist(&long)), Err(InvalidCommand::KeyLength { length: 251, limit: 250 }));
        assert_eq!(batch.push(&exist(&[])), Err(InvalidCommand::KeyLength { length: 0, limit: 250 }));
        batch.push(&exist(&long[..250])).unwrap();
        assert_eq!((batch.first_long_key(), batch.first_key()), (Some(&long[..250]), None));
        assert_eq!(batch.outcome_bytes(), 16, "8 bytes, and 64 bits");
        assert!(BatchSubmit::from_sqe(batch.submit(1, batch.data().len()).sqe()).is_presence);
        let none = namespace(KvVendorCommands::BATCH);
        assert_eq!(
            none.presence_batch().unwrap_err().to_string(),
            "the controller does not support batches of one bit for each key"
        );
    }

    #[test]
    fn attributes_precede_a_value() {
        let mut batch = namespace(KvVendorCommands::all()).batch().expect("a batch");
        let attributes = StoreAttributes { ttl_s: 0x0102, flags: 3 };
        batch.store_with(b"k", b"xy", StoreOptions::MUST_NOT_EXIST, attributes).unwrap();
        batch.store_with(b"k", b"xy", StoreOptions::empty(), StoreAttributes::default()).unwrap();
        let mut operations = Operations::new(batch.data()).map(|operation| operation.expect("whole"));
        let (first, second) = (operations.next().expect("one"), operations.next().expect("two"));
        assert_eq!((first.options, first.operand), (0b1010, &b"\x02\x01\0\0\x03\0\0\0xy"[..]));
        assert_eq!((second.options, second.operand), (0, &b"xy"[..]));
        let mut batch = namespace(KvVendorCommands::BATCH).batch().expect("a batch");
        assert!(batch.store_with(b"k", b"xy", StoreOptions::empty(), attributes).is_err());
    }

    #[test]
    fn both_commands_name_the_same_batch() {
        let mut batch = namespace(KvVendorCommands::all()).batch().expect("a batch");
        batch.exist(&key("k")).unwrap();
        let (collect, submit) = (batch.collect(9), batch.submit(9, batch.data().len()));
        assert_eq!(BatchCollect::from_sqe(collect.sqe()), BatchCollect { buffer_bytes: 16, tag: 9 });
        let expected =
            BatchSubmit { data_bytes: 16, count: 1, is_presence: false, tag: 9, outcome_bytes: 16 };
        assert_eq!(BatchSubmit::from_sqe(submit.sqe()), expected);
        assert_eq!((collect.buffer_bytes(), submit.buffer_bytes()), (Some(16), Some(16)));
        assert_eq!(collect.sqe().nsid(), submit.sqe().nsid());
    }

    #[test]
    fn atomics_send_no_words_that_are_zero() {
        let mut batch = namespace(KvVendorCommands::all()).batch().expect("a batch");
        let add = AtomicOperation::new(AtomicFunction::ADD, 1);
        for (atomic, length) in [
            (add, 8),
            (AtomicOperation::compare_and_swap(1, 2), 16),
            (add.or_create(3), 24),
            (add.or_create(0), 8),
        ] {
            batch.clear();
            batch.atomic(&key("n"), &atomic).unwrap();
            let operation = Operations::new(batch.data()).next().expect("one").expect("whole");
            assert_eq!(operation.operand.len(), length);
            let read = AtomicOperation::from_bytes(operation.kind, operation.options, operation.operand);
            assert_eq!(read, Some(atomic));
        }
    }
}
