//! Identify beyond what hosts ask in their first minutes. wire §10, hostile inputs M1, M8

use std::sync::Arc;

use nvlane_subsystem::limits::Limits;
use nvlane_subsystem::message::Step;
use nvlane_subsystem::subsystem::Access;
use store::{Geometry, KeyValueSettings, KeyValueStore, Store};
use wire::id::{Cntlid, Nsid};
use wire::identify::capabilities::Fuses;
use wire::identify::command_set::{CommandSetVectors, CommandSets};
use wire::identify::controller::IdentifyController;
use wire::identify::lists::{read_controller_list, read_nsid_list};
use wire::identify::{Cns, IdentifyCommand};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::{FromBytes, IntoBytes};

use crate::harness::{DISKS, HOST, OTHER_HOST, SERVICE, Shape, Target, add_namespace, host, subsystem};

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
        let (named, unnamed) = (target.data(admin, identify(cns, 1)), target.data(admin, identify(cns, 0)));
        assert_eq!(named, unnamed, "{cns} concerns no namespace: its NSID is not judged");
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

/// A subsystem with keys says that it has their command set; with keys alone no transfer is limited, as values are not
/// cut into parts.
#[test]
fn a_controller_says_whether_there_are_keys_and_whether_there_is_anything_else() {
    for (has_keys, has_blocks) in [(false, true), (true, false), (true, true)] {
        let mut target = Target::empty(Limits::default());
        target.apply(vec![Step::AddSubsystem(subsystem(DISKS, Access::Any))]);
        if has_keys {
            let settings = KeyValueSettings {
                bytes: 1 << 20,
                evicts: true,
                item_bytes: 1 << 10,
                allows_flush: false,
                prefaults: false,
            };
            target.apply(vec![add_namespace(2, Store::Keys(Arc::new(KeyValueStore::in_memory(settings))))]);
        }
        if has_blocks {
            target.apply(vec![add_namespace(1, Shape::blocks(512, 8))]);
        }
        let admin = target.ready(host(HOST), DISKS, 0).admin;
        let what = format!("keys {has_keys}, blocks {has_blocks}");
        let sets =
            IdentifyCommand { cns: Cns::COMMAND_SETS, cntid: Cntlid::DYNAMIC, ..IdentifyCommand::default() };
        let sets = target.data(admin, sets.to_sqe(Nsid::NONE).with_data(Sgl::transport(4096)));
        let expected = if has_keys { CommandSets::NVM | CommandSets::KV } else { CommandSets::NVM };
        assert_eq!(sets, CommandSetVectors::new(&[expected]).as_bytes(), "{what}");
        let controller = target.data(admin, identify(Cns::CONTROLLER, 0));
        let controller = IdentifyController::read_from_bytes(&controller).expect("its length");
        let limit = (!has_keys || has_blocks).then_some(u64::from(Limits::default().transfer_bytes_max));
        assert_eq!(controller.transfer_limit_bytes(4096), limit, "{what}");
    }
}

/// Compare and Write keeps out the writers of one target.
#[test]
fn fused_pairs_are_not_offered_where_other_targets_write() {
    for has_other_writers in [false, true] {
        let mut target = Target::empty(Limits::default());
        target.apply(vec![Step::AddSubsystem(subsystem(DISKS, Access::Any))]);
        target.apply(vec![add_namespace(1, Shape::blocks(512, 8))]);
        let geometry = Geometry { has_other_writers, ..Geometry::new(512, 8) };
        target.apply(vec![add_namespace(2, Shape::of(geometry))]);
        let admin = target.ready(host(HOST), DISKS, 0).admin;
        let controller = target.data(admin, identify(Cns::CONTROLLER, 0));
        let controller = IdentifyController::read_from_bytes(&controller).expect("its length");
        assert_eq!(controller.fuses() == Fuses::COMPARE_AND_WRITE, !has_other_writers);
        assert_eq!(controller.fuses().is_empty(), has_other_writers);
    }
}
