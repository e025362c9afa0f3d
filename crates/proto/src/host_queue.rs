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

use std::ops::Range;

use wire::U16;
use wire::cqe::Cqe;
use wire::digest::DataDigest;
use wire::pdu::{CapsuleCmd, DataPdu, Digests, PduFlags, PduLayout, PduType, R2t};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::caravan::{Caravan, Piece};
use crate::framer::{DataLimits, Frame, Framer, Header, Sender, term_req};
use crate::handshake::{Agreement, HostOffer};
use crate::violation::Violation;

/// Commands a queue can have at most: slots take 10 bits of a command id.
pub const HOST_SLOT_COUNT_MAX: u16 = 1024;

/// The data of one command, in one piece or several.
pub trait DataBuffer {
    /// Bytes in all.
    fn length(&self) -> usize;
    /// The piece that begins at byte `offset` (below the length) and goes on as far as it is contiguous.
    fn part(&self, offset: usize) -> &[u8];
    /// The same, to fill.
    fn part_mut(&mut self, offset: usize) -> &mut [u8];
}

/// What data a command moves, and whose.
#[derive(Debug)]
pub enum Transfer<B> {
    /// None.
    None,
    /// All of the buffer goes to the controller.
    ToController(B),
    /// The controller fills the buffer. If `is_exact`, success with fewer bytes is a failure.
    FromController {
        /// What to fill.
        buffer: B,
        /// Whether every byte must come.
        is_exact: bool,
    },
}

/// The end of a command.
#[derive(Debug)]
pub struct Completion<B> {
    /// As given to [`HostQueue::submit`].
    pub user: u64,
    /// The outcome: what the controller said, or what we found wrong with what it sent.
    pub status: Status,
    /// The result dwords of the completion, 0 if none came.
    pub result: u64,
    /// Bytes that the controller sent.
    pub received: u32,
    /// The buffer given to [`HostQueue::submit`].
    pub buffer: Option<B>,
}

/// What a host's queue has for its driver.
#[derive(Debug)]
pub enum HostEvent<B> {
    /// The handshake is done.
    Initialised(Agreement),
    /// A command has ended.
    Completed(Completion<B>),
}

/// Why a command was not taken; it comes back.
#[derive(Debug)]
pub enum Refused<B> {
    /// The queue has as many commands as it may.
    Full(Transfer<B>),
    /// The data is longer than a PDU's length can say.
    TooLong(Transfer<B>),
}

/// The host's end of one queue pair on one connection, from ICReq to its end. `B` is the data of a command.
#[derive(Debug)]
pub struct HostQueue<B> {
    offer: HostOffer,
    framer: Framer,
    agreement: Agreement,
    in_capsule_bytes: u32,
    limit: u16,
    slots: Vec<Slot<B>>,
    free: Vec<u16>,
    live_count: u16,
    incoming: Incoming,
    /// Commands whose completion waited for their last bytes to leave.
    finished: Vec<u16>,
    caravan: Caravan<DataRange>,
}

/// Data of a command that is in the caravan.
#[derive(Clone, Copy, Debug)]
pub struct DataRange {
    slot: u16,
    /// Whether it is the last of what one R2T asked for.
    ends_window: bool,
}

#[derive(Debug)]
struct Slot<B> {
    /// Grows with each command: the upper 6 bits of its cid.
    generation: u8,
    state: State<B>,
}

#[derive(Debug)]
enum State<B> {
    Free,
    Live(Command<B>),
}

#[derive(Debug)]
struct Command<B> {
    user: u64,
    transfer: Transfer<B>,
    /// Bytes of its data that were handed to the caravan, or received.
    moved: u32,
    /// Payload ranges of it that are in the caravan.
    in_transit: u32,
    /// R2Ts of it whose data is in the caravan.
    window_count: u32,
    /// A data digest did not match.
    is_corrupt: bool,
    /// The completion, while `in_transit` holds it back.
    completion: Option<(Status, u64)>,
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

const INDEX_BITS: u32 = 10;
const INDEX_MASK: u16 = (1 << INDEX_BITS) - 1;

impl<B: DataBuffer> HostQueue<B> {
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
            in_capsule_bytes: 0,
            limit,
            slots: Vec::new(),
            free: Vec::new(),
            live_count: 0,
            incoming: Incoming::None,
            finished: Vec::new(),
            caravan,
        }
    }

    /// Data up to `bytes` goes in the capsule from now on: 8192 on an admin queue, what Identify says on others.
    pub fn set_in_capsule_bytes(&mut self, bytes: u32) {
        self.in_capsule_bytes = bytes;
    }

    /// What was agreed in the handshake.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// Submits a command; its cid and data pointer are set here. `user` comes back with its completion.
    ///
    /// # Errors
    /// [`Refused`], with the data.
    pub fn submit(&mut self, sqe: Sqe, transfer: Transfer<B>, user: u64) -> Result<(), Refused<B>> {
        let length = match &transfer {
            Transfer::None => 0,
            Transfer::ToController(buffer) | Transfer::FromController { buffer, .. } => buffer.length(),
        };
        // Leaves room for header, padding and digest in a PDU length.
        let Some(length) = u32::try_from(length).ok().filter(|&length| length < u32::MAX - 1024) else {
            return Err(Refused::TooLong(transfer));
        };
        let Some(slot) = self.take_slot() else { return Err(Refused::Full(transfer)) };
        // A Fabrics command carries its data in the capsule on every queue. wire §4.1
        let is_in_capsule = matches!(transfer, Transfer::ToController(_))
            && length > 0
            && (length <= self.in_capsule_bytes || sqe.opcode == wire::opcode::AdminOpcode::FABRICS.raw());
        let dptr = if is_in_capsule { Sgl::in_capsule(length) } else { Sgl::transport(length) };
        let data_length = if is_in_capsule { length } else { 0 };
        let entry = &mut self.slots[usize::from(slot)];
        entry.generation = (entry.generation + 1) & 0x3f;
        let cid = u16::from(entry.generation) << INDEX_BITS | slot;
        entry.state = State::Live(Command {
            user,
            transfer,
            moved: 0,
            in_transit: 0,
            window_count: 0,
            is_corrupt: false,
            completion: None,
        });
        let digests = self.agreement.digests;
        let layout = PduLayout::new(PduType::CapsuleCmd, digests, self.agreement.to_controller, data_length)
            .expect("the length was checked");
        let pdu = CapsuleCmd::new(&layout, sqe.with_cid(cid).with_data(dptr));
        self.push_pdu(&layout, pdu.as_bytes());
        if data_length > 0 {
            self.push_data(slot, 0..data_length, false);
        }
        Ok(())
    }

    /// Whether a command can be submitted.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.live_count < self.limit
    }

    /// Commands submitted and not completed.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.live_count
    }

    fn take_slot(&mut self) -> Option<u16> {
        if !self.has_room() {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, state: State::Free });
            u16::try_from(self.slots.len() - 1).expect("at most the limit")
        });
        self.live_count += 1;
        Some(slot)
    }

    fn push_pdu(&mut self, layout: &PduLayout, header: &[u8]) {
        let has_digest = layout.header_digest_at().is_some();
        let bare = header.len() + if has_digest { wire::digest::DIGEST_BYTES } else { 0 };
        let padding = usize::from(layout.prefix_length()) - bare;
        self.caravan.push_header(header, has_digest, padding);
    }

    /// Adds a range of a command's data, and its digest.
    fn push_data(&mut self, slot: u16, range: Range<u32>, ends_window: bool) {
        let State::Live(command) = &mut self.slots[usize::from(slot)].state else {
            unreachable!("only live commands send data")
        };
        let Transfer::ToController(buffer) = &command.transfer else { unreachable!("only writes send data") };
        command.moved = range.end;
        command.in_transit += 1;
        let digest = self.agreement.digests.contains(Digests::DATA).then(|| {
            let mut digest = DataDigest::new();
            for_each_part(buffer, range.start as usize..range.end as usize, |part| digest.update(part));
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
    /// How the controller broke the transport: [`fail`](Self::fail) the queue then.
    pub fn next_event(&mut self, input: &mut &[u8]) -> Result<Option<HostEvent<B>>, Violation> {
        if let Some(slot) = self.finished.pop() {
            return Ok(Some(self.finish(slot)));
        }
        while let Some(frame) = self.framer.next_frame(input)? {
            match frame {
                Frame::Header(Header::Response(cqe)) => {
                    if let Some(event) = self.on_response(&cqe)? {
                        return Ok(Some(event));
                    }
                }
                Frame::Header(Header::C2hData(pdu)) => self.on_c2h_data(&pdu)?,
                Frame::Header(Header::R2t(r2t)) => self.on_r2t(&r2t)?,
                Frame::Header(Header::IcResp(response)) => {
                    let agreement = self.offer.on_ic_resp(&response)?;
                    self.agreement = agreement;
                    let limits = DataLimits { capsule_bytes_max: 0, data_pdu_bytes_max: u32::MAX };
                    self.framer.initialise(agreement.digests, agreement.to_host, limits);
                    return Ok(Some(HostEvent::Initialised(agreement)));
                }
                Frame::Header(_) => unreachable!("a framer of a host passes on nothing else"),
                Frame::Data(data) => self.on_data(data),
                Frame::End { is_intact } => {
                    if let Some(event) = self.on_data_end(is_intact)? {
                        return Ok(Some(event));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The slot of the live command with this id.
    #[inline]
    fn find(&self, cid: U16) -> Option<u16> {
        let (slot, generation) = (cid.get() & INDEX_MASK, cid.get() >> INDEX_BITS);
        let entry = self.slots.get(usize::from(slot))?;
        let is_ours = u16::from(entry.generation) == generation
            && matches!(&entry.state, State::Live(command) if command.completion.is_none());
        is_ours.then_some(slot)
    }

    #[inline]
    fn command(&mut self, slot: u16) -> &mut Command<B> {
        match &mut self.slots[usize::from(slot)].state {
            State::Live(command) => command,
            State::Free => unreachable!("slots in use are live"),
        }
    }

    fn on_response(&mut self, cqe: &Cqe) -> Result<Option<HostEvent<B>>, Violation> {
        let slot = self.find(cqe.cid).ok_or(Violation::Sequence)?;
        self.on_completion(slot, cqe.status(), cqe.result.get())
    }

    /// The controller says that a command has ended.
    fn on_completion(
        &mut self,
        slot: u16,
        status: Status,
        result: u64,
    ) -> Result<Option<HostEvent<B>>, Violation> {
        let command = self.command(slot);
        let mut status = status;
        if status.is_success() {
            match &command.transfer {
                // A write cannot have succeeded before its data was asked for.
                Transfer::ToController(buffer) if (command.moved as usize) < buffer.length() => {
                    return Err(Violation::Sequence);
                }
                // Memory that was never filled must not pass for data.
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
        command.completion = Some((status, result));
        // The caravan still refers to the buffer: hold the completion back until the bytes are gone.
        if command.in_transit > 0 {
            return Ok(None);
        }
        Ok(Some(self.finish(slot)))
    }

    fn finish(&mut self, slot: u16) -> HostEvent<B> {
        let state = std::mem::replace(&mut self.slots[usize::from(slot)].state, State::Free);
        let State::Live(command) = state else { unreachable!("a command ends once") };
        self.free.push(slot);
        self.live_count -= 1;
        HostEvent::Completed(completion(command))
    }

    fn on_c2h_data(&mut self, pdu: &DataPdu) -> Result<(), Violation> {
        let slot = self.find(pdu.cid).ok_or(Violation::HeaderField { offset: 8 })?;
        let flags = pdu.common.flags;
        if flags.contains(PduFlags::SUCCESS) && !flags.contains(PduFlags::LAST) {
            return Err(Violation::HeaderField { offset: 1 });
        }
        let (offset, length) = (pdu.offset.get(), pdu.length.get());
        let command = self.command(slot);
        let Transfer::FromController { buffer, .. } = &command.transfer else {
            return Err(Violation::HeaderField { offset: 8 });
        };
        let after = offset.checked_add(length).ok_or(Violation::OutOfRange)?;
        if offset != command.moved || after as usize > buffer.length() {
            return Err(Violation::OutOfRange);
        }
        self.incoming = Incoming::Read { slot, offset, is_success: flags.contains(PduFlags::SUCCESS) };
        Ok(())
    }

    #[inline]
    fn on_data(&mut self, mut bytes: &[u8]) {
        let Incoming::Read { slot, mut offset, is_success } = self.incoming else { return };
        if let Transfer::FromController { buffer, .. } = &mut self.command(slot).transfer {
            while !bytes.is_empty() {
                let part = buffer.part_mut(offset as usize);
                let count = part.len().min(bytes.len());
                part[..count].copy_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                offset += u32::try_from(count).expect("at most a PDU");
            }
        }
        self.incoming = Incoming::Read { slot, offset, is_success };
    }

    fn on_data_end(&mut self, is_intact: bool) -> Result<Option<HostEvent<B>>, Violation> {
        let Incoming::Read { slot, offset, is_success } = self.incoming else { return Ok(None) };
        self.incoming = Incoming::None;
        let command = self.command(slot);
        command.moved = offset;
        command.is_corrupt |= !is_intact;
        if is_success { self.on_completion(slot, Status::SUCCESS, 0) } else { Ok(None) }
    }

    /// Serves a window: all of it goes into the caravan. wire §4.1
    fn on_r2t(&mut self, r2t: &R2t) -> Result<(), Violation> {
        let slot = self.find(r2t.cid).ok_or(Violation::HeaderField { offset: 8 })?;
        let (offset, length) = (r2t.offset.get(), r2t.length.get());
        if length == 0 {
            return Err(Violation::HeaderField { offset: 16 });
        }
        let r2t_limit = self.agreement.r2t_limit;
        let pdu_bytes_max = self.agreement.h2c_data_bytes_max;
        let command = self.command(slot);
        let Transfer::ToController(buffer) = &command.transfer else { return Err(Violation::Sequence) };
        let end = offset.checked_add(length).ok_or(Violation::OutOfRange)?;
        if offset != command.moved || end as usize > buffer.length() {
            return Err(Violation::OutOfRange);
        }
        if command.window_count >= r2t_limit {
            return Err(Violation::LimitExceeded);
        }
        command.window_count += 1;
        let mut start = offset;
        while start < end {
            let stop = end.min(start.saturating_add(pdu_bytes_max));
            let layout = PduLayout::new(
                PduType::H2cData,
                self.agreement.digests,
                self.agreement.to_controller,
                stop - start,
            )
            .expect("at most the controller's limit");
            let pdu = DataPdu::h2c(&layout, r2t.cid, r2t.ttag, start, stop == end);
            self.push_pdu(&layout, pdu.as_bytes());
            self.push_data(slot, start..stop, stop == end);
            start = stop;
        }
        Ok(())
    }

    /// Where the bytes that come next may be received into directly, without a copy: the rest of the PDU's data in
    /// its command's buffer, as far as that is contiguous. `None` if the next bytes are anything else.
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

    /// The first `count` bytes of [`place`](Self::place) have been received. Pull events next, even without
    /// further input.
    ///
    /// # Errors
    /// None that bytes of data can cause; the framer's signature has them.
    pub fn on_placed(&mut self, count: usize) -> Result<(), Violation> {
        let Incoming::Read { slot, offset, .. } = &mut self.incoming else { return Ok(()) };
        let start = *offset as usize;
        *offset += u32::try_from(count).expect("at most a PDU");
        if let State::Live(command) = &self.slots[usize::from(*slot)].state
            && let Transfer::FromController { buffer, .. } = &command.transfer
        {
            let mut placed = &buffer.part(start)[..count];
            while !placed.is_empty() && self.framer.next_frame(&mut placed)?.is_some() {}
        }
        Ok(())
    }

    /// Rings the doorbell: what waits leaves now, unless something is on its way. Says whether it did.
    #[inline]
    pub fn ring(&mut self) -> bool {
        self.caravan.ring()
    }

    /// What is to be sent.
    #[inline]
    #[must_use]
    pub fn caravan(&self) -> &Caravan<DataRange> {
        &self.caravan
    }

    /// Calls `each` with the bytes of the caravan on its way, in order, until it says false.
    pub fn for_each_piece<'a>(&'a self, mut each: impl FnMut(&'a [u8]) -> bool) {
        for piece in self.caravan.pieces() {
            let goes_on = match piece {
                Piece::Bytes(bytes) => each(bytes),
                Piece::Payload(data, range) => match &self.slots[usize::from(data.slot)].state {
                    State::Live(Command { transfer: Transfer::ToController(buffer), .. }) => {
                        let mut goes_on = true;
                        for_each_part(buffer, range, |part| goes_on = goes_on && each(part));
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
        let (slots, finished) = (&mut self.slots, &mut self.finished);
        self.caravan.on_sent(count, |DataRange { slot, ends_window }| {
            if let State::Live(command) = &mut slots[usize::from(slot)].state {
                command.in_transit -= 1;
                command.window_count -= u32::from(ends_window);
                if command.in_transit == 0 && command.completion.is_some() {
                    finished.push(slot);
                }
            }
        });
    }

    /// Whether completions wait that need no further input.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Whether a PDU is on its way in: its first byte is here, its last is not.
    #[must_use]
    pub fn is_within_pdu(&self) -> bool {
        !self.framer.is_between_pdus()
    }

    /// The TermReq to send because the controller broke the transport, if one is due.
    #[must_use]
    pub fn fail(&self, violation: Violation) -> Option<Vec<u8>> {
        term_req(Sender::Controller, violation, self.framer.offending_header())
    }

    /// After the connection is closed: takes out a command that has not ended, with `status` in place of an answer.
    /// Those that the controller had answered keep its answer.
    pub fn next_unfinished(&mut self, status: Status) -> Option<Completion<B>> {
        self.caravan.clear(drop);
        self.incoming = Incoming::None;
        self.finished.clear();
        let slot = self.slots.iter().position(|slot| matches!(slot.state, State::Live(_)))?;
        let slot = u16::try_from(slot).expect("few slots");
        self.command(slot).completion.get_or_insert((status, 0));
        match self.finish(slot) {
            HostEvent::Completed(completion) => Some(completion),
            HostEvent::Initialised(_) => unreachable!("finish completes"),
        }
    }
}

fn completion<B>(command: Command<B>) -> Completion<B> {
    let (status, result) = command.completion.expect("set before a command finishes");
    let (buffer, received) = match command.transfer {
        Transfer::None => (None, 0),
        Transfer::ToController(buffer) => (Some(buffer), 0),
        Transfer::FromController { buffer, .. } => (Some(buffer), command.moved),
    };
    Completion { user: command.user, status, result, received, buffer }
}

/// Calls `each` with the contiguous parts of a range.
fn for_each_part<'a, B: DataBuffer>(buffer: &'a B, range: Range<usize>, mut each: impl FnMut(&'a [u8])) {
    let mut at = range.start;
    while at < range.end {
        let part = buffer.part(at);
        let part = &part[..part.len().min(range.end - at)];
        each(part);
        at += part.len();
    }
}

impl DataBuffer for Vec<u8> {
    fn length(&self) -> usize {
        self.len()
    }

    fn part(&self, offset: usize) -> &[u8] {
        &self[offset..]
    }

    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        &mut self[offset..]
    }
}
