//! Each place where durability is asked of the kernel, of a file or of the target, without it. docs/testing.md lists
//! them.

use super::bug::Judge::DurableCalls;
use super::bug::{Bug, Judge, Site, test, unit_test};

const FILE_OPEN: &str = "crates/storage/store/src/block/file_open.rs";
const LOG: &str = "crates/storage/kv/src/log/mod.rs";
const LOG_WRITE: &str = "crates/storage/kv/src/log/write.rs";
const RING: &str = "crates/system/reactor/src/ring.rs";
const WHOLE_FILE: &str = "crates/system/reactor/src/whole_file.rs";
const WORKERS: &str = "crates/system/reactor/src/workers.rs";

const FUA_OF_HANDLES: Judge = test("nvlane-host", "handles", "only_durable_writes_have_fua");
const OF_RING: Judge = unit_test(
    "nvlane-reactor",
    "ring::tests::the_kernel_is_asked_for_durability_by_durable_writes_and_flushes_only",
);
const OF_WORKERS: Judge = unit_test(
    "nvlane-reactor",
    "workers::tests::the_kernel_is_asked_for_durability_by_durable_writes_and_flushes_only",
);
const WHOLE_FILES: Judge =
    unit_test("nvlane-sim", "crash_files::tests::files_are_there_as_a_whole_or_not_at_all");

const fn of_log(name: &'static str) -> Judge {
    unit_test("nvlane-kv", name)
}

/// Durability: what a Flush or FUA has covered survives a power cut.
pub(super) const DURABLE_PLACES: &[Bug] = &[
    Bug {
        name: "host-command-without-fua",
        judge: unit_test("nvlane-host", "namespace::tests::commands_name_their_blocks_and_bytes"),
        sites: &[Site(
            "crates/host/host/src/submit.rs",
            "Self { sqe: self.sqe.with_fua(), ..self }",
            "Self { sqe: if BUG { self.sqe } else { self.sqe.with_fua() }, ..self }",
        )],
    },
    Bug {
        name: "blocking-write-without-fua",
        judge: FUA_OF_HANDLES,
        sites: &[Site("crates/host/host/src/blocking.rs", "Ok(if fua {", "Ok(if fua && !BUG {")],
    },
    Bug {
        name: "async-write-without-fua",
        judge: FUA_OF_HANDLES,
        sites: &[Site(
            "crates/host/host/src/futures.rs",
            "namespace.write(range.lba, range.blocks).map(Command::fua)",
            "namespace.write(range.lba, range.blocks).map(|it| if BUG { it } else { it.fua() })",
        )],
    },
    Bug {
        name: "ring-write-without-dsync",
        judge: OF_RING,
        sites: &[Site(
            RING,
            "let flags = if *durable { libc::RWF_DSYNC }",
            "let flags = if *durable && !BUG { libc::RWF_DSYNC }",
        )],
    },
    Bug {
        name: "ring-flush-is-no-op",
        judge: OF_RING,
        sites: &[Site(
            RING,
            "Operation::Sync { .. } => opcode::Fsync",
            "Operation::Sync { .. } if BUG => opcode::Nop::new().build(),\n        Operation::Sync { .. } => opcode::Fsync",
        )],
    },
    Bug {
        name: "thread-write-without-dsync",
        judge: OF_WORKERS,
        sites: &[Site(
            WORKERS,
            "offset, ReadWriteFlags::DSYNC)",
            "offset, if BUG { ReadWriteFlags::empty() } else { ReadWriteFlags::DSYNC })",
        )],
    },
    Bug {
        name: "thread-flush-is-no-op",
        judge: OF_WORKERS,
        sites: &[Site(
            WORKERS,
            "Work::Sync => rustix::fs::fdatasync(fd).map(|()| 0),",
            "Work::Sync if BUG => Ok(0),\n            Work::Sync => rustix::fs::fdatasync(fd).map(|()| 0),",
        )],
    },
    Bug {
        name: "content-of-placed-file-not-durable",
        judge: WHOLE_FILES,
        sites: &[Site(
            WHOLE_FILE,
            "    calls.write(path, bytes)?;\n    calls.sync(path)",
            "    calls.write(path, bytes)?;\n    if BUG { Ok(()) } else { calls.sync(path) }",
        )],
    },
    Bug {
        name: "name-of-new-file-not-durable",
        judge: WHOLE_FILES,
        sites: &[Site(
            WHOLE_FILE,
            "    calls.sync(directory(path))?;\n    Ok(is_placed)",
            "    if !BUG { calls.sync(directory(path))?; }\n    Ok(is_placed)",
        )],
    },
    Bug {
        name: "name-of-replaced-file-not-durable",
        judge: WHOLE_FILES,
        sites: &[Site(
            WHOLE_FILE,
            "        return Err(error);\n    }\n    calls.sync(directory(path))",
            "        return Err(error);\n    }\n    if BUG { Ok(()) } else { calls.sync(directory(path)) }",
        )],
    },
    Bug {
        name: "system-files-not-synced",
        judge: DurableCalls,
        sites: &[Site(
            WHOLE_FILE,
            "std::fs::File::open(path)?.sync_all()",
            "if BUG { Ok(()) } else { std::fs::File::open(path)?.sync_all() }",
        )],
    },
    Bug {
        name: "directory-of-identity-not-durable",
        judge: unit_test(
            "nvlane-host",
            "identity::tests::the_directory_of_an_identity_is_made_durable_before_its_files",
        ),
        sites: &[Site(
            "crates/host/host/src/identity.rs",
            "state.parent().and_then(|parent| calls",
            "state.parent().filter(|_| !BUG).and_then(|parent| calls",
        )],
    },
    Bug {
        name: "size-of-new-file-not-durable",
        judge: DurableCalls,
        sites: &[Site(
            FILE_OPEN,
            "        file.sync_all().map_err(|error| system(\"flush\", path, error))\n",
            "        if BUG { return Ok(()); }\n        file.sync_all().map_err(|error| system(\"flush\", path, error))\n",
        )],
    },
    Bug {
        name: "name-of-namespace-file-not-durable",
        judge: DurableCalls,
        sites: &[Site(
            FILE_OPEN,
            ".and_then(|it| it.sync_all())",
            ".and_then(|it| if BUG { Ok(()) } else { it.sync_all() })",
        )],
    },
    Bug {
        name: "grown-file-not-durable",
        judge: DurableCalls,
        sites: &[Site(
            FILE_OPEN,
            ".and_then(|()| rustix::fs::fsync(keeper));",
            ".and_then(|()| if BUG { Ok(()) } else { rustix::fs::fsync(keeper) });",
        )],
    },
    Bug {
        name: "resized-file-not-durable",
        judge: DurableCalls,
        sites: &[Site(
            "crates/storage/store/src/block/file_shared.rs",
            "if let Err(errno) = rustix::fs::fdatasync(&opened.keeper) {",
            "if let Err(errno) = if BUG { Ok(()) } else { rustix::fs::fdatasync(&opened.keeper) } {",
        )],
    },
    Bug {
        name: "identity-of-file-not-durable",
        judge: DurableCalls,
        sites: &[Site(
            "crates/storage/store/src/identity.rs",
            "        file.sync_all()?;",
            "        if !BUG { file.sync_all()?; }",
        )],
    },
    Bug {
        name: "superblock-not-durable",
        judge: DurableCalls,
        sites: &[Site(
            "crates/storage/store/src/key_value/superblock.rs",
            "    file.write_all_at(bytes, offset)?;\n    file.sync_all()",
            "    file.write_all_at(bytes, offset)?;\n    if BUG { Ok(()) } else { file.sync_all() }",
        )],
    },
    Bug {
        name: "superblock-of-log-not-durable",
        judge: DurableCalls,
        sites: &[Site(
            LOG_WRITE,
            "Write { offset, length: buffer.len(), is_durable: true }",
            "Write { offset, length: buffer.len(), is_durable: !BUG }",
        )],
    },
    Bug {
        name: "first-write-of-segment-not-durable",
        judge: of_log(
            "log::tests::crash::what_was_acknowledged_is_there_after_every_cut_while_segments_are_freed",
        ),
        sites: &[Site(LOG_WRITE, "|| must_roll;", "|| (must_roll && !BUG);")],
    },
    Bug {
        name: "next-segment-before-flush",
        judge: of_log(
            "log::tests::crash::what_was_acknowledged_is_there_after_every_cut_while_segments_are_freed",
        ),
        sites: &[Site(
            LOG_WRITE,
            "if self.settings.sync == Sync::None && self.is_unflushed {",
            "if self.settings.sync == Sync::None && self.is_unflushed && !BUG {",
        )],
    },
    Bug {
        name: "write-during-flush-of-log",
        judge: of_log("log::tests::nothing_is_written_during_a_flush"),
        sites: &[Site(
            LOG_WRITE,
            "if self.flight.is_some() || self.is_flushing {",
            "if self.flight.is_some() || (self.is_flushing && !BUG) {",
        )],
    },
    Bug {
        name: "flush-of-log-during-write",
        judge: of_log("log::tests::no_flush_begins_during_a_write"),
        sites: &[Site(
            LOG,
            "self.is_flushing || self.flight.is_some() {\n            return None;",
            "self.is_flushing || (self.flight.is_some() && !BUG) {\n            return None;",
        )],
    },
    Bug {
        name: "recovered-log-not-flushed",
        judge: of_log("log::tests::crash::what_was_acknowledged_is_there_after_every_cut_when_answers_wait"),
        sites: &[Site(
            LOG,
            "            Phase::Settling { .. } => {",
            "            Phase::Settling { is_flushed } if BUG => {\n                *is_flushed = true;\n                Some(Work::Write)\n            }\n            Phase::Settling { .. } => {",
        )],
    },
    Bug {
        name: "flush-of-log-does-nothing",
        judge: DurableCalls,
        sites: &[Site(
            "crates/storage/store/src/key_value/logged.rs",
            "Work::Flush => (Run::Flush, Request::Flush),",
            "Work::Flush if BUG => {
                    self.with_log(|log, processor| log.on_flushed(processor, true));
                    continue;
                }
                Work::Flush => (Run::Flush, Request::Flush),",
        )],
    },
];
