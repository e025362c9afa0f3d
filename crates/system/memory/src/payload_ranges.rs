//! Ranges of a payload, sent one after the other.

use std::ops::Range;

// circle with payload.rs: ranges are of a payload, and a payload may be the ranges of another
use crate::payload::Payload;
use crate::segment::Segment;

/// Ranges of a payload that never changes, one after the other.
#[derive(Debug)]
pub struct PayloadRanges {
    of: Payload,
    /// Where each range begins in the payload, and where it ends in the run of all ranges. None is empty.
    parts: Box<[(usize, usize)]>,
}

impl PayloadRanges {
    /// The ranges of a payload, in order; empty ones are left out.
    ///
    /// # Panics
    /// If one is not within the payload, or the payload may change.
    #[must_use]
    pub fn new(of: Payload, ranges: impl Iterator<Item = Range<usize>>) -> Self {
        assert!(of.is_stable(), "ranges of a payload that changes");
        let (length, mut end) = (of.len(), 0);
        let parts = ranges.filter(|range| !range.is_empty()).map(|range| {
            assert!(range.end <= length, "{range:?} past a payload of {length} bytes");
            end += range.len();
            (range.start, end)
        });
        Self { parts: parts.collect(), of }
    }

    /// The payload.
    #[must_use]
    pub fn of(&self) -> &Payload {
        &self.of
    }

    /// Bytes of all ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.last().map_or(0, |(_, end)| *end)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Where in the payload the first bytes of a part of the run are: as many as are in one range.
    ///
    /// # Panics
    /// If the part begins behind the last range.
    pub(crate) fn within(&self, range: Range<usize>) -> Range<usize> {
        let number = self.parts.partition_point(|(_, end)| *end <= range.start);
        let (start, end) = self.parts[number];
        let before = if number == 0 { 0 } else { self.parts[number - 1].1 };
        let start = start + (range.start - before);
        start..start + (end.min(range.end) - range.start)
    }

    #[cold]
    pub(crate) fn segment(&self, range: Range<usize>) -> Segment<'_> {
        if range.is_empty() {
            return Segment::new(&[]);
        }
        self.of.segment(self.within(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(payload: &Payload, range: Range<usize>) -> (Vec<u8>, Vec<u8>) {
        let (mut at, mut sent, mut digested) = (range.start, Vec::new(), Vec::new());
        while at < range.end {
            let segment = payload.segment(at..range.end);
            segment.append_to(&mut sent);
            at += segment.len();
        }
        payload.for_each_piece(range, |piece| digested.extend_from_slice(piece));
        (sent, digested)
    }

    #[test]
    fn ranges_are_one_run_of_bytes_in_their_order() {
        let bytes: Vec<u8> = (0..100).collect();
        let ranges = [90..100, 0..5, 5..5, 3..40];
        let expected: Vec<u8> = ranges.iter().cloned().flat_map(|range| bytes[range].to_vec()).collect();
        let of = Payload::Heap(bytes.into());
        let payload = Payload::Ranges(Box::new(PayloadRanges::new(of, ranges.into_iter())));
        assert_eq!((payload.len(), payload.is_stable()), (52, true));
        assert!(payload.rest(3..52).is_none());
        for start in 0..=52 {
            for end in start..=52 {
                let (sent, digested) = whole(&payload, start..end);
                assert!(sent == expected[start..end] && digested == sent, "{start}..{end}");
            }
        }
        let none = PayloadRanges::new(Payload::Zeroes(0), std::iter::once(0..0));
        assert!(none.is_empty() && none.segment(0..0).is_empty());
    }
}
