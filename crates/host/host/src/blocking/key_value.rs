//! Blocking calls on a key-value namespace, on lanes of the calling thread.

use host_core::failure::Failure;
use host_core::flush_epoch::FlushEpoch;
use host_core::key_value::{AtomicOutcome, Batch, DividedBatch, KeyValueNamespace, PartitionMap, Pin};
use host_core::namespace::InvalidCommand;
use host_core::submit::{Command, Completion, RefusedReason};
use wire::kv::batch::{Operation, Outcomes};
use wire::kv::operation::{AtomicFunction, AtomicOperation, ElementCode, VectorComparison, VectorFunction};
use wire::kv::presence::Presence;
use wire::kv::{Key, StoreOptions};
use wire::opcode::KvOpcode;

use super::WAIT;
use crate::address::Address;
use crate::association::Association;
use crate::error::Error;
use crate::key_value_outcome::{
    FIRST_BATCH_TAG, FIRST_BYTES, LIST_BYTES, is_unmet_condition, listed_keys, present,
};
use crate::lane::Lane;
use crate::options::Options;

/// Maximum buffer kept for the next value, bytes.
const KEPT_BYTES_MAX: u32 = 1 << 20;

/// User values of the two commands of a batch.
const COLLECT: u64 = 1;
const SUBMIT: u64 = 2;

/// A blocking handle of a [`KeyValueNamespace`].
///
/// ```no_run
/// use nvlane_host::{BlockingKeyValue, Key, Options};
///
/// let address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:cache".parse()?;
/// let mut cache = BlockingKeyValue::connect(&address, Options::default())?;
/// let key = Key::new(b"greeting").expect("1 to 16 bytes");
/// cache.store(&key, b"hello")?;
/// assert_eq!(cache.retrieve(&key)?.as_deref(), Some(&b"hello"[..]));
/// cache.fetch_add(&Key::new(b"visits").expect("1 to 16 bytes"), 1, Some(0))?;
/// # Ok::<(), nvlane_host::Error>(())
/// ```
///
/// With as many [lanes](Options::lanes) as the target has partitions of the keys, each key has a lane near its
/// partition, and batches are divided among the lanes ([`PartitionMap`]). Other targets, and fewer lanes, are used through
/// one lane.
#[derive(Debug)]
pub struct BlockingKeyValue {
    /// Those with the numbers from 1 if there are several; the first one is for everything that is not of one key.
    lanes: Vec<Lane<Vec<u8>>>,
    /// Whether the association is this handle's own, so that its lanes may be all of it.
    has_all_lanes: bool,
    /// How keys are divided among lanes, and the number of these; `None` if all take the first lane.
    map: Option<(PartitionMap, u16)>,
    /// The scan of the namespaces that the map comes from.
    scan_count: u64,
    flush_epoch: FlushEpoch,
    namespace: KeyValueNamespace,
    association: Association,
    completions: Vec<Completion<Vec<u8>>>,
    /// Reused by the next call.
    buffer: Vec<u8>,
    /// Length of the last value, bytes.
    value_bytes: u32,
    next_tag: u32,
}

/// The end of a batch on one lane.
struct Collected {
    /// That of Collect.
    buffer: Vec<u8>,
    /// The result of Collect.
    result: Result<u64, Failure>,
}

impl BlockingKeyValue {
    /// Connects to the namespace that `address` names, or to the only key-value namespace of the subsystem.
    ///
    /// # Errors
    /// As [`Association::connect`], [`Association::addressed_key_value`] and [`Association::lane`].
    pub fn connect(address: &Address, options: Options) -> Result<Self, Error> {
        let lanes = options.lanes.max(1);
        let association = Association::connect(address, Options { lanes, ..options })?;
        let namespace = association.addressed_key_value()?;
        Ok(Self { has_all_lanes: lanes > 1, ..Self::new(&association, namespace)? })
    }

    /// A handle of a namespace of an existing association, with a new lane for the calling thread.
    ///
    /// # Errors
    /// As [`Association::lane`].
    pub fn new(association: &Association, namespace: KeyValueNamespace) -> Result<Self, Error> {
        let flush_epoch = FlushEpoch::default();
        let mut lane = association.lane()?;
        lane.share_flush_epoch(flush_epoch.clone());
        Ok(Self {
            lanes: vec![lane],
            has_all_lanes: false,
            map: None,
            scan_count: 0,
            flush_epoch,
            namespace,
            association: association.clone(),
            completions: Vec::new(),
            buffer: Vec::new(),
            value_bytes: FIRST_BYTES,
            next_tag: FIRST_BATCH_TAG,
        })
    }

    /// The namespace: its limits, and the constructor of its commands.
    #[must_use]
    pub fn namespace(&self) -> &KeyValueNamespace {
        &self.namespace
    }

    /// The association.
    #[must_use]
    pub fn association(&self) -> &Association {
        &self.association
    }

    /// The first lane, for use between calls.
    pub fn lane_mut(&mut self) -> &mut Lane<Vec<u8>> {
        &mut self.lanes[0]
    }

    /// The number of lanes that share the keys: 1 if all take the first one.
    #[must_use]
    pub fn key_lane_count(&mut self) -> u16 {
        self.follow_map();
        self.map.map_or(1, |(_, lanes)| lanes)
    }

    /// Learns how the target divides keys, where that may have changed. Nothing is outstanding between calls, so the
    /// commands on a key keep their order when it gets another lane.
    fn follow_map(&mut self) {
        let scan_count = self.association.scan_count();
        if !self.has_all_lanes || scan_count == self.scan_count {
            return;
        }
        self.scan_count = scan_count;
        self.map = self.association.key_lanes(self.namespace.nsid()).filter(|(_, count)| {
            while self.lanes.len() < usize::from(*count) {
                match self.association.lane::<Vec<u8>>() {
                    Ok(mut lane) => {
                        lane.share_flush_epoch(self.flush_epoch.clone());
                        self.lanes.push(lane);
                    }
                    // Every key can take the first lane.
                    Err(_) => return false,
                }
            }
            (1..).zip(&self.lanes).all(|(number, lane)| number == lane.number())
        });
    }

    /// The index of the lane of a key.
    fn lane_of(&mut self, key: &Key) -> usize {
        self.follow_map();
        let lane = self.map.and_then(|(map, lanes)| map.lane_of(key.as_bytes(), lanes));
        lane.unwrap_or(0).into()
    }

    /// Stores a value, replacing any other.
    ///
    /// # Errors
    /// [`Error::Command`] if the value is too long, [`Error::Failed`] if the command fails.
    pub fn store(&mut self, key: &Key, value: &[u8]) -> Result<(), Error> {
        self.store_if(key, value, StoreOptions::empty()).map(drop)
    }

    /// Stores a value on the condition that the key exists, or does not exist. Returns whether the condition held.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn store_if(&mut self, key: &Key, value: &[u8], options: StoreOptions) -> Result<bool, Error> {
        let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
        let command = self.namespace.store(key, length, options)?;
        let mut buffer = None;
        if length > 0 {
            let mut bytes = std::mem::take(&mut self.buffer);
            bytes.clear();
            bytes.extend_from_slice(value);
            buffer = Some(bytes);
        }
        let stored = self.run(Some(key), "Store", command, buffer);
        if length > KEPT_BYTES_MAX {
            self.buffer = Vec::new();
        }
        match stored {
            Ok(_) => Ok(true),
            Err(error) if is_unmet_condition(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Retrieves the value of a key; `None` if the key does not exist.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn retrieve(&mut self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        let most = self.namespace.value_bytes_max();
        let mut room = self.value_bytes.clamp(1, most);
        loop {
            let command = self.namespace.retrieve(key, room)?;
            let Some(length) = present(self.fetch(Some(key), "Retrieve", command, room))? else {
                return Ok(None);
            };
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            if length <= room && length <= KEPT_BYTES_MAX {
                return Ok(Some(self.buffer[..length as usize].to_vec()));
            }
            if length <= room {
                self.buffer.truncate(length as usize);
                return Ok(Some(std::mem::take(&mut self.buffer)));
            }
            // The value is longer than the buffer: its length is known now.
            self.value_bytes = length.min(KEPT_BYTES_MAX);
            room = length;
            if length > most {
                let limit = most;
                let error = crate::InvalidCommand::ValueTooLong { length: length.into(), limit };
                return Err(error.into());
            }
        }
    }

    /// Deletes a key and its value.
    ///
    /// # Errors
    /// [`Error::Failed`], also if the key does not exist.
    pub fn delete(&mut self, key: &Key) -> Result<(), Error> {
        let command = self.namespace.delete(key);
        self.run(Some(key), "Delete", command, None).map(drop)
    }

    /// Makes all earlier changes durable; needed where the target answers before that (`sync=batch`, `sync=none`).
    /// Fails with [`Failure::Unflushed`] once after a reconnect: see [`reconnect`](crate::reconnect).
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn flush(&mut self) -> Result<(), Error> {
        let command = self.namespace.flush();
        self.run(None, "Flush", command, None).map(drop)
    }

    /// Whether a key exists.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn exist(&mut self, key: &Key) -> Result<bool, Error> {
        let command = self.namespace.exist(key);
        present(self.run(Some(key), "Exist", command, None)).map(|found| found.is_some())
    }

    /// Lists keys, from `from` on if that key exists. Pass the last key to the next call, which returns it again. Keys
    /// stored or deleted meanwhile may be listed or not.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Malformed`] if the controller's list is malformed.
    pub fn list(&mut self, from: Option<&Key>) -> Result<Vec<Key>, Error> {
        let room = LIST_BYTES.min(self.namespace.transfer_bytes_max());
        let command = self.namespace.list(from, room)?;
        self.fetch(None, "List", command, room)?;
        listed_keys(&self.buffer)
    }

    /// Calls `each` with every key until it returns false.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn for_each_key(&mut self, each: impl FnMut(&Key) -> bool) -> Result<(), Error> {
        self.for_each_key_from(None, each)
    }

    /// As [`for_each_key`](Self::for_each_key), from `from` on if that key exists.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn for_each_key_from(
        &mut self,
        from: Option<&Key>,
        mut each: impl FnMut(&Key) -> bool,
    ) -> Result<(), Error> {
        let mut next = from.copied();
        let mut is_first = true;
        loop {
            let keys = self.list(next.as_ref())?;
            // A further page starts with the last key of the one before.
            let skipped = usize::from(!is_first && keys.first() == next.as_ref());
            let Some(new) = keys.get(skipped..).filter(|new| !new.is_empty()) else { return Ok(()) };
            if !new.iter().all(&mut each) {
                return Ok(());
            }
            (next, is_first) = (new.last().copied(), false);
        }
    }

    /// Atomically changes the number that is a key's value.
    ///
    /// # Errors
    /// [`Error::Command`] if the controller does not support the command, [`Error::Failed`] if the key has no value or
    /// one of another width. [`Failure::Interrupted`] if the change may have been made.
    pub fn atomic(&mut self, key: &Key, atomic: &AtomicOperation) -> Result<AtomicOutcome, Error> {
        let command = self.namespace.atomic(key, atomic)?;
        let before = self.run(Some(key), "Atomic", command, None)?;
        Ok(AtomicOutcome { before, took_effect: atomic.took_effect(before) })
    }

    /// Adds to a number of 8 bytes, which starts with `initial` if the key does not exist. Returns the previous number.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub fn fetch_add(&mut self, key: &Key, operand: u64, initial: Option<u64>) -> Result<u64, Error> {
        let add = AtomicOperation::new(AtomicFunction::ADD, operand);
        let add = initial.map_or(add, |initial| add.or_create(initial));
        self.atomic(key, &add).map(|outcome| outcome.before)
    }

    /// Replaces a number of 8 bytes if it equals `expected`.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub fn compare_and_swap(&mut self, key: &Key, expected: u64, new: u64) -> Result<AtomicOutcome, Error> {
        self.atomic(key, &AtomicOperation::compare_and_swap(expected, new))
    }

    /// Applies a function with one operand to every element of a vector. Returns the length of the vector, bytes.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub fn vector_scalar(
        &mut self,
        key: &Key,
        kind: (ElementCode, VectorFunction),
        operand: u64,
    ) -> Result<u64, Error> {
        let command = self.namespace.vector_scalar(key, kind, operand)?;
        self.run(Some(key), "Vector Update", command, None)
    }

    /// Applies a function to each element of a vector and the element at the same index of `operands`.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub fn vector_vector(
        &mut self,
        key: &Key,
        kind: (ElementCode, VectorFunction),
        operands: &[u8],
    ) -> Result<(), Error> {
        let length = u32::try_from(operands.len()).unwrap_or(u32::MAX);
        let command = self.namespace.vector_vector(key, kind, length)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.extend_from_slice(operands);
        self.run(Some(key), "Vector Update", command, Some(buffer)).map(drop)
    }

    /// Applies a function with one operand to every element of a vector. Returns its first `room_bytes` before the
    /// change.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub fn vector_fetch(
        &mut self,
        key: &Key,
        kind: (ElementCode, VectorFunction),
        operand: u64,
        room_bytes: u32,
    ) -> Result<Vec<u8>, Error> {
        let command = self.namespace.vector_fetch(key, kind, operand, room_bytes)?;
        let length = self.fetch(Some(key), "Vector Fetch and Update", command, room_bytes)?;
        Ok(self.fetched(length).to_vec())
    }

    /// Reduces a vector to one element, starting with `initial`: the low bytes of the result.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub fn vector_reduce(
        &mut self,
        key: &Key,
        kind: (ElementCode, VectorFunction),
        initial: u64,
    ) -> Result<u64, Error> {
        let command = self.namespace.vector_reduce(key, kind, initial)?;
        self.run(Some(key), "Vector Reduce", command, None)
    }

    /// The elements of a vector that satisfy a comparison with the operand, at most `room_bytes`.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub fn vector_filter(
        &mut self,
        key: &Key,
        kind: (ElementCode, VectorComparison),
        operand: u64,
        room_bytes: u32,
    ) -> Result<Vec<u8>, Error> {
        let command = self.namespace.vector_filter(key, kind, operand, room_bytes)?;
        let length = self.fetch(Some(key), "Vector Filter", command, room_bytes)?;
        Ok(self.fetched(length).to_vec())
    }

    /// An empty batch.
    ///
    /// # Errors
    /// [`Error::Command`] if the controller does not support batches.
    pub fn batch(&self) -> Result<Batch, Error> {
        Ok(self.namespace.batch()?)
    }

    /// Executes a batch. Returns the outcomes in the order of its operations. [`Batch::clear`] empties it for the next
    /// one.
    ///
    /// # Errors
    /// [`Error::Failed`]: no operation was executed, unless [`Failure::may_have_happened`] says that some may have
    /// been.
    pub fn run_batch(&mut self, batch: &mut Batch) -> Result<Outcomes<'_>, Error> {
        if batch.is_empty() {
            return Ok(Outcomes::new(&[]));
        }
        if self.lanes.iter().any(|lane| lane.depth() < 2) {
            // Two commands: Collect waits for Submit.
            return Err(Error::Refused { command: "Batch Submit", reason: RefusedReason::Full });
        }
        self.follow_map();
        let divided = self.map.and_then(|(map, lanes)| DividedBatch::new(batch, &map, lanes));
        match divided {
            Some(divided) => self.run_divided(divided),
            None => self.run_whole(batch),
        }
    }

    /// Tests which of many keys exist, of up to 250 bytes each: as many as a batch has room for in one round trip. No key is
    /// marked as used.
    ///
    /// # Errors
    /// [`Error::Command`] if the controller does not support that, or a key has no bytes or too many; [`Error::Failed`].
    pub fn exist_many(&mut self, keys: &[&[u8]]) -> Result<Presence, Error> {
        let batch = self.namespace.presence_batch()?;
        self.bits_of(batch, keys, |batch, key| batch.push(&Operation::on(KvOpcode::EXIST, key)))
    }

    /// Pins pairs, or takes a pin of each back: as many as a batch has room for in one round trip. Returns which of them
    /// exist and [are pinned](Pin::For), or are no longer.
    ///
    /// If the connection is lost before the answer, the pins may have been counted: they end with their time.
    ///
    /// # Errors
    /// [`Error::Command`] if the controller does not support that, the time is none or too long, or a key has no bytes or
    /// too many; [`Error::Failed`].
    pub fn pin_many(&mut self, keys: &[&[u8]], pin: Pin) -> Result<Presence, Error> {
        let batch = self.namespace.pin_batch(pin)?;
        self.bits_of(batch, keys, |batch, key| batch.pin(key, pin))
    }

    /// Runs batches of one operation for each key whose outcomes are one bit each.
    fn bits_of(
        &mut self,
        mut batch: Batch,
        keys: &[&[u8]],
        push: impl Fn(&mut Batch, &[u8]) -> Result<(), InvalidCommand>,
    ) -> Result<Presence, Error> {
        let (mut presence, mut next) = (Presence::default(), 0);
        if self.lanes.iter().any(|lane| lane.depth() < 2) {
            return Err(Error::Refused { command: "Batch Submit", reason: RefusedReason::Full });
        }
        while next < keys.len() {
            batch.clear();
            while let Some(key) = keys.get(next) {
                match push(&mut batch, key) {
                    Ok(()) => next += 1,
                    Err(InvalidCommand::BatchFull { .. }) if !batch.is_empty() => break,
                    Err(error) => return Err(error.into()),
                }
            }
            let buffer = std::mem::take(&mut self.buffer);
            self.submit_batch(0, &mut batch, buffer)?;
            let ended = self.finish_batch(0, &mut batch);
            self.buffer = ended.buffer;
            ended.result.map_err(|failure| self.failed(0, "Batch Submit", failure))?;
            let count = u16::try_from(batch.len()).unwrap_or(u16::MAX);
            let read = Presence::read(&self.buffer, count);
            presence.extend(&read.ok_or(Error::Malformed { what: "bits of keys" })?);
        }
        Ok(presence)
    }

    /// Length of the value of a key of up to 250 bytes; `None` if the key does not exist.
    ///
    /// # Errors
    /// As [`run_batch`](Self::run_batch).
    pub fn value_bytes(&mut self, key: &[u8]) -> Result<Option<u64>, Error> {
        let mut batch = self.batch()?;
        batch.push(&Operation::on(KvOpcode::EXIST, key))?;
        let outcome = self.run_batch(&mut batch)?.next().ok_or(Error::Malformed { what: "outcomes" })?;
        let (status, length) = (outcome.status, outcome.result);
        let ended = if status.is_success() { Ok(length) } else { Err(Failure::Status(status)) };
        present(ended.map_err(|failure| Error::Failed { command: "Exist", failure }))
    }

    /// Executes a batch on one lane: that of its keys, if they have one in common.
    fn run_whole(&mut self, batch: &mut Batch) -> Result<Outcomes<'_>, Error> {
        let lane = batch.first_key().map_or(0, |key| self.lane_of(&key));
        let buffer = std::mem::take(&mut self.buffer);
        self.submit_batch(lane, batch, buffer)?;
        let ended = self.finish_batch(lane, batch);
        self.buffer = ended.buffer;
        let result = ended.result.map_err(|failure| self.failed(lane, "Batch Submit", failure))?;
        Ok(Batch::outcomes(&self.buffer, result))
    }

    /// Executes the parts of a batch, each on its lane.
    fn run_divided(&mut self, mut divided: DividedBatch) -> Result<Outcomes<'_>, Error> {
        let mut submitted = Vec::new();
        let mut error = None;
        for (lane, part) in divided.parts_mut().iter_mut().enumerate().filter(|(_, part)| !part.is_empty()) {
            match self.submit_batch(lane, part, Vec::new()) {
                Ok(()) => submitted.push(lane),
                Err(refused) => error = error.or(Some(refused)),
            }
        }
        let mut collected = vec![(Vec::new(), 0); divided.parts_mut().len()];
        let mut failures = Vec::new();
        for &lane in &submitted {
            self.lanes[lane].ring();
        }
        for &lane in &submitted {
            let ended = self.finish_batch(lane, &mut divided.parts_mut()[lane]);
            match ended.result {
                Ok(result) => collected[lane] = (ended.buffer, result),
                Err(failure) => failures.push((lane, failure)),
            }
        }
        let unknown =
            failures.iter().map(|(_, failure)| *failure).find(|failure| failure.may_have_happened());
        let is_whole = error.is_none() && failures.is_empty();
        // Some operations were executed, or may have been.
        if !is_whole && (unknown.is_some() || failures.len() < submitted.len()) {
            let failure = unknown.unwrap_or(Failure::Interrupted);
            return Err(Error::Failed { command: "Batch Submit", failure });
        }
        if let Some(error) = error {
            return Err(error);
        }
        if let Some(&(lane, failure)) = failures.first() {
            return Err(self.failed(lane, "Batch Submit", failure));
        }
        divided.merge(&collected, &mut self.buffer);
        Ok(Outcomes::new(&self.buffer))
    }

    /// Submits both commands of a batch, with the buffer for its outcomes.
    fn submit_batch(&mut self, lane: usize, batch: &mut Batch, mut buffer: Vec<u8>) -> Result<(), Error> {
        let tag = self.next_tag;
        self.next_tag = self.next_tag.wrapping_add(1);
        buffer.resize(batch.outcome_bytes() as usize, 0);
        self.submit(lane, "Batch Collect", batch.collect(tag), Some(buffer), COLLECT)?;
        let data = batch.take_data();
        let submit = batch.submit(tag, data.len());
        if let Err(refused) = self.lanes[lane].submit(submit, Some(data), SUBMIT) {
            // Collect was taken just before, so the association has ended since, and Collect ends with it.
            batch.restore(refused.buffer.unwrap_or_default());
        }
        Ok(())
    }

    /// Waits for both commands of a batch.
    fn finish_batch(&mut self, lane: usize, batch: &mut Batch) -> Collected {
        let lane = &mut self.lanes[lane];
        let (mut collected, mut failure) = (None, None);
        let mut buffer = Vec::new();
        while lane.outstanding() > 0 {
            lane.wait(&mut self.completions, WAIT);
            let mut cancels = false;
            for completion in self.completions.drain(..) {
                if completion.user == COLLECT {
                    buffer = completion.buffer.unwrap_or_default();
                    collected = Some(completion.result);
                } else {
                    batch.restore(completion.buffer.unwrap_or_default());
                    failure = completion.result.err();
                    cancels = failure.is_some();
                }
            }
            // A Submit that was refused leaves its Collect waiting.
            if cancels && collected.is_none() {
                lane.cancel(COLLECT);
            }
        }
        let result = match (failure, collected) {
            (None, Some(result)) => result,
            (Some(failure), _) => Err(failure),
            (None, None) => Err(Failure::Unreachable),
        };
        Collected { buffer, result }
    }

    /// The data that the last command received, by its result.
    fn fetched(&self, length: u64) -> &[u8] {
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(self.buffer.len());
        &self.buffer[..length]
    }

    /// Runs a command that receives into the buffer.
    fn fetch(
        &mut self,
        key: Option<&Key>,
        name: &'static str,
        command: Command,
        room: u32,
    ) -> Result<u64, Error> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(room as usize, 0);
        self.run(key, name, command, Some(buffer))
    }

    fn submit(
        &mut self,
        lane: usize,
        name: &'static str,
        command: Command,
        buffer: Option<Vec<u8>>,
        user: u64,
    ) -> Result<(), Error> {
        let lane = &mut self.lanes[lane];
        lane.submit(command, buffer, user).map_err(|refused| match lane.over() {
            Some(over) => over.clone(),
            None => Error::Refused { command: name, reason: refused.reason },
        })
    }

    fn failed(&self, lane: usize, command: &'static str, failure: Failure) -> Error {
        match (failure, self.lanes[lane].over()) {
            (Failure::Unreachable, Some(over)) => over.clone(),
            _ => Error::Failed { command, failure },
        }
    }

    /// Runs a command, on the lane of its key if it has one; its buffer is reused by the next one.
    fn run(
        &mut self,
        key: Option<&Key>,
        name: &'static str,
        command: Command,
        buffer: Option<Vec<u8>>,
    ) -> Result<u64, Error> {
        let at = key.map_or(0, |key| self.lane_of(key));
        self.submit(at, name, command, buffer, 0)?;
        let lane = &mut self.lanes[at];
        let mut end = None;
        while lane.outstanding() > 0 {
            lane.wait(&mut self.completions, WAIT);
            for completion in self.completions.drain(..) {
                if let Some(buffer) = completion.buffer {
                    self.buffer = buffer;
                }
                end = Some(completion.result);
            }
        }
        end.expect("every command ends").map_err(|failure| self.failed(at, name, failure))
    }
}
