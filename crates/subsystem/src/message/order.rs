//! Orders of the operator to the control plane, and their answers.
//!
//! What may block (opening and resizing storage, binding sockets) is done on the operator's thread: an order brings the result,
//! which the control plane only puts in place.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::mpsc::Sender;

use proto::doorbell::Policy as DoorbellPolicy;
use reactor::{Listener, ListenerTag};
use store::Store;
use wire::id::Nsid;
use wire::nqn::Nqn;
use wire::uuid::Uuid;

use crate::discovery::{ListenerEntry, Referral};
use crate::placement::Policy as PlacementPolicy;
use crate::state::TargetState;
use crate::subsystem::Access;

/// How long associations outlive the listener that they came in through, ms: their hosts can connect elsewhere meanwhile, once the
/// discovery service has told them.
pub const REMOVED_LISTENER_GRACE_MS: u64 = 5000;

/// An order to the control plane.
#[derive(Debug)]
pub struct Order {
    /// What to do.
    pub kind: OrderKind,
    /// Where its answers go.
    pub answers: Sender<OrderAnswer>,
}

/// What is ordered.
#[derive(Debug)]
pub enum OrderKind {
    /// Put these steps in place, in order. Answered with [`OrderAnswer::Applied`], and then
    /// [`OrderAnswer::Released`] if storage was taken out of use.
    Apply(Vec<Step>),
    /// Answered with [`OrderAnswer::State`].
    State,
    /// End every association and then the reactors. Answered with [`OrderAnswer::Stopped`].
    Stop {
        /// How long lanes may take to end what they have begun, ms.
        grace_ms: u64,
    },
}

/// What the control plane answers.
pub enum OrderAnswer {
    /// What became of each step.
    Applied(Vec<StepOutcome>),
    /// No reactor uses this storage any more: it is closed when it is dropped.
    Released(Vec<Store>),
    /// How things are.
    State(Box<TargetState>),
    /// The target has stopped; so many lanes had not ended in time.
    Stopped {
        /// Lanes that were cut off.
        lanes_left: usize,
    },
}

impl fmt::Debug for OrderAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applied(outcomes) => write!(f, "Applied({outcomes:?})"),
            Self::Released(stores) => write!(f, "Released({})", stores.len()),
            Self::State(state) => write!(f, "State({state:?})"),
            Self::Stopped { lanes_left } => write!(f, "Stopped({lanes_left})"),
        }
    }
}

/// What became of a step: how many associations it ends, or why it could not be.
pub type StepOutcome = Result<usize, StepError>;

/// Why a step could not be done; nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// No such subsystem.
    #[error("there is no such subsystem")]
    NoSubsystem,
    /// Such a subsystem exists.
    #[error("there is such a subsystem already")]
    SubsystemExists,
    /// No such namespace.
    #[error("there is no such namespace")]
    NoNamespace,
    /// Such a namespace exists.
    #[error("there is such a namespace already")]
    NamespaceExists,
    /// No such listener.
    #[error("there is no such listener")]
    NoListener,
    /// The target is ending.
    #[error("the target is stopping")]
    Stopping,
}

/// One change to what runs.
pub enum Step {
    /// Accepts connections. They come in once every reactor knows what was configured with it.
    AddListener {
        /// Its tag, never used before.
        tag: ListenerTag,
        /// What it serves.
        entry: ListenerEntry,
        /// Its socket, bound.
        socket: Listener,
    },
    /// Accepts no more connections. Associations that came in there end after [`REMOVED_LISTENER_GRACE_MS`].
    RemoveListener {
        /// Its tag.
        tag: ListenerTag,
    },
    /// Serves something else from now on.
    ChangeListener {
        /// Its tag.
        tag: ListenerTag,
        /// What it serves.
        entry: ListenerEntry,
    },
    /// Sends hosts on to these discovery services.
    SetReferrals(Vec<Referral>),
    /// Gives lanes to come their reactors by this.
    SetPlacement(PlacementPolicy),
    /// When answers leave, where neither listener nor subsystem says otherwise: those of living lanes, too.
    SetDoorbell(DoorbellPolicy),
    /// The same for a subsystem; `None` to leave it to the listener.
    SetSubsystemDoorbell(Nqn, Option<DoorbellPolicy>),
    /// Adds a subsystem without namespaces.
    AddSubsystem(NewSubsystem),
    /// Removes a subsystem with its namespaces and ends its associations.
    RemoveSubsystem(Nqn),
    /// Lets these hosts in and no others; associations of others end.
    SetAccess(Nqn, Access),
    /// Gives new controllers ids of this range.
    SetCntlids(Nqn, RangeInclusive<u16>),
    /// Adds a namespace.
    AddNamespace {
        /// To which subsystem.
        subsystem: Nqn,
        /// Under which number.
        nsid: Nsid,
        /// The namespace.
        namespace: NewNamespace,
    },
    /// Removes a namespace.
    RemoveNamespace {
        /// From which subsystem.
        subsystem: Nqn,
        /// Which.
        nsid: Nsid,
    },
    /// Puts other storage or another identity in the place of a namespace.
    ReplaceNamespace {
        /// Of which subsystem.
        subsystem: Nqn,
        /// Which.
        nsid: Nsid,
        /// The namespace as it is to be.
        namespace: NewNamespace,
    },
    /// The storage of a namespace has another size now.
    NamespaceResized {
        /// Of which subsystem.
        subsystem: Nqn,
        /// Which.
        nsid: Nsid,
        /// What the configuration calls its storage now.
        storage: String,
    },
    /// The storage of a namespace was closed or reopened, or has grown underneath: hosts are to look at it again.
    StorageChanged {
        /// Of which subsystem.
        subsystem: Nqn,
        /// Which.
        nsid: Nsid,
    },
}

impl Step {
    /// Whether a host may see it in its discovery log.
    pub(crate) fn changes_discovery(&self) -> bool {
        match self {
            Self::AddListener { .. }
            | Self::RemoveListener { .. }
            | Self::ChangeListener { .. }
            | Self::SetReferrals(_)
            | Self::AddSubsystem(_)
            | Self::RemoveSubsystem(_)
            | Self::SetAccess(..) => true,
            Self::SetPlacement(_)
            | Self::SetDoorbell(_)
            | Self::SetSubsystemDoorbell(..)
            | Self::SetCntlids(..)
            | Self::AddNamespace { .. }
            | Self::RemoveNamespace { .. }
            | Self::ReplaceNamespace { .. }
            | Self::NamespaceResized { .. }
            | Self::StorageChanged { .. } => false,
        }
    }
}

/// A subsystem to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSubsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number, at most 20 printable ASCII characters.
    pub serial: String,
    /// Model, at most 40 printable ASCII characters.
    pub model: String,
    /// Who may connect.
    pub access: Access,
    /// Ids its controllers get.
    pub cntlids: RangeInclusive<u16>,
    /// When answers leave; `None` to leave it to the listener.
    pub doorbell: Option<DoorbellPolicy>,
}

/// A namespace to add.
#[derive(Clone)]
pub struct NewNamespace {
    /// Its storage, open.
    pub store: Store,
    /// What the configuration calls it.
    pub storage: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its NGUID.
    pub nguid: [u8; 16],
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
            Self::SetReferrals(referrals) => write!(f, "SetReferrals({})", referrals.len()),
            Self::SetPlacement(policy) => write!(f, "SetPlacement({policy})"),
            Self::SetDoorbell(policy) => write!(f, "SetDoorbell({policy})"),
            Self::SetSubsystemDoorbell(nqn, _) => write!(f, "SetSubsystemDoorbell({nqn})"),
            Self::AddSubsystem(subsystem) => write!(f, "AddSubsystem({})", subsystem.nqn),
            Self::RemoveSubsystem(nqn) => write!(f, "RemoveSubsystem({nqn})"),
            Self::SetAccess(nqn, _) => write!(f, "SetAccess({nqn})"),
            Self::SetCntlids(nqn, range) => write!(f, "SetCntlids({nqn}, {range:?})"),
            Self::AddNamespace { subsystem, nsid, .. } => write!(f, "AddNamespace({subsystem}, {nsid})"),
            Self::RemoveNamespace { subsystem, nsid } => write!(f, "RemoveNamespace({subsystem}, {nsid})"),
            Self::ReplaceNamespace { subsystem, nsid, .. } => {
                write!(f, "ReplaceNamespace({subsystem}, {nsid})")
            }
            Self::NamespaceResized { subsystem, nsid, .. } => {
                write!(f, "NamespaceResized({subsystem}, {nsid})")
            }
            Self::StorageChanged { subsystem, nsid } => write!(f, "StorageChanged({subsystem}, {nsid})"),
        }
    }
}
