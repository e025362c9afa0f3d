//! A batch whose operations are executed in the partitions of all reactors, where these lie.
//!
//! ```text
//! only look-ups   in order, under shared locks of all their partitions ─▶ outcomes
//! others          sorted by partition ─▶ each part under a lock of its own ─▶ outcomes where they would be if all were
//!                 of full length ─▶ moved together
//! ```

use kv::{KeyHash, PartitionAccess, Parts, Processor, Seen};
use linux::Moment;
use wire::kv::batch::{Operation, Operations, OutcomeWriter};
use wire::opcode::KvOpcode;
use wire::status::Status;

use crate::messages::key_value::batch_part::AHEAD_COUNT;
use crate::messages::key_value::operation::{BATCH_VECTOR_BYTES_MAX, Done, Effort, operate};

/// Look-ups under one lock of each partition: changes wait meanwhile.
const READ_COUNT: usize = 256;

/// An operation, and the hash of its key.
struct Hashed<'a> {
    hash: KeyHash,
    operation: Operation<'a>,
}

/// Executes the operations of a checked batch. Returns the bytes of the outcomes, in the order of the operations, and the
/// number of failures.
pub(crate) fn run_in_place(
    access: &PartitionAccess,
    now: Moment,
    data: &[u8],
    room: &mut [u8],
    scratch: &mut Vec<u8>,
) -> (usize, u32) {
    let mut operations = Vec::with_capacity(data.len() / 32 + 1);
    let mut changes = false;
    for operation in Operations::new(data).map_while(Result::ok) {
        changes |= !matches!(operation.opcode, KvOpcode::RETRIEVE | KvOpcode::EXIST);
        operations.push(Hashed { hash: access.hash(operation.key), operation });
    }
    let effort = Effort { vector_bytes: BATCH_VECTOR_BYTES_MAX, scratch };
    if changes {
        change(access, now, &operations, room, effort)
    } else {
        look_up(access, now, &operations, room, effort)
    }
}

/// Executes operations that may change pairs, partition by partition.
fn change(
    access: &PartitionAccess,
    now: Moment,
    operations: &[Hashed<'_>],
    room: &mut [u8],
    mut effort: Effort<'_>,
) -> (usize, u32) {
    let (mut parts, mut places) = (Parts::default(), Vec::with_capacity(operations.len()));
    let mut end = 0;
    parts.sort(
        access.position().1,
        operations.iter().map(|Hashed { hash, operation }| {
            let start = end;
            end += operation.outcome_bytes();
            places.push((start, 0));
            Some(access.partition_of(*hash))
        }),
    );
    let mut failed_count = 0;
    access.for_each_part(&mut parts, now, |partition, numbers| {
        let processor = &mut partition.processor;
        for numbers in numbers.chunks(AHEAD_COUNT) {
            prefetch(processor, numbers.iter().map(|number| operations[*number as usize].hash));
            for &number in numbers {
                let Hashed { hash, operation } = &operations[number as usize];
                let (start, used) = &mut places[number as usize];
                let mut writer = OutcomeWriter::new(&mut room[*start..*start + operation.outcome_bytes()]);
                execute(processor, *hash, operation, &mut writer, &mut effort);
                failed_count += writer.failed_count();
                *used = writer.finish();
            }
        }
    });
    let mut end = 0;
    for (start, used) in places {
        if start != end {
            room.copy_within(start..start + used, end);
        }
        end += used;
    }
    (end, failed_count)
}

/// Executes look-ups in order. What they find is marked as read afterwards.
fn look_up(
    access: &PartitionAccess,
    now: Moment,
    operations: &[Hashed<'_>],
    room: &mut [u8],
    mut effort: Effort<'_>,
) -> (usize, u32) {
    let mut writer = OutcomeWriter::new(room);
    let mut read = Vec::new();
    for operations in operations.chunks(READ_COUNT) {
        let mut locks = access.read_locks(now);
        for operations in operations.chunks(AHEAD_COUNT) {
            for Hashed { hash, .. } in operations {
                locks.get(access.partition_of(*hash)).0.processor.prefetch(*hash);
            }
            for Hashed { hash, .. } in operations {
                locks.get(access.partition_of(*hash)).0.processor.prefetch_item(*hash);
            }
            for Hashed { hash, operation } in operations {
                let number = access.partition_of(*hash);
                let (partition, _) = locks.get(number);
                let (status, result, data_bytes) = match partition.processor.see(*hash, operation.key, None) {
                    Seen::Absent => (Status::KEY_DOES_NOT_EXIST.with_dnr(), 0, 0),
                    Seen::Whole { value, .. } if operation.opcode == KvOpcode::EXIST => {
                        (Status::SUCCESS, value.len() as u64, 0)
                    }
                    Seen::Whole { value, is_touch_due, .. } => {
                        let room = writer.room(operation.room_bytes as usize);
                        let data_bytes = value.len().min(room.len());
                        room[..data_bytes].copy_from_slice(&value[..data_bytes]);
                        if is_touch_due {
                            read.push((*hash, operation.key));
                        }
                        (Status::SUCCESS, value.len() as u64, data_bytes)
                    }
                    Seen::Other => {
                        locks.release();
                        let mut partition = access.exclusive_at(number, now);
                        execute(&mut partition.processor, *hash, operation, &mut writer, &mut effort);
                        continue;
                    }
                };
                let fits = writer.push(status, result, data_bytes);
                debug_assert!(fits, "counted before");
            }
        }
    }
    access.mark_read(now, &read);
    let failed_count = writer.failed_count();
    (writer.finish(), failed_count)
}

fn execute(
    processor: &mut Processor,
    hash: KeyHash,
    operation: &Operation<'_>,
    writer: &mut OutcomeWriter<'_>,
    effort: &mut Effort<'_>,
) {
    let room = writer.room(operation.room_bytes as usize);
    let Done { status, result, data_bytes } = operate(processor, hash, operation, room, effort);
    let fits = writer.push(status, result, data_bytes);
    debug_assert!(fits, "counted before");
}

/// Prefetches the lines of keys: their buckets, then their items.
fn prefetch(processor: &Processor, hashes: impl Iterator<Item = KeyHash> + Clone) {
    hashes.clone().for_each(|hash| processor.prefetch(hash));
    hashes.for_each(|hash| processor.prefetch_item(hash));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kv::{Partition, PartitionSet, Settings};
    use linux::random::SplitMix64;
    use wire::kv::batch::Outcomes;
    use wire::kv::operation::{AtomicFunction, AtomicOptions};

    use super::*;
    use crate::messages::key_value::batch_part::run_here;

    fn partition() -> Partition {
        Partition::new(Processor::new(Settings::default()).expect("memory"), Moment::default())
    }

    fn access(count: usize, own: usize) -> PartitionAccess {
        let set = Arc::new(PartitionSet::new(count, Settings::default().seed, None));
        (0..count).for_each(|number| set.put(number, partition()));
        PartitionAccess::new(set, own)
    }

    /// A batch of operations on a few keys, and the room for its outcomes. Some batches only look up.
    fn batch(random: &mut SplitMix64) -> (Vec<u8>, usize) {
        let (mut data, mut room_bytes) = (Vec::new(), 0);
        let only_reads = random.below(3) == 0;
        for _ in 0..1 + random.below(600) {
            let key = [b'k', random.below(40) as u8];
            let value = vec![random.below(256) as u8; [8, 8, 20, 300, 5000][random.index(5)]];
            let mut number = [0; 24];
            number[..8].copy_from_slice(&random.below(9).to_le_bytes());
            let room = random.below(400) as u32;
            let none = Operation {
                opcode: KvOpcode::EXIST,
                options: 0,
                kind: 0,
                room_bytes: 0,
                key: &key,
                operand: &[],
            };
            let operation = match random.below(if only_reads { 4 } else { 10 }) {
                0 => none,
                1..=3 => Operation { opcode: KvOpcode::RETRIEVE, room_bytes: room, ..none },
                4..=6 => Operation { opcode: KvOpcode::STORE, operand: &value, ..none },
                7 => Operation { opcode: KvOpcode::DELETE, ..none },
                _ => Operation {
                    opcode: KvOpcode::ATOMIC,
                    kind: AtomicFunction::ADD.raw(),
                    options: AtomicOptions::CREATE.bits(),
                    operand: &number,
                    ..none
                },
            };
            assert!(operation.append_to(&mut data));
            room_bytes += operation.outcome_bytes();
        }
        (data, room_bytes)
    }

    #[test]
    fn a_batch_has_the_outcomes_of_one_partition() {
        for seed in 0..40 {
            let mut random = SplitMix64::new(seed);
            let mut alone = partition();
            let count = 1 + random.index(5);
            let access = access(count, random.index(count));
            for _ in 0..20 {
                let (data, room_bytes) = batch(&mut random);
                let (mut expected, mut room) = (vec![0; room_bytes], vec![0xff; room_bytes]);
                let mut writer = OutcomeWriter::new(&mut expected);
                run_here(&mut alone, &data, &mut writer, &mut Vec::new());
                let expected_failures = writer.failed_count();
                let length = writer.finish();
                let (used, failed_count) =
                    run_in_place(&access, Moment::default(), &data, &mut room, &mut Vec::new());
                assert_eq!((used, failed_count), (length, expected_failures), "seed {seed}");
                let number = Outcomes::new(&room[..used])
                    .zip(Outcomes::new(&expected[..length]))
                    .position(|(one, other)| (one.result, one.data) != (other.result, other.data));
                assert_eq!(number, None, "seed {seed}");
                assert!(room[..used] == expected[..length], "seed {seed}");
            }
            let pair_count = |number| access.exclusive(number).processor.counters().pair_count;
            assert_eq!(
                (0..count).map(pair_count).sum::<u64>(),
                alone.processor.counters().pair_count,
                "seed {seed}"
            );
        }
    }

    #[test]
    fn look_ups_mark_what_they_have_read() {
        let access = access(2, 0);
        let key = b"key";
        let hash = access.hash(key);
        let none =
            Operation { opcode: KvOpcode::RETRIEVE, options: 0, kind: 0, room_bytes: 64, key, operand: &[] };
        let run = |operation: Operation<'_>| {
            let (mut data, mut room) = (Vec::new(), vec![0; operation.outcome_bytes()]);
            assert!(operation.append_to(&mut data));
            run_in_place(&access, Moment::default(), &data, &mut room, &mut Vec::new())
        };
        assert_eq!(run(Operation { opcode: KvOpcode::STORE, room_bytes: 0, operand: &[7; 50], ..none }).1, 0);
        let is_fetched = || {
            let mut partition = access.exclusive(access.partition_of(hash));
            let place = partition.processor.find(hash, key).expect("stored");
            partition.processor.marks(place).is_fetched
        };
        run(Operation { opcode: KvOpcode::EXIST, room_bytes: 0, ..none });
        assert!(!is_fetched());
        run(none);
        assert!(is_fetched());
    }
}
