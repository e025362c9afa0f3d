//! Traces of a running target: one at a time, begun and read by its owner's thread.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use reactor::Address;

use crate::messages::message::{Message, ReactorMessage};
use crate::messages::trace::{TraceEvent, TraceOrder, TraceSettings, UNREAD_NS_MAX};

/// Time for the reactors to answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Begins, reads and ends traces.
pub struct Tracer {
    addresses: Vec<Address<Message>>,
    last_id: u64,
    running: Option<Running>,
}

struct Running {
    settings: Arc<TraceSettings>,
    until: Instant,
    read_by: Instant,
}

/// Why there is no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// Another one runs.
    #[error("a trace runs already: wait for its end, which is {0} s away at most")]
    Runs(u64),
    /// There is none of this number.
    #[error("that trace has ended, or another one was begun since")]
    Ended,
}

/// Events that were read.
#[derive(Debug)]
pub struct Traced {
    /// In order of time.
    pub events: Vec<TraceEvent>,
    /// Events that were dropped, because those before them had not been read.
    pub lost_count: u64,
    /// Whether more events are kept, or may come.
    pub goes_on: bool,
    /// Reactors that did not answer in time.
    pub silent_count: usize,
    /// Unix time of the moment that times count from, us.
    pub start_unix_us: u64,
}

impl Tracer {
    pub(super) fn new(addresses: Vec<Address<Message>>) -> Self {
        Self { addresses, last_id: 0, running: None }
    }

    /// Begins a trace. Returns its number.
    ///
    /// # Errors
    /// Another one runs.
    pub fn start(&mut self, settings: TraceSettings) -> Result<u64, TraceError> {
        let now = Instant::now();
        if let Some(running) = &self.running {
            let end = running.until.min(running.read_by);
            if now < end && !running.settings.is_spent() {
                return Err(TraceError::Runs(end.duration_since(now).as_secs().saturating_add(1)));
            }
        }
        let settings = Arc::new(settings);
        for address in &self.addresses {
            let order = TraceOrder::Start(Arc::clone(&settings));
            address.post(Message::Reactor(ReactorMessage::Trace(order)));
        }
        self.last_id = self.last_id.wrapping_add(1);
        let until = now + Duration::from_nanos(settings.for_ns);
        self.running = Some(Running { settings, until, read_by: now + Duration::from_nanos(UNREAD_NS_MAX) });
        Ok(self.last_id)
    }

    /// The oldest events of a trace, at most `count_max`. Ends it if `ends`: what is left can still be read.
    ///
    /// # Errors
    /// There is no such trace.
    pub fn take(&mut self, id: u64, count_max: usize, ends: bool) -> Result<Traced, TraceError> {
        let now = Instant::now();
        let running = self.running.as_mut().filter(|_| id == self.last_id).ok_or(TraceError::Ended)?;
        running.read_by = now + Duration::from_nanos(UNREAD_NS_MAX);
        let count_max = count_max.div_ceil(self.addresses.len().max(1));
        let (to, parts) = channel();
        for address in &self.addresses {
            let order = TraceOrder::Take { count_max, ends, to: to.clone() };
            address.post(Message::Reactor(ReactorMessage::Trace(order)));
        }
        drop(to);
        let mut traced = Traced {
            events: Vec::new(),
            lost_count: 0,
            goes_on: false,
            silent_count: self.addresses.len(),
            start_unix_us: 0,
        };
        let until = now + ANSWER_TIME;
        while let Ok(part) = parts.recv_timeout(until.saturating_duration_since(Instant::now())) {
            traced.silent_count = traced.silent_count.saturating_sub(1);
            traced.lost_count = traced.lost_count.saturating_add(part.lost_count);
            traced.goes_on |= part.is_on || part.has_more;
            let unix_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
            traced.start_unix_us =
                u64::try_from(unix_us).unwrap_or(u64::MAX).saturating_sub(part.now_ns / 1000);
            traced.events.extend(part.events);
        }
        traced.goes_on |= traced.silent_count > 0 && !ends;
        traced.events.sort_by_key(|event| event.at_ns);
        if !traced.goes_on {
            self.running = None;
        }
        Ok(traced)
    }
}
