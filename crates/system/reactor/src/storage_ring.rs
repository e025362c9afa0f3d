//! Storage operations of one thread that runs no reactor: a ring of its own, with registered buffers and file.
//!
//! Operations that were started are submitted by the next [`poll`](StorageRing::poll) or [`wait`](StorageRing::wait),
//! all in one call, which also takes in every completion that is there.

use std::io;
use std::time::{Duration, Instant};

use crate::event::{Event, Patience};
use crate::operation::{Completion, File, Operation, Token};
use crate::ring::RingEngine;
use crate::spin::{Pause, SpinBudget};
use crate::wait::Wait;
use memory::Pool;

/// A ring for storage operations of the thread that made it.
pub struct StorageRing {
    engine: RingEngine,
    events: Vec<Event>,
    spin: SpinBudget,
    outstanding: usize,
    counters: StorageRingCounters,
}

/// Counters of a [`StorageRing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageRingCounters {
    /// Operations that have completed.
    pub completion_count: u64,
    /// Calls of the kernel that submitted operations or took in completions.
    pub call_count: u64,
    /// Calls of these that slept.
    pub sleep_count: u64,
}

impl StorageRing {
    /// A ring for at most `limit` operations at once, with buffers of `pool`. A wait spins for at most `spin_ns_max`
    /// before it sleeps: 0 never spins, `u64::MAX` never sleeps.
    ///
    /// # Errors
    /// The kernel's error if it refuses a ring.
    pub fn new(pool: &Pool, limit: u32, spin_ns_max: u64) -> io::Result<Self> {
        Ok(Self {
            engine: RingEngine::with_limit(pool, limit)?,
            events: Vec::new(),
            spin: SpinBudget::new(spin_ns_max),
            outstanding: 0,
            counters: StorageRingCounters::default(),
        })
    }

    /// Registers the file of most operations, which the kernel then need not look up for each. Once per ring.
    ///
    /// # Errors
    /// The kernel's error if it refuses; operations work all the same.
    pub fn register_file(&mut self, file: &File) -> io::Result<()> {
        self.engine.register_file(file)
    }

    /// Whether operations have used registered buffers. If not, the limit of locked memory was reached.
    #[must_use]
    pub fn has_registered_buffers(&self) -> bool {
        self.engine.has_registered_buffers()
    }

    /// Starts an operation.
    ///
    /// # Errors
    /// The operation itself, if too many run already, or its file is a simulated one.
    #[inline]
    pub fn start(&mut self, token: Token, operation: Operation) -> Result<(), Operation> {
        self.engine.start(token, operation)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Operations started that have not completed.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> StorageRingCounters {
        self.counters
    }

    /// Submits the started operations, and calls `each` with every completion that is there.
    ///
    /// # Errors
    /// If the ring fails.
    pub fn poll(&mut self, each: &mut impl FnMut(Completion)) -> io::Result<()> {
        if self.engine.has_work() { self.collect(Patience::None, each) } else { Ok(()) }
    }

    /// As [`poll`](Self::poll), but waits for a completion, up to `timeout`.
    ///
    /// # Errors
    /// If the ring fails.
    pub fn wait(&mut self, timeout: Duration, each: &mut impl FnMut(Completion)) -> io::Result<()> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let before = self.counters.completion_count;
        let (began, mut wait) = (Instant::now(), Wait::new(0));
        let mut idle_ns = 0;
        loop {
            // A sleep submits in the same call.
            match wait.on_pause(self.spin.pause(idle_ns)) {
                Pause::Spin => {
                    std::hint::spin_loop();
                    self.poll(each)?;
                }
                Pause::Sleep { ns } => {
                    self.counters.sleep_count += 1;
                    self.collect(Patience::For(ns.min(timeout_ns - idle_ns)), each)?;
                }
            }
            idle_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if self.counters.completion_count > before {
                wait.on_work(idle_ns, &mut self.spin);
                return Ok(());
            }
            if idle_ns >= timeout_ns {
                return Ok(());
            }
        }
    }

    fn collect(&mut self, patience: Patience, each: &mut impl FnMut(Completion)) -> io::Result<()> {
        self.counters.call_count += 1;
        self.engine.collect(patience, &mut self.events)?;
        for event in self.events.drain(..) {
            if let Event::Completed(completion) = event {
                self.outstanding -= 1;
                self.counters.completion_count += 1;
                each(completion);
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for StorageRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StorageRing({} running, {:?})", self.outstanding, self.counters)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    const BYTES: usize = 4096;

    fn file(pages: u8) -> File {
        let file = tempfile::tempfile().unwrap();
        for page in 0..pages {
            rustix::io::pwrite(&file, &[page; BYTES], u64::from(page) * BYTES as u64).unwrap();
        }
        File::new(OwnedFd::from(file))
    }

    /// The bytes of each page that one ring reads, with and without registration of the file.
    #[test]
    fn each_operation_completes_once_whether_or_not_its_file_is_registered() {
        for (registers, spin_ns_max) in [(true, 0), (false, 0), (true, u64::MAX), (true, 50_000)] {
            let pool = Pool::new(1 << 20).unwrap();
            let Ok(mut ring) = StorageRing::new(&pool, 4, spin_ns_max) else {
                eprintln!("skipped: no io_uring here");
                return;
            };
            let (file, other) = (file(8), file(1));
            if registers {
                ring.register_file(&file).unwrap();
            }
            let read = |file: &File, page: u64| {
                let buffer = pool.take(BYTES).unwrap();
                Operation::Read { file: file.clone(), offset: page * BYTES as u64, buffer, skip: 0 }
            };
            let (mut next, mut seen) = (1, Vec::new());
            while seen.len() < 8 {
                while next < 8 && ring.outstanding() < 3 {
                    ring.start(next, read(&file, next)).unwrap();
                    next += 1;
                }
                if next == 8 {
                    // A file that is not the registered one is read as well.
                    ring.start(100, read(&other, 0)).unwrap();
                    next += 1;
                }
                ring.wait(Duration::from_secs(10), &mut |done: Completion| {
                    assert_eq!(done.result.unwrap(), BYTES);
                    let byte = if done.token == 100 { 0 } else { u8::try_from(done.token).unwrap() };
                    assert!(done.buffer.unwrap().iter().all(|&found| found == byte));
                    seen.push(done.token);
                })
                .unwrap();
            }
            seen.sort_unstable();
            assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7, 100]);
            assert_eq!((ring.outstanding(), ring.counters().completion_count), (0, 8));
            let sleep_count = ring.counters().sleep_count;
            assert!(spin_ns_max > 0 || sleep_count > 0, "it never spins");
            assert!(spin_ns_max < u64::MAX || sleep_count == 0, "it never sleeps");
        }
    }

    #[test]
    fn a_wait_ends_without_completions_and_the_limit_is_kept() {
        let pool = Pool::new(1 << 20).unwrap();
        let Ok(mut ring) = StorageRing::new(&pool, 1, 0) else { return };
        ring.wait(Duration::from_millis(1), &mut |_| panic!("nothing was started")).unwrap();
        let file = file(1);
        let sync = || Operation::Sync { file: file.clone() };
        ring.start(1, sync()).unwrap();
        assert!(ring.start(2, sync()).is_err(), "over the limit");
        let mut ended = 0;
        for _ in 0..6 {
            if ended == 0 {
                ring.wait(Duration::from_secs(10), &mut |_| ended += 1).unwrap();
            }
        }
        assert_eq!(ended, 1, "a flush does not end");
        ring.start(2, sync()).unwrap();
    }
}
