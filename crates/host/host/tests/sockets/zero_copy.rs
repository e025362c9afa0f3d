//! Zero-copy writes: their buffers are returned only after the kernel has released them.

use std::time::{Duration, Instant};

use crate::target::{Reaction, Target, connect, finish, options};
use nvlane_host::{Completion, Failure, Lane, LaneSet, Namespace, Options, ReplayPolicy, Vectored, ZeroCopy};
use wire::id::Nsid;
use wire::opcode::NvmOpcode;
use wire::pdu::Digests;

const SECOND: Duration = Duration::from_secs(1);
const BLOCKS: u32 = 1024;
const BYTES: usize = BLOCKS as usize * 512;

fn pattern(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|index| (seed * 31 + index * 7 + index / 251) as u8).collect()
}

/// A target with this in-capsule data size, bytes.
fn target(in_capsule: u32) -> Target {
    Target::of(|setup| setup.identify.set_in_capsule_bytes(in_capsule))
}

fn wanted() -> Options {
    options().with_depth(16).tuned(|tuning| tuning.zero_copy = ZeroCopy::From(16 << 10))
}

/// Submits a write of each of 8 patterns.
fn write_all(lane: &mut Lane, namespace: &Namespace) {
    for user in 0..8 {
        let lba = user * u64::from(BLOCKS);
        lane.submit(namespace.write(lba, BLOCKS).unwrap(), Some(pattern(user as usize)), user).unwrap();
    }
    lane.ring();
}

/// Checks that every buffer was returned unchanged.
fn check_buffers(completions: &[Completion<Vec<u8>>]) {
    assert_eq!(completions.len(), 8);
    for done in completions {
        let buffer = done.buffer.as_ref().expect("its owner gets it back");
        assert!(*buffer == pattern(done.user as usize), "buffer {} was changed", done.user);
    }
}

#[test]
fn data_is_right_with_and_without_digests_in_and_behind_the_capsule() {
    for (digests, in_capsule) in [(0, 8192), (3, 8192), (0, 1 << 20), (3, 1 << 20)] {
        let target = target(in_capsule);
        let digests = Digests::from_bits_retain(digests);
        let (_association, mut lane, namespace) = connect(&target, wanted().with_only_digests(digests));
        for _ in 0..3 {
            target.state().memory[0].fill(0);
            write_all(&mut lane, &namespace);
            let completions = finish(&mut lane);
            assert!(completions.iter().all(Completion::is_ok));
            check_buffers(&completions);
            for user in 0..8 {
                assert!(target.state().memory[0][user * BYTES..][..BYTES] == pattern(user));
            }
        }
        let counters = lane.counters();
        assert!(counters.zero_copy_bytes >= 20 * BYTES as u64, "{counters:?}");
        assert_eq!(counters.zero_copy_copied, counters.zero_copy_sends, "the kernel copies over loopback");
        assert_eq!(counters.zero_copy_awaited, 0);
    }
}

#[test]
fn loopback_does_not_pay_for_it_unasked() {
    for zero_copy in [ZeroCopy::Auto, ZeroCopy::Off] {
        let target = target(8192);
        let (_association, mut lane, namespace) =
            connect(&target, wanted().tuned(|tuning| tuning.zero_copy = zero_copy));
        write_all(&mut lane, &namespace);
        check_buffers(&finish(&mut lane));
        assert_eq!(lane.counters().zero_copy_sends, 0);
    }
}

#[test]
fn data_that_moves_with_its_command_is_copied() {
    let target = target(1 << 20);
    let (_association, mut lane, namespace) = connect::<[u8; 32 << 10]>(&target, wanted());
    for user in 0..8u64 {
        lane.submit(namespace.write(user * 64, 64).unwrap(), Some([user as u8 + 1; 32 << 10]), user).unwrap();
    }
    lane.ring();
    assert!(finish(&mut lane).iter().all(Completion::is_ok));
    assert_eq!(lane.counters().zero_copy_sends, 0);
    for user in 0..8 {
        assert!(target.state().memory[0][user << 15..][..32 << 10] == [user as u8 + 1; 32 << 10]);
    }
    // The pieces of a scattered buffer keep their addresses.
    let (_association, mut lane, namespace) = connect(&target, wanted());
    let pieces = Vectored::new(vec![vec![7; 32 << 10], vec![8; 96 << 10]]);
    lane.submit(namespace.write(0, 256).unwrap(), Some(pieces.clone()), 1).unwrap();
    let done = finish(&mut lane).remove(0);
    assert!(done.is_ok() && done.buffer == Some(pieces));
    assert!(lane.counters().zero_copy_sends > 0);
    assert_eq!(target.state().memory[0][(32 << 10) - 1..=32 << 10], [7, 8]);
}

#[test]
fn lanes_in_a_set_sleep_until_the_kernel_is_done() {
    let target = target(8192);
    let association = target.connect(wanted().with_lanes(2).tuned(|tuning| tuning.spin = Duration::ZERO));
    let namespace = association.namespace(Nsid::new(1)).unwrap();
    let mut lanes: LaneSet<Vec<u8>> =
        LaneSet::new((0..2).map(|_| association.lane().unwrap()).collect()).unwrap();
    for round in 0..5 {
        for user in 0..8 {
            let command = namespace.write(user * u64::from(BLOCKS), BLOCKS).unwrap();
            let buffer = pattern(user as usize);
            lanes.lanes_mut()[user as usize % 2].submit(command, Some(buffer), user).unwrap();
        }
        let (mut count, until) = (0, Instant::now() + 20 * SECOND);
        while count < 8 {
            count += lanes.wait_with(
                &mut |_, done| assert!(done.is_ok() && done.buffer.unwrap() == pattern(done.user as usize)),
                SECOND,
            );
            assert!(Instant::now() < until, "{count} in round {round}");
        }
    }
    assert!(lanes.lanes().iter().all(|lane| lane.counters().zero_copy_sends > 0));
}

#[test]
fn a_connection_that_breaks_gives_every_buffer_back() {
    for (replay, in_capsule) in [
        (ReplayPolicy::ReadsOnly, 8192),
        (ReplayPolicy::ReadsOnly, 1 << 20),
        (ReplayPolicy::Idempotent, 8192),
        (ReplayPolicy::Idempotent, 1 << 20),
    ] {
        let target = target(in_capsule);
        let (association, mut lane, namespace) = connect(&target, wanted().with_replay(replay));
        for round in 0..5 {
            // In the middle of a write's data.
            target.cut_after(1 + round, 5000);
            write_all(&mut lane, &namespace);
            let completions = finish(&mut lane);
            check_buffers(&completions);
            for done in completions {
                assert!(done.is_ok() || done.result == Err(Failure::Interrupted), "{:?}", done.result);
            }
        }
        write_all(&mut lane, &namespace);
        check_buffers(&finish(&mut lane));
        let counters = lane.counters();
        assert!(counters.zero_copy_sends > 0, "{counters:?}");
        assert!(association.controller().cntlid.get() > 1, "the association was lost");
        assert_eq!(counters.zero_copy_awaited, 0);
        for user in 0..8 {
            assert!(target.state().memory[0][user * BYTES..][..BYTES] == pattern(user));
        }
    }
}

#[test]
fn cancelled_and_late_writes_give_their_buffers_back() {
    for is_late in [false, true] {
        let target = target(1 << 20);
        let command_timeout = if is_late { Duration::from_millis(50) } else { 60 * SECOND };
        let (_association, mut lane, namespace) =
            connect(&target, wanted().with_command_timeout(command_timeout));
        target.script(|seen| match seen.sqe.opcode == NvmOpcode::WRITE.raw() && seen.qid > 0 {
            true => Reaction::Hold,
            false => Reaction::Execute,
        });
        write_all(&mut lane, &namespace);
        if !is_late {
            (0..8).for_each(|user| assert!(lane.cancel(user)));
        }
        let completions = finish(&mut lane);
        check_buffers(&completions);
        let expected = if is_late { Failure::TimedOut } else { Failure::Cancelled };
        assert!(completions.iter().all(|done| done.result == Err(expected)), "{completions:?}");
        assert_eq!(lane.counters().zero_copy_awaited, 0);
    }
}

#[test]
fn a_lane_that_is_dropped_does_not_wait_for_a_target_that_reads_nothing() {
    let target = target(1 << 20);
    let (association, mut lane, namespace) = connect(&target, wanted());
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    target.script(move |seen| {
        if seen.qid > 0 {
            // Until the test has dropped the lane.
            let _ = receiver.recv();
        }
        Reaction::Execute
    });
    // More than the sockets buffer.
    for user in 0..16 {
        lane.submit(namespace.write(0, BLOCKS * 2).unwrap(), Some(vec![1; 2 * BYTES]), user).unwrap();
    }
    lane.ring();
    let counters = lane.counters();
    assert!(counters.zero_copy_awaited > 0 && counters.blocks > 0, "{counters:?}");
    // It would wait for ever.
    drop(lane);
    drop(sender);
    target.drop_connections();
    drop(association);
}
