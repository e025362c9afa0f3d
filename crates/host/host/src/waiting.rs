//! Waiting for sockets, and the end of one.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use reactor::Socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// Resets a connection: drops unsent data, and the target notices at once.
pub(crate) fn reset(socket: Socket) {
    // Without the option the connection closes with FIN, which only takes longer.
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    drop(socket);
}

/// Readiness of a descriptor to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) writable: bool,
    pub(crate) readable: bool,
}

/// A descriptor to wait for beside a lane: see [`Lane::wait_beside`](crate::Lane::wait_beside).
#[derive(Clone, Copy, Debug)]
pub struct WaitBeside<'a> {
    interest: Option<Interest<'a>>,
}

impl<'a> WaitBeside<'a> {
    /// None: waits for the lane alone.
    pub const NOTHING: WaitBeside<'static> = WaitBeside { interest: None };

    /// A descriptor until it is readable.
    #[must_use]
    pub fn readable(fd: BorrowedFd<'a>) -> Self {
        Self::new(fd, true, false)
    }

    /// A descriptor until it is readable or writable, as far as wanted. An error or hang-up of the descriptor counts as
    /// either, unless neither is wanted.
    #[must_use]
    pub fn new(fd: BorrowedFd<'a>, readable: bool, writable: bool) -> Self {
        let is_wanted = readable || writable;
        Self { interest: is_wanted.then_some(Interest { fd, writable, readable }) }
    }

    pub(crate) fn interest(self) -> Option<Interest<'a>> {
        self.interest
    }
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitEnded {
    /// Completions; 0 after the timeout, if the other descriptor is ready, or if the association has ended for good.
    pub completions: usize,
    /// The other descriptor is ready.
    pub is_ready: bool,
}

/// Sleeps until a descriptor is ready, at most `timeout_ns`. Returns which are.
pub(crate) fn sleep<const COUNT: usize>(
    interests: [Option<Interest<'_>>; COUNT],
    timeout_ns: u64,
) -> [bool; COUNT] {
    let flags = |interest: Interest<'_>| {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.readable);
        flags.set(PollFlags::OUT, interest.writable);
        flags
    };
    // poll(2) takes no gaps: missing entries repeat the first one.
    let Some(first) = interests.iter().flatten().next().copied() else {
        std::thread::sleep(Duration::from_nanos(timeout_ns));
        return [false; COUNT];
    };
    let mut fds = interests.map(|interest| {
        let interest = interest.unwrap_or(first);
        PollFd::from_borrowed_fd(interest.fd, flags(interest))
    });
    let timeout = timespec(timeout_ns);
    match poll(&mut fds, Some(&timeout)) {
        Ok(count) if count > 0 => {
            let mut ready = fds.map(|fd| !fd.revents().is_empty());
            for (ready, interest) in ready.iter_mut().zip(&interests) {
                *ready &= interest.is_some();
            }
            ready
        }
        // Interrupted by a signal: the caller polls and sleeps again.
        Ok(_) | Err(_) => [false; COUNT],
    }
}

pub(crate) fn timespec(ns: u64) -> Timespec {
    const SECOND: u64 = 1_000_000_000;
    Timespec {
        tv_sec: i64::try_from(ns / SECOND).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % SECOND).expect("below a second"),
    }
}
