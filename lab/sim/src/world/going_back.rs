//! The last sign of life of each association only grows, whatever the clocks of the threads show that write it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use subsystem::association::Association;

use super::World;

/// The last sign of life of each association that has a lane, ns. An association is held, so that no other one takes its
/// address.
pub(super) type Signs = BTreeMap<usize, (Weak<Association>, u64)>;

impl World {
    /// Compares the last signs of life with those after the turn before.
    pub(super) fn check_signs(&mut self) {
        if !self.shared.scenario.has_old_clocks {
            return;
        }
        let mut signs = Signs::new();
        for reactor in &self.reactors {
            for association in reactor.associations() {
                let (address, now_ns) = (Arc::as_ptr(association).addr(), association.last_sign_ns());
                if let Some((_, before_ns)) = self.signs.get(&address)
                    && *before_ns > now_ns
                {
                    let host = association.host();
                    let finding = format!(
                        "the last sign of life of {host} goes back from {before_ns} ns to {now_ns} ns"
                    );
                    return self.shared.find(finding);
                }
                signs.insert(address, (Arc::downgrade(association), now_ns));
            }
        }
        self.signs = signs;
    }
}
