//! Outstanding operations whose ends an event descriptor announces: for event loops, and for programs that have their own.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::error::{closed, exception};
use crate::memory::release_left;
use crate::together::Boxed;
use crate::value::Ended;

/// Operations that were started and not waited for. The event descriptor is readable when some may have ended.
#[pyclass(frozen, module = "nvlane._nvlane")]
pub(crate) struct Completions {
    woken: Arc<Woken>,
    tasks: Mutex<Tasks>,
}

struct Tasks {
    next: u64,
    /// By number. An operation is taken out while a thread polls it.
    running: HashMap<u64, Boxed<Ended>>,
    is_closed: bool,
}

/// Operations to poll, and the event descriptor.
struct Woken {
    event: OwnedFd,
    numbers: Mutex<Vec<u64>>,
}

impl Woken {
    fn numbers(&self) -> MutexGuard<'_, Vec<u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, number: u64) {
        let mut numbers = self.numbers();
        numbers.push(number);
        if numbers.len() == 1 {
            // It fails only if its counter is full, and then it is readable.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}

struct WakeOne(Arc<Woken>, u64);

impl Wake for WakeOne {
    fn wake(self: Arc<Self>) {
        self.0.wake(self.1);
    }
}

impl Completions {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls an outstanding operation, under the lock: a wake during the poll then finds the operation in its place.
    /// Returns its end.
    fn poll(&self, tasks: &mut Tasks, number: u64) -> Option<Ended> {
        let operation = tasks.running.get_mut(&number)?;
        let waker = Waker::from(Arc::new(WakeOne(Arc::clone(&self.woken), number)));
        match operation.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(ended) => {
                tasks.running.remove(&number);
                Some(ended)
            }
            Poll::Pending => None,
        }
    }

    /// Starts an operation: its first commands are submitted. Returns its number.
    ///
    /// # Errors
    /// The completions are closed.
    pub(crate) fn start(&self, operation: Boxed<Ended>) -> PyResult<u64> {
        let mut tasks = self.tasks();
        if tasks.is_closed {
            return Err(closed("Completions"));
        }
        tasks.next += 1;
        let number = tasks.next;
        tasks.running.insert(number, operation);
        if let Some(ended) = self.poll(&mut tasks, number) {
            tasks.running.insert(number, Box::pin(std::future::ready(ended)));
            self.woken.wake(number);
        }
        Ok(number)
    }
}

/// The number of an operation that has ended, its result, and its exception.
type Drained<'py> = (u64, Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>);

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|error| PyOSError::new_err((error.raw_os_error(), error.to_string())))?;
        let tasks = Tasks { next: 0, running: HashMap::new(), is_closed: false };
        Ok(Self { woken: Arc::new(Woken { event, numbers: Mutex::default() }), tasks: Mutex::new(tasks) })
    }

    /// The event descriptor: readable when operations may have ended.
    fn fileno(&self) -> i32 {
        self.woken.event.as_raw_fd()
    }

    /// Number of operations that have not been drained.
    fn __len__(&self) -> usize {
        self.tasks().running.len()
    }

    /// The operations that have ended: a list of (number, result, exception). Resets the event descriptor.
    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Vec<Drained<'py>>> {
        let mut count = [0; 8];
        // Without a count there is nothing to reset.
        let _ = rustix::io::read(&self.woken.event, &mut count);
        let numbers = std::mem::take(&mut *self.woken.numbers());
        let mut ended = Vec::new();
        for number in numbers {
            let polled = self.poll(&mut self.tasks(), number);
            match polled {
                None => {}
                Some(Ok(value)) => ended.push((number, Some(value.into_object(py)?), None)),
                Some(Err(error)) => {
                    ended.push((
                        number,
                        None,
                        Some(exception(py, &error).into_value(py).into_bound(py).into_any()),
                    ));
                }
            }
        }
        release_left(py);
        Ok(ended)
    }

    /// Cancels an operation. Returns whether it was outstanding.
    fn cancel(&self, py: Python<'_>, number: u64) -> bool {
        let operation = self.tasks().running.remove(&number);
        let is_outstanding = operation.is_some();
        drop(operation);
        release_left(py);
        is_outstanding
    }

    /// Cancels all operations, and takes no more.
    fn close(&self, py: Python<'_>) {
        let running = {
            let mut tasks = self.tasks();
            tasks.is_closed = true;
            std::mem::take(&mut tasks.running)
        };
        drop(running);
        release_left(py);
    }
}
