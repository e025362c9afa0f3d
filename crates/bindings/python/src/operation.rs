//! An operation of a client: waited for without the interpreter's lock, or registered with [`Completions`].

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::completions::Completions;
use crate::error::exception;
use crate::memory::release_left;
use crate::together::Boxed;
use crate::value::Ended;

/// Interval at which a waiting call looks for signals, such as that of Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(100);

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future without the interpreter's lock. A signal handler that raises an exception ends the wait, which
/// cancels the commands.
///
/// # Errors
/// The exception of a signal handler.
pub(crate) fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let ended = loop {
        let ended = py.detach(|| {
            let until = Instant::now() + SIGNALS;
            loop {
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(value) => return Some(value),
                    Poll::Pending => {
                        let left = until.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            return None;
                        }
                        thread::park_timeout(left);
                    }
                }
            }
        });
        match ended {
            Some(value) => break value,
            None => py.check_signals()?,
        }
    };
    Ok(ended)
}

/// Waits for an operation and returns its result; or, with `completions`, starts it and returns its number.
///
/// # Errors
/// The exception that the operation's error is.
pub(crate) fn run<'py>(
    py: Python<'py>,
    completions: Option<&Bound<'py, Completions>>,
    operation: Boxed<Ended>,
) -> PyResult<Bound<'py, PyAny>> {
    let result = match completions {
        Some(completions) => {
            let number = completions.get().start(operation)?;
            Ok(number.into_pyobject(py)?.into_any())
        }
        None => match wait(py, operation)? {
            Ok(value) => value.into_object(py),
            Err(error) => Err(exception(py, &error)),
        },
    };
    release_left(py);
    result
}
