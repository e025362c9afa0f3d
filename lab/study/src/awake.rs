//! Threads that keep cores from halting while both sides of a measurement spin.
//!
//! A virtual processor that halts may continue on another core of the physical machine. So the time of a cache line between
//! two virtual processors changes several times a second, and with it the throughput of every program on them. A thread
//! of idle priority (`SCHED_IDLE`) on each core leaves the core to every other thread at once, and keeps it from halting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::bench::Cores;
use crate::error::{Doing, Error};

/// Both cores of a measurement, awake until this value is dropped.
#[derive(Debug)]
pub(crate) struct Awake {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Starts the threads, and returns when they have their cores and their priority.
    pub(crate) fn start(cores: Cores) -> Result<Self, Error> {
        let mut awake = Self { ends: Arc::default(), threads: Vec::new() };
        for core in [cores.host, cores.target] {
            let (tells, told) = std::sync::mpsc::channel();
            let ends = Arc::clone(&awake.ends);
            let spin = move || {
                let placed = linux::pin(core).and_then(|()| linux::step_back());
                let is_placed = placed.is_ok();
                // The other end waits for this message.
                let _ = tells.send(placed);
                while is_placed && !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            let thread = std::thread::Builder::new().name("awake".into()).spawn(spin);
            awake.threads.push(thread.doing("start a thread")?);
            let placed = told.recv().expect("the thread sends before it ends");
            placed.doing("place a thread")?;
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use linux::CoreList;

    use super::*;

    /// Processor time of the machine's core that was idle, ticks.
    fn idle_ticks(core: usize) -> u64 {
        let text = std::fs::read_to_string("/proc/stat").unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("cpu{core} "))).unwrap();
        line.split_ascii_whitespace().nth(4).unwrap().parse().unwrap()
    }

    #[test]
    fn a_core_kept_awake_has_no_idle_time_until_the_end() {
        let core = CoreList::allowed().unwrap().cores()[0];
        let awake = Awake::start(Cores { host: core, target: core }).unwrap();
        let before = idle_ticks(core);
        std::thread::sleep(Duration::from_millis(300));
        // The tick that was under way.
        assert!(idle_ticks(core) <= before + 2);
        drop(awake);
    }

    #[test]
    fn other_threads_get_the_core_at_once() {
        let core = CoreList::allowed().unwrap().cores()[0];
        let _awake = Awake::start(Cores { host: core, target: core }).unwrap();
        let late = std::thread::spawn(move || {
            linux::pin(core).unwrap();
            let late = (0..50).map(|_| {
                let began = Instant::now();
                std::thread::sleep(Duration::from_millis(1));
                began.elapsed()
            });
            late.min().unwrap()
        });
        assert!(late.join().unwrap() < Duration::from_millis(3));
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error() {
        assert!(Awake::start(Cores { host: 100_000, target: 0 }).is_err());
    }
}
