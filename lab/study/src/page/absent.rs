//! Experiments that a report of several names without results.

/// An experiment without results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// Name.
    pub name: &'static str,
    /// The question it answers.
    pub title: &'static str,
    /// Why there are none.
    pub reason: String,
}
