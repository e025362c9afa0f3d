//! The second namespace: RAM that outlives the target, which the operator removes and adds again, with rights of its
//! hosts and error filters.

use super::filters::Filters;
use crate::coverage::{Coverage, Stages};
use crate::removable::Removable;
use crate::rights::Rights;
use crate::scenario::Scenario;

pub(crate) struct SecondNamespace {
    pub(super) presence: Removable,
    /// Of the hosts to it.
    pub(super) rights: Rights,
    pub(super) filters: Filters,
    /// The command in the model for the loss of its memory.
    pub(super) cut_command: u64,
    /// Source of its identity.
    pub(super) name: u8,
    stages: Stages,
}

impl SecondNamespace {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            presence: Removable::default(),
            rights: Rights::new(scenario.hosts.count),
            filters: Filters::new(scenario.second.spec.as_deref()),
            cut_command: 0,
            name: 8,
            stages: Stages::new("second namespace", "configured"),
        }
    }

    /// Counts a change of its state.
    pub(super) fn note(&mut self, coverage: &mut Coverage) {
        self.stages.enter(self.presence.name(), coverage);
    }
}
