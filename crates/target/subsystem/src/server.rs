//! A running target: its threads, and the handle to them.

mod observer;
mod tracer;

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use linux::CoreList;
use linux::randomness::Randomness;
use proto::ReceivePlan;
use proto::controller_queue::QueueSettings;
use proto::handshake::ControllerOffer;
use proto::zero_copy::Policy as ZeroCopy;
use reactor::{Address, EngineKind, Features, Mailbox, Reactor, Settings, TurnCounters};
use wire::nqn::Nqn;

use crate::audit::{AuditLog, Changed, Event, Recorder};
use crate::config::{
    ConfigPlace, MemcachedAddress, Problem, ReactorConfig, TargetConfig, Threads, TimeoutConfig,
};
use crate::control_plane::admission::MemcachedCounters;
use crate::control_plane::control::{Control, ControlSettings};
use crate::io_path::io_command::IoLimits;
use crate::io_path::lane::LaneTimeouts;
use crate::messages::message::{
    ControlMessage, Message, Order, OrderKind, PlacementMessage, ReactorMessage, Step,
};
use crate::messages::state::{Detail, MemcachedListenerState, ReactorReport, TargetState};
use crate::names::limits::Limits;
use crate::names::listener_gate::ListenerGate;
use crate::names::socket_priority::SocketPriority;
use crate::operator::{self, ChangeOutcome, MemcachedListener, Operator, Outline, Report, RunningListener};
use crate::serving::{Exponentiator, Home, Serving, ServingSettings};

pub use observer::{Observer, Unobserved};
pub use tracer::{TraceError, Traced, Tracer};

/// The reason why a target did not start. Everything it opened is closed again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration, its storage or its addresses are wrong.
    #[error("{}", problems.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>().join("\n"))]
    Config {
        /// The problems, each with its place in the configuration.
        problems: Vec<Problem>,
    },
    /// The requested engine is unavailable.
    #[error("io_uring is unavailable here ({source}): choose the epoll engine, or auto")]
    Engine {
        /// The cause.
        source: io::Error,
    },
    /// A reactor could not be created.
    #[error("reactor {reactor} could not start: {source}")]
    Reactor {
        /// Its index.
        reactor: usize,
        /// The cause.
        source: io::Error,
    },
}

/// A running target.
pub struct Target {
    operator: Operator,
    addresses: Vec<Address<Message>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    engine: EngineKind,
    /// Statistics of each reactor.
    turns: Vec<Arc<TurnCounters>>,
    stop_ms: u64,
    audit: AuditLog,
    tracer: Tracer,
    /// The memcached listeners, for observers.
    memcached_states: Arc<Mutex<Vec<MemcachedListenerState>>>,
}

impl Target {
    /// Starts a target. Hosts can connect when this returns.
    ///
    /// # Errors
    /// The reason why it cannot start; nothing is left running or open then.
    ///
    /// # Panics
    /// If the system's clock is before 1970.
    pub fn start(config: &TargetConfig) -> Result<Self, StartError> {
        let engine = choose_engine(config.reactors.engine)?;
        let cores =
            cores(&config.reactors.threads).map_err(|source| StartError::Reactor { reactor: 0, source })?;
        let reactor_count = u16::try_from(cores.len()).unwrap_or(u16::MAX);
        let (operator, steps) =
            Operator::start(config, reactor_count).map_err(|problems| StartError::Config { problems })?;
        let audit = AuditLog::start(config.audit.file.as_deref()).map_err(|message| StartError::Config {
            problems: vec![Problem { place: ConfigPlace::Audit, message }],
        })?;
        audit.recorder().record(|| Event::Started { version: env!("CARGO_PKG_VERSION") });
        let mailboxes: Vec<Mailbox<Message>> = cores
            .iter()
            .map(|_| Mailbox::new())
            .collect::<io::Result<_>>()
            .map_err(|source| StartError::Reactor { reactor: 0, source })?;
        let mut target = Self {
            operator,
            addresses: mailboxes.iter().map(Mailbox::address).collect(),
            threads: Vec::new(),
            engine,
            turns: vec![Arc::default(); cores.len()],
            stop_ms: config.timeouts.stop_ms,
            audit,
            tracer: Tracer::new(mailboxes.iter().map(Mailbox::address).collect()),
            memcached_states: Arc::default(),
        };
        target.show_memcached_listeners();
        let settings = Settings {
            engine,
            falls_back: config.reactors.engine.is_none(),
            pool_bytes: config.reactors.pool_bytes,
            spin_ns_max: config.reactors.spin.limit_ns(),
            busy_poll: config.reactors.busy_poll,
            accepts_per_s: config.limits.connections_per_s_max,
        };
        let serving = ServingSettings {
            doorbell: config.reactors.doorbell,
            receive: ReceivePlan::for_target(config.reactors.receive, config.reactors.in_place_bytes),
            zero_copy: config.reactors.zero_copy,
            ..serving_settings(&config.limits, &config.timeouts, reactor_count)
        };
        let recorder = target.audit.recorder();
        let control = control_settings(config, target.operator.discovery_nqn(), reactor_count, recorder);
        let exponentiator = Exponentiator::worker(target.addresses[0].clone());
        let home = home(control, cores.clone(), steps, exponentiator, target.operator.gate());
        let memcached_counters = home.control.admission.memcached_counters();
        let mut home = Some(home);
        let start = Instant::now();
        let (ready, is_ready) = channel();
        for (index, (mailbox, core)) in mailboxes.into_iter().zip(cores).enumerate() {
            let plan = Plan {
                settings: settings.clone(),
                serving,
                index,
                core,
                addresses: target.addresses.clone(),
                start,
                memcached_counters: Arc::clone(&memcached_counters),
                gate: Arc::clone(target.operator.gate()),
                home: home.take(),
            };
            let ready = ready.clone();
            let thread = std::thread::Builder::new()
                .name(format!("reactor-{index}"))
                .spawn(move || run(plan, mailbox, &ready))
                .map_err(|source| StartError::Reactor { reactor: index, source });
            match thread {
                Ok(thread) => target.threads.push(thread),
                Err(error) => return Err(target.abandon(error)),
            }
        }
        drop(ready);
        for _ in 0..target.threads.len() {
            let (reactor, result) = is_ready.recv().expect("each thread says how it went");
            match result {
                Ok((engine, turns)) => {
                    if engine == EngineKind::Epoll {
                        target.engine = engine;
                    }
                    target.turns[reactor] = turns;
                }
                Err(source) => return Err(target.abandon(StartError::Reactor { reactor, source })),
            }
        }
        Ok(target)
    }

    /// The running configuration.
    #[must_use]
    pub fn running(&self) -> &Outline {
        self.operator.running()
    }

    /// Addresses of its NVMe listeners, in the order of the configuration.
    #[must_use]
    pub fn listeners(&self) -> &[RunningListener] {
        self.operator.listeners()
    }

    /// Addresses of its memcached listeners, in the order of the configuration.
    #[must_use]
    pub fn memcached(&self) -> Vec<MemcachedAddress> {
        self.operator.memcached_listeners().map(|listener| listener.address.clone()).collect()
    }

    /// Its memcached listeners, in the order of the configuration.
    pub fn memcached_listeners(&self) -> impl Iterator<Item = &MemcachedListener> {
        self.operator.memcached_listeners()
    }

    /// The unique name of its discovery service.
    #[must_use]
    pub fn discovery_nqn(&self) -> &Nqn {
        self.operator.discovery_nqn()
    }

    /// The engine of its reactors: epoll if any of them uses it.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.engine
    }

    /// Its number of reactors.
    #[must_use]
    pub fn reactor_count(&self) -> usize {
        self.addresses.len()
    }

    /// Applies the differences between `wanted` and the running configuration.
    pub fn reload(&mut self, wanted: &TargetConfig) -> Report {
        // The operator refuses a memory smaller than what pairs need.
        self.reports().into_iter().for_each(drop);
        // A configuration that is refused changes nothing, but the file may have been renamed.
        let audit = match wanted.check().is_empty() {
            true => self.audit.follow(wanted.audit.file.as_deref()),
            false => self.audit.reopen(),
        };
        let report = self.operator.reload(wanted, &orders(&self.addresses));
        self.show_memcached_listeners();
        with_audit(report, audit)
    }

    /// Applies the differences between two configurations, all of them or none, and keeps other differences between the
    /// running configuration and `before`. May block.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub fn change(&mut self, before: &TargetConfig, wanted: &TargetConfig) -> Result<Report, Report> {
        // The operator refuses a memory smaller than what pairs need.
        self.reports().into_iter().for_each(drop);
        let audit = match before.audit == wanted.audit || !wanted.check().is_empty() {
            true => None,
            false => self.audit.follow(wanted.audit.file.as_deref()),
        };
        let audit = with_audit(Report::default(), audit);
        if !audit.is_complete() {
            return Err(audit);
        }
        let outcome = self.operator.change(before, wanted, &orders(&self.addresses));
        match outcome {
            Ok(mut report) => {
                report.lines.extend(audit.lines);
                Ok(report)
            }
            Err(report) => {
                if !audit.lines.is_empty() {
                    self.audit.follow(before.audit.file.as_deref());
                }
                Err(report)
            }
        }
    }

    /// Records events of the audit log.
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        self.audit.recorder()
    }

    /// Opens the file of the audit log again, after it was renamed. May block.
    pub fn reopen_audit(&mut self) -> Report {
        with_audit(Report::default(), self.audit.reopen())
    }

    /// Whether reloads from now on refuse to remove namespaces and subsystems to which hosts are connected.
    pub fn keep_used(&mut self, keeps: bool) {
        self.operator.set_keeps_used(keeps);
    }

    /// Gives the packets of connections accepted from now on these priorities; all others have 0.
    pub fn set_socket_priorities(&self, priorities: Vec<SocketPriority>) {
        self.addresses[0].post(Message::Placement(PlacementMessage::SetPriorities(priorities)));
    }

    /// Reads certificates and users of memcached listeners again, reopens closed namespaces and the file of the audit
    /// log, then does the same as [`look_after_storage`](Self::look_after_storage).
    pub fn reopen_closed(&mut self) -> Report {
        let audit = self.audit.reopen();
        let mut report = self.operator.reread_memcached_trust();
        self.show_memcached_listeners();
        report.lines.append(&mut self.operator.reopen_closed(&orders(&self.addresses)).lines);
        with_audit(report, audit)
    }

    /// Checks whether storage has changed underneath, and notifies hosts of namespaces that have grown, were closed, or
    /// are open again. To be called every few seconds if [`has_storage_to_watch`](Self::has_storage_to_watch). May
    /// block.
    pub fn look_after_storage(&mut self) -> Report {
        self.operator.look_after_storage(&orders(&self.addresses))
    }

    /// Whether any namespace is on a file or device.
    #[must_use]
    pub fn has_storage_to_watch(&self) -> bool {
        self.operator.has_storage_to_watch()
    }

    /// The state of the target; `None` if its reactors have died.
    #[must_use]
    pub fn state(&self) -> Option<TargetState> {
        self.observer().state(Detail::Lanes, None).ok()
    }

    /// Observes the target from another thread.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer::new(
            self.addresses.clone(),
            self.turns.clone(),
            self.audit.observer(),
            Arc::clone(&self.memcached_states),
        )
    }

    /// Traces what it does.
    pub fn tracer(&mut self) -> &mut Tracer {
        &mut self.tracer
    }

    /// Shows observers the memcached listeners as they are now.
    fn show_memcached_listeners(&self) {
        let states = self.operator.memcached_listeners().map(MemcachedListener::state).collect();
        *self.memcached_states.lock().unwrap_or_else(PoisonError::into_inner) = states;
    }

    /// Asks all reactors for their state. They also report the memory that pairs need.
    fn reports(&self) -> Receiver<ReactorReport> {
        observer::ask_reactors(&self.addresses)
    }

    /// Ends associations and then the reactors. Operations in flight complete first, within the configured time.
    /// Returns the number of lanes that were cut off.
    ///
    /// # Errors
    /// The error of a reactor that had ended before.
    pub fn stop(mut self) -> io::Result<usize> {
        let lanes_left = operator::stop(&orders(&self.addresses), self.stop_ms);
        let joined = self.join();
        self.audit.recorder().record(|| Event::Stopped {});
        self.audit.close();
        joined?;
        Ok(lanes_left.unwrap_or(0))
    }

    /// Ends the threads of a target whose start failed.
    fn abandon(mut self, error: StartError) -> StartError {
        for address in &self.addresses {
            address.post(Message::Reactor(ReactorMessage::Stop));
        }
        // The original error matters more than theirs.
        let _ = self.join();
        error
    }

    fn join(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(ended) => result = result.and(ended),
                Err(_) => result = result.and(Err(io::Error::other("a reactor panicked"))),
            }
        }
        result
    }
}

/// The report with the change of the audit log.
fn with_audit(mut report: Report, audit: Option<Changed>) -> Report {
    if let Some(Changed { what, failure }) = audit {
        match failure {
            None => report.add(ChangeOutcome::Done, format!("{what}: done")),
            Some(why) => report.add(ChangeOutcome::Failed, format!("{what}: not done, {why}")),
        }
    }
    report
}

/// The way of orders to the control plane, on the first of these reactors.
fn orders(addresses: &[Address<Message>]) -> impl Fn(Order) -> bool + '_ {
    |order| addresses[0].post(Message::Control(ControlMessage::Order(order)))
}

/// The reactors of a target for a driver other than this module's threads: a simulator. The control plane is in the
/// first, with `steps` applied. New connections go through `gate`, that of the [`Operator`] which gave the steps. A C2HData
/// carries at most `c2h_data_bytes`.
#[must_use]
pub fn applications(
    settings: ControlSettings,
    timeouts: &TimeoutConfig,
    zero_copy: ZeroCopy,
    c2h_data_bytes: u32,
    gate: &Arc<ListenerGate>,
    steps: Vec<Step>,
) -> Vec<Serving> {
    let reactor_count = settings.reactor_count;
    let mut serving =
        ServingSettings { zero_copy, ..serving_settings(&settings.limits, timeouts, reactor_count) };
    serving.queue.c2h_data_bytes = c2h_data_bytes;
    let home = home(settings, vec![None; reactor_count.into()], steps, Exponentiator::Inline, gate);
    let memcached_counters = home.control.admission.memcached_counters();
    let mut home = Some(home);
    let application = |reactor| {
        Serving::new(serving, Arc::clone(&memcached_counters), Arc::clone(gate), reactor, home.take())
    };
    (0..reactor_count).map(application).collect()
}

/// A reactor thread's report of its start.
type Started = io::Result<(EngineKind, Arc<TurnCounters>)>;

/// Arguments of a reactor's thread.
struct Plan {
    settings: Settings,
    serving: ServingSettings,
    index: usize,
    core: Option<usize>,
    addresses: Vec<Address<Message>>,
    start: Instant,
    memcached_counters: Arc<MemcachedCounters>,
    gate: Arc<ListenerGate>,
    home: Option<Home>,
}

fn run(plan: Plan, mailbox: Mailbox<Message>, ready: &Sender<(usize, Started)>) -> io::Result<()> {
    let index = plan.index;
    // Storage threads inherit it.
    linux::block_signals();
    let made = match plan.core {
        Some(core) => linux::pin(core),
        None => Ok(()),
    }
    .and_then(|()| {
        let reactor = u16::try_from(index).expect("counted in 16 bits");
        Reactor::new(&plan.settings, mailbox, |_| {
            Serving::new(plan.serving, plan.memcached_counters, plan.gate, reactor, plan.home)
        })
    });
    match made {
        Ok(reactor) => {
            let mut reactor = reactor.with_peers(index, plan.addresses, plan.start);
            // The starter may have given up already.
            let _ = ready.send((index, Ok((reactor.engine(), reactor.counters()))));
            reactor.run().inspect_err(|error| tracing::error!(%error, index, "reactor failed"))
        }
        Err(error) => {
            let _ = ready.send((index, Err(io::Error::new(error.kind(), error.to_string()))));
            Err(error)
        }
    }
}

/// The initial settings of a control plane on this machine.
fn control_settings(
    config: &TargetConfig,
    discovery_nqn: &Nqn,
    reactor_count: u16,
    audit: Recorder,
) -> ControlSettings {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let wall_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    ControlSettings {
        limits: config.limits,
        reactor_count,
        discovery_nqn: discovery_nqn.clone(),
        randomness: Randomness::System,
        entropy: wall_ns ^ u64::from(std::process::id()) << 40,
        now_ns: 0,
        wall_ns,
        audit,
    }
}

/// A control plane with its first order applied.
fn home(
    settings: ControlSettings,
    cores: Vec<Option<usize>>,
    steps: Vec<Step>,
    exponentiator: Exponentiator,
    gate: &ListenerGate,
) -> Home {
    let now_ns = settings.now_ns;
    let mut control = Control::new(settings).with_generated_keys(Arc::clone(gate.generated()));
    let (answers, _) = channel();
    control.on_order(now_ns, Order { kind: OrderKind::Apply(steps), answers });
    Home::new(control, cores, exponentiator)
}

fn choose_engine(wanted: Option<EngineKind>) -> Result<EngineKind, StartError> {
    let features = Features::probe();
    match (wanted, features.ring) {
        (Some(EngineKind::Epoll), _) => Ok(EngineKind::Epoll),
        (_, Ok(setup)) => {
            if !setup.deferred_task_work {
                tracing::info!(?setup, "io_uring lacks DEFER_TASKRUN on this kernel; continuing without it");
            }
            Ok(EngineKind::Uring)
        }
        (Some(EngineKind::Uring), Err(source)) => Err(StartError::Engine { source }),
        (None, Err(error)) => {
            tracing::warn!(%error, "io_uring unavailable; falling back to epoll: storage is slower");
            Ok(EngineKind::Epoll)
        }
    }
}

/// The reactors' cores; `None` where the system may choose.
fn cores(threads: &Threads) -> io::Result<Vec<Option<usize>>> {
    Ok(match threads {
        Threads::Auto => CoreList::allowed()?.cores().iter().copied().map(Some).collect(),
        Threads::Count(count) => vec![None; usize::from(*count)],
        Threads::Cores(list) => list.cores().iter().copied().map(Some).collect(),
    })
}

/// The settings of lanes that do not depend on those of the reactors.
fn serving_settings(limits: &Limits, timeouts: &TimeoutConfig, reactor_count: u16) -> ServingSettings {
    let defaults = ReactorConfig::default();
    let milliseconds = |ms: u64| ms.saturating_mul(1_000_000);
    ServingSettings {
        queue: QueueSettings {
            offer: ControllerOffer {
                alignment: limits.data_alignment,
                h2c_data_bytes_max: limits.h2c_data_bytes_max,
                r2t_limit: limits.window_count_max.into(),
            },
            in_capsule_bytes: limits.in_capsule_bytes,
            window_bytes: limits.window_bytes_max,
            c2h_data_bytes: limits.transfer_bytes_max,
        },
        limits: IoLimits {
            transfer_bytes_max: limits.transfer_bytes_max,
            in_capsule_bytes: limits.in_capsule_bytes,
            key_value_in_capsule_bytes: limits.in_capsule_bytes.max(limits.key_value_in_capsule_bytes),
            compare_and_write_blocks_max: limits.compare_and_write_blocks_max,
            copy_range_blocks_max: limits.copy_range_blocks_max.into(),
            copy_blocks_max: limits.copy_blocks_max,
            copy_range_count_max: limits.copy_range_count_max,
        },
        timeouts: LaneTimeouts {
            connect_ns: milliseconds(timeouts.connect_ms),
            pdu_ns: milliseconds(timeouts.pdu_ms),
            send_ns: milliseconds(timeouts.send_ms),
            data_ns: milliseconds(timeouts.data_ms),
            contended_ns: milliseconds(timeouts.contended_ms),
            ..LaneTimeouts::default()
        },
        doorbell: defaults.doorbell,
        receive: ReceivePlan::for_target(defaults.receive, defaults.in_place_bytes),
        zero_copy: defaults.zero_copy,
        unconnected_count_max: limits.unconnected_count_max,
        memcached_idle_ns: match timeouts.memcached_idle_ms {
            0 => None,
            idle_ms => Some(milliseconds(idle_ms)),
        },
        reactor_count,
    }
}
