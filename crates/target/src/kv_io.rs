//! I/O commands of the key-value command set: what each asks of the partitions. wire §23
//!
//! A command whose key belongs to another reactor's partition goes there as a message, with all that it
//! brings, and its outcome comes back as one.

use kv::memcached::Executor;
use kv::{Attributes, Condition, Stored};
use reactor::{Buffer, Io, Payload};
use store::Ticket;
use wire::id::Nsid;
use wire::kv::{Key, KeyListWriter, KvCommand, StoreOptions};
use wire::opcode::KvOpcode;
use wire::sgl::DataPointer;
use wire::status::Status;

use crate::attached::AttachedIndex;
use crate::commands::{Begun, Commands};
use crate::key_value::{KeyValueMessage, unix_s};
use crate::message::Message;
use crate::nvm_io::{Checked, Start, bytes};
use crate::running::{After, Step};

/// What a command asks of the partition that has its key.
#[derive(Debug)]
pub enum KvAction {
    /// Store a value.
    Store(Box<[u8]>, StoreOptions),
    /// Give the value's first bytes, at most so many.
    Retrieve(usize),
    /// Remove the key.
    Delete,
    /// Say whether it is there.
    Exist,
    /// Go on with a list of keys, from the first partition named to the last: what there is of it, and the
    /// room in all.
    List {
        /// Key to begin with, on the first partition only.
        from: Option<Key>,
        /// Keys so far.
        keys: Vec<Key>,
        /// Room for the list, bytes.
        room: usize,
    },
}

/// How a command ended at its partition.
#[derive(Debug)]
pub struct KvOutcome {
    /// How.
    pub status: Status,
    /// The value's length.
    pub result: u64,
    /// What the host is sent.
    pub data: Box<[u8]>,
}

impl KvOutcome {
    fn new(status: Status) -> Self {
        Self { status, result: 0, data: Box::default() }
    }
}

/// What became of a store. wire §23
fn status_of(stored: Stored) -> Status {
    match stored {
        Stored::Done => Status::SUCCESS,
        Stored::Exists => Status::KEY_EXISTS.with_dnr(),
        Stored::NotFound => Status::KEY_DOES_NOT_EXIST.with_dnr(),
        Stored::NoMemory => Status::CAPACITY_EXCEEDED.with_dnr(),
        Stored::TooLarge => Status::INVALID_VALUE_SIZE.with_dnr(),
    }
}

fn store(executor: &mut Executor, key: &Key, value: &[u8], options: StoreOptions) -> Status {
    let condition =
        match (options.contains(StoreOptions::MUST_EXIST), options.contains(StoreOptions::MUST_NOT_EXIST)) {
            (false, false) => Condition::Always,
            (true, false) => Condition::Present,
            (false, true) => Condition::Absent,
            (true, true) => return Status::INVALID_FIELD.with_dnr(),
        };
    let hash = executor.processor.hash(key.as_bytes());
    let attributes = Attributes::default();
    status_of(executor.processor.store(hash, key.as_bytes(), value, attributes, condition))
}

fn exists(executor: &mut Executor, key: &Key) -> Status {
    let hash = executor.processor.hash(key.as_bytes());
    match executor.processor.find(hash, key.as_bytes()) {
        Some(_) => Status::SUCCESS,
        None => Status::KEY_DOES_NOT_EXIST.with_dnr(),
    }
}

fn delete(executor: &mut Executor, key: &Key) -> Status {
    let hash = executor.processor.hash(key.as_bytes());
    // That there was nothing to delete is no error, unless a host asks for one, which none can here. wire §23
    executor.processor.delete(hash, key.as_bytes());
    Status::SUCCESS
}

/// Bytes of a list of keys as hosts get it.
fn list_bytes(keys: &[Key]) -> usize {
    4 + keys.iter().map(|key| (2 + key.as_bytes().len()).next_multiple_of(4)).sum::<usize>()
}

/// Adds this partition's keys as far as there is room. Says whether there is room for more.
fn list(executor: &Executor, from: Option<&Key>, keys: &mut Vec<Key>, room: usize) -> bool {
    let mut used = list_bytes(keys);
    let mut has_room = true;
    executor.processor.list(from.map(Key::as_bytes), |key| {
        // Longer keys are memcached's: no host can name them.
        let Some(key) = Key::new(key) else { return true };
        used += list_bytes(&[key]) - 4;
        has_room = used <= room;
        if has_room {
            keys.push(key);
        }
        has_room
    });
    has_room
}

fn written(keys: &[Key], room: usize) -> Box<[u8]> {
    let mut data = vec![0; list_bytes(keys).min(room)];
    if let Some(mut writer) = KeyListWriter::new(&mut data) {
        for key in keys {
            let fits = writer.push(key);
            debug_assert!(fits, "counted before");
        }
        let _ = writer.finish();
    }
    data.into()
}

impl<I: Io<Message>> Start<'_, I> {
    /// Begins a command on a namespace with keys and values.
    #[cold]
    #[inline(never)]
    pub(crate) fn key_value(&mut self, at: AttachedIndex) -> Checked<Begun> {
        self.check_plain()?;
        let command = KvCommand::from_sqe(self.sqe);
        let opcode = KvOpcode::from_raw(self.sqe.opcode);
        if self.sqe.nsid() == Nsid::ALL {
            return Err(Status::INVALID_NAMESPACE.with_dnr());
        }
        if opcode.raw() == wire::opcode::NvmOpcode::FLUSH.raw() {
            return Ok(Begun::Complete(Status::SUCCESS, 0));
        }
        let key = command.key().map_err(|_| Status::INVALID_KEY_SIZE.with_dnr())?;
        let key = match (key, opcode) {
            (None, KvOpcode::LIST) => return self.list(at, None, command.size_bytes),
            (None, _) => return Err(Status::INVALID_KEY_SIZE.with_dnr()),
            (Some(key), _) => key,
        };
        let count = self.io.reactor_count();
        let executor = self.executor(at)?;
        let owner = executor.processor.hash(key.as_bytes()).partition(count);
        let is_here = owner == self.io.reactor();
        match opcode {
            KvOpcode::STORE => self.store(at, &key, &command, is_here.then_some(()).ok_or(owner)),
            KvOpcode::RETRIEVE => {
                let length = self.transfer(command.size_bytes.into())?;
                self.check_room(length)?;
                if !is_here {
                    return Ok(self.send(at, owner, key, KvAction::Retrieve(length)));
                }
                self.retrieve(at, &key, length)
            }
            KvOpcode::DELETE | KvOpcode::EXIST if !is_here => {
                let is_delete = opcode == KvOpcode::DELETE;
                let action = if is_delete { KvAction::Delete } else { KvAction::Exist };
                Ok(self.send(at, owner, key, action))
            }
            KvOpcode::DELETE => Ok(Begun::Complete(delete(self.executor(at)?, &key), 0)),
            KvOpcode::EXIST => Ok(Begun::Complete(exists(self.executor(at)?, &key), 0)),
            KvOpcode::LIST => self.list(at, Some(key), command.size_bytes),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    fn executor(&mut self, at: AttachedIndex) -> Checked<&mut Executor> {
        let executor = self.commands.namespaces.get_mut(at).backend.key_value();
        let executor = executor.ok_or(Status::INVALID_OPCODE.with_dnr())?;
        executor.set_now(unix_s());
        Ok(executor)
    }

    /// Whether the host's descriptor has room for so many bytes.
    fn check_room(&self, length: usize) -> Checked<()> {
        match self.sqe.dptr.classify() {
            _ if length == 0 => Ok(()),
            DataPointer::Transport { length: offered } if offered as usize >= length => Ok(()),
            DataPointer::Transport { .. } => Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
            DataPointer::InCapsule { .. } => Err(Status::INVALID_FIELD.with_dnr()),
            DataPointer::Other { .. } => Err(Status::SGL_TYPE_INVALID.with_dnr()),
        }
    }

    /// `here` is the owner, if it is another.
    fn store(
        &mut self,
        at: AttachedIndex,
        key: &Key,
        command: &KvCommand,
        here: Result<(), usize>,
    ) -> Checked<Begun> {
        if command.size_bytes > self.commands.limits.transfer_bytes_max {
            return Err(Status::INVALID_VALUE_SIZE.with_dnr());
        }
        let length = command.size_bytes as usize;
        if length > 0
            && let Some(request) = self.host_data(length)?
        {
            return Ok(request);
        }
        let Some(options) = StoreOptions::from_bits(command.options) else {
            return Err(Status::INVALID_FIELD.with_dnr());
        };
        match here {
            Ok(()) => {
                let namespace = self.commands.namespaces.get_mut(at);
                let executor = namespace.backend.key_value().ok_or(Status::INVALID_OPCODE.with_dnr())?;
                executor.set_now(unix_s());
                let value = &bytes(self.data, &self.supply)[..length];
                Ok(Begun::Complete(store(executor, key, value, options), 0))
            }
            Err(owner) => {
                let value = bytes(self.data, &self.supply)[..length].into();
                Ok(self.send(at, owner, *key, KvAction::Store(value, options)))
            }
        }
    }

    fn retrieve(&mut self, at: AttachedIndex, key: &Key, room: usize) -> Checked<Begun> {
        let executor = self.executor(at)?;
        let hash = executor.processor.hash(key.as_bytes());
        let place = executor.processor.find(hash, key.as_bytes());
        let place = place.ok_or(Status::KEY_DOES_NOT_EXIST.with_dnr())?;
        let value_bytes = executor.processor.value(place).len();
        let length = value_bytes.min(room);
        if length == 0 {
            return Ok(Begun::Complete(Status::SUCCESS, value_bytes as u64));
        }
        let Some(mut buffer): Option<Buffer> = self.io.pool().take(length) else { return Ok(self.wait()) };
        buffer.set_len(length);
        // Not by `executor`: the time must stand still for the place to stay.
        let executor = self.commands.namespaces.get_mut(at).backend.key_value();
        let executor = executor.ok_or(Status::INVALID_OPCODE.with_dnr())?;
        executor.processor.touch(place);
        let mut copied = 0;
        while copied < length {
            let part = executor.processor.value(place).part(copied);
            let count = part.len().min(length - copied);
            buffer[copied..copied + count].copy_from_slice(&part[..count]);
            copied += count;
        }
        let length = u32::try_from(length).expect("at most the transfer limit");
        Ok(Begun::Value(Payload::Buffer(buffer), length, value_bytes as u64))
    }

    fn list(&mut self, at: AttachedIndex, from: Option<Key>, room: u32) -> Checked<Begun> {
        let room = self.transfer(room.into())?;
        if room < 4 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        self.check_room(room)?;
        let count = self.io.reactor_count();
        let executor = self.executor(at)?;
        // Partition after partition, in their order.
        let first = from.map_or(0, |key| executor.processor.hash(key.as_bytes()).partition(count));
        let action = KvAction::List { from, keys: Vec::new(), room };
        let key = from.unwrap_or_else(|| Key::new(&[0]).expect("one byte"));
        Ok(self.send(at, first, key, action))
    }

    /// Has another partition (or this one, by way of its mailbox) carry out the command.
    fn send(&mut self, at: AttachedIndex, to: usize, key: Key, action: KvAction) -> Begun {
        let ticket = self.run(at, Step::Backend(After::Complete));
        let namespace = self.commands.namespaces.get_mut(at).id;
        let from = self.io.reactor();
        let message = KeyValueMessage::Act { from, namespace, ticket, key, action };
        self.io.post(to, Message::KeyValue(Box::new(message)));
        Begun::Started { ticket, holds_capsule: false }
    }
}

/// Carries out what a command of another reactor's lane asks of this partition. `Err` if the next partition
/// is to go on.
pub(crate) fn act(
    executor: &mut Executor,
    key: &Key,
    action: KvAction,
    is_last: bool,
) -> Result<KvOutcome, KvAction> {
    executor.set_now(unix_s());
    Ok(match action {
        KvAction::Store(value, options) => KvOutcome::new(store(executor, key, &value, options)),
        KvAction::Delete => KvOutcome::new(delete(executor, key)),
        KvAction::Exist => KvOutcome::new(exists(executor, key)),
        KvAction::Retrieve(room) => {
            let hash = executor.processor.hash(key.as_bytes());
            let Some(place) = executor.processor.find(hash, key.as_bytes()) else {
                return Ok(KvOutcome::new(Status::KEY_DOES_NOT_EXIST.with_dnr()));
            };
            executor.processor.touch(place);
            let value = executor.processor.value(place);
            let length = value.len().min(room);
            let mut data = Vec::with_capacity(length);
            while data.len() < length {
                let part = value.part(data.len());
                data.extend_from_slice(&part[..part.len().min(length - data.len())]);
            }
            KvOutcome { status: Status::SUCCESS, result: value.len() as u64, data: data.into() }
        }
        KvAction::List { from, mut keys, room } => {
            let has_room = list(executor, from.as_ref(), &mut keys, room);
            if has_room && !is_last {
                return Err(KvAction::List { from: None, keys, room });
            }
            KvOutcome { data: written(&keys, room), ..KvOutcome::new(Status::SUCCESS) }
        }
    })
}

impl Commands {
    /// A partition has carried out a command of a lane of this reactor.
    pub(crate) fn on_kv_outcome(&mut self, ticket: Ticket, outcome: KvOutcome) {
        let length = u32::try_from(outcome.data.len()).expect("at most the transfer limit");
        let data = (length > 0).then(|| (Payload::Heap(outcome.data), length));
        self.end(ticket, outcome.status, outcome.result, data);
    }
}
