//! The faults of the scenario that are still to come, and those that wait for a moment.

use crate::coverage::Waiting;

#[derive(Debug, Default)]
pub(crate) struct FaultQueue {
    /// The next one of the scenario.
    pub(super) next: usize,
    /// Power cuts that wait for an answer.
    pub(super) held_cuts: Vec<usize>,
    /// Cables that are pulled as soon as a command waits like this.
    pub(super) unplugs: Vec<Waiting>,
}
