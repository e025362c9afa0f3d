//! What a run came to: a table for people, JSON for programs.

use std::fmt;
use std::time::Duration;

use peer::finding::Check;
use serde::Serialize;

use crate::finding::Outcome;

/// One row's result.
#[derive(Clone, Debug, Serialize)]
pub struct RowResult {
    /// The row.
    pub id: String,
    /// What its section is about.
    pub section: String,
    /// What was sent.
    pub sent: String,
    /// What is right.
    pub right: String,
    /// Why that is a judgement, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judgement: Option<String>,
    /// What it came to.
    pub outcome: Outcome,
    /// What was found, or why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
    /// What is wrong and decides nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// How long it took.
    pub elapsed_ms: u64,
    /// The longest pause of the neighbour's I/O meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbour_pause_ms: Option<u64>,
}

impl RowResult {
    /// Sets what it came to.
    #[must_use]
    pub fn decided(self, check: &Check) -> Self {
        Self { outcome: Outcome::from(check), finding: check.as_ref().err().map(ToString::to_string), ..self }
    }
}

/// A run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Whom it was about.
    pub peer: String,
    /// The rows, in the order of the list.
    pub rows: Vec<RowResult>,
}

impl Report {
    /// Rows with this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.rows.iter().filter(|row| row.outcome == outcome).count()
    }

    /// Whether no row failed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.rows.iter().all(|row| matches!(row.outcome, Outcome::Pass | Outcome::Skipped))
    }
}

/// Milliseconds, rounded up, so that what took time is not nothing.
#[must_use]
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = "";
        for row in &self.rows {
            if row.section != section {
                section = &row.section;
                writeln!(f, "{section}")?;
            }
            let judged = if row.judgement.is_some() { "*" } else { " " };
            writeln!(f, "  {:4}{judged} {:8} {:>6} ms  {}", row.id, row.outcome, row.elapsed_ms, row.sent)?;
            if let Some(finding) = &row.finding {
                writeln!(f, "{:26}{finding}", "")?;
            }
            for note in &row.notes {
                writeln!(f, "{:26}note: {note}", "")?;
            }
            if !matches!(row.outcome, Outcome::Pass | Outcome::Skipped) {
                writeln!(f, "{:26}right: {}", "", row.right)?;
            }
        }
        let all = [Outcome::Pass, Outcome::Differs, Outcome::Hangs, Outcome::Dies, Outcome::Skipped];
        let counts: Vec<_> =
            all.into_iter().map(|outcome| format!("{} {outcome}", self.count(outcome))).collect();
        writeln!(f, "{}: {} rows: {}  (* our judgement)", self.peer, self.rows.len(), counts.join(", "))
    }
}
