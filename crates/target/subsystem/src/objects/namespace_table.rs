//! The namespaces of all subsystems as reactors see them: a snapshot, replaced as a whole when something changes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use store::Store;
use wire::id::Nsid;
use wire::nqn::HostName;

use crate::objects::access::HostRights;
use crate::objects::namespace_traffic::NamespaceTraffic;
use crate::objects::rate_limit::{Meter, Pressure};
use crate::objects::subsystem::{NamespaceId, SubsystemId};

/// One version of the namespaces.
#[derive(Debug, Default)]
pub struct NamespaceTable {
    /// Grows with each change.
    pub version: u64,
    /// By subsystem.
    pub subsystems: BTreeMap<SubsystemId, Vec<NamespaceEntry>>,
    /// The rate limits of hosts, by subsystem.
    pub host_meters: BTreeMap<SubsystemId, BTreeMap<HostName, Arc<Meter>>>,
    /// How far commands without a guaranteed rate stand back.
    pub pressure: Arc<Pressure>,
}

/// A namespace in the table.
#[derive(Clone)]
pub struct NamespaceEntry {
    /// Its number in its subsystem. Entries are sorted by it.
    pub nsid: Nsid,
    /// The id by which reactors know its storage.
    pub id: NamespaceId,
    /// Its storage.
    pub store: Store,
    /// Which hosts see it, and which may write to it.
    pub rights: HostRights,
    /// Where reactors count what hosts do with it.
    pub traffic: Arc<NamespaceTraffic>,
    /// Its rate limits, if it has any.
    pub meter: Option<Arc<Meter>>,
}

impl fmt::Debug for NamespaceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {} ({:?})", self.nsid, self.id)
    }
}
