//! Buffers of commands: lists, windows, and payloads that belong to a command.

use std::ops::Range;

use proto::host_queue::DataBuffer;

use crate::submit::RangeBytes;

/// A list of buffers that one command transfers as one.
///
/// ```
/// use nvlane_host_core::{DataBuffer, Vectored};
///
/// let list = Vectored::new(vec![vec![1u8; 512], vec![2; 3584]]);
/// assert_eq!(list.length(), 4096);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vectored<T> {
    pieces: Vec<T>,
}

impl<T: DataBuffer> Vectored<T> {
    /// A list of these buffers, in order.
    #[must_use]
    pub fn new(pieces: Vec<T>) -> Self {
        Self { pieces }
    }

    /// The buffers.
    #[must_use]
    pub fn pieces(&self) -> &[T] {
        &self.pieces
    }

    /// Returns the buffers.
    #[must_use]
    pub fn into_pieces(self) -> Vec<T> {
        self.pieces
    }

    /// The piece that contains byte `offset`, and the offset in it.
    fn locate(&self, mut offset: usize) -> (usize, usize) {
        for (index, piece) in self.pieces.iter().enumerate() {
            if offset < piece.length() {
                return (index, offset);
            }
            offset -= piece.length();
        }
        panic!("the offset is below the length")
    }
}

impl<T: DataBuffer> DataBuffer for Vectored<T> {
    fn length(&self) -> usize {
        self.pieces.iter().map(DataBuffer::length).sum()
    }

    fn part(&self, offset: usize) -> &[u8] {
        let (index, offset) = self.locate(offset);
        self.pieces[index].part(offset)
    }

    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        let (index, offset) = self.locate(offset);
        self.pieces[index].part_mut(offset)
    }
}

/// A part of a buffer, for one command of a long transfer.
#[derive(Clone, Debug)]
pub struct Window<B> {
    /// The whole buffer.
    pub buffer: B,
    /// Start of the part, bytes.
    pub start: usize,
    /// Length of the part, bytes.
    pub length: usize,
}

impl<B: DataBuffer> DataBuffer for Window<B> {
    #[inline]
    fn length(&self) -> usize {
        self.length
    }

    #[inline]
    fn part(&self, offset: usize) -> &[u8] {
        let part = self.buffer.part(self.start + offset);
        &part[..part.len().min(self.length - offset)]
    }

    #[inline]
    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        let left = self.length - offset;
        let part = self.buffer.part_mut(self.start + offset);
        let count = part.len().min(left);
        &mut part[..count]
    }
}

/// Data of a command: the caller's buffer, or the command's own payload.
#[derive(Debug)]
pub(crate) enum Data<B> {
    Caller(B),
    /// One range, stored in place: the usual deallocation needs no allocation.
    Range(RangeBytes),
    Own(Box<[u8]>),
}

impl<B: DataBuffer> DataBuffer for Data<B> {
    const FOLLOWS_DATA: bool = B::FOLLOWS_DATA;

    #[inline]
    fn on_sent(&mut self, range: Range<usize>) {
        if let Self::Caller(buffer) = self {
            buffer.on_sent(range);
        }
    }

    #[inline]
    fn on_received(&mut self, range: Range<usize>) {
        if let Self::Caller(buffer) = self {
            buffer.on_received(range);
        }
    }

    #[inline]
    fn length(&self) -> usize {
        match self {
            Self::Caller(buffer) => buffer.length(),
            Self::Range(range) => range.0.len(),
            Self::Own(bytes) => bytes.len(),
        }
    }

    #[inline]
    fn part(&self, offset: usize) -> &[u8] {
        match self {
            Self::Caller(buffer) => buffer.part(offset),
            Self::Range(range) => &range.0[offset..],
            Self::Own(bytes) => &bytes[offset..],
        }
    }

    #[inline]
    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        match self {
            Self::Caller(buffer) => buffer.part_mut(offset),
            Self::Range(range) => &mut range.0[offset..],
            Self::Own(bytes) => &mut bytes[offset..],
        }
    }
}

impl<B> Data<B> {
    #[inline]
    pub(crate) fn into_caller(self) -> Option<B> {
        match self {
            Self::Caller(buffer) => Some(buffer),
            Self::Range(_) | Self::Own(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all<B: DataBuffer>(buffer: &B) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < buffer.length() {
            bytes.extend_from_slice(buffer.part(bytes.len()));
        }
        bytes
    }

    proptest! {
        /// However a list is cut, it reads and fills as one run of bytes; so does a window on it.
        #[test]
        fn a_list_is_one_run_of_bytes(
            lengths in proptest::collection::vec(0usize..20, 1..8),
            (start, end) in (0usize..100, 0usize..100),
        ) {
            let mut next = 0u8;
            let pieces: Vec<Vec<u8>> = lengths
                .iter()
                .map(|&length| (0..length).map(|_| { next = next.wrapping_add(1); next }).collect())
                .collect();
            let whole = pieces.concat();
            let list = Vectored::new(pieces);
            prop_assert_eq!(&all(&list), &whole);
            let (start, end) = (start.min(end).min(whole.len()), start.max(end).min(whole.len()));
            let mut window = Window { buffer: list, start, length: end - start };
            prop_assert_eq!(&all(&window), &whole[start..end]);
            let mut offset = 0;
            while offset < window.length() {
                let part = window.part_mut(offset);
                part.fill(0);
                offset += part.len();
            }
            let mut expected = whole;
            expected[start..end].fill(0);
            prop_assert_eq!(all(&window.buffer), expected);
        }
    }
}
