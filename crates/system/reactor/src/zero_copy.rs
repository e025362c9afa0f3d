//! Zero-copy sends (`MSG_ZEROCOPY`): the kernel reads the bytes in place when packets are transmitted, and again when
//! they are retransmitted. A [`Notice`] reports that it no longer will, and whether it copied the bytes after all.
//!
//! The kernel holds the pages until then, also when they are unmapped, so no send reads memory of others. But the peer
//! receives the content at each transmission: the sender keeps the bytes allocated and unchanged until the notice.
//! Memory whose notice it cannot wait for is leaked: freed memory would be reused (docs/design/kernel-memory.md).
//!
//! Both engines, and hosts without an engine, send by plain calls, so this is a flag of those and not an operation of a
//! ring (docs/design/socket-path.md).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::socket::{Sent, Socket, send_message};
use memory::Payload;
use memory::Segment;

/// A notice that the kernel has released the bytes of some sends, numbered from 0 in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The first of them.
    pub first: u32,
    /// The last of them; numbers wrap.
    pub last: u32,
    /// Whether the kernel copied the bytes, which costs more than a plain send.
    pub is_copied: bool,
}

impl Notice {
    /// Number of these sends.
    #[must_use]
    pub fn send_count(&self) -> u32 {
        self.last.wrapping_sub(self.first).wrapping_add(1)
    }
}

/// Memory that the kernel may still read when a connection is closed. Dropped before its last notice, it is leaked.
#[derive(Debug, Default)]
pub struct Held {
    headers: Vec<Vec<u8>>,
    payloads: Vec<Payload>,
    awaited_count: u32,
}

impl Held {
    /// Empty, for a connection with `awaited_count` sends without a notice.
    #[must_use]
    pub fn new(awaited_count: u32) -> Self {
        Self { headers: Vec::new(), payloads: Vec::new(), awaited_count }
    }

    /// Adds the headers and payloads of a caravan.
    pub fn push(&mut self, headers: Vec<u8>, payloads: Vec<Payload>) {
        self.headers.push(headers);
        self.payloads.extend(payloads);
    }

    /// Sends without a notice.
    #[must_use]
    pub fn awaited_count(&self) -> u32 {
        self.awaited_count
    }

    /// The kernel has given notice of `count` of these sends.
    pub fn on_notice(&mut self, send_count: u32) {
        self.awaited_count = self.awaited_count.saturating_sub(send_count);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.awaited_count > 0 {
            std::mem::forget((std::mem::take(&mut self.headers), std::mem::take(&mut self.payloads)));
        }
    }
}

/// Linux: the kernel fell back to copying.
const CODE_COPIED: u8 = 1;

/// Linux: notices of sends, not errors.
const ORIGIN_ZERO_COPY: u8 = 5;

/// A control message of an error, with room for the address behind it, which is not used.
const CONTROL_BYTES: usize = 128;

/// The least length of a control message with a `sock_extended_err`.
#[allow(clippy::cast_possible_truncation, reason = "a few bytes")]
// SAFETY: a calculation.
const ERROR_MESSAGE_BYTES: usize =
    unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as libc::c_uint) } as usize;

#[repr(align(8))]
struct Control([u8; CONTROL_BYTES]);

impl Socket {
    /// Enables zero-copy sends. Returns whether the kernel supports them on this socket.
    #[must_use]
    pub fn allow_zero_copy(&self) -> bool {
        let on: libc::c_int = 1;
        let length = libc::socklen_t::try_from(size_of_val(&on)).expect("four");
        // SAFETY: the option takes an int, which lives through the call.
        let result = unsafe {
            libc::setsockopt(
                self.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ZEROCOPY,
                (&raw const on).cast(),
                length,
            )
        };
        result == 0
    }

    /// As [`send`](Socket::send), but without a copy: the bytes taken must stay unchanged until the [`Notice`] of this
    /// send. Returns whether there will be one: if the kernel may hold no more pages for this process, it is a plain
    /// send.
    pub fn send_zero_copy(&self, segments: &[Segment<'_>]) -> (Sent, bool) {
        match send_message(self.as_fd(), segments, libc::MSG_ZEROCOPY) {
            Sent::Failed(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                (self.send(segments, false), false)
            }
            sent @ Sent::Bytes(_) => (sent, true),
            sent => (sent, false),
        }
    }

    /// The next notice, if one has come.
    pub fn next_notice(&self) -> Option<Notice> {
        loop {
            let mut control = Control([0; CONTROL_BYTES]);
            // SAFETY: all zeroes is a valid `msghdr`: no address, no data.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = CONTROL_BYTES as _;
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            // SAFETY: the control buffer is as long as is said, aligned as such messages are, and lives through the
            // call.
            let result = unsafe { libc::recvmsg(self.as_fd().as_raw_fd(), &raw mut message, flags) };
            if result < 0 {
                if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return None;
            }
            // Other reports there, such as ICMP errors, are not about our sends.
            if let Some(notice) = notice_of(&message) {
                return Some(notice);
            }
        }
    }

    /// Resets the connection but keeps the socket: the kernel drops unsent bytes, resets the peer, and gives notice of
    /// the pages it held.
    pub fn abort(&self) {
        let _ = sockopt::set_socket_linger(self, Some(Duration::ZERO));
        // SAFETY: all zeroes is a valid `sockaddr`, and none that a socket could be connected to: AF_UNSPEC.
        let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
        let length = libc::socklen_t::try_from(size_of_val(&nowhere)).expect("sixteen");
        // SAFETY: the address lives through the call. A socket whose connection is broken already has none to break.
        unsafe { libc::connect(self.as_fd().as_raw_fd(), &raw const nowhere, length) };
    }
}

/// The notice in the control messages of one receive from the error queue, if any.
fn notice_of(message: &libc::msghdr) -> Option<Notice> {
    // SAFETY: the kernel has filled in the message, whose control buffer the caller still has.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !next.is_null() {
        // SAFETY: not null, so within the control buffer; headers there are aligned.
        let header = unsafe { &*next };
        let is_error = matches!(
            (header.cmsg_level, header.cmsg_type),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
        );
        if is_error && header.cmsg_len as usize >= ERROR_MESSAGE_BYTES {
            // SAFETY: such a message begins with this structure; it may lie unaligned.
            let error =
                unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(next).cast::<libc::sock_extended_err>()) };
            if error.ee_errno == 0 && error.ee_origin == ORIGIN_ZERO_COPY {
                let is_copied = error.ee_code & CODE_COPIED != 0;
                return Some(Notice { first: error.ee_info, last: error.ee_data, is_copied });
            }
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
    None
}

/// Whether a connection is known to stay on this machine, where the kernel copies in any case.
#[must_use]
pub fn stays_on_this_machine(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> bool {
    let (Some(local), Some(peer)) = (local, peer) else { return false };
    let (local, peer) = (local.ip().to_canonical(), peer.ip().to_canonical());
    peer.is_loopback() || local == peer
}

/// Time for which the kernel may continue to transmit on a closed connection, ns.
const LINGER_NS: u64 = 2_000_000_000;

/// Poll interval for the notices of such connections, ns.
const LOOK_NS: u64 = 1_000_000;

/// Time for which a reactor that ends waits for the notices of connections that it has reset.
const END_PATIENCE: Duration = Duration::from_millis(500);

/// A connection that is closed for its user while the kernel still reads the memory it transmits from.
#[derive(Debug)]
pub(crate) struct LingeringClose {
    socket: Socket,
    held: Held,
    until_ns: u64,
    is_aborted: bool,
}

impl LingeringClose {
    /// Ends the sending direction: the peer sees the end of the stream.
    pub(crate) fn new(socket: Socket, held: Held, now_ns: u64) -> Self {
        socket.finish();
        let until_ns = now_ns.saturating_add(LINGER_NS);
        Self { socket, held, until_ns, is_aborted: false }
    }

    /// Whether every notice has come. Resets the connection if its peer does not receive in time.
    pub(crate) fn is_over(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.until_ns {
            self.abort();
        }
        self.take_notices()
    }

    /// Time of the next check, ns.
    pub(crate) fn next_look_ns(now_ns: u64) -> u64 {
        now_ns.saturating_add(LOOK_NS)
    }

    fn abort(&mut self) {
        if !std::mem::replace(&mut self.is_aborted, true) {
            self.socket.abort();
        }
    }

    fn take_notices(&mut self) -> bool {
        while self.held.awaited_count() > 0
            && let Some(notice) = self.socket.next_notice()
        {
            self.held.on_notice(notice.send_count());
        }
        self.held.awaited_count() == 0
    }

    /// Resets connections and waits for the notices of their sends, for a limited time. Memory that a device still
    /// holds then is leaked with a warning.
    pub(crate) fn end_all(mut lingering: Vec<Self>) {
        lingering.iter_mut().for_each(Self::abort);
        let until = Instant::now() + END_PATIENCE;
        loop {
            lingering.retain_mut(|one| !one.take_notices());
            if lingering.is_empty() {
                return;
            }
            if Instant::now() >= until {
                let connections = lingering.len();
                return tracing::warn!(
                    connections,
                    "a device still reads memory of a zero-copy send: it is leaked"
                );
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Drop for LingeringClose {
    /// Resets the connection; [`Held`] leaks memory that the kernel may still read.
    fn drop(&mut self) {
        if !self.take_notices() {
            self.abort();
            self.take_notices();
        }
    }
}

/// Resets a connection and calls `on_notice` with each notice of its sends, until that returns that no more are awaited
/// or the time is over.
pub fn abort_and_await(socket: &Socket, patience: Duration, mut on_notice: impl FnMut(Notice) -> bool) {
    socket.abort();
    let until = Instant::now() + patience;
    loop {
        while let Some(notice) = socket.next_notice() {
            if !on_notice(notice) {
                return;
            }
        }
        if Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Resets connections whose owner is dropped without having closed them.
pub(crate) fn abort_all(sockets: impl Iterator<Item = Socket>) {
    for socket in sockets {
        socket.abort();
        drop(OwnedFd::from(socket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Received;
    use crate::socket::tests::pair;
    use memory::Pool;

    fn await_notice(socket: &Socket) -> Notice {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(notice) = socket.next_notice() {
                return notice;
            }
            assert!(Instant::now() < until, "no notice");
            std::thread::yield_now();
        }
    }

    fn read_all(socket: &Socket, mut count: usize) -> Vec<u8> {
        let (mut bytes, mut all) = (vec![0; 64 << 10], Vec::new());
        while count > 0 {
            match socket.receive(&mut bytes) {
                Received::Bytes(some) => {
                    all.extend_from_slice(&bytes[..some]);
                    count -= some;
                }
                Received::Dry => std::thread::yield_now(),
                other => panic!("{other:?}"),
            }
        }
        all
    }

    #[test]
    fn a_send_over_loopback_is_noticed_as_copied() {
        let (near, far) = pair();
        assert!(near.allow_zero_copy());
        assert_eq!(near.next_notice(), None);
        let data: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
        for number in 0..3 {
            let (Sent::Bytes(count), true) =
                near.send_zero_copy(&[Segment::new(b"head"), Segment::new(&data)])
            else {
                panic!("there is room");
            };
            let got = read_all(&far, count);
            assert_eq!((&got[..4], &got[4..]), (&b"head"[..], &data[..count - 4]));
            let notice = await_notice(&near);
            assert_eq!((notice.first, notice.last, notice.send_count()), (number, number, 1));
            assert!(notice.is_copied, "over loopback");
        }
        // Plain sends have no number.
        assert!(matches!(near.send(&[Segment::new(b"x")], false), Sent::Bytes(1)));
        assert!(matches!(near.send_zero_copy(&[Segment::new(&data[..4096])]), (Sent::Bytes(4096), true)));
        read_all(&far, 4097);
        assert_eq!(await_notice(&near).first, 3);
    }

    #[test]
    fn an_aborted_connection_gives_notice_of_what_was_not_taken() {
        let (near, _far) = pair();
        assert!(near.allow_zero_copy());
        let data = vec![7; 1 << 20];
        let mut count = 0;
        loop {
            match near.send_zero_copy(&[Segment::new(&data)]) {
                (Sent::Bytes(_), is_referred) => count += u32::from(is_referred),
                (Sent::Blocked, _) => break,
                (Sent::Failed(error), _) => panic!("{error}"),
            }
        }
        assert!(count > 0);
        abort_and_await(&near, Duration::from_secs(20), |notice| {
            count -= notice.send_count();
            count > 0
        });
        assert_eq!(count, 0);
        assert!(matches!(near.send(&[Segment::new(b"x")], false), Sent::Failed(_)));
    }

    #[test]
    fn a_lingering_close_ends_when_the_peer_has_taken_everything_or_time_is_over() {
        for reads in [true, false] {
            let (near, far) = pair();
            assert!(near.allow_zero_copy());
            let data = vec![7; 8 << 20];
            let (Sent::Bytes(taken), true) = near.send_zero_copy(&[Segment::new(&data)]) else {
                panic!("there is room")
            };
            let mut held = Held::new(1);
            held.push(data, Vec::new());
            let mut lingering = LingeringClose::new(near, held, 0);
            if reads {
                assert_eq!(read_all(&far, taken), vec![7; taken]);
            }
            let until = Instant::now() + Duration::from_secs(20);
            let now_ns = if reads { 1 } else { LINGER_NS };
            while !lingering.is_over(now_ns) {
                assert!(Instant::now() < until, "not over");
                std::thread::yield_now();
            }
        }
    }

    /// A held buffer; its pool has the bytes again once it is freed.
    fn held_buffer(pool: &Pool, awaited_count: u32) -> Held {
        let mut held = Held::new(awaited_count);
        held.push(vec![1; 100], vec![Payload::Buffer(pool.take(4096).unwrap())]);
        held
    }

    #[test]
    fn what_is_held_is_freed_after_its_last_notice_and_leaked_before() {
        let pool = Pool::new(1).unwrap();
        let mut held = held_buffer(&pool, 3);
        held.on_notice(2);
        held.on_notice(1);
        drop(held);
        assert_eq!(pool.free_bytes(), pool.capacity_bytes());
        let mut held = held_buffer(&pool, 3);
        held.on_notice(2);
        drop(held);
        assert_eq!(pool.free_bytes(), pool.capacity_bytes() - 4096, "one notice is missing");
    }

    #[test]
    fn connections_of_a_reactor_that_ends_are_reset_and_their_notices_awaited() {
        let pool = Pool::new(1).unwrap();
        let (near, far) = pair();
        assert!(near.allow_zero_copy());
        let buffer = pool.take(memory::BLOCK_BYTES_MAX).unwrap();
        let mut count = 0;
        while let (Sent::Bytes(_), is_referred) = near.send_zero_copy(&[Segment::new(&buffer)]) {
            count += u32::from(is_referred);
        }
        let mut held = Held::new(count);
        held.push(Vec::new(), vec![Payload::Buffer(buffer)]);
        LingeringClose::end_all(vec![LingeringClose::new(near, held, 0)]);
        assert_eq!(pool.free_bytes(), pool.capacity_bytes(), "the kernel has given notice");
        drop(far);
    }

    #[test]
    fn only_known_routes_within_the_machine_stay_there() {
        let stays = |local: &str, peer: &str| {
            stays_on_this_machine(Some(local.parse().unwrap()), Some(peer.parse().unwrap()))
        };
        assert!(stays("127.0.0.1:1", "127.0.0.2:2") && stays("[::1]:1", "[::1]:2"));
        assert!(stays("192.0.2.1:1", "192.0.2.1:2") && stays("[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:2"));
        assert!(!stays("192.0.2.1:1", "192.0.2.2:2"));
        assert!(!stays_on_this_machine(None, None));
    }

    /// Puts a control message into `control`, as the kernel does.
    fn message(control: &mut Control, level: i32, kind: i32, error: libc::sock_extended_err) -> libc::msghdr {
        let length = u32::try_from(size_of_val(&error)).unwrap();
        // SAFETY: all zeroes is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: a calculation.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as _;
        // SAFETY: the control buffer is aligned as headers are, has room for one with this error, and nothing else
        // refers to it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().write_unaligned(error);
        }
        message
    }

    #[test]
    fn of_control_messages_only_notices_are_taken_for_such() {
        let notice = libc::sock_extended_err {
            ee_errno: 0,
            ee_origin: ORIGIN_ZERO_COPY,
            ee_type: 0,
            ee_code: CODE_COPIED,
            ee_pad: 0,
            ee_info: 3,
            ee_data: 5,
        };
        let told = |level, kind, error| {
            let mut control = Control([0; CONTROL_BYTES]);
            notice_of(&message(&mut control, level, kind, error))
        };
        let expected = Notice { first: 3, last: 5, is_copied: true };
        assert_eq!(told(libc::SOL_IP, libc::IP_RECVERR, notice), Some(expected));
        assert_eq!(told(libc::SOL_IPV6, libc::IPV6_RECVERR, notice), Some(expected));
        let whole = libc::sock_extended_err { ee_code: 0, ..notice };
        assert!(!told(libc::SOL_IP, libc::IP_RECVERR, whole).unwrap().is_copied);
        assert_eq!(told(libc::SOL_SOCKET, libc::IP_RECVERR, notice), None);
        let unreachable = libc::sock_extended_err { ee_errno: 113, ee_origin: 2, ..notice };
        assert_eq!(told(libc::SOL_IP, libc::IP_RECVERR, unreachable), None);
        // One that is cut short, and none at all.
        let mut control = Control([0; CONTROL_BYTES]);
        let mut cut = message(&mut control, libc::SOL_IP, libc::IP_RECVERR, notice);
        cut.msg_controllen = 20;
        // SAFETY: as above; the header is within what is left.
        unsafe { (*libc::CMSG_FIRSTHDR(&raw const cut)).cmsg_len = 20 };
        assert_eq!(notice_of(&cut), None);
        cut.msg_controllen = 0;
        assert_eq!(notice_of(&cut), None);
    }

    #[test]
    fn numbers_of_sends_wrap() {
        let notice = Notice { first: u32::MAX, last: 1, is_copied: false };
        assert_eq!(notice.send_count(), 3);
    }
}
