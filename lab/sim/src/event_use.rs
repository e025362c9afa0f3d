//! The use of events by a host that comes and goes: of namespaces, with the list of those that changed, and of storage
//! that lacks space, with the SMART log; and the answers that the target may give. Logs are read whole and in parts,
//! with RAE and without, events are enabled and disabled, and event requests are aborted or too many.
//!
//! Events and answers cross the host's commands. The judge accuses the target only where no crossing explains its
//! answer.

use std::collections::BTreeSet;

use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::feature::Fid;
use wire::id::{Nsid, Qid};
use wire::log::health::HealthLog;
use wire::log::namespaces::CHANGED_NAMESPACES_BYTES;
use wire::log::{GetLogPage, Lid};
use wire::sgl::Sgl;
use wire::sqe::Sqe;

use crate::random::Random;
use crate::scenario::{SECOND, Scenario};
use crate::shared::Shared;

/// Event requests that a target takes at once.
pub(crate) const REQUEST_COUNT_MAX: usize = 4;

const PAGE_BYTES: u32 = CHANGED_NAMESPACES_BYTES as u32;
const HEALTH_BYTES: u32 = size_of::<HealthLog>() as u32;

/// The critical warning of storage that lacks space.
const SPACE: AsyncEvents = AsyncEvents::from_bits_retain(1);

/// The events that the host knows.
pub(crate) const ALL_EVENTS: AsyncEvents = AsyncEvents::NAMESPACE_ATTRIBUTE.union(SPACE);

/// A command of this use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventStep {
    /// The list of changed namespaces is read, from an offset to another.
    Read { from: u32, to: u32, retain: bool },
    /// The SMART log is read.
    ReadHealth { retain: bool },
    /// These events are enabled, and others disabled.
    Enable(AsyncEvents),
    /// An event request is aborted, whichever waits longest.
    Abort,
    /// One more event request than the target takes.
    TooMany,
}

/// Whether the target masks the event: it was sent, and its log not read without RAE since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mask {
    No,
    Yes,
    /// The event crossed a read.
    Unknown,
}

/// The host's knowledge of one kind of event.
#[derive(Clone, Copy, Debug)]
struct EventState {
    /// It was disabled, and the target has said so.
    is_disabled: bool,
    mask: Mask,
    /// The event arrived after its log was asked for from offset 0: it may be of a later one.
    is_after_log: bool,
}

impl EventState {
    const NEW: Self = Self { is_disabled: true, mask: Mask::No, is_after_log: false };

    /// The event has arrived, with its log being read or about to be, and perhaps while events are enabled or disabled.
    fn on_event(&mut self, shared: &mut Shared, reads: bool, is_switched: bool) {
        if self.is_disabled && !is_switched {
            shared.find("an event arrives although the target has said that it is disabled");
        }
        if self.mask == Mask::Yes && !reads {
            shared.find("an event is sent again, and its log was not read without RAE");
        }
        self.mask = Mask::Yes;
        self.is_after_log = reads;
    }

    /// A part of its log was read without RAE.
    fn on_clear(&mut self) {
        self.mask = if self.is_after_log && self.mask != Mask::No { Mask::Unknown } else { Mask::No };
    }
}

/// The use of events on one connection.
#[derive(Debug)]
pub(crate) struct EventUse {
    choice: Random,
    is_curious: bool,
    of_namespaces: EventState,
    of_space: EventState,
    /// When storage came to lack space while the host had its event enabled, ns: the event must come.
    owed_ns: Option<u64>,
    /// Once the command that is out is answered, the event must have come.
    must_have_come: bool,
    /// An event has arrived since the list was asked for from offset 0.
    has_event: bool,
    /// The next list must not be empty: an event was sent since the last one was taken.
    must_list: bool,
    /// Every change since the list was cleared has an event, if none was masked.
    knows_all: bool,
    /// The list as far as it was read last, unless it was cleared since.
    listed: BTreeSet<u32>,
    page: Vec<u8>,
    /// The mask, and whether an event had arrived, when the list was asked for.
    before: (Mask, bool),
}

impl EventUse {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let mut choice = Random::new(scenario.seed, 80);
        let is_curious = choice.one_in(2);
        Self {
            choice,
            is_curious,
            of_namespaces: EventState::NEW,
            of_space: EventState::NEW,
            owed_ns: None,
            must_have_come: false,
            has_event: false,
            must_list: false,
            knows_all: false,
            listed: BTreeSet::new(),
            page: Vec::new(),
            before: (Mask::No, false),
        }
    }

    /// Another connection, and another controller.
    pub(crate) fn begin(&mut self) {
        (self.of_namespaces, self.of_space) = (EventState::NEW, EventState::NEW);
        (self.owed_ns, self.must_have_come) = (None, false);
        (self.has_event, self.must_list, self.knows_all) = (false, false, false);
        self.listed.clear();
    }

    /// The next command; `None` for any other.
    pub(crate) fn next_step(&mut self) -> Option<EventStep> {
        if !self.is_curious || self.choice.one_in(3) {
            return None;
        }
        let retain = self.choice.one_in(2);
        Some(match self.choice.below(10) {
            0..3 => EventStep::Read { from: 0, to: PAGE_BYTES, retain },
            3..5 => EventStep::Read { from: 0, to: self.choice.pick(&[4, 8, 64]), retain },
            5 => EventStep::Enable(self.choice.pick(&[
                ALL_EVENTS,
                ALL_EVENTS,
                AsyncEvents::NAMESPACE_ATTRIBUTE,
                SPACE,
                AsyncEvents::empty(),
            ])),
            6 => EventStep::Abort,
            7 | 8 => EventStep::ReadHealth { retain },
            _ => EventStep::TooMany,
        })
    }

    /// The command that follows this one and belongs to it, the rest of the list, and when.
    pub(crate) fn rest_of(&mut self, step: EventStep, now_ns: u64) -> Option<(EventStep, u64)> {
        match step {
            EventStep::Read { to, .. } if to < PAGE_BYTES => {
                let rest = EventStep::Read { from: to, to: PAGE_BYTES, retain: self.choice.one_in(3) };
                // Long enough for something to change meanwhile, or not.
                let pause_ns = if self.choice.one_in(2) {
                    self.choice.below(SECOND)
                } else {
                    self.choice.scaled(1, SECOND)
                };
                Some((rest, now_ns + pause_ns))
            }
            _ => None,
        }
    }

    /// Submits a command. `oldest` is the event request that waits longest.
    pub(crate) fn submit(&mut self, shared: &mut Shared, step: EventStep, oldest: Option<u16>) -> Sqe {
        let get = |lid, length_bytes: u32, offset: u32, retain| {
            let (length, offset) = (length_bytes.into(), offset.into());
            let command =
                GetLogPage { lid, rae: retain, length_bytes: length, offset, ..GetLogPage::default() };
            command.to_sqe(Nsid::ALL).with_data(Sgl::transport(length_bytes))
        };
        match step {
            EventStep::Read { from, to, retain } => {
                if retain {
                    shared.reach_event("changed namespaces read with RAE");
                }
                if from > 0 {
                    shared.reach_event("changed namespaces read in parts");
                } else {
                    self.before = (self.of_namespaces.mask, self.has_event);
                    (self.of_namespaces.is_after_log, self.has_event) = (false, false);
                }
                self.page = vec![0; (to - from) as usize];
                get(Lid::CHANGED_NAMESPACES, to - from, from, retain)
            }
            EventStep::ReadHealth { retain } => {
                shared.reach_event(if retain { "SMART log read with RAE" } else { "SMART log read" });
                self.of_space.is_after_log = false;
                self.page = vec![0; HEALTH_BYTES as usize];
                get(Lid::SMART, HEALTH_BYTES, 0, retain)
            }
            EventStep::Enable(events) => {
                // Changes meanwhile may have an event or not.
                let is_on = events.contains(AsyncEvents::NAMESPACE_ATTRIBUTE);
                self.knows_all &= is_on && !self.of_namespaces.is_disabled;
                self.of_namespaces.is_disabled &= !is_on;
                self.of_space.is_disabled &= !events.contains(SPACE);
                self.owed_ns.take_if(|_| !events.contains(SPACE));
                Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, events.bits())
            }
            EventStep::Abort => Sqe::abort(Qid::ADMIN, oldest.unwrap_or(u16::MAX)),
            EventStep::TooMany => Sqe::async_event_request(),
        }
    }

    /// Data of the command that is out.
    pub(crate) fn on_data(&mut self, shared: &mut Shared, offset: u32, data: &[u8]) {
        match self.page.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..data.len())) {
            Some(place) => place.copy_from_slice(data),
            None => shared.find(format!("{} bytes at {offset} of a log page that is shorter", data.len())),
        }
    }

    /// A command has succeeded.
    pub(crate) fn on_done(&mut self, shared: &mut Shared, step: EventStep) {
        match step {
            EventStep::Read { from, to, retain } => {
                let (entries, _) = self.page.as_chunks::<4>();
                let entries = entries.iter().map(|entry| u32::from_le_bytes(*entry));
                let list: Vec<u32> = entries.take_while(|nsid| *nsid != 0).collect();
                let has_end = list.len() * 4 < self.page.len() || to == PAGE_BYTES;
                if from == 0 {
                    self.on_list(shared, &list);
                }
                self.listed.extend(list);
                if !retain {
                    self.on_clear(has_end);
                }
            }
            EventStep::ReadHealth { retain } => {
                if !retain {
                    self.of_space.on_clear();
                }
            }
            EventStep::Enable(events) => {
                self.of_namespaces.is_disabled = !events.contains(AsyncEvents::NAMESPACE_ATTRIBUTE);
                self.of_space.is_disabled = !events.contains(SPACE);
                if events != ALL_EVENTS {
                    shared.reach_event("asynchronous events disabled");
                }
            }
            EventStep::Abort | EventStep::TooMany => {}
        }
    }

    /// The beginning of a list has arrived.
    fn on_list(&mut self, shared: &mut Shared, list: &[u32]) {
        if !list.is_sorted_by(|a, b| a < b) {
            shared.find(format!("changed namespaces are out of order: {list:?}"));
        }
        if self.must_list && list.is_empty() {
            shared.find("an event says that namespaces have changed, and the next list of them is empty");
        }
        let has_new = list.iter().any(|nsid| !self.listed.contains(nsid));
        // The event may have arrived between the command and its answer.
        let (mask, had_event) = self.before;
        if has_new && self.knows_all && mask == Mask::No && !had_event && !self.has_event {
            shared.find(format!("namespaces have changed without an event: {list:?}"));
        }
        self.must_list = false;
    }

    /// A part of the list was read without RAE, which has its end or not.
    fn on_clear(&mut self, has_end: bool) {
        self.of_namespaces.on_clear();
        if has_end {
            self.listed.clear();
            self.knows_all = !self.of_namespaces.is_disabled;
        }
    }

    /// An event has arrived, with this step out.
    pub(crate) fn on_event(
        &mut self,
        shared: &mut Shared,
        result: u64,
        out: Option<EventStep>,
        is_between: bool,
    ) {
        let is_switched = matches!(out, Some(EventStep::Enable(_)));
        if result == u64::from(AsyncEvent::SMART_SPARE.bits()) {
            shared.reach_event("event of storage without space");
            let reads = matches!(out, Some(EventStep::ReadHealth { .. }));
            self.of_space.on_event(shared, reads, is_switched);
            self.owed_ns = None;
            return;
        }
        if result != u64::from(AsyncEvent::NAMESPACE_ATTRIBUTE.bits()) {
            shared.find(format!("an event that the host has not enabled: {result:#x}"));
        }
        let reads = matches!(out, Some(EventStep::Read { .. }));
        if is_between {
            shared.reach_event("event between two parts of its list");
        }
        self.of_namespaces.on_event(shared, reads, is_switched);
        self.of_namespaces.is_after_log |= is_between;
        self.has_event = true;
        self.must_list |= !reads;
    }

    /// Storage comes to lack space, with this step out.
    pub(crate) fn on_space_low(&mut self, now_ns: u64, out: Option<EventStep>) {
        let may_cross = matches!(out, Some(EventStep::Enable(_) | EventStep::ReadHealth { .. }));
        if !self.of_space.is_disabled && self.of_space.mask == Mask::No && !may_cross {
            self.owed_ns.get_or_insert(now_ns);
        }
    }

    /// A command is submitted behind event requests, beyond those that other events may have taken: if the event has
    /// been due for long, it comes first.
    pub(crate) fn await_owed(&mut self, shared: &Shared, has_requests: bool) {
        let due_ns = self.owed_ns.map(|owed_ns| owed_ns + shared.scenario.order_ns_max());
        self.must_have_come = has_requests && due_ns.is_some_and(|due_ns| due_ns < shared.now_ns);
    }

    /// That command is answered.
    pub(crate) fn check_owed(&mut self, shared: &mut Shared) {
        if std::mem::take(&mut self.must_have_come) && self.owed_ns.is_some() {
            shared.find("storage lacks space, and the host, which wants to hear of that, is not told");
        }
    }
}
