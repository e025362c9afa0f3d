//! Asynchronous calls on a key-value namespace.

use std::sync::Arc;

use host_core::failure::Failure;
use host_core::key_value::{AtomicOutcome, Batch, DividedBatch, KeyValueNamespace};
use host_core::submit::{Command, RefusedReason};
use wire::kv::batch::Outcomes;
use wire::kv::operation::{AtomicFunction, AtomicOperation, ElementCode, VectorComparison, VectorFunction};
use wire::kv::{Key, StoreOptions};

use super::key_routes::{KeyRoute, KeyRoutes};
use super::{Destination, Failed, Lanes, Operation};
use crate::address::Address;
use crate::association::Association;
use crate::error::Error;
use crate::key_value_outcome::{FIRST_BYTES, LIST_BYTES, is_unmet_condition, listed_keys, present};
use crate::options::Options;

/// An asynchronous handle of a [`KeyValueNamespace`], for any thread, task and executor. Clones share its lanes.
///
/// With as many [lanes](Options::lanes) as the target has partitions of the keys, each key has a lane near its
/// partition, and batches are divided among the lanes ([`PartitionMap`](crate::PartitionMap)); commands on one key are then
/// executed in the order of their calls. With other targets, and fewer lanes, commands use the lanes in turn.
///
/// ```no_run
/// # async fn example() -> Result<(), nvlane_host::Error> {
/// use nvlane_host::{AsyncKeyValue, Key, Options};
///
/// let address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:cache".parse()?;
/// let cache = AsyncKeyValue::connect(&address, Options::default().with_lanes(2)).await?;
/// let key = Key::new(b"greeting").expect("1 to 16 bytes");
/// cache.store(&key, b"hello".to_vec()).await?;
/// assert_eq!(cache.retrieve(&key).await?.as_deref(), Some(&b"hello"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncKeyValue {
    namespace: KeyValueNamespace,
    lanes: Arc<Lanes<Vec<u8>>>,
    routes: Arc<KeyRoutes>,
}

/// The outcomes of a batch, in the order of its operations.
#[derive(Debug)]
pub struct BatchOutcomes {
    buffer: Vec<u8>,
    result: u64,
}

impl BatchOutcomes {
    /// The outcomes, read one by one.
    #[must_use]
    pub fn iter(&self) -> Outcomes<'_> {
        Batch::outcomes(&self.buffer, self.result)
    }
}

impl<'a> IntoIterator for &'a BatchOutcomes {
    type Item = wire::kv::batch::Outcome<'a>;
    type IntoIter = Outcomes<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl AsyncKeyValue {
    /// Connects to the namespace at `address`, with as many lanes as the options say.
    ///
    /// # Errors
    /// As [`Association::connect`], [`Association::addressed_key_value`] and [`Association::lane`].
    pub async fn connect(address: &Address, options: Options) -> Result<Self, Error> {
        let (namespace, lanes) = Lanes::open(address, options, Association::addressed_key_value).await?;
        Ok(Self { namespace, lanes, routes: Arc::default() })
    }

    /// A handle of a namespace of an existing association, with new lanes: all lanes of the association's options.
    ///
    /// # Errors
    /// As [`Association::lane`], and [`Error::System`].
    pub async fn new(association: &Association, namespace: KeyValueNamespace) -> Result<Self, Error> {
        Ok(Self { namespace, lanes: Lanes::connect(association).await?, routes: Arc::default() })
    }

    /// Ends the association, with all its handles and lanes, and waits until the controller is shut down: at most
    /// [`Tuning::close_timeout`](crate::Tuning::close_timeout).
    pub async fn close(self) {
        self.lanes.close().await;
    }

    /// The namespace: its limits, and the constructor of its commands.
    #[must_use]
    pub fn namespace(&self) -> &KeyValueNamespace {
        &self.namespace
    }

    /// The association.
    #[must_use]
    pub fn association(&self) -> &Association {
        &self.lanes.association
    }

    /// Where a command on a key goes.
    fn place(&self, key: &Key, command: &Command) -> Destination<Vec<u8>> {
        let route = self.route();
        let lane = route.as_ref().and_then(|route| route.lane_of(key.as_bytes()));
        let near = lane.zip(route).and_then(|(lane, route)| self.lanes.driver_at(lane, route));
        near.unwrap_or_else(|| self.lanes.driver(command))
    }

    fn route(&self) -> Option<Arc<KeyRoute>> {
        self.routes.current(&self.lanes.association, self.namespace.nsid())
    }

    /// Runs a command on a key, without a buffer.
    async fn run(&self, key: &Key, name: &'static str, command: Command) -> Result<u64, Error> {
        self.lanes.run_at(self.place(key, &command), name, command).await
    }

    /// Runs a command on a key with its buffer.
    async fn run_with(
        &self,
        key: &Key,
        name: &'static str,
        command: Command,
        buffer: Vec<u8>,
    ) -> Result<(u64, Vec<u8>), Failed<Vec<u8>>> {
        self.lanes.run_with_at(self.place(key, &command), name, command, buffer).await
    }

    /// Stores a value, replacing any other. Returns the buffer.
    ///
    /// # Errors
    /// [`Failed`], with the value.
    pub async fn store(&self, key: &Key, value: Vec<u8>) -> Result<Vec<u8>, Failed<Vec<u8>>> {
        self.store_if(key, value, StoreOptions::empty()).await.map(|(_, value)| value)
    }

    /// Stores a value on the condition that the key exists, or does not exist. Returns whether the condition held.
    ///
    /// # Errors
    /// [`Failed`], with the value.
    pub async fn store_if(
        &self,
        key: &Key,
        value: Vec<u8>,
        options: StoreOptions,
    ) -> Result<(bool, Vec<u8>), Failed<Vec<u8>>> {
        let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
        let command = match self.namespace.store(key, length, options) {
            Ok(command) => command,
            Err(error) => return Err(Failed { error: error.into(), buffer: Some(value) }),
        };
        let ended = if length == 0 {
            match self.run(key, "Store", command).await {
                Ok(_) => Ok(value),
                Err(error) => Err(Failed { error, buffer: Some(value) }),
            }
        } else {
            self.run_with(key, "Store", command, value).await.map(|(_, value)| value)
        };
        match ended {
            Ok(value) => Ok((true, value)),
            Err(Failed { error, buffer: Some(value) }) if is_unmet_condition(&error) => Ok((false, value)),
            Err(failed) => Err(failed),
        }
    }

    /// Retrieves the value of a key; `None` if the key does not exist.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub async fn retrieve(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        self.retrieve_up_to(key, self.namespace.value_bytes_max()).await
    }

    /// As [`retrieve`](Self::retrieve), but for a value of more than `limit` bytes, which is not transferred.
    ///
    /// # Errors
    /// [`Error::Failed`], and [`InvalidCommand::ValueTooLong`](crate::InvalidCommand::ValueTooLong) for a longer value.
    pub async fn retrieve_up_to(&self, key: &Key, limit: u32) -> Result<Option<Vec<u8>>, Error> {
        let most = self.namespace.value_bytes_max().min(limit);
        let mut room = FIRST_BYTES.min(most);
        let mut buffer = vec![0; room as usize];
        loop {
            buffer.resize(room as usize, 0);
            let command = self.namespace.retrieve(key, room)?;
            let fetched = self.run_with(key, "Retrieve", command, buffer).await.map_err(Error::from);
            let Some((length, mut back)) = present(fetched)? else { return Ok(None) };
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            if length <= room {
                back.truncate(length as usize);
                return Ok(Some(back));
            }
            if length > most {
                let error = crate::InvalidCommand::ValueTooLong { length: length.into(), limit: most };
                return Err(error.into());
            }
            (room, buffer) = (length, back);
        }
    }

    /// Deletes a key and its value.
    ///
    /// # Errors
    /// [`Error::Failed`], also if the key does not exist.
    pub async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.run(key, "Delete", self.namespace.delete(key)).await.map(drop)
    }

    /// Makes all earlier changes durable; needed where the target answers before that.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub async fn flush(&self) -> Result<(), Error> {
        self.lanes.run("Flush", self.namespace.flush()).await.map(drop)
    }

    /// Whether a key exists.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub async fn exist(&self, key: &Key) -> Result<bool, Error> {
        let ended = self.run(key, "Exist", self.namespace.exist(key)).await;
        present(ended).map(|found| found.is_some())
    }

    /// Lists keys, from `from` on if that key exists. Pass the last key to the next call, which returns it again.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Malformed`] if the controller's list is malformed.
    pub async fn list(&self, from: Option<&Key>) -> Result<Vec<Key>, Error> {
        let room = LIST_BYTES.min(self.namespace.transfer_bytes_max());
        let command = self.namespace.list(from, room)?;
        let (_, buffer) = self.lanes.run_with("List", command, vec![0; room as usize]).await?;
        listed_keys(&buffer)
    }

    /// Atomically changes the number that is a key's value.
    ///
    /// # Errors
    /// [`Error::Command`] if the controller does not support the command, [`Error::Failed`] if the key has no value or
    /// one of another width. [`Failure::Interrupted`] if the change may have been made.
    pub async fn atomic(&self, key: &Key, atomic: &AtomicOperation) -> Result<AtomicOutcome, Error> {
        let before = self.run(key, "Atomic", self.namespace.atomic(key, atomic)?).await?;
        Ok(AtomicOutcome { before, took_effect: atomic.took_effect(before) })
    }

    /// Adds to a number of 8 bytes, which starts with `initial` if the key does not exist. Returns the previous number.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub async fn fetch_add(&self, key: &Key, operand: u64, initial: Option<u64>) -> Result<u64, Error> {
        let add = AtomicOperation::new(AtomicFunction::ADD, operand);
        let add = initial.map_or(add, |initial| add.or_create(initial));
        self.atomic(key, &add).await.map(|outcome| outcome.before)
    }

    /// Replaces a number of 8 bytes if it equals `expected`.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub async fn compare_and_swap(&self, key: &Key, expected: u64, new: u64) -> Result<AtomicOutcome, Error> {
        self.atomic(key, &AtomicOperation::compare_and_swap(expected, new)).await
    }

    /// Applies a function with one operand to every element of a vector. Returns the length of the vector, bytes.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub async fn vector_scalar(
        &self,
        key: &Key,
        kind: (ElementCode, VectorFunction),
        operand: u64,
    ) -> Result<u64, Error> {
        self.run(key, "Vector Update", self.namespace.vector_scalar(key, kind, operand)?).await
    }

    /// Applies a function to each element of a vector and the element at the same index of `operands`. Returns
    /// `operands`.
    ///
    /// # Errors
    /// [`Failed`], with the operands.
    pub async fn vector_vector(
        &self,
        key: &Key,
        kind: (ElementCode, VectorFunction),
        operands: Vec<u8>,
    ) -> Result<Vec<u8>, Failed<Vec<u8>>> {
        let length = u32::try_from(operands.len()).unwrap_or(u32::MAX);
        match self.namespace.vector_vector(key, kind, length) {
            Ok(command) => self.run_with(key, "Vector Update", command, operands).await.map(|(_, back)| back),
            Err(error) => Err(Failed { error: error.into(), buffer: Some(operands) }),
        }
    }

    /// Reduces a vector to one element, starting with `initial`: the low bytes of the result.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub async fn vector_reduce(
        &self,
        key: &Key,
        kind: (ElementCode, VectorFunction),
        initial: u64,
    ) -> Result<u64, Error> {
        self.run(key, "Vector Reduce", self.namespace.vector_reduce(key, kind, initial)?).await
    }

    /// The elements of a vector that satisfy a comparison with the operand, at most `room_bytes`.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub async fn vector_filter(
        &self,
        key: &Key,
        kind: (ElementCode, VectorComparison),
        operand: u64,
        room_bytes: u32,
    ) -> Result<Vec<u8>, Error> {
        let command = self.namespace.vector_filter(key, kind, operand, room_bytes)?;
        let buffer = vec![0; room_bytes as usize];
        let (length, mut back) = self.run_with(key, "Vector Filter", command, buffer).await?;
        back.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(back)
    }

    /// An empty batch.
    ///
    /// # Errors
    /// [`Error::Command`] if the controller does not support batches.
    pub fn batch(&self) -> Result<Batch, Error> {
        Ok(self.namespace.batch()?)
    }

    /// Executes a batch. If the future is dropped, some operations may have been executed.
    ///
    /// # Errors
    /// [`Error::Failed`]: no operation was executed, unless
    /// [`Failure::may_have_happened`](crate::Failure::may_have_happened) says that some may have been.
    pub async fn run_batch(&self, mut batch: Batch) -> Result<BatchOutcomes, Error> {
        if batch.is_empty() {
            return Ok(BatchOutcomes { buffer: Vec::new(), result: 0 });
        }
        if self.association().options().depth < 2 {
            // Two commands: Collect waits for Submit.
            return Err(Error::Refused { command: "Batch Submit", reason: RefusedReason::Full });
        }
        let route = self.route();
        let divided = route.as_ref().and_then(|route| {
            let (map, lanes) = route.map();
            DividedBatch::new(&batch, map, lanes)
        });
        match (divided, route) {
            (Some(divided), Some(route)) => self.run_divided(divided, &route).await,
            _ => {
                let first = batch.first_key();
                let submit = batch.submit(0, batch.data().len());
                let to = match first {
                    Some(key) => self.place(&key, &submit),
                    None => self.lanes.driver(&submit),
                };
                let collected = self.start_batch(&mut batch, to).finish().await;
                let (buffer, result) =
                    collected.map_err(|failure| self.lanes.failed("Batch Submit", failure))?;
                Ok(BatchOutcomes { buffer, result })
            }
        }
    }

    /// Executes the parts of a batch, each on its lane.
    async fn run_divided(
        &self,
        mut divided: DividedBatch,
        route: &Arc<KeyRoute>,
    ) -> Result<BatchOutcomes, Error> {
        let mut started = Vec::new();
        for (lane, part) in (0u16..).zip(divided.parts_mut()).filter(|(_, part)| !part.is_empty()) {
            let to = self.lanes.driver_at(lane, Arc::clone(route));
            let to = to.unwrap_or_else(|| self.lanes.driver(&part.submit(0, part.data().len())));
            started.push((lane, self.start_batch(part, to)));
        }
        let count = started.len();
        let mut collected = vec![(Vec::new(), 0); divided.parts_mut().len()];
        let mut failures = Vec::new();
        for (lane, part) in started {
            match part.finish().await {
                Ok(ended) => collected[usize::from(lane)] = ended,
                Err(failure) => failures.push(failure),
            }
        }
        if let Some(&first) = failures.first() {
            let unknown = failures.iter().copied().find(|failure| failure.may_have_happened());
            // Some operations were executed.
            let unknown = unknown.or((failures.len() < count).then_some(Failure::Interrupted));
            return Err(self.lanes.failed("Batch Submit", unknown.unwrap_or(first)));
        }
        let mut buffer = Vec::new();
        divided.merge(&collected, &mut buffer);
        let result = u64::try_from(buffer.len()).unwrap_or(0);
        Ok(BatchOutcomes { buffer, result })
    }

    fn start_batch(&self, batch: &mut Batch, to: Destination<Vec<u8>>) -> StartedBatch {
        let tag = self.lanes.next_tag();
        let data = batch.take_data();
        let commands = [batch.collect(tag), batch.submit(tag, data.len())];
        let buffers = [vec![0; batch.outcome_bytes() as usize], data];
        let [collect, submit] = self.lanes.start_both(to, commands, buffers);
        StartedBatch { collect, submit }
    }
}

/// The two commands of a batch on one lane.
struct StartedBatch {
    collect: Operation<Vec<u8>>,
    submit: Operation<Vec<u8>>,
}

impl StartedBatch {
    /// The outcomes, with the result of Collect.
    async fn finish(self) -> Result<(Vec<u8>, u64), Failure> {
        // An unfinished future is cancelled when it is dropped, also a Collect whose Submit was refused.
        self.submit.await.result?;
        let completion = self.collect.await;
        let result = completion.result?;
        let buffer = completion.buffer.map(|window| window.buffer);
        Ok((buffer.ok_or(Failure::Unreachable)?, result))
    }
}
