//! Bugs of times and counts that go back, although they only ever grow.

use super::bug::{Bug, Judge, Site, unit_test};

/// What was known once is not forgotten for an older state.
pub(super) const GOING_BACK: &[Bug] = &[
    // A thread that was held up puts the older time of its clock in place of the last sign of life.
    Bug {
        name: "sign-of-life-taken-back",
        judge: Judge::Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/objects/association.rs",
            "        if now_ns > last_ns {",
            "        if BUG {
            self.last_sign_ns.store(now_ns, Ordering::Relaxed);
        }
        if now_ns > last_ns {",
        )],
    },
    // Two Flushes of a host fail after one reopening.
    Bug {
        name: "flush-epoch-goes-back",
        judge: unit_test(
            "nvlane-subsystem",
            "objects::flush_epochs::tests::a_lane_that_knows_an_older_opening_takes_no_epoch_back",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/objects/flush_epochs.rs",
            "        if had < generation.open() {",
            "        if BUG || had < generation.open() {",
        )],
    },
    // Pairs that had expired come back after a start at which the wall clock is behind.
    Bug {
        name: "log-time-goes-back",
        judge: unit_test(
            "nvlane-kv",
            "clock::tests::with_a_clock_that_is_behind_log_time_goes_on_behind_all_expiry_times",
        ),
        sites: &[Site(
            "crates/storage/kv/src/clock.rs",
            "let log_s = self.log_s().max(expires_until_s.clamp(TIMES_S.start, TIMES_S.end));",
            "let log_s = if BUG { self.moment.unix_s } else { self.log_s() };
        let log_s = log_s.max(expires_until_s.clamp(TIMES_S.start, TIMES_S.end) * i64::from(!BUG));",
        )],
    },
];
