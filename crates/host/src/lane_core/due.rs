//! What a lane does because its time has come: submits again, gives up waiting, has late commands aborted.

use proto::host_queue::{DataBuffer, Transfer};
use wire::opcode::DataDirection;
use wire::sqe::Sqe;
use wire::status::Status;

use super::{IS_ABORTED, IS_EXACT, IS_LATE, IS_TIMED, LaneCore, MS, Pending, Phase, Tag, abort};
use crate::buffer::Data;
use crate::error::LinkError;

/// The longest delay before a retry, ns, whatever the controller says.
const RETRY_DELAY_NS_MAX: u64 = 10_000_000_000;

impl<B: DataBuffer> LaneCore<B> {
    /// Submits a command again, now or when the controller wants it. hostile H12
    pub(super) fn retry(
        &mut self,
        sqe: Sqe,
        mut tag: Tag,
        buffer: Option<Data<B>>,
        status: Status,
        now_ns: u64,
    ) {
        tag.retry_count += 1;
        tag.seen_ms = 0;
        tag.flags &= !(IS_ABORTED | IS_TIMED);
        let transfer = match (buffer, DataDirection::of(sqe.opcode)) {
            (None, _) => Transfer::None,
            (Some(buffer), DataDirection::ControllerToHost) => {
                Transfer::FromController { buffer, is_exact: tag.has(IS_EXACT) }
            }
            (Some(buffer), _) => Transfer::ToController(buffer),
        };
        let pending = Pending { sqe, transfer, tag };
        match self.retry_delay_ns(status) {
            0 => {
                self.waiting.push_back(pending);
                self.pump();
            }
            delay_ns => self.delayed.push((now_ns.saturating_add(delay_ns), pending)),
        }
    }

    fn retry_delay_ns(&self, status: Status) -> u64 {
        let index = usize::from(status.crd()).checked_sub(1);
        let delays_ms =
            self.attachment.as_ref().map_or([0; 3], |attachment| attachment.limits.retry_delays_ms);
        let delay_ms = index.and_then(|index| delays_ms.get(index)).copied().unwrap_or(0);
        (u64::from(delay_ms) * MS).min(RETRY_DELAY_NS_MAX)
    }

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
            Phase::Live if now_ns < self.look_ns && self.delayed.is_empty() => Ok(()),
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
        let mut index = 0;
        while index < self.delayed.len() {
            if self.delayed[index].0 <= now_ns {
                let (_, pending) = self.delayed.swap_remove(index);
                self.waiting.push_back(pending);
            } else {
                index += 1;
            }
        }
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
        // Wraps after 49 days: only differences count, and those are short.
        let now_ms = u32::try_from((now_ns / MS) & u64::from(u32::MAX)).expect("masked").max(1);
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
        let delayed_ns = self.delayed.iter().map(|(due_ns, _)| *due_ns).min();
        [phase_ns, delayed_ns].into_iter().flatten().min()
    }
}

/// Whether the controller says that trying again may help. wire §17
pub(super) fn is_transient(status: Status) -> bool {
    let transient = [
        Status::TRANSIENT_TRANSPORT_ERROR,
        Status::COMMAND_INTERRUPTED,
        Status::NAMESPACE_NOT_READY,
        Status::ADMIN_MEDIA_NOT_READY,
    ];
    !status.dnr() && transient.iter().any(|code| status.is(*code))
}
