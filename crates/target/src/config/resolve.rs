//! Fills in what a configuration leaves open.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use proto::doorbell::Policy as DoorbellPolicy;
use store::Spec;
use wire::id::Nsid;
use wire::nqn::Nqn;
use wire::uuid::Uuid;

use super::{SubsystemConfig, TargetConfig};
use crate::identity;
use crate::subsystem::Access;

/// A subsystem of which nothing is left open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedSubsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Who may connect.
    pub access: Access,
    /// Ids its controllers get.
    pub cntlids: RangeInclusive<u16>,
    /// When answers leave, if not as the listener has it.
    pub doorbell: Option<DoorbellPolicy>,
    /// What is in it.
    pub namespaces: BTreeMap<Nsid, ResolvedNamespace>,
}

/// A namespace of which nothing is left open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedNamespace {
    /// What is behind it.
    pub spec: Spec,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its NGUID.
    pub nguid: [u8; 16],
    /// Its number was chosen, not given in order.
    pub is_numbered: bool,
}

impl TargetConfig {
    /// The subsystems by name, with every number and identity.
    #[must_use]
    pub fn resolve(&self) -> BTreeMap<Nqn, ResolvedSubsystem> {
        let resolved = |subsystem: &SubsystemConfig| (subsystem.nqn.clone(), subsystem.resolve());
        self.subsystems.iter().map(resolved).collect()
    }
}

impl SubsystemConfig {
    fn resolve(&self) -> ResolvedSubsystem {
        ResolvedSubsystem {
            nqn: self.nqn.clone(),
            serial: self.serial.clone().unwrap_or_else(|| identity::serial_of(&self.nqn)),
            model: self.model.clone(),
            access: self.access.clone(),
            cntlids: self.cntlids.clone(),
            doorbell: self.doorbell,
            namespaces: self.resolved_in_order().into_iter().collect(),
        }
    }

    /// Its namespaces in the order of the configuration, each with its number.
    pub(super) fn resolved_in_order(&self) -> Vec<(Nsid, ResolvedNamespace)> {
        let chosen: Vec<Nsid> = self.namespaces.iter().filter_map(|namespace| namespace.nsid).collect();
        let mut free = (1..).map(Nsid::new).filter(|nsid| !chosen.contains(nsid));
        let mut resolved = Vec::new();
        for namespace in &self.namespaces {
            let nsid = namespace.nsid.or_else(|| free.next()).unwrap_or(Nsid::ALL);
            let uuid = namespace.uuid.or(namespace.storage.uuid).unwrap_or_else(|| match namespace.nsid {
                Some(nsid) => identity::of_numbered_namespace(&self.nqn, nsid),
                None => identity::of_namespace_in_order(&self.nqn, nsid, &namespace.storage),
            });
            let namespace = ResolvedNamespace {
                spec: namespace.storage.clone(),
                uuid,
                nguid: namespace.nguid.unwrap_or_else(|| uuid.to_bytes()),
                is_numbered: namespace.nsid.is_some(),
            };
            resolved.push((nsid, namespace));
        }
        resolved
    }
}
