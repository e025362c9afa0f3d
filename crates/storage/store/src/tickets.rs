//! State of a backend's requests in flight, by ticket.
//!
//! A table keeps its capacity: nothing is allocated in steady state.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::namespace::Ticket;

/// Requests in flight by ticket.
pub(crate) type Tickets<T> = HashMap<Ticket, T, BuildHasherDefault<TicketHasher>>;

/// Hashes tickets. We choose the tickets, so no peer can construct collisions.
#[derive(Default)]
pub(crate) struct TicketHasher(u64);

impl Hasher for TicketHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The table takes its bucket from the low bits and a tag from the high ones: fold both halves of the product.
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        let folded = (product as u64) ^ (product >> 64) as u64;
        self.0 = folded;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Tickets are slots with a generation above them: all that differ in either have places of their own.
    #[test]
    fn tickets_spread_over_buckets_and_tags() {
        for shift in [0, 8, 24, 32, 48] {
            let hashes = (0..128u64).map(|number| {
                let mut hasher = TicketHasher::default();
                hasher.write_u64(number << shift);
                hasher.finish()
            });
            let (buckets, tags): (BTreeSet<u64>, BTreeSet<u64>) =
                hashes.map(|hash| (hash & 127, hash >> 57)).unzip();
            assert!(buckets.len() > 64, "{} buckets at bit {shift}", buckets.len());
            assert!(tags.len() > 32, "{} tags at bit {shift}", tags.len());
        }
    }
}
