//! Lanes over a pair of virtual Ethernet devices with two queues each, which can be polled: each queue has its own
//! reactor, which polls it. Needs root, `ip` and `ethtool`.
#![allow(clippy::cast_possible_truncation)]

#[allow(dead_code)] // Each test program uses a part of it.
#[path = "end_to_end/exercise.rs"]
mod exercise;
#[allow(dead_code)]
#[path = "end_to_end/setup.rs"]
mod setup;
mod veth;

use std::collections::BTreeMap;

use host::{Association, BusyPoll, LaneSet};
use linux::random::SplitMix64;
use serde_json::Value;
use wire::id::Nsid;

use exercise::{Load, Model};
use setup::{PATIENCE, engines, options};
use veth::{Network, Target};

const LANE_COUNT: u16 = 8;

#[test]
fn each_device_queue_has_its_reactor_which_polls_it() {
    for (number, engine) in (0..).zip(engines()) {
        let Some(network) = Network::new(number) else { return };
        let directory = tempfile::tempdir().expect("a directory");
        let engine = match engine {
            reactor::EngineKind::Uring => "uring",
            reactor::EngineKind::Epoll => "epoll",
        };
        let cores = format!("{}", linux::CoreList::allowed().expect("cores"));
        let arguments = format!("--engine {engine} --cores {cores} --placement napi --busy-poll 50");
        let target =
            Target::start(env!("CARGO_BIN_EXE_nvlane"), &network, directory.path(), "ram:1M", &arguments);
        let busy_poll = BusyPoll::us(50);
        let wanted = options().with_lanes(LANE_COUNT).with_depth(8).tuned(|tuning| {
            tuning.busy_poll = busy_poll;
            tuning.spin = PATIENCE;
        });
        let association = Association::connect(&target.address, wanted).expect("a host connects");
        let lanes = (0..LANE_COUNT).map(|_| association.lane().expect("a lane")).collect();
        let mut lanes: LaneSet<Vec<u8>> = LaneSet::new(lanes).expect("a set");
        let namespace = association.namespace(Nsid::new(1)).expect("a namespace");
        let mut model = Model::new(&namespace, 1);
        let mut load = || {
            let load = Load { commands: 2000, bytes: 8 << 20, blocks_max: 4 };
            model.run(&mut lanes, &namespace, load, &mut SplitMix64::new(1));
        };
        load();
        let before = target.state();
        load();
        let mut after = target.state();
        let polled = |state: &Value| state["busy_polled_packets"].as_u64().expect("a counter of the kernel");
        // A waiting side polls; if the other side always has the next command ready, neither side waits.
        for _ in 0..50 {
            if polled(&after) > polled(&before) {
                break;
            }
            load();
            after = target.state();
        }
        for lane in lanes.lanes() {
            assert!(
                lane.arrival().napi_id.is_some(),
                "GRO without TSO gives the host's device a context to poll"
            );
            assert_eq!(lane.counters().busy_poll_refusals, 0);
        }
        let queues = after["subsystems"][0]["controllers"][0]["queues"].as_array().expect("queues");
        let mut reactors: BTreeMap<u64, u64> = BTreeMap::new();
        for queue in queues {
            let [napi, reactor] = ["napi_id", "reactor"].map(|key| queue[key].as_u64().expect("a number"));
            assert_ne!(napi, 0, "{queue}");
            assert_eq!(
                *reactors.entry(napi).or_insert(reactor),
                reactor,
                "one reactor for each queue: {queues:?}"
            );
        }
        assert_eq!(after["placement"]["by_napi"], LANE_COUNT, "{}", after["placement"]);
        assert_eq!(after["placement"]["fell_back"], 0);
        let two = reactors.len() == 2 && after["reactors"].as_array().map_or(0, Vec::len) > 1;
        let places: std::collections::BTreeSet<u64> = reactors.values().copied().collect();
        assert_eq!(
            places.len() > 1,
            two,
            "queues have reactors of their own while there are any: {reactors:?}"
        );
        for reactor in after["reactors"].as_array().expect("reactors") {
            let polling = &reactor["busy_poll"];
            // Polling by the engine needs Linux 6.9; sockets can poll on every kernel.
            assert!(
                polling["engine"] == "on" || polling["engine"].as_str().unwrap_or("").contains("refused")
            );
            assert!(polling["refused_count"] == 0, "{polling}");
        }
        assert!(polled(&after) > polled(&before), "the kernel counts packets that were taken in by polling");
    }
}
