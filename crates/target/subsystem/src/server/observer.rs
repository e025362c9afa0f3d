//! The state of a target as another thread observes it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reactor::{Address, TurnCounters};

use crate::audit::AuditObserver;
use crate::messages::message::{ControlMessage, Message, Order, OrderAnswer, OrderKind, ReactorMessage};
use crate::messages::state::{
    Detail, MemcachedListenerState, ObservedLane, ReactorReport, ReactorState, StateParts, TargetState,
};

/// Asks a target for its state, from any thread: each reactor once, by message.
pub struct Observer {
    addresses: Vec<Address<Message>>,
    /// Statistics of each reactor.
    turns: Vec<Arc<TurnCounters>>,
    audit: AuditObserver,
    memcached: Arc<Mutex<Vec<MemcachedListenerState>>>,
    /// What was asked, and is not answered completely: a reactor that does not answer is not asked again.
    asked: Option<Asked>,
}

/// Why there is no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unobserved {
    /// Reactors have not answered in time.
    #[error("no answer from reactor {}", numbers(.0))]
    Silent(Vec<u16>),
    /// The target has ended.
    #[error("the target has ended")]
    Ended,
}

fn numbers(reactors: &[u16]) -> String {
    reactors.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

/// A question to the reactors and the control plane.
struct Asked {
    detail: Detail,
    answers: Receiver<OrderAnswer>,
    parts: Option<Box<StateParts>>,
    reports: Receiver<ReactorReport>,
    received: Vec<ReactorReport>,
}

impl Observer {
    pub(super) fn new(
        addresses: Vec<Address<Message>>,
        turns: Vec<Arc<TurnCounters>>,
        audit: AuditObserver,
        memcached: Arc<Mutex<Vec<MemcachedListenerState>>>,
    ) -> Self {
        Self { addresses, turns, audit, memcached, asked: None }
    }

    /// The state of the target. Waits for at most this long, or for as long as it takes.
    ///
    /// # Errors
    /// If reactors do not answer in time, or have ended.
    pub fn state(&mut self, detail: Detail, wait: Option<Duration>) -> Result<TargetState, Unobserved> {
        self.observe(detail, wait).map(|(state, _)| state)
    }

    /// The sums of the target and its lanes. Waits for at most this long.
    ///
    /// # Errors
    /// If reactors do not answer in time, or have ended.
    pub fn lanes(&mut self, wait: Duration) -> Result<(TargetState, Vec<ObservedLane>), Unobserved> {
        self.observe(Detail::Sums, Some(wait))
    }

    fn observe(
        &mut self,
        detail: Detail,
        wait: Option<Duration>,
    ) -> Result<(TargetState, Vec<ObservedLane>), Unobserved> {
        let until = wait.map(|wait| Instant::now() + wait);
        // The answers to an earlier question are old.
        if let Some(mut earlier) = self.asked.take()
            && let Err(error) = earlier.collect(self.addresses.len(), until)
        {
            self.asked = Some(earlier);
            return Err(error);
        }
        let mut asked = self.ask(detail).ok_or(Unobserved::Ended)?;
        if let Err(error) = asked.collect(self.addresses.len(), until) {
            self.asked = Some(asked);
            return Err(error);
        }
        debug_assert_eq!(asked.detail, detail);
        let (mut state, lanes) = asked.parts.ok_or(Unobserved::Ended)?.complete(asked.received);
        for reactor in &mut state.reactors {
            add_turns(reactor, &self.turns);
        }
        state.busy_polled_packets = busy_polled_packets();
        state.audit = self.audit.state();
        state.memcached_listeners = self.memcached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((state, lanes))
    }

    fn ask(&self, detail: Detail) -> Option<Asked> {
        let (to, answers) = channel();
        let order = Order { kind: OrderKind::State(detail), answers: to };
        let is_posted = self.addresses[0].post(Message::Control(ControlMessage::Order(order)));
        let reports = ask_reactors(&self.addresses);
        is_posted.then_some(Asked { detail, answers, parts: None, reports, received: Vec::new() })
    }
}

impl Asked {
    /// Receives the rest of the answers.
    fn collect(&mut self, reactor_count: usize, until: Option<Instant>) -> Result<(), Unobserved> {
        let outcome = self.receive(until);
        // Reactor 0 may keep it from looking at the others.
        self.received.extend(self.reports.try_iter());
        outcome.map_err(|error| match error {
            RecvTimeoutError::Disconnected => Unobserved::Ended,
            RecvTimeoutError::Timeout => {
                let has_answered =
                    |reactor| self.received.iter().any(|report| report.reactor.reactor == reactor);
                let reactors = (0..u16::try_from(reactor_count).unwrap_or(u16::MAX)).filter(|reactor| {
                    let has_more = *reactor == 0 && self.parts.is_none();
                    has_more || !has_answered(*reactor)
                });
                Unobserved::Silent(reactors.collect())
            }
        })
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<(), RecvTimeoutError> {
        if self.parts.is_none() {
            match receive(&self.answers, until)? {
                OrderAnswer::State(parts) => self.parts = Some(parts),
                _ => return Err(RecvTimeoutError::Disconnected),
            }
        }
        // The last sender is gone once every reactor has answered, or has ended.
        loop {
            match receive(&self.reports, until) {
                Ok(report) => self.received.push(report),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(error @ RecvTimeoutError::Timeout) => return Err(error),
            }
        }
    }
}

fn receive<T>(receiver: &Receiver<T>, until: Option<Instant>) -> Result<T, RecvTimeoutError> {
    match until {
        None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(until) => receiver.recv_timeout(until.saturating_duration_since(Instant::now())),
    }
}

/// Asks all reactors for their state. The receiver ends once all have answered.
pub(super) fn ask_reactors(addresses: &[Address<Message>]) -> Receiver<ReactorReport> {
    let (to, reports) = channel();
    for address in addresses {
        address.post(Message::Reactor(ReactorMessage::Describe(to.clone())));
    }
    reports
}

/// Packets received by busy polling in this network namespace, as counted by the kernel.
fn busy_polled_packets() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/net/netstat").ok()?;
    let lines: Vec<&str> = text.lines().collect();
    // A line of names, then one of numbers.
    lines.chunks_exact(2).find_map(|pair| {
        let mut names = pair[0].split_ascii_whitespace().zip(pair[1].split_ascii_whitespace());
        names.find(|(name, _)| *name == "BusyPollRxPackets")?.1.parse().ok()
    })
}

/// Adds the statistics of a reactor.
fn add_turns(reactor: &mut ReactorState, turns: &[Arc<TurnCounters>]) {
    let turns = &turns[usize::from(reactor.reactor)];
    reactor.busy_turn_count = turns.busy_turn_count.get();
    reactor.spin_turn_count = turns.spin_turn_count.get();
    reactor.sleep_count = turns.sleep_count.get();
    reactor.asleep_ns = turns.asleep_ns.get();
    reactor.spun_ns = turns.spun_ns.get();
}

#[cfg(test)]
mod tests {
    use reactor::Mailbox;

    use super::*;

    #[test]
    fn reactors_that_do_not_answer_are_named_and_asked_once() {
        let mailboxes: Vec<Mailbox<Message>> = (0..2).map(|_| Mailbox::new().expect("descriptors")).collect();
        let addresses = mailboxes.iter().map(Mailbox::address).collect();
        let audit = crate::audit::AuditLog::start(None).expect("no log").observer();
        let mut observer = Observer::new(addresses, vec![Arc::default(); 2], audit, Arc::default());
        for _ in 0..3 {
            let outcome = observer.state(Detail::Sums, Some(Duration::from_millis(5)));
            assert_eq!(outcome, Err(Unobserved::Silent(vec![0, 1])));
        }
        let asked = observer.asked.as_ref().expect("no answer");
        assert!(asked.received.is_empty());
        drop(mailboxes);
        assert!(observer.state(Detail::Sums, Some(Duration::from_millis(5))).is_err());
    }
}
