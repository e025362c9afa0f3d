//! Fused Compare and Write: two commands that execute as one, with other hosts writing. wire §16

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use host::{Error, Failure};
use reactor::EngineKind;
use wire::id::Nsid;
use wire::log::health::HealthLog;
use wire::log::{GetLogPage, Lid};
use wire::nvm::{BlockCommand, DatasetManagement, DsmAttributes, DsmRange};
use wire::opcode::NvmOpcode;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;
use zerocopy::{FromBytes, IntoBytes};

use crate::raw::{RawHost, RawLane};
use crate::setup::{Rig, engines, open, options};

const ONE: Nsid = Nsid::new(1);
const THREADS: u64 = 4;

fn rig(engine: EngineKind, storage: &str) -> Rig {
    Rig::with(engine, &[storage], |config| {
        config.reactors.threads = subsystem::config::Threads::Count(3);
    })
}

#[test]
fn a_counter_of_several_hosts_loses_nothing() {
    for engine in engines() {
        for (storage, in_capsule, increments) in
            [("ram:1M", 8192, 60), ("ram:1M?lba=512", 0, 60), ("file:1M", 8192, 30), ("file:1M", 0, 30)]
        {
            let rig = rig(engine, storage);
            let association =
                rig.connect(options().with_lanes(5).tuned(|tuning| tuning.in_capsule_bytes_max = in_capsule));
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let mut namespace = open(&association, 1);
                    scope.spawn(move || count(&mut namespace, thread, increments));
                }
                // Concurrently, another host writes all the time.
                let mut other = open(&association, 1);
                let bytes = other.namespace().lba_bytes() as usize;
                for round in 0..100u64 {
                    other.write_at(&vec![round as u8; bytes * 4], bytes as u64).expect("a write");
                }
            });
            let mut namespace = open(&association, 1);
            let mut block = vec![0; namespace.namespace().lba_bytes() as usize];
            namespace.read_at(&mut block, 0).expect("a read");
            let words: Vec<u64> =
                block.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
            assert_eq!(words[0], THREADS * increments, "{storage}: increments were lost");
            assert_eq!(words[1..5], [increments; 4], "{storage}");
        }
    }
}

/// Increments the first word of the block, and this thread's own.
fn count(namespace: &mut host::BlockingNamespace, thread: u64, increments: u64) {
    let mut block = vec![0; namespace.namespace().lba_bytes() as usize];
    let mut done = 0;
    namespace.read_at(&mut block, 0).expect("a read");
    while done < increments {
        let mut next = block.clone();
        for at in [0, 8 + thread as usize * 8] {
            let word = u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes")) + 1;
            next[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        match namespace.compare_and_write_at(&block, &next, 0) {
            Ok(true) => (done, block) = (done + 1, next),
            Ok(false) => namespace.read_at(&mut block, 0).expect("a read"),
            Err(Error::Failed { failure: Failure::Status(status), .. })
                if status.is(Status::COMMAND_INTERRUPTED) =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn half(opcode: NvmOpcode, fuse: Fuse, lba: u64, blocks: u32) -> Sqe {
    BlockCommand::new(lba, blocks).to_sqe(opcode, ONE).with_fuse(fuse)
}

fn first(lba: u64) -> Sqe {
    half(NvmOpcode::COMPARE, Fuse::FIRST, lba, 1)
}

fn second(lba: u64) -> Sqe {
    half(NvmOpcode::WRITE, Fuse::SECOND, lba, 1)
}

fn on_each(check: impl Fn(&mut RawLane)) {
    for engine in engines() {
        for storage in ["ram:1M", "file:1M", "ram:1M?delay=200us"] {
            let rig = rig(engine, storage);
            let mut host = RawHost::new(&rig);
            check(&mut host.io);
        }
    }
}

/// The completions of these commands, in any order.
fn ends<const COUNT: usize>(lane: &mut RawLane, cids: [u16; COUNT]) -> [Status; COUNT] {
    let mut statuses = [Status::SUCCESS; COUNT];
    for _ in 0..COUNT {
        match lane.next() {
            peer::link::Got::Completion(cqe) => {
                let at = cids.iter().position(|&cid| cid == cqe.cid.get()).expect("one of them");
                statuses[at] = cqe.status();
            }
            other => panic!("{other:?}"),
        }
    }
    statuses
}

fn content(lane: &mut RawLane, lba: u64) -> u8 {
    let bytes = lane.read(Sqe::read(ONE, lba, 1), 4096);
    assert!(bytes.iter().all(|&byte| byte == bytes[0]), "torn");
    bytes[0]
}

#[test]
fn a_pair_writes_if_what_it_compares_is_there() {
    on_each(|lane| {
        let pair =
            [lane.write_in_capsule(first(0), &[0; 4096]), lane.write_in_capsule(second(0), &[1; 4096])];
        assert_eq!(ends(lane, pair), [Status::SUCCESS; 2]);
        assert_eq!(content(lane, 0), 1);
        let pair =
            [lane.write_in_capsule(first(0), &[0; 4096]), lane.write_in_capsule(second(0), &[2; 4096])];
        let different = [Status::COMPARE_FAILURE.with_dnr(), Status::ABORTED_FAILED_FUSED.with_dnr()];
        assert_eq!(ends(lane, pair), different);
        assert_eq!(content(lane, 0), 1);
    });
}

#[test]
fn a_pair_counts_as_one_write_of_its_namespace_and_of_its_lane() {
    for engine in engines() {
        for storage in ["ram:1M", "file:1M"] {
            let rig = rig(engine, storage);
            let mut host = RawHost::new(&rig);
            for value in [1, 2] {
                // The second pair compares with what is there no more.
                let pair = [(first(0), 0), (second(0), value)];
                let cids = pair.map(|(sqe, value)| host.io.write_in_capsule(sqe, &[value; 4096]));
                assert_eq!(ends(&mut host.io, cids)[0].is_success(), value == 1);
            }
            let get = GetLogPage { lid: Lid::SMART, length_bytes: 512, ..GetLogPage::default() };
            let page = host.admin.read(get.to_sqe(ONE), 512);
            let health = HealthLog::read_from_bytes(&page).expect("512 bytes");
            assert_eq!((health.host_writes.get(), health.host_reads.get()), (1, 0), "{engine:?} {storage}");
            let controller = rig.controllers().remove(0);
            assert_eq!((controller.write_count, controller.written_bytes), (1, 4096), "{engine:?} {storage}");
        }
    }
}

#[test]
fn half_a_pair_is_aborted_and_does_nothing() {
    let missing = Status::ABORTED_MISSING_FUSED.with_dnr();
    on_each(|lane| {
        // A first command alone, with its data, and before the data arrives.
        let alone = lane.write_in_capsule(first(0), &[0; 4096]);
        let read = lane.transport(Sqe::verify(ONE, 0, 1), 0);
        assert_eq!(ends(lane, [alone, read]), [missing, Status::SUCCESS]);
        let alone = lane.transport(first(0), 4096);
        let r2t = lane.r2t(alone);
        let read = lane.transport(Sqe::verify(ONE, 0, 1), 0);
        assert_eq!(ends(lane, [alone, read]), [missing, Status::SUCCESS]);
        // The data still arrives, and is dropped.
        lane.data(&r2t, &[9; 4096]);
        // Two first commands: the later one may still be followed by a second command.
        let alone = lane.write_in_capsule(first(0), &[0; 4096]);
        let next = lane.write_in_capsule(first(1), &[0; 4096]);
        assert_eq!(lane.completion(alone).status(), missing);
        let last = lane.write_in_capsule(second(1), &[5; 4096]);
        assert_eq!(ends(lane, [next, last]), [Status::SUCCESS; 2]);
        // A second command alone.
        let alone = lane.write_in_capsule(second(0), &[6; 4096]);
        assert_eq!(lane.completion(alone).status(), missing);
        let alone = lane.transport(second(0), 4096);
        let said = match lane.next() {
            peer::link::Got::R2t(r2t) => {
                lane.data(&r2t, &[6; 4096]);
                lane.completion(alone).status()
            }
            peer::link::Got::Completion(cqe) => cqe.status(),
            other => panic!("{other:?}"),
        };
        assert_eq!(said, missing);
        assert_eq!((content(lane, 0), content(lane, 1)), (0, 5));
    });
}

#[test]
fn a_pair_that_does_not_fit_together_does_nothing() {
    on_each(|lane| {
        let invalid = Status::INVALID_FIELD.with_dnr();
        let failed = Status::ABORTED_FAILED_FUSED.with_dnr();
        let odd: [(Sqe, Sqe, [Status; 2]); 5] = [
            (first(0), second(1), [invalid, failed]),
            (first(1 << 20), second(0), [Status::LBA_OUT_OF_RANGE.with_dnr(), failed]),
            (first(0), second(1 << 20), [failed, Status::LBA_OUT_OF_RANGE.with_dnr()]),
            (half(NvmOpcode::WRITE, Fuse::FIRST, 0, 1), second(0), [invalid, failed]),
            (first(0), half(NvmOpcode::COMPARE, Fuse::SECOND, 0, 1), [failed, invalid]),
        ];
        for (a, b, expected) in odd {
            let pair = [lane.write_in_capsule(a, &[0; 4096]), lane.write_in_capsule(b, &[7; 4096])];
            assert_eq!(ends(lane, pair), expected, "{a:?} {b:?}");
        }
        let long = half(NvmOpcode::COMPARE, Fuse::FIRST, 0, 2);
        let pair = [lane.write_in_capsule(long, &[0; 8192]), lane.write_in_capsule(second(0), &[7; 4096])];
        assert_eq!(ends(lane, pair), [invalid, failed], "more blocks than are written as one");
        assert_eq!(content(lane, 0), 0);
    });
}

#[test]
fn a_pair_waits_for_the_data_of_both() {
    on_each(|lane| {
        let pair = [lane.transport(first(0), 4096), lane.transport(second(0), 4096)];
        let r2ts = pair.map(|cid| lane.r2t(cid));
        // Other commands overtake it.
        let write = lane.write_in_capsule(Sqe::write(ONE, 0, 1), &[3; 4096]);
        assert_eq!(lane.completion(write).status(), Status::SUCCESS);
        lane.data(&r2ts[1], &[4; 4096]);
        lane.data(&r2ts[0], &[3; 4096]);
        assert_eq!(ends(lane, pair), [Status::SUCCESS; 2]);
        assert_eq!(content(lane, 0), 4);
    });
}

#[test]
fn a_command_beside_a_pair_that_waits_for_data_is_aborted() {
    for engine in engines() {
        let rig = rig(engine, "ram:1M?delay=read:1000s");
        let mut host = RawHost::new(&rig);
        let halves = [host.io.transport(first(0), 4096), host.io.transport(second(0), 4096)];
        halves.iter().for_each(|half| _ = host.io.r2t(*half));
        let read = host.io.transport(Sqe::read(ONE, 8, 1), 4096);
        assert_eq!(host.io.run(Sqe::flush(ONE), &[]), Status::SUCCESS, "the read has arrived");
        assert!(host.abort(read));
        assert_eq!(host.io.completion(read).status(), Status::ABORT_REQUESTED);
        assert!(!halves.iter().any(|half| host.abort(*half)), "halves end together");
    }
}

/// A command that changes blocks 7 and 8, and what they have then.
type Change = (&'static str, fn(&mut RawLane) -> u16, u8);

const CHANGES: [Change; 5] = [
    ("Write", |lane| lane.write_in_capsule(Sqe::write(ONE, 7, 2), &[3; 8192]), 3),
    ("Write Zeroes", |lane| lane.command(Sqe::write_zeroes(ONE, 7, 2, false), &[]), 0),
    ("Write Zeroes that deallocates", |lane| lane.command(Sqe::write_zeroes(ONE, 7, 2, true), &[]), 0),
    ("Deallocate", deallocate, 0),
    ("Copy", |lane| lane.copy(20, 2, 7), 5),
];

fn deallocate(lane: &mut RawLane) -> u16 {
    let command = DatasetManagement { range_count: 2, attributes: DsmAttributes::DEALLOCATE };
    // The blocks are in the second range.
    let ranges = [DsmRange::new(100, 1), DsmRange::new(7, 2)];
    lane.write_in_capsule(command.to_sqe(ONE), ranges.as_bytes())
}

/// A pair on block 8, which replaces 1 by `value`.
fn pair(lane: &mut RawLane, value: u8) -> [u16; 2] {
    [lane.write_in_capsule(first(8), &[1; 4096]), lane.write_in_capsule(second(8), &[value; 4096])]
}

/// A pair and another change of its block take turns, whichever comes first: the other change is there in the end, since
/// the pair either comes before it or finds another content. The delays let one begin and end while the other is between
/// its comparison and its write.
#[test]
fn pairs_and_other_changes_of_their_blocks_take_turns() {
    const DELAYS: [&str; 2] =
        ["delay=write:1ms-6ms", "delay=write:4ms&delay=zeroes:4ms&delay=deallocate:4ms"];
    let different = [Status::COMPARE_FAILURE.with_dnr(), Status::ABORTED_FAILED_FUSED.with_dnr()];
    for engine in engines() {
        for (storage, delay) in
            ["ram:1M", "file:1M"].into_iter().flat_map(|it| DELAYS.map(|delay| (it, delay)))
        {
            let rig = rig(engine, &format!("{storage}?{delay}"));
            let mut host = RawHost::new(&rig);
            let lane = &mut host.io;
            assert_eq!(lane.run_in_capsule(Sqe::write(ONE, 20, 2), &[5; 8192]), Status::SUCCESS);
            for (round, (name, change, after)) in (0..4).flat_map(|round| CHANGES.map(|it| (round, it))) {
                assert_eq!(lane.run_in_capsule(Sqe::write(ONE, 7, 2), &[1; 8192]), Status::SUCCESS);
                // The later one comes at once, or when the other has begun.
                let pause = Duration::from_micros(if round < 2 { 0 } else { 500 });
                let (halves, other) = if round % 2 == 0 {
                    let halves = pair(lane, 2);
                    std::thread::sleep(pause);
                    (halves, change(lane))
                } else {
                    let other = change(lane);
                    std::thread::sleep(pause);
                    (pair(lane, 2), other)
                };
                let [first, second, status] = ends(lane, [halves[0], halves[1], other]);
                let what = format!("{engine:?} {storage} {delay}: {name}, round {round}");
                assert_eq!(status, Status::SUCCESS, "{what}");
                assert!([first, second] == [Status::SUCCESS; 2] || [first, second] == different, "{what}");
                assert_eq!(content(lane, 8), after, "{what}: {first}, {second}");
            }
            // Of two pairs one finds what it compares with.
            assert_eq!(lane.run_in_capsule(Sqe::write(ONE, 8, 1), &[1; 4096]), Status::SUCCESS);
            let [one, other] = [2, 3].map(|value| pair(lane, value));
            let [a, b, c, d] = ends(lane, [one[0], one[1], other[0], other[1]]);
            let value = content(lane, 8);
            let won = if value == 2 { ([a, b], [c, d]) } else { ([c, d], [a, b]) };
            assert_eq!((won, value > 1), (([Status::SUCCESS; 2], different), true), "{engine:?} {storage}");
        }
    }
}

/// A write waits for the pairs that have its blocks locked, and not for those that follow: it gets two blocks of which
/// one is locked at any time by another host.
#[test]
fn a_write_is_not_overtaken_by_pairs_that_follow() {
    const BLOCKS: [u64; 2] = [8, 9];
    /// Two seconds, for a machine that is busy.
    const PAIR_COUNT_MAX: usize = 1000;
    let send = |lane: &mut RawLane, lba| {
        let first = lane.write_in_capsule(first(lba), &[0; 4096]);
        (lba, first, lane.write_in_capsule(second(lba), &[0; 4096]))
    };
    for engine in engines() {
        for storage in ["ram:1M?delay=2ms", "file:1M?delay=2ms"] {
            let rig = rig(engine, storage);
            let (mut host, mut other) = (RawHost::new(&rig), RawHost::new(&rig));
            let lane = &mut host.io;
            let mut pairs: Vec<_> = BLOCKS.repeat(3).into_iter().map(|lba| send(lane, lba)).collect();
            let is_written = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // Meanwhile, the first two lock their blocks.
                    std::thread::sleep(Duration::from_millis(1));
                    let write = Sqe::write(ONE, BLOCKS[0], 2);
                    assert_eq!(other.io.run_in_capsule(write, &[3; 8192]), Status::SUCCESS);
                    is_written.store(true, Ordering::Relaxed);
                });
                let mut ended_count = 0;
                while !is_written.load(Ordering::Relaxed) {
                    let peer::link::Got::Completion(cqe) = lane.next() else { panic!("no completion") };
                    let cid = cqe.cid.get();
                    if let Some(at) = pairs.iter().position(|&(_, _, second)| second == cid) {
                        let (lba, ..) = pairs.swap_remove(at);
                        ended_count += 1;
                        assert!(ended_count < PAIR_COUNT_MAX, "{engine:?} {storage}: the write waits");
                        pairs.push(send(lane, lba));
                    } else {
                        assert!(pairs.iter().any(|&(_, first, _)| first == cid), "of no command");
                    }
                }
            });
        }
    }
}
