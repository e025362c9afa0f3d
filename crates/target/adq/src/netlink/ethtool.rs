//! The `ethtool` family: features, private flags and channel counts of a device (`linux/ethtool_netlink.h`).

use std::collections::BTreeMap;

use super::message::{ACK, Message, attributes, find, text, u32_at};
use super::socket::{NetlinkError, NetlinkSocket};

const NAME: &str = "ethtool";

const FEATURES_GET: u8 = 11;
const FEATURES_SET: u8 = 12;
const PRIVATE_FLAGS_GET: u8 = 13;
const PRIVATE_FLAGS_SET: u8 = 14;
const CHANNELS_GET: u8 = 17;
const CHANNELS_SET: u8 = 18;

/// In each message: the device that it is about.
const HEADER: u16 = 1;
const DEVICE_INDEX: u16 = 1;

const FEATURES_CHANGEABLE: u16 = 2;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const PRIVATE_FLAGS: u16 = 2;

const BITS_WITHOUT_MASK: u16 = 1;
const BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_IS_SET: u16 = 3;

/// Numbers of queues; receive and transmit queues of one interrupt are *combined*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Channels {
    /// Receive queues that have no transmit queue.
    pub receive: u32,
    /// Transmit queues that have no receive queue.
    pub transmit: u32,
    /// Pairs.
    pub combined: u32,
}

impl Channels {
    /// Queue pairs: combined ones, or as many as there are separate queues of both kinds.
    #[must_use]
    pub fn pairs(self) -> u32 {
        self.combined + self.receive.min(self.transmit)
    }
}

/// Numbers of queues now and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChannelLimits {
    /// Now.
    pub current: Channels,
    /// At most.
    pub max: Channels,
}

/// A feature of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Feature {
    /// Whether it is on.
    pub is_on: bool,
    /// Whether it can be changed.
    pub is_changeable: bool,
}

/// The `ethtool` family of this kernel.
#[derive(Debug)]
pub struct Ethtool {
    socket: NetlinkSocket,
    family: u16,
}

impl Ethtool {
    /// Finds the family.
    ///
    /// # Errors
    /// [`NetlinkError::FamilyMissing`] if the kernel lacks it, or that of the exchange.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut socket = NetlinkSocket::generic()?;
        let family = socket.family(NAME)?;
        Ok(Self { socket, family })
    }

    fn message(&self, command: u8, ifindex: u32) -> Message {
        let mut message = Message::new(self.family, ACK, &[command, 1, 0, 0]);
        message.nest(HEADER, |header| header.attribute(DEVICE_INDEX, &ifindex.to_ne_bytes()));
        message
    }

    /// The attributes of the answer to `command`; empty if the device has nothing of the kind.
    fn get(&mut self, command: u8, ifindex: u32) -> Result<Vec<u8>, NetlinkError> {
        let mut attributes = Vec::new();
        let request = self.message(command, ifindex);
        match self.socket.request(request, |body| attributes = body.get(4..).unwrap_or_default().to_vec()) {
            Err(NetlinkError::Refused { errno: rustix::io::Errno::OPNOTSUPP, .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(()) => Ok(attributes),
        }
    }

    /// The features of a device, by name.
    ///
    /// # Errors
    /// The error of the exchange.
    pub fn features(&mut self, ifindex: u32) -> Result<BTreeMap<String, Feature>, NetlinkError> {
        let answer = self.get(FEATURES_GET, ifindex)?;
        let changeable = find(&answer, FEATURES_CHANGEABLE).map(read_bits).unwrap_or_default();
        let active = find(&answer, FEATURES_ACTIVE).map(read_bits).unwrap_or_default();
        let is_set = |bits: &BTreeMap<String, bool>, name: &str| bits.get(name).copied().unwrap_or(false);
        let mut names: Vec<_> = changeable.keys().chain(active.keys()).cloned().collect();
        names.dedup();
        Ok(names
            .into_iter()
            .map(|name| {
                let feature =
                    Feature { is_on: is_set(&active, &name), is_changeable: is_set(&changeable, &name) };
                (name, feature)
            })
            .collect())
    }

    /// Turns one feature on or off. The kernel accepts changes that the device cannot make: read the feature back.
    ///
    /// # Errors
    /// The error of the exchange.
    pub fn set_feature(&mut self, ifindex: u32, name: &str, is_on: bool) -> Result<(), NetlinkError> {
        self.set_bit(FEATURES_SET, FEATURES_WANTED, ifindex, name, is_on)
    }

    /// The private flags of a device's driver, by name.
    ///
    /// # Errors
    /// The error of the exchange.
    pub fn private_flags(&mut self, ifindex: u32) -> Result<BTreeMap<String, bool>, NetlinkError> {
        let answer = self.get(PRIVATE_FLAGS_GET, ifindex)?;
        Ok(find(&answer, PRIVATE_FLAGS).map(read_bits).unwrap_or_default())
    }

    /// Sets one private flag.
    ///
    /// # Errors
    /// The error of the exchange.
    pub fn set_private_flag(&mut self, ifindex: u32, name: &str, is_on: bool) -> Result<(), NetlinkError> {
        self.set_bit(PRIVATE_FLAGS_SET, PRIVATE_FLAGS, ifindex, name, is_on)
    }

    fn set_bit(
        &mut self,
        command: u8,
        bitset: u16,
        ifindex: u32,
        name: &str,
        is_on: bool,
    ) -> Result<(), NetlinkError> {
        let mut message = self.message(command, ifindex);
        message.nest(bitset, |bitset| {
            bitset.nest(BITS, |bits| {
                bits.nest(BIT, |bit| {
                    bit.text(BIT_NAME, name);
                    if is_on {
                        bit.attribute(BIT_IS_SET, &[]);
                    }
                });
            });
        });
        self.socket.request(message, |_| {})
    }

    /// The numbers of queues of a device; all zero if its driver does not report them.
    ///
    /// # Errors
    /// The error of the exchange.
    pub fn channels(&mut self, ifindex: u32) -> Result<ChannelLimits, NetlinkError> {
        let answer = self.get(CHANNELS_GET, ifindex)?;
        let count = |kind| find(&answer, kind).and_then(|value| u32_at(value, 0)).unwrap_or(0);
        Ok(ChannelLimits {
            max: Channels { receive: count(2), transmit: count(3), combined: count(5) },
            current: Channels { receive: count(6), transmit: count(7), combined: count(9) },
        })
    }

    /// Changes the numbers of queues from `now` to `wanted`; kinds that stay are not sent, because a driver without
    /// queues of a kind refuses the kind.
    ///
    /// # Errors
    /// The error of the exchange.
    pub fn set_channels(
        &mut self,
        ifindex: u32,
        now: Channels,
        wanted: Channels,
    ) -> Result<(), NetlinkError> {
        let mut message = self.message(CHANNELS_SET, ifindex);
        for (kind, now, wanted) in [
            (6, now.receive, wanted.receive),
            (7, now.transmit, wanted.transmit),
            (9, now.combined, wanted.combined),
        ] {
            if now != wanted {
                message.attribute(kind, &wanted.to_ne_bytes());
            }
        }
        self.socket.request(message, |_| {})
    }
}

/// A bitset with names: each bit that is listed, and whether it is set.
fn read_bits(bitset: &[u8]) -> BTreeMap<String, bool> {
    let lists_set_bits = find(bitset, BITS_WITHOUT_MASK).is_some();
    attributes(find(bitset, BITS).unwrap_or_default())
        .filter(|(kind, _)| *kind == BIT)
        .filter_map(|(_, bit)| {
            Some((text(find(bit, BIT_NAME)?), lists_set_bits || find(bit, BIT_IS_SET).is_some()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::message::messages;
    use super::*;

    #[test]
    fn a_bitset_without_mask_lists_what_is_set() {
        let bits = |has_mask: bool| {
            let mut message = Message::new(0, 0, &[]);
            if !has_mask {
                message.attribute(BITS_WITHOUT_MASK, &[]);
            }
            message.nest(BITS, |bits| {
                for (name, is_set) in [("rx-gro", true), ("hw-tc-offload", false)] {
                    if has_mask || is_set {
                        bits.nest(BIT, |bit| {
                            bit.text(BIT_NAME, name);
                            if has_mask && is_set {
                                bit.attribute(BIT_IS_SET, &[]);
                            }
                        });
                    }
                }
            });
            let bytes = message.finish(0);
            read_bits(messages(&bytes).next().unwrap().body)
        };
        assert_eq!(bits(true), BTreeMap::from([("rx-gro".into(), true), ("hw-tc-offload".into(), false)]));
        assert_eq!(bits(false), BTreeMap::from([("rx-gro".into(), true)]));
    }

    #[test]
    fn the_loopback_device_answers() {
        let mut ethtool = Ethtool::open().unwrap();
        let features = ethtool.features(1).unwrap();
        assert!(features.len() > 20, "{features:?}");
        assert!(!features["hw-tc-offload"].is_changeable);
        assert_eq!(ethtool.channels(1).unwrap(), ChannelLimits::default());
        assert!(ethtool.private_flags(1).unwrap().is_empty());
    }
}
