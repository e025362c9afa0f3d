//! Batches: Batch Submit sends many operations in one capsule, Batch Collect fetches their outcomes.
//! docs/kv-commands.md §4
//!
//! ```text
//! Submit:   header 12 bytes, key, operand, zeros to a dword │ …     one per operation
//! Collect:  header 16 bytes, data, zeros to a quadword      │ …     one per operation, in the same order
//! ```

use crate::bits::{low32, quadword};
use crate::kv::{Key, LONG_KEY_BYTES_MAX, LONG_KEY_LENGTH_MAX};
use crate::opcode::KvOpcode;
use crate::status::Status;

/// Bytes before the key of an operation.
pub const OPERATION_HEADER_BYTES: usize = 12;

/// Bytes before the data of an outcome.
pub const OUTCOME_HEADER_BYTES: usize = 16;

/// Option of a Store in a batch: its operand begins with [attributes](StoreAttributes) of the pair, and the value follows.
/// docs/kv-commands.md §4.3
pub const STORE_WITH_ATTRIBUTES: u8 = 1 << 3;

/// Attributes of a pair beside its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreAttributes {
    /// Seconds until it expires; 0: never.
    pub ttl_s: u32,
    /// Any number: memcached's flags.
    pub flags: u32,
}

impl StoreAttributes {
    /// As they precede a value.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.ttl_s) | u64::from(self.flags) << 32).to_le_bytes()
    }

    /// Those that precede a value, and the value; `None` if it is too short.
    #[must_use]
    pub fn split(operand: &[u8]) -> Option<(Self, &[u8])> {
        let (&[t0, t1, t2, t3, f0, f1, f2, f3], value) = operand.split_first_chunk()?;
        let ttl_s = u32::from_le_bytes([t0, t1, t2, t3]);
        Some((Self { ttl_s, flags: u32::from_le_bytes([f0, f1, f2, f3]) }, value))
    }
}

tables! {
    /// Fields of a Batch Submit. docs/kv-commands.md §4.1
    #[derive(Default)]
    pub command BatchSubmit: KvOpcode::BATCH_SUBMIT {
        cdw10 [31:0] data_bytes: u32, "Bytes of the operations.";
        cdw11 [15:0] count: u16, "Number of operations.";
        cdw11 [16] is_presence: bool, "Whether the outcomes are one bit each: docs/kv-commands.md §4.6.";
        cdw12 [31:0] tag: u32, "Which Batch Collect of the queue waits for the outcomes.";
        cdw13 [31:0] outcome_bytes: u32, "Bytes that the outcomes take at most.";
    }

    /// Fields of a Batch Collect. docs/kv-commands.md §4.2
    #[derive(Default)]
    pub command BatchCollect: KvOpcode::BATCH_COLLECT {
        cdw10 [31:0] buffer_bytes: u32, "Bytes of the host's buffer.";
        cdw12 [31:0] tag: u32, "The same as in the Batch Submit that follows.";
    }
}

/// One operation of a batch. docs/kv-commands.md §4.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<'a> {
    /// Store, Retrieve, Delete, Exist, Atomic, or one on vectors.
    pub opcode: KvOpcode,
    /// As in the single command.
    pub options: u8,
    /// As in the single command.
    pub kind: u8,
    /// Bytes of data that its outcome has at most.
    pub room_bytes: u32,
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// The value of a Store, or the operands of the operation.
    pub operand: &'a [u8],
}

impl<'a> Operation<'a> {
    /// One without options, operand and room.
    #[must_use]
    pub fn new(opcode: KvOpcode, key: &'a Key) -> Self {
        Self::on(opcode, key.as_bytes())
    }

    /// As [`new`](Self::new), on a key that may be longer than a command has room for.
    #[inline]
    #[must_use]
    pub const fn on(opcode: KvOpcode, key: &'a [u8]) -> Self {
        Self { opcode, options: 0, kind: 0, room_bytes: 0, key, operand: &[] }
    }

    /// Bytes that its outcome takes at most.
    #[inline]
    #[must_use]
    pub const fn outcome_bytes(&self) -> usize {
        outcome_bytes(self.room_bytes as usize)
    }

    /// Appends it to the data of a Batch Submit. Returns whether it could be: a key of 1 to 250 bytes, an operand whose
    /// length has 32 bits.
    #[must_use = "whether it was appended"]
    pub fn append_to(&self, data: &mut Vec<u8>) -> bool {
        let Ok(key_length @ 1..=LONG_KEY_LENGTH_MAX) = u8::try_from(self.key.len()) else { return false };
        let Ok(operand_bytes) = u32::try_from(self.operand.len()) else { return false };
        let mut header = [self.opcode.raw(), key_length, self.options, self.kind, 0, 0, 0, 0, 0, 0, 0, 0];
        header[4..8].copy_from_slice(&operand_bytes.to_le_bytes());
        header[8..].copy_from_slice(&self.room_bytes.to_le_bytes());
        data.extend_from_slice(&header);
        data.extend_from_slice(self.key);
        data.extend_from_slice(self.operand);
        let padding = self.key.len().wrapping_add(self.operand.len()).wrapping_neg() % 4;
        data.extend(std::iter::repeat_n(0, padding));
        true
    }
}

const fn outcome_bytes(data_bytes: usize) -> usize {
    OUTCOME_HEADER_BYTES.saturating_add(data_bytes).saturating_add(data_bytes.wrapping_neg() % 8)
}

/// The data of a Batch Submit that cannot be read; nor can the data that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// It ends in the middle of an operation.
    #[error("the batch ends in the operation at byte {offset}")]
    Truncated {
        /// Where the operation begins.
        offset: usize,
    },
    /// A key has no bytes, or more than 250.
    #[error("key of {length} bytes in the operation at byte {offset} of the batch")]
    Key {
        /// Where the operation begins.
        offset: usize,
        /// Its key's length.
        length: u8,
    },
}

/// Reads the data of a Batch Submit, operation after operation, within its bounds. After an error it ends.
#[derive(Clone, Debug)]
pub struct Operations<'a> {
    data: &'a [u8],
    offset: usize,
}

impl<'a> Operations<'a> {
    /// Reads from the beginning.
    #[inline]
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self { data, offset: 0 }
    }

    /// Where the next operation begins.
    #[inline]
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    #[inline]
    fn read(&self) -> Result<(Operation<'a>, usize), BatchError> {
        let offset = self.offset;
        let truncated = BatchError::Truncated { offset };
        let rest = self.data.get(offset..).ok_or(truncated)?;
        let (header, rest) = rest.split_first_chunk::<OPERATION_HEADER_BYTES>().ok_or(truncated)?;
        let &[opcode, length, options, kind, o0, o1, o2, o3, r0, r1, r2, r3] = header;
        let key_bytes = usize::from(length);
        if !(1..=LONG_KEY_BYTES_MAX).contains(&key_bytes) {
            return Err(BatchError::Key { offset, length });
        }
        let operand_bytes = u32::from_le_bytes([o0, o1, o2, o3]) as usize;
        let used = key_bytes.saturating_add(operand_bytes);
        let (key, rest) = rest.split_at_checked(key_bytes).ok_or(truncated)?;
        let operand = rest.get(..operand_bytes).ok_or(truncated)?;
        let padding = used.wrapping_neg() % 4;
        let end = offset.saturating_add(OPERATION_HEADER_BYTES).saturating_add(used).saturating_add(padding);
        if end > self.data.len() {
            return Err(truncated);
        }
        let opcode = KvOpcode::from_raw(opcode);
        let room_bytes = u32::from_le_bytes([r0, r1, r2, r3]);
        Ok((Operation { opcode, options, kind, room_bytes, key, operand }, end))
    }
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<Operation<'a>, BatchError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.data.len() {
            return None;
        }
        match self.read() {
            Ok((operation, end)) => {
                self.offset = end;
                Some(Ok(operation))
            }
            Err(error) => {
                self.offset = self.data.len();
                Some(Err(error))
            }
        }
    }
}

/// The outcome of one operation of a batch. docs/kv-commands.md §4.4
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// Its status.
    pub status: Status,
    /// Dword 0 of the completion of the single command: a value's full length, the former number, a sum.
    pub result: u64,
    /// Its data, at most as much as the operation had room for.
    pub data: &'a [u8],
}

/// Writes the data of a Batch Collect into a buffer, outcome by outcome.
#[derive(Debug)]
pub struct OutcomeWriter<'a> {
    buffer: &'a mut [u8],
    end: usize,
    failed_count: u32,
}

impl<'a> OutcomeWriter<'a> {
    /// Begins with the first.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, end: 0, failed_count: 0 }
    }

    /// The place for the data of the next outcome: `room_bytes`, or less where the buffer ends.
    #[inline]
    pub fn room(&mut self, room_bytes: usize) -> &mut [u8] {
        let start = self.end.saturating_add(OUTCOME_HEADER_BYTES).min(self.buffer.len());
        let end = start.saturating_add(room_bytes).min(self.buffer.len());
        self.buffer.get_mut(start..end).unwrap_or_default()
    }

    /// Writes an outcome whose first `data_bytes` of [`room`](Self::room) are in place. Returns whether it fitted.
    #[inline]
    pub fn push(&mut self, status: Status, result: u64, data_bytes: usize) -> bool {
        let Some(end) = self.end.checked_add(outcome_bytes(data_bytes)) else { return false };
        let Some(entry) = self.buffer.get_mut(self.end..end) else { return false };
        let Some((code, rest)) = entry.split_first_chunk_mut() else { return false };
        let Some((result_field, data)) = rest.split_first_chunk_mut() else { return false };
        let (Ok(length), Some(padding)) = (u32::try_from(data_bytes), data.get_mut(data_bytes..)) else {
            return false;
        };
        *code = (u64::from(status.code()) | u64::from(length) << 32).to_le_bytes();
        *result_field = result.to_le_bytes();
        padding.fill(0);
        self.end = end;
        self.failed_count = self.failed_count.saturating_add(u32::from(!status.is_success()));
        true
    }

    /// Outcomes that are no success.
    #[must_use]
    pub const fn failed_count(&self) -> u32 {
        self.failed_count
    }

    /// Bytes written.
    #[must_use = "the length of the data"]
    pub const fn finish(self) -> usize {
        self.end
    }
}

/// Reads the data of a Batch Collect, outcome after outcome, within its bounds; ends where it cannot be read.
#[derive(Clone, Debug)]
pub struct Outcomes<'a> {
    data: &'a [u8],
}

impl<'a> Outcomes<'a> {
    /// Reads from the beginning.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self { data }
    }
}

impl<'a> Iterator for Outcomes<'a> {
    type Item = Outcome<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (header, rest) = self.data.split_first_chunk::<OUTCOME_HEADER_BYTES>()?;
        let &[c0, c1, _, _, l0, l1, l2, l3, r0, r1, r2, r3, r4, r5, r6, r7] = header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let data = rest.get(..length)?;
        let padded = length.checked_add(length.wrapping_neg() % 8)?;
        self.data = rest.get(padded..).unwrap_or_default();
        let status = Status::from_code(u16::from_le_bytes([c0, c1]));
        Some(Outcome { status, result: u64::from_le_bytes([r0, r1, r2, r3, r4, r5, r6, r7]), data })
    }
}

/// The result of a Batch Collect: bytes of its data, and the number of operations whose outcomes they are.
#[must_use]
pub const fn collect_result(data_bytes: u32, count: u32) -> u64 {
    quadword(data_bytes, count)
}

/// Bytes of the data of a Batch Collect, by its result dwords.
#[must_use]
pub const fn collected_bytes(result: u64) -> u32 {
    low32(result)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::id::Nsid;

    #[test]
    fn both_commands_have_the_bytes_of_the_document() {
        let submit = BatchSubmit {
            data_bytes: 0x0102,
            count: 5,
            is_presence: false,
            tag: 0x0A0B_0C0D,
            outcome_bytes: 0x2000,
        };
        let sqe = submit.to_sqe(Nsid::new(1));
        let mut expected = [0; 64];
        expected[..5].copy_from_slice(&[0x81, 0x40, 0, 0, 1]);
        expected[39] = 0x5A;
        expected[40..56].copy_from_slice(&[2, 1, 0, 0, 5, 0, 0, 0, 13, 12, 11, 10, 0, 0x20, 0, 0]);
        assert_eq!(sqe.as_bytes(), expected);
        assert_eq!(BatchSubmit::from_sqe(&sqe), submit);
        let presence = BatchSubmit { is_presence: true, ..submit }.to_sqe(Nsid::new(1));
        assert_eq!(presence.as_bytes()[44..48], [5, 0, 1, 0]);
        assert_eq!(BatchSubmit::from_sqe(&presence), BatchSubmit { is_presence: true, ..submit });
        let collect = BatchCollect { buffer_bytes: 0x2000, tag: 0x0A0B_0C0D };
        let sqe = collect.to_sqe(Nsid::new(1));
        expected[0] = 0x82;
        expected[40..56].copy_from_slice(&[0, 0x20, 0, 0, 0, 0, 0, 0, 13, 12, 11, 10, 0, 0, 0, 0]);
        assert_eq!(sqe.as_bytes(), expected);
        assert_eq!(BatchCollect::from_sqe(&sqe), collect);
    }

    #[test]
    fn operations_and_outcomes_have_the_bytes_of_the_document() {
        let key = Key::new(b"abc").expect("a key");
        let mut data = Vec::new();
        assert!(
            Operation { operand: b"xy", options: 2, ..Operation::new(KvOpcode::STORE, &key) }
                .append_to(&mut data)
        );
        assert!(
            Operation { room_bytes: 64, ..Operation::new(KvOpcode::RETRIEVE, &key) }.append_to(&mut data)
        );
        assert_eq!(data[..20], *b"\x01\x03\x02\0\x02\0\0\0\0\0\0\0abcxy\0\0\0");
        assert_eq!(data[20..], *b"\x02\x03\0\0\0\0\0\0\x40\0\0\0abc\0");
        let mut pin = Vec::new();
        let operand = &3600u32.to_le_bytes()[..];
        assert!(Operation { operand, ..Operation::new(KvOpcode::PIN, &key) }.append_to(&mut pin));
        assert_eq!(pin, *b"\x84\x03\0\0\x04\0\0\0\0\0\0\0abc\x10\x0e\0\0\0");
        let mut buffer = [0xEE; 64];
        let mut writer = OutcomeWriter::new(&mut buffer);
        assert!(writer.push(Status::SUCCESS, 0, 0));
        writer.room(64)[..2].copy_from_slice(b"xy");
        assert!(writer.push(Status::KEY_EXISTS, 0x0102, 2));
        assert!(!writer.push(Status::SUCCESS, 0, 16), "8 bytes short");
        assert_eq!(writer.failed_count(), 1);
        assert_eq!(writer.finish(), 40);
        assert_eq!(buffer[..16], [0; 16]);
        assert_eq!(buffer[16..40], *b"\x89\0\0\0\x02\0\0\0\x02\x01\0\0\0\0\0\0xy\0\0\0\0\0\0");
    }

    #[test]
    fn an_operation_without_a_key_is_not_appended() {
        let key = Key::new(&[b'k'; 16]).expect("a key");
        let whole = Operation { room_bytes: 3, ..Operation::new(KvOpcode::RETRIEVE, &key) };
        assert_eq!(whole.outcome_bytes(), 24, "with its padding");
        let mut data = Vec::new();
        for key in [&[][..], &[b'k'; 251], &[b'k'; 300]] {
            assert!(!Operation { key, ..whole }.append_to(&mut data));
        }
        assert!(data.is_empty());
        assert!(whole.append_to(&mut data));
        let mut operations = Operations::new(&data);
        assert_eq!((operations.next(), operations.offset()), (Some(Ok(whole)), data.len()));
    }

    #[test]
    fn the_result_of_a_collect_counts_bytes_and_operations() {
        let result = collect_result(0xFFFF_FFF8, 5);
        assert_eq!(result, 0x0000_0005_FFFF_FFF8);
        assert_eq!(collected_bytes(result), 0xFFFF_FFF8);
    }

    #[test]
    fn a_malformed_batch_ends_with_an_error() {
        fn read(data: &[u8]) -> Option<Result<Operation<'_>, BatchError>> {
            Operations::new(data).last()
        }
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[1; 11]), Some(Err(BatchError::Truncated { offset: 0 })));
        assert_eq!(read(b"\x02\0\0\0\0\0\0\0\0\0\0\0"), Some(Err(BatchError::Key { offset: 0, length: 0 })));
        let mut long = [b'a'; 264];
        long[..12].copy_from_slice(b"\x02\xfb\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(read(&long), Some(Err(BatchError::Key { offset: 0, length: 251 })));
        long[1] = 250;
        let longest = Operation::on(KvOpcode::RETRIEVE, &long[12..262]);
        assert_eq!(read(&long), Some(Ok(longest)));
        assert_eq!(read(&long[..262]), Some(Err(BatchError::Truncated { offset: 0 })), "no padding");
        assert_eq!(
            read(b"\x01\x01\0\0\xff\xff\xff\xff\0\0\0\0k\0\0\0"),
            Some(Err(BatchError::Truncated { offset: 0 }))
        );
        // Padding belongs to it.
        assert_eq!(
            read(b"\x02\x01\0\0\0\0\0\0\0\0\0\0k\0\0"),
            Some(Err(BatchError::Truncated { offset: 0 }))
        );
    }

    proptest! {
        #[test]
        fn batches_read_back(
            operations in prop::collection::vec(
                (any::<[u8; 3]>(), any::<u32>(), prop::collection::vec(any::<u8>(), 1..=250), prop::collection::vec(any::<u8>(), 0..40)),
                0..20,
            ),
        ) {
            let mut data = Vec::new();
            let given: Vec<Operation<'_>> = operations.iter().map(|([opcode, options, kind], room_bytes, key, operand)| {
                let opcode = KvOpcode::from_raw(*opcode);
                Operation { opcode, options: *options, kind: *kind, room_bytes: *room_bytes, key, operand }
            }).collect();
            for operation in &given {
                prop_assert!(operation.append_to(&mut data));
            }
            let read: Result<Vec<_>, _> = Operations::new(&data).collect();
            prop_assert_eq!(read, Ok(given));
        }

        #[test]
        fn outcomes_read_back(
            outcomes in prop::collection::vec((0u16..0x800, any::<u64>(), prop::collection::vec(any::<u8>(), 0..40)), 0..20),
        ) {
            let mut buffer = vec![0xEE; 20 * 56];
            let mut writer = OutcomeWriter::new(&mut buffer);
            for (code, result, data) in &outcomes {
                writer.room(40)[..data.len()].copy_from_slice(data);
                prop_assert!(writer.push(Status::from_code(*code), *result, data.len()));
            }
            let length = writer.finish();
            let read: Vec<_> = Outcomes::new(&buffer[..length])
                .map(|outcome| (outcome.status.code(), outcome.result, outcome.data.to_vec()))
                .collect();
            prop_assert_eq!(read, outcomes);
        }

        #[test]
        fn any_bytes_are_read_within_bounds(data in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Operations::new(&data).count() <= 300 / OPERATION_HEADER_BYTES);
            prop_assert!(Outcomes::new(&data).count() <= 300 / OUTCOME_HEADER_BYTES);
        }

        #[test]
        fn what_does_not_fit_is_not_written(room: u32, length in 0usize..100) {
            let mut buffer = vec![0; length];
            let mut writer = OutcomeWriter::new(&mut buffer);
            let count = writer.room(room as usize).len();
            prop_assert!(count <= length.saturating_sub(OUTCOME_HEADER_BYTES));
            prop_assert_eq!(writer.push(Status::SUCCESS, 0, room as usize), outcome_bytes(room as usize) <= length);
        }
    }
}
