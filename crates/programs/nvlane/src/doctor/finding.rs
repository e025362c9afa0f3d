//! A finding: what, why it matters, what to change, and the command.

use std::fmt;

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// It may matter.
    Note,
    /// It costs speed or availability.
    Warning,
    /// The target does not start, or does not serve as configured.
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A finding.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// Name of the check.
    pub(super) check: &'static str,
    pub(super) what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) change: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
}

impl Finding {
    pub(super) fn new(level: Level, check: &'static str, what: impl Into<String>) -> Self {
        Self { level, check, what: what.into(), why: None, change: None, command: None }
    }

    pub(super) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Level::Ok, check, what)
    }

    pub(super) fn note(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Level::Note, check, what)
    }

    pub(super) fn warning(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Level::Warning, check, what)
    }

    pub(super) fn error(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Level::Error, check, what)
    }

    /// Why it matters.
    pub(super) fn because(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// What to change.
    pub(super) fn change(self, change: impl Into<String>) -> Self {
        Self { change: Some(change.into()), ..self }
    }

    /// The command for it.
    pub(super) fn by(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<8} {}: {}", self.level.name(), self.check, self.what)?;
        for (name, text) in [("why", &self.why), ("change", &self.change), ("run", &self.command)] {
            if let Some(text) = text {
                writeln!(f, "         {name}: {text}")?;
            }
        }
        Ok(())
    }
}
