//! Admission of connections and controllers: the target refuses none below its limits, and accepts none above them. The
//! crowd opens connections and sends nothing on them.

use super::World;
use super::late::AUTHENTICATION_NS;
use crate::coverage::Point;
use crate::host::Host;
use crate::scenario::TIMER_STEP_NS;
use crate::shared::network::{Connection, NVME};
use crate::shared::{Actor, Shared, Side};

/// Peers that open connections and send nothing.
#[derive(Debug)]
pub(super) struct Crowd {
    actor: Actor,
    /// Connections, and until when each is kept, ns.
    open: Vec<(usize, u64)>,
    /// They close all.
    pub(super) is_over: bool,
}

impl Crowd {
    pub(super) fn new(actor: Actor) -> Self {
        Self { actor, open: Vec::new(), is_over: false }
    }

    /// Opens as many connections, sends nothing on them, and keeps them for as long.
    pub(super) fn flood(&mut self, shared: &mut Shared, count: u8, ns: u64) {
        let until_ns = shared.now_ns + ns;
        for _ in 0..count {
            let id = shared.dial(self.actor, NVME);
            self.open.push((id, until_ns));
        }
        shared.lose_any_until("flood of connections", until_ns);
        shared.wake_at(self.actor, until_ns);
    }

    /// Closes connections in time. `false` if it is another actor that runs.
    pub(super) fn run(&mut self, shared: &mut Shared, actor: Actor) -> bool {
        if actor != self.actor {
            return false;
        }
        let (now_ns, is_over) = (shared.now_ns, self.is_over);
        for (id, _) in self.open.extract_if(.., |(_, until_ns)| is_over || *until_ns <= now_ns) {
            shared.reset(id, Side::Host);
        }
        if let Some(until_ns) = self.open.iter().map(|(_, until_ns)| *until_ns).min() {
            shared.wake_at(actor, until_ns);
        }
        true
    }
}

impl World {
    /// Whether a connection may count at the target: until all its commands have ended there, and reactor 0 has heard.
    fn may_count(&self, connection: &Connection) -> bool {
        if connection.accepted_ns.is_none() || connection.listener != NVME {
            return false;
        }
        if connection.is_open_at_target() {
            return true;
        }
        // Those of an earlier target are not closed by this one.
        let Some(closed_ns) = connection.closed_by_target_ns else { return false };
        let disk = &self.shared.disk;
        let may_have_hung = self.shared.scenario.disk.stuck > 0 || disk.hung_until_ns >= closed_ns;
        let has_commands = connection.is_connected();
        let (order_ns, under_way_ns) = (self.shared.scenario.order_ns_max(), self.under_way_ns());
        let slack_ns = if has_commands { under_way_ns } else { order_ns };
        closed_ns >= self.shared.started_ns
            && (closed_ns + slack_ns >= self.shared.now_ns || has_commands && may_have_hung)
    }

    /// Judges the connections that the target has accepted and refused in a turn.
    pub(super) fn judge_admission(&mut self) {
        let network = &mut self.shared.network;
        let [turned_away, busy, entered] =
            [&mut network.turned_away, &mut network.busy, &mut network.entered].map(std::mem::take);
        if turned_away.is_empty() && busy.is_empty() && entered.is_empty() {
            return;
        }
        turned_away.into_iter().for_each(|id| self.judge_turned_away(id));
        busy.into_iter().for_each(|id| self.judge_busy(id));
        if !entered.is_empty() {
            self.judge_counts();
        }
    }

    /// The host of a connection, if it is one with lanes, will be back.
    pub(super) fn note_limited(&mut self, id: usize) {
        let dialler = self.shared.network.connections[id].dialler;
        if let Some(index) = self.hosts.iter().position(|host| host.owns(dialler)) {
            self.records[index].was_limited = true;
            self.shared.lose("refused for a limit", dialler);
        }
    }

    fn judge_turned_away(&mut self, id: usize) {
        let limits = &self.shared.scenario.target.limits;
        let connections = &self.shared.network.connections;
        let address = connections[id].peer.ip();
        let others = || {
            connections.iter().enumerate().filter(|(of, connection)| *of != id && self.may_count(connection))
        };
        let count = others().count();
        let count_of_address = others().filter(|(_, connection)| connection.peer.ip() == address).count();
        let is_full = count >= limits.connection_count_max as usize;
        let is_full_of_address = count_of_address >= limits.connection_count_per_address_max as usize;
        for (is_it, name) in
            [(is_full, "connections of the target"), (is_full_of_address, "connections of an address")]
        {
            if is_it {
                self.shared.coverage.reach(Point::Limit(name));
            }
        }
        if !is_full && !is_full_of_address {
            self.shared.find(format!(
                "connection {id} is turned away, with {count} others at most, {count_of_address} of its address"
            ));
        }
        self.note_limited(id);
    }

    /// Whether two connections are of one host, as the target knows it: by its name.
    fn has_name_of(&self, id: usize, other: usize) -> bool {
        let connections = &self.shared.network.connections;
        let host_of = |id: usize| {
            let dialler = connections[id].dialler;
            let of = |hosts: &[Host]| hosts.iter().position(|host| host.owns(dialler));
            // All others have names of their own.
            of(&self.hosts).or_else(|| of(&self.scouts)).ok_or(dialler)
        };
        host_of(id) == host_of(other)
    }

    fn judge_busy(&mut self, id: usize) {
        let limits = &self.shared.scenario.target.limits;
        let connections = &self.shared.network.connections;
        let others = || {
            (0..connections.len()).filter(|of| *of != id).filter(|of| {
                let connection = &connections[*of];
                connection.watch.is_admin() && self.may_count(connection)
            })
        };
        let count = others().count();
        let count_of_host = others().filter(|of| self.has_name_of(id, *of)).count();
        if count_of_host >= limits.controller_count_per_host_max {
            self.shared.coverage.reach(Point::Limit("controllers of a host"));
        }
        // One of the host's may be ending, and its lanes not have ended.
        let is_full = count >= limits.controller_count_max || count_of_host > 0;
        if !is_full && !self.target.is_stopping {
            self.shared.find(format!(
                "connection {id}: no controller is left, with {count} others at most, {count_of_host} of its host"
            ));
        }
        self.note_limited(id);
    }

    /// Whether the target has accepted more than it may.
    fn judge_counts(&mut self) {
        let limits = self.shared.scenario.target.limits;
        let connections = &self.shared.network.connections;
        let is_open = |of: &usize| connections[*of].listener == NVME && connections[*of].is_open_at_target();
        let open: Vec<usize> = (0..connections.len()).filter(is_open).collect();
        // A queue whose host has not authenticated yet belongs to no controller. Its time begins at Connect, is checked in
        // steps, and the reactor of the queue learns of its end by a message.
        let is_asked = self.shared.scenario.security.authentication.is_some();
        let owing_ns = AUTHENTICATION_NS + TIMER_STEP_NS + self.shared.scenario.order_ns_max();
        let now_ns = self.shared.now_ns;
        let may_owe = |connection: &Connection| {
            is_asked && connection.may_owe_authentication() && connection.heard_ns + owing_ns > now_ns
        };
        let admin: Vec<usize> = open
            .iter()
            .copied()
            .filter(|of| connections[*of].is_connected() && connections[*of].watch.is_admin())
            .filter(|of| !may_owe(&connections[*of]))
            .collect();
        let of_address = |id: usize| {
            let address = connections[id].peer.ip();
            open.iter().filter(|of| connections[**of].peer.ip() == address).count()
        };
        let of_host = |id: usize| admin.iter().filter(|of| self.has_name_of(id, **of)).count();
        let reactors = 0..usize::from(self.shared.scenario.target.reactor_count);
        let unconnected_count = |reactor: Actor| {
            let of_reactor = open.iter().map(|of| &connections[*of]);
            let of_reactor = of_reactor.filter(|connection| connection.owners[1] == Some(reactor));
            of_reactor.filter(|connection| !connection.watch.has_sent_connect).count()
        };
        let counts = [
            ("connections", open.len(), limits.connection_count_max as usize),
            (
                "connections of an address",
                open.iter().map(|id| of_address(*id)).max().unwrap_or(0),
                limits.connection_count_per_address_max as usize,
            ),
            ("controllers", admin.len(), limits.controller_count_max),
            (
                "controllers of a host",
                admin.iter().map(|id| of_host(*id)).max().unwrap_or(0),
                limits.controller_count_per_host_max,
            ),
            (
                "connections without a queue",
                reactors.map(unconnected_count).max().unwrap_or(0),
                self.unconnected_limit(),
            ),
        ];
        if let Some((what, count, limit)) = counts.into_iter().find(|(_, count, limit)| count > limit) {
            self.shared.find(format!("the target has {count} {what}, and may have {limit}"));
        }
    }

    /// Number of connections without a queue that a reactor keeps.
    pub(super) fn unconnected_limit(&self) -> usize {
        let scenario = &self.shared.scenario;
        (scenario.target.limits.unconnected_count_max as usize).div_ceil(scenario.target.reactor_count.into())
    }

    /// Number of connections without a queue that a reactor may have: a Connect that was sent may not have succeeded
    /// yet, and a queue on which a bit was wrong may wait for its host to close it.
    pub(super) fn unconnected_count_max(&self, reactor: Actor) -> usize {
        let connections = &self.shared.network.connections;
        let of_reactor = connections.iter().filter(|connection| connection.owners[1] == Some(reactor));
        of_reactor.filter(|connection| connection.is_open_at_target() && may_lack_queue(connection)).count()
    }
}

/// Whether the target may count a connection as one without a queue.
pub(super) fn may_lack_queue(connection: &Connection) -> bool {
    connection.listener == NVME && (!connection.is_connected() || connection.damaged_ns.is_some())
}
