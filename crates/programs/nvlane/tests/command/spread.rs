//! Keys that are spread over three targets, of which some are killed, stopped, replaced, or all gone: no call lasts, no byte
//! is wrong, and a target that is back is used again. docs/design/spread.md

#![allow(clippy::cast_possible_truncation)] // Bytes of values.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use host::{
    AtomicFunction, AtomicOperation, BlockingKeyValue, Error, InvalidSpread, Key, Moved, Options,
    SpreadOptions, SpreadTarget, StoreOptions, ValueSpread, ValueTransfer,
};
use rustix::process::Signal;

use crate::support::{nvlane, signal};

const NQN: &str = "nqn.2026-01.io.nvlane:spread";

/// Limit of every wait in these tests.
const LIMIT: Duration = Duration::from_secs(60);

/// What a call may take beyond its deadline on a busy machine, where live targets are slow. On a quiet one 0.2 s suffice:
/// `NVLANE_SPREAD_SLACK_MS`.
fn slack() -> Duration {
    Duration::from_millis(number("NVLANE_SPREAD_SLACK_MS", 20_000))
}

/// A deadline that only targets which were killed do not keep, however busy the machine is.
const LONG: Duration = Duration::from_secs(20);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// A target program at an address of its own, which can be killed and started again there.
struct Program {
    place: SocketAddr,
    process: Child,
}

impl Program {
    fn new() -> Self {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, high | 1, low, COUNT.fetch_add(1, Ordering::Relaxed).max(1));
        let free = TcpListener::bind((IpAddr::from(address), 0)).expect("a port");
        let place = free.local_addr().expect("an address");
        drop(free);
        let program = Self { place, process: Self::start(place, NQN) };
        program.await_port();
        program
    }

    fn start(place: SocketAddr, nqn: &str) -> Child {
        let mut command = nvlane();
        command.args(["target", "--listen", &place.to_string(), "--nqn", nqn]);
        // It ends with its input, also if this process is killed.
        command.args(["--namespace", "kv:ram:256M", "--run", "read end"]).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a target starts")
    }

    fn await_port(&self) {
        let until = Instant::now() + LIMIT;
        while std::net::TcpStream::connect(self.place).is_err() {
            assert!(Instant::now() < until, "a target that listens");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it has ended");
    }

    fn restart(&mut self) {
        self.process = Self::start(self.place, NQN);
        self.await_port();
    }

    fn target(&self) -> SpreadTarget {
        SpreadTarget::new(format!("{}/{NQN}", self.place).parse().expect("an address"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SIGKILL ends a stopped process as well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn options() -> Options {
    Options::default().with_lanes(2).with_connect_timeout(Duration::from_secs(20))
}

fn spread_of(programs: &[Program], spread: SpreadOptions) -> ValueSpread {
    let targets = programs.iter().map(Program::target).collect();
    let mut values = ValueSpread::connect(targets, options(), spread).expect("connected").with_checksums();
    await_health(&mut values, |up| up.iter().all(|up| *up));
    values
}

fn await_health(values: &mut ValueSpread, is_as_wanted: impl Fn(&[bool]) -> bool) {
    let until = Instant::now() + LIMIT;
    loop {
        let health = values.health();
        let up: Vec<bool> = health.iter().map(|target| target.is_up).collect();
        if is_as_wanted(&up) {
            return;
        }
        assert!(Instant::now() < until, "{health:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn key(number: usize) -> Vec<u8> {
    format!("meta-llama/Llama-3.1-8B@00000000@0@{number:064x}").into_bytes()
}

/// The only value that a key ever has.
fn value(number: usize) -> Vec<Vec<u8>> {
    let length = [0, 1, 5000, 70_000, (2 << 20) + 3][number % 5];
    let piece = |start: usize| {
        let mut piece = vec![number as u8; (length - start).min(1 << 20)];
        piece[0] = (number + start) as u8;
        piece
    };
    (0..length).step_by(1 << 20).map(piece).collect()
}

/// Buffers for the value of a key.
fn room(number: usize) -> Vec<Vec<u8>> {
    value(number).iter().map(|piece| vec![0xEE; piece.len()]).collect()
}

fn transfers(keys: &[Vec<u8>], of: fn(usize) -> Vec<Vec<u8>>) -> Vec<ValueTransfer<'_, Vec<u8>>> {
    keys.iter().enumerate().map(|(number, key)| ValueTransfer::new(key, of(number))).collect()
}

/// Retrieves all keys. Returns how many were found, whole.
fn found(values: &mut ValueSpread, keys: &[Vec<u8>]) -> usize {
    let mut transfers = transfers(keys, room);
    values.retrieve(&mut transfers).expect("keys that can be");
    let is_right = |(number, transfer): (usize, &ValueTransfer<'_, _>)| {
        assert_ne!(transfer.moved, Moved::Damaged);
        assert!(!transfer.is_whole() || transfer.pieces == value(number), "the value of key {number}");
        transfer.is_whole()
    };
    transfers.iter().enumerate().filter(|&each| is_right(each)).count()
}

/// Waits until every value can be stored and found again, without a new connection by the caller.
fn await_all(values: &mut ValueSpread, keys: &[Vec<u8>]) {
    let until = Instant::now() + LIMIT;
    loop {
        await_health(values, |up| up.iter().all(|up| *up));
        values.store(&mut transfers(keys, value), 0).expect("keys that can be");
        if found(values, keys) == keys.len() {
            return;
        }
        assert!(Instant::now() < until, "{:?}", values.health());
    }
}

fn refs(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}

/// Targets are killed and stopped in turn, five times, or as `NVLANE_SPREAD_KILLS` says, while a thread stores, retrieves and
/// tests values.
#[test]
fn a_lost_target_costs_misses_and_comes_back() {
    let mut programs = [Program::new(), Program::new(), Program::new()];
    for copies in [1, 2] {
        let spread = SpreadOptions::default().with_copies(copies);
        let keys: Vec<_> = (0..40).map(key).collect();
        let mut values = spread_of(&programs, spread);
        let is_over = AtomicBool::new(false);
        let losses = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let (mut longest, mut rounds, mut misses) = (Duration::ZERO, 0u64, 0usize);
                while !is_over.load(Ordering::Relaxed) {
                    let mut timed = |call: &mut dyn FnMut()| {
                        let start = Instant::now();
                        call();
                        longest = longest.max(start.elapsed());
                    };
                    timed(&mut || {
                        values.store(&mut transfers(&keys, value), 0).expect("keys that can be");
                    });
                    timed(&mut || misses += keys.len() - found(&mut values, &keys));
                    timed(&mut || drop(values.exist(&refs(&keys)).expect("misses at most")));
                    timed(&mut || values.delete(&refs(&keys[..5])).expect("not an error"));
                    rounds += 1;
                }
                println!("{copies} copies: {rounds} rounds, {misses} misses, longest call {longest:?}");
                assert!(longest <= spread.deadline + slack(), "a call took {longest:?}");
                await_all(&mut values, &keys);
                values.health().iter().map(|target| target.loss_count).sum::<u64>()
            });
            for kill in 0..number("NVLANE_SPREAD_KILLS", 5) {
                let program = &mut programs[kill as usize % 3];
                if kill % 2 == 0 {
                    program.kill();
                    std::thread::sleep(Duration::from_millis(kill % 7 * 50));
                    program.restart();
                } else {
                    signal(program.process.id(), Signal::STOP);
                    std::thread::sleep(Duration::from_millis(1500));
                    signal(program.process.id(), Signal::CONT);
                }
                std::thread::sleep(Duration::from_millis(400));
            }
            is_over.store(true, Ordering::Relaxed);
            load.join().expect("the load")
        });
        assert!(losses > 0, "the load has noticed");
    }
}

#[test]
fn calls_end_without_any_target_and_work_again_with_one() {
    let mut programs = [Program::new(), Program::new(), Program::new()];
    let spread = SpreadOptions::default().with_deadline(Duration::from_millis(500));
    let keys: Vec<_> = (0..20).map(key).collect();
    let mut values = spread_of(&programs, spread);
    for stops in [false, true] {
        for program in &mut programs {
            if stops {
                signal(program.process.id(), Signal::STOP);
            } else {
                program.kill();
            }
        }
        for _ in 0..3 {
            let start = Instant::now();
            let mut all = transfers(&keys, value);
            values.store(&mut all, 0).expect("keys that can be");
            assert!(all.iter().all(|transfer| matches!(transfer.moved, Moved::Failed(_))));
            assert!(all.iter().enumerate().all(|(number, transfer)| transfer.pieces == value(number)));
            assert!(start.elapsed() <= spread.deadline + slack(), "{:?}", start.elapsed());
            assert_eq!(found(&mut values, &keys), 0);
            assert_eq!(values.exist(&refs(&keys)).expect("misses").present_count(), 0);
            assert_eq!(values.value_bytes(&keys[0]).expect("a miss"), None);
            values.delete(&refs(&keys)).expect("not an error");
            let add = AtomicOperation::new(AtomicFunction::ADD, 1);
            assert!(values.atomic(&Key::new(b"number").expect("short"), &add).is_err());
        }
        await_health(&mut values, |up| up.iter().all(|up| !*up));
        for program in &mut programs {
            if stops {
                signal(program.process.id(), Signal::CONT);
            } else {
                program.restart();
            }
        }
        await_all(&mut values, &keys);
    }
}

/// A second copy is found while the first target is away, and after it has come back without memory.
#[test]
fn a_second_copy_is_found() {
    let mut programs = [Program::new(), Program::new(), Program::new()];
    let mut values = spread_of(&programs, SpreadOptions::default().with_copies(2).with_deadline(LONG));
    let keys: Vec<_> = (0..30).map(key).collect();
    values.store(&mut transfers(&keys, value), 0).expect("keys that can be");
    assert_eq!(values.degraded_count(), 0);
    programs[0].kill();
    // One call notices the loss, and goes on with the other copy.
    assert_eq!(found(&mut values, &keys), keys.len());
    programs[0].restart();
    await_health(&mut values, |up| up[0]);
    assert_eq!(found(&mut values, &keys), keys.len());
    assert_eq!(values.exist(&refs(&keys)).expect("asked").present_count(), keys.len());
    // Another identity at the address is not the target.
    programs[1].kill();
    programs[1].process = Program::start(programs[1].place, "nqn.2026-01.io.nvlane:other");
    programs[1].await_port();
    assert!(found(&mut values, &keys) > 0);
    let until = Instant::now() + LIMIT;
    loop {
        let health = values.health().remove(1);
        let cause = health.cause.map(|cause| cause.to_string()).unwrap_or_default();
        assert!(!health.is_up && Instant::now() < until, "{cause}");
        if cause.contains("there is no subsystem") {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    programs[1].kill();
    programs[1].restart();
    await_health(&mut values, |up| up[1]);
}

/// Values that are replaced: no other target takes their place, so none is served after it was replaced elsewhere.
#[test]
fn replaced_values_are_at_one_target_alone() {
    let mut programs = [Program::new(), Program::new(), Program::new()];
    let spread = SpreadOptions::default().with_immutable(false).with_deadline(Duration::from_secs(4));
    let mut values = spread_of(&programs, spread);
    let keys: Vec<_> = (0..30).map(key).collect();
    let mut old = transfers(&keys, |_| vec![b"old".to_vec()]);
    values.store(&mut old, 0).expect("keys that can be");
    assert!(old.iter().all(ValueTransfer::is_whole));
    signal(programs[2].process.id(), Signal::STOP);
    let is_lost: Vec<bool> = keys.iter().map(|key| values.rank(key)[0] == 2).collect();
    assert!(is_lost.contains(&true) && is_lost.contains(&false));
    for _ in 0..2 {
        let mut new = transfers(&keys, |_| vec![b"new".to_vec()]);
        values.store(&mut new, 0).expect("keys that can be");
        for (transfer, is_lost) in new.iter().zip(&is_lost) {
            assert_eq!(transfer.is_whole(), !is_lost, "{:?}", transfer.moved);
        }
    }
    assert!(values.exist(&refs(&keys)).is_err() && values.delete(&refs(&keys[..])).is_err());
    signal(programs[2].process.id(), Signal::CONT);
    await_health(&mut values, |up| up[2]);
    let mut got = transfers(&keys, |_| vec![vec![0; 3]]);
    values.retrieve(&mut got).expect("keys that can be");
    for (transfer, is_lost) in got.iter().zip(&is_lost) {
        // What could not be replaced was an error for its caller. What was, is not served; deletions came after it.
        assert!(*is_lost || transfer.moved == Moved::Missing);
    }
    // A target that is killed has nothing when it is back, and no other target has it.
    programs[2].kill();
    let mut new = transfers(&keys, |_| vec![b"new".to_vec()]);
    values.store(&mut new, 0).expect("keys that can be");
    programs[2].restart();
    await_health(&mut values, |up| up[2]);
    values.retrieve(&mut got).expect("keys that can be");
    for (transfer, is_lost) in got.iter().zip(&is_lost) {
        assert_eq!(transfer.is_whole(), !is_lost);
    }
}

#[test]
fn each_key_is_at_its_target_and_conditions_hold() {
    let programs = [Program::new(), Program::new(), Program::new()];
    let mut values = spread_of(&programs, SpreadOptions::default().with_deadline(LONG));
    let keys: Vec<_> = (0..200).map(key).collect();
    let mut all = transfers(&keys, |_| vec![b"v".to_vec()]);
    values.store(&mut all, 0).expect("keys that can be");
    let first: Vec<usize> = keys.iter().map(|key| values.rank(key)[0]).collect();
    for (number, program) in programs.iter().enumerate() {
        let mut alone =
            BlockingKeyValue::connect(&program.target().address, Options::default()).expect("connected");
        let presence = alone.exist_many(&refs(&keys)).expect("asked");
        assert!(presence.iter().zip(&first).all(|(is_there, first)| is_there == (*first == number)));
        assert!(presence.present_count() > 30, "{}", presence.present_count());
    }
    let found = values.exist(&[&refs(&keys)[..50], &[b"none", b"other"], &refs(&keys)[50..]].concat());
    assert_eq!(found.expect("asked").leading_run(), 50);
    for transfer in &mut all {
        transfer.options = StoreOptions::MUST_NOT_EXIST;
    }
    values.store(&mut all, 0).expect("keys that can be");
    assert!(all.iter().all(|transfer| transfer.moved == Moved::Missing));
    let number = Key::new(b"number").expect("short");
    let add = AtomicOperation::new(AtomicFunction::ADD, 5).or_create(10);
    assert_eq!(values.atomic(&number, &add).expect("added").before, 10);
    assert_eq!(values.value_bytes(b"number").expect("asked"), Some(8));
    values.delete(&refs(&keys)).expect("deleted");
    assert_eq!(values.exist(&refs(&keys)).expect("asked").present_count(), 0);
    values.flush().expect("flushed");
    assert!(values.retrieve(&mut [ValueTransfer::new(&[7; 251], vec![vec![0]])]).is_err());
    assert!(values.exist(&[b""]).is_err());
}

#[test]
fn targets_that_cannot_be_are_refused() {
    let programs = [Program::new()];
    let there = || programs[0].target();
    let connect = |targets, spread| {
        ValueSpread::<Vec<u8>>::connect(targets, options(), spread).map(drop).expect_err("refused")
    };
    let spread = SpreadOptions::default();
    let invalid = |error| match error {
        Error::Spread(invalid) => invalid,
        error => panic!("{error}"),
    };
    assert_eq!(invalid(connect(vec![], spread)), InvalidSpread::TargetCount { count: 0 });
    assert!(matches!(invalid(connect(vec![there(), there()], spread)), InvalidSpread::SameName { .. }));
    assert!(matches!(invalid(connect(vec![there().with_weight(0)], spread)), InvalidSpread::Weight { .. }));
    let copies = InvalidSpread::Copies { copies: 2, targets: 1 };
    assert_eq!(invalid(connect(vec![there()], spread.with_copies(2))), copies);
    let two = || vec![there(), there().with_name("other")];
    let mutable = spread.with_copies(2).with_immutable(false);
    assert_eq!(invalid(connect(two(), mutable)), InvalidSpread::MutableCopies);
    // One that never will be is an error beside others; one that is not there now is none.
    let mut wrong = there().with_name("wrong");
    wrong.address = format!("{}/nqn.2026-01.io.nvlane:none", programs[0].place).parse().expect("an address");
    let error = connect(vec![there(), wrong], spread).to_string();
    assert!(error.contains("there is no subsystem"), "{error}");
    let mut away = there().with_name("away");
    away.address = format!("127.0.0.1:1/{NQN}").parse().expect("an address");
    let error = connect(vec![away.clone()], spread).to_string();
    assert!(error.contains("127.0.0.1:1"), "{error}");
    let mut values =
        ValueSpread::<Vec<u8>>::connect(vec![there(), away], options(), spread).expect("one is there");
    let health = values.health();
    assert!(health[0].is_up && !health[1].is_up && health[1].name == "away");
    assert!(
        health[1].cause.as_ref().is_some_and(|cause| cause.to_string().contains("is the target running"))
    );
}
