//! The audit log: which hosts connected, how they were authenticated, what was refused and why.
//!
//! ```text
//! control plane, admission ─▶ Recorder ─▶ Queue (bounded, rate limited) ─▶ writer, a thread of its own ─▶ file
//! ```
//!
//! Recording never waits: an event that finds the queue full is counted instead. Only the writer writes to the file, and
//! a file that cannot be written costs lines, which are counted, and nothing else. docs/audit-log.md has the fields of
//! the lines.

mod event;
mod file;
mod line;
mod queue;
mod writer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use event::{Caller, OfMemcached, Process, TlsInUse};
pub(crate) use event::{Event, OfQueue};
pub(crate) use file::inspect;
use file::{is_passing, open};
pub use queue::AuditState;
use queue::{Destination, Queue};

/// How long the end of a target waits for its last lines.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// Takes events. Without an audit log it ignores them.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Option<Arc<Queue>>);

impl Recorder {
    /// Records an event, which is made only if there is an audit log.
    pub(crate) fn record(&self, event: impl FnOnce() -> Event) {
        if let Some(queue) = self.0.as_ref().filter(|queue| queue.is_on()) {
            queue.push(event());
        }
    }

    /// Records a process that the control socket has refused.
    pub fn control_refused(&self, caller: Caller) {
        self.record(|| Event::ControlRefused(caller));
    }

    /// Records a peer that the control port has refused, and why.
    pub fn control_peer_refused(&self, peer: SocketAddr, reason: &str) {
        self.record(|| Event::ControlPeerRefused { peer, reason: reason.to_owned() });
    }

    /// Records a change that a caller has asked for, and why it was refused, if it was.
    pub fn control_changed(&self, caller: &Caller, method: &str, object: &str, refusal: Option<&str>) {
        self.record(|| Event::ControlChanged {
            caller: caller.clone(),
            method: method.into(),
            object: object.into(),
            refusal: refusal.map(Into::into),
        });
    }

    /// Whether there is an audit log.
    pub(crate) fn is_on(&self) -> bool {
        self.0.as_ref().is_some_and(|queue| queue.is_on())
    }
}

/// The audit log of a target.
#[derive(Debug)]
pub(crate) struct AuditLog {
    queue: Arc<Queue>,
    path: Option<PathBuf>,
    has_writer: bool,
}

/// The counters of an audit log.
#[derive(Debug)]
pub(crate) struct AuditObserver(Arc<Queue>);

impl AuditObserver {
    /// The counters, if there is an audit log.
    pub(crate) fn state(&self) -> Option<AuditState> {
        self.0.state()
    }
}

/// The outcome of a change of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) what: String,
    /// Why it failed.
    pub(crate) failure: Option<String>,
}

impl AuditLog {
    /// Opens the file, if there is to be one. Storage that is full or fails for the moment is not an error: the writer
    /// tries again, and counts the lines that are lost until then. May block.
    ///
    /// # Errors
    /// Why the file cannot be opened.
    pub(crate) fn start(path: Option<&Path>) -> Result<Self, String> {
        let mut log = Self { queue: Arc::default(), path: None, has_writer: false };
        let Some(path) = path else { return Ok(log) };
        let file = match open(path) {
            Ok(file) => Some(file),
            Err(error) if is_passing(&error) => {
                tracing::error!(%error, path = %path.display(), "cannot open the audit log: trying again");
                None
            }
            Err(error) => return Err(cannot_open(path, &error)),
        };
        log.write_to(Destination::File { path: path.to_owned(), file })?;
        log.path = Some(path.to_owned());
        Ok(log)
    }

    /// Records events.
    pub(crate) fn recorder(&self) -> Recorder {
        Recorder(Some(Arc::clone(&self.queue)))
    }

    /// Writes to this file from now on, or to none. The present file is opened again, so that one which was renamed is
    /// left alone. If that fails, the log stays as it is. Returns the change or the failure. May block.
    pub(crate) fn follow(&mut self, wanted: Option<&Path>) -> Option<Changed> {
        let Some(path) = wanted else {
            let former = self.path.take()?;
            self.queue.send_to(Destination::None);
            return Some(Changed { what: format!("end the audit log {}", former.display()), failure: None });
        };
        let is_new = self.path.as_deref() != Some(path);
        let written = open(path)
            .map_err(|error| error.to_string())
            .and_then(|file| self.write_to(Destination::File { path: path.to_owned(), file: Some(file) }));
        if written.is_ok() {
            self.path = Some(path.to_owned());
        }
        let verb = if is_new { "write" } else { "reopen" };
        let what = format!("{verb} the audit log {}", path.display());
        (is_new || written.is_err()).then(|| Changed { what, failure: written.err() })
    }

    /// Opens the present file again, as [`follow`](Self::follow) does. May block.
    pub(crate) fn reopen(&mut self) -> Option<Changed> {
        let path = self.path.clone()?;
        self.follow(Some(&path))
    }

    /// The counters, for other threads.
    pub(crate) fn observer(&self) -> AuditObserver {
        AuditObserver(Arc::clone(&self.queue))
    }

    /// Ends the log, once the queued lines are written or [`CLOSE_WAIT`] has passed.
    pub(crate) fn close(&mut self) {
        self.path = None;
        if std::mem::take(&mut self.has_writer) {
            self.queue.close(CLOSE_WAIT);
        }
    }

    fn write_to(&mut self, destination: Destination) -> Result<(), String> {
        if !self.has_writer {
            let queue = Arc::clone(&self.queue);
            let thread = std::thread::Builder::new().name("audit".into());
            thread
                .spawn(move || writer::run(&queue))
                .map_err(|error| format!("no thread for the audit log: {error}"))?;
            self.has_writer = true;
        }
        self.queue.send_to(destination);
        Ok(())
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.close();
    }
}

fn cannot_open(path: &Path, error: &std::io::Error) -> String {
    format!("cannot open the audit log {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn lines(path: &Path) -> Vec<String> {
        fs::read_to_string(path).expect("a file").lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_log_that_is_off_takes_nothing_and_has_no_thread() {
        let mut log = AuditLog::start(None).expect("no log");
        log.recorder().record(|| unreachable!("nobody reads it"));
        assert!(log.observer().state().is_none() && !log.has_writer);
        assert_eq!(log.reopen(), None);
    }

    #[test]
    fn what_is_recorded_after_a_reopening_is_in_the_new_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, rotated) = (directory.path().join("audit"), directory.path().join("audit.1"));
        let mut log = AuditLog::start(Some(&path)).expect("a log");
        let recorder = log.recorder();
        recorder.record(|| Event::Started { version: "1" });
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while lines(&path).is_empty() {
            assert!(std::time::Instant::now() < until, "nothing is recorded");
            std::thread::yield_now();
        }
        fs::rename(&path, &rotated).expect("renamed");
        assert_eq!(log.follow(Some(&path)), None, "nothing has changed");
        recorder.record(|| Event::Started { version: "2" });
        log.close();
        assert!(lines(&rotated)[0].contains(r#""version":"1""#));
        assert!(lines(&path)[0].contains(r#""version":"2""#));
        assert_eq!((lines(&rotated).len(), lines(&path).len()), (1, 1));
    }

    #[test]
    fn a_change_that_fails_leaves_the_log_as_it_was() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit");
        let mut log = AuditLog::start(Some(&path)).expect("a log");
        let changed = log.follow(Some(directory.path())).expect("a failure");
        assert!(changed.failure.expect("it failed").contains("directory"));
        log.recorder().record(|| Event::Stopped {});
        assert_eq!(log.observer().state().map(|state| state.file), Some(path.display().to_string()));
        let changed = log.follow(None).expect("a change");
        assert_eq!((changed.what, changed.failure), (format!("end the audit log {}", path.display()), None));
        log.close();
        assert_eq!(lines(&path).len(), 1);
    }

    #[test]
    fn a_directory_is_no_audit_log() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(AuditLog::start(Some(directory.path())).expect_err("a directory").contains("cannot open"));
    }
}
