//! A partition that is written to a log: what has changed, and values that are in the log only.
//!
//! ```text
//! whole, place 0 ──written──▶ whole, place in the log ──memory is short──▶ stub ──fetched──▶ whole, its place …
//!       ▲──────────────────────────── changed ───────────────────────┘         └─replaced─▶ whole, place 0
//! ```
//!
//! Pairs of which a stub would not be half as large stay whole for good.

use crate::changes::Changes;

use crate::item::{AWAY, BITS_AT, HEADER_BYTES, HELD, Header, Layout, MARKS, PLACE_BYTES, USES, WIDE};
use crate::journal::Journal;
use crate::key::{KEY_BYTES_MAX, KeyHash};
use crate::pair::Stored;
use crate::pending::Pending;
use crate::place::Place;
use crate::processor::Processor;
use crate::regions::{REGION_BYTES, Use};
use crate::stub::{Away, Restored};
use crate::table::lines::redirect;

/// As many uses as are counted.
const USED_OFTEN: u8 = 2;

/// Free regions that are kept for stubs: one for each number of lines a stub may have, and one more.
const KEPT_BACK_COUNT: usize = 6;

/// Regions that are compared before the values of one are let go of.
const CANDIDATE_COUNT: usize = 8;

impl Processor {
    /// From now on changes are noted. `log_bytes_max` is what the records of all pairs may take.
    pub(crate) fn begin_log(&mut self, log_bytes_max: u64, settles_answers: bool) {
        self.journal = Some(Box::new(Journal::new(log_bytes_max, settles_answers)));
        self.heap.regions.keep_back(self.regions_kept_back());
    }

    /// Whether there is a log: then not everything can be done and answered at once.
    #[inline]
    #[must_use]
    pub fn has_log(&self) -> bool {
        self.journal.is_some()
    }

    /// The change that an answer about a key has to wait for, if it has to wait at all.
    pub(crate) fn awaited(&self, hash: KeyHash) -> Option<u64> {
        self.journal.as_ref()?.awaited(hash)
    }

    /// Whether the log has room for one more pair of so many bytes.
    #[inline]
    pub(crate) fn has_log_room(&self, pair_bytes: usize) -> bool {
        self.journal.as_ref().is_none_or(|journal| journal.has_room(&self.counters, pair_bytes))
    }

    /// Whether an answer about a key has to wait.
    #[must_use]
    pub fn is_awaited(&self, hash: KeyHash) -> bool {
        self.awaited(hash).is_some()
    }

    pub(crate) fn regions_kept_back(&self) -> usize {
        if self.journal.is_some() { KEPT_BACK_COUNT.min(self.heap.regions.count() / 4) } else { 0 }
    }

    /// Whether there is memory for values of so many bytes, or what is in the log makes room for them. If not, there will be when more
    /// has been written.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        let wanted = self.regions_kept_back() + bytes / REGION_BYTES + 1;
        loop {
            let free_count = self.heap.regions.free_count() + self.heap.chunked.free_regions();
            if free_count >= wanted.min(self.heap.regions.count()) {
                return true;
            }
            if !self.make_room(None) {
                return false;
            }
        }
    }

    pub(crate) fn changes(&mut self) -> &mut Changes {
        &mut self.journal.as_mut().expect("there is a log").changes
    }

    /// A pair has changed.
    #[inline]
    pub(crate) fn note(&mut self, hash: KeyHash, key: &[u8]) {
        if let Some(journal) = &mut self.journal {
            journal.changes.note(hash, key);
        }
    }

    /// An item has changed where it lies.
    #[inline]
    pub(crate) fn note_item(&mut self, hash: KeyHash, key: &[u8], line: u32) {
        self.note(hash, key);
        self.unplace(line);
    }

    #[inline]
    pub(crate) fn note_removal(&mut self, hash: KeyHash, place: Place) {
        if self.journal.is_some()
            && let Some(line) = place.item()
        {
            let (key, length) = self.key_of(line);
            self.note(hash, &key[..length]);
        }
    }

    pub(crate) fn note_clear(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.changes.note_clear();
        }
    }

    fn key_of(&self, line: u32) -> ([u8; KEY_BYTES_MAX], usize) {
        let header = self.heap.header(line);
        let length = usize::from(header.key_bytes);
        let mut key = [0; KEY_BYTES_MAX];
        key[..length].copy_from_slice(self.heap.memory.bytes(line, self.heap.key_at(line, header), length));
        (key, length)
    }

    fn flags_of(&self, line: u32) -> u32 {
        self.heap.attributes(Place::of_item(line)).flags
    }

    /// Where in an item its place is. A stub's place is where its value is: it is no item's own.
    fn place_at(&self, line: u32) -> Option<usize> {
        self.journal.as_ref()?;
        let header = self.heap.header(line);
        if self.heap.is_stub(line, header) {
            return None;
        }
        let value_bytes = self.heap.pair_bytes(line) - usize::from(header.key_bytes);
        let layout = self.layout(header.key_bytes.into(), value_bytes, self.flags_of(line));
        (layout.place_at != 0).then_some(layout.place_at)
    }

    /// The place of an item in the log, if it is there as it is here.
    pub(crate) fn place_of(&self, line: u32) -> Option<u64> {
        let at = self.place_at(line)?;
        let bytes = self.heap.memory.bytes(line, at, PLACE_BYTES);
        let place = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        (place != 0).then_some(place)
    }

    /// An item is in the log now, here.
    pub(crate) fn set_place(&mut self, line: u32, place: u64) {
        if let Some(at) = self.place_at(line) {
            self.heap.memory.bytes_mut(line, at, PLACE_BYTES).copy_from_slice(&place.to_le_bytes());
        }
    }

    /// An item is not in the log as it is now.
    #[inline]
    pub(crate) fn unplace(&mut self, line: u32) {
        if self.journal.is_some() {
            self.set_place(line, 0);
        }
    }

    /// The value of a key, if there is one and it is in the log only.
    pub(crate) fn away(&self, hash: KeyHash, key: &[u8]) -> Option<Away> {
        self.journal.as_ref()?;
        let place = self.table.locate(&self.heap, hash, key)?;
        let line = place.item()?;
        let header = self.heap.header(line);
        if !self.heap.is_stub(line, header) {
            return None;
        }
        let at = HEADER_BYTES + if header.bits & WIDE == 0 { 8 } else { 12 };
        let bytes = self.heap.memory.bytes(line, at, PLACE_BYTES);
        Some(Away {
            place: u64::from_le_bytes(bytes.try_into().expect("eight bytes")),
            value_bytes: self.heap.large(line, header).0,
            attributes: self.heap.attributes(place),
        })
    }

    /// Whether the value of a key is in the log only. It has to be fetched before anything needs it.
    #[must_use]
    pub fn is_away(&self, hash: KeyHash, key: &[u8]) -> bool {
        self.journal.is_some() && self.away(hash, key).is_some()
    }

    /// Lets go of the values of the least used of a few regions, as far as they are in the log. Says whether
    /// that has freed anything.
    pub(crate) fn demote_region(&mut self) -> bool {
        let count = self.heap.regions.count() as u32;
        let mut looked_at = 0;
        while looked_at < count {
            let mut candidates = [(usize::MAX, 0); CANDIDATE_COUNT];
            let mut seen = 0;
            while looked_at < count && seen < CANDIDATE_COUNT {
                let region = (self.hands.region + looked_at) % count;
                looked_at += 1;
                if matches!(self.heap.regions.use_of(region), Use::Items(class) if class.lines() >= 2) {
                    candidates[seen] = (self.cool(region), region);
                    seen += 1;
                }
            }
            let candidates = &mut candidates[..seen];
            candidates.sort_unstable();
            for &(_, region) in &*candidates {
                let class = self.heap.regions.use_of(region);
                let (mut block, mut has_freed) = (0, false);
                while self.heap.regions.use_of(region) == class
                    && let Some((at, line)) = self.heap.regions.next_taken(region, block)
                {
                    block = at + 1;
                    has_freed |= self.demote(line);
                }
                if has_freed {
                    self.hands.region = (region + 1) % count;
                    return true;
                }
            }
        }
        false
    }

    /// Makes a stub of an item, if its value can be had from the log.
    pub(crate) fn demote(&mut self, line: u32) -> bool {
        let header = self.heap.header(line);
        if header.bits & HELD != 0 {
            return false;
        }
        if self.is_expired(&header) {
            self.evict(line);
            return true;
        }
        let Some(place) = self.place_of(line) else { return false };
        if self.journal.as_ref().is_some_and(|journal| journal.in_flight.contains(&place)) {
            return false;
        }
        let (key, length) = self.key_of(line);
        let key = &key[..length];
        let flags = self.flags_of(line);
        let value_bytes = self.heap.pair_bytes(line) - length;
        let layout = Layout::stub(length, flags);
        let Some(stub) = self.heap.regions.take_for_stub(layout.class()) else { return false };
        self.write_stub(stub, &layout, key, header, flags, value_bytes, place);
        let hash = self.hash(key);
        let entry =
            self.table.entry_of(&self.heap, hash, line).expect("an item that is not held is in the index");
        redirect(&mut self.heap, entry, stub);
        self.heap.free_item(line);
        self.counters.demoted_count += 1;
        true
    }

    #[expect(clippy::too_many_arguments, reason = "all that a stub consists of")]
    fn write_stub(
        &mut self,
        line: u32,
        layout: &Layout,
        key: &[u8],
        header: Header,
        flags: u32,
        value_bytes: usize,
        place: u64,
    ) {
        let bits = layout.bits | header.bits & MARKS;
        let header = Header { bits, value_bytes: 0, flags: flags as u16, ..header };
        let block = self.heap.memory.bytes_mut(line, 0, layout.total_bytes);
        block[..HEADER_BYTES].copy_from_slice(&header.encode());
        if bits & WIDE != 0 {
            block[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&flags.to_le_bytes());
        }
        let at = layout.extents_at;
        block[at - 8..at - 4].copy_from_slice(&(value_bytes as u32).to_le_bytes());
        block[at - 4..at].copy_from_slice(&(AWAY | layout.extent_count as u32).to_le_bytes());
        block[at..at + PLACE_BYTES].copy_from_slice(&place.to_le_bytes());
        block[layout.key_at..].copy_from_slice(key);
    }

    /// A value has come from the log: the stub becomes an item again, unless the pair is another by now.
    pub(crate) fn load(&mut self, hash: KeyHash, key: &[u8], place: u64, pending: Pending) -> bool {
        let is_it = self.away(hash, key).is_some_and(|away| away.place == place);
        let stub = self.table.locate(&self.heap, hash, key).and_then(Place::item).filter(|_| is_it);
        let Some(stub) = stub else {
            self.abandon(pending);
            return false;
        };
        let header = self.heap.header(stub);
        let line = pending.line;
        // Whoever wants it comes next: it must not be let go of before.
        self.take_over(line, header.cas, header.bits & MARKS | USED_OFTEN, header.expiry);
        self.set_place(line, place);
        self.counters.loaded_count += 1;
        self.insert(hash, key, pending) == Stored::Done
    }

    /// What an item has of the pair that it was before.
    fn take_over(&mut self, line: u32, cas: u64, marks: u8, expiry: u32) {
        let mut header = self.heap.header(line);
        (header.cas, header.expiry) = (cas, expiry);
        header.bits = header.bits & !(MARKS | USES) | marks;
        self.heap.memory.bytes_mut(line, 0, HEADER_BYTES).copy_from_slice(&header.encode());
        self.next_cas = self.next_cas.max(cas);
    }

    /// Whether the value of a pair that is read from the log should stay there.
    pub(crate) fn should_stay_away(&self, key_bytes: usize, value_bytes: usize, flags: u32) -> bool {
        let is_short = self.heap.regions.free_count() < self.heap.regions.count() / 4;
        self.layout(key_bytes, value_bytes, flags).place_at != 0 && is_short
    }

    /// Puts a pair there as its record has it, with its value.
    pub(crate) fn restore(&mut self, hash: KeyHash, key: &[u8], pair: &Restored, pending: Pending) -> bool {
        let line = pending.line;
        self.take_over(line, pair.cas, pair.marks, pair.attributes.expiry_s);
        self.set_place(line, pair.place);
        self.insert(hash, key, pending) == Stored::Done
    }

    /// Puts a pair there as its record has it, as a stub.
    pub(crate) fn restore_stub(&mut self, hash: KeyHash, key: &[u8], pair: &Restored) -> bool {
        let layout = Layout::stub(key.len(), pair.attributes.flags);
        let Some(line) = self.take_block(layout.class()) else { return false };
        let header = Header {
            cas: pair.cas,
            key_bytes: key.len() as u8,
            bits: pair.marks,
            value_bytes: 0,
            flags: 0,
            expiry: pair.attributes.expiry_s,
        };
        self.write_stub(line, &layout, key, header, pair.attributes.flags, pair.value_bytes, pair.place);
        self.heap.memory.bytes_mut(line, BITS_AT, 1)[0] |= HELD;
        self.heap.regions.hold(line, true);
        self.next_cas = self.next_cas.max(pair.cas);
        let pending = self.pending_stub(line, layout, pair.value_bytes);
        self.insert(hash, key, pending) == Stored::Done
    }

    /// Removes a key without its being a change.
    pub(crate) fn forget(&mut self, hash: KeyHash, key: &[u8]) {
        if let Some(place) = self.table.locate(&self.heap, hash, key) {
            self.unlink(hash, place);
        }
    }

    /// Removes everything without its being a change.
    pub(crate) fn forget_all(&mut self) {
        let journal = self.journal.take();
        self.clear();
        self.journal = journal;
        self.heap.regions.keep_back(self.regions_kept_back());
    }

    /// Whether a record with this number is that of the pair there is.
    pub(crate) fn is_current(&self, hash: KeyHash, key: &[u8], cas: u64) -> bool {
        let line = self.table.locate(&self.heap, hash, key).and_then(Place::item);
        line.is_some_and(|line| self.heap.header(line).cas == cas)
    }
}
