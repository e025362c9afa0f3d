//! Several lanes of one thread, polled and waited for together.

mod ready_set;

use std::os::fd::AsFd;
use std::time::Duration;

use proto::host_queue::DataBuffer;

use crate::connect::{Interest, sleep};
use crate::error::Error;
use crate::lane::Lane;
use crate::options::ns;
use crate::queue_map::{LaneClass, Rota};
use crate::submit::{Command, Completion, Refused};
use ready_set::ReadySet;

/// Lanes up to this many are each polled in turn; of more, those that have something to do.
const POLLED_COUNT_MAX: usize = 8;

/// Several lanes of one thread.
#[derive(Debug)]
pub struct LaneSet<B = Vec<u8>> {
    lanes: Vec<Lane<B>>,
    /// For more than a few lanes.
    ready_set: Option<Box<ReadySet>>,
    rota: Rota,
    worked_ns: u64,
}

impl<B: DataBuffer> LaneSet<B> {
    /// These lanes.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new(lanes: Vec<Lane<B>>) -> Result<Self, Error> {
        let is_many = lanes.len() > POLLED_COUNT_MAX;
        let ready_set = is_many.then(|| ReadySet::new(&lanes)).transpose();
        let ready_set = ready_set.map_err(|error| Error::system("watch lanes", error))?;
        let rota = Rota::new(lanes.iter().map(Lane::class));
        Ok(Self { lanes, ready_set: ready_set.map(Box::new), rota, worked_ns: 0 })
    }

    /// The lanes.
    #[must_use]
    pub fn lanes(&self) -> &[Lane<B>] {
        &self.lanes
    }

    /// The lanes, to do anything with. Of many, each is looked at in the next poll: [`lane_mut`](Self::lane_mut) and
    /// [`submit`](Self::submit) spare the others.
    pub fn lanes_mut(&mut self) -> &mut [Lane<B>] {
        if let Some(ready_set) = &mut self.ready_set {
            ready_set.lend_all();
        }
        &mut self.lanes
    }

    /// One lane, to do anything with.
    ///
    /// # Panics
    /// If there are fewer lanes.
    pub fn lane_mut(&mut self, index: usize) -> &mut Lane<B> {
        if let Some(ready_set) = &mut self.ready_set {
            ready_set.lend(index);
        }
        &mut self.lanes[index]
    }

    /// The lanes, to be owned one by one again.
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
    /// If there are fewer lanes.
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

    /// The lane that takes the next command like this one: those of its [class](Command::lane_class) in turn, or the others if there
    /// are none.
    ///
    /// # Panics
    /// If there is no lane at all.
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

    /// Polls the lanes without waiting. Each completion is handed to `each` with the index of its lane; gives their number.
    pub fn poll_with(&mut self, each: &mut impl FnMut(usize, Completion<B>)) -> usize {
        if let Some(ready_set) = &mut self.ready_set {
            let now_ns = self.lanes[0].clock().now_ns();
            return ready_set.poll_with(&mut self.lanes, self.rota.of(LaneClass::Poll), now_ns, each);
        }
        let lanes = self.lanes.iter_mut().enumerate();
        lanes.map(|(index, lane)| lane.poll_with(&mut |completion| each(index, completion))).sum()
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
            if self.may_spin(now_ns.saturating_sub(self.worked_ns)) {
                self.lanes[0].spin();
            } else {
                self.lanes[0].count_sleep();
                self.sleep(until_ns - now_ns, now_ns);
            }
        }
    }

    /// Whether a wait that has lasted so long should spin on. The first lane learns for all.
    fn may_spin(&self, idle_ns: u64) -> bool {
        let has_work = match &self.ready_set {
            Some(ready_set) => ready_set.has_unsignalled_work(&self.lanes),
            None => self.lanes.iter().any(|lane| (lane.has_waiting() && lane.is_live()) || lane.has_more()),
        };
        let is_polled = self.rota.of(LaneClass::Poll).iter().any(|&index| self.lanes[index].must_spin());
        has_work || is_polled || self.lanes[0].may_spin(idle_ns)
    }

    fn sleep(&mut self, timeout_ns: u64, now_ns: u64) {
        let is_woken = match &mut self.ready_set {
            Some(ready_set) => {
                let until_ns = ready_set.next_deadline_ns().unwrap_or(u64::MAX);
                ready_set.sleep(&self.lanes, timeout_ns.min(until_ns.saturating_sub(now_ns)))
            }
            None => self.sleep_on_few(timeout_ns, now_ns),
        };
        if is_woken {
            let clock = self.lanes[0].clock();
            self.lanes[0].spin_mut().on_woken(clock.now_ns().saturating_sub(now_ns));
        }
    }

    /// Sleeps without leaving a trace at the sockets: what watches a socket is called for each segment that arrives, on the core of
    /// whoever sent it, also while we spin (docs/design/socket-path.md).
    fn sleep_on_few(&mut self, timeout_ns: u64, now_ns: u64) -> bool {
        let deadline_ns = self.lanes.iter().filter_map(Lane::next_deadline).min();
        let timeout_ns = deadline_ns.map_or(timeout_ns, |at| timeout_ns.min(at.saturating_sub(now_ns)));
        for lane in &self.lanes {
            lane.mailbox().announce_sleep();
        }
        // A message that came before the announcement is found by a look at the mailboxes.
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
        let is_woken = sleep(interests, timeout_ns);
        for lane in &self.lanes {
            lane.mailbox().announce_awake();
        }
        is_woken
    }
}
