//! A key-value namespace in a pool of a Ceph cluster: an object for each pair, and memory in front of them.
//!
//! ```text
//! commands ─▶ partition in memory, of one reactor ──each change──▶ object written ─▶ answered
//!                 │ key not known ─▶ object read ─▶ pair, or known to be absent
//!                 └ unused pairs leave memory whenever others need it
//! ```
//!
//! One target owns all keys of the namespace, by a [lease](lease::Lease): so what it has in memory is what the objects say,
//! and CAS numbers and conditions are checked there.

mod absent;
mod changes;
mod flight;
mod format;
mod lease;
mod listing;
mod partition;
mod parts;
mod session;
mod tenure;
#[cfg(test)]
mod tests;
mod work;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use ceph::{ClusterName, Library};
use kv::{Eviction, MemoryLimit, Partition, Processor, Settings};
use linux::Moment;
use rustix::io::Errno;

use self::lease::{NotTaken, Times};
use self::partition::ObjectPartition;
use self::tenure::Tenure;
use super::durable::DurablePartition;
use super::random::Random;
use super::{KeyValueShape, check_memory};
use crate::open_error::OpenError;

/// Memory in front of a pool unless given, bytes.
pub(crate) const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;

/// The namespace in the pool unless given.
pub(crate) const NAMESPACE_DEFAULT: &str = "nvlane";

/// Time that a cluster has to open the keys, without the wait for a lease.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// Time that a cluster has to take a lease back.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Where the keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RadosPlace {
    /// The cluster, and the user.
    pub cluster: ClusterName,
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; parts of long values are in the one of this name with `.parts`.
    pub namespace: String,
    /// Memory of all partitions together.
    pub memory_bytes: u64,
    /// The longest value that memcached clients may store.
    pub item_bytes: u32,
    /// Whether an owner that may be dead is not waited for.
    pub refuses: bool,
}

impl fmt::Display for RadosPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kv:rados:{} (namespace {})", self.pool, self.namespace)
    }
}

/// A key-value namespace in a pool.
pub(crate) struct KeyValueRados {
    tenure: Arc<Tenure>,
    limit: Arc<MemoryLimit>,
    seed: u64,
}

/// Runs a call that waits for the cluster in a thread of its own; `None` if it does not end in time, and goes on.
fn within<T: Send + 'static>(limit: Duration, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new().name("kv-call".into());
    thread.spawn(move || drop(sender.send(call()))).ok()?;
    receiver.recv_timeout(limit).ok()
}

impl KeyValueRados {
    /// Opens the keys in a pool. Waits for the cluster, and for the lease of an owner that may be dead.
    ///
    /// # Errors
    /// The problem of the libraries or the cluster, or who owns the keys.
    pub(crate) fn open(place: &RadosPlace) -> Result<Self, OpenError> {
        let library = Library::load().map_err(|error| problem(place, error))?;
        Self::open_with(library, place, Times::USUAL)
    }

    fn open_with(library: &'static Library, place: &RadosPlace, times: Times) -> Result<Self, OpenError> {
        check_memory(place.memory_bytes, 1, super::MEMORY_BYTES_MIN)?;
        let of_thread = place.clone();
        let opened = within(OPEN_LIMIT + times.take, move || Tenure::begin(library, &of_thread, times));
        let limit_s = OPEN_LIMIT.as_secs();
        let opened = opened.ok_or_else(|| {
            problem(place, format!("the cluster does not answer within {limit_s} s: see `ceph -s`"))
        })?;
        let tenure = Arc::new(opened.map_err(|why| not_taken(place, &why))?);
        let (keeper, session) = (Arc::clone(&tenure), tenure.session());
        let of_name = |name: &str| std::thread::Builder::new().name(name.into());
        let started = of_name("kv-lease").spawn(move || keeper.keep());
        let started = started.and_then(|_| of_name("kv-strays").spawn(move || session.clean()));
        started.map_err(|error| problem(place, error))?;
        let limit = Arc::new(MemoryLimit::new(place.memory_bytes));
        Ok(Self { tenure, limit, seed: Random::System.hash_seed() })
    }

    pub(super) fn set_reactor_count(&self, count: usize) -> Result<(), OpenError> {
        check_memory(self.limit.bytes(), count, self.limit.share_bytes_min())?;
        self.limit.divide(count);
        Ok(())
    }

    pub(super) fn attach(&self, reactor: usize, now: Moment) -> io::Result<Box<dyn DurablePartition>> {
        Ok(Box::new(self.attach_as_it_is(reactor, now)?))
    }

    fn attach_as_it_is(&self, reactor: usize, now: Moment) -> io::Result<ObjectPartition> {
        let processor = Processor::new(Settings {
            memory_bytes: self.limit.share(),
            inline_bytes_max: 0,
            eviction: Eviction::Clock,
            seed: self.seed,
            ..Settings::default()
        })?;
        let partition = Partition::new(processor, now).within(&self.limit);
        let which = (reactor, self.limit.partition_count());
        ObjectPartition::new(partition, which, Arc::clone(&self.tenure))
    }

    pub(super) fn shape(&self) -> KeyValueShape {
        KeyValueShape {
            bytes: self.limit.bytes(),
            value_bytes_max: u32::try_from(Settings::default().value_bytes_max).unwrap_or(u32::MAX),
            item_bytes: self.tenure.place().item_bytes,
            allows_flush: false,
        }
    }

    pub(super) fn limit(&self) -> &MemoryLimit {
        &self.limit
    }

    pub(super) fn closed_because(&self) -> Option<String> {
        self.tenure.session().lease.reason()
    }

    /// The same before every target.
    pub(super) fn identity(&self) -> String {
        let (session, place) = (self.tenure.session(), self.tenure.place());
        let heads = &session.heads;
        format!("{}/{}/{}/keys", heads.cluster().fsid(), heads.pool_id(), place.namespace)
    }
}

fn problem(place: &RadosPlace, why: impl fmt::Display) -> OpenError {
    OpenError::Ceph { name: place.to_string(), why: why.to_string() }
}

fn not_taken(place: &RadosPlace, why: &NotTaken) -> OpenError {
    let advice = match why {
        NotTaken::Ceph(error @ ceph::Error::Call { action, .. })
            if error.errno() == Some(Errno::NOENT.raw_os_error()) && action.starts_with("find the pool") =>
        {
            ": see `ceph osd pool ls`, or create it with `ceph osd pool create`"
        }
        _ => "",
    };
    problem(place, format!("{why}{advice}"))
}

impl Drop for KeyValueRados {
    /// Gives the lease back, if the cluster answers and nothing is on its way to it.
    fn drop(&mut self) {
        let tenure = Arc::clone(&self.tenure);
        if within(CLOSE_LIMIT, move || tenure.end()).is_none() {
            let place = self.tenure.place();
            tracing::warn!(%place, "lease not given back: the cluster does not answer");
        }
    }
}
