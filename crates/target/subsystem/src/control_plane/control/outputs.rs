//! Outputs of the control plane for its driver: messages to post, and the time of its next deadline.

use std::collections::{BTreeMap, VecDeque};

use wire::status::{Status, StatusTable};

use crate::audit::Recorder;
use crate::control_plane::admin::{AdminOutcome, Reply};
use crate::messages::message::{Answer, LaneMessage, Message};
use crate::names::lane_id::{CommandId, LaneId};

pub(super) const MILLISECOND_NS: u64 = 1_000_000;

/// Minimum interval between two checks of association deadlines, so that a thousand of them do not keep waking an idle
/// target.
const TICK_NS: u64 = 250 * MILLISECOND_NS;

/// If a check runs this late, the target itself was stopped and so were the lanes: they get this long to receive what
/// has arrived before any association expires.
const LATE_NS: u64 = 1000 * MILLISECOND_NS;

/// Messages to post, and the time of the next deadline.
pub(super) struct Outputs {
    reactor_count: u16,
    messages: VecDeque<(usize, Message)>,
    /// When to check deadlines next: never too late, possibly too early.
    wake_ns: Option<u64>,
    /// Takes the events of the audit log.
    pub(super) audit: Recorder,
    /// Refused Connects by the name of their status.
    pub(super) refused_connects: BTreeMap<String, u64>,
    /// Associations that have ended, by cause.
    pub(super) ended_associations: BTreeMap<&'static str, u64>,
}

impl Outputs {
    pub(super) fn new(reactor_count: u16, audit: Recorder) -> Self {
        Self {
            reactor_count,
            messages: VecDeque::new(),
            wake_ns: None,
            audit,
            refused_connects: BTreeMap::new(),
            ended_associations: BTreeMap::new(),
        }
    }

    /// Counts a refused Connect.
    pub(super) fn count_refused_connect(&mut self, status: Status) {
        let name = status.name_in(StatusTable::Fabrics);
        let name = name.map_or_else(|| format!("{:#05x}", status.code()), str::to_owned);
        let count = self.refused_connects.entry(name).or_default();
        *count = count.saturating_add(1);
    }

    /// Counts an association that has ended.
    pub(super) fn count_ended_association(&mut self, cause: &'static str) {
        let count = self.ended_associations.entry(cause).or_default();
        *count = count.saturating_add(1);
    }

    pub(super) fn post(&mut self, reactor: u16, message: Message) {
        self.messages.push_back((reactor.into(), message));
    }

    /// Posts a message to every reactor.
    pub(super) fn post_to_all(&mut self, message: impl Fn() -> Message) {
        (0..self.reactor_count).for_each(|reactor| self.post(reactor, message()));
    }

    /// Orders a lane to close.
    pub(super) fn end_lane(&mut self, lane: LaneId) {
        self.post(lane.reactor, Message::Lane(LaneMessage::End(lane)));
    }

    /// Completes a command.
    pub(super) fn answer(&mut self, command: CommandId, outcome: AdminOutcome) {
        let (status, reply) = match outcome {
            Ok(reply) => (Status::SUCCESS, reply),
            Err(status) => (status, Reply::default()),
        };
        self.complete(Answer { command, status, result: reply.result, data: reply.data, established: None });
    }

    /// As [`answer`](Self::answer), with all fields of the completion.
    pub(super) fn complete(&mut self, answer: Answer) {
        let reactor = answer.command.lane.reactor;
        self.post(reactor, Message::Lane(LaneMessage::Answer(Box::new(answer))));
    }

    /// The next message to post, and the reactor to post it to.
    pub(super) fn next_message(&mut self) -> Option<(usize, Message)> {
        self.messages.pop_front()
    }

    /// Schedules the next check of deadlines for `deadline_ns` or earlier.
    pub(super) fn wake_at(&mut self, deadline_ns: u64) {
        self.wake_ns = Some(self.wake_ns.map_or(deadline_ns, |wake_ns| wake_ns.min(deadline_ns)));
    }

    /// As [`wake_at`](Self::wake_at), but rounded.
    pub(super) fn wake_about(&mut self, deadline_ns: u64) {
        self.wake_at(deadline_ns.checked_next_multiple_of(TICK_NS).unwrap_or(u64::MAX));
    }

    /// The time of the next check of deadlines, ns.
    pub(super) fn wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    /// Whether deadlines are to be checked now.
    pub(super) fn take_deadline(&mut self, now_ns: u64) -> bool {
        let Some(wake_ns) = self.wake_ns.take_if(|wake_ns| *wake_ns <= now_ns) else { return false };
        let is_late = now_ns.saturating_sub(wake_ns) >= LATE_NS;
        if is_late {
            self.wake_ns = Some(now_ns.saturating_add(LATE_NS / 2));
        }
        !is_late
    }
}
