//! Reset, shutdown, keep-alive and the end of associations, under a clock that the tests move. wire §8, §9

use nvlane_subsystem::message::{Message, OrderAnswer, OrderKind, ReactorMessage, Step};
use nvlane_subsystem::state::TargetState;
use nvlane_subsystem::subsystem::Access;
use wire::async_event::AsyncEvents;
use wire::feature::Fid;
use wire::id::Nsid;
use wire::property::{Cc, CommandSetSelection, Property, ShutdownNotification};
use wire::sqe::Sqe;
use wire::status::Status;

use crate::harness::{ConnectSpec, DISKS, HOST, OTHER_HOST, SECOND_NS, SERVICE, Target, host, nqn};

fn cc(enabled: bool) -> u64 {
    Cc::new(CommandSetSelection::NVM).with_en(enabled).bits().into()
}

fn set(value: u64) -> Sqe {
    Sqe::property_set(Property::CC, value)
}

fn shut_down() -> Sqe {
    let shn = ShutdownNotification::NORMAL;
    set(Cc::new(CommandSetSelection::NVM).with_en(true).with_shn(shn).bits().into())
}

/// CSTS: ready, no shutdown; shutdown in progress; shutdown complete.
const READY: u64 = 0b0001;
const IN_PROGRESS: u64 = 0b0101;
const COMPLETE: u64 = 0b1001;

/// hostile inputs Q12, R8
#[test]
fn a_reset_is_answered_when_nothing_can_write_any_more() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 2);
    let admin = association.admin;
    target.demand(
        admin,
        Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, AsyncEvents::NAMESPACE_ATTRIBUTE.bits()),
    );
    target.demand(admin, Sqe::set_feature(Fid::ARBITRATION, Nsid::NONE, 5));
    let event = target.send(admin, Sqe::async_event_request(), &[]);
    target.habits.lanes_end = false;
    let reset = target.send(admin, set(cc(false)), &[]);
    assert_eq!(target.ending(), association.io);
    // Until then the controller is still ready to look at, but takes nothing.
    assert_eq!(target.property(admin, Property::CSTS), READY);
    assert_eq!(target.ask(admin, Sqe::keep_alive()).status, Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(target.ask(admin, set(cc(true))).status, Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(target.connect(&association.queue(3)).1.status, Status::COMMAND_SEQUENCE_ERROR);
    target.end(association.io[0]);
    assert!(target.open.contains(&reset) && target.open.contains(&event));
    target.end(association.io[1]);
    assert_eq!(target.answer(reset).status, Status::SUCCESS);
    assert_eq!(target.answer(event).status, Status::ABORTED_SQ_DELETED, "SPDK asks no more then");
    assert_eq!(target.property(admin, Property::CSTS), 0);
    // Enabled again, it is as new, on the same association.
    target.enable(admin);
    assert_eq!(target.demand(admin, Sqe::get_feature(Fid::ARBITRATION, Nsid::NONE)).result, 0);
    assert_eq!(target.demand(admin, Sqe::get_feature(Fid::ASYNC_EVENTS, Nsid::NONE)).result, 0);
    assert_eq!(target.demand(admin, Sqe::get_feature(Fid::KEEP_ALIVE, Nsid::NONE)).result, 5000);
    assert_eq!(target.connect(&association.queue(1)).1.status, Status::SUCCESS);
}

/// hostile inputs Q11
#[test]
fn a_controller_can_be_enabled_and_reset_many_times() {
    let mut target = Target::new();
    let admin = target.associate(host(HOST), DISKS).admin;
    for _ in 0..10_000 {
        target.demand(admin, set(cc(true)));
        target.demand(admin, set(cc(false)));
    }
    assert_eq!(target.property(admin, Property::CSTS), 0);
    // What no controller can be.
    let impossible = Cc::new(CommandSetSelection::ADMIN_ONLY).with_en(true);
    for cc in [impossible, impossible.with_css(CommandSetSelection::NVM).with_mps(1), Cc::from_bits(1)] {
        assert_eq!(target.ask(admin, set(cc.bits().into())).status, Status::INVALID_FIELD.with_dnr());
    }
    assert_eq!(target.property(admin, Property::CSTS), 0);
}

#[test]
fn a_shutdown_is_complete_when_everything_is_safe() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let admin = association.admin;
    target.habits.lanes_end = false;
    target.habits.flushes_are_done = false;
    let command = target.send(admin, shut_down(), &[]);
    assert_eq!(target.answer(command).status, Status::SUCCESS, "hosts poll CSTS for the rest");
    assert_eq!(target.property(admin, Property::CSTS), IN_PROGRESS);
    assert_eq!(target.ending(), association.io);
    assert!(
        !target
            .messages
            .iter()
            .any(|(_, message)| matches!(message, Message::Reactor(ReactorMessage::Flush { .. }))),
        "not yet"
    );
    target.end(association.io[0]);
    let asked_by = target.messages.iter().find_map(|(_, message)| match message {
        Message::Reactor(ReactorMessage::Flush { asked_by, .. }) => Some(*asked_by),
        _ => None,
    });
    assert_eq!(asked_by, Some(command));
    assert_eq!(target.property(admin, Property::CSTS), IN_PROGRESS);
    target.control.on_flushed(command);
    assert_eq!(target.property(admin, Property::CSTS), COMPLETE);
    assert_eq!(target.ask(admin, Sqe::keep_alive()).status, Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn a_reset_overtakes_a_shutdown() {
    let mut target = Target::new();
    let admin = target.ready(host(HOST), DISKS, 1).admin;
    target.habits.flushes_are_done = false;
    let command = target.send(admin, shut_down(), &[]);
    target.demand(admin, set(cc(false)));
    target.enable(admin);
    target.control.on_flushed(command);
    assert_eq!(target.property(admin, Property::CSTS), READY, "the late flush changes nothing");
}

#[test]
fn a_discovery_controller_has_nothing_to_flush() {
    let mut target = Target::new();
    target.habits.flushes_are_done = false;
    let admin = target.ready(host(HOST), SERVICE, 0).admin;
    target.demand(admin, shut_down());
    assert_eq!(target.property(admin, Property::CSTS), COMPLETE);
}

/// hostile inputs R8
#[test]
fn silence_ends_an_association_after_its_lanes() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 2);
    let other = target.ready(host(OTHER_HOST), DISKS, 0);
    target.habits.lanes_end = false;
    target.pass(4 * SECOND_NS);
    target.demand(other.admin, Sqe::keep_alive());
    target.pass(4 * SECOND_NS);
    // 5 s and the grace of 2 s are over for the one, not for the other.
    let mut ending = target.ending();
    ending.sort();
    let mut lanes = [association.io.clone(), vec![association.admin]].concat();
    lanes.sort();
    assert_eq!(ending, lanes);
    let state = target.state();
    let states: Vec<_> = state.subsystems[0].controllers.iter().map(|controller| controller.state).collect();
    assert_eq!(states, ["ending", "ready"]);
    // Nothing more is taken from it.
    assert_eq!(target.ask(association.admin, Sqe::keep_alive()).status, Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(target.ask(association.admin, set(cc(false))).status, Status::COMMAND_SEQUENCE_ERROR);
    for lane in lanes {
        target.end(lane);
    }
    assert_eq!(target.state().subsystems[0].controllers.len(), 1);
}

/// hostile inputs M6
#[test]
fn any_command_on_any_lane_is_a_sign_of_life() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let shared = std::sync::Arc::clone(&target.joined(association.io[0]).association);
    for _ in 0..10 {
        target.pass(4 * SECOND_NS);
        shared.on_sign(target.now_ns);
    }
    assert_eq!(target.state().subsystems[0].controllers[0].state, "ready");
    target.pass(8 * SECOND_NS);
    assert!(target.state().subsystems[0].controllers.is_empty());
}

#[test]
fn a_host_without_keep_alive_may_be_silent_for_ever() {
    let mut target = Target::new();
    let mut spec = ConnectSpec::admin(host(HOST), DISKS);
    spec.command.kato_ms = 0;
    let (admin, _) = target.connect(&spec);
    target.enable(admin);
    target.pass(1_000_000 * SECOND_NS);
    target.demand(admin, Sqe::keep_alive());
    // It can turn it on later.
    target.demand(admin, Sqe::set_feature(Fid::KEEP_ALIVE, Nsid::NONE, 1500));
    assert_eq!(target.demand(admin, Sqe::get_feature(Fid::KEEP_ALIVE, Nsid::NONE)).result, 2000);
    target.pass(5 * SECOND_NS);
    assert!(target.state().subsystems[0].controllers.is_empty());
}

#[test]
fn a_target_that_was_stopped_itself_gives_hosts_time_to_be_heard() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let shared = std::sync::Arc::clone(&target.joined(association.admin).association);
    // As if the process had been suspended for a minute.
    target.now_ns += 60 * SECOND_NS;
    target.control.on_deadline(target.now_ns);
    target.settle();
    assert_eq!(target.state().subsystems[0].controllers.len(), 1);
    shared.on_sign(target.now_ns);
    target.pass(3 * SECOND_NS);
    assert_eq!(target.state().subsystems[0].controllers.len(), 1);
}

#[test]
fn a_thousand_idle_associations_cost_a_few_looks_a_second() {
    let mut target = Target::new();
    let hosts: Vec<_> = (0..300).map(|_| target.ready(host(HOST), DISKS, 0)).collect();
    let mut look_count = 0;
    for _ in 0..20 {
        for (at, association) in hosts.iter().enumerate() {
            let shared = &target.joined(association.admin).association;
            shared.on_sign(target.now_ns + at as u64 * 3_000_000);
        }
        let end_ns = target.now_ns + SECOND_NS;
        while let Some(at_ns) = target.control.next_deadline_ns().filter(|at_ns| *at_ns <= end_ns) {
            target.now_ns = at_ns;
            target.control.on_deadline(at_ns);
            look_count += 1;
        }
        target.now_ns = end_ns;
    }
    assert!(look_count <= 20 * 4, "{look_count} in 20 s");
    assert_eq!(target.state().subsystems[0].controllers.len(), 300);
}

#[test]
fn losing_an_io_lane_does_not_end_the_association() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 2);
    target.end(association.io[0]);
    assert!(target.ending().is_empty());
    assert_eq!(target.connect(&association.queue(1)).1.status, Status::SUCCESS);
}

#[test]
fn an_association_ends_with_a_lane_that_its_host_let_go_to_waste() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 2);
    target.expel(association.io[0]);
    assert!(target.ended.contains(&association.io[1]) && target.ended.contains(&association.admin));
    let again = target.ready(host(HOST), DISKS, 1);
    assert_ne!(again.admin, association.admin, "its host may come back");
}

#[test]
fn commands_of_a_closed_lane_delay_the_next_association_and_not_the_end_of_this_one() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 2);
    target.habits.lanes_end = false;
    target.expel(association.io[0]);
    let others = [association.io[1], association.admin];
    assert!(others.iter().all(|lane| target.ending().contains(lane)));
    others.into_iter().for_each(|lane| target.end(lane));
    let (lane, again) = (target.lane(), ConnectSpec::admin(host(HOST), DISKS));
    let connect = target.send(lane, again.command.to_sqe(), &again.data());
    assert!(!target.answers.contains_key(&connect), "a write of the closed lane may still land");
    target.end(association.io[0]);
    assert_eq!(target.answer(connect).status, Status::SUCCESS);
}

#[test]
fn a_host_that_is_not_allowed_any_more_is_disconnected() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    target.ready(host(OTHER_HOST), DISKS, 1);
    let only = Access::Only([nqn(OTHER_HOST).into()].into());
    let receiver = target.order(OrderKind::Apply(vec![Step::SetAccess(nqn(DISKS), only)]));
    let Ok(OrderAnswer::Applied(outcomes)) = receiver.try_recv() else { panic!("not applied") };
    assert_eq!(outcomes, [Ok(1)]);
    let state = target.state();
    let hosts: Vec<_> = state.subsystems[0].controllers.iter().map(|controller| &controller.host).collect();
    assert_eq!(hosts, [OTHER_HOST]);
    let (_, answer) = target.connect(&ConnectSpec::admin(association.host, DISKS));
    assert_eq!(answer.status, Status::CONNECT_INVALID_HOST.with_dnr());
}

/// hostile inputs R12
#[test]
fn a_stop_waits_for_lanes_and_then_ends_the_reactors() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let event = target.send(association.admin, Sqe::async_event_request(), &[]);
    target.habits.lanes_end = false;
    let receiver = target.order(OrderKind::Stop { grace_ms: 5000 });
    assert_eq!(target.answer(event).status, Status::ABORTED_SQ_DELETED);
    assert_eq!(target.ending().len(), 2);
    assert!(receiver.try_recv().is_err());
    target.end(association.io[0]);
    target.end(association.admin);
    let Ok(OrderAnswer::Stopped { lanes_left: 0 }) = receiver.try_recv() else { panic!("not stopped") };
    let stops = target
        .messages
        .iter()
        .filter(|(_, message)| matches!(message, Message::Reactor(ReactorMessage::Stop)));
    assert_eq!(stops.map(|(reactor, _)| *reactor).collect::<Vec<_>>(), [0, 1]);
    assert!(target.control.is_done());
}

#[test]
fn a_stop_does_not_wait_for_ever() {
    let mut target = Target::new();
    target.ready(host(HOST), DISKS, 1);
    target.habits.lanes_end = false;
    let receiver = target.order(OrderKind::Stop { grace_ms: 5000 });
    target.pass(4 * SECOND_NS);
    assert!(receiver.try_recv().is_err());
    target.pass(2 * SECOND_NS);
    let Ok(OrderAnswer::Stopped { lanes_left: 2 }) = receiver.try_recv() else { panic!("not stopped") };
}

#[test]
fn totals_have_every_host_and_the_causes_of_their_ends() {
    let mut target = Target::new();
    let orderly = target.ready(host(HOST), DISKS, 1);
    let lost = target.ready(host(OTHER_HOST), DISKS, 2);
    for (reads, lane) in (1..).zip(orderly.io.iter().chain(&lost.io)) {
        target.counters[lane].read_count.add(reads);
    }
    let counts = |state: &TargetState| {
        let hosts =
            state.hosts.iter().map(|host| (host.host.clone(), host.lane_count, host.totals.read_count));
        (hosts.collect::<Vec<_>>(), state.totals.read_count)
    };
    let (own, other) = (HOST.to_owned(), OTHER_HOST.to_owned());
    let both = vec![(own.clone(), 2, 1), (other.clone(), 3, 5)];
    assert_eq!(counts(&target.state()), (both, 6));
    target.end(lost.io[0]);
    assert_eq!(
        counts(&target.state()),
        (vec![(own.clone(), 2, 1), (other, 2, 5)], 6),
        "what it has read is kept"
    );
    target.end(lost.admin);
    target.settle();
    assert_eq!(counts(&target.state()), (vec![(own, 2, 1)], 6), "the host has gone");
    target.demand(orderly.admin, shut_down());
    target.end(orderly.admin);
    target.settle();
    let state = target.state();
    assert_eq!(counts(&state), (vec![], 6));
    let ended: Vec<_> = state.ended_associations.iter().filter(|(_, count)| **count > 0).collect();
    assert_eq!(
        ended,
        [(&"host disconnected".into(), &1), (&"host disconnected without shutdown".into(), &1)]
    );
}
