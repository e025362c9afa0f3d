//! SMART / health (LID 02): traffic of all controllers of the subsystem since the target started, or of one namespace
//! since it was added. wire §11

use wire::log::health::HealthLog;
use zerocopy::IntoBytes;

use crate::admin::Surroundings;
use crate::controller::ControllerRecord;

const HOUR_NS: u64 = 3_600_000_000_000;

pub(super) fn page(record: &ControllerRecord, around: &Surroundings<'_>) -> Vec<u8> {
    let totals = around.traffic;
    let mut health = HealthLog::default();
    // Temperature, busy time and wear are unknown and stay zero.
    health.spare = 100;
    health.set_bytes_read(totals.read_bytes.into());
    health.set_bytes_written(totals.written_bytes.into());
    health.host_reads.set(totals.read_count.into());
    health.host_writes.set(totals.write_count.into());
    health.power_on_hours.set((around.now_ns.saturating_sub(around.boot_ns) / HOUR_NS).into());
    health.media_errors.set(totals.media_error_count.into());
    health.error_entries.set(record.errors.count().into());
    health.as_bytes().to_vec()
}
