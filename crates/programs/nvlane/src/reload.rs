//! `nvlane reload`: sends SIGHUP to a running target, waits, and prints the outcome.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use clap::Args;
use command_line::exit::{Ended, Failure, Kind};
use command_line::output::Output;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use wire::text::without_hidden;

use crate::serve::force_request::ForceRequest;
use crate::serve::start_thread;
use crate::serve::state_file::{self, Change, Head, ProcessId, Reload, monotonic_ns, start_ticks};

#[derive(Debug, Args)]
#[command(after_help = "\
The target rereads its configuration and applies the differences. It reopens namespaces that were closed by a failed flush or \
because their storage was cut, deleted or removed, and follows files and devices that have grown. It reads all files with secrets \
again, also those of options.

  nvlane target --config nvlane.toml --state /run/nvlane/state.json
  nvlane reload --state /run/nvlane/state.json

Prints each change with its outcome. Exits with 0 if all changes are in place, with 1 if not, or if a secret cannot be read again: \
environment variables, and systemd's credentials, are passed only at the start. \
A namespace or subsystem that hosts are connected to is removed with --force only. \
A reopened namespace may have lost unflushed writes; therefore the first flush of each connected host fails.

The signal is sent only to a target that runs as the owner of the state file, since that user may be trusted less.")]
pub(crate) struct ReloadArguments {
    /// The state file of the target (its option --state).
    #[arg(long, value_name = "FILE")]
    state: PathBuf,
    /// The target's process id, if known: only this process gets the signal, whatever the state file says. systemd sets
    /// $MAINPID to it.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Also remove namespaces and subsystems that hosts are connected to: the hosts lose their disks.
    #[arg(long)]
    force: bool,
    /// Seconds to wait for the target, at most a day.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=86_400))]
    timeout: u64,
    #[command(flatten)]
    output: Output,
}

/// Interval at which the state file is read while waiting.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Time beyond the time limit after which storage that answers no read is not waited for.
const READ_TIME: Duration = Duration::from_secs(1);

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
        // The file may be of a user that is trusted less, and this terminal of root.
        self.changes.iter().try_for_each(|change| writeln!(f, "{}", without_hidden(&change.text, false)))
    }
}

pub(crate) fn reload(arguments: &ReloadArguments) -> Ended {
    let (done, outcome) = channel();
    let timeout = Duration::from_secs(arguments.timeout);
    let (path, pid, is_forced) = (arguments.state.clone(), arguments.pid, arguments.force);
    // The state file may be on storage that hangs.
    start_thread(move || drop(done.send(ask(&path, pid, is_forced, timeout))))?;
    let reload = outcome.recv_timeout(timeout + READ_TIME).unwrap_or_else(|_| {
        let (path, seconds) = (arguments.state.display(), arguments.timeout);
        Err(Failure::new(Kind::Failed, format!("{path} could not be read within {seconds} s")))
    })?;
    arguments.output.print(&Shown { is_complete: reload.is_complete, changes: &reload.changes })?;
    if !reload.is_complete {
        return Err(Failure::new(Kind::Failed, "not every change is in place"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the target of a state file reload, and waits for the outcome.
fn ask(path: &Path, pid: Option<u32>, is_forced: bool, timeout: Duration) -> Result<Reload, Failure> {
    let until = Instant::now() + timeout;
    let (head, owner) = read(path)?;
    let process = head.process;
    if let Some(pid) = pid.filter(|pid| *pid != process.pid) {
        let (path, written_by) = (path.display(), process.pid);
        let message = format!("{path} was written by process {written_by}, not by {pid}: no signal was sent");
        return Err(Failure::new(Kind::Unreachable, message));
    }
    let target = open(path, process, owner)?;
    let asked_ns = monotonic_ns();
    // Withdrawn once the outcome is there.
    let _request = is_forced.then(|| ForceRequest::make(path, process)).transpose()?;
    pidfd_send_signal(&target, Signal::HUP).map_err(|errno| match errno {
        Errno::PERM => Failure::new(
            Kind::Unreachable,
            format!(
                "process {} belongs to another user: use this command as that user, or as root",
                process.pid
            ),
        ),
        Errno::SRCH => ended(path, process),
        errno => {
            Failure::new(Kind::Failed, format!("cannot send SIGHUP to process {}: {errno}", process.pid))
        }
    })?;
    await_reload(path, process, &target, asked_ns, until, timeout)
}

fn ended(path: &Path, process: ProcessId) -> Failure {
    let (path, pid) = (path.display(), process.pid);
    let message = format!(
        "the target that wrote {path}, process {pid}, has ended, or runs in another container: start it, or use this command \
         there"
    );
    Failure::new(Kind::Unreachable, message)
}

/// The process of a state file, which stays the same process even if its id is reused: a target of the file's owner.
fn open(path: &Path, process: ProcessId, owner: u32) -> Result<OwnedFd, Failure> {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).ok_or_else(|| ended(path, process))?;
    let target = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
        Errno::SRCH => ended(path, process),
        errno => Failure::new(Kind::Failed, format!("cannot open process {}: {errno}", process.pid)),
    })?;
    let facts = Facts::of(process.pid).map_err(|_| ended(path, process))?;
    // Read after the process was opened: if the start is right, all of it is of that process.
    if start_ticks(process.pid) != Some(process.start_ticks) {
        return Err(ended(path, process));
    }
    let refused = |why: String| {
        let message = format!("{} names process {}, {why}: no signal was sent", path.display(), process.pid);
        Err(Failure::new(Kind::Unreachable, message))
    };
    if facts.user != owner {
        return refused(format!("which user {} runs, but the file belongs to user {owner}", facts.user));
    }
    // Other processes may have such a command line: SIGHUP ends none that handles it.
    if !(facts.is_target && facts.handles_hup) {
        return refused("which is not an nvlane target".into());
    }
    Ok(target)
}

/// The kernel's facts about a process.
struct Facts {
    /// The effective user.
    user: u32,
    handles_hup: bool,
    /// Whether `target` is a word of its command line.
    is_target: bool,
}

impl Facts {
    fn of(pid: u32) -> io::Result<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let words = std::fs::read(format!("/proc/{pid}/cmdline"))?;
        if words.is_empty() {
            // It has ended, and its parent has not waited for it.
            return Err(io::ErrorKind::NotFound.into());
        }
        Self::parse(&status, &words).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(status: &str, words: &[u8]) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let handled = u64::from_str_radix(field("SigCgt:")?.trim(), 16).ok()?;
        Some(Self {
            // Real, effective, saved, and that of file systems.
            user: field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?,
            // Signal 1 is the lowest bit.
            handles_hup: handled >> (Signal::HUP.as_raw() - 1) & 1 == 1,
            is_target: words.split(|byte| *byte == 0).skip(1).any(|word| word == b"target"),
        })
    }
}

/// Waits for the end of the reload that began after `asked_ns`.
fn await_reload(
    path: &Path,
    process: ProcessId,
    target: &OwnedFd,
    asked_ns: u64,
    until: Instant,
    timeout: Duration,
) -> Result<Reload, Failure> {
    let pid = process.pid;
    let mut has_ended = false;
    loop {
        let (head, _) = read(path)?;
        if let Some(reload) =
            head.reload.filter(|reload| head.process == process && reload.began_ns >= asked_ns)
        {
            return Ok(reload);
        }
        // Known before the file was read: the target's last write before its end counts.
        if has_ended {
            let message = format!("the target, process {pid}, ended during the reload: see its log");
            return Err(Failure::new(Kind::Failed, message));
        }
        if Instant::now() >= until {
            let (path, seconds) = (path.display(), timeout.as_secs());
            let message = format!(
                "the target, process {pid}, has not reported an outcome within {seconds} s: it may still be opening storage, \
                 or could not write {path}; see its log"
            );
            return Err(Failure::new(Kind::Failed, message));
        }
        // Readable once the process has ended.
        has_ended = poll(&mut [PollFd::new(target, PollFlags::IN)], Some(&LOOK_INTERVAL)) == Ok(1);
    }
}

fn read(path: &Path) -> Result<(Head, u32), Failure> {
    state_file::read(path).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => {
                ": name the file that the target was started with, nvlane target --state FILE"
            }
            _ => "",
        };
        Failure::usage(format!("cannot read {}: {error}{hint}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_state_file_says_controls_the_terminal() {
        let change = Change { outcome: "done".into(), text: "add \x1b]0;x\x07\nrm".into() };
        let shown = Shown { is_complete: true, changes: &[change] }.to_string();
        assert_eq!(shown, "add \\u{1b}]0;x\\u{7}\\nrm\n");
    }

    #[test]
    fn a_target_is_told_from_other_processes() {
        let status = "Name:\tnvlane\nUid:\t1\t2\t3\t4\nSigCgt:\t0000000000004A03\n";
        let of = |status: &str, words: &[u8]| {
            Facts::parse(status, words).map(|facts| (facts.user, facts.handles_hup, facts.is_target))
        };
        assert_eq!(of(status, b"/usr/bin/nvlane\0--log\0warn\0target\0-c\0a\0"), Some((2, true, true)));
        assert_eq!(of(&status.replace("4A03", "4A02"), b"target\0"), Some((2, false, false)));
        assert_eq!(of("Name:\tx\n", b""), None);
    }
}
