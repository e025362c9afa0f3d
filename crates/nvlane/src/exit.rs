//! How nvlane ends: exit codes, and the one line that says what went wrong.

use std::fmt;
use std::process::ExitCode;

use wire::text::without_hidden;

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
    /// Whoever read our output has seen enough: there is nothing to say, and nobody to say it to.
    Unread = 0,
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

    /// Standard output could not be written to.
    pub(crate) fn output(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::new(Kind::Unread, ""),
            _ => anyhow::Error::new(error).context("standard output").into(),
        }
    }

    /// The same with something said before it.
    pub(crate) fn context(self, before: impl fmt::Display) -> Self {
        Self { message: format!("{before}{}", self.message), ..self }
    }

    /// The same, but after something was done already, which is said behind it.
    pub(crate) fn later(self, behind: impl fmt::Display) -> Self {
        let kind = if self.kind == Kind::Usage { Kind::Failed } else { self.kind };
        Self { kind, message: format!("{}{behind}", self.message) }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
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
        // The whole chain in one line.
        Self::new(Kind::Failed, format!("{error:#}"))
    }
}

/// Says what went wrong, and how to end.
pub(crate) fn report(failure: &Failure) -> ExitCode {
    for line in failure.message.lines() {
        // A peer's own words may be in it.
        eprintln!("nvlane: {}", without_hidden(line, false));
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
    let line = line.strip_prefix("error: ").unwrap_or(line);
    // What the standard library says of numbers, for people.
    let line = line
        .replace("invalid digit found in string", "write a whole number")
        .replace("cannot parse integer from empty string", "write a whole number")
        .replace("number too large to fit in target type", "that is too large")
        .replace("invalid float literal", "write a number");
    report(&Failure::usage(line))
}
