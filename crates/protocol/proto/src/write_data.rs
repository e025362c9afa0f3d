//! The data phase of one write, controller side: windows granted by R2T and the data received in them. wire §4.1
//!
//! ```text
//! grant ─▶ open windows ──on_h2c_data──▶ … ──▶ complete once every byte has come
//!   ▲─ extend: the part behind it, whose windows open meanwhile ─▶ advance: it is the part now
//! ```

use std::ops::Range;

use crate::violation::Violation;

/// Windows that may be open at once for one command.
pub const WINDOW_COUNT_MAX: usize = 4;

/// The data phase of one command, or of a part of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteData {
    /// Start of the part, bytes from the start of the command's data.
    start: u32,
    /// End of the part: the end of the command's data unless it is asked for in parts.
    part_end: u32,
    /// End of the part behind it; that of the part itself if there is none.
    end: u32,
    /// Bytes granted so far, from the start.
    granted: u32,
    /// The missing range of each open window; empty ranges are closed windows.
    windows: [Window; WINDOW_COUNT_MAX],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Window {
    next: u32,
    end: u32,
}

impl WriteData {
    /// A part of a command's data of which nothing is granted yet.
    #[inline]
    pub(crate) fn new(part: Range<u32>) -> Self {
        let Range { start, end } = part;
        let windows = [Window::default(); WINDOW_COUNT_MAX];
        Self { start, part_end: end, end, granted: start, windows }
    }

    /// Adds the part behind this one.
    ///
    /// # Panics
    /// If it does not follow this one, or there is one already.
    pub(crate) fn extend(&mut self, part: Range<u32>) {
        assert!(self.end == self.part_end && part.start == self.end, "one part behind another");
        self.end = part.end;
    }

    /// The part has been taken: the one behind it, if there is one, is the part now.
    pub(crate) fn advance(&mut self) {
        (self.start, self.part_end) = (self.part_end, self.end);
    }

    /// Whether a byte of the command's data is in the part behind, and its offset in its part. No window begins before the
    /// part, and none is in both.
    #[inline]
    pub(crate) fn within_part(&self, offset: u32) -> (bool, u32) {
        let is_ahead = offset >= self.part_end;
        (is_ahead, offset.saturating_sub(if is_ahead { self.part_end } else { self.start }))
    }

    /// Opens the next window, of at most `window_bytes_max`, if data is left to grant and fewer than
    /// `window_limit` are open. Returns its index and range.
    #[inline]
    pub(crate) fn grant(
        &mut self,
        window_bytes_max: u32,
        window_limit: usize,
    ) -> Option<(usize, Range<u32>)> {
        if self.granted == self.end {
            return None;
        }
        let mut windows = self.windows.iter_mut().take(window_limit.max(1)).enumerate();
        let (index, window) = windows.find(|(_, window)| window.next == window.end)?;
        let start = self.granted;
        let limit = if start < self.part_end { self.part_end } else { self.end };
        let end = start.saturating_add(window_bytes_max.max(1)).min(limit);
        self.granted = end;
        *window = Window { next: start, end };
        Some((index, start..end))
    }

    /// Accepts the header of an H2CData for window `index`. wire §4.1
    ///
    /// # Errors
    /// [`Violation::HeaderField`] if that window was never granted, or if LAST is set other than on its last byte;
    /// [`Violation::Sequence`] if it is closed, [`Violation::OutOfRange`] if the PDU does not continue it exactly.
    #[inline]
    pub(crate) fn on_h2c_data(
        &mut self,
        index: usize,
        offset: u32,
        length: u32,
        is_last: bool,
    ) -> Result<(), Violation> {
        const NEVER_GRANTED: Violation = Violation::HeaderField { offset: 10 };
        let window = self.windows.get_mut(index).filter(|window| window.end > 0).ok_or(NEVER_GRANTED)?;
        if window.next == window.end {
            return Err(Violation::Sequence);
        }
        let after = offset.checked_add(length).ok_or(Violation::OutOfRange)?;
        if offset != window.next || after > window.end {
            return Err(Violation::OutOfRange);
        }
        if is_last != (after == window.end) {
            return Err(Violation::HeaderField { offset: 1 });
        }
        window.next = after;
        Ok(())
    }

    /// Whether every byte of the part was granted and has arrived, except the rest of the PDU accepted last.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        if self.granted == self.end {
            return !self.is_owed() || self.part_end != self.end && !self.is_part_owed();
        }
        self.granted >= self.part_end && !self.is_part_owed()
    }

    /// Whether granted data of the part, not of the one behind it, is still to arrive.
    #[cold]
    #[inline(never)]
    fn is_part_owed(&self) -> bool {
        self.windows.iter().any(|window| window.next != window.end && window.next < self.part_end)
    }

    /// Whether granted data is still to arrive, besides the rest of the PDU accepted last.
    #[inline]
    pub(crate) fn is_owed(&self) -> bool {
        self.windows.iter().any(|window| window.next != window.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn windows_follow_one_another() {
        let mut data = WriteData::new(0..10);
        assert_eq!(data.grant(4, 1), Some((0, 0..4)));
        assert_eq!(data.grant(4, 1), None, "one at a time");
        assert_eq!(data.grant(4, 2), Some((1, 4..8)));
        assert_eq!(data.on_h2c_data(1, 4, 4, true), Ok(()));
        assert_eq!(data.grant(4, 2), Some((1, 8..10)));
        assert_eq!(data.grant(4, 4), None, "all asked for");
        assert!(data.is_owed() && !data.is_complete());
    }

    #[test]
    fn what_does_not_continue_a_window_is_refused() {
        let mut data = WriteData::new(0..0x2000);
        let never_granted = Err(Violation::HeaderField { offset: 10 });
        assert_eq!(data.on_h2c_data(0, 0, 1, false), never_granted);
        data.grant(0x1000, 1);
        assert_eq!(data.on_h2c_data(3, 0, 1, false), never_granted);
        assert_eq!(data.on_h2c_data(99, 0, 1, false), never_granted);
        assert_eq!(data.on_h2c_data(0, 4, 4, false), Err(Violation::OutOfRange), "a gap");
        assert_eq!(data.on_h2c_data(0, 0, 0x1001, false), Err(Violation::OutOfRange));
        assert_eq!(data.on_h2c_data(0, 0x1000, 0xffff_f000, false), Err(Violation::OutOfRange), "wraps");
        assert_eq!(data.on_h2c_data(0, 0, 0x1000, false), Err(Violation::HeaderField { offset: 1 }));
        assert_eq!(data.on_h2c_data(0, 0, 0x800, true), Err(Violation::HeaderField { offset: 1 }));
        assert_eq!(data.on_h2c_data(0, 0, 0x800, false), Ok(()));
        assert_eq!(data.on_h2c_data(0, 0, 0x800, false), Err(Violation::OutOfRange), "repeated");
        assert_eq!(data.on_h2c_data(0, 0x800, 0x800, true), Ok(()));
        assert_eq!(data.on_h2c_data(0, 0x1000, 4, false), Err(Violation::Sequence), "the window is closed");
    }

    #[test]
    fn the_part_behind_is_granted_meanwhile_and_comes_in_any_order() {
        let mut data = WriteData::new(0..6);
        data.extend(6..10);
        assert_eq!(data.grant(4, 3), Some((0, 0..4)));
        assert_eq!(data.grant(4, 3), Some((1, 4..6)), "no window is in both");
        assert_eq!(data.grant(4, 3), Some((2, 6..10)));
        assert_eq!((data.within_part(5), data.within_part(7)), ((false, 5), (true, 1)));
        assert_eq!(data.on_h2c_data(2, 6, 4, true), Ok(()), "the part behind comes first");
        assert_eq!(data.on_h2c_data(0, 0, 4, true), Ok(()));
        assert!(!data.is_complete() && data.is_owed());
        assert_eq!(data.on_h2c_data(1, 4, 2, true), Ok(()));
        assert!(data.is_complete());
        data.advance();
        assert!(data.is_complete(), "it is there as well");
        assert_eq!(data.within_part(7), (false, 1));
        data.extend(10..11);
        assert_eq!(data.grant(4, 1), Some((0, 10..11)));
        assert!(data.is_complete() && data.is_owed());
        data.advance();
        assert!(!data.is_complete());
        assert_eq!(data.on_h2c_data(0, 10, 1, true), Ok(()));
        assert!(data.is_complete() && !data.is_owed());
    }

    proptest! {
        /// Any split of the windows into PDUs, in any interleaving, completes the write exactly once.
        #[test]
        fn every_exact_split_completes(
            start in prop_oneof![Just(0u32), 0u32..0xffff_0000],
            length in 1u32..100_000,
            window_bytes in 1u32..40_000,
            limit in 1usize..6,
            cuts in proptest::collection::vec((0usize..4, 1u32..9000), 1..50),
        ) {
            let length = length.min(u32::MAX - start);
            let mut data = WriteData::new(start..start + length);
            let mut open: Vec<(usize, Range<u32>)> = Vec::new();
            let mut seen = vec![false; length as usize];
            for (pick, cut) in cuts.iter().cycle() {
                while let Some(window) = data.grant(window_bytes, limit) {
                    open.push(window);
                }
                prop_assert!(open.len() <= limit.min(WINDOW_COUNT_MAX));
                if open.is_empty() {
                    break;
                }
                let at = pick % open.len();
                let (index, range) = &mut open[at];
                let count = (*cut).min(range.end - range.start);
                let is_last = range.start + count == range.end;
                prop_assert_eq!(data.on_h2c_data(*index, range.start, count, is_last), Ok(()));
                for byte in range.start..range.start + count {
                    prop_assert!(!std::mem::replace(&mut seen[(byte - start) as usize], true));
                }
                range.start += count;
                if is_last {
                    open.swap_remove(at);
                }
                prop_assert_eq!(data.is_owed(), !open.is_empty());
            }
            prop_assert!(data.is_complete() && seen.iter().all(|&seen| seen));
        }
    }
}
