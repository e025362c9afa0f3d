//! Test drivers for backends: a disk with injected faults, and a real reactor.

mod disk;
mod model;
mod rig;

pub(crate) use disk::{Double, Fault, Media, SharedMedia};
pub(crate) use model::{
    ModelStep, PromiseStep, check_against_model, check_promises, model_steps, promise_steps,
};
pub(crate) use rig::Rig;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory::Payload;
use reactor::DataMap;

use crate::namespace::{Backend, Reply, Request, StoreError, StoreIo, Ticket};
use crate::open_error::OpenError;

/// A request of a test to a namespace.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Read { offset: u64, length: usize },
    Write { offset: u64, data: Vec<u8>, is_durable: bool },
    Compare { offset: u64, data: Vec<u8> },
    Flush,
    FindData(Arc<DataMap>),
    Deallocate { offset: u64, length: u64 },
    WriteZeroes { offset: u64, length: u64, is_durable: bool, may_deallocate: bool },
}

/// Opens storage that may have been open a moment ago: a process that another test starts holds copies of all
/// descriptors until it executes its program, and locks with them.
pub(crate) fn open_in_time<T>(open: impl Fn() -> Result<T, OpenError>) -> Result<T, OpenError> {
    let until = Instant::now() + Duration::from_millis(500);
    loop {
        match open() {
            Err(OpenError::Locked { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
}

/// The result of a step: the bytes of a read, 1 or 0 for a comparison, empty for the others.
pub(crate) type StepResult = Result<Vec<u8>, StoreError>;

/// An executor of steps.
pub(crate) trait Bench {
    /// Starts all steps at once and returns their results.
    fn run_all(&mut self, steps: Vec<Step>) -> Vec<StepResult>;

    fn run(&mut self, step: Step) -> StepResult {
        self.run_all(vec![step]).pop().unwrap()
    }

    fn read(&mut self, offset: u64, length: usize) -> StepResult {
        self.run(Step::Read { offset, length })
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> StepResult {
        self.run(Step::Write { offset, data: data.to_vec(), is_durable: false })
    }

    fn flush(&mut self) -> StepResult {
        self.run(Step::Flush)
    }

    /// The parts of a range that have data.
    fn find_data(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, StoreError> {
        let map = Arc::new(DataMap::new(range, 100));
        self.run(Step::FindData(Arc::clone(&map))).map(|_| map.take())
    }
}

/// Begins a step: at once if the backend can, else as a request.
fn begin(backend: &mut dyn Backend, io: &mut dyn StoreIo, ticket: Ticket, step: Step) -> Option<StepResult> {
    let request = match step {
        Step::Read { offset, length } => {
            // Both kinds of payload in turn.
            match backend.read_now(Some(io.pool()), offset, length, ticket.0.is_multiple_of(2)) {
                Some(read) => return Some(read.map(|payload| bytes_of(&payload))),
                None => Request::Read { offset, buffer: io.pool().take(length).expect("a large pool") },
            }
        }
        Step::Write { offset, data, is_durable } => match backend.write_now(offset, &data, is_durable) {
            Some(written) => return Some(written.map(|()| Vec::new())),
            None => {
                let mut buffer = io.pool().take(data.len()).expect("a large pool");
                buffer.copy_from_slice(&data);
                Request::Write { offset, buffer, is_durable }
            }
        },
        Step::Compare { offset, data } => {
            let compared = backend.compare_now(offset, &data);
            return Some(compared.map_or(Err(StoreError::Unsupported), |is| is.map(|is| vec![is.into()])));
        }
        Step::Flush => Request::Flush,
        Step::FindData(map) => Request::FindData(map),
        Step::Deallocate { offset, length } => Request::Deallocate { offset, length },
        Step::WriteZeroes { offset, length, is_durable, may_deallocate } => {
            Request::WriteZeroes { offset, length, is_durable, may_deallocate }
        }
    };
    backend.start(io, ticket, request);
    None
}

/// The result of a step from the reply to its request.
fn outcome_of(step: &Step, reply: Reply) -> StepResult {
    let has_buffer = matches!(step, Step::Read { .. } | Step::Write { .. });
    // A buffer that the storage below may still use stays with the backend.
    let is_kept = reply.result == Err(StoreError::Unreachable);
    assert!(reply.buffer.is_some() == has_buffer || is_kept, "{step:?}: {reply:?}");
    reply.result.map(|()| match (step, reply.buffer) {
        (Step::Read { .. }, Some(buffer)) => buffer.to_vec(),
        _ => Vec::new(),
    })
}

fn bytes_of(payload: &Payload) -> Vec<u8> {
    let (mut at, mut bytes) = (0, Vec::new());
    while at < payload.len() {
        let segment = payload.segment(at..payload.len());
        segment.append_to(&mut bytes);
        at += segment.len();
    }
    bytes
}
