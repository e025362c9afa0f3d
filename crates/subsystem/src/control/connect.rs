//! Connect: which hosts get a controller or a queue, and which one. wire §6
//!
//! ```text
//!                ┌─▶ refused
//! on_connect ────┼─▶ accepted
//!                └─▶ held ──lanes have ended─▶ looked at again
//!                      └────too late─────────▶ refused, to be tried again
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use proto::async_events::AsyncEventQueue;
use proto::controller::Controller;
use proto::doorbell::Policy;
use proto::keep_alive::KeepAlive;
use reactor::ListenerTag;
use reactor::random::SplitMix64;
use security::controller::ControllerSettings;
use security::secure_channel::SecureChannel;
use security::tls::Policy as TlsPolicy;
use wire::fabrics::{ConnectCommand, ConnectData, ConnectResult, InvalidParameter};
use wire::id::Cntlid;
use wire::nqn::{HostId, HostName, Nqn};
use wire::sqe::Sqe;
use wire::status::{Status, StatusTable};
use wire::text::{Text, quoted};
use zerocopy::FromBytes;

use super::associations::{Associations, LaneUse};
use super::authentications::{Authentications, Beginning, Who};
use super::outputs::{MILLISECOND_NS, Outputs};
use crate::association::Association;
use crate::audit::{Event, TlsInUse};
use crate::catalog::Catalog;
use crate::controller::error_log::ErrorLog;
use crate::controller::features::Features;
use crate::controller::{ControllerKey, ControllerKind, ControllerRecord, Life, Transition};
use crate::discovery::Route;
use crate::lane_counters::{LaneCounters, LaneTotals};
use crate::lane_id::{CommandId, LaneId};
use crate::limits::{Limits, VERSION};
use crate::message::{Answer, Channel, Established};

/// The Connects that wait, and the ids of new controllers.
pub(super) struct Connects {
    limits: Limits,
    entropy: u64,
    /// Connects that wait for other lanes to end, in order of arrival.
    held: Vec<HeldConnect>,
    /// Where the search for a free controller id continues.
    cntlid_cursors: BTreeMap<ControllerKind, u16>,
}

/// What Connects are decided by, and where the accepted ones go.
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
    hostid: HostId,
    until_ns: u64,
}

/// A Connect as received.
pub(super) struct PendingConnect {
    pub(super) command: CommandId,
    pub(super) sqe: Sqe,
    pub(super) data: Box<[u8]>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) listener: ListenerTag,
    pub(super) channel: Channel,
    pub(super) local: Option<SocketAddr>,
    pub(super) tls: Option<TlsInUse>,
    pub(super) counters: Arc<LaneCounters>,
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
    /// Creates this controller.
    NewController(ControllerKind, RangeInclusive<u16>),
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

/// Why an I/O queue is refused whose admin queue uses TLS, or is to.
const IN_CLEAR: &str = "connect refused: the queue is in clear, and the admin queue of its controller is not";

/// Why an I/O queue is refused whose host was another one when it connected its admin queue.
const OTHER_HOSTID: &str =
    "connect refused: the host identifier differs from that of the controller's admin queue";

/// Why a queue is refused where a connection in clear is for generating a key of TLS.
const WITHOUT_KEY: &str = "connect refused: the listener has tls = \"concatenated\", and the queue is in clear: only the admin \
                           queue of a host with a secret may be";

/// Offsets of the names in Connect's data. wire §6.2
const SUBSYSTEM_NAME: std::ops::Range<usize> = 256..512;
const HOST_NAME: std::ops::Range<usize> = 512..768;

/// Ids of controllers of subsystems without a range of their own.
const CNTLIDS: RangeInclusive<u16> = 1..=Cntlid::MAX.get();

impl Connects {
    pub(super) fn new(limits: Limits, entropy: u64) -> Self {
        Self { limits, entropy, held: Vec::new(), cntlid_cursors: BTreeMap::new() }
    }

    /// The number of Connects that wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.held.len()
    }

    pub(super) fn on_connect(&mut self, scene: &mut Scene<'_>, connect: PendingConnect) {
        if self.held.iter().any(|held| held.connect.command.lane == connect.command.lane) {
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            return scene.outputs.answer(connect.command, Err(status));
        }
        self.consider(scene, connect, None);
    }

    /// A lane has ended: its Connect waits no more.
    pub(super) fn on_lane_ended(&mut self, lane: LaneId) {
        self.held.retain(|held| held.connect.command.lane != lane);
    }

    /// Decides again about Connects that wait: for a host whose lanes have ended, or for all after time has passed.
    pub(super) fn reconsider(&mut self, scene: &mut Scene<'_>, of_host: Option<HostId>) {
        for held in mem::take(&mut self.held) {
            if of_host.is_some_and(|hostid| hostid != held.hostid) {
                self.held.push(held);
            } else {
                self.consider(scene, held.connect, Some(held.until_ns));
            }
        }
    }

    /// Decides about a Connect, which may be held until `until_ns`, or as long as its reason allows.
    fn consider(&mut self, scene: &mut Scene<'_>, connect: PendingConnect, until_ns: Option<u64>) {
        let wish = match wish(&connect) {
            Ok(wish) => wish,
            Err(refusal) => return scene.refuse(&connect, &refusal, None),
        };
        let why = match scene.judge(&self.limits, &connect, &wish) {
            Err(refusal) => return scene.refuse(&connect, &refusal, Some(&wish)),
            Ok(Verdict::NewController(kind, range)) => {
                return match self.allocate(scene.associations, kind, &range) {
                    Some(cntlid) => self.new_controller(scene, connect, wish, ControllerKey { kind, cntlid }),
                    None => scene.refuse(&connect, &Status::CONNECT_CONTROLLER_BUSY.into(), Some(&wish)),
                };
            }
            Ok(Verdict::NewQueue(key)) => return scene.new_queue(connect, &wish, key),
            Ok(Verdict::Hold(why)) => why,
        };
        let (wait_ms, status) = match why {
            Hold::OldLanes => (self.limits.old_lane_wait_ms, Status::CONNECT_CONTROLLER_BUSY),
            Hold::Twin => (self.limits.twin_wait_ms, Status::COMMAND_SEQUENCE_ERROR),
        };
        let longest_ns = scene.now_ns.saturating_add(wait_ms.saturating_mul(MILLISECOND_NS));
        let until_ns = until_ns.unwrap_or(longest_ns);
        if scene.now_ns >= until_ns {
            return scene.refuse(&connect, &status.into(), Some(&wish));
        }
        scene.outputs.wake_at(until_ns);
        self.held.push(HeldConnect { connect, hostid: wish.hostid, until_ns });
    }

    /// A free id of the range, searched from the one after the last given, so that no id is reused soon. wire §28.14
    #[expect(clippy::arithmetic_side_effects, clippy::expect_used, reason = "within the range of 16 bits")]
    fn allocate(
        &mut self,
        associations: &Associations,
        kind: ControllerKind,
        range: &RangeInclusive<u16>,
    ) -> Option<Cntlid> {
        let (first, last) = (*range.start(), *range.end());
        let count = u64::from(last.checked_sub(first)?) + 1;
        let begin = u64::from(first) + SplitMix64::nth(self.entropy ^ seed_of(kind), 1) % count;
        let begin = u16::try_from(begin).expect("within the range");
        let cursor = *self.cntlid_cursors.get(&kind).unwrap_or(&begin);
        let cursor = if range.contains(&cursor) { cursor } else { first };
        let mut candidates = (cursor..=last).chain(first..cursor);
        let is_free = |id: &u16| associations.get(ControllerKey { kind, cntlid: Cntlid::new(*id) }).is_none();
        let id = candidates.find(is_free)?;
        self.cntlid_cursors.insert(kind, if id == last { first } else { id + 1 });
        Some(Cntlid::new(id))
    }

    fn new_controller(&self, scene: &mut Scene<'_>, connect: PendingConnect, wish: Wish, key: ControllerKey) {
        let now_ns = scene.now_ns;
        let association = Arc::new(Association::new(wish.host.clone()));
        association.on_sign(now_ns);
        let subsystem = scene.catalog.subsystem_of(key.kind);
        for namespace in subsystem.into_iter().flat_map(|subsystem| subsystem.namespaces.values()) {
            association.flush_epochs.begin(namespace.id, namespace.store.generation());
        }
        let record = ControllerRecord {
            key,
            subnqn: wish.subnqn,
            host: wish.host,
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
            changed: BTreeSet::new(),
            discovery_page: None,
            admin: Some(connect.command.lane),
            io: BTreeMap::new(),
            in_capsule_bytes: self.limits.in_capsule_bytes_of(subsystem),
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
        scene.accept(connect, &wish.command, key);
    }
}

impl Scene<'_> {
    fn judge(&self, limits: &Limits, connect: &PendingConnect, wish: &Wish) -> Result<Verdict, Refusal> {
        // A target that is stopping may be restarted soon.
        if self.is_stopping {
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        let (kind, range) = self.kind_of(connect, wish)?;
        if connect.channel == Channel::ClearForKey {
            self.judge_clear(wish, kind)?;
        }
        let is_admin = wish.command.qid.is_admin();
        // 0-based: 0 in the field, refused for every queue, is one entry.
        let entries_min = if is_admin { limits.admin_queue_entries_min.into() } else { 2 };
        if !(entries_min..=limits.entries_max(is_admin)).contains(&wish.command.queue_entries) {
            return Err(invalid(InvalidParameter::SQSIZE));
        }
        if is_admin {
            self.judge_admin(limits, wish, kind, range)
        } else {
            self.judge_io(limits, connect, wish, kind)
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

    /// Whether a queue may connect in clear so that its authentication generates a key: an admin queue of a host that
    /// authenticates. wire §22.1
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

    fn judge_admin(
        &self,
        limits: &Limits,
        wish: &Wish,
        kind: ControllerKind,
        range: RangeInclusive<u16>,
    ) -> Result<Verdict, Refusal> {
        // Controllers are dynamic: a host cannot request one by its id. wire §6.2
        if wish.cntlid != Cntlid::DYNAMIC {
            return Err(invalid(InvalidParameter::CNTLID));
        }
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
        Ok(Verdict::NewController(kind, range))
    }

    fn judge_io(
        &self,
        limits: &Limits,
        connect: &PendingConnect,
        wish: &Wish,
        kind: ControllerKind,
    ) -> Result<Verdict, Refusal> {
        let is_discovery = kind == ControllerKind::Discovery;
        if is_discovery || wish.command.qid.get() > limits.io_queue_count_max {
            return Err(invalid(InvalidParameter::QID));
        }
        let key = ControllerKey { kind, cntlid: wish.cntlid };
        if wish.cntlid > Cntlid::MAX {
            return Err(invalid(InvalidParameter::CNTLID));
        }
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
        // The admin queue of a secure channel that is yet to be set up is in clear itself.
        let is_secured =
            record.uses_tls || record.admin.is_some_and(|lane| self.authentications.has_generated(lane));
        if is_secured && connect.channel.is_clear() {
            let refusal = Refusal::from(Status::CONNECT_INVALID_HOST.with_dnr());
            return Err(Refusal { why: Some(IN_CLEAR), ..refusal });
        }
        if !record.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        if record.io.contains_key(&wish.command.qid) {
            return Ok(Verdict::Hold(Hold::Twin));
        }
        Ok(Verdict::NewQueue(key))
    }

    fn new_queue(&mut self, connect: PendingConnect, wish: &Wish, key: ControllerKey) {
        let (lane, qid) = (connect.command.lane, wish.command.qid);
        let Some(record) = self.associations.get_mut(key) else { unreachable!("it was just found") };
        record.io.insert(qid, lane);
        tracing::debug!(cntlid = key.cntlid.get(), qid = qid.get(), ?lane, "queue connected");
        self.accept(connect, &wish.command, key);
    }

    /// Completes a Connect with a queue of this controller.
    fn accept(&mut self, connect: PendingConnect, command: &ConnectCommand, key: ControllerKey) {
        let doorbell = self.catalog.doorbell_of(key.kind, connect.listener);
        let Some(record) = self.associations.get(key) else { unreachable!("it was just found") };
        let authentication = self.authentication(record, &connect, command);
        // Only a host that has authenticated has a generated key.
        let is_owed = authentication.is_some() && !matches!(connect.channel, Channel::GeneratedKey(_));
        let mut established = established(command, record, doorbell);
        established.owes_authentication = is_owed;
        let must_generate_key = connect.channel == Channel::ClearForKey;
        let result = ConnectResult::default()
            .with_cntlid(key.cntlid.get())
            .with_authentication_required(is_owed)
            .with_secure_channel_required(must_generate_key);
        let of_queue = || record.of_queue(connect.peer, command.qid);
        self.outputs.audit.record(|| Event::Connected {
            queue: of_queue(),
            listener: connect.local,
            tls: connect.tls,
            must_authenticate: is_owed,
        });
        if let Some((settings, former_end_ns)) = authentication {
            let who = Who {
                peer: connect.peer,
                host: record.host.clone(),
                hostid: record.hostid,
                subsystem: record.subnqn.clone(),
                cntlid: key.cntlid,
                qid: command.qid,
            };
            let key_in_use = match &connect.channel {
                Channel::GeneratedKey(identity) => Some(identity.to_string()),
                _ => None,
            };
            let beginning = Beginning { settings, who, key_in_use, must_generate_key, former_end_ns };
            self.authentications.begin(self.now_ns, connect.command.lane, beginning, self.outputs);
        }
        let lane_use = LaneUse { controller: key, qid: command.qid, listener: connect.listener, doorbell };
        self.associations.add_lane(connect.command.lane, lane_use, connect.counters);
        self.outputs.complete(Answer {
            command: connect.command,
            status: Status::SUCCESS,
            result: result.bits().into(),
            data: None,
            established: Some(established),
        });
    }

    /// The settings by which the host of a controller must authenticate on a new queue, if it must, and when former
    /// secrets among them are accepted no more, ns.
    fn authentication(
        &self,
        record: &ControllerRecord,
        connect: &PendingConnect,
        command: &ConnectCommand,
    ) -> Option<(ControllerSettings, Option<u64>)> {
        let subsystem = self.catalog.subsystem_of(record.key.kind)?;
        subsystem.authentication_at(self.now_ns, record.names(), self.secure_channel(connect, command))
    }

    /// The secure channel concatenation that a host may ask for on a new queue: on admin queues only, in clear where the
    /// listener speaks TLS as well, and with TLS if its key was generated, too. wire §22.3
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

    fn refuse(&mut self, connect: &PendingConnect, refusal: &Refusal, wish: Option<&Wish>) {
        let status = refusal.status;
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

fn established(command: &ConnectCommand, record: &ControllerRecord, doorbell: Policy) -> Established {
    Established {
        doorbell,
        qid: command.qid,
        entries: u16::try_from(command.queue_entries).unwrap_or(u16::MAX),
        is_flow_control_disabled: command.attributes.disable_sq_flow_control(),
        in_capsule_bytes: record.in_capsule_bytes,
        association: Arc::clone(&record.association),
        subsystem: match record.key.kind {
            ControllerKind::Io(subsystem) => Some(subsystem),
            ControllerKind::Discovery => None,
        },
        host: record.host.to_string(),
        owes_authentication: false,
    }
}

fn seed_of(kind: ControllerKind) -> u64 {
    match kind {
        ControllerKind::Io(subsystem) => u64::from(subsystem.0) + 1,
        ControllerKind::Discovery => 0,
    }
}
