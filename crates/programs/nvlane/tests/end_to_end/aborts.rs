//! The result of Abort is accurate: an aborted command has not been executed, any other completes by itself.

use std::time::Instant;

use host::Failure;
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::raw::RawHost;
use crate::setup::{PATIENCE, Rig, engines, open, options};

const ONE: Nsid = Nsid::new(1);

/// Longer than any test.
const FOR_EVER: &str = "delay=write:1000s&delay=read:1000s";

#[test]
fn a_command_that_waits_is_aborted_and_has_not_happened() {
    for engine in engines() {
        for storage in ["ram:1M", "file:1M"] {
            let rig = Rig::new(engine, &[&format!("{storage}?{FOR_EVER}")]);
            let mut host = RawHost::new(&rig);
            let read = host.io.transport(Sqe::read(ONE, 0, 1), 4096);
            let write = host.io.write_in_capsule(Sqe::write(ONE, 0, 1), &[7; 4096]);
            let compare = host.io.write_in_capsule(Sqe::compare(ONE, 0, 1), &[7; 4096]);
            let verify = host.io.transport(Sqe::verify(ONE, 0, 1), 0);
            // They have arrived once this command has completed.
            assert_eq!(host.io.run(Sqe::flush(ONE), &[]), Status::SUCCESS);
            for cid in [write, compare, read, verify] {
                assert!(host.abort(cid), "it has not begun");
                assert_eq!(host.io.completion(cid).status(), Status::ABORT_REQUESTED);
                assert!(!host.abort(cid), "it is there no more");
            }
            assert_eq!(host.io.run(Sqe::write_zeroes(ONE, 0, 1, false), &[]), Status::SUCCESS);
        }
    }
}

#[test]
fn a_command_that_has_begun_ends_by_itself() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:1M?delay=write:800ms"]);
        let mut host = RawHost::new(&rig);
        // The command has read, and waits to write.
        let copy = host.io.copy(0, 1, 8);
        assert_eq!(host.io.run(Sqe::flush(ONE), &[]), Status::SUCCESS);
        assert!(!host.abort(copy));
        assert_eq!(host.io.completion(copy).status(), Status::SUCCESS);
    }
}

#[test]
fn what_is_not_there_is_not_aborted() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:1M"]);
        let mut host = RawHost::new(&rig);
        assert!(!host.abort(1) && !host.abort(0xffff));
        assert!(!host.abort_on(0, 77) && !host.abort_on(2, 1) && !host.abort_on(0xffff, 1));
        let cid = host.io.transport(Sqe::verify(ONE, 0, 1), 0);
        assert_eq!(host.io.completion(cid).status(), Status::SUCCESS);
        assert!(!host.abort(cid));
    }
}

/// wire §18
#[test]
fn data_of_an_aborted_write_is_dropped() {
    for engine in engines() {
        for storage in ["ram:1M", "file:1M"] {
            let rig = Rig::new(engine, &[storage]);
            let mut host = RawHost::new(&rig);
            let cid = host.io.transport(Sqe::write(ONE, 0, 4), 16_384);
            let r2t = host.io.r2t(cid);
            assert!(host.abort(cid));
            assert_eq!(host.io.completion(cid).status(), Status::ABORT_REQUESTED);
            // More writes, whose transfer tags must differ from those of the first.
            let other = host.io.transport(Sqe::write(ONE, 8, 4), 16_384);
            let other_r2t = host.io.r2t(other);
            assert_ne!(r2t.ttag, other_r2t.ttag);
            host.io.data(&r2t, &[1; 16_384]);
            host.io.data(&other_r2t, &[2; 16_384]);
            assert_eq!(host.io.completion(other).status(), Status::SUCCESS);
            assert!(host.io.read(Sqe::read(ONE, 0, 4), 16_384).iter().all(|&byte| byte == 0));
            assert!(host.io.read(Sqe::read(ONE, 8, 4), 16_384).iter().all(|&byte| byte == 2));
        }
    }
}

#[test]
fn a_host_that_cancels_gets_its_buffer_back_at_once() {
    for engine in engines() {
        let rig = Rig::new(engine, &[&format!("ram:1M?{FOR_EVER}")]);
        let association = rig.connect(options().with_lanes(2));
        let mut namespace = open(&association, 1);
        let (read, write, flush) = (
            namespace.namespace().read(0, 1).expect("a read"),
            namespace.namespace().write(1, 256 - 1).expect("a large write"),
            namespace.namespace().flush(),
        );
        let lane = namespace.lane_mut();
        lane.submit(read, Some(vec![0; 4096]), 1).expect("room");
        lane.submit(write, Some(vec![1; 255 * 4096]), 2).expect("room");
        lane.submit(flush, None, 4).expect("room");
        let until = Instant::now() + PATIENCE;
        // They have arrived once the flush has completed.
        let mut ended = Vec::new();
        while ended.is_empty() {
            assert!(Instant::now() < until, "no flush");
            lane.wait(&mut ended, PATIENCE);
        }
        assert!(matches!(&ended[..], [flush] if flush.user == 4 && flush.is_ok()));
        ended.clear();
        assert!(lane.cancel(1) && lane.cancel(2) && !lane.cancel(3));
        while ended.len() < 2 {
            assert!(Instant::now() < until, "not cancelled");
            lane.wait(&mut ended, PATIENCE);
        }
        for completion in ended {
            assert_eq!(completion.result, Err(Failure::Cancelled));
            assert!(completion.buffer.is_some());
        }
        let mut other = open(&association, 1);
        assert!(other.write_zeroes(0, 4096, false).is_ok());
    }
}

/// A waiting command blocks neither its lane nor its namespace.
#[test]
fn nothing_waits_for_what_has_not_begun() {
    for engine in engines() {
        let mut rig = Rig::new(engine, &[&format!("ram:1M?{FOR_EVER}"), "ram:1M"]);
        let mut host = RawHost::new(&rig);
        host.io.transport(Sqe::read(ONE, 0, 1), 4096);
        host.io.write_in_capsule(Sqe::write(ONE, 0, 1), &[7; 4096]);
        assert_eq!(host.io.run(Sqe::flush(ONE), &[]), Status::SUCCESS);
        drop(host);
        rig.await_quiet();
        rig.reload(|config| {
            config.subsystems[0].namespaces.remove(0);
        });
        let start = Instant::now();
        assert_eq!(rig.stop(), 0, "lanes were cut off");
        assert!(start.elapsed() < PATIENCE / 2);
    }
}
