//! Zero-copy where packets leave through a device but not the machine: lanes start with it, learn that the kernel
//! copies after all, and disable it. Needs root, `ip` and `ethtool`.
#![allow(clippy::cast_possible_truncation)]

#[allow(dead_code)] // Each test program uses a part of it.
#[path = "end_to_end/exercise.rs"]
mod exercise;
#[allow(dead_code)]
#[path = "end_to_end/setup.rs"]
mod setup;
mod veth;

use host::{Association, LaneSet, ZeroCopy};
use linux::random::SplitMix64;
use serde_json::Value;
use wire::id::Nsid;

use exercise::{Load, Model};
use setup::options;
use veth::{Network, Target};

/// Maximum sends in flight when the first notifications arrive.
const SENDS_MAX: u64 = 64;

/// Zero-copy sends, and those that the kernel copied, over all lanes of the target.
fn counted(state: &Value) -> [u64; 2] {
    let queues = state["subsystems"][0]["controllers"][0]["queues"].as_array().expect("queues");
    ["zero_copy_count", "zero_copy_copied_count"]
        .map(|name| queues.iter().map(|queue| queue["counters"][name].as_u64().expect("a counter")).sum())
}

#[test]
fn lanes_give_up_what_the_kernel_does_not_do() {
    for (number, engine) in [(7, "uring"), (8, "epoll")] {
        let Some(network) = Network::new(number) else { return };
        let directory = tempfile::tempdir().expect("a directory");
        let storage = format!("file:{}?size=8M", directory.path().join("1.img").display());
        let target = Target::start(
            env!("CARGO_BIN_EXE_nvlane"),
            &network,
            directory.path(),
            &storage,
            &format!("--engine {engine}"),
        );
        let wanted = options().with_lanes(1).with_depth(8).tuned(|tuning| tuning.zero_copy = ZeroCopy::Auto);
        let association = Association::connect(&target.address, wanted).expect("a host connects");
        let mut lanes: LaneSet<Vec<u8>> =
            LaneSet::new(vec![association.lane().expect("a lane")]).expect("a set");
        let namespace = association.namespace(Nsid::new(1)).expect("a namespace");
        let mut model = Model::new(&namespace, 1);
        let mut load = |lanes: &mut LaneSet<Vec<u8>>| {
            let load = Load { commands: 400, bytes: 96 << 20, blocks_max: 256 };
            model.run(lanes, &namespace, load, &mut SplitMix64::new(1));
        };
        load(&mut lanes);
        let (of_host, of_target) = (lanes.lanes()[0].counters(), counted(&target.state()));
        assert!((4..SENDS_MAX).contains(&of_host.zero_copy_sends), "{of_host:?}");
        assert_eq!(of_host.zero_copy_copied, of_host.zero_copy_sends);
        assert!((4..SENDS_MAX).contains(&of_target[0]), "{of_target:?}");
        assert_eq!(of_target[1], of_target[0]);
        load(&mut lanes);
        assert_eq!(lanes.lanes()[0].counters().zero_copy_sends, of_host.zero_copy_sends, "no more of it");
        assert_eq!(counted(&target.state()), of_target, "no more of it");
    }
}
