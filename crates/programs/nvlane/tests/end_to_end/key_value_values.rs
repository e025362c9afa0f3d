//! Keys of up to 250 bytes, many at once, and ranges of values: docs/kv-commands.md §4.6 and §7. In memory and with a log,
//! with one reactor and several, through NVMe and memcached.
#![allow(clippy::single_range_in_vec_init)] // Ranges of values.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use host::{
    BlockingKeyValue, Key, Moved, Options, Pin, StoreAttributes, StoreOptions, ValueLanes, ValueTransfer,
};
use peer::queue::{Answer, Move, Queue, Step};
use peer::raw_host::{Association, set_queues};
use reactor::EngineKind;
use subsystem::config::Threads;
use tempfile::TempDir;
use wire::id::Nsid;
use wire::kv::batch::{BatchCollect, BatchSubmit, Operation};
use wire::kv::presence::presence_bytes;
use wire::kv::value::{FLAGS_FOLLOW, RetrieveSubmit, StoreData, StoreFlags, StoreSubmit};
use wire::opcode::KvOpcode;
use wire::pdu::{DataAlignment, Digests, IcReq};
use wire::status::Status;

use crate::raw::RawHost;
use crate::setup::{PATIENCE, Rig, address_of, engines, options};

const ONE: Nsid = Nsid::new(1);
const MIB: usize = 1 << 20;

/// Targets in memory and with a log, of one reactor and of several.
fn rigs(engine: EngineKind, directory: &TempDir) -> Vec<Rig> {
    let file = |number| {
        format!(
            "kv:file:{}?size=4G&memory=64M&item=8M&sparse",
            directory.path().join(format!("{number}")).display()
        )
    };
    [(1, "kv:ram:64M".to_owned()), (3, "kv:ram:64M".into()), (1, file(1)), (2, file(2))]
        .into_iter()
        .map(|(threads, storage)| rig(engine, threads, &storage))
        .collect()
}

fn rig(engine: EngineKind, threads: u16, storage: &str) -> Rig {
    Rig::with(engine, &[storage], |config| {
        config.reactors.threads = Threads::Count(threads);
        config.memcached = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()];
    })
}

fn keys_of(rig: &Rig) -> BlockingKeyValue {
    BlockingKeyValue::connect(&address_of(rig.socket_address()), options()).expect("connected")
}

fn lanes_of(rig: &Rig, options: Options) -> ValueLanes {
    ValueLanes::connect(&address_of(rig.socket_address()), options).expect("connected")
}

/// A key of this length.
fn name(number: usize, length: usize) -> Vec<u8> {
    let mut name = format!("{number}-").into_bytes();
    name.resize(length.max(name.len()), b'x');
    name
}

fn value(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + seed + (at >> 10)) as u8).collect()
}

/// The answer of memcached to a line, up to its end.
fn ask(client: &mut BufReader<TcpStream>, line: &str) -> String {
    client.get_mut().write_all(format!("{line}\r\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    client.read_line(&mut answer).expect("a line");
    answer.trim_end().to_owned()
}

/// The statistics whose names begin so, without that.
fn stats(client: &mut BufReader<TcpStream>, start: &str) -> Vec<String> {
    let (mut line, mut found) = (ask(client, "stats"), Vec::new());
    while line != "END" {
        found.extend(line.strip_prefix("STAT ").and_then(|line| line.strip_prefix(start)).map(str::to_owned));
        line.clear();
        client.read_line(&mut line).expect("a line");
        line.truncate(line.trim_end().len());
    }
    found
}

fn client(rig: &Rig) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(rig.memcached()).expect("a memcached listener");
    stream.set_read_timeout(Some(PATIENCE)).expect("an option");
    BufReader::new(stream)
}

#[test]
fn values_longer_than_a_transfer_move_beside_block_namespaces() {
    let directory = tempfile::tempdir().expect("a directory");
    let file =
        format!("kv:file:{}?size=4G&memory=64M&item=8M&sparse", directory.path().join("log").display());
    for (threads, storage) in [(1, "kv:ram:64M"), (2, "kv:ram:64M"), (2, &file)] {
        let mut rig = Rig::with(EngineKind::Epoll, &["ram:1M", storage], |config| {
            config.reactors.threads = Threads::Count(threads);
        });
        let mut keys = keys_of(&rig);
        let limit = keys.namespace().value_bytes_max() as usize;
        assert_eq!(limit, MIB, "of one command: MDTS");
        let longest = keys.namespace().paired_value_bytes_max() as usize;
        assert!(longest > 3 * MIB + 3, "{longest} bytes of {storage}, {threads} reactors");
        let short = Key::new(b"short").expect("a key");
        assert!(keys.store(&short, &value(limit + 1, 0)).is_err());
        let mut lanes = lanes_of(&rig, options());
        for (key, length) in
            [(b"short".to_vec(), 3 * MIB + 3), (name(1, 200), 3 * MIB), (name(2, 16), limit + 1)]
        {
            let stored = value(length, 7);
            let mut transfers = [ValueTransfer::new(&key, vec![stored.clone()])];
            lanes.store(&mut transfers, 0).expect("commands");
            assert!(transfers[0].is_whole(), "{:?}", transfers[0].moved);
            let mut transfers = [ValueTransfer::new(&key, vec![vec![0; length]])];
            lanes.retrieve(&mut transfers).expect("commands");
            assert!(transfers[0].is_whole() && transfers[0].pieces[0] == stored, "{:?}", transfers[0].moved);
        }
        rig.stop();
    }
}

#[test]
fn keys_of_up_to_250_bytes_are_those_of_memcached() {
    let directory = tempfile::tempdir().expect("a directory");
    for rig in rigs(EngineKind::Epoll, &directory) {
        let mut keys = keys_of(&rig);
        let mut client = client(&rig);
        assert_eq!(keys.namespace().long_key_bytes_max(), 250);
        for length in [1, 16, 17, 108, 250] {
            // Two keys that differ in their last byte are two keys.
            let (one, mut other) = (vec![b'k'; length], vec![b'k'; length]);
            other[length - 1] = b'o';
            let text = |key: &[u8]| String::from_utf8(key.to_vec()).expect("ASCII");
            let mut batch = keys.batch().expect("a batch");
            let store = Operation::on(KvOpcode::STORE, &one);
            batch.push(&Operation { operand: b"nvme", ..store }).expect("room");
            batch
                .push(&Operation { room_bytes: 16, ..Operation::on(KvOpcode::RETRIEVE, &other) })
                .expect("room");
            let ends: Vec<_> =
                keys.run_batch(&mut batch).expect("run").map(|outcome| outcome.status).collect();
            assert!(
                ends[0].is_success() && ends[1].is(Status::KEY_DOES_NOT_EXIST),
                "{length} bytes: {ends:?}"
            );
            assert_eq!(ask(&mut client, &format!("mg {} v", text(&one))), "VA 4");
            let mut rest = String::new();
            client.read_line(&mut rest).expect("a value");
            assert_eq!(rest, "nvme\r\n");
            assert_eq!(ask(&mut client, &format!("set {} 0 0 9\r\nmemcached", text(&other))), "STORED");
            batch.clear();
            batch
                .push(&Operation { room_bytes: 16, ..Operation::on(KvOpcode::RETRIEVE, &other) })
                .expect("room");
            batch.push(&Operation::on(KvOpcode::DELETE, &one)).expect("room");
            let got: Vec<Vec<u8>> =
                keys.run_batch(&mut batch).expect("run").map(|outcome| outcome.data.to_vec()).collect();
            assert_eq!(got, [b"memcached".to_vec(), Vec::new()]);
            assert_eq!(ask(&mut client, &format!("mg {} v", text(&one))), "EN");
        }
    }
}

#[test]
fn a_thousand_keys_are_tested_in_one_batch() {
    let directory = tempfile::tempdir().expect("a directory");
    for rig in rigs(EngineKind::Epoll, &directory) {
        let mut keys = keys_of(&rig);
        let names: Vec<Vec<u8>> =
            (0..2500).map(|number| name(number, [5, 16, 108, 250][number % 4])).collect();
        let is_there = |number: usize| number < 40 || number.is_multiple_of(3);
        let mut batch = keys.batch().expect("a batch");
        for names in names.chunks(500).enumerate().map(|(at, names)| (at * 500, names)) {
            batch.clear();
            for (number, name) in names.1.iter().enumerate().filter(|(number, _)| is_there(names.0 + number))
            {
                let operand = &number.to_le_bytes()[..];
                batch.push(&Operation { operand, ..Operation::on(KvOpcode::STORE, name) }).expect("room");
            }
            assert!(keys.run_batch(&mut batch).expect("run").all(|outcome| outcome.status.is_success()));
        }
        let all: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        for asked in [&all[..], &all[..1024], &all[..1], &all[..0]] {
            let presence = keys.exist_many(asked).expect("asked");
            assert_eq!(presence.len(), asked.len());
            assert!(presence.iter().enumerate().all(|(number, found)| found == is_there(number)));
            let run = (0..asked.len()).take_while(|number| is_there(*number)).count();
            assert_eq!(presence.leading_run(), run);
        }
        assert!(keys.exist_many(&[&[7; 251]]).is_err());
        assert!(keys.exist_many(&[b"a", b""]).is_err());
    }
}

/// Keys that were only tested are evicted as if they had not been, and no key is marked as fetched.
#[test]
fn testing_keys_marks_none_as_used() {
    let directory = tempfile::tempdir().expect("a directory");
    for rig in rigs(EngineKind::Epoll, &directory) {
        let (mut keys, mut client) = (keys_of(&rig), client(&rig));
        let long = "k".repeat(100);
        assert_eq!(ask(&mut client, &format!("set {long} 0 0 50\r\n{}", "v".repeat(50))), "STORED");
        for _ in 0..3 {
            assert_eq!(keys.exist_many(&[long.as_bytes()]).expect("asked").present_count(), 1);
        }
        assert_eq!(ask(&mut client, &format!("mg {long} h")), "HD h0");
        assert_eq!(ask(&mut client, &format!("mg {long} h")), "HD h1", "memcached has read it");
    }
}

/// Pins a host's pairs, of short and long keys and values, and stores several times the memory behind them.
#[test]
fn pinned_pairs_stay_while_others_are_evicted() {
    for threads in [1, 2] {
        let rig = rig(EngineKind::Epoll, threads, "kv:ram:8M");
        let (mut keys, mut lanes) = (keys_of(&rig), lanes_of(&rig, options()));
        let store = |lanes: &mut ValueLanes, name: &[u8], length: usize| {
            let mut transfers = [ValueTransfer::new(name, vec![vec![7; length]])];
            lanes.store(&mut transfers, 0).expect("stored");
            transfers[0].is_whole()
        };
        let names: Vec<Vec<u8>> = (0..40).map(|number| name(number, [5, 16, 108, 250][number % 4])).collect();
        for (number, name) in names.iter().enumerate() {
            assert!(store(&mut lanes, name, [1, 300, 9_000, 100_000][number % 4]));
        }
        let all: Vec<&[u8]> = names.iter().map(Vec::as_slice).chain([&b"nobody"[..]]).collect();
        let pinned = keys.pin_many(&all, Pin::For { seconds: 600 }).expect("asked");
        assert_eq!((pinned.present_count(), pinned.leading_run()), (40, 40));
        let fill = |lanes: &mut ValueLanes, round: usize| {
            (0..400).for_each(|number| assert!(store(lanes, &name(1000 * round + number, 50), 50_000)));
        };
        fill(&mut lanes, 1);
        assert_eq!(keys.exist_many(&all).expect("asked").present_count(), 40);
        let mut client = client(&rig);
        let pinned = stats(&mut client, "pinned_");
        assert_eq!(pinned[0], "items 40");
        assert!(pinned[1].starts_with("bytes 11"), "{pinned:?}");
        // More than half of a partition is refused, but with the option that is no failure.
        let rest: Vec<Vec<u8>> = (0..120).map(|number| name(1000 + 280 + number, 50)).collect();
        let rest: Vec<&[u8]> = rest.iter().map(Vec::as_slice).collect();
        let found = lanes.pin(&rest, Pin::IfRoom { seconds: 600 }).expect("asked").present_count();
        assert!(found > 80, "{found}");
        let refused = lanes.pin(&rest, Pin::For { seconds: 600 }).expect("asked").present_count();
        assert!((20..found).contains(&refused), "{refused} of {found}");
        // Each of these was pinned twice.
        assert_eq!(lanes.pin(&rest, Pin::End).expect("asked").present_count(), found);
        fill(&mut lanes, 2);
        assert_eq!(keys.exist_many(&rest).expect("asked").present_count(), refused);
        assert_eq!(lanes.pin(&rest, Pin::End).expect("asked").present_count(), refused);
        assert_eq!(keys.pin_many(&all, Pin::End).expect("asked").present_count(), 40);
        (3..8).for_each(|round| fill(&mut lanes, round));
        assert!(keys.exist_many(&all).expect("asked").present_count() < 10);
        let refused = keys.pin_many(&all, Pin::For { seconds: 86_401 }).unwrap_err().to_string();
        assert!(refused.contains("a pin of 86401 seconds: it must have 1 to 86400"), "{refused}");
    }
}

/// Commands that need a value are counted by where it is: in memory, in the log alone, or nowhere.
#[test]
fn hits_are_counted_by_tier() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("kv:file:{}?size=64M&memory=2M&sparse", directory.path().join("pairs").display());
    for engine in engines() {
        let rig = rig(engine, 1, &file);
        let (mut keys, mut client) = (keys_of(&rig), client(&rig));
        let key = |number: usize| Key::new(format!("key-{number}").as_bytes()).expect("a key");
        (0..100).for_each(|number| keys.store(&key(number), &[7; 50_000]).expect("stored"));
        assert!(keys.exist(&key(0)).expect("asked"));
        for number in 0..101 {
            assert_eq!(keys.retrieve(&key(number)).expect("retrieved").is_some(), number < 100);
        }
        assert_eq!(ask(&mut client, "get nobody"), "END");
        let hits = stats(&mut client, "tier_");
        let count =
            |at: usize| hits[at].split_once(' ').expect("a number").1.parse::<u32>().expect("a number");
        // The first value is longer than its buffer, and retrieved once more.
        assert_eq!((count(0) + count(1), count(2)), (101, 2), "{hits:?}");
        assert!(count(1) >= 60, "2 MiB hold fewer than 40 values: {hits:?}");
        keys.delete(&key(0)).expect("deleted");
        drop(rig);
        std::fs::remove_file(directory.path().join("pairs")).expect("removed");
    }
}

/// Where nothing is evicted a pin is success, and does nothing.
#[test]
fn what_is_never_evicted_can_be_pinned() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("kv:file:{}?size=64M&memory=2M&sparse", directory.path().join("pairs").display());
    for rig in [rig(EngineKind::Epoll, 2, &file), rig(EngineKind::Epoll, 1, "kv:ram:4M?evict=none")] {
        let mut keys = keys_of(&rig);
        keys.store(&Key::new(b"a").expect("a key"), b"value").expect("stored");
        let presence = keys.pin_many(&[b"a", b"nobody"], Pin::For { seconds: 1 }).expect("asked");
        assert_eq!(presence.iter().collect::<Vec<_>>(), [true, false]);
        let mut batch = keys.batch().expect("a batch");
        batch.pin(b"a", Pin::End).expect("room");
        batch.pin(b"nobody", Pin::End).expect("room");
        batch.push(&Operation { operand: &[1, 2], ..Operation::on(KvOpcode::PIN, b"a") }).expect("room");
        let ended: Vec<Status> =
            keys.run_batch(&mut batch).expect("run").map(|outcome| outcome.status).collect();
        assert_eq!(ended, [Status::SUCCESS, Status::KEY_DOES_NOT_EXIST, Status::INVALID_FIELD]);
    }
}

#[test]
fn values_move_between_many_buffers_and_the_target() {
    let directory = tempfile::tempdir().expect("a directory");
    let rings = engines().into_iter().filter(|engine| *engine != EngineKind::Epoll);
    let rings = rings.map(|engine| rig(engine, 2, "kv:ram:64M"));
    for rig in rigs(EngineKind::Epoll, &directory).into_iter().chain(rings) {
        for lanes in [1, 3] {
            let mut values = lanes_of(&rig, options().with_lanes(lanes));
            let lengths = [1, 15, 16, 4096, 4097, MIB - 1, MIB, 2 * MIB + 7, 3 * MIB];
            let names: Vec<_> = (0..lengths.len()).map(|number| name(number, 3 + 30 * number)).collect();
            let pieces = |length: usize, seed: usize| -> Vec<Vec<u8>> {
                value(length, seed).chunks(length.div_ceil(3)).map(<[u8]>::to_vec).collect()
            };
            let mut transfers: Vec<_> = lengths
                .iter()
                .enumerate()
                .map(|(at, length)| ValueTransfer::new(&names[at], pieces(*length, at + lanes as usize)))
                .collect();
            values.store(&mut transfers, 0).expect("sent");
            assert!(transfers.iter().all(ValueTransfer::is_whole), "{:?}", moved(&transfers));
            for transfer in &mut transfers {
                transfer.pieces.iter_mut().for_each(|piece| piece.fill(0xEE));
            }
            transfers.push(ValueTransfer::new(b"nobody", vec![vec![0xEE; 10]]));
            transfers.push(ValueTransfer::new(&names[8], vec![vec![0xEE; 3 * MIB - 1]]));
            transfers.push(ValueTransfer::new(&names[8], vec![vec![0xEE; MIB]; 6]));
            transfers.push(ValueTransfer::new(&names[3], vec![vec![0xEE; 4097]]));
            values.retrieve(&mut transfers).expect("sent");
            let found: Vec<_> = moved(&transfers);
            assert!(found[..9].iter().all(|moved| *moved == Moved::Whole), "{found:?}");
            assert_eq!(found[9], Moved::Missing);
            assert_eq!(found[10..], [Moved::OtherLength; 3]);
            for (at, length) in lengths.into_iter().enumerate() {
                assert!(transfers[at].pieces == pieces(length, at + lanes as usize), "{length} bytes");
            }
            assert!(transfers[10].pieces[0].iter().all(|byte| *byte == 0xEE), "never a part");
            // Store if absent.
            let mut again = [ValueTransfer::new(&names[7], vec![vec![1; 2 * MIB]])];
            again[0].options = StoreOptions::MUST_NOT_EXIST;
            values.store(&mut again, 0).expect("sent");
            assert_eq!(again[0].moved, Moved::Missing);
        }
    }
}

#[test]
fn values_wait_for_memory_that_others_arrive_in() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("kv:file:{}?size=1G&memory=8M&sparse", directory.path().join("log").display());
    for (threads, storage) in [(2, "kv:ram:8M"), (1, "kv:ram:4M"), (2, &file)] {
        let rig = rig(EngineKind::Epoll, threads, storage);
        // Each lane begins a value, and together they need more than there is.
        let mut values = lanes_of(&rig, options().with_lanes(8));
        let longest = values.namespace().paired_value_bytes_max() as usize;
        for length in [256 << 10, MIB - 1, MIB, MIB + (256 << 10)] {
            let length = length.min(longest);
            for round in 0..4 {
                let names: Vec<_> = (0..8).map(|number| name(8 * round + number, 40)).collect();
                let mut transfers: Vec<_> =
                    names.iter().map(|name| ValueTransfer::new(name, vec![value(length, round)])).collect();
                values.store(&mut transfers, 0).expect("sent");
                let all_are = transfers.iter().all(ValueTransfer::is_whole);
                assert!(all_are, "{length} bytes to {storage}: {:?}", moved(&transfers));
            }
        }
    }
}

#[test]
fn empty_values_are_values() {
    let directory = tempfile::tempdir().expect("a directory");
    for rig in rigs(EngineKind::Epoll, &directory) {
        let mut values = lanes_of(&rig, options().with_lanes(2)).with_checksums();
        let long = name(1, 200);
        let mut transfers = [
            ValueTransfer::new(b"none", vec![]),
            ValueTransfer::new(&long, vec![vec![], vec![]]),
            ValueTransfer::new(b"one", vec![vec![], vec![1]]),
        ];
        values.retrieve(&mut transfers).expect("sent");
        assert_eq!(moved(&transfers), [Moved::Missing; 3]);
        values.store(&mut transfers, 100).expect("sent");
        values.retrieve(&mut transfers).expect("sent");
        assert_eq!(moved(&transfers), [Moved::Whole; 3]);
        assert_eq!(transfers[2].pieces, [vec![], vec![1]]);
        assert_eq!(ask(&mut client(&rig), "mg none v t"), "VA 0 t100");
        let mut other = [ValueTransfer::new(b"one", vec![]), ValueTransfer::new(b"none", vec![vec![7; 5]])];
        values.retrieve(&mut other).expect("sent");
        assert_eq!(moved(&other), [Moved::OtherLength; 2]);
        assert_eq!(other[1].pieces, [[7; 5]]);
        transfers[0].options = StoreOptions::MUST_NOT_EXIST;
        values.store(&mut transfers[..1], 0).expect("sent");
        assert_eq!(transfers[0].moved, Moved::Missing);
        assert_eq!(values.value_bytes(&long).expect("asked"), Some(0));
        let keys: [&[u8]; 4] = [b"none", &long, b"nobody", b"one"];
        let found: Vec<_> = values.exist(&keys).expect("asked").iter().collect();
        assert_eq!(found, [true, true, false, true]);
        values.delete(&keys).expect("deleted");
        assert_eq!(values.exist(&keys).expect("asked").present_count(), 0);
        assert_eq!(values.value_bytes(&long).expect("asked"), None);
        let too_long = [0; 251];
        assert!(values.store(&mut [ValueTransfer::new(&too_long, vec![])], 0).is_err());
        assert!(values.delete(&[b"one", b""]).is_err() && values.exist(&[&too_long]).is_err());
    }
}

/// More keys than a batch has room for, by several lanes at once.
#[test]
fn many_batches_of_keys_are_tested_and_deleted_in_order() {
    let rig = rig(EngineKind::Epoll, 2, "kv:ram:64M");
    let mut values = lanes_of(&rig, options().with_lanes(3));
    let names: Vec<Vec<u8>> = (0..5000).map(|number| name(number, 100)).collect();
    let is_there = |number: usize| number.is_multiple_of(3);
    let stored = names.iter().enumerate().filter(|(number, _)| is_there(*number));
    let mut transfers: Vec<_> =
        stored.map(|(number, name)| ValueTransfer::new(name, vec![vec![1; number % 4]])).collect();
    values.store(&mut transfers, 0).expect("sent");
    assert!(transfers.iter().all(ValueTransfer::is_whole));
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let presence = values.exist(&keys).expect("asked");
    assert_eq!(presence.len(), keys.len());
    assert!(presence.iter().enumerate().all(|(number, found)| found == is_there(number)));
    values.delete(&keys[..4000]).expect("deleted");
    let presence = values.exist(&keys).expect("asked");
    assert!(presence.iter().enumerate().all(|(number, found)| found == (number >= 4000 && is_there(number))));
    assert!(values.exist(&[]).expect("nothing").is_empty());
}

fn moved(transfers: &[ValueTransfer<'_, Vec<u8>>]) -> Vec<Moved> {
    transfers.iter().map(|transfer| transfer.moved).collect()
}

#[test]
fn values_with_a_time_to_live_expire() {
    let directory = tempfile::tempdir().expect("a directory");
    for rig in rigs(EngineKind::Epoll, &directory) {
        let (mut keys, mut values) = (keys_of(&rig), lanes_of(&rig, options()));
        let mut client = client(&rig);
        let long = name(1, 100);
        let mut transfers = [ValueTransfer::new(&long, vec![vec![1; MIB + 5]])];
        values.store(&mut transfers, 100).expect("sent");
        let mut batch = keys.batch().expect("a batch");
        let second = StoreAttributes { ttl_s: 1, flags: 70_000 };
        batch.store_with(b"short", b"v", StoreOptions::MUST_NOT_EXIST, second).expect("room");
        batch
            .store_with(b"kept", b"v", StoreOptions::empty(), StoreAttributes { ttl_s: 0, flags: 7 })
            .expect("room");
        assert!(keys.run_batch(&mut batch).expect("run").all(|outcome| outcome.status.is_success()));
        let text = String::from_utf8(long.clone()).expect("ASCII");
        let left = ask(&mut client, &format!("mg {text} t"));
        let left: u32 = left.strip_prefix("HD t").and_then(|left| left.parse().ok()).expect("seconds");
        assert!((90..=100).contains(&left), "{left} s");
        assert_eq!(ask(&mut client, "mg kept t f"), "HD t-1 f7");
        let asked: [&[u8]; 3] = [b"short", b"kept", &long];
        let end = std::time::Instant::now() + PATIENCE;
        while keys.exist_many(&asked).expect("asked").contains(0) {
            assert!(std::time::Instant::now() < end, "it expires after a second");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(keys.exist_many(&asked).expect("asked").iter().collect::<Vec<_>>(), [false, true, true]);
    }
}

fn io_queue(rig: &Rig) -> Queue {
    let associated = RawHost::dialler(rig).associate(Digests::empty(), 32);
    let Association { admin, io, .. } = associated.unwrap_or_else(|finding| panic!("{finding}"));
    io.keeping(admin)
}

/// An I/O queue of a host that accepts two R2Ts of one command.
fn io_queue_of_two_r2ts(rig: &Rig) -> Queue {
    let host = RawHost::dialler(rig);
    let (mut admin, cntlid) = host.admin(Digests::empty()).expect("an admin queue");
    set_queues(&mut admin, 1).expect("a queue");
    let mut link = host.tcp().expect("connected");
    link.handshake(&IcReq::new(DataAlignment::NONE, Digests::empty(), 2)).expect("agreed");
    host.connect_io_over(link, cntlid, 1, 32).expect("connected").keeping(admin)
}

fn result(answer: &Answer) -> u64 {
    u64::from(answer.cqe.dw1()) << 32 | u64::from(answer.cqe.dw0())
}

/// Both answers of a command that waits and its Submit.
fn pair(
    io: &mut Queue,
    waiting: (wire::sqe::Sqe, Move<'_>),
    submit: wire::sqe::Sqe,
    data: &[u8],
) -> [Answer; 2] {
    let value: &[u8] = match waiting.1 {
        Move::Asked(value) => value,
        _ => &[],
    };
    let waiting = io.submit(waiting.0, waiting.1).expect("sent");
    let submit = io.submit(submit, Move::InCapsule(data)).expect("sent");
    let answers = io.finish_all(&[(waiting, value), (submit, data)]).expect("answered");
    answers.try_into().expect("two answers")
}

/// docs/kv-commands.md §4.6, §7
#[test]
fn what_cannot_be_is_refused_and_leaves_nothing_waiting() {
    let directory = tempfile::tempdir().expect("a directory");
    for rig in rigs(EngineKind::Epoll, &directory) {
        let mut values = lanes_of(&rig, options());
        let long = name(1, 30);
        let stored = value(2 * MIB + 100, 5);
        values.store(&mut [ValueTransfer::new(&long, vec![stored.clone()])], 0).expect("sent");
        let mut io = io_queue(&rig);
        let collect = |room| (BatchCollect { buffer_bytes: room, tag: 1 }.to_sqe(ONE), Move::Back(room));
        let good = RetrieveSubmit::new(1, &long, &[MIB as u32 - 2..MIB as u32 + 2, 0..4], 0).expect("ranges");
        // Alone it is out of sequence, as is what waits for another command.
        let alone = io.run(good.0.to_sqe(ONE), Move::InCapsule(&good.1)).expect("answered");
        assert!(alone.status().is(Status::COMMAND_SEQUENCE_ERROR));
        let [data, submitted] = pair(&mut io, collect(100), good.0.to_sqe(ONE), &good.1);
        assert!(data.status().is_success() && submitted.status().is_success());
        assert!(data.data == [&stored[MIB - 2..MIB + 2], &stored[..4]].concat());
        assert_eq!(result(&data), (stored.len() as u64) << 32 | 8);
        let whole = RetrieveSubmit { expected_bytes: stored.len() as u32, ..RetrieveSubmit::default() };
        let bytes = |command: RetrieveSubmit, data: &[u8]| (command, data.to_vec());
        let ranges = |ranges: &[std::ops::Range<u32>]| RetrieveSubmit::new(1, &long, ranges, 0).expect("few");
        let end = stored.len() as u32;
        for (what, (command, data), room, expected) in [
            (
                "a key of no bytes",
                bytes(RetrieveSubmit { data_bytes: 8, range_count: 1, ..good.0 }, &[0; 8]),
                64,
                Status::INVALID_FIELD,
            ),
            (
                "more ranges than data",
                bytes(RetrieveSubmit { range_count: 3, ..good.0 }, &good.1),
                64,
                Status::INVALID_FIELD,
            ),
            (
                "fewer ranges than data",
                bytes(RetrieveSubmit { range_count: 1, ..good.0 }, &good.1),
                64,
                Status::INVALID_FIELD,
            ),
            (
                "1025 ranges",
                bytes(
                    RetrieveSubmit { range_count: 1025, key_bytes: 1, data_bytes: 8201, ..good.0 },
                    &[0; 8201],
                ),
                64,
                Status::INVALID_FIELD,
            ),
            (
                "a key of 251 bytes",
                bytes(
                    RetrieveSubmit { range_count: 0, key_bytes: 251, data_bytes: 251, ..good.0 },
                    &[7; 251],
                ),
                64,
                Status::INVALID_FIELD,
            ),
            ("no data", bytes(RetrieveSubmit { data_bytes: 0, ..good.0 }, &[]), 64, Status::INVALID_FIELD),
            ("past the end", ranges(&[end - 1..end + 1]), 64, Status::INVALID_VALUE_SIZE),
            ("behind the end", ranges(&[u32::MAX..u32::MAX]), 64, Status::INVALID_VALUE_SIZE),
            ("more than the buffer", ranges(&[0..65]), 64, Status::INVALID_VALUE_SIZE),
            ("more than the value", ranges(&[0..end, 0..1]), u32::MAX, Status::INVALID_VALUE_SIZE),
            (
                "another length",
                RetrieveSubmit::new(1, &long, &[0..1], end - 1).expect("a range"),
                64,
                Status::INVALID_VALUE_SIZE,
            ),
            (
                "another key",
                RetrieveSubmit::new(1, b"nobody", &[], 0).expect("a key"),
                64,
                Status::KEY_DOES_NOT_EXIST,
            ),
        ] {
            let [data, submitted] = pair(&mut io, collect(room), command.to_sqe(ONE), &data);
            let ends = [data.status(), submitted.status()];
            assert!(ends.iter().all(|status| status.is(expected)), "{what}: {ends:?}");
            assert!(data.data.is_empty(), "{what}");
        }
        let empty = RetrieveSubmit::new(1, &long, &[3..3], whole.expected_bytes).expect("a range");
        let [data, submitted] = pair(&mut io, collect(1), empty.0.to_sqe(ONE), &empty.1);
        assert!(data.status().is_success() && submitted.status().is_success() && data.data.is_empty());
        // A Store Submit does not take a Collect, nor a Batch Submit or Retrieve Submit a Store Data.
        let store = |value: &[u8], key: &[u8]| StoreSubmit {
            value_bytes: value.len() as u32,
            key_bytes: key.len() as u8,
            tag: 1,
            ..StoreSubmit::default()
        };
        let new = value(MIB + 3, 6);
        let waits = StoreData { value_bytes: new.len() as u32, tag: 1 }.to_sqe(ONE);
        let waiting = io.submit(waits, Move::Asked(&new)).expect("sent");
        let second = io.run(waits, Move::Asked(&new)).expect("answered");
        assert!(second.status().is(Status::COMMAND_SEQUENCE_ERROR), "one tag twice: {}", second.status());
        let retrieve = io.run(good.0.to_sqe(ONE), Move::InCapsule(&good.1)).expect("answered");
        assert!(retrieve.status().is(Status::COMMAND_SEQUENCE_ERROR));
        let mut data = Vec::new();
        assert!(Operation::on(KvOpcode::EXIST, b"k").append_to(&mut data));
        let batch = BatchSubmit { data_bytes: 16, count: 1, tag: 1, outcome_bytes: 16, is_presence: false };
        let batch = io.run(batch.to_sqe(ONE), Move::InCapsule(&data)).expect("answered");
        assert!(batch.status().is(Status::COMMAND_SEQUENCE_ERROR));
        let submit =
            io.submit(store(&new, b"new").to_sqe(ONE), Move::InCapsule(b"\0\0\0\0new")).expect("sent");
        let answers = io.finish_all(&[(waiting, &new), (submit, b"")]).expect("answered");
        assert!(answers.iter().all(|answer| answer.status().is_success()), "{answers:?}");
        let mut transfers = [ValueTransfer::new(b"new", vec![vec![0; new.len()]])];
        values.retrieve(&mut transfers).expect("sent");
        assert!(transfers[0].is_whole() && transfers[0].pieces[0] == new);
        let key: &[u8] = &[7; 251];
        for (what, command, key, expected) in [
            ("no key", store(&new, b""), &b""[..], Status::INVALID_KEY_SIZE),
            ("a key of 251 bytes", store(&new, key), key, Status::INVALID_KEY_SIZE),
            ("another length", store(&new[1..], b"k"), b"k", Status::INVALID_FIELD),
            ("both conditions", StoreSubmit { options: 3, ..store(&new, b"k") }, b"k", Status::INVALID_FIELD),
            (
                "an unknown option",
                StoreSubmit { options: 8, ..store(&new, b"k") },
                b"k",
                Status::INVALID_FIELD,
            ),
            (
                "less data than its key",
                StoreSubmit { key_bytes: 2, ..store(&new, b"k") },
                b"k",
                Status::DATA_SGL_LENGTH_INVALID,
            ),
        ] {
            let data = [&[0; 4], key].concat();
            let ends = pair(&mut io, (waits, Move::Asked(&new)), command.to_sqe(ONE), &data);
            let ends = ends.map(|answer| answer.status());
            assert!(ends.iter().all(|status| status.is(expected)), "{what}: {ends:?}");
        }
        let none = io.run(StoreData { value_bytes: 0, tag: 1 }.to_sqe(ONE), Move::None).expect("answered");
        assert!(none.status().is(Status::INVALID_FIELD), "{}", none.status());
        // In a capsule, values are kept up to a limit.
        let capsule = |tag, length| StoreData { value_bytes: length, tag }.to_sqe(ONE);
        let short = io.run(capsule(1, 5), Move::InCapsule(b"1234")).expect("answered");
        assert!(short.status().is(Status::DATA_SGL_LENGTH_INVALID), "{}", short.status());
        let kept = vec![5; 60 << 10];
        let length = kept.len() as u32;
        let waiting: Vec<u16> = (100..117)
            .map(|tag| io.submit(capsule(tag, length), Move::InCapsule(&kept)).expect("sent"))
            .collect();
        let refused = io.run(capsule(1, length), Move::InCapsule(&kept)).expect("answered");
        assert!(refused.status().is(Status::COMMAND_INTERRUPTED), "{}", refused.status());
        for (tag, waiting) in (100..).zip(waiting) {
            let key = format!("kept {tag}");
            let submit = StoreSubmit { tag, ..store(&kept, key.as_bytes()) }.to_sqe(ONE);
            let data = [&[0; 4], key.as_bytes()].concat();
            let submit = io.submit(submit, Move::InCapsule(&data)).expect("sent");
            let answers = io.finish_all(&[(waiting, &[]), (submit, &[])]).expect("answered");
            assert!(answers.iter().all(|answer| answer.status().is_success()), "{answers:?}");
        }
        let mut transfers = [ValueTransfer::new(b"kept 116", vec![vec![0; kept.len()]])];
        values.retrieve(&mut transfers).expect("sent");
        assert!(transfers[0].is_whole() && transfers[0].pieces[0] == kept);
        let huge = StoreData { value_bytes: u32::MAX, tag: 1 }.to_sqe(ONE);
        let huge = io.run(huge, Move::None).expect("answered");
        assert!(huge.status().is(Status::INVALID_VALUE_SIZE), "{}", huge.status());
        bits_of_hostile_batches(&mut io);
        // A lane that ends while a value waits leaves nothing: another one stores under the same tag.
        let _ = io.submit(waits, Move::Asked(&new)).expect("sent");
        drop(io);
        let mut io = io_queue(&rig);
        let ends = pair(&mut io, (waits, Move::Asked(&new)), store(&new, b"new").to_sqe(ONE), b"\0\0\0\0new");
        assert!(ends.iter().all(|answer| answer.status().is_success()));
    }
}

/// A host repeats both commands of a value in the order in which they end. docs/kv-commands.md §7
#[test]
fn a_value_and_its_submit_are_refused_together_while_a_log_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pairs");
    let storage = format!("kv:file:{}?size=64M&memory=8M&delay=read:5s", path.display());
    let rig = rig(EngineKind::Epoll, 2, &storage);
    let mut io = io_queue(&rig);
    let value = b"12345";
    let data = StoreData { value_bytes: 5, tag: 1 }.to_sqe(ONE);
    let store = StoreSubmit { value_bytes: 5, key_bytes: 1, tag: 1, ..StoreSubmit::default() }.to_sqe(ONE);
    let mut is_refused_at_once = false;
    for moved in [Move::InCapsule(value), Move::Asked(value)] {
        loop {
            let ends = pair(&mut io, (data, moved), store, b"\0\0\0\0k").map(|answer| answer.status());
            if ends == [Status::NAMESPACE_NOT_READY; 2] {
                break;
            }
            // Commands wait for one second before they are refused, and each reactor measures it for itself. Until then the
            // Submit succeeds, and its Store Data ends with Do Not Retry.
            assert!(!is_refused_at_once);
            assert_eq!(ends, [Status::NAMESPACE_NOT_READY.with_dnr(), Status::SUCCESS]);
        }
        is_refused_at_once = true;
    }
}

fn bits_of_hostile_batches(io: &mut Queue) {
    let mut data = Vec::new();
    assert!(Operation::on(KvOpcode::EXIST, b"nobody").append_to(&mut data));
    assert!(Operation::on(KvOpcode::EXIST, b"new").append_to(&mut data));
    let mut deletes = Vec::new();
    assert!(Operation::on(KvOpcode::DELETE, b"new").append_to(&mut deletes));
    let mut with_room = Vec::new();
    assert!(Operation { room_bytes: 1, ..Operation::on(KvOpcode::EXIST, b"new") }.append_to(&mut with_room));
    let submit = |data: &[u8], count, outcome_bytes| BatchSubmit {
        data_bytes: data.len() as u32,
        count,
        is_presence: true,
        tag: 1,
        outcome_bytes,
    };
    let needed = presence_bytes(2) as u32;
    let collect = || (BatchCollect { buffer_bytes: needed, tag: 1 }.to_sqe(ONE), Move::Back(needed));
    for (what, data, command, expected) in [
        ("too few bytes for the bits", &data, submit(&data, 2, needed - 1), Status::INVALID_FIELD),
        ("a delete", &deletes, submit(&deletes, 1, needed), Status::INVALID_FIELD),
        ("room for data", &with_room, submit(&with_room, 1, needed), Status::INVALID_FIELD),
        ("more keys than data", &data, submit(&data, 3, needed), Status::INVALID_FIELD),
        ("1025 keys", &data, submit(&data, 1025, needed), Status::INVALID_FIELD),
        ("more bytes than the buffer", &data, submit(&data, 2, needed + 1), Status::DATA_SGL_LENGTH_INVALID),
    ] {
        let ends = pair(io, collect(), command.to_sqe(ONE), data).map(|answer| answer.status());
        assert!(ends.iter().all(|status| status.is(expected)), "{what}: {ends:?}");
    }
    let [bits, submitted] = pair(io, collect(), submit(&data, 2, needed).to_sqe(ONE), &data);
    assert!(bits.data == [0, 0, 0, 0, 1, 0, 0, 0, 0b10, 0, 0, 0, 0, 0, 0, 0], "{:?}", bits.data);
    assert_eq!((result(&bits), result(&submitted)), (2 << 32 | 16, 2 << 32 | 1));
}

/// A value is changed between its store and its retrieval, here by a memcached client that keeps its flags. For a cache that is
/// a miss.
#[test]
fn a_value_without_its_checksum_is_a_miss() {
    let directory = tempfile::tempdir().expect("a directory");
    for rig in rigs(EngineKind::Epoll, &directory) {
        let mut values = lanes_of(&rig, options().with_lanes(2)).with_checksums();
        let mut client = client(&rig);
        let (names, lengths) = ([name(0, 40), name(1, 40)], [10, 3 * MIB]);
        let pieces = |at: usize| vec![value(lengths[at] / 2, at), value(lengths[at] - lengths[at] / 2, 9)];
        let mut transfers = [0, 1].map(|at| ValueTransfer::new(&names[at], pieces(at)));
        values.store(&mut transfers, 0).expect("sent");
        values.retrieve(&mut transfers).expect("sent");
        assert!(transfers.iter().all(ValueTransfer::is_whole) && values.damaged_count() == 0);
        let text = String::from_utf8(names[0].clone()).expect("ASCII");
        assert_eq!(ask(&mut client, &format!("append {text} 0 0 1\r\nx")), "STORED");
        let mut longer = [ValueTransfer::new(&names[0], vec![vec![0; 11]])];
        values.retrieve(&mut longer).expect("sent");
        assert_eq!((longer[0].moved, values.damaged_count()), (Moved::Damaged, 1));
        // Nobody else compares it.
        lanes_of(&rig, options()).retrieve(&mut longer).expect("sent");
        assert!(longer[0].is_whole());
        // A value without a checksum is not compared.
        assert_eq!(ask(&mut client, &format!("set {text} 0 0 11\r\n01234567890")), "STORED");
        values.retrieve(&mut longer).expect("sent");
        assert!(longer[0].is_whole() && longer[0].pieces[0] == b"01234567890");
    }
}

/// Begins the store of a value whose flags follow it. Returns its Store Data, of which nothing was sent.
fn begin_store(io: &mut Queue, tag: u32, key: &[u8], options: u8, value: &[u8]) -> u16 {
    let value_bytes = value.len() as u32;
    let waiting = StoreData { value_bytes, tag }.to_sqe(ONE);
    let waiting = io.submit(waiting, Move::Asked(value)).expect("sent");
    let options = options | FLAGS_FOLLOW;
    let submit = StoreSubmit { value_bytes, key_bytes: key.len() as u8, options, tag, ttl_s: 0 };
    let data = [&[9, 9, 9, 9], key].concat();
    io.must(submit.to_sqe(ONE), Move::InCapsule(&data)).expect("announced");
    waiting
}

/// Sends the value that a Store Data is asked for, up to this many bytes from its end.
fn send_but(io: &mut Queue, waiting: u16, value: &[u8], left: usize) {
    let mut sent = 0;
    while sent + left < value.len() {
        let Step::Wants(window) = io.step(waiting).expect("a window") else { panic!("it has not ended") };
        io.serve(&window, value).expect("sent");
        sent = (window.offset + window.length) as usize;
    }
}

fn flags_of(client: &mut BufReader<TcpStream>, key: &str) -> String {
    ask(client, &format!("mg {key} f"))
}

/// docs/kv-commands.md §7.2, §7.3
#[test]
fn flags_may_follow_their_value() {
    let directory = tempfile::tempdir().expect("a directory");
    for rig in rigs(EngineKind::Epoll, &directory) {
        let (mut io, mut client) = (io_queue(&rig), client(&rig));
        let flags = |tag, flags| StoreFlags { tag, flags }.to_sqe(ONE);
        let out_of_sequence = [Status::COMMAND_SEQUENCE_ERROR];
        for (length, key) in [(100, "short"), (2 * MIB, "whole"), (3 * MIB + 5, "rest")] {
            let value = value(length, 3);
            io.must_end(flags(1, 7), Move::None, &out_of_sequence).expect("no value has this tag");
            let waiting = begin_store(&mut io, 1, key.as_bytes(), 0, &value);
            send_but(&mut io, waiting, &value, 0);
            io.must_end(flags(2, 7), Move::None, &out_of_sequence).expect("another tag");
            assert_eq!(flags_of(&mut client, key), "EN", "it is not whole without them");
            io.must(flags(1, 70_001), Move::None).expect("they are taken");
            assert!(io.finish(waiting, &[]).expect("it ends").status().is_success());
            assert_eq!(flags_of(&mut client, key), "HD f70001");
            io.must_end(flags(1, 7), Move::None, &out_of_sequence).expect("it has ended");
        }
        // Before the last part.
        let new = value(2 * MIB, 4);
        let waiting = begin_store(&mut io, 1, b"whole", 0, &new);
        send_but(&mut io, waiting, &new, MIB);
        io.must(flags(1, 5), Move::None).expect("they are taken");
        io.must_end(flags(1, 6), Move::None, &out_of_sequence).expect("once");
        assert_eq!(flags_of(&mut client, "whole"), "HD f70001");
        assert!(io.finish(waiting, &new).expect("it ends").status().is_success());
        assert_eq!(flags_of(&mut client, "whole"), "HD f5");
        // Several of a lane, whose flags come in another order.
        let values: Vec<_> = (0..3).map(|seed| value(MIB, seed)).collect();
        let waiting: Vec<_> = (0..3u32)
            .zip(&values)
            .map(|(number, value)| {
                begin_store(&mut io, 10 + number, format!("several{number}").as_bytes(), 0, value)
            })
            .collect();
        send_but(&mut io, waiting[0], &values[0], 0);
        send_but(&mut io, waiting[1], &values[1], 0);
        // The third one is not begun, however long the lane waits, before one of them is stored.
        io.must_end(flags(12, 1), Move::None, &out_of_sequence).expect("nothing of it was requested");
        io.must(flags(11, 11), Move::None).expect("they are taken");
        assert!(io.finish(waiting[1], &[]).expect("it ends").status().is_success());
        send_but(&mut io, waiting[2], &values[2], 0);
        io.must(flags(12, 12), Move::None).expect("they are taken");
        io.must(flags(10, 10), Move::None).expect("they are taken");
        for waiting in [waiting[0], waiting[2]] {
            assert!(io.finish(waiting, &[]).expect("it ends").status().is_success());
        }
        for number in 0..3 {
            assert_eq!(flags_of(&mut client, &format!("several{number}")), format!("HD f1{number}"));
        }
        // One that is refused takes none.
        let must_not_exist = StoreOptions::MUST_NOT_EXIST.bits();
        let waiting = begin_store(&mut io, 1, b"whole", must_not_exist, &new);
        assert!(io.finish(waiting, &new).expect("it ends").status().is(Status::KEY_EXISTS));
        io.must_end(flags(1, 7), Move::None, &out_of_sequence).expect("it has ended");
        // None follow a value without the option, and a value in its capsule has them already.
        let submit = StoreSubmit { value_bytes: 5, key_bytes: 1, tag: 1, ..StoreSubmit::default() };
        let data = StoreData { value_bytes: 5, tag: 1 }.to_sqe(ONE);
        let waiting = io.submit(data, Move::Asked(b"12345")).expect("sent");
        io.must(submit.to_sqe(ONE), Move::InCapsule(b"\x01\0\0\0k")).expect("announced");
        io.must_end(flags(1, 7), Move::None, &out_of_sequence).expect("it has them");
        assert!(io.finish(waiting, b"12345").expect("it ends").status().is_success());
        assert_eq!(flags_of(&mut client, "k"), "HD f1");
        let in_capsule = (data, Move::InCapsule(&b"12345"[..]));
        let follow = StoreSubmit { options: FLAGS_FOLLOW, ..submit }.to_sqe(ONE);
        let ends = pair(&mut io, in_capsule, follow, b"\x01\0\0\0k").map(|answer| answer.status());
        assert!(ends.iter().all(|status| status.is(Status::INVALID_FIELD)), "{ends:?}");
        // A lane that ends before them leaves the value that was there.
        let waiting = begin_store(&mut io, 1, b"whole", 0, &values[0]);
        send_but(&mut io, waiting, &values[0], 0);
        drop(io);
        let mut io = io_queue(&rig);
        io.must_end(flags(1, 7), Move::None, &out_of_sequence).expect("that was another queue");
        assert_eq!(flags_of(&mut client, "whole"), "HD f5");
    }
}

/// docs/kv-commands.md §7.2
#[test]
fn two_parts_of_a_value_are_requested_at_once_and_come_in_any_order() {
    let directory = tempfile::tempdir().expect("a directory");
    for rig in rigs(EngineKind::Epoll, &directory) {
        let (mut io, mut client, mut keys) = (io_queue_of_two_r2ts(&rig), client(&rig), keys_of(&rig));
        let begin = |io: &mut Queue, tag, options, value: &[u8]| {
            let value_bytes = value.len() as u32;
            let waiting = StoreData { value_bytes, tag }.to_sqe(ONE);
            let waiting = io.submit(waiting, Move::Asked(value)).expect("sent");
            let submit = StoreSubmit { value_bytes, key_bytes: 3, options, tag, ttl_s: 0 };
            io.must(submit.to_sqe(ONE), Move::InCapsule(b"\x05\0\0\0key")).expect("announced");
            waiting
        };
        let two = |io: &mut Queue, waiting| {
            let window = |io: &mut Queue| match io.step(waiting).expect("a window") {
                Step::Wants(window) => window,
                Step::Over(answer) => panic!("it has ended: {}", answer.status()),
            };
            [window(io), window(io)]
        };
        let value = value(3 * MIB + 5, 1);
        let waiting = begin(&mut io, 1, 0, &value);
        for first in [0, 2] {
            // Both before any data, of which the second part comes first.
            let [one, other] = two(&mut io, waiting);
            assert_eq!([one.offset, other.offset], [first, first + 1].map(|part: u32| part << 20));
            io.serve(&other, &value).expect("sent");
            io.serve(&one, &value).expect("sent");
        }
        assert!(io.finish(waiting, &value).expect("it ends").status().is_success());
        let key = Key::new(b"key").expect("a key");
        assert!(keys.retrieve(&key).expect("asked").is_some_and(|found| found == value));
        // One that fails while two parts are on their way ends when they have come, and its lane goes on.
        keys.delete(&key).expect("deleted");
        let waiting = begin(&mut io, 2, StoreOptions::MUST_NOT_EXIST.bits(), &value);
        let [one, other] = two(&mut io, waiting);
        assert_eq!(ask(&mut client, "set key 0 0 5\r\nother"), "STORED");
        io.serve(&one, &value).expect("sent");
        io.serve(&other, &value).expect("sent");
        assert!(io.finish(waiting, &value).expect("it ends").status().is(Status::KEY_EXISTS));
        let waiting = begin(&mut io, 3, 0, &value[..MIB]);
        assert!(io.finish(waiting, &value).expect("it ends").status().is_success());
        // A lane that ends within both leaves the value that was there.
        let waiting = begin(&mut io, 4, 0, &value);
        let [_, other] = two(&mut io, waiting);
        io.serve(&other, &value).expect("sent");
        drop(io);
        assert!(keys.retrieve(&key).expect("asked").is_some_and(|found| found == value[..MIB]));
    }
}

/// docs/kv-commands.md §7.3
#[test]
fn a_lane_that_owes_the_flags_of_a_value_is_closed() {
    let rig = Rig::with(EngineKind::Epoll, &["kv:ram:64M"], |config| config.timeouts.data_ms = 300);
    let mut io = io_queue(&rig);
    let value = value(MIB, 1);
    let waiting = begin_store(&mut io, 1, b"key", 0, &value);
    send_but(&mut io, waiting, &value, 0);
    assert!(io.step(waiting).is_err(), "the connection ends");
    assert!(!keys_of(&rig).exist(&Key::new(b"key").expect("a key")).expect("asked"));
}
