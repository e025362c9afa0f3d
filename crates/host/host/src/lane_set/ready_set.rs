//! The lanes of a large set that have work: commands were submitted, the kernel reports their socket or mailbox, or a
//! timer expired. Other lanes are skipped, so that the cost of a poll depends on the work and not on the number of
//! lanes.
//!
//! ```text
//! submit ─▶ touched ─▶ rings when the doorbell is due
//! kernel ─▶ ready ───▶ polled: receives, rings, looks at its mailbox
//! timers ─▶ ready
//! ```
//!
//! Sockets are watched edge-triggered: an event reports each change once. Mailboxes signal each message, since no poll
//! looks into the mailbox of a lane without work.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use host_core::queue_map::LaneClass;
use host_core::submit::Completion;
use proto::host_queue::DataBuffer;
use reactor::Timers;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::lane::Lane;
use crate::waiting::timespec;

/// Maximum events of one epoll_wait.
const EVENT_COUNT: usize = 256;

/// Flag of the events of a lane's mailbox.
const MAILBOX: u64 = 1 << 32;

/// The lanes of a large set that have work.
pub(super) struct ReadySet {
    epoll: OwnedFd,
    members: Vec<Member>,
    /// Lanes whose doorbell may be due.
    touched: Vec<usize>,
    /// Lanes to poll.
    ready: Vec<usize>,
    /// Empty; its memory is reused by each poll.
    polled: Vec<usize>,
    timers: Timers,
    /// Commands outstanding on all lanes, without the changes on touched lanes.
    outstanding: usize,
    /// All lanes were lent mutably: their state is unknown.
    are_lent: bool,
}

/// State of a lane in the set.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// The lane's [`Lane::link_count`] whose socket is watched.
    link_count: u64,
    outstanding: usize,
    /// When its timer expires, ns; 0 if none is set.
    timer_ns: u64,
    is_touched: bool,
    is_ready: bool,
    /// Its mailbox may have a message.
    has_message: bool,
    /// The lane was lent mutably: its mailbox may not signal messages.
    is_lent: bool,
    /// [`Lane::link_count`] of a socket that the target closed. No further event reports it: poll until all bytes are
    /// read.
    closed_link: u64,
}

impl std::fmt::Debug for ReadySet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadySet").field("members", &self.members).finish_non_exhaustive()
    }
}

impl ReadySet {
    /// The set of these lanes; the first poll looks at each.
    pub(super) fn new<B: DataBuffer>(lanes: &[Lane<B>]) -> std::io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (index, lane) in lanes.iter().enumerate() {
            let data = EventData::new_u64(MAILBOX | index as u64);
            epoll::add(&epoll, lane.mailbox().as_fd(), data, EventFlags::IN)?;
        }
        let member = Member {
            link_count: u64::MAX,
            outstanding: 0,
            timer_ns: 0,
            is_touched: false,
            is_ready: false,
            has_message: false,
            is_lent: false,
            closed_link: u64::MAX,
        };
        let count = lanes.len();
        Ok(Self {
            epoll,
            members: vec![member; count],
            touched: Vec::with_capacity(count),
            ready: Vec::with_capacity(count),
            polled: Vec::with_capacity(count),
            timers: Timers::default(),
            outstanding: 0,
            are_lent: true,
        })
    }

    /// Commands were submitted to this lane.
    #[inline]
    pub(super) fn touch(&mut self, index: usize) {
        if !std::mem::replace(&mut self.members[index].is_touched, true) {
            self.touched.push(index);
        }
    }

    /// The lane is lent mutably until the next poll.
    pub(super) fn lend(&mut self, index: usize) {
        self.members[index].is_lent = true;
        self.touch(index);
    }

    /// All lanes are lent mutably until the next poll.
    pub(super) fn lend_all(&mut self) {
        self.are_lent = true;
    }

    /// Commands outstanding on all lanes.
    pub(super) fn outstanding<B: DataBuffer>(&self, lanes: &[Lane<B>]) -> usize {
        if self.are_lent {
            return lanes.iter().map(|lane| usize::from(lane.outstanding())).sum();
        }
        let changed = |&index: &usize| (lanes[index].outstanding().into(), self.members[index].outstanding);
        let (now, before) = self
            .touched
            .iter()
            .map(changed)
            .fold((0, 0), |(now, before), of: (usize, usize)| (now + of.0, before + of.1));
        self.outstanding + now - before
    }

    /// Whether a lane has work that no event reports.
    pub(super) fn has_unsignalled_work<B: DataBuffer>(&self, lanes: &[Lane<B>]) -> bool {
        !self.touched.is_empty() || self.ready.iter().any(|&index| lanes[index].has_more())
    }

    /// When a lane must be polled at the latest, ns.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.timers.next_deadline_ns()
    }

    /// Polls the lanes that have work. Calls `each` for each completion with the index of its lane; returns their
    /// number.
    pub(super) fn poll_with<B: DataBuffer>(
        &mut self,
        lanes: &mut [Lane<B>],
        poll_lanes: &[usize],
        now_ns: u64,
        each: &mut impl FnMut(usize, Completion<B>),
    ) -> usize {
        if std::mem::take(&mut self.are_lent) {
            (0..lanes.len()).for_each(|index| self.lend(index));
        }
        self.take_events(lanes, 0);
        while let Some(token) = self.timers.next_due(now_ns) {
            self.on_timer(lanes, usize::try_from(token).expect("an index"), now_ns);
        }
        // No event reports their answers.
        for &index in poll_lanes.iter().filter(|&&index| lanes[index].must_spin()) {
            self.make_ready(index);
        }
        if !self.touched.is_empty() {
            self.ring(lanes, now_ns);
            // The more answers a poll finds, the more commands share the next sends.
            self.take_events(lanes, 0);
        }
        let mut count = 0;
        let mut polled = std::mem::replace(&mut self.ready, std::mem::take(&mut self.polled));
        for index in polled.drain(..) {
            let lane = &mut lanes[index];
            self.members[index].is_ready = false;
            let has_message = std::mem::take(&mut self.members[index].has_message);
            count += if has_message {
                lane.poll_with(&mut |completion| each(index, completion))
            } else {
                lane.poll_quiet(&mut |completion| each(index, completion))
            };
            self.settle(index, lane);
        }
        self.polled = polled;
        count
    }

    /// Sleeps until a lane has work, at most `timeout_ns`.
    pub(super) fn sleep<B: DataBuffer>(&mut self, lanes: &[Lane<B>], timeout_ns: u64) {
        self.take_events(lanes, timeout_ns);
    }

    /// Rings the doorbells of touched lanes, where due: of all before any is polled, since the target works on their
    /// commands meanwhile.
    fn ring<B: DataBuffer>(&mut self, lanes: &mut [Lane<B>], now_ns: u64) {
        let mut waiting_count = 0;
        for at in 0..self.touched.len() {
            let index = self.touched[at];
            let lane = &mut lanes[index];
            if std::mem::take(&mut self.members[index].is_lent) {
                lane.mailbox().announce_sleep();
                self.members[index].has_message = true;
                self.make_ready(index);
            }
            // A lane with a message rings in its poll: the message may end its association.
            if !self.members[index].has_message {
                lane.ring_if_due(now_ns);
            }
            let waits = lane.has_waiting() && lane.is_live() && !self.members[index].is_ready;
            self.members[index].is_touched = waits;
            if waits {
                self.touched[waiting_count] = index;
                waiting_count += 1;
            }
            self.note(index, lane);
        }
        self.touched.truncate(waiting_count);
    }

    /// Updates the state of a lane after a poll.
    #[inline]
    fn settle<B: DataBuffer>(&mut self, index: usize, lane: &mut Lane<B>) {
        if self.members[index].link_count != lane.link_count() || !lane.is_live() {
            self.watch(index, lane);
        }
        if lane.has_more() || self.members[index].closed_link == lane.link_count() {
            self.make_ready(index);
        }
        if lane.has_waiting() && lane.is_live() {
            self.touch(index);
        }
        self.note(index, lane);
    }

    /// Updates the outstanding commands of a lane, and its timer.
    #[inline]
    fn note<B: DataBuffer>(&mut self, index: usize, lane: &Lane<B>) {
        let member = &mut self.members[index];
        let outstanding = usize::from(lane.outstanding());
        self.outstanding = self.outstanding + outstanding - member.outstanding;
        member.outstanding = outstanding;
        if let Some(deadline_ns) = lane.next_deadline()
            && (member.timer_ns == 0 || deadline_ns < member.timer_ns)
        {
            member.timer_ns = deadline_ns.max(1);
            self.timers.set(member.timer_ns, index as u64);
        }
        // Completions without input, and lanes that are connecting.
        if lane.wants_poll() {
            self.make_ready(index);
        }
    }

    #[cold]
    fn on_timer<B: DataBuffer>(&mut self, lanes: &[Lane<B>], index: usize, now_ns: u64) {
        if self.members[index].timer_ns > now_ns {
            return;
        }
        self.members[index].timer_ns = 0;
        if lanes[index].next_deadline().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
            self.make_ready(index);
        } else {
            self.note(index, &lanes[index]);
        }
    }

    #[inline]
    fn make_ready(&mut self, index: usize) {
        if !std::mem::replace(&mut self.members[index].is_ready, true) {
            self.ready.push(index);
        }
    }

    /// Watches a lane's socket. A closed socket left the epoll set by itself.
    #[cold]
    fn watch<B: DataBuffer>(&mut self, index: usize, lane: &Lane<B>) {
        let Some(interest) = lane.interest() else {
            if lane.is_live() {
                self.members[index].link_count = lane.link_count();
            }
            return;
        };
        let mut flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        // The socket of a poll lane only reports that it is connected.
        flags.set(EventFlags::ONESHOT, lane.class() == LaneClass::Poll);
        match epoll::add(&self.epoll, interest.fd, EventData::new_u64(index as u64), flags) {
            Ok(()) | Err(Errno::EXIST) if lane.is_live() => {
                self.members[index].link_count = lane.link_count();
            }
            Ok(()) | Err(Errno::EXIST) => {}
            // Without an event the lane is polled in each turn.
            Err(_) => self.make_ready(index),
        }
    }

    /// Processes the kernel's events, after waiting for them at most `timeout_ns`. Returns whether there were any.
    fn take_events<B: DataBuffer>(&mut self, lanes: &[Lane<B>], timeout_ns: u64) -> bool {
        let timeout = timespec(timeout_ns);
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENT_COUNT];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&timeout)) else { return false };
        for event in &*events {
            let (data, flags) = (event.data.u64(), event.flags);
            let index = usize::try_from(data & (MAILBOX - 1)).expect("32 bits");
            if data & MAILBOX != 0 {
                // Re-arms the signal; the poll finds messages that arrived before.
                lanes[index].mailbox().announce_awake();
                lanes[index].mailbox().announce_sleep();
                self.members[index].has_message = true;
            } else if flags.intersects(EventFlags::RDHUP | EventFlags::HUP)
                || (flags.contains(EventFlags::ERR) && !lanes[index].awaits_notices())
            {
                self.members[index].closed_link = lanes[index].link_count();
            }
            self.make_ready(index);
        }
        !events.is_empty()
    }
}
