//! An anonymous memory mapping: reserved at once, given memory page by page as it is touched.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Zero-filled memory that belongs to the process until it is dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping is plain memory, tied to no thread; those who hand out views of it order their accesses.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out addresses only; what is done with them is the holder's `unsafe`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes (not 0). No memory is committed yet.
    pub(crate) fn anonymous(length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }

    /// Bytes mapped.
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
        // SAFETY: mapped by `anonymous` with this length; nothing refers to it any more.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(result.is_ok(), "unmapping our own mapping cannot fail");
    }
}
