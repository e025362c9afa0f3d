//! A global allocator for tests that overwrites memory when it is freed, so that a late read of it by the kernel shows
//! in what the peer receives.

use std::alloc::{GlobalAlloc, Layout, System};

/// The byte that freed memory is overwritten with.
pub const POISON: u8 = 0xDF;

/// The system's allocator; memory is filled with [`POISON`] before it is freed.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: nvlane_allocators::PoisoningAllocator = nvlane_allocators::PoisoningAllocator;
/// ```
#[derive(Debug)]
pub struct PoisoningAllocator;

// SAFETY: every call is passed on to the system's allocator; `realloc` is the trait's own, made of `alloc` and
// `dealloc`.
unsafe impl GlobalAlloc for PoisoningAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the block is the caller's until it is freed, and this long.
        unsafe { start.write_bytes(POISON, layout.size()) };
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(start, layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_is_overwritten_and_grown_memory_keeps_its_bytes() {
        let layout = Layout::from_size_align(64, 8).unwrap();
        // SAFETY: a size that is not 0; freed below with the layout that it has then.
        let start = unsafe { PoisoningAllocator.alloc(layout) };
        assert!(!start.is_null());
        // SAFETY: 64 bytes that are ours.
        unsafe { start.write_bytes(7, 64) };
        // SAFETY: allocated with this layout.
        let grown = unsafe { PoisoningAllocator.realloc(start, layout, 128) };
        assert!(!grown.is_null());
        // SAFETY: the first 64 of 128 bytes, which were written before they were moved.
        assert_eq!(unsafe { std::slice::from_raw_parts(grown, 64) }, [7; 64]);
        // SAFETY: allocated with this layout, as `realloc` says.
        unsafe { PoisoningAllocator.dealloc(grown, Layout::from_size_align(128, 8).unwrap()) };
    }
}
