//! A row of docs/hostile-inputs.md: what is sent, which reaction is right, and how to check it.

use peer::finding::Check;

use crate::target::Target;

/// A row for targets.
#[derive(Clone, Copy)]
pub struct Row {
    /// Identifier, as in the document.
    pub id: &'static str,
    /// The input.
    pub sent: &'static str,
    /// The right reaction.
    pub right: &'static str,
    /// The reason, where the specification does not demand the reaction.
    pub judgement: Option<&'static str>,
    /// The row waits for timers of the peer: such rows run concurrently with the others.
    pub is_slow: bool,
    /// The check.
    pub check: fn(&Target) -> Check,
}

impl Row {
    /// A row with this input, right reaction and check.
    #[must_use]
    pub const fn new(
        id: &'static str,
        sent: &'static str,
        right: &'static str,
        check: fn(&Target) -> Check,
    ) -> Self {
        Self { id, sent, right, judgement: None, is_slow: false, check }
    }

    /// Adds the reason for a reaction that the specification does not demand.
    #[must_use]
    pub const fn judged(self, why: &'static str) -> Self {
        Self { judgement: Some(why), ..self }
    }

    /// Marks a row that waits for timers.
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

/// A section: the rows of one subject.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Section number, as in the document.
    pub number: u8,
    /// Title.
    pub title: &'static str,
    /// The rows.
    pub rows: &'static [Row],
}
