//! Bugs between a command and its storage.

use super::bug::Judge::Simulation;
use super::bug::{Bug, Judge, Site, test, unit_test};

const COMMANDS: &str = "crates/target/subsystem/src/io_path/commands.rs";
const FILE: &str = "crates/storage/store/src/block/file.rs";
const FILE_BACKEND: &str = "crates/storage/store/src/block/file_backend.rs";
const FILE_SHARED: &str = "crates/storage/store/src/block/file_shared.rs";

const FAR_BLOCKS: Judge =
    test("nvlane", "end_to_end", "far_blocks::blocks_of_a_file_of_six_gibibytes_are_apart");

/// Blocks whose addresses take more than 32 bits.
pub(super) const FAR_DATA: &[Bug] = &[
    Bug {
        name: "address-cut-to-32-bits",
        judge: FAR_BLOCKS,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/nvm_io.rs",
            "offset: command.slba << blocks.block_shift,",
            "offset: (command.slba << blocks.block_shift) & if BUG { u64::from(u32::MAX) } else { u64::MAX },",
        )],
    },
    Bug {
        name: "second-gigabyte-of-a-copy-in-the-first",
        judge: FAR_BLOCKS,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/nvm_io.rs",
            "            sources.push(source.slba.get() * block_bytes..end * block_bytes);",
            "            let wrap = if BUG { (source.slba.get() * block_bytes) >> 30 << 30 } else { 0 };
            sources.push(source.slba.get() * block_bytes - wrap..end * block_bytes - wrap);",
        )],
    },
    Bug {
        name: "deallocated-address-cut",
        judge: FAR_BLOCKS,
        sites: &[Site(
            FILE_BACKEND,
            "Operation::Allocate { file, offset: *offset, length, change }",
            "Operation::Allocate { file, offset: *offset & if BUG { 0xffff_ffff } else { u64::MAX }, length, change }",
        )],
    },
    // Only where the storage reads less than it was asked for.
    Bug {
        name: "place-of-resumed-read-cut",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "            (Work::Read { offset, done }, Some(buffer)) => {\n",
            "            (Work::Read { offset, done }, Some(buffer)) => {
                let cut = if BUG && *done > 0 { u64::from(u32::MAX) } else { u64::MAX };
                let offset = &(*offset & cut);\n",
        )],
    },
    // Only where the storage cannot zero a range.
    Bug {
        name: "place-of-written-zeroes-cut",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "Operation::Write { file, offset: *offset, buffer, skip: 0, durable: false };",
            "Operation::Write {
                                file,
                                offset: *offset & if BUG { u64::from(u32::MAX) } else { u64::MAX },
                                buffer,
                                skip: 0,
                                durable: false,
                            };",
        )],
    },
];

/// A command that succeeds has done all of its work.
pub(super) const WHOLE_COMMANDS: &[Bug] = &[
    Bug {
        name: "verify-ends-at-first-chunk",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/executor.rs",
            "Some(buffer) if !range.is_empty() => self.verify(ticket, at, range, buffer),",
            "Some(buffer) if !range.is_empty() && !BUG => self.verify(ticket, at, range, buffer),",
        )],
    },
    Bug {
        name: "deallocation-ends-at-first-range",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/executor.rs",
            "            After::Deallocate { ranges } => self.deallocate(ticket, at, ranges),",
            "            After::Deallocate { ranges } => {
                self.deallocate(ticket, at, if BUG { Vec::new() } else { ranges });
            }",
        )],
    },
    Bug {
        name: "failed-deallocation-succeeds",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/executor.rs",
            "        let status = status_of(error, is_read);",
            "        let is_hint = BUG && matches!(after, After::Deallocate { .. });
        let status = if is_hint { Status::SUCCESS } else { status_of(error, is_read) };",
        )],
    },
    Bug {
        name: "zeroes-that-fail-succeed",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "                self.shared.on_refusal(error);
                self.end(io, ticket, Err(error), buffer);",
            "                let result = if BUG && matches!(task.work, Work::Range { .. }) { Ok(()) } else { Err(error) };
                self.shared.on_refusal(error);
                self.end(io, ticket, result, buffer);",
        )],
    },
];

/// Durability: what a Flush or FUA has covered survives a power cut.
pub(super) const DURABILITY: &[Bug] = &[
    Bug {
        name: "flush-does-nothing",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "Request::Flush => Some(Work::Flush),",
            "Request::Flush => (!BUG).then_some(Work::Flush),",
        )],
    },
    // A flush completes with the result of one that began before its writes ended.
    Bug {
        name: "flush-joins-running",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "        self.flushes.waiting.push(ticket);\n        if self.flushes.running.is_empty() {",
            "        if BUG && !self.flushes.running.is_empty() {
            return self.flushes.running.push(ticket);
        }
        self.flushes.waiting.push(ticket);\n        if self.flushes.running.is_empty() {",
        )],
    },
    Bug {
        name: "fua-dropped",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "*is_durable);\n                Operation::Write",
            "*is_durable && !BUG);\n                Operation::Write",
        )],
    },
    Bug {
        name: "fua-of-resumed-write-dropped",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/nvm_io.rs",
            "let request = Request::Write { offset: extent.offset, buffer, is_durable: extent.is_fua };",
            "let is_durable = extent.is_fua && !(BUG && self.ticket.is_some());
                let request = Request::Write { offset: extent.offset, buffer, is_durable };",
        )],
    },
    Bug {
        name: "fua-of-copy-dropped",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/executor.rs",
            "is_durable: copy.is_durable }",
            "is_durable: copy.is_durable && !BUG }",
        )],
    },
    Bug {
        name: "fua-of-pair-dropped",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/fused.rs",
            "is_durable: command.control.fua(),",
            "is_durable: command.control.fua() && !BUG,",
        )],
    },
    Bug {
        name: "fua-of-zeroes-dropped",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/nvm_io.rs",
            "            is_durable: extent.is_fua,\n            may_deallocate,",
            "            is_durable: extent.is_fua && !BUG,\n            may_deallocate,",
        )],
    },
    Bug {
        name: "flush-of-all-answered-at-once",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/executor.rs",
            "        if all.is_empty() {\n            return Ok(Begun::Complete(Status::SUCCESS, 0));",
            "        if all.is_empty() || BUG {\n            return Ok(Begun::Complete(Status::SUCCESS, 0));",
        )],
    },
    Bug {
        name: "shutdown-without-flush",
        judge: test(
            "nvlane-subsystem",
            "control",
            "lifecycle::a_shutdown_is_complete_when_everything_is_safe",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control/associations.rs",
            "                    record.transition = Transition::Flush { command };\n",
            "                    if BUG {
                        return complete_shutdown(record);
                    }
                    record.transition = Transition::Flush { command };\n",
        )],
    },
    Bug {
        name: "durable-zeroes-unflushed",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "if let Work::Range { is_durable: true, .. } = task.work {",
            "if let (Work::Range { is_durable: true, .. }, false) = (task.work, BUG) {",
        )],
    },
];

/// Failed flushes: after one, the namespace is closed until it is reopened, and each host learns of the loss.
pub(super) const FAILED_FLUSHES: &[Bug] = &[
    Bug {
        name: "failed-flush-closes-nothing",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "        if let (Err(error), Some(what)) = (result, task.work.durable_name())\n",
            "        let is_hidden = matches!(task.work, Work::Flush) && BUG;
        if let (Err(error), Some(what), false) = (result, task.work.durable_name(), is_hidden)\n",
        )],
    },
    Bug {
        name: "failed-fua-closes-nothing",
        judge: unit_test(
            "nvlane-store",
            "block::file_faults::a_failed_flush_or_durable_write_closes_the_namespace_for_all_reactors",
        ),
        sites: &[Site(
            FILE_BACKEND,
            "Self::Write { is_durable: true, .. } => Some(",
            "Self::Write { is_durable: true, .. } if !BUG => Some(",
        )],
    },
    Bug {
        name: "failed-flush-repeated",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "(Err(errno), _) if is_passing(errno) => self.retry",
            "(Err(errno), _) if is_passing(errno) || (BUG && errno == Errno::IO) => self.retry",
        )],
    },
    Bug {
        name: "last-part-of-flush-of-all-counts",
        judge: unit_test(
            "nvlane-subsystem",
            "io_path::commands::tests::a_flush_of_all_fails_with_any_of_its_parts",
        ),
        sites: &[Site(
            COMMANDS,
            "        if status.is_success() {\n            *status = part;",
            "        if status.is_success() || BUG {\n            *status = part;",
        )],
    },
    Bug {
        name: "request-outlives-closing",
        judge: unit_test(
            "nvlane-store",
            "block::file_faults::a_failed_flush_or_durable_write_closes_the_namespace_for_all_reactors",
        ),
        sites: &[
            Site(
                FILE_BACKEND,
                "(Ok(_), _) if task.gate != self.shared.gate() => {",
                "(Ok(_), _) if task.gate != self.shared.gate() && !BUG => {",
            ),
            Site(
                FILE_BACKEND,
                "let is_current = self.shared.gate() == task.gate;",
                "let is_current = self.shared.gate() == task.gate || BUG;",
            ),
        ],
    },
    // After a reopening, the flush of a host that wrote before does not fail.
    Bug {
        name: "reopening-hidden-from-hosts",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/objects/flush_epochs.rs",
            "        generation.is_closed() || had >= generation",
            "        generation.is_closed() || had >= generation || BUG",
        )],
    },
    // The answer to the flush that fails goes with its queue, and the flush is sent again on another one.
    Bug {
        name: "failed-flush-lost-with-its-queue",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/objects/flush_epochs.rs",
            "known.told.take_if(|told| told.lane == lane)",
            "known.told.take_if(|told| told.lane == lane && !BUG)",
        )],
    },
    // A flush of several namespaces succeeds after one of them was reopened, unless that is the last one.
    Bug {
        name: "reopening-of-the-last-namespace-counts",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/executor.rs",
            "may_succeed &= self.commands.may_flush(caller.owner, *at);",
            "may_succeed = self.commands.may_flush(caller.owner, *at) && (may_succeed || BUG);",
        )],
    },
];

/// Storage that changes underneath: a cut or deleted file closes its namespace, a grown one is followed.
pub(super) const CHANGING_STORAGE: &[Bug] = &[
    Bug {
        name: "cut-unnoticed-by-writes",
        judge: unit_test(
            "nvlane-store",
            "block::file::tests::whatever_meets_a_cut_file_first_closes_it_until_it_is_reopened",
        ),
        sites: &[Site(
            FILE_BACKEND,
            "        if !matches!(task.work, Work::Read { .. })\n",
            "        if !matches!(task.work, Work::Read { .. }) && !(BUG && matches!(task.work, Work::Write { .. }))\n",
        )],
    },
    Bug {
        name: "deleted-file-served",
        judge: unit_test(
            "nvlane-store",
            "block::file::tests::a_file_that_was_deleted_or_replaced_closes_its_namespace_until_it_is_back",
        ),
        sites: &[Site(FILE_SHARED, "&& link_count == 0 {", "&& link_count == 0 && !BUG {")],
    },
    Bug {
        name: "late-write-comes-back",
        judge: unit_test(
            "nvlane-store",
            "block::file::tests::what_a_late_write_left_behind_the_end_never_comes_into_the_namespace",
        ),
        sites: &[Site(
            FILE_SHARED,
            "} else if self.has_shrunk.load(Ordering::Relaxed) {",
            "} else if self.has_shrunk.load(Ordering::Relaxed) && !BUG {",
        )],
    },
    Bug {
        name: "short-file-reopened",
        judge: unit_test(
            "nvlane-store",
            "block::file::tests::a_file_that_is_too_short_for_its_size_is_not_reopened",
        ),
        sites: &[Site(
            FILE_SHARED,
            "self.wanted.filter(|wanted| opened.bytes < *wanted)",
            "self.wanted.filter(|wanted| opened.bytes < *wanted && !BUG)",
        )],
    },
    Bug {
        name: "part-of-block-grows",
        judge: unit_test(
            "nvlane-store",
            "block::file::tests::a_namespace_grows_with_its_file_if_no_size_is_said",
        ),
        sites: &[Site(
            FILE,
            "let after = actual - actual % u64::from(shared.block_bytes);",
            "let after = actual - if BUG { 0 } else { actual % u64::from(shared.block_bytes) };",
        )],
    },
];
