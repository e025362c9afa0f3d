//! Ranges of blocks that a fused Compare and Write locks, on every reactor at once. wire §16
//!
//! ```text
//! lane ──lock──▶ manager (reactor 0) ──exclude──▶ every reactor: holds back new writes to the range,
//!   ▲                  │  ◀──excluded── once those under way have ended
//!   │◀──── granted ────┤  when all have confirmed; one holder at a time for ranges that overlap
//!   └──── unlock ─────▶│ ──release──▶ every reactor: releases the writes
//! ```
//!
//! Plain writes pay one look at an empty list for this. Locks and writes take turns: a write that was held back waits for
//! the ranges that were excluded then, and those excluded later wait for it. All reactors exclude in the order of the
//! manager's messages, so no two wait for each other.

use std::collections::VecDeque;
use std::ops::Range;

use crate::messages::message::{Lock, LockMessage};

impl Lock {
    fn meets(&self, other: &Self) -> bool {
        self.namespace == other.namespace && overlap(&self.blocks, &other.blocks)
    }
}

pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The ranges of one namespace that one reactor has to keep its writes out of.
#[derive(Debug, Default)]
pub(crate) struct Exclusions {
    held: Vec<Held>,
    /// The number of the last one: they are counted from 1.
    last: u64,
}

#[derive(Debug)]
struct Held {
    number: u64,
    holder: (u16, u64),
    blocks: Range<u64>,
    /// It was reported to the manager that no write to the range is under way here.
    is_reported: bool,
}

impl Exclusions {
    /// Whether a write to `blocks` must wait, which was held back first behind the exclusion with this number, if it was.
    #[inline]
    pub(crate) fn holds_back(&self, blocks: &Range<u64>, behind: Option<u64>) -> bool {
        let comes_first = |held: &Held| behind.is_none_or(|behind| held.number <= behind);
        self.held.iter().any(|held| overlap(&held.blocks, blocks) && comes_first(held))
    }

    /// The number of the last exclusion.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Holds new writes to the range back from now on.
    pub(crate) fn exclude(&mut self, lock: &Lock) {
        self.last += 1;
        self.held.push(Held {
            number: self.last,
            holder: lock.holder,
            blocks: lock.blocks.clone(),
            is_reported: false,
        });
    }

    /// Releases the writes that it held back.
    pub(crate) fn release(&mut self, holder: (u16, u64)) {
        self.held.retain(|held| held.holder != holder);
    }

    /// The next holder to whose range no write is under way, as `is_busy` says, which gets the exclusion's number too.
    pub(crate) fn next_quiet(&mut self, is_busy: impl Fn(&Range<u64>, u64) -> bool) -> Option<(u16, u64)> {
        let is_quiet = |held: &Held| !held.is_reported && !is_busy(&held.blocks, held.number);
        let quiet = self.held.iter_mut().find(|held| is_quiet(held))?;
        quiet.is_reported = true;
        Some(quiet.holder)
    }

    /// Holders that still wait for writes under way.
    pub(crate) fn unreported(&self) -> impl Iterator<Item = (u16, u64)> {
        self.held.iter().filter(|held| !held.is_reported).map(|held| held.holder)
    }

    /// The number of ranges.
    pub(crate) fn count(&self) -> usize {
        self.held.len()
    }

    /// Whether any holder still waits for writes under way.
    pub(crate) fn has_unreported(&self) -> bool {
        self.held.iter().any(|held| !held.is_reported)
    }
}

/// Grants locks: one at a time for ranges that overlap, each once every reactor keeps out.
#[derive(Debug)]
pub(crate) struct LockManager {
    reactor_count: u16,
    active: Vec<Active>,
    waiting: VecDeque<Lock>,
    messages: VecDeque<(Audience, LockMessage)>,
}

#[derive(Debug)]
struct Active {
    lock: Lock,
    /// Reactors that have not confirmed the exclusion.
    missing: u16,
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Every reactor.
    All,
    /// This one.
    One(u16),
}

impl LockManager {
    pub(crate) fn new(reactor_count: u16) -> Self {
        Self { reactor_count, active: Vec::new(), waiting: VecDeque::new(), messages: VecDeque::new() }
    }

    /// The number of locks that are held or waited for.
    pub(crate) fn count(&self) -> usize {
        self.active.len() + self.waiting.len()
    }

    /// A message to the manager.
    pub(crate) fn on_message(&mut self, message: LockMessage) {
        match message {
            LockMessage::Ask(lock) => self.waiting.push_back(lock),
            LockMessage::Excluded(holder) => {
                let active = self.active.iter_mut().find(|active| active.lock.holder == holder);
                let Some(active) = active else { return };
                active.missing -= 1;
                if active.missing == 0 {
                    self.messages.push_back((Audience::One(holder.0), LockMessage::Grant(holder.1)));
                }
            }
            LockMessage::Unlock(holder) => {
                if let Some(at) = self.active.iter().position(|active| active.lock.holder == holder) {
                    let lock = self.active.swap_remove(at).lock;
                    self.messages.push_back((Audience::All, LockMessage::Release(lock)));
                }
            }
            LockMessage::Exclude(_) | LockMessage::Grant(_) | LockMessage::Release(_) => {}
        }
        while let Some(at) = (0..self.waiting.len()).find(|&at| self.is_free(at)) {
            let lock = self.waiting.remove(at).expect("just found");
            self.active.push(Active { lock: lock.clone(), missing: self.reactor_count });
            self.messages.push_back((Audience::All, LockMessage::Exclude(lock)));
        }
    }

    /// Whether no range that overlaps the requested one is held, or was requested earlier.
    fn is_free(&self, at: usize) -> bool {
        let lock = &self.waiting[at];
        !self.active.iter().any(|active| active.lock.meets(lock))
            && !self.waiting.iter().take(at).any(|earlier| earlier.meets(lock))
    }

    /// The next message to send.
    pub(crate) fn next_message(&mut self) -> Option<(Audience, LockMessage)> {
        self.messages.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::subsystem::NamespaceId;

    fn lock(number: u64, blocks: Range<u64>) -> Lock {
        Lock { holder: (0, number), namespace: NamespaceId(1), blocks }
    }

    fn after(manager: &mut LockManager, message: LockMessage) -> Vec<(Audience, LockMessage)> {
        manager.on_message(message);
        std::iter::from_fn(|| manager.next_message()).collect()
    }

    #[test]
    fn a_lock_is_granted_once_every_reactor_keeps_out() {
        let mut manager = LockManager::new(2);
        let first = lock(1, 0..8);
        let asked = after(&mut manager, LockMessage::Ask(first.clone()));
        assert_eq!(asked, [(Audience::All, LockMessage::Exclude(first.clone()))]);
        assert_eq!(after(&mut manager, LockMessage::Excluded((0, 1))), []);
        let granted = after(&mut manager, LockMessage::Excluded((0, 1)));
        assert_eq!(granted, [(Audience::One(0), LockMessage::Grant(1))]);
        let done = after(&mut manager, LockMessage::Unlock((0, 1)));
        assert_eq!(done, [(Audience::All, LockMessage::Release(first))]);
    }

    #[test]
    fn overlapping_locks_take_turns_and_others_do_not_wait() {
        let mut manager = LockManager::new(1);
        after(&mut manager, LockMessage::Ask(lock(1, 0..8)));
        assert_eq!(after(&mut manager, LockMessage::Ask(lock(2, 4..12))), []);
        let behind = after(&mut manager, LockMessage::Ask(lock(3, 10..11)));
        assert_eq!(behind, [], "an earlier one that waits comes first");
        assert_eq!(after(&mut manager, LockMessage::Ask(lock(4, 12..20))).len(), 1);
        let next = after(&mut manager, LockMessage::Unlock((0, 1)));
        assert_eq!(next[1], (Audience::All, LockMessage::Exclude(lock(2, 4..12))));
        let next = after(&mut manager, LockMessage::Unlock((0, 2)));
        assert_eq!(next[1], (Audience::All, LockMessage::Exclude(lock(3, 10..11))));
    }

    #[test]
    fn a_reactor_reports_when_its_writes_are_over() {
        let mut exclusions = Exclusions::default();
        assert!(!exclusions.holds_back(&(0..100), None));
        exclusions.exclude(&lock(1, 4..8));
        assert!(exclusions.holds_back(&(7..9), None) && !exclusions.holds_back(&(8..9), None));
        assert_eq!(exclusions.next_quiet(|_, _| true), None);
        assert_eq!(exclusions.next_quiet(|_, _| false), Some((0, 1)));
        assert_eq!(exclusions.next_quiet(|_, _| false), None, "reported once");
        exclusions.release((0, 1));
        assert!(!exclusions.holds_back(&(0..100), None));
    }

    #[test]
    fn a_write_that_waits_goes_before_ranges_that_are_excluded_later() {
        let mut exclusions = Exclusions::default();
        exclusions.exclude(&lock(1, 0..8));
        let behind = Some(exclusions.last());
        exclusions.exclude(&lock(2, 8..16));
        assert!(exclusions.holds_back(&(0..16), behind) && exclusions.holds_back(&(8..16), None));
        exclusions.release((0, 1));
        assert!(!exclusions.holds_back(&(0..16), behind), "the later one waits");
        assert!(exclusions.holds_back(&(0..16), None));
        let waits = |_: &Range<u64>, number| behind.is_some_and(|behind| behind < number);
        assert_eq!(exclusions.next_quiet(waits), None);
    }

    #[test]
    fn a_range_with_a_write_under_way_does_not_hold_up_the_report_of_another() {
        let mut exclusions = Exclusions::default();
        exclusions.exclude(&lock(1, 0..8));
        exclusions.exclude(&lock(2, 8..16));
        let first_is_busy = |blocks: &Range<u64>, _| blocks.start == 0;
        assert_eq!(exclusions.next_quiet(first_is_busy), Some((0, 2)));
        assert_eq!(exclusions.next_quiet(first_is_busy), None);
        assert_eq!(exclusions.unreported().collect::<Vec<_>>(), [(0, 1)]);
        assert_eq!(exclusions.next_quiet(|_, _| false), Some((0, 1)));
        assert!(!exclusions.has_unreported());
    }
}
