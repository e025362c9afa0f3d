//! Programs that a study server runs beside its targets: other servers to compare with, and one that reads memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use load::disturbance::Loss;

use super::connection::ServerConnection;
use super::protocol::{Request, StartMemoryReader, Started};
use super::target::Numbered;
use crate::error::Error;
use crate::memory_load::Access;
use crate::peers::PeerKind;

/// Starts a memcached or redis on the server's machine. Returns where it listens.
///
/// # Errors
/// The server lacks the program, refuses or is lost.
pub(crate) fn start_peer(
    server: &Arc<ServerConnection>,
    kind: PeerKind,
    memory_mib: u32,
) -> Result<(SocketAddr, Numbered), Error> {
    let started: Started = server.request(&Request::StartPeer { kind, memory_mib })?;
    let numbered = Numbered::new(server, started.target);
    Ok((server.socket_address(&started.address)?, numbered))
}

/// Version of a program on the server's machine.
///
/// # Errors
/// [`Error::Lacking`]: it is missing there, or too old.
pub(crate) fn peer_version(server: &ServerConnection, kind: PeerKind) -> Result<String, Error> {
    server.request(&Request::PeerVersion { kind }).map_err(|error| server.as_lacking(error))
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
        server.request(&Request::StartMemoryReader(start)).map(|()| Self(server))
    }

    /// Bytes per second, and the loss of the thread, once its time is over.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn end(self) -> Result<(f64, Option<Loss>), Error> {
        self.0.request(&Request::EndMemoryReader)
    }
}
