//! A Retrieve Submit: which bytes of a value the waiting Batch Collect receives. docs/kv-commands.md §7.1

use std::ops::Range;

use memory::{CHUNK_BYTES, Payload, PayloadRanges};
use store::Ticket;
use wire::kv::value::{ValueRanges, bytes_of};
use wire::status::Status;

/// What a Retrieve Submit asks for.
#[derive(Debug)]
pub(crate) struct Retrieving {
    /// The command that receives the data.
    pub(crate) collect: Ticket,
    /// Bytes of its buffer.
    pub(crate) room_bytes: u32,
    /// Length that the value must have; 0: any.
    pub(crate) expected_bytes: u32,
    /// Ranges of the value; none: all of it.
    ranges: Box<[Range<u64>]>,
}

impl Retrieving {
    pub(crate) fn new(
        (collect, room_bytes): (Ticket, u32),
        expected_bytes: u32,
        ranges: ValueRanges<'_>,
    ) -> Self {
        Self { collect, room_bytes, expected_bytes, ranges: ranges.iter().collect() }
    }

    /// Bytes for the host of a value of this length.
    ///
    /// # Errors
    /// The status to refuse with, if the value has another length than expected, or the data is not whole: a range is not
    /// within the value, or the host's buffer is too short.
    pub(crate) fn data_bytes(&self, value_bytes: u64) -> Result<u32, Status> {
        let is_expected = self.expected_bytes == 0 || u64::from(self.expected_bytes) == value_bytes;
        let bytes = bytes_of(&self.ranges, value_bytes).and_then(|bytes| u32::try_from(bytes).ok());
        let bytes = bytes.filter(|bytes| is_expected && *bytes <= self.room_bytes);
        bytes.ok_or(Status::INVALID_VALUE_SIZE.with_dnr())
    }

    /// Whether bytes from this one on are asked for.
    pub(crate) fn reaches(&self, from: usize) -> bool {
        self.ranges.is_empty() || self.ranges.iter().any(|range| range.end > from as u64)
    }

    /// Copies the asked bytes of a value, which [are within it](Self::data_bytes). `part` has the bytes from an offset on, as
    /// many as are contiguous.
    pub(crate) fn copy<'a>(&self, value_bytes: u64, part: impl Fn(usize) -> &'a [u8], into: &mut [u8]) {
        let whole = 0..value_bytes;
        let ranges = if self.ranges.is_empty() { std::slice::from_ref(&whole) } else { &self.ranges };
        let mut at = 0;
        for range in ranges {
            let (mut from, end) = (offset(range.start), offset(range.end));
            while from < end {
                let bytes = part(from);
                let count = bytes.len().min(end - from);
                into[at..at + count].copy_from_slice(&bytes[..count]);
                (from, at) = (from + count, at + count);
            }
        }
    }

    /// The asked bytes of a payload that is the value, or as much of it as [is asked for](Self::reaches).
    pub(crate) fn cut(&self, payload: Payload) -> Payload {
        if self.ranges.is_empty() {
            return payload;
        }
        let ranges = self.ranges.iter().map(|range| offset(range.start)..offset(range.end));
        Payload::Ranges(Box::new(PayloadRanges::new(payload, ranges)))
    }
}

/// An offset within a value.
fn offset(at: u64) -> usize {
    usize::try_from(at).expect("within a value")
}

/// Bytes of a value that are not in whole chunks.
pub(crate) fn rest_bytes(value_bytes: u64) -> usize {
    offset(value_bytes) % CHUNK_BYTES
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Ranges of values.
mod tests {
    use wire::kv::value::RetrieveSubmit;

    use super::*;

    fn retrieving(ranges: &[Range<u32>], expected_bytes: u32, room_bytes: u32) -> Retrieving {
        let (command, data) = RetrieveSubmit::new(0, b"k", ranges, expected_bytes).expect("few");
        let (_, ranges) = command.read(&data).expect("whole");
        Retrieving::new((Ticket(0), room_bytes), expected_bytes, ranges)
    }

    #[test]
    fn a_host_gets_all_that_it_asks_for_or_nothing() {
        let refused = Err(Status::INVALID_VALUE_SIZE.with_dnr());
        assert_eq!(retrieving(&[], 0, 100).data_bytes(100), Ok(100));
        assert_eq!(retrieving(&[], 0, 99).data_bytes(100), refused, "no room");
        assert_eq!(retrieving(&[], 99, 100).data_bytes(100), refused, "another length");
        assert_eq!(retrieving(&[0..10, 90..100], 100, 20).data_bytes(100), Ok(20));
        assert_eq!(retrieving(&[0..10, 90..101], 0, 100).data_bytes(100), refused, "past the value");
        assert_eq!(retrieving(&[0..100, 0..1], 0, 200).data_bytes(100), refused, "more than the value");
        assert_eq!(retrieving(&[], 0, 0).data_bytes(0), Ok(0));
        assert_eq!(retrieving(&[], 0, u32::MAX).data_bytes(1 << 32), refused);
    }

    #[test]
    fn copies_and_payloads_have_the_same_bytes() {
        let value: Vec<u8> = (0..=255).collect();
        for ranges in [&[][..], &[3..9, 0..4, 200..256], &[7..7]] {
            let retrieving = retrieving(ranges, 0, 1000);
            let length = retrieving.data_bytes(256).expect("within") as usize;
            let mut copied = vec![0; length];
            retrieving.copy(256, |at| &value[at..256.min(at + 10)], &mut copied);
            let payload = retrieving.cut(Payload::Heap(value.clone().into()));
            let mut sent = Vec::new();
            payload.for_each_piece(0..length, |piece| sent.extend_from_slice(piece));
            assert!(payload.len() == length && copied == sent);
        }
        assert!(retrieving(&[0..5], 0, 9).reaches(4) && !retrieving(&[0..5], 0, 9).reaches(5));
    }
}
