//! Controller properties: CAP, VS, CC, CSTS, CRTO. wire §7

use core::fmt;

use crate::bits::zero_based16;

/// Write this to NSSR to reset the subsystem.
pub const NSSR_RESET: u32 = 0x4E56_4D65;

const PAGE_SHIFT_MIN: u32 = 12;
const TIMEOUT_UNIT_MS: u32 = 500;

tables! {
    /// Byte offset of a property. wire §7
    pub codes Property: u32 {
        0x00 CAP, "controller capabilities";
        0x08 VS, "version";
        0x14 CC, "controller configuration";
        0x1C CSTS, "controller status";
        0x20 NSSR, "NVM subsystem reset";
        0x68 CRTO, "controller ready timeouts";
    }

    /// Size of a property in Property Get and Set. wire §6.4
    pub codes PropertySize: u8 {
        0 FOUR, "4 bytes";
        1 EIGHT, "8 bytes";
    }
}

impl Property {
    /// Size of the property; `None` if it is unknown.
    #[must_use]
    pub const fn size(self) -> Option<PropertySize> {
        match self {
            Self::CAP => Some(PropertySize::EIGHT),
            Self::VS | Self::CC | Self::CSTS | Self::NSSR | Self::CRTO => Some(PropertySize::FOUR),
            _ => None,
        }
    }
}

tables! {
    /// Controller capabilities. wire §7
    pub bits Cap: u64 {
        [15:0] mqes, with_mqes: u16, "Entries in a queue, 0-based; see [`Cap::queue_entries_max`].";
        [16] cqr, with_cqr: bool, "Queues must be contiguous.";
        [18:17] ams, with_ams: u8, "Arbitration mechanisms beside round robin.";
        [31:24] to, with_to: u8, "Ready timeout in 500 ms units; see [`Cap::ready_timeout_ms`].";
        [35:32] dstrd, with_dstrd: u8, "Doorbell stride, without meaning over fabrics.";
        [36] nssrs, with_nssrs: bool, "Subsystem reset supported.";
        [37] css_nvm, with_css_nvm: bool, "NVM command set supported.";
        [43] css_csi, with_css_csi: bool, "Command sets are chosen per namespace by CSI.";
        [44] css_admin_only, with_css_admin_only: bool, "No I/O command set: admin only.";
        [51:48] mpsmin, with_mpsmin: u8, "Smallest memory page, log2 of bytes less 12; see [`Cap::page_bytes_min`].";
        [55:52] mpsmax, with_mpsmax: u8, "Largest memory page, log2 of bytes less 12; see [`Cap::page_bytes_max`].";
        [59] crwms, with_crwms: bool, "Controller ready with media supported.";
        [60] crims, with_crims: bool, "Controller ready independent of media supported.";
    }
}

/// Bytes of a memory page, from its field of four bits.
const fn page_bytes(field: u8) -> u32 {
    1u32.wrapping_shl(PAGE_SHIFT_MIN.saturating_add(field as u32))
}

impl Cap {
    /// Entries a queue may have, 1..=65536.
    #[must_use]
    pub const fn queue_entries_max(self) -> u32 {
        (self.mqes() as u32).saturating_add(1)
    }

    /// With this many entries in a queue, clamped to 1..=65536.
    #[must_use]
    pub const fn with_queue_entries_max(self, entries: u32) -> Self {
        self.with_mqes(zero_based16(entries))
    }

    /// How long CSTS.RDY may take to follow CC.EN, milliseconds.
    #[must_use]
    pub const fn ready_timeout_ms(self) -> u32 {
        (self.to() as u32).saturating_mul(TIMEOUT_UNIT_MS)
    }

    /// With this ready timeout, rounded up to 500 ms, at most 127.5 s.
    #[must_use]
    pub const fn with_ready_timeout_ms(self, timeout_ms: u32) -> Self {
        let units = timeout_ms.div_ceil(TIMEOUT_UNIT_MS);
        self.with_to(if units > 0xFF { 0xFF } else { (units & 0xFF) as u8 })
    }

    /// Smallest memory page in bytes: the unit of MDTS.
    #[must_use]
    pub const fn page_bytes_min(self) -> u32 {
        page_bytes(self.mpsmin())
    }

    /// Largest memory page in bytes.
    #[must_use]
    pub const fn page_bytes_max(self) -> u32 {
        page_bytes(self.mpsmax())
    }
}

tables! {
    /// Version of the specification a controller follows. wire §7
    #[derive(PartialOrd, Ord)]
    pub bits Vs: u32 {
        [7:0] tertiary, with_tertiary: u8, "Third number.";
        [15:8] minor, with_minor: u8, "Second number.";
        [31:16] major, with_major: u16, "First number.";
    }
}

impl Vs {
    /// 1.3: hosts read namespace id descriptors from here on.
    pub const V1_3: Self = Self::from_bits(0x0001_0300);
    /// 1.4: the controller type in Identify is mandatory from here on.
    pub const V1_4: Self = Self::from_bits(0x0001_0400);
    /// 2.0: command sets beside NVM.
    pub const V2_0: Self = Self::from_bits(0x0002_0000);
}

impl fmt::Display for Vs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())?;
        if self.tertiary() != 0 { write!(f, ".{}", self.tertiary()) } else { Ok(()) }
    }
}

tables! {
    /// Command sets a host enables with CC. wire §7
    pub codes CommandSetSelection: u8 {
        0 NVM, "NVM command set";
        6 ALL, "all supported I/O command sets";
        7 ADMIN_ONLY, "admin command set only";
    }

    /// Shutdown a host asks for with CC. wire §7
    pub codes ShutdownNotification: u8 {
        0 NONE, "no shutdown";
        1 NORMAL, "normal shutdown";
        2 ABRUPT, "abrupt shutdown";
    }

    /// Controller configuration. wire §7
    pub bits Cc: u32 {
        [0] en, with_en: bool, "Enable.";
        [6:4] css, with_css: CommandSetSelection, "Command sets enabled.";
        [10:7] mps, with_mps: u8, "Memory page, log2 of bytes less 12; see [`Cc::page_bytes`].";
        [13:11] ams, with_ams: u8, "Arbitration mechanism.";
        [15:14] shn, with_shn: ShutdownNotification, "Shutdown asked for.";
        [19:16] iosqes, with_iosqes: u8, "Submission entry, log2 of bytes; see [`Cc::sqe_bytes`].";
        [23:20] iocqes, with_iocqes: u8, "Completion entry, log2 of bytes; see [`Cc::cqe_bytes`].";
        [24] crime, with_crime: bool, "Ready independent of media.";
    }
}

impl Cc {
    /// Not enabled, with the entry sizes every I/O queue has: 64 and 16 bytes.
    #[must_use]
    pub const fn new(css: CommandSetSelection) -> Self {
        Self::from_bits(0).with_css(css).with_iosqes(6).with_iocqes(4)
    }

    /// Memory page in bytes.
    #[must_use]
    pub const fn page_bytes(self) -> u32 {
        page_bytes(self.mps())
    }

    /// Bytes of a submission entry on I/O queues.
    #[must_use]
    pub const fn sqe_bytes(self) -> u32 {
        1 << self.iosqes()
    }

    /// Bytes of a completion entry on I/O queues.
    #[must_use]
    pub const fn cqe_bytes(self) -> u32 {
        1 << self.iocqes()
    }
}

tables! {
    /// How far a shutdown got, in CSTS. wire §7
    pub codes ShutdownStatus: u8 {
        0 NONE, "no shutdown";
        1 IN_PROGRESS, "shutdown in progress";
        2 COMPLETE, "shutdown complete";
    }

    /// Controller status. wire §7
    pub bits Csts: u32 {
        [0] rdy, with_rdy: bool, "Ready.";
        [1] cfs, with_cfs: bool, "Fatal.";
        [3:2] shst, with_shst: ShutdownStatus, "How far a shutdown got.";
        [4] nssro, with_nssro: bool, "A subsystem reset occurred.";
        [5] pp, with_pp: bool, "Processing paused.";
    }

    /// Controller ready timeouts. wire §7
    pub bits Crto: u32 {
        [15:0] crwmt, with_crwmt: u16, "Until ready with media, 500 ms units; see [`Crto::ready_with_media_ms`].";
        [31:16] crimt, with_crimt: u16,
            "Until ready independent of media, 500 ms units; see [`Crto::ready_independent_ms`].";
    }
}

impl Crto {
    /// Until ready with media, milliseconds.
    #[must_use]
    pub const fn ready_with_media_ms(self) -> u32 {
        (self.crwmt() as u32).saturating_mul(TIMEOUT_UNIT_MS)
    }

    /// Until ready independent of media, milliseconds.
    #[must_use]
    pub const fn ready_independent_ms(self) -> u32 {
        (self.crimt() as u32).saturating_mul(TIMEOUT_UNIT_MS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn properties_have_the_offsets_and_sizes_of_the_table() {
        for (property, offset, size) in [
            (Property::CAP, 0x00, PropertySize::EIGHT),
            (Property::VS, 0x08, PropertySize::FOUR),
            (Property::CC, 0x14, PropertySize::FOUR),
            (Property::CSTS, 0x1C, PropertySize::FOUR),
            (Property::NSSR, 0x20, PropertySize::FOUR),
            (Property::CRTO, 0x68, PropertySize::FOUR),
        ] {
            assert_eq!((property.raw(), property.size()), (offset, Some(size)), "{property}");
        }
        assert_eq!(Property::from_raw(0x04).size(), None);
    }

    /// wire §7: nvmet's and SPDK's values.
    #[test]
    fn capabilities_have_the_bits_of_the_table() {
        let cap = Cap::default().with_queue_entries_max(1024).with_cqr(true).with_ready_timeout_ms(7500);
        assert_eq!(cap.with_css_nvm(true).bits(), 0x0000_0020_0F01_03FF);
        let cap = Cap::default().with_queue_entries_max(128).with_ready_timeout_ms(15_000).with_crwms(true);
        assert_eq!(cap.with_css_csi(true).bits(), 0x0800_0800_1E00_007F);
        assert_eq!(Cap::default().with_css_admin_only(true).bits(), 1 << 44);
        assert_eq!(Cap::default().with_ams(3).bits(), 3 << 17);
        assert_eq!(Cap::default().with_dstrd(0xF).with_nssrs(true).bits(), 0x1F << 32);
        assert_eq!(Cap::default().with_mpsmin(1).with_mpsmax(15).bits(), 0xF1 << 48);
        assert_eq!(Cap::default().with_crims(true).bits(), 1 << 60);
    }

    #[test]
    fn capabilities_give_counts_bytes_and_milliseconds() {
        let cap = Cap::from_bits(0x0041_0020_0F01_03FF);
        assert_eq!((cap.queue_entries_max(), cap.ready_timeout_ms()), (1024, 7500));
        assert_eq!((cap.page_bytes_min(), cap.page_bytes_max()), (8192, 65_536));
        assert_eq!(Cap::from_bits(u64::MAX).queue_entries_max(), 65_536);
        assert_eq!(Cap::from_bits(u64::MAX).page_bytes_max(), 1 << 27);
        assert_eq!(Cap::default().with_ready_timeout_ms(1).ready_timeout_ms(), 500);
        assert_eq!(Cap::default().with_ready_timeout_ms(u32::MAX).ready_timeout_ms(), 127_500);
    }

    #[test]
    fn versions_compare_and_show_as_numbers() {
        assert!(Vs::V1_3 < Vs::V1_4 && Vs::V1_4 < Vs::V2_0);
        let versions =
            [Vs::V1_3, Vs::V1_4, Vs::V2_0, Vs::default().with_major(2).with_minor(0).with_tertiary(1)];
        insta::assert_snapshot!(versions.map(|vs| vs.to_string()).join(" "), @"1.3 1.4 2.0 2.0.1");
    }

    #[test]
    fn the_configuration_has_the_bits_of_the_table() {
        // Linux's first write, and then the one that enables.
        let cc = Cc::new(CommandSetSelection::NVM);
        assert_eq!(cc.bits(), 0x0046_0000);
        assert_eq!(cc.with_en(true).bits(), 0x0046_0001);
        assert_eq!(Cc::new(CommandSetSelection::ALL).bits(), 0x0046_0060);
        assert_eq!(cc.with_en(true).with_shn(ShutdownNotification::NORMAL).bits(), 0x0046_4001);
        assert_eq!(Cc::default().with_mps(0xF).bits(), 0xF << 7);
        assert_eq!(Cc::default().with_ams(7).bits(), 7 << 11);
        assert_eq!(Cc::default().with_crime(true).bits(), 1 << 24);
        assert_eq!((cc.sqe_bytes(), cc.cqe_bytes(), cc.page_bytes()), (64, 16, 4096));
        assert_eq!(Cc::from_bits(u32::MAX).page_bytes(), 1 << 27);
        assert_eq!(Cc::from_bits(u32::MAX).sqe_bytes(), 1 << 15);
    }

    #[test]
    fn the_status_has_the_bits_of_the_table() {
        assert_eq!(Csts::default().with_rdy(true).bits(), 1);
        assert_eq!(Csts::default().with_cfs(true).bits(), 2);
        assert_eq!(Csts::default().with_shst(ShutdownStatus::COMPLETE).with_rdy(true).bits(), 0b1001);
        assert_eq!(Csts::default().with_nssro(true).with_pp(true).bits(), 0b11_0000);
        insta::assert_snapshot!(
            format!("{:?}", Csts::from_bits(0b1001)),
            @"Csts { rdy: true, cfs: false, shst: ShutdownStatus(0x02 shutdown complete), nssro: false, pp: false }"
        );
    }

    #[test]
    fn ready_timeouts_are_in_milliseconds() {
        let crto = Crto::default().with_crwmt(30).with_crimt(2);
        assert_eq!(crto.bits(), 0x0002_001E);
        assert_eq!((crto.ready_with_media_ms(), crto.ready_independent_ms()), (15_000, 1000));
    }

    proptest! {
        #[test]
        fn counts_and_times_come_back(entries in 1u32..=65_536, units in 0u32..=255) {
            let cap = Cap::default().with_queue_entries_max(entries).with_ready_timeout_ms(units * 500);
            prop_assert_eq!((cap.queue_entries_max(), cap.ready_timeout_ms()), (entries, units * 500));
        }
    }
}
