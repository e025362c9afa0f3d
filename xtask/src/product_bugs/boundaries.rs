//! Numbers of other people's protocols that end one too early or one too late.

use super::bug::{Bug, Judge, Site, test, unit_test};

const DECODE: &str = "crates/target/memcached/src/protocol/decode.rs";
const NVM_IO: &str = "crates/target/subsystem/src/io_path/nvm_io.rs";

const LINES: Judge = unit_test(
    "nvlane-memcached",
    "session_tests::boundaries::numbers_of_the_text_and_meta_protocols_end_where_those_of_memcached_do",
);
const PACKETS: Judge = unit_test(
    "nvlane-memcached",
    "session_tests::boundaries::numbers_of_the_binary_protocol_end_where_those_of_memcached_do",
);
const VALUES: Judge = unit_test(
    "nvlane-memcached",
    "session_tests::boundaries::a_value_is_stored_up_to_the_limit_of_the_listener_and_not_beyond",
);
const COPIES: Judge =
    test("nvlane", "end_to_end", "boundaries::blocks::ranges_are_as_many_and_as_long_as_is_said");

/// A peer that uses a protocol up to its limits, and one that goes beyond, is answered as the protocol says.
pub(super) const BOUNDARIES: &[Bug] = &[
    Bug {
        name: "opaque-of-31-bytes-refused",
        judge: LINES,
        sites: &[Site(
            DECODE,
            "flag.len() > OPAQUE_BYTES_MAX",
            "flag.len() > OPAQUE_BYTES_MAX.saturating_sub(usize::from(BUG))",
        )],
    },
    Bug {
        name: "one-meta-flag-too-many",
        judge: LINES,
        sites: &[Site(
            DECODE,
            "if at >= WORD_COUNT_MAX {",
            "if at >= WORD_COUNT_MAX.saturating_add(usize::from(BUG)) {",
        )],
    },
    Bug {
        name: "thirty-days-taken-for-a-date",
        judge: LINES,
        sites: &[Site(
            "crates/target/memcached/src/execute.rs",
            "1..=RELATIVE_S_MAX => now_s + exptime,",
            "1..=RELATIVE_S_MAX if !BUG || exptime < RELATIVE_S_MAX => now_s + exptime,",
        )],
    },
    Bug {
        name: "base64-key-of-250-bytes-refused",
        judge: LINES,
        sites: &[Site(
            "crates/target/memcached/src/number.rs",
            "if length > into.len() {",
            "if length > into.len() - usize::from(BUG) {",
        )],
    },
    Bug {
        name: "binary-counter-never-created",
        judge: PACKETS,
        sites: &[Site(
            "crates/target/memcached/src/protocol/binary.rs",
            "(exptime != u32::MAX).then_some(",
            "(exptime < u32::MAX - u32::from(BUG)).then_some(",
        )],
    },
    Bug {
        name: "extension-to-the-limit-refused",
        judge: VALUES,
        sites: &[Site(
            "crates/target/memcached/src/execute.rs",
            "if length > self.service.settings.value_bytes_max {",
            "if length + usize::from(BUG) > self.service.settings.value_bytes_max {",
        )],
    },
    Bug {
        name: "copy-of-mcl-blocks-refused",
        judge: COPIES,
        sites: &[Site(
            NVM_IO,
            "if blocks > u64::from(self.commands.limits.copy_blocks_max) {",
            "if blocks.saturating_add(u64::from(BUG)) > u64::from(self.commands.limits.copy_blocks_max) {",
        )],
    },
    Bug {
        name: "copy-range-beyond-mssrl-taken",
        judge: COPIES,
        sites: &[Site(
            NVM_IO,
            "if source.blocks() > self.commands.limits.copy_range_blocks_max {",
            "if source.blocks() > self.commands.limits.copy_range_blocks_max.saturating_add(u32::from(BUG)) {",
        )],
    },
    Bug {
        name: "key-that-fills-a-list-left-out",
        judge: test("nvlane", "end_to_end", "boundaries::keys::a_list_has_as_many_keys_as_fit"),
        sites: &[Site(
            "crates/target/subsystem/src/messages/key_value/perform.rs",
            "has_room = used <= room;",
            "has_room = used + usize::from(BUG) <= room;",
        )],
    },
    Bug {
        name: "batch-of-1024-refused",
        judge: test("nvlane", "end_to_end", "boundaries::keys::a_batch_has_up_to_1024_operations"),
        sites: &[Site(
            "crates/target/subsystem/src/io_path/key_value_io/batch.rs",
            "!(1..=OPERATION_COUNT_MAX).contains(&command.count)",
            "!(1..=OPERATION_COUNT_MAX - u16::from(BUG)).contains(&command.count)",
        )],
    },
];
