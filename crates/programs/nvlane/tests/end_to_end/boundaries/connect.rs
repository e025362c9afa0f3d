//! Connect. wire §6

use peer::queue::Move;
use peer::raw_host::{RawHost as Dialler, enable, set_queues};
use wire::fabrics::{ConnectCommand, ConnectData, InvalidParameter};
use wire::id::{Cntlid, Qid};
use wire::nqn::{HostId, Nqn};
use wire::pdu::Digests;
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::raw::RawHost;
use crate::setup::{Rig, engines};

/// Sends a Connect on a connection of its own: its status, and the parameter that it names.
fn connect(host: &Dialler, command: ConnectCommand, data: &[u8]) -> (Status, InvalidParameter) {
    let mut queue = host.queue(Digests::empty()).unwrap_or_else(|finding| panic!("{finding}"));
    let answer = super::answer(&mut queue, command.to_sqe(), Move::InCapsule(data));
    (answer.status().without_dnr(), InvalidParameter::from_bits(answer.cqe.dw0()))
}

/// A Connect that names this parameter, or succeeds.
#[track_caller]
fn expect(what: &str, found: (Status, InvalidParameter), refused: Option<InvalidParameter>) {
    match refused {
        None => assert!(found.0.is_success(), "{what}: {} ({:?})", found.0, found.1.name()),
        Some(parameter) => {
            assert_eq!(found, (Status::CONNECT_INVALID_PARAMETERS, parameter), "{what}: {}", found.0);
        }
    }
}

fn rig(change: impl FnOnce(&mut subsystem::limits::Limits)) -> Rig {
    Rig::with(engines()[0], &["ram:1M"], |config| change(&mut config.limits))
}

/// SQSIZE is 0-based: 0 is one entry, which no queue may have.
#[test]
fn a_queue_has_two_entries_to_mqes() {
    for (queue_entries_max, admin) in [(64, 64), (16, 32)] {
        let rig = rig(|limits| limits.queue_entries_max = queue_entries_max);
        let host = RawHost::dialler(&rig);
        let (mut admin_queue, cntlid) = host.admin(Digests::empty()).expect("a controller");
        set_queues(&mut admin_queue, 100).expect("queues");
        let most = u32::from(queue_entries_max);
        for (at, entries) in [1, 2, 3, most - 1, most, most + 1, 65_535, 65_536].into_iter().enumerate() {
            let qid = at as u16 + 1;
            let found =
                connect(&host, host.connect_command(qid, entries), host.connect_data(cntlid).as_bytes());
            let refused = Some(InvalidParameter::SQSIZE).filter(|_| !(2..=most).contains(&entries));
            expect(&format!("{entries} entries of {most}"), found, refused);
        }
        for entries in [1, 2, 7, 8, 9, admin - 1, admin, admin + 1, 65_536] {
            let found = connect(
                &host,
                host.connect_command(0, entries),
                host.connect_data(Cntlid::DYNAMIC).as_bytes(),
            );
            let refused = Some(InvalidParameter::SQSIZE).filter(|_| !(8..=admin).contains(&entries));
            expect(&format!("an admin queue of {entries} entries of {admin}"), found, refused);
        }
    }
}

#[test]
fn queue_and_controller_ids_end_where_they_are_said_to() {
    let rig = rig(|limits| limits.io_queue_count_max = 3);
    let host = RawHost::dialler(&rig);
    let (mut admin, cntlid) = host.admin(Digests::empty()).expect("a controller");
    assert_eq!(set_queues(&mut admin, 4).expect("queues"), 3);
    for qid in [1, 2, 3, 4, 5, 0xFFFE, 0xFFFF] {
        let found = connect(&host, host.connect_command(qid, 32), host.connect_data(cntlid).as_bytes());
        expect(&format!("queue {qid} of 3"), found, Some(InvalidParameter::QID).filter(|_| qid > 3));
    }
    let own = cntlid.get();
    for other in [0, own.wrapping_sub(1), own, own + 1, 0xFFEE, 0xFFEF, 0xFFF0, 0xFFFD, 0xFFFE, 0xFFFF] {
        let data = host.connect_data(Cntlid::new(other));
        let found = connect(&host, host.connect_command(1, 32), data.as_bytes());
        expect(
            &format!("an I/O queue of {other:#x}"),
            found,
            Some(InvalidParameter::CNTLID).filter(|_| other != own),
        );
        let found = connect(&host, host.connect_command(0, 32), data.as_bytes());
        expect(
            &format!("an admin queue of {other:#x}"),
            found,
            Some(InvalidParameter::CNTLID).filter(|_| other != 0xFFFF),
        );
    }
}

#[test]
fn a_connect_has_1024_bytes_of_format_0() {
    let rig = rig(|_| {});
    let host = RawHost::dialler(&rig);
    let data = host.connect_data(Cntlid::DYNAMIC);
    let long = [data.as_bytes(), &[0; 4]].concat();
    for length in [1020, 1023, 1024, 1025, 1028] {
        let (status, _) = connect(&host, host.connect_command(0, 32), &long[..length]);
        let right = super::success_or(length == 1024, Status::DATA_SGL_LENGTH_INVALID);
        assert!(status.is(right), "{length} bytes: {status}");
    }
    for recfmt in [0, 1, 2, 0xFFFE, 0xFFFF] {
        let command = ConnectCommand { recfmt, ..host.connect_command(0, 32) };
        let (status, _) = connect(&host, command, data.as_bytes());
        assert!(
            status.is(super::success_or(recfmt == 0, Status::CONNECT_INCOMPATIBLE_FORMAT)),
            "{recfmt}: {status}"
        );
    }
    for kato_ms in [0, 1, 2, 0x7FFF_FFFF, 0x8000_0000, u32::MAX - 1, u32::MAX] {
        let command = ConnectCommand { kato_ms, ..host.connect_command(0, 32) };
        let (status, _) = connect(&host, command, data.as_bytes());
        assert!(status.is_success(), "KATO {kato_ms}: {status}");
    }
}

#[test]
fn names_have_at_most_223_bytes_and_a_host_has_an_identifier() {
    const START: &str = "nqn.2026-01.io.nvlane:";
    let rig = rig(|_| {});
    let host = RawHost::dialler(&rig);
    let right = host.connect_data(Cntlid::DYNAMIC);
    for length in [222, 223, 224, 255, 256] {
        let mut field = [0; 256];
        field[..length].fill(b'n');
        field[..START.len()].copy_from_slice(START.as_bytes());
        let mut of_host = right;
        of_host.hostnqn = field;
        let found = connect(&host, host.connect_command(0, 32), of_host.as_bytes());
        expect(
            &format!("a host of {length} bytes"),
            found,
            Some(InvalidParameter::HOSTNQN).filter(|_| length > 223),
        );
        // No subsystem has any of these names.
        let mut of_subsystem = right;
        of_subsystem.subnqn = field;
        let found = connect(&host, host.connect_command(0, 32), of_subsystem.as_bytes());
        expect(&format!("a subsystem of {length} bytes"), found, Some(InvalidParameter::SUBNQN));
    }
    for last in [0, 1, 0xFF] {
        let mut id = [0; 16];
        id[15] = last;
        let data = ConnectData::new(
            HostId::from_bytes(id),
            Cntlid::DYNAMIC,
            &host.subsystem,
            &Nqn::from_uuid(wire::uuid::Uuid::from_bytes([last; 16])),
        );
        let found = connect(&host, host.connect_command(0, 32), data.as_bytes());
        expect(
            &format!("host identifier {last}"),
            found,
            Some(InvalidParameter::HOSTID).filter(|_| last == 0),
        );
    }
}

/// An I/O queue before CC.EN, and with it.
#[test]
fn an_io_queue_needs_an_enabled_controller() {
    let rig = rig(|_| {});
    let host = RawHost::dialler(&rig);
    let mut admin = host.queue(Digests::empty()).expect("a connection");
    let answer = host.connect_admin(&mut admin).expect("accepted");
    let cntlid = Cntlid::new(wire::fabrics::ConnectResult::from_bits(answer.cqe.dw0()).cntlid());
    let qid = Qid::new(1);
    let (status, _) =
        connect(&host, host.connect_command(qid.get(), 32), host.connect_data(cntlid).as_bytes());
    assert!(status.is(Status::COMMAND_SEQUENCE_ERROR), "{status}");
    enable(&mut admin).expect("ready");
    expect(
        "enabled",
        connect(&host, host.connect_command(qid.get(), 32), host.connect_data(cntlid).as_bytes()),
        None,
    );
}
