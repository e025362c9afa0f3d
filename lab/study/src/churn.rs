//! A full partition of this process in which pairs are deleted and others stored: the cost of taking and freeing
//! memory, and the use of the memory.

use std::time::Duration;

use kv::{Attributes, Condition, Counters, Eviction, ITEM_HEADER_BYTES, Processor, Settings, Stored};
use load::key_value::key;
use load::random::Prng;
use rustix::time::{ClockId, clock_gettime};

use crate::error::{Doing, Error};

/// Length of [`key`].
const KEY_BYTES: usize = 16;

/// Pairs deleted before the others are replaced, percent: deletes and stores then find a partition that is nearly full.
const FREED_PERCENT: usize = 10;

/// Stores whose processor time is read together, after the deletes that make room for them.
const STEP_COUNT: usize = 64;

/// Lengths of values: from the first to the second, each as often as the others.
pub(crate) type Lengths = (usize, usize);

/// Where the memory of a full partition is, percent of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shares {
    /// Keys and values.
    pub(crate) pairs: f64,
    /// Headers of items.
    pub(crate) headers: f64,
    /// Ends of blocks beyond the pair, and overflow lines of the index.
    pub(crate) rounding: f64,
    /// Buckets of the index.
    pub(crate) index: f64,
    /// Records of the regions, ends of regions, regions that are reserved, and memory freed between pairs.
    pub(crate) rest: f64,
}

/// The cost of replacing the pairs of a partition, means over operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Churned {
    pub(crate) store_ns: f64,
    pub(crate) delete_ns: f64,
    /// Pairs moved so that a region became free.
    pub(crate) moved_per_store: f64,
    /// Stores that had a region emptied, percent.
    pub(crate) emptied_percent: f64,
    /// Of the partition that refused a pair.
    pub(crate) shares: Shares,
}

/// Fills a partition of `memory_bytes` with values of the `old` lengths until it refuses one, and then replaces random
/// pairs by pairs with values of the `new` lengths, as many bytes as the memory has. If both are the same, everything was replaced once before that.
pub(crate) fn churn(
    memory_bytes: usize,
    old: Lengths,
    new: Lengths,
    seed: u64,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Churned, Error> {
    let mut partition = Churn::new(memory_bytes, old.1.max(new.1), seed)?;
    while partition.store(old) {}
    let shares = partition.shares();
    for _ in 0..partition.live.len() * FREED_PERCENT / 100 {
        partition.delete_one();
    }
    if old == new {
        partition.replace(new, is_stopped)?;
    }
    let before = partition.processor.counters();
    let times = partition.replace(new, is_stopped)?;
    let after = partition.processor.counters();
    let of = |count: fn(&Counters) -> u64| quotient(count(&after) - count(&before), times.store_count);
    Ok(Churned {
        store_ns: quotient(nanoseconds(times.store), times.store_count),
        delete_ns: quotient(nanoseconds(times.delete), times.delete_count),
        moved_per_store: of(|counters| counters.moved_count),
        emptied_percent: 100.0 * of(|counters| counters.reclaimed_count),
        shares,
    })
}

fn quotient(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Processor time of this thread, which others do not lengthen by taking its core.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Debug, Default)]
struct Times {
    store: Duration,
    delete: Duration,
    store_count: u64,
    delete_count: u64,
}

/// A partition, and the pairs in it.
struct Churn {
    processor: Processor,
    random: Prng,
    /// Number and value length of each pair.
    live: Vec<(u64, usize)>,
    next: u64,
    value: Vec<u8>,
}

impl Churn {
    fn new(memory_bytes: usize, value_bytes_max: usize, seed: u64) -> Result<Self, Error> {
        let settings = Settings { memory_bytes, eviction: Eviction::None, seed, ..Settings::default() };
        let processor = Processor::new(settings).doing("memory of a partition")?;
        let value = vec![7; value_bytes_max];
        Ok(Self { processor, random: Prng::new(seed), live: Vec::new(), next: 0, value })
    }

    fn draw(&mut self, (least, most): Lengths) -> usize {
        let choices = (most - least + 1) as u64;
        least + usize::try_from(self.random.below(choices)).unwrap_or(0)
    }

    /// Stores a new pair with a value of one of these lengths. `false` if it is refused.
    fn store(&mut self, lengths: Lengths) -> bool {
        let length = self.draw(lengths);
        self.store_one(length)
    }

    fn store_one(&mut self, length: usize) -> bool {
        let key = key(self.next);
        let hash = self.processor.hash(key.as_bytes());
        let value = &self.value[..length];
        let stored =
            self.processor.store(hash, key.as_bytes(), value, Attributes::default(), Condition::Always);
        if stored == Stored::Done {
            self.live.push((self.next, length));
            self.next += 1;
        }
        stored == Stored::Done
    }

    /// Deletes a random pair. Returns the bytes of its value; `None` if there is none.
    fn delete_one(&mut self) -> Option<usize> {
        let at = usize::try_from(self.random.below(self.live.len() as u64)).unwrap_or(0);
        if self.live.is_empty() {
            return None;
        }
        let (number, length) = self.live.swap_remove(at);
        let key = key(number);
        let hash = self.processor.hash(key.as_bytes());
        self.processor.delete(hash, key.as_bytes()).then_some(length)
    }

    /// Replaces random pairs by others of these lengths, as many bytes as the memory has.
    fn replace(&mut self, lengths: Lengths, is_stopped: &dyn Fn() -> bool) -> Result<Times, Error> {
        let cost = |length: usize| ITEM_HEADER_BYTES + KEY_BYTES + length;
        let mut times = Times::default();
        let (mut stored_bytes, mut freed_bytes) = (0, 0);
        while stored_bytes < self.processor.settings().memory_bytes {
            if is_stopped() {
                return Err(Error::Stopped);
            }
            let lengths: [usize; STEP_COUNT] = std::array::from_fn(|_| self.draw(lengths));
            let wanted_bytes: usize = lengths.iter().map(|&length| cost(length)).sum();
            stored_bytes += wanted_bytes;
            let start = processor_time();
            while freed_bytes < wanted_bytes {
                let Some(length) = self.delete_one() else { break };
                freed_bytes += cost(length);
                times.delete_count += 1;
            }
            freed_bytes = freed_bytes.saturating_sub(wanted_bytes);
            let deleted = processor_time();
            for length in lengths {
                // Shorter pairs need more of the index than those that were deleted for them.
                while !self.store_one(length) {
                    let refused = || Error::Load("an empty partition refused a pair".into());
                    self.delete_one().ok_or_else(refused)?;
                }
            }
            times.delete += deleted - start;
            times.store += processor_time() - deleted;
            times.store_count += STEP_COUNT as u64;
        }
        Ok(times)
    }

    fn shares(&self) -> Shares {
        let counters = self.processor.counters();
        let [taken, index] = [self.processor.taken_bytes(), self.processor.index_bytes()];
        let items = counters.pair_count - counters.inline_count;
        let headers = items * ITEM_HEADER_BYTES as u64;
        let beyond = (taken - index) as u64;
        let memory_bytes = self.processor.settings().memory_bytes;
        let percent = |bytes: u64| 100.0 * quotient(bytes, memory_bytes as u64);
        Shares {
            pairs: percent(counters.pair_bytes),
            headers: percent(headers),
            rounding: percent(beyond.saturating_sub(headers + counters.pair_bytes)),
            index: percent(index as u64),
            rest: percent(memory_bytes.saturating_sub(taken) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn churned(old: Lengths, new: Lengths) -> Churned {
        churn(4 << 20, old, new, 1, &|| false).unwrap()
    }

    #[test]
    fn memory_is_divided_without_a_rest_that_nobody_has() {
        let Churned { shares, .. } = churned((32, 32), (32, 32));
        let sum = shares.pairs + shares.headers + shares.rounding + shares.index + shares.rest;
        assert!((sum - 100.0).abs() < 0.01, "{shares:?}");
        // 16 + 16 + 32 bytes fill a line: only the overflow lines of the index are left to rounding.
        assert!(shares.rounding < 1.5 && (60.0..70.0).contains(&shares.pairs), "{shares:?}");
        // 16 + 16 + 33 bytes take three units of 32, and a third of them is lost.
        let wide = churned((33, 33), (33, 33)).shares;
        assert!((20.0..35.0).contains(&wide.rounding), "{wide:?}");
    }

    #[test]
    fn other_sizes_find_the_memory_of_those_that_were_deleted() {
        for (old, new) in [((32, 32), (500, 500)), ((500, 500), (32, 32)), ((8, 1000), (8, 1000))] {
            let Churned { store_ns, delete_ns, moved_per_store, emptied_percent, .. } = churned(old, new);
            assert!(store_ns > 0.0 && delete_ns > 0.0);
            assert!(moved_per_store > 0.0 && emptied_percent > 0.0, "{old:?} {new:?}");
        }
    }

    #[test]
    fn a_study_that_is_stopped_replaces_nothing() {
        assert!(matches!(churn(4 << 20, (32, 32), (32, 32), 1, &|| true), Err(Error::Stopped)));
    }
}
