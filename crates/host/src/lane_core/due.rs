//! What a lane does because its time has come: submits again, gives up waiting, has late commands aborted.

use proto::host_queue::DataBuffer;

use super::held::clock_ms;
use super::{IS_LATE, LaneCore, MS, Phase, abort};
use crate::error::LinkError;

impl<B: DataBuffer> LaneCore<B> {
    /// How often commands are looked at whether they take too long, ns.
    pub(super) fn look_interval_ns(&self) -> u64 {
        (self.settings.command_timeout_ns / 8).clamp(MS, 1_000_000_000)
    }

    /// The time has come that [`next_deadline`](Self::next_deadline) gave, or any other.
    ///
    /// # Errors
    /// The connection is to be given up: report it with [`on_lost`](Self::on_lost).
    #[inline]
    pub fn on_time(&mut self, now_ns: u64) -> Result<(), LinkError> {
        match self.phase {
            Phase::Live if now_ns < self.look_ns && now_ns < self.held_ns => Ok(()),
            _ => self.on_due(now_ns),
        }
    }

    #[cold]
    fn on_due(&mut self, now_ns: u64) -> Result<(), LinkError> {
        match self.phase {
            Phase::Opening { until_ns } | Phase::Handshake { until_ns } | Phase::Connecting { until_ns }
                if now_ns >= until_ns =>
            {
                let waited_ms = self.settings.connect_timeout_ns / MS;
                return Err(LinkError::TimedOut { to: self.doing(), waited_ms });
            }
            Phase::Live => self.look(now_ns)?,
            _ => {}
        }
        if self.held_ns <= now_ns {
            self.look_at_held(now_ns);
        }
        self.look_at_missing(now_ns);
        self.pump();
        Ok(())
    }

    /// Looks for commands that take too long. The first look only notes the time: no clock is read when one is
    /// submitted.
    fn look(&mut self, now_ns: u64) -> Result<(), LinkError> {
        if now_ns < self.look_ns {
            return Ok(());
        }
        self.look_ns = now_ns.saturating_add(self.look_interval_ns());
        let now_ms = clock_ms(now_ns);
        let timeout_ms = u32::try_from(self.settings.command_timeout_ns / MS).unwrap_or(u32::MAX);
        let actions = &mut self.actions;
        let mut is_over = false;
        self.queue.for_each_command(|sqe, tag| {
            let age_ms = now_ms.wrapping_sub(tag.seen_ms);
            if tag.seen_ms == 0 {
                tag.seen_ms = now_ms;
            } else if !tag.has(IS_LATE) && age_ms >= timeout_ms {
                tag.flags |= IS_LATE;
                tag.seen_ms = now_ms;
                abort(sqe, tag, actions);
            } else if tag.has(IS_LATE) && age_ms >= timeout_ms / 2 {
                // An Abort has not helped either.
                is_over = true;
            }
        });
        let waited_ms = u64::from(timeout_ms) * 3 / 2;
        if is_over { Err(LinkError::TimedOut { to: "a command", waited_ms }) } else { Ok(()) }
    }

    /// When to call [`on_time`](Self::on_time) at the latest, ns.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let phase_ns = match self.phase {
            Phase::Opening { until_ns } | Phase::Handshake { until_ns } | Phase::Connecting { until_ns } => {
                Some(until_ns)
            }
            Phase::Live if self.queue.outstanding() > 0 => Some(self.look_ns),
            Phase::Live | Phase::Down | Phase::Ended => None,
        };
        let held_ns = Some(self.held_ns).filter(|at_ns| *at_ns != u64::MAX);
        [phase_ns, held_ns, self.missing_until_ns()].into_iter().flatten().min()
    }
}
