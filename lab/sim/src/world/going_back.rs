//! The last sign of life of each association only grows, whatever the clocks of the threads show that write it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use subsystem::association::Association;

use crate::reactor_io::SimReactor;
use crate::shared::Shared;

/// The last sign of life of each association that has a lane, ns. An association is held, so that no other one takes its
/// address.
#[derive(Debug, Default)]
pub(super) struct Signs(BTreeMap<usize, (Weak<Association>, u64)>);

impl Signs {
    /// Compares the last signs of life with those after the turn before.
    pub(super) fn check(&mut self, reactors: &[SimReactor], shared: &mut Shared) {
        if !shared.scenario.target.has_old_clocks {
            return;
        }
        let mut signs = BTreeMap::new();
        for reactor in reactors {
            for association in reactor.associations() {
                let (address, now_ns) = (Arc::as_ptr(association).addr(), association.last_sign_ns());
                if let Some((_, before_ns)) = self.0.get(&address)
                    && *before_ns > now_ns
                {
                    let host = association.host();
                    let finding = format!(
                        "the last sign of life of {host} goes back from {before_ns} ns to {now_ns} ns"
                    );
                    return shared.find(finding);
                }
                signs.insert(address, (Arc::downgrade(association), now_ns));
            }
        }
        self.0 = signs;
    }
}
