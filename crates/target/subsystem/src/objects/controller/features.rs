//! Features of a controller: their set, capabilities and values. wire §12

use std::collections::BTreeMap;

use wire::feature::{
    Arbitration, ErrorRecovery, Fid, HostBehavior, PowerManagement, TemperatureThreshold, Timestamp,
    VolatileWriteCache, WriteAtomicity,
};
use wire::id::Nsid;

use super::ControllerKind;

/// The capabilities of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeatureKind {
    pub(crate) fid: Fid,
    /// It has a value per namespace.
    pub(crate) is_per_namespace: bool,
    /// Its value can be set to another.
    pub(crate) is_changeable: bool,
    /// Discovery controllers have it too.
    pub(crate) is_for_discovery: bool,
}

const fn kind(fid: Fid) -> FeatureKind {
    FeatureKind { fid, is_per_namespace: false, is_changeable: true, is_for_discovery: false }
}

/// The supported features, in ascending order. None can be saved: values that a host sets end with its association.
pub(crate) const FEATURES: &[FeatureKind] = &[
    kind(Fid::ARBITRATION),
    kind(Fid::POWER_MANAGEMENT),
    kind(Fid::TEMPERATURE_THRESHOLD),
    FeatureKind { is_per_namespace: true, ..kind(Fid::ERROR_RECOVERY) },
    // Backends have fixed caches: a host can rely on Flush and FUA, but cannot switch the cache off.
    FeatureKind { is_changeable: false, ..kind(Fid::VOLATILE_WRITE_CACHE) },
    kind(Fid::NUMBER_OF_QUEUES),
    // There are no interrupts, but hosts that know PCIe controllers ask.
    FeatureKind { is_changeable: false, ..kind(Fid::INTERRUPT_COALESCING) },
    FeatureKind { is_changeable: false, ..kind(Fid::INTERRUPT_VECTOR) },
    kind(Fid::WRITE_ATOMICITY),
    FeatureKind { is_for_discovery: true, ..kind(Fid::ASYNC_EVENTS) },
    kind(Fid::TIMESTAMP),
    FeatureKind { is_for_discovery: true, ..kind(Fid::KEEP_ALIVE) },
    kind(Fid::HOST_BEHAVIOR),
    FeatureKind { is_changeable: false, ..kind(Fid::HOST_ID) },
];

impl FeatureKind {
    /// The feature, if controllers of this kind have it.
    pub(crate) fn find(fid: Fid, controller: ControllerKind) -> Option<&'static Self> {
        let is_discovery = controller == ControllerKind::Discovery;
        FEATURES.iter().find(|kind| kind.fid == fid && (kind.is_for_discovery || !is_discovery))
    }

    /// The answer of Get Features to "capabilities": bit 0 saveable, bit 1 per namespace, bit 2 changeable.
    pub(crate) fn capabilities(&self) -> u32 {
        u32::from(self.is_per_namespace) << 1 | u32::from(self.is_changeable) << 2
    }
}

/// Values of a controller's features, but for those that live where they act: events, keep-alive, host identifier.
#[derive(Clone, Debug)]
pub struct Features {
    /// Arbitration.
    pub arbitration: Arbitration,
    /// Power state: the only one.
    pub power: PowerManagement,
    /// Thresholds of the composite temperature, kelvin, by type: over, under.
    pub temperature_kelvin: [u16; 2],
    /// Error recovery of namespaces where it is not the default.
    pub error_recovery: BTreeMap<Nsid, ErrorRecovery>,
    /// I/O queues granted.
    pub queue_count: u16,
    /// Write atomicity.
    pub write_atomicity: WriteAtomicity,
    /// The timestamp.
    pub clock: TimestampClock,
    /// Features supported by the host.
    pub host_behavior: HostBehavior,
}

/// A timestamp that advances from the value it was set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampClock {
    base_ms: u64,
    base_ns: u64,
    is_set: bool,
}

/// The origin "set by the host" as the wire has it, and the 48 bits of the count.
const ORIGIN_SET: u8 = 0b010;
const TIMESTAMP_MASK: u64 = (1 << 48) - 1;

impl TimestampClock {
    /// A clock that counts from zero, as after a reset.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        Self { base_ms: 0, base_ns: now_ns, is_set: false }
    }

    /// Sets the timestamp to the host's value.
    pub fn set(&mut self, timestamp: Timestamp, now_ns: u64) {
        *self = Self { base_ms: timestamp.milliseconds(), base_ns: now_ns, is_set: true };
    }

    /// The current timestamp.
    #[must_use]
    pub fn timestamp(&self, now_ns: u64) -> Timestamp {
        let elapsed_ms = now_ns.saturating_sub(self.base_ns) / 1_000_000;
        Timestamp::default()
            .with_milliseconds(self.base_ms.wrapping_add(elapsed_ms) & TIMESTAMP_MASK)
            .with_origin(if self.is_set { ORIGIN_SET } else { 0 })
    }
}

impl Features {
    /// The defaults, which hold after Connect and after each reset.
    #[must_use]
    pub fn new(queue_count: u16, now_ns: u64) -> Self {
        Self {
            arbitration: Arbitration::default(),
            power: PowerManagement::default(),
            temperature_kelvin: [u16::MAX, 0],
            error_recovery: BTreeMap::new(),
            queue_count,
            write_atomicity: WriteAtomicity::default(),
            clock: TimestampClock::new(now_ns),
            host_behavior: HostBehavior::default(),
        }
    }

    /// The threshold that a command's dword 11 names; `None` for unknown sensors and types.
    pub(crate) fn threshold(&self, named: TemperatureThreshold) -> Option<u16> {
        let of_controller = self.temperature_kelvin.get(usize::from(named.kind())).copied();
        of_controller.filter(|_| named.sensor() == 0)
    }

    /// The same threshold, to be set.
    pub(crate) fn threshold_mut(&mut self, named: TemperatureThreshold) -> Option<&mut u16> {
        let of_controller = self.temperature_kelvin.get_mut(usize::from(named.kind()));
        of_controller.filter(|_| named.sensor() == 0)
    }

    /// The volatile write cache is always on.
    pub(crate) fn volatile_write_cache() -> VolatileWriteCache {
        VolatileWriteCache::default().with_enabled(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::subsystem::SubsystemId;

    #[test]
    fn a_timestamp_goes_on_from_where_it_was_set() {
        let mut clock = TimestampClock::new(1_000_000_000);
        assert_eq!(clock.timestamp(3_000_000_000).bits(), 2000);
        clock.set(Timestamp::default().with_milliseconds(TIMESTAMP_MASK - 1), 4_000_000_000);
        let wrapped = clock.timestamp(4_010_000_000);
        assert_eq!((wrapped.milliseconds(), wrapped.origin()), (8, ORIGIN_SET));
        assert_eq!(clock.timestamp(0).milliseconds(), TIMESTAMP_MASK - 1, "time never runs backwards");
    }

    /// wire §10.1
    #[test]
    fn discovery_controllers_have_two_features() {
        let of = |kind| {
            FEATURES
                .iter()
                .map(|feature| feature.fid)
                .filter(move |fid| FeatureKind::find(*fid, kind).is_some())
        };
        assert_eq!(of(ControllerKind::Discovery).collect::<Vec<_>>(), [Fid::ASYNC_EVENTS, Fid::KEEP_ALIVE]);
        assert_eq!(of(ControllerKind::Io(SubsystemId(1))).count(), FEATURES.len());
    }

    #[test]
    fn capabilities_say_what_is_per_namespace_and_changeable() {
        let io = ControllerKind::Io(SubsystemId(1));
        let of = |fid| FeatureKind::find(fid, io).map(FeatureKind::capabilities);
        assert_eq!(of(Fid::ARBITRATION), Some(0b100));
        assert_eq!(of(Fid::ERROR_RECOVERY), Some(0b110));
        assert_eq!(of(Fid::VOLATILE_WRITE_CACHE), Some(0));
        assert_eq!(of(Fid::SOFTWARE_PROGRESS), None);
    }
}
