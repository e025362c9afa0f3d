//! The possible content of each block, by the history of all commands: the judge of every read.
//!
//! A block is a register. Every written value is unique, so each read identifies the write it saw, and all that is
//! known of one value makes a cluster: its write and its reads, with the time of the *earliest end* among them and of
//! the *latest begin*. A value whose earliest end lies before its latest begin was in place all the time between: a
//! *held* zone. The history is that of a register if no two held zones overlap, and if no value lived and died wholly
//! within the held zone of another (Gibbons and Korach).
//!
//! ```text
//!  write A ├──────┤                             held: A from its first end to its last begin
//!  read A             ├───┤      ├───┤
//!                 ╞══════════════╡
//!  write B             ├──┤                     B was done within: the last read of A was stale
//! ```
//!
//! A command that was interrupted may happen, now or later, or not at all: it counts once a read returns its value. A
//! power cut takes a block back to any value that no durable one has surely replaced; the first read afterwards
//! decides.
//!
//! Zeroes are not unique. A read of them needs one zeroing that nothing surely came after.

mod block;
mod content;
mod copies;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(crate) use content::{Content, content_of, fill};

use crate::finding::Finding;
use block::{Block, COPIED, Cluster, NEVER, WriteState};
use content::Value;
use copies::Copied;

/// Writes whose possible loss a host must learn of.
#[derive(Clone, Debug)]
struct Untold {
    closed_ns: u64,
    lbas: Vec<u64>,
    /// The number of the association that has written them.
    association: u32,
}

/// The history of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    blocks: Vec<Block>,
    /// By host: writes that were answered and that no flush has covered, with the time of the answer and the epoch.
    unflushed: BTreeMap<usize, Vec<(u64, Value, u64, u32)>>,
    /// By host: its unflushed writes when the namespace was closed. One of its flushes must fail before one succeeds.
    untold: BTreeMap<usize, Untold>,
    /// Hosts whose Flush has failed since the namespace was closed.
    told: BTreeSet<usize>,
    epoch: u32,
    /// The blocks at each power cut: answers from before that arrive after it are compared with these.
    past: Vec<(u64, Vec<Block>)>,
    /// By block: the Copies that were made to it.
    copies: BTreeMap<u64, Vec<Copied>>,
    /// The Copies that searches for the origin of content have considered.
    considered_count: Cell<u64>,
    pub(crate) read_count: u64,
}

impl Model {
    /// With `is_replayed` a write that is not answered may be done more than once.
    pub(crate) fn new(block_count: u64, is_replayed: bool) -> Self {
        let first = Cluster {
            value: 0,
            command: 0,
            state: WriteState::Done,
            written_ns: 0,
            begin_ns: 0,
            end_ns: 0,
            is_seen: true,
            is_durable: true,
            may_be_zero: true,
            is_excused: false,
            before: (0, 0),
        };
        let block =
            Block { clusters: vec![first], epoch: 0, swapped: Vec::new(), gone: Vec::new(), is_replayed };
        let blocks = vec![block; usize::try_from(block_count).expect("few blocks")];
        Self {
            blocks,
            unflushed: BTreeMap::new(),
            untold: BTreeMap::new(),
            told: BTreeSet::new(),
            epoch: 0,
            past: Vec::new(),
            copies: BTreeMap::new(),
            considered_count: Cell::new(0),
            read_count: 0,
        }
    }

    fn block(&mut self, lba: u64) -> &mut Block {
        &mut self.blocks[usize::try_from(lba).expect("few blocks")]
    }

    /// A command that writes `value` begins.
    pub(crate) fn begin_write(&mut self, lba: u64, value: Value, command: u64, now_ns: u64) {
        self.block(lba).clusters.push(Cluster {
            value,
            command,
            state: WriteState::Pending,
            written_ns: now_ns,
            begin_ns: now_ns,
            end_ns: NEVER,
            is_seen: false,
            is_durable: false,
            may_be_zero: value == 0 || value & COPIED != 0,
            is_excused: false,
            before: (0, 0),
        });
    }

    fn find(&mut self, lba: u64, command: u64) -> Option<&mut Cluster> {
        self.block(lba).clusters.iter_mut().rev().find(|cluster| cluster.command == command)
    }

    /// It was done.
    pub(crate) fn end_write(
        &mut self,
        host: usize,
        lba: u64,
        command: u64,
        now_ns: u64,
        is_durable: bool,
    ) -> Result<(), Finding> {
        let mut epoch = self.epoch;
        let cut_ns = self.past.last().map_or(0, |(cut_ns, _)| *cut_ns);
        let Some(cluster) = self.find(lba, command) else { return Ok(()) };
        cluster.end_ns = cluster.end_ns.min(now_ns);
        if cluster.begin_ns < cut_ns && !is_durable {
            // Done before the power went, perhaps, and lost with it.
            (cluster.state, epoch) = (WriteState::Perhaps, epoch - 1);
        } else {
            cluster.state = WriteState::Done;
        }
        cluster.is_durable |= is_durable;
        let value = cluster.value;
        if !is_durable {
            self.unflushed.entry(host).or_default().push((lba, value, now_ns, epoch));
        }
        self.block(lba).check(lba, command)
    }

    /// It may have been done; if it was, then by `until_ns`.
    pub(crate) fn doubt_write(&mut self, lba: u64, command: u64, until_ns: Option<u64>) {
        if let Some(cluster) = self.find(lba, command) {
            cluster.state = WriteState::Perhaps;
            if let Some(until_ns) = until_ns {
                cluster.end_ns = cluster.end_ns.min(until_ns);
            }
        }
    }

    /// It was not done, and never will be.
    pub(crate) fn deny_write(&mut self, lba: u64, command: u64) -> Result<(), Finding> {
        let Some(cluster) = self.find(lba, command) else { return Ok(()) };
        cluster.state = WriteState::NotDone;
        match cluster.is_seen {
            true => Err(format!("block {lba}: command {command} is said not to be done, and was read")),
            false => Ok(()),
        }
    }

    /// A doubtful write can happen no more.
    pub(crate) fn close_write(&mut self, lba: u64, command: u64, now_ns: u64) {
        if let Some(cluster) = self.find(lba, command) {
            cluster.end_ns = cluster.end_ns.min(now_ns);
        }
    }

    /// A command that began at `begin_ns` saw a value.
    pub(crate) fn read(&mut self, lba: u64, value: Value, begin_ns: u64, now_ns: u64) -> Result<(), Finding> {
        self.read_count += 1;
        let at = usize::try_from(lba).expect("few blocks");
        let spans = |(cut_ns, _): &&(u64, Vec<Block>)| *cut_ns > begin_ns;
        for (cut_ns, blocks) in self.past.iter().filter(spans) {
            // It was answered before the power went, or it shows the content of the disk then.
            if blocks[at].may_read(value, begin_ns, *cut_ns) {
                return Ok(());
            }
        }
        self.blocks[at].read(lba, value, begin_ns, now_ns)
    }
    /// A Compare and Write has replaced `expected` by the value of `command`.
    pub(crate) fn swap(
        &mut self,
        lba: u64,
        expected: Value,
        new: Value,
        begin_ns: u64,
    ) -> Result<(), Finding> {
        // One from before a power cut may have been undone by it.
        let is_past = self.past.last().is_some_and(|(cut_ns, _)| *cut_ns > begin_ns);
        let block = self.block(lba);
        if expected == 0 || is_past {
            return Ok(());
        }
        if block.swapped.iter().any(|(value, _)| *value == expected) {
            return Err(format!("block {lba}: value {expected:#x} was replaced by two Compare and Writes"));
        }
        block.swapped.push((expected, new));
        Ok(())
    }

    /// Whether anything was written between the two halves of a Compare and Write: to be asked when no more comes.
    pub(crate) fn check_swaps(&self) -> Result<(), Finding> {
        for (block, lba) in self.blocks.iter().zip(0u64..) {
            let find = |value| block.clusters.iter().find(|cluster| cluster.value == value);
            for (expected, new) in &block.swapped {
                let (Some(old), Some(new)) = (find(*expected), find(*new)) else { continue };
                let is_between = |other: &&Cluster| {
                    other.state == WriteState::Done && old.precedes(other) && other.precedes(new)
                };
                if let Some(lost) = block.clusters.iter().find(is_between) {
                    let (lost, by) = (lost.command, new.command);
                    return Err(format!(
                        "block {lba}: the Compare and Write {by} has overwritten {lost}, which it did not compare with: {}",
                        block.describe()
                    ));
                }
            }
        }
        Ok(())
    }

    /// A flush of `host` that began at `begin_ns` was done.
    pub(crate) fn flush(&mut self, host: usize, lbas: &Range<u64>, begin_ns: u64) -> Result<(), Finding> {
        self.settle_flushed(lbas, begin_ns);
        let mut vouched = Vec::new();
        if let Some(unflushed) = self.unflushed.get_mut(&host) {
            unflushed.retain(|entry| {
                let is_covered = lbas.contains(&entry.0) && entry.2 <= begin_ns;
                if is_covered {
                    vouched.push(*entry);
                }
                !is_covered
            });
        }
        for (lba, value, _, epoch) in vouched {
            if epoch < self.epoch {
                self.vouch(lba, value, epoch)?;
            }
        }
        Ok(())
    }

    /// Writes that were answered before a flush that began at `begin_ns`, and has succeeded, are durable.
    pub(crate) fn settle_flushed(&mut self, lbas: &Range<u64>, begin_ns: u64) {
        for (block, _) in self.blocks.iter_mut().zip(0u64..).filter(|(_, lba)| lbas.contains(lba)) {
            for cluster in &mut block.clusters {
                if cluster.is_certain() && cluster.end_ns <= begin_ns && !cluster.is_excused {
                    cluster.is_durable = true;
                }
            }
        }
    }

    /// A flush covers a write from before a power cut: older values may not have survived.
    fn vouch(&mut self, lba: u64, value: Value, epoch: u32) -> Result<(), Finding> {
        let block = self.block(lba);
        if block.epoch != epoch + 1 || value == 0 {
            return Ok(());
        }
        // One that is nowhere was surely replaced before the power cut.
        let mut all = block.clusters.iter().chain(&block.gone);
        let Some(written) = all.find(|cluster| cluster.value == value).cloned() else { return Ok(()) };
        let is_older = |cluster: &Cluster| {
            cluster.state == WriteState::Survivor
                && cluster.value != value
                && cluster.before.1 < written.before.0
        };
        // It is not known which zeroes were read: newer ones may have been.
        let may_be_newer = |older: &Cluster| {
            let is_other = |zero: &Cluster| {
                zero.value == 0 && zero.state == WriteState::Survivor && zero.before.1 >= written.before.0
            };
            older.value == 0 && block.clusters.iter().any(is_other)
        };
        let is_wrong = |cluster: &&Cluster| cluster.is_seen && is_older(cluster) && !may_be_newer(cluster);
        if let Some(older) = block.clusters.iter().find(is_wrong) {
            let older = older.value;
            return Err(format!("block {lba}: a flush vouches for {value:#x}, but {older:#x} had survived"));
        }
        block.clusters.retain(|cluster| !is_older(cluster));
        Ok(())
    }

    /// `host` has learned that its unflushed writes may be lost.
    pub(crate) fn excuse_host(&mut self, host: usize) {
        self.unflushed.remove(&host);
        self.untold.remove(&host);
    }

    /// A flush of `host` has failed: it knows that its writes may be lost. If the namespace was closed then, these
    /// include its writes while the storage failed: `closed_flush_ns` is when such a flush began.
    pub(crate) fn on_failed_flush(&mut self, host: usize, closed_flush_ns: Option<u64>) {
        self.untold.remove(&host);
        let Some(begin_ns) = closed_flush_ns else { return };
        self.told.insert(host);
        if let Some(unflushed) = self.unflushed.get_mut(&host) {
            unflushed.retain(|(_, _, end_ns, _)| *end_ns > begin_ns);
        }
    }

    /// The namespace was reopened, or opened by another target.
    pub(crate) fn on_reopened(&mut self) {
        self.told.clear();
    }

    /// A flush of `host` has succeeded in its `association`, and no other flush of the host is under way.
    pub(crate) fn check_told(
        &self,
        host: usize,
        association: u32,
        lbas: &Range<u64>,
        begin_ns: u64,
    ) -> Result<(), Finding> {
        let Some(untold) = self.untold.get(&host) else { return Ok(()) };
        let is_covered = untold.lbas.iter().any(|lba| lbas.contains(lba));
        if is_covered && association == untold.association && begin_ns > untold.closed_ns {
            let closed_ns = untold.closed_ns;
            return Err(format!(
                "a flush of host {host} succeeds, though what it wrote before the namespace was closed at {closed_ns} ns may \
                 be lost, and none of its flushes has failed since"
            ));
        }
        Ok(())
    }

    /// A flush or a durable write has failed in the storage: writes that were begun before may never become durable. A
    /// closed namespace executes no write: a host whose Flush has failed since it was closed knows of every loss.
    pub(crate) fn excuse_all(&mut self, now_ns: u64, associations: &[u32]) {
        for cluster in self.blocks.iter_mut().flat_map(|block| &mut block.clusters) {
            cluster.is_excused |= !cluster.is_durable;
        }
        let told = &self.told;
        for (host, unflushed) in self.unflushed.extract_if(.., |host, _| !told.contains(host)) {
            let lbas = unflushed.into_iter().map(|(lba, ..)| lba).collect();
            let association = associations.get(host).copied().unwrap_or(0);
            self.untold.insert(host, Untold { closed_ns: now_ns, lbas, association });
        }
    }

    /// The process died: commands that were sent before it cannot happen later.
    pub(crate) fn on_kill(&mut self, now_ns: u64) {
        for cluster in self.blocks.iter_mut().flat_map(|block| &mut block.clusters) {
            if cluster.state == WriteState::Perhaps {
                cluster.end_ns = cluster.end_ns.min(now_ns);
            }
        }
    }

    /// The machine died.
    pub(crate) fn on_power_cut(&mut self, now_ns: u64) -> Result<(), Finding> {
        self.check_swaps()?;
        self.on_kill(now_ns);
        self.epoch += 1;
        self.past.push((now_ns, self.blocks.clone()));
        self.forget_replaced_copies();
        for block in &mut self.blocks {
            block.epoch += 1;
            block.swapped.clear();
            block.gone.clear();
            let before = std::mem::take(&mut block.clusters);
            let may_survive = |cluster: &Cluster| {
                cluster.state != WriteState::NotDone
                    && !before.iter().any(|other| {
                        other.is_durable && other.command != cluster.command && cluster.precedes(other)
                    })
            };
            for cluster in &before {
                if !may_survive(cluster) {
                    continue;
                }
                block.clusters.push(Cluster {
                    state: WriteState::Survivor,
                    begin_ns: 0,
                    end_ns: now_ns,
                    is_seen: false,
                    is_durable: true,
                    is_excused: false,
                    before: (cluster.begin_ns, cluster.end_ns),
                    ..cluster.clone()
                });
            }
            // Commands that wait for their connection happen after it, if they do.
            for cluster in before.into_iter().filter(|cluster| cluster.state == WriteState::Pending) {
                let is_survivor = |other: &Cluster| other.command == cluster.command;
                block.clusters.retain(|other| !is_survivor(other));
                block.clusters.push(Cluster { is_durable: false, is_seen: false, ..cluster });
            }
            // A single survivor is the content.
            let survivors =
                block.clusters.iter().filter(|cluster| cluster.state == WriteState::Survivor).count();
            let has_pending = block.clusters.len() > survivors;
            if survivors == 1 && !has_pending {
                block.clusters[0].is_seen = true;
            }
        }
        Ok(())
    }

    /// The namespace loses these blocks: they may read as zeroes from now on.
    pub(crate) fn cut(&mut self, lbas: Range<u64>, command: u64, now_ns: u64) {
        for lba in lbas {
            self.begin_write(lba, 0, command, now_ns);
        }
    }

    /// It has them again: they read as zeroes.
    pub(crate) fn grow(&mut self, lbas: Range<u64>, command: u64, now_ns: u64) {
        for lba in lbas {
            if let Some(cluster) = self.find(lba, command) {
                (cluster.state, cluster.end_ns, cluster.is_durable) = (WriteState::Done, now_ns, true);
            }
        }
    }

    /// Whether a block held this content all the time since `begin_ns`, whatever the order of its writes was.
    pub(crate) fn surely_holds(&self, lba: u64, (origin, value): Content, begin_ns: u64) -> bool {
        let block = &self.blocks[usize::try_from(lba).expect("few blocks")];
        // Copies, zeroes and writes that are sent again reveal too little.
        if origin != lba || value == 0 || block.is_replayed || self.copies.contains_key(&lba) {
            return false;
        }
        let had_power_cut = self.past.last().is_some_and(|(cut_ns, _)| *cut_ns > begin_ns);
        let held = block.clusters.iter().find(|cluster| cluster.value == value);
        let Some(held) = held.filter(|held| held.is_certain() && !had_power_cut) else { return false };
        let is_before = |other: &Cluster| other.end_ns < held.written_ns;
        let is_settled = |other: &Cluster| {
            other.command == held.command || other.state == WriteState::NotDone || is_before(other)
        };
        held.end_ns <= begin_ns && block.clusters.iter().all(is_settled)
    }

    /// Content that the block probably holds, to compare with.
    pub(crate) fn likely(&self, lba: u64) -> Content {
        let block = &self.blocks[usize::try_from(lba).expect("few blocks")];
        let certain = block.clusters.iter().rev().find(|cluster| cluster.is_certain());
        let value = certain.map_or(0, |cluster| cluster.value);
        self.brought(lba, value).unwrap_or((lba, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn written(model: &mut Model, command: u64, begin_ns: u64, end_ns: u64) -> Value {
        let value = command << 8;
        model.begin_write(0, value, command, begin_ns);
        model.end_write(0, 0, command, end_ns, false).unwrap();
        value
    }

    #[test]
    fn what_was_replaced_is_not_read_again() {
        let mut model = Model::new(1, false);
        let first = written(&mut model, 1, 10, 20);
        let second = written(&mut model, 2, 30, 40);
        assert!(model.read(0, second, 50, 60).is_ok());
        assert!(model.read(0, first, 35, 45).is_ok(), "beside the second write it may be");
        assert!(model.clone().read(0, first, 50, 60).is_err());
        assert!(model.read(0, 0, 50, 60).is_err());
        assert!(model.read(0, 99, 50, 60).is_err(), "a value that was never written");
    }

    #[test]
    fn two_reads_agree_on_the_order() {
        let mut model = Model::new(1, false);
        let old = written(&mut model, 1, 10, 20);
        model.begin_write(0, 512, 2, 30);
        assert!(model.read(0, 512, 40, 50).is_ok());
        assert!(model.read(0, old, 60, 70).is_err(), "it was seen to be replaced");
    }

    #[test]
    fn a_doubtful_write_may_happen_late_and_a_closed_one_may_not() {
        let mut model = Model::new(1, false);
        model.begin_write(0, 256, 1, 10);
        model.doubt_write(0, 1, None);
        let second = written(&mut model, 2, 30, 40);
        assert!(model.clone().read(0, 256, 50, 60).is_ok());
        model.close_write(0, 1, 25);
        assert!(model.clone().read(0, 256, 50, 60).is_err());
        assert!(model.read(0, second, 50, 60).is_ok());
    }

    #[test]
    fn a_power_cut_leaves_what_was_flushed_or_something_later() {
        let mut model = Model::new(1, false);
        let first = written(&mut model, 1, 10, 20);
        let second = written(&mut model, 2, 30, 40);
        model.flush(0, &(0..1), 45).unwrap();
        let third = written(&mut model, 3, 50, 60);
        model.on_power_cut(100).unwrap();
        assert!(model.clone().read(0, first, 200, 210).is_err());
        assert!(model.clone().read(0, third, 200, 210).is_ok());
        assert!(model.read(0, second, 200, 210).is_ok());
        assert!(model.read(0, third, 220, 230).is_err(), "it was seen to be lost");
    }

    #[test]
    fn a_flush_does_not_vouch_for_what_a_power_cut_took() {
        let mut model = Model::new(1, false);
        let first = written(&mut model, 1, 10, 20);
        model.flush(0, &(0..1), 25).unwrap();
        written(&mut model, 2, 30, 40);
        model.on_power_cut(100).unwrap();
        model.read(0, first, 200, 210).unwrap();
        assert!(model.clone().flush(0, &(0..1), 220).is_err());
        model.excuse_host(0);
        assert!(model.flush(0, &(0..1), 220).is_ok());
    }

    #[test]
    fn nothing_is_written_within_a_compare_and_write() {
        let mut model = Model::new(1, false);
        let first = written(&mut model, 1, 10, 20);
        model.begin_write(0, 2 << 8, 2, 30);
        model.begin_write(0, 3 << 8, 3, 35);
        model.read(0, first, 35, 60).unwrap();
        model.swap(0, first, 3 << 8, 35).unwrap();
        model.end_write(0, 0, 3, 60, false).unwrap();
        model.end_write(0, 0, 2, 50, false).unwrap();
        assert!(model.check_swaps().is_ok(), "the write may have come after");
        model.read(0, 3 << 8, 70, 80).unwrap();
        assert!(model.check_swaps().is_err(), "it came before, and after what was compared with");
    }
}
