//! The `ethtool` system call for settings that netlink does not carry in all kernels from 6.1 on: tables and contexts
//! of receive-side scaling, steering rules, and interrupt moderation of single queues (`linux/ethtool.h`).

pub mod moderation;
pub mod scaling;
pub mod steering;

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::netlink::message::u32_at;

/// The system call for one device.
#[derive(Debug)]
pub struct Ioctl {
    socket: OwnedFd,
    interface: String,
}

impl Ioctl {
    /// Opens a socket for `interface`.
    ///
    /// # Errors
    /// The system's reason.
    pub fn open(interface: &str) -> Result<Self, Errno> {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, interface: interface.into() })
    }

    /// The cookie of the network namespace.
    pub(crate) fn network_cookie(&self) -> std::io::Result<u64> {
        linux::network_cookie(&self.socket)
    }

    /// Exchanges a structure with the driver.
    fn exchange(&self, request: &mut [u8]) -> Result<(), Errno> {
        linux::ethtool_ioctl(&self.socket, &self.interface, request)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
    }
}

/// Whether a driver or kernel says that it lacks a command, rather than an object.
fn is_unsupported(errno: Errno) -> bool {
    // 524 is the kernel's internal ENOTSUPP, which some drivers let out.
    matches!(errno, Errno::OPNOTSUPP | Errno::NOTTY) || errno.raw_os_error() == 524
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

/// Words of four bytes from `at` on, as many as are there.
fn words(bytes: &[u8], at: usize, count: usize) -> Vec<u32> {
    (0..count).map_while(|word| u32_at(bytes, at + 4 * word)).collect()
}
