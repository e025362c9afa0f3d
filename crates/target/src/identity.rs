//! Names that are made from the configuration: stable over restarts, the same on every target with the same
//! configuration, unlike any other's.
//!
//! They are UUIDs of version 5 below [`ROOT`], so that anybody can make them again:
//!
//! ```sh
//! uuidgen --sha1 --namespace ae06c923-b109-5d29-947a-1743e6234425 --name "namespace SUBSYSTEM-NQN NSID"
//! ```

use std::net::SocketAddr;

use sha1_smol::Sha1;
use store::{Source, Spec};
use wire::id::Nsid;
use wire::nqn::Nqn;
use wire::uuid::Uuid;

/// Above all names made here. It is itself made of the name `nvlane` below the well-known namespace of URLs.
pub const ROOT: Uuid = Uuid::from_bytes([
    0xAE, 0x06, 0xC9, 0x23, 0xB1, 0x09, 0x5D, 0x29, 0x94, 0x7A, 0x17, 0x43, 0xE6, 0x23, 0x44, 0x25,
]);

/// The UUID of version 5 of `name` below `root`.
#[must_use]
pub fn named(root: Uuid, name: &str) -> Uuid {
    let mut sha1 = Sha1::new();
    sha1.update(&root.to_bytes());
    sha1.update(name.as_bytes());
    let digest = sha1.digest().bytes();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    bytes[6] = bytes[6] & 0x0F | 0x50;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Uuid::from_bytes(bytes)
}

/// The UUID of a namespace whose number was chosen: it stays when its file moves or its storage is replaced.
#[must_use]
pub fn of_numbered_namespace(subsystem: &Nqn, nsid: Nsid) -> Uuid {
    named(ROOT, &format!("namespace {subsystem} {nsid}"))
}

/// The UUID of a namespace that was numbered in order: it stays with its file or device when the numbers
/// shift. Storage that has no name has nothing but its number.
#[must_use]
pub fn of_namespace_in_order(subsystem: &Nqn, nsid: Nsid, spec: &Spec) -> Uuid {
    match storage_name(spec) {
        Some(name) => named(ROOT, &format!("storage {subsystem} {name}")),
        None => of_numbered_namespace(subsystem, nsid),
    }
}

/// The serial number of a subsystem that was given none: 20 hexadecimal digits.
#[must_use]
pub fn serial_of(subsystem: &Nqn) -> String {
    let uuid = named(ROOT, &format!("serial {subsystem}")).to_string();
    uuid.chars().filter(|char| *char != '-').take(20).collect::<String>().to_uppercase()
}

/// The name of a discovery service that was given none. `machine` tells machines apart, the address of the
/// first listener the targets on one.
#[must_use]
pub fn discovery_nqn(machine: &str, address: SocketAddr) -> Nqn {
    Nqn::from_uuid(named(ROOT, &format!("discovery {machine} {address}")))
}

/// Where the bytes are, without how: `file:PATH` or `device:PATH`; `None` for storage that is only there
/// while the target runs.
#[must_use]
pub fn storage_name(spec: &Spec) -> Option<String> {
    match &spec.source {
        Source::File { path, .. } => Some(format!("file:{}", path.display())),
        Source::KeyValueFile { path, .. } => Some(format!("kv:file:{}", path.display())),
        Source::Device { path } => Some(format!("device:{}", path.display())),
        Source::Memory { .. } | Source::Null { .. } | Source::KeyValue { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISKS: &str = "nqn.2026-01.io.nvlane:disks";

    fn disks() -> Nqn {
        DISKS.parse().unwrap()
    }

    fn spec(text: &str) -> Spec {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_uuids_of_version_5() {
        // Known from the RFC's namespaces: DNS and URL.
        let dns: Uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8".parse().unwrap();
        assert_eq!(named(dns, "python.org").to_string(), "886313e1-3b8a-5372-9b90-0c9aee199e5d");
        let url: Uuid = "6ba7b811-9dad-11d1-80b4-00c04fd430c8".parse().unwrap();
        assert_eq!(named(url, "nvlane"), ROOT);
    }

    /// These never change: hosts have them in their file system tables.
    #[test]
    fn derived_names_stay_what_they_were() {
        let nsid = Nsid::new(1);
        let file = spec("file:/srv/a.img?size=1G");
        let name = |uuid: Uuid| uuid.to_string();
        assert_eq!(name(of_numbered_namespace(&disks(), nsid)), "7cca01fa-8a5d-5857-8ce4-6fc715af810b");
        assert_eq!(
            name(of_namespace_in_order(&disks(), nsid, &file)),
            "801301fa-a9ed-57a4-ada0-31f0ede1153f"
        );
        assert_eq!(
            name(of_namespace_in_order(&disks(), nsid, &spec("ram:1G"))),
            "7cca01fa-8a5d-5857-8ce4-6fc715af810b"
        );
        assert_eq!(serial_of(&disks()), "1295912229075E84917D");
        assert_eq!(
            discovery_nqn("machine-1", "127.0.0.1:4420".parse().unwrap()).as_str(),
            "nqn.2014-08.org.nvmexpress:uuid:1aa4ce5b-d8e3-547f-8d2e-afc2bbfccc45"
        );
    }

    #[test]
    fn what_does_not_matter_does_not_change_a_name() {
        let nsid = Nsid::new(1);
        let one = of_namespace_in_order(&disks(), nsid, &spec("file:/srv/a.img?size=1G"));
        assert_eq!(one, of_namespace_in_order(&disks(), nsid, &spec("file:/srv/a.img?size=2G&readonly")));
        assert_eq!(one, of_namespace_in_order(&disks(), Nsid::new(2), &spec("file:/srv/a.img")));
        assert_ne!(one, of_namespace_in_order(&disks(), nsid, &spec("file:/srv/b.img")));
        assert_ne!(of_numbered_namespace(&disks(), nsid), of_numbered_namespace(&disks(), Nsid::new(2)));
    }
}
