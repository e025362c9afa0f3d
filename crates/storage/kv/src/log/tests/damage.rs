//! Every wrong bit and every missing end of a small log: it is refused, harmless or told, and what is repaired has no
//! older version of any key.

use std::collections::BTreeSet;

use super::*;
use crate::key::name_of;

/// The contents of a log, by key.
type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

const KEY_COUNT: u8 = 12;

fn name(key: u8) -> Vec<u8> {
    vec![b'k', key]
}

fn pairs(bench: &mut Bench) -> Pairs {
    let names = (0..KEY_COUNT).map(name);
    names.filter_map(|name| Some((name.clone(), bench.value(&name)?))).collect()
}

/// A log of two starts, with replaced and removed pairs, all removed once, and values of several blocks. The first
/// start ended cleanly. Returns its disk with its contents, and its contents without its last write.
fn damageable(is_stopped: bool) -> (Vec<u8>, Pairs, Pairs) {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    let mut random = SplitMix64::new(3);
    let mut store = |bench: &mut Bench, key: u8, length: usize| {
        let value: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        assert_eq!(bench.set(&name(key), &value), Stored::Done);
    };
    for key in 0..KEY_COUNT {
        store(&mut bench, key, 30);
        bench.settle();
    }
    bench.processor.clear();
    bench.settle();
    for round in 0..2 {
        for key in 0..8 {
            store(&mut bench, key, [20, 700, 3][usize::from(key % 3)]);
            if key % 2 == round {
                bench.settle();
            }
        }
    }
    bench.log.stop();
    bench.settle();
    let mut bench = Bench::open(settings, Disk::of(bench.disk.durable()));
    bench.recover();
    for key in 0..4 {
        store(&mut bench, 2 * key, 40 + 300 * usize::from(key));
        let hash = bench.processor.hash(&name(1));
        bench.processor.delete(hash, &name(1));
        bench.settle();
    }
    if !is_stopped {
        bench.log.mark();
        bench.settle();
        store(&mut bench, 9, 60);
        bench.settle();
        store(&mut bench, 10, 600);
        bench.settle();
    }
    let before = pairs(&mut bench);
    if is_stopped {
        bench.log.stop();
    } else {
        store(&mut bench, 0, 700);
        store(&mut bench, 11, 5);
    }
    bench.settle();
    let after = pairs(&mut bench);
    assert!(bench.log.segments.iter().any(|segment| segment.rest_at > 0), "a value of two segments");
    (bench.disk.durable(), after, before)
}

pub(super) fn read_of(image: &[u8]) -> impl FnMut(u64, &mut [u8]) -> std::io::Result<()> {
    move |offset, into| {
        into.fill(0);
        let there = image.get(offset as usize..).unwrap_or_default();
        let count = there.len().min(into.len());
        into[..count].copy_from_slice(&there[..count]);
        Ok(())
    }
}

/// What a start makes of an image.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    Refused,
    /// The pairs, and the keys whose values are lost.
    Serves(Pairs, BTreeSet<Vec<u8>>),
}

fn start(image: &[u8]) -> (Start, Vec<Notice>) {
    start_with(image, 1 << 20)
}

fn start_with(image: &[u8], memory_bytes: usize) -> (Start, Vec<Notice>) {
    let mut bench = Bench::open_with(settings(Sync::Always), Disk::of(image.to_vec()), memory_bytes);
    while !bench.log.is_ready() && bench.step() {}
    let notices = std::iter::from_fn(|| bench.log.next_notice()).collect();
    if !bench.log.is_ready() {
        return (Start::Refused, notices);
    }
    let (pairs, lost) = contents(&mut bench);
    (Start::Serves(pairs, lost), notices)
}

/// The pairs of a partition, and the keys whose values are lost.
fn contents(bench: &mut Bench) -> (Pairs, BTreeSet<Vec<u8>>) {
    let names = (0..KEY_COUNT).map(name);
    let (lost, others): (Vec<_>, Vec<_>) = names.partition(|name| bench.is_lost(name));
    let pairs = others.into_iter().filter_map(|name| Some((name.clone(), bench.value(&name)?)));
    (pairs.collect(), lost.into_iter().collect())
}

impl Bench {
    /// Whether the value of a key is lost: commands that need it are refused.
    pub(super) fn is_lost(&mut self, key: &[u8]) -> bool {
        let hash = self.processor.hash(key);
        if !self.processor.is_stub(hash, key) {
            return false;
        }
        self.log.fetch(&mut self.processor, key);
        loop {
            let is_at_work = self.step();
            if let Some(loaded) = self.log.next_loaded() {
                assert!(matches!(loaded.result, Ok(()) | Err(FetchError::Damaged)) && *loaded.key == *key);
                return loaded.result.is_err();
            }
            assert!(is_at_work, "the value is never loaded");
        }
    }
}

/// Judges what a start makes of a damaged image. Returns the number of keys whose values are lost; `None` if it is
/// refused.
fn judge_start(image: &[u8], truth: &Pairs, before: &Pairs, what: &str) -> Option<usize> {
    let (Start::Serves(pairs, lost), notices) = start(image) else {
        let settings = settings(Sync::Always);
        let examined = Examined::read(&settings, image.len() as u64, &mut read_of(image)).expect("memory");
        let is_doubtful = |damage: &Damage| {
            matches!(damage.kind, DamageKind::Superblocks | DamageKind::Header | DamageKind::Segment)
        };
        let is_short = image.len() < Disk::new(&settings).bytes.len();
        let is_right = examined.has_holes() || examined.damages.iter().any(is_doubtful) || is_short;
        assert!(is_right, "{what}: refused, although the rest is certain: {:?}", examined.damages);
        return None;
    };
    let is_dropped = notices.iter().any(|notice| matches!(notice, Notice::Dropped { .. }));
    let is_told = notices.iter().any(|notice| matches!(notice, Notice::Passed { .. }));
    assert!(lost.is_empty() || is_told, "{what}: {lost:?} are lost without a word");
    for (key, value) in &pairs {
        let is_older = is_dropped && before.get(key) == Some(value);
        assert!(truth.get(key) == Some(value) || is_older, "{what}: an older version of {key:?} is served");
    }
    for key in truth.keys().filter(|key| !pairs.contains_key(*key)) {
        let is_older = is_dropped && !before.contains_key(key);
        assert!(lost.contains(key) || is_older, "{what}: {key:?} is gone");
    }
    Some(lost.len())
}

/// Judges what examining and rebuilding make of a damaged image. Returns the keys that are left out.
fn repair(image: &[u8], truth: &Pairs, before: &Pairs, what: &str) -> usize {
    let settings = settings(Sync::Always);
    let examined =
        Examined::read(&settings, image.len() as u64, &mut read_of(image)).expect("memory is read");
    for damage in examined.damages.iter().filter(|damage| damage.kind == DamageKind::Records) {
        let position = (damage.offset - settings.start) % settings.segment_bytes;
        assert!(position + damage.bytes <= settings.segment_bytes, "{what}: {damage:?}");
    }
    let mut kept = examined.keys();
    let named: Vec<Vec<u8>> = kept.iter().map(|kept| kept.key.to_vec()).collect();
    let left_out = kept.iter().filter(|kept| kept.certainty != Certainty::Certain).count();
    kept.retain(|kept| kept.certainty == Certainty::Certain);
    let mut built = vec![0; image.len().max(Disk::new(&settings).bytes.len())];
    let target = LogSettings { run: 99, ..settings };
    let mut write = |offset: u64, bytes: &[u8]| {
        built[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    rebuild(&target, &examined, &kept, &mut read_of(image), &mut write).expect("it fits");
    let (Start::Serves(rebuilt, lost), notices) = start(&built) else {
        panic!("{what}: what was repaired is refused")
    };
    assert!(lost.is_empty() && notices.is_empty(), "{what}: what was repaired is damaged");
    // No superblock names the last write of a killed process. Without it the log ends earlier, and a notice says so.
    let is_dropped = examined.dropped_from.is_some();
    for (key, value) in &rebuilt {
        let is_older = is_dropped && before.get(key) == Some(value);
        assert!(truth.get(key) == Some(value) || is_older, "{what}: an older version of {key:?}");
    }
    for key in truth.keys().filter(|key| !rebuilt.contains_key(*key)) {
        let is_told = named.contains(key)
            || examined.has_holes()
            || examined.unknown_names().contains(&name_of(key))
            || is_dropped;
        assert!(is_told, "{what}: {key:?} is lost without a word");
    }
    left_out
}

/// Bytes in use: superblocks, headers and records, with whether they are of a value.
fn in_use(image: &[u8]) -> Vec<usize> {
    let settings = settings(Sync::Always);
    let is_used = |at: &usize| {
        let block = at / SECTOR_BYTES * SECTOR_BYTES;
        image[block..block + SECTOR_BYTES].iter().any(|&byte| byte != 0)
            && *at < (settings.start + settings.segment_count * settings.segment_bytes) as usize
    };
    (0..image.len()).filter(is_used).collect()
}

/// Judges wrong bits of a log: `bits_of` gives those of each byte. Returns their number.
fn judge_wrong_bits(is_stopped: bool, bits_of: impl Fn(usize) -> Range<usize>) -> usize {
    let (image, truth, before) = damageable(is_stopped);
    assert_eq!(start(&image).0, Start::Serves(truth.clone(), BTreeSet::new()));
    assert_eq!(repair(&image, &truth, &before, "undamaged"), 0);
    let (mut refused, mut harmless, mut lost, mut left_out) = (0, 0, 0, 0);
    for at in in_use(&image) {
        for bit in bits_of(at) {
            let mut image = image.clone();
            image[at] ^= 1 << bit;
            let what = format!("byte {at} bit {bit}");
            match judge_start(&image, &truth, &before, &what) {
                None => refused += 1,
                Some(0) => harmless += 1,
                Some(count) => {
                    assert_eq!(count, 1, "{what}: one wrong bit costs one key");
                    lost += 1;
                }
            }
            let count = repair(&image, &truth, &before, &what);
            assert!(count <= 1, "{what}: one wrong bit costs {count} keys");
            left_out += count;
        }
    }
    let all = refused + harmless + lost;
    println!(
        "stopped {is_stopped}: of {all} wrong bits {refused} refused, {harmless} cost nothing, {lost} one key; \
         repair left {left_out} keys out"
    );
    assert!(refused == 0 && lost > 1000 && harmless > 100);
    all
}

/// One bit of every second byte, and all bits of each 64th byte.
fn some_bits(at: usize) -> Range<usize> {
    match at % 64 {
        0 => 0..8,
        odd if odd % 2 == 1 => at / 8 % 8..at / 8 % 8 + 1,
        _ => 0..0,
    }
}

#[test]
fn every_wrong_bit_of_a_stopped_log_is_refused_or_harmless() {
    judge_wrong_bits(true, some_bits);
}

#[test]
fn every_wrong_bit_of_a_log_in_use_is_refused_harmless_or_told() {
    judge_wrong_bits(false, some_bits);
}

#[test]
#[ignore = "takes minutes: cargo test -p nvlane-kv --lib all_wrong_bits -- --ignored"]
fn all_wrong_bits_are_refused_harmless_or_told() {
    let counts = [true, false].map(|is_stopped| judge_wrong_bits(is_stopped, |_| 0..8));
    println!("{} wrong bits", counts[0] + counts[1]);
}

/// Judges a log that ends early: at each of `ends`.
fn judge_missing_ends(is_stopped: bool, ends: impl Fn(&[u8]) -> Vec<usize>) -> usize {
    let (image, truth, before) = damageable(is_stopped);
    let ends = ends(&image);
    let left_out: usize =
        ends.iter().map(|&end| repair(&image[..end], &truth, &before, &format!("cut at {end}"))).sum();
    println!("stopped {is_stopped}: {} missing ends, {left_out} keys left out", ends.len());
    assert!(left_out > 0);
    ends.len()
}

#[test]
fn every_missing_end_is_repaired_without_older_versions() {
    for is_stopped in [true, false] {
        judge_missing_ends(is_stopped, |image| {
            (0..image.len()).filter(|end| [0, 1, SECTOR_BYTES - 1].contains(&(end % SECTOR_BYTES))).collect()
        });
    }
}

/// The end of a segment that the disk has lost, as if it had never been written. Behind what a superblock says, the end
/// of the newest one would not be missed: the log was stopped, so nothing is.
#[test]
fn a_segment_without_its_end_serves_no_older_versions() {
    let settings = settings(Sync::Always);
    let (image, truth, before) = damageable(true);
    let used: BTreeSet<usize> = in_use(&image).into_iter().map(|at| at / SECTOR_BYTES).collect();
    let (mut refused_count, mut count) = (0, 0);
    for sector in used.into_iter().map(|sector| sector * SECTOR_BYTES) {
        let Some(in_log) = (sector as u64).checked_sub(settings.start) else { continue };
        let left = settings.segment_bytes - in_log % settings.segment_bytes;
        let mut damaged = image.clone();
        damaged[sector..sector + left as usize].fill(0);
        let what = format!("nothing from byte {sector} of its segment on");
        refused_count += usize::from(judge_start(&damaged, &truth, &before, &what).is_none());
        repair(&damaged, &truth, &before, &what);
        count += 1;
    }
    println!("{refused_count} of {count} lost ends are refused");
}

#[test]
#[ignore = "takes minutes: cargo test -p nvlane-kv --lib all_missing_ends -- --ignored"]
fn all_missing_ends_are_repaired_without_older_versions() {
    let counts = [true, false].map(|is_stopped| judge_missing_ends(is_stopped, in_use));
    println!("{} missing ends", counts[0] + counts[1]);
}

/// A sector of a value that takes two segments costs its key, in whichever of them it is.
#[test]
fn a_value_of_two_segments_is_lost_with_any_sector_of_it() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    let (mut key, mut before) = (0, Pairs::new());
    while bench.log.segments.back().is_none_or(|head| head.rest_at == 0) {
        key += 1;
        assert_eq!(bench.set(&name(key), &[key; 700]), Stored::Done);
        bench.settle();
    }
    let (head, begun_at) = (bench.log.segments[bench.log.segments.len() - 1], {
        let hash = bench.processor.hash(&name(key));
        let item = bench.processor.pairs_mut().item(hash, &name(key)).expect("just stored");
        bench.processor.pairs().log_offset(item).expect("it is written") as usize
    });
    let rest_at = (bench.log.slot_start(head.slot) + head.rest_at) as usize;
    // The names of the last write are in another one, and in the superblock.
    for round in 0..3 {
        if round == 2 {
            before = pairs(&mut bench);
        }
        assert_eq!(bench.set(&name(0), &[round; 30]), Stored::Done);
        bench.settle();
    }
    bench.log.stop();
    bench.settle();
    let (image, truth) = (bench.disk.durable(), pairs(&mut bench));
    let left = settings.segment_bytes as usize
        - (begun_at - settings.start as usize) % settings.segment_bytes as usize;
    let parts = [begun_at..begun_at + left, rest_at..rest_at + 2 * RECORD_EXTRA_BYTES + 4 + 700 - left];
    for part in parts {
        for sector in part.start / SECTOR_BYTES..part.end.div_ceil(SECTOR_BYTES) {
            for fill in [0, 0xff] {
                let mut damaged = image.clone();
                damaged[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES].fill(fill);
                let what = format!("sector {sector} of {part:?} filled with {fill:#x}");
                let lost = judge_start(&damaged, &truth, &before, &what);
                assert!(matches!(lost, Some(1..=2)), "{what}: {lost:?}");
                // With more memory values are read at the start.
                let (Start::Serves(pairs, lost), _) = start_with(&damaged, 4 << 20) else {
                    panic!("{what}: refused")
                };
                let is_right = |(key, value)| pairs.get(key).map_or(lost.contains(key), |it| it == value);
                assert!(truth.iter().all(is_right), "{what}: {lost:?}");
                assert!(repair(&damaged, &truth, &before, &what) <= 2, "{what}");
            }
        }
    }
    assert_eq!(repair(&image, &truth, &before, "undamaged"), 0);
}

/// Sectors that were overwritten take records with them: the keys that were written there are lost, and no others.
#[test]
fn a_damaged_sector_is_known_and_what_it_may_hide_is_not_served() {
    let (image, truth, before) = damageable(true);
    let (mut refused, mut harmless, mut lost, mut left_out) = (Vec::new(), 0, 0, 0);
    let used: BTreeSet<usize> = in_use(&image).into_iter().map(|at| at / SECTOR_BYTES).collect();
    for (sector, fill) in used.iter().flat_map(|&sector| [(sector, 0), (sector, 0xff)]) {
        let mut damaged = image.clone();
        damaged[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES].fill(fill);
        let what = format!("sector {sector} of {fill:#x}");
        match judge_start(&damaged, &truth, &before, &what) {
            None => refused.push(sector),
            Some(0) => harmless += 1,
            Some(count) => lost += count,
        }
        left_out += repair(&damaged, &truth, &before, &what);
    }
    println!(
        "of {} lost sectors {} refused, {harmless} cost nothing, the others {lost} keys; repair left {left_out} keys out",
        2 * used.len(),
        refused.len()
    );
    // Without its header it is not known at once where a segment is. One sector has the removal of all keys.
    let settings = settings(Sync::Always);
    let is_header = |sector: &usize| {
        ((sector * SECTOR_BYTES) as u64 - settings.start).is_multiple_of(settings.segment_bytes)
    };
    refused.retain(|sector| !is_header(sector));
    refused.dedup();
    assert!(refused.len() <= 1, "{refused:?}");
}

/// Every key in a write of its own, each written twice: a sector has one record, and its loss costs one key. It stays lost
/// over restarts, until it is stored again.
#[test]
fn a_lost_sector_costs_the_key_whose_record_it_had() {
    let settings = LogSettings { segment_bytes: 32768, ..settings(Sync::Always) };
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    for round in 0..2_u8 {
        for key in 0..30_u8 {
            assert_eq!(bench.set(&[b'k', key], &[round; 200]), Stored::Done);
            bench.settle();
        }
    }
    bench.log.stop();
    bench.settle();
    let image = bench.disk.durable();
    let sectors = image.len() / SECTOR_BYTES;
    let is_used =
        |sector: &usize| image[sector * SECTOR_BYTES..][..SECTOR_BYTES].iter().any(|&byte| byte != 0);
    let first = settings.start as usize / SECTOR_BYTES + 1;
    let used: Vec<usize> = (first..sectors).filter(is_used).collect();
    assert_eq!(used.len(), 60);
    for (at, sector) in used.into_iter().enumerate() {
        let mut damaged = image.clone();
        damaged[sector * SECTOR_BYTES..][..SECTOR_BYTES].fill(0);
        let examined = Examined::read(&settings, image.len() as u64, &mut read_of(&damaged)).expect("memory");
        let doubtful = examined.keys().iter().filter(|kept| kept.certainty != Certainty::Certain).count();
        assert_eq!((doubtful, examined.has_holes()), (at / 30, false), "sector {sector}");
        let mut bench = Bench::open(settings, Disk::of(damaged));
        for starts in 0..3 {
            bench.recover();
            for key in 0..30_u8 {
                let is_lost = at == 30 + usize::from(key);
                assert_eq!(
                    bench.is_lost(&[b'k', key]),
                    is_lost,
                    "sector {sector}, key {key}, start {starts}"
                );
                assert!(is_lost || bench.value(&[b'k', key]) == Some(vec![1; 200]));
            }
            if starts < 2 {
                bench.log.stop();
                bench.settle();
                bench = Bench::open(settings, Disk::of(bench.disk.durable()));
            }
        }
        let key = (at % 30) as u8;
        assert_eq!(bench.set(&[b'k', key], b"again"), Stored::Done);
        bench.settle();
        let mut bench = Bench::open(settings, Disk::of(bench.disk.durable()));
        bench.recover();
        assert_eq!(bench.value(&[b'k', key]), Some(b"again".to_vec()), "sector {sector}");
    }
}

/// The record of a key that was written once is lost, and with it the key: a command that needs it is refused, until the
/// key is stored.
#[test]
fn a_key_of_which_nothing_is_left_is_not_taken_for_absent() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    for key in [b"first", b"other", b"third"] {
        assert_eq!(bench.set(key, &[7; 200]), Stored::Done);
        bench.settle();
    }
    let mut image = bench.disk.durable();
    let at = image.windows(5).position(|window| window == b"other").expect("it is there") / SECTOR_BYTES;
    image[at * SECTOR_BYTES..][..SECTOR_BYTES].fill(0);
    let mut bench = Bench::open(settings, Disk::of(image));
    bench.recover();
    assert_eq!(bench.log.counters().lost_unknown_count, 1);
    assert!(bench.is_lost(b"other") && !bench.is_lost(b"first") && !bench.is_lost(b"never"));
    assert_eq!(bench.set(b"other", b"new"), Stored::Done);
    assert!(!bench.is_lost(b"other"));
    assert_eq!(bench.value(b"other"), Some(b"new".to_vec()));
}

/// Two sectors are lost: those of a write, and of the names of its keys.
#[test]
fn a_sector_without_its_names_closes_the_log() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    for key in 0..8_u8 {
        assert_eq!(bench.set(&[b'k', key], &[key; 200]), Stored::Done);
        bench.settle();
    }
    let mut image = bench.disk.durable();
    let first = settings.start as usize + 3 * SECTOR_BYTES;
    image[first..first + 2 * SECTOR_BYTES].fill(0);
    assert_eq!(start(&image).0, Start::Refused);
    let examined = Examined::read(&settings, image.len() as u64, &mut read_of(&image)).expect("memory");
    let uncertain = examined.keys().iter().filter(|kept| kept.certainty == Certainty::Uncertain).count();
    assert!(examined.has_holes() && uncertain == 2, "{uncertain}");
}

/// A live record is damaged, and its segment is freed: the key stays lost, whether that was known at the start or not.
#[test]
fn a_lost_key_stays_lost_when_its_segment_is_freed() {
    for is_known in [true, false] {
        let settings = settings(Sync::Always);
        let mut bench = Bench::open(settings, Disk::new(&settings));
        bench.recover();
        assert_eq!(bench.set(b"damaged", &[0x5a; 300]), Stored::Done);
        bench.settle();
        let at = bench.disk.bytes.windows(9).position(|window| window == [0x5a; 9]).expect("it is there");
        if is_known {
            let mut image = bench.disk.durable();
            image[at] ^= 1;
            bench = Bench::open(settings, Disk::of(image));
            bench.recover();
            assert_eq!(bench.log.counters().lost_key_count, 1);
        } else {
            bench.disk.bytes[at] ^= 1;
            assert!(bench.processor.writer.allocator.demote_region());
        }
        assert!(bench.is_lost(b"damaged"));
        for round in 0..200_u8 {
            assert_eq!(bench.set(&[b'k', round % 5], &[round; 900]), Stored::Done);
            bench.settle();
        }
        assert!(bench.log.counters().cleaned_count > 10 && bench.log.failure().is_none());
        assert_eq!(bench.log.counters().lost_key_count, 1, "known {is_known}");
        let mut bench = Bench::open(settings, Disk::of(bench.disk.durable()));
        bench.recover();
        assert!(bench.is_lost(b"damaged") && !bench.is_lost(b"k\x01"), "known {is_known}");
        let hash = bench.processor.hash(b"damaged");
        assert!(bench.processor.delete(hash, b"damaged"));
        bench.settle();
        let mut bench = Bench::open(settings, Disk::of(bench.disk.durable()));
        bench.recover();
        assert!(!bench.is_lost(b"damaged") && bench.value(b"damaged").is_none());
    }
}

/// The names of a long write do not fit in a superblock, and are written behind it before the log rests.
#[test]
fn the_names_of_the_last_write_are_known_however_many_they_are() {
    let settings = LogSettings { segment_bytes: 128 << 10, ..settings(Sync::Always) };
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let settings = LogSettings { sync, ..settings };
        let mut bench = Bench::open(settings, Disk::new(&settings));
        bench.recover();
        for key in 0..400_u16 {
            assert_eq!(bench.set(&key.to_le_bytes(), &[3; 30]), Stored::Done);
        }
        for _ in 0..3 {
            bench.settle();
            bench.log.mark();
        }
        bench.settle();
        let mut image = bench.disk.durable();
        let written: Vec<usize> = (settings.start as usize + SECTOR_BYTES..image.len())
            .step_by(SECTOR_BYTES)
            .filter(|&at| image[at..at + SECTOR_BYTES].iter().any(|&byte| byte != 0))
            .collect();
        let at = written[written.len() / 2];
        image[at..at + SECTOR_BYTES].fill(0);
        let mut again = Bench::open(settings, Disk::of(image));
        again.recover();
        let lost = (0..400_u16).filter(|key| again.is_lost(&key.to_le_bytes())).count();
        assert!((1..20).contains(&lost), "{sync:?}: {lost} keys");
        bench.log.stop();
        bench.settle();
        assert!(bench.log.superblock.recorded.is_closed);
    }
}

/// The next segment says which run its records are of.
#[test]
fn records_are_found_without_the_header_of_their_segment() {
    let settings = settings(Sync::Always);
    let (image, truth, before) = damageable(true);
    let first = settings.start as usize;
    let mut damaged = image.clone();
    damaged[first..first + settings.block_bytes as usize].fill(0);
    let examined = Examined::read(&settings, image.len() as u64, &mut read_of(&damaged)).expect("memory");
    let damage = Damage {
        kind: DamageKind::Header,
        generation: 1,
        offset: settings.start,
        bytes: settings.block_bytes,
        key_count: 0,
    };
    assert_eq!(examined.damages, [damage]);
    assert_eq!(repair(&damaged, &truth, &before, "without a header"), 0);
}

/// What is repaired gives no CAS number again that was given before.
#[test]
fn a_repaired_log_goes_on_with_cas_numbers_above_all_others() {
    let settings = settings(Sync::Always);
    let (image, ..) = damageable(true);
    let mut bench = Bench::open(settings, Disk::of(image.clone()));
    bench.recover();
    let names = (0..KEY_COUNT).map(name);
    let cas = names.filter_map(|name| {
        let processor = &mut bench.processor;
        let item = processor.find(processor.hash(&name), &name)?.item()?;
        Some(processor.pairs().heap.header(item).cas)
    });
    let highest = cas.max().expect("there are pairs");
    let examined = Examined::read(&settings, image.len() as u64, &mut read_of(&image)).expect("memory");
    assert!(examined.next_cas() > highest, "{} after {highest}", examined.next_cas());
}

#[test]
fn a_wrong_bit_in_the_header_of_a_freed_segment_costs_nothing() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    for round in 0..100 {
        assert_eq!(bench.set(b"key", &[round; 900]), Stored::Done);
        bench.settle();
    }
    let mut freed = bench.log.free.iter().filter(|(generation, _)| *generation > 0);
    let (_, slot) = freed.next().expect("segments were freed");
    let mut bytes = bench.disk.durable();
    bytes[(settings.start + slot * settings.segment_bytes) as usize + 20] ^= 4;
    let examined = Examined::read(&settings, bytes.len() as u64, &mut read_of(&bytes)).unwrap();
    assert_eq!(examined.damages, []);
    assert_eq!(examined.keys().len(), 1);
}
