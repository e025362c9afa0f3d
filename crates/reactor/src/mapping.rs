//! An anonymous memory mapping: reserved at once, given memory page by page as it is touched.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

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
        Self::new(length, 1, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Reserves `length` bytes (not 0) of address space, aligned to `alignment` (a power of two). None of it may be
    /// touched before [`open`](Self::open).
    pub(crate) fn reserved(length: usize, alignment: usize) -> io::Result<Self> {
        Self::new(length, alignment, ProtFlags::empty())
    }

    fn new(length: usize, alignment: usize, protection: ProtFlags) -> io::Result<Self> {
        let mapped = length.checked_add(alignment - 1).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let whole = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, protection, flags)? };
        let whole = NonNull::new(whole.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
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
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: ours; giving access takes nothing away from anybody.
        unsafe { mprotect(self.start.as_ptr().add(range.start).cast(), range.len(), access)? };
        Ok(())
    }

    /// Asks for transparent huge pages. The kernel may decline.
    pub(crate) fn prefer_huge_pages(&self) -> io::Result<()> {
        // SAFETY: the range is ours; this advice changes no content.
        unsafe { madvise(self.start.as_ptr().cast(), self.length, Advice::LinuxHugepage)? };
        Ok(())
    }

    /// Gives the whole pages of `offset..offset + length` back to the system; they read as zeroes afterwards.
    ///
    /// # Safety
    /// The range is page-aligned and in the mapping, and no reference into it is alive.
    pub(crate) unsafe fn discard(&self, offset: usize, length: usize) -> io::Result<()> {
        // SAFETY: the caller's contract; private anonymous pages read as zeroes after this.
        unsafe { madvise(self.start.as_ptr().add(offset).cast(), length, Advice::LinuxDontNeed)? };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (start, length) = self.whole;
        // SAFETY: mapped by `new` with this length; nothing refers to it any more.
        let result = unsafe { munmap(start.as_ptr().cast(), length) };
        debug_assert!(result.is_ok(), "unmapping our own mapping cannot fail");
    }
}
