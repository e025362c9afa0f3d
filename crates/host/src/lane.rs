//! A lane: one I/O queue pair on one connection, owned by one thread. The fast way to a namespace.
//!
//! ```text
//! submit … submit ─▶ ring (one send) ─▶ poll (one receive) ─▶ completions ─▶ submit …
//! ```
//!
//! In steady state a command costs no allocation, no lock, no atomic operation and no system call of its own: what is submitted
//! between two polls leaves in one send, and one receive brings what has come. A lane only moves while its owner calls it: it
//! connects, receives and reconnects within [`poll`](Lane::poll) and [`wait`](Lane::wait).

mod lingering;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use proto::doorbell::{Doorbell, DoorbellCounters, Policy};
use proto::handshake::Agreement;
use proto::host_queue::DataBuffer;
use proto::receive::ReceiveTurn;
use proto::zero_copy::{Policy as ZeroCopy, Threshold};
use proto::{ReceivePlan, SendBudget, Violation};
use reactor::{Address as Post, Arrival, Asked, BusyPoll, Mailbox, Received, Socket, SpinBudget};
use wire::id::Qid;

use self::lingering::{LOOK_NS, LingeringClose, Then, zero_copy_on};
use crate::attachment::Attachment;
use crate::connect::{Clock, Dialer, Dialled, Interest, Staging, reset, send, sleep};
use crate::error::{Error, LinkError};
use crate::flush_epoch::FlushEpoch;
use crate::lane_core::{LaneAction, LaneCore, LaneSettings};
use crate::messages::{AssociationMessage, LaneMessage};
use crate::options::{Options, ns};
use crate::phases::{Phases, SAMPLE_INTERVAL, Stage, Stopwatch};
use crate::queue_map::LaneClass;
use crate::shared_association::QueueReservation;
use crate::submit::{Command, Completion, Refused, RefusedReason};

/// What a lane has done, for counters and studies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneCounters {
    /// Commands submitted.
    pub commands: u64,
    /// Commands ended.
    pub completions: u64,
    /// Caravans: doorbells rung.
    pub caravans: u64,
    /// Sends: caravans, or parts of them.
    pub sends: u64,
    /// Receives that brought something.
    pub receives: u64,
    /// Receives that brought nothing.
    pub dry_receives: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Of these, bytes received where they belong.
    pub in_place_bytes: u64,
    /// Sends that left their bytes where they lay.
    pub zero_copy_sends: u64,
    /// Bytes of these.
    pub zero_copy_bytes: u64,
    /// Of these sends, those whose bytes the kernel copied after all.
    pub zero_copy_copied: u64,
    /// Of these sends, those whose bytes the kernel may still read.
    pub zero_copy_awaited: u64,
    /// Times that the socket took only a part.
    pub blocks: u64,
    /// Polls of waits that found nothing and did not sleep. In a [`LaneSet`](crate::LaneSet) the first lane counts for all.
    pub spins: u64,
    /// Sleeps. In a [`LaneSet`](crate::LaneSet) the first lane counts for all.
    pub sleeps: u64,
    /// Connections lost.
    pub losses: u64,
    /// The device queue (NAPI id) that the connection's packets came in through when it was made; 0 for none.
    pub napi_id: u32,
    /// Connections whose socket polls its device.
    pub busy_polled_links: u64,
    /// Connections whose socket was refused that.
    pub busy_poll_refusals: u64,
    /// Doorbells rung by reason, and time waited for them.
    pub doorbell: DoorbellCounters,
    /// Where the time of commands went, told from one in 64.
    pub phases: Phases,
}

/// One I/O queue pair on one connection. `B` is what its commands read into and write from.
#[derive(Debug)]
pub struct Lane<B = Vec<u8>> {
    core: LaneCore<B>,
    link: Link,
    /// The socket took less than it was given: ask when it is writable.
    is_blocked: bool,
    /// The last poll ended before the socket was empty.
    has_more: bool,
    /// What finds the lane idle leaves at once.
    sends_inline: bool,
    /// Of the poll class: never slept on.
    is_polled: bool,
    receive: ReceivePlan,
    zero_copy_policy: ZeroCopy,
    /// What became of it on this connection.
    zero_copy: Threshold,
    connect_timeout_ns: u64,
    doorbell: Doorbell,
    busy_poll: BusyPoll,
    spin: SpinBudget,
    clock: Clock,
    polled_ns: u64,
    /// When the last completion came: what a wait spins from.
    worked_ns: u64,
    mailbox: Mailbox<LaneMessage>,
    association: Post<AssociationMessage>,
    counters: LaneCounters,
    watch: Stopwatch,
    last_loss: Option<LinkError>,
    over: Option<Arc<Error>>,
    /// Counts sockets, for those who watch them.
    link_count: u64,
    /// A lane that never was does not end its association.
    was_live: bool,
    /// Our number is ours, and the association lives, as long as we do.
    claim: QueueReservation,
}

#[derive(Debug)]
enum Link {
    None,
    Dialling(Dialer),
    Connected(Socket),
    /// The kernel still reads what was sent.
    Lingering(Box<LingeringClose>),
}

impl<B: DataBuffer> Lane<B> {
    pub(crate) fn new(
        options: &Options,
        clock: Clock,
        mailbox: Mailbox<LaneMessage>,
        association: Post<AssociationMessage>,
        claim: QueueReservation,
    ) -> Self {
        let tuning = &options.tuning;
        let settings = LaneSettings {
            qid: claim.qid(),
            depth: options.depth(),
            offer: options.offer(),
            in_capsule_bytes_max: tuning.in_capsule_bytes_max,
            connect_timeout_ns: ns(options.connect_timeout),
            command_timeout_ns: ns(options.command_timeout),
            retry_limit: tuning.retries,
            path_timeout_ns: ns(tuning.path_timeout),
            fast_fail_ns: tuning.fast_io_fail.map(ns),
            replay: options.replay,
        };
        Self {
            core: LaneCore::new(settings),
            link: Link::None,
            is_blocked: false,
            has_more: false,
            sends_inline: tuning.inline_send,
            is_polled: claim.class() == LaneClass::Poll,
            receive: ReceivePlan::for_host(tuning.receive, tuning.in_place_bytes as usize),
            zero_copy_policy: tuning.zero_copy,
            zero_copy: Threshold::NEVER,
            connect_timeout_ns: settings.connect_timeout_ns,
            doorbell: Doorbell::new(tuning.doorbell_of(claim.class())),
            busy_poll: tuning.busy_poll,
            spin: SpinBudget::new(ns(tuning.spin)).with_floor(tuning.busy_poll.wait_ns()),
            clock,
            polled_ns: clock.now_ns(),
            worked_ns: 0,
            mailbox,
            association,
            counters: LaneCounters::default(),
            watch: Stopwatch::default(),
            last_loss: None,
            over: None,
            link_count: 0,
            was_live: false,
            claim,
        }
    }

    /// Connects for the first time; gives the error if that fails.
    pub(crate) fn connect(mut self, attachment: &Arc<Attachment>) -> Result<Self, Error> {
        self.core.attach(attachment, self.clock.now_ns());
        self.last_loss = None;
        loop {
            self.poll_with(&mut |_| {});
            if self.is_live() {
                self.was_live = true;
                return Ok(self);
            }
            if let Some(over) = &self.over {
                return Err(Error::clone(over));
            }
            if let Some(cause) = self.last_loss.take() {
                let context = attachment.link_context(self.qid());
                return Err(Error::Link { context: Box::new(context), cause });
            }
            self.sleep(self.connect_timeout_ns, None);
        }
    }

    fn qid(&self) -> Qid {
        self.core.qid()
    }

    /// The lane's number, from 1.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.qid().get()
    }

    /// What commands it is for.
    #[must_use]
    pub fn class(&self) -> LaneClass {
        self.claim.class()
    }

    /// Whether commands go out at once; otherwise they wait for the association to come back.
    #[inline]
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.core.is_live()
    }

    /// Why the association has ended for good, if it has.
    #[must_use]
    pub fn over(&self) -> Option<&Error> {
        self.over.as_deref()
    }

    /// Commands that can be outstanding at once: fewer than asked for if the controller takes fewer.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.core.depth()
    }

    /// Commands submitted whose completion has not been taken.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.core.outstanding()
    }

    /// Whether so many commands can be submitted now.
    #[must_use]
    pub fn has_room(&self, count: u16) -> bool {
        self.core.has_room(count)
    }

    /// What was agreed on the connection.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        self.core.agreement()
    }

    /// The target's address, once there was one.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.core.attachment().map(|attachment| attachment.peer)
    }

    /// Where the last packet of the connection came in, if there is one.
    #[must_use]
    pub fn arrival(&self) -> Arrival {
        match &self.link {
            Link::Connected(socket) => socket.arrival(),
            Link::None | Link::Dialling(_) | Link::Lingering(_) => Arrival::default(),
        }
    }

    /// What the lane has done so far.
    #[must_use]
    pub fn counters(&self) -> LaneCounters {
        LaneCounters {
            caravans: self.core.caravan_count(),
            doorbell: self.doorbell.counters(),
            phases: self.watch.phases(),
            zero_copy_awaited: self.core.awaited_count().into(),
            ..self.counters
        }
    }

    /// When the last poll looked, ns since the association was made: all its completions came then.
    #[inline]
    #[must_use]
    pub fn polled_ns(&self) -> u64 {
        self.polled_ns
    }

    /// Sets when what is submitted leaves.
    pub fn set_doorbell(&mut self, policy: Policy) {
        self.doorbell.set_policy(policy);
    }

    /// Sets the longest time a wait spins; see [`Tuning::spin`](crate::Tuning::spin).
    pub fn set_spin(&mut self, limit: Duration) {
        self.spin = SpinBudget::new(ns(limit)).with_floor(self.busy_poll.wait_ns());
    }

    /// Shares with other lanes, whose user is the same, up to where flushes vouch.
    pub(crate) fn share_flush_epoch(&mut self, flush_epoch: FlushEpoch) {
        self.core.share_flush_epoch(flush_epoch);
    }

    /// Submits a command; `user` comes back with its completion. It leaves with the next [`ring`](Self::ring), or in a poll or wait when
    /// the [policy](Self::set_doorbell) says so, or at once with [`Policy::Immediate`]. While the association is lost it waits until it is back.
    ///
    /// # Errors
    /// [`Refused`], with the buffer: the lane is full, the buffer has not the command's length, or the association has
    /// ended.
    #[inline]
    pub fn submit(&mut self, command: Command, buffer: Option<B>, user: u64) -> Result<(), Refused<B>> {
        if self.counters.commands.is_multiple_of(SAMPLE_INTERVAL) {
            return self.submit_timed(command, buffer, user);
        }
        self.core.submit(command, buffer, user)?;
        self.counters.commands += 1;
        self.ring_if_due_at_once();
        Ok(())
    }

    /// As [`submit`](Self::submit), following the command with a clock if no other is followed and nothing holds it up.
    #[cold]
    fn submit_timed(&mut self, command: Command, buffer: Option<B>, user: u64) -> Result<(), Refused<B>> {
        if self.watch.stage() == Stage::Idle && self.core.goes_out_at_once(&command) {
            self.core.submit_timed(command, buffer, user)?;
            self.watch.start(self.clock.now_ns());
        } else {
            self.core.submit(command, buffer, user)?;
        }
        self.counters.commands += 1;
        self.ring_if_due_at_once();
        Ok(())
    }

    /// Submits two commands, one directly after the other: a fused pair. Each has its own completion.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), with the first buffer that was refused and the other one; nothing was submitted then.
    pub fn submit_pair(
        &mut self,
        pair: [Command; 2],
        buffers: [B; 2],
        users: [u64; 2],
    ) -> Result<(), (RefusedReason, [B; 2])> {
        self.core.submit_pair(pair, buffers, users)?;
        self.counters.commands += 2;
        self.ring_if_full();
        Ok(())
    }

    /// Sends a single command inline where that is wanted; otherwise only what is full leaves before the end of a turn.
    #[inline]
    fn ring_if_due_at_once(&mut self) {
        if self.sends_inline && self.core.outstanding() == 1 {
            self.ring();
        } else {
            self.ring_if_full();
        }
    }

    /// Some caravans do not wait for the end of a turn.
    #[inline]
    fn ring_if_full(&mut self) {
        if let Some((commands, bytes)) = self.core.waiting()
            && self.doorbell.is_full(commands, bytes)
        {
            self.ring_now();
        }
    }

    /// Cancels the commands submitted as `user`. Each still ends in a completion, with
    /// [`Failure::Cancelled`](crate::Failure::Cancelled) if it was stopped; its buffer comes back with that, which is when
    /// the controller has answered or the connection is closed. Of a pair that has not left yet both halves end. Says whether there was
    /// such a command.
    pub fn cancel(&mut self, user: u64) -> bool {
        let found = self.core.cancel(user);
        self.act();
        found
    }

    /// Rings the doorbell: sends what was submitted, as far as the socket takes it.
    #[inline]
    pub fn ring(&mut self) {
        if self.core.has_waiting() {
            self.doorbell.on_asked();
        }
        self.ring_now();
    }

    #[inline]
    fn ring_now(&mut self) {
        self.doorbell.on_rung();
        if let Err(cause) = self.flush() {
            self.lose(cause);
        }
    }

    /// As [`ring`](Self::ring), if the doorbell's policy says so.
    #[inline]
    pub(crate) fn ring_if_due(&mut self, now_ns: u64) {
        if self.is_due(now_ns) {
            self.ring_now();
        }
    }

    /// Whether what waits is to leave now; what is on its way goes on in any case.
    #[inline]
    fn is_due(&mut self, now_ns: u64) -> bool {
        if !self.core.has_waiting() {
            return true;
        }
        let Some((commands, bytes)) = self.core.waiting() else {
            self.doorbell.on_asked();
            return true;
        };
        let in_flight = u32::from(self.core.outstanding()).saturating_sub(commands);
        self.doorbell.rings(commands, bytes, in_flight, now_ns)
    }

    /// Takes completions without waiting: sends what was submitted, receives once, looks at the time. They are appended to
    /// `completions`; gives their number.
    #[inline]
    pub fn poll(&mut self, completions: &mut Vec<Completion<B>>) -> usize {
        self.poll_with(&mut |completion| completions.push(completion))
    }

    /// As [`poll`](Self::poll), handing each completion to `each`.
    pub fn poll_with(&mut self, each: &mut impl FnMut(Completion<B>)) -> usize {
        let mut count = 0u32;
        let mut sink = |completion| {
            count += 1;
            each(completion);
        };
        self.polled_ns = self.clock.now_ns();
        // First, so that nothing is sent on an association that is known to be lost.
        while let Some(message) = self.mailbox.next_message() {
            self.on_message(message);
        }
        if let Link::Connected(_) = self.link
            && let Err(cause) = self.exchange(&mut sink)
        {
            self.lose(cause);
        }
        // Last, so that nothing is late whose end has come.
        self.tend();
        if self.core.has_done() {
            self.core.drain(&mut sink);
        }
        if count > 0 {
            self.counters.completions += u64::from(count);
            self.worked_ns = self.polled_ns;
            self.doorbell.on_brought(count, self.polled_ns);
        }
        count as usize
    }

    /// Waits for completions, at most `timeout`: spins as long as that has paid lately, then sleeps. Gives their
    /// number, 0 if the time is over or nothing is outstanding.
    pub fn wait(&mut self, completions: &mut Vec<Completion<B>>, timeout: Duration) -> usize {
        self.wait_with(&mut |completion| completions.push(completion), timeout)
    }

    /// As [`wait`](Self::wait), handing each completion to `each`.
    pub fn wait_with(&mut self, each: &mut impl FnMut(Completion<B>), timeout: Duration) -> usize {
        let start_ns = self.clock.now_ns();
        let until_ns = start_ns.saturating_add(ns(timeout));
        self.worked_ns = self.worked_ns.max(start_ns);
        loop {
            let count = self.poll_with(each);
            if count > 0 || self.outstanding() == 0 || self.polled_ns >= until_ns {
                return count;
            }
            if self.may_spin(self.polled_ns.saturating_sub(self.worked_ns)) {
                self.spin();
            } else {
                self.sleep(until_ns - self.polled_ns, None);
            }
        }
    }

    /// Whether a wait that has lasted so long should spin on.
    #[inline]
    pub(crate) fn may_spin(&self, idle_ns: u64) -> bool {
        if self.must_spin() {
            return true;
        }
        let is_worth_it = self.spin.allows(idle_ns) || self.doorbell.is_waiting() || self.core.is_leaving();
        is_worth_it && matches!(self.link, Link::Connected(_)) && !self.is_blocked
    }

    /// Whether somebody polls for a command that is out: nothing else would tell of its end.
    #[inline]
    pub(crate) fn must_spin(&self) -> bool {
        self.is_polled && self.is_live() && self.outstanding() > 0
    }

    /// A wait goes on without sleeping.
    #[inline]
    pub(crate) fn spin(&mut self) {
        self.counters.spins += 1;
        std::hint::spin_loop();
    }

    /// A wait of this lane and others is about to sleep.
    pub(crate) fn count_sleep(&mut self) {
        self.counters.sleeps += 1;
    }

    /// Sleeps until something can be done: on the socket, by the association, at a deadline, or on `other`.
    pub(crate) fn sleep(&mut self, timeout_ns: u64, other: Option<Interest<'_>>) {
        self.mailbox.announce_sleep();
        if let Some(message) = self.mailbox.next_message() {
            self.mailbox.announce_awake();
            self.on_message(message);
            return;
        }
        let now_ns = self.clock.now_ns();
        let deadline_ns = [self.core.next_deadline(), self.dial_deadline_ns()].into_iter().flatten().min();
        let timeout_ns = deadline_ns.map_or(timeout_ns, |at| timeout_ns.min(at.saturating_sub(now_ns)));
        let mailbox = Interest { fd: self.mailbox.as_fd(), writable: false, readable: true };
        let is_woken = sleep([Some(mailbox), self.interest(), other], timeout_ns);
        self.counters.sleeps += 1;
        self.mailbox.announce_awake();
        if is_woken {
            self.spin.on_woken(self.clock.now_ns().saturating_sub(now_ns));
        }
    }

    /// What to wait for on the lane's socket; nothing watches that of a poll lane, once it is live.
    pub(crate) fn interest(&self) -> Option<Interest<'_>> {
        match &self.link {
            Link::None | Link::Lingering(_) => None,
            Link::Dialling(dialer) => dialer.interest(),
            Link::Connected(_) if self.is_polled && self.is_live() => None,
            Link::Connected(socket) => {
                Some(Interest { fd: socket.as_fd(), writable: self.is_blocked, readable: true })
            }
        }
    }

    /// Whether the kernel still reads what was sent: it tells as of an error when it is done.
    pub(crate) fn awaits_notices(&self) -> bool {
        self.core.awaited_count() > 0
    }

    /// Grows with each new socket.
    pub(crate) fn link_count(&self) -> u64 {
        self.link_count
    }

    /// Whether the last poll left something in the socket, or something that it would take.
    pub(crate) fn has_more(&self) -> bool {
        (self.has_more || (self.core.is_leaving() && !self.is_blocked)) && self.is_live()
    }

    /// Whether something waits for the doorbell.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.core.has_waiting()
    }

    /// Takes a message of the association. Says whether there was one.
    pub(crate) fn take_message(&mut self) -> bool {
        let message = self.mailbox.next_message();
        let is_there = message.is_some();
        message.into_iter().for_each(|message| self.on_message(message));
        is_there
    }

    pub(crate) fn mailbox(&self) -> &Mailbox<LaneMessage> {
        &self.mailbox
    }

    /// When the lane must be polled at the latest, ns of its clock.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        [self.core.next_deadline(), self.dial_deadline_ns()].into_iter().flatten().min()
    }

    fn dial_deadline_ns(&self) -> Option<u64> {
        match &self.link {
            Link::Dialling(dialer) => dialer.deadline_ns(),
            Link::Lingering(_) => Some(self.polled_ns.saturating_add(LOOK_NS)),
            Link::None | Link::Connected(_) => None,
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn spin_mut(&mut self) -> &mut SpinBudget {
        &mut self.spin
    }

    /// Whether there is anything to do for a poll but to receive.
    pub(crate) fn wants_poll(&self) -> bool {
        self.core.has_done() || !self.core.is_live()
    }

    /// Sends what waits, receives what has come.
    #[inline]
    fn exchange(&mut self, sink: &mut impl FnMut(Completion<B>)) -> Result<(), LinkError> {
        if self.is_due(self.polled_ns) {
            self.flush()?;
        }
        self.receive(sink)?;
        // What was received may have let more go: write data, commands that waited for room.
        if self.core.waiting().is_none() {
            self.flush()?;
        }
        if self.core.awaited_count() > 0 {
            self.take_notices();
        }
        if self.core.has_finished() {
            self.core.on_bytes(&mut &[][..], self.polled_ns, sink)?;
        }
        Ok(())
    }

    /// Sends as much as the socket takes, and a turn has room for.
    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        let Link::Connected(socket) = &self.link else { return Ok(()) };
        let mut budget = SendBudget::TURN;
        while self.core.ring() {
            if budget.is_spent() {
                break;
            }
            // What waits behind a caravan that is on its way is not rung for.
            if self.watch.stage() == Stage::Doorbell && !self.core.has_waiting_behind() {
                self.watch.on_rung(self.clock.now_ns());
            }
            let core = &self.core;
            let is_zero_copy = |bytes| self.zero_copy.takes(bytes) && core.is_stable();
            let each_piece = |each: &mut dyn FnMut(_) -> bool| core.for_each_piece(each);
            let progress = send(socket, core.piece_count(), &budget, each_piece, is_zero_copy)?;
            if progress.is_zero_copy || self.core.is_kept() {
                self.core.on_sent_zero_copy(progress.sent_bytes, progress.is_zero_copy);
                self.counters.count_zero_copy(progress);
            } else {
                self.core.on_sent(progress.sent_bytes);
            }
            budget.on_sent(progress.sent_bytes);
            self.counters.sends += 1;
            self.counters.sent_bytes += progress.sent_bytes as u64;
            self.is_blocked = progress.is_blocked;
            if self.watch.stage() == Stage::Send && !self.core.is_leaving() {
                self.watch.on_taken(self.clock.now_ns());
            }
            if progress.is_blocked {
                self.counters.blocks += 1;
                break;
            }
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, sink: &mut impl FnMut(Completion<B>)) -> Result<(), LinkError> {
        let mut staging = Staging::take();
        self.has_more = false;
        let mut turn = self.receive.turn();
        while turn.goes_on() {
            self.receive_once(staging.bytes(), &mut turn, sink)?;
        }
        self.has_more = turn.has_more();
        Ok(())
    }

    #[inline]
    fn receive_once(
        &mut self,
        staging: &mut [u8],
        turn: &mut ReceiveTurn,
        sink: &mut impl FnMut(Completion<B>),
    ) -> Result<(), LinkError> {
        let Link::Connected(socket) = &self.link else {
            turn.on_dry();
            return Ok(());
        };
        let staging_bytes = self.receive.staging_bytes(staging.len(), || self.core.wanted_bytes());
        let staging = &mut staging[..staging_bytes];
        let (received, extent) = self.receive.receive(self.core.place(), staging, |into| match into {
            [one] => socket.receive(one),
            several => socket.receive_vectored(several),
        });
        let Some(count) = self.count_received(received)? else {
            turn.on_dry();
            return Ok(());
        };
        turn.on_received(extent, count);
        let placed = extent.in_place(count);
        if placed > 0 {
            self.counters.in_place_bytes += placed as u64;
            self.core.on_placed(placed)?;
        }
        let mut input = &staging[..count - placed];
        self.take_in(&mut input, sink)?;
        self.receive.on_taken_in(extent, count, self.core.place().map_or(0, |place| place.len()));
        Ok(())
    }

    /// How many bytes a receive has brought, if any.
    #[inline]
    fn count_received(&mut self, received: Received) -> Result<Option<usize>, LinkError> {
        let count = match received {
            Received::Bytes(count) => count,
            Received::Dry => {
                self.counters.dry_receives += 1;
                return Ok(None);
            }
            Received::Ended => return Err(LinkError::Closed { during: self.core.doing() }),
            Received::Failed(error) => return Err(error.into()),
        };
        self.counters.receives += 1;
        self.counters.received_bytes += count as u64;
        if self.watch.stage() == Stage::Away {
            self.watch.on_received(self.clock.now_ns());
        }
        Ok(Some(count))
    }

    #[inline]
    fn take_in(&mut self, input: &mut &[u8], sink: &mut impl FnMut(Completion<B>)) -> Result<(), LinkError> {
        self.core.on_bytes(input, self.polled_ns, sink)?;
        if self.watch.stage() != Stage::Idle && self.core.take_timed_done() {
            self.watch.stop(self.clock.now_ns());
        }
        Ok(())
    }

    /// Does what the lane's machine asks for.
    #[inline]
    fn tend(&mut self) {
        if let Err(cause) = self.core.on_time(self.polled_ns) {
            self.lose(cause);
        }
        match self.link {
            Link::Dialling(_) => self.dial(),
            Link::Lingering(_) => self.linger(),
            Link::None | Link::Connected(_) => {}
        }
        self.act();
    }

    #[cold]
    fn on_message(&mut self, message: LaneMessage) {
        if let Link::Lingering(lingering) = &mut self.link {
            return lingering.messages.push(message);
        }
        match message {
            LaneMessage::Up(attachment) => {
                if attachment.queue_pairs >= self.number() {
                    self.core.attach(&attachment, self.clock.now_ns());
                } else {
                    let (lane, granted) = (self.number(), attachment.queue_pairs);
                    self.end(Arc::new(Error::TooFewQueues { lane, granted }));
                }
            }
            LaneMessage::Down(generation) => {
                let attachment = self.core.attachment();
                let is_ours = attachment.is_some_and(|attachment| attachment.generation == generation);
                let then = Then::Detach(generation);
                if is_ours { self.give_up(then) } else { self.leave(then) }
            }
            LaneMessage::Inaccessible(inaccessible) => self.core.on_inaccessible(&inaccessible),
            LaneMessage::Over(error) => self.end(error),
        }
        self.act();
    }

    fn end(&mut self, error: Arc<Error>) {
        self.give_up(Then::End(error));
    }

    #[cold]
    fn dial(&mut self) {
        let Link::Dialling(dialer) = &mut self.link else { return };
        match dialer.poll(self.polled_ns) {
            Dialled::Waiting => {}
            Dialled::Connected(socket, _) => {
                self.poll_device_of(&socket);
                self.zero_copy = zero_copy_on(&socket, self.zero_copy_policy);
                self.link = Link::Connected(socket);
                self.link_count += 1;
                self.is_blocked = false;
                self.core.on_connected(self.polled_ns);
                self.ring();
            }
            Dialled::Failed(cause) => self.lose(cause),
        }
    }

    /// Has a new socket poll its device, if that is wanted.
    fn poll_device_of(&mut self, socket: &Socket) {
        match socket.set_busy_poll(self.busy_poll).poll {
            Asked::No => {}
            Asked::Accepted => self.counters.busy_polled_links += 1,
            Asked::Refused(_) => self.counters.busy_poll_refusals += 1,
        }
        self.counters.napi_id = socket.arrival().napi_id.map_or(0, Into::into);
    }

    /// The connection is lost, or to be given up.
    #[cold]
    fn lose(&mut self, cause: LinkError) {
        if let Link::Lingering(_) = self.link {
            return;
        }
        if let LinkError::Violation(violation) = cause {
            self.send_term_req(violation);
        }
        tracing::debug!(lane = self.number(), %cause, "connection lost");
        self.counters.losses += 1;
        self.watch.forget();
        self.last_loss = Some(cause.clone());
        self.give_up(Then::Lose(cause));
    }

    /// Tells the target what it did wrong, if the socket takes it at once.
    fn send_term_req(&self, violation: Violation) {
        if let (Link::Connected(socket), Some(bytes)) = (&self.link, self.core.term_req(violation)) {
            let _ = socket.send(&[reactor::Segment::new(&bytes)], false);
            // A reset would overtake it.
            socket.finish();
        }
    }

    #[inline]
    fn act(&mut self) {
        while let Some(action) = self.core.next_action() {
            self.carry_out(action);
        }
    }

    #[cold]
    fn carry_out(&mut self, action: LaneAction) {
        let generation = self.core.generation();
        match action {
            LaneAction::Open(peer) => {
                self.link = Link::Dialling(Dialer::new([peer], self.connect_timeout_ns));
                self.dial();
            }
            LaneAction::Close => {
                if let Link::Connected(socket) = std::mem::replace(&mut self.link, Link::None) {
                    reset(socket);
                }
                self.is_blocked = false;
            }
            LaneAction::Abort { cid } => {
                self.association.post(AssociationMessage::Abort { generation, qid: self.qid(), cid });
            }
            LaneAction::ReadAna => {
                self.association.post(AssociationMessage::ReadAna { generation });
            }
            LaneAction::Report { .. } if !self.was_live => {}
            LaneAction::Report { generation, cause } => {
                self.association.post(AssociationMessage::LaneLost { generation, cause });
            }
        }
    }
}
