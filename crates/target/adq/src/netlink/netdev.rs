//! The `netdev` family: which NAPI context serves which receive queue (`linux/netdev.h`, kernels from 6.8 on).

use std::collections::BTreeMap;

use super::message::{DUMP, Message, find, u32_at};
use super::socket::{NetlinkError, NetlinkSocket};

const NAME: &str = "netdev";
const GET_QUEUES: u8 = 10;
const QUEUE: u16 = 1;
const DEVICE_INDEX: u16 = 2;
const QUEUE_TYPE: u16 = 3;
const NAPI_ID: u16 = 4;
/// Type of a queue: it receives.
const RECEIVE: u32 = 0;

/// Receive queues of a device by their NAPI ids; empty if the kernel or the driver does not report them.
///
/// # Errors
/// [`NetlinkError::Exchange`] if nothing can be exchanged.
pub fn receive_queues(ifindex: u32) -> Result<BTreeMap<u32, u16>, NetlinkError> {
    let mut socket = NetlinkSocket::generic()?;
    let family = match socket.family(NAME) {
        Err(NetlinkError::FamilyMissing(_)) => return Ok(BTreeMap::new()),
        family => family?,
    };
    let mut message = Message::new(family, DUMP, &[GET_QUEUES, 1, 0, 0]);
    message.attribute(DEVICE_INDEX, &ifindex.to_ne_bytes());
    let mut queues = BTreeMap::new();
    match socket.request(message, |body| queues.extend(body.get(4..).and_then(read))) {
        Ok(()) | Err(NetlinkError::Refused { .. }) => Ok(queues),
        Err(error) => Err(error),
    }
}

/// NAPI id and number of a receive queue.
fn read(attributes: &[u8]) -> Option<(u32, u16)> {
    let word = |kind| u32_at(find(attributes, kind)?, 0);
    (word(QUEUE_TYPE)? == RECEIVE).then_some(())?;
    Some((word(NAPI_ID)?, word(QUEUE)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::message::messages;
    use super::*;

    #[test]
    fn a_receive_queue_has_a_napi_id_and_a_transmit_queue_is_none() {
        let of = |attributes: &[(u16, u32)]| {
            let mut message = Message::new(0, 0, &[]);
            for (kind, value) in attributes {
                message.attribute(*kind, &value.to_ne_bytes());
            }
            read(messages(&message.finish(0)).next().unwrap().body)
        };
        assert_eq!(
            of(&[(QUEUE, 3), (DEVICE_INDEX, 2), (QUEUE_TYPE, RECEIVE), (NAPI_ID, 8195)]),
            Some((8195, 3))
        );
        assert_eq!(of(&[(QUEUE, 3), (QUEUE_TYPE, 1), (NAPI_ID, 8195)]), None);
        // veth reports no NAPI ids.
        assert_eq!(of(&[(QUEUE, 3), (QUEUE_TYPE, RECEIVE)]), None);
    }

    #[test]
    fn the_loopback_device_has_no_napi() {
        assert_eq!(receive_queues(1).unwrap(), BTreeMap::new());
    }
}
