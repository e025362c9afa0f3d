//! Holding items unchanged while they are sent or written, and freeing them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::heap::Heap;
use crate::item::{BITS_AT, HELD, LARGE};
use crate::kept::Kept;
use crate::pins::{Pin, Pins};
use crate::place::PairPlace;
use crate::touches::Touches;
use crate::value::Value;

impl<T: Touches> Heap<T> {
    /// Keeps a block where it is, and its value unchanged, until [`release_hold`](Self::release_hold).
    pub(crate) fn hold(&mut self, item: u32) {
        self.memory.bytes_mut(item, BITS_AT, 1)[0] |= HELD;
        self.regions.hold(item, true);
    }

    pub(crate) fn release_hold(&mut self, item: u32) {
        self.memory.bytes_mut(item, BITS_AT, 1)[0] &= !HELD;
        self.regions.hold(item, false);
    }

    /// Frees an item's memory, now or once its last pin ends.
    pub(crate) fn free_item(&mut self, item: u32) {
        let header = self.header(item);
        if header.bits & HELD != 0 {
            let pins = self.pins.get_mut(&item).expect("only pinned items are held in the index");
            pins.is_detached = true;
            return;
        }
        let units = self.item_units(item, header);
        if header.bits & LARGE != 0 && !self.is_stub(item, header) {
            let part_units = self.part_units(item, header);
            self.regions.remove_parts(item, part_units);
            self.free_pieces(item, header);
            self.free_chunks(item, header);
        }
        self.regions.give_back(item, units);
    }

    /// Keeps the value at a place unchanged while it is sent in pieces. `None` for a pair in the index, which is copied
    /// instead.
    pub(crate) fn pin(&mut self, place: PairPlace) -> Option<Pin> {
        let item = place.item()?;
        let pins = self.pins.entry(item).or_insert(Pins { count: 0, is_detached: false });
        pins.count += 1;
        if pins.count == 1 {
            self.hold(item);
        }
        Some(Pin { item })
    }

    /// A pinned value.
    pub(crate) fn pinned(&self, pin: &Pin) -> Value<'_> {
        self.item_value(pin.item)
    }

    /// Ends a pin. Returns whether that freed memory.
    #[expect(clippy::needless_pass_by_value, reason = "a pin ends once")]
    pub(crate) fn unpin(&mut self, pin: Pin) -> bool {
        let pins = self.pins.get_mut(&pin.item).expect("pinned");
        pins.count -= 1;
        if pins.count > 0 {
            return false;
        }
        let is_detached = pins.is_detached;
        self.pins.remove(&pin.item);
        self.release_hold(pin.item);
        if is_detached {
            self.free_item(pin.item);
        }
        is_detached
    }

    /// Up to `count` bytes of a kept value from `offset` on. `None` past its end, or if another partition keeps it.
    pub(crate) fn piece(&mut self, kept: &Kept, offset: usize, count: usize) -> Option<Vec<u8>> {
        self.release_returned_pins();
        let pin = kept.pin.as_ref().filter(|_| Arc::ptr_eq(&kept.returned, &self.returned))?;
        let value = self.pinned(pin);
        let end = kept.length.min(offset.checked_add(count)?);
        let mut piece = Vec::with_capacity(end.checked_sub(offset).filter(|&length| length > 0)?);
        while offset + piece.len() < end {
            let at = offset + piece.len();
            let part = value.part(at);
            piece.extend_from_slice(&part[..part.len().min(end - at)]);
        }
        Some(piece)
    }

    /// Whether any value is being sent or received, and must not leave memory before that ends.
    pub(crate) fn is_any_held(&self) -> bool {
        !self.pins.is_empty() || self.pending_count > 0 || self.chunked.is_any_held()
    }

    /// Ends the pins of kept values that were dropped. Returns whether that may have freed memory.
    pub(crate) fn release_returned_pins(&mut self) -> bool {
        if self.returned.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let returned = Arc::clone(&self.returned);
        let mut pins = returned.pins.lock().unwrap_or_else(PoisonError::into_inner);
        returned.count.store(0, Ordering::Release);
        let mut has_freed = false;
        for pin in pins.drain(..) {
            has_freed |= self.unpin(pin);
        }
        has_freed
    }
}
