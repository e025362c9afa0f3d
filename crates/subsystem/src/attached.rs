//! The namespaces that this reactor has attached to, found by subsystem and NSID.

use std::collections::BTreeMap;
use std::sync::Arc;

use kv::Partition;
use memcached::{Executor, ListenerSettings, Service};
use store::{Backend, Geometry, KeyValueShape, Logged, OWN_TICKET, Ticket};
use wire::id::Nsid;

use crate::exclusion::Exclusions;
use crate::kv_log::{Desk, LoggedKeys};
use crate::namespace_table::{NamespaceEntry, NamespaceTable};
use crate::namespace_traffic::{NamespaceTraffic, ReactorTraffic};
use crate::subsystem::{NamespaceId, SubsystemId};

/// Where an attached namespace is, while it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachedIndex(u32);

/// One namespace as this reactor uses it.
pub(crate) struct Attached {
    pub(crate) id: NamespaceId,
    pub(crate) backend: Box<dyn Backend>,
    /// As of the table in use.
    pub(crate) geometry: Geometry,
    /// log2 of the block size.
    pub(crate) block_shift: u32,
    /// Commands that have something running here.
    pub(crate) running: u32,
    /// Ranges that a fused command somewhere holds for itself.
    pub(crate) exclusions: Exclusions,
    /// What waits for its log, if it has one.
    pub(crate) desk: Option<Box<Desk>>,
    /// memcached on this reactor's partition, if keys and values are behind the namespace.
    pub(crate) memcached: Option<Box<Service>>,
    /// Where this reactor counts what hosts do with it.
    traffic: Arc<NamespaceTraffic>,
    /// No longer in the table: let go of when nothing runs.
    is_removed: bool,
}

impl Attached {
    /// Whether keys and values are behind it.
    pub(crate) fn has_keys(&self) -> bool {
        self.memcached.is_some()
    }

    /// This reactor's partition, once its log was read, if it has one.
    pub(crate) fn partition(&mut self) -> Option<&mut Partition> {
        self.backend.key_value()
    }

    /// The same, whether its log was read or not.
    pub(crate) fn partition_unread(&mut self) -> Option<&mut Partition> {
        if self.desk.is_some() {
            self.backend.logged().map(Logged::partition)
        } else {
            self.backend.key_value()
        }
    }

    /// This reactor's partition as memcached's clients see it, once its log was read.
    pub(crate) fn executor(&mut self) -> Option<Executor<'_>> {
        Some(self.memcached.as_mut()?.on(self.backend.key_value()?))
    }

    /// What waits for the log, and the partition that has it.
    pub(crate) fn logged(&mut self) -> Option<(&mut Desk, LoggedKeys<'_>)> {
        let desk = self.desk.as_deref_mut()?;
        let logged = self.backend.logged()?;
        Some((desk, LoggedKeys { logged, memcached: self.memcached.as_mut()? }))
    }
}

impl AttachedIndex {
    /// The number of a ticket that the backend here has of its own.
    pub(crate) fn own_ticket(self, number: u32) -> Ticket {
        Ticket(OWN_TICKET | u64::from(self.0) << OWN_BITS | u64::from(number))
    }

    /// Whose own a ticket is, if it is one.
    #[inline]
    pub(crate) fn of_own_ticket(ticket: Ticket) -> Option<Self> {
        (ticket.0 & OWN_TICKET != 0).then(|| {
            let index = (ticket.0 & !OWN_TICKET) >> OWN_BITS;
            Self(u32::try_from(index).expect("as it was put in"))
        })
    }
}

/// Bits of the numbers that a backend gives its own tickets.
const OWN_BITS: u32 = 24;

/// All of them.
#[derive(Default)]
pub(crate) struct Attachments {
    table: Arc<NamespaceTable>,
    slots: Vec<Option<Attached>>,
    by_id: BTreeMap<NamespaceId, AttachedIndex>,
    /// By [`SubsystemId`]: NSIDs in ascending order, and where they are.
    views: Vec<Vec<(Nsid, Option<AttachedIndex>)>>,
    /// Removed namespaces that still have something running.
    leaving: u32,
    /// Those who waited for writes to namespaces that are let go of: nothing is under way there any more.
    released: Vec<(u16, u64)>,
    /// The first namespace with keys and values: where memcached's clients are led.
    key_value: Option<(NamespaceId, AttachedIndex)>,
    /// This reactor's number.
    reactor: usize,
    /// Whether any has a log that is to be looked after.
    pub(crate) has_logs: bool,
}

/// What an NSID stands for.
pub(crate) enum Found {
    /// A namespace.
    Here(AttachedIndex),
    /// A namespace that could not be attached.
    Unusable,
    /// None.
    Missing,
}

impl Attachments {
    /// Goes over to another table: attaches what is new, lets go of what is gone.
    /// `reactor` is this one's number.
    pub(crate) fn replace(&mut self, table: Arc<NamespaceTable>, reactor: usize) {
        self.reactor = reactor;
        let mut gone = std::mem::take(&mut self.by_id);
        let length = table.subsystems.keys().next_back().map_or(0, |last| last.0 as usize + 1);
        self.views = vec![Vec::new(); length];
        for (subsystem, entries) in &table.subsystems {
            for entry in entries {
                let known = self.by_id.get(&entry.id).copied();
                let at = match known.or_else(|| gone.remove(&entry.id)) {
                    Some(at) => Some(at),
                    None => match entry.store.attach_as(reactor) {
                        Ok(backend) => Some(self.insert(entry, backend)),
                        Err(error) => {
                            tracing::error!(%error, nsid = %entry.nsid, "cannot use a namespace");
                            None
                        }
                    },
                };
                if let Some(at) = at {
                    self.by_id.insert(entry.id, at);
                    let attached = self.get_mut(at);
                    attached.geometry = attached.backend.geometry();
                }
                self.views[subsystem.0 as usize].push((entry.nsid, at));
            }
        }
        for at in gone.into_values() {
            let attached = self.get_mut(at);
            // What came to its log in this turn has yet to be carried out, written and answered.
            if attached.desk.as_mut().is_some_and(|desk| desk.count_in()) {
                attached.running += 1;
            }
            if attached.running == 0 {
                self.slots[at.0 as usize] = None;
            } else {
                attached.is_removed = true;
                self.leaving += 1;
            }
        }
        self.key_value = None;
        self.has_logs = self.slots.iter().flatten().any(|attached| attached.desk.is_some());
        let ids: Vec<_> = self.by_id.iter().map(|(id, at)| (*id, *at)).collect();
        for (id, at) in ids {
            if self.key_value.is_none() && self.get_mut(at).has_keys() {
                self.key_value = Some((id, at));
            }
        }
        self.table = table;
    }

    /// The partition at hand of the first namespace with keys and values.
    pub(crate) fn key_value(&mut self) -> Option<(NamespaceId, Executor<'_>)> {
        let (id, at) = self.key_value?;
        Some((id, self.get_mut(at).executor()?))
    }

    fn insert(&mut self, entry: &NamespaceEntry, mut backend: Box<dyn Backend>) -> AttachedIndex {
        let memcached = entry.store.key_value().map(|keys| {
            let KeyValueShape { item_bytes, allows_flush, .. } = keys;
            Box::new(Service::new(ListenerSettings { value_bytes_max: item_bytes as usize, allows_flush }))
        });
        let geometry = backend.geometry();
        let desk = backend.logged().is_some().then(Box::default);
        let attached = Attached {
            id: entry.id,
            backend,
            geometry,
            block_shift: geometry.block_bytes.trailing_zeros(),
            running: 0,
            exclusions: Exclusions::default(),
            desk,
            memcached,
            traffic: Arc::clone(&entry.traffic),
            is_removed: false,
        };
        let at = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(attached);
        AttachedIndex(u32::try_from(at).expect("fewer namespaces than 32 bits count"))
    }

    /// What `nsid` stands for in a subsystem.
    #[inline]
    pub(crate) fn find(&self, subsystem: SubsystemId, nsid: Nsid) -> Found {
        let Some(view) = self.views.get(subsystem.0 as usize) else { return Found::Missing };
        // NSIDs 1, 2, 3 … lie where they say.
        let guess = (nsid.get() as usize).wrapping_sub(1);
        let entry = match view.get(guess) {
            Some(entry) if entry.0 == nsid => entry,
            _ => match view.binary_search_by_key(&nsid, |entry| entry.0) {
                Ok(at) => &view[at],
                Err(_) => return Found::Missing,
            },
        };
        match entry.1 {
            Some(at) => Found::Here(at),
            None => Found::Unusable,
        }
    }

    /// Where this reactor counts what hosts do with a namespace.
    #[inline]
    pub(crate) fn traffic(&self, at: AttachedIndex) -> Option<&ReactorTraffic> {
        self.slots.get(at.0 as usize)?.as_ref()?.traffic.of(self.reactor)
    }

    /// The same for the namespace that a command names.
    pub(crate) fn traffic_of(&self, subsystem: Option<SubsystemId>, nsid: Nsid) -> Option<&ReactorTraffic> {
        match self.find(subsystem?, nsid) {
            Found::Here(at) => self.traffic(at),
            Found::Unusable | Found::Missing => None,
        }
    }

    /// All namespaces of a subsystem that can be used.
    pub(crate) fn all_of(&self, subsystem: SubsystemId) -> Vec<AttachedIndex> {
        let view = self.views.get(subsystem.0 as usize);
        view.into_iter().flatten().filter_map(|(_, at)| *at).collect()
    }

    /// Where the namespace of this name is.
    pub(crate) fn by_id(&self, id: NamespaceId) -> Option<AttachedIndex> {
        self.by_id.get(&id).copied()
    }

    /// # Panics
    /// If there is none any more: whoever has something running keeps it.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: AttachedIndex) -> &mut Attached {
        self.slots[at.0 as usize].as_mut().expect("a namespace stays while something runs in it")
    }

    /// Whether a namespace is attached here.
    pub(crate) fn is_there(&self, at: AttachedIndex) -> bool {
        self.slots.get(at.0 as usize).is_some_and(Option::is_some)
    }

    /// Every namespace.
    pub(crate) fn for_each(&mut self, mut each: impl FnMut(AttachedIndex, &mut Attached)) {
        for (at, attached) in self.slots.iter_mut().enumerate() {
            if let Some(attached) = attached {
                each(AttachedIndex(u32::try_from(at).expect("as inserted")), attached);
            }
        }
    }

    /// Whether any range of any namespace is held by a fused command that waits for writes here to end.
    pub(crate) fn has_exclusions(&self) -> bool {
        !self.released.is_empty()
            || self.slots.iter().flatten().any(|attached| attached.exclusions.has_unreported())
    }

    /// Who need not wait any more for writes to a namespace that is gone.
    pub(crate) fn take_released(&mut self) -> Vec<(u16, u64)> {
        std::mem::take(&mut self.released)
    }

    /// Something begins to run.
    pub(crate) fn begin(&mut self, at: AttachedIndex) {
        self.get_mut(at).running += 1;
    }

    /// Something has ended. Says whether that was the last thing any removed namespace waited for.
    pub(crate) fn end(&mut self, at: AttachedIndex) -> bool {
        let attached = self.get_mut(at);
        attached.running -= 1;
        if attached.running > 0 || !attached.is_removed {
            return false;
        }
        let released = attached.exclusions.unreported().collect::<Vec<_>>();
        self.released.extend(released);
        self.slots[at.0 as usize] = None;
        self.leaving -= 1;
        self.leaving == 0
    }

    /// Whether nothing of an older table is in use, and which version is.
    pub(crate) fn settled_version(&self) -> Option<u64> {
        (self.leaving == 0).then_some(self.table.version)
    }
}
