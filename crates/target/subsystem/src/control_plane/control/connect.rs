//! Connect: which hosts get a controller or a queue, and which one. wire §6
//!
//! ```text
//!                ┌─▶ refused
//! on_connect ────┼─▶ accepted
//!     │          └─▶ held ──lanes have ended─▶ looked at again
//!     │                └────too late─────────▶ refused, to be tried again
//!     └─host must authenticate─▶ accepted, of no controller ─on_authenticated─▶ as above
//! ```
//! A queue whose host must authenticate is accepted by what the configuration says of the names in its Connect. Whether
//! that controller exists, and the state of it and of its queue ids, decides only after the host has authenticated:
//! anybody can send these names, and must neither learn anything else of their owner nor affect the owner's
//! association.
//! can send these names, and learns nothing else of their owner. It has no effect on that owner's association before.

use std::collections::BTreeMap;
use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;

use linux::random::SplitMix64;
use proto::async_events::AsyncEventQueue;
use proto::controller::Controller;
use proto::keep_alive::KeepAlive;
use reactor::Source;
use security::controller::ControllerSettings;
use security::names::Names;
use security::secure_channel::SecureChannel;
use security::tls::Policy as TlsPolicy;
use wire::fabrics::{ConnectCommand, ConnectData, ConnectResult, InvalidParameter};
use wire::id::Cntlid;
use wire::nqn::{HostId, HostName, Nqn};
use wire::status::{Status, StatusTable};
use wire::text::{Text, quoted};
use zerocopy::FromBytes;

use super::associations::{Associations, LaneUse};
use super::authentications::{Authentications, Beginning, Who};
use super::outputs::{MILLISECOND_NS, Outputs};
use super::pending_connect::PendingConnect;
use super::unauthenticated::{Candidate, Unauthenticated};
use crate::audit::{Event, OfQueue};
use crate::control_plane::admin::AdminOutcome;
use crate::messages::message::{Answer, Channel, Established, Joined, LaneMessage, Message};
use crate::names::lane_counters::LaneTotals;
use crate::names::lane_id::{CommandId, LaneId};
use crate::names::limits::{Limits, VERSION};
use crate::objects::association::Association;
use crate::objects::catalog::Catalog;
use crate::objects::controller::changed_namespaces::ChangedNamespaces;
use crate::objects::controller::error_log::ErrorLog;
use crate::objects::controller::features::Features;
use crate::objects::controller::{
    AnaContent, ControllerKey, ControllerKind, ControllerRecord, Life, Transition,
};
use crate::objects::discovery::Route;
use crate::objects::subsystem::Subsystem;

/// The Connects that wait, and the ids of new controllers.
pub(super) struct Connects {
    limits: Limits,
    entropy: u64,
    pub(super) unauthenticated: Unauthenticated,
    /// Connects that wait for other lanes to end, in order of arrival.
    held: Vec<HeldConnect>,
    /// Where the search for a free controller id continues.
    cntlid_cursors: BTreeMap<ControllerKind, u16>,
}

/// The state that decides Connects, and the destinations of the accepted ones.
pub(super) struct Scene<'a> {
    pub(super) now_ns: u64,
    pub(super) is_stopping: bool,
    pub(super) catalog: &'a Catalog,
    pub(super) associations: &'a mut Associations,
    pub(super) authentications: &'a mut Authentications,
    pub(super) outputs: &'a mut Outputs,
}

/// A Connect that waits.
struct HeldConnect {
    connect: PendingConnect,
    proved: Option<Proved>,
    hostid: HostId,
    until_ns: u64,
}

/// A Connect that was accepted before its host has authenticated, which it has done now.
struct Proved {
    /// The answers that report success to the host.
    answers: Vec<(CommandId, AdminOutcome)>,
    /// The controller that the Connect has promised.
    promised: Option<ControllerKey>,
}

/// A Connect whose fields are valid.
struct Wish {
    command: ConnectCommand,
    host: HostName,
    hostid: HostId,
    subnqn: Nqn,
    cntlid: Cntlid,
}

/// The decision about a Connect.
enum Verdict {
    /// Creates a controller.
    NewController,
    /// Adds an I/O queue to this controller.
    NewQueue(ControllerKey),
    /// Waits.
    Hold(Hold),
}

/// The reason why a Connect waits.
#[derive(Clone, Copy)]
enum Hold {
    /// Lanes of the host's previous associations may still write.
    OldLanes,
    /// A lane has the same queue id.
    Twin,
}

/// The refusal of a Connect: its status, and for invalid parameters which one. wire §6.3
struct Refusal {
    status: Status,
    parameter: InvalidParameter,
    /// For the log.
    why: Option<&'static str>,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, parameter: InvalidParameter::default(), why: None }
    }
}

/// Refuses a parameter with DNR.
fn invalid(parameter: InvalidParameter) -> Refusal {
    Refusal { status: Status::CONNECT_INVALID_PARAMETERS.with_dnr(), parameter, why: None }
}

/// Refuses an unencrypted I/O queue.
fn in_clear() -> Refusal {
    let refusal = Refusal::from(Status::CONNECT_INVALID_HOST.with_dnr());
    Refusal { why: Some(IN_CLEAR), ..refusal }
}

/// Why an I/O queue is refused whose admin queue uses TLS, or is to.
const IN_CLEAR: &str =
    "connect refused: the queue is in cleartext, and the admin queue of its controller is not";

/// Why an I/O queue is refused whose host was another one when it connected its admin queue.
const OTHER_HOSTID: &str =
    "connect refused: the host identifier differs from that of the controller's admin queue";

/// Why a queue is refused where unencrypted connections are only for generating a key of TLS.
const WITHOUT_KEY: &str = "connect refused: the listener has tls = \"concatenated\", and the queue is in cleartext: only the admin \
                           queue of a host with a secret may be";

/// Why a queue ends whose host has not authenticated.
const MADE_ROOM: &str = "made room: too many queues whose hosts have not authenticated";

/// Offsets of the names in Connect's data. wire §6.2
const SUBSYSTEM_NAME: std::ops::Range<usize> = 256..512;
const HOST_NAME: std::ops::Range<usize> = 512..768;

/// Ids of controllers of subsystems without a range of their own.
const CNTLIDS: RangeInclusive<u16> = 1..=Cntlid::MAX.get();

impl Connects {
    pub(super) fn new(limits: Limits, entropy: u64) -> Self {
        Self {
            limits,
            entropy,
            unauthenticated: Unauthenticated::new(&limits),
            held: Vec::new(),
            cntlid_cursors: BTreeMap::new(),
        }
    }

    /// The number of Connects that wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.held.len()
    }

    /// Whether the Connect of this lane waits.
    pub(super) fn is_held(&self, lane: LaneId) -> bool {
        self.held.iter().any(|held| held.connect.command.lane == lane)
    }

    pub(super) fn on_connect(&mut self, scene: &mut Scene<'_>, connect: PendingConnect) {
        if self.is_held(connect.command.lane) {
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            return scene.outputs.answer(connect.command, Err(status));
        }
        self.consider(scene, connect, None, None);
    }

    /// The host of a queue has authenticated: decides whether its Connect still stands, before the host learns of it.
    pub(super) fn on_authenticated(
        &mut self,
        scene: &mut Scene<'_>,
        lane: LaneId,
        answers: Vec<(CommandId, AdminOutcome)>,
    ) {
        if let Some(Candidate { connect, promised }) = self.unauthenticated.prove(lane) {
            self.consider(scene, connect, Some(Proved { answers, promised }), None);
        }
    }

    /// A lane has ended: its Connect waits no more.
    pub(super) fn on_lane_ended(&mut self, lane: LaneId) {
        self.unauthenticated.remove(lane);
        for held in self.held.extract_if(.., |held| held.connect.command.lane == lane) {
            self.unauthenticated.release(held.proved.and_then(|proved| proved.promised));
        }
    }

    /// Decides again about Connects that wait: for a host whose lanes have ended, or for all after time has passed.
    pub(super) fn reconsider(&mut self, scene: &mut Scene<'_>, of_host: Option<HostId>) {
        for held in mem::take(&mut self.held) {
            if of_host.is_some_and(|hostid| hostid != held.hostid) {
                self.held.push(held);
            } else {
                self.consider(scene, held.connect, held.proved, Some(held.until_ns));
            }
        }
    }

    /// Decides about a Connect, which may be held until `until_ns`, or as long as its reason allows.
    fn consider(
        &mut self,
        scene: &mut Scene<'_>,
        connect: PendingConnect,
        proved: Option<Proved>,
        until_ns: Option<u64>,
    ) {
        let wish = match wish(&connect) {
            Ok(wish) => wish,
            Err(refusal) => return self.refuse(scene, &connect, proved, &refusal, None),
        };
        let (kind, range) = match scene.judge_form(&self.limits, &connect, &wish) {
            Ok(kind) => kind,
            Err(refusal) => return self.refuse(scene, &connect, proved, &refusal, Some(&wish)),
        };
        if proved.is_none()
            && let Some(authentication) = scene.owed(&connect, &wish, kind)
        {
            return self.accept_unauthenticated(scene, connect, &wish, (kind, &range), authentication);
        }
        let why = match scene.judge(&self.limits, &connect, &wish, kind) {
            Err(refusal) => return self.refuse(scene, &connect, proved, &refusal, Some(&wish)),
            Ok(Verdict::NewController) => {
                let key = match &proved {
                    Some(Proved { promised, .. }) => *promised,
                    None => self.allocate(scene.associations, kind, &range),
                };
                return match key.filter(|key| scene.associations.get(*key).is_none()) {
                    Some(key) => self.new_controller(scene, connect, proved, &wish, key),
                    None => {
                        let busy = Status::CONNECT_CONTROLLER_BUSY.into();
                        self.refuse(scene, &connect, proved, &busy, Some(&wish));
                    }
                };
            }
            Ok(Verdict::NewQueue(key)) => return scene.new_queue(connect, proved, &wish, key),
            Ok(Verdict::Hold(why)) => why,
        };
        let (wait_ms, status) = match why {
            Hold::OldLanes => (self.limits.old_lane_wait_ms, Status::CONNECT_CONTROLLER_BUSY),
            Hold::Twin => (self.limits.twin_wait_ms, Status::COMMAND_SEQUENCE_ERROR),
        };
        let longest_ns = scene.now_ns.saturating_add(wait_ms.saturating_mul(MILLISECOND_NS));
        let until_ns = until_ns.unwrap_or(longest_ns);
        if scene.now_ns >= until_ns {
            return self.refuse(scene, &connect, proved, &status.into(), Some(&wish));
        }
        scene.outputs.wake_at(until_ns);
        self.held.push(HeldConnect { connect, proved, hostid: wish.hostid, until_ns });
    }

    fn refuse(
        &mut self,
        scene: &mut Scene<'_>,
        connect: &PendingConnect,
        proved: Option<Proved>,
        refusal: &Refusal,
        wish: Option<&Wish>,
    ) {
        self.unauthenticated.release(proved.as_ref().and_then(|proved| proved.promised));
        scene.refuse(connect, proved, refusal, wish);
    }

    /// Accepts a queue that is to belong to a controller once its host has authenticated.
    fn accept_unauthenticated(
        &mut self,
        scene: &mut Scene<'_>,
        connect: PendingConnect,
        wish: &Wish,
        (kind, range): (ControllerKind, &RangeInclusive<u16>),
        (settings, former_end_ns): (ControllerSettings, Option<u64>),
    ) {
        let is_admin = wish.command.qid.is_admin();
        if let Err(refusal) = scene.judge_unsecured(&connect, wish, kind) {
            return scene.refuse(&connect, None, &refusal, Some(wish));
        }
        while let Some(oldest) = self.unauthenticated.next_to_leave(Source::from(connect.peer)) {
            self.dismiss(scene, oldest);
        }
        let promised = if is_admin { self.promise(scene.associations, kind, range) } else { None };
        if is_admin && promised.is_none() {
            return scene.refuse(&connect, None, &Status::CONNECT_CONTROLLER_BUSY.into(), Some(wish));
        }
        let cntlid = promised.map_or(wish.cntlid, |key| key.cntlid);
        scene.begin_authentication(&connect, wish, cntlid, (settings, former_end_ns), true);
        scene.complete(&connect, wish, cntlid, None);
        self.unauthenticated.add(Candidate { connect, promised });
    }

    /// Ends a queue whose host has not authenticated, so that there is room for another.
    fn dismiss(&mut self, scene: &mut Scene<'_>, lane: LaneId) {
        self.unauthenticated.remove(lane);
        scene.authentications.give_up(scene.now_ns, lane, MADE_ROOM, scene.outputs);
        scene.outputs.end_lane(lane);
    }

    /// An id for a controller of a host that has not authenticated. If all are in use or promised, the one that is promised to
    /// fewest is promised once more.
    fn promise(
        &mut self,
        associations: &Associations,
        kind: ControllerKind,
        range: &RangeInclusive<u16>,
    ) -> Option<ControllerKey> {
        self.allocate(associations, kind, range).or_else(|| {
            let is_usable = |(key, _): &(ControllerKey, usize)| {
                key.kind == kind && range.contains(&key.cntlid.get()) && associations.get(*key).is_none()
            };
            let promises = self.unauthenticated.promises().filter(is_usable);
            promises.min_by_key(|(_, count)| *count).map(|(key, _)| key)
        })
    }

    /// A free id of the range, searched from the one after the last given, so that no id is reused soon. wire §28.14
    #[expect(clippy::arithmetic_side_effects, clippy::expect_used, reason = "within the range of 16 bits")]
    fn allocate(
        &mut self,
        associations: &Associations,
        kind: ControllerKind,
        range: &RangeInclusive<u16>,
    ) -> Option<ControllerKey> {
        let (first, last) = (*range.start(), *range.end());
        let count = u64::from(last.checked_sub(first)?) + 1;
        let begin = u64::from(first) + SplitMix64::nth(self.entropy ^ seed_of(kind), 1) % count;
        let begin = u16::try_from(begin).expect("within the range");
        let cursor = *self.cntlid_cursors.get(&kind).unwrap_or(&begin);
        let cursor = if range.contains(&cursor) { cursor } else { first };
        let mut candidates = (cursor..=last).chain(first..cursor);
        let is_free = |id: &u16| {
            let key = ControllerKey { kind, cntlid: Cntlid::new(*id) };
            associations.get(key).is_none() && !self.unauthenticated.is_promised(key)
        };
        let id = candidates.find(is_free)?;
        self.cntlid_cursors.insert(kind, if id == last { first } else { id + 1 });
        Some(ControllerKey { kind, cntlid: Cntlid::new(id) })
    }

    fn new_controller(
        &mut self,
        scene: &mut Scene<'_>,
        connect: PendingConnect,
        proved: Option<Proved>,
        wish: &Wish,
        key: ControllerKey,
    ) {
        let now_ns = scene.now_ns;
        let subsystem = scene.catalog.subsystem_of(key.kind);
        let nqn = subsystem.map(|subsystem| subsystem.nqn.clone());
        let association = Arc::new(Association::new(wish.host.clone(), nqn));
        association.on_sign(now_ns);
        for namespace in subsystem.into_iter().flat_map(|subsystem| subsystem.namespaces.values()) {
            association.flush_epochs.begin(namespace.id, namespace.store.generation());
        }
        let record = ControllerRecord {
            key,
            subnqn: wish.subnqn.clone(),
            host: wish.host.clone(),
            hostid: wish.hostid,
            peer: connect.peer,
            uses_tls: !connect.channel.is_clear(),
            route: Route { listener: connect.listener, local: connect.local },
            life: Life::Live,
            machine: match key.kind {
                ControllerKind::Io(_) => Controller::new(self.limits.cap(), VERSION),
                ControllerKind::Discovery => Controller::without_io_queues(self.limits.cap(), VERSION),
            },
            transition: Transition::None,
            keep_alive: KeepAlive::new(wish.command.kato_ms, now_ns),
            events: AsyncEventQueue::default(),
            aborts: Vec::new(),
            features: Features::new(self.limits.io_queue_count_max, now_ns),
            errors: ErrorLog::new(self.limits.error_entry_count_max),
            changed: ChangedNamespaces::default(),
            ana: AnaContent::default(),
            discovery_page: None,
            admin: Some(connect.command.lane),
            io: BTreeMap::new(),
            in_capsule_bytes: self
                .limits
                .in_capsule_bytes_of(subsystem.is_some_and(Subsystem::has_key_value_only)),
            association,
            counters: BTreeMap::new(),
            past: LaneTotals::default(),
        };
        tracing::info!(
            peer = connect.peer.map(tracing::field::display),
            cntlid = key.cntlid.get(),
            host = %quoted(&record.host),
            subsystem = %quoted(&record.subnqn),
            keep_alive_ms = record.keep_alive.timeout_ms(),
            "host connected"
        );
        scene.associations.add(record, scene.outputs);
        self.unauthenticated.release(proved.as_ref().and_then(|proved| proved.promised));
        scene.accept(connect, proved, wish, key);
    }
}

impl Scene<'_> {
    /// Judges a Connect by what the configuration says, and returns the kind of the controller and the ids for new ones.
    fn judge_form(
        &self,
        limits: &Limits,
        connect: &PendingConnect,
        wish: &Wish,
    ) -> Result<(ControllerKind, RangeInclusive<u16>), Refusal> {
        // A target that is stopping may be restarted soon.
        if self.is_stopping {
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        let (kind, range) = self.kind_of(connect, wish)?;
        if connect.channel == Channel::ClearForKey {
            self.judge_clear(wish, kind)?;
        }
        let qid = wish.command.qid;
        // 0-based: 0 in the field, refused for every queue, is one entry.
        let entries_min = if qid.is_admin() { limits.admin_queue_entries_min.into() } else { 2 };
        if !(entries_min..=limits.entries_max(qid.is_admin())).contains(&wish.command.queue_entries) {
            return Err(invalid(InvalidParameter::SQSIZE));
        }
        if qid.is_admin() {
            // Controllers are dynamic: a host cannot request one by its id. wire §6.2
            if wish.cntlid != Cntlid::DYNAMIC {
                return Err(invalid(InvalidParameter::CNTLID));
            }
            return Ok((kind, range));
        }
        if kind == ControllerKind::Discovery || qid.get() > limits.io_queue_count_max {
            return Err(invalid(InvalidParameter::QID));
        }
        if wish.cntlid > Cntlid::MAX {
            return Err(invalid(InvalidParameter::CNTLID));
        }
        Ok((kind, range))
    }

    /// Whether a host that has not authenticated may connect an unencrypted I/O queue: not if all its admin queues use
    /// TLS, or are to. Which of its controllers the queue names makes no difference.
    fn judge_unsecured(
        &self,
        connect: &PendingConnect,
        wish: &Wish,
        kind: ControllerKind,
    ) -> Result<(), Refusal> {
        if wish.command.qid.is_admin() || !connect.channel.is_clear() {
            return Ok(());
        }
        let live = self.associations.of_kind(kind).filter(|record| record.life == Life::Live);
        let mut of_host = live.filter(|record| record.belongs_to(&wish.host, wish.hostid)).peekable();
        if of_host.peek().is_some() && of_host.all(|record| self.is_secured(record)) {
            return Err(in_clear());
        }
        Ok(())
    }

    /// Whether the admin queue of a controller uses TLS, or has generated the key with which its host is to connect again.
    fn is_secured(&self, record: &ControllerRecord) -> bool {
        record.uses_tls || record.admin.is_some_and(|lane| self.authentications.has_generated(lane))
    }

    /// Judges a Connect by the controllers that there are.
    fn judge(
        &self,
        limits: &Limits,
        connect: &PendingConnect,
        wish: &Wish,
        kind: ControllerKind,
    ) -> Result<Verdict, Refusal> {
        if wish.command.qid.is_admin() {
            self.judge_admin(limits, wish, kind)
        } else {
            self.judge_io(connect, wish, kind)
        }
    }

    /// The kind of controller that the host requests, if it may have one, and the ids available.
    fn kind_of(
        &self,
        connect: &PendingConnect,
        wish: &Wish,
    ) -> Result<(ControllerKind, RangeInclusive<u16>), Refusal> {
        if self.catalog.removed_listeners.contains_key(&connect.listener) {
            return Err(invalid(InvalidParameter::SUBNQN));
        }
        let listener = self.catalog.discovery.listeners.get(&connect.listener);
        if self.catalog.discovery.is_named(&wish.subnqn) {
            if listener.is_some_and(|listener| !listener.serves_discovery) {
                return Err(invalid(InvalidParameter::SUBNQN));
            }
            return Ok((ControllerKind::Discovery, CNTLIDS));
        }
        let known = self.catalog.named(&wish.subnqn);
        let known = known.filter(|_| listener.is_none_or(|listener| listener.serves_subsystems));
        let (id, subsystem) = known.ok_or_else(|| invalid(InvalidParameter::SUBNQN))?;
        if !subsystem.access.allows(&wish.host) {
            return Err(Status::CONNECT_INVALID_HOST.with_dnr().into());
        }
        Ok((ControllerKind::Io(id), subsystem.cntlids.clone()))
    }

    /// Whether a queue may connect without TLS so that its authentication generates a key: an admin queue of a host
    /// that authenticates. wire §22.1
    fn judge_clear(&self, wish: &Wish, kind: ControllerKind) -> Result<(), Refusal> {
        let subsystem = self.catalog.subsystem_of(kind);
        let authenticates =
            subsystem.is_some_and(|subsystem| subsystem.authentication.of(&wish.host).is_some());
        if wish.command.qid.is_admin() && authenticates {
            return Ok(());
        }
        let refusal = Refusal::from(Status::CONNECT_INVALID_HOST.with_dnr());
        Err(Refusal { why: Some(WITHOUT_KEY), ..refusal })
    }

    fn judge_admin(&self, limits: &Limits, wish: &Wish, kind: ControllerKind) -> Result<Verdict, Refusal> {
        let of_host = || self.associations.all().filter(|record| record.belongs_to(&wish.host, wish.hostid));
        let is_ending = |record: &ControllerRecord| record.life == Life::Ending && record.key.kind == kind;
        if kind != ControllerKind::Discovery && of_host().any(is_ending) {
            return Ok(Verdict::Hold(Hold::OldLanes));
        }
        let is_full = self.associations.all().len() >= limits.controller_count_max
            || of_host().count() >= limits.controller_count_per_host_max;
        if is_full {
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        Ok(Verdict::NewController)
    }

    fn judge_io(
        &self,
        connect: &PendingConnect,
        wish: &Wish,
        kind: ControllerKind,
    ) -> Result<Verdict, Refusal> {
        let key = ControllerKey { kind, cntlid: wish.cntlid };
        let Some(record) = self.associations.get(key).filter(|record| record.life == Life::Live) else {
            // Its association may just have expired: without DNR the host starts over instead of giving up. wire §28.29
            let status = Status::CONNECT_INVALID_PARAMETERS;
            return Err(Refusal { status, parameter: InvalidParameter::CNTLID, why: None });
        };
        if record.host != wish.host {
            return Err(invalid(InvalidParameter::CNTLID));
        }
        if record.hostid != wish.hostid {
            return Err(Refusal { why: Some(OTHER_HOSTID), ..invalid(InvalidParameter::HOSTID) });
        }
        if self.is_secured(record) && connect.channel.is_clear() {
            return Err(in_clear());
        }
        if !record.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        if record.io.contains_key(&wish.command.qid) {
            return Ok(Verdict::Hold(Hold::Twin));
        }
        Ok(Verdict::NewQueue(key))
    }

    fn new_queue(
        &mut self,
        connect: PendingConnect,
        proved: Option<Proved>,
        wish: &Wish,
        key: ControllerKey,
    ) {
        let (lane, qid) = (connect.command.lane, wish.command.qid);
        let Some(record) = self.associations.get_mut(key) else { unreachable!("it was just found") };
        record.io.insert(qid, lane);
        tracing::debug!(cntlid = key.cntlid.get(), qid = qid.get(), ?lane, "queue connected");
        self.accept(connect, proved, wish, key);
    }

    /// Makes a queue one of this controller: completes its Connect, or the authentication that came after.
    fn accept(&mut self, connect: PendingConnect, proved: Option<Proved>, wish: &Wish, key: ControllerKey) {
        let lane = connect.command.lane;
        let doorbell = self.catalog.doorbell_of(key.kind, connect.listener);
        let Some(record) = self.associations.get(key) else { unreachable!("it was just found") };
        let joined = Joined {
            doorbell,
            in_capsule_bytes: record.in_capsule_bytes,
            association: Arc::clone(&record.association),
            subsystem: match key.kind {
                ControllerKind::Io(subsystem) => Some(subsystem),
                ControllerKind::Discovery => None,
            },
        };
        match proved {
            Some(Proved { answers, .. }) => {
                joined.association.on_sign(self.now_ns);
                // Before the answers: the host's next command may follow them at once.
                let authenticated = LaneMessage::Authenticated(lane, Box::new(joined));
                self.outputs.post(lane.reactor, Message::Lane(authenticated));
                for (command, outcome) in answers {
                    self.outputs.answer(command, outcome);
                }
            }
            None => {
                // Only a host that has authenticated has a generated key: it owes nothing, and may authenticate again.
                if let Some(authentication) = self.authentication(&connect, wish, key.kind) {
                    self.begin_authentication(&connect, wish, key.cntlid, authentication, false);
                }
                self.complete(&connect, wish, key.cntlid, Some(joined));
            }
        }
        let lane_use =
            LaneUse { controller: key, qid: wish.command.qid, listener: connect.listener, doorbell };
        self.associations.add_lane(lane, lane_use, connect.counters);
    }

    /// Completes a Connect with success. Without `joined` the host must authenticate.
    fn complete(&mut self, connect: &PendingConnect, wish: &Wish, cntlid: Cntlid, joined: Option<Joined>) {
        let must_authenticate = joined.is_none();
        let result = ConnectResult::default()
            .with_cntlid(cntlid.get())
            .with_authentication_required(must_authenticate)
            .with_secure_channel_required(connect.channel == Channel::ClearForKey);
        self.outputs.audit.record(|| {
            let qid = wish.command.qid.get();
            Event::Connected {
                queue: OfQueue::new(connect.peer, &wish.host, wish.hostid, &wish.subnqn, (cntlid, qid)),
                listener: connect.local,
                tls: connect.tls,
                must_authenticate,
            }
        });
        let established = Established {
            qid: wish.command.qid,
            entries: u16::try_from(wish.command.queue_entries).unwrap_or(u16::MAX),
            is_flow_control_disabled: wish.command.attributes.disable_sq_flow_control(),
            host: wish.host.to_string(),
            joined,
        };
        self.outputs.complete(Answer {
            command: connect.command,
            status: Status::SUCCESS,
            result: result.bits().into(),
            data: None,
            established: Some(established),
        });
    }

    fn begin_authentication(
        &mut self,
        connect: &PendingConnect,
        wish: &Wish,
        cntlid: Cntlid,
        (settings, former_end_ns): (ControllerSettings, Option<u64>),
        is_owed: bool,
    ) {
        let who = Who {
            peer: connect.peer,
            host: wish.host.clone(),
            hostid: wish.hostid,
            subsystem: wish.subnqn.clone(),
            cntlid,
            qid: wish.command.qid,
        };
        let key_in_use = match &connect.channel {
            Channel::GeneratedKey(identity) if !is_owed => Some(identity.to_string()),
            _ => None,
        };
        let must_generate_key = connect.channel == Channel::ClearForKey;
        let beginning = Beginning { settings, who, key_in_use, must_generate_key, former_end_ns };
        self.authentications.begin(self.now_ns, connect.command.lane, beginning, self.outputs);
    }

    /// The settings by which the host of a new queue must authenticate before anything else, if it must.
    fn owed(
        &self,
        connect: &PendingConnect,
        wish: &Wish,
        kind: ControllerKind,
    ) -> Option<(ControllerSettings, Option<u64>)> {
        let has_authenticated = matches!(connect.channel, Channel::GeneratedKey(_));
        self.authentication(connect, wish, kind).filter(|_| !has_authenticated)
    }

    /// The settings by which the host of a new queue may authenticate, if it has a secret, and when former secrets among
    /// them are accepted no more, ns.
    fn authentication(
        &self,
        connect: &PendingConnect,
        wish: &Wish,
        kind: ControllerKind,
    ) -> Option<(ControllerSettings, Option<u64>)> {
        let subsystem = self.catalog.subsystem_of(kind)?;
        let names = Names { host: wish.host.clone(), subsystem: wish.subnqn.clone() };
        subsystem.authentication_at(self.now_ns, names, self.secure_channel(connect, &wish.command))
    }

    /// The secure channel concatenation that a host may ask for on a new queue: on admin queues only, without TLS where
    /// the listener speaks TLS as well, and with TLS if its key was generated, too. wire §22.3
    fn secure_channel(&self, connect: &PendingConnect, command: &ConnectCommand) -> SecureChannel {
        let listener = self.catalog.discovery.listeners.get(&connect.listener);
        let speaks_tls = listener.is_some_and(|listener| listener.tls != TlsPolicy::Off);
        match connect.channel {
            _ if !command.qid.is_admin() => SecureChannel::None,
            Channel::ClearForKey => SecureChannel::NewTlsPsk,
            Channel::Clear if speaks_tls => SecureChannel::NewTlsPsk,
            Channel::GeneratedKey(_) => SecureChannel::ReplaceTlsPsk,
            Channel::Clear | Channel::ConfiguredKey => SecureChannel::None,
        }
    }

    /// Refuses a Connect. One that was accepted before its host has authenticated ends, and the command by which the host has
    /// authenticated fails in its place.
    fn refuse(
        &mut self,
        connect: &PendingConnect,
        proved: Option<Proved>,
        refusal: &Refusal,
        wish: Option<&Wish>,
    ) {
        let status = refusal.status;
        self.outputs.count_refused_connect(status);
        let reason = status.name_in(StatusTable::Fabrics);
        let parameter = refusal.parameter.name();
        let peer = connect.peer.map(tracing::field::display);
        let name = |range| connect.data.get(range).map(|field| Text::of(field).as_bytes());
        let (host_name, subsystem_name) = (name(HOST_NAME), name(SUBSYSTEM_NAME));
        self.outputs.audit.record(|| {
            let text = |name: Option<&[u8]>| name.map(|name| String::from_utf8_lossy(name).into_owned());
            Event::ConnectRefused {
                peer: connect.peer,
                listener: connect.local,
                host: text(host_name),
                host_id: wish.map(|wish| wish.hostid.to_string()),
                subsystem: text(subsystem_name),
                queue: wish.map(|wish| wish.command.qid.get()),
                tls: connect.tls,
                status: reason.map_or_else(|| status.to_string(), str::to_owned),
                parameter,
            }
        });
        match wish {
            Some(Wish { host, hostid, subnqn, command, .. }) => {
                let (qid, shown, subsystem) = (command.qid.get(), quoted(host), quoted(subnqn));
                // No access list can name a host without a name; its user finds the reason in the log.
                let why = if let Some(why) = refusal.why {
                    why
                } else if host.is_empty() && status.is(Status::CONNECT_INVALID_HOST) {
                    "connect refused: the host NQN is empty, and hosts= lists names"
                } else {
                    "connect refused"
                };
                tracing::info!(peer, host = %shown, %hostid, %subsystem, qid, reason, parameter, "{why}");
            }
            None => {
                let host = host_name.map(|bytes| tracing::field::display(quoted(bytes)));
                let subsystem = subsystem_name.map(|bytes| tracing::field::display(quoted(bytes)));
                tracing::info!(peer, host, subsystem, reason, parameter, "connect refused: malformed");
            }
        }
        if let Some(Proved { answers, .. }) = proved {
            answers.into_iter().for_each(|(command, _)| self.outputs.answer(command, Err(status)));
            return self.outputs.end_lane(connect.command.lane);
        }
        self.outputs.complete(Answer {
            command: connect.command,
            status,
            result: refusal.parameter.bits().into(),
            data: None,
            established: None,
        });
    }
}

/// Parses a Connect.
fn wish(connect: &PendingConnect) -> Result<Wish, Refusal> {
    let data = ConnectData::read_from_bytes(&connect.data)
        .map_err(|_| Refusal::from(Status::DATA_SGL_LENGTH_INVALID.with_dnr()))?;
    let command = ConnectCommand::from_sqe(&connect.sqe);
    if command.recfmt != 0 {
        return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr().into());
    }
    // Hosts use names of any form, or none; subsystem names are checked. wire §21
    let subnqn = data.subsystem().ok().filter(|nqn| nqn.as_str().starts_with("nqn."));
    let subnqn = subnqn.ok_or_else(|| invalid(InvalidParameter::SUBNQN))?;
    let host = data.host().map_err(|_| invalid(InvalidParameter::HOSTNQN))?;
    if data.hostid.is_zero() {
        return Err(invalid(InvalidParameter::HOSTID));
    }
    Ok(Wish { command, host, hostid: data.hostid, subnqn, cntlid: data.cntlid() })
}

fn seed_of(kind: ControllerKind) -> u64 {
    match kind {
        ControllerKind::Io(subsystem) => u64::from(subsystem.0) + 1,
        ControllerKind::Discovery => 0,
    }
}
