//! A controller as the control plane keeps it: properties, features, events, errors and queues.

pub mod changed_namespaces;
pub mod error_log;
pub mod features;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use proto::async_events::AsyncEventQueue;
use proto::controller::Controller;
use proto::keep_alive::KeepAlive;
use security::names::Names;
use wire::id::{Cntlid, Nsid, Qid};
use wire::nqn::{HostId, HostName, Nqn};

use crate::audit::OfQueue;
use crate::names::lane_counters::{LaneCounters, LaneTotals};
use crate::names::lane_id::{CommandId, LaneId};
use crate::objects::association::Association;
use crate::objects::discovery::Route;
use crate::objects::subsystem::SubsystemId;
use changed_namespaces::ChangedNamespaces;
use error_log::ErrorLog;
use features::Features;

/// The purpose of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ControllerKind {
    /// I/O to the namespaces of a subsystem.
    Io(SubsystemId),
    /// The discovery log.
    Discovery,
}

/// Identifies a controller while it exists. Its id may be reused later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControllerKey {
    /// Its purpose.
    pub kind: ControllerKind,
    /// Its id, unique among those of its subsystem, or among discovery controllers.
    pub cntlid: Cntlid,
}

/// A controller: an admin queue, its I/O queues and their state.
#[derive(Debug)]
pub struct ControllerRecord {
    /// Its id and purpose.
    pub key: ControllerKey,
    /// The name it was connected to.
    pub subnqn: Nqn,
    /// Who connected.
    pub host: HostName,
    /// Who connected, as reservations know it.
    pub hostid: HostId,
    /// Address of the host.
    pub peer: Option<SocketAddr>,
    /// The route by which the host connected.
    pub route: Route,
    /// Whether its admin queue uses TLS.
    pub uses_tls: bool,
    /// Phase of the association.
    pub life: Life,
    /// Properties and life cycle.
    pub machine: Controller,
    /// The change requested with a property that is not complete yet.
    pub transition: Transition,
    /// Whether the host is alive.
    pub keep_alive: KeepAlive,
    /// Events that wait, and requests for them.
    pub events: AsyncEventQueue<EventRequest>,
    /// Aborts that wait for the answer of a lane.
    pub aborts: Vec<PendingAbort>,
    /// Values of its features.
    pub features: Features,
    /// Its error log.
    pub errors: ErrorLog,
    /// Namespaces that were added, removed or resized since the host last asked.
    pub changed: ChangedNamespaces,
    /// The ANA log that the host has read last.
    pub ana: AnaContent,
    /// The discovery log that is being read in parts, and when it was last read from.
    pub discovery_page: Option<(Arc<[u8]>, u64)>,
    /// Its admin queue; `None` once that has ended.
    pub admin: Option<LaneId>,
    /// Its I/O queues, those that are ending included.
    pub io: BTreeMap<Qid, LaneId>,
    /// In-capsule data of its I/O queues, bytes. A change of its subsystem does not change it.
    pub in_capsule_bytes: u32,
    /// State shared by its lanes.
    pub association: Arc<Association>,
    /// Counters of its lanes.
    pub counters: BTreeMap<LaneId, Arc<LaneCounters>>,
    /// Counters of lanes that have ended.
    pub past: LaneTotals,
}

/// The content of an ANA log: the states of groups never change, so that is the namespaces of the only one.
#[derive(Debug, Default)]
pub struct AnaContent {
    /// In ascending order; `None` until the log is read first.
    nsids: Option<Vec<Nsid>>,
    change_count: u64,
}

impl AnaContent {
    /// The change count of a log with these namespaces: it grows if others were read last. A host that reads the log in
    /// parts sees by it whether they are of one log. wire §19
    pub(crate) fn change_count(&mut self, nsids: &[Nsid]) -> u64 {
        if self.nsids.as_deref() != Some(nsids) {
            let is_first = self.nsids.replace(nsids.to_vec()).is_none();
            self.change_count = self.change_count.saturating_add(u64::from(!is_first));
        }
        self.change_count
    }
}

/// The phase of an association. One whose admin queue is gone, or whose keep-alive timeout has passed, is ending: it
/// takes no commands, and is forgotten once all its lanes have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The host may use it.
    Live,
    /// Its lanes are ending.
    Ending,
}

/// A change of the controller's state that waits for lanes or namespaces. Property values follow when it is done.
#[derive(Clone, Copy, Debug)]
pub enum Transition {
    /// None.
    None,
    /// CC.EN was cleared with `command`; it is answered, and `after` holds, when the I/O lanes have ended.
    Reset {
        /// The Property Set.
        command: CommandId,
        /// The controller afterwards.
        after: Controller,
    },
    /// CC.SHN was set with `command`, which is answered: I/O lanes are ending. Then the namespaces are flushed.
    Drain {
        /// The Property Set.
        command: CommandId,
    },
    /// The namespaces are being flushed, asked for in the name of `command`.
    Flush {
        /// The Property Set.
        command: CommandId,
    },
}

/// An outstanding Asynchronous Event Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRequest {
    /// Where its answer goes.
    pub command: CommandId,
    /// Its command id, by which it can be aborted.
    pub cid: u16,
}

/// An Abort that waits for the lane of the aborted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingAbort {
    /// The Abort.
    pub asked_by: CommandId,
    /// Which lane was asked.
    pub lane: LaneId,
}

impl ControllerRecord {
    /// A queue of the controller, for the audit log.
    pub(crate) fn of_queue(&self, peer: Option<SocketAddr>, qid: Qid) -> OfQueue {
        OfQueue::new(peer, &self.host, self.hostid, &self.subnqn, (self.key.cntlid, qid.get()))
    }

    /// Whether commands other than Fabrics ones are taken.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.life == Life::Live && self.machine.is_ready() && matches!(self.transition, Transition::None)
    }

    /// The names that its queues authenticate with.
    #[must_use]
    pub fn names(&self) -> Names {
        Names { host: self.host.clone(), subsystem: self.subnqn.clone() }
    }

    /// Whether `host` with `hostid` made it.
    #[must_use]
    pub fn belongs_to(&self, host: &HostName, hostid: HostId) -> bool {
        self.hostid == hostid && self.host == *host
    }

    /// Drops the Asynchronous Event Request with this command, whose id its host has reused. Returns whether it was
    /// outstanding.
    pub fn take_back_event_request(&mut self, command: CommandId) -> bool {
        self.events.take_back(|request| request.command == command).is_some()
    }

    /// Removes the Asynchronous Event Request with this command id; `None` if there is none.
    pub fn abort_event_request(&mut self, cid: u16) -> Option<CommandId> {
        self.events.abort(|request| request.cid == cid).map(|request| request.command)
    }

    /// Traffic of its lanes since it was created.
    #[must_use]
    pub fn totals(&self) -> LaneTotals {
        let mut totals = self.past;
        self.counters.values().for_each(|lane| totals.add(lane));
        totals
    }
}
