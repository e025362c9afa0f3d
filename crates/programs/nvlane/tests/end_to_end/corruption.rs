//! A network that flips bits: with digests, no wrong byte is accepted in either direction.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use host::{Failure, ReconnectSettings};
use wire::status::Status;

use crate::churn::Churn;
use crate::relay::{Cut, Relay};
use crate::setup::{Over, PATIENCE, Rig, connect_to, engines, options};

#[test]
fn changed_bits_are_found_and_never_stored() {
    for engine in engines() {
        for in_capsule in [0, u32::MAX] {
            let rig = Rig::new(engine, &["ram:1M"]);
            let relay = Relay::new(rig.socket_address(), Cut::Flip(400_000));
            let reconnect = ReconnectSettings::default()
                .with_delay_first(Duration::from_millis(2))
                .with_delay_max(Duration::from_millis(20))
                .with_give_up_after(Some(Duration::from_secs(60)));
            let options = options().tuned(|tuning| tuning.in_capsule_bytes_max = in_capsule).with_digests();
            let association = connect_to(relay.address(), options.clone().with_reconnect(reconnect));
            let lane = association.lane().expect("a lane");
            let namespace = association.addressed_namespace().expect("one namespace");
            let (is_over, failed) = (AtomicBool::new(false), AtomicU64::new(0));
            let churn = std::thread::scope(|scope| {
                let load = scope.spawn(|| {
                    let mut churn = Churn::new(lane, namespace);
                    churn.run(&is_over, |failure, is_write| {
                        failed.fetch_add(1, Ordering::Relaxed);
                        match failure {
                            Failure::Interrupted => is_write,
                            Failure::Status(status) => status.is(Status::TRANSIENT_TRANSPORT_ERROR),
                            _ => false,
                        }
                    });
                    churn
                });
                let over = Over(&is_over);
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(700) || failed.load(Ordering::Relaxed) == 0 {
                    assert!(start.elapsed() < PATIENCE, "no bit was changed");
                    std::thread::sleep(Duration::from_millis(10));
                }
                drop(over);
                load.join().expect("data that is right")
            });
            let clean = rig.connect(options);
            let lane = clean.lane().expect("a lane");
            churn.with_lane(lane).check_all();
        }
    }
}
