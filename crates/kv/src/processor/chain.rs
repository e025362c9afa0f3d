//! The buckets of the index: room in them for an entry, what overflows from them and comes back, and which
//! entry leads to an item.

use reactor::LINE_BYTES;

use crate::bucket::{Bucket, BucketMut, CELL_COUNT, Kind, copy_entry, shared_tag};
use crate::evict::Hands;
use crate::index::{INDEX_LINES_MIN, Index, OVERFLOW_SLOT};
use crate::key::KeyHash;
use crate::place::Place;
use crate::processor::Processor;
use crate::regions::{REGION_LINES, Regions};
use crate::settings::Eviction;

/// Room for an entry.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    pub(super) node: u32,
    pub(super) cell: usize,
    /// The tag of the key there.
    pub(super) tag: u8,
}

/// The line for what overflows from the bucket at `home`.
#[inline]
pub(super) fn shared_line(home: u32) -> u32 {
    home | OVERFLOW_SLOT
}

/// Which bucket of its group the one at `home` is.
#[inline]
pub(super) fn slot(home: u32) -> u32 {
    home & OVERFLOW_SLOT
}

impl Processor {
    /// So many neighbouring empty cells of a line, which is packed for them if need be.
    fn empty_cells(&mut self, node: u32, width: usize) -> Option<usize> {
        let bucket = Bucket(self.heap.memory.line(node));
        if let Some(cell) = bucket.find_empty(width) {
            return Some(cell);
        }
        if bucket.empty_count() < width {
            return None;
        }
        let mut bucket = BucketMut(self.heap.memory.line_mut(node));
        bucket.pack();
        Bucket(bucket.0).find_empty(width)
    }

    /// So many neighbouring empty cells where an entry of the key may lie; else the last line where it might.
    fn free_cells(&mut self, hash: KeyHash, width: usize) -> Result<Cell, u32> {
        let home = self.home(hash);
        if let Some(cell) = self.empty_cells(home, width) {
            return Ok(Cell { node: home, cell, tag: hash.tag() });
        }
        let mut node = shared_line(home);
        loop {
            if let Some(cell) = self.empty_cells(node, width) {
                if !Bucket(self.heap.memory.line(home)).overflows() {
                    BucketMut(self.heap.memory.line_mut(home)).set_overflows(true);
                }
                return Ok(Cell { node, cell, tag: shared_tag(slot(home), hash.tag()) });
            }
            match Bucket(self.heap.memory.line(node)).next() {
                Some(next) => node = next,
                None => return Err(node),
            }
        }
    }

    /// So many neighbouring empty cells for an entry of a key, which has none.
    pub(super) fn cells(&mut self, hash: KeyHash, width: usize) -> Option<Cell> {
        self.tend_index();
        loop {
            let last = match self.free_cells(hash, width) {
                Ok(cell) => return Some(cell),
                Err(last) => last,
            };
            // What follows may take entries away where room is looked for: look again.
            if let Some(line) = self.spare.pop() {
                self.lengthen(last, line);
                continue;
            }
            match self.take_bucket_line() {
                Some(line) => self.spare.push(line),
                None if self.settings.eviction == Eviction::Clock => self.evict_from_bucket(hash),
                None => return None,
            }
        }
    }

    /// The same for an entry that a resize moves. The lines that this may need are at hand.
    pub(super) fn cells_moved(&mut self, hash: KeyHash, width: usize) -> Cell {
        loop {
            match self.free_cells(hash, width) {
                Ok(cell) => return cell,
                Err(last) => {
                    let line = self.spare.pop().expect("set aside before the bucket was emptied");
                    self.lengthen(last, line);
                }
            }
        }
    }

    /// Makes `line` the one behind `node`, the last that is shared.
    fn lengthen(&mut self, node: u32, line: u32) {
        *self.heap.memory.line_mut(line) = [0; LINE_BYTES];
        let before = *self.heap.memory.line(node);
        let old = Bucket(&before);
        let last = CELL_COUNT - 1;
        // Whatever lies in the last cell makes way for the link.
        if old.kind(last) != Kind::Empty {
            let cell = old.entries().last().expect("something begins before the last cell");
            copy_entry(old, cell, &mut BucketMut(self.heap.memory.line_mut(line)), 0, old.tag(cell));
            BucketMut(self.heap.memory.line_mut(node)).clear(cell);
        }
        BucketMut(self.heap.memory.line_mut(node)).set_next(Some(line));
    }

    /// Moves entries of shared lines forward as far as they fit, and lets go of lines that are empty then.
    pub(super) fn shorten(&mut self, mut node: u32) {
        while let Some(next) = Bucket(self.heap.memory.line(node)).next() {
            let from = *self.heap.memory.line(next);
            let from = Bucket(&from);
            for cell in from.entries() {
                if let Some(to) = Bucket(self.heap.memory.line(node)).find_empty(from.width(cell)) {
                    let mut into = BucketMut(self.heap.memory.line_mut(node));
                    copy_entry(from, cell, &mut into, to, from.tag(cell));
                    BucketMut(self.heap.memory.line_mut(next)).clear(cell);
                }
            }
            let rest = Bucket(self.heap.memory.line(next));
            if rest.entries().next().is_some() {
                node = next;
                continue;
            }
            let after = rest.next();
            BucketMut(self.heap.memory.line_mut(node)).set_next(after);
            self.heap.regions.give_back(next);
        }
    }

    /// An entry of a bucket is gone: others of it come back from the shared lines as far as they fit.
    #[inline]
    pub(super) fn settle(&mut self, home: u32) {
        if Bucket(self.heap.memory.line(home)).overflows() {
            self.bring_back(home);
        }
    }

    #[cold]
    fn bring_back(&mut self, home: u32) {
        let mut node = shared_line(home);
        let mut is_left = false;
        loop {
            let from = *self.heap.memory.line(node);
            let from = Bucket(&from);
            for cell in from.entries_of(slot(home)) {
                let Some(to) = self.empty_cells(home, from.width(cell)) else {
                    is_left = true;
                    continue;
                };
                let tag = self.hash_of_entry(from, cell).tag();
                copy_entry(from, cell, &mut BucketMut(self.heap.memory.line_mut(home)), to, tag);
                BucketMut(self.heap.memory.line_mut(node)).clear(cell);
            }
            match from.next() {
                Some(next) => node = next,
                None => break,
            }
        }
        if !is_left {
            BucketMut(self.heap.memory.line_mut(home)).set_overflows(false);
        }
        self.shorten(shared_line(home));
    }

    /// With no memory for another line, the first pair of the bucket of a key goes.
    fn evict_from_bucket(&mut self, hash: KeyHash) {
        let home = self.home(hash);
        let bucket = Bucket(self.heap.memory.line(home));
        let cell = bucket.entries().next().expect("a bucket without room has entries");
        let item = (bucket.kind(cell) == Kind::Item).then(|| bucket.cell(cell));
        self.counters.evicted_count += 1;
        self.unlink(hash, Place::new(home, cell, item));
    }

    /// The entry that leads to an item: its line, and the cell.
    pub(crate) fn entry_of(&self, hash: KeyHash, item: u32) -> Option<(u32, usize)> {
        let home = self.home(hash);
        let (mut node, mut tag) = (home, hash.tag());
        loop {
            let bucket = Bucket(self.heap.memory.line(node));
            for cell in bucket.matches(tag) {
                if bucket.kind(cell) == Kind::Item && bucket.cell(cell) == item {
                    return Some((node, cell));
                }
            }
            node = if node != home {
                bucket.next()?
            } else if bucket.overflows() {
                tag = shared_tag(slot(home), tag);
                shared_line(home)
            } else {
                return None;
            };
        }
    }

    /// The hash of an item's key.
    pub(crate) fn hash_of_item(&self, line: u32) -> KeyHash {
        let header = self.heap.header(line);
        let key = self.heap.memory.bytes(line, self.heap.key_at(line, header), header.key_bytes.into());
        self.hash(key)
    }

    /// The hash of an entry's key.
    pub(super) fn hash_of_entry(&self, bucket: Bucket<'_>, cell: usize) -> KeyHash {
        if bucket.kind(cell) == Kind::Item {
            self.hash_of_item(bucket.cell(cell))
        } else {
            self.hash(bucket.inline(cell).0)
        }
    }

    /// Points an entry at another line.
    pub(crate) fn redirect(&mut self, (node, cell): (u32, usize), line: u32) {
        BucketMut(self.heap.memory.line_mut(node)).set_item(cell, line);
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.note_clear();
        self.heap.let_go();
        if self.heap.pins.is_empty() && self.heap.pending_count == 0 {
            self.heap.regions = Regions::new(self.heap.regions.count());
            // Before chunks take what is theirs.
            let first = self.heap.regions.take_index().expect("all regions are free");
            self.index = Index::new(first, self.heap.regions.count());
            self.heap.memory.zero(first..first + INDEX_LINES_MIN);
            // Chunks keep the memory that they have, also those that are still being sent.
            self.heap.chunked.clear();
            let line_count = self.heap.regions.count() * REGION_LINES;
            self.heap.memory.allow(0..line_count as u32);
            self.heap.lend(self.heap.chunked.lent_regions());
            self.heap.regions.keep_back(self.regions_kept_back());
            self.hands = Hands::default();
            self.spare.clear();
        } else {
            self.clear_entries();
        }
        (self.counters.pair_count, self.counters.inline_count, self.counters.pair_bytes) = (0, 0, 0);
    }
}
