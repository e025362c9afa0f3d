//! memcached's protocol, pipelined, against running servers: the processor time of each per operation.
//!
//! ```text
//! cargo bench -p nvlane-memcached --bench servers --
//!     NAME=ADDR:PORT[,ADDR:PORT]@PID ... [keys=N] [rounds=N] [seconds=N] [only=TEXT] [loads=N]
//! ```
//!
//! A server with a port for each partition (`--memcached ADDR:PORT?partitions`) is given all of them: connections use them in turn.
//!
//! Batches come from four connections of each load thread at once, so that a server is never idle. Servers take turns within each round;
//! the table has the medians. *k/s* is the rate reached, *k/CPU s* the operations per second of the server's processor
//! time, from `/proc/PID/stat`: the rate of one fully used core.

#![allow(missing_docs, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

struct Server {
    name: String,
    addresses: Vec<SocketAddr>,
    pid: u32,
}

/// Processor time of a process, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Get,
    MultiGet,
    MetaGet,
    Set,
    HotIncrement,
}

struct Work {
    kind: Kind,
    batch: usize,
    connections: usize,
}

fn value() -> &'static str {
    "0123456789abcdef0123456789abcdef"
}

fn request(kind: Kind, batch: usize, keys: u64, random: &mut u64, into: &mut String) {
    into.clear();
    let mut next = || {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*random >> 33) % keys
    };
    if kind == Kind::MultiGet {
        into.push_str("get");
        for _ in 0..batch {
            let _ = write!(into, " key-{:012}", next());
        }
        into.push_str("\r\n");
        return;
    }
    for _ in 0..batch {
        let _ = match kind {
            Kind::Get => write!(into, "get key-{:012}\r\n", next()),
            Kind::MetaGet => write!(into, "mg key-{:012} v\r\n", next()),
            Kind::Set => write!(into, "set key-{:012} 0 0 32\r\n{}\r\n", next(), value()),
            _ => write!(into, "incr hot 1\r\n"),
        };
    }
}

/// Bytes of the answer to a request.
fn answer_bytes(kind: Kind, batch: usize) -> Option<usize> {
    match kind {
        Kind::Get => Some(batch * ("VALUE key-000000000000 0 32\r\n".len() + 34 + 5)),
        Kind::MultiGet => Some(batch * ("VALUE key-000000000000 0 32\r\n".len() + 34) + 5),
        Kind::MetaGet => Some(batch * ("VA 32\r\n".len() + 34)),
        Kind::Set => Some(batch * 8),
        Kind::HotIncrement => None,
    }
}

fn exchange(stream: &mut TcpStream, kind: Kind, batch: usize, request: &str, buffer: &mut [u8]) {
    stream.write_all(request.as_bytes()).expect("sent");
    take(stream, kind, batch, buffer);
}

fn take(stream: &mut TcpStream, kind: Kind, batch: usize, buffer: &mut [u8]) {
    match answer_bytes(kind, batch) {
        Some(length) => {
            stream.read_exact(&mut buffer[..length]).expect("an answer");
            let start = &buffer[..4];
            assert!(
                matches!(start, b"VALU" | b"VA 3" | b"STOR"),
                "{:?}",
                String::from_utf8_lossy(&buffer[..64])
            );
        }
        None => {
            let mut lines = 0;
            while lines < batch {
                let count = stream.read(buffer).expect("an answer");
                assert!(count > 0, "the server has gone");
                lines += buffer[..count].iter().filter(|&&byte| byte == b'\n').count();
            }
        }
    }
}

/// Operations per second, and per second of the server's processor time, from `loads` threads with their own connections.
fn run(server: &Server, work: &Work, keys: u64, seconds: f64, loads: u64) -> (f64, f64) {
    let before = ticks(server.pid);
    let (mut count, mut elapsed) = (0, 0.0);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (1..=loads).map(|seed| scope.spawn(move || run_one(server, work, keys, seconds, seed))).collect();
        for thread in threads {
            let (done, took) = thread.join().expect("no panic");
            (count, elapsed) = (count + done, took.max(elapsed));
        }
    });
    let used = (ticks(server.pid) - before).max(1) as f64 / 100.0;
    (count as f64 / elapsed, count as f64 / used)
}

/// Operations of one load thread, and their time, s.
fn run_one(server: &Server, work: &Work, keys: u64, seconds: f64, seed: u64) -> (u64, f64) {
    let mut streams: Vec<TcpStream> = (0..work.connections)
        .map(|at| {
            let address = server.addresses[at % server.addresses.len()];
            let stream = TcpStream::connect(address).expect("a server");
            stream.set_nodelay(true).expect("an option");
            stream
        })
        .collect();
    let mut buffer = vec![0; 1 << 20];
    let mut random = seed;
    // Made before the clock starts.
    let requests: Vec<String> = (0..512)
        .map(|_| {
            let mut text = String::new();
            request(work.kind, work.batch, keys, &mut random, &mut text);
            text
        })
        .collect();
    let (start, mut count, mut at) = (Instant::now(), 0u64, 0);
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        for stream in &mut streams {
            at = (at + 1) % requests.len();
            stream.write_all(requests[at].as_bytes()).expect("sent");
            count += work.batch as u64;
        }
        for stream in &mut streams {
            take(stream, work.kind, work.batch, &mut buffer);
        }
    }
    (count, start.elapsed().as_secs_f64())
}

fn fill(address: SocketAddr, keys: u64) {
    let mut stream = TcpStream::connect(address).expect("a server");
    let mut buffer = vec![0; 1 << 16];
    for first in (0..keys).step_by(256) {
        let mut text = String::new();
        let batch = 256.min(keys - first);
        for key in first..first + batch {
            let _ = write!(text, "set key-{key:012} 0 0 32\r\n{}\r\n", value());
        }
        exchange(&mut stream, Kind::Set, batch as usize, &text, &mut buffer);
    }
    stream.write_all(b"set hot 0 0 1\r\n0\r\n").expect("sent");
    stream.read_exact(&mut buffer[..8]).expect("an answer");
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let (mut servers, mut keys, mut rounds, mut seconds) = (Vec::new(), 1_000_000, 5, 1.0);
    let (mut only, mut loads) = (String::new(), 1);
    for word in std::env::args().skip(1) {
        match word.split_once('=') {
            Some(("keys", number)) => keys = number.parse().expect("a number"),
            Some(("rounds", number)) => rounds = number.parse().expect("a number"),
            Some(("only", text)) => text.clone_into(&mut only),
            Some(("loads", number)) => loads = number.parse().expect("a number"),
            Some(("seconds", number)) => seconds = number.parse().expect("a number"),
            Some((name, place)) => {
                let (addresses, pid) = place.split_once('@').expect("ADDR:PORT@PID");
                let addresses = addresses.split(',').map(|address| address.parse().expect("an address"));
                let (addresses, pid) = (addresses.collect(), pid.parse().expect("a pid"));
                servers.push(Server { name: name.to_owned(), addresses, pid });
            }
            None => {}
        }
    }
    if servers.is_empty() {
        return println!("no servers given: see the top of benches/servers.rs");
    }
    for address in servers.iter().flat_map(|server| &server.addresses) {
        fill(*address, keys);
    }
    println!("{keys} keys of 16 bytes, values of 32; medians of {rounds} rounds of {seconds} s");
    let work = |kind, batch, connections| Work { kind, batch, connections };
    for (name, work) in [
        ("get, 256 in a batch", work(Kind::Get, 256, 4)),
        ("multiget of 256", work(Kind::MultiGet, 256, 4)),
        ("meta get, 256", work(Kind::MetaGet, 256, 4)),
        ("get, 64", work(Kind::Get, 64, 4)),
        ("get, 32", work(Kind::Get, 32, 4)),
        ("multiget of 64", work(Kind::MultiGet, 64, 4)),
        ("meta get, 64", work(Kind::MetaGet, 64, 4)),
        ("set, 256", work(Kind::Set, 256, 4)),
        ("incr of one key, 256", work(Kind::HotIncrement, 256, 4)),
        ("get, 1, 64 connections", work(Kind::Get, 1, 64)),
        ("meta get, 1, 64 connections", work(Kind::MetaGet, 1, 64)),
    ] {
        if !name.contains(&only) {
            continue;
        }
        let mut rates: Vec<(Vec<f64>, Vec<f64>)> = servers.iter().map(|_| Default::default()).collect();
        for _ in 0..rounds {
            for (server, rates) in servers.iter().zip(&mut rates) {
                let (reached, per_cpu) = run(server, &work, keys, seconds, loads);
                rates.0.push(reached / 1e3);
                rates.1.push(per_cpu / 1e3);
            }
        }
        let mut first = None;
        for (server, (reached, per_cpu)) in servers.iter().zip(&mut rates) {
            let per_cpu = median(per_cpu);
            let base = *first.get_or_insert(per_cpu);
            println!(
                "{name:24} {:12} {:9.0} k/s {per_cpu:9.0} k/CPU s  {:.2} of the first",
                server.name,
                median(reached),
                per_cpu / base
            );
        }
    }
}
