//! A value in memory: whole, or in parts.

use memory::{CHUNK_BYTES, Chunk, Lines};

use crate::regions::PIECE_BYTES;

/// A value, borrowed from its partition.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    /// All of it, or the part after its pieces.
    tail: &'a [u8],
    length: usize,
    parts: Option<Parts<'a>>,
}

#[derive(Clone, Copy)]
struct Parts<'a> {
    /// Those of the memory with its pieces.
    lines: &'a Lines,
    /// The part before the pieces.
    chunks: &'a [Chunk],
    /// Numbers of its pieces, four bytes each.
    table: &'a [u8],
}

impl<'a> Value<'a> {
    #[inline]
    pub(crate) fn whole(bytes: &'a [u8]) -> Self {
        Self { tail: bytes, length: bytes.len(), parts: None }
    }

    pub(crate) fn parted(
        lines: &'a Lines,
        chunks: &'a [Chunk],
        table: &'a [u8],
        tail: &'a [u8],
        length: usize,
    ) -> Self {
        Self { tail, length, parts: Some(Parts { lines, chunks, table }) }
    }

    /// Length of the value, bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes from `offset` on, as far as they are contiguous; empty only at the end.
    #[inline]
    #[must_use]
    pub fn part(&self, offset: usize) -> &'a [u8] {
        let Some(parts) = &self.parts else { return &self.tail[offset.min(self.length)..] };
        if let Some(chunk) = parts.chunks.get(offset / CHUNK_BYTES) {
            return &chunk[offset % CHUNK_BYTES..];
        }
        let whole = parts.chunks.len() * CHUNK_BYTES;
        let offset = offset - whole;
        let (at, within) = (offset / PIECE_BYTES, offset % PIECE_BYTES);
        match parts.table.chunks_exact(4).nth(at) {
            Some(number) => {
                let piece = u32::from_le_bytes(number.try_into().expect("four bytes")) as usize;
                &parts.lines.bytes()[piece * PIECE_BYTES + within..(piece + 1) * PIECE_BYTES]
            }
            None => {
                let before = parts.table.len() / 4 * PIECE_BYTES;
                &self.tail[(offset - before).min(self.tail.len())..]
            }
        }
    }

    /// The first part: all of a value of up to 4 KiB.
    #[inline]
    #[must_use]
    pub fn head(&self) -> &'a [u8] {
        self.part(0)
    }

    /// The value, if it is contiguous.
    #[inline]
    #[must_use]
    pub fn as_whole(&self) -> Option<&'a [u8]> {
        self.parts.is_none().then_some(self.tail)
    }

    /// The parts in order.
    pub fn parts(self) -> impl Iterator<Item = &'a [u8]> {
        let mut offset = 0;
        std::iter::from_fn(move || {
            if offset >= self.length {
                return None;
            }
            let part = self.part(offset);
            offset += part.len();
            Some(part)
        })
    }

    /// Appends all of it to `out`.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self.as_whole() {
            Some(bytes) => out.extend_from_slice(bytes),
            None => self.parts().for_each(|part| out.extend_from_slice(part)),
        }
    }

    /// Appends the bytes from `offset` on to `out`.
    pub fn append_from(&self, mut offset: usize, out: &mut Vec<u8>) {
        out.reserve(self.length - offset);
        while offset < self.length {
            let part = self.part(offset);
            out.extend_from_slice(part);
            offset += part.len();
        }
    }

    /// A copy of it.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        self.append_to(&mut bytes);
        bytes
    }
}
