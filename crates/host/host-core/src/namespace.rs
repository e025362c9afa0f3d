//! A block namespace: its size and limits, and the constructor of its commands.
// Data from a controller must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::sync::Arc;

use proto::host_limits::Limits;
use proto::host_namespaces::{Geometry, NamespaceInfo, Unusable};
use wire::id::Nsid;
use wire::identify::capabilities::{Fuses, Oncs};
use wire::identify::command_set::Aocs;
use wire::identify::namespace::NvmVendorCommands;
use wire::lba_status::{
    AllocatedBlocks, GetLbaStatus, InvalidLbaStatus, LBA_STATUS_DESCRIPTOR_BYTES, LBA_STATUS_HEAD_BYTES,
};
use wire::nvm::{
    BLOCKS_MAX, CopyCommand, CopyFormat, CopySource, DatasetManagement, DsmAttributes, DsmRange,
};
use wire::sqe::{Fuse, Sqe};
use zerocopy::IntoBytes;

use crate::reconnect::Class;
use crate::submit::{Command, Moves, Payload, RangeBytes};

/// A block namespace: a value with its size and limits at the time of the query. It constructs commands, and checks
/// their ranges and sizes.
///
/// The namespace may be resized or removed (`Event::NamespacesChanged`): the controller then refuses
/// commands beyond its new size. `BlockingNamespace`,
/// `AsyncNamespace` and `Lane` run commands.
#[derive(Clone, Debug)]
pub struct Namespace {
    nsid: Nsid,
    lba_bytes: u32,
    block_count: u64,
    /// Maximum blocks per command.
    transfer_blocks_max: u32,
    details: Arc<Details>,
}

#[derive(Debug)]
struct Details {
    info: NamespaceInfo,
    limits: Limits,
}

/// Why a command is invalid on a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCommand {
    /// No blocks or bytes.
    #[error("a command needs at least one block")]
    Empty,
    /// Beyond the end of the namespace.
    #[error("{blocks} blocks from block {lba} on: the namespace has {block_count} blocks")]
    OutOfRange {
        /// First block.
        lba: u64,
        /// Blocks.
        blocks: u64,
        /// Blocks of the namespace.
        block_count: u64,
    },
    /// More blocks than one command takes.
    #[error("{blocks} blocks in one command: the limit is {limit}")]
    TooLong {
        /// Blocks requested.
        blocks: u64,
        /// Maximum blocks.
        limit: u64,
    },
    /// A range of bytes that is not aligned to blocks.
    #[error("{length} bytes at offset {offset}: both must be multiples of the block size, {lba_bytes} bytes")]
    Unaligned {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes of a block.
        lba_bytes: u32,
    },
    /// No range, or more ranges than one command takes.
    #[error("{count} ranges in one command: the limit is 1 to {limit}")]
    RangeCount {
        /// Ranges requested.
        count: usize,
        /// Maximum ranges.
        limit: u16,
    },
    /// A value longer than one command transfers.
    #[error("a value of {length} bytes: the limit of one command is {limit}")]
    ValueTooLong {
        /// Bytes of the value, or of the buffer for it.
        length: u64,
        /// Maximum, bytes.
        limit: u32,
    },
    /// The batch has no room for another operation, by count or by length.
    #[error(
        "a batch of {operations} operations has no room for another: operations and outcomes are limited to {bytes} bytes"
    )]
    BatchFull {
        /// Operations in the batch.
        operations: u16,
        /// Maximum length of operations and outcomes together, bytes.
        bytes: u32,
    },
    /// A key that no command can have.
    #[error("a key of {length} bytes: it must have 1 to {limit}")]
    KeyLength {
        /// Bytes of the key.
        length: usize,
        /// Maximum, bytes.
        limit: u16,
    },
    /// A pin for no time, or for too long.
    #[error("a pin of {seconds} seconds: it must have 1 to {limit}")]
    PinTime {
        /// Seconds of the pin.
        seconds: u32,
        /// Maximum, seconds.
        limit: u32,
    },
    /// No room for a list of blocks, or more than one command transfers.
    #[error("a list of blocks in {bytes} bytes: it takes multiples of 4 from 24 to {limit}")]
    StatusRoom {
        /// Bytes for the list.
        bytes: u32,
        /// Maximum, bytes.
        limit: u32,
    },
    /// The controller does not support this command.
    #[error("the controller does not support {0}")]
    Unsupported(&'static str),
}

/// A range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First block.
    pub lba: u64,
    /// Number of blocks.
    pub blocks: u32,
}

/// Blocks of one Get LBA Status.
fn clipped(blocks: u64) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

impl Namespace {
    /// A namespace of a controller with these limits.
    ///
    /// # Errors
    /// Why it cannot be read or written.
    #[expect(clippy::arithmetic_side_effects, reason = "a geometry has no blocks of no bytes")]
    pub fn new(info: NamespaceInfo, limits: Limits) -> Result<Self, Unusable> {
        let Geometry { lba_bytes, block_count } = info.geometry?;
        if limits.transfer_bytes_max < lba_bytes {
            return Err(Unusable::BlockTooLarge { bytes: lba_bytes });
        }
        let transfer_blocks_max = (limits.transfer_bytes_max / lba_bytes).min(BLOCKS_MAX);
        let nsid = info.nsid;
        Ok(Self {
            nsid,
            lba_bytes,
            block_count,
            transfer_blocks_max,
            details: Arc::new(Details { info, limits }),
        })
    }

    /// The namespace id.
    #[must_use]
    pub fn nsid(&self) -> Nsid {
        self.nsid
    }

    /// Block size, bytes.
    #[must_use]
    pub fn lba_bytes(&self) -> u32 {
        self.lba_bytes
    }

    /// Number of blocks.
    #[must_use]
    pub fn block_count(&self) -> u64 {
        self.block_count
    }

    /// Size in bytes.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "a geometry of more is refused")]
    pub fn size_bytes(&self) -> u64 {
        self.block_count * u64::from(self.lba_bytes)
    }

    /// Maximum blocks that one command transfers.
    #[must_use]
    pub fn transfer_blocks_max(&self) -> u32 {
        self.transfer_blocks_max
    }

    /// All facts from Identify.
    #[must_use]
    pub fn info(&self) -> &NamespaceInfo {
        &self.details.info
    }

    /// Limits of the controller.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.details.limits
    }

    #[inline]
    fn check_range(&self, lba: u64, blocks: u64) -> Result<(), InvalidCommand> {
        if blocks == 0 {
            return Err(InvalidCommand::Empty);
        }
        match lba.checked_add(blocks) {
            Some(end) if end <= self.block_count => Ok(()),
            _ => Err(InvalidCommand::OutOfRange { lba, blocks, block_count: self.block_count }),
        }
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "at most the transfer limit, of 32 bits")]
    fn check_transfer(&self, lba: u64, blocks: u32) -> Result<u32, InvalidCommand> {
        self.check_range(lba, blocks.into())?;
        if blocks > self.transfer_blocks_max {
            let limit = self.transfer_blocks_max.into();
            return Err(InvalidCommand::TooLong { blocks: blocks.into(), limit });
        }
        Ok(blocks * self.lba_bytes)
    }

    fn check_support(&self, command: Oncs, name: &'static str) -> Result<(), InvalidCommand> {
        match self.limits().commands.contains(command) {
            true => Ok(()),
            false => Err(InvalidCommand::Unsupported(name)),
        }
    }

    /// Reads blocks.
    ///
    /// # Errors
    /// [`InvalidCommand`]: no blocks, beyond the end, or more than one command transfers.
    #[inline]
    pub fn read(&self, lba: u64, blocks: u32) -> Result<Command, InvalidCommand> {
        let length = self.check_transfer(lba, blocks)?;
        Ok(Command::new(Sqe::read(self.nsid, lba, blocks), Class::ReadOnly, Moves::FromController, length))
    }

    /// Writes blocks.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub fn write(&self, lba: u64, blocks: u32) -> Result<Command, InvalidCommand> {
        let length = self.check_transfer(lba, blocks)?;
        let sqe = Sqe::write(self.nsid, lba, blocks);
        Ok(Command::new(sqe, Class::Idempotent, Moves::ToController, length))
    }

    /// Compares blocks with the data sent; fails with `COMPARE_FAILURE` if they differ.
    ///
    /// # Errors
    /// As [`read`](Self::read), or not supported.
    pub fn compare(&self, lba: u64, blocks: u32) -> Result<Command, InvalidCommand> {
        self.check_support(Oncs::COMPARE, "Compare")?;
        let length = self.check_transfer(lba, blocks)?;
        let sqe = Sqe::compare(self.nsid, lba, blocks);
        Ok(Command::new(sqe, Class::ReadOnly, Moves::ToController, length))
    }

    /// Atomically compares blocks and writes them if they are equal: a fused pair for
    /// `submit_pair`. If they differ, the first fails with `COMPARE_FAILURE` and the second
    /// with `ABORTED_FAILED_FUSED`.
    ///
    /// # Errors
    /// As [`read`](Self::read), not supported, or more blocks than the pair takes.
    pub fn compare_and_write(&self, lba: u64, blocks: u32) -> Result<[Command; 2], InvalidCommand> {
        if !self.limits().fused.contains(Fuses::COMPARE_AND_WRITE) {
            return Err(InvalidCommand::Unsupported("fused Compare and Write"));
        }
        let length = self.check_transfer(lba, blocks)?;
        // The limit of the namespace precedes that of the controller.
        let limit = match self.info().compare_write_blocks {
            0 => self.limits().compare_write_blocks,
            blocks => blocks,
        };
        if blocks > limit {
            return Err(InvalidCommand::TooLong { blocks: blocks.into(), limit: limit.into() });
        }
        let pair = [
            Sqe::compare(self.nsid, lba, blocks).with_fuse(Fuse::FIRST),
            Sqe::write(self.nsid, lba, blocks).with_fuse(Fuse::SECOND),
        ];
        Ok(pair.map(|sqe| Command::new(sqe, Class::Other, Moves::ToController, length)))
    }

    /// Makes the target read and check blocks, without transfer.
    ///
    /// # Errors
    /// As [`read`](Self::read), or not supported.
    pub fn verify(&self, lba: u64, blocks: u32) -> Result<Command, InvalidCommand> {
        self.check_support(Oncs::VERIFY, "Verify")?;
        self.check_range(lba, blocks.into())?;
        self.check_blocks(blocks, self.limits().verify_bytes_max)?;
        Ok(Command::new(Sqe::verify(self.nsid, lba, blocks), Class::ReadOnly, Moves::Nothing, 0))
    }

    /// Writes zeroes; with `deallocate` the target may deallocate the blocks.
    ///
    /// # Errors
    /// As [`read`](Self::read), or not supported.
    pub fn write_zeroes(&self, lba: u64, blocks: u32, deallocate: bool) -> Result<Command, InvalidCommand> {
        self.check_support(Oncs::WRITE_ZEROES, "Write Zeroes")?;
        self.check_range(lba, blocks.into())?;
        self.check_blocks(blocks, self.limits().write_zeroes_bytes_max)?;
        let sqe = Sqe::write_zeroes(self.nsid, lba, blocks, deallocate);
        Ok(Command::new(sqe, Class::Idempotent, Moves::Nothing, 0))
    }

    /// Maximum blocks of one Write Zeroes.
    #[must_use]
    pub fn write_zeroes_blocks_max(&self) -> u32 {
        self.blocks_within(self.limits().write_zeroes_bytes_max)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "a geometry has no blocks of no bytes")]
    fn blocks_within(&self, limit_bytes: Option<u64>) -> u32 {
        let blocks = limit_bytes.map_or(BLOCKS_MAX.into(), |bytes| bytes / u64::from(self.lba_bytes));
        u32::try_from(blocks).unwrap_or(BLOCKS_MAX).clamp(1, BLOCKS_MAX)
    }

    fn check_blocks(&self, blocks: u32, limit_bytes: Option<u64>) -> Result<(), InvalidCommand> {
        let limit = self.blocks_within(limit_bytes);
        if blocks > limit {
            return Err(InvalidCommand::TooLong { blocks: blocks.into(), limit: limit.into() });
        }
        Ok(())
    }

    /// Deallocates 1 to [`Limits::deallocate_ranges_max`] ranges (TRIM); the controller may ignore it.
    /// [`NamespaceInfo::deallocated_value`] is their content afterwards.
    ///
    /// # Errors
    /// [`InvalidCommand`]: no range or too many, one beyond the end, or not supported.
    pub fn deallocate(&self, ranges: &[BlockRange]) -> Result<Command, InvalidCommand> {
        self.check_support(Oncs::DATASET_MANAGEMENT, "Dataset Management")?;
        let limit = self.limits().deallocate_ranges_max;
        let count = u16::try_from(ranges.len()).ok().filter(|count| (1..=limit).contains(count));
        let range_count = count.ok_or(InvalidCommand::RangeCount { count: ranges.len(), limit })?;
        let blocks_max = self.limits().deallocate_range_blocks_max.unwrap_or(u32::MAX);
        for range in ranges {
            self.check_range(range.lba, range.blocks.into())?;
            if range.blocks > blocks_max {
                let (blocks, limit) = (range.blocks.into(), blocks_max.into());
                return Err(InvalidCommand::TooLong { blocks, limit });
            }
        }
        let attributes = DsmAttributes::DEALLOCATE;
        let sqe = DatasetManagement { range_count, attributes }.to_sqe(self.nsid);
        let bytes =
            |range: &BlockRange| -> [u8; 16] { zerocopy::transmute!(DsmRange::new(range.lba, range.blocks)) };
        let payload = match ranges {
            [range] => Payload::Range(RangeBytes(bytes(range))),
            _ => Payload::Own(ranges.iter().flat_map(bytes).collect()),
        };
        Ok(Command::with_payload(sqe, Class::Idempotent, payload))
    }

    /// Copies ranges within the namespace, one after the other, to the blocks from `destination` on. On failure the
    /// result is the index of the first range that was not copied.
    ///
    /// # Errors
    /// [`InvalidCommand`]: no range or too many, beyond the end, more blocks than one Copy moves, or not supported.
    pub fn copy(&self, destination: u64, sources: &[BlockRange]) -> Result<Command, InvalidCommand> {
        self.check_support(Oncs::COPY, "Copy")?;
        let copy = self.info().copy;
        let count = u16::try_from(sources.len()).ok().filter(|count| (1..=copy.ranges).contains(count));
        let count = count.ok_or(InvalidCommand::RangeCount { count: sources.len(), limit: copy.ranges })?;
        let mut total = 0u64;
        for source in sources {
            self.check_range(source.lba, source.blocks.into())?;
            let limit = u64::from(copy.range_blocks).min(BLOCKS_MAX.into());
            if u64::from(source.blocks) > limit {
                return Err(InvalidCommand::TooLong { blocks: source.blocks.into(), limit });
            }
            total = total.saturating_add(source.blocks.into());
        }
        if total > copy.blocks.into() {
            return Err(InvalidCommand::TooLong { blocks: total, limit: copy.blocks.into() });
        }
        self.check_range(destination, total)?;
        let sqe = CopyCommand::new(destination, CopyFormat::FORMAT_0, count).to_sqe(self.nsid);
        let entry = |source: &BlockRange| CopySource::new(Nsid::NONE, source.lba, source.blocks);
        let data = sources.iter().flat_map(|source| entry(source).as_bytes().to_vec()).collect();
        Ok(Command::with_payload(sqe, Class::Other, Payload::Own(data)))
    }

    /// Whether the controller tells on I/O queues which blocks are allocated: those of nvlane do. The standard's command is
    /// for admin queues ([`has_admin_lba_status`](Self::has_admin_lba_status)).
    #[must_use]
    pub fn has_lba_status(&self) -> bool {
        self.info().vendor_commands.contains(NvmVendorCommands::LBA_STATUS)
    }

    /// Whether the controller tells on its admin queue which blocks are allocated (`Association::allocated_blocks`).
    #[must_use]
    pub fn has_admin_lba_status(&self) -> bool {
        self.limits().admin_commands.contains(Aocs::ALLOCATED_LBA)
    }

    /// The admin command that asks which blocks of a range are allocated: it has 16 bits for their number, so longer
    /// ranges are asked for up to the end of the namespace.
    ///
    /// # Errors
    /// [`InvalidCommand`], as of [`lba_status`](Self::lba_status).
    pub fn admin_lba_status(&self, lba: u64, blocks: u64, room_bytes: u32) -> Result<Sqe, InvalidCommand> {
        if !self.has_admin_lba_status() {
            return Err(InvalidCommand::Unsupported("Get LBA Status"));
        }
        self.check_lba_status(lba, blocks, room_bytes)?;
        let range_blocks = u16::try_from(blocks).unwrap_or(0);
        Ok(GetLbaStatus { range_blocks, ..GetLbaStatus::allocated(lba, 0, room_bytes) }.to_sqe(self.nsid))
    }

    /// Reads what [`admin_lba_status`](Self::admin_lba_status) of the same range has received, as
    /// [`allocated_blocks`](Self::allocated_blocks) does.
    ///
    /// # Errors
    /// [`InvalidLbaStatus`]: the controller's list makes no sense.
    #[expect(clippy::arithmetic_side_effects, reason = "the range was checked when it was asked for")]
    pub fn admin_allocated_blocks(
        &self,
        lba: u64,
        blocks: u64,
        received: &[u8],
    ) -> Result<AllocatedBlocks, InvalidLbaStatus> {
        let end = lba + blocks;
        let told_end = if u16::try_from(blocks).is_ok() { end } else { self.block_count };
        let AllocatedBlocks { range, mut allocated } = AllocatedBlocks::from_bytes(received, lba..told_end)?;
        allocated.retain(|part| part.start < end);
        if let Some(last) = allocated.last_mut() {
            last.end = last.end.min(end);
        }
        Ok(AllocatedBlocks { range: lba..range.end.min(end), allocated })
    }

    fn check_lba_status(&self, lba: u64, blocks: u64, room_bytes: u32) -> Result<(), InvalidCommand> {
        self.check_range(lba, blocks)?;
        let limit = self.limits().transfer_bytes_max;
        let least = LBA_STATUS_HEAD_BYTES + LBA_STATUS_DESCRIPTOR_BYTES;
        if room_bytes > limit || (room_bytes as usize) < least || !room_bytes.is_multiple_of(4) {
            return Err(InvalidCommand::StatusRoom { bytes: room_bytes, limit });
        }
        Ok(())
    }

    /// Asks which blocks of a range are allocated, in a list of at most `room_bytes`; longer ranges are cut to 2^32 - 1
    /// blocks. [`allocated_blocks`](Self::allocated_blocks) reads the bytes received.
    ///
    /// # Errors
    /// [`InvalidCommand`]: no blocks, beyond the end, no room for a range of blocks or more than one command transfers, or
    /// not supported.
    pub fn lba_status(&self, lba: u64, blocks: u64, room_bytes: u32) -> Result<Command, InvalidCommand> {
        if !self.has_lba_status() {
            return Err(InvalidCommand::Unsupported("Get LBA Status on I/O queues"));
        }
        self.check_lba_status(lba, blocks, room_bytes)?;
        let sqe = Sqe::allocated_blocks(self.nsid, lba, clipped(blocks), room_bytes);
        Ok(Command::new(sqe, Class::ReadOnly, Moves::AtMostFromController, room_bytes))
    }

    /// Reads what [`lba_status`](Self::lba_status) of the same range has received: a range that begins with the one asked for
    /// and is not empty, and its allocated blocks.
    ///
    /// # Errors
    /// [`InvalidLbaStatus`]: the controller's list makes no sense.
    #[expect(clippy::arithmetic_side_effects, reason = "the range was checked when it was asked for")]
    pub fn allocated_blocks(
        &self,
        lba: u64,
        blocks: u64,
        received: &[u8],
    ) -> Result<AllocatedBlocks, InvalidLbaStatus> {
        AllocatedBlocks::from_bytes(received, lba..lba + u64::from(clipped(blocks)))
    }

    /// Makes all writes that completed before it durable. The first Flush after a reconnect fails: see
    /// [`reconnect`](crate::reconnect).
    #[must_use]
    pub fn flush(&self) -> Command {
        Command::new(Sqe::flush(self.nsid), Class::Flush, Moves::Nothing, 0)
    }

    /// Converts a range of bytes to blocks.
    ///
    /// # Errors
    /// [`InvalidCommand::Unaligned`], [`InvalidCommand::OutOfRange`] or [`InvalidCommand::Empty`].
    pub fn blocks_of(&self, offset: u64, length: u64) -> Result<(u64, u64), InvalidCommand> {
        let lba_bytes = u64::from(self.lba_bytes);
        if !offset.is_multiple_of(lba_bytes) || !length.is_multiple_of(lba_bytes) {
            return Err(InvalidCommand::Unaligned { offset, length, lba_bytes: self.lba_bytes });
        }
        #[expect(clippy::arithmetic_side_effects, reason = "a geometry has no blocks of no bytes")]
        let (lba, blocks) = (offset / lba_bytes, length / lba_bytes);
        self.check_range(lba, blocks)?;
        Ok((lba, blocks))
    }

    /// Splits a range into parts of at most `blocks_max` blocks.
    pub fn split(lba: u64, blocks: u64, blocks_max: u32) -> impl Iterator<Item = BlockRange> {
        let step = blocks_max.max(1);
        let mut done = 0u64;
        std::iter::from_fn(move || {
            let left = blocks.saturating_sub(done);
            let count = u32::try_from(left).unwrap_or(u32::MAX).min(step);
            let range = BlockRange { lba: lba.saturating_add(done), blocks: count };
            done = done.saturating_add(count.into());
            (count > 0).then_some(range)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto::host_namespaces::Ids;
    use wire::identify::controller::IdentifyController;
    use wire::identify::namespace::IdentifyNamespace;
    use wire::nvm::BlockCommand;
    use wire::property::Cap;
    use zerocopy::FromBytes;

    /// A namespace of 1000 blocks of 4096 bytes; transfers of 128 KiB.
    pub(crate) fn namespace(commands: Oncs) -> Namespace {
        let mut identify = IdentifyController::fabrics();
        identify.set_in_capsule_bytes(8192);
        identify.set_transfer_limit_bytes(Some(128 << 10), 4096);
        identify.set_oncs(commands);
        identify.set_fuses(Fuses::COMPARE_AND_WRITE);
        identify.set_atomic_compare_write_blocks(2);
        let limits = Limits::new(Cap::from_bits(0).with_queue_entries_max(128), &identify).unwrap();
        let mut bytes = vec![0; 4096];
        bytes[..8].copy_from_slice(&1000u64.to_le_bytes());
        bytes[8..16].copy_from_slice(&1000u64.to_le_bytes());
        bytes[130] = 12;
        bytes[74..76].copy_from_slice(&64u16.to_le_bytes());
        bytes[76..80].copy_from_slice(&100u32.to_le_bytes());
        bytes[80] = 3;
        let (identify, _) = IdentifyNamespace::ref_from_prefix(&bytes).unwrap();
        let info = NamespaceInfo::of_blocks(Nsid::new(1), &Ids::default(), identify).unwrap();
        Namespace::new(info, limits).unwrap()
    }

    #[test]
    fn commands_name_their_blocks_and_bytes() {
        let namespace = namespace(Oncs::all());
        let read = namespace.read(7, 2).unwrap();
        assert_eq!(read.buffer_bytes(), Some(8192));
        assert_eq!(BlockCommand::from_sqe(read.sqe()), BlockCommand::new(7, 2));
        let write = namespace.write(7, 2).unwrap().fua();
        assert!(BlockCommand::from_sqe(write.sqe()).control.fua());
        assert_eq!(namespace.flush().buffer_bytes(), None);
    }

    #[test]
    fn what_cannot_be_done_is_refused_before_it_is_sent() {
        let namespace = namespace(Oncs::all());
        assert_eq!(namespace.read(0, 0).unwrap_err(), InvalidCommand::Empty);
        let beyond = InvalidCommand::OutOfRange { lba: 999, blocks: 2, block_count: 1000 };
        assert_eq!(namespace.write(999, 2).unwrap_err(), beyond);
        assert!(namespace.read(u64::MAX, 1).is_err());
        let too_long = InvalidCommand::TooLong { blocks: 33, limit: 32 };
        assert_eq!(namespace.read(0, 33).unwrap_err(), too_long);
        assert!(namespace.write_zeroes(0, 1000, true).is_ok(), "no data, no transfer limit");
        assert!(namespace.compare_and_write(0, 3).is_err());
        assert!(namespace.compare_and_write(0, 2).is_ok());
        let range = |lba, blocks| BlockRange { lba, blocks };
        assert!(namespace.deallocate(&[]).is_err());
        assert!(namespace.deallocate(&vec![range(0, 1); 257]).is_err());
        assert!(namespace.deallocate(&vec![range(0, 1); 256]).is_ok());
        assert!(namespace.deallocate(&[range(999, 2)]).is_err());
        assert!(namespace.copy(0, &[range(500, 64), range(600, 36)]).is_ok());
        assert!(namespace.copy(0, &[range(500, 65)]).is_err(), "one range is too long");
        assert!(namespace.copy(0, &[range(500, 64), range(600, 37)]).is_err(), "too much in all");
        assert!(namespace.copy(0, &[range(0, 1); 5]).is_err(), "too many ranges");
        assert!(namespace.copy(990, &[range(0, 20)]).is_err(), "beyond the end");
        assert!(namespace.blocks_of(512, 4096).is_err());
        assert_eq!(namespace.blocks_of(8192, 4096), Ok((2, 1)));
    }

    #[test]
    fn what_a_controller_lacks_is_said_by_name() {
        let namespace = namespace(Oncs::empty());
        for (result, name) in [
            (namespace.compare(0, 1), "Compare"),
            (namespace.verify(0, 1), "Verify"),
            (namespace.write_zeroes(0, 1, false), "Write Zeroes"),
            (namespace.deallocate(&[BlockRange { lba: 0, blocks: 1 }]), "Dataset Management"),
            (namespace.copy(0, &[BlockRange { lba: 0, blocks: 1 }]), "Copy"),
        ] {
            assert_eq!(result.unwrap_err(), InvalidCommand::Unsupported(name));
        }
    }

    proptest! {
        /// The parts of a range follow each other and make it up.
        #[test]
        fn a_split_covers_the_range_exactly(lba in 0u64..1 << 40, blocks in 0u64..10_000, max in 0u32..300) {
            let mut next = lba;
            for part in Namespace::split(lba, blocks, max) {
                prop_assert!(part.lba == next && part.blocks > 0 && part.blocks <= max.max(1));
                next += u64::from(part.blocks);
            }
            prop_assert_eq!(next, lba + blocks);
        }
    }
}
