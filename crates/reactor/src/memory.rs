//! The memory behind RAM namespaces: sparse, as large as asked, given pages as they are written.
//!
//! One logical block is atomic: no reader sees half of a write to it (AWUN 0). A memory that one reactor alone
//! uses needs nothing for that, and its reads are sent straight from where the bytes lie. A memory that several
//! reactors use is cut into stripes, each under a lock held for the copy of at most [`STRIPE_BYTES`]; its reads
//! are copied out.

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::mapping::Mapping;
use crate::segment::Segment;

/// Bytes under one lock, and the largest block that is atomic between reactors.
pub const STRIPE_BYTES: usize = 64 * 1024;

/// Locks: stripes share them by address. Enough that two reactors seldom meet.
const LOCK_COUNT: usize = 1024;

/// A page, the grain in which memory comes and goes.
const PAGE_BYTES: usize = 4096;

/// The memory of one namespace, which reactors attach to.
pub struct Memory {
    mapping: Mapping,
    sharing: Sharing,
}

/// How many reactors use a memory.
enum Sharing {
    /// One at a time; whether it is attached.
    Exclusive(AtomicBool),
    /// Any number; the stripes' locks.
    Shared(Box<[AtomicU32]>),
}

/// A reactor's access to a [`Memory`]. It never leaves its thread.
pub struct MemoryAccess {
    attachment: Rc<Attachment>,
}

/// Ends an exclusive use when the last access and the last reference of its thread are gone.
struct Attachment {
    memory: Arc<Memory>,
}

/// A range of a memory, kept mapped, to be sent from where it lies. It never leaves its thread.
pub struct MemoryRef {
    attachment: Rc<Attachment>,
    start: NonNull<u8>,
    length: usize,
}

/// Set in a lock by the one writer; the rest counts readers.
const WRITER: u32 = 1 << 31;

impl Memory {
    /// Maps `bytes` of zeroes, for one reactor or for several (`is_shared`). With `huge_pages` the kernel is
    /// asked for huge pages, which it may decline.
    ///
    /// # Errors
    /// What the kernel says when it refuses the mapping.
    pub fn new(bytes: usize, is_shared: bool, huge_pages: bool) -> io::Result<Arc<Self>> {
        let mapping = Mapping::anonymous(bytes.max(1).next_multiple_of(PAGE_BYTES))?;
        if huge_pages {
            // Kernels without huge pages refuse the advice; the memory works all the same.
            let _ = mapping.prefer_huge_pages();
        }
        let sharing = if is_shared {
            Sharing::Shared((0..LOCK_COUNT).map(|_| AtomicU32::new(0)).collect())
        } else {
            Sharing::Exclusive(AtomicBool::new(false))
        };
        Ok(Arc::new(Self { mapping, sharing }))
    }

    /// Attaches the calling thread: `None` if the memory is not shared and someone is attached already.
    #[must_use]
    pub fn attach(self: &Arc<Self>) -> Option<MemoryAccess> {
        if let Sharing::Exclusive(is_attached) = &self.sharing
            && is_attached.swap(true, Ordering::Acquire)
        {
            return None;
        }
        Some(MemoryAccess { attachment: Rc::new(Attachment { memory: Arc::clone(self) }) })
    }

    /// Bytes, rounded up to whole pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether there are no bytes; never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.len()), "{offset} + {length} past {} bytes", self.len());
    }

    /// The lock of the stripe at `offset`, if there are others to lock out.
    fn lock(&self, offset: usize) -> Option<&AtomicU32> {
        match &self.sharing {
            Sharing::Exclusive(_) => None,
            Sharing::Shared(locks) => Some(&locks[offset / STRIPE_BYTES % LOCK_COUNT]),
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let Sharing::Exclusive(is_attached) = &self.memory.sharing {
            is_attached.store(false, Ordering::Release);
        }
    }
}

impl MemoryAccess {
    fn memory(&self) -> &Memory {
        &self.attachment.memory
    }

    /// The range as a payload that is sent from where it lies, if this reactor is alone.
    ///
    /// # Panics
    /// If the range is not in the memory.
    #[inline]
    #[must_use]
    pub fn refer(&self, offset: usize, length: usize) -> Option<MemoryRef> {
        let memory = self.memory();
        if matches!(memory.sharing, Sharing::Shared(_)) || length == 0 {
            return None;
        }
        memory.check(offset, length);
        let start = memory.mapping.at(offset);
        Some(MemoryRef { attachment: Rc::clone(&self.attachment), start, length })
    }

    /// Copies `into.len()` bytes at `offset` out.
    ///
    /// # Panics
    /// If the range is not in the memory.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.memory().check(offset, into.len());
        for (at, piece) in pieces(offset, into.len()) {
            let _guard = self.read_guard(at);
            // SAFETY: in the mapping (checked); no writer (the guard, or this thread alone has access).
            unsafe {
                let from = self.memory().mapping.at(at).as_ptr();
                std::ptr::copy_nonoverlapping(from, into[piece.clone()].as_mut_ptr(), piece.len());
            }
        }
    }

    /// Copies `from` in at `offset`.
    ///
    /// # Panics
    /// If the range is not in the memory.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        self.memory().check(offset, from.len());
        for (at, piece) in pieces(offset, from.len()) {
            let _guard = self.write_guard(at);
            // SAFETY: in the mapping (checked); no other reader or writer (the guard, or this thread alone has
            // access), and segments referring to it are read by the kernel only while this thread sends.
            unsafe {
                let to = self.memory().mapping.at(at).as_ptr();
                std::ptr::copy_nonoverlapping(from[piece.clone()].as_ptr(), to, piece.len());
            }
        }
    }

    /// Whether the bytes at `offset` equal `with`.
    ///
    /// # Panics
    /// If the range is not in the memory.
    #[must_use]
    pub fn equals(&self, offset: usize, with: &[u8]) -> bool {
        self.memory().check(offset, with.len());
        pieces(offset, with.len()).all(|(at, piece)| {
            let _guard = self.read_guard(at);
            // SAFETY: as in `copy_out`; the slice ends before the guard does.
            let ours =
                unsafe { std::slice::from_raw_parts(self.memory().mapping.at(at).as_ptr(), piece.len()) };
            ours == &with[piece]
        })
    }

    /// Makes `length` bytes at `offset` zero. Whole pages go back to the system if `release` is set.
    ///
    /// # Panics
    /// If the range is not in the memory.
    pub fn zero(&self, offset: usize, length: usize, release: bool) {
        self.memory().check(offset, length);
        for (at, piece) in pieces(offset, length) {
            let _guard = self.write_guard(at);
            let end = at + piece.len();
            let pages = at.next_multiple_of(PAGE_BYTES)..end - end % PAGE_BYTES;
            if release && !pages.is_empty() {
                // SAFETY: page-aligned, in the mapping, and no reference into it: the guard, or this thread's
                // sole access.
                let discarded = unsafe { self.memory().mapping.discard(pages.start, pages.len()) };
                if discarded.is_ok() {
                    self.fill_zero(at..pages.start);
                    self.fill_zero(pages.end..end);
                    continue;
                }
            }
            self.fill_zero(at..end);
        }
    }

    /// Zeroes a range that is checked and guarded.
    fn fill_zero(&self, range: Range<usize>) {
        if !range.is_empty() {
            // SAFETY: in the mapping and exclusively ours: the caller checked and guards it.
            unsafe { std::ptr::write_bytes(self.memory().mapping.at(range.start).as_ptr(), 0, range.len()) };
        }
    }

    fn read_guard(&self, offset: usize) -> Guard<'_> {
        let Some(lock) = self.memory().lock(offset) else { return Guard::None };
        loop {
            let seen = lock.load(Ordering::Relaxed);
            if seen & WRITER == 0
                && lock.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Guard::Reader(lock);
            }
            std::hint::spin_loop();
        }
    }

    fn write_guard(&self, offset: usize) -> Guard<'_> {
        let Some(lock) = self.memory().lock(offset) else { return Guard::None };
        while lock.compare_exchange_weak(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
        Guard::Writer(lock)
    }
}

/// Holds a stripe's lock for one copy.
enum Guard<'a> {
    None,
    Reader(&'a AtomicU32),
    Writer(&'a AtomicU32),
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        match self {
            Self::None => {}
            Self::Reader(lock) => drop(lock.fetch_sub(1, Ordering::Release)),
            Self::Writer(lock) => lock.store(0, Ordering::Release),
        }
    }
}

/// Cuts `offset..offset + length` at stripe boundaries: (offset in the memory, range in the caller's bytes).
fn pieces(offset: usize, length: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done;
        let piece = (length - done).min(STRIPE_BYTES - at % STRIPE_BYTES);
        let range = done..done + piece;
        done += piece;
        (piece > 0).then_some((at, range))
    })
}

impl MemoryRef {
    /// Bytes referred to.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none; never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A part of the range, as it is now.
    ///
    /// # Panics
    /// If `range` is not within it.
    #[inline]
    #[must_use]
    pub fn segment(&self, range: Range<usize>) -> Segment<'_> {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} past {}", self.length);
        // SAFETY: `attachment` keeps the mapping; only this thread has access to it (`refer` gives nothing for a
        // shared memory), and it does not write while it sends.
        unsafe { Segment::from_raw(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// A copy of a part of the range, as it is now.
    ///
    /// # Panics
    /// If `range` is not within it.
    #[must_use]
    pub fn to_bytes(&self, range: Range<usize>) -> Box<[u8]> {
        let mut bytes = Vec::with_capacity(range.len());
        self.segment(range).append_to(&mut bytes);
        bytes.into()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.len())
    }
}

impl fmt::Debug for MemoryAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryAccess({} bytes)", self.memory().len())
    }
}

impl fmt::Debug for MemoryRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRef({} bytes of {})", self.length, self.attachment.memory.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A memory behaves like a vector of bytes.
        #[test]
        fn a_memory_is_a_vector_of_bytes(
            is_shared: bool,
            steps in proptest::collection::vec((0u8..4, 0usize..300_000, 0usize..150_000, any::<u8>()), 1..30),
        ) {
            const LENGTH: usize = 300_000;
            let memory = Memory::new(LENGTH, is_shared, false).unwrap().attach().unwrap();
            let mut model = vec![0u8; LENGTH];
            for (kind, offset, length, value) in steps {
                let length = length.min(LENGTH - offset);
                let range = offset..offset + length;
                match kind {
                    0 => {
                        let bytes: Vec<u8> = (0..length).map(|at| value.wrapping_add((at % 251) as u8)).collect();
                        memory.copy_in(offset, &bytes);
                        model[range].copy_from_slice(&bytes);
                    }
                    1 | 2 => {
                        memory.zero(offset, length, kind == 1);
                        model[range].fill(0);
                    }
                    _ => {
                        let mut bytes = vec![1; length];
                        memory.copy_out(offset, &mut bytes);
                        prop_assert!(bytes == model[range.clone()]);
                        prop_assert!(memory.equals(offset, &bytes));
                        if let Some(first) = bytes.first_mut() {
                            *first ^= 1;
                            prop_assert!(!memory.equals(offset, &bytes));
                        }
                    }
                }
            }
            if let Some(all) = memory.refer(0, LENGTH) {
                prop_assert!(*all.to_bytes(0..LENGTH) == *model);
            } else {
                prop_assert!(is_shared);
            }
        }
    }

    #[test]
    fn a_block_is_never_seen_half_written() {
        let memory = Memory::new(STRIPE_BYTES, true, false).unwrap();
        let writer = Arc::clone(&memory);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let access = writer.attach().unwrap();
            for value in (0..=255u8).cycle() {
                access.copy_in(4096, &[value; 4096]);
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let access = memory.attach().unwrap();
        let mut block = [0; 4096];
        for _ in 0..2000 {
            access.copy_out(4096, &mut block);
            assert!(block.iter().all(|&byte| byte == block[0]), "a torn block");
        }
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }

    #[test]
    fn an_exclusive_memory_has_one_user_at_a_time() {
        let memory = Memory::new(4096, false, false).unwrap();
        let access = memory.attach().unwrap();
        let reference = access.refer(0, 1).unwrap();
        drop(access);
        assert!(memory.attach().is_none(), "a reference is still out");
        drop(reference);
        assert!(memory.attach().is_some());
    }
}
