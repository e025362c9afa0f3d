//! Key-value namespaces.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use host::wire::identify::command_set::KvVendorCommands;
use host::wire::kv::LONG_KEY_BYTES_MAX;
use host::wire::kv::operation::PIN_SECONDS_MAX;
use host::{
    AsyncKeyValue, AtomicFunction, AtomicOperation, Error, InvalidCommand, Key, Pin, StoreOptions,
    TargetHealth,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::client::Client;
use crate::completions::Completions;
use crate::error::{exception, invalid};
use crate::memory::{Memory, ReleaseAfter};
use crate::open::{Connection, key_value_connection};
use crate::operation::{run, wait};
use crate::together::{Boxed, together};
use crate::value::{Ended, Value};
use crate::values::{ATTEMPT_COUNT_MAX, Values};
use crate::worker::Worker;

/// Commands of one call that are outstanding at the same time, per lane.
const COMMANDS_PER_LANE: usize = 16;

/// Longest value that a call for one key copies, bytes, where values can also move in place.
const COPIED_BYTES_MAX: u32 = 1 << 20;

/// What a client has until it is closed.
#[derive(Clone)]
enum Handle {
    /// One target, for keys that commands have room for.
    One(AsyncKeyValue),
    /// Several targets, which the thread of values has.
    Many,
}

/// A key-value namespace of an NVMe/TCP target, or several of them that share the keys.
#[pyclass(frozen, module = "nvlane")]
pub(crate) struct KeyValue {
    client: Client<Handle>,
    values: Arc<ValuesThread>,
    value_bytes_max: u32,
}

/// A key: bytes, or text as UTF-8.
fn key(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let check = |bytes: &[u8]| {
        if (1..=LONG_KEY_BYTES_MAX).contains(&bytes.len()) {
            return Ok(bytes.to_vec());
        }
        let escaped: String = bytes.iter().take(40).map(|byte| byte.escape_ascii().to_string()).collect();
        Err(invalid(format!(
            "key {escaped:?} has {} bytes: keys have 1 to {LONG_KEY_BYTES_MAX}",
            bytes.len()
        )))
    };
    match object.cast::<PyString>() {
        Ok(text) => check(text.to_str()?.as_bytes()),
        Err(_) => match Memory::to_send(object, "key") {
            Ok(memory) => check(memory.as_slice()),
            Err(_) => {
                let kind = object.get_type().name()?;
                Err(PyTypeError::new_err(format!("a key has to be str or bytes, not {kind}")))
            }
        },
    }
}

/// A key that a command itself has room for.
fn short_key(object: &Bound<'_, PyAny>) -> PyResult<Key> {
    let key = key(object)?;
    Key::new(&key).ok_or_else(|| {
        invalid(format!(
            "a key of {} bytes: incr, compare_and_swap and keys_after take keys of 1 to 16",
            key.len()
        ))
    })
}

fn keys(objects: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u8>>> {
    if objects.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("keys is one str: pass a list of keys"));
    }
    objects.try_iter()?.map(|object| key(&object?)).collect()
}

/// The seconds of a pin.
fn lease(seconds: u32) -> PyResult<u32> {
    if (1..=PIN_SECONDS_MAX).contains(&seconds) {
        return Ok(seconds);
    }
    Err(invalid(format!("lease of {seconds} seconds: a pin has 1 to {PIN_SECONDS_MAX}")))
}

/// The memory of values: each a buffer, or a list of buffers that have its bytes one after the other.
fn memories(
    objects: &Bound<'_, PyAny>,
    argument: &str,
    export: fn(&Bound<'_, PyAny>, &str) -> PyResult<Memory>,
) -> PyResult<Vec<Vec<Memory>>> {
    let values = objects.try_iter()?.enumerate().map(|(index, object)| {
        let (object, name) = (object?, format!("{argument}[{index}]"));
        match object.cast::<PyList>() {
            Ok(list) => list.iter().map(|piece| export(&piece, &name)).collect(),
            Err(_) => Ok(vec![export(&object, &name)?]),
        }
    });
    values.collect()
}

/// Each key with its value.
fn paired(keys: Vec<Vec<u8>>, values: Vec<Vec<Memory>>, name: &str) -> PyResult<Pairs> {
    if keys.len() != values.len() {
        return Err(invalid(format!("{} keys and {} {name}: each key has one", keys.len(), values.len())));
    }
    Ok(keys.into_iter().zip(values).collect())
}

type Pairs = Vec<(Vec<u8>, Vec<Memory>)>;

/// The thread of values, started by the first call that needs it.
struct ValuesThread {
    connection: Connection,
    state: Mutex<ThreadState>,
}

enum ThreadState {
    New,
    Running(Arc<Worker<Values>>),
    Closed,
}

impl ValuesThread {
    fn new(connection: Connection) -> Arc<Self> {
        Arc::new(Self { connection, state: Mutex::new(ThreadState::New) })
    }

    fn lock(&self) -> MutexGuard<'_, ThreadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    ///
    /// # Errors
    /// The process has no more threads, or the client was closed.
    fn worker(&self) -> Result<Arc<Worker<Values>>, Error> {
        let mut state = self.lock();
        match &*state {
            ThreadState::Running(worker) => Ok(Arc::clone(worker)),
            ThreadState::Closed => Err(Error::Ended),
            ThreadState::New => {
                let connection = self.connection.clone();
                let started = Worker::start(move || Values::open(&connection));
                let worker = Arc::new(started.map_err(|cause| system("start a thread", cause))?);
                *state = ThreadState::Running(Arc::clone(&worker));
                Ok(worker)
            }
        }
    }

    /// Has the thread end after its jobs.
    fn close(&self) {
        *self.lock() = ThreadState::Closed;
    }
}

fn system(doing: &'static str, cause: io::Error) -> Error {
    Error::System { doing, cause: cause.into() }
}

/// How values move that a call for one key names: shorter ones by a command of the handle, as a copy that the command owns; longer
/// ones by the thread of values, in place.
struct Single {
    handle: AsyncKeyValue,
    key: Key,
    /// For values of more bytes than `limit`, if the target has the commands for them.
    longer: Option<Arc<ValuesThread>>,
    limit: u32,
}

impl Single {
    /// The value, or the thread that moves it, because it is longer.
    async fn retrieve(self) -> Result<Result<Option<Vec<u8>>, Arc<Worker<Values>>>, Error> {
        match (self.handle.retrieve_up_to(&self.key, self.limit).await, self.longer) {
            (Err(Error::Command(InvalidCommand::ValueTooLong { .. })), Some(longer)) => {
                longer.worker().map(Err)
            }
            (retrieved, _) => retrieved.map(Ok),
        }
    }
}

/// Retrieves a value of any length by the thread of values, into a new object of Python.
async fn retrieve_longer(longer: Arc<Worker<Values>>, key: Vec<u8>) -> Result<Value, Error> {
    for _ in 0..ATTEMPT_COUNT_MAX {
        let asked = key.clone();
        let Some(length) = longer.run(move |values| values.value_bytes(&asked)).await? else { break };
        let made = Python::attach(|py| Memory::new_bytes(py, length).map_err(|error| error.to_string()));
        let (bytes, memory) = made.map_err(|why| system("take memory for a value", io::Error::other(why)))?;
        let pair = (key.clone(), vec![memory]);
        if longer.run(move |values| values.retrieve(&[pair])).await? == [Some(true)] {
            return Ok(Value::Filled(bytes));
        }
        // Another value was stored, or it was deleted, or its target is lost.
    }
    Ok(Value::Nothing)
}

impl KeyValue {
    /// The handle of a client of one target.
    fn handle(&self) -> PyResult<Option<AsyncKeyValue>> {
        match self.client.handle()? {
            Handle::One(handle) => Ok(Some(handle)),
            Handle::Many => Ok(None),
        }
    }

    /// The handle, and a key that a command has room for, if there are both.
    fn single(&self, key: &[u8]) -> PyResult<Option<Single>> {
        let (Some(handle), Some(key)) = (self.handle()?, Key::new(key)) else { return Ok(None) };
        let namespace = handle.namespace();
        let has_longer = namespace.vendor().commands.contains(KvVendorCommands::VALUE);
        let (longer, limit) = match has_longer {
            true => (Some(Arc::clone(&self.values)), COPIED_BYTES_MAX),
            false => (None, u32::MAX),
        };
        Ok(Some(Single { handle, key, longer, limit }))
    }

    /// The handle, for what only a client of one target has.
    fn only(&self, method: &str) -> PyResult<AsyncKeyValue> {
        let several =
            || invalid(format!("{method} is of one target, and this client has several: open one alone"));
        self.handle()?.ok_or_else(several)
    }

    /// Commands of one call that are outstanding at the same time.
    fn limit(&self) -> usize {
        COMMANDS_PER_LANE * self.client.lanes
    }

    /// The thread that moves values in place, and takes keys longer than those of commands.
    fn values(&self, py: Python<'_>) -> PyResult<Arc<Worker<Values>>> {
        self.client.handle()?;
        self.values.worker().map_err(|error| exception(py, &error))
    }

    /// The future of a job of that thread.
    fn job(
        &self,
        py: Python<'_>,
        job: impl FnOnce(&mut Values) -> Result<Value, Error> + Send + 'static,
    ) -> PyResult<Boxed<Ended>> {
        Ok(Box::pin(self.values(py)?.run(job)))
    }

    /// The memory of a value to store.
    fn value(&self, object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        if object.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("a value has to be bytes, not str: encode it"));
        }
        let memory = Memory::to_send(object, "value")?;
        let most = self.value_bytes_max;
        if memory.len() as u64 > u64::from(most) {
            return Err(invalid(format!("value of {} bytes: this target's limit is {most}", memory.len())));
        }
        Ok(memory)
    }
}

#[pymethods]
impl KeyValue {
    /// Connects to the namespace at `address`: `HOST[:PORT]/NQN[?ns=NSID]`; or to several, a list of addresses, over which keys
    /// are spread by rendezvous hashing.
    ///
    /// Keyword arguments: lanes, depth, hostnqn, hostid, dhchap_secret, dhchap_ctrl_secret, tls_key, tls_key_compat, concat,
    /// header_digest, data_digest, connect_timeout, timeout, reconnect_timeout, fast_io_fail; see nvlane._nvlane.Options. For
    /// several addresses also deadline, immutable, copies, weights and names; see nvlane._nvlane.SpreadOptions.
    ///
    /// Raises ValueError for an invalid argument, and ConnectionLost if the target, or every one of several, cannot be reached or
    /// refuses.
    #[new]
    #[pyo3(signature = (address, **options))]
    fn new(
        py: Python<'_>,
        address: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let connection = key_value_connection(address, options)?;
        let text = connection.text();
        let client = |handle, lanes: u16| Client::new(handle, "KeyValue", text, lanes.max(1).into());
        match &connection {
            Connection::One(address, options) => {
                let connected = wait(py, AsyncKeyValue::connect(address, options.clone()))?;
                let handle = connected.map_err(|error| exception(py, &error))?;
                let value_bytes_max = handle.namespace().paired_value_bytes_max();
                let client = client(Handle::One(handle), options.lanes);
                Ok(Self { client, values: ValuesThread::new(connection), value_bytes_max })
            }
            Connection::Many(_, options, _) => {
                let client = client(Handle::Many, options.lanes);
                let this = Self { client, values: ValuesThread::new(connection), value_bytes_max: u32::MAX };
                let opened = this.values(py)?.run(|values| Ok(values.value_bytes_max()));
                let opened = wait(py, opened)?.map_err(|error| exception(py, &error));
                Ok(Self { value_bytes_max: opened?, ..this })
            }
        }
    }

    /// Bytes of the longest value.
    #[getter]
    fn value_size_max(&self) -> PyResult<u32> {
        self.client.handle()?;
        Ok(self.value_bytes_max)
    }

    /// The targets of a client of several: a list of (name, whether it is connected, how often it was lost, why it is not
    /// connected or None).
    #[pyo3(signature = (*, completions = None))]
    fn targets<'py>(
        &self,
        py: Python<'py>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.handle()?.is_some() {
            return Err(invalid("targets is for a client of several: pass a list of addresses"));
        }
        let target = |TargetHealth { name, is_up, loss_count, cause, .. }| {
            (name, is_up, loss_count, cause.map(|cause| cause.to_string()))
        };
        let job =
            move |values: &mut Values| Ok(Value::Targets(values.health()?.into_iter().map(target).collect()));
        run(py, completions, self.job(py, job)?)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.client.is_closed()
    }

    /// The address.
    #[getter]
    fn address(&self) -> &str {
        &self.client.address
    }

    /// Stores a value under a key of 1 to 250 bytes (text is encoded as UTF-8). With `if_absent` or `if_present` only if the key
    /// does not, or does, exist. Returns whether it was stored.
    ///
    /// Raises ValueError if key or value are too long; CommandError; ConnectionLost.
    #[pyo3(signature = (key, value, *, if_absent = false, if_present = false, completions = None))]
    fn set<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        if_absent: bool,
        if_present: bool,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _after = ReleaseAfter(py);
        if if_absent && if_present {
            return Err(invalid("if_absent and if_present exclude each other"));
        }
        let mut options = StoreOptions::empty();
        options.set(StoreOptions::MUST_NOT_EXIST, if_absent);
        options.set(StoreOptions::MUST_EXIST, if_present);
        let key = self::key(key)?;
        let single = self.single(&key)?;
        let memory = self.value(value)?;
        let is_short = |single: &Single| single.longer.is_none() || memory.len() <= COPIED_BYTES_MAX as usize;
        let operation = match single.filter(is_short) {
            Some(Single { handle, key, .. }) => {
                // As a copy: the command owns it.
                let value = memory.as_slice().to_vec();
                Box::pin(async move {
                    let stored = handle.store_if(&key, value, options).await;
                    stored.map(|(is_stored, _)| Value::Bool(is_stored)).map_err(Error::from)
                })
            }
            None => {
                let pairs = [(key, vec![memory])];
                self.job(py, move |values| {
                    values.store(&pairs, 0, options).map(|stored| Value::Bool(stored == [true]))
                })?
            }
        };
        run(py, completions, operation)
    }

    /// The value of a key, or None if the key does not exist.
    #[pyo3(signature = (key, *, completions = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let key = self::key(key)?;
        let operation: Boxed<Ended> = match self.single(&key)? {
            Some(single) => Box::pin(async move {
                match single.retrieve().await? {
                    Ok(value) => Ok(Value::Bytes(value)),
                    Err(longer) => retrieve_longer(longer, key).await,
                }
            }),
            None => Box::pin(retrieve_longer(self.values(py)?, key)),
        };
        run(py, completions, operation)
    }

    /// Retrieves a value into a writable, contiguous buffer. Returns the length of the value in bytes, or None if the key does
    /// not exist. If the value is longer than the buffer, the buffer is unchanged.
    #[pyo3(signature = (key, buffer, *, completions = None))]
    fn get_into<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        buffer: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _after = ReleaseAfter(py);
        let (key, memory) = (self::key(key)?, Memory::to_fill(buffer, "buffer")?);
        let operation: Boxed<Ended> = match self.single(&key)? {
            Some(single) => Box::pin(async move {
                match single.retrieve().await? {
                    Ok(value) => Ok(Value::Found(value.map(|value| memory.fill(&value)))),
                    Err(longer) => {
                        longer.run(move |values| values.fill(&key, &memory).map(Value::Found)).await
                    }
                }
            }),
            None => self.job(py, move |values| values.fill(&key, &memory).map(Value::Found))?,
        };
        run(py, completions, operation)
    }

    /// Deletes a key. A key that does not exist is no error.
    #[pyo3(signature = (key, *, completions = None))]
    fn delete<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let key = self::key(key)?;
        let operation = match self.single(&key)? {
            Some(Single { handle, key, .. }) => {
                Box::pin(async move { handle.delete(&key).await.map(|()| Value::Nothing) })
            }
            None => self.job(py, move |values| values.delete(&[key]).map(|()| Value::Nothing))?,
        };
        run(py, completions, operation)
    }

    /// Whether a key exists.
    #[pyo3(signature = (key, *, completions = None))]
    fn exists<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let key = self::key(key)?;
        let operation = match self.single(&key)? {
            Some(Single { handle, key, .. }) => {
                Box::pin(async move { handle.exist(&key).await.map(Value::Bool) })
            }
            None => {
                self.job(py, move |values| values.exist(&[key]).map(|found| Value::Bool(found == [true])))?
            }
        };
        run(py, completions, operation)
    }

    /// Adds to the number that is a key's value (8 bytes, little endian), modulo 2^64. With `initial` a key that does not exist
    /// begins with that number. Returns the sum.
    ///
    /// Raises CommandError if the key does not exist or its value has another length. A CommandError with
    /// `may_have_happened` says that the number may have been added.
    #[pyo3(signature = (key, by = 1, *, initial = None, completions = None))]
    fn incr<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        by: i64,
        initial: Option<u64>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, key) = (self.handle()?, short_key(key)?);
        let by = by.cast_unsigned();
        let Some(handle) = handle else {
            let add = AtomicOperation::new(AtomicFunction::ADD, by);
            let add = initial.map_or(add, |initial| add.or_create(initial));
            let job = move |values: &mut Values| {
                let (before, _) = values.atomic(&key, &add)?;
                Ok(Value::Number(before.wrapping_add(by)))
            };
            return run(py, completions, self.job(py, job)?);
        };
        // With `initial` a key that does not exist has that number before the addition.
        let added = async move {
            let before = handle.fetch_add(&key, by, initial).await?;
            Ok(Value::Number(before.wrapping_add(by)))
        };
        run(py, completions, Box::pin(added))
    }

    /// Replaces the number that is a key's value if it equals `expected`. Returns whether it did.
    #[pyo3(signature = (key, expected, new, *, completions = None))]
    fn compare_and_swap<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        expected: u64,
        new: u64,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, key) = (self.handle()?, short_key(key)?);
        let Some(handle) = handle else {
            let swap = AtomicOperation::compare_and_swap(expected, new);
            let job = move |values: &mut Values| Ok(Value::Bool(values.atomic(&key, &swap)?.1));
            return run(py, completions, self.job(py, job)?);
        };
        let swapped = async move {
            let outcome = handle.compare_and_swap(&key, expected, new).await?;
            Ok(Value::Bool(outcome.took_effect))
        };
        run(py, completions, Box::pin(swapped))
    }

    /// The values of several keys, None for those that do not exist.
    #[pyo3(signature = (keys, *, completions = None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = self::keys(keys)?;
        let singles = keys.iter().map(|key| self.single(key)).collect::<PyResult<Option<Vec<_>>>>()?;
        let Some(singles) = singles else {
            let retrieve = move |values: &mut Values| {
                keys.iter().map(|key| values.value(key)).collect::<Result<_, _>>().map(Value::Values)
            };
            return run(py, completions, self.job(py, retrieve)?);
        };
        let limit = self.limit();
        let commands = singles.into_iter().zip(keys).map(|(single, key)| {
            let command: Boxed<_> = Box::pin(async move {
                match single.retrieve().await? {
                    Ok(value) => Ok(value),
                    Err(longer) => longer.run(move |values| values.value(&key)).await,
                }
            });
            command
        });
        run(py, completions, Box::pin(async move { together(commands, limit).await.map(Value::Values) }))
    }

    /// Retrieves values into buffers, without a copy, by all lanes at once. Each key has a buffer of the value's length, or a list
    /// of buffers that together have it; with several lanes, parts of one large value come by several of them.
    ///
    /// Returns a list with True for each key whose value is there, all of it; None for a key that does not exist; and False for a
    /// value of another length, or one that does not have its checksum: it stays until it is replaced or deleted. All but True
    /// leave the contents of their buffers undefined.
    #[pyo3(signature = (keys, buffers, *, completions = None))]
    fn get_many_into<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        buffers: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _after = ReleaseAfter(py);
        let memory = memories(buffers, "buffers", Memory::to_fill)?;
        let pairs = paired(self::keys(keys)?, memory, "buffers")?;
        run(py, completions, self.job(py, move |values| values.retrieve(&pairs).map(Value::Usable))?)
    }

    /// Stores values without a copy, by all lanes at once, each as a whole or not at all, with a checksum; each value is a buffer
    /// or a list of buffers. With `if_absent` only keys that do not exist; for `ttl` seconds, or for ever if 0.
    ///
    /// Returns a list of bool: which were stored. After an error some may be stored.
    #[pyo3(signature = (keys, values, *, if_absent = false, ttl = 0, completions = None))]
    fn set_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        values: &Bound<'py, PyAny>,
        if_absent: bool,
        ttl: u32,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _after = ReleaseAfter(py);
        let pairs = paired(self::keys(keys)?, memories(values, "values", Memory::to_send)?, "values")?;
        let mut options = StoreOptions::empty();
        options.set(StoreOptions::MUST_NOT_EXIST, if_absent);
        run(
            py,
            completions,
            self.job(py, move |values| values.store(&pairs, ttl, options).map(Value::Bools))?,
        )
    }

    /// Deletes several keys. Keys that do not exist are no error.
    #[pyo3(signature = (keys, *, completions = None))]
    fn delete_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = self::keys(keys)?;
        run(py, completions, self.job(py, move |values| values.delete(&keys).map(|()| Value::Nothing))?)
    }

    /// Whether each of several keys exists, some 1,000 in one round trip. No key is marked as used. With `lease` (seconds) those
    /// that exist are pinned as well, as by pin_many, as far as there is room.
    #[pyo3(signature = (keys, *, lease = 0, completions = None))]
    fn exists_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        lease: u32,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = self::keys(keys)?;
        if lease > 0 {
            let pin = Pin::IfRoom { seconds: self::lease(lease)? };
            return run(
                py,
                completions,
                self.job(py, move |values| values.pin(&keys, pin).map(Value::Bools))?,
            );
        }
        run(py, completions, self.job(py, move |values| values.exist(&keys).map(Value::Bools))?)
    }

    /// Pins the values of several keys, some 1,000 in one round trip: they are not evicted for `lease` seconds (1 to 86,400), or
    /// until unpin_many was called as often. Pinned values may have half of the target's memory. A pinned value can be replaced and
    /// deleted, and expires, as any other.
    ///
    /// Returns a list of bool: which are pinned. Those that are not do not exist, or there is no room for them.
    #[pyo3(signature = (keys, lease, *, completions = None))]
    fn pin_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        lease: u32,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (keys, pin) = (self::keys(keys)?, Pin::For { seconds: self::lease(lease)? });
        run(py, completions, self.job(py, move |values| values.pin(&keys, pin).map(Value::Bools))?)
    }

    /// Takes one pin of each key back. Keys that do not exist, or whose lease has ended, are no error.
    #[pyo3(signature = (keys, *, completions = None))]
    fn unpin_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = self::keys(keys)?;
        run(py, completions, self.job(py, move |values| values.pin(&keys, Pin::End).map(|_| Value::Nothing))?)
    }

    /// Some of the keys, from the one after `after` on, in the target's order; an empty list if there are no more.
    #[pyo3(signature = (after = None, *, completions = None))]
    fn keys_after<'py>(
        &self,
        py: Python<'py>,
        after: Option<&Bound<'py, PyAny>>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, after) = (self.only("keys_after")?, after.map(short_key).transpose()?);
        let listed = async move {
            let mut keys = handle.list(after.as_ref()).await?;
            // The list begins with the key that the previous one ended with.
            if after.is_some() && keys.first() == after.as_ref() {
                keys.remove(0);
            }
            Ok(Value::Keys(keys.iter().map(|key| key.as_bytes().to_vec()).collect()))
        };
        run(py, completions, Box::pin(listed))
    }

    /// All keys, in the target's order, listed page by page.
    fn keys(slf: Py<Self>) -> Keys {
        Keys { client: slf, page: Mutex::new((Vec::new().into_iter(), None)) }
    }

    /// Makes all earlier changes durable, where the target answers before that.
    #[pyo3(signature = (*, completions = None))]
    fn flush<'py>(
        &self,
        py: Python<'py>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(handle) = self.handle()? else {
            let job = |values: &mut Values| values.flush().map(|()| Value::Nothing);
            return run(py, completions, self.job(py, job)?);
        };
        run(py, completions, Box::pin(async move { handle.flush().await.map(|()| Value::Nothing) }))
    }

    /// Ends the connection, and waits for the shutdown of the controller, 3 seconds at most. Closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.values.close();
        match self.client.take() {
            Some(Handle::One(handle)) => wait(py, handle.close()),
            Some(Handle::Many) | None => Ok(()),
        }
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        self.close(py)?;
        Ok(false)
    }

    fn __repr__(&self) -> String {
        self.client.repr()
    }
}

/// Keys of a page, and the last key before the next page.
type Page = (std::vec::IntoIter<Vec<u8>>, Option<Vec<u8>>);

/// The keys of a namespace, listed page by page.
#[pyclass(frozen, module = "nvlane._nvlane")]
pub(crate) struct Keys {
    client: Py<KeyValue>,
    page: Mutex<Page>,
}

#[pymethods]
impl Keys {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let lock = || self.page.lock().unwrap_or_else(PoisonError::into_inner);
        let after = {
            let mut page = lock();
            if let Some(key) = page.0.next() {
                page.1 = Some(key.clone());
                return Ok(Some(PyBytes::new(py, &key)));
            }
            page.1.clone()
        };
        let after = after.map(|key| PyBytes::new(py, &key).into_any());
        let listed: Vec<Vec<u8>> = self.client.get().keys_after(py, after.as_ref(), None)?.extract()?;
        let mut page = lock();
        page.0 = listed.into_iter();
        let next = page.0.next();
        page.1.clone_from(&next);
        Ok(next.map(|key| PyBytes::new(py, &key)))
    }
}
