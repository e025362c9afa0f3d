//! The controller's end of a queue pair: PDUs in, commands out; completions in, PDUs out.
//!
//! ```text
//! next_event ─▶ Command ──complete / complete_read────────────────────────▶ caravan
//!                  └─request_data─▶ (R2T … H2CData) ─▶ DataReceived ──complete─▶ caravan
//! ```
//!
//! Every [`Event::Command`] ends in exactly one `complete*`. Events are pulled from a slice of received bytes, so that
//! nothing is queued between the socket and the command.

mod parted;

use std::ops::Range;

use wire::U16;
use wire::cqe::Cqe;
use wire::opcode::DataDirection;
use wire::pdu::{CapsuleCmd, CapsuleResp, DataPdu, Digests, IcReq, PduFlags, PduLayout, PduType, R2t};
use wire::sgl::DataPointer;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::caravan::Caravan;
use crate::command_table::{Arriving, CommandTable, Phase, Slot};
use crate::framer::{DataLimits, Frame, Framer, Sender, term_req};
use crate::handshake::{Agreement, ControllerOffer};
use crate::violation::Violation;
use crate::write_data::WriteData;

pub use parted::Parted;

/// Data that Fabrics and admin commands may bring in their capsule, bytes. wire §4.1
pub const CAPSULE_BYTES_MIN: u32 = 8192;

/// Settings of a controller's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Its offer in the handshake.
    pub offer: ControllerOffer,
    /// In-capsule data of I/O queues, bytes; the framer takes [`CAPSULE_BYTES_MIN`] in any case.
    pub in_capsule_bytes: u32,
    /// Most bytes asked for in one R2T; made a dword multiple. wire §3
    pub window_bytes: u32,
    /// Most bytes sent in one C2HData; made a dword multiple.
    pub c2h_data_bytes: u32,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            offer: ControllerOffer::default(),
            in_capsule_bytes: CAPSULE_BYTES_MIN,
            window_bytes: 1 << 20,
            c2h_data_bytes: 1 << 20,
        }
    }
}

/// An event of a controller's queue.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Lives on the stack for a moment; a box would be an allocation per command.
pub enum Event<'a> {
    /// The handshake is done; its answer is in the caravan.
    Initialised(Agreement),
    /// A command to execute, with the data of its capsule (empty if it has none there). Its data pointer fits that
    /// data, unless the command moves none; whether it fits the command, and is of a kind that TCP supports, is for the
    /// driver to check.
    Command {
        /// Its slot, for all further calls.
        slot: Slot,
        /// The command.
        sqe: Sqe,
        /// In-capsule data, whole and intact.
        data: &'a [u8],
    },
    /// The data requested with [`request_data`](ControllerQueue::request_data), or the part requested first, has arrived.
    DataReceived {
        /// The command's slot.
        slot: Slot,
        /// Whether every data digest matched.
        is_intact: bool,
    },
    /// A command that the queue has refused by itself; it is answered already.
    Refused {
        /// The command's id.
        cid: u16,
        /// The answer.
        status: Status,
    },
}

/// Where the data of the current PDU goes.
#[derive(Clone, Copy, Debug)]
enum Incoming {
    /// No data is expected.
    None,
    /// Into `assembly`, for the command whose header came last; nowhere if that will be refused with this status.
    Capsule { refusal: Option<Status> },
    /// Into a buffer of the command in this slot, at this offset of it; nowhere if that is completed.
    Write { slot: Slot, of: Arriving, offset: u32 },
}

impl Incoming {
    /// Where in this slot an H2CData is coming in.
    fn arriving(&self, slot: Slot) -> Option<Arriving> {
        match self {
            Self::Write { slot: arriving, of, .. } if *arriving == slot => Some(*of),
            _ => None,
        }
    }
}

/// SQ flow control, as reported in completions.
#[derive(Clone, Copy, Debug)]
struct SubmissionQueue {
    /// Entries of the queue.
    entries: u16,
    head: u16,
    is_flow_control_disabled: bool,
}

/// The controller's end of one queue pair on one connection, from ICReq to its end.
///
/// `B` is a buffer for write data, `P` a payload to send, `C` the driver's context of each command until that is
/// completed. There are four kinds of methods, which a driver calls in this order:
///
/// 1. *Inputs*: bytes received into [`place`](Self::place) go to [`on_placed`](Self::on_placed), bytes received
///    elsewhere to [`next_event`](Self::next_event), which is called until it returns `None`. After a [`Violation`]
///    comes [`fail`](Self::fail), and no further input.
/// 2. *Wishes*: each [`Event::Command`] is answered by exactly one of [`complete`](Self::complete),
///    [`complete_with_data`](Self::complete_with_data) and, for an event request, [`await_event`](Self::await_event)
///    first. Before that, the data of a write is asked for with [`request_data`](Self::request_data) and taken with
///    [`take_buffer`](Self::take_buffer) after [`Event::DataReceived`]. Wishes may come between two events, and in any
///    order across commands. Once the driver has accepted Connect it calls [`establish`](Self::establish).
/// 3. *Outputs*: after the events, the [`caravan`](Self::caravan) is rung and its pieces are sent;
///    [`next_superseded`](Self::next_superseded) names commands to abort.
/// 4. *Questions* may be asked at any time: [`outstanding`](Self::outstanding), [`is_within_pdu`](Self::is_within_pdu)
///    and the others that take `&self`.
#[derive(Debug)]
pub struct ControllerQueue<B, P, C = ()> {
    settings: QueueSettings,
    framer: Framer,
    agreement: Agreement,
    /// A C2HData of any length.
    c2h: PduLayout,
    /// Bytes between its header and its data.
    c2h_padding: u8,
    table: CommandTable<B, C>,
    submission: SubmissionQueue,
    incoming: Incoming,
    assembly: Vec<u8>,
    caravan: Caravan<P>,
    /// A TermReq is the last thing that is sent.
    has_failed: bool,
}

/// The status of a command whose data is corrupt: framing is still valid, so only the command fails. wire §3
fn corrupt_unless(is_intact: bool) -> Option<Status> {
    (!is_intact).then_some(Status::TRANSIENT_TRANSPORT_ERROR)
}

/// The layout of a C2HData as agreed, resized for each PDU.
#[expect(clippy::expect_used, reason = "a layout with data, of an alignment that the handshake took")]
fn c2h_layout(agreement: &Agreement) -> PduLayout {
    PduLayout::new(PduType::C2hData, agreement.digests, agreement.to_host, 1).expect("it carries data")
}

/// Commands that a connection may have before its Connect has set the queue's size.
const ENTRIES_BEFORE_CONNECT: u16 = 8;

impl<B: AsRef<[u8]> + AsMut<[u8]>, P, C: Default> ControllerQueue<B, P, C> {
    /// The queue of a new connection.
    #[must_use]
    pub fn new(settings: QueueSettings) -> Self {
        let dwords = |bytes: u32| bytes.max(4) & !3;
        Self {
            settings: QueueSettings {
                window_bytes: dwords(settings.window_bytes),
                c2h_data_bytes: dwords(settings.c2h_data_bytes),
                ..settings
            },
            framer: Framer::new(Sender::Host),
            agreement: Agreement::NONE,
            c2h: c2h_layout(&Agreement::NONE),
            c2h_padding: 0,
            table: CommandTable::new(ENTRIES_BEFORE_CONNECT),
            submission: SubmissionQueue {
                entries: ENTRIES_BEFORE_CONNECT,
                head: 0,
                is_flow_control_disabled: false,
            },
            incoming: Incoming::None,
            assembly: Vec::new(),
            caravan: Caravan::default(),
            has_failed: false,
        }
    }

    /// Connect has been accepted: the queue has `entries` from now on, at most [`SLOT_COUNT_MAX`]: offer no more.
    ///
    /// [`SLOT_COUNT_MAX`]: crate::SLOT_COUNT_MAX
    pub fn establish(&mut self, entries: u16, is_flow_control_disabled: bool) {
        self.table.set_limit(entries);
        let head = self.submission.head.checked_rem(entries).unwrap_or(0);
        self.submission = SubmissionQueue { entries, head, is_flow_control_disabled };
    }

    /// Sets the in-capsule data of this queue, bytes, for hosts that were offered another number than the rest;
    /// [`CAPSULE_BYTES_MIN`] is possible in any case.
    pub fn set_in_capsule_bytes(&mut self, bytes: u32) {
        self.framer.set_capsule_bytes_max(bytes.max(CAPSULE_BYTES_MIN));
    }

    /// The agreement of the handshake.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// The next event in `input`, whose front is consumed; `None` when all of it is.
    ///
    /// # Errors
    /// The violation by which the host broke the transport: [`fail`](Self::fail) the queue then. No further input is
    /// taken.
    #[inline(always)] // Called from one place; the event is too large to be returned in registers.
    pub fn next_event<'q, 'i: 'q>(
        &'q mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Event<'q>>, Violation> {
        while let Some(frame) = self.framer.next_frame(input)? {
            match frame {
                Frame::Header(PduType::CapsuleCmd, data_length) => {
                    let refusal = match self.on_command(data_length) {
                        Ok(refusal) => refusal,
                        Err(violation) => return Err(self.framer.fail(violation)),
                    };
                    if data_length == 0 && refusal.is_none() {
                        return Ok(Some(self.command(&[])));
                    }
                    // Mostly the data lies in the input as a whole, and is handed on from there.
                    let whole = match data_length {
                        0 => Some((&[][..], true)),
                        _ => self.framer.next_whole_data(input),
                    };
                    if let Some((data, is_intact)) = whole {
                        return Ok(Some(self.on_capsule_end(refusal.or(corrupt_unless(is_intact)), data)));
                    }
                    self.incoming = Incoming::Capsule { refusal };
                    self.assembly.clear();
                }
                Frame::Header(PduType::H2cData, _) => {
                    if let Err(violation) = self.on_h2c_data() {
                        return Err(self.framer.fail(violation));
                    }
                    if let Some((data, is_intact)) = self.framer.next_whole_data(input) {
                        self.on_data(data);
                        if let Some(event) = self.on_write_end(is_intact) {
                            return Ok(Some(event));
                        }
                    }
                }
                Frame::Header(PduType::IcReq, _) => match self.on_ic_req() {
                    Ok(agreement) => return Ok(Some(Event::Initialised(agreement))),
                    Err(violation) => return Err(self.framer.fail(violation)),
                },
                Frame::Header(..) => unreachable!("a framer of a controller passes on nothing else"),
                Frame::Data(data) => self.on_data(data),
                Frame::End { is_intact } => {
                    if let Incoming::Capsule { refusal } = self.incoming {
                        self.incoming = Incoming::None;
                        return Ok(Some(self.on_assembled(refusal.or(corrupt_unless(is_intact)))));
                    }
                    if let Some(event) = self.on_write_end(is_intact) {
                        return Ok(Some(event));
                    }
                }
            }
        }
        Ok(None)
    }

    fn on_ic_req(&mut self) -> Result<Agreement, Violation> {
        let (response, agreement) = self.settings.offer.on_ic_req(self.framer.header::<IcReq>())?;
        self.agree(agreement);
        self.caravan.push_header(response.as_bytes(), false, 0);
        Ok(agreement)
    }

    /// From now on PDUs are as agreed.
    fn agree(&mut self, agreement: Agreement) {
        self.agreement = agreement;
        self.c2h = c2h_layout(&agreement);
        let bare = PduLayout::without_data(PduType::C2hData, agreement.digests);
        self.c2h_padding = self.c2h.prefix_length().saturating_sub(bare.prefix_length());
        let limits = DataLimits {
            capsule_bytes_max: self.settings.in_capsule_bytes.max(CAPSULE_BYTES_MIN),
            data_pdu_bytes_max: agreement.h2c_data_bytes_max,
        };
        self.framer.initialise(agreement.digests, agreement.to_controller, limits);
    }

    /// Decides on a command before its data: the status it will be refused with, if it will.
    #[inline(always)]
    fn on_command(&mut self, data_length: u32) -> Result<Option<Status>, Violation> {
        let sqe = &self.framer.header::<CapsuleCmd>().sqe;
        let mut refusal = None;
        match sqe.dptr.classify() {
            DataPointer::Transport { .. } if data_length == 0 => {}
            DataPointer::InCapsule { offset: 0, length } if length == data_length => {}
            // A command that moves no data has no use for its pointer. wire §5.3
            _ if data_length == 0 && sqe.data_direction() == DataDirection::None => {}
            DataPointer::InCapsule { length, .. } if length == data_length => {
                refusal = Some(Status::SGL_OFFSET_INVALID.with_dnr());
            }
            DataPointer::Other { .. } if data_length == 0 => {}
            DataPointer::Other { .. } => return Err(Violation::UnsupportedParameter { offset: 64 }),
            DataPointer::Transport { .. } | DataPointer::InCapsule { .. } => {
                return Err(Violation::HeaderField { offset: 4 });
            }
        }
        // A host may have as many commands outstanding as the queue has entries, and has not seen answers that have not
        // left.
        let out = u32::from(self.table.live_count()).saturating_add(self.caravan.waiting_command_count());
        if out >= self.table.limit().into() {
            return Err(Violation::Sequence);
        }
        let next = self.submission.head.wrapping_add(1);
        self.submission.head = if next >= self.submission.entries { 0 } else { next };
        // A host that shuts down may complete its event requests by itself: their cids are its to use again. wire §13
        if let Some(slot) = self.table.find(sqe.cid.get())
            && !self.table.supersede(slot)
        {
            return Ok(refusal.or(Some(Status::COMMAND_ID_CONFLICT.with_dnr())));
        }
        if !self.table.has_slot() {
            // The other slots are of completed commands whose data is still to come, which is temporary.
            return Ok(refusal.or(Some(Status::INTERNAL_ERROR)));
        }
        Ok(refusal)
    }

    /// Hands on the command whose header came last.
    #[inline(always)] // A call would move the entry once more.
    fn command<'a>(&mut self, data: &'a [u8]) -> Event<'a> {
        let sqe = &self.framer.header::<CapsuleCmd>().sqe;
        let slot = self.table.insert(sqe.cid.get());
        Event::Command { slot, sqe: *sqe, data }
    }

    /// The data of the command whose header came last is complete.
    fn on_capsule_end<'a>(&mut self, refusal: Option<Status>, data: &'a [u8]) -> Event<'a> {
        match refusal {
            None => self.command(data),
            Some(status) => self.refuse(status),
        }
    }

    /// The same, and it lies in `assembly`.
    fn on_assembled(&mut self, refusal: Option<Status>) -> Event<'_> {
        match self.on_capsule_end(refusal, &[]) {
            Event::Command { slot, sqe, .. } => Event::Command { slot, sqe, data: &self.assembly },
            refused => refused,
        }
    }

    /// Answers the command whose header came last.
    #[cold]
    fn refuse(&mut self, status: Status) -> Event<'static> {
        let cid = self.framer.header::<CapsuleCmd>().sqe.cid.get();
        self.push_completion(cid, status, 0);
        Event::Refused { cid, status }
    }

    fn on_h2c_data(&mut self) -> Result<(), Violation> {
        let pdu: &DataPdu = self.framer.header();
        if self.table.is_idle() {
            return Err(Violation::Sequence);
        }
        let tag = self.table.by_tag(pdu.ttag).map_err(|_| Violation::HeaderField { offset: 10 });
        let (slot, window) = tag?;
        let cid = self.table.entry(slot).cid;
        let (Phase::Receiving { data, .. } | Phase::Draining { data, .. }) = self.table.phase_mut(slot)
        else {
            return Err(Violation::Sequence);
        };
        if cid != pdu.cid.get() {
            return Err(Violation::HeaderField { offset: 8 });
        }
        let offset = pdu.offset.get();
        let is_last = pdu.common.flags.contains(PduFlags::LAST);
        data.on_h2c_data(window, offset, pdu.length.get(), is_last)?;
        // Its windows are within the part that the buffer is for, or in the one behind.
        let (is_ahead, offset) = data.within_part(offset);
        let of = if is_ahead { Arriving::Ahead } else { Arriving::InPart };
        self.incoming = Incoming::Write { slot, of, offset };
        Ok(())
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "the PDU lies in its window (WriteData), and that in the buffer (request_data)"
    )]
    fn on_data(&mut self, bytes: &[u8]) {
        match &mut self.incoming {
            Incoming::Capsule { refusal: None } => self.assembly.extend_from_slice(bytes),
            Incoming::Write { slot, of, offset } => {
                let at = *offset as usize;
                *offset += u32::try_from(bytes.len()).expect("at most a PDU");
                // The command may have been completed (aborted) meanwhile: its bytes are dropped then.
                if let Some(buffer) = self.table.phase_mut(*slot).receiving_mut(*of) {
                    memory::copy_bytes(&mut buffer.as_mut()[at..at + bytes.len()], bytes);
                }
            }
            Incoming::None | Incoming::Capsule { refusal: Some(_) } => {}
        }
    }

    /// An H2CData is complete.
    fn on_write_end(&mut self, is_pdu_intact: bool) -> Option<Event<'static>> {
        let incoming = std::mem::replace(&mut self.incoming, Incoming::None);
        let Incoming::Write { slot, of, .. } = incoming else { return None };
        match self.table.phase_mut(slot) {
            Phase::Receiving { data, is_intact, .. } => {
                *is_intact &= is_pdu_intact;
                // A part that comes before the one in front of it is taken behind that.
                if data.is_complete() && of == Arriving::InPart {
                    return Some(Event::DataReceived { slot, is_intact: *is_intact });
                }
                self.push_r2ts(slot);
            }
            Phase::Draining { data, buffer } => {
                *buffer = None;
                if !data.is_owed() {
                    self.table.drained(slot);
                }
            }
            Phase::Free | Phase::Executing | Phase::AwaitingEvent | Phase::Superseded => {
                unreachable!("a slot waits for the PDU that comes in for it")
            }
        }
        None
    }

    /// The memory into which the next bytes may be received without a copy: the rest of the PDU's data in its
    /// command's buffer. `None` if the next bytes are anything else. The buffer stays until that PDU is over, even
    /// if its command is completed before; only [`clear`](Self::clear) drops it earlier.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the PDU lies in its window (WriteData), and that in the buffer (request_data)"
    )]
    pub fn place(&mut self) -> Option<&mut [u8]> {
        let left = self.framer.data_left() as usize;
        match self.incoming {
            Incoming::Write { slot, of, offset } if left > 0 => {
                let buffer = self.table.phase_mut(slot).receiving_mut(of)?;
                Some(&mut buffer.as_mut()[offset as usize..offset as usize + left])
            }
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
        reason = "the PDU lies in its window (WriteData), and that in the buffer (request_data)"
    )]
    pub fn on_placed(&mut self, count: usize) -> Result<(), Violation> {
        let Incoming::Write { slot, of, offset } = &mut self.incoming else { return Ok(()) };
        let start = *offset as usize;
        *offset += u32::try_from(count).expect("at most a PDU");
        let phase = self.table.phase_mut(*slot);
        let buffer = match phase {
            Phase::Draining { buffer, .. } => buffer.as_mut(),
            phase => phase.receiving_mut(*of),
        };
        if let Some(buffer) = buffer {
            self.framer.on_placed(&buffer.as_ref()[start..start + count])?;
        }
        Ok(())
    }

    /// Asks for the `length` bytes of data of a command, which go to the front of `buffer`.
    ///
    /// # Panics
    /// If the buffer is shorter, the length 0, or the data was asked for before.
    pub fn request_data(&mut self, slot: Slot, buffer: B, length: u32) {
        let is_asked_for = matches!(self.table.phase_mut(slot), Phase::Receiving { .. });
        assert!(!is_asked_for, "asked for once, by a command that executes");
        self.request_part(slot, buffer, 0..length);
    }

    /// Asks for a part of the data of a command, which goes to the front of `buffer`: for data that is received part by
    /// part. The one behind it may be asked for before its buffer is [taken](Self::take_buffer), so that the host has its R2T
    /// while it sends, if it accepts several.
    ///
    /// # Panics
    /// If the buffer is shorter, the part empty, or two are asked for, or one that it does not follow.
    pub fn request_part(&mut self, slot: Slot, buffer: B, part: Range<u32>) {
        let length = part.end.saturating_sub(part.start) as usize;
        assert!(length > 0 && buffer.as_ref().len() >= length, "room for {length} bytes");
        match self.table.phase_mut(slot) {
            Phase::Receiving { data, ahead: ahead @ None, .. } => {
                data.extend(part);
                *ahead = Some(buffer);
            }
            phase => {
                assert!(matches!(phase, Phase::Executing), "asked for once, by a command that executes");
                let data = WriteData::new(part);
                *phase = Phase::Receiving { data, buffer, ahead: None, is_intact: true };
            }
        }
        self.push_r2ts(slot);
    }

    #[inline(always)] // One R2T for a command is the common case; a call costs it 13 instructions.
    fn push_r2ts(&mut self, slot: Slot) {
        if self.has_failed {
            return;
        }
        let digests = self.agreement.digests;
        let cid = U16::new(self.table.entry(slot).cid);
        let window_limit = self.agreement.r2t_limit as usize;
        while let Phase::Receiving { data, .. } = self.table.phase_mut(slot)
            && let Some((window, range)) = data.grant(self.settings.window_bytes, window_limit)
        {
            let tag = self.table.tag(slot, window);
            let pdu = R2t::new(digests, cid, tag, range.start, range.end.saturating_sub(range.start));
            self.caravan.push_header(pdu.as_bytes(), digests.contains(Digests::HEADER), 0);
            self.caravan.mark_urgent();
        }
    }

    /// Takes the buffer of a command whose data, or the part of it that was asked for first, is received. If
    /// [`has_data`](Self::has_data) then, the part behind it had come before, and is taken without another event.
    ///
    /// # Panics
    /// If its data is not complete.
    pub fn take_buffer(&mut self, slot: Slot) -> B {
        assert!(!self.awaits_data(slot), "not all data of {slot:?} is here");
        let phase = self.table.phase_mut(slot);
        let taken = match std::mem::replace(phase, Phase::Executing) {
            Phase::Receiving { buffer, ahead: None, .. } => return buffer,
            Phase::Receiving { mut data, buffer, ahead: Some(ahead), is_intact } => {
                data.advance();
                *phase = Phase::Receiving { data, buffer: ahead, ahead: None, is_intact };
                buffer
            }
            _ => panic!("no data was asked for {slot:?}"),
        };
        if let Incoming::Write { slot: arriving, of, .. } = &mut self.incoming
            && *arriving == slot
        {
            *of = Arriving::InPart;
        }
        // Of a host that accepts one R2T at a time.
        self.push_r2ts(slot);
        taken
    }

    /// Whether a command has data to take: all that was asked for, or its first part.
    #[must_use]
    pub fn has_data(&self, slot: Slot) -> bool {
        matches!(self.table.entry(slot).phase, Phase::Receiving { .. }) && !self.awaits_data(slot)
    }

    /// Completes a command. Data that was asked for and is still to come will be dropped. Nothing is sent after
    /// [`fail`](Self::fail).
    ///
    /// # Panics
    /// If there is no command in the slot.
    #[inline]
    pub fn complete(&mut self, slot: Slot, status: Status, result: u64) {
        if let Some(cid) = self.take_out(slot) {
            self.push_completion(cid, status, result);
        }
    }

    /// The command in `slot` is an Asynchronous Event Request that waits: complete it when an event comes, or when
    /// [`next_superseded`](Self::next_superseded) names it. A command with its cid takes its place.
    pub fn await_event(&mut self, slot: Slot) {
        self.table.await_event(slot);
    }

    /// The next event request whose cid a new command has taken over. Call it before that command is executed. The
    /// request's completion, which is still due, is not sent.
    #[inline]
    pub fn next_superseded(&mut self) -> Option<Slot> {
        self.table.next_superseded()
    }

    /// Takes a command that is completed out of the table. Returns its cid; `None` if no completion is to be sent.
    #[inline]
    fn take_out(&mut self, slot: Slot) -> Option<u16> {
        let incoming = self.incoming;
        self.table.complete(slot, || incoming.arriving(slot))
    }

    /// Completes a command that succeeded with `length` bytes of `payload` for the host.
    ///
    /// `digest` is the data digest of a range of the payload; it is asked only if digests were agreed.
    #[inline]
    pub fn complete_with_data(
        &mut self,
        slot: Slot,
        payload: P,
        length: u32,
        result: u64,
        digest: impl Fn(&P, Range<usize>) -> u32,
    ) {
        let Some(cid) = self.take_out(slot) else { return };
        if self.has_failed {
            return;
        }
        if length == 0 {
            return self.push_completion(cid, Status::SUCCESS, result);
        }
        // Without SQ flow control no completion need carry the head, so the last data may stand for it. wire §4.2
        let success = self.submission.is_flow_control_disabled && result == 0;
        let last = if success { PduFlags::LAST | PduFlags::SUCCESS } else { PduFlags::LAST };
        self.caravan.push_payload(payload);
        let mut start = 0;
        if length > self.settings.c2h_data_bytes {
            start = self.push_all_but_last(cid, length, &digest);
        }
        self.push_c2h_data(cid, start..length, last, &digest);
        if success {
            self.caravan.count_command();
        } else {
            self.push_completion(cid, Status::SUCCESS, result);
        }
    }

    /// Adds all but the last PDU for the payload pushed last. Returns where that begins.
    #[inline(never)] // One PDU for each command is the common case.
    fn push_all_but_last(&mut self, cid: u16, length: u32, digest: &impl Fn(&P, Range<usize>) -> u32) -> u32 {
        let mut start = 0;
        while length.saturating_sub(start) > self.settings.c2h_data_bytes {
            let end = start.saturating_add(self.settings.c2h_data_bytes);
            self.push_c2h_data(cid, start..end, PduFlags::empty(), digest);
            start = end;
        }
        start
    }

    /// Adds a PDU for a range of the payload pushed last.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "the caller's own lengths, less than 4 GiB"
    )]
    fn push_c2h_data(
        &mut self,
        cid: u16,
        range: Range<u32>,
        flags: PduFlags,
        digest: &impl Fn(&P, Range<usize>) -> u32,
    ) {
        let layout = self.c2h.resized(range.end - range.start).expect("less than 4 GiB");
        let pdu = DataPdu::c2h(&layout, U16::new(cid), range.start, flags);
        let digests = self.agreement.digests;
        self.caravan.push_header(pdu.as_bytes(), digests.contains(Digests::HEADER), self.c2h_padding.into());
        self.caravan.push_range(range.clone(), flags.contains(PduFlags::LAST));
        if digests.contains(Digests::DATA) {
            let digest = digest(self.caravan.last_payload(), range.start as usize..range.end as usize);
            self.caravan.push_bytes(&digest.to_le_bytes());
        }
    }

    #[inline(always)]
    fn push_completion(&mut self, cid: u16, status: Status, result: u64) {
        if self.has_failed {
            return;
        }
        // Without flow control the head has no meaning, and is 0xFFFF. wire §5.2
        let head = if self.submission.is_flow_control_disabled { 0xffff } else { self.submission.head };
        let digests = self.agreement.digests;
        let pdu = CapsuleResp::new(digests, Cqe::new(U16::new(cid), head, status).with_result(result));
        self.caravan.push_header(pdu.as_bytes(), digests.contains(Digests::HEADER), 0);
        self.caravan.count_command();
    }

    /// The live command with this cid.
    #[must_use]
    pub fn find(&self, cid: u16) -> Option<Slot> {
        self.table.find(cid)
    }

    /// Most bytes of data in a C2HData PDU: all but the last of a command have this length.
    #[must_use]
    pub fn c2h_data_bytes(&self) -> u32 {
        self.settings.c2h_data_bytes
    }

    /// The driver's context of a live command: its default until it is [set](Self::set_context).
    ///
    /// # Panics
    /// If the queue has never had this slot.
    #[inline]
    #[must_use]
    pub fn context(&self, slot: Slot) -> &C {
        &self.table.entry(slot).context
    }

    /// Sets the driver's context of a live command.
    ///
    /// # Panics
    /// As [`context`](Self::context).
    #[inline]
    pub fn set_context(&mut self, slot: Slot, context: C) {
        *self.table.context_mut(slot) = context;
    }

    /// The driver's contexts of the commands that have not been completed.
    pub fn contexts(&self) -> impl Iterator<Item = &C> {
        self.table.contexts()
    }

    /// The id of a live command.
    #[must_use]
    pub fn cid(&self, slot: Slot) -> u16 {
        self.table.entry(slot).cid
    }

    /// Whether the command waits for data that was asked for: not all of it is here.
    #[must_use]
    pub fn awaits_data(&self, slot: Slot) -> bool {
        match &self.table.entry(slot).phase {
            Phase::Receiving { data, .. } => {
                !data.is_complete() || self.incoming.arriving(slot) == Some(Arriving::InPart)
            }
            _ => false,
        }
    }

    /// Commands that have not been completed.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.table.live_count()
    }

    /// Whether a PDU is incomplete: its first byte has arrived, its last has not.
    #[must_use]
    pub fn is_within_pdu(&self) -> bool {
        !self.framer.is_between_pdus()
    }

    /// The caravan of PDUs to send.
    #[inline]
    pub fn caravan(&mut self) -> &mut Caravan<P> {
        &mut self.caravan
    }

    /// Checks that framer, caravan and incoming data agree with each other, for fuzzers and tests.
    ///
    /// # Panics
    /// If they do not.
    pub fn invariants(&self) {
        self.framer.invariants();
        self.caravan.invariants();
        let is_idle = matches!(self.incoming, Incoming::None);
        assert!(
            is_idle || !self.framer.is_between_pdus(),
            "no data comes in between PDUs: {:?}",
            self.incoming
        );
    }

    /// Ends the queue because the host broke the transport: the waiting PDUs are dropped, a TermReq takes their place
    /// if one is due, and nothing is taken in or sent after that. Returns whether there is one to send.
    pub fn fail(&mut self, violation: Violation) -> bool {
        self.framer.fail(violation);
        self.incoming = Incoming::None;
        if std::mem::replace(&mut self.has_failed, true) {
            return false;
        }
        self.caravan.drop_waiting(drop);
        match term_req(Sender::Host, violation, self.framer.offending_header()) {
            Some(bytes) => {
                self.caravan.push_bytes(&bytes);
                true
            }
            None => false,
        }
    }

    /// Drops all commands, for a lane that ends. `gone` gets the slots of those the driver has.
    pub fn clear(&mut self, gone: impl FnMut(Slot)) {
        self.incoming = Incoming::None;
        self.table.clear(gone);
    }

    /// Frees memory that an idle lane does not need.
    pub fn shrink(&mut self) {
        if matches!(self.incoming, Incoming::None) {
            self.assembly = Vec::new();
            self.table.shrink();
        }
        self.caravan.shrink();
    }
}
