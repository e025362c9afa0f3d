//! The target's end of one connection without a socket: bytes in, events, bytes out.

use std::collections::{HashMap, HashSet, VecDeque};

use wire::cqe::Cqe;
use wire::digest::{DIGEST_BYTES, data_digest, header_digest};
use wire::pdu::{
    CapsuleCmd, CommonHeader, DataAlignment, DataPdu, Digests, IcReq, IcResp, PduFlags, PduType, TermReq,
};
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::{FromBytes, IntoBytes};

use crate::finding::{Check, differs, holds};
use crate::pdu::{Draft, Form, cut};

/// In-capsule data that every controller accepts on its admin queue, and by default, bytes.
pub const IN_CAPSULE_BYTES: u32 = 8192;

/// Longest PDU that is accepted, bytes.
const PLEN_MAX: u32 = 2 << 20;

/// A PDU from the host, the end of a data transfer from the host, or the end of the connection.
#[derive(Clone, Debug)]
pub enum Event {
    /// An ICReq.
    IcReq(Box<IcReq>),
    /// A command capsule.
    Command {
        /// The command.
        sqe: Sqe,
        /// In-capsule data.
        data: Vec<u8>,
    },
    /// All data that [`TargetEnd::ask`] asked for has arrived.
    Asked {
        /// The command.
        sqe: Sqe,
        /// The data.
        data: Vec<u8>,
    },
    /// An H2CData PDU that answers no R2T of [`TargetEnd::ask`].
    Data {
        /// Its header.
        header: Box<DataPdu>,
        /// The data.
        data: Vec<u8>,
    },
    /// An H2CTermReq.
    TermReq {
        /// Fatal error status.
        fes: u16,
        /// Fatal error information.
        fei: u32,
    },
    /// The host closed the connection.
    Closed,
}

/// Transfer limits of a target.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// CPDA: alignment of data from the host.
    pub alignment: DataAlignment,
    /// MAXH2CDATA, bytes.
    pub h2c_data_bytes: u32,
    /// Most in-capsule data of a command, bytes; a fault may report any limit, so the default checks none.
    pub in_capsule_bytes: u64,
    /// Most bytes of one R2T.
    pub window_bytes: u32,
    /// Most bytes of one C2HData PDU.
    pub c2h_data_bytes: u32,
    /// Whether the last C2HData PDU of a read carries SUCCESS in place of a completion.
    pub ends_reads_with_data: bool,
}

impl Limits {
    /// An ICResp with these limits and the digests that the host asks for.
    pub fn ic_resp(&self, request: &IcReq) -> IcResp {
        IcResp::new(self.alignment, request.dgst, self.h2c_data_bytes)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            alignment: DataAlignment::NONE,
            h2c_data_bytes: 128 << 10,
            in_capsule_bytes: u64::MAX,
            window_bytes: 1 << 20,
            c2h_data_bytes: 1 << 20,
            ends_reads_with_data: false,
        }
    }
}

/// The answer to a command.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: Status,
    /// Its result.
    pub result: u64,
    /// Data for the host, sent first; none unless the status is success.
    pub data: Vec<u8>,
}

impl Reply {
    /// Success.
    pub const DONE: Self = Self { status: Status::SUCCESS, result: 0, data: Vec::new() };

    /// This status.
    pub fn status(status: Status) -> Self {
        Self { status, ..Self::DONE }
    }

    /// Success with a result.
    pub fn result(result: u64) -> Self {
        Self { result, ..Self::DONE }
    }

    /// Success with data.
    pub fn data(data: Vec<u8>) -> Self {
        Self { data, ..Self::DONE }
    }
}

/// Data of a command that R2Ts ask for.
#[derive(Debug)]
struct Asked {
    sqe: Sqe,
    start: u32,
    /// End of the open window.
    window_end: u32,
    end: u32,
    data: Vec<u8>,
}

/// The target's end of one connection.
#[derive(Debug)]
pub struct TargetEnd {
    /// Layout of PDUs in both directions.
    pub form: Form,
    /// Transfer limits.
    pub limits: Limits,
    /// Entries of the queue, once it is connected.
    pub entries: Option<u32>,
    received: Vec<u8>,
    sent: VecDeque<Vec<u8>>,
    /// Open windows by tag.
    asked: HashMap<u16, Asked>,
    next_ttag: u16,
    /// Identifiers of outstanding commands; `None` if they are not counted.
    open: Option<HashSet<u16>>,
}

impl TargetEnd {
    /// The end of a connection that nothing was received on.
    pub fn new(limits: Limits) -> Self {
        Self {
            form: Form::PLAIN,
            limits,
            entries: None,
            received: Vec::new(),
            sent: VecDeque::new(),
            asked: HashMap::new(),
            next_ttag: 0x7A67,
            open: Some(HashSet::new()),
        }
    }

    /// Accepts bytes from the host.
    pub fn on_bytes(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// Whether part of a PDU was received.
    pub fn is_within_pdu(&self) -> bool {
        !self.received.is_empty()
    }

    /// The next event in the bytes received. Every PDU is checked.
    ///
    /// # Errors
    /// The PDU is malformed, or not one that a host may send now.
    pub fn next_event(&mut self) -> Check<Option<Event>> {
        while let Some((kind, header, bytes)) = self.next_pdu()? {
            match self.read(kind, header, &bytes)? {
                Event::Data { header, data } if self.asked.contains_key(&header.ttag.get()) => {
                    if let Some(event) = self.on_data(&header, &data)? {
                        return Ok(Some(event));
                    }
                }
                event => {
                    if let Event::Command { sqe, data } = &event {
                        self.admit(sqe, data)?;
                    }
                    return Ok(Some(event));
                }
            }
        }
        Ok(None)
    }

    /// Cuts the next PDU from the bytes received.
    fn next_pdu(&mut self) -> Check<Option<(PduType, CommonHeader, Vec<u8>)>> {
        let Some(common) = self.received.first_chunk::<8>() else { return Ok(None) };
        let header: CommonHeader = zerocopy::transmute!(*common);
        let Some(kind) = header.pdu_type().ok().filter(|kind| kind.is_from_host()) else {
            return differs(format!("the host sends a PDU of type {:#04x}", common[0]));
        };
        let (hlen, plen) = (kind.header_length(), header.plen.get());
        let is_right = header.hlen == hlen && (u32::from(hlen)..=PLEN_MAX).contains(&plen);
        holds(is_right, format!("the host's {kind:?} has HLEN {} and PLEN {plen}", header.hlen))?;
        Ok(cut(&mut self.received).map(|bytes| (kind, header, bytes)))
    }

    fn read(&self, kind: PduType, header: CommonHeader, bytes: &[u8]) -> Check<Event> {
        let hlen = usize::from(kind.header_length());
        if kind.may_carry_header_digest() && self.form.digests.contains(Digests::HEADER) {
            let digest = header_digest(&bytes[..hlen]).to_le_bytes();
            holds(
                bytes.get(hlen..hlen + DIGEST_BYTES) == Some(&digest[..]),
                "the host's header digest is wrong",
            )?;
        }
        let has_data = kind.may_carry_data() && header.pdo != 0;
        let mut data = Vec::new();
        if has_data {
            let trailer = if self.form.digests.contains(Digests::DATA) { DIGEST_BYTES } else { 0 };
            let end = bytes.len() - trailer;
            data = bytes.get(header.pdo.into()..end).unwrap_or_default().to_vec();
            let digest = data_digest(&data).to_le_bytes();
            holds(trailer == 0 || bytes[end..] == digest, "the host's data digest is wrong")?;
        }
        Ok(match kind {
            PduType::IcReq => Event::IcReq(Box::new(IcReq::read_from_bytes(bytes).expect("128 bytes"))),
            PduType::CapsuleCmd => {
                let (capsule, _) = CapsuleCmd::read_from_prefix(bytes).expect("72 bytes");
                Event::Command { sqe: capsule.sqe, data }
            }
            PduType::H2cData => {
                let (header, _) = DataPdu::read_from_prefix(bytes).expect("24 bytes");
                Event::Data { header: Box::new(header), data }
            }
            _ => {
                let (header, _) = TermReq::read_from_prefix(bytes).expect("24 bytes");
                Event::TermReq { fes: header.fes.get(), fei: header.fei.get() }
            }
        })
    }

    /// Checks a command against the limits of its queue.
    fn admit(&mut self, sqe: &Sqe, data: &[u8]) -> Check {
        let limit = self.limits.in_capsule_bytes.max(IN_CAPSULE_BYTES.into());
        holds(
            data.len() as u64 <= limit,
            format!("{} bytes of in-capsule data, the limit is {limit}", data.len()),
        )?;
        let Some(open) = &mut self.open else { return Ok(()) };
        let cid = sqe.cid.get();
        holds(open.insert(cid), format!("a command with the identifier {cid:#06x} is outstanding"))?;
        match self.entries {
            Some(entries) => holds(
                open.len() < entries as usize,
                format!("{} commands in a queue of {entries} entries", open.len()),
            ),
            None => Ok(()),
        }
    }

    /// Checks an H2CData PDU against the window it belongs to.
    fn on_data(&mut self, header: &DataPdu, data: &[u8]) -> Check<Option<Event>> {
        let ttag = header.ttag.get();
        let Some(mut asked) = self.asked.remove(&ttag) else { return Ok(None) };
        let at = asked.start + u32::try_from(asked.data.len()).expect("within 4 GiB");
        let next = at + u32::try_from(data.len()).expect("within a PDU");
        holds(header.cid == asked.sqe.cid, "H2CData for another command than its tag's")?;
        holds(header.offset.get() == at, "H2CData at another offset than the next")?;
        holds(header.length.get() as usize == data.len(), "DATAL does not fit PLEN")?;
        holds(data.len() <= self.limits.h2c_data_bytes as usize, "H2CData is longer than MAXH2CDATA")?;
        holds(next <= asked.window_end, "H2CData goes beyond its window")?;
        let is_last = header.common.flags.contains(PduFlags::LAST);
        holds(is_last == (next == asked.window_end), "LAST is not on the last H2CData")?;
        asked.data.extend_from_slice(data);
        if next == asked.end {
            return Ok(Some(Event::Asked { sqe: asked.sqe, data: asked.data }));
        }
        if next == asked.window_end {
            self.open_window(asked, next);
        } else {
            self.asked.insert(ttag, asked);
        }
        Ok(None)
    }

    /// Asks for `length` bytes of a command's data, one window after the other; [`Event::Asked`] follows.
    pub fn ask(&mut self, sqe: &Sqe, offset: u32, length: u32) {
        let end = offset + length;
        let asked = Asked { sqe: *sqe, start: offset, window_end: 0, end, data: Vec::new() };
        self.open_window(asked, offset);
    }

    fn open_window(&mut self, asked: Asked, offset: u32) {
        let length = (asked.end - offset).min(self.limits.window_bytes);
        while self.asked.contains_key(&self.next_ttag) {
            self.next_ttag = self.next_ttag.wrapping_add(1);
        }
        let r2t = Draft::r2t(self.form, asked.sqe.cid.get(), self.next_ttag, offset, length);
        self.sent.push_back(r2t.seal());
        self.asked.insert(self.next_ttag, Asked { window_end: offset + length, ..asked });
        self.next_ttag = self.next_ttag.wrapping_add(1);
    }

    /// Answers the handshake with `response`.
    pub fn shake(&mut self, response: IcResp) {
        self.sent.push_back(response.as_bytes().to_vec());
        self.form = Form { digests: response.dgst, alignment: DataAlignment::NONE };
    }

    /// Answers the handshake with the digests and the alignment that the host asked for.
    pub fn agree(&mut self, request: &IcReq) {
        self.shake(self.limits.ic_resp(request));
        self.form.alignment = request.data_alignment().unwrap_or(DataAlignment::NONE);
    }

    /// Completes a command.
    pub fn complete(&mut self, sqe: &Sqe, status: Status, result: u64) {
        self.set_aside(sqe);
        self.sent.push_back(completion(self.form, sqe, status, result));
    }

    /// Sends the data of a read, without a completion.
    pub fn send_data(&mut self, sqe: &Sqe, data: &[u8]) {
        self.send_data_with(sqe, data, PduFlags::LAST);
    }

    fn send_data_with(&mut self, sqe: &Sqe, data: &[u8], last: PduFlags) {
        let mut offset = 0;
        for part in data.chunks(self.limits.c2h_data_bytes as usize) {
            let next = offset + part.len();
            let flags = if next == data.len() { last } else { PduFlags::empty() };
            let at = u32::try_from(offset).expect("short data");
            self.sent.push_back(Draft::c2h_data(self.form, sqe.cid.get(), at, part, flags).seal());
            offset = next;
        }
    }

    /// Sends a reply.
    pub fn reply(&mut self, sqe: &Sqe, reply: &Reply) {
        if !reply.data.is_empty() && self.limits.ends_reads_with_data && reply.result == 0 {
            self.set_aside(sqe);
            return self.send_data_with(sqe, &reply.data, PduFlags::LAST | PduFlags::SUCCESS);
        }
        self.send_data(sqe, &reply.data);
        self.complete(sqe, reply.status, reply.result);
    }

    /// Does not count a command as outstanding any more: it is answered elsewhere, or never.
    pub fn set_aside(&mut self, sqe: &Sqe) {
        if let Some(open) = &mut self.open {
            open.remove(&sqe.cid.get());
        }
    }

    /// Does not count outstanding commands from now on: bytes are sent that may complete any.
    pub fn stop_counting(&mut self) {
        self.open = None;
    }

    /// The next PDU to send.
    pub fn next_sent(&mut self) -> Option<Vec<u8>> {
        self.sent.pop_front()
    }

    /// All bytes to send.
    pub fn take_sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sent).into_iter().flatten().collect()
    }
}

/// A response capsule for `sqe`.
pub fn completion(form: Form, sqe: &Sqe, status: Status, result: u64) -> Vec<u8> {
    Draft::completion(form, Cqe::new(sqe.cid, 0, status).with_result(result)).seal()
}
