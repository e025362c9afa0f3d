//! The identity of this machine: part of every identity that a target derives.
//!
//! Sources, in this order:
//!
//! 1. what the operator says (`machine` in the configuration, `--machine`, `$NVLANE_MACHINE_ID`);
//! 2. `/etc/machine-id`, or `/var/lib/dbus/machine-id`, unless it is missing, empty, or says `uninitialized`;
//! 3. an id made once and kept in the file `machine-id` of `$STATE_DIRECTORY` (systemd sets it), `/var/lib/nvlane`,
//!    `$XDG_STATE_HOME/nvlane` or `~/.local/state/nvlane`: the first of them that can be written.
//!
//! machine-id(5) asks not to expose the id itself: only a hash of it leaves this module.

use std::fmt;
use std::path::{Path, PathBuf};

use reactor::whole_file::{FileCalls, SystemFiles, place_new};
use wire::uuid::Uuid;

use crate::named_uuid::{ROOT, named};

/// A machine, identified by a hash of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine(Uuid);

/// The error if no machine id exists and none can be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NoMachine {
    /// Each place where an id could have been stored, with the error.
    tried: Vec<String>,
}

impl fmt::Display for NoMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing tells this machine from others: /etc/machine-id holds no id")?;
        for tried in &self.tried {
            write!(f, ", {tried}")?;
        }
        f.write_str(
            ". Run systemd-machine-id-setup, or name the machine with --machine (NVLANE_MACHINE_ID, or machine = in the \
             configuration): hosts take disks of two machines with one identity for one disk",
        )
    }
}

impl Machine {
    /// The machine with this id, or with any text that the operator chose.
    #[must_use]
    pub fn named(id: &str) -> Self {
        Self(named(ROOT, &format!("machine {}", id.trim())))
    }

    /// The machine that a configuration names, or this one.
    ///
    /// # Errors
    /// If this machine has no id and none can be stored.
    pub fn chosen(id: Option<&str>) -> Result<Self, NoMachine> {
        id.map_or_else(Self::here, |id| Ok(Self::named(id)))
    }

    /// This machine.
    ///
    /// # Errors
    /// If it has no id and none can be stored.
    pub fn here() -> Result<Self, NoMachine> {
        Sources::of_this_machine().machine()
    }

    /// As above, but `None` instead of creating an id.
    #[must_use]
    pub fn known(id: Option<&str>) -> Option<Self> {
        match id {
            Some(id) => Some(Self::named(id)),
            None => Some(Self::named(&Sources::of_this_machine().known()?)),
        }
    }

    /// The hash of its id.
    #[must_use]
    pub fn uuid(self) -> Uuid {
        self.0
    }
}

/// Locations of ids.
struct Sources {
    ids: Vec<PathBuf>,
    /// Our own directories, the preferred one first.
    state: Vec<PathBuf>,
}

/// The file with the id in one of our directories.
const KEPT: &str = "machine-id";

impl Sources {
    fn of_this_machine() -> Self {
        let variable =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        // systemd separates several by colons.
        let given = std::env::var("STATE_DIRECTORY").ok();
        let given = given.as_deref().and_then(|text| text.split(':').next()).map(PathBuf::from);
        let user = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
        let state = [
            given.filter(|path| path.is_absolute()),
            Some(PathBuf::from("/var/lib/nvlane")),
            user.map(|path| path.join("nvlane")),
        ];
        Self {
            ids: vec!["/etc/machine-id".into(), "/var/lib/dbus/machine-id".into()],
            state: state.into_iter().flatten().collect(),
        }
    }

    /// The existing id.
    fn known(&self) -> Option<String> {
        let kept = |directory: &PathBuf| read_id(&directory.join(KEPT));
        self.ids.iter().find_map(|path| read_id(path)).or_else(|| self.state.iter().find_map(kept))
    }

    fn machine(&self) -> Result<Machine, NoMachine> {
        if let Some(id) = self.known() {
            return Ok(Machine::named(&id));
        }
        let mut tried = Vec::new();
        for directory in &self.state {
            match keep_new(directory) {
                Ok(id) => {
                    let path = directory.join(KEPT);
                    tracing::info!(path = %path.display(), "this machine has no machine-id: made one of our own");
                    return Ok(Machine::named(&id));
                }
                Err(error) => tried.push(format!("{} cannot keep one ({error})", directory.display())),
            }
        }
        Err(NoMachine { tried })
    }
}

/// The host name of this machine; containers have their own.
#[must_use]
pub fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// An id as machine-id(5) defines it: 32 hexadecimal digits, not all zero. Anything else, such as "uninitialized", is
/// rejected.
fn read_id(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let id = text.lines().next()?.trim();
    let is_id = id.len() == 32
        && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        && id.bytes().any(|byte| byte != b'0');
    is_id.then(|| id.to_ascii_lowercase())
}

fn keep_new(directory: &Path) -> std::io::Result<String> {
    let id = store::identity::random()?.to_string().replace('-', "");
    std::fs::create_dir_all(directory)?;
    if let Some(parent) = directory.parent() {
        SystemFiles.sync(parent)?;
    }
    let path = directory.join(KEPT);
    place_new(&mut SystemFiles, &path, format!("{id}\n").as_bytes())?;
    // Another target may have been first: the stored id counts.
    read_id(&path).ok_or_else(|| std::io::Error::other("machine-id is there, but holds no id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_the_id_of_its_system() {
        let root = tempfile::tempdir().unwrap();
        let [first, second] = ["etc", "dbus"].map(|name| root.path().join(name));
        std::fs::write(&second, "0123456789ABCDEF0123456789abcdef\n").unwrap();
        let sources = Sources { ids: vec![first.clone(), second], state: vec![root.path().join("state")] };
        let machine = Machine::named("0123456789abcdef0123456789abcdef");
        for text in ["", "uninitialized\n", "00000000000000000000000000000000\n", "0123\n"] {
            std::fs::write(&first, text).unwrap();
            assert_eq!(sources.machine(), Ok(machine), "{text:?}");
        }
        std::fs::write(&first, "fedcba9876543210fedcba9876543210\n").unwrap();
        assert_eq!(sources.machine(), Ok(Machine::named("fedcba9876543210fedcba9876543210")));
        assert!(!root.path().join("state").exists(), "nothing is kept that is not needed");
    }

    #[test]
    fn a_machine_without_an_id_makes_one_and_keeps_it() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        // The first directory cannot be created.
        let state = vec![file.join("nvlane"), root.path().join("a/nvlane"), root.path().join("b/nvlane")];
        let sources = Sources { ids: vec![file.clone()], state };
        let machine = sources.machine().unwrap();
        assert_eq!(sources.machine(), Ok(machine));
        assert!(root.path().join("a/nvlane/machine-id").exists() && !root.path().join("b").exists());
        let elsewhere = Sources { ids: vec![file], state: vec![root.path().join("b/nvlane")] };
        assert_ne!(elsewhere.machine(), Ok(machine), "another machine makes another one");
    }

    #[test]
    fn where_nothing_can_be_kept_it_is_said_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error =
            Sources { ids: vec![], state: vec![file.join("nvlane")] }.machine().unwrap_err().to_string();
        assert!(error.contains("file/nvlane cannot keep one (") && error.contains("--machine"), "{error}");
    }
}
