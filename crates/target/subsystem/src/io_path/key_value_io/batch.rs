//! Batches: many operations in one capsule, whose outcomes a waiting command receives. docs/kv-commands.md §4
//!
//! ```text
//! Collect ─▶ waits, with nothing but its place in the queue
//! Submit  ─▶ checked as a whole ─▶ all keys here: carried out at once, fetching ahead
//!                 ├─▶ in RAM: carried out at once, in the partitions of all reactors
//!                 └─▶ with a log: sorted by partition ─▶ … each carries out its own … ─▶ put in order again
//!                                                        └▶ Collect ends with the outcomes, then Submit
//! ```
//!
//! A Submit without a waiting Collect is refused, so no outcomes are kept for a host that may not fetch them.

use memory::{Buffer, Payload};
use reactor::Io;
use store::Ticket;
use wire::kv::batch::{
    BatchCollect, BatchSubmit, OUTCOME_HEADER_BYTES, Operation, Operations, OutcomeWriter, collect_result,
};
use wire::opcode::KvOpcode;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::io_path::attached::AttachedIndex;
use crate::io_path::command_effects::KEY_VALUE_WRITING;
use crate::io_path::commands::CollectKey;
use crate::io_path::io_command::{Begun, Hold};
use crate::io_path::nvm_io::{Checked, Start, bytes};
use crate::io_path::running::{Owner, Running, Step, Supply};
use crate::messages::key_value::batch_in_place::run_in_place;
use crate::messages::key_value::batch_part::{PartOfBatch, run_here};
use crate::messages::key_value::message::{PartitionRequest, Work};
use crate::messages::key_value::scattered::Scattered;
use crate::messages::message::Message;
use crate::objects::key_rights::KeyScope;

/// Operations of one batch.
pub(crate) const OPERATION_COUNT_MAX: u16 = 1024;

/// Checks all operations before the first is executed: their encoding, their number, and the room for all outcomes.
fn check(data: &[u8], command: &BatchSubmit) -> Checked<()> {
    let (mut count, mut outcome_bytes) = (0u32, 0usize);
    for operation in Operations::new(data) {
        let operation = operation.map_err(|_| Status::INVALID_FIELD.with_dnr())?;
        count += 1;
        // At most 2^20 / 12 operations of 2^32 bytes each: 64 bits hold it.
        outcome_bytes += operation.outcome_bytes();
    }
    if count != u32::from(command.count) || outcome_bytes > command.outcome_bytes as usize {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    Ok(())
}

/// Whether an operation of a checked batch changes values.
fn writes(data: &[u8]) -> bool {
    let mut operations = Operations::new(data).map_while(Result::ok);
    operations.any(|operation| KEY_VALUE_WRITING.contains(&operation.opcode))
}

/// Whether a host may use the keys of all operations of a checked batch.
fn is_in_scope(data: &[u8], scope: &KeyScope) -> bool {
    let mut operations = Operations::new(data).map_while(Result::ok);
    operations.all(|operation| scope.contains(operation.key))
}

/// The parameters of a Batch Submit, if it is valid: bytes of its buffer for operations and outcomes together.
pub(crate) fn room_bytes(sqe: &Sqe, length: u32, transfer_bytes_max: u32) -> u32 {
    if sqe.opcode != KvOpcode::BATCH_SUBMIT.raw() {
        return length;
    }
    let outcome_bytes = BatchSubmit::from_sqe(sqe).outcome_bytes;
    length.saturating_add(outcome_bytes).min(transfer_bytes_max).max(length)
}

/// Begins the commands of batches.
pub(crate) struct BatchStart<'s, 'a, I> {
    pub(crate) start: &'s mut Start<'a, I>,
    /// The namespace.
    pub(crate) at: AttachedIndex,
    /// Whether the host may change it.
    pub(crate) may_write: bool,
}

impl<I: Io<Message>> BatchStart<'_, '_, I> {
    fn collect_key(&self, tag: u32) -> Checked<CollectKey> {
        match self.start.caller.owner {
            Owner::Lane { index, generation, .. } => Ok((index, generation, self.start.sqe.nsid(), tag)),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }

    /// Waits for the Submit with the same tag.
    pub(crate) fn collect(&mut self, command: &BatchCollect) -> Checked<Begun> {
        let length = self.start.transfer(command.buffer_bytes.into())?;
        if length < OUTCOME_HEADER_BYTES {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        self.start.check_room(length)?;
        let key = self.collect_key(command.tag)?;
        if self.start.commands.collecting.contains_key(&key) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        let running = Running::new(self.start.caller.owner, *self.start.sqe, None, Step::Collecting);
        let ticket = self.start.commands.keep(self.start.ticket, running);
        self.start.commands.collecting.insert(key, ticket);
        Ok(Begun::Started { ticket, hold: Hold::None })
    }

    /// Executes a batch. If it is refused, so is the Collect that waits for it.
    pub(crate) fn submit(&mut self, command: &BatchSubmit) -> Checked<Begun> {
        let key = self.collect_key(command.tag)?;
        let collect = self.start.commands.collecting.get(&key);
        let collect = *collect.ok_or(Status::COMMAND_SEQUENCE_ERROR.with_dnr())?;
        let begun = self.execute(command, collect);
        if let Err(status) = begun {
            self.start.commands.collecting.remove(&key);
            self.start.commands.end(collect, status, 0, None);
            // Behind its Collect: hosts that repeat both do so in the order in which they end.
            let ticket = self.start.run(self.at, Step::Between);
            self.start.commands.end(ticket, status, 0, None);
            return Ok(Begun::Started { ticket, hold: Hold::None });
        }
        begun
    }

    fn execute(&mut self, command: &BatchSubmit, collect: Ticket) -> Checked<Begun> {
        let (length, outcome_bytes) = (command.data_bytes as usize, command.outcome_bytes as usize);
        let waiting = self.start.commands.running.get_mut(collect).expect("a Collect that waits runs");
        if BatchCollect::from_sqe(&waiting.sqe).buffer_bytes < command.outcome_bytes {
            return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        }
        if length == 0 || !(1..=OPERATION_COUNT_MAX).contains(&command.count) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        self.start.transfer(u64::from(command.data_bytes) + u64::from(command.outcome_bytes))?;
        if let Some(request) = self.start.key_value_data(length)? {
            return Ok(request);
        }
        check(&bytes(self.start.data, &self.start.supply)[..length], command)?;
        if !self.may_write && writes(&bytes(self.start.data, &self.start.supply)[..length]) {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        if let Some(scope) = self.start.key_scope()
            && !is_in_scope(&bytes(self.start.data, &self.start.supply)[..length], scope)
        {
            return Err(Status::ACCESS_DENIED.with_dnr());
        }
        // With a log, operations may wait for their values, and all of them for the log: the partitions handle both.
        let reactor_count = self.start.io.reactor_count();
        let keys = self.start.commands.namespaces.keys_mut(self.at);
        if keys.shared().is_none()
            && (reactor_count > 1 || keys.has_log())
            && let Some(begun) = self.scatter(command, collect)?
        {
            return Ok(begun);
        }
        let Some((buffer, used, failed_count)) = self.execute_here(length, outcome_bytes)? else {
            return Ok(self.start.wait());
        };
        let key = self.collect_key(command.tag)?;
        self.start.commands.collecting.remove(&key);
        let used = u32::try_from(used).expect("at most the transfer limit");
        let result = collect_result(used, command.count.into());
        self.start.commands.end(collect, Status::SUCCESS, result, Some((Payload::Buffer(buffer), used)));
        Ok(Begun::Complete(Status::SUCCESS, collect_result(failed_count, command.count.into())))
    }

    /// Executes a batch whose keys are all on this partition, or on partitions that this reactor may use in place; `None`
    /// if there is no buffer for the outcomes.
    fn execute_here(&mut self, length: usize, outcome_bytes: usize) -> Checked<Option<(Buffer, usize, u32)>> {
        // The operations are in a buffer that has room for the outcomes behind them: no command waits for a second
        // buffer.
        let own = match std::mem::replace(&mut self.start.supply, Supply::None) {
            Supply::Buffer(buffer) if buffer.len() >= length + outcome_bytes => Some(buffer),
            other => {
                self.start.supply = other;
                None
            }
        };
        let (mut buffer, is_own) = match own {
            Some(buffer) => (buffer, true),
            None => match self.start.take_for_data(outcome_bytes) {
                Some(buffer) => (buffer, false),
                None => return Ok(None),
            },
        };
        let (data, room) = if is_own {
            let (data, room) = buffer.split_at_mut(length);
            (&*data, room)
        } else {
            (&bytes(self.start.data, &self.start.supply)[..length], &mut buffer[..])
        };
        let (now, scratch) = (self.start.io.moment(), &mut self.start.commands.scratch);
        let keys = self.start.commands.namespaces.keys_mut(self.at);
        let (used, failed_count) = if let Some(access) = keys.shared() {
            run_in_place(access, now, data, room, scratch)
        } else {
            let mut partition = keys.partition().ok_or(Status::INVALID_OPCODE.with_dnr())?;
            partition.set_now(now);
            let mut writer = OutcomeWriter::new(room);
            run_here(&mut partition, data, &mut writer, scratch);
            let failed_count = writer.failed_count();
            (writer.finish(), failed_count)
        };
        if is_own {
            buffer.copy_within(length..length + used, 0);
        }
        Ok(Some((buffer, used, failed_count)))
    }

    /// Sends the operations of a batch to the partitions of their keys; `None` if all are on this one, which can
    /// execute them at once.
    fn scatter(&mut self, command: &BatchSubmit, collect: Ticket) -> Checked<Option<Begun>> {
        let (count, here) = (self.start.io.reactor_count(), self.start.io.reactor());
        let attached = self.start.commands.namespaces.get_mut(self.at);
        let namespace = attached.id;
        let keys = attached.keys().expect("a batch is on keys");
        let is_alone = keys.is_alone();
        // The log may have failed.
        drop(keys.serving_partition()?);
        let data = &bytes(self.start.data, &self.start.supply)[..command.data_bytes as usize];
        let mut owner = |operation: &Operation<'_>| keys.hash(operation.key).partition(count);
        if is_alone && Operations::new(data).map_while(Result::ok).all(|operation| owner(&operation) == here)
        {
            return Ok(None);
        }
        let mut owners = Vec::with_capacity(command.count.into());
        let mut parts: Vec<(Vec<u8>, usize)> = vec![(Vec::new(), 0); count];
        let mut operations = Operations::new(data);
        let mut start = 0;
        while let Some(Ok(operation)) = operations.next() {
            let owner = owner(&operation);
            let (part, outcome_bytes) = &mut parts[owner];
            part.extend_from_slice(&data[start..operations.offset()]);
            *outcome_bytes += operation.outcome_bytes();
            owners.push(u16::try_from(owner).expect("fewer reactors"));
            start = operations.offset();
        }
        let left_count = parts.iter().filter(|(part, _)| !part.is_empty()).count();
        let outcomes = vec![Box::default(); count];
        let outcome_bytes = command.outcome_bytes as usize;
        let scattered = Box::new(Scattered { collect, owners, outcomes, left_count, outcome_bytes });
        let key = self.collect_key(command.tag)?;
        self.start.commands.collecting.remove(&key);
        let waiting = self.start.commands.running.get_mut(collect).expect("a Collect that waits runs");
        waiting.step = Step::Collected;
        let ticket = self.start.run(self.at, Step::Scattered(scattered));
        for (owner, (operations, outcome_bytes)) in parts.into_iter().enumerate() {
            if !operations.is_empty() {
                let part = PartOfBatch { operations: operations.into(), outcome_bytes };
                let work = Work::RunPart { ticket, part };
                self.start.io.post(owner, PartitionRequest { from: here, namespace, work }.into());
            }
        }
        Ok(Some(Begun::Started { ticket, hold: Hold::None }))
    }
}
