//! Rate limits of namespaces and hosts: how exact they are, whom a waiting command holds up, and that everything else
//! goes on beside it.

use std::time::{Duration, Instant};

use host::{Association, BlockingNamespace, ValueLanes, ValueTransfer};
use linux::random::SplitMix64;
use peer::link::Got;
use subsystem::rate_limit::RateLimits;
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::exercise::{Load, Model};
use crate::raw::RawHost;
use crate::setup::{Rig, address_of, engines, open, options, options_of};

const ONE: Nsid = Nsid::new(1);

/// Limits under which a command waits for longer than a test takes, after the first.
const SLOW: RateLimits = RateLimits { iops: Some(1), ..NONE };

const NONE: RateLimits = RateLimits {
    iops: None,
    read_iops: None,
    write_iops: None,
    bytes_per_s: None,
    read_bytes_per_s: None,
    write_bytes_per_s: None,
    burst_ms: None,
    min_iops: None,
};

/// Keeps 16 reads under way on each lane. Returns the number that ended, and the time.
fn read_for(lanes: &mut [BlockingNamespace], time: Duration) -> (u64, Duration) {
    let (start, mut count) = (Instant::now(), 0);
    let mut ended = Vec::new();
    while start.elapsed() < time {
        for namespace in &mut *lanes {
            let read = namespace.namespace().read(0, 1).expect("a read");
            let lane = namespace.lane_mut();
            while lane.outstanding() < 16 {
                lane.submit(read.clone(), Some(vec![0; 4096]), 0).expect("room");
            }
            lane.ring();
            lane.wait(&mut ended, Duration::from_micros(100));
            count += ended.drain(..).filter(|completion| completion.result.is_ok()).count() as u64;
        }
    }
    (count, start.elapsed())
}

fn lanes(association: &Association, count: usize) -> Vec<BlockingNamespace> {
    (0..count).map(|_| open(association, 1)).collect()
}

#[test]
fn a_limit_holds_for_all_lanes_together_and_changes_under_load() {
    for engine in engines() {
        let rates = [
            (RateLimits { iops: Some(4000), burst_ms: Some(100), ..NONE }, 4000),
            (RateLimits { read_bytes_per_s: Some(8 << 20), burst_ms: Some(100), ..NONE }, 2048),
        ];
        let mut rig = Rig::new(engine, &["null:1G"]);
        let association = rig.connect(options().with_lanes(4).with_depth(32));
        let mut lanes = lanes(&association, 4);
        let state = rig.state();
        let reactors = state.reactors.iter().filter(|reactor| reactor.io_lanes > 0).count();
        assert_eq!(reactors, 2, "lanes are on both");
        let host = state.hosts[0].host.parse().expect("a name");
        for (limits, per_s) in rates {
            for is_of_host in [false, true] {
                rig.reload(|config| {
                    let subsystem = &mut config.subsystems[0];
                    subsystem.namespaces[0].limits = if is_of_host { NONE } else { limits };
                    subsystem.host_limits.clear();
                    if is_of_host {
                        subsystem.host_limits.insert(Clone::clone(&host), limits);
                    }
                });
                read_for(&mut lanes, Duration::from_millis(50));
                // On a busy machine lanes stand still for longer than the burst, and have less.
                let is_exact = (0..20).any(|_| {
                    let (count, time) = read_for(&mut lanes, Duration::from_millis(200));
                    let due = time.as_secs_f64() * f64::from(per_s);
                    // Others end that had begun before, and what was saved in a pause.
                    assert!(
                        count as f64 <= due * 1.02 + 0.1 * f64::from(per_s) + 64.0,
                        "{count} of {due}, {limits}"
                    );
                    count as f64 >= due * 0.98 - 16.0
                });
                assert!(is_exact, "never what is allowed: {limits}");
            }
        }
        // The counters of namespaces and of hosts are not read at one instant: nothing may be under way.
        let mut ended = Vec::new();
        for namespace in &mut lanes {
            while namespace.lane_mut().outstanding() > 0 {
                namespace.lane_mut().wait(&mut ended, Duration::from_secs(1));
            }
        }
        let state = rig.state();
        let throttled = state.subsystems[0].namespaces[0].traffic;
        assert!(throttled.throttled_count > 1000 && throttled.throttled_ns > 100_000_000, "{throttled:?}");
        assert_eq!(state.hosts[0].totals.throttled_count, throttled.throttled_count);
        assert_eq!(state.subsystems[0].host_rate_limits.len(), 1);
        // Those that wait go on at once.
        rig.reload(|config| config.subsystems[0].host_limits.clear());
        let (count, time) = read_for(&mut lanes, Duration::from_millis(100));
        assert!(count > 0, "in {time:?}");
        let before = rig.state().hosts[0].totals.throttled_count;
        read_for(&mut lanes, Duration::from_millis(10));
        assert_eq!(rig.state().hosts[0].totals.throttled_count, before, "nothing waits without limits");
    }
}

#[test]
fn commands_that_wait_hold_up_nothing_else() {
    for engine in engines() {
        let mut rig = Rig::with(engine, &["ram:1M", "ram:1M"], |config| {
            config.subsystems[0].namespaces[0].limits = SLOW;
        });
        let mut host = RawHost::new(&rig);
        assert_eq!(host.io.read(Sqe::read(ONE, 0, 1), 4096), vec![0; 4096]);
        let read = host.io.transport(Sqe::read(ONE, 0, 1), 4096);
        let in_capsule = host.io.write_in_capsule(Sqe::write(ONE, 0, 1), &[7; 4096]);
        let asked_for = host.io.transport(Sqe::write(ONE, 8, 4), 16_384);
        // Beside them: a flush, the other namespace, the admin queue.
        assert_eq!(host.io.run(Sqe::flush(ONE), &[]), Status::SUCCESS);
        let other = Nsid::new(2);
        assert_eq!(host.io.run(Sqe::write_zeroes(other, 0, 1, false), &[]), Status::SUCCESS);
        assert_eq!(host.admin.run(Sqe::keep_alive(), &[]), Status::SUCCESS);
        assert!(host.abort(read), "it has not begun");
        assert_eq!(host.io.completion(read).status(), Status::ABORT_REQUESTED);
        assert!(!host.abort(read));
        // Neither has been written, nor asked for its data.
        rig.reload(|config| config.subsystems[0].namespaces[0].limits = NONE);
        assert_eq!(host.io.completion(in_capsule).status(), Status::SUCCESS);
        let r2t = host.io.r2t(asked_for);
        assert_eq!(r2t.length, 16_384);
        assert!(host.abort(asked_for));
        assert_eq!(host.io.completion(asked_for).status(), Status::ABORT_REQUESTED);
        assert_eq!(host.io.read(Sqe::read(ONE, 0, 1), 4096), vec![7; 4096]);
    }
}

#[test]
fn a_host_that_goes_away_takes_its_waiting_commands_along() {
    for engine in engines() {
        let rig = Rig::with(engine, &["ram:1M"], |config| config.subsystems[0].namespaces[0].limits = SLOW);
        for _ in 0..3 {
            let mut host = RawHost::new(&rig);
            for _ in 0..20 {
                host.io.write_in_capsule(Sqe::write(ONE, 0, 1), &[9; 4096]);
                host.io.transport(Sqe::read(ONE, 0, 1), 4096);
            }
            // They have arrived once this command has completed; one of them may have passed.
            let flush = host.io.command(Sqe::flush(ONE), &[]);
            while !matches!(host.io.next(), Got::Completion(cqe) if cqe.cid.get() == flush) {}
            drop(host);
            rig.await_quiet();
        }
        let association = rig.connect(options_of(9));
        assert!(open(&association, 1).namespace().read(0, 1).is_ok());
    }
}

#[test]
fn each_byte_of_a_value_longer_than_mdts_counts() {
    const VALUE_BYTES: usize = 3 << 20;
    const BYTES_PER_S: u32 = 40 << 20;
    let least = |count| {
        Duration::from_secs(1) * (count * VALUE_BYTES as u32) / BYTES_PER_S - Duration::from_millis(20)
    };
    for engine in engines() {
        let rates = Some(BYTES_PER_S.into());
        let mut rig = Rig::with(engine, &["ram:1M", "kv:ram:64M"], |config| {
            config.subsystems[0].namespaces[1].limits =
                RateLimits { read_bytes_per_s: rates, write_bytes_per_s: rates, ..NONE };
        });
        let mut lanes = ValueLanes::connect(&address_of(rig.socket_address()), options()).expect("connected");
        let value = vec![vec![1; VALUE_BYTES]];
        let start = Instant::now();
        for _ in 0..5 {
            let mut store = [ValueTransfer::new(b"key", value.clone())];
            lanes.store(&mut store, 0).expect("a command");
            assert!(store[0].is_whole(), "{:?}", store[0].moved);
        }
        // All but the first wait for those before them.
        assert!(start.elapsed() >= least(4), "stores: {:?}, {engine:?}", start.elapsed());
        let start = Instant::now();
        for _ in 0..5 {
            let mut get = [ValueTransfer::new(b"key", vec![vec![0; VALUE_BYTES]])];
            lanes.retrieve(&mut get).expect("a command");
            assert!(get[0].is_whole() && get[0].pieces == value, "{:?}", get[0].moved);
        }
        // The length is known at the end of a retrieve: the first of each of two reactors does not wait.
        assert!(start.elapsed() >= least(3), "retrieves: {:?}, {engine:?}", start.elapsed());
        rig.stop();
    }
}

#[test]
fn data_is_right_whatever_waits() {
    for engine in engines() {
        let mut rig = Rig::with(engine, &["ram:4M", "file:4M"], |config| {
            for namespace in &mut config.subsystems[0].namespaces {
                namespace.limits = RateLimits {
                    write_iops: Some(3000),
                    bytes_per_s: Some(60 << 20),
                    burst_ms: Some(1),
                    ..NONE
                };
            }
        });
        let association = rig.connect(options().with_lanes(2).with_depth(32));
        for nsid in [1, 2] {
            let namespace = association.namespace(Nsid::new(nsid)).expect("a namespace");
            let mut lanes = association.lanes().expect("lanes");
            let mut model = Model::new(&namespace, 1);
            let load = Load { commands: 600, bytes: 4 << 20, blocks_max: 32 };
            model.run(&mut lanes, &namespace, load, &mut SplitMix64::new(nsid.into()));
        }
        let throttled = rig.state().subsystems[0]
            .namespaces
            .iter()
            .map(|namespace| namespace.traffic)
            .collect::<Vec<_>>();
        assert!(throttled.iter().all(|traffic| traffic.throttled_count > 100), "{throttled:?}");
        drop(association);
        assert_eq!(rig.stop(), 0);
    }
}
