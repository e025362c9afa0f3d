//! Per-lane buffer quotas when the pool runs low, and the queue of commands waiting for one.
//!
//! Peers decide how long buffers are away: with answers that they do not read, and with data that they were asked for.
//! So, once less than half of the pool is free, the more buffers a lane holds, the smaller its share; a lane over its
//! share waits without blocking others:
//!
//! ```text
//! all free ─────── half ──────────────────── an eighth ─────── nothing
//!   every lane         a lane holds a quarter     for small
//!   takes              of what is free, or one    transfers
//!                      command's buffer           only
//! ```
//!
//! Each lane has a line of its own, in order, of commands that hold no buffer. A lane that has waited long because the
//! pool is fragmented, or because small transfers of others take what becomes free, is served strictly first: in
//! longer and longer windows, for a third of the time, and after 2 s without an end. docs/design/memory.md

use std::collections::VecDeque;

use memory::Pool;
use store::Ticket;

use crate::messages::state::BuffersState;

/// The largest transfers that may take the last of the pool, bytes.
const SMALL_BYTES: usize = 64 << 10;

/// Unsent answers of a lane whose socket has no room, bytes: with more, no further command of the lane starts that
/// could add to them.
pub(crate) const UNSENT_BYTES_MAX: usize = 1 << 20;

/// A command that has waited this long for other lanes to release buffers is served strictly first, ns: in windows, each
/// as long as it has waited by then.
const FIRST_AFTER_NS: u64 = 5_000_000;

/// The longest of these windows, ns.
const WINDOW_MAX_NS: u64 = 40_000_000;

/// A command that has waited this long for other lanes to release buffers is served strictly first until it has what it
/// needs, ns. Longer than peers may withhold buffers, so that this only applies when no peer does.
const STRICT_AFTER_NS: u64 = 2_000_000_000;

/// Whether a lane may have a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Yes,
    /// No: it holds too many itself.
    OverQuota,
    /// No: other lanes hold too many.
    Short,
}

/// The buffer quotas of a reactor's lanes, and the commands that wait for a buffer.
#[derive(Debug, Default)]
pub(crate) struct BufferQuota {
    /// Bytes for commands in total.
    pool_bytes: usize,
    lanes: Vec<LaneQuota>,
    /// Lanes with queued commands, the longest wait first; without those that wait for their own peer
    /// to read.
    waiting: VecDeque<u32>,
    /// Lanes whose queue has become empty.
    settled: Vec<u32>,
    /// Less than half of the pool was free at the last check, or a lane is served strictly first.
    is_tight: bool,
    /// The lane that is served strictly first.
    first: Option<First>,
    /// Until when no further lane is served strictly first, ns.
    equal_until_ns: u64,
    /// Commands that waited for a buffer.
    waited_count: u64,
    /// Times that a lane was held back because its peer did not read.
    held_back_count: u64,
}

/// The lane that is served strictly first, and the window in which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct First {
    lane: u32,
    since_ns: u64,
    until_ns: u64,
}

impl First {
    /// It has waited for [`STRICT_AFTER_NS`].
    fn has_no_end(&self) -> bool {
        self.until_ns == u64::MAX
    }
}

/// The quota of one lane.
#[derive(Debug, Default)]
struct LaneQuota {
    /// Bytes of answers that its socket has no room for, at the last check.
    unsent_bytes: usize,
    /// Its unsent answers exceed the limit: none of its commands starts.
    is_held_back: bool,
    /// Commands that wait, in order. They hold no buffer.
    line: VecDeque<Ticket>,
    /// Since when its first command waits for buffers that other lanes hold, ns.
    short_since_ns: Option<u64>,
    /// In [`BufferQuota::waiting`].
    is_waiting: bool,
}

impl BufferQuota {
    /// Sets the pool, before any buffer is taken.
    pub(crate) fn set_pool(&mut self, pool: &Pool) {
        self.pool_bytes = pool.free_bytes();
    }

    /// Whether [`may_take`](Self::may_take) has to be asked before a buffer is taken.
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
        if self.first.is_some_and(|first| first.lane != lane) {
            return Verdict::Short;
        }
        if free_bytes * 2 >= self.pool_bytes {
            self.is_tight = self.first.is_some();
            return Verdict::Yes;
        }
        let held_bytes =
            taken_bytes + self.lanes.get(lane as usize).map_or(0, |of_lane| of_lane.unsent_bytes);
        if held_bytes > 0 && held_bytes + length > free_bytes / 4 {
            return Verdict::OverQuota;
        }
        let may_take_the_last = length <= SMALL_BYTES || self.first.is_some_and(|first| first.has_no_end());
        if !may_take_the_last && free_bytes < length + self.pool_bytes / 8 {
            return Verdict::Short;
        }
        Verdict::Yes
    }

    fn lane(&mut self, lane: u32) -> &mut LaneQuota {
        let at = lane as usize;
        if self.lanes.len() <= at {
            self.lanes.resize_with(at + 1, LaneQuota::default);
        }
        &mut self.lanes[at]
    }

    /// Puts a command at the end of its lane's line, unless it is the first there already.
    pub(crate) fn line_up(&mut self, lane: u32, ticket: Ticket) {
        let of_lane = self.lane(lane);
        if of_lane.line.front() == Some(&ticket) {
            return;
        }
        of_lane.line.push_back(ticket);
        self.waited_count += 1;
        self.await_turn(lane);
    }

    /// Queues a lane with a line among those that wait, unless it waits for its own peer to read.
    fn await_turn(&mut self, lane: u32) {
        let of_lane = self.lane(lane);
        if !of_lane.line.is_empty()
            && !of_lane.is_held_back
            && !std::mem::replace(&mut of_lane.is_waiting, true)
        {
            self.waiting.push_back(lane);
        }
    }

    /// Whether further commands of a lane have to join its line.
    pub(crate) fn holds_back(&self, lane: u32) -> bool {
        self.lanes.get(lane as usize).is_some_and(|of_lane| of_lane.is_held_back || !of_lane.line.is_empty())
    }

    /// Whether a lane is served strictly first.
    pub(crate) fn has_first(&self) -> bool {
        self.first.is_some()
    }

    /// Whether a lane has answers that its peer does not read.
    pub(crate) fn is_blocked(&self, lane: u32) -> bool {
        self.lanes.get(lane as usize).is_some_and(|of_lane| of_lane.unsent_bytes > 0)
    }

    /// The number of lanes that wait for buffers.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Serves a lane strictly first that has waited for this time, if it is time for that.
    fn open_window(&mut self, now_ns: u64, lane: u32, waited_ns: u64) {
        let until_ns = match waited_ns {
            ..FIRST_AFTER_NS => return,
            STRICT_AFTER_NS.. => u64::MAX,
            _ if now_ns < self.equal_until_ns => return,
            _ => now_ns + waited_ns.min(WINDOW_MAX_NS),
        };
        self.first = Some(First { lane, since_ns: now_ns, until_ns });
        self.is_tight = true;
    }

    /// Ends the window of the lane that is served strictly first, if it is over: for twice its length, no lane is.
    pub(crate) fn end_window(&mut self, now_ns: u64) {
        if let Some(over) = self.first.take_if(|first| first.until_ns <= now_ns) {
            self.equal_until_ns = now_ns + 2 * (over.until_ns - over.since_ns);
        }
    }

    /// When the window of the lane that is served strictly first will be over, ns.
    pub(crate) fn window_end_ns(&self) -> Option<u64> {
        self.first.filter(|first| !first.has_no_end()).map(|first| first.until_ns)
    }

    /// Takes the next lane out of the queue. [`end_turn`](Self::end_turn) puts it back.
    pub(crate) fn next_turn(&mut self) -> Option<u32> {
        self.waiting.pop_front()
    }

    /// The command of a lane that continues next.
    pub(crate) fn first_in_line(&self, lane: u32) -> Option<Ticket> {
        self.lanes.get(lane as usize).filter(|of_lane| !of_lane.is_held_back)?.line.front().copied()
    }

    /// That command has continued, or was aborted.
    pub(crate) fn leave_line(&mut self, lane: u32) {
        let of_lane = self.lane(lane);
        of_lane.line.pop_front();
        of_lane.short_since_ns = None;
        self.first.take_if(|first| first.lane == lane);
    }

    /// A lane has had its turn. The rest of its line waits for the next turn, before lanes that began to wait later.
    /// `wanted_bytes` is the length of the buffer that its first command did not get.
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
        // A fragmented pool has enough free bytes, and no buffer of this length.
        let is_short = self.verdict(pool, lane, taken_bytes, wanted_bytes) != Verdict::OverQuota;
        let of_lane = self.lane(lane);
        of_lane.short_since_ns = is_short.then(|| of_lane.short_since_ns.unwrap_or(now_ns));
        let short_since_ns = of_lane.short_since_ns;
        match short_since_ns {
            None => _ = self.first.take_if(|first| first.lane == lane),
            Some(since_ns) if self.first.is_none() => self.open_window(now_ns, lane, now_ns - since_ns),
            Some(_) => {}
        }
    }

    /// The next lane whose line has become empty.
    pub(crate) fn next_settled(&mut self) -> Option<u32> {
        self.settled.pop()
    }

    /// A lane's socket has no room for this number of bytes of answers; 0 if it has room for all. Returns whether
    /// further commands of the lane have to join its line.
    pub(crate) fn on_unsent(&mut self, pool: &Pool, lane: u32, unsent_bytes: usize) -> bool {
        self.on_taken(pool);
        let of_lane = self.lane(lane);
        of_lane.unsent_bytes = unsent_bytes;
        let was_held_back = of_lane.is_held_back;
        // With hysteresis, so that it does not change with each send.
        let limit = if was_held_back { UNSENT_BYTES_MAX / 2 } else { UNSENT_BYTES_MAX };
        of_lane.is_held_back = unsent_bytes > limit;
        if of_lane.is_held_back {
            if !was_held_back {
                self.held_back_count += 1;
            }
            // It waits for its own peer now: other lanes do not wait for that.
            self.first.take_if(|first| first.lane == lane);
        } else if was_held_back {
            self.await_turn(lane);
        }
        self.holds_back(lane)
    }

    /// A lane has ended. Buffers that its commands still hold are counted in the running table.
    pub(crate) fn forget(&mut self, lane: u32) {
        self.first.take_if(|first| first.lane == lane);
        let Some(of_lane) = self.lanes.get_mut(lane as usize) else { return };
        if of_lane.is_waiting {
            self.waiting.retain(|waiting| *waiting != lane);
        }
        *of_lane = LaneQuota::default();
    }

    /// A snapshot for the operator.
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
    use memory::{BLOCK_BYTES_MAX, Buffer};

    use super::*;

    const MIB: usize = 1 << 20;
    const SECOND: u64 = 1_000_000_000;

    /// A pool of 64 MiB with this much free.
    fn scarce(free_mib: usize) -> (Pool, BufferQuota, Vec<Buffer>) {
        let pool = Pool::new(16 * BLOCK_BYTES_MAX).unwrap();
        let mut quota = BufferQuota::default();
        quota.set_pool(&pool);
        let taken = (free_mib..64).map(|_| pool.take(MIB).unwrap()).collect();
        quota.on_taken(&pool);
        (pool, quota, taken)
    }

    #[test]
    fn while_half_of_the_pool_is_free_every_lane_takes_buffers() {
        let (pool, mut quota, mut taken) = scarce(32);
        assert!(!quota.is_tight());
        taken.extend(pool.take(MIB));
        quota.on_taken(&pool);
        assert!(quota.is_tight());
        taken.truncate(10);
        assert!(quota.may_take(&pool, 0, 40 * MIB, MIB) && !quota.is_tight(), "half is free again");
    }

    #[test]
    fn the_more_buffers_a_lane_holds_the_smaller_its_share() {
        let (pool, mut quota, _taken) = scarce(20);
        assert!(quota.may_take(&pool, 0, 4 * MIB, MIB), "a quarter of what is free");
        assert!(!quota.may_take(&pool, 0, 4 * MIB, MIB + 1));
        assert!(
            quota.may_take(&pool, 1, 0, 4 * MIB),
            "a lane that holds none gets the buffer of one command"
        );
        quota.on_unsent(&pool, 1, MIB);
        assert!(!quota.may_take(&pool, 1, 0, 4 * MIB + 1) && quota.may_take(&pool, 1, 0, 4 * MIB));
    }

    #[test]
    fn the_last_of_the_pool_is_for_small_transfers() {
        let (pool, mut quota, _taken) = scarce(8);
        assert!(!quota.may_take(&pool, 0, 0, MIB));
        assert!(quota.may_take(&pool, 0, 0, SMALL_BYTES));
        assert!(
            quota.may_take(&pool, 0, MIB, SMALL_BYTES) && !quota.may_take(&pool, 0, 2 * MIB, SMALL_BYTES)
        );
    }

    #[test]
    fn a_lane_whose_peer_does_not_read_waits_only_for_its_peer() {
        let (pool, mut quota, _taken) = scarce(64);
        assert!(!quota.on_unsent(&pool, 3, UNSENT_BYTES_MAX));
        assert!(quota.on_unsent(&pool, 3, UNSENT_BYTES_MAX + 1));
        quota.line_up(3, Ticket(7));
        assert_eq!((quota.waiting_count(), quota.first_in_line(3)), (0, None));
        assert!(quota.on_unsent(&pool, 3, UNSENT_BYTES_MAX / 2 + 1), "not each time a bit is taken");
        assert!(quota.on_unsent(&pool, 3, UNSENT_BYTES_MAX / 2), "it has a line");
        assert_eq!((quota.next_turn(), quota.first_in_line(3)), (Some(3), Some(Ticket(7))));
        quota.leave_line(3);
        quota.end_turn(&pool, 0, 3, 0, None);
        assert!(!quota.holds_back(3));
        assert_eq!((quota.next_settled(), quota.next_settled()), (Some(3), None));
        let state = quota.state(&pool);
        assert_eq!((state.waited_count, state.held_back_count), (1, 1));
    }

    #[test]
    fn lanes_take_turns() {
        let (pool, mut quota, _taken) = scarce(8);
        for (lane, ticket) in [(1, 10), (1, 11), (2, 20)] {
            quota.line_up(lane, Ticket(ticket));
        }
        let mut turns = Vec::new();
        for _ in 0..3 {
            let lane = quota.next_turn().unwrap();
            turns.push((lane, quota.first_in_line(lane).unwrap().0));
            quota.leave_line(lane);
            quota.end_turn(&pool, 0, lane, 0, None);
        }
        assert_eq!(turns, [(1, 10), (2, 20), (1, 11)]);
        assert_eq!(quota.waiting_count(), 0);
    }

    /// Gives the next lane its turn: it does not get the 1 MiB that it needs.
    fn miss_a_turn(quota: &mut BufferQuota, pool: &Pool, now_ns: u64) {
        quota.end_window(now_ns);
        let lane = quota.next_turn().unwrap();
        quota.end_turn(pool, now_ns, lane, 0, Some(MIB));
    }

    #[test]
    fn a_lane_that_has_waited_long_is_served_strictly_first() {
        let (pool, mut quota, mut taken) = scarce(8);
        quota.line_up(1, Ticket(1));
        miss_a_turn(&mut quota, &pool, SECOND);
        assert!(quota.may_take(&pool, 2, 0, 4096) && !quota.has_first());
        miss_a_turn(&mut quota, &pool, SECOND + STRICT_AFTER_NS);
        assert!(!quota.may_take(&pool, 2, 0, 4096), "not even a small buffer");
        quota.end_window(SECOND * 100);
        assert_eq!(quota.window_end_ns(), None);
        taken.clear();
        assert!(!quota.may_take(&pool, 2, 0, 4096) && quota.may_take(&pool, 1, 0, MIB));
        quota.leave_line(1);
        assert!(quota.may_take(&pool, 2, 0, 4096) && !quota.is_tight());
    }

    #[test]
    fn until_then_it_is_so_in_windows_for_a_third_of_the_time() {
        let (pool, mut quota, _taken) = scarce(8);
        quota.line_up(1, Ticket(1));
        quota.line_up(2, Ticket(2));
        let (mut windows, mut first_ms) = (Vec::new(), 0);
        for ms in 0..2000 {
            miss_a_turn(&mut quota, &pool, ms * 1_000_000);
            miss_a_turn(&mut quota, &pool, ms * 1_000_000);
            first_ms += u64::from(quota.has_first());
            assert_ne!(quota.has_first(), quota.may_take(&pool, 3, 0, 4096));
            assert!(!quota.may_take(&pool, 1, 0, MIB), "the last of the pool is for small transfers, still");
            windows.extend(quota.window_end_ns().map(|end_ns| end_ns / 1_000_000));
        }
        windows.dedup();
        assert_eq!(windows[..5], [10, 40, 120, 240, 360]);
        assert!((550..667).contains(&first_ms), "{first_ms}");
    }

    #[test]
    fn a_lane_over_its_quota_does_not_block_others() {
        let (pool, mut quota, _taken) = scarce(16);
        quota.line_up(1, Ticket(1));
        for now_ns in [0, 5 * SECOND] {
            assert_eq!(quota.next_turn(), Some(1));
            quota.end_turn(&pool, now_ns, 1, 8 * MIB, Some(MIB));
        }
        assert!(!quota.has_first());
    }

    #[test]
    fn unsent_answers_count_for_the_quota() {
        let (pool, mut quota, _taken) = scarce(16);
        quota.on_unsent(&pool, 1, 4 * MIB);
        assert!(!quota.may_take(&pool, 1, 0, MIB) && quota.may_take(&pool, 2, 0, MIB));
        quota.on_unsent(&pool, 1, 0);
        assert!(quota.may_take(&pool, 1, 0, MIB));
    }

    #[test]
    fn a_lane_that_ends_leaves_nothing_behind() {
        let (pool, mut quota, _taken) = scarce(8);
        quota.line_up(1, Ticket(1));
        for now_ns in [0, STRICT_AFTER_NS] {
            assert_eq!(quota.next_turn(), Some(1));
            quota.end_turn(&pool, now_ns, 1, 0, Some(MIB));
        }
        assert!(quota.has_first());
        quota.forget(1);
        assert!(!quota.has_first() && !quota.holds_back(1) && quota.waiting_count() == 0);
        assert!(quota.may_take(&pool, 2, 0, 4096));
    }
}
