//! Identify namespace of the NVM command set (CNS 00). wire §10.2

use crate::identify::IDENTIFY_BYTES;
use crate::{U16, U32, U64, U128};

tables! {
    /// Identify Namespace data of a block namespace. All zero means that it does not exist. wire §10.2
    pub structure IdentifyNamespace: IDENTIFY_BYTES {
        0 pub nsze: U64, "Size, blocks.";
        8 pub ncap: U64, "Capacity, blocks; 0 means that the namespace does not exist.";
        16 pub nuse: U64, "Blocks in use.";
        24 pub nsfeat: Nsfeat, "Features.";
        25 nlbaf: u8 as format_count, set_format_count: count, "Formats that [`IdentifyNamespace::lbaf`] holds.";
        26 pub flbas: Flbas, "Format in use.";
        27 pub mc: u8, "Metadata capabilities, 0 without protection information.";
        28 pub dpc: u8, "Protection capabilities, 0 without protection information.";
        29 pub dps: u8, "Protection settings, 0 without protection information.";
        30 pub nmic: Nmic, "Sharing. Linux refuses a second path to a namespace that is not shared.";
        31 pub rescap: Rescap, "Reservation capabilities.";
        32 pub fpi: u8, "Format progress, 0.";
        33 pub dlfeat: Dlfeat, "Content of deallocated blocks.";
        34 nawun: U16 as atomic_write_blocks, set_atomic_write_blocks: count,
            "Blocks written atomically in normal operation.";
        36 nawupf: U16 as atomic_write_blocks_power_fail, set_atomic_write_blocks_power_fail: count,
            "Blocks written atomically over power failure.";
        38 nacwu: U16 as atomic_compare_write_blocks, set_atomic_compare_write_blocks: count,
            "Blocks compared and written atomically.";
        40 pub nabsn: U16, "Atomic boundary in normal operation, as the wire has it; 0 for none.";
        42 pub nabo: U16, "Offset of the atomic boundary, blocks.";
        44 pub nabspf: U16, "Atomic boundary over power failure, as the wire has it; 0 for none.";
        46 pub noiob: U16, "Optimal I/O boundary, blocks, 0 for none.";
        48 pub nvmcap: U128, "Capacity, bytes.";
        64 npwg: U16 as write_granularity_blocks, set_write_granularity_blocks: count,
            "Preferred write granularity, blocks. Linux takes it as the physical block if it is the smallest.";
        66 npwa: U16 as write_alignment_blocks, set_write_alignment_blocks: count, "Preferred write alignment, blocks.";
        68 npdg: U16 as deallocate_granularity_blocks, set_deallocate_granularity_blocks: count,
            "Preferred deallocate granularity, blocks.";
        70 npda: U16 as deallocate_alignment_blocks, set_deallocate_alignment_blocks: count,
            "Preferred deallocate alignment, blocks.";
        72 nows: U16 as optimal_write_blocks, set_optimal_write_blocks: count, "Optimal write size, blocks.";
        74 pub mssrl: U16, "Blocks in one source range of Copy.";
        76 pub mcl: U32, "Blocks in one Copy.";
        80 msrc: u8 as copy_ranges, set_copy_ranges: count, "Source ranges in one Copy.";
        81 reserved_81: [u8; 11];
        92 pub anagrpid: U32, "ANA group, from 1 when ANA is on.";
        96 reserved_96: [u8; 3];
        99 pub nsattr: Nsattr, "Attributes.";
        100 pub nvmsetid: U16, "NVM set, 0.";
        102 pub endgid: U16, "Endurance group, 0.";
        104 pub nguid: [u8; 16], "128-bit identifier, big-endian, or zero.";
        120 pub eui64: [u8; 8], "64-bit identifier, big-endian, or zero.";
        128 pub lbaf: [LbaFormat; 64], "Formats; see [`IdentifyNamespace::format_count`].";
        384 pub vendor_specific: [u8; 3456], "The vendor's own.";
        3840 vendor: NvmVendorArea;
    }

    /// The last part of the vendor's own: what a namespace of ours has beyond the command set. wire §14.1
    pub structure NvmVendorArea: 256 {
        0 signature: [u8; 8];
        8 pub version: U16, "Version: a higher one only adds.";
        10 reserved_10: [u8; 2];
        12 pub commands: NvmVendorCommands, "The commands there are.";
        13 reserved_13: [u8; 243];
    }

    /// I/O commands beyond the command set. wire §14.1
    pub flags NvmVendorCommands: u8 {
        [0] LBA_STATUS, "Get LBA Status on I/O queues.";
    }

    /// A format: block and metadata size. wire §10.2
    pub structure LbaFormat: 4 {
        0 pub ms: U16, "Metadata bytes per block.";
        2 lbads: u8;
        3 pub rp: u8, "Relative performance in bits 1:0, 0 best.";
    }
}

impl LbaFormat {
    /// A format without metadata; `None` unless `block_bytes` is a power of two from 512 up.
    #[must_use]
    pub const fn new(block_bytes: u32) -> Option<Self> {
        if !block_bytes.is_power_of_two() || block_bytes < 512 {
            return None;
        }
        Some(Self { ms: U16::ZERO, lbads: (block_bytes.trailing_zeros() & 31) as u8, rp: 0 })
    }

    /// Bytes of a block, without metadata; `None` if the format does not exist or is invalid (512 bytes to
    /// 2 GiB do).
    #[must_use]
    pub const fn block_bytes(&self) -> Option<u32> {
        match self.lbads {
            9..=31 => Some(1 << self.lbads),
            _ => None,
        }
    }
}

tables! {
    /// Namespace features. wire §10.2
    pub flags Nsfeat: u8 {
        [0] THIN, "Thin provisioned.";
        [1] ATOMIC_SIZES, "The namespace's own atomic sizes are valid.";
        [2] DEALLOCATED_ERROR, "Reading deallocated blocks can be made an error.";
        [3] UID_REUSE, "Identifiers are never used again.";
        [4] OPTIMAL_SIZES, "The optimal write and deallocate sizes are valid.";
    }

    /// Format in use. wire §10.2
    pub bits Flbas: u8 {
        [3:0] index_low, with_index_low: u8, "Low bits of the index.";
        [4] metadata_inline, with_metadata_inline: bool, "Metadata lies between the blocks, not beside them.";
        [6:5] index_high, with_index_high: u8, "High bits of the index.";
    }
}

impl Flbas {
    /// Index of the format in use, 0..=63.
    #[must_use]
    pub const fn index(self) -> u8 {
        self.index_low() | self.index_high() << 4
    }

    /// With this format in use, 0..=63.
    #[must_use]
    pub const fn with_index(self, index: u8) -> Self {
        self.with_index_low(index & 0xF).with_index_high(index >> 4)
    }
}

tables! {
    /// Namespace sharing. wire §10.2
    pub flags Nmic: u8 {
        [0] SHARED, "Several controllers may have it.";
    }

    /// Reservation capabilities. wire §10.2
    pub flags Rescap: u8 {
        [0] PTPL, "Persistence through power loss.";
        [1] WRITE_EXCLUSIVE, "Write exclusive.";
        [2] EXCLUSIVE_ACCESS, "Exclusive access.";
        [3] WRITE_EXCLUSIVE_REGISTRANTS, "Write exclusive, registrants only.";
        [4] EXCLUSIVE_ACCESS_REGISTRANTS, "Exclusive access, registrants only.";
        [5] WRITE_EXCLUSIVE_ALL, "Write exclusive, all registrants.";
        [6] EXCLUSIVE_ACCESS_ALL, "Exclusive access, all registrants.";
        [7] IGNORE_EXISTING_KEY, "Ignore existing key as in version 1.3.";
    }

    /// Content of deallocated blocks. wire §10.2
    pub codes DeallocatedValue: u8 {
        0 UNKNOWN, "unknown";
        1 ZEROES, "zeroes";
        2 ONES, "ones";
    }

    /// Deallocation features. wire §10.2
    pub bits Dlfeat: u8 {
        [2:0] value, with_value: DeallocatedValue, "Content of deallocated blocks.";
        [3] write_zeroes_deallocates, with_write_zeroes_deallocates: bool, "Write Zeroes may deallocate.";
    }

    /// Namespace attributes. wire §10.2
    pub flags Nsattr: u8 {
        [0] WRITE_PROTECTED, "Write protected now.";
    }
}

impl IdentifyNamespace {
    /// The format in use.
    #[must_use]
    #[allow(clippy::indexing_slicing, reason = "64 formats, six bits of index")]
    pub const fn format(&self) -> LbaFormat {
        self.lbaf[(self.flbas.index() & 63) as usize]
    }

    /// Bytes of a block, without metadata; `None` if the format in use is invalid.
    #[must_use]
    pub const fn block_bytes(&self) -> Option<u32> {
        self.format().block_bytes()
    }

    /// I/O commands of ours beyond the command set: none of another vendor's namespace.
    #[must_use]
    pub fn vendor_commands(&self) -> NvmVendorCommands {
        match self.vendor.signature {
            NvmVendorArea::SIGNATURE => self.vendor.commands,
            _ => NvmVendorCommands::empty(),
        }
    }

    /// Sets [`Self::vendor_commands`].
    pub fn set_vendor_commands(&mut self, commands: NvmVendorCommands) {
        let signature = NvmVendorArea::SIGNATURE;
        self.vendor = NvmVendorArea { signature, version: U16::new(1), commands, ..Default::default() };
    }

    /// Whether the namespace is there: one with capacity.
    #[must_use]
    pub const fn is_present(&self) -> bool {
        self.ncap.get() != 0
    }
}

impl NvmVendorArea {
    /// Its signature.
    pub const SIGNATURE: [u8; 8] = *b"nvlaneio";
}

default_zeroed! { IdentifyNamespace NvmVendorArea }

named_fields! {
    IdentifyNamespace:
    nsze, ncap, nuse, nsfeat, nlbaf, flbas, mc, dpc, dps, nmic, rescap, fpi, dlfeat, nawun, nawupf, nacwu, nabsn, nabo,
    nabspf, noiob, nvmcap, npwg, npwa, npdg, npda, nows, mssrl, mcl, msrc, anagrpid, nsattr, nvmsetid, endgid, nguid,
    eui64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    /// wire §10.2
    #[test]
    fn a_namespace_of_4_kib_blocks_has_the_bytes_of_the_reference() {
        let mut namespace = IdentifyNamespace { nmic: Nmic::SHARED, ..Default::default() };
        namespace.nsze.set(0x0102_0304);
        namespace.ncap.set(0x0102_0304);
        namespace.set_format_count(1);
        namespace.lbaf[0] = LbaFormat::new(4096).expect("a power of two");
        namespace.dlfeat =
            Dlfeat::default().with_value(DeallocatedValue::ZEROES).with_write_zeroes_deallocates(true);
        namespace.set_write_granularity_blocks(8);
        let raw = namespace.as_bytes();
        assert_eq!(raw[..17], [4, 3, 2, 1, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0, 0]);
        assert_eq!(raw[24..34], [0, 0, 0, 0, 0, 0, 1, 0, 0, 0b1001]);
        assert_eq!(raw[64..66], [7, 0]);
        assert_eq!(raw[128..132], [0, 0, 12, 0]);
        assert_eq!(namespace.block_bytes(), Some(4096));
        assert!(namespace.is_present() && !IdentifyNamespace::default().is_present());
    }

    /// wire §14.1
    #[test]
    fn our_own_commands_are_told_by_a_signature() {
        let mut namespace = IdentifyNamespace::default();
        assert!(namespace.vendor_commands().is_empty(), "somebody else's namespace");
        namespace.set_vendor_commands(NvmVendorCommands::LBA_STATUS);
        assert_eq!(namespace.as_bytes()[3840..3856], *b"nvlaneio\x01\0\0\0\x01\0\0\0");
        assert_eq!(namespace.vendor_commands(), NvmVendorCommands::LBA_STATUS);
    }

    #[test]
    fn its_fields_are_listed_in_wire_order_and_do_not_overlap() {
        assert!(IdentifyNamespace::FIELDS.is_sorted_by(|a, b| a.offset + a.length <= b.offset));
    }

    #[test]
    fn the_format_index_has_its_high_bits_apart() {
        assert_eq!(Flbas::from_bits(0b0110_0101).index(), 0b11_0101);
        assert_eq!(Flbas::default().with_index(0x21).with_metadata_inline(true).bits(), 0b0101_0001);
        let mut namespace =
            IdentifyNamespace { flbas: Flbas::default().with_index(63), ..Default::default() };
        namespace.lbaf[63] = LbaFormat::new(512).expect("a power of two");
        assert_eq!(namespace.block_bytes(), Some(512));
    }

    #[test]
    fn block_sizes_outside_512_bytes_to_2_gib_are_no_sizes() {
        for (lbads, bytes) in
            [(0, None), (8, None), (9, Some(512)), (31, Some(1 << 31)), (32, None), (255, None)]
        {
            assert_eq!(LbaFormat { ms: U16::ZERO, lbads, rp: 0 }.block_bytes(), bytes);
        }
        for bytes in [0, 1, 256, 513, 4097] {
            assert!(LbaFormat::new(bytes).is_none(), "{bytes}");
        }
    }

    proptest! {
        #[test]
        fn an_index_of_a_format_comes_back(bits: u8, index in 0u8..64) {
            prop_assert_eq!(Flbas::from_bits(bits).with_index(index).index(), index);
        }

        #[test]
        fn every_count_comes_back(count in 1u32..=65_536, small in 1u16..=256, shift in 9u32..32) {
            let mut namespace = IdentifyNamespace::default();
            namespace.set_format_count(small);
            namespace.set_atomic_write_blocks(count);
            namespace.set_atomic_write_blocks_power_fail(65_537 - count);
            namespace.set_atomic_compare_write_blocks(count);
            namespace.set_write_granularity_blocks(65_537 - count);
            namespace.set_write_alignment_blocks(count);
            namespace.set_deallocate_granularity_blocks(65_537 - count);
            namespace.set_deallocate_alignment_blocks(count);
            namespace.set_optimal_write_blocks(65_537 - count);
            namespace.set_copy_ranges(257 - small);
            namespace.lbaf[0] = LbaFormat::new(1 << shift).expect("a power of two");
            let namespace = IdentifyNamespace::read_from_bytes(namespace.as_bytes()).expect("4096 bytes");
            prop_assert_eq!((namespace.format_count(), namespace.copy_ranges()), (small, 257 - small));
            prop_assert_eq!(namespace.atomic_write_blocks(), count);
            prop_assert_eq!(namespace.atomic_write_blocks_power_fail(), 65_537 - count);
            prop_assert_eq!(namespace.atomic_compare_write_blocks(), count);
            prop_assert_eq!(namespace.write_granularity_blocks(), 65_537 - count);
            prop_assert_eq!(namespace.write_alignment_blocks(), count);
            prop_assert_eq!(namespace.deallocate_granularity_blocks(), 65_537 - count);
            prop_assert_eq!(namespace.deallocate_alignment_blocks(), count);
            prop_assert_eq!(namespace.optimal_write_blocks(), 65_537 - count);
            prop_assert_eq!(namespace.block_bytes(), Some(1 << shift));
        }

        #[test]
        fn no_namespace_makes_an_accessor_panic(seed: [u8; 61]) {
            let bytes: Vec<u8> = seed.iter().copied().cycle().take(4096).collect();
            let namespace = IdentifyNamespace::read_from_bytes(&bytes).expect("4096 bytes");
            prop_assert_eq!(namespace.as_bytes(), &bytes);
            let _ = (namespace.block_bytes(), namespace.format_count(), namespace.copy_ranges());
        }
    }
}
