//! Associations whose keep-alive timeout expires, and the commands that wait at the target then: none of them is
//! answered later, and every connection of the association is closed once its operations under way have ended. When
//! their writes can no longer land: see [`late`](super::late).

use super::World;
use super::late::GRACE_NS;
use crate::coverage::Waiting;
use crate::host::Host;
use crate::scenario::{MS, SECOND, TIMER_STEP_NS};

/// How long beyond the end of an association the disk hangs at most, ns.
const HANG_NS_MAX: u64 = 4 * SECOND;

impl World {
    /// Time from the last word of an association to its end, ns.
    pub(super) fn keep_alive_ns(&self) -> u64 {
        u64::from(self.shared.scenario.hosts.keep_alive_ms) * MS + GRACE_NS
    }

    /// Checks the connections that the target has closed: the first connection of an association that has been silent
    /// for longer than its keep-alive timeout ends all of them.
    pub(super) fn note_expiries(&mut self) {
        for id in std::mem::take(&mut self.shared.network.closed_by_target) {
            let dialler = self.shared.network.connections[id].dialler;
            let Some(host) = self.hosts.iter().find(|host| host.owns(dialler)) else { continue };
            let queues = self.queues_of_association(host, id);
            let connections = &self.shared.network.connections;
            if connections[id].is_ended_by_host() {
                // For that it was closed; how long the others have been silent may be found later.
                continue;
            }
            let heard_ns = queues.iter().map(|id| connections[*id].heard_ns).max().unwrap_or(u64::MAX);
            let is_known = queues.iter().any(|id| connections[*id].silent_from_ns < u64::MAX);
            if is_known || heard_ns.saturating_add(self.keep_alive_ns()) > self.shared.now_ns {
                continue;
            }
            // This one may have been about to close for another reason: the target may notice one step later.
            let ended_ns = heard_ns + self.keep_alive_ns() + TIMER_STEP_NS;
            let silent_from_ns = ended_ns.max(self.shared.now_ns) + self.shared.scenario.order_ns_max();
            let waiting: Vec<Waiting> = queues.iter().flat_map(|id| connections[*id].waiting()).collect();
            waiting.iter().for_each(|waiting| self.shared.reach_event(waiting.name_at_expiry()));
            // A queue that owes authentication belongs to no association.
            let is_asked = self.shared.scenario.security.authentication.is_some();
            for id in queues {
                let connection = &mut self.shared.network.connections[id];
                if connection.is_connected() && !(is_asked && connection.may_owe_authentication()) {
                    connection.silence(silent_from_ns);
                }
            }
        }
    }

    /// The connections of a host's association that has this one: those since it last dialled an admin queue, until it
    /// did so again.
    pub(super) fn queues_of_association(&self, host: &Host, id: usize) -> Vec<usize> {
        let connections = &self.shared.network.connections;
        let is_admin = |id: &usize| host.is_association(connections[*id].dialler);
        let first = (0..=id).rev().find(is_admin).unwrap_or(id);
        let after = (id + 1..connections.len()).find(is_admin).unwrap_or(connections.len());
        (first..after).filter(|id| host.owns(connections[*id].dialler)).collect()
    }

    /// Pulls the cable of a host that has a command which waits as a fault requires.
    pub(super) fn pull_cables(&mut self) {
        let Some(&waiting) = self.faults.unplugs.last() else { return };
        let connections = &self.shared.network.connections;
        let waits = |host: &&Host| {
            let of_host = host.connections();
            of_host
                .iter()
                .any(|id| connections[*id].is_served() && connections[*id].waiting().any(|of| of == waiting))
        };
        let Some(of_host) = self.hosts.iter().find(waits).map(Host::connections) else { return };
        self.faults.unplugs.pop();
        self.shared.reach_event("host unplugged");
        self.shared.say(|| format!("a cable is pulled: connections {of_host:?}"));
        for id in of_host {
            self.shared.cut(id);
        }
        let hang_ns = self.keep_alive_ns() + self.shared.random.below(HANG_NS_MAX);
        let disk = &mut self.shared.disk;
        disk.hung_until_ns = disk.hung_until_ns.max(self.shared.now_ns + hang_ns);
        let until_ns = disk.hung_until_ns;
        self.shared.slow_until("disk that hangs", u64::MAX, until_ns);
    }
}
