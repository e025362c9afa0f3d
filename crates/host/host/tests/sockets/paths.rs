//! Namespaces that are temporarily unreachable: their commands are held up to the caller's limit, and end exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::target::{Config, Reaction, Target, connect, finish, options};
use nvlane_host::{BlockRange, BlockingNamespace, Completion, Error, Failure, Lane};
use wire::async_event::AsyncEvent;
use wire::log::ana::AnaState;
use wire::opcode::NvmOpcode;
use wire::status::Status;

const SECOND: Duration = Duration::from_secs(1);

/// Makes the target answer the next `count` I/O commands with a status; returns the counter of commands seen.
fn fail_first(target: &Target, count: u32, status: Status) -> Arc<AtomicU32> {
    let seen = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&seen);
    target.script(move |command| match command.qid {
        0 => Reaction::Execute,
        _ if counter.fetch_add(1, Ordering::Relaxed) < count => Reaction::Status(status),
        _ => Reaction::Execute,
    });
    seen
}

#[test]
fn a_path_that_is_away_for_a_moment_fails_nothing() {
    for status in [
        Status::INTERNAL_PATH_ERROR,
        Status::ANA_INACCESSIBLE,
        Status::ANA_TRANSITION,
        Status::CONTROLLER_PATHING_ERROR,
        Status::NAMESPACE_NOT_READY,
    ] {
        let target = Target::new();
        let (_association, mut lane, namespace) = connect(&target, options());
        let seen = fail_first(&target, 12, status);
        for user in 0..8 {
            let write = namespace.write(user * 2, 2).unwrap();
            lane.submit(write, Some(vec![user as u8 + 1; 1024]), user).unwrap();
        }
        lane.submit(namespace.flush(), None, 8).unwrap();
        let mut done = finish(&mut lane);
        assert!(done.iter().all(Completion::is_ok), "{status}: {done:?}");
        done.sort_unstable_by_key(|completion| completion.user);
        let users: Vec<_> = done.iter().map(|completion| completion.user).collect();
        assert_eq!(users, (0..9).collect::<Vec<_>>(), "each ends once");
        assert_eq!(seen.load(Ordering::Relaxed), 12 + 9, "{status}");
        let memory = target.state().memory[0].clone();
        for user in 0..8 {
            assert!(memory[user * 1024..][..1024].iter().all(|byte| *byte == user as u8 + 1));
        }
    }
}

#[test]
fn a_path_that_stays_away_is_waited_for_as_long_as_the_caller_says() {
    let target = Target::new();
    // Longer than the longest delay of a retry.
    let limit = Duration::from_millis(1200);
    let (_association, mut lane, namespace) =
        connect(&target, options().tuned(|tuning| tuning.path_timeout = limit));
    let seen = fail_first(&target, u32::MAX, Status::INTERNAL_PATH_ERROR);
    let start = Instant::now();
    for user in 0..100 {
        lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), user).unwrap();
    }
    let done = finish(&mut lane);
    assert!(start.elapsed() >= limit && done.len() == 100);
    for completion in done {
        let Err(failure) = completion.result else { panic!("succeeds") };
        let Failure::GaveUp { status, retry_count, waited } = failure else { panic!("{failure}") };
        assert!(
            status.is(Status::INTERNAL_PATH_ERROR)
                && waited.duration() >= Duration::from_millis(1200)
                && retry_count > 2,
            "{failure}"
        );
        let text = failure.to_string();
        assert!(text.contains("internal path error (0x300): given up after 1"), "{text}");
        assert_eq!(completion.buffer.map(|buffer| buffer.len()), Some(512), "the buffer comes back");
    }
    // Retries after 10, 20, 40, 80, 160, 320 and 640 ms: a few attempts, however long the path is down.
    let count = seen.load(Ordering::Relaxed);
    assert!(count <= 100 * 9, "{count} commands were sent");
}

#[test]
fn internal_errors_end_only_what_must_not_be_repeated() {
    let target = Target::new();
    let (_association, mut lane, namespace) = connect(&target, options());
    let seen = fail_first(&target, 2, Status::INTERNAL_ERROR);
    lane.submit(namespace.write(0, 1).unwrap(), Some(vec![1; 512]), 1).unwrap();
    assert_eq!(finish(&mut lane).remove(0).result, Ok(0), "it has passed at the third");
    assert_eq!((seen.load(Ordering::Relaxed), lane.counters().retries), (3, 2));
    let seen = fail_first(&target, 1, Status::INTERNAL_ERROR);
    lane.submit(namespace.flush(), None, 1).unwrap();
    let failed = Err(Failure::Status(Status::INTERNAL_ERROR));
    assert_eq!(finish(&mut lane).remove(0).result, failed, "data may be lost");
    assert_eq!((seen.load(Ordering::Relaxed), lane.counters().retries), (1, 2));
}

#[test]
fn what_no_wait_helps_ends_at_once() {
    let target = Target::new();
    let (_association, mut lane, namespace) = connect(&target, options());
    for status in [
        Status::ANA_PERSISTENT_LOSS,
        Status::ANA_INACCESSIBLE.with_dnr(),
        Status::INTERNAL_PATH_ERROR.with_dnr(),
        Status::INTERNAL_ERROR.with_dnr(),
        Status::INVALID_NAMESPACE.with_dnr(),
    ] {
        let seen = fail_first(&target, u32::MAX, status);
        lane.submit(namespace.write(0, 1).unwrap(), Some(vec![1; 512]), 1).unwrap();
        assert_eq!(finish(&mut lane).remove(0).result, Err(Failure::Status(status)));
        assert_eq!(seen.load(Ordering::Relaxed), 1, "{status}");
    }
    drop((lane, namespace));
    let (_association, mut lane, namespace) =
        connect(&target, options().tuned(|tuning| tuning.path_timeout = Duration::ZERO));
    let seen = fail_first(&target, u32::MAX, Status::ANA_INACCESSIBLE);
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![1; 512]), 1).unwrap();
    let result = finish(&mut lane).remove(0).result;
    assert_eq!(result, Err(Failure::Status(Status::ANA_INACCESSIBLE)), "no time to wait");
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

/// Polls a lane until the target has seen this many reads of its ANA log, and the lane has had time to process them.
fn until(lane: &mut Lane, mut is_so: impl FnMut() -> bool) -> Vec<Completion<Vec<u8>>> {
    let mut done = Vec::new();
    let start = Instant::now();
    while !is_so() {
        lane.poll(&mut done);
        assert!(start.elapsed() < 60 * SECOND, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
    done
}

/// Counts I/O commands and answers them according to the target's ANA state.
fn obey_ana(target: &Target) -> Arc<AtomicU32> {
    let seen = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&seen);
    let is_away = Arc::clone(&target.is_away);
    target.script(move |command| {
        if command.qid == 0 {
            return Reaction::Execute;
        }
        counter.fetch_add(1, Ordering::Relaxed);
        match is_away.load(Ordering::Relaxed) {
            0 => Reaction::Execute,
            code => Reaction::Status(Status::from_code(code as u16)),
        }
    });
    seen
}

#[test]
fn commands_of_an_inaccessible_group_are_held_without_being_sent() {
    for is_told in [true, false] {
        let target = Target::with(Config::with_ana());
        target.set_ana(AnaState::INACCESSIBLE, false);
        // The log is read before the association is up, so even the first command is held.
        let (_association, mut lane, namespace) = connect(&target, options());
        let seen = obey_ana(&target);
        for user in 0..20 {
            lane.submit(namespace.write(user, 1).unwrap(), Some(vec![user as u8 + 1; 512]), user).unwrap();
        }
        lane.submit(namespace.flush(), None, 20).unwrap();
        let reads = target.state().ana_reads;
        // The log is polled, for targets that send no events.
        let early = until(&mut lane, || target.state().ana_reads >= reads + 2);
        assert!(early.is_empty());
        assert_eq!((seen.load(Ordering::Relaxed), lane.outstanding()), (0, 21), "held, and counted");
        target.set_ana(AnaState::CHANGE, is_told);
        let reads = target.state().ana_reads;
        let early = until(&mut lane, || target.state().ana_reads > reads);
        assert!(early.is_empty() && seen.load(Ordering::Relaxed) == 0, "nor while it changes");
        target.set_ana(AnaState::NON_OPTIMIZED, is_told);
        let done = finish(&mut lane);
        assert!(done.len() == 21 && done.iter().all(Completion::is_ok), "{done:?}");
        assert_eq!(seen.load(Ordering::Relaxed), 21, "each was sent once");
    }
}

#[test]
fn a_status_of_ana_has_the_log_read_again() {
    let target = Target::with(Config::with_ana());
    let (_association, mut lane, namespace) = connect(&target, options());
    let seen = obey_ana(&target);
    // The group becomes inaccessible without an event.
    target.set_ana(AnaState::INACCESSIBLE, false);
    lane.submit(namespace.write(0, 1).unwrap(), Some(vec![5; 512]), 1).unwrap();
    let reads = target.state().ana_reads;
    assert!(until(&mut lane, || target.state().ana_reads >= reads + 2).is_empty());
    let count = seen.load(Ordering::Relaxed);
    assert!(until(&mut lane, || target.state().ana_reads >= reads + 3).is_empty());
    assert_eq!(seen.load(Ordering::Relaxed), count, "from then on it is held without being sent");
    target.set_ana(AnaState::OPTIMIZED, true);
    assert!(finish(&mut lane).remove(0).is_ok());
    assert_eq!(target.state().memory[0][..512], [5; 512]);
}

#[test]
fn persistent_loss_ends_what_is_held() {
    let target = Target::with(Config::with_ana());
    target.set_ana(AnaState::INACCESSIBLE, false);
    let (_association, mut lane, namespace) = connect(&target, options());
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    lane.submit(namespace.flush(), None, 2).unwrap();
    target.set_ana(AnaState::PERSISTENT_LOSS, true);
    let lost = Err(Failure::Status(Status::ANA_PERSISTENT_LOSS));
    let results: Vec<_> = finish(&mut lane).into_iter().map(|completion| completion.result).collect();
    assert_eq!(results, [lost, lost]);
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    assert_eq!(finish(&mut lane).remove(0).result, lost);
}

#[test]
fn held_commands_end_with_their_time_their_cancellation_or_their_association() {
    let target = Target::with(Config::with_ana());
    target.set_ana(AnaState::INACCESSIBLE, false);
    let limited = options().tuned(|tuning| tuning.path_timeout = Duration::from_millis(200));
    let (_association, mut lane, namespace) = connect(&target, limited);
    let seen = obey_ana(&target);
    lane.submit(namespace.write(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    let failure = finish(&mut lane).remove(0).result.unwrap_err();
    let Failure::GaveUp { status, retry_count: 0, waited } = failure else { panic!("{failure}") };
    assert!(status.is(Status::ANA_INACCESSIBLE) && waited.duration() >= Duration::from_millis(200));
    drop((lane, namespace));

    let (association, mut lane, namespace) = connect(&target, options());
    for user in 1..=3 {
        lane.submit(namespace.write(0, 1).unwrap(), Some(vec![0; 512]), user).unwrap();
    }
    assert!(lane.cancel(2));
    let mut done = Vec::new();
    lane.poll(&mut done);
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].user, done[0].result), (2, Err(Failure::Cancelled)));
    assert!(!lane.cancel(2), "it has ended");
    association.close();
    let results: Vec<_> =
        finish(&mut lane).into_iter().map(|completion| (completion.user, completion.result)).collect();
    assert_eq!(results, [1, 3].map(|user| (user, Err(Failure::Unreachable))));
    assert_eq!(seen.load(Ordering::Relaxed), 0);
}

#[test]
fn a_held_deallocation_that_is_cancelled_may_have_happened() {
    let target = Target::new();
    let (_association, mut lane, namespace) = connect(&target, options());
    fail_first(&target, u32::MAX, Status::INTERNAL_PATH_ERROR);
    let ranges = [(0, 1), (4, 2)].map(|(lba, blocks)| BlockRange { lba, blocks });
    lane.submit(namespace.deallocate(&ranges).unwrap(), None, 1).unwrap();
    lane.submit(namespace.write(0, 1).unwrap(), Some(vec![0; 512]), 2).unwrap();
    // The host holds them once their answers have arrived.
    while lane.counters().retries < 2 {
        assert_eq!(lane.wait(&mut Vec::new(), SECOND), 0, "neither ends");
    }
    assert!(lane.cancel(1) && lane.cancel(2));
    let mut done = finish(&mut lane);
    done.sort_unstable_by_key(|completion| completion.user);
    let results: Vec<_> = done.into_iter().map(|completion| completion.result).collect();
    // One of its ranges could not be reached; the other one may be deallocated.
    assert_eq!(results, [Err(Failure::Interrupted), Err(Failure::Cancelled)]);
}

#[test]
fn a_flush_of_before_a_reconnect_says_so_however_long_it_was_held() {
    let target = Target::with(Config::with_ana());
    target.set_ana(AnaState::INACCESSIBLE, false);
    let (_association, mut lane, namespace) = connect(&target, options());
    lane.submit(namespace.write(0, 1).unwrap(), Some(vec![9; 512]), 1).unwrap();
    lane.submit(namespace.flush(), None, 2).unwrap();
    let before = target.state().connects.len();
    target.drop_connections();
    until(&mut lane, || target.state().connects.len() >= before + 2);
    target.set_ana(AnaState::OPTIMIZED, true);
    let mut done = finish(&mut lane);
    done.sort_unstable_by_key(|completion| completion.user);
    assert!(done[0].is_ok(), "a write that had not left is sent on the next connection");
    assert_eq!(done[1].result, Err(Failure::Unflushed));
    assert_eq!(target.state().memory[0][..512], [9; 512]);
}

#[test]
fn a_flush_that_is_repeated_after_a_reconnect_covers_nothing() {
    let target = Target::new();
    let (_association, mut lane, namespace) = connect(&target, options());
    fail_first(&target, u32::MAX, Status::INTERNAL_PATH_ERROR);
    lane.submit(namespace.flush(), None, 1).unwrap();
    // The host holds it once its answer has arrived.
    while lane.counters().retries == 0 {
        assert_eq!(lane.wait(&mut Vec::new(), SECOND), 0, "it does not end");
    }
    let before = target.state().connects.len();
    target.drop_connections();
    let mut done = until(&mut lane, || target.state().connects.len() >= before + 2);
    target.obey();
    done.extend(finish(&mut lane));
    assert_eq!(done.remove(0).result, Err(Failure::Unflushed));
}

#[test]
fn a_pair_is_held_and_sent_again_as_one() {
    for status in [Status::ANA_TRANSITION, Status::NAMESPACE_NOT_READY] {
        let target = Target::new();
        let (_association, mut lane, namespace) = connect(&target, options());
        // Both halves fail three times; the second with the status of controllers that do not execute it.
        let mut count = 0;
        target.script(move |command| {
            if command.qid == 0 {
                return Reaction::Execute;
            }
            count += 1;
            match (count <= 6, NvmOpcode::from_raw(command.sqe.opcode)) {
                (false, _) => Reaction::Execute,
                (true, NvmOpcode::COMPARE) => Reaction::Status(status),
                (true, _) => Reaction::Status(Status::ABORTED_FAILED_FUSED),
            }
        });
        let pair = namespace.compare_and_write(0, 1).unwrap();
        lane.submit_pair(pair, [vec![0; 512], vec![3; 512]], [1, 2]).unwrap();
        let done = finish(&mut lane);
        assert!(done.len() == 2 && done.iter().all(Completion::is_ok), "{done:?}");
        assert_eq!(target.state().memory[0][..512], [3; 512]);
        // The other half has ended: the first does not wait for it.
        target.script(move |command| match NvmOpcode::from_raw(command.sqe.opcode) {
            _ if command.qid == 0 => Reaction::Execute,
            NvmOpcode::COMPARE => Reaction::Status(status),
            _ => Reaction::Status(Status::INTERNAL_ERROR),
        });
        let pair = namespace.compare_and_write(0, 1).unwrap();
        lane.submit_pair(pair, [vec![3; 512], vec![4; 512]], [1, 2]).unwrap();
        let mut results: Vec<_> = finish(&mut lane).into_iter().map(|end| (end.user, end.result)).collect();
        results.sort_unstable_by_key(|(user, _)| *user);
        let expected = [(1, Err(Failure::Status(status))), (2, Err(Failure::Status(Status::INTERNAL_ERROR)))];
        assert_eq!(results, expected);
    }
}

#[test]
fn the_calls_of_a_handle_wait_and_then_say_for_how_long() {
    let target = Target::with(Config::with_ana());
    target.set_ana(AnaState::INACCESSIBLE, false);
    let limited = options().tuned(|tuning| tuning.path_timeout = Duration::from_millis(150));
    let mut disk = BlockingNamespace::connect(&target.address(), limited).unwrap();
    let error = disk.write_at(&[1; 4096], 0).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("Write failed: asymmetric access inaccessible (0x302): given up after "),
        "{text}"
    );
    let Error::Failed { failure, .. } = error else { panic!("{text}") };
    assert!(!failure.may_have_happened());
    target.set_ana(AnaState::OPTIMIZED, true);
    // The event may still be in flight.
    let start = Instant::now();
    while disk.write_at(&[1; 4096], 0).is_err() {
        assert!(start.elapsed() < 60 * SECOND);
    }
    target.raise(AsyncEvent::ANA_CHANGE);
}
