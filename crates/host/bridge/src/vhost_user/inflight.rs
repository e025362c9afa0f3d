//! Which requests are in work, in memory that the front end keeps: a bridge that begins after this one has ended, whatever its
//! end, takes them up again. The layout is that of the vhost-user specification, "Inflight I/O tracking", for split virtqueues.
// Data from a front end must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::mmap::MmapRegionError;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

const VERSION: u16 = 1;
const VERSION_AT: usize = 8;
const COUNT_AT: usize = 10;
const LAST_HEAD_AT: usize = 12;
const USED_INDEX_AT: usize = 14;
/// The header of a queue, and the state of a descriptor.
const ENTRY_BYTES: usize = 16;
/// Within the state of a descriptor: the head that ended before it, and when it was taken.
const NEXT_AT: usize = 6;
const COUNTER_AT: usize = 8;
/// Queues begin at multiples.
const ALIGNMENT: usize = 64;

/// The memory of all queues.
#[derive(Clone, Debug)]
pub struct Inflight {
    region: Arc<MmapRegion>,
    queue_count: u16,
    queue_size: u16,
}

/// The part of one queue.
#[derive(Debug)]
pub struct InflightQueue {
    inflight: Inflight,
    /// Where it begins.
    start: usize,
    counter: u64,
}

/// The memory is not as it must be.
#[derive(Debug, thiserror::Error)]
pub enum InflightError {
    /// A file.
    #[error(transparent)]
    System(#[from] io::Error),
    /// Its mapping.
    #[error("{0}")]
    Mapping(#[from] MmapRegionError),
    /// Too short.
    #[error("{bytes} bytes for {queue_count} queues of {queue_size}")]
    Length {
        /// Its length.
        bytes: u64,
        /// Queues.
        queue_count: u16,
        /// Entries of each.
        queue_size: u16,
    },
    /// Of shorter queues.
    #[error("it is of a queue of {found} entries, and the queue has {wanted}")]
    QueueSize {
        /// Entries that it is for.
        found: u16,
        /// Entries of the queue.
        wanted: u16,
    },
}

impl From<rustix::io::Errno> for InflightError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.into())
    }
}

/// Whether a file has these bytes: an access to a mapping behind its end would end this process. A front end that cuts the file
/// later can do that; its guest cannot.
///
/// # Errors
/// It has not.
pub(crate) fn check_length(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let found = file.metadata()?;
    let has_all = offset.checked_add(bytes).is_some_and(|end| end <= found.len());
    match found.is_file() && !has_all {
        true => Err(io::Error::other(format!("{bytes} bytes at {offset} of a file of {}", found.len()))),
        false => Ok(()),
    }
}

/// Bytes of one queue.
fn stride(queue_size: u16) -> usize {
    ENTRY_BYTES
        .saturating_mul(usize::from(queue_size).saturating_add(1))
        .checked_next_multiple_of(ALIGNMENT)
        .unwrap_or(usize::MAX)
}

impl Inflight {
    /// New memory, in which nothing is in work; and its file, for the front end.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(queue_count: u16, queue_size: u16) -> Result<(Self, File, u64), InflightError> {
        let file = File::from(memfd_create("nvlane-inflight", MemfdFlags::CLOEXEC)?);
        let bytes = stride(queue_size).saturating_mul(queue_count.into()) as u64;
        ftruncate(&file, bytes)?;
        let copy = file.try_clone()?;
        Ok((Self::of_file(copy, 0, bytes, queue_count, queue_size)?, file, bytes))
    }

    /// Memory of a front end.
    ///
    /// # Errors
    /// It is too short, or cannot be mapped.
    pub fn of_file(
        file: File,
        offset: u64,
        bytes: u64,
        queue_count: u16,
        queue_size: u16,
    ) -> Result<Self, InflightError> {
        let needed = stride(queue_size).saturating_mul(queue_count.into());
        let length = usize::try_from(bytes).ok().filter(|length| *length >= needed && needed > 0);
        let length = length.ok_or(InflightError::Length { bytes, queue_count, queue_size })?;
        check_length(&file, offset, bytes)?;
        let region = MmapRegion::from_file(FileOffset::new(file, offset), length)?;
        Ok(Self { region: Arc::new(region), queue_count, queue_size })
    }

    /// The part of a queue, if the memory has one.
    ///
    /// # Errors
    /// It was made for shorter queues.
    pub fn queue(&self, index: u16, size: u16) -> Result<Option<InflightQueue>, InflightError> {
        if index >= self.queue_count {
            return Ok(None);
        }
        if size > self.queue_size {
            return Err(InflightError::QueueSize { found: self.queue_size, wanted: size });
        }
        let start = stride(self.queue_size).saturating_mul(index.into());
        let queue = InflightQueue { inflight: self.clone(), start, counter: 0 };
        if queue.load(VERSION_AT) != VERSION {
            queue.store(COUNT_AT, self.queue_size);
            queue.store(VERSION_AT, VERSION);
        }
        Ok(Some(queue))
    }
}

impl InflightQueue {
    /// The memory is as long as was checked, so that an access to it cannot fail.
    fn load(&self, offset: usize) -> u16 {
        let slice = self.inflight.region.as_volatile_slice();
        u16::from_le(slice.load(self.start.saturating_add(offset), Ordering::Acquire).unwrap_or_default())
    }

    fn store(&self, offset: usize, value: u16) {
        let slice = self.inflight.region.as_volatile_slice();
        let _ = slice.store(value.to_le(), self.start.saturating_add(offset), Ordering::Release);
    }

    /// Where the state of a descriptor is, from the start of the queue on; `None` for one that no queue has.
    fn entry(&self, head: u16) -> Option<usize> {
        let entry = usize::from(head).checked_add(1)?.checked_mul(ENTRY_BYTES)?;
        (head < self.inflight.queue_size).then_some(entry)
    }

    fn set_in_work(&self, head: u16, is_in_work: bool) {
        if let Some(entry) = self.entry(head) {
            let slice = self.inflight.region.as_volatile_slice();
            let at = self.start.saturating_add(entry);
            let _ = slice.store(u8::from(is_in_work), at, Ordering::Release);
        }
    }

    /// A request was taken.
    pub(crate) fn on_taken(&mut self, head: u16) {
        if let Some(entry) = self.entry(head) {
            let slice = self.inflight.region.as_volatile_slice();
            let at = self.start.saturating_add(entry).saturating_add(COUNTER_AT);
            let _ = slice.store(self.counter.to_le(), at, Ordering::Release);
            self.counter = self.counter.wrapping_add(1);
            self.set_in_work(head, true);
        }
    }

    /// A request is about to be put into the used ring.
    pub(crate) fn before_used(&self, head: u16) {
        if let Some(entry) = self.entry(head) {
            self.store(entry.saturating_add(NEXT_AT), self.load(LAST_HEAD_AT));
            self.store(LAST_HEAD_AT, head);
            fence(Ordering::SeqCst);
        }
    }

    /// It is in the used ring, whose index is `used_index` now.
    pub(crate) fn after_used(&self, head: u16, used_index: u16) {
        self.set_in_work(head, false);
        fence(Ordering::SeqCst);
        self.store(USED_INDEX_AT, used_index);
    }

    /// What an earlier bridge has left: the heads that are in work, in the order in which they were taken. `used_index` is that
    /// of the used ring.
    pub(crate) fn recover(&mut self, used_index: u16) -> Vec<u16> {
        if self.load(USED_INDEX_AT) != used_index {
            // It ended between putting a request into the ring and noting that.
            self.set_in_work(self.load(LAST_HEAD_AT), false);
            self.store(USED_INDEX_AT, used_index);
        }
        let slice = self.inflight.region.as_volatile_slice();
        let mut found = Vec::new();
        for head in 0..self.inflight.queue_size {
            let Some(entry) = self.entry(head) else { break };
            let at = self.start.saturating_add(entry);
            if slice.load::<u8>(at, Ordering::Acquire).unwrap_or_default() == 1 {
                let counter = slice.load::<u64>(at.saturating_add(COUNTER_AT), Ordering::Acquire);
                found.push((u64::from_le(counter.unwrap_or_default()), head));
            }
        }
        found.sort_unstable();
        self.counter = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        found.into_iter().map(|(_, head)| head).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_finds_what_was_in_work_in_its_order() {
        let (inflight, file, bytes) = Inflight::new(2, 8).expect("memory");
        let mut queue = inflight.queue(1, 8).expect("of this size").expect("there are two");
        assert!(queue.recover(0).is_empty());
        for head in [5, 2, 7, 0] {
            queue.on_taken(head);
        }
        queue.before_used(2);
        queue.after_used(2, 1);
        let again = Inflight::of_file(file.try_clone().expect("a file"), 0, bytes, 2, 8).expect("as it was");
        let mut successor = again.queue(1, 8).expect("of this size").expect("there are two");
        assert_eq!(successor.recover(1), [5, 7, 0]);
        successor.on_taken(2);
        // Its end is between the used ring and the note.
        successor.before_used(7);
        let mut third = again.queue(1, 8).expect("of this size").expect("there are two");
        assert_eq!(third.recover(2), [5, 0, 2]);
        assert!(again.queue(0, 8).expect("of this size").expect("there are two").recover(0).is_empty());
    }

    #[test]
    fn memory_that_is_too_short_is_refused() {
        let (inflight, file, bytes) = Inflight::new(1, 8).expect("memory");
        let copy = || file.try_clone().expect("a file");
        assert!(matches!(inflight.queue(0, 16), Err(InflightError::QueueSize { found: 8, wanted: 16 })));
        assert!(matches!(inflight.queue(1, 8), Ok(None)));
        assert!(matches!(Inflight::of_file(copy(), 0, bytes, 3, 8), Err(InflightError::Length { .. })));
        assert!(Inflight::of_file(copy(), 0, bytes * 4, 1, 8).is_err(), "more than the file has");
        assert!(Inflight::of_file(copy(), u64::MAX - 4095, bytes, 1, 8).is_err());
    }

    #[test]
    fn any_content_is_read_without_a_panic() {
        let (inflight, file, bytes) = Inflight::new(1, 8).expect("memory");
        let nonsense = vec![0x01; usize::try_from(bytes).expect("short")];
        std::os::unix::fs::FileExt::write_all_at(&file, &nonsense, 0).expect("a file");
        let mut queue = inflight.queue(0, 8).expect("of this size").expect("there is one");
        assert_eq!(queue.recover(3).len(), 8);
        queue.on_taken(u16::MAX);
        queue.before_used(u16::MAX);
        queue.after_used(u16::MAX, 4);
    }
}
