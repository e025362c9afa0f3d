//! Asynchronous events, every log page with state, and what is identified of namespaces, compared with a model: hosts read
//! pages in parts with and without RAE, enable and disable events, and send and abort event requests, while namespaces,
//! of blocks and of keys, and subsystems change. wire §10, §11, §13, §19, §20

#![allow(clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvlane_subsystem::access::HostRights;
use nvlane_subsystem::lane_id::CommandId;
use nvlane_subsystem::limits::Limits;
use nvlane_subsystem::message::Step;
use nvlane_subsystem::subsystem::Access;
use proptest::prelude::*;
use store::{KeyValueSettings, KeyValueStore, Store};
use wire::admin::AbortResult;
use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::feature::Fid;
use wire::id::{Cntlid, Csi, Nsid, Qid};
use wire::identify::command_set::{CommandSetVectors, CommandSets, IndependentNamespace, Nstat};
use wire::identify::descriptors::{NamespaceDescriptor, NamespaceDescriptors};
use wire::identify::lists::read_nsid_list;
use wire::identify::{Cns, IdentifyCommand};
use wire::log::error::ErrorEntry;
use wire::log::health::HealthLog;
use wire::log::{GetLogPage, Lid};
use wire::property::{Cc, CommandSetSelection, Property};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::{FromBytes, IntoBytes};

use crate::harness::{
    Association, DISKS, HOST, OTHER_HOST, SERVICE, Shape, Target, add_namespace, disks, host, namespace, nqn,
    subsystem,
};

const EVENT_REQUESTS_MAX: usize = 4;
const ERROR_ENTRIES: usize = 64;
const ERROR_ENTRY_BYTES: usize = 64;
/// Entries that the list of changed namespaces has room for.
const CHANGED_MAX: usize = 1024;
/// Namespaces of keys and values; the others have blocks.
const KEY_VALUE: [u32; 4] = [4, 6, 9, 11];
const KEY_VALUE_BYTES: u64 = 1 << 20;
/// Namespaces that change together, more than a list has room for.
const CROWD: std::ops::Range<u32> = 2000..3100;
const OTHERS: &str = "nqn.2026-01.io.nvlane:others";
/// The hosts of the controllers, and what they are connected to. Two are of one host and one subsystem.
const CONTROLLERS: [(&str, &str); 5] =
    [(HOST, DISKS), (HOST, DISKS), (OTHER_HOST, DISKS), (HOST, SERVICE), (OTHER_HOST, SERVICE)];

/// Events that a controller of each kind sends, and what enables them.
const EVENTS: [(AsyncEvent, AsyncEvents); 3] = [
    (AsyncEvent::NAMESPACE_ATTRIBUTE, AsyncEvents::NAMESPACE_ATTRIBUTE),
    (AsyncEvent::SMART_SPARE, AsyncEvents::from_bits_retain(1)),
    (AsyncEvent::DISCOVERY_CHANGE, AsyncEvents::DISCOVERY),
];

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A namespace is added, or changed if it exists.
    Touch(u8),
    Remove(u8),
    /// A namespace is shown to the first host only, or to all.
    Show(u8, bool),
    /// Many namespaces change at once.
    TouchCrowd,
    SpaceLow,
    /// The second host may use the second subsystem, or not.
    Allow(bool),
    Request(usize),
    Abort(usize),
    /// Events of a controller are enabled: a bit for each of those that it has.
    Enable(usize, u8),
    /// A command of a controller fails.
    Fail(usize),
    Io(usize),
    Reset(usize),
    /// A controller is asked for something of a namespace, or for a list of those behind it.
    Identify(usize, Identified, u32),
    /// It is asked for the health of a namespace.
    Health(usize, u32),
    /// A page of a controller is read from a part of it on.
    Read {
        of: usize,
        page: usize,
        dword: u32,
        dwords: u32,
        retain: bool,
    },
}

/// What can be identified of namespaces.
#[derive(Clone, Copy, Debug)]
enum Identified {
    /// Those of all command sets, or of one.
    List(Option<Csi>),
    Descriptors,
    /// As a namespace of blocks, or of a command set.
    Blocks,
    Of(Csi),
    Independent,
    /// The command sets, and the effects of the commands of one.
    CommandSets,
    Effects(Csi),
}

fn identified() -> impl Strategy<Value = Identified> {
    let csi = || prop_oneof![Just(Csi::NVM), Just(Csi::KV)];
    prop_oneof![
        2 => prop::option::of(csi()).prop_map(Identified::List),
        2 => Just(Identified::Descriptors),
        1 => Just(Identified::Blocks),
        2 => csi().prop_map(Identified::Of),
        1 => Just(Identified::Independent),
        1 => Just(Identified::CommandSets),
        1 => csi().prop_map(Identified::Effects),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let of = || 0..CONTROLLERS.len();
    let dword = prop_oneof![4 => Just(0), 3 => 1u32..4, 2 => 0u32..64, 2 => Just(256u32), 1 => 0u32..1024];
    let dwords = prop_oneof![2 => 1u32..4, 2 => 1u32..64, 3 => Just(1024u32)];
    prop_oneof![
        5 => (2u8..12).prop_map(Op::Touch),
        1 => (2u8..12).prop_map(Op::Remove),
        2 => (2u8..12, any::<bool>()).prop_map(|(nsid, is_for_all)| Op::Show(nsid, is_for_all)),
        1 => prop::bool::weighted(0.2).prop_map(|is_crowd| if is_crowd { Op::TouchCrowd } else { Op::SpaceLow }),
        2 => Just(Op::SpaceLow),
        3 => any::<bool>().prop_map(Op::Allow),
        8 => of().prop_map(Op::Request),
        1 => of().prop_map(Op::Abort),
        4 => (of(), 0u8..4).prop_map(|(of, bits)| Op::Enable(of, bits)),
        2 => of().prop_map(Op::Fail),
        1 => of().prop_map(Op::Io),
        1 => (of(), prop::bool::weighted(0.3)).prop_map(|(of, resets)| if resets { Op::Reset(of) } else { Op::Request(of) }),
        6 => (of(), identified(), 0u32..13).prop_map(|(of, what, nsid)| Op::Identify(of, what, nsid)),
        2 => (of(), 0u32..13).prop_map(|(of, nsid)| Op::Health(of, nsid)),
        16 => (of(), 0usize..4, dword, dwords, any::<bool>())
            .prop_map(|(of, page, dword, dwords, retain)| Op::Read { of, page, dword, dwords, retain }),
    ]
}

/// One event of a controller: when it occurred without being sent or cleared, and when the sent one did last.
#[derive(Clone, Debug, Default)]
struct History {
    is_enabled: bool,
    occurred: Vec<u64>,
    sent: Option<u64>,
}

/// What a host knows of its controller, and what it must find there.
struct Controller {
    association: Association,
    events: BTreeMap<u32, History>,
    requests: Vec<(u16, CommandId)>,
    next_cid: u16,
    /// When each log was read from offset 0 last.
    taken: BTreeMap<u8, u64>,
    /// Changes of namespaces that no list has been cleared of, and the list that was taken last.
    changed: Vec<(u32, u64)>,
    changed_list: BTreeSet<u32>,
    /// Namespaces of the ANA log that was read last, and how often it was another one.
    ana: Option<Vec<u32>>,
    ana_changes: u64,
    /// Ids of failed commands.
    errors: Vec<u16>,
    discovery: Vec<u8>,
}

impl Controller {
    fn is_discovery(&self) -> bool {
        self.association.subnqn == SERVICE
    }

    /// Events that it sends.
    fn event_list(&self) -> &'static [(AsyncEvent, AsyncEvents)] {
        if self.is_discovery() { &EVENTS[2..] } else { &EVENTS[..2] }
    }

    fn occur(&mut self, event: AsyncEvent, now: u64) {
        if let Some(history) = self.events.get_mut(&event.bits()).filter(|history| history.is_enabled) {
            history.occurred.push(now);
        }
    }

    /// The log that refers to events is read without RAE: it told of what occurred before it was taken.
    fn clear(&mut self, log: Lid) {
        let Some(taken) = self.taken.get(&log.raw()).copied() else { return };
        for (event, _) in EVENTS.iter().filter(|(event, _)| event.log() == log) {
            if let Some(history) = self.events.get_mut(&event.bits()) {
                history.occurred.retain(|at| *at > taken);
                history.sent.take_if(|at| *at < taken);
            }
        }
    }
}

fn is_key_value(nsid: u32) -> bool {
    KEY_VALUE.contains(&nsid)
}

fn keys() -> Store {
    Store::Keys(Arc::new(KeyValueStore::in_memory(KeyValueSettings {
        bytes: KEY_VALUE_BYTES,
        evicts: true,
        item_bytes: 1 << 10,
        allows_flush: false,
        prefaults: false,
    })))
}

struct World {
    target: Target,
    now: u64,
    controllers: Vec<Controller>,
    /// A controller beside each: what is read there at once is what the host's log is now.
    oracles: Vec<Association>,
    /// Namespaces that exist, and whether they are shown to all.
    namespaces: BTreeMap<u32, bool>,
    has_crowd: bool,
    is_allowed: bool,
    read_count: u64,
}

fn read(lid: Lid, offset: u64, length: u32, rae: bool) -> Sqe {
    let command = GetLogPage { lid, offset, length_bytes: length.into(), rae, ..GetLogPage::default() };
    command.to_sqe(Nsid::ALL).with_data(Sgl::transport(length))
}

impl World {
    fn new() -> Self {
        let mut target = Target::empty(Limits { nsid_max: 4096, ..Limits::default() });
        target.apply(disks(Access::Any));
        target.apply(vec![Step::AddSubsystem(subsystem(OTHERS, Access::Any))]);
        target.listen(true, true);
        target.local = Some("127.0.0.1:4420".parse().unwrap());
        let controller = |target: &mut Target, (name, subnqn): (&str, &str)| {
            let association = target.ready(host(name), subnqn, u16::from(subnqn == DISKS));
            let mut controller = Controller {
                association,
                events: BTreeMap::new(),
                requests: Vec::new(),
                next_cid: 100,
                taken: BTreeMap::new(),
                changed: Vec::new(),
                changed_list: BTreeSet::new(),
                ana: None,
                ana_changes: 0,
                errors: Vec::new(),
                discovery: Vec::new(),
            };
            let all = controller.event_list();
            controller.events = all.iter().map(|(event, _)| (event.bits(), History::default())).collect();
            controller
        };
        let controllers = CONTROLLERS.map(|of| controller(&mut target, of)).into();
        let oracles = CONTROLLERS.map(|(name, subnqn)| target.ready(host(name), subnqn, 0)).into();
        let namespaces = BTreeMap::from([(1, true), (3, true)]);
        let (has_crowd, is_allowed) = (false, true);
        Self { target, now: 1, controllers, oracles, namespaces, has_crowd, is_allowed, read_count: 0 }
    }

    fn sees(&self, of: usize, nsid: u32) -> bool {
        let is_for_all = self.namespaces.get(&nsid).copied();
        is_for_all.is_some_and(|is_for_all| is_for_all || CONTROLLERS[of].0 == HOST)
    }

    /// These namespaces have changed for the controllers of these hosts.
    fn change(&mut self, nsids: &[u32], is_concerned: impl Fn(&str) -> bool) {
        let now = self.now;
        let concerned = self.controllers.iter_mut().filter(|controller| !controller.is_discovery());
        for controller in
            concerned.filter(|controller| is_concerned(controller.association.host.nqn.as_str()))
        {
            controller.changed.extend(nsids.iter().map(|nsid| (*nsid, now)));
            controller.occur(AsyncEvent::NAMESPACE_ATTRIBUTE, now);
        }
    }

    fn seen_by(is_for_all: bool) -> impl Fn(&str) -> bool {
        move |name| is_for_all || name == HOST
    }

    fn run(&mut self, op: Op) {
        self.now += 1;
        let now = self.now;
        let changed =
            |nsid: u32| Step::StorageChanged { subsystem: nqn(DISKS), nsid: Nsid::new(nsid), storage: None };
        match op {
            Op::Touch(nsid) => {
                let id = u32::from(nsid);
                let is_new = !self.namespaces.contains_key(&id);
                let is_for_all = *self.namespaces.entry(id).or_insert(true);
                let store = || if is_key_value(id) { keys() } else { Shape::blocks(512, 8) };
                let step = if is_new { add_namespace(nsid, store()) } else { changed(id) };
                self.change(&[id], Self::seen_by(is_for_all));
                self.target.apply(vec![step]);
            }
            Op::Remove(nsid) => {
                let Some(is_for_all) = self.namespaces.remove(&nsid.into()) else { return };
                self.change(&[nsid.into()], Self::seen_by(is_for_all));
                let nsid = Nsid::new(nsid.into());
                self.target.apply(vec![Step::RemoveNamespace { subsystem: nqn(DISKS), nsid }]);
            }
            Op::Show(nsid, is_for_all) => {
                let Some(before) = self.namespaces.get_mut(&nsid.into()) else { return };
                if std::mem::replace(before, is_for_all) != is_for_all {
                    self.change(&[nsid.into()], |name| name != HOST);
                }
                let visible_to =
                    if is_for_all { Access::Any } else { Access::Only(BTreeSet::from([nqn(HOST).into()])) };
                let rights = HostRights { visible_to, ..HostRights::ALL };
                let nsid = Nsid::new(nsid.into());
                self.target.apply(vec![Step::SetRights { subsystem: nqn(DISKS), nsid, rights }]);
            }
            Op::TouchCrowd => {
                let nsids: Vec<u32> = CROWD.collect();
                self.change(&nsids, |_| true);
                let is_new = !std::mem::replace(&mut self.has_crowd, true);
                let add = |nsid: u32| Step::AddNamespace {
                    subsystem: nqn(DISKS),
                    nsid: Nsid::new(nsid),
                    namespace: namespace((nsid % 251) as u8, Shape::blocks(512, 8)),
                };
                let step = |nsid: &u32| if is_new { add(*nsid) } else { changed(*nsid) };
                self.target.apply(nsids.iter().map(step).collect());
                self.namespaces.extend(nsids.into_iter().map(|nsid| (nsid, true)));
            }
            Op::SpaceLow => {
                let concerned = self.controllers.iter_mut().filter(|controller| !controller.is_discovery());
                concerned.for_each(|controller| controller.occur(AsyncEvent::SMART_SPARE, now));
                self.target.apply(vec![Step::SpaceLow { subsystem: nqn(DISKS), nsid: Nsid::new(1) }]);
            }
            Op::Allow(is_allowed) => {
                if std::mem::replace(&mut self.is_allowed, is_allowed) != is_allowed {
                    let concerned =
                        |controller: &&mut Controller| controller.association.host.nqn == nqn(OTHER_HOST);
                    let concerned = self.controllers.iter_mut().filter(concerned);
                    concerned.for_each(|controller| controller.occur(AsyncEvent::DISCOVERY_CHANGE, now));
                }
                let only = Access::Only(BTreeSet::from([nqn(HOST).into()]));
                let access = if is_allowed { Access::Any } else { only };
                self.target.apply(vec![Step::SetAccess(nqn(OTHERS), access)]);
            }
            Op::Request(of) => {
                let controller = &mut self.controllers[of];
                controller.next_cid += 1;
                let (cid, admin) = (controller.next_cid, controller.association.admin);
                let command = self.target.send(admin, Sqe::async_event_request().with_cid(cid), &[]);
                if controller.requests.len() < EVENT_REQUESTS_MAX {
                    controller.requests.push((cid, command));
                } else {
                    assert_eq!(self.target.answer(command).status, Status::AER_LIMIT_EXCEEDED);
                    controller.errors.push(cid);
                }
            }
            Op::Abort(of) => {
                let controller = &mut self.controllers[of];
                let cid = controller.requests.first().map_or(7, |(cid, _)| *cid);
                let answer = self.target.demand(controller.association.admin, Sqe::abort(Qid::ADMIN, cid));
                let is_missing = controller.requests.is_empty();
                let expected = AbortResult::default().with_not_aborted(is_missing).bits();
                assert_eq!(answer.result, u64::from(expected));
                if !is_missing {
                    let (_, command) = controller.requests.remove(0);
                    assert_eq!(self.target.answer(command).status, Status::ABORT_REQUESTED);
                }
            }
            Op::Enable(of, bits) => {
                let controller = &mut self.controllers[of];
                let mut enabled = AsyncEvents::empty();
                for (at, (event, needed)) in controller.event_list().iter().enumerate() {
                    let history = controller.events.get_mut(&event.bits()).unwrap();
                    history.is_enabled = bits >> at & 1 != 0;
                    if history.is_enabled {
                        enabled |= *needed;
                    } else {
                        history.occurred.clear();
                    }
                }
                let admin = controller.association.admin;
                self.target.demand(admin, Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, enabled.bits()));
                let answer = self.target.demand(admin, Sqe::get_feature(Fid::ASYNC_EVENTS, Nsid::NONE));
                assert_eq!(answer.result, u64::from(enabled.bits()));
            }
            Op::Fail(of) => {
                let controller = &mut self.controllers[of];
                controller.next_cid += 1;
                let sqe = Sqe::new(0xC0, Nsid::NONE).with_cid(controller.next_cid);
                let answer = self.target.ask(controller.association.admin, sqe);
                assert_eq!(answer.status, Status::INVALID_OPCODE.with_dnr());
                controller.errors.push(controller.next_cid);
            }
            Op::Io(of) => {
                if let Some(lane) = self.controllers[of].association.io.first() {
                    self.target.counters[lane].read_count.add(1);
                    self.read_count += 1;
                }
            }
            Op::Reset(of) => self.reset(of),
            Op::Identify(of, what, nsid) => self.identify(of, what, nsid),
            Op::Health(of, nsid) => self.health(of, nsid),
            Op::Read { of, page, dword, dwords, retain } => {
                self.read(of, page, dword * 4, dwords * 4, retain);
            }
        }
        (0..CONTROLLERS.len()).for_each(|of| self.take_completions(of));
    }

    /// Sends an admin command. A failure stands in the error log from then on.
    fn ask(&mut self, of: usize, sqe: Sqe) -> Result<Vec<u8>, Status> {
        let controller = &mut self.controllers[of];
        controller.next_cid += 1;
        let answer = self.target.ask(controller.association.admin, sqe.with_cid(controller.next_cid));
        if answer.status.is_success() {
            return Ok(answer.data.expect("a structure").into());
        }
        controller.errors.push(controller.next_cid);
        Err(answer.status)
    }

    fn identify(&mut self, of: usize, what: Identified, nsid: u32) {
        let id = Nsid::new(nsid);
        let sqe = match what {
            Identified::List(None) => Sqe::identify(Cns::ACTIVE_NAMESPACES, id),
            Identified::List(Some(csi)) => Sqe::identify_in(csi, Cns::COMMAND_SET_ACTIVE_NAMESPACES, id),
            Identified::Descriptors => Sqe::identify(Cns::NAMESPACE_DESCRIPTORS, id),
            Identified::Blocks => Sqe::identify(Cns::NAMESPACE, id),
            Identified::Of(csi) => Sqe::identify_in(csi, Cns::COMMAND_SET_NAMESPACE, id),
            Identified::Independent => Sqe::identify(Cns::INDEPENDENT_NAMESPACE, id),
            Identified::CommandSets => IdentifyCommand {
                cns: Cns::COMMAND_SETS,
                cntid: Cntlid::DYNAMIC,
                ..IdentifyCommand::default()
            }
            .to_sqe(Nsid::NONE),
            Identified::Effects(csi) => {
                let (lid, length_bytes) = (Lid::COMMANDS_AND_EFFECTS, 4096);
                GetLogPage { lid, csi, length_bytes, ..GetLogPage::default() }.to_sqe(Nsid::ALL)
            }
        };
        let found = self.ask(of, sqe.with_data(Sgl::transport(4096)));
        if CONTROLLERS[of].1 == SERVICE {
            let is_log = matches!(what, Identified::Effects(_));
            let refusal = if is_log { Status::INVALID_LOG_PAGE } else { Status::INVALID_OPCODE };
            return assert_eq!(found, Err(refusal.with_dnr()), "{what:?}");
        }
        // Those that no host sees make the command set known as well.
        let has_keys = self.namespaces.keys().any(|nsid| is_key_value(*nsid));
        let (sees, csi) = (self.sees(of, nsid), if is_key_value(nsid) { Csi::KV } else { Csi::NVM });
        let first = |found: &[u8]| u64::from_le_bytes(found[..8].try_into().unwrap());
        let what_of = format!("{what:?} of {nsid} by controller {of}, which sees it: {sees}");
        let expected = match what {
            Identified::List(Some(Csi::KV)) | Identified::Of(Csi::KV) | Identified::Effects(Csi::KV)
                if !has_keys =>
            {
                Err(Status::INVALID_FIELD)
            }
            Identified::Descriptors | Identified::Blocks | Identified::Of(_) if nsid == 0 => {
                Err(Status::INVALID_NAMESPACE)
            }
            Identified::Independent if nsid == 0 => Err(Status::INVALID_NAMESPACE),
            Identified::Descriptors if !sees => Err(Status::INVALID_NAMESPACE),
            Identified::Blocks if sees && csi == Csi::KV => Err(Status::INVALID_COMMAND_SET),
            Identified::Of(asked) if sees && csi != asked => Err(Status::INVALID_COMMAND_SET),
            _ => Ok(()),
        };
        assert_eq!(
            found.as_ref().map(drop).map_err(|it| *it),
            expected.map_err(Status::with_dnr),
            "{what_of}"
        );
        let Ok(found) = found else { return };
        match what {
            Identified::List(csi) => {
                let is_meant = |nsid: &u32| csi.is_none_or(|csi| is_key_value(*nsid) == (csi == Csi::KV));
                let all =
                    self.namespaces.keys().copied().filter(|other| *other > nsid && self.sees(of, *other));
                let expected: Vec<u32> = all.filter(is_meant).take(CHANGED_MAX).collect();
                assert_eq!(read_nsid_list(&found).map(Nsid::get).collect::<Vec<_>>(), expected, "{what_of}");
            }
            Identified::Descriptors => {
                let found: Vec<_> = NamespaceDescriptors::new(&found).map(Result::unwrap).collect();
                assert!(found.contains(&NamespaceDescriptor::Csi(csi)), "{what_of}: {found:?}");
            }
            Identified::Blocks => {
                assert_eq!(first(&found) > 0, sees, "{what_of}");
            }
            Identified::Of(Csi::KV) => {
                assert_eq!(first(&found), if sees { KEY_VALUE_BYTES } else { 0 }, "{what_of}");
            }
            Identified::Of(_) => assert_eq!(found, [0; 4096], "{what_of}"),
            Identified::Independent => {
                let ready = IndependentNamespace::read_from_bytes(&found).unwrap().nstat;
                assert_eq!(ready, if sees { Nstat::READY } else { Nstat::empty() }, "{what_of}");
            }
            Identified::CommandSets => {
                let sets = if has_keys { CommandSets::NVM | CommandSets::KV } else { CommandSets::NVM };
                assert_eq!(found, CommandSetVectors::new(&[sets]).as_bytes(), "{what_of}");
            }
            Identified::Effects(_) => assert_ne!(found, [0; 4096], "{what_of}"),
        }
    }

    fn health(&mut self, of: usize, nsid: u32) {
        let command = GetLogPage { lid: Lid::SMART, rae: true, length_bytes: 512, ..GetLogPage::default() };
        let found = self.ask(of, command.to_sqe(Nsid::new(nsid)).with_data(Sgl::transport(512)));
        let is_one = nsid != 0;
        if CONTROLLERS[of].1 == SERVICE {
            return assert_eq!(found, Err(Status::INVALID_LOG_PAGE.with_dnr()));
        }
        if is_one && !self.sees(of, nsid) {
            return assert_eq!(found, Err(Status::INVALID_NAMESPACE.with_dnr()));
        }
        let health = HealthLog::read_from_bytes(&found.unwrap()).unwrap();
        assert_eq!((health.critical_warning, health.spare), (0, 100), "namespace {nsid}");
        // Read from offset 0, with RAE: it covers the events so far and clears none.
        self.controllers[of].taken.insert(Lid::SMART.raw(), self.now);
    }

    fn reset(&mut self, of: usize) {
        let controller = &mut self.controllers[of];
        let admin = controller.association.admin;
        self.target
            .demand(admin, Sqe::property_set(Property::CC, Cc::new(CommandSetSelection::NVM).bits().into()));
        for (_, command) in controller.requests.drain(..) {
            assert_eq!(self.target.answer(command).status, Status::ABORTED_SQ_DELETED);
        }
        controller.events.values_mut().for_each(|history| *history = History::default());
        controller.taken.clear();
        controller.changed.clear();
        controller.changed_list.clear();
        (controller.ana, controller.ana_changes) = (None, 0);
        controller.discovery.clear();
        // Its I/O queues end.
        controller.association.io.clear();
        self.target.enable(admin);
    }

    /// Requests that were completed, each with an event that was due. After them no request waits beside an event.
    fn take_completions(&mut self, of: usize) {
        let controller = &mut self.controllers[of];
        let target = &mut self.target;
        let is_answered = |(_, command): &(u16, CommandId)| !target.open.contains(command);
        let (answered, waiting) = controller.requests.drain(..).partition::<Vec<_>, _>(is_answered);
        controller.requests = waiting;
        for (cid, command) in answered {
            let answer = target.answer(command);
            assert_eq!(answer.status, Status::SUCCESS, "request {cid} of controller {of}");
            let event = u32::try_from(answer.result).unwrap();
            let history = controller.events.get_mut(&event).expect("an event that it sends");
            assert!(history.sent.is_none(), "controller {of} sends {event:#x} again, which is not cleared");
            let last = history.occurred.drain(..).next_back();
            history.sent = Some(last.unwrap_or_else(|| panic!("controller {of} sends {event:#x}: not due")));
        }
        let is_due = |history: &History| history.sent.is_none() && !history.occurred.is_empty();
        let due: Vec<_> = controller.events.iter().filter(|(_, history)| is_due(history)).collect();
        assert!(controller.requests.is_empty() || due.is_empty(), "controller {of} keeps back {due:x?}");
    }

    fn read(&mut self, of: usize, page: usize, offset: u32, length: u32, retain: bool) {
        let lids: &[Lid] = if self.controllers[of].is_discovery() {
            &[Lid::DISCOVERY, Lid::ERROR]
        } else {
            &[Lid::CHANGED_NAMESPACES, Lid::ANA, Lid::SMART, Lid::ERROR]
        };
        let lid = lids[page % lids.len()];
        let whole = self.whole(of, lid, offset == 0);
        let admin = self.controllers[of].association.admin;
        let sqe = read(lid, offset.into(), length, retain);
        let controller = &mut self.controllers[of];
        if offset as usize > whole.len() {
            controller.next_cid += 1;
            let answer = self.target.ask(admin, sqe.with_cid(controller.next_cid));
            assert_eq!(answer.status, Status::INVALID_FIELD.with_dnr());
            controller.errors.push(controller.next_cid);
            return;
        }
        let mut expected = whole[offset as usize..].to_vec();
        expected.resize(length as usize, 0);
        let part = self.target.data(admin, sqe);
        let differs = part.iter().zip(&expected).position(|(is, should)| is != should);
        assert_eq!((differs, part.len()), (None, expected.len()), "controller {of}, {lid} from {offset}");
        if offset == 0 {
            controller.taken.insert(lid.raw(), self.now);
        }
        if retain {
            return;
        }
        controller.clear(lid);
        if lid == Lid::CHANGED_NAMESPACES {
            let taken = controller.taken.get(&lid.raw()).copied().unwrap_or(0);
            let list = &controller.changed_list;
            let entries = if list.len() > CHANGED_MAX { 1 } else { list.len() };
            if (offset + length) as usize >= entries * 4 {
                controller.changed.retain(|(_, at)| *at > taken);
                controller.changed_list.clear();
            }
        }
    }

    /// The page that a controller has now, or of which the host has read the beginning.
    fn whole(&mut self, of: usize, lid: Lid, is_beginning: bool) -> Vec<u8> {
        let seen: Vec<u32> = self.namespaces.keys().copied().filter(|nsid| self.sees(of, *nsid)).collect();
        let controller = &mut self.controllers[of];
        match lid {
            Lid::CHANGED_NAMESPACES => {
                if is_beginning {
                    controller.changed_list = controller.changed.iter().map(|(nsid, _)| *nsid).collect();
                }
                let list = &controller.changed_list;
                let mut page: Vec<u8> = if list.len() > CHANGED_MAX {
                    vec![0xFF; 4]
                } else {
                    list.iter().flat_map(|nsid| nsid.to_le_bytes()).collect()
                };
                page.resize(CHANGED_MAX * 4, 0);
                page
            }
            Lid::ANA => {
                if controller.ana.as_ref() != Some(&seen) {
                    let is_first = controller.ana.replace(seen.clone()).is_none();
                    controller.ana_changes += u64::from(!is_first);
                }
                let mut page = controller.ana_changes.to_le_bytes().to_vec();
                page.extend([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
                page.extend((seen.len() as u32).to_le_bytes());
                page.extend([0; 8]);
                page.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                page.extend(seen.iter().flat_map(|nsid| nsid.to_le_bytes()));
                page
            }
            Lid::SMART => {
                let page = self.target.data(self.oracles[of].admin, read(lid, 0, 512, true));
                let mut health = HealthLog::read_from_bytes(&page).unwrap();
                assert_eq!(health.host_reads.get(), self.read_count.into());
                health.error_entries.set(controller.errors.len() as u128);
                health.as_bytes().to_vec()
            }
            Lid::ERROR => {
                let length = (ERROR_ENTRIES * ERROR_ENTRY_BYTES) as u32;
                let admin = controller.association.admin;
                let page = self.target.data(admin, read(lid, 0, length, true));
                let entries = page
                    .chunks_exact(ERROR_ENTRY_BYTES)
                    .map(|entry| ErrorEntry::read_from_bytes(entry).unwrap());
                let found: Vec<_> = entries.map(|entry| (entry.count.get(), entry.cid.get())).collect();
                let failures = controller.errors.iter().enumerate().rev().take(ERROR_ENTRIES);
                let mut expected: Vec<_> = failures.map(|(at, cid)| (at as u64 + 1, *cid)).collect();
                expected.resize(ERROR_ENTRIES, (0, 0));
                assert_eq!(found, expected);
                page
            }
            _ => {
                if is_beginning || controller.discovery.is_empty() {
                    let page = self.target.data(self.oracles[of].admin, read(lid, 0, 16 * 1024, true));
                    let count = u64::from_le_bytes(page[8..16].try_into().unwrap());
                    controller.discovery = page[..1024 * (1 + count as usize)].to_vec();
                }
                controller.discovery.clone()
            }
        }
    }

    /// Every event that is due is sent once there is a request for it, and every log has what was not read.
    fn finish(mut self) {
        for of in 0..CONTROLLERS.len() {
            (0..3).for_each(|_| self.run(Op::Request(of)));
            for page in 0..4 {
                self.run(Op::Read { of, page, dword: 0, dwords: 4096, retain: false });
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, max_shrink_iters: 1000, ..ProptestConfig::default() })]
    #[test]
    fn events_and_logs_are_those_of_the_model(ops in prop::collection::vec(op(), 1..80)) {
        let mut world = World::new();
        ops.into_iter().for_each(|op| world.run(op));
        world.finish();
    }
}
