//! Counters of a target's reactors and lanes, as log lines.

use subsystem::lane_counters::{LaneReport, PhaseReport};
use subsystem::server::Target;
use subsystem::state::TargetState;

/// Logs a line per reactor, per lane of the data path, and per reason for which connections were refused or closed.
pub(super) fn log(target: &Target) {
    let Some(state) = target.state() else { return tracing::error!("the target's reactors have ended") };
    for turns in &state.reactors {
        tracing::info!(
            reactor = turns.reactor,
            busy_turns = turns.busy_turn_count,
            spins = turns.spin_turn_count,
            sleeps = turns.sleep_count,
            asleep_ms = turns.asleep_ns / 1_000_000,
            "counters of a reactor"
        );
        let buffers = &turns.buffers;
        tracing::info!(
            reactor = turns.reactor,
            bytes = buffers.bytes,
            free_bytes = buffers.free_bytes,
            free_bytes_min = buffers.free_bytes_min,
            waited = buffers.waited_count,
            waiting_lanes = buffers.waiting_lanes,
            held_back = buffers.held_back_count,
            "buffers of a reactor"
        );
    }
    tell_connections(&state);
    for controller in state.subsystems.iter().flat_map(|subsystem| &subsystem.controllers) {
        for queue in &controller.queues {
            let counters = &queue.counters;
            tracing::info!(
                host = controller.host,
                cntlid = controller.cntlid,
                qid = queue.qid,
                reactor = queue.reactor,
                commands = counters.command_count,
                sent_bytes = counters.sent_bytes,
                received_bytes = counters.received_bytes,
                in_place_bytes = counters.in_place_bytes,
                zero_copy_sends = counters.zero_copy_count,
                zero_copy_bytes = counters.zero_copy_bytes,
                zero_copy_copied = counters.zero_copy_copied_count,
                zero_copy_awaited = counters.zero_copy_awaited_count,
                caravans = counters.caravan_count,
                per_caravan = per_caravan(counters),
                sends = counters.send_count,
                blocked = counters.blocked_count,
                receives = counters.receive_count,
                dry_receives = counters.dry_receive_count,
                doorbells = rings(counters),
                doorbell_waited_us = counters.doorbell_waited_ns / 1000,
                phases = phases(&counters.phases),
                "counters of a lane"
            );
        }
    }
}

/// Logs the number of connections, and a line per reason for which connections were refused or closed.
pub(super) fn tell_connections(state: &TargetState) {
    let connections = &state.connections;
    tracing::info!(
        hosts = connections.count,
        unauthenticated = state.unauthenticated_count,
        memcached = connections.memcached_count,
        "connections"
    );
    for (reason, count) in &connections.complaints {
        tracing::info!(reason, count, "connections refused or closed");
    }
}

/// Mean commands and bytes per caravan.
fn per_caravan(counters: &LaneReport) -> String {
    let caravans = counters.caravan_count.max(1);
    let commands = counters.command_count as f64 / caravans as f64;
    format!("{commands:.1} commands, {} bytes", counters.sent_bytes / caravans)
}

fn rings(counters: &LaneReport) -> String {
    let rings = counters.rings.iter().map(|(reason, count)| format!("{reason} {count}"));
    rings.collect::<Vec<_>>().join(", ")
}

/// Mean and p99 of each phase.
fn phases(phases: &[PhaseReport]) -> String {
    let us = |ns: u64| ns as f64 / 1000.0;
    let phases = phases
        .iter()
        .map(|phase| format!("{} {:.1} us (p99 {:.1})", phase.phase, us(phase.mean_ns), us(phase.p99_ns)));
    phases.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_described_in_words() {
        let mut counters =
            LaneReport { caravan_count: 4, command_count: 10, sent_bytes: 400, ..LaneReport::default() };
        counters.rings = vec![("turn", 3), ("full", 1)];
        assert_eq!(per_caravan(&counters), "2.5 commands, 100 bytes");
        assert_eq!(rings(&counters), "turn 3, full 1");
        let phase = PhaseReport { phase: "backend", count: 1, mean_ns: 1_250, p99_ns: 2_047, max_ns: 2_100 };
        assert_eq!(phases(&[phase]), "backend 1.2 us (p99 2.0)");
    }
}
