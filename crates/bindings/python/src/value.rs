//! Results of operations, made into Python objects by a thread that holds the interpreter's lock.

use host::Error;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// The end of an operation.
pub(crate) type Ended = Result<Value, Error>;

/// The result of an operation.
pub(crate) enum Value {
    Nothing,
    Bool(bool),
    Number(u64),
    /// A number or `None`.
    Found(Option<u64>),
    /// An object that the operation has filled.
    Filled(Py<PyBytes>),
    Bytes(Option<Vec<u8>>),
    Bools(Vec<bool>),
    /// For each key whether its value is usable; `None` if there is none.
    Usable(Vec<Option<bool>>),
    Values(Vec<Option<Vec<u8>>>),
    Keys(Vec<Vec<u8>>),
    /// Name, whether it is up, how often it was lost, and why.
    Targets(Vec<(String, bool, u64, Option<String>)>),
}

impl Value {
    /// The Python object.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let bytes = |value: Option<Vec<u8>>| value.map(|value| PyBytes::new(py, &value));
        match self {
            Self::Nothing => Ok(py.None().into_bound(py)),
            Self::Bool(value) => Ok(value.into_pyobject(py)?.to_owned().into_any()),
            Self::Number(value) => Ok(value.into_pyobject(py)?.into_any()),
            Self::Found(value) => Ok(value.into_pyobject(py)?),
            Self::Filled(object) => Ok(object.into_bound(py).into_any()),
            Self::Bytes(value) => Ok(bytes(value).into_pyobject(py)?),
            Self::Bools(values) => Ok(PyList::new(py, values)?.into_any()),
            Self::Usable(values) => Ok(PyList::new(py, values)?.into_any()),
            Self::Values(values) => Ok(PyList::new(py, values.into_iter().map(bytes))?.into_any()),
            Self::Targets(targets) => Ok(PyList::new(py, targets)?.into_any()),
            Self::Keys(keys) => Ok(PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key)))?.into_any()),
        }
    }
}
