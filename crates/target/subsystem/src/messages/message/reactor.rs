//! Messages from the control plane and the operator to a whole reactor.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use reactor::{Listener, ListenerTag};

use crate::messages::state::ReactorReport;
use crate::messages::trace::TraceOrder;
use crate::names::lane_id::CommandId;
use crate::names::slow_threshold::SlowThreshold;
use crate::objects::namespace_table::NamespaceTable;
use crate::objects::subsystem::SubsystemId;

/// A message to a whole reactor.
#[derive(Debug)]
pub enum ReactorMessage {
    /// Replaces the namespaces of all subsystems. Answered with
    /// [`ControlMessage::TableInUse`](super::ControlMessage::TableInUse).
    Table(Arc<NamespaceTable>),
    /// Flushes all namespaces of a subsystem. Answered with
    /// [`ControlMessage::Flushed`](super::ControlMessage::Flushed).
    Flush {
        /// The subsystem.
        subsystem: SubsystemId,
        /// The command that shuts its controller down.
        asked_by: CommandId,
    },
    /// Accepts connections from this listener from now on.
    Listen(ListenerTag, Listener),
    /// Accepts no more connections from the listener of this tag; a memcached listener's connections end.
    Unlisten(ListenerTag),
    /// Asks for the state of the reactor, for the operator.
    Describe(Sender<ReactorReport>),
    /// Logs commands that take longer than this.
    SetSlow(SlowThreshold),
    /// Begins, reads or ends a trace.
    Trace(TraceOrder),
    /// Closes the memcached connections, and ends the reactor once its logs are durable: the control plane is done.
    Stop,
}
