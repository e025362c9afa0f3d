//! How long transfers, operations and orders may take in a run, and whether a pool may run out of buffers.

use memory::BLOCK_BYTES_MIN;

use super::{Fault, MS, Scenario};

impl Scenario {
    /// Whether the commands of all lanes together may hold all buffers of a reactor.
    pub(crate) fn can_use_up_the_pool(&self) -> bool {
        let lane_count = self.hosts.count as u64 * u64::from(self.hosts.lane_count);
        let reserve_bytes = u64::from(self.target.limits.transfer_bytes_max);
        let mut transfer_bytes = u64::from(self.first.block_bytes) * u64::from(self.load.blocks_max);
        if self.load.mix.verify + self.load.mix.copy > 0 {
            // These work in pieces of as many blocks as a transfer may have.
            transfer_bytes = transfer_bytes.max(reserve_bytes);
        }
        let transfer_bytes = transfer_bytes.next_power_of_two().max(BLOCK_BYTES_MIN as u64);
        lane_count * u64::from(self.hosts.depth) * transfer_bytes + reserve_bytes
            > self.target.pool_bytes as u64
    }

    /// How long an order of the operator, or its effect in the target, may take to reach all reactors, ns: until a
    /// reactor that is stalled has run.
    pub(crate) fn order_ns_max(&self) -> u64 {
        let stall_ns = |(_, fault): &(u64, Fault)| if let Fault::Stall { ns } = fault { *ns } else { 0 };
        let late_ns = if self.target.late > 0 { 8 * self.target.late_ns } else { 0 };
        self.faults.iter().map(stall_ns).sum::<u64>() + late_ns + MS
    }

    /// Nothing in this run takes long, except for a target that is down and says so: no command and no connection may
    /// time out.
    pub(crate) fn is_swift(&self) -> bool {
        let is_silent = |(_, fault): &(u64, Fault)| {
            matches!(fault, Fault::PowerCut { .. } | Fault::Cut | Fault::Partition { .. })
        };
        self.is_prompt
            && self.network.corrupt == 0
            && self.disk.stuck == 0
            && self.rates.is_none()
            && !self.faults.iter().any(is_silent)
    }

    /// How long the transfers of a full lane may take on a network that carries few bytes at a time, or in turns of
    /// which some are late, ns.
    pub(crate) fn transfers_ns_max(&self) -> u64 {
        self.transfer_ns_max(self.lane_bytes_max())
    }

    /// The data of the commands of a full lane, bytes.
    fn lane_bytes_max(&self) -> u64 {
        let block_bytes = u64::from(self.load.blocks_max) * u64::from(self.first.block_bytes);
        let value_bytes = self.pairs.as_ref().map_or(0, |pairs| pairs.item_bytes_max as u64);
        u64::from(self.hosts.depth) * block_bytes.max(value_bytes)
    }

    /// How long a target may wait for the data of one of these commands, or for room for it, ns: its request may wait
    /// behind the answers to others, and segments are late.
    pub(crate) fn wait_ns_max(&self, bytes_min: u64) -> u64 {
        let network = &self.network;
        let bytes = self.lane_bytes_max().max(bytes_min);
        // A full socket takes as much as it has room again, about half of it.
        let pieces = bytes / network.piece_max.min(network.capacity / 2).max(1) as u64;
        // Each window is requested first.
        let turns = pieces + self.rounds(bytes);
        self.transfer_ns_max(bytes) + turns * u64::from(network.late) / 1_000_000 * network.late_ns
    }

    /// A round moves one window of a command's data, at most what the network carries.
    fn rounds(&self, bytes: u64) -> u64 {
        let window_bytes = u64::from(self.target.limits.window_bytes_max).min(self.network.capacity as u64);
        bytes / window_bytes.max(1)
    }

    fn transfer_ns_max(&self, bytes: u64) -> u64 {
        let network = &self.network;
        let rounds = self.rounds(bytes);
        let turns = bytes / network.piece_max.max(1) as u64;
        let late_turns = turns * u64::from(self.target.late) / 1_000_000;
        // The bytes of a window may arrive in two pieces, each of which is acknowledged.
        rounds * 4 * (network.latency_ns + network.jitter_ns) + late_turns * self.target.late_ns
    }

    /// How long the operations of all commands may take that are out at once, each of which waits for those before it
    /// on a disk that does few at a time, ns.
    pub(crate) fn disk_ns_max(&self) -> u64 {
        let disk = &self.disk;
        let operation_ns = disk.latency_ns + 4 * disk.jitter_ns + disk.flush_ns;
        // Some are done again, by the store or by parts.
        let attempt_count = if disk.passing > 0 || disk.short > 0 { 10 } else { 2 };
        let lane_count = self.hosts.count as u64 * u64::from(self.hosts.lane_count);
        // Deallocations of many ranges take turns, and pairs wait for them.
        let ranges = if self.load.deallocated_ranges_max > 4 { self.load.deallocated_ranges_max } else { 0 };
        let waiting = lane_count * u64::from(self.hosts.depth);
        let count = waiting / disk.limit.max(1) as u64 + waiting * ranges + 1;
        count * attempt_count * operation_ns
    }

    /// How long the second namespace may take for the commands that are out at once: pairs on the same blocks, and writes
    /// that wait for them, take turns, ns.
    pub(crate) fn second_ns_max(&self) -> u64 {
        let waiting = match self.load.mix.compare_and_write {
            0 => 1,
            _ => self.hosts.count as u64 * u64::from(self.hosts.lane_count) * u64::from(self.hosts.depth),
        };
        // A pair reads and writes.
        waiting * 2 * self.second.delay_ns_max
    }
}
