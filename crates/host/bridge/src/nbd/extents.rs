//! Extents of block status: data and holes of a range, in turn.
// Data from a target must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::ops::Range;

use nbd_wire::ReplyForm;

/// Bytes of an extent.
#[must_use]
pub const fn extent_bytes(form: ReplyForm) -> usize {
    match form {
        ReplyForm::Extended => 16,
        ReplyForm::Simple | ReplyForm::Structured => 8,
    }
}

/// Writes the extents of a range into `out`, as many as it has room for, or only the first one. `data` are the parts with
/// data, in order; what lies between them has the status of holes. Returns the bytes written.
pub fn write_extents(
    form: ReplyForm,
    range: Range<u64>,
    data: impl IntoIterator<Item = Range<u64>>,
    hole_status: u32,
    is_single: bool,
    out: &mut [u8],
) -> usize {
    let mut slots = out.chunks_exact_mut(extent_bytes(form));
    let mut written = 0usize;
    let mut add = |from: u64, to: u64, status: u32| {
        if to <= from {
            return true;
        }
        let Some(slot) = slots.next().filter(|_| !(is_single && written > 0)) else { return false };
        let length = to.saturating_sub(from);
        written = written.saturating_add(slot.len());
        if form == ReplyForm::Extended {
            let (first, second) = slot.split_at_mut(8);
            first.copy_from_slice(&length.to_be_bytes());
            second.copy_from_slice(&u64::from(status).to_be_bytes());
            return true;
        }
        // A request has no more bytes than that, but for a multiple of the block size.
        let length = u32::try_from(length).unwrap_or(!0xffff);
        let (first, second) = slot.split_at_mut(4);
        first.copy_from_slice(&length.to_be_bytes());
        second.copy_from_slice(&status.to_be_bytes());
        true
    };
    let mut at = range.start;
    for part in data {
        let (start, end) = (part.start.clamp(at, range.end), part.end.min(range.end));
        if !(add(at, start, hole_status) && add(start, end, 0)) {
            return written;
        }
        at = start.max(end);
    }
    add(at, range.end, hole_status);
    written
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Lists of ranges.
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extents(form: ReplyForm, bytes: &[u8]) -> Vec<(u64, u64)> {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let half = extent_bytes(form) / 2;
        bytes.chunks(2 * half).map(|one| (number(&one[..half]), number(&one[half..]))).collect()
    }

    #[test]
    fn data_and_holes_follow_each_other() {
        for form in [ReplyForm::Structured, ReplyForm::Extended] {
            let write = |data: &[Range<u64>], is_single, room: usize| {
                let mut out = vec![0xEE; room];
                let length = write_extents(form, 100..200, data.to_vec(), 3, is_single, &mut out);
                extents(form, &out[..length])
            };
            assert_eq!(write(&[], false, 1000), [(100, 3)]);
            assert_eq!(write(&[100..200], false, 1000), [(100, 0)]);
            assert_eq!(write(&[100..120, 150..160], false, 1000), [(20, 0), (30, 3), (10, 0), (40, 3)]);
            assert_eq!(write(&[110..120], true, 1000), [(10, 3)]);
            assert_eq!(write(&[100..120], true, 1000), [(20, 0)]);
            assert_eq!(write(&[110..120], false, 2 * extent_bytes(form)), [(10, 3), (10, 0)]);
        }
    }

    proptest! {
        #[test]
        fn whatever_the_parts_are_extents_lie_in_the_range(
            parts in prop::collection::vec((0u64..40, 0u64..40), 0..8), room in 0usize..200,
        ) {
            let parts: Vec<_> = parts.into_iter().map(|(start, end)| start..end).collect();
            let mut out = vec![0; room];
            let length = write_extents(ReplyForm::Structured, 10..30, parts, 3, false, &mut out);
            let all = extents(ReplyForm::Structured, &out[..length]);
            prop_assert!(all.iter().all(|(length, _)| *length > 0));
            prop_assert!(all.iter().map(|(length, _)| length).sum::<u64>() <= 20);
        }
    }
}
