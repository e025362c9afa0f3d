//! Socket options that no library offers.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Sets an option of the socket level.
///
/// # Errors
/// The kernel's reason.
pub fn set(fd: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    set_of(fd, (libc::SOL_SOCKET, option), value)
}

/// Reads an option of the socket level.
///
/// # Errors
/// The kernel's reason.
pub fn get(fd: BorrowedFd<'_>, option: i32) -> io::Result<i32> {
    get_of(fd, (libc::SOL_SOCKET, option))
}

/// Sets an option of TCP.
///
/// # Errors
/// The kernel's reason.
pub fn set_tcp(fd: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    set_of(fd, (libc::IPPROTO_TCP, option), value)
}

/// Reads an option of TCP.
///
/// # Errors
/// The kernel's reason.
pub fn tcp(fd: BorrowedFd<'_>, option: i32) -> io::Result<i32> {
    get_of(fd, (libc::IPPROTO_TCP, option))
}

/// The process at the other end of a Unix socket, as it was when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id; `None` if it is in no PID namespace of this process, such as a container's host.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// The process at the other end of a Unix socket.
///
/// # Errors
/// The socket has no other end.
pub fn peer(socket: &impl AsFd) -> io::Result<Peer> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("short");
    // SAFETY: the kernel writes at most `length` bytes at the structure, whose fields are integers, and the length; both live
    // through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { pid: u32::try_from(peer.pid).ok().filter(|pid| *pid > 0), uid: peer.uid, gid: peer.gid })
}

fn set_of(fd: BorrowedFd<'_>, (level, option): (i32, i32), value: i32) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<i32>()).expect("four");
    // SAFETY: the kernel reads `length` bytes at the value, which lives through the call.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get_of(fd: BorrowedFd<'_>, (level, option): (i32, i32)) -> io::Result<i32> {
    let mut value = 0i32;
    let mut length = libc::socklen_t::try_from(size_of::<i32>()).expect("four");
    // SAFETY: the kernel writes at most `length` bytes at the value, and the length; both live through the call.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Time since the last bytes arrived on a TCP connection, ms, at the resolution of the kernel's tick.
///
/// # Errors
/// If the descriptor is no TCP socket.
pub fn ms_since_arrival(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).expect("short");
    // SAFETY: the kernel writes at most `length` bytes at the structure, and the length; both live through the call.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all fields are integers, initialised to 0 before the call.
    Ok(unsafe { info.assume_init() }.tcpi_last_data_recv)
}

/// Sets the priority of the packets that leave a socket, which chooses their class on the device. A type of service
/// that is set later overwrites it.
///
/// # Errors
/// A priority above 6 takes `CAP_NET_ADMIN` or `CAP_NET_RAW`.
pub fn set_priority(socket: &impl AsFd, priority: u8) -> io::Result<()> {
    set(socket.as_fd(), libc::SO_PRIORITY, priority.into())
}

/// The priority of the packets that leave a socket.
///
/// # Errors
/// If the descriptor is no socket.
pub fn priority(socket: &impl AsFd) -> io::Result<u8> {
    get(socket.as_fd(), libc::SO_PRIORITY).map(|priority| u8::try_from(priority).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_peer_is_a_process_and_its_user() {
        let (near, _far) = UnixStream::pair().expect("a pair");
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        let own = Peer { pid: Some(std::process::id()), uid: user, gid: group };
        assert_eq!(peer(&near).expect("it has one"), own);
    }
}
