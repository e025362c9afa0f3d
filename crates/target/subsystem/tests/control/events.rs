//! Asynchronous events and aborts. wire §13, §18

use nvlane_subsystem::message::{LaneMessage, Message, Step};
use wire::admin::AbortResult;
use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::feature::Fid;
use wire::id::{Nsid, Qid};
use wire::log::{GetLogPage, Lid};
use wire::property::{Cc, CommandSetSelection, Csts, Property, ShutdownNotification, ShutdownStatus};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::harness::{Association, DISKS, HOST, SERVICE, Shape, Target, add_namespace, host, nqn};

fn enable_events(target: &mut Target, association: &Association) {
    let events = AsyncEvents::NAMESPACE_ATTRIBUTE.bits();
    target.demand(association.admin, Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, events));
}

fn changed_namespaces(rae: bool) -> Sqe {
    let command =
        GetLogPage { lid: Lid::CHANGED_NAMESPACES, length_bytes: 4096, rae, ..GetLogPage::default() };
    command.to_sqe(Nsid::ALL).with_data(Sgl::transport(4096))
}

fn not_aborted(is_not: bool) -> u64 {
    AbortResult::default().with_not_aborted(is_not).bits().into()
}

#[test]
fn an_event_comes_again_only_after_its_log_was_read() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    enable_events(&mut target, &association);
    let first = target.send(association.admin, Sqe::async_event_request(), &[]);
    target.apply(vec![add_namespace(4, Shape::blocks(512, 8))]);
    assert_eq!(target.answer(first).result, u64::from(AsyncEvent::NAMESPACE_ATTRIBUTE.bits()));
    let second = target.send(association.admin, Sqe::async_event_request(), &[]);
    target.apply(vec![add_namespace(5, Shape::blocks(512, 8))]);
    assert!(target.open.contains(&second), "masked");
    let retained = target.data(association.admin, changed_namespaces(true));
    assert_eq!(retained[..12], [4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    target.apply(vec![add_namespace(6, Shape::blocks(512, 8))]);
    assert!(target.open.contains(&second), "the read retained the event");
    let read = target.data(association.admin, changed_namespaces(false));
    assert_eq!(read[..12], [4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]);
    assert_eq!(target.data(association.admin, changed_namespaces(false)), [0; 4096], "read and cleared");
    target.apply(vec![Step::RemoveNamespace { subsystem: nqn(DISKS), nsid: Nsid::new(5) }]);
    assert_eq!(target.answer(second).status, Status::SUCCESS);
}

/// wire §13: the events of critical warnings, each with a bit of its own
#[test]
fn storage_without_space_is_told_to_hosts_that_ask_for_it() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let request = target.send(association.admin, Sqe::async_event_request(), &[]);
    let low = || Step::SpaceLow { subsystem: nqn(DISKS), nsid: Nsid::new(1) };
    target.apply(vec![low()]);
    assert!(target.open.contains(&request), "nobody has asked");
    target.demand(association.admin, Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, 1));
    target.apply(vec![low()]);
    assert_eq!(target.answer(request).result, u64::from(AsyncEvent::SMART_SPARE.bits()));
}

/// A host that completes its event requests by itself: their lanes say so before the commands that have the ids now
/// come.
#[test]
fn requests_that_the_host_has_completed_are_forgotten_and_it_can_shut_down() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    enable_events(&mut target, &association);
    let requests: Vec<_> =
        (0..4).map(|_| target.send(association.admin, Sqe::async_event_request(), &[])).collect();
    assert_eq!(target.ask(association.admin, Sqe::async_event_request()).status, Status::AER_LIMIT_EXCEEDED);
    for request in &requests[..3] {
        target.supersede(*request);
        // Its slot is free once it is answered; the lane sends nothing.
        assert_eq!(target.answer(*request).status, Status::ABORT_REQUESTED);
    }
    // There is room for others.
    let again = target.send(association.admin, Sqe::async_event_request(), &[]);
    assert!(target.open.contains(&again) && target.open.contains(&requests[3]));
    target.supersede(again);
    target.supersede(requests[3]);
    let cc = Cc::new(CommandSetSelection::NVM).with_en(true).with_shn(ShutdownNotification::NORMAL);
    target.demand(association.admin, Sqe::property_set(Property::CC, cc.bits().into()));
    let csts = Csts::from_bits(u32::try_from(target.property(association.admin, Property::CSTS)).unwrap());
    assert_eq!(csts.shst(), ShutdownStatus::COMPLETE);
    target.apply(vec![add_namespace(4, Shape::blocks(512, 8))]);
    assert!(target.open.is_empty());
}

#[test]
fn an_event_that_crossed_the_end_of_its_request_is_told_with_the_next() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    enable_events(&mut target, &association);
    let first = target.send(association.admin, Sqe::async_event_request(), &[]);
    target.apply(vec![add_namespace(4, Shape::blocks(512, 8))]);
    // The answer was on its way to the lane when the host gave the id to another command.
    assert_eq!(target.answer(first).status, Status::SUCCESS);
    target.supersede(first);
    let second = target.ask(association.admin, Sqe::async_event_request());
    assert_eq!(second.result, u64::from(AsyncEvent::NAMESPACE_ATTRIBUTE.bits()));
    let third = target.send(association.admin, Sqe::async_event_request(), &[]);
    assert!(target.open.contains(&third), "told once");
}

#[test]
fn an_event_waits_for_a_request() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    enable_events(&mut target, &association);
    target.apply(vec![add_namespace(4, Shape::blocks(512, 8))]);
    let answer = target.ask(association.admin, Sqe::async_event_request());
    assert_eq!(answer.result, u64::from(AsyncEvent::NAMESPACE_ATTRIBUTE.bits()));
}

#[test]
fn events_that_are_not_enabled_or_not_possible_are_not_sent() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let event = target.send(association.admin, Sqe::async_event_request(), &[]);
    target.apply(vec![add_namespace(4, Shape::blocks(512, 8))]);
    assert!(target.open.contains(&event));
    for events in [AsyncEvents::DISCOVERY, AsyncEvents::FIRMWARE, AsyncEvents::from_bits_retain(1 << 20)] {
        let set = Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, events.bits());
        assert_eq!(target.ask(association.admin, set).status, Status::INVALID_FIELD.with_dnr());
    }
    // A discovery controller knows one event only.
    let discovery = target.ready(host(HOST), SERVICE, 0);
    let set = Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, AsyncEvents::NAMESPACE_ATTRIBUTE.bits());
    assert_eq!(target.ask(discovery.admin, set).status, Status::INVALID_FIELD.with_dnr());
}

/// hostile inputs M4
#[test]
fn a_thousand_event_requests_are_too_many() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let sent: Vec<_> =
        (0..1000).map(|_| target.send(association.admin, Sqe::async_event_request(), &[])).collect();
    assert_eq!(target.open.len(), 4);
    for command in &sent[4..] {
        assert_eq!(target.answer(*command).status, Status::AER_LIMIT_EXCEEDED);
    }
}

/// hostile inputs M5
#[test]
fn an_event_request_can_be_aborted_and_nothing_else_on_the_admin_queue() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let event = target.send(association.admin, Sqe::async_event_request().with_cid(0xF01F), &[]);
    for cid in [0x001F, 0xF020, 7] {
        // None has this id, or the Abort itself has it.
        let answer = target.ask(association.admin, Sqe::abort(Qid::ADMIN, cid).with_cid(7));
        assert_eq!((answer.status, answer.result), (Status::SUCCESS, not_aborted(true)));
    }
    let abort = target.ask(association.admin, Sqe::abort(Qid::ADMIN, 0xF01F));
    assert_eq!(abort.result, not_aborted(false));
    assert_eq!(target.answer(event).status, Status::ABORT_REQUESTED);
    let again = target.ask(association.admin, Sqe::abort(Qid::ADMIN, 0xF01F));
    assert_eq!(again.result, not_aborted(true));
}

#[test]
fn an_abort_on_an_io_queue_waits_for_what_the_lane_says() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let ask = Sqe::abort(Qid::new(1), 0xABCD);
    let aborts: Vec<_> = (0..4).map(|_| target.send(association.admin, ask, &[])).collect();
    let asked = target.messages.iter().filter(|(reactor, message)| {
        matches!(message, Message::Lane(LaneMessage::Abort { lane, cid: 0xABCD, .. }) if *lane == association.io[0] && *reactor == usize::from(lane.reactor))
    });
    assert_eq!(asked.count(), 4);
    assert_eq!(target.ask(association.admin, ask).status, Status::ABORT_LIMIT_EXCEEDED);
    target.control.on_aborted(aborts[1], true);
    target.control.on_aborted(aborts[0], false);
    // Heard of already.
    target.control.on_aborted(aborts[0], true);
    target.settle();
    assert_eq!(target.answer(aborts[1]).result, not_aborted(false));
    assert_eq!(target.answer(aborts[0]).result, not_aborted(true));
    // The lane ends without an answer.
    target.end(association.io[0]);
    for abort in &aborts[2..] {
        assert_eq!(target.answer(*abort).result, not_aborted(true));
    }
    assert_eq!(target.ask(association.admin, ask).result, not_aborted(true));
}

#[test]
fn nobody_is_answered_on_a_lane_that_has_ended() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let abort = target.send(association.admin, Sqe::abort(Qid::new(1), 5), &[]);
    target.habits.lanes_end = false;
    target.end(association.admin);
    target.end(association.io[0]);
    target.control.on_aborted(abort, true);
    target.settle();
    assert!(!target.answers.contains_key(&abort));
}
