//! Connect: accepted and refused commands, with their statuses. wire §6

use std::collections::BTreeSet;

use nvlane_subsystem::limits::Limits;
use nvlane_subsystem::message::{OrderKind, Step};
use nvlane_subsystem::subsystem::Access;
use wire::fabrics::{InvalidParameter, PropertyGet};
use wire::id::{Cntlid, Nsid, Qid};
use wire::property::{Property, PropertySize};
use wire::sqe::Sqe;
use wire::status::Status;

use crate::harness::{
    ConnectSpec, DISKS, HOST, OTHER_HOST, SECOND_NS, SERVICE, Target, disks, host, nqn, subsystem,
};

const INVALID: Status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();

fn data(offset: u16) -> u64 {
    InvalidParameter::data(offset).bits().into()
}

fn command(offset: u16) -> u64 {
    InvalidParameter::command(offset).bits().into()
}

/// The status and result that `change` of a good Connect meets.
fn refused(change: impl FnOnce(&mut ConnectSpec)) -> (Status, u64) {
    let mut spec = ConnectSpec::admin(host(HOST), DISKS);
    change(&mut spec);
    let (_, answer) = Target::new().connect(&spec);
    assert!(answer.established.is_none() && answer.data.is_none());
    (answer.status, answer.result)
}

#[test]
fn an_admin_connect_makes_a_controller() {
    let mut target = Target::new();
    let mut spec = ConnectSpec::admin(host(HOST), DISKS);
    spec.command.attributes = spec.command.attributes.with_disable_sq_flow_control(true);
    let (_, answer) = target.connect(&spec);
    assert_eq!(answer.status, Status::SUCCESS);
    assert!((1..=0xFFEF).contains(&answer.result), "an id, and no authentication: {:#x}", answer.result);
    let established = answer.established.expect("a lane");
    assert_eq!((established.qid, established.entries), (Qid::ADMIN, 32));
    assert!(
        established.is_flow_control_disabled
            && established.joined.is_some_and(|joined| joined.subsystem.is_some())
    );
    assert_eq!(established.host, HOST);
}

#[test]
fn an_io_connect_adds_a_queue_to_its_controller() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let (lane, answer) = target.connect(&association.queue(7));
    assert_eq!((answer.status, answer.result), (Status::SUCCESS, association.cntlid.get().into()));
    let established = &target.established[&lane];
    assert_eq!((established.qid, established.entries), (Qid::new(7), 128));
    assert!(std::sync::Arc::ptr_eq(
        &target.joined(lane).association,
        &target.joined(association.admin).association
    ));
}

/// hostile inputs Q1 to Q4, Q8
#[test]
fn what_makes_no_sense_is_refused_for_good_with_its_offset() {
    assert_eq!(refused(|spec| spec.command.recfmt = 1), (Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr(), 0));
    assert_eq!(refused(|spec| spec.host.id = wire::nqn::HostId::default()), (INVALID, data(0)));
    for cntlid in [0, 1, 0xFFF0, 0xFFFE] {
        assert_eq!(refused(|spec| spec.cntlid = Cntlid::new(cntlid)), (INVALID, data(16)), "{cntlid:#x}");
    }
    assert_eq!(refused(|spec| spec.subnqn = "nqn.2026-01.io.nvlane:nothing".into()), (INVALID, data(256)));
    for entries in [1, 2, 1025, 65_536] {
        assert_eq!(refused(|spec| spec.command.queue_entries = entries), (INVALID, command(44)), "{entries}");
    }
    // An I/O queue with the id that asks for a new controller.
    let of_none = ConnectSpec::io(host(HOST), DISKS, Cntlid::DYNAMIC, 1);
    let (_, answer) = Target::new().connect(&of_none);
    assert_eq!((answer.status, answer.result), (INVALID, data(16)));
}

/// The host does not know the limit yet, and the discovery log allows 32. wire §24
#[test]
fn a_small_limit_of_queue_entries_is_for_io_queues_and_leaves_admin_queues_of_32() {
    let limits = Limits { queue_entries_max: 16, ..Limits::default() };
    let mut target = Target::empty(limits);
    target.apply(disks(Access::Any));
    let mut admin = ConnectSpec::admin(host(HOST), DISKS);
    admin.command.queue_entries = 33;
    assert_eq!(target.connect(&admin).1.status, INVALID);
    let association = target.ready(host(HOST), DISKS, 0);
    let mut queue = association.queue(1);
    queue.command.queue_entries = 17;
    assert_eq!(target.connect(&queue).1.status, INVALID);
    queue.command.queue_entries = 16;
    assert_eq!(target.connect(&queue).1.status, Status::SUCCESS);
}

/// hostile inputs Q1
#[test]
fn connect_data_has_1024_bytes() {
    let mut target = Target::new();
    let spec = ConnectSpec::admin(host(HOST), DISKS);
    for length in [0, 1023, 1025, 4096] {
        let mut data = spec.data();
        data.resize(length, 0);
        let lane = target.lane();
        let answer = target.ask_with(lane, spec.command.to_sqe(), &data);
        assert_eq!(answer.status, Status::DATA_SGL_LENGTH_INVALID.with_dnr(), "{length}");
    }
}

/// hostile inputs Q2
#[test]
fn names_must_be_names() {
    let mut target = Target::new();
    let spec = ConnectSpec::admin(host(HOST), DISKS);
    let long = [b'n'; 224];
    let subsystem_only: [&[u8]; 3] = [b"", b"iqn.2026-01.io.nvlane:x", b"NQN.x"];
    let bad: [&[u8]; 6] =
        [b"nqn.a\nb", "nqn.a\u{202e}b".as_bytes(), b"nqn.a\x1B[2J", b"nqn.\xFF", &long, &[b'n'; 256]];
    let subsystem = [(256, data(256))];
    let both = [(256, data(256)), (512, data(512))];
    let names = subsystem_only.iter().map(|name| (*name, &subsystem[..]));
    for (name, fields) in names.chain(bad.iter().map(|name| (*name, &both[..]))) {
        for &(field, parameter) in fields {
            let mut bytes = spec.data();
            bytes[field..field + 256].fill(0);
            bytes[field..field + name.len()].copy_from_slice(name);
            let lane = target.lane();
            let answer = target.ask_with(lane, spec.command.to_sqe(), &bytes);
            assert_eq!((answer.status, answer.result), (INVALID, parameter), "{name:?} at {field}");
        }
    }
}

/// The Connect of a host with these bytes as its name.
fn named(spec: &ConnectSpec, name: &[u8]) -> Vec<u8> {
    let mut bytes = spec.data();
    bytes[512..768].fill(0);
    bytes[512..512 + name.len()].copy_from_slice(name);
    bytes
}

#[test]
fn hosts_may_have_names_of_any_form_or_none() {
    let mut target = Target::new();
    let spec = ConnectSpec::admin(host(HOST), DISKS);
    let long = [b'h'; 223];
    for name in
        [&b"nqn.psk-test %s'\""[..], b"blktests-host", b"0f01fb42-9f7f-4856-b0b3-51e60b8de349", &long, b""]
    {
        let lane = target.lane();
        let answer = target.ask_with(lane, spec.command.to_sqe(), &named(&spec, name));
        assert_eq!(answer.status, Status::SUCCESS, "{name:?}");
        assert_eq!(answer.established.unwrap().host.as_bytes(), name);
    }
    let lane = target.lane();
    let answer = target.ask_with(lane, spec.command.to_sqe(), &named(&spec, &[b'h'; 224]));
    assert_eq!((answer.status, answer.result), (INVALID, data(512)));
}

/// A host without a name is known by its host identifier alone.
#[test]
fn a_host_without_a_name_owns_its_controllers_by_its_identifier() {
    let mut target = Target::new();
    let admin = ConnectSpec::admin(host(HOST), DISKS);
    let lane = target.lane();
    let answer = target.ask_with(lane, admin.command.to_sqe(), &named(&admin, b""));
    assert_eq!(answer.status, Status::SUCCESS);
    target.enable(lane);
    let cntlid = Cntlid::new(u16::try_from(answer.result).unwrap());
    let io = ConnectSpec::io(host(HOST), DISKS, cntlid, 1);
    let other = ConnectSpec::io(host(OTHER_HOST), DISKS, cntlid, 1);
    for (spec, name, status) in
        [(&io, &b""[..], Status::SUCCESS), (&other, b"", INVALID), (&io, HOST.as_bytes(), INVALID)]
    {
        let lane = target.lane();
        let answer = target.ask_with(lane, spec.command.to_sqe(), &named(spec, name));
        assert_eq!(answer.status, status, "{name:?}");
    }
}

#[test]
fn a_list_of_hosts_lets_no_host_without_a_name_in() {
    let mut target = Target::empty(Limits::default());
    let hosts = BTreeSet::from([nqn(HOST).into(), "blktests-host".parse().unwrap()]);
    target.apply(disks(Access::Only(hosts)));
    let spec = ConnectSpec::admin(host(HOST), DISKS);
    for (name, status) in [
        (&b""[..], Status::CONNECT_INVALID_HOST.with_dnr()),
        (b"blktests-host", Status::SUCCESS),
        (b"blktests-hosts", Status::CONNECT_INVALID_HOST.with_dnr()),
    ] {
        let lane = target.lane();
        let answer = target.ask_with(lane, spec.command.to_sqe(), &named(&spec, name));
        assert_eq!(answer.status, status, "{name:?}");
    }
}

#[test]
fn a_host_that_is_not_allowed_is_told_so_for_good() {
    let mut target = Target::empty(Limits::default());
    target.apply(disks(Access::Only(BTreeSet::from([nqn(HOST).into()]))));
    let (_, answer) = target.connect(&ConnectSpec::admin(host(OTHER_HOST), DISKS));
    assert_eq!((answer.status, answer.result), (Status::CONNECT_INVALID_HOST.with_dnr(), 0));
    let (_, answer) = target.connect(&ConnectSpec::admin(host(HOST), DISKS));
    assert_eq!(answer.status, Status::SUCCESS);
}

/// hostile inputs Q5
#[test]
fn queue_ids_end_at_the_limit() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    for qid in [129, 0xFFFF] {
        let (_, answer) = target.connect(&association.queue(qid));
        assert_eq!((answer.status, answer.result), (INVALID, command(42)), "{qid}");
    }
    assert_eq!(target.connect(&association.queue(128)).1.status, Status::SUCCESS);
    let mut small = association.queue(1);
    small.command.queue_entries = 1;
    let (_, answer) = target.connect(&small);
    assert_eq!((answer.status, answer.result), (INVALID, command(44)));
    small.command.queue_entries = 2;
    assert_eq!(target.connect(&small).1.status, Status::SUCCESS);
}

/// hostile inputs Q6, C13
#[test]
fn a_lane_connects_once_and_before_anything_else() {
    let mut target = Target::new();
    let lane = target.lane();
    assert_eq!(target.ask(lane, Sqe::keep_alive()).status, Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(target.ask(lane, Sqe::property_get(Property::CAP)).status, Status::COMMAND_SEQUENCE_ERROR);
    let association = target.ready(host(HOST), DISKS, 1);
    for lane in [association.admin, association.io[0]] {
        for spec in [ConnectSpec::admin(host(HOST), DISKS), association.queue(2)] {
            let answer = target.ask_with(lane, spec.command.to_sqe(), &spec.data());
            assert_eq!(answer.status, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
    }
}

/// hostile inputs Q7
#[test]
fn a_queue_never_joins_another_host_s_controller() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let theirs = association.cntlid;
    let mut thief = ConnectSpec::io(host(OTHER_HOST), DISKS, theirs, 1);
    let (_, answer) = target.connect(&thief);
    assert_eq!((answer.status, answer.result), (INVALID, data(16)));
    // The right name with another identifier, and the reverse.
    thief.host.nqn = nqn(HOST);
    assert_eq!(target.connect(&thief).1.status, INVALID);
    thief.host = host(HOST);
    thief.host.nqn = nqn(OTHER_HOST);
    assert_eq!(target.connect(&thief).1.status, INVALID);
}

#[test]
fn a_controller_that_is_gone_is_to_be_made_anew() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    target.end(association.admin);
    let (_, answer) = target.connect(&association.queue(1));
    // Not for good: with "do not retry" newer Linux would give up the whole association. wire §28.29
    assert_eq!((answer.status, answer.result), (Status::CONNECT_INVALID_PARAMETERS, data(16)));
}

#[test]
fn io_queues_wait_for_the_controller_to_be_enabled() {
    let mut target = Target::new();
    let association = target.associate(host(HOST), DISKS);
    assert_eq!(target.connect(&association.queue(1)).1.status, Status::COMMAND_SEQUENCE_ERROR);
    target.enable(association.admin);
    assert_eq!(target.connect(&association.queue(1)).1.status, Status::SUCCESS);
}

#[test]
fn a_discovery_controller_has_no_io_queues() {
    let mut target = Target::new();
    for name in [wire::nqn::DISCOVERY_NQN, SERVICE] {
        let association = target.ready(host(HOST), name, 0);
        let (_, answer) = target.connect(&association.queue(1));
        assert_eq!((answer.status, answer.result), (INVALID, command(42)));
    }
}

#[test]
fn a_listener_leads_only_to_what_it_serves() {
    let mut target = Target::new();
    let (io, discovery) = (target.listen(true, false), target.listen(false, true));
    let mut status = |listener, name| {
        target.listener = listener;
        target.connect(&ConnectSpec::admin(host(HOST), name)).1.status
    };
    assert_eq!(status(io, DISKS), Status::SUCCESS);
    assert_eq!(status(io, SERVICE), INVALID);
    assert_eq!(status(discovery, DISKS), INVALID);
    assert_eq!(status(discovery, SERVICE), Status::SUCCESS);
}

#[test]
fn a_queue_id_in_use_waits_for_its_lane_to_end() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let lane = target.lane();
    let spec = association.queue(1);
    let waiting = target.send(lane, spec.command.to_sqe(), &spec.data());
    assert!(!target.answers.contains_key(&waiting));
    assert_eq!(target.state().waiting_connect_count, 1);
    target.pass(2 * SECOND_NS);
    assert!(!target.answers.contains_key(&waiting));
    target.end(association.io[0]);
    assert_eq!(target.answer(waiting).status, Status::SUCCESS);
}

#[test]
fn a_queue_id_that_stays_in_use_is_refused_after_a_while() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let lane = target.lane();
    let spec = association.queue(1);
    let waiting = target.send(lane, spec.command.to_sqe(), &spec.data());
    // A second Connect on a lane whose first one waits.
    let again = target.ask_with(lane, spec.command.to_sqe(), &spec.data());
    assert_eq!(again.status, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    target.pass(4 * SECOND_NS);
    assert_eq!(target.answer(waiting).status, Status::COMMAND_SEQUENCE_ERROR);
}

/// hostile inputs Q10
#[test]
fn a_connection_that_ends_while_its_connect_waits_leaves_nothing() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let lane = target.lane();
    let spec = association.queue(1);
    target.send(lane, spec.command.to_sqe(), &spec.data());
    target.end(lane);
    target.end(association.io[0]);
    target.pass(4 * SECOND_NS);
    let state = target.state();
    assert_eq!(state.waiting_connect_count, 0);
    assert!(state.subsystems[0].controllers[0].queues.is_empty());
}

#[test]
fn a_host_that_comes_back_waits_for_its_old_lanes() {
    let mut target = Target::new();
    let old = target.ready(host(HOST), DISKS, 2);
    target.habits.lanes_end = false;
    // Its connections broke; writes of the I/O lanes still run.
    target.end(old.admin);
    assert_eq!(target.ending(), old.io);
    let back = ConnectSpec::admin(host(HOST), DISKS);
    let lane = target.lane();
    let waiting = target.send(lane, back.command.to_sqe(), &back.data());
    // Others are not concerned.
    assert_eq!(target.connect(&ConnectSpec::admin(host(OTHER_HOST), DISKS)).1.status, Status::SUCCESS);
    target.end(old.io[0]);
    assert!(!target.answers.contains_key(&waiting), "one lane may still write");
    target.end(old.io[1]);
    assert_eq!(target.answer(waiting).status, Status::SUCCESS);
}

#[test]
fn a_host_whose_old_lanes_do_not_end_is_asked_to_try_again() {
    let mut target = Target::new();
    let old = target.ready(host(HOST), DISKS, 1);
    target.habits.lanes_end = false;
    target.end(old.admin);
    let back = ConnectSpec::admin(host(HOST), DISKS);
    let lane = target.lane();
    let waiting = target.send(lane, back.command.to_sqe(), &back.data());
    target.pass(9 * SECOND_NS);
    assert!(!target.answers.contains_key(&waiting));
    target.pass(2 * SECOND_NS);
    let answer = target.answer(waiting);
    assert_eq!((answer.status, answer.result), (Status::CONNECT_CONTROLLER_BUSY, 0));
}

/// wire §28.14
#[test]
fn controller_ids_come_from_the_range_and_not_again_soon() {
    let mut target = Target::empty(Limits::default());
    let mut of_range = subsystem(DISKS, Access::Any);
    of_range.cntlids = 100..=103;
    target.apply(vec![Step::AddSubsystem(of_range)]);
    let mut ids = Vec::new();
    for _ in 0..8 {
        let association = target.associate(host(HOST), DISKS);
        ids.push(association.cntlid.get());
        target.end(association.admin);
    }
    assert!(ids.iter().all(|id| (100..=103).contains(id)), "{ids:?}");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 4, "each in its turn: {ids:?}");
    assert_eq!(ids[..4], ids[4..]);
    // All in use.
    let held: Vec<_> = (0..4).map(|_| target.associate(host(HOST), DISKS)).collect();
    let (_, answer) = target.connect(&ConnectSpec::admin(host(HOST), DISKS));
    assert_eq!(answer.status, Status::CONNECT_CONTROLLER_BUSY);
    target.end(held[2].admin);
    assert_eq!(target.associate(host(HOST), DISKS).cntlid, held[2].cntlid);
}

#[test]
fn there_are_so_many_controllers_and_no_more() {
    let limits = Limits { controller_count_max: 5, controller_count_per_host_max: 3, ..Limits::default() };
    let mut target = Target::empty(limits);
    target.apply(disks(Access::Any));
    let first = target.associate(host(HOST), DISKS);
    target.associate(host(HOST), SERVICE);
    target.associate(host(HOST), DISKS);
    let mut status = |name, subnqn| target.connect(&ConnectSpec::admin(host(name), subnqn)).1.status;
    assert_eq!(status(HOST, DISKS), Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(status(OTHER_HOST, DISKS), Status::SUCCESS);
    assert_eq!(status(OTHER_HOST, SERVICE), Status::SUCCESS);
    assert_eq!(status(OTHER_HOST, DISKS), Status::CONNECT_CONTROLLER_BUSY, "five in all");
    target.end(first.admin);
    assert_eq!(target.connect(&ConnectSpec::admin(host(OTHER_HOST), DISKS)).1.status, Status::SUCCESS);
}

/// hostile inputs Q9
#[test]
fn keep_alive_timeouts_are_rounded_up_and_told() {
    let mut target = Target::new();
    for (asked_ms, given_ms) in [(0, 0), (1, 1000), (5000, 5000), (5001, 6000), (u32::MAX, 4_294_967_000)] {
        let mut spec = ConnectSpec::admin(host(HOST), DISKS);
        spec.command.kato_ms = asked_ms;
        let (admin, _) = target.connect(&spec);
        target.enable(admin);
        let told = target.demand(admin, Sqe::get_feature(wire::feature::Fid::KEEP_ALIVE, Nsid::NONE));
        assert_eq!(told.result, given_ms, "{asked_ms}");
    }
}

#[test]
fn a_stopping_target_asks_hosts_to_come_again() {
    let mut target = Target::new();
    target.order(OrderKind::Stop { grace_ms: 1000 });
    let (_, answer) = target.connect(&ConnectSpec::admin(host(HOST), DISKS));
    assert_eq!(answer.status, Status::CONNECT_CONTROLLER_BUSY);
}

/// hostile inputs Q11, A2, Q16
#[test]
fn other_fabrics_commands_are_refused_where_they_do_not_belong() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let auth = wire::fabrics::AuthenticationCommand::new(16);
    let unknown = Sqe::new(0x7F, Nsid::new(0x77));
    let invalid_field = Status::INVALID_FIELD.with_dnr();
    let half_cap = PropertyGet { size: PropertySize::FOUR, property: Property::CAP };
    let disconnect = wire::fabrics::Disconnect { recfmt: 0 }.to_sqe();
    for (lane, sqe, status) in [
        (association.admin, auth.to_send_sqe(), invalid_field),
        (association.admin, auth.to_receive_sqe(), invalid_field),
        (association.admin, unknown, Status::INVALID_OPCODE.with_dnr()),
        (association.admin, half_cap.to_sqe(), invalid_field),
        (association.admin, Sqe::property_get(Property::from_raw(0x1D)), Status::INVALID_FIELD),
        (association.admin, Sqe::property_set(Property::CSTS, 1), invalid_field),
        (association.admin, disconnect, Status::DISCONNECT_INVALID_QUEUE_TYPE.with_dnr()),
        (association.io[0], Sqe::property_get(Property::CAP), invalid_field),
        (association.io[0], unknown, Status::INVALID_OPCODE.with_dnr()),
        (
            association.io[0],
            wire::fabrics::Disconnect { recfmt: 1 }.to_sqe(),
            Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr(),
        ),
    ] {
        assert_eq!(target.ask(lane, sqe).status, status, "{sqe:?}");
    }
    // A Disconnect of an I/O queue is answered, and the queue is gone.
    assert_eq!(target.ask(association.io[0], disconnect).status, Status::SUCCESS);
    assert_eq!(target.connect(&association.queue(1)).1.status, Status::SUCCESS);
}
