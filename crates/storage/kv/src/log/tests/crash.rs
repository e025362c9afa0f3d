//! Power cuts after every step of random histories, and in every state of a torn write.

use std::sync::LazyLock;

use super::late::Late;
use super::*;
use crate::colliding::CollidingKeys;

/// A kind of history.
#[derive(Clone, Copy)]
struct Workload {
    settings: LogSettings,
    memory_bytes: usize,
    key_count: u16,
    /// Lengths of values.
    lengths: &'static [usize],
    rounds: u64,
    /// Changes before a step, at most.
    changes_max: u64,
    /// One in this many steps is followed by power cuts.
    cut_every: u64,
    /// Whether operations end late, in any order.
    is_late: bool,
    /// Whether keys collide: a third of them has the hash of the next ones.
    collides: bool,
}

/// What a history came to.
struct Run {
    /// Number of states looked at.
    state_count: usize,
    /// The operations that ended late, of the last start.
    late: Option<Late>,
}

/// Known states of each key, each with the change that made it.
#[derive(Clone, Default)]
struct History {
    states: BTreeMap<u16, Vec<State>>,
}

/// A value with its expiry, and the change that made it.
type State = (u64, Content);
type Content = Option<(Vec<u8>, u32)>;

impl History {
    fn note(&mut self, key: u16, number: u64, content: Content) {
        self.states.entry(key).or_default().push((number, content));
    }

    /// After recovery, the only known state of a key is the recovered one, which a reader may have seen.
    fn restart(&mut self, bench: &mut Bench, key_count: u16) {
        for key in 0..key_count {
            let content = bench.content(key);
            self.states.insert(key, vec![(0, content)]);
        }
    }

    /// The content of a key after a change.
    fn content(&self, key: u16, number: u64) -> Option<&Content> {
        let states = self.states.get(&key)?;
        let known = states.partition_point(|(of, _)| *of <= number);
        states[..known].last().map(|(_, content)| content)
    }

    /// The changes after which the partition had exactly these contents, when those up to `settled` were reported
    /// durable: what survives is the state after one of them. Of an empty result, the first key without any.
    fn prefixes(&self, settled: u64, contents: &[Content]) -> Result<Vec<u64>, u16> {
        let numbers = self.states.values().flatten().map(|(number, _)| *number);
        let mut numbers: Vec<u64> = numbers.filter(|number| *number > settled).chain([settled]).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for (key, content) in (0..).zip(contents) {
            numbers.retain(|number| self.content(key, *number).unwrap_or(&None) == content);
            if numbers.is_empty() {
                return Err(key);
            }
        }
        Ok(numbers)
    }
}

impl Bench {
    /// The key of this number.
    fn name(&self, key: u16) -> Vec<u8> {
        if self.collides {
            static KEYS: LazyLock<CollidingKeys> = LazyLock::new(|| CollidingKeys::new(0, 1));
            KEYS.key(u32::from(key / 8) % CollidingKeys::KIND_COUNT, key)
        } else {
            key.to_le_bytes().into()
        }
    }

    fn content(&mut self, key: u16) -> Content {
        let name = self.name(key);
        let value = self.value(&name)?;
        let place = self.processor.find(self.processor.hash(&name), &name).expect("just found");
        Some((value, self.processor.attributes(place).expiry_s))
    }

    /// Continues until the log admits a change, as commands do.
    fn await_admission(&mut self, bytes: usize) {
        while !self.log.admits(&mut self.processor, bytes) {
            assert!(self.step(), "changes wait for nothing");
        }
    }

    /// Stores a value; without memory, as soon as more is written. `false` if there is none even then.
    fn set_at_last(&mut self, key: u16, value: &[u8]) -> bool {
        loop {
            self.await_admission(value.len());
            if self.set(&self.name(key), value) == Stored::Done {
                return true;
            }
            if !self.step() {
                return false;
            }
        }
    }

    fn count(&mut self) -> u64 {
        self.processor.pairs_mut().changes().count()
    }

    fn settled(&mut self) -> u64 {
        self.log.settled(&mut self.processor)
    }
}

impl Workload {
    fn open(&self, disk: Disk) -> Bench {
        Bench { collides: self.collides, ..Bench::open_with(self.settings, disk, self.memory_bytes) }
    }

    fn change(&self, bench: &mut Bench, history: &mut History, random: &mut SplitMix64) {
        let key = random.below(self.key_count.into()) as u16;
        let name = bench.name(key);
        let hash = bench.processor.hash(&name);
        let choice = random.below(16);
        // Whatever needs the value waits for it, while other changes go on.
        if self.is_late && matches!(choice, 11 | 12) && bench.processor.is_stub(hash, &name) {
            return bench.log.fetch(&mut bench.processor, &name);
        }
        match choice {
            0..9 => {
                let length = self.lengths[random.below(self.lengths.len() as u64) as usize];
                let value: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                if bench.set_at_last(key, &value) {
                    history.note(key, bench.count(), Some((value, 0)));
                }
            }
            9 | 10 if bench.processor.delete(hash, &name) => history.note(key, bench.count(), None),
            11 => {
                // Touched, as soon as its value is in memory.
                let Some((value, _)) = bench.content(key) else { return };
                let expiry_s = bench.processor.now_s() + 1000 + random.below(1000) as u32;
                assert!(bench.processor.set_expiry(hash, &name, expiry_s));
                history.note(key, bench.count(), Some((value, expiry_s)));
            }
            12 => {
                let Some((mut value, expiry_s)) = bench.content(key) else { return };
                let place = bench.processor.find(hash, &name).expect("just found");
                let add = |part: &mut [u8]| part.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                if bench.processor.change(hash, &name, place, 1, add) {
                    add(&mut value);
                    history.note(key, bench.count(), Some((value, expiry_s)));
                }
            }
            // Others wait for its value while this goes on.
            14 if self.is_late => {
                let keys = (0..self.key_count).map(|key| bench.name(key)).collect::<Vec<_>>();
                for name in keys {
                    let hash = bench.processor.hash(&name);
                    if random.below(4) == 0 && bench.processor.is_stub(hash, &name) {
                        bench.log.fetch(&mut bench.processor, &name);
                    }
                }
            }
            13 | 14 => {
                bench.processor.writer.allocator.demote_region();
            }
            15 if random.below(4 * self.changes_max) == 0 => {
                bench.processor.clear();
                let number = bench.count();
                (0..self.key_count).for_each(|key| history.note(key, number, None));
            }
            _ => {}
        }
    }

    /// Recovers a disk image, and compares it with the history. Returns the recovered bench.
    fn check(&self, image: Vec<u8>, history: &History, settled: u64, seed: u64) -> Bench {
        let mut bench = self.open(Disk::of(image));
        while !bench.log.is_ready() {
            assert!(bench.step(), "seed {seed}: {:?}", bench.log.failure());
        }
        self.judge(&mut bench, history, settled, seed);
        bench
    }

    /// Compares a recovered partition with the history: it has the state after one of the changes from `settled` on.
    fn judge(&self, bench: &mut Bench, history: &History, settled: u64, seed: u64) {
        let contents: Vec<Content> = (0..self.key_count).map(|key| bench.content(key)).collect();
        let Err(key) = history.prefixes(settled, &contents) else { return };
        let brief = |content: &Content| content.as_ref().map(|(value, expiry_s)| (value.len(), *expiry_s));
        let states = history.states.get(&key).into_iter().flatten();
        let states: Vec<_> = states.map(|(number, content)| (*number, brief(content))).collect();
        let content = brief(&contents[usize::from(key)]);
        panic!(
            "seed {seed}: no prefix of the changes from {settled} on: keys before {key} exclude {content:?} of {states:?}"
        );
    }

    /// Some of the contents that a power cut may leave now.
    fn check_some(&self, bench: &mut Bench, history: &History, random: &mut SplitMix64, seed: u64) -> usize {
        // No more than this is reported as durable.
        let settled = bench.settled();
        let count = bench.disk.unsure.len();
        let bits = random.draw();
        let mut images = vec![bench.disk.durable()];
        if count > 0 {
            images.push(bench.disk.cut(|_| true));
            images.push(bench.disk.cut(|at| bits >> (at % 61) & 1 == 1));
        }
        if count > 1 {
            let at = random.below(count as u64) as usize;
            images.push(bench.disk.cut(|other| other < at));
            images.push(bench.disk.cut(|other| other >= at));
            images.push(bench.disk.cut(|other| other == at));
        }
        let image_count = images.len();
        for image in images {
            self.check(image, history, settled, seed);
        }
        image_count
    }

    /// Ends the process, possibly during a write, and recovers the log in a new process. The end of the process makes
    /// no sector durable; the power may fail during the recovery.
    fn kill(&self, mut bench: Bench, history: &mut History, random: &mut SplitMix64, seed: u64) -> Bench {
        let settled = bench.settled();
        let in_flight = bench.write.take().map_or(0, |write| write.length / SECTOR_BYTES);
        let bits = random.draw();
        let disk = bench.disk.kill(in_flight, |at| bits >> (at % 61) & 1 == 1);
        let mut bench = self.open(disk);
        while !bench.log.is_ready() {
            assert!(bench.step(), "seed {seed}: {:?}", bench.log.failure());
            if random.below(8 * self.cut_every) == 0 {
                let bits = random.draw();
                let image = bench.disk.cut(|at| bits >> (at % 61) & 1 == 1);
                self.check(image, history, settled, seed);
            }
        }
        history.restart(&mut bench, self.key_count);
        bench
    }

    /// Runs a history and cuts the power after its steps.
    fn run(&self, seed: u64) -> Run {
        let mut random = SplitMix64::new(seed * 2 + 1);
        let mut history = History::default();
        let mut bench = self.open(Disk::new(&self.settings));
        bench.recover();
        let mut state_count = 0;
        for round in 0..self.rounds {
            if self.is_late && bench.late.is_none() {
                bench.late = Some(Late::new(seed ^ round << 32));
            }
            for _ in 0..random.below(self.changes_max + 1) {
                self.change(&mut bench, &mut history, &mut random);
            }
            if random.below(8) == 0 {
                bench.log.request_flush(&mut bench.processor);
            }
            for _ in 0..random.below(5) {
                bench.step();
                if random.below(self.cut_every) == 0 {
                    state_count += self.check_some(&mut bench, &history, &mut random, seed);
                }
            }
            // Each start takes a segment.
            let may_restart = bench.log.usable_count() > 1;
            match random.below(if self.is_late { 400 } else { 40 }) {
                0 | 1 if may_restart => {
                    // The run continues with the image of a power cut.
                    let settled = bench.settled();
                    let bits = random.draw();
                    let image = bench.disk.cut(|at| bits >> (at % 61) & 1 == 1);
                    bench = self.check(image, &history, settled, seed);
                    history.restart(&mut bench, self.key_count);
                }
                2 | 3 if may_restart => bench = self.kill(bench, &mut history, &mut random, seed),
                _ => {}
            }
        }
        bench.log.request_flush(&mut bench.processor);
        bench.settle();
        assert_eq!(bench.settled(), bench.count(), "seed {seed}");
        assert!(bench.log.failure().is_none());
        let count = bench.count();
        self.judge(&mut bench, &history, count, seed);
        let image = bench.disk.durable();
        self.check(image, &history, count, seed);
        Run { state_count, late: bench.late }
    }
}

fn small(sync: Sync) -> Workload {
    Workload {
        settings: settings(sync),
        memory_bytes: 1 << 20,
        key_count: 6,
        lengths: &[3, 20, 200, 700, 1000],
        rounds: 60,
        changes_max: 3,
        cut_every: 1,
        is_late: false,
        collides: false,
    }
}

#[test]
fn what_was_acknowledged_is_there_after_every_cut_when_answers_wait() {
    let state_count: usize = (0..20).map(|seed| small(Sync::Always).run(seed).state_count).sum();
    println!("{state_count} states");
}

#[test]
fn what_was_flushed_is_there_after_every_cut_when_nothing_waits() {
    let state_count: usize = (100..120).map(|seed| small(Sync::None).run(seed).state_count).sum();
    println!("{state_count} states");
}

/// Live records take most of what they may, so that segments are freed all the time.
#[test]
fn what_was_acknowledged_is_there_after_every_cut_while_segments_are_freed() {
    for sync in [Sync::Always, Sync::None] {
        let full = Workload { key_count: 60, rounds: 150, changes_max: 60, cut_every: 3, ..small(sync) };
        let state_count: usize = (200..215).map(|seed| full.run(seed).state_count).sum();
        println!("{state_count} states, {sync:?}");
    }
}

/// Values are fetched, and segments cleaned, while their keys change, leave memory and are rewritten: reads end late, in
/// any order, also once their segment was freed or written again. Many values are of two segments.
#[test]
fn what_was_acknowledged_is_there_after_every_cut_while_reads_end_late() {
    let (mut overtaken_count, mut fetches_max) = (0, 0);
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let late = Workload {
            lengths: &[100, 600, 800, 1000],
            key_count: 40,
            rounds: 300,
            changes_max: 12,
            cut_every: 60,
            is_late: true,
            ..small(sync)
        };
        for seed in 612..624 {
            let Some(late) = late.run(seed).late else { continue };
            overtaken_count += late.overtaken_count;
            fetches_max = fetches_max.max(late.fetches_max);
        }
    }
    println!("{overtaken_count} reads were overtaken, {fetches_max} values were fetched at once");
    assert!(overtaken_count > 20 && fetches_max > 5);
}

/// Keys with one hash each: none stands for another.
#[test]
fn what_was_acknowledged_is_there_after_every_cut_when_keys_have_one_hash() {
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let colliding =
            Workload { collides: true, lengths: &[3, 200, 700, 1000], key_count: 40, ..small(sync) };
        let full = Workload { rounds: 150, changes_max: 60, cut_every: 3, ..colliding };
        let late = Workload { rounds: 200, changes_max: 12, cut_every: 10, is_late: true, ..colliding };
        let runs = [colliding, full, late]
            .map(|workload| (700..704).map(|seed| workload.run(seed).state_count).sum::<usize>());
        println!("{runs:?} states, {sync:?}");
    }
}

/// Records take several writes each. Meanwhile their keys change, are touched, removed, and leave memory.
#[test]
fn what_was_acknowledged_is_there_after_every_cut_while_records_are_streamed() {
    for sync in [Sync::Always, Sync::None] {
        let small = small(sync);
        let settings =
            LogSettings { segment_bytes: 640 << 12, start: 8192, block_bytes: 4096, ..small.settings };
        let streamed = Workload {
            settings,
            memory_bytes: 6 << 20,
            lengths: &[100, 280_000, 320_000],
            rounds: 120,
            cut_every: 8,
            ..small
        };
        let state_count: usize = (300..301).map(|seed| streamed.run(seed).state_count).sum();
        println!("{state_count} states, {sync:?}");
    }
}

/// Values of two segments, some of which leave memory.
#[test]
fn what_was_acknowledged_is_there_after_every_cut_while_values_take_two_segments() {
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let long = Workload { lengths: &[600, 800, 1000], key_count: 20, rounds: 80, ..small(sync) };
        let state_count: usize = (500..510).map(|seed| long.run(seed).state_count).sum();
        println!("{state_count} states, {sync:?}");
    }
}

/// The values do not fit in memory, so that stores make room, and the index grows.
#[test]
fn what_was_acknowledged_is_there_after_every_cut_while_values_leave_memory() {
    for sync in [Sync::Always, Sync::None] {
        let small = small(sync);
        let short = Workload {
            settings: LogSettings { segment_bytes: 256 << 10, ..small.settings },
            key_count: 1500,
            lengths: &[300, 600, 1200],
            rounds: 80,
            changes_max: 200,
            cut_every: 20,
            ..small
        };
        let state_count = short.run(400).state_count;
        println!("{state_count} states, {sync:?}");
    }
}

/// Every state of every write: all its prefixes, suffixes, each sector alone and each missing, and every combination
/// for few sectors. With batches of keys, with values that take several writes, and starting from an earlier power cut.
#[test]
fn what_was_acknowledged_is_there_however_a_write_is_torn() {
    let few = Workload { lengths: &[3, 200, 700, 1000], rounds: 12, ..small(Sync::Always) };
    // Values up to 300 KiB: a record takes several pieces.
    let settings = LogSettings { segment_bytes: 640 << 12, start: 8192, block_bytes: 4096, ..few.settings };
    let large = Workload { settings, memory_bytes: 8 << 20, lengths: &[100, 300_000], rounds: 2, ..few };
    for sync in [Sync::Always, Sync::Batch] {
        for (workload, seeds) in [(few, 4), (large, 1)] {
            let workload = Workload { settings: LogSettings { sync, ..workload.settings }, ..workload };
            let state_count: usize = (1..=seeds).map(|seed| workload.tear(seed)).sum();
            println!("{state_count} states, segments of {} bytes, {sync:?}", workload.settings.segment_bytes);
        }
    }
}

impl Workload {
    /// Runs a history and cuts the power in every state of each write.
    fn tear(&self, seed: u64) -> usize {
        let mut random = SplitMix64::new(seed * 2 + 1);
        let mut bench = self.open(Disk::new(&self.settings));
        bench.recover();
        let mut history = History::default();
        let mut state_count = 0;
        for _ in 0..self.rounds {
            // A batch: all of it is recorded before any of it is written.
            for _ in 0..=random.below(self.lengths.len() as u64) {
                let key = random.below(self.key_count.into()) as u16;
                let length = self.lengths[random.below(self.lengths.len() as u64) as usize];
                let value: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                assert!(bench.set_at_last(key, &value));
                history.note(key, bench.count(), Some((value, 0)));
            }
            loop {
                let settled = bench.settled();
                for image in torn(&bench.disk) {
                    state_count += 1;
                    self.check(image, &history, settled, seed);
                }
                if !bench.step() {
                    break;
                }
            }
            if random.below(4) == 0 {
                // Continue with a log whose last write is torn.
                assert!(bench.set_at_last(0, &[9; 900]));
                history.note(0, bench.count(), Some((vec![9; 900], 0)));
                bench.step();
                let settled = bench.settled();
                let image = bench.disk.cut(|at| at % 2 == 0);
                bench = self.check(image, &history, settled, seed);
                history.restart(&mut bench, self.key_count);
            }
        }
        state_count
    }
}

/// Possible contents after a power cut: every combination of few sectors; of many, those torn at one position or
/// missing one sector.
fn torn(disk: &Disk) -> Vec<Vec<u8>> {
    let count = disk.unsure.len();
    if count <= 6 {
        return (0..1u32 << count).map(|kept| disk.cut(|at| kept >> at & 1 == 1)).collect();
    }
    // For long writes only some are checked: the first and the last sectors, and a few between.
    let is_looked_at = |at: &usize| *at < 2 || *at + 2 >= count || at.is_multiple_of(count / 4 + 1);
    let places: Vec<_> = (0..count).filter(is_looked_at).collect();
    let mut images = vec![disk.cut(|_| false), disk.cut(|_| true)];
    for at in places {
        images.push(disk.cut(|other| other < at));
        images.push(disk.cut(|other| other >= at));
        images.push(disk.cut(|other| other == at));
        images.push(disk.cut(|other| other != at));
    }
    images
}

/// A segment is freed although a key, whose only durable record is in it, has a newer value that is not yet durable.
#[test]
fn a_record_stays_until_the_one_that_replaces_it_is_durable() {
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let workload = Workload { key_count: 41, ..small(sync) };
        let mut cleaned_count = 0;
        for before in 40..80 {
            let mut history = History::default();
            let mut bench = Bench::open(workload.settings, Disk::new(&workload.settings));
            bench.recover();
            let mut set = |bench: &mut Bench, key: u16, value: Vec<u8>| {
                assert!(bench.set_at_last(key, &value));
                history.note(key, bench.count(), Some((value, 0)));
            };
            set(&mut bench, 0, vec![1; 100]);
            for number in 0..before {
                set(&mut bench, 1 + number % 20, vec![number as u8; 900]);
                bench.log.request_flush(&mut bench.processor);
                bench.settle();
            }
            for number in 0..20 {
                set(&mut bench, 1 + number, vec![number as u8; 900]);
            }
            set(&mut bench, 0, vec![2; 100]);
            while bench.step() {
                let settled = bench.settled();
                for image in [bench.disk.durable(), bench.disk.cut(|_| true)] {
                    workload.check(image, &history, settled, before.into());
                }
            }
            cleaned_count += bench.log.counters().cleaned_count;
        }
        assert!(cleaned_count > 0);
    }
}

/// The end of the process takes the group being written, and the one that is collected meanwhile, of changes that are
/// answered at once.
#[test]
fn a_kill_takes_two_groups_at_most() {
    let mut random = SplitMix64::new(9);
    for sync in [Sync::Batch, Sync::None] {
        let settings = LogSettings { segment_bytes: 2 << 20, ..settings(sync) };
        let mut most = 0;
        for round in 0..20 {
            let mut bench = Bench::open_with(settings, Disk::new(&settings), 32 << 20);
            bench.recover();
            let mut record_bytes = Vec::new();
            for step in 0..10 + random.below(20) {
                if step > 0 {
                    bench.step();
                }
                // As many as the log admits before it goes on.
                loop {
                    let (key, value) =
                        (record_bytes.len().to_be_bytes(), vec![7; random.below(20_000) as usize]);
                    if !bench.log.admits(&mut bench.processor, key.len() + value.len()) {
                        break;
                    }
                    assert_eq!(bench.set(&key, &value), Stored::Done);
                    record_bytes.push(RECORD_EXTRA_BYTES + key.len() + value.len());
                }
            }
            let in_flight = bench.write.map_or(0, |write| write.length / SECTOR_BYTES);
            let mut again = Bench::open_with(settings, bench.disk.kill(in_flight, |_| false), 32 << 20);
            again.recover();
            let is_there: Vec<bool> =
                (0..record_bytes.len()).map(|at| again.value(&at.to_be_bytes()).is_some()).collect();
            let survived = is_there.iter().take_while(|is_there| **is_there).count();
            assert!(!is_there[survived..].contains(&true), "{sync:?}, round {round}: in their order");
            let lost_bytes: usize = record_bytes[survived..].iter().sum();
            assert!(lost_bytes <= 2 * PIECE_BYTES, "{sync:?}, round {round}: {lost_bytes} bytes");
            most = most.max(lost_bytes);
        }
        assert!(most > PIECE_BYTES, "{sync:?}: a kill in the worst moment takes more than one group");
    }
}
