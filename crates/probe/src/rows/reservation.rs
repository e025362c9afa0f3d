//! Section 11: reservations.

use wire::identify::capabilities::Oncs;

use crate::finding::{Check, skipped};
use crate::peer::Peer;
use crate::row::Row;

pub(super) const ROWS: &[Row] = &[
    Row::new("V1", "17, 64 and 1000 registrants", "accepted up to the limit", needs_reservations),
    Row::new("V2", "Report into short buffers", "clipped", needs_reservations),
    Row::new("V3", "Preempt of odd keys with I/O under way", "the fence holds", needs_reservations),
    Row::new("V4", "a crash while state is saved", "the old state or the new", |_| {
        skipped("the target cannot be killed from here")
    }),
    Row::new("V5", "a state file that cannot be read", "not writable", |_| {
        skipped("the target's files cannot be changed from here")
    }),
    Row::new("V6", "more notifications than the log holds", "lost ones are counted", needs_reservations),
];

fn needs_reservations(peer: &Peer) -> Check {
    match peer.identify.oncs().contains(Oncs::RESERVATIONS) {
        true => skipped("not written yet"),
        false => skipped("the target has no reservations"),
    }
}
