//! The names of the keys of each write, which bound what damage may hide.
//!
//! ```text
//! segment     │ … │ record a │ record b │ list: … │ record c │ record d │ list: c d │ record e │ …
//!                                          ╰────── covers, itself included ─────╯
//! superblock  the list that the next write would begin with: e
//! ```
//!
//! A write begins with a list of the names of all records since the list before, so the names of a write are in another
//! block than the write, and damage of one of them leaves the other. A name is a checksum of the key: two keys with one
//! name share the doubt about either.

use std::collections::BTreeSet;

use memory::crc32c;

use crate::key::name_of;
use crate::log_header::LogSuperblock;
use crate::record::{NAME_BYTES, NAMES_EXTRA_BYTES, RECORD_EXTRA_BYTES};

/// The name of the record that removes all keys.
pub(super) fn name_of_all() -> u32 {
    name_of(&[])
}

/// The names of the records in a range of a segment, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameList {
    /// The segment; 0 if nothing was written yet.
    pub(super) generation: u64,
    /// The range in it.
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) names: Vec<u32>,
}

impl NameList {
    const HEAD_BYTES: usize = NAMES_EXTRA_BYTES - RECORD_EXTRA_BYTES;
    /// Its checksum and its length, in a superblock.
    const SUPERBLOCK_HEAD_BYTES: usize = 8;

    /// Length of its value in a record.
    pub(super) fn value_bytes(&self) -> usize {
        Self::HEAD_BYTES + NAME_BYTES * self.names.len()
    }

    /// Length of its record; 0 if there is nothing to list.
    pub(super) fn record_bytes(&self) -> usize {
        if self.generation == 0 { 0 } else { RECORD_EXTRA_BYTES + self.value_bytes() }
    }

    /// Begins an empty list of the records from here on.
    pub(super) fn restart(&mut self, generation: u64, from: u64) {
        (self.generation, self.from, self.to) = (generation, from, from);
        self.names.clear();
    }

    /// Writes its value.
    pub(super) fn encode(&self, into: &mut [u8]) {
        let (head, names) = into.split_at_mut(Self::HEAD_BYTES);
        for (field, number) in head.chunks_exact_mut(8).zip([self.generation, self.from, self.to]) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        for (field, name) in names.chunks_exact_mut(NAME_BYTES).zip(&self.names) {
            field.copy_from_slice(&name.to_le_bytes());
        }
    }

    /// Reads the value of a record.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, names) = bytes.split_at_checked(Self::HEAD_BYTES)?;
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let names = names
            .chunks_exact(NAME_BYTES)
            .map(|name| u32::from_le_bytes(name.try_into().expect("four bytes")));
        Some(Self { generation: number(0), from: number(8), to: number(16), names: names.collect() })
    }

    /// Whether it fits in the block of a superblock.
    pub(super) fn fits_behind(&self, block_bytes: usize) -> bool {
        LogSuperblock::BYTES + Self::SUPERBLOCK_HEAD_BYTES + self.value_bytes() <= block_bytes
    }

    /// Writes it to the block of a superblock, if it fits there.
    pub(super) fn encode_behind(&self, superblock: &LogSuperblock, block: &mut [u8]) {
        if self.generation == 0 || !self.fits_behind(block.len()) {
            return;
        }
        let into = &mut block[LogSuperblock::BYTES..];
        let end = Self::SUPERBLOCK_HEAD_BYTES + self.value_bytes();
        into[4..8].copy_from_slice(&(self.value_bytes() as u32).to_le_bytes());
        self.encode(&mut into[Self::SUPERBLOCK_HEAD_BYTES..end]);
        let checksum = checksum_behind(superblock, &into[4..end]);
        into[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads what [`encode_behind`](Self::encode_behind) has written; `None` if that is nothing, or damaged.
    pub(super) fn decode_behind(superblock: &LogSuperblock, block: &[u8]) -> Option<Self> {
        let bytes = block.get(LogSuperblock::BYTES..)?;
        let length = u32::from_le_bytes(bytes.get(4..8)?.try_into().expect("four bytes")) as usize;
        let covered = bytes.get(4..)?.get(..4 + length)?;
        let is_genuine = bytes[..4] == checksum_behind(superblock, covered).to_le_bytes();
        if is_genuine && length > 0 { Self::decode(&covered[4..]) } else { None }
    }
}

fn checksum_behind(superblock: &LogSuperblock, bytes: &[u8]) -> u32 {
    let register = crc32c::append(u32::MAX, &superblock.log.to_le_bytes());
    let register = crc32c::append(register, &superblock.sequence.to_le_bytes());
    !crc32c::append(register, bytes)
}

/// The records that were read since the last list.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// The segment; 0 if nothing was read yet.
    generation: u64,
    /// Everything from here on was read.
    whole_from: u64,
    /// The names of records from one position to the other were read.
    listed_from: u64,
    listed_to: u64,
    /// Position and name of each.
    records: Vec<(u64, u32)>,
}

impl Recent {
    /// A record was read: at this position of the segment.
    pub(super) fn on_record(&mut self, generation: u64, position: u64, name: u32) {
        if self.generation != generation {
            self.begin(generation, position);
        }
        self.records.push((position, name));
    }

    /// Records before this position of the segment could not be read.
    pub(super) fn on_hole(&mut self, generation: u64, end: u64) {
        if self.generation != generation {
            self.begin(generation, end);
        }
        self.whole_from = end;
    }

    /// A list was read, which is itself at this position: it covers the records before.
    pub(super) fn restart(&mut self, generation: u64, from: u64) {
        let listed_from = if self.generation == generation { self.listed_from } else { from };
        self.begin(generation, from);
        (self.listed_from, self.listed_to) = (listed_from, from);
    }

    fn begin(&mut self, generation: u64, from: u64) {
        (self.generation, self.whole_from, self.listed_from, self.listed_to) = (generation, from, 0, 0);
        self.records.clear();
    }

    /// Start, at or after this position, of the range of which no names were read yet.
    pub(super) fn unlisted_from(&self, generation: u64, from: u64) -> u64 {
        let is_listed = self.generation == generation && (self.listed_from..self.listed_to).contains(&from);
        if is_listed { self.listed_to } else { from }
    }

    /// Whether a list is of records that were read since the last one: not of a segment that was freed, and not known
    /// from another list.
    fn is_next(&self, list: &NameList) -> bool {
        list.generation == self.generation && list.to > self.listed_to
    }

    /// The names in a list whose records were not read, ascending; `None` if the list says nothing new.
    pub(super) fn missing(&mut self, list: &NameList) -> Option<Vec<u32>> {
        if !self.is_next(list) {
            return None;
        }
        if list.from > self.listed_to {
            self.listed_from = list.from;
        }
        let is_in = |position: &u64| (list.from..list.to).contains(position);
        let found = self.records.iter().filter(|(position, _)| is_in(position)).map(|(_, name)| *name);
        if found.clone().eq(list.names.iter().copied()) {
            return Some(Vec::new());
        }
        let mut found: Vec<u32> = found.collect();
        let mut names = list.names.clone();
        found.sort_unstable();
        names.sort_unstable();
        let mut found = found.into_iter().peekable();
        names.retain(|name| {
            while found.next_if(|it| it < name).is_some() {}
            found.next_if_eq(name).is_none()
        });
        Some(names)
    }

    /// Whether a record of this name was read behind a position of this segment.
    pub(super) fn has_behind(&self, generation: u64, position: u64, name: u32) -> bool {
        self.generation == generation && self.records.iter().any(|(at, it)| *at > position && *it == name)
    }

    /// The list of the records up to `to` of a segment, with which the next write begins.
    pub(super) fn list(&self, generation: u64, to: u64) -> NameList {
        if self.generation != generation {
            return NameList::default();
        }
        let range = self.whole_from.min(to)..to;
        let names = self.records.iter().filter(|(position, _)| range.contains(position));
        NameList { generation, from: range.start, to, names: names.map(|(_, name)| *name).collect() }
    }
}

/// A range of a segment whose records cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Hole {
    pub(super) generation: u64,
    pub(super) from: u64,
    /// One past it.
    pub(super) end: u64,
    /// The most bytes of a record in it.
    record_bytes_max: u64,
    /// The names of all records before this position of it are known.
    known_to: u64,
    /// These names.
    hidden: BTreeSet<u32>,
}

impl Hole {
    pub(super) fn new(generation: u64, from: u64, end: u64) -> Self {
        let record_bytes_max = end - from;
        Self { generation, from, end, record_bytes_max, known_to: from, hidden: BTreeSet::new() }
    }

    /// Records are missing anywhere between two positions of a segment.
    pub(super) fn between(generation: u64, from: u64, end: u64) -> Self {
        let hidden = BTreeSet::new();
        Self { generation, from: end, end, record_bytes_max: u64::MAX, known_to: from, hidden }
    }

    /// A list was read; `missing` are its names of records that were not. Returns whether the hole may hold these.
    pub(super) fn on_list(&mut self, list: &NameList, missing: &[u32]) -> bool {
        let goes_on = list.generation == self.generation && list.from <= self.known_to;
        let is_of_it = goes_on && list.to > self.known_to && !self.is_known();
        if is_of_it {
            self.known_to = list.to;
            self.hidden.extend(missing);
        }
        is_of_it
    }

    /// Whether a range of its segment touches it.
    pub(super) fn meets(&self, list: &NameList) -> bool {
        self.generation == list.generation && self.from < list.to && self.end >= list.from
    }

    /// Whether it is known which keys it may hold a record of.
    pub(super) fn is_bounded(&self) -> bool {
        self.is_known() && !self.hidden.contains(&name_of_all())
    }

    /// Whether the names of all records in it are known.
    pub(super) fn is_known(&self) -> bool {
        self.known_to >= self.end
    }

    /// The names of the records in it, as far as they are known.
    pub(super) fn hidden(&self) -> &BTreeSet<u32> {
        &self.hidden
    }

    /// Whether it may hold a record of a key, given its name, or one that removes all.
    pub(super) fn may_hide(&self, key_bytes: usize, name: u32) -> bool {
        if self.is_known() {
            return self.hidden.contains(&name) || self.hidden.contains(&name_of_all());
        }
        self.record_bytes_max >= (RECORD_EXTRA_BYTES + key_bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(from: u64, to: u64, keys: &[&[u8]]) -> NameList {
        NameList { generation: 3, from, to, names: keys.iter().map(|key| name_of(key)).collect() }
    }

    #[test]
    fn a_list_reads_back_from_a_record_and_from_the_superblock_that_it_belongs_to() {
        let list = list(512, 1024, &[b"a", b"b", b"", b"a"]);
        let mut value = vec![0; list.value_bytes()];
        list.encode(&mut value);
        assert_eq!(NameList::decode(&value), Some(list.clone()));
        assert_eq!(NameList::decode(&value[..20]), None);
        let superblock = LogSuperblock::new(7);
        let mut block = vec![0; 512];
        assert_eq!(NameList::decode_behind(&superblock, &block), None);
        list.encode_behind(&superblock, &mut block);
        assert_eq!(NameList::decode_behind(&superblock, &block), Some(list.clone()));
        assert_eq!(NameList::decode_behind(&LogSuperblock { sequence: 9, ..superblock }, &block), None);
        for at in LogSuperblock::BYTES..LogSuperblock::BYTES + 48 {
            block[at] ^= 4;
            assert_eq!(NameList::decode_behind(&superblock, &block), None, "byte {at}");
            block[at] ^= 4;
        }
        let long = NameList { names: vec![1; 200], ..list };
        let mut block = vec![0; 512];
        long.encode_behind(&superblock, &mut block);
        assert_eq!(block, vec![0; 512], "it does not fit");
    }

    #[test]
    fn a_hole_hides_the_names_of_its_writes_that_were_not_read() {
        let mut recent = Recent::default();
        recent.on_record(3, 512, name_of(b"a"));
        recent.on_record(3, 700, name_of(b"b"));
        let mut hole = Hole::new(3, 560, 700);
        assert!(hole.may_hide(1, name_of(b"any")) && !hole.may_hide(200, name_of(b"any")));
        let first = list(512, 1024, &[b"a", b"c", b"b", b"a"]);
        let missing = recent.missing(&first).expect("it is the next");
        assert_eq!(missing.len(), 2);
        assert!(hole.on_list(&first, &missing) && hole.meets(&first));
        recent.restart(3, 1024);
        assert_eq!(recent.missing(&first), None, "it is known");
        assert!(hole.is_known() && hole.may_hide(1, name_of(b"c")) && hole.may_hide(1, name_of(b"a")));
        assert!(hole.is_bounded() && !hole.may_hide(1, name_of(b"b")) && !hole.may_hide(1, name_of(b"any")));
        assert_eq!(recent.list(3, 2048), list(1024, 2048, &[]));
        let mut long = Hole::new(3, 560, 1100);
        long.on_list(&first, &missing);
        assert!(!long.is_known() && long.may_hide(1, name_of(b"any")), "the second write has no list yet");
        let second = list(1024, 1536, &[b""]);
        let missing = recent.missing(&second).expect("it is the next");
        long.on_list(&second, &missing);
        assert!(
            long.is_known() && !long.is_bounded() && long.may_hide(1, name_of(b"any")),
            "everything may have been removed"
        );
        let mut other = Hole::new(3, 560, 1100);
        other.on_list(&second, &[]);
        assert!(!other.is_known(), "a list before is missing");
    }
}
