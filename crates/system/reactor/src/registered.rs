//! The arena of a pool as a ring's fixed buffers, one for each of its largest blocks.
//!
//! The kernel pins the pages of a fixed buffer, so it has to provide them first: 20 ms and more for 64 MiB. A block is
//! therefore registered when an operation first uses it; blocks that are never used take no memory.

use io_uring::Submitter;

use memory::{BLOCK_BYTES_MAX, Pool};

/// The most fixed buffers that the kernel has room for.
const BLOCK_COUNT_MAX: usize = 1 << 14;

/// Which blocks of an arena are fixed buffers of a ring.
#[derive(Debug)]
pub(crate) struct RegisteredBlocks {
    /// Address of the arena.
    start: usize,
    /// By block; blocks behind it are never registered.
    blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Unused,
    Registered,
}

impl RegisteredBlocks {
    /// Makes room for the blocks of the pool. Linux before 5.13 can register none later.
    pub(crate) fn new(submitter: &Submitter<'_>, pool: &Pool) -> Self {
        let (start, length) = pool.arena();
        let count = (length / BLOCK_BYTES_MAX).min(BLOCK_COUNT_MAX);
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: these buffers are empty.
        let count = match unsafe { submitter.register_buffers(&vec![none; count]) } {
            Ok(()) => count,
            Err(error) => {
                tracing::debug!(%error, "no registered buffers");
                0
            }
        };
        Self { start: start.as_ptr() as usize, blocks: vec![Block::Unused; count] }
    }

    /// The fixed buffer that a range of memory lies in; registers it at its first use. `None` if it lies in none, or
    /// the limit of locked memory is reached.
    ///
    /// # Safety
    /// The pool outlives the ring.
    pub(crate) unsafe fn find(
        &mut self,
        submitter: &Submitter<'_>,
        address: usize,
        length: u32,
    ) -> Option<u16> {
        let from = address.checked_sub(self.start)?;
        let index = from / BLOCK_BYTES_MAX;
        let is_within = from + length as usize <= (index + 1) * BLOCK_BYTES_MAX;
        let block = self.blocks.get_mut(index).filter(|_| is_within)?;
        let number = u16::try_from(index).expect("fewer than the kernel has room for");
        if *block == Block::Unused {
            let start = (self.start + index * BLOCK_BYTES_MAX) as *mut libc::c_void;
            let buffer = libc::iovec { iov_base: start, iov_len: BLOCK_BYTES_MAX };
            // SAFETY: the block is mapped until the pool is dropped, by the caller's contract after the ring.
            if let Err(error) = unsafe { submitter.register_buffers_update(number.into(), &[buffer], None) } {
                tracing::debug!(%error, index, "no more registered buffers");
                self.blocks.truncate(index);
                return None;
            }
            *block = Block::Registered;
        }
        Some(number)
    }

    /// Forgets all blocks.
    #[cfg(test)]
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Number of registered blocks.
    pub(crate) fn count(&self) -> usize {
        self.blocks.iter().filter(|block| **block == Block::Registered).count()
    }
}
