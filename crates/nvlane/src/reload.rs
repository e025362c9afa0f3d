//! `nvlane reload`: sends SIGHUP to a running target, waits, and prints the outcome.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::exit::{Ended, Failure, Kind};
use crate::output::Output;
use crate::serve::state_file::{Change, Head, ProcessId, Reload, monotonic_ns, start_ticks};

#[derive(Debug, Args)]
#[command(after_help = "\
The target rereads its configuration and applies the differences. It reopens namespaces that were closed by a failed flush or \
because their storage was cut, deleted or removed, and follows files and devices that have grown.

  nvlane target --config nvlane.toml --state /run/nvlane/state.json
  nvlane reload --state /run/nvlane/state.json

Prints each change with its outcome. Exits with 0 if all changes are in place, with 1 if not. \
A reopened namespace may have lost unflushed writes; therefore the first flush of each connected host fails.")]
pub(crate) struct ReloadArguments {
    /// The state file of the target (its option --state).
    #[arg(long, value_name = "FILE")]
    state: PathBuf,
    /// Seconds to wait for the target.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    #[command(flatten)]
    output: Output,
}

/// Interval at which the state file is read while waiting.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The printed outcome.
#[derive(Serialize)]
struct Shown<'a> {
    is_complete: bool,
    changes: &'a [Change],
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.changes.is_empty() {
            return f.write_str("nothing to change\n");
        }
        self.changes.iter().try_for_each(|change| writeln!(f, "{}", change.text))
    }
}

pub(crate) fn reload(arguments: &ReloadArguments) -> Ended {
    let path = &arguments.state;
    let process = read(path)?.process;
    let ended = || {
        let pid = process.pid;
        format!(
            "the target that wrote {}, process {pid}, has ended, or runs in another container: start it, or use this \
             command there",
            path.display()
        )
    };
    if !is_alive(process) {
        return Err(Failure::new(Kind::Unreachable, ended()));
    }
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new(Kind::Unreachable, ended()))?;
    let asked_ns = monotonic_ns();
    kill_process(pid, Signal::HUP).map_err(|errno| match errno {
        Errno::PERM => Failure::new(
            Kind::Unreachable,
            format!(
                "process {} belongs to another user: use this command as that user, or as root",
                process.pid
            ),
        ),
        Errno::SRCH => Failure::new(Kind::Unreachable, ended()),
        errno => {
            Failure::new(Kind::Failed, format!("cannot send SIGHUP to process {}: {errno}", process.pid))
        }
    })?;
    let reload = await_reload(arguments, process, asked_ns)?;
    arguments.output.print(&Shown { is_complete: reload.is_complete, changes: &reload.changes })?;
    if !reload.is_complete {
        return Err(Failure::new(Kind::Failed, "not every change is in place"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for the end of the reload that began after `asked_ns`.
fn await_reload(arguments: &ReloadArguments, process: ProcessId, asked_ns: u64) -> Result<Reload, Failure> {
    let (path, seconds) = (&arguments.state, arguments.timeout);
    let until = Instant::now() + Duration::from_secs(seconds);
    loop {
        // Checked before the file is read: what the target wrote before it ended counts.
        let is_alive = is_alive(process);
        let head = read(path)?;
        if let Some(reload) =
            head.reload.filter(|reload| head.process == process && reload.began_ns >= asked_ns)
        {
            return Ok(reload);
        }
        let pid = process.pid;
        if !is_alive {
            let message = format!("the target, process {pid}, ended during the reload: see its log");
            return Err(Failure::new(Kind::Failed, message));
        }
        if Instant::now() >= until {
            let message = format!(
                "the target, process {pid}, has not reported an outcome within {seconds} s: it may still be opening storage, \
                 or could not write {}; see its log",
                path.display()
            );
            return Err(Failure::new(Kind::Failed, message));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn is_alive(process: ProcessId) -> bool {
    start_ticks(process.pid) == Some(process.start_ticks)
}

fn read(path: &Path) -> Result<Head, Failure> {
    let text = std::fs::read(path).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::NotFound => {
                ": name the file that the target was started with, nvlane target --state FILE"
            }
            _ => "",
        };
        Failure::usage(format!("cannot read {}: {error}{hint}", path.display()))
    })?;
    serde_json::from_slice(&text).map_err(|error| {
        let shown = path.display();
        Failure::usage(format!("{shown} is not what a target of this version writes with --state: {error}"))
    })
}
