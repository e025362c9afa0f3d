//! Configuration of a target, from a file or a command line.
//!
//! [`ConfigFile::read`] reads a file, [`TargetConfig::check`] finds contradictions and values out of range, and
//! [`TargetConfig::resolve`] fills in the defaults: numbers, identities, serial numbers. None of them touches anything
//! outside; [`TargetConfig::inspect`] reads the storage and changes nothing.

mod check;
mod file;
mod inspect;
mod kernel_keyring;
mod listen_address;
mod memcached_address;
mod memcached_listener;
mod passed_sources;
mod pool;
mod resolve;
mod secret_texts;
mod secrets;
mod warnings;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use linux::CoreList;
use proto::doorbell::Policy as DoorbellPolicy;
use proto::receive::Receive;
use proto::zero_copy::Policy as ZeroCopy;
use reactor::{BusyPoll, EngineKind, SpinPolicy};
use store::Spec;
use wire::discovery::{DISCOVERY_PORT, IO_PORT};
use wire::id::{Cntlid, Nsid};
use wire::nqn::{HostName, Nqn};
use wire::uuid::Uuid;

use crate::names::allow_list::AllowList;
use crate::names::limits::Limits;
use crate::names::placement_policy::PlacementPolicy;
use crate::names::slow_threshold::SlowThreshold;
use crate::objects::access::HostRights;
use crate::objects::discovery::{Advertised, Referral};
use crate::objects::rate_limit::RateLimits;
use crate::objects::subsystem::Access;

pub use check::{ConfigPlace, Problem};
pub use file::{ConfigError, ConfigErrors, ConfigFile};
pub use listen_address::listen_address;
pub use memcached_address::MemcachedAddress;
pub use memcached_listener::{MemcachedListenerConfig, ServerTlsConfig};
pub(crate) use passed_sources::PassedSources;
pub use pool::{PoolConfig, PoolState};
pub use resolve::{ResolvedNamespace, ResolvedSubsystem};
pub use secret_texts::SecretText;
pub use secrets::{
    AuthenticationConfig, SecretSource, SecretSources, TlsKeySources, read_secret, read_secret_file,
};
pub use security::tls::{CallerName, ClientCertificates, Policy as TlsPolicy};

/// Configuration of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetConfig {
    /// Identifier of this machine; `None` for its own machine-id.
    pub machine: Option<String>,
    /// Threads and their memory.
    pub reactors: ReactorConfig,
    /// Limits that hosts are held to.
    pub limits: Limits,
    /// Timeouts of peers.
    pub timeouts: TimeoutConfig,
    /// Listeners for NVMe hosts.
    pub listeners: Vec<ListenerConfig>,
    /// Listeners for memcached clients; they serve the oldest key-value namespace.
    pub memcached: Vec<MemcachedListenerConfig>,
    /// The discovery service.
    pub discovery: DiscoveryConfig,
    /// Pools of volumes.
    pub pools: Vec<PoolConfig>,
    /// Subsystems.
    pub subsystems: Vec<SubsystemConfig>,
    /// The audit log.
    pub audit: AuditConfig,
    /// Control by callers on this machine.
    pub control: ControlConfig,
    /// Metrics.
    pub metrics: MetricsConfig,
    /// The log.
    pub log: LogConfig,
}

/// Configuration of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    /// The time from which on a command is logged as slow.
    pub slow: SlowThreshold,
}

/// Configuration of control calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlConfig {
    /// The Unix socket; `None` for no control.
    pub socket: Option<PathBuf>,
    /// The file that keeps the changes made through it; `None` for the default.
    pub changes: Option<PathBuf>,
    /// The port for callers on other machines, with TLS; `None` for none.
    pub tls: Option<SocketAddr>,
    /// Where the pre-shared keys of its callers are, by the callers' names.
    pub tls_keys: BTreeMap<CallerName, SecretSource>,
}

impl ControlConfig {
    /// Whether there is a place for calls.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.socket.is_some() || self.tls.is_some()
    }
}

/// Port of control calls over TLS, unless another is named.
pub const CONTROL_PORT: u16 = 9421;

/// Configuration of metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Where they are served by HTTP; `None` for nowhere.
    pub address: Option<SocketAddr>,
    /// Who sees the live page there.
    pub live_page: LivePage,
}

/// Who sees the live page of a target, and its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LivePage {
    /// Users of this machine.
    #[default]
    Loopback,
    /// Everyone who reaches the address.
    Any,
    /// Nobody.
    Off,
}

impl LivePage {
    const ALL: [(Self, &str); 3] = [(Self::Loopback, "loopback"), (Self::Any, "any"), (Self::Off, "off")];
}

impl fmt::Display for LivePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(page, _)| page == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for LivePage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(page, _)| *page).ok_or_else(|| {
            format!(
                "\"{text}\" is not who may see the live page: write loopback (users of this machine), any or off"
            )
        })
    }
}

/// Port of metrics, unless another is named.
pub const METRICS_PORT: u16 = 9420;

/// Configuration of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file that lines are appended to; `None` for no audit log.
    pub file: Option<PathBuf>,
}

/// Threads and their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorConfig {
    /// Reactors and their cores.
    pub threads: Threads,
    /// I/O engine of the reactors; `None` for the best one available.
    pub engine: Option<EngineKind>,
    /// Buffer pool of each reactor, bytes.
    pub pool_bytes: usize,
    /// Doorbell policy where neither listener nor subsystem sets one.
    pub doorbell: DoorbellPolicy,
    /// Whether reactors spin before they sleep.
    pub spin: SpinPolicy,
    /// Placement policy: how a lane gets its reactor.
    pub placement: PlacementPolicy,
    /// Busy polling of network devices.
    pub busy_poll: BusyPoll,
    /// How received bytes are requested from the kernel. Values other than the default serve measurements.
    pub receive: Receive,
    /// Smallest (rest of) write data that is received straight into its buffer, bytes.
    pub in_place_bytes: usize,
    /// Which responses are sent without a copy.
    pub zero_copy: ZeroCopy,
}

/// Receiving a piece of this size separately costs no more than copying it out of a warm buffer, and less from 256 KiB
/// on (docs/design/socket-path.md).
const IN_PLACE_BYTES: usize = 16 << 10;

/// Reactors and their cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One for each core that the process may use.
    Auto,
    /// This number, on cores that the system chooses.
    Count(u16),
    /// One on each of these cores.
    Cores(CoreList),
}

impl Threads {
    /// Number of reactors on this machine.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Auto => CoreList::allowed().map_or(1, |list| list.cores().len()),
            Self::Count(count) => usize::from(*count),
            Self::Cores(list) => list.cores().len(),
        }
    }
}

impl Default for ReactorConfig {
    fn default() -> Self {
        Self {
            threads: Threads::Auto,
            engine: None,
            pool_bytes: 64 << 20,
            doorbell: DoorbellPolicy::default(),
            spin: SpinPolicy::default(),
            placement: PlacementPolicy::default(),
            busy_poll: BusyPoll::OFF,
            receive: Receive::default(),
            in_place_bytes: IN_PLACE_BYTES,
            zero_copy: ZeroCopy::default(),
        }
    }
}

/// Timeouts of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeoutConfig {
    /// From accept to ICReq, and from ICReq to Connect, ms.
    pub connect_ms: u64,
    /// From a PDU's first byte to its last, ms.
    pub pdu_ms: u64,
    /// For a peer that reads none of the bytes sent to it, ms.
    pub send_ms: u64,
    /// From a request for a write's data (R2T) to all of it, ms.
    pub data_ms: u64,
    /// Replaces `send_ms` and `data_ms` while other hosts wait for buffers, ms.
    pub contended_ms: u64,
    /// For lanes to finish their operations when the target stops, ms.
    pub stop_ms: u64,
    /// For memcached clients without a command, ms; 0 for ever.
    pub memcached_idle_ms: u64,
    /// For hosts that authenticate with a secret that was changed, ms.
    pub secret_overlap_ms: u64,
}

impl Default for TimeoutConfig {
    fn default() -> Self {
        Self {
            connect_ms: 10_000,
            pdu_ms: 30_000,
            send_ms: 10_000,
            data_ms: 30_000,
            contended_ms: 1000,
            stop_ms: 10_000,
            memcached_idle_ms: 0,
            secret_overlap_ms: 600_000,
        }
    }
}

/// A listener for NVMe hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Address and port; port 0 takes a free one.
    pub address: SocketAddr,
    /// Address advertised to hosts instead.
    pub advertise: Option<Advertised>,
    /// Hosts may connect to subsystems here.
    pub subsystems: bool,
    /// Hosts may connect to the discovery service here.
    pub discovery: bool,
    /// Doorbell policy of lanes that come in here; `None` for the target's.
    pub doorbell: Option<DoorbellPolicy>,
    /// Whether hosts use TLS here.
    pub tls: TlsPolicy,
    /// The addresses that hosts may connect from.
    pub allow: AllowList,
}

impl ListenerConfig {
    /// A listener for subsystems and discovery; for discovery only on the discovery port.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let subsystems = address.port() != DISCOVERY_PORT;
        Self {
            address,
            advertise: None,
            subsystems,
            discovery: true,
            doorbell: None,
            tls: TlsPolicy::Off,
            allow: AllowList::Any,
        }
    }

    /// The listeners of a target configured by address only: subsystems and discovery on port 4420, discovery also on
    /// 8009.
    #[must_use]
    pub fn usual(ip: IpAddr) -> Vec<Self> {
        [IO_PORT, DISCOVERY_PORT].map(|port| Self::new(SocketAddr::new(ip, port))).to_vec()
    }
}

/// Configuration of the discovery service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryConfig {
    /// Its unique name; `None` to derive one from the machine and the first listener.
    pub nqn: Option<Nqn>,
    /// Other discovery services.
    pub referrals: Vec<Referral>,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemConfig {
    /// NQN.
    pub nqn: Nqn,
    /// Serial number; `None` to derive one from the machine and the NQN.
    pub serial: Option<String>,
    /// Model.
    pub model: String,
    /// Hosts that may connect.
    pub access: Access,
    /// Hosts that must authenticate.
    pub authentication: AuthenticationConfig,
    /// Keys of TLS.
    pub tls_keys: TlsKeySources,
    /// Rate limits of hosts.
    pub host_limits: BTreeMap<HostName, RateLimits>,
    /// Whether memcached clients may use it although `access` lists hosts: they have no identity to compare.
    pub opens_to_memcached: bool,
    /// Range of controller ids.
    pub cntlids: RangeInclusive<u16>,
    /// Doorbell policy; `None` for the listener's.
    pub doorbell: Option<DoorbellPolicy>,
    /// Namespaces.
    pub namespaces: Vec<NamespaceConfig>,
}

impl SubsystemConfig {
    /// A subsystem without namespaces, open to any host.
    #[must_use]
    pub fn new(nqn: Nqn) -> Self {
        Self {
            nqn,
            serial: None,
            model: "nvlane".into(),
            access: Access::Any,
            authentication: AuthenticationConfig::default(),
            tls_keys: TlsKeySources::default(),
            host_limits: BTreeMap::new(),
            opens_to_memcached: false,
            cntlids: 1..=Cntlid::MAX.get(),
            doorbell: None,
            namespaces: Vec::new(),
        }
    }
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Namespace id; `None` for the lowest free one, in order.
    pub nsid: Option<Nsid>,
    /// Storage.
    pub storage: Spec,
    /// UUID; `None` for that of the specification or of the storage (docs/design/identity.md).
    pub uuid: Option<Uuid>,
    /// NGUID; `None` for the bytes of the UUID.
    pub nguid: Option<[u8; 16]>,
    /// Which hosts of the subsystem see it, and which may write to it.
    pub rights: HostRights,
    /// Its rate limits.
    pub limits: RateLimits,
}

impl NamespaceConfig {
    /// A namespace with defaults for everything but its storage.
    #[must_use]
    pub fn new(storage: Spec) -> Self {
        Self {
            nsid: None,
            storage,
            uuid: None,
            nguid: None,
            rights: HostRights::ALL,
            limits: RateLimits::default(),
        }
    }
}
