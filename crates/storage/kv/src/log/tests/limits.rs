//! Numbers that grow as long as a log lives, near the largest that they can have.

use std::collections::BTreeSet;

use super::*;
use crate::item::{CAS_MAX, EXPIRY_MAX};

/// CAS numbers of values that were lost with the power are not given again, also if nothing else was ever written.
#[test]
fn a_cas_number_of_a_lost_value_is_not_given_again() {
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let settings = settings(sync);
        let (mut disk, mut last) = (Disk::new(&settings), 0);
        for start in 0..5 {
            let mut bench = Bench::open(settings, disk);
            bench.recover();
            let first = bench.processor.writer.next_cas;
            assert!(first > last, "{sync:?}, start {start}: {first} after {last}");
            bench.set(b"k", b"v");
            last = bench.processor.writer.next_cas;
            disk = Disk::of(bench.disk.durable());
        }
    }
}

/// Numbers go on beyond the largest that a pair can have, and over one that a client chose.
#[test]
fn no_cas_number_is_given_again_beyond_the_largest() {
    for chosen in [None, Some(CAS_MAX), Some(CAS_MAX / 2)] {
        let settings = settings(Sync::Always);
        let (mut disk, mut given) = (Disk::new(&settings), BTreeSet::new());
        for start in 0..5u64 {
            let mut bench = Bench::open(settings, disk);
            bench.recover();
            if start == 0 && chosen.is_none() {
                bench.processor.writer.next_cas = CAS_MAX - 2 * (1 << 24);
            }
            for number in 0..20u8 {
                assert_eq!(bench.set(b"key", &[number; 30]), Stored::Done);
                let hash = bench.processor.hash(b"key");
                let cas = bench.processor.cas(hash, b"key").expect("it is an item");
                assert!(cas <= CAS_MAX && given.insert(cas), "{chosen:?}, start {start}: {cas} again");
                let stored = |bench: &mut Bench, cas| {
                    let condition = Condition::Unchanged(cas);
                    bench.processor.store(hash, b"key", b"new", Attributes::default(), condition)
                };
                let next = (cas + 1) & CAS_MAX;
                assert_eq!(
                    (stored(&mut bench, next), stored(&mut bench, cas)),
                    (Stored::Exists, Stored::Done)
                );
                given.insert(bench.processor.cas(hash, b"key").expect("it is an item"));
                if number < 10 {
                    bench.settle();
                }
            }
            if let (Some(cas), 0) = (chosen, start) {
                bench.set(b"chosen", b"v");
                let hash = bench.processor.hash(b"chosen");
                bench.processor.set_cas(hash, b"chosen", cas);
                bench.settle();
            }
            // What was stored last is lost.
            disk = Disk::of(bench.disk.durable());
        }
    }
}

/// The latest expiry that a pair can have comes, and a later one never does, also after a start.
#[test]
fn an_expiry_later_than_the_latest_never_comes() {
    let latest_s = i64::from(EXPIRY_MAX - Clock::FIRST_S);
    for (restarts_s, is_long) in [(None, true), (Some(0), true), (Some(latest_s - 5), true), (None, false)] {
        let settings = settings(Sync::Always);
        let mut bench = Bench::open(settings, Disk::new(&settings));
        bench.recover();
        let value: &[u8] = if is_long { &[7; 300] } else { b"short" };
        for (key, expiry_s) in
            [(b"latest", EXPIRY_MAX), (b"beyond", EXPIRY_MAX + 1), (b"extrem", u32::MAX), (b"set-on", 0)]
        {
            let (hash, attributes) = (bench.processor.hash(key), Attributes { flags: 0, expiry_s });
            let stored = bench.processor.store(hash, key, value, attributes, Condition::Always);
            assert_eq!(stored, Stored::Done);
        }
        let hash = bench.processor.hash(b"set-on");
        assert!(bench.processor.set_expiry(hash, b"set-on", EXPIRY_MAX + 1));
        bench.settle();
        if let Some(seconds) = restarts_s {
            bench.processor.pairs_mut().clock.set(after(seconds));
            bench = Bench::open(settings, Disk::of(bench.disk.durable()));
            bench.processor.pairs_mut().clock = Clock::at(after(seconds));
            bench.recover();
        }
        for (seconds, has_latest) in [(latest_s - 1, true), (latest_s, false), (2 * latest_s, false)] {
            bench.processor.pairs_mut().clock.set(after(seconds));
            let has = |bench: &mut Bench, key: &[u8]| bench.value(key).is_some();
            assert_eq!(has(&mut bench, b"latest"), has_latest, "start {restarts_s:?}, {seconds} s");
            for key in [b"beyond", b"extrem", b"set-on"] {
                assert!(has(&mut bench, key), "start {restarts_s:?}, {seconds} s: {key:?}");
                let place = bench.processor.find(bench.processor.hash(key), key).expect("just found");
                assert_eq!(bench.processor.attributes(place).expiry_s, 0, "it never expires");
            }
        }
    }
}
