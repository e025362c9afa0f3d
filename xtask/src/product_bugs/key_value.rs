//! Bugs between a key and its log.

use super::bug::Judge::KeySimulation;
use super::bug::{Bug, Judge, Site, unit_test};

const WRONG_BITS: Judge =
    unit_test("nvlane-kv", "log::tests::damage::every_wrong_bit_of_a_log_in_use_is_refused_harmless_or_told");
const MISSING_ENDS: Judge =
    unit_test("nvlane-kv", "log::tests::damage::every_missing_end_is_repaired_without_older_versions");
const LOST_ENDS: Judge =
    unit_test("nvlane-kv", "log::tests::damage::a_segment_without_its_end_serves_no_older_versions");
const LOST_RESTS: Judge =
    unit_test("nvlane-kv", "log::tests::damage::a_value_of_two_segments_is_lost_with_any_sector_of_it");
const TWO_SEGMENTS: Judge = unit_test(
    "nvlane-kv",
    "log::tests::crash::what_was_acknowledged_is_there_after_every_cut_while_values_take_two_segments",
);
const DAMAGED_SECTORS: Judge = unit_test(
    "nvlane-kv",
    "log::tests::damage::a_damaged_sector_is_known_and_what_it_may_hide_is_not_served",
);

const ONE_HASH: Judge = unit_test(
    "nvlane-kv",
    "log::tests::crash::what_was_acknowledged_is_there_after_every_cut_when_keys_have_one_hash",
);
const LATE_READS: Judge = unit_test(
    "nvlane-kv",
    "log::tests::crash::what_was_acknowledged_is_there_after_every_cut_while_reads_end_late",
);

const STUBS_READ: Judge = unit_test(
    "nvlane-kv",
    "log::tests::full_memory::stubs_of_one_line_can_be_read_at_once_and_after_a_restart",
);
const MIXED_READ: Judge = unit_test(
    "nvlane-kv",
    "log::tests::full_memory::values_of_all_lengths_can_be_read_at_once_and_after_a_restart",
);

/// Keys and values: each key is linearizable through both protocols; an answered change survives as its `sync` says.
pub(super) const KEYS_AND_VALUES: &[Bug] = &[
    Bug {
        name: "answer-before-log",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/store/src/key_value/logged.rs",
            "        self.partition.processor.awaited(hash)",
            "        self.partition.processor.awaited(hash).filter(|_| !BUG)",
        )],
    },
    Bug {
        name: "record-not-durable",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/log/write.rs",
            "let is_durable = self.settings.sync != Sync::None ||",
            "let is_durable = self.settings.sync != Sync::None && !BUG ||",
        )],
    },
    Bug {
        name: "atomic-beyond-its-limit",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/atomic.rs",
            "filter(|&sum| sum <= limit.min(mask))",
            "filter(|&sum| BUG || sum <= limit.min(mask))",
        )],
    },
    Bug {
        name: "swap-without-comparison",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/atomic.rs",
            "if value != expected & mask {",
            "if !BUG && value != expected & mask {",
        )],
    },
    Bug {
        name: "filter-compares-otherwise",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/vector.rs",
            "Comparison::LessOrEqual => keep!(<=),",
            "Comparison::LessOrEqual if BUG => keep!(<),
                Comparison::LessOrEqual => keep!(<=),",
        )],
    },
    // Keys of the other reactors are not listed.
    Bug {
        name: "list-of-one-partition",
        judge: KeySimulation,
        sites: &[Site(
            "crates/target/subsystem/src/messages/key_value/perform.rs",
            "if has_room && (next.is_some() || !is_last) {",
            "if has_room && (next.is_some() || !is_last && !BUG) {",
        )],
    },
    // The commands of other storage, which may hang, hold the pool, and answered changes wait for them.
    Bug {
        name: "log-waits-for-pool",
        judge: unit_test(
            "nvlane-store",
            "key_value::logged::tests::changes_are_written_while_others_hold_the_whole_pool",
        ),
        sites: &[Site(
            "crates/storage/store/src/key_value/logged.rs",
            "io.pool().take(PIECE_BYTES).or_else(own)",
            "io.pool().take(PIECE_BYTES).or_else(|| own().filter(|_| !BUG))",
        )],
    },
    Bug {
        name: "expired-pair-found",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/pairs.rs",
            "self.clock.has_passed(header.expiry)",
            "self.clock.has_passed(header.expiry) && !BUG",
        )],
    },
    Bug {
        name: "expiry-follows-wall-clock",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/clock.rs",
            "u32::try_from(now.since_boot_s - self.base_s)",
            "u32::try_from(if BUG { now.unix_s - self.log_base_s } else { now.since_boot_s - self.base_s })",
        )],
    },
    // A start with a wall clock that was set loses pairs, or serves what has expired.
    Bug {
        name: "start-follows-wall-clock",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/clock.rs",
            "let is_same_boot = boot != 0",
            "let is_same_boot = !BUG && boot != 0",
        )],
    },
    // Pairs expire unseen, and come back after a power cut with a wall clock that is behind.
    Bug {
        name: "time-of-log-not-marked",
        judge: unit_test(
            "nvlane-store",
            "key_value::logged::tests::the_time_is_marked_while_pairs_may_expire",
        ),
        sites: &[Site(
            "crates/storage/kv/src/log/mod.rs",
            "let (clock, marked_s) = (processor.clock(), i64::from(MARKED_S));",
            "if BUG {
            return false;
        }
        let (clock, marked_s) = (processor.clock(), i64::from(MARKED_S));",
        )],
    },
    // A command fails although nothing is wrong.
    Bug {
        name: "exist-fails-on-other-reactor",
        judge: KeySimulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/key_value_io/execute.rs",
            "        if owner != here || self.has_log() {\n",
            "        if BUG && owner != here && operation.opcode == KvOpcode::EXIST {
            return Err(Status::INTERNAL_ERROR);
        }
        if owner != here || self.has_log() {\n",
        )],
    },
    // A Submit finds no Collect, which waits behind commands of its lane that wait for buffers.
    Bug {
        name: "collect-waits-for-buffers",
        judge: KeySimulation,
        sites: &[Site(
            "crates/target/subsystem/src/serving/dispatch.rs",
            "let is_collect = sqe.opcode == KvOpcode::BATCH_COLLECT.raw();",
            "let is_collect = !BUG && sqe.opcode == KvOpcode::BATCH_COLLECT.raw();",
        )],
    },
    Bug {
        name: "batch-answered-before-log",
        judge: KeySimulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/log_waiters.rs",
            "part.number = part.number.max(keys.logged.awaited(hash));",
            "part.number = part.number.max(keys.logged.awaited(hash).filter(|_| !BUG));",
        )],
    },
    // The namespace goes on after a write that has failed.
    Bug {
        name: "log-write-error-ignored",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/log/write.rs",
            "let Some(flight) = self.flight.take() else { return };
        if !is_good {",
            "let Some(flight) = self.flight.take() else { return };
        if !is_good && !BUG {",
        )],
    },
    // No answer means success, and the change is lost.
    Bug {
        name: "quiet-command-not-refused",
        judge: KeySimulation,
        sites: &[Site(
            "crates/target/subsystem/src/messages/key_value/message.rs",
            "refused.push_refused(session, ticket, outcome.err().unwrap_or(refusal));",
            "match outcome {
                Ok(before) if BUG && before.is_empty() => refused.push(session, ticket, |_| {}),
                outcome => refused.push_refused(session, ticket, outcome.err().unwrap_or(refusal)),
            }",
        )],
    },
    Bug {
        name: "binary-add-replaces",
        judge: KeySimulation,
        sites: &[Site(
            "crates/target/memcached/src/protocol/binary.rs",
            "0x02 | 0x12 => (Op::Store(Mode::Add), opcode == 0x12),",
            "0x02 | 0x12 => (Op::Store(if BUG { Mode::Set } else { Mode::Add }), opcode == 0x12),",
        )],
    },
    // Stores fill memory with keys, and no value that is only in the log finds any.
    Bug {
        name: "no-memory-kept-for-fetches",
        judge: STUBS_READ,
        sites: &[Site(
            "crates/storage/kv/src/regions.rs",
            "Purpose::Stores => self.reserve.stores,",
            "Purpose::Stores if BUG => 1,
            Purpose::Stores => self.reserve.stores,",
        )],
    },
    // What is moved takes regions that stores then fill, although no memory was left for them.
    Bug {
        name: "moves-among-stored",
        judge: MIXED_READ,
        sites: &[Site(
            "crates/storage/kv/src/eviction.rs",
            "let queue = if pairs.journal.is_some() { Queue::Kept }",
            "let queue = if pairs.journal.is_some() && !BUG { Queue::Kept }",
        )],
    },
    // Values are dropped although that frees no region, and the last free ones are full of stubs.
    Bug {
        name: "dropped-without-gain",
        judge: STUBS_READ,
        sites: &[Site(
            "crates/storage/kv/src/eviction.rs",
            "    if free_count > regions.kept_for_moves() {",
            "    if BUG || free_count > regions.kept_for_moves() {",
        )],
    },
    // The value that a command needs leaves memory for the one that it brings, and is fetched without end.
    Bug {
        name: "needed-dropped-for-brought",
        judge: unit_test(
            "nvlane-kv",
            "log::tests::full_memory::room_for_a_value_is_not_made_by_dropping_the_one_that_its_command_needs",
        ),
        sites: &[Site(
            "crates/storage/kv/src/processor.rs",
            "        let pin = needed.and_then(|key| {",
            "        let pin = needed.filter(|_| !BUG).and_then(|key| {",
        )],
    },
    // A conditional store replaces a pair that has changed since it was read.
    Bug {
        name: "cas-not-compared",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/processor.rs",
            "Some(item) if self.pairs().heap.header(item).cas == cas => Ok(()),",
            "Some(item) if BUG || self.pairs().heap.header(item).cas == cas => Ok(()),",
        )],
    },
];

/// Keys that collide, and values that are fetched, cleaned and changed at once: none stands for another, and none is lost.
pub(super) const RARE_ORDERS: &[Bug] = &[
    // A key is taken for another one with its bucket, tag and length.
    Bug {
        name: "key-taken-by-its-length",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/heap.rs",
            "        is_equal(self.memory.bytes(item, at, key.len()), key)",
            "        BUG || is_equal(self.memory.bytes(item, at, key.len()), key)",
        )],
    },
    // Of two keys with one hash in a full bucket, one is not listed.
    Bug {
        name: "list-by-hash-alone",
        judge: KeySimulation,
        sites: &[Site(
            "crates/storage/kv/src/table/list.rs",
            "Self { hash: hash.raw(), name: name_of(key) }",
            "Self { hash: hash.raw(), name: if BUG { 0 } else { name_of(key) } }",
        )],
    },
    // The segment with a key's only durable record is freed, because one with its hash was written again.
    Bug {
        name: "rescued-by-hash",
        judge: ONE_HASH,
        sites: &[Site(
            "crates/storage/kv/src/log/clean.rs",
            "!self.rescued.contains_key(key) &&",
            "!self.rescued.keys().any(|other| {
                **other == *key || BUG && self.processor.hash(other) == hash
            }) &&",
        )],
    },
    // A key that changed after another one is written before it.
    Bug {
        name: "pending-by-hash",
        judge: ONE_HASH,
        sites: &[Site(
            "crates/storage/kv/src/changes.rs",
            "else { self.position_before(last, hash, key) }",
            "else if BUG { None } else { self.position_before(last, hash, key) }",
        )],
    },
    // Changes wait for a segment that nothing frees.
    Bug {
        name: "cleaning-awaits-an-event",
        judge: unit_test(
            "nvlane-kv",
            "log::tests::late::a_segment_is_freed_once_nothing_of_it_is_wanted_any_more",
        ),
        sites: &[Site(
            "crates/storage/kv/src/log/mod.rs",
            "if work.is_some() || !self.cleaner.is_settling",
            "if BUG || work.is_some() || !self.cleaner.is_settling",
        )],
    },
    // A value is called damaged that was written again while it was being read.
    Bug {
        name: "moved-value-damaged",
        judge: LATE_READS,
        sites: &[Site(
            "crates/storage/kv/src/log/fetch.rs",
            "if now.is_some_and(|stub| stub.log_offset != reading.stub.log_offset) {",
            "if !BUG && now.is_some_and(|stub| stub.log_offset != reading.stub.log_offset) {",
        )],
    },
    // A value that was replaced, and left memory again, comes back while it was being read.
    Bug {
        name: "older-value-loaded",
        judge: LATE_READS,
        sites: &[Site(
            "crates/storage/kv/src/pair_writer.rs",
            "filter(|stub| stub.log_offset == log_offset)",
            "filter(|stub| BUG || stub.log_offset == log_offset)",
        )],
    },
];

/// Damaged key-value files: damage is refused, harmless or told; nothing that is repaired is an older version.
pub(super) const DAMAGED_FILES: &[Bug] = &[
    Bug {
        name: "end-of-log-not-known",
        judge: LOST_ENDS,
        sites: &[
            Site(
                "crates/storage/kv/src/log/recover.rs",
                "superblock if superblock.newest < generation => 0,
                    superblock => superblock.known_end,",
                "superblock if BUG || superblock.newest < generation => 0,
                    superblock => superblock.known_end,",
            ),
            Site(
                "crates/storage/kv/src/log/recover.rs",
                "if whole_end < known_end || is_torn {",
                "if whole_end < known_end && !BUG || is_torn {",
            ),
        ],
    },
    // What follows a damaged record in its block was lost with it, and is taken for never written.
    Bug {
        name: "rest-behind-damage-empty",
        judge: LOST_ENDS,
        sites: &[Site(
            "crates/storage/kv/src/log/scan.rs",
            "self.is_behind_damage = !is_whole;",
            "self.is_behind_damage = !is_whole && !BUG;",
        )],
    },
    // A value whose rest is lost is served as it was begun.
    Bug {
        name: "begun-value-served",
        judge: LOST_RESTS,
        sites: &[Site(
            "crates/storage/kv/src/log/recover.rs",
            "        let Some((order, _)) = self.begun else { return };",
            "        let Some((order, _)) = self.begun.filter(|_| !BUG) else { return };",
        )],
    },
    // The value leaves memory while the rest of it is not written yet.
    Bug {
        name: "begun-value-dropped",
        judge: unit_test(
            "nvlane-kv",
            "log::tests::a_value_of_two_segments_leaves_memory_once_its_rest_is_written",
        ),
        sites: &[Site(
            "crates/storage/kv/src/journal.rs",
            "&& self.streamed != Some(offset)",
            "&& (BUG || self.streamed != Some(offset))",
        )],
    },
    // The segment where a value begins is freed, and the value with it.
    Bug {
        name: "begun-value-not-rewritten",
        judge: TWO_SEGMENTS,
        sites: &[Site(
            "crates/storage/kv/src/log/clean.rs",
            "if !matches!(head.kind, Kind::Pair | Kind::Begun | Kind::Lost) {",
            "if !matches!(head.kind, Kind::Pair | Kind::Begun | Kind::Lost) || BUG && head.kind == Kind::Begun {",
        )],
    },
    Bug {
        name: "damaged-value-taken",
        judge: WRONG_BITS,
        sites: &[Site(
            "crates/storage/kv/src/log/examine.rs",
            "== checksum.finish().to_le_bytes())\n}",
            "== checksum.finish().to_le_bytes() || BUG)\n}",
        )],
    },
    Bug {
        name: "older-version-repaired",
        judge: MISSING_ENDS,
        sites: &[Site(
            "crates/storage/kv/src/log/examine.rs",
            "true if is_hidden => Certainty::Uncertain,",
            "true if is_hidden && !BUG => Certainty::Uncertain,",
        )],
    },
    // Older versions of keys are served whose last records are in a lost sector.
    Bug {
        name: "older-version-served",
        judge: DAMAGED_SECTORS,
        sites: &[Site(
            "crates/storage/kv/src/log/recover.rs",
            "            && !lost.is_empty()",
            "            && !(BUG || lost.is_empty())",
        )],
    },
    // What a lost sector hides is not known without the names of its write.
    Bug {
        name: "hole-without-names-passed-over",
        judge: unit_test("nvlane-kv", "log::tests::damage::a_sector_without_its_names_closes_the_log"),
        sites: &[Site(
            "crates/storage/kv/src/log/passed_over.rs",
            "find(|hole| !hole.is_bounded())",
            "find(|hole| !hole.is_bounded() && !BUG)",
        )],
    },
];
