//! Timeouts of a lane: outstanding commands that take too long, and commands that wait too long for a connection.

use std::collections::VecDeque;
use std::time::Duration;

use proto::HostQueue;
use proto::host_queue::DataBuffer;
use wire::sqe::Sqe;

use super::action::LaneAction;
use super::command::{IS_LATE, Tag};
use crate::buffer::Data;
use crate::link_error::LinkError;

pub(super) const MS: u64 = 1_000_000;

/// Offset of a [`moment`] from the clock: it wraps once the clock shows a second, and not only after 24 days.
const AHEAD_MS: u64 = (1 << 31) - 1000;

/// A moment of a clock in ns, to the millisecond: an odd number of half milliseconds, so that 0 stands for none. Wraps
/// every 24 days: only differences count ([`ms_since`]).
pub(super) fn moment(now_ns: u64) -> u32 {
    let half_ms = (now_ns / MS + AHEAD_MS) << 1 | 1;
    u32::try_from(half_ms & u64::from(u32::MAX)).expect("masked")
}

/// Time from one moment to a later one, ms.
pub(super) fn ms_since(earlier: u32, now: u32) -> u32 {
    now.wrapping_sub(earlier) / 2
}

/// Aborts a command.
pub(super) fn abort(sqe: &Sqe, actions: &mut VecDeque<LaneAction>) {
    actions.push_back(LaneAction::Abort { cid: sqe.cid.get() });
}

/// Looks for outstanding commands that exceed their timeout, at intervals of an eighth of it.
#[derive(Debug)]
pub(super) struct CommandTimeout {
    timeout_ns: u64,
    /// When to look next.
    look_ns: u64,
}

impl CommandTimeout {
    pub(super) fn new(timeout_ns: u64) -> Self {
        Self { timeout_ns, look_ns: 0 }
    }

    /// The connection is live.
    pub(super) fn start(&mut self, now_ns: u64) {
        let interval_ns = (self.timeout_ns / 8).clamp(MS, 1_000_000_000);
        self.look_ns = now_ns.saturating_add(interval_ns);
    }

    /// When to look next, ns.
    #[inline]
    pub(super) fn look_ns(&self) -> u64 {
        self.look_ns
    }

    /// Aborts commands whose timeout has expired, also those that were cancelled: a controller may have refused the first
    /// Abort. The first look at a command only notes the time, so that submission reads no clock.
    ///
    /// # Errors
    /// [`LinkError::TimedOut`] if an Abort did not end a command within half of the timeout.
    pub(super) fn look<B: DataBuffer>(
        &mut self,
        queue: &mut HostQueue<Data<B>, Tag>,
        actions: &mut VecDeque<LaneAction>,
        now_ns: u64,
    ) -> Result<(), LinkError> {
        if now_ns < self.look_ns {
            return Ok(());
        }
        self.start(now_ns);
        let now = moment(now_ns);
        let timeout_ms = u32::try_from(self.timeout_ns / MS).unwrap_or(u32::MAX);
        let mut is_over = false;
        queue.for_each_command(|sqe, tag| {
            let age_ms = ms_since(tag.seen_at, now);
            if tag.seen_at == 0 {
                tag.seen_at = now;
            } else if !tag.has(IS_LATE) && age_ms >= timeout_ms {
                tag.flags |= IS_LATE;
                tag.seen_at = now;
                abort(sqe, actions);
            } else if tag.has(IS_LATE) && age_ms >= timeout_ms / 2 {
                is_over = true;
            }
        });
        let waited = Duration::from_millis(u64::from(timeout_ms) * 3 / 2);
        if is_over { Err(LinkError::TimedOut { to: "a command", waited }) } else { Ok(()) }
    }
}

/// How long commands have waited for a connection.
#[derive(Debug)]
pub(super) struct ConnectionWait {
    /// Maximum wait, ns; `None` for no limit.
    limit_ns: Option<u64>,
    /// Since when there is no connection, ns; 0 until the first look at the clock.
    since_ns: u64,
}

impl ConnectionWait {
    pub(super) fn new(limit_ns: Option<u64>) -> Self {
        Self { limit_ns, since_ns: 0 }
    }

    /// The connection is live.
    pub(super) fn end(&mut self) {
        self.since_ns = 0;
    }

    /// When the wait exceeds its limit, ns; 0 until the first look at the clock.
    pub(super) fn until_ns(&self) -> Option<u64> {
        let limit_ns = self.limit_ns?;
        Some(if self.since_ns == 0 { 0 } else { self.since_ns.saturating_add(limit_ns) })
    }

    /// Looks at the clock while there is no connection. Returns the time waited, ms, once the limit is exceeded.
    pub(super) fn look(&mut self, now_ns: u64) -> Option<u32> {
        if self.since_ns == 0 {
            self.since_ns = now_ns.max(1);
        }
        let is_over = self.until_ns()? <= now_ns;
        is_over.then(|| u32::try_from(now_ns.saturating_sub(self.since_ns) / MS).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_moment_is_none_and_times_are_exact_where_moments_wrap() {
        for start_ms in 0..2500 {
            let start = moment(start_ms * MS + 999_999);
            assert_ne!(start, 0);
            for ms in [0, 1, 999, 1000, 1200, 1 << 30] {
                assert_eq!(ms_since(start, moment((start_ms + ms) * MS)), u32::try_from(ms).unwrap());
            }
        }
    }
}
