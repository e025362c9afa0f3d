//! The system calls of a mapping. Miri has no reserved address space: there, pages come from the allocator, open from
//! the start.
//!
//! Pages have 4, 16 or 64 KiB, as the kernel was built (arm64, ppc64). Calls on a part of a page change all of it: the
//! kernel rounds lengths up.

use std::io;
use std::ptr::NonNull;

#[cfg(not(miri))]
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

/// Bytes of a page of the running kernel, a power of two.
pub(super) fn page_bytes() -> usize {
    if cfg!(miri) { 4096 } else { rustix::param::page_size() }
}

/// Reserves `length` bytes (not 0) wherever there is room, to be touched at once if `is_open`.
#[cfg(not(miri))]
pub(super) fn reserve(length: usize, is_open: bool) -> io::Result<NonNull<u8>> {
    let protection = if is_open { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::empty() };
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags)? };
    NonNull::new(start.cast::<u8>()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Makes pages readable and writable.
///
/// # Safety
/// They are in a range of [`reserve`].
#[cfg(not(miri))]
pub(super) unsafe fn open(start: NonNull<u8>, length: usize) -> io::Result<()> {
    // SAFETY: the caller's contract; granting access removes none.
    unsafe { mprotect(start.as_ptr().cast(), length, MprotectFlags::READ | MprotectFlags::WRITE)? };
    Ok(())
}

/// Asks for transparent huge pages.
///
/// # Safety
/// As of [`open`].
#[cfg(not(miri))]
pub(super) unsafe fn prefer_huge(start: NonNull<u8>, length: usize) -> io::Result<()> {
    // SAFETY: the caller's contract; this advice changes no content.
    unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxHugepage)? };
    Ok(())
}

/// Populates all pages now, as if each were written to; their content stays. Linux 5.14.
///
/// # Safety
/// As of [`open`], and they may be touched.
#[cfg(not(miri))]
pub(super) unsafe fn populate(start: NonNull<u8>, length: usize) -> io::Result<()> {
    // SAFETY: the caller's contract; what others read and write meanwhile stays as it is.
    unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxPopulateWrite)? };
    Ok(())
}

/// Gives pages back; they read as zeroes afterwards.
///
/// # Safety
/// As of [`open`], and nothing refers to them.
#[cfg(not(miri))]
pub(super) unsafe fn discard(start: NonNull<u8>, length: usize) -> io::Result<()> {
    // SAFETY: the caller's contract; private anonymous pages read as zeroes after this.
    unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxDontNeed)? };
    Ok(())
}

/// Reads what the kernel says of each page from number `first` on. `false` if it does not tell.
#[cfg(not(miri))]
pub(super) fn read_page_map(first: usize, entries: &mut [[u8; 8]]) -> bool {
    use std::os::unix::fs::FileExt;
    static PAGE_MAP: std::sync::LazyLock<Option<std::fs::File>> =
        std::sync::LazyLock::new(|| std::fs::File::open("/proc/self/pagemap").ok());
    let Some(map) = &*PAGE_MAP else { return false };
    map.read_exact_at(entries.as_flattened_mut(), first as u64 * 8).is_ok()
}

/// Whether a page of a private anonymous mapping may have been written to. Others read as zeroes.
pub(super) fn is_touched(entry: [u8; 8]) -> bool {
    /// Present, or swapped out or on its way to another place.
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    u64::from_ne_bytes(entry) & PRESENT_OR_SWAPPED != 0
}

/// Gives back a reserved range.
///
/// # Safety
/// The range is that of one call of [`reserve`], and nothing refers to it.
#[cfg(not(miri))]
pub(super) unsafe fn release(start: NonNull<u8>, length: usize) {
    // SAFETY: the caller's contract.
    let result = unsafe { munmap(start.as_ptr().cast(), length) };
    debug_assert!(result.is_ok(), "unmapping our own mapping cannot fail");
}

#[cfg(miri)]
pub(super) use interpreted::*;

#[cfg(miri)]
mod interpreted {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use super::*;

    fn layout(length: usize) -> Layout {
        Layout::from_size_align(length, 4096).expect("a length that was reserved")
    }

    pub(in super::super) fn reserve(length: usize, _is_open: bool) -> io::Result<NonNull<u8>> {
        // SAFETY: the length is not 0.
        let start = unsafe { alloc_zeroed(layout(length)) };
        NonNull::new(start).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(in super::super) unsafe fn open(_start: NonNull<u8>, _length: usize) -> io::Result<()> {
        Ok(())
    }

    pub(in super::super) unsafe fn prefer_huge(_start: NonNull<u8>, _length: usize) -> io::Result<()> {
        Ok(())
    }

    pub(in super::super) fn read_page_map(_first: usize, _entries: &mut [[u8; 8]]) -> bool {
        false
    }

    pub(in super::super) unsafe fn populate(_start: NonNull<u8>, _length: usize) -> io::Result<()> {
        Ok(())
    }

    pub(in super::super) unsafe fn discard(start: NonNull<u8>, length: usize) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { start.write_bytes(0, length) };
        Ok(())
    }

    pub(in super::super) unsafe fn release(start: NonNull<u8>, length: usize) {
        // SAFETY: the caller's contract; allocated with this layout.
        unsafe { dealloc(start.as_ptr(), layout(length)) };
    }
}
