//! Blocking calls on a key-value namespace, on a lane of the calling thread.

use host_core::failure::Failure;
use host_core::key_value::{AtomicOutcome, Batch, KeyValueNamespace};
use host_core::submit::{Command, Completion, RefusedReason};
use wire::kv::batch::Outcomes;
use wire::kv::operation::{AtomicFunction, AtomicOperation, ElementCode, VectorComparison, VectorFunction};
use wire::kv::{Key, StoreOptions};

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
#[derive(Debug)]
pub struct BlockingKeyValue {
    lane: Lane<Vec<u8>>,
    namespace: KeyValueNamespace,
    association: Association,
    completions: Vec<Completion<Vec<u8>>>,
    /// Reused by the next call.
    buffer: Vec<u8>,
    /// Length of the last value, bytes.
    value_bytes: u32,
    next_tag: u32,
}

impl BlockingKeyValue {
    /// Connects to the namespace that `address` names, or to the only key-value namespace of the subsystem.
    ///
    /// # Errors
    /// As [`Association::connect`], [`Association::addressed_key_value`] and [`Association::lane`].
    pub fn connect(address: &Address, options: Options) -> Result<Self, Error> {
        let association = Association::connect(address, Options { lanes: 1, ..options })?;
        let namespace = association.addressed_key_value()?;
        Self::new(&association, namespace)
    }

    /// A handle of a namespace of an existing association, with a new lane for the calling thread.
    ///
    /// # Errors
    /// As [`Association::lane`].
    pub fn new(association: &Association, namespace: KeyValueNamespace) -> Result<Self, Error> {
        Ok(Self {
            lane: association.lane()?,
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

    /// The lane, for use between calls.
    pub fn lane_mut(&mut self) -> &mut Lane<Vec<u8>> {
        &mut self.lane
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
        let stored = self.run("Store", command, buffer);
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
            let Some(length) = present(self.fetch("Retrieve", command, room))? else { return Ok(None) };
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
        self.run("Delete", command, None).map(drop)
    }

    /// Makes all earlier changes durable; needed where the target answers before that (`sync=batch`, `sync=none`).
    /// Fails with [`Failure::Unflushed`] once after a reconnect: see [`reconnect`](crate::reconnect).
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn flush(&mut self) -> Result<(), Error> {
        let command = self.namespace.flush();
        self.run("Flush", command, None).map(drop)
    }

    /// Whether a key exists.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn exist(&mut self, key: &Key) -> Result<bool, Error> {
        let command = self.namespace.exist(key);
        present(self.run("Exist", command, None)).map(|found| found.is_some())
    }

    /// Lists keys, from `from` on if that key exists. Pass the last key to the next call, which returns it again. Keys
    /// stored or deleted meanwhile may be listed or not.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Malformed`] if the controller's list is malformed.
    pub fn list(&mut self, from: Option<&Key>) -> Result<Vec<Key>, Error> {
        let room = LIST_BYTES.min(self.namespace.transfer_bytes_max());
        let command = self.namespace.list(from, room)?;
        self.fetch("List", command, room)?;
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
        let before = self.run("Atomic", command, None)?;
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
        self.run("Vector Update", command, None)
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
        self.run("Vector Update", command, Some(buffer)).map(drop)
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
        let length = self.fetch("Vector Fetch and Update", command, room_bytes)?;
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
        self.run("Vector Reduce", command, None)
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
        let length = self.fetch("Vector Filter", command, room_bytes)?;
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
        if self.lane.depth() < 2 {
            // Two commands: Collect waits for Submit.
            return Err(Error::Refused { command: "Batch Submit", reason: RefusedReason::Full });
        }
        let tag = self.next_tag;
        self.next_tag = self.next_tag.wrapping_add(1);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(batch.outcome_bytes() as usize, 0);
        self.submit("Batch Collect", batch.collect(tag), Some(buffer), COLLECT)?;
        let data = batch.take_data();
        let submit = batch.submit(tag, data.len());
        if let Err(refused) = self.lane.submit(submit, Some(data), SUBMIT) {
            // Collect was taken just before, so the association has ended since, and Collect ends with it.
            batch.restore(refused.buffer.unwrap_or_default());
        }
        let (mut collected, mut failure) = (None, None);
        while self.lane.outstanding() > 0 {
            self.lane.wait(&mut self.completions, WAIT);
            let mut cancels = false;
            for completion in self.completions.drain(..) {
                if completion.user == COLLECT {
                    self.buffer = completion.buffer.unwrap_or_default();
                    collected = Some(completion.result);
                } else {
                    batch.restore(completion.buffer.unwrap_or_default());
                    failure = completion.result.err();
                    cancels = failure.is_some();
                }
            }
            // A Submit that was refused leaves its Collect waiting.
            if cancels && collected.is_none() {
                self.lane.cancel(COLLECT);
            }
        }
        match (failure, collected) {
            (None, Some(Ok(result))) => Ok(Batch::outcomes(&self.buffer, result)),
            (Some(failure), _) | (None, Some(Err(failure))) => Err(self.failed("Batch Submit", failure)),
            (None, None) => Err(Error::Ended),
        }
    }

    /// The data that the last command received, by its result.
    fn fetched(&self, length: u64) -> &[u8] {
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(self.buffer.len());
        &self.buffer[..length]
    }

    /// Runs a command that receives into the buffer.
    fn fetch(&mut self, name: &'static str, command: Command, room: u32) -> Result<u64, Error> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(room as usize, 0);
        self.run(name, command, Some(buffer))
    }

    fn submit(
        &mut self,
        name: &'static str,
        command: Command,
        buffer: Option<Vec<u8>>,
        user: u64,
    ) -> Result<(), Error> {
        self.lane.submit(command, buffer, user).map_err(|refused| match self.lane.over() {
            Some(over) => over.clone(),
            None => Error::Refused { command: name, reason: refused.reason },
        })
    }

    fn failed(&self, command: &'static str, failure: Failure) -> Error {
        match (failure, self.lane.over()) {
            (Failure::Unreachable, Some(over)) => over.clone(),
            _ => Error::Failed { command, failure },
        }
    }

    /// Runs a command; its buffer is reused by the next one.
    fn run(&mut self, name: &'static str, command: Command, buffer: Option<Vec<u8>>) -> Result<u64, Error> {
        self.submit(name, command, buffer, 0)?;
        let mut end = None;
        while self.lane.outstanding() > 0 {
            self.lane.wait(&mut self.completions, WAIT);
            for completion in self.completions.drain(..) {
                if let Some(buffer) = completion.buffer {
                    self.buffer = buffer;
                }
                end = Some(completion.result);
            }
        }
        end.expect("every command ends").map_err(|failure| self.failed(name, failure))
    }
}
