//! Memory of Python objects as the data of commands, without a copy.

#![allow(unsafe_code)]

use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use host::DataBuffer;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

/// What was exported, and is to be released by a thread that holds the interpreter's lock: the threads of lanes, which may
/// end a command last, do not take it.
static LEFT: Mutex<Vec<Owner>> = Mutex::new(Vec::new());

/// Releases what was left, at the end of a method: also of one that has exported memory and then fails.
pub(crate) struct ReleaseAfter<'py>(pub(crate) Python<'py>);

impl Drop for ReleaseAfter<'_> {
    fn drop(&mut self) {
        release_left(self.0);
    }
}

/// Releases the memory of ended commands.
pub(crate) fn release_left(py: Python<'_>) {
    let left = std::mem::take(&mut *LEFT.lock().unwrap_or_else(PoisonError::into_inner));
    for owner in left {
        match owner {
            Owner::Buffer(buffer) => buffer.release(py),
            Owner::Bytes(bytes) => drop(bytes.into_bound(py)),
            Owner::Own { .. } => {}
        }
    }
}

/// What keeps memory where it is.
enum Owner {
    /// An export of the buffer protocol.
    Buffer(PyUntypedBuffer),
    /// An object that this module has made and not handed out yet.
    Bytes(Py<PyBytes>),
    /// Memory of this module's own.
    Own { _memory: Vec<u8> },
}

/// Contiguous memory of a Python object, which stays in place until the last [`Memory`] of it is dropped.
struct Export {
    /// Not null, also if there are no bytes.
    start: *mut u8,
    length: usize,
    /// `None` once it is in [`LEFT`].
    owner: Option<Owner>,
}

// SAFETY: `start` is valid for `length` bytes as long as the owner is not released, on every thread, and `Owner` is `Send`
// and `Sync` itself.
unsafe impl Send for Export {}
// SAFETY: as above; the bytes are only reached through `Memory`, whose pieces do not overlap if they are filled.
unsafe impl Sync for Export {}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take().filter(|owner| !matches!(owner, Owner::Own { .. })) {
            LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(owner);
        }
    }
}

/// A piece of a Python object's memory: the data of one command.
///
/// As with `readinto` of a file, Python code that changes the object while a command is outstanding gets undefined bytes:
/// the buffer protocol has no lock.
#[derive(Clone)]
pub(crate) struct Memory {
    export: Arc<Export>,
    offset: usize,
    length: usize,
}

impl Memory {
    fn whole(start: *mut u8, length: usize, owner: Owner) -> Self {
        let start = if start.is_null() { std::ptr::dangling_mut() } else { start };
        Self { export: Arc::new(Export { start, length, owner: Some(owner) }), offset: 0, length }
    }

    fn exported(object: &Bound<'_, PyAny>, argument: &str) -> PyResult<PyUntypedBuffer> {
        let kind = || object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        let exported = PyUntypedBuffer::get(object).or_else(|error| {
            if !error.is_instance_of::<PyBufferError>(object.py()) {
                return Err(error);
            }
            // Arrays of ctypes export no strides; a memoryview of them has strides.
            let view = PyMemoryView::from(object)?;
            PyUntypedBuffer::get(view.as_any())
        });
        let buffer = exported.map_err(|error| {
            if error.is_instance_of::<PyTypeError>(object.py()) {
                let message = format!(
                    "{argument} has to be bytes, bytearray, memoryview, array or numpy array, not {}",
                    kind()
                );
                PyTypeError::new_err(message)
            } else {
                error
            }
        })?;
        if !buffer.is_c_contiguous() {
            let message = format!("{argument} is not contiguous (C order): pass a contiguous copy");
            return Err(PyBufferError::new_err(message));
        }
        Ok(buffer)
    }

    /// The bytes of an object, to send.
    ///
    /// # Errors
    /// It has no contiguous buffer.
    pub(crate) fn to_send(object: &Bound<'_, PyAny>, argument: &str) -> PyResult<Self> {
        let buffer = Self::exported(object, argument)?;
        Ok(Self::whole(buffer.buf_ptr().cast(), buffer.len_bytes(), Owner::Buffer(buffer)))
    }

    /// The bytes of a writable object, to fill.
    ///
    /// # Errors
    /// It has no contiguous buffer, or a read-only one.
    pub(crate) fn to_fill(object: &Bound<'_, PyAny>, argument: &str) -> PyResult<Self> {
        let buffer = Self::exported(object, argument)?;
        if buffer.readonly() {
            let message = format!("{argument} is read-only: pass a bytearray or another writable buffer");
            return Err(PyBufferError::new_err(message));
        }
        Ok(Self::whole(buffer.buf_ptr().cast(), buffer.len_bytes(), Owner::Buffer(buffer)))
    }

    /// A new object of `length` bytes to fill, and its memory. The caller hands the object out after the last command
    /// that fills it.
    ///
    /// # Errors
    /// There is not so much memory.
    pub(crate) fn new_bytes(py: Python<'_>, length: u64) -> PyResult<(Py<PyBytes>, Self)> {
        let length = usize::try_from(length).ok().filter(|length| *length <= isize::MAX as usize);
        let length =
            length.ok_or_else(|| PyValueError::new_err("length exceeds the memory of any machine"))?;
        let mut start = std::ptr::null_mut();
        let bytes = PyBytes::new_with(py, length, |bytes| {
            start = bytes.as_mut_ptr();
            Ok(())
        })?;
        let bytes = bytes.unbind();
        Ok((bytes.clone_ref(py), Self::whole(start, length, Owner::Bytes(bytes))))
    }

    /// Memory of this module's own, to fill.
    pub(crate) fn own(length: usize) -> Self {
        let mut memory = vec![0; length];
        Self::whole(memory.as_mut_ptr(), length, Owner::Own { _memory: memory })
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The piece of at most `length` bytes from `offset` on.
    pub(crate) fn piece(&self, offset: usize, length: usize) -> Self {
        let offset = offset.min(self.length);
        let length = length.min(self.length - offset);
        Self { export: Arc::clone(&self.export), offset: self.offset + offset, length }
    }

    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        debug_assert!(self.offset + self.length <= self.export.length, "a piece is within its object");
        // SAFETY: the object's memory is valid for these bytes while the export lives (`piece` keeps within it).
        unsafe { slice::from_raw_parts(self.export.start.add(self.offset), self.length) }
    }

    /// Copies a value to its beginning, unless the value is longer. Returns the length of the value.
    pub(crate) fn fill(mut self, value: &[u8]) -> u64 {
        if let Some(start) = self.as_mut_slice().get_mut(..value.len()) {
            start.copy_from_slice(value);
        }
        value.len() as u64
    }

    /// The bytes, to fill. Only for memory made by [`to_fill`](Self::to_fill) and [`new_bytes`](Self::new_bytes).
    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above; the object is writable, and the pieces of one call do not overlap.
        unsafe { slice::from_raw_parts_mut(self.export.start.add(self.offset), self.length) }
    }
}

impl Default for Memory {
    /// No bytes.
    fn default() -> Self {
        Self::own(0)
    }
}

impl DataBuffer for Memory {
    fn length(&self) -> usize {
        self.length
    }

    fn part(&self, offset: usize) -> &[u8] {
        self.as_slice().get(offset..).unwrap_or_default()
    }

    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        self.as_mut_slice().get_mut(offset..).unwrap_or_default()
    }
}
