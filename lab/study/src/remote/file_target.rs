//! A target of the kernel or of SPDK that a study server has started, which serves a file of the server.

use std::sync::Arc;

use host::Address;

use super::connection::ServerConnection;
use super::protocol::{Request, Started};
use super::target::Numbered;
use crate::error::Error;
use crate::file_target_kind::FileTargetKind;

/// Has the server's file of this size served, by SPDK's target with threads on this number of the server's cores. Returns the
/// target's address, with its subsystem.
///
/// # Errors
/// The server lacks the program or the kernel's modules, refuses or is lost.
pub(crate) fn start(
    server: &Arc<ServerConnection>,
    kind: FileTargetKind,
    bytes: u64,
    core_count: u32,
) -> Result<(Address, Numbered), Error> {
    let started: Started = server.request(&Request::StartFileTarget { kind, bytes, core_count })?;
    let numbered = Numbered::new(server, started.target);
    Ok((server.target_address(&started.address)?, numbered))
}

/// Checks that a server can serve a file by this kind of target. Returns facts about the target for the reader.
///
/// # Errors
/// The requirements on the server's machine.
pub(crate) fn check(server: &ServerConnection, kind: FileTargetKind) -> Result<Option<String>, String> {
    let facts: Result<Option<String>, String> =
        server.request(&Request::FileTarget { kind }).map_err(|error| error.to_string())?;
    facts.map_err(|needs| format!("{needs}, on the targets' machine, {}", server.address().ip()))
}
