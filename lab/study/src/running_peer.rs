//! Another server to compare with, on the machine of the targets.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

use load::account::Account;

use crate::bench::Bench;
use crate::error::Error;
use crate::peers::{Peer, free_place};
use crate::remote::program::{peer_version, start_peer};

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

/// A running peer, on this machine or on that of a study server. It ends with this value.
#[derive(Debug)]
pub(crate) struct RunningPeer {
    /// Where it listens.
    pub(crate) place: SocketAddr,
    /// The account of its process.
    pub(crate) account: Arc<dyn Account>,
    _process: Box<dyn Any + Send>,
}

impl RunningPeer {
    /// Starts the server on the target's core, with one thread; values are held in `memory_mib`.
    ///
    /// # Errors
    /// The server does not listen in time.
    pub(crate) fn start(peer: &Peer, bench: &Bench, memory_mib: u32) -> Result<Self, Error> {
        if let Some(server) = &bench.server {
            let (place, there) = start_peer(server, peer.kind, memory_mib)?;
            return Ok(Self { place, account: there.account(), _process: Box::new(there) });
        }
        let core = bench.cores.map(|cores| cores.target);
        let here = peer.start(free_place()?, core.as_slice(), memory_mib)?;
        Ok(Self { place: here.place, account: here.account(), _process: Box::new(here) })
    }
}
