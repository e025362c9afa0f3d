//! A host that comes and goes: it connects an admin queue, waits for events, and shuts its controller down in good
//! order.
//!
//! Some of them make more of events than others, as [`event_use`](crate::event_use) says.
//!
//! Hosts differ in how they leave. Some complete their event requests by themselves and use the command ids again, for
//! the shutdown itself; others never use an id again while its command is out. A seed decides on one of the two. Events
//! may come just then: their completions cross the commands that have the ids by now.

use std::collections::BTreeSet;
use std::time::Duration;

use peer::link::{Got as Received, decode, plain_request};
use peer::pdu::{Draft, Form, cut, in_capsule};
use peer::raw_host::{ENTRIES, RawHost};
use wire::admin::AbortResult;
use wire::fabrics::ConnectCommand;
use wire::id::Cntlid;
use wire::nqn::HostId;
use wire::pdu::PduFlags;
use wire::property::{Cc, CommandSetSelection, Csts, Property, ShutdownNotification, ShutdownStatus};
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::IntoBytes;

use crate::event_use::{ALL_EVENTS, EventStep, EventUse, REQUEST_COUNT_MAX};
use crate::host::SUBSYSTEM;
use crate::random::Random;
use crate::scenario::{MS, SECOND, Scenario};
use crate::shared::network::{Got, NVME, Phase};
use crate::shared::{Actor, Shared, Side};

/// Time limit of an answer, ns.
const TIMEOUT_NS: u64 = 5 * SECOND;

/// The command that is out, beside event requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Connect,
    Enable,
    EnableEvents,
    Stay,
    Events(EventStep),
    ShutDown,
    ReadStatus,
}

impl Step {
    /// Its use of events.
    fn of_events(self) -> Option<EventStep> {
        match self {
            Self::EnableEvents => Some(EventStep::Enable(ALL_EVENTS)),
            Self::Events(step) => Some(step),
            _ => None,
        }
    }
}

/// Progress of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    None,
    Dialling(usize),
    Connected(usize),
}

/// The host.
pub(crate) struct Leaver {
    actor: Actor,
    /// It completes event requests by itself, and uses their ids again.
    reuses_ids: bool,
    choice: Random,
    events: EventUse,
    /// The event request that the target was asked to abort.
    aborting: Option<u16>,
    link: Link,
    received: Vec<u8>,
    to_send: Vec<u8>,
    /// The command that is out and its id.
    awaited: Option<(Step, u16)>,
    /// The command that follows, and when.
    next: Option<(Step, u64)>,
    /// Commands that are sent before it leaves.
    stay_count: u64,
    /// Ids of event requests that are out.
    requests: Vec<u16>,
    /// Ids of event requests that it has completed by itself: one completion of each may still come.
    forgotten: BTreeSet<u16>,
    /// Ids to use, the next one last.
    free: Vec<u16>,
    next_id: u16,
    deadline_ns: u64,
    dial_ns: u64,
    is_closing: bool,
    /// The connection was begun when nothing goes wrong any more: everything on it is answered.
    is_judged: bool,
    /// How often it has left in good order.
    pub(crate) departure_count: u64,
}

impl Leaver {
    pub(crate) fn new(scenario: &Scenario, actor: Actor) -> Self {
        let mut choice = Random::new(scenario.seed, 9);
        Self {
            actor,
            reuses_ids: !choice.one_in(3),
            choice,
            events: EventUse::new(scenario),
            aborting: None,
            link: Link::None,
            received: Vec::new(),
            to_send: Vec::new(),
            awaited: None,
            next: None,
            stay_count: 0,
            requests: Vec::new(),
            forgotten: BTreeSet::new(),
            free: Vec::new(),
            next_id: 0,
            deadline_ns: u64::MAX,
            dial_ns: 0,
            is_closing: false,
            is_judged: false,
            departure_count: 0,
        }
    }

    /// It leaves for good.
    pub(crate) fn close(&mut self, shared: &mut Shared) {
        self.is_closing = true;
        self.stay_count = 0;
        shared.wake(self.actor);
    }

    /// Storage of its subsystem comes to lack space.
    pub(crate) fn on_space_low(&mut self, now_ns: u64) {
        let out = self.awaited.map(|(step, _)| step);
        let is_staying = |step: Step| matches!(step, Step::Stay | Step::Events(_));
        // Of its event requests one may be on its way back with another event, and one be aborted.
        let has_requests = self.requests.len() > 2;
        if has_requests && out.or(self.next.map(|(step, _)| step)).is_some_and(is_staying) {
            self.events.on_space_low(now_ns, out.and_then(Step::of_events));
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_closing && self.link == Link::None
    }

    pub(crate) fn connection(&self) -> Option<usize> {
        if let Link::Connected(id) = self.link { Some(id) } else { None }
    }

    pub(crate) fn run(&mut self, shared: &mut Shared) {
        match self.link {
            Link::None if self.is_closing => return,
            Link::None if shared.now_ns >= self.dial_ns => {
                self.is_judged = self.is_closing;
                self.deadline_ns = shared.now_ns + self.timeout_ns();
                self.link = Link::Dialling(shared.dial(self.actor, NVME));
            }
            Link::None => {}
            Link::Dialling(id) => match shared.connection(id).phase {
                Phase::Dialling => {}
                Phase::Open => self.begin(id),
                Phase::Refused => {
                    self.link = Link::None;
                    self.dial_ns = shared.now_ns + self.choice.scaled(10 * MS, SECOND);
                }
            },
            Link::Connected(_) => {}
        }
        if let Link::Connected(id) = self.link
            && !self.exchange(shared, id)
        {
            self.hang_up(shared, false);
        }
        if shared.now_ns >= self.deadline_ns && self.link != Link::None {
            if self.is_judged {
                shared.find(format!("a host cannot leave: {:?} is not answered", self.awaited));
            }
            self.hang_up(shared, false);
        }
        let at_ns = match self.link {
            Link::None if self.is_closing => return,
            Link::None => self.dial_ns,
            _ => self.next.map_or(u64::MAX, |(_, at_ns)| at_ns).min(self.deadline_ns),
        };
        shared.wake_at(self.actor, at_ns.max(shared.now_ns + 1));
    }

    fn begin(&mut self, id: usize) {
        self.link = Link::Connected(id);
        self.received.clear();
        self.requests.clear();
        self.forgotten.clear();
        (self.free, self.next_id) = (Vec::new(), 0);
        (self.awaited, self.next, self.aborting) = (None, None, None);
        self.events.begin();
        self.stay_count = if self.is_closing { 0 } else { self.choice.scaled(1, 20) };
        self.to_send = plain_request().as_bytes().to_vec();
    }

    fn hang_up(&mut self, shared: &mut Shared, is_done: bool) {
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Connected(id) if is_done => shared.close(id, Side::Host),
            Link::Connected(id) | Link::Dialling(id) => shared.reset(id, Side::Host),
            Link::None => {}
        }
        (self.awaited, self.next, self.deadline_ns) = (None, None, u64::MAX);
        self.dial_ns = shared.now_ns + self.choice.scaled(MS, SECOND);
    }

    /// Sends and receives all that it can. Returns whether the connection stands.
    fn exchange(&mut self, shared: &mut Shared, id: usize) -> bool {
        loop {
            if let Some((step, at_ns)) = self.next
                && at_ns <= shared.now_ns
            {
                self.next = None;
                self.submit(shared, step);
            }
            if !shared.send_from(id, Side::Host, &mut self.to_send) {
                return false;
            }
            let mut staging = [0; 512];
            match shared.receive(id, Side::Host, &mut [&mut staging]) {
                Got::Bytes(count) => self.received.extend_from_slice(&staging[..count]),
                Got::Dry => return true,
                Got::Ended | Got::Reset => return false,
            }
            while let Some(pdu) = cut(&mut self.received) {
                if !self.on_pdu(shared, &pdu) {
                    return false;
                }
            }
            if self.link == Link::None {
                return true;
            }
        }
    }

    fn on_pdu(&mut self, shared: &mut Shared, pdu: &[u8]) -> bool {
        match decode(Form::PLAIN, pdu) {
            Ok(Received::IcResp(_)) => self.submit(shared, Step::Connect),
            Ok(Received::Completion(cqe)) => {
                return self.on_completion(shared, cqe.cid.get(), cqe.status(), cqe.result.get());
            }
            Ok(Received::Data { cid, offset, flags, data, .. }) => {
                let is_awaited = self.awaited.is_some_and(|(_, awaited)| awaited == cid);
                if !is_awaited {
                    shared.find(format!("data for id {cid}, which is not out: {:?} is", self.awaited));
                    return false;
                }
                self.events.on_data(shared, offset, &data);
                if flags.contains(PduFlags::SUCCESS) {
                    return self.on_completion(shared, cid, Status::SUCCESS, 0);
                }
            }
            Ok(other) => shared.find(format!("a host that comes and goes is sent {other}")),
            Err(finding) => shared.find(finding.to_string()),
        }
        true
    }

    /// How long an answer is awaited, ns: a target that still ends what went wrong before takes its time.
    fn timeout_ns(&self) -> u64 {
        TIMEOUT_NS * if self.is_closing { 20 } else { 1 }
    }

    /// The next id: the one that became free last, if ids are used again.
    fn id(&mut self) -> u16 {
        if self.reuses_ids
            && let Some(id) = self.free.pop()
        {
            return id;
        }
        self.next_id += 1;
        self.next_id
    }

    fn push(&mut self, shared: &mut Shared, sqe: Sqe, data: &[u8]) -> u16 {
        let id = self.id();
        let sqe = sqe.with_cid(id);
        let draft = match data {
            [] => Draft::command(Form::PLAIN, sqe, &[]),
            data => in_capsule(Form::PLAIN, sqe, data),
        };
        self.to_send.extend_from_slice(&draft.seal());
        self.deadline_ns = shared.now_ns + self.timeout_ns();
        id
    }

    fn submit(&mut self, shared: &mut Shared, step: Step) {
        let mut data = Vec::new();
        let cc = Cc::new(CommandSetSelection::NVM).with_en(true);
        let sqe = match step {
            Step::Connect => {
                let host = RawHost {
                    // It is dialled by the simulated network.
                    address: ([0, 0, 0, 0], 0).into(),
                    subsystem: SUBSYSTEM.parse().expect("a name"),
                    nqn: "nqn.2026-01.io.nvlane:leaver".parse().expect("a name"),
                    hostid: HostId::from_bytes([0xEE; 16]),
                    patience: Duration::ZERO,
                };
                data = host.connect_data(Cntlid::DYNAMIC).as_bytes().to_vec();
                let kato_ms = shared.scenario.hosts.keep_alive_ms;
                ConnectCommand { kato_ms, ..host.connect_command(0, ENTRIES) }.to_sqe()
            }
            Step::Enable => Sqe::property_set(Property::CC, cc.bits().into()),
            Step::EnableEvents => self.events.submit(shared, EventStep::Enable(ALL_EVENTS), None),
            Step::Events(EventStep::TooMany) => {
                self.request_event(shared);
                // Once this is answered, so are the requests that the target refuses.
                return self.submit(shared, Step::Stay);
            }
            Step::Events(step) => {
                let oldest = self.requests.first().copied();
                if step == EventStep::Abort {
                    self.aborting = oldest;
                }
                self.events.submit(shared, step, oldest)
            }
            Step::Stay => Sqe::keep_alive(),
            Step::ShutDown => {
                if self.reuses_ids {
                    // They are completed here and nowhere else.
                    self.forgotten.extend(&self.requests);
                    self.free.append(&mut self.requests);
                }
                let cc = cc.with_shn(ShutdownNotification::NORMAL);
                Sqe::property_set(Property::CC, cc.bits().into())
            }
            Step::ReadStatus => Sqe::property_get(Property::CSTS),
        };
        // One event request may be on its way back with another event.
        let is_staying = matches!(step, Step::Stay | Step::Events(_));
        self.events.await_owed(shared, is_staying && self.requests.len() > 1);
        let id = self.push(shared, sqe, &data);
        self.awaited = Some((step, id));
    }

    /// Returns whether it stays connected.
    fn on_completion(&mut self, shared: &mut Shared, id: u16, status: Status, result: u64) -> bool {
        if status.is(Status::COMMAND_ID_CONFLICT) {
            shared.find(format!("{:?} with id {id} is in conflict", self.awaited));
        }
        if status.is(Status::ABORT_REQUESTED) && self.aborting.take_if(|aborting| *aborting == id).is_none() {
            shared.find(format!("a completion for id {id} without an abort: {status}"));
        }
        // Neither the value of CSTS nor the result of any other of these commands has a log page in it.
        let is_event = status.is_success() && result >> 16 & 0xff != 0;
        match self.awaited {
            Some((step, awaited)) if awaited == id && !(is_event && self.forgotten.contains(&id)) => {
                self.awaited = None;
                self.deadline_ns = u64::MAX;
                self.forgotten.remove(&id);
                self.free.push(id);
                if !status.is_success() {
                    shared.say(|| format!("{step:?} is refused: {status}"));
                    return false;
                }
                self.on_done(shared, step, result)
            }
            _ if self.forgotten.remove(&id) => {
                shared.say(|| format!("an event crosses the command with id {id}"));
                true
            }
            _ if self.requests.contains(&id) => {
                self.requests.retain(|request| *request != id);
                self.free.push(id);
                self.on_request_done(shared, status, result);
                true
            }
            awaited => {
                shared.find(format!("a completion for id {id}, which is not out: {awaited:?} is"));
                false
            }
        }
    }

    /// An event request has ended, one of those that the host knows.
    fn on_request_done(&mut self, shared: &mut Shared, status: Status, result: u64) {
        if status.is(Status::AER_LIMIT_EXCEEDED) {
            shared.reach_event("one event request too many");
            let count = self.requests.len();
            if count < REQUEST_COUNT_MAX {
                shared.find(format!("an event request is refused beside {count}: {status}"));
            }
        }
        if status.is_success() {
            let out = self.awaited.and_then(|(step, _)| step.of_events());
            let next = self.next.and_then(|(step, _)| step.of_events());
            let is_between = matches!(next, Some(EventStep::Read { from: 1.., .. }));
            self.events.on_event(shared, result, out, is_between);
        } else if status.is(Status::ABORT_REQUESTED) {
            shared.reach_event("event request aborted");
        } else {
            return;
        }
        if self.requests.len() < REQUEST_COUNT_MAX {
            self.request_event(shared);
        }
    }

    /// The target has answered all that came before the command that has just been answered.
    fn check_requests(&mut self, shared: &mut Shared, step: Step, result: u64) {
        let count = self.requests.len();
        if count > REQUEST_COUNT_MAX {
            shared.find(format!("the target has taken {count} event requests"));
        }
        if step == Step::Events(EventStep::Abort) {
            let is_aborted = !AbortResult::from_bits(u32::try_from(result).unwrap_or(u32::MAX)).not_aborted();
            self.aborting.take_if(|_| !is_aborted);
        } else if let Some(id) = self.aborting {
            shared.find(format!("an aborted event request, id {id}, is not completed"));
        }
    }

    fn request_event(&mut self, shared: &mut Shared) {
        let deadline_ns = self.deadline_ns;
        let id = self.push(shared, Sqe::async_event_request(), &[]);
        self.requests.push(id);
        self.deadline_ns = deadline_ns;
    }

    fn on_done(&mut self, shared: &mut Shared, step: Step, result: u64) -> bool {
        let soon_ns = shared.now_ns + self.choice.scaled(1, 50 * MS);
        self.check_requests(shared, step, result);
        self.events.check_owed(shared);
        if let Some(step) = step.of_events() {
            self.events.on_done(shared, step);
        }
        match step {
            Step::Connect => self.submit(shared, Step::Enable),
            Step::Enable => self.submit(shared, Step::EnableEvents),
            Step::EnableEvents => {
                (0..REQUEST_COUNT_MAX).for_each(|_| self.request_event(shared));
                self.next = Some((Step::Stay, soon_ns));
            }
            Step::Events(step) if let Some((rest, at_ns)) = self.events.rest_of(step, shared.now_ns) => {
                self.next = Some((Step::Events(rest), at_ns));
            }
            Step::Stay | Step::Events(_) if self.stay_count > 0 => {
                self.stay_count -= 1;
                self.next = Some((self.events.next_step().map_or(Step::Stay, Step::Events), soon_ns));
            }
            Step::Stay | Step::Events(_) => self.submit(shared, Step::ShutDown),
            Step::ShutDown => self.submit(shared, Step::ReadStatus),
            Step::ReadStatus => {
                let csts = Csts::from_bits(u32::try_from(result).unwrap_or(u32::MAX));
                if csts.shst() == ShutdownStatus::COMPLETE {
                    self.departure_count += 1;
                    shared.say(|| "a host has left in good order".into());
                    self.hang_up(shared, true);
                    return true;
                }
                self.next = Some((Step::ReadStatus, shared.now_ns + MS));
            }
        }
        true
    }
}
