//! The interface between a reactor and its application: a reactor implements [`Io`], and calls an [`Application`].
//!
//! Applications are written against [`Io`], so that the same code runs on sockets and disks here, and on a simulated
//! network, disk and clock in tests.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::time::{ClockId, clock_gettime};

use crate::busy_poll::{Arrival, BusyPolling};
use crate::operation::{Completion, Operation, Token};
use crate::socket::{Listener, Received, Sent};
use crate::zero_copy::{Held, Notice};
use linux::Moment;
use memory::Pool;
use memory::Segment;

/// A socket of one reactor. Never reused for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(u64);

/// Which listener a connection came in through: the number given when it was added.
pub type ListenerTag = u32;

/// A connection that belongs to no reactor at the moment, on its way to one.
#[derive(Debug)]
pub struct Connection {
    /// The other end, if known.
    pub peer: Option<SocketAddr>,
    /// This end: for a wildcard listener, the address that the peer used.
    pub local: Option<SocketAddr>,
    pub(crate) handle: ConnectionHandle,
}

#[derive(Debug)]
pub(crate) enum ConnectionHandle {
    Os(OwnedFd),
    Simulated(u64),
}

impl Connection {
    /// A connection of a simulated network, known there by `id`.
    #[must_use]
    pub fn simulated(id: u64) -> Self {
        Self { peer: None, local: None, handle: ConnectionHandle::Simulated(id) }
    }

    /// The device queue and core of its last packet.
    #[must_use]
    pub fn arrival(&self) -> Arrival {
        match &self.handle {
            ConnectionHandle::Os(fd) => Arrival::of(fd.as_fd()),
            ConnectionHandle::Simulated(_) => Arrival::default(),
        }
    }

    /// Sets the priority of its packets, see [`set_priority`](linux::socket_option::set_priority).
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn set_priority(&self, priority: u8) -> std::io::Result<()> {
        match &self.handle {
            ConnectionHandle::Os(fd) => linux::socket_option::set_priority(fd, priority),
            ConnectionHandle::Simulated(_) => Ok(()),
        }
    }

    /// The number given to [`simulated`](Self::simulated), if this is such a connection.
    #[must_use]
    pub fn simulated_id(&self) -> Option<u64> {
        match self.handle {
            ConnectionHandle::Os(_) => None,
            ConnectionHandle::Simulated(id) => Some(id),
        }
    }
}

impl SocketId {
    /// The id of no socket.
    pub(crate) const NONE: Self = Self(u64::MAX);

    /// An id for slot `index` in its `generation`.
    #[must_use]
    pub fn new(index: u32, generation: u32) -> Self {
        // 24 bits of generation: the ring's completions carry no more.
        Self(u64::from(generation & 0x00ff_ffff) << 32 | u64::from(index))
    }

    /// The slot.
    #[must_use]
    pub fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    pub(crate) fn key(self) -> u64 {
        self.0
    }

    pub(crate) fn from_key(key: u64) -> Self {
        Self(key)
    }
}

/// The services of a reactor for its application.
pub trait Io<M> {
    /// The time of this turn, ns since some fixed moment; it never goes back.
    fn now_ns(&self) -> u64;

    /// The present time on the same scale. It reads the clock: for occasional measurements.
    fn clock_ns(&self) -> u64 {
        self.now_ns()
    }

    /// The moment of this turn, by which keys expire.
    fn moment(&self) -> Moment;

    /// Unix time, us.
    fn unix_us(&self) -> u64 {
        let now = clock_gettime(ClockId::Realtime);
        now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1000
    }

    /// Accepts connections from `listener`, reported with `tag`.
    ///
    /// # Errors
    /// If the listener cannot be watched.
    fn listen(&mut self, tag: ListenerTag, listener: Listener) -> io::Result<()>;

    /// Closes the listeners with `tag`.
    fn unlisten(&mut self, tag: ListenerTag);

    /// Takes over a connection: from now on its readiness is reported.
    ///
    /// # Errors
    /// If the connection is dead already.
    fn adopt(&mut self, connection: Connection) -> io::Result<SocketId>;

    /// Marks a connection as established: from now on it is no longer served after the established ones.
    fn establish(&mut self, _socket: SocketId) {}

    /// Gives a connection up, for another reactor to adopt. No further call will name the socket; unreceived bytes of
    /// the peer go with it.
    fn release(&mut self, socket: SocketId) -> Option<Connection>;

    /// The device queue and core of a connection's last packet.
    fn arrival(&self, socket: SocketId) -> Arrival;

    /// When the last bytes of the peer arrived, ns: before they are received if the socket was
    /// [paused](Self::pause). The time of this turn if the kernel does not report it.
    fn arrived_ns(&self, socket: SocketId) -> u64;

    /// Receives into `into`, in order. A call that fills all of it means there may be more.
    fn receive(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Received;

    /// Sends as much as fits.
    fn send(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> Sent;

    /// TLS has encrypted `plaintext` for this socket; its records go out by [`send`](Self::send). For engines that look
    /// at the PDUs of their connections.
    fn note_encrypted(&mut self, _socket: SocketId, _plaintext: &[u8]) {}

    /// TLS has decrypted `plaintext` from what this socket has received.
    fn note_decrypted(&mut self, _socket: SocketId, _plaintext: &[u8]) {}

    /// Enables zero-copy sends on this socket. Returns whether the kernel supports them.
    fn allow_zero_copy(&mut self, _socket: SocketId) -> bool {
        false
    }

    /// As [`send`](Self::send), but the bytes taken must stay unchanged until [`next_notice`](Self::next_notice)
    /// returns a notice of this send. Returns whether a notice will come. Notices count as something to read:
    /// [`Application::on_readable`] is called for them.
    fn send_zero_copy(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> (Sent, bool) {
        (self.send(socket, segments), false)
    }

    /// The next notice of bytes that the kernel no longer reads.
    fn next_notice(&mut self, _socket: SocketId) -> Option<Notice> {
        None
    }

    /// Calls [`Application::on_writable`] once when the socket takes bytes again: for after [`Sent::Blocked`] or a
    /// send that took only a part.
    fn await_writable(&mut self, socket: SocketId);

    /// Stops reporting what the peer sends, until [`resume`](Self::resume): there is no room for it.
    fn pause(&mut self, socket: SocketId);

    /// Ends a pause.
    fn resume(&mut self, socket: SocketId);

    /// Ends the sending direction: the peer sees the end of the stream.
    fn finish(&mut self, socket: SocketId);

    /// Closes the connection. No further call will name the socket.
    fn close(&mut self, socket: SocketId);

    /// As [`close`](Self::close), keeping the memory that the kernel may still read until its notices have come.
    /// Without zero-copy sends there is no such memory.
    fn close_holding(&mut self, socket: SocketId, held: Held) {
        self.close(socket);
        drop(held);
    }

    /// Starts a storage operation, which ends with [`Application::on_completion`].
    ///
    /// # Errors
    /// The operation itself, if too many run already: start it again after the next completion.
    fn start(&mut self, token: Token, operation: Operation) -> Result<(), Operation>;

    /// Calls [`Application::on_timer`] at or after `deadline_ns`. Timers cannot be cancelled, only ignored.
    fn set_timer(&mut self, deadline_ns: u64, token: Token);

    /// Posts a message to reactor `to`, itself included.
    fn post(&mut self, to: usize, message: M);

    /// This reactor's number, 0 for the first.
    fn reactor(&self) -> usize;

    /// How many reactors there are.
    fn reactor_count(&self) -> usize;

    /// This reactor's buffers.
    fn pool(&self) -> &Pool;

    /// Settings, replies and counters of busy polling.
    fn busy_polling(&self) -> BusyPolling;

    /// Ends the reactor after this turn.
    fn stop(&mut self);
}

/// The program that a reactor runs.
pub trait Application {
    /// Messages from other threads.
    type Message: Send + 'static;

    /// The reactor begins.
    fn on_start(&mut self, io: &mut impl Io<Self::Message>);

    /// A peer has connected.
    fn on_accept(&mut self, io: &mut impl Io<Self::Message>, listener: ListenerTag, connection: Connection);

    /// There may be bytes to receive. Returns whether any work was found.
    fn on_readable(&mut self, io: &mut impl Io<Self::Message>, socket: SocketId) -> bool;

    /// The socket takes bytes again.
    fn on_writable(&mut self, io: &mut impl Io<Self::Message>, socket: SocketId);

    /// A storage operation has ended.
    fn on_completion(&mut self, io: &mut impl Io<Self::Message>, completion: Completion);

    /// A timer rings.
    fn on_timer(&mut self, io: &mut impl Io<Self::Message>, token: Token);

    /// A message has arrived.
    fn on_message(&mut self, io: &mut impl Io<Self::Message>, message: Self::Message);

    /// All events of this turn have been handed over: the moment to ring doorbells. Returns whether any work was
    /// done.
    fn on_turn_end(&mut self, io: &mut impl Io<Self::Message>) -> bool;

    /// The reactor ends, in good order or because its engine failed. An application that sends without a copy
    /// [closes](Io::close_holding) its connections here: memory that the kernel may still read is leaked if it is
    /// dropped later.
    fn on_end(&mut self, _io: &mut impl Io<Self::Message>) {}
}
