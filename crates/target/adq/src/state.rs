//! Properties and settings of a device: everything that a layout may change, as read from the kernel.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::control_group::Group;
use crate::moderation::Moderations;
use crate::netlink::ethtool::{ChannelLimits, Feature};
use crate::netlink::filter::Listed;
use crate::netlink::qdisc::{Mqprio, ROOT};
use crate::rate::Rate;
use crate::scaling::Scaling;

/// Identifies a device; a layout belongs to one device until the next boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Name of the interface.
    pub interface: String,
    /// The kernel's number for it.
    pub ifindex: u32,
    /// Hardware address.
    pub address: String,
    /// The boot: settings of a device end with it.
    pub boot: String,
}

/// Properties that do not change with a layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Identifies the device.
    pub identity: Identity,
    /// Name of its driver.
    pub driver: String,
    /// Link speed, if there is a link that has one.
    pub speed: Option<Rate>,
    /// The bond, team or bridge that it is a port of.
    pub master: Option<String>,
    /// The device below a VLAN, MACVLAN or bond.
    pub lower: Option<String>,
    /// Processors of the machine.
    pub cpu_count: u32,
    /// Numbers of the processors that are online.
    #[serde(default)]
    pub online_cpus: Vec<u16>,
    /// Whether the interface is up.
    #[serde(default)]
    pub is_up: bool,
    /// Opponents of a layout: running programs, the firmware ([`crate::opponent`]).
    pub opponents: Vec<String>,
    /// Cookie of the network namespace; 0 if the kernel does not report it.
    #[serde(default)]
    pub network: u64,
    /// The topmost control group of version 2.
    #[serde(default)]
    pub cgroup: Option<String>,
}

/// Which transmit queue packets take: masks as the kernel writes them, without leading zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransmitQueue {
    /// Receive queues whose connections it serves (`xps_rxqs`).
    pub receive_queues: String,
    /// Processors whose packets it takes (`xps_cpus`).
    pub cpus: String,
}

/// An interrupt of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupt {
    /// Its number.
    pub irq: u32,
    /// The receive queue that it serves, where its name shows it.
    pub queue: Option<u16>,
    /// The processors that may take it, as a list.
    pub cpus: String,
}

/// A queueing discipline in [`DeviceState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootDiscipline {
    /// Its name.
    pub kind: String,
    /// Its handle; 0 where the kernel has created it by itself.
    pub handle: u32,
    /// Settings, of mqprio.
    pub mqprio: Option<Mqprio>,
}

/// Settings of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Numbers of queues.
    pub channels: ChannelLimits,
    /// Number of receive queues.
    pub receive_queue_count: u16,
    /// Features that a layout may change.
    pub features: BTreeMap<String, Feature>,
    /// Private flags of the driver.
    pub private_flags: BTreeMap<String, bool>,
    /// The root discipline; `None` stands for `noqueue`.
    pub root: Option<RootDiscipline>,
    /// The discipline that holds filters: `clsact` or `ingress`.
    pub filter_holder: Option<String>,
    /// The filters in it.
    pub filters: Vec<Listed>,
    /// How arriving packets are spread and steered.
    #[serde(default)]
    pub scaling: Scaling,
    /// How long interrupts are delayed.
    #[serde(default)]
    pub moderations: Moderations,
    /// The transmit queues, in order.
    pub transmit_queues: Vec<TransmitQueue>,
    /// The interrupts, in order of their numbers.
    pub interrupts: Vec<Interrupt>,
    /// The programs of sockets, by control group.
    #[serde(default)]
    pub groups: BTreeMap<String, Group>,
}

impl DeviceState {
    /// Queue pairs that are active.
    #[must_use]
    pub fn queue_pairs(&self) -> u16 {
        let transmit = u16::try_from(self.transmit_queues.len()).unwrap_or(u16::MAX);
        transmit.min(self.receive_queue_count)
    }

    /// Queue pairs that the device can have: the active ones where its driver does not report it.
    #[must_use]
    pub fn queue_pairs_max(&self) -> u16 {
        u16::try_from(self.channels.max.pairs()).unwrap_or(u16::MAX).max(self.queue_pairs())
    }

    /// mqprio, if it is the root discipline.
    #[must_use]
    pub fn mqprio(&self) -> Option<&Mqprio> {
        self.root.as_ref()?.mqprio.as_ref()
    }

    /// The kernel's list of disciplines as the two places that a layout uses.
    pub fn set_disciplines(&mut self, disciplines: Vec<crate::netlink::qdisc::Discipline>) {
        self.filter_holder = None;
        self.root = None;
        for discipline in disciplines {
            if discipline.holds_filters() {
                self.filter_holder = Some(discipline.kind);
            } else if discipline.parent == ROOT && discipline.kind != "noqueue" {
                let (kind, handle, mqprio) = (discipline.kind, discipline.handle, discipline.mqprio);
                self.root = Some(RootDiscipline { kind, handle, mqprio });
            }
        }
    }
}

/// The mask with the bits of these numbers, as `xps_rxqs` has it: groups of 32 bits, most significant first.
#[must_use]
pub fn mask_of(numbers: impl IntoIterator<Item = u16>) -> String {
    let mut groups = vec![0u32];
    for number in numbers {
        let group = usize::from(number / 32);
        groups.resize(groups.len().max(group + 1), 0);
        groups[group] |= 1 << (number % 32);
    }
    let groups: Vec<_> = groups.iter().rev().map(|group| format!("{group:08x}")).collect();
    normal_mask(&groups.join(","))
}

/// A mask without leading zeros, so that masks of one meaning are one text.
#[must_use]
pub fn normal_mask(mask: &str) -> String {
    let normal = mask.trim().trim_start_matches(['0', ',']);
    if normal.is_empty() { "0".into() } else { normal.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_groups_of_32_bits() {
        assert_eq!(mask_of([0]), "1");
        assert_eq!(mask_of([5]), "20");
        assert_eq!(mask_of([31]), "80000000");
        assert_eq!(mask_of([32]), "1,00000000");
        assert_eq!(mask_of([70]), "40,00000000,00000000");
        assert_eq!(mask_of([0, 33, 1]), "2,00000003");
        assert_eq!(mask_of([]), "0");
        for (mask, normal) in
            [("00000000,00000020\n", "20"), ("0\n", "0"), ("00000001,00000000", "1,00000000")]
        {
            assert_eq!(normal_mask(mask), normal);
        }
    }
}
