//! Commands that must fail: on blocks that fail for good, and on a namespace that is closed.

use std::ops::Range;

use super::World;
use super::command::{Command, Kind};
use crate::finding::Finding;

impl World {
    /// A command has succeeded.
    pub(super) fn judge_success(&mut self, command: &Command) -> Result<(), Finding> {
        let is_hint = match command.kind {
            Kind::Hint | Kind::Refused { .. } => true,
            Kind::Deallocate { .. } => !self.shared.scenario.disk.supports_ranges,
            _ => false,
        };
        if is_hint || !self.target.machine.is_first() {
            return Ok(());
        }
        let first_end = self.shared.scenario.first.block_count;
        let is_of_first = command.lba < first_end || matches!(command.kind, Kind::FlushAll);
        if let Some(since_ns) = self.first.closed_since_ns
            && is_of_first
            && command.begin_ns > since_ns
        {
            return Err(format!("succeeded, though its namespace is closed since {since_ns} ns"));
        }
        // While nothing goes wrong any more, all blocks are good.
        if !self.shared.is_hostile || !is_of_first {
            return Ok(());
        }
        let bad = &self.shared.scenario.first.bad;
        let own = command.lba..command.lba + u64::from(command.blocks);
        let in_own = |bad: &Range<u64>| bad.clone().find(|lba| own.contains(lba));
        let in_list = |bad: &Range<u64>, lbas: &[u64]| bad.clone().find(|lba| lbas.contains(lba));
        let (unread, unchanged) = match &command.kind {
            Kind::Read | Kind::Verify | Kind::Compare { .. } | Kind::PairCompare => {
                (in_own(&bad.unreadable), None)
            }
            Kind::Write { .. } | Kind::WriteZeroes { .. } | Kind::PairWrite { .. } => {
                (None, in_own(&bad.unwritable))
            }
            Kind::Copy { sources, .. } => (in_list(&bad.unreadable, sources), in_own(&bad.unwritable)),
            Kind::Deallocate { lbas } => (None, in_list(&bad.unwritable, lbas)),
            _ => (None, None),
        };
        match (unread, unchanged) {
            (Some(lba), _) => Err(format!("succeeded, though block {lba} cannot be read")),
            (_, Some(lba)) => Err(format!("succeeded, though block {lba} cannot be changed")),
            (None, None) => Ok(()),
        }
    }

    /// A pair has succeeded: notes the commands that were out beside it, on its blocks.
    pub(super) fn note_beside_pair(&mut self, pair: &Command) {
        let lbas = pair.lba..pair.lba + u64::from(pair.blocks);
        let beside = self.commands.out.values().filter(|command| command.touches(&lbas));
        let event = |command: &Command| match command.kind {
            Kind::Copy { .. } => Some("pair beside a Copy"),
            Kind::WriteZeroes { .. } => Some("pair beside a Write Zeroes"),
            Kind::Deallocate { .. } => Some("pair beside a Deallocate"),
            Kind::Write { .. } => Some("pair beside a Write"),
            Kind::PairWrite { .. } if command.host != pair.host => Some("pair beside one of another host"),
            _ => None,
        };
        let mut reached: Vec<&str> = beside.filter_map(event).collect();
        if self.first.was_short_since(pair.begin_ns) {
            reached.push("pair beside a resize");
        }
        reached.into_iter().for_each(|event| self.shared.reach_event(event));
    }
}
