//! The receive plan: the memory for the next bytes of a connection, and how much one turn reads.
//! docs/design/socket-path.md
//!
//! ```text
//! a place at least in_place_bytes long:   place (cut to PLACED_BYTES_MAX) │ staging, unless the place was cut
//! otherwise:                              staging
//! ```

use std::fmt;
use std::io::IoSliceMut;
use std::str::FromStr;

/// Most bytes of one payload received at once: the rest waits until other lanes have had their turn.
const PLACED_BYTES_MAX: usize = 512 << 10;

/// Staging offered behind a payload that a host receives in place, bytes: room for the headers that follow it.
const LOOKAHEAD_BYTES: usize = 4096;

/// Most receives of a host's lane in one turn.
const HOST_RECEIVE_COUNT_MAX: u32 = 8;

/// Bytes after which a host's lane begins no further receive in a turn.
const HOST_TURN_BYTES_MAX: usize = 1 << 20;

/// Most receives in one turn when each brings a part of one PDU.
const PDU_RECEIVE_COUNT_MAX: u32 = 1024;

/// The mode of receiving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receive {
    /// Everything the socket has, in one call, into a staging buffer that stays in cache.
    #[default]
    Staging,
    /// PDU by PDU: the common header, the rest of the header, then the data, in place if it has a buffer. Exists only
    /// to measure the gain of the default.
    Pdu,
}

/// The error for an unknown receive mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown receive mode {0:?}: write staging or pdu")]
pub struct UnknownReceive(String);

impl FromStr for Receive {
    type Err = UnknownReceive;

    fn from_str(text: &str) -> Result<Self, UnknownReceive> {
        match text {
            "staging" => Ok(Self::Staging),
            "pdu" => Ok(Self::Pdu),
            _ => Err(UnknownReceive(text.to_owned())),
        }
    }
}

impl fmt::Display for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Staging => "staging",
            Self::Pdu => "pdu",
        })
    }
}

/// The receive plan of a connection.
///
/// A driver takes a [`turn`](Self::turn), and while that goes on passes the memory it has to
/// [`receive`](Self::receive).
#[derive(Clone, Copy, Debug)]
pub struct ReceivePlan {
    receive: Receive,
    /// Shortest place that is received into, bytes.
    in_place_bytes: usize,
    /// Staging offered behind a place, bytes.
    lookahead_bytes: usize,
    receive_count_max: u32,
    turn_bytes_max: usize,
    /// The next payload is probably large: offer little staging, so that it is received in place.
    expects_large: bool,
}

impl ReceivePlan {
    /// The plan of a server's connection: one receive per turn, with all of staging behind a place.
    #[must_use]
    pub const fn for_target(receive: Receive, in_place_bytes: usize) -> Self {
        Self {
            receive,
            in_place_bytes,
            lookahead_bytes: usize::MAX,
            receive_count_max: 1,
            turn_bytes_max: usize::MAX,
            expects_large: false,
        }
        .by_pdu()
    }

    /// The plan of a host's lane: several receives per turn, with little staging behind a place, because the next
    /// payload is often as large.
    #[must_use]
    pub const fn for_host(receive: Receive, in_place_bytes: usize) -> Self {
        Self {
            receive,
            in_place_bytes,
            lookahead_bytes: LOOKAHEAD_BYTES,
            receive_count_max: HOST_RECEIVE_COUNT_MAX,
            turn_bytes_max: HOST_TURN_BYTES_MAX,
            expects_large: false,
        }
        .by_pdu()
    }

    /// Adapts the plan if its mode is [`Receive::Pdu`].
    const fn by_pdu(mut self) -> Self {
        if matches!(self.receive, Receive::Pdu) {
            self.in_place_bytes = 1;
            self.lookahead_bytes = 0;
            self.receive_count_max = PDU_RECEIVE_COUNT_MAX;
        }
        self
    }

    /// The plan of one receive, if the next bytes are probably the header of a large payload.
    #[inline]
    #[must_use]
    pub const fn before_large(mut self) -> Self {
        self.expects_large = true;
        if self.lookahead_bytes > LOOKAHEAD_BYTES {
            self.lookahead_bytes = LOOKAHEAD_BYTES;
        }
        self
    }

    /// Begins a turn.
    #[inline]
    #[must_use]
    pub const fn turn(&self) -> ReceiveTurn {
        ReceiveTurn { count_left: self.receive_count_max, bytes_left: self.turn_bytes_max, is_emptied: false }
    }

    /// Bytes of a staging buffer of `staging_bytes` to offer in the next receive. `wanted_bytes` gives the bytes up to
    /// the end of the current part of a PDU, and is called in mode [`Receive::Pdu`] only.
    #[inline]
    #[must_use]
    pub fn staging_bytes(&self, staging_bytes: usize, wanted_bytes: impl FnOnce() -> usize) -> usize {
        let most = match self.receive {
            Receive::Pdu => wanted_bytes(),
            Receive::Staging if self.expects_large => self.lookahead_bytes,
            Receive::Staging => staging_bytes,
        };
        most.min(staging_bytes)
    }

    /// Calls `receive` with the memory for the next receive: `place`, the rest of the current payload's buffer, as far
    /// as it is received in place, and behind it the offered part of `staging`. Returns the result of `receive`, and
    /// the memory that it was given.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "no length exceeds that of its slice")]
    pub fn receive<R>(
        &self,
        place: Option<&mut [u8]>,
        staging: &mut [u8],
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> R,
    ) -> (R, Extent) {
        match place {
            Some(place) if !place.is_empty() && place.len() >= self.in_place_bytes => {
                let in_place_bytes = place.len().min(PLACED_BYTES_MAX);
                let is_cut = in_place_bytes < place.len();
                let staging_bytes = if is_cut { 0 } else { staging.len().min(self.lookahead_bytes) };
                let place = IoSliceMut::new(&mut place[..in_place_bytes]);
                let mut into = [place, IoSliceMut::new(&mut staging[..staging_bytes])];
                (receive(&mut into), Extent { in_place_bytes, staging_bytes })
            }
            _ => {
                let extent = Extent { in_place_bytes: 0, staging_bytes: staging.len() };
                (receive(&mut [IoSliceMut::new(staging)]), extent)
            }
        }
    }

    /// Learns from a receive of `count` bytes into `extent`, once they are taken in; `place_bytes` is the length of the
    /// place now, 0 if there is none.
    #[inline]
    pub const fn on_taken_in(&mut self, extent: Extent, count: usize, place_bytes: usize) {
        let is_within_large = place_bytes > 0 && place_bytes >= self.in_place_bytes;
        let was_cut = extent.in_place_bytes > 0 && extent.staging_bytes == 0;
        let was_alone = extent.in_place_bytes > 0 && !extent.is_filled_by(count);
        self.expects_large = is_within_large || was_cut || was_alone;
    }
}

/// The memory of one receive: the front of a place, and behind it the front of staging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    in_place_bytes: usize,
    staging_bytes: usize,
}

impl Extent {
    /// Of `count` received bytes, those that are in place; the others are in staging.
    #[inline]
    #[must_use]
    pub fn in_place(self, count: usize) -> usize {
        count.min(self.in_place_bytes)
    }

    /// Whether `count` bytes fill all of it, so that the socket may have more.
    #[inline]
    #[must_use]
    pub const fn is_filled_by(self, count: usize) -> bool {
        count == self.in_place_bytes.saturating_add(self.staging_bytes)
    }
}

/// The receives of one connection in one turn.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveTurn {
    count_left: u32,
    bytes_left: usize,
    /// The last receive took everything the socket had.
    is_emptied: bool,
}

impl ReceiveTurn {
    /// Whether the turn has another receive.
    #[inline]
    #[must_use]
    pub const fn goes_on(&self) -> bool {
        !self.is_emptied && self.count_left > 0 && self.bytes_left > 0
    }

    /// Whether the socket may have more, which waits for the next turn if this one is over.
    #[inline]
    #[must_use]
    pub const fn has_more(&self) -> bool {
        !self.is_emptied
    }

    /// A receive into `extent` brought `count` bytes.
    #[inline]
    pub const fn on_received(&mut self, extent: Extent, count: usize) {
        self.count_left = self.count_left.saturating_sub(1);
        self.bytes_left = self.bytes_left.saturating_sub(count);
        self.is_emptied = !extent.is_filled_by(count);
    }

    /// The socket has nothing, or is closed.
    #[inline]
    pub const fn on_dry(&mut self) {
        self.is_emptied = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of the next receive, of a place of `place_bytes` and 64 KiB of staging.
    fn next(plan: ReceivePlan, place_bytes: usize) -> (usize, usize) {
        let (mut place, mut staging) = (vec![0; place_bytes], vec![0; 64 << 10]);
        let staging_bytes = plan.staging_bytes(staging.len(), || 8);
        let place = (place_bytes > 0).then_some(&mut place[..]);
        let (lengths, extent) = plan.receive(place, &mut staging[..staging_bytes], |into| {
            into.iter().map(|part| part.len()).collect::<Vec<_>>()
        });
        assert!(extent.is_filled_by(lengths.iter().sum()));
        let in_place = extent.in_place(usize::MAX);
        assert_eq!(lengths.len(), if in_place > 0 { 2 } else { 1 });
        assert_eq!(lengths[0], if in_place > 0 { in_place } else { extent.staging_bytes });
        (in_place, extent.staging_bytes)
    }

    #[test]
    fn a_mode_is_written_as_it_is_read() {
        for receive in [Receive::Staging, Receive::Pdu] {
            assert_eq!(receive.to_string().parse(), Ok(receive));
        }
        assert!("PDU".parse::<Receive>().is_err());
    }

    #[test]
    fn only_long_payloads_are_received_in_place_and_the_longest_in_parts() {
        let plan = ReceivePlan::for_target(Receive::Staging, 16 << 10);
        assert_eq!(next(plan, 0), (0, 64 << 10));
        assert_eq!(next(plan, (16 << 10) - 1), (0, 64 << 10));
        assert_eq!(next(plan, 16 << 10), (16 << 10, 64 << 10));
        assert_eq!(next(plan, PLACED_BYTES_MAX), (PLACED_BYTES_MAX, 64 << 10));
        assert_eq!(
            next(plan, PLACED_BYTES_MAX + 1),
            (PLACED_BYTES_MAX, 0),
            "the rest follows in the next turn"
        );
        assert_eq!(next(plan.before_large(), 0), (0, LOOKAHEAD_BYTES), "its header, and little else");
        assert_eq!(next(ReceivePlan::for_target(Receive::Staging, 0), 0), (0, 64 << 10), "no place is none");
    }

    #[test]
    fn a_host_in_the_middle_of_large_payloads_offers_little_staging() {
        let mut plan = ReceivePlan::for_host(Receive::Staging, 8 << 10);
        assert_eq!(next(plan, 0), (0, 64 << 10));
        assert_eq!(next(plan, 8 << 10), (8 << 10, LOOKAHEAD_BYTES));
        let staged = Extent { in_place_bytes: 0, staging_bytes: 64 << 10 };
        let placed = Extent { in_place_bytes: 8 << 10, staging_bytes: LOOKAHEAD_BYTES };
        let cut = Extent { in_place_bytes: PLACED_BYTES_MAX, staging_bytes: 0 };
        let mut offered_after = |extent, count, place_bytes| {
            plan.on_taken_in(extent, count, place_bytes);
            next(plan, 0).1
        };
        assert_eq!(offered_after(staged, 100, 8 << 10), LOOKAHEAD_BYTES, "within a large payload");
        assert_eq!(offered_after(staged, 100, 100), 64 << 10, "within a small one");
        assert_eq!(offered_after(placed, 8 << 10, 0), LOOKAHEAD_BYTES, "nothing followed it");
        assert_eq!(offered_after(placed, (8 << 10) + LOOKAHEAD_BYTES, 0), 64 << 10, "much followed it");
        assert_eq!(offered_after(cut, PLACED_BYTES_MAX, 0), LOOKAHEAD_BYTES, "one that comes in parts");
    }

    #[test]
    fn pdu_by_pdu_each_receive_brings_one_part() {
        for plan in [ReceivePlan::for_target(Receive::Pdu, 4096), ReceivePlan::for_host(Receive::Pdu, 4096)] {
            assert_eq!(next(plan, 0), (0, 8));
            assert_eq!(next(plan, 100), (100, 0));
            assert_eq!(plan.turn().count_left, PDU_RECEIVE_COUNT_MAX);
        }
    }

    #[test]
    fn a_turn_ends_when_the_socket_is_empty_or_its_share_is_read() {
        let extent = Extent { in_place_bytes: 0, staging_bytes: 1000 };
        let count_of = |plan: ReceivePlan, extent: Extent, last: usize| {
            let (mut turn, mut count) = (plan.turn(), 0);
            while turn.goes_on() {
                count += 1;
                let is_last = count == last;
                turn.on_received(extent, if is_last { 999 } else { extent.staging_bytes });
            }
            (count, turn.has_more())
        };
        let host = ReceivePlan::for_host(Receive::Staging, 1);
        assert_eq!(count_of(host, extent, 3), (3, false));
        assert_eq!(count_of(host, extent, 0), (8, true));
        assert_eq!(count_of(host, Extent { staging_bytes: 512 << 10, ..extent }, 0), (2, true));
        assert_eq!(count_of(ReceivePlan::for_target(Receive::Staging, 1), extent, 0), (1, true));
        let mut turn = host.turn();
        turn.on_dry();
        assert!(!turn.goes_on() && !turn.has_more());
    }
}
