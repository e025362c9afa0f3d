//! I/O commands of the key-value command set: what each asks of the partitions. wire §23
//!
//! A command whose key belongs to another reactor's partition goes there as a message, with all that it
//! brings, and its outcome comes back as one.

use kv::{ChunkList, KeyHash, Partition};
use reactor::{Buffer, CHUNK_BYTES, Chunk, Io, Payload};
use store::Ticket;
use wire::kv::batch::Operation;
use wire::kv::{Key, KeyListWriter};
use wire::opcode::KvOpcode;
use wire::sgl::DataPointer;
use wire::status::Status;

use crate::attached::{AttachedIndex, Keys};
use crate::commands::{Begun, Commands, Hold};
use crate::key_value::KeyValueMessage;
use crate::key_value::command::{KeyValueCommand, KeyedCommand};
use crate::key_value::large::{self, Large};
use crate::key_value::operation::{Done, Effort, VECTOR_BYTES_MAX, operate};
use crate::message::Message;
use crate::nvm_io::{Checked, Start, bytes};
use crate::running::Step;

/// What a command asks of the partition that has its key.
#[derive(Debug)]
pub enum KvAction {
    /// Carry out one operation.
    Operate {
        /// Which, by the code of its own command.
        opcode: KvOpcode,
        /// Its options.
        options: u8,
        /// What is done, of those that do different things.
        kind: u8,
        /// Bytes of data that the host takes.
        room_bytes: u32,
        /// The value, or operands.
        operand: Box<[u8]>,
    },
    /// Have everything survive that was done so far, on this partition and those after it.
    Flush,
    /// Give memory for parts of a value that arrives.
    Reserve {
        /// Options of the Store.
        options: u8,
        /// Bytes of the value.
        length: u32,
        /// For how many parts.
        count: usize,
    },
    /// Store a value that has arrived.
    Commit {
        /// Options of the Store.
        options: u8,
        /// Bytes of the value.
        length: u32,
        /// The value.
        chunks: Vec<Chunk>,
    },
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

impl KvAction {
    /// Whether it cannot be carried out without the value that is there.
    pub(crate) fn needs_value(&self) -> bool {
        match self {
            Self::Operate { opcode, .. } => needs_value(*opcode),
            Self::Flush | Self::List { .. } | Self::Reserve { .. } | Self::Commit { .. } => false,
        }
    }

    /// Bytes of a value that it wants stored, or memory for.
    pub(crate) fn brought_bytes(&self) -> usize {
        match self {
            Self::Operate { opcode: KvOpcode::STORE, operand, .. } => operand.len(),
            Self::Reserve { count, .. } => count * CHUNK_BYTES,
            Self::Commit { length, .. } => *length as usize % CHUNK_BYTES,
            Self::Operate { .. } | Self::Flush | Self::List { .. } => 0,
        }
    }
}

/// Whether an operation cannot be carried out without the value that is there.
pub(crate) fn needs_value(opcode: KvOpcode) -> bool {
    !matches!(opcode, KvOpcode::STORE | KvOpcode::DELETE | KvOpcode::EXIST)
}

/// The partition of this reactor, if it serves.
pub(crate) fn partition_of(keys: &mut Keys) -> Checked<&mut Partition> {
    if keys.has_failed() {
        return Err(Status::KV_UNRECOVERED_ERROR.with_dnr());
    }
    // Where there is a log, what is asked waits until it was read.
    Ok(keys.partition_unread())
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
    /// What it is sent before that, and how much of both.
    pub chunks: Option<(ChunkList, u32)>,
    /// Memory for a value that arrives.
    pub room: Vec<Chunk>,
}

impl KvOutcome {
    pub(crate) fn new(status: Status) -> Self {
        Self { status, result: 0, data: Box::default(), chunks: None, room: Vec::new() }
    }
}

/// Bytes of a list of keys as hosts get it.
fn list_bytes(keys: &[Key]) -> usize {
    4 + keys.iter().map(|key| (2 + key.as_bytes().len()).next_multiple_of(4)).sum::<usize>()
}

/// Adds this partition's keys as far as there is room. Says whether there is room for more.
fn list(partition: &Partition, from: Option<&Key>, keys: &mut Vec<Key>, room: usize) -> bool {
    let mut used = list_bytes(keys);
    let mut has_room = true;
    partition.processor.list(from.map(Key::as_bytes), |key| {
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

/// The result of a command of its own: by the standard, Exist has none. wire §23
fn own_result(opcode: KvOpcode, result: u64) -> u64 {
    if opcode == KvOpcode::EXIST { 0 } else { result }
}

impl<I: Io<Message>> Start<'_, I> {
    /// Begins a command of the key-value command set.
    #[cold]
    #[inline(never)]
    pub(crate) fn key_value_command(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let begun = self.execute(at)?;
        if let Some(traffic) = self.commands.namespaces.traffic(at) {
            match &begun {
                Begun::Value(_, length, _) => traffic.on_read((*length).into()),
                Begun::Complete(status, _)
                    if status.is_success() && self.sqe.opcode == KvOpcode::STORE.raw() =>
                {
                    traffic.on_written(self.sqe.dptr.length.get().into());
                }
                _ => {}
            }
        }
        Ok(begun)
    }

    fn execute(&mut self, at: AttachedIndex) -> Checked<Begun> {
        self.check_plain()?;
        match KeyValueCommand::parse(self.sqe)? {
            KeyValueCommand::Flush if self.has_log(at) => {
                let ticket = self.run(at, Step::Partition);
                self.flush_logs(at, ticket);
                Ok(Begun::Started { ticket, hold: Hold::None })
            }
            KeyValueCommand::Flush => Ok(Begun::Complete(Status::SUCCESS, 0)),
            KeyValueCommand::BatchCollect(command) => self.batch_collect(&command),
            KeyValueCommand::BatchSubmit(command) => self.batch_submit(at, &command),
            KeyValueCommand::List { from, room_bytes } => self.list(at, from, room_bytes),
            KeyValueCommand::Operate(command)
                if command.opcode == KvOpcode::STORE && self.comes_in_parts(command.brought_bytes) =>
            {
                self.store_in_parts(at, &command)
            }
            KeyValueCommand::Operate(command) => self.operate(at, &command),
        }
    }

    /// Carries out one operation, here or where its key is.
    fn operate(&mut self, at: AttachedIndex, command: &KeyedCommand) -> Checked<Begun> {
        let room = self.room(command.opcode, command.room_bytes)?;
        let brought = self.transfer(command.brought_bytes.into())?;
        if brought > 0
            && let Some(request) = self.key_value_data(brought)?
        {
            return Ok(request);
        }
        let operation = Operation {
            opcode: command.opcode,
            options: command.options,
            kind: command.kind,
            room_bytes: u32::try_from(room).expect("at most as the command says"),
            key: command.key.as_bytes(),
            operand: command.scalar.as_ref().map_or(&[], |scalar| &scalar[..]),
        };
        self.operate_with(at, &command.key, operation, brought)
    }

    /// Carries out one operation, here or where its key is. Its operand is the first `brought` bytes of what the host sent, if any.
    fn operate_with(
        &mut self,
        at: AttachedIndex,
        key: &Key,
        operation: Operation<'_>,
        brought: usize,
    ) -> Checked<Begun> {
        let count = self.io.reactor_count();
        let here = self.io.reactor();
        let hash = self.partition(at)?.processor.hash(operation.key);
        let owner = hash.partition(count);
        // With a log not everything can be answered at once: it is carried out as what others ask for.
        if owner != here || self.has_log(at) {
            let Operation { opcode, options, kind, room_bytes, .. } = operation;
            let operand =
                if brought > 0 { &bytes(self.data, &self.supply)[..brought] } else { operation.operand };
            let operand = operand.into();
            let action = KvAction::Operate { opcode, options, kind, room_bytes, operand };
            return Ok(self.send(at, owner, *key, action));
        }
        if operation.opcode == KvOpcode::RETRIEVE
            && let Some(large) =
                Large::find(self.partition(at)?, hash, operation.key, operation.room_bytes as usize)
        {
            return self.send_large(at, hash, operation.key, large);
        }
        let mut room: Option<Buffer> = None;
        if operation.room_bytes > 0 {
            // No more than there is: buffers go by the value, not by what the host has room for.
            let partition = self.partition(at)?;
            let length = match partition.processor.find(hash, operation.key) {
                Some(place) => partition.processor.value(place).len().min(operation.room_bytes as usize),
                None => 0,
            };
            if length > 0 {
                let Some(buffer) = self.take_for_data(length) else { return Ok(self.wait_for_buffer()) };
                room = Some(buffer);
            }
        }
        let commands = &mut *self.commands;
        let partition = commands.namespaces.keys_mut(at).partition();
        let partition = partition.ok_or(Status::INVALID_OPCODE.with_dnr())?;
        let operand =
            if brought > 0 { &bytes(self.data, &self.supply)[..brought] } else { operation.operand };
        let operation = Operation { operand, ..operation };
        let mut effort = Effort { vector_bytes: VECTOR_BYTES_MAX, scratch: &mut commands.scratch };
        let place = room.as_deref_mut().unwrap_or_default();
        let done = operate(&mut partition.processor, hash, &operation, place, &mut effort);
        Ok(match room {
            Some(buffer) if done.data_bytes > 0 => {
                let length = u32::try_from(done.data_bytes).expect("at most the transfer limit");
                Begun::Value(Payload::Buffer(buffer), length, done.result)
            }
            _ => Begun::Complete(done.status, own_result(operation.opcode, done.result)),
        })
    }

    /// Sends a value from where it lies.
    #[cold]
    fn send_large(&mut self, at: AttachedIndex, hash: KeyHash, key: &[u8], large: Large) -> Checked<Begun> {
        let mut rest = Payload::Zeroes(0);
        if large.rest_bytes() > 0 {
            let buffer = self.take_for_data(large.rest_bytes());
            let Some(mut buffer) = buffer else { return Ok(self.wait_for_buffer()) };
            large.copy_rest(self.partition(at)?, hash, key, &mut buffer);
            rest = Payload::Buffer(buffer);
        }
        Ok(large.begun(rest))
    }

    /// Sees to it that the host's `length` bytes are there: `Some` if they have to be asked for first.
    pub(crate) fn key_value_data(&self, length: usize) -> Checked<Option<Begun>> {
        self.host_data_within(length, self.commands.limits.key_value_in_capsule_bytes)
    }

    /// The room that a host has for what it asks for, as far as it is used.
    fn room(&self, opcode: KvOpcode, length: u32) -> Checked<usize> {
        self.check_room(length as usize)?;
        // Values may be longer than a transfer; of everything else there is no more.
        let most =
            if opcode == KvOpcode::RETRIEVE { u32::MAX } else { self.commands.limits.transfer_bytes_max };
        Ok(length.min(most) as usize)
    }

    /// Whether changes of a namespace go into a log.
    pub(crate) fn has_log(&mut self, at: AttachedIndex) -> bool {
        self.commands.namespaces.keys_mut(at).has_log()
    }

    pub(crate) fn partition(&mut self, at: AttachedIndex) -> Checked<&mut Partition> {
        let partition = partition_of(self.commands.namespaces.keys_mut(at))?;
        partition.set_now(store::unix_s());
        Ok(partition)
    }

    /// Whether the host's descriptor has room for so many bytes.
    pub(crate) fn check_room(&self, length: usize) -> Checked<()> {
        match self.sqe.dptr.classify() {
            _ if length == 0 => Ok(()),
            DataPointer::Transport { length: offered } if offered as usize >= length => Ok(()),
            DataPointer::Transport { .. } => Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
            DataPointer::InCapsule { .. } => Err(Status::INVALID_FIELD.with_dnr()),
            DataPointer::Other { .. } => Err(Status::SGL_TYPE_INVALID.with_dnr()),
        }
    }

    fn list(&mut self, at: AttachedIndex, from: Option<Key>, room: u32) -> Checked<Begun> {
        let room = self.room(KvOpcode::LIST, room)?;
        if room < 4 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let count = self.io.reactor_count();
        let partition = self.partition(at)?;
        // Partition after partition, in their order.
        let first = from.map_or(0, |key| partition.processor.hash(key.as_bytes()).partition(count));
        let action = KvAction::List { from, keys: Vec::new(), room };
        let key = from.unwrap_or_else(|| Key::new(&[0]).expect("one byte"));
        Ok(self.send(at, first, key, action))
    }

    /// Flushes the logs of all partitions, one after the other: this is how `ticket` ends.
    pub(crate) fn flush_logs(&mut self, at: AttachedIndex, ticket: Ticket) {
        let key = Key::new(&[0]).expect("one byte");
        self.post(at, 0, ticket, key, KvAction::Flush);
    }

    /// Has another partition (or this one, by way of its mailbox) carry out the command.
    fn send(&mut self, at: AttachedIndex, to: usize, key: Key, action: KvAction) -> Begun {
        let ticket = self.run(at, Step::Partition);
        self.post(at, to, ticket, key, action);
        Begun::Started { ticket, hold: Hold::None }
    }

    /// Posts what `ticket` asks of a partition.
    fn post(&mut self, at: AttachedIndex, to: usize, ticket: Ticket, key: Key, action: KvAction) {
        let namespace = self.commands.namespaces.get_mut(at).id;
        let from = self.io.reactor();
        let message = KeyValueMessage::Act { from, namespace, ticket, key, action };
        self.io.post(to, Message::KeyValue(Box::new(message)));
    }
}

/// Carries out what a command of another reactor's lane asks of this partition. `Err` if the next partition
/// is to go on.
pub(crate) fn act(
    partition: &mut Partition,
    key: &Key,
    action: KvAction,
    is_last: bool,
) -> Result<KvOutcome, KvAction> {
    partition.set_now(store::unix_s());
    Ok(match action {
        KvAction::Operate { opcode, options, kind, room_bytes, operand } => {
            let hash = partition.processor.hash(key.as_bytes());
            if opcode == KvOpcode::RETRIEVE
                && let Some(large) = Large::find(partition, hash, key.as_bytes(), room_bytes as usize)
            {
                let mut data = vec![0; large.rest_bytes()];
                large.copy_rest(partition, hash, key.as_bytes(), &mut data);
                let data_bytes = u32::try_from(large.data_bytes).expect("at most the room");
                return Ok(KvOutcome {
                    result: large.length as u64,
                    data: data.into(),
                    chunks: Some((large.chunks, data_bytes)),
                    ..KvOutcome::new(Status::SUCCESS)
                });
            }
            let room = match partition.processor.find(hash, key.as_bytes()) {
                Some(place) => partition.processor.value_bytes(place).min(room_bytes as usize),
                None => 0,
            };
            let mut data = vec![0; room];
            let operation =
                Operation { opcode, options, kind, room_bytes, key: key.as_bytes(), operand: &operand };
            let mut effort = Effort { vector_bytes: VECTOR_BYTES_MAX, scratch: &mut Vec::new() };
            let Done { status, result, data_bytes } =
                operate(&mut partition.processor, hash, &operation, &mut data, &mut effort);
            data.truncate(data_bytes);
            KvOutcome { result: own_result(opcode, result), data: data.into(), ..KvOutcome::new(status) }
        }
        action @ (KvAction::Reserve { .. } | KvAction::Commit { .. }) => large::act(partition, key, action),
        KvAction::Flush if !is_last => return Err(KvAction::Flush),
        KvAction::Flush => KvOutcome::new(Status::SUCCESS),
        KvAction::List { from, mut keys, room } => {
            let has_room = list(partition, from.as_ref(), &mut keys, room);
            if has_room && !is_last {
                return Err(KvAction::List { from: None, keys, room });
            }
            KvOutcome { data: written(&keys, room), ..KvOutcome::new(Status::SUCCESS) }
        }
    })
}

impl Commands {
    /// A partition has carried out a command of a lane of this reactor.
    pub(crate) fn on_kv_outcome<I: Io<Message>>(&mut self, io: &mut I, ticket: Ticket, outcome: KvOutcome) {
        match self.running.get_mut(ticket).map(|running| &running.step) {
            Some(Step::Arriving(_)) => return self.on_arriving_outcome(io, ticket, outcome),
            Some(_) => {}
            // A Store in parts that was aborted.
            None => return,
        }
        if let Some((chunks, length)) = outcome.chunks {
            let payload = Payload::Chunks(chunks, Box::new(Payload::Heap(outcome.data)));
            return self.end(ticket, outcome.status, outcome.result, Some((payload, length)));
        }
        let length = u32::try_from(outcome.data.len()).expect("at most the transfer limit");
        let data = (length > 0).then(|| (Payload::Heap(outcome.data), length));
        self.end(ticket, outcome.status, outcome.result, data);
    }
}
