//! Allocations per command on a lane: none, on either end.
#![allow(clippy::cast_possible_truncation)]

#[allow(dead_code)] // Each test program uses a part of it.
#[path = "end_to_end/setup.rs"]
mod setup;

use std::time::Duration;

use allocators::CountingAllocator;
use host::{Completion, Lane, Namespace};
use reactor::EngineKind;
use subsystem::config::Threads;

use setup::{Rig, engines, options};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Kinds of commands.
#[derive(Clone, Copy, Debug)]
struct Shape {
    blocks: u32,
    read_percent: u64,
}

fn run(
    lane: &mut Lane,
    namespace: &Namespace,
    shape: Shape,
    buffers: &mut Vec<Vec<u8>>,
    completions: &mut Vec<Completion<Vec<u8>>>,
    commands: u64,
) {
    let mut submitted = 0;
    let places = namespace.block_count() / u64::from(shape.blocks);
    while submitted < commands || lane.outstanding() > 0 {
        while submitted < commands && lane.has_room(1) {
            let lba = submitted % places * u64::from(shape.blocks);
            let command = if submitted % 100 < shape.read_percent {
                namespace.read(lba, shape.blocks).expect("a read")
            } else {
                namespace.write(lba, shape.blocks).expect("a write")
            };
            let buffer = buffers.pop().expect("as many as are outstanding");
            lane.submit(command, Some(buffer), submitted).expect("room");
            submitted += 1;
        }
        lane.wait(completions, Duration::from_secs(10));
        for completion in completions.drain(..) {
            assert!(completion.is_ok());
            buffers.extend(completion.buffer);
        }
    }
}

/// A single test, so that nothing else allocates concurrently.
#[test]
fn commands_allocate_nothing_on_either_end() {
    every_shape_comes_to_rest();
    for engine in engines() {
        two_hundred_thousand_commands_allocate_nothing(engine);
    }
}

/// Reads, writes with in-capsule data and writes with an R2T, a third each.
fn two_hundred_thousand_commands_allocate_nothing(engine: EngineKind) {
    const ROUND_COUNT: usize = 10;
    const ROUND: u64 = 20_000;
    let rig = Rig::with(engine, &["ram:4M"], |config| config.reactors.threads = Threads::Count(1));
    // A keep alive is not on the data path; on a slow machine one would be sent every few rounds.
    let keep_alive = Duration::from_mins(10);
    let association = rig.connect(options().with_depth(32).with_keep_alive(keep_alive));
    let namespace = association.addressed_namespace().expect("one namespace");
    let mut lane: Lane = association.lane().expect("a lane");
    let mut completions = Vec::with_capacity(64);
    let shapes = [(1, 100), (1, 0), (3, 0)].map(|(blocks, read_percent)| Shape { blocks, read_percent });
    let mut buffers = shapes.map(|shape| vec![vec![0; shape.blocks as usize * 4096]; 32]);
    // A burst larger than all before may come late: then counting restarts, a few times.
    let mut counts: Vec<u64> = Vec::new();
    while counts.len() < 4 * ROUND_COUNT && !counts.ends_with(&[0; ROUND_COUNT]) {
        let before = CountingAllocator::total_count();
        for (shape, buffers) in shapes.into_iter().zip(&mut buffers) {
            run(&mut lane, &namespace, shape, buffers, &mut completions, ROUND / 3 + 1);
        }
        counts.push(CountingAllocator::total_count() - before);
    }
    assert!(counts.ends_with(&[0; ROUND_COUNT]), "{engine:?}: {counts:?} per {ROUND} commands");
}

fn every_shape_comes_to_rest() {
    let shapes = [
        Shape { blocks: 1, read_percent: 100 },
        Shape { blocks: 1, read_percent: 0 },
        Shape { blocks: 1, read_percent: 70 },
        // Too long for a capsule.
        Shape { blocks: 16, read_percent: 50 },
    ];
    for engine in engines() {
        for storage in ["ram:4M", "null:4M", "file:4M"] {
            for digests in [false, true] {
                let rig = Rig::with(engine, &[storage], |config| {
                    config.reactors.threads = Threads::Count(1);
                });
                let options = options().with_depth(32);
                let options = if digests { options.with_digests() } else { options };
                let association = rig.connect(options);
                let namespace = association.addressed_namespace().expect("one namespace");
                let mut lane: Lane = association.lane().expect("a lane");
                let mut completions = Vec::with_capacity(64);
                for shape in shapes {
                    let length = shape.blocks as usize * 4096;
                    let mut buffers = vec![vec![0; length]; 32];
                    // Retained memory grows to the largest burst and then stays: on a busy machine that may take a few
                    // rounds.
                    let mut counts = Vec::with_capacity(20);
                    while counts.len() < 20 && !counts.ends_with(&[0, 0]) {
                        let before = CountingAllocator::total_count();
                        run(&mut lane, &namespace, shape, &mut buffers, &mut completions, 500);
                        counts.push(CountingAllocator::total_count() - before);
                    }
                    assert!(
                        counts.ends_with(&[0, 0]),
                        "{engine:?}, {storage}, digests {digests}, {shape:?}: {counts:?} per 500 commands"
                    );
                }
            }
        }
    }
}
