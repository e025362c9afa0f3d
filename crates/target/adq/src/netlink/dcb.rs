//! Data center bridging: who negotiates the classes of a device with the switch (`linux/dcbnl.h`).

use super::message::{ACK, Message, find};
use super::socket::{NetlinkError, NetlinkSocket};

const GET: u16 = 78;
/// Command: the mode of the negotiation.
const GET_MODE: u8 = 22;
/// Bytes of `struct dcbmsg`.
const HEADER_BYTES: usize = 4;
const INTERFACE: u16 = 1;
const MODE: u16 = 14;
/// Mode: the device negotiates by itself, and changes its classes by the outcome.
const MANAGED_BY_DEVICE: u8 = 0x02;

/// Whether the device negotiates its classes with the switch by itself. False without DCB.
///
/// # Errors
/// [`NetlinkError::Exchange`] if nothing can be exchanged.
pub fn is_managed_by_device(socket: &mut NetlinkSocket, interface: &str) -> Result<bool, NetlinkError> {
    let mut message = Message::new(GET, ACK, &[0, GET_MODE, 0, 0]);
    message.text(INTERFACE, interface);
    let mut mode = 0;
    let read = |body: &[u8]| Some(*find(body.get(HEADER_BYTES..)?, MODE)?.first()?);
    match socket.request(message, |body| mode = read(body).unwrap_or(0)) {
        // EOPNOTSUPP from kernels and drivers without DCB.
        Ok(()) | Err(NetlinkError::Refused { .. }) => Ok(mode & MANAGED_BY_DEVICE != 0),
        Err(error) => Err(error),
    }
}
