//! Bridges that run on this machine: a file for each, which its process holds locked, so that dead ones are told from living ones.
//!
//! ```text
//! /run/nvlane-attach/PID.json              of root
//! $XDG_RUNTIME_DIR/nvlane-attach/PID.json  of other users
//! ```

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use command_line::exit::Ended;
use command_line::output::Output;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::columns::Columns;

/// Below the directory of files that end with the machine.
const DIRECTORY: &str = "nvlane-attach";

/// Bytes of a file at most: others may write to the directory of their user.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A bridge, as its file has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
struct Bridge {
    /// `nbd`, `fuse`, `vhost-user`, `ublk`.
    kind: String,
    /// Addresses of the target, as given.
    addresses: Vec<String>,
    /// What programs use: URIs, sockets, devices.
    devices: Vec<String>,
    process: u32,
    /// Start, seconds of Unix time.
    since: u64,
}

/// The file of this process. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Entry {
    path: PathBuf,
    /// Locked as long as it is open.
    _file: File,
}

impl Entry {
    /// Notes that this process serves devices. It serves them also if that cannot be noted.
    pub(super) fn make(kind: &str, addresses: &[String], devices: &[String]) -> Option<Self> {
        let directory = own_directory()?;
        let bridge = Bridge {
            kind: kind.to_owned(),
            addresses: addresses.to_vec(),
            devices: devices.to_vec(),
            process: std::process::id(),
            since: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        };
        let made = Self::make_in(&directory, &bridge);
        if let Err(error) = &made {
            tracing::debug!(directory = %directory.display(), %error, "not in `nvlane attach list`");
        }
        made.ok()
    }

    fn make_in(directory: &Path, bridge: &Bridge) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        let path = directory.join(format!("{}.json", bridge.process));
        // The file is complete and locked before it gets its name: without the lock it would count as that of a dead process.
        let early = directory.join(format!("{}.new", bridge.process));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&early)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(&serde_json::to_vec(bridge)?)?;
        fs::rename(&early, &path)?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Where this user's bridges are noted.
pub(super) fn own_directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(Path::new("/run").join(DIRECTORY));
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty())?;
    Some(Path::new(&runtime).join(DIRECTORY))
}

#[derive(Debug, Args)]
#[command(after_help = "\
Lists the bridges of root, and those of this user where XDG_RUNTIME_DIR is set. A bridge ends at SIGTERM: kill PROCESS.")]
pub(crate) struct ListArguments {
    #[command(flatten)]
    output: Output,
}

/// `nvlane attach list`.
pub(super) fn list(arguments: &ListArguments) -> Ended {
    let mut directories = vec![Path::new("/run").join(DIRECTORY)];
    directories.extend(own_directory().filter(|own| !directories.contains(own)));
    let mut bridges: Vec<Bridge> = directories.iter().flat_map(|directory| living(directory)).collect();
    bridges.sort_by_key(|bridge| (bridge.since, bridge.process));
    arguments.output.print(&Listing { bridges })?;
    Ok(ExitCode::SUCCESS)
}

/// The bridges of a directory that live. Files of dead ones are removed, where this user may.
fn living(directory: &Path) -> Vec<Bridge> {
    let paths = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = paths.filter(|path| path.extension().is_some_and(|kind| kind == "json"));
    files.filter_map(|path| living_at(&path)).collect()
}

fn living_at(path: &Path) -> Option<Bridge> {
    let file = File::open(path).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        let _ = fs::remove_file(path);
        return None;
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    match serde_json::from_str(&text) {
        Ok(bridge) => Some(bridge),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "file of a bridge cannot be read");
            None
        }
    }
}

#[derive(Debug, Serialize)]
struct Listing {
    bridges: Vec<Bridge>,
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bridges.is_empty() {
            return writeln!(f, "no bridges run");
        }
        let mut table = Columns::titled(["Bridge", "Device", "Address", "Process", "Since"]);
        for bridge in &self.bridges {
            let age = SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(bridge.since));
            table.row([
                bridge.kind.clone(),
                bridge.devices.join(", "),
                bridge.addresses.join(", "),
                bridge.process.to_string(),
                age_text(age.unwrap_or_default().as_secs()),
            ]);
        }
        table.fmt(f)
    }
}

/// A time that has passed, in its largest whole unit.
fn age_text(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7_200 => format!("{} min ago", seconds / 60),
        7_200..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_is_listed_while_it_holds_its_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let bridge = |process| Bridge {
            kind: "nbd".into(),
            addresses: vec!["192.0.2.1".into()],
            devices: vec!["nbd+unix:///?socket=/run/disk.sock".into()],
            process,
            since: 1,
        };
        let entry = Entry::make_in(directory.path(), &bridge(7)).expect("its file");
        let dead = directory.path().join("8.json");
        fs::write(&dead, serde_json::to_vec(&bridge(8)).expect("JSON")).expect("a file");
        fs::write(directory.path().join("other"), "").expect("a file");
        assert_eq!(living(directory.path()), [bridge(7)]);
        assert!(!dead.exists(), "the file of a dead one is removed");
        drop(entry);
        assert!(living(directory.path()).is_empty());
        assert!(directory.path().join("other").exists());
    }

    #[test]
    fn ages_have_one_unit() {
        let texts = [0, 119, 120, 7_199, 7_200, 172_799, 172_800].map(age_text);
        let wanted =
            ["0 s ago", "119 s ago", "2 min ago", "119 min ago", "2 h ago", "47 h ago", "2 days ago"];
        assert_eq!(texts, wanted);
    }
}
