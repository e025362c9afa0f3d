//! Counters of a lane.

use proto::doorbell::DoorbellCounters;

use crate::connect::Progress;
use crate::phases::Phases;

/// Counters of a lane, for monitoring and studies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneCounters {
    /// Commands submitted.
    pub commands: u64,
    /// Commands completed.
    pub completions: u64,
    /// Retries of commands after a status; see [`retry`](crate::retry).
    pub retries: u64,
    /// Authentications of the queue that succeeded: with each connection, and at the interval of
    /// [`Options::reauthenticate`](crate::Options::reauthenticate).
    pub authentications: u64,
    /// Caravans: doorbells rung.
    pub caravans: u64,
    /// Sends: of caravans or of parts of them.
    pub sends: u64,
    /// Receives that returned bytes.
    pub receives: u64,
    /// Receives that returned nothing.
    pub dry_receives: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes of `received_bytes` that were received into the buffers of commands.
    pub in_place_bytes: u64,
    /// Zero-copy sends.
    pub zero_copy_sends: u64,
    /// Bytes of zero-copy sends.
    pub zero_copy_bytes: u64,
    /// Zero-copy sends that the kernel copied anyway.
    pub zero_copy_copied: u64,
    /// Zero-copy sends whose bytes the kernel may still read.
    pub zero_copy_awaited: u64,
    /// Sends that the socket accepted only in part.
    pub blocks: u64,
    /// Polls of waits that found nothing and did not sleep. In a [`LaneSet`](crate::LaneSet) the first lane counts for
    /// all.
    pub spins: u64,
    /// Sleeps. In a [`LaneSet`](crate::LaneSet) the first lane counts for all.
    pub sleeps: u64,
    /// Connections lost.
    pub losses: u64,
    /// Times that TLS freed its buffers because the lane was idle.
    pub tls_releases: u64,
    /// Device queue (NAPI id) that the connection's packets arrived on when it was made; 0 for none.
    pub napi_id: u32,
    /// Data of a full TCP segment that the connection sends, when it was made, bytes.
    pub segment_bytes: u32,
    /// Connections with busy polling of their device.
    pub busy_polled_links: u64,
    /// Connections whose socket refused busy polling.
    pub busy_poll_refusals: u64,
    /// Doorbells rung by reason, and time waited for them.
    pub doorbell: DoorbellCounters,
    /// Latency of commands by phase, measured for one in 64.
    pub phases: Phases,
}

impl LaneCounters {
    pub(super) fn count_zero_copy(&mut self, progress: Progress) {
        if progress.is_zero_copy {
            self.zero_copy_sends += 1;
            self.zero_copy_bytes += progress.sent_bytes as u64;
        }
    }
}
