//! Data of commands: memory of the caller, used where it lies.

use std::ptr::NonNull;

use host::DataBuffer;
use libc::iovec;

use crate::argument::MEMORY_BYTES_MAX;
use crate::error::{Error, NVLANE_ERROR_ARGUMENT, Result};

/// The error of a get that has no room for a value.
pub(crate) const NO_ROOM: Error =
    Error::of_text(NVLANE_ERROR_ARGUMENT, c"room is 0: a get needs at least 1 byte");

/// A piece of the caller's memory: not empty, and no longer than an object can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    start: NonNull<u8>,
    length: usize,
}

/// Memory of the caller that belongs to a command until it completes.
///
/// The caller keeps it in place, and does not use it meanwhile (`nvlane.h`): this is what every reference here relies on. A
/// command that sends its data only has `part` called.
#[derive(Debug)]
pub(crate) enum Buffer {
    One(Piece),
    /// Pieces, each with its end in the list, bytes: a list may have a million pieces, and is asked for each.
    Several(Box<[(usize, Piece)]>),
    /// Memory of the library: operations and outcomes of a batch.
    Own(Box<[u8]>),
}

impl Piece {
    fn new(start: *mut u8, length: usize) -> Option<Self> {
        let start = NonNull::new(start)?;
        (length <= MEMORY_BYTES_MAX).then_some(Self { start, length })
    }

    /// The part from `start` on, of at most `length` bytes.
    fn cut(self, start: usize, length: usize) -> Self {
        let start = start.min(self.length);
        // SAFETY: the offset is at most the length of the piece.
        let place = unsafe { self.start.add(start) };
        Self { start: place, length: length.min(self.length - start) }
    }
}

impl Buffer {
    /// Memory in one piece; `None` for no bytes.
    pub(crate) fn one(start: *mut u8, length: usize) -> Result<Option<Self>> {
        if length == 0 {
            return Ok(None);
        }
        let piece = Piece::new(start, length);
        let missing =
            || Error::of_text(NVLANE_ERROR_ARGUMENT, c"the buffer is NULL, or its length is negative");
        piece.map(|piece| Some(Self::One(piece))).ok_or_else(missing)
    }

    /// Memory of `room` bytes, at least 1, for a value.
    pub(crate) fn room(start: *mut u8, room: usize) -> Result<Option<Self>> {
        match room {
            0 => Err(NO_ROOM),
            _ => Self::one(start, room),
        }
    }

    /// Memory in the pieces of a list, which is not used after this call; `None` for no bytes.
    pub(crate) fn list(list: &[iovec]) -> Result<Option<Self>> {
        if let [only] = list {
            return Self::one(only.iov_base.cast(), only.iov_len);
        }
        let mut pieces = Vec::with_capacity(list.len());
        let mut length = 0usize;
        for (at, entry) in list.iter().enumerate().filter(|(_, entry)| entry.iov_len > 0) {
            let piece = Piece::new(entry.iov_base.cast(), entry.iov_len);
            let sum = length.checked_add(entry.iov_len).filter(|sum| *sum <= MEMORY_BYTES_MAX);
            let (Some(piece), Some(sum)) = (piece, sum) else {
                return Err(Error::argument(format_args!("entry {at} of the list is NULL or too long")));
            };
            pieces.push((sum, piece));
            length = sum;
        }
        Ok((!pieces.is_empty()).then(|| Self::of(pieces)))
    }

    fn of(pieces: Vec<(usize, Piece)>) -> Self {
        match pieces[..] {
            [(_, only)] => Self::One(only),
            _ => Self::Several(pieces.into()),
        }
    }

    /// The part from `start` on, of `length` bytes, for one command of a long transfer.
    pub(crate) fn cut(&self, start: usize, length: usize) -> Self {
        let pieces = match self {
            Self::One(piece) => return Self::One(piece.cut(start, length)),
            Self::Several(pieces) => pieces,
            Self::Own(bytes) => {
                let bytes = bytes.get(start..).unwrap_or_default();
                return Self::Own(bytes.get(..length).unwrap_or(bytes).into());
            }
        };
        let first = pieces.partition_point(|(end, _)| *end <= start);
        let (mut cut, mut done) = (Vec::new(), 0);
        for (end, piece) in &pieces[first..] {
            if done == length {
                break;
            }
            let part = piece.cut(start + done - (end - piece.length), length - done);
            done += part.length;
            cut.push((done, part));
        }
        Self::of(cut)
    }

    /// The piece that has byte `offset`, from there on.
    fn at(&self, offset: usize) -> Piece {
        match self {
            Self::One(piece) => piece.cut(offset, usize::MAX),
            Self::Several(pieces) => {
                let index = pieces.partition_point(|(end, _)| *end <= offset);
                match pieces.get(index) {
                    Some((end, piece)) => piece.cut(offset - (end - piece.length), usize::MAX),
                    None => Piece { start: NonNull::dangling(), length: 0 },
                }
            }
            Self::Own(_) => Piece { start: NonNull::dangling(), length: 0 },
        }
    }
}

impl DataBuffer for Buffer {
    #[inline]
    fn length(&self) -> usize {
        match self {
            Self::One(piece) => piece.length,
            Self::Several(pieces) => pieces.last().map_or(0, |(end, _)| *end),
            Self::Own(bytes) => bytes.len(),
        }
    }

    #[inline]
    fn part(&self, offset: usize) -> &[u8] {
        if let Self::Own(bytes) = self {
            return bytes.get(offset..).unwrap_or_default();
        }
        let piece = self.at(offset);
        // SAFETY: the caller keeps its memory in place, and does not change it, until the command completes, and the lane
        // gives the buffer up then.
        unsafe { std::slice::from_raw_parts(piece.start.as_ptr(), piece.length) }
    }

    #[inline]
    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        if let Self::Own(bytes) = self {
            return bytes.get_mut(offset..).unwrap_or_default();
        }
        let piece = self.at(offset);
        // SAFETY: the caller keeps its memory in place, and does not use it, until the command completes. Only a command
        // that fills its buffer asks for this, and such a command is made for memory that may be written.
        unsafe { std::slice::from_raw_parts_mut(piece.start.as_ptr(), piece.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(bytes: &mut [u8]) -> iovec {
        iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    fn all(buffer: &Buffer) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < buffer.length() {
            bytes.extend_from_slice(buffer.part(bytes.len()));
        }
        bytes
    }

    #[test]
    fn a_list_is_one_run_of_bytes_however_it_is_cut() {
        let (mut one, mut two, mut three) = ([1, 2, 3], [4], [5, 6, 7, 8]);
        let list = [entry(&mut one), entry(&mut []), entry(&mut two), entry(&mut three)];
        let buffer = Buffer::list(&list).unwrap().unwrap();
        assert_eq!(all(&buffer), [1, 2, 3, 4, 5, 6, 7, 8]);
        for start in 0..8 {
            for end in start + 1..=8 {
                let whole = [1, 2, 3, 4, 5, 6, 7, 8];
                assert_eq!(all(&buffer.cut(start, end - start)), whole[start..end]);
            }
        }
        let mut part = buffer.cut(2, 4);
        let mut offset = 0;
        while offset < part.length() {
            let bytes = part.part_mut(offset);
            bytes.fill(9);
            offset += bytes.len();
        }
        assert_eq!((one, two, three), ([1, 2, 9], [9], [9, 9, 7, 8]));
    }

    #[test]
    fn memory_that_is_none_is_refused() {
        let null = iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
        let mut byte = [0];
        assert!(Buffer::list(&[null]).is_err());
        assert!(Buffer::list(&[entry(&mut byte), null]).is_err());
        assert!(
            Buffer::list(&[entry(&mut byte), iovec { iov_len: usize::MAX, ..entry(&mut byte) }]).is_err()
        );
        assert!(Buffer::one(std::ptr::null_mut(), 0).unwrap().is_none());
        assert!(Buffer::list(&[]).unwrap().is_none());
    }
}
