//! The program of `kv-neighbour` on a study server: a thread that reads memory beside the targets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use load::disturbance::Watch;
use load::workload::format_bytes;

use super::protocol::{Reply, StartMemoryReader};
use crate::memory_load::{MEMORY_BYTES, MemoryLoad};
use crate::process::available_bytes;

/// Warm-up and measurement together.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Time for a thread whose measurement is over to end.
const END_TIME: Duration = Duration::from_secs(10);

/// A thread that reads. It ends with this value.
#[derive(Debug)]
pub(super) struct MemoryReader {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Reply, String>>>,
}

/// The memory, unless there is some already.
///
/// # Errors
/// Too little is free.
pub(super) fn memory(kept: &mut Option<Arc<MemoryLoad>>) -> Result<Arc<MemoryLoad>, String> {
    if let Some(memory) = kept {
        return Ok(Arc::clone(memory));
    }
    let free_bytes = available_bytes().map_err(|error| error.to_string())?;
    if MEMORY_BYTES as u64 > free_bytes {
        return Err(format!(
            "a program asks for {} of memory, and {} MiB are free",
            format_bytes(MEMORY_BYTES as u64),
            free_bytes >> 20
        ));
    }
    Ok(Arc::clone(kept.insert(Arc::new(MemoryLoad::new(MEMORY_BYTES)))))
}

impl MemoryReader {
    /// Starts to read on this core.
    ///
    /// # Errors
    /// It would read for too long, or there is no thread.
    pub(super) fn start(
        start: &StartMemoryReader,
        memory: Arc<MemoryLoad>,
        core: usize,
    ) -> Result<Self, String> {
        let [warm_up, measure] = [start.warm_up_us, start.measure_us].map(Duration::from_micros);
        if warm_up.saturating_add(measure) > TIME_MAX {
            return Err(format!("a program reads memory for {} s at most", TIME_MAX.as_secs()));
        }
        let stops = Arc::new(AtomicBool::new(false));
        let (access, is_stopped) = (start.access, Arc::clone(&stops));
        let work = move || {
            reactor::pin(core).map_err(|error| format!("core {core}: {error}"))?;
            let watch = Watch::thread();
            let is_stopped = || is_stopped.load(Ordering::Relaxed);
            let read = memory.run(access, (warm_up, measure), &is_stopped);
            let bytes_per_s = read.map_err(|error| error.to_string())?;
            Ok(Reply::MemoryRead { bytes_per_s, loss: watch.loss() })
        };
        let thread = std::thread::Builder::new().name("nvlane-study".into()).spawn(work);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { stops, thread: Some(thread) })
    }

    /// The outcome of a measurement whose time is over.
    ///
    /// # Errors
    /// It is not over, or failed.
    pub(super) fn end(mut self) -> Result<Reply, String> {
        let thread = self.thread.take().ok_or("it has ended")?;
        let until = Instant::now() + END_TIME;
        while !thread.is_finished() {
            if Instant::now() >= until {
                self.thread = Some(thread);
                return Err("the program still reads".to_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        thread.join().map_err(|_| "the program panicked".to_owned())?
    }
}

impl Drop for MemoryReader {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use reactor::CoreList;

    use super::*;
    use crate::memory_load::Access;

    fn start(measure: Duration) -> Result<MemoryReader, String> {
        let core = CoreList::allowed().unwrap().cores()[0];
        let measure_us = u64::try_from(measure.as_micros()).unwrap();
        let start = StartMemoryReader { access: Access::Sequential, warm_up_us: 0, measure_us };
        MemoryReader::start(&start, Arc::new(MemoryLoad::new(4 << 20)), core)
    }

    #[test]
    fn a_program_reads_for_its_time_and_is_stopped_before_it_is_over() {
        let Reply::MemoryRead { bytes_per_s, .. } = start(Duration::from_millis(5)).unwrap().end().unwrap()
        else {
            panic!("another reply");
        };
        assert!(bytes_per_s > 1e6, "{bytes_per_s}");
        let before = Instant::now();
        drop(start(Duration::from_secs(500)).unwrap());
        assert!(before.elapsed() < Duration::from_secs(60));
        assert!(start(Duration::from_secs(601)).unwrap_err().contains("600 s at most"));
    }
}
