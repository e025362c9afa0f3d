//! Messages to the control plane, which reactor 0 runs.

use std::net::SocketAddr;
use std::sync::Arc;

use proto::Slot;
use reactor::ListenerTag;
use security::exponentiation::Exponentiated;
use wire::sqe::Sqe;

use super::order::Order;
use crate::audit::TlsInUse;
use crate::names::lane_counters::LaneCounters;
use crate::names::lane_end::LaneEnd;
use crate::names::lane_id::{CommandId, LaneId};
use crate::objects::controller::error_log::Failure;

/// A message to the control plane.
#[derive(Debug)]
pub enum ControlMessage {
    /// From a lane.
    Request(Request),
    /// From the reactor of a lane: whether an abort took effect.
    Aborted {
        /// The Abort command.
        asked_by: CommandId,
        /// Whether the command was aborted.
        is_aborted: bool,
    },
    /// From a reactor: it serves this version of the namespace table, and no older one.
    TableInUse {
        /// The reactor.
        reactor: u16,
        /// The version.
        version: u64,
    },
    /// From a reactor: the flush of [`ReactorMessage::Flush`](super::ReactorMessage::Flush) has ended.
    Flushed {
        /// The command that requested it.
        asked_by: CommandId,
    },
    /// From the worker: a key pair that was made in advance.
    KeyPair(Box<Exponentiated>),
    /// From the worker: the result of an exponentiation for the authentication of a lane.
    Exponentiated {
        /// The lane.
        lane: LaneId,
        /// The result.
        result: Box<Exponentiated>,
    },
    /// From the operator.
    Order(Order),
}

/// A request or report of a lane.
#[derive(Debug)]
pub struct Request {
    /// The lane.
    pub lane: LaneId,
    /// Its content.
    pub kind: RequestKind,
}

/// The kind of a lane's request or report.
#[derive(Debug)]
pub enum RequestKind {
    /// A Fabrics or admin command, with the data that came with it.
    Command {
        /// The slot that the answer completes.
        slot: Slot,
        /// The command.
        sqe: Sqe,
        /// Its data.
        data: Box<[u8]>,
        /// Address of the host, for the log.
        peer: Option<SocketAddr>,
        /// The listener that the lane came in through, for the discovery log.
        listener: ListenerTag,
        /// The protection of the lane's connection, if this is a Connect.
        channel: Channel,
        /// The address that the host connected to.
        local: Option<SocketAddr>,
        /// TLS of the lane if this is a Connect, for the audit log.
        tls: Option<TlsInUse>,
        /// Counters to keep if this is a Connect.
        counters: Arc<LaneCounters>,
    },
    /// The host reused the command id of this Asynchronous Event Request: it is answered like any other, but the answer
    /// is not sent.
    Superseded {
        /// The slot of the request.
        slot: Slot,
    },
    /// Commands failed; the newest last.
    Failures(Vec<Failure>),
    /// The lane was closed for a missed deadline, for this reason: its association ends. `Ended` follows.
    Expelled(&'static str),
    /// The lane has ended, and so has every operation that it started on a namespace.
    Ended(LaneEnd),
}

/// The protection of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Channel {
    /// Nothing.
    #[default]
    Clear,
    /// Nothing: its listener permits that only to an admin queue whose authentication generates a key of TLS.
    ClearForKey,
    /// TLS with a configured key.
    ConfiguredKey,
    /// TLS with the key of this identity, which an authentication has generated.
    GeneratedKey(Box<str>),
}

impl Channel {
    /// Whether nothing protects it.
    pub(crate) const fn is_clear(&self) -> bool {
        matches!(self, Self::Clear | Self::ClearForKey)
    }
}
