//! GETs of a partition of this process, without a network: the operations of a target's processor alone.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kv::{Attributes, Condition, Eviction, KeyHash, Processor, Settings, Stored};
use load::key_value::key;
use load::keys::{Distribution, Keys};
use load::random::Prng;

use crate::error::{Doing, Error};

/// Keys that are looked up together, as in a batch of commands.
const BATCH_COUNT: usize = 64;

/// A partition with pairs of 16 and 32 bytes.
pub(crate) struct Lookups {
    processor: Processor,
    pair_count: u64,
    random: Prng,
}

impl std::fmt::Debug for Lookups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookups").field("pair_count", &self.pair_count).finish_non_exhaustive()
    }
}

impl Lookups {
    /// A partition with this number of pairs, in at most as much memory.
    pub(crate) fn new(pair_count: u64, memory_bytes: usize) -> Result<Self, Error> {
        let settings = Settings { memory_bytes, eviction: Eviction::None, seed: 1, ..Settings::default() };
        let mut processor = Processor::new(settings).doing("memory of a partition")?;
        for number in 0..pair_count {
            let key = key(number);
            let hash = processor.hash(key.as_bytes());
            let stored =
                processor.store(hash, key.as_bytes(), &[7; 32], Attributes::default(), Condition::Always);
            if stored != Stored::Done {
                return Err(Error::Load(format!("the memory of a partition ends after {number} pairs")));
            }
        }
        Ok(Self { processor, pair_count, random: Prng::new(1) })
    }

    /// Looks keys up for some time, prefetching the lines of a batch or not. Returns the time of a look-up, ns: from the key
    /// to the value, without drawing keys.
    pub(crate) fn run(
        &mut self,
        distribution: Distribution,
        prefetches: bool,
        (warm_up, measure): (Duration, Duration),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<f64, Error> {
        let keys = Keys::new(distribution, self.pair_count, 0);
        self.run_until(&keys, prefetches, Instant::now() + warm_up, is_stopped)?;
        self.run_until(&keys, prefetches, Instant::now() + measure, is_stopped)
    }

    fn run_until(
        &mut self,
        keys: &Keys,
        prefetches: bool,
        end: Instant,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<f64, Error> {
        let (mut count, mut time) = (0u32, Duration::ZERO);
        loop {
            let batch: [_; BATCH_COUNT] = std::array::from_fn(|_| key(keys.draw(&mut self.random)));
            let start = Instant::now();
            let hashes: [KeyHash; BATCH_COUNT] =
                std::array::from_fn(|at| self.processor.hash(batch[at].as_bytes()));
            if prefetches {
                self.processor.prefetch_all(&hashes);
            }
            for (key, &hash) in batch.iter().zip(&hashes) {
                let place = self.processor.find(hash, key.as_bytes());
                let read = place.and_then(|place| self.processor.read_whole(place));
                let Some((_, value)) = read else {
                    return Err(Error::Load("a stored key was not found".into()));
                };
                black_box(value.iter().fold(0u8, |sum, byte| sum ^ byte));
            }
            let now = Instant::now();
            time += now - start;
            count = count.saturating_add(u32::try_from(BATCH_COUNT).unwrap_or(1));
            if is_stopped() {
                return Err(Error::Stopped);
            }
            if now >= end {
                return Ok(time.as_secs_f64() * 1e9 / f64::from(count));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(5));

    #[test]
    fn every_key_is_found_by_either_way() {
        let mut lookups = Lookups::new(10_000, 4 << 20).unwrap();
        for distribution in [Distribution::Uniform, Distribution::Zipf { theta: 0.99 }] {
            for prefetches in [true, false] {
                let ns = lookups.run(distribution, prefetches, SHORT, &|| false).unwrap();
                assert!(ns > 0.0 && ns.is_finite());
            }
        }
        assert!(matches!(lookups.run(Distribution::Uniform, true, SHORT, &|| true), Err(Error::Stopped)));
    }

    #[test]
    fn pairs_that_do_not_fit_are_an_error() {
        let error = Lookups::new(1 << 20, 4 << 20).unwrap_err();
        assert!(error.to_string().contains("the memory of a partition ends after"), "{error}");
    }
}
