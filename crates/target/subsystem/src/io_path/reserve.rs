//! A buffer for one transfer, kept out of the pool for commands that others wait for: with in-capsule data, behind
//! which the input of the lane is held back, with a buffer of their own, or with a range that a fused pair waits for.
//! Such a command ends without needing anything else, so that progress does not depend on hosts that withhold buffers.
//! docs/design/memory.md

use memory::{Buffer, Pool};

/// The buffer, unless it is in use.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    buffer: Option<Buffer>,
    /// Its capacity, bytes.
    length: usize,
}

impl Reserve {
    /// Takes it from the pool, before any other buffer is taken.
    pub(crate) fn set_aside(&mut self, pool: &Pool, length: usize) {
        self.buffer = pool.take(length);
        self.length = self.buffer.as_ref().map_or(length, Buffer::capacity);
    }

    /// The buffer, if it is there and long enough.
    pub(crate) fn take(&mut self, length: usize) -> Option<Buffer> {
        let mut buffer = self.buffer.take_if(|buffer| buffer.capacity() >= length)?;
        buffer.set_len(length);
        Some(buffer)
    }

    /// Releases a buffer. It becomes the reserve if there is none and its length is that of the reserve; a longer one
    /// goes back to the pool.
    pub(crate) fn release(&mut self, buffer: Option<Buffer>) {
        if self.buffer.is_none() {
            self.buffer = buffer.filter(|buffer| buffer.capacity() == self.length);
        }
    }

    /// Replaces it by one of the pool's, if it is not there.
    pub(crate) fn refill(&mut self, pool: &Pool) {
        if self.buffer.is_none() {
            self.buffer = pool.take(self.length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_buffer_of_its_length_becomes_the_reserve() {
        let pool = Pool::new(1).unwrap();
        let all_bytes = pool.free_bytes();
        let mut reserve = Reserve::default();
        reserve.set_aside(&pool, 16 << 10);
        let taken = reserve.take(512);
        assert!(taken.is_some() && reserve.take(512).is_none());
        reserve.release(pool.take(8 << 10));
        reserve.release(pool.take(64 << 10));
        assert_eq!(pool.free_bytes(), all_bytes - (16 << 10), "both are the pool's again");
        reserve.release(taken);
        assert!(reserve.take(16 << 10).is_some());
        reserve.refill(&pool);
        assert_eq!(pool.free_bytes(), all_bytes - (16 << 10));
    }
}
