//! Values kept unchanged while they are sent in pieces, also from other reactors. Dropping a [`Kept`], on any thread,
//! releases the value; only its partition reads it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::key::KeyHash;
use crate::pins::Pin;

/// A value that stays unchanged until this is dropped, whatever happens to its key.
pub struct Kept {
    /// The pin; taken on drop.
    pub(crate) pin: Option<Pin>,
    pub(crate) hash: KeyHash,
    pub(crate) length: usize,
    pub(crate) returned: Arc<Returned>,
}

/// Dropped pins that their partition has not processed yet.
#[derive(Default)]
pub(crate) struct Returned {
    pub(crate) pins: Mutex<Vec<Pin>>,
    pub(crate) count: AtomicUsize,
}

impl Kept {
    /// The partition, of `count`, that keeps it.
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
