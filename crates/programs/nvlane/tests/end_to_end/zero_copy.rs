//! Zero-copy sends in both directions: the data is right, and every buffer is returned, whatever happens to the lane
//! meanwhile. Over loopback the kernel copies in the end, and reports that.

use std::time::{Duration, Instant};

use host::{LaneSet, ZeroCopy};
use linux::random::SplitMix64;
use reactor::EngineKind;
use subsystem::config::Threads;
use subsystem::lane_counters::LaneReport;
use wire::id::Nsid;
use wire::pdu::Digests;
use wire::sqe::Sqe;

use crate::exercise::{Load, Model};
use crate::raw::RawHost;
use crate::setup::{PATIENCE, Rig, engines, options};

const ONE: Nsid = Nsid::new(1);
const MIB: usize = 1 << 20;

fn rig(engine: EngineKind, storage: &str, zero_copy: ZeroCopy) -> Rig {
    Rig::with(engine, &[storage], |config| config.reactors.zero_copy = zero_copy)
}

/// Counters of the target's I/O lanes.
fn reports(rig: &Rig) -> Vec<LaneReport> {
    let queues = rig.controllers().into_iter().flat_map(|controller| controller.queues);
    queues.filter(|queue| queue.qid > 0).map(|queue| queue.counters).collect()
}

/// Waits until the target has received the notifications of all its sends.
fn await_notices(rig: &Rig) -> Vec<LaneReport> {
    let until = Instant::now() + PATIENCE;
    loop {
        let reports = reports(rig);
        if reports.iter().all(|lane| lane.zero_copy_awaited_count == 0) {
            return reports;
        }
        assert!(Instant::now() < until, "notices are missing: {reports:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn what_is_sent_without_a_copy_is_what_was_meant() {
    for engine in engines() {
        for (storage, digests) in
            [("file:8M", 0), ("file:8M", 3), ("ram:8M", 0), ("ram:8M", 3), ("ram:8M", 2)]
        {
            let rig = rig(engine, storage, ZeroCopy::From(64 << 10));
            let association = rig.connect(
                options()
                    .with_lanes(2)
                    .with_depth(8)
                    .with_only_digests(Digests::from_bits_retain(digests))
                    .tuned(|tuning| tuning.zero_copy = ZeroCopy::From(64 << 10)),
            );
            let namespace = association.namespace(ONE).expect("a namespace");
            let lanes = (0..2).map(|_| association.lane().expect("a lane")).collect();
            let mut lanes: LaneSet<Vec<u8>> = LaneSet::new(lanes).expect("a set");
            let mut model = Model::new(&namespace, digests.into());
            let load = Load { commands: 600, bytes: 96 << 20, blocks_max: 256 };
            model.run(&mut lanes, &namespace, load, &mut SplitMix64::new(7));
            for lane in lanes.lanes() {
                let counters = lane.counters();
                assert!(counters.zero_copy_sends > 10, "{counters:?}");
                assert!(counters.zero_copy_bytes >= counters.zero_copy_sends << 14, "{counters:?}");
                assert_eq!(counters.zero_copy_copied, counters.zero_copy_sends);
                assert_eq!(counters.zero_copy_awaited, 0);
            }
            for lane in await_notices(&rig) {
                assert!(lane.zero_copy_count > 10 && lane.zero_copy_bytes > 1 << 20, "{lane:?}");
                assert_eq!(lane.zero_copy_copied_count, lane.zero_copy_count);
            }
        }
    }
}

#[test]
fn loopback_does_not_pay_for_it_unasked() {
    for zero_copy in [ZeroCopy::Auto, ZeroCopy::Off] {
        let rig = rig(engines()[0], "file:4M", zero_copy);
        let mut namespace = rig.open(options().tuned(|tuning| tuning.zero_copy = zero_copy));
        let data = vec![3; 4 * MIB];
        namespace.write_at(&data, 0).expect("a write");
        let mut read = vec![0; 4 * MIB];
        namespace.read_at(&mut read, 0).expect("a read");
        assert!(read == data);
        assert!(reports(&rig).iter().all(|lane| lane.zero_copy_count == 0));
    }
}

/// A block that is read and written concurrently is entirely the old or the new one: memory of a namespace is copied
/// before it is sent.
#[test]
fn memory_that_may_change_is_copied() {
    let rig = Rig::with(engines()[0], &["ram:4M"], |config| {
        config.reactors.zero_copy = ZeroCopy::From(1);
        config.reactors.threads = Threads::Count(1);
    });
    let mut namespace = rig.open(options());
    let data = vec![5; 4 * MIB];
    namespace.write_at(&data, 0).expect("a write");
    let mut read = vec![0; 4 * MIB];
    namespace.read_at(&mut read, 0).expect("a read");
    assert!(read == data);
    let reports = await_notices(&rig);
    let bytes: u64 = reports.iter().map(|lane| lane.zero_copy_bytes).sum();
    assert!(bytes < MIB as u64, "answers without data at most: {reports:?}");
}

/// A target with one reactor that has buffers for 24 large transfers.
fn small_rig(engine: EngineKind) -> Rig {
    Rig::with(engine, &["file:8M"], |config| {
        config.reactors.zero_copy = ZeroCopy::From(4096);
        config.reactors.threads = Threads::Count(1);
        config.reactors.pool_bytes = 24 * MIB;
        // No host is closed for what it does not read while others need buffers, on a busy machine either.
        config.timeouts.contended_ms = 60_000;
        config.timeouts.send_ms = 60_000;
    })
}

/// A host that requests more than its socket buffers, and reads nothing.
fn host_that_reads_nothing(rig: &Rig) -> (RawHost, Vec<u16>) {
    let mut host = RawHost::new(rig);
    let cids = (0..8).map(|at| host.io.transport(Sqe::read(ONE, at * 256, 256), MIB as u32)).collect();
    let until = Instant::now() + PATIENCE;
    // These use free buffers: half of them at least.
    while !reports(rig).iter().any(|lane| lane.zero_copy_awaited_count > 0 && lane.blocked_count > 0) {
        assert!(Instant::now() < until, "nothing waits in the socket: {:?}", reports(rig));
        std::thread::sleep(Duration::from_millis(2));
    }
    (host, cids)
}

#[test]
fn what_a_host_does_not_read_is_free_when_it_is_gone() {
    for engine in engines() {
        let rig = small_rig(engine);
        for _ in 0..5 {
            let host = host_that_reads_nothing(&rig);
            let mut other = rig.open(options());
            other.write_at(&vec![7; 8 * MIB], 0).expect("buffers for others");
            assert!(other.compare_at(&vec![7; 8 * MIB], 0).expect("a compare"));
            drop((host, other));
            let start = Instant::now();
            rig.await_quiet();
            assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
        }
    }
}

#[test]
fn a_target_that_ends_does_not_wait_for_hosts_that_read_nothing() {
    for engine in engines() {
        let mut rig = small_rig(engine);
        let _host = host_that_reads_nothing(&rig);
        let start = Instant::now();
        rig.stop();
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    }
}

/// Data that the host reads late is the content at the time of the read command.
#[test]
fn data_that_waits_in_the_socket_is_not_overwritten() {
    for engine in engines() {
        let rig = small_rig(engine);
        let data: Vec<u8> = (0..8 * MIB).map(|at| (at / 4096) as u8).collect();
        rig.open(options()).write_at(&data, 0).expect("a write");
        let (mut slow, cids) = host_that_reads_nothing(&rig);
        // Other hosts use the free buffers.
        let mut other = rig.open(options());
        for value in 0..8 {
            other.write_at(&vec![value ^ 0xA5; 4 * MIB], 0).expect("a write");
            let mut read = vec![0; 4 * MIB];
            other.read_at(&mut read, 0).expect("a read");
            assert!(read.iter().all(|&byte| byte == value ^ 0xA5));
        }
        // The first reads were executed before that; those that waited for a buffer later.
        let mut seen = vec![Vec::new(); cids.len()];
        let mut ended = 0;
        while ended < cids.len() {
            match slow.io.next() {
                peer::link::Got::Data { cid, data: bytes, .. } => {
                    let at = cids.iter().position(|one| *one == cid).expect("one of ours");
                    seen[at].extend_from_slice(&bytes);
                }
                peer::link::Got::Completion(_) => ended += 1,
                other => panic!("{other:?}"),
            }
            ended = ended.max(seen.iter().filter(|bytes| bytes.len() == MIB).count());
        }
        for (at, bytes) in seen.iter().enumerate() {
            for (block, found) in bytes.chunks(4096).enumerate() {
                let old = data[at * MIB + block * 4096];
                let is_old = found.iter().all(|&byte| byte == old);
                let is_new = at < 4 && (0..8u8).any(|value| found.iter().all(|&byte| byte == value ^ 0xA5));
                assert!(is_old || is_new, "block {block} of read {at} is torn");
            }
        }
    }
}
