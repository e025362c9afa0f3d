//! Options of netlink sockets, which no safe library sets.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Asks the kernel to explain its refusals on a netlink socket in words, without repeating the request.
///
/// # Errors
/// The system's reason; the socket is not a netlink socket.
pub fn explain_netlink_errors(fd: &impl AsFd) -> io::Result<()> {
    for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
        let value = 1i32;
        let length = libc::socklen_t::try_from(size_of::<i32>()).expect("four");
        // SAFETY: the kernel reads `length` bytes at the value, which lives through the call.
        let result = unsafe {
            libc::setsockopt(
                fd.as_fd().as_raw_fd(),
                libc::SOL_NETLINK,
                option,
                (&raw const value).cast(),
                length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
