//! A batch divided among lanes: each operation is sent on the lane of its key.

use wire::kv::batch::{OUTCOME_HEADER_BYTES, Operations, OutcomeWriter, Outcomes};

use super::{Batch, PartitionMap};

/// The parts of a batch, one for each lane. Operations on one key are in one part, in order.
#[derive(Debug)]
pub struct DividedBatch {
    parts: Vec<Batch>,
    /// The part of each operation, in order.
    order: Vec<u16>,
    outcome_bytes: usize,
}

impl DividedBatch {
    /// Divides a batch among `lanes` lanes with the numbers from 1; `None` if these are fewer than partitions, or all
    /// operations belong to one lane.
    #[must_use]
    pub fn new(batch: &Batch, map: &PartitionMap, lanes: u16) -> Option<Self> {
        let mut parts: Vec<Batch> = (0..lanes).map(|_| batch.empty_one()).collect();
        let mut order = Vec::with_capacity(batch.len());
        for operation in Operations::new(batch.data()).map_while(Result::ok) {
            let lane = map.lane_of(operation.key, lanes)?;
            // A part has no more operations and bytes than the whole.
            parts.get_mut(usize::from(lane))?.push(&operation).ok()?;
            order.push(lane);
        }
        let is_divided = order.iter().any(|lane| Some(lane) != order.first());
        is_divided.then(|| Self { parts, order, outcome_bytes: batch.outcome_bytes() as usize })
    }

    /// The parts, by lane; some may be empty.
    pub fn parts_mut(&mut self) -> &mut [Batch] {
        &mut self.parts
    }

    /// Writes the outcomes in the order of the operations into `merged`: `collected` has the buffer and the result of
    /// each part's Collect, by lane. They end where one is missing.
    pub fn merge(&self, collected: &[(Vec<u8>, u64)], merged: &mut Vec<u8>) {
        let mut parts: Vec<Outcomes<'_>> =
            collected.iter().map(|(buffer, result)| Batch::outcomes(buffer, *result)).collect();
        // As long as the operations allow: more than that is not theirs.
        merged.clear();
        merged.resize(self.outcome_bytes.max(OUTCOME_HEADER_BYTES), 0);
        let mut writer = OutcomeWriter::new(merged);
        for lane in &self.order {
            let Some(outcome) = parts.get_mut(usize::from(*lane)).and_then(Iterator::next) else { break };
            let room = writer.room(outcome.data.len());
            if room.len() < outcome.data.len() {
                break;
            }
            room.copy_from_slice(outcome.data);
            if !writer.push(outcome.status, outcome.result, outcome.data.len()) {
                break;
            }
        }
        let length = writer.finish();
        merged.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use proto::host_namespaces::KeyPartitions;
    use wire::identify::command_set::KvVendorCommands;
    use wire::kv::batch::{collect_result, collected_bytes};
    use wire::status::Status;

    use super::*;
    use crate::key_value::tests::{key, namespace};

    fn map() -> PartitionMap {
        PartitionMap::new(KeyPartitions { seed: 3, count: 2 })
    }

    /// A batch of the keys with these numbers, each with room for its data.
    fn batch(numbers: &[u8]) -> Batch {
        let mut batch = namespace(KvVendorCommands::all()).batch().expect("a batch");
        for number in numbers {
            batch.retrieve(&key(&number.to_string()), 8).expect("room");
        }
        batch
    }

    /// The answers of a target: each operation's outcome has its key's first byte as data and result.
    fn answer(part: &Batch) -> (Vec<u8>, u64) {
        let mut buffer = vec![0; part.outcome_bytes() as usize];
        let mut writer = OutcomeWriter::new(&mut buffer);
        for operation in Operations::new(part.data()).map(|operation| operation.expect("whole")) {
            writer.room(8)[0] = operation.key[0];
            assert!(writer.push(Status::SUCCESS, operation.key[0].into(), 1));
        }
        let result = collect_result(u32::try_from(writer.finish()).expect("short"), 4);
        assert!(collected_bytes(result) as usize <= buffer.len());
        (buffer, result)
    }

    #[test]
    fn operations_on_a_key_are_in_one_part_and_outcomes_return_in_order() {
        let lanes = [1u8, 2, 3, 4].map(|number| map().lane_of(key(&number.to_string()).as_bytes(), 2));
        let other = lanes.iter().position(|lane| *lane != lanes[0]).expect("keys in both");
        let other = u8::try_from(other + 1).expect("a digit");
        let numbers = [1, other, 1, other];
        let mut divided = DividedBatch::new(&batch(&numbers), &map(), 2).expect("divided");
        let keys = |part: &Batch| -> Vec<Vec<u8>> {
            Operations::new(part.data()).map(|operation| operation.unwrap().key.to_vec()).collect()
        };
        let mut parts: Vec<Vec<Vec<u8>>> = divided.parts_mut().iter().map(keys).collect();
        parts.sort();
        let twice = |number: u8| vec![number.to_string().into_bytes(); 2];
        assert_eq!(parts, [twice(1), twice(other)]);
        let collected: Vec<(Vec<u8>, u64)> = divided.parts_mut().iter().map(answer).collect();
        let mut merged = Vec::new();
        divided.merge(&collected, &mut merged);
        let results: Vec<u64> = Outcomes::new(&merged).map(|outcome| outcome.result).collect();
        assert_eq!(results, numbers.map(|number| u64::from(b'0' + number)));
        assert!(Outcomes::new(&merged).all(|outcome| u64::from(outcome.data[0]) == outcome.result));
        // A part with too few outcomes ends them.
        let short: Vec<(Vec<u8>, u64)> = collected.iter().map(|(buffer, _)| (buffer.clone(), 24)).collect();
        divided.merge(&short, &mut merged);
        assert_eq!(Outcomes::new(&merged).count(), 2);
    }

    #[test]
    fn a_batch_of_one_lane_is_not_divided() {
        assert!(DividedBatch::new(&batch(&[1, 1]), &map(), 2).is_none());
        assert!(DividedBatch::new(&batch(&[]), &map(), 2).is_none());
        assert!(DividedBatch::new(&batch(&[1, 2, 3, 4]), &map(), 1).is_none(), "fewer lanes than partitions");
    }
}
