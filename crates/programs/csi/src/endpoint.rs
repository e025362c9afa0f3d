//! The driver's socket: a Unix socket of its user, and gRPC on it until a signal ends the driver.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use linux::private_socket::PrivateSocket;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::route::Router;
use crate::services::Services;

/// Threads for calls: several volumes of a node are formatted and mounted at one time.
const CALL_COUNT_MAX: usize = 32;

/// Requests of one connection at one time.
const STREAM_COUNT_MAX: u32 = 64;

/// Parses `unix:PATH`.
pub(crate) fn parse(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix:").map(|rest| rest.strip_prefix("//").unwrap_or(rest)).unwrap_or(text);
    match Path::new(path) {
        path if path.is_absolute() && !text.contains("://") || text.starts_with("unix:///") => {
            Ok(path.to_owned())
        }
        _ => {
            Err("write unix:PATH with an absolute path: callers of the interface are on the same machine"
                .into())
        }
    }
}

/// Serves the driver's socket until SIGTERM or SIGINT; calls under way are finished.
///
/// # Errors
/// There is no socket.
pub(crate) fn serve(socket: &PrivateSocket, services: Arc<Services>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .max_blocking_threads(CALL_COUNT_MAX)
        .build();
    let runtime = runtime.context("the runtime does not start")?;
    runtime.block_on(async {
        let listener = socket.listener().try_clone()?;
        listener.set_nonblocking(true)?;
        let (mut terminated, mut interrupted) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let end = async move {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = interrupted.recv() => {}
            }
            tracing::info!("driver ends");
        };
        let connections = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener)?);
        let connections = connections.filter(|connection| connection.as_ref().is_ok_and(is_permitted));
        let server = Server::builder().max_concurrent_streams(STREAM_COUNT_MAX);
        server.serve_with_incoming_shutdown(Router(services), connections, end).await?;
        Ok(())
    })
}

/// Whether the other end is this user or root. The mode of the socket says the same; a directory may have been changed since.
fn is_permitted(connection: &UnixStream) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let is_ours = connection.peer_cred().is_ok_and(|peer| [user, 0].contains(&peer.uid()));
    if !is_ours {
        tracing::warn!("driver's socket: a process of another user was refused");
    }
    is_ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_paths_of_sockets() {
        for text in ["unix:/run/csi.sock", "unix:///run/csi.sock", "/run/csi.sock"] {
            assert_eq!(parse(text), Ok("/run/csi.sock".into()), "{text}");
        }
        for text in ["", "unix:csi.sock", "tcp://0.0.0.0:10000", "unix://csi.sock", "csi.sock", "unix:"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
