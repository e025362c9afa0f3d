//! A target of the kernel or of SPDK that a study server has started, which serves a file of the server.

use std::net::IpAddr;
use std::sync::Arc;

use host::Address;
use load::account::Account;

use super::connection::ServerConnection;
use super::protocol::{Reply, Request, data_address};
use super::target::RemoteAccount;
use crate::error::Error;
use crate::file_target_kind::FileTargetKind;

/// A running target. It ends with this value.
#[derive(Debug)]
pub(crate) struct RemoteFileTarget {
    server: Arc<ServerConnection>,
    number: u32,
    address: Address,
}

impl RemoteFileTarget {
    /// Has the server's file of this size served, by SPDK's target with threads on this number of the server's cores.
    ///
    /// # Errors
    /// The server lacks the program or the kernel's modules, refuses or is lost.
    pub(crate) fn start(
        server: &Arc<ServerConnection>,
        kind: FileTargetKind,
        bytes: u64,
        core_count: u32,
    ) -> Result<Self, Error> {
        let announced: IpAddr = server.machine().data_address;
        match server.request(&Request::StartFileTarget { kind, bytes, core_count })? {
            Reply::FileTargetStarted { target: number, address } => {
                let address = data_address(&address, announced).ok_or_else(|| server.confused())?;
                Ok(Self { server: Arc::clone(server), number, address })
            }
            _ => Err(server.confused()),
        }
    }

    /// Its address, with its subsystem.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The account of its process, or of its machine.
    pub(crate) fn account(&self) -> Arc<dyn Account> {
        Arc::new(RemoteAccount::new(&self.server, self.number))
    }
}

impl Drop for RemoteFileTarget {
    fn drop(&mut self) {
        // With a server that is lost it has ended.
        let _ = self.server.request(&Request::Stop { target: self.number });
    }
}

/// Checks that a server can serve a file by this kind of target. Returns facts about the target for the reader.
///
/// # Errors
/// The requirements on the server's machine.
pub(crate) fn check(server: &ServerConnection, kind: FileTargetKind) -> Result<Option<String>, String> {
    match server.request(&Request::FileTarget { kind }) {
        Ok(Reply::FileTarget { needs: None, described }) => Ok(described),
        Ok(Reply::FileTarget { needs: Some(needs), .. }) => {
            Err(format!("{needs}, on the targets' machine, {}", server.address().ip()))
        }
        Ok(_) => Err(server.confused().to_string()),
        Err(error) => Err(error.to_string()),
    }
}
