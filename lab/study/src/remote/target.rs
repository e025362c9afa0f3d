//! A target that a study server has started.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use host::Address;
use load::account::{Account, Reading};
use serde_json::Value;

use super::connection::ServerConnection;
use super::protocol::{Reply, Request, SentKeys, StartTarget};
use super::sampling::RemoteSampling;
use crate::counters::Counters;
use crate::error::Error;
use crate::served_options::{KeyFiles, ServedOptions};
use crate::steering::Steering;
use crate::target_options::NamespaceKind;

/// A running target of a study server.
#[derive(Debug)]
pub(crate) struct RemoteTarget {
    server: Arc<ServerConnection>,
    target: u32,
    address: Address,
    memcached: Option<SocketAddr>,
    is_stopped: bool,
}

impl RemoteTarget {
    /// Starts a target on the server's machine.
    ///
    /// # Errors
    /// It has options that are of this machine only, or the server refuses or is lost.
    pub(crate) fn start(server: &Arc<ServerConnection>, options: &ServedOptions) -> Result<Self, Error> {
        let lacking = || Error::Lacking("this target can only be started on the machine of the study".into());
        if !options.arguments.is_empty() || !options.launcher.is_empty() {
            return Err(lacking());
        }
        let kinds = options.namespaces.iter().map(|argument| NamespaceKind::of_argument(argument));
        let kinds = kinds.chain(options.scratch_bytes.map(|bytes| Some(NamespaceKind::Scratch { bytes })));
        let namespaces = kinds.collect::<Option<Vec<_>>>().ok_or_else(lacking)?;
        let ServedOptions { tuning, tells, core_count, first_core, .. } = *options;
        let keys = options.keys.as_ref().map(sent_keys).transpose()?;
        let memcached = options.memcached.is_some();
        let start = StartTarget { namespaces, tuning, tells, core_count, first_core, memcached, keys };
        let (target, address, memcached) = server.start(start)?;
        Ok(Self { server: Arc::clone(server), target, address, memcached, is_stopped: false })
    }

    /// Address on which it listens.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Address of its memcached listener.
    pub(crate) fn memcached(&self) -> Option<SocketAddr> {
        self.memcached
    }

    /// The account of its process.
    pub(crate) fn account(&self) -> Arc<dyn Account> {
        Arc::new(RemoteAccount::new(&self.server, self.target))
    }

    /// Private memory, bytes.
    ///
    /// # Errors
    /// The server cannot read it, or is lost.
    pub(crate) fn own_memory_bytes(&self) -> Result<u64, Error> {
        memory(&self.server, &Request::Memory { target: self.target })
    }

    /// Reads its memory in mappings of less than 1 GiB, bytes.
    pub(crate) fn small_mappings(&self) -> impl Fn() -> Result<u64, Error> + use<> {
        let (server, target) = (Arc::clone(&self.server), self.target);
        move || memory(&server, &Request::SmallMappings { target })
    }

    /// Starts to sample its threads, for a measurement of this length.
    ///
    /// # Errors
    /// [`Error::Lacking`]: the server's machine does not permit it. Another: the server is lost.
    pub(crate) fn sample(&self, measure: Duration) -> Result<RemoteSampling, Error> {
        RemoteSampling::start(&self.server, self.target, measure)
    }

    /// State of the target.
    ///
    /// # Errors
    /// The target does not write it, or the server is lost.
    pub(crate) fn state(&self) -> Result<Value, Error> {
        match self.server.request(&Request::State { target: self.target })? {
            Reply::State(state) => Ok(state),
            _ => Err(self.server.confused()),
        }
    }

    /// Counters of its process and of its device.
    ///
    /// # Errors
    /// The server cannot read them, or is lost.
    pub(crate) fn counters(&self) -> Result<Counters, Error> {
        match self.server.request(&Request::Counters { target: self.target })? {
            Reply::Counters(counters) => Ok(counters),
            _ => Err(self.server.confused()),
        }
    }

    /// Steers its traffic until it ends. Returns the means by which queues are separated.
    ///
    /// # Errors
    /// The server's operator does not allow it, the interface cannot do it, or the server is lost.
    pub(crate) fn steer(&self, by: Steering) -> Result<String, Error> {
        match self.server.request(&Request::Steer { target: self.target, by })? {
            Reply::Steered { means } => Ok(means),
            _ => Err(self.server.confused()),
        }
    }

    /// Stops the target.
    ///
    /// # Errors
    /// It exited with an error, or the server is lost.
    pub(crate) fn stop(mut self) -> Result<(), Error> {
        self.is_stopped = true;
        match self.server.request(&Request::Stop { target: self.target })? {
            Reply::Stopped => Ok(()),
            _ => Err(self.server.confused()),
        }
    }
}

impl Drop for RemoteTarget {
    fn drop(&mut self) {
        if !self.is_stopped {
            // With a server that is lost the target has ended.
            let _ = self.server.request(&Request::Stop { target: self.target });
        }
    }
}

/// The keys in files of this machine.
fn sent_keys(files: &KeyFiles) -> Result<SentKeys, Error> {
    let read = |path| {
        let text = std::fs::read_to_string(path);
        text.map(|text| text.trim().to_owned()).map_err(|error| Error::system("a file with a key", error))
    };
    Ok(SentKeys { tls_key: read(&files.tls_key)?, secret: read(&files.secret)?, access: files.access })
}

fn memory(server: &ServerConnection, request: &Request) -> Result<u64, Error> {
    match server.request(request)? {
        Reply::Memory(bytes) => Ok(bytes),
        _ => Err(server.confused()),
    }
}

/// The account of a target's process, which the server reads.
#[derive(Debug)]
pub(super) struct RemoteAccount {
    server: Arc<ServerConnection>,
    target: u32,
}

impl RemoteAccount {
    pub(super) fn new(server: &Arc<ServerConnection>, target: u32) -> Self {
        Self { server: Arc::clone(server), target }
    }
}

impl Account for RemoteAccount {
    fn read(&self) -> Option<Reading> {
        match self.server.request(&Request::Read { target: self.target }) {
            Ok(Reply::Account(reading)) => reading,
            _ => None,
        }
    }
}
