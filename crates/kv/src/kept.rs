//! Values that are kept as they are for whoever sends them piece by piece, also from other reactors. What keeps a value is let go
//! of by dropping it, wherever that is; its partition alone reads the value.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::key::KeyHash;
use crate::pins::Pin;

/// A value that stays as it is until this is dropped, whatever becomes of its key.
pub struct Kept {
    /// Until it is dropped.
    pub(crate) pin: Option<Pin>,
    pub(crate) hash: KeyHash,
    pub(crate) length: usize,
    pub(crate) returned: Arc<Returned>,
}

/// What was let go of and its partition does not know of yet.
#[derive(Default)]
pub(crate) struct Returned {
    pub(crate) pins: Mutex<Vec<Pin>>,
    pub(crate) count: AtomicUsize,
}

impl Kept {
    /// Which of `count` partitions has it.
    #[must_use]
    pub fn partition(&self, count: usize) -> usize {
        self.hash.partition(count)
    }

    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut pins = self.returned.pins.lock().unwrap_or_else(PoisonError::into_inner);
        pins.extend(self.pin.take());
        self.returned.count.store(pins.len(), Ordering::Release);
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({} bytes)", self.length)
    }
}
