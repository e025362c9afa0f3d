//! Names of lanes and of commands that wait for an answer, unique within a target.

use proto::Slot;

/// Identifies a lane of one reactor. Never reused for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    /// Which reactor.
    pub reactor: u16,
    /// Which of its slots.
    pub index: u32,
    /// Counts the occupants of the slot.
    pub generation: u32,
}

/// Identifies a command that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId {
    /// The lane that received it.
    pub lane: LaneId,
    /// Its slot in the command table of that lane.
    pub slot: Slot,
}
