//! Names and identities derived where the configuration gives none: stable over restarts, and distinct from those of
//! any other target. docs/design/identity.md lists their sources.
//! They are UUIDs of version 5 below [`ROOT`]. The identity of a namespace in a file is not derived: it is random, and
//! kept with the file ([`store::identity`]).

use std::net::SocketAddr;
use std::path::Path;

use store::{Source, Spec};
use wire::id::Nsid;
use wire::nqn::Nqn;
use wire::uuid::Uuid;

use crate::names::machine::Machine;
pub use crate::names::named_uuid::{ROOT, named};

/// The source of a target's derived identities: its machine, and its distinction from other targets on that machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetIdentity {
    machine: Machine,
    /// For namespaces whose contents exist only while the target runs.
    target: Uuid,
}

impl TargetIdentity {
    /// Of the target on this machine whose first listener has this address. Containers share an address and a
    /// machine-id, but not a host name.
    #[must_use]
    pub fn new(machine: Machine, hostname: &str, first: SocketAddr) -> Self {
        Self { machine, target: named(machine.uuid(), &format!("target {hostname} {first}")) }
    }

    /// The identity of its machine.
    #[must_use]
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// The UUID of a namespace that was given none. For one in a file it holds where the file system keeps no
    /// attributes.
    #[must_use]
    pub fn of_namespace(&self, subsystem: &Nqn, nsid: Nsid, spec: &Spec) -> Uuid {
        let machine = self.machine.uuid();
        match &spec.source {
            Source::Device { path } => named(machine, &format!("device {}", device_name(path))),
            Source::File { path, .. } | Source::KeyValueFile { path, .. } | Source::Volume { path } => {
                named(machine, &format!("file {}", place(path)))
            }
            // Until the image is open, which gives it one that is the same before every target.
            Source::Rbd(place) => named(machine, &format!("rbd {}", place.image)),
            Source::KeyValueRados(place) => named(machine, &place.to_string()),
            // A server does not tell which disk an export is.
            Source::Nbd(place) => named(machine, &place.to_string()),
            Source::VhostUser(device) => named(machine, &format!("vhost-user {}", place(&device.socket))),
            Source::Memory { .. } | Source::Null { .. } | Source::KeyValue { .. } => {
                named(self.target, &format!("namespace {subsystem} {nsid}"))
            }
        }
    }

    /// The derived serial number of a subsystem: 20 hexadecimal digits.
    #[must_use]
    pub fn serial_of(&self, subsystem: &Nqn) -> String {
        serial(self.machine.uuid(), subsystem)
    }

    /// The derived name of a discovery service.
    #[must_use]
    pub fn discovery_nqn(&self) -> Nqn {
        Nqn::from_uuid(named(self.target, "discovery"))
    }
}

/// The serial number of a discovery service. Its name contains the machine unless the configuration gives it.
#[must_use]
pub fn discovery_serial(discovery: &Nqn) -> String {
    serial(ROOT, discovery)
}

/// Twenty hexadecimal digits.
fn serial(root: Uuid, nqn: &Nqn) -> String {
    let uuid = named(root, &format!("serial {nqn}")).to_string();
    uuid.chars().filter(|char| *char != '-').take(20).collect::<String>().to_uppercase()
}

/// The UUID of a namespace on storage that has this name wherever it is served.
#[must_use]
pub fn of_storage(identity: &str) -> Uuid {
    named(ROOT, identity)
}

/// The UUID of a namespace whose storage another namespace of the target has under `uuid`.
#[must_use]
pub fn of_second_namespace(uuid: Uuid, subsystem: &Nqn, nsid: Nsid) -> Uuid {
    named(uuid, &format!("namespace {subsystem} {nsid}"))
}

/// The name of the only subsystem of a target that was given none: of the machine and the first listener. A target on a
/// free port has another one each time.
#[must_use]
pub fn default_nqn(machine: Machine, first: SocketAddr) -> Nqn {
    let uuid = match first.port() {
        0 => store::identity::random().unwrap_or_else(|_| {
            named(
                machine.uuid(),
                &format!("process {} {:?}", std::process::id(), std::time::SystemTime::now()),
            )
        }),
        _ => named(machine.uuid(), &format!("subsystem {first}")),
    };
    let digits: String = uuid.to_string().chars().filter(|char| *char != '-').take(16).collect();
    format!("{DEFAULT_NQN_PREFIX}{digits}").parse().expect("well formed")
}

/// Prefix of names from [`default_nqn`]; 16 hexadecimal digits follow.
pub const DEFAULT_NQN_PREFIX: &str = "nqn.2026-01.io.nvlane:target-";

/// A path with its links resolved, if it exists.
fn place(path: &Path) -> String {
    let absolute = path.canonicalize().or_else(|_| std::path::absolute(path));
    absolute.as_deref().unwrap_or(path).display().to_string()
}

/// The name that a device reports, and the number of its partition; its path if it reports none. Paths of devices are
/// given in the order in which they are found, and change owners.
pub(crate) fn device_name(path: &Path) -> String {
    let own = || {
        let device = std::fs::canonicalize(path).ok()?;
        let kernel_name = device.file_name()?.to_str()?;
        let directory = std::fs::canonicalize(Path::new("/sys/class/block").join(kernel_name)).ok()?;
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let (whole, part) = match read(&directory.join("partition")) {
            Some(number) => (directory.parent()?.to_owned(), format!(" partition {number}")),
            None => (directory, String::new()),
        };
        let names = ["wwid", "device/wwid", "dm/uuid", "md/uuid", "serial", "device/serial"];
        let name = names.iter().find_map(|name| Some(format!("{name} {}", read(&whole.join(name))?)))?;
        Some(format!("{name}{part}"))
    };
    own().unwrap_or_else(|| format!("path {}", place(path)))
}

/// The location of the bytes without options: `file:PATH` or `device:PATH`; `None` for storage that exists only while
/// the target runs.
#[must_use]
pub fn storage_name(spec: &Spec) -> Option<String> {
    match &spec.source {
        Source::File { path, .. } => Some(format!("file:{}", path.display())),
        Source::KeyValueFile { path, .. } => Some(format!("kv:file:{}", path.display())),
        Source::Device { path } => Some(format!("device:{}", path.display())),
        Source::Volume { path } => Some(format!("pool:{}", path.display())),
        Source::Rbd(place) => {
            let ceph = place.cluster.cluster.as_deref().or(place.cluster.conf.as_deref()).unwrap_or_default();
            Some(format!("rbd:{ceph}:{}", place.image))
        }
        Source::KeyValueRados(place) => {
            let ceph = place.cluster.cluster.as_deref().or(place.cluster.conf.as_deref()).unwrap_or_default();
            Some(format!("kv:rados:{ceph}:{}/{}", place.pool, place.namespace))
        }
        Source::Nbd(place) => Some(place.to_string()),
        Source::VhostUser(place) => Some(place.to_string()),
        Source::Memory { .. } | Source::Null { .. } | Source::KeyValue { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(text: &str) -> Nqn {
        text.parse().unwrap()
    }

    fn disks() -> Nqn {
        nqn("nqn.2026-01.io.nvlane:disks")
    }

    fn spec(text: &str) -> Spec {
        text.parse().unwrap()
    }

    fn target(machine: &str, address: &str) -> TargetIdentity {
        TargetIdentity::new(Machine::named(machine), "a", address.parse().unwrap())
    }

    #[test]
    fn names_are_uuids_of_version_5() {
        // Known from the RFC's namespaces: DNS and URL.
        let dns: Uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8".parse().unwrap();
        assert_eq!(named(dns, "python.org").to_string(), "886313e1-3b8a-5372-9b90-0c9aee199e5d");
        let url: Uuid = "6ba7b811-9dad-11d1-80b4-00c04fd430c8".parse().unwrap();
        assert_eq!(named(url, "nvlane"), ROOT);
    }

    /// These never change: hosts have them in their file system tables and connect scripts.
    #[test]
    fn made_names_stay_what_they_were() {
        let target = target("0123456789abcdef0123456789abcdef", "127.0.0.1:4420");
        let name = |text: &str| target.of_namespace(&disks(), Nsid::new(1), &spec(text)).to_string();
        assert_eq!(name("file:/no/such/a.img?size=1G"), "b93bd4c2-2326-5c3e-8c65-072208599d74");
        assert_eq!(name("device:/no/such/device"), "a31e9c99-baaa-56a0-8c9f-449f74560c74");
        assert_eq!(name("ram:1G"), "87d2720b-e831-594e-9cdd-f86e209c3e70");
        assert_eq!(target.serial_of(&disks()), "860C5CBC5CAD5E3E991F");
        assert_eq!(
            target.discovery_nqn().as_str(),
            "nqn.2014-08.org.nvmexpress:uuid:e3f5b193-834a-50f0-938a-01d3cea02848"
        );
        let default = default_nqn(target.machine(), "127.0.0.1:4420".parse().unwrap());
        assert_eq!(default.as_str(), "nqn.2026-01.io.nvlane:target-28f660286db05ff4");
    }

    /// Linux merges subsystems by NQN, and takes namespaces of one UUID in them for one disk with two paths.
    #[test]
    fn two_targets_have_nothing_in_common() {
        let here = target("1", "0.0.0.0:4420");
        for (other, same_machine) in
            [(target("2", "0.0.0.0:4420"), false), (target("1", "0.0.0.0:4421"), true)]
        {
            let of = |target: &TargetIdentity, text| target.of_namespace(&disks(), Nsid::new(1), &spec(text));
            for storage in ["ram:1G", "null:1G", "kv:ram:1G"] {
                assert_ne!(of(&here, storage), of(&other, storage), "{storage}");
            }
            // One file is one file, whichever target has it.
            let file = "file:/no/such/a.img";
            assert_eq!(of(&here, file) == of(&other, file), same_machine);
            assert_eq!(here.serial_of(&disks()) == other.serial_of(&disks()), same_machine);
            assert_ne!(here.discovery_nqn(), other.discovery_nqn());
        }
        let default =
            |machine: &str, address: &str| default_nqn(Machine::named(machine), address.parse().unwrap());
        assert_eq!(default("1", "0.0.0.0:4420"), default("1", "0.0.0.0:4420"));
        assert_ne!(default("1", "0.0.0.0:4420"), default("2", "0.0.0.0:4420"));
        assert_ne!(default("1", "0.0.0.0:4420"), default("1", "0.0.0.0:4421"));
        assert_ne!(default("1", "127.0.0.1:0"), default("1", "127.0.0.1:0"), "a free port");
    }

    #[test]
    fn containers_that_share_a_machine_id_and_an_address_differ() {
        let in_container =
            |name| TargetIdentity::new(Machine::named("1"), name, "0.0.0.0:4420".parse().unwrap());
        let of = |target: TargetIdentity| target.of_namespace(&disks(), Nsid::new(1), &spec("ram:1G"));
        assert_ne!(of(in_container("a")), of(in_container("b")));
    }

    #[test]
    fn what_does_not_matter_does_not_change_an_identity() {
        let target = target("1", "0.0.0.0:4420");
        let of = |nqn: &Nqn, nsid: u32, text: &str| target.of_namespace(nqn, Nsid::new(nsid), &spec(text));
        let one = of(&disks(), 1, "file:/srv/a.img?size=1G");
        assert_eq!(one, of(&nqn("nqn.2026-01.io.nvlane:x"), 2, "file:/srv/a.img?size=2G&readonly"));
        assert_ne!(one, of(&disks(), 1, "file:/srv/b.img"));
        assert_eq!(of(&disks(), 1, "ram:1G"), of(&disks(), 1, "ram:2G"));
        assert_ne!(of(&disks(), 1, "ram:1G"), of(&disks(), 2, "ram:1G"));
        assert_ne!(one, of_second_namespace(one, &disks(), Nsid::new(2)));
    }
}
