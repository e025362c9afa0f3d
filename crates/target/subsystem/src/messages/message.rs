//! Messages between reactors, the control plane and the operator, by receiver.
//!
//! ```text
//! lane ───────ControlMessage::Request──▶ control plane, on reactor 0 ──LaneMessage─────▶ lanes
//! reactor ────ControlMessage───────────▶                             ──ReactorMessage──▶ reactors
//! operator ───ControlMessage::Order────▶
//! reactor ────AdmissionMessage, PlacementMessage──▶ reactor 0 ──ConnectionMessage──▶ reactor ──ConnectionMessage──▶ reactor
//! reactor ◀───LockMessage, KeyValueMessage───▶ reactor
//! ```

mod connection;
mod control;
mod lane;
mod lock;
mod order;
mod reactor;

pub use connection::{
    AdmissionMessage, Connecting, ConnectionMessage, Left, Moving, PlacementMessage, Placing, Visitor,
};
pub use control::{Channel, ControlMessage, Request, RequestKind};
pub use lane::{Answer, Established, Joined, LaneMessage};
pub use lock::{Lock, LockMessage};
pub use order::{NewNamespace, Order, OrderAnswer, OrderKind, REMOVED_LISTENER_GRACE_MS, Step, StepOutcome};
pub use reactor::ReactorMessage;

use crate::messages::key_value::KeyValueMessage;

/// A message in the mailbox of a reactor.
#[derive(Debug)]
pub enum Message {
    /// To the control plane; reactor 0 only.
    Control(ControlMessage),
    /// To the admission of connections; reactor 0 only.
    Admission(AdmissionMessage),
    /// To the placement of lanes; reactor 0 only.
    Placement(PlacementMessage),
    /// To a lane.
    Lane(LaneMessage),
    /// To the reactor as a whole.
    Reactor(ReactorMessage),
    /// To a reactor that receives a connection or hands one over.
    Connection(ConnectionMessage),
    /// About locks of fused commands.
    Lock(LockMessage),
    /// Between the partitions of a key-value namespace.
    KeyValue(Box<KeyValueMessage>),
}

impl<M: Into<KeyValueMessage>> From<M> for Message {
    fn from(message: M) -> Self {
        Self::KeyValue(Box::new(message.into()))
    }
}
