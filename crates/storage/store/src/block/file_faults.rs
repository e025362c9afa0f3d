//! Tests of the file backend on a disk with injected faults: completed requests hold, whatever fails.

use memory::BLOCK_BYTES_MAX;
use proptest::prelude::*;
use reactor::{File, Operation};
use rustix::io::Errno;

use super::file_backend::{ATTEMPT_LIMIT, BUFFER_WAIT_NS, RANGE_LIMIT};
use crate::block::FileStore;
use crate::namespace::{BlockStore, Geometry, StoreError, Ticket};
use crate::testing::{
    Bench, Double, Fault, Media, SharedMedia, Step, StepResult, check_against_model, model_steps,
};

const BLOCK: usize = 512;
const BLOCK_COUNT: usize = 64;

fn write(block: u64, count: usize, value: u8, is_durable: bool) -> Step {
    Step::Write { offset: block * BLOCK as u64, data: vec![value; count * BLOCK], is_durable }
}

fn zeroes(block: u64, count: u64, is_durable: bool, may_deallocate: bool) -> Step {
    let (offset, length) = (block * BLOCK as u64, count * BLOCK as u64);
    Step::WriteZeroes { offset, length, is_durable, may_deallocate }
}

/// Steps of every kind.
fn trace() -> Vec<Step> {
    let (read, give_back) = (
        |block: u64, count: usize| Step::Read { offset: block * BLOCK as u64, length: count * BLOCK },
        |block: u64, count: u64| Step::Deallocate {
            offset: block * BLOCK as u64,
            length: count * BLOCK as u64,
        },
    );
    vec![
        write(0, 8, 1, false),
        write(8, 4, 2, true),
        Step::Flush,
        read(0, 12),
        zeroes(2, 3, true, false),
        write(20, 8, 3, false),
        zeroes(21, 2, true, true),
        give_back(6, 3),
        read(0, 30),
        zeroes(9, 1, false, false),
        Step::Flush,
        write(30, 2, 4, true),
        read(28, 8),
        Step::Flush,
    ]
}

/// The known value of each byte by the replies so far; `None` after a failed change.
struct Ledger {
    known: Vec<Option<u8>>,
    /// The state covered by the last flush or durable write.
    durable: Vec<Option<u8>>,
    has_failed_flush: bool,
}

impl Ledger {
    fn new() -> Self {
        let zeroes = vec![Some(0); BLOCK * BLOCK_COUNT];
        Self { known: zeroes.clone(), durable: zeroes, has_failed_flush: false }
    }

    /// Compares a reply with the disk's content.
    fn check(&mut self, step: &Step, outcome: &StepResult, store: &dyn BlockStore, place: &SharedMedia) {
        let media = place.borrow();
        assert!(!(self.has_failed_flush && outcome.is_ok()), "success after a failed flush: {step:?}");
        let (range, value, is_durable) = match *step {
            Step::Read { offset, length } => {
                let range = offset as usize..offset as usize + length;
                if let Ok(bytes) = outcome {
                    let mut pairs = bytes.iter().zip(&self.known[range]);
                    assert!(pairs.all(|(byte, known)| known.is_none_or(|known| known == *byte)));
                }
                return;
            }
            Step::FindData(_) => return,
            Step::Flush => {
                match outcome {
                    Ok(_) => self.durable.clone_from(&self.known),
                    Err(_) => self.has_failed_flush = true,
                }
                self.check_durable(&media);
                return;
            }
            Step::Write { offset, ref data, is_durable } => {
                (offset as usize..offset as usize + data.len(), Some(data[0]), is_durable)
            }
            Step::WriteZeroes { offset, length, is_durable, .. } => {
                (offset as usize..(offset + length) as usize, Some(0), is_durable)
            }
            Step::Deallocate { offset, length } => {
                let gives_zeroes = store.geometry().can_deallocate;
                (offset as usize..(offset + length) as usize, gives_zeroes.then_some(0), false)
            }
            Step::Compare { .. } => return,
        };
        let is_done = outcome.is_ok();
        if is_done && matches!(step, Step::Deallocate { .. }) && value.is_none() {
            // A hint that was not followed changes nothing.
            return;
        }
        self.known[range.clone()].fill(value.filter(|_| is_done));
        // The durable value may be the old or the new one, until a flush or durable write makes it the new.
        self.durable[range.clone()].fill(value.filter(|_| is_done && is_durable));
        if is_done {
            assert!(media.bytes[range].iter().all(|byte| Some(*byte) == value), "{step:?} is not there");
        }
        self.check_durable(&media);
    }

    fn check_durable(&self, media: &Media) {
        let mut pairs = media.durable.iter().zip(&self.durable);
        assert!(pairs.all(|(byte, known)| known.is_none_or(|known| known == *byte)), "not durable");
    }
}

/// Runs the trace; operations meet `fault`. Returns the results of the steps and the number of operations.
fn run_trace(fault: impl FnMut(usize, &Operation) -> Option<Fault> + 'static) -> (Vec<StepResult>, usize) {
    let (store, place, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
    place.borrow_mut().fault = Box::new(fault);
    let mut ledger = Ledger::new();
    let mut outcomes = Vec::new();
    for step in trace() {
        let outcome = double.run(step.clone());
        ledger.check(&step, &outcome, &store, &place);
        outcomes.push(outcome);
    }
    let operation_count = place.borrow().log.len();
    // Reopened it serves again.
    place.borrow_mut().fault = Box::new(|_, _| None);
    store.reopen().unwrap();
    assert_eq!(double.run(write(40, 1, 9, true)), Ok(vec![]));
    assert_eq!(double.read(40 * BLOCK as u64, BLOCK), Ok(vec![9; BLOCK]));
    assert_eq!(double.flush(), Ok(vec![]));
    (outcomes, operation_count)
}

const ERRORS: [Errno; 10] = [
    Errno::IO,
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::INTR,
    Errno::AGAIN,
    Errno::CANCELED,
    Errno::OPNOTSUPP,
    Errno::INVAL,
    Errno::ROFS,
    Errno::NXIO,
];

#[test]
fn whatever_the_nth_operation_meets_nothing_is_said_to_be_done_that_was_not() {
    let (outcomes, operation_count) = run_trace(|_, _| None);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let faults = ERRORS.map(Fault::Error).into_iter();
    let faults = faults.chain([0, 1, 511, 512, 513, 1024, 2000].map(Fault::Short));
    for fault in faults {
        for nth in 0..operation_count {
            let (outcomes, _) = run_trace(move |n, _| (n == nth).then_some(fault));
            let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
            match fault {
                // Transient failures are not seen.
                Fault::Error(Errno::INTR | Errno::AGAIN) => assert_eq!(failed, 0, "{fault:?} at {nth}"),
                Fault::Short(1..) => assert_eq!(failed, 0, "{fault:?} at {nth}"),
                _ => {}
            }
        }
    }
}

#[test]
fn what_keeps_failing_fails_and_is_not_tried_for_ever() {
    for fault in ERRORS.map(Fault::Error).into_iter().chain([Fault::Short(0), Fault::Short(100)]) {
        let (outcomes, operation_count) = run_trace(move |_, _| Some(fault));
        assert!(operation_count <= trace().len() * ATTEMPT_LIMIT as usize, "{fault:?}: {operation_count}");
        for (step, outcome) in trace().iter().zip(outcomes) {
            let may_end_well = match fault {
                // Hints may be ignored, and a flush has no length.
                Fault::Error(Errno::OPNOTSUPP) => matches!(step, Step::Deallocate { .. }),
                Fault::Short(_) => !matches!(step, Step::Read { .. } | Step::Write { .. }),
                Fault::Error(_) => false,
            };
            assert!(outcome.is_err() || may_end_well, "{fault:?}: {step:?} is said to be done");
        }
    }
}

#[test]
fn errors_say_what_happened() {
    let cases: [(&str, Errno, Step, StoreError); 10] = [
        ("read", Errno::IO, Step::Read { offset: 0, length: 512 }, StoreError::ReadFailed(5)),
        ("write", Errno::IO, write(0, 1, 1, false), StoreError::WriteFailed(5)),
        ("write", Errno::NOSPC, write(0, 1, 1, false), StoreError::NoSpace),
        ("write", Errno::DQUOT, write(0, 1, 1, false), StoreError::NoSpace),
        ("write durably", Errno::NOSPC, write(0, 1, 1, true), StoreError::NoSpace),
        ("write", Errno::FBIG, write(0, 1, 1, false), StoreError::FileSizeLimit),
        ("zero", Errno::FBIG, zeroes(0, 1, true, false), StoreError::FileSizeLimit),
        ("zero", Errno::NOSPC, zeroes(0, 1, false, false), StoreError::NoSpace),
        ("punch", Errno::IO, Step::Deallocate { offset: 0, length: 512 }, StoreError::WriteFailed(5)),
        ("sync", Errno::IO, Step::Flush, StoreError::WriteFailed(5)),
    ];
    for (name, errno, step, expected) in cases {
        let (_, place, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
        place.borrow_mut().fault = Box::new(move |_, _| Some(Fault::Error(errno)));
        assert_eq!(double.run(step), Err(expected));
        assert_eq!(place.borrow().log, [name]);
    }
}

#[test]
fn a_failed_flush_or_durable_write_closes_the_namespace_for_all_reactors() {
    let durable_zeroes = || zeroes(0, 1, true, false);
    for (step, faulty) in [
        (Step::Flush, "sync"),
        (write(0, 1, 1, true), "write durably"),
        (durable_zeroes(), "sync"),
        (durable_zeroes(), "zero"),
    ] {
        let (store, place, mut here) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
        let mut there = Double::attach(&store, &place);
        let (late_write, late_flush) = (there.start(write(5, 1, 2, false)), there.start(Step::Flush));
        place.borrow_mut().fault = Box::new(move |_, operation| {
            let is_hit = match operation {
                Operation::Sync { .. } => faulty == "sync",
                Operation::Write { durable, .. } => *durable && faulty == "write durably",
                Operation::Allocate { .. } => faulty == "zero",
                Operation::FindData { .. } => false,
                Operation::Read { .. } | Operation::Await { .. } => false,
            };
            is_hit.then_some(Fault::Error(Errno::IO))
        });
        assert_eq!(here.run(step), Err(StoreError::WriteFailed(5)));
        place.borrow_mut().fault = Box::new(|_, _| None);
        // Requests under way on the other reactor fail, and none begins on either.
        there.settle();
        assert_eq!(there.outcomes[&late_write], Err(StoreError::Closed));
        assert_eq!(there.outcomes[&late_flush], Err(StoreError::Closed));
        for double in [&mut here, &mut there] {
            for step in trace() {
                assert_eq!(double.run(step), Err(StoreError::Closed));
            }
        }
        let over_the_reopening = {
            store.reopen().unwrap();
            let ticket = here.start(write(5, 1, 2, false));
            store.reopen().unwrap();
            ticket
        };
        here.settle();
        assert_eq!(here.outcomes[&over_the_reopening], Err(StoreError::Closed));
        for double in [&mut here, &mut there] {
            assert_eq!(double.run(write(5, 1, 2, true)), Ok(vec![]));
            assert_eq!(double.flush(), Ok(vec![]));
        }
    }
}

#[test]
fn a_late_failure_of_an_earlier_generation_does_not_close_the_present_one() {
    let (store, place, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
    let old = double.start(Step::Flush);
    store.reopen().unwrap();
    place.borrow_mut().fault = Box::new(|n, _| (n == 0).then_some(Fault::Error(Errno::IO)));
    double.settle();
    assert_eq!(double.outcomes[&old], Err(StoreError::WriteFailed(5)));
    assert_eq!(double.flush(), Ok(vec![]));
}

#[test]
fn flushes_that_arrive_while_one_runs_share_the_next() {
    let (_, place, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
    let first = double.start(Step::Flush);
    double.run_operations_but_flushes(write(0, 1, 7, false));
    let later: Vec<_> = (0..1000).map(|_| double.start(Step::Flush)).collect();
    assert_eq!(double.io.running.len(), 1, "one at a time");
    double.perform(0);
    assert!(double.outcomes.contains_key(&first) && !double.outcomes.contains_key(&later[0]));
    assert_eq!(place.borrow().durable[0], 7, "the next flush began after the write");
    assert_eq!(double.io.running.len(), 1);
    double.perform(0);
    assert!(later.iter().all(|ticket| double.outcomes[ticket] == Ok(vec![])));
    assert!(double.io.running.is_empty());
    assert_eq!(place.borrow().log, ["write", "sync", "sync"]);
}

impl Double {
    /// Runs a step to its end while a flush goes on running.
    fn run_operations_but_flushes(&mut self, step: Step) {
        let ticket = self.start(step);
        while !self.outcomes.contains_key(&ticket) {
            let is_flush = |operation: &Operation| matches!(operation, Operation::Sync { .. });
            let next = self.io.running.iter().position(|(_, operation)| !is_flush(operation));
            self.perform(next.expect("the step has not ended"));
        }
    }
}

#[test]
fn few_ranges_are_changed_at_once() {
    let (_, _, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
    let tickets: Vec<_> =
        (0..20).map(|block| double.start(zeroes(block, 1, block % 2 == 0, false))).collect();
    assert_eq!(double.io.running.len(), RANGE_LIMIT);
    double.settle();
    assert!(tickets.iter().all(|ticket| double.outcomes[ticket] == Ok(vec![])));
    // None was forgotten: the next ones run too.
    assert_eq!(double.run(zeroes(0, 1, false, true)), Ok(vec![]));
}

#[test]
fn any_number_of_waiting_ranges_ends_when_the_namespace_is_closed() {
    let (_, place, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
    let tickets: Vec<_> = (0..100_000).map(|_| double.start(zeroes(0, 1, false, false))).collect();
    let flush = double.start(Step::Flush);
    place.borrow_mut().fault = Box::new(|_, _| Some(Fault::Error(Errno::IO)));
    double.perform(RANGE_LIMIT);
    assert_eq!(double.outcomes[&flush], Err(StoreError::WriteFailed(5)));
    double.settle();
    assert!(tickets.iter().all(|ticket| double.outcomes[ticket].is_err()));
}

#[test]
fn what_is_not_supported_is_remembered_and_done_in_the_next_way() {
    let (store, place, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
    double.write(0, &[1; 4096]).unwrap();
    place.borrow_mut().fault = Box::new(|_, operation| {
        matches!(operation, Operation::Allocate { .. }).then_some(Fault::Error(Errno::OPNOTSUPP))
    });
    assert!(store.geometry().can_deallocate);
    assert_eq!(double.run(zeroes(0, 1, false, true)), Ok(vec![]));
    assert!(!store.geometry().can_deallocate);
    assert_eq!(double.run(zeroes(1, 1, true, false)), Ok(vec![]));
    assert_eq!(double.run(Step::Deallocate { offset: 1024, length: 512 }), Ok(vec![]));
    assert_eq!(double.read(1024, 512), Ok(vec![1; 512]));
    assert_eq!(
        place.borrow().log,
        ["write", "punch", "zero", "write", "write", "sync", "read"],
        "each was tried once"
    );
}

#[test]
fn zeroes_are_written_in_chunks_and_wait_for_a_buffer() {
    const BYTES: usize = 2 << 20;
    let (_, place, mut double) = Double::file(BYTES, BLOCK as u32);
    for at in (0..BYTES).step_by(BYTES / 4) {
        double.write(at as u64, &vec![1; BYTES / 4]).unwrap();
    }
    place.borrow_mut().fault = Box::new(|n, operation| match operation {
        Operation::Allocate { .. } => Some(Fault::Error(Errno::OPNOTSUPP)),
        // Ends in the middle of a block now and then.
        Operation::Write { .. } if n % 3 == 0 => Some(Fault::Short(100_000)),
        _ => None,
    });
    let mut all: Vec<_> = std::iter::from_fn(|| double.io.pool.take(BLOCK_BYTES_MAX)).collect();
    let length = (BYTES - 3 * BLOCK) as u64;
    let ticket =
        double.start(Step::WriteZeroes { offset: 512, length, is_durable: true, may_deallocate: false });
    double.perform(0);
    for _ in 0..50 {
        assert!(double.io.running.is_empty(), "there is no buffer");
        double.pass(BUFFER_WAIT_NS);
    }
    drop(all.pop());
    // One page is enough.
    let rest: Vec<_> = std::iter::from_fn(|| double.io.pool.take(1)).skip(1).collect();
    double.pass(BUFFER_WAIT_NS);
    drop((all, rest));
    double.settle();
    assert_eq!(double.outcomes[&ticket], Ok(vec![]));
    let media = place.borrow();
    let end = 512 + length as usize;
    assert!(media.durable[512..end].iter().all(|&byte| byte == 0));
    assert!(media.durable[..512].iter().chain(&media.durable[end..]).all(|&byte| byte == 1));
}

#[test]
fn zeroes_are_written_with_what_is_kept_aside_when_the_pool_is_empty() {
    let (_, place, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
    place.borrow_mut().fault = Box::new(|_, operation| match operation {
        Operation::Allocate { .. } => Some(Fault::Error(Errno::OPNOTSUPP)),
        _ => None,
    });
    double.io.reserve = double.io.pool.take(BLOCK_BYTES_MAX);
    let _all: Vec<_> = std::iter::from_fn(|| double.io.pool.take(1)).collect();
    for is_durable in [false, true] {
        let ticket = double.start(zeroes(2, 3, is_durable, false));
        while !double.io.running.is_empty() {
            double.perform(0);
        }
        assert_eq!(double.outcomes[&ticket], Ok(vec![]));
        assert!(double.io.reserve.is_some(), "it is back");
    }
}

/// A refused write loses nothing; any other failure of a durable write may be that of a flush of earlier writes.
#[test]
fn a_durable_write_that_is_refused_closes_nothing() {
    for (errno, is_refusal) in [
        (Errno::NOSPC, true),
        (Errno::DQUOT, true),
        (Errno::FBIG, true),
        (Errno::INVAL, true),
        (Errno::OPNOTSUPP, true),
        (Errno::IO, false),
        (Errno::CANCELED, false),
    ] {
        let (store, place, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
        place.borrow_mut().fault = Box::new(move |_, _| Some(Fault::Error(errno)));
        assert!(double.run(write(0, 1, 1, true)).is_err());
        assert_eq!(store.closed_because().is_none(), is_refusal, "{errno:?}");
    }
}

/// An operation that fails for the moment is repeated at once, then after delays that double.
#[test]
fn retries_come_at_growing_intervals() {
    let (_, place, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
    place.borrow_mut().fault = Box::new(|_, _| Some(Fault::Error(Errno::AGAIN)));
    let ticket = double.start(write(0, 1, 1, false));
    let mut delays_ms = Vec::new();
    while !double.outcomes.contains_key(&ticket) {
        if double.io.running.is_empty() {
            let delay_ns = double.io.timers.next_deadline_ns().unwrap() - double.io.now_ns;
            delays_ms.push(delay_ns / 1_000_000);
            double.pass(delay_ns);
        } else {
            double.perform(0);
        }
    }
    assert_eq!(delays_ms, [1, 2, 4, 8, 16, 32]);
    assert_eq!(place.borrow().log.len(), ATTEMPT_LIMIT as usize);
}

#[test]
fn a_range_past_the_end_is_refused_and_changes_nothing() {
    let (store, place, mut double) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
    store.resize(4 * BLOCK as u64).unwrap();
    for step in [
        write(4, 1, 1, false),
        write(3, 2, 1, true),
        zeroes(4, 1, false, false),
        Step::Deallocate { offset: 0, length: u64::MAX },
        Step::Deallocate { offset: u64::MAX - 511, length: 512 },
        Step::Read { offset: 2048, length: 512 },
    ] {
        assert_eq!(double.run(step), Err(StoreError::Truncated));
    }
    assert!(place.borrow().log.is_empty());
}

#[derive(Clone, Debug)]
enum Event {
    Write(usize, bool),
    Flush,
    Perform(usize),
}

proptest! {
    /// In whatever order operations end, a flush covers what was replied to before it.
    #[test]
    fn a_flush_covers_every_write_replied_to_before_it(
        events in proptest::collection::vec(
            prop_oneof![
                3 => (0usize..6, any::<bool>()).prop_map(|(block, is_durable)| Event::Write(block, is_durable)),
                2 => Just(Event::Flush),
                6 => (0usize..100).prop_map(Event::Perform),
            ],
            1..120,
        ),
    ) {
        let (store, place, first) = Double::file(6 * BLOCK, BLOCK as u32);
        let mut doubles = [first, Double::attach(&store, &place)];
        let (mut next_value, mut turn) = (1u8, 0);
        let mut replied = [0u8; 6];
        let mut writes: Vec<(usize, Ticket, usize, u8, bool)> = Vec::new();
        let mut flushes: Vec<(usize, Ticket, [u8; 6])> = Vec::new();
        for event in events {
            turn = (turn + 1) % 2;
            match event {
                // Values grow, one write of a block at a time: a later one never hides an earlier one.
                Event::Write(block, is_durable) if writes.iter().all(|write| write.2 != block) => {
                    let ticket = doubles[turn].start(write(block as u64, 1, next_value, is_durable));
                    writes.push((turn, ticket, block, next_value, is_durable));
                    next_value += 1;
                }
                Event::Write(..) => {}
                Event::Flush => flushes.push((turn, doubles[turn].start(Step::Flush), replied)),
                Event::Perform(index) => {
                    let count = doubles[turn].io.running.len();
                    if count > 0 {
                        doubles[turn].perform(index % count);
                    }
                }
            }
            let media = place.borrow();
            writes.retain(|&(turn, ticket, block, value, is_durable)| {
                let is_done = doubles[turn].outcomes.contains_key(&ticket);
                if is_done {
                    replied[block] = value;
                    assert!(!is_durable || media.durable[block * BLOCK] >= value);
                }
                !is_done
            });
            flushes.retain(|&(turn, ticket, covered)| {
                let is_done = doubles[turn].outcomes.contains_key(&ticket);
                if is_done {
                    for (block, value) in covered.iter().enumerate() {
                        assert!(media.durable[block * BLOCK] >= *value, "block {block} is not durable");
                    }
                }
                !is_done
            });
        }
        for double in &mut doubles {
            double.settle();
        }
    }

    #[test]
    fn a_file_is_a_vector_of_bytes(steps in model_steps(64, false), supports_ranges: bool, chops: bool) {
        let (store, place, mut double) = Double::file(BLOCK * 64, BLOCK as u32);
        place.borrow_mut().fault = Box::new(move |n, operation| match operation {
            Operation::Allocate { .. } if !supports_ranges => Some(Fault::Error(Errno::OPNOTSUPP)),
            Operation::Read { .. } | Operation::Write { .. } if chops && n % 2 == 0 => {
                Some(Fault::Short(1000))
            }
            _ => None,
        });
        check_against_model(&store, &mut double, steps)?;
    }
}

#[test]
fn a_read_only_file_is_read_and_flushed_only() {
    let place = Media::new(BLOCK * BLOCK_COUNT);
    let (store, _, _) = Double::file(BLOCK * BLOCK_COUNT, BLOCK as u32);
    let geometry = Geometry { is_read_only: true, ..store.geometry() };
    let store = FileStore::simulated(File::simulated(0), &geometry);
    assert!(!store.geometry().can_deallocate);
    let mut double = Double::attach(&store, &place);
    for step in trace() {
        let expected = match step {
            Step::Read { length, .. } => Ok(vec![0; length]),
            Step::Flush => Ok(vec![]),
            _ => Err(StoreError::ReadOnly),
        };
        assert_eq!(double.run(step), expected);
    }
}

#[test]
#[allow(clippy::single_range_in_vec_init)] // Lists of ranges.
fn data_is_found_unless_the_file_system_does_not_know() {
    let (_store, place, mut double) = Double::file(1 << 20, 4096);
    double.write(8192, &[1; 4096]).unwrap();
    assert_eq!(double.find_data(0..1 << 20), Ok(vec![8192..12288]));
    let is_first = |count: usize| count == 0;
    for (errno, expected) in [
        (Errno::INVAL, Err(StoreError::Unsupported)),
        (Errno::OPNOTSUPP, Err(StoreError::Unsupported)),
        (Errno::IO, Err(StoreError::ReadFailed(5))),
        (Errno::AGAIN, Ok(vec![8192..12288])),
    ] {
        place.borrow_mut().log.clear();
        place.borrow_mut().fault = Box::new(move |count, _| is_first(count).then_some(Fault::Error(errno)));
        assert_eq!(double.find_data(0..1 << 20), expected, "{errno:?}");
    }
    assert_eq!(double.find_data(0..2 << 20), Err(StoreError::Truncated));
}
