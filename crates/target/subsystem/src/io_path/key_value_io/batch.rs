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

use linux::Moment;
use memory::{Buffer, Payload};
use reactor::Io;
use store::Ticket;
use wire::kv::batch::{
    BatchCollect, BatchSubmit, OUTCOME_HEADER_BYTES, Operation, Operations, OutcomeWriter, Outcomes,
    collect_result,
};
use wire::kv::presence::{Presence, presence_bytes};
use wire::opcode::KvOpcode;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::io_path::attached::AttachedIndex;
use crate::io_path::command_effects::KEY_VALUE_WRITING;
use crate::io_path::commands::{CollectKey, Commands};
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
        let has_bit =
            matches!(operation.opcode, KvOpcode::EXIST | KvOpcode::PIN) && operation.room_bytes == 0;
        if command.is_presence && !has_bit {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        count += 1;
        // At most 2^20 / 12 operations of 2^32 bytes each: 64 bits hold it.
        outcome_bytes += operation.outcome_bytes();
    }
    if command.is_presence {
        outcome_bytes = presence_bytes(command.count);
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

impl<I: Io<Message>> Start<'_, I> {
    fn collect_key(&self, tag: u32) -> Checked<CollectKey> {
        match self.caller.owner {
            Owner::Lane { index, generation, .. } => Ok((index, generation, self.sqe.nsid(), tag)),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }

    /// Waits for the Submit with the same tag, with the data of the capsule that it keeps.
    pub(super) fn wait_for_submit(&mut self, tag: u32, kept: Box<[u8]>) -> Checked<Begun> {
        let key = self.collect_key(tag)?;
        if self.commands.collecting.contains_key(&key) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        let kept_bytes = kept.len();
        let running = Running::new(self.caller.owner, *self.sqe, None, Step::Collecting(kept));
        let ticket = self.commands.keep(self.ticket, running);
        if kept_bytes > 0 {
            self.commands.running.charge_kept(ticket, kept_bytes);
        }
        self.commands.collecting.insert(key, ticket);
        Ok(Begun::Started { ticket, hold: Hold::None })
    }

    /// The command with this opcode that waits for a Submit with this tag.
    pub(super) fn waiting_for(&mut self, opcode: KvOpcode, tag: u32) -> Checked<(Ticket, Sqe)> {
        let key = self.collect_key(tag)?;
        let ticket = self.commands.collecting.get(&key).copied();
        let waiting = ticket.and_then(|ticket| Some((ticket, self.commands.running.get_mut(ticket)?.sqe)));
        let waiting = waiting.filter(|(_, sqe)| sqe.opcode == opcode.raw());
        waiting.ok_or(Status::COMMAND_SEQUENCE_ERROR.with_dnr())
    }

    /// The command that waited for a Submit does so no longer.
    pub(super) fn found_submit(&mut self, tag: u32) -> Checked<()> {
        let key = self.collect_key(tag)?;
        self.commands.collecting.remove(&key);
        Ok(())
    }

    /// Ends a refused Submit, after the command that has waited for it: hosts that repeat both do so in the order in which
    /// they end.
    pub(super) fn refuse_submit(
        &mut self,
        at: AttachedIndex,
        (waiting, tag): (Ticket, u32),
        status: Status,
    ) -> Checked<Begun> {
        self.found_submit(tag)?;
        self.commands.end(waiting, status, 0, None);
        let ticket = self.run(at, Step::Between);
        self.commands.end(ticket, status, 0, None);
        Ok(Begun::Started { ticket, hold: Hold::None })
    }
}

impl<I: Io<Message>> BatchStart<'_, '_, I> {
    /// Waits for the Submit with the same tag.
    pub(crate) fn collect(&mut self, command: &BatchCollect) -> Checked<Begun> {
        // A value may be longer than a transfer, also beside blocks: MDTS is not for this command.
        let length = command.buffer_bytes as usize;
        if length == 0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        self.start.check_room(length)?;
        self.start.wait_for_submit(command.tag, Box::default())
    }

    /// Executes a batch. If it is refused, so is the Collect that waits for it.
    pub(crate) fn submit(&mut self, command: &BatchSubmit) -> Checked<Begun> {
        let (collect, sqe) = self.start.waiting_for(KvOpcode::BATCH_COLLECT, command.tag)?;
        match self.execute(command, (collect, &sqe)) {
            Err(status) => self.start.refuse_submit(self.at, (collect, command.tag), status),
            begun => begun,
        }
    }

    fn execute(&mut self, command: &BatchSubmit, (collect, sqe): (Ticket, &Sqe)) -> Checked<Begun> {
        let (length, outcome_bytes) = (command.data_bytes as usize, command.outcome_bytes as usize);
        if BatchCollect::from_sqe(sqe).buffer_bytes < command.outcome_bytes {
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
        let executed = if command.is_presence {
            self.look_up_here(length, command.count)?
        } else {
            self.execute_here(length, outcome_bytes)?
        };
        let Some((buffer, used, failed_count)) = executed else { return Ok(self.start.wait()) };
        self.start.found_submit(command.tag)?;
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
        let (used, failed_count) = run(self.start.commands, self.start.io.moment(), self.at, data, room)?;
        if is_own {
            buffer.copy_within(length..length + used, 0);
        }
        Ok(Some((buffer, used, failed_count)))
    }

    /// As [`execute_here`](Self::execute_here), for a batch whose outcomes are one bit each.
    #[cold]
    fn look_up_here(&mut self, length: usize, count: u16) -> Checked<Option<(Buffer, usize, u32)>> {
        let used = presence_bytes(count);
        let Some(mut buffer) = self.start.take_for_data(used) else { return Ok(None) };
        let mut outcomes = vec![0; usize::from(count) * OUTCOME_HEADER_BYTES];
        let data = &bytes(self.start.data, &self.start.supply)[..length];
        let (_, failed_count) =
            run(self.start.commands, self.start.io.moment(), self.at, data, &mut outcomes)?;
        let fits = Presence::write(Outcomes::new(&outcomes), count, &mut buffer);
        debug_assert!(fits, "as many bytes as counted");
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
        let outcome_bytes = parts.iter().map(|(_, outcome_bytes)| outcome_bytes).sum();
        let is_presence = command.is_presence;
        let scattered =
            Box::new(Scattered { collect, owners, outcomes, left_count, outcome_bytes, is_presence });
        self.start.found_submit(command.tag)?;
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

/// Executes the operations of a batch whose keys this reactor may use in place. Returns the bytes of the outcomes and the
/// number of failures.
fn run(
    commands: &mut Commands,
    now: Moment,
    at: AttachedIndex,
    data: &[u8],
    room: &mut [u8],
) -> Checked<(usize, u32)> {
    let Commands { namespaces, scratch, .. } = commands;
    let keys = namespaces.keys_mut(at);
    if let Some(access) = keys.shared() {
        return Ok(run_in_place(access, now, data, room, scratch));
    }
    let mut partition = keys.partition().ok_or(Status::INVALID_OPCODE.with_dnr())?;
    partition.set_now(now);
    let mut writer = OutcomeWriter::new(room);
    run_here(&mut partition, data, &mut writer, scratch);
    let failed_count = writer.failed_count();
    Ok((writer.finish(), failed_count))
}
