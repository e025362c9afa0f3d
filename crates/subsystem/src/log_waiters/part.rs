//! A part of a batch on a partition with a log. Its operations run in order, but for those whose values have to be fetched first;
//! all of them are answered together, when the last change that any of them has seen survives: one commit for the whole batch.

use std::ops::Range;

use kv::Partition;
use wire::kv::batch::Operation;
use wire::status::Status;

use crate::key_value::batch_part::{self, AHEAD_COUNT, PartOfBatch};
use crate::key_value::operation::{BATCH_VECTOR_BYTES_MAX, Done, Effort, operate};

/// A part of which not everything is carried out yet.
pub(super) struct Part {
    /// Who asks.
    pub(super) from: usize,
    /// As what the batch runs there.
    pub(super) ticket: store::Ticket,
    /// The last change that an operation of it has seen and that may not survive yet.
    pub(super) number: Option<u64>,
    part: PartOfBatch,
    /// Where each operation begins.
    starts: Vec<usize>,
    /// By operation: how it ended, and where its data is.
    outcomes: Vec<Option<(Done, usize)>>,
    data: Vec<u8>,
    left_count: usize,
    /// Bytes of vectors that may still be worked on.
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

    /// How many operations there are.
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn operation(&self, at: usize) -> Operation<'_> {
        self.part.operation(self.starts[at])
    }

    /// Has the lines on their way that some operations need.
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

    /// Carries out an operation whose value is here.
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

    /// An operation whose value is not to be had.
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
