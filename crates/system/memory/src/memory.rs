//! The memory behind RAM namespaces: sparse, as large as asked, given pages as they are written.
//!
//! One logical block is atomic: no reader sees half of a write to it (AWUN 0). A memory that one reactor alone
//! uses needs nothing for that, and its reads are sent straight from where the bytes lie. A memory that several
//! reactors use is cut into stripes, each under a lock held for the copy of at most [`STRIPE_BYTES`]; its reads
//! are copied out.
//!
//! A memory grows and shrinks in place, in reserved address space. Access is never revoked, so a reference into a part
//! that was cut off reads zeroes; only the length limits what exists:
//!
//! ```text
//! 0 ──── length ──── open ──────────── reserved
//!   there      zeroes     may not be touched
//! ```

use std::cell::Cell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::copy::copy_bytes;
use crate::mapping::Mapping;
use crate::segment::Segment;

/// Bytes under one lock, and the largest block that is atomic between reactors.
pub const STRIPE_BYTES: usize = 64 * 1024;

/// Locks: stripes share them by address. Enough that two reactors seldom meet; 64 KiB in all.
const LOCK_COUNT: usize = if cfg!(miri) { 16 } else { 1024 };

/// A huge page of x86-64 and of arm64 with pages of 4 KiB, the grain of a memory that asked for them: giving back less
/// would break one up. Where huge pages are larger (32 MiB with pages of 16 KiB, 512 MiB with 64 KiB) this grain breaks
/// them up rather than hold that much.
const HUGE_PAGE_BYTES: usize = if cfg!(miri) { 32 << 10 } else { 2 << 20 };

/// Address space is reserved for this many times the first length, and for no less than [`RESERVED_BYTES_MIN`].
const RESERVED_FACTOR: usize = 16;

/// See [`RESERVED_FACTOR`]. Address space alone costs nothing, but for Miri, to which it is memory.
const RESERVED_BYTES_MIN: usize = if cfg!(miri) { 4 << 20 } else { 1 << 40 };

/// The memory of one namespace, which reactors attach to.
pub struct Memory {
    mapping: Mapping,
    grain_bytes: usize,
    /// The present length, bytes.
    length: AtomicUsize,
    /// Number of changes of the length.
    change_count: AtomicUsize,
    extent: Mutex<Extent>,
    sharing: Sharing,
}

/// State guarded by the lock that orders resizes and attachments.
struct Extent {
    /// Bytes that may be touched.
    open: usize,
    /// Whether the one user of an exclusive memory is attached.
    is_attached: bool,
    /// From here on, the user of an exclusive memory may have left bytes behind when it shrank. It clears them itself:
    /// only it knows that it is not writing there at the moment.
    stale_from: usize,
}

/// How many reactors use a memory.
enum Sharing {
    /// One at a time.
    Exclusive,
    /// Any number; the stripes' locks.
    Shared(Box<[Lock]>),
}

/// The lock of some stripes. It has a cache line of its own: reactors that use neighbouring stripes take no line from each
/// other.
#[repr(align(64))]
struct Lock {
    /// Number of readers, or [`WRITER`].
    word: AtomicU32,
}

/// The range is not, or no longer, entirely in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("past the end of the memory")]
pub struct PastEnd;

/// A reactor's access to a [`Memory`]. It never leaves its thread.
pub struct MemoryAccess {
    attachment: Rc<Attachment>,
}

/// Ends an exclusive use when the last access and the last reference of its thread are gone.
struct Attachment {
    memory: Arc<Memory>,
    /// Of an exclusive memory: the length that this thread uses, and the number of changes when it was set.
    length: Cell<usize>,
    seen_change_count: Cell<usize>,
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
    /// asked for huge pages, which it may decline. `page_bytes`: of the running kernel, or a multiple to behave as on
    /// another one.
    ///
    /// # Errors
    /// The kernel's error if it refuses the mapping.
    pub fn new(bytes: usize, is_shared: bool, huge_pages: bool, page_bytes: usize) -> io::Result<Arc<Self>> {
        let grain_bytes = if huge_pages { HUGE_PAGE_BYTES.max(page_bytes) } else { page_bytes };
        let open = bytes.max(1).checked_next_multiple_of(grain_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let bytes_max = open.saturating_mul(RESERVED_FACTOR).max(RESERVED_BYTES_MIN);
        let bytes_max = bytes_max / grain_bytes * grain_bytes;
        let mapping = Mapping::reserve(open, bytes_max, grain_bytes, page_bytes)?;
        mapping.open(0..open)?;
        if huge_pages {
            // Kernels without huge pages refuse the advice; the memory works all the same.
            let _ = mapping.prefer_huge_pages();
        }
        let sharing = if is_shared {
            Sharing::Shared((0..LOCK_COUNT).map(|_| Lock { word: AtomicU32::new(0) }).collect())
        } else {
            Sharing::Exclusive
        };
        Ok(Arc::new(Self {
            mapping,
            grain_bytes,
            length: AtomicUsize::new(bytes),
            change_count: AtomicUsize::new(0),
            extent: Mutex::new(Extent { open, is_attached: false, stale_from: usize::MAX }),
            sharing,
        }))
    }

    /// Attaches the calling thread: `None` if the memory is not shared and someone is attached already.
    #[must_use]
    pub fn attach(self: &Arc<Self>) -> Option<MemoryAccess> {
        let mut extent = self.extent();
        if matches!(self.sharing, Sharing::Exclusive) && std::mem::replace(&mut extent.is_attached, true) {
            return None;
        }
        let attachment = Attachment {
            memory: Arc::clone(self),
            length: Cell::new(self.len()),
            seen_change_count: Cell::new(self.change_count.load(Ordering::Relaxed)),
        };
        Some(MemoryAccess { attachment: Rc::new(attachment) })
    }

    /// The present length, bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that come from the system and go back to it together.
    #[must_use]
    pub fn grain_bytes(&self) -> usize {
        self.grain_bytes
    }

    /// Makes the memory `bytes` long, under those who use it. Bytes that are cut off go back to the system; added ones
    /// read as zeroes.
    ///
    /// # Errors
    /// If the length exceeds the reserved address space, or the system has no memory. The length is unchanged then.
    pub fn resize(&self, bytes: usize) -> io::Result<()> {
        let mut extent = self.extent();
        if bytes > extent.open {
            let open = bytes.checked_next_multiple_of(self.grain_bytes).unwrap_or(usize::MAX);
            if open > self.mapping.len() {
                let reserved = self.mapping.len();
                let message =
                    format!("cannot grow to {bytes} bytes: address space is reserved for {reserved}");
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, message));
            }
            self.mapping.open(extent.open..open)?;
            extent.open = open;
        }
        let before = self.length.swap(bytes, Ordering::AcqRel);
        self.change_count.fetch_add(1, Ordering::Release);
        if bytes >= before {
            return Ok(());
        }
        match &self.sharing {
            Sharing::Exclusive if extent.is_attached => extent.stale_from = extent.stale_from.min(bytes),
            Sharing::Exclusive => self.clear(bytes..before),
            Sharing::Shared(locks) => {
                // A thread that holds a lock may have seen the old length; one that takes a lock from now on sees the
                // new one.
                for lock in locks {
                    drop(Guard::write(lock));
                }
                self.clear(bytes..before);
            }
        }
        Ok(())
    }

    /// Zeroes unused bytes: those past the length.
    fn clear(&self, range: Range<usize>) {
        let grains =
            range.start.next_multiple_of(self.grain_bytes)..range.end.next_multiple_of(self.grain_bytes);
        self.fill_zero(range.start..range.end.min(grains.start));
        if !grains.is_empty() {
            // SAFETY: open (the length was once past its start) and, as the caller says, unused.
            unsafe { self.discard_or_zero(grains) };
        }
    }

    /// Makes a range read as zeroes; its whole pages go back to the system if that takes them.
    ///
    /// # Safety
    /// The range is open, and no other thread reads or writes it.
    unsafe fn discard_or_zero(&self, range: Range<usize>) {
        // SAFETY: the caller's contract.
        match unsafe { self.mapping.discard(range.clone()) } {
            Ok(pages) => {
                self.fill_zero(range.start..pages.start.min(range.end));
                self.fill_zero(pages.end.max(range.start).min(range.end)..range.end);
            }
            Err(_) => self.fill_zero(range),
        }
    }

    /// Zeroes a range that is open and used by no other thread.
    fn fill_zero(&self, range: Range<usize>) {
        if !range.is_empty() {
            let start = self.mapping.at(range.start).as_ptr();
            // SAFETY: open, and exclusively ours: the caller has checked and guards it.
            unsafe { std::ptr::write_bytes(start, 0, range.len()) };
        }
    }

    fn extent(&self) -> MutexGuard<'_, Extent> {
        self.extent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock of the stripe at `offset`, if there are others to lock out.
    fn lock(&self, offset: usize) -> Option<&Lock> {
        match &self.sharing {
            Sharing::Exclusive => None,
            Sharing::Shared(locks) => Some(&locks[offset / STRIPE_BYTES % LOCK_COUNT]),
        }
    }

    /// The locks of all stripes of a range that is not empty, in the order in which they are taken.
    fn locks(&self, range: &Range<usize>) -> [&[Lock]; 2] {
        let Sharing::Shared(locks) = &self.sharing else { return [&[], &[]] };
        let (first, last) = (range.start / STRIPE_BYTES, (range.end - 1) / STRIPE_BYTES);
        if last - first >= LOCK_COUNT {
            return [locks, &[]];
        }
        let (first, last) = (first % LOCK_COUNT, last % LOCK_COUNT);
        if first <= last { [&locks[first..=last], &[]] } else { [&locks[..=last], &locks[first..]] }
    }
}

impl Attachment {
    /// The length that this thread uses. Clears first what a shrink since the last call has cut off.
    #[inline]
    fn length(&self) -> usize {
        if matches!(self.memory.sharing, Sharing::Shared(_)) {
            return self.memory.len();
        }
        if self.memory.change_count.load(Ordering::Acquire) != self.seen_change_count.get() {
            self.settle(&mut self.memory.extent());
        }
        self.length.get()
    }

    /// Of an exclusive memory: adopts the length that was set.
    #[cold]
    fn settle(&self, extent: &mut Extent) {
        let stale_from = std::mem::replace(&mut extent.stale_from, usize::MAX);
        if stale_from < self.length.get() {
            // References that wait to be sent read zeroes from there on, or the former bytes: both are fine.
            self.memory.clear(stale_from..self.length.get());
        }
        self.seen_change_count.set(self.memory.change_count.load(Ordering::Relaxed));
        self.length.set(self.memory.len());
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if matches!(self.memory.sharing, Sharing::Exclusive) {
            let mut extent = self.memory.extent();
            self.settle(&mut extent);
            extent.is_attached = false;
        }
    }
}

impl MemoryAccess {
    fn memory(&self) -> &Memory {
        &self.attachment.memory
    }

    /// The present length, bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.attachment.length()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// See [`Memory::grain_bytes`].
    #[must_use]
    pub fn grain_bytes(&self) -> usize {
        self.memory().grain_bytes
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) -> Result<(), PastEnd> {
        let end = offset.checked_add(length).ok_or(PastEnd)?;
        if end <= self.len() { Ok(()) } else { Err(PastEnd) }
    }

    /// The range as a payload that is sent from where it lies, if this reactor is alone.
    #[inline]
    #[must_use]
    pub fn refer(&self, offset: usize, length: usize) -> Option<MemoryRef> {
        let memory = self.memory();
        if matches!(memory.sharing, Sharing::Shared(_)) || length == 0 {
            return None;
        }
        self.check(offset, length).ok()?;
        let start = memory.mapping.at(offset);
        Some(MemoryRef { attachment: Rc::clone(&self.attachment), start, length })
    }

    /// Copies `into.len()` bytes at `offset` out.
    ///
    /// # Errors
    /// If the range is not in the memory.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), PastEnd> {
        self.check(offset, into.len())?;
        for (at, piece) in pieces(offset, into.len()) {
            let _guard = self.read_guard(at);
            // It may have shrunk while we waited for the lock, or just before.
            self.check(at, piece.len())?;
            // SAFETY: in the memory (checked); no writer (the guard, or this thread alone has access).
            unsafe {
                let from = self.memory().mapping.at(at).as_ptr();
                copy_bytes(&mut into[piece.clone()], std::slice::from_raw_parts(from, piece.len()));
            }
        }
        Ok(())
    }

    /// Copies `from` in at `offset`.
    ///
    /// # Errors
    /// If the range is not in the memory. A part may have been written if it shrank at the same time.
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), PastEnd> {
        self.check(offset, from.len())?;
        for (at, piece) in pieces(offset, from.len()) {
            let _guard = self.write_guard(at);
            self.check(at, piece.len())?;
            // SAFETY: in the memory (checked); no other reader or writer (the guard, or this thread alone has
            // access), and segments referring to it are read by the kernel only while this thread sends.
            unsafe {
                let to = self.memory().mapping.at(at).as_ptr();
                copy_bytes(std::slice::from_raw_parts_mut(to, piece.len()), &from[piece.clone()]);
            }
        }
        Ok(())
    }

    /// Whether the bytes at `offset` equal `with`.
    ///
    /// # Errors
    /// If the range is not in the memory.
    pub fn equals(&self, offset: usize, with: &[u8]) -> Result<bool, PastEnd> {
        self.check(offset, with.len())?;
        for (at, piece) in pieces(offset, with.len()) {
            let _guard = self.read_guard(at);
            self.check(at, piece.len())?;
            // SAFETY: as in `copy_out`; the slice ends before the guard does.
            let ours =
                unsafe { std::slice::from_raw_parts(self.memory().mapping.at(at).as_ptr(), piece.len()) };
            if ours != &with[piece] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Tells `found` of the parts of a range that may have been written to, in order; they may reach beyond it. All others
    /// read as zeroes. `false` if the kernel does not tell.
    ///
    /// # Errors
    /// If the range is not in the memory.
    pub fn touched(
        &self,
        offset: usize,
        length: usize,
        found: impl FnMut(Range<usize>),
    ) -> Result<bool, PastEnd> {
        self.check(offset, length)?;
        Ok(self.memory().mapping.touched(offset..offset + length, found))
    }

    /// Makes `length` bytes at `offset` zero. Whole grains go back to the system if `release` is set.
    ///
    /// # Errors
    /// If the range is not in the memory.
    pub fn zero(&self, offset: usize, length: usize, release: bool) -> Result<(), PastEnd> {
        self.check(offset, length)?;
        let (end, grain) = (offset + length, self.memory().grain_bytes);
        // Where the whole grains begin and end.
        let (first, last) = (offset.next_multiple_of(grain), end - end % grain);
        if !release || first >= last {
            return self.overwrite(offset..end);
        }
        self.overwrite(offset..first)?;
        {
            let _guards = Guards::write(self.memory().locks(&(first..last)));
            self.check(first, last - first)?;
            // SAFETY: in the memory, and no reference into it: the guards, or this thread's sole access.
            unsafe { self.memory().discard_or_zero(first..last) };
        }
        self.overwrite(last..end)
    }

    /// Writes zeroes.
    fn overwrite(&self, range: Range<usize>) -> Result<(), PastEnd> {
        for (at, piece) in pieces(range.start, range.len()) {
            let _guard = self.write_guard(at);
            self.check(at, piece.len())?;
            self.memory().fill_zero(at..at + piece.len());
        }
        Ok(())
    }

    fn read_guard(&self, offset: usize) -> Guard<'_> {
        self.memory().lock(offset).map_or(Guard::None, Guard::read)
    }

    fn write_guard(&self, offset: usize) -> Guard<'_> {
        self.memory().lock(offset).map_or(Guard::None, Guard::write)
    }
}

/// Holds a stripe's lock for one copy.
enum Guard<'a> {
    None,
    Reader(&'a Lock),
    Writer(&'a Lock),
}

impl<'a> Guard<'a> {
    fn read(lock: &'a Lock) -> Self {
        loop {
            let seen = lock.word.load(Ordering::Relaxed);
            if seen & WRITER == 0
                && lock
                    .word
                    .compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Self::Reader(lock);
            }
            std::hint::spin_loop();
        }
    }

    fn write(lock: &'a Lock) -> Self {
        while lock.word.compare_exchange_weak(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Only reading takes the line from the holder once, not with each try.
            while lock.word.load(Ordering::Relaxed) != 0 {
                std::hint::spin_loop();
            }
        }
        Self::Writer(lock)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        match self {
            Self::None => {}
            Self::Reader(lock) => drop(lock.word.fetch_sub(1, Ordering::Release)),
            Self::Writer(lock) => lock.word.store(0, Ordering::Release),
        }
    }
}

/// Holds the locks of many stripes. A holder of one lock waits for no other, and holders of many take them in the order
/// of the array, so no deadlock is possible.
struct Guards<'a>([&'a [Lock]; 2]);

impl<'a> Guards<'a> {
    fn write(locks: [&'a [Lock]; 2]) -> Self {
        for lock in locks.iter().copied().flatten() {
            // Released by our own drop.
            std::mem::forget(Guard::write(lock));
        }
        Self(locks)
    }
}

impl Drop for Guards<'_> {
    fn drop(&mut self) {
        for lock in self.0.iter().copied().flatten() {
            drop(Guard::Writer(lock));
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

    /// A part of the range, that is not empty.
    ///
    /// # Panics
    /// If `range` is not within it.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start < range.end && range.end <= self.length, "{range:?} of {}", self.length);
        let attachment = Rc::clone(&self.attachment);
        // SAFETY: within the range, which is within the mapping that `attachment` keeps.
        let start = unsafe { self.start.add(range.start) };
        Self { attachment, start, length: range.len() }
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
    use crate::mapping::page_bytes;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    /// Bytes at first, and how long a step of the model is at most.
    const BYTES: usize = if cfg!(miri) { 12_000 } else { 300_000 };

    proptest! {
        /// A memory behaves like a vector of bytes, also when it grows and shrinks.
        #[test]
        fn a_memory_is_a_vector_of_bytes(
            is_shared: bool,
            is_huge: bool,
            page_bytes in proptest::sample::select(vec![4 << 10, 16 << 10, 64 << 10]),
            steps in proptest::collection::vec((0u8..6, 0..BYTES, 0..BYTES / 2, any::<u8>()), 1..30),
        ) {
            let memory = Memory::new(BYTES, is_shared, is_huge, page_bytes).unwrap();
            let access = memory.attach().unwrap();
            let mut model = vec![0u8; BYTES];
            for (kind, offset, length, value) in steps {
                if kind == 5 {
                    // Over several huge pages, to and fro.
                    let length = if value % 3 == 0 { offset * 20 } else { offset };
                    memory.resize(length).unwrap();
                    model.resize(length, 0);
                    prop_assert_eq!(memory.len(), length);
                    continue;
                }
                if offset + length > model.len() {
                    let mut bytes = vec![1; length];
                    prop_assert_eq!(access.copy_out(offset, &mut bytes), Err(PastEnd));
                    prop_assert_eq!(access.copy_in(offset, &bytes), Err(PastEnd));
                    prop_assert_eq!(access.equals(offset, &bytes), Err(PastEnd));
                    prop_assert_eq!(access.zero(offset, length, true), Err(PastEnd));
                    prop_assert!(access.refer(offset, length).is_none());
                    continue;
                }
                let range = offset..offset + length;
                match kind {
                    0 => {
                        let bytes: Vec<u8> = (0..length).map(|at| value.wrapping_add((at % 251) as u8)).collect();
                        access.copy_in(offset, &bytes).unwrap();
                        model[range].copy_from_slice(&bytes);
                    }
                    1 | 2 => {
                        access.zero(offset, length, kind == 1).unwrap();
                        model[range].fill(0);
                    }
                    _ => {
                        let mut bytes = vec![1; length];
                        access.copy_out(offset, &mut bytes).unwrap();
                        prop_assert!(bytes == model[range.clone()]);
                        prop_assert!(access.equals(offset, &bytes).unwrap());
                        if let Some(first) = bytes.first_mut() {
                            *first ^= 1;
                            prop_assert!(!access.equals(offset, &bytes).unwrap());
                        }
                    }
                }
            }
            if let Some(all) = access.refer(0, model.len()) {
                prop_assert!(*all.to_bytes(0..model.len()) == *model);
            } else {
                prop_assert!(is_shared || model.is_empty());
            }
        }
    }

    /// `count`, or a hundredth of it under Miri, which is that much slower.
    fn rounds(count: usize) -> usize {
        if cfg!(miri) { count.div_ceil(100).max(3) } else { count }
    }

    #[test]
    fn a_block_is_never_seen_half_written() {
        let memory = Memory::new(STRIPE_BYTES, true, false, page_bytes()).unwrap();
        let writer = Arc::clone(&memory);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let access = writer.attach().unwrap();
            for value in (0..=255u8).cycle() {
                access.copy_in(4096, &[value; 4096]).unwrap();
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let access = memory.attach().unwrap();
        let mut block = [0; 4096];
        for _ in 0..rounds(2000) {
            access.copy_out(4096, &mut block).unwrap();
            assert!(block == [block[0]; 4096], "a torn block");
        }
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }

    const SHORT: usize = 10_000;
    const LONG: usize = 32 * STRIPE_BYTES;

    /// Runs `check` while another thread writes the whole memory, over and over.
    fn while_someone_writes(memory: &Arc<Memory>, check: impl FnOnce()) {
        let is_over = AtomicBool::new(false);
        let has_written = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let access = memory.attach().unwrap();
                let bytes = vec![0xee; LONG];
                while !is_over.load(Ordering::Relaxed) {
                    // Refused while it is short.
                    has_written.fetch_or(access.copy_in(0, &bytes).is_ok(), Ordering::Relaxed);
                }
            });
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while !has_written.load(Ordering::Relaxed) {
                if std::time::Instant::now() >= until {
                    is_over.store(true, Ordering::Relaxed);
                    panic!("the other thread does not write");
                }
                std::thread::yield_now();
            }
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
            is_over.store(true, Ordering::Relaxed);
            if let Err(panic) = checked {
                std::panic::resume_unwind(panic);
            }
        });
    }

    #[test]
    fn nobody_writes_behind_the_end_of_a_memory_that_shrank() {
        let memory = Memory::new(LONG, true, false, page_bytes()).unwrap();
        while_someone_writes(&memory, || {
            for round in 0..rounds(200) {
                memory.resize(SHORT).unwrap();
                for at in (SHORT.next_multiple_of(memory.grain_bytes)..LONG).step_by(memory.grain_bytes) {
                    // SAFETY: reserved and open; if it is written to all the same, this test fails.
                    let byte = unsafe { memory.mapping.at(at).as_ptr().read_volatile() };
                    assert_eq!(byte, 0, "byte {at} in round {round}");
                }
                memory.resize(LONG).unwrap();
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn what_the_user_of_an_exclusive_memory_left_behind_never_comes_back() {
        let memory = Memory::new(LONG, false, false, page_bytes()).unwrap();
        while_someone_writes(&memory, || {
            for _ in 0..rounds(2000) {
                memory.resize(SHORT).unwrap();
                memory.resize(LONG).unwrap();
            }
            memory.resize(SHORT).unwrap();
        });
        // The writer is gone, and its writes are settled.
        memory.resize(LONG).unwrap();
        let access = memory.attach().unwrap();
        assert!(access.equals(SHORT, &[0; LONG - SHORT]).unwrap());
    }

    #[test]
    fn ranges_that_overlap_have_a_lock_in_common_and_neighbours_no_cache_line() {
        let memory = Memory::new(STRIPE_BYTES, true, false, page_bytes()).unwrap();
        let lock_of = |stripe: usize| std::ptr::from_ref(memory.lock(stripe * STRIPE_BYTES).unwrap());
        for first in [0, 1, LOCK_COUNT - 2, LOCK_COUNT - 1, 5 * LOCK_COUNT - 3] {
            for count in [1, 2, 3, LOCK_COUNT - 1, LOCK_COUNT, LOCK_COUNT + 1, 3 * LOCK_COUNT] {
                // From the last byte of a stripe to the first one of another.
                let end = if count == 1 { 0 } else { (count - 2) * STRIPE_BYTES + 1 };
                let start = first * STRIPE_BYTES + STRIPE_BYTES - 1;
                let taken: Vec<_> = memory
                    .locks(&(start..start + 1 + end))
                    .iter()
                    .copied()
                    .flatten()
                    .map(std::ptr::from_ref)
                    .collect();
                assert!(taken.is_sorted(), "{count} from {first}: taken in the order of the array");
                for stripe in first..first + count {
                    assert!(taken.contains(&lock_of(stripe)), "stripe {stripe} of {count} from {first}");
                }
                assert_eq!(taken.len(), count.min(LOCK_COUNT), "{count} from {first}: each lock once");
            }
        }
        assert_eq!(lock_of(1).addr() - lock_of(0).addr(), 64);
    }

    #[test]
    fn many_stripes_are_zeroed_under_all_their_locks() {
        const LENGTH: usize = STRIPE_BYTES * (LOCK_COUNT + 10);
        let memory = Memory::new(LENGTH, true, false, page_bytes()).unwrap();
        let threads: Vec<_> = (0..2)
            .map(|index| {
                let memory = Arc::clone(&memory);
                std::thread::spawn(move || {
                    let access = memory.attach().unwrap();
                    for round in 0..rounds(20) {
                        let start = index * 5000 + round * STRIPE_BYTES;
                        access.copy_in(start, &[1; 100_000]).unwrap();
                        access.zero(start, LENGTH - start - round * 4096, true).unwrap();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let access = memory.attach().unwrap();
        access.copy_in(LENGTH - 4096, &[7; 4096]).unwrap();
        access.zero(0, LENGTH, true).unwrap();
        assert!(access.equals(LENGTH - 4096, &[0; 4096]).unwrap());
    }

    #[test]
    fn growth_beyond_the_reservation_is_refused_and_changes_nothing() {
        let memory = Memory::new(4096, true, false, page_bytes()).unwrap();
        let reserved = memory.mapping.len();
        memory.resize(reserved).unwrap();
        assert!(memory.resize(reserved + 1).is_err());
        assert!(memory.resize(usize::MAX).is_err());
        assert_eq!(memory.len(), reserved);
        memory.attach().unwrap().copy_in(reserved - 8, &[1; 8]).unwrap();
    }

    /// Zeroes that are released and a memory that shrinks, where the ranges are multiples of 4 KiB and the kernel's
    /// pages are larger.
    #[test]
    fn what_is_given_back_leaves_its_neighbours_whatever_the_page_size() {
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            for is_shared in [false, true] {
                let length = 4 * 65_536;
                let memory = Memory::new(length, is_shared, false, page_bytes).unwrap();
                assert_eq!(memory.grain_bytes(), page_bytes);
                let access = memory.attach().unwrap();
                for (offset, count) in
                    [(0, 4096), (4096, 4096), (65_536 - 4096, 65_536 + 8192), (4096, 200_000)]
                {
                    access.copy_in(0, &vec![7; length]).unwrap();
                    access.zero(offset, count, true).unwrap();
                    let mut expected = vec![7; length];
                    expected[offset..offset + count].fill(0);
                    assert!(
                        access.equals(0, &expected).unwrap(),
                        "{offset} + {count} in pages of {page_bytes}"
                    );
                }
                access.copy_in(0, &vec![7; length]).unwrap();
                memory.resize(65_536 + 4096).unwrap();
                assert_eq!(access.len(), 65_536 + 4096);
                memory.resize(length).unwrap();
                let mut expected = vec![7; 65_536 + 4096];
                expected.resize(length, 0);
                assert!(access.equals(0, &expected).unwrap(), "after a resize, in pages of {page_bytes}");
            }
        }
    }

    #[test]
    fn an_exclusive_memory_has_one_user_at_a_time() {
        let memory = Memory::new(4096, false, false, page_bytes()).unwrap();
        let access = memory.attach().unwrap();
        let reference = access.refer(0, 1).unwrap();
        drop(access);
        assert!(memory.attach().is_none(), "a reference is still out");
        drop(reference);
        assert!(memory.attach().is_some());
    }
}
