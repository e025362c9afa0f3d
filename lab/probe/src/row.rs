//! A row of docs/hostile-inputs.md: its document says what is sent and which reaction is right, the code tries it.

/// A row and what tries it: a check of a target, or cases for a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<Trial> {
    /// Identifier, as in the document.
    pub(crate) id: &'static str,
    /// The row waits for timers of the peer: such rows run concurrently with the others.
    pub(crate) is_slow: bool,
    pub(crate) trial: Trial,
}

pub(crate) const fn row<Trial>(id: &'static str, trial: Trial) -> Row<Trial> {
    Row { id, is_slow: false, trial }
}

/// A row that waits for timers.
pub(crate) const fn slow_row<Trial>(id: &'static str, trial: Trial) -> Row<Trial> {
    Row { id, is_slow: true, trial }
}
