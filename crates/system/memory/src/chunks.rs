//! Chunks: the parts of large values. A chunk is owned memory that moves between reactors with its content, so that a
//! value is received in place and sent without a copy, whichever reactor has the connection.
//!
//! ```text
//! open ─▶ free ──take──▶ Chunk: filled by its one owner ──Arc──▶ read by many ──last one drops it──▶ free ─▶ close
//! ```
//!
//! Address space for all chunks is reserved at first; their owner decides how many have memory.
//! Records exist only for those that have had some.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::mapping::{Mapping, page_bytes};

/// Bytes of a chunk; fewer under Miri.
pub const CHUNK_BYTES: usize = if cfg!(miri) { 16 << 10 } else { 1 << 20 };

/// The chunks of one owner, which decides how many have memory.
pub struct Chunks {
    shared: Arc<Shared>,
    /// Free chunks with memory.
    free: Vec<u32>,
    /// Chunks that have no memory any more.
    closed: Vec<u32>,
    /// Chunks that have had memory: the first ones of the mapping.
    used_count: usize,
}

struct Shared {
    mapping: Mapping,
    /// Chunks dropped on any thread.
    returned: Mutex<Vec<u32>>,
    returned_count: AtomicUsize,
}

/// [`CHUNK_BYTES`] of memory with one owner. Its content is what the last owner left.
pub struct Chunk {
    shared: Arc<Shared>,
    start: NonNull<u8>,
    number: u32,
}

// SAFETY: a chunk is the only way to its memory until it is dropped, and tied to no thread.
unsafe impl Send for Chunk {}
// SAFETY: `&Chunk` only reads.
unsafe impl Sync for Chunk {}

impl Chunks {
    /// Reserves address space for `count_max` chunks, or for fewer, but at least `count_min`, if the system has no
    /// more. None of them has memory.
    ///
    /// # Errors
    /// The system's error if it refuses the mapping.
    pub fn new(count_min: usize, count_max: usize) -> io::Result<Self> {
        let bytes = |count: usize| count.max(1).checked_mul(CHUNK_BYTES).ok_or(io::ErrorKind::OutOfMemory);
        let mapping = Mapping::reserve(bytes(count_min)?, bytes(count_max)?, CHUNK_BYTES, page_bytes())?;
        let _ = mapping.prefer_huge_pages();
        let returned = Mutex::new(Vec::new());
        let shared = Arc::new(Shared { mapping, returned, returned_count: AtomicUsize::new(0) });
        Ok(Self { shared, free: Vec::new(), closed: Vec::new(), used_count: 0 })
    }

    /// Takes a free chunk; `None` if none has memory.
    pub fn take(&mut self) -> Option<Chunk> {
        if self.free.is_empty() {
            self.collect();
        }
        let number = self.free.pop()?;
        let start = self.shared.mapping.at(number as usize * CHUNK_BYTES);
        Some(Chunk { shared: Arc::clone(&self.shared), start, number })
    }

    /// Returns dropped chunks to the free ones.
    fn collect(&mut self) {
        if self.shared.returned_count.load(Ordering::Acquire) > 0 {
            let mut returned = self.shared.returned();
            self.free.append(&mut returned);
            self.shared.returned_count.store(0, Ordering::Release);
        }
    }

    /// Lets one more chunk have memory. Returns whether there was one without.
    pub fn open(&mut self) -> bool {
        let Some(number) = self.closed.pop().or_else(|| self.next_number()) else { return false };
        self.free.push(number);
        true
    }

    /// The number of a chunk that has had no memory so far.
    fn next_number(&mut self) -> Option<u32> {
        let start = self.used_count * CHUNK_BYTES;
        if start + CHUNK_BYTES > self.shared.mapping.len() {
            return None;
        }
        self.shared.mapping.open(start..start + CHUNK_BYTES).ok()?;
        let number = u32::try_from(self.used_count).ok()?;
        self.used_count += 1;
        // Room for all: dropping one never allocates.
        let mut returned = self.shared.returned();
        let missing = self.used_count - returned.len();
        returned.reserve(missing);
        Some(number)
    }

    /// Returns the memory of a free chunk to the system. Returns whether there was one.
    pub fn close(&mut self) -> bool {
        self.collect();
        let Some(number) = self.free.pop() else { return false };
        let start = number as usize * CHUNK_BYTES;
        // SAFETY: in the mapping; a free chunk has no owner, so nothing refers to it.
        let discarded = unsafe { self.shared.mapping.discard(start..start + CHUNK_BYTES) };
        debug_assert!(discarded.is_ok_and(|bytes| bytes.len() == CHUNK_BYTES), "a chunk is whole pages");
        self.closed.push(number);
        true
    }

    /// Chunks with memory.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.used_count - self.closed.len()
    }

    /// Chunks in use.
    #[must_use]
    pub fn taken_count(&self) -> usize {
        let free = self.free.len() + self.shared.returned_count.load(Ordering::Acquire);
        self.open_count().saturating_sub(free)
    }
}

impl Chunk {
    /// Populates all of its memory now instead of on first touch.
    ///
    /// # Errors
    /// If the system has no memory, or is older than Linux 5.14.
    pub fn populate(&mut self) -> io::Result<()> {
        let start = self.number as usize * CHUNK_BYTES;
        self.shared.mapping.populate(start..start + CHUNK_BYTES)
    }
}

impl Shared {
    fn returned(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: in the mapping, which `shared` keeps; initialised by the system; ours alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), CHUNK_BYTES) }
    }
}

impl DerefMut for Chunk {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), CHUNK_BYTES) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let mut returned = self.shared.returned();
        returned.push(self.number);
        self.shared.returned_count.store(returned.len(), Ordering::Release);
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({})", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_and_go_with_their_memory() {
        let mut chunks = Chunks::new(3, 3).unwrap();
        assert!(chunks.take().is_none(), "none has memory");
        assert!(chunks.open() && chunks.open());
        let (mut first, second) = (chunks.take().unwrap(), chunks.take().unwrap());
        first.populate().unwrap();
        assert!(chunks.take().is_none());
        assert!(!chunks.close(), "none is free");
        first.fill(7);
        assert!(second.iter().all(|&byte| byte == 0));
        assert_eq!((chunks.open_count(), chunks.taken_count()), (2, 2));
        drop(first);
        assert_eq!(chunks.taken_count(), 1);
        assert!(chunks.close());
        assert_eq!((chunks.open_count(), chunks.taken_count()), (1, 1));
        assert!(chunks.open() && chunks.open() && !chunks.open());
        let again = chunks.take().unwrap();
        assert!(again.iter().all(|&byte| byte == 0), "its memory was given back");
    }

    #[test]
    fn a_chunk_is_let_go_of_on_any_thread_and_outlives_its_owner() {
        let mut chunks = Chunks::new(1, 1).unwrap();
        chunks.open();
        let mut chunk = chunks.take().unwrap();
        chunk[5] = 9;
        let shared = Arc::new(chunk);
        let other = Arc::clone(&shared);
        std::thread::spawn(move || assert_eq!(other[5], 9)).join().unwrap();
        assert!(chunks.take().is_none());
        std::thread::spawn(move || drop(shared)).join().unwrap();
        let chunk = chunks.take().unwrap();
        drop(chunks);
        assert_eq!(chunk[5], 9);
    }

    #[test]
    fn chunks_go_to_and_fro_between_threads_with_what_they_hold() {
        let mut chunks = Chunks::new(2, 2).unwrap();
        assert!(chunks.open() && chunks.open());
        let (filled, received) = std::sync::mpsc::channel::<Chunk>();
        let reader = std::thread::spawn(move || {
            let seen: Vec<u8> =
                received.iter().map(|chunk| chunk[0].wrapping_add(chunk[CHUNK_BYTES - 1])).collect();
            seen
        });
        for number in 0..20u8 {
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            let mut chunk = loop {
                assert!(std::time::Instant::now() < until, "no chunk comes back for number {number}");
                // It is dropped over there.
                if let Some(chunk) = chunks.take() {
                    break chunk;
                }
                std::thread::yield_now();
            };
            chunk.fill(number);
            filled.send(chunk).unwrap();
        }
        drop(filled);
        assert_eq!(reader.join().unwrap(), (0..20).map(|number| number * 2).collect::<Vec<u8>>());
    }
}
