//! A relay that adds TLS, for raw hosts, which have none.

use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use host::security::tls::{ByteSocket, Session, Stream};
use memory::Segment;
use reactor::{Received, Sent};

use crate::setup::PATIENCE;

/// A socket that does not block.
struct Socket(TcpStream);

impl Socket {
    fn new(stream: TcpStream) -> Self {
        stream.set_nonblocking(true).expect("an option of sockets");
        stream.set_nodelay(true).expect("an option of TCP");
        Self(stream)
    }
}

impl ByteSocket for Socket {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        match self.0.read(into) {
            Ok(0) => Received::Ended,
            Ok(count) => Received::Bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Received::Dry,
            Err(error) => Received::Failed(error),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        match self.0.write(bytes) {
            Ok(count) => Sent::Bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Sent::Blocked,
            Err(error) => Sent::Failed(error),
        }
    }
}

/// A relay for one connection.
pub(crate) struct TlsRelay {
    pub(crate) address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl TlsRelay {
    /// To a target with TLS; `session` is that of the host.
    pub(crate) fn to_target(target: SocketAddr, session: Session) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("a bound socket");
        let thread = std::thread::spawn(move || {
            let (host, _) = listener.accept().expect("a connection");
            let target = TcpStream::connect(target).expect("the target listens");
            forward((Stream::new(session), Socket::new(target)), Socket::new(host));
        });
        Self { address, thread: Some(thread) }
    }
}

impl Drop for TlsRelay {
    fn drop(&mut self) {
        // Wakes a thread that still accepts.
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Negotiates, then carries bytes both ways until either side ends, and what is left to the other.
fn forward(mut secure: (Stream, Socket), mut clear: Socket) {
    let until = Instant::now() + 2 * PATIENCE;
    while !secure.0.handshake(&mut secure.1).is_ok_and(|is_complete| is_complete) {
        if secure.0.failure().is_some() || Instant::now() > until {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut buffer = vec![0; 256 << 10];
    let (mut to_clear, mut to_secure) = (Vec::new(), Vec::new());
    let (mut has_ended, mut is_over) = (false, false);
    while Instant::now() < until && !(is_over && to_clear.is_empty() && to_secure.is_empty()) {
        let mut worked = false;
        if !is_over {
            let received = secure.0.receive(&mut [IoSliceMut::new(&mut buffer)], &mut secure.1);
            worked |= keep(&received, &buffer, &mut to_clear, &mut is_over);
            if !has_ended {
                let received = clear.receive(&mut buffer);
                worked |= keep(&received, &buffer, &mut to_secure, &mut has_ended);
            }
        }
        if !to_clear.is_empty() {
            match clear.send(&to_clear) {
                Sent::Bytes(count) => drop(to_clear.drain(..count)),
                Sent::Blocked => {}
                Sent::Failed(_) => return,
            }
        }
        if !to_secure.is_empty() {
            match secure.0.send(&[Segment::new(&to_secure)], &mut secure.1) {
                Sent::Bytes(count) => drop(to_secure.drain(..count)),
                Sent::Blocked => {}
                Sent::Failed(_) => return,
            }
        }
        is_over |= has_ended && to_secure.is_empty();
        if !worked {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    secure.0.close(&mut secure.1);
    let _ = secure.1.0.shutdown(Shutdown::Write);
    let _ = clear.0.shutdown(Shutdown::Both);
}

/// Keeps what was received. Returns whether there was anything.
fn keep(received: &Received, buffer: &[u8], kept: &mut Vec<u8>, has_ended: &mut bool) -> bool {
    match received {
        Received::Bytes(count) => kept.extend_from_slice(&buffer[..*count]),
        Received::Dry => return false,
        Received::Ended | Received::Failed(_) => *has_ended = true,
    }
    true
}
