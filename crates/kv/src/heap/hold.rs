//! Holding items unchanged while they are sent or written, and freeing them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::heap::Heap;
use crate::item::{BITS_AT, HELD, LARGE, chunk_count};
use crate::kept::Kept;
use crate::pins::{Pin, Pins};
use crate::place::Place;
use crate::value::Value;

impl Heap {
    /// Keeps a block where it is, and its value unchanged, until [`release_hold`](Self::release_hold).
    pub(crate) fn hold(&mut self, line: u32) {
        self.memory.bytes_mut(line, BITS_AT, 1)[0] |= HELD;
        self.regions.hold(line, true);
    }

    pub(crate) fn release_hold(&mut self, line: u32) {
        self.memory.bytes_mut(line, BITS_AT, 1)[0] &= !HELD;
        self.regions.hold(line, false);
    }

    /// Frees an item's memory, now or once its last pin ends.
    pub(crate) fn free_item(&mut self, line: u32) {
        let header = self.header(line);
        if header.bits & HELD != 0 {
            let pins = self.pins.get_mut(&line).expect("only pinned items are held in the index");
            pins.is_detached = true;
            return;
        }
        if header.bits & LARGE != 0 && !self.is_stub(line, header) {
            let (length, list_count) = self.large(line, header);
            for at in usize::from(chunk_count(length) > 0)..list_count {
                self.regions.give_back_extent(self.memory.u32_at(line, header.list_at() + 4 * at));
            }
            self.free_chunks(line, header);
        }
        self.regions.give_back(line);
    }

    /// Keeps the value at a place unchanged while it is sent in pieces. `None` for a pair in the index, which is copied
    /// instead.
    pub(crate) fn pin(&mut self, place: Place) -> Option<Pin> {
        let line = place.item()?;
        let pins = self.pins.entry(line).or_insert(Pins { count: 0, is_detached: false });
        pins.count += 1;
        if pins.count == 1 {
            self.hold(line);
        }
        Some(Pin { line })
    }

    /// A pinned value.
    pub(crate) fn pinned(&self, pin: &Pin) -> Value<'_> {
        self.item_value(pin.line)
    }

    /// Ends a pin. Returns whether that freed memory.
    #[expect(clippy::needless_pass_by_value, reason = "a pin ends once")]
    pub(crate) fn unpin(&mut self, pin: Pin) -> bool {
        let pins = self.pins.get_mut(&pin.line).expect("pinned");
        pins.count -= 1;
        if pins.count > 0 {
            return false;
        }
        let is_detached = pins.is_detached;
        self.pins.remove(&pin.line);
        self.release_hold(pin.line);
        if is_detached {
            self.free_item(pin.line);
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
