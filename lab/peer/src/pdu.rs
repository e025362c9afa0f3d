//! PDUs to send: valid ones, and ones with any header byte overwritten before their digests are computed.

use wire::digest::{DIGEST_BYTES, data_digest, header_digest};
use wire::pdu::{
    CapsuleCmd, CapsuleResp, DataAlignment, DataPdu, Digests, PduFlags, PduLayout, PduType, R2t,
};
use wire::sqe::Sqe;
use wire::{U16, cqe::Cqe};
use zerocopy::IntoBytes;

/// Layout of the PDUs of one direction, as the handshake negotiated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Digests of every PDU that can carry them.
    pub digests: Digests,
    /// Alignment of data within a PDU.
    pub alignment: DataAlignment,
}

impl Form {
    /// No digests, no padding.
    pub const PLAIN: Self = Self { digests: Digests::empty(), alignment: DataAlignment::NONE };
}

/// A PDU whose digests are not computed yet.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Header, room for its digest, padding, data, room for its digest.
    bytes: Vec<u8>,
    header_length: usize,
    has_header_digest: bool,
    /// Where the data lies, if it has a digest.
    digested_data: Option<std::ops::Range<usize>>,
}

impl Draft {
    fn new(layout: &PduLayout, header: &[u8], data: &[u8]) -> Self {
        let mut bytes = header.to_vec();
        bytes.resize(layout.prefix_length().into(), 0);
        bytes.extend_from_slice(data);
        let data_start = bytes.len() - data.len();
        let digested_data = layout.data_digest_at().map(|_| data_start..bytes.len());
        if digested_data.is_some() {
            bytes.extend_from_slice(&[0; DIGEST_BYTES]);
        }
        let has_header_digest = layout.header_digest_at().is_some();
        Self { bytes, header_length: header.len(), has_header_digest, digested_data }
    }

    fn layout(kind: PduType, form: Form, data: &[u8]) -> PduLayout {
        let length = u32::try_from(data.len()).expect("short data");
        PduLayout::new(kind, form.digests, form.alignment, length).expect("the type carries data")
    }

    /// A command capsule with in-capsule data, which may be empty.
    pub fn command(form: Form, sqe: Sqe, data: &[u8]) -> Self {
        let layout = Self::layout(PduType::CapsuleCmd, form, data);
        Self::new(&layout, CapsuleCmd::new(&layout, sqe).as_bytes(), data)
    }

    /// A response capsule.
    pub fn completion(form: Form, cqe: Cqe) -> Self {
        let layout = PduLayout::without_data(PduType::CapsuleResp, form.digests);
        Self::new(&layout, CapsuleResp::new(form.digests, cqe).as_bytes(), &[])
    }

    /// An H2CData PDU.
    pub fn h2c_data(form: Form, cid: u16, ttag: u16, offset: u32, data: &[u8], is_last: bool) -> Self {
        let layout = Self::layout(PduType::H2cData, form, data);
        let header = DataPdu::h2c(&layout, U16::new(cid), U16::new(ttag), offset, is_last);
        Self::new(&layout, header.as_bytes(), data)
    }

    /// A C2HData PDU.
    pub fn c2h_data(form: Form, cid: u16, offset: u32, data: &[u8], flags: PduFlags) -> Self {
        let layout = Self::layout(PduType::C2hData, form, data);
        let header = DataPdu::c2h(&layout, U16::new(cid), offset, flags);
        Self::new(&layout, header.as_bytes(), data)
    }

    /// An R2T.
    pub fn r2t(form: Form, cid: u16, ttag: u16, offset: u32, length: u32) -> Self {
        let layout = PduLayout::without_data(PduType::R2t, form.digests);
        let header = R2t::new(form.digests, U16::new(cid), U16::new(ttag), offset, length);
        Self::new(&layout, header.as_bytes(), &[])
    }

    /// Overwrites bytes of the header at `offset`.
    #[must_use]
    pub fn with(mut self, offset: usize, bytes: &[u8]) -> Self {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Overwrites PLEN; the bytes sent stay the same.
    #[must_use]
    pub fn with_plen(self, plen: u32) -> Self {
        self.with(4, &plen.to_le_bytes())
    }

    /// Its PLEN.
    pub fn plen(&self) -> u32 {
        u32::from_le_bytes(self.bytes[4..8].try_into().expect("four bytes"))
    }

    /// Computes the digests and returns the bytes to send.
    pub fn seal(mut self) -> Vec<u8> {
        if self.has_header_digest {
            let digest = header_digest(&self.bytes[..self.header_length]);
            self.bytes[self.header_length..][..DIGEST_BYTES].copy_from_slice(&digest.to_le_bytes());
        }
        if let Some(data) = self.digested_data {
            let digest = data_digest(&self.bytes[data.clone()]);
            self.bytes[data.end..][..DIGEST_BYTES].copy_from_slice(&digest.to_le_bytes());
        }
        self.bytes
    }
}

/// A command capsule whose data pointer describes `data` as in-capsule.
pub fn in_capsule(form: Form, sqe: Sqe, data: &[u8]) -> Draft {
    let length = u32::try_from(data.len()).expect("short data");
    Draft::command(form, sqe.with_data(wire::sgl::Sgl::in_capsule(length)), data)
}

/// Cuts the first PDU from `received` if all of it is there.
pub fn cut(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let plen = u32::from_le_bytes(*received.get(4..)?.first_chunk()?) as usize;
    if received.len() < plen.max(8) {
        return None;
    }
    let rest = received.split_off(plen.max(8));
    Some(std::mem::replace(received, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::id::Nsid;

    #[test]
    fn a_sealed_pdu_has_digests_over_what_was_changed() {
        let form = Form { digests: Digests::all(), alignment: DataAlignment::NONE };
        let draft = in_capsule(form, Sqe::write(Nsid::new(1), 0, 1), &[7; 512]).with(1, &[0x43]);
        assert_eq!(draft.plen(), 72 + 4 + 512 + 4);
        let bytes = draft.seal();
        assert_eq!((bytes[1], bytes.len()), (0x43, 72 + 4 + 512 + 4));
        assert_eq!(bytes[72..76], header_digest(&bytes[..72]).to_le_bytes());
        assert_eq!(bytes[588..], data_digest(&[7; 512]).to_le_bytes());
    }
}
