//! Damage that recovery passes over, and its cost.
//!
//! ```text
//! a wrong bit before a value ──▶ corrected
//! a damaged value            ──▶ its key's pair cannot be read, unless the key was written again
//! a hole                     ──▶ the names of the next write show whose records it hides:
//!                                keys last written before it are lost, and those of which nothing else is known
//! a hole without its names   ──▶ may hide a record of any key: the namespace is closed
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use super::names::{Hole, NameList, Recent, name_of_all};
use super::{Log, Notice};
use crate::key::name_of;
use crate::processor::Processor;
use crate::regions::Use;

/// Holes above which a log is not served: for each, all keys are looked at.
const HOLE_COUNT_MAX: usize = 64;

/// A kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// One of the two superblocks: the other one suffices.
    Superblock,
    /// Both superblocks: it is unknown whether segments are missing at the end.
    Superblocks,
    /// The header of a segment, whose records are found without it.
    Header,
    /// A whole segment.
    Segment,
    /// One bit of a record before its value: it is known which.
    Bit,
    /// A value: only its key is lost.
    Value,
    /// The names of the keys of other records, which are there.
    Names,
    /// Records that cannot be read.
    Records,
}

/// What is known of the damage in the log.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Damage that hides records: the generation of its segment, and its first byte there.
    pub(super) holes: Vec<(u64, u64)>,
    /// Offsets of damaged records of keys that were reported as lost.
    pub(super) lost_offsets: BTreeSet<u64>,
    /// What is to be told.
    pub(super) notices: VecDeque<Notice>,
}

/// Damage passed over so far.
#[derive(Debug, Default)]
pub(super) struct Passed {
    pub(super) recent: Recent,
    pub(super) notices: Vec<Notice>,
    /// The names of otherwise unknown keys whose last record a hole may hide.
    pub(super) hidden: BTreeSet<u32>,
    holes: Vec<Hole>,
    /// Where the last hole in the present group begins, and one past its last byte in its segment.
    last_hole: Option<((u64, u64), u64)>,
    /// Keys that may be lost, with the offset of a record that cannot be read.
    doubted: Vec<(Box<[u8]>, u64)>,
}

impl Passed {
    /// Whether records of the present group, or its end, may be in a hole.
    pub(super) fn is_group_damaged(&self) -> bool {
        self.last_hole.is_some()
    }

    /// The last hole in the present group: where it begins, and one past its last byte in its segment.
    pub(super) fn last_hole(&self) -> Option<((u64, u64), u64)> {
        self.last_hole
    }

    /// The present group has ended.
    pub(super) fn end_group(&mut self) {
        self.last_hole = None;
    }

    /// The record of a key at this offset of the file cannot be read.
    pub(super) fn doubt(&mut self, key: &[u8], log_offset: u64) {
        self.doubted.push((key.into(), log_offset));
    }

    pub(super) fn on_hole(&mut self, generation: u64, range: Range<u64>) {
        self.last_hole = Some(((generation, range.start), range.end));
        self.recent.on_hole(generation, range.end);
        self.holes.push(Hole::new(generation, range.start, range.end));
    }

    /// Names were read of records that were written: those that were not read are in holes. Returns where the last of
    /// these begins, with the names of the keys whose last records are there, as far as that is known; `None` if there
    /// is none.
    pub(super) fn on_names(&mut self, names: &NameList) -> Option<((u64, u64), BTreeSet<u32>)> {
        let missing = self.recent.missing(names)?;
        let mut from = None;
        for hole in &mut self.holes {
            if hole.on_list(names, &missing) {
                from = from.max(Some((hole.generation, hole.from)));
            }
        }
        if !missing.is_empty() && !self.holes.iter().any(|hole| hole.meets(names)) {
            let mut hole = Hole::between(names.generation, names.from, names.to);
            hole.on_list(names, &missing);
            from = Some((hole.generation, hole.from));
            self.holes.push(hole);
        }
        let (generation, position) = from?;
        let is_last =
            |name: &u32| *name != name_of_all() && !self.recent.has_behind(generation, position, *name);
        let lost = missing.into_iter().filter(is_last).collect();
        Some(((generation, position), if self.holes.len() > HOLE_COUNT_MAX { BTreeSet::new() } else { lost }))
    }

    pub(super) fn hole_count(&self) -> usize {
        self.holes.len()
    }

    /// Records of a group are missing: somewhere between its first one and its end.
    pub(super) fn on_gap(&mut self, first: (u64, u64), end: (u64, u64)) {
        self.holes.push(match first.0 == end.0 {
            true => Hole::between(end.0, self.recent.unlisted_from(first.0, first.1), end.1),
            false => Hole::new(end.0, end.1, u64::MAX),
        });
    }

    /// The position of a hole that may hide a record of any key, if there is one.
    pub(super) fn unbounded(&self) -> Option<(u64, u64)> {
        let too_many = self.holes.get(HOLE_COUNT_MAX);
        let hole = self.holes.iter().find(|hole| !hole.is_bounded()).or(too_many);
        hole.map(|hole| (hole.generation, hole.from))
    }
}

/// The keys of pairs with one of these names, with their CAS numbers.
pub(super) fn keys_named(processor: &Processor, names: &BTreeSet<u32>) -> Vec<(Box<[u8]>, u64)> {
    let (pairs, mut keys) = (processor.pairs(), Vec::new());
    for region in 0..pairs.heap.regions.count() as u32 {
        let is_of_items = matches!(pairs.heap.regions.use_of(region), Use::Items(_));
        let mut from = 0;
        while is_of_items && let Some((at, item)) = pairs.heap.regions.next_item(region, from) {
            from = at + 1;
            let key = pairs.heap.key_of(item);
            // A value that was read is not the key's before its group is complete.
            if names.contains(&name_of(key)) && pairs.item(processor.hash(key), key) == Some(item) {
                keys.push((key.into(), pairs.heap.header(item).cas));
            }
        }
    }
    keys
}

impl Log {
    /// Reports which keys have lost their values by damage.
    pub(super) fn tell_lost(&mut self, processor: &mut Processor, passed: Passed) {
        let Passed { mut doubted, hidden, holes, .. } = passed;
        doubted.sort_unstable();
        doubted.dedup();
        for (key, log_offset) in doubted {
            let stub = processor.pairs().stub(processor.hash(&key), &key);
            if stub.is_some_and(|stub| stub.log_offset == log_offset) {
                self.counters.lost_key_count += 1;
                self.findings.lost_offsets.insert(log_offset);
                self.notice(Notice::LostKey { key });
            }
        }
        self.counters.lost_unknown_count = hidden.len() as u64;
        self.findings.holes = holes.iter().map(|hole| (hole.generation, hole.from)).collect();
        processor.pairs_mut().journal.as_mut().expect("there is a log").hidden = hidden;
    }
}
