//! The plain-socket ceiling between two machines: the study has the near end, its server the far one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use load::ceiling::far_end::{FarAccount, Key, RemoteFarEnd, measure_at};
use load::ceiling::{CeilingResult, CeilingSpec};
use serde::de::DeserializeOwned;

use super::connection::ServerConnection;
use super::protocol::{Request, StartCeiling, ceiling_key_of};
use crate::error::Error;

/// Measures with the far end on the server's machine. The calling thread is the near end.
pub(crate) fn measure(server: &Arc<ServerConnection>, spec: &CeilingSpec) -> Result<CeilingResult, Error> {
    let place = start(server, spec)?;
    let mut far = ServerFarEnd { server, failure: None, is_ended: false };
    let measured = measure_at(place, spec, &mut far);
    let failure = far.failure.take();
    measured.map_err(|error| failure.unwrap_or_else(|| Error::system("the ceiling", error)))
}

/// Starts the far end. Returns where it listens, and the key of its connections.
fn start(server: &Arc<ServerConnection>, spec: &CeilingSpec) -> Result<(SocketAddr, Key), Error> {
    let request = Request::StartCeiling(StartCeiling {
        depth: spec.depth,
        connections: spec.connections.max(1),
        io_bytes: spec.io_bytes,
        memory_bytes: spec.memory_bytes as u64,
        far_memory_bytes: spec.far_memory_bytes as u64,
        tls: spec.tls.map(Into::into),
        warm_up: spec.warm_up,
        sleeps: spec.far_sleeps,
    });
    let (address, key): (String, String) = server.request(&request)?;
    let key = ceiling_key_of(&key).ok_or_else(|| server.failed("it gave no key of a ceiling"))?;
    Ok((server.socket_address(&address)?, key))
}

/// The far end on the server's machine. It ends with this value.
struct ServerFarEnd<'a> {
    server: &'a ServerConnection,
    /// The error of the server.
    failure: Option<Error>,
    is_ended: bool,
}

impl ServerFarEnd<'_> {
    fn ask<Answer: DeserializeOwned>(&mut self, request: &Request) -> io::Result<Answer> {
        self.server.request(request).map_err(|error| {
            let told = io::Error::other(error.to_string());
            self.failure.get_or_insert(error);
            told
        })
    }
}

impl RemoteFarEnd for ServerFarEnd<'_> {
    fn await_ready(&mut self) -> io::Result<()> {
        self.ask(&Request::AwaitCeiling)
    }

    fn end(&mut self) -> io::Result<FarAccount> {
        self.is_ended = true;
        self.ask(&Request::EndCeiling)
    }
}

impl Drop for ServerFarEnd<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            // With a server that is lost the far end has ended.
            let _ = self.server.request::<FarAccount>(&Request::EndCeiling);
        }
    }
}
