//! One pinned thread: its ring or epoll set, its buffers, timers and mailbox.
//!
//! A [`Reactor`] runs an [`Application`], which sees the world only through [`Io`]. It knows sockets, storage
//! operations, deadlines and messages, and nothing of NVMe.
//!
//! The unsafe code is in `buffers`, `chunks`, `lines`, `mapping`, `memory` and `segment` (memory that the kernel reads
//! and writes), `ring`, `workers`, `socket`, `zero_copy`, `busy_poll` and `probe` (system calls), and
//! `program_allocator`.

#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod accept_pace;
mod buffers;
mod busy_poll;
mod chunks;
mod counter;
mod counting;
mod engine;
mod epoll;
mod event;
mod in_flight;
mod io;
mod lines;
mod mailbox;
#[cfg(test)]
mod mailbox_tests;
mod mapping;
mod max_segment;
mod memory;
mod operation;
mod payload;
mod poison;
mod probe;
mod program_allocator;
mod reactor_io;
#[cfg(test)]
mod refusal_tests;
mod registered;
mod ring;
mod segment;
mod socket;
mod source;
mod spin;
mod storage_ring;
mod sync;
mod timers;
mod turn;
mod wait;
mod wake;
mod workers;
mod zero_copy;

pub use self::memory::{Memory, MemoryAccess, MemoryRef, PastEnd, STRIPE_BYTES};
pub use buffers::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Buffer, Pool};
pub use busy_poll::{
    Arrival, Asked, BUSY_POLL_BUDGET_MAX, BUSY_POLL_US_MAX, BusyPoll, BusyPolling, SocketPolling, poll_epoll,
};
pub use chunks::{CHUNK_BYTES, Chunk, Chunks};
pub use counter::{Counter, Durations, SharedDurations};
pub use counting::{Allocations, CountingAllocator};
pub use event::EngineKind;
pub use io::{Application, Connection, Io, ListenerTag, SocketId};
pub use lines::{LINE_BYTES, Line, Lines, Untouched, prefetch};
pub use mailbox::{Address, Mailbox};
pub use mapping::page_bytes;
pub use max_segment::MaxSegment;
pub use operation::{Allocation, Completion, File, Operation, Token};
pub use payload::{Payload, Torn};
pub use poison::{POISON, PoisoningAllocator};
pub use probe::{Features, RingSetup};
pub use program_allocator::{ProgramAllocator, give_back_freed_memory};
pub use segment::Segment;
pub use socket::{Listener, Received, SEGMENT_COUNT_MAX, Sent, Socket, suit_loopback};
pub use source::Source;
pub use spin::{Pause, SpinBudget, SpinPolicy, UnknownSpinPolicy, spin_ns_max};
pub use storage_ring::{StorageRing, StorageRingCounters};
pub use timers::Timers;
pub use turn::{Reactor, Settings, TurnCounters};
pub use wait::Wait;
pub use zero_copy::{Held, Notice, abort_and_await, stays_on_this_machine};
