//! The partition map of a key-value namespace, a log page of nvlane targets (LID C0h). docs/kv-commands.md §6

use zerocopy::FromZeros;

use crate::{U16, U64};

/// Bytes of the page.
pub const PARTITION_MAP_BYTES: u32 = 64;

tables! {
    /// How a host finds the partition of a key. docs/kv-commands.md §6.1
    pub structure PartitionMapLog: PARTITION_MAP_BYTES {
        0 signature: [u8; 8];
        8 pub version: U16, "Version of the page: a higher one only adds.";
        10 pub function: PartitionFunction, "How the partition of a key is computed.";
        11 reserved_11: u8;
        12 pub partition_count: U16, "Number of partitions; 0 if there is no map.";
        14 reserved_14: [u8; 2];
        16 pub seed: U64, "Seed of the function.";
        24 reserved_24: [u8; 40];
    }

    /// How the partition of a key is computed. docs/kv-commands.md §6.1
    pub codes PartitionFunction: u8 {
        0x00 NONE, "none";
        0x01 RAPIDHASH_V3_MICRO, "upper 24 bits of rapidhash V3 micro";
    }
}

impl PartitionMapLog {
    /// Its signature.
    pub const SIGNATURE: [u8; 8] = *b"nvlanepm";

    /// The page of a namespace without a map.
    #[must_use]
    pub fn none() -> Self {
        Self { signature: Self::SIGNATURE, version: U16::new(1), ..Self::new_zeroed() }
    }

    /// The page of a namespace whose keys are divided by this seed.
    #[must_use]
    pub fn new(seed: u64, partition_count: u16) -> Self {
        Self {
            function: PartitionFunction::RAPIDHASH_V3_MICRO,
            partition_count: U16::new(partition_count),
            seed: U64::new(seed),
            ..Self::none()
        }
    }

    /// The seed and the number of partitions, if the page has a map that we can use.
    #[must_use]
    pub fn map(&self) -> Option<(u64, u16)> {
        let is_known =
            self.signature == Self::SIGNATURE && self.function == PartitionFunction::RAPIDHASH_V3_MICRO;
        Some((self.seed.get(), self.partition_count.get())).filter(|(_, count)| is_known && *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_map_has_the_bytes_of_the_document() {
        let page = PartitionMapLog::new(0x0123_4567_89ab_cdef, 7);
        assert_eq!(page.as_bytes()[..16], *b"nvlanepm\x01\0\x01\0\x07\0\0\0");
        assert_eq!(page.as_bytes()[16..24], [0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
        assert_eq!(page.as_bytes()[24..], [0; 40]);
        assert_eq!(page.map(), Some((0x0123_4567_89ab_cdef, 7)));
    }

    #[test]
    fn what_is_not_understood_is_no_map() {
        assert_eq!(PartitionMapLog::none().map(), None);
        assert_eq!(PartitionMapLog::new(1, 0).map(), None);
        let page = PartitionMapLog::new(1, 2);
        assert_eq!(PartitionMapLog { function: PartitionFunction::from_raw(2), ..page }.map(), None);
        assert_eq!(PartitionMapLog { signature: *b"vendor's", ..page }.map(), None);
        assert_eq!(PartitionMapLog { version: U16::new(9), ..page }.map(), Some((1, 2)), "only adds");
    }

    proptest! {
        #[test]
        fn any_page_is_read(bytes: [[u8; 32]; 2]) {
            let page = PartitionMapLog::read_from_bytes(bytes.as_flattened()).expect("64 bytes");
            prop_assert!(page.map().is_none_or(|(_, count)| count > 0));
        }
    }
}
