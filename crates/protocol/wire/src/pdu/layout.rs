//! Where the parts of a PDU lie. wire §2.1, wire §3
//!
//! ```text
//! 0          hlen        +4            pdo                    plen-4      plen
//! ├─ header ──┼─ hdgst ───┼─ pad ───────┼─ data ───────────────┼─ ddgst ───┤
//! ```

use crate::U32;
use crate::pdu::{CommonHeader, Digests, PduFlags, PduType, TERM_REQ_COPY_BYTES_MAX};

const DIGEST_BYTES: u32 = 4;

/// Multiple of bytes at which data begins, counted from the start of the PDU: 4, 8, … 128. wire §3
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DataAlignment {
    /// As on the wire: 0-based dwords, 0..=31.
    raw: u8,
}

impl DataAlignment {
    /// 4 bytes: never any padding. The only value that Linux accepts.
    pub const NONE: Self = Self { raw: 0 };

    /// From a `hpda` or `cpda` field; `None` above 31.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        if raw <= 31 { Some(Self { raw }) } else { None }
    }

    /// As a `hpda` or `cpda` field.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u8 {
        self.raw
    }

    /// In bytes, 4..=128.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u8 {
        self.raw.saturating_add(1).saturating_mul(4)
    }
}

/// Where the parts of a PDU lie, all counted in bytes from its start. wire §2.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduLayout {
    kind: PduType,
    flags: PduFlags,
    pdo: u8,
    plen: u32,
    data_length: u32,
}

/// A PDU that cannot be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The type carries no data.
    #[error("{kind:?} carries no data, {data_length} bytes given")]
    NoData {
        /// Type of the PDU.
        kind: PduType,
        /// Bytes that were to be carried.
        data_length: u32,
    },
    /// The PDU would be longer than `plen` can say, or a TermReq longer than its 152 bytes.
    #[error("{kind:?} cannot carry {data_length} bytes in one PDU")]
    TooLong {
        /// Type of the PDU.
        kind: PduType,
        /// Bytes that were to be carried.
        data_length: u32,
    },
}

impl PduLayout {
    /// A PDU of `kind` with the digests and the alignment in force, carrying `data_length` bytes (0 for
    /// none). For a TermReq that is the copy of the offending header.
    ///
    /// # Errors
    /// [`LayoutError::NoData`] for data in a type that carries none, [`LayoutError::TooLong`] past what
    /// the type allows.
    #[inline]
    pub const fn new(
        kind: PduType,
        digests: Digests,
        alignment: DataAlignment,
        data_length: u32,
    ) -> Result<Self, LayoutError> {
        let bare = Self::without_data(kind, digests);
        if data_length == 0 {
            return Ok(bare);
        }
        if kind.is_term_req() {
            if data_length as usize > TERM_REQ_COPY_BYTES_MAX {
                return Err(LayoutError::TooLong { kind, data_length });
            }
            return Ok(Self { plen: bare.plen.saturating_add(data_length), data_length, ..bare });
        }
        if !kind.may_carry_data() {
            return Err(LayoutError::NoData { kind, data_length });
        }
        let pdo = bare.plen.next_multiple_of(alignment.bytes() as u32);
        let (flags, trailer) = if digests.contains(Digests::DATA) {
            (bare.flags.union(PduFlags::DDGST), DIGEST_BYTES)
        } else {
            (bare.flags, 0)
        };
        match data_length.checked_add(pdo.saturating_add(trailer)) {
            // The longest header with its digest is 76 bytes, so pdo is at most 144 (alignment 72).
            Some(plen) => Ok(Self { kind, flags, pdo: (pdo & 0xFF) as u8, plen, data_length }),
            None => Err(LayoutError::TooLong { kind, data_length }),
        }
    }

    /// The same PDU with another length of data, not 0; it has data already.
    ///
    /// # Errors
    /// [`LayoutError::TooLong`] past the type's limit.
    #[inline]
    pub const fn resized(&self, data_length: u32) -> Result<Self, LayoutError> {
        debug_assert!(self.pdo != 0 && data_length != 0);
        let around = self.plen.saturating_sub(self.data_length);
        match data_length.checked_add(around) {
            Some(plen) => Ok(Self { plen, data_length, ..*self }),
            None => Err(LayoutError::TooLong { kind: self.kind, data_length }),
        }
    }

    /// A PDU of `kind` that is nothing but its header.
    #[inline]
    #[must_use]
    pub const fn without_data(kind: PduType, digests: Digests) -> Self {
        let hlen = kind.header_length() as u32;
        let (flags, plen) = if digests.contains(Digests::HEADER) && kind.may_carry_header_digest() {
            (PduFlags::HDGST, hlen.saturating_add(DIGEST_BYTES))
        } else {
            (PduFlags::empty(), hlen)
        };
        Self { kind, flags, pdo: 0, plen, data_length: 0 }
    }

    /// Type of the PDU.
    #[inline]
    #[must_use]
    pub const fn kind(&self) -> PduType {
        self.kind
    }

    /// Digest flags it carries.
    #[inline]
    #[must_use]
    pub const fn flags(&self) -> PduFlags {
        self.flags
    }

    /// Where the header digest lies, if there is one: right after the header.
    #[inline]
    #[must_use]
    pub const fn header_digest_at(&self) -> Option<u8> {
        if self.flags.contains(PduFlags::HDGST) { Some(self.kind.header_length()) } else { None }
    }

    /// The `pdo` field: where the data lies, 0 if there is none or in a TermReq.
    #[inline]
    #[must_use]
    pub const fn pdo(&self) -> u8 {
        self.pdo
    }

    /// Bytes before the data: header, header digest, padding. The whole PDU if it has no data.
    #[inline]
    #[must_use]
    pub const fn prefix_length(&self) -> u8 {
        if self.pdo != 0 {
            return self.pdo;
        }
        match self.header_digest_at() {
            Some(at) => at.saturating_add(4),
            None => self.kind.header_length(),
        }
    }

    /// Bytes of data, without padding and digest.
    #[inline]
    #[must_use]
    pub const fn data_length(&self) -> u32 {
        self.data_length
    }

    /// Where the data digest lies, if there is one: right after the data.
    #[inline]
    #[must_use]
    pub const fn data_digest_at(&self) -> Option<u32> {
        if self.flags.contains(PduFlags::DDGST) { Some(self.plen.saturating_sub(DIGEST_BYTES)) } else { None }
    }

    /// Bytes of the whole PDU.
    #[inline]
    #[must_use]
    pub const fn plen(&self) -> u32 {
        self.plen
    }

    /// The common header, with flags beyond those of the digests.
    #[inline]
    #[must_use]
    pub const fn common_header(&self, more: PduFlags) -> CommonHeader {
        CommonHeader {
            kind: self.kind as u8,
            flags: self.flags.union(more),
            hlen: self.kind.header_length(),
            pdo: self.pdo,
            plen: U32::new(self.plen),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOTH: Digests = Digests::all();

    #[test]
    fn a_termreq_s_copy_has_no_offset_and_a_limit() {
        let alignment = DataAlignment::from_raw(7).expect("in range");
        let layout = PduLayout::new(PduType::C2hTermReq, BOTH, alignment, 128).expect("within its limit");
        assert_eq!((layout.pdo(), layout.prefix_length(), layout.plen()), (0, 24, 152));
        assert_eq!(layout.flags(), PduFlags::empty());
        assert_eq!(
            PduLayout::new(PduType::C2hTermReq, BOTH, DataAlignment::NONE, 129),
            Err(LayoutError::TooLong { kind: PduType::C2hTermReq, data_length: 129 })
        );
    }

    #[test]
    fn a_pdu_that_cannot_be_laid_out_is_refused() {
        let layout = |kind, length| PduLayout::new(kind, BOTH, DataAlignment::NONE, length);
        assert_eq!(layout(PduType::R2t, 4), Err(LayoutError::NoData { kind: PduType::R2t, data_length: 4 }));
        // 24 + 4 + data + 4 just fits, then no more.
        assert_eq!(layout(PduType::C2hData, u32::MAX - 32).map(|fits| fits.plen()), Ok(u32::MAX));
        assert_eq!(
            layout(PduType::C2hData, u32::MAX - 31),
            Err(LayoutError::TooLong { kind: PduType::C2hData, data_length: u32::MAX - 31 })
        );
        assert_eq!(
            layout(PduType::C2hData, 4).and_then(|short| short.resized(u32::MAX - 31)),
            Err(LayoutError::TooLong { kind: PduType::C2hData, data_length: u32::MAX - 31 })
        );
        insta::assert_snapshot!(
            layout(PduType::CapsuleResp, 1).expect_err("no data in a response"),
            @"CapsuleResp carries no data, 1 bytes given"
        );
    }

    fn any_kind() -> impl Strategy<Value = PduType> {
        prop::sample::select(PduType::ALL.as_slice())
    }

    proptest! {
        #[test]
        fn parts_lie_in_order_and_fill_the_pdu(
            kind in any_kind(), digests in 0u8..4, raw in 0u8..32, data_length: u32,
        ) {
            let digests = Digests::from_bits_retain(digests);
            let alignment = DataAlignment::from_raw(raw).expect("in range");
            let Ok(layout) = PduLayout::new(kind, digests, alignment, data_length) else { return Ok(()) };
            let header = u64::from(kind.header_length());
            let has_header_digest = digests.contains(Digests::HEADER) && kind.may_carry_header_digest();
            let header_digest = u64::from(has_header_digest) * 4;
            let has_data = kind.may_carry_data() && data_length > 0;
            let data_digest = u64::from(digests.contains(Digests::DATA) && has_data) * 4;
            let padding = u64::from(layout.prefix_length()) - header - header_digest;
            prop_assert!(padding < u64::from(alignment.bytes()));
            let sum = header + header_digest + padding + u64::from(data_length) + data_digest;
            prop_assert_eq!(sum, u64::from(layout.plen()));
            if has_data {
                prop_assert_eq!(layout.pdo(), layout.prefix_length());
                prop_assert_eq!(layout.pdo() % alignment.bytes(), 0);
            } else {
                prop_assert_eq!((layout.pdo(), padding), (0, 0));
            }
            prop_assert_eq!(layout.header_digest_at().is_some(), header_digest == 4);
            prop_assert_eq!(layout.data_digest_at().is_some(), data_digest == 4);
            if layout.pdo() != 0 {
                let one = PduLayout::new(kind, digests, alignment, 1).expect("less data fits");
                prop_assert_eq!(one.resized(data_length), Ok(layout));
            }
            let common = layout.common_header(PduFlags::LAST);
            prop_assert_eq!(common.pdu_type(), Ok(kind));
            prop_assert_eq!(common.flags, layout.flags() | PduFlags::LAST);
            prop_assert_eq!(common.plen.get(), layout.plen());
        }
    }
}
