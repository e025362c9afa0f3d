//! Identify controller (CNS 01). wire §10.1

use proto::async_events::REQUEST_COUNT_MAX;
use proto::keep_alive::GRANULARITY_MS;
use wire::identify::capabilities::{
    Anacap, Cmic, ControllerType, Ctratt, DiscoveryControllerType, Frmw, Fuses, Lpa, Ocfs, Oncs, Vwc,
};
use wire::identify::controller::IdentifyController;
use zerocopy::IntoBytes;

use super::{ANA_GROUP, FLUSH_ALL, firmware};
use crate::control_plane::admin::{Surroundings, possible_events};
use crate::names::identity;
use crate::names::limits::VERSION;
use crate::objects::controller::{ControllerKind, ControllerRecord};
use crate::objects::subsystem::Subsystem;

/// Maximum duration of a shutdown, microseconds: hosts wait this long for the flush.
const SHUTDOWN_US: u32 = 30_000_000;

/// Maximum ANA transition time, seconds. No group ever changes, but Linux requires a nonzero value.
const ANA_CHANGE_SECONDS: u8 = 10;

/// Model of the discovery service.
const DISCOVERY_MODEL: &str = "nvlane discovery";

#[expect(clippy::expect_used, reason = "texts and limits of the configuration, which has checked them")]
pub(super) fn identify(record: &ControllerRecord, around: &Surroundings<'_>) -> Vec<u8> {
    let limits = around.limits;
    let mut controller = IdentifyController::fabrics();
    let (serial, model) = match around.subsystem {
        Some(subsystem) => (subsystem.serial.clone(), subsystem.model.as_str()),
        // Every discovery service has a unique name, derived from the machine and its first listener.
        None => (identity::discovery_serial(&around.catalog.discovery.nqn), DISCOVERY_MODEL),
    };
    controller.set_serial(&serial).expect("checked with the configuration");
    controller.set_model(model).expect("checked with the configuration");
    controller.set_firmware(firmware()).expect("at most 8 characters");
    // Values cannot be transferred in parts: with keys and values alone, each format's own limit applies.
    let is_limited = !around.subsystem.is_some_and(Subsystem::has_key_value_only);
    let transfer_bytes_max = is_limited.then_some(limits.transfer_bytes_max.into());
    controller.set_transfer_limit_bytes(transfer_bytes_max, limits.cap().page_bytes_min());
    controller.set_cntlid(record.key.cntlid);
    controller.set_version(VERSION);
    controller.rtd3e.set(SHUTDOWN_US);
    controller.set_oaes(possible_events(record.key.kind));
    controller.set_ctratt(Ctratt::HOST_ID_128 | Ctratt::TBKAS);
    controller.set_abort_limit(limits.abort_count_max);
    controller.set_aer_limit(u16::try_from(REQUEST_COUNT_MAX).expect("a handful"));
    controller.frmw = Frmw::default().with_slot1_read_only(true).with_slots(1);
    controller.set_error_log_entries(limits.error_entry_count_max);
    controller.set_power_states(1);
    controller.set_keep_alive_granularity_ms(GRANULARITY_MS);
    controller.maxcmd.set(limits.queue_entries_max);
    controller.set_subsystem(&record.subnqn);
    controller.cmic = Cmic::MULTIPLE_PORTS | Cmic::MULTIPLE_CONTROLLERS;
    controller.lpa = Lpa::EXTENDED_DATA | Lpa::SUPPORTED_PAGES;
    if around.subsystem.is_some() {
        controller.lpa |= Lpa::SMART_PER_NAMESPACE;
    }
    match record.key.kind {
        ControllerKind::Io(_) => {
            controller.set_in_capsule_bytes(record.in_capsule_bytes);
            io(&mut controller, around);
        }
        ControllerKind::Discovery => {
            controller.cntrltype = ControllerType::DISCOVERY;
            controller.dctype = DiscoveryControllerType::DIRECT;
        }
    }
    controller.as_bytes().to_vec()
}

/// Fields that only a controller with namespaces has.
fn io(controller: &mut IdentifyController, around: &Surroundings<'_>) {
    let limits = around.limits;
    controller.cntrltype = ControllerType::IO;
    controller.cmic |= Cmic::ANA;
    controller.lpa |= Lpa::COMMANDS_AND_EFFECTS;
    controller.anatt = ANA_CHANGE_SECONDS;
    controller.anacap = Anacap::OPTIMIZED | Anacap::GROUP_FIXED;
    controller.anagrpmax.set(ANA_GROUP);
    controller.nanagrpid.set(ANA_GROUP);
    controller.nn.set(limits.nsid_max);
    controller.mnan.set(limits.nsid_max);
    controller.set_oncs(
        Oncs::COMPARE
            | Oncs::DATASET_MANAGEMENT
            | Oncs::WRITE_ZEROES
            | Oncs::SAVE_AND_SELECT
            | Oncs::TIMESTAMP
            | Oncs::VERIFY
            | Oncs::COPY,
    );
    // Pairs keep out the writers of this target only.
    if !around.subsystem.is_some_and(Subsystem::has_other_writers) {
        controller.set_fuses(Fuses::COMPARE_AND_WRITE);
        controller.set_atomic_compare_write_blocks(limits.compare_and_write_blocks_max);
    }
    // A namespace with a volatile write cache may be added later, and Linux asks only once: without this bit it sends
    // no Flush and no FUA.
    controller.vwc = Vwc::default().with_present(true).with_flush_all(FLUSH_ALL);
    controller.set_ocfs(Ocfs::FORMAT_0);
}
