//! Starts at which the wall clock, or nothing, tells how long the target was down.

use super::*;

impl Bench {
    fn store_until(&mut self, key: &[u8], seconds: u32) {
        let hash = self.processor.hash(key);
        let attributes = Attributes { flags: 0, expiry_s: self.processor.now_s() + seconds };
        assert_eq!(self.processor.store(hash, key, &[9; 300], attributes, Condition::Always), Stored::Done);
    }

    fn set_until(&mut self, key: &[u8], seconds: u32) {
        self.store_until(key, seconds);
        self.settle();
    }

    fn set_clock(&mut self, moment: Moment) {
        self.processor.pairs_mut().clock.set(moment);
    }

    /// A start on the same disk at this moment.
    fn start(disk: Vec<u8>, sync: Sync, moment: Moment) -> Self {
        let mut bench = Bench::open(settings(sync), Disk::of(disk));
        bench.processor.pairs_mut().clock = Clock::at(moment);
        bench.recover();
        bench
    }

    fn left_s(&mut self, key: &[u8]) -> Option<u32> {
        let hash = self.processor.hash(key);
        let place = self.processor.find(hash, key)?;
        Some(self.processor.attributes(place).expiry_s - self.processor.now_s())
    }
}

/// A run of 100 s in which a pair expired, one still has 400 s, and the wall clock was set back by an hour: stopped, or
/// ended by a power cut, without a mark after the pairs' own writes or with one.
fn run(sync: Sync, is_stopped: bool) -> Bench {
    let settings = settings(sync);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    bench.set_until(b"short", 50);
    bench.set_until(b"long", 500);
    bench.set_clock(Moment { unix_s: UNIX_S + 60 - 3600, ..after(60) });
    bench.settle();
    bench.set_clock(Moment { unix_s: UNIX_S + 100 - 3600, ..after(100) });
    if is_stopped {
        bench.set(b"last", b"");
        bench.log.stop();
        bench.settle();
    }
    bench
}

#[test]
fn a_start_in_the_same_boot_does_not_look_at_the_wall_clock() {
    for (sync, is_stopped) in [(Sync::Always, false), (Sync::Always, true), (Sync::None, true)] {
        let disk = run(sync, is_stopped).disk.durable();
        for unix_s in [UNIX_S, 0, UNIX_S - 86_400, UNIX_S + 86_400] {
            let mut again = Bench::start(disk.clone(), sync, Moment { unix_s, ..after(150) });
            assert_eq!((again.left_s(b"short"), again.left_s(b"long")), (None, Some(350)));
            assert!(again.log.next_notice().is_none());
        }
    }
}

#[test]
fn a_start_in_another_boot_with_a_clock_that_is_behind_serves_no_pair_that_may_have_expired() {
    for is_stopped in [true, false] {
        let mut bench = run(Sync::Always, is_stopped);
        if !is_stopped {
            bench.set(b"kept", b"value");
            bench.settle();
        }
        let disk = bench.disk.durable();
        for unix_s in [UNIX_S - 3600 + 59, UNIX_S - 86_400, 0] {
            let moment = Moment { boot: 2, since_boot_s: 5, unix_s };
            let mut again = Bench::start(disk.clone(), Sync::Always, moment);
            assert_eq!((again.left_s(b"short"), again.left_s(b"long")), (None, None));
            assert!(matches!(again.log.next_notice(), Some(Notice::ClockBehind { .. })));
            assert!(again.value(if is_stopped { b"last" } else { b"kept" }).is_some());
            again.set_until(b"new", 700);
            // NTP sets it. What has expired does not come back, and nothing else is lost.
            again.set_clock(Moment { boot: 2, since_boot_s: 15, unix_s: UNIX_S - 3600 + 300 });
            assert_eq!((again.left_s(b"long"), again.left_s(b"new")), (None, Some(690)));
            again.settle();
            let moment = Moment { boot: 3, since_boot_s: 5, unix_s: UNIX_S - 3600 + 390 };
            let mut later = Bench::start(again.disk.durable(), Sync::Always, moment);
            assert_eq!((later.left_s(b"long"), later.left_s(b"new")), (None, Some(600)));
        }
        let moment = Moment { boot: 2, since_boot_s: 5, unix_s: UNIX_S - 3600 + 300 };
        let mut again = Bench::start(disk, Sync::Always, moment);
        assert_eq!((again.left_s(b"short"), again.left_s(b"long")), (None, Some(200)));
        assert!(again.log.next_notice().is_none());
    }
}

/// The power goes right after the first write for minutes: the record at its end is the only trace of the time.
#[test]
fn the_last_write_shows_the_time_as_well_as_a_superblock() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    assert_eq!(bench.set(b"other", b"value"), Stored::Done);
    bench.settle();
    bench.set_clock(after(560));
    bench.store_until(b"soon", 40);
    bench.store_until(b"late", 800);
    while bench.write.is_none() {
        assert!(bench.step());
    }
    bench.step();
    let disk = bench.disk.durable();
    for (unix_s, left_s) in [(UNIX_S + 550, None), (UNIX_S + 560, Some(740)), (UNIX_S + 700, Some(660))] {
        let mut again = Bench::start(disk.clone(), Sync::Always, Moment { boot: 2, since_boot_s: 5, unix_s });
        assert_eq!((again.left_s(b"soon"), again.left_s(b"late")), (None, left_s), "{unix_s}");
        assert!(again.value(b"other").is_some());
    }
}

/// Pairs outlive any number of starts by their time to live, in which the wall clock is anything.
#[test]
fn time_goes_on_over_many_starts() {
    let mut bench = run(Sync::Always, true);
    for start in 1..8_i64 {
        let unix_s = [UNIX_S, 0, UNIX_S + 1_000_000][start as usize % 3];
        bench =
            Bench::start(bench.disk.durable(), Sync::Always, Moment { unix_s, ..after(100 + 40 * start) });
        assert_eq!(bench.left_s(b"long"), Some(400 - 40 * start as u32));
        if start % 2 == 0 {
            bench.set(b"other", &[start as u8]);
            bench.settle();
        }
    }
}

/// A repaired log goes on at the time of the damaged one.
#[test]
fn a_log_that_is_built_anew_keeps_the_time() {
    let bench = run(Sync::Always, false);
    let (image, settings) = (bench.disk.durable(), settings(Sync::Always));
    let mut read_image = |offset: u64, into: &mut [u8]| {
        into.copy_from_slice(&image[offset as usize..offset as usize + into.len()]);
        Ok(())
    };
    let examined = Examined::read(&settings, image.len() as u64, &mut read_image).expect("memory");
    let mut built = Disk::new(&settings).bytes;
    let mut write = |offset: u64, bytes: &[u8]| {
        built[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    rebuild(&settings, &examined, &examined.keys(), &mut read_image, &mut write).expect("it fits");
    let mut again = Bench::start(built, Sync::Always, Moment { unix_s: 0, ..after(150) });
    assert_eq!((again.left_s(b"short"), again.left_s(b"long")), (None, Some(350)));
}

#[test]
fn writes_that_a_power_cut_takes_back_are_no_damage_although_a_mark_was_written_behind_them() {
    let settings = settings(Sync::None);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    for seconds in 1..10 {
        bench.set_until(format!("key {seconds}").as_bytes(), 5000);
        bench.set_clock(Moment { unix_s: UNIX_S + 3600 * seconds, ..after(100 * seconds) });
        bench.settle();
        assert!(bench.log.flushes.is_unflushed() && bench.log.superblock.recorded.time.is_some());
        let mut again = Bench::start(bench.disk.durable(), Sync::None, after(1000));
        assert_eq!(again.log.next_notice(), None);
        assert_eq!(again.log.counters().lost_unknown_count, 0);
        assert_eq!(again.value(b"key 0"), None);
    }
}
