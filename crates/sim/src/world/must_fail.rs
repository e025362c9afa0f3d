//! What must fail: commands on blocks that fail for good, and on a namespace that is closed.

use std::ops::Range;

use super::World;
use super::command::{Command, Kind};
use crate::finding::Finding;

impl World {
    /// A command has succeeded.
    ///
    /// # Errors
    /// It cannot have.
    pub(super) fn judge_success(&mut self, command: &Command) -> Result<(), Finding> {
        let has_ranges = self.shared.scenario.disk.supports_ranges;
        let is_hint = match command.kind {
            Kind::Hint | Kind::Refused { .. } => true,
            Kind::Deallocate { .. } => !has_ranges,
            _ => false,
        };
        if is_hint || !self.machine.is_first() {
            return Ok(());
        }
        let first_end = self.shared.scenario.block_count;
        let is_of_first = command.lba < first_end || matches!(command.kind, Kind::FlushAll);
        if let Some(since_ns) = self.closed_since_ns
            && is_of_first
            && command.begin_ns > since_ns
        {
            return Err(format!("succeeded, though its namespace is closed since {since_ns} ns"));
        }
        // While nothing goes wrong any more, all blocks are good.
        if !self.shared.is_hostile || !is_of_first {
            return Ok(());
        }
        let bad = &self.shared.scenario.bad;
        let own = command.lba..command.lba + u64::from(command.blocks);
        let meets = |bad: &Range<u64>, lbas: &[u64]| lbas.iter().copied().find(|lba| bad.contains(lba));
        let of = |range: &Range<u64>| range.clone().collect::<Vec<u64>>();
        let (read, written) = match &command.kind {
            Kind::Read | Kind::Verify | Kind::Compare { .. } | Kind::PairCompare => (of(&own), Vec::new()),
            Kind::Write { .. } | Kind::WriteZeroes { .. } | Kind::PairWrite { .. } => (Vec::new(), of(&own)),
            Kind::Copy { sources, .. } => (sources.clone(), of(&own)),
            Kind::Deallocate { lbas } => (Vec::new(), lbas.clone()),
            _ => (Vec::new(), Vec::new()),
        };
        if let Some(lba) = meets(&bad.unreadable, &read) {
            return Err(format!("succeeded, though block {lba} cannot be read"));
        }
        if let Some(lba) = meets(&bad.unwritable, &written) {
            return Err(format!("succeeded, though block {lba} cannot be changed"));
        }
        Ok(())
    }

    /// A pair has succeeded: what was out beside it, on its blocks.
    pub(super) fn note_beside_pair(&mut self, pair: &Command) {
        let lbas = pair.lba..pair.lba + u64::from(pair.blocks);
        let beside: Vec<_> = self.commands.values().filter(|command| command.touches(&lbas)).collect();
        let mut reached = Vec::new();
        for command in beside {
            reached.push(match command.kind {
                Kind::Copy { .. } => "pair beside a Copy",
                Kind::WriteZeroes { .. } => "pair beside a Write Zeroes",
                Kind::Deallocate { .. } => "pair beside a Deallocate",
                Kind::Write { .. } => "pair beside a Write",
                Kind::PairWrite { .. } if command.host != pair.host => "pair beside one of another host",
                _ => continue,
            });
        }
        if self.short_until_ns.is_some_and(|until_ns| until_ns >= pair.begin_ns) {
            reached.push("pair beside a resize");
        }
        reached.into_iter().for_each(|event| self.shared.reach_event(event));
    }
}
