//! Capabilities of a controller: the codes, flags and packed fields of Identify Controller. wire §10.1

tables! {
    /// Multi-path capabilities. wire §10.1
    pub flags Cmic: u8 {
        [0] MULTIPLE_PORTS, "The subsystem may have several ports.";
        [1] MULTIPLE_CONTROLLERS, "The subsystem may have several controllers.";
        [3] ANA, "ANA reporting.";
    }

    /// Controller attributes. wire §10.1
    pub flags Ctratt: u32 {
        [0] HOST_ID_128, "128-bit host identifiers.";
        [6] TBKAS, "Any command counts as keep-alive traffic. wire §9";
        [7] NAMESPACE_GRANULARITY, "Namespace granularity list.";
        [9] UUID_LIST, "UUID list.";
        [15] EXTENDED_LBA_FORMATS, "Extended LBA formats.";
    }

    /// Kind of controller. wire §10.1
    pub codes ControllerType: u8 {
        1 IO, "I/O controller";
        2 DISCOVERY, "discovery controller";
        3 ADMINISTRATIVE, "administrative controller";
    }

    /// Kind of discovery controller. wire §10.1
    pub codes DiscoveryControllerType: u8 {
        0 UNREPORTED, "not reported";
        1 DIRECT, "direct discovery controller";
        2 CENTRAL, "central discovery controller";
    }

    /// Optional admin commands. wire §10.1
    pub flags Oacs: u16 {
        [0] SECURITY, "Security Send and Receive.";
        [1] FORMAT, "Format NVM.";
        [2] FIRMWARE, "Firmware download and commit.";
        [3] NAMESPACE_MANAGEMENT, "Namespace management.";
        [4] SELF_TEST, "Device self-test.";
        [5] DIRECTIVES, "Directives.";
        [8] DOORBELL_BUFFER, "Doorbell buffer.";
        [9] LBA_STATUS, "LBA status.";
    }

    /// Firmware slots. wire §10.1
    pub bits Frmw: u8 {
        [0] slot1_read_only, with_slot1_read_only: bool, "Slot 1 is read only.";
        [3:1] slots, with_slots: u8, "Number of slots.";
    }

    /// Log page attributes. wire §10.1
    pub flags Lpa: u8 {
        [0] SMART_PER_NAMESPACE, "SMART per namespace.";
        [1] COMMANDS_AND_EFFECTS, "Commands supported and effects log.";
        [2] EXTENDED_DATA, "32-bit lengths and byte offsets; SPDK reads by offset only with it.";
        [3] TELEMETRY, "Telemetry logs.";
        [5] SUPPORTED_PAGES, "Supported log pages log.";
    }

    /// ANA capabilities. wire §10.1, wire §19
    pub flags Anacap: u8 {
        [0] OPTIMIZED, "Reports optimized.";
        [1] NON_OPTIMIZED, "Reports non-optimized.";
        [2] INACCESSIBLE, "Reports inaccessible.";
        [3] PERSISTENT_LOSS, "Reports persistent loss.";
        [4] CHANGE, "Reports change.";
        [6] GROUP_FIXED, "A namespace's group does not change while it is attached.";
        [7] GROUP_IN_MANAGEMENT, "Namespace management takes a non-zero group.";
    }

    /// Optional NVM commands. wire §10.1
    pub flags Oncs: u16 {
        [0] COMPARE, "Compare.";
        [1] WRITE_UNCORRECTABLE, "Write Uncorrectable.";
        [2] DATASET_MANAGEMENT, "Dataset Management.";
        [3] WRITE_ZEROES, "Write Zeroes.";
        [4] SAVE_AND_SELECT, "Save and select in the feature commands.";
        [5] RESERVATIONS, "Reservations.";
        [6] TIMESTAMP, "Timestamp feature.";
        [7] VERIFY, "Verify.";
        [8] COPY, "Copy.";
    }

    /// Fused operations. wire §16
    pub flags Fuses: u16 {
        [0] COMPARE_AND_WRITE, "Compare and write.";
    }

    /// Effect of a Flush of all namespaces. wire §10.1
    pub codes FlushAll: u8 {
        0 UNSPECIFIED, "not specified";
        2 UNSUPPORTED, "not supported";
        3 SUPPORTED, "supported";
    }

    /// Volatile write cache. wire §10.1
    pub bits Vwc: u8 {
        [0] present, with_present: bool, "There is one: without it Linux sends neither Flush nor FUA.";
        [2:1] flush_all, with_flush_all: FlushAll, "Effect of a Flush of all namespaces.";
    }

    /// Namespace write protection. wire §10.1
    pub flags Nwpc: u8 {
        [0] WRITE_PROTECT, "Plain write protection.";
        [1] UNTIL_POWER_CYCLE, "Until the next power cycle.";
        [2] PERMANENT, "For ever.";
    }

    /// Source range formats of Copy. wire §10.1
    pub flags Ocfs: u16 {
        [0] FORMAT_0, "Format 0.";
        [1] FORMAT_1, "Format 1.";
        [2] FORMAT_2, "Format 2.";
        [3] FORMAT_3, "Format 3.";
    }

    /// SGL support. wire §10.1
    pub bits Sgls: u32 {
        [1:0] support, with_support: u8, "SGLs taken: 0 none, 1 without alignment. Linux needs it non-zero.";
        [2] keyed, with_keyed: bool, "Keyed descriptors: RDMA only.";
        [20] in_capsule_offset, with_in_capsule_offset: bool,
            "In-capsule data by offset. SPDK and newer Linux need it.";
        [21] transport, with_transport: bool, "Transport data blocks.";
    }
}

impl Sgls {
    /// The value of a TCP controller.
    pub const TCP: Self = Self::from_bits(0x0030_0001);
}

tables! {
    /// Fabrics controller attributes. wire §10.1
    pub flags Fcatt: u8 {
        [0] STATIC, "Static controller model.";
    }

    /// Optional Fabrics commands. wire §10.1
    pub flags Ofcs: u16 {
        [0] DISCONNECT, "Disconnect.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// wire §10.1
    #[test]
    fn packed_fields_have_the_bits_of_the_table() {
        assert_eq!(Frmw::default().with_slot1_read_only(true).with_slots(1).bits(), 0x03);
        let vwc = Vwc::default().with_present(true).with_flush_all(FlushAll::SUPPORTED);
        assert_eq!(vwc.bits(), 0b111);
        assert_eq!(Vwc::from_bits(0b101).flush_all(), FlushAll::UNSUPPORTED);
        let sgls = Sgls::default().with_support(1).with_in_capsule_offset(true);
        assert_eq!(sgls.bits(), 0x0010_0001);
        assert_eq!(sgls.with_transport(true), Sgls::TCP);
        assert_eq!(Sgls::default().with_keyed(true).bits(), 0b100);
    }

    /// wire §10.1
    #[test]
    fn flags_have_the_bits_of_the_table() {
        assert_eq!(Cmic::all().bits(), 0b1011);
        assert_eq!(Ctratt::all().bits(), 0b1000_0010_1100_0001);
        assert_eq!(Oacs::all().bits(), 0b11_0011_1111);
        assert_eq!(Lpa::all().bits(), 0b10_1111);
        assert_eq!(Anacap::all().bits(), 0b1101_1111);
        assert_eq!(Oncs::all().bits(), 0b1_1111_1111);
        assert_eq!(Fuses::all().bits(), 1);
        assert_eq!(Nwpc::all().bits(), 0b111);
        assert_eq!(Ocfs::all().bits(), 0b1111);
        assert_eq!((Fcatt::all().bits(), Ofcs::all().bits()), (1, 1));
    }
}
