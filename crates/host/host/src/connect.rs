//! Connecting sockets, and tools of the drivers of lanes and associations: clock, staging buffer, send.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Instant;

use host_core::link_error::LinkError;
use memory::Segment;
use proto::SendBudget;
use reactor::{MaxSegment, SEGMENT_COUNT_MAX, Sent, Socket};

use crate::transport::Transport;
use crate::waiting::{Interest, sleep};

/// Size of the staging buffer for received bytes. Each thread has one, which stays in the cache however many lanes it
/// has.
pub(crate) const STAGING_BYTES: usize = 512 << 10;

/// Minimum time for each of several addresses to connect, ns.
const DIAL_NS_MIN: u64 = 250_000_000;

/// A clock in ns since the first one of the process was made: lanes of several associations can be in one set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Self {
        static START: OnceLock<Instant> = OnceLock::new();
        Self(*START.get_or_init(Instant::now))
    }

    #[inline]
    pub(crate) fn now_ns(self) -> u64 {
        // 584 years.
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

thread_local! {
    static STAGING: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// The thread's staging buffer, taken out of the thread: a completion handler that polls another lane gets a new one.
pub(crate) struct Staging(Option<Box<[u8]>>);

impl Staging {
    #[inline]
    pub(crate) fn take() -> Self {
        let bytes = STAGING.take().unwrap_or_else(|| vec![0; STAGING_BYTES].into_boxed_slice());
        Self(Some(bytes))
    }

    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().expect("until it is dropped")
    }
}

impl Drop for Staging {
    #[inline]
    fn drop(&mut self) {
        // A thread that is ending has no thread-local storage.
        let bytes = self.0.take();
        let _ = STAGING.try_with(|staging| staging.set(bytes));
    }
}

/// Gathers the pieces of `for_each_piece` as far as `budget` allows and sends them in one call. `is_zero_copy` decides
/// from their length, in bytes, whether they are sent without a copy.
#[inline]
pub(crate) fn send<'a>(
    transport: &mut Transport,
    piece_count: usize,
    budget: &SendBudget,
    for_each_piece: impl FnOnce(&mut dyn FnMut(&'a [u8]) -> bool),
    is_zero_copy: impl FnOnce(usize) -> bool,
) -> Result<Progress, LinkError> {
    // Most caravans are one run of headers: clearing a long array would cost more than sending them.
    if piece_count <= 8 {
        send_up_to::<8>(transport, budget, for_each_piece, is_zero_copy)
    } else {
        send_up_to::<256>(transport, budget, for_each_piece, is_zero_copy)
    }
}

/// Outcome of a send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) sent_bytes: usize,
    /// The socket accepted only a part.
    pub(crate) is_blocked: bool,
    /// A notice follows when the kernel releases the bytes.
    pub(crate) is_zero_copy: bool,
}

#[inline]
fn send_up_to<'a, const COUNT: usize>(
    transport: &mut Transport,
    budget: &SendBudget,
    for_each_piece: impl FnOnce(&mut dyn FnMut(&'a [u8]) -> bool),
    is_zero_copy: impl FnOnce(usize) -> bool,
) -> Result<Progress, LinkError> {
    const { assert!(COUNT <= SEGMENT_COUNT_MAX) };
    let mut segments = [Segment::EMPTY; COUNT];
    let (mut count, mut length) = (0, 0);
    for_each_piece(&mut |piece| {
        // Called once more than there is room: the rest is sent by the next call.
        let Some(segment) = segments.get_mut(count) else { return false };
        let end = budget.end_of(0..piece.len(), length, 1);
        *segment = Segment::new(&piece[..end]);
        (count, length) = (count + 1, length + end);
        end == piece.len()
    });
    let segments = &segments[..count];
    let (sent, is_zero_copy) = if is_zero_copy(length) {
        transport.send_zero_copy(segments)
    } else {
        (transport.send(segments), false)
    };
    match sent {
        Sent::Bytes(sent_bytes) => Ok(Progress { sent_bytes, is_blocked: sent_bytes < length, is_zero_copy }),
        Sent::Blocked => Ok(Progress { sent_bytes: 0, is_blocked: true, is_zero_copy }),
        Sent::Failed(error) => Err(error.into()),
    }
}

/// How connections are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DialSettings {
    /// Maximum time for all addresses together, ns.
    pub(crate) timeout_ns: u64,
    /// Maximum segment size of TCP, if it is not the route's.
    pub(crate) max_segment: Option<MaxSegment>,
}

/// Connects to the first of several addresses that answers, without blocking.
#[derive(Debug)]
pub(crate) struct Dialer {
    waiting: VecDeque<SocketAddr>,
    each_ns: u64,
    max_segment: Option<MaxSegment>,
    current: Option<Dial>,
}

#[derive(Debug)]
struct Dial {
    socket: Socket,
    peer: SocketAddr,
    until_ns: u64,
}

/// State of a dialler.
#[derive(Debug)]
pub(crate) enum Dialled {
    Connected(Socket, SocketAddr),
    Waiting,
    Failed(LinkError),
}

impl Dialer {
    pub(crate) fn new(addresses: impl IntoIterator<Item = SocketAddr>, settings: DialSettings) -> Self {
        let waiting: VecDeque<_> = addresses.into_iter().collect();
        let each_ns = settings.timeout_ns / u64::try_from(waiting.len().max(1)).expect("few");
        // The last one gets the rest of the time, up to the caller's deadline.
        let each_ns = each_ns.max(DIAL_NS_MIN);
        Self { waiting, each_ns, max_segment: settings.max_segment, current: None }
    }

    /// Checks the connection, and continues with the next address if it failed.
    pub(crate) fn poll(&mut self, now_ns: u64) -> Dialled {
        let mut last_error = None;
        loop {
            if let Some(dial) = self.current.take() {
                match dial.look(now_ns, !self.waiting.is_empty()) {
                    Look::Connected => return Dialled::Connected(dial.socket, dial.peer),
                    Look::Waiting => {
                        self.current = Some(dial);
                        return Dialled::Waiting;
                    }
                    Look::Failed(error) => last_error = Some(error),
                }
            }
            let Some(peer) = self.waiting.pop_front() else {
                let none = || io::Error::new(io::ErrorKind::NotFound, "no address to connect to");
                return Dialled::Failed(last_error.unwrap_or_else(none).into());
            };
            match Socket::connect_with(peer, self.max_segment) {
                Ok(socket) => {
                    let until_ns = now_ns.saturating_add(self.each_ns);
                    self.current = Some(Dial { socket, peer, until_ns });
                }
                Err(error) => last_error = Some(error),
            }
        }
    }

    /// Readiness to wait for.
    pub(crate) fn interest(&self) -> Option<Interest<'_>> {
        use std::os::fd::AsFd;
        let fd = self.current.as_ref()?.socket.as_fd();
        Some(Interest { fd, writable: true, readable: false })
    }

    /// When to poll again at the latest, ns.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.current.as_ref().map(|dial| dial.until_ns)
    }
}

enum Look {
    Connected,
    Waiting,
    Failed(io::Error),
}

impl Dial {
    fn look(&self, now_ns: u64, has_others: bool) -> Look {
        use std::os::fd::AsFd;
        let interest = Interest { fd: self.socket.as_fd(), writable: true, readable: false };
        if sleep([Some(interest)], 0)[0] {
            return match self.socket.connected() {
                Ok(()) => Look::Connected,
                Err(error) => Look::Failed(error),
            };
        }
        if has_others && now_ns >= self.until_ns {
            return Look::Failed(io::ErrorKind::TimedOut.into());
        }
        Look::Waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::Listener;

    fn dial(addresses: Vec<SocketAddr>) -> Dialled {
        let clock = Clock::new();
        let settings = DialSettings { timeout_ns: 1_000_000_000, max_segment: None };
        let mut dialer = Dialer::new(addresses, settings);
        loop {
            match dialer.poll(clock.now_ns()) {
                Dialled::Waiting => {
                    sleep([dialer.interest()], 10_000_000);
                }
                done => return done,
            }
        }
    }

    #[test]
    fn the_first_address_that_answers_is_taken() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let closed = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap().address();
        let Dialled::Connected(_, peer) = dial(vec![closed, listener.address()]) else { panic!("connects") };
        assert_eq!(peer, listener.address());
        let Dialled::Failed(LinkError::Socket(error)) = dial(vec![closed]) else { panic!("is refused") };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(matches!(dial(vec![]), Dialled::Failed(_)));
    }

    #[test]
    fn long_pieces_are_cut_to_the_budget() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let Dialled::Connected(socket, _) = dial(vec![listener.address()]) else { panic!("connects") };
        let name = wire::nqn::Nqn::discovery();
        let mut transport =
            Transport::new(socket, host_core::connection_tls::TlsKeys::None, &name, &name).unwrap();
        let (short, long) = (vec![1; 32 << 10], vec![2; 128 << 10]);
        let mut sent_bytes = |spent: usize| {
            let mut budget = SendBudget::TURN;
            budget.on_sent(spent);
            let pieces = [&short[..], &short, &long, &short];
            let each_piece = |each: &mut dyn FnMut(_) -> bool| {
                let _ = pieces.into_iter().all(each);
            };
            send(&mut transport, 4, &budget, each_piece, |_| false).unwrap().sent_bytes
        };
        assert_eq!(sent_bytes(416 << 10), 96 << 10, "the long one in part");
        assert_eq!(sent_bytes(480 << 10), 64 << 10, "short ones go whole");
    }

    #[test]
    fn a_second_user_of_the_staging_buffer_gets_its_own() {
        let mut first = Staging::take();
        let mut second = Staging::take();
        first.bytes()[0] = 1;
        second.bytes()[0] = 2;
        assert_eq!(first.bytes()[0], 1);
        assert_eq!(second.bytes().len(), STAGING_BYTES);
    }
}
