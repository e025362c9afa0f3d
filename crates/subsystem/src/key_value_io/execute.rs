//! I/O commands of the key-value command set, turned into requests to partitions. wire §23
//!
//! A command whose key belongs to another reactor's partition is sent there as a message with all its data, and its
//! outcome returns as one.

use kv::{KeyHash, Partition};
use reactor::{Buffer, Io, Payload};
use store::Ticket;
use wire::kv::Key;
use wire::kv::batch::Operation;
use wire::opcode::KvOpcode;
use wire::sgl::DataPointer;
use wire::status::Status;

use crate::attached::AttachedIndex;
use crate::commands::Commands;
use crate::io_command::{Begun, Hold};
use crate::key_value::action::{KvAction, KvOutcome};
use crate::key_value::command::{KeyValueCommand, KeyedCommand};
use crate::key_value::message::{PartitionRequest, Work};
use crate::key_value::operation::{Effort, VECTOR_BYTES_MAX, operate};
use crate::key_value::perform::{LongValue, own_result};
use crate::message::Message;
use crate::nvm_io::{Checked, Start, bytes};
use crate::running::Step;

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

    /// Executes one operation, here or on the reactor of its key.
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

    /// Executes one operation, here or on the reactor of its key. Its operand is the first `brought` bytes from the
    /// host, if any.
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
        // With a log some operations are answered later: it runs like a request of another reactor.
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
                LongValue::find(self.partition(at)?, hash, operation.key, operation.room_bytes as usize)
        {
            return self.send_large(at, hash, operation.key, large);
        }
        let mut room: Option<Buffer> = None;
        if operation.room_bytes > 0 {
            // Buffers are sized by the value, not by the host's room.
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

    /// Sends a value without a copy.
    #[cold]
    fn send_large(
        &mut self,
        at: AttachedIndex,
        hash: KeyHash,
        key: &[u8],
        large: LongValue,
    ) -> Checked<Begun> {
        let mut rest = Payload::Zeroes(0);
        if large.rest_bytes() > 0 {
            let buffer = self.take_for_data(large.rest_bytes());
            let Some(mut buffer) = buffer else { return Ok(self.wait_for_buffer()) };
            large.copy_rest(self.partition(at)?, hash, key, &mut buffer);
            rest = Payload::Buffer(buffer);
        }
        let length = u32::try_from(large.data_bytes).expect("at most what a host has asked for");
        let payload = Payload::Chunks(large.chunks, Box::new(rest));
        Ok(Begun::Value(payload, length, large.length as u64))
    }

    /// Ensures that the host's `length` bytes have arrived: `Some` if they must be requested first.
    pub(crate) fn key_value_data(&self, length: usize) -> Checked<Option<Begun>> {
        self.host_data_within(length, self.commands.limits.key_value_in_capsule_bytes)
    }

    /// The part of the host's buffer that a command can use.
    fn room(&self, opcode: KvOpcode, length: u32) -> Checked<usize> {
        self.check_room(length as usize)?;
        // Values may be longer than a transfer; all other data fits into one.
        let most =
            if opcode == KvOpcode::RETRIEVE { u32::MAX } else { self.commands.limits.transfer_bytes_max };
        Ok(length.min(most) as usize)
    }

    /// Whether changes of a namespace are logged.
    pub(crate) fn has_log(&mut self, at: AttachedIndex) -> bool {
        self.commands.namespaces.keys_mut(at).has_log()
    }

    pub(crate) fn partition(&mut self, at: AttachedIndex) -> Checked<&mut Partition> {
        let partition = self.commands.namespaces.keys_mut(at).serving_partition()?;
        partition.set_now(store::unix_s());
        Ok(partition)
    }

    /// Whether the host's descriptor has room for this many bytes.
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
        // One partition after another, in order.
        let first = from.map_or(0, |key| partition.processor.hash(key.as_bytes()).partition(count));
        let action = KvAction::List { from, keys: Vec::new(), room };
        let key = from.unwrap_or_else(|| Key::new(&[0]).expect("one byte"));
        Ok(self.send(at, first, key, action))
    }

    /// Flushes the logs of all partitions, one after another, and then completes `ticket`.
    pub(crate) fn flush_logs(&mut self, at: AttachedIndex, ticket: Ticket) {
        let key = Key::new(&[0]).expect("one byte");
        self.post(at, 0, ticket, key, KvAction::Flush);
    }

    /// Has another partition (or this one, through its mailbox) execute the command.
    fn send(&mut self, at: AttachedIndex, to: usize, key: Key, action: KvAction) -> Begun {
        let ticket = self.run(at, Step::Partition);
        self.post(at, to, ticket, key, action);
        Begun::Started { ticket, hold: Hold::None }
    }

    /// Posts the request of `ticket` to a partition.
    fn post(&mut self, at: AttachedIndex, to: usize, ticket: Ticket, key: Key, action: KvAction) {
        let namespace = self.commands.namespaces.get_mut(at).id;
        let from = self.io.reactor();
        let work = Work::Act { ticket, key, action };
        self.io.post(to, PartitionRequest { from, namespace, work }.into());
    }
}

impl Commands {
    /// A partition has executed a command of a lane of this reactor.
    pub(crate) fn on_kv_outcome<I: Io<Message>>(&mut self, io: &mut I, ticket: Ticket, outcome: KvOutcome) {
        match self.running.get_mut(ticket).map(|running| &running.step) {
            Some(Step::Arriving(_)) => return self.on_arriving_outcome(io, ticket, outcome),
            Some(_) => {}
            // An aborted Store in parts.
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
