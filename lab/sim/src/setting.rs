//! Settings of a scenario that make a run less plain: each by its name, with the value that has no effect.
//!
//! Draws of a scenario are many and depend on each other; these can be changed one by one afterwards.

// The fields are of all widths.
#![allow(clippy::cast_lossless)]

use proto::zero_copy::Policy as ZeroCopy;
use subsystem::config::TlsPolicy;
use wire::pdu::{DataAlignment, Digests};

use crate::pair_settings::PairDurability;
use crate::scenario::{POOL_BYTES, Scenario};

/// One setting.
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// The value in the plainest of runs.
    pub(crate) plain: u64,
    pub(crate) get: fn(&Scenario) -> u64,
    pub(crate) set: fn(&mut Scenario, u64),
}

/// A number in the scenario.
macro_rules! number {
    ($name:literal, $($field:ident).+, $plain:expr) => {
        Setting {
            name: $name,
            plain: $plain as u64,
            get: |scenario| scenario.$($field).+ as u64,
            set: |scenario, value| scenario.$($field).+ = value as _,
        }
    };
}

/// A number in the settings of the key-value namespace, if there is one.
macro_rules! pair_number {
    ($name:literal, $field:ident, $plain:expr) => {
        Setting {
            name: $name,
            plain: $plain as u64,
            get: |scenario| scenario.pairs.as_ref().map_or($plain as u64, |pairs| pairs.$field as u64),
            set: |scenario, value| {
                if let Some(pairs) = &mut scenario.pairs {
                    pairs.$field = value as _;
                }
            },
        }
    };
}

/// A yes or no.
macro_rules! flag {
    ($name:literal, $($field:ident).+, $plain:expr) => {
        Setting {
            name: $name,
            plain: $plain as u64,
            get: |scenario| scenario.$($field).+.into(),
            set: |scenario, value| scenario.$($field).+ = value != 0,
        }
    };
}

/// A part that may be left out.
macro_rules! part {
    ($name:literal, $is_there:expr, $leave_out:expr) => {
        Setting {
            name: $name,
            plain: 0,
            get: |scenario| {
                let is_there: fn(&Scenario) -> bool = $is_there;
                is_there(scenario).into()
            },
            set: |scenario, value| {
                let leave_out: fn(&mut Scenario) = $leave_out;
                if value == 0 {
                    leave_out(scenario);
                }
            },
        }
    };
}

/// All settings, those first that leave out most.
pub(crate) const SETTINGS: &[Setting] = &[
    part!("second-namespace", |it| it.second.spec.is_some(), |it| {
        (it.second.spec, it.second.block_count) = (None, 0);
    }),
    part!("key-values", |it| it.pairs.is_some(), |it| it.pairs = None),
    pair_number!("key-value-clients", client_count, 0),
    pair_number!("key-value-client-commands", client_command_limit, 0),
    part!("key-value-log", |it| it.pairs.as_ref().is_some_and(|pairs| pairs.file_bytes() > 0), |it| {
        if let Some(pairs) = &mut it.pairs {
            (pairs.durability, pairs.bytes) = (PairDurability::Memory, pairs.memory_bytes);
        }
    }),
    pair_number!("keys", key_count, 1),
    pair_number!("keys-that-collide", colliding_count, 0),
    pair_number!("key-value-depth", depth, 1),
    pair_number!("value-bytes", value_bytes_max, 1),
    Setting {
        name: "key-value-flushes",
        plain: 0,
        get: |scenario| scenario.pairs.as_ref().is_some_and(|pairs| pairs.allows_flush).into(),
        set: |scenario, value| {
            if let Some(pairs) = &mut scenario.pairs {
                pairs.allows_flush = value != 0;
            }
        },
    },
    part!("tls", |it| it.security.tls != TlsPolicy::Off, |it| {
        (it.security.tls, it.security.clear_count) = (TlsPolicy::Off, 0);
    }),
    part!("authentication", |it| it.security.authentication.is_some(), |it| {
        it.security.authentication.take_if(|_| it.security.tls != TlsPolicy::Concatenated);
    }),
    number!("reauthentication-interval-ms", security.reauthenticate_ms, 0),
    number!("tls-attempts-with-another-key", security.other_key_count, 0),
    number!("tls-attempts-in-clear", security.clear_count, 0),
    number!("tls-key-updates", security.key_updates, 0),
    number!("hosts", hosts.count, 1),
    number!("lanes", hosts.lane_count, 1),
    number!("reactors", target.reactor_count, 1),
    number!("discovery-hosts", hosts.scout_count, 0),
    flag!("host-that-leaves", hosts.has_leaver, 0),
    part!("separate-queues", |it| it.separate.is_some(), |it| it.separate = None),
    flag!("last-power-cut", ends_with_power_cut, 0),
    flag!("cuts-at-answers", cuts_at_answers, 0),
    number!("refused-calls", target.refusals, 0),
    flag!("late-stop", target.stops_late, 0),
    flag!("old-clocks", target.has_old_clocks, 0),
    flag!("writes-outlive-kill", target.writes_outlive_kill, 0),
    flag!("kills-at-writes", target.kills_at_writes, 0),
    flag!("replay", hosts.is_replayed, 0),
    number!("page-bytes", first.page_bytes, 4096),
    number!("depth", hosts.depth, 2),
    Setting {
        name: "digests",
        plain: 0,
        get: |scenario| scenario.security.digests.bits().into(),
        set: |scenario, value| scenario.security.digests = Digests::from_bits_truncate(value as u8),
    },
    flag!("flow-control", hosts.has_flow_control, 0),
    number!("r2ts-at-once", hosts.r2t_limit, 1),
    part!("zero-copy", |it| it.target.zero_copy != ZeroCopy::Off, |it| it.target.zero_copy = ZeroCopy::Off),
    part!("host-alignment", |it| it.hosts.alignment != DataAlignment::NONE, |it| {
        it.hosts.alignment = DataAlignment::NONE;
    }),
    number!("window-bytes", target.limits.window_bytes_max, 1 << 20),
    number!("windows", target.limits.window_count_max, 1),
    number!("h2c-data-bytes", target.limits.h2c_data_bytes_max, 1 << 20),
    number!("controllers", target.limits.controller_count_max, 8192),
    number!("controllers-per-host", target.limits.controller_count_per_host_max, 512),
    number!("connections", target.limits.connection_count_max, 65_536),
    number!("connections-per-address", target.limits.connection_count_per_address_max, 32_768),
    number!("unconnected", target.limits.unconnected_count_max, 4096),
    number!("queue-entries", target.limits.queue_entries_max, 512),
    number!("io-queues", target.limits.io_queue_count_max, 128),
    number!("aborts", target.limits.abort_count_max, 4),
    number!("namespace-ids", target.limits.nsid_max, 1024),
    number!("old-lane-wait-ms", target.limits.old_lane_wait_ms, 10_000),
    number!("twin-wait-ms", target.limits.twin_wait_ms, 3000),
    number!("connect-ms", target.timeouts.connect_ms, 10_000),
    number!("pdu-ms", target.timeouts.pdu_ms, 30_000),
    number!("send-ms", target.timeouts.send_ms, 10_000),
    number!("data-ms", target.timeouts.data_ms, 30_000),
    number!("contended-ms", target.timeouts.contended_ms, 1000),
    flag!("one-address", hosts.shares_address, 0),
    number!("c2h-data-bytes", target.c2h_data_bytes, 1 << 20),
    number!("pool-bytes", target.pool_bytes, POOL_BYTES),
    number!("late-segments", network.late, 0),
    number!("short-sends", network.short, 0),
    number!("wrong-bits", network.corrupt, 0),
    number!("piece-bytes", network.piece_max, 1 << 20),
    number!("socket-bytes", network.capacity, 256 << 10),
    number!("jitter-ns", network.jitter_ns, 1),
    number!("slow-operations", disk.slow, 0),
    number!("stuck-operations", disk.stuck, 0),
    number!("passing-errors", disk.passing, 0),
    number!("short-operations", disk.short, 0),
    number!("read-errors", disk.read_error, 0),
    number!("write-errors", disk.write_error, 0),
    number!("flush-errors", disk.sync_error, 0),
    number!("flush-ns", disk.flush_ns, 0),
    number!("disk-jitter-ns", disk.jitter_ns, 1),
    number!("disk-operations", disk.limit, 256),
    flag!("disk-ranges", disk.supports_ranges, 1),
    number!("late-threads", target.late, 0),
    number!("first-block", first.first_block, 0),
    Setting {
        name: "unreadable-blocks",
        plain: 0,
        get: |scenario| scenario.first.bad.unreadable.end - scenario.first.bad.unreadable.start,
        set: |scenario, value| {
            scenario.first.bad.unreadable.end = scenario.first.bad.unreadable.start + value;
        },
    },
    Setting {
        name: "unwritable-blocks",
        plain: 0,
        get: |scenario| scenario.first.bad.unwritable.end - scenario.first.bad.unwritable.start,
        set: |scenario, value| {
            scenario.first.bad.unwritable.end = scenario.first.bad.unwritable.start + value;
        },
    },
    number!("deallocated-ranges", load.deallocated_ranges_max, 4),
];
