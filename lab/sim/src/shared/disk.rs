//! A disk with a volatile cache: operations take time and run beside each other, in parts that come in any order; a
//! power cut leaves of each block one of the versions that it had since it was last made durable.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use reactor::{Allocation, Completion, File, Operation, Token};
use rustix::io::Errno;

use super::{Actor, Event, Shared};
use crate::pair_settings::{BLOCK_BYTES, PairSettings};
use crate::random::Random;
use crate::scenario::{DiskSettings, ErrorOf, SeparateSettings};
use crate::timeline::{About, blocks};

/// Parts into which a long operation is cut.
const PART_COUNT: u64 = 3;

/// The file of the key-value namespace.
pub(crate) const LOG_FILE: u64 = 100;

/// The first of the files that have a disk each.
pub(crate) const FIRST_SEPARATE_FILE: u64 = 200;

/// The log reads the beginning of a segment, or a value, in at most this many bytes; more for cleaning.
const SHORT_READ_BYTES_MAX: usize = 16 << 10;

/// Maximum attempts of a store at an operation that fails in passing.
const PASSING_COUNT_MAX: u32 = 10;

/// Something that went wrong with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    Read,
    Write,
    Sync,
    NoSpace,
    /// It failed in passing, or ended short.
    Passing,
}

impl ErrorOf {
    fn hits(self, operation: &Operation) -> bool {
        match self {
            Self::Read => matches!(operation, Operation::Read { .. }),
            Self::Write => matches!(operation, Operation::Write { .. }),
            Self::Flush => matches!(operation, Operation::Sync { .. }),
        }
    }
}

/// The versions of one block since it was durable.
#[derive(Clone, Debug, Default)]
struct Versions {
    /// The number of the operation, and the content.
    since: Vec<(u64, Vec<u8>)>,
}

/// An operation under way.
#[derive(Debug)]
struct Running {
    actor: Actor,
    token: Token,
    operation: Operation,
    /// Blocks still to be done, in the order in which they are.
    parts: Vec<Range<usize>>,
    /// How it ends.
    result: Result<usize, Errno>,
    /// Bytes that it does.
    limit: usize,
    /// Of a flush: the newest version of each block when it began.
    covered: BTreeMap<usize, u64>,
    /// It does not end by itself.
    is_stuck: bool,
    /// Which opening of the file it belongs to.
    opened_count: u64,
    /// The process that began it is gone, and the kernel goes on with it.
    is_orphan: bool,
    /// The device does nothing of it before.
    held_until_ns: u64,
    about: About,
}

/// A file on a disk, with the kernel's cache of it.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    block_bytes: usize,
    /// Blocks of each of the disks, which follow each other here.
    block_count: usize,
    settings: DiskSettings,
    /// Its content as it is read.
    bytes: Vec<u8>,
    /// Its content after a power cut that takes everything.
    stable: Vec<u8>,
    /// One past the last byte that an operation has written.
    written_end: usize,
    unstable: BTreeMap<usize, Versions>,
    running: BTreeMap<u64, Running>,
    next: u64,
    /// A flush or a durable write has failed since this was last asked.
    pub(crate) has_failed_sync: bool,
    /// How often durable operations have failed in passing or ended short, by whom they are for.
    passing: BTreeMap<(Actor, Token), u32>,
    /// Failures so far, and how many of them the flushes of each reactor have reported on each open file description,
    /// which reports each failure once.
    failure_count: u64,
    told: Vec<(Actor, File, u64)>,
    /// Number of times the file was reopened. Operations started before a reopening do not report later failures.
    opened_count: u64,
    pub(crate) operation_count: u64,
    /// Operations so far, by their kind and the block where they begin.
    counts: BTreeMap<(u64, usize), u64>,
    /// The description of each file that has its lock.
    locked: BTreeMap<u64, File>,
    /// The troubles that were reported, when, and the blocks of each: none of a flush.
    troubles: Vec<(Trouble, u64, Range<usize>)>,
    /// An operation is stuck since this was last asked.
    pub(crate) has_stuck: bool,
    /// The device does nothing before.
    pub(crate) hung_until_ns: u64,
    /// When operations last waited for others, or for a device that hung.
    held_ns: u64,
    /// Until then the file system has no space for writes.
    pub(crate) no_space_until_ns: u64,
    /// The reactors that have written since the file was opened, and their reads since.
    writers: BTreeMap<Actor, LogReads>,
    /// The error of the next operation of that kind.
    pub(crate) next_error: Option<ErrorOf>,
    /// An operation has failed for good since this was last asked.
    pub(crate) has_failed: bool,
}

impl Disk {
    /// A disk of zeroes, whose operations are numbered from `next` on.
    pub(crate) fn new(
        block_bytes: usize,
        block_count: usize,
        disk_count: usize,
        settings: DiskSettings,
        next: u64,
    ) -> Self {
        let length = block_bytes * block_count * disk_count;
        Self {
            block_bytes,
            block_count,
            settings,
            // Pages that are never written take no memory.
            bytes: vec![0; length],
            stable: vec![0; length],
            next,
            ..Self::default()
        }
    }

    /// Its first bytes, which can be changed while nothing runs, and are durable then.
    pub(crate) fn change_first<T>(&mut self, count: usize, change: impl FnOnce(&mut [u8]) -> T) -> T {
        let changed = change(&mut self.bytes[..count]);
        self.stable[..count].copy_from_slice(&self.bytes[..count]);
        changed
    }

    /// Draws the events of an operation: a stream for each time of the same at the same place.
    fn chance(&mut self, seed: u64, operation: &Operation, block: usize) -> Random {
        let kind = match operation {
            Operation::Read { .. } => 0,
            Operation::Write { .. } => 1,
            Operation::Sync { .. } => 2,
            Operation::Allocate { .. } => 3,
        };
        let count = self.counts.entry((kind, block)).or_default();
        *count += 1;
        Random::of(seed, 22, &[kind, block as u64, *count])
    }

    fn range(&self, block: usize) -> Range<usize> {
        block * self.block_bytes..(block + 1) * self.block_bytes
    }

    /// Writes one block into the cache.
    fn put(&mut self, block: usize, content: Vec<u8>, number: u64) {
        let range = self.range(block);
        if range.end > self.bytes.len() {
            return;
        }
        self.written_end = self.written_end.max(range.end);
        self.bytes[range].copy_from_slice(&content);
        self.unstable.entry(block).or_default().since.push((number, content));
    }

    /// Makes the versions of a block up to an operation durable.
    fn settle(&mut self, block: usize, up_to: impl Fn(u64) -> bool) {
        let range = self.range(block);
        let Some(versions) = self.unstable.get_mut(&block) else { return };
        let Some(last) = versions.since.iter().rposition(|(number, _)| up_to(*number)) else { return };
        self.stable[range].copy_from_slice(&versions.since[last].1);
        versions.since.drain(..=last);
        if versions.since.is_empty() {
            self.unstable.remove(&block);
        }
    }

    /// A durable write has ended.
    fn settle_write(&mut self, number: u64, running: &Running) {
        let Operation::Write { offset, durable: true, .. } = &running.operation else { return };
        let first = *offset as usize / self.block_bytes;
        for block in first..first + running.limit / self.block_bytes {
            self.settle(block, |version| version == number);
        }
    }

    /// An operation of a process that is gone ends.
    fn end_orphan(&mut self, number: u64) {
        let Some(running) = self.running.remove(&number) else { return };
        if running.result.is_ok() {
            self.settle_write(number, &running);
        }
    }

    /// A flush has failed: the pages it covered may be marked clean, and never be written.
    fn forget(&mut self, random: &mut Random) {
        for versions in self.unstable.values_mut() {
            if random.one_in(2) {
                // Blocks that are still being written may yet become durable by themselves.
                let running = &self.running;
                versions.since.retain(|(number, _)| running.contains_key(number));
            }
        }
        self.unstable.retain(|_, versions| !versions.since.is_empty());
    }

    /// A durable write or a flush of the log has failed: each block that was not durable is lost or may yet become
    /// durable. No block that can be read now is lost later, as with direct I/O.
    fn lose(&mut self, random: &mut Random) {
        let unstable = std::mem::take(&mut self.unstable);
        for (block, versions) in unstable {
            let is_running = versions.since.iter().any(|(number, _)| self.running.contains_key(number));
            if is_running || random.one_in(2) {
                self.unstable.insert(block, versions);
            } else {
                let range = self.range(block);
                self.bytes[range.clone()].copy_from_slice(&self.stable[range]);
            }
        }
    }

    /// Whether an operation is under way that fails for good.
    pub(crate) fn is_failing(&self) -> bool {
        self.running.values().any(|running| !running.is_orphan && running.result == Err(Errno::IO))
    }

    /// When something first went wrong in this way since then.
    pub(crate) fn first_trouble_ns(&self, trouble: Trouble, since_ns: u64) -> Option<u64> {
        let since = self.troubles.iter().rev().take_while(|(_, at_ns, _)| *at_ns >= since_ns);
        since.filter(|(other, ..)| *other == trouble).map(|(_, at_ns, _)| *at_ns).last()
    }

    fn do_part(&mut self, number: u64, part: Range<usize>) {
        let Self { running, bytes, block_bytes, .. } = self;
        let (Some(running), block_bytes) = (running.get_mut(&number), *block_bytes) else { return };
        let limit = running.limit;
        let mut written = Vec::new();
        match &mut running.operation {
            Operation::Read { offset, buffer, skip, .. } => {
                let start = *offset as usize;
                for block in part {
                    let place = block * block_bytes..(block + 1) * block_bytes;
                    let to = place.start + *skip - start..place.end + *skip - start;
                    if place.end <= bytes.len() && place.end - start <= limit {
                        buffer[to].copy_from_slice(&bytes[place]);
                    }
                }
            }
            Operation::Write { offset, buffer, skip, .. } => {
                let start = *offset as usize;
                for block in part {
                    let from = block * block_bytes + *skip - start;
                    if (block + 1) * block_bytes - start > limit {
                        continue;
                    }
                    written.push((block, buffer[from..from + block_bytes].to_vec()));
                }
            }
            Operation::Allocate { .. } => written.extend(part.map(|block| (block, vec![0; block_bytes]))),
            Operation::Sync { .. } => {}
        }
        for (block, content) in written {
            self.put(block, content, number);
        }
    }

    /// Effect of operations in flight whose issuer is gone, of those that end with it.
    fn abandon(&mut self, random: &mut Random, ends: impl Fn(&Running) -> bool) {
        let ending = self.running.iter().filter(|(_, running)| ends(running));
        let numbers: Vec<u64> = ending.map(|(number, _)| *number).collect();
        for number in numbers {
            let is_write = self.running.get(&number).is_some_and(|running| {
                matches!(running.operation, Operation::Write { .. } | Operation::Allocate { .. })
                    && running.result.is_ok()
            });
            let parts = self.running.get_mut(&number).map(|running| std::mem::take(&mut running.parts));
            for part in parts.into_iter().flatten().filter(|_| is_write) {
                for block in part {
                    if random.one_in(2) {
                        self.do_part(number, block..block + 1);
                    }
                }
            }
            self.running.remove(&number);
        }
    }

    /// The process dies; the kernel keeps its page cache. Operations of the device end with it, or go on
    /// if `goes_on`: some at once, some only after `held_until_ns`. Returns the number of operations that go on.
    pub(crate) fn on_kill(&mut self, random: &mut Random, goes_on: bool, held_until_ns: u64) -> usize {
        for running in self.running.values_mut().filter(|_| goes_on) {
            running.is_orphan |= !matches!(running.operation, Operation::Sync { .. }) && !random.one_in(4);
            if running.is_orphan && random.one_in(2) {
                running.held_until_ns = held_until_ns;
            }
        }
        self.abandon(random, |running| !running.is_orphan);
        self.running.len()
    }

    /// A process opens a file: its description that has the lock.
    pub(crate) fn open(&mut self, id: u64) -> File {
        let file = File::simulated(id);
        self.locked.insert(id, file.clone());
        file
    }

    /// Whether an operation of a process that is gone still has the lock of a file.
    pub(crate) fn is_locked(&self, id: u64) -> bool {
        let locked = self.locked.get(&id);
        let holds = |running: &Running| {
            running.is_orphan && locked.is_some_and(|file| running.operation.file().is_same_description(file))
        };
        self.running.values().any(holds)
    }

    /// Whether the process that serves has a write under way.
    pub(crate) fn is_written(&self) -> bool {
        let is_write = |running: &Running| {
            matches!(running.operation, Operation::Write { .. } | Operation::Allocate { .. })
        };
        self.running.values().any(|running| !running.is_orphan && is_write(running))
    }

    /// Whether writes of a process that is gone still change a file.
    pub(crate) fn is_written_by_dead(&self, id: u64) -> bool {
        self.running.values().any(|running| {
            running.is_orphan
                && !matches!(running.operation, Operation::Read { .. })
                && running.operation.file().simulated_id() == Some(id)
        })
    }

    /// The power goes: each block keeps one of its versions.
    pub(crate) fn on_power_cut(&mut self, random: &mut Random) {
        self.abandon(random, |_| true);
        for (block, versions) in std::mem::take(&mut self.unstable) {
            let range = self.range(block);
            let kept = random.below(versions.since.len() as u64 + 1) as usize;
            if kept > 0 {
                self.stable[range].copy_from_slice(&versions.since[kept - 1].1);
            }
        }
        let end = self.written_end;
        self.bytes[..end].copy_from_slice(&self.stable[..end]);
    }

    /// The file is cut and grows again.
    pub(crate) fn zero_from(&mut self, block: usize) {
        // A file is cut once operations under way there have ended.
        for running in self.running.values_mut().filter(|running| running.is_orphan) {
            running.parts.clear();
        }
        let (start, end) = (block * self.block_bytes, self.block_count * self.block_bytes);
        self.bytes[start..end].fill(0);
        self.stable[start..end].fill(0);
        let is_cut = block..self.block_count;
        self.unstable.retain(|unstable, _| !is_cut.contains(unstable));
    }

    /// Gives the blocks of a disk their contents.
    pub(crate) fn fill(&mut self, disk: usize, content: impl Fn(&mut [u8], u64)) {
        for lba in 0..self.block_count {
            let range = self.range(disk * self.block_count + lba);
            content(&mut self.bytes[range.clone()], lba as u64);
            self.stable[range.clone()].copy_from_slice(&self.bytes[range]);
        }
    }

    /// Whether a disk still has what [`fill`](Self::fill) gave it.
    pub(crate) fn is_filled(&self, disk: usize, content: impl Fn(&mut [u8], u64)) -> bool {
        let mut expected = vec![0; self.block_bytes];
        (0..self.block_count).all(|lba| {
            content(&mut expected, lba as u64);
            self.bytes[self.range(disk * self.block_count + lba)] == expected[..]
        })
    }

    /// The file is reopened: earlier failures are not reported any more.
    pub(crate) fn forgive(&mut self) {
        self.failure_count = 0;
        self.told.clear();
        self.writers.clear();
        self.opened_count += 1;
    }

    /// How many failures the flushes of a reactor have reported on a file description.
    fn told(&mut self, actor: Actor, file: &File) -> &mut u64 {
        let is_meant = |(other, description, _): &(Actor, File, u64)| {
            *other == actor && description.is_same_description(file)
        };
        let at = self.told.iter().position(is_meant).unwrap_or_else(|| {
            self.told.push((actor, file.clone(), 0));
            self.told.len() - 1
        });
        &mut self.told[at].2
    }

    /// Whether an operation is under way that does not end by itself.
    pub(crate) fn is_stuck(&self) -> bool {
        self.running.values().any(|running| running.is_stuck)
    }

    /// When something last went wrong in this way.
    pub(crate) fn last_trouble_ns(&self, trouble: Trouble) -> Option<u64> {
        let mut all = self.troubles.iter().rev();
        all.find_map(|(other, at_ns, _)| (*other == trouble).then_some(*at_ns))
    }

    /// Whether something has gone wrong like this since then, with an operation that `concerns` by its blocks on its
    /// disk: none of a flush.
    pub(crate) fn had_trouble(
        &self,
        trouble: Trouble,
        since_ns: u64,
        concerns: impl Fn(Range<u64>) -> bool,
    ) -> bool {
        let of_disk = |blocks: &Range<usize>| {
            let first = blocks.start - blocks.start % self.block_count.max(1);
            (blocks.start - first) as u64..(blocks.end - first) as u64
        };
        let mut all = self.troubles.iter().rev().take_while(|(_, at_ns, _)| *at_ns >= since_ns);
        all.any(|(other, _, blocks)| *other == trouble && concerns(of_disk(blocks)))
    }

    /// Whether no more operations may run at once.
    pub(crate) fn is_full(&self) -> bool {
        self.running.len() >= self.settings.limit
    }

    /// Until when operations waited for others, or for a device that hangs: until now, if they still do.
    pub(crate) fn held_until_ns(&self, now_ns: u64) -> u64 {
        if self.is_full() || self.is_stuck() { now_ns } else { self.held_ns.max(self.hung_until_ns) }
    }

    /// Operations under way.
    pub(crate) fn running_count(&self) -> usize {
        self.running.len()
    }
}

/// Numbers of operations on the file of the key-value namespace, from here on.
pub(crate) const LOG_OPERATIONS: u64 = OPERATIONS;

/// As many numbers of operations as each disk has.
const OPERATIONS: u64 = 1 << 40;

/// One of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    First,
    Log,
    Separate(usize),
}

impl Place {
    fn of_file(file: &File) -> Self {
        match file.simulated_id() {
            Some(LOG_FILE) => Self::Log,
            Some(id @ FIRST_SEPARATE_FILE..) => Self::Separate((id - FIRST_SEPARATE_FILE) as usize),
            _ => Self::First,
        }
    }

    fn of_operation(number: u64) -> Self {
        match number / OPERATIONS {
            0 => Self::First,
            1 => Self::Log,
            place => Self::Separate(place as usize - 2),
        }
    }
}

/// The disks of the files of a host with separate queues.
pub(super) fn separate_disks(settings: &SeparateSettings) -> impl Iterator<Item = Disk> {
    let (block_bytes, block_count) = (settings.block_bytes as usize, settings.block_count as usize);
    (0..settings.file_count).map(move |number| {
        let sync_error = if number == 0 { settings.disk.sync_error } else { 0 };
        let settings = DiskSettings { sync_error, ..settings.disk };
        Disk::new(block_bytes, block_count, 1, settings, (number as u64 + 2) * OPERATIONS)
    })
}

/// Whether a write of the log begins a segment with the rest of a value: behind the header and a list of names.
fn has_rest(bytes: &[u8]) -> bool {
    const NAMES: u8 = 5;
    const REST: u8 = 8;
    const RECORD_EXTRA_BYTES: usize = 36;
    let Some((b"nvlkvseg", records)) = bytes.split_first_chunk() else { return false };
    let records = &records[BLOCK_BYTES - 8..];
    let names_bytes = u32::from_le_bytes(records[8..12].try_into().expect("four bytes")) as usize;
    records[0] == NAMES && records.get(RECORD_EXTRA_BYTES + names_bytes) == Some(&REST)
}

/// The reads of a log that writes.
#[derive(Debug, Default)]
struct LogReads {
    /// The segment that it has cleaned last, or cleans.
    cleaning: Range<u64>,
    cleaned_count: u64,
    /// Where values were fetched.
    fetched: BTreeSet<u64>,
}

impl LogReads {
    /// Records a read of the log and returns its coverage events. Long values are read in the units of a segment.
    fn note(&mut self, offset: u64, length: usize, settings: &PairSettings) -> Vec<&'static str> {
        if length <= SHORT_READ_BYTES_MAX {
            let mut events = vec!["value fetched from the log"];
            if self.cleaning.contains(&offset) {
                events.push("value fetched from a segment that is cleaned");
            }
            if !self.fetched.insert(offset) {
                events.push("value fetched again from its record");
            }
            return events;
        }
        if settings.has_long_values() {
            return Vec::new();
        }
        self.cleaning = offset..offset + length as u64;
        self.cleaned_count += 1;
        let mut events = vec!["segment of the log cleaned"];
        if self.cleaned_count > settings.segment_count_max() {
            events.push("segment of the log cleaned a second time");
        }
        events
    }
}

impl Shared {
    /// The disk of an operation.
    fn disk_of(&mut self, number: u64) -> &mut Disk {
        self.disk_at(Place::of_operation(number))
    }

    fn disk_at(&mut self, place: Place) -> &mut Disk {
        match place {
            Place::First => &mut self.disk,
            Place::Log => &mut self.log_disk,
            Place::Separate(at) => &mut self.separate_disks[at],
        }
    }

    /// Notes a value that comes from the log since it has left memory. A log that writes is not being recovered.
    fn note_fetch(&mut self, actor: Actor, operation: &Operation) {
        match operation {
            Operation::Write { buffer, .. } => {
                self.log_disk.writers.entry(actor).or_default();
                if has_rest(buffer) {
                    self.reach_event("value in two segments of the log");
                }
            }
            Operation::Read { offset, buffer, .. } => {
                let Some(reads) = self.log_disk.writers.get_mut(&actor) else { return };
                let Some(settings) = &self.scenario.pairs else { return };
                let events = reads.note(*offset, buffer.len(), settings);
                events.into_iter().for_each(|event| self.reach_event(event));
            }
            _ => {}
        }
    }

    /// Draws the events of an operation of a disk.
    fn disk_chance(&mut self, number: u64, operation: &Operation, block: usize) -> Random {
        let chance = match Place::of_operation(number) {
            Place::First | Place::Log => self.scenario.chance,
            Place::Separate(at) => self.scenario.chance.rotate_left(8 + at as u32),
        };
        self.disk_of(number).chance(chance, operation, block)
    }

    /// Starts an operation; gives it back if too many run.
    pub(crate) fn start_disk(
        &mut self,
        actor: Actor,
        token: Token,
        mut operation: Operation,
    ) -> Result<(), Operation> {
        let place = Place::of_file(operation.file());
        let (is_log, is_first) = (place == Place::Log, place == Place::First);
        let disk = self.disk_at(place);
        let settings = disk.settings;
        let is_ours = |running: &&Running| running.actor == actor && !running.is_orphan;
        if disk.running.len() >= settings.limit
            && disk.running.values().filter(is_ours).count() >= settings.limit
        {
            return Err(operation);
        }
        let disk_bytes = if is_first { (disk.block_count * disk.block_bytes) as u64 } else { 0 };
        if let Operation::Read { file, offset, .. }
        | Operation::Write { file, offset, .. }
        | Operation::Allocate { file, offset, .. } = &mut operation
        {
            let first_byte = if is_first { self.scenario.first_byte() } else { 0 };
            let start = file.simulated_id().unwrap_or(0) * disk_bytes;
            match offset.checked_sub(first_byte).filter(|place| !is_first || *place < disk_bytes) {
                Some(place) => *offset = start + place,
                None => {
                    let place = *offset;
                    *offset = start;
                    self.find(format!("an operation at {place} of a disk where no command names a block"));
                }
            }
        }
        if is_first && self.scenario.first_byte() > u64::from(u32::MAX) {
            self.reach_event("operation beyond 4 GiB");
        }
        let disk = self.disk_at(place);
        disk.operation_count += 1;
        disk.next += 1;
        let number = disk.next;
        if is_log {
            self.note_fetch(actor, &operation);
        }
        let disk = self.disk_of(number);
        let block_bytes = disk.block_bytes;
        if let Operation::Sync { file } = &operation
            && *disk.told(actor, file) > 0
        {
            // A repeated flush of a description reports success, as the kernel does. A flush that began before the file was
            // reopened, and waited for the device, is one of another description.
            self.find(format!("reactor {actor} asks for another flush of a file whose flush has failed"));
        }
        let extent = extent(&operation, block_bytes);
        let length = match &operation {
            Operation::Read { buffer, skip, .. } | Operation::Write { buffer, skip, .. } => {
                buffer.len() - skip
            }
            Operation::Allocate { .. } | Operation::Sync { .. } => 0,
        };
        let mut random = self.disk_chance(number, &operation, extent.start);
        let lacks_space = self.now_ns < self.disk_of(number).no_space_until_ns;
        let is_hit = |error: &mut ErrorOf| error.hits(&operation);
        let is_hostile = self.is_hostile;
        let fails = is_hostile && self.disk_of(number).next_error.take_if(is_hit).is_some();
        let (result, limit) = match &operation {
            _ if fails => {
                let blocks = random.below((length / block_bytes) as u64 + 1) as usize;
                (Err(Errno::IO), blocks * block_bytes)
            }
            Operation::Write { .. } if self.is_hostile && lacks_space => (Err(Errno::NOSPC), 0),
            _ => {
                let drawn = self.draw_result((&settings, block_bytes), &operation, length, &mut random);
                self.meet_bad_blocks(drawn, &operation, &extent)
            }
        };
        let covered = match operation {
            Operation::Sync { .. } => {
                let newest = |versions: &Versions| versions.since.last().map_or(0, |(number, _)| *number);
                let unstable = &self.disk_of(number).unstable;
                unstable.iter().map(|(block, versions)| (*block, newest(versions))).collect()
            }
            _ => BTreeMap::new(),
        };
        let is_stuck = self.is_hostile && random.happens(settings.stuck);
        // One that is may have done all of its work, or nothing.
        let is_idle = is_stuck && random.one_in(2);
        let mut at_ns = self.now_ns;
        let mut draw_ns = |random: &mut Random| {
            at_ns += settings.latency_ns / PART_COUNT + random.below(settings.jitter_ns);
            at_ns
        };
        let mut parts = Vec::new();
        // A write that fails may have done a part.
        let is_begun = limit > 0 && matches!(operation, Operation::Write { .. });
        if (result.is_ok() || is_begun) && !extent.is_empty() {
            // Up to three runs of blocks, in any order.
            let mut cuts = vec![extent.start, extent.end];
            for _ in 1..PART_COUNT {
                cuts.push(random.between(extent.start as u64, extent.end as u64) as usize);
            }
            cuts.sort_unstable();
            parts.extend(cuts.windows(2).map(|pair| pair[0]..pair[1]).filter(|part| !part.is_empty()));
            if parts.len() > 1 && random.one_in(2) {
                parts.reverse();
            }
            if !is_idle {
                for _ in 0..parts.len() {
                    let at_ns = draw_ns(&mut random);
                    self.at(at_ns, Event::DiskPart(number));
                }
            }
        }
        let mut end_ns = draw_ns(&mut random);
        if let Operation::Sync { .. } = operation {
            end_ns += settings.flush_ns;
        }
        if self.is_hostile && random.happens(settings.slow) {
            let slow_ns = random.below(settings.slow_ns);
            end_ns += slow_ns;
            self.slow_until("slow operation of the disk", slow_ns, end_ns);
        }
        if !is_stuck {
            self.at(end_ns, Event::DiskEnd(number));
        }
        self.disk_of(number).has_stuck |= is_stuck;
        let how = if is_stuck { ", and is stuck" } else { "" };
        let shown_as = about(number, &operation, &extent);
        self.tell(shown_as.clone(), || {
            let what = describe(&operation, &extent);
            format!("disk operation {number}: begins to {what} for reactor {actor}{how}")
        });
        let opened_count = self.disk_of(number).opened_count;
        let running = Running {
            actor,
            token,
            operation,
            parts,
            result,
            limit,
            covered,
            is_stuck,
            opened_count,
            is_orphan: false,
            held_until_ns: 0,
            about: shown_as,
        };
        self.disk_of(number).running.insert(number, running);
        Ok(())
    }

    /// Fails an operation that would do a block which fails for good: it does those before at most.
    fn meet_bad_blocks(
        &mut self,
        (result, limit): (Result<usize, Errno>, usize),
        operation: &Operation,
        extent: &Range<usize>,
    ) -> (Result<usize, Errno>, usize) {
        let scenario = &self.scenario;
        let is_first = Place::of_file(operation.file()) == Place::First;
        if !is_first || !self.is_hostile || result.is_err() {
            return (result, limit);
        }
        let bad = match operation {
            Operation::Read { .. } => &scenario.bad.unreadable,
            _ => &scenario.bad.unwritable,
        };
        // One that stops short does not come to those behind.
        let end = match operation {
            Operation::Read { .. } | Operation::Write { .. } => {
                extent.start + limit / self.scenario.block_bytes as usize
            }
            _ => extent.end,
        };
        let is_bad = |block: &usize| bad.contains(&(*block as u64 % scenario.block_count));
        let Some(first) = (extent.start..end).find(is_bad) else { return (result, limit) };
        let done_bytes = (first - extent.start) * scenario.block_bytes as usize;
        self.reach_event("operation on a block that fails for good");
        (Err(Errno::IO), done_bytes)
    }

    /// Draws the result of an operation, and the number of bytes that it does.
    fn draw_result(
        &self,
        (settings, block_bytes): (&DiskSettings, usize),
        operation: &Operation,
        length: usize,
        random: &mut Random,
    ) -> (Result<usize, Errno>, usize) {
        if let Operation::Allocate { change, .. } = operation
            && (!settings.supports_ranges || (*change == Allocation::Zero && settings.limit == 2))
        {
            return (Err(Errno::OPNOTSUPP), 0);
        }
        if !self.is_hostile {
            return (Ok(length), length);
        }
        if random.happens(settings.passing) {
            return (Err(random.pick(&[Errno::INTR, Errno::AGAIN])), 0);
        }
        let (rate, errno) = match operation {
            Operation::Read { .. } => (settings.read_error, Errno::IO),
            Operation::Write { durable: true, .. } | Operation::Sync { .. } => {
                (settings.sync_error, Errno::IO)
            }
            Operation::Write { .. } => (settings.write_error, random.pick(&[Errno::IO, Errno::NOSPC])),
            Operation::Allocate { .. } => (settings.write_error, random.pick(&[Errno::IO, Errno::NOSPC])),
        };
        if random.happens(rate) {
            let blocks = random.below((length / block_bytes) as u64 + 1) as usize;
            return (Err(errno), if errno == Errno::IO { blocks * block_bytes } else { 0 });
        }
        if length > 1 && random.happens(settings.short) {
            // Whole blocks: a partial one would be torn.
            let count = random.below(length as u64) as usize;
            // Nothing at all would be the end of the file.
            let is_log = operation.file().simulated_id() == Some(LOG_FILE);
            let count =
                if is_log && matches!(operation, Operation::Read { .. }) { count.max(1) } else { count };
            return (Ok(count), count / block_bytes * block_bytes);
        }
        (Ok(length), length)
    }

    /// The device is reset: stuck operations end at last, with an error or as if nothing had been.
    pub(crate) fn on_device_reset(&mut self) {
        let now_ns = self.now_ns;
        self.slow_until("operation that hangs", u64::MAX, now_ns);
        self.disk.held_ns = now_ns;
        let running = self.disk.running.iter_mut().chain(&mut self.log_disk.running);
        let mut ended = Vec::new();
        for (number, running) in running.filter(|(_, running)| running.is_stuck) {
            running.is_stuck = false;
            if self.random.one_in(2) {
                running.parts.clear();
                running.result = Err(Errno::IO);
            }
            ended.push((*number, running.parts.len()));
        }
        for (number, part_count) in ended {
            (0..part_count).for_each(|_| self.at(now_ns, Event::DiskPart(number)));
            self.at(now_ns, Event::DiskEnd(number));
        }
    }

    pub(crate) fn on_disk_part(&mut self, number: u64) {
        let now_ns = self.now_ns;
        let disk = self.disk_of(number);
        let Some(running) = disk.running.get_mut(&number) else { return };
        if running.parts.is_empty() {
            return;
        }
        let held_until_ns = running.held_until_ns.max(disk.hung_until_ns);
        if held_until_ns > now_ns {
            return self.at(held_until_ns, Event::DiskPart(number));
        }
        let part = running.parts.remove(0);
        // For an operation that stops short, the limit counts from where it began.
        disk.do_part(number, part);
    }

    /// An operation ends: gives it back to its reactor.
    pub(crate) fn on_disk_end(&mut self, number: u64) -> Option<(Actor, Completion)> {
        let now_ns = self.now_ns;
        let place = Place::of_operation(number);
        let disk = match place {
            Place::First => &mut self.disk,
            Place::Log => &mut self.log_disk,
            Place::Separate(at) => &mut self.separate_disks[at],
        };
        disk.held_ns = disk.held_until_ns(now_ns).min(now_ns);
        let running = disk.running.get_mut(&number)?;
        let held_until_ns = running.held_until_ns.max(disk.hung_until_ns);
        if held_until_ns > now_ns {
            self.at(held_until_ns, Event::DiskEnd(number));
            return None;
        }
        if running.result.is_ok() {
            // A device that hangs twice may hold a part back until now.
            for part in std::mem::take(&mut running.parts) {
                disk.do_part(number, part);
            }
        }
        let running = disk.running.get_mut(&number)?;
        if running.is_orphan {
            disk.end_orphan(number);
            return None;
        }
        let (actor, token) = (running.actor, running.token);
        let is_current = running.opened_count == disk.opened_count;
        let mut running = disk.running.remove(&number)?;
        if let Operation::Sync { file } = &running.operation
            && running.result.is_ok()
            && is_current
        {
            let failure_count = disk.failure_count;
            let told = disk.told(actor, file);
            if *told < failure_count {
                *told = failure_count;
                running.result = Err(Errno::IO);
            }
        }
        let result = running.result.map_err(io::Error::from);
        let is_durable =
            matches!(running.operation, Operation::Sync { .. } | Operation::Write { durable: true, .. });
        let is_whole = match (&running.operation, running.result) {
            (Operation::Read { buffer, skip, .. } | Operation::Write { buffer, skip, .. }, Ok(count)) => {
                skip + count >= buffer.len()
            }
            (_, result) => result.is_ok(),
        };
        let trouble = match (&running.operation, running.result) {
            (_, Err(Errno::INTR | Errno::AGAIN)) => Some(Trouble::Passing),
            (_, Err(Errno::OPNOTSUPP)) => None,
            (_, Err(Errno::NOSPC)) => Some(Trouble::NoSpace),
            (Operation::Read { .. }, Err(_)) => Some(Trouble::Read),
            (Operation::Sync { .. }, Err(_)) => Some(Trouble::Sync),
            (_, Err(_)) => Some(Trouble::Write),
            (Operation::Read { .. } | Operation::Write { .. }, Ok(_)) if !is_whole => Some(Trouble::Passing),
            (_, Ok(_)) => None,
        };
        let blocks = extent(&running.operation, disk.block_bytes);
        disk.troubles.extend(trouble.map(|trouble| (trouble, now_ns, blocks)));
        disk.has_failed |= matches!(trouble, Some(Trouble::Read | Trouble::Write | Trouble::Sync));
        // A store gives up an operation that fails in passing time after time, and is closed then as after any other
        // failure.
        if is_whole {
            disk.passing.remove(&(actor, token));
        } else if is_durable {
            let count = disk.passing.entry((actor, token)).or_default();
            *count += 1;
            if *count >= PASSING_COUNT_MAX {
                disk.passing.remove(&(actor, token));
                disk.has_failed_sync = true;
            }
        }
        match (&running.operation, running.result) {
            // Without space, the kernel does nothing of it.
            (_, Err(errno)) if is_durable && !matches!(errno, Errno::INTR | Errno::AGAIN | Errno::NOSPC) => {
                disk.has_failed_sync = true;
                disk.failure_count += 1;
                if let Operation::Sync { file } = &running.operation
                    && is_current
                {
                    *disk.told(actor, file) = disk.failure_count;
                }
                if place == Place::Log {
                    disk.lose(&mut self.random);
                } else {
                    disk.forget(&mut self.random);
                }
            }
            (Operation::Sync { .. }, Ok(_)) => {
                for (block, newest) in &running.covered {
                    disk.settle(*block, |version| version == *newest);
                }
            }
            (Operation::Write { .. }, Ok(_)) if is_durable => disk.settle_write(number, &running),
            _ => {}
        }
        self.tell(running.about, || {
            let end = match running.result {
                Ok(0) => "ends".into(),
                Ok(count) => format!("ends after {count} bytes"),
                Err(errno) => format!("fails: {errno}"),
            };
            format!("disk operation {number}: {end}")
        });
        let buffer = match running.operation {
            Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => Some(buffer),
            Operation::Sync { .. } | Operation::Allocate { .. } => None,
        };
        Some((actor, Completion { token, result, buffer }))
    }
}

/// The blocks that an operation is on: none of a flush.
fn extent(operation: &Operation, block_bytes: usize) -> Range<usize> {
    let (offset, length) = match operation {
        Operation::Read { offset, buffer, skip, .. } | Operation::Write { offset, buffer, skip, .. } => {
            (*offset as usize, buffer.len() - skip)
        }
        Operation::Allocate { offset, length, .. } => (*offset as usize, *length as usize),
        Operation::Sync { .. } => return 0..0,
    };
    offset / block_bytes..(offset + length) / block_bytes
}

/// The subject of an operation on these blocks in a timeline. Those of the log of keys are of other blocks.
fn about(number: u64, operation: &Operation, extent: &Range<usize>) -> About {
    match operation {
        _ if number >= LOG_OPERATIONS => About::Detail,
        Operation::Sync { .. } => About::DiskFlush,
        _ => About::Disk(extent.start as u64..extent.end as u64),
    }
}

fn describe(operation: &Operation, extent: &Range<usize>) -> String {
    let blocks = blocks(extent.start as u64..extent.end as u64);
    match operation {
        Operation::Read { .. } => format!("read {blocks}"),
        Operation::Write { durable: true, .. } => format!("write {blocks} durably"),
        Operation::Write { .. } => format!("write {blocks}"),
        Operation::Sync { .. } => "flush".into(),
        Operation::Allocate { change: Allocation::Zero, .. } => format!("zero {blocks}"),
        Operation::Allocate { .. } => format!("deallocate {blocks}"),
    }
}
