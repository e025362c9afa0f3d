//! The data of a command: buffers that belong to the queue until their command ends.

use std::ops::Range;

/// The data of one command, in one piece or several. It belongs to the queue until its command ends.
///
/// A buffer is owned, not borrowed: the kernel may read bytes sent without a copy after a queue is forgotten
/// (`std::mem::forget`), when a borrow would have ended and its memory would be used for something else. A queue that
/// is dropped too early leaks its buffers.
///
/// ```
/// fn takes(_: impl nvlane_proto::host_queue::DataBuffer) {}
/// takes(vec![0_u8; 512]);
/// takes(Box::leak(Box::new([0_u8; 512])).as_mut_slice());
/// ```
///
/// ```compile_fail,E0597
/// fn takes(_: impl nvlane_proto::host_queue::DataBuffer) {}
/// let mut block = [0_u8; 512];
/// takes(block.as_mut_slice());
/// ```
pub trait DataBuffer: 'static {
    /// Whether [`on_sent`](Self::on_sent) and [`on_received`](Self::on_received) have anything to do.
    const FOLLOWS_DATA: bool = false;
    /// Bytes in all.
    fn length(&self) -> usize;
    /// The piece that begins at byte `offset` (below the length) and goes on as far as it is contiguous.
    fn part(&self, offset: usize) -> &[u8];
    /// The same, to fill.
    fn part_mut(&mut self, offset: usize) -> &mut [u8];
    /// The socket has taken these bytes, which are in the processor's caches now; asked only if
    /// [`FOLLOWS_DATA`](Self::FOLLOWS_DATA). The ranges of a command go from its first byte to its last.
    fn on_sent(&mut self, _range: Range<usize>) {}
    /// These bytes have been received; as [`on_sent`](Self::on_sent).
    fn on_received(&mut self, _range: Range<usize>) {}
}

/// Longest data of a command, bytes: a PDU length must also cover header, padding and digest.
pub const LENGTH_MAX: u32 = u32::MAX - 1025;

/// The data transfer of a command.
#[derive(Debug)]
pub enum Transfer<B> {
    /// None.
    None,
    /// All of the buffer goes to the controller.
    ToController(B),
    /// The controller fills the buffer. If `is_exact`, success with fewer bytes is a failure.
    FromController {
        /// The buffer to fill.
        buffer: B,
        /// Whether every byte must come.
        is_exact: bool,
    },
}

impl<B: DataBuffer> Transfer<B> {
    /// Bytes of the data.
    #[inline]
    pub(super) fn length(&self) -> usize {
        match self {
            Self::None => 0,
            Self::ToController(buffer) | Self::FromController { buffer, .. } => buffer.length(),
        }
    }
}

/// Copies `bytes` into a buffer from `offset` on, and tells it. There is room for them.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "the bytes were held against the buffer")]
pub(super) fn fill<B: DataBuffer>(buffer: &mut B, mut offset: usize, mut bytes: &[u8]) {
    let range = offset..offset + bytes.len();
    loop {
        let part = buffer.part_mut(offset);
        if let Some(whole) = part.get_mut(..bytes.len()) {
            memory::copy_bytes(whole, bytes);
            break;
        }
        let (now, later) = bytes.split_at(part.len());
        memory::copy_bytes(part, now);
        (offset, bytes) = (offset + now.len(), later);
    }
    if B::FOLLOWS_DATA {
        buffer.on_received(range);
    }
}

/// Calls `each` with the contiguous parts of a range until it returns false.
#[inline(always)]
#[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "the range lies in the buffer")]
pub(super) fn for_each_part<'a, B: DataBuffer>(
    buffer: &'a B,
    range: Range<usize>,
    mut each: impl FnMut(&'a [u8]) -> bool,
) {
    let mut at = range.start;
    while at < range.end {
        let part = buffer.part(at);
        let part = &part[..part.len().min(range.end - at)];
        if !each(part) {
            return;
        }
        at += part.len();
    }
}

/// Implemented for every contiguous buffer: `Vec<u8>`, `Box<[u8]>`, arrays, buffers of a pool.
impl<T: AsRef<[u8]> + AsMut<[u8]> + 'static> DataBuffer for T {
    #[inline]
    fn length(&self) -> usize {
        self.as_ref().len()
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the trait asks for an offset below the length")]
    fn part(&self, offset: usize) -> &[u8] {
        &self.as_ref()[offset..]
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the trait asks for an offset below the length")]
    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        &mut self.as_mut()[offset..]
    }
}
