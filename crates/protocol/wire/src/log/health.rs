//! SMART or health log (LID 02) and firmware slots (LID 03). wire §11

use zerocopy::FromZeros;

use crate::text::{Padding, Text, TextError, write_text};
use crate::{U16, U32, U128};

/// Bytes of either page. nvmet refuses a SMART read of any other length.
pub const HEALTH_LOG_BYTES: usize = 512;

/// A data unit: 1000 times 512 bytes.
const DATA_UNIT_BYTES: u128 = 512_000;

tables! {
    /// SMART or health. wire §11
    pub structure HealthLog: HEALTH_LOG_BYTES {
        0 pub critical_warning: u8, "Critical warnings, a bit each, as the wire has them.";
        1 pub temperature: U16, "Temperature, kelvin.";
        3 pub spare: u8, "Spare left, percent.";
        4 pub spare_threshold: u8, "Spare below which the controller warns, percent.";
        5 pub used: u8, "Life used, percent, may pass 100.";
        6 reserved_6: [u8; 26];
        32 data_units_read: U128;
        48 data_units_written: U128;
        64 pub host_reads: U128, "Read commands completed.";
        80 pub host_writes: U128, "Write commands completed.";
        96 pub busy_minutes: U128, "Busy time, minutes.";
        112 pub power_cycles: U128, "Power cycles.";
        128 pub power_on_hours: U128, "Power-on hours.";
        144 pub unsafe_shutdowns: U128, "Power lost without a shutdown.";
        160 pub media_errors: U128, "Media and data integrity errors.";
        176 pub error_entries: U128, "Error log entries so far.";
        192 pub warning_temperature_minutes: U32, "Time above the warning temperature, minutes.";
        196 pub critical_temperature_minutes: U32, "Time above the critical temperature, minutes.";
        200 pub sensors: [U16; 8], "Sensors, kelvin, 0 where there is none.";
        216 reserved_216: [u8; 296];
    }
}

impl HealthLog {
    /// Bytes read by hosts, to 512,000.
    #[must_use]
    pub const fn bytes_read(&self) -> u128 {
        self.data_units_read.get().saturating_mul(DATA_UNIT_BYTES)
    }

    /// Bytes written by hosts, to 512,000.
    #[must_use]
    pub const fn bytes_written(&self) -> u128 {
        self.data_units_written.get().saturating_mul(DATA_UNIT_BYTES)
    }

    /// Sets [`Self::bytes_read`], rounded up.
    pub fn set_bytes_read(&mut self, bytes: u128) {
        self.data_units_read.set(bytes.div_ceil(DATA_UNIT_BYTES));
    }

    /// Sets [`Self::bytes_written`], rounded up.
    pub fn set_bytes_written(&mut self, bytes: u128) {
        self.data_units_written.set(bytes.div_ceil(DATA_UNIT_BYTES));
    }
}

default_zeroed! { HealthLog }

tables! {
    /// Firmware slots. wire §11
    pub structure FirmwareSlots: HEALTH_LOG_BYTES {
        0 pub afi: u8, "Active slot, 0x01 where there is one only.";
        1 reserved_1: [u8; 7];
        8 frs: [[u8; 8]; 7];
        64 reserved_64: [u8; 448];
    }
}

impl FirmwareSlots {
    /// One slot, active, with this revision.
    ///
    /// # Errors
    /// [`TextError`] if the revision has more than 8 bytes or is not printable ASCII.
    pub fn single(revision: &str) -> Result<Self, TextError> {
        let mut slots = Self { afi: 0x01, ..Self::new_zeroed() };
        write_text(&mut slots.frs[0], revision, Padding::Space)?;
        Ok(slots)
    }

    /// Revision in slot 1 to 7; `None` outside.
    #[must_use]
    pub fn revision(&self, slot: u8) -> Option<Text<'_>> {
        let index = usize::from(slot).checked_sub(1)?;
        self.frs.get(index).map(|field| Text::of(field))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    /// wire §11
    #[test]
    fn data_units_are_rounded_up() {
        let mut health = HealthLog::default();
        health.set_bytes_read(1);
        health.set_bytes_written(512_000 * 0x0102 - 1);
        assert_eq!(health.as_bytes()[32..34], [1, 0]);
        assert_eq!(health.as_bytes()[48..50], [2, 1]);
        assert_eq!((health.bytes_read(), health.bytes_written()), (512_000, 512_000 * 0x0102));
    }

    #[test]
    fn a_single_slot_is_active_and_named() {
        let slots = FirmwareSlots::single("1.0").expect("short");
        assert_eq!(slots.as_bytes()[..17], *b"\x01\0\0\0\0\0\0\x001.0     \0");
        assert_eq!(slots.revision(1).and_then(Text::as_str), Some("1.0"));
        assert!(slots.revision(7).is_some_and(Text::is_empty));
        assert!(slots.revision(0).is_none() && slots.revision(8).is_none());
        assert!(FirmwareSlots::single("123456789").is_err());
    }

    proptest! {
        #[test]
        fn no_page_makes_an_accessor_panic(seed: [u8; 31], slot: u8) {
            let bytes: Vec<u8> = seed.iter().copied().cycle().take(512).collect();
            let health = HealthLog::read_from_bytes(&bytes).expect("512 bytes");
            prop_assert_eq!(health.as_bytes(), &bytes);
            let _ = (health.bytes_read(), health.bytes_written());
            let slots = FirmwareSlots::read_from_bytes(&bytes).expect("512 bytes");
            let _ = slots.revision(slot).map(|text| text.to_string());
        }

        #[test]
        fn traffic_comes_back_in_whole_units(units in 0u128..1 << 100) {
            let mut health = HealthLog::default();
            health.set_bytes_read(units * 512_000);
            health.set_bytes_written(units * 512_000);
            prop_assert_eq!(health.bytes_read(), units * 512_000);
            prop_assert_eq!(health.bytes_written(), units * 512_000);
        }
    }
}
