//! Bugs of numbers that wrap or end, which a run reaches after days or years: tests set them high, or they start near it.

use super::bug::{Bug, Judge, Site, unit_test};

const CAS_NUMBERS: Judge =
    unit_test("nvlane-kv", "log::tests::limits::no_cas_number_is_given_again_beyond_the_largest");

/// Numbers that wrap: what compares them, or keeps them, goes on.
pub(super) const NUMBERS_THAT_END: &[Bug] = &[
    // A client's CAS number has those of lost values given again.
    Bug {
        name: "chosen-cas-number-counts",
        judge: CAS_NUMBERS,
        sites: &[
            Site(
                "crates/storage/kv/src/item.rs",
                "    let ahead = cas.wrapping_sub(last) & CAS_MAX;",
                "    if BUG {
        return last.max(cas);
    }
    let ahead = cas.wrapping_sub(last) & CAS_MAX;",
            ),
            Site(
                "crates/storage/kv/src/log/recover.rs",
                "        processor.writer.next_cas += CAS_LOST_COUNT;",
                "        processor.writer.next_cas += CAS_LOST_COUNT;
        processor.writer.next_cas &= if BUG { (1 << 48) - 1 } else { u64::MAX };",
            ),
        ],
    },
    // Commands end out of order once the numbers of their lane wrap.
    Bug {
        name: "order-at-a-wrap",
        judge: unit_test(
            "nvlane-host",
            "lane_core::held::tests::commands_end_in_the_order_of_their_submission_when_its_numbers_wrap",
        ),
        sites: &[Site(
            "crates/host/host/src/lane_core/held.rs",
            "    commands.sort_unstable_by_key(|held| Reverse(newest",
            "    if BUG {
        return commands.sort_unstable_by_key(Held::sequence);
    }
    commands.sort_unstable_by_key(|held| Reverse(newest",
        )],
    },
    // The expiry in 18 years becomes one in a year.
    Bug {
        name: "late-expiry-cut",
        judge: unit_test("nvlane-kv", "log::tests::limits::an_expiry_later_than_the_latest_never_comes"),
        sites: &[Site(
            "crates/storage/kv/src/item.rs",
            "let expiry = if self.expiry <= EXPIRY_MAX { self.expiry } else { 0 };",
            "let expiry = if self.expiry <= EXPIRY_MAX { self.expiry } else { 0 };
        let expiry = if BUG { self.expiry & EXPIRY_MAX } else { expiry };",
        )],
    },
    Bug {
        name: "log-with-64-holes-refused",
        judge: unit_test(
            "nvlane-kv",
            "log::tests::many_losses::a_log_with_64_holes_is_served_and_one_with_65_is_not",
        ),
        sites: &[Site(
            "crates/storage/kv/src/log/passed_over.rs",
            "let too_many = self.holes.get(HOLE_COUNT_MAX);",
            "let too_many = self.holes.get(HOLE_COUNT_MAX - usize::from(BUG));",
        )],
    },
    // Damage beyond what is told is not counted.
    Bug {
        name: "untold-damage-uncounted",
        judge: unit_test(
            "nvlane-kv",
            "log::tests::many_losses::of_more_than_100_notices_the_rest_is_only_counted",
        ),
        sites: &[Site(
            "crates/storage/kv/src/log/mod.rs",
            "        self.counters.damage_count += u64::from(matches!(notice, Notice::Passed { .. }));",
            "        let is_told = !BUG || self.notices.len() < NOTICE_COUNT_MAX;
        self.counters.damage_count += u64::from(is_told && matches!(notice, Notice::Passed { .. }));",
        )],
    },
    // A controller that identifies namespaces faster than it lists them fills the host's memory.
    Bug {
        name: "only-waiting-namespaces-limited",
        judge: unit_test(
            "nvlane-proto",
            "host_namespaces::tests::namespaces_beyond_the_limit_are_left_out_in_whatever_order_answers_come",
        ),
        sites: &[Site(
            "crates/protocol/proto/src/host_namespaces.rs",
            "self.listed_count >= NAMESPACE_COUNT_MAX",
            "if BUG { self.waiting.len() } else { self.listed_count } >= NAMESPACE_COUNT_MAX",
        )],
    },
];
