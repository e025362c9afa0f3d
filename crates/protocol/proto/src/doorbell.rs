//! The doorbell: decides when the PDUs waiting on a lane are sent, for both ends of a queue pair. wire §4.4,
//! docs/design/doorbell.md
//!
//! A send costs both ends some microseconds whether it carries one PDU or a hundred. Waiting for more PDUs saves work
//! if they come and adds latency if they do not. [`decide`] is pure; [`Doorbell`] is the state of one lane for it.

use std::fmt;
use std::str::FromStr;

/// When a doorbell rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// At once: one send for each command.
    Immediate,
    /// At the end of each turn: PDUs of one turn leave together.
    Turn,
    /// At a number of commands or bytes, or when the oldest PDU has waited for a time.
    Fixed {
        /// Commands.
        commands: u32,
        /// Bytes.
        bytes: usize,
        /// Wait of the oldest, ns.
        wait_ns: u64,
    },
    /// At the end of a turn, unless more PDUs are expected soon, this side has other work and the other side is busy.
    Adaptive {
        /// The longest wait it may cause, ns.
        goal_ns: u64,
    },
}

impl Policy {
    /// The values of i10: 16 commands, 64 KiB, 50 µs.
    pub const FIXED: Self = Self::Fixed { commands: 16, bytes: 64 << 10, wait_ns: 50_000 };

    /// Adaptive, waiting at most 20 µs.
    pub const ADAPTIVE: Self = Self::Adaptive { goal_ns: 20_000 };
}

impl Default for Policy {
    /// Never slower than `turn`, and faster where commands trickle in (docs/design/doorbell.md).
    fn default() -> Self {
        Self::ADAPTIVE
    }
}

/// The error for an unknown policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown doorbell policy {0:?}: write immediate, turn, fixed or fixed:COMMANDS,BYTES,MICROSECONDS, adaptive or \
     adaptive:MICROSECONDS"
)]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy(text.to_owned());
        let us = |number: &str| {
            let us = number.parse::<u64>().ok().filter(|us| *us <= 1_000_000);
            us.map(|us| us.saturating_mul(1000)).ok_or_else(unknown)
        };
        match text.split_once(':') {
            None => match text {
                "immediate" => Ok(Self::Immediate),
                "turn" => Ok(Self::Turn),
                "fixed" => Ok(Self::FIXED),
                "adaptive" => Ok(Self::ADAPTIVE),
                _ => Err(unknown()),
            },
            Some(("fixed", numbers)) => {
                let [commands, bytes, wait] =
                    numbers.split(',').collect::<Vec<_>>().try_into().map_err(|_| unknown())?;
                Ok(Self::Fixed {
                    commands: commands.parse().map_err(|_| unknown())?,
                    bytes: bytes.parse().map_err(|_| unknown())?,
                    wait_ns: us(wait)?,
                })
            }
            Some(("adaptive", goal)) => Ok(Self::Adaptive { goal_ns: us(goal)? }),
            Some(_) => Err(unknown()),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Immediate => f.write_str("immediate"),
            Self::Turn => f.write_str("turn"),
            Self::Fixed { commands, bytes, wait_ns } => {
                write!(f, "fixed:{commands},{bytes},{}", wait_ns / 1000)
            }
            Self::Adaptive { goal_ns } => write!(f, "adaptive:{}", goal_ns / 1000),
        }
    }
}

/// The input of a decision: the PDUs that wait on a lane, and those to be expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Commands that the waiting PDUs begin or end.
    pub commands: u32,
    /// Bytes of the waiting PDUs.
    pub bytes: usize,
    /// Commands in flight elsewhere, each of which will bring one more PDU: on a host those in the controller, in a
    /// controller those in storage.
    pub in_flight: u32,
    /// Mean time between two such PDUs, ns.
    pub gap_ns: u64,
    /// Wait of the oldest PDU so far, ns.
    pub waited_ns: u64,
    /// No PDU was added since the last turn: this side has nothing else to do.
    pub is_idle: bool,
}

/// The reason for which a doorbell rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Reason {
    /// The turn has ended, or each command rings.
    Turn,
    /// The caravan is full.
    Full,
    /// The oldest PDU has waited for as long as it may.
    Time,
    /// One side is idle, or soon will be.
    Idle,
    /// No further PDU is expected soon.
    Sparse,
    /// On request: an urgent PDU waits, or the owner of the lane rings.
    Asked,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 6] = [Self::Turn, Self::Full, Self::Time, Self::Idle, Self::Sparse, Self::Asked];

    /// Lower-case name for counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Full => "full",
            Self::Time => "time",
            Self::Idle => "idle",
            Self::Sparse => "sparse",
            Self::Asked => "asked",
        }
    }
}

/// The outcome of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Ring.
    Ring(Reason),
    /// Wait, and decide again after this time at the latest, ns.
    Wait(u64),
}

/// Fixed cost of a send for one side, ns. Waiting longer than this for another PDU does not pay.
const SEND_NS: u64 = 2_000;

/// Time from a send until the other side works on its PDUs, ns.
const REACH_NS: u64 = 10_000;

/// A caravan of this many commands or bytes leaves whatever the policy: larger ones save nothing more, and the other
/// side could already work on them.
const COMMANDS_MAX: u32 = 256;
const BYTES_MAX: usize = 1 << 20;

/// Decides at the end of a turn whether the waiting PDUs leave. At least one must wait.
#[inline]
#[must_use]
pub fn decide(policy: Policy, waiting: &Waiting) -> Decision {
    let Waiting { commands, bytes, in_flight, gap_ns, waited_ns, is_idle } = *waiting;
    match policy {
        Policy::Immediate | Policy::Turn => Decision::Ring(Reason::Turn),
        Policy::Fixed { commands: most, bytes: most_bytes, wait_ns } => {
            if commands >= most || bytes >= most_bytes {
                Decision::Ring(Reason::Full)
            } else if waited_ns >= wait_ns {
                Decision::Ring(Reason::Time)
            } else {
                Decision::Wait(wait_ns.saturating_sub(waited_ns))
            }
        }
        Policy::Adaptive { goal_ns } => {
            if commands >= COMMANDS_MAX || bytes >= BYTES_MAX {
                return Decision::Ring(Reason::Full);
            }
            // A delayed send saves work only for a side that has other work meanwhile.
            if is_idle {
                return Decision::Ring(Reason::Idle);
            }
            if in_flight > 0 && gap_ns > SEND_NS {
                return Decision::Ring(Reason::Sparse);
            }
            // Time for which the other side has other work: until then the PDUs would wait there. Once a third of all
            // commands waits here it is time to send: with more, the two sides would work in turns, not in parallel.
            let busy_ns = u64::from(in_flight).saturating_mul(gap_ns);
            if commands.saturating_mul(2) >= in_flight || busy_ns <= REACH_NS {
                return Decision::Ring(Reason::Idle);
            }
            if waited_ns >= goal_ns {
                return Decision::Ring(Reason::Time);
            }
            Decision::Wait(busy_ns.saturating_sub(REACH_NS).min(goal_ns.saturating_sub(waited_ns)))
        }
    }
}

/// Whether a caravan of this size leaves at once, before the turn ends.
#[inline]
#[must_use]
pub fn is_full(policy: Policy, commands: u32, bytes: usize) -> bool {
    match policy {
        Policy::Immediate => true,
        Policy::Fixed { commands: most, bytes: most_bytes, .. } => commands >= most || bytes >= most_bytes,
        Policy::Turn | Policy::Adaptive { .. } => commands >= COMMANDS_MAX || bytes >= BYTES_MAX,
    }
}

/// Longest gap between PDUs that still counts for the mean, ns.
const GAP_NS_MAX: u64 = 1_000_000;

/// The doorbell of one lane.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell {
    policy: Policy,
    /// Time at which the oldest waiting PDU was first decided on, ns.
    since_ns: Option<u64>,
    /// Commands that waited at the last decision to wait.
    seen_commands: u32,
    /// Time at which the last PDU was added, ns.
    brought_ns: u64,
    /// Mean time between two PDUs, in 1/8 ns.
    gap_8: u64,
    counters: DoorbellCounters,
}

/// Counters of a doorbell: rings, and time waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorbellCounters {
    /// Rings by [`Reason`].
    pub rings: [u64; Reason::ALL.len()],
    /// Sum of the waits of the oldest PDU of each caravan, ns.
    pub waited_ns: u64,
}

impl Doorbell {
    /// A doorbell without history.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            since_ns: None,
            seen_commands: 0,
            brought_ns: 0,
            gap_8: GAP_NS_MAX * 8,
            counters: DoorbellCounters::default(),
        }
    }

    /// The policy.
    #[inline]
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Changes the policy from the next decision on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> DoorbellCounters {
        self.counters
    }

    /// Whether the last decision was to wait.
    #[inline]
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.since_ns.is_some()
    }

    /// `count` commands (not 0) have come back from where they were in flight.
    #[inline]
    pub fn on_brought(&mut self, count: u32, now_ns: u64) {
        let gap_ns = now_ns
            .saturating_sub(self.brought_ns)
            .checked_div(count.into())
            .map_or(0, |gap_ns| gap_ns.min(GAP_NS_MAX));
        self.brought_ns = now_ns;
        self.gap_8 = self.gap_8.saturating_sub(self.gap_8 / 8).saturating_add(gap_ns);
    }

    /// Decides for `commands` and `bytes` that wait while `in_flight` commands are elsewhere. Returns whether to ring
    /// now.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "a count for each reason")]
    pub fn rings(&mut self, commands: u32, bytes: usize, in_flight: u32, now_ns: u64) -> bool {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let waited_ns = now_ns.saturating_sub(since_ns);
        let is_idle = commands == self.seen_commands;
        let waiting = Waiting { commands, bytes, in_flight, gap_ns: self.gap_8 / 8, waited_ns, is_idle };
        let Decision::Ring(reason) = decide(self.policy, &waiting) else {
            self.seen_commands = commands;
            return false;
        };
        self.seen_commands = 0;
        self.counters.rings[reason as usize] += 1;
        self.counters.waited_ns += waited_ns;
        self.since_ns = None;
        true
    }

    /// Whether a caravan of this size leaves at once, before the turn ends.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "a count for each reason")]
    pub fn is_full(&mut self, commands: u32, bytes: usize) -> bool {
        let is_full = is_full(self.policy, commands, bytes);
        if is_full {
            let reason = if self.policy == Policy::Immediate { Reason::Turn } else { Reason::Full };
            self.counters.rings[reason as usize] += 1;
        }
        is_full
    }

    /// The doorbell is rung on request.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "a count for each reason")]
    pub fn on_asked(&mut self) {
        self.counters.rings[Reason::Asked as usize] += 1;
    }

    /// The waiting PDUs leave.
    #[inline]
    pub fn on_rung(&mut self) {
        self.since_ns = None;
        self.seen_commands = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUSY: Waiting =
        Waiting { commands: 4, bytes: 288, in_flight: 60, gap_ns: 500, waited_ns: 0, is_idle: false };

    #[test]
    fn what_is_written_is_read_back() {
        for (text, policy) in [
            ("immediate", Policy::Immediate),
            ("turn", Policy::Turn),
            ("fixed", Policy::FIXED),
            ("fixed:8,4096,10", Policy::Fixed { commands: 8, bytes: 4096, wait_ns: 10_000 }),
            ("adaptive", Policy::ADAPTIVE),
            ("adaptive:7", Policy::Adaptive { goal_ns: 7_000 }),
        ] {
            assert_eq!(text.parse(), Ok(policy));
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for text in [
            "",
            "never",
            "fixed:1",
            "fixed:1,2,3,4",
            "fixed:a,2,3",
            "adaptive:-1",
            "adaptive:9999999",
            "turn:1",
        ] {
            assert!(text.parse::<Policy>().is_err(), "{text}");
        }
    }

    #[test]
    fn unless_told_otherwise_it_is_adaptive() {
        assert_eq!(Policy::default(), Policy::Adaptive { goal_ns: 20_000 });
    }

    #[test]
    fn policies_of_no_wait_ring_with_each_turn() {
        for policy in [Policy::Immediate, Policy::Turn] {
            assert_eq!(decide(policy, &BUSY), Decision::Ring(Reason::Turn));
        }
    }

    #[test]
    fn a_full_caravan_leaves_whatever_the_policy() {
        let fixed = Policy::Fixed { commands: 8, bytes: 4096, wait_ns: 0 };
        for (policy, commands, bytes) in
            [(fixed, 8, 4096), (Policy::Turn, 256, 1 << 20), (Policy::ADAPTIVE, 256, 1 << 20)]
        {
            assert!(is_full(policy, commands, 0) && is_full(policy, 0, bytes), "{policy}");
            assert!(!is_full(policy, commands - 1, bytes - 1), "{policy}");
        }
        assert!(is_full(Policy::Immediate, 1, 72), "each command is one");
        let adaptive = Waiting { bytes: 1 << 20, ..BUSY };
        assert_eq!(super::decide(Policy::ADAPTIVE, &adaptive), Decision::Ring(Reason::Full));
    }

    #[test]
    fn every_ring_is_counted_by_its_reason() {
        let mut doorbell = Doorbell::new(Policy::Immediate);
        assert!(doorbell.is_full(1, 72));
        doorbell.set_policy(Policy::Turn);
        assert_eq!(doorbell.policy(), Policy::Turn);
        assert!(!doorbell.is_full(255, 72) && doorbell.is_full(256, 72));
        assert!(doorbell.rings(1, 72, 0, 0));
        doorbell.on_asked();
        let names = Reason::ALL.map(Reason::name);
        assert_eq!(names, ["turn", "full", "time", "idle", "sparse", "asked"]);
        assert_eq!(doorbell.counters().rings, [2, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn what_is_rung_for_another_reason_has_not_waited() {
        let mut doorbell = Doorbell::new(Policy::FIXED);
        assert!(!doorbell.rings(1, 72, 0, 0) && doorbell.is_waiting());
        doorbell.on_rung();
        assert!(!doorbell.is_waiting());
        assert!(!doorbell.rings(1, 72, 0, 60_000), "it waits from now on");
        assert!(doorbell.rings(1, 72, 0, 110_000));
        assert_eq!(doorbell.counters().waited_ns, 50_000);
    }

    #[test]
    fn a_fixed_policy_waits_for_company_even_where_none_comes() {
        let alone = Waiting { in_flight: 0, ..BUSY };
        assert_eq!(decide(Policy::FIXED, &alone), Decision::Wait(50_000));
        assert_eq!(
            decide(Policy::FIXED, &Waiting { waited_ns: 50_000, ..alone }),
            Decision::Ring(Reason::Time)
        );
        assert_eq!(decide(Policy::FIXED, &Waiting { commands: 16, ..alone }), Decision::Ring(Reason::Full));
        assert_eq!(decide(Policy::FIXED, &Waiting { bytes: 65_536, ..alone }), Decision::Ring(Reason::Full));
    }

    #[test]
    fn an_adaptive_policy_waits_only_while_both_sides_have_other_work() {
        let decide = |waiting| super::decide(Policy::ADAPTIVE, &waiting);
        assert_eq!(decide(Waiting { in_flight: 0, ..BUSY }), Decision::Ring(Reason::Idle));
        assert_eq!(decide(Waiting { in_flight: 20, ..BUSY }), Decision::Ring(Reason::Idle));
        assert_eq!(decide(Waiting { commands: 60, ..BUSY }), Decision::Ring(Reason::Idle));
        assert_eq!(decide(Waiting { is_idle: true, ..BUSY }), Decision::Ring(Reason::Idle));
        assert_eq!(decide(Waiting { gap_ns: 2_001, ..BUSY }), Decision::Ring(Reason::Sparse));
        assert_eq!(decide(Waiting { gap_ns: 2_000, ..BUSY }), Decision::Wait(20_000));
        assert_eq!(decide(Waiting { gap_ns: 2_001, in_flight: 0, ..BUSY }), Decision::Ring(Reason::Idle));
        assert_eq!(decide(BUSY), Decision::Wait(20_000));
        assert_eq!(decide(Waiting { in_flight: 24, ..BUSY }), Decision::Wait(2_000));
        assert_eq!(decide(Waiting { waited_ns: 20_000, ..BUSY }), Decision::Ring(Reason::Time));
        assert_eq!(decide(Waiting { commands: 256, in_flight: 500, ..BUSY }), Decision::Ring(Reason::Full));
    }

    #[test]
    fn a_doorbell_learns_how_often_commands_come_back() {
        let mut doorbell = Doorbell::new(Policy::ADAPTIVE);
        assert!(doorbell.rings(1, 72, 100, 0), "nothing is known: nothing is waited for");
        for turn in 1..100 {
            doorbell.on_brought(10, turn * 5_000);
        }
        assert!(!doorbell.rings(1, 72, 100, 500_000) && doorbell.is_waiting());
        assert!(!doorbell.rings(2, 144, 100, 519_999));
        assert!(doorbell.rings(3, 216, 100, 520_000) && !doorbell.is_waiting());
        assert_eq!(doorbell.counters().waited_ns, 20_000);
        assert!(!doorbell.rings(1, 72, 100, 520_100));
        assert!(doorbell.rings(1, 72, 100, 520_400), "a turn went by and nothing has joined");
        doorbell.on_brought(1, 10_000_000);
        assert!(doorbell.rings(1, 72, 100, 10_000_000), "after a pause nothing is expected");
    }

    proptest! {
        /// A driver that decides again in time waits no longer than the policy allows.
        #[test]
        fn every_wait_ends(
            commands in 1u32..300, bytes in 0usize..2 << 20, in_flight in 0u32..1024, gap_ns in 0u64..10_000,
            fixed: bool,
        ) {
            let policy = if fixed { Policy::FIXED } else { Policy::ADAPTIVE };
            let mut waiting = Waiting { commands, bytes, in_flight, gap_ns, waited_ns: 0, is_idle: false };
            while let Decision::Wait(ns) = decide(policy, &waiting) {
                prop_assert!(ns > 0);
                waiting.waited_ns += ns;
            }
            let limit_ns = if fixed { 50_000 } else { 20_000 };
            prop_assert!(waiting.waited_ns <= limit_ns);
        }
    }
}
