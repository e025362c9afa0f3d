//! The buffer of an operation: as long as the largest operation, of which each uses a part.

use host::DataBuffer;

use super::queues::DataRoom;
use crate::random::mix;

/// A buffer that is as long as its operation. One word: it is moved with each operation, and memory that was written as
/// several words and is read back at once as one waits for the stores.
#[derive(Debug)]
pub(crate) struct IoBuffer(Box<Room>);

#[derive(Debug)]
struct Room {
    bytes: Box<[u8]>,
    length: usize,
}

/// Fills a buffer with bytes that neither compress nor repeat from one seed to the other.
pub(super) fn fill(bytes: &mut [u8], seed: u64) {
    for (word, place) in (0..).zip(bytes.chunks_mut(8)) {
        place.copy_from_slice(&mix(seed << 32 | word).to_le_bytes()[..place.len()]);
    }
}

impl IoBuffer {
    /// Room for `capacity` bytes, filled with bytes that neither compress nor repeat from one buffer to the other.
    pub(crate) fn new(capacity: usize, seed: u64) -> Self {
        let mut bytes = vec![0; capacity];
        fill(&mut bytes, seed);
        Self(Box::new(Room { bytes: bytes.into_boxed_slice(), length: capacity }))
    }
}

impl DataRoom for IoBuffer {
    #[inline]
    fn resize(&mut self, length: usize) {
        assert!(length <= self.0.bytes.len(), "buffers have room for the largest operation");
        self.0.length = length;
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.0.bytes[..self.0.length]
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        let Room { bytes, length } = &mut *self.0;
        &mut bytes[..*length]
    }
}

impl DataBuffer for IoBuffer {
    #[inline]
    fn length(&self) -> usize {
        self.0.length
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
