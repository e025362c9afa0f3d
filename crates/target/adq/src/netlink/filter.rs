//! Flower filters: packets of an address and port get a class of receive queues, or a priority on their way out
//! (`linux/pkt_cls.h`).

use std::net::IpAddr;

use super::message::{ACK, CREATE_NEW, DUMP, Message, attributes, find, text, u32_at};
use super::qdisc::header;
use super::socket::{NetlinkError, NetlinkSocket};

const NEW: u16 = 44;
const DELETE: u16 = 45;
const GET: u16 = 46;

const KIND: u16 = 1;
const OPTIONS: u16 = 2;

const CLASS_ID: u16 = 1;
const ACTIONS: u16 = 3;
const ETHER_TYPE: u16 = 8;
const IP_PROTOCOL: u16 = 9;
const IPV4_SOURCE: u16 = 10;
const IPV4_DESTINATION: u16 = 12;
const IPV6_SOURCE: u16 = 14;
const IPV6_DESTINATION: u16 = 16;
const TCP_SOURCE: u16 = 18;
const TCP_DESTINATION: u16 = 19;
const FLAGS: u16 = 22;

/// Flag of a filter: the device alone applies it.
const SKIP_SOFTWARE: u32 = 2;
/// Flag that the kernel reports: the device applies the filter.
const IN_HARDWARE: u32 = 4;

const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const SKBEDIT_PARAMETERS: u16 = 2;
const SKBEDIT_PRIORITY: u16 = 3;
/// `struct tc_skbedit`: the packet continues (`TC_ACT_PIPE`).
const SKBEDIT_CONTINUE: [u8; 20] = [0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

const PROTOCOL_TCP: u8 = 6;
/// Class 0 of receive queues, in the form of a class id; the others follow.
const CLASS_ID_BASE: u32 = 0xffff_ffe0;

/// The IP version that a filter matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// EtherType of the version.
    #[must_use]
    pub fn ether_type(self) -> u16 {
        match self {
            Self::V4 => 0x0800,
            Self::V6 => 0x86dd,
        }
    }

    /// The version's name in `tc`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ipv6",
        }
    }
}

/// The end of a connection that a filter matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Source address and port.
    Source,
    /// Destination address and port.
    Destination,
}

/// The effect of a filter on the packets that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Arriving packets get the receive queues of this class; by the device only (`skip_sw`).
    ReceiveClass(u8),
    /// Leaving packets get this priority.
    Priority(u32),
}

/// One flower filter for TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Filter {
    /// Preference: filters of one preference have one IP version, lower numbers come first.
    pub preference: u16,
    /// Number among the filters of one preference, from 1.
    pub handle: u32,
    /// The IP version that it matches.
    pub version: IpVersion,
    /// The end of the connection that it matches.
    pub end: End,
    /// The address, or all of them.
    pub address: Option<IpAddr>,
    /// The TCP port.
    pub port: u16,
    /// Its effect.
    pub effect: Effect,
}

impl Filter {
    /// Parent of the filter: clsact's side for arriving or for leaving packets.
    #[must_use]
    pub fn parent(&self) -> u32 {
        match self.effect {
            Effect::ReceiveClass(_) => 0xffff_fff2,
            Effect::Priority(_) => 0xffff_fff3,
        }
    }

    fn header(&self, ifindex: u32) -> [u8; 20] {
        let protocol = u32::from(self.version.ether_type().to_be());
        header(ifindex, self.handle, self.parent(), u32::from(self.preference) << 16 | protocol)
    }

    /// The request that adds the filter.
    #[must_use]
    pub fn add(&self, ifindex: u32) -> Message {
        let mut message = Message::new(NEW, ACK | CREATE_NEW, &self.header(ifindex));
        message.text(KIND, "flower");
        message.content(OPTIONS, |options| {
            match (self.address, self.end) {
                (Some(IpAddr::V4(address)), end) => {
                    let kind = if end == End::Source { IPV4_SOURCE } else { IPV4_DESTINATION };
                    options.attribute(kind, &address.octets());
                    options.attribute(kind + 1, &[0xff; 4]);
                }
                (Some(IpAddr::V6(address)), end) => {
                    let kind = if end == End::Source { IPV6_SOURCE } else { IPV6_DESTINATION };
                    options.attribute(kind, &address.octets());
                    options.attribute(kind + 1, &[0xff; 16]);
                }
                (None, _) => {}
            }
            options.attribute(IP_PROTOCOL, &[PROTOCOL_TCP]);
            let port = if self.end == End::Source { TCP_SOURCE } else { TCP_DESTINATION };
            options.attribute(port, &self.port.to_be_bytes());
            let flags = match self.effect {
                Effect::ReceiveClass(class) => {
                    options.attribute(CLASS_ID, &(CLASS_ID_BASE + u32::from(class)).to_ne_bytes());
                    SKIP_SOFTWARE
                }
                Effect::Priority(priority) => {
                    options.content(ACTIONS, |actions| {
                        actions.content(1, |action| set_priority(action, priority));
                    });
                    0
                }
            };
            options.attribute(FLAGS, &flags.to_ne_bytes());
            options.attribute(ETHER_TYPE, &self.version.ether_type().to_be_bytes());
        });
        message
    }

    /// The request that deletes the filter.
    #[must_use]
    pub fn delete(&self, ifindex: u32) -> Message {
        let mut message = Message::new(DELETE, ACK, &self.header(ifindex));
        message.text(KIND, "flower");
        message
    }
}

fn set_priority(action: &mut Message, priority: u32) {
    action.text(ACTION_KIND, "skbedit");
    action.nest(ACTION_OPTIONS, |options| {
        options.attribute(SKBEDIT_PARAMETERS, &SKBEDIT_CONTINUE);
        options.attribute(SKBEDIT_PRIORITY, &priority.to_ne_bytes());
    });
}

/// A filter that the kernel lists.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Listed {
    /// Side of clsact.
    pub parent: u32,
    /// Preference.
    pub preference: u16,
    /// EtherType of the packets that it sees.
    pub ether_type: u16,
    /// Number within the preference.
    pub handle: u32,
    /// Kind of classifier: `flower`, `bpf`.
    pub kind: String,
    /// Whether the device applies it.
    pub is_in_hardware: bool,
    /// End and port, if it is a flower filter of one TCP port.
    pub port: Option<(End, u16)>,
    /// Class of receive queues.
    pub receive_class: Option<u8>,
    /// Priority that it sets.
    pub priority: Option<u32>,
}

impl Listed {
    /// Whether this is `filter`.
    #[must_use]
    pub fn is(&self, filter: &Filter) -> bool {
        let effect = match filter.effect {
            Effect::ReceiveClass(class) => self.receive_class == Some(class),
            Effect::Priority(priority) => self.priority == Some(priority),
        };
        self.kind == "flower"
            && (self.parent, self.preference, self.handle)
                == (filter.parent(), filter.preference, filter.handle)
            && self.ether_type == filter.version.ether_type()
            && self.port == Some((filter.end, filter.port))
            && effect
    }
}

/// The filters of a device, on both sides of clsact.
///
/// # Errors
/// Those of [`NetlinkSocket::request`].
pub fn list(socket: &mut NetlinkSocket, ifindex: u32) -> Result<Vec<Listed>, NetlinkError> {
    let mut listed = Vec::new();
    for parent in [0xffff_fff2, 0xffff_fff3] {
        let request = Message::new(GET, DUMP, &header(ifindex, 0, parent, 0));
        socket.request(request, |body| listed.extend(read(body)))?;
    }
    Ok(listed)
}

fn read(body: &[u8]) -> Option<Listed> {
    let info = u32_at(body, 16)?;
    let rest = body.get(20..)?;
    let handle = u32_at(body, 8)?;
    let options = find(rest, OPTIONS);
    // The kernel lists each preference by itself too, without a filter in it.
    if handle == 0 || options.is_none() {
        return None;
    }
    let options = options?;
    let port_of =
        |kind| find(options, kind).and_then(|value| Some(u16::from_be_bytes(value.try_into().ok()?)));
    let port = port_of(TCP_SOURCE)
        .map(|port| (End::Source, port))
        .or_else(|| port_of(TCP_DESTINATION).map(|port| (End::Destination, port)));
    let priority = find(options, ACTIONS)
        .and_then(|actions| attributes(actions).find_map(|(_, action)| find(action, ACTION_OPTIONS)))
        .and_then(|action| find(action, SKBEDIT_PRIORITY))
        .and_then(|value| u32_at(value, 0));
    Some(Listed {
        parent: u32_at(body, 12)?,
        preference: (info >> 16).try_into().ok()?,
        ether_type: u16::from_be((info & 0xffff).try_into().ok()?),
        handle,
        kind: text(find(rest, KIND)?),
        is_in_hardware: find(options, FLAGS).and_then(|value| u32_at(value, 0)).unwrap_or(0) & IN_HARDWARE
            != 0,
        port,
        receive_class: find(options, CLASS_ID)
            .and_then(|value| u32_at(value, 0))
            .and_then(|class_id| class_id.checked_sub(CLASS_ID_BASE))
            .and_then(|class| u8::try_from(class).ok()),
        priority,
    })
}

#[cfg(test)]
mod tests {
    use super::super::message::messages;
    use super::super::message::tests::bytes_of;
    use super::*;

    /// The request's fixed part and its attributes at both levels, in an order of their own: `tc` writes flower's
    /// attributes in the order of its command line.
    fn contents(bytes: &[u8]) -> (Vec<u8>, Vec<(u16, Vec<u8>)>) {
        let message = messages(bytes).next().unwrap();
        let rest = &message.body[20..];
        let mut all: Vec<_> = attributes(rest)
            .filter(|(kind, _)| *kind != OPTIONS)
            .chain(attributes(find(rest, OPTIONS).unwrap()))
            .map(|(kind, value)| (kind, value.to_vec()))
            .collect();
        all.sort();
        (bytes[4..8].iter().chain(&message.body[..20]).copied().collect(), all)
    }

    fn assert_golden(filter: Filter, golden: &str) {
        let golden = bytes_of(golden);
        let bytes = filter.add(2).finish(0);
        assert_eq!(contents(&bytes), contents(&golden));
        let listed = read(messages(&bytes).next().unwrap().body).unwrap();
        assert!(listed.is(&filter), "{listed:?} is not {filter:?}");
    }

    fn filter(effect: Effect, address: &str) -> Filter {
        let address: IpAddr = address.parse().unwrap();
        let (version, preference) = if address.is_ipv4() { (IpVersion::V4, 1) } else { (IpVersion::V6, 2) };
        let end = if matches!(effect, Effect::Priority(_)) { End::Source } else { End::Destination };
        Filter { preference, handle: 1, version, end, address: Some(address), port: 4420, effect }
    }

    #[test]
    fn filters_are_what_tc_sends() {
        assert_golden(
            filter(Effect::ReceiveClass(1), "192.0.2.10"),
            concat!(
                "6c0000002c0005060000000000000000000000000200000001000000f2ffffff",
                "080001000b000100666c6f77657200003c00020008000c00c000020a08000d00",
                "ffffffff0500090006000000060013001144000008000100e1ffffff08001600",
                "020000000600080008000000",
            ),
        );
        assert_golden(
            filter(Effect::ReceiveClass(1), "2001:db8::10"),
            concat!(
                "840000002c0005060000000000000000000000000200000001000000f2ffffff",
                "86dd02000b000100666c6f7765720000540002001400100020010db800000000",
                "000000000000001014001100ffffffffffffffffffffffffffffffff05000900",
                "06000000060013001144000008000100e1ffffff080016000200000006000800",
                "86dd0000",
            ),
        );
        assert_golden(
            filter(Effect::Priority(1), "192.0.2.10"),
            concat!(
                "9c0000002c0005060000000000000000000000000200000001000000f3ffffff",
                "080001000b000100666c6f77657200006c00020008000a00c000020a08000b00",
                "ffffffff0500090006000000060012001144000038000300340001000c000100",
                "736b626564697400240002801800020000000000000000000300000000000000",
                "00000000080003000100000008001600000000000600080008000000",
            ),
        );
    }

    #[test]
    fn a_listed_filter_of_another_port_class_or_handle_is_another() {
        let ours = filter(Effect::ReceiveClass(1), "192.0.2.10");
        for other in [
            Filter { port: 4421, ..ours },
            Filter { handle: 2, ..ours },
            Filter { preference: 3, ..ours },
            Filter { effect: Effect::ReceiveClass(2), ..ours },
        ] {
            let bytes = other.add(2).finish(0);
            assert!(!read(messages(&bytes).next().unwrap().body).unwrap().is(&ours));
        }
    }
}
