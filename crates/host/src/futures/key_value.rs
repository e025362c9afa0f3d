//! Keys and values for asynchronous programs.

use std::sync::Arc;

use wire::kv::batch::Outcomes;
use wire::kv::operation::{AtomicFunction, AtomicOperation, ElementCode, VectorComparison, VectorFunction};
use wire::kv::{Key, KeyList, StoreOptions};
use wire::status::Status;

use super::on_thread::on_thread;
use super::{Failed, Lanes};
use crate::address::Address;
use crate::association::Association;
use crate::error::Error;
use crate::failure::Failure;
use crate::key_value::{AtomicOutcome, Batch, KeyValueNamespace};
use crate::options::Options;
use crate::submit::RefusedReason;

/// Bytes of a value that are asked for before it is known how long it is.
const FIRST_BYTES: u32 = 4096;

/// Bytes of keys that are asked for at a time.
const LIST_BYTES: u32 = 64 << 10;

/// A namespace of keys and values, to be used from any thread and task. Clones share its lanes.
///
/// ```no_run
/// # async fn example() -> Result<(), nvlane_host::Error> {
/// use nvlane_host::{AsyncKeyValue, Key, Options};
///
/// let address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:cache".parse()?;
/// let cache = AsyncKeyValue::connect(&address, Options { lanes: 2, ..Options::default() }).await?;
/// let key = Key::new(b"greeting").expect("1 to 16 bytes");
/// cache.store(&key, b"hello".to_vec()).await?;
/// assert_eq!(cache.retrieve(&key).await?.as_deref(), Some(&b"hello"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncKeyValue {
    namespace: KeyValueNamespace,
    lanes: Arc<Lanes<Vec<u8>>>,
}

/// The outcomes of a batch, in the order of its operations.
#[derive(Debug)]
pub struct BatchOutcomes {
    buffer: Vec<u8>,
    result: u64,
}

impl BatchOutcomes {
    /// Reads them.
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
        let address = address.clone();
        let connected = on_thread("nvlane-connect", move |began| {
            let association = Association::begin(&address, options)?;
            began.association(&association);
            association.wait_up()?;
            let namespace = association.addressed_key_value()?;
            Ok(Self { namespace, lanes: Lanes::new(&association)? })
        });
        connected.await
    }

    /// A namespace of an association, with new lanes: as many as the association's options say.
    ///
    /// # Errors
    /// As [`Association::lane`], or if there is no thread left.
    pub async fn new(association: &Association, namespace: KeyValueNamespace) -> Result<Self, Error> {
        Ok(Self { namespace, lanes: Lanes::connect(association).await? })
    }

    /// Ends the association, with all its handles and lanes, and waits until the controller is shut down: at most
    /// [`Tuning::close_timeout`](crate::Tuning::close_timeout).
    pub async fn close(self) {
        self.lanes.close().await;
    }

    /// What is known of the namespace, and what makes its commands.
    #[must_use]
    pub fn namespace(&self) -> &KeyValueNamespace {
        &self.namespace
    }

    /// Its association.
    #[must_use]
    pub fn association(&self) -> &Association {
        &self.lanes.association
    }

    /// Stores a value, in place of another; gives it back.
    ///
    /// # Errors
    /// [`Failed`], with the value.
    pub async fn store(&self, key: &Key, value: Vec<u8>) -> Result<Vec<u8>, Failed<Vec<u8>>> {
        self.store_if(key, value, StoreOptions::empty()).await.map(|(_, value)| value)
    }

    /// Stores a value if the key is there, or if it is not. Says whether it was done.
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
            match self.lanes.run("Store", command).await {
                Ok(_) => Ok(value),
                Err(error) => Err(Failed { error, buffer: Some(value) }),
            }
        } else {
            self.lanes.run_with("Store", command, value).await.map(|(_, value)| value)
        };
        match ended {
            Ok(value) => Ok((true, value)),
            Err(Failed {
                error: Error::Failed { failure: Failure::Status(status), .. },
                buffer: Some(value),
            }) if status.is(Status::KEY_EXISTS) || status.is(Status::KEY_DOES_NOT_EXIST) => {
                Ok((false, value))
            }
            Err(failed) => Err(failed),
        }
    }

    /// A key's value.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub async fn retrieve(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        let most = self.namespace.value_bytes_max();
        let mut room = FIRST_BYTES.min(most);
        let mut buffer = vec![0; room as usize];
        loop {
            buffer.resize(room as usize, 0);
            let command = self.namespace.retrieve(key, room)?;
            let fetched = self.lanes.run_with("Retrieve", command, buffer).await.map_err(Error::from);
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

    /// Deletes a key and its value, if it is there.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.lanes.run("Delete", self.namespace.delete(key)).await.map(drop)
    }

    /// Makes everything that was changed durable, where the target answers earlier.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub async fn flush(&self) -> Result<(), Error> {
        self.lanes.run("Flush", self.namespace.flush()).await.map(drop)
    }

    /// Whether a key is there.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub async fn exist(&self, key: &Key) -> Result<bool, Error> {
        let ended = self.lanes.run("Exist", self.namespace.exist(key)).await;
        present(ended).map(|found| found.is_some())
    }

    /// Some keys, from this one on if it is there; the last of them is where the next call begins, and comes again.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Malformed`] if the controller's list makes no sense.
    pub async fn list(&self, from: Option<&Key>) -> Result<Vec<Key>, Error> {
        let room = LIST_BYTES.min(self.namespace.transfer_bytes_max);
        let command = self.namespace.list(from, room)?;
        let (_, buffer) = self.lanes.run_with("List", command, vec![0; room as usize]).await?;
        let malformed = || Error::Malformed { what: "list of keys" };
        let list = KeyList::new(&buffer).ok_or_else(malformed)?;
        list.collect::<Result<_, _>>().map_err(|_| malformed())
    }

    /// Changes the number that is a key's value, as one.
    ///
    /// # Errors
    /// [`Error::Command`] if the controller has no such command, [`Error::Failed`] if it fails: if there is no value, or none of that
    /// width. [`Failure::Interrupted`] if it may have happened.
    pub async fn atomic(&self, key: &Key, atomic: &AtomicOperation) -> Result<AtomicOutcome, Error> {
        let before = self.lanes.run("Atomic", self.namespace.atomic(key, atomic)?).await?;
        Ok(AtomicOutcome { before, took_effect: atomic.took_effect(before) })
    }

    /// Adds to a number of 8 bytes, which begins with `initial` if there is none; gives the number before.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub async fn fetch_add(&self, key: &Key, operand: u64, initial: Option<u64>) -> Result<u64, Error> {
        let add = AtomicOperation::new(AtomicFunction::ADD, operand);
        let add = initial.map_or(add, |initial| add.or_create(initial));
        self.atomic(key, &add).await.map(|outcome| outcome.before)
    }

    /// Stores a number of 8 bytes if the expected one is there.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub async fn compare_and_swap(&self, key: &Key, expected: u64, new: u64) -> Result<AtomicOutcome, Error> {
        self.atomic(key, &AtomicOperation::compare_and_swap(expected, new)).await
    }

    /// Applies a function to every element of a vector with one operand; gives the vector's bytes.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub async fn vector_scalar(
        &self,
        key: &Key,
        kind: (ElementCode, VectorFunction),
        operand: u64,
    ) -> Result<u64, Error> {
        self.lanes.run("Vector Update", self.namespace.vector_scalar(key, kind, operand)?).await
    }

    /// Applies a function to each element of a vector and the one at the same place in `operands`; gives those back.
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
            Ok(command) => {
                self.lanes.run_with("Vector Update", command, operands).await.map(|(_, back)| back)
            }
            Err(error) => Err(Failed { error: error.into(), buffer: Some(operands) }),
        }
    }

    /// Folds a vector into one element, beginning with `initial`: the low bytes of what it gives.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub async fn vector_reduce(
        &self,
        key: &Key,
        kind: (ElementCode, VectorFunction),
        initial: u64,
    ) -> Result<u64, Error> {
        self.lanes.run("Vector Reduce", self.namespace.vector_reduce(key, kind, initial)?).await
    }

    /// Those elements of a vector that compare so with the operand, as many as `room_bytes` hold.
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
        let (length, mut back) = self.lanes.run_with("Vector Filter", command, buffer).await?;
        back.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(back)
    }

    /// A batch without operations.
    ///
    /// # Errors
    /// [`Error::Command`] if the controller has no such command.
    pub fn batch(&self) -> Result<Batch, Error> {
        Ok(self.namespace.batch()?)
    }

    /// Has a batch carried out; gives the outcomes. A future that is dropped may leave a part of it done.
    ///
    /// # Errors
    /// [`Error::Failed`]: nothing was done, unless [`Failure::may_have_happened`] says that some of it may have been.
    pub async fn run_batch(&self, mut batch: Batch) -> Result<BatchOutcomes, Error> {
        if batch.is_empty() {
            return Ok(BatchOutcomes { buffer: Vec::new(), result: 0 });
        }
        if self.association().options().depth < 2 {
            // It is two commands, of which one waits for the other.
            return Err(Error::Refused { command: "Batch Submit", reason: RefusedReason::Full });
        }
        let tag = self.lanes.next_tag();
        let data = batch.take_data();
        let commands = [batch.collect(tag), batch.submit(tag, data.len())];
        let buffers = [vec![0; batch.outcome_bytes() as usize], data];
        let [collect, submit] = self.lanes.start_both(commands, buffers);
        // Whichever of the two is dropped unfinished is cancelled: a Collect whose Submit was refused, too.
        if let Err(failure) = submit.await.result {
            return Err(self.lanes.failed("Batch Submit", failure));
        }
        let completion = collect.await;
        match (completion.result, completion.buffer) {
            (Ok(result), Some(window)) => Ok(BatchOutcomes { buffer: window.buffer, result }),
            (Ok(_), None) => Err(Error::Ended),
            (Err(failure), _) => Err(self.lanes.failed("Batch Collect", failure)),
        }
    }
}

/// Tells a key that is not there from what went wrong.
fn present<T>(ended: Result<T, Error>) -> Result<Option<T>, Error> {
    match ended {
        Ok(value) => Ok(Some(value)),
        Err(Error::Failed { failure: Failure::Status(status), .. })
            if status.is(Status::KEY_DOES_NOT_EXIST) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
