//! The queue of asynchronous events. The model is a history: when each event occurred, when it was sent, and when its
//! log was taken. wire §13

use std::collections::{BTreeMap, BTreeSet};

use nvlane_proto::async_events::{AsyncEventQueue, REQUEST_COUNT_MAX};
use proptest::prelude::*;
use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::log::Lid;
use wire::status::Status;

/// Events, with what enables them. Two have one log, and one is always enabled.
const EVENTS: [(AsyncEvent, AsyncEvents); 6] = [
    (AsyncEvent::NAMESPACE_ATTRIBUTE, AsyncEvents::NAMESPACE_ATTRIBUTE),
    (AsyncEvent::DISCOVERY_CHANGE, AsyncEvents::DISCOVERY),
    (AsyncEvent::ANA_CHANGE, AsyncEvents::ANA),
    (AsyncEvent::SMART_SPARE, AsyncEvents::from_bits_retain(0b001)),
    (AsyncEvent::SMART_TEMPERATURE, AsyncEvents::from_bits_retain(0b010)),
    (AsyncEvent::PERSISTENT_INTERNAL_ERROR, AsyncEvents::empty()),
];

#[derive(Clone, Copy, Debug)]
enum Op {
    Request(u8),
    Abort(u8),
    /// The host has completed this request by itself.
    TakeBack(u8),
    /// One event is enabled or disabled.
    Enable(usize, bool),
    Raise(usize),
    /// The log of an event is read from offset 0 and retained, or not.
    Read(usize, bool),
    /// A later part of it is read without RAE.
    ReadRest(usize),
    /// A request is completed, if there is one, and an event.
    Complete,
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    let event = || 0..EVENTS.len();
    prop_oneof![
        4 => (0u8..6).prop_map(Op::Request),
        1 => (0u8..6).prop_map(Op::Abort),
        2 => (0u8..6).prop_map(Op::TakeBack),
        3 => (event(), prop::bool::weighted(0.7)).prop_map(|(event, is_on)| Op::Enable(event, is_on)),
        6 => event().prop_map(Op::Raise),
        3 => (event(), any::<bool>()).prop_map(|(event, retain)| Op::Read(event, retain)),
        2 => event().prop_map(Op::ReadRest),
        5 => Just(Op::Complete),
        1 => prop::bool::weighted(0.1).prop_map(|resets| if resets { Op::Reset } else { Op::Complete }),
    ]
}

/// An event that was sent and is not cleared.
#[derive(Clone, Debug)]
struct Sent {
    /// When it occurred, of the occurrences that it reported.
    occurred: Vec<u64>,
    /// The request that it completed, unless another has the id by now.
    request: Option<u8>,
}

#[derive(Clone, Debug, Default)]
struct History {
    is_enabled: bool,
    /// When it occurred and was neither sent nor cleared since.
    occurred: Vec<u64>,
    sent: Option<Sent>,
}

impl History {
    /// An event that was sent is masked until it is cleared.
    fn is_due(&self) -> bool {
        self.sent.is_none() && !self.occurred.is_empty()
    }

    /// A log that was taken at `taken` is read without RAE: it tells of what occurred before.
    fn clear(&mut self, taken: u64) {
        self.occurred.retain(|at| *at > taken);
        self.sent.take_if(|sent| sent.occurred.iter().all(|at| *at < taken));
    }
}

/// What the specification says of the events of a controller.
#[derive(Clone, Debug)]
struct Model {
    now: u64,
    events: Vec<History>,
    requests: BTreeSet<u8>,
    /// When logs were read from offset 0 last.
    taken: BTreeMap<u8, u64>,
}

impl Model {
    fn new() -> Self {
        let mut events = vec![History::default(); EVENTS.len()];
        for (history, (_, needed)) in events.iter_mut().zip(EVENTS) {
            history.is_enabled = needed == AsyncEvents::empty();
        }
        Self { now: 1, events, requests: BTreeSet::new(), taken: BTreeMap::new() }
    }

    fn enabled(&self) -> AsyncEvents {
        let enabled = self.events.iter().zip(EVENTS).filter(|(history, _)| history.is_enabled);
        enabled.fold(AsyncEvents::empty(), |all, (_, (_, needed))| all | needed)
    }

    fn of_log(&mut self, log: Lid) -> impl Iterator<Item = &mut History> {
        let all = self.events.iter_mut().zip(EVENTS);
        all.filter(move |(_, (event, _))| event.log() == log).map(|(history, _)| history)
    }

    fn read_rest(&mut self, log: Lid) {
        if let Some(taken) = self.taken.get(&log.raw()).copied() {
            self.of_log(log).for_each(|history| history.clear(taken));
        }
    }

    /// How far an event is, for the list of transitions.
    fn stage(&self, which: usize) -> String {
        let history = &self.events[which];
        let taken = self.taken.get(&EVENTS[which].0.log().raw()).copied().unwrap_or(0);
        let is_in_log = |occurred: &[u64]| occurred.iter().all(|at| *at < taken);
        let enabled = if history.is_enabled { "enabled" } else { "disabled" };
        let stage = match &history.sent {
            None if history.occurred.is_empty() => "none",
            None if is_in_log(&history.occurred) => "pending, in the log",
            None => "pending",
            Some(sent) if !is_in_log(&sent.occurred) => "sent",
            Some(_) if is_in_log(&history.occurred) => "sent, in the log",
            Some(_) => "sent, in the log and again",
        };
        format!("{enabled}, {stage}")
    }
}

/// The queue and its model.
struct Pair {
    queue: AsyncEventQueue<u8>,
    model: Model,
}

impl Pair {
    fn new() -> Self {
        Self { queue: AsyncEventQueue::default(), model: Model::new() }
    }

    fn run(&mut self, op: Op) {
        let Self { queue, model } = self;
        model.now += 1;
        let now = model.now;
        match op {
            // A lane reports an id that is in use again before it hands on the command.
            Op::Request(id) if model.requests.contains(&id) => return self.run(Op::TakeBack(id)),
            Op::Request(id) => {
                for sent in model.events.iter_mut().filter_map(|history| history.sent.as_mut()) {
                    sent.request.take_if(|request| *request == id);
                }
                if model.requests.len() < REQUEST_COUNT_MAX {
                    model.requests.insert(id);
                    assert_eq!(queue.on_request(id), Ok(()));
                } else {
                    assert_eq!(queue.on_request(id), Err(Status::AER_LIMIT_EXCEEDED));
                }
            }
            Op::Abort(id) => {
                let was_there = model.requests.remove(&id);
                assert_eq!(queue.abort(|request| *request == id), was_there.then_some(id));
            }
            Op::TakeBack(id) => {
                let was_there = model.requests.remove(&id);
                if !was_there {
                    for history in &mut model.events {
                        let lost = history.sent.take_if(|sent| sent.request == Some(id));
                        let again = lost.filter(|_| history.is_enabled).map(|sent| sent.occurred);
                        history.occurred.extend(again.unwrap_or_default());
                    }
                }
                assert_eq!(queue.take_back(|request| *request == id), was_there.then_some(id));
            }
            Op::Enable(which, is_on) => {
                let needed = EVENTS[which].1;
                model.events[which].is_enabled = is_on || needed == AsyncEvents::empty();
                if !model.events[which].is_enabled {
                    model.events[which].occurred.clear();
                }
                queue.enable(model.enabled());
            }
            Op::Raise(which) => {
                if model.events[which].is_enabled {
                    model.events[which].occurred.push(now);
                }
                queue.raise(EVENTS[which].0);
            }
            Op::Read(which, retain) => {
                let log = EVENTS[which].0.log();
                model.taken.insert(log.raw(), now);
                queue.on_log_taken(log);
                if !retain {
                    model.read_rest(log);
                    queue.on_log_read(log);
                }
            }
            Op::ReadRest(which) => {
                let log = EVENTS[which].0.log();
                model.read_rest(log);
                queue.on_log_read(log);
            }
            Op::Complete => {
                let due: Vec<usize> =
                    (0..EVENTS.len()).filter(|which| model.events[*which].is_due()).collect();
                let can = !due.is_empty() && !model.requests.is_empty();
                match queue.next_completion() {
                    None => assert!(!can, "{due:?} is due, {:?} wait", model.requests),
                    Some((request, event)) => {
                        assert!(model.requests.remove(&request), "no request {request}");
                        let known = due.into_iter().find(|which| EVENTS[*which].0 == event);
                        let history = &mut model.events[known.expect("an event that is due")];
                        let occurred = std::mem::take(&mut history.occurred);
                        history.sent = Some(Sent { occurred, request: Some(request) });
                    }
                }
            }
            Op::Reset => {
                let waiting: BTreeSet<u8> = queue.reset().into_iter().collect();
                assert_eq!(waiting, model.requests);
                *model = Model { now, ..Model::new() };
            }
        }
        assert_eq!(self.queue.enabled(), self.model.enabled());
    }

    /// Whatever is due is sent once there are requests for it.
    fn finish(mut self) {
        for _ in 0..=EVENTS.len() {
            (0..4).for_each(|id| self.run(Op::Request(id)));
            (0..4).for_each(|_| self.run(Op::Complete));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_queue_of_events_sends_what_its_model_does(ops in prop::collection::vec(op(), 1..60)) {
        let mut pair = Pair::new();
        ops.into_iter().for_each(|op| pair.run(op));
        pair.finish();
    }
}

/// Every sequence of a few operations on one event, after which each operation was tried in each state.
#[test]
fn every_short_sequence_of_operations_on_one_event_is_as_in_the_model() {
    const DEPTH: u32 = 5;
    const OPS: [Op; 9] = [
        Op::Request(0),
        Op::Abort(0),
        Op::TakeBack(0),
        Op::Enable(0, false),
        Op::Enable(0, true),
        Op::Raise(0),
        Op::Read(0, true),
        Op::Read(0, false),
        Op::ReadRest(0),
    ];
    let mut tried = BTreeSet::new();
    for number in 0..OPS.len().pow(DEPTH) {
        let mut pair = Pair::new();
        pair.run(Op::Enable(0, true));
        let mut rest = number;
        for _ in 0..DEPTH {
            let op = OPS[rest % OPS.len()];
            rest /= OPS.len();
            tried.insert(format!("{}: {op:?}", pair.model.stage(0)));
            pair.run(op);
            pair.run(Op::Complete);
        }
        pair.finish();
    }
    let stages: BTreeSet<&str> = tried.iter().filter_map(|pair| Some(pair.split_once(':')?.0)).collect();
    let expected = [
        "disabled, none",
        "disabled, sent",
        "disabled, sent, in the log",
        "enabled, none",
        "enabled, pending",
        "enabled, pending, in the log",
        "enabled, sent",
        "enabled, sent, in the log",
        "enabled, sent, in the log and again",
    ];
    assert_eq!(stages, BTreeSet::from(expected));
    assert_eq!(tried.len(), expected.len() * OPS.len(), "{tried:#?}");
}
