//! A log that is full of current records: it says so, cleaning goes on, and nothing is lost.

use super::full_memory::{Full, Mix};
use super::*;

/// A log of 8 MiB.
fn settings_of(sync: Sync) -> LogSettings {
    LogSettings { segment_bytes: 64 << 10, segment_count: 128, ..settings(sync) }
}

/// Fills a log with values of these lengths, replaces some, and starts again. Returns the share of it that records fill.
fn share(sync: Sync, value_bytes: &'static [usize], memory_bytes: usize) -> f64 {
    let settings = settings_of(sync);
    let mut full = Full::new(settings, memory_bytes, Mix { key_bytes: &[10, 40], value_bytes }, 3);
    let count = full.fill(0);
    let counters = full.bench.processor.counters();
    assert!(counters.log_full_count >= 20, "{value_bytes:?}: {counters:?}");
    let room = full.bench.processor.log_room().expect("there is a log");
    let before = full.bench.log.counters();
    for _ in 0..1000 {
        let number = full.random.below(count.into()) as u32;
        full.store(number);
    }
    full.bench.settle();
    let after = full.bench.log.counters();
    println!(
        "{sync:?} {value_bytes:?}: {} pairs, {room:?}, {} bytes and {} segments for 1000 stores",
        full.pairs.len(),
        after.written_bytes - before.written_bytes,
        after.cleaned_count - before.cleaned_count
    );
    full.restart();
    full.check_all();
    room.live_bytes as f64 / (settings.segment_count * settings.segment_bytes) as f64
}

#[test]
fn nine_tenths_of_a_log_are_for_records_of_any_mix_of_lengths() {
    for (sync, value_bytes) in [
        (Sync::Always, &[400][..]),
        (Sync::Batch, &[500, 900]),
        (Sync::None, &[200, 300, 1000]),
        (Sync::Always, &[1000]),
        (Sync::Always, &[16 << 10]),
        (Sync::None, &[16 << 10, 9000, 100]),
        (Sync::Batch, &[13 << 10]),
    ] {
        let share = share(sync, value_bytes, 8 << 20);
        assert!(share > 0.89, "{share} of {value_bytes:?}");
    }
}

#[test]
fn a_full_log_is_cleaned_in_little_memory() {
    let memory_bytes = Settings::memory_bytes_min_with_log(settings_of(Sync::Always).value_bytes_max());
    let share = share(Sync::Batch, &[3000, 4000], memory_bytes * 5 / 4);
    assert!(share > 0.6, "{share}");
}

#[test]
fn a_full_log_that_is_left_alone_is_not_cleaned_without_end() {
    let mut full =
        Full::new(settings_of(Sync::Always), 8 << 20, Mix { key_bytes: &[10], value_bytes: &[900] }, 5);
    full.fill(0);
    full.bench.settle();
    let before = full.bench.log.counters();
    full.bench.settle();
    assert_eq!(full.bench.log.counters(), before);
}

/// Pairs that have expired are no reason to refuse others.
#[test]
fn expired_pairs_make_room_in_a_full_log() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open_with(settings, Disk::new(&settings), 4 << 20);
    bench.recover();
    let expiry_s = bench.processor.now_s() + 100;
    let store = |bench: &mut Bench, number: u32, expiry_s| {
        let key = number.to_le_bytes();
        let hash = bench.processor.hash(&key);
        let attributes = Attributes { flags: 0, expiry_s };
        let stored = bench.processor.store(hash, &key, &[7; 900], attributes, Condition::Always);
        bench.settle();
        stored
    };
    let mut count = 0;
    while store(&mut bench, count, if count % 2 == 0 { expiry_s } else { 0 }) == Stored::Done {
        count += 1;
    }
    assert_eq!(store(&mut bench, count, 0), Stored::LogFull);
    bench.processor.set_now(expiry_s + 1);
    let more = (count..2 * count).take_while(|&number| store(&mut bench, number, 0) == Stored::Done).count();
    assert!(more as u32 >= count / 2 - 1, "{more} of {count}");
}
