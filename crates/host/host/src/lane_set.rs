//! Sets of lanes that one thread polls and waits for.

mod ready_set;

use std::os::fd::AsFd;
use std::time::Duration;

use host_core::duration::ns;
use host_core::queue_map::{LaneClass, Rota};
use host_core::submit::{Command, Completion, Refused};
use proto::host_queue::DataBuffer;
use reactor::{Pause, Wait};

use crate::error::Error;
use crate::lane::Lane;
use crate::waiting::{Interest, sleep};
use ready_set::ReadySet;

/// Up to this number every lane is polled in turn; in a larger set only lanes with work.
const POLLED_COUNT_MAX: usize = 8;

/// Several lanes of one thread, polled and waited for together.
#[derive(Debug)]
pub struct LaneSet<B = Vec<u8>> {
    lanes: Vec<Lane<B>>,
    /// Lanes with work, in a large set.
    ready_set: Option<Box<ReadySet>>,
    rota: Rota,
}

impl<B: DataBuffer> LaneSet<B> {
    /// A set of these lanes.
    ///
    /// # Errors
    /// [`Error::System`]: no file descriptor is available.
    pub fn new(lanes: Vec<Lane<B>>) -> Result<Self, Error> {
        let is_many = lanes.len() > POLLED_COUNT_MAX;
        let ready_set = is_many.then(|| ReadySet::new(&lanes)).transpose();
        let ready_set = ready_set.map_err(|error| Error::system("watch lanes", error))?;
        let rota = Rota::new(lanes.iter().map(Lane::class));
        Ok(Self { lanes, ready_set: ready_set.map(Box::new), rota })
    }

    /// The lanes.
    #[must_use]
    pub fn lanes(&self) -> &[Lane<B>] {
        &self.lanes
    }

    /// The lanes, mutably. In a large set the next poll then looks at every lane: prefer [`lane_mut`](Self::lane_mut)
    /// and [`submit`](Self::submit).
    pub fn lanes_mut(&mut self) -> &mut [Lane<B>] {
        if let Some(ready_set) = &mut self.ready_set {
            ready_set.lend_all();
        }
        &mut self.lanes
    }

    /// One lane, mutably.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn lane_mut(&mut self, index: usize) -> &mut Lane<B> {
        if let Some(ready_set) = &mut self.ready_set {
            ready_set.lend(index);
        }
        &mut self.lanes[index]
    }

    /// Returns the lanes.
    #[must_use]
    pub fn into_lanes(self) -> Vec<Lane<B>> {
        self.lanes
    }

    /// Submits a command to one of the lanes, as [`Lane::submit`].
    ///
    /// # Errors
    /// As [`Lane::submit`].
    ///
    /// # Panics
    /// If `index` is out of range.
    #[inline]
    pub fn submit(
        &mut self,
        index: usize,
        command: Command,
        buffer: Option<B>,
        user: u64,
    ) -> Result<(), Refused<B>> {
        self.lanes[index].submit(command, buffer, user)?;
        if let Some(ready_set) = &mut self.ready_set {
            ready_set.touch(index);
        }
        Ok(())
    }

    /// Index of the lane for the next command like this one: the lanes of its [class](Command::lane_class) in turn, or
    /// other lanes if there are none.
    ///
    /// # Panics
    /// If the set is empty.
    #[inline]
    pub fn next_lane(&mut self, command: &Command) -> usize {
        self.rota.next(command.lane_class(), command.class_unpolled()).expect("a set of lanes has one")
    }

    /// Commands outstanding on all lanes.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        match &self.ready_set {
            Some(ready_set) => ready_set.outstanding(&self.lanes),
            None => self.lanes.iter().map(|lane| usize::from(lane.outstanding())).sum(),
        }
    }

    /// Polls the lanes without blocking. Calls `each` for each completion with the index of its lane; returns their
    /// number.
    pub fn poll_with(&mut self, each: &mut impl FnMut(usize, Completion<B>)) -> usize {
        if let Some(ready_set) = &mut self.ready_set {
            let now_ns = self.lanes[0].clock().now_ns();
            return ready_set.poll_with(&mut self.lanes, self.rota.of(LaneClass::Poll), now_ns, each);
        }
        let lanes = self.lanes.iter_mut().enumerate();
        lanes.map(|(index, lane)| lane.poll_with(&mut |completion| each(index, completion))).sum()
    }

    /// Waits for completions of any lane, at most `timeout`: spins as long as that has paid off recently, then sleeps.
    /// Returns their number: 0 after `timeout`, or if nothing is outstanding.
    pub fn wait_with(&mut self, each: &mut impl FnMut(usize, Completion<B>), timeout: Duration) -> usize {
        self.wait_while(each, timeout, || true)
    }

    /// As [`wait_with`](Self::wait_with), until `goes_on` returns false; asked after each poll without completions.
    pub(crate) fn wait_while(
        &mut self,
        each: &mut impl FnMut(usize, Completion<B>),
        timeout: Duration,
        goes_on: impl Fn() -> bool,
    ) -> usize {
        let Some(clock) = self.lanes.first().map(Lane::clock) else { return 0 };
        let start_ns = clock.now_ns();
        let until_ns = start_ns.saturating_add(ns(timeout));
        let mut wait = Wait::new(start_ns);
        loop {
            let count = self.poll_with(each);
            let now_ns = clock.now_ns();
            if count > 0 {
                wait.on_work(now_ns, self.lanes[0].spin_budget());
                return count;
            }
            if now_ns >= until_ns || self.outstanding() == 0 || !goes_on() {
                return 0;
            }
            match wait.on_pause(self.pause(wait.idle_ns(now_ns))) {
                Pause::Spin => self.lanes[0].spin(),
                Pause::Sleep { ns } => {
                    self.lanes[0].count_sleep();
                    self.sleep(ns.min(until_ns - now_ns), now_ns);
                }
            }
        }
    }

    /// The next action of a wait that had no completions for `idle_ns`. The first lane's spin budget serves all.
    fn pause(&self, idle_ns: u64) -> Pause {
        let has_work = match &self.ready_set {
            Some(ready_set) => ready_set.has_unsignalled_work(&self.lanes),
            None => self.lanes.iter().any(|lane| (lane.has_waiting() && lane.is_live()) || lane.has_more()),
        };
        let is_polled = self.rota.of(LaneClass::Poll).iter().any(|&index| self.lanes[index].must_spin());
        if has_work || is_polled { Pause::Spin } else { self.lanes[0].pause(idle_ns) }
    }

    fn sleep(&mut self, timeout_ns: u64, now_ns: u64) {
        match &mut self.ready_set {
            Some(ready_set) => {
                let until_ns = ready_set.next_deadline_ns().unwrap_or(u64::MAX);
                ready_set.sleep(&self.lanes, timeout_ns.min(until_ns.saturating_sub(now_ns)));
            }
            None => self.sleep_on_few(timeout_ns, now_ns),
        }
    }

    /// Sleeps by poll(2), which leaves no watcher at the sockets: a watcher costs a call for each arriving segment, on
    /// the sender's core, also while this thread spins (docs/design/socket-path.md).
    fn sleep_on_few(&mut self, timeout_ns: u64, now_ns: u64) {
        let deadline_ns = self.lanes.iter().filter_map(Lane::next_deadline).min();
        let timeout_ns = deadline_ns.map_or(timeout_ns, |at| timeout_ns.min(at.saturating_sub(now_ns)));
        for lane in &self.lanes {
            lane.mailbox().announce_sleep();
        }
        // A message posted before the announcement wakes no thread: look at the mailboxes.
        let mut has_message = false;
        for lane in &mut self.lanes {
            has_message |= lane.take_message();
        }
        let timeout_ns = if has_message { 0 } else { timeout_ns };
        let interests: [_; 2 * POLLED_COUNT_MAX] = std::array::from_fn(|at| {
            let lane = self.lanes.get(at / 2)?;
            let mailbox = Interest { fd: lane.mailbox().as_fd(), writable: false, readable: true };
            if at % 2 == 0 { Some(mailbox) } else { lane.interest() }
        });
        sleep(interests, timeout_ns);
        for lane in &self.lanes {
            lane.mailbox().announce_awake();
        }
    }
}
