//! How things are: what `nvlane list` and its JSON show.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::Serialize;

use crate::lane_counters::LaneReport;
use crate::placement::Placement;

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
    /// Connections, and what was wrong with some.
    pub connections: ConnectionsState,
    /// The threads; empty if they were not asked.
    pub reactors: Vec<ReactorState>,
    /// How lanes get their reactors; `None` if it was not asked.
    pub placement: Option<PlacementState>,
    /// Packets that were taken in by polling devices, by anybody in our network namespace.
    pub busy_polled_packets: Option<u64>,
}

/// Connections of hosts, and of memcached's clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionsState {
    /// Those there are.
    pub count: u32,
    /// Those of memcached's clients.
    pub memcached_count: u32,
    /// How many were refused or ended, or had to be told off, by reason.
    pub complaints: BTreeMap<String, u64>,
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
    /// Why it is closed, and will be until it is reopened; `None` while it is open.
    pub closed: Option<String>,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueState {
    /// Its id.
    pub qid: u16,
    /// The reactor that serves it.
    pub reactor: u16,
    /// The device queue (NAPI id) that its packets came in through when it connected; 0 for none.
    pub napi_id: u64,
    /// When its answers leave.
    pub doorbell: String,
    /// Reads completed.
    pub read_count: u64,
    /// Writes completed.
    pub write_count: u64,
    /// Sends.
    pub send_count: u64,
    /// PDUs sent.
    pub pdu_count: u64,
    /// Receives that brought something.
    pub receive_count: u64,
    /// What its lane has done.
    pub counters: LaneReport,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReactorState {
    /// Its number.
    pub reactor: u16,
    /// Its lanes.
    pub lanes: usize,
    /// Of these, those for I/O.
    pub io_lanes: usize,
    /// I/O lanes that it has ever served.
    pub io_lanes_ever: u64,
    /// The device queues (NAPI ids) that packets of its lanes came in through.
    pub napi_ids: Vec<u32>,
    /// Turns in which there was work.
    pub busy_turn_count: u64,
    /// Turns spent spinning.
    pub spin_turn_count: u64,
    /// Sleeps.
    pub sleep_count: u64,
    /// Time asleep, ns.
    pub asleep_ns: u64,
    /// What became of busy polling.
    pub busy_poll: BusyPollState,
    /// Its buffers.
    pub buffers: BuffersState,
}

/// A thread's buffers for data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BuffersState {
    /// All of them, bytes.
    pub bytes: usize,
    /// Those that are free now, bytes.
    pub free_bytes: usize,
    /// The fewest that were ever free, bytes.
    pub free_bytes_min: usize,
    /// Commands that had to wait for some.
    pub waited_count: u64,
    /// Lanes with commands that wait for some now.
    pub waiting_lanes: usize,
    /// Times that a lane was held back because its host did not read.
    pub held_back_count: u64,
}

/// What the kernel has granted a thread: "off", "on", or "refused: " and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BusyPollState {
    /// How long waits are to poll, µs; 0 for off.
    pub wait_us: u32,
    /// On its ring or epoll set.
    pub engine: String,
    /// On sockets.
    pub sockets: String,
    /// Before interrupts.
    pub prefer: String,
    /// So many packets in a pass.
    pub budget: String,
    /// Sockets that poll.
    pub socket_count: u64,
    /// Sockets that were refused it.
    pub refused_count: u64,
    /// Times that the thread had nothing to do and looked on before it slept.
    pub spins: u64,
    /// Of these, those that found work.
    pub spin_hits: u64,
    /// Sleeps that polled devices first.
    pub polled_sleeps: u64,
    /// Of these, those that ended within the time for that.
    pub polled_hits: u64,
}

/// How lanes get their reactors. Each I/O lane counts once, when it connects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlacementState {
    /// The policy for lanes to come.
    pub policy: String,
    /// Lanes placed by load, as asked.
    pub by_load: u64,
    /// By the queue of the device.
    pub by_napi: u64,
    /// By the core that takes their packets in.
    pub by_cpu: u64,
    /// By the number of the queue.
    pub by_queue: u64,
    /// By load, because what the policy asks for is not known.
    pub fell_back: u64,
    /// Handed over to another reactor.
    pub moved: u64,
    /// Not handed over although they should have been.
    pub stuck: u64,
    /// Came in through another queue of the device when they connected than before.
    pub napi_changed: u64,
    /// NAPI ids of all queues of devices that lanes have ever come in through.
    pub napi_ids_seen: Vec<u32>,
    /// Queues of devices that lanes come in through now.
    pub device_queues: Vec<DeviceQueueState>,
}

/// A queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceQueueState {
    /// Its NAPI id.
    pub napi_id: u32,
    /// The reactor that all its lanes are to go to, if that was decided.
    pub reactor: Option<usize>,
    /// Lanes that come in through it.
    pub lanes: u32,
}

/// What a reactor answers when it is asked how it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorReport {
    /// How it is.
    pub reactor: ReactorState,
    /// How lanes are placed, from the one that does.
    pub placement: Option<PlacementState>,
}

impl From<&Placement> for PlacementState {
    fn from(placement: &Placement) -> Self {
        let counters = placement.counters();
        let device =
            |(id, reactor, lanes): (NonZeroU32, _, _)| DeviceQueueState { napi_id: id.get(), reactor, lanes };
        Self {
            policy: placement.policy().to_string(),
            by_load: counters.by_load,
            by_napi: counters.by_napi,
            by_cpu: counters.by_cpu,
            by_queue: counters.by_queue,
            fell_back: counters.fell_back,
            moved: counters.moved,
            stuck: counters.stuck,
            napi_changed: counters.napi_changed,
            napi_ids_seen: placement.seen().map(NonZeroU32::get).collect(),
            device_queues: placement.devices().map(device).collect(),
        }
    }
}
