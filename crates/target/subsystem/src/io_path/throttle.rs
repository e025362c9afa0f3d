//! Rate limits on one reactor: lots taken of the rates that all reactors share, and the commands that wait for more.
//!
//! ```text
//! Meter (one for the target) ──lots──▶ Local (one per reactor) ──tokens──▶ command
//! ```
//!
//! A command over a limit waits in a line of its lane and namespace, reads and writes apart; the other namespaces of the
//! lane go on. Lines that wait for one meter take turns, a command each. A command passes the meter of its host, then that of its namespace.
//! All lines of a reactor share one timer. docs/design/rate-limits.md
// Input from a host must never cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

mod window;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use store::Ticket;
use wire::id::Nsid;

use crate::objects::rate_limit::{BYTES, Meter, OPERATIONS, Pressure, QUANTITY_COUNT, Work};
use window::Window;
pub(crate) use window::{Flows, Share};

/// Lots are taken for this part of a second at least.
const LOTS_PER_S: u64 = 4000;

/// Lines that a lot is taken for at most.
const LOT_LINES_MAX: u64 = 16;

/// How often the window is looked at where nothing else wakes the reactor, ns.
const WINDOW_NS: u64 = 10_000_000;

/// Data of capsules that waits on the heap, bytes: beyond, lanes whose commands bring data are not read.
const CAPSULE_BYTES_MAX: usize = 8 << 20;

/// The place of a meter in the table of a reactor.
pub(crate) type MeterIndex = u32;

/// The meters that a command passes, in order: of its host, of its namespace, and the window of commands without a
/// guaranteed rate.
pub(crate) type Stages = [Option<MeterIndex>; 3];

/// A line: place of its lane, the namespace, and whether it is of writes.
type LineKey = (u32, Nsid, bool);

/// The rate limits of a reactor.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Those of hosts before those of namespaces.
    meters: Vec<Local>,
    lines: BTreeMap<LineKey, Line>,
    /// Commands that are to be held against a new table.
    again: Vec<Ticket>,
    waiting_count: usize,
    /// Bytes of waiting capsules.
    capsule_bytes: usize,
    /// When the next command may begin, ns, at the earliest.
    next_ns: u64,
    /// When the timer rings, ns.
    timer_ns: Option<u64>,
}

/// A meter as one reactor uses it.
#[derive(Debug)]
struct Local {
    meter: Arc<Meter>,
    /// What it is in place of rates.
    window: Option<Window>,
    credits: [Credit; QUANTITY_COUNT],
    /// Lines whose first command waits for it, each once: of reads, and of writes.
    rings: [Ring; 2],
    /// Whether writes have their turn, and how many of their lines, or of reads.
    turn: (bool, usize),
    /// The most lines that waited since the last lot.
    lines: usize,
}

/// Lines of one kind that wait for a meter.
#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<LineKey>,
    /// When the first may go on, ns.
    ready_ns: u64,
    /// It waits for what reads and writes have together.
    is_shared: bool,
}

/// The tokens of one quantity that a reactor has.
#[derive(Clone, Copy, Debug)]
struct Credit {
    /// Below 0 for what was not known beforehand. Of a quantity without a rate there are always enough.
    tokens: i64,
    /// A lot that was reserved: when it may be used, ns, and its size.
    coming: Option<(u64, u64)>,
}

/// The commands of a lane that wait for limits of one namespace, in order.
#[derive(Debug)]
struct Line {
    stages: Stages,
    /// The meter in whose ring it is.
    at: MeterIndex,
    queue: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    work: Work,
    /// Number of the meters that it has passed.
    passed: usize,
}

/// A command that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) ticket: Ticket,
    /// It has passed its meters; if not, the table of namespaces was replaced.
    pub(crate) is_paid: bool,
}

impl Local {
    fn new(meter: Arc<Meter>) -> Self {
        let credit = |quantity| match meter.per_s(quantity) {
            Some(_) => Credit { tokens: 0, coming: None },
            None => Credit { tokens: i64::MAX, coming: None },
        };
        Self {
            window: None,
            credits: std::array::from_fn(credit),
            meter,
            rings: <_>::default(),
            turn: (false, 0),
            lines: 0,
        }
    }

    fn ring(&mut self, is_write: bool) -> &mut Ring {
        let [reads, writes] = &mut self.rings;
        if is_write { writes } else { reads }
    }

    /// The number of lines that wait.
    fn line_count(&self) -> usize {
        self.rings.iter().map(|ring| ring.lines.len()).sum()
    }

    /// When the first of them may go on, ns; `None` without any.
    fn ready_ns(&self) -> Option<u64> {
        let waiting = self.rings.iter().filter(|ring| !ring.lines.is_empty());
        waiting.map(|ring| ring.ready_ns).min()
    }

    /// Whether a command that comes now may go before those that wait: none of its kind does, and those of the other
    /// kind do not wait for what it takes.
    fn is_free(&mut self, is_write: bool) -> bool {
        let other = self.ring(!is_write);
        let is_beside = other.lines.is_empty() || !other.is_shared;
        is_beside && self.ring(is_write).lines.is_empty()
    }

    /// Takes what a command needs, all of it or nothing. Otherwise sets when one of its kind may try again.
    fn take(&mut self, work: Work, now_ns: u64) -> bool {
        if let Some(window) = &mut self.window {
            let has_taken = window.take();
            let ready_ns = now_ns.saturating_add(WINDOW_NS);
            self.rings.iter_mut().for_each(|ring| (ring.ready_ns, ring.is_shared) = (ready_ns, true));
            return has_taken;
        }
        if self.credits.iter().zip(work.amounts()).all(|(credit, amount)| credit.has(amount)) {
            self.debit(work);
            return true;
        }
        let (meter, mut ready_ns, mut is_shared) = (&self.meter, 0, false);
        let (lines, mut has_lot) = (self.lines.max(1) as u64, false);
        let each = self.credits.iter_mut().zip(work.amounts()).enumerate();
        for (quantity, (credit, amount)) in each.filter(|(_, (_, amount))| *amount > 0) {
            let Some(per_s) = meter.per_s(quantity) else { continue };
            let lot = (per_s / LOTS_PER_S).max(1).saturating_mul(LOT_LINES_MAX.min(lines));
            let reserve = |short: u64| {
                has_lot = true;
                let lot = lot.max(short);
                (meter.reserve(quantity, now_ns, lot), lot)
            };
            let at_ns = credit.gather(amount, now_ns, reserve);
            ready_ns = ready_ns.max(at_ns);
            is_shared |= at_ns > now_ns && matches!(quantity, OPERATIONS | BYTES);
        }
        if has_lot {
            self.lines = self.line_count();
        }
        if ready_ns > now_ns {
            let ring = self.ring(work.is_write);
            (ring.ready_ns, ring.is_shared) = (ready_ns, is_shared);
            return false;
        }
        self.debit(work);
        true
    }

    /// A line waits for it.
    fn push(&mut self, key: LineKey) {
        self.ring(key.2).lines.push_back(key);
        self.lines = self.lines.max(self.line_count());
    }

    /// Takes what a command has used.
    fn debit(&mut self, work: Work) {
        for (credit, amount) in self.credits.iter_mut().zip(work.amounts()) {
            credit.tokens = credit.tokens.saturating_sub_unsigned(amount);
        }
    }
}

impl Credit {
    fn has(&self, amount: u64) -> bool {
        u64::try_from(self.tokens).is_ok_and(|tokens| tokens >= amount)
    }

    /// Sees to it that there are `amount` tokens. Returns when there will be, ns.
    fn gather(&mut self, amount: u64, now_ns: u64, mut reserve: impl FnMut(u64) -> (u64, u64)) -> u64 {
        loop {
            if let Some((_, lot)) = self.coming.take_if(|(at_ns, _)| *at_ns <= now_ns) {
                self.tokens = self.tokens.saturating_add_unsigned(lot);
            }
            match self.coming {
                _ if self.has(amount) => return now_ns,
                Some((at_ns, _)) => return at_ns,
                None => {
                    self.coming = Some(reserve(amount.saturating_add_signed(self.tokens.saturating_neg())));
                }
            }
        }
    }
}

impl Throttle {
    /// Goes over to the meters of another table. Commands that wait begin anew.
    pub(crate) fn replace(&mut self, meters: &[Arc<Meter>], window: Option<(&[u64], &Arc<Pressure>)>) {
        for local in &self.meters {
            let keys = local.rings.iter().flat_map(|ring| &ring.lines);
            for line in keys.filter_map(|key| self.lines.get(key)) {
                self.again.extend(line.queue.iter().map(|waiting| waiting.ticket));
            }
        }
        self.lines.clear();
        self.next_ns = 0;
        let known = std::mem::take(&mut self.meters).into_iter();
        let mut known: BTreeMap<_, _> = known.map(|local| (Arc::as_ptr(&local.meter), local)).collect();
        let local = |meter: &Arc<Meter>| match known.remove(&Arc::as_ptr(meter)) {
            Some(local) => Local { rings: <_>::default(), ..local },
            None => Local::new(Arc::clone(meter)),
        };
        self.meters = meters.iter().map(local).collect();
        if let Some((guarantees, pressure)) = window {
            let window = Some(Window::new(Arc::clone(pressure), guarantees));
            let meter = Arc::new(Meter::unlimited());
            self.meters.push(Local { window, ..Local::new(meter) });
        }
    }

    /// Whether there are rate limits.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        !self.meters.is_empty()
    }

    /// Whether commands wait.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting_count > 0
    }

    fn window(&mut self) -> Option<&mut Window> {
        self.meters.last_mut()?.window.as_mut()
    }

    /// Whether any rate is guaranteed.
    #[inline]
    pub(crate) fn has_window(&self) -> bool {
        self.meters.last().is_some_and(|local| local.window.is_some())
    }

    /// Commands without a guaranteed rate that run.
    pub(crate) fn set_in_flight(&mut self, count: u32) {
        self.window().into_iter().for_each(|window| window.set_in_flight(count));
    }

    /// A command without a guaranteed rate did not end as it began.
    pub(crate) fn on_started(&mut self) {
        self.window().into_iter().for_each(Window::on_started);
    }

    /// A turn that began at `turn_ns` ends. Returns whether commands wait for the window.
    pub(crate) fn end_turn(&mut self, turn_ns: u64, now_ns: u64, flows: &mut Flows) -> bool {
        let Some(local) = self.meters.last_mut() else { return false };
        let Some(window) = &mut local.window else { return false };
        window.end_turn(turn_ns, now_ns, flows);
        let has_waiting = local.line_count() > 0;
        if has_waiting {
            self.next_ns = 0;
        }
        has_waiting && flows.rest == 0
    }

    /// The number of commands that wait.
    #[cfg(test)]
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting_count
    }

    /// A command of a lane and namespace that passes these meters: the number of them that let it pass. It may begin if
    /// all did.
    pub(crate) fn passes(&mut self, key: LineKey, stages: Stages, work: Work, now_ns: u64) -> usize {
        let is_first = !self.lines.contains_key(&key);
        let mut passed = 0usize;
        while is_first
            && let Some(Some(meter)) = stages.get(passed)
            && self
                .meters
                .get_mut(*meter as usize)
                .is_none_or(|local| local.is_free(work.is_write) && local.take(work, now_ns))
        {
            passed = passed.saturating_add(1);
        }
        passed
    }

    /// Takes what was not known when a command began.
    pub(crate) fn debit(&mut self, stages: Stages, work: Work) {
        for meter in stages.into_iter().flatten() {
            if let Some(local) = self.meters.get_mut(meter as usize) {
                local.debit(work);
            }
        }
    }

    /// Puts a command at the end of its line, with `capsule_bytes` of its own data. Returns whether its lane is to be
    /// read no further until it begins.
    pub(crate) fn line_up(
        &mut self,
        key: LineKey,
        stages: Stages,
        waiting: (Ticket, Work, usize),
        capsule_bytes: usize,
    ) -> bool {
        let (ticket, work, passed) = waiting;
        let Some(Some(at)) = stages.get(passed).copied() else { return false };
        let line = self.lines.entry(key).or_insert_with(|| Line { stages, at, queue: VecDeque::new() });
        if line.queue.is_empty()
            && let Some(local) = self.meters.get_mut(at as usize)
        {
            local.push(key);
            self.next_ns = self.next_ns.min(local.ready_ns().unwrap_or(u64::MAX));
        }
        line.queue.push_back(Waiting { ticket, work, passed });
        self.waiting_count = self.waiting_count.saturating_add(1);
        self.capsule_bytes = self.capsule_bytes.saturating_add(capsule_bytes);
        capsule_bytes > 0 && self.capsule_bytes > CAPSULE_BYTES_MAX
    }

    /// A command that waits has ended: it was aborted, or its lane has ended.
    pub(crate) fn forget(&mut self, key: LineKey, ticket: Ticket, capsule_bytes: usize) {
        self.on_left(capsule_bytes);
        if let Some(line) = self.lines.get_mut(&key) {
            line.queue.retain(|waiting| waiting.ticket != ticket);
            if line.queue.is_empty() {
                if let Some(local) = self.meters.get_mut(line.at as usize) {
                    local.ring(key.2).lines.retain(|other| *other != key);
                }
                self.lines.remove(&key);
            }
        }
        self.again.retain(|other| *other != ticket);
    }

    /// A command waits no more.
    pub(crate) fn on_left(&mut self, capsule_bytes: usize) {
        self.waiting_count = self.waiting_count.saturating_sub(1);
        self.capsule_bytes = self.capsule_bytes.saturating_sub(capsule_bytes);
    }

    /// The commands that go on now. [`on_left`](Self::on_left) is to be called for each.
    pub(crate) fn release(&mut self, now_ns: u64) -> Vec<Released> {
        let again = std::mem::take(&mut self.again).into_iter();
        let mut released: Vec<_> = again.map(|ticket| Released { ticket, is_paid: false }).collect();
        if now_ns < self.next_ns {
            return released;
        }
        for at in 0..self.meters.len() {
            while let Some(key) = self.next_of(at, now_ns) {
                self.advance(key, now_ns, &mut released);
            }
        }
        self.next_ns = self.meters.iter().filter_map(Local::ready_ns).min().unwrap_or(u64::MAX);
        released
    }

    /// The next line that goes on at a meter, taken out of its ring: its first command has passed, or waits for another
    /// meter, because the one before it was aborted.
    fn next_of(&mut self, at: usize, now_ns: u64) -> Option<LineKey> {
        let local = self.meters.get_mut(at)?;
        // Reads and writes have turns as long as their lines are many, and those that wait for their own rate lose theirs.
        for _ in 0..4 {
            let (is_write, left) = local.turn;
            let Some(key) = local.ring(is_write).lines.front().copied().filter(|_| left > 0) else {
                local.turn = (!is_write, local.ring(!is_write).lines.len());
                continue;
            };
            local.turn.1 = left.saturating_sub(1);
            if let Some(Line { stages, queue, .. }) = self.lines.get_mut(&key)
                && let Some(first) = queue.front_mut()
                && stages.get(first.passed).copied().flatten().is_some_and(|meter| meter as usize == at)
            {
                if !local.take(first.work, now_ns) {
                    local.turn.1 = 0;
                    continue;
                }
                first.passed = first.passed.saturating_add(1);
            }
            return local.ring(is_write).lines.pop_front();
        }
        None
    }

    /// Lets commands of a line go on until one waits, and puts the line into the ring of its meter.
    fn advance(&mut self, key: LineKey, now_ns: u64, released: &mut Vec<Released>) {
        let Some(line) = self.lines.get_mut(&key) else { return };
        while let Some(first) = line.queue.front_mut() {
            let meter = line.stages.get(first.passed).copied().flatten();
            let Some((at, local)) = meter.and_then(|at| Some((at, self.meters.get_mut(at as usize)?))) else {
                released.push(Released { ticket: first.ticket, is_paid: true });
                line.queue.pop_front();
                continue;
            };
            if !local.is_free(key.2) || !local.take(first.work, now_ns) {
                line.at = at;
                return local.push(key);
            }
            first.passed = first.passed.saturating_add(1);
        }
        self.lines.remove(&key);
    }

    /// When the timer is to be set, ns, if it is to be.
    pub(crate) fn next_timer(&mut self) -> Option<u64> {
        let is_due = self.waiting_count > 0 && self.timer_ns.is_none_or(|at_ns| self.next_ns < at_ns);
        is_due.then(|| *self.timer_ns.insert(self.next_ns))
    }

    /// The timer rings.
    pub(crate) fn on_timer(&mut self) {
        self.timer_ns = None;
    }
}

#[cfg(test)]
mod tests;
