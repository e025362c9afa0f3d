//! The format of the records of a log.
//!
//! ```text
//! segment  │ header, one block │ record │ record │ 0 … to the end of a block │ record │ …
//! record   │ kind 1 │ key length 1 │ marks 1 │ first 1 │ crc 4 │ value length 4 │ flags 4 │ cas 8 │ expiry 8 │ …
//!          │ key │ value │ crc 4 │
//! ```
//!
//! A long value that does not fit in the rest of a segment has two records: one is begun there and ends with the
//! segment, the other one has the rest and is in the next segment, behind the first list of names. Both have the key.
//!
//! A write begins at a block, with a record whose *first* byte is 1, unless it continues a record of several writes. A
//! record marked so is only written once everything before it in the segment is complete.
//!
//! The first checksum covers everything before the value, and the location: the run that wrote the segment, its
//! generation, and the position. So remains of an earlier use of the segment are not taken for records. The second
//! covers the first and the value: a write that was torn between them leaves the value of an earlier record there.
//!
//! Records form groups, in one write or several, each with a record of its own at its end: a group without it does not
//! count. A write begins with a list of the names of the keys written before it ([`Kind::Names`]).

use memory::crc32c;

use crate::key::KEY_BYTES_MAX;

/// Bytes of a record before its key.
pub(crate) const HEAD_BYTES: usize = 32;
/// Bytes of a record after its value.
pub(crate) const TAIL_BYTES: usize = 4;
/// Bytes of a record besides key and value.
pub(crate) const RECORD_EXTRA_BYTES: usize = HEAD_BYTES + TAIL_BYTES;
/// Size of a name in a list of names.
pub(crate) const NAME_BYTES: usize = 4;
/// Size of the record of a list of names, besides the names: its range has three numbers.
pub(crate) const NAMES_EXTRA_BYTES: usize = RECORD_EXTRA_BYTES + 3 * 8;
/// The most bytes of a record before its value.
pub(crate) const KEYED_BYTES_MAX: usize = HEAD_BYTES + KEY_BYTES_MAX;

/// The state of a key in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The key has this value.
    Pair,
    /// The key has no value.
    Removed,
    /// All keys were removed; the record has no key.
    Cleared,
    /// The group of records before it is complete; its flags are their number, and it has no key.
    GroupEnd,
    /// The names of the keys of records before it, as its value; it has no key and belongs to no group.
    Names,
    /// The key has a value that was damaged.
    Lost,
    /// The key has this value, of which only the first part fits in the segment: it ends there, and the rest follows in
    /// the next one.
    Begun,
    /// The rest of that value. It belongs to the record before, and is in no list of names.
    Rest,
}

impl Kind {
    /// Whether such records have a key.
    fn has_key(self) -> bool {
        matches!(self, Self::Pair | Self::Removed | Self::Lost | Self::Begun | Self::Rest)
    }

    /// Whether such records may have a value.
    pub(crate) fn has_value(self) -> bool {
        matches!(self, Self::Pair | Self::Names | Self::Begun | Self::Rest)
    }
}

/// A record without its key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) key_bytes: usize,
    /// Bits of memcached's marks.
    pub(crate) marks: u8,
    /// Of one that is begun, those of the rest are included.
    pub(crate) value_bytes: usize,
    pub(crate) flags: u32,
    pub(crate) cas: u64,
    /// Expiry in Unix time, s, or 0.
    pub(crate) expiry_s: i64,
    /// Whether a write begins with it.
    pub(crate) is_first: bool,
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
    /// The head of a list of names.
    pub(crate) fn names(value_bytes: usize) -> Self {
        let (kind, is_first) = (Kind::Names, false);
        Self { kind, key_bytes: 0, marks: 0, value_bytes, flags: 0, cas: 0, expiry_s: 0, is_first }
    }

    /// Size of the whole record.
    pub(crate) fn record_bytes(&self) -> usize {
        RECORD_EXTRA_BYTES + self.key_bytes + self.value_bytes
    }

    /// Size of the part of a record at this position that is in its segment: all of it, unless it is begun there.
    /// `None` if no record can be there.
    pub(crate) fn bytes_at(&self, position: u64, segment_bytes: u64) -> Option<usize> {
        let left_bytes = segment_bytes.checked_sub(position)?;
        let is_longer = self.record_bytes() as u64 > left_bytes;
        let least_bytes = (RECORD_EXTRA_BYTES + self.key_bytes) as u64;
        match self.kind {
            Kind::Begun => (is_longer && least_bytes < left_bytes).then_some(left_bytes as usize),
            _ => (!is_longer).then_some(self.record_bytes()),
        }
    }

    /// The bytes of a value in a record of that size.
    pub(crate) fn value_bytes_in(&self, record_bytes: usize) -> usize {
        record_bytes - RECORD_EXTRA_BYTES - self.key_bytes
    }

    /// Encodes the record up to its value. Returns the checksum of the bytes that follow.
    pub(crate) fn encode(&self, key: &[u8], location: Location, into: &mut [u8]) -> Checksum {
        debug_assert_eq!(key.len(), self.key_bytes);
        let kind = match self.kind {
            Kind::Pair => 1,
            Kind::Removed => 2,
            Kind::Cleared => 3,
            Kind::GroupEnd => 4,
            Kind::Names => 5,
            Kind::Lost => 6,
            Kind::Begun => 7,
            Kind::Rest => 8,
        };
        into[..4].copy_from_slice(&[kind, self.key_bytes as u8, self.marks, self.is_first.into()]);
        into[8..12].copy_from_slice(&(self.value_bytes as u32).to_le_bytes());
        into[12..16].copy_from_slice(&self.flags.to_le_bytes());
        into[16..24].copy_from_slice(&self.cas.to_le_bytes());
        into[24..32].copy_from_slice(&self.expiry_s.to_le_bytes());
        into[HEAD_BYTES..HEAD_BYTES + key.len()].copy_from_slice(key);
        let crc = checksum(&into[..HEAD_BYTES + key.len()], location);
        into[4..8].copy_from_slice(&crc.to_le_bytes());
        Checksum::behind(into)
    }

    /// Decodes the first [`HEAD_BYTES`], without checking the checksum.
    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let kind = match bytes[0] {
            1 => Kind::Pair,
            2 => Kind::Removed,
            3 => Kind::Cleared,
            4 => Kind::GroupEnd,
            5 => Kind::Names,
            6 => Kind::Lost,
            7 => Kind::Begun,
            8 => Kind::Rest,
            _ => return None,
        };
        let key_bytes = usize::from(bytes[1]);
        let has_key = (1..=KEY_BYTES_MAX).contains(&key_bytes);
        if kind.has_key() != has_key || !kind.has_value() && word(8) > 0 || bytes[3] > 1 {
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
            is_first: bytes[3] == 1,
        })
    }

    /// The record at the start of these bytes, if one was written at this location, and is there up to its value.
    pub(crate) fn read(bytes: &[u8], location: Location) -> Option<Self> {
        let head = Self::decode(bytes.first_chunk()?)?;
        let bytes = bytes.get(..HEAD_BYTES + head.key_bytes)?;
        Self::is_genuine(bytes, location).then_some(head)
    }

    /// Corrects the bit before its value in which a record differs from these bytes, and reads it. The checksum's
    /// distance makes it the only one.
    pub(crate) fn correct(bytes: &mut [u8], location: Location) -> Option<Self> {
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Some(head) = Self::read(bytes, location) {
                return Some(head);
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        None
    }

    /// Whether these bytes, up to the value, are a record written at this location.
    pub(crate) fn is_genuine(bytes: &[u8], location: Location) -> bool {
        bytes[4..8] == checksum(bytes, location).to_le_bytes()
    }
}

fn checksum(bytes: &[u8], location: Location) -> u32 {
    let mut checksum = Checksum(u32::MAX);
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

impl Checksum {
    /// The checksum of the bytes that follow an encoded head.
    pub(crate) fn behind(head: &[u8]) -> Self {
        Self(u32::from_le_bytes(head[4..8].try_into().expect("four bytes")))
    }

    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.0 = crc32c::append(self.0, piece);
    }

    pub(crate) fn finish(self) -> u32 {
        !self.0
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
            log: u64, generation: u64, position: u64, is_first: bool, bit in 0usize..256,
        ) {
            let value_bytes = value_bytes as usize;
            let head =
                Head { kind: Kind::Pair, key_bytes: key.len(), marks, value_bytes, flags, cas, expiry_s, is_first };
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
        fn arbitrary_bytes_are_no_record(bytes in prop::collection::vec(any::<u8>(), HEAD_BYTES)) {
            let bytes: [u8; HEAD_BYTES] = bytes.try_into().unwrap();
            if let Some(head) = Head::decode(&bytes) {
                prop_assert!(head.key_bytes <= KEY_BYTES_MAX);
            }
        }
    }
}
