//! A blocking netlink socket: one request, all of its answers.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::message::{ACK, HEADER_BYTES, Message, attributes, find, messages, text, u16_at, u32_at};

/// Type of a message that acknowledges or refuses a request.
const ERROR: u16 = 2;
/// Type of the message that ends a dump.
const DONE: u16 = 3;
/// Flag of an acknowledgement: it does not repeat the request.
const CAPPED: u16 = 0x100;
/// Flag of an acknowledgement: attributes with the kernel's explanation follow.
const EXPLAINED: u16 = 0x200;
/// Attribute of an acknowledgement: the kernel's explanation (`NLMSGERR_ATTR_MSG`).
const EXPLANATION: u16 = 1;
/// Message type of the family that lists families.
const CONTROL: u16 = 16;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;
/// Bytes received at once; the kernel's answers are at most 32 KiB.
const RECEIVE_BYTES: usize = 64 * 1024;
/// `NETLINK_ROUTE` has the number 0, which rustix expresses as no protocol.
const ROUTE: Option<rustix::net::Protocol> = None;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel refused the request.
    #[error("{}", refusal(*.errno, .explanation))]
    Refused {
        /// The system error.
        errno: Errno,
        /// The kernel's explanation, where it gives one (7.2 does where 6.1 does not).
        explanation: Option<String>,
    },
    /// The kernel has no family of this name.
    #[error("this kernel has no \"{0}\" netlink family")]
    FamilyMissing(&'static str),
    /// The exchange with the kernel failed.
    #[error("netlink: {0}")]
    Exchange(Errno),
}

fn refusal(errno: Errno, explanation: &Option<String>) -> String {
    match explanation {
        Some(text) => format!("{text} ({errno})"),
        None => errno.to_string(),
    }
}

impl NetlinkError {
    /// The system error, if the kernel refused the request.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::FamilyMissing(_) | Self::Exchange(_) => None,
        }
    }
}

/// A socket of one netlink protocol.
#[derive(Debug)]
pub struct NetlinkSocket {
    fd: OwnedFd,
    sequence: u32,
}

impl NetlinkSocket {
    /// A socket for links, queueing disciplines and filters.
    ///
    /// # Errors
    /// [`NetlinkError::Exchange`] with the system's reason.
    pub fn route() -> Result<Self, NetlinkError> {
        Self::open(ROUTE)
    }

    /// A socket for families that have a name: ethtool.
    ///
    /// # Errors
    /// [`NetlinkError::Exchange`] with the system's reason.
    pub fn generic() -> Result<Self, NetlinkError> {
        Self::open(Some(netlink::GENERIC))
    }

    fn open(protocol: Option<rustix::net::Protocol>) -> Result<Self, NetlinkError> {
        let fd =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
                .and_then(|fd| rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0)).map(|()| fd))
                .map_err(NetlinkError::Exchange)?;
        // Explanations are a convenience: the kernel's error number is enough to continue.
        let _ = linux::explain_netlink_errors(&fd);
        Ok(Self { fd, sequence: 0 })
    }

    /// The number of a family, on a socket for families that have a name.
    ///
    /// # Errors
    /// [`NetlinkError::FamilyMissing`] if the kernel lacks it, or that of the exchange.
    pub fn family(&mut self, name: &'static str) -> Result<u16, NetlinkError> {
        let mut message = Message::new(CONTROL, ACK, &[CONTROL_GET_FAMILY, 1, 0, 0]);
        message.text(CONTROL_FAMILY_NAME, name);
        let mut family = None;
        match self.request(message, |body| {
            family = body.get(4..).and_then(|rest| u16_at(find(rest, CONTROL_FAMILY_ID)?, 0));
        }) {
            Ok(()) | Err(NetlinkError::Refused { errno: Errno::NOENT, .. }) => {}
            Err(error) => return Err(error),
        }
        family.ok_or(NetlinkError::FamilyMissing(name))
    }

    /// Sends `message` and waits for the kernel's acknowledgement or the end of its dump. Passes the body of each
    /// other answer to `on_answer`.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`] with the kernel's reason, [`NetlinkError::Exchange`] if nothing can be exchanged.
    pub fn request(
        &mut self,
        message: Message,
        mut on_answer: impl FnMut(&[u8]),
    ) -> Result<(), NetlinkError> {
        self.sequence += 1;
        let bytes = message.finish(self.sequence);
        rustix::net::send(&self.fd, &bytes, SendFlags::empty()).map_err(NetlinkError::Exchange)?;
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            let (received, _) = match rustix::net::recv(&self.fd, &mut buffer, RecvFlags::empty()) {
                Ok(counts) => counts,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(NetlinkError::Exchange(errno)),
            };
            for answer in messages(&buffer[..received]).filter(|answer| answer.sequence == self.sequence) {
                match answer.kind {
                    ERROR => return outcome(answer.flags, answer.body),
                    DONE => return Ok(()),
                    _ => on_answer(answer.body),
                }
            }
        }
    }
}

/// The outcome in an acknowledgement: `struct nlmsgerr`, the request or its header, then attributes.
fn outcome(flags: u16, body: &[u8]) -> Result<(), NetlinkError> {
    let code = u32_at(body, 0).map_or(0, u32::cast_signed);
    if code == 0 {
        return Ok(());
    }
    let request_bytes = match u32_at(body, 4) {
        Some(length) if flags & CAPPED == 0 => (length as usize).next_multiple_of(4),
        _ => HEADER_BYTES,
    };
    let explanation = (flags & EXPLAINED != 0)
        .then(|| body.get(4 + request_bytes..))
        .flatten()
        .and_then(|rest| attributes(rest).find(|(kind, _)| *kind == EXPLANATION))
        .map(|(_, value)| text(value));
    Err(NetlinkError::Refused { errno: Errno::from_raw_os_error(-code), explanation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_carries_the_kernels_explanation() {
        let mut body = (-22i32).to_ne_bytes().to_vec();
        body.extend_from_slice(&[0; HEADER_BYTES]);
        let words = b"Device does not support hardware offload.\0";
        body.extend_from_slice(&u16::try_from(4 + words.len()).unwrap().to_ne_bytes());
        body.extend_from_slice(&EXPLANATION.to_ne_bytes());
        body.extend_from_slice(words);
        let error = outcome(CAPPED | EXPLAINED, &body).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::INVAL));
        assert!(error.to_string().starts_with("Device does not support hardware offload. ("), "{error}");
        assert!(outcome(CAPPED, &body).unwrap_err().to_string().contains("Invalid argument"));
        assert!(outcome(0, &[0; 4]).is_ok());
    }
}
