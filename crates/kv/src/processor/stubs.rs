//! Pairs loaded from a log, with their values or as stubs.

use crate::changes::Changes;

use crate::item::{BITS_AT, HEADER_BYTES, HELD, Header, Layout, MARKS, PLACE_BYTES, USES, WIDE};
use crate::journal::Journal;
use crate::key::KeyHash;
use crate::pair::Stored;
use crate::pending::Pending;
use crate::place::Place;
use crate::processor::Processor;
use crate::regions::REGION_BYTES;
use crate::stub::{Away, Restored};

/// The highest use count that is kept.
const USED_OFTEN: u8 = 2;

impl Processor {
    /// Attaches a log: changes are recorded from now on. `log_bytes_max` limits the records of all pairs.
    pub(crate) fn begin_log(&mut self, log_bytes_max: u64, settles_answers: bool) {
        self.pairs.journal = Some(Box::new(Journal::new(log_bytes_max, settles_answers)));
        self.pairs.heap.regions.keep_back(self.pairs.regions_kept_back());
    }

    /// Whether there is a log. If so, some commands cannot be executed and answered at once.
    #[inline]
    #[must_use]
    pub fn has_log(&self) -> bool {
        self.pairs.journal.is_some()
    }

    /// The change that an answer about a key must wait for, if any.
    pub(crate) fn awaited(&self, hash: KeyHash) -> Option<u64> {
        self.pairs.journal.as_ref()?.awaited(hash)
    }

    /// Whether the log has room for one more pair of `pair_bytes`.
    #[inline]
    pub(crate) fn has_log_room(&self, pair_bytes: usize) -> bool {
        self.pairs.journal.as_ref().is_none_or(|journal| journal.has_room(&self.pairs.counters, pair_bytes))
    }

    /// Whether an answer about a key must wait.
    #[must_use]
    pub fn is_awaited(&self, hash: KeyHash) -> bool {
        self.awaited(hash).is_some()
    }

    /// Whether there is memory for values of `bytes`, if necessary by dropping values that are in the log. If not,
    /// there will be once more has been written.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        let wanted = self.pairs.regions_kept_back() + bytes / REGION_BYTES + 1;
        loop {
            let free_count = self.pairs.heap.regions.free_count() + self.pairs.heap.chunked.free_regions();
            if free_count >= wanted.min(self.pairs.heap.regions.count()) {
                return true;
            }
            if !self.make_room(None) {
                return false;
            }
        }
    }

    pub(crate) fn changes(&mut self) -> &mut Changes {
        &mut self.pairs.journal.as_mut().expect("there is a log").changes
    }

    /// Location of the value of a key, if the value is only in the log.
    pub(crate) fn away(&self, hash: KeyHash, key: &[u8]) -> Option<Away> {
        self.pairs.journal.as_ref()?;
        let place = self.pairs.table.locate(&self.pairs.heap, hash, key)?;
        let line = place.item()?;
        let header = self.pairs.heap.header(line);
        if !self.pairs.heap.is_stub(line, header) {
            return None;
        }
        let at = HEADER_BYTES + if header.bits & WIDE == 0 { 8 } else { 12 };
        let bytes = self.pairs.heap.memory.bytes(line, at, PLACE_BYTES);
        Some(Away {
            place: u64::from_le_bytes(bytes.try_into().expect("eight bytes")),
            value_bytes: self.pairs.heap.large(line, header).0,
            attributes: self.pairs.heap.attributes(place),
        })
    }

    /// Whether the value of a key is only in the log. It must be fetched before it can be used.
    #[must_use]
    pub fn is_away(&self, hash: KeyHash, key: &[u8]) -> bool {
        self.pairs.journal.is_some() && self.away(hash, key).is_some()
    }

    /// Stores a value fetched from the log: the stub becomes an item again, unless the pair has changed since.
    pub(crate) fn load(&mut self, hash: KeyHash, key: &[u8], place: u64, pending: Pending) -> bool {
        let is_it = self.away(hash, key).is_some_and(|away| away.place == place);
        let stub =
            self.pairs.table.locate(&self.pairs.heap, hash, key).and_then(Place::item).filter(|_| is_it);
        let Some(stub) = stub else {
            self.abandon(pending);
            return false;
        };
        let header = self.pairs.heap.header(stub);
        let line = pending.line;
        // Its reader comes next: it must not be evicted before.
        self.take_over(line, header.cas, header.bits & MARKS | USED_OFTEN, header.expiry);
        self.pairs.set_place(line, place);
        self.pairs.counters.loaded_count += 1;
        self.insert(hash, key, pending) == Stored::Done
    }

    /// Copies CAS number, marks and expiry of the former item or stub.
    fn take_over(&mut self, line: u32, cas: u64, marks: u8, expiry: u32) {
        let mut header = self.pairs.heap.header(line);
        (header.cas, header.expiry) = (cas, expiry);
        header.bits = header.bits & !(MARKS | USES) | marks;
        self.pairs.heap.memory.bytes_mut(line, 0, HEADER_BYTES).copy_from_slice(&header.encode());
        self.next_cas = self.next_cas.max(cas);
    }

    /// Whether the value of a pair read during recovery should stay in the log.
    pub(crate) fn should_stay_away(&self, key_bytes: usize, value_bytes: usize, flags: u32) -> bool {
        let is_short = self.pairs.heap.regions.free_count() < self.pairs.heap.regions.count() / 4;
        self.pairs.layout(key_bytes, value_bytes, flags).place_at != 0 && is_short
    }

    /// Restores a pair from its record, with its value.
    pub(crate) fn restore(&mut self, hash: KeyHash, key: &[u8], pair: &Restored, pending: Pending) -> bool {
        let line = pending.line;
        self.take_over(line, pair.cas, pair.marks, pair.attributes.expiry_s);
        self.pairs.set_place(line, pair.place);
        self.insert(hash, key, pending) == Stored::Done
    }

    /// Restores a pair from its record, as a stub.
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
        self.pairs.write_stub(
            line,
            &layout,
            key,
            header,
            pair.attributes.flags,
            pair.value_bytes,
            pair.place,
        );
        self.pairs.heap.memory.bytes_mut(line, BITS_AT, 1)[0] |= HELD;
        self.pairs.heap.regions.hold(line, true);
        self.next_cas = self.next_cas.max(pair.cas);
        let pending = self.pending_stub(line, layout, pair.value_bytes);
        self.insert(hash, key, pending) == Stored::Done
    }

    /// Removes a key without recording a change.
    pub(crate) fn forget(&mut self, hash: KeyHash, key: &[u8]) {
        if let Some(place) = self.pairs.table.locate(&self.pairs.heap, hash, key) {
            self.pairs.unlink(hash, place);
        }
    }

    /// Removes all pairs without recording a change.
    pub(crate) fn forget_all(&mut self) {
        let journal = self.pairs.journal.take();
        self.clear();
        self.pairs.journal = journal;
        self.pairs.heap.regions.keep_back(self.pairs.regions_kept_back());
    }

    /// Whether a record with this number is that of the current pair.
    pub(crate) fn is_current(&self, hash: KeyHash, key: &[u8], cas: u64) -> bool {
        let line = self.pairs.table.locate(&self.pairs.heap, hash, key).and_then(Place::item);
        line.is_some_and(|line| self.pairs.heap.header(line).cas == cas)
    }
}
