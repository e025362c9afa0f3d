//! How nvlane ends: exit codes, and the one line that says what went wrong.

use std::fmt;
use std::process::ExitCode;

/// For `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  it failed on the way: the message says what and why
  2  wrong options, or a configuration or storage that cannot be used; nothing was done
  3  data was not what was written (--verify)
  4  the target could not be reached, refused us, or does not have what the address names";

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
}

/// What kind of failure: its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Something failed on the way.
    Failed = 1,
    /// What was asked for cannot be.
    Usage = 2,
    /// Data differs from what was written.
    Mismatch = 3,
    /// There is no way to the target, or it does not let us in, or has no such thing.
    Unreachable = 4,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    /// The same with something said before it.
    pub(crate) fn context(self, before: impl fmt::Display) -> Self {
        Self { message: format!("{before}{}", self.message), ..self }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Kind::Usage, message)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        // The whole chain in one line.
        Self::new(Kind::Failed, format!("{error:#}"))
    }
}

/// Says what went wrong, and how to end.
pub(crate) fn report(failure: &Failure) -> ExitCode {
    for line in failure.message.lines() {
        eprintln!("nvlane: {line}");
    }
    ExitCode::from(failure.kind as u8)
}

/// Ends for options that are wrong, or for `--help`. A value that cannot be gets one line, which says what could be; for
/// the rest the usage goes with it.
pub(crate) fn wrong_options(error: &clap::Error) -> ExitCode {
    if error.kind() != clap::error::ErrorKind::ValueValidation {
        error.exit();
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    report(&Failure::usage(line.strip_prefix("error: ").unwrap_or(line)))
}
