//! PDUs built byte by byte from the tables of wire §2 and §3, without the encoders under test.

use wire::digest::data_digest;

/// Flags of a PDU. wire §2.1
pub(crate) const HDGST: u8 = 1;
pub(crate) const DDGST: u8 = 2;
pub(crate) const LAST: u8 = 4;
pub(crate) const SUCCESS: u8 = 8;

/// Opcodes that these tests use.
pub(crate) const WRITE: u8 = 0x01;
pub(crate) const READ: u8 = 0x02;
pub(crate) const FLUSH: u8 = 0x00;
pub(crate) const FABRICS: u8 = 0x7F;
#[allow(dead_code, reason = "not every test program has a use for it")]
pub(crate) const EVENT_REQUEST: u8 = 0x0C;

/// Byte 15 of a data pointer. wire §5.3
pub(crate) const IN_CAPSULE: u8 = 0x01;
pub(crate) const TRANSPORT: u8 = 0x5A;

/// Negotiated layout of one direction: digests as in `dgst`, alignment as in `cpda` or `hpda`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub(crate) digests: u8,
    pub(crate) alignment: u8,
}

impl Dialect {
    pub(crate) const PLAIN: Self = Self { digests: 0, alignment: 0 };
    pub(crate) const HEADER_DIGEST: Self = Self { digests: 1, alignment: 0 };
    pub(crate) const BOTH_DIGESTS: Self = Self { digests: 3, alignment: 0 };

    /// Every combination of digests, without and with padding.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [0, 6, 31].into_iter().flat_map(|alignment| (0..4).map(move |digests| Self { digests, alignment }))
    }

    /// Header and header digest.
    pub(crate) fn prefix(self, hlen: u8) -> usize {
        usize::from(hlen) + if self.digests & HDGST != 0 { 4 } else { 0 }
    }

    /// Offset of data after a header of this length.
    pub(crate) fn pdo(self, hlen: u8) -> usize {
        self.prefix(hlen).next_multiple_of((usize::from(self.alignment) + 1) * 4)
    }

    /// Length of the data digest, bytes.
    pub(crate) fn trailer(self) -> usize {
        if self.digests & DDGST != 0 { 4 } else { 0 }
    }

    /// A PDU: `rest` is its header from byte 8 on.
    pub(crate) fn pdu(self, kind: u8, more: u8, rest: &[u8], data: &[u8]) -> Vec<u8> {
        let hlen = u8::try_from(8 + rest.len()).unwrap();
        let prefix = self.prefix(hlen);
        let (flags, pdo, plen) = if data.is_empty() {
            (self.digests & HDGST, 0, prefix)
        } else {
            let pdo = self.pdo(hlen);
            (self.digests, pdo, pdo + data.len() + self.trailer())
        };
        let mut bytes = vec![kind, flags | more, hlen, u8::try_from(pdo).unwrap()];
        bytes.extend_from_slice(&u32::try_from(plen).unwrap().to_le_bytes());
        bytes.extend_from_slice(rest);
        if flags & HDGST != 0 {
            let digest = data_digest(&bytes);
            bytes.extend_from_slice(&digest.to_le_bytes());
        }
        bytes.resize(bytes.len().max(pdo), 0);
        bytes.extend_from_slice(data);
        if flags & DDGST != 0 {
            bytes.extend_from_slice(&data_digest(data).to_le_bytes());
        }
        bytes
    }

    /// wire §2.5
    pub(crate) fn command(self, sqe: [u8; 64], data: &[u8]) -> Vec<u8> {
        self.pdu(0x04, 0, &sqe, data)
    }

    /// wire §2.6
    pub(crate) fn response(self, cqe: [u8; 16]) -> Vec<u8> {
        self.pdu(0x05, 0, &cqe, &[])
    }

    /// wire §2.7
    pub(crate) fn h2c(self, cid: u16, ttag: u16, offset: u32, data: &[u8], more: u8) -> Vec<u8> {
        self.pdu(0x06, more, &data_rest(cid, ttag, offset, data.len()), data)
    }

    /// wire §2.7
    pub(crate) fn c2h(self, cid: u16, offset: u32, data: &[u8], more: u8) -> Vec<u8> {
        self.pdu(0x07, more, &data_rest(cid, 0, offset, data.len()), data)
    }

    /// wire §2.8
    pub(crate) fn r2t(self, cid: u16, ttag: u16, offset: u32, length: u32) -> Vec<u8> {
        self.pdu(0x09, 0, &data_rest(cid, ttag, offset, length as usize), &[])
    }

    /// `pdu` with `bytes` written at offset `at`. A change of the header updates its digest.
    pub(crate) fn with(self, mut pdu: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
        let hlen = header_length(pdu[0]);
        pdu[at..at + bytes.len()].copy_from_slice(bytes);
        if self.digests & HDGST != 0 && hlen != 128 && at < hlen {
            let digest = data_digest(&pdu[..hlen]);
            pdu[hlen..hlen + 4].copy_from_slice(&digest.to_le_bytes());
        }
        pdu
    }
}

/// Bytes of the header of a type. wire §2.1
pub(crate) fn header_length(kind: u8) -> usize {
    match kind {
        0x00 | 0x01 => 128,
        0x04 => 72,
        _ => 24,
    }
}

fn data_rest(cid: u16, ttag: u16, offset: u32, length: usize) -> [u8; 16] {
    let mut rest = [0; 16];
    rest[..2].copy_from_slice(&cid.to_le_bytes());
    rest[2..4].copy_from_slice(&ttag.to_le_bytes());
    rest[4..8].copy_from_slice(&offset.to_le_bytes());
    rest[8..12].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
    rest
}

fn handshake(kind: u8, alignment: u8, digests: u8, limit: u32) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    bytes[0] = kind;
    bytes[2] = 128;
    bytes[4] = 128;
    bytes[10] = alignment;
    bytes[11] = digests;
    bytes[12..16].copy_from_slice(&limit.to_le_bytes());
    bytes
}

/// wire §2.2
pub(crate) fn ic_req(hpda: u8, digests: u8, maxr2t: u32) -> Vec<u8> {
    handshake(0x00, hpda, digests, maxr2t)
}

/// wire §2.3
pub(crate) fn ic_resp(cpda: u8, digests: u8, maxh2cdata: u32) -> Vec<u8> {
    handshake(0x01, cpda, digests, maxh2cdata)
}

/// A TermReq of type 0x02 or 0x03. wire §2.4
pub(crate) fn term_req(kind: u8, fes: u16, fei: u32, copy: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 24];
    bytes[0] = kind;
    bytes[2] = 24;
    bytes[4..8].copy_from_slice(&u32::try_from(24 + copy.len()).unwrap().to_le_bytes());
    bytes[8..10].copy_from_slice(&fes.to_le_bytes());
    bytes[10..14].copy_from_slice(&fei.to_le_bytes());
    bytes.extend_from_slice(copy);
    bytes
}

/// A command with a data pointer of this kind and length. wire §5.1
pub(crate) fn sqe(opcode: u8, cid: u16, pointer: u8, length: u32) -> [u8; 64] {
    let mut sqe = [0; 64];
    sqe[0] = opcode;
    sqe[1] = 0x40;
    sqe[2..4].copy_from_slice(&cid.to_le_bytes());
    sqe[4] = 1;
    sqe[32..36].copy_from_slice(&length.to_le_bytes());
    sqe[39] = pointer;
    sqe
}

/// A completion: result 0, an SQ head, the status word as on the wire. wire §5.2
pub(crate) fn cqe(cid: u16, sqhd: u16, status: u16) -> [u8; 16] {
    let mut cqe = [0; 16];
    cqe[8..10].copy_from_slice(&sqhd.to_le_bytes());
    cqe[12..14].copy_from_slice(&cid.to_le_bytes());
    cqe[14..16].copy_from_slice(&status.to_le_bytes());
    cqe
}

/// Bytes that depend on their offset.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// The PDUs of a well-formed stream.
pub(crate) fn cut(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut pdus = Vec::new();
    while !stream.is_empty() {
        let plen = u32::from_le_bytes(stream[4..8].try_into().unwrap()) as usize;
        let (pdu, rest) = stream.split_at(plen);
        pdus.push(pdu);
        stream = rest;
    }
    pdus
}
