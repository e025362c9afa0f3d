//! Key-value namespaces.

use std::sync::{Arc, Mutex, PoisonError};

use host::{AsyncKeyValue, Error, Failure, Key, Status, StoreOptions};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use crate::completions::Completions;
use crate::error::{closed, exception, forked, invalid};
use crate::memory::{Memory, ReleaseAfter};
use crate::open::connection;
use crate::operation::{run, wait};
use crate::together::{Boxed, together};
use crate::value::Value;

/// Commands of one call that are outstanding at the same time, per lane.
const COMMANDS_PER_LANE: usize = 16;

/// Keys of one batch.
const BATCH_KEYS: usize = 1024;

/// A key-value namespace of an NVMe/TCP target.
#[pyclass(frozen, module = "nvlane")]
pub(crate) struct KeyValue {
    handle: Mutex<Option<AsyncKeyValue>>,
    /// The process that has opened it.
    pid: u32,
    address: String,
    lanes: usize,
}

impl Drop for KeyValue {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // The threads of its lanes are in another process, whose descriptors this one shares.
            std::mem::forget(self.take());
        }
    }
}

/// A key: bytes, or text as UTF-8.
fn key(object: &Bound<'_, PyAny>) -> PyResult<Key> {
    let make = |bytes: &[u8]| {
        Key::new(bytes).ok_or_else(|| {
            let escaped: String = bytes.iter().take(40).map(|byte| byte.escape_ascii().to_string()).collect();
            invalid(format!("key {escaped:?} has {} bytes: keys have 1 to 16", bytes.len()))
        })
    };
    match object.cast::<PyString>() {
        Ok(text) => make(text.to_str()?.as_bytes()),
        Err(_) => match Memory::to_send(object, "key") {
            Ok(memory) => make(memory.as_slice()),
            Err(_) => {
                let kind = object.get_type().name()?;
                Err(PyTypeError::new_err(format!("a key has to be str or bytes, not {kind}")))
            }
        },
    }
}

fn keys(objects: &Bound<'_, PyAny>) -> PyResult<Vec<Key>> {
    if objects.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("keys is one str: pass a list of keys"));
    }
    objects.try_iter()?.map(|object| key(&object?)).collect()
}

/// Retrieves a value into memory. Returns its length, also if the memory is shorter: then it is unchanged.
async fn retrieve_into(handle: AsyncKeyValue, key: Key, mut memory: Memory) -> Result<Option<u64>, Error> {
    let Some(value) = handle.retrieve(&key).await? else { return Ok(None) };
    if let Some(start) = memory.as_mut_slice().get_mut(..value.len()) {
        start.copy_from_slice(&value);
    }
    Ok(Some(value.len() as u64))
}

/// The existence of keys, by one batch.
async fn exist(handle: AsyncKeyValue, keys: Vec<Key>) -> Result<Vec<bool>, Error> {
    let mut batch = handle.batch()?;
    for key in &keys {
        batch.exist(key)?;
    }
    let outcomes = handle.run_batch(batch).await?;
    let mut found = Vec::with_capacity(keys.len());
    for outcome in &outcomes {
        let failed = |status| Error::Failed { command: "Exist", failure: Failure::Status(status) };
        match outcome.status {
            status if status.is_success() => found.push(true),
            status if status.is(Status::KEY_DOES_NOT_EXIST) => found.push(false),
            status => return Err(failed(status)),
        }
    }
    if found.len() != keys.len() {
        return Err(Error::Answer { command: "Batch Collect", why: "outcomes are missing" });
    }
    Ok(found)
}

impl KeyValue {
    fn take(&self) -> Option<AsyncKeyValue> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn handle(&self) -> PyResult<AsyncKeyValue> {
        if self.pid != std::process::id() {
            return Err(forked("KeyValue", self.pid));
        }
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.clone().ok_or_else(|| closed("KeyValue"))
    }

    /// Commands of one call that are outstanding at the same time.
    fn limit(&self) -> usize {
        COMMANDS_PER_LANE * self.lanes
    }

    /// A value to store, as a copy: the command owns it.
    fn value(&self, handle: &AsyncKeyValue, object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
        if object.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("a value has to be bytes, not str: encode it"));
        }
        let memory = Memory::to_send(object, "value")?;
        let most = handle.namespace().value_bytes_max();
        if memory.len() as u64 > u64::from(most) {
            return Err(invalid(format!("value of {} bytes: this target's limit is {most}", memory.len())));
        }
        Ok(memory.as_slice().to_vec())
    }
}

#[pymethods]
impl KeyValue {
    /// Connects to the namespace at `address`: HOST[:PORT]/NQN[?ns=NSID].
    ///
    /// Keyword arguments: lanes, depth, hostnqn, hostid, dhchap_secret, dhchap_ctrl_secret, tls_key, tls_key_compat, concat,
    /// header_digest, data_digest, connect_timeout, timeout, reconnect_timeout; see nvlane._nvlane.Options.
    ///
    /// Raises ValueError for an invalid argument, and ConnectionLost if the target cannot be reached or refuses.
    #[new]
    #[pyo3(signature = (address, **options))]
    fn new(py: Python<'_>, address: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let (parsed, options) = connection(address, options)?;
        let lanes = usize::from(options.lanes.max(1));
        let connected = wait(py, AsyncKeyValue::connect(&parsed, options))?;
        let handle = connected.map_err(|error| exception(py, &error))?;
        let address = parsed.to_url();
        Ok(Self { handle: Mutex::new(Some(handle)), pid: std::process::id(), address, lanes })
    }

    /// Bytes of the longest value.
    #[getter]
    fn value_size_max(&self) -> PyResult<u32> {
        Ok(self.handle()?.namespace().value_bytes_max())
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// The address.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Stores a value under a key of 1 to 16 bytes (text is encoded as UTF-8). With `if_absent` or `if_present` only if the key
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
        let (handle, key) = (self.handle()?, self::key(key)?);
        let value = self.value(&handle, value)?;
        let stored = async move {
            let stored = handle.store_if(&key, value, options).await;
            stored.map(|(is_stored, _)| Value::Bool(is_stored)).map_err(Error::from)
        };
        run(py, completions, Box::pin(stored))
    }

    /// The value of a key, or None if the key does not exist.
    #[pyo3(signature = (key, *, completions = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, key) = (self.handle()?, self::key(key)?);
        run(py, completions, Box::pin(async move { handle.retrieve(&key).await.map(Value::Bytes) }))
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
        let (handle, key, memory) = (self.handle()?, self::key(key)?, Memory::to_fill(buffer, "buffer")?);
        run(
            py,
            completions,
            Box::pin(async move { retrieve_into(handle, key, memory).await.map(Value::Found) }),
        )
    }

    /// Deletes a key. A key that does not exist is no error.
    #[pyo3(signature = (key, *, completions = None))]
    fn delete<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, key) = (self.handle()?, self::key(key)?);
        run(py, completions, Box::pin(async move { handle.delete(&key).await.map(|()| Value::Nothing) }))
    }

    /// Whether a key exists.
    #[pyo3(signature = (key, *, completions = None))]
    fn exists<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, key) = (self.handle()?, self::key(key)?);
        run(py, completions, Box::pin(async move { handle.exist(&key).await.map(Value::Bool) }))
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
        let (handle, key) = (self.handle()?, self::key(key)?);
        let by = by.cast_unsigned();
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
        let (handle, key) = (self.handle()?, self::key(key)?);
        let swapped = async move {
            let outcome = handle.compare_and_swap(&key, expected, new).await?;
            Ok(Value::Bool(outcome.took_effect))
        };
        run(py, completions, Box::pin(swapped))
    }

    /// The values of several keys, None for those that do not exist, by commands that are outstanding together.
    #[pyo3(signature = (keys, *, completions = None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, keys, limit) = (self.handle()?, self::keys(keys)?, self.limit());
        let commands = keys.into_iter().map(move |key| {
            let handle = handle.clone();
            let command: Boxed<_> = Box::pin(async move { handle.retrieve(&key).await });
            command
        });
        run(py, completions, Box::pin(async move { together(commands, limit).await.map(Value::Values) }))
    }

    /// As `get_into` for several keys, each with its buffer. Returns the lengths.
    #[pyo3(signature = (keys, buffers, *, completions = None))]
    fn get_many_into<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        buffers: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _after = ReleaseAfter(py);
        let (handle, keys, limit) = (self.handle()?, self::keys(keys)?, self.limit());
        let buffers = buffers.try_iter()?.enumerate();
        let buffers = buffers.map(|(index, buffer)| Memory::to_fill(&buffer?, &format!("buffers[{index}]")));
        let buffers: Vec<Memory> = buffers.collect::<PyResult<_>>()?;
        if keys.len() != buffers.len() {
            return Err(invalid(format!(
                "{} keys and {} buffers: each key has one",
                keys.len(),
                buffers.len()
            )));
        }
        let commands = keys.into_iter().zip(buffers).map(move |(key, memory)| {
            let command: Boxed<_> = Box::pin(retrieve_into(handle.clone(), key, memory));
            command
        });
        run(py, completions, Box::pin(async move { together(commands, limit).await.map(Value::Lengths) }))
    }

    /// Stores several values, by commands that are outstanding together. After an error some may be stored.
    #[pyo3(signature = (keys, values, *, completions = None))]
    fn set_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        values: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _after = ReleaseAfter(py);
        let (handle, keys, limit) = (self.handle()?, self::keys(keys)?, self.limit());
        let values = values.try_iter()?.map(|value| self.value(&handle, &value?));
        let values: Vec<Vec<u8>> = values.collect::<PyResult<_>>()?;
        if keys.len() != values.len() {
            return Err(invalid(format!(
                "{} keys and {} values: each key has one",
                keys.len(),
                values.len()
            )));
        }
        let commands = keys.into_iter().zip(values).map(move |(key, value)| {
            let handle = handle.clone();
            let command: Boxed<Result<(), Error>> =
                Box::pin(async move { Ok(handle.store(&key, value).await.map(drop)?) });
            command
        });
        run(py, completions, Box::pin(async move { together(commands, limit).await.map(|_| Value::Nothing) }))
    }

    /// Deletes several keys. Keys that do not exist are no error.
    #[pyo3(signature = (keys, *, completions = None))]
    fn delete_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, keys, limit) = (self.handle()?, self::keys(keys)?, self.limit());
        let commands = keys.into_iter().map(move |key| {
            let handle = handle.clone();
            let command: Boxed<_> = Box::pin(async move { handle.delete(&key).await });
            command
        });
        run(py, completions, Box::pin(async move { together(commands, limit).await.map(|_| Value::Nothing) }))
    }

    /// Whether each of several keys exists, in batches of up to 1,024.
    #[pyo3(signature = (keys, *, completions = None))]
    fn exists_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, keys, limit) = (self.handle()?, self::keys(keys)?, self.lanes);
        let keys: Arc<[Key]> = keys.into();
        let batches = (0..keys.len()).step_by(BATCH_KEYS).map(move |start| {
            let batch = keys.iter().copied().skip(start).take(BATCH_KEYS).collect();
            let command: Boxed<_> = Box::pin(exist(handle.clone(), batch));
            command
        });
        let found = async move { together(batches, limit).await.map(|found| Value::Bools(found.concat())) };
        run(py, completions, Box::pin(found))
    }

    /// Some of the keys, from the one after `after` on, in the target's order; an empty list if there are no more.
    #[pyo3(signature = (after = None, *, completions = None))]
    fn keys_after<'py>(
        &self,
        py: Python<'py>,
        after: Option<&Bound<'py, PyAny>>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (handle, after) = (self.handle()?, after.map(self::key).transpose()?);
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
        let handle = self.handle()?;
        run(py, completions, Box::pin(async move { handle.flush().await.map(|()| Value::Nothing) }))
    }

    /// Ends the connection, and waits for the shutdown of the controller, 3 seconds at most. Closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.pid != std::process::id() {
            std::mem::forget(self.take());
            return Ok(());
        }
        match self.take() {
            Some(handle) => wait(py, handle.close()),
            None => Ok(()),
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
        format!("<nvlane.KeyValue {}{}>", self.address, if self.closed() { ", closed" } else { "" })
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
