//! Which lane a key takes, where the target tells how its keys are divided. docs/kv-commands.md §6

use memory::{Partitioner, partition_of};
use proto::host_namespaces::KeyPartitions;

/// Bits of a key that select one of several lanes near its partition; others select the partition.
const LANE_BITS: u32 = 0xfff;

/// The partitions of a key-value namespace, as its target told them. Lane number *n* of a host, from 1, is near
/// partition (*n* - 1) modulo the number of partitions; the partition's reactor then has both the lane and the key.
///
/// A key always takes the same lane, so its commands keep their order. A target serves every key on every lane, so a
/// map that is out of date costs time only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionMap {
    partitioner: Partitioner,
    count: u16,
}

impl PartitionMap {
    /// The map that a target tells.
    #[must_use]
    pub fn new(partitions: KeyPartitions) -> Self {
        Self { partitioner: Partitioner::new(partitions.seed), count: partitions.count }
    }

    /// Number of partitions.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// The partition of a key.
    #[inline]
    #[must_use]
    pub fn partition_of(&self, key: &[u8]) -> u16 {
        // Less than the count, of 16 bits.
        u16::try_from(partition_of(self.partitioner.bits(key), self.count.into())).unwrap_or_default()
    }

    /// The index of the lane of a key, of `lanes` with the numbers from 1; `None` if these are fewer than partitions.
    #[inline]
    #[must_use]
    pub fn lane_of(&self, key: &[u8], lanes: u16) -> Option<u16> {
        if self.count == 0 || lanes < self.count {
            return None;
        }
        let partition = self.partition_of(key);
        // The lanes near it: at least one.
        let near = lanes.saturating_sub(partition).div_ceil(self.count).max(1);
        let turn =
            if near == 1 { 0 } else { (self.partitioner.bits(key) & LANE_BITS).checked_rem(near.into())? };
        u16::try_from(turn).ok()?.checked_mul(self.count)?.checked_add(partition)
    }
}

/// The partition, of `count`, that the lane with this number is to be near, of a host with `lanes` such lanes: none
/// unless there is a lane for each partition, or if there is one partition only.
pub(crate) fn partition_near(number: u16, lanes: u16, count: u16) -> Option<u16> {
    let is_divided = count > 1 && lanes >= count;
    let index = number.checked_sub(1).filter(|index| is_divided && *index < lanes)?;
    index.checked_rem(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(count: u16) -> PartitionMap {
        PartitionMap::new(KeyPartitions { seed: 7, count })
    }

    fn keys() -> impl Iterator<Item = Vec<u8>> {
        (0..4000).map(|number| format!("{number:016x}").into_bytes())
    }

    #[test]
    fn a_key_takes_a_lane_near_its_partition_and_all_lanes_are_used() {
        for (count, lanes) in [(1, 1), (2, 2), (2, 3), (3, 8), (7, 7), (8, 16)] {
            let map = map(count);
            let mut used = vec![0; lanes.into()];
            for key in keys() {
                let lane = map.lane_of(&key, lanes).expect("a lane for each partition");
                assert_eq!(map.lane_of(&key, lanes), Some(lane));
                let near = if count > 1 { partition_near(lane + 1, lanes, count) } else { Some(0) };
                assert_eq!(near, Some(map.partition_of(&key)));
                used[usize::from(lane)] += 1;
            }
            let least = 4000 / usize::from(count) / usize::from(lanes.div_ceil(count)) * 3 / 4;
            assert!(used.iter().all(|count| *count > least), "{count} over {lanes}: {used:?}");
        }
    }

    #[test]
    fn with_fewer_lanes_than_partitions_there_is_none_for_a_key() {
        assert_eq!(map(3).lane_of(b"key", 2), None);
        assert_eq!(map(3).lane_of(b"key", 0), None);
        assert_eq!([1, 2, 3].map(|number| partition_near(number, 2, 3)), [None; 3]);
    }

    #[test]
    fn lanes_ask_for_partitions_in_turn() {
        let near =
            |lanes, count| (0..=5).map(|number| partition_near(number, lanes, count)).collect::<Vec<_>>();
        assert_eq!(
            near(4, 2),
            [None, Some(0), Some(1), Some(0), Some(1), None],
            "not the admin queue, nor others"
        );
        assert_eq!(near(4, 1), [None; 6], "one partition is near wherever it is");
        assert_eq!(near(4, 0), [None; 6]);
    }
}
