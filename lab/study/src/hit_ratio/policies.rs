//! Policies of caches, simulated: each holds values up to a number of bytes, without any overhead.

use std::collections::BTreeSet;

use super::queues::Queues;
use super::requests::Request;

/// A simulated cache. A miss stores the value.
pub(crate) trait Policy {
    /// Carries a request out. Returns whether it hits.
    fn request(&mut self, request: Request) -> bool;
}

/// Creates a policy simulator of this capacity in bytes for keys below a count.
type Make = fn(u64, u32) -> Box<dyn Policy>;

/// Every policy, by name.
pub(crate) const POLICIES: [(&str, Make); 6] = [
    ("LRU", |bytes, key_count| Box::new(Lru { queues: Queues::new(key_count), bytes })),
    ("SIEVE", |bytes, key_count| Box::new(Sieve::new(bytes, key_count))),
    ("S3-FIFO", |bytes, key_count| Box::new(S3Fifo::new(bytes, key_count))),
    ("W-TinyLFU", |bytes, key_count| Box::new(TinyLfu::new(bytes, key_count))),
    ("ARC", |bytes, key_count| Box::new(Arc { queues: Queues::new(key_count), bytes, recent_bytes: 0 })),
    (BELADY, |bytes, _| Box::new(Belady { held: BTreeSet::new(), bytes, held_bytes: 0 })),
];

/// The policy that knows the future.
pub(crate) const BELADY: &str = "Belady";

/// Evicts the value whose last use was the longest ago.
struct Lru {
    queues: Queues<1>,
    bytes: u64,
}

impl Policy for Lru {
    fn request(&mut self, Request { key, bytes, .. }: Request) -> bool {
        if self.queues.queue_of(key).is_some() {
            self.queues.move_to(0, key);
            return true;
        }
        self.queues.push(0, key, bytes);
        while self.queues.bytes(0) > self.bytes {
            self.queues.remove(self.queues.oldest(0).expect("it has bytes"));
        }
        false
    }
}

/// SIEVE (NSDI 2024): a hand passes from the oldest value to the newest, and evicts the first that was not used since
/// it passed.
struct Sieve {
    queues: Queues<1>,
    bytes: u64,
    is_used: Vec<bool>,
    hand: Option<u32>,
}

impl Sieve {
    fn new(bytes: u64, key_count: u32) -> Self {
        Self { queues: Queues::new(key_count), bytes, is_used: vec![false; key_count as usize], hand: None }
    }
}

impl Policy for Sieve {
    fn request(&mut self, Request { key, bytes, .. }: Request) -> bool {
        if self.queues.queue_of(key).is_some() {
            self.is_used[key as usize] = true;
            return true;
        }
        while self.queues.bytes(0) + u64::from(bytes) > self.bytes
            && let Some(victim) = self.hand.or(self.queues.oldest(0))
        {
            self.hand = self.queues.newer(victim);
            if !std::mem::take(&mut self.is_used[victim as usize]) {
                self.queues.remove(victim);
            }
        }
        self.queues.push(0, key, bytes);
        self.is_used[key as usize] = false;
        false
    }
}

/// S3-FIFO (SOSP 2023): a small queue of new values, a main one of those that were used in it, and the keys of those
/// that were not.
struct S3Fifo {
    queues: Queues<3>,
    bytes: u64,
    uses: Vec<u8>,
}

impl S3Fifo {
    const SMALL: usize = 0;
    const MAIN: usize = 1;
    const GHOSTS: usize = 2;
    const USES_MAX: u8 = 3;
    /// Part of the bytes that the small queue has.
    const SMALL_PART: u64 = 10;

    fn new(bytes: u64, key_count: u32) -> Self {
        Self { queues: Queues::new(key_count), bytes, uses: vec![0; key_count as usize] }
    }

    fn held_bytes(&self) -> u64 {
        self.queues.bytes(Self::SMALL) + self.queues.bytes(Self::MAIN)
    }

    fn evict(&mut self) {
        let is_small = self.queues.bytes(Self::SMALL) > self.bytes / Self::SMALL_PART
            || self.queues.bytes(Self::MAIN) == 0;
        let oldest =
            self.queues.oldest(if is_small { Self::SMALL } else { Self::MAIN }).expect("it has bytes");
        let uses = &mut self.uses[oldest as usize];
        if is_small && *uses > 1 {
            *uses = 0;
            self.queues.move_to(Self::MAIN, oldest);
        } else if is_small {
            self.queues.move_to(Self::GHOSTS, oldest);
            while self.queues.bytes(Self::GHOSTS) > self.bytes - self.bytes / Self::SMALL_PART {
                self.queues.remove(self.queues.oldest(Self::GHOSTS).expect("it has bytes"));
            }
        } else if *uses > 0 {
            *uses -= 1;
            self.queues.move_to(Self::MAIN, oldest);
        } else {
            self.queues.remove(oldest);
        }
    }
}

impl Policy for S3Fifo {
    fn request(&mut self, Request { key, bytes, .. }: Request) -> bool {
        let queue = self.queues.queue_of(key);
        if matches!(queue, Some(Self::SMALL | Self::MAIN)) {
            let uses = &mut self.uses[key as usize];
            *uses = (*uses + 1).min(Self::USES_MAX);
            return true;
        }
        if queue.is_some() {
            self.queues.remove(key);
        }
        while self.held_bytes() + u64::from(bytes) > self.bytes {
            self.evict();
        }
        self.uses[key as usize] = 0;
        self.queues.push(if queue.is_some() { Self::MAIN } else { Self::SMALL }, key, bytes);
        false
    }
}

/// W-TinyLFU (ACM ToS 2017), as in Caffeine: a window of new values, and a segmented LRU into which a value comes if it
/// was used more often than those that it displaces.
struct TinyLfu {
    queues: Queues<3>,
    bytes: u64,
    held_count: usize,
    sketch: Sketch,
}

impl TinyLfu {
    const WINDOW: usize = 0;
    const PROBATION: usize = 1;
    const PROTECTED: usize = 2;

    fn new(bytes: u64, key_count: u32) -> Self {
        Self { queues: Queues::new(key_count), bytes, held_count: 0, sketch: Sketch::new(key_count) }
    }

    /// Bytes of the window: a hundredth of all.
    fn window_bytes(&self) -> u64 {
        self.bytes / 100
    }

    fn main_bytes(&self) -> u64 {
        self.queues.bytes(Self::PROBATION) + self.queues.bytes(Self::PROTECTED)
    }

    /// Lets a value come into the main part, or drops it.
    fn admit(&mut self, candidate: u32) {
        self.queues.move_to(Self::PROBATION, candidate);
        while self.main_bytes() > self.bytes - self.window_bytes() {
            let oldest = self.queues.oldest(Self::PROBATION).expect("the candidate is there");
            let victim = if oldest == candidate {
                self.queues.oldest(Self::PROTECTED).unwrap_or(oldest)
            } else {
                oldest
            };
            if victim == candidate || self.sketch.count(candidate) <= self.sketch.count(victim) {
                self.held_count -= 1;
                return self.queues.remove(candidate);
            }
            self.held_count -= 1;
            self.queues.remove(victim);
        }
    }
}

impl Policy for TinyLfu {
    fn request(&mut self, Request { key, bytes, .. }: Request) -> bool {
        self.sketch.add(key, self.held_count);
        match self.queues.queue_of(key) {
            Some(Self::WINDOW) => self.queues.move_to(Self::WINDOW, key),
            Some(_) => {
                self.queues.move_to(Self::PROTECTED, key);
                while self.queues.bytes(Self::PROTECTED) > self.bytes / 5 * 4 {
                    let oldest = self.queues.oldest(Self::PROTECTED).expect("it has bytes");
                    self.queues.move_to(Self::PROBATION, oldest);
                }
            }
            None => {
                self.held_count += 1;
                self.queues.push(Self::WINDOW, key, bytes);
                while self.queues.bytes(Self::WINDOW) > self.window_bytes()
                    && let Some(oldest) = self.queues.oldest(Self::WINDOW)
                {
                    self.admit(oldest);
                }
                return false;
            }
        }
        true
    }
}

/// Counts of uses up to 15, all halved once in ten times as many uses as there are values: exact, where W-TinyLFU
/// estimates them.
struct Sketch {
    counts: Vec<u8>,
    added_count: usize,
}

impl Sketch {
    fn new(key_count: u32) -> Self {
        Self { counts: vec![0; key_count as usize], added_count: 0 }
    }

    fn add(&mut self, key: u32, held_count: usize) {
        let count = &mut self.counts[key as usize];
        *count = (*count + 1).min(15);
        self.added_count += 1;
        if self.added_count >= 10 * held_count.max(100) {
            self.added_count /= 2;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
    }

    fn count(&self, key: u32) -> u8 {
        self.counts[key as usize]
    }
}

/// ARC (FAST 2003): values used once and values used more often, and the keys of those evicted from each, which decide
/// which of the two is to grow.
struct Arc {
    queues: Queues<4>,
    bytes: u64,
    /// Bytes that values used once are to have.
    recent_bytes: u64,
}

impl Arc {
    const RECENT: usize = 0;
    const FREQUENT: usize = 1;
    const RECENT_GHOSTS: usize = 2;
    const FREQUENT_GHOSTS: usize = 3;

    fn make_room(&mut self, bytes: u32, is_frequent_ghost: bool) {
        loop {
            let [recent, frequent, recent_ghosts, frequent_ghosts] =
                [0, 1, 2, 3].map(|queue| self.queues.bytes(queue));
            if recent + frequent + u64::from(bytes) > self.bytes {
                let is_recent = recent > 0
                    && (recent > self.recent_bytes
                        || is_frequent_ghost && recent == self.recent_bytes
                        || frequent == 0);
                let (from, to) = if is_recent {
                    (Self::RECENT, Self::RECENT_GHOSTS)
                } else {
                    (Self::FREQUENT, Self::FREQUENT_GHOSTS)
                };
                self.queues.move_to(to, self.queues.oldest(from).expect("it has bytes"));
            } else if recent + recent_ghosts > self.bytes && recent_ghosts > 0 {
                self.queues.remove(self.queues.oldest(Self::RECENT_GHOSTS).expect("it has bytes"));
            } else if recent + frequent + recent_ghosts + frequent_ghosts > 2 * self.bytes
                && frequent_ghosts > 0
            {
                self.queues.remove(self.queues.oldest(Self::FREQUENT_GHOSTS).expect("it has bytes"));
            } else {
                return;
            }
        }
    }
}

impl Policy for Arc {
    fn request(&mut self, Request { key, bytes, .. }: Request) -> bool {
        let queue = self.queues.queue_of(key);
        let [recent_ghosts, frequent_ghosts] =
            [Self::RECENT_GHOSTS, Self::FREQUENT_GHOSTS].map(|queue| self.queues.bytes(queue).max(1));
        let step = |others: u64, same: u64| u64::from(bytes) * (others / same).max(1);
        match queue {
            Some(Self::RECENT | Self::FREQUENT) => {
                self.queues.move_to(Self::FREQUENT, key);
                return true;
            }
            Some(Self::RECENT_GHOSTS) => {
                self.recent_bytes =
                    (self.recent_bytes + step(frequent_ghosts, recent_ghosts)).min(self.bytes);
            }
            Some(_) => {
                self.recent_bytes = self.recent_bytes.saturating_sub(step(recent_ghosts, frequent_ghosts));
            }
            None => {}
        }
        if queue.is_some() {
            self.queues.remove(key);
        }
        self.make_room(bytes, queue == Some(Self::FREQUENT_GHOSTS));
        self.queues.push(if queue.is_some() { Self::FREQUENT } else { Self::RECENT }, key, bytes);
        false
    }
}

/// Belady's: evicts the value that is used next in the farthest future. A bound for values of one length.
struct Belady {
    /// When each value is used next, its key, and bytes.
    held: BTreeSet<(u32, u32, u32)>,
    bytes: u64,
    held_bytes: u64,
}

impl Policy for Belady {
    fn request(&mut self, Request { at, key, bytes, next_at }: Request) -> bool {
        let is_held = self.held.remove(&(at, key, bytes));
        if !is_held {
            self.held_bytes += u64::from(bytes);
        }
        self.held.insert((next_at, key, bytes));
        while self.held_bytes > self.bytes {
            let (_, _, bytes) = self.held.pop_last().expect("it has bytes");
            self.held_bytes -= u64::from(bytes);
        }
        is_held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hit_ratio::requests::Workload;

    /// Hits of each policy, with values of one length.
    fn hits(bytes: u64, count: usize) -> Vec<usize> {
        let requests = Workload::Steady.requests().expect("generated");
        let simulate = |(_, make): &(_, Make)| {
            let mut policy = make(bytes, requests.key_count);
            let of_one_length =
                requests.all[..count].iter().map(|&request| Request { bytes: 1000, ..request });
            of_one_length.filter(|&request| policy.request(request)).count()
        };
        POLICIES.iter().map(simulate).collect()
    }

    #[test]
    fn every_policy_hits_whatever_is_held() {
        let hits = hits(1 << 40, 50_000);
        assert!(hits[0] > 10_000 && hits.iter().all(|&count| count == hits[0]), "{hits:?}");
    }

    #[test]
    fn none_hits_more_often_than_one_that_knows_the_future() {
        let hits = hits(2_000_000, 50_000);
        let (belady, others) = hits.split_last().expect("six");
        assert!(others.iter().all(|count| count < belady && *count > belady / 2), "{hits:?}");
    }
}
