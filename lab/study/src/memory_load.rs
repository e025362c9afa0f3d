//! A program that is bound by memory: random and sequential reads of a block of memory beyond the caches.

use std::hint::black_box;
use std::time::{Duration, Instant};

use load::random::mix;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Memory that is read, beyond the last-level caches of one program's share.
pub(crate) const MEMORY_BYTES: usize = 512 << 20;

/// Bytes that a random read brings from memory.
const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();

/// Lines that are read between two looks at the clock.
const STEP_LINES: usize = 1 << 14;

/// How memory is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Access {
    /// A line here, a line there, without waiting for one before the next.
    Random,
    /// One line after the other.
    Sequential,
}

/// A block of memory, every page of which has been written.
pub(crate) struct MemoryLoad(Vec<u64>);

impl std::fmt::Debug for MemoryLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLoad").field("words", &self.0.len()).finish()
    }
}

impl MemoryLoad {
    /// A block of this size, a power of two of at least a step.
    pub(crate) fn new(bytes: usize) -> Self {
        Self((0..bytes as u64 / 8).collect())
    }

    /// Reads for some time. Returns the bytes per second of all lines that were read, after a warm-up.
    pub(crate) fn run(
        &self,
        access: Access,
        (warm_up, measure): (Duration, Duration),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<f64, Error> {
        let mut from = self.read_until(access, 0, Instant::now() + warm_up, is_stopped)?.0;
        let start = Instant::now();
        let (end_step, steps) = self.read_until(access, from, start + measure, is_stopped)?;
        from = end_step;
        black_box(from);
        let bytes = (steps * STEP_LINES * LINE_BYTES) as f64;
        Ok(bytes / start.elapsed().as_secs_f64().max(1e-9))
    }

    /// Reads from a step on. Returns the next step, and the number of steps done.
    fn read_until(
        &self,
        access: Access,
        first: usize,
        end: Instant,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(usize, usize), Error> {
        let mut step = first;
        loop {
            black_box(self.read(access, step));
            step += 1;
            if is_stopped() {
                return Err(Error::Stopped);
            }
            if Instant::now() >= end {
                return Ok((step, step - first));
            }
        }
    }

    /// Reads the lines of one step.
    fn read(&self, access: Access, step: usize) -> u64 {
        let words = &self.0[..];
        match access {
            Access::Random => {
                let lines = words.len() / LINE_WORDS;
                #[allow(clippy::cast_possible_truncation)] // Any bits will do.
                let line = |at: usize| mix((step * STEP_LINES + at) as u64) as usize & (lines - 1);
                (0..STEP_LINES).map(|at| words[line(at) * LINE_WORDS]).fold(0, u64::wrapping_add)
            }
            Access::Sequential => {
                let step_words = STEP_LINES * LINE_WORDS;
                let at = step % (words.len() / step_words) * step_words;
                words[at..at + step_words].iter().copied().fold(0, u64::wrapping_add)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 4 << 20;

    #[test]
    fn sequential_steps_read_every_word_once() {
        let memory = MemoryLoad::new(BYTES);
        let steps = BYTES / (STEP_LINES * LINE_BYTES);
        let sum = (0..steps).map(|step| memory.read(Access::Sequential, step)).fold(0, u64::wrapping_add);
        let words = BYTES as u64 / 8;
        assert_eq!(sum, words * (words - 1) / 2);
        assert_eq!(memory.read(Access::Sequential, 0), memory.read(Access::Sequential, steps));
    }

    #[test]
    fn random_steps_read_other_lines_each_time() {
        let memory = MemoryLoad::new(BYTES);
        assert_ne!(memory.read(Access::Random, 0), memory.read(Access::Random, 1));
    }

    #[test]
    fn a_program_that_reads_has_a_rate_until_it_is_stopped() {
        let memory = MemoryLoad::new(BYTES);
        let times = (Duration::ZERO, Duration::from_millis(5));
        for access in [Access::Random, Access::Sequential] {
            let rate = memory.run(access, times, &|| false).unwrap();
            assert!(rate > 1e6 && rate.is_finite(), "{rate}");
            assert!(matches!(memory.run(access, times, &|| true), Err(Error::Stopped)));
        }
    }
}
