//! Messages about connections between their reactor and reactor 0, which admits and places them.
//! docs/design/placement.md

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use proto::controller_queue::Parted;
use reactor::{Arrival, Connection, ListenerTag};
use security::tls::Stream;
use wire::id::Qid;

use super::control::Request;
use crate::audit::OfMemcached;
use crate::names::lane_counters::LaneCounters;
use crate::names::placement_policy::PlacementPolicy;
use crate::names::socket_priority::SocketPriority;

/// A message to a reactor about a connection that it gets or gives away.
#[derive(Debug)]
pub enum ConnectionMessage {
    /// A connection to serve from now on, counted under this device queue.
    Adopt(Connection, ListenerTag, Option<NonZeroU32>),
    /// The lane of this Connect moves to reactor `to`.
    HandOver {
        /// The reactor.
        to: usize,
        /// Its Connect.
        connect: Box<Request>,
    },
    /// A lane that another reactor has handed over.
    TakeOver(Box<Moving>),
}

/// A message to the admission of connections, on reactor 0.
#[derive(Clone, Debug)]
pub enum AdmissionMessage {
    /// A connection from this address has closed.
    Gone(Visitor, Option<IpAddr>),
    /// A connection was refused or closed, or its peer broke a rule.
    Complaint {
        /// Address of the peer.
        peer: Option<SocketAddr>,
        /// The reason that it is counted under.
        reason: &'static str,
        /// Detail for the log line, with the text of the peer quoted.
        detail: Option<Box<str>>,
    },
    /// A memcached client has authenticated, or has failed to.
    MemcachedClient {
        /// The client.
        client: Box<OfMemcached>,
        /// Whether it has authenticated.
        is_known: bool,
    },
}

/// The kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visitor {
    /// An NVMe host.
    Host,
    /// A client of a memcached listener.
    Memcached,
}

/// A message to the placement of lanes, on reactor 0.
#[derive(Debug)]
pub enum PlacementMessage {
    /// An I/O lane connects and needs a reactor.
    Place(Box<Placing>),
    /// A lane was not handed over.
    NotMoved {
        /// The reactor that has it.
        from: usize,
        /// The reactor that it was meant for.
        to: usize,
        /// Whether it has ended meanwhile.
        is_gone: bool,
    },
    /// A lane has ended.
    Left(Left),
    /// The number of lanes of a reactor that had commands lately.
    Active {
        /// The reactor.
        reactor: usize,
        /// The number.
        count: u32,
    },
    /// From the control plane: place lanes by this policy from now on.
    SetPolicy(PlacementPolicy),
    /// From the owner of the target: give the packets of new connections these priorities.
    SetPriorities(Vec<SocketPriority>),
}

/// An I/O lane that waits for a reactor.
#[derive(Debug)]
pub struct Placing {
    /// The criteria for choosing its reactor.
    pub connecting: Connecting,
    /// Its Connect, for the control plane.
    pub connect: Request,
}

/// An I/O lane that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connecting {
    /// The reactor that has it.
    pub reactor: usize,
    /// Its queue id.
    pub qid: Qid,
    /// The device queue that it is counted under.
    pub counted_napi: Option<NonZeroU32>,
    /// Where its last packet was received.
    pub arrival: Arrival,
    /// The partition of key-value namespaces that its host wants it near: each reactor has the one with its number.
    pub near_partition: Option<u16>,
}

/// A lane that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The reactor that had it.
    pub reactor: usize,
    /// The device queue that it is counted under.
    pub napi: Option<NonZeroU32>,
    /// Whether it was placed as an I/O lane.
    pub is_io: bool,
}

/// A lane on its way between two reactors.
#[derive(Debug)]
pub struct Moving {
    pub(crate) connection: Connection,
    pub(crate) listener: ListenerTag,
    pub(crate) queue: Parted,
    pub(crate) tls: Option<Box<Stream>>,
    pub(crate) qid: Qid,
    pub(crate) napi: Option<NonZeroU32>,
    pub(crate) counters: Arc<LaneCounters>,
    /// Its Connect, which the control plane has not seen.
    pub(crate) connect: Request,
}
