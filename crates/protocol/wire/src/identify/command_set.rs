//! Identify data of the command sets: specific (CNS 05, 06), independent (CNS 08), and their combinations (CNS 1C).
//! wire §10.4, wire §23

use zerocopy::FromZeros;

use crate::identify::IDENTIFY_BYTES;
use crate::identify::controller::{size_limit_bytes, size_limit_exponent};
use crate::identify::namespace::{Nmic, Nsattr, Nsfeat, Rescap};
use crate::property::Vs;
use crate::{U16, U32, U64};

tables! {
    /// Namespace, NVM command set (CNS 05, CSI 0): all zero without protection information. wire §10.4
    pub structure NvmNamespace: IDENTIFY_BYTES {
        0 pub lbstm: U64, "Storage tag mask.";
        8 pub pic: u8, "Protection capabilities.";
        9 reserved_9: [u8; 3];
        12 pub elbaf: [U32; 64], "Extended formats, as the wire has them.";
        268 reserved_268: [u8; 3828];
    }

    /// Controller, NVM command set (CNS 06, CSI 0): limits of single commands. wire §10.4
    pub structure NvmController: IDENTIFY_BYTES {
        0 vsl: u8;
        1 wzsl: u8;
        2 wusl: u8;
        3 pub dmrl: u8, "Ranges in one Dataset Management, 0 for no limit.";
        4 pub dmrsl: U32, "Blocks in one range of Dataset Management, 0 for no limit.";
        8 pub dmsl: U64, "Blocks in one Dataset Management, 0 for no limit.";
        16 reserved_16: [u8; 2];
        18 aocs: U16 as aocs, set_aocs: Aocs, "Optional admin commands.";
        20 reserved_20: [u8; 4076];
    }

    /// Optional admin commands of the NVM command set. wire §14.1
    pub flags Aocs: u16 {
        [0] ALLOCATED_LBA, "Get LBA Status of allocated blocks.";
    }
}

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

tables! {
    /// Namespace of any command set (CNS 08). wire §10.4
    pub structure IndependentNamespace: IDENTIFY_BYTES {
        0 pub nsfeat: Nsfeat, "Features.";
        1 pub nmic: Nmic, "Sharing.";
        2 pub rescap: Rescap, "Reservation capabilities.";
        3 pub fpi: u8, "Format progress, 0.";
        4 pub anagrpid: U32, "ANA group.";
        8 pub nsattr: Nsattr, "Attributes.";
        9 reserved_9: u8;
        10 pub nvmsetid: U16, "NVM set, 0.";
        12 pub endgid: U16, "Endurance group, 0.";
        14 pub nstat: Nstat, "Status.";
        15 reserved_15: [u8; 4081];
    }

    /// Namespace status. wire §10.4
    pub flags Nstat: u8 {
        [0] READY, "Ready for I/O; Linux skips a namespace that is not.";
    }

    /// Namespace, key-value command set (CNS 05, CSI 1). wire §23
    pub structure KvNamespace: IDENTIFY_BYTES {
        0 pub nsze: U64, "Size, bytes.";
        8 reserved_8: [u8; 8];
        16 pub nuse: U64, "Bytes in use, keys and values.";
        24 pub nsfeat: Nsfeat, "Features.";
        25 nkvf: u8 as format_count, set_format_count: count, "Formats that [`KvNamespace::kvf`] holds.";
        26 pub nmic: Nmic, "Sharing.";
        27 pub rescap: Rescap, "Reservation capabilities.";
        28 pub fpi: u8, "Format progress, 0.";
        29 pub kvfc: u8, "Format in use.";
        30 reserved_30: [u8; 2];
        32 pub novg: U32, "Optimal value granularity, bytes.";
        36 pub anagrpid: U32, "ANA group.";
        40 reserved_40: [u8; 3];
        43 pub nsattr: Nsattr, "Attributes.";
        44 pub nvmsetid: U16, "NVM set, 0.";
        46 pub endgid: U16, "Endurance group, 0.";
        48 pub nguid: [u8; 16], "128-bit identifier, big-endian, or zero.";
        64 pub eui64: [u8; 8], "64-bit identifier, big-endian, or zero.";
        72 pub kvf: [KvFormat; 16], "Formats; see [`KvNamespace::format_count`].";
        328 reserved_328: [u8; 3512];
        3840 vendor: KvVendorArea;
    }

    /// A format: limits of keys and values. wire §23
    pub structure KvFormat: 16 {
        0 pub key_bytes_max: U16, "Bytes of a key, at most 16.";
        2 reserved_2: u8;
        3 pub options: u8, "Options.";
        4 pub value_bytes_max: U32, "Bytes of a value.";
        8 pub keys_max: U32, "Keys, 0 for no limit.";
        12 reserved_12: [u8; 4];
    }
}

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

tables! {
    /// The vendor-specific part of a namespace's data (bytes 4095:3840): our own commands and their limits.
    /// docs/kv-commands.md §1
    pub structure KvVendorArea: 256 {
        0 signature: [u8; 8];
        8 pub version: U16, "Version of the commands: a higher one only adds.";
        10 pub long_key_bytes_max: U16, "Bytes of a key in the data of a command; 0: 16.";
        12 command_bits: U16 as commands, set_commands: KvVendorCommands, "The commands there are.";
        14 reserved_14: [u8; 2];
        16 pub batch_operations_max: U32, "Operations of one batch.";
        20 pub batch_bytes_max: U32, "Bytes of the operations of a batch and their outcomes together.";
        24 pub vector_bytes_max: U32, "Bytes of a vector that is worked on.";
        28 pub batch_vector_bytes_max: U32, "Bytes of vectors that the operations of one batch work on together.";
        32 pub value_bytes_max: U32, "Bytes of a value that Store Data or Batch Collect transfer, whatever MDTS is; 0: as for other commands.";
        36 reserved_36: [u8; 220];
    }
}

impl KvVendorArea {
    /// Its signature.
    pub const SIGNATURE: [u8; 8] = *b"nvlanekv";
}

tables! {
    /// Commands beyond the command set. docs/kv-commands.md §1
    pub flags KvVendorCommands: u16 {
        [0] BATCH, "Batch Submit and Batch Collect.";
        [1] ATOMIC, "Atomic.";
        [2] VECTOR, "The five on vectors.";
        [3] PARTITION_MAP, "The log page that tells how a key's partition is found.";
        [4] PRESENCE, "Batches whose outcomes are one bit each.";
        [5] VALUE, "Retrieve Submit, Store Submit and Store Data.";
        [6] ATTRIBUTES, "Stores with a time to live and flags.";
        [7] PIN, "Pin, also in batches whose outcomes are one bit each.";
        [8] STORE_FLAGS, "Store Flags.";
    }

    /// Controller, key-value command set (CNS 06, CSI 1). wire §23
    pub structure KvController: IDENTIFY_BYTES {
        0 ver: U32 as version: Vs, "Version of the command set.";
        4 reserved_4: [u8; 4092];
    }
}

impl KvController {
    /// One that follows this version of the command set.
    #[must_use]
    pub const fn new(version: Vs) -> Self {
        Self { ver: U32::new(version.bits()), reserved_4: [0; 4092] }
    }
}

tables! {
    /// Command sets that can be on together. wire §10.4
    pub flags CommandSets: u64 {
        [0] NVM, "NVM.";
        [1] KV, "Key value.";
        [2] ZNS, "Zoned namespaces.";
    }

    /// Combinations of command sets a controller can have on (CNS 1C); feature 0x19 picks one by index. wire §10.4
    pub structure CommandSetVectors: IDENTIFY_BYTES {
        0 vectors: [U64; 512];
    }
}

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
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    /// wire §10.4, wire §23
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
        let commands = KvVendorCommands::BATCH | KvVendorCommands::VECTOR | KvVendorCommands::STORE_FLAGS;
        let mut vendor = KvVendorArea { version: U16::new(1), ..Default::default() };
        vendor.set_commands(commands);
        namespace.set_vendor(vendor);
        let raw = &namespace.as_bytes()[3840..];
        assert_eq!(raw[..16], *b"nvlanekv\x01\0\0\0\x05\x01\0\0");
        assert_eq!(namespace.vendor().map(KvVendorArea::commands), Some(commands));
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
        controller.set_aocs(Aocs::ALLOCATED_LBA);
        assert_eq!(controller.as_bytes()[16..20], [0, 0, 1, 0]);
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
