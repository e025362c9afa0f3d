//! Options of sockets that are numbers, and that no library has.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Sets an option of the socket level.
pub(crate) fn set(fd: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<i32>()).expect("four");
    // SAFETY: the kernel reads `length` bytes at the value, which lives through the call.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option of the socket level.
pub(crate) fn get(fd: BorrowedFd<'_>, option: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut length = libc::socklen_t::try_from(size_of::<i32>()).expect("four");
    // SAFETY: the kernel writes at most `length` bytes at the value, and the length; both live through the call.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
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
