//! The NBD server: listeners, and a thread for each connection, with bounded numbers of both.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use host::{Association, Lane};
use linux::private_socket::PrivateSocket;
use linux::socket_option::peer;
use rustix::net::Shutdown;
use security::tls::ServerCertificate;

use crate::buffers::Buffer;
use crate::client_socket::{ClientSocket, is_gone};
use crate::connection::{self, ConnectionError};
use crate::exports::{ExportSettings, Exports, NoExport};
use crate::lanes::connect_lane;
use crate::memory_pressure::keep_memory;
use crate::nbd::{Export, Handshake, Progress, Session, TlsPolicy};

/// Time for a whole handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(60);

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket.
    Unix(PrivateSocket),
    /// A TCP port.
    Tcp(TcpListener),
}

impl Listener {
    /// The NBD URI of an export here, for clients with TLS or without.
    ///
    /// # Errors
    /// The address of the socket cannot be read.
    pub fn uri(&self, export: &str, has_tls: bool) -> io::Result<String> {
        let export = encoded(export);
        let scheme = if has_tls { "nbds" } else { "nbd" };
        Ok(match self {
            Self::Unix(socket) => {
                let path = encoded(&socket.path().to_string_lossy());
                format!("{scheme}+unix:///{export}?socket={path}")
            }
            Self::Tcp(listener) => format!("{scheme}://{}/{export}", listener.local_addr()?),
        })
    }
}

/// A text as a part of a URI.
fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// TLS of a server.
#[derive(Clone, Debug)]
pub struct NbdTls {
    /// The certificate with which it answers, and its demands on those of clients.
    pub certificate: Arc<ServerCertificate>,
    /// Whether clients without TLS are refused.
    pub is_required: bool,
}

/// A server of the namespaces of one association. Clones share it.
#[derive(Clone, Debug)]
pub struct NbdServer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    exports: Exports,
    tls: Option<NbdTls>,
    connection_count_max: usize,
    is_ending: AtomicBool,
    connections: Mutex<Connections>,
    has_ended: Condvar,
}

/// The connections that are open.
#[derive(Debug, Default)]
struct Connections {
    next: u64,
    open: BTreeMap<u64, Arc<Client>>,
}

/// A client's socket.
#[derive(Debug)]
enum Client {
    Unix(UnixStream),
    Tcp(TcpStream, SocketAddr),
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(socket) => match peer(socket).ok().and_then(|peer| peer.pid) {
                Some(pid) => write!(f, "process {pid}"),
                None => f.write_str("a process"),
            },
            Self::Tcp(_, peer) => peer.fmt(f),
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket, _) => socket.as_fd(),
        }
    }
}

/// Why a connection came to no transmission.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("{0}")]
    Protocol(#[from] crate::nbd::HandshakeViolation),
    #[error("{0}")]
    Socket(io::Error),
    #[error("{0}")]
    Tls(security::tls::Failure),
    #[error("bytes arrived before TLS has begun that was asked for")]
    Injected,
    #[error("it took longer than {} s", HANDSHAKE_TIME.as_secs())]
    Late,
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut {
            return Self::Late;
        }
        match error.downcast() {
            Ok(failure) => Self::Tls(failure),
            Err(error) => Self::Socket(error),
        }
    }
}

impl NbdServer {
    /// A server of the namespace that the association's address names, or of all its block namespaces. Each connection takes
    /// a lane: the association's options have as many.
    ///
    /// # Errors
    /// [`NoExport`].
    pub fn new(
        association: Association,
        settings: ExportSettings,
        tls: Option<NbdTls>,
    ) -> Result<Self, NoExport> {
        let connection_count_max = usize::from(association.options().lanes);
        let shared = Shared {
            exports: Exports::new(association, settings)?,
            tls,
            connection_count_max,
            is_ending: AtomicBool::new(false),
            connections: Mutex::default(),
            has_ended: Condvar::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The exports of this moment.
    #[must_use]
    pub fn exports(&self) -> Vec<Export> {
        self.shared.exports.list().into_iter().map(|(export, _)| export).collect()
    }

    /// Accepts connections on a thread of its own, until the process ends.
    ///
    /// # Errors
    /// There is no thread.
    pub fn serve(&self, listener: Arc<Listener>) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let accept = move || {
            loop {
                let accepted = match &*listener {
                    Listener::Unix(socket) => {
                        socket.listener().accept().map(|(socket, _)| Client::Unix(socket))
                    }
                    Listener::Tcp(listener) => listener.accept().and_then(|(socket, peer)| {
                        socket.set_nodelay(true)?;
                        // A client that is gone without a word gives its place free.
                        rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
                        Ok(Client::Tcp(socket, peer))
                    }),
                };
                match accepted {
                    Ok(client) => shared.start(client),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        tracing::warn!(%error, "NBD connection could not be accepted");
                        std::thread::sleep(ACCEPT_PAUSE);
                    }
                }
            }
        };
        std::thread::Builder::new().name("nbd-accept".into()).spawn(accept)?;
        Ok(())
    }

    /// Ends: no request is read from now on, and each connection closes once its requests are answered. Waits for that, at most
    /// `limit`. Returns whether all connections have ended.
    #[must_use]
    pub fn end(&self, limit: Duration) -> bool {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        let connections = self.shared.lock();
        for client in connections.open.values() {
            // Wakes the thread; a socket that is closed already needs no waking.
            let _ = rustix::net::shutdown(client.as_fd(), Shutdown::Read);
        }
        let waited =
            self.shared.has_ended.wait_timeout_while(connections, limit, |open| !open.open.is_empty());
        let (connections, _) = waited.unwrap_or_else(PoisonError::into_inner);
        connections.open.is_empty()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, client: Client) {
        let client = Arc::new(client);
        let mut connections = self.lock();
        if self.is_ending.load(Ordering::Relaxed) {
            return;
        }
        if connections.open.len() >= self.connection_count_max {
            let limit = self.connection_count_max;
            tracing::warn!(%client, limit, "NBD connection refused: there are as many as --connections");
            return;
        }
        let number = connections.next;
        connections.next += 1;
        connections.open.insert(number, Arc::clone(&client));
        drop(connections);
        let guard = OpenConnection { shared: Arc::clone(self), number };
        let thread = std::thread::Builder::new().name(format!("nbd-{number}"));
        let served = thread.spawn(move || {
            keep_memory();
            let guard = guard;
            guard.shared.converse(&client);
        });
        if let Err(error) = served {
            tracing::warn!(%error, "NBD connection has no thread");
        }
    }

    fn converse(&self, client: &Client) {
        let begun = ClientSocket::new(client.as_fd())
            .map_err(HandshakeError::from)
            .and_then(|socket| self.shake_hands(client, socket));
        match begun {
            Ok(Some(begun)) => {
                let Begun { socket, session, namespace, mut lane, rest } = begun;
                let export = session.export.name.clone();
                tracing::debug!(%client, export, form = ?session.form, "NBD connection begins");
                let (epoch, member) = self.exports.join(namespace.nsid());
                lane.share_flush_epoch(epoch);
                let is_ending = &self.is_ending;
                let disk = (self.exports.association(), namespace);
                match connection::serve(socket, session, disk, member, &mut lane, &rest, is_ending) {
                    Ok(()) => tracing::debug!(%client, export, "NBD connection ends"),
                    Err(ConnectionError::Socket(error)) => {
                        tracing::info!(%client, export, %error, "NBD client is gone");
                    }
                    Err(error) => tracing::warn!(%client, export, %error, "NBD connection ends"),
                }
            }
            Ok(None) => tracing::debug!(%client, "NBD client has only asked"),
            Err(HandshakeError::Socket(error)) => {
                tracing::debug!(%client, %error, "NBD client is gone during its handshake");
            }
            Err(error) => tracing::warn!(%client, %error, "NBD handshake failed"),
        }
        let _ = rustix::net::shutdown(client.as_fd(), Shutdown::Both);
    }

    /// The handshake. `None` if the client ends it.
    fn shake_hands<'a>(
        &self,
        client: &Client,
        mut socket: ClientSocket<'a>,
    ) -> Result<Option<Begun<'a>>, HandshakeError> {
        let until = Instant::now() + HANDSHAKE_TIME;
        let policy = match &self.tls {
            None => TlsPolicy::Off,
            Some(NbdTls { is_required: false, .. }) => TlsPolicy::Allowed,
            Some(NbdTls { is_required: true, .. }) => TlsPolicy::Required,
        };
        let mut handshake = Handshake::new(policy);
        let mut bytes = vec![0; 4096];
        loop {
            socket.write_all(&handshake.take_output(), until)?;
            let count = socket.read(&mut bytes, until)?;
            if count == 0 {
                return Ok(None);
            }
            let mut input = &bytes[..count];
            loop {
                let listed = self.exports.list();
                let exports: Vec<Export> = listed.iter().map(|(export, _)| export.clone()).collect();
                match handshake.on_bytes(&mut input, &exports)? {
                    Progress::Waiting => break,
                    Progress::StartTls => {
                        // What was not encrypted must not be taken for what is.
                        if !input.is_empty() {
                            return Err(HandshakeError::Injected);
                        }
                        socket.write_all(&handshake.take_output(), until)?;
                        if let Some(tls) = &self.tls {
                            socket.start_tls(Arc::clone(&tls.certificate));
                        }
                        handshake.on_tls();
                        break;
                    }
                    Progress::Ended => {
                        socket.write_all(&handshake.take_output(), until)?;
                        socket.close();
                        return Ok(None);
                    }
                    Progress::Chosen { index } => {
                        let Some((export, namespace)) = listed.into_iter().nth(index) else { break };
                        let is_unwanted =
                            || self.is_ending.load(Ordering::Relaxed) || is_gone(client.as_fd());
                        let lane = match connect_lane(self.exports.association(), is_unwanted, until) {
                            Ok(lane) => lane,
                            Err(error) => {
                                tracing::warn!(%client, %error, "NBD connection has no lane");
                                let association = self.exports.association();
                                let why = if association.is_up() {
                                    "the bridge has no queue of the target left"
                                } else {
                                    "the bridge has lost the target"
                                };
                                handshake.refuse(why, association.over().is_some());
                                continue;
                            }
                        };
                        let Some(session) = handshake.accept(export) else { break };
                        socket.write_all(&handshake.take_output(), until)?;
                        return Ok(Some(Begun { socket, session, namespace, lane, rest: input.to_vec() }));
                    }
                }
            }
        }
    }
}

/// What a handshake has agreed on.
struct Begun<'a> {
    socket: ClientSocket<'a>,
    session: Session,
    namespace: host::Namespace,
    lane: Lane<Buffer>,
    /// Bytes that have arrived behind it.
    rest: Vec<u8>,
}

/// Removes a connection from the list, whatever ends its thread.
struct OpenConnection {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.shared.lock().open.remove(&self.number);
        self.shared.has_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_has_the_name_and_the_place() {
        let listener = Listener::Tcp(TcpListener::bind("127.0.0.1:0").unwrap());
        let uri = listener.uri("a disk", false).unwrap();
        assert!(uri.starts_with("nbd://127.0.0.1:") && uri.ends_with("/a%20disk"), "{uri}");
        assert!(listener.uri("", true).unwrap().starts_with("nbds://"));
        assert_eq!(encoded("/tmp/a?b"), "/tmp/a%3Fb");
    }
}
