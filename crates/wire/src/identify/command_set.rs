//! Identify data of the command sets: specific (CNS 05, 06), independent (CNS 08), and their combinations (CNS 1C).
//! wire §10.4, wire §23

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::identify::IDENTIFY_BYTES;
use crate::identify::controller::{size_limit_bytes, size_limit_exponent};
use crate::identify::namespace::{Nmic, Nsattr, Nsfeat, Rescap};
use crate::property::Vs;
use crate::{U16, U32, U64};

/// Namespace, NVM command set (CNS 05, CSI 0): all zero without protection information. wire §10.4
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmNamespace {
    /// Storage tag mask.
    pub lbstm: U64,
    /// Protection capabilities.
    pub pic: u8,
    reserved_9: [u8; 3],
    /// Extended formats, as the wire has them.
    pub elbaf: [U32; 64],
    reserved_268: [u8; 3828],
}
const _: () = assert!(size_of::<NvmNamespace>() == IDENTIFY_BYTES as usize);

/// Controller, NVM command set (CNS 06, CSI 0): limits of single commands. wire §10.4
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmController {
    vsl: u8,
    wzsl: u8,
    wusl: u8,
    /// Ranges in one Dataset Management, 0 for no limit.
    pub dmrl: u8,
    /// Blocks in one range of Dataset Management, 0 for no limit.
    pub dmrsl: U32,
    /// Blocks in one Dataset Management, 0 for no limit.
    pub dmsl: U64,
    reserved_16: [u8; 4080],
}
const _: () = assert!(size_of::<NvmController>() == IDENTIFY_BYTES as usize);

/// Getters and setters of limits stored as powers of two of pages.
macro_rules! size_limits {
    ($($(#[$meta:meta])* $get:ident, $set:ident: $field:ident;)*) => {$(
        $(#[$meta])*
        #[must_use]
        pub const fn $get(&self, page_bytes_min: u32) -> Option<u64> {
            size_limit_bytes(self.$field, page_bytes_min)
        }

        #[doc = concat!("Sets [`Self::", stringify!($get), "`]: rounded down to a power of two of pages,")]
        /// but to no less than two.
        pub fn $set(&mut self, limit_bytes: Option<u64>, page_bytes_min: u32) {
            self.$field = size_limit_exponent(limit_bytes, page_bytes_min);
        }
    )*};
}

impl NvmController {
    size_limits! {
        /// Most bytes one Verify may cover, or `None` for no limit. `page_bytes_min` is CAP's.
        verify_limit_bytes, set_verify_limit_bytes: vsl;
        /// Most bytes one Write Zeroes may cover, or `None` for no limit. Linux cuts by it.
        /// `page_bytes_min` is CAP's.
        write_zeroes_limit_bytes, set_write_zeroes_limit_bytes: wzsl;
        /// Most bytes one Write Uncorrectable may cover, or `None` for no limit. `page_bytes_min` is CAP's.
        write_uncorrectable_limit_bytes, set_write_uncorrectable_limit_bytes: wusl;
    }
}

/// Namespace of any command set (CNS 08). wire §10.4
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IndependentNamespace {
    /// Features.
    pub nsfeat: Nsfeat,
    /// Sharing.
    pub nmic: Nmic,
    /// Reservation capabilities.
    pub rescap: Rescap,
    /// Format progress, 0.
    pub fpi: u8,
    /// ANA group.
    pub anagrpid: U32,
    /// Attributes.
    pub nsattr: Nsattr,
    reserved_9: u8,
    /// NVM set, 0.
    pub nvmsetid: U16,
    /// Endurance group, 0.
    pub endgid: U16,
    /// Status.
    pub nstat: Nstat,
    reserved_15: [u8; 4081],
}
const _: () = assert!(size_of::<IndependentNamespace>() == IDENTIFY_BYTES as usize);

flags! {
    /// Namespace status. wire §10.4
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Nstat: u8 {
        /// Ready for I/O; Linux skips a namespace that is not.
        READY = 1 << 0;
    }
}

/// Namespace, key-value command set (CNS 05, CSI 1). wire §23
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KvNamespace {
    /// Size, bytes.
    pub nsze: U64,
    reserved_8: [u8; 8],
    /// Bytes in use, keys and values.
    pub nuse: U64,
    /// Features.
    pub nsfeat: Nsfeat,
    nkvf: u8,
    /// Sharing.
    pub nmic: Nmic,
    /// Reservation capabilities.
    pub rescap: Rescap,
    /// Format progress, 0.
    pub fpi: u8,
    /// Format in use.
    pub kvfc: u8,
    reserved_30: [u8; 2],
    /// Optimal value granularity, bytes.
    pub novg: U32,
    /// ANA group.
    pub anagrpid: U32,
    reserved_40: [u8; 3],
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
    /// Formats; see [`KvNamespace::format_count`].
    pub kvf: [KvFormat; 16],
    reserved_328: [u8; 3512],
    vendor: KvVendorArea,
}
const _: () = assert!(size_of::<KvNamespace>() == IDENTIFY_BYTES as usize);
const _: () = assert!(core::mem::offset_of!(KvNamespace, kvf) == 72);

/// A format: limits of keys and values. wire §23
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KvFormat {
    /// Bytes of a key, at most 16.
    pub key_bytes_max: U16,
    reserved_2: u8,
    /// Options.
    pub options: u8,
    /// Bytes of a value.
    pub value_bytes_max: U32,
    /// Keys, 0 for no limit.
    pub keys_max: U32,
    reserved_12: [u8; 4],
}
const _: () = assert!(size_of::<KvFormat>() == 16);

impl KvFormat {
    /// A format with these limits.
    #[must_use]
    pub const fn new(key_bytes_max: u16, value_bytes_max: u32, keys_max: u32) -> Self {
        Self {
            key_bytes_max: U16::new(key_bytes_max),
            reserved_2: 0,
            options: 0,
            value_bytes_max: U32::new(value_bytes_max),
            keys_max: U32::new(keys_max),
            reserved_12: [0; 4],
        }
    }
}

impl KvNamespace {
    count_fields! {
        /// Formats that [`KvNamespace::kvf`] holds.
        format_count, set_format_count: nkvf as u16;
    }

    /// The format in use; `None` if it is none of the sixteen.
    #[must_use]
    pub fn format(&self) -> Option<&KvFormat> {
        self.kvf.get(usize::from(self.kvfc))
    }

    /// The vendor area, if it is one of ours.
    #[must_use]
    pub fn vendor(&self) -> Option<&KvVendorArea> {
        Some(&self.vendor).filter(|vendor| vendor.signature == KvVendorArea::SIGNATURE)
    }

    /// Sets [`Self::vendor`].
    pub fn set_vendor(&mut self, vendor: KvVendorArea) {
        self.vendor = KvVendorArea { signature: KvVendorArea::SIGNATURE, ..vendor };
    }
}

/// The vendor-specific part of a namespace's data (bytes 4095:3840): our own commands and their limits.
/// docs/kv-commands.md §1
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KvVendorArea {
    signature: [u8; 8],
    /// Version of the commands: a higher one only adds.
    pub version: U16,
    reserved_10: [u8; 2],
    /// The commands there are.
    pub commands: KvVendorCommands,
    reserved_13: [u8; 3],
    /// Operations of one batch.
    pub batch_operations_max: U32,
    /// Bytes of the operations of a batch and their outcomes together.
    pub batch_bytes_max: U32,
    /// Bytes of a vector that is worked on.
    pub vector_bytes_max: U32,
    /// Bytes of vectors that the operations of one batch work on together.
    pub batch_vector_bytes_max: U32,
    reserved_32: [u8; 224],
}
const _: () = assert!(size_of::<KvVendorArea>() == 256);
const _: () = assert!(core::mem::offset_of!(KvNamespace, vendor) == 3840);

impl KvVendorArea {
    /// Its signature.
    pub const SIGNATURE: [u8; 8] = *b"nvlanekv";
}

flags! {
    /// Commands beyond the command set. docs/kv-commands.md §1
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct KvVendorCommands: u8 {
        /// Batch Submit and Batch Collect.
        BATCH = 1 << 0;
        /// Atomic.
        ATOMIC = 1 << 1;
        /// The five on vectors.
        VECTOR = 1 << 2;
    }
}

/// Controller, key-value command set (CNS 06, CSI 1). wire §23
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KvController {
    ver: U32,
    reserved_4: [u8; 4092],
}
const _: () = assert!(size_of::<KvController>() == IDENTIFY_BYTES as usize);

impl KvController {
    /// One that follows this version of the command set.
    #[must_use]
    pub const fn new(version: Vs) -> Self {
        Self { ver: U32::new(version.bits()), reserved_4: [0; 4092] }
    }

    /// Version of the command set.
    #[must_use]
    pub const fn version(&self) -> Vs {
        Vs::from_bits(self.ver.get())
    }
}

flags! {
    /// Command sets that can be on together. wire §10.4
    pub struct CommandSets: u64 {
        /// NVM.
        NVM = 1 << 0;
        /// Key value.
        KV = 1 << 1;
        /// Zoned namespaces.
        ZNS = 1 << 2;
    }
}

/// Combinations of command sets a controller can have on (CNS 1C); feature 0x19 picks one by index. wire §10.4
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandSetVectors {
    vectors: [U64; 512],
}
const _: () = assert!(size_of::<CommandSetVectors>() == IDENTIFY_BYTES as usize);

impl CommandSetVectors {
    /// These combinations, 512 at most.
    #[must_use]
    pub fn new(combinations: &[CommandSets]) -> Self {
        let mut this = Self::new_zeroed();
        for (vector, sets) in this.vectors.iter_mut().zip(combinations) {
            vector.set(sets.bits());
        }
        this
    }

    /// The combinations in order of their index, up to the first empty one.
    pub fn combinations(&self) -> impl Iterator<Item = CommandSets> {
        let sets = self.vectors.iter().map(|vector| CommandSets::from_bits_retain(vector.get()));
        sets.take_while(|sets| !sets.is_empty())
    }

    /// The combination at an index; `None` if there is none.
    #[must_use]
    pub fn combination(&self, index: u16) -> Option<CommandSets> {
        let vector = self.vectors.get(usize::from(index))?;
        Some(CommandSets::from_bits_retain(vector.get())).filter(|sets| !sets.is_empty())
    }
}

default_zeroed! { NvmNamespace NvmController IndependentNamespace KvNamespace KvVendorArea }

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// wire §10.4, wire §23
    #[test]
    fn fields_lie_where_the_reference_says() {
        assert_offsets!(NvmNamespace: lbstm @ 0, pic @ 8, elbaf @ 12, reserved_268 @ 268);
        assert_offsets!(NvmController: vsl @ 0, wzsl @ 1, wusl @ 2, dmrl @ 3, dmrsl @ 4, dmsl @ 8);
        assert_offsets!(
            IndependentNamespace:
            nsfeat @ 0, nmic @ 1, rescap @ 2, fpi @ 3, anagrpid @ 4, nsattr @ 8, nvmsetid @ 10, endgid @ 12,
            nstat @ 14,
        );
        assert_offsets!(
            KvNamespace:
            nsze @ 0, nuse @ 16, nsfeat @ 24, nkvf @ 25, nmic @ 26, rescap @ 27, fpi @ 28, kvfc @ 29, novg @
            32, anagrpid @ 36, nsattr @ 43, nvmsetid @ 44, endgid @ 46, nguid @ 48, eui64 @ 64, kvf @ 72,
            reserved_328 @ 328, vendor @ 3840,
        );
        assert_offsets!(
            KvVendorArea:
            signature @ 0, version @ 8, commands @ 12, batch_operations_max @ 16, batch_bytes_max @ 20,
            vector_bytes_max @ 24, batch_vector_bytes_max @ 28, reserved_32 @ 32,
        );
        assert_offsets!(KvFormat: key_bytes_max @ 0, options @ 3, value_bytes_max @ 4, keys_max @ 8);
        assert_offsets!(KvController: ver @ 0);
    }

    #[test]
    fn a_key_value_namespace_has_the_bytes_of_the_reference() {
        let mut namespace = KvNamespace { nmic: Nmic::SHARED, ..Default::default() };
        namespace.nsze.set(1 << 30);
        namespace.set_format_count(1);
        namespace.kvf[0] = KvFormat::new(16, 1 << 20, 0);
        let raw = namespace.as_bytes();
        assert_eq!(raw[..8], [0, 0, 0, 0x40, 0, 0, 0, 0]);
        assert_eq!(raw[24..30], [0, 0, 1, 0, 0, 0]);
        assert_eq!(raw[72..88], [16, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(namespace.format().map(|format| format.key_bytes_max.get()), Some(16));
        namespace.kvfc = 16;
        assert!(namespace.format().is_none());
    }

    #[test]
    fn our_own_commands_are_told_by_a_signature() {
        let mut namespace = KvNamespace::default();
        assert!(namespace.vendor().is_none(), "somebody else's namespace");
        let commands = KvVendorCommands::BATCH | KvVendorCommands::VECTOR;
        namespace.set_vendor(KvVendorArea { version: U16::new(1), commands, ..Default::default() });
        let raw = &namespace.as_bytes()[3840..];
        assert_eq!(raw[..16], *b"nvlanekv\x01\0\0\0\x05\0\0\0");
        assert_eq!(namespace.vendor().map(|vendor| vendor.commands), Some(commands));
    }

    #[test]
    fn limits_are_bytes_of_pages() {
        let mut controller = NvmController::default();
        controller.set_write_zeroes_limit_bytes(Some(8 << 20), 4096);
        assert_eq!(controller.as_bytes()[..4], [0, 11, 0, 0]);
        assert_eq!(controller.write_zeroes_limit_bytes(4096), Some(8 << 20));
        assert_eq!(controller.verify_limit_bytes(4096), None);
        controller.set_verify_limit_bytes(Some(1 << 14), 4096);
        controller.set_write_uncorrectable_limit_bytes(Some(1 << 15), 4096);
        assert_eq!(controller.as_bytes()[..4], [2, 11, 3, 0]);
    }

    #[test]
    fn combinations_end_at_the_first_empty_one() {
        let both = CommandSets::NVM | CommandSets::KV;
        let vectors = CommandSetVectors::new(&[CommandSets::NVM, both]);
        assert_eq!(vectors.as_bytes()[..17], [1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(vectors.combinations().collect::<Vec<_>>(), [CommandSets::NVM, both]);
        assert_eq!(vectors.combination(1), Some(both));
        assert_eq!((vectors.combination(2), vectors.combination(512)), (None, None));
    }

    #[test]
    fn a_key_value_controller_has_a_version() {
        let controller = KvController::new(Vs::V1_3);
        assert_eq!(controller.as_bytes()[..5], [0, 3, 1, 0, 0]);
        assert_eq!(controller.version(), Vs::V1_3);
    }

    proptest! {
        #[test]
        fn combinations_read_back(bits in prop::collection::vec(1u64.., 0..20)) {
            let combinations: Vec<_> = bits.into_iter().map(CommandSets::from_bits_retain).collect();
            let vectors = CommandSetVectors::new(&combinations);
            prop_assert_eq!(vectors.combinations().collect::<Vec<_>>(), combinations);
        }

        #[test]
        fn counts_and_formats_read_back(count in 1u16..=256, key: u16, value: u32, keys: u32) {
            let mut namespace = KvNamespace::default();
            namespace.set_format_count(count);
            namespace.kvf[0] = KvFormat::new(key, value, keys);
            let namespace = KvNamespace::read_from_bytes(namespace.as_bytes()).expect("4096 bytes");
            prop_assert_eq!(namespace.format_count(), count);
            let format = namespace.kvf[0];
            prop_assert_eq!(
                (format.key_bytes_max.get(), format.value_bytes_max.get(), format.keys_max.get()),
                (key, value, keys)
            );
        }

        #[test]
        fn no_bytes_make_an_accessor_panic(seed: [u8; 61], page_bytes: u32, index: u16) {
            let bytes: Vec<u8> = seed.iter().copied().cycle().take(4096).collect();
            let controller = NvmController::read_from_bytes(&bytes).expect("4096 bytes");
            let _ = controller.verify_limit_bytes(page_bytes);
            let _ = controller.write_zeroes_limit_bytes(page_bytes);
            let _ = controller.write_uncorrectable_limit_bytes(page_bytes);
            let namespace = KvNamespace::read_from_bytes(&bytes).expect("4096 bytes");
            let _ = (namespace.format(), namespace.format_count());
            let vectors = CommandSetVectors::read_from_bytes(&bytes).expect("4096 bytes");
            let _ = (vectors.combinations().count(), vectors.combination(index));
        }
    }
}
