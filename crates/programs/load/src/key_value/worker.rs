//! One lane under load, on the thread that owns it.
//!
//! ```text
//! slot: draw operations ─▶ submit one command, or Collect and Submit of a batch ─▶ … ─▶ take outcomes ─▶ again
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use host::{
    Association, AtomicFunction, AtomicOperation, Batch, Completion, ElementCode, Failure, InvalidCommand,
    KeyValueNamespace, Lane, StoreOptions, VectorFunction,
};
use wire::status::Status;

use super::own_keys::OwnKeys;
use super::value::{check, counter, fill, key};
use super::{ABANDONED, DONE, FILLING, KeyValueError, KeyValueLoad, KeyValueResult, Kind, MEASURING};
use crate::keys::Keys;
use crate::random::Prng;

/// The function of updates.
const VECTOR: (ElementCode, VectorFunction) = (ElementCode::U64, VectorFunction::ADD);

/// Content of values that are not verified.
const FILL: u8 = 0x5A;

/// Keys that are drawn for each lane until one belongs to this lane; after that any key will do.
const DRAWS_PER_LANE: u32 = 64;

/// Longest wait for completions before the phase and the deadlines are checked.
const LOOK: Duration = Duration::from_millis(20);

/// One operation.
#[derive(Clone, Copy, Debug)]
struct Operation {
    kind: Kind,
    number: u64,
    /// The store of a Modify: its value has been retrieved.
    is_second: bool,
    /// Then, whether there was one.
    is_found: bool,
}

/// A unit in flight: one command, or one batch.
struct Slot {
    operations: Vec<Operation>,
    /// Stores of Modifies whose values were retrieved.
    seconds: VecDeque<Operation>,
    submitted: Instant,
    batch: Option<Batch>,
    /// Retrieved or stored data, or the outcomes of a batch.
    buffer: Vec<u8>,
    /// Commands that have not ended.
    open_count: u8,
    collected: Option<u64>,
    failure: Option<Failure>,
}

impl Operation {
    /// Whether it brings a value.
    fn is_fetch(self) -> bool {
        self.kind == Kind::Get || self.kind == Kind::Modify && !self.is_second
    }
}

/// A lane and its load.
pub(super) struct Worker<'a> {
    lane: Lane<Vec<u8>>,
    association: Association,
    namespace: KeyValueNamespace,
    own_keys: OwnKeys,
    load: &'a KeyValueLoad,
    lane_number: u64,
    keys: Keys,
    prng: Prng,
    slots: Vec<Slot>,
    result: KeyValueResult,
    version: u64,
    inserted_count: u64,
    /// Keys that are still to be stored before the load, and where the next of them is.
    to_fill: std::ops::Range<u64>,
    /// Whether it stores only its own keys of them.
    fills_own: bool,
    /// For values of batches.
    value: Vec<u8>,
}

impl<'a> Worker<'a> {
    /// Whether it has the keys of a partition only.
    pub(super) fn is_divided(&self) -> bool {
        self.own_keys.is_divided()
    }

    pub(super) fn new(
        association: &Association,
        namespace: &KeyValueNamespace,
        load: &'a KeyValueLoad,
        number: u16,
    ) -> Result<Self, KeyValueError> {
        let largest = load.sizes.largest_bytes();
        let limit = namespace.value_bytes_max();
        if largest > limit {
            let error = InvalidCommand::ValueTooLong { length: largest.into(), limit };
            return Err(host::Error::from(error).into());
        }
        let slot = || -> Result<Slot, host::Error> {
            let mut batch = (load.batch > 1).then(|| namespace.batch()).transpose()?;
            if let Some(batch) = &mut batch {
                check_batch(batch, load)?;
            }
            Ok(Slot {
                operations: Vec::with_capacity(load.batch.into()),
                seconds: VecDeque::new(),
                submitted: Instant::now(),
                batch,
                buffer: Vec::new(),
                open_count: 0,
                collected: None,
                failure: None,
            })
        };
        let (lane_number, lanes) = (u64::from(number), u64::from(load.lanes));
        let share = |lane: u64| load.keys / lanes * lane + (load.keys % lanes).min(lane);
        let lane = association.lane()?;
        let mut own_keys = OwnKeys::new(lane.number(), load.lanes, load.keys, load.follows_partitions);
        own_keys.follow(association, namespace, Instant::now(), key);
        let to_fill = match (load.fill, own_keys.is_divided()) {
            (false, _) => 0..0,
            // Each lane passes over the others' keys.
            (true, true) => 0..load.keys,
            (true, false) => share(lane_number)..share(lane_number + 1),
        };
        Ok(Self {
            lane,
            association: association.clone(),
            namespace: *namespace,
            own_keys,
            load,
            lane_number,
            keys: Keys::new(load.distribution, load.keys, load.seed),
            prng: Prng::stream(load.seed, lane_number),
            slots: (0..load.depth).map(|_| slot()).collect::<Result<_, _>>()?,
            result: KeyValueResult::default(),
            version: lane_number << 48,
            inserted_count: 0,
            fills_own: load.fill && to_fill == (0..load.keys),
            to_fill,
            value: if load.batch > 1 { vec![FILL; largest as usize] } else { Vec::new() },
        })
    }

    /// Fills, then runs until the phase says that it is over.
    pub(super) fn run(
        mut self,
        phase: &AtomicU8,
        filled: &AtomicUsize,
        unpinned: Option<io::Error>,
    ) -> Result<KeyValueResult, KeyValueError> {
        let fills = unpinned
            .map_or(Ok(()), |error| Err(error.into()))
            .and_then(|()| if self.to_fill.is_empty() { Ok(()) } else { self.work(phase, FILLING) });
        filled.fetch_add(1, Ordering::Relaxed);
        fills?;
        while phase.load(Ordering::Relaxed) == FILLING {
            std::thread::sleep(Duration::from_micros(200));
        }
        if phase.load(Ordering::Relaxed) >= DONE {
            return Ok(self.result);
        }
        self.forget();
        self.work(phase, DONE)?;
        Ok(self.result)
    }

    /// Keeps every slot busy: while there is something to fill, or until the phase is this one. Operations in flight at
    /// the end are awaited until the run is abandoned.
    fn work(&mut self, phase: &AtomicU8, until: u8) -> Result<(), KeyValueError> {
        let mut completions = Vec::new();
        let mut was_measuring = false;
        for index in 0..self.slots.len() {
            self.start(index, Instant::now())?;
        }
        loop {
            let is_over = if until == DONE {
                let now = phase.load(Ordering::Relaxed);
                if now == MEASURING && !was_measuring {
                    was_measuring = true;
                    self.forget();
                }
                now >= DONE
            } else {
                self.to_fill.is_empty() || phase.load(Ordering::Relaxed) >= DONE
            };
            if self.lane.outstanding() == 0 {
                return Ok(());
            }
            self.lane.wait(&mut completions, LOOK);
            let now = Instant::now();
            if self.to_fill.is_empty() {
                self.own_keys.follow(&self.association, &self.namespace, now, key);
            }
            if phase.load(Ordering::Relaxed) == ABANDONED {
                self.give_up("no answer in the time after the end".into());
                return Ok(());
            }
            for completion in completions.drain(..) {
                let index = self.on_completion(completion);
                // Operations that complete after the end count only if later ones depend on them.
                if self.slots[index].open_count == 0 && (!is_over || until != DONE) {
                    self.finish(index, now);
                    if !is_over {
                        self.start(index, now)?;
                    }
                }
            }
            if let Some(over) = self.lane.over() {
                if until != DONE {
                    return Err(over.clone().into());
                }
                // The results so far are kept.
                let over = over.to_string();
                self.give_up(over);
                return Ok(());
            }
        }
    }

    /// Counts operations in flight as failed.
    fn give_up(&mut self, why: String) {
        let open = self.slots.iter().filter(|slot| slot.open_count > 0);
        let count: usize = open.map(|slot| slot.operations.len()).sum();
        self.fail(Some(why), count.max(1));
    }

    /// Forgets the results so far, except for failures.
    fn forget(&mut self) {
        let KeyValueResult { failed_count, first_failure, mismatch_count, .. } =
            std::mem::take(&mut self.result);
        self.result =
            KeyValueResult { failed_count, first_failure, mismatch_count, ..KeyValueResult::default() };
    }

    fn draw(&mut self, index: usize) -> Option<Operation> {
        if let Some(second) = self.slots[index].seconds.pop_front() {
            return Some(second);
        }
        if self.load.fill && !self.to_fill.is_empty() {
            let (own_keys, fills_own) = (&self.own_keys, self.fills_own);
            let is_meant = |number: &u64| !fills_own || own_keys.is_own(Some(*number), || key(*number));
            let number = self.to_fill.find(is_meant)?;
            return Some(Operation { kind: Kind::Set, number, is_second: false, is_found: false });
        }
        let kind = self.load.mix.kind(self.prng.below(100));
        let mut number = self.draw_number(kind);
        if self.own_keys.is_divided() {
            for _ in 0..DRAWS_PER_LANE * u32::from(self.load.lanes) {
                let is_own = match kind {
                    Kind::Add => self.own_keys.is_own(None, || counter(number)),
                    _ => self.own_keys.is_own(Some(number), || key(number)),
                };
                if is_own {
                    break;
                }
                number = self.draw_number(kind);
            }
        }
        Some(Operation { kind, number, is_second: false, is_found: false })
    }

    fn draw_number(&mut self, kind: Kind) -> u64 {
        match kind {
            Kind::Insert => {
                self.inserted_count += 1;
                // Beyond the keys that are there, and each lane's apart.
                self.load.keys + self.inserted_count * u64::from(self.load.lanes) + self.lane_number
            }
            _ => self.keys.draw(&mut self.prng),
        }
    }

    fn size(&mut self) -> u32 {
        let entries = self.load.sizes.entries();
        if let [(bytes, _)] = entries {
            return *bytes;
        }
        let mut number = self.prng.below(100);
        for &(bytes, percent) in entries {
            match number.checked_sub(percent.into()) {
                Some(left) => number = left,
                None => return bytes,
            }
        }
        self.load.sizes.largest_bytes()
    }

    /// Makes the first bytes of `value` the value to store next under a key. Returns their number.
    fn next_value(&mut self, number: u64, value: &mut Vec<u8>) -> usize {
        let length = self.size() as usize;
        if value.len() < length {
            value.resize(length, FILL);
        }
        if self.load.verify {
            self.version += 1;
            fill(number, self.version, &mut value[..length]);
        }
        length
    }

    /// Submits the next command or batch of a slot.
    fn start(&mut self, index: usize, now: Instant) -> Result<(), KeyValueError> {
        let slot = &mut self.slots[index];
        slot.operations.clear();
        (slot.submitted, slot.collected, slot.failure) = (now, None, None);
        if slot.batch.is_some() { self.start_batch(index) } else { self.start_one(index) }
    }

    fn start_one(&mut self, index: usize) -> Result<(), KeyValueError> {
        let Some(operation) = self.draw(index) else { return Ok(()) };
        let number = operation.number;
        let namespace = self.namespace;
        let (command, buffer) = match operation.kind {
            Kind::Add => {
                let add = AtomicOperation::new(AtomicFunction::ADD, 1).or_create(0);
                (namespace.atomic(&counter(number), &add), None)
            }
            Kind::Update => (namespace.vector_scalar(&key(number), VECTOR, 1), None),
            _ if !operation.is_fetch() => {
                // Long values are not written again for each store: the old content will do.
                let mut buffer = std::mem::take(&mut self.slots[index].buffer);
                let length = self.next_value(number, &mut buffer);
                buffer.truncate(length);
                let length = u32::try_from(length).expect("sizes have 32 bits");
                (namespace.store(&key(number), length, StoreOptions::empty()), Some(buffer))
            }
            _ => {
                let room = self.load.sizes.largest_bytes();
                let mut buffer = std::mem::take(&mut self.slots[index].buffer);
                buffer.resize(room as usize, 0);
                (namespace.retrieve(&key(number), room), Some(buffer))
            }
        };
        let command = command.map_err(host::Error::from)?;
        self.slots[index].operations.push(operation);
        self.slots[index].open_count = 1;
        self.submit(command, buffer, index as u64 * 2)
    }

    fn start_batch(&mut self, index: usize) -> Result<(), KeyValueError> {
        let mut batch = self.slots[index].batch.take().expect("a slot of batches");
        batch.clear();
        for _ in 0..self.load.batch {
            let Some(operation) = self.draw(index) else { break };
            let number = operation.number;
            let pushed = match operation.kind {
                Kind::Add => {
                    let add = AtomicOperation::new(AtomicFunction::ADD, 1).or_create(0);
                    batch.atomic(&counter(number), &add)
                }
                Kind::Update => batch.vector_scalar(&key(number), VECTOR, 1, 0),
                _ if !operation.is_fetch() => {
                    let mut value = std::mem::take(&mut self.value);
                    let length = self.next_value(number, &mut value);
                    let pushed = batch.store(&key(number), &value[..length], StoreOptions::empty());
                    self.value = value;
                    pushed
                }
                _ => batch.retrieve(&key(number), self.load.sizes.largest_bytes()),
            };
            pushed.map_err(host::Error::from)?;
            self.slots[index].operations.push(operation);
        }
        if batch.is_empty() {
            self.slots[index].batch = Some(batch);
            return Ok(());
        }
        // Slots have one batch each.
        let tag = u32::try_from(index).expect("few slots");
        let slot = &mut self.slots[index];
        let mut into = std::mem::take(&mut slot.buffer);
        into.resize(batch.outcome_bytes() as usize, 0);
        let data = batch.take_data();
        let (collect, submit) = (batch.collect(tag), batch.submit(tag, data.len()));
        slot.batch = Some(batch);
        slot.open_count = 2;
        self.submit(collect, Some(into), index as u64 * 2)?;
        self.submit(submit, Some(data), index as u64 * 2 + 1)
    }

    fn submit(
        &mut self,
        command: host::Command,
        buffer: Option<Vec<u8>>,
        user: u64,
    ) -> Result<(), KeyValueError> {
        self.lane.submit(command, buffer, user).map_err(|refused| {
            let error = match self.lane.over() {
                Some(over) => over.clone(),
                None => host::Error::Refused { command: "load", reason: refused.reason },
            };
            error.into()
        })
    }

    /// Passes a completion to its slot, and returns the slot.
    fn on_completion(&mut self, completion: Completion<Vec<u8>>) -> usize {
        let index = usize::try_from(completion.user / 2).expect("a slot");
        let slot = &mut self.slots[index];
        slot.open_count -= 1;
        let buffer = completion.buffer.unwrap_or_default();
        match (&mut slot.batch, completion.user % 2) {
            (Some(batch), 1) => batch.restore(buffer),
            _ => slot.buffer = buffer,
        }
        match completion.result {
            Ok(result) if completion.user.is_multiple_of(2) => slot.collected = Some(result),
            Ok(_) => {}
            Err(failure) => {
                slot.failure = slot.failure.or(Some(failure));
                if completion.user % 2 == 1 && slot.open_count > 0 {
                    // Its Submit is not sent, so the Collect would wait forever.
                    self.lane.cancel(completion.user - 1);
                }
            }
        }
        index
    }

    /// Counts the operations of a slot.
    fn finish(&mut self, index: usize, now: Instant) {
        let ns = u64::try_from((now - self.slots[index].submitted).as_nanos()).unwrap_or(u64::MAX);
        let operations = std::mem::take(&mut self.slots[index].operations);
        let buffer = std::mem::take(&mut self.slots[index].buffer);
        let failure = self.slots[index].failure;
        if self.slots[index].batch.is_some() {
            match (failure, self.slots[index].collected) {
                (None, Some(result)) => {
                    for (operation, outcome) in operations.iter().zip(Batch::outcomes(&buffer, result)) {
                        self.count(index, *operation, outcome.status, outcome.result, outcome.data, ns);
                    }
                }
                _ => self.fail(failure.map(|failure| failure.to_string()), operations.len()),
            }
        } else if let Some(&operation) = operations.first() {
            match failure {
                Some(Failure::Status(status)) => self.count(index, operation, status, 0, &[], ns),
                Some(failure) => self.fail(Some(failure.to_string()), 1),
                None => {
                    let length = self.slots[index].collected.unwrap_or(0);
                    let held = usize::try_from(length).unwrap_or(usize::MAX).min(buffer.len());
                    self.count(index, operation, Status::SUCCESS, length, &buffer[..held], ns);
                }
            }
        }
        let slot = &mut self.slots[index];
        (slot.operations, slot.buffer) = (operations, buffer);
    }

    fn fail(&mut self, failure: Option<String>, count: usize) {
        self.result.failed_count += count as u64;
        if self.result.first_failure.is_none() {
            self.result.first_failure = failure;
        }
    }

    fn count(
        &mut self,
        index: usize,
        operation: Operation,
        status: Status,
        length: u64,
        data: &[u8],
        ns: u64,
    ) {
        let Operation { kind, number, is_second, .. } = operation;
        let is_fetched = operation.is_fetch();
        let is_absent = is_fetched && status.is(Status::KEY_DOES_NOT_EXIST);
        if !status.is_success() && !is_absent {
            return self.fail(Some(format!("{}: {status}", kind.name())), 1);
        }
        let is_found = if is_second { operation.is_found } else { is_fetched && !is_absent };
        if is_fetched && is_found {
            self.result.value_bytes += data.len() as u64;
            if self.load.verify && (length != data.len() as u64 || !check(number, data)) {
                self.result.mismatch_count += 1;
            }
        }
        if kind == Kind::Modify && !is_second {
            let second = Operation { is_second: true, is_found, ..operation };
            return self.slots[index].seconds.push_back(second);
        }
        if matches!(kind, Kind::Set | Kind::Insert | Kind::Modify) {
            self.result.value_bytes += u64::from(self.load.sizes.largest_bytes());
        }
        let tally = &mut self.result.kinds[kind as usize];
        tally.count += 1;
        tally.found_count += u64::from(is_found);
        tally.latency.record(ns);
    }
}

/// Whether a batch takes as many operations of each kind as the load has in one.
fn check_batch(batch: &mut Batch, load: &KeyValueLoad) -> Result<(), host::Error> {
    let longest = load.sizes.largest_bytes();
    let value = vec![0; longest as usize];
    let keys = || (0..load.batch).map(|number| key(number.into()));
    if load.mix.has(Kind::Get) || load.mix.has(Kind::Modify) {
        keys().try_for_each(|key| batch.retrieve(&key, longest))?;
        batch.clear();
    }
    keys().try_for_each(|key| batch.store(&key, &value, StoreOptions::empty()))?;
    batch.clear();
    Ok(())
}
