//! The report of a run: a table for people, JSON for programs.

use std::fmt;
use std::time::Duration;

use peer::finding::Check;
use serde::Serialize;

use crate::document::Words;
use crate::finding::RowOutcome;

/// Result of one row.
#[derive(Clone, Debug, Serialize)]
pub struct RowResult {
    /// What the document says of the row.
    #[serde(flatten)]
    pub words: Words,
    /// Outcome of the row.
    pub outcome: RowOutcome,
    /// Description of the fault found, or why the row was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
    /// Deviations that do not affect the outcome.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Duration of the row.
    pub elapsed_ms: u64,
    /// The longest pause of the neighbour's I/O during the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbour_pause_ms: Option<u64>,
}

impl RowResult {
    /// The result of a row that took this long, without a check yet.
    pub(crate) fn new(words: &Words, elapsed: Duration) -> Self {
        Self {
            words: words.clone(),
            outcome: RowOutcome::Pass,
            finding: None,
            notes: Vec::new(),
            elapsed_ms: ms(elapsed),
            neighbour_pause_ms: None,
        }
    }

    /// Sets outcome and finding from a check.
    #[must_use]
    pub fn decided(self, check: &Check) -> Self {
        Self {
            outcome: RowOutcome::from(check),
            finding: check.as_ref().err().map(ToString::to_string),
            ..self
        }
    }
}

/// Results of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The peer under test.
    pub peer: String,
    /// The rows, in the order of the document.
    pub rows: Vec<RowResult>,
}

impl Report {
    /// Number of rows with this outcome.
    pub fn count(&self, outcome: RowOutcome) -> usize {
        self.rows.iter().filter(|row| row.outcome == outcome).count()
    }

    /// Whether no row failed.
    pub fn is_good(&self) -> bool {
        self.rows.iter().all(|row| matches!(row.outcome, RowOutcome::Pass | RowOutcome::Skipped))
    }
}

/// Milliseconds, rounded up, so that a measured duration is never 0.
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = "";
        for row in &self.rows {
            let words = &row.words;
            if words.section != section {
                section = &words.section;
                writeln!(f, "{section}")?;
            }
            let judged = if words.judgement.is_some() { "*" } else { " " };
            writeln!(
                f,
                "  {:4}{judged} {:8} {:>6} ms  {}",
                words.id, row.outcome, row.elapsed_ms, words.sent
            )?;
            if let Some(finding) = &row.finding {
                writeln!(f, "{:26}{finding}", "")?;
            }
            for note in &row.notes {
                writeln!(f, "{:26}note: {note}", "")?;
            }
            if !matches!(row.outcome, RowOutcome::Pass | RowOutcome::Skipped) {
                writeln!(f, "{:26}right: {}", "", words.right)?;
            }
        }
        let all =
            [RowOutcome::Pass, RowOutcome::Differs, RowOutcome::Hangs, RowOutcome::Dies, RowOutcome::Skipped];
        let counts: Vec<_> =
            all.into_iter().map(|outcome| format!("{} {outcome}", self.count(outcome))).collect();
        writeln!(f, "{}: {} rows: {}  (* our judgement)", self.peer, self.rows.len(), counts.join(", "))
    }
}
