//! Keys evicted not long ago, as fingerprints: a key that comes back would have been a hit with more memory.
//!
//! ```text
//! 0       2       4            64
//! │ newest │ next  │ …          │     a line of 32 fingerprints of 16 bits; the lowest bit is the queue, 0 none
//! ```
//!
//! A key has one line. There are twice as many fingerprints as items, up to those that fit in each line. For large
//! items only some of the lines are used, so that the place of a key in its line shows how long ago it was evicted.

use crate::key::KeyHash;
use crate::regions::Queue;

/// Fingerprints of a line.
const LINE_COUNT: usize = 32;
/// Memory of a partition for each line of fingerprints.
const BYTES_PER_LINE: usize = 8 << 10;

/// A key that was evicted not long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ghost {
    /// The queue from which it was evicted.
    pub(crate) queue: Queue,
    /// How many keys were evicted later, estimated from its line.
    pub(crate) later_count: u64,
}

/// Fingerprints of evicted keys, and the queues from which they were evicted.
pub(crate) struct Ghosts {
    lines: Vec<[u16; LINE_COUNT]>,
    /// The number of lines used.
    used_count: usize,
    /// Fingerprints of each queue.
    counts: [usize; 2],
}

impl Ghosts {
    /// Fingerprints for each item.
    pub(crate) const PER_ITEM: usize = 2;

    /// Bytes for a partition of this memory.
    pub(crate) fn bytes_for(memory_bytes: usize) -> usize {
        memory_bytes / BYTES_PER_LINE * size_of::<[u16; LINE_COUNT]>()
    }

    /// No fingerprints, in this memory.
    pub(crate) fn new(bytes: usize) -> Self {
        let lines = vec![[0; LINE_COUNT]; bytes / size_of::<[u16; LINE_COUNT]>()];
        Self { used_count: lines.len(), lines, counts: [0; 2] }
    }

    /// Number of fingerprints of a queue.
    pub(crate) fn count(&self, queue: Queue) -> usize {
        self.counts[queue as usize]
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts == [0; 2]
    }

    /// The line of a key, and its fingerprint without the queue. The bits that select a partition select neither alone.
    fn place(&self, hash: KeyHash) -> (usize, u16) {
        let mixed = hash.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let line = ((mixed >> 32) * self.used_count as u64) >> 32;
        (line as usize, (mixed >> 16) as u16 & !1 | 2)
    }

    fn fingerprint(tag: u16, queue: Queue) -> u16 {
        tag | queue as u16
    }

    /// Uses this number of lines, or all. If that is another number, all keys are forgotten.
    #[cold]
    fn use_lines(&mut self, count: usize) {
        let used_count = count.max(1).min(self.lines.len());
        if used_count != self.used_count {
            self.lines[..self.used_count.max(used_count)].fill([0; LINE_COUNT]);
            (self.used_count, self.counts) = (used_count, [0; 2]);
        }
    }

    /// Records a key evicted from a queue, of a partition with `item_count` items. Returns how many keys evicted from
    /// Kept are forgotten for it.
    pub(crate) fn record(&mut self, hash: KeyHash, queue: Queue, item_count: u64) -> u64 {
        let count = Self::PER_ITEM * item_count as usize;
        // A quarter of each line is in use at least, and a half after a change of their number.
        if !(self.used_count * LINE_COUNT / 4..=self.used_count * LINE_COUNT).contains(&count) {
            self.use_lines(count / (LINE_COUNT / 2));
        }
        let kept_count = count.div_ceil(self.used_count.max(1)).clamp(1, LINE_COUNT);
        let (line, tag) = self.place(hash);
        let Some(slots) = self.lines.get_mut(line) else { return 0 };
        let mut dropped = [0; LINE_COUNT];
        dropped[kept_count - 1..].copy_from_slice(&slots[kept_count - 1..]);
        slots[kept_count..].fill(0);
        slots.copy_within(..kept_count - 1, 1);
        slots[0] = Self::fingerprint(tag, queue);
        self.counts[queue as usize] += 1;
        let before = self.counts[Queue::Kept as usize];
        for fingerprint in dropped.into_iter().filter(|fingerprint| *fingerprint != 0) {
            self.counts[usize::from(fingerprint & 1)] -= 1;
        }
        (before - self.counts[Queue::Kept as usize]) as u64
    }

    /// Prefetches what [`record`](Self::record) changes for a key.
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        let (line, _) = self.place(hash);
        if let Some(slots) = self.lines.get(line) {
            memory::prefetch(slots);
        }
    }

    /// Forgets a key. Returns the queue that it was evicted from, and how long ago.
    pub(crate) fn take(&mut self, hash: KeyHash) -> Option<Ghost> {
        let (line, tag) = self.place(hash);
        let slots = self.lines.get_mut(line)?;
        let at = slots.iter().position(|&slot| slot & !1 == tag)?;
        let queue = if slots[at] & 1 == Queue::New as u16 { Queue::New } else { Queue::Kept };
        slots.copy_within(at + 1.., at);
        slots[LINE_COUNT - 1] = 0;
        self.counts[queue as usize] -= 1;
        Some(Ghost { queue, later_count: at as u64 * self.used_count as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_many_keys_are_remembered_as_there_are_items() {
        let mut ghosts = Ghosts::new(Ghosts::bytes_for(1 << 20));
        let hash = |number: u64| KeyHash::of(number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        for number in 0..10_000 {
            let queue = if number % 3 == 0 { Queue::Kept } else { Queue::New };
            ghosts.record(hash(number), queue, 1000);
        }
        let held = ghosts.count(Queue::New) + ghosts.count(Queue::Kept);
        assert!((2000..2100).contains(&held), "{held} for 1000 items");
        let mut take = |number| ghosts.take(hash(number));
        assert_eq!(take(9_999), Some(Ghost { queue: Queue::Kept, later_count: 0 }));
        assert_eq!(take(9_998), Some(Ghost { queue: Queue::New, later_count: 0 }));
        assert_eq!(take(9_998), None);
        let later: u64 = (8900..9100).filter_map(take).map(|ghost| ghost.later_count).sum();
        assert!((160_000..240_000).contains(&later), "{later} for 200 keys, some thousand before the last");
        let known = (0..10_000).filter(|&number| ghosts.take(hash(number)).is_some()).count();
        assert!((1650..1900).contains(&known), "{known} of the last 2000, less 200");
        assert!(ghosts.count(Queue::New) + ghosts.count(Queue::Kept) < 100);
    }

    #[test]
    fn a_key_that_was_never_evicted_is_rarely_remembered() {
        let mut ghosts = Ghosts::new(Ghosts::bytes_for(1 << 20));
        let hash = |number: u64| KeyHash::of(number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        (0..20_000).for_each(|number| _ = ghosts.record(hash(number), Queue::New, 1 << 20));
        let wrong =
            (1 << 32..(1 << 32) + 10_000).filter(|&number| ghosts.take(hash(number)).is_some()).count();
        assert!(wrong < 50, "{wrong} of 10,000");
    }
}
