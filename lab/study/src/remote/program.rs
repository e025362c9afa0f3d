//! Programs that a study server runs beside its targets: other servers to compare with, and one that reads memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use load::account::Account;
use load::disturbance::Loss;

use super::connection::ServerConnection;
use super::protocol::{Reply, Request, StartMemoryReader};
use super::target::RemoteAccount;
use crate::error::Error;
use crate::memory_load::Access;
use crate::peers::PeerKind;

/// A memcached or redis that a study server has started. It ends with this value.
#[derive(Debug)]
pub(crate) struct RemotePeer {
    server: Arc<ServerConnection>,
    number: u32,
    place: SocketAddr,
}

impl RemotePeer {
    /// Starts one on the server's machine.
    ///
    /// # Errors
    /// The server lacks the program, refuses or is lost.
    pub(crate) fn start(
        server: &Arc<ServerConnection>,
        kind: PeerKind,
        memory_mib: u32,
    ) -> Result<Self, Error> {
        match server.request(&Request::StartPeer { kind, memory_mib })? {
            Reply::PeerStarted { target: number, address } => {
                let place = server.socket_address(&address)?;
                Ok(Self { server: Arc::clone(server), number, place })
            }
            _ => Err(server.confused()),
        }
    }

    pub(crate) fn place(&self) -> SocketAddr {
        self.place
    }

    pub(crate) fn account(&self) -> Arc<dyn Account> {
        Arc::new(RemoteAccount::new(&self.server, self.number))
    }
}

impl Drop for RemotePeer {
    fn drop(&mut self) {
        // With a server that is lost it has ended.
        let _ = self.server.request(&Request::Stop { target: self.number });
    }
}

/// Version of a program on the server's machine.
///
/// # Errors
/// [`Error::Lacking`]: it is missing there, or too old.
pub(crate) fn peer_version(server: &ServerConnection, kind: PeerKind) -> Result<String, Error> {
    match server.request(&Request::PeerVersion { kind }).map_err(|error| server.as_lacking(error))? {
        Reply::PeerVersion(version) => Ok(version),
        _ => Err(server.confused()),
    }
}

/// A thread of the server that reads memory.
#[derive(Debug)]
pub(crate) struct RemoteReader<'a>(&'a ServerConnection);

impl<'a> RemoteReader<'a> {
    /// Starts to read.
    ///
    /// # Errors
    /// The server refuses or is lost.
    pub(crate) fn start(
        server: &'a ServerConnection,
        access: Access,
        (warm_up, measure): (Duration, Duration),
    ) -> Result<Self, Error> {
        let [warm_up_us, measure_us] =
            [warm_up, measure].map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let start = StartMemoryReader { access, warm_up_us, measure_us };
        match server.request(&Request::StartMemoryReader(start))? {
            Reply::MemoryReaderStarted => Ok(Self(server)),
            _ => Err(server.confused()),
        }
    }

    /// Bytes per second, and the loss of the thread, once its time is over.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn end(self) -> Result<(f64, Option<Loss>), Error> {
        match self.0.request(&Request::EndMemoryReader)? {
            Reply::MemoryRead { bytes_per_s, loss } => Ok((bytes_per_s, loss)),
            _ => Err(self.0.confused()),
        }
    }
}
