//! A namespace on a block device behind a vhost-user socket, such as an export of qemu-storage-daemon: the driver's side of
//! virtio-blk.
//!
//! One connection has all virtqueues, each of which belongs to one reactor. The driver shares a file in memory with the
//! device, which has rings, request heads and the data on its way, and nothing else of the target. Each connection has
//! another file: a device that was given up cannot touch what a later one uses.

mod front;
mod queue;
mod session;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use self::queue::QueueWire;
use self::session::Session;
use super::remote::{Connected, Remote, RemoteStore};

/// Time that a device has for a request unless configured, s: hosts with Linux wait for 30 s.
pub(crate) const VHOST_USER_DEADLINE_S_DEFAULT: u32 = 25;

/// A block device behind a vhost-user socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserPlace {
    /// The socket.
    pub socket: PathBuf,
    /// Time that the device has for a request, s.
    pub deadline_s: u32,
}

/// A namespace on a block device behind a vhost-user socket.
pub(crate) type VhostUserStore = RemoteStore<VhostUserDevice>;

/// The device, and the connection to it that its queues share.
pub(crate) struct VhostUserDevice {
    place: VhostUserPlace,
    session: Mutex<Weak<Session>>,
}

impl VhostUserDevice {
    pub(crate) fn new(place: VhostUserPlace) -> Self {
        Self { place, session: Mutex::default() }
    }
}

impl fmt::Display for VhostUserPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vhost-user:{}", self.socket.display())
    }
}

impl fmt::Display for VhostUserDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl Remote for VhostUserDevice {
    type Wire = QueueWire;

    const THREAD: &'static str = "vhost-connect";

    /// Takes a queue of the connection, or makes another connection.
    fn connect(&self, limit: Duration) -> Result<Connected<QueueWire>, String> {
        let mut current = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let session = match current.upgrade().filter(|session| session.is_up()) {
            Some(session) if session.has_queue() => session,
            other => {
                // Devices serve one connection at a time.
                if let Some(session) = other {
                    session.end();
                }
                let session = Session::connect(&self.place.socket, limit)?;
                *current = Arc::downgrade(&session);
                session
            }
        };
        let abilities = session.abilities;
        let queue = session.take_queue().ok_or("the device has no queue")?;
        Ok(Connected { wire: QueueWire::new(session, queue), abilities })
    }

    fn deadline_s(&self) -> u32 {
        self.place.deadline_s
    }

    fn bytes_now(&self) -> Option<u64> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        session.filter(|session| session.is_up())?.bytes_now()
    }
}
