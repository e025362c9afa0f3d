//! The operator: opens storage, binds sockets, orders changes from the control plane, and records the running
//! configuration.
//! All work that may block (opening and resizing storage, binding sockets) happens on the operator's thread, before an
//! [`Order`] reaches the control plane.

mod diff;
mod identities;
mod memcached;
mod storage;
#[cfg(test)]
mod tests;
mod used;
mod waiting;
mod whole;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use memory::page_bytes;
use reactor::{Listener, ListenerTag};
use security::tls::Keyring;
use store::{OpenError, Size, Spec, Store};
use wire::id::Nsid;
use wire::nqn::Nqn;

use crate::config::{
    ConfigPlace, ListenerConfig, MemcachedListenerConfig, PassedSources, Problem, ResolvedNamespace,
    ResolvedSubsystem, TargetConfig, TlsPolicy,
};
use crate::messages::message::{
    NewNamespace, Order, OrderAnswer, OrderKind, REMOVED_LISTENER_GRACE_MS, Step,
};
use crate::messages::state::{Detail, TargetState};
use crate::names::identity;
use crate::names::listener_gate::ListenerGate;
use crate::names::memcached_trust::MemcachedTrust;
use crate::objects::discovery::ListenerEntry;
use crate::objects::rate_limit::Meter;
use crate::objects::subsystem::Subsystem;
use diff::counted;
pub use diff::{Change, Outline, diff};
use identities::Identities;
pub use memcached::MemcachedListener;
use memcached::NewTrust;
use storage::Seen;

/// How long the operator waits for reactors to release removed storage. After that it is closed when they do.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// Opens a listener, or says why there is none.
pub type Bind = fn(SocketAddr) -> Result<Listener, String>;

/// Hands an order to the control plane; `false` if the target has stopped.
pub type Post<'a> = &'a dyn Fn(Order) -> bool;

/// The outcome of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// One line per difference, in order.
    pub lines: Vec<ReportLine>,
}

/// The outcome of one difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportLine {
    /// Whether it was applied.
    pub outcome: ChangeOutcome,
    /// Text for the operator.
    pub text: String,
}

/// Whether a change was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// Applied.
    Done,
    /// Failed: the old state remains.
    Failed,
    /// Applied by the next restart.
    NeedsRestart,
}

impl Report {
    /// Whether every change was applied.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.lines.iter().all(|line| line.outcome == ChangeOutcome::Done)
    }

    pub(crate) fn add(&mut self, outcome: ChangeOutcome, text: String) {
        self.lines.push(ReportLine { outcome, text });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, line) in self.lines.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&line.text)?;
        }
        Ok(())
    }
}

/// The running configuration, and the means to change it. Lives on a thread of its own, which may block.
pub struct Operator {
    running: Outline,
    stores: BTreeMap<(Nqn, Nsid), Store>,
    /// The state of storage last reported to hosts.
    seen: BTreeMap<(Nqn, Nsid), Seen>,
    /// In the order of the configuration, like `memcached`.
    listeners: Vec<RunningListener>,
    memcached: Vec<MemcachedListener>,
    discovery_nqn: Nqn,
    identities: Identities,
    /// As they were when the secrets were last read.
    passed: PassedSources,
    next_tag: ListenerTag,
    /// The checks of new connections.
    gate: Arc<ListenerGate>,
    /// Whether reloads keep namespaces that connected hosts use.
    keeps_used: bool,
    /// Number of reactors that share the storage.
    reactor_count: usize,
    bind: Bind,
    /// Bytes of a page of RAM namespaces.
    page_bytes: usize,
}

/// An open listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningListener {
    /// As configured.
    pub config: ListenerConfig,
    /// The address it is bound to: port 0 replaced by the port that the system chose.
    pub address: SocketAddr,
    tag: ListenerTag,
}

/// A checked configuration, with its secrets.
struct Read {
    outline: Outline,
    keyring: Arc<Keyring>,
    trust: Vec<NewTrust>,
    passed: PassedSources,
    /// Ports of partitions begin or end, which takes a restart: the memcached listeners stay.
    keeps_memcached: bool,
}

/// A prepared change, and the resources that run once it is applied.
struct Prepared {
    change: Change,
    step: Step,
    effect: Effect,
}

/// The resources that the operator keeps after a change.
enum Effect {
    /// No resources: only the outline changes.
    None,
    Listener(RunningListener),
    Memcached(MemcachedListener),
    /// A namespace whose identity is settled.
    Namespace(Store, ResolvedNamespace),
}

impl Operator {
    /// Opens everything that a configuration names and returns the steps that put it in place. Nothing is created
    /// before everything has been checked. May block.
    ///
    /// # Errors
    /// The problems of the configuration or its storage, or an address that cannot be bound; nothing is left open then.
    pub fn start(config: &TargetConfig, reactor_count: u16) -> Result<(Self, Vec<Step>), Vec<Problem>> {
        Self::start_with(config, reactor_count, bind, page_bytes())
    }

    /// As [`start`](Self::start), with other sockets and pages: those of a simulated machine.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        config: &TargetConfig,
        reactor_count: u16,
        bind: Bind,
        page_bytes: usize,
    ) -> Result<(Self, Vec<Step>), Vec<Problem>> {
        for problems in [config.check(), config.inspect()] {
            if !problems.is_empty() {
                return Err(problems);
            }
        }
        let mut sockets = Vec::new();
        for (at, listener) in config.listeners.iter().enumerate() {
            let bound = bind(listener.address)
                .map_err(|message| vec![Problem { place: ConfigPlace::Listener(at), message }])?;
            sockets.push(bound);
        }
        let trust = config.read_memcached_trust()?;
        let mut memcached = Vec::new();
        for (at, (listener, trust)) in config.memcached.iter().zip(trust).enumerate() {
            for listener in listener.of_ports(reactor_count) {
                let bound = memcached::bind(&listener.address)
                    .map_err(|message| vec![Problem { place: ConfigPlace::Memcached(at), message }])?;
                memcached.push((listener, trust.clone(), bound));
            }
        }
        let config = &config.with_ports(reactor_count);
        let first = sockets.first().map_or_else(|| SocketAddr::from(([0; 4], 0)), Listener::address);
        let discovery_nqn = config.discovery.nqn.clone();
        let identities = Identities::new(config, first).map_err(|problem| vec![problem])?;
        let discovery_nqn = discovery_nqn.unwrap_or_else(|| identities.target().discovery_nqn());
        let gate = Arc::<ListenerGate>::default();
        gate.set_keyring(read_keyring(config, &discovery_nqn)?);
        let mut operator = Self {
            gate,
            running: Outline::with_secrets(config, identities.target())?,
            stores: BTreeMap::new(),
            seen: BTreeMap::new(),
            listeners: Vec::new(),
            memcached: Vec::new(),
            discovery_nqn,
            identities,
            passed: PassedSources::of(config),
            next_tag: 1,
            keeps_used: false,
            reactor_count: reactor_count.into(),
            bind,
            page_bytes,
        };
        let mut steps = vec![
            Step::SetReferrals(config.discovery.referrals.clone()),
            Step::SetPlacement(config.reactors.placement),
            Step::SetDoorbell(config.reactors.doorbell),
        ];
        if config.log.slow.is_on() {
            steps.push(Step::SetSlow(config.log.slow));
        }
        steps.extend(operator.open_subsystems(config)?);
        operator.see_all();
        for (listener, socket) in config.listeners.iter().zip(sockets) {
            let (running, step) = operator.new_listener(listener.clone(), socket);
            operator.listeners.push(running);
            steps.push(step);
        }
        for (listener, trust, socket) in memcached {
            let (running, step) = operator.new_memcached_listener(&listener, trust, socket);
            operator.memcached.push(running);
            steps.push(step);
        }
        Ok((operator, steps))
    }

    fn open_subsystems(&mut self, config: &TargetConfig) -> Result<Vec<Step>, Vec<Problem>> {
        let mut steps = Vec::new();
        let resolved = self.running.subsystems.clone();
        for (at, subsystem) in config.subsystems.iter().enumerate() {
            let Some(resolved) = resolved.get(&subsystem.nqn) else { continue };
            steps.push(Step::AddSubsystem(new_subsystem(resolved)));
            for (nsid, namespace) in &resolved.namespaces {
                let problem = |message| {
                    let is_it = |wanted: &crate::config::NamespaceConfig| wanted.storage == namespace.spec;
                    let namespace_at = subsystem.namespaces.iter().position(is_it).unwrap_or(0);
                    let place = ConfigPlace::Namespace(at, namespace_at, "storage");
                    vec![Problem { place, message }]
                };
                let store = waiting::open(|| self.open_new(&namespace.spec));
                let store = store.map_err(|error| problem(error.to_string()))?;
                let block_bytes = store.blocks().map(|blocks| blocks.geometry().block_bytes);
                let identity = store.identity();
                let settled = self.identities.settle(&subsystem.nqn, *nsid, namespace, block_bytes, identity);
                let settled = settled.map_err(problem)?;
                self.stores.insert((subsystem.nqn.clone(), *nsid), store.clone());
                let namespace = new_namespace(&settled, store);
                self.with_subsystem(&subsystem.nqn, |known| drop(known.namespaces.insert(*nsid, settled)));
                steps.push(Step::AddNamespace { subsystem: subsystem.nqn.clone(), nsid: *nsid, namespace });
            }
        }
        Ok(steps)
    }

    /// The unique name of the discovery service.
    #[must_use]
    pub fn discovery_nqn(&self) -> &Nqn {
        &self.discovery_nqn
    }

    /// The checks of new connections.
    #[must_use]
    pub fn gate(&self) -> &Arc<ListenerGate> {
        &self.gate
    }

    /// Addresses of the listeners, in the order of the configuration.
    #[must_use]
    pub fn listeners(&self) -> &[RunningListener] {
        &self.listeners
    }

    /// The memcached listeners, in the order of the configuration.
    pub fn memcached_listeners(&self) -> impl Iterator<Item = &MemcachedListener> {
        self.memcached.iter()
    }

    /// The running configuration.
    #[must_use]
    pub fn running(&self) -> &Outline {
        &self.running
    }

    /// Reads all secrets again, applies the differences between the running and the wanted configuration, and reopens closed
    /// namespaces. A change that fails leaves the old state; the others are applied. May block.
    pub fn reload(&mut self, wanted: &TargetConfig, post: Post<'_>) -> Report {
        let mut report = match self.read(wanted) {
            Ok(read) => self.apply(read, post),
            Err(problems) => {
                let failed = |problem| format!("nothing changed: {problem}");
                let mut report = Report::default();
                problems.into_iter().for_each(|problem| report.add(ChangeOutcome::Failed, failed(problem)));
                report
            }
        };
        report.lines.append(&mut self.reopen_closed(post).lines);
        report
    }

    /// Checks a configuration and reads its secrets.
    fn read(&self, wanted: &TargetConfig) -> Result<Read, Vec<Problem>> {
        let problems = wanted.check();
        if !problems.is_empty() {
            return Err(problems);
        }
        let passed = PassedSources::of(wanted);
        let keyring = read_keyring(wanted, &self.discovery_nqn)?;
        let partition_count = u16::try_from(self.reactor_count).unwrap_or(u16::MAX);
        let of_ports = |(listener, trust): (&MemcachedListenerConfig, MemcachedTrust)| {
            listener.of_ports(partition_count).map(|port| (port, trust.clone())).collect::<Vec<_>>()
        };
        let trust = wanted.memcached.iter().zip(wanted.read_memcached_trust()?).flat_map(of_ports).collect();
        let mut wanted = wanted.with_ports(partition_count);
        // Keys are where clients of the other kind do not look for them.
        let running = &self.running.config;
        let keeps_memcached = wanted.is_memcached_by_partition() != running.is_memcached_by_partition();
        if keeps_memcached {
            wanted.memcached.clone_from(&running.memcached);
        }
        let outline = Outline::with_secrets(&wanted, self.identities.target())?;
        Ok(Read { outline, keyring, trust, passed, keeps_memcached })
    }

    fn apply(&mut self, read: Read, post: Post<'_>) -> Report {
        let Read { outline: mut wanted, keyring, trust, passed, keeps_memcached } = read;
        let (mut report, mut later) = (Report::default(), Report::default());
        if keeps_memcached {
            let line = "change memcached listeners to or from ?partitions: takes a restart";
            later.add(ChangeOutcome::NeedsRestart, line.into());
        }
        let mut prepared = Vec::new();
        for line in passed.stale_since(&self.passed) {
            later.add(ChangeOutcome::NeedsRestart, line);
        }
        self.passed = passed;
        let mut steps = Vec::new();
        for (line, step) in self.identities.follow_renamed(&mut self.running, &wanted) {
            report.add(ChangeOutcome::Done, line);
            steps.push(step);
        }
        announce(steps, post, &mut report);
        self.identities.carry_over(&self.running, &mut wanted);
        // The new overlap applies to this reload already: 0 ends the former secrets at once.
        self.running.config.timeouts.secret_overlap_ms = wanted.config.timeouts.secret_overlap_ms;
        let mut changes = diff(&self.running, &wanted);
        if self.keeps_used {
            self.keep_used(&mut changes, post);
        }
        changes.extend(self.memory_set_by_clients(&wanted));
        self.identities.begin(&self.running, &changes);
        let closed = self.closed();
        for line in self.identities.replaced_files(&self.running, &wanted, &closed) {
            later.add(ChangeOutcome::Failed, line);
        }
        for change in changes {
            match change {
                Change::NeedsRestart(_) => {
                    later.add(ChangeOutcome::NeedsRestart, format!("{change}: takes a restart"));
                }
                _ => match self.prepare(&change, &trust) {
                    Ok((step, effect)) => prepared.push(Prepared { change, step, effect }),
                    Err(why) => later.add(ChangeOutcome::Failed, format!("{change}: not done, {why}")),
                },
            }
        }
        self.carry_out(prepared, keyring, &trust, post, &mut report);
        report.lines.append(&mut later.lines);
        report
    }

    /// Changes that give key-value namespaces the memory of the configuration again where clients have set another
    /// limit, and the configuration has not changed.
    fn memory_set_by_clients(&self, wanted: &Outline) -> Vec<Change> {
        let mut changes = Vec::new();
        for ((nqn, nsid), store) in &self.stores {
            let spec = |outline: &Outline| {
                let subsystem = outline.subsystems.get(nqn)?;
                Some(subsystem.namespaces.get(nsid)?.spec.clone())
            };
            let (Some(keys), Some(running), Some(wanted)) = (store.keys(), spec(&self.running), spec(wanted))
            else {
                continue;
            };
            let bytes = wanted.memory_bytes().max(keys.memory_bytes_min());
            if running == wanted && keys.memory_bytes() != bytes {
                changes.push(Change::SetMemory { subsystem: nqn.clone(), nsid: *nsid, spec: wanted, bytes });
            }
        }
        changes
    }

    /// Performs the blocking part of a change.
    fn prepare(&mut self, change: &Change, trust: &[NewTrust]) -> Result<(Step, Effect), String> {
        let none = |step| Ok((step, Effect::None));
        match change {
            Change::RemoveListener(address) => {
                none(Step::RemoveListener { tag: self.listener(*address)?.tag })
            }
            Change::AddListener(config) => {
                let socket = (self.bind)(config.address)?;
                let (running, step) = self.new_listener(config.clone(), socket);
                Ok((step, Effect::Listener(running)))
            }
            Change::ChangeListener(config) => {
                let known = self.listener(config.address)?;
                let running = RunningListener { config: config.clone(), ..known.clone() };
                // A policy that demands less holds once the change is applied; one that demands more at once, and even if
                // the change fails.
                self.gate.restrict(running.tag, config.tls);
                self.gate.restrict_allowed(running.tag, config.allow.clone());
                let step = Step::ChangeListener { tag: running.tag, entry: entry(&running) };
                Ok((step, Effect::Listener(running)))
            }
            Change::RemoveMemcachedListener(address) => {
                let known = self.memcached.iter().find(|known| known.config.address == *address);
                none(Step::RemoveMemcachedListener { tag: known.ok_or("it is not open")?.tag })
            }
            Change::ChangeMemcachedListener(config) => {
                let running = self.changed_memcached_listener(config, trust)?;
                Ok((Step::ChangeMemcachedListener { tag: running.tag }, Effect::Memcached(running)))
            }
            Change::AddMemcachedListener(config) => {
                let trust = memcached::trust_of(config, trust)?;
                let socket = memcached::bind(&config.address)?;
                let (running, step) = self.new_memcached_listener(config, trust, socket);
                Ok((step, Effect::Memcached(running)))
            }
            Change::SetReferrals(referrals) => none(Step::SetReferrals(referrals.clone())),
            Change::SetPlacement(policy) => none(Step::SetPlacement(*policy)),
            Change::SetSlow(threshold) => none(Step::SetSlow(*threshold)),
            Change::SetDoorbell(policy) => none(Step::SetDoorbell(*policy)),
            Change::SetSubsystemDoorbell(nqn, policy) => {
                none(Step::SetSubsystemDoorbell(nqn.clone(), *policy))
            }
            Change::RemoveSubsystem(nqn) => none(Step::RemoveSubsystem(nqn.clone())),
            Change::RemoveNamespace(nqn, nsid, _) => {
                none(Step::RemoveNamespace { subsystem: nqn.clone(), nsid: *nsid })
            }
            Change::AddSubsystem(subsystem) => none(Step::AddSubsystem(new_subsystem(subsystem))),
            Change::SetAccess(nqn, access) => none(Step::SetAccess(nqn.clone(), access.clone())),
            Change::SetAuthentication(nqn, authentication) => none(Step::SetAuthentication {
                subsystem: nqn.clone(),
                authentication: Arc::clone(authentication),
                overlap_ms: self.running.config.timeouts.secret_overlap_ms,
            }),
            Change::SetCntlids(nqn, range) => none(Step::SetCntlids(nqn.clone(), range.clone())),
            Change::ResizeNamespace { subsystem, nsid, spec, bytes } => {
                let store = self.store(subsystem, *nsid)?;
                let has = store.bytes();
                // A file whose specification gave no size so far.
                if has > *bytes && identity::storage_name(spec).is_some() {
                    return Err(format!("it has {} already: leave size out to use all of it", Size(has)));
                }
                store.resize(*bytes).map_err(|error| error.to_string())?;
                let storage = Some(spec.to_string());
                none(Step::StorageChanged { subsystem: subsystem.clone(), nsid: *nsid, storage })
            }
            Change::SetMemory { subsystem, nsid, spec, bytes } => {
                let store = self.store(subsystem, *nsid)?;
                let keys = store.keys().ok_or("it has no keys and values")?;
                keys.set_memory(*bytes).map_err(|error| error.to_string())?;
                let storage = Some(spec.to_string());
                none(Step::StorageChanged { subsystem: subsystem.clone(), nsid: *nsid, storage })
            }
            Change::ReplaceNamespace(nqn, nsid, namespace) => {
                let store = self.open(&namespace.spec)?;
                let step = Step::ReplaceNamespace {
                    subsystem: nqn.clone(),
                    nsid: *nsid,
                    namespace: new_namespace(namespace, store.clone()),
                };
                Ok((step, Effect::Namespace(store, namespace.clone())))
            }
            Change::SetRights(nqn, nsid, rights) => {
                none(Step::SetRights { subsystem: nqn.clone(), nsid: *nsid, rights: rights.clone() })
            }
            Change::SetNamespaceLimits(nqn, nsid, limits) => {
                none(Step::SetNamespaceLimits { subsystem: nqn.clone(), nsid: *nsid, limits: *limits })
            }
            Change::SetHostLimits(nqn, limits) => none(Step::SetHostLimits(nqn.clone(), limits.clone())),
            Change::AddNamespace(nqn, nsid, namespace) => {
                let store = self.open(&namespace.spec)?;
                let block_bytes = store.blocks().map(|blocks| blocks.geometry().block_bytes);
                let settled = self.identities.settle(nqn, *nsid, namespace, block_bytes, store.identity())?;
                let step = Step::AddNamespace {
                    subsystem: nqn.clone(),
                    nsid: *nsid,
                    namespace: new_namespace(&settled, store.clone()),
                };
                Ok((step, Effect::Namespace(store, settled)))
            }
            Change::NeedsRestart(why) | Change::Refused { why, .. } => Err(why.clone()),
        }
    }

    /// Opens storage, or reuses storage that is already open: a namespace may move to another subsystem or another
    /// number.
    fn open(&self, spec: &Spec) -> Result<Store, String> {
        let shape = |spec: &Spec| Spec { uuid: None, ..spec.clone() };
        let is_it = |(subsystem_nqn, nsid): &(Nqn, Nsid)| {
            let subsystem = self.running.subsystems.get(subsystem_nqn);
            let running = subsystem.and_then(|subsystem| subsystem.namespaces.get(nsid));
            let is_same = running.is_some_and(|running| shape(&running.spec) == shape(spec));
            is_same && self.identities.has_open(subsystem_nqn, *nsid, spec)
        };
        // Storage without a name cannot be referred to: each is separate.
        let has_name = identity::storage_name(spec).is_some();
        match self.stores.iter().find(|(key, _)| has_name && is_it(key)) {
            Some((_, store)) => Ok(store.clone()),
            None => self.open_new(spec).map_err(|error| error.to_string()),
        }
    }

    /// Opens storage that is not open yet.
    fn open_new(&self, spec: &Spec) -> Result<Store, OpenError> {
        let store = spec.open_with_pages(self.reactor_count > 1, self.page_bytes)?;
        store.set_reactor_count(self.reactor_count)?;
        Ok(store)
    }

    fn store(&self, subsystem: &Nqn, nsid: Nsid) -> Result<Store, String> {
        let store = self.stores.get(&(subsystem.clone(), nsid));
        store.cloned().ok_or_else(|| "it is not open".into())
    }

    fn listener(&self, address: SocketAddr) -> Result<&RunningListener, String> {
        let found = self.listeners.iter().find(|listener| listener.config.address == address);
        found.ok_or_else(|| "it is not open".into())
    }

    fn new_listener(&mut self, config: ListenerConfig, socket: Listener) -> (RunningListener, Step) {
        let running = RunningListener { config, address: socket.address(), tag: self.next_tag };
        self.next_tag += 1;
        self.gate.set_policy(running.tag, running.config.tls);
        self.gate.set_allowed(running.tag, running.config.allow.clone());
        let step = Step::AddListener { tag: running.tag, entry: entry(&running), socket };
        (running, step)
    }

    /// Orders the prepared changes and records the outcome. The keys are for new connections; connected hosts stay.
    fn carry_out(
        &mut self,
        prepared: Vec<Prepared>,
        keyring: Arc<Keyring>,
        trust: &[NewTrust],
        post: Post<'_>,
        report: &mut Report,
    ) {
        if prepared.is_empty() {
            self.set_keyring(keyring, report);
            return self.set_memcached_trust(trust, report);
        }
        // A new key may be that of hosts which a change is yet to refuse.
        self.gate.restrict_keyring(&keyring);
        self.restrict_memcached_trust(trust);
        let (steps, notes): (Vec<Step>, Vec<(Change, Effect)>) =
            prepared.into_iter().map(|prepared| (prepared.step, (prepared.change, prepared.effect))).unzip();
        let Some((OrderAnswer::Applied(outcomes), received)) = ask(OrderKind::Apply(steps), post) else {
            return report.add(ChangeOutcome::Failed, "nothing changed: the target is gone".into());
        };
        let mut frees_storage = false;
        for ((change, effect), outcome) in notes.into_iter().zip(outcomes) {
            match outcome {
                Ok(ended_count) => {
                    let ended = match (ended_count, &change) {
                        (0, _) => String::new(),
                        (count, Change::RemoveListener(_)) => {
                            let (count, grace_s) =
                                (counted(count, "association"), REMOVED_LISTENER_GRACE_MS / 1000);
                            format!(", {count} that came in there to end in {grace_s} s")
                        }
                        (count, _) => format!(", {} ended", counted(count, "association")),
                    };
                    report.add(ChangeOutcome::Done, format!("{change}: done{ended}"));
                    frees_storage |= matches!(
                        change,
                        Change::RemoveSubsystem(_)
                            | Change::RemoveNamespace(..)
                            | Change::ReplaceNamespace(..)
                    );
                    self.note(change, effect);
                }
                Err(error) => report.add(ChangeOutcome::Failed, format!("{change}: not done, {error}")),
            }
        }
        self.set_keyring(keyring, report);
        self.set_memcached_trust(trust, report);
        if frees_storage {
            close_released(&received);
        }
    }

    /// Replaces the keys of TLS, and records the outcome if they have changed.
    fn set_keyring(&self, keyring: Arc<Keyring>, report: &mut Report) {
        if !self.gate.keyring().has_same_keys(&keyring) {
            report.add(ChangeOutcome::Done, "change the keys of TLS: done".into());
        }
        self.gate.set_keyring(keyring);
    }

    /// Records an applied change.
    fn note(&mut self, change: Change, effect: Effect) {
        let config = &mut self.running.config;
        match (change, effect) {
            (Change::RemoveListener(address), _) => {
                remove_first(&mut config.listeners, |listener| listener.address == address);
                remove_first(&mut self.listeners, |listener| listener.config.address == address);
            }
            (Change::AddListener(listener), Effect::Listener(running)) => {
                config.listeners.push(listener);
                self.listeners.push(running);
            }
            (Change::ChangeListener(listener), Effect::Listener(running)) => {
                self.gate.set_policy(running.tag, listener.tls);
                self.gate.set_allowed(running.tag, listener.allow.clone());
                let known = config.listeners.iter_mut().find(|known| known.address == listener.address);
                known.into_iter().for_each(|known| known.clone_from(&listener));
                let known = self.listeners.iter_mut().find(|known| known.tag == running.tag);
                known.into_iter().for_each(|known| known.clone_from(&running));
            }
            (Change::RemoveMemcachedListener(address), _) => {
                remove_first(&mut config.memcached, |known| known.address == address);
                remove_first(&mut self.memcached, |known| known.config.address == address);
            }
            (Change::ChangeMemcachedListener(listener), Effect::Memcached(running)) => {
                let known = config.memcached.iter_mut().find(|known| known.address == listener.address);
                known.into_iter().for_each(|known| known.clone_from(&listener));
                self.note_memcached_listener(running);
            }
            (Change::AddMemcachedListener(listener), Effect::Memcached(running)) => {
                config.memcached.push(listener);
                self.memcached.push(running);
            }
            (Change::SetReferrals(referrals), _) => config.discovery.referrals = referrals,
            (Change::SetPlacement(policy), _) => config.reactors.placement = policy,
            (Change::SetSlow(threshold), _) => config.log.slow = threshold,
            (Change::SetDoorbell(policy), _) => config.reactors.doorbell = policy,
            (Change::SetSubsystemDoorbell(nqn, policy), _) => {
                self.with_subsystem(&nqn, |subsystem| subsystem.doorbell = policy);
            }
            (Change::RemoveSubsystem(nqn), _) => {
                self.running.subsystems.remove(&nqn);
                self.stores.retain(|(subsystem, _), _| *subsystem != nqn);
            }
            (Change::AddSubsystem(mut subsystem), _) => {
                // Its namespaces are separate changes.
                subsystem.namespaces.clear();
                self.running.subsystems.insert(subsystem.nqn.clone(), subsystem);
            }
            (Change::SetAccess(nqn, access), _) => {
                self.with_subsystem(&nqn, |subsystem| subsystem.access = access);
            }
            (Change::SetAuthentication(nqn, authentication), _) => {
                self.with_subsystem(&nqn, |subsystem| subsystem.authentication = authentication);
            }
            (Change::SetCntlids(nqn, range), _) => {
                self.with_subsystem(&nqn, |subsystem| subsystem.cntlids = range);
            }
            (Change::SetRights(nqn, nsid, rights), _) => {
                self.with_subsystem(&nqn, |subsystem| {
                    let known = subsystem.namespaces.get_mut(&nsid);
                    known.into_iter().for_each(|known| known.rights = rights.clone());
                });
            }
            (Change::SetNamespaceLimits(nqn, nsid, limits), _) => {
                self.with_subsystem(&nqn, |subsystem| {
                    let known = subsystem.namespaces.get_mut(&nsid);
                    known.into_iter().for_each(|known| known.limits = limits);
                });
            }
            (Change::SetHostLimits(nqn, limits), _) => {
                let meters =
                    limits.into_iter().filter_map(|(host, limits)| Some((host, Meter::new(limits)?)));
                self.with_subsystem(&nqn, |subsystem| subsystem.host_meters = meters.collect());
            }
            (Change::RemoveNamespace(nqn, nsid, _), _) => {
                self.with_subsystem(&nqn, |subsystem| drop(subsystem.namespaces.remove(&nsid)));
                self.stores.remove(&(nqn, nsid));
            }
            (
                Change::ResizeNamespace { subsystem, nsid, spec, .. }
                | Change::SetMemory { subsystem, nsid, spec, .. },
                _,
            ) => {
                // The change itself has notified its hosts.
                self.see(&subsystem, nsid);
                self.with_subsystem(&subsystem, |subsystem| {
                    if let Some(namespace) = subsystem.namespaces.get_mut(&nsid) {
                        namespace.spec = spec;
                    }
                });
            }
            (
                Change::ReplaceNamespace(nqn, nsid, _) | Change::AddNamespace(nqn, nsid, _),
                Effect::Namespace(store, namespace),
            ) => {
                self.with_subsystem(&nqn, |subsystem| drop(subsystem.namespaces.insert(nsid, namespace)));
                self.stores.insert((nqn.clone(), nsid), store);
                self.see(&nqn, nsid);
            }
            (change, _) => debug_assert!(false, "{change} was not prepared"),
        }
    }

    fn with_subsystem(&mut self, nqn: &Nqn, act: impl FnOnce(&mut ResolvedSubsystem)) {
        if let Some(subsystem) = self.running.subsystems.get_mut(nqn) {
            act(subsystem);
        }
    }
}

/// Queries the state of the target, without those of its reactors; `None` if it has stopped.
#[must_use]
pub fn state(post: Post<'_>) -> Option<TargetState> {
    match ask(OrderKind::State(Detail::Lanes), post)?.0 {
        OrderAnswer::State(parts) => Some(parts.complete(Vec::new()).0),
        _ => None,
    }
}

/// Stops the target and waits for it. Returns the number of lanes that had not ended after `grace_ms`; `None` if the
/// target has stopped already.
pub fn stop(post: Post<'_>, grace_ms: u64) -> Option<usize> {
    match ask(OrderKind::Stop { grace_ms }, post)?.0 {
        OrderAnswer::Stopped { lanes_left } => Some(lanes_left),
        _ => None,
    }
}

/// Sends the control plane the storage changes that have already happened.
fn announce(steps: Vec<Step>, post: Post<'_>, report: &mut Report) {
    if !steps.is_empty() && ask(OrderKind::Apply(steps), post).is_none() {
        report.add(ChangeOutcome::Failed, "hosts were not notified: the target is gone".into());
    }
}

/// The control plane's answer to an order, and where others follow; `None` if the target has stopped.
fn ask(kind: OrderKind, post: Post<'_>) -> Option<(OrderAnswer, Receiver<OrderAnswer>)> {
    let (answers, received) = channel();
    if !post(Order { kind, answers }) {
        return None;
    }
    Some((received.recv().ok()?, received))
}

/// Waits until no reactor uses the removed storage, and closes it on this thread, which may block.
fn close_released(received: &Receiver<OrderAnswer>) {
    // Nothing arrives if all removed storage is still in use elsewhere.
    if let Ok(OrderAnswer::Released(stores)) = received.recv_timeout(RELEASE_WAIT) {
        drop(stores);
    }
}

fn remove_first<T>(list: &mut Vec<T>, is_it: impl FnMut(&T) -> bool) {
    if let Some(at) = list.iter().position(is_it) {
        list.remove(at);
    }
}

/// Reads the keys of TLS, and starts the library if a listener speaks TLS: the first handshake does not wait for it
/// then.
fn read_keyring(config: &TargetConfig, discovery_nqn: &Nqn) -> Result<Arc<Keyring>, Vec<Problem>> {
    let keyring = config.read_tls_keys()?.with_discovery(discovery_nqn.clone());
    if config.listeners.iter().any(|listener| listener.tls != TlsPolicy::Off)
        && let Err(failure) = security::tls::prepare()
    {
        return Err(vec![Problem { place: ConfigPlace::Listener(0), message: failure.to_string() }]);
    }
    Ok(Arc::new(keyring))
}

/// An address may be assigned after the target starts: by DHCP, with a container's network, or once IPv6 has found that
/// no other machine has it.
///
/// A socket that the service manager has opened is taken over: clients were never refused there.
fn bind(address: SocketAddr) -> Result<Listener, String> {
    if let Some(passed) = linux::passed_socket(address) {
        return Listener::new(passed)
            .map_err(|error| format!("cannot take over the socket of {address}: {error}"));
    }
    let bound = waiting::bind(address).or_else(|error| {
        if error.kind() != std::io::ErrorKind::AddrNotAvailable {
            return Err(error);
        }
        let listener = Listener::bind_ahead(address)?;
        tracing::warn!(%address, "no interface of this machine has this address: the listener is unreachable until one has");
        Ok(listener)
    });
    bound.map_err(|error| {
        let remedy = match error.kind() {
            std::io::ErrorKind::AddrInUse => ": end what listens there, or take another port",
            std::io::ErrorKind::PermissionDenied => ": take a port from 1024 up",
            _ => "",
        };
        format!("cannot listen on {address}: {error}{remedy}")
    })
}

fn entry(listener: &RunningListener) -> ListenerEntry {
    ListenerEntry {
        address: listener.address,
        advertise: listener.config.advertise,
        serves_subsystems: listener.config.subsystems,
        serves_discovery: listener.config.discovery,
        doorbell: listener.config.doorbell,
        tls: listener.config.tls,
    }
}

fn new_subsystem(resolved: &ResolvedSubsystem) -> Subsystem {
    Subsystem {
        serial: resolved.serial.clone(),
        model: resolved.model.clone(),
        authentication: Arc::clone(&resolved.authentication),
        cntlids: resolved.cntlids.clone(),
        doorbell: resolved.doorbell,
        host_meters: resolved.host_meters.clone(),
        ..Subsystem::new(resolved.nqn.clone(), resolved.access.clone())
    }
}

fn new_namespace(resolved: &ResolvedNamespace, store: Store) -> NewNamespace {
    NewNamespace {
        store,
        storage: resolved.spec.to_string(),
        uuid: resolved.uuid,
        nguid: resolved.nguid,
        rights: resolved.rights.clone(),
        limits: resolved.limits,
    }
}
