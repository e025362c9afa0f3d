//! The target of a run.

use proto::zero_copy::Policy as ZeroCopy;
use subsystem::config::TimeoutConfig;
use subsystem::limits::Limits;

use super::{MS, POOL_BYTES, US, rate};
use crate::random::Random;

/// The target, its threads and its kernel.
#[derive(Clone, Debug)]
pub(crate) struct TargetScenario {
    pub(crate) reactor_count: u16,
    /// Bytes of a reactor's pool that are left free.
    pub(crate) pool_bytes: usize,
    pub(crate) limits: Limits,
    pub(crate) timeouts: TimeoutConfig,
    /// Data of one C2HData, bytes.
    pub(crate) c2h_data_bytes: u32,
    /// Which answers it sends without a copy.
    pub(crate) zero_copy: ZeroCopy,
    /// Threads that run late, of hosts as well, per million wake-ups, and how late.
    pub(crate) late: u32,
    pub(crate) late_ns: u64,
    /// Its threads are held up now and then after they have read the clock, and act on an older time.
    pub(crate) has_old_clocks: bool,
    /// Calls that its kernel refuses, per million.
    pub(crate) refusals: u32,
    /// It stops only once it has forgotten its peers.
    pub(crate) stops_late: bool,
    /// Writes that it has given to the device go on without it when it is killed.
    pub(crate) writes_outlive_kill: bool,
    /// Kills wait until such a write is under way.
    pub(crate) kills_at_writes: bool,
}

impl TargetScenario {
    /// Draws the data in a capsule of a target whose commands move this number of bytes at most.
    pub(super) fn draw(r: &mut Random, seed: u64, reactor_count: u16, transfer_bytes: u64) -> Self {
        Self {
            reactor_count,
            pool_bytes: POOL_BYTES,
            limits: Limits {
                in_capsule_bytes: r.pick(&[0, 512, 4096, 8192, 8192]),
                transfer_bytes_max: transfer_bytes as u32,
                ..Limits::default()
            },
            timeouts: TimeoutConfig::default(),
            c2h_data_bytes: transfer_bytes as u32,
            zero_copy: ZeroCopy::Off,
            late: 0,
            late_ns: 0,
            has_old_clocks: Random::new(seed, 83).one_in(4),
            refusals: 0,
            stops_late: Random::new(seed, 71).one_in(2),
            writes_outlive_kill: false,
            kills_at_writes: false,
        }
    }

    pub(super) fn draw_pool(&mut self, r: &mut Random) {
        if r.one_in(3) {
            // As small as a configuration may have it, and somewhat more.
            self.pool_bytes = self.limits.transfer_bytes_max as usize * r.between(4, 8) as usize;
        }
    }

    pub(super) fn draw_threads(&mut self, r: &mut Random, is_prompt: bool) {
        self.late = rate(r, 3, 1000, 100_000);
        self.late_ns = r.scaled(US, if is_prompt { MS } else { 500 * MS });
    }

    pub(super) fn draw_zero_copy(&mut self, r: &mut Random) {
        if r.one_in(3) {
            self.zero_copy = ZeroCopy::From(r.scaled(1, 64 << 10) as u32);
        }
    }
}
