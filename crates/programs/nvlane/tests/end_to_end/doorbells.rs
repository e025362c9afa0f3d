//! The doorbell policy of live lanes, changed by a reload: for all, for a listener, for a subsystem. wire §4.4

use host::{Association, DoorbellPolicy, LaneSet};
use subsystem::state::QueueState;
use wire::id::Nsid;

use crate::setup::{PATIENCE, Rig, engines, options};

const ONE: Nsid = Nsid::new(1);
const DEPTH: u16 = 32;

/// Reads in batches; returns the responses and sends of the only lane since the last call.
fn sends(rig: &Rig, association: &Association, lanes: &mut LaneSet<Vec<u8>>) -> (u64, u64) {
    let namespace = association.namespace(ONE).expect("a namespace");
    let before = queue(rig);
    for _ in 0..20 {
        for user in 0..DEPTH {
            let read = namespace.read(0, 1).expect("a read");
            let lane = &mut lanes.lanes_mut()[0];
            lane.submit(read, Some(vec![0; 4096]), user.into()).expect("room");
        }
        while lanes.outstanding() > 0 {
            let count = lanes.wait_with(&mut |_, done| assert!(done.is_ok()), PATIENCE);
            assert!(count > 0, "nothing ends");
        }
    }
    let after = queue(rig);
    (after.read_count - before.read_count, after.send_count - before.send_count)
}

fn queue(rig: &Rig) -> QueueState {
    rig.controllers().remove(0).queues.remove(0)
}

fn policy(text: &str) -> DoorbellPolicy {
    text.parse().expect("a policy")
}

#[test]
fn a_reload_changes_when_answers_leave_on_lanes_that_live() {
    for engine in engines() {
        let mut rig = Rig::new(engine, &["ram:1M"]);
        let association = rig.connect(options().with_lanes(1).with_depth(DEPTH));
        let lane = association.lane().expect("a lane");
        let mut lanes = LaneSet::new(vec![lane]).expect("a set");
        assert_eq!(queue(&rig).doorbell, "adaptive:20");
        let (reads, together) = sends(&rig, &association, &mut lanes);
        assert_eq!(reads, 20 * u64::from(DEPTH));
        assert!(together < reads / 2, "{together} sends for {reads} answers");

        rig.reload(|config| config.reactors.doorbell = policy("immediate"));
        assert_eq!(queue(&rig).doorbell, "immediate");
        let (reads, alone) = sends(&rig, &association, &mut lanes);
        assert!(alone >= reads, "{alone} sends for {reads} answers");

        rig.reload(|config| config.reactors.doorbell = policy("fixed:32,1048576,100000"));
        let (reads, full) = sends(&rig, &association, &mut lanes);
        assert!(full < reads / 2, "{full} sends for {reads} answers");
    }
}

#[test]
fn a_subsystem_says_more_than_a_listener_and_that_more_than_all() {
    let mut rig = Rig::with(engines()[0], &["ram:1M"], |config| {
        config.reactors.doorbell = policy("fixed");
        config.listeners[0].doorbell = Some(policy("adaptive:7"));
    });
    let association = rig.connect(options().with_lanes(1).with_depth(DEPTH));
    let _lane: host::Lane = association.lane().expect("a lane");
    assert_eq!(queue(&rig).doorbell, "adaptive:7");
    rig.reload(|config| config.subsystems[0].doorbell = Some(policy("immediate")));
    assert_eq!(queue(&rig).doorbell, "immediate");
    rig.reload(|config| config.listeners[0].doorbell = None);
    assert_eq!(queue(&rig).doorbell, "immediate");
    rig.reload(|config| config.subsystems[0].doorbell = None);
    assert_eq!(queue(&rig).doorbell, "fixed:16,65536,50");
}
