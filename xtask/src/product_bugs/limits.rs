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
                "crates/kv/src/item.rs",
                "    let ahead = cas.wrapping_sub(last) & CAS_MAX;",
                "    if BUG {
        return last.max(cas);
    }
    let ahead = cas.wrapping_sub(last) & CAS_MAX;",
            ),
            Site(
                "crates/kv/src/log/recover.rs",
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
            "crates/host/src/lane_core/held.rs",
            "    commands.sort_unstable_by_key(|held| Reverse(newest",
            "    if BUG {
        return commands.sort_unstable_by_key(Held::sequence);
    }
    commands.sort_unstable_by_key(|held| Reverse(newest",
        )],
    },
];
