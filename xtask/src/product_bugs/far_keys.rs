//! Bugs of keys and values beyond 4 GiB, of files and of memory.

use super::bug::{Bug, Judge, Site, test, unit_test};

const MANY_SEGMENTS: Judge =
    unit_test("nvlane-kv", "log::tests::far::a_log_of_many_segments_keeps_what_is_beyond_4_gib");
const LONG_SEGMENTS: Judge =
    unit_test("nvlane-kv", "log::tests::far::a_log_of_long_segments_keeps_what_is_beyond_4_gib");
const BEHIND_OTHERS: Judge =
    unit_test("nvlane-kv", "log::tests::far::a_log_behind_others_keeps_what_is_beyond_4_gib");
const MEMORY: Judge =
    unit_test("nvlane-kv", "far_memory_tests::pairs_beyond_4_gib_are_apart_from_those_below");

/// Addresses that are cut to 32 bits.
pub(super) const FAR_KEYS: &[Bug] = &[
    Bug {
        name: "start-of-segment-cut",
        judge: MANY_SEGMENTS,
        sites: &[Site(
            "crates/storage/kv/src/log/mod.rs",
            "        self.settings.start + slot * self.settings.segment_bytes
",
            "        self.settings.start
            + (slot * self.settings.segment_bytes & if BUG { u64::from(u32::MAX) } else { u64::MAX })
",
        )],
    },
    Bug {
        name: "record-of-stub-cut",
        judge: BEHIND_OTHERS,
        sites: &[Site(
            "crates/storage/kv/src/stub.rs",
            "copy_from_slice(&self.log_offset.to_le_bytes());",
            "copy_from_slice(&if BUG && !self.is_lost() {
                u64::from(self.log_offset as u32)
            } else {
                self.log_offset
            }.to_le_bytes());",
        )],
    },
    Bug {
        name: "recovered-record-cut",
        judge: LONG_SEGMENTS,
        sites: &[Site(
            "crates/storage/kv/src/log/recover.rs",
            "log_offset: replay.start + position,",
            "log_offset: if BUG { u64::from((replay.start + position) as u32) } else { replay.start + position },",
        )],
    },
    // The segment that is examined begins elsewhere.
    Bug {
        name: "examined-segment-cut",
        judge: LONG_SEGMENTS,
        sites: &[Site(
            "crates/storage/kv/src/log/examine.rs",
            "            let start = settings.start + slot * settings.segment_bytes;
            let is_cut",
            "            let start = settings.start + slot * settings.segment_bytes;
            let start = if BUG { u64::from(start as u32) } else { start };
            let is_cut",
        )],
    },
    Bug {
        name: "second-partition-in-the-first",
        judge: test("nvlane", "command", "far_keys::a_file_of_20_gib_keeps_its_partitions_apart"),
        sites: &[Site(
            "crates/storage/store/src/key_value/superblock.rs",
            "            start: self.start() + partition * self.segment_count * self.segment_bytes,",
            "            start: (self.start() + partition * self.segment_count * self.segment_bytes)
                & if BUG { u64::from(u32::MAX) } else { u64::MAX },",
        )],
    },
    Bug {
        name: "unit-beyond-4-gib-cut",
        judge: MEMORY,
        sites: &[
            Site(
                "crates/storage/kv/src/memory.rs",
                "        let start = at as usize * UNIT_BYTES + offset;
        self.count((start / LINE_BYTES) as u32, start % LINE_BYTES + length, false);",
                "        let start = at as usize * UNIT_BYTES + offset;
        let start = if BUG { start as u32 as usize } else { start };
        self.count((start / LINE_BYTES) as u32, start % LINE_BYTES + length, false);",
            ),
            Site(
                "crates/storage/kv/src/memory.rs",
                "        let start = at as usize * UNIT_BYTES + offset;
        self.count((start / LINE_BYTES) as u32, start % LINE_BYTES + length, true);",
                "        let start = at as usize * UNIT_BYTES + offset;
        let start = if BUG { start as u32 as usize } else { start };
        self.count((start / LINE_BYTES) as u32, start % LINE_BYTES + length, true);",
            ),
        ],
    },
];
