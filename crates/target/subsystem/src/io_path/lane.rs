//! One lane of the target: a socket and the controller's end of its queue pair, served by one reactor at a time.

mod deadlines;
mod state;
pub(crate) mod tls_key;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use memory::{Payload, Pool, STRIPE_BYTES, Segment};
use proto::controller_queue::QueueSettings;
use proto::doorbell::{Doorbell, DoorbellCounters, Policy};
use proto::zero_copy::{Policy as ZeroCopy, Threshold};
use proto::{ControllerQueue, DataDigest, Piece, ReceivePlan, SendBudget, Slot};
use reactor::{Held, Io, ListenerTag, Sent, SocketId, stays_on_this_machine};
use security::tls::Stream;
use store::Ticket;
use wire::pdu::Digests;

use crate::io_path::attached::{Attachments, ViewIndex};
use crate::io_path::maybe_tls_socket::MaybeTlsSocket;
use crate::io_path::running::RunningTable;
use crate::io_path::stopwatch::Stopwatch;
use crate::messages::key_value::arriving::Intake;
use crate::messages::message::{AdmissionMessage, Established, Joined, Message};
use crate::names::lane_counters::LaneCounters;
use crate::names::lane_end::LaneEnd;
use crate::names::lane_id::LaneId;
use crate::objects::controller::error_log::Failure;

pub(crate) use deadlines::{Deadlines, LaneTimeouts, Wait};
pub(crate) use state::{Closing, ClosingStep, IoQueue, LaneState, Order, Reach};

/// Pieces handed to the kernel in one call.
const SEGMENT_COUNT: usize = 256;

/// Long payloads are cut at multiples of this, where a block of any size may end.
const CUT_BYTES: usize = STRIPE_BYTES;

/// Failed commands that are reported in one turn; more are counted only.
const FAILURE_COUNT_MAX: usize = 8;

/// One connection and its queue pair.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: LaneId,
    /// Its socket: open unless the lane is [closed](ClosingStep::Closed).
    pub(crate) transport: MaybeTlsSocket,
    /// With each command its ticket, while it is in the [running table](crate::io_path::running).
    pub(crate) queue: ControllerQueue<Intake, Payload, Option<Ticket>>,
    pub(crate) state: LaneState,
    pub(crate) deadlines: Deadlines,
    pub(crate) listener: ListenerTag,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) counters: Arc<LaneCounters>,
    /// The device queue that it is counted under for placing others.
    pub(crate) napi: Option<NonZeroU32>,
    /// It was assigned a reactor as an I/O lane.
    pub(crate) is_placed: bool,
    /// Times one of its commands.
    pub(crate) watch: Stopwatch,
    /// The reason why its input is held back.
    pub(crate) held: Option<HeldInput>,
    /// Its socket may still have bytes that arrived while its input was held back.
    pub(crate) is_catching_up: bool,
    /// A part of a value is being received, or was requested and is the next to come.
    pub(crate) expects_part: bool,
    /// Decides when waiting answers are sent.
    doorbell: Doorbell,
    /// Waiting commands that the doorbell knows of.
    brought_count: u32,
    /// Failed commands that were not reported yet.
    pub(crate) failures: Vec<Failure>,
    /// Which sends avoid the copy.
    zero_copy: Threshold,
    /// Its unsent answers count in the buffer quota.
    pub(crate) is_behind: bool,
    /// Why it ends: the first reason counts.
    pub(crate) end: Option<LaneEnd>,
    /// The lists of the lane table that it is on. Only the table changes them.
    pub(crate) marks: Marks,
}

/// Input of a lane that is not taken in until a command with in-capsule data, for which no buffer was free, continues.
#[derive(Debug)]
pub(crate) struct HeldInput {
    /// That command.
    pub(crate) ticket: Ticket,
    /// Bytes that were received behind it.
    pub(crate) backlog: Vec<u8>,
}

/// The lists of the lane table that a lane is on.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Lanes with bytes to send.
    pub(crate) is_dirty: bool,
    /// Lanes whose sends the kernel may still read.
    pub(crate) awaits_notices: bool,
    /// Lanes without a queue, whose number is limited.
    pub(crate) is_unconnected: bool,
    /// Those that took in commands lately, unless it is idle.
    pub(crate) activity: Activity,
}

/// The latest activity of a lane, for the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Nothing since it released its memory.
    Idle,
    /// Nothing since the last sweep.
    Resting,
    /// It took in commands.
    Active,
}

/// The outcome of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Everything is sent.
    Empty,
    /// The turn's budget is spent: the rest is sent in the next turn.
    Left,
    /// The socket is full.
    Blocked,
    /// The connection is broken.
    Broken,
}

impl Lane {
    pub(crate) fn new(
        id: LaneId,
        transport: MaybeTlsSocket,
        settings: QueueSettings,
        policy: Policy,
        now_ns: u64,
    ) -> Self {
        let mut deadlines = Deadlines::default();
        deadlines.start(Wait::IcReq, now_ns);
        Self {
            id,
            transport,
            queue: ControllerQueue::new(settings),
            state: LaneState::Initialising,
            deadlines,
            listener: 0,
            peer: None,
            local: None,
            counters: Arc::default(),
            napi: None,
            is_placed: false,
            watch: Stopwatch::default(),
            held: None,
            is_catching_up: false,
            expects_part: false,
            doorbell: Doorbell::new(policy),
            brought_count: 0,
            failures: Vec::new(),
            zero_copy: Threshold::NEVER,
            is_behind: false,
            end: None,
            marks: Marks {
                is_dirty: false,
                awaits_notices: false,
                is_unconnected: false,
                activity: Activity::Idle,
            },
        }
    }

    /// Its socket while it is open.
    #[inline]
    pub(crate) fn socket(&self) -> Option<SocketId> {
        let is_closed = matches!(self.state, LaneState::Closing(Closing { step: ClosingStep::Closed, .. }));
        (!is_closed).then_some(self.transport.id())
    }

    /// The control plane has accepted its Connect. Returns what its queue has of its controller, unless its host must
    /// authenticate first.
    pub(crate) fn establish(&mut self, established: Established, now_ns: u64) -> Option<Joined> {
        self.queue.establish(established.entries, established.is_flow_control_disabled);
        self.enter(LaneState::Authenticating { qid: established.qid }, now_ns);
        established.joined
    }

    /// It is a queue of a controller from now on.
    pub(crate) fn join(&mut self, joined: Joined, namespaces: &Attachments, now_ns: u64) {
        let Joined { in_capsule_bytes, association, subsystem, doorbell } = joined;
        let qid = self.state.qid();
        self.set_doorbell(doorbell);
        let state = match subsystem {
            Some(subsystem) if !qid.is_admin() => {
                let view = namespaces.view_of(subsystem, &association.host);
                LaneState::Io(IoQueue { qid, subsystem, view, association, order: Order::Arrival })
            }
            _ => {
                let view_of = |subsystem| namespaces.view_of(subsystem, &association.host);
                let reach = subsystem.map(|subsystem| Reach { subsystem, view: view_of(subsystem) });
                LaneState::Admin { association, reach }
            }
        };
        if !qid.is_admin() {
            self.queue.set_in_capsule_bytes(in_capsule_bytes);
        }
        self.enter(state, now_ns);
    }

    /// Changes when waiting answers are sent, from the next decision on.
    pub(crate) fn set_doorbell(&mut self, policy: Policy) {
        self.doorbell.set_policy(policy);
    }

    /// What its doorbell has counted.
    pub(crate) fn doorbell_counters(&self) -> DoorbellCounters {
        self.doorbell.counters()
    }

    /// Enables zero-copy sends.
    pub(crate) fn set_zero_copy<I: Io<Message>>(&mut self, io: &mut I, policy: ZeroCopy) {
        let threshold = Threshold::new(policy, stays_on_this_machine(self.local, self.peer));
        // Records are encrypted into a copy anyway.
        let can_be = threshold.is_on() && !self.transport.is_tls();
        let Some(socket) = self.socket().filter(|_| can_be) else { return };
        if io.allow_zero_copy(socket) {
            self.zero_copy = threshold;
        } else {
            tracing::debug!(peer = ?self.peer, "no zero-copy on this socket");
        }
    }

    /// Enters another state, and arms its deadline.
    pub(crate) fn enter(&mut self, state: LaneState, now_ns: u64) {
        for wait in [Wait::IcReq, Wait::Connect, Wait::Close] {
            self.deadlines.stop(wait);
        }
        match &state {
            LaneState::Initialising => self.deadlines.start(Wait::IcReq, now_ns),
            LaneState::Unconnected { .. } => self.deadlines.start(Wait::Connect, now_ns),
            LaneState::Closing(Closing { step: ClosingStep::Terminating, .. }) => {
                self.deadlines.stop(Wait::Pdu);
                self.deadlines.start(Wait::Close, now_ns);
            }
            LaneState::Closing(Closing { step: ClosingStep::Closed, .. }) => self.deadlines.stop_all(),
            _ => {}
        }
        self.state = state;
    }

    /// Takes in no commands from now on. A lane that is closing already enters the next step.
    pub(crate) fn begin_closing(&mut self, step: ClosingStep, now_ns: u64) {
        if let (LaneState::Closing(closing), ClosingStep::Ending) = (&mut self.state, step) {
            // The deadline after a TermReq stays.
            closing.step = step;
            return;
        }
        let qid = self.state.qid();
        self.enter(LaneState::Closing(Closing { qid, in_flight: 0, step }), now_ns);
    }

    /// The namespaces that its I/O commands reach; `None` unless it is an I/O queue.
    #[inline]
    pub(crate) fn view(&self) -> Option<ViewIndex> {
        self.state.io_queue().map(|queue| queue.view)
    }

    /// Whether commands that bring no data are to join the lane's line for buffers.
    pub(crate) fn set_in_line(&mut self, is_in_line: bool) {
        if let LaneState::Io(queue) = &mut self.state {
            queue.set_in_line(is_in_line);
        }
    }

    /// Whether commands that arrive are taken in.
    #[inline]
    pub(crate) fn takes_commands(&self) -> bool {
        !matches!(self.state, LaneState::Closing(_))
    }

    /// Whether payloads must be stable copies: a data digest covers the bytes, which must not change between digest and
    /// send.
    #[inline]
    pub(crate) fn needs_stable_copy(&self) -> bool {
        self.queue.agreement().digests.contains(Digests::DATA)
    }

    /// The tickets of its running commands.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.queue.contexts().copied().flatten()
    }

    /// Since when its peer owes data that was asked for, ns.
    pub(crate) fn asked_since_ns(&self, running: &RunningTable, now_ns: u64) -> Option<u64> {
        let oldest_ns = self.tickets().filter_map(|ticket| running.asked_since_ns(ticket)).min()?;
        // While nothing is taken in from the peer, it cannot bring any.
        Some(if self.held.is_some() { now_ns } else { oldest_ns })
    }

    /// Remembers a failed command for the error log.
    pub(crate) fn on_failure(&mut self, failure: Failure) {
        self.counters.failed_count.add(1);
        if self.failures.len() < FAILURE_COUNT_MAX {
            self.failures.push(failure);
        }
    }

    /// Sets its timer to its next deadline, if no timer fires before.
    pub(crate) fn arm_timer<I: Io<Message>>(&mut self, io: &mut I, timeouts: &LaneTimeouts) {
        if let Some(deadline_ns) = self.deadlines.next_timer(timeouts) {
            io.set_timer(deadline_ns, u64::from(self.id.generation) << 32 | u64::from(self.id.index));
        }
    }

    /// Its peer owes data from now on, and has a deadline for it.
    pub(crate) fn await_data<I: Io<Message>>(&mut self, io: &mut I, timeouts: &LaneTimeouts) {
        if self.deadlines.start_once(Wait::Data, io.now_ns()) {
            self.arm_timer(io, timeouts);
        }
    }

    /// Requests a part of a value. Its header is then received with little of the data, so that the rest is received in place;
    /// and so is that of the part behind it.
    pub(crate) fn request_part(&mut self, slot: Slot, intake: Intake, part: Range<u32>) {
        self.queue.request_part(slot, intake, part);
        self.expects_part = true;
    }

    /// The plan of the next receive.
    #[inline]
    pub(crate) fn receive_plan(&self, plan: ReceivePlan) -> ReceivePlan {
        if self.expects_part { plan.before_large() } else { plan }
    }

    /// Reports a fault of its peer, which is counted by its reason, and logged, with the detail, at most once in a while.
    #[cold]
    pub(crate) fn complain<I: Io<Message>>(&self, io: &mut I, reason: &'static str, detail: Option<String>) {
        let peer = self.peer;
        tracing::debug!(?peer, qid = %self.state.qid(), reason, detail, "complaint");
        let detail = detail.map(Into::into);
        io.post(0, Message::Admission(AdmissionMessage::Complaint { peer, reason, detail }));
    }

    /// Whether the waiting bytes are sent before the end of the turn.
    #[inline]
    pub(crate) fn is_full(&mut self) -> bool {
        let caravan = self.queue.caravan();
        self.doorbell.is_full(caravan.waiting_command_count(), caravan.waiting_bytes())
    }

    /// Whether all its commands are answered, and its doorbell does not wait for others.
    #[inline]
    pub(crate) fn is_answered(&self) -> bool {
        self.queue.outstanding() == 0 && !matches!(self.doorbell.policy(), Policy::Fixed { .. })
    }

    /// Whether the waiting bytes are sent at the end of this turn.
    pub(crate) fn is_due(&mut self, now_ns: u64) -> bool {
        let in_flight = self.queue.outstanding();
        let caravan = self.queue.caravan();
        let (commands, bytes) = (caravan.waiting_command_count(), caravan.waiting_bytes());
        let may_wait = matches!(self.state, LaneState::Io(_));
        if bytes == 0 || caravan.is_leaving() {
            return true;
        }
        if !may_wait || caravan.is_urgent() {
            self.doorbell.on_asked();
            return true;
        }
        let brought_count = commands.saturating_sub(self.brought_count);
        if brought_count > 0 {
            self.doorbell.on_brought(brought_count, now_ns);
        }
        self.brought_count = commands;
        self.doorbell.rings(commands, bytes, in_flight.into(), now_ns)
    }

    /// Sends the rest of a TLS handshake or record. `Some` if the lane can send nothing else now.
    #[inline]
    fn flush_tls<I: Io<Message>>(&mut self, io: &mut I, socket: SocketId) -> Option<Flushed> {
        match self.transport.flush(io) {
            Sent::Bytes(_) => None,
            Sent::Blocked => {
                self.deadlines.start_once(Wait::Read, io.now_ns());
                io.await_writable(socket);
                Some(Flushed::Blocked)
            }
            Sent::Failed(_) => Some(Flushed::Broken),
        }
    }

    /// Sends the waiting bytes, as far as the socket has room and the turn's budget allows.
    pub(crate) fn flush<I: Io<Message>>(&mut self, io: &mut I) -> Flushed {
        let Some(socket) = self.socket() else { return Flushed::Empty };
        if let Some(flushed) = self.flush_tls(io, socket) {
            return flushed;
        }
        let caravan = self.queue.caravan();
        let mut budget = SendBudget::TURN;
        loop {
            let pdu_count = caravan.waiting_pdu_count();
            if caravan.ring() {
                self.brought_count = 0;
                self.doorbell.on_rung();
                self.counters.on_rung(pdu_count, &self.doorbell.counters());
                if self.watch.follows_doorbell() {
                    self.watch.on_rung(&self.counters.phases, io.clock_ns(), pdu_count, &self.doorbell);
                }
            }
            if !caravan.is_leaving() {
                self.deadlines.stop(Wait::Read);
                return Flushed::Empty;
            }
            if budget.is_spent() {
                self.deadlines.stop(Wait::Read);
                keep_interrupted(caravan);
                return Flushed::Left;
            }
            let mut segments = [Segment::EMPTY; SEGMENT_COUNT];
            let (mut count, mut length) = (0, 0);
            'pieces: for piece in caravan.pieces() {
                match piece {
                    Piece::Bytes(bytes) => {
                        segments[count] = Segment::new(bytes);
                        length += bytes.len();
                        count += 1;
                    }
                    Piece::Payload(payload, mut range) => {
                        // At the end of a block: the namespace's memory may change before the rest is sent.
                        let end = budget.end_of(range.clone(), length, CUT_BYTES);
                        let is_cut = end < range.end;
                        range.end = end;
                        while !range.is_empty() && count < SEGMENT_COUNT {
                            segments[count] = payload.segment(range.clone());
                            range.start += segments[count].len();
                            length += segments[count].len();
                            count += 1;
                        }
                        if is_cut || !range.is_empty() {
                            break 'pieces;
                        }
                    }
                }
                if count == SEGMENT_COUNT {
                    break;
                }
            }
            self.counters.send_count.add(1);
            let segments = &segments[..count];
            let is_meant = self.zero_copy.takes(length) && is_stable(caravan) && has_plenty(io.pool());
            let (sent, is_zero_copy) = if is_meant {
                io.send_zero_copy(socket, segments)
            } else {
                (self.transport.send(io, segments), false)
            };
            match sent {
                Sent::Bytes(sent) => {
                    if is_zero_copy || caravan.is_kept() {
                        caravan.on_sent_zero_copy(sent, is_zero_copy, |_| {});
                        caravan.release(drop);
                    } else {
                        caravan.on_sent(sent, drop);
                    }
                    if is_zero_copy {
                        self.counters.on_zero_copy(sent, caravan.awaited_count());
                        self.deadlines.start_once(Wait::Acknowledge, io.now_ns());
                    }
                    self.counters.sent_bytes.add(sent as u64);
                    budget.on_sent(sent);
                    if sent < length {
                        self.counters.blocked_count.add(1);
                        self.deadlines.start(Wait::Read, io.now_ns());
                        keep_interrupted(caravan);
                        io.await_writable(socket);
                        return Flushed::Blocked;
                    }
                    if self.watch.follows_send() && !caravan.is_leaving() {
                        self.watch.on_taken(&self.counters.phases, io.clock_ns());
                    }
                }
                Sent::Blocked => {
                    self.counters.blocked_count.add(1);
                    self.deadlines.start_once(Wait::Read, io.now_ns());
                    io.await_writable(socket);
                    return Flushed::Blocked;
                }
                Sent::Failed(error) => {
                    tracing::debug!(%error, peer = ?self.peer, "cannot send");
                    return Flushed::Broken;
                }
            }
        }
    }

    /// Whether the kernel still reads something that was sent.
    #[inline]
    pub(crate) fn awaits_notices(&mut self) -> bool {
        self.queue.caravan().awaited_count() > 0
    }

    /// Releases buffers that the kernel has finished reading.
    pub(crate) fn take_notices<I: Io<Message>>(&mut self, io: &mut I) {
        let Some(socket) = self.socket() else { return };
        let caravan = self.queue.caravan();
        while caravan.awaited_count() > 0
            && let Some(notice) = io.next_notice(socket)
        {
            caravan.on_notice(notice.first, notice.last);
            caravan.release(drop);
            let awaited_count = caravan.awaited_count();
            self.deadlines.set(Wait::Acknowledge, (awaited_count > 0).then(|| io.now_ns()));
            self.counters.on_notice(notice, awaited_count);
            if self.zero_copy.on_notice(notice.send_count(), notice.is_copied) {
                tracing::debug!(peer = ?self.peer, "the kernel copied a zero-copy send: zero-copy is off for this lane");
            }
        }
    }

    /// Closes its socket. Returns whether it was open.
    pub(crate) fn close<I: Io<Message>>(&mut self, io: &mut I) -> bool {
        if self.socket().is_none() {
            return false;
        }
        self.close_socket(io);
        self.begin_closing(ClosingStep::Closed, io.now_ns());
        true
    }

    /// Closes its socket, if that is open. Buffers that the kernel may still read go to the reactor, which keeps them
    /// until the notices have come.
    pub(crate) fn close_socket<I: Io<Message>>(&mut self, io: &mut I) {
        let Some(socket) = self.socket() else { return };
        self.transport.end(io);
        let (awaited_count, kept) = self.queue.caravan().take_kept();
        if awaited_count == 0 {
            return io.close(socket);
        }
        let mut held = Held::new(awaited_count);
        kept.into_iter().for_each(|(headers, payloads)| held.push(headers, payloads));
        io.close_holding(socket, held);
    }

    /// A lane with TLS has received: the rest of a record must come in time, beginning with the last plaintext.
    pub(crate) fn watch_record(
        &mut self,
        io: &mut impl Io<Message>,
        timeouts: &LaneTimeouts,
        had_plaintext: bool,
    ) {
        if !self.transport.stream().is_some_and(Stream::is_within_record) {
            self.deadlines.stop(Wait::Record);
        } else if had_plaintext || !self.deadlines.is_on(Wait::Record) {
            self.deadlines.start(Wait::Record, io.now_ns());
            self.arm_timer(io, timeouts);
        }
    }

    /// Releases memory that an idle lane does not need. Returns whether that was possible.
    pub(crate) fn shrink(&mut self) -> bool {
        if self.held.is_some() || self.state.pairs().is_some() || self.tickets().next().is_some() {
            return false;
        }
        self.queue.shrink();
        self.transport.shrink();
        if let Some(record) = self.watch.record() {
            record.shrink();
        }
        true
    }
}

/// Whether every payload on its way stays as it is until the kernel has read it for the last time, which is when the
/// peer has acknowledged it.
fn is_stable(caravan: &proto::Caravan<Payload>) -> bool {
    caravan.pieces().all(|piece| match piece {
        Piece::Bytes(_) => true,
        Piece::Payload(payload, _) => payload.is_stable(),
    })
}

/// Whether the pool can spare buffers until the peer acknowledges: such buffers are at most half of the pool.
fn has_plenty(pool: &Pool) -> bool {
    pool.free_bytes() >= pool.capacity_bytes() / 2
}

/// The digest of a range of a payload.
pub(crate) fn payload_digest(payload: &Payload, range: Range<usize>) -> u32 {
    let mut digest = DataDigest::new();
    payload.for_each_piece(range, |piece| digest.update(piece));
    digest.finish()
}

/// The socket took a part of a payload. If the rest lies in namespace memory, what is left of that block is copied now.
/// Such a caravan is not [stable](is_stable), so no part of it was sent without a copy, and none is kept for the
/// kernel.
fn keep_interrupted(caravan: &mut proto::Caravan<Payload>) {
    let rest = caravan.interrupted().and_then(|(payload, range)| payload.rest(range));
    if let Some(rest) = rest {
        caravan.replace_interrupted(rest);
    }
}
