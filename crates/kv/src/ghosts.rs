//! Keys evicted not long ago, as fingerprints: a key that comes back would have been a hit with more memory.
//!
//! ```text
//! 0       2       4            64
//! │ newest │ next  │ …          │     a line of 32 fingerprints of 16 bits; the lowest bit is the queue, 0 none
//! ```
//!
//! A key has one line. There are a quarter more fingerprints than items, up to those that fit in each line.

use crate::key::KeyHash;
use crate::regions::Queue;

/// Fingerprints of a line.
const LINE_COUNT: usize = 32;
/// Memory of a partition for each line of fingerprints.
const BYTES_PER_LINE: usize = 8 << 10;

/// Fingerprints of evicted keys, and the queues from which they were evicted.
pub(crate) struct Ghosts {
    lines: Vec<[u16; LINE_COUNT]>,
    /// Fingerprints of each queue.
    counts: [usize; 2],
}

impl Ghosts {
    /// Bytes for a partition of this memory.
    pub(crate) fn bytes_for(memory_bytes: usize) -> usize {
        memory_bytes / BYTES_PER_LINE * size_of::<[u16; LINE_COUNT]>()
    }

    /// No fingerprints, in this memory.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { lines: vec![[0; LINE_COUNT]; bytes / size_of::<[u16; LINE_COUNT]>()], counts: [0; 2] }
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
        let line = ((mixed >> 32) * self.lines.len() as u64) >> 32;
        (line as usize, (mixed >> 16) as u16 & !1 | 2)
    }

    fn fingerprint(tag: u16, queue: Queue) -> u16 {
        tag | queue as u16
    }

    fn uncount(&mut self, fingerprint: u16) {
        if fingerprint != 0 {
            self.counts[usize::from(fingerprint & 1)] -= 1;
        }
    }

    /// Records a key evicted from a queue, of a partition with `item_count` items.
    pub(crate) fn record(&mut self, hash: KeyHash, queue: Queue, item_count: u64) {
        let count = item_count as usize + item_count as usize / 4;
        let kept_count = count.div_ceil(self.lines.len().max(1)).clamp(1, LINE_COUNT);
        let (line, tag) = self.place(hash);
        let Some(slots) = self.lines.get_mut(line) else { return };
        let mut dropped = [0; LINE_COUNT];
        dropped[kept_count - 1..].copy_from_slice(&slots[kept_count - 1..]);
        slots[kept_count..].fill(0);
        slots.copy_within(..kept_count - 1, 1);
        slots[0] = Self::fingerprint(tag, queue);
        self.counts[queue as usize] += 1;
        dropped.into_iter().for_each(|fingerprint| self.uncount(fingerprint));
    }

    /// Forgets a key. Returns the queue from which it was evicted, if that is known.
    pub(crate) fn take(&mut self, hash: KeyHash) -> Option<Queue> {
        let (line, tag) = self.place(hash);
        let slots = self.lines.get_mut(line)?;
        let at = slots.iter().position(|&slot| slot & !1 == tag)?;
        let queue = if slots[at] & 1 == Queue::New as u16 { Queue::New } else { Queue::Kept };
        slots.copy_within(at + 1.., at);
        slots[LINE_COUNT - 1] = 0;
        self.counts[queue as usize] -= 1;
        Some(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_more_keys_are_remembered_than_there_are_items() {
        let mut ghosts = Ghosts::new(Ghosts::bytes_for(1 << 20));
        let hash = |number: u64| KeyHash::of(number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        for number in 0..10_000 {
            let queue = if number % 3 == 0 { Queue::Kept } else { Queue::New };
            ghosts.record(hash(number), queue, 1000);
        }
        let held = ghosts.count(Queue::New) + ghosts.count(Queue::Kept);
        assert!((1250..1350).contains(&held), "{held} for 1000 items");
        assert_eq!(ghosts.take(hash(9_999)), Some(Queue::Kept));
        assert_eq!(ghosts.take(hash(9_998)), Some(Queue::New));
        assert_eq!(ghosts.take(hash(9_998)), None);
        let known = (0..10_000).filter(|&number| ghosts.take(hash(number)).is_some()).count();
        assert!((1150..1350).contains(&known), "{known} of the last 1250");
        assert!(ghosts.count(Queue::New) + ghosts.count(Queue::Kept) < 100);
    }

    #[test]
    fn a_key_that_was_never_evicted_is_rarely_remembered() {
        let mut ghosts = Ghosts::new(Ghosts::bytes_for(1 << 20));
        let hash = |number: u64| KeyHash::of(number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        (0..20_000).for_each(|number| ghosts.record(hash(number), Queue::New, 1 << 20));
        let wrong =
            (1 << 32..(1 << 32) + 10_000).filter(|&number| ghosts.take(hash(number)).is_some()).count();
        assert!(wrong < 50, "{wrong} of 10,000");
    }
}
