//! A chunk: its key, and bytes that say which chunk they belong to.

use std::fmt::Write;

use crate::random::mix;

/// Bytes between two marks: those between them are the same in all chunks.
const PAGE_BYTES: usize = 4096;

/// Bytes of a mark.
const MARK_BYTES: usize = 16;

/// Bytes that are not marks.
const FILL: u8 = 0x5A;

/// A chunk of a prompt.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Some 90 bytes of text, like the keys of LMCache.
    pub key: String,
    /// Its bytes, or the buffer for them.
    pub bytes: Vec<u8>,
    /// What became of it.
    pub end: ChunkEnd,
    /// Its identity.
    mark: u64,
}

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkEnd {
    /// All of it was retrieved or stored.
    Moved,
    /// Retrieve: it is not there, or not whole.
    Missing,
    /// It could not be moved.
    Failed,
}

impl Chunk {
    /// A chunk without a key.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self { key: String::new(), bytes: vec![FILL; length], end: ChunkEnd::Failed, mark: 0 }
    }

    /// Makes it the chunk with this identity. Its bytes are another's until it is [filled](Self::fill).
    pub(super) fn name(&mut self, identity: [u64; 4]) {
        self.mark = 0;
        self.key.clear();
        self.key.push_str("nvlane/prompts@00000001@0@");
        for part in identity {
            self.mark = mix(self.mark ^ part);
            write!(self.key, "{:016x}", self.mark).expect("text is written to memory");
        }
        self.end = ChunkEnd::Failed;
    }

    /// Writes its marks.
    pub(super) fn fill(&mut self) {
        self.set_marks(self.mark);
    }

    /// Removes the marks, so that bytes of an earlier retrieval are not taken for those of the next one.
    pub(super) fn forget(&mut self) {
        self.set_marks(0);
    }

    fn set_marks(&mut self, mark: u64) {
        for (at, page) in self.bytes.chunks_mut(PAGE_BYTES).enumerate() {
            let written = page.len().min(MARK_BYTES);
            page[..written].copy_from_slice(&mark_of(mark, at)[..written]);
        }
    }

    /// Whether its bytes have its marks in all pages.
    pub(super) fn is_right(&self) -> bool {
        self.bytes.chunks(PAGE_BYTES).enumerate().all(|(at, page)| {
            let read = page.len().min(MARK_BYTES);
            page[..read] == mark_of(self.mark, at)[..read] && page.last().is_some()
        })
    }
}

/// The mark of a page of a chunk.
fn mark_of(mark: u64, page: usize) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    bytes[..8].copy_from_slice(&mark.to_le_bytes());
    bytes[8..].copy_from_slice(&(page as u64).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_known_by_every_page() {
        for length in [1, 15, 4096, 4097, 100_000] {
            let mut chunk = Chunk::new(length);
            chunk.name([1, 2, 3, 4]);
            chunk.fill();
            assert!(chunk.is_right());
            let mut other = chunk.clone();
            other.name([1, 2, 3, 5]);
            assert!(!other.is_right() && other.key != chunk.key);
            for page in 0..length.div_ceil(PAGE_BYTES) {
                let mut torn = chunk.clone();
                torn.bytes[page * PAGE_BYTES] ^= 1;
                assert!(!torn.is_right(), "page {page} of {length} bytes");
            }
            chunk.forget();
            assert!(!chunk.is_right());
        }
    }
}
