//! The request of `nvlane reload --force`: a file beside the state file, written before the SIGHUP.
//!
//! SIGHUP carries no argument, and other senders of it, such as systemd, mean a reload without force. A target of an earlier
//! version would end at another signal, but ignores a file that it does not look for.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use command_line::exit::{Failure, Kind};
use linux::small_file::SmallFile;
use serde::{Deserialize, Serialize};

use super::state_file::{ProcessId, monotonic_ns, start_ticks};

/// How old a request may be: one whose SIGHUP never came does not count for a later one.
const AGE_NS_MAX: u64 = 10_000_000_000;

/// The longest request, bytes.
const BYTES_MAX: usize = 1024;

#[derive(Serialize, Deserialize)]
struct Content {
    /// The target that it is for.
    process: ProcessId,
    /// When it was made, ns of the machine's monotonic clock.
    asked_ns: u64,
}

/// A request. Dropping it withdraws it.
#[derive(Debug)]
pub(crate) struct ForceRequest(PathBuf);

impl ForceRequest {
    /// Makes a request to the target that writes this state file.
    pub(crate) fn make(state: &Path, process: ProcessId) -> Result<Self, Failure> {
        let path = path(state);
        let content =
            serde_json::to_vec(&Content { process, asked_ns: monotonic_ns() }).expect("plain values");
        // A request that was left behind: no file or link in its place is followed or overwritten.
        let _ = std::fs::remove_file(&path);
        let made =
            File::options().write(true).create_new(true).mode(0o644).open(&path).and_then(|mut file| {
                // The target may be another user's.
                file.set_permissions(Permissions::from_mode(0o644))?;
                file.write_all(&content)
            });
        let request = Self(path);
        match made {
            Ok(()) => Ok(request),
            Err(error) => {
                Err(Failure::new(Kind::Failed, format_args!("cannot write {}: {error}", request.0.display())))
            }
        }
    }
}

impl Drop for ForceRequest {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Takes the request for this process, if one was made just now by its user or root.
pub(super) fn take(state: Option<&Path>) -> bool {
    let Some(path) = state.map(path) else { return false };
    let content = read(&path);
    // A request counts once, and one for another process or of another user not at all.
    let _ = std::fs::remove_file(&path);
    let Some(Content { process, asked_ns }) = content else { return false };
    let (pid, now_ns) = (std::process::id(), monotonic_ns());
    Some(process.start_ticks) == start_ticks(pid)
        && process.pid == pid
        && (now_ns.saturating_sub(AGE_NS_MAX)..=now_ns).contains(&asked_ns)
}

fn read(path: &Path) -> Option<Content> {
    let file = SmallFile::open_regular(path).ok()?;
    let owner = file.metadata().uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return None;
    }
    serde_json::from_str(&file.read_text(BYTES_MAX).ok()?).ok()
}

fn path(state: &Path) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(".force");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_once_by_the_process_that_it_is_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state.json");
        assert!(!take(None) && !take(Some(&state)));
        let pid = std::process::id();
        let this = ProcessId { pid, start_ticks: start_ticks(pid).expect("it runs") };
        let request = ForceRequest::make(&state, this).expect("made");
        assert!(take(Some(&state)) && !take(Some(&state)));
        drop(request);
        let _other = ForceRequest::make(&state, ProcessId { start_ticks: this.start_ticks + 1, ..this });
        assert!(!take(Some(&state)));
        drop(ForceRequest::make(&state, this).expect("made"));
        assert!(!take(Some(&state)), "withdrawn");
        let old = Content { process: this, asked_ns: monotonic_ns().saturating_sub(AGE_NS_MAX + 1) };
        std::fs::write(path(&state), serde_json::to_vec(&old).expect("plain")).expect("written");
        assert!(!take(Some(&state)), "too old");
    }

    #[test]
    fn nothing_else_is_taken_for_a_request() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state.json");
        let pid = std::process::id();
        let process = ProcessId { pid, start_ticks: start_ticks(pid).expect("it runs") };
        let content = serde_json::to_vec(&Content { process, asked_ns: monotonic_ns() }).expect("plain");
        let elsewhere = directory.path().join("elsewhere");
        std::fs::write(&elsewhere, &content).expect("written");
        std::os::unix::fs::symlink(&elsewhere, path(&state)).expect("made");
        assert!(!take(Some(&state)), "a link");
        let status = std::process::Command::new("mkfifo").arg(path(&state)).status();
        assert!(status.is_ok_and(|status| status.success()));
        assert!(!take(Some(&state)), "a pipe, which it does not wait for");
        // A link in place of a request is replaced, and its destination stays.
        std::os::unix::fs::symlink(&elsewhere, path(&state)).expect("made");
        let _request = ForceRequest::make(&state, process).expect("made");
        assert!(take(Some(&state)));
        assert_eq!(std::fs::read(&elsewhere).expect("there"), content);
    }
}
