//! Data digests of long values, a part per turn, so that one lane does not stall the others of its reactor.
//!
//! ```text
//! value, in chunks ─▶ digest of its first PDU ─ turn ─▶ … ─▶ of its last ─▶ sent
//! ```
//!
//! Chunks never change, so digests computed ahead are valid when the value is sent.

use std::collections::VecDeque;

use memory::Payload;
use store::Ticket;
use wire::sqe::Sqe;

use crate::io_path::running::{Owner, Running, RunningTable, Step};
use crate::messages::key_value::digested::Digested;

/// The Retrieves whose values are digested, in turn.
#[derive(Default)]
pub(crate) struct DigestQueue(VecDeque<Ticket>);

impl DigestQueue {
    /// Whether no value is being digested.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Queues a value that is sent once its digests are known. Returns the ticket of its command.
    #[cold]
    pub(crate) fn add(
        &mut self,
        running: &mut RunningTable,
        (owner, sqe): (Owner, &Sqe),
        digested: Digested,
    ) -> Ticket {
        let payload = match &digested.payload {
            Payload::Ranges(ranges) => ranges.of(),
            payload => payload,
        };
        let taken_bytes = match payload {
            Payload::Chunks(_, rest) => match &**rest {
                Payload::Buffer(buffer) => buffer.capacity(),
                _ => 0,
            },
            _ => 0,
        };
        let ticket = running.insert(Running::new(owner, *sqe, None, Step::Digesting(Box::new(digested))));
        running.charge(ticket, taken_bytes);
        self.0.push_back(ticket);
        ticket
    }

    /// Computes digests of the next value. Returns the value once all are known.
    pub(crate) fn go_on(&mut self, running: &mut RunningTable) -> Option<(Running, Digested)> {
        let ticket = self.0.pop_front()?;
        // Aborted, or its lane has ended.
        let Step::Digesting(digested) = &mut running.get_mut(ticket)?.step else { return None };
        if !digested.go_on() {
            self.0.push_back(ticket);
            return None;
        }
        let mut done = running.remove(ticket)?;
        match std::mem::replace(&mut done.step, Step::Between) {
            Step::Digesting(digested) => Some((done, *digested)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memory::{CHUNK_BYTES, Chunks};

    use super::*;
    use crate::io_path::lane::payload_digest;
    use crate::messages::key_value::digested::TURN_BYTES;

    #[test]
    fn digests_of_parts_are_those_of_the_pdus_whatever_their_length() {
        let mut source = Chunks::new(3, 3).unwrap();
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
