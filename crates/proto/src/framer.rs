//! Any split of bytes into whole PDUs, their headers checked. wire §2, §3
//!
//! The framer copies a header into itself, checks it as early as it can (everything that follows from the first
//! 8 bytes is decided on those), verifies its digest and hands it out. Data is never copied: it is handed out as
//! slices of the input, and its digest is computed on the way.

use wire::cqe::Cqe;
use wire::digest::{DIGEST_BYTES, DataDigest, header_digest};
use wire::pdu::{
    COMMON_HEADER_BYTES, CapsuleCmd, CapsuleResp, CommonHeader, DataAlignment, DataPdu, Digests,
    FatalErrorStatus, HEADER_BYTES_MAX, IcReq, IcResp, PduFlags, PduType, R2t, TERM_REQ_BYTES,
    TERM_REQ_COPY_BYTES_MAX, TermReq,
};
use wire::sqe::Sqe;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::violation::Violation;

/// Whose PDUs a framer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// We are a controller: ICReq, CapsuleCmd, H2CData, H2CTermReq.
    Host,
    /// We are a host: ICResp, CapsuleResp, C2HData, R2T, C2HTermReq.
    Controller,
}

/// A PDU header whose every field that stands by itself is right.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // Lives on the stack for a moment; a box would be an allocation per PDU.
pub enum Header {
    /// Host's half of the handshake.
    IcReq(IcReq),
    /// Controller's half of the handshake.
    IcResp(IcResp),
    /// A command with so many bytes of data in its capsule.
    Command(Sqe, u32),
    /// A completion.
    Response(Cqe),
    /// Data of a write.
    H2cData(DataPdu),
    /// Data of a read.
    C2hData(DataPdu),
    /// A window of a write.
    R2t(R2t),
}

/// A piece of the stream.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // See `Header`.
pub enum Frame<'a> {
    /// A PDU begins. Its data, if it has any, follows before the next header.
    Header(Header),
    /// The next bytes of the PDU's data, at least one.
    Data(&'a [u8]),
    /// The data is complete, and matches its digest or not.
    End {
        /// Whether the data digest matches; true if there is none.
        is_intact: bool,
    },
}

/// Most bytes of data a PDU may carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataLimits {
    /// In a command capsule.
    pub capsule_bytes_max: u32,
    /// In an H2CData or C2HData.
    pub data_pdu_bytes_max: u32,
}

/// Cuts one direction of a connection into PDUs.
///
/// ```text
/// Header ──▶ Padding ──▶ Data ──▶ Digest ──▶ Header
///    └─(no data)──▶ Header       (each step as far as there is one)
///    any ──violation──▶ Failed
/// ```
#[derive(Debug)]
pub struct Framer {
    sender: Sender,
    is_initialised: bool,
    digests: Digests,
    alignment: DataAlignment,
    limits: DataLimits,
    header: [u8; HEADER_BYTES_MAX + DIGEST_BYTES],
    /// Bytes of `header` that are there.
    have: u8,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The header is incomplete; once 8 bytes are there, `need` says how long it is with its digest.
    Header { need: u8 },
    /// A header was handed out; so many bytes of padding come before its data.
    Padding { left: u8, data: u32 },
    /// So many bytes of data are to come.
    Data { left: u32, digest: DataDigest },
    /// The data is complete, its digest is not.
    Digest { have: u8, bytes: [u8; DIGEST_BYTES], computed: u32 },
    /// The data is complete; its end has not been handed out.
    End { is_intact: bool },
    /// Nothing can be told from further bytes.
    Failed,
}

/// Bytes of the header every PDU begins with, and of a digest, in the types that this arithmetic is done in.
const COMMON_LENGTH: u8 = 8;
const DIGEST_LENGTH: u8 = 4;
const _: () = assert!(COMMON_HEADER_BYTES == 8 && DIGEST_BYTES == 4);

/// What a TermReq may be long, bytes. wire §2.4
const TERM_REQ_LENGTHS: std::ops::RangeInclusive<u32> = 24..=152;
const _: () = assert!(TERM_REQ_BYTES == 24 && TERM_REQ_BYTES + TERM_REQ_COPY_BYTES_MAX == 152);

const START: State = State::Header { need: COMMON_LENGTH };

impl Framer {
    /// A framer for a connection before its handshake.
    #[must_use]
    pub fn new(sender: Sender) -> Self {
        Self {
            sender,
            is_initialised: false,
            digests: Digests::empty(),
            alignment: DataAlignment::NONE,
            limits: DataLimits::default(),
            header: [0; HEADER_BYTES_MAX + DIGEST_BYTES],
            have: 0,
            state: START,
        }
    }

    /// The handshake is done: these digests, this alignment and these limits hold for what the sender sends from
    /// now on.
    pub fn initialise(&mut self, digests: Digests, alignment: DataAlignment, limits: DataLimits) {
        debug_assert!(matches!(self.state, State::Header { .. }) && self.have == 0, "between PDUs");
        self.is_initialised = true;
        self.digests = digests;
        self.alignment = alignment;
        self.limits = limits;
    }

    /// The next piece of the stream, taken from the front of `input`; `None` when all of it is taken in.
    ///
    /// # Errors
    /// What is wrong with the PDU that begins. Nothing can be framed after an error.
    #[inline]
    pub fn next_frame<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Frame<'a>>, Violation> {
        match self.state {
            State::Header { .. } => self.on_header_bytes(input),
            State::Padding { .. } | State::Data { .. } | State::Digest { .. } | State::End { .. } => {
                Ok(self.on_data_bytes(input))
            }
            State::Failed => Err(Violation::Sequence),
        }
    }

    /// Bytes of data that the PDU at hand still brings, after padding that is already in; 0 if none or not yet.
    #[inline]
    #[must_use]
    pub fn data_left(&self) -> u32 {
        match self.state {
            State::Data { left, .. } | State::Padding { left: 0, data: left } => left,
            _ => 0,
        }
    }

    /// Whether the stream stands between two PDUs.
    #[must_use]
    pub fn is_between_pdus(&self) -> bool {
        self.have == 0 && matches!(self.state, State::Header { .. })
    }

    /// Bytes of the header at hand or, after a violation, of the one that broke the rules: at most 128.
    #[must_use]
    pub fn offending_header(&self) -> &[u8] {
        let length = usize::from(self.have).min(TERM_REQ_COPY_BYTES_MAX);
        &self.header[..length]
    }

    fn on_header_bytes<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Frame<'a>>, Violation> {
        loop {
            let State::Header { need } = self.state else { unreachable!("the caller looked") };
            self.take_header_bytes(need, input);
            if self.have < need {
                return Ok(None);
            }
            if need > COMMON_LENGTH {
                break;
            }
            let need = self.on_common_header().inspect_err(|_| self.state = State::Failed)?;
            self.state = State::Header { need };
        }
        let header = self.on_whole_header().inspect_err(|_| self.state = State::Failed)?;
        Ok(Some(Frame::Header(header)))
    }

    #[inline]
    fn take_header_bytes(&mut self, need: u8, input: &mut &[u8]) {
        let count = usize::from(need - self.have).min(input.len());
        let (taken, rest) = input.split_at(count);
        let have = usize::from(self.have);
        self.header[have..have + count].copy_from_slice(taken);
        *input = rest;
        self.have += u8::try_from(count).expect("at most a header");
    }

    fn common(&self) -> CommonHeader {
        self.read()
    }

    fn read<T: FromBytes + KnownLayout + Immutable>(&self) -> T {
        T::read_from_prefix(&self.header).expect("headers fit").0
    }

    /// Everything that the first 8 bytes tell. Returns the length of header and digest.
    fn on_common_header(&mut self) -> Result<u8, Violation> {
        let common = self.common();
        let kind = self.expected_type(common.kind)?;
        if kind.is_term_req() {
            // One that is malformed itself is no reason to send one. wire §2.4
            if common.hlen != kind.header_length() || !TERM_REQ_LENGTHS.contains(&common.plen.get()) {
                return Err(Violation::MalformedTermReq);
            }
            return Ok(kind.header_length());
        }
        if common.hlen != kind.header_length() {
            return Err(Violation::HeaderField { offset: 2 });
        }
        self.check_flags(kind, common)?;
        let prefix = self.prefix_length(kind);
        self.check_lengths(kind, common, prefix.into())?;
        Ok(prefix)
    }

    /// The type, if it is one that this sender may send now.
    fn expected_type(&self, raw: u8) -> Result<PduType, Violation> {
        let handshake = match self.sender {
            Sender::Host => PduType::IcReq,
            Sender::Controller => PduType::IcResp,
        };
        let kind = PduType::try_from(raw);
        if let Ok(kind) = kind
            && kind.is_term_req()
            && kind.is_from_host() == (self.sender == Sender::Host)
        {
            return Ok(kind);
        }
        if !self.is_initialised {
            return if kind == Ok(handshake) { Ok(handshake) } else { Err(Violation::Sequence) };
        }
        match kind {
            Ok(kind) if kind == handshake => Err(Violation::Sequence),
            Ok(kind) if kind.is_from_host() == (self.sender == Sender::Host) => Ok(kind),
            _ => Err(Violation::HeaderField { offset: 0 }),
        }
    }

    fn check_flags(&self, kind: PduType, common: CommonHeader) -> Result<(), Violation> {
        let flags = common.flags;
        let allowed = match kind {
            PduType::H2cData => PduFlags::HDGST | PduFlags::DDGST | PduFlags::LAST,
            PduType::C2hData => PduFlags::all(),
            _ => PduFlags::HDGST | PduFlags::DDGST,
        };
        let header_digest = self.digests.contains(Digests::HEADER) && kind.may_carry_header_digest();
        let has_data = common.plen.get() > self.prefix_length(kind).into();
        let data_digest = self.digests.contains(Digests::DATA);
        let is_right = flags.bits() & !allowed.bits() == 0
            && flags.contains(PduFlags::HDGST) == header_digest
            // Peers differ in what they set on a PDU without data.
            && (flags.contains(PduFlags::DDGST) == data_digest || (data_digest && !has_data));
        if is_right { Ok(()) } else { Err(Violation::HeaderField { offset: 1 }) }
    }

    /// Length of the header with its digest, if it has one.
    fn prefix_length(&self, kind: PduType) -> u8 {
        let digest = self.digests.contains(Digests::HEADER) && kind.may_carry_header_digest();
        kind.header_length() + if digest { DIGEST_LENGTH } else { 0 }
    }

    /// Where the data begins, its end, and that both fit the type.
    fn check_lengths(&self, kind: PduType, common: CommonHeader, prefix: u32) -> Result<(), Violation> {
        const PDO: Violation = Violation::HeaderField { offset: 3 };
        const PLEN: Violation = Violation::HeaderField { offset: 4 };
        let (pdo, plen) = (u32::from(common.pdo), common.plen.get());
        if plen < prefix {
            return Err(PLEN);
        }
        if plen == prefix {
            return if pdo == 0 { Ok(()) } else { Err(PDO) };
        }
        if !kind.may_carry_data() {
            return Err(PLEN);
        }
        let data_starts = prefix.next_multiple_of(self.alignment.bytes().into());
        let trailer = self.trailer_length();
        // Too long first: nothing else about such a PDU matters.
        let (limit, too_long) = match kind {
            PduType::CapsuleCmd => (self.limits.capsule_bytes_max, PLEN),
            _ => (self.limits.data_pdu_bytes_max, Violation::LimitExceeded),
        };
        if plen > data_starts.saturating_add(limit).saturating_add(trailer) {
            return Err(too_long);
        }
        if pdo != data_starts {
            return Err(PDO);
        }
        if plen <= data_starts + trailer { Err(PLEN) } else { Ok(()) }
    }

    fn on_whole_header(&mut self) -> Result<Header, Violation> {
        let common = self.common();
        let kind = PduType::try_from(common.kind).expect("checked with the common header");
        if kind.is_term_req() {
            let ended: TermReq = self.read();
            return Err(Violation::EndedByPeer { fes: ended.status(), fei: ended.fei.get() });
        }
        let hlen = usize::from(common.hlen);
        if usize::from(self.have) > hlen {
            let received = self.header[hlen..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            if received != header_digest(&self.header[..hlen]) {
                return Err(Violation::HeaderDigest { received });
            }
        }
        let data = self.data_length(common);
        let header = match kind {
            PduType::CapsuleCmd => Header::Command(self.read::<CapsuleCmd>().sqe, data),
            PduType::CapsuleResp => Header::Response(self.read::<CapsuleResp>().cqe),
            PduType::H2cData => Header::H2cData(self.read_data(data)?),
            PduType::C2hData => Header::C2hData(self.read_data(data)?),
            PduType::R2t => Header::R2t(self.read()),
            PduType::IcReq => Header::IcReq(self.read()),
            PduType::IcResp => Header::IcResp(self.read()),
            PduType::H2cTermReq | PduType::C2hTermReq => unreachable!("handled above"),
        };
        self.state = match data {
            0 => START,
            // The prefix is in; the rest up to pdo is padding.
            _ => State::Padding { left: common.pdo - self.have, data },
        };
        self.have = 0;
        Ok(header)
    }

    fn read_data(&self, data: u32) -> Result<DataPdu, Violation> {
        let pdu: DataPdu = self.read();
        // A data PDU without data, or whose length field says other than its framing.
        if data == 0 || pdu.length.get() != data {
            return Err(Violation::HeaderField { offset: 16 });
        }
        Ok(pdu)
    }

    /// Bytes of data in the PDU, whose lengths are checked.
    fn data_length(&self, common: CommonHeader) -> u32 {
        if common.pdo == 0 {
            return 0;
        }
        common.plen.get() - u32::from(common.pdo) - self.trailer_length()
    }

    /// Length of the data digest of a PDU with data.
    fn trailer_length(&self) -> u32 {
        if self.digests.contains(Digests::DATA) { DIGEST_LENGTH.into() } else { 0 }
    }

    #[inline]
    fn on_data_bytes<'a>(&mut self, input: &mut &'a [u8]) -> Option<Frame<'a>> {
        loop {
            match self.state {
                State::Padding { left: 0, data } => {
                    self.state = State::Data { left: data, digest: DataDigest::new() };
                }
                State::Padding { left, data } => {
                    let count = usize::from(left).min(input.len());
                    *input = &input[count..];
                    let left = left - u8::try_from(count).expect("at most the padding");
                    self.state = State::Padding { left, data };
                    if left > 0 {
                        return None;
                    }
                }
                State::Data { left: 0, digest } => {
                    self.state = if self.digests.contains(Digests::DATA) {
                        State::Digest { have: 0, bytes: [0; DIGEST_BYTES], computed: digest.finish() }
                    } else {
                        State::End { is_intact: true }
                    };
                }
                State::Data { left, mut digest } => {
                    let count = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    if count == 0 {
                        return None;
                    }
                    let (taken, rest) = input.split_at(count);
                    *input = rest;
                    if self.digests.contains(Digests::DATA) {
                        digest.update(taken);
                    }
                    let left = left - u32::try_from(count).expect("at most what was left");
                    self.state = State::Data { left, digest };
                    return Some(Frame::Data(taken));
                }
                State::Digest { have, mut bytes, computed } => {
                    let at = usize::from(have);
                    let count = (DIGEST_BYTES - at).min(input.len());
                    let (taken, rest) = input.split_at(count);
                    bytes[at..at + count].copy_from_slice(taken);
                    *input = rest;
                    if at + count < DIGEST_BYTES {
                        let have = have + u8::try_from(count).expect("at most a digest");
                        self.state = State::Digest { have, bytes, computed };
                        return None;
                    }
                    self.state = State::End { is_intact: u32::from_le_bytes(bytes) == computed };
                }
                State::End { is_intact } => {
                    self.state = START;
                    return Some(Frame::End { is_intact });
                }
                State::Header { .. } | State::Failed => return None,
            }
        }
    }
}

/// The TermReq for a violation: header and copy of what offended. `None` if none may be sent. wire §2.4
#[must_use]
pub fn term_req(sender: Sender, violation: Violation, offending: &[u8]) -> Option<Vec<u8>> {
    use zerocopy::IntoBytes;
    let (fes, fei): (FatalErrorStatus, u32) = violation.term_req()?;
    let copy = &offending[..offending.len().min(TERM_REQ_COPY_BYTES_MAX)];
    let copy_length = u8::try_from(copy.len()).expect("at most 128");
    let header = match sender {
        Sender::Host => TermReq::from_controller(fes, fei, copy_length),
        Sender::Controller => TermReq::from_host(fes, fei, copy_length),
    };
    Some([header.as_bytes(), copy].concat())
}
