//! The partitions of a key space that all threads use where they lie, each under a lock of its own.
//!
//! ```text
//! thread ─▶ PartitionAccess ─▶ PartitionSet ─▶ lock ─▶ partition         the thread's own, or another one's
//!               │
//!               ├─ exclusive         one partition at a time: a key, or a part of a batch
//!               ├─ shared_at         one partition, shared: a look-up that changes nothing
//!               ├─ for_each_part     the parts of a batch, those whose partition is free first
//!               └─ ReadLocks         several partitions at once, shared: look-ups that change nothing
//! ```
//!
//! No lock is held over the end of a call or of a turn, and no thread waits for a lock while it holds one: it only tries
//! a further one, and if that fails, it releases all before it waits. So there is no deadlock, and a lock is held for
//! as long as a part of a batch takes. Debug builds check both.

use std::hint::spin_loop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use linux::Moment;

use crate::key::{KeyHash, KeyHasher};
use crate::partition::Partition;
use crate::parts::Parts;

/// Tries to take a partition before the thread sleeps, with pauses of some 0.3 us in between. A part of a batch takes less
/// than all of them, and sleeping costs more: the holder has to wake the thread.
const TRY_COUNT: usize = 16;
const PAUSE_SPINS: usize = 16;

/// What one of some tries yields, if any does.
#[inline]
fn try_often<T>(attempt: impl Fn() -> Option<T>) -> Option<T> {
    for _ in 0..TRY_COUNT {
        let done = attempt();
        if done.is_some() {
            return done;
        }
        (0..PAUSE_SPINS).for_each(|_| spin_loop());
    }
    None
}

/// The partitions of a key space in memory, filled in by the threads that have made them.
pub struct PartitionSet {
    hasher: KeyHasher,
    slots: Box<[OnceLock<Box<RwLock<Aligned>>>]>,
}

/// A partition in lines of its own: what threads read there does not move between cores with each change of the lock.
#[repr(align(128))]
struct Aligned(Partition);

/// A partition that no other thread uses meanwhile.
pub struct ExclusiveGuard<'a> {
    guard: RwLockWriteGuard<'a, Aligned>,
    _held: held::Held,
}

/// A partition that is not changed meanwhile.
pub struct SharedGuard<'a> {
    guard: RwLockReadGuard<'a, Aligned>,
    _held: held::Held,
}

impl Deref for SharedGuard<'_> {
    type Target = Partition;

    #[inline(always)]
    fn deref(&self) -> &Partition {
        &self.guard.0
    }
}

impl Deref for ExclusiveGuard<'_> {
    type Target = Partition;

    #[inline(always)]
    fn deref(&self) -> &Partition {
        &self.guard.0
    }
}

impl DerefMut for ExclusiveGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Partition {
        &mut self.guard.0
    }
}

impl PartitionSet {
    /// A set of `count` partitions with these [seeds](crate::Settings), none of which is there yet.
    #[must_use]
    pub fn new(count: usize, seed: u64, partition_seed: Option<u64>) -> Self {
        let hasher = KeyHasher::new(seed, partition_seed);
        Self { hasher, slots: (0..count).map(|_| OnceLock::new()).collect() }
    }

    /// Whether the partition with this number is there.
    #[must_use]
    pub fn has(&self, number: usize) -> bool {
        self.slots[number].get().is_some()
    }

    /// Puts a partition in, which no thread has done before.
    ///
    /// # Panics
    /// If it is there already.
    pub fn put(&self, number: usize, partition: Partition) {
        let is_new = self.slots[number].set(Box::new(RwLock::new(Aligned(partition)))).is_ok();
        assert!(is_new, "each thread makes its partition once");
    }

    fn slot(&self, number: usize) -> &RwLock<Aligned> {
        self.slots[number].get().expect("a partition is used once all are there")
    }

    /// Waits for a partition. The thread holds no other one.
    fn lock(&self, number: usize) -> ExclusiveGuard<'_> {
        try_often(|| self.try_lock(number)).unwrap_or_else(|| {
            // A panic ends the target.
            let guard = self.slot(number).write().unwrap_or_else(PoisonError::into_inner);
            ExclusiveGuard { guard, _held: held::Held::new() }
        })
    }

    /// The partition, unless another thread uses it.
    fn try_lock(&self, number: usize) -> Option<ExclusiveGuard<'_>> {
        held::assert_none();
        let guard = match self.slot(number).try_write() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(ExclusiveGuard { guard, _held: held::Held::new() })
    }

    /// Waits until no thread changes the partition. The thread holds no other one.
    fn read(&self, number: usize) -> SharedGuard<'_> {
        held::assert_none();
        try_often(|| self.try_read(number)).unwrap_or_else(|| {
            let guard = self.slot(number).read().unwrap_or_else(PoisonError::into_inner);
            SharedGuard { guard, _held: held::Held::new() }
        })
    }

    /// The partition, unless another thread changes it, or waits to do so.
    fn try_read(&self, number: usize) -> Option<SharedGuard<'_>> {
        let guard = match self.slot(number).try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(SharedGuard { guard, _held: held::Held::new() })
    }
}

/// How one thread reaches the partitions of a set, of which one is its own.
pub struct PartitionAccess {
    set: Arc<PartitionSet>,
    own: usize,
    /// Whether all partitions are there.
    is_complete: AtomicBool,
    /// The partitions that this thread may have changed since it last reported their usage. Only this thread uses
    /// these, so they cost no more than plain numbers.
    changed: Box<[AtomicBool]>,
}

impl PartitionAccess {
    /// The access of the thread whose own partition has this number.
    #[must_use]
    pub fn new(set: Arc<PartitionSet>, own: usize) -> Self {
        // Its own one is yet to be reported for the first time.
        let changed = (0..set.slots.len()).map(|number| AtomicBool::new(number == own)).collect();
        Self { set, own, is_complete: AtomicBool::new(false), changed }
    }

    /// The number of this thread's own partition, and the number of all.
    #[inline]
    #[must_use]
    pub fn position(&self) -> (usize, usize) {
        (self.own, self.set.slots.len())
    }

    /// Whether all partitions are there: before, only the thread's own one may be used.
    #[inline]
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed) || self.look_for_all()
    }

    #[cold]
    fn look_for_all(&self) -> bool {
        let is_complete = (0..self.set.slots.len()).all(|number| self.set.has(number));
        self.is_complete.store(is_complete, Ordering::Relaxed);
        is_complete
    }

    /// The hash of a key.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.set.hasher.hash(key)
    }

    /// The number of the partition that a key belongs to.
    #[inline]
    #[must_use]
    pub fn partition_of(&self, hash: KeyHash) -> usize {
        hash.partition(self.set.slots.len())
    }

    /// The partition with this number, for this thread alone. It may wait for others, and so must hold none.
    #[must_use]
    pub fn exclusive(&self, number: usize) -> ExclusiveGuard<'_> {
        self.changed[number].store(true, Ordering::Relaxed);
        self.set.lock(number)
    }

    /// As [`exclusive`](Self::exclusive), with the partition's clock set.
    #[must_use]
    pub fn exclusive_at(&self, number: usize, now: Moment) -> ExclusiveGuard<'_> {
        let mut guard = self.exclusive(number);
        guard.follow(now);
        guard
    }

    /// The partition with this number, which no thread changes meanwhile, with its clock set. It may wait for others, and so
    /// must hold none.
    #[must_use]
    pub fn shared_at(&self, number: usize, now: Moment) -> SharedGuard<'_> {
        let guard = self.set.read(number);
        if guard.is_current(now) {
            return guard;
        }
        // Its clock is behind, or stamps are due.
        drop(guard);
        drop(self.exclusive_at(number, now));
        self.set.read(number)
    }

    /// Calls `each` with every partition that has a part, for this thread alone and with its clock set, and with the
    /// operations of the part in order. Partitions that are free come first, the thread's own one before all.
    pub fn for_each_part(
        &self,
        parts: &mut Parts,
        now: Moment,
        mut each: impl FnMut(&mut Partition, &[u32]),
    ) {
        let mut left = std::mem::take(&mut parts.left);
        left.clear();
        let count = self.set.slots.len();
        let numbers = (self.own..count).chain(0..self.own);
        left.extend(numbers.filter(|&number| !parts.of(number).is_empty()));
        let mut run = |number: usize, mut guard: ExclusiveGuard<'_>| {
            self.changed[number].store(true, Ordering::Relaxed);
            guard.follow(now);
            each(&mut guard, parts.of(number));
        };
        while !left.is_empty() {
            let before = left.len();
            left.retain(|&number| match self.set.try_lock(number) {
                Some(guard) => {
                    run(number, guard);
                    false
                }
                None => true,
            });
            if left.len() == before {
                let number = left.remove(0);
                run(number, self.set.lock(number));
            }
        }
        parts.left = left;
    }

    /// Locks for look-ups that change nothing.
    #[must_use]
    pub fn read_locks(&self, now: Moment) -> ReadLocks<'_> {
        let held = self.set.slots.iter().map(|_| None).collect();
        ReadLocks { access: self, now, held, held_count: 0, release_count: 0 }
    }

    /// Marks pairs as read, which delays their eviction: those that look-ups under shared locks have found.
    #[inline]
    pub fn mark_read(&self, now: Moment, read: &[(KeyHash, &[u8])]) {
        match *read {
            [] => {}
            [(hash, key)] => mark(&mut self.exclusive_at(self.partition_of(hash), now), hash, key),
            _ => self.mark_all_read(now, read),
        }
    }

    #[inline(never)]
    fn mark_all_read(&self, now: Moment, read: &[(KeyHash, &[u8])]) {
        let mut parts = Parts::default();
        parts.sort(self.set.slots.len(), read.iter().map(|(hash, _)| Some(self.partition_of(*hash))));
        self.for_each_part(&mut parts, now, |partition, numbers| {
            for &number in numbers {
                let (hash, key) = read[number as usize];
                mark(partition, hash, key);
            }
        });
    }

    /// Reports the usage of the partitions that this thread has changed, unless others use them: those are reported
    /// the next time.
    pub fn report_usage(&self) {
        for (number, changed) in self.changed.iter().enumerate() {
            if changed.load(Ordering::Relaxed)
                && let Some(mut guard) = self.set.try_lock(number)
            {
                guard.report_usage();
                changed.store(false, Ordering::Relaxed);
            }
        }
    }
}

/// Marks a pair as read, if it is still there.
fn mark(partition: &mut Partition, hash: KeyHash, key: &[u8]) {
    if let Some(place) = partition.processor.find(hash, key) {
        partition.processor.touch(place);
    }
}

/// The partitions that a thread reads from, none of which is changed meanwhile.
pub struct ReadLocks<'a> {
    access: &'a PartitionAccess,
    now: Moment,
    held: Box<[Option<SharedGuard<'a>>]>,
    held_count: usize,
    release_count: u32,
}

impl ReadLocks<'_> {
    /// A partition, and the [number of releases](Self::release_count) after it was taken. If it is busy, the others are
    /// released, and their pairs may change.
    #[inline]
    pub fn get(&mut self, number: usize) -> (&Partition, u32) {
        if self.held[number].is_none() {
            self.take(number);
        }
        (self.held[number].as_ref().expect("just made sure of"), self.release_count)
    }

    #[inline(never)]
    fn take(&mut self, number: usize) {
        let free = self.access.set.try_read(number).filter(|guard| guard.is_current(self.now));
        let guard = free.unwrap_or_else(|| {
            self.release();
            self.access.shared_at(number, self.now)
        });
        self.held[number] = Some(guard);
        self.held_count += 1;
    }

    /// How often partitions were released: places that were found before are not valid any more.
    #[inline]
    #[must_use]
    pub fn release_count(&self) -> u32 {
        self.release_count
    }

    /// Releases all partitions.
    pub fn release(&mut self) {
        if self.held_count > 0 {
            self.held.iter_mut().for_each(|held| *held = None);
            (self.held_count, self.release_count) = (0, self.release_count.wrapping_add(1));
        }
    }
}

/// How many partitions a thread holds, in debug builds.
mod held {
    #[cfg(debug_assertions)]
    use std::cell::Cell;

    #[cfg(debug_assertions)]
    thread_local! {
        static COUNT: Cell<usize> = const { Cell::new(0) };
    }

    /// One of them.
    pub(super) struct Held(());

    impl Held {
        #[inline(always)]
        pub(super) fn new() -> Self {
            #[cfg(debug_assertions)]
            COUNT.with(|count| count.set(count.get() + 1));
            Self(())
        }
    }

    #[cfg(debug_assertions)]
    impl Drop for Held {
        fn drop(&mut self) {
            COUNT.with(|count| count.set(count.get() - 1));
        }
    }

    /// The thread holds none.
    #[inline(always)]
    pub(super) fn assert_none() {
        #[cfg(debug_assertions)]
        COUNT.with(|count| {
            assert_eq!(count.get(), 0, "a thread that holds a partition waits for another one");
        });
    }
}
