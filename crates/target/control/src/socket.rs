//! The control socket: who may use it, and a thread for each connection, with bounded numbers of both. The
//! [port](crate::port) for callers on other machines has the same conversations.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use linux::private_socket::PrivateSocket;
use linux::socket_option::{Peer, peer};
use serde_json::Value;
use subsystem::audit::{Caller, Process};

use crate::error::CallError;
use crate::rpc::{Call, Splitter, answer, refused, unusable};

/// Connections at one time.
pub const CONNECTION_COUNT_MAX: usize = 32;

/// Time for a caller to take a piece of a response.
pub(crate) const SEND_TIME: Duration = Duration::from_secs(5);

/// Interval at which a connection is checked that sends nothing.
pub(crate) const LOOK_TIME: Duration = Duration::from_secs(1);

/// Stack of a connection's thread: JSON of the greatest depth fits.
pub(crate) const STACK_BYTES: usize = 1 << 20;

/// An open control socket. Its file is removed with it.
#[derive(Debug)]
pub struct ControlSocket(PrivateSocket);

/// What connections call.
pub trait Service: Send + Sync + 'static {
    /// Carries out a call.
    ///
    /// # Errors
    /// Why it is refused.
    fn perform(&self, call: Call, caller: &Caller) -> Result<Value, CallError>;

    /// Notes a process that may not call.
    fn refuse(&self, caller: Caller);

    /// Notes a peer that may not call, and why.
    fn refuse_peer(&self, peer: SocketAddr, reason: &str);
}

impl ControlSocket {
    /// Opens the socket for this user and root only. Replaces the file of a target that is gone.
    ///
    /// # Errors
    /// Why it cannot be there.
    pub fn open(path: &Path) -> Result<Self, String> {
        PrivateSocket::open(path, "target").map(Self)
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Serves connections on threads of their own, until the process ends.
    ///
    /// # Errors
    /// There is no thread.
    pub fn serve(&self, service: Arc<impl Service>) -> io::Result<()> {
        let listener = self.0.listener().try_clone()?;
        let count = Arc::new(AtomicUsize::new(0));
        let accept = move || {
            for connection in listener.incoming() {
                match connection {
                    Ok(connection) => start(connection, &service, &count),
                    // No descriptor is left, say.
                    Err(error) => {
                        tracing::warn!(%error, "control socket: a connection could not be accepted");
                        std::thread::sleep(LOOK_TIME);
                    }
                }
            }
        };
        std::thread::Builder::new().name("control".into()).stack_size(STACK_BYTES).spawn(accept)?;
        Ok(())
    }
}

/// The process at the other end.
fn process_of(connection: &UnixStream) -> io::Result<Process> {
    let Peer { pid, uid, gid } = peer(connection)?;
    Ok(Process { pid: pid.unwrap_or(0), uid, gid })
}

fn start(connection: UnixStream, service: &Arc<impl Service>, count: &Arc<AtomicUsize>) {
    let Ok(process) = process_of(&connection) else { return };
    let _ = connection.set_write_timeout(Some(SEND_TIME));
    let user = rustix::process::geteuid().as_raw();
    if process.uid != user && process.uid != 0 {
        tracing::warn!(
            uid = process.uid,
            pid = process.pid,
            "control socket: a process of another user was refused"
        );
        service.refuse(Caller::Process(process));
        return say(&mut &connection, &refused("only the target's user and root may use this socket"));
    }
    if count.fetch_add(1, Ordering::Relaxed) >= CONNECTION_COUNT_MAX {
        count.fetch_sub(1, Ordering::Relaxed);
        return say(&mut &connection, &refused("too many connections: close one, and try again"));
    }
    let (service, counted) = (Arc::clone(service), Arc::clone(count));
    let thread = std::thread::Builder::new().name("control".into()).stack_size(STACK_BYTES);
    let served = thread.spawn(move || {
        let _ = connection.set_read_timeout(Some(LOOK_TIME));
        converse(&mut &connection, &Caller::Process(process), &*service);
        counted.fetch_sub(1, Ordering::Relaxed);
    });
    if let Err(error) = served {
        tracing::warn!(%error, "control socket: there is no thread for a connection");
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A caller that reads nothing loses its connection.
pub(crate) fn say(connection: &mut impl Write, bytes: &[u8]) {
    let _ = connection.write_all(bytes).and_then(|()| connection.write_all(b"\n"));
}

/// Serves a connection until its end. Reads of it end after [`LOOK_TIME`], and writes after [`SEND_TIME`].
pub(crate) fn converse(connection: &mut (impl Read + Write), caller: &Caller, service: &impl Service) {
    let mut splitter = Splitter::default();
    let mut buffer = vec![0; 16 << 10];
    loop {
        loop {
            match splitter.next_value() {
                Ok(Some(bytes)) => {
                    let response = answer(&bytes, |call| service.perform(call, caller));
                    let Some(mut response) = response else { continue };
                    response.push(b'\n');
                    if connection.write_all(&response).is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(why) => return say(connection, &unusable(&why)),
            }
        }
        if splitter.is_late(Instant::now()) {
            return say(connection, &refused("the rest of the request did not come in time"));
        }
        match connection.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => splitter.add(&buffer[..count]),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) => {}
            Err(_) => return,
        }
    }
}
