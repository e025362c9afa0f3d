//! The control port: the calls of the control socket, over TCP with TLS 1.3, for callers on other machines. Each has a name and
//! a pre-shared key; nobody else gets as far as a request.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use security::tls::{BlockingStream, Keyring, Session};
use subsystem::audit::Caller;

use crate::rpc::refused;
use crate::socket::{CONNECTION_COUNT_MAX, LOOK_TIME, SEND_TIME, STACK_BYTES, Service, converse, say};

/// Connections in a handshake at one time. One more closes the oldest: peers without a key cannot keep callers out.
pub const HANDSHAKE_COUNT_MAX: usize = 64;

/// Time for a handshake.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// Limit of the reason of a refusal, bytes, which may have text of the peer.
const REASON_BYTES_MAX: usize = 512;

/// Time between two connections: peers without a key get a part of one core.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(1);

/// An open control port. Its connections and its thread stay until the process ends.
#[derive(Debug)]
pub struct ControlPort {
    listener: TcpListener,
    address: SocketAddr,
    pub(crate) handshake_time: Duration,
    state: Arc<Mutex<State>>,
}

/// What the port's threads share.
#[derive(Debug)]
struct State {
    callers: Arc<Keyring>,
    /// By their numbers, which count up.
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

/// An open connection.
#[derive(Debug)]
struct Connection {
    /// Another descriptor of it, to end it.
    socket: TcpStream,
    /// Whether its peer has proved to be a caller.
    is_caller: bool,
}

impl Connection {
    fn end(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl State {
    fn count(&self, are_callers: bool) -> usize {
        self.connections.values().filter(|connection| connection.is_caller == are_callers).count()
    }

    /// Takes a connection in. The oldest one whose peer is still unknown may have to go.
    fn add(&mut self, socket: TcpStream) -> u64 {
        if self.count(false) >= HANDSHAKE_COUNT_MAX {
            let oldest = self.connections.iter().find(|(_, connection)| !connection.is_caller);
            if let Some((number, connection)) = oldest.map(|(number, connection)| (*number, connection)) {
                connection.end();
                self.connections.remove(&number);
            }
        }
        let number = self.next;
        self.next += 1;
        self.connections.insert(number, Connection { socket, is_caller: false });
        number
    }

    /// The peer of a connection has proved to be a caller. Returns whether it may stay.
    fn admit(&mut self, number: u64) -> bool {
        let is_room = self.count(true) < CONNECTION_COUNT_MAX;
        match self.connections.get_mut(&number) {
            Some(connection) if is_room => {
                connection.is_caller = true;
                true
            }
            _ => false,
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection, with an end of the time for its handshake.
#[derive(Debug)]
struct Timed {
    socket: TcpStream,
    until: Option<Instant>,
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // A peer that sends byte by byte would go on for ever.
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl ControlPort {
    /// Listens for these callers.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn open(address: SocketAddr, callers: Keyring) -> Result<Self, String> {
        security::tls::prepare().map_err(|error| error.to_string())?;
        let bound = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(|error| format!("cannot listen on {address}: {error}"))?;
        let state = State { callers: Arc::new(callers), connections: BTreeMap::new(), next: 0 };
        let state = Arc::new(Mutex::new(state));
        Ok(Self { listener, address, handshake_time: HANDSHAKE_TIME, state })
    }

    /// The bound address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes other keys. If they differ, all connections end: callers that still have a key connect again. Returns whether
    /// they differ.
    pub fn replace(&self, callers: Keyring) -> bool {
        let mut state = lock(&self.state);
        if state.callers.has_same_keys(&callers) {
            return false;
        }
        state.callers = Arc::new(callers);
        state.connections.values().for_each(Connection::end);
        true
    }

    /// Serves connections on threads of their own, until the process ends.
    ///
    /// # Errors
    /// There is no thread.
    pub fn serve(&self, service: Arc<impl Service>) -> io::Result<()> {
        let (listener, state) = (self.listener.try_clone()?, Arc::clone(&self.state));
        let handshake_time = self.handshake_time;
        let accept = move || {
            // Reactors go first where cores are short.
            if let Err(error) = linux::lower_priority() {
                tracing::debug!(%error, "control port: its threads keep their priority");
            }
            loop {
                match listener.accept() {
                    Ok((socket, peer)) => start((socket, peer, handshake_time), &service, &state),
                    Err(error) => {
                        tracing::warn!(%error, "control port: a connection could not be accepted");
                        std::thread::sleep(LOOK_TIME);
                    }
                }
                std::thread::sleep(ACCEPT_INTERVAL);
            }
        };
        std::thread::Builder::new().name("control-port".into()).stack_size(STACK_BYTES).spawn(accept)?;
        Ok(())
    }
}

fn start(
    (socket, peer, handshake_time): (TcpStream, SocketAddr, Duration),
    service: &Arc<impl Service>,
    state: &Arc<Mutex<State>>,
) {
    let prepared = socket
        .set_read_timeout(Some(LOOK_TIME))
        .and_then(|()| socket.set_write_timeout(Some(SEND_TIME)))
        .and_then(|()| socket.set_nodelay(true))
        .and_then(|()| socket.try_clone());
    let Ok(other) = prepared else { return };
    // With one lock: a connection has the keys that are in force, or is ended when they change.
    let (number, callers) = {
        let mut state = lock(state);
        (state.add(other), Arc::clone(&state.callers))
    };
    let (service, shared) = (Arc::clone(service), Arc::clone(state));
    let thread = std::thread::Builder::new().name("control-port".into()).stack_size(STACK_BYTES);
    let served = thread.spawn(move || {
        let session = Session::control_port(callers);
        let timed = Timed { socket, until: Some(Instant::now() + handshake_time) };
        let mut stream = BlockingStream::new(session, timed);
        match shake_hands(&mut stream) {
            Ok(name) if lock(&shared).admit(number) => {
                stream.below_mut().until = None;
                converse(&mut stream, &Caller::Named { name, peer }, &*service);
            }
            Ok(_) => say(&mut stream, &refused("too many connections: close one, and try again")),
            Err(why) => {
                tracing::warn!(%peer, "control port: a connection was refused: {why}");
                service.refuse_peer(peer, &why);
            }
        }
        lock(&shared).connections.remove(&number);
    });
    if let Err(error) = served {
        tracing::warn!(%error, "control port: there is no thread for a connection");
        lock(state).connections.remove(&number);
    }
}

/// Completes the handshake. Returns the name of the caller, or why there is none.
fn shake_hands(stream: &mut BlockingStream<Timed>) -> Result<String, String> {
    loop {
        match stream.handshake() {
            Ok(true) => break,
            Ok(false) if stream.below_mut().until.is_none_or(|until| Instant::now() < until) => {}
            Ok(false) => return Err("its TLS handshake was not complete in time".into()),
            // What it claims to be, if its key is wrong.
            Err(error) => {
                let mut why = match stream.claimed() {
                    None => error.to_string(),
                    Some(claimed) => format!("{error}; it claimed the identity {claimed}"),
                };
                why.truncate(why.floor_char_boundary(REASON_BYTES_MAX));
                return Err(why);
            }
        }
    }
    let name = stream.established().map(|established| established.identity.host.to_string());
    name.ok_or_else(|| "it has no name".into())
}
