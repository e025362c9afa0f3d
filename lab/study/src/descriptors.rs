//! Number of lanes that a limit on descriptors allows.

/// Descriptors for everything but lanes.
const OTHER_COUNT: u64 = 200;

/// Descriptors of one lane of the host: its connection and its mailbox.
const PER_HOST_LANE: u64 = 2;

/// Lanes of one host process with this number of descriptors.
pub(crate) fn host_lane_count_max(descriptor_count: u64) -> u64 {
    (descriptor_count.saturating_sub(OTHER_COUNT) / PER_HOST_LANE).max(1)
}

/// Lanes of a target with this number of descriptors.
pub(crate) fn target_lane_count_max(descriptor_count: u64) -> u64 {
    descriptor_count.saturating_sub(OTHER_COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_leaves_room_for_the_rest() {
        assert_eq!(host_lane_count_max(20_000), 9_900);
        assert_eq!(host_lane_count_max(10), 1);
        assert_eq!(target_lane_count_max(20_000), 19_800);
    }
}
