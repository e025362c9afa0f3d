//! Operations in flight in the kernel or a worker, which own their buffers until they complete.

use crate::operation::{Operation, Token};

/// Slots of running operations, found again by index.
#[derive(Debug)]
pub(crate) struct InFlight {
    slots: Vec<Option<(Token, Operation)>>,
    free: Vec<u32>,
}

impl InFlight {
    /// Room for `limit` operations.
    pub(crate) fn new(limit: u32) -> Self {
        Self { slots: (0..limit).map(|_| None).collect(), free: (0..limit).rev().collect() }
    }

    /// Stores an operation and returns its slot; returns the operation if there is no room. Never panics.
    pub(crate) fn insert(&mut self, token: Token, operation: Operation) -> Result<u32, Operation> {
        let Some(slot) = self.free.pop() else { return Err(operation) };
        self.slots[slot as usize] = Some((token, operation));
        Ok(slot)
    }

    /// Removes the operation in `slot`.
    ///
    /// # Panics
    /// If there is none: it would have completed twice.
    pub(crate) fn remove(&mut self, slot: u32) -> (Token, Operation) {
        let entry = self.slots.get_mut(slot as usize).and_then(Option::take);
        let Some(entry) = entry else {
            panic!("a completion for slot {slot} of {}, which has no operation", self.slots.len());
        };
        self.free.push(slot);
        entry
    }

    /// Operations in flight.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
