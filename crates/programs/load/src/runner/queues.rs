//! Queues that a load submits operations to and takes completions from: of a target, a file or a device.

use std::time::Duration;

use host::{Error, Phases};

use super::Thread;
use crate::recorder::Failure;
use crate::report::LaneResult;
use crate::stream::Step;
use crate::workload::Plan;

/// The destination of a load, shared by all threads of a run.
pub(super) trait Destination: Sync {
    /// The queues of one thread.
    type Queues: Queues;

    /// Opens the queues of a thread, which calls this itself.
    fn open(&self, thread: &Thread, plan: &Plan) -> Result<Self::Queues, Error>;

    /// Opening its queues may take this long.
    fn open_timeout(&self) -> Duration;

    /// Wakes threads that wait for it: the run is given up.
    fn abandon(&self);
}

/// The queues of one thread: for each of its loads one, or some that all of them share.
pub(super) trait Queues {
    /// The buffer of an operation's data.
    type Buffer: DataRoom;

    /// A buffer for operations of up to `capacity` bytes, filled with bytes that neither compress nor repeat.
    fn buffer(&mut self, capacity: usize, seed: u64) -> Result<Self::Buffer, Error>;

    /// Submits an operation of load `load`, which completes with `user`.
    fn submit(
        &mut self,
        load: usize,
        step: Step,
        buffer: Option<Self::Buffer>,
        user: u64,
    ) -> Result<(), Refusal<Self::Buffer>>;

    /// Operations in flight.
    fn outstanding(&self) -> usize;

    /// Whether waits never sleep.
    fn never_sleeps(&self) -> bool;

    /// Calls `each` with completions, at most after `timeout`. It does not wait if that is zero.
    fn take(&mut self, timeout: Duration, each: &mut impl FnMut(Done<Self::Buffer>)) -> Result<(), Error>;

    /// Ends the use of the queues, and returns their counters.
    fn close(&mut self, thread: &Thread) -> Closed;
}

/// Room for the data of an operation.
pub(super) trait DataRoom {
    /// Makes it `length` bytes long.
    ///
    /// # Panics
    /// If it is smaller.
    fn resize(&mut self, length: usize);

    /// The data of the operation.
    fn bytes(&self) -> &[u8];

    /// The same, to fill.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// An operation that was not submitted.
#[derive(Debug)]
pub(super) struct Refusal<B> {
    pub(super) error: Box<Error>,
    pub(super) buffer: Option<B>,
}

/// An operation that has completed.
#[derive(Debug)]
pub(super) struct Done<B> {
    pub(super) user: u64,
    pub(super) result: Result<(), Failure>,
    pub(super) buffer: Option<B>,
}

/// Counters of queues.
#[derive(Debug, Default)]
pub(super) struct Closed {
    /// Of each lane to a target.
    pub(super) lanes: Vec<LaneResult>,
    /// Time of commands to a target by phase.
    pub(super) phases: Option<Phases>,
    /// Of a ring for local storage.
    pub(super) ring: Option<RingUse>,
}

/// How a thread used its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingUse {
    pub(super) counters: reactor::StorageRingCounters,
    pub(super) has_registered_buffers: bool,
    pub(super) has_registered_file: bool,
}

impl RingUse {
    /// The use of two rings.
    pub(super) fn with(self, other: Self) -> Self {
        let (ours, theirs) = (self.counters, other.counters);
        Self {
            counters: reactor::StorageRingCounters {
                completion_count: ours.completion_count + theirs.completion_count,
                call_count: ours.call_count + theirs.call_count,
                sleep_count: ours.sleep_count + theirs.sleep_count,
            },
            has_registered_buffers: self.has_registered_buffers && other.has_registered_buffers,
            has_registered_file: self.has_registered_file && other.has_registered_file,
        }
    }
}
