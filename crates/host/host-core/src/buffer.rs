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
    /// The end of each piece in the list, bytes: a list may have any number of pieces, and is asked for each.
    ends: Vec<usize>,
}

impl<T: DataBuffer> Vectored<T> {
    /// A list of these buffers, in order.
    #[must_use]
    pub fn new(pieces: Vec<T>) -> Self {
        let ends = pieces.iter().scan(0, |end, piece: &T| {
            *end += piece.length();
            Some(*end)
        });
        Self { ends: ends.collect(), pieces }
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
    fn locate(&self, offset: usize) -> (usize, usize) {
        let index = self.ends.partition_point(|end| *end <= offset);
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        (index, offset - start)
    }
}

impl<T: DataBuffer> DataBuffer for Vectored<T> {
    fn length(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
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
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use proptest::prelude::*;

    fn all<B: DataBuffer>(buffer: &B) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < buffer.length() {
            bytes.extend_from_slice(buffer.part(bytes.len()));
        }
        bytes
    }

    #[test]
    fn a_list_asks_its_pieces_for_their_length_once() {
        struct Counted(Rc<Cell<u32>>);
        impl DataBuffer for Counted {
            fn length(&self) -> usize {
                self.0.set(self.0.get() + 1);
                1
            }
            fn part(&self, _: usize) -> &[u8] {
                &[7]
            }
            fn part_mut(&mut self, _: usize) -> &mut [u8] {
                unreachable!("nothing is received")
            }
        }
        let count = Rc::default();
        let list = Vectored::new((0..1000).map(|_| Counted(Rc::clone(&count))).collect());
        assert_eq!(all(&list), [7; 1000]);
        assert_eq!(count.get(), 1000);
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
