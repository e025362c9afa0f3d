//! Identify namespace of the NVM command set (CNS 00). wire §10.2

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::identify::IDENTIFY_BYTES;
use crate::{U16, U32, U64, U128};

/// Identify Namespace data of a block namespace. All zero means that it does not exist. wire §10.2
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Size, blocks.
    pub nsze: U64,
    /// Capacity, blocks; 0 means that the namespace does not exist.
    pub ncap: U64,
    /// Blocks in use.
    pub nuse: U64,
    /// Features.
    pub nsfeat: Nsfeat,
    nlbaf: u8,
    /// Format in use.
    pub flbas: Flbas,
    /// Metadata capabilities, 0 without protection information.
    pub mc: u8,
    /// Protection capabilities, 0 without protection information.
    pub dpc: u8,
    /// Protection settings, 0 without protection information.
    pub dps: u8,
    /// Sharing. Linux refuses a second path to a namespace that is not shared.
    pub nmic: Nmic,
    /// Reservation capabilities.
    pub rescap: Rescap,
    /// Format progress, 0.
    pub fpi: u8,
    /// Content of deallocated blocks.
    pub dlfeat: Dlfeat,
    nawun: U16,
    nawupf: U16,
    nacwu: U16,
    /// Atomic boundary in normal operation, as the wire has it; 0 for none.
    pub nabsn: U16,
    /// Offset of the atomic boundary, blocks.
    pub nabo: U16,
    /// Atomic boundary over power failure, as the wire has it; 0 for none.
    pub nabspf: U16,
    /// Optimal I/O boundary, blocks, 0 for none.
    pub noiob: U16,
    /// Capacity, bytes.
    pub nvmcap: U128,
    npwg: U16,
    npwa: U16,
    npdg: U16,
    npda: U16,
    nows: U16,
    /// Blocks in one source range of Copy.
    pub mssrl: U16,
    /// Blocks in one Copy.
    pub mcl: U32,
    msrc: u8,
    reserved_81: [u8; 11],
    /// ANA group, from 1 when ANA is on.
    pub anagrpid: U32,
    reserved_96: [u8; 3],
    /// Attributes.
    pub nsattr: Nsattr,
    /// NVM set, 0.
    pub nvmsetid: U16,
    /// Endurance group, 0.
    pub endgid: U16,
    /// 128-bit identifier, big-endian, or zero.
    pub nguid: [u8; 16],
    /// 64-bit identifier, big-endian, or zero.
    pub eui64: [u8; 8],
    /// Formats; see [`IdentifyNamespace::format_count`].
    pub lbaf: [LbaFormat; 64],
    /// The vendor's own.
    pub vendor_specific: [u8; 3712],
}
const _: () = assert!(size_of::<IdentifyNamespace>() == IDENTIFY_BYTES as usize);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespace, lbaf) == 128);

/// A format: block and metadata size. wire §10.2
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata bytes per block.
    pub ms: U16,
    lbads: u8,
    /// Relative performance in bits 1:0, 0 best.
    pub rp: u8,
}
const _: () = assert!(size_of::<LbaFormat>() == 4);

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

flags! {
    /// Namespace features. wire §10.2
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Nsfeat: u8 {
        /// Thin provisioned.
        THIN = 1 << 0;
        /// The namespace's own atomic sizes are valid.
        ATOMIC_SIZES = 1 << 1;
        /// Reading deallocated blocks can be made an error.
        DEALLOCATED_ERROR = 1 << 2;
        /// Identifiers are never used again.
        UID_REUSE = 1 << 3;
        /// The optimal write and deallocate sizes are valid.
        OPTIMAL_SIZES = 1 << 4;
    }
}

bit_fields! {
    /// Format in use. wire §10.2
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Flbas: u8 {
        /// Low bits of the index.
        index_low, with_index_low: u8 [3:0];
        /// Metadata lies between the blocks, not beside them.
        metadata_inline, with_metadata_inline: bool [4];
        /// High bits of the index.
        index_high, with_index_high: u8 [6:5];
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

flags! {
    /// Namespace sharing. wire §10.2
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Nmic: u8 {
        /// Several controllers may have it.
        SHARED = 1 << 0;
    }
}

flags! {
    /// Reservation capabilities. wire §10.2
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Rescap: u8 {
        /// Persistence through power loss.
        PTPL = 1 << 0;
        /// Write exclusive.
        WRITE_EXCLUSIVE = 1 << 1;
        /// Exclusive access.
        EXCLUSIVE_ACCESS = 1 << 2;
        /// Write exclusive, registrants only.
        WRITE_EXCLUSIVE_REGISTRANTS = 1 << 3;
        /// Exclusive access, registrants only.
        EXCLUSIVE_ACCESS_REGISTRANTS = 1 << 4;
        /// Write exclusive, all registrants.
        WRITE_EXCLUSIVE_ALL = 1 << 5;
        /// Exclusive access, all registrants.
        EXCLUSIVE_ACCESS_ALL = 1 << 6;
        /// Ignore existing key as in version 1.3.
        IGNORE_EXISTING_KEY = 1 << 7;
    }
}

codes! {
    /// Content of deallocated blocks. wire §10.2
    pub struct DeallocatedValue: u8 {
        UNKNOWN = 0, "unknown";
        ZEROES = 1, "zeroes";
        ONES = 2, "ones";
    }
}

bit_fields! {
    /// Deallocation features. wire §10.2
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Dlfeat: u8 {
        /// Content of deallocated blocks.
        value, with_value: DeallocatedValue [2:0];
        /// Write Zeroes may deallocate.
        write_zeroes_deallocates, with_write_zeroes_deallocates: bool [3];
    }
}

flags! {
    /// Namespace attributes. wire §10.2
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Nsattr: u8 {
        /// Write protected now.
        WRITE_PROTECTED = 1 << 0;
    }
}

impl IdentifyNamespace {
    count_fields! {
        /// Formats that [`IdentifyNamespace::lbaf`] holds.
        format_count, set_format_count: nlbaf as u16;
        /// Blocks written atomically in normal operation.
        atomic_write_blocks, set_atomic_write_blocks: nawun as u32;
        /// Blocks written atomically over power failure.
        atomic_write_blocks_power_fail, set_atomic_write_blocks_power_fail: nawupf as u32;
        /// Blocks compared and written atomically.
        atomic_compare_write_blocks, set_atomic_compare_write_blocks: nacwu as u32;
        /// Preferred write granularity, blocks. Linux takes it as the physical block if it is the smallest.
        write_granularity_blocks, set_write_granularity_blocks: npwg as u32;
        /// Preferred write alignment, blocks.
        write_alignment_blocks, set_write_alignment_blocks: npwa as u32;
        /// Preferred deallocate granularity, blocks.
        deallocate_granularity_blocks, set_deallocate_granularity_blocks: npdg as u32;
        /// Preferred deallocate alignment, blocks.
        deallocate_alignment_blocks, set_deallocate_alignment_blocks: npda as u32;
        /// Optimal write size, blocks.
        optimal_write_blocks, set_optimal_write_blocks: nows as u32;
        /// Source ranges in one Copy.
        copy_ranges, set_copy_ranges: msrc as u16;
    }

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

    /// Whether the namespace is there: one with capacity.
    #[must_use]
    pub const fn is_present(&self) -> bool {
        self.ncap.get() != 0
    }
}

default_zeroed! { IdentifyNamespace }

named_fields! {
    IdentifyNamespace:
    nsze, ncap, nuse, nsfeat, nlbaf, flbas, mc, dpc, dps, nmic, rescap, fpi, dlfeat, nawun, nawupf, nacwu, nabsn, nabo,
    nabspf, noiob, nvmcap, npwg, npwa, npdg, npda, nows, mssrl, mcl, msrc, anagrpid, nsattr, nvmsetid, endgid, nguid,
    eui64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// wire §10.2
    #[test]
    fn fields_lie_where_the_reference_says() {
        assert_offsets!(
            IdentifyNamespace:
            nsze @ 0, ncap @ 8, nuse @ 16, nsfeat @ 24, nlbaf @ 25, flbas @ 26, mc @ 27, dpc @ 28, dps @ 29,
            nmic @ 30, rescap @ 31, fpi @ 32, dlfeat @ 33, nawun @ 34, nawupf @ 36, nacwu @ 38, nabsn @ 40,
            nabo @ 42, nabspf @ 44, noiob @ 46, nvmcap @ 48, npwg @ 64, npwa @ 66, npdg @ 68, npda @ 70, nows
            @ 72, mssrl @ 74, mcl @ 76, msrc @ 80, anagrpid @ 92, nsattr @ 99, nvmsetid @ 100, endgid @ 102,
            nguid @ 104, eui64 @ 120, lbaf @ 128, vendor_specific @ 384,
        );
        assert_offsets!(LbaFormat: ms @ 0, lbads @ 2, rp @ 3);
    }

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
        fn every_packed_field_comes_back_alone(bits: u8, index in 0u8..64) {
            Flbas::check_fields(bits);
            Dlfeat::check_fields(bits);
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
