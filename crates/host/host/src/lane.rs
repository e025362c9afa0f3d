//! A lane: one I/O queue pair on one connection, owned by one thread; the fast path to a namespace.

mod connection;
mod counters;
mod event_descriptor;
mod link;
mod tls_buffers;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use host_core::attachment::Attachment;
use host_core::connection_tls::HostKeys;
use host_core::duration::ns;
use host_core::flush_epoch::FlushEpoch;
use host_core::lane_core::{LaneCore, LaneSettings};
use host_core::link_error::LinkError;
use host_core::queue_map::LaneClass;
use host_core::submit::{Command, Completion, Refused, RefusedReason};
use proto::doorbell::{Doorbell, Policy};
use proto::handshake::Agreement;
use proto::host_queue::DataBuffer;
use proto::receive::ReceiveTurn;
use proto::zero_copy::{Policy as ZeroCopy, Threshold};
use proto::{ReceivePlan, SendBudget};
use reactor::{Address as Post, Arrival, BusyPoll, Mailbox, Pause, Received, SpinBudget, Wait};
use wire::id::Qid;

pub use self::counters::LaneCounters;
pub use self::event_descriptor::EventDescriptor;
use self::link::{CloseReason, Link};
use self::tls_buffers::TlsBuffers;
use crate::connect::{Clock, DialSettings, Staging, send};
use crate::error::Error;
use crate::messages::{AssociationMessage, LaneMessage};
use crate::options::Options;
use crate::phases::{SAMPLE_INTERVAL, Stage, Stopwatch};
use crate::shared_association::QueueReservation;
use crate::waiting::{Interest, WaitBeside, WaitEnded, sleep};

/// One I/O queue pair on one connection. `B` is the buffer type of its commands.
///
/// ```text
/// submit … submit ─▶ ring (one send) ─▶ poll (one receive) ─▶ completions ─▶ submit …
/// ```
///
/// # Call order
///
/// A lane makes progress only within calls of its owner: it has no thread, and sends, receives, connects and reconnects
/// in the calls below. Repeat this cycle:
///
/// 1. **Submit** up to [`depth`](Self::depth) commands: [`submit`](Self::submit), or [`submit_pair`](Self::submit_pair)
///    for a fused pair. The lane owns the buffer until the command completes. [`has_room`](Self::has_room) tells
///    whether another command is accepted; a refused command comes back with its buffer.
/// 2. **Send**: [`ring`](Self::ring) sends all submitted commands now. Without it they are sent by the next poll or
///    wait that the [doorbell policy](Self::set_doorbell) allows.
/// 3. **Drain completions**: [`poll`](Self::poll) never blocks, [`wait`](Self::wait) spins, then sleeps, up to a
///    timeout; their `_with` forms call a closure for each completion. A call returns any number of completions, in any
///    order. Receives, timeouts, retries and reconnects happen only here, so call one of them as long as
///    [`outstanding`](Self::outstanding) is not zero.
///
/// Every submitted command completes exactly once, also when the connection is lost, with its buffer. While the
/// association is lost, [`is_live`](Self::is_live) is false and commands wait; [`over`](Self::over) is set once the
/// association ended for good, and every further submission is refused.
///
/// In steady state a command costs no allocation, no lock, no atomic operation and no system call of its own.
///
/// ```no_run
/// use std::time::Duration;
/// use nvlane_host::{Address, Association, Lane, Options};
///
/// let address: Address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:disk".parse()?;
/// let association = Association::connect(&address, Options::default())?;
/// let namespace = association.addressed_namespace()?;
/// let mut lane: Lane = association.lane()?;
///
/// for lba in 0..8 {
///     let buffer = vec![0; namespace.lba_bytes() as usize];
///     lane.submit(namespace.read(lba, 1)?, Some(buffer), lba).expect("the lane has room");
/// }
/// lane.ring();
/// let mut completions = Vec::new();
/// while lane.outstanding() > 0 {
///     lane.wait(&mut completions, Duration::from_secs(1));
///     for completion in completions.drain(..) {
///         println!("block {}: {:?}", completion.user, completion.result);
///     }
/// }
/// # Ok::<(), nvlane_host::Error>(())
/// ```
#[derive(Debug)]
pub struct Lane<B = Vec<u8>> {
    core: LaneCore<B>,
    link: Link,
    /// The socket accepted only a part of the last send: wait until it is writable.
    is_blocked: bool,
    /// The last poll left bytes in the socket.
    has_more: bool,
    /// A command submitted to an idle lane is sent at once.
    sends_inline: bool,
    /// Of the poll class: its owner never sleeps while commands are outstanding.
    is_polled: bool,
    receive: ReceivePlan,
    zero_copy_policy: ZeroCopy,
    /// Size from which on this connection sends without a copy.
    zero_copy: Threshold,
    dial_settings: DialSettings,
    /// For TLS.
    tls_keys: Option<Arc<HostKeys>>,
    doorbell: Doorbell,
    busy_poll: BusyPoll,
    spin: SpinBudget,
    clock: Clock,
    polled_ns: u64,
    tls_buffers: TlsBuffers,
    mailbox: Mailbox<LaneMessage>,
    association: Post<AssociationMessage>,
    counters: LaneCounters,
    watch: Stopwatch,
    last_loss: Option<LinkError>,
    over: Option<Arc<Error>>,
    /// Sockets so far.
    link_count: u64,
    /// The lane was live once. The failure of a first connection does not end the association.
    was_live: bool,
    /// Reserves the lane's number, and keeps the association.
    claim: QueueReservation,
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
            reauthenticate: options.reauthenticate,
            partition_queues: tuning.follows_partitions.then(|| options.queues()),
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
            dial_settings: DialSettings {
                timeout_ns: settings.connect_timeout_ns,
                max_segment: tuning.max_segment,
            },
            tls_keys: options.tls.clone(),
            doorbell: Doorbell::new(tuning.doorbell_of(claim.class())),
            busy_poll: tuning.busy_poll,
            spin: SpinBudget::new(ns(tuning.spin)).with_floor(tuning.busy_poll.wait_ns()),
            clock,
            polled_ns: clock.now_ns(),
            tls_buffers: TlsBuffers::None,
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

    /// Connects for the first time.
    ///
    /// # Errors
    /// Why the attempt failed.
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
            self.sleep(self.dial_settings.timeout_ns, None);
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

    /// The class of commands that the lane is for.
    #[must_use]
    pub fn class(&self) -> LaneClass {
        self.claim.class()
    }

    /// Whether the lane is connected; otherwise commands wait for the association.
    #[inline]
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.core.is_live()
    }

    /// Why the association ended for good, if it has.
    #[must_use]
    pub fn over(&self) -> Option<&Error> {
        self.over.as_deref()
    }

    /// Maximum outstanding commands: the requested depth, or the controller's limit if that is lower.
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

    /// Whether `count` commands can be submitted now.
    #[must_use]
    pub fn has_room(&self, count: u16) -> bool {
        self.core.has_room(count)
    }

    /// Digests and limits of the connection's handshake.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        self.core.agreement()
    }

    /// The target's address, after the first connection.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.core.attachment().map(|attachment| attachment.peer)
    }

    /// CPU and device queue of the connection's last packet, if there is a connection.
    #[must_use]
    pub fn arrival(&self) -> Arrival {
        self.link.arrival()
    }

    /// Counters since the lane was made.
    #[must_use]
    pub fn counters(&self) -> LaneCounters {
        LaneCounters {
            caravans: self.core.caravan_count(),
            retries: self.core.retry_count(),
            authentications: self.core.authentication_count(),
            doorbell: self.doorbell.counters(),
            phases: self.watch.phases(),
            zero_copy_awaited: self.core.awaited_count().into(),
            ..self.counters
        }
    }

    /// Time of the last poll, ns since the association was made: the completion time of what it returned.
    #[inline]
    pub(crate) fn polled_ns(&self) -> u64 {
        self.polled_ns
    }

    /// Sets the policy that decides when submitted commands are sent.
    pub fn set_doorbell(&mut self, policy: Policy) {
        self.doorbell.set_policy(policy);
    }

    /// Sets the maximum time that a wait spins; see [`Tuning::spin`](crate::Tuning::spin).
    pub fn set_spin(&mut self, limit: Duration) {
        self.spin = SpinBudget::new(ns(limit)).with_floor(self.busy_poll.wait_ns());
    }

    /// The number of the association that the lane belongs to, or belonged to last; 0 for none yet.
    pub(crate) fn generation(&self) -> u64 {
        self.core.generation()
    }

    /// Shares a flush epoch with other lanes, before the first command, or while none is outstanding and no write is left
    /// to flush: once a lane has handed out [`Failure::Unflushed`](crate::Failure::Unflushed), the others no longer do so
    /// for the same loss, and until then no Flush of any of them succeeds. For lanes whose writes are flushed by each
    /// other's Flush; see [`reconnect`](crate::reconnect#flush-after-a-reconnect).
    pub fn share_flush_epoch(&mut self, epoch: FlushEpoch) {
        self.core.share_flush_epoch(epoch);
    }

    /// Submits a command; its completion carries `user`. The command is sent with the next [`ring`](Self::ring), or in
    /// a poll or wait according to the [policy](Self::set_doorbell), or at once with [`Policy::Immediate`]. While the
    /// association is lost the command waits.
    ///
    /// # Errors
    /// [`Refused`], with the buffer: the lane is full, the buffer does not have the command's length, or the
    /// association ended for good.
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

    /// As [`submit`](Self::submit), measuring the command's phases if no other is measured and it is sent at once.
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

    /// Submits a fused pair: two commands that are sent one directly after the other. Each has its own completion.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), with both buffers; neither command was submitted.
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

    /// Rings for a single command on an idle lane if inline sends are on, and for a full caravan.
    #[inline(always)]
    fn ring_if_due_at_once(&mut self) {
        if self.sends_inline && self.core.outstanding() == 1 {
            self.ring();
        } else {
            self.ring_if_full();
        }
    }

    /// Rings for a full caravan.
    #[inline]
    fn ring_if_full(&mut self) {
        if let Some((commands, bytes)) = self.core.waiting()
            && self.doorbell.is_full(commands, bytes)
        {
            self.ring_now();
        }
    }

    /// Cancels the commands submitted with `user`. Each still completes, with
    /// [`Failure::Cancelled`](crate::Failure::Cancelled) if it was stopped: once the controller has answered or the
    /// connection is closed. Both halves of a pair that was not sent yet end. Returns whether there was such a command.
    pub fn cancel(&mut self, user: u64) -> bool {
        let found = self.core.cancel(user);
        self.act();
        found
    }

    /// Rings the doorbell: sends all submitted commands, as far as the socket accepts them.
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

    /// As [`ring`](Self::ring), if the doorbell policy allows it.
    #[inline]
    pub(crate) fn ring_if_due(&mut self, now_ns: u64) {
        if let Link::Connected(_) = self.link
            && self.is_due(now_ns)
            && let Err(cause) = self.flush()
        {
            self.lose(cause);
        }
    }

    /// Whether waiting bytes are sent now. A caravan being sent continues in any case.
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

    /// Takes completions without blocking: sends submitted commands if the doorbell policy allows it, receives, handles
    /// timeouts. Appends the completions to `completions` and returns their number.
    #[inline]
    pub fn poll(&mut self, completions: &mut Vec<Completion<B>>) -> usize {
        self.poll_with(&mut |completion| completions.push(completion))
    }

    /// As [`poll`](Self::poll), calling `each` for each completion.
    pub fn poll_with(&mut self, each: &mut impl FnMut(Completion<B>)) -> usize {
        self.polled_ns = self.clock.now_ns();
        // First: nothing is sent on an association that is known to be lost.
        while let Some(message) = self.mailbox.next_message() {
            self.on_message(message);
        }
        self.ring_if_due(self.polled_ns);
        self.end_poll(each)
    }

    /// As [`poll_with`](Self::poll_with), for a lane without messages that has nothing to send, or whose doorbell was
    /// asked just now.
    #[inline]
    pub(crate) fn poll_quiet(&mut self, each: &mut impl FnMut(Completion<B>)) -> usize {
        self.polled_ns = self.clock.now_ns();
        self.end_poll(each)
    }

    /// The second half of a poll: receives, and handles timeouts.
    #[inline]
    fn end_poll(&mut self, each: &mut impl FnMut(Completion<B>)) -> usize {
        let mut count = 0u32;
        let mut sink = |completion| {
            count += 1;
            each(completion);
        };
        if let Link::Connected(_) = self.link
            && let Err(cause) = self.exchange(&mut sink)
        {
            self.lose(cause);
        }
        // Last: a command whose answer was received does not time out.
        self.tend();
        if self.core.has_done() {
            self.core.drain(&mut sink);
        }
        if count > 0 {
            self.counters.completions += u64::from(count);
            self.doorbell.on_brought(count, self.polled_ns);
        }
        if self.tls_buffers != TlsBuffers::None {
            self.tend_tls(count > 0);
        }
        count as usize
    }

    /// Frees the buffers of TLS once the lane has been idle for a while.
    fn tend_tls(&mut self, is_used: bool) {
        if self.tls_buffers.is_to_be_freed(is_used || self.outstanding() > 0, self.polled_ns)
            && let Link::Connected(transport) = &mut self.link
        {
            transport.shrink();
            self.counters.tls_releases += 1;
        }
    }

    /// Waits for completions, at most `timeout`: spins as long as that has paid off recently, then sleeps. Returns
    /// their number: 0 after `timeout`, or if nothing is outstanding.
    pub fn wait(&mut self, completions: &mut Vec<Completion<B>>, timeout: Duration) -> usize {
        self.wait_with(&mut |completion| completions.push(completion), timeout)
    }

    /// As [`wait`](Self::wait), calling `each` for each completion.
    pub fn wait_with(&mut self, each: &mut impl FnMut(Completion<B>), timeout: Duration) -> usize {
        let start_ns = self.clock.now_ns();
        let until_ns = start_ns.saturating_add(ns(timeout));
        let mut wait = Wait::new(start_ns);
        loop {
            let count = self.poll_with(each);
            if count > 0 {
                wait.on_work(self.polled_ns, &mut self.spin);
                return count;
            }
            if self.outstanding() == 0 || self.polled_ns >= until_ns {
                return 0;
            }
            match wait.on_pause(self.pause(wait.idle_ns(self.polled_ns))) {
                Pause::Spin => self.spin(),
                Pause::Sleep { ns } => {
                    self.sleep(ns.min(until_ns - self.polled_ns), None);
                }
            }
        }
    }

    /// Waits for completions, for the readiness of another descriptor of this thread, or for both; at most `timeout`. Calls
    /// `each` for each completion. Unlike [`wait_with`](Self::wait_with) it also waits if nothing is outstanding, and a
    /// lost connection is then made again meanwhile.
    ///
    /// Returns what ended the wait. A thread that moves requests from a socket of its own to a lane waits for both without
    /// a second thread:
    ///
    /// ```no_run
    /// use std::io::Read;
    /// use std::os::fd::AsFd;
    /// use std::os::unix::net::UnixStream;
    /// use std::time::Duration;
    /// use nvlane_host::{Lane, WaitBeside};
    ///
    /// # fn serve(mut lane: Lane, mut socket: UnixStream) -> std::io::Result<()> {
    /// let mut done = Vec::new();
    /// let mut bytes = [0; 4096];
    /// loop {
    ///     let beside = WaitBeside::readable(socket.as_fd());
    ///     let ended = lane.wait_beside(&mut |completion| done.push(completion), beside, Duration::MAX);
    ///     if ended.is_ready {
    ///         let count = socket.read(&mut bytes)?;
    ///         // Submit what was asked for, ring.
    /// #       if count == 0 { return Ok(()) }
    ///     }
    ///     // Answer what is done.
    /// }
    /// # }
    /// ```
    pub fn wait_beside(
        &mut self,
        each: &mut impl FnMut(Completion<B>),
        beside: WaitBeside<'_>,
        timeout: Duration,
    ) -> WaitEnded {
        let other = beside.interest();
        let start_ns = self.clock.now_ns();
        let until_ns = start_ns.saturating_add(ns(timeout));
        let mut wait = Wait::new(start_ns);
        let mut is_first = true;
        loop {
            // An idle lane has nothing to receive before it has slept, which saves a call for each request.
            let has_work = self.outstanding() > 0 || self.wants_poll() || !is_first;
            let count = if has_work { self.poll_with(each) } else { 0 };
            if count > 0 {
                wait.on_work(self.polled_ns, &mut self.spin);
                return WaitEnded { completions: count, is_ready: false };
            }
            if (has_work && self.polled_ns >= until_ns) || self.over.is_some() {
                return WaitEnded { completions: 0, is_ready: false };
            }
            is_first = false;
            let is_idle = self.outstanding() == 0;
            let pause = if is_idle { Pause::SLEEP } else { self.pause(wait.idle_ns(self.polled_ns)) };
            let is_ready = match wait.on_pause(pause) {
                Pause::Spin => {
                    self.spin();
                    other.is_some() && sleep([other], 0)[0]
                }
                Pause::Sleep { ns } => {
                    let left_ns = until_ns.saturating_sub(self.clock.now_ns());
                    self.sleep(ns.min(left_ns), other)
                }
            };
            if is_ready {
                return WaitEnded { completions: 0, is_ready: true };
            }
        }
    }

    /// The next action of a wait that had no completions for `idle_ns`.
    #[inline]
    pub(crate) fn pause(&self, idle_ns: u64) -> Pause {
        if self.must_spin() {
            return Pause::Spin;
        }
        if !matches!(self.link, Link::Connected(_)) || self.is_blocked {
            return Pause::SLEEP;
        }
        // A command that is sent again waits for the doorbell, which the next poll asks.
        let has_waiting = self.core.has_waiting() && self.is_live();
        if self.doorbell.is_waiting() || has_waiting || self.core.is_leaving() {
            return Pause::Spin;
        }
        self.spin.pause(idle_ns)
    }

    /// Whether commands are outstanding on a poll lane: no event reports their answers.
    #[inline]
    pub(crate) fn must_spin(&self) -> bool {
        self.is_polled && self.is_live() && self.outstanding() > 0
    }

    /// Counts one poll of a wait that does not sleep.
    #[inline]
    pub(crate) fn spin(&mut self) {
        self.counters.spins += 1;
        std::hint::spin_loop();
    }

    /// Counts a sleep of a wait for several lanes.
    pub(crate) fn count_sleep(&mut self) {
        self.counters.sleeps += 1;
    }

    /// Sleeps until the socket or `other` is ready, a message arrives, or a deadline. Returns whether `other` is ready.
    pub(crate) fn sleep(&mut self, timeout_ns: u64, other: Option<Interest<'_>>) -> bool {
        self.mailbox.announce_sleep();
        if let Some(message) = self.mailbox.next_message() {
            self.mailbox.announce_awake();
            self.on_message(message);
            return false;
        }
        let now_ns = self.clock.now_ns();
        let timeout_ns =
            self.next_deadline().map_or(timeout_ns, |at| timeout_ns.min(at.saturating_sub(now_ns)));
        let mailbox = Interest { fd: self.mailbox.as_fd(), writable: false, readable: true };
        let [_, _, is_other_ready] = sleep([Some(mailbox), self.interest(), other], timeout_ns);
        self.counters.sleeps += 1;
        self.mailbox.announce_awake();
        is_other_ready
    }

    /// Readiness of the socket to wait for; none for a live poll lane.
    pub(crate) fn interest(&self) -> Option<Interest<'_>> {
        let is_unwatched = self.is_polled && self.is_live() && matches!(self.link, Link::Connected(_));
        if is_unwatched { None } else { self.link.interest(self.is_blocked) }
    }

    /// Whether the kernel may still read zero-copy sends: it reports their release as an error event.
    pub(crate) fn awaits_notices(&self) -> bool {
        self.core.awaited_count() > 0
    }

    /// Sockets so far: changes with each new socket.
    pub(crate) fn link_count(&self) -> u64 {
        self.link_count
    }

    /// Whether the last poll left bytes in the socket, or bytes to send that it would accept.
    pub(crate) fn has_more(&self) -> bool {
        (self.has_more || (self.core.is_leaving() && !self.is_blocked)) && self.is_live()
    }

    /// Whether bytes wait for the doorbell.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.core.has_waiting()
    }

    /// Handles one message of the association. Returns whether there was one.
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
        let idle_ns = self.tls_buffers.deadline_ns().filter(|_| self.outstanding() == 0);
        [self.core.next_deadline(), self.link.deadline_ns(self.polled_ns), idle_ns]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn spin_budget(&mut self) -> &mut SpinBudget {
        &mut self.spin
    }

    /// Whether a poll has work other than receiving.
    pub(crate) fn wants_poll(&self) -> bool {
        self.core.has_done() || !self.core.is_live()
    }

    /// Receives, and sends what that released.
    #[inline]
    fn exchange(&mut self, sink: &mut impl FnMut(Completion<B>)) -> Result<(), LinkError> {
        self.receive(sink)?;
        // Received PDUs may have released write data, or commands that waited for room.
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
        let Link::Connected(transport) = &mut self.link else { return Ok(()) };
        let mut budget = SendBudget::TURN;
        while self.core.ring() {
            if budget.is_spent() {
                break;
            }
            // Bytes that wait behind a caravan on its way have no doorbell yet.
            if self.watch.stage() == Stage::Doorbell && !self.core.has_waiting_behind() {
                self.watch.on_rung(self.clock.now_ns());
            }
            let core = &self.core;
            let is_zero_copy = |bytes| self.zero_copy.takes(bytes) && core.is_stable();
            let each_piece = |each: &mut dyn FnMut(_) -> bool| core.for_each_piece(each);
            let progress = send(transport, core.piece_count(), &budget, each_piece, is_zero_copy)?;
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
        while turn.goes_on() || self.link.has_input() {
            self.receive_once(staging.bytes(), &mut turn, sink)?;
        }
        self.has_more = turn.has_more() || self.link.may_have_more();
        Ok(())
    }

    #[inline]
    fn receive_once(
        &mut self,
        staging: &mut [u8],
        turn: &mut ReceiveTurn,
        sink: &mut impl FnMut(Completion<B>),
    ) -> Result<(), LinkError> {
        let Link::Connected(transport) = &mut self.link else {
            turn.on_dry();
            return Ok(());
        };
        let staging_bytes = self.receive.staging_bytes(staging.len(), || self.core.wanted_bytes());
        let staging = &mut staging[..staging_bytes];
        let (received, extent) =
            self.receive.receive(self.core.place(), staging, |into| transport.receive(into));
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

    /// The number of bytes that a receive has brought, if any.
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

    /// Handles timeouts, the connection, and the core's actions.
    #[inline]
    fn tend(&mut self) {
        if let Err(cause) = self.core.on_time(self.polled_ns) {
            self.lose(cause);
        }
        match self.link {
            Link::Dialling(_) => self.dial(),
            Link::Securing(_) => self.secure(),
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
                let reason = CloseReason::Detached(generation);
                if is_ours { self.close(reason) } else { self.on_closed(reason) }
            }
            LaneMessage::Inaccessible(inaccessible) => self.core.on_inaccessible(&inaccessible),
            LaneMessage::Over(error) => self.end(error),
        }
        self.act();
    }

    fn end(&mut self, error: Arc<Error>) {
        self.close(CloseReason::Ended(error));
    }

    /// Resets the connection, and takes no more commands. Those outstanding end, with their buffers, in the next polls.
    pub(crate) fn abandon(&mut self) {
        if self.over.is_none() && !matches!(self.link, Link::Lingering(_)) {
            self.end(Arc::new(Error::Ended));
        }
    }

    /// Bytes sent and received: another number says that there was progress.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.counters.sent_bytes.wrapping_add(self.counters.received_bytes)
    }
}

impl<B> Drop for Lane<B> {
    /// Waits until the kernel released all zero-copy sends, for half a second at most: then the queue leaks the
    /// buffers.
    fn drop(&mut self) {
        let Self { core, link, .. } = self;
        if core.awaited_count() == 0 || link.socket().is_none() {
            return;
        }
        link.abort_and_await(|first, last| {
            core.on_notice(first, last);
            core.awaited_count() > 0
        });
        let sends = core.awaited_count();
        if sends > 0 {
            tracing::warn!(sends, "dropped lane: buffers still in use by a zero-copy send were leaked");
        }
    }
}
