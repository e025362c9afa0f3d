//! Busy polling: a thread that waits for a packet takes it out of the device's queue itself, without an interrupt.
//! docs/design/placement.md
//!
//! The kernel has a switch in three places: on sockets (a receive that finds nothing looks into the device), on epoll
//! sets and on rings (a wait looks before it sleeps; both from Linux 6.9). Each may be missing, or refused to us,
//! alone.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd};

use linux::socket_option::{get, set};

/// The longest that a ring polls before it sleeps, µs; the other switches take the same here.
pub const BUSY_POLL_US_MAX: u32 = 10_000;

/// Most packets taken in one pass by a privileged process.
pub const BUSY_POLL_BUDGET_MAX: u16 = 1024;

/// Busy polling of the devices of a thread's sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyPoll {
    /// Time for which a wait polls before it sleeps, µs; 0 is off.
    pub wait_us: u32,
    /// The device's interrupt stays off as long as it is polled. The device must be set up for it (`gro_flush_timeout`,
    /// `napi_defer_hard_irqs`).
    pub prefers: bool,
    /// Packets taken in one pass; `None` for the kernel's choice.
    pub budget: Option<u16>,
}

impl BusyPoll {
    /// Off.
    pub const OFF: Self = Self { wait_us: 0, prefers: false, budget: None };

    /// Polling for `wait_us`, with defaults for the rest.
    #[must_use]
    pub const fn us(wait_us: u32) -> Self {
        Self { wait_us, ..Self::OFF }
    }

    /// Whether it is asked for.
    #[must_use]
    pub const fn is_on(self) -> bool {
        self.wait_us > 0
    }

    /// The wait, ns.
    #[must_use]
    pub const fn wait_ns(self) -> u64 {
        self.wait_us as u64 * 1000
    }
}

/// The kernel's reply to a request to poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// No request was made.
    #[default]
    No,
    /// The kernel polls.
    Accepted,
    /// The kernel refused with this error.
    Refused(i32),
}

impl Asked {
    pub(crate) fn of(result: io::Result<()>) -> Self {
        match result {
            Ok(()) => Self::Accepted,
            Err(error) => Self::Refused(error.raw_os_error().unwrap_or(libc::EINVAL)),
        }
    }

    /// A short text for counters and logs.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::No => "off".into(),
            Self::Accepted => "on".into(),
            Self::Refused(errno) => format!("refused: {}", io::Error::from_raw_os_error(errno)),
        }
    }
}

/// The replies for one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketPolling {
    /// `SO_BUSY_POLL`.
    pub poll: Asked,
    /// `SO_PREFER_BUSY_POLL`.
    pub prefer: Asked,
    /// `SO_BUSY_POLL_BUDGET`.
    pub budget: Asked,
}

/// Busy polling on one thread: settings, replies and counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyPolling {
    /// The settings requested.
    pub wanted: BusyPoll,
    /// The reply for the engine's ring or epoll set.
    pub engine: Asked,
    /// The reply for the last socket.
    pub socket: SocketPolling,
    /// Sockets that poll.
    pub socket_count: u64,
    /// Sockets for which the kernel refused.
    pub refused_count: u64,
    /// Spins: times that the thread was idle and polled before it slept.
    pub spin_count: u64,
    /// Of these, those that found work.
    pub spin_hit_count: u64,
    /// Sleeps that polled devices first.
    pub sleep_count: u64,
    /// Of these, those that ended within the time for that.
    pub sleep_hit_count: u64,
}

impl BusyPolling {
    pub(crate) fn on_socket(&mut self, socket: SocketPolling) {
        match socket.poll {
            Asked::No => return,
            Asked::Accepted => self.socket_count += 1,
            Asked::Refused(_) => self.refused_count += 1,
        }
        self.socket = socket;
    }
}

/// The device queue and core of a connection's last packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The device queue's NAPI context; `None` where there is none: loopback, and devices that cannot be polled.
    pub napi_id: Option<NonZeroU32>,
    /// The core that received it.
    pub cpu: Option<u32>,
}

impl Arrival {
    /// Asks the kernel.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Self {
        let napi_id = get(fd, libc::SO_INCOMING_NAPI_ID).ok();
        Self {
            napi_id: napi_id.and_then(|id| NonZeroU32::new(id.cast_unsigned())),
            cpu: get(fd, libc::SO_INCOMING_CPU).ok().and_then(|cpu| u32::try_from(cpu).ok()),
        }
    }
}

/// Has a socket poll its device.
pub(crate) fn poll_socket(fd: BorrowedFd<'_>, wanted: BusyPoll) -> SocketPolling {
    if !wanted.is_on() {
        return SocketPolling::default();
    }
    let wait_us = i32::try_from(wanted.wait_us).unwrap_or(i32::MAX);
    let mut polling =
        SocketPolling { poll: Asked::of(set(fd, libc::SO_BUSY_POLL, wait_us)), ..SocketPolling::default() };
    if wanted.prefers {
        polling.prefer = Asked::of(set(fd, libc::SO_PREFER_BUSY_POLL, 1));
    }
    if let Some(budget) = wanted.budget {
        polling.budget = Asked::of(set(fd, libc::SO_BUSY_POLL_BUDGET, budget.into()));
    }
    polling
}

/// Has waits on an epoll set poll the device of its sockets: that of the socket that was ready last.
///
/// # Errors
/// The kernel is older than 6.9, or the budget takes a privilege.
pub fn poll_epoll(fd: BorrowedFd<'_>, wanted: BusyPoll) -> io::Result<()> {
    let parameters = libc::epoll_params {
        busy_poll_usecs: wanted.wait_us,
        busy_poll_budget: wanted.budget.unwrap_or(0),
        prefer_busy_poll: wanted.prefers.into(),
        __pad: 0,
    };
    // SAFETY: the kernel reads the parameters during the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::EPIOCSPARAMS, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn nothing_is_asked_of_the_kernel_while_it_is_off() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut polling = BusyPolling::default();
        polling.on_socket(poll_socket(socket.as_fd(), BusyPoll::OFF));
        assert_eq!(polling, BusyPolling::default());
    }

    #[test]
    fn what_a_socket_says_is_counted() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut polling = BusyPolling::default();
        polling.on_socket(poll_socket(socket.as_fd(), BusyPoll::us(50)));
        assert_eq!(polling.socket_count + polling.refused_count, 1);
        if polling.socket_count == 1 {
            assert_eq!(get(socket.as_fd(), libc::SO_BUSY_POLL).unwrap(), 50);
        }
    }

    #[test]
    fn loopback_has_no_device_queue_and_says_so() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        assert_eq!(Arrival::of(far.as_fd()).napi_id, None);
    }

    #[test]
    fn a_refusal_names_its_reason() {
        assert_eq!(Asked::of(Err(io::Error::from_raw_os_error(libc::EPERM))), Asked::Refused(libc::EPERM));
        assert!(Asked::Refused(libc::EPERM).text().starts_with("refused: Operation not permitted"));
    }
}
