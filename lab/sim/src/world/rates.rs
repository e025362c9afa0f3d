//! Rate limits: no more commands succeed than they let pass. That those which wait are answered is judged as of all.

use subsystem::rate_limit::BURST_MS_DEFAULT;

use super::World;
use super::command::{Command, Kind};
use crate::finding::Finding;
use crate::scenario::SECOND;

/// Commands that have succeeded, of the first namespace and of the second.
#[derive(Debug, Default)]
pub(super) struct Passed([u64; 2]);

impl World {
    /// A command has succeeded.
    pub(super) fn judge_rate(&mut self, command: &Command) -> Result<(), Finding> {
        let is_counted = matches!(
            command.kind,
            Kind::Read
                | Kind::Write { .. }
                | Kind::WriteZeroes { .. }
                | Kind::Deallocate { .. }
                | Kind::Copy { .. }
                | Kind::Verify
                | Kind::Hint
                | Kind::Compare { .. }
        );
        let scenario = &self.shared.scenario;
        let is_second = command.lba >= scenario.first.block_count;
        let limits = if is_second { scenario.rates.second } else { scenario.rates.first };
        let (Some(iops), true) = (limits.iops, is_counted) else { return Ok(()) };
        let count = &mut self.rates.0[usize::from(is_second)];
        *count += 1;
        // Each start of the target, and each return of the second namespace, begins with a burst; each reactor may have a
        // lot that it has not used.
        let burst_ms = u64::from(limits.burst_ms.unwrap_or(BURST_MS_DEFAULT));
        let burst =
            iops * burst_ms / 1000 + u64::from(scenario.target.reactor_count) * 32 * (1 + iops / 4000);
        let begins = self.target.start_count + scenario.faults.len() as u64;
        let allowed = iops * (self.shared.now_ns / 1_000_000) / (SECOND / 1_000_000) + (begins + 1) * burst;
        if *count > allowed {
            return Err(format!(
                "{count} commands passed a limit of {iops} per s, which lets pass {allowed}"
            ));
        }
        Ok(())
    }
}
