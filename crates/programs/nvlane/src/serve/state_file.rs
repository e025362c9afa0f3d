//! The file of `--state`: the target's state, the process that wrote it, and the outcome of its last reload.

use std::io::{self, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use command_line::exit::Failure;
use command_line::output::is_standard;
use linux::small_file::SmallFile;
use linux::whole_file::{SystemFiles, check_place, replace};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use subsystem::config::PoolState;
use subsystem::operator::{ChangeOutcome, Report};
use subsystem::server::Target;
use subsystem::state::TargetState;

use super::device_queues::{DeviceQueues, ServedClass};

/// The part that `nvlane reload` reads to find the target and to wait for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The process that wrote it.
    pub(crate) process: ProcessId,
    /// The last reload; `None` before the first.
    pub(crate) reload: Option<Reload>,
}

/// A process, identified unambiguously.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Its start, in kernel ticks since boot, because process ids are reused.
    pub(crate) start_ticks: u64,
}

/// A reload and its outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reload {
    /// Its start, ns of the machine's monotonic clock: it has seen all earlier changes of the file.
    pub(crate) began_ns: u64,
    /// Whether every change is in place.
    pub(crate) is_complete: bool,
    pub(crate) changes: Vec<Change>,
}

/// One change of a reload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    /// "done", "failed" or "needs restart".
    pub(crate) outcome: String,
    pub(crate) text: String,
}

#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    head: &'a Head,
    #[serde(flatten)]
    state: &'a TargetState,
    /// The classes of device queues that the target serves.
    adq: &'a [ServedClass],
    /// The pools of volumes.
    pools: &'a [PoolState],
}

/// The part that `nvlane adq verify` reads: the process, and the classes of device queues that it serves.
#[derive(Debug, Deserialize)]
pub(crate) struct Served {
    pub(crate) process: ProcessId,
    pub(crate) adq: Vec<ServedClass>,
}

/// Limit of a state file that is read, bytes: that of some ten thousand connections.
const BYTES_MAX: u64 = 64 << 20;

/// Reads a part of a state file, and the user that owns the file. Other users may have put it there: nothing but a regular
/// file is read, and no more of it is kept than the part.
pub(crate) fn read<Part: DeserializeOwned>(path: &Path) -> io::Result<(Part, u32)> {
    let file = SmallFile::open_regular(path)?;
    let metadata = file.metadata();
    if metadata.len() > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {BYTES_MAX} bytes")));
    }
    let owner = metadata.uid();
    let part = serde_json::from_reader(BufReader::new(file.take(BYTES_MAX)));
    let part = part.map_err(|error| match error.is_io() {
        true => error.into(),
        // The text of an error may have words of a file that is not ours.
        false => io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "it is not what a target of this version writes with --state (line {}, column {})",
                error.line(),
                error.column()
            ),
        ),
    })?;
    Ok((part, owner))
}

/// Writer of the state file; holds the parts beside the target's state.
pub(super) struct StateFile {
    path: Option<PathBuf>,
    head: Head,
    began_ns: u64,
}

impl StateFile {
    /// Checks that the file can be written, before anything is served. A device, such as `/dev/null`, would be
    /// replaced.
    pub(super) fn check(path: Option<&Path>) -> Result<(), Failure> {
        let Some(path) = path else { return Ok(()) };
        if is_standard(path) {
            return Err(Failure::usage(
                "--state replaces its file as a whole, so it cannot be standard output: name a file",
            ));
        }
        check_place(path).map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))
    }

    pub(super) fn new(path: Option<&Path>) -> Self {
        let pid = std::process::id();
        let process = ProcessId { pid, start_ticks: start_ticks(pid).unwrap_or(0) };
        Self { path: path.map(Path::to_owned), head: Head { process, reload: None }, began_ns: 0 }
    }

    pub(super) fn begin_reload(&mut self) {
        self.began_ns = monotonic_ns();
    }

    pub(super) fn end_reload(&mut self, report: &Report) {
        let outcome = |outcome| match outcome {
            ChangeOutcome::Done => "done",
            ChangeOutcome::Failed => "failed",
            ChangeOutcome::NeedsRestart => "needs restart",
        };
        let changes = report.lines.iter();
        let changes =
            changes.map(|line| Change { outcome: outcome(line.outcome).into(), text: line.text.clone() });
        self.head.reload = Some(Reload {
            began_ns: self.began_ns,
            is_complete: report.is_complete(),
            changes: changes.collect(),
        });
    }

    /// Writes the state, if there is a file.
    pub(super) fn write(&self, target: &Target, device_queues: &DeviceQueues, pools: &[PoolState]) {
        let Some(path) = &self.path else { return };
        let Some(state) = target.state() else { return tracing::error!("the target is gone") };
        let whole = Whole { head: &self.head, state: &state, adq: device_queues.classes(), pools };
        let mut text = serde_json::to_string_pretty(&whole).expect("plain values");
        text.push('\n');
        if let Err(error) = replace(&mut SystemFiles, path, text.as_bytes()) {
            tracing::error!(%error, path = %path.display(), "cannot write the state");
        }
    }
}

/// The machine's monotonic clock, the same in all processes, ns.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, ns) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    seconds.saturating_mul(1_000_000_000).saturating_add(ns)
}

/// Start of a process; `None` if there is none with this id.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may contain anything, brackets too. The start is the 22nd field, the 20th after it.
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}
