//! The pieces of items: the first parts of their values.

use memory::CHUNK_BYTES;

use crate::heap::Heap;
use crate::item::{HELD, Header, LARGE, chunk_count};
use crate::regions::{PIECE_BYTES, REGION_PIECES, Slots, units};
use crate::touches::Touches;

impl<T: Touches> Heap<T> {
    /// Memory that can be taken for any purpose or for pieces, in pieces.
    pub(crate) fn room(&self) -> usize {
        let regions = self.regions.free_count() + self.chunked.free_regions();
        regions * REGION_PIECES + self.regions.free_slots(Slots::Pieces)
    }

    /// Byte in an item of its list of pieces, and their number.
    fn pieces(&self, item: u32, header: Header) -> (usize, usize) {
        if header.bits & LARGE == 0 || self.is_stub(item, header) {
            return (0, 0);
        }
        let (length, list_count) = self.large(item, header);
        let first = usize::from(chunk_count(length) > 0);
        (header.list_at() + 4 * first, list_count - first)
    }

    /// Gives a piece that was taken to an item, as its `number`th.
    pub(crate) fn put_piece(&mut self, item: u32, list_at: usize, number: usize, piece: u32) {
        self.memory.bytes_mut(item, list_at + 4 * number, 4).copy_from_slice(&piece.to_le_bytes());
        self.regions.set_owner(piece, item);
    }

    /// Units of the pieces and chunks of an item.
    pub(crate) fn part_units(&self, item: u32, header: Header) -> usize {
        let (_, piece_count) = self.pieces(item, header);
        let has_chunks = header.bits & LARGE != 0 && !self.is_stub(item, header);
        let chunk_count = if has_chunks { chunk_count(self.large(item, header).0) } else { 0 };
        units(piece_count * PIECE_BYTES + chunk_count * CHUNK_BYTES)
    }

    /// Records that the item at `from` has moved to `item`, for its pieces and chunks.
    pub(crate) fn on_moved(&mut self, from: u32, item: u32, header: Header) {
        let part_units = self.part_units(item, header);
        self.regions.remove_parts(from, part_units);
        self.regions.add_parts(item, part_units);
        self.own_pieces(item, header);
    }

    /// Records an item as the owner of its pieces.
    pub(crate) fn own_pieces(&mut self, item: u32, header: Header) {
        let (at, count) = self.pieces(item, header);
        for number in 0..count {
            let piece = self.memory.u32_at(item, at + 4 * number);
            self.regions.set_owner(piece, item);
        }
    }

    /// Moves a piece to `to`, unless it must stay where it is. Returns whether it was moved.
    pub(crate) fn move_piece(&mut self, piece: u32, to: u32) -> bool {
        let item = self.regions.owner(piece);
        if self.header(item).bits & HELD != 0 || !self.refer_to_piece(item, piece, to) {
            return false;
        }
        self.memory.copy_piece(piece, to);
        self.regions.give_back_slot(Slots::Pieces, piece);
        true
    }

    /// Has an item refer to `to` in the place of one of its pieces. Returns whether it has that piece.
    pub(crate) fn refer_to_piece(&mut self, item: u32, piece: u32, to: u32) -> bool {
        let (at, count) = self.pieces(item, self.header(item));
        let number = (0..count).find(|number| self.memory.u32_at(item, at + 4 * number) == piece);
        number.is_some_and(|number| {
            self.put_piece(item, at, number, to);
            true
        })
    }

    /// Frees the pieces of an item.
    pub(crate) fn free_pieces(&mut self, item: u32, header: Header) {
        let (at, count) = self.pieces(item, header);
        for number in 0..count {
            self.regions.give_back_slot(Slots::Pieces, self.memory.u32_at(item, at + 4 * number));
        }
    }
}
