//! The key-value namespace of a run: its storage, its clients of both protocols, and what they find.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use host::{Command as HostCommand, Completion, Failure, KeyValueNamespace};
use kv::log::Sync;
use store::{FileStore, Geometry, KeyValueFileSettings, KeyValueSettings, KeyValueStore, Store};
use subsystem::message::{NewNamespace, Step};
use wire::id::Nsid;
use wire::kv::{Key, StoreOptions};
use wire::status::Status;
use wire::uuid::Uuid;

use super::{Stage, World};
use crate::coverage::Point;
use crate::host::SUBSYSTEM;
use crate::memcached_client::{MemcachedClient, Task, name};
use crate::pair_model::{Action, Answer, Crash, Mode, Origin, PairModel, value};
use crate::pair_settings::{BLOCK_BYTES, PairDurability, PairSettings};
use crate::scenario::{MS, SECOND};
use crate::shared::disk::{LOG_FILE, Trouble};
use crate::shared::{Actor, Event, Shared};

/// Its number in the subsystem.
const NSID: Nsid = Nsid::new(5);

/// Lost commands take effect for so long at most, once everything that may hold them up has passed, ns.
const LATE_NS: u64 = 10 * SECOND;

/// A write that found no space is repeated within so long, and succeeds or fails again, ns.
const REPEATED_NS: u64 = 2 * SECOND;

/// The log has nothing to write any more if it has written nothing for so long, ns.
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
    what: What,
}

#[derive(Debug)]
enum What {
    /// A command on a key, as the model knows it, and perhaps its second execution.
    OnKey {
        key: usize,
        id: u64,
        again: Option<u64>,
        verb: Verb,
    },
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Retrieve,
    Exist,
    Store,
    Delete,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Retrieve => "Retrieve",
            Self::Exist => "Exist",
            Self::Store => "Store",
            Self::Delete => "Delete",
        }
    }
}

/// The key-value namespace.
pub(crate) struct Pairs {
    settings: PairSettings,
    model: PairModel,
    clients: Vec<MemcachedClient>,
    /// Commands that each of them has sent.
    sent_counts: Vec<u64>,
    first_actor: Actor,
    /// Commands of hosts that are out, by number.
    commands: BTreeMap<u64, PairCommand>,
    store: Option<Store>,
    /// Since when the log has had nothing to do.
    idle_since_ns: Option<u64>,
    /// When the log was last looked at.
    looked_ns: u64,
}

impl Pairs {
    pub(super) fn new(settings: PairSettings, seed: u64, first_actor: Actor) -> Self {
        let client = |index| MemcachedClient::new(&settings, seed, index, first_actor + index);
        Self {
            model: PairModel::new(&settings),
            clients: (0..settings.client_count).map(client).collect(),
            sent_counts: vec![0; settings.client_count],
            first_actor,
            commands: BTreeMap::new(),
            store: None,
            idle_since_ns: None,
            looked_ns: 0,
            settings,
        }
    }

    /// The step that adds it to a target which starts. Its file is opened as it is on the disk.
    pub(super) fn step(&mut self, shared: &mut Shared, target_count: u64) -> Step {
        let store = match open(&self.settings, shared, target_count) {
            Ok(store) => Store::Keys(Arc::new(store)),
            Err(error) => panic!("a file of that size: {error}"),
        };
        let reactor_count = usize::from(shared.scenario.reactor_count);
        if self.settings.durability == PairDurability::Memory {
            store.set_reactor_count(reactor_count).expect("memory for each");
        }
        shared.log_disk.forgive();
        self.store = Some(store.clone());
        let namespace =
            NewNamespace { store, storage: "pairs".into(), uuid: Uuid::from_bytes([5; 16]), nguid: [5; 16] };
        Step::AddNamespace { subsystem: SUBSYSTEM.parse().expect("a name"), nsid: NSID, namespace }
    }

    /// The target is down.
    pub(super) fn on_down(&mut self, shared: &mut Shared, is_power_cut: bool, held_until_ns: u64) {
        self.look_for_space(shared);
        self.store = None;
        self.idle_since_ns = None;
        let crash = if is_power_cut { Crash::PowerCut } else { Crash::Kill };
        if is_power_cut {
            shared.log_disk.on_power_cut(&mut shared.random);
        } else {
            let goes_on = shared.scenario.writes_outlive_kill;
            shared.log_disk.on_kill(&mut shared.random, goes_on, held_until_ns);
        }
        self.model.on_crash(crash, shared.now_ns);
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

    /// What is out, for a report.
    pub(super) fn left(&self) -> String {
        format!("{:?} and {:?}", self.commands, self.model.pending())
    }

    /// Looks whether the log has no space, had none since the last look, or may still have none: answers may come late.
    fn look_for_space(&mut self, shared: &Shared) -> bool {
        let looked_ns = std::mem::replace(&mut self.looked_ns, shared.now_ns);
        let lacks_space = no_space_until_ns(shared).is_some_and(|until_ns| looked_ns < until_ns);
        self.model.set_lacks_space(lacks_space);
        lacks_space
    }

    /// Looks whether the log is idle, and which lost commands cannot take effect any more.
    fn watch(&mut self, shared: &Shared) {
        let now_ns = shared.now_ns;
        let order_ns = shared.scenario.order_ns_max();
        let lacks_space = self.look_for_space(shared);
        // The log's operations wait behind those of other files.
        if lacks_space || shared.log_disk.running_count() > 0 || shared.disk.is_full() || self.store.is_none()
        {
            self.idle_since_ns = None;
        } else {
            let since_ns = *self.idle_since_ns.get_or_insert(now_ns);
            if now_ns - since_ns > IDLE_NS + order_ns {
                self.model.on_idle_log(since_ns);
            }
        }
        let late_ns = LATE_NS + 4 * order_ns + slow_ns(shared);
        self.model.rule_out(now_ns.saturating_sub(late_ns), now_ns);
    }
}

/// What slow operations of the disk may add, ns.
fn slow_ns(shared: &Shared) -> u64 {
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
            return Ok(KeyValueStore::simulated_memory(settings, number));
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
    let reactor_count = usize::from(shared.scenario.reactor_count);
    let head_bytes = KeyValueStore::simulated_head_bytes(reactor_count);
    shared.log_disk.change_first(head_bytes, |head| {
        KeyValueStore::simulated_file(file_settings, below, head, reactor_count, number)
    })
}

impl World {
    /// Whether an actor is a client of the memcached protocol; it runs then.
    pub(super) fn run_client(&mut self, actor: Actor) -> bool {
        let Some(pairs) = &mut self.pairs else { return false };
        let Some(index) = actor.checked_sub(pairs.first_actor) else { return false };
        let task = match self.stage {
            Stage::Work => {
                let left = pairs.settings.client_command_limit.saturating_sub(pairs.sent_counts[index]);
                Task::Work(left.min(self.shared.scenario.command_count.saturating_sub(self.submitted_count)))
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
            self.submitted_count += sent_count;
        }
        self.ended_count += answer_count;
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
        if self.stage == Stage::Work
            && self.choice.one_in(4)
            && let Some(at) = self.held_cuts.pop()
        {
            self.shared.at(self.shared.now_ns, Event::Fault(at));
        }
    }

    /// Submits a key-value command of a host, if there is such a namespace. Says whether it did.
    pub(super) fn submit_on_key(&mut self, host: usize, lane: usize) -> bool {
        let Some(namespace) = self.hosts[host].pairs else { return false };
        if self.pairs.is_none() || !self.choice.one_in(3) {
            return false;
        }
        self.submitted_count += 1;
        let Some((command, buffer, what)) = self.choose_on_key(&namespace) else { return true };
        let number = self.next_command;
        self.next_command += 1;
        self.shared.say(|| format!("host {host} lane {lane}: {number} is {what:?}"));
        let (begin_ns, at) = (self.shared.now_ns, &self.hosts[host]);
        let (loss_count, host_loss_count) = (at.lanes[lane].loss_count, at.loss_count);
        let covered_losses = self.covered_losses[host];
        let command_of =
            PairCommand { host, lane, begin_ns, loss_count, host_loss_count, covered_losses, what };
        if let Some(pairs) = &mut self.pairs {
            pairs.commands.insert(number, command_of);
        }
        if let Err(refused) = self.hosts[host].lanes[lane].core.submit(command, buffer, number) {
            self.shared.find(format!("command {number} was refused: {}", refused.reason));
        }
        true
    }

    fn choose_on_key(
        &mut self,
        namespace: &KeyValueNamespace,
    ) -> Option<(HostCommand, Option<Vec<u8>>, What)> {
        let (choice, now_ns) = (&mut self.choice, self.shared.now_ns);
        let pairs = self.pairs.as_mut()?;
        if choice.one_in(12) {
            return Some((namespace.flush(), None, What::Flush));
        }
        let at = choice.below(pairs.settings.key_count as u64) as usize;
        // Hosts have short keys only.
        let key = Key::new(name(at).as_bytes())?;
        if !pairs.model.has_room(at) {
            return None;
        }
        let (verb, action, command, buffer) = match choice.below(10) {
            0..3 => {
                let length = namespace.value_bytes_max().min(pairs.settings.item_bytes_max as u32);
                let retrieve = namespace.retrieve(&key, length).ok()?;
                (Verb::Retrieve, Action::Get, retrieve, Some(vec![0xee; length as usize]))
            }
            3 => (Verb::Exist, Action::Get, namespace.exist(&key), None),
            4 | 5 => (Verb::Delete, Action::Delete { is_told: false }, namespace.delete(&key), None),
            _ => {
                let high = pairs.settings.value_bytes_max.min(namespace.value_bytes_max() as usize);
                let length = choice.scaled(1, high as u64);
                let value: Rc<[u8]> = value(pairs.model.next_id(), length as usize);
                let (mode, options) = match choice.below(6) {
                    0 => (Mode::Add, StoreOptions::MUST_NOT_EXIST),
                    1 => (Mode::Replace, StoreOptions::MUST_EXIST),
                    _ => (Mode::Set, StoreOptions::empty()),
                };
                let store = namespace.store(&key, length as u32, options).ok()?;
                let buffer = value.to_vec();
                (Verb::Store, Action::Store { mode, value, flags: 0, exptime: 0 }, store, Some(buffer))
            }
        };
        let may_repeat = self.shared.scenario.is_replayed
            && matches!(&action, Action::Delete { .. } | Action::Store { mode: Mode::Set, .. });
        let id = pairs.model.begin(at, action.clone(), Origin::Host, now_ns);
        let again = may_repeat.then(|| pairs.model.begin(at, action, Origin::Again, now_ns));
        Some((command, buffer, What::OnKey { key: at, id, again, verb }))
    }

    /// A command of a host has ended, if it is one on keys. Gives it back if it is not.
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
        self.ended_count += 1;
        if (command.host, command.lane) != (host, lane) {
            self.shared.find(format!("command {number} ends on another lane"));
            return None;
        }
        pairs.watch(&self.shared);
        let cause = result.err().and_then(|failure| self.cause_on_pairs(&command, failure));
        let Some(pairs) = &mut self.pairs else { return None };
        let acknowledged_count = pairs.model.acknowledged_count;
        let has_lost = self.hosts[host].lanes[lane].loss_count > command.loss_count;
        let is_flush = matches!(command.what, What::Flush);
        let host_loss_count = command.host_loss_count;
        let judged = pairs.judge(&mut self.shared, &command, has_lost, cause, completion);
        if is_flush {
            // What it tells of losses, it tells of all namespaces.
            match result {
                Ok(_) => self.covered_losses[host] = self.covered_losses[host].max(host_loss_count),
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

impl Pairs {
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
        let What::OnKey { key, id, again, verb } = command.what else {
            let cause = if result.is_ok() { Some("done") } else { cause };
            let cause = cause.ok_or_else(|| unexplained("Flush", result))?;
            shared.coverage.reach(Point::End { command: "Flush of pairs", outcome: result.into(), cause });
            if result.is_ok() {
                self.model.settle(command.begin_ns);
            }
            return Ok(());
        };
        if let Some(again) = again {
            match has_lost {
                true => self.model.lose(key, again, now_ns),
                false => self.model.deny(key, again)?,
            }
        }
        let status = result.err().and_then(Failure::status);
        let is = |other: Status| status.is_some_and(|status| status.is(other));
        let answer = match (verb, result) {
            (Verb::Retrieve, Ok(length)) => {
                let buffer = buffer.ok_or("a Retrieve came back without its buffer")?;
                if u64::from(received) != length.min(buffer.len() as u64) {
                    return Err(format!("{received} bytes came of a value of {length}"));
                }
                // Of a value that is longer than a transfer, the beginning comes.
                let is_whole = length == received.into();
                let value = is_whole.then(|| buffer[..received as usize].into());
                Some(Answer::Found { value, flags: None, cas: None })
            }
            (Verb::Exist, Ok(_)) => Some(Answer::Found { value: None, flags: None, cas: None }),
            (Verb::Store | Verb::Delete, Ok(_)) => Some(Answer::Done { cas: None }),
            (Verb::Retrieve | Verb::Exist, _) if is(Status::KEY_DOES_NOT_EXIST) => Some(Answer::Missing),
            (Verb::Store, _) if is(Status::KEY_DOES_NOT_EXIST) || is(Status::KEY_EXISTS) => {
                Some(Answer::NotStored)
            }
            (_, _) if is(Status::CAPACITY_EXCEEDED) && self.model.may_lack_space(key, id) => {
                Some(Answer::NoSpace)
            }
            (Verb::Store, _) if is(Status::CAPACITY_EXCEEDED) => Some(Answer::NoMemory),
            _ => None,
        };
        let cause = match answer {
            Some(Answer::Done { .. } | Answer::Found { .. }) => "done",
            Some(Answer::Missing) => "no such key",
            Some(Answer::NotStored) => "not as the key is",
            Some(Answer::NoSpace) => "no space",
            Some(_) => "no memory",
            None => cause.ok_or_else(|| unexplained(verb.name(), result))?,
        };
        shared.coverage.reach(Point::End { command: verb.name(), outcome: result.into(), cause });
        match answer {
            Some(answer) => self.model.end(key, id, &answer, now_ns),
            None if result.is_err_and(Failure::may_have_happened) || status.is_some() => {
                self.model.lose(key, id, now_ns);
                Ok(())
            }
            None => self.model.deny(key, id),
        }
    }
}

fn unexplained(verb: &str, result: Result<u64, Failure>) -> String {
    format!("{verb} of pairs ended with {result:?}, which nothing explains")
}
