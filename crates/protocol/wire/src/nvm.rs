//! Commands of the NVM command set. wire §14

use zerocopy::FromBytes;

use crate::bits::{byte, dword, high16, low16, zero_based8, zero_based16};
use crate::id::Nsid;
use crate::opcode::NvmOpcode;
use crate::sqe::Sqe;
use crate::{U16, U32, U64};

/// Most blocks one command can name.
pub const BLOCKS_MAX: u32 = 65_536;
/// Most ranges one Dataset Management or Copy can name.
pub const RANGES_MAX: u16 = 256;
/// Bytes of a range of Dataset Management.
pub const DSM_RANGE_BYTES: u32 = 16;
/// Bytes of a source range of Copy, formats 0 and 2.
pub const COPY_SOURCE_BYTES: u32 = 32;

tables! {
    /// Upper half of dword 12 of a command on blocks. wire §14
    pub bits BlockControl: u16 {
        [7:4] directive_type, with_directive_type: u8, "Directive type.";
        [9] deac, with_deac: bool, "Deallocate if possible (Write Zeroes).";
        [12:10] prchk, with_prchk: u8, "Protection checks, as the wire has them.";
        [13] pract, with_pract: bool, "Protection action.";
        [14] fua, with_fua: bool, "Force unit access: on stable media before the completion.";
        [15] limited_retry, with_limited_retry: bool, "Limited retry.";
    }
}

/// Fields of a command on one range of blocks: Read, Write, Compare, Verify, Write Zeroes, Write
/// Uncorrectable. wire §14
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCommand {
    /// First block.
    pub slba: u64,
    /// Blocks, 1..=65536.
    pub blocks: u32,
    /// Flags.
    pub control: BlockControl,
    /// Dword 13: dataset hints, directive specific in its upper half.
    pub hints: u32,
    /// Reference tag, to be ignored without protection information.
    pub reference_tag: u32,
    /// Application tag, to be ignored without protection information.
    pub application_tag: u16,
    /// Application tag mask, to be ignored without protection information.
    pub application_mask: u16,
}

impl BlockCommand {
    /// A range without flags.
    #[inline]
    #[must_use]
    pub const fn new(slba: u64, blocks: u32) -> Self {
        Self {
            slba,
            blocks,
            control: BlockControl::from_bits(0),
            hints: 0,
            reference_tag: 0,
            application_tag: 0,
            application_mask: 0,
        }
    }

    /// Reads the fields of a command on blocks.
    #[inline]
    #[must_use]
    pub const fn from_sqe(sqe: &Sqe) -> Self {
        let (cdw12, cdw15) = (sqe.cdw12.get(), sqe.cdw15.get());
        Self {
            slba: sqe.cdw10_11(),
            blocks: (low16(cdw12) as u32).saturating_add(1),
            control: BlockControl::from_bits(high16(cdw12)),
            hints: sqe.cdw13.get(),
            reference_tag: sqe.cdw14.get(),
            application_tag: low16(cdw15),
            application_mask: high16(cdw15),
        }
    }

    /// A command with these fields; the data pointer, if it has data, is left to the caller.
    ///
    /// # Panics
    /// Unless there are 1 to 65536 blocks: the field cannot say more, and another number must not be sent.
    #[inline]
    #[must_use]
    pub fn to_sqe(&self, opcode: NvmOpcode, nsid: Nsid) -> Sqe {
        assert!(matches!(self.blocks, 1..=BLOCKS_MAX), "1 to 65536 blocks, not {}", self.blocks);
        let mut sqe = Sqe::new(opcode.raw(), nsid);
        sqe.set_cdw10_11(self.slba);
        sqe.cdw12.set(dword(low16(self.blocks.saturating_sub(1)), self.control.bits()));
        sqe.cdw13.set(self.hints);
        sqe.cdw14.set(self.reference_tag);
        sqe.cdw15.set(dword(self.application_tag, self.application_mask));
        sqe
    }

    /// First block past the range, to be compared with nsze; `None` if no 64-bit number is that large.
    #[inline]
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        self.slba.checked_add(self.blocks as u64)
    }

    /// Bytes of the range. `block_bytes` includes inline metadata.
    #[inline]
    #[must_use]
    pub const fn data_bytes(&self, block_bytes: u32) -> u64 {
        (self.blocks as u64).saturating_mul(block_bytes as u64)
    }

    /// Directive specific value: the upper half of the hints.
    #[inline]
    #[must_use]
    pub const fn directive_specific(&self) -> u16 {
        high16(self.hints)
    }
}

impl Sqe {
    /// Reads blocks.
    ///
    /// # Panics
    /// Unless there are 1 to 65536 of them.
    #[inline]
    #[must_use]
    pub fn read(nsid: Nsid, slba: u64, blocks: u32) -> Self {
        BlockCommand::new(slba, blocks).to_sqe(NvmOpcode::READ, nsid)
    }

    /// Writes blocks.
    ///
    /// # Panics
    /// Unless there are 1 to 65536 of them.
    #[inline]
    #[must_use]
    pub fn write(nsid: Nsid, slba: u64, blocks: u32) -> Self {
        BlockCommand::new(slba, blocks).to_sqe(NvmOpcode::WRITE, nsid)
    }

    /// Compares blocks with the data sent.
    ///
    /// # Panics
    /// Unless there are 1 to 65536 of them.
    #[must_use]
    pub fn compare(nsid: Nsid, slba: u64, blocks: u32) -> Self {
        BlockCommand::new(slba, blocks).to_sqe(NvmOpcode::COMPARE, nsid)
    }

    /// Reads and checks blocks without transfer.
    ///
    /// # Panics
    /// Unless there are 1 to 65536 of them.
    #[must_use]
    pub fn verify(nsid: Nsid, slba: u64, blocks: u32) -> Self {
        BlockCommand::new(slba, blocks).to_sqe(NvmOpcode::VERIFY, nsid)
    }

    /// Zeroes blocks without transfer, deallocating them if wished and possible.
    ///
    /// # Panics
    /// Unless there are 1 to 65536 of them.
    #[must_use]
    pub fn write_zeroes(nsid: Nsid, slba: u64, blocks: u32, deallocate: bool) -> Self {
        let control = BlockControl::default().with_deac(deallocate);
        BlockCommand { control, ..BlockCommand::new(slba, blocks) }.to_sqe(NvmOpcode::WRITE_ZEROES, nsid)
    }

    /// Makes blocks unreadable until they are written again.
    ///
    /// # Panics
    /// Unless there are 1 to 65536 of them.
    #[must_use]
    pub fn write_uncorrectable(nsid: Nsid, slba: u64, blocks: u32) -> Self {
        BlockCommand::new(slba, blocks).to_sqe(NvmOpcode::WRITE_UNCORRECTABLE, nsid)
    }

    /// A Flush, which makes completed writes durable; [`Nsid::ALL`] only if the controller supports it.
    #[inline]
    #[must_use]
    pub const fn flush(nsid: Nsid) -> Self {
        Self::new(NvmOpcode::FLUSH.raw(), nsid)
    }

    /// With force unit access set; for commands on blocks and Copy.
    #[inline]
    #[must_use]
    pub fn with_fua(mut self) -> Self {
        let cdw12 = self.cdw12.get();
        let control = BlockControl::from_bits(high16(cdw12)).with_fua(true);
        self.cdw12.set(dword(low16(cdw12), control.bits()));
        self
    }
}

tables! {
    /// Attributes of a Dataset Management. Without DEALLOCATE the controller need do nothing. wire §14
    pub flags DsmAttributes: u32 {
        [0] INTEGRAL_READ, "The ranges will be read as a whole.";
        [1] INTEGRAL_WRITE, "The ranges will be written as a whole.";
        [2] DEALLOCATE, "The ranges are not needed any more.";
    }
}

/// Fields of a Dataset Management. wire §14
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Ranges in the data, 1..=256. Linux sends 4096 bytes of data whatever their number.
    pub range_count: u16,
    /// Its attributes.
    pub attributes: DsmAttributes,
}

impl DatasetManagement {
    /// Reads the fields of a Dataset Management.
    #[must_use]
    pub const fn from_sqe(sqe: &Sqe) -> Self {
        Self {
            range_count: (byte(sqe.cdw10.get(), 0) as u16).saturating_add(1),
            attributes: DsmAttributes::from_bits_retain(sqe.cdw11.get()),
        }
    }

    /// A Dataset Management with these fields; the data pointer is left to the caller. The count is clamped
    /// to its range.
    #[must_use]
    pub fn to_sqe(&self, nsid: Nsid) -> Sqe {
        let mut sqe = Sqe::new(NvmOpcode::DATASET_MANAGEMENT.raw(), nsid);
        sqe.cdw10.set(u32::from(zero_based8(self.range_count)));
        sqe.cdw11.set(self.attributes.bits());
        sqe
    }

    /// Bytes the ranges take: the least the data may have.
    #[must_use]
    pub const fn data_bytes(&self) -> u32 {
        (self.range_count as u32).saturating_mul(DSM_RANGE_BYTES)
    }

    /// The ranges in the data; `None` if it is too short for them.
    #[must_use]
    pub fn ranges<'a>(&self, data: &'a [u8]) -> Option<&'a [DsmRange]> {
        let count = usize::from(self.range_count);
        <[DsmRange]>::ref_from_prefix_with_elems(data, count).ok().map(|(ranges, _)| ranges)
    }
}

tables! {
    /// A range of Dataset Management. wire §14
    pub structure DsmRange: DSM_RANGE_BYTES {
        0 pub attributes: U32, "Context attributes, as the wire has them.";
        4 pub blocks: U32, "Blocks, not 0-based: 0 is a range without blocks.";
        8 pub slba: U64, "First block.";
    }
}

impl DsmRange {
    /// A range without attributes.
    #[must_use]
    pub const fn new(slba: u64, blocks: u32) -> Self {
        Self { attributes: U32::ZERO, blocks: U32::new(blocks), slba: U64::new(slba) }
    }

    /// First block past the range; `None` if no 64-bit number is that large.
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        self.slba.get().checked_add(self.blocks.get() as u64)
    }
}

tables! {
    /// Format of the source ranges of a Copy. wire §14
    pub codes CopyFormat: u8 {
        0 FORMAT_0, "format 0";
        1 FORMAT_1, "format 1";
        /// As format 0, with a source namespace.
        2 FORMAT_2, "format 2";
        3 FORMAT_3, "format 3";
    }

    /// Dword 12 of a Copy. wire §14
    pub bits CopyControl: u32 {
        [7:0] nr, with_nr: u8, "Source ranges, 0-based; see [`CopyCommand::range_count`].";
        [11:8] format, with_format: CopyFormat, "Format of the source ranges.";
        [23:20] directive_type, with_directive_type: u8, "Directive type.";
        [28:26] prchk, with_prchk: u8, "Protection checks, as the wire has them.";
        [29] pract, with_pract: bool, "Protection action.";
        [30] fua, with_fua: bool, "Force unit access.";
        [31] limited_retry, with_limited_retry: bool, "Limited retry.";
    }

    /// Fields of a Copy. Dword 0 of a failed one is the lowest range not copied. wire §14
    pub command CopyCommand: NvmOpcode::COPY {
        cdw10_11 [63:0] destination: u64, "First block of the destination.";
        cdw12 [31:0] control: CopyControl, "Ranges, their format, flags.";
    }
}

impl CopyCommand {
    /// A Copy of 1 to 256 ranges, clamped, without flags.
    #[must_use]
    pub const fn new(destination: u64, format: CopyFormat, range_count: u16) -> Self {
        let control = CopyControl::from_bits(0).with_format(format).with_nr(zero_based8(range_count));
        Self { destination, control }
    }

    /// Source ranges in the data, 1..=256.
    #[must_use]
    pub const fn range_count(&self) -> u16 {
        (self.control.nr() as u16).saturating_add(1)
    }

    /// The source ranges in data of format 0 or 2; `None` if it is too short for them or of another format.
    #[must_use]
    pub fn sources<'a>(&self, data: &'a [u8]) -> Option<&'a [CopySource]> {
        if !matches!(self.control.format(), CopyFormat::FORMAT_0 | CopyFormat::FORMAT_2) {
            return None;
        }
        let count = usize::from(self.range_count());
        <[CopySource]>::ref_from_prefix_with_elems(data, count).ok().map(|(sources, _)| sources)
    }
}

tables! {
    /// A source range of Copy, formats 0 and 2. wire §14
    pub structure CopySource: COPY_SOURCE_BYTES {
        0 snsid: U32 as nsid: Nsid, "Namespace of the range. Meaningless in format 0.";
        4 reserved_4: [u8; 4];
        8 pub slba: U64, "First block.";
        16 nlb: U16 as blocks: count, "Blocks, 1..=65536.";
        18 pub tags: [u8; 14], "Tags, as the wire has them.";
    }
}

impl CopySource {
    /// A range without tags; `blocks` is clamped to 1..=65536. [`Nsid::NONE`] in format 0.
    #[must_use]
    pub const fn new(nsid: Nsid, slba: u64, blocks: u32) -> Self {
        Self {
            snsid: U32::new(nsid.get()),
            reserved_4: [0; 4],
            slba: U64::new(slba),
            nlb: U16::new(zero_based16(blocks)),
            tags: [0; 14],
        }
    }

    /// First block past the range; `None` if no 64-bit number is that large.
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        self.slba.get().checked_add(self.blocks() as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::sgl::Sgl;

    /// The 64 bytes of a command on namespace 1 with these from byte 40 on.
    fn command(opcode: u8, dwords: &[u8]) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..5].copy_from_slice(&[opcode, 0x40, 0, 0, 1]);
        bytes[39] = 0x5A;
        bytes[40..40 + dwords.len()].copy_from_slice(dwords);
        bytes
    }

    #[test]
    fn commands_on_blocks_have_the_bytes_of_the_reference() {
        let nsid = Nsid::new(1);
        let range = [8, 7, 6, 5, 4, 3, 2, 1, 7, 0, 0, 0];
        let slba = 0x0102_0304_0506_0708;
        for (sqe, opcode) in [
            (Sqe::read(nsid, slba, 8), 0x02),
            (Sqe::write(nsid, slba, 8), 0x01),
            (Sqe::compare(nsid, slba, 8), 0x05),
            (Sqe::verify(nsid, slba, 8), 0x0C),
            (Sqe::write_zeroes(nsid, slba, 8, false), 0x08),
            (Sqe::write_uncorrectable(nsid, slba, 8), 0x04),
        ] {
            assert_eq!(sqe.as_bytes(), command(opcode, &range), "opcode {opcode:#x}");
        }
        assert_eq!(Sqe::flush(nsid).as_bytes(), command(0x00, &[]));
    }

    #[test]
    fn a_read_of_4_kib_says_where_its_data_goes() {
        let sqe = Sqe::read(Nsid::new(1), 0, 8).with_cid(0x1234).with_data(Sgl::transport(4096));
        assert_eq!(sqe.as_bytes()[..8], [0x02, 0x40, 0x34, 0x12, 1, 0, 0, 0]);
        assert_eq!(sqe.as_bytes()[24..40], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0x5A]);
    }

    /// wire §14
    #[test]
    fn flags_lie_where_the_reference_says() {
        let fua = Sqe::write(Nsid::new(1), 0, 1).with_fua();
        assert_eq!(fua.as_bytes()[48..52], [0, 0, 0, 0x40]);
        let deac = Sqe::write_zeroes(Nsid::new(1), 0, 1, true);
        assert_eq!(deac.cdw12.get(), 1 << 25);
        let control = BlockControl::default().with_limited_retry(true).with_pract(true).with_prchk(7);
        assert_eq!(control.with_directive_type(0xF).bits(), 0b1011_1100_1111_0000);
        let tags = BlockCommand {
            hints: 0x0A0B_0C0D,
            reference_tag: 0x0102_0304,
            application_tag: 0x0506,
            application_mask: 0x0708,
            ..BlockCommand::new(0, 1)
        };
        let sqe = tags.to_sqe(NvmOpcode::READ, Nsid::new(1));
        assert_eq!(
            sqe.as_bytes()[52..64],
            [0x0D, 0x0C, 0x0B, 0x0A, 0x04, 0x03, 0x02, 0x01, 0x06, 0x05, 0x08, 0x07]
        );
        assert_eq!(tags.directive_specific(), 0x0A0B);
    }

    #[test]
    fn the_largest_ranges_do_not_overflow() {
        let mut sqe = Sqe::read(Nsid::new(1), u64::MAX, 65_536);
        let command = BlockCommand::from_sqe(&sqe);
        assert_eq!((command.blocks, command.end()), (65_536, None));
        assert_eq!(command.data_bytes(u32::MAX), 65_536 * u64::from(u32::MAX));
        sqe.set_cdw10_11(u64::MAX - 65_536);
        assert_eq!(BlockCommand::from_sqe(&sqe).end(), Some(u64::MAX));
        assert_eq!(DsmRange::new(u64::MAX, 1).end(), None);
        assert_eq!(DsmRange::new(u64::MAX - 1, 1).end(), Some(u64::MAX));
        assert_eq!(CopySource::new(Nsid::NONE, u64::MAX, 1).end(), None);
    }

    #[test]
    #[should_panic(expected = "1 to 65536 blocks, not 0")]
    fn no_blocks_cannot_be_sent() {
        let _ = Sqe::write(Nsid::new(1), 0, 0);
    }

    #[test]
    #[should_panic(expected = "1 to 65536 blocks, not 65537")]
    fn too_many_blocks_cannot_be_sent() {
        let _ = Sqe::write(Nsid::new(1), 0, 65_537);
    }

    #[test]
    fn a_deallocate_has_the_bytes_of_the_reference() {
        let deallocate = DatasetManagement { range_count: 2, attributes: DsmAttributes::DEALLOCATE };
        assert_eq!(deallocate.to_sqe(Nsid::new(1)).as_bytes(), command(0x09, &[1, 0, 0, 0, 4, 0, 0, 0]));
        let range = DsmRange::new(0x0102, 0x0304);
        assert_eq!(range.as_bytes(), [0, 0, 0, 0, 4, 3, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn ranges_are_read_from_data_that_is_long_enough() {
        let deallocate = DatasetManagement { range_count: 2, attributes: DsmAttributes::DEALLOCATE };
        assert_eq!(deallocate.data_bytes(), 32);
        // Linux: always 4096 bytes.
        assert_eq!(deallocate.ranges(&[0; 4096]).map(<[_]>::len), Some(2));
        assert_eq!(deallocate.ranges(&[0; 32]).map(<[_]>::len), Some(2));
        assert!(deallocate.ranges(&[0; 31]).is_none());
    }

    #[test]
    fn a_copy_has_the_bytes_of_the_reference() {
        let copy = CopyCommand::new(0x0102, CopyFormat::FORMAT_2, 3);
        let expected = command(0x19, &[2, 1, 0, 0, 0, 0, 0, 0, 2, 2, 0, 0]);
        assert_eq!(copy.to_sqe(Nsid::new(1)).as_bytes(), expected);
        assert_eq!(copy.to_sqe(Nsid::new(1)).with_fua().cdw12.get(), copy.control.with_fua(true).bits());
        let source = CopySource::new(Nsid::new(5), 0x0304, 8);
        assert_eq!(source.as_bytes()[..20], [5, 0, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!((source.nsid(), source.blocks(), source.end()), (Nsid::new(5), 8, Some(0x030C)));
    }

    #[test]
    fn sources_are_read_only_in_formats_of_known_layout() {
        let copy = |format| CopyCommand::new(0, format, 2);
        assert_eq!(copy(CopyFormat::FORMAT_0).sources(&[0; 64]).map(<[_]>::len), Some(2));
        assert!(copy(CopyFormat::FORMAT_0).sources(&[0; 63]).is_none());
        assert!(copy(CopyFormat::FORMAT_1).sources(&[0; 4096]).is_none());
        assert!(copy(CopyFormat::from_raw(9)).sources(&[0; 4096]).is_none());
    }

    proptest! {
        #[test]
        fn commands_give_back_what_they_were_made_of(
            slba: u64, blocks in 1u32..=65_536, control: u16, hints: u32, reference_tag: u32,
            application_tag: u16, application_mask: u16, opcode: u8, nsid: u32,
        ) {
            let command = BlockCommand {
                slba,
                blocks,
                control: BlockControl::from_bits(control),
                hints,
                reference_tag,
                application_tag,
                application_mask,
            };
            let sqe = command.to_sqe(NvmOpcode::from_raw(opcode), Nsid::new(nsid));
            prop_assert_eq!(BlockCommand::from_sqe(&sqe), command);
            prop_assert_eq!((sqe.opcode, sqe.nsid().get()), (opcode, nsid));
            let copy = CopyCommand { destination: slba, control: CopyControl::from_bits(hints) };
            prop_assert_eq!(CopyCommand::from_sqe(&copy.to_sqe(Nsid::new(nsid))), copy);
            let source = CopySource::new(Nsid::new(nsid), slba, blocks);
            prop_assert_eq!((source.nsid().get(), source.slba.get(), source.blocks()), (nsid, slba, blocks));
        }

        #[test]
        fn dataset_management_gives_back_what_it_was_made_of(range_count in 1u16..=256, attributes: u32) {
            let attributes = DsmAttributes::from_bits_retain(attributes);
            let command = DatasetManagement { range_count, attributes };
            prop_assert_eq!(DatasetManagement::from_sqe(&command.to_sqe(Nsid::new(1))), command);
        }

        #[test]
        fn any_command_and_data_are_read_within_bounds(
            bytes: [[u8; 32]; 2], data in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            let sqe = Sqe::read_from_bytes(bytes.as_flattened()).expect("64 bytes");
            let block = BlockCommand::from_sqe(&sqe);
            let _ = (block.end(), block.data_bytes(u32::MAX));
            if let Some(ranges) = DatasetManagement::from_sqe(&sqe).ranges(&data) {
                prop_assert!(ranges.len() * 16 <= data.len());
                for range in ranges {
                    prop_assert!(range.end().is_none_or(|end| end >= range.slba.get()));
                }
            }
            if let Some(sources) = CopyCommand::from_sqe(&sqe).sources(&data) {
                prop_assert!(sources.len() * 32 <= data.len());
            }
        }
    }
}
