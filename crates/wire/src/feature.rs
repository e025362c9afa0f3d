//! Features: Get, Set and their values. wire §12

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::zero_based16;
use crate::id::Nsid;
use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;

codes! {
    /// Feature identifier. wire §12
    pub struct Fid: u8 {
        ARBITRATION = 0x01, "arbitration";
        POWER_MANAGEMENT = 0x02, "power management";
        TEMPERATURE_THRESHOLD = 0x04, "temperature threshold";
        ERROR_RECOVERY = 0x05, "error recovery";
        VOLATILE_WRITE_CACHE = 0x06, "volatile write cache";
        NUMBER_OF_QUEUES = 0x07, "number of queues";
        INTERRUPT_COALESCING = 0x08, "interrupt coalescing";
        INTERRUPT_VECTOR = 0x09, "interrupt vector configuration";
        WRITE_ATOMICITY = 0x0A, "write atomicity";
        ASYNC_EVENTS = 0x0B, "asynchronous event configuration";
        TIMESTAMP = 0x0E, "timestamp";
        /// Its value is the timeout in milliseconds, 0 for none.
        KEEP_ALIVE = 0x0F, "keep-alive timer";
        HOST_BEHAVIOR = 0x16, "host behavior support";
        COMMAND_SET_PROFILE = 0x19, "I/O command set profile";
        KV_CONFIGURATION = 0x20, "key value configuration";
        SOFTWARE_PROGRESS = 0x80, "software progress marker";
        HOST_ID = 0x81, "host identifier";
        RESERVATION_NOTIFICATION = 0x82, "reservation notification mask";
        RESERVATION_PERSISTENCE = 0x83, "reservation persistence";
        WRITE_PROTECT = 0x84, "namespace write protect";
    }
}

codes! {
    /// Which value of a feature is asked for. wire §12
    pub struct FeatureSelect: u8 {
        CURRENT = 0, "current";
        DEFAULT = 1, "default";
        SAVED = 2, "saved";
        CAPABILITIES = 3, "capabilities";
    }
}

bit_fields! {
    /// Dword 10 of Get Features. wire §12
    struct GetDword: u32 {
        fid, with_fid: Fid [7:0];
        select, with_select: FeatureSelect [10:8];
    }
}

bit_fields! {
    /// Dword 10 of Set Features. wire §12
    struct SetDword: u32 {
        fid, with_fid: Fid [7:0];
        save, with_save: bool [31];
    }
}

/// Fields of a Get Features. wire §12
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetFeatures {
    /// Feature asked for.
    pub fid: Fid,
    /// Which of its values.
    pub select: FeatureSelect,
    /// Dword 11, whose meaning depends on the feature.
    pub value: u32,
}

impl GetFeatures {
    /// Reads the fields of a Get Features.
    #[must_use]
    pub const fn from_sqe(sqe: &Sqe) -> Self {
        let dword = GetDword::from_bits(sqe.cdw10.get());
        Self { fid: dword.fid(), select: dword.select(), value: sqe.cdw11.get() }
    }

    /// A Get Features with these fields; the data pointer, if the feature has data, is left to the caller.
    #[must_use]
    pub fn to_sqe(&self, nsid: Nsid) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::GET_FEATURES.raw(), nsid);
        sqe.cdw10.set(GetDword::default().with_fid(self.fid).with_select(self.select).bits());
        sqe.cdw11.set(self.value);
        sqe
    }
}

/// Fields of a Set Features. wire §12
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFeatures {
    /// Feature to set.
    pub fid: Fid,
    /// Keep the value over power cycles.
    pub save: bool,
    /// Dword 11: the value, or part of it, depending on the feature.
    pub value: u32,
}

impl SetFeatures {
    /// Reads the fields of a Set Features.
    #[must_use]
    pub const fn from_sqe(sqe: &Sqe) -> Self {
        let dword = SetDword::from_bits(sqe.cdw10.get());
        Self { fid: dword.fid(), save: dword.save(), value: sqe.cdw11.get() }
    }

    /// A Set Features with these fields; the data pointer, if the feature has data, is left to the caller.
    #[must_use]
    pub fn to_sqe(&self, nsid: Nsid) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::SET_FEATURES.raw(), nsid);
        sqe.cdw10.set(SetDword::default().with_fid(self.fid).with_save(self.save).bits());
        sqe.cdw11.set(self.value);
        sqe
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

bit_fields! {
    /// Arbitration (0x01). wire §12
    pub struct Arbitration: u32 {
        /// Burst, as the wire has it.
        burst, with_burst: u8 [2:0];
        /// Weight of low priority, as the wire has it.
        low, with_low: u8 [15:8];
        /// Weight of medium priority, as the wire has it.
        medium, with_medium: u8 [23:16];
        /// Weight of high priority, as the wire has it.
        high, with_high: u8 [31:24];
    }
}

bit_fields! {
    /// Power management (0x02). wire §12
    pub struct PowerManagement: u32 {
        /// Power state.
        state, with_state: u8 [4:0];
    }
}

bit_fields! {
    /// Temperature threshold (0x04). wire §12
    pub struct TemperatureThreshold: u32 {
        /// Threshold, kelvin.
        kelvin, with_kelvin: u16 [15:0];
        /// Sensor.
        sensor, with_sensor: u8 [19:16];
        /// Type, as the wire has it.
        kind, with_kind: u8 [21:20];
    }
}

bit_fields! {
    /// Error recovery (0x05). wire §12
    pub struct ErrorRecovery: u32 {
        /// Time limited error recovery, as the wire has it.
        tler, with_tler: u16 [15:0];
        /// Reading deallocated blocks is an error.
        dulbe, with_dulbe: bool [16];
    }
}

bit_fields! {
    /// Volatile write cache (0x06). wire §12
    pub struct VolatileWriteCache: u32 {
        /// The cache is on.
        enabled, with_enabled: bool [0];
    }
}

bit_fields! {
    /// Number of queues (0x07), asked for in dword 11 and granted in the result. wire §12
    pub struct NumberOfQueues: u32 {
        /// Submission queues, 0-based; see [`NumberOfQueues::submission_queues`].
        nsq, with_nsq: u16 [15:0];
        /// Completion queues, 0-based; see [`NumberOfQueues::completion_queues`].
        ncq, with_ncq: u16 [31:16];
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

bit_fields! {
    /// Interrupt vector configuration (0x09). wire §12
    pub struct InterruptVector: u32 {
        /// The vector.
        vector, with_vector: u16 [15:0];
        /// Its interrupts are not coalesced.
        coalescing_disable, with_coalescing_disable: bool [16];
    }
}

bit_fields! {
    /// Write atomicity (0x0A). wire §12
    pub struct WriteAtomicity: u32 {
        /// Normal atomicity is off.
        disable_normal, with_disable_normal: bool [0];
    }
}

bit_fields! {
    /// Timestamp (0x0E): the 8 bytes of data, little-endian. wire §12
    pub struct Timestamp: u64 {
        /// Milliseconds since the beginning of 1970.
        milliseconds, with_milliseconds: u64 [47:0];
        /// Where it comes from, as the wire has it.
        origin, with_origin: u8 [50:48];
    }
}

/// Host behavior support (0x16): the data. wire §12
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HostBehavior {
    /// The host honours retry delays.
    pub acre: u8,
    /// Extended telemetry data area.
    pub etdas: u8,
    /// Extended LBA formats.
    pub lbafee: u8,
    reserved_3: [u8; 509],
}
const _: () = assert!(size_of::<HostBehavior>() == 512);

default_zeroed! { HostBehavior }

bit_fields! {
    /// I/O command set profile (0x19). wire §12
    pub struct CommandSetProfile: u32 {
        /// Index into the vectors of Identify CNS 1C.
        index, with_index: u16 [8:0];
    }
}

bit_fields! {
    /// Key value configuration (0x20), per namespace. wire §12, wire §23
    pub struct KvConfiguration: u32 {
        /// Deleting a key that does not exist is an error.
        ednek, with_ednek: bool [0];
    }
}

bit_fields! {
    /// Host identifier (0x81). wire §12
    pub struct HostIdentifier: u32 {
        /// 16 bytes rather than 8; the only size over fabrics.
        exhid, with_exhid: bool [0];
    }
}

flags! {
    /// Reservation notification mask (0x82) of a namespace: the notifications that are not sent. wire §12
    pub struct ReservationMask: u32 {
        /// Registration preempted.
        REGISTRATION_PREEMPTED = 1 << 1;
        /// Reservation released.
        RELEASED = 1 << 2;
        /// Reservation preempted.
        PREEMPTED = 1 << 3;
    }
}

bit_fields! {
    /// Reservation persistence (0x83), per namespace. wire §12
    pub struct ReservationPersistence: u32 {
        /// Persist through power loss.
        ptpl, with_ptpl: bool [0];
    }
}

codes! {
    /// Write protection of a namespace. wire §12
    pub struct WriteProtection: u8 {
        NONE = 0, "not protected";
        PROTECTED = 1, "protected";
        UNTIL_POWER_CYCLE = 2, "protected until the next power cycle";
        PERMANENT = 3, "protected for ever";
    }
}

bit_fields! {
    /// Namespace write protect (0x84), per namespace. wire §12
    pub struct WriteProtect: u32 {
        /// State.
        state, with_state: WriteProtection [2:0];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        assert_offsets!(HostBehavior: acre @ 0, etdas @ 1, lbafee @ 2);
        let behavior = HostBehavior { acre: 1, ..HostBehavior::default() };
        assert_eq!(behavior.as_bytes()[..4], [1, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn every_field_comes_back_alone(bits: u32, wide: u64) {
            GetDword::check_fields(bits);
            SetDword::check_fields(bits);
            Arbitration::check_fields(bits);
            PowerManagement::check_fields(bits);
            TemperatureThreshold::check_fields(bits);
            ErrorRecovery::check_fields(bits);
            VolatileWriteCache::check_fields(bits);
            NumberOfQueues::check_fields(bits);
            InterruptVector::check_fields(bits);
            WriteAtomicity::check_fields(bits);
            Timestamp::check_fields(wide);
            CommandSetProfile::check_fields(bits);
            KvConfiguration::check_fields(bits);
            HostIdentifier::check_fields(bits);
            ReservationPersistence::check_fields(bits);
            WriteProtect::check_fields(bits);
        }

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
