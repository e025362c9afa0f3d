//! The controller's end of a queue pair: PDUs in, commands out; completions in, PDUs out.
//!
//! ```text
//! next_event ─▶ Command ──complete / complete_read────────────────────────▶ caravan
//!                  └─request_data─▶ (R2T … H2CData) ─▶ DataReceived ──complete─▶ caravan
//! ```
//!
//! Every [`Event::Command`] ends in exactly one `complete*`. Events are pulled from a slice of received bytes, so that
//! nothing is queued between the socket and the command.

use std::ops::Range;

use wire::U16;
use wire::cqe::Cqe;
use wire::pdu::{CapsuleResp, DataPdu, Digests, PduFlags, PduLayout, PduType, R2t};
use wire::sgl::DataPointer;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::caravan::Caravan;
use crate::command_table::{CommandTable, Phase, Slot};
use crate::framer::{DataLimits, Frame, Framer, Header, Sender, term_req};
use crate::handshake::{Agreement, ControllerOffer};
use crate::violation::Violation;
use crate::write_data::WriteData;

/// Data that Fabrics and admin commands may bring in their capsule, bytes. wire §4.1
pub const CAPSULE_BYTES_MIN: u32 = 8192;

/// How a controller serves its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// What it says in the handshake.
    pub offer: ControllerOffer,
    /// In-capsule data of I/O queues, bytes; the framer takes [`CAPSULE_BYTES_MIN`] in any case.
    pub in_capsule_bytes: u32,
    /// Most bytes asked for in one R2T.
    pub window_bytes: u32,
    /// Most bytes sent in one C2HData; a dword multiple.
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

/// What a controller's queue has for its driver.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Lives on the stack for a moment; a box would be an allocation per command.
pub enum Event<'a> {
    /// The handshake is done; its answer is in the caravan.
    Initialised(Agreement),
    /// A command to execute, with the data of its capsule (empty if it has none there).
    Command {
        /// Where it is, for all further calls.
        slot: Slot,
        /// The command.
        sqe: Sqe,
        /// In-capsule data, whole and intact.
        data: &'a [u8],
    },
    /// The data asked for with [`request_data`](ControllerQueue::request_data) is there.
    DataReceived {
        /// Whose.
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

/// Where the data goes that the framer brings.
#[derive(Clone, Copy, Debug)]
enum Incoming {
    /// There is none.
    None,
    /// Into `assembly`, for the command in this slot.
    Capsule(Slot),
    /// Into the buffer of the command in this slot, at this offset.
    Write { slot: Slot, offset: u32 },
    /// Nowhere: its command is completed.
    Drain(Slot),
    /// Nowhere: its command was refused with this status, once the data is over.
    Refused { cid: u16, status: Status },
}

/// SQ flow control: what is said about it in completions.
#[derive(Clone, Copy, Debug)]
struct SubmissionQueue {
    /// Entries of the queue.
    entries: u16,
    head: u16,
    is_flow_control_disabled: bool,
}

/// The controller's end of one queue pair on one connection, from ICReq to its end.
///
/// `B` is a buffer for write data, `P` a payload to send.
#[derive(Debug)]
pub struct ControllerQueue<B, P> {
    settings: QueueSettings,
    framer: Framer,
    agreement: Agreement,
    table: CommandTable<B>,
    submission: SubmissionQueue,
    incoming: Incoming,
    assembly: Vec<u8>,
    caravan: Caravan<P>,
}

/// Commands that a connection may have before its Connect has set the queue's size.
const ENTRIES_BEFORE_CONNECT: u16 = 8;

impl<B: AsRef<[u8]> + AsMut<[u8]>, P> ControllerQueue<B, P> {
    /// The queue of a connection that has just been made.
    #[must_use]
    pub fn new(settings: QueueSettings) -> Self {
        Self {
            settings,
            framer: Framer::new(Sender::Host),
            agreement: Agreement::NONE,
            table: CommandTable::new(ENTRIES_BEFORE_CONNECT),
            submission: SubmissionQueue {
                entries: ENTRIES_BEFORE_CONNECT,
                head: 0,
                is_flow_control_disabled: false,
            },
            incoming: Incoming::None,
            assembly: Vec::new(),
            caravan: Caravan::default(),
        }
    }

    /// Connect has been accepted: the queue has `entries` from now on.
    pub fn establish(&mut self, entries: u16, is_flow_control_disabled: bool) {
        self.table.set_limit(entries);
        self.submission = SubmissionQueue { entries, is_flow_control_disabled, ..self.submission };
    }

    /// What was agreed in the handshake.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// The next event in `input`, whose front is taken in; `None` when all of it is.
    ///
    /// # Errors
    /// How the host broke the transport: [`fail`](Self::fail) the queue then.
    #[inline]
    pub fn next_event<'q, 'i: 'q>(
        &'q mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Event<'q>>, Violation> {
        while let Some(frame) = self.framer.next_frame(input)? {
            match frame {
                Frame::Header(Header::Command(sqe, data_length)) => {
                    let Some(slot) = self.on_command(&sqe, data_length)? else {
                        if let Incoming::Refused { cid, status } = self.incoming
                            && data_length == 0
                        {
                            return Ok(Some(self.refuse(cid, status)));
                        }
                        continue;
                    };
                    if data_length == 0 {
                        *self.table.phase_mut(slot) = Phase::Executing;
                        return Ok(Some(Event::Command { slot, sqe, data: &[] }));
                    }
                    self.incoming = Incoming::Capsule(slot);
                    self.assembly.clear();
                    // The common case: the data lies in the input as a whole, and is handed on from there.
                    if input.len() >= data_length as usize
                        && let Some(Frame::Data(data)) = self.framer.next_frame(input)?
                    {
                        if data.len() == data_length as usize
                            && let Some(Frame::End { is_intact }) = self.framer.next_frame(input)?
                        {
                            return Ok(Some(self.on_capsule_end(slot, sqe, is_intact, Some(data))));
                        }
                        self.assembly.extend_from_slice(data);
                    }
                }
                Frame::Header(Header::H2cData(pdu)) => self.on_h2c_data(&pdu)?,
                Frame::Header(Header::IcReq(request)) => {
                    let (response, agreement) = self.settings.offer.on_ic_req(&request)?;
                    self.agreement = agreement;
                    let limits = DataLimits {
                        capsule_bytes_max: self.settings.in_capsule_bytes.max(CAPSULE_BYTES_MIN),
                        data_pdu_bytes_max: agreement.h2c_data_bytes_max,
                    };
                    self.framer.initialise(agreement.digests, agreement.to_controller, limits);
                    self.caravan.push_header(response.as_bytes(), false, 0);
                    return Ok(Some(Event::Initialised(agreement)));
                }
                Frame::Header(_) => unreachable!("a framer of a controller passes on nothing else"),
                Frame::Data(data) => self.on_data(data),
                Frame::End { is_intact } => {
                    // What is at an end is decided by where the data went.
                    if let Incoming::Capsule(slot) = self.incoming {
                        let Phase::Assembling(sqe) = self.table.entry(slot).phase else {
                            unreachable!("a command is delivered once its data is in")
                        };
                        return Ok(Some(self.on_capsule_end(slot, sqe, is_intact, None)));
                    }
                    if let Some(event) = self.on_end(is_intact) {
                        return Ok(Some(event));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Finds a place for a command; `None` if it is refused.
    #[inline]
    fn on_command(&mut self, sqe: &Sqe, data_length: u32) -> Result<Option<Slot>, Violation> {
        let status = match sqe.dptr.classify() {
            DataPointer::InCapsule { offset, length } => {
                if length != data_length {
                    return Err(Violation::HeaderField { offset: 4 });
                }
                (offset != 0).then_some(Status::SGL_OFFSET_INVALID)
            }
            DataPointer::Transport { .. } if data_length > 0 => {
                return Err(Violation::HeaderField { offset: 4 });
            }
            DataPointer::Other { .. } if data_length > 0 => {
                return Err(Violation::UnsupportedParameter { offset: 64 });
            }
            DataPointer::Transport { .. } | DataPointer::Other { .. } => None,
        };
        let next = self.submission.head + 1;
        self.submission.head = if next >= self.submission.entries { 0 } else { next };
        let cid = sqe.cid.get();
        let status = status.or_else(|| self.table.find(cid).map(|_| Status::COMMAND_ID_CONFLICT));
        if let Some(status) = status {
            self.incoming = Incoming::Refused { cid, status: status.with_dnr() };
            return Ok(None);
        }
        let slot = self.table.insert(cid, Phase::Assembling(*sqe)).ok_or(Violation::Sequence)?;
        Ok(Some(slot))
    }

    fn refuse(&mut self, cid: u16, status: Status) -> Event<'static> {
        self.incoming = Incoming::None;
        self.push_completion(cid, status, 0);
        Event::Refused { cid, status }
    }

    /// A command's capsule is complete; `data` lies in the input, or in `assembly`.
    fn on_capsule_end<'a>(
        &'a mut self,
        slot: Slot,
        sqe: Sqe,
        is_intact: bool,
        data: Option<&'a [u8]>,
    ) -> Event<'a> {
        self.incoming = Incoming::None;
        if !is_intact {
            // The framing is still good, so only the command fails. wire §3
            let cid = sqe.cid.get();
            self.table.complete(slot);
            return self.refuse(cid, Status::TRANSIENT_TRANSPORT_ERROR);
        }
        *self.table.phase_mut(slot) = Phase::Executing;
        match data {
            Some(data) => Event::Command { slot, sqe, data },
            None => Event::Command { slot, sqe, data: &self.assembly },
        }
    }

    fn on_h2c_data(&mut self, pdu: &DataPdu) -> Result<(), Violation> {
        let tag = self.table.by_tag(pdu.ttag).map_err(|_| Violation::HeaderField { offset: 10 });
        let (slot, window) = tag?;
        let entry = self.table.entry(slot);
        if !matches!(entry.phase, Phase::Receiving { .. } | Phase::Draining { .. }) {
            return Err(Violation::Sequence);
        }
        if entry.cid != pdu.cid.get() {
            return Err(Violation::HeaderField { offset: 8 });
        }
        let (offset, length) = (pdu.offset.get(), pdu.length.get());
        let is_last = pdu.common.flags.contains(PduFlags::LAST);
        let (data, incoming) = match self.table.phase_mut(slot) {
            Phase::Receiving { data, .. } => (data, Incoming::Write { slot, offset }),
            Phase::Draining { data } => (data, Incoming::Drain(slot)),
            _ => unreachable!("just matched"),
        };
        data.on_h2c_data(window, offset, length, is_last)?;
        self.incoming = incoming;
        Ok(())
    }

    #[inline]
    fn on_data(&mut self, bytes: &[u8]) {
        match &mut self.incoming {
            Incoming::Capsule(_) => self.assembly.extend_from_slice(bytes),
            Incoming::Write { slot, offset } => {
                let at = *offset as usize;
                *offset += u32::try_from(bytes.len()).expect("at most a PDU");
                // The command may have been completed (aborted) meanwhile: its bytes are dropped then.
                if let Phase::Receiving { buffer, .. } = self.table.phase_mut(*slot) {
                    buffer.as_mut()[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
            Incoming::None | Incoming::Drain(_) | Incoming::Refused { .. } => {}
        }
    }

    fn on_end(&mut self, is_pdu_intact: bool) -> Option<Event<'static>> {
        match std::mem::replace(&mut self.incoming, Incoming::None) {
            Incoming::Refused { cid, status } => Some(self.refuse(cid, status)),
            Incoming::Write { slot, .. } | Incoming::Drain(slot) => match self.table.phase_mut(slot) {
                Phase::Receiving { data, is_intact, .. } => {
                    *is_intact &= is_pdu_intact;
                    if data.is_complete() {
                        return Some(Event::DataReceived { slot, is_intact: *is_intact });
                    }
                    self.push_r2ts(slot);
                    None
                }
                Phase::Draining { data } => {
                    if !data.is_owed() {
                        self.table.drained(slot);
                    }
                    None
                }
                _ => None,
            },
            Incoming::None | Incoming::Capsule(_) => None,
        }
    }

    /// Where the bytes that come next may be received into directly, without a copy: the rest of the PDU's data in
    /// its command's buffer. `None` if the next bytes are anything else.
    pub fn place(&mut self) -> Option<&mut [u8]> {
        let left = self.framer.data_left() as usize;
        match self.incoming {
            Incoming::Write { slot, offset } if left > 0 => match self.table.phase_mut(slot) {
                Phase::Receiving { buffer, .. } => {
                    Some(&mut buffer.as_mut()[offset as usize..offset as usize + left])
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
        let Incoming::Write { slot, offset } = &mut self.incoming else { return Ok(()) };
        let start = *offset as usize;
        *offset += u32::try_from(count).expect("at most a PDU");
        if let Phase::Receiving { buffer, .. } = self.table.phase_mut(*slot) {
            let mut placed = &buffer.as_ref()[start..start + count];
            while !placed.is_empty() && self.framer.next_frame(&mut placed)?.is_some() {}
        }
        Ok(())
    }

    /// Asks for the `length` bytes of data of a command, which go to the front of `buffer`.
    ///
    /// # Panics
    /// If the buffer is shorter, the length 0, or the data was asked for before.
    pub fn request_data(&mut self, slot: Slot, buffer: B, length: u32) {
        assert!(length > 0 && buffer.as_ref().len() >= length as usize, "room for {length} bytes");
        let phase = self.table.phase_mut(slot);
        assert!(matches!(phase, Phase::Executing), "asked for once, by a command that executes");
        *phase = Phase::Receiving { data: WriteData::new(length), buffer, is_intact: true };
        self.push_r2ts(slot);
    }

    fn push_r2ts(&mut self, slot: Slot) {
        let digests = self.agreement.digests;
        let cid = U16::new(self.table.entry(slot).cid);
        let window_limit = self.agreement.r2t_limit as usize;
        while let Phase::Receiving { data, .. } = self.table.phase_mut(slot)
            && let Some((window, range)) = data.grant(self.settings.window_bytes, window_limit)
        {
            let tag = self.table.tag(slot, window);
            let pdu = R2t::new(digests, cid, tag, range.start, range.end - range.start);
            self.caravan.push_header(pdu.as_bytes(), digests.contains(Digests::HEADER), 0);
        }
    }

    /// Takes the buffer of a command whose data is received.
    ///
    /// # Panics
    /// If its data is not complete.
    pub fn take_buffer(&mut self, slot: Slot) -> B {
        match std::mem::replace(self.table.phase_mut(slot), Phase::Executing) {
            Phase::Receiving { data, buffer, .. } if data.is_complete() => buffer,
            _ => panic!("no data has been received for {slot:?}"),
        }
    }

    /// Completes a command. Data that was asked for and is still to come will be dropped.
    #[inline]
    pub fn complete(&mut self, slot: Slot, status: Status, result: u64) {
        let cid = self.table.entry(slot).cid;
        self.table.complete(slot);
        self.push_completion(cid, status, result);
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
        let cid = self.table.entry(slot).cid;
        self.table.complete(slot);
        if length == 0 {
            return self.push_completion(cid, Status::SUCCESS, result);
        }
        // Without SQ flow control no completion need carry the head, so the last data may stand for it. wire §4.2
        let success = self.submission.is_flow_control_disabled && result == 0;
        let last = if success { PduFlags::LAST | PduFlags::SUCCESS } else { PduFlags::LAST };
        let digests = self.agreement.digests;
        self.caravan.push_payload(payload);
        let mut start = 0;
        while start < length {
            let end = length.min(start.saturating_add(self.settings.c2h_data_bytes.max(4)));
            let is_last = end == length;
            let layout = PduLayout::new(PduType::C2hData, digests, self.agreement.to_host, end - start)
                .expect("data of at most 4 GiB less a PDU's worth");
            let flags = if is_last { last } else { PduFlags::empty() };
            let pdu = DataPdu::c2h(&layout, U16::new(cid), start, flags);
            let has_digest = digests.contains(Digests::HEADER);
            let header_length = PduLayout::without_data(PduType::C2hData, digests).plen();
            let padding = usize::from(layout.pdo()) - header_length as usize;
            self.caravan.push_header(pdu.as_bytes(), has_digest, padding);
            self.caravan.push_range(start..end, is_last);
            if digests.contains(Digests::DATA) {
                let digest = digest(self.caravan.last_payload(), start as usize..end as usize);
                self.caravan.push_bytes(&digest.to_le_bytes());
            }
            start = end;
        }
        if !success {
            self.push_completion(cid, Status::SUCCESS, result);
        }
    }

    #[inline]
    fn push_completion(&mut self, cid: u16, status: Status, result: u64) {
        // Nobody looks at the head without flow control; 0xFFFF says so. wire §5.2
        let head = if self.submission.is_flow_control_disabled { 0xffff } else { self.submission.head };
        let digests = self.agreement.digests;
        let pdu = CapsuleResp::new(digests, Cqe::new(U16::new(cid), head, status).with_result(result));
        self.caravan.push_header(pdu.as_bytes(), digests.contains(Digests::HEADER), 0);
    }

    /// The live command with this cid.
    #[must_use]
    pub fn find(&self, cid: u16) -> Option<Slot> {
        self.table.find(cid).filter(|&slot| !matches!(self.table.entry(slot).phase, Phase::Assembling(_)))
    }

    /// The id of a live command.
    #[must_use]
    pub fn cid(&self, slot: Slot) -> u16 {
        self.table.entry(slot).cid
    }

    /// Whether the command waits for data that was asked for.
    #[must_use]
    pub fn awaits_data(&self, slot: Slot) -> bool {
        matches!(self.table.entry(slot).phase, Phase::Receiving { .. })
    }

    /// Commands that have not been completed.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.table.live_count()
    }

    /// Whether a PDU is on its way in: its first byte is here, its last is not.
    #[must_use]
    pub fn is_within_pdu(&self) -> bool {
        !self.framer.is_between_pdus()
    }

    /// What is to be sent.
    #[inline]
    pub fn caravan(&mut self) -> &mut Caravan<P> {
        &mut self.caravan
    }

    /// Ends the queue because the host broke the transport: what waits is dropped, a TermReq takes its place if one
    /// is due. Says whether there is one to send.
    pub fn fail(&mut self, violation: Violation) -> bool {
        self.caravan.drop_waiting(drop);
        match term_req(Sender::Host, violation, self.framer.offending_header()) {
            Some(bytes) => {
                self.caravan.push_bytes(&bytes);
                true
            }
            None => false,
        }
    }

    /// Forgets all commands, for a lane that ends. `gone` gets the slots of those the driver has.
    pub fn clear(&mut self, gone: impl FnMut(Slot)) {
        self.incoming = Incoming::None;
        self.table.clear(gone);
    }

    /// Gives memory back that an idle lane does not need.
    pub fn shrink(&mut self) {
        if matches!(self.incoming, Incoming::None) {
            self.assembly = Vec::new();
            self.table.shrink();
        }
        self.caravan.shrink();
    }
}
