//! How things are: what `nvlane list` and its JSON show.

use serde::Serialize;

/// Everything the control plane knows, for people and programs to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TargetState {
    /// Unique name of the discovery service.
    pub discovery_nqn: String,
    /// Generation of the discovery log.
    pub discovery_generation: u64,
    /// Where the target listens.
    pub listeners: Vec<ListenerState>,
    /// What it serves.
    pub subsystems: Vec<SubsystemState>,
    /// Hosts that use the discovery service.
    pub discovery_controllers: Vec<ControllerState>,
    /// Connects that wait for an earlier association of their host to end.
    pub waiting_connect_count: usize,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListenerState {
    /// Where it listens.
    pub address: String,
    /// What hosts are told instead.
    pub advertise: Option<String>,
    /// It serves subsystems.
    pub subsystems: bool,
    /// It serves discovery.
    pub discovery: bool,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SubsystemState {
    /// Its name.
    pub nqn: String,
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Hosts that may connect; `None` for any.
    pub hosts: Option<Vec<String>>,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceState>,
    /// Its controllers.
    pub controllers: Vec<ControllerState>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamespaceState {
    /// Its number.
    pub nsid: u32,
    /// UUID.
    pub uuid: String,
    /// What the configuration calls its storage.
    pub storage: String,
    /// Size, bytes.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// It cannot be written.
    pub read_only: bool,
    /// Hosts are shown it: every reactor serves it.
    pub shown: bool,
}

/// A controller: a host's association.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ControllerState {
    /// Its id.
    pub cntlid: u16,
    /// The host's name.
    pub host: String,
    /// The host's identifier.
    pub hostid: String,
    /// "disabled", "ready", "shutting down", "shut down", "resetting" or "ending".
    pub state: &'static str,
    /// Keep-alive timeout, ms; 0 for none.
    pub keep_alive_ms: u32,
    /// Its I/O queues.
    pub queues: Vec<QueueState>,
    /// Reads completed.
    pub read_count: u64,
    /// Writes completed.
    pub write_count: u64,
    /// Bytes read by the host.
    pub read_bytes: u64,
    /// Bytes written by the host.
    pub written_bytes: u64,
    /// Commands that failed.
    pub failed_count: u64,
}

/// An I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueState {
    /// Its id.
    pub qid: u16,
    /// The reactor that serves it.
    pub reactor: u16,
}
