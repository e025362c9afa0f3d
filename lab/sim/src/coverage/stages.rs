//! The progress of a machine, by the name of its state: each change is a transition that runs reach.

use super::{Coverage, Point};

/// The state of one machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    machine: &'static str,
    now: &'static str,
}

impl Stages {
    /// A machine in its first state.
    pub(crate) const fn new(machine: &'static str, first: &'static str) -> Self {
        Self { machine, now: first }
    }

    /// Its state.
    pub(crate) const fn now(&self) -> &'static str {
        self.now
    }

    /// It enters a state, or stays there.
    pub(crate) fn enter(&mut self, to: &'static str, coverage: &mut Coverage) {
        let from = std::mem::replace(&mut self.now, to);
        // Nearly always it stays, and the names are in one place: that is quicker to see than their letters.
        if !std::ptr::eq(from, to) && from != to {
            coverage.reach(Point::Transition { machine: self.machine, from, to });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_entered_anew_is_no_transition() {
        let mut coverage = Coverage::default();
        let mut stages = Stages::new("queue", "open");
        for to in ["open", "connecting", "connecting", "admin"] {
            stages.enter(to, &mut coverage);
        }
        let reached: Vec<String> =
            coverage.iter().map(|(point, count)| format!("{point}: {count}")).collect();
        let expected =
            ["transition: queue: connecting -> admin: 1", "transition: queue: open -> connecting: 1"];
        assert_eq!(reached, expected);
    }
}
