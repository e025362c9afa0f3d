//! Links: the interfaces of this network namespace (`linux/if_link.h`, `linux/rtnetlink.h`).

use super::message::{DUMP, Message, find, text, u32_at};
use super::socket::{NetlinkError, NetlinkSocket};

const GET: u16 = 18;
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const INFO: u16 = 18;
const INFO_KIND: u16 = 1;
/// Bytes of `struct ifinfomsg`.
const HEADER_BYTES: usize = 16;
/// Flag of an interface: it is up (`IFF_UP`).
const IS_UP: u32 = 1;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number in this network namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Its hardware address, as sysfs writes it: `02:00:5e:10:00:01`; empty without one.
    pub address: String,
    /// Kind of a virtual device: `veth`, `vlan`, `bond`; `None` for a device with hardware.
    pub kind: Option<String>,
    /// Whether it is up.
    pub is_up: bool,
}

/// The interfaces of this network namespace.
///
/// # Errors
/// Those of [`NetlinkSocket::request`].
pub fn list(socket: &mut NetlinkSocket) -> Result<Vec<Link>, NetlinkError> {
    let mut links = Vec::new();
    socket.request(Message::new(GET, DUMP, &[0; HEADER_BYTES]), |body| links.extend(read(body)))?;
    Ok(links)
}

/// The interface in an answer; `None` if the answer is cut short.
fn read(body: &[u8]) -> Option<Link> {
    let attributes = body.get(HEADER_BYTES..)?;
    let address = find(attributes, ADDRESS).unwrap_or_default();
    let address: Vec<String> = address.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(Link {
        ifindex: u32_at(body, 4)?,
        name: text(find(attributes, NAME)?),
        address: address.join(":"),
        kind: find(attributes, INFO).and_then(|info| find(info, INFO_KIND)).map(text),
        is_up: u32_at(body, 8)? & IS_UP != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::super::message::{Message, messages};
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let mut header = [0; HEADER_BYTES];
        header[4] = 7;
        header[8] = 0x43;
        let mut message = Message::new(16, 0, &header);
        message.text(NAME, "eth0");
        message.attribute(ADDRESS, &[2, 0, 0x5e, 0x10, 0, 1]);
        message.nest(INFO, |message| message.text(INFO_KIND, "veth"));
        let bytes = message.finish(1);
        let link = Link {
            ifindex: 7,
            name: "eth0".into(),
            address: "02:00:5e:10:00:01".into(),
            kind: Some("veth".into()),
            is_up: true,
        };
        assert_eq!(read(messages(&bytes).next().unwrap().body), Some(link));
        assert_eq!(read(&[0; 8]), None);
    }

    #[test]
    fn the_loopback_interface_is_listed() {
        let links = list(&mut NetlinkSocket::route().unwrap()).unwrap();
        assert!(links.iter().any(|link| (link.ifindex, link.name.as_str()) == (1, "lo")), "{links:?}");
    }
}
