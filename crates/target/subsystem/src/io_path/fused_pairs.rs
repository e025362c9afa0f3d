//! The fused commands of one queue, put together to pairs of Compare and Write as they and their data arrive. wire §16
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

use std::collections::VecDeque;

use memory::Buffer;
use proto::Slot;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::io_path::nvm_status::failed_pair;
use crate::io_path::running::Supply;

/// The fused commands of one queue that are not complete pairs with all their data yet.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    pairs: VecDeque<Pair>,
    /// Whether the last of `pairs` waits for its second command, which must come next.
    is_open: bool,
}

#[derive(Debug)]
struct Pair {
    first: Half,
    second: Option<Half>,
}

/// One command of a pair.
#[derive(Debug)]
struct Half {
    slot: Slot,
    sqe: Sqe,
    state: HalfState,
}

#[derive(Debug)]
enum HalfState {
    /// Its data was asked for.
    AwaitsData,
    /// Its data has arrived.
    Ready(Supply),
    /// It was completed with an error already; the other half must not succeed.
    Failed,
}

/// Verdicts about commands of a queue with fused commands.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Made and taken apart in one go.
pub(crate) enum Verdict {
    /// Complete this command with this status.
    Complete(Slot, Status),
    /// Execute this pair.
    Execute { first: (Slot, Sqe, Supply), second: (Slot, Sqe, Supply) },
}

impl Pairs {
    /// Whether the queue has any fused commands under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Whether the command in `slot` is half of one of them.
    pub(crate) fn has(&self, slot: Slot) -> bool {
        let second = |pair: &Pair| pair.second.as_ref().is_some_and(|half| half.slot == slot);
        self.pairs.iter().any(|pair| pair.first.slot == slot || second(pair))
    }

    /// A command has arrived that does not continue an open pair: its first is alone.
    pub(crate) fn on_other(&mut self) -> Option<Verdict> {
        if !std::mem::take(&mut self.is_open) {
            return None;
        }
        let pair = self.pairs.pop_back()?;
        match pair.first.state {
            HalfState::Failed => None,
            _ => Some(Verdict::Complete(pair.first.slot, Status::ABORTED_MISSING_FUSED.with_dnr())),
        }
    }

    /// The first of a pair, with its data if that is there; or the error that it has been completed with.
    pub(crate) fn on_first(&mut self, slot: Slot, sqe: &Sqe, data: Result<Option<Supply>, ()>) {
        self.is_open = true;
        self.pairs.push_back(Pair { first: half(slot, sqe, data), second: None });
    }

    /// The second of a pair, likewise. Returns what follows, as [`next_verdict`](Self::next_verdict) does from then on.
    pub(crate) fn on_second(
        &mut self,
        slot: Slot,
        sqe: &Sqe,
        data: Result<Option<Supply>, ()>,
    ) -> Option<Verdict> {
        if !std::mem::take(&mut self.is_open) {
            // Alone: nothing to pair it with.
            let is_completed = data.is_err();
            return (!is_completed)
                .then(|| Verdict::Complete(slot, Status::ABORTED_MISSING_FUSED.with_dnr()));
        }
        let pair = self.pairs.back_mut()?;
        pair.second = Some(half(slot, sqe, data));
        self.next_verdict()
    }

    /// Data has arrived for the command in `slot`; it is returned if that is not half of a pair.
    pub(crate) fn on_data(&mut self, slot: Slot, buffer: Buffer, is_intact: bool) -> Result<(), Buffer> {
        let halves = self.pairs.iter_mut().flat_map(|pair| [Some(&mut pair.first), pair.second.as_mut()]);
        let mut waiting =
            halves.flatten().filter(|half| half.slot == slot && matches!(half.state, HalfState::AwaitsData));
        let Some(half) = waiting.next() else { return Err(buffer) };
        // Onto the heap: a pair waits for its other half and for its range, and the commands that it waits for may need
        // a buffer.
        half.state =
            if is_intact { HalfState::Ready(Supply::Heap(buffer[..].into())) } else { HalfState::Failed };
        Ok(())
    }

    /// The next verdict. Pull until `None`.
    pub(crate) fn next_verdict(&mut self) -> Option<Verdict> {
        for at in 0..self.pairs.len() {
            let Some(Pair { first, second: Some(second) }) = self.pairs.get_mut(at) else { continue };
            // One half has failed: so does the other, once.
            match (&first.state, &second.state) {
                (HalfState::Failed, HalfState::Failed) => {
                    self.pairs.remove(at);
                    return self.next_verdict();
                }
                (HalfState::Failed, _) => {
                    second.state = HalfState::Failed;
                    return Some(Verdict::Complete(second.slot, failed_pair()));
                }
                (_, HalfState::Failed) => {
                    first.state = HalfState::Failed;
                    return Some(Verdict::Complete(first.slot, failed_pair()));
                }
                (HalfState::Ready(_), HalfState::Ready(_)) => {
                    let Pair { first, second: Some(second) } = self.pairs.remove(at)? else { return None };
                    return match (first.state, second.state) {
                        (HalfState::Ready(expected), HalfState::Ready(data)) => Some(Verdict::Execute {
                            first: (first.slot, first.sqe, expected),
                            second: (second.slot, second.sqe, data),
                        }),
                        _ => None,
                    };
                }
                _ => {}
            }
        }
        None
    }
}

fn half(slot: Slot, sqe: &Sqe, data: Result<Option<Supply>, ()>) -> Half {
    let state = match data {
        Ok(Some(supply)) => HalfState::Ready(supply),
        Ok(None) => HalfState::AwaitsData,
        Err(()) => HalfState::Failed,
    };
    Half { slot, sqe: *sqe, state }
}
