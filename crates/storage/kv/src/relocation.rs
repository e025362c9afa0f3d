//! Moving everything in a region to a free one, which takes its place: items keep their order of eviction.

use crate::item::HELD;
use crate::pairs::Pairs;
use crate::regions::{REGION_LINES, REGION_PIECES, REGION_UNITS, Slots, Use};
use crate::table::lines::set_item;
use crate::touches::Touches;

/// Moves everything in a region to a free one below the limit. `false` if something in it must stay where it is for
/// now.
pub(crate) fn relocate(pairs: &mut Pairs<impl Touches>, region: u32) -> bool {
    let use_ = pairs.heap.regions.use_of(region);
    if use_ == Use::Free {
        return true;
    }
    if !can_move(pairs, region, use_) {
        return false;
    }
    let Some(to) = pairs.heap.regions.replace(region) else { return false };
    match use_ {
        Use::Free => {}
        Use::Lent => {
            let first = pairs.heap.regions.first_line(to);
            pairs.heap.memory.give_back(first..first + REGION_LINES as u32);
        }
        Use::Index => {
            copy(pairs, region, to, REGION_UNITS);
            let [from, to] = [region, to].map(|region| pairs.heap.regions.first_line(region));
            pairs.table.index.replace_region(from, to);
        }
        Use::Items(_) => move_items(pairs, region, to),
        Use::Slots(slots) => move_slots(pairs, region, to, slots),
    }
    true
}

/// Whether nothing in a region must stay where it is.
fn can_move(pairs: &Pairs<impl Touches>, region: u32, use_: Use) -> bool {
    let heap = &pairs.heap;
    let Use::Slots(slots) = use_ else { return !heap.regions.has_held(region) };
    let mut from = 0;
    while let Some((at, number)) = heap.regions.next_slot(region, from) {
        let can_move = match slots {
            Slots::Pieces => heap.header(heap.regions.owner(number)).bits & HELD == 0,
            Slots::Buckets => pairs.table.can_move_overflow_line(heap, number),
        };
        if !can_move {
            return false;
        }
        from = at + 1;
    }
    true
}

fn copy(pairs: &mut Pairs<impl Touches>, from: u32, to: u32, units: usize) {
    pairs.heap.memory.copy(from * REGION_UNITS as u32, to * REGION_UNITS as u32, units);
}

fn move_items(pairs: &mut Pairs<impl Touches>, region: u32, to: u32) {
    copy(pairs, region, to, pairs.heap.regions.filled_units(to));
    let mut from = 0;
    while let Some((at, item)) = pairs.heap.regions.next_item(to, from) {
        let hash = pairs.table.hash_of_item(&pairs.heap, item);
        let old = region * REGION_UNITS as u32 + at as u32;
        let entry = pairs.table.entry_of(&pairs.heap, hash, old);
        set_item(&mut pairs.heap, entry, item);
        let header = pairs.heap.header(item);
        pairs.heap.own_pieces(item, header);
        from = at + 1;
    }
}

fn move_slots(pairs: &mut Pairs<impl Touches>, region: u32, to: u32, slots: Slots) {
    if slots == Slots::Pieces {
        copy(pairs, region, to, REGION_UNITS);
    }
    let mut from = 0;
    while let Some((at, number)) = pairs.heap.regions.next_slot(to, from) {
        let is_moved = match slots {
            Slots::Pieces => {
                let old = (region as usize * REGION_PIECES + at) as u32;
                let item = pairs.heap.regions.owner(number);
                pairs.heap.refer_to_piece(item, old, number)
            }
            Slots::Buckets => {
                let old = pairs.heap.regions.first_line(region) + at as u32;
                pairs.table.copy_overflow_line(&mut pairs.heap, old, number)
            }
        };
        debug_assert!(is_moved, "slot {number} is in use by something");
        from = at + 1;
    }
}
