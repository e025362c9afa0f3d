//! What reactors and the control plane say to one another.
//!
//! ```text
//! lane ──Request──▶ control plane (on reactor 0) ──Answer / Table / End──▶ lanes
//! ```

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use proto::Slot;
use proto::doorbell::Policy as DoorbellPolicy;
use reactor::{Connection, Listener, ListenerTag};
use wire::id::Qid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::admission::Visitor;
use crate::control_record::{Association, CommandId, LaneId};
use crate::exclusion::LockMessage;
use crate::key_value::KeyValueMessage;
use crate::lane_counters::LaneCounters;
use crate::namespace_table::NamespaceTable;
use crate::operator::ReactorReport;
use crate::placement::{Connecting, Left, Policy as PlacementPolicy};
use crate::serving::Moving;
use crate::subsystem::SubsystemId;

/// From a lane to the control plane.
#[derive(Debug)]
pub struct Request {
    /// Which lane.
    pub lane: LaneId,
    /// What about.
    pub kind: RequestKind,
}

/// What a lane has to tell or ask.
#[derive(Debug)]
pub enum RequestKind {
    /// A Fabrics or admin command, with the data that came with it.
    Command {
        /// Where the answer goes.
        slot: Slot,
        /// The command.
        sqe: Sqe,
        /// Its data.
        data: Box<[u8]>,
        /// Where the host is, for the log.
        peer: Option<SocketAddr>,
        /// How the lane was reached, for what discovery tells.
        listener: ListenerTag,
        /// Where it was reached.
        local: Option<SocketAddr>,
        /// Counters to keep if this is a Connect.
        counters: Arc<LaneCounters>,
    },
    /// The host has given the command id of this Asynchronous Event Request to another command: the request is to be answered
    /// all the same, but the host does not hear of it.
    Superseded {
        /// Where the request is.
        slot: Slot,
    },
    /// Commands failed; the newest last.
    Failures(Vec<Failure>),
    /// The lane has ended: nothing it had started can change a namespace any more.
    Ended,
    /// The same, and it was closed because its host has let time pass: it is not to come back to this association.
    Expelled,
}

/// An entry for the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which queue.
    pub qid: Qid,
    /// Which command.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
    /// Its namespace, 0 if it has none.
    pub nsid: u32,
    /// Its first block, 0 if it has none.
    pub lba: u64,
}

/// From the control plane to a lane: the end of a command.
#[derive(Debug)]
pub struct Answer {
    /// Which command.
    pub command: CommandId,
    /// How it ended.
    pub status: Status,
    /// Result dwords.
    pub result: u64,
    /// Data for the host, cut to what it asked for.
    pub data: Option<Box<[u8]>>,
    /// What becomes of the lane, if this was its Connect.
    pub established: Option<Established>,
}

/// A Connect that was accepted.
#[derive(Clone, Debug)]
pub struct Established {
    /// Which queue the lane is.
    pub qid: Qid,
    /// Entries of the queue.
    pub entries: u16,
    /// Whether SQ flow control is disabled.
    pub is_flow_control_disabled: bool,
    /// In-capsule data, bytes.
    pub in_capsule_bytes: u32,
    /// What it shares with the other lanes of its controller.
    pub association: Arc<Association>,
    /// Whose namespaces it reaches; `None` for discovery.
    pub subsystem: Option<SubsystemId>,
    /// When its answers leave.
    pub doorbell: DoorbellPolicy,
    /// Who it belongs to, for the log.
    pub host: String,
}

/// An I/O lane that waits for its reactor.
#[derive(Debug)]
pub struct Placing {
    /// What is known of it.
    pub connecting: Connecting,
    /// Its Connect, for the control plane.
    pub connect: Request,
}

/// What arrives in a reactor's mailbox.
#[derive(Debug)]
pub enum Message {
    /// A connection to serve from now on, counted under this device queue.
    Adopt(Connection, ListenerTag, Option<NonZeroU32>),
    /// To the first reactor: an I/O lane connects. Who is to serve it?
    Place(Box<Placing>),
    /// Hand the lane of this Connect over to reactor `to`.
    HandOver {
        /// Which reactor.
        to: usize,
        /// Its Connect.
        connect: Box<Request>,
    },
    /// A lane to go on with.
    TakeOver(Box<Moving>),
    /// To the first reactor: a lane stays where it is.
    NotMoved {
        /// Where it is.
        from: usize,
        /// Where it was to go.
        to: usize,
        /// It has ended meanwhile.
        is_gone: bool,
    },
    /// To the first reactor: a lane has ended.
    Left(Left),
    /// To the first reactor: so many lanes of a reactor had commands lately.
    Active {
        /// Which reactor.
        reactor: usize,
        /// How many.
        count: u32,
    },
    /// To the first reactor: place lanes by this from now on.
    SetPlacement(PlacementPolicy),
    /// When answers of this lane leave from now on.
    SetDoorbell(LaneId, DoorbellPolicy),
    /// Tell how you are.
    Describe(Sender<ReactorReport>),
    /// A connection is gone that came in from there.
    Gone(Visitor, Option<IpAddr>),
    /// Something was wrong with a connection.
    Complaint {
        /// Whose.
        peer: Option<SocketAddr>,
        /// What, in the words it is counted by.
        reason: &'static str,
    },
    /// To the control plane.
    Request(Request),
    /// A command has ended.
    Answer(Box<Answer>),
    /// End this lane: its controller is gone. It reports [`RequestKind::Ended`] once nothing of it runs.
    End(LaneId),
    /// Abort this command of the lane, if it can still be; the control plane asked with `asked_by`.
    Abort {
        /// Which lane.
        lane: LaneId,
        /// Which command, by its id.
        cid: u16,
        /// The Abort command that waits for the outcome.
        asked_by: CommandId,
    },
    /// Whether an abort took effect.
    Aborted {
        /// The Abort command.
        asked_by: CommandId,
        /// Whether the command was aborted.
        is_aborted: bool,
    },
    /// The namespaces of all subsystems have changed.
    Table(Arc<NamespaceTable>),
    /// Reactor `0` serves this version of the table from now on, and no older one any more.
    TableInUse {
        /// Which reactor.
        reactor: u16,
        /// Which version.
        version: u64,
    },
    /// Flush all namespaces of a subsystem, then answer with [`Message::Flushed`].
    Flush {
        /// Which.
        subsystem: SubsystemId,
        /// The controller that shuts down: who asks.
        asked_by: CommandId,
    },
    /// The flush asked for has ended.
    Flushed {
        /// As asked.
        asked_by: CommandId,
    },
    /// About locks of fused commands.
    Lock(LockMessage),
    /// About keys and values: between the partitions of a namespace.
    KeyValue(Box<KeyValueMessage>),
    /// From outside: the configuration has changed, or the target ends.
    Operator(crate::operator::Order),
    /// Accept connections here from now on.
    Listen(ListenerTag, Listener),
    /// Accept none any more from the listener of this tag.
    Unlisten(ListenerTag),
    /// End the reactor: the control plane is done.
    Stop,
}
