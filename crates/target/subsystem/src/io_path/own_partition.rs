//! A reactor's own partition of a key-value namespace, and the partitions of others where it may use them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use kv::{ExclusiveGuard, Partition, PartitionAccess};
use linux::Moment;
use memcached::{Executor, InPlace, Service};
use store::DurablePartition;

use crate::io_path::log_waiters::LogWaiters;

/// Where a reactor's partition is.
#[expect(clippy::large_enum_variant, reason = "it lies in a box with the rest of the keys")]
pub(super) enum KeysIn {
    /// In RAM, the only one: no other reactor uses it, and it needs no lock.
    Memory(Partition),
    /// In RAM, with those of the other reactors, each under a lock.
    Shared(Arc<PartitionAccess>),
    /// In RAM and in a log or a cluster, with the commands and answers that wait for it.
    Log(Box<dyn DurablePartition>, Box<LogWaiters>),
}

/// A reactor's own partition. One that others use as well is locked as long as this lives.
pub(crate) enum OwnPartition<'a> {
    Alone(&'a mut Partition),
    Shared(ExclusiveGuard<'a>),
}

impl OwnPartition<'_> {
    /// Sets the time. Another reactor may have set a later one.
    #[inline]
    pub(crate) fn set_now(&mut self, now: Moment) {
        match self {
            Self::Alone(partition) => partition.set_now(now),
            Self::Shared(guard) => guard.follow(now),
        }
    }
}

impl Deref for OwnPartition<'_> {
    type Target = Partition;

    #[inline(always)]
    fn deref(&self) -> &Partition {
        match self {
            Self::Alone(partition) => partition,
            Self::Shared(guard) => guard,
        }
    }
}

impl DerefMut for OwnPartition<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Partition {
        match self {
            Self::Alone(partition) => partition,
            Self::Shared(guard) => guard,
        }
    }
}

impl KeysIn {
    /// The partition, once its log has been read.
    #[inline]
    pub(super) fn read(&mut self) -> Option<OwnPartition<'_>> {
        match self {
            Self::Log(logged, _) => logged.ready_partition().map(OwnPartition::Alone),
            _ => Some(self.unread()),
        }
    }

    /// The partition, whether its log was read or not.
    #[inline]
    pub(super) fn unread(&mut self) -> OwnPartition<'_> {
        match self {
            Self::Memory(partition) => OwnPartition::Alone(partition),
            Self::Shared(access) => OwnPartition::Shared(access.exclusive(access.position().0)),
            Self::Log(logged, _) => OwnPartition::Alone(logged.partition()),
        }
    }

    /// Reports the usage of the partition, or of those that this reactor has changed.
    pub(super) fn report_usage(&mut self) {
        match self {
            Self::Shared(access) => access.report_usage(),
            Self::Memory(_) | Self::Log(..) => self.unread().report_usage(),
        }
    }
}

/// A reactor's own partition as the memcached protocol sees it.
pub(crate) struct OwnKeys<'a> {
    pub(crate) partition: OwnPartition<'a>,
    pub(crate) service: &'a mut Service,
}

impl OwnKeys<'_> {
    pub(crate) fn executor(&mut self) -> Executor<'_> {
        self.service.on(&mut self.partition)
    }
}

/// The partitions of a namespace as memcached sessions of a reactor reach them.
pub(crate) enum SessionKeys<'a> {
    /// The reactor's own partition; those of others by message.
    Own(Executor<'a>),
    /// All of them in place; those of others by message as long as not all are there.
    Shared(SharedKeys<'a>),
}

/// The partitions of all reactors. This one holds its own as long as an executor was requested last.
pub(crate) struct SharedKeys<'a> {
    access: &'a PartitionAccess,
    service: &'a mut Service,
    now: Moment,
    own: Option<ExclusiveGuard<'a>>,
}

impl<'a> SessionKeys<'a> {
    #[inline]
    pub(super) fn shared(access: &'a PartitionAccess, service: &'a mut Service, now: Moment) -> Self {
        Self::Shared(SharedKeys { access, service, now, own: None })
    }

    /// The memcached service of this reactor.
    #[inline]
    pub(crate) fn service(&mut self) -> &mut Service {
        match self {
            Self::Own(executor) => executor.service,
            Self::Shared(keys) => keys.service,
        }
    }

    /// The executor of the reactor's own partition.
    #[inline]
    pub(crate) fn executor(&mut self) -> Executor<'_> {
        match self {
            Self::Own(executor) => executor.reborrow(),
            Self::Shared(keys) => keys.executor(),
        }
    }

    /// All partitions, if they can be used in place. The own one is released.
    #[inline]
    pub(crate) fn in_place(&mut self) -> Option<InPlace<'_>> {
        match self {
            Self::Own(_) => None,
            Self::Shared(keys) => {
                keys.own = None;
                let SharedKeys { access, service, now, .. } = keys;
                access.is_complete().then_some(InPlace { access, service, now: *now })
            }
        }
    }
}

impl SharedKeys<'_> {
    #[inline(never)]
    fn executor(&mut self) -> Executor<'_> {
        let Self { access, service, now, own } = self;
        let guard = own.get_or_insert_with(|| access.exclusive_at(access.position().0, *now));
        service.on(guard)
    }
}
