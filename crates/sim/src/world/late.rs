//! When writes of an association that is over can no longer land: once the target has heard nothing of it for the
//! keep-alive timeout and its grace, and what was under way then has ended.

use super::World;
use crate::scenario::{MS, SECOND};

/// How long the target waits beyond the keep-alive timeout.
const GRACE_NS: u64 = 2 * SECOND;

/// Operations of one command that follow each other, at most: attempts, and parts.
const OPERATION_COUNT: u64 = 40;

/// Writes whose outcome a host does not know, of an association that it has lost.
#[derive(Debug)]
pub(crate) struct LateWrites {
    /// The connections of all associations that it has lost.
    connections: std::ops::Range<usize>,
    host: usize,
    /// Block and command of each.
    writes: Vec<(u64, u64)>,
}

impl World {
    /// A host has another association, and does not know what became of these writes.
    pub(super) fn await_late_writes(&mut self, host: usize, writes: Vec<(u64, u64)>) {
        if writes.is_empty() || self.shared.scenario.disk.stuck > 0 {
            return;
        }
        let end = self.hosts[host].admin_connection().unwrap_or(self.shared.network.connections.len());
        self.late_writes.push(LateWrites { connections: 0..end, host, writes });
    }

    /// Ends the windows whose time is over.
    pub(super) fn end_late_writes(&mut self) {
        if self.late_writes.is_empty() {
            return;
        }
        let (now_ns, scenario) = (self.shared.now_ns, &self.shared.scenario);
        let disk = &scenario.disk;
        let slow_ns = if disk.slow > 0 { disk.slow_ns } else { 0 };
        let operation_ns = disk.latency_ns + 4 * disk.jitter_ns + disk.flush_ns + slow_ns;
        let wait_ns = u64::from(scenario.keep_alive_ms) * MS + GRACE_NS + scenario.order_ns_max();
        // Commands in the second namespace wait for its filters.
        let wait_ns = wait_ns + OPERATION_COUNT * operation_ns + 2 * SECOND;
        for at in (0..self.late_writes.len()).rev() {
            let late = &self.late_writes[at];
            let host = &self.hosts[late.host];
            let connections = &self.shared.network.connections[late.connections.clone()];
            let of_host = connections.iter().filter(|connection| host.owns(connection.dialler));
            let heard_ns = of_host.map(|connection| connection.heard_ns).max().unwrap_or(0);
            if heard_ns + wait_ns > now_ns {
                continue;
            }
            self.shared.reach_event("late writes ruled out");
            for (lba, command) in self.late_writes.swap_remove(at).writes {
                self.model.close_write(lba, command, heard_ns + wait_ns);
            }
        }
    }
}
