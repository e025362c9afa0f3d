//! Listening sockets that the service manager opened before the start of this process: sd_listen_fds(3).

use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::LazyLock;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_acceptconn, socket_type};

/// The first descriptor.
const FIRST: RawFd = 3;

/// Limit on their number.
const COUNT_MAX: u32 = 1024;

/// One of them.
struct Passed {
    fd: OwnedFd,
    /// `None` unless it listens for TCP connections.
    address: Option<SocketAddr>,
}

/// They stay open as long as the process: the manager holds them too, and a listener that a reload removes may come back.
static PASSED: LazyLock<Vec<Passed>> = LazyLock::new(|| {
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(COUNT_MAX).cast_signed();
    (FIRST..FIRST + count).filter_map(take).collect()
});

/// Takes a descriptor, if it is open.
fn take(raw: RawFd) -> Option<Passed> {
    // SAFETY: F_GETFD reads a flag of the descriptor, whatever it is, and fails if it is not open.
    if unsafe { libc::fcntl(raw, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: it is open, and the manager has passed it to this process, of which nothing else knows it: this is the only
    // call for it, before the process has opened any descriptor of its own.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    if let Ok(flags) = fcntl_getfd(&fd) {
        let _ = fcntl_setfd(&fd, flags | FdFlags::CLOEXEC);
    }
    let listens = socket_acceptconn(&fd) == Ok(true) && socket_type(&fd) == Ok(SocketType::STREAM);
    let address = rustix::net::getsockname(&fd).ok().filter(|_| listens);
    Some(Passed { address: address.and_then(|address| SocketAddr::try_from(address).ok()), fd })
}

/// Takes the sockets over. Returns the addresses of those that listen for TCP connections, and the number of other
/// descriptors. To be called before the process opens descriptors.
pub fn take_passed_sockets() -> (Vec<SocketAddr>, usize) {
    let addresses: Vec<_> = PASSED.iter().filter_map(|passed| passed.address).collect();
    let others = PASSED.len() - addresses.len();
    (addresses, others)
}

/// The socket that listens at this address, if one was passed.
pub fn passed_socket(address: SocketAddr) -> Option<OwnedFd> {
    let passed = PASSED.iter().find(|passed| passed.address == Some(address))?;
    fcntl_dupfd_cloexec(&passed.fd, 0).ok()
}
