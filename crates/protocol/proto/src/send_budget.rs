//! The send budget: how much one connection sends in one turn. docs/design/socket-path.md

use std::ops::Range;

/// Budget of a connection per turn, bytes; no send starts once it is spent, so a fast reader cannot starve the thread's
/// other connections.
const TURN_BYTES_MAX: usize = 512 << 10;

/// Longest piece that is never cut, bytes, whatever is left of the budget: many small pieces leave in one call.
const WHOLE_BYTES_MAX: usize = 32 << 10;

/// The rest of a connection's send budget in this turn.
///
/// ```text
/// while !is_spent:  gather pieces, each as far as end_of ─▶ send ─▶ on_sent
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendBudget {
    left_bytes: usize,
}

impl SendBudget {
    /// The budget of one turn.
    pub const TURN: Self = Self { left_bytes: TURN_BYTES_MAX };

    /// The budget of a connection that has its thread for itself.
    pub const UNLIMITED: Self = Self { left_bytes: usize::MAX };

    /// Whether no further send starts in this turn.
    #[inline]
    #[must_use]
    pub const fn is_spent(&self) -> bool {
        self.left_bytes == 0
    }

    /// The kernel took `count` bytes.
    #[inline]
    pub const fn on_sent(&mut self, count: usize) {
        self.left_bytes = self.left_bytes.saturating_sub(count);
    }

    /// How far the bytes `range` of a payload go into the next send, behind `gathered_bytes` of others. Payloads are
    /// cut at a multiple of `step`, as the last piece of its send; the first piece of a send has at least one step.
    #[inline]
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "lengths of data in memory, divided by a step that is not zero"
    )]
    pub fn end_of(&self, range: Range<usize>, gathered_bytes: usize, step: usize) -> usize {
        if range.len() <= WHOLE_BYTES_MAX || gathered_bytes.saturating_add(range.len()) <= self.left_bytes {
            return range.end;
        }
        let end = (range.start + self.left_bytes.saturating_sub(gathered_bytes)) / step * step;
        let least = if gathered_bytes == 0 { (range.start / step + 1) * step } else { range.start };
        range.end.min(end.max(least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(left_bytes: usize) -> SendBudget {
        SendBudget { left_bytes }
    }

    #[test]
    fn a_turn_sends_its_budget_and_starts_no_send_after_that() {
        let mut budget = SendBudget::TURN;
        budget.on_sent(TURN_BYTES_MAX - 1);
        assert!(!budget.is_spent());
        budget.on_sent(4096);
        assert!(budget.is_spent());
    }

    #[test]
    fn short_pieces_go_whole_and_long_ones_as_far_as_there_is_budget() {
        const WHOLE: usize = WHOLE_BYTES_MAX;
        assert_eq!(budget(1).end_of(0..WHOLE, 5 * WHOLE, 1), WHOLE);
        assert_eq!(budget(3 * WHOLE).end_of(0..4 * WHOLE, 2 * WHOLE, 1), WHOLE);
        assert_eq!(budget(3 * WHOLE).end_of(7..7 + 4 * WHOLE, 2 * WHOLE, 1), 7 + WHOLE);
        assert_eq!(budget(WHOLE).end_of(5..5 + 4 * WHOLE, 2 * WHOLE, 1), 5, "nothing of it");
        assert_eq!(budget(6 * WHOLE).end_of(0..4 * WHOLE, 2 * WHOLE, 1), 4 * WHOLE);
        assert_eq!(SendBudget::UNLIMITED.end_of(0..1 << 40, 1 << 40, 1), 1 << 40);
    }

    #[test]
    fn cuts_are_at_multiples_of_the_step_and_the_first_piece_has_one() {
        const STEP: usize = 64 << 10;
        assert_eq!(budget(STEP + 5).end_of(100..4 * STEP, 0, STEP), STEP);
        assert_eq!(budget(2 * STEP).end_of(100..4 * STEP, 10, STEP), 2 * STEP);
        assert_eq!(budget(1).end_of(100..4 * STEP, 0, STEP), STEP, "the first, or nothing would be sent");
        assert_eq!(budget(1).end_of(STEP..4 * STEP, 0, STEP), 2 * STEP);
        assert_eq!(budget(20).end_of(100..4 * STEP, 10, STEP), 100, "not the first: next time");
        assert_eq!(budget(1).end_of(100..STEP - 1, 0, STEP), STEP - 1, "its end");
    }
}
