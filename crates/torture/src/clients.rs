//! Clients of a key-value namespace, through which a worker sends its deeds: memcached's protocol in pipelines, and
//! NVMe commands one by one or in batches.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use host::BlockingKeyValue;
use host::{AtomicFunction, AtomicOperation, Error, Failure, Key, Outcome, StoreOptions};
use wire::status::Status;

use crate::pairs::{Deed, End};

/// Time limit for an answer while the target is running.
const PATIENCE: Duration = Duration::from_secs(30);

/// Outcome of a flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Everything answered before it is durable.
    Done,
    /// The flush failed or is not supported, with the reason.
    Not(String),
    /// The target restarted: earlier answers may be lost, and the next flush does not report that.
    Lost,
}

/// A client of a key-value namespace.
pub(crate) trait Client: Send {
    /// Executes deeds on distinct keys and returns the outcome of each.
    fn run(&mut self, deeds: &[(Key, &Deed)]) -> Vec<End>;

    /// Makes everything answered so far durable.
    fn flush(&mut self) -> Flushed {
        Flushed::Not("memcached's protocol has no flush".into())
    }

    /// Reconnects after a restart of the target.
    ///
    /// The target cannot be reached.
    /// If it cannot be reached.
    fn reconnect(&mut self) -> Result<()>;
}

/// A memcached client. All deeds leave in one send.
pub(crate) struct MemcachedClient {
    place: SocketAddr,
    stream: BufReader<TcpStream>,
}

impl MemcachedClient {
    pub(crate) fn new(place: SocketAddr) -> Result<Self> {
        Ok(Self { place, stream: connect(place)? })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ if line.ends_with("\r\n") => Ok(line.trim_end().to_owned()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn end_of(&mut self, deed: &Deed) -> io::Result<End> {
        let line = self.line()?;
        Ok(match (deed, line.as_str()) {
            (Deed::Set(_), "STORED") | (Deed::Delete, "DELETED" | "NOT_FOUND") => End::Done,
            (Deed::Set(_), "SERVER_ERROR out of memory storing object") => End::Gone,
            (Deed::Add(_), "SERVER_ERROR out of memory") => End::Full,
            (Deed::Get, "END") => End::Found(None),
            (Deed::Get, value) if value.starts_with("VALUE ") => {
                let length = value.rsplit(' ').next().and_then(|word| word.parse().ok());
                let Some(length) = length else { return Ok(End::Wrong(line)) };
                let mut value = vec![0; length];
                self.stream.read_exact(&mut value)?;
                match (self.line()?.as_str(), self.line()?.as_str()) {
                    ("", "END") => End::Found(Some(value)),
                    (after, end) => End::Wrong(format!("{after:?} and {end:?} after a value")),
                }
            }
            (Deed::Add(_), number) => match number.parse() {
                Ok(sum) => End::Sum(sum),
                Err(_) => End::Wrong(line),
            },
            _ => End::Wrong(line),
        })
    }
}

fn connect(place: SocketAddr) -> Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(place).context("the memcached listener")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(BufReader::new(stream))
}

impl Client for MemcachedClient {
    fn run(&mut self, deeds: &[(Key, &Deed)]) -> Vec<End> {
        let mut bytes = Vec::new();
        for (key, deed) in deeds {
            let key = String::from_utf8_lossy(key.as_bytes());
            match deed {
                Deed::Set(value) => {
                    bytes.extend_from_slice(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
                    bytes.extend_from_slice(value);
                    bytes.extend_from_slice(b"\r\n");
                }
                Deed::Delete => bytes.extend_from_slice(format!("delete {key}\r\n").as_bytes()),
                Deed::Get => bytes.extend_from_slice(format!("get {key}\r\n").as_bytes()),
                Deed::Add(by) => bytes.extend_from_slice(format!("incr {key} {by}\r\n").as_bytes()),
            }
        }
        // Deeds already sent may be executed, and answered, although the send failed.
        let _ = self.stream.get_mut().write_all(&bytes);
        let mut ends = Vec::with_capacity(deeds.len());
        for (_, deed) in deeds {
            match self.end_of(deed) {
                Ok(end) => ends.push(end),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    ends.push(End::Wrong(format!("no answer in {PATIENCE:?}")));
                    break;
                }
                Err(_) => break,
            }
        }
        ends.resize(deeds.len(), End::Unknown);
        ends
    }

    fn reconnect(&mut self) -> Result<()> {
        self.stream = connect(self.place)?;
        Ok(())
    }
}

/// An NVMe host with one lane. Deeds leave one by one or as one batch.
pub(crate) struct NvmeClient {
    keys: BlockingKeyValue,
    /// Alternates between batches and single commands.
    run_count: u64,
}

impl NvmeClient {
    pub(crate) fn new(keys: BlockingKeyValue) -> Self {
        Self { keys, run_count: 0 }
    }

    fn run_batch(&mut self, deeds: &[(Key, &Deed)]) -> Result<Vec<End>, Error> {
        let mut batch = self.keys.batch()?;
        let room = self.keys.namespace().value_bytes_max();
        for (key, deed) in deeds {
            let pushed = match deed {
                Deed::Set(value) => batch.store(key, value, StoreOptions::empty()),
                Deed::Delete => batch.delete(key),
                Deed::Get => batch.retrieve(key, room),
                Deed::Add(by) => batch.atomic(key, &AtomicOperation::new(AtomicFunction::ADD, *by)),
            };
            if pushed.is_err() {
                // The queue is full: the rest is sent later.
                break;
            }
        }
        let count = batch.len();
        let outcomes = self.keys.run_batch(&mut batch)?;
        let mut ends: Vec<_> =
            deeds.iter().zip(outcomes).map(|((_, deed), outcome)| end_of(deed, &outcome)).collect();
        if ends.len() < count {
            ends.resize(count, End::Wrong("there is no outcome".into()));
        }
        ends.resize(deeds.len(), End::NotBegun);
        Ok(ends)
    }

    fn run_one(&mut self, key: &Key, deed: &Deed) -> Result<End, Error> {
        Ok(match deed {
            Deed::Set(value) => self.keys.store(key, value).map(|()| End::Done)?,
            Deed::Delete => self.keys.delete(key).map(|()| End::Done)?,
            Deed::Get => End::Found(self.keys.retrieve(key)?),
            Deed::Add(by) => End::Sum(self.keys.fetch_add(key, *by, None)?.wrapping_add(*by)),
        })
    }
}

fn end_of(deed: &Deed, outcome: &Outcome<'_>) -> End {
    match (deed, outcome.status) {
        (Deed::Set(_) | Deed::Delete, status) if status.is_success() => End::Done,
        (Deed::Get, status) if status.is_success() => End::Found(Some(outcome.data.to_vec())),
        (Deed::Get, status) if status.is(Status::KEY_DOES_NOT_EXIST) => End::Found(None),
        (Deed::Add(by), status) if status.is_success() => End::Sum(outcome.result.wrapping_add(*by)),
        (_, status) if status.is(Status::CAPACITY_EXCEEDED) => End::Full,
        (_, status) => End::Wrong(status.to_string()),
    }
}

/// Outcome of a command that failed, or whose execution is uncertain.
fn end_of_failed(error: &Error) -> End {
    match error {
        Error::Failed { failure, .. } if failure.may_have_happened() => End::Unknown,
        Error::Failed { failure: Failure::Cancelled | Failure::Unreachable, .. } => End::NotBegun,
        Error::Failed { failure: Failure::Status(status), .. } if status.is(Status::CAPACITY_EXCEEDED) => {
            End::Full
        }
        error => End::Wrong(error.to_string()),
    }
}

impl Client for NvmeClient {
    fn run(&mut self, deeds: &[(Key, &Deed)]) -> Vec<End> {
        self.run_count += 1;
        if self.run_count.is_multiple_of(2) {
            return self.run_batch(deeds).unwrap_or_else(|error| vec![end_of_failed(&error); deeds.len()]);
        }
        let mut ends = Vec::with_capacity(deeds.len());
        for (key, deed) in deeds {
            let end = self.run_one(key, deed).unwrap_or_else(|error| end_of_failed(&error));
            let is_over = !matches!(end, End::Done | End::Found(_) | End::Sum(_));
            ends.push(end);
            if is_over {
                break;
            }
        }
        ends.resize(deeds.len(), End::NotBegun);
        ends
    }

    fn flush(&mut self) -> Flushed {
        match self.keys.flush() {
            Ok(()) => Flushed::Done,
            Err(Error::Failed { failure: Failure::Unflushed, .. }) => Flushed::Lost,
            Err(error) => Flushed::Not(error.to_string()),
        }
    }

    fn reconnect(&mut self) -> Result<()> {
        // The library reconnects by itself.
        Ok(())
    }
}
