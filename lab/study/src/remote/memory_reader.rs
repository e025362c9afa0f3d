//! The program of `kv-neighbour` on a study server: a thread that reads memory beside the targets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use load::disturbance::{Loss, Watch};

use super::limits::{TIME_MAX, memory_is_free};
use super::measuring::Measuring;
use super::protocol::StartMemoryReader;
use crate::memory_load::{MEMORY_BYTES, MemoryLoad};

/// Bytes per second, and the loss to other load.
pub(super) type Read = (f64, Option<Loss>);

/// The memory, unless there is some already.
pub(super) fn memory(kept: &mut Option<Arc<MemoryLoad>>) -> Result<Arc<MemoryLoad>, String> {
    if let Some(memory) = kept {
        return Ok(Arc::clone(memory));
    }
    memory_is_free("a program asks", MEMORY_BYTES as u64)?;
    Ok(Arc::clone(kept.insert(Arc::new(MemoryLoad::new(MEMORY_BYTES)))))
}

/// Starts to read on this core.
pub(super) fn start(
    StartMemoryReader { access, warm_up, measure }: StartMemoryReader,
    memory: Arc<MemoryLoad>,
    core: usize,
) -> Result<Measuring<Read>, String> {
    if warm_up.saturating_add(measure) > TIME_MAX {
        return Err(format!("a program reads memory for {} s at most", TIME_MAX.as_secs()));
    }
    Measuring::start("the program that reads memory", "nvlane-study", move |stops| {
        linux::pin(core).map_err(|error| format!("core {core}: {error}"))?;
        let watch = Watch::thread();
        let is_stopped = || stops.load(Ordering::Relaxed);
        let read = memory.run(access, (warm_up, measure), &is_stopped);
        let bytes_per_s = read.map_err(|error| error.to_string())?;
        Ok((bytes_per_s, watch.loss()))
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use linux::CoreList;

    use super::*;
    use crate::memory_load::Access;

    fn start_for(measure: Duration) -> Result<Measuring<Read>, String> {
        let core = CoreList::allowed().unwrap().cores()[0];
        let asked = StartMemoryReader { access: Access::Sequential, warm_up: Duration::ZERO, measure };
        start(asked, Arc::new(MemoryLoad::new(4 << 20)), core)
    }

    #[test]
    fn a_program_reads_for_its_time_and_is_stopped_before_it_is_over() {
        let (bytes_per_s, _) = start_for(Duration::from_millis(5)).unwrap().end().unwrap();
        assert!(bytes_per_s > 1e6, "{bytes_per_s}");
        let before = Instant::now();
        drop(start_for(Duration::from_secs(500)).unwrap());
        assert!(before.elapsed() < Duration::from_secs(60));
        assert!(start_for(Duration::from_secs(601)).unwrap_err().contains("600 s at most"));
    }
}
