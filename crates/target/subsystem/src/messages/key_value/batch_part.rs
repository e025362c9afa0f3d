//! The part of a batch that one partition executes.

use kv::Partition;
use wire::kv::batch::{OUTCOME_HEADER_BYTES, Operation, Operations, OutcomeWriter, Outcomes};
use wire::opcode::KvOpcode;
use wire::status::Status;

use crate::messages::key_value::operation::{BATCH_VECTOR_BYTES_MAX, Done, Effort, operate};

/// Number of operations prefetched ahead of the current one. Measured: flat from 32 on.
pub(crate) const AHEAD_COUNT: usize = 64;

/// Operations for one partition, in order.
#[derive(Debug)]
pub struct PartOfBatch {
    /// The operations, encoded as in a Batch Submit.
    pub(crate) operations: Box<[u8]>,
    /// Maximum bytes of their outcomes.
    pub(crate) outcome_bytes: usize,
}

impl PartOfBatch {
    /// Executes them; outcomes are in the same order.
    pub(crate) fn run(&self, partition: &mut Partition) -> Box<[u8]> {
        let mut outcomes = vec![0; self.outcome_bytes];
        let mut writer = OutcomeWriter::new(&mut outcomes);
        run_here(partition, &self.operations, &mut writer, &mut Vec::new());
        let length = writer.finish();
        outcomes.truncate(length);
        outcomes.into()
    }

    /// The outcomes if none is executed.
    pub(crate) fn refused(&self, status: Status) -> Box<[u8]> {
        let count = Operations::new(&self.operations).count();
        written(std::iter::repeat_n((Done::new(status, 0), &[][..]), count))
    }

    /// Bytes of its operations, including values.
    pub(crate) fn operation_bytes(&self) -> usize {
        self.operations.len()
    }

    /// Offset of each operation.
    pub(crate) fn starts(&self) -> Vec<usize> {
        let mut operations = Operations::new(&self.operations);
        let mut starts = Vec::new();
        loop {
            let start = operations.offset();
            match operations.next() {
                Some(Ok(_)) => starts.push(start),
                _ => return starts,
            }
        }
    }

    /// The operation that [starts](Self::starts) at this offset.
    pub(crate) fn operation(&self, start: usize) -> Operation<'_> {
        let operation = Operations::new(&self.operations[start..]).next();
        operation.and_then(Result::ok).expect("read before")
    }
}

/// Writes outcomes with their data, encoded as in a Batch Collect.
pub(crate) fn written<'a>(outcomes: impl Iterator<Item = (Done, &'a [u8])> + Clone) -> Box<[u8]> {
    let bytes = |data: &[u8]| OUTCOME_HEADER_BYTES + data.len().next_multiple_of(8);
    let mut buffer = vec![0; outcomes.clone().map(|(_, data)| bytes(data)).sum()];
    let mut writer = OutcomeWriter::new(&mut buffer);
    for (done, data) in outcomes {
        writer.room(data.len()).copy_from_slice(data);
        let fits = writer.push(done.status, done.result, data.len());
        debug_assert!(fits, "counted before");
    }
    let length = writer.finish();
    debug_assert_eq!(length, buffer.len());
    buffer.into()
}

/// The outcomes if all operations fail with the same status.
pub(crate) fn refused(outcomes: &[u8], status: Status) -> Box<[u8]> {
    let count = Outcomes::new(outcomes).count();
    written(std::iter::repeat_n((Done::new(status, 0), &[][..]), count))
}

/// Executes operations of this partition in order, prefetching the lines that the next ones need.
pub(crate) fn run_here(
    partition: &mut Partition,
    data: &[u8],
    writer: &mut OutcomeWriter<'_>,
    scratch: &mut Vec<u8>,
) {
    let processor = &mut partition.processor;
    let none =
        Operation { opcode: KvOpcode::EXIST, options: 0, kind: 0, room_bytes: 0, key: &[], operand: &[] };
    let mut ahead = [none; AHEAD_COUNT];
    let mut hashes = [processor.hash(&[]); AHEAD_COUNT];
    let mut effort = Effort { vector_bytes: BATCH_VECTOR_BYTES_MAX, scratch };
    let mut operations = Operations::new(data);
    loop {
        let mut count = 0;
        while count < AHEAD_COUNT
            && let Some(Ok(operation)) = operations.next()
        {
            hashes[count] = processor.hash(operation.key);
            ahead[count] = operation;
            count += 1;
        }
        if count == 0 {
            return;
        }
        processor.prefetch_all(&hashes[..count]);
        for (operation, hash) in ahead[..count].iter().zip(hashes) {
            let room = writer.room(operation.room_bytes as usize);
            let Done { status, result, data_bytes } = operate(processor, hash, operation, room, &mut effort);
            let fits = writer.push(status, result, data_bytes);
            debug_assert!(fits, "counted before");
        }
    }
}
