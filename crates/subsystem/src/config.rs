//! How a target is to be: what a configuration file says, or a command line.
//!
//! [`ConfigFile::read`] reads a file, [`TargetConfig::check`] finds what cannot be, and
//! [`TargetConfig::resolve`] fills in what was left open: numbers, identities, serial numbers. None of them
//! touches anything outside; [`TargetConfig::inspect`] looks at the storage, and changes nothing.

mod check;
mod file;
mod inspect;
mod resolve;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use proto::doorbell::Policy as DoorbellPolicy;
use proto::receive::Receive;
use proto::zero_copy::Policy as ZeroCopy;
use reactor::{BusyPoll, CoreList, EngineKind, SpinPolicy};
use store::Spec;
use wire::discovery::{DISCOVERY_PORT, IO_PORT};
use wire::id::{Cntlid, Nsid};
use wire::nqn::Nqn;
use wire::uuid::Uuid;

use crate::discovery::{Advertised, Referral};
use crate::limits::Limits;
use crate::placement::Policy as PlacementPolicy;
use crate::subsystem::Access;

pub use check::{Place, Problem};
pub use file::{ConfigError, ConfigErrors, ConfigFile};
pub use resolve::{ResolvedNamespace, ResolvedSubsystem};

/// Everything about a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetConfig {
    /// What tells this machine from others; `None` for its own machine-id.
    pub machine: Option<String>,
    /// Threads and their memory.
    pub reactors: ReactorConfig,
    /// What hosts may ask for.
    pub limits: Limits,
    /// How long peers may take.
    pub timeouts: TimeoutConfig,
    /// Where hosts connect.
    pub listeners: Vec<ListenerConfig>,
    /// Where memcached's clients connect; the first key-value namespace is behind it.
    pub memcached: Vec<SocketAddr>,
    /// What the discovery service tells.
    pub discovery: DiscoveryConfig,
    /// What is served.
    pub subsystems: Vec<SubsystemConfig>,
}

/// Threads and their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorConfig {
    /// Which threads there are.
    pub threads: Threads,
    /// How they wait and do storage I/O; `None` for whatever works best here.
    pub engine: Option<EngineKind>,
    /// Buffers of each, bytes.
    pub pool_bytes: usize,
    /// When answers leave, where neither listener nor subsystem says otherwise.
    pub doorbell: DoorbellPolicy,
    /// Whether they spin before they sleep.
    pub spin: SpinPolicy,
    /// By what lanes get their reactor.
    pub placement: PlacementPolicy,
    /// How they poll the devices of their sockets.
    pub busy_poll: BusyPoll,
    /// How received bytes are asked for. Anything but the default is for measuring what that is worth.
    pub receive: Receive,
    /// Data of writes, or the rest of it, is received straight into its buffer from this size on, bytes.
    pub in_place_bytes: usize,
    /// Which answers are sent from where they lie, without a copy.
    pub zero_copy: ZeroCopy,
}

/// A receive of its own for each such piece costs no more than its copy out of a warm buffer; from 256 KiB on less
/// (docs/design/socket-path.md).
const IN_PLACE_BYTES: usize = 16 << 10;

/// Which reactors there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One for each core that we may use.
    Auto,
    /// So many, wherever the system puts them.
    Count(u16),
    /// One on each of these cores.
    Cores(CoreList),
}

impl Threads {
    /// How many they are on this machine.
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

/// How long peers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeoutConfig {
    /// From accept to ICReq, and from there to Connect, ms.
    pub connect_ms: u64,
    /// From a PDU's first byte to its last, ms.
    pub pdu_ms: u64,
    /// For a peer that reads nothing of what we send, ms.
    pub send_ms: u64,
    /// From a request for a write's data (R2T) to all of it, ms.
    pub data_ms: u64,
    /// Replaces `send_ms` and `data_ms` while other hosts wait for buffers, ms.
    pub contended_ms: u64,
    /// For lanes to end what they have begun when the target stops, ms.
    pub stop_ms: u64,
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
        }
    }
}

/// Where hosts connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Address and port; port 0 takes a free one.
    pub address: SocketAddr,
    /// What hosts are told instead.
    pub advertise: Option<Advertised>,
    /// It leads to subsystems.
    pub subsystems: bool,
    /// It leads to the discovery service.
    pub discovery: bool,
    /// When answers leave on lanes that came in here, if not as everywhere.
    pub doorbell: Option<DoorbellPolicy>,
}

impl ListenerConfig {
    /// A listener for everything; on the port of discovery, for that only.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let subsystems = address.port() != DISCOVERY_PORT;
        Self { address, advertise: None, subsystems, discovery: true, doorbell: None }
    }

    /// The listeners of a target that was told nothing but an address: subsystems and discovery on port 4420,
    /// discovery also on 8009.
    #[must_use]
    pub fn usual(ip: IpAddr) -> Vec<Self> {
        [IO_PORT, DISCOVERY_PORT].map(|port| Self::new(SocketAddr::new(ip, port))).to_vec()
    }
}

/// What the discovery service tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryConfig {
    /// Its own name; `None` to make one of the machine and the first listener.
    pub nqn: Option<Nqn>,
    /// Other services.
    pub referrals: Vec<Referral>,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number; `None` to make one of the machine and the name.
    pub serial: Option<String>,
    /// Model.
    pub model: String,
    /// Who may connect.
    pub access: Access,
    /// memcached's clients may use it although `access` lists hosts: they have no identity that could be compared.
    pub opens_to_memcached: bool,
    /// Ids its controllers get.
    pub cntlids: RangeInclusive<u16>,
    /// When answers leave, if not as the listener has it.
    pub doorbell: Option<DoorbellPolicy>,
    /// What is in it.
    pub namespaces: Vec<NamespaceConfig>,
}

impl SubsystemConfig {
    /// A subsystem without namespaces that anybody may use.
    #[must_use]
    pub fn new(nqn: Nqn) -> Self {
        Self {
            nqn,
            serial: None,
            model: "nvlane".into(),
            access: Access::Any,
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
    /// Its number; `None` for the lowest that is free, in order.
    pub nsid: Option<Nsid>,
    /// What is behind it.
    pub storage: Spec,
    /// Its UUID; `None` for that of the specification, or one of its storage (docs/design/identity.md).
    pub uuid: Option<Uuid>,
    /// Its NGUID; `None` for the bytes of the UUID.
    pub nguid: Option<[u8; 16]>,
}

impl NamespaceConfig {
    /// A namespace of which nothing else is said.
    #[must_use]
    pub fn new(storage: Spec) -> Self {
        Self { nsid: None, storage, uuid: None, nguid: None }
    }
}
