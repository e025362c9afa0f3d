//! A memcached port for each partition: each has keys of its own, served by one reactor.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use linux::random::SplitMix64;
use reactor::EngineKind;
use subsystem::allow_list::AllowList;
use subsystem::config::{MemcachedAddress, SecretSource, TargetConfig, Threads};

use tempfile::TempDir;

use crate::setup::{PATIENCE, Rig, engines, options};

/// A target with this number of reactors, and a port for each.
fn rig(engine: EngineKind, threads: u16, change: impl FnOnce(&mut TargetConfig)) -> Rig {
    Rig::with(engine, &["kv:ram:64M?flush&item=4M"], |config| {
        config.reactors.threads = Threads::Count(threads);
        config.memcached = vec![MemcachedAddress::Partitions(config.listeners[0].address).into()];
        change(config);
    })
}

/// The ports, by partition.
fn ports(rig: &Rig) -> Vec<SocketAddr> {
    let listeners = rig.state_of_memcached();
    assert!((0..).zip(&listeners).all(|(number, listener)| listener.partition == Some(number)));
    listeners.iter().map(|listener| listener.address.parse().expect("an address")).collect()
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn new(port: SocketAddr) -> Self {
        let stream = TcpStream::connect(port).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Self(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Sends it with the end of its line, and expects these lines.
    fn talk(&mut self, request: &str, answer: &[&str]) {
        write!(self.0.get_mut(), "{request}\r\n").expect("sent");
        for expected in answer {
            assert_eq!(self.line(), *expected, "to {request:.40}");
        }
    }

    /// The lines up to `END`.
    fn lines(&mut self, request: &str) -> Vec<String> {
        write!(self.0.get_mut(), "{request}\r\n").expect("sent");
        std::iter::from_fn(|| Some(self.line()).filter(|line| line != "END")).collect()
    }
}

#[test]
fn each_port_has_keys_of_its_own() {
    for engine in engines() {
        let rig = rig(engine, 3, |_| {});
        let ports = ports(&rig);
        assert_eq!(ports.len(), 3);
        for (number, port) in ports.iter().enumerate() {
            let mut client = Client::new(*port);
            for key in 0..200 {
                client.talk(&format!("set key-{key} 0 0 5\r\n{number:02}{key:03}"), &["STORED"]);
            }
            // A value that arrives in parts, and one that is sent in parts.
            let long = format!("{number}").repeat(2_000_000);
            client.talk(&format!("set long 0 0 {}\r\n{long}", long.len()), &["STORED"]);
        }
        for (number, port) in ports.iter().enumerate() {
            // Every connection of a port finds them.
            for _ in 0..3 {
                let mut client = Client::new(*port);
                let keys: Vec<String> = (0..200).map(|key| format!("key-{key}")).collect();
                let values = client.lines(&format!("get {}", keys.join(" ")));
                let values: Vec<String> = values.into_iter().skip(1).step_by(2).collect();
                let expected = |key: usize| format!("{number:02}{key:03}");
                assert_eq!(values, (0..200).map(expected).collect::<Vec<_>>());
                for key in 0..200 {
                    client.talk(&format!("mg key-{key} v"), &["VA 5", &expected(key)]);
                }
                let long = format!("{number}").repeat(2_000_000);
                client.talk("get long", &["VALUE long 0 2000000", &long, "END"]);
            }
            let mut client = Client::new(*port);
            let stats = client.lines("stats");
            let stat = |name: &str| stats.iter().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
            assert_eq!(stat("curr_items"), Some("201"));
            assert_eq!(stat("cmd_set"), Some("201"));
            let limit_bytes: u64 = stat("limit_maxbytes").expect("a limit").parse().expect("a number");
            assert!((20 << 20..22 << 20).contains(&limit_bytes), "a third of the memory: {limit_bytes}");
            let place = [number.to_string(), "3".to_owned()];
            assert_eq!(
                ["partition", "partition_count"].map(stat),
                place.each_ref().map(|word| Some(&word[..]))
            );
            let dump = client.lines("lru_crawler metadump all");
            assert_eq!(dump.iter().filter(|line| line.starts_with("key=")).count(), 201);
            let connections = client.lines("stats conns");
            assert!(
                connections.iter().any(|line| line.ends_with(&format!("listen_addr tcp:{port}"))),
                "{connections:?}"
            );
            let refusal = "CLIENT_ERROR cache_memlimit not allowed on the port of one partition";
            client.talk("cache_memlimit 128", &[refusal]);
        }
        let mut first = Client::new(ports[0]);
        first.talk("flush_all", &["OK"]);
        first.talk("get key-1", &["END"]);
        Client::new(ports[1]).talk("get key-1", &["VALUE key-1 0 5", "01001", "END"]);
        Client::new(ports[1]).talk("stats reset", &["RESET"]);
        let stats = Client::new(ports[2]).lines("stats");
        assert!(stats.contains(&"STAT cmd_set 201".to_owned()), "those of the port alone are reset");
    }
}

#[test]
fn hosts_do_not_see_the_keys() {
    let rig = rig(EngineKind::Epoll, 2, |_| {});
    assert!(rig.connect(options()).namespaces().is_empty());
    assert_eq!(rig.state().subsystems[0].namespaces.len(), 1);
}

/// Clients of all ports at once, each of which counts with numbers of its own.
#[test]
fn ports_are_used_at_the_same_time() {
    for engine in engines() {
        let rig = rig(engine, 2, |_| {});
        let ports = ports(&rig);
        std::thread::scope(|scope| {
            for number in 0..6u64 {
                let port = ports[number as usize % 2];
                scope.spawn(move || {
                    let mut client = Client::new(port);
                    let mut random = SplitMix64::new(number);
                    client.talk(&format!("set of-{number} 0 0 1\r\n0"), &["STORED"]);
                    let mut count = 0;
                    while count < 2000 {
                        let add = 1 + random.below(3);
                        count += add;
                        client.talk(&format!("incr of-{number} {add}"), &[&u64::to_string(&count)]);
                        client.talk(&format!("set same 0 0 4\r\n{:04}", number % 2), &["STORED"]);
                        client.talk("get same", &["VALUE same 0 4", &format!("{:04}", number % 2), "END"]);
                    }
                });
            }
        });
    }
}

#[test]
fn a_reload_changes_ports_of_the_same_kind_only() {
    let mut rig = rig(EngineKind::Epoll, 2, |_| {});
    let before = ports(&rig);
    Client::new(before[1]).talk("set a 0 0 1\r\n1", &["STORED"]);
    // What clients must meet is changed on each port.
    let report = rig.try_reload(|config| {
        config.memcached[0].allow = AllowList::Only(vec!["192.0.2.0/24".parse().expect("a prefix")]);
    });
    assert!(report.is_complete() && report.lines.len() == 2, "{report}");
    for port in &before {
        assert_eq!(Client::new(*port).line(), "", "closed");
    }
    rig.reload(|config| config.memcached[0].allow = AllowList::Any);
    Client::new(before[1]).talk("get a", &["VALUE a 0 1", "1", "END"]);
    // Another number of reactors takes a restart, and so do its ports.
    let report = rig.try_reload(|config| config.reactors.threads = Threads::Count(3)).to_string();
    assert_eq!(report, "change reactors: takes a restart");
    assert_eq!(ports(&rig), before);
    rig.reload(|config| config.reactors.threads = Threads::Count(2));
    // Ports of all keys would show only some of them.
    let divided = rig.config.memcached.clone();
    let report = rig.try_reload(|config| {
        config.memcached = vec![config.listeners[0].address.into()];
    });
    assert_eq!(report.to_string(), "change memcached listeners to or from ?partitions: takes a restart");
    assert!(!report.is_complete());
    assert_eq!(ports(&rig), before);
    assert!(rig.connect(options()).namespaces().is_empty());
    // Another listener of this kind.
    rig.reload(|config| {
        config.memcached = divided;
        let other = SocketAddr::new(config.listeners[0].address.ip(), 0);
        config.memcached.push(MemcachedAddress::Partitions(other).into());
    });
    let state = rig.state_of_memcached();
    let partitions: Vec<_> = state.iter().map(|listener| listener.partition).collect();
    assert_eq!(partitions, [Some(0), Some(1), Some(0), Some(1)]);
    let other: SocketAddr = state[3].address.parse().expect("an address");
    Client::new(other).talk("get a", &["VALUE a 0 1", "1", "END"]);
    // It goes again.
    rig.reload(|config| drop(config.memcached.pop()));
    assert_eq!(ports(&rig).len(), 2);
}

#[test]
fn clients_of_every_port_authenticate() {
    let directory = TempDir::new().expect("a directory");
    let users = directory.path().join("users");
    std::fs::write(&users, "web:secret\n").expect("a file");
    let rig = rig(EngineKind::Epoll, 2, |config| {
        config.memcached[0].users = Some(SecretSource::File(users));
    });
    for port in ports(&rig) {
        let mut client = Client::new(port);
        client.talk("get a", &["CLIENT_ERROR unauthenticated"]);
        client.talk("set auth 0 0 10\r\nweb secret", &["STORED"]);
        client.talk("get a", &["END"]);
    }
}
