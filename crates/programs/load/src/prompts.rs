//! The load of a cache of language-model states: prompts whose beginnings are shared, in chunks of one to hundreds of MiB.
//!
//! ```text
//! prompt: draw a document ─▶ which of its chunks are there? ─▶ retrieve the leading ones ─▶ store all others
//! ```
//!
//! A document is what many prompts begin with, such as a system prompt or a file that is talked about. Some documents are
//! used more often than others. Behind its document each prompt has chunks of its own, which no other prompt has. An
//! engine asks for all chunks at once, loads the leading ones that exist, computes the rest and stores it; so does this
//! load, except that it computes nothing. Every chunk says which it is in each of its pages, and is checked when it was
//! retrieved.
//!
//! Where chunks are kept is a [`ChunkStore`]: targets of nvlane here, other servers where they are compared.

mod chunk;
mod report;

use std::time::{Duration, Instant};

use host::{Moved, ValueSpread, ValueTransfer};
use rustix::time::{ClockId, clock_gettime};

pub use chunk::{Chunk, ChunkEnd};
pub use report::PromptReport;

use crate::histogram::Histogram;
use crate::invalid::Invalid;
use crate::keys::{Distribution, Keys};
use crate::random::Prng;

/// Where chunks are kept.
pub trait ChunkStore {
    /// The number of chunks that exist before the first one that does not.
    ///
    /// # Errors
    /// The store cannot be asked.
    fn leading(&mut self, chunks: &[Chunk]) -> Result<usize, PromptError>;

    /// Retrieves chunks into their bytes, and sets the [end](Chunk::end) of each.
    ///
    /// # Errors
    /// The store cannot be asked.
    fn retrieve(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError>;

    /// Stores chunks, and sets the end of each.
    ///
    /// # Errors
    /// The store cannot be asked.
    fn store(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError>;
}

impl<S: ChunkStore + ?Sized> ChunkStore for &mut S {
    fn leading(&mut self, chunks: &[Chunk]) -> Result<usize, PromptError> {
        (**self).leading(chunks)
    }

    fn retrieve(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError> {
        (**self).retrieve(chunks)
    }

    fn store(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError> {
        (**self).store(chunks)
    }
}

/// Why a load ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The load is invalid.
    #[error(transparent)]
    Load(#[from] Invalid),
    /// The targets.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// The system.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// Another server.
    #[error("the server answered {0:?}")]
    Answer(String),
    /// It was stopped before the measurement began.
    #[error("stopped before the measurement began")]
    Stopped,
}

/// A load.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptLoad {
    /// Number of documents.
    pub documents: u64,
    /// How often each is used.
    pub distribution: Distribution,
    /// Chunks of a document.
    pub shared_chunks: u32,
    /// Chunks behind it that only one prompt has.
    pub own_chunks: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Whether the chunks of every document are stored first.
    pub fills: bool,
    /// Time under load before the measurement.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub runtime: Duration,
    /// Of all random choices.
    pub seed: u64,
    /// Distinguishes the prompts' own chunks from those of other runs with the same seed.
    pub run: u64,
}

impl Default for PromptLoad {
    fn default() -> Self {
        Self {
            documents: 16,
            distribution: Distribution::Zipf { theta: 0.99 },
            shared_chunks: 16,
            own_chunks: 4,
            chunk_bytes: 4 << 20,
            fills: true,
            warm_up: Duration::from_secs(1),
            runtime: Duration::from_secs(10),
            seed: 0,
            run: 0,
        }
    }
}

/// The longest prompt, bytes: the load has memory for one.
const PROMPT_BYTES_MAX: u64 = 16 << 30;

impl PromptLoad {
    /// Chunks of a prompt.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        self.shared_chunks.saturating_add(self.own_chunks)
    }

    /// Bytes of a prompt, all of which the load has in memory.
    #[must_use]
    pub fn prompt_bytes(&self) -> u64 {
        u64::from(self.chunk_count()) * u64::from(self.chunk_bytes)
    }

    /// Checks that this is a load.
    ///
    /// # Errors
    /// Which number makes none.
    pub fn check(&self) -> Result<(), Invalid> {
        for (what, value) in [
            ("the number of documents", self.documents),
            ("the number of shared chunks", self.shared_chunks.into()),
            ("the size of a chunk", self.chunk_bytes.into()),
        ] {
            if value == 0 {
                return Err(Invalid::Zero(what));
            }
        }
        let (value, limit) = (self.prompt_bytes(), PROMPT_BYTES_MAX);
        if value > limit {
            return Err(Invalid::Above { what: "the size of a prompt in bytes", value, limit });
        }
        Ok(())
    }
}

/// What became of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptEnd {
    /// From the beginning of the measurement to the end of the prompt, ns.
    pub at_ns: u64,
    /// Time of its three calls, ns.
    pub took_ns: u64,
    /// Shared chunks that were retrieved.
    pub hit_count: u32,
}

/// Results of a load.
#[derive(Clone, Debug, Default)]
pub struct PromptResult {
    /// Each prompt.
    pub prompts: Vec<PromptEnd>,
    /// Shared chunks of these prompts.
    pub shared_count: u64,
    /// Shared chunks that were retrieved.
    pub hit_count: u64,
    /// Chunks that existed when they were asked for, and were gone when they were to be retrieved.
    pub gone_count: u64,
    /// Chunks that were stored.
    pub stored_count: u64,
    /// Retrievals and stores of chunks that failed.
    pub failed_count: u64,
    /// Retrieved chunks with other bytes than the stored ones.
    pub mismatch_count: u64,
    /// Calls that ask for all chunks of a prompt, ns.
    pub exist: Histogram,
    /// Calls that retrieve chunks, ns.
    pub retrieve: Histogram,
    /// Calls that store chunks, ns.
    pub store: Histogram,
    /// Bytes of retrieved chunks.
    pub retrieved_bytes: u64,
    /// Bytes of stored chunks.
    pub stored_bytes: u64,
    /// Duration of the measurement.
    pub elapsed: Duration,
    /// Processor time of the load's thread in calls of the store, ns.
    pub generator_ns: u64,
}

impl PromptResult {
    /// Shared chunks that were retrieved, of all, percent.
    #[must_use]
    pub fn hit_percent(&self) -> f64 {
        self.hit_count as f64 * 100.0 / self.shared_count.max(1) as f64
    }

    /// Bytes per second while chunks are retrieved.
    #[must_use]
    pub fn retrieved_per_s(&self) -> f64 {
        per_second(self.retrieved_bytes, self.retrieve.sum())
    }

    /// Bytes per second while chunks are stored.
    #[must_use]
    pub fn stored_per_s(&self) -> f64 {
        per_second(self.stored_bytes, self.store.sum())
    }
}

fn per_second(bytes: u64, ns: u128) -> f64 {
    bytes as f64 * 1e9 / (ns.max(1) as f64)
}

/// Puts a load on a store, from this thread. `on_edge` is called as the measurement begins and as it ends, `stops` before
/// each prompt.
///
/// # Errors
/// The load is invalid, or the store cannot be asked. Chunks that cannot be retrieved or stored are counted.
pub fn run(
    store: &mut dyn ChunkStore,
    load: &PromptLoad,
    on_edge: &mut dyn FnMut(),
    stops: &mut dyn FnMut() -> bool,
) -> Result<PromptResult, PromptError> {
    load.check()?;
    let mut prompts = Prompts::new(load);
    if load.fills {
        let mut filled = PromptResult::default();
        for document in 0..load.documents {
            if stops() {
                return Err(PromptError::Stopped);
            }
            let shared = load.shared_chunks as usize;
            prompts.name(document);
            prompts.serve(store, shared, &mut filled)?;
        }
    }
    let begin = Instant::now();
    let mut warmed = PromptResult::default();
    while begin.elapsed() < load.warm_up {
        if stops() {
            return Err(PromptError::Stopped);
        }
        prompts.next(store, &mut warmed)?;
    }
    let mut result = PromptResult::default();
    on_edge();
    let begin = Instant::now();
    while begin.elapsed() < load.runtime && !stops() {
        let (took_ns, hit_count) = prompts.next(store, &mut result)?;
        let at_ns = ns(begin.elapsed());
        result.prompts.push(PromptEnd { at_ns, took_ns, hit_count });
    }
    result.elapsed = begin.elapsed();
    on_edge();
    Ok(result)
}

/// The prompts of a load, one after the other, and the memory of one.
struct Prompts<'a> {
    load: &'a PromptLoad,
    documents: Keys,
    prng: Prng,
    chunks: Vec<Chunk>,
    /// Number of the next prompt.
    number: u64,
}

impl<'a> Prompts<'a> {
    fn new(load: &'a PromptLoad) -> Self {
        let bytes = load.chunk_bytes as usize;
        Self {
            load,
            documents: Keys::new(load.distribution, load.documents, load.seed),
            prng: Prng::new(load.seed),
            chunks: (0..load.chunk_count()).map(|_| Chunk::new(bytes)).collect(),
            number: 0,
        }
    }

    /// Names the chunks of the next prompt that begins with this document.
    fn name(&mut self, document: u64) {
        let load = self.load;
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            let index = index as u64;
            if index < u64::from(load.shared_chunks) {
                chunk.name([load.seed, u64::from(load.chunk_bytes), document, index]);
            } else {
                chunk.name([load.seed ^ load.run, !u64::from(load.chunk_bytes), self.number, index]);
            }
        }
        self.number += 1;
    }

    /// The next prompt. Returns the time of its calls, ns, and how many of its shared chunks were retrieved.
    fn next(
        &mut self,
        store: &mut dyn ChunkStore,
        result: &mut PromptResult,
    ) -> Result<(u64, u32), PromptError> {
        let document = self.documents.draw(&mut self.prng);
        self.name(document);
        self.serve(store, self.chunks.len(), result)
    }

    /// Serves the first chunks of the current prompt.
    fn serve(
        &mut self,
        store: &mut dyn ChunkStore,
        count: usize,
        result: &mut PromptResult,
    ) -> Result<(u64, u32), PromptError> {
        let chunks = &mut self.chunks[..count];
        let chunk_bytes = u64::from(self.load.chunk_bytes);
        let mut took = Took::default();
        let leading = took.time(&mut result.exist, || store.leading(chunks))?.min(count);
        let mut hits = leading;
        if leading > 0 {
            let wanted = &mut chunks[..leading];
            wanted.iter_mut().for_each(Chunk::forget);
            took.time(&mut result.retrieve, || store.retrieve(wanted))?;
            hits = wanted.iter().position(|chunk| chunk.end != ChunkEnd::Moved).unwrap_or(leading);
            for chunk in &chunks[..leading] {
                match chunk.end {
                    ChunkEnd::Moved => {
                        result.retrieved_bytes += chunk_bytes;
                        result.mismatch_count += u64::from(!chunk.is_right());
                    }
                    ChunkEnd::Missing => result.gone_count += 1,
                    ChunkEnd::Failed => result.failed_count += 1,
                }
            }
        }
        let shared = self.load.shared_chunks;
        let hit_count = u32::try_from(hits).unwrap_or(u32::MAX).min(shared);
        result.shared_count += u64::from(shared);
        result.hit_count += u64::from(hit_count);
        let rest = &mut chunks[hits..];
        if !rest.is_empty() {
            rest.iter_mut().for_each(Chunk::fill);
            took.time(&mut result.store, || store.store(rest))?;
            let stored = rest.iter().filter(|chunk| chunk.end == ChunkEnd::Moved).count() as u64;
            result.stored_count += stored;
            result.failed_count += rest.len() as u64 - stored;
            result.stored_bytes += stored * chunk_bytes;
        }
        result.generator_ns += took.processor_ns;
        Ok((took.ns, hit_count))
    }
}

/// Time of the calls of a prompt.
#[derive(Default)]
struct Took {
    ns: u64,
    processor_ns: u64,
}

impl Took {
    /// Makes a call and records its time.
    fn time<T>(&mut self, into: &mut Histogram, call: impl FnOnce() -> T) -> T {
        let processor = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
        let used = processor();
        let began = Instant::now();
        let returned = call();
        let took_ns = ns(began.elapsed());
        self.ns += took_ns;
        self.processor_ns += ns(processor().saturating_sub(used));
        into.record(took_ns);
        returned
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl ChunkStore for ValueSpread<Vec<u8>> {
    fn leading(&mut self, chunks: &[Chunk]) -> Result<usize, PromptError> {
        let keys: Vec<_> = chunks.iter().map(|chunk| chunk.key.as_bytes()).collect();
        Ok(self.exist(&keys)?.leading_run())
    }

    fn retrieve(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError> {
        transfer(chunks, |transfers| Self::retrieve(self, transfers))
    }

    fn store(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError> {
        transfer(chunks, |transfers| Self::store(self, transfers, 0))
    }
}

/// Moves chunks, in the buffers that they have.
fn transfer(
    chunks: &mut [Chunk],
    run: impl FnOnce(&mut [ValueTransfer<'_, Vec<u8>>]) -> Result<(), host::Error>,
) -> Result<(), PromptError> {
    let (ran, ends) = {
        let transfers = chunks.iter_mut().map(|chunk| {
            let bytes = std::mem::take(&mut chunk.bytes);
            ValueTransfer::new(chunk.key.as_bytes(), vec![bytes])
        });
        let mut transfers: Vec<_> = transfers.collect();
        let ran = run(&mut transfers);
        let ends = transfers.into_iter().map(|transfer| (transfer.pieces, transfer.moved));
        (ran, ends.collect::<Vec<_>>())
    };
    for (chunk, (pieces, moved)) in chunks.iter_mut().zip(ends) {
        chunk.bytes = pieces.into_iter().next().expect("buffers are given back");
        chunk.end = match moved {
            Moved::Whole => ChunkEnd::Moved,
            Moved::Missing | Moved::OtherLength | Moved::Damaged => ChunkEnd::Missing,
            Moved::Pending | Moved::Failed(_) => ChunkEnd::Failed,
        };
    }
    ran.map_err(PromptError::from)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A store in memory that forgets the oldest chunks, and can be made to lie.
    #[derive(Default)]
    struct Memory {
        chunks: HashMap<String, Vec<u8>>,
        is_wrong: bool,
        fails: bool,
    }

    impl ChunkStore for Memory {
        fn leading(&mut self, chunks: &[Chunk]) -> Result<usize, PromptError> {
            Ok(chunks.iter().take_while(|chunk| self.chunks.contains_key(&chunk.key)).count())
        }

        fn retrieve(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError> {
            for chunk in chunks {
                chunk.bytes.clone_from(&self.chunks[&chunk.key]);
                chunk.bytes[0] ^= u8::from(self.is_wrong);
                chunk.end = ChunkEnd::Moved;
            }
            Ok(())
        }

        fn store(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError> {
            for chunk in chunks {
                chunk.end = if self.fails { ChunkEnd::Failed } else { ChunkEnd::Moved };
                if !self.fails {
                    self.chunks.insert(chunk.key.clone(), chunk.bytes.clone());
                }
            }
            Ok(())
        }
    }

    /// Runs this number of prompts.
    fn run_some(store: &mut Memory, load: &PromptLoad, count: usize) -> PromptResult {
        let mut prompts = Prompts::new(load);
        let mut result = PromptResult::default();
        for _ in 0..count {
            prompts.next(store, &mut result).expect("a store in memory");
        }
        result
    }

    fn small() -> PromptLoad {
        PromptLoad {
            documents: 3,
            chunk_bytes: 10_000,
            shared_chunks: 4,
            own_chunks: 2,
            ..PromptLoad::default()
        }
    }

    #[test]
    fn documents_are_stored_once_and_retrieved_by_every_later_prompt() {
        let mut store = Memory::default();
        let result = run_some(&mut store, &small(), 100);
        assert_eq!((result.shared_count, result.mismatch_count, result.failed_count), (400, 0, 0));
        assert_eq!(result.hit_count, 400 - 3 * 4, "the first prompt of each document computes it");
        assert_eq!(result.stored_count, 3 * 4 + 100 * 2);
        assert_eq!(result.retrieved_bytes, result.hit_count * 10_000);
        assert_eq!(store.chunks.len() as u64, result.stored_count, "every chunk has a key of its own");
        assert!(store.chunks.keys().all(|key| key.len() > 80 && key.len() < 120), "as LMCache's");
    }

    #[test]
    fn another_run_finds_the_documents_and_has_prompts_of_its_own() {
        let mut store = Memory::default();
        run_some(&mut store, &small(), 50);
        let again = run_some(&mut store, &PromptLoad { run: 1, ..small() }, 50);
        assert_eq!((again.hit_count, again.stored_count), (200, 100));
        let same = run_some(&mut store, &small(), 50);
        assert_eq!(same.stored_count, 0, "the same run finds all");
    }

    #[test]
    fn wrong_bytes_and_failures_are_counted() {
        let mut store = Memory::default();
        run_some(&mut store, &small(), 20);
        store.is_wrong = true;
        let result = run_some(&mut store, &PromptLoad { run: 1, ..small() }, 20);
        assert_eq!(result.mismatch_count, 80);
        store.fails = true;
        let result = run_some(&mut store, &PromptLoad { run: 2, ..small() }, 20);
        assert_eq!((result.failed_count, result.stored_count, result.stored_bytes), (40, 0, 0));
    }

    #[test]
    fn a_run_fills_warms_and_measures() {
        let mut store = Memory::default();
        let load =
            PromptLoad { warm_up: Duration::from_millis(1), runtime: Duration::from_millis(20), ..small() };
        let mut edges = 0;
        let result = run(&mut store, &load, &mut || edges += 1, &mut || false).expect("a store in memory");
        assert_eq!((edges, result.hit_percent()), (2, 100.0), "the documents were stored first");
        assert!(!result.prompts.is_empty() && result.retrieved_per_s() > 0.0 && result.stored_per_s() > 0.0);
        let stopped = run(&mut store, &load, &mut || (), &mut || true).unwrap_err();
        assert!(matches!(stopped, PromptError::Stopped));
    }

    #[test]
    fn what_makes_no_load_is_refused() {
        for (load, part) in [
            (PromptLoad { documents: 0, ..small() }, "documents must be at least 1"),
            (PromptLoad { chunk_bytes: 0, ..small() }, "size of a chunk must be at least 1"),
            (PromptLoad { shared_chunks: 0, ..small() }, "shared chunks must be at least 1"),
            (PromptLoad { shared_chunks: u32::MAX, ..small() }, "the size of a prompt in bytes is"),
        ] {
            let error = load.check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
