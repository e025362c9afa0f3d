//! The identity of this machine: part of every identity that a target derives.
//!
//! The operator's choice (`machine` in the configuration, `--machine`, `$NVLANE_MACHINE_ID`), or else an id and the
//! hardware:
//!
//! 1. the id: `/etc/machine-id`; `/var/lib/dbus/machine-id` where there is no `/etc/machine-id`, not even an empty one (then
//!    the other is that of an image); else one that is made once and kept in the file `machine-id` of a state directory;
//! 2. the hardware, so that clones of a machine differ: its DMI product UUID, or its first network address that is no
//!    virtual one.
//!
//! The identity is made once, and kept in the file `machine` of a state directory with hashes of all this. It stays as long
//! as the id and a part of the hardware stay: only root may read the DMI UUID, and a network card may be replaced.
//!
//! State directories are `$STATE_DIRECTORY` (systemd sets it), `/var/lib/nvlane`, and `$XDG_STATE_HOME/nvlane` or
//! `~/.local/state/nvlane`: the first of them that can be written keeps, and all of them are read.
//!
//! machine-id(5) asks not to expose the id itself: only a hash of it leaves this module.

mod hardware;
mod kept;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use linux::whole_file::{FileCalls, SystemFiles, place_new};
use wire::uuid::Uuid;

use crate::names::named_uuid::{ROOT, named};
use hardware::Hardware;
use kept::Kept;

/// A machine, identified by hashes of its id and its hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    identity: Uuid,
    /// The hash of the id alone.
    of_id: Uuid,
}

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
        let of_id = named(ROOT, &format!("machine {}", id.trim()));
        Self { identity: of_id, of_id }
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
        static HERE: OnceLock<Result<Machine, NoMachine>> = OnceLock::new();
        HERE.get_or_init(|| Sources::of_this_machine().machine()).clone()
    }

    /// As [`chosen`](Self::chosen), but `None` instead of making or keeping anything.
    #[must_use]
    pub fn known(id: Option<&str>) -> Option<Self> {
        match id {
            Some(id) => Some(Self::named(id)),
            None => Sources::of_this_machine().known(),
        }
    }

    /// Its identity.
    #[must_use]
    pub fn uuid(self) -> Uuid {
        self.identity
    }

    /// Its identity before the hardware was a part of it, which files may still name.
    #[must_use]
    pub fn former_uuid(self) -> Uuid {
        self.of_id
    }
}

/// Where identities come from.
struct Sources {
    /// The system's ids. The second counts if the first file does not exist.
    ids: [PathBuf; 2],
    /// Our own directories, the preferred one first.
    state: Vec<PathBuf>,
    hardware: Hardware,
}

/// The file with the id in one of our directories.
const KEPT_ID: &str = "machine-id";

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
            ids: ["/etc/machine-id".into(), "/var/lib/dbus/machine-id".into()],
            state: state.into_iter().flatten().collect(),
            hardware: Hardware::of_system(Path::new("/sys")),
        }
    }

    /// The id of the system.
    fn system_id(&self) -> Option<String> {
        let [first, second] = &self.ids;
        if first.exists() { read_id(first) } else { read_id(second) }
    }

    /// The id that was made here.
    fn own_id(&self) -> Option<String> {
        self.state.iter().find_map(|directory| read_id(&directory.join(KEPT_ID)))
    }

    fn known(&self) -> Option<Machine> {
        let of_id = self.system_id().or_else(|| self.own_id()).map(|id| Machine::named(&id).of_id)?;
        Some(self.with_hardware(of_id))
    }

    fn machine(&self) -> Result<Machine, NoMachine> {
        let machine = match self.known() {
            Some(machine) => machine,
            None => self.with_hardware(Machine::named(&self.make_id()?).of_id),
        };
        if self.hardware.is_unknown() {
            tracing::warn!(
                "only the machine-id distinguishes this machine from clones (no DMI product UUID, no network card): set \
                 --machine (machine = in the configuration) if it may be cloned"
            );
        }
        self.keep(machine);
        Ok(machine)
    }

    /// The machine with this id: as it is kept, if that is this machine, or a new one.
    fn with_hardware(&self, of_id: Uuid) -> Machine {
        let kept = self.kept().find(|kept| kept.is_of(of_id, &self.hardware));
        let made = || self.hardware.name().map(|name| named(of_id, &name));
        let identity = kept.map(|kept| kept.identity).or_else(made);
        Machine { identity: identity.unwrap_or(of_id), of_id }
    }

    /// The kept identities, of this machine or of one that it is a clone of.
    fn kept(&self) -> impl Iterator<Item = Kept> {
        self.state.iter().filter_map(|directory| Kept::read(directory))
    }

    /// Keeps the identity, and all that is known of the hardware.
    fn keep(&self, machine: Machine) {
        let known = self.kept().find(|kept| kept.identity == machine.identity);
        let hardware = match &known {
            Some(known) => known.hardware.clone().with(&self.hardware),
            None => self.hardware.clone(),
        };
        let kept = Kept { identity: machine.identity, of_id: machine.of_id, hardware };
        if known.as_ref() == Some(&kept) {
            return;
        }
        if known.is_none() && self.kept().any(|other| other.of_id == machine.of_id) {
            tracing::warn!(
                "machine-id of another machine on other hardware: this clone gets identities of its own"
            );
        }
        let failures: Vec<String> = self
            .state
            .iter()
            .map_while(|directory| {
                kept.write(directory).err().map(|error| format!("{}: {error}", directory.display()))
            })
            .collect();
        if failures.len() == self.state.len() {
            let failures = failures.join(", ");
            tracing::info!(%failures, "cannot store the identity of this machine: it changes with its hardware");
        }
    }

    /// Makes an id.
    fn make_id(&self) -> Result<String, NoMachine> {
        let mut tried = Vec::new();
        for directory in &self.state {
            match keep_new(directory) {
                Ok(id) => {
                    let path = directory.join(KEPT_ID);
                    tracing::warn!(path = %path.display(), "this machine has no machine-id: made one of our own");
                    return Ok(id);
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
    let path = directory.join(KEPT_ID);
    place_new(&mut SystemFiles, &path, format!("{id}\n").as_bytes())?;
    // Another target may have been first: the stored id counts.
    read_id(&path).ok_or_else(|| std::io::Error::other("machine-id is there, but holds no id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(root: &Path, state: &[&str], dmi: Option<u8>, macs: &[u8]) -> Sources {
        Sources {
            ids: ["etc", "dbus"].map(|name| root.join(name)),
            state: state.iter().map(|name| root.join(name)).collect(),
            hardware: Hardware::of_test(dmi, macs),
        }
    }

    fn uuid(sources: &Sources) -> Uuid {
        sources.machine().unwrap().uuid()
    }

    const ID: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_machine_has_the_id_of_its_system() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("dbus"), "0123456789ABCDEF0123456789abcdef\n").unwrap();
        let sources = sources(root.path(), &["state"], None, &[]);
        assert_eq!(sources.machine().map(Machine::former_uuid), Ok(Machine::named(ID).uuid()));
        std::fs::write(root.path().join("etc"), "fedcba9876543210fedcba9876543210\n").unwrap();
        let machine = Machine::named("fedcba9876543210fedcba9876543210");
        assert_eq!(sources.machine().map(Machine::former_uuid), Ok(machine.uuid()));
        assert!(!root.path().join("state/machine-id").exists(), "no id is kept that is not needed");
    }

    /// systemd-machine-id-setup(1) takes over D-Bus's id, once for all machines of an image.
    #[test]
    fn an_empty_machine_id_beside_that_of_an_image_counts_as_none() {
        for text in ["", "uninitialized\n", "00000000000000000000000000000000\n", "0123\n"] {
            let of_image = |name: &str| {
                let root = tempfile::tempdir().unwrap();
                std::fs::write(root.path().join("etc"), text).unwrap();
                std::fs::write(root.path().join("dbus"), ID).unwrap();
                let sources = sources(root.path(), &[name], None, &[]);
                assert_eq!(sources.known(), None, "{text:?}");
                let made = uuid(&sources);
                assert_eq!((uuid(&sources), sources.known().map(Machine::uuid)), (made, Some(made)));
                made
            };
            assert_ne!(of_image("one"), of_image("two"), "{text:?}");
        }
    }

    #[test]
    fn clones_of_a_machine_differ() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("etc"), ID).unwrap();
        let on = |state: &[&str], dmi, macs: &[u8]| uuid(&sources(root.path(), state, dmi, macs));
        // Of an image in which no target has run.
        let first = on(&["a"], Some(1), &[1]);
        assert_ne!(on(&["b"], Some(2), &[2]), first);
        assert_ne!(on(&["c"], None, &[2]), on(&["d"], None, &[3]));
        // Of a machine on which one has run, with what that kept.
        assert_ne!(on(&["a"], Some(2), &[2]), first);
        let second = on(&["a"], Some(2), &[2]);
        assert_eq!(
            (on(&["a"], Some(2), &[2]), on(&["a"], None, &[2])),
            (second, second),
            "which is kept now"
        );
    }

    /// Root reads the DMI UUID, and others do not.
    #[test]
    fn an_identity_stays_whoever_starts_the_target_and_whatever_card_is_replaced() {
        for began_as_root in [true, false] {
            let root = tempfile::tempdir().unwrap();
            std::fs::write(root.path().join("etc"), ID).unwrap();
            let on = |dmi, macs: &[u8]| uuid(&sources(root.path(), &["state"], dmi, macs));
            let identity = on(began_as_root.then_some(1), &[1]);
            assert_eq!([on(Some(1), &[1]), on(None, &[1]), on(None, &[2, 1])], [identity; 3]);
            assert_eq!(on(None, &[2]), identity, "the other card was replaced");
            assert_eq!([on(Some(1), &[3]), on(Some(1), &[]), on(None, &[])], [identity; 3]);
            assert_eq!(on(None, &[3]), identity, "both were");
            std::fs::write(root.path().join("etc"), "fedcba9876543210fedcba9876543210").unwrap();
            assert_ne!(on(Some(1), &[1]), identity, "an id of its own was made");
        }
    }

    #[test]
    fn clones_differ_whatever_is_in_their_state_directory() {
        let identities = [1, 2].map(|card| {
            let root = tempfile::tempdir().unwrap();
            std::fs::write(root.path().join("etc"), ID).unwrap();
            std::fs::create_dir(root.path().join("state")).unwrap();
            std::fs::write(root.path().join("state/disk.img"), "").unwrap();
            uuid(&sources(root.path(), &["state"], None, &[card]))
        });
        assert_ne!(identities[0], identities[1]);
    }

    #[test]
    fn a_machine_without_an_id_makes_one_and_keeps_it() {
        let root = tempfile::tempdir().unwrap();
        // The first directory cannot be created.
        std::fs::write(root.path().join("file"), "").unwrap();
        let here = sources(root.path(), &["file/nvlane", "a/nvlane", "b/nvlane"], Some(1), &[]);
        let machine = here.machine().unwrap();
        assert_eq!(here.machine(), Ok(machine));
        assert!(root.path().join("a/nvlane/machine-id").exists() && !root.path().join("b").exists());
        let elsewhere = sources(root.path(), &["b/nvlane"], Some(1), &[]);
        assert_ne!(elsewhere.machine(), Ok(machine), "another machine makes another one");
    }

    #[test]
    fn where_nothing_can_be_kept_it_is_said_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        let sources = sources(root.path(), &["file/nvlane"], Some(1), &[]);
        let error = sources.machine().unwrap_err().to_string();
        assert!(error.contains("file/nvlane cannot keep one (") && error.contains("--machine"), "{error}");
        std::fs::write(root.path().join("etc"), ID).unwrap();
        assert!(sources.machine().is_ok(), "an identity that is not kept is one");
    }
}
