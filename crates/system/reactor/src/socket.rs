//! TCP and Unix sockets, never blocking: receive into the caller's buffers, send segments.

use std::fs;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::busy_poll::{Arrival, BusyPoll, SocketPolling, poll_socket};
use crate::max_segment::{MaxSegment, sent_segment_bytes};
use linux::socket_option::ms_since_arrival;
use linux::unix_listener;
use memory::Segment;

/// Segments that the kernel takes in one call (`UIO_MAXIOV`).
pub const SEGMENT_COUNT_MAX: usize = 1024;

/// The result of a receive.
#[derive(Debug)]
pub enum Received {
    /// This many bytes, at least one.
    Bytes(usize),
    /// Nothing has arrived.
    Dry,
    /// The peer has ended its sending direction.
    Ended,
    /// The connection is broken.
    Failed(io::Error),
}

/// The result of a send.
#[derive(Debug)]
pub enum Sent {
    /// This many bytes went out; the rest did not fit.
    Bytes(usize),
    /// The socket buffer is full.
    Blocked,
    /// The connection is broken.
    Failed(io::Error),
}

/// A connected socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    address: ListenAddress,
    /// Whether this process alone has the listener, which then ends with it.
    is_own: bool,
}

/// The address of a listener.
#[derive(Debug)]
enum ListenAddress {
    Ip(SocketAddr),
    /// The path of a Unix socket, whose file is removed with the listener.
    Path(PathBuf),
}

/// Prefix of the names of congestion controls that pace, and the kernel's names of those that do not.
const PACING: &str = "bbr";
const UNPACED: [&str; 2] = ["cubic", "reno"];

/// Receive buffer over loopback, bytes, and the least size preferred to the kernel's own choice.
const LOOPBACK_BYTES: usize = 4 << 20;
const LOOPBACK_BYTES_MIN: usize = 1 << 20;

/// Tunes a socket for loopback if `address` is on this machine (docs/design/socket-path.md). Sockets of this crate are
/// tuned already; this is for others that should behave alike.
pub fn suit_loopback(fd: &impl AsFd, address: Option<SocketAddr>) {
    let fd = fd.as_fd();
    if address.is_some_and(|address| address.ip().is_loopback()) {
        widen(fd);
        unpace(fd);
    }
}

/// Opens the receive window at once. The kernel's own choice begins at 64 KiB and grows with what is read in a round
/// trip, which over loopback is so short that deep lanes stay in small sends for good.
fn widen(fd: BorrowedFd<'_>) {
    static ALLOWED: OnceLock<usize> = OnceLock::new();
    let allowed = *ALLOWED.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    });
    if allowed >= LOOPBACK_BYTES_MIN {
        // Without it everything works, too.
        let _ = sockopt::set_socket_recv_buffer_size(fd, LOOPBACK_BYTES.min(allowed));
    }
}

/// Selects a congestion control without pacing, which on loopback only adds timers.
fn unpace(fd: BorrowedFd<'_>) {
    if sockopt::tcp_congestion(fd).is_ok_and(|name| name.starts_with(PACING)) {
        // If neither is there, or allowed, everything is only slower.
        let _ = UNPACED.iter().find(|name| sockopt::set_tcp_congestion(fd, name).is_ok());
    }
}

impl Socket {
    /// Takes over a connected socket: makes it non-blocking, without Nagle's delay.
    ///
    /// # Errors
    /// If the socket is dead already.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        match sockopt::set_tcp_nodelay(&fd, true) {
            // A Unix socket has no such delay.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOPROTOOPT) => {}
            Err(errno) => return Err(errno.into()),
        }
        suit_loopback(&fd, rustix::net::getsockname(&fd).ok().and_then(|address| address.try_into().ok()));
        Ok(Self { fd })
    }

    /// Starts to connect to `address`; done when the socket becomes writable, see [`connected`](Self::connected).
    ///
    /// # Errors
    /// An error that the kernel reports at once: no route, no memory.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::connect_with(address, None)
    }

    /// As [`connect`](Self::connect), with a limit to the segments of both directions.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(address: SocketAddr, limit: Option<MaxSegment>) -> io::Result<Self> {
        let fd = stream_socket(&address)?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        if let Some(limit) = limit {
            limit.set(fd.as_fd())?;
        }
        suit_loopback(&fd, Some(address));
        match rustix::net::connect(&fd, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(Self { fd }),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The outcome of the connect.
    ///
    /// # Errors
    /// Why it failed: refused, unreachable, timed out.
    pub fn connected(&self) -> io::Result<()> {
        Ok(sockopt::socket_error(&self.fd)??)
    }

    /// Receives into `into`.
    #[inline]
    pub fn receive(&self, into: &mut [u8]) -> Received {
        received(|| {
            rustix::net::recv(&self.fd, &mut *into, rustix::net::RecvFlags::DONTWAIT).map(|(count, _)| count)
        })
    }

    /// Receives into several buffers, in order.
    #[inline]
    pub fn receive_vectored(&self, into: &mut [IoSliceMut<'_>]) -> Received {
        received(|| rustix::io::readv(&self.fd, into))
    }

    /// Sends as much of `segments` as fits, in order: at most [`SEGMENT_COUNT_MAX`] of them are looked at.
    /// `more` announces to the kernel that more follows at once.
    #[inline]
    pub fn send(&self, segments: &[Segment<'_>], more: bool) -> Sent {
        send_message(self.as_fd(), segments, if more { libc::MSG_MORE } else { 0 })
    }

    /// Enables busy polling: a receive that finds nothing polls the device's queue.
    pub fn set_busy_poll(&self, wanted: BusyPoll) -> SocketPolling {
        poll_socket(self.as_fd(), wanted)
    }

    /// The device queue and core of the last packet.
    #[must_use]
    pub fn arrival(&self) -> Arrival {
        Arrival::of(self.as_fd())
    }

    /// Data of a full segment that this end sends, bytes; 0 if the kernel does not report it, as for a Unix socket.
    #[must_use]
    pub fn sent_segment_bytes(&self) -> u32 {
        sent_segment_bytes(self.as_fd()).unwrap_or(0)
    }

    /// Time since the last bytes of the peer arrived; 0 if the kernel does not report it, as for a Unix socket.
    #[must_use]
    pub fn since_arrival(&self) -> Duration {
        ms_since_arrival(self.as_fd()).map(|ms| Duration::from_millis(ms.into())).unwrap_or_default()
    }

    /// Ends the sending direction: the peer sees the end of the stream.
    pub fn finish(&self) {
        // Fails only if the connection is broken already.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// The other end's address.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        let address = rustix::net::getpeername(&self.fd)?.ok_or(io::ErrorKind::NotConnected)?;
        Ok(address.try_into()?)
    }

    /// This end's address: for a wildcard listener, the one the peer chose.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn local(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.fd)?.try_into()?)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.fd
    }
}

impl Listener {
    /// A listener of a simulated network, whose descriptor never has a connection.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn simulated(address: SocketAddr) -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let address = ListenAddress::Ip(address);
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC)?, address, is_own: false })
    }

    /// Connections that wait for `accept`, enough for many hosts that return at once after a restart (wire §28.28).
    const BACKLOG: i32 = 4096;

    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// Address in use, not ours, or not allowed.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::bind_with(address, false)
    }

    /// As [`bind`](Self::bind), also on an address that no interface has yet: connections come in once one has it.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_ahead(address: SocketAddr) -> io::Result<Self> {
        Self::bind_with(address, true)
    }

    fn bind_with(address: SocketAddr, is_ahead: bool) -> io::Result<Self> {
        let fd = stream_socket(&address)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        match address {
            SocketAddr::V4(_) if is_ahead => sockopt::set_ip_freebind(&fd, true)?,
            SocketAddr::V6(_) if is_ahead => sockopt::set_ipv6_freebind(&fd, true)?,
            _ => {}
        }
        if address.is_ipv6() {
            // One listener, one family: "[::]" and "0.0.0.0" may both be asked for.
            sockopt::set_ipv6_v6only(&fd, true)?;
        }
        rustix::net::bind(&fd, &address)?;
        // An accepted socket begins with the options of its listener.
        suit_loopback(&fd, Some(address));
        rustix::net::listen(&fd, Self::BACKLOG)?;
        let mut listener = Self::new(fd)?;
        listener.is_own = true;
        Ok(listener)
    }

    /// Listens on a Unix socket whose file has these permissions. A file that a killed process has left is replaced;
    /// waits up to `patience` for one that is in use: after a process was killed, the kernel keeps the listeners that
    /// its ring watched until the ring is torn down.
    ///
    /// # Errors
    /// The file cannot be made, is no socket, or belongs to a listener; the path is longer than 107 bytes.
    pub fn bind_path_in_time(path: &Path, mode: u32, patience: Duration) -> io::Result<Self> {
        in_time(patience, || Self::bind_path(path, mode))
    }

    fn bind_path(path: &Path, mode: u32) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = unix_listener::listen(path, mode, flags, Self::BACKLOG)?;
        Ok(Self { fd, address: ListenAddress::Path(path.to_owned()), is_own: true })
    }

    /// Takes over a socket that listens already (socket activation).
    ///
    /// # Errors
    /// If it is not an IP socket.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let address = ListenAddress::Ip(rustix::net::getsockname(&fd)?.try_into()?);
        Ok(Self { fd, address, is_own: false })
    }

    /// The address with the actual port; an unspecified one for a Unix socket.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match self.address {
            ListenAddress::Ip(address) => address,
            ListenAddress::Path(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        }
    }

    /// The file of a Unix socket.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.address {
            ListenAddress::Ip(_) => None,
            ListenAddress::Path(path) => Some(path),
        }
    }

    /// Takes a waiting connection.
    ///
    /// # Errors
    /// No descriptor left, or no memory. Connections that died while they waited are passed over, a few in one call.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        accepted(|| rustix::net::accept_with(&self.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC))
    }
}

impl Drop for Listener {
    /// Shuts the listener down: a ring that watched the descriptor may hold it for a while, and the port must be free
    /// at once.
    fn drop(&mut self) {
        // While it listens nobody else takes the name.
        if let ListenAddress::Path(path) = &self.address {
            let _ = fs::remove_file(path);
        }
        if self.is_own {
            let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Calls `bind` until the address is not in use any more, or the time is over.
fn in_time(patience: Duration, bind: impl Fn() -> io::Result<Listener>) -> io::Result<Listener> {
    let until = Instant::now() + patience;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// Sends some segments with one call, which never blocks.
#[inline]
pub(crate) fn send_message(fd: BorrowedFd<'_>, segments: &[Segment<'_>], flags: libc::c_int) -> Sent {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        let sent = match segments {
            // For one, the kernel has no list to copy and check.
            [segment] => {
                let raw = segment.raw();
                // SAFETY: the segment's bytes stay mapped while `segments` is borrowed, and the kernel only reads them.
                unsafe { libc::send(fd.as_raw_fd(), raw.iov_base, raw.iov_len, flags) }
            }
            _ => {
                // SAFETY: all zeroes is a valid `msghdr`: no address, no control data.
                let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
                message.msg_iov = segments.as_ptr().cast_mut().cast();
                message.msg_iovlen = segments.len().min(SEGMENT_COUNT_MAX);
                // SAFETY: `Segment` is an iovec over bytes that stay mapped while `segments` is borrowed, and the
                // kernel only reads them.
                unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) }
            }
        };
        if let Ok(sent) = usize::try_from(sent) {
            return Sent::Bytes(sent);
        }
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock => Sent::Blocked,
            io::ErrorKind::Interrupted => continue,
            _ => Sent::Failed(error),
        };
    }
}

/// A non-blocking TCP socket of the address's family.
fn stream_socket(address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family(address), SocketType::STREAM, flags, None)
}

fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET }
}

/// Connections that died while they waited to be accepted, and are passed over in one call.
const PASSED_OVER_COUNT_MAX: usize = 16;

/// Accepts a connection, and passes over those that are gone.
fn accepted<T>(mut accept: impl FnMut() -> rustix::io::Result<T>) -> io::Result<Option<T>> {
    use rustix::io::Errno;
    for _ in 0..PASSED_OVER_COUNT_MAX {
        match accept() {
            Ok(connection) => return Ok(Some(connection)),
            Err(Errno::AGAIN) => return Ok(None),
            // Linux reports an error of the new connection here, also one of its network.
            Err(
                Errno::INTR
                | Errno::CONNABORTED
                | Errno::PROTO
                | Errno::NETDOWN
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH,
            ) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // The listener is still readable, if there are more.
    Ok(None)
}

/// Receives. A call that a signal interrupts does not show whether the socket is empty: if it counted as empty, the
/// socket would not be read again before more arrives.
#[inline]
fn received(mut receive: impl FnMut() -> rustix::io::Result<usize>) -> Received {
    use rustix::io::Errno;
    loop {
        return match receive() {
            Ok(0) => Received::Ended,
            Ok(count) => Received::Bytes(count),
            Err(Errno::AGAIN) => Received::Dry,
            Err(Errno::INTR) => continue,
            Err(errno) => Received::Failed(errno.into()),
        };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    pub(crate) fn pair() -> (Socket, Socket) {
        pair_with("127.0.0.1:0", None)
    }

    fn pair_with(address: &str, limit: Option<MaxSegment>) -> (Socket, Socket) {
        let listener = Listener::bind(address.parse().unwrap()).unwrap();
        let near = Socket::connect_with(listener.address(), limit).unwrap();
        let far = loop {
            if let Some(fd) = listener.accept().unwrap() {
                break Socket::new(fd).unwrap();
            }
        };
        near.connected().unwrap();
        (near, far)
    }

    fn receive(socket: &Socket, into: &mut [u8]) -> Received {
        loop {
            match socket.receive(into) {
                Received::Dry => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    /// A receive is no arrival.
    #[test]
    fn a_maximum_segment_limits_both_directions() {
        let limit = MaxSegment::new(1000);
        for address in ["127.0.0.1:0", "[::1]:0"] {
            if Listener::bind(address.parse().unwrap()).is_err() {
                eprintln!("skipped: no {address}");
                continue;
            }
            let (near, far) = pair_with(address, limit);
            let both = [near.sent_segment_bytes(), far.sent_segment_bytes()];
            // Options, timestamps above all, take up to 40 bytes of it.
            assert!(both.iter().all(|bytes| (960..=1000).contains(bytes)), "{address}: {both:?}");
            let (near, far) = pair_with(address, None);
            assert!(near.sent_segment_bytes() > 1000 && far.sent_segment_bytes() > 1000, "{address}");
        }
    }

    #[test]
    fn the_kernel_knows_when_bytes_have_arrived() {
        let (near, far) = pair();
        let begin = Instant::now();
        assert!(matches!(near.send(&[Segment::new(b"ab")], false), Sent::Bytes(2)));
        assert!(matches!(receive(&far, &mut [0]), Received::Bytes(1)));
        std::thread::sleep(Duration::from_millis(200));
        assert!(matches!(receive(&far, &mut [0]), Received::Bytes(1)));
        // The kernel counts in ticks of up to 10 ms, and an idle core may be late.
        let (since, tolerance) = (far.since_arrival(), Duration::from_millis(100));
        assert!(since >= tolerance && since <= begin.elapsed() + tolerance, "{since:?}");
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(Socket::new(unix.into()).unwrap().since_arrival(), Duration::ZERO);
    }

    #[test]
    fn nothing_paces_over_loopback() {
        let (near, far) = pair();
        for socket in [&near.fd, &far.fd] {
            assert!(!sockopt::tcp_congestion(socket).unwrap().starts_with(PACING));
        }
        let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let own = sockopt::tcp_congestion(&fd).unwrap();
        let paces = sockopt::set_tcp_congestion(&fd, PACING).is_ok();
        suit_loopback(&fd, Some("192.0.2.1:4420".parse().unwrap()));
        assert_eq!(
            sockopt::tcp_congestion(&fd).unwrap(),
            if paces { PACING } else { own.as_str() },
            "far away"
        );
        suit_loopback(&fd, Some("127.0.0.1:4420".parse().unwrap()));
        assert!(!sockopt::tcp_congestion(&fd).unwrap().starts_with(PACING));
    }

    #[test]
    fn segments_arrive_in_order_and_the_end_is_seen() {
        let (near, far) = pair();
        assert!(matches!(far.receive(&mut [0; 8]), Received::Dry));
        let sent = near.send(&[Segment::new(b"ab"), Segment::EMPTY, Segment::new(b"cde")], false);
        assert!(matches!(sent, Sent::Bytes(5)));
        let mut bytes = [0; 8];
        assert!(matches!(receive(&far, &mut bytes), Received::Bytes(5)));
        assert_eq!(&bytes[..5], b"abcde");
        near.finish();
        assert!(matches!(receive(&far, &mut bytes), Received::Ended));
    }

    #[test]
    fn what_interrupts_a_receive_or_an_accept_is_passed_over() {
        use rustix::io::Errno;
        // One after the other; the last one again and again.
        fn each<T: Copy>(results: Vec<rustix::io::Result<T>>) -> impl FnMut() -> rustix::io::Result<T> {
            let mut at = 0;
            move || {
                at += 1;
                results[(at - 1).min(results.len() - 1)]
            }
        }
        assert!(matches!(
            received(each(vec![Err(Errno::INTR), Err(Errno::INTR), Ok(5)])),
            Received::Bytes(5)
        ));
        assert!(matches!(received(each(vec![Err(Errno::INTR), Err(Errno::AGAIN)])), Received::Dry));
        assert!(matches!(received(each(vec![Err(Errno::CONNRESET)])), Received::Failed(_)));
        let passing = [Errno::INTR, Errno::CONNABORTED, Errno::PROTO, Errno::HOSTUNREACH, Errno::NETUNREACH];
        let one_after_all = passing.into_iter().map(Err).chain([Ok(7)]).collect();
        assert_eq!(accepted(each(one_after_all)).unwrap(), Some(7));
        for errno in passing {
            assert_eq!(accepted::<u8>(each(vec![Err(errno)])).unwrap(), None, "{errno}: others wait as well");
        }
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::PERM] {
            assert_eq!(
                accepted::<u8>(each(vec![Err(errno)])).unwrap_err().raw_os_error(),
                Some(errno.raw_os_error())
            );
        }
    }

    #[test]
    fn a_full_socket_takes_a_part_and_then_blocks() {
        let (near, _far) = pair();
        let block = vec![0; 1 << 20];
        let mut taken = 0;
        loop {
            match near.send(&[Segment::new(&block)], false) {
                Sent::Bytes(count) => taken += count,
                Sent::Blocked => break,
                Sent::Failed(error) => panic!("{error}"),
            }
        }
        assert!(taken > 0);
    }

    #[test]
    fn a_refused_connect_says_so() {
        let free = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap().address();
        let error = match Socket::connect(free) {
            Ok(socket) => socket.connected().unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_busy_port_is_an_error() {
        let first = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!(Listener::bind(first.address()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_listener_replaces_the_socket_that_a_killed_process_left_and_nothing_else() {
        let bind = |path: &Path| Listener::bind_path_in_time(path, 0o640, Duration::from_millis(20));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let first = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
        // Without its end, as after SIGKILL.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = bind(&path).unwrap();
        let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let accepted = Socket::new(listener.accept().unwrap().unwrap()).unwrap();
        assert!(matches!(accepted.send(&[Segment::new(b"a")], false), Sent::Bytes(1)));
        drop((client, listener));
        fs::write(&path, "a file").unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
        assert_eq!(bind(&directory.path().join("no/socket")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(bind(&directory.path().join("x".repeat(108))).is_err());
    }
}
