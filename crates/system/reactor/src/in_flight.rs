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

/// Awaited descriptors, found again by index. As many as there is memory for: an idle one takes nothing else.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    slots: Vec<Option<(Token, Operation)>>,
    free: Vec<u32>,
}

impl Awaited {
    /// Stores an operation and returns its slot.
    pub(crate) fn insert(&mut self, token: Token, operation: Operation) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 32 bits count")
        });
        self.slots[slot as usize] = Some((token, operation));
        slot
    }

    /// Removes the operation in `slot`, if there is one.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<(Token, Operation)> {
        let entry = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(entry)
    }

    /// The operation in `slot`, if there is one.
    pub(crate) fn get(&self, slot: u32) -> Option<&Operation> {
        self.slots.get(slot as usize)?.as_ref().map(|(_, operation)| operation)
    }
}
