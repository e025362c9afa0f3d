//! The host's side of one controller: bring-up, keep-alive, events, namespaces, shutdown. wire §8, §9, §13, §24
//!
//! ```text
//! Connect ─▶ (Authenticate) ─▶ ReadCap ─▶ ReadVs ─▶ Enable ─▶ AwaitReady ─▶ Identify ─▶ ReadLimits ─▶ SetQueues ─▶ SetEvents ─▶ Scan
//!                                                                                                      │
//!      Down ◀─ AwaitShutdown ◀─ RequestShutdown ◀────────────shut_down──────────────── Live ◀──────────┘
//! ```
//!
//! Steps that do not apply are skipped: a discovery controller has no queues and no namespaces. Invalid properties and
//! data of a controller are refused here, before anything depends on them.

use std::fmt;
use std::time::Duration;

use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::fabrics::{ConnectAttributes, ConnectCommand, ConnectData, ConnectResult, InvalidParameter};
use wire::feature::{Fid, NumberOfQueues};
use wire::id::{Cntlid, Csi, Nsid, Qid};
use wire::identify::command_set::NvmController;
use wire::identify::controller::IdentifyController;
use wire::identify::{Cns, IDENTIFY_BYTES};
use wire::log::Lid;
use wire::log::ana::AnaState;
use wire::log::namespaces::CHANGED_NAMESPACES_BYTES;
use wire::nqn::{HostId, Nqn};
use wire::property::{
    Cap, Cc, CommandSetSelection, Csts, Property, ShutdownNotification, ShutdownStatus, Vs,
};
use wire::sqe::Sqe;
use wire::status::{Status, StatusTable};
use zerocopy::{FromBytes, IntoBytes};

use crate::host_ana::HostAna;
use crate::host_limits::{Limits, UnusableField};
use crate::host_namespaces::{NamespaceInfo, SCAN_COMMANDS_MAX, Scan, changes};

/// Entries of an admin queue: what Linux asks for. wire §24
pub const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// Commands of the controller's own on the admin queue at most: event requests, a scan, the ANA log, keep-alive, one
/// more step.
pub const OWN_COMMANDS_MAX: u16 = 4 + SCAN_COMMANDS_MAX as u16 + 3;

/// Intervals between reads of CSTS while a change is awaited, ns: the shortest first, doubled up to the longest.
const POLL_NS_FIRST: u64 = 1_000_000;
const POLL_NS_MAX: u64 = 100_000_000;

/// The least time a controller gets to become ready, whatever CAP.TO says, ns.
const READY_NS_MIN: u64 = 1_000_000_000;

/// Longest time of a shutdown, ns, whatever the controller reports (RTD3E).
const SHUTDOWN_NS_MIN: u64 = 1_000_000_000;
const SHUTDOWN_NS_MAX: u64 = 5_000_000_000;

/// Events that are asked for again at once within [`EVENT_PERIOD_NS`]; further ones wait until it is over. hostile H21
const EVENT_BURST: u32 = 16;
const EVENT_PERIOD_NS: u64 = 1_000_000_000;

const MS: u64 = 1_000_000;

/// The changed namespaces log, which is read whole.
#[allow(clippy::cast_possible_truncation, reason = "a page")]
const CHANGED_LOG_BYTES: u32 = CHANGED_NAMESPACES_BYTES as u32;

/// Settings of a host for one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerSettings {
    /// Our name.
    pub host: Nqn,
    /// Our identifier.
    pub hostid: HostId,
    /// The subsystem.
    pub subsystem: Nqn,
    /// Whether it is a discovery service: no I/O queues, no namespaces.
    pub is_discovery: bool,
    /// Keep-alive timeout, ms; 0 for none.
    pub keep_alive_ms: u32,
    /// I/O queues wanted.
    pub queue_pairs: u16,
    /// SQ flow control off: reads may end without a completion of their own. wire §4.2
    pub is_flow_control_disabled: bool,
}

/// The Connect of one queue. wire §6.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConnect {
    /// The queue.
    pub qid: Qid,
    /// Its controller; [`Cntlid::DYNAMIC`] on the admin queue.
    pub cntlid: Cntlid,
    /// Its entries.
    pub entries: u32,
    /// The partition of key-value namespaces that the queue is to be near, of a controller that knows such a wish.
    pub near_partition: Option<u16>,
}

impl QueueConnect {
    /// The command and its data.
    #[must_use]
    pub fn command(&self, settings: &ControllerSettings) -> (Sqe, ConnectData) {
        let is_disabled = settings.is_flow_control_disabled && !self.qid.is_admin();
        let command = ConnectCommand {
            recfmt: 0,
            qid: self.qid,
            queue_entries: self.entries,
            attributes: ConnectAttributes::from_bits(0).with_disable_sq_flow_control(is_disabled),
            kato_ms: if self.qid.is_admin() { settings.keep_alive_ms } else { 0 },
            near_partition: self.near_partition,
        };
        let data = ConnectData::new(settings.hostid, self.cntlid, &settings.subsystem, &settings.host);
        (command.to_sqe(), data)
    }

    /// Checks the answer. wire §6.3
    ///
    /// # Errors
    /// Refused, or another controller than the one named.
    pub fn on_completion(&self, status: Status, result: u64) -> Result<Connected, ControllerError> {
        let dw0 = dword_0(result);
        if !status.is_success() {
            let names_parameter = status.is(Status::CONNECT_INVALID_PARAMETERS);
            let parameter = names_parameter.then(|| InvalidParameter::from_bits(dw0));
            return Err(ControllerError::ConnectRefused { qid: self.qid, status, parameter });
        }
        let result = ConnectResult::from_bits(dw0);
        let cntlid = Cntlid::new(result.cntlid());
        // Queues of one association have one controller; some say 0 where the Connect has named it. hostile H20
        let is_named = self.cntlid != Cntlid::DYNAMIC;
        if is_named && cntlid != self.cntlid && cntlid.get() != 0 {
            return Err(ControllerError::OtherController { expected: self.cntlid, got: cntlid });
        }
        if cntlid > Cntlid::MAX {
            return Err(ControllerError::OtherController { expected: Cntlid::MAX, got: cntlid });
        }
        let demand = match (result.secure_channel_required(), result.authentication_required()) {
            (true, _) => Demand::SecureChannel,
            (false, true) => Demand::Authentication,
            (false, false) => Demand::None,
        };
        Ok(Connected { cntlid, demand })
    }
}

/// A queue that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Its controller.
    pub cntlid: Cntlid,
    /// The step that it must take before anything else.
    pub demand: Demand,
}

/// The step that a controller requires of a queue before anything else. wire §6.3
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// Nothing.
    #[default]
    None,
    /// Authentication (ATR).
    Authentication,
    /// Authentication that generates a key, and TLS with that key (ASCR).
    SecureChannel,
}

/// The reason for which a controller cannot be used, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// A queue was refused.
    #[error("Connect refused: {}{}", ConnectStatus(*status), ParameterName(*parameter))]
    ConnectRefused {
        /// The queue.
        qid: Qid,
        /// The controller's status.
        status: Status,
        /// The invalid field that it reports, if any.
        parameter: Option<InvalidParameter>,
    },
    /// The controller requires authentication, and there is no secret.
    #[error("the controller requires authentication: a secret is needed")]
    AuthenticationRequired,
    /// The controller requires a secure channel.
    #[error("the controller requires a secure channel")]
    SecureChannelRequired,
    /// A queue ended up with another controller.
    #[error("connected to controller {got} in place of {expected}")]
    OtherController {
        /// The id it must have.
        expected: Cntlid,
        /// The id it has.
        got: Cntlid,
    },
    /// A required command was refused.
    #[error("{command} refused: {status}")]
    Refused {
        /// Its name.
        command: &'static str,
        /// The controller's status.
        status: Status,
    },
    /// It reports a fatal state (CSTS.CFS).
    #[error("the controller reports that it has failed (CSTS.CFS)")]
    Failed,
    /// It did not become ready within its own timeout.
    #[error("the controller was not ready after {} ms", waited.as_millis())]
    NotReady {
        /// How long we waited.
        waited: Duration,
    },
    /// Its Identify data is invalid.
    #[error("Identify Controller: {0}")]
    Unusable(#[from] UnusableField),
    /// Keep-alives stay unanswered.
    #[error("no answer to a keep-alive for {} ms", waited.as_millis())]
    KeepAliveUnanswered {
        /// How long we waited.
        waited: Duration,
    },
    /// It reports a persistent internal error.
    #[error("the controller reports a persistent internal error")]
    InternalError,
}

impl ControllerError {
    /// Whether another attempt would fail as well.
    #[must_use]
    pub fn is_permanent(self) -> bool {
        match self {
            Self::ConnectRefused { status, .. } => status.dnr(),
            Self::AuthenticationRequired | Self::SecureChannelRequired | Self::Unusable(_) => true,
            _ => false,
        }
    }
}

/// The text of a status of Connect, whose codes have other meanings elsewhere.
struct ConnectStatus(Status);

impl fmt::Display for ConnectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.name_in(StatusTable::Fabrics).unwrap_or("unknown status");
        write!(f, "{name} ({:#05x})", self.0.code())?;
        if self.0.dnr() { f.write_str(", do not retry") } else { Ok(()) }
    }
}

/// ", subsystem name" and the like.
struct ParameterName(Option<InvalidParameter>);

impl fmt::Display for ParameterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parameter) = self.0 else { return Ok(()) };
        let Some(name) = parameter.name() else {
            let place = if parameter.in_data() { "data" } else { "command" };
            return write!(f, ", byte {} of the {place}", parameter.offset());
        };
        write!(f, ", {name}")
    }
}

/// The id of a command that the controller's machine submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestId {
    /// The command of the current step.
    Step,
    /// Keep Alive.
    KeepAlive,
    /// An Asynchronous Event Request. It may stay open for ever: no deadline.
    Event,
    /// The changed namespaces log.
    ChangedLog,
    /// The ANA log.
    AnaLog,
    /// A command of the scan.
    Scan(u8),
}

/// Data of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestData {
    /// None.
    None,
    /// To the controller.
    ToController(Vec<u8>),
    /// This number of bytes from the controller.
    FromController(u32),
}

/// A command to submit on the admin queue.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its id, returned with the answer.
    pub id: RequestId,
    /// The command.
    pub sqe: Sqe,
    /// Its data.
    pub data: RequestData,
}

/// A notice for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The controller is brought up: I/O queues can be connected.
    Live,
    /// These namespaces were added, removed or changed, as [`HostController::namespaces`] shows.
    NamespacesChanged(Vec<Nsid>),
    /// The ANA log was read: see [`HostController::inaccessible`].
    AnaRead,
    /// The discovery log has changed. Read it without RAE to receive the next such event.
    DiscoveryChanged,
    /// Another event.
    Event(AsyncEvent),
    /// The shutdown is over, reported or given up: close the connections.
    Down,
}

/// The state of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connect,
    /// The host authenticates, by commands of its own.
    Authenticate,
    ReadCap,
    ReadVs,
    Enable,
    AwaitReady(Poll),
    Identify,
    ReadLimits,
    SetQueues,
    SetEvents,
    /// The first scan runs.
    Scan,
    Live,
    RequestShutdown,
    AwaitShutdown(Poll),
    Down,
}

/// The first of a completion's two result dwords.
const fn dword_0(result: u64) -> u32 {
    (result & 0xffff_ffff) as u32
}

/// A property that is read periodically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Poll {
    since_ns: u64,
    next_ns: u64,
    interval_ns: u64,
}

impl Poll {
    fn new(now_ns: u64) -> Self {
        Self { since_ns: now_ns, next_ns: now_ns, interval_ns: POLL_NS_FIRST }
    }

    fn again(self, now_ns: u64) -> Self {
        let interval_ns = self.interval_ns.saturating_mul(2).min(POLL_NS_MAX);
        Self { next_ns: now_ns.saturating_add(self.interval_ns), interval_ns, ..self }
    }

    fn waited_ns(self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.since_ns)
    }
}

/// The keep-alive timer of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeepAlive {
    /// Not before the controller is ready, or never.
    Off,
    /// The next one is due at this time, ns.
    Due(u64),
    /// One has been outstanding since this time, ns.
    Out(u64),
}

/// Event requests: the number wanted, and the limit on their rate.
#[derive(Clone, Copy, Debug, Default)]
struct EventRequests {
    to_send: u16,
    /// Events since `period_start_ns`.
    burst: u32,
    period_start_ns: u64,
}

impl EventRequests {
    /// Time at which the next request may be sent, ns; `None` if none is wanted.
    fn due_ns(&self) -> Option<u64> {
        let due_ns = match self.burst < EVENT_BURST {
            true => 0,
            false => self.period_start_ns.saturating_add(EVENT_PERIOD_NS),
        };
        (self.to_send > 0).then_some(due_ns)
    }

    fn on_event(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.period_start_ns) >= EVENT_PERIOD_NS {
            (self.period_start_ns, self.burst) = (now_ns, 0);
        }
        self.burst = self.burst.saturating_add(1);
        self.to_send = self.to_send.saturating_add(1);
    }
}

/// A controller from Connect to its end.
///
/// Input is [`on_completion`](Self::on_completion), wishes are [`shut_down`](Self::shut_down) and
/// [`rescan`](Self::rescan); draw [`next_request`](Self::next_request) and [`next_notice`](Self::next_notice) until
/// `None`, and again at [`next_deadline`](Self::next_deadline).
#[derive(Debug)]
pub struct HostController {
    settings: ControllerSettings,
    state: State,
    /// The command of `state` is outstanding.
    is_asked: bool,
    /// The requirement in the answer to Connect.
    demand: Demand,
    cntlid: Cntlid,
    cap: Cap,
    vs: Vs,
    identify: Option<Box<IdentifyController>>,
    limits: Option<Limits>,
    queue_pairs: u16,
    keep_alive: KeepAlive,
    events: EventRequests,
    /// The changed namespaces log must be read, or is being read.
    changed_log: ChangedLog,
    ana: HostAna,
    scan: Option<Scan>,
    scan_again: bool,
    namespaces: Vec<NamespaceInfo>,
    notices: Vec<Notice>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangedLog {
    Read,
    ToRead,
    Asked,
}

impl HostController {
    /// A controller that is about to be connected.
    #[must_use]
    pub fn new(settings: ControllerSettings) -> Self {
        Self {
            settings,
            state: State::Connect,
            is_asked: false,
            demand: Demand::None,
            cntlid: Cntlid::DYNAMIC,
            cap: Cap::from_bits(0),
            vs: Vs::from_bits(0),
            identify: None,
            limits: None,
            queue_pairs: 0,
            keep_alive: KeepAlive::Off,
            events: EventRequests::default(),
            changed_log: ChangedLog::Read,
            ana: HostAna::new(),
            scan: None,
            scan_again: false,
            namespaces: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// Whether I/O queues can be connected and commands sent.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// Whether the host must authenticate now; [`on_authenticated`](Self::on_authenticated) follows.
    #[must_use]
    pub fn must_authenticate(&self) -> bool {
        self.state == State::Authenticate
    }

    /// The requirement in the controller's answer to Connect.
    #[must_use]
    pub fn demand(&self) -> Demand {
        self.demand
    }

    /// The host has authenticated.
    pub fn on_authenticated(&mut self) {
        if self.must_authenticate() {
            self.state = State::ReadCap;
        }
    }

    /// Its id, [`Cntlid::DYNAMIC`] before Connect.
    #[must_use]
    pub fn cntlid(&self) -> Cntlid {
        self.cntlid
    }

    /// Its capabilities.
    #[must_use]
    pub fn cap(&self) -> Cap {
        self.cap
    }

    /// Its version.
    #[must_use]
    pub fn vs(&self) -> Vs {
        self.vs
    }

    /// Its Identify Controller data, once it was read.
    #[must_use]
    pub fn identify(&self) -> Option<&IdentifyController> {
        self.identify.as_deref()
    }

    /// Its limits, once they were read.
    #[must_use]
    pub fn limits(&self) -> Option<&Limits> {
        self.limits.as_ref()
    }

    /// I/O queues granted, at most as many as wanted.
    #[must_use]
    pub fn queue_pairs(&self) -> u16 {
        self.queue_pairs
    }

    /// Its namespaces as of the last scan, by id.
    #[must_use]
    pub fn namespaces(&self) -> &[NamespaceInfo] {
        &self.namespaces
    }

    /// Its namespaces that are not accessible through it, by id, as of the last ANA log.
    #[must_use]
    pub fn inaccessible(&self) -> Vec<(Nsid, AnaState)> {
        self.ana.inaccessible(&self.namespaces)
    }

    /// Reads the ANA log again, if there is one; [`Notice::AnaRead`] follows.
    pub fn read_ana(&mut self) {
        self.ana.read();
    }

    /// Shuts the controller down.
    pub fn shut_down(&mut self) {
        match self.state {
            State::RequestShutdown | State::AwaitShutdown(_) | State::Down => {}
            // Nothing to shut down that was never enabled.
            State::Connect | State::Authenticate | State::ReadCap | State::ReadVs | State::Enable => {
                self.go_down();
            }
            _ => (self.state, self.is_asked) = (State::RequestShutdown, false),
        }
    }

    /// Scans all namespaces again.
    pub fn rescan(&mut self) {
        match self.scan {
            Some(_) => self.scan_again = true,
            None if self.state == State::Live && !self.settings.is_discovery => self.start_scan(),
            None => {}
        }
    }

    fn start_scan(&mut self) {
        let nsid_max = self.identify.as_ref().map_or(0, |identify| identify.nn.get());
        self.scan = Some(Scan::new(nsid_max, self.vs >= Vs::V1_3));
    }

    /// No other command is submitted during a shutdown.
    fn is_ending(&self) -> bool {
        matches!(self.state, State::RequestShutdown | State::AwaitShutdown(_) | State::Down)
    }

    fn go_down(&mut self) {
        self.state = State::Down;
        self.notices.push(Notice::Down);
    }

    /// The next command to submit.
    ///
    /// # Errors
    /// A deadline has passed: end the association.
    pub fn next_request(&mut self, now_ns: u64) -> Result<Option<Request>, ControllerError> {
        self.check_time(now_ns)?;
        if let Some(request) = self.next_step(now_ns) {
            return Ok(Some(request));
        }
        if self.is_ending() {
            return Ok(None);
        }
        let request = |id, sqe, data| Ok(Some(Request { id, sqe, data }));
        if let KeepAlive::Due(due_ns) = self.keep_alive
            && due_ns <= now_ns
        {
            self.keep_alive = KeepAlive::Out(now_ns);
            return request(RequestId::KeepAlive, Sqe::keep_alive(), RequestData::None);
        }
        if self.events.due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.events.to_send = self.events.to_send.saturating_sub(1);
            return request(RequestId::Event, Sqe::async_event_request(), RequestData::None);
        }
        if self.changed_log == ChangedLog::ToRead {
            self.changed_log = ChangedLog::Asked;
            let length = CHANGED_LOG_BYTES;
            // Without RAE, so that the event comes again; nvmet takes no other length. wire §11, §13
            let sqe = Sqe::get_log_page(Lid::CHANGED_NAMESPACES, Nsid::ALL, length.into());
            return request(RequestId::ChangedLog, sqe, RequestData::FromController(length));
        }
        if matches!(self.state, State::Scan | State::Live)
            && let Some((sqe, length)) = self.ana.next_command(now_ns)
        {
            return request(RequestId::AnaLog, sqe, RequestData::FromController(length));
        }
        if let Some((index, sqe)) = self.scan.as_mut().and_then(Scan::next_command) {
            return request(RequestId::Scan(index), sqe, RequestData::FromController(Scan::COMMAND_BYTES));
        }
        Ok(None)
    }

    /// The command of the current state.
    fn next_step(&mut self, now_ns: u64) -> Option<Request> {
        if self.is_asked {
            return None;
        }
        let mut data = RequestData::None;
        let sqe = match self.state {
            State::Connect => {
                let (sqe, connect) = self.connect().command(&self.settings);
                data = RequestData::ToController(connect.as_bytes().to_vec());
                sqe
            }
            State::ReadCap => Sqe::property_get(Property::CAP),
            State::ReadVs => Sqe::property_get(Property::VS),
            State::Enable => Sqe::property_set(Property::CC, self.enabled().bits().into()),
            State::AwaitReady(poll) | State::AwaitShutdown(poll) if poll.next_ns <= now_ns => {
                Sqe::property_get(Property::CSTS)
            }
            State::Identify => {
                data = RequestData::FromController(IDENTIFY_BYTES);
                Sqe::identify(Cns::CONTROLLER, Nsid::NONE)
            }
            State::ReadLimits => {
                data = RequestData::FromController(IDENTIFY_BYTES);
                Sqe::identify_in(Csi::NVM, Cns::COMMAND_SET_CONTROLLER, Nsid::NONE)
            }
            State::SetQueues => {
                let wanted = NumberOfQueues::pairs(self.settings.queue_pairs.into());
                Sqe::set_feature(Fid::NUMBER_OF_QUEUES, Nsid::NONE, wanted.bits())
            }
            State::SetEvents => Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, self.wanted_events().bits()),
            State::RequestShutdown => {
                let cc = self.enabled().with_shn(ShutdownNotification::NORMAL);
                Sqe::property_set(Property::CC, cc.bits().into())
            }
            State::Authenticate
            | State::AwaitReady(_)
            | State::AwaitShutdown(_)
            | State::Scan
            | State::Live
            | State::Down => return None,
        };
        self.is_asked = true;
        Some(Request { id: RequestId::Step, sqe, data })
    }

    fn connect(&self) -> QueueConnect {
        QueueConnect {
            qid: Qid::ADMIN,
            cntlid: Cntlid::DYNAMIC,
            entries: ADMIN_QUEUE_ENTRIES.into(),
            near_partition: None,
        }
    }

    /// The CC property to set. All command sets if it has several, as Linux asks for them: key-value namespaces appear
    /// only so.
    fn enabled(&self) -> Cc {
        let css = if self.cap.css_csi() { CommandSetSelection::ALL } else { CommandSetSelection::NVM };
        Cc::new(css).with_en(true)
    }

    /// Events we act on, as far as the controller has them.
    fn wanted_events(&self) -> AsyncEvents {
        let offered = self.identify.as_ref().map_or(AsyncEvents::empty(), |identify| identify.oaes());
        let wanted = match self.settings.is_discovery {
            true => AsyncEvents::DISCOVERY,
            false => AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::ANA,
        };
        wanted & offered
    }

    fn check_time(&self, now_ns: u64) -> Result<(), ControllerError> {
        if let State::AwaitReady(poll) = self.state {
            let allowed_ns = (u64::from(self.cap.ready_timeout_ms()) * MS).max(READY_NS_MIN);
            if poll.waited_ns(now_ns) > allowed_ns {
                return Err(ControllerError::NotReady {
                    waited: Duration::from_nanos(poll.waited_ns(now_ns)),
                });
            }
        }
        if let KeepAlive::Out(since_ns) = self.keep_alive
            && !self.is_ending()
        {
            let waited_ms = now_ns.saturating_sub(since_ns) / MS;
            if waited_ms >= self.settings.keep_alive_ms.into() {
                let waited = Duration::from_millis(waited_ms);
                return Err(ControllerError::KeepAliveUnanswered { waited });
            }
        }
        Ok(())
    }

    /// Time of the next call of [`next_request`](Self::next_request) at the latest, ns.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let step_ns = match self.state {
            State::AwaitReady(poll) | State::AwaitShutdown(poll) if !self.is_asked => Some(poll.next_ns),
            _ => None,
        };
        if self.is_ending() {
            return step_ns;
        }
        let keep_alive_ns = match self.keep_alive {
            KeepAlive::Off => None,
            KeepAlive::Due(due_ns) => Some(due_ns),
            KeepAlive::Out(since_ns) => {
                Some(since_ns.saturating_add(u64::from(self.settings.keep_alive_ms) * MS))
            }
        };
        [step_ns, keep_alive_ns, self.events.due_ns(), self.ana.due_ns()].into_iter().flatten().min()
    }

    /// One of our commands has ended; `data` is the controller's.
    ///
    /// # Errors
    /// The controller cannot be used: end the association.
    pub fn on_completion(
        &mut self,
        id: RequestId,
        (status, result): (Status, u64),
        data: &[u8],
        now_ns: u64,
    ) -> Result<(), ControllerError> {
        match id {
            RequestId::Step => self.on_step(status, result, data, now_ns),
            RequestId::KeepAlive if status.is_success() => {
                if matches!(self.keep_alive, KeepAlive::Out(_)) {
                    self.schedule_keep_alive(now_ns);
                }
                Ok(())
            }
            RequestId::KeepAlive => Err(ControllerError::Refused { command: "Keep Alive", status }),
            RequestId::Event => self.on_event(status, result, now_ns),
            RequestId::ChangedLog => {
                // Its content is only a hint: everything is scanned again in any case, as Linux does.
                if self.changed_log == ChangedLog::Asked {
                    self.changed_log = ChangedLog::Read;
                }
                self.rescan();
                Ok(())
            }
            RequestId::AnaLog => {
                self.ana.on_completion(status, data, now_ns);
                if self.state == State::Scan {
                    self.try_go_live();
                } else {
                    self.push_notice(Notice::AnaRead);
                }
                Ok(())
            }
            RequestId::Scan(index) => {
                if let Some(scan) = &mut self.scan {
                    scan.on_completion(index, status, data);
                    if scan.is_done() {
                        self.on_scanned();
                    }
                }
                Ok(())
            }
        }
    }

    fn schedule_keep_alive(&mut self, now_ns: u64) {
        // By its own timer, whatever else is sent: not every target counts traffic. wire §9
        let half_ns = u64::from(self.settings.keep_alive_ms) * MS / 2;
        if half_ns > 0 {
            self.keep_alive = KeepAlive::Due(now_ns.saturating_add(half_ns));
        }
    }

    fn on_step(
        &mut self,
        status: Status,
        result: u64,
        data: &[u8],
        now_ns: u64,
    ) -> Result<(), ControllerError> {
        self.is_asked = false;
        let needed = |command| match status.is_success() {
            true => Ok(()),
            false => Err(ControllerError::Refused { command, status }),
        };
        let dw0 = dword_0(result);
        match self.state {
            State::Connect => {
                let connected = self.connect().on_completion(status, result)?;
                self.cntlid = connected.cntlid;
                self.demand = connected.demand;
                self.state = match connected.demand {
                    Demand::None => State::ReadCap,
                    Demand::Authentication | Demand::SecureChannel => State::Authenticate,
                };
            }
            State::ReadCap => {
                needed("Property Get of CAP")?;
                self.cap = Cap::from_bits(result);
                self.state = State::ReadVs;
            }
            State::ReadVs => {
                needed("Property Get of VS")?;
                self.vs = Vs::from_bits(dw0);
                self.state = State::Enable;
            }
            State::Enable => {
                needed("Property Set of CC")?;
                self.state = State::AwaitReady(Poll::new(now_ns));
            }
            State::AwaitReady(poll) => {
                needed("Property Get of CSTS")?;
                let csts = Csts::from_bits(dw0);
                if csts.cfs() || dw0 == u32::MAX {
                    return Err(ControllerError::Failed);
                }
                self.state = if csts.rdy() {
                    self.schedule_keep_alive(now_ns);
                    State::Identify
                } else {
                    State::AwaitReady(poll.again(now_ns))
                };
            }
            State::Identify => {
                needed("Identify Controller")?;
                self.on_identify(data)?;
            }
            State::ReadLimits => {
                // Optional: a controller without it has no such limits.
                if status.is_success()
                    && let Ok((nvm, _)) = NvmController::ref_from_prefix(data)
                    && let Some(limits) = &mut self.limits
                {
                    limits.refine(self.cap, nvm);
                }
                self.state = State::SetQueues;
            }
            State::SetQueues => {
                needed("Set Features, Number of Queues")?;
                let granted = NumberOfQueues::from_bits(dw0).queue_pairs();
                self.queue_pairs = self.settings.queue_pairs.min(u16::try_from(granted).unwrap_or(u16::MAX));
                self.after_queues();
            }
            State::SetEvents => {
                // Refused: then there are no events, and everything else still works.
                if status.is_success() {
                    self.events.to_send = self.limits.map_or(1, |limits| limits.event_request_count);
                }
                self.after_events();
            }
            State::RequestShutdown => match status.is_success() {
                true => self.state = State::AwaitShutdown(Poll::new(now_ns)),
                false => self.go_down(),
            },
            State::AwaitShutdown(poll) => {
                let is_complete = Csts::from_bits(dw0).shst() == ShutdownStatus::COMPLETE;
                let rtd3e_us = self.identify.as_ref().map_or(0, |identify| identify.rtd3e.get());
                let allowed_ns = (u64::from(rtd3e_us) * 1000).clamp(SHUTDOWN_NS_MIN, SHUTDOWN_NS_MAX);
                if is_complete || !status.is_success() || poll.waited_ns(now_ns) > allowed_ns {
                    self.go_down();
                } else {
                    self.state = State::AwaitShutdown(poll.again(now_ns));
                }
            }
            State::Authenticate | State::Scan | State::Live | State::Down => {}
        }
        Ok(())
    }

    fn on_identify(&mut self, data: &[u8]) -> Result<(), ControllerError> {
        let identify = IdentifyController::read_from_prefix(data);
        let Ok((identify, _)) = identify else {
            let status = Status::DATA_TRANSFER_ERROR;
            return Err(ControllerError::Refused { command: "Identify Controller", status });
        };
        if identify.cntlid() != self.cntlid {
            return Err(ControllerError::OtherController { expected: self.cntlid, got: identify.cntlid() });
        }
        if self.settings.is_discovery {
            self.limits = Some(Limits::discovery(&identify));
            self.identify = Some(Box::new(identify));
            self.after_queues();
            return Ok(());
        }
        self.limits = Some(Limits::new(self.cap, &identify)?);
        self.ana.on_identify(&identify);
        self.identify = Some(Box::new(identify));
        // Limits of a command set are asked for where there are command sets to choose from.
        self.state = if self.cap.css_csi() { State::ReadLimits } else { State::SetQueues };
        Ok(())
    }

    fn after_queues(&mut self) {
        // A controller that offers no event we act on is not asked for any.
        match self.wanted_events().is_empty() {
            true => self.after_events(),
            false => self.state = State::SetEvents,
        }
    }

    fn after_events(&mut self) {
        if self.settings.is_discovery {
            self.go_live();
        } else {
            self.state = State::Scan;
            self.start_scan();
        }
    }

    fn go_live(&mut self) {
        self.state = State::Live;
        self.notices.push(Notice::Live);
        self.tell_ana();
    }

    fn tell_ana(&mut self) {
        if self.ana.is_on() {
            self.push_notice(Notice::AnaRead);
        }
    }

    /// The bring-up ends with the first scan and the first ANA log, whichever comes last.
    fn try_go_live(&mut self) {
        if self.scan.is_none() && !self.ana.is_reading() {
            self.go_live();
        }
    }

    fn on_event(&mut self, status: Status, result: u64, now_ns: u64) -> Result<(), ControllerError> {
        // One request less: a request that was refused is not repeated blindly. wire §13
        if !status.is_success() {
            return Ok(());
        }
        self.events.on_event(now_ns);
        let event = AsyncEvent::from_bits(dword_0(result));
        match event {
            AsyncEvent::PERSISTENT_INTERNAL_ERROR => return Err(ControllerError::InternalError),
            AsyncEvent::NAMESPACE_ATTRIBUTE => {
                // An event during the read may stand for a later change: read again.
                self.changed_log = ChangedLog::ToRead;
            }
            AsyncEvent::ANA_CHANGE => self.ana.read(),
            AsyncEvent::DISCOVERY_CHANGE => self.push_notice(Notice::DiscoveryChanged),
            other => self.push_notice(Notice::Event(other)),
        }
        Ok(())
    }

    /// Adds a notice unless it waits already, so that a flood of events stays small.
    fn push_notice(&mut self, notice: Notice) {
        if !self.notices.contains(&notice) {
            self.notices.push(notice);
        }
    }

    fn on_scanned(&mut self) {
        let Some(scan) = self.scan.take() else { return };
        let found = scan.into_found();
        let changed = changes(&self.namespaces, &found);
        self.namespaces = found;
        if self.state == State::Scan {
            self.try_go_live();
        } else if !changed.is_empty() {
            self.push_notice(Notice::NamespacesChanged(changed));
            // A namespace may have come into another group.
            self.tell_ana();
        }
        if std::mem::take(&mut self.scan_again) {
            self.start_scan();
        }
    }

    /// The next notice for the host.
    pub fn next_notice(&mut self) -> Option<Notice> {
        if self.notices.is_empty() { None } else { Some(self.notices.remove(0)) }
    }
}
