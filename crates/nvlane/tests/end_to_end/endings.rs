//! Hosts that go, in whatever way, leave nothing behind; what was reported done stays.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use host::{Failure, Options, ReconnectSettings, ReplayPolicy};
use target::config::Threads;
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::raw::{RawHost, Said};
use crate::setup::{PATIENCE, Rig, engines, open, options, options_of};

const ONE: Nsid = Nsid::new(1);
const MIB: usize = 1 << 20;

/// Takes all buffers of a reactor that has four transfers' worth.
fn take_all_buffers(host: &mut RawHost) {
    let large: Vec<u16> =
        (0..3).map(|at| host.io.transport(Sqe::write(ONE, at * 256, 256), MIB as u32)).collect();
    for cid in large {
        host.io.r2t(cid);
    }
}

fn small_rig(engine: reactor::EngineKind) -> Rig {
    Rig::with(engine, &["file:4M"], |config| {
        config.reactors.threads = Threads::Count(1);
        config.reactors.pool_bytes = 4 * MIB;
    })
}

/// Needs as many buffers as another host had.
fn check_that_buffers_are_free(rig: &Rig) {
    let mut namespace = rig.open(options());
    let data = vec![7; 4 * MIB];
    namespace.write_at(0, &data).expect("buffers that are free again");
    assert!(namespace.compare_at(0, &data).expect("a compare"));
}

#[test]
fn a_host_that_falls_silent_is_let_go_of_with_all_it_had() {
    for engine in engines() {
        let rig = small_rig(engine);
        let mut host = RawHost::with_keep_alive(&rig, 300);
        take_all_buffers(&mut host);
        assert_eq!(rig.controllers().len(), 1);
        let start = Instant::now();
        host.admin.await_close();
        host.io.await_close();
        assert!(start.elapsed() < PATIENCE / 2);
        rig.await_quiet();
        check_that_buffers_are_free(&rig);
    }
}

#[test]
fn a_host_that_says_it_is_there_stays() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:1M"]);
        let mut host = RawHost::with_keep_alive(&rig, 300);
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(60));
            let keep_alive = Sqe::new(wire::opcode::AdminOpcode::KEEP_ALIVE.raw(), Nsid::NONE);
            assert_eq!(host.admin.run(keep_alive, &[]), Status::SUCCESS);
        }
        assert_eq!(rig.controllers().len(), 1);
    }
}

#[test]
fn a_host_that_is_cut_off_within_its_data_leaves_nothing_behind() {
    for engine in engines() {
        let rig = small_rig(engine);
        for part in [0, 1, 23, 24, 25, 5000, MIB / 2] {
            let mut host = RawHost::new(&rig);
            take_all_buffers(&mut host);
            let mut other = RawHost::new(&rig);
            // The beginning of an H2CData.
            let mut pdu = vec![6, 4, 24, 24];
            pdu.extend((24 + MIB as u32).to_le_bytes());
            pdu.extend([1, 0]);
            pdu.resize(24 + MIB, 9);
            host.io.send(&pdu[..part]);
            drop(host);
            assert_eq!(other.io.read(Sqe::read(ONE, 0, 1), 4096).len(), 4096);
        }
        rig.await_quiet();
        check_that_buffers_are_free(&rig);
    }
}

/// A write whose host is gone before its data was complete has not happened, not even in part.
#[test]
fn half_a_write_is_none() {
    for engine in engines() {
        for storage in ["ram:4M", "file:4M"] {
            let rig = Rig::new(engine, &[storage]);
            rig.open(options()).write_at(0, &vec![1; MIB]).expect("a write");
            let mut host = RawHost::new(&rig);
            let cid = host.io.transport(Sqe::write(ONE, 0, 256), MIB as u32);
            let r2t = host.io.r2t(cid);
            let mut pdu = vec![6, 4, 24, 24];
            pdu.extend((24 + MIB as u32).to_le_bytes());
            pdu.extend(cid.to_le_bytes());
            pdu.extend(r2t.ttag.get().to_le_bytes());
            pdu.extend([0; 4]);
            pdu.extend((MIB as u32).to_le_bytes());
            pdu.resize(24 + MIB, 2);
            host.io.send(&pdu[..24 + MIB - 1]);
            drop(host);
            rig.await_quiet();
            let mut read = vec![0; MIB];
            rig.open(options()).read_at(0, &mut read).expect("a read");
            assert!(read.iter().all(|&byte| byte == 1));
        }
    }
}

#[test]
fn many_hosts_come_and_go() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:1M", "file:1M"]);
        std::thread::scope(|scope| {
            for thread in 0..2u8 {
                let rig = &rig;
                scope.spawn(move || {
                    for round in 0..25u8 {
                        let association = rig.connect(Options { lanes: 2, ..options_of(thread + 1) });
                        let mut namespace = open(&association, 1 + u32::from(round % 2));
                        let (offset, data) = (u64::from(thread) * 65_536, vec![round; 8192]);
                        namespace.write_at(offset, &data).expect("a write");
                        assert!(namespace.compare_at(offset, &data).expect("a compare"));
                        if round % 3 == 0 {
                            association.close();
                        }
                    }
                });
            }
        });
        rig.await_quiet();
        assert_eq!(rig.state().waiting_connect_count, 0);
    }
}

/// What a block may hold.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The newest write that was reported done.
    done: u64,
    /// Writes since then whose end is not known: any of them may have happened.
    maybe: Option<(u64, u64)>,
}

/// A target is stopped and started again, with the same file, while a host writes: nothing that was reported done is
/// lost, and nothing appears that was never written.
#[test]
fn a_target_that_comes_back_has_everything_that_was_reported_done() {
    const BLOCKS: u64 = 64;
    for engine in engines() {
        for replay in [ReplayPolicy::ReadsOnly, ReplayPolicy::Idempotent] {
            let mut rig = Rig::new(engine, &["file:1M"]);
            let reconnect = ReconnectSettings {
                delay_ns_first: 5_000_000,
                delay_ns_max: 50_000_000,
                give_up_ns: Some(60_000_000_000),
            };
            let association = rig.connect(Options { reconnect, replay, lanes: 1, ..options() });
            let namespace = association.addressed_namespace().expect("one namespace");
            let mut lane: host::Lane = association.lane().expect("a lane");
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let is_over = &is_over;
                let load = scope.spawn(move || {
                    let mut known = [Known::default(); BLOCKS as usize];
                    let mut in_flight = BTreeMap::new();
                    let mut number = 0;
                    let mut ended = Vec::new();
                    let mut last = Instant::now();
                    while !is_over.load(Ordering::Relaxed) || lane.outstanding() > 0 {
                        while !is_over.load(Ordering::Relaxed) && lane.has_room(1) && in_flight.len() < 24 {
                            number += 1;
                            let lba = (number * 7) % BLOCKS;
                            if in_flight.values().any(|&(at, _)| at == lba) {
                                break;
                            }
                            let is_write = number % 3 != 0;
                            let (command, word) = match is_write {
                                true => (namespace.write(lba, 1), number),
                                false => (namespace.read(lba, 1), 0),
                            };
                            let buffer = word.to_le_bytes().repeat(512);
                            lane.submit(command.expect("within it"), Some(buffer), number).expect("room");
                            in_flight.insert(number, (lba, is_write));
                        }
                        if lane.wait(&mut ended, Duration::from_millis(100)) > 0 {
                            last = Instant::now();
                        }
                        assert!(last.elapsed() < PATIENCE, "nothing ends");
                        for completion in ended.drain(..) {
                            let (lba, is_write) = in_flight.remove(&completion.user).expect("one end");
                            let block = &mut known[lba as usize];
                            match completion.result {
                                Ok(_) if is_write => {
                                    *block = Known { done: completion.user, maybe: None };
                                }
                                Ok(_) => block.check(lba, &completion.buffer.expect("a read has one")),
                                Err(Failure::Interrupted)
                                    if is_write && replay == ReplayPolicy::ReadsOnly =>
                                {
                                    let first = block.maybe.map_or(completion.user, |(first, _)| first);
                                    block.maybe = Some((first, completion.user));
                                }
                                Err(failure) => panic!("{failure}"),
                            }
                        }
                    }
                    (lane, namespace, known, number)
                });
                for _ in 0..4 {
                    std::thread::sleep(Duration::from_millis(60));
                    assert_eq!(rig.stop(), 0);
                    std::thread::sleep(Duration::from_millis(10));
                    rig.start();
                }
                std::thread::sleep(Duration::from_millis(60));
                is_over.store(true, Ordering::Relaxed);
                let (mut lane, namespace, known, number) = load.join().expect("data that is right");
                assert!(number > 100, "hardly any load: {number}");
                let mut ended = Vec::new();
                for (lba, block) in known.iter().enumerate() {
                    let read = namespace.read(lba as u64, 1).expect("within it");
                    lane.submit(read, Some(vec![0; 4096]), 0).expect("room");
                    while lane.outstanding() > 0 {
                        lane.wait(&mut ended, PATIENCE);
                    }
                    let end = ended.pop().expect("one end");
                    assert!(end.is_ok());
                    block.check(lba as u64, &end.buffer.expect("a read has one"));
                }
            });
            assert!(association.over().is_none());
        }
    }
}

impl Known {
    fn check(&self, lba: u64, bytes: &[u8]) {
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        assert!(bytes.chunks(8).all(|part| part == word.to_le_bytes()), "block {lba} is torn");
        let may = self.maybe.is_some_and(|(first, last)| (first..=last).contains(&word));
        assert!(word == self.done || may, "block {lba} holds {word}, not {self:?}");
    }
}

/// What comes in while a lane is being ended by order is answered or not, but its connection ends.
#[test]
fn a_target_that_stops_ends_its_lanes_under_load() {
    for engine in engines() {
        let mut rig = Rig::new(engine, &["file:4M?delay=0us-2ms"]);
        let mut host = RawHost::new(&rig);
        for at in 0..60 {
            host.io.write_in_capsule(Sqe::write(ONE, at, 1), &[3; 4096]);
        }
        assert_eq!(rig.stop(), 0);
        loop {
            match host.io.next() {
                Said::Closed => break,
                Said::Completion(cqe) => assert_eq!(cqe.status(), Status::SUCCESS),
                other => panic!("{other:?}"),
            }
        }
    }
}
