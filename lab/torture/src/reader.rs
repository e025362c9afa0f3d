//! A lane that reads random blocks, and the latency of each read.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use host::{Completion, Lane, Namespace};
use load::random::Prng;

/// Time limit for a read.
const PATIENCE: Duration = Duration::from_secs(20);

const BLOCK_BYTES: usize = 4096;

/// A lane that reads random blocks.
pub(crate) struct Reader {
    lane: Lane<Vec<u8>>,
    random: Prng,
    free: Vec<Vec<u8>>,
    ended: Vec<Completion<Vec<u8>>>,
    /// Epoch of the timestamps that reads carry.
    epoch: Instant,
}

impl Reader {
    pub(crate) fn new(lane: Lane<Vec<u8>>, depth: usize) -> Self {
        let free = (0..depth).map(|_| vec![0; BLOCK_BYTES]).collect();
        Self { lane, random: Prng::new(1), free, ended: Vec::new(), epoch: Instant::now() }
    }

    /// Number of reads that could be submitted.
    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Submits a read for every free buffer.
    pub(crate) fn submit_all(&mut self, namespace: &Namespace) -> Result<()> {
        let now_ns = ns(self.epoch.elapsed());
        for buffer in self.free.drain(..) {
            let read = namespace.read(self.random.below(namespace.block_count()), 1)?;
            self.lane.submit(read, Some(buffer), now_ns)?;
        }
        Ok(())
    }

    /// Waits for completions and reports the latency of each since its submission.
    pub(crate) fn take(&mut self, mut each: impl FnMut(Duration)) -> Result<()> {
        ensure!(self.lane.wait(&mut self.ended, PATIENCE) > 0, "no completion within {PATIENCE:?}");
        let now = self.epoch.elapsed();
        for end in self.ended.drain(..) {
            end.result.context("a read")?;
            each(now.saturating_sub(Duration::from_nanos(end.user)));
            self.free.push(end.buffer.unwrap_or_default());
        }
        Ok(())
    }
}

/// Nanoseconds of a duration.
pub(crate) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
