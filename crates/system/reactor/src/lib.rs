//! One pinned thread: its ring or epoll set, its buffers, timers and mailbox.
//!
//! A [`Reactor`] runs an [`Application`], which sees the world only through [`Io`]. It knows sockets, storage
//! operations, deadlines and messages, and nothing of NVMe.
//!
//! All unsafe code of the workspace is here: `buffers`, `chunks`, `lines`, `mapping`, `memory` and `segment` (memory
//! that the kernel reads and writes), `ring`, `workers`, `socket`, `socket_option`, `zero_copy`, `busy_poll`,
//! `ethtool_ioctl`, `netlink_options`, `probe` and `signals` (system calls), `program_allocator`, and `wide`,
//! `byte_masks` and `crc32c` (instructions that not every processor has).

#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod accept_pace;
mod buffers;
mod busy_poll;
mod byte_masks;
mod chunks;
mod counter;
mod counting;
pub mod crc32c;
mod descriptors;
mod engine;
mod epoll;
mod ethtool_ioctl;
mod event;
mod file_lock;
mod in_flight;
mod interface;
mod io;
mod lines;
mod mailbox;
#[cfg(test)]
mod mailbox_tests;
mod mapping;
mod max_segment;
mod memory;
mod moment;
mod netlink_options;
mod operation;
mod payload;
mod placement;
mod poison;
mod probe;
mod program_allocator;
pub mod random;
pub mod randomness;
mod reactor_io;
#[cfg(test)]
mod refusal_tests;
mod registered;
mod ring;
mod segment;
mod signals;
pub mod small_file;
mod sock_ops;
mod socket;
mod socket_option;
mod source;
mod spin;
mod storage_ring;
mod sync;
mod timers;
mod turn;
mod wait;
mod wake;
pub mod whole_file;
mod wide;
mod workers;
mod zero_copy;

pub use buffers::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Buffer, Pool};
pub use busy_poll::{
    Arrival, Asked, BUSY_POLL_BUDGET_MAX, BUSY_POLL_US_MAX, BusyPoll, BusyPolling, SocketPolling, poll_epoll,
};
pub use byte_masks::{controls, equal_bytes};
pub use chunks::{CHUNK_BYTES, Chunk, Chunks};
pub use counter::{Counter, Durations, SharedDurations};
pub use counting::{Allocations, CountingAllocator};
pub use descriptors::{allow_descriptors, remedy as descriptor_remedy, reserve_descriptors};
pub use ethtool_ioctl::ethtool_ioctl;
pub use event::EngineKind;
pub use file_lock::{is_open_for_writing, is_range_locked, lock_range_shared, unlock_ranges};
pub use interface::{interface_index, with_numbered_zone};
pub use io::{Application, Connection, Io, ListenerTag, SocketId};
pub use lines::{LINE_BYTES, Line, Lines, Untouched, prefetch};
pub use mailbox::{Address, Mailbox};
pub use mapping::page_bytes;
pub use max_segment::MaxSegment;
pub use memory::{Memory, MemoryAccess, MemoryRef, PastEnd, STRIPE_BYTES};
pub use moment::Moment;
pub use netlink_options::explain_netlink_errors;
pub use operation::{Allocation, Completion, File, Operation, Token};
pub use payload::{Payload, Torn};
pub use placement::{CoreList, CoreListError, lower_priority, pin, spread_over_node, step_back};
pub use poison::{POISON, PoisoningAllocator};
pub use probe::{Features, RingSetup};
pub use program_allocator::{ProgramAllocator, give_back_freed_memory};
pub use segment::Segment;
pub use signals::{SignalMask, block_signals};
pub use sock_ops::{SockOps, network_cookie};
pub use socket::{Listener, Received, SEGMENT_COUNT_MAX, Sent, Socket, suit_loopback};
pub use socket_option::{priority, set_priority};
pub use source::Source;
pub use spin::{Pause, SpinBudget, SpinPolicy, UnknownSpinPolicy, spin_ns_max};
pub use storage_ring::{StorageRing, StorageRingCounters};
pub use timers::Timers;
pub use turn::{Reactor, Settings, TurnCounters};
pub use wait::Wait;
pub use wide::with_wide_vectors;
pub use zero_copy::{Held, Notice, abort_and_await, stays_on_this_machine};
