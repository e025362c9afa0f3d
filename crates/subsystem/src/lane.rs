//! One lane of the target: a socket and the controller's end of its queue pair, served by one reactor to the end.
//!
//! ```text
//! Initialising ─ICReq─▶ Unconnected ─Connect─▶ Connecting ─▶ Live
//!      └──────────────────┬──────────────────────┴────────────┘
//!        violation ─▶ Terminating ─▶ (peer closes, or time is over)
//!        closed by either side ─────▶ Draining ─▶ nothing runs any more: gone
//! ```

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use proto::caravan::{TURN_BYTES_MAX, WHOLE_BYTES_MAX};
use proto::controller_queue::QueueSettings;
use proto::doorbell::{Doorbell, Policy};
use proto::zero_copy::{Policy as ZeroCopy, Threshold};
use proto::{ControllerQueue, Piece, Slot};
use reactor::{
    Held, Io, ListenerTag, Payload, Pool, STRIPE_BYTES, Segment, Sent, SocketId, stays_on_this_machine,
};
use store::Ticket;
use wire::digest::DataDigest;
use wire::id::Qid;
use wire::pdu::Digests;

use crate::control_record::{Association, LaneId};
use crate::fused::Pairs;
use crate::kv_large::Intake;
use crate::lane_counters::LaneCounters;
use crate::message::{Established, Failure, Message};
use crate::stopwatch::{Stage, Stopwatch};
use crate::subsystem::SubsystemId;

/// Pieces handed to the kernel in one call.
const SEGMENT_COUNT: usize = 256;

/// Long payloads are cut at multiples of this, where a block of any size may end.
const CUT_BYTES: usize = STRIPE_BYTES;

/// Failed commands that are reported in one turn; more are counted only.
const FAILURE_COUNT_MAX: usize = 8;

/// How far a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneState {
    /// ICReq has not come.
    Initialising,
    /// Connect has not come; so many other commands have.
    Unconnected { refused: u8 },
    /// The control plane has its Connect.
    Connecting,
    /// It serves commands.
    Live,
    /// It has sent a TermReq, and waits for the peer to close.
    Terminating,
    /// Its socket is closed, or will be once nothing runs; what it started is being waited for.
    Draining,
}

/// How long a lane waits for its peer, ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneTimeouts {
    /// From accept to ICReq, and from there to Connect.
    pub(crate) connect_ns: u64,
    /// From a PDU's first byte to its last.
    pub(crate) pdu_ns: u64,
    /// From a send that found no room to one that does.
    pub(crate) send_ns: u64,
    /// From a request for data to all of that data.
    pub(crate) data_ns: u64,
    /// The same two while others wait for buffers.
    pub(crate) pressed_ns: u64,
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
            pressed_ns: SECOND_NS,
            terminate_ns: 5 * SECOND_NS,
        }
    }
}

/// A lane.
pub(crate) struct Lane {
    pub(crate) id: LaneId,
    /// `None` once it is closed.
    pub(crate) socket: Option<SocketId>,
    pub(crate) queue: ControllerQueue<Intake, Payload>,
    pub(crate) state: LaneState,
    pub(crate) listener: ListenerTag,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) qid: Qid,
    /// Whose namespaces it reaches: set on I/O lanes only.
    pub(crate) subsystem: Option<SubsystemId>,
    pub(crate) association: Option<Arc<Association>>,
    pub(crate) counters: Arc<LaneCounters>,
    /// The device queue that it is counted under for placing others.
    pub(crate) napi: Option<NonZeroU32>,
    /// It has been given its reactor as an I/O lane.
    pub(crate) is_placed: bool,
    /// Times one of its commands.
    pub(crate) watch: Stopwatch,
    /// Commands under way, by slot.
    tickets: Vec<Option<Ticket>>,
    /// Commands of it that the backend still has: counted once it drains.
    pub(crate) in_flight: u32,
    /// Fused commands that are not complete pairs.
    pub(crate) pairs: Option<Box<Pairs>>,
    /// Its commands begin as they come: none of them waits in line or for another half.
    pub(crate) is_plain: bool,
    /// A command whose in-capsule data is kept aside: no further input is taken in until it goes on.
    pub(crate) held: Option<Ticket>,
    /// Received bytes that were not taken in because of `held`.
    pub(crate) backlog: Vec<u8>,
    /// When what waits to be sent is sent.
    doorbell: Doorbell,
    /// Commands that wait to be sent and that the doorbell knows of.
    brought_count: u32,
    /// Failures not reported yet.
    pub(crate) failures: Vec<Failure>,
    /// On the list of lanes that have something to send.
    pub(crate) is_dirty: bool,
    /// Since when its last PDU is incomplete, ns.
    pub(crate) pdu_since_ns: Option<u64>,
    /// Since when the socket takes nothing, ns.
    pub(crate) blocked_since_ns: Option<u64>,
    /// Which sends leave their bytes where they lie.
    zero_copy: Threshold,
    /// Since when no notice of such sends has come, ns.
    unnoticed_since_ns: Option<u64>,
    /// On the list of lanes that await notices.
    pub(crate) is_awaiting: bool,
    /// Answers that it has no room for are counted.
    pub(crate) is_behind: bool,
    /// Since when, at the earliest, its peer owes data that it was asked for, ns.
    pub(crate) asked_since_ns: Option<u64>,
    /// Bytes received when that was last looked at while others waited for buffers, and when that was, ns.
    pub(crate) progress: (u64, u64),
    /// Its peer has let so much time pass that its association ends with it.
    pub(crate) is_expelled: bool,
    /// When it came into its state, ns.
    pub(crate) state_since_ns: u64,
    /// When its timer rings, ns; 0 if none is set.
    pub(crate) timer_ns: u64,
    /// Whether it is to be closed once nothing of it runs, by order of the control plane.
    pub(crate) is_ending: bool,
    /// What it did lately.
    pub(crate) activity: Activity,
    /// Whether no queue belongs to it: it is among those of which only so many may be.
    pub(crate) is_unconnected: bool,
}

/// What a lane did lately, for the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Nothing since it has given its memory back.
    Idle,
    /// Nothing since the last sweep.
    Resting,
    /// It took in commands.
    Active,
}

/// What a flush left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Everything is sent.
    Empty,
    /// A turn has room for no more: the rest is for the next one.
    Left,
    /// The socket is full.
    Blocked,
    /// The connection is broken.
    Broken,
}

impl Lane {
    pub(crate) fn new(
        id: LaneId,
        socket: SocketId,
        settings: QueueSettings,
        policy: Policy,
        now_ns: u64,
    ) -> Self {
        Self {
            id,
            socket: Some(socket),
            queue: ControllerQueue::new(settings),
            state: LaneState::Initialising,
            listener: 0,
            peer: None,
            local: None,
            qid: Qid::ADMIN,
            subsystem: None,
            association: None,
            counters: Arc::default(),
            napi: None,
            is_placed: false,
            watch: Stopwatch::default(),
            tickets: Vec::new(),
            in_flight: 0,
            pairs: None,
            is_plain: true,
            held: None,
            backlog: Vec::new(),
            doorbell: Doorbell::new(policy),
            brought_count: 0,
            failures: Vec::new(),
            is_dirty: false,
            pdu_since_ns: None,
            blocked_since_ns: None,
            zero_copy: Threshold::NEVER,
            unnoticed_since_ns: None,
            is_awaiting: false,
            is_behind: false,
            asked_since_ns: None,
            progress: (0, 0),
            is_expelled: false,
            state_since_ns: now_ns,
            timer_ns: 0,
            is_ending: false,
            activity: Activity::Idle,
            is_unconnected: false,
        }
    }

    /// Its Connect was accepted.
    pub(crate) fn establish(&mut self, established: Established, now_ns: u64) {
        self.queue.establish(established.entries, established.is_flow_control_disabled);
        if !established.qid.is_admin() {
            self.queue.set_in_capsule_bytes(established.in_capsule_bytes);
        }
        self.qid = established.qid;
        self.subsystem = established.subsystem.filter(|_| !established.qid.is_admin());
        self.association = Some(established.association);
        self.set_doorbell(established.doorbell);
        self.enter(LaneState::Live, now_ns);
    }

    /// Changes when what waits to be sent leaves, from its next look on.
    pub(crate) fn set_doorbell(&mut self, policy: Policy) {
        self.doorbell.set_policy(policy);
    }

    /// From now on its sends may leave their bytes where they lie.
    pub(crate) fn set_zero_copy<I: Io<Message>>(&mut self, io: &mut I, policy: ZeroCopy) {
        let threshold = Threshold::new(policy, stays_on_this_machine(self.local, self.peer));
        let Some(socket) = self.socket.filter(|_| threshold.is_on()) else { return };
        if io.allow_zero_copy(socket) {
            self.zero_copy = threshold;
        } else {
            tracing::debug!(peer = ?self.peer, "no zero-copy on this socket");
        }
    }

    pub(crate) fn enter(&mut self, state: LaneState, now_ns: u64) {
        self.state = state;
        self.state_since_ns = now_ns;
    }

    /// Whether commands that arrive are taken in.
    pub(crate) fn takes_commands(&self) -> bool {
        !matches!(self.state, LaneState::Terminating | LaneState::Draining) && !self.is_ending
    }

    /// Whether payloads must be stable copies: a data digest covers the bytes, which must not change between digest and send.
    #[inline]
    pub(crate) fn needs_stable_copy(&self) -> bool {
        self.queue.agreement().digests.contains(Digests::DATA)
    }

    /// The command under way in a slot.
    pub(crate) fn ticket(&self, slot: Slot) -> Option<Ticket> {
        self.tickets.get(slot.index()).copied().flatten()
    }

    pub(crate) fn set_ticket(&mut self, slot: Slot, ticket: Option<Ticket>) {
        if self.tickets.len() <= slot.index() {
            self.tickets.resize(slot.index() + 1, None);
        }
        self.tickets[slot.index()] = ticket;
    }

    /// All commands under way.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.tickets.iter().copied().flatten()
    }

    /// Takes them out.
    pub(crate) fn take_tickets(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.tickets).into_iter().flatten().collect()
    }

    /// Remembers a failed command for the error log.
    pub(crate) fn on_failure(&mut self, failure: Failure) {
        self.counters.failed_count.add(1);
        if self.failures.len() < FAILURE_COUNT_MAX {
            self.failures.push(failure);
        }
    }

    /// Whether what waits is not to wait for the end of the turn.
    #[inline]
    pub(crate) fn is_full(&mut self) -> bool {
        let caravan = self.queue.caravan();
        self.doorbell.is_full(caravan.waiting_command_count(), caravan.waiting_bytes())
    }

    /// Whether what waits is to leave at the end of this turn.
    pub(crate) fn is_due(&mut self, now_ns: u64) -> bool {
        let in_flight = self.queue.outstanding();
        let caravan = self.queue.caravan();
        let (commands, bytes) = (caravan.waiting_command_count(), caravan.waiting_bytes());
        let may_wait = self.state == LaneState::Live && !self.qid.is_admin();
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

    /// Sends what waits, as far as the socket takes it and a turn has room for.
    pub(crate) fn flush<I: Io<Message>>(&mut self, io: &mut I) -> Flushed {
        let Some(socket) = self.socket else { return Flushed::Empty };
        let caravan = self.queue.caravan();
        let mut room = TURN_BYTES_MAX;
        loop {
            let pdu_count = caravan.waiting_pdu_count();
            if caravan.ring() {
                self.brought_count = 0;
                self.doorbell.on_rung();
                self.counters.on_rung(pdu_count, &self.doorbell.counters());
                if self.watch.stage() == Stage::Doorbell {
                    self.watch.on_rung(&self.counters.phases, io.clock_ns());
                }
            }
            if !caravan.is_leaving() {
                self.blocked_since_ns = None;
                return Flushed::Empty;
            }
            if room == 0 {
                self.blocked_since_ns = None;
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
                        let whole_end = range.end;
                        if range.len() > WHOLE_BYTES_MAX && length + range.len() > room {
                            // Where a block ends: memory of a namespace may change before the rest is sent.
                            let end = (range.start + room.saturating_sub(length)) / CUT_BYTES * CUT_BYTES;
                            let least = if count == 0 {
                                (range.start / CUT_BYTES + 1) * CUT_BYTES
                            } else {
                                range.start
                            };
                            range.end = range.end.min(end.max(least));
                        }
                        let is_cut = range.end < whole_end;
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
                (io.send(socket, segments), false)
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
                        self.unnoticed_since_ns.get_or_insert(io.now_ns());
                    }
                    self.counters.sent_bytes.add(sent as u64);
                    room = room.saturating_sub(sent);
                    if sent < length {
                        self.counters.blocked_count.add(1);
                        self.blocked_since_ns = Some(io.now_ns());
                        keep_interrupted(caravan);
                        io.await_writable(socket);
                        return Flushed::Blocked;
                    }
                    if self.watch.stage() == Stage::Send && !caravan.is_leaving() {
                        self.watch.on_taken(&self.counters.phases, io.clock_ns());
                    }
                }
                Sent::Blocked => {
                    self.counters.blocked_count.add(1);
                    self.blocked_since_ns.get_or_insert(io.now_ns());
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

    /// Lets go of what the kernel does not read any more.
    pub(crate) fn take_notices<I: Io<Message>>(&mut self, io: &mut I) {
        let Some(socket) = self.socket else { return };
        let caravan = self.queue.caravan();
        while caravan.awaited_count() > 0
            && let Some(notice) = io.next_notice(socket)
        {
            caravan.on_notice(notice.first, notice.last);
            caravan.release(drop);
            let awaited_count = caravan.awaited_count();
            self.unnoticed_since_ns = (awaited_count > 0).then(|| io.now_ns());
            self.counters.on_notice(notice, awaited_count);
            if self.zero_copy.on_notice(notice.send_count(), notice.is_copied) {
                tracing::debug!(peer = ?self.peer, "the kernel copies what is sent without a copy: no more of it");
            }
        }
    }

    /// Closes its socket. What the kernel may still read goes to the reactor, which keeps it until the notices have come.
    pub(crate) fn close<I: Io<Message>>(&mut self, io: &mut I) {
        let Some(socket) = self.socket.take() else { return };
        let (awaited_count, kept) = self.queue.caravan().take_kept();
        self.unnoticed_since_ns = None;
        if awaited_count == 0 {
            return io.close(socket);
        }
        let mut held = Held::new(awaited_count);
        kept.into_iter().for_each(|(headers, payloads)| held.push(headers, payloads));
        io.close_holding(socket, held);
    }

    /// When this lane's patience with its peer ends next, ns, and with what.
    pub(crate) fn deadline(&self, timeouts: &LaneTimeouts) -> Option<(u64, &'static str)> {
        let since = |since_ns: u64, wait_ns: u64| since_ns.saturating_add(wait_ns);
        let state = match self.state {
            LaneState::Initialising => {
                Some((since(self.state_since_ns, timeouts.connect_ns), "no ICReq in time"))
            }
            LaneState::Unconnected { .. } => {
                Some((since(self.state_since_ns, timeouts.connect_ns), "no Connect in time"))
            }
            LaneState::Terminating => {
                Some((since(self.state_since_ns, timeouts.terminate_ns), "not closed in time"))
            }
            LaneState::Connecting | LaneState::Live | LaneState::Draining => None,
        };
        let pdu = self.pdu_since_ns.map(|at_ns| (since(at_ns, timeouts.pdu_ns), "PDU not complete in time"));
        let send = self.blocked_since_ns.map(|at_ns| (since(at_ns, timeouts.send_ns), "reads nothing"));
        let notice =
            self.unnoticed_since_ns.map(|at_ns| (since(at_ns, timeouts.send_ns), "acknowledges nothing"));
        let data = self.asked_since_ns.map(|at_ns| (since(at_ns, timeouts.data_ns), "data not sent in time"));
        [state, pdu, send, notice, data].into_iter().flatten().min_by_key(|(deadline_ns, _)| *deadline_ns)
    }

    /// Gives memory back that an idle lane does not need. Says whether that was possible.
    pub(crate) fn shrink(&mut self) -> bool {
        if self.held.is_some() || self.pairs.is_some() || self.tickets.iter().any(Option::is_some) {
            return false;
        }
        self.queue.shrink();
        self.tickets = Vec::new();
        self.backlog = Vec::new();
        true
    }
}

/// Whether every payload on its way stays as it is until the kernel has read it for the last time, which is when the peer has acknowledged it.
fn is_stable(caravan: &proto::Caravan<Payload>) -> bool {
    caravan.pieces().all(|piece| match piece {
        Piece::Bytes(_) => true,
        Piece::Payload(payload, _) => payload.is_stable(),
    })
}

/// Whether buffers can be done without for longer: peers that acknowledge nothing hold at most half of them.
fn has_plenty(pool: &Pool) -> bool {
    pool.free_bytes() >= pool.capacity_bytes() / 2
}

/// The digest of a range of a payload.
pub(crate) fn payload_digest(payload: &Payload, range: std::ops::Range<usize>) -> u32 {
    let mut digest = DataDigest::new();
    payload.for_each_piece(range, |piece| digest.update(piece));
    digest.finish()
}

/// The socket took a part of a payload. If the rest lies in namespace memory, what is left of that block is copied now. Such a caravan is not
/// [stable](is_stable), so no part of it was sent without a copy, and none is kept for the kernel.
fn keep_interrupted(caravan: &mut proto::Caravan<Payload>) {
    let rest = caravan.interrupted().and_then(|(payload, range)| payload.rest(range));
    if let Some(rest) = rest {
        caravan.replace_interrupted(rest);
    }
}
