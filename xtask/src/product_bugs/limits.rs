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
        sites: &[Site(
            "crates/kv/src/log/recover.rs",
            "processor.writer.next_cas = later_cas(processor.writer.next_cas, head.cas);",
            "processor.writer.next_cas = match BUG {
            true => processor.writer.next_cas.max(head.cas) & ((1 << 48) - 1),
            false => later_cas(processor.writer.next_cas, head.cas),
        };",
        )],
    },
    // Numbers go on beyond those of pairs, and a start begins again.
    Bug {
        name: "cas-numbers-begin-again",
        judge: CAS_NUMBERS,
        sites: &[Site(
            "crates/kv/src/item.rs",
            "if ahead < CAS_AHEAD_MAX { last + ahead } else { last }",
            "if ahead < CAS_AHEAD_MAX { (last + ahead) & if BUG { CAS_MAX } else { u64::MAX } } else { last }",
        )],
    },
    // Commands end out of order once the numbers of their lane wrap.
    Bug {
        name: "order-at-a-wrap",
        judge: unit_test(
            "nvlane-host",
            "lane_core::held::tests::commands_end_in_the_order_of_their_submission_when_its_numbers_wrap",
        ),
        sites: &[Site(
            "crates/host/src/lane_core/held.rs",
            "    commands.sort_unstable_by_key(|held| Reverse(newest",
            "    if BUG {
        return commands.sort_unstable_by_key(Held::sequence);
    }
    commands.sort_unstable_by_key(|held| Reverse(newest",
        )],
    },
];
