//! Notifies discovery controllers whose log has changed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use zerocopy::IntoBytes;

use super::associations::Associations;
use super::outputs::Outputs;
use crate::objects::catalog::Catalog;
use crate::objects::controller::{ControllerKey, ControllerKind, ControllerRecord};

/// A digest of the log that each discovery controller sees.
pub(super) struct Listings(BTreeMap<ControllerKey, u64>);

impl Listings {
    /// The logs as they are now.
    pub(super) fn take(catalog: &Catalog, associations: &Associations) -> Self {
        let listing = |record: &ControllerRecord| {
            let subsystems = catalog.subsystems.values();
            let entries = catalog.discovery.entries(&record.host, &record.route, subsystems);
            let mut hasher = DefaultHasher::new();
            hasher.write(entries.as_bytes());
            (record.key, hasher.finish())
        };
        Self(associations.of_kind(ControllerKind::Discovery).map(listing).collect())
    }

    /// Starts a generation of the log, and notifies the hosts whose log has changed since these were taken.
    pub(super) fn tell_changes(
        &self,
        catalog: &mut Catalog,
        associations: &mut Associations,
        outputs: &mut Outputs,
    ) {
        // A host without a controller gets no event: it sees the change by the generation. wire §28.26
        catalog.discovery.generation = catalog.discovery.generation.wrapping_add(1);
        for (key, listing) in Self::take(catalog, associations).0 {
            if self.0.get(&key) != Some(&listing) {
                associations.on_discovery_changed(key, outputs);
            }
        }
    }
}
