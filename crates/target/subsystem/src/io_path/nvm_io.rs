//! I/O commands of the NVM command set, from the SQE to the backend. wire §14
//!
//! Limits are compared in blocks, with checked arithmetic, before anything else happens.
// Input from a host must never cause a panic: see docs/testing.md.
#![deny(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;

use memory::Buffer;
use reactor::{DataMap, Io};
use store::{Geometry, Request, Ticket};
use wire::id::Nsid;
use wire::lba_status::{GetLbaStatus, LBA_STATUS_DESCRIPTOR_BYTES, LBA_STATUS_HEAD_BYTES, LbaStatusAction};
use wire::nvm::{BlockCommand, CopyCommand, CopyFormat, CopySource, DatasetManagement, DsmAttributes};
use wire::opcode::NvmOpcode;
use wire::sgl::DataPointer;
use wire::sqe::{Sqe, SqeFlags};
use wire::status::Status;

use crate::io_path::attached::{AttachedIndex, Attachments, Found, ViewIndex};
use crate::io_path::command_effects::WRITING;
use crate::io_path::command_form::check_form;
use crate::io_path::commands::Commands;
use crate::io_path::io_command::{Begun, Caller, Hold};
use crate::io_path::nvm_status::{compare_failure, lost_before_flush, status_of};
use crate::io_path::running::{After, Copy, HeldBack, LbaStatus, Running, Step, Supply};
use crate::messages::message::Message;
use crate::objects::key_rights::KeyScope;

/// The result of a step of a command, or the status that the command completes with.
pub(crate) type Checked<T> = Result<T, Status>;

/// Longest list of Get LBA Status, bytes.
const LBA_STATUS_BYTES_MAX: usize = 64 << 10;

/// A command that begins, or continues after a wait.
pub(crate) struct Start<'a, I> {
    pub(crate) commands: &'a mut Commands,
    pub(crate) io: &'a mut I,
    pub(crate) caller: &'a Caller,
    pub(crate) sqe: &'a Sqe,
    /// Data of its capsule.
    pub(crate) data: &'a [u8],
    /// Data that was asked for or put aside.
    pub(crate) supply: Supply,
    /// Of a command whose data was asked for, or that has waited.
    pub(crate) ticket: Option<Ticket>,
}

/// The range of blocks of a command.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) at: AttachedIndex,
    pub(crate) geometry: Geometry,
    slba: u64,
    /// First byte.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) bytes: u64,
    is_fua: bool,
}

impl Extent {
    /// The blocks of a command, if they are in the namespace.
    #[inline(always)]
    fn of(namespaces: &mut Attachments, at: AttachedIndex, command: &BlockCommand) -> Checked<Self> {
        let blocks = namespaces.blocks_mut(at);
        let geometry = blocks.geometry;
        // In blocks and checked: a start near 2^64 must not wrap into the namespace.
        match command.end() {
            Some(end) if end <= geometry.block_count => {}
            _ => return Err(Status::LBA_OUT_OF_RANGE.with_dnr()),
        }
        Ok(Self {
            at,
            geometry,
            slba: command.slba,
            offset: command.slba << blocks.block_shift,
            bytes: u64::from(command.blocks) << blocks.block_shift,
            is_fua: command.control.fua(),
        })
    }

    /// The blocks of half of a fused pair.
    pub(crate) fn of_fused(
        namespaces: &mut Attachments,
        view: ViewIndex,
        nsid: Nsid,
        command: &BlockCommand,
    ) -> Checked<Self> {
        match namespaces.find_unlimited(view, nsid) {
            Found::Blocks(at) => Self::of(namespaces, at, command),
            Found::BlocksToRead(at) => {
                let mut extent = Self::of(namespaces, at, command)?;
                extent.geometry.is_read_only = true;
                Ok(extent)
            }
            // A namespace of keys has no blocks.
            Found::Keys(_) | Found::KeysToRead(_) => Err(Status::LBA_OUT_OF_RANGE.with_dnr()),
            Found::Unusable => Err(Status::NAMESPACE_NOT_READY),
            Found::Limited(_) | Found::Missing => Err(Status::INVALID_NAMESPACE.with_dnr()),
        }
    }
}

impl<I: Io<Message>> Start<'_, I> {
    /// Begins a command of the NVM command set.
    #[inline]
    pub(crate) fn block_command(&mut self, at: AttachedIndex) -> Checked<Begun> {
        match NvmOpcode::from_raw(self.sqe.opcode) {
            NvmOpcode::READ => self.read(at),
            NvmOpcode::WRITE => match self.supply {
                Supply::None => self.write(at),
                Supply::Buffer(_) | Supply::Heap(_) => self.resume_write(at),
            },
            _ => self.other_block_command(at),
        }
    }

    /// Begins a command on blocks that the host may only read. Like storage that is opened to be read, it can be flushed.
    #[cold]
    #[inline(never)]
    pub(crate) fn block_command_to_read(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let opcode = NvmOpcode::from_raw(self.sqe.opcode);
        // Without deallocation it only has hints.
        let is_hint = opcode == NvmOpcode::DATASET_MANAGEMENT
            && !DatasetManagement::from_sqe(self.sqe).attributes.contains(DsmAttributes::DEALLOCATE);
        if WRITING.contains(&opcode) && !is_hint {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        self.block_command(at)
    }

    /// Everything on blocks that is neither Read nor Write.
    #[cold]
    #[inline(never)]
    fn other_block_command(&mut self, at: AttachedIndex) -> Checked<Begun> {
        match NvmOpcode::from_raw(self.sqe.opcode) {
            NvmOpcode::FLUSH => self.flush(at),
            NvmOpcode::COMPARE => self.compare(at),
            NvmOpcode::WRITE_ZEROES => self.write_zeroes(at),
            NvmOpcode::DATASET_MANAGEMENT => self.dataset_management(at),
            NvmOpcode::VERIFY => self.verify(at),
            NvmOpcode::COPY => self.copy(at),
            NvmOpcode::GET_LBA_STATUS => self.lba_status(at),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "the length is at most the transfer limit, of 32 bits")]
    fn read(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let extent = Extent::of(&mut self.commands.namespaces, at, &BlockCommand::from_sqe(self.sqe))?;
        let length = self.transfer(extent.bytes)?;
        self.check_plain()?;
        match self.sqe.dptr.classify() {
            DataPointer::Transport { length: offered } if u64::from(offered) >= extent.bytes => {}
            DataPointer::Transport { .. } => return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
            DataPointer::InCapsule { .. } => return Err(Status::INVALID_FIELD.with_dnr()),
            DataPointer::Other { .. } => return Err(Status::SGL_TYPE_INVALID.with_dnr()),
        }
        let pool = self.io.pool();
        // A payload that can be sent from its storage takes no buffer, and waits for none.
        let buffers = self.commands.may_take(pool, self.caller.owner, length).then_some(pool);
        let blocks = self.commands.namespaces.blocks_mut(extent.at);
        match blocks.backend.read_now(buffers, extent.offset, length, self.caller.needs_stable_copy) {
            Some(Ok(payload)) => {
                if let Some(traffic) = self.commands.namespaces.traffic(extent.at) {
                    traffic.on_read(extent.bytes);
                }
                Ok(Begun::Data(payload, u32::try_from(length).expect("at most the transfer limit")))
            }
            Some(Err(error)) => Err(status_of(error, true)),
            None => {
                let Some(buffer) = self.commands.take(pool, self.caller.owner, length) else {
                    return Ok(self.wait_for_buffer());
                };
                let length = u32::try_from(length).expect("at most the transfer limit");
                let request = Request::Read { offset: extent.offset, buffer };
                Ok(self.start(extent.at, After::Read { length }, request))
            }
        }
    }

    #[inline]
    fn write(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let command = BlockCommand::from_sqe(self.sqe);
        let extent = Extent::of(&mut self.commands.namespaces, at, &command)?;
        let length = self.transfer(extent.bytes)?;
        self.check_plain()?;
        self.check_writable(&extent)?;
        match self.host_data(length)? {
            Some(request) => Ok(request),
            None => self.execute_write(&extent, length),
        }
    }

    /// Continues a Write whose data was asked for, or that has waited with its data. It was checked when it began, but
    /// another namespace may have taken the place of its own since.
    fn resume_write(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let extent = Extent::of(&mut self.commands.namespaces, at, &BlockCommand::from_sqe(self.sqe))?;
        let length = self.transfer(extent.bytes)?;
        self.check_writable(&extent)?;
        self.execute_write(&extent, length)
    }

    /// Writes the host's data, which has arrived.
    #[inline]
    fn execute_write(&mut self, extent: &Extent, length: usize) -> Checked<Begun> {
        if let Some(held) = self.extent_held_back(extent) {
            return Ok(self.wait_behind(held));
        }
        let blocks = self.commands.namespaces.blocks_mut(extent.at);
        let bytes = first(bytes(self.data, &self.supply), length)?;
        match blocks.backend.write_now(extent.offset, bytes, extent.is_fua) {
            Some(Ok(())) => {
                if let Some(traffic) = self.commands.namespaces.traffic(extent.at) {
                    traffic.on_written(extent.bytes);
                }
                Ok(Begun::Complete(Status::SUCCESS, 0))
            }
            Some(Err(error)) => Err(status_of(error, false)),
            None => {
                let Some(buffer) = self.take_data(length)? else { return Ok(self.wait()) };
                let request = Request::Write { offset: extent.offset, buffer, is_durable: extent.is_fua };
                Ok(self.start(extent.at, After::Complete, request))
            }
        }
    }

    fn flush(&mut self, at: AttachedIndex) -> Checked<Begun> {
        self.check_plain()?;
        if !self.commands.may_flush(self.caller.owner, at) {
            return Err(lost_before_flush());
        }
        Ok(self.start(at, After::Complete, Request::Flush))
    }

    fn compare(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let extent = Extent::of(&mut self.commands.namespaces, at, &BlockCommand::from_sqe(self.sqe))?;
        let length = self.transfer(extent.bytes)?;
        self.check_plain()?;
        if let Some(request) = self.host_data(length)? {
            return Ok(request);
        }
        let blocks = self.commands.namespaces.blocks_mut(extent.at);
        let expected = first(bytes(self.data, &self.supply), length)?;
        match blocks.backend.compare_now(extent.offset, expected) {
            Some(Ok(true)) => Ok(Begun::Complete(Status::SUCCESS, 0)),
            Some(Ok(false)) => Err(compare_failure()),
            Some(Err(error)) => Err(status_of(error, true)),
            None => {
                // It may hold one buffer already, as may others that wait for their second.
                let Some(buffer) = self.commands.take_critical(self.io.pool(), length) else {
                    return Ok(self.wait());
                };
                let expected = self.keep_data();
                let request = Request::Read { offset: extent.offset, buffer };
                Ok(self.start(extent.at, After::Compare(expected), request))
            }
        }
    }

    fn write_zeroes(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let command = BlockCommand::from_sqe(self.sqe);
        let extent = Extent::of(&mut self.commands.namespaces, at, &command)?;
        self.check_plain()?;
        self.check_writable(&extent)?;
        if let Some(held) = self.extent_held_back(&extent) {
            return Ok(self.wait_behind(held));
        }
        let may_deallocate = command.control.deac() && extent.geometry.can_deallocate;
        let request = Request::WriteZeroes {
            offset: extent.offset,
            length: extent.bytes,
            is_durable: extent.is_fua,
            may_deallocate,
        };
        Ok(self.start(extent.at, After::Complete, request))
    }

    #[expect(clippy::arithmetic_side_effects, reason = "ranges were held against the namespace, in blocks")]
    fn dataset_management(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let command = DatasetManagement::from_sqe(self.sqe);
        self.check_plain()?;
        if let Some(request) = self.host_data(command.data_bytes() as usize)? {
            return Ok(request);
        }
        let geometry = self.commands.namespaces.blocks_mut(at).geometry;
        let given = command.ranges(bytes(self.data, &self.supply));
        let mut ranges = Vec::new();
        for range in given.ok_or(Status::DATA_SGL_LENGTH_INVALID.with_dnr())? {
            let (start, end) = (range.slba.get(), range.end());
            let end = end.filter(|&end| end <= geometry.block_count);
            let end = end.ok_or(Status::LBA_OUT_OF_RANGE.with_dnr())?;
            if start < end {
                let block_bytes = u64::from(geometry.block_bytes);
                ranges.push(start * block_bytes..end * block_bytes);
            }
        }
        // The other attributes are hints that we have no use for.
        if !command.attributes.contains(DsmAttributes::DEALLOCATE) || !geometry.can_deallocate {
            return Ok(Begun::Complete(Status::SUCCESS, 0));
        }
        if geometry.is_read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        if let Some(held) = self.held_back(at, &(0..u64::MAX)) {
            return Ok(self.wait_behind(held));
        }
        ranges.reverse();
        let Some(first) = ranges.pop() else { return Ok(Begun::Complete(Status::SUCCESS, 0)) };
        let request = Request::Deallocate { offset: first.start, length: first.end - first.start };
        Ok(self.start(at, After::Deallocate { ranges }, request))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "a chunk of blocks in the namespace"
    )]
    fn verify(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let extent = Extent::of(&mut self.commands.namespaces, at, &BlockCommand::from_sqe(self.sqe))?;
        self.check_plain()?;
        let block_bytes = self.commands.namespaces.blocks_mut(extent.at).geometry.block_bytes;
        let count = self.commands.chunk_bytes(block_bytes).min(extent.bytes);
        let length = usize::try_from(count).expect("a chunk");
        let Some(mut buffer) = self.commands.take(self.io.pool(), self.caller.owner, length) else {
            return Ok(self.wait_for_buffer());
        };
        buffer.set_len(length);
        let range = extent.offset + count..extent.offset + extent.bytes;
        let request = Request::Read { offset: extent.offset, buffer };
        Ok(self.start(extent.at, After::Verify { range }, request))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "ranges were held against the namespace, in blocks, and are 256 at most"
    )]
    fn copy(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let command = CopyCommand::from_sqe(self.sqe);
        self.check_plain()?;
        if command.control.format() != CopyFormat::FORMAT_0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let range_count = command.range_count();
        if range_count > self.commands.limits.copy_range_count_max {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr());
        }
        if let Some(request) = self.host_data(usize::from(range_count) * size_of::<CopySource>())? {
            return Ok(request);
        }
        let geometry = self.commands.namespaces.blocks_mut(at).geometry;
        if geometry.is_read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        let given = command.sources(bytes(self.data, &self.supply));
        let block_bytes = u64::from(geometry.block_bytes);
        let (mut sources, mut blocks) = (Vec::new(), 0u64);
        for source in given.ok_or(Status::DATA_SGL_LENGTH_INVALID.with_dnr())? {
            if source.blocks() > self.commands.limits.copy_range_blocks_max {
                return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr());
            }
            let end = source.end().filter(|&end| end <= geometry.block_count);
            let end = end.ok_or(Status::LBA_OUT_OF_RANGE.with_dnr())?;
            blocks += u64::from(source.blocks());
            sources.push(source.slba.get() * block_bytes..end * block_bytes);
        }
        if blocks > u64::from(self.commands.limits.copy_blocks_max) {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr());
        }
        let end = command.destination.checked_add(blocks).filter(|&end| end <= geometry.block_count);
        end.ok_or(Status::LBA_OUT_OF_RANGE.with_dnr())?;
        if let Some(held) = self.held_back(at, &(0..u64::MAX)) {
            return Ok(self.wait_behind(held));
        }
        let chunk_bytes = self.commands.chunk_bytes(geometry.block_bytes).min(blocks * block_bytes);
        let length = usize::try_from(chunk_bytes).expect("a chunk");
        // Its ranges came in a capsule, or in a buffer: others may wait for it.
        let Some(mut buffer) = self.commands.take_critical(self.io.pool(), length) else {
            return Ok(self.wait());
        };
        let is_durable = command.control.fua();
        let mut copy = Box::new(Copy::new(sources, command.destination * block_bytes, is_durable));
        let Some(part) = copy.next_part(chunk_bytes) else { return Err(Status::INVALID_FIELD.with_dnr()) };
        buffer.set_len(usize::try_from(part.end - part.start).expect("a chunk"));
        let offset = part.start;
        Ok(self.start(at, After::Copy(copy), Request::Read { offset, buffer }))
    }

    /// Tells which blocks are allocated. wire §14.1
    #[expect(clippy::arithmetic_side_effects, reason = "blocks that were held against the namespace")]
    fn lba_status(&mut self, at: AttachedIndex) -> Checked<Begun> {
        let command = GetLbaStatus::from_sqe(self.sqe);
        self.check_plain()?;
        if command.action != LbaStatusAction::ALLOCATED {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let geometry = self.commands.namespaces.blocks_mut(at).geometry;
        let end = match command.blocks() {
            Some(blocks) => command.slba.checked_add(blocks.into()),
            None => Some(geometry.block_count),
        };
        let end = end.filter(|&end| command.slba < end && end <= geometry.block_count);
        let blocks = command.slba..end.ok_or(Status::LBA_OUT_OF_RANGE.with_dnr())?;
        let room = self.transfer(command.room_bytes())?.min(LBA_STATUS_BYTES_MAX);
        let part_limit = room.saturating_sub(LBA_STATUS_HEAD_BYTES) / LBA_STATUS_DESCRIPTOR_BYTES;
        if part_limit == 0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        self.check_room(room)?;
        let Some(buffer) = self.commands.take(self.io.pool(), self.caller.owner, room) else {
            return Ok(self.wait_for_buffer());
        };
        let block_bytes = u64::from(geometry.block_bytes);
        let range = blocks.start * block_bytes..blocks.end * block_bytes;
        let map = Arc::new(DataMap::new(range, part_limit));
        let taken_bytes = buffer.capacity();
        let status = LbaStatus { map: Arc::clone(&map), blocks, block_bytes, buffer };
        let ticket = self.run(at, Step::Backend(After::LbaStatus(Box::new(status))));
        self.commands.running.charge(ticket, taken_bytes);
        self.commands.start_in(self.io, at, ticket, Request::FindData(map));
        Ok(Begun::Started { ticket, hold: Hold::None })
    }

    /// A length that moves between host and controller, if it is within MDTS.
    #[inline]
    pub(crate) fn transfer(&self, bytes: u64) -> Checked<usize> {
        if bytes > u64::from(self.commands.limits.transfer_bytes_max) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        usize::try_from(bytes).map_err(|_| Status::INVALID_FIELD.with_dnr())
    }

    /// Flags of a command that is not fused.
    #[inline]
    pub(crate) fn check_plain(&self) -> Checked<()> {
        if self.sqe.flags == SqeFlags::SGL { Ok(()) } else { check_form(self.sqe) }
    }

    #[inline]
    fn check_writable(&self, extent: &Extent) -> Checked<()> {
        if extent.geometry.is_read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        Ok(())
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "blocks that were held against the namespace")]
    fn extent_held_back(&mut self, extent: &Extent) -> Option<HeldBack> {
        let blocks =
            extent.slba..extent.slba + (extent.bytes >> extent.geometry.block_bytes.trailing_zeros());
        self.held_back(extent.at, &blocks)
    }

    /// What the command has to wait for before it changes these blocks, if for anything.
    #[inline]
    fn held_back(&mut self, at: AttachedIndex, blocks: &Range<u64>) -> Option<HeldBack> {
        let exclusions = &self.commands.namespaces.blocks_mut(at).exclusions;
        if self.ticket.is_none() && exclusions.count() == 0 { None } else { self.held_back_by(at, blocks) }
    }

    #[cold]
    fn held_back_by(&mut self, at: AttachedIndex, blocks: &Range<u64>) -> Option<HeldBack> {
        let ticket = self.ticket;
        let before = ticket.and_then(|ticket| self.commands.running.live_mut(ticket).held_back.take());
        let behind = before.filter(|held| held.at == at).map(|held| held.behind);
        let exclusions = &self.commands.namespaces.blocks_mut(at).exclusions;
        let is_held_back = exclusions.holds_back(blocks, behind);
        is_held_back.then(|| HeldBack { at, behind: behind.unwrap_or_else(|| exclusions.last()) })
    }

    /// The keys that the host may use of the command's namespace; `None` for all.
    pub(crate) fn key_scope(&self) -> Option<&Arc<KeyScope>> {
        self.commands.namespaces.key_scope(self.caller.view, self.sqe.nsid())
    }

    /// Checks that the host sends `length` bytes: `Some` if they have to be asked for first.
    #[inline]
    pub(crate) fn host_data(&self, length: usize) -> Checked<Option<Begun>> {
        self.host_data_within(length, self.commands.limits.in_capsule_bytes)
    }

    /// The same for a command on keys and values.
    pub(crate) fn key_value_data(&self, length: usize) -> Checked<Option<Begun>> {
        self.host_data_within(length, self.commands.limits.key_value_in_capsule_bytes)
    }

    #[inline]
    fn host_data_within(&self, length: usize, in_capsule_bytes: u32) -> Checked<Option<Begun>> {
        if !matches!(self.supply, Supply::None) {
            // It was asked for when the namespace had smaller blocks: another one has taken its place since.
            if self.supply.bytes().len() < length {
                return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
            }
            return Ok(None);
        }
        let needed = u32::try_from(length).map_err(|_| Status::INVALID_FIELD.with_dnr())?;
        match self.sqe.dptr.classify() {
            DataPointer::InCapsule { length: given, .. } => {
                if given > in_capsule_bytes {
                    return Err(Status::SGL_OFFSET_INVALID.with_dnr());
                }
                if given < needed {
                    return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
                }
                Ok(None)
            }
            // More than the command needs is fine; more than any command may have is a slip. hostile C2
            DataPointer::Transport { length: given }
                if (needed..=self.commands.limits.transfer_bytes_max).contains(&given) =>
            {
                Ok(Some(Begun::RequestData(needed)))
            }
            DataPointer::Transport { .. } => Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
            DataPointer::Other { .. } if needed == 0 => Ok(None),
            DataPointer::Other { .. } => Err(Status::SGL_TYPE_INVALID.with_dnr()),
        }
    }

    /// Whether the host's descriptor has room for this many bytes.
    pub(crate) fn check_room(&self, length: usize) -> Checked<()> {
        match self.sqe.dptr.classify() {
            _ if length == 0 => Ok(()),
            DataPointer::Transport { length: offered } if offered as usize >= length => Ok(()),
            DataPointer::Transport { .. } => Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
            DataPointer::InCapsule { .. } => Err(Status::INVALID_FIELD.with_dnr()),
            DataPointer::Other { .. } => Err(Status::SGL_TYPE_INVALID.with_dnr()),
        }
    }

    /// The host's data in a buffer for the backend; `None` if none is free.
    fn take_data(&mut self, length: usize) -> Checked<Option<Buffer>> {
        if let Supply::Buffer(_) = self.supply {
            let Supply::Buffer(mut buffer) = std::mem::replace(&mut self.supply, Supply::None) else {
                unreachable!("just matched")
            };
            buffer.set_len(length);
            return Ok(Some(buffer));
        }
        let bytes = first(bytes(self.data, &self.supply), length)?;
        let mut buffer = self.commands.take_critical(self.io.pool(), length);
        if let Some(buffer) = &mut buffer {
            memory::copy_bytes(buffer, bytes);
        }
        Ok(buffer)
    }

    /// The host's data, to be kept while the command runs.
    fn keep_data(&mut self) -> Supply {
        if matches!(self.supply, Supply::None) {
            return Supply::Heap(self.data.into());
        }
        std::mem::replace(&mut self.supply, Supply::None)
    }

    /// A buffer for what the host gets, of a command that may have brought data.
    pub(crate) fn take_for_data(&mut self, length: usize) -> Option<Buffer> {
        let owner = self.caller.owner;
        let buffer = self.commands.take(self.io.pool(), owner, length);
        // Behind its data nothing of its lane is taken in, which may be what the lane waits for: not so if its peer
        // does not read.
        if buffer.is_none() && self.has_data() && !self.commands.is_blocked(owner) {
            return self.commands.take_critical(self.io.pool(), length);
        }
        buffer
    }

    fn has_data(&self) -> bool {
        !matches!(self.supply, Supply::None) || !self.data.is_empty()
    }

    /// Starts a request of the backend.
    fn start(&mut self, at: AttachedIndex, after: After, request: Request) -> Begun {
        let taken_bytes = match &request {
            Request::Read { buffer, .. } | Request::Write { buffer, .. } => buffer.capacity(),
            Request::Flush
            | Request::Deallocate { .. }
            | Request::WriteZeroes { .. }
            | Request::FindData(_) => 0,
        };
        let ticket = self.run(at, Step::Backend(after));
        self.commands.running.charge(ticket, taken_bytes);
        self.commands.start_in(self.io, at, ticket, request);
        Begun::Started { ticket, hold: Hold::None }
    }

    pub(crate) fn run(&mut self, at: AttachedIndex, step: Step) -> Ticket {
        self.commands.run((*self.caller, self.sqe, self.ticket), at, step)
    }

    /// Lets the command wait, with its data, until its range is free or a buffer is free for it.
    pub(crate) fn wait(&mut self) -> Begun {
        let has_data = self.has_data();
        let holds_capsule = matches!(self.supply, Supply::None | Supply::Heap(_)) && has_data;
        let supply = if has_data { self.keep_data() } else { Supply::None };
        let ticket = self.ticket();
        self.commands.wait(ticket, supply);
        Begun::Started { ticket, hold: if holds_capsule { Hold::Capsule } else { Hold::None } }
    }

    /// Lets the command wait until the ranges that were excluded before it are free.
    fn wait_behind(&mut self, held: HeldBack) -> Begun {
        let begun = self.wait();
        if let Begun::Started { ticket, .. } = begun {
            self.commands.running.live_mut(ticket).held_back = Some(held);
        }
        begun
    }

    /// Lets the command wait until its lane may have a buffer for it.
    pub(crate) fn wait_for_buffer(&mut self) -> Begun {
        if self.has_data() {
            return self.wait();
        }
        let ticket = self.ticket();
        self.commands.line_up(ticket, Step::InLine);
        Begun::Started { ticket, hold: Hold::Line }
    }

    /// The command's ticket.
    fn ticket(&mut self) -> Ticket {
        self.ticket.unwrap_or_else(|| {
            let running = Running::new(self.caller.owner, *self.sqe, None, Step::Between);
            self.commands.running.insert(running)
        })
    }
}

#[inline]
pub(crate) fn bytes<'a>(data: &'a [u8], supply: &'a Supply) -> &'a [u8] {
    match supply {
        Supply::None => data,
        other => other.bytes(),
    }
}

/// The first `length` bytes of the host's data, which are there as long as [`Start::host_data`] was asked.
#[inline]
fn first(bytes: &[u8], length: usize) -> Checked<&[u8]> {
    bytes.get(..length).ok_or(Status::DATA_SGL_LENGTH_INVALID.with_dnr())
}
