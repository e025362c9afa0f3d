//! Links: which kind of virtual device one is (`linux/if_link.h`).

use super::message::{ACK, Message, find, text};
use super::socket::{NetlinkError, NetlinkSocket};

const GET: u16 = 18;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
/// Bytes of `struct ifinfomsg`.
const HEADER_BYTES: usize = 16;

/// Kind of a virtual device: `veth`, `vlan`, `bond`; `None` for a device with hardware.
///
/// # Errors
/// Those of [`NetlinkSocket::request`].
pub fn kind(socket: &mut NetlinkSocket, ifindex: u32) -> Result<Option<String>, NetlinkError> {
    let mut header = [0; HEADER_BYTES];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    let mut kind = None;
    socket.request(Message::new(GET, ACK, &header), |body| {
        kind = body
            .get(HEADER_BYTES..)
            .and_then(|rest| find(rest, LINK_INFO))
            .and_then(|info| find(info, INFO_KIND))
            .map(text);
    })?;
    Ok(kind)
}
