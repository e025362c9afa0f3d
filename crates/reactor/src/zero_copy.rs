//! Sends that leave their bytes where they lie: the kernel reads them when the packets leave, and again when it repeats them, and
//! says in a [`Notice`] when it is done with them, and whether it has copied them after all (`MSG_ZEROCOPY`).
//!
//! Nothing here can touch memory that it should not: the kernel holds the pages until then, whoever unmaps them. But what is written
//! there before the notice may be what the peer gets. Whoever sends so keeps the bytes as they are.
//!
//! Both engines, and hosts without any, send by plain calls, so this is a flag of theirs and not an operation of a ring
//! (docs/design/socket-path.md).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::segment::{Payload, Segment};
use crate::socket::{Sent, Socket, send_message};

/// The kernel is done with the bytes of some sends, numbered from 0 in the order in which they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The first of them.
    pub first: u32,
    /// The last of them; numbers wrap.
    pub last: u32,
    /// The kernel has copied the bytes, which is dearer than if it had been asked to.
    pub is_copied: bool,
}

impl Notice {
    /// Sends that it is about.
    #[must_use]
    pub fn send_count(&self) -> u32 {
        self.last.wrapping_sub(self.first).wrapping_add(1)
    }
}

/// What the kernel may still read when a connection is given up.
#[derive(Debug, Default)]
pub struct Held {
    /// Headers.
    pub headers: Vec<Vec<u8>>,
    /// Data.
    pub payloads: Vec<Payload>,
    /// Notices outstanding, counted in sends.
    pub awaited_count: u32,
}

/// Linux: the kernel fell back to copying.
const CODE_COPIED: u8 = 1;

/// Linux: notices of sends, not errors.
const ORIGIN_ZERO_COPY: u8 = 5;

/// A control message of an error, with room for an address that nobody wants.
const CONTROL_BYTES: usize = 128;

/// The least length of a control message with a `sock_extended_err`.
#[allow(clippy::cast_possible_truncation, reason = "a few bytes")]
// SAFETY: a calculation.
const ERROR_MESSAGE_BYTES: usize =
    unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as libc::c_uint) } as usize;

#[repr(align(8))]
struct Control([u8; CONTROL_BYTES]);

impl Socket {
    /// Lets sends leave their bytes where they lie. Says whether the kernel does that on this socket.
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

    /// As [`send`](Socket::send), but the bytes that are taken stay where they lie, and must stay as they are, until a [`Notice`]
    /// comes for this send. Says whether one will: where the kernel may hold no more pages for us it is a plain send.
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
            // SAFETY: the control buffer is as long as is said, aligned as such messages are, and lives through the call.
            let result = unsafe { libc::recvmsg(self.as_fd().as_raw_fd(), &raw mut message, flags) };
            if result < 0 {
                if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return None;
            }
            // Whatever else is reported there (ICMP, which nobody asked for) tells nothing of ours.
            if let Some(notice) = notice_of(&message) {
                return Some(notice);
            }
        }
    }

    /// Breaks the connection, keeping the socket: the kernel forgets what is not sent, tells the peer, and gives notice of what it held.
    pub fn abort(&self) {
        let _ = sockopt::set_socket_linger(self, Some(Duration::ZERO));
        // SAFETY: all zeroes is a valid `sockaddr`, and none that a socket could be connected to: AF_UNSPEC.
        let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
        let length = libc::socklen_t::try_from(size_of_val(&nowhere)).expect("sixteen");
        // SAFETY: the address lives through the call. A socket whose connection is broken already has none to break.
        unsafe { libc::connect(self.as_fd().as_raw_fd(), &raw const nowhere, length) };
    }
}

/// What the control messages of one receive from the error queue say.
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

/// Whether a connection is known not to leave this machine: there the kernel copies in any case.
#[must_use]
pub fn stays_on_this_machine(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> bool {
    let (Some(local), Some(peer)) = (local, peer) else { return false };
    let (local, peer) = (local.ip().to_canonical(), peer.ip().to_canonical());
    peer.is_loopback() || local == peer
}

/// How long the kernel may go on sending what it was given on a connection that we have closed, ns.
const PARTING_NS: u64 = 2_000_000_000;

/// How often notices of such connections are looked for, ns.
const LOOK_NS: u64 = 1_000_000;

/// A connection that is closed for its user, while the kernel still reads what it sends.
#[derive(Debug)]
pub(crate) struct Parting {
    socket: Option<Socket>,
    held: Option<Held>,
    until_ns: u64,
    is_aborted: bool,
}

impl Parting {
    /// Tells the peer that nothing more will be sent.
    pub(crate) fn new(socket: Socket, held: Held, now_ns: u64) -> Self {
        socket.finish();
        let until_ns = now_ns.saturating_add(PARTING_NS);
        Self { socket: Some(socket), held: Some(held), until_ns, is_aborted: false }
    }

    /// Whether the kernel is done with everything. Loses its patience with a peer that does not take it.
    pub(crate) fn is_over(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.until_ns && !std::mem::replace(&mut self.is_aborted, true) {
            self.abort();
        }
        self.take_notices()
    }

    /// When to look again, ns.
    pub(crate) fn next_look_ns(now_ns: u64) -> u64 {
        now_ns.saturating_add(LOOK_NS)
    }

    fn abort(&self) {
        if let Some(socket) = &self.socket {
            socket.abort();
        }
    }

    fn take_notices(&mut self) -> bool {
        let (Some(socket), Some(held)) = (&self.socket, &mut self.held) else { return true };
        while held.awaited_count > 0
            && let Some(notice) = socket.next_notice()
        {
            held.awaited_count = held.awaited_count.saturating_sub(notice.send_count());
        }
        held.awaited_count == 0
    }
}

impl Drop for Parting {
    /// What the kernel does not let go of even now is never used for anything else.
    fn drop(&mut self) {
        if self.take_notices() {
            return;
        }
        self.abort();
        if !self.take_notices() {
            std::mem::forget(self.held.take());
        }
    }
}

/// Waits until the kernel has given notice of so many sends of a connection that is aborted here. Says whether it has.
#[must_use]
pub fn abort_and_await(socket: &Socket, mut awaited_count: u32, patience: Duration) -> bool {
    socket.abort();
    let until = Instant::now() + patience;
    loop {
        while awaited_count > 0
            && let Some(notice) = socket.next_notice()
        {
            awaited_count = awaited_count.saturating_sub(notice.send_count());
        }
        if awaited_count == 0 || Instant::now() >= until {
            return awaited_count == 0;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Aborts connections whose users are about to go without having closed them.
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
        assert!(abort_and_await(&near, count, Duration::from_secs(20)));
        assert!(matches!(near.send(&[Segment::new(b"x")], false), Sent::Failed(_)));
    }

    #[test]
    fn a_parting_ends_when_the_peer_has_taken_everything_or_time_is_over() {
        for reads in [true, false] {
            let (near, far) = pair();
            assert!(near.allow_zero_copy());
            let data = vec![7; 8 << 20];
            let (Sent::Bytes(taken), true) = near.send_zero_copy(&[Segment::new(&data)]) else {
                panic!("there is room")
            };
            let held = Held { headers: vec![data], payloads: Vec::new(), awaited_count: 1 };
            let mut parting = Parting::new(near, held, 0);
            if reads {
                assert_eq!(read_all(&far, taken), vec![7; taken]);
            }
            let until = Instant::now() + Duration::from_secs(20);
            let now_ns = if reads { 1 } else { PARTING_NS };
            while !parting.is_over(now_ns) {
                assert!(Instant::now() < until, "not over");
                std::thread::yield_now();
            }
        }
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
        // SAFETY: the control buffer is aligned as headers are, has room for one with this error, and nobody else refers to it.
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
