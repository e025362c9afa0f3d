//! I/O commands of the key-value command set, turned into requests to partitions. wire §23
//!
//! A command is executed in the partition of its key, whichever reactor made that. With a log, it is sent to the reactor
//! of the partition as a message with all its data, and its outcome returns as one.

use std::sync::Arc;

use kv::{KeyHash, ListPosition, PartitionAccess, Seen};
use memory::{Buffer, CHUNK_BYTES, Payload};
use reactor::Io;
use store::Ticket;
use wire::kv::Key;
use wire::kv::batch::{Operation, StoreAttributes};
use wire::opcode::KvOpcode;
use wire::sgl::DataPointer;
use wire::status::Status;

use super::batch::BatchStart;
use super::large::ArrivingValues;
use super::post::post;
use super::value::ValueStart;
use crate::io_path::attached::AttachedIndex;
use crate::io_path::command_effects::KEY_VALUE_WRITING;
use crate::io_path::commands::Commands;
use crate::io_path::io_command::{Begun, Hold};
use crate::io_path::nvm_io::{Checked, Start, bytes};
use crate::io_path::own_partition::OwnPartition;
use crate::io_path::running::Step;
use crate::messages::key_value::action::KvAction;
use crate::messages::key_value::arriving::Arriving;
use crate::messages::key_value::command::{KeyValueCommand, KeyedCommand};
use crate::messages::key_value::operation::{Done, Effort, VECTOR_BYTES_MAX, operate};
use crate::messages::key_value::perform::{LongValue, own_result};
use crate::messages::message::Message;

/// Begins the commands of a key-value namespace.
pub(crate) struct KeyValueStart<'s, 'a, I> {
    pub(crate) start: &'s mut Start<'a, I>,
    /// The namespace.
    pub(crate) at: AttachedIndex,
    /// Whether the host may change it.
    pub(crate) may_write: bool,
}

impl<I: Io<Message>> KeyValueStart<'_, '_, I> {
    /// Begins the command.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin(mut self) -> Checked<Begun> {
        let begun = self.execute()?;
        let Start { commands, sqe, .. } = &mut *self.start;
        if let Some(traffic) = commands.namespaces.traffic(self.at) {
            match &begun {
                Begun::Value(_, length, _) => traffic.on_read((*length).into()),
                Begun::Complete(status, _) if status.is_success() && sqe.opcode == KvOpcode::STORE.raw() => {
                    traffic.on_written(sqe.dptr.length.get().into());
                }
                _ => {}
            }
        }
        Ok(begun)
    }

    fn execute(&mut self) -> Checked<Begun> {
        self.start.check_plain()?;
        let opcode = KvOpcode::from_raw(self.start.sqe.opcode);
        // A batch is refused as a whole if an operation of it writes, or names a key that the host may not use.
        if !self.may_write && KEY_VALUE_WRITING.contains(&opcode) && opcode != KvOpcode::BATCH_SUBMIT {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        let command = KeyValueCommand::parse(self.start.sqe)?;
        if let (Some(scope), Some(key)) = (self.start.key_scope(), command.key())
            && !scope.contains(key.as_bytes())
        {
            return Err(Status::ACCESS_DENIED.with_dnr());
        }
        match command {
            KeyValueCommand::Flush if self.has_log() => {
                // The log of another reactor may have failed.
                self.partition()?;
                let ticket = self.start.run(self.at, Step::Partition);
                flush_logs(self.start.commands, self.start.io, self.at, ticket);
                Ok(Begun::Started { ticket, hold: Hold::None })
            }
            KeyValueCommand::Flush => Ok(Begun::Complete(Status::SUCCESS, 0)),
            KeyValueCommand::BatchCollect(command) => {
                BatchStart { start: self.start, at: self.at, may_write: self.may_write }.collect(&command)
            }
            KeyValueCommand::BatchSubmit(command) => {
                BatchStart { start: self.start, at: self.at, may_write: self.may_write }.submit(&command)
            }
            KeyValueCommand::RetrieveSubmit(command) => {
                ValueStart { start: self.start, at: self.at }.retrieve(&command)
            }
            KeyValueCommand::StoreSubmit(command) => {
                ValueStart { start: self.start, at: self.at }.store(&command)
            }
            KeyValueCommand::StoreData(command) => {
                // It also waits while the log is read or has failed: Submit refuses both then, in this order.
                let partition = self.start.commands.namespaces.keys_mut(self.at).partition_unread();
                let value_bytes_max = partition.processor.settings().value_bytes_max;
                drop(partition);
                ValueStart { start: self.start, at: self.at }.store_data(&command, value_bytes_max)
            }
            KeyValueCommand::StoreFlags(command) => {
                ValueStart { start: self.start, at: self.at }.store_flags(&command)
            }
            KeyValueCommand::List { from, room_bytes } => self.list(from, room_bytes),
            KeyValueCommand::Operate(command)
                if command.opcode == KvOpcode::STORE && self.comes_in_parts(command.brought_bytes) =>
            {
                self.store_in_parts(&command)
            }
            KeyValueCommand::Operate(command) => self.operate(&command),
        }
    }

    /// Executes one operation, here or on the reactor of its key.
    fn operate(&mut self, command: &KeyedCommand) -> Checked<Begun> {
        let room = self.room(command.opcode, command.room_bytes)?;
        let brought = self.start.transfer(command.brought_bytes.into())?;
        if brought > 0
            && let Some(request) = self.start.key_value_data(brought)?
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
        self.operate_with(&command.key, operation, brought)
    }

    /// Executes one operation, here or on the reactor of its key. Its operand is the first `brought` bytes from the
    /// host, if any.
    fn operate_with(&mut self, key: &Key, operation: Operation<'_>, brought: usize) -> Checked<Begun> {
        let (count, here) = (self.start.io.reactor_count(), self.start.io.reactor());
        let keys = self.start.commands.namespaces.keys_mut(self.at);
        if let Some(access) = keys.shared() {
            let access = Arc::clone(access);
            return self.operate_in_place(&access, operation, brought);
        }
        let is_alone = keys.is_alone();
        let hash = self.partition()?.processor.hash(operation.key);
        let owner = hash.partition(count);
        // With a log some operations are answered later: it runs like a request of another reactor.
        if owner != here || !is_alone {
            let Operation { opcode, options, kind, room_bytes, .. } = operation;
            let operand = if brought > 0 {
                &bytes(self.start.data, &self.start.supply)[..brought]
            } else {
                operation.operand
            };
            let operand = operand.into();
            let action = KvAction::Operate { opcode, options, kind, room_bytes, operand };
            return Ok(self.send(owner, *key, action));
        }
        let mut partition = self.partition()?;
        let room_bytes = operation.room_bytes as usize;
        if operation.opcode == KvOpcode::RETRIEVE
            && let Some(large) = LongValue::find(&mut partition, hash, operation.key, room_bytes)
        {
            drop(partition);
            return self.send_large(hash, operation.key, large);
        }
        drop(partition);
        let mut room: Option<Buffer> = None;
        if operation.room_bytes > 0 {
            // Buffers are sized by the value, not by the host's room.
            let mut partition = self.partition()?;
            let length = match partition.processor.find(hash, operation.key) {
                Some(place) => partition.processor.value(place).len().min(operation.room_bytes as usize),
                None => 0,
            };
            drop(partition);
            if length > 0 {
                let Some(buffer) = self.start.take_for_data(length) else {
                    return Ok(self.start.wait_for_buffer());
                };
                room = Some(buffer);
            }
        }
        let commands = &mut *self.start.commands;
        let partition = commands.namespaces.keys_mut(self.at).partition();
        let mut partition = partition.ok_or(Status::INVALID_OPCODE.with_dnr())?;
        let operand = if brought > 0 {
            &bytes(self.start.data, &self.start.supply)[..brought]
        } else {
            operation.operand
        };
        let operation = Operation { operand, ..operation };
        let mut effort = Effort { vector_bytes: VECTOR_BYTES_MAX, scratch: &mut commands.scratch };
        let place = room.as_deref_mut().unwrap_or_default();
        let done = operate(&mut partition.processor, hash, &operation, place, &mut effort);
        Ok(begun(operation.opcode, room, done))
    }

    /// Executes one operation in the partition of its key, whichever reactor made that.
    fn operate_in_place(
        &mut self,
        access: &PartitionAccess,
        operation: Operation<'_>,
        brought: usize,
    ) -> Checked<Begun> {
        let (hash, room_bytes) = (access.hash(operation.key), operation.room_bytes as usize);
        if matches!(operation.opcode, KvOpcode::RETRIEVE | KvOpcode::EXIST)
            && let Some(begun) = self.look_up(access, hash, &operation)
        {
            return Ok(begun);
        }
        let mut partition = access.exclusive_at(access.partition_of(hash), self.start.io.moment());
        if operation.opcode == KvOpcode::RETRIEVE
            && let Some(large) = LongValue::find(&mut partition, hash, operation.key, room_bytes)
        {
            let mut rest = Payload::Zeroes(0);
            if large.rest_bytes() > 0 {
                let buffer = self.start.take_for_data(large.rest_bytes());
                let Some(mut buffer) = buffer else { return Ok(self.start.wait_for_buffer()) };
                large.copy_rest(&mut partition, hash, operation.key, &mut buffer);
                rest = Payload::Buffer(buffer);
            }
            return Ok(begun_large(large, rest));
        }
        let mut room: Option<Buffer> = None;
        if room_bytes > 0
            && let Some(place) = partition.processor.find(hash, operation.key)
            && let length @ 1.. = partition.processor.value_bytes(place).min(room_bytes)
        {
            let Some(buffer) = self.start.take_for_data(length) else {
                return Ok(self.start.wait_for_buffer());
            };
            room = Some(buffer);
        }
        let operand = match brought {
            0 => operation.operand,
            _ => &bytes(self.start.data, &self.start.supply)[..brought],
        };
        let operation = Operation { operand, ..operation };
        let scratch = &mut self.start.commands.scratch;
        let mut effort = Effort { vector_bytes: VECTOR_BYTES_MAX, scratch };
        let place = room.as_deref_mut().unwrap_or_default();
        let done = operate(&mut partition.processor, hash, &operation, place, &mut effort);
        Ok(begun(operation.opcode, room, done))
    }

    /// Executes a look-up that changes nothing, beside those of other reactors; `None` if it may change the pair, or the value
    /// is in parts.
    fn look_up(
        &mut self,
        access: &PartitionAccess,
        hash: KeyHash,
        operation: &Operation<'_>,
    ) -> Option<Begun> {
        let now = self.start.io.moment();
        let partition = access.shared_at(access.partition_of(hash), now);
        let (mut room, mut done) = (None, Done::new(Status::SUCCESS, 0));
        let mut is_read = false;
        match partition.processor.see(hash, operation.key, None) {
            Seen::Absent => done.status = Status::KEY_DOES_NOT_EXIST.with_dnr(),
            Seen::Whole { value, is_touch_due, .. } => {
                done.result = value.len() as u64;
                is_read = is_touch_due && operation.opcode == KvOpcode::RETRIEVE;
                done.data_bytes = value.len().min(operation.room_bytes as usize);
                if done.data_bytes > 0 {
                    let Some(mut buffer) = self.start.take_for_data(done.data_bytes) else {
                        return Some(self.start.wait_for_buffer());
                    };
                    buffer[..done.data_bytes].copy_from_slice(&value[..done.data_bytes]);
                    room = Some(buffer);
                }
            }
            Seen::Other => return None,
        }
        drop(partition);
        if is_read {
            access.mark_read(now, &[(hash, operation.key)]);
        }
        Some(begun(operation.opcode, room, done))
    }

    /// Sends a value without a copy.
    #[cold]
    fn send_large(&mut self, hash: KeyHash, key: &[u8], large: LongValue) -> Checked<Begun> {
        let mut rest = Payload::Zeroes(0);
        if large.rest_bytes() > 0 {
            let buffer = self.start.take_for_data(large.rest_bytes());
            let Some(mut buffer) = buffer else { return Ok(self.start.wait_for_buffer()) };
            let mut partition = self.partition()?;
            large.copy_rest(&mut partition, hash, key, &mut buffer);
            rest = Payload::Buffer(buffer);
        }
        Ok(begun_large(large, rest))
    }

    /// The part of the host's buffer that a command can use.
    fn room(&self, opcode: KvOpcode, length: u32) -> Checked<usize> {
        self.start.check_room(length as usize)?;
        // Values may be longer than a transfer; all other data fits into one.
        let most = if opcode == KvOpcode::RETRIEVE {
            u32::MAX
        } else {
            self.start.commands.limits.transfer_bytes_max
        };
        Ok(length.min(most) as usize)
    }

    /// Whether changes of the namespace are logged.
    fn has_log(&mut self) -> bool {
        self.start.commands.namespaces.keys_mut(self.at).has_log()
    }

    fn partition(&mut self) -> Checked<OwnPartition<'_>> {
        let mut partition = self.start.commands.namespaces.keys_mut(self.at).serving_partition()?;
        partition.set_now(self.start.io.moment());
        Ok(partition)
    }

    fn list(&mut self, from: Option<Key>, room: u32) -> Checked<Begun> {
        let room = self.room(KvOpcode::LIST, room)?;
        if room < 4 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let count = self.start.io.reactor_count();
        let partition = self.partition()?;
        // One partition after another, in order.
        let (first, from_position) = from.map_or((0, ListPosition::default()), |key| {
            let hash = partition.processor.hash(key.as_bytes());
            (hash.partition(count), ListPosition::of(hash, key.as_bytes()))
        });
        drop(partition);
        let scope = self.start.key_scope().cloned();
        let action = KvAction::List { from: from_position, keys: Vec::new(), scope, room };
        let key = from.unwrap_or_else(|| Key::new(&[0]).expect("one byte"));
        Ok(self.send(first, key, action))
    }

    /// Has another partition (or this one, through its mailbox) execute the command.
    fn send(&mut self, to: usize, key: Key, action: KvAction) -> Begun {
        let ticket = self.start.run(self.at, Step::Partition);
        post(self.start.commands, self.start.io, self.at, to, (ticket, key.into(), action));
        Begun::Started { ticket, hold: Hold::None }
    }

    /// Whether the value of a Store is received in parts.
    fn comes_in_parts(&self, length: u32) -> bool {
        let is_asked_for = matches!(self.start.sqe.dptr.classify(), DataPointer::Transport { .. });
        let transfer_bytes_max = self.start.commands.limits.transfer_bytes_max;
        length > transfer_bytes_max || length as usize >= CHUNK_BYTES && is_asked_for
    }

    /// The longest value of a Store, as it is advertised to hosts.
    fn value_bytes_max(&mut self) -> Checked<usize> {
        let value_bytes_max = self.partition()?.processor.settings().value_bytes_max;
        // Beside block namespaces one command's transfer is limited.
        let Commands { namespaces, limits, .. } = &*self.start.commands;
        let is_limited = namespaces.is_beside_blocks(self.start.caller.view);
        let transfer_bytes_max = limits.transfer_bytes_max as usize;
        Ok(if is_limited { value_bytes_max.min(transfer_bytes_max) } else { value_bytes_max })
    }

    /// Begins a Store whose value is received in parts.
    fn store_in_parts(&mut self, command: &KeyedCommand) -> Checked<Begun> {
        let length = command.brought_bytes;
        if length as usize > self.value_bytes_max()? {
            return Err(Status::INVALID_VALUE_SIZE.with_dnr());
        }
        self.start.check_room(length as usize)?;
        let arriving = Arriving::new(command.key.into(), command.options, length, StoreAttributes::default());
        let ticket = self.start.run(self.at, Step::Arriving(Box::new(arriving)));
        let Start { commands, io, caller, .. } = &mut *self.start;
        if let Some(lane) = caller.owner.lane() {
            ArrivingValues { commands, io: *io }.line_up(lane, ticket);
        }
        Ok(Begun::Started { ticket, hold: Hold::None })
    }
}

/// The end of an operation whose data, if there is any, is in `room`.
fn begun(opcode: KvOpcode, room: Option<Buffer>, done: Done) -> Begun {
    match room {
        Some(buffer) if done.data_bytes > 0 => {
            let length = u32::try_from(done.data_bytes).expect("at most the transfer limit");
            Begun::Value(Payload::Buffer(buffer), length, done.result)
        }
        _ => Begun::Complete(done.status, own_result(opcode, done.result)),
    }
}

/// The end of a Retrieve whose value is sent without a copy, but for `rest`.
fn begun_large(large: LongValue, rest: Payload) -> Begun {
    let length = u32::try_from(large.data_bytes).expect("at most what a host has asked for");
    let payload = Payload::Chunks(large.chunks, Box::new(rest));
    Begun::Value(payload, length, large.length as u64)
}

/// Flushes the logs of all partitions, one after another, and then completes `ticket`.
pub(crate) fn flush_logs(
    commands: &mut Commands,
    io: &mut impl Io<Message>,
    at: AttachedIndex,
    ticket: Ticket,
) {
    let key = Key::new(&[0]).expect("one byte");
    post(commands, io, at, 0, (ticket, key.into(), KvAction::Flush));
}
