//! One pinned thread: its ring or epoll set, its sockets, timers and mailbox.
//!
//! A [`Reactor`] runs an [`Application`], which sees the world only through [`Io`]. It knows sockets, storage
//! operations, deadlines and messages, and nothing of NVMe.
//!
//! The unsafe code makes system calls, and passes buffers to the kernel and to threads until operations complete: in
//! `busy_poll`, `probe`, `registered`, `ring`, `socket`, `workers` and `zero_copy`.

#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod accept_pace;
mod busy_poll;
mod counter;
mod engine;
mod epoll;
mod event;
mod in_flight;
mod io;
mod mailbox;
#[cfg(test)]
mod mailbox_tests;
mod max_segment;
mod operation;
mod probe;
mod reactor_io;
#[cfg(test)]
mod refusal_tests;
mod registered;
mod ring;
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

pub use busy_poll::{
    Arrival, Asked, BUSY_POLL_BUDGET_MAX, BUSY_POLL_US_MAX, BusyPoll, BusyPolling, SocketPolling, poll_epoll,
};
pub use counter::{Counter, Durations, SharedDurations};
pub use event::EngineKind;
pub use io::{Application, Connection, Io, ListenerTag, SocketId};
pub use mailbox::{Address, Mailbox};
pub use max_segment::MaxSegment;
pub use operation::{Allocation, Completion, DataMap, File, Operation, Token};
pub use probe::{Features, RingSetup};
pub use socket::{Listener, Received, SEGMENT_COUNT_MAX, Sent, Socket, suit_loopback};
pub use source::Source;
pub use spin::{Pause, SpinBudget, SpinPolicy, UnknownSpinPolicy, spin_ns_max};
pub use storage_ring::{StorageRing, StorageRingCounters};
pub use timers::Timers;
pub use turn::{Reactor, Settings, TurnCounters};
pub use wait::Wait;
pub use zero_copy::{Held, Notice, abort_and_await, stays_on_this_machine};
