//! Lanes driven by threads of their own, one each: a command reaches its lane through a mailbox, and its completion
//! returns through another. There are no locks, and commands make progress without polls of the submitter.
//!
//! ```text
//! submitter                          thread of the lane
//!   submit ──── mailbox ───────────▶   Lane::submit, ring, poll …
//!   poll   ◀─── mailbox ────────────   completions
//! ```
//!
//! A thread that owns its lanes (a [`Lane`], a [`LaneSet`](crate::LaneSet)) saves two messages per command, and their
//! wake-ups (`nvlane study inline-send`). Use [`HandedLanes`] where the submitter has no time to poll.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::Duration;

use host_core::duration::ns;
use host_core::failure::Failure;
use host_core::queue_map::Rota;
use host_core::submit::{Command, Completion, Refused, RefusedReason};
use proto::host_queue::DataBuffer;
use reactor::{Address as Post, Mailbox, Pause, Wait};

use crate::connect::Clock;
use crate::error::Error;
use crate::lane::Lane;
use crate::waiting::{Interest, sleep};

/// Maximum sleep of a lane's thread, ns.
const SLEEP_NS: u64 = 60_000_000_000;

/// Lanes with a thread each, for one submitter.
#[derive(Debug)]
pub struct HandedLanes<B = Vec<u8>> {
    posts: Vec<Post<Order<B>>>,
    threads: Vec<JoinHandle<Lane<B>>>,
    ends: Mailbox<(usize, Completion<B>)>,
    rota: Rota,
    outstanding: usize,
    clock: Clock,
}

/// A message to a lane's thread.
enum Order<B> {
    Submit(Box<Handed<B>>),
    Close,
}

struct Handed<B> {
    command: Command,
    buffer: Option<B>,
    user: u64,
}

impl<B: DataBuffer + Send + 'static> HandedLanes<B> {
    /// Hands each of these lanes to a new thread, with the caller's CPU affinity.
    ///
    /// # Errors
    /// [`Error::System`]: no thread or file descriptor is available.
    pub fn new(lanes: Vec<Lane<B>>) -> Result<Self, Error> {
        let make = || Mailbox::new().map_err(|error| Error::system("make a mailbox", error));
        let rota = Rota::new(lanes.iter().map(Lane::class));
        let mut handed = Self {
            posts: Vec::new(),
            threads: Vec::new(),
            ends: make()?,
            rota,
            outstanding: 0,
            clock: Clock::new(),
        };
        for (index, lane) in lanes.into_iter().enumerate() {
            let mailbox = Mailbox::new().map_err(|error| Error::system("make a mailbox", error))?;
            handed.posts.push(mailbox.address());
            let driver = Driver { index, lane, backlog: VecDeque::new(), ends: handed.ends.address() };
            let builder = std::thread::Builder::new().name(format!("nvlane-lane-{}", driver.lane.number()));
            let spawned = builder.spawn(move || driver.run(&mailbox));
            handed.threads.push(spawned.map_err(|error| Error::system("start a thread", error))?);
        }
        Ok(handed)
    }

    /// Index of the lane for the next command like this one, as [`LaneSet::next_lane`](crate::LaneSet::next_lane).
    ///
    /// # Panics
    /// If the set is empty.
    pub fn next_lane(&mut self, command: &Command) -> usize {
        self.rota.next(command.lane_class(), command.class_unpolled()).expect("a set of lanes has one")
    }

    /// Submits a command to a lane's thread, where it waits if the lane has no room.
    ///
    /// # Errors
    /// [`Refused`]: the buffer does not have the command's length, or the lane's thread has ended.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn submit(
        &mut self,
        index: usize,
        command: Command,
        buffer: Option<B>,
        user: u64,
    ) -> Result<(), Refused<B>> {
        let expected = command.buffer_bytes().unwrap_or(0);
        let given = buffer.as_ref().map_or(0, DataBuffer::length);
        if given != expected as usize {
            return Err(Refused { reason: RefusedReason::Length { expected, given }, buffer });
        }
        if !self.posts[index].post(Order::Submit(Box::new(Handed { command, buffer, user }))) {
            return Err(Refused { reason: RefusedReason::Ended, buffer: None });
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Commands submitted and not completed.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes completions without blocking. Calls `each` for each with the index of its lane; returns their number.
    pub fn poll_with(&mut self, each: &mut impl FnMut(usize, Completion<B>)) -> usize {
        let mut count = 0;
        while let Some((index, completion)) = self.ends.next_message() {
            each(index, completion);
            count += 1;
        }
        self.outstanding -= count;
        count
    }

    /// Waits for completions, at most `timeout`. Returns their number: 0 after `timeout`, or if nothing is outstanding.
    pub fn wait_with(&mut self, each: &mut impl FnMut(usize, Completion<B>), timeout: Duration) -> usize {
        let until_ns = self.clock.now_ns().saturating_add(ns(timeout));
        loop {
            let count = self.poll_with(each);
            if count > 0 || self.outstanding == 0 {
                return count;
            }
            let now_ns = self.clock.now_ns();
            if now_ns >= until_ns {
                return 0;
            }
            self.ends.announce_sleep();
            // A completion posted before the announcement did not wake the thread.
            let count = self.poll_with(each);
            if count == 0 {
                let mailbox = Interest { fd: self.ends.as_fd(), writable: false, readable: true };
                sleep([Some(mailbox)], until_ns - now_ns);
            }
            self.ends.announce_awake();
            if count > 0 {
                return count;
            }
        }
    }

    /// Ends the threads and returns the lanes, with their outstanding commands.
    #[must_use]
    pub fn into_lanes(mut self) -> Vec<Lane<B>> {
        self.posts.drain(..).for_each(|post| {
            post.post(Order::Close);
        });
        // A thread's panic was reported where it happened.
        std::mem::take(&mut self.threads).into_iter().filter_map(|thread| thread.join().ok()).collect()
    }
}

impl<B> Drop for HandedLanes<B> {
    fn drop(&mut self) {
        for post in &self.posts {
            post.post(Order::Close);
        }
    }
}

/// A lane, driven by a thread.
struct Driver<B> {
    index: usize,
    lane: Lane<B>,
    /// Commands that wait for room in the lane.
    backlog: VecDeque<Box<Handed<B>>>,
    ends: Post<(usize, Completion<B>)>,
}

impl<B: DataBuffer> Driver<B> {
    /// Runs until [`Order::Close`].
    fn run(mut self, mailbox: &Mailbox<Order<B>>) -> Lane<B> {
        let mut rest = Rest::default();
        let mut next = None;
        loop {
            let mut has_worked = false;
            while let Some(order) = next.take().or_else(|| mailbox.next_message()) {
                has_worked = true;
                match order {
                    Order::Submit(handed) => self.backlog.push_back(handed),
                    Order::Close => return self.lane,
                }
            }
            self.submit_backlog();
            let (index, ends) = (self.index, &self.ends);
            let count = self.lane.poll_with(&mut |completion| {
                ends.post((index, completion));
            });
            next = rest.after_turn(&mut self.lane, mailbox, has_worked || count > 0);
        }
    }

    fn submit_backlog(&mut self) {
        while !self.backlog.is_empty() && (self.lane.has_room(1) || self.lane.over().is_some()) {
            let Some(handed) = self.backlog.pop_front() else { return };
            let Handed { command, buffer, user } = *handed;
            // The buffer fits and there is room: the association ended.
            if let Err(Refused { buffer, .. }) = self.lane.submit(command, buffer, user) {
                let end = Completion { user, result: Err(Failure::Unreachable), received: 0, buffer };
                self.ends.post((self.index, end));
            }
        }
    }
}

/// Spinning and sleeping of a thread that drives a lane.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    wait: Option<Wait>,
}

impl Rest {
    /// Called after a turn: spins as long as that has paid off recently, else sleeps. Returns a message that arrived
    /// before the sleep.
    pub(crate) fn after_turn<B: DataBuffer, M>(
        &mut self,
        lane: &mut Lane<B>,
        mailbox: &Mailbox<M>,
        has_worked: bool,
    ) -> Option<M> {
        let now_ns = lane.polled_ns();
        if has_worked {
            if let Some(wait) = self.wait.replace(Wait::new(now_ns)) {
                wait.on_work(now_ns, lane.spin_budget());
            }
            return None;
        }
        let wait = self.wait.get_or_insert(Wait::new(now_ns));
        let pause = match lane.outstanding() {
            0 => Pause::SLEEP,
            _ => lane.pause(wait.idle_ns(now_ns)),
        };
        let Pause::Sleep { ns } = wait.on_pause(pause) else {
            lane.spin();
            return None;
        };
        mailbox.announce_sleep();
        // A message posted before the announcement did not wake the thread.
        let message = mailbox.next_message();
        if message.is_none() {
            let interest = Interest { fd: mailbox.as_fd(), writable: false, readable: true };
            lane.sleep(ns.min(SLEEP_NS), Some(interest));
        }
        mailbox.announce_awake();
        message
    }
}
