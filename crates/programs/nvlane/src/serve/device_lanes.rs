//! The lanes of a target against the receive queues of a device: whether they come in through queues of the target's
//! classes, and whether one reactor serves each queue.

use std::collections::{BTreeMap, BTreeSet};

use subsystem::state::TargetState;

/// A lane: the NAPI id that its packets came in through, and its reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArrivedLane {
    pub(super) napi_id: u32,
    pub(super) reactor: u16,
}

/// The I/O lanes of a target whose NAPI id is known.
pub(super) fn arrived_lanes(state: &TargetState) -> Vec<ArrivedLane> {
    let queues = state.subsystems.iter().flat_map(|subsystem| &subsystem.controllers);
    let queues = queues.flat_map(|controller| &controller.queues);
    let arrived = queues.filter_map(|queue| {
        let napi_id = u32::try_from(queue.napi_id).ok().filter(|id| *id != 0)?;
        Some(ArrivedLane { napi_id, reactor: queue.reactor })
    });
    arrived.collect()
}

/// Deviations: `receive_queues` are those of the device by NAPI id, `of_classes` those of the classes that the target
/// serves. Lanes through other devices, or of unknown queues, are ignored.
pub(super) fn lane_deviations(
    lanes: &[ArrivedLane],
    receive_queues: &BTreeMap<u32, u16>,
    of_classes: &BTreeSet<u16>,
) -> Vec<String> {
    let mut reactors: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
    let mut outside: BTreeMap<u16, u32> = BTreeMap::new();
    for lane in lanes {
        let Some(queue) = receive_queues.get(&lane.napi_id) else { continue };
        reactors.entry(*queue).or_default().insert(lane.reactor);
        if !of_classes.contains(queue) {
            *outside.entry(*queue).or_default() += 1;
        }
    }
    let mut deviations = Vec::new();
    if !outside.is_empty() {
        let count: u32 = outside.values().sum();
        deviations.push(format!(
            "{count} connections come in through queues {} of other classes (they were there before the layout, or their packets match no class)",
            list(outside.keys())
        ));
    }
    for (queue, reactors) in reactors.iter().filter(|(_, reactors)| reactors.len() > 1) {
        deviations.push(format!(
            "queue {queue} is served by reactors {} (its connections were placed before --placement napi, or before the queues were built again)",
            list(reactors)
        ));
    }
    deviations
}

fn list<'a>(numbers: impl IntoIterator<Item = &'a u16>) -> String {
    numbers.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_outside_of_their_class_and_queues_of_several_reactors_are_named() {
        let receive_queues: BTreeMap<u32, u16> =
            (0..4).map(|queue| (8193 + u32::from(queue), queue)).collect();
        let of_classes = BTreeSet::from([2, 3]);
        let deviations = |lanes: &[(u32, u16)]| {
            let lanes: Vec<_> =
                lanes.iter().map(|&(napi_id, reactor)| ArrivedLane { napi_id, reactor }).collect();
            lane_deviations(&lanes, &receive_queues, &of_classes)
        };
        assert_eq!(deviations(&[(8195, 0), (8196, 1), (8195, 0)]), [""; 0]);
        // Another device, and a device that does not report its queues.
        assert_eq!(deviations(&[(7, 0), (7, 1)]), [""; 0]);
        let outside = deviations(&[(8195, 0), (8193, 0), (8193, 0), (8194, 1)]);
        assert_eq!(outside.len(), 1, "{outside:?}");
        assert!(outside[0].starts_with("3 connections come in through queues 0, 1 of other"), "{outside:?}");
        let spread = deviations(&[(8195, 0), (8195, 1), (8196, 1)]);
        assert_eq!(spread.len(), 1, "{spread:?}");
        assert!(spread[0].starts_with("queue 2 is served by reactors 0, 1 "), "{spread:?}");
    }
}
