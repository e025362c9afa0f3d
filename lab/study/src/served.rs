//! A running target: a process of this machine, or of the machine of a study server.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use host::Address;
use load::account::{Account, ProcessAccount, Reading};
use serde_json::Value;

use crate::counters::Counters;
use crate::error::Error;
use crate::local_target::LocalTarget;
use crate::process::{own_memory_bytes, small_mappings_bytes};
use crate::profile::{ProcessSampling, Scope};
use crate::remote::Request;
use crate::remote::target::RemoteTarget;
use crate::served_options::ServedOptions;
use crate::steering::Steering;
use crate::target_sampling::TargetSampling;

/// A running target. It ends with this value, and with this process, even if that is killed.
#[derive(Debug)]
pub struct Served(Place);

#[derive(Debug)]
enum Place {
    /// A process of this machine.
    Local(LocalTarget),
    /// A process of a study server's machine.
    Remote(RemoteTarget),
}

impl Served {
    /// Starts a target on this machine and waits until it listens.
    ///
    /// # Errors
    /// The target cannot be started; it has written the reason to the standard error of this process.
    pub fn start(program: &Path, options: &ServedOptions) -> Result<Self, Error> {
        LocalTarget::start(program, options).map(|target| Self(Place::Local(target)))
    }

    /// A target that a study server has started.
    pub(crate) fn remote(target: RemoteTarget) -> Self {
        Self(Place::Remote(target))
    }

    /// Address on which the target listens.
    pub fn address(&self) -> &Address {
        match &self.0 {
            Place::Local(target) => target.address(),
            Place::Remote(target) => &target.address,
        }
    }

    /// Address of its memcached listener.
    pub fn memcached(&self) -> Result<SocketAddr, Error> {
        let place = match &self.0 {
            Place::Local(target) => target.memcached,
            Place::Remote(target) => target.memcached,
        };
        place.ok_or_else(|| Error::Target("does not serve memcached".into()))
    }

    /// Process id on this machine.
    ///
    /// # Errors
    /// [`Error::Lacking`]: the target runs on another machine.
    pub fn pid(&self) -> Result<u32, Error> {
        match &self.0 {
            Place::Local(target) => Ok(target.pid()),
            Place::Remote(_) => Err(Error::Lacking("the target's process is on another machine".into())),
        }
    }

    /// Counters of its process, and of a device: on this machine the one at this place in sysfs, on another that of the
    /// interface with the target's address.
    pub(crate) fn counters(&self, device: Option<&Path>) -> Result<Counters, Error> {
        match &self.0 {
            Place::Local(target) => Counters::read(target.pid(), device),
            Place::Remote(target) => target.request(|target| Request::Counters { target }),
        }
    }

    /// On another machine: steers its traffic until it ends. Returns the means by which queues are separated.
    pub(crate) fn steer(&self, by: Steering) -> Result<String, Error> {
        match &self.0 {
            Place::Local(_) => Err(Error::Target("of this machine has its network from its study".into())),
            Place::Remote(target) => target.request(|target| Request::Steer { target, by }),
        }
    }

    /// The kernel's account of its process.
    pub fn account(&self) -> Arc<dyn Account> {
        match &self.0 {
            Place::Local(target) => Arc::new(ProcessAccount(target.pid())),
            Place::Remote(target) => target.account(),
        }
    }

    /// The account now.
    pub fn reading(&self) -> Result<Reading, Error> {
        self.account().read().ok_or_else(|| Error::Target("has no account of its processor time".into()))
    }

    /// Private memory of its process, bytes: touched pages, without programs and files.
    pub fn own_memory_bytes(&self) -> Result<u64, Error> {
        match &self.0 {
            Place::Local(target) => own_memory_bytes(target.pid()),
            Place::Remote(target) => target.request(|target| Request::Memory { target }),
        }
    }

    /// Reads the memory of its process in mappings of less than 1 GiB, bytes: everything but a large namespace.
    pub fn small_mappings(&self) -> Box<dyn Fn() -> Result<u64, Error>> {
        match &self.0 {
            Place::Local(target) => {
                let pid = target.pid();
                Box::new(move || small_mappings_bytes(pid))
            }
            Place::Remote(target) => Box::new(target.small_mappings()),
        }
    }

    /// Starts to sample its threads on its machine, for a measurement of this length. `scope`: what this machine permits.
    ///
    /// # Errors
    /// [`Error::Lacking`]: its machine does not permit it.
    pub(crate) fn sample(&self, scope: Scope, measure: Duration) -> Result<TargetSampling, Error> {
        match &self.0 {
            Place::Local(target) => {
                ProcessSampling::start(target.pid(), scope, |_| true).map(TargetSampling::Here)
            }
            Place::Remote(target) => target.sample(measure).map(TargetSampling::There),
        }
    }

    /// State of the target, as written by `nvlane target --state`.
    pub fn state(&self) -> Result<Value, Error> {
        match &self.0 {
            Place::Local(target) => target.state(),
            Place::Remote(target) => target.request(|target| Request::State { target }),
        }
    }

    /// Stops the target.
    pub fn stop(self) -> Result<(), Error> {
        match self.0 {
            Place::Local(target) => target.stop(),
            Place::Remote(target) => target.stop(),
        }
    }
}
