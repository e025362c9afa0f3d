//! The control plane: subsystems, controllers, discovery, and the table of namespaces that all reactors share.
//!
//! It runs on reactor 0 and owns all singleton state. It uses no sockets, clocks or threads: messages come in, messages
//! go out.
//!
//! ```text
//! lanes ───on_request──────────┐                    ┌─▶ Answer, End, Abort     to lanes
//! reactors ─on_table_in_use────┤                    │
//!          ─on_aborted─────────┼─▶ Control ─────────┼─▶ Table, Flush           to reactors
//!          ─on_flushed─────────┤   next_message     │
//! operator ─on_order───────────┤   next_deadline_ns └─▶ Listen, Unlisten, Stop to reactors
//! time ────on_deadline─────────┘
//! ```
//!
//! `Control` hands each input to the part that owns its data: `Catalog` has the configuration, `Associations` the
//! controllers and lanes, `Connects` what waits to connect, `Rollouts` the versions that reactors serve.
//!
//! The driver calls an input, then drains [`Control::next_message`], and calls [`Control::on_deadline`] when
//! [`Control::next_deadline_ns`] has come. Every command gets exactly one answer, unless its lane ends first.
// Input from a host must never cause a panic: see docs/testing.md.
#![deny(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used)]

mod apply;
mod associations;
mod authentications;
mod commands;
mod connect;
mod exponentiations;
mod key_pairs;
mod listings;
mod outputs;
mod pending_connect;
mod rollout;
mod shutdown;
mod state;
mod unauthenticated;

use std::sync::Arc;
use std::sync::mpsc::Sender;

use linux::randomness::Randomness;
use security::exponentiation::{Exponentiated, Exponentiation};
use security::secure_channel::SecureChannel;
use security::tls::GeneratedKeys;
use wire::nqn::{HostId, Nqn};
use wire::opcode::{AdminOpcode, FabricsType};
use wire::sqe::Sqe;
use wire::status::Status;

use crate::audit::Recorder;
use crate::control_plane::admission::{Admission, reason};
use crate::io_path::command_form::check_form;
use crate::messages::message::{
    Message, Order, OrderAnswer, OrderKind, ReactorMessage, Request, RequestKind, Step, StepOutcome,
};
use crate::messages::state::{Detail, StateParts};
use crate::names::lane_end::LaneEnd;
use crate::names::lane_id::{CommandId, LaneId};
use crate::names::limits::Limits;
use crate::objects::authentication::RefusedAgain;
use crate::objects::catalog::Catalog;
use crate::objects::discovery::Discovery;
use crate::objects::step_error::StepError;
use apply::Change;
use associations::{Associations, CAUSES, Cause, LaneUse};
use authentications::{Authentications, News};
use commands::QueueCommands;
use connect::{Connects, Scene};
use listings::Listings;
use outputs::{MILLISECOND_NS, Outputs};
use pending_connect::PendingConnect;
use rollout::Rollouts;
use shutdown::Shutdown;
use state::Snapshot;

/// The initial settings of a control plane.
#[derive(Clone, Debug)]
pub struct ControlSettings {
    /// Limits that hosts are held to.
    pub limits: Limits,
    /// Number of reactors.
    pub reactor_count: u16,
    /// The unique name of this discovery service.
    pub discovery_nqn: Nqn,
    /// Differs on every start of the target: the search for free controller ids begins at a different place each time.
    pub entropy: u64,
    /// Random bytes for authentication.
    pub randomness: Randomness,
    /// Current time, ns of the reactors' clock.
    pub now_ns: u64,
    /// Current time, ns since the beginning of 1970. Generations of the discovery log start at it, so that a restarted
    /// target repeats none.
    pub wall_ns: u64,
    /// Takes the events of the audit log.
    pub audit: Recorder,
}

/// Whether this is a command of in-band authentication.
fn is_authentication(sqe: &Sqe) -> bool {
    let types = [FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE];
    sqe.opcode == AdminOpcode::FABRICS.raw() && types.contains(&sqe.fctype())
}

/// The control plane: hands each input to the part that it concerns.
pub struct Control {
    limits: Limits,
    boot_ns: u64,
    catalog: Catalog,
    associations: Associations,
    authentications: Authentications,
    connects: Connects,
    rollouts: Rollouts,
    shutdown: Shutdown,
    pub(crate) admission: Admission,
    outputs: Outputs,
}

impl Control {
    /// Counts of its state for connections, by name.
    pub(crate) fn held(&self) -> [(&'static str, usize); 6] {
        let [controller_count, lane_count] = self.associations.counts();
        [
            ("controllers", controller_count),
            ("connected lanes", lane_count),
            ("Connects that wait", self.connects.waiting_count()),
            ("queues without authentication", self.connects.unauthenticated.count()),
            ("authentications", self.authentications.count()),
            ("connections that are counted", self.admission.held_count()),
        ]
    }

    /// A control plane without subsystems and listeners: the first order adds them.
    #[must_use]
    pub fn new(settings: ControlSettings) -> Self {
        let ControlSettings {
            limits,
            reactor_count,
            discovery_nqn,
            entropy,
            randomness,
            now_ns,
            wall_ns,
            audit,
        } = settings;
        let discovery = Discovery::new(discovery_nqn, wall_ns);
        Self {
            limits,
            boot_ns: now_ns,
            catalog: Catalog::new(discovery, reactor_count),
            associations: Associations::new(limits),
            authentications: Authentications::new(randomness),
            connects: Connects::new(limits, entropy),
            rollouts: Rollouts::new(reactor_count),
            shutdown: Shutdown::None,
            admission: Admission::new(&limits, audit.clone()),
            outputs: Outputs::new(reactor_count, audit),
        }
    }

    /// The same with these keys of TLS, to which authentications add those that they generate.
    #[must_use]
    pub fn with_generated_keys(mut self, keys: Arc<GeneratedKeys>) -> Self {
        self.authentications.set_generated_keys(keys);
        self
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Handles a request or report of a lane.
    pub fn on_request(&mut self, now_ns: u64, request: Request) {
        let lane = request.lane;
        match request.kind {
            RequestKind::Command { slot, sqe, data, peer, listener, channel, local, tls, counters } => {
                let command = CommandId { lane, slot };
                let connect =
                    PendingConnect { command, sqe, data, peer, listener, channel, local, tls, counters };
                self.on_command(now_ns, connect);
            }
            RequestKind::Superseded { slot } => {
                self.associations.on_superseded(CommandId { lane, slot }, &mut self.outputs);
            }
            RequestKind::Failures(failures) => {
                self.associations.on_failures(lane, &failures, &self.catalog, &self.outputs);
            }
            RequestKind::Expelled(reason) => self.on_expelled(now_ns, lane, reason),
            RequestKind::Ended(end) => self.on_ended(now_ns, lane, end),
        }
        self.act_on_news(now_ns);
    }

    /// Handles a command: a Connect, or one of a connected lane.
    fn on_command(&mut self, now_ns: u64, request: PendingConnect) {
        let (command, sqe) = (request.command, request.sqe);
        if let Err(status) = check_form(&sqe) {
            return self.outputs.answer(command, Err(status));
        }
        let Some(LaneUse { controller, qid, .. }) = self.associations.lane(command.lane) else {
            return self.on_command_of_none(now_ns, request);
        };
        if is_authentication(&sqe) {
            return self.authenticate(now_ns, command, &sqe, &request.data);
        }
        let mut commands = QueueCommands {
            limits: &self.limits,
            catalog: &self.catalog,
            associations: &mut self.associations,
            outputs: &mut self.outputs,
            version_in_use: self.rollouts.version_in_use(),
            now_ns,
            boot_ns: self.boot_ns,
        };
        if qid.is_admin() {
            commands.on_admin_command(controller, command, &sqe, &request.data);
        } else {
            commands.on_io_command(controller, qid, command, &sqe);
        }
    }

    /// Handles a command on a lane that belongs to no controller: a Connect, or an authentication after it.
    fn on_command_of_none(&mut self, now_ns: u64, request: PendingConnect) {
        let (command, sqe) = (request.command, request.sqe);
        if self.connects.unauthenticated.has(command.lane) {
            if is_authentication(&sqe) {
                return self.authenticate(now_ns, command, &sqe, &request.data);
            }
            // The lane refuses such commands itself.
            return self.outputs.answer(command, Err(Status::AUTHENTICATION_REQUIRED.with_dnr()));
        }
        if sqe.opcode == AdminOpcode::FABRICS.raw() && sqe.fctype() == FabricsType::CONNECT {
            let (connects, mut scene) = self.scene(now_ns);
            return connects.on_connect(&mut scene, request);
        }
        // Also while it waits to belong to one.
        self.outputs.answer(command, Err(Status::COMMAND_SEQUENCE_ERROR));
    }

    fn authenticate(&mut self, now_ns: u64, command: CommandId, sqe: &Sqe, message: &[u8]) {
        if sqe.fctype() == FabricsType::AUTHENTICATION_SEND {
            self.authentications.restart(command.lane, message);
            self.renew_secrets(now_ns, command.lane);
            self.authentications.on_send(now_ns, command, sqe, message, &mut self.outputs);
        } else {
            self.authentications.on_receive(now_ns, command, sqe, &mut self.outputs);
        }
    }

    /// Acts on the outcomes of authentications.
    fn act_on_news(&mut self, now_ns: u64) {
        while let Some(news) = self.authentications.next_news() {
            match news {
                News::Authenticated { lane, answers } => {
                    let (connects, mut scene) = self.scene(now_ns);
                    connects.on_authenticated(&mut scene, lane, answers);
                }
                News::Failed { lane, peer } => {
                    self.connects.unauthenticated.remove(lane);
                    self.admission.on_complaint(now_ns, peer, reason::NOT_AUTHENTICATED, None);
                }
                News::FailedAgain { lane, peer } => {
                    self.admission.on_complaint(now_ns, peer, reason::NOT_AUTHENTICATED_AGAIN, None);
                    self.on_failed_again(now_ns, lane);
                }
            }
        }
    }

    /// A host was refused when it authenticated again: its association ends, unless the subsystem keeps such hosts, or asks
    /// this one for no secret any more.
    fn on_failed_again(&mut self, now_ns: u64, lane: LaneId) {
        let Some(LaneUse { controller, .. }) = self.associations.lane(lane) else { return };
        let Some(record) = self.associations.get(controller) else { return };
        let subsystem = self.catalog.subsystem_of(controller.kind);
        let is_kept = subsystem.is_some_and(|subsystem| {
            let authentication = &subsystem.authentication;
            authentication.refused_again == RefusedAgain::Keep || authentication.of(&record.host).is_none()
        });
        if !is_kept {
            self.associations.end(now_ns, controller, Cause::RefusedAgain, &mut self.outputs);
        }
    }

    /// Handles an order of the operator.
    pub fn on_order(&mut self, now_ns: u64, order: Order) {
        let Order { kind, answers } = order;
        match kind {
            OrderKind::Apply(steps) => {
                let outcomes = if self.shutdown.has_begun() {
                    steps.iter().map(|_| Err(StepError::Stopping)).collect()
                } else {
                    self.apply(now_ns, steps, &answers)
                };
                // The send fails if the operator has given up waiting.
                let _ = answers.send(OrderAnswer::Applied(outcomes));
            }
            OrderKind::State(detail) => {
                // The send fails if the operator has given up waiting.
                let _ = answers.send(OrderAnswer::State(Box::new(self.state_parts(detail))));
            }
            OrderKind::Stop { grace_ms } => self.on_stop(now_ns, grace_ms, answers),
        }
    }

    fn state_parts(&self, detail: Detail) -> StateParts {
        let snapshot = Snapshot {
            catalog: &self.catalog,
            associations: &self.associations,
            authentications: &self.authentications,
            version_in_use: self.rollouts.version_in_use(),
            detail,
        };
        let mut parts = snapshot.target();
        let state = &mut parts.state;
        state.waiting_connect_count = self.connects.waiting_count();
        state.unauthenticated_count = self.connects.unauthenticated.count();
        state.connections = self.admission.state();
        state.memcached = self.admission.memcached_state();
        state.refused_connects = self.outputs.refused_connects.clone();
        // A cause that first occurs between two looks at the counters is seen as a change of its counter.
        let ended = |cause: &str| self.outputs.ended_associations.get(cause).copied().unwrap_or_default();
        state.ended_associations = CAUSES.map(|cause| (cause.to_owned(), ended(cause))).into();
        parts
    }

    /// Reactor `reactor` serves this version of the namespace table, and no older one.
    pub fn on_table_in_use(&mut self, reactor: u16, version: u64) {
        self.rollouts.on_table_in_use(reactor, version);
        while let Some(rollout) = self.rollouts.next_done() {
            rollout.finish(&self.catalog, &mut self.associations, &mut self.outputs);
        }
    }

    /// The lane has carried out the Abort that `asked_by` requested.
    pub fn on_aborted(&mut self, asked_by: CommandId, is_aborted: bool) {
        self.associations.on_aborted(asked_by, is_aborted, &mut self.outputs);
    }

    /// The flush of namespaces that `asked_by` requested is done, as far as it can be.
    pub fn on_flushed(&mut self, asked_by: CommandId) {
        self.associations.on_flushed(asked_by);
    }

    /// A transaction begins with the secrets of the present configuration, not those of the Connect.
    fn renew_secrets(&mut self, now_ns: u64, lane: LaneId) {
        if !self.authentications.is_between_transactions(lane) {
            return;
        }
        let Some(names) = self.authentications.names(lane).cloned() else { return };
        let subsystem = self.catalog.named(&names.subsystem);
        // The keys that the queue may generate stay as they are.
        let present = subsystem
            .and_then(|(_, subsystem)| subsystem.authentication_at(now_ns, names, SecureChannel::None));
        let (settings, former_end_ns) = present.unzip();
        self.authentications.set_secrets(lane, settings.as_ref(), former_end_ns.flatten());
    }

    /// The worker has the result of an exponentiation.
    pub fn on_exponentiated(&mut self, now_ns: u64, lane: LaneId, result: Exponentiated) {
        self.authentications.on_exponentiated(now_ns, lane, result, &mut self.outputs);
        self.act_on_news(now_ns);
    }

    /// The next exponentiation to run on another thread, and its lane: its result comes to
    /// [`on_exponentiated`](Self::on_exponentiated).
    pub fn next_exponentiation(&mut self) -> Option<(LaneId, Exponentiation)> {
        self.authentications.next_exponentiation()
    }

    /// A key pair to make on another thread while nothing else is to be computed: its result comes to
    /// [`on_key_pair`](Self::on_key_pair).
    pub fn next_key_pair(&mut self) -> Option<Exponentiation> {
        self.authentications.next_key_pair()
    }

    /// The worker has made a key pair.
    pub fn on_key_pair(&mut self, result: Exponentiated) {
        self.authentications.on_key_pair(result);
    }

    /// Handles expired deadlines: to be called at or after [`next_deadline_ns`](Self::next_deadline_ns).
    pub fn on_deadline(&mut self, now_ns: u64) {
        if !self.outputs.take_deadline(now_ns) {
            return;
        }
        self.reconsider_connects(now_ns, None);
        self.associations.expire(now_ns, &mut self.outputs);
        self.authentications.expire(now_ns, &mut self.outputs);
        self.act_on_news(now_ns);
        self.associations.expire_listeners(now_ns, &self.catalog.removed_listeners, &mut self.outputs);
        self.shutdown.on_deadline(now_ns, self.associations.lane_count(), &mut self.outputs);
    }

    /// The next message to post, and the reactor to post it to.
    pub fn next_message(&mut self) -> Option<(usize, Message)> {
        self.outputs.next_message()
    }

    /// When to call [`on_deadline`](Self::on_deadline) at the latest.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.outputs.wake_ns()
    }

    /// Whether the target has stopped: every reactor has been ordered to end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shutdown.is_done()
    }

    fn apply(&mut self, now_ns: u64, steps: Vec<Step>, answers: &Sender<OrderAnswer>) -> Vec<StepOutcome> {
        let changes_discovery = steps.iter().any(Step::changes_discovery);
        let listings = changes_discovery.then(|| Listings::take(&self.catalog, &self.associations));
        let mut rollout = self.rollouts.begin(answers);
        let (catalog, associations) = (&mut self.catalog, &mut self.associations);
        let outputs = &mut self.outputs;
        let generated = self.authentications.generated_keys();
        let mut change = Change { now_ns, catalog, associations, generated, outputs, rollout: &mut rollout };
        let outcomes = steps.into_iter().map(|step| change.apply(step)).collect();
        self.rollouts.send(rollout, &self.catalog, &mut self.outputs);
        self.associations.on_doorbells_changed(&self.catalog, &mut self.outputs);
        if let Some(listings) = listings {
            listings.tell_changes(&mut self.catalog, &mut self.associations, &mut self.outputs);
        }
        outcomes
    }

    /// A lane was closed for a missed deadline. A well-behaved host takes the loss of a queue as the end of its
    /// association; others must not keep the remaining ones. A queue whose host has not authenticated ends alone.
    fn on_expelled(&mut self, now_ns: u64, lane: LaneId, reason: &'static str) {
        if let Some(LaneUse { controller, qid, .. }) = self.associations.lane(lane) {
            let cause = Cause::Stalled { qid, reason };
            self.associations.end(now_ns, controller, cause, &mut self.outputs);
        }
    }

    /// A lane has ended.
    fn on_ended(&mut self, now_ns: u64, lane: LaneId, end: LaneEnd) {
        self.connects.on_lane_ended(lane);
        self.authentications.on_lane_ended(now_ns, lane, end, &mut self.outputs);
        let ended = self.associations.on_lane_ended(now_ns, lane, end, &mut self.outputs);
        let Some(hostid) = ended else { return };
        self.reconsider_connects(now_ns, Some(hostid));
        self.shutdown.on_lane_ended(self.associations.lane_count(), &mut self.outputs);
    }

    /// Begins to stop the target: refuses connections, ends every association, then the reactors.
    fn on_stop(&mut self, now_ns: u64, grace_ms: u64, answers: Sender<OrderAnswer>) {
        if self.shutdown.has_begun() {
            // The first order to stop stands.
            return;
        }
        let until_ns = now_ns.saturating_add(grace_ms.saturating_mul(MILLISECOND_NS));
        self.shutdown = Shutdown::Waiting { answers, until_ns };
        self.rollouts.close_listeners();
        for tag in self.catalog.discovery.listeners.keys() {
            self.outputs.post(0, Message::Reactor(ReactorMessage::Unlisten(*tag)));
        }
        self.associations.end_all(now_ns, Cause::Stopping, &mut self.outputs);
        self.reconsider_connects(now_ns, None);
        self.outputs.wake_at(until_ns);
        self.shutdown.on_lane_ended(self.associations.lane_count(), &mut self.outputs);
    }

    fn reconsider_connects(&mut self, now_ns: u64, of_host: Option<HostId>) {
        let (connects, mut scene) = self.scene(now_ns);
        connects.reconsider(&mut scene, of_host);
    }

    fn scene(&mut self, now_ns: u64) -> (&mut Connects, Scene<'_>) {
        let scene = Scene {
            now_ns,
            is_stopping: self.shutdown.has_begun(),
            catalog: &self.catalog,
            associations: &mut self.associations,
            authentications: &mut self.authentications,
            outputs: &mut self.outputs,
        };
        (&mut self.connects, scene)
    }
}
