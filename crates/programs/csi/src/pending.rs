//! Volumes that a call is working on: a second call for one of them is told to come back.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tonic::Status;

/// Names of volumes and snapshots.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<BTreeSet<String>>);

/// A name that is being worked on, until this is dropped.
#[derive(Debug)]
pub(crate) struct Working<'a> {
    pending: &'a Pending,
    name: String,
}

impl Pending {
    /// Begins to work on a name.
    ///
    /// # Errors
    /// Another call is working on it.
    pub(crate) fn begin(&self, name: impl Into<String>) -> Result<Working<'_>, Status> {
        let name = name.into();
        let is_free = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        match is_free {
            true => Ok(Working { pending: self, name }),
            false => {
                Err(Status::aborted(format!("another call is working on {name}: repeat this one later")))
            }
        }
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.pending.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}
