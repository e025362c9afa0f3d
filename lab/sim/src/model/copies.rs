//! Effects of Copies. The content that a Copy writes is not known in advance. Content names the block it was written
//! for, so a read is explained by the write itself or by a Copy whose source, back to that block, may have held it
//! while the Copy was under way. If one explanation is left, the Copy is known to have brought this and nothing else,
//! and counts as a read of its source.

use std::cell::Cell;

use super::Model;
use super::block::{Block, COPIED, Cluster, NEVER};
use super::content::{Content, Value};
use crate::finding::Finding;

/// Content that may have come through this number of unread Copies is accepted: a deeper search takes too long.
const UNREAD_COPIES_MAX: usize = 3;

/// After this number of Copies that were considered in a run, the search ends at the first unread Copy: with hundreds
/// of Copies to each block, it takes a time that grows with the third power of their number.
const CONSIDERED_MAX: u64 = 2_000_000;

/// A Copy to one block.
#[derive(Clone, Debug)]
pub(super) struct Copied {
    /// The block it came from.
    source: u64,
    command: u64,
    begin_ns: u64,
    /// The content that a read found.
    content: Option<Content>,
    /// By when it was surely replaced, ns, once a search has found that: long histories are not searched again.
    gone_ns: Cell<u64>,
}

impl Copied {
    /// The value of its data in the block where it was written.
    fn value(&self) -> Value {
        COPIED | self.command << 8
    }
}

impl Model {
    /// The content that the Copy with this value was found to have brought to the block.
    pub(super) fn brought(&self, lba: u64, value: Value) -> Option<Content> {
        let copied = self.copies.get(&lba)?.iter().find(|copied| copied.value() == value)?;
        copied.content
    }

    /// A Copy of one block begins.
    pub(crate) fn begin_copy(&mut self, source: u64, lba: u64, command: u64, now_ns: u64) {
        let copied = Copied { source, command, begin_ns: now_ns, content: None, gone_ns: Cell::new(NEVER) };
        self.begin_write(lba, copied.value(), command, now_ns);
        self.copies.entry(lba).or_default().push(copied);
    }

    /// A command that began at `begin_ns` saw this content.
    pub(crate) fn read_content(
        &mut self,
        lba: u64,
        content: Content,
        begin_ns: u64,
        now_ns: u64,
    ) -> Result<(), Finding> {
        self.explain(lba, content, (begin_ns, now_ns), &mut Vec::new())
    }

    /// As [`read_content`](Self::read_content), between two moments, but not by these Copies to these blocks. The last
    /// of them reads nothing that it has written itself, also if it moves a range onto itself.
    fn explain(
        &mut self,
        lba: u64,
        content: Content,
        (begin_ns, now_ns): (u64, u64),
        not_by: &mut Vec<(u64, u64)>,
    ) -> Result<(), Finding> {
        let (origin, value) = content;
        if value == 0 {
            if !self.may_be_zero(lba, begin_ns, now_ns) {
                return Err(format!("block {lba}: read zeroes, which no Copy can have brought"));
            }
            return self.read(lba, 0, begin_ns, now_ns);
        }
        if origin == lba && !self.copies.contains_key(&lba) {
            return self.read(lba, value, begin_ns, now_ns);
        }
        match self.explanations(lba, content, (begin_ns, now_ns), not_by)[..] {
            [] if origin == lba => self.read(lba, value, begin_ns, now_ns),
            [] => Err(format!("block {lba}: holds the data of block {origin} ({value:#x})")),
            [only] => {
                if only & COPIED != 0 {
                    self.resolve(lba, only, content, now_ns, not_by)?;
                }
                self.read(lba, only, begin_ns, now_ns)
            }
            // It says nothing of the order.
            _ => Ok(()),
        }
    }

    /// The writes that may have brought content that was read between two moments.
    fn explanations(
        &self,
        lba: u64,
        content: Content,
        (begin_ns, now_ns): (u64, u64),
        not_by: &mut Vec<(u64, u64)>,
    ) -> Vec<Value> {
        let (origin, value) = content;
        let mut found = Vec::new();
        if origin == lba && self.may_read(lba, value, begin_ns, now_ns) {
            found.push(value);
        }
        let copies = self.copies.get(&lba).map_or(&[][..], Vec::as_slice);
        self.considered_count.set(self.considered_count.get() + copies.len() as u64);
        let is_deep = self.considered_count.get() <= CONSIDERED_MAX;
        for copied in copies {
            if copied.begin_ns > now_ns
                || not_by.contains(&(lba, copied.command))
                || not_by.last().is_some_and(|(_, command)| *command == copied.command)
                || copied.content.is_some_and(|known| known != content)
                || self.is_replaced(lba, copied, begin_ns)
                || !self.may_read(lba, copied.value(), begin_ns, now_ns)
            {
                continue;
            }
            let is_accepted = !is_deep || not_by.len() + 1 >= UNREAD_COPIES_MAX;
            let may_have = copied.content.is_some() || is_accepted || {
                not_by.push((lba, copied.command));
                let during = (copied.begin_ns, self.end_of_copy(lba, copied.command, now_ns));
                let found = self.explanations(copied.source, content, during, not_by);
                not_by.pop();
                !found.is_empty()
            };
            if may_have {
                found.push(copied.value());
            }
        }
        found
    }

    /// A Copy has brought this and nothing else: it has read its source, some time while it was under way.
    fn resolve(
        &mut self,
        lba: u64,
        value: Value,
        content: Content,
        now_ns: u64,
        not_by: &mut Vec<(u64, u64)>,
    ) -> Result<(), Finding> {
        let copies = self.copies.entry(lba).or_default();
        let Some(copied) = copies.iter_mut().find(|copied| copied.value() == value) else { return Ok(()) };
        if copied.content.replace(content).is_some() {
            return Ok(());
        }
        let copied = copied.clone();
        let at = usize::try_from(lba).expect("few blocks");
        let past = self.past.iter_mut().map(|(_, blocks)| &mut blocks[at]);
        let clusters = past.flat_map(|block| &mut block.clusters);
        for cluster in clusters.chain(&mut self.blocks[at].clusters) {
            cluster.may_be_zero &= cluster.value != value;
        }
        if self.blocks[at].is_replayed {
            // The source may have been written again since: this implies no order.
            return Ok(());
        }
        let during = (copied.begin_ns, self.end_of_copy(lba, copied.command, now_ns));
        not_by.push((lba, copied.command));
        let explained = self.explain(copied.source, content, during, not_by);
        not_by.pop();
        explained
    }

    /// Whether zeroes that were read may be written ones, or have come with a Copy from a block that may have held
    /// them.
    fn may_be_zero(&self, lba: u64, begin_ns: u64, now_ns: u64) -> bool {
        let Some(copies) = self.copies.get(&lba) else { return true };
        if copies.iter().all(|copied| copied.content.is_some()) {
            return true;
        }
        let zeroes_without = |also: Option<Value>| {
            let hide = |block: &Block| {
                let mut block = block.clone();
                for cluster in block.clusters.iter_mut().filter(|cluster| cluster.value & COPIED != 0) {
                    cluster.may_be_zero &= also == Some(cluster.value);
                }
                block
            };
            self.at_some_time(lba, begin_ns, now_ns, |block, until_ns| {
                hide(block).may_read(0, begin_ns, until_ns)
            })
        };
        zeroes_without(None)
            || copies.iter().any(|copied| {
                let end_ns = self.end_of_copy(lba, copied.command, now_ns);
                zeroes_without(Some(copied.value()))
                    && self.may_read(copied.source, 0, copied.begin_ns, end_ns)
            })
    }

    /// By when a Copy surely had read its source.
    fn end_of_copy(&self, lba: u64, command: u64, now_ns: u64) -> u64 {
        let block = &self.blocks[usize::try_from(lba).expect("few blocks")];
        let cluster = block.clusters.iter().rev().find(|cluster| cluster.command == command);
        cluster.map_or(now_ns, |cluster| cluster.end_ns.min(now_ns))
    }

    /// Whether the content that a Copy brought was surely replaced before a command that began at `begin_ns`.
    fn is_replaced(&self, lba: u64, copied: &Copied, begin_ns: u64) -> bool {
        if self.past.iter().any(|(cut_ns, _)| *cut_ns > begin_ns) {
            return false;
        }
        if copied.gone_ns.get() == NEVER {
            let block = &self.blocks[usize::try_from(lba).expect("few blocks")];
            copied.gone_ns.set(block.replaced_ns(copied.value()));
        }
        copied.gone_ns.get() < begin_ns
    }

    /// A power cut may bring back replaced content.
    pub(super) fn forget_replaced_copies(&mut self) {
        self.copies.values_mut().flatten().for_each(|copied| copied.gone_ns.set(NEVER));
    }

    /// Whether a command between two moments may have seen a value.
    fn may_read(&self, lba: u64, value: Value, begin_ns: u64, now_ns: u64) -> bool {
        self.at_some_time(lba, begin_ns, now_ns, |block, until_ns| {
            !(value != 0 && block.is_surely_gone(value, begin_ns))
                && block.may_read(value, begin_ns, until_ns)
        })
    }

    /// Whether a block may be copied to: it has few Copies that nobody has read and that may be its content. Many of
    /// them explain anything.
    pub(crate) fn may_copy_to(&self, lba: u64, now_ns: u64) -> bool {
        let block = &self.blocks[usize::try_from(lba).expect("few blocks")];
        let is_open = |cluster: &&Cluster| {
            cluster.value & COPIED != 0 && cluster.may_be_zero && !block.is_surely_gone(cluster.value, now_ns)
        };
        block.clusters.iter().filter(is_open).count() < UNREAD_COPIES_MAX
    }

    /// Whether a block's own values come back to it by Copies, perhaps.
    pub(crate) fn was_copied_to(&self, lba: u64) -> bool {
        self.copies.contains_key(&lba)
    }

    /// Whether something holds of a block as it is, or as it was before a power cut that came between two moments.
    fn at_some_time(
        &self,
        lba: u64,
        begin_ns: u64,
        now_ns: u64,
        mut holds: impl FnMut(&Block, u64) -> bool,
    ) -> bool {
        let at = usize::try_from(lba).expect("few blocks");
        let mut past = self.past.iter().filter(|(cut_ns, _)| *cut_ns > begin_ns);
        past.any(|(cut_ns, blocks)| holds(&blocks[at], (*cut_ns).min(now_ns)))
            || holds(&self.blocks[at], now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::written;

    /// Block 0 is written and copied to block 1.
    fn copied() -> (Model, Value) {
        let mut model = Model::new(2, false);
        let value = written(&mut model, 1, 10, 20);
        model.begin_copy(0, 1, 2, 30);
        (model, value)
    }

    #[test]
    fn a_copy_brings_what_its_source_held_meanwhile() {
        let (mut model, value) = copied();
        let second = written(&mut model, 3, 32, 34);
        model.end_write(0, 1, 2, 40, false).unwrap();
        let third = written(&mut model, 4, 50, 60);
        for (value, is_right) in [(value, true), (second, true), (99 << 8, false)] {
            let mut model = model.clone();
            assert_eq!(model.read_content(1, (0, value), 70, 80).is_ok(), is_right, "{value:#x}");
        }
        model.read_content(1, (0, value), 70, 80).unwrap();
        assert!(model.read_content(1, (0, second), 90, 99).is_err(), "one of them");
        assert!(model.clone().read_content(1, (1, 0), 90, 99).is_err(), "and no zeroes");
        // Content that a Copy brought goes further with the next one.
        let mut chain = Model { blocks: vec![model.blocks[0].clone(); 3], ..model };
        chain.blocks[1] = Model::new(1, false).blocks.remove(0);
        chain.copies.clear();
        chain.begin_copy(0, 1, 5, 100);
        chain.end_write(0, 1, 5, 110, false).unwrap();
        chain.begin_copy(1, 2, 6, 120);
        chain.end_write(0, 2, 6, 130, false).unwrap();
        assert!(chain.clone().read_content(2, (0, second), 140, 150).is_err());
        chain.read_content(2, (0, third), 140, 150).unwrap();
        assert_eq!(chain.likely(1), (0, third), "it must have been there");
    }

    #[test]
    fn a_copy_brings_nothing_that_was_written_after_it() {
        let (mut model, value) = copied();
        model.end_write(0, 1, 2, 40, false).unwrap();
        let late = written(&mut model, 3, 50, 60);
        assert!(model.clone().read_content(1, (0, late), 70, 80).is_err());
        assert!(model.clone().read_content(1, (0, value), 70, 80).is_ok());
        model.begin_write(1, 9 << 8, 4, 15);
        model.end_write(0, 1, 4, 25, false).unwrap();
        model.begin_write(0, 0, 5, 62);
        model.end_write(0, 0, 5, 64, false).unwrap();
        assert!(model.read_content(1, (1, 0), 70, 80).is_err(), "zeroed too late");
    }

    #[test]
    fn one_copy_may_have_brought_the_same_to_two_blocks() {
        let mut model = Model::new(4, false);
        let value = written(&mut model, 1, 10, 20);
        // Command 2 copies 0 to 1 and, after command 3 has copied that to 2, 2 to 3.
        model.begin_copy(0, 1, 2, 30);
        model.begin_copy(2, 3, 2, 30);
        model.begin_copy(1, 2, 3, 30);
        for (lba, command) in [(1, 2), (3, 2), (2, 3)] {
            model.end_write(0, lba, command, 60, false).unwrap();
        }
        assert!(model.read_content(3, (0, value), 70, 80).is_ok());
        assert!(model.read_content(3, (0, 7 << 8), 90, 99).is_err());
    }

    #[test]
    fn a_copy_brings_zeroes_only_if_there_were_some() {
        let (mut model, _) = copied();
        model.begin_write(1, 9 << 8, 9, 21);
        model.end_write(0, 1, 9, 25, false).unwrap();
        model.end_write(0, 1, 2, 40, false).unwrap();
        assert!(model.clone().read_content(1, (1, 0), 50, 60).is_err());
        model.begin_write(0, 0, 10, 35);
        assert!(model.read_content(1, (1, 0), 50, 60).is_ok(), "zeroed beside the Copy");
    }

    #[test]
    fn a_write_that_was_sent_again_may_have_been_copied_before_it_was_replaced() {
        for is_replayed in [true, false] {
            let mut model = Model::new(2, is_replayed);
            // Done the first time, copied and replaced; done the second time, answered and read.
            model.begin_write(0, 1 << 8, 1, 10);
            model.begin_copy(0, 1, 2, 30);
            model.end_write(0, 1, 2, 40, false).unwrap();
            let second = written(&mut model, 3, 50, 60);
            model.end_write(0, 0, 1, 70, false).unwrap();
            model.read_content(0, (0, 1 << 8), 80, 90).unwrap();
            assert_eq!(model.clone().read_content(1, (0, 1 << 8), 80, 90).is_ok(), is_replayed);
            model.begin_copy(0, 1, 4, 100);
            model.end_write(0, 1, 4, 110, false).unwrap();
            assert!(model.read_content(1, (0, second), 120, 130).is_err(), "replaced by then");
        }
    }

    #[test]
    fn what_nobody_copied_is_misdirected() {
        let (mut model, value) = copied();
        assert!(model.read_content(1, (1, 1 << 8), 40, 50).is_err());
        assert!(model.clone().read_content(0, (1, value), 40, 50).is_err());
        model.doubt_write(1, 2, None);
        assert!(model.clone().read(1, 0, 60, 70).is_ok(), "the Copy may not have happened");
        assert!(model.read_content(1, (0, value), 60, 70).is_ok(), "or it has");
        assert!(model.read_content(1, (1, 0), 80, 90).is_err(), "which does not change");
    }

    #[test]
    fn a_copy_that_was_done_is_not_read_before() {
        let (mut model, _) = copied();
        model.begin_write(1, 9 << 8, 9, 21);
        model.end_write(0, 1, 9, 25, false).unwrap();
        model.end_write(0, 1, 2, 40, false).unwrap();
        assert!(model.read(1, 9 << 8, 50, 60).is_err(), "the Copy was lost");
    }
}
