//! The slots of a host's queue: the command in each, found again by its cid.

use wire::U16;
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::host_queue::data::Transfer;

/// Data of a command that is in the caravan.
#[derive(Clone, Copy, Debug)]
pub struct DataRange {
    pub(super) slot: u16,
    /// Whether it is the last range of one R2T.
    pub(super) ends_window: bool,
}

#[derive(Debug)]
pub(super) struct Slot<B, U> {
    /// Grows with each command: the upper 6 bits of its cid.
    pub(super) generation: u8,
    /// A bit for each generation that no further command has.
    skipped: u64,
    /// The command that is in it, or was last.
    pub(super) sqe: Sqe,
    pub(super) state: SlotState<B, U>,
}

impl<B, U> Slot<B, U> {
    pub(super) fn new() -> Self {
        Self { generation: 0, skipped: 0, sqe: Sqe::new(0, Nsid::NONE), state: SlotState::Free }
    }

    /// The generation of the next command.
    #[inline]
    pub(super) fn advance(&mut self) -> u8 {
        self.generation = self.generation.wrapping_add(1) & GENERATION_MASK;
        if self.skipped != 0 {
            let ahead = self.skipped.rotate_right(self.generation.into()).trailing_ones();
            self.generation =
                self.generation.wrapping_add(u8::try_from(ahead).unwrap_or(0)) & GENERATION_MASK;
        }
        self.generation
    }

    /// Skips a generation from now on. When all are skipped, all but this one are used again.
    pub(super) fn skip(&mut self, generation: u16) {
        let this = 1 << generation;
        self.skipped |= this;
        if self.skipped == u64::MAX {
            self.skipped = this;
        }
    }
}

#[derive(Debug)]
pub(super) enum SlotState<B, U> {
    Free,
    Live(Command<B, U>),
}

#[derive(Debug)]
pub(super) struct Command<B, U> {
    pub(super) user: U,
    pub(super) transfer: Transfer<B>,
    /// The queue's ring count when it was submitted.
    pub(super) submitted_at: u64,
    /// Bytes of its data that were handed to the caravan, or received.
    pub(super) moved: u32,
    /// Payload ranges of it that are in the caravan.
    pub(super) in_transit: u32,
    /// R2Ts of it whose data is in the caravan.
    pub(super) window_count: u32,
    /// A data digest did not match.
    pub(super) is_corrupt: bool,
    /// The completion, until it is taken; `in_transit` may hold it back.
    pub(super) completion: Option<(Status, u64)>,
}

pub(super) const INDEX_BITS: u32 = 10;
const INDEX_MASK: u16 = (1 << INDEX_BITS) - 1;
const GENERATION_MASK: u8 = 0x3f;

/// The slot and the generation of a command with this id.
#[inline]
pub(super) fn split(cid: u16) -> (u16, u16) {
    (cid & INDEX_MASK, cid >> INDEX_BITS)
}

/// A range of a command's data is sent, and the kernel no longer reads it.
#[inline]
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "slots are ours, and what was counted in is counted out"
)]
pub(super) fn range_gone<B, U>(slots: &mut [Slot<B, U>], finished: &mut Vec<u16>, range: DataRange) {
    let DataRange { slot, ends_window } = range;
    if let SlotState::Live(command) = &mut slots[usize::from(slot)].state {
        command.in_transit -= 1;
        command.window_count -= u32::from(ends_window);
        if command.in_transit == 0 && command.completion.is_some() {
            finished.push(slot);
        }
    }
}

/// The live command with this id that has no answer yet.
#[inline]
pub(super) fn find<B, U>(slots: &mut [Slot<B, U>], cid: U16) -> Option<(u16, &mut Command<B, U>)> {
    let (slot, generation) = split(cid.get());
    let entry = slots.get_mut(usize::from(slot))?;
    match &mut entry.state {
        SlotState::Live(command)
            if u16::from(entry.generation) == generation && command.completion.is_none() =>
        {
            Some((slot, command))
        }
        _ => None,
    }
}
