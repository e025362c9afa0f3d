//! The control plane: subsystems, controllers, discovery, and the table of namespaces that all reactors share.
//!
//! It runs on reactor 0 and owns all singleton state. It uses no sockets, clocks or threads: messages come in, messages
//! go out.
//!
//! ```text
//! lanes ───on_request──────────┐                    ┌─▶ Answer, End, Abort     to lanes
//! reactors ─on_table_in_use────┤                    │
//!          ─on_aborted─────────┼─▶ Control ─────────┼─▶ Table, Flush           to reactors
//!          ─on_flushed─────────┤   next_message     │
//! operator ─on_order───────────┤   next_deadline_ns └─▶ Listen, Unlisten, Stop to reactors
//! time ────on_deadline─────────┘
//! ```
//!
//! The driver calls an input, then drains [`Control::next_message`], and calls [`Control::on_deadline`] when
//! [`Control::next_deadline_ns`] has come. Every command gets exactly one answer, unless its lane ends first.
// Input from a host must never cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

mod apply;
mod commands;
mod connect;
mod lifecycle;
mod rollout;
mod state;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use proto::doorbell::Policy as DoorbellPolicy;
use reactor::ListenerTag;
use wire::fabrics::ConnectResult;
use wire::id::{Cntlid, Qid};
use wire::nqn::{HostId, Nqn};
use wire::opcode::{AdminOpcode, FabricsType};
use wire::status::Status;

use crate::admin::{Outcome, Reply, abort, check_form};
use crate::admission::Admission;
use crate::controller::{ControllerKey, ControllerKind, ControllerRecord, Life};
use crate::discovery::Discovery;
use crate::lane_counters::{LaneCounters, LaneTotals};
use crate::lane_id::{CommandId, LaneId};
use crate::limits::Limits;
use crate::message::{
    Answer, Established, Failure, LaneMessage, Message, Order, OrderAnswer, OrderKind, Request, RequestKind,
    StepError,
};
use crate::subsystem::{Subsystem, SubsystemId};
use connect::PendingConnect;
use rollout::Rollouts;

/// The initial settings of a control plane.
#[derive(Clone, Debug)]
pub struct ControlSettings {
    /// Limits that hosts are held to.
    pub limits: Limits,
    /// Number of reactors.
    pub reactor_count: u16,
    /// The unique name of this discovery service.
    pub discovery_nqn: Nqn,
    /// Differs on every start of the target: the search for free controller ids begins at a different place each time.
    pub entropy: u64,
    /// Current time, ns of the reactors' clock.
    pub now_ns: u64,
    /// Current time, ms since the beginning of 1970: generations of the discovery log start at it.
    pub wall_ms: u64,
}

/// The control plane.
pub struct Control {
    limits: Limits,
    entropy: u64,
    boot_ns: u64,
    subsystems: BTreeMap<SubsystemId, Subsystem>,
    next_subsystem: u32,
    next_namespace: u64,
    discovery: Discovery,
    /// Doorbell policy where neither the subsystem nor the listener sets one.
    doorbell: DoorbellPolicy,
    controllers: BTreeMap<ControllerKey, ControllerRecord>,
    /// Traffic of controllers that have ended, by subsystem.
    past_traffic: BTreeMap<SubsystemId, LaneTotals>,
    /// Where the search for a free controller id continues.
    cntlid_cursors: BTreeMap<ControllerKind, u16>,
    lanes: BTreeMap<LaneId, LaneUse>,
    /// Connects that wait for other lanes to end, in order of arrival.
    held: Vec<HeldConnect>,
    rollouts: Rollouts,
    /// Removed listeners, and the time at which the associations that came in there end, ns.
    removed_listeners: BTreeMap<ListenerTag, u64>,
    stopping: Option<Stopping>,
    pub(crate) admission: Admission,
    outbox: VecDeque<(usize, Message)>,
    /// When to check deadlines next: never too late, possibly too early.
    wake_ns: Option<u64>,
}

/// A connected lane.
#[derive(Clone, Copy, Debug)]
struct LaneUse {
    controller: ControllerKey,
    qid: Qid,
    listener: ListenerTag,
    /// Its doorbell policy.
    doorbell: DoorbellPolicy,
}

/// A Connect that waits.
struct HeldConnect {
    connect: PendingConnect,
    hostid: HostId,
    until_ns: u64,
}

/// The shutdown of the target in progress.
struct Stopping {
    answers: Sender<OrderAnswer>,
    until_ns: u64,
    is_done: bool,
}

const MILLISECOND_NS: u64 = 1_000_000;

/// Minimum interval between two checks of association deadlines, so that a thousand of them do not keep waking an idle
/// target.
const TICK_NS: u64 = 250 * MILLISECOND_NS;

/// If a check runs this late, the target itself was stopped and so were the lanes: they get this long to receive what
/// has arrived before any association expires.
const LATE_NS: u64 = 1000 * MILLISECOND_NS;

/// Average rate of changes of the discovery log since the start, per ms, up to which a restarted target never repeats a
/// generation.
const GENERATIONS_PER_MS: u64 = 1 << 16;

/// How long the discovery log that a host is reading in parts is kept, ns.
const DISCOVERY_PAGE_NS: u64 = 10_000 * MILLISECOND_NS;

impl Control {
    /// A control plane without subsystems and listeners: the first order adds them.
    #[must_use]
    pub fn new(settings: ControlSettings) -> Self {
        Self {
            admission: Admission::new(&settings.limits),
            limits: settings.limits,
            entropy: settings.entropy,
            boot_ns: settings.now_ns,
            past_traffic: BTreeMap::new(),
            subsystems: BTreeMap::new(),
            next_subsystem: 0,
            next_namespace: 0,
            discovery: Discovery::new(
                settings.discovery_nqn,
                settings.wall_ms.saturating_mul(GENERATIONS_PER_MS),
            ),
            doorbell: DoorbellPolicy::default(),
            controllers: BTreeMap::new(),
            cntlid_cursors: BTreeMap::new(),
            lanes: BTreeMap::new(),
            held: Vec::new(),
            rollouts: Rollouts::new(settings.reactor_count),
            removed_listeners: BTreeMap::new(),
            stopping: None,
            outbox: VecDeque::new(),
            wake_ns: None,
        }
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Handles a request or report of a lane.
    pub fn on_request(&mut self, now_ns: u64, request: Request) {
        let lane = request.lane;
        match request.kind {
            RequestKind::Command { slot, sqe, data, peer, listener, local, counters } => {
                let command = CommandId { lane, slot };
                if let Err(status) = check_form(&sqe) {
                    return self.answer(command, Err(status));
                }
                let is_fabrics = sqe.opcode == AdminOpcode::FABRICS.raw();
                match self.lanes.get(&lane) {
                    None if is_fabrics && sqe.fctype() == FabricsType::CONNECT => {
                        self.on_connect(
                            now_ns,
                            PendingConnect { command, sqe, data, peer, listener, local, counters },
                        );
                    }
                    None => self.answer(command, Err(Status::COMMAND_SEQUENCE_ERROR)),
                    Some(&LaneUse { controller, qid, .. }) if qid.is_admin() => {
                        self.on_admin_command(now_ns, controller, command, &sqe, &data);
                    }
                    Some(&LaneUse { controller, .. }) => {
                        self.on_io_fabrics_command(controller, command, &sqe);
                    }
                }
            }
            RequestKind::Superseded { slot } => self.on_superseded(CommandId { lane, slot }),
            RequestKind::Failures(failures) => self.on_failures(lane, &failures),
            RequestKind::Ended => self.on_ended(now_ns, lane),
            RequestKind::Expelled => self.on_expelled(now_ns, lane),
        }
    }

    /// Handles an order of the operator.
    pub fn on_order(&mut self, now_ns: u64, order: Order) {
        let Order { kind, answers } = order;
        match kind {
            OrderKind::Apply(steps) => {
                let outcomes = if self.stopping.is_some() {
                    steps.iter().map(|_| Err(StepError::Stopping)).collect()
                } else {
                    self.apply(now_ns, steps, &answers)
                };
                // The send fails if the operator has given up waiting.
                let _ = answers.send(OrderAnswer::Applied(outcomes));
            }
            OrderKind::State => {
                let _ = answers.send(OrderAnswer::State(Box::new(self.state())));
            }
            OrderKind::Stop { grace_ms } => self.on_stop(now_ns, grace_ms, answers),
        }
    }

    /// Reactor `reactor` serves this version of the namespace table, and no older one.
    pub fn on_table_in_use(&mut self, reactor: u16, version: u64) {
        if self.rollouts.on_table_in_use(reactor, version) {
            self.finish_rollouts();
        }
    }

    /// The lane has carried out the Abort that `asked_by` requested.
    pub fn on_aborted(&mut self, asked_by: CommandId, is_aborted: bool) {
        let Some(LaneUse { controller, .. }) = self.lanes.get(&asked_by.lane) else { return };
        let Some(record) = self.controllers.get_mut(controller) else { return };
        let Some(at) = record.aborts.iter().position(|abort| abort.asked_by == asked_by) else { return };
        record.aborts.remove(at);
        self.answer(asked_by, Ok(abort::reply(is_aborted)));
    }

    /// The flush of namespaces that `asked_by` requested is done, as far as it can be.
    pub fn on_flushed(&mut self, asked_by: CommandId) {
        let Some(LaneUse { controller, .. }) = self.lanes.get(&asked_by.lane) else { return };
        self.on_shut_down(*controller, asked_by);
    }

    /// Handles expired deadlines: to be called at or after [`next_deadline_ns`](Self::next_deadline_ns).
    pub fn on_deadline(&mut self, now_ns: u64) {
        let Some(wake_ns) = self.wake_ns.filter(|wake_ns| *wake_ns <= now_ns) else { return };
        if now_ns.saturating_sub(wake_ns) >= LATE_NS {
            self.wake_ns = Some(now_ns.saturating_add(LATE_NS / 2));
            return;
        }
        self.wake_ns = None;
        self.reconsider_connects(now_ns, None);
        self.expire_associations(now_ns);
        self.expire_removed_listeners(now_ns);
        self.expire_stop(now_ns);
    }

    /// The next message to post, and the reactor to post it to.
    pub fn next_message(&mut self) -> Option<(usize, Message)> {
        self.outbox.pop_front()
    }

    /// When to call [`on_deadline`](Self::on_deadline) at the latest.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    /// Whether the target has stopped: every reactor has been ordered to end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| stopping.is_done)
    }

    /// Schedules the next check of deadlines for `deadline_ns` or earlier.
    fn wake_at(&mut self, deadline_ns: u64) {
        self.wake_ns = Some(self.wake_ns.map_or(deadline_ns, |wake_ns| wake_ns.min(deadline_ns)));
    }

    /// As [`wake_at`](Self::wake_at), but rounded.
    fn wake_about(&mut self, deadline_ns: u64) {
        self.wake_at(deadline_ns.checked_next_multiple_of(TICK_NS).unwrap_or(u64::MAX));
    }

    fn post(&mut self, reactor: u16, message: Message) {
        self.outbox.push_back((reactor.into(), message));
    }

    /// Completes a command.
    fn answer(&mut self, command: CommandId, outcome: Outcome) {
        let (status, reply) = match outcome {
            Ok(reply) => (Status::SUCCESS, reply),
            Err(status) => (status, Reply::default()),
        };
        let answer = Answer { command, status, result: reply.result, data: reply.data, established: None };
        self.post(command.lane.reactor, Message::Lane(LaneMessage::Answer(Box::new(answer))));
    }

    /// Completes a Connect that was accepted.
    fn establish(&mut self, command: CommandId, cntlid: Cntlid, established: Established) {
        let answer = Answer {
            command,
            status: Status::SUCCESS,
            result: ConnectResult::default().with_cntlid(cntlid.get()).bits().into(),
            data: None,
            established: Some(established),
        };
        self.post(command.lane.reactor, Message::Lane(LaneMessage::Answer(Box::new(answer))));
    }

    fn on_failures(&mut self, lane: LaneId, failures: &[Failure]) {
        let Some(LaneUse { controller, .. }) = self.lanes.get(&lane) else { return };
        let Some(record) = self.controllers.get_mut(controller) else { return };
        failures.iter().for_each(|failure| record.errors.record(failure));
    }

    /// Controllers of a subsystem that are not ending, in ascending order of their ids.
    fn live_cntlids(&self, kind: ControllerKind) -> Vec<Cntlid> {
        let live = self.controllers.values().filter(|record| record.life == Life::Live);
        live.filter(|record| record.key.kind == kind).map(|record| record.key.cntlid).collect()
    }

    /// The subsystem of this name.
    fn subsystem_named(&self, nqn: &Nqn) -> Option<SubsystemId> {
        self.subsystems.iter().find(|(_, subsystem)| subsystem.nqn == *nqn).map(|(id, _)| *id)
    }

    /// Records the counters of a lane that has connected.
    fn add_lane(&mut self, lane: LaneId, lane_use: LaneUse, counters: Arc<LaneCounters>) {
        self.lanes.insert(lane, lane_use);
        if let Some(record) = self.controllers.get_mut(&lane_use.controller) {
            record.counters.insert(lane, counters);
        }
    }

    /// The doorbell policy of a lane: that of the subsystem, else of the listener, else the target's.
    fn doorbell_of(&self, kind: ControllerKind, listener: ListenerTag) -> DoorbellPolicy {
        let of_subsystem = match kind {
            ControllerKind::Io(subsystem) => {
                self.subsystems.get(&subsystem).and_then(|subsystem| subsystem.doorbell)
            }
            ControllerKind::Discovery => None,
        };
        let of_listener = || self.discovery.listeners.get(&listener).and_then(|listener| listener.doorbell);
        of_subsystem.or_else(of_listener).unwrap_or(self.doorbell)
    }

    /// Sends the new doorbell policy to live lanes whose policy has changed.
    fn tell_doorbells(&mut self) {
        let mut changed = Vec::new();
        for (lane, lane_use) in &self.lanes {
            let policy = self.doorbell_of(lane_use.controller.kind, lane_use.listener);
            if policy != lane_use.doorbell {
                changed.push((*lane, policy));
            }
        }
        for (lane, policy) in changed {
            if let Some(lane_use) = self.lanes.get_mut(&lane) {
                lane_use.doorbell = policy;
            }
            self.post(lane.reactor, Message::Lane(LaneMessage::SetDoorbell(lane, policy)));
        }
    }
}
