//! Values whose key is in the data of another command: ranges of a value for a waiting Batch Collect, and the key of a
//! waiting Store Data. docs/kv-commands.md §7
//!
//! ```text
//! Collect    ─▶ waits
//! Retrieve Submit ─▶ value found, in RAM: here │ with a log: by its partition ─▶ Collect ends with the bytes, then Submit
//! Store Data ─▶ waits, nothing is requested; a value in its capsule is kept
//! Store Submit ─▶ Store Data becomes a Store whose value arrives in parts, or has arrived; Submit ends
//! Store Flags ─▶ the value, if its Submit has announced them, may be stored once it has arrived; Flags end
//! ```

use std::sync::Arc;

use kv::{ChunkList, KeyHash, Partition};
use memory::{Buffer, CHUNK_BYTES, Payload};
use reactor::Io;
use wire::kv::StoreOptions;
use wire::kv::batch::{BatchCollect, STORE_WITH_ATTRIBUTES, StoreAttributes, collect_result};
use wire::kv::value::{FLAGS_FOLLOW, RetrieveSubmit, StoreData, StoreFlags, StoreSubmit};
use wire::opcode::KvOpcode;
use wire::sgl::DataPointer;
use wire::sqe::Sqe;
use wire::status::Status;

use super::large::ArrivingValues;
use super::post::post;
use crate::io_path::attached::AttachedIndex;
use crate::io_path::io_command::{Begun, Hold};
use crate::io_path::nvm_io::{Checked, Start, bytes};
use crate::io_path::own_partition::OwnPartition;
use crate::io_path::running::Step;
use crate::messages::key_value::action::KvAction;
use crate::messages::key_value::arriving::Arriving;
use crate::messages::key_value::key_name::KeyName;
use crate::messages::key_value::operation::condition;
use crate::messages::key_value::perform::version_and_flags;
use crate::messages::key_value::retrieving::{Retrieving, rest_bytes};
use crate::messages::message::Message;

/// Values that came in the capsules of a lane and are not stored yet, bytes: no further one is kept.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Begins the commands that name a value.
pub(crate) struct ValueStart<'s, 'a, I> {
    pub(crate) start: &'s mut Start<'a, I>,
    /// The namespace.
    pub(crate) at: AttachedIndex,
}

/// A value that was found for a Retrieve Submit.
struct Found {
    value_bytes: u64,
    /// Bytes for the host.
    data_bytes: u32,
    version_and_flags: u64,
    chunks: Option<ChunkList>,
    /// Bytes that are copied: those for the host, or those behind the chunks.
    copied_bytes: usize,
}

impl<I: Io<Message>> ValueStart<'_, '_, I> {
    /// Has the waiting Batch Collect receive a value, or ranges of it. If it is refused, so is the Collect.
    pub(crate) fn retrieve(&mut self, command: &RetrieveSubmit) -> Checked<Begun> {
        let (collect, sqe) = self.start.waiting_for(KvOpcode::BATCH_COLLECT, command.tag)?;
        let room_bytes = BatchCollect::from_sqe(&sqe).buffer_bytes;
        match self.find_and_send(command, (collect, room_bytes)) {
            Err(status) => self.start.refuse_submit(self.at, (collect, command.tag), status),
            begun => begun,
        }
    }

    fn find_and_send(&mut self, command: &RetrieveSubmit, collect: (store::Ticket, u32)) -> Checked<Begun> {
        let length = self.start.transfer(command.data_bytes.into())?;
        if let Some(request) = self.start.key_value_data(length)? {
            return Ok(request);
        }
        let data = &bytes(self.start.data, &self.start.supply)[..length];
        let (key, ranges) = command.read(data).ok_or(Status::INVALID_FIELD.with_dnr())?;
        let retrieving = Retrieving::new(collect, command.expected_bytes, ranges);
        let key = key.to_vec();
        self.check_scope(&key)?;
        let keys = self.start.commands.namespaces.keys_mut(self.at);
        let hash = keys.hash(&key);
        let found = if let Some(access) = keys.shared() {
            let access = Arc::clone(access);
            let mut partition = access.exclusive_at(access.partition_of(hash), self.start.io.moment());
            let found = Found::of(&mut partition, hash, &key, &retrieving)?;
            let Some(buffer) = self.buffer(found.copied_bytes) else { return Ok(self.start.wait()) };
            found.with_data(&mut partition, (hash, &key), &retrieving, buffer)
        } else if keys.is_alone() {
            let found = Found::of(&mut *self.partition()?, hash, &key, &retrieving)?;
            let Some(buffer) = self.buffer(found.copied_bytes) else { return Ok(self.start.wait()) };
            found.with_data(&mut *self.partition()?, (hash, &key), &retrieving, buffer)
        } else {
            return self.send(command.tag, &key, hash, retrieving);
        };
        self.start.found_submit(command.tag)?;
        let (found, payload) = found;
        let Found { value_bytes, data_bytes, version_and_flags, .. } = found;
        let result = collect_result(data_bytes, clamped(value_bytes));
        let payload = Some((payload, data_bytes)).filter(|_| data_bytes > 0);
        self.start.commands.end(retrieving.collect, Status::SUCCESS, result, payload);
        Ok(Begun::Complete(Status::SUCCESS, version_and_flags))
    }

    /// Has the partition of a key, which has a log, look the value up.
    fn send(&mut self, tag: u32, key: &[u8], hash: KeyHash, retrieving: Retrieving) -> Checked<Begun> {
        // The log may have failed.
        drop(self.partition()?);
        self.start.found_submit(tag)?;
        if let Some(waiting) = self.start.commands.running.get_mut(retrieving.collect) {
            waiting.step = Step::Collected;
        }
        let ticket = self.start.run(self.at, Step::Retrieving(Box::new(retrieving)));
        let action = KvAction::Operate {
            opcode: KvOpcode::RETRIEVE,
            options: 0,
            // Version and flags, too.
            kind: 1,
            room_bytes: u32::MAX,
            operand: Box::default(),
        };
        let to = hash.partition(self.start.io.reactor_count());
        post(self.start.commands, self.start.io, self.at, to, (ticket, KeyName::from(key), action));
        Ok(Begun::Started { ticket, hold: Hold::None })
    }

    /// A buffer for the copied part of a value, if there is any; `None` if no buffer is free.
    fn buffer(&mut self, length: usize) -> Option<Option<Buffer>> {
        if length == 0 { Some(None) } else { self.start.take_for_data(length).map(Some) }
    }

    /// Keeps a value waiting, at the host unless it is in the capsule, until a Store Submit names its key.
    pub(crate) fn store_data(&mut self, command: &StoreData, value_bytes_max: usize) -> Checked<Begun> {
        let length = command.value_bytes as usize;
        if length > value_bytes_max {
            return Err(Status::INVALID_VALUE_SIZE.with_dnr());
        }
        if length == 0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let mut kept = Box::default();
        if matches!(self.start.sqe.dptr.classify(), DataPointer::InCapsule { .. }) {
            self.start.key_value_data(length)?;
            let lane = self.start.caller.owner.lane().unwrap_or_default();
            if self.start.commands.running.kept_bytes(lane) + length > KEPT_BYTES_MAX {
                return Err(Status::COMMAND_INTERRUPTED);
            }
            kept = bytes(self.start.data, &self.start.supply)[..length].into();
        } else {
            self.start.check_room(length)?;
        }
        self.start.wait_for_submit(command.tag, kept)
    }

    /// Stores the value of the waiting Store Data. If it is refused, so is that.
    pub(crate) fn store(&mut self, command: &StoreSubmit) -> Checked<Begun> {
        let (waiting, sqe) = self.start.waiting_for(KvOpcode::STORE_DATA, command.tag)?;
        let is_same = StoreData::from_sqe(&sqe).value_bytes == command.value_bytes;
        match self.start_store(command, is_same, waiting) {
            Err(status) => self.start.refuse_submit(self.at, (waiting, command.tag), status),
            begun => begun,
        }
    }

    fn start_store(
        &mut self,
        command: &StoreSubmit,
        is_same: bool,
        waiting: store::Ticket,
    ) -> Checked<Begun> {
        let options = command.options & !FLAGS_FOLLOW;
        let awaits_flags = command.options != options;
        let condition = StoreOptions::from_bits(options).and_then(condition);
        if !is_same || condition.is_none() || awaits_flags && self.is_kept(waiting) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let length = command.data_bytes();
        if let Some(request) = self.start.key_value_data(length)? {
            return Ok(request);
        }
        let data = &bytes(self.start.data, &self.start.supply)[..length];
        let (flags, key) = command.read(data).ok_or(Status::INVALID_KEY_SIZE.with_dnr())?;
        let key = key.to_vec();
        self.check_scope(&key)?;
        drop(self.partition()?);
        self.start.found_submit(command.tag)?;
        let StoreSubmit { value_bytes, ttl_s, .. } = *command;
        let attributes = StoreAttributes { ttl_s, flags };
        let name = KeyName::from(&key[..]);
        let Start { commands, io, caller, .. } = &mut *self.start;
        commands.namespaces.begin(self.at);
        if let Some(running) = commands.running.get_mut(waiting)
            && let Step::Collecting(kept) = &mut running.step
            && !kept.is_empty()
        {
            let operand = [&attributes.to_bytes(), &kept[..]].concat().into();
            running.namespace = Some(self.at);
            running.step = Step::Partition;
            let options = options | STORE_WITH_ATTRIBUTES;
            let action =
                KvAction::Operate { opcode: KvOpcode::STORE, options, kind: 0, room_bytes: 0, operand };
            let hash = commands.namespaces.keys_mut(self.at).hash(&key);
            let to = hash.partition(io.reactor_count());
            post(commands, *io, self.at, to, (waiting, name, action));
            return Ok(Begun::Complete(Status::SUCCESS, 0));
        }
        let arriving = Arriving { awaits_flags, ..Arriving::new(name, options, value_bytes, attributes) };
        if let Some(running) = commands.running.get_mut(waiting) {
            running.namespace = Some(self.at);
            running.step = Step::Arriving(Box::new(arriving));
        }
        if let Some(lane) = caller.owner.lane() {
            ArrivingValues { commands, io: *io }.line_up(lane, waiting);
        }
        Ok(Begun::Complete(Status::SUCCESS, 0))
    }

    /// The flags of a value that its host has sent.
    pub(crate) fn store_flags(&mut self, command: &StoreFlags) -> Checked<Begun> {
        let nsid = self.start.sqe.nsid();
        let is_of = |sqe: &Sqe| {
            let is_data = sqe.opcode == KvOpcode::STORE_DATA.raw() && sqe.nsid() == nsid;
            is_data && StoreData::from_sqe(sqe).tag == command.tag
        };
        let Start { commands, io, caller, .. } = &mut *self.start;
        let lane = caller.owner.lane().ok_or(Status::INVALID_FIELD.with_dnr())?;
        match (ArrivingValues { commands, io: *io }).on_flags(lane, is_of, command.flags) {
            true => Ok(Begun::Complete(Status::SUCCESS, 0)),
            false => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
        }
    }

    /// Whether the value of a waiting Store Data has come in its capsule.
    fn is_kept(&mut self, waiting: store::Ticket) -> bool {
        let running = self.start.commands.running.get_mut(waiting);
        running.is_some_and(|running| matches!(&running.step, Step::Collecting(kept) if !kept.is_empty()))
    }

    fn check_scope(&self, key: &[u8]) -> Checked<()> {
        match self.start.key_scope() {
            Some(scope) if !scope.contains(key) => Err(Status::ACCESS_DENIED.with_dnr()),
            _ => Ok(()),
        }
    }

    fn partition(&mut self) -> Checked<OwnPartition<'_>> {
        let mut partition = self.start.commands.namespaces.keys_mut(self.at).serving_partition()?;
        partition.set_now(self.start.io.moment());
        Ok(partition)
    }
}

impl Found {
    /// Looks up a value, and checks that what is asked of it is there.
    fn of(partition: &mut Partition, hash: KeyHash, key: &[u8], asked: &Retrieving) -> Checked<Self> {
        let processor = &mut partition.processor;
        let place = processor.find(hash, key).ok_or(Status::KEY_DOES_NOT_EXIST.with_dnr())?;
        let value_bytes = processor.value_bytes(place) as u64;
        let data_bytes = asked.data_bytes(value_bytes)?;
        processor.touch(place);
        let chunks = processor.chunks(place).cloned();
        let version_and_flags = version_and_flags(processor, place);
        let copied_bytes = match &chunks {
            Some(chunks) => {
                let is_rest_asked = asked.reaches(chunks.len() * CHUNK_BYTES);
                if is_rest_asked { rest_bytes(value_bytes) } else { 0 }
            }
            None => data_bytes as usize,
        };
        Ok(Self { value_bytes, data_bytes, version_and_flags, chunks, copied_bytes })
    }

    /// The value with the bytes for the host, of which some are copied into the buffer.
    fn with_data(
        mut self,
        partition: &mut Partition,
        (hash, key): (KeyHash, &[u8]),
        asked: &Retrieving,
        mut buffer: Option<Buffer>,
    ) -> (Self, Payload) {
        let processor = &mut partition.processor;
        let copied_bytes = self.copied_bytes;
        if let (Some(buffer), Some(place)) = (&mut buffer, processor.find(hash, key)) {
            let value = processor.value(place);
            match &self.chunks {
                Some(chunks) => {
                    let (from, mut at) = (chunks.len() * CHUNK_BYTES, 0);
                    while at < copied_bytes {
                        let part = value.part(from + at);
                        let count = part.len().min(copied_bytes - at);
                        buffer[at..at + count].copy_from_slice(&part[..count]);
                        at += count;
                    }
                }
                None => asked.copy(self.value_bytes, |at| value.part(at), &mut buffer[..copied_bytes]),
            }
        }
        let copied = buffer.map_or(Payload::Zeroes(0), Payload::Buffer);
        let payload = match self.chunks.take() {
            Some(chunks) => asked.cut(Payload::Chunks(chunks, Box::new(copied))),
            None => copied,
        };
        (self, payload)
    }
}

/// The length of a value in a result: at most 256 MiB.
pub(super) fn clamped(value_bytes: u64) -> u32 {
    u32::try_from(value_bytes).unwrap_or(u32::MAX)
}
