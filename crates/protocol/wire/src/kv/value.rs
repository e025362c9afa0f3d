//! Values whose key is in the data of another command: Retrieve Submit names a value, or ranges of it, for a Batch Collect
//! that waits; Store Submit names the key under which the value of a waiting Store Data is stored, and Store Flags brings
//! the flags of a value that has been sent. docs/kv-commands.md §7
//!
//! ```text
//! Retrieve Submit: offset u32, length u32 │ … one per range │ key
//! Store Submit:    flags u32 │ key
//! ```

use core::ops::Range;

use crate::bits::{low32, quadword};
use crate::kv::LONG_KEY_BYTES_MAX;

/// Bytes of a range.
const RANGE_BYTES: usize = 8;

/// Most ranges of one Retrieve Submit.
pub const RANGE_COUNT_MAX: u16 = 1024;

tables! {
    /// Fields of a Retrieve Submit. docs/kv-commands.md §7.1
    #[derive(Default)]
    pub command RetrieveSubmit: KvOpcode::RETRIEVE_SUBMIT {
        cdw10 [31:0] data_bytes: u32, "Bytes of the ranges and the key.";
        cdw11 [7:0] key_bytes: u8, "Bytes of the key.";
        cdw11 [31:16] range_count: u16, "Number of ranges; 0: the whole value.";
        cdw12 [31:0] tag: u32, "Which Batch Collect of the queue waits for the data.";
        cdw13 [31:0] expected_bytes: u32, "Length that the value must have; 0: any.";
    }

    /// Fields of a Store Submit. docs/kv-commands.md §7.2
    #[derive(Default)]
    pub command StoreSubmit: KvOpcode::STORE_SUBMIT {
        cdw10 [31:0] value_bytes: u32, "Bytes of the value, as in the Store Data.";
        cdw11 [7:0] key_bytes: u8, "Bytes of the key.";
        cdw11 [15:8] options: u8, "As of a Store, and [`FLAGS_FOLLOW`].";
        cdw12 [31:0] tag: u32, "Which Store Data of the queue has the value.";
        cdw13 [31:0] ttl_s: u32, "Seconds until the pair expires; 0: never.";
    }

    /// Fields of a Store Data. docs/kv-commands.md §7.2
    #[derive(Default)]
    pub command StoreData: KvOpcode::STORE_DATA {
        cdw10 [31:0] value_bytes: u32, "Bytes of the value.";
        cdw12 [31:0] tag: u32, "The same as in the Store Submit that follows.";
    }

    /// Fields of a Store Flags. docs/kv-commands.md §7.3
    #[derive(Default)]
    pub command StoreFlags: KvOpcode::STORE_FLAGS {
        cdw12 [31:0] tag: u32, "Which Store Data of the queue has the value.";
        cdw13 [31:0] flags: u32, "The flags of the pair.";
    }
}

/// Option of a Store Submit: a Store Flags brings the flags, behind the value. docs/kv-commands.md §7.2
pub const FLAGS_FOLLOW: u8 = 1 << 4;

/// Bytes of the flags before the key of a Store Submit.
const FLAGS_BYTES: usize = 4;

impl StoreSubmit {
    /// Bytes of its data.
    #[must_use]
    pub const fn data_bytes(&self) -> usize {
        FLAGS_BYTES.saturating_add(self.key_bytes as usize)
    }

    /// The flags and the key in its data; `None` if the key is none.
    #[must_use]
    pub fn read<'a>(&self, data: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let (flags, key) = data.get(..self.data_bytes())?.split_first_chunk()?;
        is_long_key(key).then_some((u32::from_le_bytes(*flags), key))
    }
}

/// The result of a Retrieve Submit: the version of a value of at least a mebibyte, never 0, and the flags of the pair.
#[must_use]
pub const fn retrieve_result(version: u64, flags: u32) -> u64 {
    quadword(low32(version), flags)
}

impl RetrieveSubmit {
    /// The key, and the ranges if it has any, in its data; `None` unless that is exactly as long as they are.
    #[must_use]
    pub fn read<'a>(&self, data: &'a [u8]) -> Option<(&'a [u8], ValueRanges<'a>)> {
        if self.range_count > RANGE_COUNT_MAX || data.len() != self.data_bytes as usize {
            return None;
        }
        let (ranges, key) = data.split_at_checked(usize::from(self.range_count).checked_mul(RANGE_BYTES)?)?;
        let is_key = key.len() == usize::from(self.key_bytes) && is_long_key(key);
        is_key.then_some((key, ValueRanges { ranges: ranges.as_chunks().0 }))
    }

    /// A command that names a key and ranges of its value, none for all of it, and its data. `None` if there are too many, or
    /// the key is none.
    #[must_use]
    pub fn new(tag: u32, key: &[u8], ranges: &[Range<u32>], expected_bytes: u32) -> Option<(Self, Vec<u8>)> {
        let range_count = u16::try_from(ranges.len()).ok().filter(|count| *count <= RANGE_COUNT_MAX)?;
        let key_bytes = u8::try_from(key.len()).ok().filter(|_| is_long_key(key))?;
        let mut data = Vec::with_capacity(ranges.len().saturating_mul(RANGE_BYTES).saturating_add(key.len()));
        for range in ranges {
            data.extend_from_slice(&range.start.to_le_bytes());
            data.extend_from_slice(&range.end.checked_sub(range.start)?.to_le_bytes());
        }
        data.extend_from_slice(key);
        let data_bytes = u32::try_from(data.len()).ok()?;
        Some((Self { data_bytes, key_bytes, range_count, tag, expected_bytes }, data))
    }
}

/// Whether these bytes may be a key in the data of a command.
#[must_use]
pub const fn is_long_key(key: &[u8]) -> bool {
    !key.is_empty() && key.len() <= LONG_KEY_BYTES_MAX
}

/// Ranges of a value. docs/kv-commands.md §7.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRanges<'a> {
    ranges: &'a [[u8; RANGE_BYTES]],
}

impl<'a> ValueRanges<'a> {
    /// The ranges: first byte, and the one behind the last.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + 'a {
        self.ranges.iter().map(|&[o0, o1, o2, o3, l0, l1, l2, l3]| {
            let start = u64::from(u32::from_le_bytes([o0, o1, o2, o3]));
            start..start.saturating_add(u32::from_le_bytes([l0, l1, l2, l3]).into())
        })
    }
}

/// Bytes of these ranges of a value of this length, all of it if there are none; `None` if one is not within it, or they are
/// more bytes than it has: ranges that overlap are no reason to send more than the value.
#[must_use]
pub fn bytes_of(ranges: &[Range<u64>], value_bytes: u64) -> Option<u64> {
    if ranges.is_empty() {
        return Some(value_bytes);
    }
    let mut bytes = 0u64;
    for range in ranges {
        bytes = bytes.saturating_add(range.end.saturating_sub(range.start));
        if range.end > value_bytes || bytes > value_bytes {
            return None;
        }
    }
    Some(bytes)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Ranges of values.
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::id::Nsid;

    #[test]
    fn the_commands_have_the_bytes_of_the_document() {
        let (retrieve, data) = RetrieveSubmit::new(9, b"abc", &[16..24, 0..4], 0x0102).expect("two ranges");
        let sqe = retrieve.to_sqe(Nsid::new(1));
        let mut expected = [0; 64];
        expected[..5].copy_from_slice(&[0x8D, 0x40, 0, 0, 1]);
        expected[39] = 0x5A;
        expected[40..56].copy_from_slice(&[19, 0, 0, 0, 3, 0, 2, 0, 9, 0, 0, 0, 2, 1, 0, 0]);
        assert_eq!(sqe.as_bytes(), expected);
        assert_eq!(RetrieveSubmit::from_sqe(&sqe), retrieve);
        assert_eq!(data, *b"\x10\0\0\0\x08\0\0\0\0\0\0\0\x04\0\0\0abc");
        let store = StoreSubmit { value_bytes: 0x0100_0000, key_bytes: 3, options: 2, tag: 9, ttl_s: 60 };
        let sqe = store.to_sqe(Nsid::new(1));
        expected[0] = 0x91;
        expected[40..56].copy_from_slice(&[0, 0, 0, 1, 3, 2, 0, 0, 9, 0, 0, 0, 60, 0, 0, 0]);
        assert_eq!(sqe.as_bytes(), expected);
        assert_eq!(StoreSubmit::from_sqe(&sqe), store);
        assert_eq!(store.read(b"\x04\x03\x02\x01abcd"), Some((0x0102_0304, &b"abc"[..])));
        assert_eq!((store.data_bytes(), store.read(b"\x04\x03\x02\x01ab")), (7, None));
        assert_eq!(StoreSubmit { key_bytes: 0, ..store }.read(&[0; 9]), None);
        assert_eq!(StoreSubmit { key_bytes: 251, ..store }.read(&[0; 300]), None);
        assert_eq!(retrieve_result(0x9_0000_0001, 7), 0x7_0000_0001);
        let value = StoreData { value_bytes: 0x0100_0000, tag: 9 };
        let sqe = value.to_sqe(Nsid::new(1));
        expected[0] = 0x95;
        expected[40..56].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sqe.as_bytes(), expected);
        assert_eq!(StoreData::from_sqe(&sqe), value);
        let flags = StoreFlags { tag: 9, flags: 0x0403_0201 };
        let sqe = flags.to_sqe(Nsid::new(1));
        expected[0] = 0x94;
        expected[40..56].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(sqe.as_bytes(), expected);
        assert_eq!(StoreFlags::from_sqe(&sqe), flags);
    }

    #[test]
    fn data_of_another_length_is_refused() {
        let (command, data) = RetrieveSubmit::new(0, &[7; 250], &[0..1], 0).expect("a range");
        assert!(command.read(&data).is_some());
        assert_eq!(command.read(&data[1..]), None);
        for wrong in [
            RetrieveSubmit { key_bytes: 249, ..command },
            RetrieveSubmit { key_bytes: 0, ..command },
            RetrieveSubmit { range_count: 0, ..command },
            RetrieveSubmit { range_count: 2, ..command },
            RetrieveSubmit { range_count: 1025, ..command },
            RetrieveSubmit { data_bytes: 257, ..command },
        ] {
            assert_eq!(wrong.read(&data), None, "{wrong:?}");
        }
        assert!(RetrieveSubmit::new(0, &[7; 251], &[], 0).is_none());
        assert!(RetrieveSubmit::new(0, b"", &[], 0).is_none());
        assert!(RetrieveSubmit::new(0, b"k", &vec![0..1; 1025], 0).is_none());
        #[expect(clippy::reversed_empty_ranges, reason = "what a caller may pass")]
        let reversed = RetrieveSubmit::new(0, b"k", &[2..1], 0);
        assert!(reversed.is_none());
    }

    #[test]
    fn ranges_are_within_the_value_and_no_longer_than_it() {
        let bytes_of = |ranges: &[Range<u32>], value_bytes| {
            let (command, data) = RetrieveSubmit::new(0, b"k", ranges, 0).expect("few");
            let (_, ranges) = command.read(&data).expect("whole");
            super::bytes_of(&ranges.iter().collect::<Vec<_>>(), value_bytes)
        };
        assert_eq!(bytes_of(&[], 10), Some(10));
        assert_eq!(bytes_of(&[0..4, 2..8], 10), Some(10));
        assert_eq!(bytes_of(&[0..4, 2..9], 10), None, "more than the value has");
        assert_eq!(bytes_of(&[5..10, 0..0], 10), Some(5));
        assert_eq!(bytes_of(&[5..11], 10), None);
        assert_eq!(bytes_of(&[u32::MAX..u32::MAX], 10), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_within_bounds(
            data in prop::collection::vec(any::<u8>(), 0..300), range_count in 0u16..40, key_bytes: u8, value_bytes: u64,
        ) {
            let data_bytes = u32::try_from(data.len()).expect("few");
            let command = RetrieveSubmit { data_bytes, key_bytes, range_count, tag: 0, expected_bytes: 0 };
            if let Some((key, ranges)) = command.read(&data) {
                prop_assert!(is_long_key(key) && ranges.iter().count() == usize::from(range_count));
                let bytes = super::bytes_of(&ranges.iter().collect::<Vec<_>>(), value_bytes);
                prop_assert!(bytes.is_none_or(|bytes| bytes <= value_bytes));
            }
        }
    }
}
