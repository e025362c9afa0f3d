//! Data digests of long values, a part per turn, so that one lane does not stall the others of its reactor.
//!
//! ```text
//! value, in chunks ─▶ digest of its first PDU ─ turn ─▶ … ─▶ of its last ─▶ sent
//! ```
//!
//! Chunks never change, so digests computed ahead are valid when the value is sent.

use reactor::Payload;
use store::Ticket;
use wire::sqe::Sqe;

use crate::commands::Commands;
use crate::key_value::digested::Digested;
use crate::running::{Owner, Running, Step};

impl Commands {
    /// Queues a value that is sent in PDUs of this many bytes, until their digests are known.
    #[cold]
    pub(crate) fn digest_first(
        &mut self,
        (owner, sqe): (Owner, &Sqe),
        payload: Payload,
        length: u32,
        result: u64,
        pdu_bytes: u32,
    ) -> Ticket {
        let taken_bytes = match &payload {
            Payload::Chunks(_, rest) => match &**rest {
                Payload::Buffer(buffer) => buffer.capacity(),
                _ => 0,
            },
            _ => 0,
        };
        let digested = Digested::new(payload, length, result, pdu_bytes);
        let ticket =
            self.running.insert(Running::new(owner, *sqe, None, Step::Digesting(Box::new(digested))));
        self.running.charge(ticket, taken_bytes);
        self.digesting.push_back(ticket);
        ticket
    }

    /// Computes digests of the next value. Returns the value once all are known.
    pub(crate) fn digest_next(&mut self) -> Option<(Running, Digested)> {
        let ticket = self.digesting.pop_front()?;
        // Aborted, or its lane has ended.
        let Step::Digesting(digested) = &mut self.running.get_mut(ticket)?.step else { return None };
        if !digested.go_on() {
            self.digesting.push_back(ticket);
            return None;
        }
        let mut running = self.running.remove(ticket)?;
        match std::mem::replace(&mut running.step, Step::Between) {
            Step::Digesting(digested) => Some((running, *digested)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use reactor::{CHUNK_BYTES, Chunks};

    use super::*;
    use crate::key_value::digested::TURN_BYTES;
    use crate::lane::payload_digest;

    #[test]
    fn digests_of_parts_are_those_of_the_pdus_whatever_their_length() {
        let mut source = Chunks::new(3).unwrap();
        let mut chunk = |fill: u8| {
            assert!(source.open());
            let mut chunk = source.take().unwrap();
            chunk.fill(fill);
            chunk
        };
        let chunks = Arc::new(vec![chunk(1), chunk(2), chunk(3)]);
        for pdu_bytes in [8192, 700_000, 1 << 20, 5 << 20] {
            let rest = Payload::Heap(vec![4; 70_001].into());
            let payload = Payload::Chunks(Arc::clone(&chunks), Box::new(rest));
            let length = 3 * CHUNK_BYTES as u32 + 70_001;
            let mut digested = Digested::new(payload, length, 0, pdu_bytes);
            let mut turn_count = 1;
            while !digested.go_on() {
                turn_count += 1;
            }
            assert_eq!(turn_count, length.div_ceil(TURN_BYTES));
            let (payload, digest) = digested.into_parts();
            for start in (0..length).step_by(pdu_bytes as usize) {
                let range = start as usize..length.min(start + pdu_bytes) as usize;
                assert_eq!(digest(&payload, range.clone()), payload_digest(&payload, range));
            }
        }
    }
}
