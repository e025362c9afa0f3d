//! Requests of virtio-blk, as they lie in a guest's memory.
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

use host::BlockRange;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH,
    VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use vm_memory::{Address, GuestAddress, GuestMemory, Permissions};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::chain::{Chain, ChainViolation, Segment, copy_from_guest};

/// Unit of addresses and lengths, whatever the block size.
pub(crate) const SECTOR_BYTES: u32 = 512;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data of the device.
    Read,
    /// Data for the device.
    Write,
    /// Make completed writes durable.
    Flush,
    /// The serial number.
    Id,
    /// Deallocate ranges.
    Discard,
    /// Write zeroes to a range.
    WriteZeroes,
    /// What the device does not know.
    Unknown(u32),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// It was carried out.
    Done = 0,
    /// It failed, or cannot be carried out.
    Failed = 1,
    /// The device does not know it.
    Unsupported = 2,
}

const _: () = assert!(VIRTIO_BLK_S_OK == 0 && VIRTIO_BLK_S_IOERR == 1 && VIRTIO_BLK_S_UNSUPP == 2);

/// A request, but for its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub kind: Kind,
    /// First sector of a Read or Write.
    pub sector: u64,
    /// Bytes of its data.
    pub data_bytes: u64,
    /// Where its outcome goes.
    pub status: GuestAddress,
    /// Whether all of its data lies in the guest's memory.
    pub is_inside: bool,
}

/// What a request begins with.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    kind: U32,
    reserved: U32,
    sector: U64,
}
const _: () = assert!(size_of::<Head>() == 16);

/// A range to discard or to zero.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SectorRange {
    sector: U64,
    count: U32,
    flags: U32,
}
const RANGE_BYTES: u64 = 16;
const _: () = assert!(size_of::<SectorRange>() == 16);

impl Request {
    /// Takes a request from its chain, whose segments it moves to `data`. Its head and status may lie in any way in the
    /// segments, as the specification wants it.
    ///
    /// # Errors
    /// [`ChainViolation`]: head or status are missing.
    pub fn take<M: GuestMemory>(
        memory: &M,
        chain: &mut Chain,
        data: &mut Vec<Segment>,
    ) -> Result<Self, ChainViolation> {
        let mut head = Head::new_zeroed();
        copy_from_guest(memory, &chain.readable, 0, head.as_mut_bytes()).ok_or(ChainViolation::NoHead)?;
        drop_front(&mut chain.readable, size_of::<Head>());
        let status = take_last(&mut chain.writable).ok_or(ChainViolation::NoStatus)?;
        if !memory.check_range(status, 1, Permissions::Write) {
            return Err(ChainViolation::NoStatus);
        }
        let kind = match head.kind.get() {
            VIRTIO_BLK_T_IN => Kind::Read,
            VIRTIO_BLK_T_OUT => Kind::Write,
            VIRTIO_BLK_T_FLUSH => Kind::Flush,
            VIRTIO_BLK_T_GET_ID => Kind::Id,
            VIRTIO_BLK_T_DISCARD => Kind::Discard,
            VIRTIO_BLK_T_WRITE_ZEROES => Kind::WriteZeroes,
            other => Kind::Unknown(other),
        };
        let (segments, access) = match kind {
            Kind::Read | Kind::Id => (&mut chain.writable, Permissions::Write),
            _ => (&mut chain.readable, Permissions::Read),
        };
        std::mem::swap(data, segments);
        let data_bytes = data.iter().fold(0u64, |sum, segment| sum.saturating_add(segment.length.into()));
        let is_inside = data.iter().all(|segment| {
            let length = usize::try_from(segment.length).unwrap_or(usize::MAX);
            length == 0 || memory.check_range(segment.address, length, access)
        });
        Ok(Self { kind, sector: head.sector.get(), data_bytes, status, is_inside })
    }
}

/// Reads the ranges of a Discard or Write Zeroes to `ranges`, in blocks. Returns whether blocks may be deallocated.
///
/// # Errors
/// The outcome of the request: its ranges are too many, no whole blocks or have flags that are not known.
pub fn read_ranges<M: GuestMemory>(
    memory: &M,
    request: &Request,
    data: &[Segment],
    lba_bytes: u32,
    count_max: u16,
    ranges: &mut Vec<BlockRange>,
) -> Result<bool, Outcome> {
    ranges.clear();
    let count = request.data_bytes / RANGE_BYTES;
    if count == 0 || !request.data_bytes.is_multiple_of(RANGE_BYTES) || count > count_max.into() {
        return Err(Outcome::Failed);
    }
    let mut may_deallocate = true;
    for index in 0..count {
        let mut range = SectorRange::new_zeroed();
        copy_from_guest(memory, data, index.saturating_mul(RANGE_BYTES), range.as_mut_bytes())
            .ok_or(Outcome::Failed)?;
        let flags = range.flags.get();
        let known = if request.kind == Kind::WriteZeroes { VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP } else { 0 };
        if flags & !known != 0 {
            return Err(Outcome::Unsupported);
        }
        may_deallocate &= flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
        let bytes = u64::from(range.count.get()).saturating_mul(SECTOR_BYTES.into());
        let (lba, blocks) = blocks_of(range.sector.get(), bytes, lba_bytes).ok_or(Outcome::Failed)?;
        ranges.push(BlockRange { lba, blocks: u32::try_from(blocks).map_err(|_| Outcome::Failed)? });
    }
    Ok(may_deallocate)
}

/// A range as blocks; `None` if it is not made of whole ones.
pub(crate) fn blocks_of(sector: u64, bytes: u64, lba_bytes: u32) -> Option<(u64, u64)> {
    let lba_bytes = u64::from(lba_bytes);
    let start = sector.checked_mul(SECTOR_BYTES.into())?;
    let is_whole = start.checked_rem(lba_bytes)? == 0 && bytes.checked_rem(lba_bytes)? == 0;
    is_whole.then_some((start.checked_div(lba_bytes)?, bytes.checked_div(lba_bytes)?))
}

/// Drops the first bytes of segments, which have as many.
fn drop_front(segments: &mut Vec<Segment>, count: usize) {
    let mut left = u32::try_from(count).unwrap_or(u32::MAX);
    let mut whole = 0;
    for segment in segments.iter_mut() {
        let now = left.min(segment.length);
        left = left.saturating_sub(now);
        if now < segment.length {
            segment.address = segment.address.unchecked_add(now.into());
            segment.length = segment.length.saturating_sub(now);
            break;
        }
        whole = usize::saturating_add(whole, 1);
    }
    segments.drain(..whole.min(segments.len()));
}

/// Takes the last byte of segments: its address.
fn take_last(segments: &mut Vec<Segment>) -> Option<GuestAddress> {
    while let Some(segment) = segments.last_mut() {
        if let Some(length) = segment.length.checked_sub(1) {
            segment.length = length;
            return segment.address.checked_add(length.into());
        }
        segments.pop();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::chain::tests::{NEXT, TABLE, WRITE, memory, put};
    use super::*;
    use proptest::prelude::*;
    use vm_memory::{Bytes, GuestMemoryMmap};

    fn put_head(memory: &GuestMemoryMmap, address: u64, kind: u32, sector: u64) {
        let head = Head { kind: kind.into(), reserved: 0.into(), sector: sector.into() };
        memory.write_slice(head.as_bytes(), GuestAddress(address)).expect("in memory");
    }

    fn take(
        memory: &GuestMemoryMmap,
        descriptors: &[(u64, u32, u16, u16)],
    ) -> Result<(Request, Vec<Segment>), ChainViolation> {
        put(memory, TABLE, descriptors);
        let (mut chain, mut data) = (Chain::default(), Vec::new());
        chain.read(memory, TABLE, 8, 0)?;
        Request::take(memory, &mut chain, &mut data).map(|request| (request, data))
    }

    #[test]
    fn the_usual_layout_of_a_read_and_a_write() {
        let memory = memory();
        put_head(&memory, 0x100, VIRTIO_BLK_T_IN, 7);
        let (request, data) =
            take(&memory, &[(0x100, 16, NEXT, 1), (0x3000, 4096, NEXT | WRITE, 2), (0x200, 1, WRITE, 0)])
                .expect("a request");
        let status = GuestAddress(0x200);
        let read = Request { kind: Kind::Read, sector: 7, data_bytes: 4096, status, is_inside: true };
        assert_eq!(request, read);
        assert_eq!(data[0], Segment { address: GuestAddress(0x3000), length: 4096 });
        put_head(&memory, 0x100, VIRTIO_BLK_T_OUT, 8);
        let (request, data) =
            take(&memory, &[(0x100, 16, NEXT, 1), (0x3000, 512, NEXT, 2), (0x200, 1, WRITE, 0)])
                .expect("a request");
        assert_eq!((request.kind, request.data_bytes), (Kind::Write, 512));
        assert_eq!(data, [Segment { address: GuestAddress(0x3000), length: 512 }]);
    }

    #[test]
    fn head_and_status_may_share_segments_with_data_or_be_cut() {
        let memory = memory();
        put_head(&memory, 0x100, VIRTIO_BLK_T_OUT, 3);
        // The head in two pieces, the second one with the data; the status behind an empty piece.
        let (request, data) = take(
            &memory,
            &[(0x100, 7, NEXT, 1), (0x107, 9 + 512, NEXT, 2), (0x200, 1, NEXT | WRITE, 3), (0, 0, WRITE, 0)],
        )
        .expect("a request");
        assert_eq!((request.kind, request.sector, request.data_bytes), (Kind::Write, 3, 512));
        assert_eq!(request.status, GuestAddress(0x200));
        assert_eq!(data, [Segment { address: GuestAddress(0x110), length: 512 }]);
        put_head(&memory, 0x100, VIRTIO_BLK_T_IN, 3);
        let (request, data) = take(&memory, &[(0x100, 16, NEXT, 1), (0x3000, 513, WRITE, 0)]).expect("one");
        assert_eq!((request.status, request.data_bytes), (GuestAddress(0x3200), 512));
        assert_eq!(data, [Segment { address: GuestAddress(0x3000), length: 512 }]);
    }

    #[test]
    fn what_lies_outside_of_memory_is_found_before_it_is_used() {
        let memory = memory();
        put_head(&memory, 0x100, VIRTIO_BLK_T_IN, 0);
        let no_status = [(0x100, 16, NEXT, 1), (0x1_0000, 1, WRITE, 0)];
        assert_eq!(take(&memory, &no_status), Err(ChainViolation::NoStatus));
        assert_eq!(take(&memory, &[(0x100, 16, 0, 0)]), Err(ChainViolation::NoStatus));
        assert_eq!(take(&memory, &[(0x100, 15, NEXT, 1), (0, 1, WRITE, 0)]), Err(ChainViolation::NoHead));
        assert_eq!(take(&memory, &[(0x1_0000, 16, NEXT, 1), (0, 1, WRITE, 0)]), Err(ChainViolation::NoHead));
        for (address, length) in [(0xffff, 2), (0x1_0000, 512), (u64::MAX - 3, 512), (0x2_0000, u32::MAX)] {
            let descriptors =
                [(0x100, 16, NEXT, 1), (address, length, NEXT | WRITE, 2), (0x200, 1, WRITE, 0)];
            let (request, _) = take(&memory, &descriptors).expect("its status can be told");
            assert!(!request.is_inside, "{length} bytes at {address:#x}");
        }
    }

    #[test]
    fn ranges_are_whole_blocks_with_known_flags() {
        let memory = memory();
        let ranges = |kind, list: &[(u64, u32, u32)], count_max| {
            put_head(&memory, 0x100, kind, 0);
            for (index, &(sector, count, flags)) in (0..).zip(list) {
                let range = SectorRange { sector: sector.into(), count: count.into(), flags: flags.into() };
                memory.write_slice(range.as_bytes(), GuestAddress(0x3000 + index * 16)).expect("in memory");
            }
            let bytes = u32::try_from(list.len() * 16).expect("few");
            let chain = [(0x100, 16, NEXT, 1), (0x3000, bytes, NEXT, 2), (0x200, 1, WRITE, 0)];
            let (request, data) = take(&memory, &chain).expect("a request");
            let mut found = Vec::new();
            read_ranges(&memory, &request, &data, 4096, count_max, &mut found)
                .map(|may_deallocate| (found, may_deallocate))
        };
        let range = |lba, blocks| BlockRange { lba, blocks };
        let discarded = ranges(VIRTIO_BLK_T_DISCARD, &[(8, 16, 0), (0, 8, 0)], 2).expect("two").0;
        assert_eq!(discarded, [range(1, 2), range(0, 1)]);
        assert_eq!(ranges(VIRTIO_BLK_T_DISCARD, &[(8, 16, 0), (0, 8, 0)], 1), Err(Outcome::Failed));
        assert_eq!(ranges(VIRTIO_BLK_T_DISCARD, &[(1, 8, 0)], 1), Err(Outcome::Failed));
        assert_eq!(ranges(VIRTIO_BLK_T_DISCARD, &[(8, 8, 1)], 1), Err(Outcome::Unsupported));
        assert_eq!(ranges(VIRTIO_BLK_T_DISCARD, &[], 1), Err(Outcome::Failed));
        assert_eq!(ranges(VIRTIO_BLK_T_WRITE_ZEROES, &[(8, 8, 1)], 1), Ok((vec![range(1, 1)], true)));
        assert_eq!(ranges(VIRTIO_BLK_T_WRITE_ZEROES, &[(8, 8, 0)], 1), Ok((vec![range(1, 1)], false)));
        assert_eq!(ranges(VIRTIO_BLK_T_WRITE_ZEROES, &[(8, 8, 2)], 1), Err(Outcome::Unsupported));
        assert_eq!(blocks_of(u64::MAX, 4096, 4096), None);
    }

    proptest! {
        /// Whatever a guest writes: a request or a violation, and data that was checked.
        #[test]
        fn any_chain_is_a_request_or_refused(
            descriptors in prop::collection::vec((0u64..0x4_0000, 0u32..0x2000, 0u16..4, 0u16..9), 1..9),
            bytes in prop::collection::vec(any::<u8>(), 64),
        ) {
            let memory = memory();
            memory.write_slice(&bytes, GuestAddress(0x100)).unwrap();
            if let Ok((request, data)) = take(&memory, &descriptors) {
                let mut copy = vec![0; usize::try_from(request.data_bytes).unwrap()];
                prop_assert_eq!(request.is_inside, copy_from_guest(&memory, &data, 0, &mut copy).is_some());
            }
        }
    }
}
