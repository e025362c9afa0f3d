//! What hosts that connect admin queues, and do not authenticate, hold and use up at a target.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::time::{Duration, Instant};

use allocators::CountingAllocator;
use nvlane_subsystem::config::{SecretSource, SecretSources, TimeoutConfig};
use nvlane_subsystem::server::Target;
use peer::queue::Queue;
use rustix::time::{ClockId, clock_gettime};
use wire::fabrics::ConnectResult;
use wire::nqn::HostId;
use wire::pdu::Digests;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const HOST_COUNT: usize = 1000;

/// What a connection may hold, the raw host's own end in this process included.
const HELD_BYTES_MAX: usize = 16 << 10;

/// Processor time of all of them while they wait, percent of a core.
const WAITING_PERCENT_MAX: f64 = 1.0;

const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

/// Processor time of this process, s.
fn processor_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[test]
fn a_thousand_hosts_that_do_not_authenticate_hold_little_and_compute_nothing() {
    linux::allow_descriptors();
    let directory = tempfile::tempdir().expect("a directory");
    let key = directory.path().join("key");
    fs::write(&key, SECRET).expect("a file");
    let mut config = support::block_config(1, TimeoutConfig::default());
    let sources = SecretSources { host: SecretSource::File(key), controller: None };
    config.subsystems[0].authentication.others = Some(sources);
    let target = Target::start(&config).expect("a target");
    let connect = |number: usize| {
        let mut host = support::host(&target);
        host.nqn = format!("nqn.2026-01.io.nvlane:host-{number}").parse().expect("a name");
        host.hostid =
            HostId::from_bytes([&[1; 8][..], &number.to_le_bytes()].concat().try_into().expect("16"));
        let mut queue = host.queue(Digests::empty()).expect("a connection");
        let answer = host.connect_admin(&mut queue).expect("accepted");
        assert!(ConnectResult::from_bits(answer.cqe.dw0()).authentication_required());
        queue
    };
    // The first ones have the target make what all share.
    let first: Vec<Queue> = (HOST_COUNT..HOST_COUNT + 10).map(connect).collect();
    let before = CountingAllocator::held_bytes();
    let queues: Vec<Queue> = (0..HOST_COUNT).map(connect).collect();
    let held = CountingAllocator::held_bytes() - before;
    let (begun, used) = (Instant::now(), processor_s());
    std::thread::sleep(Duration::from_secs(2));
    let percent = (processor_s() - used) / begun.elapsed().as_secs_f64() * 100.0;
    println!("{} bytes each, {percent:.3} % of a core", held / HOST_COUNT);
    assert!(held / HOST_COUNT <= HELD_BYTES_MAX, "{} bytes each", held / HOST_COUNT);
    assert!(percent < WAITING_PERCENT_MAX, "{percent} % of a core");
    drop((first, queues));
    target.stop().expect("a good end");
}
