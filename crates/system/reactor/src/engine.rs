//! The engine of a reactor, which waits and runs storage operations: io_uring, or epoll with worker threads.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::busy_poll::BusyPoll;
use crate::epoll::EpollEngine;
use crate::event::{Event, Interest, Patience};
use crate::mailbox::Bell;
use crate::operation::{Operation, Token};
use crate::ring::RingEngine;

pub(crate) enum Engine {
    Uring(Box<RingEngine>),
    Epoll(Box<EpollEngine>),
}

impl Engine {
    /// Watches the bell for as long as the engine lives.
    pub(crate) fn set_bell(&mut self, bell: Arc<Bell>) -> io::Result<()> {
        match self {
            Self::Uring(engine) => engine.set_bell(bell),
            Self::Epoll(engine) => engine.set_bell(bell),
        }
    }

    /// Has waits poll the devices of the sockets watched.
    pub(crate) fn set_busy_poll(&mut self, wanted: BusyPoll) -> io::Result<()> {
        match self {
            Self::Uring(engine) => engine.set_busy_poll(wanted),
            Self::Epoll(engine) => engine.set_busy_poll(wanted),
        }
    }

    /// Asks for one [`Event::Readable`] or [`Event::Writable`] when `fd` is ready, now or later.
    /// Keys are unique among descriptors, also over time.
    pub(crate) fn arm(&mut self, key: u64, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        match self {
            Self::Uring(engine) => engine.arm(key, fd, interest),
            Self::Epoll(engine) => engine.arm(key, fd, interest),
        }
    }

    /// Whether arming checks the descriptor's state, so that earlier input or an earlier end is reported. Otherwise
    /// only changes are reported, and the caller must have read everything before it arms.
    #[inline]
    pub(crate) fn looks_when_armed(&self) -> bool {
        matches!(self, Self::Uring(_))
    }

    /// Asks for one [`Event::Readable`] of a listener, which may have connections waiting already.
    pub(crate) fn arm_listener(&mut self, key: u64, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Uring(engine) => engine.arm(key, fd, Interest::Read),
            Self::Epoll(engine) => engine.arm_once(key, fd),
        }
    }

    /// Removes a descriptor that is about to be closed. Late events for its key have no meaning.
    pub(crate) fn disarm(&mut self, key: u64, fd: BorrowedFd<'_>) {
        match self {
            Self::Uring(engine) => engine.disarm(key),
            Self::Epoll(engine) => engine.disarm(key, fd),
        }
    }

    /// Starts a storage operation; returns it if too many are running.
    pub(crate) fn start(&mut self, token: Token, operation: Operation) -> Result<(), Operation> {
        match self {
            Self::Uring(engine) => engine.start(token, operation),
            Self::Epoll(engine) => engine.start(token, operation),
        }
    }

    /// Submits what is queued, and collects events.
    pub(crate) fn collect(&mut self, patience: Patience, events: &mut Vec<Event>) -> io::Result<()> {
        match self {
            Self::Uring(engine) => engine.collect(patience, events),
            Self::Epoll(engine) => engine.collect(patience, events),
        }
    }

    /// Whether `collect` has anything to do: a cheap look, made while spinning.
    #[inline]
    pub(crate) fn has_work(&mut self) -> bool {
        match self {
            Self::Uring(engine) => engine.has_work(),
            Self::Epoll(engine) => engine.has_work(),
        }
    }

    /// Whether storage operations run.
    #[inline]
    pub(crate) fn has_operations(&self) -> bool {
        match self {
            Self::Uring(engine) => engine.has_operations(),
            Self::Epoll(engine) => engine.has_operations(),
        }
    }
}
