//! Every wrong bit and every missing end of a small log: it is refused, harmless or told, and what is repaired has no
//! older version of any key.

use super::*;

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
    (bench.disk.durable(), after, before)
}

fn read_of(image: &[u8]) -> impl FnMut(u64, &mut [u8]) -> std::io::Result<()> {
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
    Serves(Pairs),
}

fn start(image: &[u8]) -> (Start, Vec<Notice>) {
    let mut bench = Bench::open_with(settings(Sync::Always), Disk::of(image.to_vec()), 1 << 20);
    while !bench.log.is_ready() && bench.step() {}
    let notices = std::iter::from_fn(|| bench.log.next_notice()).collect();
    if bench.log.is_ready() { (Start::Serves(pairs(&mut bench)), notices) } else { (Start::Refused, notices) }
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
    let Start::Serves(rebuilt) = start(&built).0 else { panic!("{what}: what was repaired is refused") };
    // No superblock names the last write of a killed process. Without it the log ends earlier, and a notice says so.
    let is_dropped = examined.dropped_from.is_some();
    for (key, value) in &rebuilt {
        let is_older = is_dropped && before.get(key) == Some(value);
        assert!(truth.get(key) == Some(value) || is_older, "{what}: an older version of {key:?}");
    }
    for key in truth.keys().filter(|key| !rebuilt.contains_key(*key)) {
        let is_told = named.contains(key) || examined.has_holes() || is_dropped;
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
    assert_eq!(start(&image).0, Start::Serves(truth.clone()));
    assert_eq!(repair(&image, &truth, &before, "undamaged"), 0);
    let (mut refused, mut harmless, mut told, mut left_out) = (0, 0, 0, 0);
    for at in in_use(&image) {
        for bit in bits_of(at) {
            let mut image = image.clone();
            image[at] ^= 1 << bit;
            let what = format!("byte {at} bit {bit}");
            match start(&image) {
                (Start::Refused, _) => refused += 1,
                (Start::Serves(pairs), _) if pairs == truth => harmless += 1,
                (Start::Serves(pairs), notices) => {
                    let is_told = notices.iter().any(|notice| matches!(notice, Notice::Dropped { .. }));
                    let is_known = pairs.iter().all(|(key, value)| {
                        [&truth, &before].iter().any(|known| known.get(key) == Some(value))
                    });
                    assert!(is_told && is_known && !is_stopped, "{what}: {notices:?}");
                    told += 1;
                }
            }
            let count = repair(&image, &truth, &before, &what);
            assert!(count <= 1, "{what}: one wrong bit costs {count} keys");
            left_out += count;
        }
    }
    println!(
        "stopped {is_stopped}: {refused} refused, {harmless} harmless, {told} told; {left_out} lost their value"
    );
    assert!(refused > 1000 && harmless > 100 && (told > 0) != is_stopped);
    refused + harmless + told
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

#[test]
#[ignore = "takes minutes: cargo test -p nvlane-kv --lib all_missing_ends -- --ignored"]
fn all_missing_ends_are_repaired_without_older_versions() {
    let counts = [true, false].map(|is_stopped| judge_missing_ends(is_stopped, in_use));
    println!("{} missing ends", counts[0] + counts[1]);
}

/// Sectors that were overwritten take records with them: what was written before them is uncertain.
#[test]
fn a_damaged_sector_is_known_and_what_it_may_hide_is_not_served() {
    let (image, truth, before) = damageable(true);
    for (sector, fill) in (0..image.len() / SECTOR_BYTES).flat_map(|sector| [(sector, 0), (sector, 0xff)]) {
        let mut damaged = image.clone();
        damaged[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES].fill(fill);
        let what = format!("sector {sector} of {fill:#x}");
        if let Start::Serves(pairs) = start(&damaged).0 {
            assert_eq!(pairs, truth, "{what}");
        }
        repair(&damaged, &truth, &before, &what);
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
