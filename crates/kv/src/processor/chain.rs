//! The index: chains of buckets, how they grow and shrink, and what is in them.

use super::{Eviction, KeyHash, Place, Processor};
use crate::bucket::{Bucket, BucketMut, CELL_COUNT, Kind, copy_entry};
use crate::evict::Hands;
use crate::regions::Regions;

impl Processor {
    /// Moves entries of a chain forward as far as they fit, and lets go of buckets that are empty then.
    pub(super) fn shorten(&mut self, mut node: u32) {
        while let Some(next) = Bucket(self.memory.line(node)).next() {
            let from = *self.memory.line(next);
            let mut moved = false;
            for cell in Bucket(&from).entries() {
                let width = Bucket(&from).width(cell);
                if let Some(to) = Bucket(self.memory.line(node)).find_empty(width) {
                    copy_entry(Bucket(&from), cell, &mut BucketMut(self.memory.line_mut(node)), to);
                    BucketMut(self.memory.line_mut(next)).clear(cell);
                    moved = true;
                }
            }
            self.change_count += u64::from(moved);
            let rest = Bucket(self.memory.line(next));
            if rest.entries().next().is_some() {
                node = next;
                continue;
            }
            let after = rest.next();
            BucketMut(self.memory.line_mut(node)).set_next(after);
            self.regions.give_back(next);
        }
    }

    /// So many neighbouring empty cells in the chain of a key, which has none of its own.
    pub(super) fn cells(&mut self, hash: KeyHash, width: usize) -> Option<(u32, usize)> {
        let first = self.bucket_of(hash);
        loop {
            let mut node = first;
            loop {
                let bucket = Bucket(self.memory.line(node));
                if let Some(cell) = bucket.find_empty(width) {
                    return Some((node, cell));
                }
                if bucket.empty_count() >= width {
                    let mut bucket = BucketMut(self.memory.line_mut(node));
                    bucket.pack();
                    let cell = Bucket(bucket.0).find_empty(width)?;
                    return Some((node, cell));
                }
                match bucket.next() {
                    Some(next) => node = next,
                    None => break,
                }
            }
            // What follows may take entries of this very chain away: look again.
            if let Some(line) = self.spare.pop() {
                self.lengthen(node, line);
                continue;
            }
            match self.take_bucket_line() {
                Some(line) => self.spare.push(line),
                None if self.settings.eviction == Eviction::Clock => self.evict_from_bucket(first),
                None => return None,
            }
        }
    }

    /// Makes `line` the bucket after `node`, the last of its chain.
    pub(super) fn lengthen(&mut self, node: u32, line: u32) {
        *self.memory.line_mut(line) = [0; reactor::LINE_BYTES];
        let before = *self.memory.line(node);
        let old = Bucket(&before);
        let last = CELL_COUNT - 1;
        // Whatever lies in the last cell makes way for the link.
        if old.kind(last) != Kind::Empty {
            let cell = old.entries().last().expect("something begins before the last cell");
            copy_entry(old, cell, &mut BucketMut(self.memory.line_mut(line)), 0);
            BucketMut(self.memory.line_mut(node)).clear(cell);
        }
        BucketMut(self.memory.line_mut(node)).set_next(Some(line));
    }

    /// With no memory for another bucket, the first pair of this chain goes.
    pub(super) fn evict_from_bucket(&mut self, first: u32) {
        let bucket = Bucket(self.memory.line(first));
        let cell = bucket.entries().next().expect("a chain without room has entries");
        let item = (bucket.kind(cell) == Kind::Item).then(|| bucket.cell(cell));
        let place = Place { node: first, cell: cell as u8, item };
        self.count_out(place);
        self.counters.evicted_count += 1;
        self.change_count += 1;
        BucketMut(self.memory.line_mut(first)).clear(cell);
        if let Some(line) = item {
            self.free_item(line);
        }
    }

    /// The entry that leads to an item: the line of its bucket, and the cell.
    pub(crate) fn entry_of(&self, hash: KeyHash, item: u32) -> Option<(u32, usize)> {
        let mut node = self.bucket_of(hash);
        loop {
            let bucket = Bucket(self.memory.line(node));
            for cell in bucket.matches(hash.tag()) {
                if bucket.kind(cell) == Kind::Item && bucket.cell(cell) == item {
                    return Some((node, cell));
                }
            }
            node = bucket.next()?;
        }
    }

    /// The hash of an item's key.
    pub(crate) fn hash_of_item(&self, line: u32) -> KeyHash {
        let header = self.header(line);
        let key = self.memory.bytes(line, self.key_at(line, header), header.key_bytes.into());
        self.hash(key)
    }

    /// Points the entry of a key at another line.
    pub(crate) fn redirect(&mut self, hash: KeyHash, (node, cell): (u32, usize), line: u32) {
        BucketMut(self.memory.line_mut(node)).put_item(cell, hash.tag(), line);
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.change_count += 1;
        self.note_clear();
        if self.pins.is_empty() && self.pending_count == 0 {
            self.memory.zero(0..self.bucket_count);
            self.regions = Regions::new(self.bucket_count, self.regions.count());
            // Chunks keep the memory that they have, also those that are still being sent.
            self.chunked.clear();
            self.regions.lend(self.chunked.lent_regions());
            self.regions.keep_back(self.regions_kept_back());
            self.hands = Hands::default();
            self.spare.clear();
        } else {
            for bucket in 0..self.bucket_count {
                loop {
                    let first = Bucket(self.memory.line(bucket));
                    let Some(cell) = first.entries().next() else { break };
                    let item = (first.kind(cell) == Kind::Item).then(|| first.cell(cell));
                    BucketMut(self.memory.line_mut(bucket)).clear(cell);
                    if let Some(line) = item {
                        self.free_item(line);
                    }
                    self.shorten(bucket);
                }
            }
        }
        (self.counters.pair_count, self.counters.inline_count, self.counters.pair_bytes) = (0, 0, 0);
    }

    /// Calls `each` with keys in an order that stays while nothing is stored or removed, from `start` on if
    /// it is there, else from where it would be; until `each` says that it wants no more.
    pub fn list(&self, start: Option<&[u8]>, mut each: impl FnMut(&[u8]) -> bool) {
        let hash = start.map(|key| self.hash(key));
        let found = start.zip(hash).and_then(|(key, hash)| self.locate(hash, key));
        let first = hash.map_or(0, |hash| self.bucket_of(hash));
        let mut skips = found;
        for bucket in first..self.bucket_count {
            let mut node = bucket;
            loop {
                let view = Bucket(self.memory.line(node));
                for cell in view.entries() {
                    if let Some(place) = skips {
                        if (node, cell) != (place.node, usize::from(place.cell)) {
                            continue;
                        }
                        skips = None;
                    }
                    let goes_on = if view.kind(cell) == Kind::Item {
                        let line = view.cell(cell);
                        let header = self.header(line);
                        let at = self.key_at(line, header);
                        self.is_expired(&header) || each(self.memory.bytes(line, at, header.key_bytes.into()))
                    } else {
                        each(view.inline(cell).0)
                    };
                    if !goes_on {
                        return;
                    }
                }
                match view.next() {
                    Some(next) => node = next,
                    None => break,
                }
            }
        }
    }
}
