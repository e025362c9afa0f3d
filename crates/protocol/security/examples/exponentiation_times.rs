//! Prints how long an authentication computes in each group: `cargo run --release -p nvlane-security --example
//! exponentiation_times`.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use nvlane_security::controller::{ControllerAuthentication, ControllerSettings, Received};
use nvlane_security::fresh::{Fresh, RANDOM_BYTES};
use nvlane_security::group::Group;
use nvlane_security::hash::HashFunction;
use nvlane_security::host::{HostAuthentication, HostSettings};
use nvlane_security::message::MESSAGE_BYTES_MAX;
use nvlane_security::names::Names;
use nvlane_security::secret::Secret;
use nvlane_security::secure_channel::SecureChannel;

fn main() {
    println!("group       controller, two exponentiations   host, two in one");
    for group in Group::ALL.into_iter().skip(1) {
        // The shortest of ten: other work on the machine only adds.
        let times = (0..10).map(|_| times(group));
        let (controller, host) =
            times.reduce(|one, two| (one.0.min(two.0), one.1.min(two.1))).unwrap_or_default();
        println!(
            "{group:<11} {:>11.1} ms {:>31.1} ms",
            1e3 * controller.as_secs_f64(),
            1e3 * host.as_secs_f64()
        );
    }
}

/// Times of exponentiations of both sides.
fn times(group: Group) -> (Duration, Duration) {
    let secret = Secret::new(None, vec![7; 32].into()).expect("32 bytes");
    let names = Names {
        host: "nqn.2016-06.io.nvlane:host".parse().expect("a name"),
        subsystem: "nqn.2016-06.io.nvlane:sub1".parse().expect("a name"),
    };
    let (hashes, groups) = (vec![HashFunction::Sha256], vec![group]);
    let fresh = |byte| Fresh::new(&[byte; RANDOM_BYTES], NonZeroU32::MIN);
    let mut controller = ControllerAuthentication::new(ControllerSettings {
        names: names.clone(),
        host: secret.clone(),
        controller: None,
        earlier: Vec::new(),
        hashes: hashes.clone(),
        groups: groups.clone(),
        secure_channel: SecureChannel::None,
    });
    let secure_channel = SecureChannel::None;
    let settings = HostSettings { names, host: secret, controller: None, hashes, groups, secure_channel };
    let mut host = HostAuthentication::new(settings, 1, fresh(0x5A));
    let mut times = (Duration::ZERO, Duration::ZERO);
    while host.outcome().is_none() {
        if let Some(message) = host.next_send() {
            controller.on_send(&message, fresh(0xA5));
        }
        if let Some(exponentiation) = controller.next_exponentiation() {
            let start = Instant::now();
            let result = exponentiation.run();
            times.0 += start.elapsed();
            controller.on_exponentiated(result);
        }
        if let Some(exponentiation) = host.next_exponentiation() {
            let start = Instant::now();
            let result = exponentiation.run();
            times.1 += start.elapsed();
            host.on_exponentiated(result);
        }
        if host.wants_receive()
            && let Received::Message(message) = controller.on_receive(MESSAGE_BYTES_MAX)
        {
            host.on_receive(&message);
        }
    }
    assert!(controller.authenticated().is_some());
    times
}
