//! A row of docs/hostile-inputs.md: what is sent, which reaction is right, and how to check it.

use peer::finding::Check;

use crate::target::Target;

/// A row for targets.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name in the list.
    pub id: &'static str,
    /// What is sent.
    pub sent: &'static str,
    /// What answer is right.
    pub right: &'static str,
    /// Why that is a judgement of ours, if nothing but sense demands it.
    pub judgement: Option<&'static str>,
    /// It waits for the peer's timers: such rows run beside the others.
    pub is_slow: bool,
    /// How it is tried.
    pub check: fn(&Target) -> Check,
}

impl Row {
    /// A row.
    #[must_use]
    pub const fn new(
        id: &'static str,
        sent: &'static str,
        right: &'static str,
        check: fn(&Target) -> Check,
    ) -> Self {
        Self { id, sent, right, judgement: None, is_slow: false, check }
    }

    /// A row whose answer is our judgement.
    #[must_use]
    pub const fn judged(self, why: &'static str) -> Self {
        Self { judgement: Some(why), ..self }
    }

    /// A row that waits for timers.
    #[must_use]
    pub const fn slow(self) -> Self {
        Self { is_slow: true, ..self }
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Row({})", self.id)
    }
}

/// Rows about one thing.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Its number in the list.
    pub number: u8,
    /// What it is about.
    pub title: &'static str,
    /// Its rows.
    pub rows: &'static [Row],
}
