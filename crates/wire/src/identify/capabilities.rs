//! Capabilities of a controller: the codes, flags and packed fields of Identify Controller. wire §10.1

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

flags! {
    /// Multi-path capabilities. wire §10.1
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Cmic: u8 {
        /// The subsystem may have several ports.
        MULTIPLE_PORTS = 1 << 0;
        /// The subsystem may have several controllers.
        MULTIPLE_CONTROLLERS = 1 << 1;
        /// ANA reporting.
        ANA = 1 << 3;
    }
}

flags! {
    /// Controller attributes. wire §10.1
    pub struct Ctratt: u32 {
        /// 128-bit host identifiers.
        HOST_ID_128 = 1 << 0;
        /// Any command counts as keep-alive traffic. wire §9
        TBKAS = 1 << 6;
        /// Namespace granularity list.
        NAMESPACE_GRANULARITY = 1 << 7;
        /// UUID list.
        UUID_LIST = 1 << 9;
        /// Extended LBA formats.
        EXTENDED_LBA_FORMATS = 1 << 15;
    }
}

codes! {
    /// Kind of controller. wire §10.1
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct ControllerType: u8 {
        IO = 1, "I/O controller";
        DISCOVERY = 2, "discovery controller";
        ADMINISTRATIVE = 3, "administrative controller";
    }
}

codes! {
    /// Kind of discovery controller. wire §10.1
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct DiscoveryControllerType: u8 {
        UNREPORTED = 0, "not reported";
        DIRECT = 1, "direct discovery controller";
        CENTRAL = 2, "central discovery controller";
    }
}

flags! {
    /// Optional admin commands. wire §10.1
    pub struct Oacs: u16 {
        /// Security Send and Receive.
        SECURITY = 1 << 0;
        /// Format NVM.
        FORMAT = 1 << 1;
        /// Firmware download and commit.
        FIRMWARE = 1 << 2;
        /// Namespace management.
        NAMESPACE_MANAGEMENT = 1 << 3;
        /// Device self-test.
        SELF_TEST = 1 << 4;
        /// Directives.
        DIRECTIVES = 1 << 5;
        /// Doorbell buffer.
        DOORBELL_BUFFER = 1 << 8;
        /// LBA status.
        LBA_STATUS = 1 << 9;
    }
}

bit_fields! {
    /// Firmware slots. wire §10.1
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Frmw: u8 {
        /// Slot 1 is read only.
        slot1_read_only, with_slot1_read_only: bool [0];
        /// Number of slots.
        slots, with_slots: u8 [3:1];
    }
}

flags! {
    /// Log page attributes. wire §10.1
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Lpa: u8 {
        /// SMART per namespace.
        SMART_PER_NAMESPACE = 1 << 0;
        /// Commands supported and effects log.
        COMMANDS_AND_EFFECTS = 1 << 1;
        /// 32-bit lengths and byte offsets; SPDK reads by offset only with it.
        EXTENDED_DATA = 1 << 2;
        /// Telemetry logs.
        TELEMETRY = 1 << 3;
        /// Supported log pages log.
        SUPPORTED_PAGES = 1 << 5;
    }
}

flags! {
    /// ANA capabilities. wire §10.1, wire §19
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Anacap: u8 {
        /// Reports optimized.
        OPTIMIZED = 1 << 0;
        /// Reports non-optimized.
        NON_OPTIMIZED = 1 << 1;
        /// Reports inaccessible.
        INACCESSIBLE = 1 << 2;
        /// Reports persistent loss.
        PERSISTENT_LOSS = 1 << 3;
        /// Reports change.
        CHANGE = 1 << 4;
        /// A namespace's group does not change while it is attached.
        GROUP_FIXED = 1 << 6;
        /// Namespace management takes a non-zero group.
        GROUP_IN_MANAGEMENT = 1 << 7;
    }
}

flags! {
    /// Optional NVM commands. wire §10.1
    pub struct Oncs: u16 {
        /// Compare.
        COMPARE = 1 << 0;
        /// Write Uncorrectable.
        WRITE_UNCORRECTABLE = 1 << 1;
        /// Dataset Management.
        DATASET_MANAGEMENT = 1 << 2;
        /// Write Zeroes.
        WRITE_ZEROES = 1 << 3;
        /// Save and select in the feature commands.
        SAVE_AND_SELECT = 1 << 4;
        /// Reservations.
        RESERVATIONS = 1 << 5;
        /// Timestamp feature.
        TIMESTAMP = 1 << 6;
        /// Verify.
        VERIFY = 1 << 7;
        /// Copy.
        COPY = 1 << 8;
    }
}

flags! {
    /// Fused operations. wire §16
    pub struct Fuses: u16 {
        /// Compare and write.
        COMPARE_AND_WRITE = 1 << 0;
    }
}

codes! {
    /// Effect of a Flush of all namespaces. wire §10.1
    pub struct FlushAll: u8 {
        UNSPECIFIED = 0, "not specified";
        UNSUPPORTED = 2, "not supported";
        SUPPORTED = 3, "supported";
    }
}

bit_fields! {
    /// Volatile write cache. wire §10.1
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Vwc: u8 {
        /// There is one: without it Linux sends neither Flush nor FUA.
        present, with_present: bool [0];
        /// Effect of a Flush of all namespaces.
        flush_all, with_flush_all: FlushAll [2:1];
    }
}

flags! {
    /// Namespace write protection. wire §10.1
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Nwpc: u8 {
        /// Plain write protection.
        WRITE_PROTECT = 1 << 0;
        /// Until the next power cycle.
        UNTIL_POWER_CYCLE = 1 << 1;
        /// For ever.
        PERMANENT = 1 << 2;
    }
}

flags! {
    /// Source range formats of Copy. wire §10.1
    pub struct Ocfs: u16 {
        /// Format 0.
        FORMAT_0 = 1 << 0;
        /// Format 1.
        FORMAT_1 = 1 << 1;
        /// Format 2.
        FORMAT_2 = 1 << 2;
        /// Format 3.
        FORMAT_3 = 1 << 3;
    }
}

bit_fields! {
    /// SGL support. wire §10.1
    pub struct Sgls: u32 {
        /// SGLs taken: 0 none, 1 without alignment. Linux needs it non-zero.
        support, with_support: u8 [1:0];
        /// Keyed descriptors: RDMA only.
        keyed, with_keyed: bool [2];
        /// In-capsule data by offset. SPDK and newer Linux need it.
        in_capsule_offset, with_in_capsule_offset: bool [20];
        /// Transport data blocks.
        transport, with_transport: bool [21];
    }
}

impl Sgls {
    /// The value of a TCP controller.
    pub const TCP: Self = Self::from_bits(0x0030_0001);
}

flags! {
    /// Fabrics controller attributes. wire §10.1
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Fcatt: u8 {
        /// Static controller model.
        STATIC = 1 << 0;
    }
}

flags! {
    /// Optional Fabrics commands. wire §10.1
    pub struct Ofcs: u16 {
        /// Disconnect.
        DISCONNECT = 1 << 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn every_packed_field_comes_back_alone(byte: u8, dword: u32) {
            Frmw::check_fields(byte);
            Vwc::check_fields(byte);
            Sgls::check_fields(dword);
        }
    }
}
