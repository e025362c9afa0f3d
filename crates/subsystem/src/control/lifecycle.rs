//! The life of associations: properties, reset, shutdown, keep-alive, and the end of lanes. wire §8, §9
//!
//! ```text
//! CC.EN = 0:  I/O lanes end ─▶ the Property Set is answered, CSTS.RDY is 0
//! CC.SHN:     answered at once ─▶ I/O lanes end ─▶ namespaces are flushed ─▶ CSTS.SHST says complete
//! host gone:  all lanes end ─▶ the controller is forgotten
//! ```
//!
//! A lane has ended when none of its operations can change a namespace any more. So no write lands after a reset or
//! shutdown was reported complete, nor after the host has reconnected.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;

use proto::controller::PropertyEffect;
use reactor::ListenerTag;
use wire::fabrics::{PropertyGet, PropertySet};
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::text::quoted;

use super::{Control, DISCOVERY_PAGE_NS, LaneUse, MILLISECOND_NS, Stopping};
use crate::admin::abort;
use crate::admin::{Outcome, Reply};
use crate::controller::features::Features;
use crate::controller::{ControllerKey, ControllerKind, ControllerRecord, Life, PendingAbort, Transition};
use crate::lane_counters::LaneTotals;
use crate::lane_id::{CommandId, LaneId};
use crate::message::{LaneMessage, Message, OrderAnswer, ReactorMessage};

/// The reason why an association ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The admin queue's connection was closed.
    HostGone,
    /// The keep-alive timeout passed without a command.
    KeepAliveExpired,
    /// A discovery controller was idle.
    Idle,
    /// The host missed a deadline on one of its queues.
    Stalled,
    /// The configuration no longer allows the host.
    Removed,
    /// The listener that it came in through was removed.
    ListenerRemoved,
    /// The target is stopping.
    Stopping,
}

impl Control {
    /// Property Get.
    pub(super) fn on_property_get(&self, key: ControllerKey, sqe: &Sqe) -> Outcome {
        let record = self.controllers.get(&key).ok_or(Status::INTERNAL_ERROR)?;
        let result = record.machine.on_property_get(PropertyGet::from_sqe(sqe))?;
        Ok(Reply { result, data: None })
    }

    /// Property Set: `None` if it is answered later.
    pub(super) fn on_property_set(
        &mut self,
        now_ns: u64,
        key: ControllerKey,
        command: CommandId,
        sqe: &Sqe,
    ) -> Option<Outcome> {
        let Some(record) = self.controllers.get_mut(&key) else { return Some(Err(Status::INTERNAL_ERROR)) };
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
                Some(Ok(Reply::default()))
            }
            PropertyEffect::Reset => {
                tracing::info!(cntlid = key.cntlid.get(), host = %quoted(&record.host), "controller reset");
                record.transition = Transition::Reset { command, after };
                self.end_io_lanes(key);
                self.proceed(now_ns, key);
                None
            }
            PropertyEffect::ShutDown => {
                record.machine = after;
                record.transition = Transition::Drain { command };
                self.end_io_lanes(key);
                // Hosts poll CSTS for the rest.
                self.answer(command, Ok(Reply::default()));
                self.proceed(now_ns, key);
                None
            }
        }
    }

    fn end_io_lanes(&mut self, key: ControllerKey) {
        let Some(record) = self.controllers.get(&key) else { return };
        for lane in record.io.values() {
            self.outbox.push_back((lane.reactor.into(), Message::Lane(LaneMessage::End(*lane))));
        }
    }

    /// Continues a reset or shutdown of a controller whose I/O lanes have ended.
    fn proceed(&mut self, now_ns: u64, key: ControllerKey) {
        let Some(record) = self.controllers.get_mut(&key) else { return };
        if !record.io.is_empty() {
            return;
        }
        match record.transition {
            Transition::None | Transition::Flush { .. } => {}
            Transition::Reset { command, after } => {
                record.machine = after;
                record.transition = Transition::None;
                record.features = Features::new(self.limits.io_queue_count_max, now_ns);
                record.changed.clear();
                self.answer_waiting(key);
                self.answer(command, Ok(Reply::default()));
            }
            Transition::Drain { command } => match key.kind {
                ControllerKind::Io(subsystem) => {
                    record.transition = Transition::Flush { command };
                    self.post(
                        command.lane.reactor,
                        Message::Reactor(ReactorMessage::Flush { subsystem, asked_by: command }),
                    );
                }
                ControllerKind::Discovery => self.on_shut_down_done(key),
            },
        }
    }

    /// The flush for a shutdown is done; it is ignored if a reset has replaced the shutdown.
    pub(super) fn on_shut_down(&mut self, key: ControllerKey, asked_by: CommandId) {
        let Some(record) = self.controllers.get(&key) else { return };
        if matches!(record.transition, Transition::Flush { command } if command == asked_by) {
            self.on_shut_down_done(key);
        }
    }

    fn on_shut_down_done(&mut self, key: ControllerKey) {
        let Some(record) = self.controllers.get_mut(&key) else { return };
        record.transition = Transition::None;
        record.machine.shut_down_done();
        tracing::info!(cntlid = key.cntlid.get(), host = %quoted(&record.host), "controller shut down");
    }

    /// Completes the commands of a controller that wait for something other than I/O: event requests, and Aborts that a
    /// lane has not answered.
    fn answer_waiting(&mut self, key: ControllerKey) {
        let Some(record) = self.controllers.get_mut(&key) else { return };
        let requests = record.events.reset();
        let aborts = std::mem::take(&mut record.aborts);
        for PendingAbort { asked_by, .. } in aborts {
            self.answer(asked_by, Ok(abort::reply(false)));
        }
        for request in requests {
            // SPDK resends after any other status. wire §13
            self.answer(request.command, Err(Status::ABORTED_SQ_DELETED));
        }
    }

    /// Ends an association: orders its lanes to close, and forgets it when they have ended.
    pub(super) fn end_association(&mut self, now_ns: u64, key: ControllerKey, cause: Cause) {
        let Some(record) = self.controllers.get_mut(&key).filter(|record| record.life == Life::Live) else {
            return;
        };
        record.life = Life::Ending;
        record.discovery_page = None;
        let transition = std::mem::replace(&mut record.transition, Transition::None);
        let (admin, host, cntlid) = (record.admin, quoted(&record.host), key.cntlid.get());
        let silent_ms = now_ns.saturating_sub(record.association.last_sign_ns()) / MILLISECOND_NS;
        match cause {
            Cause::HostGone => tracing::info!(cntlid, %host, "host disconnected"),
            Cause::KeepAliveExpired => {
                let timeout_ms = record.keep_alive.timeout_ms();
                tracing::warn!(cntlid, %host, timeout_ms, silent_ms, "keep-alive expired: ending the association");
            }
            Cause::Idle => tracing::debug!(cntlid, %host, silent_ms, "discovery controller idle: ending it"),
            Cause::Stalled => {
                tracing::info!(cntlid, %host, "a queue of it was closed: ending the association");
            }
            Cause::Removed => {
                tracing::info!(cntlid, %host, "host is no longer allowed: ending its association");
            }
            Cause::ListenerRemoved => {
                tracing::info!(cntlid, %host, "its listener was removed: ending the association");
            }
            Cause::Stopping => tracing::debug!(cntlid, %host, "ending the association"),
        }
        if let Some(admin) = admin {
            self.answer_waiting(key);
            if let Transition::Reset { command, .. } = transition {
                self.answer(command, Err(Status::ABORTED_SQ_DELETED));
            }
            self.end_io_lanes(key);
            self.post(admin.reactor, Message::Lane(LaneMessage::End(admin)));
        } else {
            self.end_io_lanes(key);
        }
    }

    /// Handles the end of a lane.
    pub(super) fn on_ended(&mut self, now_ns: u64, lane: LaneId) {
        self.held.retain(|held| held.connect.command.lane != lane);
        let Some(LaneUse { controller: key, qid, .. }) = self.lanes.remove(&lane) else { return };
        let Some(record) = self.controllers.get_mut(&key) else { return };
        let hostid = record.hostid;
        if let Some(counters) = record.counters.remove(&lane) {
            record.past.add(&counters);
        }
        if qid.is_admin() {
            record.admin = None;
            // No lane is left to answer.
            record.aborts.clear();
            self.end_association(now_ns, key, Cause::HostGone);
        } else {
            record.io.remove(&qid);
            let (of_lane, others) = record.aborts.iter().partition(|abort| abort.lane == lane);
            let of_lane: Vec<PendingAbort> = of_lane;
            record.aborts = others;
            for PendingAbort { asked_by, .. } in of_lane {
                self.answer(asked_by, Ok(abort::reply(false)));
            }
            self.proceed(now_ns, key);
        }
        self.forget_if_ended(key);
        self.reconsider_connects(now_ns, Some(hostid));
        self.stop_if_ended();
    }

    /// A lane was closed for a missed deadline. A well-behaved host takes the loss of a queue as the end of its
    /// association; others must not keep the remaining queues.
    pub(super) fn on_expelled(&mut self, now_ns: u64, lane: LaneId) {
        let key = self.lanes.get(&lane).map(|lane| lane.controller);
        self.on_ended(now_ns, lane);
        if let Some(key) = key {
            self.end_association(now_ns, key, Cause::Stalled);
        }
    }

    fn forget_if_ended(&mut self, key: ControllerKey) {
        let has_ended = |record: &ControllerRecord| {
            record.life == Life::Ending && record.admin.is_none() && record.io.is_empty()
        };
        if self.controllers.get(&key).is_some_and(has_ended) {
            let record = self.controllers.remove(&key);
            if let (Some(record), ControllerKind::Io(subsystem)) = (record, key.kind) {
                self.past_traffic.entry(subsystem).or_default().merge(&record.totals());
            }
        }
    }

    /// Traffic of all controllers of a subsystem since the target started, including those that have ended; for one
    /// namespace, since it was added.
    pub(super) fn traffic(&self, kind: ControllerKind, nsid: Nsid) -> LaneTotals {
        let ControllerKind::Io(subsystem) = kind else { return LaneTotals::default() };
        if nsid.is_one_namespace() {
            let known = self.subsystems.get(&subsystem);
            let namespace = known.and_then(|subsystem| subsystem.namespaces.get(&nsid));
            return namespace.map_or_else(LaneTotals::default, |namespace| namespace.traffic.totals());
        }
        let mut totals = self.past_traffic.get(&subsystem).copied().unwrap_or_default();
        let of_subsystem = self.controllers.iter().filter(|(key, _)| key.kind == kind);
        of_subsystem.for_each(|(_, record)| totals.merge(&record.totals()));
        totals
    }

    /// When to check whether an association has expired, ns; `None` if it never does.
    pub(super) fn association_deadline_ns(&self, record: &ControllerRecord) -> Option<u64> {
        if record.life == Life::Ending {
            return None;
        }
        let mut keep_alive = record.keep_alive;
        keep_alive.on_sign(record.association.last_sign_ns());
        match record.key.kind {
            // Killed tools leave discovery connections without keep-alive behind. wire §20
            ControllerKind::Discovery if record.keep_alive.timeout_ms() == 0 => {
                let idle_ns = self.limits.discovery_idle_ms.saturating_mul(MILLISECOND_NS);
                Some(record.association.last_sign_ns().saturating_add(idle_ns))
            }
            _ => keep_alive.deadline_ns(),
        }
    }

    /// Ends the associations whose keep-alive timeout has passed, and schedules the next check.
    pub(super) fn expire_associations(&mut self, now_ns: u64) {
        let mut expired = Vec::new();
        let mut next_ns = None;
        for (key, record) in &self.controllers {
            match self.association_deadline_ns(record) {
                Some(deadline_ns) if deadline_ns <= now_ns => expired.push(*key),
                Some(deadline_ns) => {
                    next_ns = Some(next_ns.map_or(deadline_ns, |next_ns: u64| next_ns.min(deadline_ns)));
                }
                None => {}
            }
        }
        if let Some(next_ns) = next_ns {
            self.wake_about(next_ns);
        }
        for key in expired {
            let has_keep_alive =
                self.controllers.get(&key).is_some_and(|record| record.keep_alive.timeout_ms() > 0);
            let cause = if has_keep_alive { Cause::KeepAliveExpired } else { Cause::Idle };
            self.end_association(now_ns, key, cause);
        }
        for record in self.controllers.values_mut() {
            let is_old = |(_, read_ns): &(_, u64)| now_ns.saturating_sub(*read_ns) > DISCOVERY_PAGE_NS;
            record.discovery_page.take_if(|page| is_old(page));
        }
    }

    /// The associations with a queue that came in through this listener.
    pub(super) fn associations_of_listener(&self, tag: ListenerTag) -> BTreeSet<ControllerKey> {
        let lanes = self.lanes.values().filter(|lane| lane.listener == tag);
        let is_live =
            |key: &ControllerKey| self.controllers.get(key).is_some_and(|record| record.life == Life::Live);
        lanes.map(|lane| lane.controller).filter(is_live).collect()
    }

    /// Ends the associations of removed listeners whose grace is over.
    pub(super) fn expire_removed_listeners(&mut self, now_ns: u64) {
        for (tag, until_ns) in self.removed_listeners.clone() {
            if until_ns > now_ns {
                self.wake_at(until_ns);
                continue;
            }
            for key in self.associations_of_listener(tag) {
                self.end_association(now_ns, key, Cause::ListenerRemoved);
            }
        }
    }

    /// Begins to stop the target: refuses connections, ends every association, then the reactors.
    pub(super) fn on_stop(&mut self, now_ns: u64, grace_ms: u64, answers: Sender<OrderAnswer>) {
        if self.stopping.is_some() {
            // The first order to stop stands.
            return;
        }
        let until_ns = now_ns.saturating_add(grace_ms.saturating_mul(MILLISECOND_NS));
        self.stopping = Some(Stopping { answers, until_ns, is_done: false });
        for tag in self.discovery.listeners.keys() {
            self.outbox.push_back((0, Message::Reactor(ReactorMessage::Unlisten(*tag))));
        }
        for key in self.controllers.keys().copied().collect::<Vec<_>>() {
            self.end_association(now_ns, key, Cause::Stopping);
        }
        self.reconsider_connects(now_ns, None);
        self.wake_at(until_ns);
        self.stop_if_ended();
    }

    /// Stops when every lane has ended.
    fn stop_if_ended(&mut self) {
        if self.lanes.is_empty() {
            self.stop();
        }
    }

    /// Stops with lanes left once the grace is over.
    pub(super) fn expire_stop(&mut self, now_ns: u64) {
        let Some(until_ns) = self.stopping.as_ref().map(|stopping| stopping.until_ns) else { return };
        if until_ns <= now_ns {
            self.stop();
        } else {
            self.wake_at(until_ns);
        }
    }

    fn stop(&mut self) {
        let lanes_left = self.lanes.len();
        let Some(stopping) = self.stopping.as_mut().filter(|stopping| !stopping.is_done) else { return };
        stopping.is_done = true;
        let _ = stopping.answers.send(OrderAnswer::Stopped { lanes_left });
        for reactor in 0..self.rollouts.reactor_count() {
            self.post(reactor, Message::Reactor(ReactorMessage::Stop));
        }
    }
}
