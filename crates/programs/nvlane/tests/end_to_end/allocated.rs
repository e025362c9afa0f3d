//! Get LBA Status: which blocks are told to be allocated, on I/O queues and on the admin queue.
#![allow(clippy::single_range_in_vec_init)] // Lists of ranges.

use std::ops::Range;

use host::wire::lba_status::{AllocatedBlocks, GetLbaStatus, LbaStatusAction};
use host::{AdminCommand, BlockingNamespace, Command, DeallocatedValue};
use wire::id::Nsid;
use wire::opcode::AdminOpcode;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::edges::status;
use crate::setup::{Rig, engines, options};

const ONE: Nsid = Nsid::new(1);
const MIB: u64 = 1 << 20;

fn is_allocated(namespace: &mut BlockingNamespace, offset: u64, length: u64) -> bool {
    let size_bytes = namespace.namespace().size_bytes();
    let parts = namespace.allocated(0, size_bytes).expect("a list");
    assert!(parts.is_sorted_by(|a, b| a.end < b.start), "{parts:?}");
    parts.iter().any(|part| part.start < offset + length && offset < part.end)
}

#[test]
fn what_was_written_is_allocated_and_what_was_deallocated_is_not() {
    for engine in engines() {
        // Huge pages of RAM: the parts lie far from each other.
        for storage in ["ram:64M", "ram:64M?lba=512", "file:64M", "file:64M?lba=512"] {
            let rig = Rig::new(engine, &[storage]);
            let mut namespace = rig.open(options());
            assert!(namespace.namespace().has_lba_status());
            assert_eq!(namespace.allocated(0, 64 * MIB).expect("a list"), [], "{storage} is new");
            namespace.write_at(&[1; 4096], 16 * MIB).expect("a write");
            namespace.write_at(&[2; 4096], 64 * MIB - 4096).expect("a write");
            assert!(is_allocated(&mut namespace, 16 * MIB, 4096), "{storage}");
            assert!(is_allocated(&mut namespace, 64 * MIB - 4096, 4096), "{storage}");
            assert!(!is_allocated(&mut namespace, 32 * MIB, 16 * MIB), "{storage}");
            // Only of the range asked for.
            let parts = namespace.allocated(16 * MIB + 1024, 1024).map(|parts| parts.len());
            match storage.ends_with("512") {
                true => assert_eq!(parts.expect("a list"), 1),
                false => assert!(parts.is_err(), "no whole blocks"),
            }
            namespace.deallocate(16 * MIB, 16 * MIB).expect("a deallocation");
            assert!(!is_allocated(&mut namespace, 16 * MIB, 16 * MIB), "{storage}");
            namespace.write_at(&[3; 4096], 17 * MIB).expect("a write");
            namespace.write_zeroes(16 * MIB, 16 * MIB, true).expect("zeroes");
            assert!(!is_allocated(&mut namespace, 16 * MIB, 16 * MIB), "{storage}");
        }
    }
}

#[test]
fn holes_of_storage_that_is_only_read_are_zeroes() {
    let rig = Rig::new(engines()[0], &["ram:1M?readonly"]);
    let mut namespace = rig.open(options());
    assert_eq!(namespace.allocated(0, MIB).expect("a list"), []);
    let info = namespace.namespace().info();
    assert_eq!((info.deallocated_value, info.write_zeroes_deallocates), (DeallocatedValue::ZEROES, false));
}

#[test]
fn more_parts_than_a_list_has_room_for_come_with_the_next_commands() {
    const PARTS: u64 = 100;
    for engine in engines() {
        let rig = Rig::new(engine, &["file:16M"]);
        let mut namespace = rig.open(options());
        for part in 0..PARTS {
            namespace.write_at(&[1; 4096], part * 16384).expect("a write");
        }
        let expected: Vec<_> = (0..PARTS).map(|part| part * 16384..part * 16384 + 4096).collect();
        assert_eq!(namespace.allocated(0, 16 * MIB).expect("a list"), expected);
        let (mut lba, mut parts, mut lists) = (0, Vec::new(), 0);
        while lba < 4096 {
            let command = namespace.namespace().lba_status(lba, 4096 - lba, 8 + 7 * 16).expect("a command");
            let (_, list) = namespace.run("Get LBA Status", command, Some(vec![0; 120])).expect("a list");
            let told = namespace.namespace().allocated_blocks(lba, 4096 - lba, &list.expect("a buffer"));
            let AllocatedBlocks { range, allocated } = told.expect("a good list");
            assert!(allocated.len() <= 7);
            parts.extend(allocated.iter().map(|blocks| blocks.start * 4096..blocks.end * 4096));
            (lba, lists) = (range.end, lists + 1);
        }
        assert_eq!((parts, lists), (expected, PARTS.div_ceil(7)));
    }
}

#[test]
fn what_is_not_known_is_allocated() {
    for engine in engines() {
        let rig = Rig::new(engine, &["null:2M"]);
        assert_eq!(rig.open(options()).allocated(MIB, MIB).expect("a list"), [MIB..2 * MIB]);
        let rig = Rig::new(engine, &["ram:2M?error=read:1/1,as=unsupported&delay=read:1ms"]);
        assert_eq!(rig.open(options()).allocated(0, MIB).expect("a list"), [0..MIB]);
        let rig = Rig::new(engine, &["ram:2M?error=read:1/1,as=eio"]);
        assert!(rig.open(options()).allocated(0, MIB).is_err(), "it cannot be read");
    }
}

fn list(range: Range<u64>, allocated: &[Range<u64>]) -> AllocatedBlocks {
    AllocatedBlocks { range, allocated: allocated.to_vec() }
}

#[test]
fn the_admin_command_is_that_of_the_standard() {
    for engine in engines() {
        let rig = Rig::new(engine, &["file:64M"]);
        let mut namespace = rig.open(options());
        namespace.write_at(&[1; 8192], 40960).expect("a write");
        let association = namespace.association().clone();
        let ask = |command: GetLbaStatus, nsid: Nsid| {
            let sqe = Sqe { opcode: AdminOpcode::GET_LBA_STATUS.raw(), ..command.to_sqe(nsid) };
            let length = u32::try_from(command.room_bytes()).expect("short");
            association.admin("Get LBA Status", AdminCommand::new(sqe).receiving(length).read_only())
        };
        let whole = GetLbaStatus::allocated(0, 0, 4096);
        let read = |command: GetLbaStatus, range| {
            let answer = ask(command, ONE).expect("an answer");
            AllocatedBlocks::from_bytes(&answer.data, range).expect("a good list").allocated
        };
        assert_eq!(read(whole, 0..16384), [10..12]);
        assert_eq!(read(GetLbaStatus { slba: 11, range_blocks: 100, ..whole }, 11..111), [11..12]);
        // Dword 14 is reserved there.
        assert_eq!(read(GetLbaStatus { long_range_blocks: 5, ..whole }, 0..16384), [10..12]);
        let of = namespace.namespace();
        assert!(of.has_admin_lba_status());
        let told = |lba, blocks| association.allocated_blocks(of, lba, blocks, 24).expect("a list");
        assert_eq!(told(0, 16384), list(0..12, &[10..12]), "there is no room for more");
        assert_eq!(told(11, 100), list(11..12, &[11..12]));
        assert_eq!(told(12, 16372), list(12..16384, &[]));
        assert_eq!(told(0, 11), list(0..11, &[10..11]));
        assert!(association.allocated_blocks(of, 0, 16385, 24).is_err());
        for (wrong, nsid) in [
            (GetLbaStatus { action: LbaStatusAction::TRACKED, ..whole }, ONE),
            (GetLbaStatus { slba: 16384, ..whole }, ONE),
            (whole, Nsid::new(2)),
            (whole, Nsid::ALL),
        ] {
            assert!(ask(wrong, nsid).is_err(), "{wrong:?} of {nsid}");
        }
    }
}

#[test]
fn commands_that_make_no_sense_are_refused() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:2M"]);
        let mut namespace = rig.open(options());
        let whole = GetLbaStatus::allocated(0, 512, 4096);
        let (range, field) = (Status::LBA_OUT_OF_RANGE.with_dnr(), Status::INVALID_FIELD.with_dnr());
        for (command, buffer_bytes, expected) in [
            (whole, 4096, Status::SUCCESS),
            (GetLbaStatus { long_range_blocks: 513, ..whole }, 4096, range),
            (GetLbaStatus { slba: 512, ..whole }, 4096, range),
            (GetLbaStatus { slba: u64::MAX, ..whole }, 4096, range),
            (GetLbaStatus { slba: 512, long_range_blocks: 0, ..whole }, 4096, range),
            (GetLbaStatus { action: LbaStatusAction::SCAN, ..whole }, 4096, field),
            (GetLbaStatus { action: LbaStatusAction::from_raw(0), ..whole }, 4096, field),
            (GetLbaStatus { last_dword: 4, ..whole }, 4096, field),
            (GetLbaStatus { last_dword: u32::MAX, ..whole }, 4096, field),
            (whole, 2048, Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
        ] {
            let command = Command::raw_from_controller(command.to_sqe(ONE), buffer_bytes);
            let found = status(&mut namespace, command, Some(vec![0; buffer_bytes as usize]));
            assert_eq!(found, expected);
        }
        let missing = Command::raw_from_controller(whole.to_sqe(Nsid::new(2)), 4096);
        let found = status(&mut namespace, missing, Some(vec![0; 4096]));
        assert_eq!(found, Status::INVALID_NAMESPACE.with_dnr());
    }
}
