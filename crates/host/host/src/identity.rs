//! Identity of this host: its NQN and host identifier, the same for each connection. wire §21
//!
//! Read from `/etc/nvme/hostnqn` and `/etc/nvme/hostid`, as other tools do. Without these files an identity is
//! generated once and stored in the user's state directory; if it cannot be stored, it is derived from the machine id,
//! so that it stays the same.

use std::path::{Path, PathBuf};

use linux::randomness::Randomness;
use linux::whole_file::{FileCalls, SystemFiles, place_new};
use wire::nqn::{HostId, Nqn};
use wire::uuid::Uuid;

/// Name and identifier of a host. Targets identify a host by both; reservations belong to the identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// The name.
    pub nqn: Nqn,
    /// The identifier.
    pub id: HostId,
}

/// Where an identity is read and stored.
#[derive(Clone, Debug)]
struct Places {
    /// Directory with `hostnqn` and `hostid` of the machine.
    machine: PathBuf,
    /// Directory with a generated identity.
    state: Option<PathBuf>,
    machine_id: PathBuf,
}

impl HostIdentity {
    /// The identity of a host whose name and identifier are this UUID.
    #[must_use]
    pub fn from_uuid(uuid: Uuid) -> Self {
        Self { nqn: Nqn::from_uuid(uuid), id: uuid.into() }
    }

    /// The identity of a host with this name; its identifier is the UUID in the name, or derived from the name.
    #[must_use]
    pub fn of_name(nqn: Nqn) -> Self {
        let id = id_of_name(&nqn);
        Self { nqn, id }
    }

    /// The identity of this machine or user.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
        Places {
            machine: "/etc/nvme".into(),
            // A relative path would make the identity depend on the working directory.
            state: state.filter(|path| path.is_absolute()).map(|path| path.join("nvlane")),
            machine_id: "/etc/machine-id".into(),
        }
        .identity()
    }
}

impl Places {
    fn identity(&self) -> HostIdentity {
        let read = |dir: &Path| {
            let nqn = read_line(&dir.join("hostnqn")).and_then(|text| text.parse::<Nqn>().ok());
            let id = read_line(&dir.join("hostid")).and_then(|text| text.parse::<HostId>().ok());
            (nqn, id.filter(|id| !id.is_zero()))
        };
        if let (Some(nqn), id) = read(&self.machine) {
            let id = id.unwrap_or_else(|| id_of_name(&nqn));
            return HostIdentity { nqn, id };
        }
        if let Some(state) = &self.state {
            if let (Some(nqn), Some(id)) = read(state) {
                return HostIdentity { nqn, id };
            }
            if let Some(identity) = make(&mut SystemFiles, state) {
                return identity;
            }
        }
        HostIdentity::from_uuid(self.derived())
    }

    /// A UUID derived from the machine id, which must not be disclosed: it is hashed with a text.
    fn derived(&self) -> Uuid {
        let machine_id = read_line(&self.machine_id).unwrap_or_default();
        let user = rustix::process::getuid().as_raw();
        uuid_of(mix(format!("nvlane host {user} {machine_id}").as_bytes()), 8)
    }
}

/// Generates an identity and stores it.
fn make(calls: &mut impl FileCalls, state: &Path) -> Option<HostIdentity> {
    let mut bytes = [0; 16];
    Randomness::System.fill(&mut bytes).ok()?;
    let identity = HostIdentity::from_uuid(uuid_of(bytes, 4));
    std::fs::create_dir_all(state).ok()?;
    // Sync the directory too: the identity must survive a power loss.
    state.parent().and_then(|parent| calls.sync(parent).ok());
    let mut keep = |name, line: String| place_new(calls, &state.join(name), line.as_bytes()).ok();
    keep("hostid", format!("{}\n", identity.id))?;
    keep("hostnqn", format!("{}\n", identity.nqn))?;
    // Another process may have stored one first: the stored one counts.
    let nqn = read_line(&state.join("hostnqn"))?.parse().ok()?;
    let id = read_line(&state.join("hostid"))?.parse().ok()?;
    Some(HostIdentity { nqn, id })
}

/// The UUID within a name, or one derived from the name.
fn id_of_name(nqn: &Nqn) -> HostId {
    let uuid = nqn.as_str().rsplit("uuid:").next().and_then(|text| text.parse().ok());
    uuid.unwrap_or_else(|| uuid_of(mix(nqn.as_bytes()), 8)).into()
}

fn read_line(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned()).filter(|line| !line.is_empty())
}

/// 128-bit FNV-1a: not a cryptographic hash.
fn mix(bytes: &[u8]) -> [u8; 16] {
    let offset: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let prime: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = bytes.iter().fold(offset, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(prime));
    hash.to_be_bytes()
}

/// A UUID of this version made of 16 bytes.
fn uuid_of(mut bytes: [u8; 16], version: u8) -> Uuid {
    bytes[6] = bytes[6] & 0x0f | version << 4;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(root: &Path) -> Places {
        Places {
            machine: root.join("etc"),
            state: Some(root.join("state/nvlane")),
            machine_id: root.join("machine-id"),
        }
    }

    #[test]
    fn an_identity_is_made_once_and_kept() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let first = places.identity();
        assert_eq!(places.identity(), first);
        assert_eq!(first.nqn, Nqn::from_uuid(first.id.uuid()));
        assert!(!first.id.is_zero());
        assert_eq!(std::fs::read_dir(root.path().join("state/nvlane")).unwrap().count(), 2);
    }

    /// The files of this machine, and those that are made durable.
    struct Syncs(Vec<std::path::PathBuf>);

    impl FileCalls for Syncs {
        fn write(&mut self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
            SystemFiles.write(path, bytes)
        }

        fn sync(&mut self, path: &Path) -> std::io::Result<()> {
            self.0.push(path.to_owned());
            SystemFiles.sync(path)
        }

        fn link(&mut self, from: &Path, to: &Path) -> std::io::Result<()> {
            SystemFiles.link(from, to)
        }

        fn rename(&mut self, from: &Path, to: &Path) -> std::io::Result<()> {
            SystemFiles.rename(from, to)
        }

        fn remove(&mut self, path: &Path) -> std::io::Result<()> {
            SystemFiles.remove(path)
        }
    }

    #[test]
    fn the_directory_of_an_identity_is_made_durable_before_its_files() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("nvlane");
        let mut calls = Syncs(Vec::new());
        make(&mut calls, &state).unwrap();
        let directories: Vec<_> = calls.0.iter().filter(|path| path.is_dir()).collect();
        assert_eq!(directories, [root.path(), &state, &state]);
        assert_eq!(calls.0.len(), 5, "and the contents of both files");
    }

    #[test]
    fn the_machines_own_identity_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        std::fs::create_dir(&places.machine).unwrap();
        let nqn = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
        std::fs::write(places.machine.join("hostnqn"), format!("{nqn}\n")).unwrap();
        assert_eq!(places.identity().nqn.as_str(), nqn);
        assert_eq!(places.identity().id.to_string(), "11111111-2222-3333-4444-555555555555", "from the name");
        std::fs::write(places.machine.join("hostid"), "99999999-2222-3333-4444-555555555555\n").unwrap();
        assert_eq!(places.identity().id.to_string(), "99999999-2222-3333-4444-555555555555");
        std::fs::write(places.machine.join("hostnqn"), "nonsense\n").unwrap();
        assert_ne!(places.identity().nqn.as_str(), "nonsense");
    }

    #[test]
    fn without_a_place_to_keep_it_an_identity_is_derived() {
        let root = tempfile::tempdir().unwrap();
        let nowhere = Places { state: None, ..places(root.path()) };
        std::fs::write(&nowhere.machine_id, "0123456789abcdef0123456789abcdef\n").unwrap();
        let identity = nowhere.identity();
        assert_eq!(nowhere.identity(), identity);
        assert!(!identity.nqn.as_str().contains("0123456789abcdef"));
        let blocked = Places { state: Some("/dev/null/nvlane".into()), ..nowhere };
        assert_eq!(blocked.identity(), identity);
    }
}
