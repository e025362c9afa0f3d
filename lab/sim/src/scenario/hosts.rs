//! The hosts of a run.

use wire::pdu::DataAlignment;

use super::SECOND;
use crate::random::Random;

/// How hosts connect, and what they do when that fails.
#[derive(Clone, Debug)]
pub(crate) struct HostScenario {
    /// Those whose users submit commands.
    pub(crate) count: usize,
    /// Lanes of each of these.
    pub(crate) lane_count: u16,
    pub(crate) depth: u16,
    /// R2Ts of a command that a host accepts at once.
    pub(crate) r2t_limit: u32,
    pub(crate) has_flow_control: bool,
    /// Alignment of data in PDUs to a host.
    pub(crate) alignment: DataAlignment,
    pub(crate) keep_alive_ms: u32,
    pub(crate) command_timeout_ns: u64,
    /// How long hosts hold commands whose namespace cannot be reached, ns.
    pub(crate) path_timeout_ns: u64,
    /// Writes are sent again after a reconnect.
    pub(crate) is_replayed: bool,
    /// Lanes are to be near the partitions of keys, and each has the keys of the partition that it is near.
    pub(crate) follows_partitions: bool,
    /// All hosts have one IP address.
    pub(crate) shares_address: bool,
    /// Hosts that keep a connection to the discovery service, and read its log.
    pub(crate) scout_count: usize,
    /// A host that comes and goes.
    pub(crate) has_leaver: bool,
}

impl HostScenario {
    /// Draws hosts and their queues.
    pub(super) fn draw(r: &mut Random) -> Self {
        Self {
            count: if r.one_in(3) { 2 } else { 1 },
            lane_count: r.between(1, 3) as u16,
            depth: r.scaled(1, 32) as u16,
            r2t_limit: r.between(1, 4) as u32,
            has_flow_control: r.one_in(3),
            alignment: DataAlignment::NONE,
            keep_alive_ms: 0,
            command_timeout_ns: 0,
            path_timeout_ns: 30 * SECOND,
            is_replayed: false,
            follows_partitions: false,
            shares_address: false,
            scout_count: 0,
            has_leaver: false,
        }
    }

    /// Draws their timeouts, and what they do after a reconnect.
    pub(super) fn draw_timeouts(&mut self, r: &mut Random, is_prompt: bool) {
        self.keep_alive_ms = r.pick(&[1000, 5000, 10_000]);
        self.command_timeout_ns = r.pick(&[SECOND, 5 * SECOND, 30 * SECOND]);
        self.is_replayed = is_prompt && r.one_in(2);
    }

    /// Lanes of all of them.
    pub(crate) fn lane_count_of_all(&self) -> u64 {
        self.count as u64 * u64::from(self.lane_count)
    }
}
