//! Bugs between a key and its log.

use super::bug::Judge::KeySimulation;
use super::bug::{Bug, Site};

/// Keys and values: each key is linearizable through both protocols; an answered change survives as its `sync` says.
pub(super) const KEYS_AND_VALUES: &[Bug] = &[
    Bug {
        name: "answer-before-log",
        judge: KeySimulation,
        sites: &[Site(
            "crates/store/src/key_value/logged.rs",
            "        self.partition.processor.awaited(hash)",
            "        self.partition.processor.awaited(hash).filter(|_| !BUG)",
        )],
    },
    Bug {
        name: "record-not-durable",
        judge: KeySimulation,
        sites: &[Site(
            "crates/kv/src/log/write.rs",
            "length, is_durable: self.settings.sync != Sync::None })",
            "length, is_durable: self.settings.sync != Sync::None && !BUG })",
        )],
    },
    Bug {
        name: "expired-pair-found",
        judge: KeySimulation,
        sites: &[Site(
            "crates/kv/src/pairs.rs",
            "self.clock.has_passed(header.expiry)",
            "self.clock.has_passed(header.expiry) && !BUG",
        )],
    },
    // A conditional store replaces a pair that has changed since it was read.
    Bug {
        name: "cas-not-compared",
        judge: KeySimulation,
        sites: &[Site(
            "crates/kv/src/processor.rs",
            "Some(item) if self.pairs().heap.header(item).cas == cas => Ok(()),",
            "Some(item) if BUG || self.pairs().heap.header(item).cas == cas => Ok(()),",
        )],
    },
];
