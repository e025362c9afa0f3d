//! In-band authentication of queues. wire §22.1

use std::num::NonZeroU32;

use nvlane_subsystem::authentication::{Authentication, RefusedAgain, Secrets};
use nvlane_subsystem::lane_id::{CommandId, LaneId};
use nvlane_subsystem::message::{LaneMessage, Message, Step};
use security::fresh::{Fresh, RANDOM_BYTES};
use security::group::Group;
use security::hash::HashFunction;
use security::host::{HostAuthentication, HostFailure, HostSettings};
use security::message::{Kind, MESSAGE_BYTES_MAX, Reason};
use security::names::Names;
use security::psk::Psk;
use security::secret::Secret;
use security::secure_channel::SecureChannel;
use wire::fabrics::AuthenticationCommand;
use wire::nqn::HostName;
use wire::property::Property;
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::harness::{ConnectSpec, DISKS, HOST, OTHER_HOST, SECOND_NS, SERVICE, Target, host, nqn};

/// The room that hosts offer.
const ROOM: u32 = 4096;

fn secret(byte: u8) -> Secret {
    Secret::new(None, vec![byte; 32].into()).expect("a length that exists")
}

pub(crate) fn secrets(host: u8, controller: Option<u8>) -> Secrets {
    Secrets { host: secret(host), controller: controller.map(secret) }
}

/// All hosts have one secret, and see that of the subsystem.
pub(crate) fn one_for_all(host: u8, controller: u8) -> Authentication {
    Authentication { others: Some(secrets(host, Some(controller))), ..Authentication::default() }
}

pub(crate) fn require(target: &mut Target, authentication: Authentication) {
    let authentication = std::sync::Arc::new(authentication);
    target.apply(vec![Step::SetAuthentication { subsystem: nqn(DISKS), authentication, overlap_ms: 60_000 }]);
}

pub(crate) fn settings(name: &str, host: u8, controller: Option<u8>, group: Group) -> HostSettings {
    HostSettings {
        names: Names { host: name.parse::<HostName>().expect("a name"), subsystem: nqn(DISKS) },
        host: secret(host),
        controller: controller.map(secret),
        hashes: vec![HashFunction::Sha256],
        groups: vec![group],
        secure_channel: SecureChannel::None,
    }
}

pub(crate) fn send(message: &[u8]) -> Sqe {
    let length = u32::try_from(message.len()).expect("short");
    AuthenticationCommand::new(length).to_send_sqe().with_data(Sgl::in_capsule(length))
}

fn receive() -> Sqe {
    AuthenticationCommand::new(ROOM).to_receive_sqe().with_data(Sgl::transport(ROOM))
}

/// Runs the exponentiations that the control plane has given out.
fn compute(target: &mut Target) {
    while let Some((lane, exponentiation)) = target.control.next_exponentiation() {
        target.control.on_exponentiated(target.now_ns, lane, exponentiation.run());
    }
    target.settle();
}

/// Has a host authenticate on a lane.
pub(crate) fn authenticate(
    target: &mut Target,
    lane: LaneId,
    settings: HostSettings,
) -> Result<(), HostFailure> {
    generate(target, lane, settings).map(drop)
}

/// The same. Returns the key that the transaction has generated.
pub(crate) fn generate(
    target: &mut Target,
    lane: LaneId,
    settings: HostSettings,
) -> Result<Option<Psk>, HostFailure> {
    let fresh = Fresh::new(&[0x5A; RANDOM_BYTES], NonZeroU32::MIN);
    let mut host = HostAuthentication::new(settings, 3, fresh);
    while host.outcome().is_none() {
        if let Some(message) = host.next_send() {
            assert_eq!(target.ask_with(lane, send(&message), &message).status, Status::SUCCESS);
        } else if host.wants_receive() {
            let command = target.send(lane, receive(), &[]);
            compute(target);
            let answer = target.answer(command);
            assert_eq!(answer.status, Status::SUCCESS, "of the Receive");
            let data = answer.data.expect("a message");
            assert_eq!(data.len(), ROOM as usize, "all of the buffer");
            host.on_receive(&data);
        }
        if let Some(exponentiation) = host.next_exponentiation() {
            host.on_exponentiated(exponentiation.run());
        }
    }
    host.outcome().expect("just seen").map(|_| host.take_generated())
}

/// Has a host do so without a group, up to the Receive that brings it the success or failure.
pub(crate) fn prove_late(
    target: &mut Target,
    lane: LaneId,
    settings: HostSettings,
) -> (HostAuthentication, CommandId) {
    let fresh = Fresh::new(&[0x5A; RANDOM_BYTES], NonZeroU32::MIN);
    let mut host = HostAuthentication::new(settings, 3, fresh);
    for is_last in [false, true] {
        let message = host.next_send().expect("a message");
        assert_eq!(target.ask_with(lane, send(&message), &message).status, Status::SUCCESS);
        let command = target.send(lane, receive(), &[]);
        if is_last {
            return (host, command);
        }
        host.on_receive(&target.answer(command).data.expect("the challenge"));
    }
    unreachable!("the second message is the last")
}

/// Whether the lane was told that its host has authenticated.
fn is_told(target: &Target, lane: LaneId) -> bool {
    let is_it = |(_, message): &(usize, Message)| matches!(message, Message::Lane(LaneMessage::Authenticated(told, _)) if *told == lane);
    target.messages.iter().any(is_it)
}

/// Connects an admin queue; its host must authenticate.
pub(crate) fn connect(target: &mut Target, name: &str) -> LaneId {
    let (lane, answer) = target.connect(&ConnectSpec::admin(host(name), DISKS));
    assert_eq!((answer.status, answer.result >> 16), (Status::SUCCESS, 2), "ATR");
    assert!(target.established[&lane].joined.is_none(), "it owes authentication");
    lane
}

#[test]
fn a_host_with_the_secret_authenticates_each_queue() {
    for (group, controller) in [(Group::Null, None), (Group::Ffdhe2048, Some(9))] {
        let mut target = Target::new();
        require(&mut target, one_for_all(7, 9));
        let admin = connect(&mut target, HOST);
        assert_eq!(authenticate(&mut target, admin, settings(HOST, 7, controller, group)), Ok(()));
        assert!(is_told(&target, admin));
        target.enable(admin);
        let cntlid = wire::id::Cntlid::new(target.state().subsystems[0].controllers[0].cntlid);
        let (io, answer) = target.connect(&ConnectSpec::io(host(HOST), DISKS, cntlid, 1));
        assert_eq!((answer.status, answer.result >> 16), (Status::SUCCESS, 2));
        assert!(!is_told(&target, io));
        assert_eq!(authenticate(&mut target, io, settings(HOST, 7, controller, group)), Ok(()));
        assert!(is_told(&target, io));
        let shown = target.state().subsystems[0].controllers[0].queues[0].authentication.clone();
        let ways = if controller.is_some() { ", both ways" } else { "" };
        assert_eq!(shown, Some(format!("SHA-256, {group}{ways}")));
        // Again on the live queues.
        for lane in [admin, io] {
            assert_eq!(authenticate(&mut target, lane, settings(HOST, 7, controller, group)), Ok(()));
        }
        target.property(admin, Property::VS);
        assert!(target.ended.is_empty());
    }
}

/// hostile A1, A9, A17
#[test]
fn a_host_without_the_secret_learns_that_and_is_closed() {
    let mut target = Target::new();
    require(&mut target, one_for_all(7, 9));
    let refused = Err(HostFailure::Refused(Reason::Failed));
    for wrong in [settings(HOST, 6, None, Group::Null), settings(OTHER_HOST, 7, None, Group::Null)] {
        let lane = connect(&mut target, HOST);
        let answer = target.ask(lane, Sqe::property_get(Property::VS));
        assert_eq!(answer.status, Status::AUTHENTICATION_REQUIRED.with_dnr());
        assert_eq!(authenticate(&mut target, lane, wrong), refused);
        assert!(target.ended.contains(&lane) && !is_told(&target, lane));
    }
    // A host that asks for a secret that the subsystem does not have.
    require(&mut target, Authentication { others: Some(secrets(7, None)), ..Authentication::default() });
    let lane = connect(&mut target, HOST);
    assert_eq!(authenticate(&mut target, lane, settings(HOST, 7, Some(9), Group::Null)), refused);
    assert_eq!(target.state().connections.complaints.get("host not authenticated"), Some(&3));
}

/// hostile A14
#[test]
fn a_host_that_does_not_authenticate_is_closed_in_time() {
    let mut target = Target::new();
    require(&mut target, one_for_all(7, 9));
    let idle = connect(&mut target, HOST);
    let begun = connect(&mut target, OTHER_HOST);
    let offer = HostAuthentication::new(
        settings(OTHER_HOST, 7, None, Group::Ffdhe2048),
        1,
        Fresh::new(&[1; RANDOM_BYTES], NonZeroU32::MIN),
    )
    .next_send()
    .expect("an offer");
    target.ask_with(begun, send(&offer), &offer);
    let waiting = target.send(begun, receive(), &[]);
    target.counters[&begun].received_bytes.add(1);
    for _ in 0..25 {
        // What it sends puts nothing off.
        target.ask(idle, Sqe::keep_alive());
        target.pass(SECOND_NS);
    }
    assert!(target.ended.is_empty());
    assert!(!target.answers.contains_key(&waiting));
    target.pass(8 * SECOND_NS);
    assert!(target.ended.contains(&idle) && target.ended.contains(&begun));
    // The result of an ended lane is ignored.
    compute(&mut target);
}

/// hostile A3, A11, A12
#[test]
fn malformed_commands_fail_and_malformed_messages_end_the_attempt() {
    let mut target = Target::new();
    require(&mut target, one_for_all(7, 9));
    let lane = connect(&mut target, HOST);
    let invalid = Status::INVALID_FIELD.with_dnr();
    let with = |change: fn(&mut AuthenticationCommand)| {
        let mut fields = AuthenticationCommand::new(8);
        change(&mut fields);
        fields
    };
    for fields in [
        with(|fields| fields.secp = 0),
        with(|fields| fields.spsp0 = 0),
        with(|fields| fields.spsp1 = 2),
        with(|fields| fields.length = 0),
        with(|fields| fields.length = 9),
    ] {
        let sqe = fields.to_send_sqe().with_data(Sgl::in_capsule(8));
        assert_eq!(target.ask_with(lane, sqe, &[0; 8]).status, invalid);
        let sqe = fields.to_receive_sqe().with_data(Sgl::transport(8));
        assert_eq!(target.ask(lane, sqe).status, invalid);
    }
    let large = AuthenticationCommand::new(1 << 20).to_receive_sqe().with_data(Sgl::transport(1 << 20));
    assert_eq!(target.ask(lane, large).status, Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    // A message that is none.
    assert_eq!(target.ask_with(lane, send(&[9; 80]), &[9; 80]).status, Status::SUCCESS);
    let small = AuthenticationCommand::new(4).to_receive_sqe().with_data(Sgl::transport(4));
    assert_eq!(target.ask(lane, small).status, invalid, "a failure has 8 bytes");
    let answer = target.ask(lane, receive());
    assert_eq!(Kind::of(&answer.data.expect("a message")).map(|(kind, _)| kind), Ok(Kind::Failure1));
    assert!(target.ended.contains(&lane));
}

/// hostile A13
#[test]
fn a_receive_waits_for_its_exponentiation_and_only_one_does() {
    let mut target = Target::new();
    require(&mut target, one_for_all(7, 9));
    let lane = connect(&mut target, HOST);
    let fresh = Fresh::new(&[1; RANDOM_BYTES], NonZeroU32::MIN);
    let mut of_host = HostAuthentication::new(settings(HOST, 7, None, Group::Ffdhe2048), 1, fresh);
    let offer = of_host.next_send().expect("an offer");
    target.ask_with(lane, send(&offer), &offer);
    let first = target.send(lane, receive(), &[]);
    let second = target.ask(lane, receive());
    assert_eq!(second.status, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    assert!(target.open.contains(&first));
    compute(&mut target);
    let answer = target.answer(first);
    let message = answer.data.expect("a message");
    assert_eq!(Kind::of(&message).map(|(kind, _)| kind), Ok(Kind::Challenge));
    assert!(message[MESSAGE_BYTES_MAX..].iter().all(|&byte| byte == 0));
}

/// hostile A18
#[test]
fn one_exponentiation_is_given_out_at_a_time_and_none_for_lanes_that_are_gone() {
    let mut target = Target::new();
    require(&mut target, one_for_all(7, 9));
    let fresh = Fresh::new(&[1; RANDOM_BYTES], NonZeroU32::MIN);
    let mut of_host = HostAuthentication::new(settings(HOST, 7, None, Group::Ffdhe2048), 1, fresh);
    let offer = of_host.next_send().expect("an offer");
    let lanes: Vec<_> = (0..5).map(|_| connect(&mut target, HOST)).collect();
    for lane in &lanes {
        target.ask_with(*lane, send(&offer), &offer);
    }
    assert!(target.control.next_key_pair().is_none(), "hosts wait");
    let (lane, first) = target.control.next_exponentiation().expect("the first");
    assert_eq!(lane, lanes[0]);
    assert!(target.control.next_exponentiation().is_none());
    for lane in &lanes[1..4] {
        target.end(*lane);
    }
    target.control.on_exponentiated(target.now_ns, lane, first.run());
    let (lane, last) = target.control.next_exponentiation().expect("the last");
    assert_eq!(lane, lanes[4]);
    assert!(target.control.next_key_pair().is_none(), "one is computed");
    target.control.on_exponentiated(target.now_ns, lane, last.run());
    assert!(target.control.next_exponentiation().is_none());
}

#[test]
fn key_pairs_are_made_in_idle_time_and_each_is_of_one_transaction() {
    let mut target = Target::new();
    require(&mut target, one_for_all(7, 9));
    assert!(target.control.next_key_pair().is_none(), "nobody has asked for a group");
    let admin = connect(&mut target, HOST);
    assert_eq!(authenticate(&mut target, admin, settings(HOST, 7, None, Group::Ffdhe2048)), Ok(()));
    for _ in 0..2 {
        let pair = target.control.next_key_pair().expect("one to make");
        assert!(target.control.next_key_pair().is_none(), "one at a time");
        target.control.on_key_pair(pair.run());
    }
    let fresh = Fresh::new(&[1; RANDOM_BYTES], NonZeroU32::MIN);
    let mut of_host = HostAuthentication::new(settings(HOST, 7, None, Group::Ffdhe2048), 1, fresh);
    let offer = of_host.next_send().expect("an offer");
    let mut challenges = Vec::new();
    for _ in 0..2 {
        let lane = connect(&mut target, HOST);
        target.ask_with(lane, send(&offer), &offer);
        // Nothing is to be computed for the challenge.
        let challenge = target.ask(lane, receive());
        let data = challenge.data.expect("a challenge").to_vec();
        // The public value is behind the challenge.
        challenges.push(data[16 + 32..16 + 32 + 256].to_vec());
    }
    assert_ne!(challenges[0], challenges[1]);
    assert!(target.control.next_exponentiation().is_none());
    let lane = connect(&mut target, HOST);
    target.ask_with(lane, send(&offer), &offer);
    let (lane, exponentiation) = target.control.next_exponentiation().expect("no pair is left");
    target.control.on_exponentiated(target.now_ns, lane, exponentiation.run());
    // And they serve: both ends agree on a key.
    let pair = target.control.next_key_pair().expect("one to make");
    target.control.on_key_pair(pair.run());
    let admin = connect(&mut target, HOST);
    assert_eq!(authenticate(&mut target, admin, settings(HOST, 7, Some(9), Group::Ffdhe2048)), Ok(()));
}

/// hostile A18
#[test]
fn an_address_has_a_bounded_number_of_hosts_that_wait() {
    let mut target = Target::new();
    require(&mut target, Authentication { groups: Group::ALL.to_vec(), ..one_for_all(7, 9) });
    let offer_of = |group| {
        let fresh = Fresh::new(&[1; RANDOM_BYTES], NonZeroU32::MIN);
        HostAuthentication::new(settings(HOST, 7, None, group), 1, fresh).next_send().expect("an offer")
    };
    let large = offer_of(Group::Ffdhe8192);
    let lanes: Vec<_> = (0..257).map(|_| connect(&mut target, HOST)).collect();
    for lane in &lanes {
        target.ask_with(*lane, send(&large), &large);
    }
    assert_eq!(target.ended.iter().collect::<Vec<_>>(), [&lanes[256]]);
    assert_eq!(target.state().connections.complaints.get("host not authenticated"), Some(&1));
    // One with a cheap group is let in, in place of one with an expensive one, and is the first.
    let small = offer_of(Group::Ffdhe2048);
    let lane = connect(&mut target, HOST);
    target.ask_with(lane, send(&small), &small);
    assert!(target.ended.contains(&lanes[255]) && !target.ended.contains(&lane));
    assert_eq!(target.control.next_exponentiation().map(|(lane, _)| lane), Some(lane));
}

/// hostile A2
#[test]
fn only_hosts_with_a_secret_are_asked_and_nobody_by_discovery() {
    let mut target = Target::new();
    let hosts = [(HOST.parse().expect("a name"), secrets(1, None))].into();
    require(&mut target, Authentication { hosts, ..Authentication::default() });
    connect(&mut target, HOST);
    for (name, subsystem) in [(OTHER_HOST, DISKS), (HOST, SERVICE)] {
        let association = target.associate(host(name), subsystem);
        assert!(target.established[&association.admin].joined.is_some());
        // It has nothing to authenticate with.
        let answer = target.ask_with(association.admin, send(&[0; 80]), &[0; 80]);
        assert_eq!(answer.status, Status::INVALID_FIELD.with_dnr());
        assert_eq!(target.ask(association.admin, receive()).status, Status::INVALID_FIELD.with_dnr());
    }
}

#[test]
fn secrets_of_before_are_accepted_for_a_while() {
    let mut target = Target::new();
    require(&mut target, one_for_all(1, 2));
    require(&mut target, one_for_all(3, 4));
    // Other choices are no other secrets.
    require(&mut target, Authentication { hashes: vec![HashFunction::Sha256], ..one_for_all(3, 4) });
    let try_with = |target: &mut Target, host: u8, controller: u8| {
        let lane = connect(target, HOST);
        let outcome = authenticate(target, lane, settings(HOST, host, Some(controller), Group::Null));
        if outcome.is_ok() {
            target.end(lane);
        }
        outcome.is_ok()
    };
    for (host, controller, is_accepted) in
        [(1, 2, true), (3, 4, true), (1, 4, false), (3, 2, false), (5, 2, false)]
    {
        assert_eq!(try_with(&mut target, host, controller), is_accepted, "{host} {controller}");
    }
    target.pass(61 * SECOND_NS);
    for (host, controller, is_accepted) in [(1, 2, false), (3, 4, true)] {
        assert_eq!(try_with(&mut target, host, controller), is_accepted, "{host} {controller}");
    }
}

/// Rotates the secret of all hosts from 1 to 3.
fn rotate(target: &mut Target, refused_again: RefusedAgain) {
    require(target, Authentication { refused_again, ..one_for_all(1, 2) });
    require(target, Authentication { refused_again, ..one_for_all(3, 2) });
}

/// hostile A26: a host whose secret was replaced is connected until it authenticates again after the overlap.
#[test]
fn a_host_that_is_refused_when_it_authenticates_again_loses_its_association() {
    let refused = Err(HostFailure::Refused(Reason::Failed));
    for is_io in [false, true] {
        let mut target = Target::new();
        require(&mut target, one_for_all(1, 2));
        let (admin, io) = ready(&mut target);
        let lane = if is_io { io } else { admin };
        rotate(&mut target, RefusedAgain::Disconnect);
        assert_eq!(authenticate(&mut target, lane, settings(HOST, 1, None, Group::Null)), Ok(()));
        assert_eq!(authenticate(&mut target, lane, settings(HOST, 3, None, Group::Null)), Ok(()));
        for _ in 0..61 {
            target.joined(admin).association.on_sign(target.now_ns);
            target.pass(SECOND_NS);
        }
        assert!(target.ended.is_empty());
        assert_eq!(authenticate(&mut target, lane, settings(HOST, 1, None, Group::Null)), refused);
        assert!(target.ended.contains(&admin) && target.ended.contains(&io));
        let complaints = target.state().connections.complaints;
        assert_eq!(complaints.get("host refused when it authenticated again"), Some(&1));
        let lane = connect(&mut target, HOST);
        assert_eq!(authenticate(&mut target, lane, settings(HOST, 1, None, Group::Null)), refused);
    }
}

/// One that does not ask for the outcome loses it when its time is over, whatever it sends meanwhile.
#[test]
fn a_refusal_that_its_host_does_not_ask_for_counts_in_time() {
    let mut target = Target::new();
    require(&mut target, one_for_all(1, 2));
    let (admin, _) = ready(&mut target);
    target.ask_with(admin, send(&[9; 80]), &[9; 80]);
    for _ in 0..122 {
        target.ask_with(admin, send(&[9; 80]), &[9; 80]);
        target.joined(admin).association.on_sign(target.now_ns);
        target.pass(SECOND_NS);
    }
    assert!(target.ended.contains(&admin));
}

/// A command of a transaction has failed on the way, and its host begins anew.
#[test]
fn a_later_transaction_may_begin_before_the_one_before_has_ended() {
    let mut target = Target::new();
    require(&mut target, one_for_all(1, 2));
    let (admin, _) = ready(&mut target);
    for group in [Group::Null, Group::Ffdhe2048] {
        let fresh = Fresh::new(&[0x5A; RANDOM_BYTES], NonZeroU32::MIN);
        let mut host = HostAuthentication::new(settings(HOST, 1, None, group), 9, fresh);
        let offer = host.next_send().expect("an offer");
        assert_eq!(target.ask_with(admin, send(&offer), &offer).status, Status::SUCCESS);
        assert_eq!(authenticate(&mut target, admin, settings(HOST, 1, None, group)), Ok(()));
        // It begins with the secrets of the present.
        target.ask_with(admin, send(&offer), &offer);
        require(&mut target, one_for_all(1, 2));
    }
    rotate(&mut target, RefusedAgain::Disconnect);
    assert_eq!(authenticate(&mut target, admin, settings(HOST, 3, None, Group::Null)), Ok(()));
    target.property(admin, Property::VS);
}

#[test]
fn a_subsystem_may_keep_hosts_that_are_refused_when_they_authenticate_again() {
    let mut target = Target::new();
    require(&mut target, one_for_all(1, 2));
    let (admin, io) = ready(&mut target);
    rotate(&mut target, RefusedAgain::Keep);
    let refused = Err(HostFailure::Refused(Reason::Failed));
    for lane in [admin, io] {
        assert_eq!(authenticate(&mut target, lane, settings(HOST, 5, None, Group::Null)), refused);
    }
    target.property(admin, Property::VS);
    let complaints = target.state().connections.complaints;
    assert_eq!(complaints.get("host refused when it authenticated again"), Some(&2));
    // Nobody asks for a secret any more.
    require(&mut target, Authentication::default());
    target.pass(SECOND_NS);
    assert_eq!(authenticate(&mut target, admin, settings(HOST, 3, None, Group::Null)), refused);
    target.property(admin, Property::VS);
}

/// An enabled controller with one I/O queue, both authenticated with secret 1.
pub(crate) fn ready(target: &mut Target) -> (LaneId, LaneId) {
    let admin = connect(target, HOST);
    assert_eq!(authenticate(target, admin, settings(HOST, 1, None, Group::Null)), Ok(()));
    target.enable(admin);
    let cntlid = wire::id::Cntlid::new(target.state().subsystems[0].controllers[0].cntlid);
    let (io, _) = target.connect(&ConnectSpec::io(host(HOST), DISKS, cntlid, 1));
    assert_eq!(authenticate(target, io, settings(HOST, 1, None, Group::Null)), Ok(()));
    (admin, io)
}
