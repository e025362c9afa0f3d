//! Associations: controllers and their lanes. Properties, reset, shutdown, keep-alive, end of lanes. wire §8, §9
//!
//! ```text
//! CC.EN = 0:  I/O lanes end ─▶ the Property Set is answered, CSTS.RDY is 0
//! CC.SHN:     answered at once ─▶ I/O lanes end ─▶ namespaces are flushed ─▶ CSTS.SHST says complete
//! host gone:  all lanes end ─▶ the controller is forgotten
//! ```
//!
//! A lane has ended when none of its operations can change a namespace any more. So no write lands after a reset or
//! shutdown was reported complete, nor after the host has reconnected.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use proto::controller::{ControllerState as MachineState, PropertyEffect};
use proto::doorbell::Policy;
use reactor::ListenerTag;
use wire::async_event::AsyncEvent;
use wire::fabrics::PropertySet;
use wire::id::{Cntlid, Nsid, Qid};
use wire::nqn::{HostId, HostName};
use wire::sqe::Sqe;
use wire::status::Status;
use wire::text::quoted;

use super::outputs::{MILLISECOND_NS, Outputs};
use crate::audit::Event;
use crate::control_plane::admin::abort::{self, Aborting};
use crate::control_plane::admin::{AdminOutcome, Reply, reply_dw0};
use crate::messages::message::{LaneMessage, Message, ReactorMessage};
use crate::messages::state::{HostParts, LaneParts};
use crate::names::lane_counters::{LaneCounters, LaneTotals};
use crate::names::lane_end::LaneEnd;
use crate::names::lane_id::{CommandId, LaneId};
use crate::names::limits::Limits;
use crate::objects::access::{Concerned, HostRights, Right};
use crate::objects::catalog::Catalog;
use crate::objects::controller::error_log::Failure;
use crate::objects::controller::features::Features;
use crate::objects::controller::{
    AnaContent, ControllerKey, ControllerKind, ControllerRecord, Life, PendingAbort, Transition,
};
use crate::objects::subsystem::SubsystemId;

/// How long the discovery log that a host is reading in parts is kept, ns.
const DISCOVERY_PAGE_NS: u64 = 10_000 * MILLISECOND_NS;

/// The controllers of the target, and the lanes that have connected to them.
pub(super) struct Associations {
    limits: Limits,
    controllers: BTreeMap<ControllerKey, ControllerRecord>,
    lanes: BTreeMap<LaneId, LaneUse>,
    /// Traffic of controllers that have ended, by subsystem.
    past_traffic: BTreeMap<SubsystemId, LaneTotals>,
    /// Hosts that have controllers of subsystems.
    hosts: BTreeMap<HostName, OfHost>,
    /// Totals of hosts that have none left.
    gone: LaneTotals,
}

/// The controllers of one host.
#[derive(Default)]
struct OfHost {
    controller_count: usize,
    /// Totals of controllers that have ended.
    past: LaneTotals,
}

/// A connected lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneUse {
    pub(super) controller: ControllerKey,
    pub(super) qid: Qid,
    pub(super) listener: ListenerTag,
    pub(super) doorbell: Policy,
}

/// The reason why an association ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The admin queue's connection has ended so.
    AdminEnded(LaneEnd),
    /// The keep-alive timeout passed without a command.
    KeepAliveExpired,
    /// A discovery controller was idle.
    Idle,
    /// The host missed a deadline on this queue.
    Stalled { qid: Qid, reason: &'static str },
    /// The host was refused when it authenticated again.
    RefusedAgain,
    /// The configuration no longer allows the host.
    Removed,
    /// The listener that it came in through was removed.
    ListenerRemoved,
    /// The target is stopping.
    Stopping,
}

/// A host that ends the connection of its admin queue without having shut its controller down has failed, or lost its
/// way to the target.
const NOT_SHUT_DOWN: &str = "host disconnected without shutdown";

/// The causes that ended associations are counted by: the texts of [`Cause::text`], and [`NOT_SHUT_DOWN`].
pub(super) const CAUSES: [&str; 11] = [
    "host disconnected",
    NOT_SHUT_DOWN,
    "connection lost",
    "connection closed for an error of the host",
    "keep-alive expired",
    "idle discovery controller",
    "a queue missed a deadline",
    "host refused when it authenticated again",
    "host no longer allowed",
    "listener removed",
    "target stopping",
];

impl Cause {
    /// The reason in the audit log.
    const fn text(self) -> &'static str {
        match self {
            Self::AdminEnded(LaneEnd::Host) => "host disconnected",
            Self::AdminEnded(LaneEnd::Lost) => "connection lost",
            Self::AdminEnded(LaneEnd::Target(_)) => "connection closed for an error of the host",
            Self::KeepAliveExpired => "keep-alive expired",
            Self::Idle => "idle discovery controller",
            Self::Stalled { .. } => "a queue missed a deadline",
            Self::RefusedAgain => "host refused when it authenticated again",
            Self::Removed => "host no longer allowed",
            Self::ListenerRemoved => "listener removed",
            Self::Stopping => "target stopping",
        }
    }

    /// Who has ended the association, in the audit log.
    const fn closed_by(self) -> &'static str {
        match self {
            Self::AdminEnded(end) => end.closed_by(),
            _ => "target",
        }
    }

    /// The act or omission of the host, in the audit log.
    fn detail(self) -> Option<String> {
        match self {
            Self::AdminEnded(LaneEnd::Target(reason)) => Some(reason.to_owned()),
            Self::Stalled { qid, reason } => Some(format!("queue {qid}: {reason}")),
            _ => None,
        }
    }
}

impl Associations {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            controllers: BTreeMap::new(),
            lanes: BTreeMap::new(),
            past_traffic: BTreeMap::new(),
            hosts: BTreeMap::new(),
            gone: LaneTotals::default(),
        }
    }

    /// The numbers of controllers, and of connected lanes.
    pub(super) fn counts(&self) -> [usize; 2] {
        [self.controllers.len(), self.lanes.len()]
    }

    /// The controller with this key.
    pub(super) fn get(&self, key: ControllerKey) -> Option<&ControllerRecord> {
        self.controllers.get(&key)
    }

    /// The controller with this key, to change it.
    pub(super) fn get_mut(&mut self, key: ControllerKey) -> Option<&mut ControllerRecord> {
        self.controllers.get_mut(&key)
    }

    /// All controllers, those that are ending included.
    pub(super) fn all(&self) -> impl ExactSizeIterator<Item = &ControllerRecord> {
        self.controllers.values()
    }

    /// The controllers of a subsystem, or of discovery, in ascending order of their ids.
    pub(super) fn of_kind(&self, kind: ControllerKind) -> impl Iterator<Item = &ControllerRecord> {
        self.controllers.values().filter(move |record| record.key.kind == kind)
    }

    /// The ids of those of them that are not ending and whose host matches.
    pub(super) fn live_cntlids(
        &self,
        kind: ControllerKind,
        is_meant: impl Fn(&HostName) -> bool,
    ) -> Vec<Cntlid> {
        let live = self.of_kind(kind).filter(|record| record.life == Life::Live && is_meant(&record.host));
        live.map(|record| record.key.cntlid).collect()
    }

    /// A lane that has connected.
    pub(super) fn lane(&self, lane: LaneId) -> Option<LaneUse> {
        self.lanes.get(&lane).copied()
    }

    /// The number of connected lanes.
    pub(super) fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// Adds the controller of a new association.
    pub(super) fn add(&mut self, record: ControllerRecord, outputs: &mut Outputs) {
        let key = record.key;
        if let ControllerKind::Io(_) = key.kind {
            let host = self.hosts.entry(record.host.clone()).or_default();
            host.controller_count = host.controller_count.saturating_add(1);
        }
        self.controllers.insert(key, record);
        self.wake_for(key, outputs);
    }

    /// Adds a lane that has connected, and its counters.
    pub(super) fn add_lane(&mut self, lane: LaneId, lane_use: LaneUse, counters: Arc<LaneCounters>) {
        self.lanes.insert(lane, lane_use);
        counters.qid.set(lane_use.qid.get().into());
        if let Some(record) = self.get_mut(lane_use.controller) {
            record.counters.insert(lane, counters);
        }
    }

    /// The controller of a lane.
    fn of_lane(&mut self, lane: LaneId) -> Option<&mut ControllerRecord> {
        self.controllers.get_mut(&self.lanes.get(&lane)?.controller)
    }

    /// Property Set: `None` if it is answered later.
    pub(super) fn on_property_set(
        &mut self,
        now_ns: u64,
        key: ControllerKey,
        command: CommandId,
        sqe: &Sqe,
        outputs: &mut Outputs,
    ) -> Option<AdminOutcome> {
        let Some(record) = self.get_mut(key) else { return Some(Err(Status::INTERNAL_ERROR)) };
        if record.life == Life::Ending || matches!(record.transition, Transition::Reset { .. }) {
            return Some(Err(Status::COMMAND_SEQUENCE_ERROR));
        }
        // CSTS shows the new state only once it has been reached.
        let mut after = record.machine;
        let effect = match after.on_property_set(PropertySet::from_sqe(sqe)) {
            Ok(effect) => effect,
            Err(status) => return Some(Err(status)),
        };
        match effect {
            PropertyEffect::None | PropertyEffect::Enabled => {
                record.machine = after;
                return Some(Ok(Reply::default()));
            }
            PropertyEffect::Reset => {
                tracing::info!(cntlid = key.cntlid.get(), host = %quoted(&record.host), "controller reset");
                record.transition = Transition::Reset { command, after };
            }
            PropertyEffect::ShutDown => {
                record.machine = after;
                record.transition = Transition::Drain { command };
                // Hosts poll CSTS for the rest.
                outputs.answer(command, Ok(Reply::default()));
            }
        }
        record.io.values().for_each(|lane| outputs.end_lane(*lane));
        self.proceed(now_ns, key, outputs);
        None
    }

    /// Continues a reset or shutdown of a controller whose I/O lanes have ended.
    fn proceed(&mut self, now_ns: u64, key: ControllerKey, outputs: &mut Outputs) {
        let queue_count = self.limits.io_queue_count_max;
        let Some(record) = self.get_mut(key).filter(|record| record.io.is_empty()) else { return };
        match record.transition {
            Transition::None | Transition::Flush { .. } => {}
            Transition::Reset { command, after } => {
                record.machine = after;
                record.transition = Transition::None;
                record.features = Features::new(queue_count, now_ns);
                record.changed.clear();
                record.ana = AnaContent::default();
                record.discovery_page = None;
                answer_waiting(record, outputs);
                outputs.answer(command, Ok(Reply::default()));
            }
            Transition::Drain { command } => match key.kind {
                ControllerKind::Io(subsystem) => {
                    record.transition = Transition::Flush { command };
                    let flush = ReactorMessage::Flush { subsystem, asked_by: command };
                    outputs.post(command.lane.reactor, Message::Reactor(flush));
                }
                ControllerKind::Discovery => complete_shutdown(record),
            },
        }
    }

    /// The flush for a shutdown is done; it is ignored if a reset has replaced the shutdown.
    pub(super) fn on_flushed(&mut self, asked_by: CommandId) {
        let Some(record) = self.of_lane(asked_by.lane) else { return };
        if matches!(record.transition, Transition::Flush { command } if command == asked_by) {
            complete_shutdown(record);
        }
    }

    /// Abort: `None` if a lane is asked first.
    pub(super) fn on_abort(
        &mut self,
        key: ControllerKey,
        command: CommandId,
        sqe: &Sqe,
        outputs: &mut Outputs,
    ) -> Option<AdminOutcome> {
        let Some(record) = self.controllers.get_mut(&key) else { return Some(Err(Status::INTERNAL_ERROR)) };
        Some(match abort::execute(record, &self.limits, command, sqe) {
            Err(status) => Err(status),
            Ok(Aborting::NotAborted) => Ok(abort::reply(false)),
            Ok(Aborting::Aborted(aborted)) => {
                outputs.answer(aborted, Err(Status::ABORT_REQUESTED));
                Ok(abort::reply(true))
            }
            Ok(Aborting::Ask { lane, cid }) => {
                let abort = LaneMessage::Abort { lane, cid, asked_by: command };
                outputs.post(lane.reactor, Message::Lane(abort));
                return None;
            }
        })
    }

    /// The lane has carried out the Abort that `asked_by` requested.
    pub(super) fn on_aborted(&mut self, asked_by: CommandId, is_aborted: bool, outputs: &mut Outputs) {
        let Some(record) = self.of_lane(asked_by.lane) else { return };
        let Some(at) = record.aborts.iter().position(|abort| abort.asked_by == asked_by) else { return };
        record.aborts.remove(at);
        outputs.answer(asked_by, Ok(abort::reply(is_aborted)));
    }

    /// A host has reused the command id of an Asynchronous Event Request.
    pub(super) fn on_superseded(&mut self, request: CommandId, outputs: &mut Outputs) {
        let Some(record) = self.of_lane(request.lane) else { return };
        if record.take_back_event_request(request) {
            outputs.answer(request, Err(Status::ABORT_REQUESTED));
        }
        tell_events(record, outputs);
    }

    /// Commands of a lane have failed.
    pub(super) fn on_failures(
        &mut self,
        lane: LaneId,
        failures: &[Failure],
        catalog: &Catalog,
        outputs: &Outputs,
    ) {
        let Some(record) = self.of_lane(lane) else { return };
        failures.iter().for_each(|failure| record.errors.record(failure));
        let subsystem = catalog.subsystem_of(record.key.kind).filter(|_| outputs.audit.is_on());
        let Some(subsystem) = subsystem else { return };
        let lacks_right = |failure: &Failure| {
            let namespace = subsystem.namespaces.get(&Nsid::new(failure.nsid));
            let right = namespace.map(|namespace| namespace.rights.newest().of(&record.host));
            failure.status.is(Status::NAMESPACE_WRITE_PROTECTED) && right == Some(Right::Read)
        };
        let mut refused = BTreeMap::<(u32, u16), usize>::new();
        for failure in failures.iter().filter(|failure| lacks_right(failure)) {
            let count = refused.entry((failure.nsid, failure.qid.get())).or_default();
            *count = count.saturating_add(1);
        }
        for ((namespace, qid), command_count) in refused {
            outputs.audit.record(|| Event::WriteRefused {
                queue: record.of_queue(record.peer, Qid::new(qid)),
                namespace,
                command_count,
            });
        }
    }

    /// Completes the event requests of a controller that has pending events.
    pub(super) fn tell_events(&mut self, key: ControllerKey, outputs: &mut Outputs) {
        if let Some(record) = self.get_mut(key) {
            tell_events(record, outputs);
        }
    }

    /// Raises an event of a discovery controller.
    pub(super) fn on_discovery_changed(&mut self, key: ControllerKey, outputs: &mut Outputs) {
        if let Some(record) = self.get_mut(key) {
            record.events.raise(AsyncEvent::DISCOVERY_CHANGE);
            tell_events(record, outputs);
        }
    }

    /// Notifies the hosts concerned that these namespaces were added, removed or changed.
    pub(super) fn on_namespaces_changed(
        &mut self,
        changed: &[(SubsystemId, Nsid, Concerned)],
        outputs: &mut Outputs,
    ) {
        for record in self.controllers.values_mut().filter(|record| record.life == Life::Live) {
            let concerns = |(subsystem, _, concerned): &&(SubsystemId, Nsid, Concerned)| {
                record.key.kind == ControllerKind::Io(*subsystem) && concerned.includes(&record.host)
            };
            let nsids: Vec<Nsid> = changed.iter().filter(concerns).map(|(_, nsid, _)| *nsid).collect();
            if !nsids.is_empty() {
                record.changed.extend(nsids);
                record.events.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
                tell_events(record, outputs);
            }
        }
    }

    /// Notifies the hosts that see a namespace with these rights that its storage has too little space left.
    pub(super) fn on_space_low(
        &mut self,
        subsystem: SubsystemId,
        rights: &HostRights,
        outputs: &mut Outputs,
    ) {
        let is_concerned = |record: &&mut ControllerRecord| {
            record.life == Life::Live
                && record.key.kind == ControllerKind::Io(subsystem)
                && rights.of(&record.host) != Right::None
        };
        for record in self.controllers.values_mut().filter(is_concerned) {
            record.events.raise(AsyncEvent::SMART_SPARE);
            tell_events(record, outputs);
        }
    }

    /// Sends the new doorbell policy to lanes whose policy has changed.
    pub(super) fn on_doorbells_changed(&mut self, catalog: &Catalog, outputs: &mut Outputs) {
        for (lane, lane_use) in &mut self.lanes {
            let policy = catalog.doorbell_of(lane_use.controller.kind, lane_use.listener);
            if mem::replace(&mut lane_use.doorbell, policy) != policy {
                outputs.post(lane.reactor, Message::Lane(LaneMessage::SetDoorbell(*lane, policy)));
            }
        }
    }

    /// Ends an association: orders its lanes to close, and forgets it when they have ended.
    pub(super) fn end(&mut self, now_ns: u64, key: ControllerKey, cause: Cause, outputs: &mut Outputs) {
        let Some(record) = self.get_mut(key).filter(|record| record.life == Life::Live) else { return };
        record.life = Life::Ending;
        record.discovery_page = None;
        let transition = mem::replace(&mut record.transition, Transition::None);
        log_end(record, cause, now_ns);
        let is_shut_down =
            matches!(record.machine.state(), MachineState::ShuttingDown | MachineState::ShutDown);
        let counted_by = match cause {
            Cause::AdminEnded(LaneEnd::Host) if !is_shut_down => NOT_SHUT_DOWN,
            _ => cause.text(),
        };
        debug_assert!(CAUSES.contains(&counted_by), "{counted_by}");
        outputs.count_ended_association(counted_by);
        outputs.audit.record(|| Event::Disconnected {
            queue: record.of_queue(record.peer, Qid::ADMIN),
            closed_by: cause.closed_by(),
            reason: cause.text(),
            detail: cause.detail(),
        });
        if record.admin.is_some() {
            answer_waiting(record, outputs);
            if let Transition::Reset { command, .. } = transition {
                outputs.answer(command, Err(Status::ABORTED_SQ_DELETED));
            }
        }
        record.io.values().chain(&record.admin).for_each(|lane| outputs.end_lane(*lane));
    }

    /// Ends all associations.
    pub(super) fn end_all(&mut self, now_ns: u64, cause: Cause, outputs: &mut Outputs) {
        for key in self.controllers.keys().copied().collect::<Vec<_>>() {
            self.end(now_ns, key, cause, outputs);
        }
    }

    /// Ends the associations with a subsystem whose host matches `is_to_go`. Returns their number.
    pub(super) fn end_of_hosts(
        &mut self,
        now_ns: u64,
        subsystem: SubsystemId,
        is_to_go: impl Fn(&HostName) -> bool,
        outputs: &mut Outputs,
    ) -> usize {
        let of_subsystem = self.of_kind(ControllerKind::Io(subsystem));
        let to_go = of_subsystem.filter(|record| record.life == Life::Live && is_to_go(&record.host));
        let keys: Vec<_> = to_go.map(|record| record.key).collect();
        keys.iter().for_each(|key| self.end(now_ns, *key, Cause::Removed, outputs));
        keys.len()
    }

    /// Handles the end of a lane. Returns its host.
    pub(super) fn on_lane_ended(
        &mut self,
        now_ns: u64,
        lane: LaneId,
        end: LaneEnd,
        outputs: &mut Outputs,
    ) -> Option<HostId> {
        let LaneUse { controller: key, qid, .. } = self.lanes.remove(&lane)?;
        let record = self.get_mut(key)?;
        let hostid = record.hostid;
        if let Some(counters) = record.counters.remove(&lane) {
            record.past.add(&counters);
        }
        if qid.is_admin() {
            record.admin = None;
            // No lane is left to answer.
            record.aborts.clear();
            self.end(now_ns, key, Cause::AdminEnded(end), outputs);
        } else {
            record.io.remove(&qid);
            for PendingAbort { asked_by, .. } in record.aborts.extract_if(.., |abort| abort.lane == lane) {
                outputs.answer(asked_by, Ok(abort::reply(false)));
            }
            self.proceed(now_ns, key, outputs);
        }
        self.forget_if_ended(key);
        Some(hostid)
    }

    fn forget_if_ended(&mut self, key: ControllerKey) {
        let has_ended = |record: &ControllerRecord| {
            record.life == Life::Ending && record.admin.is_none() && record.io.is_empty()
        };
        if self.get(key).is_some_and(has_ended)
            && let (Some(record), ControllerKind::Io(subsystem)) = (self.controllers.remove(&key), key.kind)
        {
            let totals = record.totals();
            self.past_traffic.entry(subsystem).or_default().merge(&totals);
            let Some(host) = self.hosts.get_mut(&record.host) else { return };
            host.past.merge(&totals);
            host.controller_count = host.controller_count.saturating_sub(1);
            if host.controller_count == 0
                && let Some(host) = self.hosts.remove(&record.host)
            {
                self.gone.merge(&host.past);
            }
        }
    }

    /// The hosts that have controllers of subsystems, each with its lanes, and the totals of those that have none left.
    pub(super) fn hosts(&self) -> (Vec<HostParts>, LaneTotals) {
        let parts = |(host, of_host): (&HostName, &OfHost)| HostParts {
            host: host.clone(),
            controller_count: of_host.controller_count,
            past: of_host.past,
            lanes: Vec::new(),
        };
        let mut hosts: Vec<HostParts> = self.hosts.iter().map(parts).collect();
        let records = self.controllers.values();
        for record in records {
            let ControllerKind::Io(subsystem) = record.key.kind else { continue };
            // As the hosts are in order.
            let Ok(at) = hosts.binary_search_by(|parts| parts.host.cmp(&record.host)) else { continue };
            let Some(parts) = hosts.get_mut(at) else { continue };
            parts.past.merge(&record.past);
            let cntlid = record.key.cntlid;
            let lane = |(lane, counters): (&LaneId, &Arc<LaneCounters>)| LaneParts {
                lane: *lane,
                subsystem,
                cntlid,
                counters: Arc::clone(counters),
            };
            parts.lanes.extend(record.counters.iter().map(lane));
        }
        (hosts, self.gone)
    }

    /// Traffic of all controllers of a subsystem since the target started, including those that have ended.
    pub(super) fn traffic(&self, subsystem: SubsystemId) -> LaneTotals {
        let mut totals = self.past_traffic.get(&subsystem).copied().unwrap_or_default();
        let controllers = self.of_kind(ControllerKind::Io(subsystem));
        controllers.for_each(|record| totals.merge(&record.totals()));
        totals
    }

    /// When to check whether an association has expired, ns; `None` if it never does.
    fn deadline_ns(&self, record: &ControllerRecord) -> Option<u64> {
        if record.life == Life::Ending {
            return None;
        }
        let last_sign_ns = record.association.last_sign_ns();
        // Killed tools leave discovery connections without keep-alive behind. wire §20
        if record.key.kind == ControllerKind::Discovery && record.keep_alive.timeout_ms() == 0 {
            let idle_ns = self.limits.discovery_idle_ms.saturating_mul(MILLISECOND_NS);
            return Some(last_sign_ns.saturating_add(idle_ns));
        }
        let mut keep_alive = record.keep_alive;
        keep_alive.on_sign(last_sign_ns);
        keep_alive.deadline_ns()
    }

    /// Schedules the check of a controller that is new, or whose timeout has changed.
    pub(super) fn wake_for(&self, key: ControllerKey, outputs: &mut Outputs) {
        if let Some(deadline_ns) = self.get(key).and_then(|record| self.deadline_ns(record)) {
            outputs.wake_about(deadline_ns);
        }
    }

    /// Ends the associations that have expired, and schedules the next check.
    pub(super) fn expire(&mut self, now_ns: u64, outputs: &mut Outputs) {
        let mut expired = Vec::new();
        for record in self.controllers.values() {
            match self.deadline_ns(record) {
                Some(deadline_ns) if deadline_ns <= now_ns => {
                    let has_keep_alive = record.keep_alive.timeout_ms() > 0;
                    let cause = if has_keep_alive { Cause::KeepAliveExpired } else { Cause::Idle };
                    expired.push((record.key, cause));
                }
                Some(deadline_ns) => outputs.wake_about(deadline_ns),
                None => {}
            }
        }
        for (key, cause) in expired {
            self.end(now_ns, key, cause, outputs);
        }
        for record in self.controllers.values_mut() {
            let is_old = |(_, read_ns): &mut (_, u64)| now_ns.saturating_sub(*read_ns) > DISCOVERY_PAGE_NS;
            record.discovery_page.take_if(is_old);
        }
    }

    /// The live associations with a queue that came in through this listener.
    pub(super) fn of_listener(&self, tag: ListenerTag) -> BTreeSet<ControllerKey> {
        let lanes = self.lanes.values().filter(|lane| lane.listener == tag);
        let is_live = |key: &ControllerKey| self.get(*key).is_some_and(|record| record.life == Life::Live);
        lanes.map(|lane| lane.controller).filter(is_live).collect()
    }

    /// Ends the associations of removed listeners whose grace is over.
    pub(super) fn expire_listeners(
        &mut self,
        now_ns: u64,
        removed: &BTreeMap<ListenerTag, u64>,
        outputs: &mut Outputs,
    ) {
        for (tag, until_ns) in removed {
            if *until_ns > now_ns {
                outputs.wake_at(*until_ns);
                continue;
            }
            for key in self.of_listener(*tag) {
                self.end(now_ns, key, Cause::ListenerRemoved, outputs);
            }
        }
    }
}

/// The namespaces are flushed: CSTS says so.
fn complete_shutdown(record: &mut ControllerRecord) {
    record.transition = Transition::None;
    record.machine.shut_down_done();
    let cntlid = record.key.cntlid.get();
    tracing::info!(cntlid, host = %quoted(&record.host), "controller shut down");
}

/// Completes the commands of a controller that wait for something other than I/O: event requests, and Aborts that a
/// lane has not answered.
fn answer_waiting(record: &mut ControllerRecord, outputs: &mut Outputs) {
    for PendingAbort { asked_by, .. } in record.aborts.drain(..) {
        outputs.answer(asked_by, Ok(abort::reply(false)));
    }
    for request in record.events.reset() {
        // SPDK resends after any other status. wire §13
        outputs.answer(request.command, Err(Status::ABORTED_SQ_DELETED));
    }
}

/// Completes the event requests of a controller that has pending events.
fn tell_events(record: &mut ControllerRecord, outputs: &mut Outputs) {
    while let Some((request, event)) = record.events.next_completion() {
        outputs.answer(request.command, reply_dw0(event.bits()));
    }
}

fn log_end(record: &ControllerRecord, cause: Cause, now_ns: u64) {
    let (cntlid, host) = (record.key.cntlid.get(), quoted(&record.host));
    let silent_ms = now_ns.saturating_sub(record.association.last_sign_ns()) / MILLISECOND_NS;
    match cause {
        Cause::AdminEnded(LaneEnd::Host) => tracing::info!(cntlid, %host, "host disconnected"),
        Cause::AdminEnded(end) => {
            tracing::info!(cntlid, %host, reason = end.reason(), "admin queue closed: ending the association");
        }
        Cause::KeepAliveExpired => {
            let timeout_ms = record.keep_alive.timeout_ms();
            tracing::warn!(cntlid, %host, timeout_ms, silent_ms, "keep-alive expired: ending the association");
        }
        Cause::Idle => tracing::debug!(cntlid, %host, silent_ms, "discovery controller idle: ending it"),
        Cause::Stalled { qid, reason } => {
            tracing::info!(cntlid, %host, qid = qid.get(), reason, "a queue of it was closed: ending the association");
        }
        Cause::RefusedAgain => {
            tracing::warn!(cntlid, %host, "host failed reauthentication: ending its association");
        }
        Cause::Removed => {
            tracing::info!(cntlid, %host, "host is no longer allowed: ending its association");
        }
        Cause::ListenerRemoved => {
            tracing::info!(cntlid, %host, "its listener was removed: ending the association");
        }
        Cause::Stopping => tracing::debug!(cntlid, %host, "ending the association"),
    }
}
