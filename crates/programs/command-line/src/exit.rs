//! Exit codes, and the error line that precedes them.

use std::fmt;
use std::process::ExitCode;

use rustix::io::Errno;
use tracing::Level;
use wire::text::without_hidden;

use crate::journal;

/// For `--help`.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  failed on the way; the message says what and why
  2  wrong options, or a configuration or storage that cannot be used; nothing was done
  3  data differs from what was written (--verify)
  4  the target is unreachable, refused the connection, or has no such subsystem or namespace";

/// Result of a command: its exit code, or why it failed.
pub type Ended = Result<ExitCode, Failure>;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    message: String,
}

/// Kind of failure; its number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The reader closed our standard output: no message, exit code 0.
    Unread = 0,
    /// Failed after the work began.
    Failed = 1,
    /// The request cannot be carried out; nothing was done.
    Usage = 2,
    /// Data differs from the written data.
    Mismatch = 3,
    /// The target is unreachable, refuses us, or lacks the subsystem or namespace.
    Unreachable = 4,
}

impl Failure {
    /// A failure of this kind, with the message for its user.
    pub fn new(kind: Kind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    /// Standard output could not be written to.
    pub fn output(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::new(Kind::Unread, ""),
            _ => anyhow::Error::new(error).context("standard output").into(),
        }
    }

    /// This failure with `before` in front of its message.
    pub fn context(self, before: impl fmt::Display) -> Self {
        Self { message: format!("{before}{}", self.message), ..self }
    }

    /// This failure after part of the work was done: appends `behind`, and a usage error becomes a failure.
    pub fn later(self, behind: impl fmt::Display) -> Self {
        let kind = if self.kind == Kind::Usage { Kind::Failed } else { self.kind };
        Self { kind, message: format!("{}{behind}", self.message) }
    }

    /// A failure of the caller: wrong options, or something that cannot be used.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Kind::Usage, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Kind::Failed, in_one_line(&error))
    }
}

/// The whole chain in one line. The text of some errors has that of their causes already.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for text in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

/// Prints the message and returns the exit code.
pub fn report(failure: &Failure) -> ExitCode {
    let priority = journal::prefix(Level::ERROR);
    for line in failure.message.lines() {
        // The message may contain text from a peer.
        eprintln!("{priority}nvlane: {}{}", without_hidden(line, false), remedy(line));
    }
    ExitCode::from(failure.kind as u8)
}

/// The remedy for an error whose message has only the system's words.
fn remedy(message: &str) -> String {
    let error = Errno::MFILE.into();
    // As the standard library writes it.
    let is_meant = message.contains(&format!("{error}")) && !message.contains("ulimit");
    if is_meant { linux::descriptor_remedy(&error).unwrap_or_default() } else { String::new() }
}

/// Handles clap's errors and `--help`. An invalid value gets one line with the valid ones; for
/// the rest the usage goes with it.
pub fn wrong_options(error: &clap::Error) -> ExitCode {
    if error.kind() != clap::error::ErrorKind::ValueValidation {
        error.exit();
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    // Errors of the standard library about numbers, in plain words.
    let line = line
        .replace("invalid digit found in string", "write a whole number")
        .replace("cannot parse integer from empty string", "write a whole number")
        .replace("number too large to fit in target type", "that is too large")
        .replace("invalid float literal", "write a number");
    report(&Failure::usage(line))
}
