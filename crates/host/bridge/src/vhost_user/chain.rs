//! Descriptor chains of a split virtqueue: which memory belongs to a request.
//!
//! `virtio_queue::DescriptorChain` ends in the same way at a chain's end, at a loop and at an address outside of memory, and takes
//! chains from the available ring only; requests that an earlier process has begun are in the ring no more.
// Data from a guest must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory};

/// Longest chain, descriptors. Drivers keep to the limit of the configuration space, which is lower.
pub(crate) const DESCRIPTORS_MAX: usize = 1024;

/// Size of a descriptor, bytes.
const DESCRIPTOR_BYTES: u32 = 16;

/// Memory of a guest in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: GuestAddress,
    /// Bytes.
    pub length: u32,
}

/// The memory of one chain.
#[derive(Debug, Default)]
pub struct Chain {
    /// What the device may only read.
    pub readable: Vec<Segment>,
    /// What the device may only write.
    pub writable: Vec<Segment>,
}

/// How a guest violated the rules of a virtqueue. The queue is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainViolation {
    /// A descriptor that its table does not have.
    #[error("descriptor {index} of a table of {count}")]
    Index {
        /// Its index.
        index: u32,
        /// Descriptors of the table.
        count: u32,
    },
    /// No end within the limit.
    #[error("a chain of more than {DESCRIPTORS_MAX} descriptors, or one without an end")]
    TooLong,
    /// A table outside of memory.
    #[error("a descriptor at {address:#x}, where the guest has no memory")]
    NoTable {
        /// Where the table begins.
        address: u64,
    },
    /// Indirect in indirect.
    #[error("an indirect table within an indirect table")]
    Nested,
    /// Not a whole number of descriptors.
    #[error("an indirect table of {length} bytes")]
    TableLength {
        /// Its length.
        length: u32,
    },
    /// The specification wants what is read first.
    #[error("memory to read behind memory to write")]
    Order,
    /// No head.
    #[error("a request without a head of 16 bytes in the guest's memory")]
    NoHead,
    /// No place for an answer.
    #[error("a request without a byte for its status in the guest's memory")]
    NoStatus,
}

impl Chain {
    /// Reads the chain that begins at descriptor `head` of a table of `count`, once.
    ///
    /// # Errors
    /// [`ChainViolation`].
    pub fn read<M: GuestMemory>(
        &mut self,
        memory: &M,
        table: GuestAddress,
        count: u16,
        head: u16,
    ) -> Result<(), ChainViolation> {
        self.readable.clear();
        self.writable.clear();
        let (mut table, mut count, mut index) = (table, u32::from(count), u32::from(head));
        let mut is_indirect = false;
        for _ in 0..DESCRIPTORS_MAX {
            if index >= count {
                return Err(ChainViolation::Index { index, count });
            }
            let no_table = ChainViolation::NoTable { address: table.raw_value() };
            let offset = u64::from(index).saturating_mul(DESCRIPTOR_BYTES.into());
            let address = table.checked_add(offset).ok_or(no_table)?;
            let descriptor: Descriptor = memory.read_obj(address).map_err(|_| no_table)?;
            if descriptor.refers_to_indirect_table() {
                let length = descriptor.len();
                if is_indirect {
                    return Err(ChainViolation::Nested);
                }
                if length == 0 || !length.is_multiple_of(DESCRIPTOR_BYTES) {
                    return Err(ChainViolation::TableLength { length });
                }
                (table, count, index) = (descriptor.addr(), length / DESCRIPTOR_BYTES, 0);
                is_indirect = true;
                continue;
            }
            let segment = Segment { address: descriptor.addr(), length: descriptor.len() };
            if descriptor.is_write_only() {
                self.writable.push(segment);
            } else if self.writable.is_empty() {
                self.readable.push(segment);
            } else {
                return Err(ChainViolation::Order);
            }
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next().into();
        }
        Err(ChainViolation::TooLong)
    }
}

/// Copies `bytes` to the guest, from `offset` within the segments on. `None` if they end earlier, or lie outside of its memory.
pub fn copy_to_guest<M: GuestMemory>(
    memory: &M,
    segments: &[Segment],
    offset: u64,
    bytes: &[u8],
) -> Option<()> {
    let mut left = bytes;
    for (address, length) in pieces(segments, offset, bytes.len()) {
        let (now, later) = left.split_at_checked(length)?;
        memory.write_slice(now, address?).ok()?;
        left = later;
    }
    left.is_empty().then_some(())
}

/// As [`copy_to_guest`], the other way.
pub fn copy_from_guest<M: GuestMemory>(
    memory: &M,
    segments: &[Segment],
    offset: u64,
    bytes: &mut [u8],
) -> Option<()> {
    let mut left = &mut *bytes;
    for (address, length) in pieces(segments, offset, left.len()) {
        let (now, later) = left.split_at_mut_checked(length)?;
        memory.read_slice(now, address?).ok()?;
        left = later;
    }
    left.is_empty().then_some(())
}

/// Addresses and lengths of `length` bytes, from `offset` within the segments on.
fn pieces(
    segments: &[Segment],
    offset: u64,
    length: usize,
) -> impl Iterator<Item = (Option<GuestAddress>, usize)> {
    let (mut skip, mut left) = (offset, length);
    segments.iter().filter_map(move |segment| {
        let length = u64::from(segment.length);
        let start = skip.min(length);
        skip = skip.saturating_sub(start);
        let count = usize::try_from(length.saturating_sub(start)).unwrap_or(usize::MAX).min(left);
        left = left.saturating_sub(count);
        (count > 0).then(|| (segment.address.checked_add(start), count))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use vm_memory::GuestMemoryMmap;

    pub(crate) const NEXT: u16 = 1;
    pub(crate) const WRITE: u16 = 2;
    pub(crate) const INDIRECT: u16 = 4;
    /// Where tables of these tests begin.
    pub(crate) const TABLE: GuestAddress = GuestAddress(0x1000);

    /// 64 KiB from 0 on, and 64 KiB behind a hole of as many.
    pub(crate) fn memory() -> GuestMemoryMmap {
        let ranges = [(GuestAddress(0), 0x1_0000), (GuestAddress(0x2_0000), 0x1_0000)];
        GuestMemoryMmap::from_ranges(&ranges).expect("memory")
    }

    /// Writes descriptors (address, length, flags, next) as a table.
    pub(crate) fn put(memory: &GuestMemoryMmap, table: GuestAddress, descriptors: &[(u64, u32, u16, u16)]) {
        for (index, (address, length, flags, next)) in (0..).zip(descriptors) {
            let descriptor = Descriptor::new(*address, *length, *flags, *next);
            memory.write_obj(descriptor, GuestAddress(table.0 + index * 16)).expect("in memory");
        }
    }

    fn read(descriptors: &[(u64, u32, u16, u16)], head: u16) -> Result<Chain, ChainViolation> {
        let memory = memory();
        put(&memory, TABLE, descriptors);
        let mut chain = Chain::default();
        chain.read(&memory, TABLE, 8, head).map(|()| chain)
    }

    fn segment(address: u64, length: u32) -> Segment {
        Segment { address: GuestAddress(address), length }
    }

    #[test]
    fn a_chain_is_read_in_its_order() {
        let chain = read(&[(0x30, 3, WRITE, 0), (0x10, 1, NEXT, 3), (0, 0, 0, 0), (0x20, 2, NEXT, 0)], 1);
        let chain = chain.expect("a chain");
        assert_eq!(chain.readable, [segment(0x10, 1), segment(0x20, 2)]);
        assert_eq!(chain.writable, [segment(0x30, 3)]);
    }

    #[test]
    fn an_indirect_table_is_the_rest_of_its_chain() {
        let memory = memory();
        put(&memory, TABLE, &[(0x10, 1, NEXT, 1), (0x2000, 32, INDIRECT, 0)]);
        put(&memory, GuestAddress(0x2000), &[(0x20, 2, NEXT, 1), (0x30, 3, WRITE, 0)]);
        let mut chain = Chain::default();
        chain.read(&memory, TABLE, 8, 0).expect("a chain");
        assert_eq!(chain.readable, [segment(0x10, 1), segment(0x20, 2)]);
        assert_eq!(chain.writable, [segment(0x30, 3)]);
    }

    #[test]
    fn chains_against_the_rules_are_told_apart() {
        let violation = |descriptors: &[_], head| read(descriptors, head).expect_err("a violation");
        assert_eq!(violation(&[(0, 1, NEXT, 1), (0, 1, NEXT, 0)], 0), ChainViolation::TooLong, "a loop");
        assert_eq!(violation(&[], 8), ChainViolation::Index { index: 8, count: 8 });
        assert_eq!(violation(&[(0, 1, NEXT, 9)], 0), ChainViolation::Index { index: 9, count: 8 });
        assert_eq!(violation(&[(0, 1, NEXT | WRITE, 1), (0, 1, 0, 0)], 0), ChainViolation::Order);
        assert_eq!(violation(&[(0, 17, INDIRECT, 0)], 0), ChainViolation::TableLength { length: 17 });
        assert_eq!(violation(&[(0, 0, INDIRECT, 0)], 0), ChainViolation::TableLength { length: 0 });
        assert_eq!(
            violation(&[(0x1000, 16, INDIRECT, 0)], 0),
            ChainViolation::Nested,
            "the table is its own"
        );
        for address in [0x1_0000, u64::MAX - 7, 0x1_fff8] {
            let outside = ChainViolation::NoTable { address };
            assert_eq!(violation(&[(address, 16, INDIRECT, 0)], 0), outside, "{address:#x}");
        }
    }

    #[test]
    fn copies_keep_to_the_segments() {
        let memory = memory();
        let segments = [segment(0x100, 3), segment(0x200, 0), segment(0x2_0000, 4)];
        assert!(copy_to_guest(&memory, &segments, 1, &[1, 2, 3, 4, 5]).is_some());
        let mut bytes = [0; 7];
        assert!(copy_from_guest(&memory, &segments, 0, &mut bytes).is_some());
        assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 0]);
        assert!(copy_to_guest(&memory, &segments, 3, &[0; 5]).is_none(), "longer than the segments");
        for outside in [segment(0x1_0000, 8), segment(0xfffe, 8), segment(u64::MAX, 8)] {
            assert!(copy_to_guest(&memory, &[outside], 0, &[1; 8]).is_none(), "{outside:?}");
            assert!(copy_from_guest(&memory, &[outside], 0, &mut [1; 8]).is_none(), "{outside:?}");
        }
        assert!(copy_to_guest(&memory, &[segment(u64::MAX, u32::MAX)], 9, &[1; 8]).is_none());
    }

    proptest! {
        /// Whatever a guest writes: an answer, and no segment that it did not write.
        #[test]
        fn any_table_is_read_or_refused(
            descriptors in prop::collection::vec((0u64..0x4_0000, 0u32..0x2000, 0u16..8, 0u16..10), 1..9),
            head in 0u16..10,
        ) {
            if let Ok(chain) = read(&descriptors, head) {
                prop_assert!(chain.readable.len() + chain.writable.len() <= DESCRIPTORS_MAX);
            }
        }
    }
}
