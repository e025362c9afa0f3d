//! A host: the real association and the real cores of its lanes, each driven as its thread drives it.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use host_core::association_machine::{
    AdminAnswer, AdminRequest, AssociationAction, AssociationMachine, AssociationSettings, MachineEvent,
};
use host_core::attachment::{Attachment, Inaccessible};
use host_core::flush_epoch::FlushEpoch;
use host_core::lane_core::{LaneAction, LaneCore, LaneSettings};
use host_core::reconnect::Class;
use host_core::{
    Completion, Failure, KeyValueNamespace, LinkError, Namespace, ReconnectSettings, ReplayPolicy,
};
use proto::ReceivePlan;
use proto::handshake::HostOffer;
use proto::host_controller::{ControllerError, ControllerSettings, RequestData};
use proto::host_limits::Limits;
use proto::host_namespaces::NamespaceInfo;
use proto::receive::{Receive, ReceiveTurn};
use reactor::Received;
use security::tls::Failure as TlsFailure;
use subsystem::config::TlsPolicy;
use wire::id::{Nsid, Qid};
use wire::nqn::{HostId, Nqn};
use wire::status::Status;
use wire::uuid::Uuid;

use crate::admin::{self, Request};
use crate::authentication::credentials;
use crate::coverage::Stages;
use crate::foreign::is_foreign;
use crate::host_link::{Dialled, HostLink};
use crate::keys::OTHER_KEY;
use crate::names::name;
use crate::reactor_io::MESSAGE_NS_MAX;
use crate::scenario::{MS, SECOND, Scenario};
use crate::scout::Scout;
use crate::shared::{Actor, Shared};
use crate::tls_right::{Channel, Right};
use crate::user_buffer::UserBuffer;

/// The subsystem's name.
pub(crate) const SUBSYSTEM: &str = "nqn.2026-01.io.nvlane:simulated";

/// The host that is not always allowed.
pub(crate) const BARRED: usize = 1;

/// Names the command that resets a controller; those of the table have their place there.
const RESET: u64 = 1 << 32;

/// After this number of attempts to reconnect with a key that the target does not have any more, a host is given the
/// new one.
const ATTEMPTS_WITH_OLD_KEY: u32 = 2;

/// Received in one call.
const STAGING_BYTES: usize = 64 << 10;

/// Read data of this size is received where it belongs.
const IN_PLACE_BYTES: usize = 8 << 10;

/// Messages between the association's thread and the lanes'.
#[derive(Debug)]
enum ToLane {
    Up(Arc<Attachment>),
    Down(u64),
    Inaccessible(Inaccessible),
    Over,
}

#[derive(Debug)]
enum ToAssociation {
    Lost { generation: u64, cause: LinkError },
    Abort { generation: u64, qid: Qid, cid: u16 },
    ReadAna { generation: u64 },
}

/// One host.
pub(crate) struct Host {
    index: usize,
    name: Nqn,
    /// The subsystem that it connects to.
    subsystem: Nqn,
    /// Its association's; the lanes' follow.
    pub(crate) actor: Actor,
    association: AssociationMachine,
    link: HostLink,
    inbox: VecDeque<(u64, ToAssociation)>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) namespace: Option<Namespace>,
    /// The other one, if there are two, as it was when it was last there.
    pub(crate) second: Option<Namespace>,
    /// The one that reloads add, resize and remove, likewise.
    pub(crate) third: Option<Namespace>,
    /// Whether the second namespace exists, as far as this host knows.
    pub(crate) sees_second: bool,
    /// The one of keys and values.
    pub(crate) pairs: Option<KeyValueNamespace>,
    /// Capabilities of its controller.
    limits: Option<Limits>,
    /// When another first attempt is made, ns.
    again_ns: Option<u64>,
    /// How often it came up.
    pub(crate) up_count: u32,
    /// How often it has lost its association.
    pub(crate) loss_count: u32,
    /// How often it received its namespaces.
    pub(crate) known_count: u32,
    is_closing: bool,
    /// It was refused as not allowed, or leaves because its storage was replaced, and its lanes end.
    pub(crate) is_shut_out: bool,
    /// The identity under which it knows the second namespace.
    second_uuid: Option<Option<Uuid>>,
    /// Until when it had found another machine's storage: `u64::MAX` if it has now.
    pub(crate) misled_until_ns: Option<u64>,
    /// It has reset a controller.
    is_reset: bool,
    /// Its configured key of TLS, and the numbers of attempts with another key before, and without TLS before these.
    tls_key: u8,
    other_key_count: u8,
    clear_count: u8,
    /// The target has refused its key of TLS in the last attempt, and was right to do so.
    is_key_replaced: bool,
    /// An attempt to reconnect has failed by a wrong bit in its TLS handshake.
    has_failed_handshake: bool,
    /// When its association connected last.
    dialled_ns: u64,
    staging: Vec<u8>,
    stages: Stages,
    /// It is one of the discovery service: it has no lanes, and reads the log.
    pub(crate) scout: Option<Scout>,
}

/// One lane of it.
pub(crate) struct Lane {
    pub(crate) core: LaneCore<UserBuffer>,
    pub(crate) actor: Actor,
    link: HostLink,
    inbox: VecDeque<(u64, ToLane)>,
    receive: ReceivePlan,
    stages: Stages,
    /// How often it has lost its connection, or its association.
    pub(crate) loss_count: u32,
    /// Since when it has no queue, ns.
    down_since_ns: Option<u64>,
    /// The earlier times without one, ns.
    downs: Vec<Range<u64>>,
}

fn settings(scenario: &Scenario, index: usize, is_discovery: bool) -> AssociationSettings {
    let subsystem = if is_discovery { Nqn::discovery() } else { SUBSYSTEM.parse().expect("a name") };
    AssociationSettings {
        controller: ControllerSettings {
            host: name(index),
            hostid: HostId::from_bytes([index as u8 + 1; 16]),
            subsystem,
            is_discovery,
            keep_alive_ms: scenario.hosts.keep_alive_ms,
            queue_pairs: scenario.hosts.lane_count,
            is_flow_control_disabled: !scenario.hosts.has_flow_control,
        },
        credentials: credentials(scenario, index).filter(|_| !is_discovery).map(Arc::new),
        reauthenticate: scenario.reauthenticate(),
        concat: scenario.security.tls == TlsPolicy::Concatenated && !is_discovery,
        offer: offer(scenario),
        connect_timeout_ns: 3 * SECOND,
        admin_timeout_ns: 10 * SECOND,
        deadline_ns: None,
        reconnect: ReconnectSettings::default()
            .with_delay_first(Duration::from_millis(20))
            .with_delay_max(Duration::from_secs(4))
            .with_give_up_after(None),
        seed: scenario.seed ^ index as u64,
    }
}

fn offer(scenario: &Scenario) -> HostOffer {
    HostOffer {
        alignment: scenario.hosts.alignment,
        digests: scenario.security.digests,
        r2t_limit: scenario.hosts.r2t_limit,
    }
}

impl Host {
    pub(crate) fn new(scenario: &Scenario, index: usize, actor: Actor) -> Self {
        let flush_epoch = FlushEpoch::default();
        let lane = |number: u16| {
            let mut core = LaneCore::new(LaneSettings {
                qid: Qid::new(number),
                depth: scenario.hosts.depth,
                offer: offer(scenario),
                in_capsule_bytes_max: u32::MAX,
                connect_timeout_ns: 3 * SECOND,
                command_timeout_ns: scenario.hosts.command_timeout_ns,
                retry_limit: 5,
                path_timeout_ns: scenario.hosts.path_timeout_ns,
                fast_fail_ns: None,
                replay: if scenario.hosts.is_replayed {
                    ReplayPolicy::Idempotent
                } else {
                    ReplayPolicy::ReadsOnly
                },
                reauthenticate: scenario.reauthenticate(),
                partition_queues: scenario.hosts.follows_partitions.then(|| scenario.hosts.lane_count.into()),
            });
            core.share_flush_epoch(flush_epoch.clone());
            Lane {
                core,
                actor: actor + usize::from(number),
                link: HostLink::default(),
                inbox: VecDeque::new(),
                receive: ReceivePlan::for_host(Receive::Staging, IN_PLACE_BYTES),
                stages: Stages::new("host's lane", "down"),
                loss_count: 0,
                down_since_ns: Some(0),
                downs: Vec::new(),
            }
        };
        let settings = settings(scenario, index, false);
        Self {
            index,
            name: settings.controller.host.clone(),
            subsystem: settings.controller.subsystem.clone(),
            actor,
            association: AssociationMachine::new(settings, 0),
            link: HostLink::default(),
            inbox: VecDeque::new(),
            lanes: (1..=scenario.hosts.lane_count).map(lane).collect(),
            namespace: None,
            second: None,
            third: None,
            sees_second: false,
            pairs: None,
            limits: None,
            again_ns: None,
            up_count: 0,
            loss_count: 0,
            known_count: 0,
            is_closing: false,
            is_shut_out: false,
            second_uuid: None,
            misled_until_ns: None,
            is_reset: false,
            tls_key: 0,
            other_key_count: scenario.security.other_key_count,
            clear_count: scenario.security.clear_count,
            is_key_replaced: false,
            has_failed_handshake: false,
            dialled_ns: 0,
            staging: vec![0; STAGING_BYTES],
            stages: Stages::new("association", "TCP connect"),
            scout: None,
        }
    }

    /// One of the discovery service.
    pub(crate) fn scout(scenario: &Scenario, index: usize, actor: Actor) -> Self {
        let mut scenario = scenario.clone();
        scenario.hosts.lane_count = 0;
        let association = AssociationMachine::new(settings(&scenario, index, true), 0);
        Self {
            association,
            subsystem: Nqn::discovery(),
            scout: Some(Scout::default()),
            ..Self::new(&scenario, index, actor)
        }
    }

    /// Whether it was refused and all of it has ended: its user starts over, unless the run is ending.
    pub(crate) fn has_gone(&self) -> bool {
        let is_idle =
            |lane: &Lane| lane.inbox.is_empty() && lane.core.outstanding() == 0 && !lane.core.has_done();
        let is_to_return = self.is_shut_out && !self.is_closing;
        is_to_return && self.association.is_over() && self.lanes.iter().all(is_idle)
    }

    /// The operator gives it the target's new key of TLS: an association keeps the key that it began with.
    fn take_new_key(&mut self, shared: &mut Shared) {
        shared.reach_event("TLS: host begins anew with the target's key");
        self.association.close();
        if self.scout.is_some() {
            self.begin_again(shared);
        } else {
            self.is_shut_out = true;
            shared.wake(self.actor);
        }
    }

    /// Begins another association after a while.
    fn begin_again(&mut self, shared: &mut Shared) {
        self.up_count = 0;
        self.next_tls_key(shared);
        let at_ns = shared.now_ns + 100 * MS;
        self.again_ns = Some(at_ns);
        shared.wake_at(self.actor, at_ns);
    }

    /// Begins another one in its place once all of it has ended: an association takes no storage for other storage that
    /// had its id before.
    fn leave(&mut self, shared: &mut Shared) {
        shared.reach_event("host begins anew for other storage");
        self.misled_until_ns = Some(u64::MAX);
        self.is_shut_out = true;
        self.association.close();
        shared.wake(self.actor);
    }

    /// Runs its lanes.
    pub(crate) fn wake_lanes(&self, shared: &mut Shared) {
        (1..=self.lanes.len()).for_each(|part| shared.wake(self.actor + part));
    }

    /// Begins another one in its place.
    pub(crate) fn renew(&mut self, shared: &mut Shared) {
        *self =
            Self { tls_key: shared.tls_keys.current, ..Self::new(&shared.scenario, self.index, self.actor) };
        self.again_ns = Some(shared.now_ns);
        shared.wake(self.actor);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.association.is_over()
    }

    /// Ends the association in good order.
    pub(crate) fn close(&mut self, shared: &mut Shared) {
        self.is_closing = true;
        self.association.close();
        shared.wake(self.actor);
    }

    /// The association's thread runs.
    pub(crate) fn run_association(&mut self, shared: &mut Shared) {
        let now_ns = shared.now_ns;
        if self.again_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() && !self.is_closing {
            self.association =
                AssociationMachine::new(settings(&shared.scenario, self.index, self.scout.is_some()), now_ns);
        }
        while self.inbox.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns) {
            match self.inbox.pop_front() {
                Some((_, ToAssociation::Lost { generation, cause })) => {
                    self.association.on_lane_lost(generation, cause, now_ns);
                }
                Some((_, ToAssociation::Abort { generation, qid, cid })) => {
                    self.association.abort(generation, qid, cid);
                }
                Some((_, ToAssociation::ReadAna { generation })) => self.association.read_ana(generation),
                None => {}
            }
        }
        loop {
            if !self.is_closing
                && let Some(request) = self.scout.as_mut().and_then(|scout| scout.next_request(now_ns))
            {
                self.association.submit(request, now_ns);
            }
            self.dial_association(shared);
            if let Err(cause) = self.exchange_association(shared) {
                self.lose_association(shared, cause);
            }
            if !self.act_association(shared) {
                break;
            }
        }
        self.note_association(shared);
        let reading_ns = self.scout.as_ref().filter(|_| !self.is_closing).and_then(Scout::next_deadline);
        let inbox_ns = self.inbox.front().map(|(at_ns, _)| *at_ns);
        let deadlines = [self.association.next_deadline(), inbox_ns, self.again_ns, reading_ns];
        if let Some(at_ns) = deadlines.into_iter().flatten().min() {
            shared.wake_at(self.actor, at_ns.max(now_ns + 1));
        }
    }

    /// Counts changes of the association's state.
    fn note_association(&mut self, shared: &mut Shared) {
        let stage = match (self.association.doing(), self.link.is_none()) {
            _ if self.association.is_over() => "over",
            ("operation", true) => "waiting",
            ("operation", _) => "up",
            (connecting, _) => connecting,
        };
        self.stages.enter(stage, &mut shared.coverage);
    }

    /// Counts changes of a lane's state.
    fn note_lane(&mut self, shared: &mut Shared, number: usize) {
        let Lane { core, stages, down_since_ns, downs, .. } = &mut self.lanes[number];
        if !core.is_live() {
            down_since_ns.get_or_insert(shared.now_ns);
        } else if let Some(since_ns) = down_since_ns.take() {
            downs.push(since_ns..shared.now_ns);
        }
        let stage = match core.doing() {
            _ if core.is_live() => "live",
            _ if core.is_ended() => "ended",
            "operation" => "down",
            connecting => connecting,
        };
        stages.enter(stage, &mut shared.coverage);
    }

    /// The protection of the next connection.
    fn channel(&self, shared: &Shared, has_generated_key: bool) -> Channel {
        match shared.scenario.security.tls {
            _ if has_generated_key => Channel::Generated,
            TlsPolicy::Off | TlsPolicy::Concatenated => Channel::Clear,
            TlsPolicy::Allowed if !self.index.is_multiple_of(2) => Channel::Clear,
            TlsPolicy::Allowed | TlsPolicy::Required if self.clear_count > 0 => Channel::Clear,
            TlsPolicy::Allowed | TlsPolicy::Required if self.other_key_count > 0 => {
                Channel::Configured(OTHER_KEY)
            }
            TlsPolicy::Allowed | TlsPolicy::Required => Channel::Configured(self.tls_key),
        }
    }

    /// The key of TLS for the first attempt to connect after one that has failed.
    fn next_tls_key(&mut self, shared: &Shared) {
        match (self.clear_count, self.other_key_count) {
            (0, 0) => self.tls_key = shared.tls_keys.current,
            (0, _) => self.other_key_count -= 1,
            _ => self.clear_count -= 1,
        }
    }

    fn dial_association(&mut self, shared: &mut Shared) {
        let generated = self.association.generated_key();
        let identities = self.association.identities();
        match self.link.connect(shared, &self.name, &self.subsystem, identities, generated) {
            Dialled::Waiting => {}
            Dialled::Connected => {
                self.association.on_connected(([192, 0, 2, 1], 4420).into(), shared.now_ns);
            }
            Dialled::Failed(cause) => self.lose_association(shared, cause),
        }
    }

    fn exchange_association(&mut self, shared: &mut Shared) -> Result<(), LinkError> {
        let now_ns = shared.now_ns;
        self.association.advance(now_ns)?;
        if self.link.connected().is_none() {
            return Ok(());
        }
        loop {
            while self.association.ring() {
                let association = &self.association;
                let (count, total) = self.link.transmit(shared, |each| association.for_each_piece(each))?;
                if count > 0 {
                    self.association.on_sent(count);
                }
                if count < total {
                    break;
                }
            }
            if self.association.has_finished() {
                self.association.on_bytes(&mut &[][..], now_ns)?;
            }
            if self.association.opens_again() {
                return Ok(());
            }
            match self.link.receive(shared, &mut [IoSliceMut::new(&mut self.staging[..32 << 10])]) {
                Received::Bytes(count) => self.association.on_bytes(&mut &self.staging[..count], now_ns)?,
                Received::Dry => return Ok(()),
                Received::Ended => return Err(LinkError::Closed { during: self.association.doing() }),
                Received::Failed(error) => return Err(error.into()),
            }
            self.association.advance(now_ns)?;
        }
    }

    fn lose_association(&mut self, shared: &mut Shared, cause: LinkError) {
        check_failure(shared, &cause, &self.link);
        note_refusal(shared, &cause, &self.link);
        self.note_tls_failure(shared, &cause);
        if let LinkError::Violation(violation) = &cause
            && let Some(bytes) = self.association.term_req(*violation)
        {
            self.link.send_last(shared, &bytes);
        }
        let index = self.index;
        shared.say(|| format!("host {index}: connection lost: {cause}"));
        self.association.on_lost(cause, shared.now_ns);
    }

    /// Notes why the TLS handshake of an attempt failed, if it did.
    fn note_tls_failure(&mut self, shared: &mut Shared, cause: &LinkError) {
        let is_of_tls = matches!(cause, LinkError::Tls(_) | LinkError::GeneratedKey(_));
        let Some(id) = self.link.open().filter(|_| is_of_tls) else {
            self.is_key_replaced = false;
            return;
        };
        let connection = shared.connection(id);
        self.is_key_replaced = connection.tls.right() == Right::Refuse;
        let is_attempt = self.up_count > 0 && self.link.connected().is_none();
        self.has_failed_handshake |= is_attempt && connection.damaged_ns.is_some();
    }

    fn act_association(&mut self, shared: &mut Shared) -> bool {
        let mut has_acted = false;
        while let Some(action) = self.association.next_action() {
            has_acted = true;
            match action {
                AssociationAction::Open => {
                    self.dialled_ns = shared.now_ns;
                    let channel = self.channel(shared, self.association.generated_key().is_some());
                    self.link.dial(shared, self.actor, channel);
                }
                AssociationAction::Close { at_once } => self.link.hang_up(shared, at_once),
                AssociationAction::Answer { id, answer } => match &mut self.scout {
                    Some(scout) => scout.on_answer(shared, id, answer),
                    None => self.on_admin_answer(shared, id, &answer),
                },
                AssociationAction::Publish(event) => self.on_event(shared, event),
            }
        }
        has_acted
    }

    /// Submits a command of the table of admin commands.
    pub(crate) fn submit_admin(&mut self, shared: &mut Shared, which: u8) {
        let Request { sqe, data, .. } = admin::request(which);
        let request = AdminRequest { id: which.into(), sqe, data, class: Class::ReadOnly };
        self.association.submit(request, shared.now_ns);
        shared.wake(self.actor);
    }

    /// Resets the controller. The end of its lanes ends the association.
    pub(crate) fn reset_controller(&mut self, shared: &mut Shared) {
        self.is_reset = true;
        let (sqe, data) = (admin::reset(), RequestData::None);
        let request = AdminRequest { id: RESET, sqe, data, class: Class::Other };
        self.association.submit(request, shared.now_ns);
        shared.wake(self.actor);
    }

    /// The threads of this host do not run for a while.
    pub(crate) fn freeze(&self, shared: &mut Shared, ns: u64) {
        if ns > u64::from(shared.scenario.hosts.keep_alive_ms) * MS + 2 * SECOND {
            shared.reach_event("host silent beyond its keep-alive");
        }
        shared.stall(self.actor, ns);
        self.lanes.iter().for_each(|lane| shared.stall(lane.actor, ns));
    }

    fn on_admin_answer(&mut self, shared: &mut Shared, id: u64, answer: &Result<AdminAnswer, Failure>) {
        let index = self.index;
        shared.say(|| match answer {
            Ok(AdminAnswer { result, data }) => {
                format!("host {index}: admin command {id} ends with {result:#x} and {} bytes", data.len())
            }
            Err(failure) => format!("host {index}: admin command {id} ends with {failure:?}"),
        });
        let Ok(which) = u8::try_from(id) else { return };
        let refused_with = admin::request(which).refused_with;
        let is_right = match (answer, refused_with) {
            (Ok(_), None) => true,
            // A controller that was reset is not ready.
            (Err(Failure::Status(status)), _) if status.is(Status::COMMAND_SEQUENCE_ERROR) => self.is_reset,
            // Its data was damaged on the way.
            (Err(Failure::Status(status)), _) if status.is(Status::TRANSIENT_TRANSPORT_ERROR) => {
                shared.scenario.network.corrupt > 0
            }
            (Err(Failure::Status(status)), expected) => Some(*status) == expected,
            (Err(_), _) => true,
            (Ok(_), Some(_)) => false,
        };
        if !is_right {
            shared.find(format!("host {index}: admin command {which} ends with {answer:?}"));
        }
    }

    fn on_event(&mut self, shared: &mut Shared, event: MachineEvent) {
        let index = self.index;
        match event {
            MachineEvent::Up { attachment, controller, namespaces } => {
                shared.say(|| format!("host {index}: association {} is up", attachment.generation));
                if shared.barred_since_ns.is_some_and(|since_ns| since_ns + MESSAGE_NS_MAX < self.dialled_ns)
                    && index == BARRED
                    && self.scout.is_none()
                {
                    shared.find(format!("host {index} was let in, and is not allowed"));
                }
                self.up_count += 1;
                if std::mem::take(&mut self.has_failed_handshake) {
                    shared.reach_event("TLS: association up again after a handshake with a wrong bit");
                }
                if let Some(scout) = &mut self.scout {
                    scout.on_up(&controller);
                }
                self.limits = Some(controller.limits);
                self.know(shared, &namespaces, controller.limits);
                if namespaces.iter().any(|info| is_foreign(info.uuid)) {
                    shared.reach_event("host finds other storage under its namespaces");
                    self.misled_until_ns = Some(u64::MAX);
                } else if !self.is_shut_out {
                    self.misled_until_ns = self.misled_until_ns.map(|until_ns| until_ns.min(shared.now_ns));
                }
                for lane in &mut self.lanes {
                    tell_lane(shared, lane, ToLane::Up(Arc::clone(&attachment)));
                }
            }
            MachineEvent::Down { generation, cause } => {
                self.loss_count += 1;
                shared.reach_event("association lost");
                shared.say(|| format!("host {index}: association {generation} is lost: {cause}"));
                for lane in &mut self.lanes {
                    tell_lane(shared, lane, ToLane::Down(generation));
                }
            }
            MachineEvent::Namespaces { namespaces, .. } => {
                shared.say(|| format!("host {index}: namespaces have changed"));
                if let Some(limits) = self.limits {
                    self.know(shared, &namespaces, limits);
                }
                for lane in &self.lanes {
                    shared.wake(lane.actor);
                }
            }
            MachineEvent::Over { cause, .. } => {
                shared.say(|| format!("host {index}: over"));
                if let Some(cause) = cause
                    && !self.is_closing
                {
                    let is_refused = shared.scenario.bars() && is_refusal(&cause);
                    if self.up_count > 0 && is_refused && self.scout.is_none() {
                        self.is_shut_out = true;
                        for lane in &mut self.lanes {
                            tell_lane(shared, lane, ToLane::Over);
                        }
                        return;
                    }
                    if self.up_count > 0 {
                        shared.find(format!("host {index} gives up for good: {cause}"));
                    }
                    // The first attempt is made once; its caller makes another.
                    self.begin_again(shared);
                    return;
                }
                for lane in &mut self.lanes {
                    tell_lane(shared, lane, ToLane::Over);
                }
            }
            MachineEvent::Failed { attempts, cause } => {
                shared.say(|| format!("host {index}: attempt {attempts} failed: {cause}"));
                if self.is_key_replaced && attempts >= ATTEMPTS_WITH_OLD_KEY && !self.is_closing {
                    self.take_new_key(shared);
                }
                let is_slow = shared.scenario.disk.slow > 0 && shared.scenario.disk.slow_ns > 300 * MS;
                let had_power_cut = shared.scenario.ends_with_power_cut;
                if matches!(cause, LinkError::TimedOut { .. })
                    && shared.scenario.is_swift()
                    && !is_slow
                    && !had_power_cut
                {
                    shared.find(format!("host {index}: a connection took too long, though nothing was slow"));
                }
            }
            MachineEvent::AuthenticationFailed { cause } => {
                // A command may fail in passing, as any other: the next transaction begins anew.
                if matches!(cause, LinkError::Authentication(_)) {
                    shared.find(format!("host {index} is refused when it authenticates again: {cause}"));
                }
            }
            MachineEvent::Discovery => {
                shared.say(|| format!("host {index}: the discovery log has changed"));
                if let Some(scout) = &mut self.scout {
                    scout.on_changed();
                }
            }
            MachineEvent::Inaccessible(inaccessible) => {
                for lane in &mut self.lanes {
                    tell_lane(shared, lane, ToLane::Inaccessible(Arc::clone(&inaccessible)));
                }
            }
            MachineEvent::Event(_) => {}
        }
    }

    /// Notes changes of the namespaces.
    fn know(&mut self, shared: &mut Shared, namespaces: &[NamespaceInfo], limits: Limits) {
        self.known_count += 1;
        let seen = namespaces.iter().find(|info| info.nsid == Nsid::new(2));
        self.sees_second = seen.is_some();
        if let Some(info) = seen {
            let known = *self.second_uuid.get_or_insert(info.uuid);
            let is_other = known != info.uuid && !is_foreign(info.uuid);
            if is_other && !self.is_shut_out && !self.is_closing {
                self.leave(shared);
            }
        }
        let of_keys = namespaces.iter().find_map(|info| KeyValueNamespace::new(info, &limits).ok());
        self.pairs = of_keys.or(self.pairs);
        for info in namespaces {
            let known = match info.nsid.get() {
                1 => &mut self.namespace,
                2 => &mut self.second,
                3 => &mut self.third,
                _ => continue,
            };
            *known = Namespace::new(*info, limits).ok().or(known.take());
        }
    }

    fn tell_association(&mut self, shared: &mut Shared, message: ToAssociation) {
        let at_ns = shared.now_ns + shared.random.between(1, 5000);
        let at_ns = self.inbox.back().map_or(at_ns, |(last_ns, _)| at_ns.max(*last_ns));
        self.inbox.push_back((at_ns, message));
        shared.wake_at(self.actor, at_ns);
    }

    /// A lane's thread runs: as `Lane::poll_with` does.
    pub(crate) fn run_lane(
        &mut self,
        shared: &mut Shared,
        number: usize,
        done: &mut Vec<Completion<UserBuffer>>,
    ) {
        let now_ns = shared.now_ns;
        while self.lanes[number].inbox.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns) {
            let lane = &mut self.lanes[number];
            match lane.inbox.pop_front() {
                Some((_, ToLane::Up(attachment))) => lane.core.attach(&attachment, now_ns),
                Some((_, ToLane::Down(generation))) => {
                    lane.loss_count += 1;
                    lane.core.detach(generation);
                }
                Some((_, ToLane::Inaccessible(inaccessible))) => lane.core.on_inaccessible(&inaccessible),
                Some((_, ToLane::Over)) => {
                    lane.loss_count += 1;
                    lane.core.end();
                }
                None => {}
            }
            self.act_lane(shared, number);
        }
        if self.lanes[number].link.connected().is_some()
            && let Err(cause) = self.exchange_lane(shared, number, done)
        {
            self.lose_lane(shared, number, cause);
        }
        if let Err(cause) = self.lanes[number].core.on_time(now_ns) {
            self.lose_lane(shared, number, cause);
        }
        self.dial_lane(shared, number);
        self.act_lane(shared, number);
        self.lanes[number].core.drain(&mut |completion| done.push(completion));
        let lane = &self.lanes[number];
        let deadlines = [lane.core.next_deadline(), lane.inbox.front().map(|(at_ns, _)| *at_ns)];
        if let Some(at_ns) = deadlines.into_iter().flatten().min() {
            shared.wake_at(lane.actor, at_ns.max(now_ns + 1));
        }
    }

    fn exchange_lane(
        &mut self,
        shared: &mut Shared,
        number: usize,
        done: &mut Vec<Completion<UserBuffer>>,
    ) -> Result<(), LinkError> {
        self.flush_lane(shared, number)?;
        let mut turn = self.lanes[number].receive.turn();
        while turn.goes_on() || self.lanes[number].link.has_input() {
            self.receive_lane(shared, number, &mut turn, done)?;
        }
        self.flush_lane(shared, number)?;
        let lane = &mut self.lanes[number];
        if lane.core.has_finished() {
            lane.core.on_bytes(&mut &[][..], shared.now_ns, &mut |completion| done.push(completion))?;
        }
        if lane.link.is_readable(shared) {
            let actor = lane.actor;
            shared.wake(actor);
        }
        Ok(())
    }

    pub(crate) fn flush_lane(&mut self, shared: &mut Shared, number: usize) -> Result<(), LinkError> {
        let lane = &mut self.lanes[number];
        if lane.link.connected().is_none() {
            return Ok(());
        }
        while lane.core.ring() {
            let core = &lane.core;
            let (count, total) = lane.link.transmit(shared, |each| core.for_each_piece(each))?;
            if count > 0 {
                lane.core.on_sent(count);
            }
            if count < total {
                break;
            }
        }
        Ok(())
    }

    fn receive_lane(
        &mut self,
        shared: &mut Shared,
        number: usize,
        turn: &mut ReceiveTurn,
        done: &mut Vec<Completion<UserBuffer>>,
    ) -> Result<(), LinkError> {
        let lane = &mut self.lanes[number];
        if lane.link.connected().is_none() {
            turn.on_dry();
            return Ok(());
        }
        let staging_bytes = lane.receive.staging_bytes(STAGING_BYTES, || lane.core.wanted_bytes());
        let staging = &mut self.staging[..staging_bytes];
        let link = &mut lane.link;
        let (received, extent) =
            lane.receive.receive(lane.core.place(), staging, |into| link.receive(shared, into));
        let count = match received {
            Received::Bytes(count) => count,
            Received::Dry => {
                turn.on_dry();
                return Ok(());
            }
            Received::Ended => return Err(LinkError::Closed { during: lane.core.doing() }),
            Received::Failed(error) => return Err(error.into()),
        };
        turn.on_received(extent, count);
        let placed = extent.in_place(count);
        if placed > 0 {
            lane.core.on_placed(placed)?;
        }
        let mut input = &self.staging[..count - placed];
        lane.core.on_bytes(&mut input, shared.now_ns, &mut |completion| done.push(completion))?;
        lane.receive.on_taken_in(extent, count, lane.core.place().map_or(0, |place| place.len()));
        Ok(())
    }

    fn dial_lane(&mut self, shared: &mut Shared, number: usize) {
        let lane = &mut self.lanes[number];
        let Some(attachment) = lane.core.attachment().cloned() else { return };
        let (identities, generated) = (attachment.identities, attachment.generated.as_deref());
        match lane.link.connect(shared, &self.name, &self.subsystem, identities, generated) {
            Dialled::Waiting => {}
            Dialled::Connected => {
                lane.core.on_connected(shared.now_ns);
                if let Err(cause) = self.flush_lane(shared, number) {
                    self.lose_lane(shared, number, cause);
                }
            }
            Dialled::Failed(cause) => self.lose_lane(shared, number, cause),
        }
    }

    pub(crate) fn lose_lane(&mut self, shared: &mut Shared, number: usize, cause: LinkError) {
        let lane = &mut self.lanes[number];
        lane.loss_count += 1;
        self.loss_count += 1;
        check_failure(shared, &cause, &lane.link);
        note_refusal(shared, &cause, &lane.link);
        if let LinkError::Violation(violation) = &cause
            && let Some(bytes) = lane.core.term_req(*violation)
        {
            lane.link.send_last(shared, &bytes);
        }
        let index = self.index;
        shared.say(|| format!("host {index} lane {number}: connection lost: {cause}"));
        lane.core.on_lost(cause);
        self.act_lane(shared, number);
    }

    pub(crate) fn act_lane(&mut self, shared: &mut Shared, number: usize) {
        self.note_lane(shared, number);
        while let Some(action) = self.lanes[number].core.next_action() {
            let lane = &mut self.lanes[number];
            let generation = lane.core.attachment().map_or(0, |attachment| attachment.generation);
            let qid = lane.core.qid();
            match action {
                LaneAction::Open(_) => {
                    let attachment = lane.core.attachment();
                    let is_generated = attachment.is_some_and(|attachment| attachment.generated.is_some());
                    let channel = self.channel(shared, is_generated);
                    let lane = &mut self.lanes[number];
                    lane.link.dial(shared, lane.actor, channel);
                }
                LaneAction::Close => lane.link.hang_up(shared, true),
                LaneAction::Abort { cid } => {
                    self.tell_association(shared, ToAssociation::Abort { generation, qid, cid });
                }
                LaneAction::ReadAna => self.tell_association(shared, ToAssociation::ReadAna { generation }),
                LaneAction::Report { generation, cause } => {
                    self.tell_association(shared, ToAssociation::Lost { generation, cause });
                }
            }
        }
    }

    /// How long a lane has had no queue since some time, ns.
    pub(crate) fn down_ns(&self, lane: usize, since_ns: u64, now_ns: u64) -> u64 {
        let Lane { down_since_ns, downs, .. } = &self.lanes[lane];
        let present_ns = down_since_ns.map_or(0, |from_ns| now_ns - from_ns.max(since_ns));
        let earlier = downs.iter().rev().take_while(|down| down.end > since_ns);
        earlier.map(|down| down.end - down.start.max(since_ns)).sum::<u64>() + present_ns
    }

    /// Its admin queue's connection.
    pub(crate) fn admin_connection(&self) -> Option<usize> {
        self.link.id()
    }

    /// Whether an actor is the thread of its association.
    pub(crate) fn is_association(&self, actor: Actor) -> bool {
        self.actor == actor
    }

    /// Whether an actor is one of this host's threads.
    pub(crate) fn owns(&self, actor: Actor) -> bool {
        (self.actor..=self.actor + self.lanes.len()).contains(&actor)
    }

    /// Connections that stand.
    pub(crate) fn connections(&self) -> Vec<usize> {
        self.lanes.iter().map(|lane| &lane.link).chain([&self.link]).filter_map(HostLink::open).collect()
    }

    /// Every command that is out, by lane.
    pub(crate) fn outstanding(&self) -> BTreeMap<usize, u16> {
        self.lanes.iter().map(|lane| (lane.actor, lane.core.outstanding())).collect()
    }
}

/// Whether a target says that this host is not allowed.
fn is_refusal(cause: &LinkError) -> bool {
    let LinkError::Controller(ControllerError::ConnectRefused { status, .. }) = cause else { return false };
    status.is(Status::CONNECT_INVALID_HOST)
}

fn tell_lane(shared: &mut Shared, lane: &mut Lane, message: ToLane) {
    let at_ns = shared.now_ns + shared.random.between(1, 5000);
    let at_ns = lane.inbox.back().map_or(at_ns, |(last_ns, _)| at_ns.max(*last_ns));
    lane.inbox.push_back((at_ns, message));
    shared.wake_at(lane.actor, at_ns);
}

/// A target breaks the protocol, or fails TLS, only where a bit on the way was wrong, or the host's key is not its own.
fn check_failure(shared: &mut Shared, cause: &LinkError, link: &HostLink) {
    let Some(id) = link.open() else { return };
    let connection = shared.connection(id);
    let is_excused = match cause {
        LinkError::Tls(failure) | LinkError::GeneratedKey(failure) => match failure {
            // It was judged when the target closed it.
            TlsFailure::Closed => true,
            TlsFailure::Alert(_) => connection.tls.right() != Right::Serve,
            _ => false,
        },
        LinkError::Violation(_) => false,
        _ => true,
    };
    if !is_excused && connection.damaged_ns.is_none() {
        shared.find(format!("connection {id}: {cause}, and no bit on it was wrong"));
    }
}

/// Counts how a target refuses a host that has another key than its own, or none.
fn note_refusal(shared: &mut Shared, cause: &LinkError, link: &HostLink) {
    let Some(id) = link.open() else { return };
    let connection = shared.connection(id);
    let is_alert = matches!(cause, LinkError::Tls(TlsFailure::Alert(_)));
    let event = match (connection.tls.channel, connection.tls.right()) {
        (_, Right::Serve | Right::Either) if is_alert && connection.damaged_ns.is_some() => {
            "TLS: a handshake with a wrong bit is refused"
        }
        (_, Right::Serve | Right::Either) => return,
        (Channel::Clear, Right::Refuse) => "TLS: a host in cleartext is refused",
        (Channel::Configured(OTHER_KEY), Right::Refuse) if is_alert => {
            "TLS: another key is refused by an alert"
        }
        (_, Right::Refuse) if is_alert => "TLS: a replaced key is refused by an alert",
        (_, Right::Refuse) => return,
    };
    shared.reach_event(event);
}
