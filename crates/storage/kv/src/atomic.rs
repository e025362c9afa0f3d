//! Atomic operations on values that are single numbers: read, changed and written in one step.
// No input from a host may cause a panic: see docs/testing.md.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::unwrap_used))]

use crate::key::KeyHash;
use crate::pair_writer::PairWriter;
use crate::place::PairPlace;

/// An operation on a number of 4 or 8 bytes, little-endian. The operand is truncated to that width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Adds, wrapping.
    Add(u64),
    /// Adds if the sum is at most the limit; to subtract, add a negative number, which wraps.
    AddUpTo {
        /// The number to add.
        operand: u64,
        /// The largest permitted sum.
        limit: u64,
    },
    /// Subtracts if the number is at least the operand.
    TakeAway(u64),
    /// The smaller of both, unsigned.
    Min(u64),
    /// The larger of both, unsigned.
    Max(u64),
    /// Bits set in both.
    And(u64),
    /// Bits set in either.
    Or(u64),
    /// Bits that differ.
    Xor(u64),
    /// Replaces the number.
    Swap(u64),
    /// Replaces the number, if it equals `expected`.
    CompareAndSwap {
        /// The number to compare with.
        expected: u64,
        /// The number to store.
        new: u64,
    },
}

/// The result of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicResult {
    /// Done; the previous number.
    Done(u64),
    /// Not done: the limit would be exceeded, or the comparison failed; the present number.
    Unchanged(u64),
    /// The value has neither 4 nor 8 bytes; its length.
    Length(usize),
    /// No memory for the copy that is needed first.
    NoMemory,
}

impl Atomic {
    /// The new number for `value`, or `None` if it does not change. `mask` has the bits of a number of its width.
    fn apply(self, value: u64, mask: u64) -> Option<u64> {
        Some(match self {
            Self::Add(operand) => value.wrapping_add(operand) & mask,
            Self::AddUpTo { operand, limit } => {
                value.checked_add(operand).filter(|&sum| sum <= limit.min(mask))?
            }
            Self::TakeAway(operand) => value.checked_sub(operand)?,
            Self::Min(operand) => value.min(operand & mask),
            Self::Max(operand) => value.max(operand & mask),
            Self::And(operand) => value & operand,
            Self::Or(operand) => (value | operand) & mask,
            Self::Xor(operand) => (value ^ operand) & mask,
            Self::Swap(new) => new & mask,
            Self::CompareAndSwap { expected, new } => {
                if value != expected & mask {
                    return None;
                }
                new & mask
            }
        })
    }
}

impl Atomic {
    /// Changes the number at `place`, which is the value of a key that was just found.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the number has 4 or 8 bytes"
    )]
    pub(crate) fn execute(
        self,
        writer: &mut PairWriter,
        hash: KeyHash,
        key: &[u8],
        place: PairPlace,
    ) -> AtomicResult {
        let heap = &mut writer.allocator.pairs.heap;
        let value = heap.value(place);
        let (bytes, length) = (value.head(), value.len());
        if bytes.len() != length || !matches!(length, 4 | 8) {
            return AtomicResult::Length(length);
        }
        let mut wide = [0; 8];
        wide[..length].copy_from_slice(bytes);
        let value = u64::from_le_bytes(wide);
        heap.touch(place);
        let Some(new) = self.apply(value, u64::MAX >> (64 - 8 * length)) else {
            return AtomicResult::Unchanged(value);
        };
        let new = new.to_le_bytes();
        if writer.change(hash, key, place, |bytes| bytes.copy_from_slice(&new[..length])) {
            AtomicResult::Done(value)
        } else {
            AtomicResult::NoMemory
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::{Attributes, Condition};
    use crate::processor::Processor;
    use crate::settings::Settings;

    fn run(value: &[u8], atomic: Atomic) -> (AtomicResult, Vec<u8>) {
        let mut processor = Processor::new(Settings::default()).expect("memory");
        let hash = processor.hash(b"n");
        processor.store(hash, b"n", value, Attributes::default(), Condition::Always);
        let place = processor.find(hash, b"n").expect("stored");
        let result = processor.atomic(hash, b"n", place, atomic);
        (result, processor.value(place).to_vec())
    }

    #[test]
    fn numbers_of_four_and_eight_bytes_change_as_they_should() {
        use AtomicResult::{Done, Unchanged};
        let most = u64::from(u32::MAX);
        for (atomic, before, result, after) in [
            (Atomic::Add(2), most, Done(most), 1),
            (Atomic::AddUpTo { operand: 2, limit: 12 }, 10, Done(10), 12),
            (Atomic::AddUpTo { operand: 3, limit: 12 }, 10, Unchanged(10), 10),
            (Atomic::AddUpTo { operand: 1, limit: u64::MAX }, most, Unchanged(most), most),
            (Atomic::TakeAway(3), 3, Done(3), 0),
            (Atomic::TakeAway(4), 3, Unchanged(3), 3),
            (Atomic::Min(7), 9, Done(9), 7),
            (Atomic::Max(7), 9, Done(9), 9),
            (Atomic::And(6), 12, Done(12), 4),
            (Atomic::Or(3), 12, Done(12), 15),
            (Atomic::Xor(6), 12, Done(12), 10),
            (Atomic::Swap(1 << 40 | 5), 12, Done(12), 5),
            (Atomic::CompareAndSwap { expected: 12, new: 13 }, 12, Done(12), 13),
            (Atomic::CompareAndSwap { expected: 11, new: 13 }, 12, Unchanged(12), 12),
        ] {
            let before = u32::try_from(before).expect("fits").to_le_bytes();
            let after = u32::try_from(after).expect("fits").to_le_bytes().to_vec();
            assert_eq!(run(&before, atomic), (result, after), "{atomic:?}");
        }
        let most = u64::MAX.to_le_bytes();
        assert_eq!(run(&most, Atomic::Add(1)), (Done(u64::MAX), vec![0; 8]));
        let stays = run(&most, Atomic::AddUpTo { operand: 1, limit: u64::MAX });
        assert_eq!(stays, (Unchanged(u64::MAX), most.to_vec()));
    }

    #[test]
    fn other_lengths_are_no_numbers() {
        assert_eq!(run(b"abc", Atomic::Add(1)), (AtomicResult::Length(3), b"abc".to_vec()));
    }
}
