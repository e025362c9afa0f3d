//! A thread that prefaults a partition's memory: all of it, piece by piece, and chunks for long values ahead of their
//! use. First touches of memory are slow and would otherwise stall a reactor.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use kv::Processor;
use memory::{Chunk, Untouched};

/// Bytes prefaulted in one step, which bounds how long others wait.
const PIECE_BYTES: usize = 2 << 20;

/// Maximum number of chunks that wait to be touched.
const CHUNK_COUNT: usize = 16;

/// Interval of progress log lines.
const TELL: Duration = Duration::from_secs(10);

/// Starts the thread, which ends with the partition. It runs on cores of the calling thread's memory node.
pub(super) fn begin(processor: &mut Processor) -> io::Result<()> {
    let (sender, chunks) = sync_channel(CHUNK_COUNT);
    let untouched = processor.touch_ahead(move |chunk| sender.try_send(chunk).is_ok());
    thread::Builder::new().name("prefault".into()).spawn(move || {
        // Its placement affects only speed.
        let _ = linux::spread_over_node();
        run(untouched, &chunks);
    })?;
    Ok(())
}

fn run(mut untouched: Untouched, chunks: &Receiver<Chunk>) {
    let start = Instant::now();
    let mut told = start;
    let total_bytes = untouched.len();
    let result = loop {
        // Chunks are needed soon.
        match chunks.try_recv() {
            Ok(chunk) => {
                touch(chunk);
                continue;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        match untouched.populate(PIECE_BYTES) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
        if told.elapsed() >= TELL {
            told = Instant::now();
            let (done_mib, total_mib) = (untouched.populated() >> 20, total_bytes >> 20);
            tracing::info!(done_mib, total_mib, "prefaulting the memory of a key-value namespace");
        }
    };
    let (mib, ms) = (untouched.populated() >> 20, start.elapsed().as_millis());
    match result {
        Ok(()) => tracing::info!(mib, ms, "prefaulted the memory of a key-value namespace"),
        Err(error) => tracing::warn!(%error, mib, "cannot prefault the memory of a key-value namespace"),
    }
    // Memory not prefaulted here is faulted in at its first use.
    drop(untouched);
    loop {
        match chunks.recv_timeout(TELL) {
            Ok(chunk) => touch(chunk),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Returns to its partition.
fn touch(mut chunk: Chunk) {
    if let Err(error) = chunk.populate() {
        tracing::debug!(%error, "chunk not prefaulted: its pages are allocated on first use");
    }
}

#[cfg(test)]
mod tests {
    use kv::Settings;

    use super::*;

    const MEMORY_BYTES: usize = 128 << 20;

    /// Resident memory of this process, bytes.
    fn resident_bytes() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").expect("a process");
        let pages = text.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
        pages.expect("a number") * rustix::param::page_size()
    }

    #[test]
    fn memory_is_there_before_anything_is_stored() {
        let before = resident_bytes();
        let settings = Settings { memory_bytes: MEMORY_BYTES, ..Settings::default() };
        let mut processor = Processor::new(settings).expect("memory");
        begin(&mut processor).expect("a thread");
        let start = Instant::now();
        // Other tests come and go.
        while resident_bytes() < before + MEMORY_BYTES * 3 / 4 {
            assert!(start.elapsed() < Duration::from_secs(60), "{} bytes", resident_bytes() - before);
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(processor.take_chunks(4).map(|chunks| chunks.len()), Some(4));
    }
}
