//! Buffers of one connection: as many as at its start, in one size.

use host::DataBuffer;

/// Size of a buffer, unless a block is larger: the data of one command at most.
const BUFFER_BYTES: u32 = 128 << 10;

/// Buffers of a connection.
const BUFFER_COUNT: u32 = 64;

/// Memory of a command, or of a part of a reply.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    /// Bytes in use.
    length: usize,
}

impl Buffer {
    /// The bytes in use.
    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The bytes in use, to fill.
    #[inline]
    pub(crate) fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }

    /// Uses all of its bytes.
    pub(crate) fn set_whole(&mut self) {
        self.length = self.bytes.len();
    }

    /// Uses the first `length` bytes, at most its size.
    #[inline]
    pub(crate) fn set_length(&mut self, length: u32) {
        debug_assert!(length as usize <= self.bytes.len(), "{length} bytes");
        self.length = length as usize;
    }
}

impl DataBuffer for Buffer {
    #[inline]
    fn length(&self) -> usize {
        self.length
    }

    #[inline]
    fn part(&self, offset: usize) -> &[u8] {
        &self.bytes[offset..self.length]
    }

    #[inline]
    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        &mut self.bytes[offset..self.length]
    }
}

/// Bytes of any value whose memory is there, and not only promised: zeroes would be.
pub(crate) fn resident(count: usize) -> Box<[u8]> {
    vec![u8::MAX; count].into_boxed_slice()
}

/// The buffers that are free. Those in use come back.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Vec<Buffer>,
}

impl Pool {
    /// The buffers of a connection, whose memory is there: what needs memory to write the kernel's dirty pages may wait for
    /// itself.
    pub(crate) fn new(block_bytes: u32) -> Self {
        let buffer_bytes = BUFFER_BYTES.max(block_bytes) as usize;
        Self {
            free: (0..BUFFER_COUNT).map(|_| Buffer { bytes: resident(buffer_bytes), length: 0 }).collect(),
        }
    }

    /// The buffers of a guest's queue. Their memory is the kernel's zero page until it is used.
    pub(crate) fn lazy(block_bytes: u32) -> Self {
        let buffer_bytes = BUFFER_BYTES.max(block_bytes) as usize;
        let new = |_| Buffer { bytes: vec![0; buffer_bytes].into_boxed_slice(), length: 0 };
        Self { free: (0..BUFFER_COUNT).map(new).collect() }
    }

    /// Data of one command, bytes: at most that of a buffer, and what the controller takes.
    pub(crate) fn part_bytes(block_bytes: u32, transfer_blocks_max: u32) -> u32 {
        let blocks = BUFFER_BYTES.max(block_bytes) / block_bytes;
        blocks.min(transfer_blocks_max) * block_bytes
    }

    /// Longest read whose data is gathered before it is sent, bytes, if each part has this length: half of the buffers. The
    /// other half is left to earlier requests, which return theirs.
    pub(crate) fn whole_read_bytes_max(part_bytes: u32) -> u32 {
        part_bytes.saturating_mul(BUFFER_COUNT / 2)
    }

    /// A buffer for `length` bytes, at most its size, with any content.
    #[inline]
    pub(crate) fn take(&mut self, length: u32) -> Option<Buffer> {
        let mut buffer = self.free.pop()?;
        buffer.set_length(length);
        Some(buffer)
    }

    /// Gives a buffer back.
    #[inline]
    pub(crate) fn put(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// Whether a buffer is free.
    pub(crate) fn has_some(&self) -> bool {
        !self.free.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gathered_read_leaves_buffers_whatever_a_controller_takes() {
        for (block_bytes, transfer_blocks_max) in
            [(512, 8), (4096, 1), (4096, 256), (512, 65_536), (1 << 20, 1)]
        {
            let part_bytes = Pool::part_bytes(block_bytes, transfer_blocks_max);
            assert!(part_bytes >= block_bytes && part_bytes.is_multiple_of(block_bytes));
            let mut pool = Pool::new(block_bytes);
            let parts = Pool::whole_read_bytes_max(part_bytes) / part_bytes;
            let taken: Vec<_> = (0..parts).map_while(|_| pool.take(part_bytes)).collect();
            assert!(taken.len() == parts as usize && pool.has_some(), "blocks of {block_bytes} bytes");
        }
    }
}
