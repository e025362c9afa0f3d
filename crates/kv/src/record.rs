//! The format of a log: segment headers and records.
//!
//! ```text
//! segment  │ header, one block │ record │ record │ 0 … to the end of a block │ record │ …
//! record   │ kind 1 │ key length 1 │ marks 1 │ 0 │ crc 4 │ value length 4 │ flags 4 │ cas 8 │ expiry 8 │ …
//!          │ key │ value │ crc 4 │
//! ```
//!
//! The first checksum covers everything before the value, and the location: the run that wrote the segment, its
//! generation, and the position. So remains of an earlier use of the segment are not taken for records. The second
//! covers the value.

use crc_fast::{CrcAlgorithm, Digest};

use crate::key::KEY_BYTES_MAX;

/// Bytes of a record before its key.
pub(crate) const HEAD_BYTES: usize = 32;
/// Bytes of a record after its value.
pub(crate) const TAIL_BYTES: usize = 4;
/// Bytes of a record besides key and value.
pub(crate) const RECORD_EXTRA_BYTES: usize = HEAD_BYTES + TAIL_BYTES;

const MAGIC: [u8; 8] = *b"nvlkvseg";
const HEADER_BYTES: usize = 64;

/// The state of a key in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The key has this value.
    Pair,
    /// The key has no value.
    Removed,
    /// All keys were removed; the record has no key.
    Cleared,
}

/// A record without its key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) key_bytes: usize,
    /// Bits of memcached's marks.
    pub(crate) marks: u8,
    pub(crate) value_bytes: usize,
    pub(crate) flags: u32,
    pub(crate) cas: u64,
    /// Expiry in Unix time, s, or 0.
    pub(crate) expiry_s: i64,
}

/// Location of a record, which is part of its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The run that wrote the segment: after a power cut, generations that were lost are counted again.
    pub(crate) run: u64,
    pub(crate) generation: u64,
    /// Offset in the segment.
    pub(crate) position: u64,
}

impl Head {
    /// Size of the whole record.
    pub(crate) fn record_bytes(&self) -> usize {
        RECORD_EXTRA_BYTES + self.key_bytes + self.value_bytes
    }

    /// Encodes the record up to its value.
    pub(crate) fn encode(&self, key: &[u8], location: Location, into: &mut [u8]) {
        debug_assert_eq!(key.len(), self.key_bytes);
        let kind = match self.kind {
            Kind::Pair => 1,
            Kind::Removed => 2,
            Kind::Cleared => 3,
        };
        into[..4].copy_from_slice(&[kind, self.key_bytes as u8, self.marks, 0]);
        into[8..12].copy_from_slice(&(self.value_bytes as u32).to_le_bytes());
        into[12..16].copy_from_slice(&self.flags.to_le_bytes());
        into[16..24].copy_from_slice(&self.cas.to_le_bytes());
        into[24..32].copy_from_slice(&self.expiry_s.to_le_bytes());
        into[HEAD_BYTES..HEAD_BYTES + key.len()].copy_from_slice(key);
        let crc = checksum(&into[..HEAD_BYTES + key.len()], location);
        into[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes the first [`HEAD_BYTES`], without checking the checksum.
    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let kind = match bytes[0] {
            1 => Kind::Pair,
            2 => Kind::Removed,
            3 => Kind::Cleared,
            _ => return None,
        };
        let key_bytes = usize::from(bytes[1]);
        let has_key = (1..=KEY_BYTES_MAX).contains(&key_bytes);
        if (kind == Kind::Cleared) == has_key || bytes[3] != 0 {
            return None;
        }
        Some(Self {
            kind,
            key_bytes,
            marks: bytes[2],
            value_bytes: word(8) as usize,
            flags: word(12),
            cas: long(16),
            expiry_s: long(24).cast_signed(),
        })
    }

    /// Whether these bytes, up to the value, are a record written at this location.
    pub(crate) fn is_genuine(bytes: &[u8], location: Location) -> bool {
        bytes[4..8] == checksum(bytes, location).to_le_bytes()
    }
}

fn checksum(bytes: &[u8], location: Location) -> u32 {
    let mut checksum = Checksum::default();
    for number in [location.run, location.generation, location.position] {
        checksum.update(&number.to_le_bytes());
    }
    checksum.update(&bytes[..4]);
    checksum.update(&bytes[8..]);
    checksum.finish()
}

/// A checksum computed piece by piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksum(u32);

impl Default for Checksum {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Checksum {
    pub(crate) fn update(&mut self, piece: &[u8]) {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, self.0.into());
        digest.update(piece);
        self.0 = digest.get_state() as u32;
    }

    pub(crate) fn finish(self) -> u32 {
        !self.0
    }
}

/// The header of a segment, its first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Identity of the log.
    pub(crate) log: u64,
    /// Random number of the start that wrote it.
    pub(crate) run: u64,
    /// Generation of the segment, counted from 1.
    pub(crate) generation: u64,
    /// The oldest generation needed when this header was written.
    pub(crate) oldest: u64,
    /// End of the previous segment.
    pub(crate) previous_end: u64,
    /// A CAS number that no value had at that time.
    pub(crate) next_cas: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self, into: &mut [u8]) {
        into[..8].copy_from_slice(&MAGIC);
        let numbers = [self.log, self.run, self.generation, self.oldest, self.previous_end, self.next_cas];
        for (number, at) in numbers.into_iter().zip((8..).step_by(8)) {
            into[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        into[56..60].fill(0);
        let crc = crc_fast::crc32_iscsi(&into[..60]);
        into[60..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes a header; `None` if this log has written none here.
    pub(crate) fn decode(bytes: &[u8], log: u64) -> Option<Self> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let is_genuine = bytes[60..] == crc_fast::crc32_iscsi(&bytes[..60]).to_le_bytes();
        if bytes[..8] != MAGIC || !is_genuine || long(8) != log {
            return None;
        }
        Some(Self {
            log,
            run: long(16),
            generation: long(24),
            oldest: long(32),
            previous_end: long(40),
            next_cas: long(48),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_read_back_where_they_were_written_and_nowhere_else(
            key in prop::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX),
            marks: u8, value_bytes: u32, flags: u32, cas: u64, expiry_s: i64,
            log: u64, generation: u64, position: u64, bit in 0usize..256,
        ) {
            let value_bytes = value_bytes as usize;
            let head =
                Head { kind: Kind::Pair, key_bytes: key.len(), marks, value_bytes, flags, cas, expiry_s };
            let location = Location { run: log, generation, position };
            let mut bytes = vec![0; HEAD_BYTES + key.len()];
            head.encode(&key, location, &mut bytes);
            prop_assert_eq!(Head::decode(bytes[..HEAD_BYTES].try_into().unwrap()), Some(head));
            prop_assert!(Head::is_genuine(&bytes, location));
            let elsewhere = Location { generation: generation ^ 1, ..location };
            prop_assert!(!Head::is_genuine(&bytes, elsewhere));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!Head::is_genuine(&bytes, location));
        }

        #[test]
        fn headers_of_segments_read_back(
            log: u64, run: u64, generation: u64, oldest: u64, next_cas: u64, bit in 0usize..512,
        ) {
            let previous_end = oldest ^ next_cas;
            let header = SegmentHeader { log, run, generation, oldest, previous_end, next_cas };
            let mut bytes = [0; 512];
            header.encode(&mut bytes);
            prop_assert_eq!(SegmentHeader::decode(&bytes, log), Some(header));
            prop_assert_eq!(SegmentHeader::decode(&bytes, log ^ 1), None);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(SegmentHeader::decode(&bytes, log), None);
        }

        #[test]
        fn arbitrary_bytes_are_no_record(bytes in prop::collection::vec(any::<u8>(), HEAD_BYTES)) {
            let bytes: [u8; HEAD_BYTES] = bytes.try_into().unwrap();
            if let Some(head) = Head::decode(&bytes) {
                prop_assert!(head.key_bytes <= KEY_BYTES_MAX);
            }
        }
    }
}
