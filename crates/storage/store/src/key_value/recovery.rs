//! The reading of the logs of a key-value file at its start, as operators and clients see it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Commands wait this long for a log that is being read; then they are refused until it is, ns.
pub(super) const WAIT_NS: u64 = 1_000_000_000;

/// Interval between log lines that report the progress, ns.
const TELL_NS: u64 = 2_000_000_000;

/// How far the logs of a key-value file have been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// Partitions whose logs are being read.
    pub partition_count: usize,
    /// Bytes read so far, of all partitions.
    pub read_bytes: u64,
    /// Bytes to be read, of the partitions for which that is known.
    pub bytes: u64,
}

/// Damage that was found in the logs of a key-value file and passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamagePassedOver {
    /// Damaged places.
    pub count: u64,
    /// Keys whose values are lost by that: commands that need one are refused until it is stored again or deleted.
    pub lost_key_count: u64,
    /// Records of unknown keys that are lost by that.
    pub lost_unknown_count: u64,
}

/// The progress of all partitions together, and the damage found. Each reactor adds the bytes that it has read, and the
/// damage that it has found.
#[derive(Debug, Default)]
pub(super) struct SharedProgress {
    partition_count: AtomicUsize,
    read_bytes: AtomicU64,
    bytes: AtomicU64,
    damage_count: AtomicU64,
    lost_key_count: AtomicU64,
    lost_unknown_count: AtomicU64,
}

impl SharedProgress {
    /// The progress of this many partitions that have read nothing.
    pub(super) fn new(partition_count: usize) -> Self {
        Self { partition_count: partition_count.into(), ..Self::default() }
    }

    /// The progress, unless all partitions have ended reading.
    pub(super) fn get(&self) -> Option<RecoveryProgress> {
        let progress = RecoveryProgress {
            partition_count: self.partition_count.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        };
        (progress.partition_count > 0).then_some(progress)
    }

    /// The damage found so far, if there is any.
    pub(super) fn damage(&self) -> Option<DamagePassedOver> {
        let damage = DamagePassedOver {
            count: self.damage_count.load(Ordering::Relaxed),
            lost_key_count: self.lost_key_count.load(Ordering::Relaxed),
            lost_unknown_count: self.lost_unknown_count.load(Ordering::Relaxed),
        };
        (damage.count > 0).then_some(damage)
    }

    /// A partition has found damage: `now` in total, and `before` at its last report.
    pub(super) fn add_damage(&self, before: DamagePassedOver, now: DamagePassedOver) {
        self.damage_count.fetch_add(now.count - before.count, Ordering::Relaxed);
        self.lost_key_count.fetch_add(now.lost_key_count - before.lost_key_count, Ordering::Relaxed);
        let unknown_count = now.lost_unknown_count - before.lost_unknown_count;
        self.lost_unknown_count.fetch_add(unknown_count, Ordering::Relaxed);
    }
}

/// The reading of one partition's log.
#[derive(Debug)]
pub(super) struct Reading {
    shared: Arc<SharedProgress>,
    /// When it began, and when its progress was last logged, ns.
    began_ns: u64,
    told_ns: u64,
    read_bytes: u64,
    bytes: u64,
    /// Whether commands are refused.
    pub(super) is_slow: bool,
}

impl Reading {
    pub(super) fn begin(shared: Arc<SharedProgress>, now_ns: u64) -> Self {
        Self { shared, began_ns: now_ns, told_ns: now_ns, read_bytes: 0, bytes: 0, is_slow: false }
    }

    /// Notes the bytes read so far, and to be read.
    pub(super) fn on_progress(
        &mut self,
        now_ns: u64,
        (read_bytes, bytes): (u64, u64),
        (path, partition): (&Path, usize),
    ) {
        self.shared.read_bytes.fetch_add(read_bytes - self.read_bytes, Ordering::Relaxed);
        // Fewer bytes than expected may have to be read.
        self.shared.bytes.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
        (self.read_bytes, self.bytes) = (read_bytes, bytes);
        self.is_slow |= now_ns >= self.began_ns + WAIT_NS;
        if now_ns >= self.told_ns + TELL_NS {
            self.told_ns = now_ns;
            tracing::info!(path = %path.display(), partition, read_bytes, bytes, "reading the log of a key-value namespace");
        }
    }

    /// The log is read, or has failed.
    pub(super) fn end(self, now_ns: u64, (path, partition): (&Path, usize)) {
        self.shared.partition_count.fetch_sub(1, Ordering::Relaxed);
        let (read_bytes, ms) = (self.read_bytes, (now_ns - self.began_ns) / 1_000_000);
        if self.is_slow {
            tracing::info!(path = %path.display(), partition, read_bytes, ms, "ended reading the log of a key-value namespace");
        }
    }
}
