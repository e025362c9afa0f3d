//! Lanes to a namespace of a target: a thread's own, or handed over to threads of theirs.

use std::collections::BTreeMap;
use std::time::Duration;

use host::{
    Association, Command, Completion, DoorbellReason as Reason, Error, HandedLanes, InvalidCommand, Lane,
    LaneCounters, LaneSet, Namespace, Phases, Refused, RefusedReason,
};

use wire::status::Status;

use super::buffer::IoBuffer;
use super::queues::{Closed, Destination, Done, Queues, Refusal};
use super::{RunError, RunSettings, Thread};
use crate::recorder::Failure;
use crate::report::LaneResult;
use crate::stream::Step;
use crate::workload::{Kind, Plan};

/// A namespace of a target.
pub(super) struct Remote<'a> {
    pub(super) association: &'a Association,
    pub(super) namespace: &'a Namespace,
    pub(super) settings: &'a RunSettings,
}

impl Remote<'_> {
    /// Tries a command of each kind, so that an unsupported one is reported before the load begins.
    pub(super) fn check_commands(&self, plan: &Plan) -> Result<(), RunError> {
        let shares = plan.workload().pattern.shares();
        let wanted = [shares.read, shares.write, shares.trim, shares.write_zeroes];
        for (kind, _) in Kind::ALL.into_iter().zip(wanted).filter(|(_, percent)| *percent > 0) {
            let step = Step { kind, slba: plan.range().first, blocks: plan.command_blocks_max() };
            command(self.namespace, step).map_err(Error::Command)?;
        }
        Ok(())
    }
}

impl<'a> Destination for Remote<'a> {
    type Queues = RemoteQueues<'a>;

    fn open(&self, thread: &Thread, _plan: &Plan) -> Result<RemoteQueues<'a>, Error> {
        let lanes = thread.lanes.iter().map(|class| self.association.lane_of(*class));
        let lanes = lanes.collect::<Result<_, _>>()?;
        Ok(RemoteQueues {
            namespace: self.namespace,
            lanes: Lanes::new(lanes, self.settings.hand_over)?,
            by_class: self.settings.queues.is_some(),
            polled_percent: self.settings.polled_percent,
            polled_debt: vec![0; thread.loads.len()],
            // With a policy of never sleeping it does not sleep between arrivals either.
            never_sleeps: self.association.options().tuning.spin == Duration::MAX,
        })
    }

    fn open_timeout(&self) -> Duration {
        self.association.options().connect_timeout
    }

    fn abandon(&self) {
        self.association.close();
    }
}

/// The lanes of one thread.
pub(super) struct RemoteQueues<'a> {
    namespace: &'a Namespace,
    lanes: Lanes,
    /// Whether operations go to lanes of their class, in place of a lane for each load.
    by_class: bool,
    polled_percent: u8,
    /// By load, hundredths of a polled operation that are still owed.
    polled_debt: Vec<u16>,
    never_sleeps: bool,
}

impl RemoteQueues<'_> {
    /// Whether the next operation of a load is one that is polled for.
    fn polls(&mut self, load: usize) -> bool {
        let debt = &mut self.polled_debt[load];
        *debt += u16::from(self.polled_percent);
        let polls = *debt >= 100;
        if polls {
            *debt -= 100;
        }
        polls
    }

    #[cold]
    fn refusal(&self, lane: usize, kind: Kind, refused: Refused<IoBuffer>) -> Refusal<IoBuffer> {
        let error = match (refused.reason, self.lanes.over(lane)) {
            (RefusedReason::Ended, Some(over)) => over.clone(),
            (reason, _) => Error::Refused { command: kind.name(), reason },
        };
        Refusal { error: Box::new(error), buffer: refused.buffer }
    }
}

impl Queues for RemoteQueues<'_> {
    type Buffer = IoBuffer;

    fn buffer(&mut self, capacity: usize, seed: u64) -> Result<IoBuffer, Error> {
        Ok(IoBuffer::new(capacity, seed))
    }

    #[inline(always)] // What was made is handed on where it lies: moved, it would have to be in memory first.
    fn submit(
        &mut self,
        load: usize,
        step: Step,
        buffer: Option<IoBuffer>,
        user: u64,
    ) -> Result<(), Refusal<IoBuffer>> {
        let (lane, submitted) = match command(self.namespace, step) {
            Ok(command) if !self.by_class => (load, self.lanes.submit(load, command, buffer, user)),
            Ok(command) => {
                let command = if self.polls(load) { command.polled() } else { command };
                let lane = self.lanes.next_lane(&command);
                (lane, self.lanes.submit(lane, command, buffer, user))
            }
            Err(invalid) => return Err(Refusal { error: Box::new(Error::Command(invalid)), buffer }),
        };
        submitted.map_err(|refused| self.refusal(lane, step.kind, refused))
    }

    #[inline]
    fn outstanding(&self) -> usize {
        self.lanes.outstanding()
    }

    fn never_sleeps(&self) -> bool {
        self.never_sleeps
    }

    #[inline]
    fn take(&mut self, timeout: Duration, each: &mut impl FnMut(Done<IoBuffer>)) -> Result<(), Error> {
        let mut each = |_: usize, completion: Completion<IoBuffer>| {
            let Completion { user, result, buffer, .. } = completion;
            each(Done { user, result: result.map(drop).map_err(failure_of), buffer });
        };
        if timeout.is_zero() {
            self.lanes.poll_with(&mut each);
        } else {
            self.lanes.wait_with(&mut each, timeout);
        }
        Ok(())
    }

    fn close(&mut self, thread: &Thread) -> Closed {
        let mut phases = Phases::default();
        let lanes = self.lanes.take_lanes();
        let lanes = lanes.iter().enumerate().map(|(index, lane)| {
            let counters = lane.counters();
            phases.merge(&counters.phases);
            LaneResult {
                lane: if self.by_class { u32::from(lane.number()) - 1 } else { thread.loads[index] },
                class: lane.class().name(),
                core: thread.core,
                counters: lane_counters(&counters),
            }
        });
        let lanes = lanes.collect();
        Closed { lanes, phases: Some(phases), ring: None }
    }
}

/// The command for a step.
#[inline(always)]
fn command(namespace: &Namespace, step: Step) -> Result<Command, InvalidCommand> {
    match step.kind {
        Kind::Read => namespace.read(step.slba, step.blocks),
        Kind::Write => namespace.write(step.slba, step.blocks),
        Kind::Trim => namespace.deallocate(&[host::BlockRange { lba: step.slba, blocks: step.blocks }]),
        Kind::WriteZeroes => namespace.write_zeroes(step.slba, step.blocks, false),
    }
}

#[cold]
fn failure_of(failure: host::Failure) -> Failure {
    match failure {
        host::Failure::Status(status) | host::Failure::GaveUp { status, .. } => {
            let [sct, sc] = status.code().to_be_bytes();
            Failure::Status { sct, sc }
        }
        host::Failure::TimedOut => Failure::TimedOut,
        host::Failure::Replaced => Failure::Replaced,
        _ => Failure::Disconnected,
    }
}

/// The failure, if every further operation would end with it, at once and without being sent.
#[cold]
pub(super) fn lasting(failure: Failure) -> Option<host::Failure> {
    match failure {
        Failure::Replaced => Some(host::Failure::Replaced),
        Failure::Status { sct, sc } => {
            let status = Status::from_code(u16::from_be_bytes([sct, sc]));
            status.is(Status::ANA_PERSISTENT_LOSS).then_some(host::Failure::Status(status))
        }
        _ => None,
    }
}

/// A lane's counters by name.
fn lane_counters(counters: &LaneCounters) -> BTreeMap<String, serde_json::Value> {
    let named = [
        ("commands", counters.commands),
        ("completions", counters.completions),
        ("retries", counters.retries),
        ("caravans", counters.caravans),
        ("sends", counters.sends),
        ("receives", counters.receives),
        ("dry_receives", counters.dry_receives),
        ("sent_bytes", counters.sent_bytes),
        ("received_bytes", counters.received_bytes),
        ("in_place_bytes", counters.in_place_bytes),
        ("zero_copy_sends", counters.zero_copy_sends),
        ("zero_copy_bytes", counters.zero_copy_bytes),
        ("zero_copy_copied", counters.zero_copy_copied),
        ("zero_copy_awaited", counters.zero_copy_awaited),
        ("blocks", counters.blocks),
        ("spins", counters.spins),
        ("sleeps", counters.sleeps),
        ("losses", counters.losses),
        ("napi_id", counters.napi_id.into()),
        ("segment_bytes", counters.segment_bytes.into()),
        ("busy_polled_links", counters.busy_polled_links),
        ("busy_poll_refusals", counters.busy_poll_refusals),
    ];
    let rings = Reason::ALL.map(|reason| (reason.name(), counters.doorbell.rings[reason as usize]));
    let rings = rings.into_iter().map(|(name, count)| (format!("rings_{name}"), count));
    let waited = ("doorbell_waited_ns".to_owned(), counters.doorbell.waited_ns);
    let named = named.into_iter().map(|(name, count)| (name.to_owned(), count));
    named.chain(rings).chain([waited]).map(|(name, count)| (name, count.into())).collect()
}

/// Lanes, driven by this thread or by threads of their own.
#[derive(Debug)]
enum Lanes {
    Own(LaneSet<IoBuffer>),
    Handed(HandedLanes<IoBuffer>),
    /// The run is over.
    Taken,
}

impl Lanes {
    fn new(lanes: Vec<Lane<IoBuffer>>, hand_over: bool) -> Result<Self, Error> {
        Ok(if hand_over { Self::Handed(HandedLanes::new(lanes)?) } else { Self::Own(LaneSet::new(lanes)?) })
    }

    /// The lane that takes the next command of its class.
    fn next_lane(&mut self, command: &Command) -> usize {
        match self {
            Self::Own(lanes) => lanes.next_lane(command),
            Self::Handed(lanes) => lanes.next_lane(command),
            Self::Taken => unreachable!("nothing is submitted after the end"),
        }
    }

    #[inline]
    fn submit(
        &mut self,
        index: usize,
        command: Command,
        buffer: Option<IoBuffer>,
        user: u64,
    ) -> Result<(), Refused<IoBuffer>> {
        match self {
            Self::Own(lanes) => lanes.submit(index, command, buffer, user),
            Self::Handed(lanes) => lanes.submit(index, command, buffer, user),
            Self::Taken => unreachable!("nothing is submitted after the end"),
        }
    }

    /// Why the association has ended, as far as this lane knows.
    fn over(&self, index: usize) -> Option<&Error> {
        match self {
            Self::Own(lanes) => lanes.lanes()[index].over(),
            Self::Handed(_) | Self::Taken => None,
        }
    }

    #[inline]
    fn outstanding(&self) -> usize {
        match self {
            Self::Own(lanes) => lanes.outstanding(),
            Self::Handed(lanes) => lanes.outstanding(),
            Self::Taken => 0,
        }
    }

    #[inline]
    fn poll_with(&mut self, each: &mut impl FnMut(usize, Completion<IoBuffer>)) {
        match self {
            Self::Own(lanes) => lanes.poll_with(each),
            Self::Handed(lanes) => lanes.poll_with(each),
            Self::Taken => 0,
        };
    }

    #[inline]
    fn wait_with(&mut self, each: &mut impl FnMut(usize, Completion<IoBuffer>), timeout: Duration) {
        match self {
            Self::Own(lanes) => lanes.wait_with(each, timeout),
            Self::Handed(lanes) => lanes.wait_with(each, timeout),
            Self::Taken => 0,
        };
    }

    /// The lanes themselves, once the run is over.
    fn take_lanes(&mut self) -> Vec<Lane<IoBuffer>> {
        match std::mem::replace(self, Self::Taken) {
            Self::Own(lanes) => lanes.into_lanes(),
            Self::Handed(lanes) => lanes.into_lanes(),
            Self::Taken => Vec::new(),
        }
    }
}
