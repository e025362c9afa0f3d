//! A disk with a volatile cache: operations take time and run beside each other, in parts that come in any order; a
//! power cut leaves of each block one of the versions that it had since it was last made durable.

mod blocks;
mod flush_reports;
mod log_reads;
mod operations;

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use reactor::{File, Operation, Token};
use rustix::io::Errno;

use super::Actor;
use crate::random::Random;
use crate::scenario::{DiskSettings, ErrorOf, SeparateSettings};
use crate::timeline::About;
use blocks::Blocks;
use flush_reports::FlushReports;
use log_reads::LogReads;

/// The file of the key-value namespace.
pub(crate) const LOG_FILE: u64 = 100;

/// The first of the files that have a disk each.
pub(crate) const FIRST_SEPARATE_FILE: u64 = 200;

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
    since: Vec<(u64, Rc<[u8]>)>,
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
    cached: Blocks,
    /// Its content after a power cut that takes everything.
    stable: Blocks,
    unstable: BTreeMap<usize, Versions>,
    running: BTreeMap<u64, Running>,
    next: u64,
    /// A flush or a durable write has failed since this was last asked.
    pub(crate) has_failed_sync: bool,
    /// How often durable operations have failed in passing or ended short, by whom they are for.
    passing: BTreeMap<(Actor, Token), u32>,
    flush_reports: FlushReports,
    /// Number of times the file was reopened. Operations started before a reopening do not report later failures.
    opened_count: u64,
    pub(crate) operation_count: u64,
    /// Operations so far, by their kind and the block where they begin.
    counts: BTreeMap<(u64, usize), u64>,
    /// The description of each file that has its lock.
    locked: BTreeMap<u64, File>,
    /// A durable write or a flush of the log has failed, and blocks that could be read before have their old content.
    pub(crate) has_lost_blocks: bool,
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
        let blocks = Blocks::new(block_bytes, block_count * disk_count);
        Self {
            block_bytes,
            block_count,
            settings,
            cached: blocks.clone(),
            stable: blocks,
            next,
            ..Self::default()
        }
    }

    /// Its first bytes, which can be changed while nothing runs, and are durable then.
    pub(crate) fn change_first<T>(&mut self, count: usize, change: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut first = self.cached.first(count);
        let changed = change(&mut first);
        self.cached.set_first(&first);
        self.stable.set_first(&first);
        changed
    }

    /// Draws the events of an operation: a stream for each time of the same at the same place.
    fn chance(&mut self, seed: u64, operation: &Operation, block: usize) -> Random {
        let kind = match operation {
            Operation::Read { .. } => 0,
            Operation::Write { .. } => 1,
            Operation::Sync { .. } | Operation::Await { .. } | Operation::FindData { .. } => 2,
            Operation::Allocate { .. } => 3,
        };
        let count = self.counts.entry((kind, block)).or_default();
        *count += 1;
        Random::of(seed, 22, &[kind, block as u64, *count])
    }

    /// Writes one block into the cache.
    fn put(&mut self, block: usize, content: Rc<[u8]>, number: u64) {
        if block >= self.cached.count() {
            return;
        }
        self.cached.set(block, Rc::clone(&content));
        self.unstable.entry(block).or_default().since.push((number, content));
    }

    /// Makes the versions of a block up to an operation durable.
    fn settle(&mut self, block: usize, up_to: impl Fn(u64) -> bool) {
        let Some(versions) = self.unstable.get_mut(&block) else { return };
        let Some(last) = versions.since.iter().rposition(|(number, _)| up_to(*number)) else { return };
        if let Some((_, content)) = versions.since.drain(..=last).next_back() {
            self.stable.set(block, content);
        }
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
                self.cached.copy_from(&self.stable, block);
                self.has_lost_blocks = true;
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
        let Self { running, cached, block_bytes, .. } = self;
        let (Some(running), block_bytes) = (running.get_mut(&number), *block_bytes) else { return };
        let limit = running.limit;
        let mut written = Vec::new();
        match &mut running.operation {
            Operation::Read { offset, buffer, skip, .. } => {
                let start = *offset as usize;
                for block in part {
                    let to = block * block_bytes + *skip - start;
                    if block < cached.count() && (block + 1) * block_bytes - start <= limit {
                        buffer[to..to + block_bytes].copy_from_slice(cached.get(block));
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
                    written.push((block, Rc::from(&buffer[from..from + block_bytes])));
                }
            }
            Operation::Allocate { .. } => written.extend(part.map(|block| (block, cached.zeroes()))),
            Operation::Sync { .. } | Operation::Await { .. } | Operation::FindData { .. } => {}
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
        for (block, mut versions) in std::mem::take(&mut self.unstable) {
            let kept = random.below(versions.since.len() as u64 + 1) as usize;
            if kept > 0 {
                self.stable.set(block, versions.since.swap_remove(kept - 1).1);
            }
        }
        self.cached.copy_all_from(&self.stable);
    }

    /// The file is cut and grows again.
    pub(crate) fn zero_from(&mut self, block: usize) {
        // A file is cut once operations under way there have ended.
        for running in self.running.values_mut().filter(|running| running.is_orphan) {
            running.parts.clear();
        }
        let is_cut = block..self.block_count;
        self.cached.clear(is_cut.clone());
        self.stable.clear(is_cut.clone());
        self.unstable.retain(|unstable, _| !is_cut.contains(unstable));
    }

    /// Gives the blocks of a disk their contents.
    pub(crate) fn fill(&mut self, disk: usize, content: impl Fn(&mut [u8], u64)) {
        for lba in 0..self.block_count {
            let mut bytes = vec![0; self.block_bytes];
            content(&mut bytes, lba as u64);
            let block = disk * self.block_count + lba;
            self.cached.set(block, bytes.into());
            self.stable.copy_from(&self.cached, block);
        }
    }

    /// Whether a disk still has what [`fill`](Self::fill) gave it.
    pub(crate) fn is_filled(&self, disk: usize, content: impl Fn(&mut [u8], u64)) -> bool {
        let mut expected = vec![0; self.block_bytes];
        (0..self.block_count).all(|lba| {
            content(&mut expected, lba as u64);
            self.cached.get(disk * self.block_count + lba) == expected
        })
    }

    /// The file is reopened: earlier failures are not reported any more.
    pub(crate) fn forgive(&mut self) {
        self.flush_reports = FlushReports::default();
        self.writers.clear();
        self.opened_count += 1;
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

/// One of the disks, by the numbers of its files and of its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskId {
    First,
    Log,
    Separate(usize),
}

impl DiskId {
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
