//! The waits of a lane for its peer: their start and their deadlines.

/// Deadlines are rounded up to a multiple of this, ns: thousands of lanes whose deadlines pass wake the reactor a few
/// times a second and not one by one.
const TIMER_STEP_NS: u64 = 250_000_000;

/// A peer that sends less than this within [`LaneTimeouts::contended_ns`] while it owes data makes no progress, bytes.
const PROGRESS_BYTES_MIN: u64 = 64 << 10;

/// Timeouts of a lane's waits for its peer, ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneTimeouts {
    /// From accept to ICReq, and from ICReq to Connect.
    pub(crate) connect_ns: u64,
    /// From a PDU's first byte to its last, and of a record of TLS.
    pub(crate) pdu_ns: u64,
    /// From a send that the socket had no room for to one that it has room for.
    pub(crate) send_ns: u64,
    /// From an R2T to all data of its command.
    pub(crate) data_ns: u64,
    /// Replaces `send_ns` and `data_ns` while other lanes wait for buffers.
    pub(crate) contended_ns: u64,
    /// From our TermReq to the peer's close.
    pub(crate) terminate_ns: u64,
}

impl Default for LaneTimeouts {
    fn default() -> Self {
        const SECOND_NS: u64 = 1_000_000_000;
        Self {
            connect_ns: 10 * SECOND_NS,
            pdu_ns: 30 * SECOND_NS,
            send_ns: 10 * SECOND_NS,
            data_ns: 30 * SECOND_NS,
            contended_ns: SECOND_NS,
            terminate_ns: 5 * SECOND_NS,
        }
    }
}

/// The action that a lane waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Send ICReq.
    IcReq,
    /// Send Connect.
    Connect,
    /// Send the rest of a PDU.
    Pdu,
    /// Read, so that the socket has room again.
    Read,
    /// Acknowledge a zero-copy send.
    Acknowledge,
    /// Send data that was asked for.
    Data,
    /// Close, after our TermReq.
    Close,
    /// Send the rest of a record of TLS.
    Record,
}

impl Wait {
    const ALL: [Self; 8] = [
        Self::IcReq,
        Self::Connect,
        Self::Close,
        Self::Pdu,
        Self::Record,
        Self::Read,
        Self::Acknowledge,
        Self::Data,
    ];

    fn timeout_ns(self, timeouts: &LaneTimeouts) -> u64 {
        match self {
            Self::IcReq | Self::Connect => timeouts.connect_ns,
            Self::Pdu | Self::Record => timeouts.pdu_ns,
            Self::Read | Self::Acknowledge => timeouts.send_ns,
            Self::Data => timeouts.data_ns,
            Self::Close => timeouts.terminate_ns,
        }
    }

    /// Why a lane is closed whose peer did not, as counted and logged.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::IcReq => "no ICReq in time",
            Self::Connect => "no Connect in time",
            Self::Pdu => "PDU not complete in time",
            Self::Read => "reads nothing",
            Self::Acknowledge => "acknowledges nothing",
            Self::Data => "data not sent in time",
            Self::Close => "not closed in time",
            Self::Record => "TLS record not complete in time",
        }
    }
}

/// The waits of a lane, and its timer.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    /// By [`Wait`]: since when, ns.
    since_ns: [Option<u64>; Wait::ALL.len()],
    /// When the lane's timer fires, ns.
    timer_ns: Option<u64>,
    /// Bytes received when progress was checked last, and when that was, ns.
    checked: (u64, u64),
}

impl Deadlines {
    /// A wait begins, or begins anew.
    #[inline]
    pub(crate) fn start(&mut self, wait: Wait, now_ns: u64) {
        self.since_ns[wait as usize] = Some(now_ns);
    }

    /// A wait begins, unless it has begun. Returns whether it did.
    #[inline]
    pub(crate) fn start_once(&mut self, wait: Wait, now_ns: u64) -> bool {
        let has_begun = self.is_on(wait);
        if !has_begun {
            self.start(wait, now_ns);
        }
        !has_begun
    }

    /// A wait began at this time, ns; `None` if nothing is waited for.
    pub(crate) fn set(&mut self, wait: Wait, since_ns: Option<u64>) {
        self.since_ns[wait as usize] = since_ns;
    }

    /// A wait is over.
    #[inline]
    pub(crate) fn stop(&mut self, wait: Wait) {
        self.since_ns[wait as usize] = None;
    }

    /// Every wait is over.
    pub(crate) fn stop_all(&mut self) {
        self.since_ns = Default::default();
    }

    /// Whether this is waited for.
    #[inline]
    pub(crate) fn is_on(&self, wait: Wait) -> bool {
        self.since_ns[wait as usize].is_some()
    }

    /// The earliest deadline, ns, and its wait.
    pub(crate) fn next(&self, timeouts: &LaneTimeouts) -> Option<(u64, Wait)> {
        let deadline = |wait: Wait| {
            Some((self.since_ns[wait as usize]?.saturating_add(wait.timeout_ns(timeouts)), wait))
        };
        Wait::ALL.into_iter().filter_map(deadline).min_by_key(|(deadline_ns, _)| *deadline_ns)
    }

    /// The time to set a timer for, ns; `None` if there is no deadline, or a timer fires before it.
    pub(crate) fn next_timer(&mut self, timeouts: &LaneTimeouts) -> Option<u64> {
        let (deadline_ns, _) = self.next(timeouts)?;
        let deadline_ns = deadline_ns.checked_next_multiple_of(TIMER_STEP_NS).unwrap_or(u64::MAX);
        if self.timer_ns.is_some_and(|timer_ns| timer_ns <= deadline_ns) {
            return None;
        }
        self.timer_ns = Some(deadline_ns);
        Some(deadline_ns)
    }

    /// A timer fires. Returns whether it is the one that was set last.
    pub(crate) fn on_timer(&mut self, now_ns: u64) -> bool {
        self.timer_ns.take_if(|timer_ns| *timer_ns <= now_ns).is_some()
    }

    /// Whether the peer has not read for [`LaneTimeouts::contended_ns`].
    pub(crate) fn is_unread(&self, timeouts: &LaneTimeouts, now_ns: u64) -> bool {
        let since_ns = self.since_ns[Wait::Read as usize];
        since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= timeouts.contended_ns)
    }

    /// Checks, once in [`LaneTimeouts::contended_ns`], whether the peer sends: with the number of bytes received so
    /// far. `Some` if it was checked, and whether there was progress.
    pub(crate) fn check_progress(
        &mut self,
        timeouts: &LaneTimeouts,
        now_ns: u64,
        received_bytes: u64,
    ) -> Option<bool> {
        let (before_bytes, checked_ns) = self.checked;
        if now_ns.saturating_sub(checked_ns) < timeouts.contended_ns {
            return None;
        }
        self.checked = (received_bytes, now_ns);
        Some(received_bytes - before_bytes >= PROGRESS_BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn the_wait_that_ends_first_sets_the_timer() {
        let timeouts = LaneTimeouts::default();
        let mut deadlines = Deadlines::default();
        assert_eq!((deadlines.next(&timeouts), deadlines.next_timer(&timeouts)), (None, None));
        deadlines.start(Wait::Pdu, SECOND_NS);
        assert_eq!(deadlines.next_timer(&timeouts), Some(31 * SECOND_NS));
        assert!(deadlines.start_once(Wait::Read, 2 * SECOND_NS + 1));
        assert!(!deadlines.start_once(Wait::Read, 9 * SECOND_NS), "it began before");
        assert_eq!(deadlines.next(&timeouts), Some((12 * SECOND_NS + 1, Wait::Read)));
        assert_eq!(deadlines.next_timer(&timeouts), Some(12 * SECOND_NS + TIMER_STEP_NS), "rounded up");
        assert_eq!(deadlines.next_timer(&timeouts), None, "one that fires in time is set");
        assert!(!deadlines.on_timer(12 * SECOND_NS), "one that was set before");
        deadlines.stop(Wait::Read);
        assert!(deadlines.on_timer(13 * SECOND_NS));
        assert_eq!(deadlines.next_timer(&timeouts), Some(31 * SECOND_NS));
    }

    #[test]
    fn each_wait_has_its_own_place() {
        for wait in Wait::ALL {
            let mut deadlines = Deadlines::default();
            deadlines.start(wait, 7);
            let on: Vec<_> = Wait::ALL.into_iter().filter(|&other| deadlines.is_on(other)).collect();
            assert_eq!(on, [wait]);
        }
    }

    #[test]
    fn progress_is_checked_once_in_a_while() {
        let timeouts = LaneTimeouts::default();
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.check_progress(&timeouts, 2 * SECOND_NS, 1 << 20), Some(true));
        assert_eq!(deadlines.check_progress(&timeouts, 3 * SECOND_NS - 1, 1 << 20), None);
        let bytes = (1 << 20) + PROGRESS_BYTES_MIN - 1;
        assert_eq!(deadlines.check_progress(&timeouts, 3 * SECOND_NS, bytes), Some(false));
        assert!(!deadlines.is_unread(&timeouts, 9 * SECOND_NS));
        deadlines.start(Wait::Read, 8 * SECOND_NS);
        assert!(
            deadlines.is_unread(&timeouts, 9 * SECOND_NS) && !deadlines.is_unread(&timeouts, 8 * SECOND_NS)
        );
    }
}
