//! The lines of a partition, and counts of those that operations touch.

use std::io;

use memory::{LINE_BYTES, Lines, prefetch};

use crate::regions::{PIECE_BYTES, UNIT_BYTES};
use crate::touches::{Touches, Usual};

/// Units of a piece.
const PIECE_UNITS: u32 = (PIECE_BYTES / UNIT_BYTES) as u32;

/// All lines of a partition. Every access goes through here, so that touches can be counted, but reading the pieces of a
/// [`Value`](crate::value::Value).
pub(crate) struct Memory<T = Usual> {
    lines: Lines,
    touches: T,
}

impl<T: Touches> Memory<T> {
    /// `count` lines, which may become up to `count_max`.
    pub(crate) fn new(count: usize, count_max: usize) -> io::Result<Self> {
        Ok(Self { lines: Lines::new(count, count_max)?, touches: T::default() })
    }

    /// Changes the length to `count` lines: those cut off have been given back, and those added have any content.
    ///
    /// # Errors
    /// The system's error when it refuses the memory.
    pub(crate) fn resize(&mut self, count: usize) -> io::Result<()> {
        self.lines.resize(count)
    }

    /// The untouched memory, for a caller that populates it.
    pub(crate) fn untouched(&self) -> memory::Untouched {
        self.lines.untouched()
    }

    /// Begins an operation.
    #[inline(always)]
    pub(crate) fn begin_operation(&self) {
        self.touches.begin_operation();
    }

    /// The counter of accesses.
    pub(crate) fn touches(&self) -> &T {
        &self.touches
    }

    #[inline(always)]
    fn count(&self, line: u32, bytes: usize, is_write: bool) {
        debug_assert!(
            line as usize + bytes.div_ceil(LINE_BYTES) <= self.lines.len(),
            "an entry, an item or a piece is said to have {bytes} bytes from line {line} on, of {}",
            self.lines.len()
        );
        self.touches.touch(line..line + bytes.div_ceil(LINE_BYTES) as u32, is_write);
    }

    /// One line.
    #[inline(always)]
    pub(crate) fn line(&self, line: u32) -> &[u8; LINE_BYTES] {
        self.count(line, 1, false);
        &self.lines[line as usize].0
    }

    /// One line, mutable.
    #[inline(always)]
    pub(crate) fn line_mut(&mut self, line: u32) -> &mut [u8; LINE_BYTES] {
        self.count(line, 1, true);
        &mut self.lines[line as usize].0
    }

    /// `length` bytes from byte `offset` of unit `at` on.
    #[inline(always)]
    pub(crate) fn bytes(&self, at: u32, offset: usize, length: usize) -> &[u8] {
        let start = at as usize * UNIT_BYTES + offset;
        self.count((start / LINE_BYTES) as u32, start % LINE_BYTES + length, false);
        &self.lines.bytes()[start..start + length]
    }

    /// The number in the four bytes from byte `offset` of unit `at` on.
    #[inline(always)]
    pub(crate) fn u32_at(&self, at: u32, offset: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at, offset, 4).try_into().expect("four bytes"))
    }

    /// The number in the eight bytes from byte `offset` of unit `at` on.
    pub(crate) fn u64_at(&self, at: u32, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at, offset, 8).try_into().expect("eight bytes"))
    }

    /// `length` bytes from byte `offset` of unit `at` on, mutable.
    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self, at: u32, offset: usize, length: usize) -> &mut [u8] {
        let start = at as usize * UNIT_BYTES + offset;
        self.count((start / LINE_BYTES) as u32, start % LINE_BYTES + length, true);
        &mut self.lines.bytes_mut()[start..start + length]
    }

    /// Its lines, for the pieces of a value that is read from them.
    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// `length` bytes of a piece from byte `offset` on, mutable.
    pub(crate) fn piece_mut(&mut self, piece: u32, offset: usize, length: usize) -> &mut [u8] {
        self.bytes_mut(piece * PIECE_UNITS, offset, length)
    }

    /// Prefetches a line.
    #[inline(always)]
    pub(crate) fn prefetch(&self, line: u32) {
        if let Some(line) = self.lines.get(line as usize) {
            prefetch(line);
        }
    }

    /// Prefetches the line in which an item begins.
    #[inline(always)]
    pub(crate) fn prefetch_item(&self, item: u32) {
        self.prefetch(item / (LINE_BYTES / UNIT_BYTES) as u32);
    }

    /// A line read ahead of its operation, which counts it.
    #[inline(always)]
    pub(crate) fn peek(&self, line: u32) -> &[u8; LINE_BYTES] {
        &self.lines[line as usize].0
    }

    /// Zeroes lines, and returns their memory to the system.
    pub(crate) fn zero(&mut self, lines: std::ops::Range<u32>) {
        self.lines.zero(lines.start as usize..lines.end as usize);
    }

    /// Returns the memory of lines to the system, as far as they are whole pages. Their contents become undefined.
    pub(crate) fn give_back(&mut self, lines: std::ops::Range<u32>) {
        self.lines.give_back(lines.start as usize..lines.end as usize);
    }

    /// Allows memory for lines again after [`give_back`](Self::give_back).
    pub(crate) fn allow(&mut self, lines: std::ops::Range<u32>) {
        self.lines.allow(&(lines.start as usize..lines.end as usize));
    }

    /// Copies `units` units from one place to another; they do not overlap.
    pub(crate) fn copy(&mut self, from: u32, to: u32, units: usize) {
        let (from, to) = (from as usize * UNIT_BYTES, to as usize * UNIT_BYTES);
        self.lines.bytes_mut().copy_within(from..from + units * UNIT_BYTES, to);
    }

    /// Copies a piece.
    pub(crate) fn copy_piece(&mut self, from: u32, to: u32) {
        self.copy(from * PIECE_UNITS, to * PIECE_UNITS, PIECE_UNITS as usize);
    }
}
