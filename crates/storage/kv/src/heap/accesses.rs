//! Marking items as read, and their last accesses.

use super::Heap;
use crate::item::{FETCHED, Header, USED_ONCE, USES, USES_MAX};
use crate::place::PairPlace;
use crate::regions::Use;
use crate::touches::Touches;

impl<T: Touches> Heap<T> {
    /// Whether reading an item changes its header: most often not.
    #[inline(always)]
    pub(crate) fn is_touch_due(&self, header: &Header) -> bool {
        header.bits & USES != USES_MAX || header.bits & FETCHED == 0 || header.stamp != self.access.now()
    }

    /// Marks a pair as read, which delays its eviction.
    #[inline]
    pub(crate) fn touch(&mut self, place: PairPlace) {
        let Some(item) = place.item() else { return };
        let header = self.header(item);
        if self.is_touch_due(&header) {
            let uses = match header.bits & USES {
                USED_ONCE => {
                    self.once_used += 1;
                    1
                }
                uses => (uses + 1).min(USES_MAX),
            };
            let bits = header.bits & !USES | FETCHED | uses;
            self.set_header(item, Header { bits, stamp: self.access.now(), ..header });
        }
    }

    /// The second of the last access to an item, as far as it is known; `None` if the pair is in the index.
    pub(crate) fn last_access_s(&self, place: PairPlace) -> Option<u32> {
        Some(self.access.second_of(self.header(place.item()?).stamp))
    }

    /// Converts the stamps of some items to longer times before their numbers recur.
    pub(crate) fn age_stamps(&mut self, now_s: u32) {
        let Some(region) = self.access.step(now_s, self.regions.count() as u32) else { return };
        let passed: [u8; 64] = std::array::from_fn(|stamp| self.access.passed(stamp as u8));
        let mut from = 0;
        while matches!(self.regions.use_of(region), Use::Items(_))
            && let Some((at, item)) = self.regions.next_item(region, from)
        {
            from = at + 1;
            let header = self.header(item);
            let stamp = passed[usize::from(header.stamp)];
            if stamp != header.stamp {
                self.set_header(item, Header { stamp, ..header });
            }
        }
    }
}
