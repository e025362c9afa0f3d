//! The key-value namespace of a run: its storage, its clients of both protocols, and their results.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use host_core::key_value::PartitionMap;
use host_core::{Command as HostCommand, Completion, Failure, KeyValueNamespace, Pin};
use kv::log::Sync;
use store::{FileStore, Geometry, KeyValueFileSettings, KeyValueSettings, KeyValueStore, OpenError, Store};
use subsystem::access::HostRights;
use subsystem::message::{NewNamespace, Step};
use subsystem::rate_limit::RateLimits;
use wire::id::Nsid;
use wire::kv::Key;
use wire::kv::operation::{AtomicFunction, AtomicOperation, ElementCode, VectorComparison, VectorFunction};
use wire::status::Status;
use wire::uuid::Uuid;

use super::log_failure::{log_failed_ns, refusals};
use super::open_value::{OpenValue, PART_COUNT_MAX, Part};
use super::pair_command::{Half, OpenBatch, Verb, Walk, draw_mode};
use super::{Stage, World};
use crate::coverage::Point;
use crate::host::SUBSYSTEM;
use crate::key_names::Collision;
use crate::memcached_client::{MemcachedClient, Task};
use crate::pair_model::{Action, Answer, Crash, Mode, Origin, PairModel, Vector, VectorWork, value};
use crate::pair_settings::{BLOCK_BYTES, MemoryPressure, PairDurability, PairSettings};
use crate::random::Random;
use crate::scenario::{Fault, MS, SECOND};
use crate::shared::disk::{LOG_FILE, Trouble};
use crate::shared::{Actor, Event, Shared};
use crate::user_buffer::UserBuffer;

/// Its number in the subsystem.
pub(super) const NSID: Nsid = Nsid::new(5);

/// One batch among this number of key-value commands of hosts.
const BATCH_ONE_IN: u64 = 10;

/// One value whose key is in the data of another command among this number of the others, where they are.
const VALUE_ONE_IN: u64 = 2;

/// One pin among this number of the others.
const PIN_ONE_IN: u64 = 12;

/// Maximum time until lost commands take effect, once everything that may hold them up has passed, ns.
const LATE_NS: u64 = 10 * SECOND;

/// Maximum time until a write that found no space is repeated, and succeeds or fails again, ns.
const REPEATED_NS: u64 = 2 * SECOND;

/// The log has nothing to write any more if it has written nothing for this time, ns.
const IDLE_NS: u64 = 5 * MS;

/// A key-value command of a host.
#[derive(Debug)]
pub(super) struct PairCommand {
    pub(super) host: usize,
    pub(super) lane: usize,
    pub(super) begin_ns: u64,
    /// How often its lane had lost its connection when it began, and its host its association.
    pub(super) loss_count: u32,
    host_loss_count: u32,
    /// Of the latter, those that a flush had covered.
    pub(super) covered_losses: u32,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// A command on a key, as the model knows it, and perhaps its second execution.
    OnKey {
        key: usize,
        id: u64,
        again: Option<u64>,
        verb: Verb,
    },
    /// A List of all keys: a look at each of them.
    List {
        looks: Vec<(usize, u64)>,
    },
    /// A page of a List: a look at each key that no page before has had.
    Page {
        /// Which List it is of.
        walk: u64,
        looks: Vec<(usize, u64)>,
    },
    Flush,
    /// A half of a batch.
    Batch {
        half: Half,
        /// Which batch it is.
        batch: u64,
    },
    /// A command of those that move a value.
    Value {
        part: Part,
        /// The number of the first of them.
        value: u64,
    },
}

/// The key-value namespace.
pub(crate) struct Pairs {
    pub(super) settings: PairSettings,
    pub(super) model: PairModel,
    clients: Vec<MemcachedClient>,
    /// Commands that each of them has sent.
    sent_counts: Vec<u64>,
    first_actor: Actor,
    /// Commands of hosts that are out, by number.
    commands: BTreeMap<u64, PairCommand>,
    /// Batches of which a half is out, by the number of the first one.
    pub(super) batches: BTreeMap<u64, OpenBatch>,
    /// Values of which a command is out, by the number of the first one.
    pub(super) values: BTreeMap<u64, OpenValue>,
    /// Lists in pages, by host and lane.
    pub(super) walks: BTreeMap<(usize, usize), Walk>,
    store: Option<Store>,
    /// Since when the log has had nothing to do.
    idle_since_ns: Option<u64>,
    /// When the log was last looked at.
    looked_ns: u64,
    /// When the power went, until the target starts.
    cut_ns: Option<u64>,
}

/// The keys of a lane: those of the partition that it is near.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnKeys {
    map: PartitionMap,
    lanes: u16,
    lane: u16,
}

impl Pairs {
    /// A key that was drawn, or the next one that is the lane's own.
    pub(super) fn own_key(&self, drawn: usize, own: Option<OwnKeys>) -> usize {
        let Some(OwnKeys { map, lanes, lane }) = own else { return drawn };
        let is_own = |at: &usize| map.lane_of(self.model.name(*at).as_bytes(), lanes) == Some(lane);
        (drawn..self.settings.key_count).chain(0..drawn).find(is_own).unwrap_or(drawn)
    }

    pub(super) fn new(settings: PairSettings, seed: u64, first_actor: Actor) -> Self {
        let client = |index| MemcachedClient::new(&settings, seed, index, first_actor + index);
        Self {
            model: PairModel::new(&settings),
            clients: (0..settings.client_count).map(client).collect(),
            sent_counts: vec![0; settings.client_count],
            first_actor,
            commands: BTreeMap::new(),
            batches: BTreeMap::new(),
            values: BTreeMap::new(),
            walks: BTreeMap::new(),
            store: None,
            idle_since_ns: None,
            looked_ns: 0,
            cut_ns: None,
            settings,
        }
    }

    /// The step that adds it to a target which starts. Its file is opened as it is on the disk.
    pub(super) fn step(&mut self, shared: &mut Shared, target_count: u64) -> Step {
        let store = match open(&self.settings, shared, target_count) {
            Ok(store) => Store::Keys(Arc::new(store)),
            Err(error) => panic!("a file of that size: {error}"),
        };
        let reactor_count = usize::from(shared.scenario.target.reactor_count);
        if self.settings.durability == PairDurability::Memory {
            store.set_reactor_count(reactor_count).expect("memory for each");
        }
        shared.log_disk.forgive();
        if let Some(cut_ns) = self.cut_ns.take() {
            self.model.on_boot(cut_ns, shared.now_ns, shared.clocks.is_right);
        }
        self.store = Some(store.clone());
        let namespace = NewNamespace {
            store,
            storage: "pairs".into(),
            uuid: Uuid::from_bytes([5; 16]),
            nguid: [5; 16],
            rights: HostRights::ALL,
            limits: RateLimits::default(),
        };
        Step::AddNamespace { subsystem: SUBSYSTEM.parse().expect("a name"), nsid: NSID, namespace }
    }

    /// The target is down.
    pub(super) fn on_down(&mut self, shared: &mut Shared, is_power_cut: bool, held_until_ns: u64) {
        self.look_for_space(shared);
        self.end_walks(shared.now_ns);
        self.store = None;
        self.idle_since_ns = None;
        // A disk that fails loses changes that were not durable.
        let has_failed = log_failed_ns(shared).is_some();
        let crash = if is_power_cut || has_failed { Crash::PowerCut } else { Crash::Kill };
        if is_power_cut {
            shared.log_disk.on_power_cut(&mut shared.random);
            shared.clocks.reboot(shared.scenario.chance, shared.now_ns);
            self.cut_ns = Some(shared.now_ns);
        } else {
            let goes_on = shared.scenario.target.writes_outlive_kill;
            shared.log_disk.on_kill(&mut shared.random, goes_on, held_until_ns);
        }
        self.model.on_crash(crash, shared.now_ns);
    }

    /// The commands of hosts that are out: each with its host and lane.
    pub(super) fn of_hosts(&self) -> impl Iterator<Item = (u64, usize, usize)> {
        self.commands.iter().map(|(number, command)| (*number, command.host, command.lane))
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = usize> {
        self.clients.iter().filter_map(MemcachedClient::connection)
    }

    /// Whether nothing is out.
    pub(super) fn is_idle(&self) -> bool {
        self.commands.is_empty() && self.clients.iter().all(MemcachedClient::is_idle)
    }

    /// Whether the first client has read every key.
    pub(super) fn has_read(&self) -> bool {
        self.clients.first().is_none_or(MemcachedClient::has_read)
    }

    pub(super) fn are_clients_closed(&self) -> bool {
        self.clients.iter().all(MemcachedClient::is_closed)
    }

    /// Since when every command is refused that begins, as the log has failed.
    pub(super) fn closed_since_ns(&self) -> Option<u64> {
        self.model.closed_since_ns
    }

    /// The commands that are out, for a report.
    pub(super) fn left(&self) -> String {
        format!("{:?} and {:?}", self.commands, self.model.pending())
    }

    /// Checks whether the log has no space, had none since the last check, or may still have none: answers may come
    /// late.
    fn look_for_space(&mut self, shared: &Shared) -> bool {
        let looked_ns = std::mem::replace(&mut self.looked_ns, shared.now_ns);
        let lacks_space = no_space_until_ns(shared).is_some_and(|until_ns| looked_ns < until_ns);
        self.model.set_lacks_space(lacks_space);
        lacks_space
    }

    /// Checks whether the log is idle, and which lost commands cannot take effect any more.
    fn watch(&mut self, shared: &Shared) {
        let now_ns = shared.now_ns;
        let order_ns = shared.scenario.order_ns_max();
        let lacks_space = self.look_for_space(shared);
        let failed_ns = log_failed_ns(shared);
        self.model.closed_since_ns = failed_ns.map(|at_ns| at_ns + 2 * order_ns);
        self.model.refusals = refusals(shared);
        // A read that failed may be one of cleaning: the log has ended then, with changes that are not written.
        let failed_read_ns = shared.log_disk.first_trouble_ns(Trouble::Read, shared.started_ns);
        // The log's operations wait behind those of other files.
        if lacks_space
            || failed_ns.is_some()
            || failed_read_ns.is_some()
            || shared.log_disk.running_count() > 0
            || shared.disk.is_full()
            || self.store.is_none()
        {
            self.idle_since_ns = None;
        } else {
            let since_ns = *self.idle_since_ns.get_or_insert(now_ns);
            if now_ns - since_ns > IDLE_NS + order_ns {
                self.model.on_idle_log(since_ns);
            }
        }
        let late_ns = LATE_NS + 4 * order_ns + slow_ns(shared);
        // A command that waits for memory waits for the log, which waits behind operations on other files.
        let held_until_ns = shared.disk.held_until_ns(now_ns).max(shared.log_disk.held_until_ns(now_ns));
        // Commands that a client had sent before it gave its connection up arrive when the network is whole again.
        let held_until_ns = held_until_ns.max(shared.network.partition_until_ns);
        if !lacks_space && held_until_ns + late_ns < now_ns {
            self.model.rule_out(now_ns - late_ns, now_ns);
        }
    }
}

/// Time that slow operations of the disk may add, ns.
pub(super) fn slow_ns(shared: &Shared) -> u64 {
    let disk = &shared.scenario.disk;
    if disk.slow > 0 { 4 * disk.slow_ns } else { 0 }
}

/// Until when a write that found no space may be on its way again, if there was one.
pub(super) fn no_space_until_ns(shared: &Shared) -> Option<u64> {
    let repeated_ns = REPEATED_NS + 4 * shared.scenario.order_ns_max() + slow_ns(shared);
    let at_ns = shared.log_disk.last_trouble_ns(Trouble::NoSpace)?;
    // The log's operations wait behind those of other files.
    let begun_ns = if shared.disk.is_full() { shared.now_ns } else { shared.disk.hung_until_ns };
    Some(at_ns.max(begun_ns) + repeated_ns)
}

/// Opens its storage for a target that starts.
fn open(
    settings: &PairSettings,
    shared: &mut Shared,
    target_count: u64,
) -> Result<KeyValueStore, store::OpenError> {
    let number = shared.scenario.seed << 32 | target_count << 16;
    let hash_seed = settings.hash_seed(number);
    let (item_bytes, allows_flush) = (settings.item_bytes_max as u32, settings.allows_flush);
    let sync = match settings.durability {
        PairDurability::Memory => {
            let settings = KeyValueSettings {
                bytes: settings.bytes,
                evicts: true,
                item_bytes,
                allows_flush,
                prefaults: false,
            };
            return Ok(KeyValueStore::simulated_memory(settings, hash_seed));
        }
        PairDurability::Always => Sync::Always,
        PairDurability::Batch => Sync::Batch,
        PairDurability::None => Sync::None,
    };
    let file_settings = KeyValueFileSettings {
        path: PathBuf::from("pairs"),
        memory_bytes: Some(settings.memory_bytes),
        sync,
        allows_flush,
        item_bytes,
        prefaults: false,
    };
    let geometry = Geometry::new(BLOCK_BYTES as u32, settings.bytes / BLOCK_BYTES as u64);
    let below = Arc::new(FileStore::simulated(shared.log_disk.open(LOG_FILE), &geometry));
    let reactor_count = usize::from(shared.scenario.target.reactor_count);
    let head_bytes = KeyValueStore::simulated_head_bytes(reactor_count);
    shared.log_disk.change_first(head_bytes, |head| {
        KeyValueStore::simulated_file(file_settings, below, head, reactor_count, (number, hash_seed))
    })
}

impl World {
    /// The wall clock of the target's machine is set, or the machine is suspended.
    pub(super) fn change_clocks(&mut self, fault: Fault) {
        let Some(pairs) = &mut self.pairs else { return };
        pairs.model.forget_pins();
        match fault {
            Fault::SetClock { ahead_s } => {
                let step_s = self.shared.clocks.set_wall(ahead_s);
                pairs.model.on_wall_set(step_s);
                let is_reading = pairs.store.as_ref().is_some_and(|store| store.recovery().is_some());
                if is_reading && self.shared.clocks.is_rebooted() {
                    pairs.model.on_wall_set_in_recovery();
                }
            }
            Fault::Suspend { seconds } => {
                self.shared.clocks.suspend(seconds);
                pairs.model.suspended_s += seconds.cast_signed();
            }
            _ => {}
        }
    }

    /// The operator changes the memory of the key-value namespace.
    pub(super) fn resize_pairs(&mut self, share: u8) {
        let is_late = self.progress.stage > Stage::Settle || !self.target.machine.is_first();
        if is_late || !self.target.is_up() {
            return;
        }
        let Some(pairs) = &mut self.pairs else { return };
        let Some(Store::Keys(store)) = &pairs.store else { return };
        pairs.model.forget_pins();
        let (low, high) = pairs.settings.memory_range(self.shared.scenario.target.reactor_count.into());
        let bytes = low + (high - low) * u64::from(share) / 255;
        match store.set_memory(bytes) {
            Ok(()) => self.shared.say(|| format!("pairs have {bytes} bytes of memory")),
            // Pairs that may not be evicted need more.
            Err(OpenError::MemoryInUse { .. }) => return,
            Err(error) => return self.shared.find(format!("cannot set {bytes} bytes of memory: {error}")),
        }
        let subsystem = SUBSYSTEM.parse().expect("a name");
        let storage = Some("pairs".into());
        self.apply(vec![Step::StorageChanged { subsystem, nsid: NSID, storage }]);
    }

    /// Runs an actor if it is a client of the memcached protocol; returns whether it is.
    pub(super) fn run_client(&mut self, actor: Actor) -> bool {
        let Some(pairs) = &mut self.pairs else { return false };
        let Some(index) = actor.checked_sub(pairs.first_actor) else { return false };
        let task =
            match self.progress.stage {
                Stage::Work => {
                    let left = pairs.settings.client_command_limit.saturating_sub(pairs.sent_counts[index]);
                    Task::Work(left.min(
                        self.shared.scenario.load.command_count.saturating_sub(self.commands.turn_count),
                    ))
                }
                Stage::Settle | Stage::Flush => Task::Settle,
                Stage::Read if index == 0 => Task::Read,
                Stage::Read => Task::Settle,
                Stage::Close | Stage::Stop | Stage::Over => Task::Close,
            };
        pairs.watch(&self.shared);
        let acknowledged_count = pairs.model.acknowledged_count;
        let client = &mut pairs.clients[index];
        client.run(&mut self.shared, &mut pairs.model, &pairs.settings, task);
        let (sent_count, answer_count) = (client.sent_count, client.answer_count);
        (client.sent_count, client.answer_count) = (0, 0);
        let has_acknowledged = pairs.model.acknowledged_count > acknowledged_count;
        pairs.sent_counts[index] += sent_count;
        if task != Task::Read {
            self.commands.turn_count += sent_count;
        }
        self.commands.ended_count += answer_count;
        if sent_count > 0 {
            self.fire_faults();
        }
        if has_acknowledged {
            self.cut_at_answer();
        }
        true
    }

    /// A change was answered: a power cut that waits for that comes now.
    fn cut_at_answer(&mut self) {
        if self.progress.stage == Stage::Work
            && self.choice.one_in(4)
            && let Some(at) = self.faults.held_cuts.pop()
        {
            self.shared.at(self.shared.now_ns, Event::Fault(at));
        }
    }

    /// Submits a key-value command of a host, if there is such a namespace. Returns whether it did.
    pub(super) fn submit_on_key(&mut self, host: usize, lane: usize) -> bool {
        let Some(namespace) = self.hosts[host].pairs else { return false };
        let Some(settings) = self.pairs.as_ref().map(|pairs| &pairs.settings) else { return false };
        let (has_paired, has_chunks) = (settings.has_paired, settings.has_chunks());
        if !self.choice.one_in(3) && !has_chunks {
            return false;
        }
        self.commands.turn_count += 1;
        // Draws of their own leave the others as they are.
        let mut rare = Random::of(self.shared.scenario.chance, 46, &[self.commands.next]);
        if rare.one_in(BATCH_ONE_IN) && self.hosts[host].lanes[lane].core.has_room(2) {
            self.submit_batch((host, lane), &namespace, &mut rare);
            return true;
        }
        let flags_due = self.flags_due((host, lane));
        if has_paired
            && (rare.one_in(VALUE_ONE_IN) || has_chunks)
            && self.hosts[host].lanes[lane].core.has_room(PART_COUNT_MAX + flags_due)
        {
            self.submit_value((host, lane), &namespace, &mut rare);
            return true;
        }
        if let Some(pairs) = &mut self.pairs
            && let Some((command, buffer, what)) =
                pairs.next_page((host, lane), &namespace, &mut rare, self.shared.now_ns)
        {
            self.submit_one_on_key((host, lane), command, Some(buffer.into()), what);
            return true;
        }
        let own = self.own_keys(lane, &namespace);
        if rare.one_in(PIN_ONE_IN)
            && let Some(pairs) = &mut self.pairs
        {
            if let Some((command, what)) = pairs.pin_one((&namespace, own), &mut rare, self.shared.now_ns) {
                self.submit_one_on_key((host, lane), command, None, what);
            }
            return true;
        }
        if let Some((command, buffer, what)) = self.choose_on_key(&namespace, own) {
            self.submit_one_on_key((host, lane), command, buffer.map(Into::into), what);
        }
        true
    }

    /// The keys of a lane, if its host divides them among its lanes.
    pub(super) fn own_keys(&mut self, lane: usize, namespace: &KeyValueNamespace) -> Option<OwnKeys> {
        let hosts = &self.shared.scenario.hosts;
        let (lanes, is_followed) = (hosts.lane_count, hosts.follows_partitions);
        let map = namespace.partition_map().filter(|map| map.count() > 1 && map.count() <= lanes);
        let map = map.filter(|_| is_followed)?;
        self.shared.coverage.reach(Point::Form("key-value command on the lane near its partition"));
        Some(OwnKeys { map, lanes, lane: lane as u16 })
    }

    /// Submits a key-value command.
    pub(super) fn submit_one_on_key(
        &mut self,
        (host, lane): (usize, usize),
        command: HostCommand,
        buffer: Option<UserBuffer>,
        what: What,
    ) {
        let number = self.commands.next;
        self.commands.next += 1;
        self.shared.say(|| format!("host {host} lane {lane}: {number} is {what:?}"));
        let (begin_ns, at) = (self.shared.now_ns, &self.hosts[host]);
        let (loss_count, host_loss_count) = (at.lanes[lane].loss_count, at.loss_count);
        let covered_losses = self.records[host].covered_losses;
        let command_of =
            PairCommand { host, lane, begin_ns, loss_count, host_loss_count, covered_losses, what };
        if let Some(pairs) = &mut self.pairs {
            if let What::OnKey { key, .. } = &command_of.what
                && pairs.model.collision(*key) == Some(Collision::Hash)
            {
                let form = "key-value command on a key with the hash of another";
                self.shared.coverage.reach(Point::Form(form));
            }
            pairs.commands.insert(number, command_of);
        }
        if let Err(refused) = self.hosts[host].lanes[lane].core.submit(command, buffer, number) {
            self.shared.find(format!("command {number} was refused: {}", refused.reason));
        }
    }

    fn choose_on_key(
        &mut self,
        namespace: &KeyValueNamespace,
        own: Option<OwnKeys>,
    ) -> Option<(HostCommand, Option<Vec<u8>>, What)> {
        let (choice, now_ns) = (&mut self.choice, self.shared.now_ns);
        let pairs = self.pairs.as_mut()?;
        if choice.one_in(12) {
            return Some((namespace.flush(), None, What::Flush));
        }
        if choice.one_in(16) && pairs.settings.pressure == MemoryPressure::None {
            return pairs.list(namespace, now_ns);
        }
        let at = pairs.own_key(choice.below(pairs.settings.key_count as u64) as usize, own);
        // Hosts have short keys only.
        let key = Key::new(pairs.model.name(at).as_bytes())?;
        if !pairs.model.has_room(at) {
            return None;
        }
        let value_bytes = namespace.value_bytes_max().min(pairs.settings.item_bytes_max as u32);
        let room = || Some(vec![0xee; value_bytes as usize]);
        let (verb, action, command, buffer) = match choice.below(14) {
            0..3 => {
                let retrieve = namespace.retrieve(&key, value_bytes).ok()?;
                (Verb::Retrieve, Action::Get, retrieve, room())
            }
            3 => (Verb::Exist, Action::Get, namespace.exist(&key), None),
            4 | 5 => (Verb::Delete, Action::Delete { is_told: false }, namespace.delete(&key), None),
            6 | 7 => {
                let operation = draw_atomic(choice);
                let command = namespace.atomic(&key, &operation).ok()?;
                (Verb::Atomic, Action::Atomic(operation), command, None)
            }
            8 | 9 => {
                let vector = draw_vector(choice, pairs.settings.value_bytes_max);
                let kind = vector.element;
                let (verb, command, buffer) = match &vector.work {
                    VectorWork::Scalar { function, operand, fetches: false } => {
                        let command = namespace.vector_scalar(&key, (kind, *function), *operand);
                        (Verb::VectorUpdate, command, None)
                    }
                    VectorWork::Scalar { function, operand, fetches: true } => {
                        let command = namespace.vector_fetch(&key, (kind, *function), *operand, value_bytes);
                        (Verb::VectorFetch, command, room())
                    }
                    VectorWork::Vector { function, operand } => {
                        let command = namespace.vector_vector(&key, (kind, *function), operand.len() as u32);
                        (Verb::VectorUpdate, command, Some(operand.to_vec()))
                    }
                    VectorWork::Reduce { function, initial } => {
                        let command = namespace.vector_reduce(&key, (kind, *function), *initial);
                        (Verb::VectorReduce { mask: vector.mask() }, command, None)
                    }
                    VectorWork::Filter { comparison, operand } => {
                        let command =
                            namespace.vector_filter(&key, (kind, *comparison), *operand, value_bytes);
                        (Verb::VectorFilter, command, room())
                    }
                };
                (verb, Action::Vector(vector), command.ok()?, buffer)
            }
            _ => {
                let length = pairs.draw_length(choice, namespace.value_bytes_max() as usize);
                let value: Rc<[u8]> = value(pairs.model.next_id, length);
                let (mode, options) = draw_mode(choice);
                let store = namespace.store(&key, length as u32, options).ok()?;
                let buffer = value.to_vec();
                (Verb::Store, Action::Store { mode, value, flags: 0, exptime: 0 }, store, Some(buffer))
            }
        };
        let may_repeat = self.shared.scenario.hosts.is_replayed
            && matches!(&action, Action::Delete { .. } | Action::Store { mode: Mode::Set, .. });
        let id = pairs.model.begin(at, action.clone(), Origin::Host, now_ns);
        let again = may_repeat.then(|| pairs.model.begin(at, action, Origin::Again, now_ns));
        Some((command, buffer, What::OnKey { key: at, id, again, verb }))
    }

    /// A command of a host has ended, if it is one on keys. Returns it if it is not.
    pub(super) fn on_pair_completion(
        &mut self,
        host: usize,
        lane: usize,
        completion: Completion<Vec<u8>>,
    ) -> Option<Completion<Vec<u8>>> {
        let Some(pairs) = &mut self.pairs else { return Some(completion) };
        let Some(command) = pairs.commands.remove(&completion.user) else { return Some(completion) };
        let (number, result) = (completion.user, completion.result);
        self.shared.trace.note(self.shared.now_ns, number);
        self.shared.say(|| format!("host {host} lane {lane}: {number} ends with {result:?}"));
        self.commands.ended_count += 1;
        if (command.host, command.lane) != (host, lane) {
            self.shared.find(format!("command {number} ends on another lane"));
            return None;
        }
        pairs.watch(&self.shared);
        let cause = result.err().and_then(|failure| self.cause_on_pairs(number, &command, failure));
        let Some(pairs) = &mut self.pairs else { return None };
        let acknowledged_count = pairs.model.acknowledged_count;
        let has_lost = self.hosts[host].lanes[lane].loss_count > command.loss_count;
        if let What::Batch { half, batch } = command.what {
            self.on_batch_completion((number, half, batch), &command, (has_lost, cause), completion);
            if self.pairs.as_ref().is_some_and(|pairs| pairs.model.acknowledged_count > acknowledged_count) {
                self.cut_at_answer();
            }
            return None;
        }
        if let What::Value { part, value } = command.what {
            self.on_value_completion((number, part, value), &command, (has_lost, cause), completion);
            if self.pairs.as_ref().is_some_and(|pairs| pairs.model.acknowledged_count > acknowledged_count) {
                self.cut_at_answer();
            }
            return None;
        }
        let is_flush = matches!(command.what, What::Flush);
        let host_loss_count = command.host_loss_count;
        let judged = pairs.judge(&mut self.shared, &command, has_lost, cause, completion);
        if is_flush {
            // A report of losses is for all namespaces.
            match result {
                Ok(_) => {
                    self.records[host].covered_losses =
                        self.records[host].covered_losses.max(host_loss_count);
                }
                Err(Failure::Unflushed) => self.model.excuse_host(host),
                Err(_) => self.model.on_failed_flush(host, None),
            }
        }
        let has_acknowledged = pairs.model.acknowledged_count > acknowledged_count;
        if let Err(finding) = judged {
            self.shared.find(format!("command {number}: {finding}"));
        }
        if has_acknowledged {
            self.cut_at_answer();
        }
        None
    }
}

/// An operation on a number.
pub(super) fn draw_atomic(choice: &mut Random) -> AtomicOperation {
    let function = choice.pick(&[
        AtomicFunction::ADD,
        AtomicFunction::ADD_UP_TO,
        AtomicFunction::TAKE_AWAY,
        AtomicFunction::MIN,
        AtomicFunction::MAX,
        AtomicFunction::AND,
        AtomicFunction::OR,
        AtomicFunction::XOR,
        AtomicFunction::SWAP,
        AtomicFunction::COMPARE_AND_SWAP,
    ]);
    // Small ones, so that comparisons hold now and then.
    let mut number = || if choice.one_in(3) { choice.next() } else { choice.below(4) };
    let operation = AtomicOperation { second: number(), ..AtomicOperation::new(function, number()) };
    let initial = number();
    let operation = if choice.one_in(2) { operation.or_create(initial) } else { operation };
    if choice.one_in(4) { operation.narrow() } else { operation }
}

/// A command on a vector of integers: how floating-point numbers are added is not promised to the last bit.
pub(super) fn draw_vector(choice: &mut Random, value_bytes_max: usize) -> Vector {
    let element = choice.pick(&[
        ElementCode::U8,
        ElementCode::U16,
        ElementCode::U32,
        ElementCode::U64,
        ElementCode::I8,
        ElementCode::I16,
        ElementCode::I32,
        ElementCode::I64,
    ]);
    let function = choice.pick(&[
        VectorFunction::ADD,
        VectorFunction::MIN,
        VectorFunction::MAX,
        VectorFunction::AND,
        VectorFunction::OR,
        VectorFunction::XOR,
    ]);
    let comparison = choice.pick(&[
        VectorComparison::LESS,
        VectorComparison::LESS_OR_EQUAL,
        VectorComparison::EQUAL,
        VectorComparison::NOT_EQUAL,
        VectorComparison::GREATER_OR_EQUAL,
        VectorComparison::GREATER,
    ]);
    let operand = if choice.one_in(2) { choice.next() } else { choice.below(256) };
    let work = match choice.below(5) {
        0 => VectorWork::Scalar { function, operand, fetches: false },
        1 => VectorWork::Scalar { function, operand, fetches: true },
        2 => {
            let length = choice.pick(&[4, 8, 8, 16]).min(value_bytes_max as u64);
            VectorWork::Vector { function, operand: value(operand, length as usize) }
        }
        3 => VectorWork::Reduce { function, initial: operand },
        _ => VectorWork::Filter { comparison, operand },
    };
    Vector { element, work }
}

impl Pairs {
    /// Pins a pair for a while.
    fn pin_one(
        &mut self,
        (namespace, own): (&KeyValueNamespace, Option<OwnKeys>),
        choice: &mut Random,
        now_ns: u64,
    ) -> Option<(HostCommand, What)> {
        let at = self.own_key(choice.below(self.settings.key_count as u64) as usize, own);
        let key = Key::new(self.model.name(at).as_bytes()).filter(|_| self.model.has_room(at))?;
        let seconds = choice.scaled(1, 60) as u32;
        let command = namespace.pin(&key, Pin::For { seconds }).ok()?;
        let id = self.model.begin(at, Action::Get, Origin::Host, now_ns);
        Some((command, What::OnKey { key: at, id, again: None, verb: Verb::Pin { seconds } }))
    }

    /// The answer of an outcome about its key; `None` if there is none. It came with the status of a failure, if a
    /// target sent one, or with a result and the beginning of a value.
    pub(super) fn answer(
        &self,
        (key, id): (usize, u64),
        verb: Verb,
        result: Result<u64, Option<Status>>,
        value: Option<Rc<[u8]>>,
    ) -> Option<Answer> {
        let is = |other: Status| matches!(result, Err(Some(status)) if status.is(other));
        match (verb, result) {
            (_, Ok(length)) if verb.brings() => {
                let start = value.unwrap_or_default();
                // Of a value that is longer than its room, the beginning comes.
                match length == start.len() as u64 {
                    true => Some(Answer::Found { value: Some(start), flags: None, cas: None }),
                    false => Some(Answer::Begins { length, start }),
                }
            }
            (Verb::ExistInBatch, Ok(length)) => Some(Answer::Begins { length, start: Rc::default() }),
            (Verb::Exist | Verb::Pin { .. }, Ok(_)) => {
                Some(Answer::Found { value: None, flags: None, cas: None })
            }
            (Verb::Store | Verb::Delete, Ok(_)) => Some(Answer::Done { cas: None }),
            (Verb::VectorReduce { mask }, Ok(element)) => Some(Answer::Number(element & mask)),
            (_, Ok(number)) => Some(Answer::Number(number)),
            (Verb::Store, _) if is(Status::KEY_DOES_NOT_EXIST) || is(Status::KEY_EXISTS) => {
                Some(Answer::NotStored)
            }
            (Verb::Delete, _) if is(Status::KEY_DOES_NOT_EXIST) => None,
            (_, _) if is(Status::KEY_DOES_NOT_EXIST) => Some(Answer::Missing),
            (Verb::Retrieve | Verb::Exist | Verb::ExistInBatch | Verb::Delete | Verb::Store, _)
                if is(Status::INVALID_VALUE_SIZE) =>
            {
                None
            }
            (_, _) if is(Status::INVALID_VALUE_SIZE) => Some(Answer::NotNumeric),
            (_, _) if is(Status::CAPACITY_EXCEEDED) && self.model.may_lack_space(key, id) => {
                Some(Answer::NoSpace)
            }
            (Verb::Retrieve | Verb::Exist | Verb::ExistInBatch | Verb::Pin { .. } | Verb::Delete, _) => None,
            (_, _) if is(Status::CAPACITY_EXCEEDED) => Some(Answer::NoMemory),
            _ => None,
        }
    }

    fn judge(
        &mut self,
        shared: &mut Shared,
        command: &PairCommand,
        has_lost: bool,
        cause: Option<&'static str>,
        completion: Completion<Vec<u8>>,
    ) -> Result<(), String> {
        let now_ns = shared.now_ns;
        let Completion { result, received, buffer, .. } = completion;
        let (key, id, again, verb) = match &command.what {
            What::OnKey { key, id, again, verb } => (*key, *id, *again, *verb),
            What::List { looks } => {
                let cause = if result.is_ok() { Some("done") } else { cause };
                let cause = cause.ok_or_else(|| unexplained("List", result))?;
                shared.coverage.reach(Point::End { command: "List", outcome: result.into(), cause });
                let buffer = buffer.ok_or("a List came back without its buffer")?;
                let listed = result.is_ok().then_some(&buffer[..received as usize]);
                return self.judge_list(looks, listed, now_ns);
            }
            What::Page { walk, looks } => {
                let cause = if result.is_ok() { Some("done") } else { cause };
                let cause = cause.ok_or_else(|| unexplained("List", result))?;
                shared.coverage.reach(Point::End {
                    command: "page of a List",
                    outcome: result.into(),
                    cause,
                });
                let buffer = buffer.ok_or("a List came back without its buffer")?;
                let listed = result.is_ok().then_some(&buffer[..received as usize]);
                return self.judge_page(shared, (command.host, command.lane), (*walk, looks), listed);
            }
            What::Batch { .. } | What::Value { .. } => {
                return Err("a part is judged with the others".into());
            }
            What::Flush => {
                let cause = if result.is_ok() { Some("done") } else { cause };
                let cause = cause.ok_or_else(|| unexplained("Flush", result))?;
                shared.coverage.reach(Point::End {
                    command: "Flush of pairs",
                    outcome: result.into(),
                    cause,
                });
                if result.is_ok() {
                    self.model.settle(command.begin_ns);
                }
                return Ok(());
            }
        };
        if let Some(again) = again {
            match has_lost {
                true => self.model.lose(key, again, now_ns),
                false => self.model.deny(key, again)?,
            }
        }
        let status = result.err().and_then(Failure::status);
        let is = |other: Status| status.is_some_and(|status| status.is(other));
        let value = match result {
            Ok(length) if verb.brings() => {
                let buffer = buffer.ok_or("a value came without its buffer")?;
                if u64::from(received) != length.min(buffer.len() as u64) {
                    return Err(format!("{received} bytes came of a value of {length}"));
                }
                Some(buffer[..received as usize].into())
            }
            _ => None,
        };
        let answer = self.answer((key, id), verb, result.map_err(|_| status), value);
        let is_pin_refused = matches!(verb, Verb::Pin { .. }) && is(Status::CAPACITY_EXCEEDED);
        let cause = cause.or_else(|| is_pin_refused.then_some("too much is pinned"));
        let cause = match &answer {
            Some(answer) => explanation(answer),
            None => cause.ok_or_else(|| unexplained(verb.name(), result))?,
        };
        shared.coverage.reach(Point::End { command: verb.name(), outcome: result.into(), cause });
        match answer {
            Some(answer) => {
                self.model.end(key, id, &answer, now_ns)?;
                if let (Verb::Pin { seconds }, Answer::Found { .. }) = (verb, answer) {
                    self.model.pin(key, now_ns, command.begin_ns + u64::from(seconds) * SECOND);
                }
                Ok(())
            }
            // Of one that was sent several times, others may have been done.
            None if is(Status::ABORT_REQUESTED) && again.is_none() => self.model.deny(key, id),
            None if result.is_err_and(Failure::may_have_happened) || status.is_some() => {
                self.model.lose(key, id, now_ns);
                Ok(())
            }
            None => self.model.deny(key, id),
        }
    }
}

/// Why a command has ended with an answer.
pub(super) fn explanation(answer: &Answer) -> &'static str {
    match answer {
        Answer::Done { .. }
        | Answer::Found { .. }
        | Answer::Begins { .. }
        | Answer::Ranges { .. }
        | Answer::Number(_) => "done",
        Answer::OtherValue(_) => "not as asked for",
        Answer::NotNumeric => "no such number or vector",
        Answer::Missing => "no such key",
        Answer::NotStored => "not as the key is",
        Answer::NoSpace => "no space",
        _ => "no memory",
    }
}

pub(super) fn unexplained(verb: &str, result: Result<u64, Failure>) -> String {
    format!("{verb} of pairs ended with {result:?}, which nothing explains")
}
