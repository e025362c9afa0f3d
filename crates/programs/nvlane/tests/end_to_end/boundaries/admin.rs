//! Admin commands. wire §7, §10, §11, §12

use peer::queue::{Move, Queue};
use wire::feature::{FeatureSelect, Fid, GetFeatures, NumberOfQueues, SetFeatures};
use wire::id::{Cntlid, Csi, Nsid};
use wire::identify::{Cns, IDENTIFY_BYTES, IdentifyCommand};
use wire::log::{GetLogPage, Lid};
use wire::pdu::Digests;
use wire::property::Property;
use wire::sqe::Sqe;
use wire::status::Status;

use super::{Table, answer, success_or};
use crate::raw::RawHost;
use crate::setup::{Rig, engines};

/// NN of the subsystem, whose namespaces are 1 and 2.
const NN: u32 = 16;
/// Around all of those, and those that are reserved.
const NSIDS: [u32; 10] = [0, 1, 2, 3, NN - 1, NN, NN + 1, 0xFFFF_FFFD, 0xFFFF_FFFE, 0xFFFF_FFFF];
const INVALID_FIELD: Status = Status::INVALID_FIELD;
const INVALID_NAMESPACE: Status = Status::INVALID_NAMESPACE;

fn rig() -> Rig {
    Rig::with(engines()[0], &["ram:1M", "ram:1M"], |config| {
        config.limits.nsid_max = NN;
        config.limits.io_queue_count_max = 6;
        config.limits.transfer_bytes_max = 64 << 10;
    })
}

fn admin(rig: &Rig) -> (Queue, Cntlid) {
    RawHost::dialler(rig).admin(Digests::empty()).unwrap_or_else(|finding| panic!("{finding}"))
}

/// An Identify, with all of its data to be returned.
fn identify(cns: u8, csi: u8, cntid: u16, nsid: u32) -> (Sqe, Move<'static>) {
    let (cns, csi, cntid) = (Cns::from_raw(cns), Csi::from_raw(csi), Cntlid::new(cntid));
    let command = IdentifyCommand { cns, csi, cntid, ..IdentifyCommand::default() };
    (command.to_sqe(Nsid::new(nsid)), Move::Back(IDENTIFY_BYTES))
}

fn is_there(nsid: u32) -> bool {
    (1..=2).contains(&nsid)
}

#[test]
fn an_identify_knows_its_structures_and_its_namespaces() {
    let rig = rig();
    let (mut admin, own) = admin(&rig);
    let mut table = Table::default();
    for nsid in NSIDS {
        for cns in [0x00, 0x05, 0x08, 0x11] {
            let right = success_or((1..=NN).contains(&nsid), INVALID_NAMESPACE);
            let what = format!("CNS {cns:#x} of {nsid:#x}");
            let data = table.row(&mut admin, &what, identify(cns, 0, 0, nsid), right).data;
            // A namespace that is not there is all zero; so is what the command set of one says of it.
            let is_zero = data.iter().all(|byte| *byte == 0);
            assert_eq!(is_zero, !is_there(nsid) || cns == 0x05, "{what}");
        }
        for cns in [0x03, 0x12] {
            let right = success_or(is_there(nsid), INVALID_NAMESPACE);
            table.row(&mut admin, &format!("CNS {cns:#x} of {nsid:#x}"), identify(cns, 0, 0, nsid), right);
        }
        for cns in [0x02, 0x07, 0x10] {
            let right = success_or(nsid < 0xFFFF_FFFE, INVALID_NAMESPACE);
            let what = format!("CNS {cns:#x} after {nsid:#x}");
            let list = table.row(&mut admin, &what, identify(cns, 0, 0, nsid), right).data;
            let listed: Vec<u32> = list
                .chunks_exact(4)
                .map(|entry| u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]))
                .take_while(|entry| *entry != 0)
                .collect();
            let expected: Vec<u32> = (1..=2).filter(|listed| *listed > nsid).collect();
            assert_eq!(listed, expected, "{what}");
        }
        // What is about the controller takes any.
        for cns in [0x01, 0x06, 0x13] {
            table.row(
                &mut admin,
                &format!("CNS {cns:#x} of {nsid:#x}"),
                identify(cns, 0, 0, nsid),
                Status::SUCCESS,
            );
        }
    }
    for cns in [0x04, 0x09, 0x0A, 0x0F, 0x14, 0x1B, 0x1D, 0x1F, 0x20, 0x7F, 0x80, 0xFF] {
        table.row(&mut admin, &format!("CNS {cns:#x}"), identify(cns, 0, 0, 1), INVALID_FIELD);
    }
    for csi in [0, 1, 2, 3, 0x2F, 0x30, 0xFF] {
        for cns in [0x05, 0x06, 0x07] {
            let right = success_or(csi == 0, INVALID_FIELD);
            table.row(&mut admin, &format!("CNS {cns:#x} of CSI {csi}"), identify(cns, csi, 0, 1), right);
        }
    }
    let own = own.get();
    for cntid in [0, own.wrapping_sub(1), own, own + 1, 0xFFEE, 0xFFEF, 0xFFF0, 0xFFFE, 0xFFFF] {
        for cns in [0x12, 0x13] {
            let what = format!("CNS {cns:#x} from controller {cntid:#x}");
            let list = table.row(&mut admin, &what, identify(cns, 0, cntid, 1), Status::SUCCESS).data;
            let count = u16::from_le_bytes([list[0], list[1]]);
            assert_eq!(count, u16::from(cntid <= own), "{what}, with {own:#x}");
        }
        let right = success_or(cntid == own || cntid == 0xFFFF, INVALID_FIELD);
        table.row(&mut admin, &format!("command sets of {cntid:#x}"), identify(0x1C, 0, cntid, 0), right);
    }
    table.check();
}

/// NUMD is 0-based and in dwords, LPO in bytes.
#[test]
fn a_log_page_is_read_within_its_bounds() {
    let rig = rig();
    let (mut admin, _) = admin(&rig);
    let mut table = Table::default();
    let page = |lid: Lid, offset: u64, length: u32, nsid: u32| {
        let command =
            GetLogPage { lid, offset, length_bytes: length.into(), rae: true, ..GetLogPage::default() };
        (command.to_sqe(Nsid::new(nsid)), Move::Back(length))
    };
    for nsid in NSIDS {
        let of_all = [0, 0xFFFF_FFFF].contains(&nsid);
        let right = success_or(of_all || is_there(nsid), INVALID_NAMESPACE);
        table.row(&mut admin, &format!("SMART of {nsid:#x}"), page(Lid::SMART, 0, 512, nsid), right);
        for lid in [Lid::ERROR, Lid::FIRMWARE_SLOTS, Lid::ANA] {
            let right = success_or(of_all, INVALID_FIELD);
            table.row(&mut admin, &format!("{lid} of {nsid:#x}"), page(lid, 0, 64, nsid), right);
        }
    }
    for (lid, size) in
        [(Lid::SMART, 512), (Lid::FIRMWARE_SLOTS, 512), (Lid::COMMANDS_AND_EFFECTS, 4096), (Lid::ERROR, 4096)]
    {
        let whole = answer(&mut admin, page(lid, 0, size + 4, 0).0, Move::Back(size + 4)).data;
        assert_eq!(whole[size as usize..], [0; 4], "{lid} ends with {size} bytes");
        // Each refusal is an error.
        let changes = [Lid::SMART, Lid::ERROR].contains(&lid);
        for offset in [0, 1, 2, 3, 4, 5, size - 5, size - 4, size - 3, size, size + 1, size + 4] {
            let is_right = offset.is_multiple_of(4) && offset <= size;
            let what = format!("{lid} at {offset}");
            let part = table
                .row(&mut admin, &what, page(lid, offset.into(), 8, 0), success_or(is_right, INVALID_FIELD))
                .data;
            let mut expected = whole[(offset.min(size)) as usize..].to_vec();
            expected.resize(8, 0);
            assert!(!is_right || part == expected[..8] || changes, "{what}");
        }
        for length in [4, 8, size - 4, size, size + 4, (64 << 10) - 4, 64 << 10, (64 << 10) + 4] {
            let right = success_or(length <= 64 << 10, INVALID_FIELD);
            let data = table
                .row(&mut admin, &format!("{length} bytes of {lid}"), page(lid, 0, length, 0), right)
                .data;
            assert_eq!(
                data.len(),
                if right.is_success() { length as usize } else { 0 },
                "{length} bytes of {lid}"
            );
        }
        // A buffer of a dword less than NUMD says, of as much, of more.
        for room in [60, 64, 68] {
            let (sqe, _) = page(lid, 0, 64, 0);
            let data = table
                .row(
                    &mut admin,
                    &format!("64 bytes of {lid} into {room}"),
                    (sqe, Move::Back(room)),
                    Status::SUCCESS,
                )
                .data;
            assert_eq!(data.len(), room.min(64) as usize, "64 bytes of {lid} into {room}");
        }
    }
    for lid in [0x06, 0x07, 0x08, 0x0B, 0x0D, 0x11, 0x13, 0x6F, 0x70, 0x71, 0x7F, 0x80, 0xFF] {
        table.row(
            &mut admin,
            &format!("log page {lid:#x}"),
            page(Lid::from_raw(lid), 0, 64, 0),
            Status::INVALID_LOG_PAGE,
        );
    }
    table.check();
}

fn set(fid: Fid, value: u32, nsid: u32) -> Sqe {
    Sqe::set_feature(fid, Nsid::new(nsid), value)
}

fn get(fid: Fid, select: u8, value: u32, nsid: u32) -> Sqe {
    let command = GetFeatures { fid, select: FeatureSelect::from_raw(select), value };
    command.to_sqe(Nsid::new(nsid))
}

#[test]
fn features_take_the_values_that_there_are() {
    let rig = rig();
    let (mut admin, _) = admin(&rig);
    let mut table = Table::default();
    let has = |fid: u8| matches!(fid, 1 | 2 | 4..=11 | 14..=15 | 0x16);
    for fid in (0..=0x20).chain([0x7F, 0x80, 0x81, 0x82, 0xFF]) {
        for select in 0..8 {
            // The host identifier takes EXHID, and is asked for below.
            let right = success_or((has(fid) || fid == 0x81 && select == 3) && select <= 3, INVALID_FIELD);
            let sqe = get(Fid::from_raw(fid), select, 0, 0);
            table.row(
                &mut admin,
                &format!("feature {fid:#x}, select {select}"),
                (sqe, Move::Back(4096)),
                right,
            );
        }
    }
    for (exhid, right) in [(0, INVALID_FIELD), (1, Status::SUCCESS)] {
        table.row(
            &mut admin,
            &format!("EXHID {exhid}"),
            (get(Fid::HOST_ID, 0, exhid, 0), Move::Back(16)),
            right,
        );
    }
    // Both halves of Number of Queues are 0-based, and 65,535 is no number of queues.
    for nsq in [0, 1, 4, 5, 6, 0xFFFD, 0xFFFE, 0xFFFF] {
        for ncq in [0, 1, 4, 5, 6, 0xFFFE, 0xFFFF] {
            let right = success_or(nsq < 0xFFFF && ncq < 0xFFFF, INVALID_FIELD);
            let what = format!("{nsq:#x} and {ncq:#x} queues");
            let answer = table.row(
                &mut admin,
                &what,
                (set(Fid::NUMBER_OF_QUEUES, ncq << 16 | nsq, 0), Move::None),
                right,
            );
            let granted = NumberOfQueues::from_bits(answer.cqe.dw0());
            let expected = nsq.min(ncq).min(5);
            assert!(
                !right.is_success() || granted == NumberOfQueues::pairs(expected + 1),
                "{what}: {granted:?}"
            );
        }
    }
    // In units of KAS, a second, rounded up; the largest of 32 bits is rounded down.
    for (value, kept) in [
        (0, 0),
        (1, 1000),
        (999, 1000),
        (1000, 1000),
        (1001, 2000),
        (4_294_966_999, 4_294_967_000),
        (4_294_967_000, 4_294_967_000),
        (4_294_967_001, 4_294_967_000),
        (u32::MAX, 4_294_967_000),
    ] {
        table.row(
            &mut admin,
            &format!("KATO {value}"),
            (set(Fid::KEEP_ALIVE, value, 0), Move::None),
            Status::SUCCESS,
        );
        let found = answer(&mut admin, get(Fid::KEEP_ALIVE, 0, 0, 0), Move::None).cqe.dw0();
        assert_eq!(found, kept, "KATO {value}");
    }
    for (fid, values) in [
        (Fid::POWER_MANAGEMENT, &[(0, true), (1, false), (31, false)][..]),
        // Sensors are bits 19:16, of which 0 is the composite; types are over and under.
        (
            Fid::TEMPERATURE_THRESHOLD,
            &[
                (0, true),
                (0xFFFF, true),
                (1 << 16, false),
                (8 << 16, false),
                (15 << 16, false),
                (1 << 20, true),
                (2 << 20, false),
                (3 << 20, false),
            ],
        ),
        (
            Fid::ASYNC_EVENTS,
            &[
                (0, true),
                (0xFF, true),
                (1 << 8, true),
                (1 << 9, false),
                (1 << 10, false),
                (1 << 11, true),
                (1 << 12, false),
                (1 << 31, false),
            ],
        ),
        (Fid::ARBITRATION, &[(0, true), (u32::MAX, true)]),
        (Fid::WRITE_ATOMICITY, &[(0, true), (1, true)]),
    ] {
        for (value, is_right) in values {
            let right = success_or(*is_right, INVALID_FIELD);
            table.row(
                &mut admin,
                &format!("{fid} set to {value:#x}"),
                (set(fid, *value, 0), Move::None),
                right,
            );
        }
    }
    for (cache, right) in [
        (0, Status::FEATURE_NOT_CHANGEABLE),
        (1, Status::SUCCESS),
        (2, Status::FEATURE_NOT_CHANGEABLE),
        (3, Status::SUCCESS),
    ] {
        table.row(
            &mut admin,
            &format!("cache {cache}"),
            (set(Fid::VOLATILE_WRITE_CACHE, cache, 0), Move::None),
            right,
        );
    }
    for nsid in NSIDS {
        let what = format!("NSID {nsid:#x}");
        let of_all = [0, 0xFFFF_FFFF].contains(&nsid);
        let right = success_or(of_all, Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
        table.row(&mut admin, &what, (set(Fid::ARBITRATION, 0, nsid), Move::None), right);
        let right = success_or(is_there(nsid) || nsid == 0xFFFF_FFFF, INVALID_NAMESPACE);
        table.row(&mut admin, &what, (set(Fid::ERROR_RECOVERY, 5, nsid), Move::None), right);
        let right = success_or(is_there(nsid) || of_all, INVALID_NAMESPACE);
        table.row(&mut admin, &what, (get(Fid::ERROR_RECOVERY, 0, 0, nsid), Move::None), right);
    }
    let saved = SetFeatures { save: true, ..SetFeatures::from_sqe(&set(Fid::ARBITRATION, 0, 0)) };
    table.row(&mut admin, "save", (saved.to_sqe(Nsid::NONE), Move::None), Status::FEATURE_NOT_SAVEABLE);
    table.check();
}

/// Features with data: 8 bytes of a time, 512 of what the host does.
#[test]
fn features_with_data_have_its_length() {
    let rig = rig();
    let (mut admin, _) = admin(&rig);
    let mut table = Table::default();
    for (fid, size) in [(Fid::TIMESTAMP, 8), (Fid::HOST_BEHAVIOR, 512)] {
        for length in [0, size - 1, size, size + 1] {
            let data = vec![0; length];
            let bring = if length == 0 { Move::None } else { Move::InCapsule(&data) };
            let right = success_or(length == size, Status::DATA_SGL_LENGTH_INVALID);
            table.row(&mut admin, &format!("{length} bytes set {fid}"), (set(fid, 0, 0), bring), right);
            let right = success_or(length >= size, Status::DATA_SGL_LENGTH_INVALID);
            let back = if length == 0 { Move::None } else { Move::Back(length as u32) };
            table.row(&mut admin, &format!("{fid} into {length} bytes"), (get(fid, 0, 0, 0), back), right);
        }
    }
    for acre in [0, 1, 2, 255] {
        let mut data = [0; 512];
        data[0] = acre;
        let right = success_or(acre <= 1, INVALID_FIELD);
        table.row(
            &mut admin,
            &format!("ACRE {acre}"),
            (set(Fid::HOST_BEHAVIOR, 0, 0), Move::InCapsule(&data)),
            right,
        );
    }
    table.check();
}

/// Each property has its size, and nothing between them is one.
#[test]
fn properties_are_where_they_are() {
    let rig = rig();
    let (mut admin, _) = admin(&rig);
    let mut table = Table::default();
    for offset in 0..0x90 {
        for size in 0..8 {
            let mut sqe = Sqe::property_get(Property::from_raw(offset));
            sqe.cdw10.set(size);
            let is_right = match offset {
                0x00 => size == 1,
                0x08 | 0x14 | 0x1C | 0x68 => size == 0,
                _ => false,
            };
            table.row(
                &mut admin,
                &format!("{offset:#x} of size {size}"),
                (sqe, Move::None),
                success_or(is_right, INVALID_FIELD),
            );
        }
    }
    table.check();
}
