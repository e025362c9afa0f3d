//! Contents of the blocks of a disk, which the cache, the disk and the versions in between share.

use std::ops::Range;
use std::rc::Rc;

/// The blocks of a disk. One that was never written takes no memory: most worlds touch few of many.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    contents: Vec<Option<Rc<[u8]>>>,
    zeroes: Rc<[u8]>,
}

impl Blocks {
    /// Blocks of zeroes.
    pub(super) fn new(block_bytes: usize, block_count: usize) -> Self {
        Self { contents: vec![None; block_count], zeroes: vec![0; block_bytes].into() }
    }

    pub(super) fn count(&self) -> usize {
        self.contents.len()
    }

    /// A block of zeroes.
    pub(super) fn zeroes(&self) -> Rc<[u8]> {
        Rc::clone(&self.zeroes)
    }

    /// The content of a block.
    pub(super) fn get(&self, block: usize) -> &[u8] {
        self.contents[block].as_deref().unwrap_or(&self.zeroes)
    }

    pub(super) fn set(&mut self, block: usize, content: Rc<[u8]>) {
        self.contents[block] = Some(content);
    }

    /// Takes the content of a block from another disk of this form.
    pub(super) fn copy_from(&mut self, other: &Self, block: usize) {
        self.contents[block].clone_from(&other.contents[block]);
    }

    /// Takes the contents of all blocks from another disk of this form.
    pub(super) fn copy_all_from(&mut self, other: &Self) {
        self.contents.clone_from(&other.contents);
    }

    pub(super) fn clear(&mut self, blocks: Range<usize>) {
        self.contents[blocks].fill(None);
    }

    /// The first bytes.
    pub(super) fn first(&self, byte_count: usize) -> Vec<u8> {
        let blocks = 0..byte_count.div_ceil(self.zeroes.len());
        let mut bytes: Vec<u8> = blocks.flat_map(|block| self.get(block)).copied().collect();
        bytes.truncate(byte_count);
        bytes
    }

    /// Overwrites the first bytes.
    pub(super) fn set_first(&mut self, bytes: &[u8]) {
        for (block, bytes) in bytes.chunks(self.zeroes.len()).enumerate() {
            let rest = &self.get(block)[bytes.len()..];
            self.contents[block] = Some([bytes, rest].concat().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zeroes_until_written_and_their_first_bytes_can_be_changed() {
        let mut blocks = Blocks::new(4, 3);
        blocks.set(1, vec![5; 4].into());
        assert_eq!((blocks.get(0), blocks.get(1), blocks.count()), (&[0; 4][..], &[5; 4][..], 3));
        assert_eq!(blocks.first(6), [0, 0, 0, 0, 5, 5]);
        blocks.set_first(&[1, 2, 3, 4, 6]);
        assert_eq!((blocks.get(0), blocks.get(1)), (&[1, 2, 3, 4][..], &[6, 5, 5, 5][..]));
        let mut other = Blocks::new(4, 3);
        other.copy_from(&blocks, 1);
        assert_eq!((other.get(0), other.get(1)), (&[0; 4][..], &[6, 5, 5, 5][..]));
        other.copy_all_from(&blocks);
        other.clear(1..3);
        assert_eq!(other.first(12), [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
