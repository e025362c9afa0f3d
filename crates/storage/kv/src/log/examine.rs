//! Examining a log offline: every copy, header, record and value is read, and damage is judged.
//!
//! ```text
//! superblocks, headers ─▶ segments from the oldest to the newest ─▶ records ─▶ the latest of each key
//!        a damaged value  ──▶ its key is lost, unless it was written again
//!        a damaged head   ──▶ one wrong bit is corrected; or a hole up to the next genuine record
//!        a hole           ──▶ may hide a newer version of any key last written before it: these are uncertain
//!        a list of names  ──▶ of these only the keys whose names were written there, and were not read
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;

use super::names::{Hole, NameList, Recent, name_of_all};
use super::passed_over::DamageKind;
use super::recover::CAS_LOST_COUNT;
use super::segment_bytes::{ReadAt, SegmentBytes};
use super::{LogSettings, SUPERBLOCK_COUNT};
use crate::clock::LogTime;
use crate::item::later_cas;
use crate::key::name_of;
use crate::log_header::{LogSuperblock, SegmentHeader};
use crate::record::{Checksum, HEAD_BYTES, Head, KEYED_BYTES_MAX, Kind, Location, TAIL_BYTES};

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
    /// Least number of keys that it costs, or makes uncertain.
    pub key_count: u64,
}

/// The latest readable record of a key.
#[derive(Clone, Copy, Debug)]
struct Latest {
    order: Order,
    head: Head,
    value: ValueParts,
    is_value_whole: bool,
}

/// Where a value is: of each part the first byte in the file, and the length. The second part is the rest of a value
/// that was begun at the end of a segment; else its length is 0.
type ValueParts = [(u64, usize); 2];

/// A position in the log: generation, and offset in the segment.
type Order = (u64, u64);

/// The contents of a log.
#[derive(Debug, Default)]
pub struct Examined {
    /// The oldest and the newest generation, unless there is none.
    pub generations: Option<(u64, u64)>,
    /// Damage, in the order of the log.
    pub damages: Vec<Damage>,
    /// Bytes behind the last whole write, which belong to no write: first byte in the file.
    pub dropped_from: Option<u64>,
    keys: HashMap<Box<[u8]>, Latest>,
    /// Where segments are, by their generation.
    slots: BTreeMap<u64, u64>,
    /// Damage that hides records: its index, and the records that it hides.
    holes: Vec<(usize, Hole)>,
    recent: Recent,
    next_cas: u64,
    /// When the log was last marked, if that is known.
    pub(super) time: Option<LogTime>,
}

/// Certainty about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// It has this value.
    Certain,
    /// It has this value, unless a damaged range has a newer version.
    Uncertain,
    /// Its value is damaged, or was at an earlier start.
    Lost,
}

/// A key with a value.
#[derive(Debug)]
pub struct Kept<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Certainty about it.
    pub certainty: Certainty,
    /// Size of its record, bytes.
    pub record_bytes: u64,
    pub(super) head: Head,
    pub(super) value: ValueParts,
}

impl Examined {
    /// Reads a log in a file of this many bytes.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(settings: &LogSettings, file_bytes: u64, read: &mut ReadAt<'_>) -> io::Result<Self> {
        let mut examined = Self { next_cas: 1, ..Self::default() };
        let (superblock, last_names) = examined.read_superblocks(settings, read)?.unzip();
        let segments = examined.find_segments(settings, superblock, read)?;
        let mut group = Group { is_first: true, ..Group::default() };
        for segment in segments {
            if group.run != segment.run {
                examined.end_run(settings, &mut group);
                group.run = segment.run;
            }
            let Some(slot) = segment.slot else {
                examined.note(DamageKind::Segment, segment.generation, 0, settings.segment_bytes);
                examined.hide(Hole::new(segment.generation, 0, u64::MAX));
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
        if let Some(names) = last_names.flatten() {
            examined.take_names(settings, &names, None);
        }
        examined.end_run(settings, &mut group);
        if superblock.is_none() {
            // It comes first.
            let end = examined.generations.map_or(1, |(_, newest)| newest + 1);
            examined.holes.push((0, Hole::new(end, 0, u64::MAX)));
        }
        examined.count_keys();
        Ok(examined)
    }

    /// Every key that has a value, or had one that is damaged, in the order of the log.
    #[must_use]
    pub fn keys(&self) -> Vec<Kept<'_>> {
        let pairs = self.keys.iter().filter(|(_, latest)| latest.head.kind != Kind::Removed);
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_unstable_by_key(|(_, latest)| latest.order);
        let kept = pairs.into_iter().map(|(key, latest)| {
            let is_hidden = self.is_hidden(key, latest.order);
            let certainty = match latest.is_value_whole {
                false => Certainty::Lost,
                true if is_hidden => Certainty::Uncertain,
                true => Certainty::Certain,
            };
            let record_bytes = latest.head.record_bytes() as u64;
            Kept { key, certainty, record_bytes, head: latest.head, value: latest.value }
        });
        kept.collect()
    }

    /// Whether no damage was found, and no key lost its value to earlier damage.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damages.is_empty() && !self.keys.values().any(|latest| latest.head.kind == Kind::Lost)
    }

    /// Whether damaged ranges may hold an unknown number of keys that were written nowhere else.
    #[must_use]
    pub fn has_holes(&self) -> bool {
        self.holes.iter().any(|(_, hole)| !hole.is_bounded())
    }

    /// The names (CRC32C) of keys with records in damaged ranges, of which nothing else is known.
    #[must_use]
    pub fn unknown_names(&self) -> BTreeSet<u32> {
        let mut names: BTreeSet<u32> =
            self.holes.iter().flat_map(|(_, hole)| hole.hidden()).copied().collect();
        names.remove(&name_of_all());
        if !names.is_empty() {
            for key in self.keys.keys() {
                names.remove(&name_of(key));
            }
        }
        names
    }

    /// Whether a hole may hide a later record of a key.
    fn is_hidden(&self, key: &[u8], order: Order) -> bool {
        let name = name_of(key);
        let is_it = |hole: &Hole| (hole.generation, hole.from) > order && hole.may_hide(key.len(), name);
        self.holes.iter().any(|(_, hole)| is_it(hole))
    }

    /// A CAS number above all that were given.
    pub(super) fn next_cas(&self) -> u64 {
        self.next_cas + CAS_LOST_COUNT
    }

    fn note(&mut self, kind: DamageKind, generation: u64, offset: u64, bytes: u64) {
        self.damages.push(Damage { kind, generation, offset, bytes, key_count: 0 });
    }

    /// The last damage hides records.
    fn hide(&mut self, hole: Hole) {
        if hole.end < u64::MAX {
            self.recent.on_hole(hole.generation, hole.end);
        }
        self.holes.push((self.damages.len() - 1, hole));
    }

    /// Takes the names of records that were written: those that were not read are in holes.
    fn take_names(&mut self, settings: &LogSettings, names: &NameList, at: Option<Order>) {
        let missing = self.recent.missing(names);
        if let Some((generation, position)) = at {
            self.recent.restart(generation, position);
        }
        let Some(missing) = missing else { return };
        for (_, hole) in &mut self.holes {
            hole.on_list(names, &missing);
        }
        if !missing.is_empty() && !self.holes.iter().any(|(_, hole)| hole.meets(names)) {
            let NameList { generation, from, to, .. } = *names;
            self.note(DamageKind::Records, generation, self.offset_in(settings, generation, from), to - from);
            let mut hole = Hole::between(generation, from, to);
            hole.on_list(names, &missing);
            self.holes.push((self.damages.len() - 1, hole));
        }
    }

    /// A byte of a segment, in the file; 0 if it is unknown where the segment is.
    fn offset_in(&self, settings: &LogSettings, generation: u64, position: u64) -> u64 {
        let slot = self.slots.get(&generation);
        slot.map_or(0, |slot| settings.start + slot * settings.segment_bytes + position)
    }

    fn read_superblocks(
        &mut self,
        settings: &LogSettings,
        read: &mut ReadAt<'_>,
    ) -> io::Result<Option<(LogSuperblock, Option<NameList>)>> {
        let mut newest: Option<(LogSuperblock, Option<NameList>)> = None;
        let mut block = vec![0; settings.block_bytes as usize];
        for copy in 0..SUPERBLOCK_COUNT as u64 {
            let offset = settings.superblock_start + copy * settings.block_bytes;
            read(offset, &mut block)?;
            match LogSuperblock::decode(&block, settings.identity) {
                Some(found) => {
                    let names = NameList::decode_behind(&found, &block);
                    newest = newest.filter(|(it, _)| it.sequence > found.sequence).or(Some((found, names)));
                }
                None => self.note(DamageKind::Superblock, 0, offset, settings.block_bytes),
            }
        }
        self.time = newest.as_ref().and_then(|(superblock, _)| superblock.time);
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
                None => match SegmentHeader::correct(&mut block, settings.identity) {
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
                self.slots.insert(generation, slot);
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
            self.slots.extend(slot.map(|slot| (generation, slot)));
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
        // Others may have been in the empty rest of the block of a damaged record.
        let mut is_behind_damage = false;
        while position < limit {
            let left = limit - position;
            let to_block = (position + 1).next_multiple_of(block_bytes).min(limit) - position;
            let is_blank = bytes.all(position..position + to_block, is_zero)?;
            let bytes_of = |head: &Head| {
                head.bytes_at(position as u64, settings.segment_bytes).filter(|&bytes| bytes <= left)
            };
            keyed.clear();
            keyed.extend_from_slice(bytes.at(position, KEYED_BYTES_MAX)?);
            let order = (generation, position as u64);
            if let Some(head) = Head::read(&keyed, at(position))
                && let Some(record_bytes) = bytes_of(&head)
            {
                let is_whole = is_value_whole(&head, bytes, position..position + record_bytes, &keyed)?;
                if is_whole || position < whole {
                    self.take(settings, group, &head, &keyed, (order, record_bytes), is_whole);
                    self.take_list(settings, &head, bytes, order, is_whole)?;
                    position += record_bytes;
                    is_behind_damage = !is_whole;
                    continue;
                }
            } else if is_blank && !position.is_multiple_of(block_bytes) {
                if std::mem::take(&mut is_behind_damage) && position < whole {
                    self.note(DamageKind::Records, generation, start + position as u64, to_block as u64);
                    self.hide(Hole::new(generation, position as u64, (position + to_block) as u64));
                    group.is_damaged = true;
                }
                position += to_block;
                continue;
            }
            if position >= whole {
                if !is_cut && bytes.all(position..limit, is_zero)? {
                    return Ok(());
                }
                if matches!(segment.end, End::Unknown) || is_cut {
                    self.note(DamageKind::Records, generation, start + position as u64, left as u64);
                    self.hide(Hole::new(generation, position as u64, limit as u64));
                    group.is_damaged = true;
                } else if !is_blank {
                    self.dropped_from = Some(start + position as u64);
                }
                return Ok(());
            }
            if let Some(head) = Head::correct(&mut keyed, at(position))
                && let Some(record_bytes) = bytes_of(&head)
            {
                self.note(DamageKind::Bit, generation, start + position as u64, record_bytes as u64);
                let is_whole = is_value_whole(&head, bytes, position..position + record_bytes, &keyed)?;
                self.take(settings, group, &head, &keyed, (order, record_bytes), is_whole);
                self.take_list(settings, &head, bytes, order, is_whole)?;
                position += record_bytes;
                is_behind_damage = !is_whole;
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
                self.hide(Hole::new(generation, position as u64, next as u64));
                group.is_damaged = true;
            }
            (position, is_behind_damage) = (next, false);
        }
        Ok(())
    }

    /// Takes the names in a record, if it is a list of them.
    fn take_list(
        &mut self,
        settings: &LogSettings,
        head: &Head,
        bytes: &mut SegmentBytes<'_, '_>,
        order: Order,
        is_whole: bool,
    ) -> io::Result<()> {
        if head.kind == Kind::Names && is_whole {
            let value = bytes.at(order.1 as usize + HEAD_BYTES, head.value_bytes)?;
            if let Some(names) = NameList::decode(value) {
                self.take_names(settings, &names, Some(order));
            }
        }
        Ok(())
    }

    /// Takes a record as the latest of its key.
    fn take(
        &mut self,
        settings: &LogSettings,
        group: &mut Group,
        head: &Head,
        keyed: &[u8],
        (order, bytes): (Order, usize),
        is_value_whole: bool,
    ) {
        let key = &keyed[HEAD_BYTES..HEAD_BYTES + head.key_bytes];
        self.next_cas = later_cas(self.next_cas, head.cas);
        let offset = self.offset_in(settings, order.0, order.1);
        if !is_value_whole {
            let kind = if head.kind == Kind::Names { DamageKind::Names } else { DamageKind::Value };
            self.note(kind, order.0, offset, bytes as u64);
        }
        if head.kind == Kind::Names {
            return;
        }
        if head.kind == Kind::GroupEnd {
            let (found, wanted) = (group.records.len(), head.flags as usize);
            if found != wanted && !group.is_damaged && !(group.is_first && found < wanted) {
                self.note(DamageKind::Records, order.0, offset, head.record_bytes() as u64);
                // Somewhere in the group, or before it.
                let first = group.records.first().map_or(order, |(_, first)| first.order);
                let hole = match first.0 == order.0 {
                    true => {
                        let from = self.recent.unlisted_from(first.0, first.1);
                        Hole::between(order.0, from, order.1 + 1)
                    }
                    false => Hole::new(order.0, order.1, u64::MAX),
                };
                self.holes.push((self.damages.len() - 1, hole));
            }
            group.is_first = false;
            return self.end_group(group);
        }
        let part = (offset + (HEAD_BYTES + head.key_bytes) as u64, head.value_bytes_in(bytes));
        if head.kind == Kind::Rest {
            return group.take_rest(key, head, part, is_value_whole);
        }
        self.recent.on_record(order.0, order.1, name_of(key));
        // A removal has no value that could be lost.
        let is_value_whole = (is_value_whole || head.kind == Kind::Removed) && head.kind != Kind::Lost;
        let value = [part, (0, 0)];
        group.records.push((key.into(), Latest { order, head: *head, value, is_value_whole }));
    }

    /// A group is complete: its records count.
    fn end_group(&mut self, group: &mut Group) {
        group.is_damaged = false;
        for (key, mut latest) in group.records.drain(..) {
            if latest.head.kind == Kind::Begun && latest.is_value_whole {
                // No rest was read.
                let [(offset, bytes), _] = latest.value;
                let head_bytes = HEAD_BYTES + key.len();
                self.note(
                    DamageKind::Value,
                    latest.order.0,
                    offset - head_bytes as u64,
                    (head_bytes + bytes) as u64,
                );
                latest.is_value_whole = false;
            }
            if latest.head.kind == Kind::Cleared {
                self.keys.clear();
            } else {
                self.keys.insert(key, latest);
            }
        }
    }

    /// The records of a group that its run has not completed do not count, unless damage is the reason.
    fn end_run(&mut self, settings: &LogSettings, group: &mut Group) {
        let Some((generation, start, end)) = group.last.take() else { return };
        let last = group.records.last().map(|(_, latest)| latest.order);
        if let (Some(order), End::At(end)) = (last, end)
            && order.0 == generation
            && !group.is_damaged
        {
            let bytes = end.saturating_sub(order.1).min(settings.segment_bytes);
            self.note(DamageKind::Records, generation, start + order.1, bytes);
            let first =
                group.records.iter().map(|(_, first)| first.order).find(|first| first.0 == generation);
            let from = self.recent.unlisted_from(generation, first.unwrap_or(order).1);
            self.holes.push((self.damages.len() - 1, Hole::between(generation, from, end)));
            group.is_damaged = true;
        }
        if std::mem::take(&mut group.is_damaged) {
            let holes = self.holes.iter().map(|(_, hole)| (hole.generation, hole.from));
            let hole = holes.max().unwrap_or_default();
            group.records.retain(|(_, latest)| latest.order < hole);
            self.end_group(group);
        }
        group.records.clear();
    }

    /// Counts the keys that each damage costs.
    fn count_keys(&mut self) {
        for latest in self.keys.values().filter(|latest| !latest.is_value_whole) {
            let is_in = |damage: &Damage, (offset, bytes): (u64, usize)| {
                bytes > 0 && (damage.offset..damage.offset + damage.bytes).contains(&offset)
            };
            let is_it = |damage: &&mut Damage| {
                damage.kind == DamageKind::Value && latest.value.iter().any(|part| is_in(damage, *part))
            };
            if let Some(damage) = self.damages.iter_mut().find(is_it) {
                damage.key_count += 1;
            }
        }
        for (at, hole) in &self.holes {
            let is_hidden = |key: &[u8], latest: &Latest| {
                (hole.generation, hole.from) > latest.order && hole.may_hide(key.len(), name_of(key))
            };
            let pairs = self.keys.iter().filter(|(_, latest)| latest.head.kind == Kind::Pair);
            let hidden = pairs.filter(|(key, latest)| is_hidden(key, latest));
            self.damages[*at].key_count = hidden.count() as u64;
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

impl Group {
    /// Takes the rest of the value that the last record has begun. If that is damaged, or was in a segment that was
    /// freed, it belongs to nothing.
    fn take_rest(&mut self, key: &[u8], head: &Head, part: (u64, usize), is_whole: bool) {
        let Some((begun_key, latest)) = self.records.last_mut() else { return };
        let is_it = latest.head.kind == Kind::Begun
            && (&**begun_key, latest.head.cas) == (key, head.cas)
            && latest.value[0].1 + part.1 == latest.head.value_bytes;
        if is_it {
            latest.value[1] = part;
            latest.head.kind = Kind::Pair;
            latest.is_value_whole &= is_whole;
        }
    }
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
    /// Here or later.
    Behind(u64),
    Unknown,
}

/// Start of the last write, as far as its first record shows it; 0 if no record does.
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

/// Whether the value of the record in a range, which begins with `keyed`, has its checksum.
fn is_value_whole(
    head: &Head,
    bytes: &mut SegmentBytes<'_, '_>,
    range: Range<usize>,
    keyed: &[u8],
) -> io::Result<bool> {
    let mut checksum = Checksum::behind(keyed);
    let value_at = range.start + HEAD_BYTES + head.key_bytes;
    let tail_at = range.end - TAIL_BYTES;
    bytes.all(value_at..tail_at, |part| {
        checksum.update(part);
        true
    })?;
    Ok(bytes.at(tail_at, TAIL_BYTES)? == checksum.finish().to_le_bytes())
}
