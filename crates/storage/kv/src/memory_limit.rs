//! The memory of a namespace, of which each partition has an equal share, and its use by their pairs.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::regions::{REGION_BYTES, REGIONS_MAX};
use crate::settings::Settings;

/// The memory of all partitions of a namespace.
#[derive(Debug)]
pub struct MemoryLimit {
    bytes: AtomicU64,
    partition_count: AtomicUsize,
    /// The least memory of one partition, bytes.
    share_bytes_min: AtomicU64,
    /// The least memory for the present pairs, as the partitions have reported it, bytes.
    needed_bytes: AtomicU64,
    /// The usage that the partitions have reported, by number.
    usage: Mutex<Vec<Usage>>,
}

crate::counters! {
    /// The space that pairs take, and the number of refused stores.
    pub struct Usage {
        /// Pairs.
        pub pair_count: u64,
        /// Bytes of keys and values.
        pub pair_bytes: u64,
        /// Memory in use, bytes.
        pub memory_bytes: u64,
        /// Bytes of the records of all pairs; 0 without a log.
        pub log_bytes: u64,
        /// Limit on these.
        pub log_bytes_max: u64,
        /// The rest of the logs, bytes: for cleaning, headers, and the ends of writes and of segments.
        pub log_headroom_bytes: u64,
        /// Stores refused because memory was full.
        pub no_memory_count: u64,
        /// Stores refused because the log was full.
        pub log_full_count: u64,
        /// Pairs that are not evicted because clients have pinned them.
        pub pinned_count: u64,
        /// Memory of these and of their leases, bytes.
        pub pinned_bytes: u64,
    }
}

impl MemoryLimit {
    /// The most memory of one partition, bytes.
    pub const SHARE_BYTES_MAX: u64 = (REGIONS_MAX * REGION_BYTES) as u64;

    /// `bytes` for one partition, until [`divide`](Self::divide) sets their number.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes: AtomicU64::new(bytes),
            partition_count: AtomicUsize::new(1),
            share_bytes_min: AtomicU64::new(Settings::MEMORY_BYTES_MIN as u64),
            needed_bytes: AtomicU64::new(0),
            usage: Mutex::default(),
        }
    }

    /// The same for partitions with logs.
    #[must_use]
    pub fn with_logs(bytes: u64) -> Self {
        let limit = Self::new(bytes);
        limit.require(Settings::MEMORY_BYTES_MIN_WITH_LOG as u64);
        limit
    }

    /// Sets the least memory of one partition, before the first is made.
    pub fn require(&self, share_bytes_min: u64) {
        self.share_bytes_min.store(share_bytes_min, Ordering::Release);
    }

    /// Sets the number of partitions, before the first is made.
    pub fn divide(&self, partition_count: usize) {
        self.partition_count.store(partition_count.max(1), Ordering::Release);
    }

    /// Memory of all partitions, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Changes the memory of all partitions, which follow on request.
    pub fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Release);
    }

    /// Number of partitions.
    #[must_use]
    pub fn partition_count(&self) -> usize {
        self.partition_count.load(Ordering::Acquire)
    }

    /// Memory of each partition, bytes.
    #[must_use]
    pub fn share(&self) -> usize {
        usize::try_from(self.bytes() / self.partition_count() as u64).unwrap_or(usize::MAX)
    }

    /// The least memory of one partition, bytes.
    #[must_use]
    pub fn share_bytes_min(&self) -> u64 {
        self.share_bytes_min.load(Ordering::Acquire)
    }

    /// The most memory, bytes.
    #[must_use]
    pub fn bytes_max(partition_count: usize) -> u64 {
        (partition_count.max(1) as u64).saturating_mul(Self::SHARE_BYTES_MAX)
    }

    /// The least memory for the present pairs, bytes, as of when partitions last reported it: 0 if they may be evicted.
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        self.needed_bytes.load(Ordering::Acquire)
    }

    /// The usage of all partitions, each as last reported.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut all = Usage::default();
        self.usage.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|usage| all += *usage);
        all
    }

    /// Records the usage of a partition. Returns the number to report under.
    pub(crate) fn report_usage(&self, number: Option<usize>, usage: Usage) -> usize {
        let mut all = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let number = number.unwrap_or(all.len());
        let count = all.len().max(number + 1);
        all.resize(count, Usage::default());
        all[number] = usage;
        number
    }

    /// Records that a partition needs `now` bytes instead of `before`.
    pub(crate) fn report(&self, before: u64, now: u64) {
        self.needed_bytes.fetch_add(now.wrapping_sub(before), Ordering::AcqRel);
    }
}
