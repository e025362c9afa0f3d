//! Identify beyond what hosts ask in their first minutes. wire §10, hostile inputs M1, M8

use wire::id::{Cntlid, Nsid};
use wire::identify::lists::{read_controller_list, read_nsid_list};
use wire::identify::{Cns, IdentifyCommand};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::harness::{DISKS, HOST, OTHER_HOST, SERVICE, Target, host};

const INVALID_FIELD: Status = Status::INVALID_FIELD.with_dnr();
const INVALID_NAMESPACE: Status = Status::INVALID_NAMESPACE.with_dnr();

fn identify(cns: Cns, nsid: u32) -> Sqe {
    Sqe::identify(cns, Nsid::new(nsid)).with_data(Sgl::transport(4096))
}

#[test]
fn a_namespace_that_is_not_there_is_all_zero_and_an_impossible_one_an_error() {
    let mut target = Target::new();
    let admin = target.ready(host(HOST), DISKS, 0).admin;
    for cns in
        [Cns::NAMESPACE, Cns::ALLOCATED_NAMESPACE, Cns::COMMAND_SET_NAMESPACE, Cns::INDEPENDENT_NAMESPACE]
    {
        for nsid in [2, 1024] {
            assert_eq!(target.data(admin, identify(cns, nsid)), [0; 4096], "{cns} {nsid}");
        }
        for nsid in [0, 1025, 0xFFFF_FFFE, 0xFFFF_FFFF] {
            assert_eq!(target.ask(admin, identify(cns, nsid)).status, INVALID_NAMESPACE, "{cns} {nsid}");
        }
    }
    for nsid in [0, 2, 1025, 0xFFFF_FFFF] {
        for cns in [Cns::NAMESPACE_DESCRIPTORS, Cns::NAMESPACE_CONTROLLERS] {
            assert_eq!(target.ask(admin, identify(cns, nsid)).status, INVALID_NAMESPACE, "{cns} {nsid}");
        }
    }
}

#[test]
fn lists_of_namespaces_go_on_after_an_id() {
    let mut target = Target::new();
    let admin = target.ready(host(HOST), DISKS, 0).admin;
    for cns in [Cns::ACTIVE_NAMESPACES, Cns::ALLOCATED_NAMESPACES, Cns::COMMAND_SET_ACTIVE_NAMESPACES] {
        for (after, listed) in [(0, &[1, 3][..]), (1, &[3]), (2, &[3]), (3, &[]), (0xFFFF_FFFD, &[])] {
            let list = target.data(admin, identify(cns, after));
            assert_eq!(read_nsid_list(&list).map(Nsid::get).collect::<Vec<_>>(), listed, "{cns} {after}");
        }
        for after in [0xFFFF_FFFE, 0xFFFF_FFFF] {
            assert_eq!(target.ask(admin, identify(cns, after)).status, INVALID_NAMESPACE);
        }
    }
}

#[test]
fn lists_of_controllers_hold_those_of_the_subsystem() {
    let mut target = Target::new();
    let (first, second) = (target.ready(host(HOST), DISKS, 0), target.ready(host(OTHER_HOST), DISKS, 0));
    target.ready(host(HOST), SERVICE, 0);
    let mut list = |cns, from: u16, nsid| {
        let command = IdentifyCommand { cns, cntid: Cntlid::new(from), ..IdentifyCommand::default() };
        let list = target.data(first.admin, command.to_sqe(Nsid::new(nsid)).with_data(Sgl::transport(4096)));
        read_controller_list(&list).collect::<Vec<_>>()
    };
    let mut both = vec![first.cntlid, second.cntlid];
    both.sort();
    assert_eq!(list(Cns::SUBSYSTEM_CONTROLLERS, 0, 0), both);
    assert_eq!(list(Cns::NAMESPACE_CONTROLLERS, 0, 3), both);
    assert_eq!(list(Cns::SUBSYSTEM_CONTROLLERS, both[0].get() + 1, 0), both[1..]);
    target.end(second.admin);
    let command = identify(Cns::SUBSYSTEM_CONTROLLERS, 0);
    assert_eq!(read_controller_list(&target.data(first.admin, command)).collect::<Vec<_>>(), [first.cntlid]);
}

/// hostile inputs M1
#[test]
fn what_is_not_announced_is_refused() {
    let mut target = Target::new();
    let admin = target.ready(host(HOST), DISKS, 0).admin;
    let served = [0x00, 0x01, 0x02, 0x03, 0x05, 0x06, 0x07, 0x08, 0x10, 0x11, 0x12, 0x13, 0x1C];
    for cns in (0..=0xFF).filter(|cns| !served.contains(cns)) {
        for nsid in [0, 1, 0xFFFF_FFFF] {
            let answer = target.ask(admin, identify(Cns::from_raw(cns), nsid));
            assert_eq!(answer.status, INVALID_FIELD, "{cns:#x}");
        }
    }
    for cns in [Cns::CONTROLLER, Cns::COMMAND_SET_CONTROLLER, Cns::SUBSYSTEM_CONTROLLERS] {
        assert_eq!(target.ask(admin, identify(cns, 1)).status, INVALID_FIELD, "{cns} concerns no namespace");
    }
    let other =
        IdentifyCommand { cns: Cns::COMMAND_SETS, cntid: Cntlid::new(0xFFEE), ..IdentifyCommand::default() };
    assert_eq!(
        target.ask(admin, other.to_sqe(Nsid::NONE).with_data(Sgl::transport(4096))).status,
        INVALID_FIELD
    );
}

/// hostile inputs Q17
#[test]
fn a_discovery_controller_identifies_only_itself() {
    let mut target = Target::new();
    let admin = target.ready(host(HOST), SERVICE, 0).admin;
    target.demand(admin, identify(Cns::CONTROLLER, 0));
    for cns in [0x00, 0x02, 0x03, 0x06, 0x13, 0x1C, 0x80] {
        let answer = target.ask(admin, identify(Cns::from_raw(cns), 1));
        assert_eq!(answer.status, Status::INVALID_OPCODE.with_dnr(), "{cns:#x}");
    }
}

/// hostile inputs M8, C3, C7
#[test]
fn data_goes_only_where_there_is_room_for_all_of_it() {
    let mut target = Target::new();
    let admin = target.ready(host(HOST), DISKS, 0).admin;
    let sqe = |dptr| Sqe::identify(Cns::NAMESPACE_DESCRIPTORS, Nsid::new(1)).with_data(dptr);
    let whole = target.data(admin, sqe(Sgl::transport(4096)));
    for length in [1, 4, 20, 21, 4095] {
        let answer = target.ask(admin, sqe(Sgl::transport(length)));
        assert_eq!(
            (answer.status, answer.data),
            (Status::DATA_SGL_LENGTH_INVALID.with_dnr(), None),
            "{length}"
        );
    }
    assert_eq!(target.data(admin, sqe(Sgl::transport(u32::MAX))), whole, "never more than there is");
    let mut segment = Sgl::transport(4096);
    segment.identifier = 0x30;
    for (dptr, status) in [
        (Sgl::none(), Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
        (Sgl::in_capsule(4096), INVALID_FIELD),
        (segment, Status::SGL_TYPE_INVALID.with_dnr()),
    ] {
        let answer = target.ask(admin, sqe(dptr));
        assert_eq!((answer.status, answer.data.is_none()), (status, true));
    }
}
