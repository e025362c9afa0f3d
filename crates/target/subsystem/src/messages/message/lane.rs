//! Messages from the control plane to lanes.

use std::sync::Arc;

use proto::doorbell::Policy as DoorbellPolicy;
use wire::id::Qid;
use wire::status::Status;

use crate::names::lane_id::{CommandId, LaneId};
use crate::objects::association::Association;
use crate::objects::subsystem::SubsystemId;

/// A message from the control plane to a lane of the reactor. Lanes that have ended ignore it.
#[derive(Debug)]
pub enum LaneMessage {
    /// Completes a Fabrics or admin command.
    Answer(Box<Answer>),
    /// Ends the lane: its controller is gone. Reports [`RequestKind::Ended`](super::RequestKind::Ended) once none of
    /// its operations runs.
    End(LaneId),
    /// Aborts a command if it can still be aborted. Answered with
    /// [`ControlMessage::Aborted`](super::ControlMessage::Aborted).
    Abort {
        /// The lane.
        lane: LaneId,
        /// The command id.
        cid: u16,
        /// The Abort command that waits for the outcome.
        asked_by: CommandId,
    },
    /// The host of a lane has authenticated as required, and its queue belongs to a controller now: the lane takes
    /// commands.
    Authenticated(LaneId, Box<Joined>),
    /// Changes the lane's doorbell policy.
    SetDoorbell(LaneId, DoorbellPolicy),
}

/// The completion of a Fabrics or admin command.
#[derive(Debug)]
pub struct Answer {
    /// The command.
    pub command: CommandId,
    /// Its status.
    pub status: Status,
    /// Result dwords.
    pub result: u64,
    /// Data for the host, cut to the length that it asked for.
    pub data: Option<Box<[u8]>>,
    /// The state of the lane from now on, if this was its Connect.
    pub established: Option<Established>,
}

/// The state of a lane whose Connect was accepted.
#[derive(Clone, Debug)]
pub struct Established {
    /// The queue that the lane is.
    pub qid: Qid,
    /// Entries of the queue.
    pub entries: u16,
    /// Whether SQ flow control is disabled.
    pub is_flow_control_disabled: bool,
    /// NQN of its host, for the log.
    pub host: String,
    /// The controller that it is a queue of; `None` if its host must authenticate before anything else.
    pub joined: Option<Joined>,
}

/// The settings and state of a controller that its queue uses.
#[derive(Clone, Debug)]
pub struct Joined {
    /// In-capsule data, bytes.
    pub in_capsule_bytes: u32,
    /// State shared with the other lanes of its controller.
    pub association: Arc<Association>,
    /// The subsystem whose namespaces it reaches; `None` for discovery.
    pub subsystem: Option<SubsystemId>,
    /// Doorbell policy.
    pub doorbell: DoorbellPolicy,
}
