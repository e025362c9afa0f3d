//! The end of a run: when the target stops, and that it then holds no state for peers that are gone.

use subsystem::MEMCACHED;

use super::World;
use crate::scenario::SECOND;
use crate::shared::network::Connection;

/// A target forgets peers that are gone within this time, ns.
const FORGET_NS: u64 = 100 * SECOND;

impl World {
    /// Whether the target is to stop now that all peers have closed their connections: in half of the runs only once it
    /// has had the time to notice, and to end its work for them.
    pub(super) fn may_stop(&mut self) -> bool {
        let now_ns = self.shared.now_ns;
        let wait_ns = if self.shared.scenario.target.stops_late { FORGET_NS } else { 0 };
        let at_ns = *self.target.stop_ns.get_or_insert(now_ns + wait_ns);
        if now_ns < at_ns && self.target.is_up() {
            self.shared.wake_at(0, at_ns);
        }
        now_ns >= at_ns
    }

    /// Whether the target has released everything.
    pub(super) fn check_target(&mut self) {
        // A memcached connection whose client goes without a word lives for ever.
        let is_left = |connection: &Connection| {
            connection.listener == MEMCACHED
                && connection.accepted_ns.is_some()
                && connection.closed_by_target_ns.is_none_or(|at_ns| Some(at_ns) >= self.target.stop_ns)
        };
        let has_forgotten =
            self.shared.scenario.target.stops_late && !self.shared.network.connections.iter().any(is_left);
        if has_forgotten {
            self.shared.reach_event("target stops after it has forgotten its peers");
        }
        for at in 0..self.target.reactors.len() {
            let reactor = &mut self.target.reactors[at];
            let (used, sockets) = (reactor.used_bytes(), reactor.socket_count());
            let held = reactor.held();
            reactor.close_all(&mut self.shared);
            if used > 0 {
                self.shared
                    .find(format!("reactor {at} has stopped and {used} bytes of buffers are still out"));
            }
            if !held.is_empty() && has_forgotten {
                let of: Vec<_> = held.iter().map(|(what, count)| format!("{what}: {count}")).collect();
                self.shared.find(format!("reactor {at} has stopped and still holds {}", of.join(", ")));
            }
            if sockets > 0 {
                self.shared.say(|| format!("reactor {at} has stopped with {sockets} sockets"));
            }
        }
    }
}
