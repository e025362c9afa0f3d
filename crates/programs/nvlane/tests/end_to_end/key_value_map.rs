//! Hosts that know how the target divides keys: their lanes are near the partitions, batches are divided, and all goes on
//! where the map changes or there is none.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use host::{AsyncKeyValue, Batch, BlockingKeyValue, Key, Options, ReconnectSettings, StoreOptions};
use reactor::EngineKind;
use subsystem::config::Threads;

use crate::key_value::block_on;
use crate::setup::{Rig, address_of, engines, options};

fn rig(engine: EngineKind, threads: u16, storage: &str) -> Rig {
    Rig::with(engine, &[storage], |config| config.reactors.threads = Threads::Count(threads))
}

fn connect(rig: &Rig, options: Options) -> BlockingKeyValue {
    BlockingKeyValue::connect(&address_of(rig.socket_address()), options).expect("connected")
}

fn key(number: u32) -> Key {
    Key::new(format!("key-{number}").as_bytes()).expect("1 to 16 bytes")
}

/// Stores and retrieves 300 values, alternately, in batches.
fn exercise(keys: &mut BlockingKeyValue, what: u8) {
    let mut batch: Batch = keys.batch().expect("a batch");
    for first in (0..300u32).step_by(60) {
        batch.clear();
        for number in first..first + 60 {
            let value = [&[what], &number.to_le_bytes()[..]].concat();
            batch.store(&key(number), &value, StoreOptions::empty()).expect("room");
            batch.retrieve(&key(number), 8).expect("room");
        }
        let outcomes = keys.run_batch(&mut batch).expect("run");
        let got: Vec<Vec<u8>> = outcomes.skip(1).step_by(2).map(|outcome| outcome.data.to_vec()).collect();
        let expected = |number: u32| [&[what], &number.to_le_bytes()[..]].concat();
        assert_eq!(got, (first..first + 60).map(expected).collect::<Vec<_>>());
    }
    for number in 0..300 {
        let value = keys.retrieve(&key(number)).expect("asked").expect("there");
        assert_eq!(value, [&[what], &number.to_le_bytes()[..]].concat());
    }
}

#[test]
fn lanes_are_near_the_partitions_of_their_keys() {
    for engine in engines() {
        let rig = rig(engine, 3, "kv:ram:64M");
        let mut keys = connect(&rig, options().with_lanes(4));
        assert_eq!(keys.key_lane_count(), 4);
        exercise(&mut keys, 1);
        let state = rig.state();
        let controllers = state.subsystems.iter().flat_map(|subsystem| &subsystem.controllers);
        let queues: Vec<_> = controllers.flat_map(|controller| controller.queues.clone()).collect();
        assert_eq!(queues.len(), 4);
        for queue in queues {
            assert_eq!(queue.reactor, (queue.qid - 1) % 3, "{queue:?}");
            // Of 300 single commands and a part of each batch.
            assert!(queue.receive_count > 40, "{queue:?} has worked");
        }
        let counters = state.placement.expect("reactors that were asked").counters;
        assert_eq!((counters.by_partition, counters.by_load, counters.stuck), (4, 0, 0));
    }
}

#[test]
fn without_a_lane_for_each_partition_all_is_as_without_a_map() {
    let rig = rig(EngineKind::Epoll, 3, "kv:ram:64M");
    for (options, what) in [
        (options().with_lanes(2), 1),
        (options().with_lanes(4).tuned(|tuning| tuning.follows_partitions = false), 2),
    ] {
        let mut keys = connect(&rig, options);
        assert_eq!(keys.key_lane_count(), 1);
        exercise(&mut keys, what);
    }
    let counters = rig.state().placement.expect("reactors that were asked").counters;
    assert_eq!((counters.by_partition, counters.by_load), (0, 2));
}

/// The target comes back with another number of reactors, with one, with more than the host has lanes, and with its first
/// number: each time the host goes on, and learns how keys are divided.
#[test]
fn a_host_goes_on_when_the_map_changes() {
    for engine in engines() {
        let mut rig = rig(engine, 2, "kv:ram:64M");
        let reconnect = ReconnectSettings::default();
        let mut keys = connect(&rig, options().with_lanes(3).with_reconnect(reconnect));
        assert_eq!(keys.key_lane_count(), 3);
        exercise(&mut keys, 0);
        for (threads, lanes) in [(3, 3), (1, 1), (2, 3), (4, 1), (3, 3)] {
            rig.stop();
            rig.config.reactors.threads = Threads::Count(threads);
            rig.start();
            // Reads are sent again, on every lane: a batch that is sent before its lane has noticed is not.
            for number in 0..50 {
                assert_eq!(keys.retrieve(&key(number)).expect("asked"), None);
            }
            exercise(&mut keys, threads as u8);
            assert_eq!(keys.key_lane_count(), lanes, "{threads} reactors");
            exercise(&mut keys, threads as u8 + 100);
        }
    }
}

#[test]
fn a_namespace_with_a_log_has_no_map() {
    let directory = tempfile::tempdir().expect("a directory");
    let storage = format!("kv:file:{}?size=64M", directory.path().join("pairs").display());
    let rig = rig(EngineKind::Epoll, 2, &storage);
    let mut keys = connect(&rig, options().with_lanes(2));
    assert_eq!(keys.key_lane_count(), 1);
    exercise(&mut keys, 1);
}

/// Polls all of them in turn until each is ready.
async fn all(mut futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    std::future::poll_fn(move |context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Commands on a key take one lane, so the last one called is the last one executed, also beside divided batches.
#[test]
fn commands_on_a_key_keep_the_order_of_their_calls() {
    for engine in engines() {
        let rig = rig(engine, 2, "kv:ram:64M");
        let options = options().with_lanes(4);
        let keys =
            block_on(AsyncKeyValue::connect(&address_of(rig.socket_address()), options)).expect("connected");
        block_on(async {
            for round in 0..100u32 {
                let mut calls: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
                for number in 0..16u32 {
                    let (keys, value) = (&keys, (round * 16 + number).to_le_bytes());
                    if number % 5 == 4 {
                        let mut batch = keys.batch().expect("a batch");
                        for other in 0..8 {
                            batch.store(&key(other), &value, StoreOptions::empty()).expect("room");
                        }
                        calls.push(Box::pin(async move {
                            let outcomes = keys.run_batch(batch).await.expect("run");
                            assert!(outcomes.iter().all(|outcome| outcome.status.is_success()));
                            assert_eq!(outcomes.iter().count(), 8);
                        }));
                    } else {
                        calls.push(Box::pin(async move {
                            keys.store(&key(number % 8), value.to_vec()).await.expect("stored");
                        }));
                    }
                }
                all(calls).await;
                for number in 0..8u32 {
                    // 14 is a batch of all; 15 is a store of key 7.
                    let last = round * 16 + if number == 7 { 15 } else { 14 };
                    let value = keys.retrieve(&key(number)).await.expect("asked").expect("there");
                    assert_eq!(value, last.to_le_bytes(), "key {number} of round {round}");
                }
            }
        });
    }
}
