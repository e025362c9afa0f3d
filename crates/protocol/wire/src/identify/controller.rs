//! Identify controller (CNS 01). wire §10.1

use zerocopy::FromZeros;

use crate::async_event::AsyncEvents;
use crate::id::Cntlid;
use crate::identify::IDENTIFY_BYTES;
use crate::identify::capabilities::{
    Anacap, Cmic, ControllerType, Ctratt, DiscoveryControllerType, Fcatt, Frmw, Fuses, Lpa, Nwpc, Oacs, Ocfs,
    Ofcs, Oncs, Sgls, Vwc,
};
use crate::nqn::NQN_FIELD_BYTES;
use crate::property::Vs;
use crate::sqe::SQE_BYTES;
use crate::{U16, U32, U128};

const CAPSULE_UNIT_BYTES: u32 = 16;
const TENTH_MS: u32 = 100;

tables! {
    /// Identify Controller data. wire §10.1
    ///
    /// A field Linux or SPDK depends on says so. Default is all zero; [`IdentifyController::fabrics`] fills in
    /// what every controller over fabrics has.
    pub structure IdentifyController: IDENTIFY_BYTES {
        0 pub vid: U16, "PCI vendor, 0 over fabrics.";
        2 pub ssvid: U16, "PCI subsystem vendor, 0 over fabrics.";
        4 sn: [u8; 20] as serial, set_serial: space_padded,
            "Serial number, the same on all controllers of the subsystem.";
        24 mn: [u8; 40] as model, set_model: space_padded, "Model, the same on all controllers of the subsystem.";
        64 fr: [u8; 8] as firmware, set_firmware: space_padded,
            "Firmware revision, the same on all controllers of the subsystem.";
        72 pub rab: u8, "Recommended arbitration burst.";
        73 pub ieee: [u8; 3], "OUI, or 0.";
        76 pub cmic: Cmic,
            "Several ports, several controllers, ANA. Without the second Linux refuses another controller.";
        77 mdts: u8;
        78 cntlid: U16 as cntlid, set_cntlid: Cntlid, "Id of this controller; Linux refuses one that is not Connect's.";
        80 ver: U32 as version, set_version: Vs, "Version, as the property.";
        84 pub rtd3r: U32, "Latency of the reset to ready, microseconds.";
        88 pub rtd3e: U32, "Latency of a shutdown, microseconds; bounds Linux's wait for it.";
        92 oaes: U32 as oaes, set_oaes: AsyncEvents, "Asynchronous events it can send.";
        96 ctratt: U32 as ctratt, set_ctratt: Ctratt, "Attributes.";
        100 reserved_100: [u8; 11];
        111 pub cntrltype: ControllerType, "I/O, discovery or administrative; mandatory from version 1.4.";
        112 pub fguid: [u8; 16], "FRU identifier, 0.";
        128 crdt: [U16; 3];
        134 reserved_134: [u8; 122];
        256 oacs: U16 as oacs, set_oacs: Oacs, "Optional admin commands.";
        258 acl: u8 as abort_limit, set_abort_limit: count, "Aborts outstanding at most.";
        259 aerl: u8 as aer_limit, set_aer_limit: count, "Asynchronous Event Requests outstanding at most.";
        260 pub frmw: Frmw, "Firmware slots.";
        261 pub lpa: Lpa, "Abilities of Get Log Page.";
        262 elpe: u8 as error_log_entries, set_error_log_entries: count, "Entries of the error log.";
        263 npss: u8 as power_states, set_power_states: count, "Power states.";
        264 reserved_264: [u8; 2];
        266 pub wctemp: U16, "Warning temperature, kelvin.";
        268 pub cctemp: U16, "Critical temperature, kelvin.";
        270 reserved_270: [u8; 10];
        280 pub tnvmcap: U128, "Total capacity, bytes, or 0.";
        296 pub unvmcap: U128, "Unallocated capacity, bytes, or 0.";
        312 reserved_312: [u8; 8];
        320 kas: U16;
        322 reserved_322: [u8; 20];
        342 pub anatt: u8, "Seconds an ANA group may stay in change.";
        343 pub anacap: Anacap, "ANA states reported and how groups behave.";
        344 pub anagrpmax: U32, "Highest ANA group id; Linux refuses a log with groups above it.";
        348 pub nanagrpid: U32, "Number of ANA groups; Linux sizes its log buffer from it.";
        352 reserved_352: [u8; 160];
        512 sqes: u8;
        513 cqes: u8;
        514 pub maxcmd: U16, "Commands per queue; Linux needs it non-zero and clamps its queues to it.";
        516 pub nn: U32, "Highest namespace id.";
        520 oncs: U16 as oncs, set_oncs: Oncs, "Optional NVM commands.";
        522 fuses: U16 as fuses, set_fuses: Fuses, "Fused operations.";
        524 pub fna: u8, "Format attributes.";
        525 pub vwc: Vwc, "Volatile write cache.";
        526 awun: U16 as atomic_write_blocks, set_atomic_write_blocks: count,
            "Blocks written atomically in normal operation.";
        528 awupf: U16 as atomic_write_blocks_power_fail, set_atomic_write_blocks_power_fail: count,
            "Blocks written atomically over power failure.";
        530 pub nvscc: u8, "Vendor command format.";
        531 pub nwpc: Nwpc, "Write protection a namespace can have.";
        532 acwu: U16 as atomic_compare_write_blocks, set_atomic_compare_write_blocks: count,
            "Blocks compared and written atomically.";
        534 ocfs: U16 as ocfs, set_ocfs: Ocfs, "Copy formats.";
        536 sgls: U32 as sgls, set_sgls: Sgls, "SGL support.";
        540 pub mnan: U32, "Namespaces at most; with ANA Linux refuses 0 and more than `nn`.";
        544 reserved_544: [u8; 224];
        768 subnqn: [u8; NQN_FIELD_BYTES] as subsystem, set_subsystem: nqn, "Name of the subsystem: the one connected to.";
        1024 reserved_1024: [u8; 768];
        1792 ioccsz: U32;
        1796 iorcsz: U32;
        1800 icdoff: U16;
        1802 pub fcatt: Fcatt, "Static controller model, or 0.";
        1803 pub msdbd: u8, "SGL descriptors in a command at most.";
        1804 ofcs: U16 as ofcs, set_ofcs: Ofcs, "Optional Fabrics commands.";
        1806 pub dctype: DiscoveryControllerType, "Kind of discovery controller.";
        1807 reserved_1807: [u8; 241];
        2048 pub psd: [PowerState; 32], "Power states.";
        3072 pub vendor_specific: [u8; 1024], "The vendor's own.";
    }

    /// A power state. The reference fixes its size and maximum power only. wire §10.1
    pub structure PowerState: 32 {
        0 pub mp: U16, "Maximum power; 0 says nothing.";
        2 reserved: [u8; 30];
    }
}

impl IdentifyController {
    /// All zero except the fields that every controller over TCP has: entry sizes, SGLs, response capsule of 16 bytes,
    /// one descriptor per command.
    #[must_use]
    pub fn fabrics() -> Self {
        let mut controller = Self { sqes: 0x66, cqes: 0x44, msdbd: 1, ..Self::new_zeroed() };
        controller.set_sgls(Sgls::TCP);
        controller.iorcsz.set(1);
        controller.set_in_capsule_bytes(0);
        controller
    }

    /// Most bytes one command may transfer, or `None` for no limit. `page_bytes_min` is CAP's.
    #[must_use]
    pub const fn transfer_limit_bytes(&self, page_bytes_min: u32) -> Option<u64> {
        size_limit_bytes(self.mdts, page_bytes_min)
    }

    /// Sets the transfer limit: rounded down to a power of two of pages, but to no less than two, as one page
    /// means no limit.
    pub fn set_transfer_limit_bytes(&mut self, limit_bytes: Option<u64>, page_bytes_min: u32) {
        self.mdts = size_limit_exponent(limit_bytes, page_bytes_min);
    }

    /// The wait a status with this CRD (1..=3) asks for, milliseconds; `None` for 0 and above 3.
    #[must_use]
    pub fn retry_delay_ms(&self, crd: u8) -> Option<u32> {
        let index = usize::from(crd).checked_sub(1)?;
        self.crdt.get(index).map(|delay| u32::from(delay.get()) * TENTH_MS)
    }

    /// Sets the three retry delays in milliseconds, rounded up to 100, at most 6553.5 s.
    pub fn set_retry_delays_ms(&mut self, delays_ms: [u32; 3]) {
        for (field, delay_ms) in self.crdt.iter_mut().zip(delays_ms) {
            field.set(u16::try_from(delay_ms.div_ceil(TENTH_MS)).unwrap_or(u16::MAX));
        }
    }

    /// Granularity of the keep-alive timer, milliseconds; 0 means no keep-alive, which Linux refuses.
    #[must_use]
    pub const fn keep_alive_granularity_ms(&self) -> u32 {
        (self.kas.get() as u32).saturating_mul(TENTH_MS)
    }

    /// Sets [`Self::keep_alive_granularity_ms`], rounded up to 100, at most 6553.5 s.
    pub fn set_keep_alive_granularity_ms(&mut self, granularity_ms: u32) {
        self.kas.set(u16::try_from(granularity_ms.div_ceil(TENTH_MS)).unwrap_or(u16::MAX));
    }

    /// Smallest and largest submission entry, bytes.
    #[must_use]
    pub const fn sqe_bytes(&self) -> (u32, u32) {
        entry_bytes(self.sqes)
    }

    /// Smallest and largest completion entry, bytes.
    #[must_use]
    pub const fn cqe_bytes(&self) -> (u32, u32) {
        entry_bytes(self.cqes)
    }

    /// Bytes of a command capsule on I/O queues: 64 and the room for in-capsule data. Hosts refuse less than 64.
    #[must_use]
    pub const fn command_capsule_bytes(&self) -> u64 {
        (self.ioccsz.get() as u64).saturating_mul(CAPSULE_UNIT_BYTES as u64)
    }

    /// Bytes of in-capsule data a command on an I/O queue may carry.
    #[must_use]
    pub const fn in_capsule_bytes(&self) -> u64 {
        self.command_capsule_bytes().saturating_sub(SQE_BYTES as u64)
    }

    /// Sets [`Self::in_capsule_bytes`], rounded down to 16.
    pub fn set_in_capsule_bytes(&mut self, bytes: u32) {
        self.ioccsz.set((bytes / CAPSULE_UNIT_BYTES).saturating_add(4));
    }

    /// Bytes of a response capsule; newer Linux refuses 0.
    #[must_use]
    pub const fn response_capsule_bytes(&self) -> u64 {
        (self.iorcsz.get() as u64).saturating_mul(CAPSULE_UNIT_BYTES as u64)
    }

    /// Where in-capsule data begins, bytes after the command; Linux refuses others than 0.
    #[must_use]
    pub const fn in_capsule_offset_bytes(&self) -> u32 {
        (self.icdoff.get() as u32).saturating_mul(CAPSULE_UNIT_BYTES)
    }
}

default_zeroed! { IdentifyController }

named_fields! {
    IdentifyController:
    vid, ssvid, sn, mn, fr, rab, ieee, cmic, mdts, cntlid, ver, rtd3r, rtd3e, oaes, ctratt, cntrltype, fguid, crdt,
    oacs, acl, aerl, frmw, lpa, elpe, npss, wctemp, cctemp, tnvmcap, unvmcap, kas, anatt, anacap, anagrpmax, nanagrpid,
    sqes, cqes, maxcmd, nn, oncs, fuses, fna, vwc, awun, awupf, nvscc, nwpc, acwu, ocfs, sgls, mnan, subnqn, ioccsz,
    iorcsz, icdoff, fcatt, msdbd, ofcs, dctype,
}

/// `2^exponent` pages, 0 for no limit; past 64 bits it is the largest number.
pub(super) const fn size_limit_bytes(exponent: u8, page_bytes_min: u32) -> Option<u64> {
    match exponent {
        0 => None,
        1..32 => Some((page_bytes_min as u64) << exponent),
        _ => Some(u64::MAX),
    }
}

/// The exponent of the largest power of two of pages within the limit, at least 1; 0 for no limit.
pub(super) fn size_limit_exponent(limit_bytes: Option<u64>, page_bytes_min: u32) -> u8 {
    let Some(limit_bytes) = limit_bytes else { return 0 };
    let pages = limit_bytes.checked_div(u64::from(page_bytes_min)).unwrap_or(0);
    pages.checked_ilog2().map_or(1, |exponent| u8::try_from(exponent.clamp(1, 31)).unwrap_or(31))
}

const fn entry_bytes(sizes: u8) -> (u32, u32) {
    (1 << (sizes & 0xF), 1 << (sizes >> 4))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::nqn::{Nqn, NqnError};
    use crate::text::TextError;

    /// wire §10.1
    #[test]
    fn its_fields_are_listed_in_wire_order_and_do_not_overlap() {
        let fields = IdentifyController::FIELDS;
        assert!(fields.is_sorted_by(|a, b| a.offset + a.length <= b.offset));
        let mut controller = IdentifyController::fabrics();
        controller.nn.set(0x0102_0304);
        let nn = fields.iter().find(|field| field.name == "nn").expect("listed");
        assert_eq!(nn.number(controller.as_bytes()), Some(0x0102_0304));
    }

    #[test]
    fn a_controller_over_fabrics_has_the_values_hosts_insist_on() {
        let mut controller = IdentifyController::fabrics();
        controller.set_in_capsule_bytes(8192);
        controller.set_keep_alive_granularity_ms(1000);
        controller.set_serial("SN1").expect("short");
        let raw = controller.as_bytes();
        assert_eq!(raw[4..24], *b"SN1                 ");
        assert_eq!(raw[320..322], [10, 0]);
        assert_eq!(raw[512..514], [0x66, 0x44]);
        assert_eq!(raw[536..540], [0x01, 0x00, 0x30, 0x00]);
        assert_eq!(raw[1792..1804], [0x04, 0x02, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(IdentifyController::fabrics().command_capsule_bytes(), 64);
    }

    #[test]
    fn units_are_bytes_and_milliseconds() {
        // nvmet: ioccsz 1028, kas 10; SPDK: kas 100, mdts 5.
        let mut controller = IdentifyController { mdts: 5, sqes: 0x66, cqes: 0x44, ..Default::default() };
        controller.ioccsz.set(1028);
        controller.iorcsz.set(1);
        controller.icdoff.set(2);
        controller.kas.set(100);
        controller.crdt[1].set(7);
        assert_eq!(controller.transfer_limit_bytes(4096), Some(131_072));
        assert_eq!((controller.command_capsule_bytes(), controller.in_capsule_bytes()), (16_448, 16_384));
        assert_eq!((controller.response_capsule_bytes(), controller.in_capsule_offset_bytes()), (16, 32));
        assert_eq!(controller.keep_alive_granularity_ms(), 10_000);
        assert_eq!((controller.sqe_bytes(), controller.cqe_bytes()), ((64, 64), (16, 16)));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|crd| controller.retry_delay_ms(crd)),
            [None, Some(0), Some(700), Some(0), None]
        );
    }

    #[test]
    fn a_transfer_limit_is_rounded_to_what_the_exponent_can_say() {
        let mut controller = IdentifyController::default();
        for (limit, stored, given) in [
            (None, 0, None),
            (Some(1 << 20), 8, Some(1 << 20)),
            (Some((1 << 20) - 1), 7, Some(1 << 19)),
            (Some(4096), 1, Some(8192)),
            (Some(0), 1, Some(8192)),
            (Some(u64::MAX), 31, Some(4096 << 31)),
        ] {
            controller.set_transfer_limit_bytes(limit, 4096);
            assert_eq!(controller.mdts, stored, "{limit:?}");
            assert_eq!(controller.transfer_limit_bytes(4096), given, "{limit:?}");
        }
        controller.mdts = 255;
        assert_eq!(controller.transfer_limit_bytes(u32::MAX), Some(u64::MAX));
    }

    #[test]
    fn a_capsule_below_64_bytes_has_no_room_for_data() {
        let controller = IdentifyController::default();
        assert_eq!((controller.command_capsule_bytes(), controller.in_capsule_bytes()), (0, 0));
    }

    #[test]
    fn names_come_back_without_padding() {
        let mut controller = IdentifyController::default();
        let subsystem: Nqn = "nqn.2016-06.io.nvlane:sub1".parse().expect("well formed");
        assert_eq!(controller.subsystem(), Err(NqnError::Empty));
        controller.set_subsystem(&subsystem);
        controller.set_model("nvlane").expect("short");
        controller.set_firmware("12345678").expect("just fits");
        assert_eq!(controller.subsystem(), Ok(subsystem));
        assert_eq!(controller.model().as_str(), Some("nvlane"));
        assert_eq!(controller.firmware().as_str(), Some("12345678"));
        assert_eq!(controller.set_serial(&"1".repeat(21)), Err(TextError::TooLong { length: 21, limit: 20 }));
    }

    proptest! {
        #[test]
        fn every_typed_field_comes_back(wide: u32, half: u16, count in 1u32..=65_536, small in 1u16..=256) {
            let mut controller = IdentifyController::default();
            controller.set_oaes(AsyncEvents::from_bits_retain(wide));
            controller.set_ctratt(Ctratt::from_bits_retain(!wide));
            controller.set_sgls(Sgls::from_bits(wide));
            controller.set_version(Vs::from_bits(wide));
            controller.set_cntlid(Cntlid::new(half));
            controller.set_oacs(Oacs::from_bits_retain(half));
            controller.set_oncs(Oncs::from_bits_retain(!half));
            controller.set_fuses(Fuses::from_bits_retain(half));
            controller.set_ocfs(Ocfs::from_bits_retain(!half));
            controller.set_ofcs(Ofcs::from_bits_retain(half));
            controller.set_abort_limit(small);
            controller.set_aer_limit(257 - small);
            controller.set_error_log_entries(small);
            controller.set_power_states(257 - small);
            controller.set_atomic_write_blocks(count);
            controller.set_atomic_write_blocks_power_fail(65_537 - count);
            controller.set_atomic_compare_write_blocks(count);
            controller.set_retry_delays_ms([u32::from(half) * 100, 0, 100]);
            controller.set_keep_alive_granularity_ms(u32::from(half) * 100);
            let controller = IdentifyController::read_from_bytes(controller.as_bytes()).expect("4096 bytes");
            prop_assert_eq!((controller.oaes().bits(), controller.ctratt().bits()), (wide, !wide));
            prop_assert_eq!((controller.sgls().bits(), controller.version().bits()), (wide, wide));
            prop_assert_eq!(controller.cntlid().get(), half);
            prop_assert_eq!((controller.oacs().bits(), controller.oncs().bits()), (half, !half));
            prop_assert_eq!((controller.fuses().bits(), controller.ocfs().bits()), (half, !half));
            prop_assert_eq!(controller.ofcs().bits(), half);
            prop_assert_eq!((controller.abort_limit(), controller.aer_limit()), (small, 257 - small));
            prop_assert_eq!(controller.error_log_entries(), small);
            prop_assert_eq!(controller.power_states(), 257 - small);
            prop_assert_eq!(controller.atomic_write_blocks(), count);
            prop_assert_eq!(controller.atomic_write_blocks_power_fail(), 65_537 - count);
            prop_assert_eq!(controller.atomic_compare_write_blocks(), count);
            prop_assert_eq!(controller.retry_delay_ms(1), Some(u32::from(half) * 100));
            prop_assert_eq!(controller.keep_alive_granularity_ms(), u32::from(half) * 100);
        }

        #[test]
        fn no_controller_makes_an_accessor_panic(seed: [u8; 64], page_bytes: u32, crd: u8) {
            let bytes: Vec<u8> = seed.iter().copied().cycle().take(4096).collect();
            let controller = IdentifyController::read_from_bytes(&bytes).expect("4096 bytes");
            prop_assert_eq!(controller.as_bytes(), &bytes);
            let _ = (controller.transfer_limit_bytes(page_bytes), controller.retry_delay_ms(crd));
            let _ = (controller.sqe_bytes(), controller.cqe_bytes(), controller.in_capsule_bytes());
            let _ = (controller.subsystem(), controller.serial().to_string());
        }
    }
}
