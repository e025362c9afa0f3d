//! A part of a batch on a partition with a log. Its operations run in order, except those whose values must be fetched
//! first; they are answered together once the last change that any of them depends on is durable: one commit for the
//! whole batch.

use std::ops::Range;

use kv::Partition;
use wire::kv::batch::Operation;
use wire::status::Status;

use crate::messages::key_value::batch_part::{self, AHEAD_COUNT, PartOfBatch};
use crate::messages::key_value::operation::{BATCH_VECTOR_BYTES_MAX, Done, Effort, operate};

/// A part with operations left to execute.
pub(super) struct Part {
    /// The sender of the request.
    pub(super) from: usize,
    /// The client that the batch runs as.
    pub(super) ticket: store::Ticket,
    /// The last change that one of its operations depends on and that may not be durable yet.
    pub(super) number: Option<u64>,
    part: PartOfBatch,
    /// Offset of each operation.
    starts: Vec<usize>,
    /// By operation: its outcome, and where its data is.
    outcomes: Vec<Option<(Done, usize)>>,
    data: Vec<u8>,
    left_count: usize,
    /// Budget of vector bytes left to process.
    vector_bytes: u32,
}

impl Part {
    pub(super) fn new(from: usize, ticket: store::Ticket, part: PartOfBatch) -> Self {
        let starts = part.starts();
        let left_count = starts.len();
        Self {
            from,
            ticket,
            number: None,
            part,
            starts,
            outcomes: vec![None; left_count],
            data: Vec::new(),
            left_count,
            vector_bytes: BATCH_VECTOR_BYTES_MAX,
        }
    }

    /// Number of operations.
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn operation(&self, at: usize) -> Operation<'_> {
        self.part.operation(self.starts[at])
    }

    /// Prefetches the lines that some operations need.
    pub(super) fn prefetch(&self, partition: &mut Partition, operations: Range<usize>) {
        let processor = &mut partition.processor;
        let mut hashes = [processor.hash(&[]); AHEAD_COUNT];
        let mut count = 0;
        for at in operations {
            hashes[count] = processor.hash(self.operation(at).key);
            count += 1;
        }
        processor.prefetch_all(&hashes[..count]);
    }

    /// Executes an operation whose value has arrived.
    pub(super) fn run(&mut self, partition: &mut Partition, at: usize) {
        let operation = self.part.operation(self.starts[at]);
        let processor = &mut partition.processor;
        let hash = processor.hash(operation.key);
        let found = processor.find(hash, operation.key).map_or(0, |place| processor.value_bytes(place));
        let start = self.data.len();
        self.data.resize(start + found.min(operation.room_bytes as usize), 0);
        let mut effort = Effort { vector_bytes: self.vector_bytes, scratch: &mut Vec::new() };
        let done = operate(processor, hash, &operation, &mut self.data[start..], &mut effort);
        self.vector_bytes = effort.vector_bytes;
        self.data.truncate(start + done.data_bytes);
        self.end(at, done, start);
    }

    /// Fails an operation whose value is unavailable.
    pub(super) fn refuse(&mut self, at: usize, status: Status) {
        self.end(at, Done::new(status, 0), 0);
    }

    fn end(&mut self, at: usize, done: Done, start: usize) {
        let before = self.outcomes[at].replace((done, start));
        assert!(before.is_none(), "an operation ends once");
        self.left_count -= 1;
    }

    /// Whether all operations have ended.
    pub(super) fn is_over(&self) -> bool {
        self.left_count == 0
    }

    /// The outcomes in the order of the operations.
    pub(super) fn outcomes(&self) -> Box<[u8]> {
        let ended = self.outcomes.iter().map(|outcome| outcome.expect("all have ended"));
        batch_part::written(ended.map(|(done, start)| (done, &self.data[start..start + done.data_bytes])))
    }
}
