//! A target in this process: one subsystem with namespaces in memory, scripted by the test.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of this.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvlane_host::{Address, Association, Completion, DataBuffer, HostIdentity, Lane, Namespace, Options};
use peer::controller::wanted;
use peer::fake_target::FakeTarget;
use peer::finding::Check;
use peer::session::{Event, Session, Then};
use peer::stage::{Setup, Stage};
use peer::target_end::Limits;
use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::identify::capabilities::{Cmic, Fuses, Oncs};
use wire::identify::controller::IdentifyController;
use wire::log::ana::AnaState;
use wire::opcode::AdminOpcode;
use wire::pdu::IcResp;
use wire::property::Cap;
use wire::sqe::Sqe;
use wire::status::Status;

pub const NQN: &str = "nqn.2016-06.io.nvlane:test";

const SECOND: Duration = Duration::from_secs(1);

/// The reaction to a command that a test requests.
pub enum Reaction {
    /// Execute the command normally.
    Execute,
    /// Do not execute it, and send this status.
    Status(Status),
    /// Execute it, and send this status.
    ExecuteThen(Status),
    /// Do nothing until it is aborted or the connection ends.
    Hold,
    /// Execute it, and never answer.
    ExecuteSilently,
    /// Close the connection without an answer.
    Close,
    /// Execute it, and close the connection without an answer.
    ExecuteAndClose,
    /// Send these bytes in place of an answer.
    Raw(Vec<u8>),
}

/// A command as a test sees it.
pub struct Seen<'a> {
    pub qid: u16,
    pub cntlid: u16,
    pub sqe: &'a Sqe,
    pub data: &'a [u8],
}

type Script = Box<dyn FnMut(&Seen<'_>) -> Reaction + Send>;
type IcRespHook = Box<dyn Fn(IcResp) -> Vec<u8> + Send + Sync>;

/// Configuration of the target.
pub struct Config {
    pub setup: Setup,
    /// Sends this in place of an ICResp.
    pub ic_resp: Option<IcRespHook>,
    /// Whether a test sees a write before its data was requested, rather than after.
    pub script_before_data: bool,
}

impl Config {
    /// Reports ANA: all namespaces are in group 1, whose state is [`State::ana_state`](peer::stage::State).
    pub fn with_ana() -> Self {
        let mut config = Self::default();
        let identify = &mut config.setup.identify;
        identify.cmic = Cmic::ANA;
        identify.anagrpmax.set(1);
        identify.nanagrpid.set(1);
        identify.set_oaes(AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::DISCOVERY | AsyncEvents::ANA);
        config
    }
}

impl Default for Config {
    fn default() -> Self {
        let mut identify = IdentifyController::fabrics();
        identify.set_in_capsule_bytes(8192);
        identify.maxcmd.set(1024);
        identify.nn.set(16);
        identify.set_aer_limit(4);
        identify.set_abort_limit(4);
        identify.set_oaes(AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::DISCOVERY);
        identify.set_oncs(
            Oncs::COMPARE | Oncs::WRITE_ZEROES | Oncs::DATASET_MANAGEMENT | Oncs::VERIFY | Oncs::COPY,
        );
        identify.set_fuses(Fuses::COMPARE_AND_WRITE);
        identify.vwc = identify.vwc.with_present(true);
        identify.set_serial("NVL0").unwrap();
        identify.set_model("nvlane test").unwrap();
        identify.set_firmware("1").unwrap();
        let setup = Setup {
            subsystem: NQN.parse().unwrap(),
            cap: Cap::from_bits(0)
                .with_queue_entries_max(1025)
                .with_ready_timeout_ms(1000)
                .with_css_nvm(true),
            identify,
            lba_bytes: 512,
            namespaces: vec![8192],
            queue_pairs: 8,
            limits: Limits { h2c_data_bytes: 1 << 20, ends_reads_with_data: true, ..Limits::default() },
            abort_works: true,
            ..Setup::default()
        };
        Self { setup, ic_resp: None, script_before_data: false }
    }
}

pub struct Target {
    pub address: SocketAddr,
    /// Status of I/O commands in the ANA group's state, 0 for success: for scripts.
    pub is_away: Arc<AtomicU32>,
    script: Arc<Mutex<Option<Script>>>,
    /// Until it is dropped.
    target: Option<FakeTarget>,
}

impl Deref for Target {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.target.as_ref().expect("not dropped yet").stage
    }
}

impl Target {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    /// A target whose setup is changed by `change`.
    pub fn of(change: impl FnOnce(&mut Setup)) -> Self {
        let mut config = Config::default();
        change(&mut config.setup);
        Self::with(config)
    }

    pub fn with(config: Config) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), config)
    }

    pub fn at(address: SocketAddr, config: Config) -> Self {
        let Config { mut setup, ic_resp, script_before_data } = config;
        setup.limits.in_capsule_bytes = setup.identify.in_capsule_bytes();
        let script: Arc<Mutex<Option<Script>>> = Arc::default();
        let scripted = Arc::clone(&script);
        let ask = move |session: &Session<'_>, sqe: &Sqe, data: &[u8]| {
            let (qid, cntlid) = (session.controller.qid.unwrap_or(0), session.controller.cntlid);
            match &mut *scripted.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(script) => script(&Seen { qid, cntlid, sqe, data }),
                None => Reaction::Execute,
            }
        };
        let fault = move |session: &mut Session<'_>, event: &Event| match event {
            Event::IcReq(request) => {
                let Some(hook) = &ic_resp else { return Ok(Then::AsUsual) };
                let answer = hook(session.end.limits.ic_resp(request));
                session.send(&answer);
                Ok(if answer.is_empty() { Then::End } else { Then::GoOn })
            }
            Event::Command { sqe, .. } if sqe.opcode == AdminOpcode::FABRICS.raw() => Ok(Then::AsUsual),
            // Write data is requested first, so that a test sees it.
            Event::Command { sqe, data } if wanted(sqe).is_some() => {
                match script_before_data.then(|| ask(session, sqe, data)) {
                    Some(Reaction::Raw(bytes)) => react(session, sqe, data, Reaction::Raw(bytes)),
                    _ => Ok(Then::AsUsual),
                }
            }
            Event::Command { sqe, data } | Event::Asked { sqe, data } => {
                if session.controller.qid == Some(0) {
                    session.stage.state().admin_seen.push(sqe.opcode);
                }
                let reaction = ask(session, sqe, data);
                react(session, sqe, data, reaction)
            }
            _ => Ok(Then::AsUsual),
        };
        let target = FakeTarget::start(address, setup, Box::new(fault), false).unwrap();
        let address = target.stage.address;
        Self { address, is_away: Arc::default(), script, target: Some(target) }
    }

    pub fn address(&self) -> Address {
        Address::from(self.address).with_subsystem(NQN.parse().unwrap())
    }

    /// Sets the reaction to commands from now on.
    pub fn script(&self, script: impl FnMut(&Seen<'_>) -> Reaction + Send + 'static) {
        *self.script.lock().unwrap() = Some(Box::new(script));
    }

    pub fn obey(&self) {
        *self.script.lock().unwrap() = None;
    }

    /// Waits until the target has processed all input of these connections and noticed their ends.
    pub fn await_ends(&self, connections: &[u32]) {
        assert!(self.wait_ended(connections, 60 * SECOND), "a connection stays open");
    }

    /// Changes the state of the ANA group; hosts get the event if `is_told`.
    pub fn set_ana(&self, ana_state: AnaState, is_told: bool) {
        let code = match ana_state {
            AnaState::INACCESSIBLE => Status::ANA_INACCESSIBLE.code(),
            AnaState::PERSISTENT_LOSS => Status::ANA_PERSISTENT_LOSS.code(),
            AnaState::CHANGE => Status::ANA_TRANSITION.code(),
            _ => 0,
        };
        self.is_away.store(code.into(), Ordering::Relaxed);
        self.state().ana_state = ana_state;
        if is_told {
            self.raise(AsyncEvent::ANA_CHANGE);
        }
    }

    pub fn connect(&self, options: Options) -> Association {
        Association::connect(&self.address(), options).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Ends scripts that wait for the test.
        self.drop_connections();
        let ended = self.target.take().expect("not dropped yet").end();
        if !std::thread::panicking() {
            ended.expect("a host that keeps the rules");
        }
    }
}

fn react(session: &mut Session<'_>, sqe: &Sqe, data: &[u8], reaction: Reaction) -> Check<Then> {
    let execute = |session: &mut Session<'_>| session.controller.execute(session.stage, sqe, data);
    match reaction {
        Reaction::Execute => session.execute(sqe, data)?,
        Reaction::Status(status) => session.complete(sqe, status, 0),
        Reaction::ExecuteThen(status) => {
            execute(session)?;
            session.complete(sqe, status, 0);
        }
        Reaction::Hold => session.hold(sqe),
        Reaction::ExecuteSilently => {
            execute(session)?;
            session.hold(sqe);
        }
        Reaction::Close => return Ok(Then::End),
        Reaction::ExecuteAndClose => {
            execute(session)?;
            return Ok(Then::End);
        }
        Reaction::Raw(bytes) => session.send(&bytes),
    }
    Ok(Then::GoOn)
}

/// Options for tests: short timeouts, and the same host identity each time.
pub fn options() -> Options {
    let identity = HostIdentity::from_uuid("11111111-2222-3333-4444-555555555555".parse().unwrap());
    let mut options = Options::default().with_identity(Some(identity)).tuned(|tuning| tuning.seed = Some(1));
    options.reconnect.delay_first = Duration::from_millis(2);
    options.reconnect.delay_max = Duration::from_millis(20);
    options.connect_timeout = 20 * SECOND;
    options
}

/// Connects, with one lane to the only namespace.
pub fn connect<B: DataBuffer>(target: &Target, options: Options) -> (Association, Lane<B>, Namespace) {
    let association = target.connect(options);
    let (lane, namespace) = (association.lane().unwrap(), association.addressed_namespace().unwrap());
    (association, lane, namespace)
}

/// Waits until every command of a lane has ended; returns their completions in the order of submission.
#[track_caller]
pub fn finish<B: DataBuffer>(lane: &mut Lane<B>) -> Vec<Completion<B>> {
    let (mut completions, start) = (Vec::new(), Instant::now());
    while lane.outstanding() > 0 {
        lane.wait(&mut completions, SECOND);
        assert!(start.elapsed() < 30 * SECOND, "{} outstanding", lane.outstanding());
    }
    completions.sort_by_key(|completion| completion.user);
    completions
}
