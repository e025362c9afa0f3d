//! The connections of one side to look at in a turn: each of a few, of more those that the kernel reports.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use reactor::Socket;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Connections up to this many are each looked at: to ask the kernel about them costs more.
const EACH_COUNT_MAX: usize = 8;

/// Events taken from the kernel at once.
const EVENT_COUNT: usize = 256;

/// The longest sleep: flags are looked at in between.
const SLEEP: Duration = Duration::from_millis(10);

pub(super) struct Watch {
    /// For more than a few.
    epoll: Option<OwnedFd>,
    events: Vec<epoll::Event>,
    /// Connections to look at in this turn.
    ready: Vec<usize>,
    /// Those to look at in the next turn, whatever the kernel says.
    again: Vec<usize>,
}

impl Watch {
    pub(super) fn new<'a>(sockets: impl IntoIterator<Item = &'a Socket>) -> io::Result<Self> {
        let sockets: Vec<_> = sockets.into_iter().collect();
        let is_few = sockets.len() <= EACH_COUNT_MAX;
        let make = || -> io::Result<OwnedFd> {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            for (index, socket) in sockets.iter().enumerate() {
                let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
                epoll::add(&epoll, *socket, EventData::new_u64(index as u64), flags)?;
            }
            Ok(epoll)
        };
        let epoll = if is_few { None } else { Some(make()?) };
        let ready = (0..sockets.len()).collect();
        Ok(Self { epoll, events: Vec::with_capacity(EVENT_COUNT), ready, again: Vec::new() })
    }

    /// Connections to look at now.
    pub(super) fn next(&mut self) -> io::Result<&[usize]> {
        self.take_events(Duration::ZERO)?;
        Ok(&self.ready)
    }

    /// Looks at a connection in the next turn in any case.
    pub(super) fn look_again(&mut self, index: usize) {
        if self.epoll.is_some() {
            self.again.push(index);
        }
    }

    /// Sleeps until there is something to look at.
    pub(super) fn sleep<'a>(&mut self, sockets: impl Iterator<Item = &'a Socket>) -> io::Result<()> {
        if self.epoll.is_some() {
            return if self.again.is_empty() { self.wait(SLEEP) } else { Ok(()) };
        }
        let mut fds: Vec<_> = sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timespec(SLEEP))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn take_events(&mut self, timeout: Duration) -> io::Result<()> {
        if self.epoll.is_none() {
            return Ok(());
        }
        self.ready.clear();
        self.ready.append(&mut self.again);
        self.wait(timeout)?;
        let known = self.ready.len();
        for at in 0..self.events.len() {
            let index = usize::try_from(self.events[at].data.u64()).expect("an index");
            if !self.ready[..known].contains(&index) {
                self.ready.push(index);
            }
        }
        self.events.clear();
        Ok(())
    }

    /// Waits for events up to the timeout, unless events of the last wait are left.
    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let Some(epoll) = &self.epoll else { return Ok(()) };
        if !self.events.is_empty() {
            return Ok(());
        }
        let space = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(epoll, space, Some(&timespec(timeout))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() }
}
