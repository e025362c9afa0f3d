//! Keys and values through NVMe and memcached at once: each protocol sees the other's changes, and values survive a
//! restart.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use host::{AtomicFunction, AtomicOperation, ElementCode, VectorComparison, VectorFunction};
use linux::random::SplitMix64;
use peer::link::Got;
use reactor::EngineKind;
use subsystem::config::{NamespaceConfig, Threads};
use tempfile::TempDir;
use wire::cqe::Cqe;
use wire::id::{Csi, Nsid};
use wire::identify::command_set::KvVendorCommands;
use wire::kv::{Key, RetrieveOptions, StoreOptions};
use wire::log::support::CommandsAndEffects;
use wire::log::{GetLogPage, Lid};
use wire::opcode::KvOpcode;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::FromBytes;

use crate::key_value::connect;
use crate::linear::{Deed, Done, is_linear};
use crate::raw::RawHost;
use crate::setup::{PATIENCE, Rig, engines};

const NSID: Nsid = Nsid::new(1);

/// A target that serves one namespace through NVMe and memcached. `{}` in `storage` is a new file.
fn rig(engine: EngineKind, threads: u16, directory: &TempDir, storage: &str) -> Rig {
    let path = directory.path().join("pairs");
    let spec = storage.replace("{}", &path.display().to_string());
    Rig::with(engine, &[], |config| {
        let namespace = NamespaceConfig::new(spec.parse().expect("a good specification"));
        config.subsystems[0].namespaces = vec![NamespaceConfig { nsid: Some(NSID), ..namespace }];
        config.memcached = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()];
        config.reactors.threads = Threads::Count(threads);
    })
}

/// A memcached client.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(rig: &Rig) -> Self {
        let stream = TcpStream::connect(rig.memcached()).expect("a memcached listener");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        stream.set_nodelay(true).expect("an option");
        Self(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("sent");
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(format!("{line}\r\n").as_bytes());
        self.line()
    }

    fn store(&mut self, verb: &str, key: &str, value: &[u8]) -> String {
        self.say(&[format!("{verb} {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat());
        self.line()
    }

    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.say(format!("get {key}\r\n").as_bytes());
        let line = self.line();
        if line == "END" {
            return None;
        }
        let length = line.rsplit(' ').next().and_then(|word| word.parse().ok());
        let mut value = vec![0; length.unwrap_or_else(|| panic!("a value: {line}"))];
        self.0.read_exact(&mut value).expect("a value");
        assert_eq!((self.line(), self.line()), (String::new(), "END".into()));
        Some(value)
    }
}

fn key(name: &str) -> Key {
    Key::new(name.as_bytes()).expect("1 to 16 bytes")
}

fn end(host: &mut RawHost, cid: u16) -> Cqe {
    host.io.completion(cid)
}

fn store(host: &mut RawHost, name: &str, value: &[u8], options: StoreOptions) -> Status {
    let sqe = Sqe::kv_store(NSID, &key(name), value.len() as u32, options);
    let cid = host.io.write_in_capsule(sqe, value);
    end(host, cid).status()
}

fn retrieve(host: &mut RawHost, name: &str) -> Option<Vec<u8>> {
    let room = 64 * 1024;
    let cid = host.io.transport(Sqe::kv_retrieve(NSID, &key(name), room, RetrieveOptions::empty()), room);
    let mut value = Vec::new();
    loop {
        match host.io.next() {
            Got::Data { data: bytes, .. } => value.extend(bytes),
            Got::Completion(cqe) if cqe.cid.get() == cid => match cqe.status() {
                Status::SUCCESS => {
                    assert_eq!(cqe.dw0() as usize, value.len());
                    return Some(value);
                }
                status => {
                    assert_eq!(status, Status::KEY_DOES_NOT_EXIST.with_dnr());
                    return None;
                }
            },
            other => panic!("instead of a value: {other:?}"),
        }
    }
}

fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).expect("digits");
    text.trim_end().parse().expect("a number")
}

/// Random operations of one memcached client on a key.
fn deed_of_client(client: &mut Client, random: &mut SplitMix64, name: &str) -> Deed {
    let new = random.below(1_000_000);
    let text = new.to_string();
    match random.below(8) {
        0..3 => Deed::Read(client.get(name).map(|value| number(&value))),
        3 => {
            assert_eq!(client.store("set", name, text.as_bytes()), "STORED");
            Deed::Write(new)
        }
        4 => Deed::WriteNew(new, client.store("add", name, text.as_bytes()) == "STORED"),
        5 if random.below(3) == 0 => Deed::Delete(Some(client.ask(&format!("delete {name}")) == "DELETED")),
        _ => {
            let by = 1 + random.below(9);
            Deed::Add(by, client.ask(&format!("incr {name} {by}")).parse().ok())
        }
    }
}

fn deed_of_host(host: &mut RawHost, random: &mut SplitMix64, name: &str) -> Deed {
    let new = random.below(1_000_000);
    let text = new.to_string();
    match random.below(8) {
        0..4 => Deed::Read(retrieve(host, name).map(|value| number(&value))),
        4 => {
            assert_eq!(store(host, name, text.as_bytes(), StoreOptions::empty()), Status::SUCCESS);
            Deed::Write(new)
        }
        5 => {
            let status = store(host, name, text.as_bytes(), StoreOptions::MUST_NOT_EXIST);
            Deed::WriteNew(new, status.is_success())
        }
        6 => {
            let status = store(host, name, text.as_bytes(), StoreOptions::MUST_EXIST);
            Deed::Replace(new, status.is_success())
        }
        _ => {
            let cid = host.io.command(Sqe::kv_delete(NSID, &key(name)), &[]);
            assert_eq!(end(host, cid).status(), Status::SUCCESS);
            Deed::Delete(None)
        }
    }
}

const NAMES: [&str; 3] = ["a", "hot-key-0", "key-of-16-bytes!"];

/// Does deeds on random keys, and adds each to the history of its key.
fn record(histories: &[Mutex<Vec<Done>>; 3], seed: u64, mut deed: impl FnMut(&mut SplitMix64, &str) -> Deed) {
    let mut random = SplitMix64::new(seed);
    for _ in 0..150 {
        let at = random.below(NAMES.len() as u64) as usize;
        let called = Instant::now();
        let deed = deed(&mut random, NAMES[at]);
        let done = Done { called, answered: Instant::now(), deed };
        histories[at].lock().expect("no panic").push(done);
    }
}

/// Clients of both protocols on a few keys; each key's history must be linearizable.
fn histories_are_linear(storage: &str, threads: u16) {
    let directory = tempfile::tempdir().expect("a directory");
    let rig = rig(engines()[0], threads, &directory, storage);
    let histories = NAMES.map(|_| Mutex::new(Vec::new()));
    let (rig, histories) = (&rig, &histories);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let mut client = Client::new(rig);
                record(histories, seed, |random, name| deed_of_client(&mut client, random, name));
            });
        }
        for seed in 10..12 {
            scope.spawn(move || {
                let mut host = RawHost::new(rig);
                record(histories, seed, |random, name| deed_of_host(&mut host, random, name));
            });
        }
    });
    for (name, history) in NAMES.iter().zip(histories) {
        let history = history.lock().expect("no panic");
        assert!(history.len() > 100 && is_linear(&history), "{name}: {history:#?}");
    }
}

#[test]
fn histories_in_ram_are_linear() {
    histories_are_linear("kv:ram:64M", 3);
}

#[test]
fn histories_with_a_log_are_linear() {
    histories_are_linear("kv:file:{}?size=64M&memory=8M", 3);
    histories_are_linear("kv:file:{}?size=64M&memory=8M&sync=none", 2);
}

/// What hosts have read counts as used, on the partitions of all reactors; whether a key exists does not.
#[test]
fn a_retrieve_marks_a_pair_as_read_and_exist_does_not() {
    for threads in [1, 3] {
        let directory = tempfile::tempdir().expect("a directory");
        let rig = rig(engines()[0], threads, &directory, "kv:ram:64M");
        let (mut client, mut host) = (Client::new(&rig), RawHost::new(&rig));
        for number in 0..12 {
            let name = format!("key{number}");
            assert_eq!(client.store("set", &name, &[7; 50]), "STORED");
            let cid = host.io.command(Sqe::kv_exist(NSID, &key(&name)), &[]);
            assert_eq!(end(&mut host, cid).status(), Status::SUCCESS);
            assert_eq!(client.ask(&format!("mg {name} h u")), "HD h0");
            assert_eq!(retrieve(&mut host, &name), Some(vec![7; 50]));
            assert_eq!(client.ask(&format!("mg {name} h u")), "HD h1");
        }
    }
}

#[test]
fn pairs_are_there_after_a_restart_through_both_protocols() {
    for engine in engines() {
        for sync in ["always", "batch"] {
            let directory = tempfile::tempdir().expect("a directory");
            let mut rig =
                rig(engine, 2, &directory, &format!("kv:file:{{}}?size=64M&memory=8M&sync={sync}&flush"));
            let (mut client, mut host) = (Client::new(&rig), RawHost::new(&rig));
            for at in 0..200 {
                let (one, other) = (format!("client-{at}"), format!("host-{at}"));
                assert_eq!(client.store("set", &one, one.as_bytes()), "STORED");
                assert_eq!(
                    store(&mut host, &other, other.as_bytes(), StoreOptions::empty()),
                    Status::SUCCESS
                );
            }
            assert_eq!(client.ask("delete client-7"), "DELETED");
            assert_eq!(client.store("set", "count", b"41"), "STORED");
            assert_eq!(client.ask("incr count 1"), "42");
            let flush = host.io.command(Sqe::flush(NSID), &[]);
            assert_eq!(end(&mut host, flush).status(), Status::SUCCESS);
            drop((client, host));
            rig.stop();
            rig.start();
            let (mut client, mut host) = (Client::new(&rig), RawHost::new(&rig));
            for at in (0..200).filter(|at| *at != 7) {
                let (one, other) = (format!("client-{at}"), format!("host-{at}"));
                assert_eq!(retrieve(&mut host, &one), Some(one.clone().into_bytes()));
                assert_eq!(client.get(&other), Some(other.clone().into_bytes()));
            }
            assert_eq!((client.get("client-7"), retrieve(&mut host, "client-7")), (None, None));
            assert_eq!(client.get("count"), Some(b"42".to_vec()));
            assert_eq!(client.ask("flush_all"), "OK");
            drop((client, host));
            rig.stop();
            rig.start();
            assert_eq!(Client::new(&rig).get("count"), None);
        }
    }
}

/// A small file system, in memory.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    /// Mounts one; `None` if this process must not.
    fn mount(at: &'a Path, size: &str) -> Option<Self> {
        let option = format!("size={size}");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &option, "nvlane"]).arg(at).status();
        status.is_ok_and(|status| status.success()).then_some(Self(at))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("--lazy").arg(self.0).status();
        assert!(status.is_ok_and(|status| status.success()), "unmounted");
    }
}

#[test]
fn without_space_changes_are_refused_until_there_is_some() {
    for sync in ["always", "batch"] {
        let directory = tempfile::tempdir().expect("a directory");
        let Some(_small) = Small::mount(directory.path(), "12m") else {
            return eprintln!("skipped: this process must not mount");
        };
        let ballast = directory.path().join("ballast");
        std::fs::write(&ballast, vec![1; 6 << 20]).expect("written");
        let storage = format!("kv:file:{{}}?size=64M&memory=16M&sparse&sync={sync}");
        let mut rig = rig(engines()[0], 1, &directory, &storage);
        let (mut client, mut host) = (Client::new(&rig), RawHost::new(&rig));
        let value = |at: usize| vec![at as u8; 50_000];
        let mut stored = 0;
        let refusal = loop {
            match client.store("set", &format!("key-{stored}"), &value(stored)) {
                answer if answer == "STORED" => stored += 1,
                answer => break answer,
            }
        };
        assert_eq!(refusal, "SERVER_ERROR out of space", "{sync}, {stored} values");
        assert!((50..200).contains(&stored), "{sync}, {stored} values");
        assert_eq!(client.ask("delete key-3"), "SERVER_ERROR out of space");
        let refused = store(&mut host, "other", b"1", StoreOptions::empty());
        assert_eq!(refused, Status::CAPACITY_EXCEEDED);
        for at in 0..stored / 2 {
            assert!(client.get(&format!("key-{at}")) == Some(value(at)), "{sync}, key-{at}");
        }
        std::fs::remove_file(&ballast).expect("removed");
        let until = Instant::now() + PATIENCE;
        while client.store("set", "other", b"2") != "STORED" {
            assert!(Instant::now() < until, "{sync}: there is space");
        }
        drop((client, host));
        rig.stop();
        rig.start();
        let mut client = Client::new(&rig);
        assert_eq!(client.get("other"), Some(b"2".to_vec()));
        for at in 0..stored {
            assert!(client.get(&format!("key-{at}")) == Some(value(at)), "{sync}, key-{at}");
        }
        drop(client);
        rig.stop();
    }
}

#[test]
fn more_values_than_memory_holds_are_served_through_both_protocols() {
    let directory = tempfile::tempdir().expect("a directory");
    let rig = rig(engines()[0], 2, &directory, "kv:file:{}?size=128M&memory=8M");
    let value = |at: u64| -> Vec<u8> { (0..20_000).map(|byte| (at + byte) as u8).collect() };
    let (mut client, mut host) = (Client::new(&rig), RawHost::new(&rig));
    for at in 0..1000 {
        assert_eq!(client.store("set", &format!("key-{at}"), &value(at)), "STORED");
    }
    let mut random = SplitMix64::new(1);
    for _ in 0..400 {
        let at = random.below(1000);
        let name = format!("key-{at}");
        assert!(client.get(&name) == Some(value(at)), "{name}");
        let other = random.below(1000);
        let name = format!("key-{other}");
        assert!(retrieve(&mut host, &name) == Some(value(other)), "{name}");
    }
    // Many at once, most of them only on disk; answers must keep their order.
    let names: Vec<u64> = (0..200).map(|_| random.below(1000)).collect();
    let line: String = names.iter().map(|at| format!(" key-{at}")).collect();
    client.say(format!("get{line}\r\n").as_bytes());
    for at in names {
        assert_eq!(client.line(), format!("VALUE key-{at} 0 20000"));
        let mut read = vec![0; 20_002];
        client.0.read_exact(&mut read).expect("a value");
        assert!(read[..20_000] == value(at));
    }
    assert_eq!(client.line(), "END");
    // Commands on one key that is only on disk, in one send.
    client.say(b"append key-3 0 0 2\r\n!!\r\nget key-3\r\ndelete key-3\r\nget key-3\r\n");
    assert_eq!(client.line(), "STORED");
    assert_eq!(client.line(), "VALUE key-3 0 20002");
    let mut read = vec![0; 20_004];
    client.0.read_exact(&mut read).expect("a value");
    assert!(read[..20_000] == value(3) && read[20_000..20_002] == *b"!!");
    assert_eq!((client.line(), client.line(), client.line()), ("END".into(), "DELETED".into(), "END".into()));
}

/// Changes of numbers and vectors wait for values that are only on disk, and survive a restart.
#[test]
fn numbers_and_vectors_change_through_the_log() {
    const VECTOR_COUNT: u32 = 20;
    let add = (ElementCode::U32, VectorFunction::ADD);
    let above = (ElementCode::U32, VectorComparison::GREATER);
    let name = |kind: &str, number: u32| key(&format!("{kind}-{number}"));
    let vector = |number: u32| (0..5000).map(|at| at + number).collect::<Vec<u32>>();
    let bytes = |vector: &[u32]| vector.iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<u8>>();
    for threads in [1, 3] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut rig = rig(engines()[0], threads, &directory, "kv:file:{}?size=256M&memory=16M");
        let mut keys = connect(&rig);
        for number in 0..VECTOR_COUNT {
            assert_eq!(
                keys.fetch_add(&name("count", number), 3, Some(number.into())).unwrap(),
                u64::from(number)
            );
            keys.store(&name("vector", number), &bytes(&vector(number))).expect("stored");
        }
        // Twice as much as memory holds: the values stored first are only on disk.
        for number in 0..1600 {
            keys.store(&name("other", number), &[1; 20_000]).expect("stored");
        }
        for number in 0..VECTOR_COUNT {
            let (counter, place) = (name("count", number), name("vector", number));
            assert!(keys.exist(&place).expect("asked"));
            // A different command is the first to need the value each time.
            match number % 4 {
                0 => assert_eq!(keys.vector_scalar(&place, add, 1).expect("updated"), 20_000),
                1 => keys.vector_vector(&place, add, &bytes(&[1; 5000])).expect("updated"),
                2 => assert_eq!(keys.vector_fetch(&place, add, 1, 4).expect("updated"), number.to_le_bytes()),
                _ => {
                    let kept =
                        keys.vector_filter(&place, above, u64::from(4998 + number), 4).expect("filtered");
                    assert_eq!(kept, (4999 + number).to_le_bytes());
                    keys.vector_scalar(&place, add, 1).expect("updated");
                }
            }
            let sum: u64 = vector(number + 1).into_iter().map(u64::from).sum();
            assert_eq!(keys.vector_reduce(&place, add, 0).expect("folded"), sum);
            let swap = keys.compare_and_swap(&counter, u64::from(number) + 3, 7).expect("swapped");
            assert!(swap.took_effect);
            // A number where a vector is stored, on disk only or in memory.
            assert!(
                keys.fetch_add(&place, 1, None).is_err()
                    && keys.fetch_add(&name("other", number), 1, None).is_err()
            );
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut keys = connect(&rig);
                    for _ in 0..50 {
                        keys.fetch_add(&name("count", 0), 1, None).expect("added");
                    }
                });
            }
        });
        drop(keys);
        rig.stop();
        rig.start();
        let mut keys = connect(&rig);
        for number in 0..VECTOR_COUNT {
            let count = if number == 0 { 207u64 } else { 7 };
            let found = keys.retrieve(&name("count", number)).expect("asked");
            assert_eq!(found, Some(count.to_le_bytes().to_vec()));
            let found = keys.retrieve(&name("vector", number)).expect("asked");
            assert!(found == Some(bytes(&vector(number + 1))), "vector {number} with {threads} threads");
        }
    }
}

/// docs/kv-commands.md §1
#[test]
fn batches_are_offered_with_and_without_a_log() {
    let directory = tempfile::tempdir().expect("a directory");
    for storage in ["kv:ram:64M", "kv:file:{}?size=64M&memory=8M"] {
        let rig = rig(engines()[0], 2, &directory, storage);
        let keys = connect(&rig);
        let offered = keys.namespace().vendor();
        assert!(
            offered
                .commands
                .contains(KvVendorCommands::BATCH | KvVendorCommands::ATOMIC | KvVendorCommands::VECTOR)
        );
        assert!(offered.batch_operations_max > 0);
        let mut host = RawHost::new(&rig);
        let effects = GetLogPage {
            lid: Lid::COMMANDS_AND_EFFECTS,
            csi: Csi::KV,
            length_bytes: 4096,
            ..GetLogPage::default()
        };
        let effects = host.admin.read(effects.to_sqe(Nsid::NONE), 4096);
        let effects = CommandsAndEffects::read_from_bytes(&effects).expect("a page");
        for opcode in [KvOpcode::BATCH_SUBMIT, KvOpcode::BATCH_COLLECT, KvOpcode::ATOMIC] {
            assert!(effects.io(opcode.raw()).supported());
        }
        // A reserved command is refused wherever the key is stored.
        let reserved = StoreOptions::from_bits_retain(1 << 3);
        assert_eq!(store(&mut host, "k", b"v", reserved), Status::INVALID_FIELD.with_dnr());
        assert_eq!(retrieve(&mut host, "k"), None);
    }
}

/// More values than memory holds, stored, changed and read in batches: outcomes are in order whichever values had to be
/// fetched, commands on one key see each other's effects, and everything survives a restart.
#[test]
fn batches_work_on_values_that_are_in_the_log_only() {
    const COUNT: u64 = 3000;
    let name = |number: u64| key(&format!("key-{number}"));
    let value = |number: u64| number.to_le_bytes().repeat(128);
    for threads in [1, 2] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut rig = rig(engines()[0], threads, &directory, "kv:file:{}?size=64M&memory=2M");
        let mut keys = connect(&rig);
        let mut batch = keys.batch().expect("a batch");
        for first in (0..COUNT).step_by(100) {
            batch.clear();
            for number in first..first + 100 {
                batch.store(&name(number), &value(number), StoreOptions::empty()).expect("room");
            }
            assert!(keys.run_batch(&mut batch).expect("run").all(|outcome| outcome.status.is_success()));
        }
        let (counter, add) = (name(COUNT), AtomicOperation::new(AtomicFunction::ADD, 1).or_create(0));
        for round in 0..30 {
            batch.clear();
            for at in 0..100 {
                let number = (at * 30 + round * 7) % COUNT;
                batch.retrieve(&name(number), 1024).expect("room");
                batch.atomic(&counter, &add).expect("room");
                batch
                    .vector_scalar(&name(number), (ElementCode::U64, VectorFunction::ADD), 0, 0)
                    .expect("room");
            }
            batch.exist(&name(COUNT + 1)).expect("room");
            let mut outcomes = keys.run_batch(&mut batch).expect("run");
            for at in 0..100 {
                let number = (at * 30 + round * 7) % COUNT;
                assert!(outcomes.next().expect("an outcome").data == value(number), "key {number}");
                assert_eq!(outcomes.next().expect("an outcome").result, round * 100 + at);
                assert_eq!(outcomes.next().expect("an outcome").result, 1024);
            }
            assert!(outcomes.next().expect("an outcome").status.is(Status::KEY_DOES_NOT_EXIST));
        }
        drop(keys);
        rig.stop();
        rig.start();
        let mut keys = connect(&rig);
        assert_eq!(keys.fetch_add(&counter, 0, None).expect("there"), 3000);
        for number in 0..COUNT {
            assert!(keys.retrieve(&name(number)).expect("asked") == Some(value(number)), "key {number}");
        }
    }
}

/// While more commands of a partition than 16,384 wait for values, its other commands wait as well. All are carried out
/// in order once the value is there.
#[test]
fn commands_wait_while_too_many_wait_for_values() {
    const DELAY: Duration = Duration::from_millis(700);
    const OPERATION_COUNT: u64 = 1000;
    let directory = tempfile::tempdir().expect("a directory");
    let rig = rig(EngineKind::Epoll, 1, &directory, "kv:file:{}?size=64M&memory=2M&delay=read:700ms");
    let mut keys = connect(&rig);
    let (counters, add) = (key("counters"), (ElementCode::U64, VectorFunction::ADD));
    keys.store(&counters, &[0; 1024]).expect("stored");
    let mut expected = 0;
    for (batch_count, is_beyond) in [(1, false), (20, true)] {
        // The counters leave memory.
        let mut batch = keys.batch().expect("a batch");
        for first in (0..3000).step_by(60) {
            batch.clear();
            for number in first..first + 60 {
                let name = key(&format!("{batch_count}-{number}"));
                batch.store(&name, &[0; 1024], StoreOptions::empty()).expect("room");
            }
            assert!(keys.run_batch(&mut batch).expect("run").all(|outcome| outcome.status.is_success()));
        }
        let recent = key(&format!("{batch_count}-2999"));
        let start = Instant::now();
        let add_all = || {
            let mut keys = connect(&rig);
            let mut batch = keys.batch().expect("a batch");
            (0..OPERATION_COUNT).for_each(|_| batch.vector_scalar(&counters, add, 1, 8).expect("room"));
            let first = |data: &[u8]| u64::from_le_bytes(data.try_into().expect("8 bytes"));
            keys.run_batch(&mut batch).expect("run").map(|outcome| first(outcome.data)).collect::<Vec<_>>()
        };
        let mut before = Vec::new();
        let mut longest = Duration::ZERO;
        std::thread::scope(|scope| {
            let batches: Vec<_> = (0..batch_count).map(|_| scope.spawn(add_all)).collect();
            while !batches.iter().any(ScopedJoinHandle::is_finished) {
                let asked = Instant::now();
                assert!(keys.exist(&recent).expect("asked"));
                longest = longest.max(asked.elapsed());
            }
            before.extend(batches.into_iter().flat_map(|batch| batch.join().expect("its outcomes")));
        });
        assert!(start.elapsed() >= DELAY, "the counters were in memory");
        assert_eq!(longest > DELAY / 2, is_beyond, "{longest:?} with {batch_count} batches");
        before.sort_unstable();
        let count = batch_count * OPERATION_COUNT;
        assert!(before.into_iter().eq(expected..expected + count));
        expected += count;
    }
}

/// A batch is one write to the log, answered once all of it is durable: if the log fails, none of it is reported as
/// done. The first and the third write are of superblocks.
#[test]
fn a_batch_is_one_write_and_is_refused_as_a_whole_if_that_fails() {
    let directory = tempfile::tempdir().expect("a directory");
    let storage = "kv:file:{}?size=64M&memory=8M&error=write:1/5,as=eio";
    let rig = rig(EngineKind::Epoll, 1, &directory, storage);
    let mut keys = connect(&rig);
    keys.store(&key("first"), b"v").expect("the second write is good");
    let mut batch = keys.batch().expect("a batch");
    for number in 0..50 {
        batch.store(&key(&format!("key-{number}")), b"v", StoreOptions::empty()).expect("room");
    }
    assert!(
        keys.run_batch(&mut batch).expect("run").all(|outcome| outcome.status.is_success()),
        "the fourth"
    );
    let refused = keys.run_batch(&mut batch).expect("run").map(|outcome| outcome.status);
    assert!(refused.eq([Status::KV_UNRECOVERED_ERROR; 50]), "the fifth fails");
    let error = keys.run_batch(&mut batch).expect_err("there is no log any more").to_string();
    assert!(error.contains("unrecovered"), "{error}");
}

/// With policies other than `always`, a Flush succeeds only if everything answered before is durable in every
/// partition. The first write and flush of each of the two partitions are those of its header.
#[test]
fn flushes_reach_the_logs_of_all_partitions() {
    for (options, nsid) in [
        ("sync=batch&error=write:1/3,as=eio", NSID),
        ("sync=none&error=flush:1/3,as=eio", NSID),
        ("sync=none&error=flush:1/3,as=eio", Nsid::ALL),
        ("sync=none", NSID),
        ("sync=none", Nsid::ALL),
    ] {
        for name in ["a", "b", "c", "d"] {
            let directory = tempfile::tempdir().expect("a directory");
            let storage = format!("kv:file:{{}}?size=64M&memory=8M&{options}");
            let rig = rig(EngineKind::Epoll, 2, &directory, &storage);
            let mut host = RawHost::new(&rig);
            assert_eq!(store(&mut host, name, b"v", StoreOptions::empty()), Status::SUCCESS);
            let flush = host.io.run(Sqe::flush(nsid), &[]);
            assert_eq!(flush.is_success(), !options.contains("error"), "{options} {nsid}: {flush}");
        }
    }
}

/// After a failed log write, everything answered before survives a restart, and nothing is answered any more.
#[test]
fn a_log_that_cannot_be_written_closes_the_namespace_and_loses_nothing_that_was_acknowledged() {
    for at in 1..12 {
        let directory = tempfile::tempdir().expect("a directory");
        let storage = "kv:file:{}?size=64M&memory=8M";
        let failing = format!("{storage}&error=write:1/{at},as=eio");
        let mut stored = Vec::new();
        {
            let rig = rig(EngineKind::Epoll, 1, &directory, &failing);
            let mut client = Client::new(&rig);
            for number in 0..40 {
                let name = format!("key-{number}");
                client.say(format!("set {name} 0 0 {}\r\n{name}\r\n", name.len()).as_bytes());
                let mut line = String::new();
                if client.0.read_line(&mut line).is_err() || line != "STORED\r\n" {
                    break;
                }
                stored.push(name);
            }
            assert!(stored.len() < 40, "a write has failed");
            let mut host = RawHost::new(&rig);
            assert!(!store(&mut host, "x", b"y", StoreOptions::empty()).is_success());
        }
        let rig = rig(EngineKind::Epoll, 1, &directory, storage);
        let mut client = Client::new(&rig);
        for name in stored {
            assert_eq!(client.get(&name), Some(name.into_bytes()));
        }
    }
}

/// Values stored faster than a slow disk writes them: several times the size of memory.
const BURST_COUNT: usize = 300;

fn of_burst(number: usize) -> Vec<u8> {
    vec![number as u8; [60_000, 200_000, 100, 130_000][number % 4]]
}

fn say_burst(client: &mut Client) {
    for number in 0..BURST_COUNT {
        let value = of_burst(number);
        client
            .say(&[format!("set key-{number} 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat());
    }
}

/// With policies other than `always`, stores wait for the log once memory is full, through either protocol, and no
/// value is lost.
#[test]
fn stores_that_outrun_a_slow_disk_wait_for_it() {
    for (sync, threads) in [("batch", 1), ("batch", 2), ("none", 1)] {
        let directory = tempfile::tempdir().expect("a directory");
        let storage = format!("kv:file:{{}}?size=512M&memory=6M&sync={sync}&delay=write:5ms");
        let mut rig = rig(EngineKind::Epoll, threads, &directory, &storage);
        let (mut first, mut second) = (Client::new(&rig), Client::new(&rig));
        std::thread::scope(|scope| {
            scope.spawn(|| say_burst(&mut first));
            let mut keys = connect(&rig);
            for number in 0..BURST_COUNT / 2 {
                keys.store(&key(&format!("nvme-{number}")), &of_burst(number)).expect("stored");
            }
            // Counters continue meanwhile, in order.
            assert_eq!(second.store("set", "counter", b"0"), "STORED");
            for number in 1..50 {
                assert_eq!(second.ask("incr counter 1"), number.to_string());
            }
        });
        for number in 0..BURST_COUNT {
            assert_eq!(first.line(), "STORED", "{number}, sync={sync}");
        }
        connect(&rig).flush().expect("flushed");
        for restarted in [false, true] {
            let mut client = Client::new(&rig);
            for number in (0..BURST_COUNT).step_by(7) {
                let value = of_burst(number);
                assert!(client.get(&format!("key-{number}")) == Some(value.clone()), "{number}, {restarted}");
                if number < BURST_COUNT / 2 {
                    assert!(client.get(&format!("nvme-{number}")) == Some(value), "{number}, {restarted}");
                }
            }
            drop(client);
            if !restarted {
                rig.stop();
                rig.start();
            }
        }
    }
}

/// Commands that wait for a log fail when it fails, and end when their namespace is removed.
#[test]
fn waiting_for_a_slow_disk_ends_with_the_log_and_with_the_namespace() {
    for fails in [true, false] {
        let directory = tempfile::tempdir().expect("a directory");
        let error = if fails { "&error=write:1/8,as=eio" } else { "" };
        let storage = format!("kv:file:{{}}?size=512M&memory=6M&sync=batch{error}&delay=write:20ms");
        let mut rig = rig(EngineKind::Epoll, 2, &directory, &storage);
        let mut client = Client::new(&rig);
        let mut stream = client.0.get_ref().try_clone().expect("the same connection");
        let sender = std::thread::spawn(move || {
            for number in 0..BURST_COUNT {
                let value = of_burst(number);
                let set = [format!("set key-{number} 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"]
                    .concat();
                if stream.write_all(&set).is_err() {
                    return;
                }
            }
        });
        assert_eq!(client.line(), "STORED");
        if !fails {
            // Another namespace takes its place.
            let other = rig.namespace_config(1, "kv:ram:16M");
            rig.reload(|config| config.subsystems[0].namespaces = vec![other]);
        }
        // Either all commands are answered, or the connection ends.
        let mut answered = Vec::new();
        for _ in 1..BURST_COUNT {
            let mut line = String::new();
            match client.0.read_line(&mut line) {
                Ok(0) => break,
                Ok(_) => answered.push(line),
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the clients got no error");
                    break;
                }
            }
        }
        assert!(answered.iter().all(|line| !line.contains("out of memory")), "{answered:?}");
        assert!(
            !fails || answered.len() + 1 < BURST_COUNT || answered.iter().any(|line| line != "STORED\r\n")
        );
        drop(client);
        sender.join().expect("the sender ends");
        rig.stop();
    }
}

/// A change that was answered before it was durable is written before the target ends or the namespace is released.
#[test]
fn a_stop_and_a_removal_wait_for_the_log() {
    for (engine, sync, is_removed) in engines().into_iter().flat_map(|engine| {
        [("batch", false), ("none", false), ("none", true)]
            .map(|(sync, is_removed)| (engine, sync, is_removed))
    }) {
        let directory = tempfile::tempdir().expect("a directory");
        let storage = format!("kv:file:{{}}?size=64M&memory=16M&sync={sync}&delay=write:20ms");
        let mut rig = rig(engine, 2, &directory, &storage);
        let value = |at: u64| [at as u8; 10_000];
        let mut client = Client::new(&rig);
        for at in 0..200 {
            assert_eq!(client.store("set", &format!("key-{at}"), &value(at)), "STORED");
        }
        if is_removed {
            let (before, other) = (rig.config.clone(), rig.namespace_config(1, "kv:ram:16M"));
            rig.reload(|config| config.subsystems[0].namespaces = vec![other]);
            rig.stop();
            rig.config.subsystems = before.subsystems;
        } else {
            rig.stop();
        }
        rig.start();
        let mut client = Client::new(&rig);
        for at in 0..200 {
            let found = client.get(&format!("key-{at}"));
            assert!(
                found.is_some_and(|found| found == value(at)),
                "{at}, {engine:?}, sync={sync}, {is_removed}"
            );
        }
    }
}

/// A log that fails on one reactor closes the namespace on all reactors. Every command of a client is answered with the
/// reason.
#[test]
fn a_failed_log_is_told_to_every_client() {
    for engine in engines() {
        let directory = tempfile::tempdir().expect("a directory");
        let storage = "kv:file:{}?size=64M&memory=8M&flush&error=write:1/8,as=eio";
        let rig = rig(engine, 2, &directory, storage);
        let mut host = RawHost::new(&rig);
        let (mut client, idle) = (Client::new(&rig), [(); 6].map(|()| Client::new(&rig)));
        let mut refused = (0..1000).map(|at| client.store("set", &format!("key-{at}"), b"value"));
        let reason = "SERVER_ERROR the log cannot be written";
        assert_eq!(refused.find(|answer| answer != "STORED").as_deref(), Some(reason));
        let late = [(); 6].map(|()| Client::new(&rig));
        for (at, mut client) in idle.into_iter().chain(late).enumerate() {
            assert!(client.ask("version").starts_with("VERSION"));
            client.say(b"stats\r\n");
            while client.line() != "END" {}
            assert_eq!(client.ask(["get key-1", "flush_all"][at % 2]), reason);
            let mut rest = Vec::new();
            let _ = client.0.read_to_end(&mut rest);
            assert_eq!(rest, b"");
        }
        for at in 0..20 {
            let status = store(&mut host, &format!("key-{at}"), b"value", StoreOptions::empty());
            assert_eq!(status, Status::KV_UNRECOVERED_ERROR.with_dnr(), "{engine:?}");
            // A log that works does not make up for the one that does not.
            let flush = host.io.run(Sqe::flush([NSID, Nsid::ALL][at % 2]), &[]);
            assert_eq!(flush, Status::KV_UNRECOVERED_ERROR.with_dnr(), "{engine:?}");
        }
    }
}

/// Commands wait a second for a log that is being read, and are refused from then on until it is.
#[test]
fn a_log_that_is_read_for_long_is_told_to_every_client() {
    for engine in engines() {
        let directory = tempfile::tempdir().expect("a directory");
        let rig = rig(engine, 2, &directory, "kv:file:{}?size=64M&memory=8M&delay=read:400ms");
        let recovery = || rig.state().subsystems[0].namespaces[0].recovery.clone();
        assert_eq!(recovery().map(|recovery| recovery.partition_count), Some(2), "{engine:?}");
        let mut host = RawHost::new(&rig);
        for key in ["a", "b", "c", "d"] {
            let status = store(&mut host, key, b"value", StoreOptions::empty());
            assert_eq!(status, Status::NAMESPACE_NOT_READY, "{engine:?}");
            let mut client = Client::new(&rig);
            assert!(client.ask("version").starts_with("VERSION"));
            assert_eq!(client.ask(&format!("get {key}")), "SERVER_ERROR not ready: the log is being read");
        }
        let until = Instant::now() + PATIENCE;
        while recovery().is_some() {
            assert!(Instant::now() < until, "it is read");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut client = Client::new(&rig);
        for key in ["a", "b", "c", "d"] {
            assert_eq!(client.store("set", key, b"value"), "STORED", "{engine:?}");
        }
    }
}

#[test]
fn a_file_made_for_another_number_of_threads_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut rig = rig(EngineKind::Epoll, 2, &directory, "kv:file:{}?size=64M");
    rig.stop();
    rig.config.reactors.threads = Threads::Count(3);
    let error = subsystem::server::Target::start(&rig.config).err().expect("it is refused");
    assert!(format!("{error:#}").contains("divided among 2 threads"), "{error:#}");
}
