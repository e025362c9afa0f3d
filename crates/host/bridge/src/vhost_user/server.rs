//! Block devices on sockets, each for one front end at a time.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use host::{Association, FlushEpoch, Namespace, Nsid};
use linux::private_socket::PrivateSocket;
use linux::socket_option::peer;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, recvmsg, shutdown};
use vhost::vhost_user::{BackendReqHandler, Error as VhostError};

use super::config::Device;
use super::session::{Session, Workers};
use super::worker::{Settings, Worker};
use crate::client_socket::is_gone;
use crate::flush_ledger::SharedFlushes;
use crate::lanes::connect_lane;

/// Time in which a queue gets its lane, while the target may be lost.
const LANE_TIME: Duration = Duration::from_secs(30);

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The message that brings the descriptor for requests to the front end.
const SET_BACKEND_REQ_FD: u32 = 21;

/// Descriptors of one message.
const DESCRIPTORS_MAX: usize = 32;

/// How a namespace is served.
#[derive(Clone, Copy, Debug)]
pub struct VhostUserSettings {
    /// Refuse what changes data.
    pub is_read_only: bool,
    /// Virtqueues that a guest may use.
    pub queues: u16,
    /// Threads, each with a lane, that serve them: queues share threads where these are fewer.
    pub threads: u16,
}

/// A namespace as a block device for virtual machines. Clones share it.
#[derive(Clone, Debug)]
pub struct VhostUserDevice {
    shared: Arc<Shared>,
}

struct Shared {
    association: Association,
    nsid: Nsid,
    settings: VhostUserSettings,
    is_ending: AtomicBool,
    flushes: Mutex<SharedFlushes>,
    front_end: Mutex<Option<FrontEnd>>,
    has_ended: Condvar,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VhostUserDevice").field("nsid", &self.nsid).finish_non_exhaustive()
    }
}

/// The front end that is connected.
struct FrontEnd {
    socket: UnixStream,
    session: Arc<Mutex<Session>>,
}

/// The process at the other end of a socket.
fn process(socket: &UnixStream) -> String {
    let process = peer(socket).ok().and_then(|peer| peer.pid);
    process.map_or_else(|| "?".to_owned(), |pid| pid.to_string())
}

impl VhostUserDevice {
    /// A namespace of the association, which has as many lanes as [`VhostUserSettings::threads`] for each device.
    ///
    /// # Errors
    /// There is no such block namespace.
    pub fn new(
        association: Association,
        nsid: Nsid,
        settings: VhostUserSettings,
    ) -> Result<Self, host::Error> {
        association.namespace(nsid)?;
        let shared = Shared {
            association,
            nsid,
            settings,
            is_ending: AtomicBool::new(false),
            flushes: Mutex::default(),
            front_end: Mutex::default(),
            has_ended: Condvar::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The namespace, as it is now.
    ///
    /// # Errors
    /// It is gone.
    pub fn namespace(&self) -> Result<Namespace, host::Error> {
        self.shared.association.namespace(self.shared.nsid)
    }

    /// Accepts front ends on a thread of its own, until the process ends.
    ///
    /// # Errors
    /// There is no thread.
    pub fn serve(&self, socket: Arc<PrivateSocket>) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let accept = move || {
            loop {
                match socket.listener().accept() {
                    Ok((front_end, _)) => shared.admit(&front_end),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        tracing::warn!(%error, "vhost-user connection could not be accepted");
                        std::thread::sleep(ACCEPT_PAUSE);
                    }
                }
            }
        };
        std::thread::Builder::new().name("vhost-accept".into()).spawn(accept)?;
        Ok(())
    }

    /// Tells the front end that the namespace has changed.
    pub fn on_changed(&self) {
        let Ok(device) = self.shared.device() else {
            tracing::warn!(namespace = %self.shared.nsid, "namespace of a block device is gone");
            return;
        };
        let session = self.shared.lock().as_ref().map(|front_end| Arc::clone(&front_end.session));
        if let Some(session) = session {
            session.lock().unwrap_or_else(PoisonError::into_inner).on_changed(device);
        }
    }

    /// Ends: no request is taken from now on, those under way are given back to the guest, and the connection closes. Waits for
    /// that, at most `limit`. Returns whether that was so.
    #[must_use]
    pub fn end(&self, limit: Duration) -> bool {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        let front_end = self.shared.lock();
        if let Some(front_end) = &*front_end {
            // Wakes the thread; a socket that is closed already needs no waking.
            let _ = shutdown(&front_end.socket, Shutdown::Read);
        }
        let waited = self.shared.has_ended.wait_timeout_while(front_end, limit, |open| open.is_some());
        let (front_end, _) = waited.unwrap_or_else(PoisonError::into_inner);
        front_end.is_none()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<FrontEnd>> {
        self.front_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device(&self) -> Result<Device, host::Error> {
        let namespace = self.association.namespace(self.nsid)?;
        let is_read_only = self.settings.is_read_only || namespace.info().is_write_protected;
        Ok(Device { namespace, is_read_only, queue_count: self.settings.queues })
    }

    /// Serves a front end on a thread of its own, if there is no other.
    fn admit(self: &Arc<Self>, socket: &UnixStream) {
        let mut front_end = self.lock();
        while let Some(other) = &*front_end {
            if !is_gone(other.socket.as_fd()) {
                tracing::warn!(
                    process = process(socket),
                    connected = process(&other.socket),
                    "vhost-user connection refused: a block device has one front end at a time"
                );
                return;
            }
            // Its last requests are still under way.
            front_end = self.has_ended.wait(front_end).unwrap_or_else(PoisonError::into_inner);
        }
        if self.is_ending.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.start(socket, &mut front_end) {
            tracing::warn!(%error, "vhost-user connection is not served");
        }
    }

    fn start(
        self: &Arc<Self>,
        socket: &UnixStream,
        front_end: &mut Option<FrontEnd>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let (epoch, member) = self.flushes.lock().unwrap_or_else(PoisonError::into_inner).join();
        let starter = Starter { shared: Arc::clone(self), socket: socket.try_clone()?, epoch };
        let session =
            Session::new(self.device()?, self.settings.threads, Box::new(starter), Arc::new(member));
        let session = Arc::new(Mutex::new(session));
        *front_end = Some(FrontEnd { socket: socket.try_clone()?, session: Arc::clone(&session) });
        let guard = Connected(Arc::clone(self));
        let socket = socket.try_clone()?;
        std::thread::Builder::new().name("vhost-control".into()).spawn(move || {
            let guard = guard;
            guard.0.converse(&socket, &session);
        })?;
        Ok(())
    }

    /// Follows the front end's messages until its end, or ours.
    fn converse(&self, socket: &UnixStream, session: &Arc<Mutex<Session>>) {
        let process = process(socket);
        tracing::info!(namespace = %self.nsid, process, "vhost-user front end is connected");
        let ended = self.follow(socket, session);
        let is_ending = self.is_ending.load(Ordering::Relaxed);
        session.lock().unwrap_or_else(PoisonError::into_inner).end(!is_ending);
        match ended {
            _ if is_ending => {}
            Ok(())
            | Err(VhostError::Disconnected | VhostError::PartialMessage | VhostError::SocketBroken(_)) => {
                tracing::info!(namespace = %self.nsid, process, "vhost-user front end is gone");
            }
            Err(error) => {
                tracing::warn!(namespace = %self.nsid, process, %error, "vhost-user connection ends");
            }
        }
        let _ = shutdown(socket, Shutdown::Both);
    }

    fn follow(&self, socket: &UnixStream, session: &Arc<Mutex<Session>>) -> Result<(), VhostError> {
        let copy = socket.try_clone().map_err(VhostError::SocketBroken)?;
        let mut handler = BackendReqHandler::from_stream(copy, Arc::clone(session));
        while let Some((message, descriptor)) = peek(socket).map_err(VhostError::SocketBroken)? {
            if self.is_ending.load(Ordering::Relaxed) {
                return Ok(());
            }
            handler.handle_request()?;
            if let (SET_BACKEND_REQ_FD, Some(descriptor)) = (message, descriptor) {
                session.lock().unwrap_or_else(PoisonError::into_inner).set_requests(descriptor);
            }
        }
        Ok(())
    }
}

/// Waits for a message, and looks at its kind and its first descriptor, without taking it from the socket. `None` at the end.
///
/// The crate vhost keeps the descriptor of requests to the front end, and sends no change of the configuration by it.
fn peek(socket: &UnixStream) -> io::Result<Option<(u32, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    loop {
        let mut kind = [0; 4];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(socket, &mut [io::IoSliceMut::new(&mut kind)], &mut ancillary, flags);
        let count = match received {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if count == 0 {
            return Ok(None);
        }
        let mut descriptors = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptor = descriptors.next().and_then(|mut descriptors| descriptors.next());
        return Ok(Some((u32::from_ne_bytes(kind), descriptor)));
    }
}

/// What starts workers of a front end.
struct Starter {
    shared: Arc<Shared>,
    socket: UnixStream,
    epoch: FlushEpoch,
}

impl Workers for Starter {
    fn start(&self, number: u16, settings: Settings) -> io::Result<Worker> {
        let (shared, epoch) = (Arc::clone(&self.shared), self.epoch.clone());
        let connect = move || {
            let is_ending = || shared.is_ending.load(Ordering::Relaxed);
            let mut lane = connect_lane(&shared.association, is_ending, Instant::now() + LANE_TIME)?;
            lane.share_flush_epoch(epoch);
            Ok(lane)
        };
        let socket = self.socket.try_clone()?;
        let on_end = move || {
            // Ends the thread that follows the front end; a socket that is closed already needs no waking.
            let _ = shutdown(&socket, Shutdown::Read);
        };
        Worker::start(format!("vhost-{}-{number}", self.shared.nsid), settings, connect, on_end)
    }
}

/// Notes that the front end is gone, whatever ends its thread.
struct Connected(Arc<Shared>);

impl Drop for Connected {
    fn drop(&mut self) {
        *self.0.lock() = None;
        self.0.has_ended.notify_all();
    }
}
