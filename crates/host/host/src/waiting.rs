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

/// Sleeps until a descriptor is ready, at most `timeout_ns`. Returns whether one is.
pub(crate) fn sleep<const COUNT: usize>(interests: [Option<Interest<'_>>; COUNT], timeout_ns: u64) -> bool {
    let flags = |interest: Interest<'_>| {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.readable);
        flags.set(PollFlags::OUT, interest.writable);
        flags
    };
    // poll(2) takes no gaps: missing entries repeat the first one.
    let Some(first) = interests.iter().flatten().next().copied() else {
        std::thread::sleep(Duration::from_nanos(timeout_ns));
        return false;
    };
    let mut fds = interests.map(|interest| {
        let interest = interest.unwrap_or(first);
        PollFd::from_borrowed_fd(interest.fd, flags(interest))
    });
    let timeout = timespec(timeout_ns);
    match poll(&mut fds, Some(&timeout)) {
        Ok(count) => count > 0,
        // Interrupted by a signal: the caller polls and sleeps again.
        Err(_) => false,
    }
}

pub(crate) fn timespec(ns: u64) -> Timespec {
    const SECOND: u64 = 1_000_000_000;
    Timespec {
        tv_sec: i64::try_from(ns / SECOND).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % SECOND).expect("below a second"),
    }
}
