//! A buffer pool too small for the load: commands wait for a buffer, and all complete with the right data. hostile C15

use std::sync::atomic::{AtomicBool, Ordering};

use host::Namespace;
use linux::random::SplitMix64;
use reactor::EngineKind;
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::exercise::{Load, Model};
use crate::raw::RawHost;
use crate::setup::{Over, PATIENCE, Rig, engines, open, options, options_of};

const ONE: Nsid = Nsid::new(1);
const MIB: usize = 1 << 20;

/// One reactor with four transfers' worth of buffers.
fn rig(engine: EngineKind, storage: &[&str]) -> Rig {
    Rig::with(engine, storage, |config| {
        config.reactors.threads = subsystem::config::Threads::Count(1);
        config.reactors.pool_bytes = 4 * MIB;
    })
}

#[test]
fn deep_queues_of_large_transfers_wait_for_their_turn() {
    for engine in engines() {
        let rig = rig(engine, &["file:8M", "ram:4M?lba=512&delay=0us-200us"]);
        std::thread::scope(|scope| {
            for nsid in 1..=2u8 {
                let association = rig.connect(
                    options_of(nsid)
                        .with_lanes(3)
                        .with_depth(64)
                        .tuned(|tuning| tuning.in_place_bytes = 4096),
                );
                scope.spawn(move || {
                    let namespace = association.namespace(Nsid::new(nsid.into())).expect("a namespace");
                    let mut lanes = association.lanes().expect("lanes");
                    let mut random = SplitMix64::new(nsid.into());
                    let load =
                        Load { commands: 600, bytes: 64 << 20, blocks_max: namespace.transfer_blocks_max() };
                    Model::new(&namespace, nsid.into()).run(&mut lanes, &namespace, load, &mut random);
                });
            }
        });
    }
}

#[test]
fn large_compares_do_not_wait_for_each_other() {
    for engine in engines() {
        let rig = rig(engine, &["file:8M"]);
        let association = rig.connect(options().with_lanes(2).with_depth(16));
        let mut namespace = open(&association, 1);
        let data = vec![5; 8 * MIB];
        namespace.write_at(&data, 0).expect("a write");
        let geometry = namespace.namespace().clone();
        let lane = namespace.lane_mut();
        for range in Namespace::split(0, geometry.block_count(), 256).chain(Namespace::split(0, 2048, 256)) {
            let compare = geometry.compare(range.lba, range.blocks).expect("a compare");
            lane.submit(compare, Some(data[..MIB].to_vec()), 0).expect("room");
        }
        let mut ended = Vec::new();
        while lane.outstanding() > 0 {
            assert!(lane.wait(&mut ended, PATIENCE) > 0, "{} compares do not end", lane.outstanding());
        }
        assert!(ended.iter().all(host::Completion::is_ok));
    }
}

/// Many small transfers fragment the pool; a large one still gets its buffer.
#[test]
fn a_large_transfer_is_not_starved_by_small_ones() {
    for engine in engines() {
        let rig = rig(engine, &["file:8M?delay=1ms-3ms"]);
        let association = rig.connect(options().with_lanes(7));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..6 {
                let (mut namespace, is_over) = (open(&association, 1), &is_over);
                scope.spawn(move || {
                    let geometry = namespace.namespace().clone();
                    let (lane, mut random) = (namespace.lane_mut(), SplitMix64::new(seed));
                    let mut ended = Vec::new();
                    let mut buffers = vec![vec![0; 16 << 10]; 120];
                    while !is_over.load(Ordering::Relaxed) || lane.outstanding() > 0 {
                        while !is_over.load(Ordering::Relaxed)
                            && let Some(buffer) = buffers.pop()
                        {
                            let read = geometry.read(random.below(2044), 4).expect("a read");
                            lane.submit(read, Some(buffer), 0).expect("room");
                        }
                        lane.wait(&mut ended, PATIENCE);
                        buffers.extend(ended.drain(..).filter_map(|end| end.buffer));
                    }
                });
            }
            let over = Over(&is_over);
            let mut namespace = open(&association, 1);
            let (reply, is_done) = std::sync::mpsc::channel();
            scope.spawn(move || {
                let geometry = namespace.namespace().clone();
                for round in 0..6 {
                    let command = match round % 3 {
                        0 => geometry.read(0, 256),
                        1 => geometry.write(0, 256),
                        _ => geometry.compare(0, 256),
                    };
                    let end = namespace.run("test", command.expect("a transfer"), Some(vec![0; MIB]));
                    reply.send(end.is_ok()).expect("somebody who waits");
                }
            });
            let ends: Vec<_> = (0..6).map(|_| is_done.recv_timeout(PATIENCE)).collect();
            drop(over);
            assert_eq!(ends, [Ok(true); 6], "{engine:?}");
        });
    }
}

/// The host owes the data that all buffers wait for, and sends another command first.
#[test]
fn a_write_in_its_capsule_does_not_stop_the_data_behind_it() {
    for engine in engines() {
        let rig = rig(engine, &["file:8M"]);
        let mut host = RawHost::new(&rig);
        let large: Vec<u16> =
            (0..6).map(|at| host.io.transport(Sqe::write(ONE, at * 256, 256), MIB as u32)).collect();
        host.io.write_in_capsule(Sqe::write(ONE, 2000, 1), &[3; 4096]);
        host.io.finish(7, MIB);
        for (at, cid) in large.into_iter().enumerate() {
            let read = host.io.read(Sqe::read(ONE, at as u64 * 256, 256), MIB as u32);
            assert!(read.iter().all(|&byte| byte == cid as u8));
        }
    }
}

/// The ranges of a Copy are in-capsule data, as the data of a write may be.
#[test]
fn a_copy_does_not_stop_the_data_behind_it() {
    for engine in engines() {
        let rig = rig(engine, &["file:8M"]);
        let mut host = RawHost::new(&rig);
        for at in 0..6 {
            host.io.transport(Sqe::write(ONE, at * 256, 256), MIB as u32);
        }
        for _ in 0..2 {
            host.io.copy(2000, 8, 1900);
        }
        host.io.finish(8, MIB);
    }
}

/// Fused pairs with R2T data, more than memory can hold.
#[test]
fn halves_of_pairs_do_not_wait_for_each_other() {
    for engine in engines() {
        let rig = rig(engine, &["ram:16M?lba=65536"]);
        let association = rig.connect(options().with_lanes(1).with_depth(128));
        let mut namespace = open(&association, 1);
        let geometry = namespace.namespace().clone();
        let lane = namespace.lane_mut();
        for round in 0..3 {
            for lba in 0..60 {
                let pair = geometry.compare_and_write(lba, 1).expect("a pair");
                let buffers = [vec![round; 65_536], vec![round + 1; 65_536]];
                lane.submit_pair(pair, buffers, [lba, lba]).expect("room");
            }
            let mut ended = Vec::new();
            while lane.outstanding() > 0 {
                assert!(lane.wait(&mut ended, PATIENCE) > 0, "{} halves do not end", lane.outstanding());
            }
            // A pair that found no room must be retryable.
            for lba in 0..60 {
                let halves: Vec<_> =
                    ended.iter().filter(|end| end.user == lba).map(|end| end.result).collect();
                if halves.iter().all(Result::is_ok) {
                    continue;
                }
                let interrupted = |end: &Result<u64, host::Failure>| {
                    end.is_err_and(|failure| {
                        failure.status().is_some_and(|status| status.is(Status::COMMAND_INTERRUPTED))
                    })
                };
                assert!(halves.iter().any(interrupted), "{halves:?}");
                let write = geometry.write(lba, 1).expect("a write");
                lane.submit(write, Some(vec![round + 1; 65_536]), 0).expect("room");
                while lane.outstanding() > 0 {
                    assert!(lane.wait(&mut ended, PATIENCE) > 0);
                }
            }
        }
    }
}
