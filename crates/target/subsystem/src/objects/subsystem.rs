//! Subsystems, their namespaces and who may use them: the configuration as it runs.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use proto::doorbell::Policy;
use security::controller::ControllerSettings;
use security::names::Names;
use security::secure_channel::SecureChannel;
use store::Store;
use wire::id::{Cntlid, Nsid};
use wire::nqn::{HostName, Nqn};
use wire::uuid::Uuid;

pub use crate::objects::access::Access;
use crate::objects::access::VersionedRights;
use crate::objects::authentication::Authentication;
use crate::objects::namespace_traffic::NamespaceTraffic;
use crate::objects::rate_limit::Meter;

/// Identifies a subsystem within the target while it exists. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubsystemId(pub u32);

/// Names the storage of a namespace within the target, for as long as any namespace has it: also under another identity
/// or in another subsystem. Never reused, unlike an NSID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId(pub u64);

/// A set of namespaces and of the hosts that may use them. The namespaces of one that is only configured have no
/// storage yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem<N = Namespace> {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model, at most 40 ASCII characters.
    pub model: String,
    /// Who may connect.
    pub access: Access,
    /// Who must authenticate.
    pub authentication: Arc<Authentication>,
    /// The secrets before these, and how long they are accepted, ns.
    pub earlier: Option<(Arc<Authentication>, u64)>,
    /// Ids its controllers get. Targets that serve one subsystem together have disjoint ranges.
    pub cntlids: RangeInclusive<u16>,
    /// Doorbell policy; `None` for the listener's.
    pub doorbell: Option<Policy>,
    /// Rate limits of hosts.
    pub host_meters: BTreeMap<HostName, Arc<Meter>>,
    /// Its namespaces.
    pub namespaces: BTreeMap<Nsid, N>,
}

impl Subsystem {
    /// A subsystem without namespaces and serial number.
    #[must_use]
    pub fn new(nqn: Nqn, access: Access) -> Self {
        Self {
            nqn,
            serial: String::new(),
            model: "nvlane".into(),
            access,
            authentication: Arc::default(),
            earlier: None,
            cntlids: 1..=Cntlid::MAX.get(),
            doorbell: None,
            host_meters: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }

    /// The settings by which the host of a queue must authenticate now, if it must, and when former secrets among them are
    /// accepted no more, ns. `secure_channel` may be asked for.
    pub(crate) fn authentication_at(
        &self,
        now_ns: u64,
        names: Names,
        secure_channel: SecureChannel,
    ) -> Option<(ControllerSettings, Option<u64>)> {
        let earlier = self.earlier.as_ref().filter(|(_, until_ns)| now_ns < *until_ns);
        let (earlier, until_ns) = earlier.map(|(earlier, until_ns)| (&**earlier, *until_ns)).unzip();
        let settings = self.authentication.settings(names, earlier, secure_channel)?;
        Some((settings, until_ns))
    }

    /// Whether a namespace of it is one of the key-value command set.
    #[must_use]
    pub fn has_key_value(&self) -> bool {
        self.namespaces.values().any(|namespace| namespace.store.is_key_value())
    }

    /// Whether all it has are namespaces of the key-value command set: values may be longer than what is read or
    /// written as blocks at a time.
    #[must_use]
    pub fn has_key_value_only(&self) -> bool {
        !self.namespaces.is_empty()
            && self.namespaces.values().all(|namespace| namespace.store.is_key_value())
    }

    /// Whether other targets write to blocks of it at the same time.
    #[must_use]
    pub fn has_other_writers(&self) -> bool {
        let mut blocks = self.namespaces.values().filter_map(|namespace| namespace.store.blocks());
        blocks.any(|blocks| blocks.geometry().has_other_writers)
    }
}

/// One namespace of a subsystem.
#[derive(Clone)]
pub struct Namespace {
    /// The id by which reactors know its storage.
    pub id: NamespaceId,
    /// Its storage.
    pub store: Store,
    /// Traffic of hosts with its storage since that was added, through any subsystem.
    pub traffic: Arc<NamespaceTraffic>,
    /// Its rate limits, if it has any.
    pub meter: Option<Arc<Meter>>,
    /// Stable over restarts, the same on every target that serves it, unlike any other's.
    pub uuid: Uuid,
    /// As stable as the UUID, from whose bytes it is made unless it was chosen.
    pub nguid: [u8; 16],
    /// Which hosts see it, and which may write to it.
    pub rights: VersionedRights,
    /// The specification of its storage, for the operator to read.
    pub storage: String,
    /// Hosts are shown the namespace once every reactor serves this version of the table: they find it
    /// wherever their lanes are.
    pub shown_from: u64,
}
