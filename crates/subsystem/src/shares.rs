//! Who may take of a reactor's buffers when there are too few, and the commands that wait for some.
//!
//! Peers decide how long buffers are away: with answers that they do not read, and with data that they were asked for. So as
//! soon as less than half of the pool is free, the more a lane holds the less it gets, and what it cannot have it alone waits for:
//!
//! ```text
//! all free ─────── half ──────────────────── an eighth ─────── nothing
//!   everybody          a lane holds a quarter     for small
//!   takes              of what is free, or one    transfers
//!                      command's buffer           alone
//! ```
//!
//! Each lane has a line of its own, in order, of commands that hold nothing. One whose turn has not come for long because the pool is in
//! pieces is overtaken by nobody any more. docs/design/memory.md

use std::collections::VecDeque;

use reactor::Pool;
use store::Ticket;

use crate::state::BuffersState;

/// The largest transfers that may take the last of the pool, bytes.
const SMALL_BYTES: usize = 64 << 10;

/// A lane whose socket takes nothing and for which more than this waits starts no further command that could add to it, bytes.
pub(crate) const UNSENT_BYTES_MAX: usize = 1 << 20;

/// A command that has waited so long for others to give buffers back is not overtaken any more, ns: longer than peers may keep those that
/// others wait for, so that it is not all who wait for these.
const OVERTAKEN_NS_MAX: u64 = 2_000_000_000;

/// What a lane gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// What it wants.
    Yes,
    /// Nothing, because of what it holds itself.
    HoldsMuch,
    /// Nothing, because of what others hold.
    Short,
}

/// What the lanes of a reactor hold of its buffers, and what waits for some.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Bytes that commands can have in all.
    pool_bytes: usize,
    lanes: Vec<LaneShare>,
    /// Lanes with commands in line, the one that has waited longest first; not those that wait for their own peer.
    waiting: VecDeque<u32>,
    /// Lanes whose last command has left the line.
    settled: Vec<u32>,
    /// Less than half of the pool was free when that was last looked at, or somebody is not to be overtaken.
    is_tight: bool,
    /// The lane that nobody overtakes any more.
    first: Option<u32>,
    /// Commands that had to wait for a buffer.
    waited_count: u64,
    /// Times that a lane was held back because its peer did not read.
    held_back_count: u64,
}

/// One lane's part.
#[derive(Debug, Default)]
struct LaneShare {
    /// Bytes of answers that its socket has no room for, as last seen.
    unsent_bytes: usize,
    /// These are so many that no command of it is started.
    is_held_back: bool,
    /// Commands that wait, in order. They hold nothing.
    line: VecDeque<Ticket>,
    /// Since when its first waits for what others hold, ns.
    short_since_ns: Option<u64>,
    /// In [`Shares::waiting`].
    is_waiting: bool,
}

impl Shares {
    /// The pool as it is before anything is taken.
    pub(crate) fn set_pool(&mut self, pool: &Pool) {
        self.pool_bytes = pool.free_bytes();
    }

    /// Whether taking a buffer takes [`may_take`](Self::may_take).
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        self.is_tight
    }

    /// Buffers were taken.
    #[inline]
    pub(crate) fn on_taken(&mut self, pool: &Pool) {
        self.is_tight |= pool.free_bytes() * 2 < self.pool_bytes;
    }

    /// Whether a lane whose commands have `taken_bytes` may take a buffer of `length` bytes.
    #[cold]
    pub(crate) fn may_take(&mut self, pool: &Pool, lane: u32, taken_bytes: usize, length: usize) -> bool {
        self.verdict(pool, lane, taken_bytes, length) == Verdict::Yes
    }

    fn verdict(&mut self, pool: &Pool, lane: u32, taken_bytes: usize, length: usize) -> Verdict {
        let free_bytes = pool.free_bytes();
        if let Some(first) = self.first
            && first != lane
        {
            return Verdict::Short;
        }
        if free_bytes * 2 >= self.pool_bytes {
            self.is_tight = self.first.is_some();
            return Verdict::Yes;
        }
        let held_bytes = taken_bytes + self.lanes.get(lane as usize).map_or(0, |share| share.unsent_bytes);
        if held_bytes > 0 && held_bytes + length > free_bytes / 4 {
            return Verdict::HoldsMuch;
        }
        // Somebody who waits for as much as that is the next to have it.
        if length > SMALL_BYTES && self.first.is_none() && free_bytes < length + self.pool_bytes / 8 {
            return Verdict::Short;
        }
        Verdict::Yes
    }

    fn lane(&mut self, lane: u32) -> &mut LaneShare {
        let at = lane as usize;
        if self.lanes.len() <= at {
            self.lanes.resize_with(at + 1, LaneShare::default);
        }
        &mut self.lanes[at]
    }

    /// Puts a command at the end of its lane's line, unless it is the first there already.
    pub(crate) fn line_up(&mut self, lane: u32, ticket: Ticket) {
        let share = self.lane(lane);
        if share.line.front() == Some(&ticket) {
            return;
        }
        share.line.push_back(ticket);
        self.waited_count += 1;
        self.await_turn(lane);
    }

    /// Puts a lane with a line among those that wait, unless it waits for its own peer.
    fn await_turn(&mut self, lane: u32) {
        let share = self.lane(lane);
        if !share.line.is_empty() && !share.is_held_back && !std::mem::replace(&mut share.is_waiting, true) {
            self.waiting.push_back(lane);
        }
    }

    /// Whether further commands of a lane are to join its line.
    pub(crate) fn holds_back(&self, lane: u32) -> bool {
        self.lanes.get(lane as usize).is_some_and(|share| share.is_held_back || !share.line.is_empty())
    }

    /// Whether there is a lane that nobody overtakes.
    pub(crate) fn has_first(&self) -> bool {
        self.first.is_some()
    }

    /// Whether a lane has answers that its peer does not take.
    pub(crate) fn is_blocked(&self, lane: u32) -> bool {
        self.lanes.get(lane as usize).is_some_and(|share| share.unsent_bytes > 0)
    }

    /// How many lanes wait for buffers.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The lane whose turn it is. It goes back with [`end_turn`](Self::end_turn).
    pub(crate) fn next_turn(&mut self) -> Option<u32> {
        self.waiting.pop_front()
    }

    /// The command of a lane that is to go on next.
    pub(crate) fn first_in_line(&self, lane: u32) -> Option<Ticket> {
        self.lanes.get(lane as usize).filter(|share| !share.is_held_back)?.line.front().copied()
    }

    /// That command has gone on, or is no more.
    pub(crate) fn leave_line(&mut self, lane: u32) {
        let share = self.lane(lane);
        share.line.pop_front();
        share.short_since_ns = None;
        self.first.take_if(|first| *first == lane);
    }

    /// A lane has had its turn. What is left of its line waits for the next, in its place before those that came later. With
    /// `wanted_bytes`, that is what its first did not get.
    pub(crate) fn end_turn(
        &mut self,
        pool: &Pool,
        now_ns: u64,
        lane: u32,
        taken_bytes: usize,
        wanted_bytes: Option<usize>,
    ) {
        self.lane(lane).is_waiting = false;
        if !self.holds_back(lane) {
            self.settled.push(lane);
        }
        self.await_turn(lane);
        let Some(wanted_bytes) = wanted_bytes else { return };
        // A pool in pieces looks as if there were enough.
        let is_short = self.verdict(pool, lane, taken_bytes, wanted_bytes) != Verdict::HoldsMuch;
        let share = self.lane(lane);
        share.short_since_ns = is_short.then(|| share.short_since_ns.unwrap_or(now_ns));
        let is_late = share.short_since_ns.is_some_and(|since_ns| now_ns - since_ns >= OVERTAKEN_NS_MAX);
        if is_late && self.first.is_none() {
            self.first = Some(lane);
            self.is_tight = true;
        } else if !is_short {
            self.first.take_if(|first| *first == lane);
        }
    }

    /// A lane whose line has become empty.
    pub(crate) fn next_settled(&mut self) -> Option<u32> {
        self.settled.pop()
    }

    /// A lane's socket has no room for so many bytes of answers, or for none any more. Says whether the lane is held back for that,
    /// or has a line.
    pub(crate) fn on_unsent(&mut self, pool: &Pool, lane: u32, unsent_bytes: usize) -> bool {
        self.on_taken(pool);
        let share = self.lane(lane);
        share.unsent_bytes = unsent_bytes;
        let was_held_back = share.is_held_back;
        // With a step in between, so that it does not change with each send.
        let limit = if was_held_back { UNSENT_BYTES_MAX / 2 } else { UNSENT_BYTES_MAX };
        share.is_held_back = unsent_bytes > limit;
        if share.is_held_back {
            if !was_held_back {
                self.held_back_count += 1;
            }
            // It waits for its peer now, and so should nobody else.
            self.first.take_if(|first| *first == lane);
        } else if was_held_back {
            self.await_turn(lane);
        }
        self.holds_back(lane)
    }

    /// A lane has ended. What its commands have taken and still have to give back is counted elsewhere.
    pub(crate) fn forget(&mut self, lane: u32) {
        self.first.take_if(|first| *first == lane);
        let Some(share) = self.lanes.get_mut(lane as usize) else { return };
        if share.is_waiting {
            self.waiting.retain(|waiting| *waiting != lane);
        }
        *share = LaneShare::default();
    }

    /// How things are.
    pub(crate) fn state(&self, pool: &Pool) -> BuffersState {
        BuffersState {
            bytes: pool.capacity_bytes(),
            free_bytes: pool.free_bytes(),
            free_bytes_min: pool.free_bytes_min(),
            waited_count: self.waited_count,
            waiting_lanes: self.waiting.len(),
            held_back_count: self.held_back_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use reactor::{BLOCK_BYTES_MAX, Buffer};

    use super::*;

    const MIB: usize = 1 << 20;
    const SECOND: u64 = 1_000_000_000;

    /// A pool of 64 MiB, of which so much is free.
    fn scarce(free_mib: usize) -> (Pool, Shares, Vec<Buffer>) {
        let pool = Pool::new(16 * BLOCK_BYTES_MAX).unwrap();
        let mut shares = Shares::default();
        shares.set_pool(&pool);
        let taken = (free_mib..64).map(|_| pool.take(MIB).unwrap()).collect();
        shares.on_taken(&pool);
        (pool, shares, taken)
    }

    #[test]
    fn as_long_as_half_is_free_nobody_is_asked_what_it_holds() {
        let (pool, mut shares, mut taken) = scarce(32);
        assert!(!shares.is_tight());
        taken.extend(pool.take(MIB));
        shares.on_taken(&pool);
        assert!(shares.is_tight());
        taken.truncate(10);
        assert!(shares.may_take(&pool, 0, 40 * MIB, MIB) && !shares.is_tight(), "it is over");
    }

    #[test]
    fn the_more_a_lane_holds_the_less_it_gets() {
        let (pool, mut shares, _taken) = scarce(20);
        assert!(shares.may_take(&pool, 0, 4 * MIB, MIB), "a quarter of what is free");
        assert!(!shares.may_take(&pool, 0, 4 * MIB, MIB + 1));
        assert!(shares.may_take(&pool, 1, 0, 4 * MIB), "whoever holds nothing gets what one command needs");
        shares.on_unsent(&pool, 1, MIB);
        assert!(!shares.may_take(&pool, 1, 0, 4 * MIB + 1) && shares.may_take(&pool, 1, 0, 4 * MIB));
    }

    #[test]
    fn the_last_of_the_pool_is_for_small_transfers() {
        let (pool, mut shares, _taken) = scarce(8);
        assert!(!shares.may_take(&pool, 0, 0, MIB));
        assert!(shares.may_take(&pool, 0, 0, SMALL_BYTES));
        assert!(
            shares.may_take(&pool, 0, MIB, SMALL_BYTES) && !shares.may_take(&pool, 0, 2 * MIB, SMALL_BYTES)
        );
    }

    #[test]
    fn a_lane_whose_peer_does_not_read_waits_for_nothing_but_that() {
        let (pool, mut shares, _taken) = scarce(64);
        assert!(!shares.on_unsent(&pool, 3, UNSENT_BYTES_MAX));
        assert!(shares.on_unsent(&pool, 3, UNSENT_BYTES_MAX + 1));
        shares.line_up(3, Ticket(7));
        assert_eq!((shares.waiting_count(), shares.first_in_line(3)), (0, None));
        assert!(shares.on_unsent(&pool, 3, UNSENT_BYTES_MAX / 2 + 1), "not each time a bit is taken");
        assert!(shares.on_unsent(&pool, 3, UNSENT_BYTES_MAX / 2), "it has a line");
        assert_eq!((shares.next_turn(), shares.first_in_line(3)), (Some(3), Some(Ticket(7))));
        shares.leave_line(3);
        shares.end_turn(&pool, 0, 3, 0, None);
        assert!(!shares.holds_back(3));
        assert_eq!((shares.next_settled(), shares.next_settled()), (Some(3), None));
        let state = shares.state(&pool);
        assert_eq!((state.waited_count, state.held_back_count), (1, 1));
    }

    #[test]
    fn lanes_take_turns() {
        let (pool, mut shares, _taken) = scarce(8);
        for (lane, ticket) in [(1, 10), (1, 11), (2, 20)] {
            shares.line_up(lane, Ticket(ticket));
        }
        let mut turns = Vec::new();
        for _ in 0..3 {
            let lane = shares.next_turn().unwrap();
            turns.push((lane, shares.first_in_line(lane).unwrap().0));
            shares.leave_line(lane);
            shares.end_turn(&pool, 0, lane, 0, None);
        }
        assert_eq!(turns, [(1, 10), (2, 20), (1, 11)]);
        assert_eq!(shares.waiting_count(), 0);
    }

    #[test]
    fn whoever_has_waited_for_long_is_overtaken_by_nobody() {
        let (pool, mut shares, mut taken) = scarce(8);
        shares.line_up(1, Ticket(1));
        let turn = |shares: &mut Shares, pool: &Pool, now_ns| {
            let lane = shares.next_turn().unwrap();
            shares.end_turn(pool, now_ns, lane, 0, Some(MIB));
        };
        turn(&mut shares, &pool, SECOND);
        turn(&mut shares, &pool, SECOND + OVERTAKEN_NS_MAX - 1);
        assert!(shares.may_take(&pool, 2, 0, 4096) && !shares.has_first());
        turn(&mut shares, &pool, SECOND + OVERTAKEN_NS_MAX);
        assert!(!shares.may_take(&pool, 2, 0, 4096), "not even what is small");
        taken.clear();
        assert!(!shares.may_take(&pool, 2, 0, 4096) && shares.may_take(&pool, 1, 0, MIB));
        shares.leave_line(1);
        assert!(shares.may_take(&pool, 2, 0, 4096) && !shares.is_tight());
    }

    #[test]
    fn who_waits_for_what_it_holds_itself_holds_up_nobody() {
        let (pool, mut shares, _taken) = scarce(16);
        shares.line_up(1, Ticket(1));
        for now_ns in [0, 5 * SECOND] {
            assert_eq!(shares.next_turn(), Some(1));
            shares.end_turn(&pool, now_ns, 1, 8 * MIB, Some(MIB));
        }
        assert!(!shares.has_first());
    }

    #[test]
    fn a_lane_that_ends_leaves_nothing_behind() {
        let (pool, mut shares, _taken) = scarce(8);
        shares.line_up(1, Ticket(1));
        for now_ns in [0, OVERTAKEN_NS_MAX] {
            assert_eq!(shares.next_turn(), Some(1));
            shares.end_turn(&pool, now_ns, 1, 0, Some(MIB));
        }
        assert!(shares.has_first());
        shares.forget(1);
        assert!(!shares.has_first() && !shares.holds_back(1) && shares.waiting_count() == 0);
        assert!(shares.may_take(&pool, 2, 0, 4096));
    }
}
