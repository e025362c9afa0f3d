//! Identifiers of hardware that distinguish a machine from its clones.

use std::collections::BTreeSet;
use std::path::Path;

use wire::uuid::Uuid;

use crate::names::named_uuid::{ROOT, named};

/// UUIDs that makers of boards and of hypervisors give to all of theirs.
const WORTHLESS: [&str; 4] = [
    "03000200-0400-0500-0006-000700080009",
    "00020003-0004-0005-0006-000700080009",
    "12345678-1234-5678-90ab-cddeefaabbcc",
    "01010101-0101-0101-0101-010101010101",
];

/// Ethernet, in `type` of an interface.
const ETHERNET: &str = "1";

/// An address that the device has from its maker, or a virtual machine from its hypervisor: `addr_assign_type`.
const PERMANENT: &str = "0";

/// Hashes of what identifies the hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hardware {
    /// Of the DMI product UUID: the board's, or the virtual machine's. Only root may read it.
    pub(super) dmi: Option<Uuid>,
    /// Of the addresses of network cards.
    pub(super) cards: BTreeSet<Uuid>,
    /// Of the card that comes first by the name of its interface.
    first_card: Option<Uuid>,
}

impl Hardware {
    /// As the kernel describes it below `sys`.
    pub(super) fn of_system(sys: &Path) -> Self {
        let dmi = read(&sys.join("class/dmi/id/product_uuid")).map(|text| text.to_ascii_lowercase());
        let dmi = dmi.filter(|text| is_of_one_machine(text)).map(|text| named(ROOT, &format!("dmi {text}")));
        let mut interfaces: Vec<_> = std::fs::read_dir(sys.join("class/net"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        interfaces.sort_unstable();
        let cards = interfaces.iter().filter_map(|interface| card(interface));
        let cards: Vec<Uuid> = cards.map(|address| named(ROOT, &format!("card {address}"))).collect();
        Self { dmi, first_card: cards.first().copied(), cards: cards.into_iter().collect() }
    }

    pub(super) fn new(dmi: Option<Uuid>, cards: BTreeSet<Uuid>) -> Self {
        Self { dmi, cards, first_card: None }
    }

    #[cfg(test)]
    pub(super) fn of_test(dmi: Option<u8>, cards: &[u8]) -> Self {
        let uuid = |byte: &u8| Uuid::from_bytes([*byte; 16]);
        let first_card = cards.first().map(uuid);
        Self { dmi: dmi.as_ref().map(uuid), cards: cards.iter().map(uuid).collect(), first_card }
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.dmi.is_none() && self.cards.is_empty()
    }

    /// The part of it that an identity is made of.
    pub(super) fn name(&self) -> Option<String> {
        let dmi = self.dmi.map(|dmi| format!("hardware dmi {dmi}"));
        dmi.or_else(|| self.first_card.map(|card| format!("hardware card {card}")))
    }

    /// Whether both can be the same machine: nothing that is known of both says otherwise.
    pub(super) fn fits(&self, other: &Self) -> bool {
        match (self.dmi, other.dmi) {
            (Some(one), Some(other)) => one == other,
            _ => self.cards.is_empty() || other.cards.is_empty() || !self.cards.is_disjoint(&other.cards),
        }
    }

    /// Adds the hardware that is known now. Cards that are gone may come back.
    pub(super) fn with(mut self, now: &Self) -> Self {
        self.dmi = self.dmi.or(now.dmi);
        self.cards.extend(&now.cards);
        Self::new(self.dmi, self.cards)
    }
}

/// The address of a network card: of an interface that is no virtual one.
fn card(interface: &Path) -> Option<String> {
    let is_virtual =
        std::fs::canonicalize(interface).ok()?.components().any(|part| part.as_os_str() == "virtual");
    let has = |name: &str, value: &str| read(&interface.join(name)).as_deref() == Some(value);
    if is_virtual || !has("type", ETHERNET) {
        return None;
    }
    // In a bond, cards have the address of the first.
    let own = read(&interface.join("bonding_slave/perm_hwaddr"));
    let address =
        own.or_else(|| read(&interface.join("address")).filter(|_| has("addr_assign_type", PERMANENT)))?;
    let address = address.to_ascii_lowercase();
    address.bytes().any(|byte| !matches!(byte, b'0' | b'f' | b':')).then_some(address)
}

/// Whether a DMI UUID is one, and not the same in many machines.
fn is_of_one_machine(text: &str) -> bool {
    let is_uuid = text.len() == 36 && text.parse::<Uuid>().is_ok();
    let digits = text.bytes().filter(|byte| *byte != b'-').collect::<BTreeSet<u8>>();
    is_uuid && digits.len() > 1 && !WORTHLESS.contains(&text)
}

fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// An interface as sysfs shows it: a link to its device.
    fn interface(sys: &Path, name: &str, device: &str, files: &[(&str, &str)]) {
        let place = sys.join("devices").join(device).join(name);
        for (file, text) in files {
            write(&place.join(file), text);
        }
        let link = sys.join("class/net").join(name);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(place, link).unwrap();
    }

    #[test]
    fn hardware_is_read_as_the_kernel_shows_it() {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path();
        assert!(Hardware::of_system(sys).is_unknown());
        let address = |last: &'static str| [("type", "1\n"), ("addr_assign_type", "0\n"), ("address", last)];
        interface(sys, "docker0", "virtual/net", &address("02:42:00:00:00:01\n"));
        interface(sys, "lo", "virtual/net", &[("type", "772\n"), ("address", "00:00:00:00:00:00\n")]);
        interface(
            sys,
            "wlan0",
            "pci0/net",
            &[("type", "1"), ("addr_assign_type", "3"), ("address", "12:00:00:00:00:09")],
        );
        interface(sys, "ib0", "pci0/net", &[("type", "32"), ("addr_assign_type", "0"), ("address", "80:00")]);
        assert!(Hardware::of_system(sys).is_unknown());
        interface(sys, "eth1", "pci0/net", &address("52:54:00:00:00:02\n"));
        let one = Hardware::of_system(sys);
        interface(sys, "eth0", "virtio0/net", &address("52:54:00:00:00:01\n"));
        let two = Hardware::of_system(sys);
        assert_eq!((one.cards.len(), two.cards.len()), (1, 2));
        assert!(one.fits(&two) && one.name() != two.name(), "the first by name");
        for (text, is_known) in [
            ("Not Settable", false),
            ("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", false),
            ("03000200-0400-0500-0006-000700080009", false),
            ("4C4C4544-0042-3510-8052-B4C04F4D3132\n", true),
        ] {
            write(&sys.join("class/dmi/id/product_uuid"), text);
            assert_eq!(Hardware::of_system(sys).dmi.is_some(), is_known, "{text}");
        }
        assert_ne!(Hardware::of_system(sys).name(), two.name());
    }

    #[test]
    fn what_is_known_of_both_decides() {
        let of = Hardware::of_test;
        assert!(of(Some(1), &[1]).fits(&of(Some(1), &[2])) && !of(Some(1), &[1]).fits(&of(Some(2), &[1])));
        assert!(of(None, &[1, 2]).fits(&of(Some(1), &[2, 3])) && !of(None, &[1]).fits(&of(Some(1), &[2])));
        assert!(of(None, &[]).fits(&of(None, &[1])) && of(Some(1), &[]).fits(&of(None, &[])));
    }
}
