//! Rules that steer connections to a context: `struct ethtool_rxnfc`.

use std::net::IpAddr;

use rustix::io::Errno;

use super::{Ioctl, is_unsupported, put_u32, words};
use crate::netlink::filter::{End, IpVersion};
use crate::netlink::message::{u32_at, u64_at};
use crate::scaling::{Action, Flow, ListedRule};

const COUNT: u32 = 0x2e;
const GET: u32 = 0x2f;
const LIST: u32 = 0x30;
const DELETE: u32 = 0x31;
const INSERT: u32 = 0x32;

/// Bytes of the structure; of its list's start.
const BYTES: usize = 192;
const LIST_AT: usize = 188;
const DATA_AT: usize = 8;
const FLOW_TYPE_AT: usize = 16;
/// Values to match, and behind them fields of other flow types.
const VALUES_AT: usize = 20;
const VALUE_BYTES: usize = 52;
/// Masks of the bits of the values that are matched.
const MASKS_AT: usize = 92;
const QUEUE_AT: usize = 168;
const LOCATION_AT: usize = 176;
/// Number of rules, or number of a context.
const COUNT_AT: usize = 184;

const TCP_V4: u32 = 1;
const TCP_V6: u32 = 5;
/// Flag of a flow type: its packets get a context.
const TO_CONTEXT: u32 = 0x2000_0000;
/// Flag beside the size of a driver's table: the driver chooses locations; then, any location.
const DRIVER_CHOOSES: u32 = 0x8000_0000;
const ANY_LOCATION: u32 = u32::MAX;
/// Most rules that are read.
const RULE_COUNT_MAX: usize = 64 * 1024;

fn request(command: u32) -> Vec<u8> {
    let mut request = vec![0; BYTES];
    put_u32(&mut request, 0, command);
    request
}

/// Where the address and port of a flow lie in its values.
struct Fields {
    flow_type: u32,
    address_at: usize,
    address_bytes: usize,
    port_at: usize,
}

fn fields(version: IpVersion, end: End) -> Fields {
    let (flow_type, address_bytes) = match version {
        IpVersion::V4 => (TCP_V4, 4),
        IpVersion::V6 => (TCP_V6, 16),
    };
    // Source address, destination address, source port, destination port.
    let number = usize::from(end == End::Destination);
    Fields {
        flow_type,
        address_at: number * address_bytes,
        address_bytes,
        port_at: 2 * address_bytes + 2 * number,
    }
}

fn insertion(flow: &Flow, context: u32, location: u32) -> Vec<u8> {
    let mut request = request(INSERT);
    let Fields { flow_type, address_at, address_bytes, port_at } = fields(flow.version, flow.end);
    put_u32(&mut request, FLOW_TYPE_AT, flow_type | TO_CONTEXT);
    let mut field = |at: usize, value: &[u8]| {
        request[VALUES_AT + at..][..value.len()].copy_from_slice(value);
        request[MASKS_AT + at..][..value.len()].fill(0xff);
    };
    match flow.address {
        Some(IpAddr::V4(address)) if address_bytes == 4 => field(address_at, &address.octets()),
        Some(IpAddr::V6(address)) if address_bytes == 16 => field(address_at, &address.octets()),
        _ => {}
    }
    field(port_at, &flow.port.to_be_bytes());
    put_u32(&mut request, LOCATION_AT, location);
    put_u32(&mut request, COUNT_AT, context);
    request
}

/// The rule of an answer.
fn listed(answer: &[u8], location: u32) -> Option<ListedRule> {
    let flow_type = u32_at(answer, FLOW_TYPE_AT)?;
    let action = if flow_type & TO_CONTEXT != 0 {
        Action::Context(u32_at(answer, COUNT_AT)?)
    } else {
        Action::Queue(u64_at(answer, QUEUE_AT)?)
    };
    let values = answer.get(VALUES_AT..VALUES_AT + VALUE_BYTES)?;
    let masks = answer.get(MASKS_AT..MASKS_AT + VALUE_BYTES)?;
    Some(ListedRule { location, flow: flow(flow_type & !TO_CONTEXT, values, masks), action })
}

/// The flow, if exactly the port of one end is matched, and its address or none.
fn flow(flow_type: u32, values: &[u8], masks: &[u8]) -> Option<Flow> {
    let version = match flow_type {
        TCP_V4 => IpVersion::V4,
        TCP_V6 => IpVersion::V6,
        _ => return None,
    };
    [End::Source, End::Destination].into_iter().find_map(|end| {
        let Fields { address_at, address_bytes, port_at, .. } = fields(version, end);
        let (address, port) = (address_at..address_at + address_bytes, port_at..port_at + 2);
        let others = (0..masks.len()).filter(|at| !address.contains(at) && !port.contains(at));
        let has_address = match &masks[address.clone()] {
            mask if mask.iter().all(|byte| *byte == 0xff) => true,
            mask if mask.iter().all(|byte| *byte == 0) => false,
            _ => return None,
        };
        if others.into_iter().any(|at| masks[at] != 0) || masks[port.clone()] != [0xff; 2] {
            return None;
        }
        let address = match &values[address] {
            _ if !has_address => None,
            [a, b, c, d] => Some(IpAddr::from([*a, *b, *c, *d])),
            bytes => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        };
        Some(Flow { version, end, address, port: u16::from_be_bytes(values[port].try_into().ok()?) })
    })
}

/// A place for a new rule in a table of `size` rules: the last free one, because drivers match lower ones first.
fn free_location(taken: &[u32], size: u32) -> Option<u32> {
    (0..size).rev().find(|location| !taken.contains(location))
}

impl Ioctl {
    /// Locations of the rules, the size of the driver's table, and whether the driver chooses locations.
    fn locations(&self) -> Result<(Vec<u32>, u32, bool), Errno> {
        let mut count = request(COUNT);
        self.exchange(&mut count)?;
        let word = |bytes: &[u8], at| u32_at(bytes, at).unwrap_or(0);
        let driver_chooses = word(&count, DATA_AT) & DRIVER_CHOOSES != 0;
        let rules = (word(&count, COUNT_AT) as usize).min(RULE_COUNT_MAX);
        let mut list = request(LIST);
        list.resize((LIST_AT + 4 * rules).max(BYTES), 0);
        put_u32(&mut list, COUNT_AT, u32::try_from(rules).unwrap_or(u32::MAX));
        self.exchange(&mut list)?;
        let found = (word(&list, COUNT_AT) as usize).min(rules);
        let size = word(&list, DATA_AT) & !DRIVER_CHOOSES;
        Ok((words(&list, LIST_AT, found), size, driver_chooses))
    }

    /// The rules of the device; none if the driver has no rules.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn rules(&self) -> Result<Vec<ListedRule>, Errno> {
        let locations = match self.locations() {
            Ok((locations, ..)) => locations,
            Err(errno) if is_unsupported(errno) => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
        };
        let mut rules = Vec::with_capacity(locations.len());
        for location in locations {
            let mut answer = request(GET);
            put_u32(&mut answer, LOCATION_AT, location);
            match self.exchange(&mut answer) {
                Ok(()) => rules.extend(listed(&answer, location)),
                // Deleted in between.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(rules)
    }

    /// Inserts a rule that gives `flow` a context.
    ///
    /// # Errors
    /// [`Errno::NOSPC`] if the driver's table is full, else the driver's reason.
    pub fn add_rule(&self, flow: &Flow, context: u32) -> Result<(), Errno> {
        let (taken, size, driver_chooses) = self.locations()?;
        let location = match driver_chooses {
            true => ANY_LOCATION,
            false => free_location(&taken, size).ok_or(Errno::NOSPC)?,
        };
        self.exchange(&mut insertion(flow, context, location))
    }

    /// Deletes the rule at a location.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn delete_rule(&self, location: u32) -> Result<(), Errno> {
        let mut request = request(DELETE);
        put_u32(&mut request, LOCATION_AT, location);
        self.exchange(&mut request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::tests::bytes_of;

    fn tcp(end: End, address: &str, port: u16) -> Flow {
        let address: Option<IpAddr> = (!address.is_empty()).then(|| address.parse().unwrap());
        let is_v4 = address.is_none_or(|address| address.is_ipv4());
        Flow { version: if is_v4 { IpVersion::V4 } else { IpVersion::V6 }, end, address, port }
    }

    /// The part of an insertion that the kernel reads; ethtool leaves remains of its stack and of earlier answers in
    /// the rest.
    fn read_by_kernel(request: &[u8]) -> Vec<u8> {
        [&request[..4], &request[FLOW_TYPE_AT..188]].concat()
    }

    /// Bytes of ethtool 6.1, from a library between it and the kernel that answers for a driver with 64 rules.
    #[test]
    fn rules_are_what_ethtool_sends() {
        for (golden, flow, location) in [
            // ethtool -N eth0 flow-type tcp4 dst-ip 192.0.2.10 dst-port 4420 context 1
            (
                "320000000000000040000000000000000100002000000000c000020a0000114400000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ffffffff0000ffff0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000003f00000000000000010000006b000000",
                tcp(End::Destination, "192.0.2.10", 4420),
                63,
            ),
            // ethtool -N eth0 flow-type tcp6 dst-ip 2001:db8::10 dst-port 4420 context 1 loc 9
            (
                "320000002f2f2f2f0700000000000000050000200000000000000000000000000000000020010db80000000000000000000000100000114400000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ffffffffffffffffffffffffffffffff0000ffff0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000900000000000000010000006b000000",
                tcp(End::Destination, "2001:db8::10", 4420),
                9,
            ),
            // ethtool -N eth0 flow-type tcp4 src-port 4420 context 1, the driver chooses the location
            (
                "320000002f2f2f2f4000008000000000010000200000000000000000114400000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ffff0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ffffffff00000000010000006b000000",
                tcp(End::Source, "", 4420),
                ANY_LOCATION,
            ),
        ] {
            let golden = bytes_of(golden);
            assert_eq!(golden.len(), BYTES);
            let sent = insertion(&flow, 1, location);
            assert_eq!(read_by_kernel(&sent), read_by_kernel(&golden), "{flow:?}");
            let listed = listed(&sent, location).unwrap();
            assert_eq!(listed, ListedRule { location, flow: Some(flow), action: Action::Context(1) });
        }
        // ethtool -N eth0 delete 9
        let deletion = bytes_of(
            "310000000000000000000000000000006e7475706c65000053686f77205278206000000000000000000000000000000000000000000000ff0000ff0000ff00002f2f2f2f2f2f2f2f2f2f2f2f2f2f2f2f00000000000000000000000000000000804985c3fe7f0000000005000000000000000000000000009d5a85c3fe7f0000c0df6b7cb27f0000ffffff7f00000000965a85c3fe7f000098d0e96e1f560000a7d0e96e1f5600008e2ee66e1f56000009000000fe7f000000eeeb7db9b51ad9",
        );
        assert_eq!((u32_at(&deletion, 0), u32_at(&deletion, LOCATION_AT)), (Some(DELETE), Some(9)));
    }

    #[test]
    fn rules_of_others_are_not_taken_for_a_port() {
        let ours = insertion(&tcp(End::Destination, "192.0.2.10", 4420), 1, 0);
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = ours.clone();
            change(&mut bytes);
            listed(&bytes, 0).unwrap()
        };
        assert_eq!(with(&|bytes| put_u32(bytes, FLOW_TYPE_AT, 2 | TO_CONTEXT)).flow, None, "UDP");
        assert_eq!(with(&|bytes| bytes[MASKS_AT + 4] = 0xf0).flow, None, "a network");
        assert_eq!(with(&|bytes| bytes[MASKS_AT + 8] = 0xff).flow, None, "both ports");
        assert_eq!(with(&|bytes| bytes[MASKS_AT + 12] = 0xff).flow, None, "type of service");
        assert_eq!(with(&|bytes| put_u32(bytes, FLOW_TYPE_AT, TCP_V4)).action, Action::Queue(0));
    }

    #[test]
    fn new_rules_go_behind_those_of_others() {
        assert_eq!(free_location(&[], 64), Some(63));
        assert_eq!(free_location(&[63, 61], 64), Some(62));
        assert_eq!(free_location(&[0, 1], 2), None);
        assert_eq!(free_location(&[], 0), None);
    }

    #[test]
    fn a_device_without_rules_has_none() {
        let ioctl = Ioctl::open("lo").unwrap();
        assert_eq!(ioctl.rules(), Ok(Vec::new()));
        assert!(ioctl.delete_rule(0).is_err());
    }

    proptest::proptest! {
        #[test]
        fn answers_of_any_content_are_read(answer in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            if let Some(rule) = listed(&answer, 0) {
                proptest::prop_assert!(answer.len() >= MASKS_AT + VALUE_BYTES, "{rule:?}");
            }
        }
    }
}
