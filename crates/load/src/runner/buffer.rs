//! The buffer of an operation: room for the largest, of which each uses what it needs.

use host::DataBuffer;

use crate::random::mix;

/// A buffer that is as long as its operation.
#[derive(Debug)]
pub(crate) struct IoBuffer {
    bytes: Box<[u8]>,
    length: usize,
}

impl IoBuffer {
    /// Room for `capacity` bytes, filled with what neither compresses nor repeats from one buffer to the other.
    pub(crate) fn new(capacity: usize, seed: u64) -> Self {
        let words = (0..capacity.div_ceil(8) as u64).map(|word| mix(seed << 32 | word).to_le_bytes());
        let mut bytes: Vec<u8> = words.flatten().collect();
        bytes.truncate(capacity);
        Self { bytes: bytes.into_boxed_slice(), length: capacity }
    }

    /// Makes it `length` bytes long.
    ///
    /// # Panics
    /// If there is not so much room.
    #[inline]
    pub(crate) fn resize(&mut self, length: usize) {
        assert!(length <= self.bytes.len(), "buffers have room for the largest operation");
        self.length = length;
    }

    /// What the operation moves.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The same, to fill.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl DataBuffer for IoBuffer {
    #[inline]
    fn length(&self) -> usize {
        self.length
    }

    #[inline]
    fn part(&self, offset: usize) -> &[u8] {
        &self.bytes()[offset..]
    }

    #[inline]
    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        &mut self.bytes_mut()[offset..]
    }
}
