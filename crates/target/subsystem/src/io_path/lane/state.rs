//! The states of a lane, each with the data that only it has.

use std::sync::Arc;

use wire::id::Qid;

use crate::io_path::attached::{Attachments, ViewIndex};
use crate::io_path::fused_pairs::Pairs;
use crate::objects::association::Association;
use crate::objects::subsystem::SubsystemId;

/// The state of a lane.
///
/// ```text
///               ICReq              Connect             accepted
/// Initialising ──────▶ Unconnected ───────▶ Connecting ────────▶ Admin or Io
///                           ▲                   │  │                  ▲ succeeded
///                           └───── refused ─────┘  └─accepted──▶ Authenticating
/// any of these:
///   violation, answered with a TermReq ──▶ Terminating ─┐ the peer closes, or a deadline passes
///   End from the control plane ──────────▶ Ending ──────┤ no command is in flight any more
///   closed by the peer, missed deadline ────────────────┴─▶ Closed ── no command in flight ──▶ removed
/// ```
#[derive(Debug)]
pub(crate) enum LaneState {
    /// ICReq has not arrived.
    Initialising,
    /// The handshake is done; Connect has not arrived, but this number of other commands has.
    Unconnected { refused_count: u8 },
    /// The control plane decides on its Connect.
    Connecting { qid: Qid },
    /// Its Connect was accepted, and its host must authenticate: until then it belongs to no association.
    Authenticating { qid: Qid },
    /// The admin queue of a controller. Those of discovery controllers reach no namespaces.
    Admin { association: Arc<Association>, reach: Option<Reach> },
    /// An I/O queue of a controller.
    Io(IoQueue),
    /// It accepts no commands any more.
    Closing(Closing),
}

/// The namespaces that an admin queue reaches: those that its host sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) subsystem: SubsystemId,
    pub(crate) view: ViewIndex,
}

/// An I/O queue whose Connect was accepted.
#[derive(Debug)]
pub(crate) struct IoQueue {
    pub(crate) qid: Qid,
    /// The subsystem that it is connected to.
    pub(crate) subsystem: SubsystemId,
    /// The namespaces that its commands reach: those that its host sees.
    pub(crate) view: ViewIndex,
    pub(crate) association: Arc<Association>,
    pub(crate) order: Order,
}

/// In which order the commands of an I/O queue start.
#[derive(Debug)]
pub(crate) enum Order {
    /// Each when it arrives.
    Arrival,
    /// Commands that bring no data join the lane's line for buffers; the others start when they arrive.
    Line,
    /// Fused commands that are not complete pairs yet: each command that arrives may complete or break a pair.
    Fused(Box<Pairs>),
}

/// A lane that accepts no commands any more.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(crate) qid: Qid,
    /// Its commands that a backend still has.
    pub(crate) in_flight: u32,
    pub(crate) step: ClosingStep,
}

/// Progress of a lane that accepts no commands any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClosingStep {
    /// A TermReq is sent or about to be: the peer is expected to close.
    Terminating,
    /// The control plane ends it: its socket is closed when no command is in flight, so that the host cannot write
    /// elsewhere before.
    Ending,
    /// Its socket is closed.
    Closed,
}

impl LaneState {
    /// The id of its queue: the admin queue's as long as no Connect has named another.
    pub(crate) fn qid(&self) -> Qid {
        match self {
            Self::Initialising | Self::Unconnected { .. } | Self::Admin { .. } => Qid::ADMIN,
            Self::Connecting { qid }
            | Self::Authenticating { qid }
            | Self::Io(IoQueue { qid, .. })
            | Self::Closing(Closing { qid, .. }) => *qid,
        }
    }

    /// The association that its commands belong to.
    #[inline]
    pub(crate) fn association(&self) -> Option<&Arc<Association>> {
        match self {
            Self::Admin { association, .. } | Self::Io(IoQueue { association, .. }) => Some(association),
            _ => None,
        }
    }

    /// The I/O queue that it serves.
    #[inline]
    pub(crate) fn io_queue(&self) -> Option<&IoQueue> {
        match self {
            Self::Io(queue) => Some(queue),
            _ => None,
        }
    }

    /// The namespaces that its commands reach.
    pub(crate) fn reached(&self) -> Option<ViewIndex> {
        match self {
            Self::Io(queue) => Some(queue.view),
            Self::Admin { reach, .. } => reach.map(|reach| reach.view),
            _ => None,
        }
    }

    /// The table of namespaces was replaced.
    pub(crate) fn on_table(&mut self, namespaces: &Attachments) {
        match self {
            Self::Io(IoQueue { subsystem, view, association, .. })
            | Self::Admin { association, reach: Some(Reach { subsystem, view }) } => {
                *view = namespaces.view_of(*subsystem, &association.host);
            }
            _ => {}
        }
    }

    /// Its fused commands that are not complete pairs yet.
    pub(crate) fn pairs(&mut self) -> Option<&mut Pairs> {
        match self {
            Self::Io(IoQueue { order: Order::Fused(pairs), .. }) => Some(pairs),
            _ => None,
        }
    }

    /// Its progress of closing, if it is closing.
    #[inline]
    pub(crate) fn closing(&mut self) -> Option<&mut Closing> {
        match self {
            Self::Closing(closing) => Some(closing),
            _ => None,
        }
    }
}

impl IoQueue {
    /// Its incomplete pairs, for a fused command that has arrived.
    pub(crate) fn fused(&mut self) -> &mut Pairs {
        if !matches!(self.order, Order::Fused(_)) {
            self.order = Order::Fused(Box::default());
        }
        match &mut self.order {
            Order::Fused(pairs) => pairs,
            Order::Arrival | Order::Line => unreachable!("just set"),
        }
    }

    /// Goes over to another order, unless fused commands are incomplete: these keep theirs.
    pub(crate) fn set_in_line(&mut self, is_in_line: bool) {
        if !matches!(self.order, Order::Fused(_)) {
            self.order = if is_in_line { Order::Line } else { Order::Arrival };
        }
    }
}
