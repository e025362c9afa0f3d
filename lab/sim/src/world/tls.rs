//! TLS in a run: keys that a reload changes, and ends that must close a connection whose records were damaged.

use subsystem::config::TlsPolicy;

use super::{Stage, World};
use crate::scenario::SECOND;
use crate::shared::{Event, Side};

impl World {
    /// The operator gives the target another key of TLS, in place of the one before. Connected hosts stay.
    pub(super) fn change_tls_key(&mut self) {
        let has_key = matches!(self.shared.scenario.security.tls, TlsPolicy::Allowed | TlsPolicy::Required);
        if !has_key || self.progress.stage > Stage::Settle || !self.target.machine.is_first() {
            return;
        }
        self.shared.tls_keys.begin_change();
        self.reload();
        self.shared.tls_keys.end_change();
    }

    /// An end has received all of a record in which a bit is wrong.
    pub(super) fn on_damaged(&mut self, id: usize, side: Side) {
        self.shared.reach_event("TLS: a record with a wrong bit arrives");
        self.shared.at(self.shared.now_ns + self.closing_ns_max(), Event::Overdue(id, side));
    }

    /// How long an end may take to close a connection, while no operation is stuck, ns.
    fn closing_ns_max(&self) -> u64 {
        2 * self.under_way_ns() + SECOND
    }

    /// It has had time to close the connection.
    pub(super) fn judge_damaged(&mut self, id: usize, side: Side) {
        let connection = &self.shared.network.connections[id];
        if connection.closed[side as usize] || connection.is_cut {
            return;
        }
        let owner = connection.owners[side as usize];
        let is_stalled = owner.is_none_or(|actor| self.shared.is_stalled(actor));
        let disk = &self.shared.disk;
        if is_stalled || disk.is_stuck() || disk.hung_until_ns >= self.shared.now_ns {
            return self.shared.at(self.shared.now_ns + self.closing_ns_max(), Event::Overdue(id, side));
        }
        self.shared.find(format!(
            "connection {id}: {side:?} goes on, though a record that it has received had a wrong bit"
        ));
    }
}
