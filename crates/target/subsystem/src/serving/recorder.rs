//! What a reactor does with the records of its lanes: the log of slow commands, and the trace.
//!
//! ```text
//! LaneRecord ──finished commands, doorbells──▶ Recorder ──▶ log: slower than the threshold
//!                                                      ├──▶ trace: kept until it is read
//!                                                      └──▶ histograms of phases: one command in 64
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use wire::id::Nsid;
use wire::text::quoted;

use crate::io_path::attached::Attachments;
use crate::io_path::commands::Commands;
use crate::io_path::lane::Lane;
use crate::io_path::lane_table::LaneTable;
use crate::io_path::recording::{Command, Finished, LaneRecord};
use crate::io_path::running::{Owner, Step};
use crate::messages::trace::{
    TraceEvent, TraceKind, TraceOrder, TracePart, TraceSettings, TracedCommand, UNREAD_NS_MAX, has_blocks,
    opcode_name,
};
use crate::names::slow_threshold::SlowThreshold;
use crate::objects::namespace_traffic::ReactorTraffic;

/// Lines that may be logged at once.
const LINE_COUNT_MAX: u32 = 20;

/// Time in which one more line may be logged, ns: the log accepts no more lines of one kind in the long run.
const LINE_NS: u64 = 500_000_000;

/// Limits the lines of a reactor.
#[derive(Debug)]
struct LineLimit {
    left: u32,
    since_ns: u64,
    suppressed_count: u64,
}

impl LineLimit {
    const FULL: Self = Self { left: LINE_COUNT_MAX, since_ns: 0, suppressed_count: 0 };

    /// Whether a line may be logged now; otherwise it is counted.
    fn may_log(&mut self, now_ns: u64) -> bool {
        let earned = u32::try_from(now_ns.saturating_sub(self.since_ns) / LINE_NS).unwrap_or(u32::MAX);
        if earned > 0 {
            (self.left, self.since_ns) = (self.left.saturating_add(earned).min(LINE_COUNT_MAX), now_ns);
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                self.suppressed_count = self.suppressed_count.saturating_add(1);
                false
            }
        }
    }

    /// Lines that were not logged since the last one that was; `None` for none.
    fn take_suppressed(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.suppressed_count)).filter(|count| *count > 0)
    }
}

/// A trace that runs, or whose last events were not read yet.
struct Trace {
    settings: Arc<TraceSettings>,
    until_ns: u64,
    read_by_ns: u64,
    is_on: bool,
    events: VecDeque<TraceEvent>,
    lost_count: u64,
}

/// The slow log and the trace of a reactor.
pub(super) struct Recorder {
    slow_ns: u64,
    limit: LineLimit,
    trace: Option<Box<Trace>>,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self { slow_ns: u64::MAX, limit: LineLimit::FULL, trace: None }
    }

    fn has_trace_of(&self, lane: &Lane) -> bool {
        let Some(trace) = self.trace.as_ref().filter(|trace| trace.is_on) else { return false };
        lane.state.association().is_some_and(|association| trace.settings.includes(association))
    }

    /// Begins or ends the record of a lane that has become an I/O queue, or after the settings have changed.
    pub(super) fn attach(&self, lane: &mut Lane) {
        if lane.state.io_queue().is_none() {
            return;
        }
        let is_traced = self.has_trace_of(lane);
        if self.slow_ns == u64::MAX && !is_traced {
            if lane.watch.is_recording() {
                lane.watch.set_record(None);
            }
            return;
        }
        let keeps_ns = if is_traced { 0 } else { self.slow_ns };
        let doorbell = lane.doorbell_counters();
        match lane.watch.record() {
            Some(record) => record.set_kept(keeps_ns, is_traced),
            None => lane.watch.set_record(Some(Box::new(LaneRecord::new(keeps_ns, is_traced, doorbell)))),
        }
    }

    fn attach_all(&self, lanes: &mut LaneTable, commands: &Commands, now_ns: u64) {
        let new = lanes.iter_mut().filter_map(|lane| {
            let was_recording = lane.watch.is_recording();
            self.attach(lane);
            (lane.watch.is_recording() && !was_recording).then_some(lane.id.index)
        });
        let new: Vec<u32> = new.collect();
        // Commands that run already are told of, too, if they stay.
        for running in commands.running.iter() {
            if let Owner::Lane { index, generation, slot } = running.owner
                && new.contains(&index)
                && let Some(lane) = lanes.get_mut(index).filter(|lane| lane.id.generation == generation)
            {
                let cid = lane.queue.cid(slot);
                if let Some(record) = lane.watch.record() {
                    record.adopt(slot, cid, &running.sqe, now_ns);
                }
            }
        }
    }

    /// Sets the threshold of the slow log.
    pub(super) fn set_slow(
        &mut self,
        lanes: &mut LaneTable,
        commands: &Commands,
        threshold: SlowThreshold,
        now_ns: u64,
    ) {
        self.slow_ns = threshold.ns();
        self.attach_all(lanes, commands, now_ns);
    }

    /// Carries out an order about the trace.
    pub(super) fn on_trace(
        &mut self,
        lanes: &mut LaneTable,
        commands: &Commands,
        order: TraceOrder,
        now_ns: u64,
    ) {
        match order {
            TraceOrder::Start(settings) => {
                self.trace = Some(Box::new(Trace {
                    until_ns: now_ns.saturating_add(settings.for_ns),
                    read_by_ns: now_ns.saturating_add(UNREAD_NS_MAX),
                    is_on: true,
                    events: VecDeque::new(),
                    lost_count: 0,
                    settings,
                }));
                self.attach_all(lanes, commands, now_ns);
            }
            TraceOrder::Take { count_max, ends, to } => {
                let Some(trace) = &mut self.trace else {
                    let none = TracePart {
                        events: Vec::new(),
                        lost_count: 0,
                        has_more: false,
                        is_on: false,
                        now_ns,
                    };
                    // The send fails if the caller has given up waiting.
                    return drop(to.send(none));
                };
                trace.read_by_ns = now_ns.saturating_add(UNREAD_NS_MAX);
                let was_on = trace.is_on;
                trace.is_on &= !ends && now_ns < trace.until_ns && !trace.settings.is_spent();
                let count = trace.events.len().min(count_max);
                let part = TracePart {
                    events: trace.events.drain(..count).collect(),
                    lost_count: std::mem::take(&mut trace.lost_count),
                    has_more: !trace.events.is_empty(),
                    is_on: trace.is_on,
                    now_ns,
                };
                let (is_on, has_more) = (part.is_on, part.has_more);
                let _ = to.send(part);
                if !is_on && !has_more {
                    self.trace = None;
                }
                if was_on && !is_on {
                    self.attach_all(lanes, commands, now_ns);
                }
            }
        }
    }

    /// Takes what a lane has recorded.
    pub(super) fn collect(&mut self, lane: &mut Lane, namespaces: &Attachments) {
        let (index, reactor, view) = (lane.id.index, lane.id.reactor, lane.view());
        let Some(record) = lane.watch.record().filter(|record| record.has_kept()) else { return };
        let finished = record.take_finished();
        let (rings, lost_count) = record.take_rings();
        let is_traced = self.has_trace_of(lane);
        let of_namespace = self.trace.as_ref().and_then(|trace| trace.settings.nsid).map(Nsid::get);
        let is_wanted = |finished: &Finished| of_namespace.is_none_or(|nsid| nsid == finished.command.nsid);
        // A doorbell belongs to the commands that it sends.
        let has_wanted = of_namespace.is_none() || finished.iter().any(is_wanted);
        for finished in finished {
            if finished.command.is_sampled() {
                let traffic = namespaces.shared_traffic_of(view, Nsid::new(finished.command.nsid));
                let of_namespace = traffic.and_then(|traffic| traffic.of(reactor.into()));
                let phases = of_namespace.map(ReactorTraffic::phases);
                let times = finished.phases();
                for of in [Some(&lane.counters.phases), phases].into_iter().flatten() {
                    of.socket.add(times.socket_ns);
                    of.backend.add(times.storage_ns);
                    of.doorbell.add(times.doorbell_ns);
                    of.send.add(times.send_ns);
                }
            }
            let is_key_value = is_key_value(lane, namespaces, finished.command.nsid);
            if finished.total_ns() >= self.slow_ns {
                self.log_slow(lane, &finished, is_key_value);
            }
            if is_traced && is_wanted(&finished) {
                self.trace_command(lane, &finished, is_key_value);
            }
        }
        if is_traced && has_wanted {
            for rung in rings {
                let reason = rung.reason.map_or("end", proto::doorbell::Reason::name);
                let kind = TraceKind::Doorbell { pdus: rung.pdus, reason };
                self.push(lane, rung.at_ns, kind);
            }
            if let Some(trace) = &mut self.trace {
                trace.lost_count = trace.lost_count.saturating_add(lost_count);
            }
        }
        debug_assert_eq!(index, lane.id.index);
    }

    fn log_slow(&mut self, lane: &Lane, finished: &Finished, is_key_value: bool) {
        // The clock of the line's limit is that of the lines.
        let now_ns = finished.command.arrived_ns.saturating_add(finished.total_ns());
        if !self.limit.may_log(now_ns) {
            return;
        }
        let times = finished.phases();
        let us = |ns: u64| ns / 1000;
        let Named { host, subsystem, opcode, lba, blocks } = named(lane, &finished.command, is_key_value);
        tracing::warn!(
            %host,
            subsystem,
            nsid = finished.command.nsid,
            qid = %lane.state.qid(),
            cid = finished.command.cid,
            opcode = %opcode,
            lba,
            blocks,
            bytes = finished.command.bytes,
            status = (!finished.status.is_success()).then(|| tracing::field::display(finished.status)),
            total_us = us(finished.total_ns()),
            socket_us = us(times.socket_ns),
            limit_us = (times.limit_ns > 0).then(|| us(times.limit_ns)),
            data_us = us(times.data_ns),
            storage_us = us(times.storage_ns),
            doorbell_us = us(times.doorbell_ns),
            send_us = us(times.send_ns),
            waited_for_buffer = finished.command.has_waited().then_some(true),
            suppressed = self.limit.take_suppressed(),
            "command slow"
        );
    }

    /// Looks for commands that are still under way after the threshold.
    pub(super) fn look(&mut self, lanes: &mut LaneTable, commands: &Commands, now_ns: u64) {
        if self.slow_ns != u64::MAX {
            self.look_for_running(lanes, commands, now_ns);
            self.look_for_unsent(lanes, commands, now_ns);
            // A line that may not be logged either is one more.
            if self.limit.suppressed_count > 0 && self.limit.may_log(now_ns) {
                tracing::warn!(
                    suppressed = self.limit.take_suppressed(),
                    "slow commands: lines were suppressed"
                );
            }
        }
        // Its events are those of commands, of which there may be none.
        let Some(trace) = &mut self.trace else { return };
        let is_abandoned = now_ns >= trace.read_by_ns;
        let ends_now = (is_abandoned || now_ns >= trace.until_ns) && std::mem::take(&mut trace.is_on);
        if is_abandoned {
            self.trace = None;
        }
        if ends_now {
            self.attach_all(lanes, commands, now_ns);
        }
    }

    fn look_for_running(&mut self, lanes: &mut LaneTable, commands: &Commands, now_ns: u64) {
        for running in commands.running.iter() {
            let (index, generation, slot) = match running.owner {
                Owner::Lane { index, generation, slot }
                | Owner::Pair { index, generation, first: slot, .. } => (index, generation, slot),
                Owner::Parent(_) | Owner::Control(_) => continue,
            };
            // The slots of a lane that is closing are gone.
            let is_live = |lane: &&mut Lane| lane.id.generation == generation && lane.takes_commands();
            let Some(lane) = lanes.get_mut(index).filter(is_live) else { continue };
            let slow_ns = self.slow_ns;
            let cid = lane.queue.cid(slot);
            let found = lane.watch.record().and_then(|record| record.live(slot));
            let found = found.filter(|command| command.cid == cid);
            let late = found.filter(|command| now_ns.saturating_sub(command.arrived_ns) >= slow_ns);
            let Some(command) = late.and_then(|command| command.is_told_first().then_some(*command)) else {
                continue;
            };
            self.log_outstanding(lane, &command, phase_of(&running.step), commands, now_ns);
        }
    }

    fn look_for_unsent(&mut self, lanes: &mut LaneTable, commands: &Commands, now_ns: u64) {
        let Some(before_ns) = now_ns.checked_sub(self.slow_ns) else { return };
        for lane in lanes.iter_mut() {
            while let Some(command) = lane.watch.record().and_then(|record| record.unsent_since(before_ns)) {
                self.log_outstanding(lane, &command, "send", commands, now_ns);
            }
        }
    }

    fn log_outstanding(
        &mut self,
        lane: &Lane,
        command: &Command,
        phase: &'static str,
        commands: &Commands,
        now_ns: u64,
    ) {
        if !self.limit.may_log(now_ns) {
            return;
        }
        let is_key_value = is_key_value(lane, &commands.namespaces, command.nsid);
        let Named { host, subsystem, opcode, lba, blocks } = named(lane, command, is_key_value);
        tracing::warn!(
            %host,
            subsystem,
            nsid = command.nsid,
            qid = %lane.state.qid(),
            cid = command.cid,
            opcode = %opcode,
            lba,
            blocks,
            bytes = command.bytes,
            phase,
            since_us = now_ns.saturating_sub(command.arrived_ns) / 1000,
            at_least = command.is_older().then_some(true),
            suppressed = self.limit.take_suppressed(),
            "command outstanding"
        );
    }

    fn trace_command(&mut self, lane: &Lane, finished: &Finished, is_key_value: bool) {
        let Finished { command, status, .. } = *finished;
        // The recorder has no times of the phases of a command that began before the trace.
        if command.is_older() {
            return;
        }
        let times = finished.phases();
        let traced = TracedCommand {
            nsid: command.nsid,
            cid: command.cid,
            opcode: command.opcode,
            is_key_value,
            slba: command.slba,
            blocks: command.blocks,
            bytes: command.bytes,
            status,
            socket_ns: times.socket_ns,
            limit_ns: times.limit_ns,
            data_ns: times.data_ns,
            storage_ns: times.storage_ns,
            doorbell_ns: times.doorbell_ns,
            send_ns: times.send_ns,
        };
        self.push(lane, command.arrived_ns, TraceKind::Command(traced));
    }

    /// A queue has connected, has ended, or was broken by its peer.
    #[cold]
    pub(super) fn on_lane_event(&mut self, lane: &Lane, now_ns: u64, kind: TraceKind) {
        let Some(trace) = self.trace.as_ref().filter(|trace| trace.is_on) else { return };
        let is_included = match lane.state.association() {
            Some(association) => trace.settings.includes(association),
            // Nobody knows yet whose it is.
            None => trace.settings.host.is_none() && trace.settings.subsystem.is_none(),
        };
        if is_included {
            self.push(lane, now_ns, kind);
        }
    }

    fn push(&mut self, lane: &Lane, at_ns: u64, kind: TraceKind) {
        let Some(trace) = &mut self.trace else { return };
        if at_ns >= trace.until_ns || !trace.is_on || !trace.settings.take_one() {
            return;
        }
        if trace.events.len() >= trace.settings.kept_count_max {
            trace.events.pop_front();
            trace.lost_count = trace.lost_count.saturating_add(1);
        }
        trace.events.push_back(TraceEvent {
            at_ns,
            reactor: lane.id.reactor,
            lane: lane.id.index,
            qid: lane.state.qid(),
            association: lane.state.association().cloned(),
            kind,
        });
    }
}

/// Whether a namespace has keys and values.
fn is_key_value(lane: &Lane, namespaces: &Attachments, nsid: u32) -> bool {
    lane.view().is_some_and(|view| namespaces.find_unlimited(view, Nsid::new(nsid)).is_keys())
}

/// A command in the words of the log.
struct Named<'a> {
    host: String,
    subsystem: Option<&'a str>,
    opcode: String,
    lba: Option<u64>,
    blocks: Option<u32>,
}

fn named<'a>(lane: &'a Lane, command: &Command, is_key_value: bool) -> Named<'a> {
    let association = lane.state.association();
    let has_blocks = has_blocks(command.opcode, is_key_value);
    let opcode = opcode_name(command.opcode, is_key_value);
    Named {
        host: association.map_or_else(String::new, |association| quoted(association.host()).to_string()),
        subsystem: association.and_then(|association| Some(association.subsystem()?.as_str())),
        opcode: opcode.map_or_else(|| format!("{:#04x}", command.opcode), |name| format!("{name:?}")),
        lba: has_blocks.then_some(command.slba),
        blocks: has_blocks.then_some(command.blocks),
    }
}

/// What a command that is under way waits for.
fn phase_of(step: &Step) -> &'static str {
    match step {
        Step::Receiving { .. } | Step::Arriving(_) => "data",
        Step::AwaitingRoom(_) | Step::InLine => "buffer",
        Step::Throttled { .. } => "rate limit",
        Step::Waiting(_) => "buffer or range",
        Step::Locking(_) => "range",
        Step::Collecting(_) => "Submit",
        Step::Digesting(_) => "digest",
        Step::Partition | Step::Collected | Step::Scattered(_) | Step::Retrieving(_) => "keys",
        Step::Backend(_) | Step::Between => "storage",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_and_the_others_counted() {
        let mut limit = LineLimit::FULL;
        let now_ns = 1_000_000_000;
        let logged = (0..100).filter(|_| limit.may_log(now_ns)).count();
        assert_eq!((logged, limit.suppressed_count), (20, 80));
        assert!(limit.may_log(now_ns + LINE_NS));
        assert_eq!((limit.take_suppressed(), limit.take_suppressed()), (Some(80), None));
        assert!(!limit.may_log(now_ns + LINE_NS), "one line was earned");
    }
}
