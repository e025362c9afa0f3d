//! The framer: turns received bytes, split in any way, into whole PDUs with checked headers. wire §2, §3, §4.3
//!
//! It copies each header into itself, checks it as early as possible (the first 8 bytes decide most of it), verifies
//! its digest and reports its type. Data is never copied: the framer hands it out as slices of the input and computes
//! its digest on the way.

use wire::digest::{DIGEST_BYTES, header_digest};
use wire::pdu::{
    CAPSULE_CMD_BYTES, COMMON_HEADER_BYTES, CommonHeader, DATA_BYTES, DataAlignment, DataPdu, Digests,
    FatalErrorStatus, HEADER_BYTES_MAX, PduFlags, PduLayout, PduType, TERM_REQ_BYTES,
    TERM_REQ_COPY_BYTES_MAX, TermReq,
};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::data_digest::{DataDigest, data_digest};
use crate::violation::Violation;

/// The end of the connection whose PDUs a framer accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The host; we are the controller: ICReq, CapsuleCmd, H2CData, H2CTermReq.
    Host,
    /// The controller; we are the host: ICResp, CapsuleResp, C2HData, R2T, C2HTermReq.
    Controller,
}

/// A piece of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// The header of a PDU of this type, never a TermReq, whose fields are valid by themselves: read it with
    /// [`Framer::header`]. The number is the bytes of data that follow before the next header.
    Header(PduType, u32),
    /// The next bytes of the PDU's data, at least one.
    Data(&'a [u8]),
    /// The end of a PDU's data.
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

/// The state of one direction of a connection that is cut into PDUs.
///
/// ```text
/// Between ──▶ Header ──▶ Padding ──▶ Data ──▶ Digest ──▶ End ──▶ Between
///                └─(no data)──▶ Between       (each step as far as there is one)
///    any ──violation──▶ Failed
/// ```
#[derive(Debug)]
pub struct Framer {
    sender: Sender,
    is_initialised: bool,
    /// Rules for the PDUs that may arrive, by type: the handshake only, then those it allows.
    rules: [Option<Rule>; TYPE_COUNT],
    /// Length of a data digest, bytes; 0 without.
    trailer: u8,
    header: [u8; HEADER_BYTES_MAX + DIGEST_BYTES],
    /// Bytes of `header` that are valid: of the PDU that arrives or, between PDUs, of the last one.
    have: u8,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// No byte of the next PDU has arrived.
    Between,
    /// The header is incomplete: `need` is 8 at first, then its length with its digest, bytes.
    Header { need: u8 },
    /// A header was handed out; `left` bytes of padding and `data` bytes of data follow.
    Padding { left: u8, data: u32 },
    /// `left` bytes of data are still to arrive.
    Data { left: u32, digest: DataDigest },
    /// The data is complete, its digest is not.
    Digest { have: u8, bytes: [u8; DIGEST_BYTES], computed: u32 },
    /// The data is complete; its end has not been handed out.
    End { is_intact: bool },
    /// The peer broke the transport; further bytes have no meaning.
    Failed(Violation),
}

/// The values that the common header of one PDU type must have on this connection.
#[derive(Clone, Copy, Debug)]
struct Rule {
    kind: PduType,
    /// Bytes of the header.
    hlen: u8,
    /// Bytes of the header with its digest.
    prefix: u8,
    /// Where data begins; 0 if the type carries none.
    pdo: u8,
    /// Bytes between the header with its digest and the data.
    padding: u8,
    /// Bytes of a PDU beside its data.
    overhead: u32,
    /// Whether the PDU must carry data, whose length its header repeats.
    is_data_pdu: bool,
    /// Digest flags of a PDU with data.
    digests: PduFlags,
    /// Flags that are not judged: those of the type itself, and the reserved ones. wire §2.1
    more: PduFlags,
    /// Longest PDU, bytes, and the violation of a longer one.
    plen_max: u32,
    too_long: Violation,
    /// The common header of a PDU without data, if that is allowed; the first half of one with data.
    bare: [u8; 8],
    full: [u8; 4],
}

/// PDU types are below this.
const TYPE_COUNT: usize = PduType::R2t as usize + 1;

/// Bytes of the header every PDU begins with, and of a digest, in the type that this arithmetic is done in.
const COMMON_LENGTH: u8 = 8;
const DIGEST_LENGTH: u8 = 4;
const _: () = assert!(COMMON_HEADER_BYTES == 8 && CAPSULE_CMD_BYTES == 72 && DIGEST_BYTES == 4);

/// Valid lengths of a TermReq, bytes. wire §2.4
const TERM_REQ_LENGTHS: std::ops::RangeInclusive<u32> = 24..=152;
const _: () = assert!(TERM_REQ_BYTES == 24 && TERM_REQ_BYTES + TERM_REQ_COPY_BYTES_MAX == 152);

const FLAGS: Violation = Violation::HeaderField { offset: 1 };
const HLEN: Violation = Violation::HeaderField { offset: 2 };
const PDO: Violation = Violation::HeaderField { offset: 3 };
const PLEN: Violation = Violation::HeaderField { offset: 4 };
/// The length field of a data PDU.
const LENGTH: Violation = Violation::HeaderField { offset: 16 };

impl Rule {
    fn new(kind: PduType, digests: Digests, alignment: DataAlignment, limits: DataLimits) -> Self {
        let bare = PduLayout::without_data(kind, digests);
        let (limit, too_long) = match kind {
            PduType::CapsuleCmd => (limits.capsule_bytes_max, PLEN),
            _ => (limits.data_pdu_bytes_max, Violation::LimitExceeded),
        };
        let trailer = trailer_length(digests);
        // Any data begins where one byte of it would.
        let full = PduLayout::new(kind, digests, alignment, 1).unwrap_or(bare);
        let common = |layout: PduLayout| layout.common_header(PduFlags::empty());
        let [bare_bytes, full_bytes]: [[u8; 8]; 2] = zerocopy::transmute!([common(bare), common(full)]);
        let [code, flags, hlen, pdo, ..] = full_bytes;
        let is_data_pdu = matches!(kind, PduType::H2cData | PduType::C2hData);
        Self {
            kind,
            hlen,
            prefix: bare.prefix_length(),
            pdo,
            padding: pdo.saturating_sub(bare.prefix_length()),
            overhead: u32::from(pdo).saturating_add(trailer.into()),
            is_data_pdu,
            digests: full.flags() | if trailer > 0 { PduFlags::DDGST } else { PduFlags::empty() },
            more: if kind.may_carry_header_digest() {
                PduFlags::from_bits_retain(!(PduFlags::HDGST | PduFlags::DDGST).bits())
            } else {
                PduFlags::from_bits_retain(u8::MAX)
            },
            plen_max: u32::from(pdo).saturating_add(limit).saturating_add(trailer.into()),
            too_long,
            // No header is all ones.
            bare: if is_data_pdu { [0xFF; 8] } else { bare_bytes },
            full: [code, flags, hlen, pdo],
        }
    }

    /// Bytes of data of a PDU with this common header.
    ///
    /// # Errors
    /// The violation that the first 8 bytes show.
    #[inline]
    fn data_length(&self, common: [u8; 8]) -> Result<u32, Violation> {
        // The common cases need few comparisons.
        if common == self.bare {
            return Ok(0);
        }
        let [kind, flags, hlen, pdo, plen @ ..] = common;
        let plen = u32::from_le_bytes(plen);
        let full = [kind, flags & !self.more.bits(), hlen, pdo];
        if full == self.full
            && self.pdo != 0
            && plen <= self.plen_max
            && let Some(data @ 1..) = plen.checked_sub(self.overhead)
        {
            return Ok(data);
        }
        self.check(zerocopy::transmute!(common))
    }

    /// Checks field by field, in the order of importance: a PDU that is too long is reported as such first.
    #[cold]
    fn check(&self, common: CommonHeader) -> Result<u32, Violation> {
        let (pdo, plen, prefix) = (common.pdo, common.plen.get(), u32::from(self.prefix));
        if common.hlen != self.hlen {
            return Err(HLEN);
        }
        let flags = common.flags.difference(self.more);
        let has_data = self.pdo != 0 && plen > prefix;
        // Peers differ in whether they set DDGST in a PDU without data.
        if flags != self.digests && (has_data || flags != self.digests.difference(PduFlags::DDGST)) {
            return Err(FLAGS);
        }
        if plen < prefix {
            return Err(PLEN);
        }
        // Without data PDO has no meaning, whatever it is. A data PDU without data is refused later, once its whole
        // header is here.
        if plen == prefix {
            return Ok(0);
        }
        if self.pdo == 0 {
            return Err(PLEN);
        }
        if plen > self.plen_max {
            return Err(self.too_long);
        }
        if pdo != self.pdo {
            return Err(PDO);
        }
        if self.is_data_pdu && plen == pdo.into() {
            return Ok(0);
        }
        plen.checked_sub(self.overhead).filter(|data| *data > 0).ok_or(PLEN)
    }
}

/// Bytes of a data digest, if there is one.
fn trailer_length(digests: Digests) -> u8 {
    if digests.contains(Digests::DATA) { DIGEST_LENGTH } else { 0 }
}

impl Framer {
    /// A framer for a connection before its handshake.
    #[must_use]
    pub fn new(sender: Sender) -> Self {
        let mut framer = Self {
            sender,
            is_initialised: false,
            rules: [None; TYPE_COUNT],
            trailer: 0,
            header: [0; HEADER_BYTES_MAX + DIGEST_BYTES],
            have: 0,
            state: State::Between,
        };
        let kind = framer.handshake();
        framer.allow(&[kind], Digests::empty(), DataAlignment::NONE, DataLimits::default());
        framer
    }

    /// Applies the outcome of the handshake: digests, alignment and limits of the sender's PDUs from now on.
    pub fn initialise(&mut self, digests: Digests, alignment: DataAlignment, limits: DataLimits) {
        debug_assert!(self.is_between_pdus());
        self.is_initialised = true;
        self.trailer = trailer_length(digests);
        match self.sender {
            Sender::Host => {
                self.allow(&[PduType::CapsuleCmd, PduType::H2cData], digests, alignment, limits);
            }
            Sender::Controller => {
                let kinds = [PduType::CapsuleResp, PduType::C2hData, PduType::R2t];
                self.allow(&kinds, digests, alignment, limits);
            }
        }
        self.debug_invariants();
    }

    /// [`invariants`](Self::invariants) in debug builds, after each change.
    #[inline]
    fn debug_invariants(&self) {
        if cfg!(debug_assertions) {
            self.invariants();
        }
    }

    /// Checks that lengths, rules and state agree with each other.
    ///
    /// # Panics
    /// If they do not.
    #[expect(clippy::expect_used, reason = "documented as a panic")]
    pub fn invariants(&self) {
        assert!(usize::from(self.have) <= self.header.len(), "the header has room for {} bytes", self.have);
        for (code, rule) in
            self.rules.iter().enumerate().filter_map(|(code, rule)| Some((code, rule.as_ref()?)))
        {
            assert_eq!(rule.kind as usize, code, "a rule is for its type");
            assert_eq!(
                rule.kind.is_from_host(),
                self.sender == Sender::Host,
                "a rule is for a PDU of the sender"
            );
            assert!(
                self.is_initialised == (rule.kind != self.handshake()),
                "the handshake comes first, once"
            );
            assert!(rule.hlen <= rule.prefix && usize::from(rule.prefix) <= self.header.len(), "{rule:?}");
            let begins = u16::from(rule.prefix).saturating_add(rule.padding.into());
            assert!(rule.pdo == 0 || begins == rule.pdo.into(), "{rule:?}");
            assert_eq!(rule.overhead, u32::from(rule.pdo).saturating_add(self.trailer.into()), "{rule:?}");
            assert!(rule.overhead <= rule.plen_max, "{rule:?}");
        }
        match self.state {
            State::Between | State::Failed(_) => {}
            State::Header { need } => {
                assert!(
                    self.have < need && usize::from(need) <= self.header.len(),
                    "a header that is complete is handed out"
                );
                assert!(need == COMMON_LENGTH || self.have >= COMMON_LENGTH, "the common header comes first");
            }
            State::Padding { left, data } => {
                let rule = self.rule().expect("data of a PDU that may come");
                assert!(
                    left <= rule.padding && data > 0 && data == self.header_data(&rule),
                    "{:?}",
                    self.state
                );
            }
            State::Data { left, .. } => {
                let rule = self.rule().expect("data of a PDU that may come");
                assert!(left <= self.header_data(&rule), "no more data than the header says");
            }
            State::Digest { have, .. } => {
                assert!(
                    have < DIGEST_LENGTH && self.trailer == DIGEST_LENGTH,
                    "a digest that is agreed, and not complete"
                );
            }
            State::End { .. } => unreachable!("the end is handed out with the last byte"),
        }
    }

    /// Bytes of data according to the header.
    fn header_data(&self, rule: &Rule) -> u32 {
        self.header::<CommonHeader>().plen.get().saturating_sub(rule.overhead)
    }

    /// Sets the most bytes of in-capsule data, from the next command capsule on.
    pub fn set_capsule_bytes_max(&mut self, bytes: u32) {
        if let Some(Some(rule)) = self.rules.get_mut(PduType::CapsuleCmd as usize) {
            rule.plen_max = rule.overhead.saturating_add(bytes);
        }
    }

    fn allow(&mut self, kinds: &[PduType], digests: Digests, alignment: DataAlignment, limits: DataLimits) {
        self.rules = [None; TYPE_COUNT];
        for &kind in kinds {
            if let Some(rule) = self.rules.get_mut(kind as usize) {
                *rule = Some(Rule::new(kind, digests, alignment, limits));
            }
        }
    }

    fn handshake(&self) -> PduType {
        match self.sender {
            Sender::Host => PduType::IcReq,
            Sender::Controller => PduType::IcResp,
        }
    }

    /// The next piece of the stream, taken from the front of `input`; `None` when all of `input` is consumed.
    ///
    /// # Errors
    /// The violation of the current PDU. Later calls return the same error.
    #[inline(always)] // Once per PDU, and called from one place in each queue.
    pub fn next_frame<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Frame<'a>>, Violation> {
        let frame = if let State::Between = self.state {
            self.on_header(input).map_err(|violation| self.fail(violation))
        } else {
            self.on_more(input)
        };
        self.debug_invariants();
        frame
    }

    /// Takes bytes of the current PDU's data that were received in place. They are not told as pieces.
    ///
    /// # Errors
    /// As [`next_frame`](Self::next_frame).
    pub(crate) fn on_placed(&mut self, mut bytes: &[u8]) -> Result<(), Violation> {
        while !bytes.is_empty() && self.next_frame(&mut bytes)?.is_some() {}
        Ok(())
    }

    /// The next piece, from within a PDU.
    fn on_more<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Frame<'a>>, Violation> {
        match self.state {
            State::Between | State::Header { .. } => {
                self.on_some_header_bytes(input).map_err(|violation| self.fail(violation))
            }
            State::Padding { .. } | State::Data { .. } | State::Digest { .. } | State::End { .. } => {
                Ok(self.on_data_bytes(input))
            }
            State::Failed(violation) => Err(violation),
        }
    }

    /// The whole data of the PDU whose header was handed out last, and whether it matches its digest, if all of it lies
    /// in `input`. Replaces the data frames of this PDU.
    #[inline]
    pub fn next_whole_data<'a>(&mut self, input: &mut &'a [u8]) -> Option<(&'a [u8], bool)> {
        let State::Padding { left, data } = self.state else { return None };
        let (start, length) = (usize::from(left), usize::try_from(data).ok()?);
        let rest = input.get(start..)?;
        let (data, rest) = rest.split_at_checked(length)?;
        let is_intact = if self.trailer == 0 {
            *input = rest;
            true
        } else {
            let (digest, rest) = rest.split_first_chunk()?;
            *input = rest;
            u32::from_le_bytes(*digest) == data_digest(data)
        };
        self.state = State::Between;
        self.debug_invariants();
        Some((data, is_intact))
    }

    /// The header that was handed out last. `T` is of its type.
    #[inline]
    #[must_use]
    #[expect(clippy::expect_used, reason = "headers fit: it would not compile otherwise")]
    pub fn header<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> &T {
        const { assert!(size_of::<T>() <= HEADER_BYTES_MAX) };
        T::ref_from_prefix(&self.header).expect("headers fit").0
    }

    /// Stops framing because the header handed out last is invalid. Returns the violation to report, which is the first
    /// one.
    #[cold]
    pub fn fail(&mut self, violation: Violation) -> Violation {
        match self.state {
            State::Failed(first) => first,
            _ => {
                self.state = State::Failed(violation);
                violation
            }
        }
    }

    /// The violation that ended framing, if any.
    #[inline]
    #[must_use]
    pub fn failure(&self) -> Option<Violation> {
        match self.state {
            State::Failed(violation) => Some(violation),
            _ => None,
        }
    }

    /// Bytes of data of the current PDU that are still to arrive; 0 before the end of its padding.
    #[inline]
    #[must_use]
    pub fn data_left(&self) -> u32 {
        match self.state {
            State::Data { left, .. } | State::Padding { left: 0, data: left } => left,
            _ => 0,
        }
    }

    /// Bytes up to the end of the current part of a PDU: common header, rest of the header, padding, data, data digest.
    /// At least one.
    #[must_use]
    pub fn wanted_bytes(&self) -> usize {
        let count = match self.state {
            State::Between => COMMON_HEADER_BYTES,
            State::Header { need } => need.saturating_sub(self.have).into(),
            State::Padding { left: 0, data: left } | State::Data { left, .. } => left as usize,
            State::Padding { left, .. } => left.into(),
            State::Digest { have, .. } => DIGEST_BYTES.saturating_sub(have.into()),
            State::End { .. } | State::Failed(_) => COMMON_HEADER_BYTES,
        };
        count.max(1)
    }

    /// Whether the stream stands between two PDUs.
    #[inline]
    #[must_use]
    pub fn is_between_pdus(&self) -> bool {
        matches!(self.state, State::Between)
    }

    /// The bytes of the current or last header, without its digest, at most 128: after a violation, those of the
    /// offending one.
    #[must_use]
    pub fn offending_header(&self) -> &[u8] {
        let length = match PduType::try_from(self.header[0]) {
            Ok(kind) => kind.header_length().min(self.have),
            Err(_) => self.have.min(COMMON_LENGTH),
        };
        self.header.get(..length.into()).unwrap_or_default()
    }

    /// The next piece, from between PDUs.
    #[inline(always)]
    fn on_header<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Frame<'a>>, Violation> {
        // The common case: the whole header lies in the input.
        if let Some(common) = input.first_chunk()
            && let Some(Some(rule)) = self.rules.get(usize::from(common[0]))
            && let Some((header, rest)) = input.split_at_checked(rule.prefix.into())
        {
            *input = rest;
            // Of fixed length, so that they are moved without a call.
            match (header.first_chunk::<CAPSULE_CMD_BYTES>(), header.first_chunk::<DATA_BYTES>()) {
                (Some(command), _) => put(&mut self.header, 0, command),
                (None, Some(other)) => put(&mut self.header, 0, other),
                (None, None) => unreachable!("no header is shorter"),
            }
            if usize::from(rule.hlen) > CAPSULE_CMD_BYTES {
                put(&mut self.header, 0, header);
            }
            let data = match rule.data_length(*common) {
                Ok(data) => data,
                Err(violation) => {
                    self.have = COMMON_LENGTH;
                    return Err(violation);
                }
            };
            self.have = rule.prefix;
            let (hlen, prefix) = (rule.hlen, rule.prefix);
            let (kind, is_data_pdu, padding) = (rule.kind, rule.is_data_pdu, rule.padding);
            if prefix > hlen {
                self.check_digest(header.get(hlen.into()..).unwrap_or_default())?;
            }
            if is_data_pdu {
                self.check_length(data)?;
            }
            if data > 0 {
                self.state = State::Padding { left: padding, data };
            }
            return Ok(Some(Frame::Header(kind, data)));
        }
        self.on_some_header_bytes(input)
    }

    /// A header that arrives in pieces, or of an unexpected type.
    fn on_some_header_bytes<'a>(&mut self, input: &mut &[u8]) -> Result<Option<Frame<'a>>, Violation> {
        let mut need = match self.state {
            State::Header { need } => need,
            _ if input.is_empty() => return Ok(None),
            _ => {
                self.have = 0;
                self.state = State::Header { need: COMMON_LENGTH };
                COMMON_LENGTH
            }
        };
        if need == COMMON_LENGTH {
            if !self.take_header_bytes(need, input) {
                return Ok(None);
            }
            let common: CommonHeader = *self.header();
            need = match self.rule() {
                Some(rule) => rule.check(common).map(|_| rule.prefix)?,
                None => self.on_other_type(&common)?,
            };
            self.state = State::Header { need };
        }
        if !self.take_header_bytes(need, input) {
            return Ok(None);
        }
        let Some(rule) = self.rule() else {
            let ended: &TermReq = self.header();
            return Err(Violation::EndedByPeer { fes: ended.status(), fei: ended.fei.get() });
        };
        let data = rule.check(*self.header())?;
        if rule.prefix > rule.hlen {
            let digest = self.header.get(rule.hlen.into()..rule.prefix.into());
            self.check_digest(digest.unwrap_or_default())?;
        }
        if rule.is_data_pdu {
            self.check_length(data)?;
        }
        self.state = match data {
            0 => State::Between,
            _ => State::Padding { left: rule.padding, data },
        };
        Ok(Some(Frame::Header(rule.kind, data)))
    }

    /// The rule for the current header, if its type may arrive.
    fn rule(&self) -> Option<Rule> {
        self.rules.get(usize::from(self.header[0])).copied().flatten()
    }

    /// Takes header bytes from `input`. Returns whether `need` bytes are here.
    fn take_header_bytes(&mut self, need: u8, input: &mut &[u8]) -> bool {
        self.have = take(&mut self.header, self.have, need, input);
        self.have == need
    }

    /// Compares the header with the digest behind it.
    fn check_digest(&self, digest: &[u8]) -> Result<(), Violation> {
        let received = digest.first_chunk().map_or(0, |digest| u32::from_le_bytes(*digest));
        let header = self.header.get(..usize::from(self.have.saturating_sub(DIGEST_LENGTH)));
        if received == header_digest(header.unwrap_or_default()) {
            Ok(())
        } else {
            Err(Violation::HeaderDigest { received })
        }
    }

    /// Checks that a data PDU has data, and that its length field agrees with its framing.
    #[inline]
    fn check_length(&self, data: u32) -> Result<(), Violation> {
        let pdu: &DataPdu = self.header();
        if data == 0 || pdu.length.get() != data { Err(LENGTH) } else { Ok(()) }
    }

    /// Handles a type without a rule: a TermReq, or a PDU that may not arrive, or not now.
    #[cold]
    fn on_other_type(&self, common: &CommonHeader) -> Result<u8, Violation> {
        match common.pdu_type() {
            Ok(kind) if kind.is_term_req() && kind.is_from_host() == (self.sender == Sender::Host) => {
                // A malformed TermReq is not answered with one. wire §2.4
                if common.hlen != kind.header_length() || !TERM_REQ_LENGTHS.contains(&common.plen.get()) {
                    return Err(Violation::MalformedTermReq);
                }
                Ok(kind.header_length())
            }
            _ if !self.is_initialised => Err(Violation::Sequence),
            Ok(kind) if kind == self.handshake() => Err(Violation::Sequence),
            _ => Err(Violation::HeaderField { offset: 0 }),
        }
    }

    fn on_data_bytes<'a>(&mut self, input: &mut &'a [u8]) -> Option<Frame<'a>> {
        loop {
            match self.state {
                State::Padding { left: 0, data } => {
                    self.state = State::Data { left: data, digest: DataDigest::new() };
                }
                State::Padding { left, data } => {
                    let count = usize::from(left).min(input.len());
                    (_, *input) = input.split_at(count);
                    let left = left.saturating_sub(u8::try_from(count).unwrap_or(left));
                    self.state = State::Padding { left, data };
                    if left > 0 {
                        return None;
                    }
                }
                State::Data { left: 0, digest } => {
                    self.state = if self.trailer == 0 {
                        State::End { is_intact: true }
                    } else {
                        State::Digest { have: 0, bytes: [0; DIGEST_BYTES], computed: digest.finish() }
                    };
                }
                State::Data { left, mut digest } => {
                    let count = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    if count == 0 {
                        return None;
                    }
                    let (taken, rest) = input.split_at(count);
                    *input = rest;
                    if self.trailer != 0 {
                        digest.update(taken);
                    }
                    let left = left.saturating_sub(u32::try_from(count).unwrap_or(left));
                    self.state = State::Data { left, digest };
                    return Some(Frame::Data(taken));
                }
                State::Digest { have, mut bytes, computed } => {
                    let have = take(&mut bytes, have, DIGEST_LENGTH, input);
                    if have < DIGEST_LENGTH {
                        self.state = State::Digest { have, bytes, computed };
                        return None;
                    }
                    self.state = State::End { is_intact: u32::from_le_bytes(bytes) == computed };
                }
                State::End { is_intact } => {
                    self.state = State::Between;
                    return Some(Frame::End { is_intact });
                }
                State::Between | State::Header { .. } | State::Failed(_) => return None,
            }
        }
    }
}

/// Copies `bytes` to offset `at` of `to`, which has room for them.
#[inline]
fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = to.get_mut(at..).and_then(|place| place.get_mut(..bytes.len())) {
        place.copy_from_slice(bytes);
    }
}

/// Moves bytes from the front of `input` behind the `have` bytes in `to`, until there are `need`. Returns their count.
fn take(to: &mut [u8], have: u8, need: u8, input: &mut &[u8]) -> u8 {
    let missing = need.saturating_sub(have);
    let (taken, rest) = input.split_at(usize::from(missing).min(input.len()));
    put(to, have.into(), taken);
    *input = rest;
    have.saturating_add(u8::try_from(taken.len()).unwrap_or(missing))
}

/// The TermReq for a violation: its header and a copy of the offending one. `None` if none may be sent. wire §2.4
#[must_use]
pub fn term_req(sender: Sender, violation: Violation, offending: &[u8]) -> Option<Vec<u8>> {
    use zerocopy::IntoBytes;
    let (fes, fei): (FatalErrorStatus, u32) = violation.term_req()?;
    let copy = offending.get(..TERM_REQ_COPY_BYTES_MAX).unwrap_or(offending);
    // At most 128.
    let copy_length = u8::try_from(copy.len()).ok()?;
    let header = match sender {
        Sender::Host => TermReq::from_controller(fes, fei, copy_length),
        Sender::Controller => TermReq::from_host(fes, fei, copy_length),
    };
    Some([header.as_bytes(), copy].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_violation_is_the_one_to_report() {
        let mut framer = Framer::new(Sender::Host);
        assert_eq!(framer.failure(), None);
        for violation in [Violation::Sequence, Violation::OutOfRange] {
            assert_eq!(framer.fail(violation), Violation::Sequence);
            assert_eq!(framer.failure(), Some(Violation::Sequence));
        }
    }
}
