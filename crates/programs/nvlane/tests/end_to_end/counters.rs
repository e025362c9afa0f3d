//! Counters of both ends of a lane, and the times they report.

use std::time::{Duration, Instant};

use host::{Completion, Lane, Options};
use subsystem::lane_counters::LaneReport;
use wire::id::Nsid;

use crate::setup::{PATIENCE, Rig, engines, options};

/// Number of commands, all of one kind.
const COMMAND_COUNT: u64 = 1000;

/// Runs [`COMMAND_COUNT`] commands of 8 KiB over one lane and returns both ends' counters.
fn counted(rig: &Rig, options: Options, is_write: bool) -> (host::LaneCounters, LaneReport) {
    let association = rig.connect(options.with_lanes(1).with_depth(16));
    let namespace = association.namespace(Nsid::new(1)).expect("a namespace");
    let mut lane: Lane = association.lane().expect("a lane");
    let mut buffers = vec![vec![0; 8192]; 16];
    let (mut submitted, mut completions) = (0, Vec::<Completion<Vec<u8>>>::new());
    while submitted < COMMAND_COUNT || lane.outstanding() > 0 {
        while submitted < COMMAND_COUNT && lane.has_room(1) {
            let lba = submitted % 100 * 2;
            let command = if is_write { namespace.write(lba, 2) } else { namespace.read(lba, 2) };
            lane.submit(command.expect("within it"), buffers.pop(), submitted).expect("room");
            submitted += 1;
        }
        lane.wait(&mut completions, PATIENCE);
        for completion in completions.drain(..) {
            assert!(completion.is_ok());
            buffers.extend(completion.buffer);
        }
    }
    // The target updates its send counter after the send, which the host may overtake.
    let until = Instant::now() + PATIENCE;
    loop {
        let report = rig.controllers()[0].queues[0].counters.clone();
        if report.sent_bytes == lane.counters().received_bytes || Instant::now() > until {
            return (lane.counters(), report);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn both_ends_count_the_same_and_time_some_of_it() {
    for engine in engines() {
        for storage in ["ram:4M", "file:4M"] {
            for (is_write, in_capsule_bytes_max) in [(false, 0), (true, u32::MAX), (true, 0)] {
                let rig = Rig::new(engine, &[storage]);
                let options = options().tuned(|tuning| tuning.in_capsule_bytes_max = in_capsule_bytes_max);
                let (host, target) = counted(&rig, options, is_write);
                let place =
                    format!("{engine:?} {storage} {is_write} {in_capsule_bytes_max}: {host:?} {target:?}");
                assert_eq!((host.commands, host.completions), (COMMAND_COUNT, COMMAND_COUNT), "{place}");
                assert_eq!(target.command_count, COMMAND_COUNT, "{place}");
                assert_eq!(host.sent_bytes, target.received_bytes, "{place}");
                assert_eq!(host.received_bytes, target.sent_bytes, "{place}");
                assert!(host.caravans > 0 && host.caravans <= host.sends, "{place}");
                assert!(target.caravan_count > 0 && target.caravan_count <= target.send_count, "{place}");
                assert!(host.doorbell.rings.iter().sum::<u64>() > 0, "{place}");
                for (name, times) in host.phases.named() {
                    assert!((1..=COMMAND_COUNT / 64 + 1).contains(&times.count), "{name}: {place}");
                    assert!(times.mean_ns() <= times.max_ns, "{name}: {place}");
                }
                for phase in &target.phases {
                    assert!((1..=COMMAND_COUNT / 64 + 2).contains(&phase.count), "{phase:?}: {place}");
                }
            }
        }
    }
}
