//! Connections that the target closes. Each close needs a cause: its host has closed the connection, is silent beyond a
//! deadline, or has received or sent a wrong bit; its association ends; or a connection without a queue makes room for a
//! newer one.

use reactor::Source;

use super::World;
use super::admission::may_lack_queue;
use crate::coverage::Point;
use crate::host::BARRED;
use crate::scenario::{MS, TIMER_STEP_NS};
use crate::shared::CLOCK_AGE_NS_MAX;
use crate::shared::network::{Connection, NVME};
use crate::tls_right::Right;

/// Data that a host must send within the timeout of a target that lacks buffers, bytes.
const PROGRESS_BYTES: u64 = 64 << 10;

/// One source may have this part of the queues that owe authentication, or as many as a controller may have queues.
const SOURCE_PART: usize = 4;

impl World {
    /// Judges the connections that the target has closed.
    pub(super) fn judge_closes(&mut self) {
        if self.target.is_stopping {
            return;
        }
        for at in 0..self.shared.network.closed_by_target.len() {
            let id = self.shared.network.closed_by_target[at];
            let connection = &self.shared.network.connections[id];
            // Whether it may be turned away is judged elsewhere.
            if connection.listener != NVME || connection.is_turned_away || is_ended(connection) {
                continue;
            }
            let (is_queue, has_sent_connect) = (connection.is_connected(), connection.watch.has_sent_connect);
            let may_be_refused = connection.tls.right() != Right::Serve;
            let has_cause = !is_queue && (may_be_refused || self.may_close_unconnected(id))
                || is_queue && self.may_close_unauthenticated(id)
                || has_sent_connect && self.may_close_queue(id);
            if !has_cause {
                let what = if is_queue { "a queue" } else { "no queue" };
                self.shared
                    .find(format!("connection {id}, with {what}, is closed by the target without a cause"));
            }
        }
    }

    /// Whether a connection without a queue may be closed.
    fn may_close_unconnected(&mut self, id: usize) -> bool {
        let connection = &self.shared.network.connections[id];
        let waited_ns = connection.accepted_ns.map_or(0, |since_ns| self.shared.now_ns - since_ns);
        let scenario = &self.shared.scenario;
        // The wait begins by the clock of the reactor's turn, which may be old.
        let age_ns = if scenario.target.has_old_clocks { CLOCK_AGE_NS_MAX } else { 0 };
        let limit_ns = scenario.target.timeouts.connect_ms.min(scenario.target.timeouts.pdu_ms) * MS;
        if waited_ns + age_ns >= limit_ns {
            self.shared.reach_event("connection without a queue is closed in time");
            return true;
        }
        let reactors = 0..usize::from(scenario.target.reactor_count);
        let limit = self.unconnected_limit();
        // Open connections count, and those that were closed in the same turn.
        let is_other = |of: &&usize| **of != id && may_lack_queue(&self.shared.network.connections[**of]);
        let closed_count = self.shared.network.closed_by_target.iter().filter(is_other).count();
        let is_full =
            reactors.into_iter().any(|reactor| self.unconnected_count_max(reactor) + closed_count >= limit);
        if is_full {
            self.shared.coverage.reach(Point::Limit("connections without a queue"));
            self.note_limited(id);
        }
        is_full
    }

    /// Whether a queue may be closed because its host has not authenticated: it was refused, as Connect would have been,
    /// or makes room for a newer one.
    fn may_close_unauthenticated(&self, id: usize) -> bool {
        let scenario = &self.shared.scenario;
        let connections = &self.shared.network.connections;
        if scenario.security.authentication.is_none() || !connections[id].may_owe_authentication() {
            return false;
        }
        if connections[id].watch.is_unproved || connections[id].may_withhold_verdict() {
            return true;
        }
        let limits = &scenario.target.limits;
        let count_max = limits.unconnected_count_max as usize;
        let queue_count_max = usize::from(limits.io_queue_count_max) + 1;
        // Open connections count, and those that were closed in the same turn.
        let now_ns = self.shared.now_ns;
        let owing = connections.iter().filter(|other| {
            let is_there = other.is_open_at_target() || other.closed_by_target_ns == Some(now_ns);
            is_there && other.listener == NVME && other.may_count_as_owing()
        });
        let count = owing.clone().count();
        let of_source_count = owing
            .filter(|other| Source::from(other.peer.ip()) == Source::from(connections[id].peer.ip()))
            .count();
        count >= count_max || of_source_count >= count_max.div_ceil(SOURCE_PART).max(queue_count_max)
    }

    /// Whether a queue, or a connection that was to become one, may be closed.
    fn may_close_queue(&mut self, id: usize) -> bool {
        let now_ns = self.shared.now_ns;
        let connections = &self.shared.network.connections;
        let dialler = connections[id].dialler;
        let separate = self.separate.as_ref().map(|(host, _)| host).filter(|host| host.owns(dialler));
        let mut hosts = self.hosts.iter().chain(&self.scouts);
        // A host that comes and goes has no others, and shuts its controller down.
        let host = hosts.find(|host| host.owns(dialler));
        if host.is_none() && separate.is_none() {
            return true;
        }
        let is_of_host = |actor| match host {
            Some(host) => host.owns(actor),
            None => actor == dialler,
        };
        if self.shared.scenario.bars() && self.hosts.get(BARRED).is_some_and(|barred| barred.owns(dialler)) {
            return true;
        }
        let queues = match (host, separate) {
            (Some(host), _) => self.queues_of_association(host, id),
            (None, Some(separate)) => separate.association_of(id).to_vec(),
            (None, None) => Vec::new(),
        };
        // Queues that are separate end with their admin queue, and not with each other.
        let ending = if host.is_some() { &queues[..] } else { &queues[..queues.len().min(1)] };
        let mut others = ending.iter().filter(|of| **of != id).map(|of| &connections[*of]);
        let heard_ns = queues.iter().map(|of| connections[*of].heard_ns).max().unwrap_or(0);
        // Connections that the target closes in one turn do not explain each other.
        let was_closed = |other: &Connection| {
            other.closed[1] && other.closed_by_target_ns.is_none_or(|at_ns| at_ns < now_ns)
        };
        if others.any(|other| is_ended(other) || was_closed(other))
            || queues.iter().any(|of| connections[*of].watch.is_shut_down)
            || heard_ns + self.keep_alive_ns() <= now_ns
        {
            return true;
        }
        // Its host has kept it waiting.
        let timeouts = &self.shared.scenario.target.timeouts;
        let longest_ms = timeouts.pdu_ms.max(timeouts.send_ms).max(timeouts.data_ms);
        let since_ns =
            now_ns.saturating_sub(longest_ms * MS + TIMER_STEP_NS + self.shared.scenario.order_ns_max());
        let shortest_ms =
            timeouts.pdu_ms.min(timeouts.send_ms).min(timeouts.data_ms).min(timeouts.contended_ms);
        let is_slow = self.shared.lost_since(since_ns, is_of_host).is_some()
            || queues.iter().any(|of| connections[*of].was_silent_since(now_ns))
            || 2 * self.shared.scenario.wait_ns_max(PROGRESS_BYTES) >= shortest_ms * MS;
        if is_slow {
            self.shared.reach_event("queue of a slow host is closed");
        }
        is_slow
    }
}

/// Whether a connection was ended by its host or on the way, or bits on it were wrong.
fn is_ended(connection: &Connection) -> bool {
    connection.is_broken
        || connection.closed[0]
        || connection.is_ended_by_host()
        || connection.damaged_ns.is_some()
}
