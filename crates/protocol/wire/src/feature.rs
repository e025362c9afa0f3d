//! Features: Get, Set and their values. wire §12

use crate::bits::zero_based16;
use crate::id::Nsid;
use crate::sqe::Sqe;

tables! {
    /// Feature identifier. wire §12
    pub codes Fid: u8 {
        0x01 ARBITRATION, "arbitration";
        0x02 POWER_MANAGEMENT, "power management";
        0x04 TEMPERATURE_THRESHOLD, "temperature threshold";
        0x05 ERROR_RECOVERY, "error recovery";
        0x06 VOLATILE_WRITE_CACHE, "volatile write cache";
        0x07 NUMBER_OF_QUEUES, "number of queues";
        0x08 INTERRUPT_COALESCING, "interrupt coalescing";
        0x09 INTERRUPT_VECTOR, "interrupt vector configuration";
        0x0A WRITE_ATOMICITY, "write atomicity";
        0x0B ASYNC_EVENTS, "asynchronous event configuration";
        0x0E TIMESTAMP, "timestamp";
        /// Its value is the timeout in milliseconds, 0 for none.
        0x0F KEEP_ALIVE, "keep-alive timer";
        0x16 HOST_BEHAVIOR, "host behavior support";
        0x19 COMMAND_SET_PROFILE, "I/O command set profile";
        0x20 KV_CONFIGURATION, "key value configuration";
        0x80 SOFTWARE_PROGRESS, "software progress marker";
        0x81 HOST_ID, "host identifier";
        0x82 RESERVATION_NOTIFICATION, "reservation notification mask";
        0x83 RESERVATION_PERSISTENCE, "reservation persistence";
        0x84 WRITE_PROTECT, "namespace write protect";
    }

    /// Which value of a feature is asked for. wire §12
    pub codes FeatureSelect: u8 {
        0 CURRENT, "current";
        1 DEFAULT, "default";
        2 SAVED, "saved";
        3 CAPABILITIES, "capabilities";
    }

    /// Fields of a Get Features. wire §12
    #[derive(Default)]
    pub command GetFeatures: AdminOpcode::GET_FEATURES {
        cdw10 [7:0] fid: Fid, "Feature asked for.";
        cdw10 [10:8] select: FeatureSelect, "Which of its values.";
        cdw11 [31:0] value: u32, "Dword 11, whose meaning depends on the feature.";
    }

    /// Fields of a Set Features. wire §12
    #[derive(Default)]
    pub command SetFeatures: AdminOpcode::SET_FEATURES {
        cdw10 [7:0] fid: Fid, "Feature to set.";
        cdw10 [31] save: bool, "Keep the value over power cycles.";
        cdw11 [31:0] value: u32, "Dword 11: the value, or part of it, depending on the feature.";
    }
}

impl Sqe {
    /// Reads the current value of a feature.
    #[must_use]
    pub fn get_feature(fid: Fid, nsid: Nsid) -> Self {
        GetFeatures { fid, ..GetFeatures::default() }.to_sqe(nsid)
    }

    /// Sets a feature; `value` is the bits of its type below.
    #[must_use]
    pub fn set_feature(fid: Fid, nsid: Nsid, value: u32) -> Self {
        SetFeatures { fid, save: false, value }.to_sqe(nsid)
    }
}

tables! {
    /// Arbitration (0x01). wire §12
    pub bits Arbitration: u32 {
        [2:0] burst, with_burst: u8, "Burst, as the wire has it.";
        [15:8] low, with_low: u8, "Weight of low priority, as the wire has it.";
        [23:16] medium, with_medium: u8, "Weight of medium priority, as the wire has it.";
        [31:24] high, with_high: u8, "Weight of high priority, as the wire has it.";
    }

    /// Power management (0x02). wire §12
    pub bits PowerManagement: u32 {
        [4:0] state, with_state: u8, "Power state.";
    }

    /// Temperature threshold (0x04). wire §12
    pub bits TemperatureThreshold: u32 {
        [15:0] kelvin, with_kelvin: u16, "Threshold, kelvin.";
        [19:16] sensor, with_sensor: u8, "Sensor.";
        [21:20] kind, with_kind: u8, "Type, as the wire has it.";
    }

    /// Error recovery (0x05). wire §12
    pub bits ErrorRecovery: u32 {
        [15:0] tler, with_tler: u16, "Time limited error recovery, as the wire has it.";
        [16] dulbe, with_dulbe: bool, "Reading deallocated blocks is an error.";
    }

    /// Volatile write cache (0x06). wire §12
    pub bits VolatileWriteCache: u32 {
        [0] enabled, with_enabled: bool, "The cache is on.";
    }

    /// Number of queues (0x07), asked for in dword 11 and granted in the result. wire §12
    pub bits NumberOfQueues: u32 {
        [15:0] nsq, with_nsq: u16, "Submission queues, 0-based; see [`NumberOfQueues::submission_queues`].";
        [31:16] ncq, with_ncq: u16, "Completion queues, 0-based; see [`NumberOfQueues::completion_queues`].";
    }
}

impl NumberOfQueues {
    /// As many queue pairs, clamped to 1..=65535.
    #[must_use]
    pub const fn pairs(count: u32) -> Self {
        let field = zero_based16(if count > 0xFFFF { 0xFFFF } else { count });
        Self::from_bits(0).with_nsq(field).with_ncq(field)
    }

    /// Submission queues, 1..=65536.
    #[must_use]
    pub const fn submission_queues(self) -> u32 {
        (self.nsq() as u32).saturating_add(1)
    }

    /// Completion queues, 1..=65536.
    #[must_use]
    pub const fn completion_queues(self) -> u32 {
        (self.ncq() as u32).saturating_add(1)
    }

    /// Queue pairs: the lesser of the two.
    #[must_use]
    pub const fn queue_pairs(self) -> u32 {
        let (submission, completion) = (self.submission_queues(), self.completion_queues());
        if submission < completion { submission } else { completion }
    }

    /// Whether both fields are valid: 65536 is not.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.nsq() != 0xFFFF && self.ncq() != 0xFFFF
    }
}

tables! {
    /// Interrupt vector configuration (0x09). wire §12
    pub bits InterruptVector: u32 {
        [15:0] vector, with_vector: u16, "The vector.";
        [16] coalescing_disable, with_coalescing_disable: bool, "Its interrupts are not coalesced.";
    }

    /// Write atomicity (0x0A). wire §12
    pub bits WriteAtomicity: u32 {
        [0] disable_normal, with_disable_normal: bool, "Normal atomicity is off.";
    }

    /// Timestamp (0x0E): the 8 bytes of data, little-endian. wire §12
    pub bits Timestamp: u64 {
        [47:0] milliseconds, with_milliseconds: u64, "Milliseconds since the beginning of 1970.";
        [50:48] origin, with_origin: u8, "Where it comes from, as the wire has it.";
    }

    /// Host behavior support (0x16): the data. wire §12
    pub structure HostBehavior: 512 {
        0 pub acre: u8, "The host honours retry delays.";
        1 pub etdas: u8, "Extended telemetry data area.";
        2 pub lbafee: u8, "Extended LBA formats.";
        3 reserved_3: [u8; 509];
    }
}

default_zeroed! { HostBehavior }

tables! {
    /// I/O command set profile (0x19). wire §12
    pub bits CommandSetProfile: u32 {
        [8:0] index, with_index: u16, "Index into the vectors of Identify CNS 1C.";
    }

    /// Key value configuration (0x20), per namespace. wire §12, wire §23
    pub bits KvConfiguration: u32 {
        [0] ednek, with_ednek: bool, "Deleting a key that does not exist is an error.";
    }

    /// Host identifier (0x81). wire §12
    pub bits HostIdentifier: u32 {
        [0] exhid, with_exhid: bool, "16 bytes rather than 8; the only size over fabrics.";
    }

    /// Reservation notification mask (0x82) of a namespace: the notifications that are not sent. wire §12
    pub flags ReservationMask: u32 {
        [1] REGISTRATION_PREEMPTED, "Registration preempted.";
        [2] RELEASED, "Reservation released.";
        [3] PREEMPTED, "Reservation preempted.";
    }

    /// Reservation persistence (0x83), per namespace. wire §12
    pub bits ReservationPersistence: u32 {
        [0] ptpl, with_ptpl: bool, "Persist through power loss.";
    }

    /// Write protection of a namespace. wire §12
    pub codes WriteProtection: u8 {
        0 NONE, "not protected";
        1 PROTECTED, "protected";
        2 UNTIL_POWER_CYCLE, "protected until the next power cycle";
        3 PERMANENT, "protected for ever";
    }

    /// Namespace write protect (0x84), per namespace. wire §12
    pub bits WriteProtect: u32 {
        [2:0] state, with_state: WriteProtection, "State.";
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::async_event::AsyncEvents;

    #[test]
    fn setting_a_feature_has_the_bytes_of_the_reference() {
        let sqe = Sqe::set_feature(Fid::NUMBER_OF_QUEUES, Nsid::NONE, NumberOfQueues::pairs(0x0102).bits());
        let mut expected = [0; 64];
        (expected[0], expected[1], expected[39]) = (0x09, 0x40, 0x5A);
        expected[40..48].copy_from_slice(&[0x07, 0, 0, 0, 0x01, 0x01, 0x01, 0x01]);
        assert_eq!(sqe.as_bytes(), expected);

        let events = AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::DISCOVERY;
        let sqe = Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, events.bits());
        assert_eq!(sqe.as_bytes()[40..48], [0x0B, 0, 0, 0, 0, 1, 0, 0x80]);
        let command = SetFeatures { fid: Fid::WRITE_PROTECT, save: true, value: 1 };
        assert_eq!(command.to_sqe(Nsid::new(3)).as_bytes()[40..48], [0x84, 0, 0, 0x80, 1, 0, 0, 0]);
    }

    #[test]
    fn getting_a_feature_has_the_bytes_of_the_reference() {
        let sqe = Sqe::get_feature(Fid::KEEP_ALIVE, Nsid::NONE);
        let mut expected = [0; 64];
        (expected[0], expected[1], expected[39], expected[40]) = (0x0A, 0x40, 0x5A, 0x0F);
        assert_eq!(sqe.as_bytes(), expected);
        let exhid = HostIdentifier::default().with_exhid(true).bits();
        let command = GetFeatures { fid: Fid::HOST_ID, select: FeatureSelect::SAVED, value: exhid };
        assert_eq!(command.to_sqe(Nsid::NONE).as_bytes()[40..48], [0x81, 2, 0, 0, 1, 0, 0, 0]);
    }

    /// wire §12
    #[test]
    fn values_have_the_bits_of_the_table() {
        let arbitration = Arbitration::default().with_burst(7).with_low(1).with_medium(2).with_high(3);
        assert_eq!(arbitration.bits(), 0x0302_0107);
        let threshold = TemperatureThreshold::default().with_kelvin(343).with_sensor(2).with_kind(1);
        assert_eq!(threshold.bits(), 0x0012_0157);
        assert_eq!(ErrorRecovery::default().with_tler(2).with_dulbe(true).bits(), 0x0001_0002);
        assert_eq!(Timestamp::default().with_milliseconds(1).with_origin(1).bits(), 1 << 48 | 1);
        assert_eq!(ReservationMask::all().bits(), 0b1110);
        assert_eq!(CommandSetProfile::default().with_index(0x1FF).bits(), 0x1FF);
        let state = WriteProtection::PERMANENT;
        assert_eq!(WriteProtect::default().with_state(state).bits(), 3);
    }

    #[test]
    fn queues_are_counted_from_one() {
        assert_eq!(NumberOfQueues::from_bits(0x0003_0001).queue_pairs(), 2);
        assert_eq!(NumberOfQueues::from_bits(0x0001_0003).queue_pairs(), 2);
        assert_eq!(NumberOfQueues::pairs(0), NumberOfQueues::pairs(1));
        assert_eq!(NumberOfQueues::pairs(65_536).queue_pairs(), 65_535);
        assert!(NumberOfQueues::pairs(u32::MAX).is_valid());
        assert!(!NumberOfQueues::from_bits(0x0000_FFFF).is_valid());
        assert!(!NumberOfQueues::from_bits(0xFFFF_0000).is_valid());
        assert_eq!(NumberOfQueues::from_bits(u32::MAX).queue_pairs(), 65_536);
    }

    #[test]
    fn host_behavior_lies_in_its_first_bytes() {
        let behavior = HostBehavior { acre: 1, ..HostBehavior::default() };
        assert_eq!(behavior.as_bytes()[..4], [1, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn commands_give_back_what_they_were_made_of(
            fid: u8, select in 0u8..8, save: bool, value: u32, nsid: u32, pairs in 1u32..65_536,
        ) {
            let fid = Fid::from_raw(fid);
            let get = GetFeatures { fid, select: FeatureSelect::from_raw(select), value };
            prop_assert_eq!(GetFeatures::from_sqe(&get.to_sqe(Nsid::new(nsid))), get);
            let set = SetFeatures { fid, save, value };
            prop_assert_eq!(SetFeatures::from_sqe(&set.to_sqe(Nsid::new(nsid))), set);
            prop_assert_eq!(NumberOfQueues::pairs(pairs).queue_pairs(), pairs);
        }
    }
}
