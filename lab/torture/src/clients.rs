//! Clients of a key-value namespace, through which a worker sends its deeds: memcached's protocol in pipelines, and
//! NVMe commands one by one or in batches.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use host::BlockingKeyValue;
use host::{AtomicFunction, AtomicOperation, Error, Failure, Key, Outcome, StoreOptions};
use peer::finding::Check;
use peer::memcached::{self, Command};
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
    fn reconnect(&mut self) -> Result<()>;
}

/// A memcached client. All deeds leave in one send.
pub(crate) struct MemcachedClient {
    place: SocketAddr,
    client: memcached::Client,
}

impl MemcachedClient {
    pub(crate) fn new(place: SocketAddr) -> Result<Self> {
        Ok(Self { place, client: connect(place)? })
    }

    /// The outcome of a deed; unknown if the connection ends first.
    fn end_of(&mut self, key: &str, deed: &Deed) -> Check<End> {
        let Some(line) = self.client.next_line()? else { return Ok(End::Unknown) };
        Ok(match (deed, line.as_str()) {
            (Deed::Set(_), "STORED") | (Deed::Delete, "DELETED" | "NOT_FOUND") => End::Done,
            (Deed::Set(_), "SERVER_ERROR out of memory storing object") => End::Gone,
            (Deed::Add(_), "SERVER_ERROR out of memory") => End::Full,
            (Deed::Get, "END") => End::Found(None),
            (Deed::Get, line) => match self.client.value(key, line)? {
                Some(value) => End::Found(Some(value)),
                None => End::Unknown,
            },
            (Deed::Add(_), number) => number.parse().map_or(End::Wrong(line), End::Sum),
            _ => End::Wrong(line),
        })
    }
}

fn connect(place: SocketAddr) -> Result<memcached::Client> {
    memcached::Client::connect(place, PATIENCE).context("the memcached listener")
}

impl Client for MemcachedClient {
    fn run(&mut self, deeds: &[(Key, &Deed)]) -> Vec<End> {
        let name = |key: &Key| String::from_utf8_lossy(key.as_bytes()).into_owned();
        let mut bytes = Vec::new();
        for (key, deed) in deeds {
            let command = match deed {
                Deed::Set(value) => Command::Set(value),
                Deed::Delete => Command::Delete,
                Deed::Get => Command::Get,
                Deed::Add(by) => Command::Increment(*by),
            };
            command.write(&name(key), &mut bytes);
        }
        // Deeds already sent may be executed, and answered, although the send failed.
        let _ = self.client.send(&bytes);
        let mut ends = Vec::with_capacity(deeds.len());
        for (key, deed) in deeds {
            match self.end_of(&name(key), deed) {
                Ok(End::Unknown) => break,
                Ok(end) => ends.push(end),
                Err(finding) => {
                    ends.push(End::Wrong(finding.to_string()));
                    break;
                }
            }
        }
        ends.resize(deeds.len(), End::Unknown);
        ends
    }

    fn reconnect(&mut self) -> Result<()> {
        self.client = connect(self.place)?;
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
