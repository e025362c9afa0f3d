//! The assignment of lanes to reactors, as the lanes' counters report it: with every policy, its fallback, and after a
//! reload.

use std::collections::BTreeMap;

use host::{Association, LaneSet};
use linux::CoreList;
use linux::random::SplitMix64;
use reactor::BusyPoll;
use subsystem::config::Threads;
use subsystem::placement_policy::PlacementPolicy;
use subsystem::state::{PlacementState, QueueState, TargetState};
use wire::id::Nsid;
use wire::pdu::Digests;

use crate::exercise::{Load, Model};
use crate::setup::{Rig, engines, options, options_of};

const ONE: Nsid = Nsid::new(1);

fn rig(engine: reactor::EngineKind, policy: PlacementPolicy) -> Rig {
    Rig::with(engine, &["ram:1M"], |config| config.reactors.placement = policy)
}

/// The queues of all hosts.
fn queues(state: &TargetState) -> Vec<QueueState> {
    let controllers = state.subsystems.iter().flat_map(|subsystem| &subsystem.controllers);
    controllers.flat_map(|controller| controller.queues.clone()).collect()
}

fn placement(state: &TargetState) -> PlacementState {
    state.placement.clone().expect("reactors that were asked")
}

/// Number of an association's working lanes.
fn lanes(association: &Association, count: usize) -> LaneSet<Vec<u8>> {
    let lanes = (0..count).map(|_| association.lane().expect("a lane")).collect();
    LaneSet::new(lanes).expect("a set")
}

/// Runs a load on a namespace that was never written.
fn exercise(association: &Association, lanes: &mut LaneSet<Vec<u8>>) {
    let namespace = association.namespace(ONE).expect("a namespace");
    exercise_on(&mut Model::new(&namespace, 1), association, lanes);
}

/// Runs a load on a namespace with the model's contents.
fn exercise_on(model: &mut Model, association: &Association, lanes: &mut LaneSet<Vec<u8>>) {
    let namespace = association.namespace(ONE).expect("a namespace");
    let load = Load { commands: 200, bytes: 4 << 20, blocks_max: 16 };
    model.run(lanes, &namespace, load, &mut SplitMix64::new(1));
}

#[test]
fn hosts_with_a_lane_each_are_spread_over_the_reactors() {
    for engine in engines() {
        let rig = rig(engine, PlacementPolicy::Load);
        let mut hosts = Vec::new();
        for number in 1..=6 {
            let association = rig.connect(options_of(number).with_lanes(1));
            hosts.push((lanes(&association, 1), association));
        }
        let state = rig.state();
        assert_eq!(state.reactors.iter().map(|reactor| reactor.io_lanes).collect::<Vec<_>>(), [3, 3]);
        let placement = placement(&state);
        assert_eq!(
            (placement.counters.by_load, placement.counters.fell_back, placement.counters.stuck),
            (6, 0, 0)
        );
        assert!(placement.counters.moved > 0, "admin lanes are no load: {placement:?}");
        let mut model = Model::new(&hosts[0].1.namespace(ONE).expect("a namespace"), 1);
        for (lanes, association) in &mut hosts {
            exercise_on(&mut model, association, lanes);
        }
        drop(hosts);
        rig.await_quiet();
        assert!(rig.state().reactors.iter().all(|reactor| reactor.lanes == 0));
    }
}

#[test]
fn queues_go_to_the_reactors_of_their_numbers_and_work_there() {
    for engine in engines() {
        for digests in [Digests::empty(), Digests::all()] {
            let rig = rig(engine, PlacementPolicy::Queue);
            let association = rig.connect(options().with_lanes(5).with_only_digests(digests));
            let mut lanes = lanes(&association, 5);
            exercise(&association, &mut lanes);
            let state = rig.state();
            for queue in queues(&state) {
                assert_eq!(queue.reactor, (queue.qid - 1) % 2, "{queue:?}");
                assert!(queue.read_count + queue.write_count > 0, "{queue:?} has worked");
            }
            assert_eq!(queues(&state).len(), 5);
            let placement = placement(&state);
            assert_eq!((placement.counters.by_queue, placement.counters.stuck), (5, 0));
        }
    }
}

#[test]
fn loopback_has_no_device_queue_and_falls_back_to_load() {
    for engine in engines() {
        let rig = rig(engine, PlacementPolicy::Napi);
        let association = rig.connect(options().with_lanes(4));
        let mut lanes = lanes(&association, 4);
        exercise(&association, &mut lanes);
        let state = rig.state();
        assert!(queues(&state).iter().all(|queue| queue.napi_id == 0));
        assert_eq!(state.reactors.iter().map(|reactor| reactor.io_lanes).collect::<Vec<_>>(), [2, 2]);
        let placement = placement(&state);
        assert_eq!((placement.counters.by_napi, placement.counters.fell_back), (0, 4));
        assert_eq!(placement.device_queues, []);
    }
}

#[test]
fn a_lane_goes_to_the_core_that_takes_its_packets_in() {
    let allowed = CoreList::allowed().expect("cores");
    let [first, second, ..] = *allowed.cores() else {
        return eprintln!("skipped: this takes two cores");
    };
    for engine in engines() {
        let cores = format!("{first},{second}").parse().expect("a list");
        let rig = Rig::with(engine, &["ram:1M"], |config| {
            config.reactors.placement = PlacementPolicy::Cpu;
            config.reactors.threads = Threads::Cores(cores);
        });
        let association = rig.connect(options().with_lanes(4));
        // Over loopback the sender's core also processes the receive.
        let mut expected = BTreeMap::new();
        let mut connected: Vec<host::Lane> = Vec::new();
        for (reactor, core) in [(0, first), (1, second), (0, first), (1, second)] {
            let lane = std::thread::scope(|scope| {
                let connect = || {
                    linux::pin(core).expect("an allowed core");
                    association.lane().expect("a lane")
                };
                scope.spawn(connect).join().expect("no panic")
            });
            expected.insert(lane.number(), reactor);
            connected.push(lane);
        }
        let state = rig.state();
        let found: BTreeMap<u16, u16> =
            queues(&state).iter().map(|queue| (queue.qid, queue.reactor)).collect();
        assert_eq!(found, expected);
        assert_eq!((placement(&state).counters.by_cpu, placement(&state).counters.fell_back), (4, 0));
        exercise(&association, &mut LaneSet::new(connected).expect("a set"));
    }
}

#[test]
fn a_reload_changes_the_policy_for_lanes_to_come() {
    for engine in engines() {
        let mut rig = rig(engine, PlacementPolicy::Load);
        let first = rig.connect(options_of(1).with_lanes(2));
        let mut before = lanes(&first, 2);
        let was = queues(&rig.state());
        rig.reload(|config| config.reactors.placement = PlacementPolicy::Queue);
        let second = rig.connect(options_of(2).with_lanes(4));
        let mut after = lanes(&second, 4);
        let state = rig.state();
        assert_eq!(placement(&state).policy, "queue");
        assert_eq!((placement(&state).counters.by_load, placement(&state).counters.by_queue), (2, 4));
        let (stayed, new): (Vec<_>, Vec<_>) = {
            let controllers = state.subsystems[0].controllers.iter();
            controllers.partition(|controller| controller.queues.len() == 2)
        };
        let places = |queues: &[QueueState]| -> Vec<(u16, u16)> {
            queues.iter().map(|queue| (queue.qid, queue.reactor)).collect()
        };
        assert_eq!(places(&stayed[0].queues), places(&was));
        assert_eq!(places(&new[0].queues), [(1, 0), (2, 1), (3, 0), (4, 1)]);
        let mut model = Model::new(&first.namespace(ONE).expect("a namespace"), 1);
        exercise_on(&mut model, &first, &mut before);
        exercise_on(&mut model, &second, &mut after);
    }
}

#[test]
fn busy_polling_over_loopback_goes_on_without_a_device() {
    for engine in engines() {
        let rig = Rig::with(engine, &["ram:1M"], |config| {
            config.reactors.busy_poll = BusyPoll::us(50);
            config.reactors.placement = PlacementPolicy::Napi;
        });
        let association =
            rig.connect(options().with_lanes(2).tuned(|tuning| tuning.busy_poll = BusyPoll::us(50)));
        let mut lanes = lanes(&association, 2);
        exercise(&association, &mut lanes);
        for lane in lanes.lanes() {
            assert_eq!(lane.arrival().napi_id, None);
        }
        let state = rig.state();
        for reactor in &state.reactors {
            let polling = &reactor.busy_poll;
            assert!(polling.engine == "on" || polling.engine.starts_with("refused"), "{polling:?}");
            assert_eq!(polling.wait_us, 50);
            assert!(polling.socket_count + polling.refused_count > 0, "{polling:?}");
            assert!(reactor.napi_ids.is_empty());
        }
        assert_eq!(placement(&state).counters.fell_back, 2);
    }
}
