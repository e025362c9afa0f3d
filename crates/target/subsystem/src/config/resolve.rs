//! Resolves a configuration: fills in all defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use store::Spec;
use wire::id::Nsid;
use wire::nqn::{HostName, Nqn};
use wire::uuid::Uuid;

use super::{NamespaceConfig, SubsystemConfig, TargetConfig};
use crate::names::identity::TargetIdentity;
use crate::objects::access::HostRights;
use crate::objects::rate_limit::{Meter, RateLimits};
use crate::objects::subsystem::{Access, Subsystem};

/// A subsystem with all defaults filled in.
pub type ResolvedSubsystem = Subsystem<ResolvedNamespace>;

/// A namespace with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedNamespace {
    /// Storage.
    pub spec: Spec,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its NGUID.
    pub nguid: [u8; 16],
    /// Which hosts see it, and which may write to it.
    pub rights: HostRights,
    /// Its rate limits.
    pub limits: RateLimits,
    /// Whether its number was given rather than assigned in order.
    pub is_numbered: bool,
    /// Its UUID was chosen.
    pub is_uuid_given: bool,
    /// Its NGUID was chosen.
    pub is_nguid_given: bool,
}

impl ResolvedNamespace {
    /// Gives it this UUID, and an NGUID of the same bytes, as far as none was chosen.
    pub(crate) fn identify(&mut self, uuid: Uuid) {
        if !self.is_uuid_given {
            self.uuid = uuid;
        }
        if !self.is_nguid_given {
            self.nguid = self.uuid.to_bytes();
        }
    }
}

impl TargetConfig {
    /// The subsystems by name, with every number and identity. A namespace in a file gets the identity of its path; the
    /// one kept with the file replaces it when the file is opened.
    #[must_use]
    pub fn resolve(&self, identity: &TargetIdentity) -> BTreeMap<Nqn, ResolvedSubsystem> {
        let resolved = |subsystem: &SubsystemConfig| {
            let mut resolved = subsystem.resolve(identity);
            // A key may be in several partitions, of which hosts would find one.
            if self.is_memcached_by_partition() {
                let namespaces = resolved.namespaces.values_mut();
                for namespace in namespaces.filter(|namespace| namespace.spec.is_key_value()) {
                    namespace.rights.visible_to = Access::Only(BTreeSet::new());
                }
            }
            (subsystem.nqn.clone(), resolved)
        };
        self.subsystems.iter().map(resolved).collect()
    }
}

impl SubsystemConfig {
    fn resolve(&self, identity: &TargetIdentity) -> ResolvedSubsystem {
        Subsystem {
            nqn: self.nqn.clone(),
            serial: self.serial.clone().unwrap_or_else(|| identity.serial_of(&self.nqn)),
            model: self.model.clone(),
            access: self.access.clone(),
            // Read by the operator.
            authentication: Arc::default(),
            earlier: None,
            cntlids: self.cntlids.clone(),
            doorbell: self.doorbell,
            host_meters: meters(&self.host_limits),
            namespaces: self.resolved_in_order(identity).into_iter().collect(),
        }
    }

    /// The numbers of its namespaces, in the order of the configuration.
    pub(super) fn numbers(&self) -> Vec<Nsid> {
        let chosen: Vec<Nsid> = self.namespaces.iter().filter_map(|namespace| namespace.nsid).collect();
        let mut free = (1..).map(Nsid::new).filter(|nsid| !chosen.contains(nsid));
        let number =
            |namespace: &NamespaceConfig| namespace.nsid.or_else(|| free.next()).unwrap_or(Nsid::ALL);
        self.namespaces.iter().map(number).collect()
    }

    /// Its namespaces in the order of the configuration, each with its number.
    fn resolved_in_order(&self, identity: &TargetIdentity) -> Vec<(Nsid, ResolvedNamespace)> {
        let resolved = |(nsid, namespace): (Nsid, &NamespaceConfig)| {
            let given = namespace.uuid();
            let uuid = given.unwrap_or_else(|| identity.of_namespace(&self.nqn, nsid, &namespace.storage));
            let mut spec = namespace.storage.clone();
            spec.share(self.nqn.as_str(), &self.cntlids);
            let resolved = ResolvedNamespace {
                spec,
                uuid,
                nguid: namespace.nguid.unwrap_or_else(|| uuid.to_bytes()),
                rights: namespace.rights.clone(),
                limits: namespace.limits,
                is_numbered: namespace.nsid.is_some(),
                is_uuid_given: given.is_some(),
                is_nguid_given: namespace.nguid.is_some(),
            };
            (nsid, resolved)
        };
        self.numbers().into_iter().zip(&self.namespaces).map(resolved).collect()
    }
}

/// The limits that limit anything.
fn meters(limits: &BTreeMap<HostName, RateLimits>) -> BTreeMap<HostName, Arc<Meter>> {
    limits.iter().filter_map(|(host, limits)| Some((host.clone(), Meter::new(*limits)?))).collect()
}

impl NamespaceConfig {
    /// The UUID that was chosen for it.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        self.uuid.or(self.storage.uuid)
    }
}
