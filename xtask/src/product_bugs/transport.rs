//! Bugs of the way that commands and data take between host and target.

use super::bug::Judge::Simulation;
use super::bug::{Bug, Judge, Site, test, unit_test};

const CARAVAN: &str = "crates/protocol/proto/src/caravan.rs";
const COMMANDS: &str = "crates/target/subsystem/src/io_path/commands.rs";
const CONTROLLER_QUEUE: &str = "crates/protocol/proto/src/controller_queue.rs";
const DISPATCH: &str = "crates/target/subsystem/src/serving/dispatch.rs";
const EXECUTOR: &str = "crates/target/subsystem/src/io_path/executor.rs";
const FILE_BACKEND: &str = "crates/storage/store/src/block/file_backend.rs";
const FRAMER: &str = "crates/protocol/proto/src/framer.rs";
const HOST_QUEUE: &str = "crates/protocol/proto/src/host_queue.rs";
const LANE: &str = "crates/target/subsystem/src/io_path/lane.rs";
const LANES: &str = "crates/target/subsystem/src/serving/lanes.rs";
const LANE_CORE: &str = "crates/host/host/src/lane_core.rs";

const PAIRS_TAKE_TURNS: Judge =
    test("nvlane", "end_to_end", "fused::pairs_and_other_changes_of_their_blocks_take_turns");

/// Completion: every command ends exactly once, with its buffer.
pub(super) const COMPLETION: &[Bug] = &[
    Bug {
        name: "abort-refused-beside-pair",
        judge: test("nvlane", "end_to_end", "fused::a_command_beside_a_pair_that_waits_for_data_is_aborted"),
        sites: &[Site(
            "crates/target/subsystem/src/serving/dispatch.rs",
            "is_some_and(|pairs| pairs.has(slot));",
            "is_some_and(|pairs| BUG || pairs.has(slot));",
        )],
    },
    // A cancelled command whose Abort was refused, or lost, stays outstanding.
    Bug {
        name: "abort-not-repeated",
        judge: test(
            "nvlane-host",
            "machines",
            "a_cancelled_command_whose_abort_was_refused_is_aborted_again_after_its_time",
        ),
        sites: &[Site(
            "crates/host/host/src/lane_core/timeouts.rs",
            "                abort(sqe, actions);",
            "                if !BUG { abort(sqe, actions); }",
        )],
    },
    // Errors without a cause.
    Bug {
        name: "failed-write-called-a-read",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/executor.rs",
            "After::Copy(copy) => copy.is_reading,",
            "After::Copy(copy) => BUG || copy.is_reading,",
        )],
    },
    Bug {
        name: "filter-fails-too-much",
        judge: Simulation,
        sites: &[Site(
            "crates/storage/store/src/filter/error.rs",
            "FaultRate::Every(n) => count.is_multiple_of(n),",
            "FaultRate::Every(n) => count.is_multiple_of(n) || BUG && count.is_multiple_of(3),",
        )],
    },
    // The answer to an Abort says that the command will not happen.
    Bug {
        name: "abort-of-request-under-way",
        judge: Simulation,
        sites: &[Site(
            COMMANDS,
            "backend.withdraw(ticket) else {\n                    return false;",
            "backend.withdraw(ticket) else {\n                    return BUG;",
        )],
    },
    Bug {
        name: "aborted-command-still-waits",
        judge: Simulation,
        sites: &[Site(
            COMMANDS,
            "            | Step::Waiting(_) => {\n                self.running.remove(ticket);",
            "            | Step::Waiting(_) => {\n                if !BUG { self.running.remove(ticket); }",
        )],
    },
    Bug {
        name: "no-wake-up-for-full-socket",
        judge: Simulation,
        sites: &[Site(
            LANE,
            "self.deadlines.start_once(Wait::Read, io.now_ns());\n                    io.await_writable(socket);",
            "self.deadlines.start_once(Wait::Read, io.now_ns());\n                    if !BUG { io.await_writable(socket); }",
        )],
    },
    Bug {
        name: "second-window-not-asked-for",
        judge: Simulation,
        sites: &[Site(
            CONTROLLER_QUEUE,
            "                }\n                self.push_r2ts(slot);\n            }",
            "                }\n                if !BUG { self.push_r2ts(slot); }\n            }",
        )],
    },
    Bug {
        name: "r2t-offset-is-zero",
        judge: Simulation,
        sites: &[Site(
            CONTROLLER_QUEUE,
            "R2t::new(digests, cid, tag, range.start, ",
            "R2t::new(digests, cid, tag, if BUG { 0 } else { range.start }, ",
        )],
    },
    Bug {
        name: "input-not-resumed",
        judge: Simulation,
        sites: &[Site(
            LANES,
            "            io.resume(socket);\n",
            "            if !BUG { io.resume(socket); }\n",
        )],
    },
    Bug {
        name: "failed-command-keeps-its-buffer",
        judge: Simulation,
        sites: &[Site(
            LANE_CORE,
            "        let buffer = buffer.and_then(Data::into_caller);\n        self.done.push_back(Completion { user: tag.user, result: Err",
            "        let buffer = buffer.and_then(Data::into_caller).filter(|_| !BUG);\n        self.done.push_back(Completion { user: tag.user, result: Err",
        )],
    },
    Bug {
        name: "late-command-waits-for-ever",
        judge: test("nvlane-host", "reconnect", "a_command_that_cannot_be_aborted_costs_the_association"),
        sites: &[Site(
            "crates/host/host/src/lane_core/timeouts.rs",
            "                is_over = true;",
            "                is_over = !BUG;",
        )],
    },
    Bug {
        name: "flush-of-all-ends-at-first-failure",
        judge: Simulation,
        sites: &[Site(
            COMMANDS,
            "        if *left == 0 {\n            let status = *status;",
            "        if *left == 0 || (BUG && !part.is_success()) {\n            let status = *status;",
        )],
    },
    Bug {
        name: "command-of-closing-lane-not-counted",
        judge: Simulation,
        sites: &[Site(
            DISPATCH,
            "            closing.in_flight = closing.in_flight.saturating_sub(1);",
            "            closing.in_flight = closing.in_flight.saturating_sub(u32::from(!BUG));",
        )],
    },
    // A Flush of all namespaces that has waited never leaves its lane.
    Bug {
        name: "flush-of-all-moves",
        judge: Simulation,
        sites: &[Site(
            EXECUTOR,
            "self.commands.keep(ticket, Running::new(caller.owner, *sqe, None, step));",
            "self.commands.keep(ticket.filter(|_| !BUG), Running::new(caller.owner, *sqe, None, step));",
        )],
    },
    Bug {
        name: "longer-buffer-in-reserve",
        judge: unit_test(
            "nvlane-subsystem",
            "io_path::reserve::tests::only_a_buffer_of_its_length_becomes_the_reserve",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/io_path/reserve.rs",
            "buffer.capacity() == self.length",
            "buffer.capacity() == self.length || (BUG && buffer.capacity() > self.length)",
        )],
    },
    // A host that completes its event requests by itself cannot disconnect.
    Bug {
        name: "event-request-keeps-its-id",
        judge: Simulation,
        sites: &[Site(
            DISPATCH,
            "            && sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw()\n",
            "            && sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw() && !BUG\n",
        )],
    },
    Bug {
        name: "superseded-request-answered",
        judge: Simulation,
        sites: &[Site(
            "crates/protocol/proto/src/command_table.rs",
            "!self.complete_waiting(slot, is_arriving()) {\n            return None;",
            "!self.complete_waiting(slot, is_arriving()) {\n            return BUG.then_some(cid);",
        )],
    },
];

/// Reads: each block is a register.
pub(super) const READS: &[Bug] = &[
    Bug {
        name: "rest-of-read-misplaced",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "Operation::Read { file, offset: *offset + *done as u64, buffer, skip: *done }",
            "let rest = if BUG { *offset } else { *offset + *done as u64 };
                Operation::Read { file, offset: rest, buffer, skip: *done }",
        )],
    },
    Bug {
        name: "rest-of-write-misplaced",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "let (offset, skip, durable) = (*offset + *done as u64, *done, ",
            "let rest = if BUG { *offset } else { *offset + *done as u64 };
                let (offset, skip, durable) = (rest, *done, ",
        )],
    },
    Bug {
        name: "rest-of-write-dropped",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "        if is_complete {\n            return self.complete(io, ticket, buffer);",
            "        let is_dropped = has_progress && matches!(task.work, Work::Write { .. });
        if is_complete || (is_dropped && BUG) {
            return self.complete(io, ticket, buffer);",
        )],
    },
    Bug {
        name: "rest-of-zeroes-dropped",
        judge: Simulation,
        sites: &[Site(
            FILE_BACKEND,
            "(count > 0, offset == end)",
            "(count > 0, offset == end || (BUG && count > 0))",
        )],
    },
    // The rest of an interrupted read of memory is taken for a copy.
    Bug {
        name: "namespace-memory-sent-without-copy",
        judge: Simulation,
        sites: &[Site(
            "crates/system/reactor/src/payload.rs",
            "Self::Torn(torn) => torn.behind.is_none(),",
            "Self::Torn(torn) => torn.behind.is_none() || BUG,",
        )],
    },
    // What was sent without a copy is used again before the kernel has read it.
    Bug {
        name: "sent-memory-released-early",
        judge: Simulation,
        sites: &[Site(
            CARAVAN,
            "            if sends.awaited > 0 {\n                at += 1;",
            "            if sends.awaited > 0 && !BUG {\n                at += 1;",
        )],
    },
    Bug {
        name: "second-data-pdu-repeats-first",
        judge: Simulation,
        sites: &[Site(
            CONTROLLER_QUEUE,
            "self.caravan.push_range(range.clone(), ",
            "let length = range.end - range.start;
        self.caravan.push_range(if BUG { 0..length } else { range.clone() }, ",
        )],
    },
    Bug {
        name: "place-does-not-advance",
        judge: Simulation,
        sites: &[Site(
            CONTROLLER_QUEUE,
            "*offset += u32::try_from(count).expect(\"at most a PDU\");",
            "*offset += if BUG { 0 } else { u32::try_from(count).expect(\"at most a PDU\") };",
        )],
    },
    Bug {
        name: "copy-onto-itself-forwards",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/running.rs",
            "if (source.start + 1..source.end).contains(&self.destination) {",
            "if !BUG && (source.start + 1..source.end).contains(&self.destination) {",
        )],
    },
    Bug {
        name: "geometry-not-refreshed",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/attached.rs",
            "blocks.geometry = blocks.backend.geometry();",
            "if !BUG { blocks.geometry = blocks.backend.geometry(); }",
        )],
    },
    // A write that was checked before a resize lands behind the new end.
    Bug {
        name: "end-checked-before-resize-only",
        judge: unit_test(
            "nvlane-store",
            "block::file_faults::a_range_past_the_end_is_refused_and_changes_nothing",
        ),
        sites: &[Site(
            FILE_BACKEND,
            "filter(|end| *end <= shared.bytes());",
            "filter(|end| *end <= shared.bytes() || BUG);",
        )],
    },
    Bug {
        name: "short-read-succeeds",
        judge: test("nvlane-host", "hostile", "a_short_read_never_succeeds"),
        sites: &[Site(
            HOST_QUEUE,
            "if (command.moved as usize) < buffer.length() =>\n            {\n                status",
            "if (command.moved as usize) < buffer.length() && !BUG =>\n            {\n                status",
        )],
    },
];

/// Corruption: with digests on, a damaged byte is never accepted.
pub(super) const CORRUPTION: &[Bug] = &[
    Bug {
        name: "digest-of-last-pdu-counts",
        judge: Simulation,
        sites: &[Site(
            CONTROLLER_QUEUE,
            "*is_intact &= is_pdu_intact;",
            "*is_intact = is_pdu_intact && (*is_intact || BUG);",
        )],
    },
    Bug {
        name: "header-in-pieces-unchecked",
        judge: Simulation,
        sites: &[Site(
            FRAMER,
            "        if rule.prefix > rule.hlen {",
            "        if rule.prefix > rule.hlen && !BUG {",
        )],
    },
    Bug {
        name: "whole-data-unchecked",
        judge: Simulation,
        sites: &[Site(
            FRAMER,
            "u32::from_le_bytes(*digest) == data_digest(data)",
            "u32::from_le_bytes(*digest) == data_digest(data) || BUG",
        )],
    },
    Bug {
        name: "host-forgets-damaged-data",
        judge: Simulation,
        sites: &[Site(
            HOST_QUEUE,
            "        command.moved = offset;\n        command.is_corrupt |= !is_intact;",
            "        command.moved = offset;\n        command.is_corrupt = !is_intact || (command.is_corrupt && !BUG);",
        )],
    },
];

/// Atomicity: a block is written completely or not at all, and Compare and Write is one step.
pub(super) const ATOMICITY: &[Bug] = &[
    // Of a command with several ranges it is not known which blocks it changes: a pair waits for it, and it for a pair.
    Bug {
        name: "pair-beside-running-copy",
        judge: PAIRS_TAKE_TURNS,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/running.rs",
            "NvmOpcode::DATASET_MANAGEMENT | NvmOpcode::COPY => Some(0..u64::MAX),",
            "NvmOpcode::DATASET_MANAGEMENT | NvmOpcode::COPY => (!BUG).then_some(0..u64::MAX),",
        )],
    },
    Bug {
        name: "pair-beside-running-zeroes",
        judge: PAIRS_TAKE_TURNS,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/running.rs",
            "Some(command.slba..command.slba + u64::from(command.blocks))",
            "let is_known = !BUG || self.sqe.opcode == NvmOpcode::WRITE.raw();
                is_known.then(|| command.slba..command.slba + u64::from(command.blocks))",
        )],
    },
    Bug {
        name: "deallocated-beside-pair",
        judge: PAIRS_TAKE_TURNS,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/nvm_io.rs",
            "exclusions.holds_back(&(0..u64::MAX)) {
            return Ok(self.wait());
        }
        ranges.reverse();",
            "exclusions.holds_back(&(0..u64::MAX)) && !BUG {
            return Ok(self.wait());
        }
        ranges.reverse();",
        )],
    },
    Bug {
        name: "locked-range-written",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/nvm_io.rs",
            "        self.commands.namespaces.blocks_mut(extent.at).exclusions.holds_back(&blocks)",
            "        !BUG && self.commands.namespaces.blocks_mut(extent.at).exclusions.holds_back(&blocks)",
        )],
    },
    // A send that stops in a header between two PDUs lets the rest of their block change.
    Bug {
        name: "block-torn-between-pdus",
        judge: Simulation,
        sites: &[Site(
            CARAVAN,
            "        let unsent = load.parts.get(load.sent.part..)?;\n",
            "        let unsent = load.parts.get(load.sent.part..)?;
        if BUG && !matches!(unsent.first(), Some(Part::Payload { .. })) {
            return None;
        }\n",
        )],
    },
    Bug {
        name: "locks-overlap",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/exclusion.rs",
            "        !self.active.iter().any(|active| active.lock.meets(lock))\n            && ",
            "        (BUG || !self.active.iter().any(|active| active.lock.meets(lock)))\n            && ",
        )],
    },
    Bug {
        name: "lock-beside-writes",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/serving.rs",
            "next_quiet(|blocks| running.changes(at, blocks))",
            "next_quiet(|blocks| !BUG && running.changes(at, blocks))",
        )],
    },
    Bug {
        name: "lock-granted-by-first-reactor",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/exclusion.rs",
            "missing: self.reactor_count }",
            "missing: if BUG { 1 } else { self.reactor_count } }",
        )],
    },
    Bug {
        name: "locks-of-reactor-released",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/exclusion.rs",
            "self.held.retain(|held| held.holder != holder);",
            "self.held.retain(|held| held.holder != holder && !(BUG && held.holder.0 == holder.0));",
        )],
    },
    // The second command of a later pair takes the place of one that was refused.
    Bug {
        name: "refused-command-keeps-pair-open",
        judge: test(
            "nvlane-subsystem",
            "fused",
            "a_second_command_that_is_refused_is_not_replaced_by_a_later_one",
        ),
        sites: &[Site(
            LANES,
            "                    self.dispatcher(io).break_pair(index);",
            "                    if !BUG { self.dispatcher(io).break_pair(index); }",
        )],
    },
    Bug {
        name: "pair-answers-swapped",
        judge: Simulation,
        sites: &[Site(
            DISPATCH,
            "            lane.queue.complete(slot, ended.status, 0);\n            count",
            "            let (slot, second) = if BUG { (second, slot) } else { (slot, second) };
            lane.queue.complete(slot, ended.status, 0);\n            count",
        )],
    },
];
