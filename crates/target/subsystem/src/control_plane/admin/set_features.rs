//! Set Features. wire §12

use wire::async_event::AsyncEvents;
use wire::feature::{
    Arbitration, ErrorRecovery, Fid, HostBehavior, NumberOfQueues, PowerManagement, SetFeatures,
    TemperatureThreshold, Timestamp, VolatileWriteCache, WriteAtomicity,
};
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::FromBytes;

use super::get_features::check_namespace;
use super::{AdminOutcome, Surroundings, possible_events, reply_dw0};
use crate::objects::controller::ControllerRecord;
use crate::objects::controller::features::{FeatureKind, Features};

/// Executes a Set Features with its `data`.
pub(crate) fn execute(
    record: &mut ControllerRecord,
    around: &Surroundings<'_>,
    sqe: &Sqe,
    data: &[u8],
) -> AdminOutcome {
    let command = SetFeatures::from_sqe(sqe);
    let invalid = Status::INVALID_FIELD.with_dnr();
    let kind = FeatureKind::find(command.fid, record.key.kind).ok_or(invalid)?;
    if command.save {
        return Err(Status::FEATURE_NOT_SAVEABLE.with_dnr());
    }
    if !kind.is_per_namespace && sqe.nsid().is_one_namespace() {
        return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr());
    }
    let features = &mut record.features;
    match command.fid {
        Fid::ARBITRATION => features.arbitration = Arbitration::from_bits(command.value),
        Fid::POWER_MANAGEMENT => {
            let power = PowerManagement::from_bits(command.value);
            if power.state() != 0 {
                return Err(invalid);
            }
            features.power = PowerManagement::default().with_state(0);
        }
        Fid::TEMPERATURE_THRESHOLD => {
            let threshold = TemperatureThreshold::from_bits(command.value);
            *features.threshold_mut(threshold).ok_or(invalid)? = threshold.kelvin();
        }
        Fid::ERROR_RECOVERY => set_error_recovery(features, around, sqe.nsid(), command.value)?,
        Fid::VOLATILE_WRITE_CACHE => {
            if !VolatileWriteCache::from_bits(command.value).enabled() {
                return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr());
            }
        }
        Fid::INTERRUPT_COALESCING | Fid::INTERRUPT_VECTOR => {
            return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr());
        }
        Fid::NUMBER_OF_QUEUES => return set_queue_count(record, around, command.value),
        Fid::WRITE_ATOMICITY => features.write_atomicity = WriteAtomicity::from_bits(command.value & 1),
        Fid::ASYNC_EVENTS => {
            let events = AsyncEvents::from_bits_retain(command.value);
            if !(possible_events(record.key.kind) | AsyncEvents::SMART).contains(events) {
                return Err(invalid);
            }
            record.events.enable(events);
        }
        Fid::TIMESTAMP => {
            let bytes = exactly(data)?;
            features.clock.set(Timestamp::from_bits(u64::from_le_bytes(bytes)), around.now_ns);
        }
        // Rounded up to the value that Get Features then returns.
        Fid::KEEP_ALIVE => record.keep_alive.set_timeout(command.value, around.now_ns),
        Fid::HOST_BEHAVIOR => {
            let behavior = HostBehavior::read_from_bytes(data)
                .map_err(|_| Status::DATA_SGL_LENGTH_INVALID.with_dnr())?;
            if behavior.acre > 1 || behavior.etdas != 0 || behavior.lbafee != 0 {
                return Err(invalid);
            }
            features.host_behavior = HostBehavior::default();
            features.host_behavior.acre = behavior.acre;
        }
        // Over fabrics Connect sets it. wire §12
        Fid::HOST_ID => return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
        _ => return Err(invalid),
    }
    reply_dw0(0)
}

fn exactly<const N: usize>(data: &[u8]) -> Result<[u8; N], Status> {
    data.try_into().map_err(|_| Status::DATA_SGL_LENGTH_INVALID.with_dnr())
}

fn set_error_recovery(
    features: &mut Features,
    around: &Surroundings<'_>,
    nsid: Nsid,
    value: u32,
) -> Result<(), Status> {
    let recovery = ErrorRecovery::from_bits(value);
    // No namespace can tell that a block was deallocated.
    if recovery.dulbe() {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    if nsid == Nsid::ALL {
        let all = around.namespaces().map(|(nsid, _)| (nsid, recovery));
        features.error_recovery = all.collect();
        return Ok(());
    }
    check_namespace(around, nsid)?;
    features.error_recovery.insert(nsid, recovery);
    Ok(())
}

fn set_queue_count(record: &mut ControllerRecord, around: &Surroundings<'_>, value: u32) -> AdminOutcome {
    let wanted = NumberOfQueues::from_bits(value);
    if !wanted.is_valid() {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    if !record.io.is_empty() {
        return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    }
    let limit = around.limits.io_queue_count_max;
    let granted = u16::try_from(wanted.queue_pairs()).unwrap_or(limit).min(limit);
    record.features.queue_count = granted;
    reply_dw0(NumberOfQueues::pairs(granted.into()).bits())
}
