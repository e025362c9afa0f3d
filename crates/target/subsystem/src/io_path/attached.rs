//! The namespaces that this reactor has attached, found by subsystem and NSID.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use kv::log::Failure;
use kv::{KeyHash, PartitionAccess, ResizeStep};
use linux::Moment;
use memcached::{ListenerSettings, Service, Watchers};
use reactor::Completion;
use store::{
    Backend, Generation, Geometry, KeyValueBackend, KeyValueShape, KeyValueStore, OWN_TICKET, Store, StoreIo,
    Ticket,
};
use wire::id::Nsid;
use wire::nqn::HostName;
use wire::status::Status;

use crate::io_path::exclusion::Exclusions;
use crate::io_path::log_waiters::{LogWaiters, LoggedKeys, Refusal};
use crate::io_path::own_partition::{KeysIn, OwnKeys, OwnPartition, SessionKeys};
use crate::io_path::throttle::{MeterIndex, Share, Stages};
use crate::messages::key_value::waiting_values::WaitingValues;
use crate::messages::state::KeyValueCounters;
use crate::objects::access::Right;
use crate::objects::key_rights::{KeyRights, KeyScope};
use crate::objects::namespace_table::{NamespaceEntry, NamespaceTable};
use crate::objects::namespace_traffic::{NamespaceTraffic, ReactorTraffic};
use crate::objects::rate_limit::{Meter, Pressure};
use crate::objects::subsystem::{NamespaceId, SubsystemId};

/// The place of an attached namespace, valid until the namespace is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachedIndex(u32);

/// One namespace as this reactor uses it.
pub(crate) struct Attached {
    pub(crate) id: NamespaceId,
    pub(crate) backing: Backing,
    /// Number of commands running in it on this reactor.
    pub(crate) running: u32,
    /// Its traffic, with the counters of each reactor.
    traffic: Arc<NamespaceTraffic>,
    /// Whether it has left the table: it is released once no command runs in it.
    pub(crate) is_removed: bool,
}

/// The storage of an attached namespace, by command set.
pub(crate) enum Backing {
    Blocks(Blocks),
    Keys(Box<Keys>),
}

/// A block namespace as one reactor accesses it.
pub(crate) struct Blocks {
    pub(crate) backend: Box<dyn Backend>,
    /// The shape when the table in use was adopted.
    pub(crate) geometry: Geometry,
    /// log2 of the block size.
    pub(crate) block_shift: u32,
    /// Ranges that a fused command of any reactor holds.
    pub(crate) exclusions: Exclusions,
}

/// This reactor's partition of keys and values.
pub(crate) struct Keys {
    partition: KeysIn,
    /// Why the log of a partition on any reactor has failed, if one has.
    failure: Option<Failure>,
    /// memcached on the partition.
    memcached: Service,
}

impl Attached {
    /// The blocks, if blocks are behind it.
    pub(crate) fn blocks(&mut self) -> Option<&mut Blocks> {
        match &mut self.backing {
            Backing::Blocks(blocks) => Some(blocks),
            Backing::Keys(_) => None,
        }
    }

    /// The keys, if keys and values are behind it.
    pub(crate) fn keys(&mut self) -> Option<&mut Keys> {
        match &mut self.backing {
            Backing::Blocks(_) => None,
            Backing::Keys(keys) => Some(keys),
        }
    }

    /// Whether a Flush has anything to do: no flush makes keys in RAM durable.
    pub(crate) fn has_volatile_state(&self) -> bool {
        match &self.backing {
            Backing::Blocks(_) => true,
            Backing::Keys(keys) => keys.has_log(),
        }
    }

    /// The generation of its storage. A log that has failed stays closed, so keys have only the first one.
    pub(crate) fn generation(&self) -> Generation {
        match &self.backing {
            Backing::Blocks(blocks) => blocks.backend.generation(),
            Backing::Keys(_) => Generation::default(),
        }
    }

    /// A storage operation has ended.
    pub(crate) fn on_completion(&mut self, io: &mut dyn StoreIo, ticket: Ticket, completion: Completion) {
        match &mut self.backing {
            Backing::Blocks(blocks) => blocks.backend.on_completion(io, ticket, completion),
            Backing::Keys(keys) => {
                if let KeysIn::Log(logged, _) = &mut keys.partition {
                    logged.on_completion(io, ticket, completion);
                }
            }
        }
    }

    /// A timer of its storage rings.
    pub(crate) fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
        match &mut self.backing {
            Backing::Blocks(blocks) => blocks.backend.on_timer(io, ticket),
            Backing::Keys(keys) => {
                if let KeysIn::Log(logged, _) = &mut keys.partition {
                    logged.on_timer(io, ticket);
                }
            }
        }
    }
}

impl Blocks {
    fn new(backend: Box<dyn Backend>) -> Self {
        let geometry = backend.geometry();
        let block_shift = geometry.block_bytes.trailing_zeros();
        Self { backend, geometry, block_shift, exclusions: Exclusions::default() }
    }
}

impl Keys {
    fn attach(
        store: &KeyValueStore,
        reactor: usize,
        now: Moment,
        watchers: &Arc<Watchers>,
    ) -> io::Result<Self> {
        let KeyValueShape { item_bytes, allows_flush, .. } = store.shape();
        let settings = ListenerSettings { value_bytes_max: item_bytes as usize, allows_flush };
        let partition = match store.attach(reactor, now)? {
            KeyValueBackend::Memory(partition) => KeysIn::Memory(partition),
            KeyValueBackend::Shared(access) => KeysIn::Shared(access),
            KeyValueBackend::Durable(durable) => KeysIn::Log(durable, Box::default()),
        };
        let memcached = Service::new(settings).watched_by(Arc::clone(watchers));
        Ok(Self { partition, failure: None, memcached })
    }

    /// Whether changes go into a log.
    pub(crate) fn has_log(&self) -> bool {
        matches!(self.partition, KeysIn::Log(..))
    }

    /// Why the namespace serves nothing any more: a log could not be read or written, on whichever reactor.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure.or_else(|| match &self.partition {
            KeysIn::Log(logged, _) => logged.failure(),
            KeysIn::Memory(_) | KeysIn::Shared(_) => None,
        })
    }

    /// The answer to commands while the namespace cannot serve them.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.failure().map(Refusal::from).or_else(|| match &self.partition {
            KeysIn::Log(logged, _) => logged.pause().map(Refusal::from),
            KeysIn::Memory(_) | KeysIn::Shared(_) => None,
        })
    }

    /// The log of a partition on another reactor has failed.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure = self.failure.or(Some(failure));
    }

    /// The partition, once its log has been read.
    #[inline]
    pub(crate) fn partition(&mut self) -> Option<OwnPartition<'_>> {
        self.partition.read()
    }

    /// The partition, whether its log was read or not.
    #[inline]
    pub(crate) fn partition_unread(&mut self) -> OwnPartition<'_> {
        self.partition.unread()
    }

    /// The partition for a command that waits if its log has not been read yet.
    ///
    /// # Errors
    /// If the log has failed, or is read for long.
    #[inline]
    pub(crate) fn serving_partition(&mut self) -> Result<OwnPartition<'_>, Status> {
        match self.refusal() {
            Some(refusal) => Err(refusal.status),
            None => Ok(self.partition_unread()),
        }
    }

    /// The partitions of all reactors, if this one may use them where they lie.
    #[inline]
    pub(crate) fn shared(&self) -> Option<&Arc<PartitionAccess>> {
        match &self.partition {
            KeysIn::Shared(access) => Some(access).filter(|access| access.is_complete()),
            KeysIn::Memory(_) | KeysIn::Log(..) => None,
        }
    }

    /// Whether the partition is the only one, in RAM.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.partition, KeysIn::Memory(_))
    }

    /// The hash of a key.
    #[inline]
    pub(crate) fn hash(&mut self, key: &[u8]) -> KeyHash {
        match &mut self.partition {
            KeysIn::Memory(partition) => partition.processor.hash(key),
            KeysIn::Shared(access) => access.hash(key),
            KeysIn::Log(logged, _) => logged.partition().processor.hash(key),
        }
    }

    /// Begins to give the partition its share of the memory of the namespace, if that has changed.
    fn follow_memory_limit(&mut self) {
        if let Err(error) = self.partition.unread().follow_memory_limit() {
            tracing::error!(%error, "cannot resize the memory of keys and values");
        }
    }

    /// Continues a resize of the partition's memory.
    fn resize_step(&mut self) -> ResizeStep {
        let Some(mut partition) = self.partition() else { return ResizeStep::Waits };
        if !partition.processor.is_resizing() {
            return ResizeStep::Done;
        }
        let step = partition.processor.resize_step();
        if step == ResizeStep::Done {
            let bytes = partition.processor.settings().memory_bytes;
            tracing::info!(bytes, "key-value partition resized");
        }
        step
    }

    /// The partition as the memcached protocol sees it, once its log has been read.
    #[inline]
    pub(crate) fn own(&mut self) -> Option<OwnKeys<'_>> {
        Some(OwnKeys { partition: self.partition.read()?, service: &mut self.memcached })
    }

    /// The partitions as memcached sessions of this reactor reach them, once the log has been read, or clients need not
    /// wait for it.
    #[inline]
    fn of_sessions(&mut self, now: Moment) -> Option<SessionKeys<'_>> {
        let is_refused = self.refusal().is_some();
        let service = &mut self.memcached;
        let partition = match &mut self.partition {
            KeysIn::Memory(partition) => partition,
            KeysIn::Log(logged, _) => {
                if is_refused {
                    logged.partition()
                } else {
                    logged.ready_partition()?
                }
            }
            KeysIn::Shared(access) => return Some(SessionKeys::shared(access, service, now)),
        };
        partition.set_now(now);
        Some(SessionKeys::Own(service.on(partition)))
    }

    /// The commands and answers that wait for the log, and the partition that has it.
    pub(crate) fn logged(&mut self) -> Option<(&mut LogWaiters, LoggedKeys<'_>)> {
        let KeysIn::Log(logged, waiters) = &mut self.partition else { return None };
        Some((waiters, LoggedKeys { logged: &mut **logged, memcached: &mut self.memcached }))
    }
}

impl AttachedIndex {
    /// The number of a backend's own ticket.
    pub(crate) fn own_ticket(self, number: u32) -> Ticket {
        Ticket(OWN_TICKET | u64::from(self.0) << OWN_BITS | u64::from(number))
    }

    /// The namespace whose backend owns a ticket, if one does.
    #[inline]
    pub(crate) fn of_own_ticket(ticket: Ticket) -> Option<Self> {
        (ticket.0 & OWN_TICKET != 0).then(|| {
            let index = (ticket.0 & !OWN_TICKET) >> OWN_BITS;
            Self(u32::try_from(index).expect("as it was put in"))
        })
    }
}

/// Bits of the numbers of a backend's own tickets.
const OWN_BITS: u32 = 24;

/// All attached namespaces of a reactor.
#[derive(Default)]
pub(crate) struct Attachments {
    table: Arc<NamespaceTable>,
    slots: Vec<Option<Attached>>,
    by_id: BTreeMap<NamespaceId, AttachedIndex>,
    /// The namespaces of all subsystems, for each set of hosts that see the same ones.
    views: Vec<View>,
    /// The places in `views`.
    views_of: BTreeMap<SubsystemId, SubsystemViews>,
    /// Namespaces of views whose commands have rate limits, by their number in [`Found::Limited`].
    limited: Vec<Limited>,
    /// The meters of these, those of hosts first.
    pub(crate) meters: Vec<Arc<Meter>>,
    /// Whether any rate is guaranteed: commands of others pass a window behind all meters.
    pub(crate) has_guarantees: bool,
    /// The guaranteed rates of those that a host sees.
    pub(crate) guarantees: Vec<u64>,
    /// Removed namespaces that still have something running.
    leaving: u32,
    /// Holders that waited for writes to removed namespaces: no write is in flight there any more.
    released: Vec<(u16, u64)>,
    /// The newest namespace of any table so far.
    newest: Option<NamespaceId>,
    /// The oldest key-value namespace: memcached clients use it.
    key_value: Option<(NamespaceId, AttachedIndex)>,
    /// This reactor's number.
    reactor: usize,
    /// Memcached connections that watch what happens.
    pub(crate) watchers: Arc<Watchers>,
    /// Whether any namespace has a log to poll.
    pub(crate) has_logs: bool,
    /// Whether the memory of a partition may be on its way to another size.
    pub(crate) is_resizing: bool,
    /// Values that wait for memory of this reactor's partitions.
    pub(crate) waiting_values: WaitingValues,
    /// When the next report of the memory of pairs is due, ns.
    usage_due_ns: u64,
}

/// The place of a meter among those of all views.
fn meter_index(meters: &mut Vec<Arc<Meter>>, meter: &Arc<Meter>) -> MeterIndex {
    meters.push(Arc::clone(meter));
    u32::try_from(meters.len() - 1).expect("fewer than 32 bits count")
}

/// Interval between reports of the memory of pairs while a reactor works, ns.
const USAGE_NS: u64 = 100_000_000;

/// The place of a view, valid until the table is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewIndex(u32);

impl ViewIndex {
    /// A view without namespaces.
    const NONE: Self = Self(u32::MAX);
}

/// A namespace of a view, with the meters that its commands pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limited {
    pub(crate) found: Found,
    pub(crate) stages: Stages,
    pub(crate) share: Share,
}

/// The namespaces of a subsystem that a host sees.
struct View {
    /// NSIDs in ascending order, each with its target.
    entries: Vec<(Nsid, Found)>,
    /// The keys that the host may use of the namespaces of which it may not use all.
    scopes: Vec<(Nsid, Arc<KeyScope>)>,
    /// Whether the subsystem has namespaces of blocks, be they in this view or not.
    is_beside_blocks: bool,
    /// Whether the subsystem has namespaces of keys and values, be they in this view or not.
    is_beside_keys: bool,
}

/// The views of a subsystem.
struct SubsystemViews {
    /// All of its namespaces.
    whole: ViewIndex,
    /// The view of hosts that no list names.
    unlisted: ViewIndex,
    /// The views of the others.
    listed: BTreeMap<HostName, ViewIndex>,
}

/// The target of an NSID: the command set of its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A namespace of the NVM command set.
    Blocks(AttachedIndex),
    /// A namespace of the key-value command set.
    Keys(AttachedIndex),
    /// A namespace of the NVM command set that the host may only read.
    BlocksToRead(AttachedIndex),
    /// A namespace of the key-value command set that the host may only read.
    KeysToRead(AttachedIndex),
    /// One of the first four, whose commands have rate limits: its number.
    Limited(u32),
    /// A namespace that could not be attached.
    Unusable,
    /// None.
    Missing,
}

impl Found {
    /// The namespace, if it can be used.
    fn attached(self) -> Option<AttachedIndex> {
        match self {
            Self::Blocks(at) | Self::Keys(at) | Self::BlocksToRead(at) | Self::KeysToRead(at) => Some(at),
            Self::Limited(_) | Self::Unusable | Self::Missing => None,
        }
    }

    /// Whether it has keys and values.
    pub(crate) fn is_keys(self) -> bool {
        matches!(self, Self::Keys(_) | Self::KeysToRead(_))
    }

    /// The same namespace for a host with this right; `None` if the host does not see it.
    fn with(self, right: Right) -> Option<Self> {
        match (right, self) {
            (Right::None, _) => None,
            (Right::Read, Self::Blocks(at)) => Some(Self::BlocksToRead(at)),
            (Right::Read, Self::Keys(at)) => Some(Self::KeysToRead(at)),
            (Right::Read | Right::Write, found) => Some(found),
        }
    }
}

impl Attachments {
    /// Switches to another table: attaches new namespaces and releases removed ones.
    /// `reactor` is this one's number.
    pub(crate) fn replace(&mut self, table: Arc<NamespaceTable>, reactor: usize, now: Moment) {
        self.reactor = reactor;
        let mut gone = std::mem::take(&mut self.by_id);
        self.views.clear();
        self.views_of.clear();
        self.limited.clear();
        self.meters = table.host_meters.values().flat_map(|meters| meters.values().cloned()).collect();
        let guaranteed =
            |meters: &[Arc<Meter>]| meters.iter().filter(|meter| meter.limits.min_iops.is_some()).count();
        let entries = || table.subsystems.values().flatten();
        let has_guarantees = guaranteed(&self.meters) > 0
            || entries()
                .filter_map(|entry| entry.meter.as_ref())
                .any(|meter| meter.limits.min_iops.is_some());
        let meters_of_namespaces = entries().filter(|entry| entry.meter.is_some()).count();
        self.has_guarantees = has_guarantees;
        let window = has_guarantees.then(|| self.meters.len() + meters_of_namespaces);
        let window = window.and_then(|at| MeterIndex::try_from(at).ok());
        self.guarantees.clear();
        let mut host_meters = 0;
        for (subsystem, entries) in &table.subsystems {
            let mut whole = Vec::new();
            for entry in entries {
                self.newest = self.newest.max(Some(entry.id));
                let known = self.by_id.get(&entry.id).copied();
                let at = known.or_else(|| gone.remove(&entry.id)).or_else(|| self.attach(entry, now));
                let found = match at {
                    Some(at) => {
                        self.by_id.insert(entry.id, at);
                        match &mut self.get_mut(at).backing {
                            Backing::Blocks(blocks) => {
                                blocks.geometry = blocks.backend.geometry();
                                Found::Blocks(at)
                            }
                            Backing::Keys(keys) => {
                                keys.follow_memory_limit();
                                Found::Keys(at)
                            }
                        }
                    }
                    None => Found::Unusable,
                };
                whole.push((entry.nsid, found));
            }
            let of_hosts = table.host_meters.get(subsystem);
            self.add_views(*subsystem, entries, &whole, (of_hosts, host_meters), window);
            host_meters += of_hosts.map_or(0, BTreeMap::len);
        }
        for at in gone.into_values() {
            let attached = self.get_mut(at);
            // Requests that reached its log in this turn are yet to be executed, written and answered.
            let logged = attached.keys().and_then(Keys::logged);
            if logged.is_some_and(|(waiters, _)| waiters.count_in()) {
                attached.running += 1;
            }
            if attached.running == 0 {
                // The writes that a holder waited for may have ended in this turn, which has not reported it yet.
                self.detach(at);
            } else {
                attached.is_removed = true;
                self.leaving += 1;
            }
        }
        self.is_resizing = true;
        self.has_logs = self.slots.iter_mut().flatten().filter_map(Attached::keys).any(|keys| keys.has_log());
        let mut present = self.by_id.iter().map(|(id, at)| (*id, *at));
        self.key_value = present.find(|(_, at)| self.has_keys(*at));
        self.table = table;
    }

    /// Continues resizes of the memory of partitions, a step each.
    pub(crate) fn resize_step(&mut self) -> ResizeStep {
        let mut all = ResizeStep::Done;
        for keys in self.slots.iter_mut().flatten().filter_map(Attached::keys) {
            all = all.max(keys.resize_step());
        }
        self.is_resizing = all != ResizeStep::Done;
        all
    }

    /// Passes this turn's events to `post`, for the memcached connections that watch them.
    pub(crate) fn flush_watched(&mut self, unix_us: u64, mut post: impl FnMut(usize, u64, Vec<u8>)) {
        for keys in self.slots.iter_mut().flatten().filter_map(Attached::keys) {
            if let Some(mut own) = keys.own() {
                own.executor().flush_watched(unix_us, &mut post);
            }
        }
    }

    /// The counters of the keys and values of each namespace, as far as this reactor counts them.
    pub(crate) fn key_value_counters(&mut self) -> Vec<(NamespaceId, KeyValueCounters)> {
        let counters = |attached: &mut Attached| {
            let id = attached.id;
            let keys = attached.keys()?;
            let pairs = keys.partition.unread().processor.counters();
            Some((id, KeyValueCounters { pairs, commands: keys.memcached.counters_ever() }))
        };
        self.slots.iter_mut().flatten().filter_map(counters).collect()
    }

    /// Makes all partitions report the memory of their pairs, and the least memory for them.
    pub(crate) fn report_needed_memory(&mut self) {
        for keys in self.slots.iter_mut().flatten().filter_map(Attached::keys) {
            let mut partition = keys.partition.unread();
            partition.report_needed_memory();
            partition.report_usage();
        }
    }

    /// Makes partitions report the memory of their pairs: when the reactor pauses, and at intervals while it works.
    #[inline]
    pub(crate) fn report_usage(&mut self, now_ns: u64, worked: bool) {
        if self.key_value.is_some() && (!worked || now_ns >= self.usage_due_ns) {
            self.usage_due_ns = now_ns + USAGE_NS;
            for keys in self.slots.iter_mut().flatten().filter_map(Attached::keys) {
                keys.partition.report_usage();
            }
        }
    }

    /// The oldest key-value namespace, for memcached sessions: once its log has been read, or clients need not wait for
    /// it.
    pub(crate) fn key_value(&mut self, now: Moment) -> Option<(NamespaceId, SessionKeys<'_>)> {
        let (id, at) = self.key_value?;
        Some((id, self.keys_mut(at).of_sessions(now)?))
    }

    /// The answer to memcached clients while the oldest key-value namespace cannot serve them.
    pub(crate) fn key_value_refusal(&mut self) -> Option<Refusal> {
        let (_, at) = self.key_value?;
        self.keys_mut(at).refusal()
    }

    /// Whether a namespace will be in a table that has not arrived yet.
    pub(crate) fn is_to_come(&self, id: NamespaceId) -> bool {
        self.newest < Some(id)
    }

    /// Attaches a namespace that is new.
    fn attach(&mut self, entry: &NamespaceEntry, now: Moment) -> Option<AttachedIndex> {
        let backing = match &entry.store {
            Store::Blocks(store) => store.attach().map(|backend| Backing::Blocks(Blocks::new(backend))),
            Store::Keys(store) => {
                let keys = Keys::attach(store, self.reactor, now, &self.watchers);
                keys.map(|keys| Backing::Keys(Box::new(keys)))
            }
        };
        let backing = match backing {
            Ok(backing) => backing,
            Err(error) => {
                tracing::error!(%error, nsid = %entry.nsid, "cannot use a namespace");
                return None;
            }
        };
        let traffic = Arc::clone(&entry.traffic);
        let attached = Attached { id: entry.id, backing, running: 0, traffic, is_removed: false };
        let at = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(attached);
        Some(AttachedIndex(u32::try_from(at).expect("fewer namespaces than 32 bits count")))
    }

    /// Adds the views of a subsystem. `whole` has the target of each of its entries.
    fn add_views(
        &mut self,
        subsystem: SubsystemId,
        entries: &[NamespaceEntry],
        whole: &[(Nsid, Found)],
        (of_hosts, first_meter): (Option<&BTreeMap<HostName, Arc<Meter>>>, usize),
        window: Option<MeterIndex>,
    ) {
        let is_beside_blocks = entries.iter().any(|entry| !entry.store.is_key_value());
        let is_beside_keys = entries.iter().any(|entry| entry.store.is_key_value());
        let seen = |right: &dyn Fn(&NamespaceEntry) -> Right| {
            let each = entries.iter().zip(whole);
            each.filter_map(|(entry, (nsid, found))| Some((*nsid, found.with(right(entry))?))).collect()
        };
        let scopes = |of: &dyn Fn(&KeyRights) -> Option<Arc<KeyScope>>| {
            let each = entries.iter().filter_map(|entry| Some((entry.nsid, of(&entry.rights.keys)?)));
            each.collect::<Vec<_>>()
        };
        let (limited, meters, guarantees) = (&mut self.limited, &mut self.meters, &mut self.guarantees);
        let of_namespaces: Vec<Option<MeterIndex>> =
            entries.iter().map(|entry| Some(meter_index(meters, entry.meter.as_ref()?))).collect();
        let hosts_with_meter = of_hosts.into_iter().flat_map(BTreeMap::keys).enumerate();
        let meters_of_hosts: BTreeMap<&HostName, MeterIndex> = hosts_with_meter
            .map(|(at, host)| (host, u32::try_from(first_meter + at).expect("fewer than 32 bits count")))
            .collect();
        let numbers: BTreeMap<Nsid, Option<MeterIndex>> =
            entries.iter().zip(of_namespaces).map(|(entry, meter)| (entry.nsid, meter)).collect();
        // The meters that the commands of a host pass.
        let mut parties = BTreeMap::<MeterIndex, u16>::new();
        let mut party = |meter: MeterIndex, min_iops: u64| {
            *parties.entry(meter).or_insert_with(|| {
                guarantees.push(min_iops);
                u16::try_from(guarantees.len() - 1).unwrap_or(u16::MAX)
            })
        };
        let mut limit = |entries: &mut Vec<(Nsid, Found)>, of_host: Option<MeterIndex>| {
            for (nsid, found) in entries.iter_mut().filter(|(_, found)| found.attached().is_some()) {
                let mut both = [of_host, numbers.get(nsid).copied().flatten()].into_iter().flatten();
                let mut stages = [both.next(), both.next(), None];
                let guarantee =
                    |meter: &MeterIndex| Some((*meter, meters.get(*meter as usize)?.limits.min_iops?));
                let share = match (window, stages.iter().flatten().find_map(guarantee)) {
                    (None, _) => Share::Free,
                    (Some(_), Some((meter, min_iops))) => Share::Party(party(meter, min_iops)),
                    (Some(window), None) => {
                        let end = stages.iter().flatten().count();
                        stages[end] = Some(window);
                        Share::Rest
                    }
                };
                if stages[0].is_some() {
                    limited.push(Limited { found: *found, stages, share });
                    let number = u32::try_from(limited.len() - 1).expect("fewer than 32 bits count");
                    *found = Found::Limited(number);
                }
            }
        };
        let mut add = |entries: Vec<(Nsid, Found)>, scopes| {
            let at = u32::try_from(self.views.len()).expect("fewer views than 32 bits count");
            self.views.push(View { entries, scopes, is_beside_blocks, is_beside_keys });
            ViewIndex(at)
        };
        let mut unlisted: Vec<_> = seen(&|entry| entry.rights.of_unlisted());
        limit(&mut unlisted, None);
        let unlisted_scopes = scopes(&KeyRights::of_unlisted);
        let listed = entries.iter().flat_map(|entry| entry.rights.listed());
        let hosts: BTreeSet<&HostName> =
            listed.chain(of_hosts.into_iter().flat_map(BTreeMap::keys)).collect();
        let mut of_host = |host: &HostName| {
            let mut entries = seen(&|entry| entry.rights.of(host));
            limit(&mut entries, meters_of_hosts.get(host).copied());
            (host.clone(), add(entries, scopes(&|keys| keys.of(host))))
        };
        let listed: BTreeMap<_, _> = hosts.into_iter().map(&mut of_host).collect();
        let unlisted_is_whole = unlisted == whole && unlisted_scopes.is_empty();
        let whole = add(whole.to_vec(), Vec::new());
        let unlisted = if unlisted_is_whole { whole } else { add(unlisted, unlisted_scopes) };
        self.views_of.insert(subsystem, SubsystemViews { whole, unlisted, listed });
    }

    /// The namespaces of a subsystem as `host` sees them, until the table is replaced.
    pub(crate) fn view_of(&self, subsystem: SubsystemId, host: &HostName) -> ViewIndex {
        let Some(views) = self.views_of.get(&subsystem) else { return ViewIndex::NONE };
        views.listed.get(host).copied().unwrap_or(views.unlisted)
    }

    /// All namespaces of a subsystem, until the table is replaced.
    pub(crate) fn whole(&self, subsystem: SubsystemId) -> ViewIndex {
        self.views_of.get(&subsystem).map_or(ViewIndex::NONE, |views| views.whole)
    }

    /// Whether the subsystem has namespaces of blocks, be they in this view or not.
    pub(crate) fn is_beside_blocks(&self, view: ViewIndex) -> bool {
        self.views.get(view.0 as usize).is_some_and(|view| view.is_beside_blocks)
    }

    /// Whether the subsystem has namespaces of keys and values, be they in this view or not.
    pub(crate) fn is_beside_keys(&self, view: ViewIndex) -> bool {
        self.views.get(view.0 as usize).is_some_and(|view| view.is_beside_keys)
    }

    /// How far commands without a guaranteed rate stand back.
    pub(crate) fn pressure(&self) -> &Arc<Pressure> {
        &self.table.pressure
    }

    /// A namespace whose commands have rate limits.
    pub(crate) fn limited(&self, number: u32) -> Option<Limited> {
        self.limited.get(number as usize).copied()
    }

    /// As [`find`](Self::find), without regard to rate limits.
    #[inline]
    pub(crate) fn find_unlimited(&self, view: ViewIndex, nsid: Nsid) -> Found {
        self.unlimited(self.find(view, nsid))
    }

    #[inline]
    fn unlimited(&self, found: Found) -> Found {
        match found {
            Found::Limited(number) => self.limited(number).map_or(Found::Missing, |limited| limited.found),
            found => found,
        }
    }

    /// The target of `nsid` in a view.
    #[inline]
    pub(crate) fn find(&self, view: ViewIndex, nsid: Nsid) -> Found {
        let Some(View { entries: view, .. }) = self.views.get(view.0 as usize) else { return Found::Missing };
        // NSIDs 1, 2, 3 … are found at their own index.
        let guess = (nsid.get() as usize).wrapping_sub(1);
        match view.get(guess) {
            Some(entry) if entry.0 == nsid => entry.1,
            _ => match view.binary_search_by_key(&nsid, |entry| entry.0) {
                Ok(at) => view[at].1,
                Err(_) => Found::Missing,
            },
        }
    }

    /// The keys of a namespace that a host may use; `None` for all.
    #[inline]
    pub(crate) fn key_scope(&self, view: ViewIndex, nsid: Nsid) -> Option<&Arc<KeyScope>> {
        let View { scopes, .. } = self.views.get(view.0 as usize)?;
        scopes.iter().find(|(of, _)| *of == nsid).map(|(_, scope)| scope)
    }

    /// Where this reactor counts what hosts do with a namespace.
    #[inline]
    pub(crate) fn traffic(&self, at: AttachedIndex) -> Option<&ReactorTraffic> {
        self.slots.get(at.0 as usize)?.as_ref()?.traffic.of(self.reactor)
    }

    /// As [`traffic`](Self::traffic), for the namespace that a command names.
    pub(crate) fn traffic_of(&self, view: Option<ViewIndex>, nsid: Nsid) -> Option<&ReactorTraffic> {
        self.traffic(self.find_unlimited(view?, nsid).attached()?)
    }

    /// The counters of all reactors for the namespace that a command names.
    pub(crate) fn shared_traffic_of(
        &self,
        view: Option<ViewIndex>,
        nsid: Nsid,
    ) -> Option<&Arc<NamespaceTraffic>> {
        let at = self.find_unlimited(view?, nsid).attached()?;
        Some(&self.slots[at.0 as usize].as_ref()?.traffic)
    }

    /// All namespaces of a view that can be used.
    pub(crate) fn all_of(&self, view: ViewIndex) -> Vec<AttachedIndex> {
        let view = self.views.get(view.0 as usize);
        let entries = view.into_iter().flat_map(|view| &view.entries);
        entries.filter_map(|(_, found)| self.unlimited(*found).attached()).collect()
    }

    /// The place of this namespace.
    pub(crate) fn by_id(&self, id: NamespaceId) -> Option<AttachedIndex> {
        self.by_id.get(&id).copied()
    }

    /// As [`by_id`](Self::by_id), also a namespace that has left the table and in which something still runs.
    pub(crate) fn by_id_or_leaving(&self, id: NamespaceId) -> Option<AttachedIndex> {
        let is_it = |slot: &Option<Attached>| slot.as_ref().is_some_and(|attached| attached.id == id);
        let leaving = || self.slots.iter().position(is_it);
        self.by_id(id).or_else(|| u32::try_from(leaving()?).ok().map(AttachedIndex))
    }

    /// # Panics
    /// If it was released: a running command keeps its namespace attached.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: AttachedIndex) -> &mut Attached {
        self.slots[at.0 as usize].as_mut().expect("a namespace stays while something runs in it")
    }

    /// The blocks of a namespace that was [found](Self::find) to have blocks.
    ///
    /// # Panics
    /// As [`get_mut`](Self::get_mut), or if it has none.
    #[inline]
    pub(crate) fn blocks_mut(&mut self, at: AttachedIndex) -> &mut Blocks {
        self.get_mut(at).blocks().expect("a command of the NVM command set is on blocks")
    }

    /// The keys of a namespace that was [found](Self::find) to have keys and values.
    ///
    /// # Panics
    /// As [`get_mut`](Self::get_mut), or if it has none.
    pub(crate) fn keys_mut(&mut self, at: AttachedIndex) -> &mut Keys {
        self.get_mut(at).keys().expect("a command of the key-value command set is on keys")
    }

    /// The keys of the namespace of this name, if it is attached.
    pub(crate) fn keys_of(&mut self, id: NamespaceId) -> Option<&mut Keys> {
        let at = self.by_id(id)?;
        self.get_mut(at).keys()
    }

    /// Whether keys and values are behind a namespace.
    pub(crate) fn has_keys(&self, at: AttachedIndex) -> bool {
        let attached = self.slots.get(at.0 as usize).and_then(Option::as_ref);
        attached.is_some_and(|attached| matches!(attached.backing, Backing::Keys(_)))
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
            || self.slots.iter().flatten().any(|attached| {
                matches!(&attached.backing, Backing::Blocks(blocks) if blocks.exclusions.has_unreported())
            })
    }

    /// Operations under way in all namespaces.
    pub(crate) fn running_count(&self) -> usize {
        self.slots.iter().flatten().map(|attached| attached.running as usize).sum()
    }

    /// Ranges of blocks of all namespaces that writes are kept out of.
    pub(crate) fn exclusion_count(&self) -> usize {
        let count = |attached: &Attached| match &attached.backing {
            Backing::Blocks(blocks) => blocks.exclusions.count(),
            Backing::Keys(_) => 0,
        };
        self.slots.iter().flatten().map(count).sum()
    }

    /// The next holder that need not wait for writes to a removed namespace any more.
    pub(crate) fn take_released(&mut self) -> Vec<(u16, u64)> {
        std::mem::take(&mut self.released)
    }

    /// Something begins to run.
    pub(crate) fn begin(&mut self, at: AttachedIndex) {
        self.get_mut(at).running += 1;
    }

    /// An operation has ended. Returns whether it was the last one that any removed namespace waited for.
    pub(crate) fn end(&mut self, at: AttachedIndex) -> bool {
        let attached = self.get_mut(at);
        attached.running -= 1;
        if attached.running > 0 || !attached.is_removed {
            return false;
        }
        self.detach(at);
        self.leaving -= 1;
        self.leaving == 0
    }

    /// Releases a removed namespace in which nothing runs: holders that waited for its writes wait no more.
    fn detach(&mut self, at: AttachedIndex) {
        let attached = self.slots[at.0 as usize].take();
        if let Some(Attached { backing: Backing::Blocks(blocks), .. }) = attached {
            self.released.extend(blocks.exclusions.unreported());
        }
    }

    /// Whether nothing of an older table is in use, and which version is.
    pub(crate) fn settled_version(&self) -> Option<u64> {
        (self.leaving == 0).then_some(self.table.version)
    }
}

#[cfg(test)]
mod tests {
    use store::{MemorySettings, MemoryStore};

    use super::*;
    use crate::messages::message::Lock;
    use crate::objects::access::HostRights;

    fn table_of_one_namespace() -> NamespaceTable {
        let settings = MemorySettings {
            bytes: 1 << 16,
            block_bytes: 512,
            is_read_only: false,
            is_shared: false,
            huge_pages: false,
            page_bytes: 4096,
        };
        let entry = NamespaceEntry {
            nsid: Nsid::new(1),
            id: NamespaceId(1),
            store: Store::Blocks(Arc::new(MemoryStore::new(&settings).expect("a little memory"))),
            rights: HostRights::ALL,
            traffic: Arc::new(NamespaceTraffic::new(1)),
            meter: None,
        };
        let subsystems = [(SubsystemId(1), vec![entry])].into();
        NamespaceTable { version: 1, subsystems, ..NamespaceTable::default() }
    }

    #[test]
    fn a_holder_waits_no_more_for_writes_to_a_removed_namespace() {
        for ends_before_removal in [true, false] {
            let mut namespaces = Attachments::default();
            let empty = Arc::new(NamespaceTable { version: 2, ..NamespaceTable::default() });
            namespaces.replace(Arc::new(table_of_one_namespace()), 0, Moment::default());
            let at = namespaces.by_id(NamespaceId(1)).expect("attached");
            namespaces.begin(at);
            let lock = |number| Lock { holder: (1, number), namespace: NamespaceId(1), blocks: 0..4 };
            namespaces.blocks_mut(at).exclusions.exclude(&lock(7));
            let mut waiting = vec![(1, 7)];
            if ends_before_removal {
                assert!(!namespaces.end(at), "it is not removed");
                namespaces.replace(empty, 0, Moment::default());
            } else {
                namespaces.replace(empty, 0, Moment::default());
                assert_eq!(namespaces.take_released(), [], "its write is under way");
                // One that comes only now waits for it as well.
                assert_eq!(namespaces.by_id_or_leaving(NamespaceId(1)), Some(at));
                namespaces.blocks_mut(at).exclusions.exclude(&lock(8));
                waiting.push((1, 8));
                assert!(namespaces.end(at), "nothing else leaves");
            }
            assert!(!namespaces.is_there(at) && namespaces.has_exclusions());
            assert_eq!(namespaces.by_id_or_leaving(NamespaceId(1)), None);
            assert_eq!(namespaces.take_released(), waiting, "ends before: {ends_before_removal}");
        }
    }
}
