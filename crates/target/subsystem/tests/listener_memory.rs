//! What memcached connections hold beside the namespace's memory, whatever they ask for and do not read, and whatever
//! they begin to send.
#![allow(missing_docs)]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use allocators::CountingAllocator;
use nvlane_subsystem::server::Target;
use support::memcached_config;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const MEBIBYTE: usize = 1 << 20;
const CONNECTION_COUNT: usize = 16;

/// What a connection may hold: a value nearly as long as those that lie in the namespace from their first byte on, and
/// what says whose it is.
const HELD_BYTES_MAX: usize = MEBIBYTE + 4096;

/// Lengths short of whole mebibytes, and some that are copied.
const LENGTHS: [usize; 6] =
    [MEBIBYTE - 100, 2 * MEBIBYTE - 100, 128 << 10, 60_000, 3 * MEBIBYTE - 1, MEBIBYTE + (128 << 10)];

/// How long nothing may happen before everything has.
const QUIET: Duration = Duration::from_millis(250);

fn start(threads: u16) -> Target {
    Target::start(&memcached_config(threads, "kv:ram:256M?item=8M&evict=none")).expect("a target")
}

fn connect(target: &Target) -> TcpStream {
    let stream = TcpStream::connect(target.memcached()[0].to_string()).expect("a memcached listener");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
    stream.set_write_timeout(Some(QUIET)).expect("an option");
    stream
}

/// Sends as much as the socket takes. Returns whether that was all.
fn say(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    match stream.write_all(bytes) {
        Ok(()) => true,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
        Err(error) => panic!("{error}"),
    }
}

fn expect(stream: &mut TcpStream, answer: &[u8]) {
    let mut read = vec![0; answer.len()];
    stream.read_exact(&mut read).expect("an answer");
    assert!(read == answer, "{:?}", String::from_utf8_lossy(&read[..read.len().min(100)]));
}

fn value(number: usize) -> Vec<u8> {
    (0..LENGTHS[number % LENGTHS.len()]).map(|at| (at / 512 + number).to_le_bytes()[0]).collect()
}

/// Waits until allocations have ceased.
fn settle() {
    let (mut seen, mut since) = (0, Instant::now());
    while since.elapsed() < QUIET {
        let held = CountingAllocator::held_bytes();
        if held != seen {
            (seen, since) = (held, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The most that each of the connections makes the target hold meanwhile, in the mean.
fn held_by_each(connections: &mut [TcpStream], each: impl Fn(usize, &mut TcpStream)) -> usize {
    settle();
    let before = CountingAllocator::held_bytes();
    CountingAllocator::restart_peak();
    connections.iter_mut().enumerate().for_each(|(number, stream)| each(number, stream));
    settle();
    CountingAllocator::peak_bytes().saturating_sub(before) / connections.len()
}

/// One test: it counts what the whole process allocates.
#[test]
fn a_connection_holds_at_most_a_mebibyte_beside_the_namespace() {
    for threads in [1, 2] {
        let target = start(threads);
        let mut first = connect(&target);
        let names: Vec<String> = (0..24).map(|number| format!("key-{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            let value = value(number);
            assert!(say(&mut first, format!("set {name} 0 0 {}\r\n", value.len()).as_bytes()));
            assert!(say(&mut first, &value) && say(&mut first, b"\r\n"));
            expect(&mut first, b"STORED\r\n");
        }
        let connections = || -> Vec<TcpStream> {
            (0..CONNECTION_COUNT)
                .map(|_| {
                    let mut stream = connect(&target);
                    assert!(say(&mut stream, b"mn\r\n"));
                    expect(&mut stream, b"MN\r\n");
                    stream
                })
                .collect()
        };

        // They ask for everything there is, in one line and in many, and read nothing.
        let all = names.join(" ");
        let many: String = names.iter().map(|name| format!("get {name}\r\n")).collect();
        let mut readers = connections();
        let held = held_by_each(&mut readers, |number, stream| {
            let asked = if number % 2 == 0 { format!("get {all}\r\n").repeat(4) } else { many.repeat(4) };
            say(stream, asked.as_bytes());
        });
        println!("{threads} reactors: {held} bytes for each connection that reads nothing");
        assert!(held <= HELD_BYTES_MAX, "{threads} reactors: {held} bytes for each that reads nothing");
        // Then one of them reads after all: it has missed nothing.
        for _ in 0..4 {
            for (number, name) in names.iter().enumerate() {
                let value = value(number);
                expect(&mut readers[0], format!("VALUE {name} 0 {}\r\n", value.len()).as_bytes());
                expect(&mut readers[0], &value);
                expect(&mut readers[0], b"\r\n");
            }
            expect(&mut readers[0], b"END\r\n");
        }
        drop(readers);

        // They send all but the end of a value, some of them behind answers that they do not read.
        let mut writers = connections();
        let held = held_by_each(&mut writers, |number, stream| {
            if number % 2 == 0 {
                say(stream, format!("get {}\r\n", names[3]).repeat(100).as_bytes());
            }
            let value = value(number);
            let name = &names[number % names.len()];
            let is_taken = say(stream, format!("set {name} 0 0 {}\r\n", value.len()).as_bytes())
                && say(stream, &value[..value.len() - 1]);
            assert!(is_taken || number % 2 == 0);
        });
        println!("{threads} reactors: {held} bytes for each connection that sends");
        assert!(held <= HELD_BYTES_MAX, "{threads} reactors: {held} bytes for each that sends");
        drop(writers);

        // They send all but the end of the longest value that does not lie in the namespace yet.
        let mut writers = connections();
        let longest = value(0);
        let held = held_by_each(&mut writers, |_, stream| {
            assert!(say(stream, format!("set other 0 0 {}\r\n", longest.len()).as_bytes()));
            assert!(say(stream, &longest[..longest.len() - 1]));
        });
        println!("{threads} reactors: {held} bytes for each connection that sends the longest");
        assert!(held <= HELD_BYTES_MAX, "{threads} reactors: {held} bytes for each that sends the longest");
        drop(writers);

        // Nothing is kept of all that.
        expect_all(&mut first, &names);
        drop(first);
        target.stop().expect("a good end");
    }
}

fn expect_all(stream: &mut TcpStream, names: &[String]) {
    for (number, name) in names.iter().enumerate() {
        assert!(say(stream, format!("get {name}\r\n").as_bytes()));
        let value = value(number);
        expect(stream, format!("VALUE {name} 0 {}\r\n", value.len()).as_bytes());
        expect(stream, &value);
        expect(stream, b"\r\nEND\r\n");
    }
}
