//! Queues whose hosts have not authenticated: whoever knows the names that a host sends in each Connect can have them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use nvlane_subsystem::lane_id::LaneId;
use nvlane_subsystem::limits::Limits;
use nvlane_subsystem::message::Step;
use nvlane_subsystem::subsystem::Access;
use security::group::Group;
use security::host::HostSettings;
use wire::fabrics::ConnectResult;
use wire::id::Cntlid;
use wire::property::Property;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::authentication::{authenticate, connect, one_for_all, prove_late, ready, require, settings};
use crate::harness::{
    ConnectSpec, DISKS, HOST, OTHER_HOST, SECOND_NS, Target, add_namespace, host, subsystem,
};
use crate::harness::{Shape, disks};

fn target(limits: Limits) -> Target {
    let mut target = Target::empty(limits);
    target.apply(disks(Access::Any));
    require(&mut target, one_for_all(1, 2));
    target
}

fn proof(name: &str) -> HostSettings {
    settings(name, 1, None, Group::Null)
}

fn stranger(number: u16) -> SocketAddr {
    let [high, low] = number.to_be_bytes();
    SocketAddr::from(([198, 51, high, low], 5000))
}

fn cntlid(target: &mut Target) -> Cntlid {
    Cntlid::new(target.state().subsystems[0].controllers[0].cntlid)
}

/// Connects an I/O queue of the host, without its secret.
fn intrude(target: &mut Target, cntlid: Cntlid, qid: u16) -> LaneId {
    let (lane, answer) = target.connect(&ConnectSpec::io(host(HOST), DISKS, cntlid, qid));
    let result = ConnectResult::from_bits(u32::try_from(answer.result).expect("dword 0"));
    assert_eq!((answer.status, result.authentication_required()), (Status::SUCCESS, true));
    assert_eq!(result.cntlid(), cntlid.get(), "what the host has sent");
    lane
}

/// hostile A21
#[test]
fn a_queue_without_authentication_ends_nothing_but_itself() {
    let mut target = target(Limits::default());
    let (admin, io) = ready(&mut target);
    let cntlid = cntlid(&mut target);
    for qid in [1, 2] {
        let lane = intrude(&mut target, cntlid, qid);
        target.expel(lane);
        target.end(lane);
        let lane = intrude(&mut target, cntlid, qid);
        let wrong = settings(HOST, 6, None, Group::Null);
        authenticate(&mut target, lane, wrong).expect_err("the wrong secret");
        assert!(target.ended.contains(&lane));
        // One that stays is closed, and so is an admin queue.
        let (idle, unproved) = (intrude(&mut target, cntlid, qid), connect(&mut target, HOST));
        for _ in 0..31 {
            target.joined(admin).association.on_sign(target.now_ns);
            target.pass(SECOND_NS);
        }
        assert!(target.ended.contains(&idle) && target.ended.contains(&unproved));
    }
    target.property(admin, Property::VS);
    assert!(!target.ended.contains(&admin) && !target.ended.contains(&io));
    assert_eq!(target.state().subsystems[0].controllers.len(), 1);
    assert_eq!(target.state().unauthenticated_count, 0);
}

/// hostile A22
#[test]
fn a_queue_without_authentication_keeps_no_host_alive() {
    let mut target = target(Limits::default());
    let (admin, io) = ready(&mut target);
    let cntlid = cntlid(&mut target);
    let lane = intrude(&mut target, cntlid, 2);
    for _ in 0..12 {
        assert!(target.established[&lane].joined.is_none(), "nothing to show signs of life with");
        target.ask(lane, Sqe::keep_alive());
        target.pass(SECOND_NS);
    }
    assert!(target.ended.contains(&admin) && target.ended.contains(&io));
}

/// hostile A23
#[test]
fn a_queue_id_belongs_to_the_one_that_authenticates_first() {
    let mut target = target(Limits::default());
    let (admin, first) = ready(&mut target);
    let cntlid = cntlid(&mut target);
    let strangers: Vec<_> = (2..=64).map(|qid| intrude(&mut target, cntlid, qid)).collect();
    let owner = intrude(&mut target, cntlid, 2);
    // A stranger that connects all the time.
    let mut again = intrude(&mut target, cntlid, 2);
    for _ in 0..100 {
        target.end(again);
        again = intrude(&mut target, cntlid, 2);
    }
    assert_eq!(authenticate(&mut target, owner, proof(HOST)), Ok(()));
    assert!(target.established[&owner].joined.is_some());
    assert_eq!(target.state().subsystems[0].controllers[0].queues.len(), 2);
    assert!(strangers.iter().all(|lane| target.established[lane].joined.is_none()));
    // Another one with the secret waits for the first to end, and not for ever.
    let (late, answer) = prove_late(&mut target, again, proof(HOST));
    assert!(!target.answers.contains_key(&answer));
    target.pass(4 * SECOND_NS);
    assert_eq!(target.answer(answer).status, Status::COMMAND_SEQUENCE_ERROR);
    assert!(target.ended.contains(&again));
    drop(late);
    let next = intrude(&mut target, cntlid, 2);
    let (mut late, answer) = prove_late(&mut target, next, proof(HOST));
    assert_eq!(target.ask(next, Sqe::keep_alive()).status, Status::COMMAND_SEQUENCE_ERROR);
    target.end(owner);
    late.on_receive(&target.answer(answer).data.expect("the success"));
    assert!(late.outcome().is_some_and(|outcome| outcome.is_ok()));
    assert!(target.established[&next].joined.is_some());
    target.property(admin, Property::VS);
    assert!(!target.ended.contains(&first));
}

/// hostile A24
#[test]
fn connect_tells_a_stranger_nothing_of_controllers() {
    let mut target = target(Limits::default());
    let disabled = connect(&mut target, HOST);
    authenticate(&mut target, disabled, proof(HOST)).expect("authenticated");
    let (is_not_enabled, free) = (cntlid(&mut target), Cntlid::new(4000));
    target.apply(vec![]);
    let other = connect(&mut target, OTHER_HOST);
    authenticate(&mut target, other, proof(OTHER_HOST)).expect("authenticated");
    target.enable(other);
    let of_other = target.state().subsystems[0].controllers.iter().map(|controller| controller.cntlid).max();
    let of_other = Cntlid::new(of_other.expect("two controllers"));
    for (cntlid, status) in [
        (is_not_enabled, Status::COMMAND_SEQUENCE_ERROR),
        (free, Status::CONNECT_INVALID_PARAMETERS),
        (of_other, Status::CONNECT_INVALID_PARAMETERS.with_dnr()),
    ] {
        // The same answer to each, until the host has proved who it is.
        let lane = intrude(&mut target, cntlid, 1);
        let (_, answer) = prove_late(&mut target, lane, proof(HOST));
        assert_eq!(target.answer(answer).status, status);
        assert!(target.ended.contains(&lane));
    }
}

/// hostile A25
#[test]
fn controllers_without_authentication_fill_no_limit() {
    let limits = Limits { controller_count_max: 3, controller_count_per_host_max: 2, ..Limits::default() };
    let mut target = target(limits);
    let idle: Vec<_> = (0..20).map(|_| connect(&mut target, HOST)).collect();
    assert_eq!(target.state().unauthenticated_count, 20);
    assert!(target.state().subsystems[0].controllers.is_empty());
    let mut join = |name| {
        let lane = connect(&mut target, name);
        let (_, answer) = prove_late(&mut target, lane, proof(name));
        target.answer(answer).status
    };
    assert_eq!([HOST, HOST, HOST].map(&mut join)[1..], [Status::SUCCESS, Status::CONNECT_CONTROLLER_BUSY]);
    assert_eq!(join(OTHER_HOST), Status::SUCCESS);
    assert_eq!(join(OTHER_HOST), Status::CONNECT_CONTROLLER_BUSY, "three in all");
    assert!(idle.iter().all(|lane| !target.ended.contains(lane)));
    target.pass(31 * SECOND_NS);
    assert!(idle.iter().all(|lane| target.ended.contains(lane)));
}

/// hostile A25
#[test]
fn the_oldest_queue_of_an_address_makes_room_for_the_next() {
    let mut target = target(Limits { unconnected_count_max: 16, io_queue_count_max: 3, ..Limits::default() });
    target.peer = stranger(1);
    let of_one: Vec<_> = (0..100).map(|_| connect(&mut target, HOST)).collect();
    assert!(of_one[..96].iter().all(|lane| target.ended.contains(lane)), "a quarter of all at most");
    assert!(of_one[96..].iter().all(|lane| !target.ended.contains(lane)));
    // Many addresses: those with most of them give way first.
    for number in 2..40 {
        target.peer = stranger(number);
        connect(&mut target, HOST);
        assert!(target.state().unauthenticated_count <= 16);
    }
    assert!(of_one[..99].iter().all(|lane| target.ended.contains(lane)));
    let complaints = target.state().connections.complaints;
    assert!(complaints["host not authenticated"] >= 99);
    // One address of an IPv6 network stands for the others.
    let of_network: Vec<_> = (1..=10u16)
        .map(|number| {
            target.peer = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, number], 5000));
            connect(&mut target, HOST)
        })
        .collect();
    assert!(of_network[..6].iter().all(|lane| target.ended.contains(lane)));
}

/// hostile A25
#[test]
fn a_stranger_takes_no_id_away_from_a_host() {
    let mut target = Target::empty(Limits::default());
    let mut of_range = subsystem(DISKS, Access::Any);
    of_range.cntlids = 100..=103;
    target.apply(vec![Step::AddSubsystem(of_range), add_namespace(1, Shape::blocks(512, 1 << 21))]);
    require(&mut target, one_for_all(1, 2));
    let home = target.peer;
    target.peer = stranger(1);
    for _ in 0..10 {
        connect(&mut target, HOST);
    }
    for _ in 0..4 {
        target.peer = home;
        let lane = connect(&mut target, HOST);
        target.peer = stranger(1);
        for _ in 0..10 {
            connect(&mut target, HOST);
        }
        assert_eq!(authenticate(&mut target, lane, proof(HOST)), Ok(()));
    }
    let state = target.state();
    let ids = state.subsystems[0].controllers.iter().map(|controller| controller.cntlid);
    assert_eq!(ids.collect::<BTreeSet<_>>(), (100..=103).collect());
    let (_, answer) = target.connect(&ConnectSpec::admin(host(HOST), DISKS));
    assert_eq!(answer.status, Status::CONNECT_CONTROLLER_BUSY, "all are in use");
}

/// The queues of a host that comes back are its own once those of before have ended.
#[test]
fn a_host_that_comes_back_and_authenticates_waits_for_its_old_lanes() {
    let mut target = target(Limits::default());
    let (admin, io) = ready(&mut target);
    target.habits.lanes_end = false;
    target.end(admin);
    let lane = connect(&mut target, HOST);
    let (mut late, answer) = prove_late(&mut target, lane, proof(HOST));
    assert!(!target.answers.contains_key(&answer), "a lane may still write");
    assert_eq!(target.state().waiting_connect_count, 1);
    target.end(io);
    late.on_receive(&target.answer(answer).data.expect("the success"));
    target.enable(lane);
    // Those of a stranger that are still ending hold nobody up.
    let unproved = connect(&mut target, HOST);
    target.pass(31 * SECOND_NS);
    assert!(target.ending().contains(&unproved));
    let lane = connect(&mut target, OTHER_HOST);
    assert_eq!(authenticate(&mut target, lane, proof(OTHER_HOST)), Ok(()));
}

#[test]
fn a_host_that_is_removed_while_it_authenticates_is_refused() {
    let mut target = target(Limits::default());
    let lane = connect(&mut target, HOST);
    let only = BTreeSet::from([OTHER_HOST.parse().expect("a name")]);
    target.apply(vec![Step::SetAccess(crate::harness::nqn(DISKS), Access::Only(only))]);
    let (_, answer) = prove_late(&mut target, lane, proof(HOST));
    assert_eq!(target.answer(answer).status, Status::CONNECT_INVALID_HOST.with_dnr());
    assert!(target.ended.contains(&lane));
}

/// A secret that is replaced after the Connect counts for it.
#[test]
fn the_secret_is_that_of_the_moment_when_the_host_authenticates() {
    let mut target = target(Limits::default());
    let lane = connect(&mut target, HOST);
    require(&mut target, one_for_all(7, 2));
    target.pass(SECOND_NS);
    require(&mut target, one_for_all(8, 2));
    authenticate(&mut target, lane, proof(HOST)).expect_err("a secret of before the one before");
    assert!(target.ended.contains(&lane));
}
