//! An anonymous memory mapping: reserved at once, given memory page by page as it is touched.

mod pages;

use std::io;
use std::ptr::NonNull;

/// Zero-filled memory that belongs to the process until it is dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// What the system gave, of which the above is the aligned part.
    whole: (NonNull<u8>, usize),
}

// SAFETY: a mapping is plain memory, tied to no thread; those who hand out views of it order their accesses.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out addresses only; what is done with them is the holder's `unsafe`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes (not 0). No memory is committed yet.
    pub(crate) fn anonymous(length: usize) -> io::Result<Self> {
        Self::new(length, 1, true)
    }

    /// Reserves `length` bytes (not 0) of address space, aligned to `alignment` (a power of two). None of it may be
    /// touched before [`open`](Self::open).
    pub(crate) fn reserved(length: usize, alignment: usize) -> io::Result<Self> {
        Self::new(length, alignment, false)
    }

    fn new(length: usize, alignment: usize, is_open: bool) -> io::Result<Self> {
        let mapped = length.checked_add(alignment - 1).ok_or(io::ErrorKind::OutOfMemory)?;
        let whole = pages::reserve(mapped, is_open)?;
        let before = whole.align_offset(alignment);
        // SAFETY: at most `alignment - 1` bytes in, which the mapping is longer than `length` by.
        let start = unsafe { whole.add(before) };
        Ok(Self { start, length, whole: (whole, mapped) })
    }

    /// Bytes mapped or reserved.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Address of byte `offset`.
    ///
    /// # Panics
    /// If `offset` is not in the mapping.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.length, "offset {offset} past a mapping of {} bytes", self.length);
        // SAFETY: in the mapping, as just asserted.
        unsafe { self.start.add(offset) }
    }

    /// Makes page-aligned `range` of a reservation readable and writable, for good. It reads as zeroes.
    ///
    /// # Panics
    /// If the range is not in the mapping.
    pub(crate) fn open(&self, range: std::ops::Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} past {}", self.length);
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: ours, as just asserted.
        unsafe { pages::open(self.start.add(range.start), range.len()) }
    }

    /// Asks for transparent huge pages. The kernel may decline.
    pub(crate) fn prefer_huge_pages(&self) -> io::Result<()> {
        // SAFETY: the range is ours.
        unsafe { pages::prefer_huge(self.start, self.length) }
    }

    /// Has the system give the pages of `range` now, which is whole pages that may be touched. What is in them stays, also while others
    /// read and write them.
    ///
    /// # Panics
    /// If the range is not in the mapping.
    pub(crate) fn populate(&self, range: std::ops::Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} past {}", self.length);
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: ours, as just asserted; it changes nothing that anybody could see.
        unsafe { pages::populate(self.start.add(range.start), range.len()) }
    }

    /// Gives the whole pages of `offset..offset + length` back to the system; they read as zeroes afterwards.
    ///
    /// # Safety
    /// The range is page-aligned and in the mapping, and no reference into it is alive.
    pub(crate) unsafe fn discard(&self, offset: usize, length: usize) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { pages::discard(self.start.add(offset), length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (start, length) = self.whole;
        // SAFETY: reserved by `new` with this length; nothing refers to it any more.
        unsafe { pages::release(start, length) };
    }
}
