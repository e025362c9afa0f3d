//! SMART / health (LID 02): traffic of all controllers of the subsystem since the target started, or of one namespace
//! since it was added; and whether the storage has space, and can be written. wire §11

use store::SPARE_PERCENT_MIN;
use wire::id::Nsid;
use wire::log::health::HealthLog;
use zerocopy::IntoBytes;

use crate::control_plane::admin::Surroundings;
use crate::objects::controller::ControllerRecord;

const HOUR_NS: u64 = 3_600_000_000_000;

/// Bits of the critical warning. wire §11
const SPARE: u8 = 1 << 0;
const READ_ONLY: u8 = 1 << 3;

/// The page of one namespace, or of all that the host sees.
pub(super) fn page(record: &ControllerRecord, around: &Surroundings<'_>, nsid: Nsid) -> Vec<u8> {
    let totals = around.traffic;
    let mut health = HealthLog::default();
    // Temperature, busy time and wear are unknown and stay zero.
    let (mut has_lack, mut protected_count, mut count) = (false, 0_usize, 0_usize);
    health.spare = 100;
    health.spare_threshold = SPARE_PERCENT_MIN;
    for (_, namespace) in around.namespaces().filter(|(known, _)| !nsid.is_one_namespace() || *known == nsid)
    {
        let of_storage = namespace.store.health();
        health.spare = health.spare.min(of_storage.spare_percent);
        has_lack |= of_storage.lacks_space();
        protected_count = protected_count.saturating_add(of_storage.is_write_protected.into());
        count = count.saturating_add(1);
    }
    if has_lack {
        health.critical_warning |= SPARE;
    }
    if count > 0 && protected_count == count {
        health.critical_warning |= READ_ONLY;
    }
    health.set_bytes_read(totals.read_bytes.into());
    health.set_bytes_written(totals.written_bytes.into());
    health.host_reads.set(totals.read_count.into());
    health.host_writes.set(totals.write_count.into());
    health.power_on_hours.set((around.now_ns.saturating_sub(around.boot_ns) / HOUR_NS).into());
    health.media_errors.set(totals.media_error_count.into());
    health.error_entries.set(record.errors.count().into());
    health.as_bytes().to_vec()
}
