//! Lost associations: which commands are replayed, how the others end, and that no unexecuted command is reported as
//! done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::target::{Config, Reaction, Target, connect, finish, options};
use nvlane_host::{AdminCommand, Completion, Error, Event, Failure, Lane, RefusedReason, ReplayPolicy};
use proptest::prelude::*;
use wire::async_event::AsyncEvent;
use wire::feature::{Fid, SetFeatures};
use wire::id::Nsid;
use wire::opcode::{AdminOpcode, NvmOpcode};
use wire::sqe::Sqe;
use wire::status::Status;

const SECOND: Duration = Duration::from_secs(1);

fn one(lane: &mut Lane) -> Result<u64, Failure> {
    let mut completions = finish(lane);
    assert_eq!(completions.len(), 1);
    completions.remove(0).result
}

/// The target closes all connections at the first `opcode` on an I/O queue, after or before it executes the command.
fn fail_once(target: &Target, opcode: NvmOpcode, is_executed: bool) {
    let mut has_failed = false;
    target.script(move |seen| {
        if seen.qid == 0 || seen.sqe.opcode != opcode.raw() || std::mem::replace(&mut has_failed, true) {
            return Reaction::Execute;
        }
        if is_executed { Reaction::ExecuteAndClose } else { Reaction::Close }
    });
}

#[test]
fn reads_in_flight_are_read_again() {
    let target = Target::new();
    target.state().memory[0][512 * 3..512 * 4].fill(7);
    let (association, mut lane, namespace) = connect(&target, options());
    fail_once(&target, NvmOpcode::READ, false);
    lane.submit(namespace.read(3, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    let done = finish(&mut lane).remove(0);
    assert_eq!((done.result, done.buffer.unwrap()), (Ok(0), vec![7; 512]));
    assert_eq!(lane.counters().losses, 1);
    assert_eq!(association.controller().cntlid.get(), 2, "a new controller");
}

#[test]
fn a_write_that_was_interrupted_says_so() {
    for is_executed in [false, true] {
        let target = Target::new();
        let (_association, mut lane, namespace) = connect(&target, options());
        fail_once(&target, NvmOpcode::WRITE, is_executed);
        lane.submit(namespace.write(3, 1).unwrap(), Some(vec![9; 512]), 1).unwrap();
        let done = finish(&mut lane).remove(0);
        assert_eq!(done.result, Err(Failure::Interrupted));
        assert!(done.result.unwrap_err().may_have_happened());
        assert_eq!(done.buffer.unwrap(), vec![9; 512], "the buffer comes back");
        assert_eq!(target.state().memory[0][512 * 3] == 9, is_executed, "it may or may not have happened");
    }
}

#[test]
fn writes_are_repeated_if_the_caller_says_they_may_be() {
    let target = Target::new();
    let (_association, mut lane, namespace) =
        connect(&target, options().with_replay(ReplayPolicy::Idempotent));
    fail_once(&target, NvmOpcode::WRITE, false);
    lane.submit(namespace.write(3, 1).unwrap(), Some(vec![9; 512]), 1).unwrap();
    assert_eq!(one(&mut lane), Ok(0));
    assert_eq!(target.state().memory[0][512 * 3..512 * 4], [9; 512]);
    fail_once(&target, NvmOpcode::COMPARE, false);
    let pair = namespace.compare_and_write(3, 1).unwrap();
    lane.submit_pair(pair, [vec![9; 512], vec![8; 512]], [1, 2]).unwrap();
    for done in finish(&mut lane) {
        assert_eq!(done.result, Err(Failure::Interrupted), "a pair is never repeated");
    }
}

/// A command that waits to be repeated ends at once when cancelled, but it may have been executed.
#[test]
fn a_write_that_was_out_is_not_said_to_be_cancelled() {
    let target = Target::new();
    let (association, mut lane, namespace) =
        connect(&target, options().with_replay(ReplayPolicy::Idempotent));
    let events = association.events();
    fail_once(&target, NvmOpcode::WRITE, true);
    target.set_open(false);
    lane.submit(namespace.write(3, 1).unwrap(), Some(vec![9; 512]), 1).unwrap();
    while lane.is_live() {
        assert_eq!(lane.wait(&mut Vec::new(), SECOND / 100), 0);
    }
    while !matches!(events.recv_timeout(60 * SECOND).unwrap(), Event::Down { .. }) {}
    assert!(lane.cancel(1));
    assert_eq!(one(&mut lane), Err(Failure::Interrupted));
    assert_eq!(target.state().memory[0][512 * 3..512 * 4], [9; 512]);
    // A command that was never sent ends as cancelled.
    lane.submit(namespace.write(4, 1).unwrap(), Some(vec![9; 512]), 2).unwrap();
    assert!(lane.cancel(2));
    assert_eq!(one(&mut lane), Err(Failure::Cancelled));
}

#[test]
fn what_never_left_is_sent_later() {
    let target = Target::new();
    let (association, mut lane, namespace) = connect(&target, options());
    let mut events = association.events();
    target.set_open(false);
    target.drop_connections();
    while !matches!(events.recv_timeout(60 * SECOND).unwrap(), Event::Down { .. }) {}
    for user in 0..3 {
        lane.submit(namespace.write(user, 1).unwrap(), Some(vec![user as u8 + 1; 512]), user).unwrap();
        assert_eq!(lane.poll(&mut Vec::new()), 0);
    }
    assert!(!lane.is_live() && !association.is_up());
    target.set_open(true);
    assert!(finish(&mut lane).iter().all(Completion::is_ok));
    assert_eq!(target.state().memory[0][512 * 2], 3);
    assert!(events.by_ref().take_while(|event| !matches!(event, Event::Up)).count() < 100);
}

#[test]
fn the_first_flush_after_a_reconnect_vouches_for_nothing() {
    let target = Target::new();
    let (_association, mut lane, namespace) = connect(&target, options());
    let flush = |lane: &mut Lane| {
        lane.submit(namespace.flush(), None, 0).unwrap();
        one(lane)
    };
    assert_eq!(flush(&mut lane), Ok(0));
    target.drop_connections();
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 0).unwrap();
    assert_eq!(one(&mut lane), Ok(0));
    assert_eq!(flush(&mut lane), Err(Failure::Unflushed), "what was written before may be lost");
    assert_eq!(flush(&mut lane), Ok(0));
    fail_once(&target, NvmOpcode::FLUSH, true);
    assert_eq!(flush(&mut lane), Err(Failure::Unflushed), "never repeated silently");
    assert_eq!(flush(&mut lane), Ok(0), "told once");
}

#[test]
fn without_a_volatile_cache_a_flush_is_only_a_question() {
    let target = Target::of(|setup| setup.identify.vwc = setup.identify.vwc.with_present(false));
    let (_association, mut lane, namespace) = connect(&target, options());
    fail_once(&target, NvmOpcode::FLUSH, false);
    lane.submit(namespace.flush(), None, 0).unwrap();
    assert_eq!(one(&mut lane), Ok(0));
}

#[test]
fn the_loss_of_one_lane_ends_the_association_for_all() {
    let target = Target::new();
    let association = target.connect(options().with_lanes(2));
    let namespace = association.addressed_namespace().unwrap();
    let (mut first, mut second) = (association.lane::<Vec<u8>>().unwrap(), association.lane().unwrap());
    fail_once(&target, NvmOpcode::READ, false);
    first.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    assert_eq!(one(&mut first), Ok(0));
    second.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    assert_eq!(one(&mut second), Ok(0));
    let connects = target.state().connects.clone();
    assert_eq!(connects, [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)]);
}

#[test]
fn a_target_that_stays_away_is_given_up() {
    let target = Target::new();
    let mut options = options();
    options.reconnect.give_up_after = Some(Duration::from_millis(60));
    let (association, mut lane, namespace) = connect(&target, options);
    target.script(|_| Reaction::Hold);
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    lane.submit(namespace.write(0, 1).unwrap(), Some(vec![0; 512]), 2).unwrap();
    lane.ring();
    target.set_open(false);
    target.drop_connections();
    let done = finish(&mut lane);
    assert_eq!(done[0].result, Err(Failure::Unreachable));
    assert_eq!(done[1].result, Err(Failure::Interrupted));
    let start = Instant::now();
    while lane.over().is_none() {
        lane.poll(&mut Vec::new());
        assert!(start.elapsed() < 60 * SECOND);
    }
    let refused = lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Ended);
    let over = association.over().unwrap();
    assert!(matches!(&*over, Error::GaveUp { attempts: 1.., .. }), "{over}");
    assert!(association.lane::<Vec<u8>>().is_err());
    assert!(association.identify_controller().is_err());
}

#[test]
fn a_refusal_for_good_stops_the_attempts() {
    let target = Target::new();
    let (association, mut lane, namespace) = connect(&target, options());
    target.state().refuse_connect = Some((Status::CONNECT_INVALID_HOST.with_dnr(), 0));
    target.drop_connections();
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    assert_eq!(one(&mut lane), Err(Failure::Unreachable));
    let message = association.over().unwrap().to_string();
    assert!(message.contains("attempts: 1") && message.contains("allow our host name"), "{message}");
    assert!(association.over().unwrap().to_string().len() < 400);
}

#[test]
fn a_lane_refused_for_good_ends_the_association() {
    let target = Target::new();
    let (association, mut lane, namespace) = connect(&target, options());
    target.state().refuse_io_connect = true;
    target.drop_connections();
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    assert_eq!(one(&mut lane), Err(Failure::Unreachable));
    let message = association.over().unwrap().to_string();
    assert!(message.contains("queue id"), "{message}");
}

#[test]
fn a_refusal_for_now_does_not() {
    let target = Target::new();
    let (association, mut lane, namespace) = connect(&target, options());
    let mut events = association.events();
    target.state().refuse_connect = Some((Status::CONNECT_CONTROLLER_BUSY, 0));
    target.drop_connections();
    let failed = |event: &Event| matches!(event, Event::AttemptFailed { attempts: 3, .. });
    assert!(events.by_ref().any(|event| failed(&event)));
    target.state().refuse_connect = None;
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    assert_eq!(one(&mut lane), Ok(0));
}

#[test]
fn a_target_that_forgets_keep_alives_is_left() {
    let target = Target::new();
    let count = Arc::new(AtomicU32::new(0));
    let seen_count = Arc::clone(&count);
    target.script(move |seen| {
        let is_keep_alive = seen.qid == 0 && seen.sqe.opcode == AdminOpcode::KEEP_ALIVE.raw();
        let holds = is_keep_alive && seen_count.fetch_add(1, Ordering::Relaxed) == 0;
        if holds { Reaction::Hold } else { Reaction::Execute }
    });
    let association = target.connect(options().with_keep_alive(Duration::from_millis(60)));
    let events = association.events();
    let Event::Down { cause } = events.recv_timeout(60 * SECOND).unwrap() else { panic!("lost") };
    assert!(cause.to_string().contains("no answer to a keep-alive"), "{cause}");
    while !matches!(events.recv_timeout(60 * SECOND).unwrap(), Event::Up) {}
    let start = Instant::now();
    while count.load(Ordering::Relaxed) < 4 {
        assert!(start.elapsed() < 60 * SECOND, "no more keep-alives");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(association.is_up());
}

#[test]
fn a_command_that_takes_too_long_is_aborted() {
    let target = Target::new();
    let (_association, mut lane, namespace) =
        connect(&target, options().with_command_timeout(Duration::from_millis(40)));
    target.script(|seen| if seen.qid > 0 { Reaction::Hold } else { Reaction::Execute });
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    assert_eq!(one(&mut lane), Err(Failure::TimedOut));
    assert_eq!(lane.counters().losses, 0, "an abort was enough");
    target.obey();
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    assert_eq!(one(&mut lane), Ok(0));
}

/// hostile H13
#[test]
fn a_command_that_cannot_be_aborted_costs_the_association() {
    let target = Target::of(|setup| setup.abort_works = false);
    let (_association, mut lane, namespace) =
        connect(&target, options().with_command_timeout(Duration::from_millis(40)));
    target.script(|seen| match seen.qid {
        0 => Reaction::Execute,
        _ => Reaction::ExecuteSilently,
    });
    lane.submit(namespace.write(0, 1).unwrap(), Some(vec![5; 512]), 1).unwrap();
    assert_eq!(one(&mut lane), Err(Failure::TimedOut));
    assert_eq!(lane.counters().losses, 1, "the buffer comes back only when the connection is closed");
    target.obey();
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    assert_eq!(finish(&mut lane).remove(0).buffer.unwrap(), vec![5; 512], "it had happened");
}

#[test]
fn admin_commands_survive_a_reconnect_if_they_change_nothing() {
    let target = Target::new();
    let association = target.connect(options());
    let mut count = 0;
    target.script(move |seen| {
        count += 1;
        let is_first = count == 1 && seen.qid == 0;
        if is_first { Reaction::Close } else { Reaction::Execute }
    });
    assert_eq!(association.identify_controller().unwrap().model().to_string(), "nvlane test");
    let mut has_failed = false;
    target.script(move |seen| {
        let is_ours = seen.sqe.opcode == AdminOpcode::SET_FEATURES.raw()
            && SetFeatures::from_sqe(seen.sqe).fid == Fid::ARBITRATION;
        if is_ours && !std::mem::replace(&mut has_failed, true) { Reaction::Close } else { Reaction::Execute }
    });
    let set = SetFeatures { fid: Fid::ARBITRATION, save: false, value: 1 };
    let error = association.set_features(set, Nsid::NONE, Vec::new()).unwrap_err();
    assert!(matches!(error, Error::Failed { failure: Failure::Interrupted, .. }), "{error}");
    let raw = AdminCommand::new(Sqe::keep_alive()).read_only();
    assert_eq!(association.admin("Keep Alive", raw).unwrap().result, 0);
}

#[test]
fn namespaces_that_change_are_told_and_looked_at() {
    let target = Target::new();
    let association = target.connect(options());
    let events = association.events();
    target.state().namespaces = vec![4096, 0, 100];
    target.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    let event = events.recv_timeout(60 * SECOND).unwrap();
    let Event::NamespacesChanged(changed) = event else { panic!("{event:?}") };
    assert_eq!(changed, [1, 3].map(Nsid::new));
    assert_eq!(association.namespace(Nsid::new(1)).unwrap().block_count(), 4096);
    assert!(matches!(association.namespace(Nsid::new(2)), Err(Error::NoNamespace { .. })));
    assert!(matches!(association.addressed_namespace(), Err(Error::WhichNamespace { .. })));
}

#[test]
fn closing_ends_lanes_in_good_order() {
    let target = Target::new();
    let (association, mut lane, namespace) = connect(&target, options());
    target.script(|seen| if seen.qid > 0 { Reaction::Hold } else { Reaction::Execute });
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    lane.ring();
    association.close();
    assert_eq!(one(&mut lane), Err(Failure::Unreachable));
    assert!(matches!(lane.over(), Some(Error::Ended)));
    assert!(association.events().recv().is_err(), "nothing can happen any more");
    target.await_ends(&target.connections());
}

#[test]
fn a_target_that_is_restarted_is_found_again() {
    let first = Target::new();
    let (address, options) = (first.address, options());
    let (_association, mut lane, namespace) = connect(&first, options);
    drop(first);
    let second = Target::at(address, Config::default());
    second.state().memory[0].fill(3);
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    assert_eq!(finish(&mut lane).remove(0).buffer.unwrap(), vec![3; 512]);
}

/// One run of the matrix: a few commands of each kind, with the connections cut at some point.
fn run_cut(pdus: u32, bytes: usize, replay: ReplayPolicy) -> u32 {
    let target = Target::new();
    let (_association, mut lane, namespace) = connect(&target, options().with_replay(replay).with_depth(16));
    // Block n holds n; each write goes to its own block and writes 100 + n.
    for block in 0..64 {
        target.state().memory[0][block * 512..(block + 1) * 512].fill(block as u8);
    }
    target.cut_after(pdus, bytes);
    let mut user = 0;
    let mut completions = Vec::new();
    while user < 24 {
        while lane.has_room(1) && user < 24 {
            let command = match user % 3 {
                0 => namespace.read(user, 2).unwrap(),
                // Both transfers of write data: in the capsule, and after an R2T.
                1 => namespace.write(user, 1).unwrap(),
                _ => namespace.write(user * 40, 20).unwrap(),
            };
            let fill = if user % 3 == 0 { 0 } else { 100 + user as u8 };
            let length = command.buffer_bytes().unwrap();
            lane.submit(command, Some(vec![fill; length as usize]), user).unwrap();
            user += 1;
        }
        lane.poll(&mut completions);
    }
    completions.extend(finish(&mut lane));
    let mut users: Vec<_> = completions.iter().map(|done| done.user).collect();
    users.sort_unstable();
    assert_eq!(users, (0..24).collect::<Vec<_>>(), "each command ends exactly once");
    let memory = target.state().memory[0].clone();
    for done in completions {
        let (user, buffer) = (done.user as usize, done.buffer.unwrap());
        let start = if user % 3 == 2 { user * 40 } else { user } * 512;
        let there = &memory[start..start + buffer.len()];
        match (user % 3, done.result) {
            (0, result) => {
                assert_eq!(result, Ok(0), "reads are repeated until they succeed");
                assert_eq!(buffer[0], user as u8, "and bring what is there");
            }
            (_, Ok(_)) => assert_eq!(there, buffer, "what was reported done is there"),
            (_, Err(Failure::Interrupted)) => {
                let is_whole = there.iter().all(|&byte| byte == there[0]);
                assert!(is_whole, "done or not, by this target");
            }
            (_, Err(other)) => panic!("{other}"),
        }
    }
    target.state().connects.iter().filter(|(qid, _)| *qid == 0).count() as u32 - 1
}

/// hostile H18
#[test]
fn connections_cut_at_every_pdu_cost_no_command() {
    let mut losses = 0;
    for pdus in 0..48 {
        losses += run_cut(pdus, 0, ReplayPolicy::ReadsOnly);
    }
    // Closing ends all outstanding commands; none waits for a new connection.
    assert!(losses >= 20, "{losses} losses");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn connections_cut_at_any_byte_cost_no_command(pdus in 0u32..48, bytes in 0usize..600, repeats: bool) {
        let replay = if repeats { ReplayPolicy::Idempotent } else { ReplayPolicy::ReadsOnly };
        run_cut(pdus, bytes, replay);
    }
}
