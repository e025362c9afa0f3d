//! Reads and writes that end late, in any order: meanwhile keys change, and segments are freed and written again.

use super::super::clean::CleanerState;
use super::*;

/// Reads under way at once.
const READ_COUNT_MAX: usize = 12;

/// Operations under way.
pub(super) struct Late {
    random: SplitMix64,
    /// Reads, each with what was there when it began if it sees that, and the generation of the segment that it reads.
    reads: Vec<(Work, Option<Vec<u8>>, Option<u64>)>,
    /// Reads of values that ended once the segment was freed.
    pub(super) overtaken_count: usize,
    /// The most values that were fetched at once.
    pub(super) fetches_max: usize,
}

impl Late {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: SplitMix64::new(seed), reads: Vec::new(), overtaken_count: 0, fetches_max: 0 }
    }
}

fn is_fetch(work: &Work) -> bool {
    matches!(work, Work::Read { job: Job::Fetch(_), .. })
}

impl Bench {
    /// The generation of the segment that an operation reads.
    fn generation_of(&self, work: &Work) -> Option<u64> {
        let Work::Read { offset, .. } = work else { return None };
        self.log.segment_at(*offset).map(|(segment, _)| segment.generation)
    }

    /// Begins or ends one operation, in any order. Returns whether there was one.
    pub(super) fn step_late(&mut self) -> bool {
        let late = self.late.as_mut().expect("operations end late");
        let choice = late.random.below(5);
        let (count, has_room) = (late.reads.len(), late.reads.len() < READ_COUNT_MAX);
        let at = late.random.below(count.max(1) as u64) as usize;
        // Reads of values take longest, so that much happens meanwhile.
        let is_fetch = late.reads.get(at).is_some_and(|read| is_fetch(&read.0));
        let ends = count > 0 && (!is_fetch || late.random.below(100) == 0);
        match choice {
            0 | 1 if ends => self.end_read(at),
            2 if self.write.is_some() => self.end_write(),
            _ if has_room && self.begin() => {}
            _ if self.write.is_some() => self.end_write(),
            _ if ends => self.end_read(at),
            // Time passes.
            _ if count > 0 => {}
            _ => return self.take_loaded(),
        }
        true
    }

    /// Takes the values that have arrived. Returns whether there were any.
    fn take_loaded(&mut self) -> bool {
        let mut is_any = false;
        while let Some(loaded) = self.log.next_loaded() {
            assert_eq!(loaded.result, Ok(()), "key {:?}", loaded.key);
            is_any = true;
        }
        is_any
    }

    /// Begins an operation, if there is one.
    fn begin(&mut self) -> bool {
        let Some(work) = self.log.next(&mut self.processor) else { return false };
        let generation = self.generation_of(&work);
        let late = self.late.as_mut().expect("operations end late");
        if late.random.below(8) == 0 {
            self.log.put_back(work);
            return true;
        }
        let Work::Read { offset, length, .. } = work else {
            self.carry_out(work);
            return true;
        };
        let bytes = self.disk.read(offset, length);
        let seen = Some(bytes).filter(|_| late.random.below(2) == 0);
        late.reads.push((work, seen, generation));
        let fetch_count = late.reads.iter().filter(|(work, ..)| is_fetch(work)).count();
        late.fetches_max = late.fetches_max.max(fetch_count);
        true
    }

    fn end_read(&mut self, at: usize) {
        let late = self.late.as_mut().expect("operations end late");
        let (work, seen, before) = late.reads.swap_remove(at);
        let is_overtaken = is_fetch(&work) && self.generation_of(&work) != before;
        self.late.as_mut().expect("still").overtaken_count += usize::from(is_overtaken);
        match (work, seen) {
            (Work::Read { job, .. }, Some(bytes)) => {
                self.log.on_read(&mut self.processor, job, Some(&bytes));
            }
            (work, _) => self.carry_out(work),
        }
        if self.late.as_mut().expect("still").random.below(2) == 0 {
            self.take_loaded();
        }
    }
}

/// The last value that a segment waits for is removed before it is read: then nothing is under way whose end would free the
/// segment.
#[test]
fn a_segment_is_freed_once_nothing_of_it_is_wanted_any_more() {
    let mut bench = Bench::open(settings(Sync::Always), Disk::new(&settings(Sync::Always)));
    bench.recover();
    for key in 0..20u8 {
        assert_eq!(bench.set(&[b'k', key], &[key; 900]), Stored::Done);
        bench.settle();
    }
    bench.demote_all();
    let (key, hash) = (b"k\0", bench.processor.hash(b"k\0"));
    // The oldest segment is read, and an earlier value that was fetched is not taken yet.
    bench.log.cleaner.state = CleanerState::Settling;
    bench.log.fetch_for_rewrite(&mut bench.processor, hash, key);
    bench.log.fetches.loaded.push_back(Loaded { key: b"other"[..].into(), result: Ok(()) });
    assert!(bench.processor.delete(hash, key));
    bench.settle();
    assert_eq!((bench.log.cleaner.fetch_count, bench.log.counters().cleaned_count), (1, 0));
    assert!(bench.log.next_loaded().is_some());
    bench.log.next(&mut bench.processor);
    assert_eq!((bench.log.cleaner.fetch_count, bench.log.counters().cleaned_count), (0, 1));
}
