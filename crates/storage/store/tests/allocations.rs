//! In steady state no backend takes memory from the heap.

use std::sync::Arc;

use allocators::CountingAllocator;
use linux::Moment;
use memory::{Payload, Pool};
use nvlane_store::{Backend, BlockStore, Geometry, Reply, Request, Spec, Store, StoreIo, Ticket};
use reactor::{Completion, File, Operation};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A reactor that does everything at once and well.
struct Desk {
    pool: Pool,
    running: Vec<(Ticket, Operation)>,
    reply_count: usize,
}

impl StoreIo for Desk {
    fn now_ns(&self) -> u64 {
        0
    }

    fn moment(&self) -> Moment {
        Moment::default()
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn start(&mut self, ticket: Ticket, operation: Operation) {
        self.running.push((ticket, operation));
    }

    fn set_timer(&mut self, _: u64, ticket: Ticket) {
        panic!("{ticket:?} waits");
    }

    fn reply(&mut self, _: Ticket, reply: Reply) {
        reply.result.unwrap();
        self.reply_count += 1;
    }
}

impl Desk {
    fn new() -> Self {
        Self { pool: Pool::new(8 << 20).unwrap(), running: Vec::with_capacity(64), reply_count: 0 }
    }

    /// Starts 32 requests and ends them.
    fn round(&mut self, backend: &mut dyn Backend, round: u64) {
        for n in 0..32 {
            let (ticket, offset) = (Ticket(round * 32 + n), n * 4096);
            let request = match n % 8 {
                0 => Request::Flush,
                1 => Request::Deallocate { offset, length: 4096 },
                2 => Request::WriteZeroes { offset, length: 4096, is_durable: true, may_deallocate: false },
                n @ 3..5 => {
                    let buffer = self.pool.take(4096).unwrap();
                    Request::Write { offset, buffer, is_durable: n == 3 }
                }
                _ => Request::Read { offset, buffer: self.pool.take(4096).unwrap() },
            };
            backend.start(self, ticket, request);
        }
        while let Some((ticket, operation)) = self.running.pop() {
            let (count, buffer) = match operation {
                Operation::Read { buffer, skip, .. } | Operation::Write { buffer, skip, .. } => {
                    (buffer.len() - skip, Some(buffer))
                }
                _ => (0, None),
            };
            let completion = Completion { token: ticket.0, result: Ok(count), buffer };
            backend.on_completion(self, ticket, completion);
        }
        assert_eq!(self.reply_count as u64, (round + 1) * 32);
    }
}

fn allocations_of(mut round: impl FnMut(u64)) -> u64 {
    // Tables grow to the size that is needed.
    (0..100).for_each(&mut round);
    CountingAllocator::measure(|| (100..2000).for_each(&mut round)).1.count
}

#[test]
fn requests_allocate_nothing() {
    let geometry = Geometry::new(4096, 1024);
    let file = nvlane_store::FileStore::simulated(File::simulated(0), &geometry);
    let stores: [(&str, &dyn BlockStore); 4] = [
        ("a file", &file),
        ("RAM of one reactor", &*blocks("ram:4M", false)),
        ("RAM of several", &*blocks("ram:4M", true)),
        ("null", &*blocks("null:4M", true)),
    ];
    for (name, store) in stores {
        let (mut backend, mut desk) = (store.attach().unwrap(), Desk::new());
        assert_eq!(allocations_of(|round| desk.round(&mut *backend, round)), 0, "{name}");
    }
}

#[test]
fn what_is_done_at_once_allocates_nothing() {
    let pool = Pool::new(8 << 20).unwrap();
    for (spec, is_shared) in [("ram:4M", false), ("ram:4M", true), ("null:4M", true)] {
        let mut backend = blocks(spec, is_shared).attach().unwrap();
        let count = allocations_of(|round| {
            let offset = round % 1024 * 4096;
            backend.write_now(offset, &[1; 4096], true).unwrap().unwrap();
            for needs_stable_copy in [true, false] {
                let payload =
                    backend.read_now(Some(&pool), offset, 4096, needs_stable_copy).unwrap().unwrap();
                assert!(!matches!(payload, Payload::Heap(_)));
            }
            backend.compare_now(offset, &[1; 4096]).unwrap().unwrap();
        });
        assert_eq!(count, 0, "{spec}");
    }
}

fn blocks(spec: &str, is_shared: bool) -> Arc<dyn BlockStore> {
    match spec.parse::<Spec>().unwrap().open(is_shared).unwrap() {
        Store::Blocks(blocks) => blocks,
        Store::Keys(_) => panic!("{spec} has blocks"),
    }
}
