//! A descriptor for event loops: it is readable while a lane has work.
//!
//! ```text
//! socket ──┐
//! mailbox ─┼─▶ epoll set ─▶ readable: poll the lane
//! timer ───┘   timer: deadlines, and work that neither socket nor mailbox reports
//! ```
//!
//! The set is level-triggered, so that a poll needs no call to take its events. A lane without a descriptor pays nothing
//! for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use proto::host_queue::DataBuffer;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::Lane;
use super::link::Link;
use crate::error::Error;
use crate::waiting::timespec;

/// A descriptor that is readable while a lane has work: for a program whose own loop (poll, epoll, io_uring, libuv, …)
/// waits for many things. It belongs to one lane and stays the same when the lane reconnects.
///
/// Call [`arm`](Self::arm) after the lane's calls and before the loop sleeps. Then, whenever the descriptor is readable,
/// [`poll`](Lane::poll) the lane and arm again:
///
/// ```no_run
/// use std::os::fd::AsFd;
/// use nvlane_host::{EventDescriptor, Lane};
///
/// # fn serve(mut lane: Lane, wait_readable: impl Fn(std::os::fd::BorrowedFd<'_>)) -> Result<(), nvlane_host::Error> {
/// let mut descriptor = EventDescriptor::new(&mut lane)?;
/// let mut done = Vec::new();
/// loop {
///     // Submit, ring, and then:
///     descriptor.arm(&mut lane);
///     wait_readable(descriptor.as_fd());
///     lane.poll(&mut done);
/// #   if lane.outstanding() == 0 { return Ok(()) }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct EventDescriptor {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// The watched socket, as its number in [`Lane::link_count`], and the watched events.
    watched: Option<(u64, EventFlags)>,
    /// When the timer expires, ns of the lane's clock; `None` if it is off.
    armed_ns: Option<u64>,
    /// Completions of the lane when it was armed last.
    completions: u64,
}

impl EventDescriptor {
    /// The descriptor of a lane, armed.
    ///
    /// # Errors
    /// [`Error::System`]: no file descriptor is available.
    pub fn new<B: DataBuffer>(lane: &mut Lane<B>) -> Result<Self, Error> {
        let make = || {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            let timer =
                timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
            epoll::add(&epoll, &timer, EventData::new_u64(0), EventFlags::IN)?;
            epoll::add(&epoll, lane.mailbox.as_fd(), EventData::new_u64(0), EventFlags::IN)?;
            Ok((epoll, timer))
        };
        let (epoll, timer) = make().map_err(|error: Errno| Error::system("watch a lane", error.into()))?;
        let completions = lane.counters.completions;
        let mut descriptor = Self { epoll, timer, watched: None, armed_ns: None, completions };
        descriptor.arm(lane);
        Ok(descriptor)
    }

    /// Makes the descriptor readable as soon as the lane has work, and at once if it has some now. Without completions
    /// since the last call it also takes back what made the descriptor readable.
    pub fn arm<B: DataBuffer>(&mut self, lane: &mut Lane<B>) {
        let completions = lane.counters.completions;
        let is_idle = std::mem::replace(&mut self.completions, completions) == completions;
        if is_idle {
            lane.mailbox.announce_awake();
        }
        lane.mailbox.announce_sleep();
        // A message posted before the announcement signals nothing.
        let has_message = lane.take_message();
        self.watch(lane);
        self.set_timer(lane, has_message);
    }

    /// Watches the lane's socket for what the lane waits for.
    fn watch<B: DataBuffer>(&mut self, lane: &Lane<B>) {
        let Some(interest) = lane.interest() else {
            if self.watched.take().is_some()
                && let Some(socket) = lane.link.socket()
            {
                // A socket that was replaced has left the set by itself.
                let _ = epoll::delete(&self.epoll, socket);
            }
            return;
        };
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, interest.readable);
        flags.set(EventFlags::OUT, interest.writable);
        if self.watched == Some((lane.link_count, flags)) {
            return;
        }
        let data = EventData::new_u64(0);
        let added = match epoll::add(&self.epoll, interest.fd, data, flags) {
            Err(Errno::EXIST) => epoll::modify(&self.epoll, interest.fd, data, flags),
            added => added,
        };
        // Without memory for a watch the timer of the lane's deadlines is left, and the next call tries again.
        self.watched = added.is_ok().then_some((lane.link_count, flags));
    }

    /// Sets the timer to the lane's next deadline, or to now. One that is due earlier stays: it costs a poll that finds
    /// nothing, and no call for each command.
    fn set_timer<B: DataBuffer>(&mut self, lane: &Lane<B>, has_work: bool) {
        let now_ns = lane.clock.now_ns();
        let wanted_ns =
            if has_work || lane.has_unsignalled_work() { Some(now_ns) } else { lane.next_deadline() };
        let is_due = self.armed_ns.is_some_and(|armed_ns| armed_ns <= now_ns);
        let is_earlier = wanted_ns.is_some_and(|at_ns| self.armed_ns.is_none_or(|armed_ns| at_ns < armed_ns));
        if !is_due && !is_earlier {
            return;
        }
        // A time of 0 would turn the timer off.
        let wait_ns = wanted_ns.map_or(0, |at_ns| at_ns.saturating_sub(now_ns).max(1));
        let times = Itimerspec { it_interval: timespec(0), it_value: timespec(wait_ns) };
        // It fails for no such times.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times);
        self.armed_ns = wanted_ns;
    }
}

impl AsFd for EventDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl<B: DataBuffer> Lane<B> {
    /// Whether a poll has work that neither the socket nor the mailbox reports.
    fn has_unsignalled_work(&self) -> bool {
        let is_connected = matches!(self.link, Link::Connected(_)) && !self.is_blocked;
        let has_waiting = self.core.has_waiting() && self.is_live();
        let sends = is_connected && (self.doorbell.is_waiting() || has_waiting || self.core.is_leaving());
        sends || self.core.has_done() || self.has_more() || self.must_spin()
    }
}
