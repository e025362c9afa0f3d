//! When writes of an association that is over can no longer land: once the target has heard nothing of it for the
//! keep-alive timeout and its grace, and its operations under way then have ended; or once another process has the lock
//! of the storage. The association of a host that is not allowed any more ends as soon as its commands in flight have.

use super::World;
use crate::scenario::{SECOND, TIMER_STEP_NS};
use crate::shared::Shared;
use crate::shared::network::Connection;

/// How long the target waits beyond the keep-alive timeout.
pub(super) const GRACE_NS: u64 = 2 * SECOND;

/// How long a queue may owe authentication.
pub(super) const AUTHENTICATION_NS: u64 = 30 * SECOND;

/// Operations of one command that follow each other, at most: attempts, and parts.
const OPERATION_COUNT: u64 = 40;

/// Writes whose outcome a host does not know, of an association that it has lost.
#[derive(Debug)]
struct LateWrites {
    /// The connections of all associations that it has lost.
    connections: std::ops::Range<usize>,
    host: usize,
    /// Block and command of each.
    writes: Vec<(u64, u64)>,
    /// They are over at this time at the earliest, ns, unless the target starts again.
    end_ns: u64,
    /// When the target had last started then, ns.
    started_ns: u64,
}

/// The association of a host that is not allowed any more.
#[derive(Debug)]
pub(super) struct Barred {
    since_ns: u64,
    /// Its connections at that time.
    connections: Vec<usize>,
}

/// Associations that are over, until their writes can no longer land.
#[derive(Debug, Default)]
pub(super) struct LateWindows {
    writes: Vec<LateWrites>,
    /// The host that is not allowed, until its association must have ended.
    pub(super) barred: Option<Barred>,
    /// Until when the disk hangs, or an operation, as seen after the last event, ns: `u64::MAX` if that is open, 0 if
    /// none does.
    hangs_until_ns: u64,
    /// Until when one hung last, ns.
    stuck_until_ns: u64,
}

impl LateWindows {
    /// Notes until when the disk has hung, or an operation. Something that hung after the last event did so until this
    /// one at most: seconds may lie between them, and this one may be the end of it.
    fn note_hang(&mut self, shared: &Shared) {
        let (now_ns, disk) = (shared.now_ns, &shared.disk);
        let is_stuck = shared.scenario.disk.stuck > 0 && disk.is_stuck();
        let hangs_until_ns = if is_stuck { u64::MAX } else { disk.hung_until_ns };
        let hangs_until_ns = if hangs_until_ns >= now_ns { hangs_until_ns } else { 0 };
        let until_ns = std::mem::replace(&mut self.hangs_until_ns, hangs_until_ns).max(hangs_until_ns);
        self.stuck_until_ns = self.stuck_until_ns.max(until_ns.min(now_ns));
    }
}

impl World {
    /// A host has another association, and does not know the outcome of these writes.
    pub(super) fn await_late_writes(&mut self, host: usize, writes: Vec<(u64, u64)>) {
        let end = self.hosts[host].admin_connection().unwrap_or(self.shared.network.connections.len());
        self.late.writes.push(LateWrites { connections: 0..end, host, writes, end_ns: 0, started_ns: 0 });
    }

    /// A host is not allowed any more.
    pub(super) fn await_end_of_barred(&mut self, host: usize) {
        let host = &self.hosts[host];
        let mut connections = if host.namespace.is_some() { host.connections() } else { Vec::new() };
        // Without a Connect that has succeeded, the target does not know whose connection it is. A queue that owes
        // authentication has a deadline of its own.
        let is_asked = self.shared.scenario.security.authentication.is_some();
        connections.retain(|id| {
            let connection = &self.shared.network.connections[*id];
            connection.is_connected() && !(is_asked && connection.may_owe_authentication())
        });
        self.late.barred = Some(Barred { since_ns: self.shared.now_ns, connections });
    }

    /// Maximum time of commands that are under way, while no operation is stuck, ns.
    pub(super) fn under_way_ns(&self) -> u64 {
        let scenario = &self.shared.scenario;
        let disk = &scenario.disk;
        let slow_ns = if disk.slow > 0 { disk.slow_ns } else { 0 };
        let operation_ns = disk.latency_ns + 4 * disk.jitter_ns + disk.flush_ns + slow_ns;
        // Commands in the second namespace wait for its filters.
        scenario.order_ns_max() + OPERATION_COUNT * operation_ns + 2 * SECOND
    }

    /// Ends the windows whose time is over.
    pub(super) fn end_late_writes(&mut self) {
        if self.late.writes.is_empty() && self.late.barred.is_none() {
            self.late.hangs_until_ns = 0;
            return;
        }
        self.late.note_hang(&self.shared);
        let now_ns = self.shared.now_ns;
        let under_way_ns = self.under_way_ns();
        if self.late.stuck_until_ns > 0 && self.late.stuck_until_ns + under_way_ns >= now_ns {
            return;
        }
        if let Some(barred) = self.late.barred.take_if(|barred| barred.since_ns + under_way_ns < now_ns) {
            self.check_end_of_barred(&barred);
        }
        let keep_alive_ns = self.keep_alive_ns();
        let started_ns = self.shared.started_ns;
        for at in (0..self.late.writes.len()).rev() {
            let late = &self.late.writes[at];
            if late.started_ns == started_ns && late.end_ns > now_ns {
                continue;
            }
            let host = &self.hosts[late.host];
            let connections = &self.shared.network.connections[late.connections.clone()];
            let end_ns = |connection: &Connection| {
                let was_of_dead = connection.closed[1] && connection.heard_ns < started_ns;
                if was_of_dead { started_ns } else { connection.heard_ns + keep_alive_ns + under_way_ns }
            };
            let of_host = connections.iter().filter(|connection| host.owns(connection.dialler));
            let end_ns = of_host.clone().map(end_ns).max().unwrap_or(0);
            if end_ns > now_ns {
                let late = &mut self.late.writes[at];
                (late.end_ns, late.started_ns) = (end_ns, started_ns);
                continue;
            }
            // One that owes authentication has a deadline of its own, and can write nothing.
            let is_asked = self.shared.scenario.security.authentication.is_some();
            let may_owe = |connection: &&Connection| {
                let until_ns = connection.heard_ns + AUTHENTICATION_NS + TIMER_STEP_NS + under_way_ns;
                is_asked && connection.may_owe_authentication() && until_ns > now_ns
            };
            let (owing, served): (Vec<_>, Vec<_>) =
                of_host.clone().filter(|connection| connection.is_served()).partition(may_owe);
            if !owing.is_empty() {
                continue;
            }
            if let Some(served) = served.first() {
                let heard_ns = served.heard_ns;
                self.shared.find(format!(
                    "host {}: the target still serves a connection of an association that is lost, and has heard nothing \
                     since {heard_ns} ns",
                    late.host
                ));
                return;
            }
            self.shared.reach_event(if end_ns == started_ns {
                "late writes ruled out by the lock"
            } else {
                "late writes ruled out"
            });
            // An operation that hung may have been a part of a command that has others: they end in the time that is
            // left to them.
            let end_ns = if self.late.stuck_until_ns > 0 {
                end_ns.max(self.late.stuck_until_ns + under_way_ns)
            } else {
                end_ns
            };
            if self.late.stuck_until_ns > 0 {
                self.shared.reach_event("late writes ruled out after a disk that hung");
            }
            for (lba, command) in self.late.writes.swap_remove(at).writes {
                self.model.close_write(lba, command, end_ns);
            }
        }
    }

    fn check_end_of_barred(&mut self, barred: &Barred) {
        let is_served = |id: &usize| {
            let connection = &self.shared.network.connections[*id];
            connection.owners[1].is_some() && !connection.closed[1]
        };
        match barred.connections.iter().copied().find(is_served) {
            Some(id) => self.shared.find(format!(
                "connection {id} of a host that has not been allowed since {} ns is still served",
                barred.since_ns
            )),
            None if barred.connections.is_empty() => {}
            None => self.shared.reach_event("association of a barred host ended"),
        }
    }
}
