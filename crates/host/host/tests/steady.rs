//! In steady state a lane allocates nothing, for any number of commands.
#![allow(clippy::cast_possible_truncation)]

#[path = "support/target.rs"]
mod target;

use std::time::Duration;

use allocators::CountingAllocator;
use nvlane_host::{BlockRange, Completion, Lane, Namespace};
use target::{Target, options};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Runs `rounds` of mixed commands at full depth, reusing the same buffers.
fn run(
    lane: &mut Lane,
    namespace: &Namespace,
    buffers: &mut Vec<Vec<u8>>,
    completions: &mut Vec<Completion<Vec<u8>>>,
    rounds: u64,
) {
    let mut submitted = 0;
    while submitted < rounds || lane.outstanding() > 0 {
        while submitted < rounds && lane.has_room(1) {
            let lba = submitted % 100 * 8;
            let (command, has_data) = match submitted % 8 {
                0 => (namespace.flush(), false),
                1 => (namespace.deallocate(&[BlockRange { lba, blocks: 8 }]).unwrap(), false),
                2 => (namespace.write_zeroes(lba, 8, false).unwrap(), false),
                3 | 4 => (namespace.write(lba, 8).unwrap(), true),
                _ => (namespace.read(lba, 8).unwrap(), true),
            };
            let buffer = if has_data { Some(buffers.pop().unwrap()) } else { None };
            lane.submit(command, buffer, submitted).unwrap();
            submitted += 1;
        }
        lane.wait(completions, Duration::from_secs(1));
        for completion in completions.drain(..) {
            assert!(completion.is_ok());
            buffers.extend(completion.buffer);
        }
    }
}

#[test]
fn a_lane_in_steady_state_allocates_nothing() {
    for digests in [false, true] {
        let target = Target::new();
        let options = if digests { options().with_digests() } else { options() };
        let association = target.connect(options);
        let mut lane: Lane = association.lane().unwrap();
        let namespace = association.addressed_namespace().unwrap();
        let mut buffers = vec![vec![0; 4096]; 128];
        let mut completions = Vec::with_capacity(256);
        // Retained memory grows to the largest burst and then stays: a target on a busy machine may need a few rounds.
        let counts = (0..20).map(|_| {
            let work = || run(&mut lane, &namespace, &mut buffers, &mut completions, 3000);
            CountingAllocator::measure(work).1.count
        });
        let counts: Vec<_> = counts.collect();
        assert!(counts[10..].contains(&0) && counts[10..].iter().sum::<u64>() < 10, "{counts:?}");
    }
}
