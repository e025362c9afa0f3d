//! What the control plane remembers of a controller and its queues.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proto::Slot;
use proto::async_events::AsyncEventQueue;
use proto::controller::Controller;
use proto::keep_alive::KeepAlive;
use reactor::ListenerTag;
use wire::id::{Cntlid, Nsid, Qid};
use wire::nqn::{HostId, HostName, Nqn};

use crate::admin::error_log::ErrorLog;
use crate::admin::features::Features;
use crate::flush_epochs::FlushEpochs;
use crate::lane_counters::{LaneCounters, LaneTotals};
use crate::subsystem::SubsystemId;

/// A lane of some reactor. Never reused for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    /// Which reactor.
    pub reactor: u16,
    /// Which of its slots.
    pub index: u32,
    /// Which occupant of the slot.
    pub generation: u32,
}

/// A command that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId {
    /// Whose queue it came on.
    pub lane: LaneId,
    /// Where it is on that queue.
    pub slot: Slot,
}

/// What a controller is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ControllerKind {
    /// I/O to the namespaces of a subsystem.
    Io(SubsystemId),
    /// The discovery log.
    Discovery,
}

/// Names a controller as long as it exists. Its id may come again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControllerKey {
    /// What it is for.
    pub kind: ControllerKind,
    /// Its id, unique among those of its subsystem, or among discovery controllers.
    pub cntlid: Cntlid,
}

/// How the host of a discovery controller reached the target: the log lists addresses that it can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Through which listener.
    pub listener: ListenerTag,
    /// At which address.
    pub local: Option<SocketAddr>,
}

/// A controller: an admin queue, its I/O queues and their state.
#[derive(Debug)]
pub struct ControllerRecord {
    /// Its id and what it is for.
    pub key: ControllerKey,
    /// The name it was connected to.
    pub subnqn: Nqn,
    /// Who connected.
    pub host: HostName,
    /// Who connected, as reservations know it.
    pub hostid: HostId,
    /// How the host came.
    pub route: Route,
    /// Where the association is in its life.
    pub life: Life,
    /// Properties and life cycle.
    pub machine: Controller,
    /// What the host asked for with a property and is not done yet.
    pub transition: Transition,
    /// Whether the host is alive.
    pub keep_alive: KeepAlive,
    /// Events that wait, and requests for them.
    pub events: AsyncEventQueue<EventRequest>,
    /// Abort commands that wait for a lane to say what became of them.
    pub aborts: Vec<PendingAbort>,
    /// Values of its features.
    pub features: Features,
    /// What went wrong lately.
    pub errors: ErrorLog,
    /// Namespaces that were added, removed or resized since the host last asked.
    pub changed: BTreeSet<Nsid>,
    /// The discovery log that is being read in parts, and when it was last read from.
    pub discovery_page: Option<(Arc<[u8]>, u64)>,
    /// Its admin queue; `None` once that has ended.
    pub admin: Option<LaneId>,
    /// Its I/O queues, those that are ending included.
    pub io: BTreeMap<Qid, LaneId>,
    /// In-capsule data of its I/O queues, bytes, whatever becomes of its subsystem.
    pub in_capsule_bytes: u32,
    /// What its lanes share.
    pub association: Arc<Association>,
    /// Counters of its lanes.
    pub counters: BTreeMap<LaneId, Arc<LaneCounters>>,
    /// Counters of lanes that have ended.
    pub past: LaneTotals,
    /// When it was made, ns.
    pub created_ns: u64,
}

/// Where an association is in its life. One whose admin queue is gone, or whose host was silent for too long,
/// ends: it takes no commands any more, and is forgotten once every lane of it has ended.
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

/// An Asynchronous Event Request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRequest {
    /// Where its answer goes.
    pub command: CommandId,
    /// Its command id, by which it can be aborted.
    pub cid: u16,
}

/// An Abort that waits for the lane of the command it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingAbort {
    /// The Abort.
    pub asked_by: CommandId,
    /// Which lane was asked.
    pub lane: LaneId,
}

impl ControllerRecord {
    /// Whether commands other than Fabrics ones are taken.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.life == Life::Live && self.machine.is_ready() && matches!(self.transition, Transition::None)
    }

    /// Whether `host` with `hostid` made it.
    #[must_use]
    pub fn belongs_to(&self, host: &HostName, hostid: HostId) -> bool {
        self.hostid == hostid && self.host == *host
    }

    /// Takes back the Asynchronous Event Request that is this command: its host has completed it by itself. Says whether it waited.
    pub fn take_back_event_request(&mut self, command: CommandId) -> bool {
        self.events.take_back(|request| request.command == command).is_some()
    }

    /// Takes out the Asynchronous Event Request with this command id; `None` if there is none.
    pub fn abort_event_request(&mut self, cid: u16) -> Option<CommandId> {
        self.events.abort(|request| request.cid == cid).map(|request| request.command)
    }

    /// What its lanes have done since it was made.
    #[must_use]
    pub fn totals(&self) -> LaneTotals {
        let mut totals = self.past;
        self.counters.values().for_each(|lane| totals.add(lane));
        totals
    }
}

/// What the lanes of one controller share with the control plane.
#[derive(Debug, Default)]
pub struct Association {
    /// When a lane last took in a command, ns of the reactors' clock.
    last_sign_ns: AtomicU64,
    /// What its flushes cover.
    pub(crate) flush_epochs: FlushEpochs,
}

impl Association {
    /// A lane has taken in commands in this turn.
    #[inline]
    pub fn on_sign(&self, now_ns: u64) {
        // Lanes may overwrite one another by a turn's worth, which no keep-alive timer can tell.
        self.last_sign_ns.store(now_ns, Ordering::Relaxed);
    }

    /// When the last sign of life came, ns.
    #[must_use]
    pub fn last_sign_ns(&self) -> u64 {
        self.last_sign_ns.load(Ordering::Relaxed)
    }
}
