//! The `SIOCETHTOOL` system call, for settings of a network device that no netlink message carries.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `ETHTOOL_GCOALESCE`, `ETHTOOL_SCOALESCE`: interrupt moderation of a device.
const COALESCE: std::ops::RangeInclusive<u32> = 0x0e..=0x0f;
/// Bytes of `struct ethtool_coalesce`.
const COALESCE_BYTES: usize = 92;
/// `ETHTOOL_GRXCLSRLCNT` to `ETHTOOL_SRXCLSRLINS`: steering rules of a device.
const RULES: std::ops::RangeInclusive<u32> = 0x2e..=0x32;
/// `ETHTOOL_GRXCLSRLALL`, which the kernel answers with a list.
const LIST_RULES: u32 = 0x30;
/// Bytes of `struct ethtool_rxnfc`; the offset of its list, and of the length of the list.
const RULE_BYTES: usize = 192;
const RULE_LIST_AT: usize = 188;
const RULE_COUNT_AT: usize = 184;
/// `ETHTOOL_GRSSH`, `ETHTOOL_SRSSH`: receive-side scaling.
const SCALING: std::ops::RangeInclusive<u32> = 0x46..=0x47;
/// Bytes of `struct ethtool_rxfh` before its table and key.
const SCALING_BYTES: usize = 24;
/// Length of a table that stays as it is.
const TABLE_STAYS: u32 = u32::MAX;
/// `ETHTOOL_PERQUEUE`: a command for some queues, here one of [`COALESCE`].
const PER_QUEUE: u32 = 0x4b;
/// Bytes of `struct ethtool_per_queue_op`: the command, the command for the queues, a bit per queue.
const PER_QUEUE_BYTES: usize = 8 + 512;

/// Exchanges `request` with the driver of `interface`, through any socket: a structure of `linux/ethtool.h` for
/// interrupt moderation, steering rules or receive-side scaling, which the kernel reads and writes its answer to.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the command is another one or its structure is longer than `request`, else the
/// kernel's reason.
pub fn ethtool_ioctl(socket: &impl AsFd, interface: &str, request: &mut [u8]) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    if length_bytes(request).is_none_or(|length| length > request.len()) {
        return Err(invalid());
    }
    // SAFETY: all of its fields may be zero.
    let mut parameters: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= parameters.ifr_name.len() {
        return Err(invalid());
    }
    for (to, from) in parameters.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    parameters.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
    // SAFETY: the kernel reads and writes the parameters and the structure in `request`, which has the length that the
    // kernel derives from it (checked above), during the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCETHTOOL, &raw mut parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bytes that the kernel reads or writes for a request; `None` if that is not known.
fn length_bytes(request: &[u8]) -> Option<usize> {
    let word = |at: usize| Some(u32::from_ne_bytes(request.get(at..at + 4)?.try_into().ok()?));
    let command = word(0)?;
    if COALESCE.contains(&command) {
        Some(COALESCE_BYTES)
    } else if command == LIST_RULES {
        Some((RULE_LIST_AT + 4 * word(RULE_COUNT_AT)? as usize).max(RULE_BYTES))
    } else if RULES.contains(&command) {
        Some(RULE_BYTES)
    } else if SCALING.contains(&command) {
        let entries = word(8).filter(|length| *length != TABLE_STAYS).unwrap_or(0);
        Some(SCALING_BYTES + 4 * entries as usize + word(12)? as usize)
    } else if command == PER_QUEUE && COALESCE.contains(&word(4)?) {
        let queues: u32 = request.get(8..PER_QUEUE_BYTES)?.iter().map(|byte| byte.count_ones()).sum();
        Some(PER_QUEUE_BYTES + COALESCE_BYTES * queues as usize)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &[(usize, u32)], length: usize) -> Vec<u8> {
        let mut request = vec![0; length];
        for (at, word) in words {
            request[*at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        request
    }

    #[test]
    fn a_request_that_the_kernel_would_write_beyond_is_refused() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for (words, length) in [
            (&[(0, 0x0e)][..], 92),
            (&[(0, 0x2f)], 192),
            (&[(0, 0x30), (184, 100)], 188 + 400),
            (&[(0, 0x46), (8, 128), (12, 40)], 24 + 512 + 40),
            (&[(0, 0x47), (8, u32::MAX)], 24),
            (&[(0, 0x4b), (4, 0x0e), (8, 0b101)], 520 + 184),
        ] {
            assert_eq!(length_bytes(&request(words, 520)), Some(length));
            let error = ethtool_ioctl(&socket, "lo", &mut request(words, length - 1)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let error = ethtool_ioctl(&socket, "lo", &mut request(words, length)).unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        for words in [&[(0, 0x01)][..], &[(0, 0x4b), (4, 0x46)], &[]] {
            let error = ethtool_ioctl(&socket, "lo", &mut request(words, 1024)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let mut valid = request(&[(0, 0x0e)], 92);
        let error = ethtool_ioctl(&socket, "a-name-that-is-too-long", &mut valid).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
