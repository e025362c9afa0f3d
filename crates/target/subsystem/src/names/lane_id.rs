//! Names of lanes and of commands that wait for an answer, unique within a target.

use proto::Slot;

/// Bits of the generation of a lane and of a command: the top bit of a timer's token says whose it is, the next one whether
/// a ticket is a backend's own.
pub(crate) const GENERATION_MASK: u32 = 0x3fff_ffff;

/// The generation before that of the first occupant of a place. Generations wrap soon, and not only after 2^30 occupants.
pub(crate) const FIRST_GENERATION: u32 = GENERATION_MASK - 2;

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
