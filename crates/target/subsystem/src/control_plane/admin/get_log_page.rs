//! Get Log Page. wire §11
//!
//! Pages are built whole and cut to the range the host requested; bytes past the end read as zero. The discovery log
//! and the list of changed namespaces are taken by a read from offset 0 and kept for its later parts, so that these are
//! consistent. A part without RAE clears the events that were pending when the log was taken, and no later ones.

mod effects;
mod health;

use std::sync::Arc;

use store::KeyValueStore;
use wire::id::{Csi, Nsid};
use wire::log::ana::{ANA_GROUPS_ONLY, AnaLogWriter, AnaState, ana_log_bytes};
use wire::log::health::FirmwareSlots;
use wire::log::partition_map::PartitionMapLog;
use wire::log::support::{FeaturesAndEffects, PageSupport, SupportedPages};
use wire::log::{GetLogPage, Lid};
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use super::identify::ANA_GROUP;
use super::{AdminOutcome, Reply, Surroundings, room};
use crate::objects::controller::features::FEATURES;
use crate::objects::controller::{ControllerKind, ControllerRecord};

/// Pages of controllers with namespaces.
const IO_PAGES: &[Lid] = &[
    Lid::SUPPORTED_PAGES,
    Lid::ERROR,
    Lid::SMART,
    Lid::FIRMWARE_SLOTS,
    Lid::CHANGED_NAMESPACES,
    Lid::COMMANDS_AND_EFFECTS,
    Lid::ANA,
    Lid::FEATURES_AND_EFFECTS,
];

/// Pages of controllers with key-value namespaces, beside those.
const KEY_VALUE_PAGES: &[Lid] = &[Lid::PARTITION_MAP];

/// Pages of discovery controllers.
const DISCOVERY_PAGES: &[Lid] = &[Lid::SUPPORTED_PAGES, Lid::ERROR, Lid::DISCOVERY];

/// Whether a Get Log Page requests the page with the subsystem's traffic.
pub(crate) fn tells_traffic(sqe: &Sqe) -> bool {
    GetLogPage::from_sqe(sqe).lid == Lid::SMART
}

/// Answers a Get Log Page.
pub(crate) fn execute(record: &mut ControllerRecord, around: &Surroundings<'_>, sqe: &Sqe) -> AdminOutcome {
    let command = GetLogPage::from_sqe(sqe);
    if !pages(record.key.kind, around).any(|lid| *lid == command.lid) {
        return Err(Status::INVALID_LOG_PAGE.with_dnr());
    }
    // Only the health log and the partition map can be requested per namespace. wire §11
    if sqe.nsid().is_one_namespace() {
        if command.lid != Lid::SMART && command.lid != Lid::PARTITION_MAP {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if !around.namespaces().any(|(nsid, _)| nsid == sqe.nsid()) {
            return Err(Status::INVALID_NAMESPACE.with_dnr());
        }
    }
    let length = usize::try_from(command.length_bytes).unwrap_or(usize::MAX).min(room(sqe)?);
    if length > around.limits.transfer_bytes_max as usize || !command.offset.is_multiple_of(4) {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let page = page(record, around, &command, sqe.nsid())?;
    if command.offset > page.len() as u64 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let mut data = command.part_of(&page).to_vec();
    data.resize(length, 0);
    if command.offset == 0 {
        record.events.on_log_taken(command.lid);
    }
    if !command.rae {
        on_read(record, &command, length);
    }
    Ok(Reply { result: 0, data: Some(data.into()) })
}

fn pages(kind: ControllerKind, around: &Surroundings<'_>) -> impl Iterator<Item = &'static Lid> + use<> {
    let (always, of_keys): (&'static [Lid], &'static [Lid]) = match kind {
        ControllerKind::Io(_) if around.has_key_value() => (IO_PAGES, KEY_VALUE_PAGES),
        ControllerKind::Io(_) => (IO_PAGES, &[]),
        ControllerKind::Discovery => (DISCOVERY_PAGES, &[]),
    };
    always.iter().chain(of_keys)
}

fn page(
    record: &mut ControllerRecord,
    around: &Surroundings<'_>,
    command: &GetLogPage,
    nsid: Nsid,
) -> Result<Arc<[u8]>, Status> {
    Ok(match command.lid {
        Lid::SUPPORTED_PAGES => supported_pages(record.key.kind, around).into(),
        Lid::ERROR => record.errors.page().into(),
        Lid::SMART => health::page(record, around, nsid).into(),
        Lid::FIRMWARE_SLOTS => {
            let slots = FirmwareSlots::single(super::identify::firmware());
            slots.map_err(|_| Status::INTERNAL_ERROR)?.as_bytes().into()
        }
        Lid::CHANGED_NAMESPACES => record.changed.page(command.offset).as_slice().into(),
        Lid::COMMANDS_AND_EFFECTS => match command.csi {
            Csi::NVM => effects::page().into(),
            Csi::KV if around.has_key_value() => effects::key_value_page().into(),
            _ => return Err(Status::INVALID_FIELD.with_dnr()),
        },
        Lid::ANA => ana(record, around, command.lsp & ANA_GROUPS_ONLY != 0).into(),
        Lid::FEATURES_AND_EFFECTS => features().into(),
        Lid::DISCOVERY => discovery(record, around, command.offset),
        Lid::PARTITION_MAP => partition_map(around, nsid)?.as_bytes().into(),
        _ => return Err(Status::INVALID_LOG_PAGE.with_dnr()),
    })
}

/// A page was read and its event is not to be retained. wire §13
fn on_read(record: &mut ControllerRecord, command: &GetLogPage, length: usize) {
    record.events.on_log_read(command.lid);
    if command.lid == Lid::CHANGED_NAMESPACES {
        record.changed.on_read(command.offset.saturating_add(length as u64));
    }
}

fn supported_pages(kind: ControllerKind, around: &Surroundings<'_>) -> Vec<u8> {
    let mut log = SupportedPages::default();
    for lid in pages(kind, around) {
        log.set_page(*lid, PageSupport::default().with_supported(true));
    }
    log.as_bytes().to_vec()
}

/// How the partition of a key is found, of a namespace that the host sees. docs/kv-commands.md §6
fn partition_map(around: &Surroundings<'_>, nsid: Nsid) -> Result<PartitionMapLog, Status> {
    let namespace = around.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
    let partitioning = namespace.store.keys().and_then(KeyValueStore::partitioning);
    Ok(partitioning.map_or_else(PartitionMapLog::none, |map| PartitionMapLog::new(map.seed, map.count)))
}

/// One group, optimized, with every namespace. wire §19
#[expect(clippy::expect_used, reason = "as long as our own namespaces make it")]
fn ana(record: &mut ControllerRecord, around: &Surroundings<'_>, groups_only: bool) -> Vec<u8> {
    let mut nsids: Vec<Nsid> = around.namespaces().map(|(nsid, _)| nsid).collect();
    let change_count = record.ana.change_count(&nsids);
    if groups_only {
        nsids.clear();
    }
    let count = u32::try_from(nsids.len()).expect("no more than there are ids");
    let mut log = vec![0; usize::try_from(ana_log_bytes(1, count)).expect("a few KiB")];
    let mut writer = AnaLogWriter::new(&mut log, change_count).expect("sized for it");
    // The count of the group's changes is optional: 0 says that there is none.
    writer.group(ANA_GROUP, AnaState::OPTIMIZED, 0, nsids).expect("sized for it");
    let length = writer.finish();
    debug_assert_eq!(length, log.len());
    log
}

#[expect(clippy::indexing_slicing, reason = "one entry for each value of a byte")]
fn features() -> Vec<u8> {
    let mut log = FeaturesAndEffects::default();
    for feature in FEATURES {
        // Bit 0: supported.
        log.features[usize::from(feature.fid.raw())].set(1);
    }
    log.as_bytes().to_vec()
}

/// The log as of the host's last read from offset 0; a read from offset 0 takes a new one. wire §20
fn discovery(record: &mut ControllerRecord, around: &Surroundings<'_>, offset: u64) -> Arc<[u8]> {
    let kept = record.discovery_page.take().filter(|_| offset > 0).map(|(page, _)| page);
    let page = kept.unwrap_or_else(|| {
        let subsystems = around.catalog.subsystems.values();
        around.catalog.discovery.log(&record.host, &record.route, subsystems).into()
    });
    record.discovery_page = Some((Arc::clone(&page), around.now_ns));
    page
}
