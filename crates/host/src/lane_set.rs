//! Several lanes of one thread, polled and waited for together.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use proto::host_queue::DataBuffer;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::connect::{Interest, sleep, timespec};
use crate::error::Error;
use crate::lane::Lane;
use crate::options::ns;
use crate::submit::Completion;

/// Lanes up to this many are each polled in turn; of more the kernel is asked first which have something.
const POLLED_COUNT_MAX: usize = 8;

/// Events taken from the kernel at once.
const EVENT_COUNT: usize = 64;

/// Marks the mailbox of a lane among the events.
const MAILBOX: u64 = 1 << 32;

/// Several lanes of one thread.
#[derive(Debug)]
pub struct LaneSet<B = Vec<u8>> {
    lanes: Vec<Lane<B>>,
    epoll: OwnedFd,
    watched: Vec<Watched>,
    /// Lanes to poll, of many.
    ready: Vec<bool>,
    worked_ns: u64,
}

/// What the kernel was told to watch of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Watched {
    link_count: u64,
    is_there: bool,
    writable: bool,
}

impl<B: DataBuffer> LaneSet<B> {
    /// These lanes.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new(lanes: Vec<Lane<B>>) -> Result<Self, Error> {
        let make = || -> io::Result<OwnedFd> {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            for (index, lane) in lanes.iter().enumerate() {
                let data = EventData::new_u64(MAILBOX | index as u64);
                epoll::add(&epoll, lane.mailbox().as_fd(), data, EventFlags::IN)?;
            }
            Ok(epoll)
        };
        let epoll = make().map_err(|error| Error::system("watch lanes", error))?;
        let (watched, ready) = (vec![Watched::default(); lanes.len()], vec![true; lanes.len()]);
        Ok(Self { lanes, epoll, watched, ready, worked_ns: 0 })
    }

    /// The lanes.
    #[must_use]
    pub fn lanes(&self) -> &[Lane<B>] {
        &self.lanes
    }

    /// The lanes, to submit to.
    pub fn lanes_mut(&mut self) -> &mut [Lane<B>] {
        &mut self.lanes
    }

    /// The lanes, to be owned one by one again.
    #[must_use]
    pub fn into_lanes(self) -> Vec<Lane<B>> {
        self.lanes
    }

    /// Commands outstanding on all lanes.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.lanes.iter().map(|lane| usize::from(lane.outstanding())).sum()
    }

    /// Polls the lanes without waiting. Each completion is handed to `each` with the index of its lane; gives their number.
    pub fn poll_with(&mut self, each: &mut impl FnMut(usize, Completion<B>)) -> usize {
        let is_many = self.lanes.len() > POLLED_COUNT_MAX;
        if is_many {
            self.watch();
            self.ask(0);
        }
        let now_ns = if is_many { self.lanes[0].clock().now_ns() } else { 0 };
        let mut count = 0;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if is_many && !self.ready[index] && !lane.wants_poll() {
                lane.ring_if_due(now_ns);
                continue;
            }
            self.ready[index] = false;
            count += lane.poll_with(&mut |completion| each(index, completion));
        }
        count
    }

    /// Waits for completions of any lane, at most `timeout`: spins as long as that has paid lately, then sleeps. Gives their
    /// number, 0 if the time is over or nothing is outstanding.
    pub fn wait_with(&mut self, each: &mut impl FnMut(usize, Completion<B>), timeout: Duration) -> usize {
        let Some(clock) = self.lanes.first().map(Lane::clock) else { return 0 };
        let start_ns = clock.now_ns();
        let until_ns = start_ns.saturating_add(ns(timeout));
        self.worked_ns = self.worked_ns.max(start_ns);
        loop {
            let count = self.poll_with(each);
            let now_ns = clock.now_ns();
            if count > 0 {
                self.worked_ns = now_ns;
            }
            if count > 0 || now_ns >= until_ns || self.outstanding() == 0 {
                return count;
            }
            // The first lane learns for all.
            if self.lanes[0].may_spin(now_ns.saturating_sub(self.worked_ns)) {
                std::hint::spin_loop();
            } else {
                self.sleep(until_ns - now_ns, now_ns);
            }
        }
    }

    fn sleep(&mut self, timeout_ns: u64, now_ns: u64) {
        let deadline_ns = self.lanes.iter().filter_map(Lane::next_deadline).min();
        let timeout_ns = deadline_ns.map_or(timeout_ns, |at| timeout_ns.min(at.saturating_sub(now_ns)));
        for lane in &self.lanes {
            lane.mailbox().announce_sleep();
        }
        // A message that came before the announcement is found by a look at the mailboxes, which a poll does.
        let mut has_message = false;
        for lane in &mut self.lanes {
            has_message |= lane.take_message();
        }
        let timeout_ns = if has_message { 0 } else { timeout_ns };
        let is_woken = if self.lanes.len() > POLLED_COUNT_MAX {
            self.watch();
            self.ask(timeout_ns)
        } else {
            self.sleep_on_few(timeout_ns)
        };
        for lane in &self.lanes {
            lane.mailbox().announce_awake();
        }
        if is_woken {
            let clock = self.lanes[0].clock();
            self.lanes[0].spin_mut().on_woken(clock.now_ns().saturating_sub(now_ns));
        }
    }

    /// Sleeps without leaving a trace at the sockets: what watches a socket is called for each segment that arrives, on the core of
    /// whoever sent it, also while we spin (docs/design/socket-path.md).
    fn sleep_on_few(&self, timeout_ns: u64) -> bool {
        let interests: [_; 2 * POLLED_COUNT_MAX] = std::array::from_fn(|at| {
            let lane = self.lanes.get(at / 2)?;
            let mailbox = Interest { fd: lane.mailbox().as_fd(), writable: false, readable: true };
            if at % 2 == 0 { Some(mailbox) } else { lane.interest() }
        });
        sleep(interests, timeout_ns)
    }

    /// Tells the kernel about sockets that are new or block.
    fn watch(&mut self) {
        for (index, lane) in self.lanes.iter().enumerate() {
            let Some(interest) = lane.interest() else {
                self.watched[index].is_there = false;
                continue;
            };
            let wanted =
                Watched { link_count: lane.link_count(), is_there: true, writable: interest.writable };
            let before = self.watched[index];
            if before == wanted {
                continue;
            }
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, interest.readable);
            flags.set(EventFlags::OUT, interest.writable);
            let data = EventData::new_u64(index as u64);
            // A socket that was closed has left the set by itself; one that goes on is changed.
            let changed = epoll::modify(&self.epoll, interest.fd, data, flags);
            if changed.is_err() && epoll::add(&self.epoll, interest.fd, data, flags).is_err() {
                // Not watched, then: it is polled in each turn instead.
                self.ready[index] = true;
                continue;
            }
            self.watched[index] = wanted;
        }
    }

    /// Asks the kernel which lanes have something. Says whether any has.
    fn ask(&mut self, timeout_ns: u64) -> bool {
        let mut events =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENT_COUNT];
        let timeout = timespec(timeout_ns);
        let Ok(count) = epoll::wait(&self.epoll, &mut events, Some(&timeout)) else { return false };
        for event in &events[..count] {
            let index = event.data.u64() & (MAILBOX - 1);
            if let Some(ready) = usize::try_from(index).ok().and_then(|index| self.ready.get_mut(index)) {
                *ready = true;
            }
        }
        count > 0
    }
}
