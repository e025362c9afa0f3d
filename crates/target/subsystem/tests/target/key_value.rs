//! The memcached listener of a running target: partitions on several reactors, many clients at once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::support::memcached_config;
use nvlane_subsystem::server::Target;
use reactor::EngineKind;

fn start(threads: u16, storage: &str) -> Target {
    Target::start(&memcached_config(threads, storage)).expect("a target")
}

struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn new(target: &Target) -> Self {
        let stream = TcpStream::connect(target.memcached()[0].to_string()).expect("a memcached listener");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
        stream.set_nodelay(true).expect("an option");
        Self { stream: BufReader::new(stream) }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("sent");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(format!("{line}\r\n").as_bytes());
        self.line()
    }
}

#[test]
fn keys_of_all_partitions_are_found_through_any_connection() {
    let target = start(3, "kv:ram:64M?flush");
    let mut writer = Client::new(&target);
    let mut text = String::new();
    for key in 0..5000 {
        text += &format!("set key-{key} {key} 0 {}\r\n{key}\r\n", key.to_string().len());
    }
    writer.say(text.as_bytes());
    for _ in 0..5000 {
        assert_eq!(writer.line(), "STORED");
    }
    let mut reader = Client::new(&target);
    let keys: String = (0..5000).map(|key| format!(" key-{key}")).collect();
    reader.say(format!("get{keys}\r\nmn\r\n").as_bytes());
    for key in 0..5000 {
        assert_eq!(reader.line(), format!("VALUE key-{key} {key} {}", key.to_string().len()));
        assert_eq!(reader.line(), key.to_string());
    }
    assert_eq!((reader.line(), reader.line()), ("END".into(), "MN".into()));
    reader.say(b"stats\r\n");
    let stats: Vec<String> =
        std::iter::repeat_with(|| reader.line()).take_while(|line| line != "END").collect();
    for line in ["STAT curr_items 5000", "STAT cmd_get 5000", "STAT threads 3"] {
        assert!(stats.iter().any(|other| other == line), "{line} in {stats:?}");
    }
    assert_eq!(reader.ask("flush_all"), "OK");
    assert_eq!(reader.ask("get key-1 key-2 key-3 key-4"), "END");
    target.stop().expect("a good end");
}

/// hostile E12
#[test]
fn clients_remove_everything_only_where_they_may() {
    let target = start(2, "kv:ram:64M");
    let mut client = Client::new(&target);
    assert_eq!(client.ask("set a 0 0 1\r\nx"), "STORED");
    assert_eq!(client.ask("flush_all"), "CLIENT_ERROR flush_all not allowed");
    assert_eq!(client.ask("shutdown"), "SERVER_ERROR: shutdown not enabled");
    assert_eq!(client.ask("get a"), "VALUE a 0 1");
    target.stop().expect("a good end");
}

#[test]
fn clients_connect_through_a_unix_socket_which_ends_with_the_target() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("memcached.sock");
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        let mut config = memcached_config(2, "kv:ram:64M");
        config.reactors.engine = Some(engine);
        config.memcached.push(format!("unix:{}?mode=0606", path.display()).parse().expect("an address"));
        let target = Target::start(&config).expect("a target");
        assert_eq!(target.memcached()[1], config.memcached[1].address);
        assert_eq!(Client::new(&target).ask("set a 0 0 1\r\nx"), "STORED");
        let mut stream = UnixStream::connect(&path).expect("a Unix socket");
        let mut answer = [0; 21];
        stream.write_all(b"get a\r\nquit\r\n").expect("sent");
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"VALUE a 0 1\r\nx\r\nEND\r\n");
        assert_eq!(stream.read(&mut answer).expect("an end"), 0);
        target.stop().expect("a good end");
        assert!(!path.exists());
    }
}

#[test]
fn statistics_list_the_listeners_and_the_connections_of_all_reactors() {
    let target = start(2, "kv:ram:64M");
    let mut clients: Vec<_> = std::iter::repeat_with(|| Client::new(&target)).take(4).collect();
    for client in &mut clients {
        assert_eq!(client.ask("mn"), "MN");
    }
    clients[1].say(b"set a 0 0 6\r\n");
    assert_eq!(clients[2].ask("watch mutations"), "OK");
    let mut wanted = ["conn_listening", "conn_nread", "conn_parse_cmd", "conn_read", "conn_watch"];
    wanted.sort_unstable();
    // The part of a command may still be on its way.
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        clients[0].say(b"stats conns\r\n");
        let lines: Vec<_> =
            std::iter::repeat_with(|| clients[0].line()).take_while(|line| line != "END").collect();
        let values = |name| lines.iter().filter_map(move |line| Some(line.split_once(name)?.1));
        let listener = format!("tcp:{}", target.memcached()[0]);
        assert_eq!(values(":listen_addr ").collect::<Vec<_>>(), [&listener; 4]);
        assert_eq!(values(":addr ").filter(|address| *address == listener).count(), 1);
        for client in &clients {
            let address = format!("tcp:{}", client.stream.get_ref().local_addr().expect("an address"));
            assert_eq!(values(":addr ").filter(|other| *other == address).count(), 1);
        }
        let mut states: Vec<_> = values(":state ").collect();
        states.sort_unstable();
        if states == wanted {
            break;
        }
        assert!(Instant::now() < until, "{states:?}, not {wanted:?}");
    }
    target.stop().expect("a good end");
}

#[test]
fn a_reload_adds_and_removes_memcached_listeners() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("memcached.sock");
    let unix = |mode| format!("unix:{}?mode={mode}", path.display()).parse().expect("an address");
    let config = memcached_config(2, "kv:ram:64M");
    let mut target = Target::start(&config).expect("a target");
    let before = target.memcached()[0].clone();
    // On both reactors.
    let mut clients: Vec<_> = std::iter::repeat_with(|| Client::new(&target)).take(8).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask(&format!("set key-{number} 0 0 1\r\n{number}")), "STORED");
    }
    clients[0].say(b"watch connevents\r\n");
    assert_eq!(clients[0].line(), "OK");

    let mut wanted = config.clone();
    wanted.memcached = vec![unix("0600")];
    let report = target.reload(&wanted);
    assert!(report.is_complete(), "{report}");
    assert_eq!(target.memcached(), [wanted.memcached[0].address.clone()]);
    for mut client in clients {
        let mut rest = String::new();
        client.stream.read_to_string(&mut rest).expect("an end");
    }
    let refused = TcpStream::connect(before.to_string()).expect_err("a closed listener");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let mut stream = UnixStream::connect(&path).expect("a Unix socket");
    let mut answer = [0; 25];
    stream.write_all(b"get key-7\r\n").expect("sent");
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"VALUE key-7 0 1\r\n7\r\nEND\r\n");

    wanted.memcached[0] = unix("0666");
    let report = target.reload(&wanted).to_string();
    assert!(report.ends_with("remove the listener, reload, and add it again"), "{report}");
    wanted.memcached = config.memcached.clone();
    assert!(target.reload(&wanted).is_complete());
    assert_eq!(stream.read(&mut answer).expect("an end"), 0);
    // Reactor 0 closes the listener, and perhaps another one has closed the connection.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while path.exists() {
        assert!(std::time::Instant::now() < until, "the listener's socket stays");
        std::thread::yield_now();
    }
    assert_eq!(Client::new(&target).ask("get key-1"), "VALUE key-1 0 1");
    target.stop().expect("a good end");
}

#[test]
fn idle_clients_are_closed_and_counted_where_that_is_configured() {
    let mut config = memcached_config(1, "kv:ram:64M");
    config.timeouts.memcached_idle_ms = 3000;
    let target = Target::start(&config).expect("a target");
    let (mut idle, mut busy) = (Client::new(&target), Client::new(&target));
    assert_eq!(idle.ask("mn"), "MN");
    // Its end is seen within the limit and the interval of the check.
    idle.stream.get_ref().set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let start = Instant::now();
    while !matches!(idle.stream.read(&mut [0]), Ok(0)) {
        assert!(start.elapsed() < Duration::from_secs(20), "still open");
        assert_eq!(busy.ask("mn"), "MN");
    }
    assert!(start.elapsed() > Duration::from_millis(2500), "too early");
    busy.say(b"stats\r\n");
    let stats: Vec<String> =
        std::iter::repeat_with(|| busy.line()).take_while(|line| line != "END").collect();
    for line in ["STAT curr_connections 1", "STAT idle_kicks 1"] {
        assert!(stats.iter().any(|other| other == line), "{line} in {stats:?}");
    }
    target.stop().expect("a good end");
}

#[test]
fn clients_beyond_the_limit_are_refused_and_counted() {
    let mut config = memcached_config(2, "kv:ram:64M");
    config.limits.memcached_connection_count_max = 2;
    let target = Target::start(&config).expect("a target");
    let mut clients: Vec<Client> = (0..2).map(|_| Client::new(&target)).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.ask("mn"), "MN"));
    // Refused: its connection ends, if it came about at all.
    let mut refused = Client::new(&target);
    let mut nothing = Vec::new();
    assert_eq!(refused.stream.read_to_end(&mut nothing).unwrap_or(0), 0);
    clients[0].say(b"stats\r\n");
    let stats: Vec<String> =
        std::iter::repeat_with(|| clients[0].line()).take_while(|line| line != "END").collect();
    for line in ["STAT curr_connections 2", "STAT total_connections 2", "STAT rejected_connections 1"] {
        assert!(stats.iter().any(|other| other == line), "{line} in {stats:?}");
    }
    let connections = target.state().expect("it runs").connections;
    assert_eq!(connections.memcached_count, 2);
    assert_eq!(connections.complaints["too many memcached connections"], 1);
    // Who leaves makes room, as soon as that is noticed.
    clients.pop();
    let is_let_in = |_| {
        std::thread::sleep(Duration::from_millis(10));
        let mut client = Client::new(&target);
        client.stream.get_mut().write_all(b"mn\r\n").is_ok()
            && client.stream.read_line(&mut String::new()).is_ok_and(|length| length > 0)
    };
    assert!((0..1000).any(is_let_in), "there is room again");
    target.stop().expect("a good end");
}

#[test]
fn increments_of_one_key_from_many_connections_all_count() {
    let target = start(3, "kv:ram:64M");
    assert_eq!(Client::new(&target).ask("set hot 0 0 1\r\n0"), "STORED");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::new(&target);
                let mut last = 0;
                for _ in 0..10 {
                    client.say("incr hot 1\r\n".repeat(100).as_bytes());
                    for _ in 0..100 {
                        let number = client.line().parse::<u64>().expect("a number");
                        assert!(number > last, "{number} after {last}");
                        last = number;
                    }
                }
            });
        }
    });
    assert_eq!(Client::new(&target).ask("incr hot 0"), "8000");
    target.stop().expect("a good end");
}

#[test]
fn large_values_and_slow_readers_do_not_hold_others_up() {
    let target = start(2, "kv:ram:128M?evict=none");
    let value = vec![b'v'; 1_000_000];
    let mut client = Client::new(&target);
    for key in 0..8 {
        client.say(format!("set large-{key} 0 0 1000000\r\n").as_bytes());
        client.say(&value);
        client.say(b"\r\n");
        assert_eq!(client.line(), "STORED");
    }
    // It asks for much and reads nothing.
    let mut slow = Client::new(&target);
    slow.say("get large-0 large-1 large-2 large-3 large-4 large-5 large-6 large-7\r\n".repeat(20).as_bytes());
    for key in 0..8 {
        assert_eq!(client.ask(&format!("get large-{key}")), format!("VALUE large-{key} 0 1000000"));
        let mut read = vec![0; 1_000_002];
        client.stream.read_exact(&mut read).expect("a value");
        assert!(read[..1_000_000] == value && client.line() == "END");
    }
    // Then it reads everything after all.
    let mut read = vec![0; 1_000_002];
    for _ in 0..20 {
        for key in 0..8 {
            assert_eq!(slow.line(), format!("VALUE large-{key} 0 1000000"));
            slow.stream.read_exact(&mut read).expect("a value");
        }
        assert_eq!(slow.line(), "END");
    }
    target.stop().expect("a good end");
}

/// What is left in its socket would wake its reactor time and again until the log has answered.
#[test]
fn a_connection_that_closes_and_has_input_lets_its_reactor_sleep() {
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pairs");
        let storage = format!("kv:file:{}?size=64M&memory=2M&delay=write:800ms", path.display());
        let mut config = memcached_config(2, &storage);
        config.reactors.engine = Some(engine);
        let target = Target::start(&config).expect("a target");
        let mut client = Client::new(&target);
        // Refused while the log is read for long.
        while client.ask("set first 0 0 1\r\nx") != "STORED" {
            client = Client::new(&target);
        }
        // Of both partitions.
        let sets: String = (0..32).map(|key| format!("set key-{key} 0 0 1\r\nx\r\n")).collect();
        client.say(format!("{sets}quit\r\n").as_bytes());
        std::thread::sleep(Duration::from_millis(100));
        client.say(b"mn\r\n");
        std::thread::sleep(Duration::from_millis(100));
        let asleep = || -> Vec<u64> {
            let state = target.state().expect("it runs");
            assert_eq!(state.connections.memcached_count, 1, "it waits for the log");
            state.reactors.iter().map(|reactor| reactor.asleep_ns).collect()
        };
        let before = asleep();
        std::thread::sleep(Duration::from_millis(300));
        let after = asleep();
        for (reactor, (before, after)) in before.iter().zip(&after).enumerate() {
            let slept_ms = (after - before) / 1_000_000;
            assert!(slept_ms > 150, "reactor {reactor} slept {slept_ms} ms with {engine:?}");
        }
        target.stop().expect("a good end");
    }
}

/// A command whose value is in the log only waits for it; what removes all pairs and was sent later comes after it.
#[test]
fn a_flush_comes_after_the_commands_before_it_that_wait_for_values() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pairs");
    let target = start(2, &format!("kv:file:{}?size=64M&memory=2M&flush", path.display()));
    let mut client = Client::new(&target);
    let value = "v".repeat(60_000);
    for round in 0..5 {
        for key in 0..80 {
            assert_eq!(client.ask(&format!("set k{key} 0 0 60000\r\n{value}")), "STORED", "round {round}");
        }
        // They left memory first.
        let appends: String = (0..8).map(|key| format!("append k{key} 0 0 1\r\nx\r\n")).collect();
        client.say(format!("{appends}flush_all\r\n").as_bytes());
        for key in 0..8 {
            assert_eq!(client.line(), "STORED", "round {round}, key {key}");
        }
        assert_eq!(client.line(), "OK");
        assert_eq!(client.ask("get k0"), "END");
    }
}
