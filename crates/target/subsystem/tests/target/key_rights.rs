//! Hosts of a running target that share a key-value namespace by key prefixes. docs/security.md

use std::sync::Arc;
use std::time::Instant;

use nvlane_subsystem::access::HostRights;
use nvlane_subsystem::config::{NamespaceConfig, TargetConfig, TimeoutConfig};
use nvlane_subsystem::key_rights::{KeyRights, KeyScope};
use nvlane_subsystem::server::Target;
use peer::queue::{Move, Queue};
use peer::raw_host::{Association, RawHost};
use wire::id::Nsid;
use wire::kv::batch::{BatchCollect, BatchSubmit, Operation};
use wire::kv::operation::{AtomicFunction, AtomicOperation, ElementCode, VectorFunction};
use wire::kv::{Key, KeyList, RetrieveOptions, StoreOptions};
use wire::opcode::KvOpcode;
use wire::pdu::Digests;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::support;

const KEYS: Nsid = Nsid::new(2);

const ONE: &str = "nqn.2026-01.io.nvlane:one";
const OTHER: &str = "nqn.2026-01.io.nvlane:other";
const ALL: &str = "nqn.2026-01.io.nvlane:all";
const NONE: &str = "nqn.2026-01.io.nvlane:none";

const DENIED: Status = Status::ACCESS_DENIED.with_dnr();

/// Enough keys of each prefix for several partitions.
const KEY_COUNT: usize = 50;

fn rights(scopes: &[(&str, &[&str])]) -> HostRights {
    let scope = |prefixes: &[&str]| {
        let prefixes: Vec<_> = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        Arc::new(KeyScope::new(&prefixes).expect("short"))
    };
    let scopes = scopes.iter().map(|(host, prefixes)| (host.parse().expect("a name"), scope(prefixes)));
    HostRights { keys: KeyRights::Scopes(scopes.collect()), ..HostRights::ALL }
}

/// A target whose second namespace has keys with these rights.
fn config(threads: u16, rights: HostRights) -> TargetConfig {
    let mut config = support::block_config(threads, TimeoutConfig::default());
    let mut keys = NamespaceConfig::new("kv:ram:16M".parse().expect("a namespace"));
    keys.rights = rights;
    config.subsystems[0].namespaces.push(keys);
    config
}

fn associate(target: &Target, name: &str) -> Association {
    let hostid = wire::nqn::HostId::from_bytes([u8::try_from(name.len()).expect("a short name"); 16]);
    let host = RawHost { nqn: name.parse().expect("a name"), hostid, ..support::host(target) };
    host.associate(Digests::empty(), 64).expect("an association")
}

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a key")
}

fn status(queue: &mut Queue, sqe: Sqe, data: &[u8]) -> Status {
    let data = if data.is_empty() { Move::None } else { Move::InCapsule(data) };
    queue.run(sqe, data).expect("an answer").status()
}

/// The statuses of every operation on a key, in an order in which each succeeds.
fn operations(queue: &mut Queue, key: &Key) -> Vec<Status> {
    let atomic = AtomicOperation::new(AtomicFunction::ADD, 1);
    let (u64, add) = (ElementCode::U64, VectorFunction::ADD);
    let number = 7u64.to_le_bytes().to_vec();
    let retrieve = Sqe::kv_retrieve(KEYS, key, 8, RetrieveOptions::empty());
    let commands = [
        (Sqe::kv_store(KEYS, key, 8, StoreOptions::empty()), number.clone()),
        (Sqe::kv_exist(KEYS, key), Vec::new()),
        (Sqe::kv_atomic(KEYS, key, &atomic), atomic.to_bytes().to_vec()),
        (Sqe::kv_vector_scalar(KEYS, key, u64, add, 1), Vec::new()),
        (Sqe::kv_vector_vector(KEYS, key, u64, add, 8), number),
        (Sqe::kv_delete(KEYS, key), Vec::new()),
    ];
    let mut statuses: Vec<_> = commands.into_iter().map(|(sqe, data)| status(queue, sqe, &data)).collect();
    statuses.push(queue.run(retrieve, Move::Back(8)).expect("an answer").status());
    statuses
}

/// The statuses of a Collect and its Submit, with an Exist of each key.
fn batch(queue: &mut Queue, keys: &[Key]) -> [Status; 2] {
    let mut data = Vec::new();
    for key in keys {
        assert!(Operation::new(KvOpcode::EXIST, key).append_to(&mut data));
    }
    let collect = BatchCollect { buffer_bytes: 4096, tag: 1 }.to_sqe(KEYS);
    let collect = queue.submit(collect, Move::Back(4096)).expect("sent");
    let submit = BatchSubmit {
        data_bytes: u32::try_from(data.len()).expect("a few"),
        count: u16::try_from(keys.len()).expect("a few"),
        tag: 1,
        outcome_bytes: 4096,
        ..BatchSubmit::default()
    };
    let submit = queue.submit(submit.to_sqe(KEYS), Move::InCapsule(&data)).expect("sent");
    let answers = queue.finish_all(&[(collect, &[]), (submit, &[])]).expect("answers");
    [answers[0].status(), answers[1].status()]
}

/// The keys that are listed, in order.
fn listed(queue: &mut Queue) -> Vec<String> {
    let list = queue.must(Sqe::kv_list(KEYS, None, 4096), Move::Back(4096)).expect("a list").data;
    let keys = KeyList::new(&list).expect("a list").map(|key| key.expect("a key"));
    let mut keys: Vec<_> = keys.map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned()).collect();
    keys.sort_unstable();
    keys
}

fn store(queue: &mut Queue, key: &Key) -> Status {
    status(queue, Sqe::kv_store(KEYS, key, 5, StoreOptions::empty()), b"value")
}

#[test]
fn a_host_uses_the_keys_with_its_prefixes_only() {
    for threads in [1, 2] {
        let rights = rights(&[(ONE, &["a/", "both/"]), (OTHER, &["b/", "both/"]), (ALL, &[""]), (NONE, &[])]);
        let target = Target::start(&config(threads, rights)).expect("a target");
        let names =
            |prefix: &str| (0..KEY_COUNT).map(|number| format!("{prefix}{number:02}")).collect::<Vec<_>>();
        let mut all = associate(&target, ALL);
        for name in names("a/").iter().chain(&names("b/")) {
            assert_eq!(store(&mut all.io, &key(name)), Status::SUCCESS);
        }
        assert_eq!(listed(&mut all.io), [names("a/"), names("b/")].concat());
        let mut one = associate(&target, ONE);
        let queue = &mut one.io;
        let done = [&[Status::SUCCESS; 6][..], &[Status::KEY_DOES_NOT_EXIST.with_dnr()]].concat();
        assert_eq!(operations(queue, &key("a/new")), done);
        assert_eq!(operations(queue, &key("both/new")), done);
        for name in ["b/00", "b/new", "a", "A/", "bot"] {
            assert_eq!(operations(queue, &key(name)), [DENIED; 7], "{name}");
        }
        assert_eq!(listed(queue), names("a/"));
        let from = Sqe::kv_list(KEYS, Some(&key("b/00")), 4096);
        assert_eq!(queue.run(from, Move::Back(4096)).expect("an answer").status(), DENIED);
        assert_eq!(batch(queue, &[key("a/00"), key("a/01")]), [Status::SUCCESS; 2]);
        assert_eq!(batch(queue, &[key("a/00"), key("b/00")]), [DENIED; 2]);
        // The value of another host is as it was.
        let retrieve = Sqe::kv_retrieve(KEYS, &key("b/00"), 5, RetrieveOptions::empty());
        assert_eq!(all.io.must(retrieve, Move::Back(5)).expect("a value").data, b"value");
        for name in [NONE, "nqn.2026-01.io.nvlane:unlisted"] {
            let mut host = associate(&target, name);
            assert_eq!(operations(&mut host.io, &key("a/00")), [DENIED; 7], "{name}");
            assert_eq!(listed(&mut host.io), [""; 0], "{name}");
        }
        target.stop().expect("a good end");
    }
}

#[test]
fn a_long_value_under_a_prefix_of_another_host_is_not_received() {
    let target = Target::start(&config(2, rights(&[(ONE, &["a/"])]))).expect("a target");
    let mut one = associate(&target, ONE);
    let value = vec![7; 2 << 20];
    let store = |key: &Key| {
        Sqe::kv_store(KEYS, key, u32::try_from(value.len()).expect("2 MiB"), StoreOptions::empty())
    };
    let denied = one.io.run(store(&key("b/long")), Move::Asked(&value)).expect("an answer");
    assert_eq!(denied.status(), DENIED);
    target.stop().expect("a good end");
}

#[test]
fn a_reload_changes_prefixes_under_connected_hosts() {
    let mut config = config(2, rights(&[(ONE, &["a/"])]));
    let mut target = Target::start(&config).expect("a target");
    let mut one = associate(&target, ONE);
    let queue = &mut one.io;
    assert_eq!([store(queue, &key("a/1")), store(queue, &key("b/1"))], [Status::SUCCESS, DENIED]);
    let mut reload = |rights: HostRights, lines: &str| {
        config.subsystems[0].namespaces[1].rights = rights;
        let report = target.reload(&config);
        assert!(report.is_complete(), "{report}");
        assert_eq!(report.to_string(), lines);
        let until = Instant::now() + support::PATIENCE;
        while !target.state().expect("a target that runs").subsystems[0].namespaces[1].shown {
            assert!(Instant::now() < until, "a namespace that no host is shown");
            std::thread::yield_now();
        }
    };
    let show = "show nqn.2026-01.io.nvlane:tested namespace 2 to all hosts of the subsystem";
    reload(
        rights(&[(ONE, &["b/"]), (OTHER, &["a/"])]),
        &format!("{show}, with key prefixes of 2 hosts: done"),
    );
    assert_eq!([store(queue, &key("a/1")), store(queue, &key("b/1"))], [DENIED, Status::SUCCESS]);
    assert_eq!(listed(queue), ["b/1"]);
    reload(HostRights::ALL, &format!("{show}: done"));
    assert_eq!(listed(queue), ["a/1", "b/1"]);
    target.stop().expect("a good end");
}
