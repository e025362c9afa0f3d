//! Reloads under load: retained namespaces lose no data, removed ones answer nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use host::{BlockRange, Failure};
use linux::random::SplitMix64;
use peer::link::Got;
use subsystem::config::Threads;
use wire::id::Nsid;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;

use crate::exercise::{Load, Model};
use crate::raw::RawHost;
use crate::setup::{Over, PATIENCE, Rig, await_more, engines, open, options};

const ONE: Nsid = Nsid::new(1);

#[test]
fn a_namespace_comes_and_goes_beside_one_that_stays() {
    for engine in engines() {
        for storage in ["ram:1M", "file:1M", "ram:1M?delay=0us-300us"] {
            let mut rig = Rig::new(engine, &["file:1M", storage]);
            let association = rig.connect(options().with_lanes(3).with_depth(32));
            let (is_over, done, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
            std::thread::scope(|scope| {
                let (is_over, association, done, refused) = (&is_over, &association, &done, &refused);
                let load = scope.spawn(move || {
                    let namespace = association.namespace(ONE).expect("the one that stays");
                    let mut lanes =
                        host::LaneSet::new(vec![association.lane().expect("a lane")]).expect("a set");
                    let mut model = Model::new(&namespace, 1);
                    let load = Load { commands: 50, bytes: 1 << 20, blocks_max: 64 };
                    let mut random = SplitMix64::new(1);
                    while !is_over.load(Ordering::Relaxed) {
                        model.run(&mut lanes, &namespace, load, &mut random);
                    }
                });
                let mut namespace = open(association, 2);
                let doomed = scope.spawn(move || {
                    let (read, write) =
                        (namespace.namespace().read(0, 64), namespace.namespace().write(0, 64));
                    let (read, write) = (read.expect("a read"), write.expect("a write"));
                    while !is_over.load(Ordering::Relaxed) {
                        let lane = namespace.lane_mut();
                        for command in [&read, &write].repeat(8) {
                            lane.submit(command.clone(), Some(vec![1; 64 * 4096]), 0).expect("room");
                        }
                        let mut ended = Vec::new();
                        while lane.outstanding() > 0 {
                            assert!(lane.wait(&mut ended, PATIENCE) > 0, "nothing ends");
                        }
                        for completion in ended {
                            match completion.result {
                                Ok(_) => done.fetch_add(1, Ordering::Relaxed),
                                Err(Failure::Status(status)) if status.is(Status::INVALID_NAMESPACE) => {
                                    refused.fetch_add(1, Ordering::Relaxed)
                                }
                                Err(failure) => panic!("{failure}"),
                            };
                        }
                    }
                });
                let over = Over(is_over);
                for _ in 0..10 {
                    await_more(done, 1);
                    rig.reload(|config| drop(config.subsystems[0].namespaces.pop()));
                    assert_eq!(rig.state().subsystems[0].namespaces.len(), 1);
                    await_more(refused, 1);
                    let again = rig.namespace_config(1, storage);
                    rig.reload(|config| config.subsystems[0].namespaces.push(again));
                }
                drop(over);
                load.join().expect("data that stays");
                doomed.join().expect("ends that tell");
            });
        }
    }
}

#[test]
fn a_namespace_grows_and_shrinks_under_load() {
    for engine in engines() {
        for storage in ["ram", "file"] {
            let mut rig = Rig::new(engine, &[&format!("{storage}:1M")]);
            let association = rig.connect(options().with_lanes(2));
            let mut namespace = open(&association, 1);
            let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 4096) as u8).collect();
            namespace.write_at(&data, 0).expect("a write");
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let (is_over, association, data) = (&is_over, &association, &data);
                let load = scope.spawn(move || {
                    let mut namespace = open(association, 1);
                    let mut random = SplitMix64::new(1);
                    while !is_over.load(Ordering::Relaxed) {
                        let (lba, blocks) = (random.below(200), 1 + random.below(56));
                        let range = lba as usize * 4096..(lba + blocks) as usize * 4096;
                        let mut read = vec![0; range.len()];
                        namespace.read_at(&mut read, lba * 4096).expect("blocks that stay");
                        assert!(read == data[range.clone()]);
                        namespace.write_at(&data[range], lba * 4096).expect("blocks that stay");
                    }
                });
                let over = Over(is_over);
                for mebibytes in [3, 2, 4, 1, 2] {
                    let changed = rig.namespace_config(0, &format!("{storage}:{mebibytes}M"));
                    if storage == "file" && mebibytes < 3 {
                        // A reload never shrinks a file.
                        continue;
                    }
                    rig.reload(|config| config.subsystems[0].namespaces[0] = changed);
                    let until = Instant::now() + PATIENCE;
                    while namespace.namespace().size_bytes() != mebibytes << 20 {
                        assert!(Instant::now() < until, "the host is not told");
                        namespace.refresh().expect("it is there");
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let mut last = [1; 4096];
                    let end = namespace.namespace().size_bytes();
                    namespace.read_at(&mut last, end - 4096).expect("the last block");
                    if mebibytes > 1 {
                        assert!(last == [0; 4096], "what is new is zero");
                    }
                    let past = Sqe::read(ONE, namespace.namespace().block_count(), 1);
                    let past = host::Command::raw_from_controller(past, 4096);
                    let status = crate::edges::status(&mut namespace, past, Some(vec![0; 4096]));
                    assert_eq!(status, Status::LBA_OUT_OF_RANGE.with_dnr());
                }
                drop(over);
                load.join().expect("data that stays");
            });
        }
    }
}

/// An R2T was sent for a write when another namespace with larger blocks takes the place of the first.
#[test]
fn data_for_smaller_blocks_is_not_taken_for_larger_ones() {
    for engine in engines() {
        for storage in ["ram", "file"] {
            let mut rig = Rig::new(engine, &[&format!("{storage}:1M?lba=512")]);
            let mut host = RawHost::new(&rig);
            let write = host.io.transport(Sqe::write(ONE, 0, 1), 512);
            let compare = host.io.transport(Sqe::compare(ONE, 0, 1), 512);
            let pair = [
                host.io.transport(Sqe::compare(ONE, 0, 1).with_fuse(Fuse::FIRST), 512),
                host.io.transport(Sqe::write(ONE, 0, 1).with_fuse(Fuse::SECOND), 512),
            ];
            let r2ts = [write, compare, pair[0], pair[1]].map(|cid| host.io.r2t(cid));
            rig.reload(|config| config.subsystems[0].namespaces.clear());
            if storage == "file" {
                // Without the attribute, it is a file that was never served.
                let _ = rustix::fs::removexattr(rig.file(0), store::identity::BLOCK_SIZE_ATTRIBUTE);
            }
            let larger = rig.namespace_config(0, &format!("{storage}:1M?lba=4096"));
            rig.reload(|config| config.subsystems[0].namespaces.push(larger));
            for r2t in &r2ts {
                host.io.data(r2t, &[9; 512]);
            }
            let mut ended = 0;
            while ended < 4 {
                match host.io.next() {
                    Got::Completion(cqe) => assert!(!cqe.status().is_success(), "{cqe:?}"),
                    other => panic!("{other:?}"),
                }
                ended += 1;
            }
            assert!(host.io.read(Sqe::read(ONE, 0, 1), 4096).iter().all(|&byte| byte == 0));
        }
    }
}

/// A fused pair waits for a write elsewhere when its namespace is removed: the pair ends, and so does the removal.
#[test]
fn a_namespace_is_removed_while_a_pair_waits_for_a_write() {
    for engine in engines() {
        let mut rig = Rig::with(engine, &["ram:1M?delay=write:2s"], |config| {
            config.reactors.threads = Threads::Count(4);
        });
        // The kernel assigns connections to reactors; with this many, some are on different ones.
        let mut hosts: Vec<RawHost> = (0..6).map(|_| RawHost::new(&rig)).collect();
        let mut writes = Vec::new();
        for host in &mut hosts[1..] {
            writes.push(host.io.write_in_capsule(Sqe::write(ONE, 0, 1), &[1; 4096]));
            // The write has started once this command has completed.
            assert_eq!(host.io.run(Sqe::flush(ONE), &[]), Status::SUCCESS);
        }
        let first = Sqe::compare(ONE, 0, 1).with_fuse(Fuse::FIRST);
        let second = Sqe::write(ONE, 0, 1).with_fuse(Fuse::SECOND);
        let pair = [
            hosts[0].io.write_in_capsule(first, &[0; 4096]),
            hosts[0].io.write_in_capsule(second, &[2; 4096]),
        ];
        assert_eq!(hosts[0].io.run(Sqe::flush(ONE), &[]), Status::SUCCESS);
        let start = Instant::now();
        rig.reload(|config| config.subsystems[0].namespaces.clear());
        for (host, write) in hosts[1..].iter_mut().zip(writes) {
            assert_eq!(host.io.completion(write).status(), Status::SUCCESS);
        }
        for _ in pair {
            match hosts[0].io.next() {
                Got::Completion(_) => {}
                other => panic!("the pair does not end: {other:?}"),
            }
        }
        assert!(start.elapsed() < PATIENCE / 2);
        let again = rig.namespace_config(0, "ram:1M");
        rig.reload(|config| config.subsystems[0].namespaces.push(again));
        let mut namespace = rig.open(options());
        let all = namespace.namespace().deallocate(&[BlockRange { lba: 0, blocks: 256 }]).expect("a range");
        assert!(namespace.run("Deallocate", all, None).is_ok());
    }
}
