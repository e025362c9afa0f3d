//! A namespace in RAM: sparse, lost when the target ends.

use std::io;
use std::sync::Arc;

use memory::{Memory, MemoryAccess, PastEnd, Payload, Pool, STRIPE_BYTES};
use reactor::{Completion, DataMap};

use super::{done, ended};
use crate::namespace::{Backend, BlockStore, Geometry, Reply, Request, StoreError, StoreIo, Ticket};
use crate::open_error::{OpenError, check_size};

/// Its name in errors.
const NAME: &str = "the RAM namespace";

/// Pages deallocated in one step: some milliseconds if all were in use.
const RELEASED_BYTES: usize = 256 << 20;

/// Bytes overwritten with zeroes in one step.
const OVERWRITTEN_BYTES: usize = 16 << 20;

/// Bytes of which one step tells whether they were written to: a millisecond if all were.
const PROBED_BYTES: u64 = 256 << 20;

/// Settings of a namespace in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Its size, a multiple of the block size.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Whether several reactors will attach. With only one, reads are sent from the namespace's memory without a copy.
    pub is_shared: bool,
    /// Whether to request huge pages, which the kernel may decline.
    pub huge_pages: bool,
    /// Bytes of a page: of the running kernel, or a multiple to behave as on another one.
    pub page_bytes: usize,
}

/// A namespace in RAM.
pub struct MemoryStore {
    memory: Arc<Memory>,
    block_bytes: u32,
    is_read_only: bool,
}

/// One reactor's access.
struct MemoryBackend {
    access: MemoryAccess,
    block_bytes: u32,
    is_read_only: bool,
    /// Large ranges that are zeroed in steps, so that other requests get their turn.
    clearances: Vec<Clearance>,
    /// Searches for data in large ranges, and how far they have come.
    searches: Vec<(Ticket, Arc<DataMap>, u64)>,
}

/// The rest of a range to be zeroed.
#[derive(Clone, Copy)]
struct Clearance {
    ticket: Ticket,
    offset: usize,
    length: usize,
    release: bool,
}

impl MemoryStore {
    /// Creates a namespace of zeroes.
    ///
    /// # Errors
    /// [`OpenError::SizeNotBlocks`], or that there is not enough memory.
    pub fn new(settings: &MemorySettings) -> Result<Self, OpenError> {
        let &MemorySettings { bytes, block_bytes, is_read_only, is_shared, huge_pages, page_bytes } =
            settings;
        check_size(NAME, bytes, block_bytes)?;
        let refused = |source| OpenError::Memory { bytes, source };
        let length = usize::try_from(bytes).map_err(|_| refused(io::ErrorKind::OutOfMemory.into()))?;
        let memory = Memory::new(length, is_shared, huge_pages, page_bytes).map_err(refused)?;
        Ok(Self { memory, block_bytes, is_read_only })
    }
}

impl BlockStore for MemoryStore {
    fn geometry(&self) -> Geometry {
        geometry(self.memory.len(), self.memory.grain_bytes(), self.block_bytes, self.is_read_only)
    }

    fn attach(&self) -> io::Result<Box<dyn Backend>> {
        let access = self.memory.attach().ok_or_else(|| {
            io::Error::other("this RAM namespace was opened for one reactor, which is attached already")
        })?;
        let (block_bytes, is_read_only) = (self.block_bytes, self.is_read_only);
        Ok(Box::new(MemoryBackend {
            access,
            block_bytes,
            is_read_only,
            clearances: Vec::new(),
            searches: Vec::new(),
        }))
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        check_size(NAME, bytes, self.block_bytes).map_err(io::Error::other)?;
        self.memory.resize(usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?)
    }

    fn reopen(&self) -> io::Result<()> {
        Ok(())
    }
}

fn geometry(bytes: usize, grain_bytes: usize, block_bytes: u32, is_read_only: bool) -> Geometry {
    let grain_bytes = u32::try_from(grain_bytes).expect("a page or a huge page");
    Geometry {
        is_read_only,
        can_deallocate: !is_read_only,
        preferred_deallocate_blocks: (grain_bytes / block_bytes).max(1),
        ..Geometry::new(block_bytes, bytes as u64 / u64::from(block_bytes))
    }
}

fn place(offset: u64) -> Result<usize, StoreError> {
    usize::try_from(offset).map_err(|_| StoreError::Truncated)
}

/// The caller checked against a length that has changed.
fn truncated(_: PastEnd) -> StoreError {
    StoreError::Truncated
}

impl MemoryBackend {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StoreError> {
        self.access.copy_out(place(offset)?, into).map_err(truncated)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        if self.is_read_only {
            return Err(StoreError::ReadOnly);
        }
        self.access.copy_in(place(offset)?, from).map_err(truncated)
    }

    fn clearance(&self, ticket: Ticket, offset: u64, length: u64) -> Result<Clearance, StoreError> {
        if self.is_read_only {
            return Err(StoreError::ReadOnly);
        }
        Ok(Clearance { ticket, offset: place(offset)?, length: place(length)?, release: true })
    }

    /// Zeroes a part of the range; replies after the last part.
    fn clear(&mut self, io: &mut dyn StoreIo, rest: Clearance) {
        let Clearance { ticket, offset, length, release } = rest;
        let part = length.min(if release { RELEASED_BYTES } else { OVERWRITTEN_BYTES });
        match self.access.zero(offset, part, release) {
            Err(error) => io.reply(ticket, done(Err(truncated(error)))),
            Ok(()) if part == length => io.reply(ticket, done(Ok(()))),
            Ok(()) => {
                let (offset, length) = (offset + part, length - part);
                self.clearances.push(Clearance { ticket, offset, length, release });
                io.set_timer(io.now_ns(), ticket);
            }
        }
    }

    /// Finds data from byte `at` on, for a part of the range; replies after the last part.
    fn search(&mut self, io: &mut dyn StoreIo, ticket: Ticket, map: Arc<DataMap>, at: u64) {
        let range = map.range();
        let end = range.end.min(at.saturating_add(PROBED_BYTES));
        let mut has_room = true;
        let found = |part: std::ops::Range<usize>| {
            has_room = has_room && map.add(part.start as u64..part.end as u64);
        };
        let told = place(at).and_then(|start| {
            let length = place(end)?.saturating_sub(start);
            self.access.touched(start, length, found).map_err(truncated)
        });
        let result = match told {
            Ok(true) if has_room && end < range.end => {
                self.searches.push((ticket, map, end));
                return io.set_timer(io.now_ns(), ticket);
            }
            Ok(true) => Ok(()),
            Ok(false) => Err(StoreError::Unsupported),
            Err(error) => Err(error),
        };
        io.reply(ticket, done(result));
    }
}

impl Backend for MemoryBackend {
    fn geometry(&self) -> Geometry {
        geometry(self.access.len(), self.access.grain_bytes(), self.block_bytes, self.is_read_only)
    }

    fn read_now(
        &mut self,
        pool: Option<&Pool>,
        offset: u64,
        length: usize,
        needs_stable_copy: bool,
    ) -> Option<Result<Payload, StoreError>> {
        if !needs_stable_copy
            && let Ok(offset) = place(offset)
            && let Some(memory) = self.access.refer(offset, length)
        {
            return Some(Ok(Payload::Memory(memory)));
        }
        // Without a buffer the caller waits for one and starts a request.
        let mut buffer = pool?.take(length)?;
        Some(self.read(offset, &mut buffer).map(|()| Payload::Buffer(buffer)))
    }

    fn write_now(&mut self, offset: u64, data: &[u8], _: bool) -> Option<Result<(), StoreError>> {
        Some(self.write(offset, data))
    }

    fn compare_now(&mut self, offset: u64, data: &[u8]) -> Option<Result<bool, StoreError>> {
        Some(place(offset).and_then(|offset| self.access.equals(offset, data).map_err(truncated)))
    }

    fn start(&mut self, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        let clearance = match request {
            Request::Read { offset, mut buffer } => {
                let result = self.read(offset, &mut buffer);
                return io.reply(ticket, ended(result, buffer));
            }
            Request::Write { offset, buffer, .. } => {
                return io.reply(ticket, ended(self.write(offset, &buffer), buffer));
            }
            Request::Flush => return io.reply(ticket, done(Ok(()))),
            Request::FindData(map) => {
                let start = map.range().start;
                return self.search(io, ticket, map, start);
            }
            Request::Deallocate { offset, length } => self.clearance(ticket, offset, length),
            // Written pages need not stay allocated: deallocate whole pages, and overwrite the small rest.
            Request::WriteZeroes { offset, length, may_deallocate, .. } => {
                let release = may_deallocate || length >= STRIPE_BYTES as u64;
                self.clearance(ticket, offset, length).map(|whole| Clearance { release, ..whole })
            }
        };
        match clearance {
            Ok(whole) => self.clear(io, whole),
            Err(error) => io.reply(ticket, Reply { result: Err(error), buffer: None }),
        }
    }

    fn on_completion(&mut self, _: &mut dyn StoreIo, ticket: Ticket, _: Completion) {
        debug_assert!(false, "no operation was started for {ticket:?}");
    }

    fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
        if let Some(at) = self.clearances.iter().position(|rest| rest.ticket == ticket) {
            let rest = self.clearances.swap_remove(at);
            return self.clear(io, rest);
        }
        if let Some(at) = self.searches.iter().position(|(search, ..)| *search == ticket) {
            let (ticket, map, at) = self.searches.swap_remove(at);
            self.search(io, ticket, map, at);
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Lists of ranges.
mod tests {
    use super::*;
    use crate::testing::{Bench, Double, Media, Step, check_against_model, model_steps};
    use memory::page_bytes;
    use proptest::prelude::*;

    #[test]
    #[cfg_attr(miri, ignore = "no page map")]
    fn written_parts_are_found_in_steps_and_released_ones_are_not() {
        const GIB: u64 = 1 << 30;
        for is_shared in [false, true] {
            let store = MemoryStore::new(&settings(GIB, is_shared)).unwrap();
            let mut double = Double::attach(&store, &Media::new(0));
            if double.find_data(0..GIB) == Err(StoreError::Unsupported) {
                return eprintln!("skipped: no page map here");
            }
            assert_eq!(double.find_data(0..GIB), Ok(vec![]), "memory without pages");
            for at in [100 << 20, 700 << 20] {
                double.write(at, &[1; 512]).unwrap();
                let parts = double.find_data(0..GIB).unwrap();
                assert!(parts.iter().any(|part| part.contains(&at)), "{at}: {parts:?}");
                assert!(parts.iter().all(|part| part.end - part.start <= 64 << 20), "{parts:?}");
                assert_eq!(double.find_data(at + 512..at + 1024), Ok(vec![at + 512..at + 1024]), "a page");
            }
            // Read only: the pages of zeroes that the kernel gives do not matter, but may count.
            double.read(500 << 20, 512).unwrap();
            double.run(Step::Deallocate { offset: 0, length: GIB }).unwrap();
            assert_eq!(double.find_data(0..GIB), Ok(vec![]));
            assert_eq!(double.find_data(GIB - 512..GIB + 512), Err(StoreError::Truncated));
        }
    }

    fn settings(bytes: u64, is_shared: bool) -> MemorySettings {
        MemorySettings {
            bytes,
            block_bytes: 512,
            is_read_only: false,
            is_shared,
            huge_pages: false,
            page_bytes: page_bytes(),
        }
    }

    proptest! {
        #[test]
        fn a_namespace_in_ram_is_a_vector_of_bytes(is_shared: bool, steps in model_steps(600, true)) {
            let store = MemoryStore::new(&settings(600 * 512, is_shared)).unwrap();
            let mut double = Double::attach(&store, &Media::new(0));
            check_against_model(&store, &mut double, steps)?;
        }
    }

    #[test]
    fn only_blocks_that_may_be_written_can_be_deallocated() {
        for is_read_only in [false, true] {
            let store =
                MemoryStore::new(&MemorySettings { is_read_only, ..settings(1 << 20, false) }).unwrap();
            assert_eq!(store.geometry().can_deallocate, !is_read_only);
        }
    }

    #[test]
    fn large_ranges_are_zeroed_in_slices_and_others_get_their_turn() {
        let bytes = 3 * RELEASED_BYTES as u64;
        let store = MemoryStore::new(&settings(bytes, true)).unwrap();
        let mut double = Double::attach(&store, &Media::new(0));
        double.write(bytes - 512, &[7; 512]).unwrap();
        let whole = double.start(Step::Deallocate { offset: 0, length: bytes });
        assert!(!double.outcomes.contains_key(&whole), "it is not done yet");
        let between = double.start(Step::Read { offset: bytes - 512, length: 512 });
        assert_eq!(double.outcomes[&between], Ok(vec![7; 512]));
        double.settle();
        assert_eq!(double.outcomes[&whole], Ok(vec![]));
        assert_eq!(double.read(bytes - 512, 512), Ok(vec![0; 512]));
    }

    #[test]
    fn a_range_that_is_cut_off_while_it_is_zeroed_ends_truthfully() {
        let bytes = 3 * RELEASED_BYTES as u64;
        let store = MemoryStore::new(&settings(bytes, false)).unwrap();
        let mut double = Double::attach(&store, &Media::new(0));
        let whole = double.start(Step::Deallocate { offset: 0, length: bytes });
        store.resize(512).unwrap();
        double.settle();
        assert_eq!(double.outcomes[&whole], Err(StoreError::Truncated));
    }

    #[test]
    fn a_read_of_one_reactors_memory_refers_to_it_unless_it_must_stay_as_it_is() {
        let pool = Pool::new(1).unwrap();
        for (is_shared, needs_stable_copy, is_reference) in
            [(false, false, true), (false, true, false), (true, false, false)]
        {
            let store = MemoryStore::new(&settings(8192, is_shared)).unwrap();
            let mut backend = store.attach().unwrap();
            let payload = backend.read_now(Some(&pool), 0, 4096, needs_stable_copy).unwrap().unwrap();
            assert_eq!(matches!(payload, Payload::Memory(_)), is_reference);
        }
    }

    #[test]
    fn an_empty_pool_makes_the_caller_wait_for_a_buffer() {
        let pool = Pool::new(1).unwrap();
        let _all = pool.take(memory::BLOCK_BYTES_MAX).unwrap();
        let store = MemoryStore::new(&settings(8192, true)).unwrap();
        assert!(store.attach().unwrap().read_now(Some(&pool), 0, 4096, false).is_none());
    }

    #[test]
    fn a_read_only_namespace_refuses_every_change() {
        let store = MemoryStore::new(&MemorySettings { is_read_only: true, ..settings(8192, true) }).unwrap();
        let mut double = Double::attach(&store, &Media::new(0));
        assert_eq!(double.write(0, &[1; 512]), Err(StoreError::ReadOnly));
        assert_eq!(double.run(Step::Deallocate { offset: 0, length: 512 }), Err(StoreError::ReadOnly));
        assert_eq!(double.flush(), Ok(vec![]));
        assert_eq!(double.read(0, 512), Ok(vec![0; 512]));
    }

    #[test]
    fn a_namespace_for_one_reactor_takes_no_second() {
        let store = MemoryStore::new(&settings(8192, false)).unwrap();
        let _first = store.attach().unwrap();
        let refused = store.attach().err().unwrap();
        insta::assert_snapshot!(refused, @"this RAM namespace was opened for one reactor, which is attached already");
    }

    #[test]
    fn huge_pages_are_given_back_whole() {
        let store =
            MemoryStore::new(&MemorySettings { huge_pages: true, ..settings(8 << 20, true) }).unwrap();
        assert_eq!(store.geometry().preferred_deallocate_blocks, 4096);
    }
}
