//! Memory of the far side, of the kind that a namespace in RAM has, used in random blocks.

use std::io;

use memory::{Memory, MemoryAccess, MemoryRef, Segment, page_bytes};

use super::CeilingSpec;
use crate::random::Prng;

/// Memory in blocks of the size of an operation.
pub(super) struct Blocks {
    access: MemoryAccess,
    whole: MemoryRef,
    io_bytes: usize,
    count: u64,
}

impl Blocks {
    /// The memory that `spec` asks for, written once: pages that were never written are one page of zeroes to the kernel.
    pub(super) fn new(spec: &CeilingSpec) -> io::Result<Option<Self>> {
        if spec.far_memory_bytes == 0 {
            return Ok(None);
        }
        let io_bytes = spec.io_bytes as usize;
        let bytes = spec.far_memory_bytes.max(io_bytes);
        let access = Memory::new(bytes, false, false, page_bytes())?.attach().expect("just made");
        let block = vec![0x5a; io_bytes];
        let count = bytes / io_bytes;
        for index in 0..count {
            access.copy_in(index * io_bytes, &block).expect("within it");
        }
        let whole = access.refer(0, bytes).expect("of one thread, and not empty");
        Ok(Some(Self { access, whole, io_bytes, count: count as u64 }))
    }

    /// A walk of its own for each of several users.
    pub(super) fn walk(&self, number: u64) -> Walk<'_> {
        Walk { blocks: self, random: Prng::new(number), at: 0 }
    }
}

/// Random blocks, one after the other.
pub(super) struct Walk<'a> {
    blocks: &'a Blocks,
    random: Prng,
    /// Where the current block begins.
    at: usize,
}

impl<'a> Walk<'a> {
    /// Goes to another block.
    pub(super) fn advance(&mut self) {
        let index = self.random.below(self.blocks.count);
        self.at = usize::try_from(index).expect("a block of the memory") * self.blocks.io_bytes;
    }

    /// Another block, to send.
    pub(super) fn next(&mut self) -> Segment<'a> {
        self.advance();
        self.blocks.whole.segment(self.at..self.at + self.blocks.io_bytes)
    }

    /// Copies data to `offset` of the current block.
    pub(super) fn copy_in(&self, offset: usize, data: &[u8]) {
        self.blocks.access.copy_in(self.at + offset, data).expect("data of one block");
    }
}
