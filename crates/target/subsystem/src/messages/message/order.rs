//! Orders of the operator to the control plane, and their answers.
//!
//! Blocking work (opening and resizing storage, binding sockets) is done on the operator's thread: an order carries the
//! result, which the control plane only puts in place.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use proto::doorbell::Policy as DoorbellPolicy;
use reactor::{Listener, ListenerTag};
use store::Store;
use wire::id::Nsid;
use wire::nqn::{HostName, Nqn};
use wire::uuid::Uuid;

use crate::messages::state::{Detail, StateParts};
use crate::names::placement_policy::PlacementPolicy;
use crate::names::slow_threshold::SlowThreshold;
use crate::objects::access::HostRights;
use crate::objects::authentication::Authentication;
use crate::objects::discovery::{ListenerEntry, Referral};
use crate::objects::rate_limit::RateLimits;
use crate::objects::step_error::StepError;
use crate::objects::subsystem::{Access, Subsystem};

/// How long associations outlive a removed listener, ms: meanwhile the discovery service notifies their hosts, which
/// can connect elsewhere.
pub const REMOVED_LISTENER_GRACE_MS: u64 = 5000;

/// An order to the control plane.
#[derive(Debug)]
pub struct Order {
    /// The kind of order.
    pub kind: OrderKind,
    /// Where its answers go.
    pub answers: Sender<OrderAnswer>,
}

/// The kind of an order.
#[derive(Debug)]
pub enum OrderKind {
    /// Apply these steps, in order. Answered with [`OrderAnswer::Applied`], and then [`OrderAnswer::Released`] if
    /// storage was removed.
    Apply(Vec<Step>),
    /// Answered with [`OrderAnswer::State`].
    State(Detail),
    /// End every association and then the reactors. Answered with [`OrderAnswer::Stopped`].
    Stop {
        /// Time for lanes to finish their operations, ms.
        grace_ms: u64,
    },
}

/// An answer of the control plane.
pub enum OrderAnswer {
    /// The result of each step.
    Applied(Vec<StepOutcome>),
    /// No reactor uses this storage any more: dropping it closes it.
    Released(Vec<Store>),
    /// The state of the target, and the counters that complete it.
    State(Box<StateParts>),
    /// The target has stopped.
    Stopped {
        /// Number of lanes that had not ended in time and were cut off.
        lanes_left: usize,
    },
}

impl fmt::Debug for OrderAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applied(outcomes) => write!(f, "Applied({outcomes:?})"),
            Self::Released(stores) => write!(f, "Released({})", stores.len()),
            Self::State(parts) => write!(f, "State({:?})", parts.state),
            Self::Stopped { lanes_left } => write!(f, "Stopped({lanes_left})"),
        }
    }
}

/// The result of a step: the number of associations that it ends, or why it failed.
pub type StepOutcome = Result<usize, StepError>;

/// One change of the running target.
pub enum Step {
    /// Accepts connections, once every reactor has the configuration that came with the listener.
    AddListener {
        /// Its tag, never used before.
        tag: ListenerTag,
        /// Its role and addresses.
        entry: ListenerEntry,
        /// Its socket, bound.
        socket: Listener,
    },
    /// Accepts no more connections. Associations that came in there end after [`REMOVED_LISTENER_GRACE_MS`].
    RemoveListener {
        /// Its tag.
        tag: ListenerTag,
    },
    /// Changes the role of a listener.
    ChangeListener {
        /// Its tag.
        tag: ListenerTag,
        /// Its role and addresses.
        entry: ListenerEntry,
    },
    /// Accepts connections of memcached clients, once every reactor has the namespaces configured with the listener.
    AddMemcachedListener {
        /// Its tag, never used before.
        tag: ListenerTag,
        /// Its socket, bound.
        socket: Listener,
    },
    /// Changes the requirements of a memcached listener: the [`ListenerGate`](crate::names::listener_gate::ListenerGate) has
    /// them.
    ChangeMemcachedListener {
        /// Its tag.
        tag: ListenerTag,
    },
    /// Accepts no more memcached clients, and closes the connections that came in there once their commands are
    /// answered.
    RemoveMemcachedListener {
        /// Its tag.
        tag: ListenerTag,
    },
    /// Refers hosts to these discovery services.
    SetReferrals(Vec<Referral>),
    /// Sets the placement policy for new lanes.
    SetPlacement(PlacementPolicy),
    /// Sets the doorbell policy where neither listener nor subsystem has one, for live lanes as well.
    SetDoorbell(DoorbellPolicy),
    /// Logs commands that take longer than this.
    SetSlow(SlowThreshold),
    /// Sets the doorbell policy of a subsystem; `None` for the listener's.
    SetSubsystemDoorbell(Nqn, Option<DoorbellPolicy>),
    /// Adds a subsystem without namespaces.
    AddSubsystem(Subsystem),
    /// Removes a subsystem with its namespaces and ends its associations.
    RemoveSubsystem(Nqn),
    /// Allows only these hosts; associations of others end.
    SetAccess(Nqn, Access),
    /// Requires these secrets of hosts that connect from now on.
    SetAuthentication {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// The secrets.
        authentication: Arc<Authentication>,
        /// How long the earlier secrets are accepted as well, ms.
        overlap_ms: u64,
    },
    /// Sets the range of ids for new controllers.
    SetCntlids(Nqn, RangeInclusive<u16>),
    /// Adds a namespace.
    AddNamespace {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// Namespace id.
        nsid: Nsid,
        /// The namespace.
        namespace: NewNamespace,
    },
    /// Removes a namespace.
    RemoveNamespace {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// Namespace id.
        nsid: Nsid,
    },
    /// Replaces the storage or identity of a namespace. Its rights stay.
    ReplaceNamespace {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// Namespace id.
        nsid: Nsid,
        /// The new namespace.
        namespace: NewNamespace,
    },
    /// Sets which hosts see a namespace, and which may write to it.
    SetRights {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// Namespace id.
        nsid: Nsid,
        /// The rights.
        rights: HostRights,
    },
    /// Sets the rate limits of a namespace.
    SetNamespaceLimits {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// Namespace id.
        nsid: Nsid,
        /// The limits.
        limits: RateLimits,
    },
    /// Sets the rate limits of hosts in a subsystem; the others have none.
    SetHostLimits(Nqn, BTreeMap<HostName, RateLimits>),
    /// Announces that a namespace's storage was resized, renamed, closed or reopened: hosts read it again.
    StorageChanged {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// Namespace id.
        nsid: Nsid,
        /// The specification of its storage, if it has changed.
        storage: Option<String>,
    },
    /// Announces that the storage of a namespace has too little space left: hosts read the SMART log.
    SpaceLow {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// Namespace id.
        nsid: Nsid,
    },
}

impl Step {
    /// Whether the step can change the discovery log of a host.
    pub(crate) fn changes_discovery(&self) -> bool {
        match self {
            Self::AddListener { .. }
            | Self::RemoveListener { .. }
            | Self::ChangeListener { .. }
            | Self::SetReferrals(_)
            | Self::AddSubsystem(_)
            | Self::RemoveSubsystem(_)
            | Self::SetAccess(..) => true,
            Self::AddMemcachedListener { .. }
            | Self::ChangeMemcachedListener { .. }
            | Self::RemoveMemcachedListener { .. }
            | Self::SetPlacement(_)
            | Self::SetDoorbell(_)
            | Self::SetSlow(_)
            | Self::SetSubsystemDoorbell(..)
            | Self::SetAuthentication { .. }
            | Self::SetCntlids(..)
            | Self::AddNamespace { .. }
            | Self::RemoveNamespace { .. }
            | Self::ReplaceNamespace { .. }
            | Self::SetRights { .. }
            | Self::SetNamespaceLimits { .. }
            | Self::SetHostLimits(..)
            | Self::StorageChanged { .. }
            | Self::SpaceLow { .. } => false,
        }
    }
}

/// A namespace to add.
#[derive(Clone)]
pub struct NewNamespace {
    /// Its storage, open.
    pub store: Store,
    /// The storage as the configuration specifies it.
    pub storage: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its NGUID.
    pub nguid: [u8; 16],
    /// Which hosts see it, and which may write to it.
    pub rights: HostRights,
    /// Its rate limits.
    pub limits: RateLimits,
}

impl fmt::Debug for NewNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewNamespace({}, {})", self.storage, self.uuid)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddListener { tag, entry, .. } => write!(f, "AddListener({tag}, {})", entry.address),
            Self::RemoveListener { tag } => write!(f, "RemoveListener({tag})"),
            Self::ChangeListener { tag, .. } => write!(f, "ChangeListener({tag})"),
            Self::AddMemcachedListener { tag, .. } => write!(f, "AddMemcachedListener({tag})"),
            Self::ChangeMemcachedListener { tag } => write!(f, "ChangeMemcachedListener({tag})"),
            Self::RemoveMemcachedListener { tag } => write!(f, "RemoveMemcachedListener({tag})"),
            Self::SetReferrals(referrals) => write!(f, "SetReferrals({})", referrals.len()),
            Self::SetPlacement(policy) => write!(f, "SetPlacement({policy})"),
            Self::SetDoorbell(policy) => write!(f, "SetDoorbell({policy})"),
            Self::SetSlow(threshold) => write!(f, "SetSlow({threshold})"),
            Self::SetSubsystemDoorbell(nqn, _) => write!(f, "SetSubsystemDoorbell({nqn})"),
            Self::AddSubsystem(subsystem) => write!(f, "AddSubsystem({})", subsystem.nqn),
            Self::RemoveSubsystem(nqn) => write!(f, "RemoveSubsystem({nqn})"),
            Self::SetAccess(nqn, _) => write!(f, "SetAccess({nqn})"),
            Self::SetAuthentication { subsystem, .. } => write!(f, "SetAuthentication({subsystem})"),
            Self::SetCntlids(nqn, range) => write!(f, "SetCntlids({nqn}, {range:?})"),
            Self::AddNamespace { subsystem, nsid, .. } => write!(f, "AddNamespace({subsystem}, {nsid})"),
            Self::RemoveNamespace { subsystem, nsid } => write!(f, "RemoveNamespace({subsystem}, {nsid})"),
            Self::ReplaceNamespace { subsystem, nsid, .. } => {
                write!(f, "ReplaceNamespace({subsystem}, {nsid})")
            }
            Self::SetRights { subsystem, nsid, .. } => write!(f, "SetRights({subsystem}, {nsid})"),
            Self::SetNamespaceLimits { subsystem, nsid, limits } => {
                write!(f, "SetNamespaceLimits({subsystem}, {nsid}, {limits})")
            }
            Self::SetHostLimits(nqn, limits) => write!(f, "SetHostLimits({nqn}, {})", limits.len()),
            Self::StorageChanged { subsystem, nsid, .. } => write!(f, "StorageChanged({subsystem}, {nsid})"),
            Self::SpaceLow { subsystem, nsid } => write!(f, "SpaceLow({subsystem}, {nsid})"),
        }
    }
}
