//! The order in which exponentiations are computed. One thread computes them, each takes milliseconds, and any peer
//! that connects can ask for some.
//!
//! ```text
//! addresses take turns, by the time that their exponentiations take:  ends = begins + time of the group; the earliest end first
//!   of one address: hosts that have authenticated before, then the cheapest group, then replies, then the first come
//! ```
//!
//! Times are virtual: an address begins where it ended, or at the beginning of the exponentiation given out last, if
//! that is later. So a host with ffdhe2048 does not wait for hosts with ffdhe8192 that have had a turn of that time:
//! whatever their number, their turns end later. The waiting exponentiations of an address are bounded: beyond the
//! bound the last one, which is that of the most expensive group, is dropped.

use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, BTreeSet};

use crate::names::lane_id::LaneId;
use reactor::Source;

/// Exponentiations of an address that wait, of hosts that have not authenticated before. A host of Linux authenticates one
/// queue after the other, so these are as many hosts behind one address.
const WAITING_PER_ADDRESS_MAX: usize = 256;

/// Addresses of which none waits, and whose turns are remembered.
const REMEMBERED_COUNT_MAX: usize = 1024;

/// The place of an exponentiation among those of its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Its host has not authenticated before.
    pub(super) is_stranger: bool,
    /// Time that it takes, in any unit.
    pub(super) time: u64,
    /// A key pair, not the answer to a reply.
    pub(super) is_key_pair: bool,
}

/// An exponentiation in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    source: Source,
    pub(super) rank: Rank,
    arrival: u64,
}

/// The exponentiations of one address.
#[derive(Debug, Default)]
struct Turns {
    /// When its next one begins, in virtual time.
    begins: u64,
    waiting: BTreeMap<(Rank, u64), LaneId>,
    /// Its entry among the heads.
    head: Option<(u64, u64, u64)>,
}

/// Exponentiations that wait. One is given out at a time: so the next one is chosen when it can begin.
#[derive(Debug, Default)]
pub(super) struct Exponentiations {
    sources: BTreeMap<Source, Turns>,
    /// The next one of each address: end, time, arrival.
    heads: BTreeSet<((u64, u64, u64), Source)>,
    /// Virtual time: the beginning of the last one that was given out.
    now: u64,
    arrivals: u64,
    /// One is being computed.
    is_running: bool,
}

impl Exponentiations {
    /// Queues one. Returns the lane whose exponentiation is dropped because its address has too many; it may be this
    /// lane.
    pub(super) fn add(&mut self, lane: LaneId, source: Source, rank: Rank) -> (Ticket, Option<LaneId>) {
        self.arrivals = self.arrivals.saturating_add(1);
        let ticket = Ticket { source, rank, arrival: self.arrivals };
        let turns = self.sources.entry(source).or_default();
        if turns.waiting.is_empty() {
            turns.begins = turns.begins.max(self.now);
        }
        turns.waiting.insert((rank, ticket.arrival), lane);
        // Those of strangers are the last.
        let too_many = turns.waiting.len() > WAITING_PER_ADDRESS_MAX;
        let last = turns.waiting.last_entry().filter(|last| too_many && last.key().0.is_stranger);
        let refused = last.map(OccupiedEntry::remove);
        self.set_head(source);
        (ticket, refused)
    }

    /// Removes one from the queue.
    pub(super) fn remove(&mut self, ticket: &Ticket) {
        if let Some(turns) = self.sources.get_mut(&ticket.source) {
            turns.waiting.remove(&(ticket.rank, ticket.arrival));
            self.set_head(ticket.source);
        }
    }

    /// The lane whose exponentiation is computed next, unless one is being computed; the caller reports its end to
    /// [`on_done`](Self::on_done).
    pub(super) fn next(&mut self) -> Option<LaneId> {
        if self.is_running {
            return None;
        }
        let (_, source) = self.heads.first().copied()?;
        let turns = self.sources.get_mut(&source)?;
        let ((rank, _), lane) = turns.waiting.pop_first()?;
        self.now = self.now.max(turns.begins);
        turns.begins = turns.begins.saturating_add(rank.time);
        self.is_running = true;
        self.set_head(source);
        Some(lane)
    }

    /// One that was given out has been computed, or need not be.
    pub(super) fn on_done(&mut self) {
        self.is_running = false;
        if self.is_idle() {
            // An address is not charged for exponentiations that were computed while no other address waited.
            *self = Self { arrivals: self.arrivals, ..Self::default() };
        }
    }

    /// Whether none waits, and none is computed.
    pub(super) fn is_idle(&self) -> bool {
        self.heads.is_empty() && !self.is_running
    }

    /// Whether one of this address waits.
    pub(super) fn has_waiting(&self, source: Source) -> bool {
        self.sources.get(&source).is_some_and(|turns| !turns.waiting.is_empty())
    }

    /// Puts the next one of an address among the heads, in place of the one before.
    fn set_head(&mut self, source: Source) {
        let Some(turns) = self.sources.get_mut(&source) else { return };
        if let Some(before) = turns.head.take() {
            self.heads.remove(&(before, source));
        }
        if let Some((rank, arrival)) = turns.waiting.keys().next() {
            let head = (turns.begins.saturating_add(rank.time), rank.time, *arrival);
            turns.head = Some(head);
            self.heads.insert((head, source));
        } else if turns.begins <= self.now {
            // It would begin now, like an unknown address.
            self.sources.remove(&source);
        }
        // Addresses that have had more than others, and ask for nothing, are remembered, up to a limit.
        if self.sources.len() > self.heads.len().saturating_add(REMEMBERED_COUNT_MAX) {
            self.sources.retain(|_, turns| turns.head.is_some());
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use security::group::Group;

    use super::*;

    fn source(number: u32) -> Source {
        Source::from(std::net::IpAddr::V4(number.into()))
    }

    fn lane(number: u32) -> LaneId {
        LaneId { reactor: 0, index: number, generation: 0 }
    }

    fn rank(group: Group, is_key_pair: bool) -> Rank {
        Rank { is_stranger: true, time: group.time(), is_key_pair }
    }

    /// The lanes in the order in which they are computed.
    fn order(exponentiations: &mut Exponentiations) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some(lane) = exponentiations.next() {
            order.push(lane.index);
            exponentiations.on_done();
        }
        order
    }

    #[test]
    fn a_cheap_one_waits_for_no_crowd_of_expensive_ones() {
        let mut all = Exponentiations::default();
        // Of a thousand addresses, again and again.
        for number in 0..3000 {
            all.add(lane(number), source(number % 1000), rank(Group::Ffdhe8192, true));
        }
        for number in 0..1000 {
            // Some of the crowd are served at any time, and come back.
            let served = all.next().expect("one of the crowd").index;
            all.add(lane(served), source(served % 1000), rank(Group::Ffdhe8192, true));
            all.on_done();
            all.add(lane(10_000), source(50_000 + number), rank(Group::Ffdhe2048, true));
            assert_eq!(all.next(), Some(lane(10_000)), "{number}");
            all.on_done();
        }
        // A host that connects one queue after the other waits for none of them until it has had the time of one.
        for number in 0..32 {
            all.add(lane(10_000), source(40_000), rank(Group::Ffdhe2048, true));
            assert_eq!(all.next(), Some(lane(10_000)), "{number}");
            all.on_done();
        }
        // Of its own address.
        let mut all = Exponentiations::default();
        for number in 0..200 {
            all.add(lane(number), source(1), rank(Group::Ffdhe8192, true));
        }
        all.next();
        all.add(lane(10_000), source(1), rank(Group::Ffdhe2048, true));
        all.on_done();
        assert_eq!(all.next(), Some(lane(10_000)));
    }

    #[test]
    fn addresses_have_equal_shares_of_the_time() {
        let mut all = Exponentiations::default();
        // One address with a crowd, one with a few; then one with an expensive group.
        for number in 0..100 {
            all.add(lane(number), source(1), rank(Group::Ffdhe2048, true));
        }
        for number in 100..103 {
            all.add(lane(number), source(2), rank(Group::Ffdhe2048, true));
        }
        all.add(lane(200), source(3), rank(Group::Ffdhe8192, true));
        let order = order(&mut all);
        assert_eq!(order[..7], [0, 100, 1, 101, 2, 102, 3]);
        // In the time of one exponentiation with ffdhe8192 the others have as much.
        let at = order.iter().position(|lane| *lane == 200).unwrap();
        assert_eq!(at, 32 + 3, "{order:?}");
        assert_eq!(order.len(), 104);
    }

    /// An address that asks again at once is no newcomer.
    #[test]
    fn who_comes_back_at_once_has_no_more_than_others() {
        let mut all = Exponentiations::default();
        for number in 0..20 {
            all.add(lane(number), source(1), rank(Group::Ffdhe2048, true));
        }
        all.add(lane(100), source(2), rank(Group::Ffdhe2048, true));
        all.add(lane(101), source(3), rank(Group::Ffdhe2048, true));
        let mut of_first = 0;
        for _ in 0..30 {
            let served = all.next().expect("there are some").index;
            match served {
                100 | 101 => {
                    all.add(lane(served), source(served - 98), rank(Group::Ffdhe2048, true));
                }
                _ => of_first += 1,
            }
            all.on_done();
        }
        assert_eq!(of_first, 10);
    }

    #[test]
    fn within_an_address_the_order_is_by_trust_group_reply_and_arrival() {
        let mut all = Exponentiations::default();
        let trusted = |group| Rank { is_stranger: false, ..rank(group, true) };
        let ranks = [
            rank(Group::Ffdhe8192, true),
            rank(Group::Ffdhe2048, true),
            rank(Group::Ffdhe2048, true),
            rank(Group::Ffdhe2048, false),
            rank(Group::Ffdhe8192, false),
            trusted(Group::Ffdhe8192),
        ];
        let tickets: Vec<Ticket> = ranks
            .into_iter()
            .zip(0..)
            .map(|(rank, number)| all.add(lane(number), source(1), rank).0)
            .collect();
        assert!(all.has_waiting(source(1)) && !all.has_waiting(source(2)));
        all.remove(&tickets[4]);
        all.remove(&tickets[4]);
        assert_eq!(order(&mut all), [5, 3, 1, 2, 0]);
        assert!(all.is_idle() && all.sources.is_empty());
    }

    #[test]
    fn an_address_has_a_bounded_number_and_the_most_expensive_one_goes() {
        let mut all = Exponentiations::default();
        let max = u32::try_from(WAITING_PER_ADDRESS_MAX).unwrap();
        for number in 0..max {
            assert_eq!(all.add(lane(number), source(1), rank(Group::Ffdhe8192, true)).1, None);
        }
        assert_eq!(all.add(lane(9000), source(1), rank(Group::Ffdhe8192, true)).1, Some(lane(9000)));
        assert_eq!(all.add(lane(9001), source(1), rank(Group::Ffdhe2048, true)).1, Some(lane(max - 1)));
        assert_eq!(all.add(lane(9002), source(2), rank(Group::Ffdhe8192, true)).1, None);
        // Hosts that have authenticated before are bounded by their queues.
        let trusted = Rank { is_stranger: false, ..rank(Group::Ffdhe2048, true) };
        for number in 0..2 * max {
            all.add(lane(10_000 + number), source(1), trusted);
        }
        assert_eq!(all.add(lane(20_000), source(1), trusted).1, None);
        assert_eq!(order(&mut all)[0], 10_000);
    }

    #[test]
    fn one_is_given_out_at_a_time() {
        let mut all = Exponentiations::default();
        for number in 0..3 {
            all.add(lane(number), source(number), rank(Group::Ffdhe2048, true));
        }
        assert_eq!([all.next(), all.next()], [Some(lane(0)), None]);
        all.on_done();
        assert_eq!([all.next(), all.next()], [Some(lane(1)), None]);
    }

    #[test]
    fn addresses_without_a_claim_are_forgotten() {
        let mut all = Exponentiations::default();
        all.add(lane(0), source(0), rank(Group::Ffdhe8192, true));
        for number in 1..20_000 {
            all.add(lane(number), source(number), rank(Group::Ffdhe2048, true));
            all.next();
            all.on_done();
        }
        assert!(all.sources.len() < 10_000, "{}", all.sources.len());
    }
}
