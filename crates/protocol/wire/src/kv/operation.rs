//! Operations of the vendor commands on a value, a number or a vector, and their codes. docs/kv-commands.md §2

use crate::bits::{byte, dword, high32, low32};
use crate::id::Nsid;
use crate::kv::{Key, KeyTooLong, KvCommand};
use crate::opcode::KvOpcode;
use crate::sqe::Sqe;

tables! {
    /// The operation of an Atomic on a number. docs/kv-commands.md §2.1
    pub codes AtomicFunction: u8 {
        0x00 ADD, "add";
        0x01 ADD_UP_TO, "add up to";
        0x02 TAKE_AWAY, "take away";
        0x03 MIN, "min";
        0x04 MAX, "max";
        0x05 AND, "and";
        0x06 OR, "or";
        0x07 XOR, "xor";
        0x08 SWAP, "swap";
        0x09 COMPARE_AND_SWAP, "compare and swap";
    }

    /// The element type of a vector. docs/kv-commands.md §2.2
    pub codes ElementCode: u8 {
        0x00 U8, "u8";
        0x01 U16, "u16";
        0x02 U32, "u32";
        0x03 U64, "u64";
        0x04 I8, "i8";
        0x05 I16, "i16";
        0x06 I32, "i32";
        0x07 I64, "i64";
        0x08 F32, "f32";
        0x09 F64, "f64";
    }
}

impl ElementCode {
    /// Bytes of an element; `None` of an unknown one.
    #[must_use]
    pub const fn bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            _ => None,
        }
    }
}

tables! {
    /// The operation on two elements of vectors. docs/kv-commands.md §2.2
    pub codes VectorFunction: u8 {
        0x00 ADD, "add";
        0x01 MIN, "min";
        0x02 MAX, "max";
        0x03 AND, "and";
        0x04 OR, "or";
        0x05 XOR, "xor";
    }

    /// Which elements a filter keeps: those that are … than the operand. docs/kv-commands.md §2.2
    pub codes VectorComparison: u8 {
        0x00 LESS, "less";
        0x01 LESS_OR_EQUAL, "less or equal";
        0x02 EQUAL, "equal";
        0x03 NOT_EQUAL, "not equal";
        0x04 GREATER_OR_EQUAL, "greater or equal";
        0x05 GREATER, "greater";
    }

    /// Options of an Atomic. docs/kv-commands.md §2.1
    pub flags AtomicOptions: u8 {
        [0] CREATE, "Where there is no value, begin with the initial number.";
        [1] NARROW, "The number has 4 bytes and not 8.";
    }
}

/// The selector of a vector operation: element in the low half, function or comparison in the high half.
#[must_use]
pub const fn vector_kind(element: ElementCode, function: u8) -> u8 {
    element.raw() & 0xF | function << 4
}

/// Element, and function or comparison, of a vector operation's selector.
#[must_use]
pub const fn vector_parts(kind: u8) -> (ElementCode, u8) {
    (ElementCode::from_raw(kind & 0xF), kind >> 4)
}

/// An Atomic with its operands. docs/kv-commands.md §2.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicOperation {
    /// The operation.
    pub function: AtomicFunction,
    /// The operand that is added, compared with the number, or stored.
    pub operand: u64,
    /// Add up to: the limit of the sum. Compare and swap: the expected number.
    pub second: u64,
    /// The initial number if there is none.
    pub initial: u64,
    /// Its options.
    pub options: AtomicOptions,
}

/// Bytes of an Atomic's operands as they are sent by [`AtomicOperation::to_bytes`].
pub const ATOMIC_BYTES: usize = 24;

/// The same, as encoded in commands.
const ATOMIC_DATA_BYTES: u32 = 24;

impl AtomicOperation {
    /// A function with one operand, on 8 bytes that must be there.
    #[must_use]
    pub const fn new(function: AtomicFunction, operand: u64) -> Self {
        Self { function, operand, second: 0, initial: 0, options: AtomicOptions::empty() }
    }

    /// Stores `new` if `expected` is there.
    #[must_use]
    pub const fn compare_and_swap(expected: u64, new: u64) -> Self {
        Self { second: expected, ..Self::new(AtomicFunction::COMPARE_AND_SWAP, new) }
    }

    /// Adds if the sum is at most `limit`.
    #[must_use]
    pub const fn add_up_to(operand: u64, limit: u64) -> Self {
        Self { second: limit, ..Self::new(AtomicFunction::ADD_UP_TO, operand) }
    }

    /// Begins with this number where there is none.
    #[must_use]
    pub fn or_create(self, initial: u64) -> Self {
        Self { initial, options: self.options | AtomicOptions::CREATE, ..self }
    }

    /// On a number of 4 bytes.
    #[must_use]
    pub fn narrow(self) -> Self {
        Self { options: self.options | AtomicOptions::NARROW, ..self }
    }

    /// Reads the operands: 8, 16 or 24 bytes; `None` of another length. Those that are missing are 0.
    #[inline]
    #[must_use]
    pub fn from_bytes(kind: u8, options: u8, operands: &[u8]) -> Option<Self> {
        let (words, rest) = operands.as_chunks::<8>();
        if !rest.is_empty() || !(1..=3).contains(&words.len()) {
            return None;
        }
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        let options = AtomicOptions::from_bits_retain(options);
        let function = AtomicFunction::from_raw(kind);
        Some(Self { function, operand: word(0), second: word(1), initial: word(2), options })
    }

    /// The operands as they are sent.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ATOMIC_BYTES] {
        let mut bytes = [0; ATOMIC_BYTES];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (word, operand) in words.iter_mut().zip([self.operand, self.second, self.initial]) {
            *word = operand.to_le_bytes();
        }
        bytes
    }

    /// Bits of the number.
    #[must_use]
    pub const fn mask(&self) -> u64 {
        if self.options.contains(AtomicOptions::NARROW) { u32::MAX as u64 } else { u64::MAX }
    }

    /// Whether the operation changed a number whose value was `before`. It leaves a number that would pass its limit,
    /// or that is not the expected one.
    #[must_use]
    pub fn took_effect(&self, before: u64) -> bool {
        let mask = self.mask();
        match self.function {
            AtomicFunction::ADD_UP_TO => {
                before.checked_add(self.operand).is_some_and(|sum| sum <= self.second.min(mask))
            }
            AtomicFunction::TAKE_AWAY => before >= self.operand,
            AtomicFunction::COMPARE_AND_SWAP => before == self.second & mask,
            _ => true,
        }
    }
}

/// Fields that every vendor command on one key has. docs/kv-commands.md §3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvVendorCommand {
    /// Key, its length, the data's length and options, as in the standard commands.
    pub command: KvCommand,
    /// The operation, by opcode.
    pub kind: u8,
    /// One element, or the initial value of a reduction; unused in commands with operands as data.
    pub operand: u64,
}

impl KvVendorCommand {
    /// Reads the fields.
    #[inline]
    #[must_use]
    pub const fn from_sqe(sqe: &Sqe) -> Self {
        let command = KvCommand::from_sqe(sqe);
        Self { command, kind: byte(sqe.cdw11.get(), 2), operand: sqe.cdw12_13() }
    }

    /// A command with these fields; the data pointer, if it has data, is left to the caller.
    #[must_use]
    pub fn to_sqe(&self, opcode: KvOpcode, nsid: Nsid) -> Sqe {
        let mut sqe = self.command.to_sqe(opcode, nsid);
        let low = u16::from_le_bytes([self.command.key_length, self.command.options]);
        sqe.cdw11.set(dword(low, self.kind.into()));
        sqe.cdw12.set(low32(self.operand));
        sqe.cdw13.set(high32(self.operand));
        sqe
    }

    /// The key; `None` if it has no bytes, which no vendor command allows.
    ///
    /// # Errors
    /// [`KeyTooLong`] above 16 bytes.
    #[inline]
    pub fn key(&self) -> Result<Option<Key>, KeyTooLong> {
        self.command.key()
    }
}

/// The longest time for which a Pin can be, seconds. docs/kv-commands.md §3.5
pub const PIN_SECONDS_MAX: u32 = 86_400;

/// Option of a Pin: a pair that exists is success, also if it cannot be pinned. docs/kv-commands.md §3.5
pub const PIN_IF_ROOM: u8 = 1;

/// The seconds of a Pin in its operand, 0 of one that takes a pin back; `None` if it has another length or is too long.
/// docs/kv-commands.md §3.5
#[must_use]
pub fn pin_seconds(operand: &[u8]) -> Option<u32> {
    let seconds = match operand.len() {
        4 => u32::from_le_bytes(operand.try_into().ok()?),
        8 => u32::try_from(u64::from_le_bytes(operand.try_into().ok()?)).ok()?,
        _ => return None,
    };
    (seconds <= PIN_SECONDS_MAX).then_some(seconds)
}

impl Sqe {
    /// Pins a pair for some seconds, or with 0 takes one pin back. docs/kv-commands.md §3.5
    #[must_use]
    pub fn kv_pin(nsid: Nsid, key: &Key, options: u8, seconds: u32) -> Self {
        Self::kv_vendor((KvOpcode::PIN, nsid), key, 0, (0, options), seconds.into())
    }

    fn kv_vendor(
        (opcode, nsid): (KvOpcode, Nsid),
        key: &Key,
        size_bytes: u32,
        (kind, options): (u8, u8),
        operand: u64,
    ) -> Self {
        let command = KvCommand { size_bytes, key_length: key.length, options, key_field: key.bytes };
        KvVendorCommand { command, kind, operand }.to_sqe(opcode, nsid)
    }

    /// Changes the number that is a key's value. Its data is [`AtomicOperation::to_bytes`], its result the number
    /// before. docs/kv-commands.md §3.3
    #[must_use]
    pub fn kv_atomic(nsid: Nsid, key: &Key, atomic: &AtomicOperation) -> Self {
        let selector = (atomic.function.raw(), atomic.options.bits());
        Self::kv_vendor((KvOpcode::ATOMIC, nsid), key, ATOMIC_DATA_BYTES, selector, 0)
    }

    /// Changes every element of a vector by one operand; the result is the vector's length in bytes.
    /// docs/kv-commands.md §3.4
    #[must_use]
    pub fn kv_vector_scalar(
        nsid: Nsid,
        key: &Key,
        element: ElementCode,
        function: VectorFunction,
        operand: u64,
    ) -> Self {
        let kind = vector_kind(element, function.raw());
        Self::kv_vendor((KvOpcode::VECTOR_SCALAR, nsid), key, 0, (kind, 0), operand)
    }

    /// As [`kv_vector_scalar`](Self::kv_vector_scalar), and gives the vector as it was before.
    #[must_use]
    pub fn kv_vector_fetch(
        nsid: Nsid,
        key: &Key,
        (element, function): (ElementCode, VectorFunction),
        operand: u64,
        buffer_bytes: u32,
    ) -> Self {
        let kind = vector_kind(element, function.raw());
        Self::kv_vendor((KvOpcode::VECTOR_FETCH, nsid), key, buffer_bytes, (kind, 0), operand)
    }

    /// Changes each element of a vector by the one at the same place in the data. docs/kv-commands.md §3.4
    #[must_use]
    pub fn kv_vector_vector(
        nsid: Nsid,
        key: &Key,
        element: ElementCode,
        function: VectorFunction,
        operand_bytes: u32,
    ) -> Self {
        let kind = vector_kind(element, function.raw());
        Self::kv_vendor((KvOpcode::VECTOR_VECTOR, nsid), key, operand_bytes, (kind, 0), 0)
    }

    /// Folds a vector into one element, which the result dwords are. docs/kv-commands.md §3.4
    #[must_use]
    pub fn kv_vector_reduce(
        nsid: Nsid,
        key: &Key,
        element: ElementCode,
        function: VectorFunction,
        initial: u64,
    ) -> Self {
        let kind = vector_kind(element, function.raw());
        Self::kv_vendor((KvOpcode::VECTOR_REDUCE, nsid), key, 0, (kind, 0), initial)
    }

    /// Returns the elements of a vector for which the comparison with the operand holds; dword 0 is the bytes of all of
    /// them. docs/kv-commands.md §3.4
    #[must_use]
    pub fn kv_vector_filter(
        nsid: Nsid,
        key: &Key,
        (element, comparison): (ElementCode, VectorComparison),
        operand: u64,
        buffer_bytes: u32,
    ) -> Self {
        let kind = vector_kind(element, comparison.raw());
        Self::kv_vendor((KvOpcode::VECTOR_FILTER, nsid), key, buffer_bytes, (kind, 0), operand)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_pin_has_the_bytes_of_the_document() {
        let sqe = Sqe::kv_pin(Nsid::new(3), &Key::new(b"abc").expect("3 bytes"), PIN_IF_ROOM, 60);
        let mut expected = [0; 64];
        expected[..5].copy_from_slice(&[0x84, 0x40, 0, 0, 3]);
        expected[8..11].copy_from_slice(b"abc");
        expected[39] = 0x5A;
        expected[44..46].copy_from_slice(&[3, 1]);
        expected[48] = 60;
        assert_eq!(sqe.as_bytes(), expected);
        assert_eq!(KvVendorCommand::from_sqe(&sqe).operand, 60);
        assert_eq!(
            [60, 0, 86_400].map(|s: u32| pin_seconds(&s.to_le_bytes())),
            [Some(60), Some(0), Some(86_400)]
        );
        assert_eq!(pin_seconds(&60u64.to_le_bytes()), Some(60));
        let refused: [&[u8]; 4] = [&[1], &[0; 12], &86_401u32.to_le_bytes(), &(1u64 << 32).to_le_bytes()];
        assert!(refused.iter().all(|operand| pin_seconds(operand).is_none()));
    }

    #[test]
    fn an_atomic_has_the_bytes_of_the_document() {
        let key = Key::new(b"0123456789abcdef").expect("16 bytes");
        let atomic = AtomicOperation::compare_and_swap(7, 0x0102_0304_0506_0708).or_create(9).narrow();
        let sqe = Sqe::kv_atomic(Nsid::new(3), &key, &atomic);
        let mut expected = [0; 64];
        expected[..5].copy_from_slice(&[0x85, 0x40, 0, 0, 3]);
        expected[8..16].copy_from_slice(b"01234567");
        expected[39] = 0x5A;
        expected[40..48].copy_from_slice(&[24, 0, 0, 0, 16, 0b11, 9, 0]);
        expected[56..].copy_from_slice(b"89abcdef");
        assert_eq!(sqe.as_bytes(), expected);
        let data = [8, 7, 6, 5, 4, 3, 2, 1, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(atomic.to_bytes(), data);
        assert_eq!(AtomicOperation::from_bytes(9, 0b11, &data), Some(atomic));
    }

    #[test]
    fn vector_commands_have_their_operand_in_dwords_12_and_13() {
        let (nsid, key) = (Nsid::new(1), Key::new(b"v").expect("a byte"));
        let (element, operand) = (ElementCode::I32, 0x1122_3344_5566_7788);
        let both = (element, VectorFunction::XOR);
        for (sqe, opcode, cdw10, kind, has_operand) in [
            (Sqe::kv_vector_scalar(nsid, &key, element, VectorFunction::XOR, operand), 0x88, 0, 0x56, true),
            (Sqe::kv_vector_vector(nsid, &key, element, VectorFunction::MAX, 64), 0x89, 64, 0x26, false),
            (
                Sqe::kv_vector_filter(nsid, &key, (element, VectorComparison::GREATER), operand, 512),
                0x8A,
                512,
                0x56,
                true,
            ),
            (Sqe::kv_vector_reduce(nsid, &key, element, VectorFunction::ADD, operand), 0x8C, 0, 0x06, true),
            (Sqe::kv_vector_fetch(nsid, &key, both, operand, 512), 0x8E, 512, 0x56, true),
        ] {
            assert_eq!(sqe.opcode, opcode);
            let command = KvVendorCommand::from_sqe(&sqe);
            assert_eq!((command.command.size_bytes, command.kind), (cdw10, kind), "opcode {opcode:#x}");
            assert_eq!(command.operand, if has_operand { operand } else { 0 }, "opcode {opcode:#x}");
            assert_eq!(command.key(), Ok(Some(key)));
            let dwords = if has_operand { [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11] } else { [0; 8] };
            assert_eq!(sqe.as_bytes()[48..56], dwords);
        }
    }

    #[test]
    fn a_number_that_would_pass_its_limit_stays() {
        let up_to = AtomicOperation::add_up_to(3, 10);
        assert!(up_to.took_effect(7) && !up_to.took_effect(8));
        assert!(!AtomicOperation::add_up_to(1, u64::MAX).took_effect(u64::MAX));
        let narrow = AtomicOperation::add_up_to(1, u64::MAX).narrow();
        assert!(!narrow.took_effect(u32::MAX.into()));
        let take = AtomicOperation::new(AtomicFunction::TAKE_AWAY, 3);
        assert!(take.took_effect(3) && !take.took_effect(2));
        let swap = AtomicOperation::compare_and_swap(1 << 32 | 5, 6);
        assert!(!swap.took_effect(5) && swap.narrow().took_effect(5));
    }

    #[test]
    fn what_is_asked_for_twice_is_asked_for() {
        let atomic = AtomicOperation::new(AtomicFunction::ADD, 1).narrow().or_create(2);
        assert_eq!(atomic.narrow().or_create(2), atomic);
    }

    /// docs/kv-commands.md §2.2
    #[test]
    fn elements_have_1_2_4_or_8_bytes() {
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|code| ElementCode::from_raw(code).bytes());
        assert_eq!(bytes[..8], [1, 2, 4, 8, 1, 2, 4, 8].map(Some));
        assert_eq!(bytes[8..], [Some(4), Some(8), None]);
    }

    #[test]
    fn operands_have_one_to_three_words() {
        for (length, is_read) in [(0, false), (7, false), (8, true), (16, true), (24, true), (32, false)] {
            let read = AtomicOperation::from_bytes(0, 0, &vec![1; length]);
            assert_eq!(read.is_some(), is_read, "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn vendor_commands_give_back_what_they_were_made_of(
            size_bytes: u32, key_length: u8, options: u8, key_field: [u8; 16], kind: u8, operand: u64, opcode: u8,
        ) {
            let command = KvCommand { size_bytes, key_length, options, key_field };
            let command = KvVendorCommand { command, kind, operand };
            let sqe = command.to_sqe(KvOpcode::from_raw(opcode), Nsid::new(1));
            prop_assert_eq!(KvVendorCommand::from_sqe(&sqe), command);
            let (element, function) = vector_parts(kind);
            prop_assert_eq!(vector_kind(element, function), kind);
        }

        #[test]
        fn any_command_is_read_within_bounds(bytes: [[u8; 32]; 2], operands in prop::collection::vec(any::<u8>(), 0..40)) {
            let sqe = Sqe::read_from_bytes(bytes.as_flattened()).expect("64 bytes");
            let command = KvVendorCommand::from_sqe(&sqe);
            let _ = (command.key(), vector_parts(command.kind).0.bytes());
            if let Some(atomic) = AtomicOperation::from_bytes(command.kind, command.command.options, &operands) {
                let _ = atomic.took_effect(command.operand);
            }
        }
    }
}
