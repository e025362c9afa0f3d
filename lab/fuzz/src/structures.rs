//! Parsers of every structure on the wire, on any bytes.
//!
//! Input: one byte that selects the structure, then its bytes.

use proto::host_limits::Limits;
use proto::host_namespaces::{Ids, NamespaceInfo};
use wire::admin::AbortCommand;
use wire::fabrics::{
    AuthenticationCommand, ConnectCommand, ConnectData, Disconnect, PropertyGet, PropertySet,
};
use wire::feature::{GetFeatures, SetFeatures};
use wire::id::Nsid;
use wire::identify::IdentifyCommand;
use wire::identify::command_set::{CommandSetVectors, KvNamespace, NvmController};
use wire::identify::controller::IdentifyController;
use wire::identify::descriptors::NamespaceDescriptors;
use wire::identify::lists::{read_controller_list, read_nsid_list};
use wire::identify::namespace::IdentifyNamespace;
use wire::kv::{KeyList, KvCommand};
use wire::log::GetLogPage;
use wire::log::ana::AnaLog;
use wire::log::error::ErrorEntry;
use wire::log::health::{FirmwareSlots, HealthLog};
use wire::log::namespaces::read_changed_namespaces;
use wire::log::support::CommandsAndEffects;
use wire::nqn::Nqn;
use wire::nvm::{BlockCommand, CopyCommand, DatasetManagement};
use wire::opcode::{KvOpcode, NvmOpcode};
use wire::property::Cap;
use wire::reservation::{Report, ReportCommand};
use wire::sgl::{DataPointer, Sgl};
use wire::sqe::Sqe;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;

/// The parsers of `wire`, and the host's interpretation of their results.
pub fn structures(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.byte();
    let bytes = input.rest();
    match kind % 12 {
        0 => entry(bytes),
        1 => descriptor(bytes),
        2 => identify_controller(bytes),
        3 => identify_namespace(bytes),
        4 => {
            NamespaceDescriptors::new(bytes).for_each(drop);
            let _ = Ids::new(bytes);
        }
        5 => {
            let _ = (read_nsid_list(bytes).count(), read_controller_list(bytes).count());
            let _ = read_changed_namespaces(bytes);
        }
        6 => {
            if let Ok(log) = AnaLog::new(bytes) {
                for group in log.map_while(Result::ok) {
                    assert!(group.nsids().count() * 4 <= bytes.len());
                }
            }
        }
        7 => logs(bytes),
        8 => {
            for extended in [false, true] {
                if let Some(report) = Report::new(bytes, extended) {
                    let _ = (report.registrants().count(), report.is_complete());
                }
            }
        }
        9 => {
            if let Some(list) = KeyList::new(bytes) {
                for key in list.map_while(Result::ok) {
                    assert!(!key.as_bytes().is_empty());
                }
            }
        }
        10 => connect_data(bytes),
        _ => command_sets(bytes),
    }
}

/// A submission queue entry, parsed as each of the commands.
fn entry(bytes: &[u8]) {
    let Ok((sqe, data)) = Sqe::read_from_prefix(bytes) else { return };
    let block = BlockCommand::from_sqe(&sqe);
    let _ = (block.end(), block.data_bytes(u32::MAX), block.directive_specific());
    let again = BlockCommand::from_sqe(&block.to_sqe(NvmOpcode::READ, Nsid::new(1)));
    assert_eq!(again, block);
    let dataset = DatasetManagement::from_sqe(&sqe);
    if let Some(ranges) = dataset.ranges(data) {
        assert!(ranges.len() * 16 <= data.len());
        for range in ranges {
            let _ = range.end();
        }
    }
    let copy = CopyCommand::from_sqe(&sqe);
    if let Some(sources) = copy.sources(data) {
        assert_eq!(sources.len(), usize::from(copy.range_count()));
        for source in sources {
            let _ = (source.end(), source.blocks());
        }
    }
    let key_value = KvCommand::from_sqe(&sqe);
    let again = KvCommand::from_sqe(&key_value.to_sqe(KvOpcode::STORE, Nsid::new(1)));
    assert_eq!((again, again.key().is_ok()), (key_value, key_value.key_length <= 16));
    let log = GetLogPage::from_sqe(&sqe);
    assert!(log.part_of(data).len() <= data.len());
    let _ = (IdentifyCommand::from_sqe(&sqe), GetFeatures::from_sqe(&sqe), SetFeatures::from_sqe(&sqe));
    let _ = (ConnectCommand::from_sqe(&sqe), PropertyGet::from_sqe(&sqe), PropertySet::from_sqe(&sqe));
    let _ = (Disconnect::from_sqe(&sqe), AuthenticationCommand::from_sqe(&sqe), AbortCommand::from_sqe(&sqe));
    let _ = ReportCommand::from_sqe(&sqe);
}

/// A data pointer must encode to the bytes that it was parsed from.
fn descriptor(bytes: &[u8]) {
    let Ok((sgl, _)) = Sgl::read_from_prefix(bytes) else { return };
    match sgl.classify() {
        DataPointer::InCapsule { offset, length } => {
            assert_eq!(Sgl::in_capsule(length).classify(), DataPointer::InCapsule { offset: 0, length });
            assert_eq!(offset, sgl.address.get());
        }
        DataPointer::Transport { length } => {
            assert_eq!(Sgl::transport(length).classify(), DataPointer::Transport { length });
        }
        DataPointer::Other { kind, subtype } => assert_eq!(kind << 4 | subtype, sgl.identifier),
    }
}

fn identify_controller(bytes: &[u8]) {
    let mut page = [0; 4096];
    let count = bytes.len().min(page.len());
    page[..count].copy_from_slice(&bytes[..count]);
    let identify = IdentifyController::read_from_bytes(&page).expect("a page");
    let _ = (identify.serial().to_string(), identify.model().to_string(), identify.firmware().to_string());
    let _ = (identify.subsystem(), identify.version().to_string(), identify.sgls());
    let _ = (identify.transfer_limit_bytes(4096), identify.keep_alive_granularity_ms());
    let _ = (identify.sqe_bytes(), identify.cqe_bytes(), identify.in_capsule_bytes());
    for field in IdentifyController::FIELDS {
        let _ = (field.bytes(bytes), field.number(&page));
    }
    let cap = Cap::from_bits(u64::from(page[4095]) << 48);
    if let Ok(mut limits) = Limits::new(cap, &identify) {
        let (nvm, _) = NvmController::read_from_prefix(&page[..]).expect("a page");
        limits.refine(cap, &nvm);
        for depth in [1, 128, u16::MAX] {
            let (entries, usable) = limits.queue_size(depth);
            assert!(usable >= 1 && u32::from(usable) < entries, "{usable} of {entries}");
        }
    }
    let _ = Limits::discovery(&identify);
}

fn identify_namespace(bytes: &[u8]) {
    let mut page = [0; 4096];
    let count = bytes.len().min(page.len());
    page[..count].copy_from_slice(&bytes[..count]);
    let identify = IdentifyNamespace::read_from_bytes(&page).expect("a page");
    let _ = (identify.format().block_bytes(), identify.block_bytes(), identify.is_present());
    if let Some(info) = NamespaceInfo::of_blocks(Nsid::new(1), &Ids::default(), &identify)
        && let Ok(geometry) = info.geometry
    {
        assert!(geometry.lba_bytes.is_power_of_two(), "{geometry:?}");
        assert!(geometry.block_count.checked_mul(geometry.lba_bytes.into()).is_some(), "{geometry:?}");
    }
}

fn logs(bytes: &[u8]) {
    if let Ok((health, _)) = HealthLog::read_from_prefix(bytes) {
        let _ = (health.bytes_read(), health.bytes_written());
    }
    if let Ok((slots, _)) = FirmwareSlots::read_from_prefix(bytes) {
        for slot in 0..=u8::MAX {
            let _ = slots.revision(slot).map(|revision| revision.to_string());
        }
    }
    if let Ok((entry, _)) = ErrorEntry::read_from_prefix(bytes) {
        let _ = entry.status().to_string();
    }
    if let Ok((effects, _)) = CommandsAndEffects::read_from_prefix(bytes) {
        for opcode in 0..=u8::MAX {
            let _ = (effects.admin(opcode), effects.io(opcode));
        }
    }
}

fn connect_data(bytes: &[u8]) {
    let Ok((data, _)) = ConnectData::read_from_prefix(bytes) else { return };
    let (subsystem, host) = (data.subsystem(), data.host());
    if let (Ok(subsystem), Ok(host)) = (subsystem, host) {
        let Ok(name) = Nqn::from_wire(&data.hostnqn) else { return assert!(host.is_empty(), "{host:?}") };
        let again = ConnectData::new(data.hostid, data.cntlid(), &subsystem, &name);
        assert_eq!((again.subsystem(), again.host()), (Ok(subsystem), Ok(host)));
    }
}

fn command_sets(bytes: &[u8]) {
    if let Ok((vectors, _)) = CommandSetVectors::read_from_prefix(bytes) {
        let _ = vectors.combinations().count();
        let _ = (vectors.combination(0), vectors.combination(u16::MAX));
    }
    if let Ok((keys, _)) = KvNamespace::read_from_prefix(bytes) {
        let _ = keys.format().map(|format| format.as_bytes().len());
        let _ = NamespaceInfo::of_keys(Nsid::new(1), &Ids::default(), &keys);
    }
}
