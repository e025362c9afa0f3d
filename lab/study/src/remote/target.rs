//! A target that a study server has started.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use host::Address;
use load::account::{Account, Reading};
use serde::de::DeserializeOwned;

use super::connection::ServerConnection;
use super::protocol::{Request, SentKeys, StartTarget, Started};
use super::sampling::RemoteSampling;
use crate::error::{Doing, Error};
use crate::served_options::{KeyFiles, ServedOptions};
use crate::target_options::NamespaceKind;

/// A target or another server that a study server has started. It ends with this value.
#[derive(Debug)]
pub(crate) struct Numbered {
    server: Arc<ServerConnection>,
    number: u32,
    is_stopped: bool,
}

impl Numbered {
    /// Has the server start one. Returns also what it says about it.
    pub(crate) fn start(server: &Arc<ServerConnection>, request: &Request) -> Result<(Self, Started), Error> {
        let started: Started = server.request(request)?;
        Ok((Self { server: Arc::clone(server), number: started.target, is_stopped: false }, started))
    }

    /// The account of its process, or of its machine.
    pub(crate) fn account(&self) -> Arc<dyn Account> {
        Arc::new(RemoteAccount { server: Arc::clone(&self.server), target: self.number })
    }

    fn stop(mut self) -> Result<(), Error> {
        self.is_stopped = true;
        self.server.request(&Request::Stop { target: self.number })
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        if !self.is_stopped {
            // With a server that is lost it has ended.
            let _ = self.server.request::<()>(&Request::Stop { target: self.number });
        }
    }
}

/// A running target of a study server.
#[derive(Debug)]
pub(crate) struct RemoteTarget {
    numbered: Numbered,
    pub(crate) address: Address,
    pub(crate) memcached: Option<SocketAddr>,
}

impl RemoteTarget {
    /// Starts a target on the server's machine.
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
        let (numbered, started) = Numbered::start(server, &Request::Start(start))?;
        let memcached = started.memcached.map(|text| server.socket_address(&text)).transpose()?;
        Ok(Self { numbered, address: server.target_address(&started.address)?, memcached })
    }

    /// The account of its process.
    pub(crate) fn account(&self) -> Arc<dyn Account> {
        self.numbered.account()
    }

    /// Asks its server something about it.
    pub(crate) fn request<Answer: DeserializeOwned>(
        &self,
        of: impl FnOnce(u32) -> Request,
    ) -> Result<Answer, Error> {
        self.numbered.server.request(&of(self.numbered.number))
    }

    /// Reads its memory in mappings of less than 1 GiB, bytes.
    pub(crate) fn small_mappings(&self) -> impl Fn() -> Result<u64, Error> + use<> {
        let (server, target) = (Arc::clone(&self.numbered.server), self.numbered.number);
        move || server.request(&Request::SmallMappings { target })
    }

    /// Starts to sample its threads, for a measurement of this length.
    ///
    /// # Errors
    /// [`Error::Lacking`]: the server's machine does not permit it. Another: the server is lost.
    pub(crate) fn sample(&self, measure: Duration) -> Result<RemoteSampling, Error> {
        RemoteSampling::start(&self.numbered.server, self.numbered.number, measure)
    }

    /// Stops the target.
    pub(crate) fn stop(self) -> Result<(), Error> {
        self.numbered.stop()
    }
}

/// The keys in files of this machine.
fn sent_keys(files: &KeyFiles) -> Result<SentKeys, Error> {
    let read = |path| {
        let text = std::fs::read_to_string(path);
        text.map(|text| text.trim().to_owned()).doing("a file with a key")
    };
    Ok(SentKeys { tls_key: read(&files.tls_key)?, secret: read(&files.secret)?, access: files.access })
}

/// The account of a target's process, which the server reads.
#[derive(Debug)]
struct RemoteAccount {
    server: Arc<ServerConnection>,
    target: u32,
}

impl Account for RemoteAccount {
    fn read(&self) -> Option<Reading> {
        self.server.request(&Request::Read { target: self.target }).ok().flatten()
    }
}
