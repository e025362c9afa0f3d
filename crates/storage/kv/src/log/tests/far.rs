//! Logs beyond the addresses of 32 bits, on disks that have only what may be written of them.

use super::*;

const MIB: u64 = 1 << 20;
/// The first address of more than 32 bits.
const BOUNDARY: u64 = 1 << 32;

const KEY_COUNT: u64 = 60;
const LENGTHS: [usize; 4] = [40, 900, 30_000, 100_000];

/// A log of which only some segments are written, and of each only a part.
struct Far {
    settings: LogSettings,
    slots: Range<u64>,
    written_bytes: u64,
}

impl Far {
    fn new(start: u64, segment_bytes: u64, segment_count: u64, slots: Range<u64>) -> Self {
        let shape = LogSettings { start, segment_bytes, segment_count, ..settings(Sync::Always) };
        Self { settings: shape, slots, written_bytes: segment_bytes.min(MIB) }
    }

    /// More than 4,096 segments of a mebibyte. Those around the boundary are the only ones that are free.
    fn of_many_segments() -> Self {
        Self::new(1024, MIB, 4140, 4090..4130)
    }

    /// Segments of which each is written by two starts at most.
    fn of_long_segments() -> Self {
        Self::new(1024, 512 * MIB, 12, 0..12)
    }

    /// The boundary is in its sixth segment: it is not the first log of a file. A part of its segments is never used.
    fn behind_others() -> Self {
        Self::new(BOUNDARY - 5 * MIB - 8192, MIB, 40, 0..14)
    }

    fn slot_start(&self, slot: u64) -> u64 {
        self.settings.start + slot * self.settings.segment_bytes
    }

    fn disk(&self, bytes: Vec<u8>) -> Disk {
        let segments = self.slots.clone().map(|slot| {
            let start = self.slot_start(slot);
            start..start + self.written_bytes
        });
        let superblocks = 0..2 * SECTOR_BYTES as u64;
        Disk::of_parts(bytes, [superblocks].into_iter().chain(segments).collect())
    }

    fn empty(&self) -> Vec<u8> {
        let count = (self.slots.end - self.slots.start) as usize;
        let mut bytes = vec![0; 2 * SECTOR_BYTES + count * self.written_bytes as usize];
        create(self.settings.identity, &mut bytes[..2 * SECTOR_BYTES]);
        bytes
    }

    fn open(&self, bytes: Vec<u8>) -> Bench {
        let least_bytes = Settings::memory_bytes_min_with_log(self.settings.value_bytes_max());
        let mut bench = Bench::open_with(self.settings, self.disk(bytes), least_bytes.max(4 << 20));
        bench.recover();
        bench.log.free.retain(|(_, slot)| self.slots.contains(slot));
        bench
    }

    /// Stores, reads, cleans and restarts. Returns the disk of a log that was stopped, and its contents.
    fn exercise(&self, life_count: u64, round_count: u64) -> (Disk, BTreeMap<u64, Vec<u8>>) {
        let mut bench = self.open(self.empty());
        let (mut random, mut expected) = (SplitMix64::new(9), BTreeMap::new());
        let (mut counters, mut sides) = (LogCounters::default(), [0, 0]);
        for life in 0..life_count {
            for round in 0..round_count {
                for number in 0..4 {
                    let key = random.below(KEY_COUNT);
                    let word = (((life << 16 | round) << 16 | number) << 16 | key) + 1;
                    let length = LENGTHS[random.below(4) as usize];
                    let value: Vec<u8> = word.to_le_bytes().into_iter().cycle().take(length).collect();
                    assert_eq!(bench.set(&name(key), &value), Stored::Done);
                    expected.insert(key, value);
                }
                bench.make_durable();
                let head = bench.log.segments.back().expect("there is a head");
                sides[usize::from(self.slot_start(head.slot) >= BOUNDARY)] += 1;
            }
            bench.demote_all();
            bench.check(&expected, life);
            let LogCounters { fetch_count, cleaned_count, .. } = bench.log.counters();
            counters.fetch_count += fetch_count;
            counters.cleaned_count += cleaned_count;
            if life + 1 == life_count || life % 2 == 0 {
                bench.log.stop();
                bench.settle();
            }
            if life + 1 < life_count {
                bench = self.open(bench.disk.durable());
                bench.check(&expected, life);
            }
        }
        assert!(counters.fetch_count > 20 && counters.cleaned_count > 3, "{counters:?}");
        assert!(sides[0] > 2 && sides[1] > 2, "rounds on both sides of the boundary: {sides:?}");
        (self.disk(bench.disk.durable()), expected)
    }
}

fn name(key: u64) -> [u8; 8] {
    key.to_le_bytes()
}

impl Bench {
    fn make_durable(&mut self) {
        let count = self.log.request_flush(&mut self.processor);
        while self.log.settled(&mut self.processor) < count {
            assert!(self.step(), "changes never become durable: {:?}", self.log.failure());
        }
    }

    fn check(&mut self, expected: &BTreeMap<u64, Vec<u8>>, life: u64) {
        for key in 0..KEY_COUNT {
            let value = self.value(&name(key));
            let is_right = value.as_ref() == expected.get(&key);
            let first = |value: Option<&Vec<u8>>| value.map(|value| (value.len(), value[..8].to_vec()));
            let (got, wanted) = (first(value.as_ref()), first(expected.get(&key)));
            assert!(is_right, "start {life}, key {key}: {got:x?} instead of {wanted:x?}");
        }
    }
}

/// Examines a log, which is whole, and builds it anew behind other logs.
fn examine_and_rebuild(far: &Far, disk: &Disk, expected: &BTreeMap<u64, Vec<u8>>) {
    let mut read = |offset: u64, into: &mut [u8]| {
        disk.read_all(offset, into);
        Ok(())
    };
    let examined =
        Examined::read(&far.settings, far.slot_start(far.settings.segment_count), &mut read).expect("memory");
    let kept = examined.keys();
    assert_eq!((&examined.damages[..], kept.len()), (&[][..], expected.len()));
    assert!(kept.iter().all(|kept| kept.certainty == Certainty::Certain));
    let target = Far::behind_others();
    let mut built = target.disk(target.empty());
    let mut write = |offset: u64, bytes: &[u8]| {
        let at = built.index(offset, bytes.len()).unwrap_or_else(|| panic!("written at {offset:#x}"));
        built.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    let settings = LogSettings { run: 99, ..target.settings };
    rebuild(&settings, &examined, &kept, &mut read, &mut write).expect("it fits");
    let mut bench = target.open(built.durable());
    assert_eq!(bench.log.next_notice(), None);
    bench.check(expected, 0);
}

#[test]
fn a_log_of_many_segments_keeps_what_is_beyond_4_gib() {
    let far = Far::of_many_segments();
    let (disk, expected) = far.exercise(4, 30);
    examine_and_rebuild(&far, &disk, &expected);
}

#[test]
fn a_log_of_long_segments_keeps_what_is_beyond_4_gib() {
    let far = Far::of_long_segments();
    let (disk, expected) = far.exercise(22, 2);
    examine_and_rebuild(&far, &disk, &expected);
}

#[test]
fn a_log_behind_others_keeps_what_is_beyond_4_gib() {
    let far = Far::behind_others();
    let (disk, expected) = far.exercise(4, 30);
    examine_and_rebuild(&far, &disk, &expected);
}
