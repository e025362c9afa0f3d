//! Values of several MiB over NVMe: transferred in parts, replaced concurrently, and interrupted half-way.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use host::BlockingKeyValue;
use host::{Failure, Key, StoreOptions};
use reactor::EngineKind;
use subsystem::config::{NamespaceConfig, Threads};
use wire::id::Nsid;
use wire::status::Status;

use crate::key_value::connect;
use crate::relay::{Cut, Relay};
use crate::setup::{Over, PATIENCE, Rig, connect_to, engines, options};

const MEBIBYTE: usize = 1 << 20;

fn rig(engine: EngineKind, spec: &str, threads: u16) -> Rig {
    Rig::with(engine, &[spec], |config| config.reactors.threads = Threads::Count(threads))
}

fn key(number: usize) -> Key {
    Key::new(format!("key-{number}").as_bytes()).expect("1 to 16 bytes")
}

/// Reads the first key over and over.
fn read_until(rig: &Rig, is_over: &AtomicBool, on_value: impl Fn(Option<Vec<u8>>)) {
    let mut keys = connect(rig);
    while !is_over.load(Ordering::Relaxed) {
        on_value(keys.retrieve(&key(0)).expect("asked"));
    }
}

/// The number that every byte of a value has.
fn round_of(found: &[u8]) -> usize {
    // Each byte equals the next one. Tests are not optimized: a loop over mebibytes would take most of their time.
    assert!(found[1..] == found[..found.len() - 1], "parts of two values");
    found[0].into()
}

/// A value of one byte, repeated. `vec!` would repeat it byte by byte, without optimization.
fn repeated(byte: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    bytes.fill(byte as u8);
    bytes
}

/// A value in which each byte shows its position.
fn value(first: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (at, page) in bytes.chunks_mut(4096).enumerate() {
        page.fill((first + at * 7) as u8);
    }
    bytes
}

fn status(ended: Result<impl Sized, host::Error>) -> Option<Status> {
    match ended.err()? {
        host::Error::Failed { failure: Failure::Status(status), .. } => Some(status),
        _ => None,
    }
}

#[test]
fn values_of_mebibytes_come_back_whatever_their_length_and_partition() {
    for engine in engines() {
        for threads in [1, 3] {
            for options in [options(), options().with_digests()] {
                let rig = rig(engine, "kv:ram:512M", threads);
                let association = rig.connect(options.with_lanes(1));
                let namespace = association.addressed_key_value().expect("keys and values");
                assert_eq!(namespace.value_bytes_max(), 256 << 20);
                let mut keys = BlockingKeyValue::new(&association, namespace).expect("a lane");
                let lengths = [
                    MEBIBYTE - 1,
                    MEBIBYTE,
                    MEBIBYTE + 1,
                    5 * MEBIBYTE / 2,
                    3 * MEBIBYTE,
                    20 * MEBIBYTE + 70_001,
                ];
                for (number, length) in lengths.into_iter().enumerate() {
                    keys.store(&key(number), &value(number, length)).expect("stored");
                }
                for (number, length) in lengths.into_iter().enumerate() {
                    let found = keys.retrieve(&key(number)).expect("asked").expect("there");
                    assert!(found == value(number, length), "{length} bytes, {threads} reactors");
                }
                // Buffers shorter than the value, ending within its chunks and after them.
                let (number, length) = (5, lengths[5]);
                for room in [1, 4096, MEBIBYTE, 3 * MEBIBYTE + 5, length - 1] {
                    let command = namespace.retrieve(&key(number), room as u32).expect("a command");
                    keys.lane_mut().submit(command, Some(vec![0; room]), 7).expect("room in the queue");
                    let mut completions = Vec::new();
                    while completions.is_empty() {
                        keys.lane_mut().wait(&mut completions, PATIENCE);
                    }
                    let completion = completions.remove(0);
                    assert_eq!(completion.result.expect("success"), length as u64);
                    assert!(
                        completion.buffer.expect("a buffer") == value(number, length)[..room],
                        "{room} of it"
                    );
                }
                assert!(
                    !keys
                        .store_if(&key(5), &value(0, 2 * MEBIBYTE), StoreOptions::MUST_NOT_EXIST)
                        .expect("asked")
                );
                assert!(
                    !keys
                        .store_if(&key(9), &value(0, 2 * MEBIBYTE), StoreOptions::MUST_EXIST)
                        .expect("asked")
                );
                assert!(
                    keys.store_if(&key(5), &value(8, 2 * MEBIBYTE), StoreOptions::MUST_EXIST).expect("asked")
                );
                assert!(keys.retrieve(&key(5)).expect("asked") == Some(value(8, 2 * MEBIBYTE)));
                keys.delete(&key(5)).expect("deleted");
                assert_eq!(keys.retrieve(&key(5)).expect("asked"), None);
            }
        }
    }
}

#[test]
fn a_value_is_read_as_a_whole_while_others_replace_it() {
    for engine in engines() {
        let rig = rig(engine, "kv:ram:256M", 2);
        let (is_over, read_count) = (AtomicBool::new(false), AtomicU32::new(0));
        let length = |round: usize| 2 * MEBIBYTE + (round % 5) * 400_000;
        connect(&rig).store(&key(0), &vec![0; length(0)]).expect("stored");
        let on_value = |found: Option<Vec<u8>>| {
            // Between Delete and Store the key does not exist.
            let Some(found) = found else { return };
            assert_eq!(found.len(), length(round_of(&found)));
            read_count.fetch_add(1, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| read_until(&rig, &is_over, on_value));
            }
            scope.spawn(|| {
                let _over = Over(&is_over);
                let mut keys = connect(&rig);
                for round in 1..100 {
                    if round % 10 == 0 {
                        keys.delete(&key(0)).expect("deleted");
                    }
                    keys.store(&key(0), &repeated(round, length(round))).expect("stored");
                }
                let start = Instant::now();
                while read_count.load(Ordering::Relaxed) < 20 {
                    assert!(start.elapsed() < PATIENCE, "no reader makes progress");
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        });
    }
}

#[test]
fn what_does_not_fit_is_refused_and_what_breaks_off_leaves_nothing_behind() {
    for engine in engines() {
        for threads in [1, 2] {
            let rig = rig(engine, "kv:ram:128M?evict=none", threads);
            let mut keys = connect(&rig);
            keys.store(&key(0), &value(1, 3 * MEBIBYTE)).expect("stored");
            let refused = status(keys.store(&key(0), &value(2, 200 * MEBIBYTE)));
            assert_eq!(refused, Some(Status::CAPACITY_EXCEEDED.with_dnr()));
            // More such values than memory could hold if they were retained.
            for round in 0..12 {
                let mut other = connect(&rig);
                let namespace = *other.namespace();
                let length = 30 * MEBIBYTE;
                let command =
                    namespace.store(&key(0), length as u32, StoreOptions::empty()).expect("a command");
                other.lane_mut().submit(command, Some(value(3, length)), 7).expect("room in the queue");
                other.lane_mut().ring();
                let mut completions = Vec::new();
                for _ in 0..round % 4 {
                    other.lane_mut().wait(&mut completions, Duration::from_micros(500));
                }
                if completions.is_empty() && round % 2 == 0 {
                    other.lane_mut().cancel(7);
                }
                drop(other);
            }
            drop(keys);
            rig.await_quiet();
            let mut keys = connect(&rig);
            let found = keys.retrieve(&key(0)).expect("asked").expect("there");
            assert!(found == value(1, 3 * MEBIBYTE) || found == value(3, 30 * MEBIBYTE), "neither value");
            keys.delete(&key(0)).expect("deleted");
            for number in 0..2 {
                keys.store(&key(number), &value(4, 20 * MEBIBYTE)).expect("all memory is free again");
            }
        }
    }
}

#[test]
fn many_values_arrive_at_once_on_one_lane() {
    for threads in [1, 2] {
        let rig = rig(EngineKind::Epoll, "kv:ram:512M", threads);
        let mut keys = connect(&rig);
        let namespace = *keys.namespace();
        let length = 2 * MEBIBYTE + 9000;
        for number in 0..20 {
            let command =
                namespace.store(&key(number), length as u32, StoreOptions::empty()).expect("a command");
            keys.lane_mut().submit(command, Some(value(number, length)), number as u64).expect("room");
        }
        let mut completions = Vec::new();
        while completions.len() < 20 {
            assert!(keys.lane_mut().wait(&mut completions, PATIENCE) > 0, "{} of 20", completions.len());
        }
        assert!(completions.iter().all(|completion| completion.result.is_ok()));
        for number in 0..20 {
            let found = keys.retrieve(&key(number)).expect("asked").expect("there");
            assert!(found == value(number, length));
        }
    }
}

#[test]
fn a_changed_bit_fails_the_store_and_the_old_value_stays() {
    let rig = rig(EngineKind::Epoll, "kv:ram:128M?evict=none", 2);
    let relay = Relay::new(rig.socket_address(), Cut::Flip(3_000_000));
    let mut clean = connect(&rig);
    clean.store(&key(0), &value(1, 2 * MEBIBYTE)).expect("stored");
    let mut failed_count = 0;
    for _ in 0..8 {
        let association = connect_to(relay.address(), options().with_digests().with_lanes(1));
        let Ok(namespace) = association.addressed_key_value() else { continue };
        let Ok(mut keys) = BlockingKeyValue::new(&association, namespace) else { continue };
        let is_stored = keys.store(&key(0), &value(2, 20 * MEBIBYTE)).is_ok();
        failed_count += usize::from(!is_stored);
        let found = clean.retrieve(&key(0)).expect("asked").expect("there");
        assert!(found == value(1, 2 * MEBIBYTE) || is_stored && found == value(2, 20 * MEBIBYTE));
        clean.store(&key(0), &value(1, 2 * MEBIBYTE)).expect("stored");
    }
    assert!(failed_count > 0, "no bit was changed");
    for number in 1..5 {
        clean.store(&key(number), &value(3, 10 * MEBIBYTE)).expect("all memory is free again");
    }
}

/// A memcached client.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(rig: &Rig) -> Self {
        let stream = TcpStream::connect(rig.memcached()).expect("a client connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        line
    }

    fn set(&mut self, key: &str, value: &[u8]) -> String {
        let stream = self.0.get_mut();
        write!(stream, "set {key} 0 0 {}\r\n", value.len()).expect("sent");
        stream.write_all(value).and_then(|()| stream.write_all(b"\r\n")).expect("sent");
        self.line()
    }

    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        write!(self.0.get_mut(), "get {key}\r\n").expect("sent");
        let line = self.line();
        if line == "END\r\n" {
            return None;
        }
        let length = line.trim_end().rsplit(' ').next().expect("a length").parse().expect("a number");
        let mut value = vec![0; length];
        self.0.read_exact(&mut value).expect("a value");
        assert_eq!((self.line(), self.line()), ("\r\n".to_owned(), "END\r\n".to_owned()));
        Some(value)
    }
}

#[test]
fn memcached_and_nvme_see_the_same_values_of_mebibytes() {
    for engine in engines() {
        for threads in [1, 2] {
            let rig = Rig::with(engine, &["kv:ram:512M?item=64M"], |config| {
                config.reactors.threads = Threads::Count(threads);
                config.memcached = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()];
            });
            let (mut client, mut keys) = (Client::new(&rig), connect(&rig));
            for (number, length) in
                [MEBIBYTE, 5 * MEBIBYTE / 2, 20 * MEBIBYTE + 70_001].into_iter().enumerate()
            {
                let name = format!("key-{number}");
                assert_eq!(client.set(&name, &value(number, length)), "STORED\r\n");
                assert!(keys.retrieve(&key(number)).expect("asked") == Some(value(number, length)));
                keys.store(&key(number), &value(number + 5, length + 1)).expect("stored");
                assert!(client.get(&name) == Some(value(number + 5, length + 1)));
            }
            let refused = client.set("key-0", &value(0, 64 * MEBIBYTE + 1));
            assert_eq!(refused, "SERVER_ERROR object too large for cache\r\n");
            assert_eq!(client.get("key-0"), None, "as with memcached, the old value goes");
            // One client disconnects half-way, and one reads nothing.
            for round in 0..20 {
                let mut other = Client::new(&rig);
                let stream = other.0.get_mut();
                write!(stream, "set key-1 0 0 {}\r\n", 40 * MEBIBYTE).expect("sent");
                stream.write_all(&value(3, round * MEBIBYTE)).expect("sent");
                let mut silent = Client::new(&rig);
                silent.0.get_mut().write_all(b"get key-1 key-2 key-1 key-2\r\n").expect("sent");
            }
            assert!(client.get("key-1") == Some(value(6, 5 * MEBIBYTE / 2 + 1)), "the old value stays");
            for number in 10..18 {
                assert_eq!(client.set(&format!("key-{number}"), &value(number, 40 * MEBIBYTE)), "STORED\r\n");
            }
        }
    }
}

/// A target that serves a new file in this directory through NVMe and memcached, with values of up to nearly 2 MiB.
fn rig_of_file(engine: EngineKind, threads: u16, directory: &tempfile::TempDir) -> Rig {
    let path = directory.path().join("pairs");
    let spec = format!("kv:file:{}?size=2G&memory=32M&item=2M&sparse", path.display());
    Rig::with(engine, &[], |config| {
        let namespace = NamespaceConfig::new(spec.parse().expect("a good specification"));
        let nsid = Some(Nsid::new(1));
        config.subsystems[0].namespaces = vec![NamespaceConfig { nsid, ..namespace }];
        config.memcached = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()];
        config.reactors.threads = Threads::Count(threads);
    })
}

#[test]
fn values_of_mebibytes_in_a_file_leave_memory_and_are_there_after_a_restart() {
    const COUNT: usize = 40;
    let length = |number: usize| MEBIBYTE - 1 + number % 4 * 349_000;
    let name = |number: usize| format!("key-{number}");
    for engine in engines() {
        for threads in [1, 2] {
            let directory = tempfile::tempdir().expect("a directory");
            let mut rig = rig_of_file(engine, threads, &directory);
            let (mut client, mut keys) = (Client::new(&rig), connect(&rig));
            // Twice as much as memory holds, half of it through each protocol.
            for number in 0..COUNT {
                if number % 2 == 0 {
                    keys.store(&key(number), &value(number, length(number))).expect("stored");
                } else {
                    assert_eq!(client.set(&name(number), &value(number, length(number))), "STORED\r\n");
                }
            }
            for number in 0..COUNT {
                if number % 2 == 0 {
                    assert!(client.get(&name(number)) == Some(value(number, length(number))), "{number}");
                } else {
                    let found = keys.retrieve(&key(number)).expect("asked");
                    assert!(found == Some(value(number, length(number))), "{number}");
                }
            }
            // Values that are only on disk are replaced; interrupted stores replace none.
            for number in 0..COUNT / 4 {
                keys.store(&key(number), &value(number + 1, length(number + 1))).expect("stored");
                let mut other = Client::new(&rig);
                let stream = other.0.get_mut();
                write!(stream, "set {} 0 0 {}\r\n", name(number + 20), 3 * MEBIBYTE / 2).expect("sent");
                stream.write_all(&value(3, MEBIBYTE + 9)).expect("sent");
            }
            keys.flush().expect("flushed");
            drop((keys, client));
            rig.stop();
            rig.start();
            let mut keys = connect(&rig);
            for number in 0..COUNT {
                let of = if number < COUNT / 4 { number + 1 } else { number };
                let found = keys.retrieve(&key(number)).expect("asked");
                assert!(found == Some(value(of, length(of))), "{number} after a restart, {threads} threads");
            }
        }
    }
}

#[test]
fn a_value_in_a_file_is_read_as_a_whole_while_others_replace_it() {
    for threads in [1, 2] {
        let directory = tempfile::tempdir().expect("a directory");
        let rig = rig_of_file(engines()[0], threads, &directory);
        let is_over = AtomicBool::new(false);
        let length = |round: usize| MEBIBYTE + round % 5 * 200_000;
        connect(&rig).store(&key(0), &vec![0; length(0)]).expect("stored");
        let on_value = |found: Option<Vec<u8>>| {
            let found = found.expect("there");
            assert_eq!(found.len(), length(round_of(&found)));
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| read_until(&rig, &is_over, on_value));
            }
            scope.spawn(|| {
                let _over = Over(&is_over);
                let mut keys = connect(&rig);
                for round in 1..40 {
                    keys.store(&key(0), &repeated(round, length(round))).expect("stored");
                    // So that the other value is evicted from memory now and then.
                    keys.store(&key(round % 25 + 1), &repeated(7, 3 * MEBIBYTE / 2)).expect("stored");
                }
            });
        });
    }
}

/// A client that announces many values and sends none of them holds little memory.
#[test]
fn values_that_are_announced_and_not_sent_hold_little_memory() {
    for threads in [1, 2] {
        let rig = rig(EngineKind::Epoll, "kv:ram:128M?evict=none", threads);
        let announce = || {
            let mut other = connect(&rig);
            let namespace = *other.namespace();
            for number in 0..16 {
                let command =
                    namespace.store(&key(number), 60 << 20, StoreOptions::empty()).expect("a command");
                other.lane_mut().submit(command, Some(vec![0; 60 << 20]), number as u64).expect("room");
            }
            other.lane_mut().ring();
            other
        };
        // The first parts are requested; the lanes are not polled, so nothing is sent.
        let silent: Vec<_> = (0..12).map(|_| announce()).collect();
        let mut keys = connect(&rig);
        std::thread::sleep(Duration::from_millis(50));
        for number in 20..24 {
            keys.store(&key(number), &value(number, 12 * MEBIBYTE)).expect("there is memory");
        }
        drop(silent);
    }
}
