//! Get Features. wire §12

use wire::async_event::AsyncEvents;
use wire::feature::{
    FeatureSelect, Fid, GetFeatures, HostIdentifier, InterruptVector, NumberOfQueues, TemperatureThreshold,
};
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use super::{AdminOutcome, Surroundings, reply_dw0, reply_with};
use crate::objects::controller::features::{FeatureKind, Features};
use crate::objects::controller::{ControllerKind, ControllerRecord};

/// Answers a Get Features.
pub(crate) fn execute(record: &ControllerRecord, around: &Surroundings<'_>, sqe: &Sqe) -> AdminOutcome {
    let command = GetFeatures::from_sqe(sqe);
    let kind = FeatureKind::find(command.fid, record.key.kind).ok_or(Status::INVALID_FIELD.with_dnr())?;
    // Without a namespace, or for all namespaces, return the default: tools given a controller ask this way. wire §12
    if kind.is_per_namespace && ![Nsid::NONE, Nsid::ALL].contains(&sqe.nsid()) {
        check_namespace(around, sqe.nsid())?;
    }
    // Discovery controllers do not announce support for Select.
    let select = match record.key.kind {
        ControllerKind::Io(_) => command.select,
        ControllerKind::Discovery => FeatureSelect::CURRENT,
    };
    match select {
        FeatureSelect::CURRENT => {
            let values = Values {
                features: &record.features,
                events: record.events.enabled(),
                keep_alive_ms: record.keep_alive.timeout_ms(),
            };
            values.answer(record, around, sqe, &command)
        }
        // No feature can be saved, so the saved value is the default.
        FeatureSelect::DEFAULT | FeatureSelect::SAVED => {
            let features = Features::new(around.limits.io_queue_count_max, around.now_ns);
            let values = Values { features: &features, events: AsyncEvents::empty(), keep_alive_ms: 0 };
            values.answer(record, around, sqe, &command)
        }
        FeatureSelect::CAPABILITIES => reply_dw0(kind.capabilities()),
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}

/// Values of all features: those in use, or the defaults.
struct Values<'a> {
    features: &'a Features,
    events: AsyncEvents,
    keep_alive_ms: u32,
}

impl Values<'_> {
    fn answer(
        &self,
        record: &ControllerRecord,
        around: &Surroundings<'_>,
        sqe: &Sqe,
        command: &GetFeatures,
    ) -> AdminOutcome {
        match command.fid {
            Fid::ARBITRATION => reply_dw0(self.features.arbitration.bits()),
            Fid::POWER_MANAGEMENT => reply_dw0(self.features.power.bits()),
            Fid::TEMPERATURE_THRESHOLD => {
                let named = TemperatureThreshold::from_bits(command.value);
                let kelvin = self.features.threshold(named).ok_or(Status::INVALID_FIELD.with_dnr())?;
                reply_dw0(kelvin.into())
            }
            Fid::ERROR_RECOVERY => {
                reply_dw0(self.features.error_recovery.get(&sqe.nsid()).map_or(0, |recovery| recovery.bits()))
            }
            Fid::VOLATILE_WRITE_CACHE => reply_dw0(Features::volatile_write_cache().bits()),
            Fid::NUMBER_OF_QUEUES => {
                reply_dw0(NumberOfQueues::pairs(self.features.queue_count.into()).bits())
            }
            Fid::INTERRUPT_COALESCING => reply_dw0(0),
            Fid::INTERRUPT_VECTOR => {
                let vector = InterruptVector::from_bits(command.value).vector();
                reply_dw0(InterruptVector::default().with_vector(vector).bits())
            }
            Fid::WRITE_ATOMICITY => reply_dw0(self.features.write_atomicity.bits()),
            Fid::ASYNC_EVENTS => reply_dw0(self.events.bits()),
            Fid::TIMESTAMP => {
                reply_with(sqe, self.features.clock.timestamp(around.now_ns).bits().to_le_bytes().to_vec())
            }
            Fid::KEEP_ALIVE => reply_dw0(self.keep_alive_ms),
            Fid::HOST_BEHAVIOR => reply_with(sqe, self.features.host_behavior.as_bytes().to_vec()),
            Fid::HOST_ID if HostIdentifier::from_bits(command.value).exhid() => {
                reply_with(sqe, record.hostid.to_bytes().to_vec())
            }
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }
}

/// Whether a namespace-specific feature can be queried for this namespace.
pub(super) fn check_namespace(around: &Surroundings<'_>, nsid: Nsid) -> Result<(), Status> {
    match around.namespace(nsid) {
        Some(_) => Ok(()),
        None => Err(Status::INVALID_NAMESPACE.with_dnr()),
    }
}
