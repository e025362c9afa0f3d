//! Batches of hosts: two commands each, whose operations are judged one by one, as commands of their own that begin and
//! end with the batch. docs/kv-commands.md §4
//!
//! ```text
//! Collect ─▶ ends with the outcomes: each is judged                │ with a failure: the operations are lost, or
//! Submit  ─▶ ends with their number, and that of those that failed │ were not executed, if Submit was refused
//!               └── fails, while Collect waits: the host cancels Collect
//! ```

use host_core::{Batch, Completion, Failure, KeyValueNamespace};
use wire::kv::Key;
use wire::kv::batch::{StoreAttributes, collect_result};
use wire::status::Status;

use super::World;
use super::pair_command::{Half, OpenBatch, Operation, Verb, draw_mode};
use super::pairs::{OwnKeys, PairCommand, Pairs, What, draw_atomic, draw_vector, explanation, unexplained};
use crate::coverage::Point;
use crate::pair_model::{Action, Origin, VectorWork, value};
use crate::random::Random;
use crate::shared::Shared;

/// Operations of a batch, at most.
const OPERATION_COUNT_MAX: u64 = 12;

/// An outcome in the buffer of Collect, with its cause if it is a failure that is no answer about a key.
struct Outcome {
    status: Status,
    result: u64,
    data: Vec<u8>,
    cause: Option<&'static str>,
}

impl Pairs {
    /// Draws an operation and begins it; `None` if no more can be judged on its key.
    fn push(
        &mut self,
        batch: &mut Batch,
        (operations, own): (&[Operation], Option<OwnKeys>),
        choice: &mut Random,
        now_ns: u64,
    ) -> Option<Operation> {
        // Now and then the key of the operation before.
        let same = operations.last().filter(|_| choice.one_in(4)).map(|last| last.key);
        let drawn = self.own_key(choice.below(self.settings.key_count as u64) as usize, own);
        let at = same.unwrap_or(drawn);
        let key = Key::new(self.model.name(at).as_bytes()).filter(|_| self.model.has_room(at))?;
        let room = |choice: &mut Random| {
            let whole = self.settings.item_bytes_max as u64;
            if choice.one_in(3) { choice.below(24) as u32 } else { choice.below(whole) as u32 }
        };
        let (verb, action, room_bytes, pushed) = match choice.below(12) {
            0..3 => {
                let room_bytes = room(choice);
                (Verb::Retrieve, Action::Get, room_bytes, batch.retrieve(&key, room_bytes))
            }
            3 => (Verb::ExistInBatch, Action::Get, 0, batch.exist(&key)),
            4 => (Verb::Delete, Action::Delete { is_told: false }, 0, batch.delete(&key)),
            5 | 6 => {
                let operation = draw_atomic(choice);
                let pushed = batch.atomic(&key, &operation);
                (Verb::Atomic, Action::Atomic(operation), 0, pushed)
            }
            7 | 8 => {
                let vector = draw_vector(choice, self.settings.value_bytes_max);
                let kind = vector.element;
                let room_bytes = room(choice);
                let (verb, room_bytes, pushed) = match &vector.work {
                    VectorWork::Scalar { function, operand, fetches: true } => {
                        let room_bytes = room_bytes.max(1);
                        let pushed = batch.vector_scalar(&key, (kind, *function), *operand, room_bytes);
                        (Verb::VectorFetch, room_bytes, pushed)
                    }
                    VectorWork::Scalar { function, operand, fetches: false } => {
                        let pushed = batch.vector_scalar(&key, (kind, *function), *operand, 0);
                        (Verb::VectorUpdate, 0, pushed)
                    }
                    VectorWork::Vector { function, operand } => {
                        let pushed = batch.vector_vector(&key, (kind, *function), operand, 0);
                        (Verb::VectorUpdate, 0, pushed)
                    }
                    VectorWork::Reduce { function, initial } => {
                        let pushed = batch.vector_reduce(&key, (kind, *function), *initial);
                        (Verb::VectorReduce { mask: vector.mask() }, 0, pushed)
                    }
                    VectorWork::Filter { comparison, operand } => {
                        let pushed = batch.vector_filter(&key, (kind, *comparison), *operand, room_bytes);
                        (Verb::VectorFilter, room_bytes, pushed)
                    }
                };
                (verb, Action::Vector(vector), room_bytes, pushed)
            }
            _ => {
                let length = self.draw_length(choice, self.settings.item_bytes_max);
                let value = value(self.model.next_id, length);
                let (mode, options) = draw_mode(choice);
                let mut attributes = StoreAttributes::default();
                let pushed = if choice.one_in(4) {
                    let ttl_s = if choice.one_in(2) { choice.between(1, 8) as u32 } else { 0 };
                    attributes = StoreAttributes { ttl_s, flags: choice.next() as u32 };
                    batch.store_with(key.as_bytes(), &value, options, attributes)
                } else {
                    batch.store(&key, &value, options)
                };
                let StoreAttributes { ttl_s, flags } = attributes;
                (Verb::Store, Action::Store { mode, value, flags, exptime: ttl_s.into() }, 0, pushed)
            }
        };
        pushed.ok()?;
        let before = operations.iter().rev().find(|operation| operation.key == at);
        let origin = Origin::Batch { after: before.map(|operation| operation.id) };
        let id = self.model.begin(at, action, origin, now_ns);
        Some(Operation { key: at, id, verb, room_bytes })
    }

    /// Length of a value that a host stores, bytes.
    pub(super) fn draw_length(&self, choice: &mut Random, limit: usize) -> usize {
        let high = self.settings.value_bytes_max.min(limit);
        let low = self.settings.value_bytes_min.min(high);
        let length = choice.scaled(low as u64, high as u64);
        // Numbers, and short vectors, are as frequent as all others.
        (if choice.one_in(2) { choice.pick(&[4, 8, 8, 16]) } else { length }) as usize
    }

    /// Judges the outcomes of a batch. Returns how many operations have failed.
    fn judge_outcomes(
        &mut self,
        shared: &mut Shared,
        operations: &[Operation],
        outcomes: &[Outcome],
    ) -> Result<u32, String> {
        if outcomes.len() != operations.len() {
            return Err(format!("{} outcomes of {} operations", outcomes.len(), operations.len()));
        }
        let mut failed_count = 0;
        for (operation, outcome) in operations.iter().zip(outcomes) {
            let &Operation { key, id, verb, room_bytes } = operation;
            let Outcome { status, result, data, cause } = outcome;
            let is_good = status.is_success();
            failed_count += u32::from(!is_good);
            let bytes = if is_good && verb.brings() { (*result).min(room_bytes.into()) } else { 0 };
            if data.len() as u64 != bytes {
                return Err(format!("{} bytes of data instead of {bytes} of {operation:?}", data.len()));
            }
            let answered = if is_good { Ok(*result) } else { Err(Some(*status)) };
            let answer = self.answer((key, id), verb, answered, Some(data.as_slice().into()));
            let ended = answered.map_err(|_| Failure::Status(*status));
            let cause = match (&answer, cause) {
                (Some(answer), _) => explanation(answer),
                (None, Some(cause)) => cause,
                (None, None) => return Err(unexplained(verb.name(), ended)),
            };
            shared.coverage.reach(Point::End {
                command: "operation of a batch",
                outcome: ended.into(),
                cause,
            });
            match answer {
                Some(answer) => self.model.end(key, id, &answer, shared.now_ns)?,
                None if status.is(Status::NAMESPACE_NOT_READY) => self.model.deny(key, id)?,
                None => self.model.lose(key, id, shared.now_ns),
            }
        }
        Ok(failed_count)
    }

    /// Both halves of a batch have ended, and the outcome of its operations is not known, unless Collect has succeeded.
    fn judge_halves(&mut self, shared: &mut Shared, batch: OpenBatch) -> Result<(), String> {
        let OpenBatch { operations, collected, submitted, may_miss_collect } = batch;
        let (Some(collected), Some(submitted)) = (collected, submitted) else {
            return Err("a half of a batch is missing".into());
        };
        let reach = |shared: &mut Shared, half: Half, outcome: Result<u64, Failure>, cause| {
            shared.coverage.reach(Point::End { command: half.name(), outcome: outcome.into(), cause });
        };
        let count = operations.len() as u32;
        let (collect, submit) = (collected.err(), submitted.err());
        let submit_status = submit.and_then(|(failure, _)| failure.status());
        // Without its Collect it is refused.
        let is_alone =
            may_miss_collect && submit_status.is_some_and(|status| status.is(Status::COMMAND_SEQUENCE_ERROR));
        let cause = match (submitted, submit) {
            (_, Some((failure, cause))) => cause
                .or_else(|| is_alone.then_some("its Collect has ended"))
                .ok_or_else(|| unexplained("Batch Submit", Err(failure)))?,
            (Ok(result), _) => {
                let failed_count = collected.map_or(result as u32, |count| count);
                if result != collect_result(failed_count, count) {
                    return Err(format!("a Submit of {count} operations ends with {result:#x}"));
                }
                "done"
            }
            (Err(_), None) => unreachable!("it has succeeded or failed"),
        };
        reach(shared, Half::Submit, submitted.map_err(|(failure, _)| failure), cause);
        let Some((failure, cause)) = collect else {
            reach(shared, Half::Collect, Ok(0), "done");
            return match submit_status {
                Some(status) => Err(format!("Collect has outcomes of a Submit that ended with {status}")),
                None => Ok(()),
            };
        };
        let is_refused_too =
            submit_status.is_some_and(|status| failure.status().is_some_and(|own| own.is(status)));
        let cause = cause
            .or_else(|| is_refused_too.then_some("its Submit was refused"))
            .ok_or_else(|| unexplained("Batch Collect", Err(failure)))?;
        reach(shared, Half::Collect, Err(failure), cause);
        let may_be_executed = submit.is_none_or(|(failure, _)| failure.may_have_happened());
        for Operation { key, id, .. } in operations {
            match may_be_executed {
                true => self.model.lose(key, id, shared.now_ns),
                false => self.model.deny(key, id)?,
            }
        }
        Ok(())
    }
}

impl World {
    /// Submits a batch, if any operation can be judged.
    pub(super) fn submit_batch(
        &mut self,
        (host, lane): (usize, usize),
        namespace: &KeyValueNamespace,
        choice: &mut Random,
    ) {
        let now_ns = self.shared.now_ns;
        let own = self.own_keys(lane, namespace);
        let Some(pairs) = &mut self.pairs else { return };
        let Ok(mut batch) = namespace.batch() else {
            return self.shared.find("the namespace has no batches");
        };
        let mut operations = Vec::new();
        for _ in 0..choice.scaled(1, OPERATION_COUNT_MAX) {
            operations.extend(pairs.push(&mut batch, (&operations, own), choice, now_ns));
        }
        if operations.is_empty() {
            return;
        }
        if operations.windows(2).any(|two| two[0].key == two[1].key) {
            self.shared.coverage.reach(Point::Form("operations of a batch on one key"));
        }
        self.shared.say(|| format!("host {host} lane {lane}: a batch of {operations:?}"));
        let number = self.commands.next;
        pairs.batches.insert(number, OpenBatch { operations, ..OpenBatch::default() });
        // Collect has the number of the batch, and Submit the next one.
        let tag = number as u32;
        let data = batch.take_data();
        let (collect, submit) = (batch.collect(tag), batch.submit(tag, data.len()));
        let buffer = vec![0xee; batch.outcome_bytes() as usize];
        let what = |half| What::Batch { half, batch: number };
        self.submit_one_on_key((host, lane), collect, Some(buffer.into()), what(Half::Collect));
        self.submit_one_on_key((host, lane), submit, Some(data.into()), what(Half::Submit));
    }

    /// A half of a batch has ended.
    pub(super) fn on_batch_completion(
        &mut self,
        (number, half, batch): (u64, Half, u64),
        command: &PairCommand,
        (has_lost, cause): (bool, Option<&'static str>),
        completion: Completion<Vec<u8>>,
    ) {
        let Completion { result, received, buffer, .. } = completion;
        let outcomes = match (half, result) {
            (Half::Collect, Ok(result)) => {
                Some(self.outcomes(number, command, &buffer.unwrap_or_default(), (result, received)))
            }
            _ => None,
        };
        let has_waited =
            self.shared.now_ns - command.begin_ns >= self.shared.scenario.hosts.command_timeout_ns;
        let is_cancelled = self.commands.cancelled.contains(&batch);
        let Some(pairs) = &mut self.pairs else { return };
        let Some(mut open) = pairs.batches.remove(&batch) else { return };
        let judged = match outcomes {
            Some(outcomes) => outcomes
                .and_then(|outcomes| pairs.judge_outcomes(&mut self.shared, &open.operations, &outcomes)),
            None => Ok(0),
        };
        let failed_count = match judged {
            Ok(failed_count) => failed_count,
            Err(finding) => return self.shared.find(format!("batch {batch}: {finding}")),
        };
        let is_early = open.collected.is_some_and(|collected| collected.is_err());
        if half == Half::Submit {
            open.may_miss_collect = has_lost || has_waited || is_cancelled || is_early;
        }
        match half {
            Half::Collect => {
                open.collected = Some(result.map(|_| failed_count).map_err(|failure| (failure, cause)));
            }
            Half::Submit => open.submitted = Some(result.map_err(|failure| (failure, cause))),
        }
        if open.collected.is_some() && open.submitted.is_some() {
            if let Err(finding) = pairs.judge_halves(&mut self.shared, open) {
                self.shared.find(format!("batch {batch}: {finding}"));
            }
            return;
        }
        pairs.batches.insert(batch, open);
        if half == Half::Submit && result.is_err() {
            // A Submit that was refused, or never arrived, may leave its Collect waiting.
            self.commands.cancelled.insert(batch);
            self.cancel(batch, command.host, command.lane);
        }
    }

    /// The outcomes in the buffer of a Collect, with the causes of those that may need one.
    fn outcomes(
        &mut self,
        number: u64,
        command: &PairCommand,
        buffer: &[u8],
        (result, received): (u64, u32),
    ) -> Result<Vec<Outcome>, String> {
        let bytes = buffer.get(..received as usize).unwrap_or_default();
        let mut outcomes = Vec::new();
        for outcome in Batch::outcomes(bytes, result) {
            let status = outcome.status;
            let failure =
                Failure::GaveUp { status, retry_count: 0, waited: host_core::failure::Waited::default() };
            let cause =
                if status.is_success() { None } else { self.cause_on_pairs(number, command, failure) };
            let data = outcome.data.to_vec();
            outcomes.push(Outcome { status, result: outcome.result, data, cause });
        }
        let count = outcomes.len() as u32;
        match result == collect_result(received, count) {
            true => Ok(outcomes),
            false => Err(format!("Collect ends with {result:#x}, {received} bytes and {count} outcomes")),
        }
    }
}
