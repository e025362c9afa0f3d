//! Headers of the nine PDUs. wire §2

mod layout;

pub use layout::{DataAlignment, LayoutError, PduLayout};

use crate::cqe::{CQE_BYTES, Cqe};
use crate::sqe::{SQE_BYTES, Sqe};
use crate::{U16, U32};

/// Bytes of the header every PDU begins with.
pub const COMMON_HEADER_BYTES: usize = 8;
/// Bytes of ICReq and ICResp.
pub const IC_BYTES: usize = 128;
/// Bytes of the CapsuleCmd header.
pub const CAPSULE_CMD_BYTES: usize = COMMON_HEADER_BYTES + SQE_BYTES;
/// Bytes of the CapsuleResp header.
pub const CAPSULE_RESP_BYTES: usize = COMMON_HEADER_BYTES + CQE_BYTES;
/// Bytes of the H2CData and C2HData headers.
pub const DATA_BYTES: usize = 24;
/// Bytes of R2T.
pub const R2T_BYTES: usize = 24;
/// Bytes of the H2CTermReq and C2HTermReq headers.
pub const TERM_REQ_BYTES: usize = 24;
/// Most bytes of the offending header that follow a TermReq header.
pub const TERM_REQ_COPY_BYTES_MAX: usize = 128;
/// The longest header of all.
pub const HEADER_BYTES_MAX: usize = IC_BYTES;

/// The type of a PDU. wire §2.1
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PduType {
    /// Host's half of the handshake.
    IcReq = 0x00,
    /// Controller's half of the handshake.
    IcResp = 0x01,
    /// The host ends the connection after an error.
    H2cTermReq = 0x02,
    /// The controller ends the connection after an error.
    C2hTermReq = 0x03,
    /// A command, perhaps with its data.
    CapsuleCmd = 0x04,
    /// A completion.
    CapsuleResp = 0x05,
    /// Data of a write, asked for by R2T.
    H2cData = 0x06,
    /// Data of a read.
    C2hData = 0x07,
    /// The controller asks for data of a write.
    R2t = 0x09,
}

/// A PDU type outside the nine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown PDU type {0:#04x}")]
pub struct UnknownPduType(pub u8);

impl PduType {
    /// The nine types in the order of their codes.
    pub const ALL: [Self; 9] = [
        Self::IcReq,
        Self::IcResp,
        Self::H2cTermReq,
        Self::C2hTermReq,
        Self::CapsuleCmd,
        Self::CapsuleResp,
        Self::H2cData,
        Self::C2hData,
        Self::R2t,
    ];

    /// Bytes of the header without digest: the only `hlen` this type may have.
    #[inline]
    #[must_use]
    pub const fn header_length(self) -> u8 {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::CapsuleCmd => 72,
            Self::H2cTermReq
            | Self::C2hTermReq
            | Self::CapsuleResp
            | Self::H2cData
            | Self::C2hData
            | Self::R2t => 24,
        }
    }

    /// Whether hosts send it; controllers send the others.
    #[inline]
    #[must_use]
    pub const fn is_from_host(self) -> bool {
        matches!(self, Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData)
    }

    /// Whether it is one of the two TermReqs.
    #[inline]
    #[must_use]
    pub const fn is_term_req(self) -> bool {
        matches!(self, Self::H2cTermReq | Self::C2hTermReq)
    }

    /// Whether a header digest follows the header once one is negotiated.
    #[inline]
    #[must_use]
    pub const fn may_carry_header_digest(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq)
    }

    /// Whether data of a command may follow the header, and then its digest once one is negotiated.
    #[inline]
    #[must_use]
    pub const fn may_carry_data(self) -> bool {
        matches!(self, Self::CapsuleCmd | Self::H2cData | Self::C2hData)
    }
}

impl TryFrom<u8> for PduType {
    type Error = UnknownPduType;

    #[inline]
    fn try_from(raw: u8) -> Result<Self, UnknownPduType> {
        Ok(match raw {
            0x00 => Self::IcReq,
            0x01 => Self::IcResp,
            0x02 => Self::H2cTermReq,
            0x03 => Self::C2hTermReq,
            0x04 => Self::CapsuleCmd,
            0x05 => Self::CapsuleResp,
            0x06 => Self::H2cData,
            0x07 => Self::C2hData,
            0x09 => Self::R2t,
            other => return Err(UnknownPduType(other)),
        })
    }
}

tables! {
    /// Byte 1 of every PDU. wire §2.1
    pub flags PduFlags: u8 {
        [0] HDGST, "A header digest follows the header.";
        [1] DDGST, "A data digest follows the data.";
        [2] LAST, "Last PDU of one R2T (H2CData) or of the command (C2HData).";
        [3] SUCCESS, "C2HData with LAST: no CapsuleResp follows, the command succeeded. wire §4.2";
    }

    /// Digests asked for in ICReq, in use from ICResp on. wire §2.2
    pub flags Digests: u8 {
        [0] HEADER, "Header digest.";
        [1] DATA, "Data digest.";
    }

    /// The 8 bytes every PDU begins with. wire §2.1
    pub structure CommonHeader: COMMON_HEADER_BYTES {
        0 pub kind: u8, "Type; see [`CommonHeader::pdu_type`].";
        1 pub flags: PduFlags, "Digests present, LAST, SUCCESS.";
        2 pub hlen: u8, "Bytes of the header without digest.";
        3 pub pdo: u8, "Where the data lies, bytes from the start of the PDU, 0 if there is none.";
        4 pub plen: U32, "Bytes of the whole PDU.";
    }
}

impl CommonHeader {
    /// The type.
    ///
    /// # Errors
    /// [`UnknownPduType`] with the raw value if it is none of the nine.
    #[inline]
    pub fn pdu_type(&self) -> Result<PduType, UnknownPduType> {
        PduType::try_from(self.kind)
    }
}

tables! {
    /// Host's half of the handshake. wire §2.2
    pub structure IcReq: IC_BYTES {
        0 pub common: CommonHeader, "Type 0x00, hlen and plen 128, no flags.";
        8 pub pfv: U16, "PDU format version, 0.";
        10 pub hpda: u8, "Alignment the host wants in C2HData, 0-based dwords; see [`IcReq::data_alignment`].";
        11 pub dgst: Digests, "Digests the host wants.";
        12 pub maxr2t: U32, "R2Ts per command the host accepts at once, 0-based; see [`IcReq::r2t_limit`].";
        16 reserved: [u8; 112];
    }
}

impl IcReq {
    /// A request. `r2t_limit` counts R2Ts per command; 0 is taken as 1.
    #[must_use]
    pub const fn new(alignment: DataAlignment, digests: Digests, r2t_limit: u32) -> Self {
        Self {
            common: bare_header(PduType::IcReq, Digests::empty()),
            pfv: U16::ZERO,
            hpda: alignment.raw(),
            dgst: digests,
            maxr2t: U32::new(r2t_limit.saturating_sub(1)),
            reserved: [0; 112],
        }
    }

    /// Alignment the host wants in C2HData; `None` if the field is out of range.
    #[inline]
    #[must_use]
    pub const fn data_alignment(&self) -> Option<DataAlignment> {
        DataAlignment::from_raw(self.hpda)
    }

    /// R2Ts per command the host accepts at once, 1..=2^32.
    #[inline]
    #[must_use]
    pub const fn r2t_limit(&self) -> u64 {
        (self.maxr2t.get() as u64).saturating_add(1)
    }
}

tables! {
    /// Controller's half of the handshake. wire §2.3
    pub structure IcResp: IC_BYTES {
        0 pub common: CommonHeader, "Type 0x01, hlen and plen 128, no flags.";
        8 pub pfv: U16, "PDU format version, 0.";
        10 pub cpda: u8,
            "Alignment the controller wants in CapsuleCmd and H2CData, 0-based dwords; see [`IcResp::data_alignment`].";
        11 pub dgst: Digests, "Digests in use from now on. Linux accepts only what it asked for, bit for bit.";
        12 pub maxh2cdata: U32, "Most data bytes in one H2CData, at least 4096 and a dword multiple.";
        16 reserved: [u8; 112];
    }
}

impl IcResp {
    /// A response. `h2c_data_limit` is in bytes.
    #[must_use]
    pub const fn new(alignment: DataAlignment, digests: Digests, h2c_data_limit: u32) -> Self {
        Self {
            common: bare_header(PduType::IcResp, Digests::empty()),
            pfv: U16::ZERO,
            cpda: alignment.raw(),
            dgst: digests,
            maxh2cdata: U32::new(h2c_data_limit),
            reserved: [0; 112],
        }
    }

    /// Alignment the controller wants in CapsuleCmd and H2CData; `None` if the field is out of range.
    #[inline]
    #[must_use]
    pub const fn data_alignment(&self) -> Option<DataAlignment> {
        DataAlignment::from_raw(self.cpda)
    }
}

tables! {
    /// Fatal error status: why a connection is given up. wire §2.4
    pub codes FatalErrorStatus: u16 {
        0x01 INVALID_HEADER_FIELD, "invalid PDU header field";
        0x02 SEQUENCE_ERROR, "PDU sequence error";
        0x03 HEADER_DIGEST_ERROR, "header digest error";
        0x04 DATA_OUT_OF_RANGE, "data transfer out of range";
        /// Covers too many R2Ts as well.
        0x05 LIMIT_EXCEEDED, "data transfer limit exceeded";
        0x06 UNSUPPORTED_PARAMETER, "unsupported parameter";
    }

    /// H2CTermReq or C2HTermReq without the copied header that follows. wire §2.4
    pub structure TermReq: TERM_REQ_BYTES {
        0 pub common: CommonHeader, "Type 0x02 or 0x03, hlen 24, pdo 0, no flags.";
        8 pub fes: U16 as status: FatalErrorStatus, "Fatal error status: the reason for which the peer ends the connection.";
        10 pub fei: U32, "Fatal error information: byte offset of a header field, or the header digest that came.";
        14 reserved: [u8; 10];
    }
}

impl TermReq {
    /// The TermReq of a controller; `copy_length` bytes of the offending header follow, at most 128.
    #[must_use]
    pub const fn from_controller(fes: FatalErrorStatus, fei: u32, copy_length: u8) -> Self {
        Self::new(PduType::C2hTermReq, fes, fei, copy_length)
    }

    /// The TermReq of a host; `copy_length` bytes of the offending header follow, at most 128.
    #[must_use]
    pub const fn from_host(fes: FatalErrorStatus, fei: u32, copy_length: u8) -> Self {
        Self::new(PduType::H2cTermReq, fes, fei, copy_length)
    }

    const fn new(kind: PduType, fes: FatalErrorStatus, fei: u32, copy_length: u8) -> Self {
        debug_assert!(copy_length as usize <= TERM_REQ_COPY_BYTES_MAX);
        Self {
            common: CommonHeader {
                kind: kind as u8,
                flags: PduFlags::empty(),
                hlen: kind.header_length(),
                pdo: 0,
                plen: U32::new((kind.header_length() as u32).saturating_add(copy_length as u32)),
            },
            fes: U16::new(fes.raw()),
            fei: U32::new(fei),
            reserved: [0; 10],
        }
    }
}

tables! {
    /// Header of a command capsule; in-capsule data lies at `common.pdo`. wire §2.5
    pub structure CapsuleCmd: CAPSULE_CMD_BYTES {
        0 pub common: CommonHeader, "Type 0x04, hlen 72.";
        8 pub sqe: Sqe, "The command.";
    }
}

impl CapsuleCmd {
    /// A capsule laid out by `layout`, which is of type CapsuleCmd.
    #[inline]
    #[must_use]
    pub const fn new(layout: &PduLayout, sqe: Sqe) -> Self {
        debug_assert!(matches!(layout.kind(), PduType::CapsuleCmd));
        Self { common: layout.common_header(PduFlags::empty()), sqe }
    }
}

tables! {
    /// A response capsule. wire §2.6
    pub structure CapsuleResp: CAPSULE_RESP_BYTES {
        0 pub common: CommonHeader, "Type 0x05, hlen 24, pdo 0.";
        8 pub cqe: Cqe, "The completion.";
    }
}

impl CapsuleResp {
    /// A response with the digests in force.
    #[inline]
    #[must_use]
    pub const fn new(digests: Digests, cqe: Cqe) -> Self {
        Self { common: bare_header(PduType::CapsuleResp, digests), cqe }
    }
}

tables! {
    /// Header of H2CData and C2HData; the data lies at `common.pdo`. wire §2.7
    pub structure DataPdu: DATA_BYTES {
        0 pub common: CommonHeader, "Type 0x06 or 0x07, hlen 24.";
        8 pub cid: U16, "Command the data belongs to; any 16-bit value, never an index.";
        10 pub ttag: U16, "Transfer tag of the R2T (H2CData), 0 in C2HData.";
        12 pub offset: U32, "Bytes from the start of the command's data.";
        16 pub length: U32, "Data bytes in this PDU, without padding and digest.";
        20 reserved: [u8; 4];
    }
}

impl DataPdu {
    /// A part of a read, laid out by `layout`, which is of type C2HData. `more` is LAST or LAST and SUCCESS
    /// on the last part.
    #[inline]
    #[must_use]
    pub const fn c2h(layout: &PduLayout, cid: U16, offset: u32, more: PduFlags) -> Self {
        debug_assert!(matches!(layout.kind(), PduType::C2hData));
        Self::new(layout, cid, U16::ZERO, offset, more)
    }

    /// A part of a write, laid out by `layout`, which is of type H2CData. `last` on the last part of one R2T.
    #[inline]
    #[must_use]
    pub const fn h2c(layout: &PduLayout, cid: U16, ttag: U16, offset: u32, last: bool) -> Self {
        debug_assert!(matches!(layout.kind(), PduType::H2cData));
        Self::new(layout, cid, ttag, offset, if last { PduFlags::LAST } else { PduFlags::empty() })
    }

    const fn new(layout: &PduLayout, cid: U16, ttag: U16, offset: u32, more: PduFlags) -> Self {
        Self {
            common: layout.common_header(more),
            cid,
            ttag,
            offset: U32::new(offset),
            length: U32::new(layout.data_length()),
            reserved: [0; 4],
        }
    }
}

tables! {
    /// Ready to Transfer: the controller grants the host one window of a write. wire §2.8
    pub structure R2t: R2T_BYTES {
        0 pub common: CommonHeader, "Type 0x09, hlen 24, pdo 0.";
        8 pub cid: U16, "Command this window belongs to; any 16-bit value, never an index.";
        10 pub ttag: U16, "Transfer tag, echoed by the host in each H2CData.";
        12 pub offset: U32, "Window start, bytes from the start of the command's data.";
        16 pub length: U32, "Window length in bytes, never 0.";
        20 reserved: [u8; 4];
    }
}

impl R2t {
    /// A window with the digests in force.
    #[inline]
    #[must_use]
    pub const fn new(digests: Digests, cid: U16, ttag: U16, offset: u32, length: u32) -> Self {
        Self {
            common: bare_header(PduType::R2t, digests),
            cid,
            ttag,
            offset: U32::new(offset),
            length: U32::new(length),
            reserved: [0; 4],
        }
    }
}

/// The common header of a PDU without data.
#[inline]
const fn bare_header(kind: PduType, digests: Digests) -> CommonHeader {
    PduLayout::without_data(kind, digests).common_header(PduFlags::empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::id::Nsid;
    use crate::status::Status;

    const BOTH: Digests = Digests::all();

    fn laid_out(kind: PduType, digests: Digests, alignment: u8, data_length: u32) -> PduLayout {
        let alignment = DataAlignment::from_raw(alignment).expect("0..=31");
        PduLayout::new(kind, digests, alignment, data_length).expect("carries data")
    }

    /// wire §2.1: type, direction, hlen, header digest, data of a command.
    #[test]
    fn the_nine_types_are_those_of_the_table() {
        let table = [
            (0x00, true, 128, false, false),
            (0x01, false, 128, false, false),
            (0x02, true, 24, false, false),
            (0x03, false, 24, false, false),
            (0x04, true, 72, true, true),
            (0x05, false, 24, true, false),
            (0x06, true, 24, true, true),
            (0x07, false, 24, true, true),
            (0x09, false, 24, true, false),
        ];
        for (kind, row) in PduType::ALL.into_iter().zip(table) {
            let (code, from_host, hlen, header_digest, data) = row;
            assert_eq!(PduType::try_from(code), Ok(kind));
            assert_eq!(kind as u8, code);
            assert_eq!(kind.is_from_host(), from_host, "{kind:?}");
            assert_eq!(kind.header_length(), hlen, "{kind:?}");
            assert_eq!(kind.may_carry_header_digest(), header_digest, "{kind:?}");
            assert_eq!(kind.may_carry_data(), data, "{kind:?}");
            assert_eq!(kind.is_term_req(), code == 2 || code == 3, "{kind:?}");
        }
    }

    #[test]
    fn any_other_type_is_refused_with_its_value() {
        let known: Vec<u8> = PduType::ALL.iter().map(|kind| *kind as u8).collect();
        for raw in (0..=0xFF).filter(|raw| !known.contains(raw)) {
            assert_eq!(PduType::try_from(raw), Err(UnknownPduType(raw)));
        }
        insta::assert_snapshot!(UnknownPduType(8), @"unknown PDU type 0x08");
    }

    #[test]
    fn an_icreq_asks_for_alignment_digests_and_r2ts() {
        let icreq = IcReq::new(DataAlignment::NONE, BOTH, 1);
        let mut expected = [0; 128];
        expected[..16].copy_from_slice(&[0x00, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]);
        assert_eq!(icreq.as_bytes(), expected);
        assert_eq!(icreq.r2t_limit(), 1);

        let alignment = DataAlignment::from_raw(31).expect("in range");
        let icreq = IcReq::new(alignment, Digests::DATA, 16);
        assert_eq!(icreq.as_bytes()[8..16], [0, 0, 31, 2, 15, 0, 0, 0]);
        assert_eq!(icreq.data_alignment().map(DataAlignment::bytes), Some(128));
    }

    #[test]
    fn an_icresp_answers_with_its_data_limit() {
        let icresp = IcResp::new(DataAlignment::NONE, Digests::HEADER, 0x0002_0000);
        let mut expected = [0; 128];
        expected[..16].copy_from_slice(&[0x01, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 0]);
        assert_eq!(icresp.as_bytes(), expected);
        assert_eq!(icresp.data_alignment(), Some(DataAlignment::NONE));
    }

    #[test]
    fn the_handshake_s_extremes_are_counts_that_fit() {
        let mut icreq = IcReq::new(DataAlignment::NONE, Digests::empty(), 0);
        assert_eq!(icreq.r2t_limit(), 1);
        icreq.maxr2t = U32::new(u32::MAX);
        assert_eq!(icreq.r2t_limit(), 1 << 32);
        icreq.hpda = 32;
        assert_eq!(icreq.data_alignment(), None);
    }

    #[test]
    fn a_termreq_has_its_information_unaligned() {
        let term = TermReq::from_controller(FatalErrorStatus::INVALID_HEADER_FIELD, 4, 72);
        assert_eq!(
            term.as_bytes(),
            [0x03, 0, 24, 0, 96, 0, 0, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        let term = TermReq::from_host(FatalErrorStatus::HEADER_DIGEST_ERROR, 0x8A91_36AA, 128);
        assert_eq!(
            term.as_bytes(),
            [0x02, 0, 24, 0, 152, 0, 0, 0, 3, 0, 0xAA, 0x36, 0x91, 0x8A, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(term.status(), FatalErrorStatus::HEADER_DIGEST_ERROR);
    }

    #[test]
    fn an_unknown_fatal_error_status_stays_visible() {
        insta::assert_snapshot!(FatalErrorStatus::from_raw(7), @"unknown 0x07");
        insta::assert_snapshot!(FatalErrorStatus::LIMIT_EXCEEDED, @"data transfer limit exceeded");
    }

    #[test]
    fn a_command_without_data_is_72_bytes_or_76() {
        let sqe = Sqe::new(0x02, Nsid::new(1));
        let layout = PduLayout::without_data(PduType::CapsuleCmd, Digests::empty());
        let capsule = CapsuleCmd::new(&layout, sqe);
        assert_eq!(capsule.as_bytes()[..8], [0x04, 0, 72, 0, 72, 0, 0, 0]);
        assert_eq!(capsule.as_bytes()[8..], *sqe.as_bytes());

        let layout = PduLayout::without_data(PduType::CapsuleCmd, BOTH);
        assert_eq!(CapsuleCmd::new(&layout, sqe).as_bytes()[..8], [0x04, 1, 72, 0, 76, 0, 0, 0]);
    }

    #[test]
    fn a_command_with_data_says_where_it_lies() {
        let sqe = Sqe::new(0x01, Nsid::new(1));
        // Header 72, digest 4, data 4096, digest 4.
        let layout = laid_out(PduType::CapsuleCmd, BOTH, 0, 4096);
        assert_eq!(CapsuleCmd::new(&layout, sqe).as_bytes()[..8], [0x04, 3, 72, 76, 0x50, 0x10, 0, 0]);
        // Header 72, padding to 128, data 4096.
        let layout = laid_out(PduType::CapsuleCmd, Digests::empty(), 31, 4096);
        assert_eq!(CapsuleCmd::new(&layout, sqe).as_bytes()[..8], [0x04, 0, 72, 128, 0x80, 0x10, 0, 0]);
    }

    #[test]
    fn a_response_is_24_bytes_or_28() {
        let cqe = Cqe::new(U16::new(0x1234), 5, Status::SUCCESS);
        let expected = [0x05, 0, 24, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0x34, 0x12, 0, 0];
        assert_eq!(CapsuleResp::new(Digests::empty(), cqe).as_bytes(), expected);
        assert_eq!(CapsuleResp::new(BOTH, cqe).as_bytes()[..8], [0x05, 1, 24, 0, 28, 0, 0, 0]);
    }

    #[test]
    fn read_data_carries_last_and_success() {
        let layout = laid_out(PduType::C2hData, Digests::empty(), 0, 0x1000);
        let data = DataPdu::c2h(&layout, U16::new(0xB00C), 0x2000, PduFlags::LAST | PduFlags::SUCCESS);
        assert_eq!(
            data.as_bytes(),
            [
                0x07, 0x0C, 24, 24, 0x18, 0x10, 0, 0, 0x0C, 0xB0, 0, 0, 0, 0x20, 0, 0, 0, 0x10, 0, 0, 0, 0,
                0, 0
            ]
        );
    }

    #[test]
    fn write_data_echoes_the_transfer_tag() {
        let layout = laid_out(PduType::H2cData, BOTH, 0, 0x200);
        let data = DataPdu::h2c(&layout, U16::new(0x0102), U16::new(0xFFFE), 0x0001_0000, true);
        assert_eq!(
            data.as_bytes(),
            [
                0x06, 0x07, 24, 28, 0x20, 0x02, 0, 0, 0x02, 0x01, 0xFE, 0xFF, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0,
                0, 0
            ]
        );
        assert!(!DataPdu::h2c(&layout, U16::ZERO, U16::ZERO, 0, false).common.flags.contains(PduFlags::LAST));
    }

    #[test]
    fn an_r2t_grants_a_window() {
        let r2t = R2t::new(Digests::empty(), U16::new(7), U16::new(0x8001), 0x4000, 0x0002_0000);
        assert_eq!(
            r2t.as_bytes(),
            [0x09, 0, 24, 0, 24, 0, 0, 0, 7, 0, 0x01, 0x80, 0, 0x40, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0]
        );
        assert_eq!(R2t::new(BOTH, U16::ZERO, U16::ZERO, 0, 4).as_bytes()[..8], [0x09, 1, 24, 0, 28, 0, 0, 0]);
    }

    #[test]
    fn unknown_flag_bits_are_kept_and_seen() {
        let flags = PduFlags::from_bits_retain(0xF4);
        assert_eq!((flags.bits(), flags.reserved()), (0xF4, 0xF0));
        assert_eq!(Digests::from_bits_retain(0x83).reserved(), 0x80);
    }

    proptest! {
        #[test]
        fn every_header_comes_back_as_it_came(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            macro_rules! round_trip {
                ($($header:ident)*) => {$(
                    match $header::read_from_prefix(&bytes) {
                        Ok((header, _)) => prop_assert_eq!(header.as_bytes(), &bytes[..size_of::<$header>()]),
                        Err(_) => prop_assert!(bytes.len() < size_of::<$header>()),
                    }
                )*};
            }
            round_trip!(CommonHeader IcReq IcResp TermReq CapsuleCmd CapsuleResp DataPdu R2t);
        }

        #[test]
        fn the_handshake_gives_back_what_it_was_made_of(raw in 0u8..32, digests in 0u8..4, limit in 1u32..) {
            let alignment = DataAlignment::from_raw(raw).expect("in range");
            let digests = Digests::from_bits_retain(digests);
            let icreq = IcReq::new(alignment, digests, limit);
            prop_assert_eq!(icreq.data_alignment(), Some(alignment));
            prop_assert_eq!((icreq.dgst, icreq.r2t_limit()), (digests, u64::from(limit)));
            let icresp = IcResp::new(alignment, digests, limit);
            prop_assert_eq!(icresp.data_alignment(), Some(alignment));
            prop_assert_eq!((icresp.dgst, icresp.maxh2cdata.get()), (digests, limit));
        }

        #[test]
        fn data_and_windows_give_back_what_they_were_made_of(
            cid: u16, ttag: u16, offset: u32, length in 1u32..1 << 30, last: bool,
        ) {
            let (cid, ttag) = (U16::new(cid), U16::new(ttag));
            let h2c = DataPdu::h2c(&laid_out(PduType::H2cData, BOTH, 0, length), cid, ttag, offset, last);
            prop_assert_eq!((h2c.cid, h2c.ttag), (cid, ttag));
            prop_assert_eq!((h2c.offset.get(), h2c.length.get()), (offset, length));
            prop_assert_eq!(h2c.common.flags.contains(PduFlags::LAST), last);
            let r2t = R2t::new(BOTH, cid, ttag, offset, length);
            prop_assert_eq!((r2t.cid, r2t.ttag), (cid, ttag));
            prop_assert_eq!((r2t.offset.get(), r2t.length.get()), (offset, length));
        }

        #[test]
        fn a_termreq_gives_back_what_it_was_made_of(fes: u16, fei: u32, copied in 0u8..=128) {
            let term = TermReq::from_controller(FatalErrorStatus::from_raw(fes), fei, copied);
            prop_assert_eq!((term.status().raw(), term.fei.get()), (fes, fei));
            prop_assert_eq!(term.common.plen.get(), 24 + u32::from(copied));
        }
    }
}
