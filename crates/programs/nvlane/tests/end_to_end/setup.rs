//! A target in this process, and hosts for it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use host::BlockingNamespace;
use host::{Address, Association, HostIdentity, HostName, Options, ReconnectSettings};
use reactor::{EngineKind, Features};
use subsystem::config::{ListenerConfig, NamespaceConfig, SubsystemConfig, TargetConfig, Threads};
use subsystem::operator::Report;
use subsystem::server::Target;
use subsystem::state::{ControllerState, MemcachedListenerState, TargetState};
use tempfile::TempDir;
use wire::id::Nsid;
use wire::uuid::Uuid;

/// The subsystem.
pub(crate) const NQN: &str = "nqn.2026-01.io.nvlane:test";

/// Time limit for anything that should be immediate, on the busiest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The engines available on this machine.
pub(crate) fn engines() -> Vec<EngineKind> {
    match Features::probe().ring {
        Ok(_) => vec![EngineKind::Uring, EngineKind::Epoll],
        Err(_) => vec![EngineKind::Epoll],
    }
}

/// A target with its storage. It stops on drop.
pub(crate) struct Rig {
    pub(crate) config: TargetConfig,
    target: Option<Target>,
    address: SocketAddr,
    directory: TempDir,
}

/// An unused loopback address: while a target is stopped, no other socket gets its port.
fn own_address() -> IpAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high | 1, low, COUNT.fetch_add(1, Ordering::Relaxed).max(1)).into()
}

impl Rig {
    /// A target with two reactors and these namespaces.
    pub(crate) fn new(engine: EngineKind, storage: &[&str]) -> Self {
        Self::with(engine, storage, |_| {})
    }

    /// [`new`](Self::new) with a changed configuration. In `storage`, `file:SIZE` is a new file of that size.
    pub(crate) fn with(engine: EngineKind, storage: &[&str], change: impl FnOnce(&mut TargetConfig)) -> Self {
        let directory = tempfile::tempdir().expect("a directory for files");
        let mut subsystem = SubsystemConfig::new(NQN.parse().expect("a good name"));
        for (at, storage) in storage.iter().enumerate() {
            subsystem.namespaces.push(namespace(&directory, at, storage));
        }
        let address = SocketAddr::new(own_address(), 0);
        let mut config = TargetConfig {
            listeners: vec![ListenerConfig::new(address)],
            subsystems: vec![subsystem],
            ..TargetConfig::default()
        };
        config.reactors.engine = Some(engine);
        config.reactors.threads = Threads::Count(2);
        config.reactors.pool_bytes = 16 << 20;
        change(&mut config);
        let mut rig = Self { config, target: None, address, directory };
        rig.start();
        rig
    }

    /// Starts the target on the same port as before.
    pub(crate) fn start(&mut self) {
        assert_eq!(self.config.check(), [], "a configuration that can be");
        let target = Target::start(&self.config).expect("a target starts");
        self.address = target.listeners()[0].address;
        self.target = Some(target);
    }

    /// Stops the target; returns the number of lanes that had to be cut off.
    pub(crate) fn stop(&mut self) -> usize {
        let target = self.target.take().expect("a target that runs");
        self.config.listeners[0].address = self.address;
        target.stop().expect("reactors that live to the end")
    }

    /// Reloads the configuration while it runs.
    pub(crate) fn reload(&mut self, change: impl FnOnce(&mut TargetConfig)) {
        change(&mut self.config);
        let report = self.target.as_mut().expect("a target that runs").reload(&self.config);
        assert!(report.is_complete(), "{report}");
        let until = Instant::now() + PATIENCE;
        while !self.state().subsystems.iter().flat_map(|subsystem| &subsystem.namespaces).all(|ns| ns.shown) {
            assert!(Instant::now() < until, "a namespace that no host is shown");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reloads the configuration while it runs. Returns what was changed and what was not.
    pub(crate) fn try_reload(&mut self, change: impl FnOnce(&mut TargetConfig)) -> Report {
        change(&mut self.config);
        self.target.as_mut().expect("a target that runs").reload(&self.config)
    }

    /// The memcached listeners.
    pub(crate) fn state_of_memcached(&self) -> Vec<MemcachedListenerState> {
        self.state().memcached_listeners
    }

    /// Makes the target check whether its storage has changed.
    pub(crate) fn look(&mut self) -> Report {
        self.target.as_mut().expect("a target that runs").look_after_storage()
    }

    /// The file of the namespace in this place.
    pub(crate) fn file(&self, at: usize) -> PathBuf {
        self.directory.path().join(format!("{at}.img"))
    }

    /// The expansion of a storage specification, for a reload.
    pub(crate) fn namespace_config(&self, at: usize, storage: &str) -> NamespaceConfig {
        namespace(&self.directory, at, storage)
    }

    pub(crate) fn state(&self) -> TargetState {
        self.target.as_ref().expect("a target that runs").state().expect("reactors that live")
    }

    /// The controllers of the subsystem.
    pub(crate) fn controllers(&self) -> Vec<ControllerState> {
        self.state().subsystems.remove(0).controllers
    }

    /// Waits until no controller is left.
    pub(crate) fn await_quiet(&self) {
        let until = Instant::now() + PATIENCE;
        while !self.controllers().is_empty() {
            assert!(Instant::now() < until, "controllers are left: {:?}", self.controllers());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until this reason is counted once: a host may see the end of its connection before that.
    pub(crate) fn await_complaint(&self, reason: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let complaints = self.state().connections.complaints;
            if complaints.get(reason) == Some(&1) {
                return;
            }
            assert!(Instant::now() < until, "{reason}: {complaints:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn socket_address(&self) -> SocketAddr {
        self.address
    }

    /// Address of the memcached listener.
    pub(crate) fn memcached(&self) -> SocketAddr {
        self.target.as_ref().expect("a target that runs").memcached()[0].ip().expect("a port")
    }

    pub(crate) fn connect(&self, options: Options) -> Association {
        connect_to(self.socket_address(), options)
    }

    /// The first namespace, and a lane for it.
    pub(crate) fn open(&self, options: Options) -> BlockingNamespace {
        open(&self.connect(options), 1)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(target) = self.target.take()
            && !std::thread::panicking()
        {
            target.stop().expect("reactors that live to the end");
        }
    }
}

fn namespace(directory: &TempDir, at: usize, storage: &str) -> NamespaceConfig {
    let spec = match storage.strip_prefix("file:") {
        // A path names an existing file.
        Some(rest) if !rest.starts_with('/') => {
            let (size, options) = rest.split_once('?').unwrap_or((rest, ""));
            let path = directory.path().join(format!("{at}.img"));
            format!("file:{}?size={size}&{options}", path.display())
        }
        _ => storage.to_owned(),
    };
    let spec = spec.trim_end_matches('&').parse().expect("a good specification");
    let nsid = u32::try_from(at + 1).expect("few namespaces");
    NamespaceConfig { nsid: Some(Nsid::new(nsid)), ..NamespaceConfig::new(spec) }
}

/// Sets a flag on drop, also if the thread panics: threads that run until then would keep the test from its end.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until a counter has grown by `more`.
pub(crate) fn await_more(count: &AtomicU64, more: u64) {
    let (before, until) = (count.load(Ordering::Relaxed), Instant::now() + PATIENCE);
    while count.load(Ordering::Relaxed) < before + more {
        assert!(Instant::now() < until, "the counter stays at {}", count.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Options of a host that gives up as soon as its connection is lost.
pub(crate) fn options() -> Options {
    Options::default()
        .with_identity(Some(HostIdentity::from_uuid(Uuid::from_bytes([7; 16]))))
        .with_reconnect(ReconnectSettings::never())
        .with_command_timeout(Duration::from_secs(60))
        .tuned(|tuning| {
            tuning.spin = Duration::ZERO;
            tuning.seed = Some(1);
        })
}

/// Options of host number `host`.
pub(crate) fn options_of(host: u8) -> Options {
    options().with_identity(Some(HostIdentity::from_uuid(Uuid::from_bytes([host; 16]))))
}

pub(crate) fn connect_to(peer: SocketAddr, options: Options) -> Association {
    Association::connect(&address_of(peer), options).expect("a host connects")
}

/// The address of the subsystem at this socket.
pub(crate) fn address_of(peer: SocketAddr) -> Address {
    Address::new(HostName::Ip(peer.ip()))
        .with_port(peer.port())
        .with_subsystem(NQN.parse().expect("a good name"))
}

pub(crate) fn open(association: &Association, nsid: u32) -> BlockingNamespace {
    let namespace = association.namespace(Nsid::new(nsid)).expect("a namespace");
    BlockingNamespace::new(association, namespace).expect("a lane")
}
