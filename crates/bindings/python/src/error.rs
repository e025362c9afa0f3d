//! Errors as Python exceptions: the classes of `nvlane.errors`.

use std::fmt;

use host::{Error, Failure, Status};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// A class of `nvlane.errors`.
fn class<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyType>>,
    name: &str,
) -> PyResult<&'py Bound<'py, PyType>> {
    cell.import(py, "nvlane.errors", name)
}

/// An exception that a host error is.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    static COMMAND: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static CONNECTION: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static RESOURCE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let message = error.to_string();
    let made = match error {
        Error::Address(_) | Error::Command(_) | Error::NoSubsystem { .. } | Error::Spread(_) => {
            return PyValueError::new_err(message);
        }
        Error::Failed { failure, .. } => {
            let status = failure.status().map(Status::code);
            let is_unflushed = matches!(failure, Failure::Unflushed);
            let arguments = (message, status, failure.may_have_happened(), is_unflushed);
            class(py, &COMMAND, "CommandError").and_then(|class| class.call1(arguments))
        }
        Error::System { cause, .. } => class(py, &RESOURCE, "ResourceError")
            .and_then(|class| class.call1((message, cause.raw_os_error()))),
        _ => class(py, &CONNECTION, "ConnectionLost")
            .and_then(|class| class.call1((message, error.is_permanent()))),
    };
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// A client that was closed.
pub(crate) fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("this {what} is closed"))
}

/// A client that another process has opened.
pub(crate) fn forked(what: &str, pid: u32) -> PyErr {
    PyRuntimeError::new_err(format!(
        "this {what} belongs to process {pid}, which has forked: its connections and threads are not in this process. Open \
         another {what} after the fork"
    ))
}

/// An invalid argument.
pub(crate) fn invalid(message: impl fmt::Display) -> PyErr {
    PyValueError::new_err(message.to_string())
}
