//! A server of the memcached or redis protocol: nvlane, and others to compare with on the machine of the targets.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

use load::account::Account;

use crate::bench::Bench;
use crate::error::Error;
use crate::peers::{Peer, free_place};
use crate::remote::Request;
use crate::remote::target::Numbered;
use crate::served::Served;
use crate::text_load::{self, Protocol, TextLoad, TextResult};
use crate::text_sockets::TextSockets;

/// Version of its program there.
///
/// # Errors
/// [`Error::Lacking`]: the program is missing or too old.
pub(crate) fn version(peer: &Peer, bench: &Bench) -> Result<String, Error> {
    match &bench.server {
        Some(server) => server
            .request(&Request::PeerVersion { kind: peer.kind })
            .map_err(|error| server.as_lacking(error)),
        None => peer.version(),
    }
}

/// A running server, on this machine or on that of a study server. It ends with this value.
#[derive(Debug)]
pub(crate) struct RunningPeer {
    /// Where it listens.
    pub(crate) place: SocketAddr,
    pub(crate) protocol: Protocol,
    /// The account of its process.
    pub(crate) account: Arc<dyn Account>,
    _process: Box<dyn Any + Send + Sync>,
}

impl RunningPeer {
    /// Starts the server on the target's core, with one thread; values are held in `memory_mib`.
    pub(crate) fn start(peer: &Peer, bench: &Bench, memory_mib: u32) -> Result<Self, Error> {
        let protocol = peer.protocol;
        if let Some(server) = &bench.server {
            let request = Request::StartPeer { kind: peer.kind, memory_mib };
            let (there, started) = Numbered::start(server, &request)?;
            let place = server.socket_address(&started.address)?;
            return Ok(Self { place, protocol, account: there.account(), _process: Box::new(there) });
        }
        let core = bench.cores.map(|cores| cores.target);
        Self::here(peer, core.as_slice(), memory_mib)
    }

    /// Starts the server on this machine, with a thread for each of these cores.
    pub(crate) fn here(peer: &Peer, cores: &[usize], memory_mib: u32) -> Result<Self, Error> {
        let here = peer.start(free_place()?, cores, memory_mib)?;
        let (place, account) = (here.place, here.account());
        Ok(Self { place, protocol: peer.protocol, account, _process: Box::new(here) })
    }

    /// A target of nvlane that serves memcached.
    pub(crate) fn ours(served: Served) -> Result<Self, Error> {
        let (place, account) = (served.memcached()?, served.account());
        Ok(Self { place, protocol: Protocol::Memcached, account, _process: Box::new(served) })
    }

    /// Plain sockets.
    pub(crate) fn sockets(sockets: TextSockets) -> Self {
        let (place, account) = (sockets.place, sockets.account());
        Self { place, protocol: Protocol::Memcached, account, _process: Box::new(sockets) }
    }

    /// Runs a load on it from this core. Returns also its processor time while the load was measured, ns.
    pub(crate) fn run(
        &self,
        load: &TextLoad,
        core: Option<usize>,
        bench: &Bench,
    ) -> Result<(TextResult, u64), Error> {
        let mut edges = Vec::new();
        let on_edge = || {
            let reading = self.account.read();
            let reading =
                reading.ok_or_else(|| Error::Target("has no account of its processor time".into()))?;
            edges.push(reading.run_ns());
            Ok(())
        };
        let result = text_load::run(self.place, self.protocol, load, core, on_edge, &|| bench.is_stopped())?;
        let [before, after] = edges[..] else { return Err(Error::Stopped) };
        Ok((result, after.saturating_sub(before).max(1)))
    }
}
