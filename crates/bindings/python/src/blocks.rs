//! Block namespaces.

use host::{AsyncNamespace, BlockRange, Error, Namespace};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::client::Client;
use crate::completions::Completions;
use crate::error::{exception, invalid};
use crate::memory::{Memory, ReleaseAfter};
use crate::open::connection;
use crate::operation::{run, wait};
use crate::together::{Boxed, together};
use crate::value::{Ended, Value};

/// Commands of one call that are outstanding at the same time, per lane.
const PIECES_PER_LANE: usize = 4;

type Handle = AsyncNamespace<Memory>;

/// A block namespace of an NVMe/TCP target.
#[pyclass(frozen, module = "nvlane")]
pub(crate) struct Blocks {
    client: Client<Handle>,
}

impl Blocks {
    /// Reads or writes memory, in as many commands as the target's maximum transfer demands.
    fn transfer<F>(
        &self,
        memory: Memory,
        offset: u64,
        one: fn(Handle, Memory, u64) -> F,
    ) -> PyResult<Boxed<Ended>>
    where
        F: Future<Output = Result<Memory, host::Failed<Memory>>> + Send + 'static,
    {
        let handle = self.client.handle()?;
        let namespace = handle.namespace();
        namespace
            .blocks_of(offset, memory.len() as u64)
            .map_err(|error| invalid(with_sizes(namespace, &error)))?;
        let most = u64::from(namespace.transfer_blocks_max()) * u64::from(namespace.lba_bytes());
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let limit = PIECES_PER_LANE * self.client.lanes;
        let pieces = (0..memory.len()).step_by(most).map(move |start| {
            let (handle, piece) = (handle.clone(), memory.piece(start, most));
            let piece: Boxed<Result<(), Error>> = Box::pin(async move {
                one(handle, piece, offset + start as u64).await.map(drop).map_err(Error::from)
            });
            piece
        });
        Ok(Box::pin(async move { together(pieces, limit).await.map(|_| Value::Nothing) }))
    }
}

/// An error of a range, with the sizes of the namespace.
fn with_sizes(namespace: &Namespace, error: &impl std::fmt::Display) -> String {
    format!("{error} (blocks of {} bytes, {} bytes in all)", namespace.lba_bytes(), namespace.size_bytes())
}

async fn read(handle: Handle, memory: Memory, offset: u64) -> Result<Memory, host::Failed<Memory>> {
    handle.read_at(memory, offset).await
}

async fn write(handle: Handle, memory: Memory, offset: u64) -> Result<Memory, host::Failed<Memory>> {
    handle.write_at(memory, offset).await
}

async fn write_durably(handle: Handle, memory: Memory, offset: u64) -> Result<Memory, host::Failed<Memory>> {
    handle.write_durably_at(memory, offset).await
}

#[pymethods]
impl Blocks {
    /// Connects to the namespace at `address`: `HOST[:PORT]/NQN[?ns=NSID]`.
    ///
    /// Keyword arguments: lanes, depth, hostnqn, hostid, dhchap_secret, dhchap_ctrl_secret, tls_key, tls_key_compat, concat,
    /// header_digest, data_digest, connect_timeout, timeout, reconnect_timeout, fast_io_fail; see nvlane._nvlane.Options.
    ///
    /// Raises ValueError for an invalid argument, and ConnectionLost if the target cannot be reached or refuses.
    #[new]
    #[pyo3(signature = (address, **options))]
    fn new(py: Python<'_>, address: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let (parsed, options) = connection(address, options)?;
        let lanes = usize::from(options.lanes.max(1));
        let connected = wait(py, Handle::connect(&parsed, options))?;
        let handle = connected.map_err(|error| exception(py, &error))?;
        Ok(Self { client: Client::new(handle, "Blocks", parsed.to_url(), lanes) })
    }

    /// Bytes of the namespace.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        Ok(self.client.handle()?.namespace().size_bytes())
    }

    /// Bytes of a block.
    #[getter]
    fn block_size(&self) -> PyResult<u32> {
        Ok(self.client.handle()?.namespace().lba_bytes())
    }

    /// Whether the target refuses writes.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        Ok(self.client.handle()?.namespace().info().is_write_protected)
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

    /// Reads `length` bytes from byte `offset` on. Both are multiples of the block size.
    ///
    /// Raises ValueError if they are not, or if the range is outside of the namespace; CommandError; ConnectionLost.
    #[pyo3(signature = (offset, length, *, completions = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: u64,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Before memory is allocated.
        let handle = self.client.handle()?;
        let namespace = handle.namespace();
        namespace.blocks_of(offset, length).map_err(|error| invalid(with_sizes(namespace, &error)))?;
        let (object, memory) = Memory::new_bytes(py, length)?;
        let transfer = self.transfer(memory, offset, read)?;
        run(py, completions, Box::pin(async move { transfer.await.map(|_| Value::Filled(object)) }))
    }

    /// Fills a writable, contiguous buffer (bytearray, memoryview, numpy array) from byte `offset` on, without a copy.
    ///
    /// Raises as `read`, and BufferError if the buffer is read-only or not contiguous. After an error its contents are
    /// undefined.
    #[pyo3(signature = (offset, buffer, *, completions = None))]
    fn read_into<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        buffer: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _after = ReleaseAfter(py);
        run(py, completions, self.transfer(Memory::to_fill(buffer, "buffer")?, offset, read)?)
    }

    /// Writes a contiguous buffer at byte `offset`, without a copy. Offset and length are multiples of the block size.
    ///
    /// The data is durable after the next `flush`, or on return if `durable`. It may be written in part after an error.
    #[pyo3(signature = (offset, data, *, durable = false, completions = None))]
    fn write<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        data: &Bound<'py, PyAny>,
        durable: bool,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _after = ReleaseAfter(py);
        let memory = Memory::to_send(data, "data")?;
        let operation = if durable {
            self.transfer(memory, offset, write_durably)?
        } else {
            self.transfer(memory, offset, write)?
        };
        run(py, completions, operation)
    }

    /// Makes all earlier writes durable. After a reconnect it raises CommandError with `unflushed` once: writes before it that
    /// were not flushed may be lost, and must be written again.
    #[pyo3(signature = (*, completions = None))]
    fn flush<'py>(
        &self,
        py: Python<'py>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let handle = self.client.handle()?;
        run(py, completions, Box::pin(async move { handle.flush().await.map(|()| Value::Nothing) }))
    }

    /// Deallocates whole blocks (TRIM). The target may then return zeroes for them.
    #[pyo3(signature = (offset, length, *, completions = None))]
    fn discard<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: u64,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let handle = self.client.handle()?;
        let namespace = handle.namespace();
        let blocks = namespace.blocks_of(offset, length);
        let (lba, blocks) = blocks.map_err(|error| invalid(with_sizes(namespace, &error)))?;
        let ranges: Vec<BlockRange> = Namespace::split(lba, blocks, u32::MAX).collect();
        run(
            py,
            completions,
            Box::pin(async move { handle.deallocate(&ranges).await.map(|()| Value::Nothing) }),
        )
    }

    /// Writes zeroes to whole blocks; with `discard` the target may deallocate them.
    #[pyo3(signature = (offset, length, *, discard = false, completions = None))]
    fn write_zeroes<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: u64,
        discard: bool,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let handle = self.client.handle()?;
        let written =
            async move { handle.write_zeroes(offset, length, discard).await.map(|()| Value::Nothing) };
        run(py, completions, Box::pin(written))
    }

    /// Whether the bytes from `offset` on equal `data`; the target compares.
    #[pyo3(signature = (offset, data, *, completions = None))]
    fn compare<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        data: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _after = ReleaseAfter(py);
        let (handle, memory) = (self.client.handle()?, Memory::to_send(data, "data")?);
        let compared = async move {
            let compared = handle.compare_at(memory, offset).await;
            compared.map(|(is_equal, _)| Value::Bool(is_equal)).map_err(Error::from)
        };
        run(py, completions, Box::pin(compared))
    }

    /// Atomically writes `new` at `offset` if the bytes there equal `expected`. Returns whether they did. Targets take one or
    /// a few blocks.
    #[pyo3(signature = (offset, expected, new, *, completions = None))]
    fn compare_and_write<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        expected: &Bound<'py, PyAny>,
        new: &Bound<'py, PyAny>,
        completions: Option<&Bound<'py, Completions>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _after = ReleaseAfter(py);
        let handle = self.client.handle()?;
        let (expected, new) = (Memory::to_send(expected, "expected")?, Memory::to_send(new, "new")?);
        if expected.len() != new.len() {
            let message =
                format!("expected has {} bytes and new {}: both are one range", expected.len(), new.len());
            return Err(invalid(message));
        }
        let written =
            async move { handle.compare_and_write_at(expected, new, offset).await.map(Value::Bool) };
        run(py, completions, Box::pin(written))
    }

    /// Ends the connection, and waits for the shutdown of the controller, 3 seconds at most. Closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.client.take() {
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
        self.client.repr()
    }
}
