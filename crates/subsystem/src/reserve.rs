//! A buffer for one transfer, kept out of the pool for commands that others wait for: with data in a capsule, behind which
//! nothing of a lane is taken in, with a buffer of its own already, or with a range that a fused pair waits for. They end without needing
//! anything else, so everything goes on however long hosts leave the pool empty. docs/design/memory.md

use reactor::{Buffer, Pool};

/// The buffer, unless it is in use.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    buffer: Option<Buffer>,
    /// What it has room for, bytes.
    length: usize,
}

impl Reserve {
    /// Takes it from the pool, before anybody else does.
    pub(crate) fn set_aside(&mut self, pool: &Pool, length: usize) {
        self.length = length;
        self.buffer = pool.take(length);
    }

    /// The buffer, if it is there and long enough.
    pub(crate) fn take(&mut self, length: usize) -> Option<Buffer> {
        let mut buffer = self.buffer.take_if(|buffer| buffer.capacity() >= length)?;
        buffer.set_len(length);
        Some(buffer)
    }

    /// A buffer that may have been this one has done its work.
    pub(crate) fn give_back(&mut self, buffer: Option<Buffer>) {
        if self.buffer.is_none() {
            self.buffer = buffer.filter(|buffer| buffer.capacity() >= self.length);
        }
    }

    /// Replaces it by one of the pool's, if it is not there.
    pub(crate) fn refill(&mut self, pool: &Pool) {
        if self.buffer.is_none() {
            self.buffer = pool.take(self.length);
        }
    }
}
