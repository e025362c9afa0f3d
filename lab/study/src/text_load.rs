//! A load in the memcached or redis protocol, the same for every server: batches of requests on many connections, in a
//! closed loop (the next batch follows the answer) or an open loop (batches are sent at given times).

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use load::arrival::Schedule;
use load::histogram::Histogram;
use load::random::Prng;
use load::workload::Arrival;
use peer::memcached::{Client, Command};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::error::{Doing, Error};

/// Bytes of a value.
const VALUE: &str = "0123456789abcdef0123456789abcdef";

/// Requests that are built before the measurement.
const REQUEST_COUNT: usize = 512;

/// Most connections that are served between two looks at the clock.
const READY_COUNT_MAX: usize = 512;

/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Memcached,
    Redis,
}

/// Contents of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This number of commands for one key each.
    Get,
    /// One command for this number of keys.
    MultiGet,
    Set,
    /// This number of increments of one key.
    Increment,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TextLoad {
    pub(crate) kind: Kind,
    /// Operations per batch.
    pub(crate) batch: usize,
    pub(crate) connections: usize,
    pub(crate) keys: u64,
    /// Of the keys that are drawn.
    pub(crate) seed: u64,
    /// Batches per second of an open loop; `None`: a closed loop.
    pub(crate) rate_per_s: Option<f64>,
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
}

impl TextLoad {
    /// A closed loop: batches of this size on connections and keys, for the times of warm-up and measurement.
    pub(crate) fn new(
        (kind, batch): (Kind, usize),
        connections: usize,
        keys: u64,
        (warm_up, measure): (Duration, Duration),
    ) -> Self {
        Self { kind, batch, connections, keys, seed: 1, rate_per_s: None, warm_up, measure }
    }
}

/// Result of a load.
pub(crate) struct TextResult {
    pub(crate) operations: u64,
    pub(crate) elapsed: Duration,
    /// Latency of batches, ns; of an open loop from the time at which each was due.
    pub(crate) latency: Histogram,
}

impl TextResult {
    pub(crate) fn per_second(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// The answer of a memcached to a request for one key.
pub(crate) fn value_answer() -> Vec<u8> {
    format!("VALUE {} 0 {}\r\n{VALUE}\r\nEND\r\n", key(0), VALUE.len()).into_bytes()
}

/// Criterion for the end of an answer.
#[derive(Clone, Copy)]
enum Answer {
    /// A number of bytes, and the first of them.
    Bytes(usize, &'static [u8]),
    Lines(usize),
}

struct Connection {
    client: Client,
    /// The rest of the current answer, and the time of its request.
    awaited: Option<(usize, Instant)>,
    is_at_start: bool,
}

fn key(number: u64) -> String {
    format!("key-{number:012}")
}

fn words_of_redis(into: &mut Vec<u8>, words: &[&str]) {
    let _ = write!(into, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(into, "${}\r\n{word}\r\n", word.len());
    }
}

fn request(protocol: Protocol, kind: Kind, keys: &[String]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match (protocol, kind) {
        (Protocol::Memcached, Kind::MultiGet) => Command::Get.write(&keys.join(" "), &mut bytes),
        (Protocol::Redis, Kind::MultiGet) => {
            let words: Vec<_> = std::iter::once("MGET").chain(keys.iter().map(String::as_str)).collect();
            words_of_redis(&mut bytes, &words);
        }
        (Protocol::Memcached, _) => keys.iter().for_each(|key| match kind {
            Kind::Set => Command::Set(VALUE.as_bytes()).write(key, &mut bytes),
            Kind::Increment => Command::Increment(1).write("hot", &mut bytes),
            _ => Command::Get.write(key, &mut bytes),
        }),
        (Protocol::Redis, _) => keys.iter().for_each(|key| match kind {
            Kind::Set => words_of_redis(&mut bytes, &["SET", key, VALUE]),
            Kind::Increment => words_of_redis(&mut bytes, &["INCR", "hot"]),
            _ => words_of_redis(&mut bytes, &["GET", key]),
        }),
    }
    bytes
}

fn answer(protocol: Protocol, kind: Kind, batch: usize) -> Answer {
    let value = VALUE.len() + 2;
    match (protocol, kind) {
        (Protocol::Memcached, Kind::Get) => {
            Answer::Bytes(batch * ("VALUE key-000000000000 0 32\r\n".len() + value + 5), b"VALUE")
        }
        (Protocol::Memcached, Kind::MultiGet) => {
            Answer::Bytes(batch * ("VALUE key-000000000000 0 32\r\n".len() + value) + 5, b"VALUE")
        }
        (Protocol::Memcached, Kind::Set) => Answer::Bytes(batch * "STORED\r\n".len(), b"STORED"),
        (Protocol::Redis, Kind::Get) => Answer::Bytes(batch * ("$32\r\n".len() + value), b"$32"),
        (Protocol::Redis, Kind::MultiGet) => {
            Answer::Bytes(format!("*{batch}\r\n").len() + batch * ("$32\r\n".len() + value), b"*")
        }
        (Protocol::Redis, Kind::Set) => Answer::Bytes(batch * "+OK\r\n".len(), b"+OK"),
        (_, Kind::Increment) => Answer::Lines(batch),
    }
}

/// Stores all keys, and the counter that increments use.
pub(crate) fn fill(place: SocketAddr, protocol: Protocol, keys: u64) -> Result<(), Error> {
    let mut connection = connect(place)?;
    let mut buffer = vec![0; 1 << 16];
    let mut ask = |request: &[u8], awaited: Answer| -> Result<(), Error> {
        connection.begin(request, awaited, Instant::now())?;
        while !connection.take(awaited, &mut buffer)? {}
        Ok(())
    };
    for first in (0..keys).step_by(256) {
        let some: Vec<_> = (first..keys.min(first + 256)).map(key).collect();
        ask(&request(protocol, Kind::Set, &some), answer(protocol, Kind::Set, some.len()))?;
    }
    match protocol {
        Protocol::Memcached => ask(b"set hot 0 0 1\r\n0\r\n", Answer::Bytes(8, b"STORED")),
        Protocol::Redis => ask(b"*3\r\n$3\r\nSET\r\n$3\r\nhot\r\n$1\r\n0\r\n", Answer::Bytes(5, b"+OK")),
    }
}

fn connect(place: SocketAddr) -> Result<Connection, Error> {
    let client = Client::connect(place, PATIENCE).doing("connect to a server")?;
    // As in loads on lanes: otherwise half of the cost of pacing would be the server's.
    reactor::suit_loopback(client.stream(), Some(place));
    Ok(Connection { client, awaited: None, is_at_start: false })
}

impl Connection {
    fn begin(&mut self, request: &[u8], answer: Answer, since: Instant) -> Result<(), Error> {
        let count = match answer {
            Answer::Bytes(count, _) | Answer::Lines(count) => count,
        };
        self.awaited = Some((count, since));
        self.is_at_start = true;
        self.client.stream().write_all(request).doing("ask a server")
    }

    /// Receives bytes. Returns whether the answer is complete.
    fn take(&mut self, answer: Answer, buffer: &mut [u8]) -> Result<bool, Error> {
        let count = self.client.stream().read(buffer).doing("a server's answer")?;
        if count == 0 {
            return Err(Error::system("a server's answer", io::ErrorKind::UnexpectedEof.into()));
        }
        let (left, _) = self.awaited.as_mut().ok_or_else(|| Error::Load("an answer to nothing".into()))?;
        let (counted, start) = match answer {
            Answer::Bytes(_, start) => (count, start),
            Answer::Lines(_) => (buffer[..count].iter().filter(|&&byte| byte == b'\n').count(), &b""[..]),
        };
        let is_wrong =
            std::mem::take(&mut self.is_at_start) && count >= start.len() && !buffer.starts_with(start);
        if is_wrong || counted > *left {
            let said = String::from_utf8_lossy(&buffer[..count.min(60)]).into_owned();
            return Err(Error::Load(format!("a server answered {said:?}")));
        }
        *left -= counted;
        Ok(*left == 0)
    }
}

/// Runs the load on a server, from one thread on this core. Calls `on_edge` as the measurement begins and as it ends,
/// while all connections are open.
pub(crate) fn run(
    place: SocketAddr,
    protocol: Protocol,
    load: &TextLoad,
    core: Option<usize>,
    mut on_edge: impl FnMut() -> Result<(), Error> + Send,
    is_stopped: &(dyn Fn() -> bool + Sync),
) -> Result<TextResult, Error> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Some(core) = core {
                linux::pin(core).doing("pin the load's thread")?;
            }
            drive(place, protocol, load, &mut on_edge, is_stopped)
        });
        thread.join().map_err(|_| Error::Load("its thread panicked".into()))?
    })
}

fn drive(
    place: SocketAddr,
    protocol: Protocol,
    load: &TextLoad,
    on_edge: &mut dyn FnMut() -> Result<(), Error>,
    is_stopped: &dyn Fn() -> bool,
) -> Result<TextResult, Error> {
    let mut connections = (0..load.connections).map(|_| connect(place)).collect::<Result<Vec<_>, _>>()?;
    let mut random = Prng::new(load.seed);
    let requests: Vec<_> = (0..REQUEST_COUNT)
        .map(|_| {
            let keys: Vec<_> = (0..load.batch).map(|_| key(random.below(load.keys))).collect();
            request(protocol, load.kind, &keys)
        })
        .collect();
    let answer = answer(protocol, load.kind, load.batch);
    let mut readiness = Readiness::new(&connections)?;
    let mut buffer = vec![0; 1 << 18];
    let mut result = TextResult { operations: 0, elapsed: Duration::ZERO, latency: Histogram::new() };
    let begin = Instant::now();
    let measured_from = begin + load.warm_up;
    let until = measured_from + load.measure;
    let mut is_measuring = false;
    let mut schedule = load.rate_per_s.map(|rate| Schedule::open(rate, Arrival::Poisson, 0, 0.0, 1));
    let mut due: VecDeque<Instant> = VecDeque::new();
    let mut free: Vec<usize> = (0..connections.len()).rev().collect();
    let mut next = 0;
    let mut heard = begin;
    loop {
        let now = Instant::now();
        if !is_measuring && now >= measured_from {
            is_measuring = true;
            on_edge()?;
        }
        if now >= until || is_stopped() {
            break;
        }
        if let Some(schedule) = &mut schedule {
            let now_ns = u64::try_from((now - begin).as_nanos()).unwrap_or(u64::MAX);
            while let Some(at_ns) = schedule.take(now_ns) {
                due.push_back(begin + Duration::from_nanos(at_ns));
            }
        }
        while !free.is_empty() && (schedule.is_none() || !due.is_empty()) {
            let since = due.pop_front().unwrap_or_else(Instant::now);
            let Some(at) = free.pop() else { break };
            next = (next + 1) % requests.len();
            connections[at].begin(&requests[next], answer, since)?;
        }
        // The thread spins: waking it would cost the server processor time, which remote clients do not.
        for at in readiness.look()? {
            heard = now;
            if connections[at].take(answer, &mut buffer)? {
                let ended = Instant::now();
                let (_, since) = connections[at].awaited.take().unwrap_or((0, ended));
                free.push(at);
                if is_measuring {
                    result.operations += load.batch as u64;
                    result.latency.record(u64::try_from((ended - since).as_nanos()).unwrap_or(u64::MAX));
                }
            }
        }
        let is_waiting = connections.iter().any(|connection| connection.awaited.is_some());
        if is_waiting && now.saturating_duration_since(heard) > PATIENCE {
            return Err(Error::Load(format!("no answer in {PATIENCE:?}")));
        }
        if !is_waiting {
            heard = now;
        }
    }
    // Lower bound of the latency of commands that were due and are not answered.
    let ended = Instant::now();
    if is_measuring {
        on_edge()?;
    }
    if load.rate_per_s.is_some() {
        let unanswered =
            connections.iter().filter_map(|connection| connection.awaited.map(|(_, since)| since));
        for since in due.into_iter().chain(unanswered).filter(|since| *since >= measured_from) {
            result.latency.record(u64::try_from((ended - since).as_nanos()).unwrap_or(u64::MAX));
        }
    }
    result.elapsed = ended.saturating_duration_since(measured_from);
    Ok(result)
}

/// Tells which connections have data to read, at a cost that does not grow with the others.
struct Readiness {
    set: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Readiness {
    fn new(connections: &[Connection]) -> Result<Self, Error> {
        let open = || -> rustix::io::Result<OwnedFd> {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for (at, connection) in (0..).zip(connections) {
                let data = epoll::EventData::new_u64(at);
                epoll::add(&set, connection.client.stream(), data, epoll::EventFlags::IN)?;
            }
            Ok(set)
        };
        let set = open().doing("watch a server's connections")?;
        Ok(Self { set, events: Vec::with_capacity(connections.len().clamp(1, READY_COUNT_MAX)) })
    }

    /// Connections with data now.
    fn look(&mut self) -> Result<impl Iterator<Item = usize> + use<>, Error> {
        self.events.clear();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.set, spare_capacity(&mut self.events), Some(&at_once)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::system("wait for a server", error.into())),
        }
        let ready: Vec<_> = self.events.iter().map(|event| event.data.u64()).collect();
        Ok(ready.into_iter().map(|at| usize::try_from(at).expect("an index")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_servers_read_them() {
        let keys = [key(1), key(2)];
        for (protocol, kind, count, text) in [
            (Protocol::Memcached, Kind::Get, 2, "get key-000000000001\r\nget key-000000000002\r\n"),
            (Protocol::Memcached, Kind::MultiGet, 2, "get key-000000000001 key-000000000002\r\n"),
            (Protocol::Redis, Kind::MultiGet, 1, "*2\r\n$4\r\nMGET\r\n$16\r\nkey-000000000001\r\n"),
            (Protocol::Redis, Kind::Increment, 1, "*2\r\n$4\r\nINCR\r\n$3\r\nhot\r\n"),
        ] {
            assert_eq!(String::from_utf8_lossy(&request(protocol, kind, &keys[..count])), text);
        }
    }
}
