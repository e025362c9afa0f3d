//! What every client has: its handle until it is closed, and the process that has opened it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::error::{closed, forked};

/// A client of the host library, for one process.
pub(crate) struct Client<H> {
    handle: Mutex<Option<H>>,
    pid: u32,
    /// The class.
    name: &'static str,
    /// The address.
    pub(crate) address: String,
    /// Its lanes.
    pub(crate) lanes: usize,
}

impl<H> Client<H> {
    pub(crate) fn new(handle: H, name: &'static str, address: String, lanes: usize) -> Self {
        Self { handle: Mutex::new(Some(handle)), pid: std::process::id(), name, address, lanes }
    }

    fn lock(&self) -> MutexGuard<'_, Option<H>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    /// The handle.
    ///
    /// # Errors
    /// The client is closed, or this is a child of the process that has opened it.
    pub(crate) fn handle(&self) -> PyResult<H>
    where
        H: Clone,
    {
        if self.pid != std::process::id() {
            return Err(forked(self.name, self.pid));
        }
        self.lock().clone().ok_or_else(|| closed(self.name))
    }

    /// Takes the handle, to close it. A child of the process that has opened it forgets it: the threads of its lanes are in
    /// the parent, whose descriptors this process shares.
    pub(crate) fn take(&self) -> Option<H> {
        let handle = self.lock().take();
        if self.pid != std::process::id() {
            std::mem::forget(handle);
            return None;
        }
        handle
    }

    pub(crate) fn repr(&self) -> String {
        let Self { name, address, .. } = self;
        format!("<nvlane.{name} {address}{}>", if self.is_closed() { ", closed" } else { "" })
    }
}

impl<H> Drop for Client<H> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
