//! The host's end of a queue pair: commands in, PDUs out; PDUs in, completions out.
//!
//! ```text
//! submit ─▶ capsule (with its data, if that fits) ─▶ caravan
//!              ◀── R2T ── H2CData ─▶ caravan
//!              ◀── C2HData (into the command's buffer)
//!              ◀── CapsuleResp, or SUCCESS ─▶ Completed, with the buffer
//! ```
//!
//! A command owns its buffer from submission to completion; the caravan refers to it by slot. Every submitted command
//! ends in exactly one [`Completion`], from [`HostQueue::next_event`] or from [`HostQueue::next_unfinished`] after the
//! connection was lost.

mod data;
mod slot;

use std::ops::Range;

use wire::cqe::Cqe;
use wire::digest::DIGEST_BYTES;
use wire::opcode::AdminOpcode;
use wire::pdu::{
    CAPSULE_CMD_BYTES, CapsuleCmd, CapsuleResp, DataPdu, Digests, IcResp, PduFlags, PduLayout, PduType, R2t,
};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

pub use data::{DataBuffer, LENGTH_MAX, Transfer};
pub use slot::DataRange;

use data::{fill, for_each_part};
use slot::{Command, INDEX_BITS, Slot, SlotState, find, range_gone, split};

use crate::caravan::{Caravan, Piece};
use crate::controller_queue::CAPSULE_BYTES_MIN;
use crate::data_digest::DataDigest;
use crate::framer::{DataLimits, Frame, Framer, Sender, term_req};
use crate::handshake::{Agreement, HostOffer};
use crate::violation::Violation;

/// Commands a queue can have at most: slots take 10 bits of a command id.
pub const HOST_SLOT_COUNT_MAX: u16 = 1024;

/// The completion of a command. `U` is the submitter's id for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion<B, U = u64> {
    /// As given to [`HostQueue::submit`].
    pub user: U,
    /// The outcome: the controller's status, or ours if its data was invalid.
    pub status: Status,
    /// The result dwords of the completion, 0 if none came.
    pub result: u64,
    /// Bytes that the controller sent.
    pub received: u32,
    /// The buffer given to [`HostQueue::submit`].
    pub buffer: Option<B>,
}

/// An event of a host's queue.
#[derive(Debug)]
pub enum HostEvent<B, U = u64> {
    /// The handshake is done.
    Initialised(Agreement),
    /// A command has ended.
    Completed(Completion<B, U>),
}

/// An event of [`HostQueue::next_end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The handshake is done: see [`HostQueue::agreement`].
    Initialised,
    /// A command has ended: [`HostQueue::take`] it.
    Command(Ended),
}

/// A command that has ended and is still in its slot.
// Small enough for registers. A larger value is written in parts and read back as a whole, which stalls until the
// stores of the data that was just copied complete: 100 ns for 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    slot: u16,
}

/// A command without completion when its connection ended, with what decides whether it can be submitted again.
#[derive(Debug)]
pub struct Unfinished<B, U = u64> {
    /// As given to [`HostQueue::submit`].
    pub user: U,
    /// The command, with the cid it had.
    pub sqe: Sqe,
    /// Its data.
    pub transfer: Transfer<B>,
    /// The controller's answer, if it came: the completion was held back by data still in the caravan.
    pub answer: Option<(Status, u64)>,
    /// No byte of it was sent: the controller cannot have executed it.
    pub is_unsent: bool,
}

/// The reason for which a command was refused, with its data.
#[derive(Debug)]
pub enum Refused<B> {
    /// The queue is full, or takes no commands: see [`HostQueue::has_room`].
    Full(Transfer<B>),
    /// The data is longer than [`LENGTH_MAX`].
    TooLong(Transfer<B>),
}

/// The host's end of one queue pair on one connection, from ICReq to its end.
///
/// `B` is the data of a command, `U` the submitter's id for it. There are four kinds of methods, which a driver calls
/// in this order:
///
/// 1. *Inputs*: bytes received into [`place`](Self::place) go to [`on_placed`](Self::on_placed), bytes received
///    elsewhere to [`next_event`](Self::next_event), which is called until it returns `None`, also without input if
///    [`has_finished`](Self::has_finished). After a [`Violation`] comes [`fail`](Self::fail), and no further input.
/// 2. *Wishes*: [`submit`](Self::submit), from [`HostEvent::Initialised`] on, where [`has_room`](Self::has_room).
/// 3. *Outputs*: [`ring`](Self::ring), then [`for_each_piece`](Self::for_each_piece) and [`on_sent`](Self::on_sent)
///    until nothing is on its way. The kernel's notices of zero-copy sends go to [`on_notice`](Self::on_notice). After
///    the connection is closed and [`awaited_count`](Self::awaited_count) is 0,
///    [`next_unfinished`](Self::next_unfinished) returns the commands that have not ended.
/// 4. *Questions* may be asked at any time: [`outstanding`](Self::outstanding), [`room`](Self::room) and the others
///    that take `&self`.
#[derive(Debug)]
pub struct HostQueue<B, U = u64> {
    offer: HostOffer,
    framer: Framer,
    agreement: Agreement,
    is_initialised: bool,
    layouts: Layouts,
    in_capsule_bytes: u32,
    limit: u16,
    slots: Vec<Slot<B, U>>,
    free: Vec<u16>,
    live_count: u16,
    /// Caravans that have left: a command submitted at the current count has not.
    ring_count: u64,
    /// Slot of the command that ended last.
    last_finished: u16,
    incoming: Incoming,
    /// Commands whose completion waited for their last bytes to leave.
    finished: Vec<u16>,
    caravan: Caravan<DataRange>,
}

/// Layouts of the PDUs we send, as agreed; those with data are resized for each PDU.
#[derive(Debug)]
struct Layouts {
    bare_capsule: PduLayout,
    full_capsule: PduLayout,
    h2c_data: PduLayout,
}

impl Layouts {
    #[expect(clippy::expect_used, reason = "a layout with data, of an alignment that the handshake took")]
    fn new(agreement: &Agreement) -> Self {
        let full = |kind| {
            PduLayout::new(kind, agreement.digests, agreement.to_controller, 1).expect("it carries data")
        };
        Self {
            bare_capsule: PduLayout::without_data(PduType::CapsuleCmd, agreement.digests),
            full_capsule: full(PduType::CapsuleCmd),
            h2c_data: full(PduType::H2cData),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Incoming {
    None,
    /// Read data for this slot, next at this offset; the PDU ends the command if `is_success`.
    Read {
        slot: u16,
        offset: u32,
        is_success: bool,
    },
}

/// Whether a digest follows a header of `header_length` bytes, and the bytes of padding behind it.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "a layout begins with its header and digest")]
fn trailer(layout: &PduLayout, header_length: usize) -> (bool, usize) {
    let has_digest = layout.header_digest_at().is_some();
    let bare = header_length + if has_digest { DIGEST_BYTES } else { 0 };
    (has_digest, usize::from(layout.prefix_length()) - bare)
}

impl<B: DataBuffer, U: Copy> HostQueue<B, U> {
    /// The queue of a connection that is about to be made, for at most `limit` commands at once (1 to
    /// [`HOST_SLOT_COUNT_MAX`]). Its ICReq is in the caravan.
    #[must_use]
    pub fn new(offer: HostOffer, limit: u16) -> Self {
        let limit = limit.clamp(1, HOST_SLOT_COUNT_MAX);
        let mut caravan = Caravan::default();
        caravan.push_header(offer.ic_req().as_bytes(), false, 0);
        Self {
            offer,
            framer: Framer::new(Sender::Controller),
            agreement: Agreement::NONE,
            is_initialised: false,
            layouts: Layouts::new(&Agreement::NONE),
            in_capsule_bytes: 0,
            limit,
            slots: Vec::new(),
            free: Vec::new(),
            live_count: 0,
            ring_count: 0,
            last_finished: 0,
            incoming: Incoming::None,
            finished: Vec::new(),
            caravan,
        }
    }

    /// Data up to `bytes` goes in the capsule from now on: 8192 on an admin queue, on others as
    /// Identify reports.
    pub fn set_in_capsule_bytes(&mut self, bytes: u32) {
        self.in_capsule_bytes = bytes;
    }

    /// The agreement of the handshake.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// Submits a command; its cid and data pointer are set here. `user` comes back with its completion.
    ///
    /// # Errors
    /// [`Refused`], with the data.
    #[inline]
    pub fn submit(&mut self, sqe: Sqe, transfer: Transfer<B>, user: U) -> Result<(), Refused<B>> {
        if transfer.length() > LENGTH_MAX as usize {
            return Err(Refused::TooLong(transfer));
        }
        if !self.has_room() {
            return Err(Refused::Full(transfer));
        }
        self.submit_where_room(sqe, transfer, user);
        Ok(())
    }

    /// As [`submit`](Self::submit), for callers that have checked that the queue [has room](Self::has_room) and that
    /// the data is not longer than [`LENGTH_MAX`]. Nothing is returned, so the command goes to its slot without a copy
    /// in between.
    ///
    /// # Panics
    /// If the data is longer.
    #[inline]
    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "slots are ours; callers have checked the length"
    )]
    pub fn submit_where_room(&mut self, sqe: Sqe, transfer: Transfer<B>, user: U) {
        let is_write = matches!(transfer, Transfer::ToController(_));
        let length = u32::try_from(transfer.length()).expect("data no longer than LENGTH_MAX");
        let slot = self.take_slot();
        let is_in_capsule = is_write && length > 0 && length <= self.in_capsule_bytes(&sqe);
        let entry = &mut self.slots[usize::from(slot)];
        let cid = u16::from(entry.advance()) << INDEX_BITS | slot;
        entry.sqe = sqe;
        let dptr = if is_in_capsule { Sgl::in_capsule(length) } else { Sgl::transport(length) };
        entry.sqe.cid.set(cid);
        entry.sqe.dptr = dptr;
        entry.state = SlotState::Live(Command {
            user,
            transfer,
            submitted_at: self.ring_count,
            moved: 0,
            in_transit: 0,
            window_count: 0,
            is_corrupt: false,
            completion: None,
        });
        let layout = match is_in_capsule {
            false => self.layouts.bare_capsule,
            true => self.layouts.full_capsule.resized(length).expect("the length was checked"),
        };
        let header: [u8; CAPSULE_CMD_BYTES] = zerocopy::transmute!(CapsuleCmd::new(&layout, sqe));
        let (has_digest, padding) = trailer(&layout, header.len());
        self.caravan.push_header_with(&header, has_digest, padding, |header| {
            let capsule: &mut CapsuleCmd = zerocopy::transmute_mut!(header);
            capsule.sqe.cid.set(cid);
            capsule.sqe.dptr = dptr;
        });
        self.caravan.count_command();
        if is_in_capsule {
            self.push_data(slot, 0..length, false);
        }
    }

    /// Data up to this length goes in the capsule. A Fabrics command carries its data there on every queue, as far as
    /// every controller takes it. wire §4.1
    #[inline]
    fn in_capsule_bytes(&self, sqe: &Sqe) -> u32 {
        let is_fabrics = sqe.opcode == AdminOpcode::FABRICS.raw();
        self.in_capsule_bytes.max(if is_fabrics { CAPSULE_BYTES_MIN } else { 0 })
    }

    /// Whether a command can be submitted: the handshake is done, nothing has failed, and the queue is not full.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.live_count < self.limit && self.is_initialised && self.framer.failure().is_none()
    }

    /// Commands that can be submitted now.
    #[must_use]
    pub fn room(&self) -> u16 {
        if self.has_room() { self.limit.saturating_sub(self.live_count) } else { 0 }
    }

    /// Commands submitted and not completed.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.live_count
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "below the limit")]
    fn take_slot(&mut self) -> u16 {
        debug_assert!(self.has_room(), "a command for a queue without room");
        self.live_count += 1;
        match self.free.pop() {
            Some(slot) => slot,
            None => self.add_slot(),
        }
    }

    #[cold]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "slots, at most 1024, one of which was just made"
    )]
    fn add_slot(&mut self) -> u16 {
        self.slots.push(Slot::new());
        u16::try_from(self.slots.len() - 1).expect("at most the limit")
    }

    #[inline]
    fn push_pdu(&mut self, layout: &PduLayout, header: &[u8]) {
        let (has_digest, padding) = trailer(layout, header.len());
        self.caravan.push_header(header, has_digest, padding);
    }

    /// Adds a range of a command's data, and its digest.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "slots are ours; ranges of one command's data, which has less than 4 GiB"
    )]
    fn push_data(&mut self, slot: u16, range: Range<u32>, ends_window: bool) {
        let SlotState::Live(command) = &mut self.slots[usize::from(slot)].state else {
            unreachable!("only live commands send data")
        };
        let Transfer::ToController(buffer) = &command.transfer else { unreachable!("only writes send data") };
        command.moved = range.end;
        command.in_transit += 1;
        let digest = self.agreement.digests.contains(Digests::DATA).then(|| {
            let mut digest = DataDigest::new();
            for_each_part(buffer, range.start as usize..range.end as usize, |part| {
                digest.update(part);
                true
            });
            digest.finish()
        });
        self.caravan.push_payload(DataRange { slot, ends_window });
        self.caravan.push_range(range, true);
        if let Some(digest) = digest {
            self.caravan.push_bytes(&digest.to_le_bytes());
        }
    }

    /// The next event in `input`, whose front is taken in; `None` when all of it is.
    ///
    /// # Errors
    /// How the controller broke the transport: [`fail`](Self::fail) the queue then. Nothing more is taken in, submitted
    /// or rung for; commands that have not ended come from [`next_unfinished`](Self::next_unfinished).
    #[inline]
    pub fn next_event(&mut self, input: &mut &[u8]) -> Result<Option<HostEvent<B, U>>, Violation> {
        Ok(self.next_end(input)?.map(|end| match end {
            End::Initialised => HostEvent::Initialised(self.agreement),
            End::Command(ended) => HostEvent::Completed(self.take(ended)),
        }))
    }

    /// As [`next_event`](Self::next_event), but a command that has ended stays in its slot until it is
    /// [taken](Self::take), which must be the next call. This saves a copy of its content.
    ///
    /// # Errors
    /// As [`next_event`](Self::next_event).
    pub fn next_end(&mut self, input: &mut &[u8]) -> Result<Option<End>, Violation> {
        if let Some(violation) = self.framer.failure() {
            return Err(violation);
        }
        if let Some(slot) = self.finished.pop() {
            return Ok(Some(End::Command(Ended { slot })));
        }
        while let Some(frame) = self.framer.next_frame(input)? {
            let end = match frame {
                Frame::Header(kind, _) => self.on_header(kind, input),
                Frame::Data(data) => {
                    self.on_data(data);
                    Ok(None)
                }
                Frame::End { is_intact } => self.on_data_end(is_intact),
            };
            match end {
                Ok(None) => {}
                Ok(end) => return Ok(end),
                Err(violation) => return Err(self.framer.fail(violation)),
            }
        }
        Ok(None)
    }

    /// Takes a command that has ended out of its slot.
    ///
    /// # Panics
    /// If it was taken before.
    #[inline(always)]
    #[expect(clippy::expect_used, reason = "documented as a panic")]
    pub fn take(&mut self, ended: Ended) -> Completion<B, U> {
        // Field by field: a copy of the whole would stall on the stores of the parts written last.
        let command = self.command(ended.slot);
        let transfer = std::mem::replace(&mut command.transfer, Transfer::None);
        let (user, moved) = (command.user, command.moved);
        let (status, result) = command.completion.expect("it has ended");
        self.free_slot(ended.slot);
        let (buffer, received) = match transfer {
            Transfer::None => (None, 0),
            Transfer::ToController(buffer) => (Some(buffer), 0),
            Transfer::FromController { buffer, .. } => (Some(buffer), moved),
        };
        Completion { user, status, result, received, buffer }
    }

    #[inline]
    fn on_header(&mut self, kind: PduType, input: &mut &[u8]) -> Result<Option<End>, Violation> {
        match kind {
            PduType::CapsuleResp => self.on_response(),
            PduType::C2hData => self.on_c2h_data(input),
            PduType::R2t => self.on_r2t().map(|()| None),
            PduType::IcResp => self.on_ic_resp().map(Some),
            _ => unreachable!("a framer of a host passes on nothing else"),
        }
    }

    fn on_ic_resp(&mut self) -> Result<End, Violation> {
        let agreement = self.offer.on_ic_resp(self.framer.header::<IcResp>())?;
        self.agreement = agreement;
        self.layouts = Layouts::new(&agreement);
        let limits = DataLimits { capsule_bytes_max: 0, data_pdu_bytes_max: u32::MAX };
        self.framer.initialise(agreement.digests, agreement.to_host, limits);
        self.is_initialised = true;
        Ok(End::Initialised)
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "slots are ours, or of a cid whose generation was checked")]
    fn command(&mut self, slot: u16) -> &mut Command<B, U> {
        match &mut self.slots[usize::from(slot)].state {
            SlotState::Live(command) => command,
            SlotState::Free => unreachable!("slots in use are live"),
        }
    }

    #[inline]
    fn on_response(&mut self) -> Result<Option<End>, Violation> {
        let cqe: Cqe = self.framer.header::<CapsuleResp>().cqe;
        let (slot, command) = find(&mut self.slots, cqe.cid).ok_or(Violation::Sequence)?;
        complete(command, slot, cqe.status(), cqe.result.get())
    }

    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "slots are ours, and this one is live"
    )]
    fn free_slot(&mut self, slot: u16) {
        debug_assert!(
            matches!(
                self.slots[usize::from(slot)].state,
                SlotState::Live(Command { transfer: Transfer::None, .. })
            ),
            "slot {slot} has no command that could end, or its data is there"
        );
        // Its data is taken: there is nothing to drop.
        std::mem::forget(std::mem::replace(&mut self.slots[usize::from(slot)].state, SlotState::Free));
        self.free.push(slot);
        self.live_count -= 1;
        self.last_finished = slot;
    }

    /// The command completed last, until the next one is submitted.
    #[must_use]
    pub fn completed_command(&self) -> Option<&Sqe> {
        self.slots.get(usize::from(self.last_finished)).map(|slot| &slot.sqe)
    }

    /// Every command that has not ended, as it was sent: to find the one to abort, or those that take too long.
    pub fn commands(&self) -> impl Iterator<Item = (&Sqe, U)> {
        self.slots.iter().filter_map(|slot| match &slot.state {
            SlotState::Live(command) => Some((&slot.sqe, command.user)),
            SlotState::Free => None,
        })
    }

    /// Gives this cid to no further command: an Abort that names it may arrive after the command has ended, and would
    /// abort another one. Of each slot's 64 cids the last 63 that were reserved are not used again.
    pub fn reserve_cid(&mut self, cid: u16) {
        let (slot, generation) = split(cid);
        if let Some(entry) = self.slots.get_mut(usize::from(slot)) {
            entry.skip(generation);
        }
    }

    /// The same, with mutable ids.
    pub fn for_each_command(&mut self, mut each: impl FnMut(&Sqe, &mut U)) {
        for slot in &mut self.slots {
            if let SlotState::Live(command) = &mut slot.state {
                each(&slot.sqe, &mut command.user);
            }
        }
    }

    #[inline]
    fn on_c2h_data(&mut self, input: &mut &[u8]) -> Result<Option<End>, Violation> {
        let pdu: DataPdu = *self.framer.header();
        let (slot, command) = find(&mut self.slots, pdu.cid).ok_or(Violation::HeaderField { offset: 8 })?;
        let flags = pdu.common.flags;
        let is_success = flags.contains(PduFlags::SUCCESS);
        if is_success && !flags.contains(PduFlags::LAST) {
            return Err(Violation::HeaderField { offset: 1 });
        }
        let (offset, length) = (pdu.offset.get(), pdu.length.get());
        let Transfer::FromController { buffer, .. } = &mut command.transfer else {
            return Err(Violation::HeaderField { offset: 8 });
        };
        let after = offset.checked_add(length).ok_or(Violation::OutOfRange)?;
        if offset != command.moved || after as usize > buffer.length() {
            return Err(Violation::OutOfRange);
        }
        // The common case: all of it is here.
        let Some((data, is_intact)) = self.framer.next_whole_data(input) else {
            self.incoming = Incoming::Read { slot, offset, is_success };
            return Ok(None);
        };
        fill(buffer, offset as usize, data);
        command.moved = after;
        command.is_corrupt |= !is_intact;
        if is_success { complete(command, slot, Status::SUCCESS, 0) } else { Ok(None) }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "the framer hands out no more than the PDU has, which was held against the buffer"
    )]
    fn on_data(&mut self, bytes: &[u8]) {
        let Incoming::Read { slot, offset, is_success } = self.incoming else { return };
        if let Transfer::FromController { buffer, .. } = &mut self.command(slot).transfer {
            fill(buffer, offset as usize, bytes);
        }
        let offset = offset + u32::try_from(bytes.len()).expect("at most a PDU");
        self.incoming = Incoming::Read { slot, offset, is_success };
    }

    fn on_data_end(&mut self, is_intact: bool) -> Result<Option<End>, Violation> {
        let Incoming::Read { slot, offset, is_success } = self.incoming else { return Ok(None) };
        self.incoming = Incoming::None;
        let command = self.command(slot);
        command.moved = offset;
        command.is_corrupt |= !is_intact;
        if is_success { complete(command, slot, Status::SUCCESS, 0) } else { Ok(None) }
    }

    /// Serves a window: all of it goes into the caravan. wire §4.1
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "the window was held against the buffer, and the range against the window"
    )]
    fn on_r2t(&mut self) -> Result<(), Violation> {
        let r2t: R2t = *self.framer.header();
        let (slot, command) = find(&mut self.slots, r2t.cid).ok_or(Violation::HeaderField { offset: 8 })?;
        let (offset, length) = (r2t.offset.get(), r2t.length.get());
        if length == 0 {
            return Err(Violation::HeaderField { offset: 16 });
        }
        let r2t_limit = self.agreement.r2t_limit;
        let pdu_bytes_max = self.agreement.h2c_data_bytes_max;
        let Transfer::ToController(buffer) = &command.transfer else { return Err(Violation::Sequence) };
        // An R2T beyond the limit is refused before its fields are checked.
        if command.window_count >= r2t_limit {
            return Err(Violation::LimitExceeded);
        }
        let end = offset.checked_add(length).ok_or(Violation::OutOfRange)?;
        if offset != command.moved || end as usize > buffer.length() {
            return Err(Violation::OutOfRange);
        }
        command.window_count += 1;
        self.caravan.mark_urgent();
        let mut start = offset;
        while start < end {
            let stop = end.min(start.saturating_add(pdu_bytes_max));
            let layout = self.layouts.h2c_data.resized(stop - start).expect("at most the controller's limit");
            let pdu = DataPdu::h2c(&layout, r2t.cid, r2t.ttag, start, stop == end);
            self.push_pdu(&layout, pdu.as_bytes());
            self.push_data(slot, start..stop, stop == end);
            start = stop;
        }
        Ok(())
    }

    /// The memory into which the next bytes may be received without a copy: the rest of the PDU's data in its command's
    /// buffer, as far as that is contiguous. `None` if the next bytes are anything else.
    #[expect(clippy::indexing_slicing, reason = "the part is not shorter than itself")]
    pub fn place(&mut self) -> Option<&mut [u8]> {
        let left = self.framer.data_left() as usize;
        match self.incoming {
            Incoming::Read { slot, offset, .. } if left > 0 => match &mut self.command(slot).transfer {
                Transfer::FromController { buffer, .. } => {
                    let part = buffer.part_mut(offset as usize);
                    let count = part.len().min(left);
                    Some(&mut part[..count])
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Bytes up to the end of the current part of a PDU: see
    /// [`Framer::wanted_bytes`](crate::framer::Framer::wanted_bytes).
    #[must_use]
    pub fn wanted_bytes(&self) -> usize {
        self.framer.wanted_bytes()
    }

    /// The first `count` bytes of [`place`](Self::place) have been received. Pull events next, even without
    /// further input.
    ///
    /// # Errors
    /// None in practice: bytes of data cause no violation.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "the caller received no more than the place has, which lies in the buffer"
    )]
    pub fn on_placed(&mut self, count: usize) -> Result<(), Violation> {
        let Incoming::Read { slot, offset, .. } = &mut self.incoming else { return Ok(()) };
        let start = *offset as usize;
        *offset += u32::try_from(count).expect("at most a PDU");
        if let SlotState::Live(command) = &mut self.slots[usize::from(*slot)].state
            && let Transfer::FromController { buffer, .. } = &mut command.transfer
        {
            self.framer.on_placed(&buffer.part(start)[..count])?;
            if B::FOLLOWS_DATA {
                buffer.on_received(start..start + count);
            }
        }
        Ok(())
    }

    /// Rings the doorbell: the waiting PDUs leave now, unless a caravan is leaving already. Returns whether they do.
    /// After a violation nothing leaves.
    #[inline]
    pub fn ring(&mut self) -> bool {
        let has_rung = self.framer.failure().is_none() && self.caravan.ring();
        self.ring_count = self.ring_count.wrapping_add(has_rung.into());
        has_rung
    }

    /// The caravan of PDUs to send.
    #[inline]
    #[must_use]
    pub fn caravan(&self) -> &Caravan<DataRange> {
        &self.caravan
    }

    /// Calls `each` with the unsent bytes of the leaving caravan, in order, until it returns false.
    #[expect(clippy::indexing_slicing, reason = "slots are ours")]
    pub fn for_each_piece<'a>(&'a self, mut each: impl FnMut(&'a [u8]) -> bool) {
        for piece in self.caravan.pieces() {
            let goes_on = match piece {
                Piece::Bytes(bytes) => each(bytes),
                Piece::Payload(data, range) => match &self.slots[usize::from(data.slot)].state {
                    SlotState::Live(Command { transfer: Transfer::ToController(buffer), .. }) => {
                        let mut goes_on = true;
                        for_each_part(buffer, range, |part| {
                            goes_on = each(part);
                            goes_on
                        });
                        goes_on
                    }
                    _ => unreachable!("a command stays until its data is gone"),
                },
            };
            if !goes_on {
                return;
            }
        }
    }

    /// The kernel has taken `count` bytes. Completions that waited for this come with the next event.
    pub fn on_sent(&mut self, count: usize) {
        self.tell_buffers(count);
        let (slots, finished) = (&mut self.slots, &mut self.finished);
        self.caravan.on_sent(count, |range| range_gone(slots, finished, range));
    }

    /// Tells buffers which of the next `count` bytes of the leaving caravan are theirs.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "slots are ours, and no range is longer than its bytes"
    )]
    fn tell_buffers(&mut self, count: usize) {
        if !B::FOLLOWS_DATA {
            return;
        }
        let mut left = count;
        for piece in self.caravan.pieces() {
            let length = match piece {
                Piece::Bytes(bytes) => bytes.len(),
                Piece::Payload(data, range) => {
                    let end = range.end.min(range.start + left);
                    if let SlotState::Live(Command { transfer: Transfer::ToController(buffer), .. }) =
                        &mut self.slots[usize::from(data.slot)].state
                    {
                        buffer.on_sent(range.start..end);
                    }
                    range.len()
                }
            };
            left = left.saturating_sub(length);
            if left == 0 {
                return;
            }
        }
    }

    /// Whether every unsent byte keeps its address until the kernel has read it, also if this queue is moved. Data
    /// inside its command, such as an array given as the buffer, does not.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "the place of our own commands")]
    pub fn is_stable(&self) -> bool {
        let start = self.slots.as_ptr().addr();
        let commands = start..start + self.slots.capacity() * size_of::<Slot<B, U>>();
        let mut is_stable = true;
        self.for_each_piece(|piece| {
            is_stable = piece.is_empty() || !commands.contains(&piece.as_ptr().addr());
            is_stable
        });
        is_stable
    }

    /// As [`on_sent`](Self::on_sent), for bytes sent without a copy (`is_zero_copy`) or after such bytes of the same
    /// caravan: their commands end when the kernel has given notice. See [`Caravan::on_sent_zero_copy`].
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "slots are ours, and what was counted in is counted out"
    )]
    pub fn on_sent_zero_copy(&mut self, count: usize, is_zero_copy: bool) {
        self.tell_buffers(count);
        let (slots, finished) = (&mut self.slots, &mut self.finished);
        self.caravan.on_sent_zero_copy(count, is_zero_copy, |DataRange { slot, ends_window }| {
            // The controller may ask for more before the notice comes.
            if let SlotState::Live(command) = &mut slots[usize::from(*slot)].state {
                command.window_count -= u32::from(std::mem::take(ends_window));
            }
        });
        self.caravan.release(|range| range_gone(slots, finished, range));
    }

    /// Whether completions wait that need no further input.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Whether a PDU is incomplete: its first byte has arrived, its last has not.
    #[must_use]
    pub fn is_within_pdu(&self) -> bool {
        !self.framer.is_between_pdus()
    }

    /// The TermReq to send because the controller broke the transport, if one is due: after the bytes on their way, and
    /// nothing after it.
    #[must_use]
    pub fn fail(&self, violation: Violation) -> Option<Vec<u8>> {
        term_req(Sender::Controller, violation, self.framer.offending_header())
    }

    /// Removes a command that has not ended, with `status` unless the controller had answered it. Call it after the
    /// connection is closed and the kernel has released every send.
    pub fn next_unfinished(&mut self, status: Status) -> Option<Completion<B, U>> {
        let slot = self.unfinished()?;
        self.command(slot).completion.get_or_insert((status, 0));
        Some(self.take(Ended { slot }))
    }

    /// Removes a command that has not ended, for a caller that may submit it again. Call it after the connection is
    /// closed and the kernel has released every send.
    #[expect(clippy::indexing_slicing, reason = "slots are ours")]
    pub fn next_unfinished_command(&mut self) -> Option<Unfinished<B, U>> {
        let ring_count = self.ring_count;
        let slot = self.unfinished()?;
        let sqe = self.slots[usize::from(slot)].sqe;
        let command = self.command(slot);
        let unfinished = Unfinished {
            user: command.user,
            sqe,
            transfer: std::mem::replace(&mut command.transfer, Transfer::None),
            answer: command.completion,
            is_unsent: command.submitted_at == ring_count,
        };
        self.free_slot(slot);
        Some(unfinished)
    }

    /// A slot whose command has not ended.
    #[expect(clippy::expect_used, reason = "slots, at most 1024")]
    fn unfinished(&mut self) -> Option<u16> {
        assert_eq!(self.caravan.awaited_count(), 0, "the kernel may still read the data of these commands");
        self.caravan.clear(drop);
        self.incoming = Incoming::None;
        self.finished.clear();
        let slot = self.slots.iter().position(|slot| matches!(slot.state, SlotState::Live(_)))?;
        Some(u16::try_from(slot).expect("few slots"))
    }
}

impl<B, U> HostQueue<B, U> {
    /// Checks that framer, caravan and slots agree with each other, for fuzzers and tests.
    ///
    /// # Panics
    /// If they do not.
    pub fn invariants(&self) {
        self.framer.invariants();
        self.caravan.invariants();
        let live = self.slots.iter().filter_map(|slot| match &slot.state {
            SlotState::Live(command) => Some(command),
            SlotState::Free => None,
        });
        assert_eq!(live.clone().count(), usize::from(self.live_count), "commands in slots");
        assert!(self.live_count <= self.limit, "{} commands of {}", self.live_count, self.limit);
        let free_count = self.slots.len().saturating_sub(self.live_count.into());
        assert_eq!(self.free.len(), free_count, "slots without a command");
        let is_free = |slot: &u16| {
            matches!(self.slots.get(usize::from(*slot)), Some(Slot { state: SlotState::Free, .. }))
        };
        assert!(self.free.iter().all(is_free) && !self.finished.iter().any(is_free), "a slot is free or not");
        let in_transit: usize = live.map(|command| command.in_transit as usize).sum();
        let payload_count = self.caravan.payload_count();
        assert!(
            payload_count == in_transit || payload_count == 0,
            "ranges in transit, unless the caravan was cleared"
        );
    }

    /// Sends without a copy whose bytes the kernel may still read.
    #[inline]
    #[must_use]
    pub fn awaited_count(&self) -> u32 {
        self.caravan.awaited_count()
    }

    /// The kernel has given notice of the sends `first..=last`. Completions that waited for this come with the next
    /// event.
    pub fn on_notice(&mut self, first: u32, last: u32) {
        let (slots, finished) = (&mut self.slots, &mut self.finished);
        self.caravan.on_notice(first, last);
        self.caravan.release(|range| range_gone(slots, finished, range));
    }
}

impl<B, U> Drop for HostQueue<B, U> {
    /// Leaks the data that the kernel may still read.
    fn drop(&mut self) {
        if self.caravan.awaited_count() > 0 {
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

/// Applies the controller's answer to a command.
#[inline]
fn complete<B: DataBuffer, U>(
    command: &mut Command<B, U>,
    slot: u16,
    mut status: Status,
    result: u64,
) -> Result<Option<End>, Violation> {
    if status.is_success() {
        match &command.transfer {
            // A write cannot have succeeded before its data was asked for.
            Transfer::ToController(buffer) if (command.moved as usize) < buffer.length() => {
                return Err(Violation::Sequence);
            }
            // A buffer that was not filled must not count as data.
            Transfer::FromController { buffer, is_exact: true }
                if (command.moved as usize) < buffer.length() =>
            {
                status = Status::DATA_TRANSFER_ERROR;
            }
            _ => {}
        }
        if command.is_corrupt {
            status = Status::TRANSIENT_TRANSPORT_ERROR;
        }
    }
    // The caravan still refers to the buffer: hold the completion back until the bytes are gone.
    command.completion = Some((status, result));
    Ok((command.in_transit == 0).then_some(End::Command(Ended { slot })))
}
