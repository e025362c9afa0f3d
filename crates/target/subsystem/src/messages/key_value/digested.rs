//! A long value whose data digests are computed before it is sent, a part per turn.

use std::ops::Range;

use memory::Payload;
use proto::DataDigest;

/// Bytes digested per turn. Shorter values are digested when they are sent.
pub(crate) const TURN_BYTES: u32 = 1 << 20;

/// A value that is sent once the digests of its PDUs are computed.
#[derive(Debug)]
pub(crate) struct Digested {
    pub(crate) payload: Payload,
    /// Bytes of the payload to send.
    pub(crate) length: u32,
    pub(crate) result: u64,
    /// Bytes of each PDU but the last.
    pdu_bytes: u32,
    /// Digests of the finished PDUs.
    digests: Vec<u32>,
    /// Digest of the next PDU so far.
    digest: DataDigest,
    /// Bytes digested.
    at: u32,
}

/// Whether digesting a payload takes longer than a turn allows.
#[inline]
pub(crate) fn takes_long(payload: &Payload, length: u32) -> bool {
    length > TURN_BYTES && matches!(payload, Payload::Chunks(..) | Payload::Ranges(_))
}

impl Digested {
    pub(crate) fn new(payload: Payload, length: u32, result: u64, pdu_bytes: u32) -> Self {
        let digests = Vec::with_capacity(length.div_ceil(pdu_bytes) as usize);
        Self { payload, length, result, pdu_bytes, digests, digest: DataDigest::new(), at: 0 }
    }

    /// Continues within the budget of a turn. Returns whether all digests are known.
    pub(crate) fn go_on(&mut self) -> bool {
        let end = self.length.min(self.at.saturating_add(TURN_BYTES));
        while self.at < end {
            let of_pdu = self.at % self.pdu_bytes;
            let part_end = end.min(self.at.saturating_add(self.pdu_bytes - of_pdu));
            let digest = &mut self.digest;
            self.payload.for_each_piece(self.at as usize..part_end as usize, |piece| digest.update(piece));
            self.at = part_end;
            if self.at.is_multiple_of(self.pdu_bytes) || self.at == self.length {
                self.digests.push(std::mem::take(&mut self.digest).finish());
            }
        }
        self.at == self.length
    }

    /// The value, and the digests of its PDUs with the bytes each covers.
    pub(crate) fn into_parts(self) -> (Payload, impl Fn(&Payload, Range<usize>) -> u32) {
        let Self { payload, pdu_bytes, digests, .. } = self;
        (payload, move |_: &Payload, range: Range<usize>| digests[range.start / pdu_bytes as usize])
    }
}
