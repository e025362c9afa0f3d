//! Another server to compare with, on the machine of the targets.

use std::net::SocketAddr;
use std::sync::Arc;

use load::account::Account;

use crate::bench::Bench;
use crate::error::Error;
use crate::peers::{Peer, PeerServer, free_place};
use crate::remote::program::{RemotePeer, peer_version};

/// Version of its program there.
///
/// # Errors
/// [`Error::Lacking`]: the program is missing or too old.
pub(crate) fn version(peer: &Peer, bench: &Bench) -> Result<String, Error> {
    match &bench.server {
        Some(server) => peer_version(server, peer.kind),
        None => peer.version(),
    }
}

/// A running peer. It ends with this value.
#[derive(Debug)]
pub(crate) enum RunningPeer {
    /// A process of this machine.
    Local(PeerServer),
    /// A process of a study server's machine.
    Remote(RemotePeer),
}

impl RunningPeer {
    /// Starts the server on the target's core, with one thread; values are held in `memory_mib`.
    ///
    /// # Errors
    /// The server does not listen in time.
    pub(crate) fn start(peer: &Peer, bench: &Bench, memory_mib: u32) -> Result<Self, Error> {
        if let Some(server) = &bench.server {
            return RemotePeer::start(server, peer.kind, memory_mib).map(Self::Remote);
        }
        let core = bench.cores.map(|cores| cores.target);
        peer.start(free_place()?, core, memory_mib).map(Self::Local)
    }

    /// Where it listens.
    pub(crate) fn place(&self) -> SocketAddr {
        match self {
            Self::Local(server) => server.place,
            Self::Remote(server) => server.place(),
        }
    }

    /// The account of its process.
    pub(crate) fn account(&self) -> Arc<dyn Account> {
        match self {
            Self::Local(server) => server.account(),
            Self::Remote(server) => server.account(),
        }
    }
}
