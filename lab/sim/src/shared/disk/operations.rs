//! Operations of the disks of a world: how each goes, drawn when it begins; its parts; its end.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use reactor::{Allocation, Completion, DataMap, Operation, Token};
use rustix::io::Errno;

use super::log_reads::has_rest;
use super::{Disk, DiskId, LOG_FILE, LOG_OPERATIONS, PASSING_COUNT_MAX, Running, Trouble, Versions};
use crate::random::Random;
use crate::scenario::{DiskSettings, ErrorOf};
use crate::shared::{Actor, Event, Shared};
use crate::timeline::{About, blocks};

/// Parts into which a long operation is cut.
const PART_COUNT: u64 = 3;

impl Shared {
    /// The disk of an operation.
    fn disk_of(&mut self, number: u64) -> &mut Disk {
        self.disk_at(DiskId::of_operation(number))
    }

    fn disk_at(&mut self, place: DiskId) -> &mut Disk {
        match place {
            DiskId::First => &mut self.disk,
            DiskId::Log => &mut self.log_disk,
            DiskId::Separate(at) => &mut self.separate_disks[at],
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
        let chance = match DiskId::of_operation(number) {
            DiskId::First | DiskId::Log => self.scenario.chance,
            DiskId::Separate(at) => self.scenario.chance.rotate_left(8 + at as u32),
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
        let place = DiskId::of_file(operation.file());
        let (is_log, is_first) = (place == DiskId::Log, place == DiskId::First);
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
            && disk.flush_reports.has_reported(actor, file)
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
            Operation::FindData { file, map } => {
                let first_byte = if is_first { self.scenario.first_byte() } else { 0 };
                let start = file.simulated_id().unwrap_or(0) * disk_bytes;
                self.disk_at(place).find_data(map, first_byte, start);
                0
            }
            Operation::Allocate { .. } | Operation::Sync { .. } | Operation::Await { .. } => 0,
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
        // What finds data is no operation of the device.
        let is_of_device = !matches!(operation, Operation::FindData { .. });
        let is_stuck = self.is_hostile && random.happens(settings.stuck) && is_of_device;
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
        let is_first = DiskId::of_file(operation.file()) == DiskId::First;
        if !is_first || !self.is_hostile || result.is_err() {
            return (result, limit);
        }
        let bad = match operation {
            Operation::Read { .. } => &scenario.first.bad.unreadable,
            _ => &scenario.first.bad.unwritable,
        };
        // One that stops short does not come to those behind.
        let end = match operation {
            Operation::Read { .. } | Operation::Write { .. } => {
                extent.start + limit / self.scenario.first.block_bytes as usize
            }
            _ => extent.end,
        };
        let is_bad = |block: &usize| bad.contains(&(*block as u64 % scenario.first.block_count));
        let Some(first) = (extent.start..end).find(is_bad) else { return (result, limit) };
        let done_bytes = (first - extent.start) * scenario.first.block_bytes as usize;
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
            // A descriptor is no disk.
            Operation::Await { .. } | Operation::FindData { .. } => (0, Errno::IO),
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
        let place = DiskId::of_operation(number);
        let disk = match place {
            DiskId::First => &mut self.disk,
            DiskId::Log => &mut self.log_disk,
            DiskId::Separate(at) => &mut self.separate_disks[at],
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
            && disk.flush_reports.report(actor, file)
        {
            running.result = Err(Errno::IO);
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
                disk.flush_reports.add_failure();
                if let Operation::Sync { file } = &running.operation
                    && is_current
                {
                    disk.flush_reports.report(actor, file);
                }
                if place == DiskId::Log {
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
            Operation::Sync { .. }
            | Operation::Await { .. }
            | Operation::Allocate { .. }
            | Operation::FindData { .. } => None,
        };
        Some((actor, Completion { token, result, buffer }))
    }
}

impl Disk {
    /// Finds the blocks of a file that are not zeroes. It begins with its byte `first_byte` at `start` of the disk.
    fn find_data(&self, map: &DataMap, first_byte: u64, start: u64) {
        let block_bytes = self.block_bytes as u64;
        let range = map.range();
        let mut at = range.start - range.start % block_bytes;
        while at < range.end {
            let block = (at - first_byte + start) / block_bytes;
            let has_data = self.cached.get(block as usize).iter().any(|byte| *byte != 0);
            if has_data && !map.add(at..at + block_bytes) {
                return;
            }
            at += block_bytes;
        }
    }
}

/// The blocks that an operation is on: none of a flush.
fn extent(operation: &Operation, block_bytes: usize) -> Range<usize> {
    let (offset, length) = match operation {
        Operation::Read { offset, buffer, skip, .. } | Operation::Write { offset, buffer, skip, .. } => {
            (*offset as usize, buffer.len() - skip)
        }
        Operation::Allocate { offset, length, .. } => (*offset as usize, *length as usize),
        Operation::Sync { .. } | Operation::Await { .. } | Operation::FindData { .. } => return 0..0,
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
        Operation::Await { .. } => "await".into(),
        Operation::FindData { .. } => "find data".into(),
        Operation::Allocate { change: Allocation::Zero, .. } => format!("zero {blocks}"),
        Operation::Allocate { .. } => format!("deallocate {blocks}"),
    }
}
