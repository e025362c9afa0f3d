//! Examining a log offline: every copy, header, record and value is read, and damage is judged.
//!
//! ```text
//! superblocks, headers ─▶ segments from the oldest to the newest ─▶ records ─▶ the latest of each key
//!        a damaged value  ──▶ its key is lost, unless it was written again
//!        a damaged head   ──▶ one wrong bit is corrected; or a hole up to the next genuine record
//!        a hole           ──▶ may hide a newer version of any key last written before it: these are uncertain
//! ```

use std::collections::{BTreeMap, HashMap};
use std::io;

use super::recover::CAS_LOST_COUNT;
use super::segment_bytes::{ReadAt, SegmentBytes};
use super::{LogSettings, SUPERBLOCK_COUNT};
use crate::clock::LogTime;
use crate::key::KEY_BYTES_MAX;
use crate::log_header::{LogSuperblock, SegmentHeader};
use crate::record::{Checksum, HEAD_BYTES, Head, Kind, Location, RECORD_EXTRA_BYTES, TAIL_BYTES};

/// The most bytes of a record before its value.
const KEYED_BYTES_MAX: usize = HEAD_BYTES + KEY_BYTES_MAX;

/// A kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// One of the two superblocks: the other one suffices.
    Superblock,
    /// Both superblocks: it is unknown whether segments are missing at the end.
    Superblocks,
    /// The header of a segment, whose records are found without it.
    Header,
    /// A whole segment.
    Segment,
    /// One bit of a record before its value: it is known which.
    Bit,
    /// A value: only its key is lost.
    Value,
    /// Records that cannot be read.
    Records,
}

/// Damage of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its kind.
    pub kind: DamageKind,
    /// Generation of the segment; 0 for a superblock.
    pub generation: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Length, bytes.
    pub bytes: u64,
    /// Keys that it costs, or makes uncertain, at least.
    pub key_count: u64,
}

/// The latest readable record of a key.
#[derive(Clone, Copy, Debug)]
struct Latest {
    order: Order,
    head: Head,
    /// First byte of the value in the file.
    value_offset: u64,
    is_value_whole: bool,
}

/// A position in the log: generation, and offset in the segment.
type Order = (u64, u64);

/// A range whose records are unknown: where it begins, and its length.
type Hole = (Order, u64);

/// What a log holds.
#[derive(Debug, Default)]
pub struct Examined {
    /// The oldest and the newest generation, unless there is none.
    pub generations: Option<(u64, u64)>,
    /// Damage, in the order of the log.
    pub damages: Vec<Damage>,
    /// Bytes behind the last whole write, which are no write: first byte in the file.
    pub dropped_from: Option<u64>,
    keys: HashMap<Box<[u8]>, Latest>,
    /// Damage that hides records: its index, where it begins, and its length.
    holes: Vec<(usize, Hole)>,
    next_cas: u64,
    /// When the log was last marked, if that is known.
    pub(super) time: Option<LogTime>,
}

/// What is certain about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// It has this value.
    Certain,
    /// It has this value, unless a damaged range has a newer version.
    Uncertain,
    /// Its value is damaged.
    Lost,
}

/// A key with a value.
#[derive(Debug)]
pub struct Kept<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What is certain about it.
    pub certainty: Certainty,
    /// Size of its record, bytes.
    pub record_bytes: u64,
    pub(super) head: Head,
    pub(super) value_offset: u64,
}

impl Examined {
    /// Reads a log in a file of this many bytes.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(settings: &LogSettings, file_bytes: u64, read: &mut ReadAt<'_>) -> io::Result<Self> {
        let mut examined = Self { next_cas: 1, ..Self::default() };
        let superblock = examined.read_superblocks(settings, read)?;
        let segments = examined.find_segments(settings, superblock, read)?;
        let mut group = Group { is_first: true, ..Group::default() };
        for segment in segments {
            if group.run != segment.run {
                examined.end_run(settings, &mut group);
                group.run = segment.run;
            }
            let Some(slot) = segment.slot else {
                examined.note(DamageKind::Segment, segment.generation, 0, settings.segment_bytes);
                examined.hide(((segment.generation, 0), settings.segment_bytes));
                group.is_damaged = true;
                continue;
            };
            let start = settings.start + slot * settings.segment_bytes;
            let is_cut = start + settings.segment_bytes > file_bytes;
            let limit = match segment.end {
                End::At(end) => end.min(settings.segment_bytes),
                _ => settings.segment_bytes,
            };
            let mut bytes = SegmentBytes::new(read, start, limit as usize);
            examined.read_segment(settings, &segment, start, &mut bytes, is_cut, &mut group)?;
            group.last = Some((segment.generation, start, segment.end));
        }
        examined.end_run(settings, &mut group);
        if superblock.is_none() {
            // It comes first.
            let end = examined.generations.map_or(1, |(_, newest)| newest + 1);
            examined.holes.push((0, ((end, 0), u64::MAX)));
        }
        examined.count_keys();
        Ok(examined)
    }

    /// Every key that has a value, or had one that is damaged, in the order of the log.
    #[must_use]
    pub fn keys(&self) -> Vec<Kept<'_>> {
        let pairs = self.keys.iter().filter(|(_, latest)| latest.head.kind == Kind::Pair);
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_unstable_by_key(|(_, latest)| latest.order);
        let kept = pairs.into_iter().map(|(key, latest)| {
            let is_hidden = self.holes.iter().any(|(_, hole)| hides(hole, key, latest.order));
            let certainty = match latest.is_value_whole {
                false => Certainty::Lost,
                true if is_hidden => Certainty::Uncertain,
                true => Certainty::Certain,
            };
            let record_bytes = latest.head.record_bytes() as u64;
            Kept { key, certainty, record_bytes, head: latest.head, value_offset: latest.value_offset }
        });
        kept.collect()
    }

    /// Whether damaged ranges may hold keys of which nothing else is known.
    #[must_use]
    pub fn has_holes(&self) -> bool {
        !self.holes.is_empty()
    }

    /// A CAS number above all that were given.
    pub(super) fn next_cas(&self) -> u64 {
        (self.next_cas + CAS_LOST_COUNT) & ((1 << 48) - 1)
    }

    fn note(&mut self, kind: DamageKind, generation: u64, offset: u64, bytes: u64) {
        self.damages.push(Damage { kind, generation, offset, bytes, key_count: 0 });
    }

    /// The last damage hides records.
    fn hide(&mut self, hole: Hole) {
        self.holes.push((self.damages.len() - 1, hole));
    }

    fn read_superblocks(
        &mut self,
        settings: &LogSettings,
        read: &mut ReadAt<'_>,
    ) -> io::Result<Option<LogSuperblock>> {
        let mut newest: Option<LogSuperblock> = None;
        let mut block = vec![0; settings.block_bytes as usize];
        for copy in 0..SUPERBLOCK_COUNT as u64 {
            let offset = settings.superblock_start + copy * settings.block_bytes;
            read(offset, &mut block)?;
            match LogSuperblock::decode(&block, settings.identity) {
                Some(found) => newest = newest.filter(|it| it.sequence > found.sequence).or(Some(found)),
                None => self.note(DamageKind::Superblock, 0, offset, settings.block_bytes),
            }
        }
        self.time = newest.and_then(|superblock| superblock.time);
        if newest.is_none() {
            self.damages.clear();
            let bytes = SUPERBLOCK_COUNT as u64 * settings.block_bytes;
            self.note(DamageKind::Superblocks, 0, settings.superblock_start, bytes);
        }
        Ok(newest)
    }

    /// The segments from the oldest to the newest, as recovery determines them, with those that it would miss.
    fn find_segments(
        &mut self,
        settings: &LogSettings,
        superblock: Option<LogSuperblock>,
        read: &mut ReadAt<'_>,
    ) -> io::Result<Vec<Extent>> {
        let mut headers = BTreeMap::new();
        let (mut others, mut corrected) = (Vec::new(), Vec::new());
        let mut block = vec![0; settings.block_bytes as usize];
        for slot in 0..settings.segment_count {
            read(settings.start + slot * settings.segment_bytes, &mut block)?;
            match SegmentHeader::decode(&block, settings.identity) {
                Some(header) => drop(headers.insert(header.generation, (header, slot))),
                None => match correct_header(&mut block, settings.identity) {
                    Some(header) => {
                        corrected.push((header.generation, settings.start + slot * settings.segment_bytes));
                        headers.insert(header.generation, (header, slot));
                    }
                    None => others.push(slot),
                },
            }
        }
        let known = superblock.unwrap_or(LogSuperblock::new(settings.identity));
        let last = headers.last_key_value().map(|(_, (header, _))| *header);
        let newest = last.map_or(0, |header| header.generation).max(known.newest);
        let oldest = last.map_or(1, |header| header.oldest).max(known.oldest);
        let heads = headers.values().map(|(header, _)| header.next_cas);
        self.next_cas = heads.chain([known.next_cas]).max().unwrap_or(1);
        // Freed segments are not needed.
        for (generation, offset) in corrected.into_iter().filter(|(generation, _)| *generation >= oldest) {
            self.note(DamageKind::Header, generation, offset, settings.block_bytes);
        }
        if newest == 0 {
            return Ok(Vec::new());
        }
        self.generations = Some((oldest, newest));
        let mut extents = Vec::new();
        for generation in oldest..=newest {
            let next = headers.get(&(generation + 1)).map(|(header, _)| *header);
            let is_last = generation == newest;
            let is_named = generation == known.newest;
            let end = match next {
                Some(next) => End::At(next.previous_end),
                None if is_last && is_named && known.is_closed => End::At(known.known_end),
                None if is_last && is_named => End::Behind(known.known_end),
                None if is_last => End::Behind(0),
                None => End::Unknown,
            };
            if let Some(&(header, slot)) = headers.get(&generation) {
                let SegmentHeader { run, is_ordered, .. } = header;
                extents.push(Extent { generation, run, slot: Some(slot), end, is_ordered });
                continue;
            }
            // Its records show where it is.
            let runs = [next.map(|next| next.previous_run), is_named.then_some(known.run)];
            let mut slot = None;
            for run in runs.into_iter().flatten() {
                let location = Location { run, generation, position: settings.block_bytes };
                for &other in &others {
                    let start = settings.start + other * settings.segment_bytes;
                    read(start + settings.block_bytes, &mut block)?;
                    if Head::read(&block, location).is_some() {
                        slot = Some((other, run));
                    }
                }
            }
            if let Some((slot, _)) = slot {
                let offset = settings.start + slot * settings.segment_bytes;
                self.note(DamageKind::Header, generation, offset, settings.block_bytes);
            }
            let run = slot.map_or(0, |(_, run)| run);
            let slot = slot.map(|(slot, _)| slot);
            extents.push(Extent { generation, run, slot, end, is_ordered: true });
        }
        Ok(extents)
    }

    fn read_segment(
        &mut self,
        settings: &LogSettings,
        segment: &Extent,
        start: u64,
        bytes: &mut SegmentBytes<'_, '_>,
        is_cut: bool,
        group: &mut Group,
    ) -> io::Result<()> {
        let (block_bytes, generation) = (settings.block_bytes as usize, segment.generation);
        let at = |position: usize| Location { run: segment.run, generation, position: position as u64 };
        let limit = bytes.len();
        // Records before this must be whole.
        let whole_to = match segment.end {
            End::At(end) => end as usize,
            End::Behind(_) | End::Unknown => {
                let end = if let End::Behind(end) = segment.end { end as usize } else { 0 };
                if segment.is_ordered { last_write(bytes, block_bytes, at)?.max(end) } else { end }
            }
        };
        let whole = whole_to.min(limit);
        let (mut position, mut keyed) = (block_bytes, Vec::with_capacity(KEYED_BYTES_MAX));
        while position < limit {
            let left = limit - position;
            let to_block = (position + 1).next_multiple_of(block_bytes).min(limit) - position;
            let is_blank = bytes.all(position..position + to_block, is_zero)?;
            let fits = |head: &Head| head.record_bytes() <= left;
            keyed.clear();
            keyed.extend_from_slice(bytes.at(position, KEYED_BYTES_MAX)?);
            let order = (generation, position as u64);
            if let Some(head) = Head::read(&keyed, at(position)).filter(fits) {
                let is_whole = is_value_whole(&head, bytes, position, Checksum::behind(&keyed))?;
                if is_whole || position < whole {
                    self.take(group, &head, &keyed, order, start, is_whole);
                    position += head.record_bytes();
                    continue;
                }
            } else if is_blank && !position.is_multiple_of(block_bytes) {
                position += to_block;
                continue;
            }
            if position >= whole {
                if !is_cut && bytes.all(position..limit, is_zero)? {
                    return Ok(());
                }
                if matches!(segment.end, End::Unknown) || is_cut {
                    self.note(DamageKind::Records, generation, start + position as u64, left as u64);
                    self.hide((order, left as u64));
                    group.is_damaged = true;
                } else if !is_blank {
                    self.dropped_from = Some(start + position as u64);
                }
                return Ok(());
            }
            if let Some(head) = correct(&mut keyed, at(position)).filter(fits) {
                self.note(DamageKind::Bit, generation, start + position as u64, head.record_bytes() as u64);
                let is_whole = is_value_whole(&head, bytes, position, Checksum::behind(&keyed))?;
                self.take(group, &head, &keyed, order, start, is_whole);
                position += head.record_bytes();
                continue;
            }
            let mut next = position + 1;
            while next < whole && Head::read(bytes.at(next, KEYED_BYTES_MAX)?, at(next)).is_none() {
                next += 1;
            }
            self.note(DamageKind::Records, generation, start + position as u64, (next - position) as u64);
            // The empty rest of a block with one wrong byte hides no record.
            let mut set_count = 0;
            bytes.all(position..next, |part| {
                set_count += part.iter().filter(|&&byte| byte != 0).count();
                true
            })?;
            let is_rest = !position.is_multiple_of(block_bytes) && next - position == to_block;
            if set_count > 1 || !is_rest {
                self.hide((order, (next - position) as u64));
                group.is_damaged = true;
            }
            position = next;
        }
        Ok(())
    }

    /// Takes a record for the latest of its key.
    fn take(
        &mut self,
        group: &mut Group,
        head: &Head,
        keyed: &[u8],
        order: Order,
        start: u64,
        is_value_whole: bool,
    ) {
        let key = &keyed[HEAD_BYTES..HEAD_BYTES + head.key_bytes];
        self.next_cas = self.next_cas.max(head.cas);
        if !is_value_whole {
            let offset = start + order.1;
            self.note(DamageKind::Value, order.0, offset, head.record_bytes() as u64);
        }
        if head.kind == Kind::GroupEnd {
            let (found, wanted) = (group.records.len(), head.flags as usize);
            if found != wanted && !group.is_damaged && !(group.is_first && found < wanted) {
                self.note(DamageKind::Records, order.0, start + order.1, head.record_bytes() as u64);
                self.hide((order, u64::MAX));
            }
            group.is_first = false;
            return self.end_group(group);
        }
        let value_offset = start + order.1 + (HEAD_BYTES + head.key_bytes) as u64;
        // What a removal has in place of a value is nothing that could be lost.
        let is_value_whole = is_value_whole || head.kind == Kind::Removed;
        group.records.push((key.into(), Latest { order, head: *head, value_offset, is_value_whole }));
    }

    /// A group is complete: its records count.
    fn end_group(&mut self, group: &mut Group) {
        group.is_damaged = false;
        for (key, latest) in group.records.drain(..) {
            if latest.head.kind == Kind::Cleared {
                self.keys.clear();
            } else {
                self.keys.insert(key, latest);
            }
        }
    }

    /// The records of a group that its run has not completed do not count, unless that is for damage.
    fn end_run(&mut self, settings: &LogSettings, group: &mut Group) {
        let Some((generation, start, end)) = group.last.take() else { return };
        let last = group.records.last().map(|(_, latest)| latest.order);
        if let (Some(order), End::At(end)) = (last, end)
            && order.0 == generation
            && !group.is_damaged
        {
            let bytes = end.saturating_sub(order.1).min(settings.segment_bytes);
            self.note(DamageKind::Records, generation, start + order.1, bytes);
            self.hide(((generation, end), u64::MAX));
            group.is_damaged = true;
        }
        if std::mem::take(&mut group.is_damaged) {
            let hole = self.holes.iter().map(|(_, (order, _))| *order).max().unwrap_or_default();
            group.records.retain(|(_, latest)| latest.order < hole);
            self.end_group(group);
        }
        group.records.clear();
    }

    /// Counts the keys that each damage costs.
    fn count_keys(&mut self) {
        for latest in self.keys.values().filter(|latest| !latest.is_value_whole) {
            let is_it = |damage: &&mut Damage| {
                damage.kind == DamageKind::Value
                    && damage.generation == latest.order.0
                    && damage.offset + HEAD_BYTES as u64 <= latest.value_offset
                    && damage.offset + damage.bytes > latest.value_offset
            };
            if let Some(damage) = self.damages.iter_mut().find(is_it) {
                damage.key_count += 1;
            }
        }
        for (at, hole) in &self.holes {
            let touched = self
                .keys
                .iter()
                .filter(|(key, latest)| latest.head.kind == Kind::Pair && hides(hole, key, latest.order));
            self.damages[*at].key_count = touched.count() as u64;
        }
    }
}

/// The records since the last end of a group.
#[derive(Default)]
struct Group {
    run: u64,
    records: Vec<(Box<[u8]>, Latest)>,
    /// Whether it is the first of the log: the beginning of it may have been in a segment that was freed.
    is_first: bool,
    /// Whether records of it may be hidden.
    is_damaged: bool,
    /// The last segment read: its generation, its first byte in the file, and where its records end.
    last: Option<(u64, u64, End)>,
}

/// A segment to be read.
struct Extent {
    generation: u64,
    run: u64,
    /// `None` if nothing of it is found.
    slot: Option<u64>,
    end: End,
    is_ordered: bool,
}

/// Where the records of a segment end.
#[derive(Clone, Copy)]
enum End {
    At(u64),
    /// Here or behind.
    Behind(u64),
    Unknown,
}

/// Whether a hole may hide a later record of a key.
fn hides((from, bytes): &Hole, key: &[u8], order: Order) -> bool {
    *from > order && *bytes >= (RECORD_EXTRA_BYTES + key.len()) as u64
}

/// Where the last write begins, as far as its first record tells; 0 if no record does.
fn last_write(
    bytes: &mut SegmentBytes<'_, '_>,
    block_bytes: usize,
    at: impl Fn(usize) -> Location,
) -> io::Result<usize> {
    for position in (block_bytes..bytes.len()).step_by(block_bytes).rev() {
        let head = Head::read(bytes.at(position, KEYED_BYTES_MAX)?, at(position));
        if head.is_some_and(|head| head.is_first) {
            return Ok(position);
        }
    }
    Ok(0)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Whether the value of the record at a position has its checksum.
fn is_value_whole(
    head: &Head,
    bytes: &mut SegmentBytes<'_, '_>,
    position: usize,
    mut checksum: Checksum,
) -> io::Result<bool> {
    let value_at = position + HEAD_BYTES + head.key_bytes;
    let tail_at = value_at + head.value_bytes;
    bytes.all(value_at..tail_at, |part| {
        checksum.update(part);
        true
    })?;
    Ok(bytes.at(tail_at, TAIL_BYTES)? == checksum.finish().to_le_bytes())
}

/// Corrects the bit before its value in which a record differs from these bytes. The checksum's distance makes it the
/// only one.
fn correct(bytes: &mut [u8], location: Location) -> Option<Head> {
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Some(head) = Head::read(bytes, location) {
            return Some(head);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

/// A header that differs from these bytes by one bit.
fn correct_header(block: &mut [u8], log: u64) -> Option<SegmentHeader> {
    if block[0] == 0 {
        return None;
    }
    (0..SegmentHeader::BYTES * 8).find_map(|bit| {
        block[bit / 8] ^= 1 << (bit % 8);
        let header = SegmentHeader::decode(block, log);
        block[bit / 8] ^= 1 << (bit % 8);
        header
    })
}
