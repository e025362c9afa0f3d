//! Get LBA Status: the command and its list. wire §14.1
//!
//! It is an admin command. Ours also take it on I/O queues, where it is a vendor command with the same opcode and fields.
// Data from a peer must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use crate::id::Nsid;
use crate::sqe::Sqe;
use crate::{U32, U64};

/// Bytes of a list without descriptors.
pub const LBA_STATUS_HEAD_BYTES: usize = 8;
/// Bytes of a descriptor.
pub const LBA_STATUS_DESCRIPTOR_BYTES: usize = 16;

tables! {
    /// Which blocks a list has. wire §14.1
    pub codes LbaStatusAction: u8 {
        0x02 ALLOCATED, "allocated blocks, as tracked";
        0x10 SCAN, "potentially unrecoverable blocks, found by a scan";
        0x11 TRACKED, "potentially unrecoverable blocks, as tracked";
    }

    /// Fields of a Get LBA Status. wire §14.1
    pub command GetLbaStatus: NvmOpcode::GET_LBA_STATUS {
        cdw10_11 [63:0] slba: u64, "First block.";
        cdw12 [31:0] last_dword: u32, "Dwords of room, 0-based; see [`GetLbaStatus::room_bytes`].";
        cdw13 [15:0] range_blocks: u16, "Blocks of the range, 0 for all up to the end of the namespace.";
        cdw13 [31:24] action: LbaStatusAction, "Which blocks the list has.";
        cdw14 [31:0] long_range_blocks: u32, "On I/O queues: blocks of the range, in place of the above unless it is 0.";
    }

    /// Why a list ends. wire §14.1
    pub codes LbaStatusEnd: u8 {
        0 UNTOLD, "not told";
        1 INCOMPLETE, "there is more behind the last descriptor";
        2 COMPLETE, "the list is about the whole range";
    }

    /// What a list begins with. wire §14.1
    pub structure LbaStatusHead: LBA_STATUS_HEAD_BYTES {
        0 pub count: U32, "Descriptors.";
        4 pub end: LbaStatusEnd, "Why it ends.";
        5 reserved_5: [u8; 3];
    }

    /// A range of blocks. wire §14.1
    pub structure LbaStatusDescriptor: LBA_STATUS_DESCRIPTOR_BYTES {
        0 pub slba: U64, "First block.";
        8 pub blocks: U32, "Blocks.";
        12 reserved_12: u8;
        13 pub status: LbaRangeStatus, "What is told of the blocks.";
        14 reserved_14: [u8; 2];
    }

    /// What a descriptor tells of its blocks, in bits 2:0. wire §14.1
    pub codes LbaRangeStatus: u8 {
        0 MAY_BE_LOST, "may be unrecoverable";
        1 LOST, "unrecoverable";
        2 ALLOCATED, "at least one is allocated";
        3 WRITTEN_UNCORRECTABLE, "written by Write Uncorrectable";
    }
}

/// Why a list cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLbaStatus {
    /// It is shorter than its head or its descriptors.
    #[error("it is shorter than its {count} descriptors")]
    Short {
        /// Descriptors that it claims.
        count: u32,
    },
    /// A descriptor of no blocks, outside of the range, or not behind the one before.
    #[error("descriptor {index} is of no blocks, outside of the range, or not behind the one before")]
    Descriptor {
        /// Its place, from 0.
        index: u32,
    },
    /// It is not about the whole range, and has no descriptor: the next command would be the same.
    #[error("it is incomplete and has no descriptor")]
    NoProgress,
}

/// The allocated blocks of a range, as far as a list tells of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedBlocks {
    /// The blocks that the list describes; they begin with the first requested block.
    pub range: Range<u64>,
    /// Allocated blocks in it, in order. All others are deallocated.
    pub allocated: Vec<Range<u64>>,
}

impl GetLbaStatus {
    /// For the allocated blocks of a range, into so many bytes. With 0 blocks up to the end of the namespace.
    #[must_use]
    pub const fn allocated(slba: u64, blocks: u32, room_bytes: u32) -> Self {
        let last_dword = (room_bytes / 4).saturating_sub(1);
        let action = LbaStatusAction::ALLOCATED;
        Self { slba, last_dword, range_blocks: 0, action, long_range_blocks: blocks }
    }

    /// Bytes of room for the list.
    #[must_use]
    pub const fn room_bytes(&self) -> u64 {
        (self.last_dword as u64).saturating_add(1).saturating_mul(4)
    }

    /// Blocks of the range; `None` for all up to the end of the namespace.
    #[must_use]
    pub const fn blocks(&self) -> Option<u32> {
        match (self.long_range_blocks, self.range_blocks) {
            (0, 0) => None,
            (0, blocks) => Some(blocks as u32),
            (blocks, _) => Some(blocks),
        }
    }
}

impl AllocatedBlocks {
    /// Reads a list about `range`.
    ///
    /// # Errors
    /// [`InvalidLbaStatus`]. What is read lies in the range, in order, and is not empty unless the range is.
    pub fn from_bytes(bytes: &[u8], range: Range<u64>) -> Result<Self, InvalidLbaStatus> {
        let (head, rest) =
            LbaStatusHead::ref_from_prefix(bytes).map_err(|_| InvalidLbaStatus::Short { count: 0 })?;
        let count = head.count.get();
        let descriptors = usize::try_from(count)
            .ok()
            .and_then(|count| <[LbaStatusDescriptor]>::ref_from_prefix_with_elems(rest, count).ok());
        let (descriptors, _) = descriptors.ok_or(InvalidLbaStatus::Short { count })?;
        let mut allocated: Vec<Range<u64>> = Vec::with_capacity(descriptors.len());
        let mut from = range.start;
        for (index, descriptor) in (0..).zip(descriptors) {
            let start = descriptor.slba.get();
            let end = start.checked_add(descriptor.blocks.get().into());
            let end = end.filter(|&end| start >= from && start < end && end <= range.end);
            from = end.ok_or(InvalidLbaStatus::Descriptor { index })?;
            match allocated.last_mut() {
                Some(last) if last.end == start => last.end = from,
                _ => allocated.push(start..from),
            }
        }
        let end = if head.end == LbaStatusEnd::COMPLETE { range.end } else { from };
        if end <= range.start && !range.is_empty() {
            return Err(InvalidLbaStatus::NoProgress);
        }
        Ok(Self { range: range.start..end, allocated })
    }

    /// Writes the list of blocks that are all told of, into `bytes`, as far as they go. Returns the length of the list;
    /// 0 if there is no room for a descriptor. `is_complete`: the range ends the one asked for.
    pub fn to_bytes(&self, is_complete: bool, bytes: &mut [u8]) -> usize {
        let room = bytes.len().saturating_sub(LBA_STATUS_HEAD_BYTES) / LBA_STATUS_DESCRIPTOR_BYTES;
        let Some((head, rest)) = bytes.split_at_mut_checked(LBA_STATUS_HEAD_BYTES).filter(|_| room > 0)
        else {
            return 0;
        };
        let mut count = 0u32;
        let mut slots = rest.as_chunks_mut::<LBA_STATUS_DESCRIPTOR_BYTES>().0.iter_mut();
        let mut is_whole = true;
        'all: for blocks in &self.allocated {
            let mut start = blocks.start;
            while start < blocks.end {
                let Some(slot) = slots.next() else {
                    is_whole = false;
                    break 'all;
                };
                let length = u32::try_from(blocks.end.saturating_sub(start)).unwrap_or(u32::MAX);
                let descriptor = LbaStatusDescriptor {
                    slba: U64::new(start),
                    blocks: U32::new(length),
                    reserved_12: 0,
                    status: LbaRangeStatus::ALLOCATED,
                    reserved_14: [0; 2],
                };
                slot.copy_from_slice(descriptor.as_bytes());
                count = count.saturating_add(1);
                start = start.saturating_add(length.into());
            }
        }
        let end = if is_whole && is_complete { LbaStatusEnd::COMPLETE } else { LbaStatusEnd::INCOMPLETE };
        let written = LbaStatusHead { count: U32::new(count), end, reserved_5: [0; 3] };
        head.copy_from_slice(written.as_bytes());
        LBA_STATUS_HEAD_BYTES
            .saturating_add(LBA_STATUS_DESCRIPTOR_BYTES.saturating_mul(usize::try_from(count).unwrap_or(0)))
    }
}

impl Sqe {
    /// The allocated blocks of a range, on an I/O queue: [`GetLbaStatus::allocated`].
    #[must_use]
    pub fn allocated_blocks(nsid: Nsid, slba: u64, blocks: u32, room_bytes: u32) -> Self {
        GetLbaStatus::allocated(slba, blocks, room_bytes).to_sqe(nsid)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Lists of ranges.
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// wire §14.1
    #[test]
    fn the_command_has_the_bytes_of_the_reference() {
        let sqe = Sqe::allocated_blocks(Nsid::new(1), 0x0102, 0x1_0000, 4096);
        assert_eq!(sqe.as_bytes()[..8], [0x86, 0x40, 0, 0, 1, 0, 0, 0]);
        assert_eq!(sqe.as_bytes()[40..56], [2, 1, 0, 0, 0, 0, 0, 0, 0xFF, 3, 0, 0, 0, 0, 0, 2]);
        assert_eq!(sqe.as_bytes()[56..60], [0, 0, 1, 0]);
        let command = GetLbaStatus::from_sqe(&sqe);
        assert_eq!((command.room_bytes(), command.blocks()), (4096, Some(0x1_0000)));
        let whole = GetLbaStatus { range_blocks: 0, long_range_blocks: 0, ..command };
        let short = GetLbaStatus { range_blocks: 7, long_range_blocks: 0, ..command };
        assert_eq!((whole.blocks(), short.blocks()), (None, Some(7)));
    }

    fn list(allocated: &[Range<u64>], range: Range<u64>) -> AllocatedBlocks {
        AllocatedBlocks { range, allocated: allocated.to_vec() }
    }

    /// wire §14.1
    #[test]
    fn the_list_has_the_bytes_of_the_reference() {
        let mut bytes = [0xEE; 64];
        let blocks = list(&[8..10, 0x0102..0x0203], 0..0x300);
        assert_eq!(blocks.to_bytes(true, &mut bytes), 40);
        assert_eq!(bytes[..8], [2, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes[8..24], [8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0, 0]);
        assert_eq!(bytes[24..40], [2, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 2, 0, 0]);
        assert_eq!(AllocatedBlocks::from_bytes(&bytes[..40], 0..0x300), Ok(blocks));
    }

    #[test]
    fn a_list_without_room_tells_of_less() {
        let blocks = list(&[8..10, 20..30, 40..50], 0..100);
        let mut bytes = [0; 8 + 2 * 16 + 15];
        assert_eq!(blocks.to_bytes(true, &mut bytes), 40);
        assert_eq!(AllocatedBlocks::from_bytes(&bytes, 0..100), Ok(list(&[8..10, 20..30], 0..30)));
        assert_eq!(blocks.to_bytes(true, &mut [0; 23]), 0, "no room for a descriptor");
    }

    #[test]
    fn more_blocks_than_a_descriptor_counts_take_several() {
        let blocks = list(&[5..10 + (2 << 32)], 0..1 << 40);
        let mut bytes = [0; 256];
        let length = blocks.to_bytes(true, &mut bytes);
        assert_eq!(length, 8 + 3 * 16);
        assert_eq!(AllocatedBlocks::from_bytes(&bytes[..length], 0..1 << 40), Ok(blocks));
    }

    #[test]
    fn lists_that_lead_nowhere_are_refused() {
        let bytes = |count: u32, end: u8, descriptors: &[(u64, u32)]| {
            let mut bytes = count.to_le_bytes().to_vec();
            bytes.extend([end, 0, 0, 0]);
            for (slba, blocks) in descriptors {
                bytes.extend(slba.to_le_bytes());
                bytes.extend(blocks.to_le_bytes());
                bytes.extend([0, 2, 0, 0]);
            }
            bytes
        };
        let read = |bytes: &[u8]| AllocatedBlocks::from_bytes(bytes, 10..20).map(|blocks| blocks.range);
        assert_eq!(read(&bytes(0, 2, &[])), Ok(10..20));
        assert_eq!(read(&bytes(1, 1, &[(12, 3)])), Ok(10..15));
        assert_eq!(read(&bytes(1, 0, &[(12, 3)])), Ok(10..15));
        assert_eq!(read(&bytes(0, 1, &[])), Err(InvalidLbaStatus::NoProgress));
        assert_eq!(read(&bytes(0, 0, &[])), Err(InvalidLbaStatus::NoProgress));
        assert_eq!(read(&[0; 7]), Err(InvalidLbaStatus::Short { count: 0 }));
        assert_eq!(read(&bytes(2, 2, &[(12, 3)])), Err(InvalidLbaStatus::Short { count: 2 }));
        assert_eq!(read(&bytes(u32::MAX, 2, &[])), Err(InvalidLbaStatus::Short { count: u32::MAX }));
        for (index, wrong) in [
            (0u32, &[(9, 3)][..]),
            (0, &[(20, 1)]),
            (0, &[(12, 9)]),
            (0, &[(12, 0)]),
            (0, &[(u64::MAX, 2)]),
            (1, &[(12, 3), (14, 1)]),
            (1, &[(14, 1), (12, 1)]),
        ] {
            let list = bytes(u32::try_from(wrong.len()).expect("two at most"), 2, wrong);
            assert_eq!(read(&list), Err(InvalidLbaStatus::Descriptor { index }), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_list_that_is_read_lies_in_its_range_and_goes_on(
            bytes in prop::collection::vec(0u8..4, 0..80), start in 0u64..300, length in 1u64..300,
        ) {
            let range = start..start + length;
            if let Ok(blocks) = AllocatedBlocks::from_bytes(&bytes, range.clone()) {
                prop_assert!(blocks.range.start == range.start && blocks.range.end > range.start);
                prop_assert!(blocks.range.end <= range.end);
                let mut from = range.start;
                for part in blocks.allocated {
                    prop_assert!(part.start >= from && part.end > part.start && part.end <= blocks.range.end);
                    from = part.end;
                }
            }
        }
    }
}
