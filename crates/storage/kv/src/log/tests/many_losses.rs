//! Limits of damage in a log: 64 holes are served and 65 are not; 100 notices are kept and further ones counted.

use super::damage::read_of;
use super::*;

const KEY_COUNT: u8 = 140;
const VALUE: [u8; 200] = [0x5a; 200];

fn name(key: u8) -> [u8; 2] {
    [b'k', key]
}

fn shape() -> LogSettings {
    LogSettings { segment_bytes: 128 << 10, ..settings(Sync::Always) }
}

/// A log in which each record has a sector of its own, and where these are, in the order of the keys.
fn written() -> (Vec<u8>, Vec<usize>) {
    let settings = shape();
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    for key in 0..KEY_COUNT {
        assert_eq!(bench.set(&name(key), &VALUE), Stored::Done);
        bench.settle();
    }
    bench.log.stop();
    bench.settle();
    let image = bench.disk.durable();
    let first = settings.start as usize + SECTOR_BYTES;
    let sectors: Vec<usize> = (first..image.len())
        .step_by(SECTOR_BYTES)
        .filter(|&at| image[at..at + SECTOR_BYTES].iter().any(|&byte| byte != 0))
        .collect();
    assert_eq!(sectors.len(), usize::from(KEY_COUNT));
    (image, sectors)
}

/// Every second sector is lost: so many holes, each with the names of its keys behind it.
#[test]
fn a_log_with_64_holes_is_served_and_one_with_65_is_not() {
    let (image, sectors) = written();
    for (hole_count, is_served) in [(64, true), (65, false)] {
        let mut damaged = image.clone();
        for sector in sectors.iter().step_by(2).take(hole_count) {
            damaged[*sector..sector + SECTOR_BYTES].fill(0);
        }
        let examined = Examined::read(&shape(), image.len() as u64, &mut read_of(&damaged)).expect("memory");
        assert_eq!(examined.keys().len(), usize::from(KEY_COUNT) - hole_count, "what can be read is kept");
        let mut bench = Bench::open(shape(), Disk::of(damaged));
        while !bench.log.is_ready() && bench.step() {}
        assert_eq!(bench.log.is_ready(), is_served, "{hole_count} holes: {:?}", bench.log.failure());
        if !is_served {
            assert!(matches!(bench.log.failure(), Some(Failure::Damaged { .. })));
            continue;
        }
        assert_eq!(bench.log.counters().lost_unknown_count, hole_count as u64);
        for key in 0..KEY_COUNT {
            let was_in_hole = key % 2 == 0 && usize::from(key) / 2 < hole_count;
            assert_eq!(bench.is_lost(&name(key)), was_in_hole, "key {key}");
            assert!(was_in_hole || bench.value(&name(key)) == Some(VALUE.to_vec()), "key {key}");
        }
    }
}

/// A damaged value has two notices: its place, and the key that it costs.
#[test]
fn of_more_than_100_notices_the_rest_is_only_counted() {
    let (image, sectors) = written();
    for (damaged_count, told_key_count) in [(50, 50), (51, 49), (120, 0)] {
        let mut damaged = image.clone();
        for sector in &sectors[..damaged_count] {
            let record = &mut damaged[*sector..sector + SECTOR_BYTES];
            let at = record.windows(9).position(|window| window == &VALUE[..9]).expect("it is there");
            record[at + 4] ^= 1;
        }
        let mut bench = Bench::open(shape(), Disk::of(damaged));
        bench.recover();
        let notices: Vec<Notice> = std::iter::from_fn(|| bench.log.next_notice()).collect();
        let key_count = notices.iter().filter(|notice| matches!(notice, Notice::LostKey { .. })).count();
        assert_eq!((notices.len(), key_count), (100, told_key_count), "{damaged_count} damaged values");
        let counters = bench.log.counters();
        assert_eq!(
            (counters.damage_count, counters.lost_key_count),
            (damaged_count as u64, damaged_count as u64)
        );
        // What was told makes room for what comes.
        bench.log.notice(Notice::LostKey { key: b"other"[..].into() });
        assert!(bench.log.next_notice().is_some());
        for key in 0..KEY_COUNT {
            assert_eq!(bench.is_lost(&name(key)), usize::from(key) < damaged_count, "key {key}");
        }
    }
}
