//! A global allocator for tests that counts: allocations and bytes, by thread and in all.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The system's allocator, with counters.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: nvlane_allocators::CountingAllocator = nvlane_allocators::CountingAllocator;
/// ```
#[derive(Debug)]
pub struct CountingAllocator;

/// The allocations of a thread within [`CountingAllocator::measure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocations {
    /// Number of allocations, reallocations included.
    pub count: u64,
    /// Most bytes held at once beyond those held before.
    pub peak_bytes: i64,
    /// Bytes still held beyond those held before.
    pub held_bytes: i64,
}

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static HELD_BYTES: Cell<i64> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<i64> = const { Cell::new(0) };
}

static TOTAL_COUNT: AtomicU64 = AtomicU64::new(0);
static TOTAL_HELD_BYTES: AtomicUsize = AtomicUsize::new(0);
static TOTAL_PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

impl CountingAllocator {
    /// Runs `work` and counts what this thread allocates in it.
    pub fn measure<T>(work: impl FnOnce() -> T) -> (T, Allocations) {
        let (count, held) = (COUNT.get(), HELD_BYTES.get());
        PEAK_BYTES.set(held);
        let value = work();
        let allocations = Allocations {
            count: COUNT.get() - count,
            peak_bytes: PEAK_BYTES.get() - held,
            held_bytes: HELD_BYTES.get() - held,
        };
        (value, allocations)
    }

    /// Number of allocations of all threads so far.
    #[must_use]
    pub fn total_count() -> u64 {
        TOTAL_COUNT.load(Ordering::Relaxed)
    }

    /// Bytes that all threads hold now.
    #[must_use]
    pub fn held_bytes() -> usize {
        TOTAL_HELD_BYTES.load(Ordering::Relaxed)
    }

    /// Most bytes that all threads have held at once since the last [`restart_peak`](Self::restart_peak).
    #[must_use]
    pub fn peak_bytes() -> usize {
        TOTAL_PEAK_BYTES.load(Ordering::Relaxed)
    }

    /// Restarts [`peak_bytes`](Self::peak_bytes) from what is held now.
    pub fn restart_peak() {
        TOTAL_PEAK_BYTES.store(Self::held_bytes(), Ordering::Relaxed);
    }
}

/// Counts an allocation that grows memory by `grown` bytes and releases `released` bytes.
fn note(allocations: u64, grown: usize, released: usize) {
    TOTAL_COUNT.fetch_add(allocations, Ordering::Relaxed);
    let total = TOTAL_HELD_BYTES.fetch_add(grown, Ordering::Relaxed).wrapping_add(grown);
    TOTAL_PEAK_BYTES.fetch_max(total, Ordering::Relaxed);
    TOTAL_HELD_BYTES.fetch_sub(released, Ordering::Relaxed);
    // A thread that ends has no counters any more.
    let _ = COUNT.try_with(|count| count.set(count.get() + allocations));
    let _ = HELD_BYTES.try_with(|held| {
        held.set(held.get() + grown.cast_signed() as i64 - released.cast_signed() as i64);
        let _ = PEAK_BYTES.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size(), 0);
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size(), 0);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        note(0, 0, layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(start, layout) };
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, size, layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(start, layout, size) }
    }
}
