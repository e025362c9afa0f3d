//! A segment read in pieces, of which one at a time is in memory.

use std::io;

use super::PIECE_BYTES;

/// Reads bytes of the file from an offset on; zeros behind its end.
pub type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'a;

/// The bytes of a segment up to a limit.
pub(super) struct SegmentBytes<'a, 'b> {
    read: &'a mut ReadAt<'b>,
    /// First byte of the segment in the file.
    start: u64,
    limit: usize,
    piece: Vec<u8>,
    /// Where the piece begins in the segment.
    piece_at: usize,
}

impl<'a, 'b> SegmentBytes<'a, 'b> {
    /// The first `limit` bytes of the segment that starts here in the file.
    pub(super) fn new(read: &'a mut ReadAt<'b>, start: u64, limit: usize) -> Self {
        Self { read, start, limit, piece: Vec::new(), piece_at: 0 }
    }

    /// The number of bytes.
    pub(super) fn len(&self) -> usize {
        self.limit
    }

    /// `count` bytes from a position on, at most a piece; fewer at the end.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(super) fn at(&mut self, position: usize, count: usize) -> io::Result<&[u8]> {
        let end = (position + count.min(PIECE_BYTES)).min(self.limit);
        if position < self.piece_at || end > self.piece_at + self.piece.len() {
            // A caller before the piece walks backwards: the new piece ends with the requested range.
            let from = if position < self.piece_at { end.saturating_sub(PIECE_BYTES) } else { position };
            self.piece.resize(PIECE_BYTES.min(self.limit - from), 0);
            self.piece_at = from;
            (self.read)(self.start + from as u64, &mut self.piece)?;
        }
        Ok(&self.piece[position - self.piece_at..end - self.piece_at])
    }

    /// Calls `each` with the bytes of a range, part by part, until it returns `false`. Returns whether it never did.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(super) fn all(
        &mut self,
        range: std::ops::Range<usize>,
        mut each: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<bool> {
        let mut position = range.start;
        while position < range.end {
            let part = self.at(position, range.end - position)?;
            position += part.len();
            if part.is_empty() || !each(part) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_same_in_whatever_order_they_are_read() {
        let file: Vec<u8> = (0..5 * PIECE_BYTES).map(|at| ((at * 31) >> 7) as u8).collect();
        let (mut most, mut reads) = (0, 0);
        let mut read = |offset: u64, into: &mut [u8]| {
            (most, reads) = (most.max(into.len()), reads + 1);
            into.copy_from_slice(&file[offset as usize..][..into.len()]);
            Ok(())
        };
        let limit = 4 * PIECE_BYTES + 100;
        let mut segment = SegmentBytes::new(&mut read, 77, limit);
        let back = (0..limit).step_by(4096).rev();
        for position in (0..limit).step_by(999).chain(back) {
            let wanted = &file[77 + position..77 + limit.min(position + 300)];
            assert_eq!(segment.at(position, 300).expect("read"), wanted);
        }
        let mut all = Vec::new();
        let has_all = segment.all(5..limit, |part| {
            all.extend_from_slice(part);
            true
        });
        assert!(has_all.expect("read") && all == file[82..77 + limit]);
        assert!(!segment.all(0..limit, |_| false).expect("read"));
        assert!(most == PIECE_BYTES && reads < 15, "{most} bytes, {reads} reads");
    }
}
