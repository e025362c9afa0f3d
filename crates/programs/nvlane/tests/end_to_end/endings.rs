//! Hosts that disconnect in any way leave no resources behind; completed writes remain.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use host::{Failure, ReconnectSettings, ReplayPolicy};
use load::runner::{self, RunSettings};
use load::workload::{Stop, Workload};
use peer::link::Got;
use subsystem::config::Threads;
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::churn::Churn;
use crate::raw::RawHost;
use crate::setup::{Over, PATIENCE, Rig, await_more, engines, open, options, options_of};

const ONE: Nsid = Nsid::new(1);
const MIB: usize = 1 << 20;

/// Takes all buffers that one host may hold on a reactor with four transfers' worth, and waits for one more.
fn take_all_buffers(host: &mut RawHost) {
    let large: Vec<u16> =
        (0..3).map(|at| host.io.transport(Sqe::write(ONE, at * 256, 256), MIB as u32)).collect();
    for &cid in &large[..2] {
        host.io.r2t(cid);
    }
}

fn small_rig(engine: reactor::EngineKind) -> Rig {
    Rig::with(engine, &["file:4M"], |config| {
        config.reactors.threads = Threads::Count(1);
        config.reactors.pool_bytes = 4 * MIB;
    })
}

/// Needs as many buffers as the other host held.
fn check_that_buffers_are_free(rig: &Rig) {
    let mut namespace = rig.open(options());
    let data = vec![7; 4 * MIB];
    namespace.write_at(&data, 0).expect("buffers that are free again");
    assert!(namespace.compare_at(&data, 0).expect("a compare"));
}

#[test]
fn a_host_that_falls_silent_is_let_go_of_with_all_it_had() {
    for engine in engines() {
        let rig = small_rig(engine);
        let mut host = RawHost::with_keep_alive(&rig, 1000);
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
        // More than two timeouts in total; a keep-alive may be 1.5 s late.
        let mut host = RawHost::with_keep_alive(&rig, 2000);
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(500));
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
            // The beginning of an H2CData PDU.
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

/// A write whose host disconnects before its data is complete is not executed, not even in part.
#[test]
fn half_a_write_is_none() {
    for engine in engines() {
        for storage in ["ram:4M", "file:4M"] {
            let rig = Rig::new(engine, &[storage]);
            rig.open(options()).write_at(&vec![1; MIB], 0).expect("a write");
            let mut host = RawHost::new(&rig);
            let cid = host.io.transport(Sqe::write(ONE, 0, 256), MIB as u32);
            let r2t = host.io.r2t(cid);
            let mut pdu = vec![6, 4, 24, 24];
            pdu.extend((24 + MIB as u32).to_le_bytes());
            pdu.extend(cid.to_le_bytes());
            pdu.extend(r2t.ttag.to_le_bytes());
            pdu.extend([0; 4]);
            pdu.extend((MIB as u32).to_le_bytes());
            pdu.resize(24 + MIB, 2);
            host.io.send(&pdu[..24 + MIB - 1]);
            drop(host);
            rig.await_quiet();
            let mut read = vec![0; MIB];
            rig.open(options()).read_at(&mut read, 0).expect("a read");
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
                        let association = rig.connect(options_of(thread + 1).with_lanes(2));
                        let mut namespace = open(&association, 1 + u32::from(round % 2));
                        let (offset, data) = (u64::from(thread) * 65_536, vec![round; 8192]);
                        namespace.write_at(&data, offset).expect("a write");
                        assert!(namespace.compare_at(&data, offset).expect("a compare"));
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

/// A target is stopped and restarted with the same file while a host writes: no completed write is lost, and no data
/// appears that was never written.
#[test]
fn a_target_that_comes_back_has_everything_that_was_reported_done() {
    for engine in engines() {
        for replay in [ReplayPolicy::ReadsOnly, ReplayPolicy::Idempotent] {
            let mut rig = Rig::new(engine, &["file:1M"]);
            let reconnect = ReconnectSettings::default()
                .with_delay_first(Duration::from_millis(5))
                .with_delay_max(Duration::from_millis(50))
                .with_give_up_after(Some(Duration::from_secs(60)));
            let association =
                rig.connect(options().with_reconnect(reconnect).with_replay(replay).with_lanes(1));
            let namespace = association.addressed_namespace().expect("one namespace");
            let lane: host::Lane = association.lane().expect("a lane");
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let is_over = &is_over;
                let mut churn = Churn::new(lane, namespace);
                let done = churn.done();
                let load = scope.spawn(move || {
                    churn.run(is_over, |failure, is_write| {
                        failure == Failure::Interrupted && is_write && replay == ReplayPolicy::ReadsOnly
                    });
                    churn
                });
                let over = Over(is_over);
                for _ in 0..4 {
                    await_more(&done, 20);
                    assert_eq!(rig.stop(), 0);
                    rig.start();
                }
                await_more(&done, 20);
                drop(over);
                let mut churn = load.join().expect("data that is right");
                churn.check_all();
            });
            assert!(association.over().is_none());
        }
    }
}

/// A command received while its lane is being closed may or may not be answered, but the connection ends.
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
                Got::Closed => break,
                Got::Completion(cqe) => assert_eq!(cqe.status(), Status::SUCCESS),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A reconnecting host is served only after its earlier commands have ended: a late write of the old association would
/// overwrite its new data.
#[test]
fn a_host_never_meets_its_own_late_writes() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:1M?delay=write:600ms"]);
        let mut before = RawHost::new(&rig);
        // This write has started, so the target must wait for it.
        before.io.copy(0, 1, 8);
        // This one has not, so it never will.
        before.io.write_in_capsule(Sqe::write(ONE, 9, 1), &[1; 4096]);
        assert_eq!(before.io.run(Sqe::flush(ONE), &[]), Status::SUCCESS);
        drop(before);
        let mut after = RawHost::new(&rig);
        let now: Vec<u16> =
            [8, 9].map(|lba| after.io.write_in_capsule(Sqe::write(ONE, lba, 1), &[2; 4096])).to_vec();
        for cid in now {
            assert_eq!(after.io.completion(cid).status(), Status::SUCCESS);
        }
        // A late write would take as long as this one.
        assert_eq!(after.io.run_in_capsule(Sqe::write(ONE, 10, 1), &[2; 4096]), Status::SUCCESS);
        assert!(after.io.read(Sqe::read(ONE, 8, 2), 8192).iter().all(|&byte| byte == 2));
    }
}

/// After a reconnect to a machine with other storage under the same namespace id.
#[test]
fn a_load_that_meets_other_storage_ends_and_says_so() {
    for engine in engines() {
        let mut rig = Rig::new(engine, &["ram:16M?uuid=00000000-0000-4000-8000-000000000001"]);
        let reconnect = ReconnectSettings::default().with_delay_first(Duration::from_millis(1));
        let association = rig.connect(options().with_reconnect(reconnect));
        let namespace = association.addressed_namespace().expect("a namespace of blocks");
        let workload = Workload {
            stop: Stop { runtime: Some(Duration::from_secs(600)), ..Stop::default() },
            warm_up: Duration::ZERO,
            ..Workload::default()
        };
        let finished = std::thread::scope(|scope| {
            let run = scope
                .spawn(|| runner::run(&association, &namespace, &workload, &RunSettings::default(), &mut ()));
            let until = std::time::Instant::now() + Duration::from_secs(60);
            while rig.controllers().first().is_none_or(|controller| controller.read_count == 0) {
                assert!(std::time::Instant::now() < until, "the load reads nothing");
                std::thread::sleep(Duration::from_millis(5));
            }
            rig.stop();
            rig.config.subsystems[0].namespaces =
                vec![rig.namespace_config(0, "ram:16M?uuid=00000000-0000-4000-8000-000000000002")];
            rig.start();
            run.join().expect("no panic").expect("a load that began")
        });
        let error = finished.error.expect("what ended it");
        assert!(matches!(error, host::Error::Failed { failure: Failure::Replaced, .. }), "{error}");
        let errors = finished.tally.all().error_count();
        assert!(errors < 10_000, "{errors} operations failed");
        association.close();
    }
}
