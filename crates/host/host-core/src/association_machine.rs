//! State machine of an association: brings the controller up, keeps it alive, runs the callers' admin commands, and
//! reconnects after a loss. Its driver is in `association_thread.rs`.
//!
//! ```text
//!            on_connected            ICResp           controller live
//! Opening ───────────────▶ Handshake ───────▶ BringUp ───────────────▶ Up
//!    ▲                         │                 │                     │
//!    └──(due)── Waiting ◀──────┴─────────────────┴──── any loss ───────┘          any ──close, give up──▶ Over
//! ```
//!
//! With secure channel concatenation an attempt has two connections: BringUp authenticates without TLS and goes back to
//! Opening, for a connection with TLS by the generated key. wire §22.1
//!
//! With a configured key of TLS an attempt has two connections if the target refuses the first in the handshake: the
//! second offers other identities of the key, and those that the target accepts are offered from then on.
//!
//! The first attempt is made once: its failure is the caller's error. Once the association has been up, attempts go on
//! until their time limit, also while the target refuses the host's key or secret; see
//! [`reconnect`](crate::reconnect#when-attempts-end). Inputs are `on_*`, wishes are `submit`, `abort`,
//! `rescan` and `close`. After each of them the driver calls [`advance`](AssociationMachine::advance), then drains
//! [`next_action`](AssociationMachine::next_action), and returns at
//! [`next_deadline`](AssociationMachine::next_deadline).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::handshake::{Agreement, HostOffer};
use proto::host_controller::{
    ADMIN_QUEUE_ENTRIES, ControllerError, ControllerSettings, Demand, HostController, Notice,
    OWN_COMMANDS_MAX, RequestData, RequestId,
};
use proto::host_limits::Limits;
use proto::host_namespaces::NamespaceInfo;
use proto::host_queue::{self, HostEvent, Transfer};
use proto::{HostQueue, Violation};
use wire::async_event::AsyncEvent;
use wire::id::{Cntlid, Nsid, Qid};
use wire::identify::command_set::KvVendorCommands;
use wire::identify::controller::IdentifyController;
use wire::property::{Cap, Vs};
use wire::sqe::Sqe;
use wire::status::Status;

use crate::attachment::{Attachment, Inaccessible};
use crate::authentication::{Credentials, QueueAuthentication, SecureChannel, TlsPsk};
use crate::connection_tls::{IdentityOffer, may_need_other_identities};
use crate::failure::{Failure, Waited};
use crate::known_namespaces::KnownNamespaces;
use crate::link_error::LinkError;
use crate::reauthentication::{Reauthentication, ends_connection};
use crate::reconnect::{Backoff, Class, Fate, ReconnectSettings, ReplayPolicy, fate};

/// Maximum outstanding commands of callers.
const CALLER_REQUESTS_MAX: usize = 8;

/// Maximum outstanding Aborts; the controller's limit applies as well.
const ABORTS_MAX: usize = 4;

/// Outstanding commands of an authentication.
const AUTHENTICATION_COMMANDS_MAX: usize = 1;

const _: () = assert!(
    OWN_COMMANDS_MAX as usize + AUTHENTICATION_COMMANDS_MAX + CALLER_REQUESTS_MAX + ABORTS_MAX
        < ADMIN_QUEUE_ENTRIES as usize
);

/// Maximum in-capsule data of every admin queue, bytes. wire §4.1
const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

const MS: u64 = 1_000_000;

/// Configuration of an association.
#[derive(Clone, Debug)]
pub struct AssociationSettings {
    /// Settings of the admin queue's Connect and of the controller.
    pub controller: ControllerSettings,
    /// Secrets for authentication.
    pub credentials: Option<Arc<Credentials>>,
    /// Interval at which the admin queue authenticates again.
    pub reauthenticate: Option<Duration>,
    /// Whether to generate a key of TLS by the authentication.
    pub concat: bool,
    /// Parameters of the ICReq.
    pub offer: HostOffer,
    /// Timeout of each step of connecting, ns.
    pub connect_timeout_ns: u64,
    /// Timeout of an admin command, of a caller's command that waits for a lost association, and of the bring-up, ns.
    pub admin_timeout_ns: u64,
    /// Maximum lifetime of the association, ns; `None` for no limit.
    pub deadline_ns: Option<u64>,
    /// Delays between attempts to reconnect.
    pub reconnect: ReconnectSettings,
    /// Seed of the jitter.
    pub seed: u64,
}

/// A controller that is up.
#[derive(Clone, Debug)]
pub struct ControllerInfo {
    /// Controller id.
    pub cntlid: Cntlid,
    /// The target's address.
    pub peer: SocketAddr,
    /// Capabilities (CAP).
    pub cap: Cap,
    /// NVMe version (VS).
    pub vs: Vs,
    /// Identify Controller.
    pub identify: IdentifyController,
    /// Limits.
    pub limits: Limits,
    /// I/O queues granted.
    pub queue_pairs: u16,
    /// Outcome of the admin queue's handshake.
    pub agreement: Agreement,
}

/// An admin command of a caller.
#[derive(Clone, Debug)]
pub struct AdminRequest {
    /// Returned with the answer.
    pub id: u64,
    /// The command.
    pub sqe: Sqe,
    /// The data.
    pub data: RequestData,
    /// Decides whether it is submitted again after a reconnect.
    pub class: Class,
}

/// The answer to an admin command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminAnswer {
    /// The result dwords.
    pub result: u64,
    /// Data from the controller, at most as much as requested.
    pub data: Vec<u8>,
}

/// A change that the driver publishes to lanes and handles.
#[derive(Clone, Debug)]
pub enum MachineEvent {
    /// The association is up.
    Up {
        /// For lanes.
        attachment: Arc<Attachment>,
        /// For handles.
        controller: Arc<ControllerInfo>,
        /// All namespaces.
        namespaces: Arc<[NamespaceInfo]>,
    },
    /// The association was lost.
    Down {
        /// Its number.
        generation: u64,
        /// Why.
        cause: LinkError,
    },
    /// An attempt to reconnect failed; another follows.
    Failed {
        /// Attempts so far.
        attempts: u32,
        /// Why.
        cause: LinkError,
    },
    /// Namespaces have changed.
    Namespaces {
        /// Ids of namespaces that were added, removed or changed.
        changed: Vec<Nsid>,
        /// All namespaces.
        namespaces: Arc<[NamespaceInfo]>,
    },
    /// The controller has refused to authenticate the host again.
    AuthenticationFailed {
        /// Why.
        cause: LinkError,
    },
    /// The ANA log was read, or other storage was found under the id of a namespace: all that are not accessible.
    Inaccessible(Inaccessible),
    /// The discovery log has changed.
    Discovery,
    /// Another event of the controller.
    Event(AsyncEvent),
    /// The association ended for good.
    Over {
        /// Attempts to reconnect; 0 if there was none.
        attempts: u32,
        /// Why; `None` if it was closed by the host.
        cause: Option<LinkError>,
    },
}

/// An action that the machine asks its driver for.
#[derive(Clone, Debug)]
pub enum AssociationAction {
    /// Connect a socket to the target, then call [`on_connected`](AssociationMachine::on_connected) or
    /// [`on_lost`](AssociationMachine::on_lost).
    Open,
    /// Close the socket; if `at_once`, drop unsent data.
    Close {
        /// The association is lost, not shut down.
        at_once: bool,
    },
    /// Answer a caller.
    Answer {
        /// Id of the [`AdminRequest`].
        id: u64,
        /// The answer.
        answer: Result<AdminAnswer, Failure>,
    },
    /// Publish a change.
    Publish(MachineEvent),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting { due_ns: u64 },
    Opening { until_ns: u64 },
    Handshake { until_ns: u64 },
    BringUp { until_ns: u64 },
    Up,
    Over,
}

/// The machine's data about an outstanding command of the admin queue.
#[derive(Clone, Copy, Debug)]
struct Tag {
    owner: Owner,
    /// Timeout of the command, ns.
    deadline_ns: u64,
    /// When a caller's command ends if it is not outstanding, ns.
    until_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Controller(RequestId),
    Authentication,
    Caller { id: u64, class: Class },
    Abort,
}

/// State machine of an association; see the [module](self).
#[derive(Debug)]
pub struct AssociationMachine {
    settings: AssociationSettings,
    phase: Phase,
    queue: HostQueue<Vec<u8>, Tag>,
    controller: HostController,
    /// While the host authenticates on the admin queue.
    authentication: Option<QueueAuthentication>,
    reauthentication: Reauthentication,
    /// The key that the authentication of this attempt has generated.
    generated: Option<Arc<TlsPsk>>,
    /// The identities of a configured key of TLS that the next connection offers.
    identities: IdentityOffer,
    /// This attempt has offered others already.
    has_offered_others: bool,
    /// The identities of its namespaces.
    known: KnownNamespaces,
    peer: Option<SocketAddr>,
    backoff: Backoff,
    /// Number of the association that is up, or of the next one.
    generation: u64,
    was_up: bool,
    attempts: u32,
    /// Callers' commands that wait to be sent, each with the time at which it ends, ns.
    requests: VecDeque<(u64, AdminRequest)>,
    requests_out: usize,
    aborts: VecDeque<(Qid, u16)>,
    aborts_out: usize,
    is_closing: bool,
    /// When the association ends for good, ns.
    deadline_ns: u64,
    actions: VecDeque<AssociationAction>,
}

impl AssociationMachine {
    /// A machine whose first action is to connect.
    #[must_use]
    pub fn new(settings: AssociationSettings, now_ns: u64) -> Self {
        let mut machine = Self {
            phase: Phase::Waiting { due_ns: now_ns },
            queue: HostQueue::new(settings.offer, ADMIN_QUEUE_ENTRIES - 1),
            controller: HostController::new(settings.controller.clone()),
            authentication: None,
            reauthentication: Reauthentication::new(settings.reauthenticate),
            generated: None,
            identities: IdentityOffer::default(),
            has_offered_others: false,
            known: KnownNamespaces::default(),
            peer: None,
            backoff: Backoff::new(settings.reconnect, settings.seed),
            generation: 1,
            was_up: false,
            attempts: 0,
            requests: VecDeque::new(),
            requests_out: 0,
            aborts: VecDeque::new(),
            aborts_out: 0,
            is_closing: false,
            deadline_ns: settings.deadline_ns.map_or(u64::MAX, |limit_ns| now_ns.saturating_add(limit_ns)),
            actions: VecDeque::new(),
            settings,
        };
        machine.open(now_ns);
        machine
    }

    /// Whether the association ended for good.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The connection's phase in words, for messages.
    #[must_use]
    pub fn doing(&self) -> &'static str {
        match self.phase {
            Phase::Opening { .. } => "TCP connect",
            Phase::Handshake { .. } => "handshake",
            Phase::BringUp { .. } => "bring-up",
            Phase::Waiting { .. } | Phase::Up | Phase::Over => "operation",
        }
    }

    /// Timeout of each step of connecting, ns.
    #[must_use]
    pub fn connect_timeout_ns(&self) -> u64 {
        self.settings.connect_timeout_ns
    }

    /// The key of TLS for the connection to open, if one was generated.
    #[must_use]
    pub fn generated_key(&self) -> Option<&TlsPsk> {
        self.generated.as_deref()
    }

    /// The identities of a configured key of TLS for the connection to open.
    #[must_use]
    pub fn identities(&self) -> IdentityOffer {
        self.identities
    }

    /// Whether the present connection is to be closed and another one opened: its bytes mean nothing any more.
    #[must_use]
    pub fn opens_again(&self) -> bool {
        matches!(self.phase, Phase::Opening { .. })
    }

    fn open(&mut self, now_ns: u64) {
        self.has_offered_others = false;
        // Each attempt generates its own: the target may have been restarted, and has no other then.
        self.open_with(None, now_ns);
    }

    fn open_with(&mut self, generated: Option<Arc<TlsPsk>>, now_ns: u64) {
        self.generated = generated;
        self.queue = HostQueue::new(self.settings.offer, ADMIN_QUEUE_ENTRIES - 1);
        self.queue.set_in_capsule_bytes(ADMIN_IN_CAPSULE_BYTES);
        self.controller = HostController::new(self.settings.controller.clone());
        self.authentication = None;
        self.reauthentication.stop();
        self.phase = Phase::Opening { until_ns: self.until(now_ns) };
        self.actions.push_back(AssociationAction::Open);
    }

    fn until(&self, now_ns: u64) -> u64 {
        now_ns.saturating_add(self.settings.connect_timeout_ns)
    }

    /// The socket is connected to `peer`.
    pub fn on_connected(&mut self, peer: SocketAddr, now_ns: u64) {
        if let Phase::Opening { .. } = self.phase {
            self.peer = Some(peer);
            self.phase = Phase::Handshake { until_ns: self.until(now_ns) };
        }
    }

    /// The connection was lost, or the attempt to connect failed.
    pub fn on_lost(&mut self, cause: LinkError, now_ns: u64) {
        if matches!(self.phase, Phase::Waiting { .. } | Phase::Over) {
            return;
        }
        let cause = match &self.authentication {
            Some(authentication) => authentication.cause_of_loss(cause),
            None => cause,
        };
        self.actions.push_back(AssociationAction::Close { at_once: true });
        self.judge();
        self.aborts.clear();
        if self.is_closing {
            self.finish(None);
            return;
        }
        if self.deadline_ns <= now_ns {
            self.finish(Some(cause));
            return;
        }
        if self.opens_again() && !self.has_offered_others && may_need_other_identities(&cause) {
            self.identities = self.identities.other();
            self.has_offered_others = true;
            tracing::debug!(%cause, identities = ?self.identities, "TLS refused: offering other identities of the key");
            self.open_with(None, now_ns);
            return;
        }
        if self.phase == Phase::Up {
            let generation = self.generation;
            self.generation += 1;
            self.attempts = 0;
            let event = MachineEvent::Down { generation, cause: cause.clone() };
            self.actions.push_back(AssociationAction::Publish(event));
            // The cause says nothing about the next association.
            match self.backoff.on_lost(now_ns) {
                Some(due_ns) => self.phase = Phase::Waiting { due_ns },
                None => self.finish(Some(cause)),
            }
            return;
        }
        if !self.was_up {
            self.finish(Some(cause));
            return;
        }
        self.attempts += 1;
        let next = if cause.ends_attempts() { None } else { self.backoff.on_failed(now_ns) };
        match next {
            Some(due_ns) => {
                let event = MachineEvent::Failed { attempts: self.attempts, cause };
                self.actions.push_back(AssociationAction::Publish(event));
                self.phase = Phase::Waiting { due_ns };
            }
            None => self.finish(Some(cause)),
        }
    }

    /// A lane of association `generation` has lost its connection: that ends the association.
    pub fn on_lane_lost(&mut self, generation: u64, cause: LinkError, now_ns: u64) {
        if self.phase != Phase::Up || generation != self.generation {
            return;
        }
        if cause.ends_attempts() {
            // The next controller would refuse the queue as well.
            self.actions.push_back(AssociationAction::Close { at_once: true });
            self.judge();
            self.finish(Some(cause));
        } else {
            self.on_lost(cause, now_ns);
        }
    }

    /// Ends outstanding requests; those that change nothing are submitted again.
    fn judge(&mut self) {
        (self.requests_out, self.aborts_out) = (0, 0);
        while let Some(command) = self.queue.next_unfinished_command() {
            let Owner::Caller { id, class } = command.user.owner else { continue };
            match fate(class, command.is_unsent, ReplayPolicy::ReadsOnly, true) {
                Fate::Replay => {
                    let data = match command.transfer {
                        Transfer::None => RequestData::None,
                        Transfer::ToController(data) => RequestData::ToController(data),
                        Transfer::FromController { buffer, .. } => {
                            RequestData::FromController(u32::try_from(buffer.len()).expect("was one"))
                        }
                    };
                    self.requests.push_front((
                        command.user.until_ns,
                        AdminRequest { id, sqe: command.sqe, data, class },
                    ));
                }
                Fate::End(failure) => self.answer(id, Err(failure)),
            }
        }
    }

    fn answer(&mut self, id: u64, answer: Result<AdminAnswer, Failure>) {
        self.actions.push_back(AssociationAction::Answer { id, answer });
    }

    /// Ends the association for good, and every waiting request.
    fn finish(&mut self, cause: Option<LinkError>) {
        self.phase = Phase::Over;
        while let Some((_, request)) = self.requests.pop_front() {
            self.answer(request.id, Err(Failure::Unreachable));
        }
        let event = MachineEvent::Over { attempts: self.attempts, cause };
        self.actions.push_back(AssociationAction::Publish(event));
    }

    /// Submits a caller's command, now or once the association is up.
    pub fn submit(&mut self, request: AdminRequest, now_ns: u64) {
        if self.phase == Phase::Over || self.is_closing {
            self.answer(request.id, Err(Failure::Unreachable));
        } else {
            let until_ns = now_ns.saturating_add(self.settings.admin_timeout_ns);
            self.requests.push_back((until_ns, request));
        }
    }

    /// Aborts a command of a lane of association `generation`.
    pub fn abort(&mut self, generation: u64, qid: Qid, cid: u16) {
        if self.phase == Phase::Up && generation == self.generation {
            self.aborts.push_back((qid, cid));
        }
    }

    /// Identifies all namespaces again.
    pub fn rescan(&mut self) {
        self.controller.rescan();
    }

    /// Shuts the controller down and ends the association.
    pub fn close(&mut self) {
        if self.is_closing || self.phase == Phase::Over {
            return;
        }
        self.is_closing = true;
        while let Some((_, request)) = self.requests.pop_front() {
            self.answer(request.id, Err(Failure::Unreachable));
        }
        match self.phase {
            Phase::BringUp { .. } | Phase::Up => self.controller.shut_down(),
            _ => {
                self.actions.push_back(AssociationAction::Close { at_once: true });
                self.finish(None);
            }
        }
    }

    /// Processes received bytes.
    ///
    /// # Errors
    /// Why the connection must be closed: pass it to [`on_lost`](Self::on_lost).
    pub fn on_bytes(&mut self, input: &mut &[u8], now_ns: u64) -> Result<(), LinkError> {
        if matches!(self.phase, Phase::Waiting { .. } | Phase::Over) {
            // The host closes this connection next, and no command waits for these answers.
            *input = &[];
            return Ok(());
        }
        while let Some(event) = self.queue.next_event(input)? {
            match event {
                HostEvent::Initialised(_) => {
                    let until_ns = now_ns.saturating_add(self.settings.admin_timeout_ns);
                    self.phase = Phase::BringUp { until_ns };
                }
                HostEvent::Completed(completion) => self.on_completion(completion, now_ns)?,
            }
            if self.opens_again() {
                *input = &[];
                return Ok(());
            }
        }
        Ok(())
    }

    fn on_completion(
        &mut self,
        completion: host_queue::Completion<Vec<u8>, Tag>,
        now_ns: u64,
    ) -> Result<(), LinkError> {
        let host_queue::Completion { user: tag, status, result, received, buffer } = completion;
        let mut data = buffer.unwrap_or_default();
        data.truncate(received as usize);
        match tag.owner {
            Owner::Controller(id) => {
                let was_connected = self.controller.cntlid() != Cntlid::DYNAMIC;
                self.controller.on_completion(id, (status, result), &data, now_ns)?;
                if !was_connected && self.controller.cntlid() != Cntlid::DYNAMIC {
                    self.on_connect_accepted()?;
                }
            }
            Owner::Authentication => self.on_authentication_completion(status, &data, now_ns)?,
            Owner::Caller { id, .. } => {
                self.requests_out -= 1;
                let answer = match status.is_success() {
                    true => Ok(AdminAnswer { result, data }),
                    false => Err(Failure::Status(status)),
                };
                self.answer(id, answer);
            }
            // The aborted command's own completion shows the outcome. wire §18
            Owner::Abort => self.aborts_out -= 1,
        }
        Ok(())
    }

    /// A command of an authentication has ended.
    fn on_authentication_completion(
        &mut self,
        status: Status,
        data: &[u8],
        now_ns: u64,
    ) -> Result<(), LinkError> {
        let Some(authentication) = &mut self.authentication else { return Ok(()) };
        match authentication.on_completion(status, data) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(cause) if self.phase == Phase::Up && !ends_connection(&cause) => {
                let event = MachineEvent::AuthenticationFailed { cause };
                self.actions.push_back(AssociationAction::Publish(event));
            }
            Err(cause) => return Err(cause),
        }
        let generated = authentication.take_generated();
        self.authentication = None;
        if let Some(generated) = generated {
            self.secure(generated?, now_ns);
            return Ok(());
        }
        self.controller.on_authenticated();
        self.reauthentication.on_ended(now_ns);
        Ok(())
    }

    /// Begins to authenticate again, if that is due.
    fn authenticate_again(&mut self, now_ns: u64) -> Result<(), LinkError> {
        if self.phase != Phase::Up || now_ns < self.reauthentication.due_ns() {
            return Ok(());
        }
        self.reauthentication.stop();
        let credentials = self.settings.credentials.as_deref();
        let again = QueueAuthentication::new(credentials, &self.settings.controller, SecureChannel::None)?;
        self.authentication = Some(again);
        Ok(())
    }

    /// The Connect of the admin queue was accepted: begins to authenticate if the controller asks for it.
    fn on_connect_accepted(&mut self) -> Result<(), LinkError> {
        let credentials = self.settings.credentials.as_deref();
        let wants_key = self.settings.concat && self.generated.is_none();
        if self.controller.demand() == Demand::SecureChannel && !wants_key {
            return Err(ControllerError::SecureChannelRequired.into());
        }
        if self.controller.must_authenticate() {
            let channel = if wants_key { SecureChannel::NewTlsPsk } else { SecureChannel::None };
            let authentication = QueueAuthentication::new(credentials, &self.settings.controller, channel)?;
            self.authentication = Some(authentication);
        } else if !self.settings.controller.is_discovery && self.generated.is_none() {
            Credentials::check_unasked(credentials)?;
            if wants_key {
                return Err(LinkError::NoSecureChannel);
            }
        }
        Ok(())
    }

    /// Closes the unencrypted connection, and opens one with TLS by this key.
    fn secure(&mut self, key: TlsPsk, now_ns: u64) {
        self.actions.push_back(AssociationAction::Close { at_once: false });
        self.open_with(Some(Arc::new(key)), now_ns);
    }

    /// Submits pending commands and handles timeouts.
    ///
    /// # Errors
    /// Why the connection must be closed: pass it to [`on_lost`](Self::on_lost).
    pub fn advance(&mut self, now_ns: u64) -> Result<(), LinkError> {
        if self.phase == Phase::Over {
            return Ok(());
        }
        if self.deadline_ns <= now_ns {
            self.expire(now_ns);
            return Ok(());
        }
        self.end_late_requests(now_ns);
        match self.phase {
            Phase::BringUp { until_ns } if until_ns <= now_ns => {
                let waited = Duration::from_nanos(self.settings.admin_timeout_ns);
                return Err(LinkError::TimedOut { to: "the bring-up", waited });
            }
            Phase::Waiting { due_ns } if due_ns <= now_ns => self.open(now_ns),
            Phase::Opening { until_ns } | Phase::Handshake { until_ns } if until_ns <= now_ns => {
                let waited = Duration::from_nanos(self.settings.connect_timeout_ns);
                return Err(LinkError::TimedOut { to: self.doing(), waited });
            }
            Phase::BringUp { .. } | Phase::Up => {
                self.check_deadlines(now_ns)?;
                self.authenticate_again(now_ns)?;
                self.submit_own(now_ns)?;
                self.submit_others(now_ns);
                self.take_notices(now_ns);
            }
            _ => {}
        }
        Ok(())
    }

    /// The association's deadline has passed.
    fn expire(&mut self, now_ns: u64) {
        let limit = Duration::from_nanos(self.settings.deadline_ns.unwrap_or(0));
        if let Phase::Waiting { .. } = self.phase {
            // There is no connection to close.
            return self.finish(Some(LinkError::Deadline { limit, during: "attempts to reconnect" }));
        }
        self.on_lost(LinkError::Deadline { limit, during: self.doing() }, now_ns);
    }

    /// Ends callers' commands that waited too long for an association.
    fn end_late_requests(&mut self, now_ns: u64) {
        if self.phase == Phase::Up || self.requests.iter().all(|(until_ns, _)| *until_ns > now_ns) {
            return;
        }
        let waited = Waited::from_ms(u32::try_from(self.settings.admin_timeout_ns / MS).unwrap_or(u32::MAX));
        let (late, waiting) =
            std::mem::take(&mut self.requests).into_iter().partition(|(until_ns, _)| *until_ns <= now_ns);
        self.requests = waiting;
        let late: VecDeque<(u64, AdminRequest)> = late;
        for (_, request) in late {
            self.answer(request.id, Err(Failure::NoConnection { waited }));
        }
    }

    /// A command of association `generation` ended with a status that the ANA log explains: reads the log again.
    pub fn read_ana(&mut self, generation: u64) {
        if self.phase == Phase::Up && generation == self.generation {
            self.controller.read_ana();
        }
    }

    fn check_deadlines(&self, now_ns: u64) -> Result<(), LinkError> {
        let late = self.queue.commands().find(|(_, tag)| tag.deadline_ns <= now_ns);
        let Some((_, tag)) = late else { return Ok(()) };
        let is_step = matches!(tag.owner, Owner::Controller(RequestId::Step) | Owner::Authentication);
        let waited_ns =
            if is_step { self.settings.connect_timeout_ns } else { self.settings.admin_timeout_ns };
        let to = if is_step { "a command of the bring-up" } else { "an admin command" };
        Err(LinkError::TimedOut { to, waited: Duration::from_nanos(waited_ns) })
    }

    fn submit_own(&mut self, now_ns: u64) -> Result<(), LinkError> {
        if let Some((sqe, data)) = self.authentication.as_mut().and_then(QueueAuthentication::next_command) {
            let deadline_ns = now_ns.saturating_add(self.settings.connect_timeout_ns);
            self.send(sqe, data, Tag { owner: Owner::Authentication, deadline_ns, until_ns: deadline_ns });
        }
        while self.queue.has_room()
            && let Some(request) = self.controller.next_request(now_ns)?
        {
            let timeout_ns = match request.id {
                RequestId::Event => u64::MAX,
                RequestId::Step => self.settings.connect_timeout_ns,
                _ => self.settings.admin_timeout_ns,
            };
            // The controller's state machine checks the length of each answer.
            let deadline_ns = now_ns.saturating_add(timeout_ns);
            let tag = Tag { owner: Owner::Controller(request.id), deadline_ns, until_ns: deadline_ns };
            self.send(request.sqe, request.data, tag);
        }
        Ok(())
    }

    fn submit_others(&mut self, now_ns: u64) {
        if self.phase != Phase::Up {
            return;
        }
        let aborts_max =
            self.controller.limits().map_or(1, |limits| usize::from(limits.abort_limit)).min(ABORTS_MAX);
        let timeout_ns = self.settings.admin_timeout_ns;
        while self.aborts_out < aborts_max
            && let Some((qid, cid)) = self.aborts.pop_front()
        {
            self.aborts_out += 1;
            let deadline_ns = now_ns.saturating_add(timeout_ns);
            let tag = Tag { owner: Owner::Abort, deadline_ns, until_ns: deadline_ns };
            self.send(Sqe::abort(qid, cid), RequestData::None, tag);
        }
        while self.requests_out < CALLER_REQUESTS_MAX
            && let Some((until_ns, request)) = self.requests.pop_front()
        {
            self.requests_out += 1;
            let owner = Owner::Caller { id: request.id, class: request.class };
            let deadline_ns = now_ns.saturating_add(timeout_ns);
            self.send(request.sqe, request.data, Tag { owner, deadline_ns, until_ns });
        }
    }

    fn send(&mut self, sqe: Sqe, data: RequestData, tag: Tag) {
        let transfer = match data {
            RequestData::None => Transfer::None,
            RequestData::ToController(data) => Transfer::ToController(data),
            RequestData::FromController(length) => {
                Transfer::FromController { buffer: vec![0; length as usize], is_exact: false }
            }
        };
        // Own commands, requests and Aborts together are fewer than the queue's entries: see the assertion above.
        let taken = self.queue.submit(sqe, transfer, tag);
        debug_assert!(taken.is_ok(), "the admin queue has room");
    }

    fn take_notices(&mut self, now_ns: u64) {
        while let Some(notice) = self.controller.next_notice() {
            let namespaces = || self.controller.namespaces().into();
            let event = match notice {
                Notice::Live => match self.up(now_ns) {
                    Some(event) => event,
                    None => continue,
                },
                Notice::NamespacesChanged(changed) => {
                    if self.known.on_scan(self.controller.namespaces()) {
                        // Before the callers get them again.
                        let inaccessible = self.known.with_replaced(self.controller.inaccessible());
                        let event = MachineEvent::Inaccessible(inaccessible);
                        self.actions.push_back(AssociationAction::Publish(event));
                    }
                    MachineEvent::Namespaces { changed, namespaces: namespaces() }
                }
                Notice::AnaRead => {
                    MachineEvent::Inaccessible(self.known.with_replaced(self.controller.inaccessible()))
                }
                Notice::DiscoveryChanged => MachineEvent::Discovery,
                Notice::Event(event) => MachineEvent::Event(event),
                Notice::Down => {
                    self.actions.push_back(AssociationAction::Close { at_once: false });
                    self.finish(None);
                    return;
                }
            };
            self.actions.push_back(AssociationAction::Publish(event));
        }
    }

    fn up(&mut self, now_ns: u64) -> Option<MachineEvent> {
        let (limits, identify) = (*self.controller.limits()?, *self.controller.identify()?);
        let peer = self.peer?;
        self.phase = Phase::Up;
        self.was_up = true;
        self.backoff.on_up(now_ns);
        self.known.on_scan(self.controller.namespaces());
        let (cntlid, queue_pairs) = (self.controller.cntlid(), self.controller.queue_pairs());
        let controller = ControllerInfo {
            cntlid,
            peer,
            cap: self.controller.cap(),
            vs: self.controller.vs(),
            identify,
            limits,
            queue_pairs,
            agreement: self.queue.agreement(),
        };
        let attachment = Attachment {
            generation: self.generation,
            cntlid,
            peer,
            settings: self.settings.controller.clone(),
            credentials: self.settings.credentials.clone(),
            generated: self.generated.clone(),
            identities: self.identities,
            limits,
            queue_pairs,
            partition_count: partition_count_of(self.controller.namespaces()),
            has_long_values: has_long_values(self.controller.namespaces()),
            inaccessible: self.known.with_replaced(self.controller.inaccessible()),
        };
        Some(MachineEvent::Up {
            attachment: Arc::new(attachment),
            controller: Arc::new(controller),
            namespaces: self.controller.namespaces().into(),
        })
    }

    /// When to [`advance`](Self::advance) at the latest, ns.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let phase_ns = match self.phase {
            Phase::Waiting { due_ns: at }
            | Phase::Opening { until_ns: at }
            | Phase::Handshake { until_ns: at } => Some(at),
            Phase::BringUp { .. } | Phase::Up => {
                let late = self.queue.commands().map(|(_, tag)| tag.deadline_ns).min();
                let bring_up_ns =
                    if let Phase::BringUp { until_ns } = self.phase { Some(until_ns) } else { None };
                // It may be due while the controller is brought up, and waits for that.
                let again_ns = Some(self.reauthentication.due_ns()).filter(|_| self.phase == Phase::Up);
                [late, bring_up_ns, again_ns, self.controller.next_deadline()].into_iter().flatten().min()
            }
            Phase::Over => return None,
        };
        let requests_ns =
            self.requests.iter().map(|(until_ns, _)| *until_ns).min().filter(|_| self.phase != Phase::Up);
        let all = [phase_ns, requests_ns, Some(self.deadline_ns)].into_iter().flatten();
        all.min().filter(|at_ns| *at_ns != u64::MAX)
    }

    /// The next action for the driver.
    pub fn next_action(&mut self) -> Option<AssociationAction> {
        self.actions.pop_front()
    }

    /// Rings the doorbell. Returns whether a caravan is being sent.
    pub fn ring(&mut self) -> bool {
        match self.phase {
            Phase::Handshake { .. } | Phase::BringUp { .. } | Phase::Up => {
                self.queue.ring() || self.queue.caravan().is_leaving()
            }
            _ => false,
        }
    }

    /// Calls `each` with the pieces of the caravan being sent, in order, until it returns false.
    pub fn for_each_piece<'a>(&'a self, each: impl FnMut(&'a [u8]) -> bool) {
        self.queue.for_each_piece(each);
    }

    /// The kernel accepted `count` bytes.
    pub fn on_sent(&mut self, count: usize) {
        self.queue.on_sent(count);
    }

    /// Whether completions are ready without input: call [`on_bytes`](Self::on_bytes) with none.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.queue.has_finished()
    }

    /// The TermReq for a violation of the target, if it can be sent now.
    #[must_use]
    pub fn term_req(&self, violation: Violation) -> Option<Vec<u8>> {
        if self.queue.caravan().is_leaving() { None } else { self.queue.fail(violation) }
    }
}

/// Whether one of these namespaces has the commands for long values.
fn has_long_values(namespaces: &[NamespaceInfo]) -> bool {
    let mut commands = namespaces.iter().filter_map(|info| Some(info.keys?.vendor.commands));
    commands.any(|commands| commands.contains(KvVendorCommands::VALUE))
}

/// The most partitions that one of these namespaces tells a map of; 0 if none does.
fn partition_count_of(namespaces: &[NamespaceInfo]) -> u16 {
    let partitions = namespaces.iter().filter_map(|info| info.keys?.vendor.partitions);
    partitions.map(|partitions| partitions.count).max().unwrap_or(0)
}
