//! Bugs in what becomes of commands when a connection, a namespace or a configuration goes.

use super::bug::Judge::Simulation;
use super::bug::{Bug, Site, test, unit_test};

const DISCOVERY: &str = "crates/host/host/src/discovery.rs";
const INTERLEAVINGS: &str =
    "flush_epoch::interleavings::no_flush_covers_a_lost_write_that_nobody_was_told_of";
const LANE_CORE: &str = "crates/host/host/src/lane_core.rs";
const LISTINGS: &str = "crates/target/subsystem/src/control_plane/control/listings.rs";
const RECONNECT: &str = "crates/host/host/src/reconnect.rs";
const RETRY: &str = "crates/host/host/src/retry.rs";

/// Lost connections: interrupted commands are reported as such, and no write of an old association lands in a new one.
pub(super) const LOST_CONNECTIONS: &[Bug] = &[
    Bug {
        name: "writes-replayed",
        judge: Simulation,
        sites: &[Site(
            RECONNECT,
            "Class::Idempotent if policy == ReplayPolicy::Idempotent =>",
            "Class::Idempotent if policy == ReplayPolicy::Idempotent || BUG =>",
        )],
    },
    // A command of an authentication that waits for room is sent to the next connection, too.
    Bug {
        name: "authentication-outlives-its-connection",
        judge: Simulation,
        sites: &[Site(
            "crates/host/host/src/lane_core/backlog.rs",
            "self.waiting.retain(|command| !command.tag.has(IS_OWN));",
            "self.waiting.retain(|command| BUG || !command.tag.has(IS_OWN));",
        )],
    },
    // One wrong bit in the TLS handshake of an attempt to reconnect ends the association for good.
    Bug {
        name: "refused-reconnect-ends-the-association",
        judge: Simulation,
        sites: &[Site(
            "crates/host/host/src/error.rs",
            "self.is_permanent() && !self.is_refusal_of_trust()",
            "self.is_permanent() && (BUG || !self.is_refusal_of_trust())",
        )],
    },
    // After a lost connection the target may have lost its cache, but the flush reports success.
    Bug {
        name: "flush-covers-lost",
        judge: Simulation,
        sites: &[
            Site(
                RECONNECT,
                "Class::Flush if has_volatile_cache =>",
                "Class::Flush if has_volatile_cache && !BUG =>",
            ),
            Site(
                "crates/host/host/src/flush_epoch.rs",
                "self.epoch.covers(generation);",
                "self.epoch.covers(generation) || BUG;",
            ),
        ],
    },
    // A write whose caller was not scheduled is reported after another caller was told of its loss.
    Bug {
        name: "late-write-reported-after-its-loss",
        judge: unit_test("nvlane-host", INTERLEAVINGS),
        sites: &[Site(
            "crates/host/host/src/flush_epoch.rs",
            "(Ok(_), Some(generation)) if self.has_told(generation) =>",
            "(Ok(_), Some(generation)) if self.has_told(generation) && !BUG =>",
        )],
    },
    // An interrupted flush of one lane tells of the loss, and another lane reports its writes afterwards.
    Bug {
        name: "interrupted-flush-tells-for-all-lanes",
        judge: unit_test("nvlane-host", INTERLEAVINGS),
        sites: &[Site(
            "crates/host/host/src/flush_epoch.rs",
            "        if !self.is_shared {\n            self.answer(generation + 1);",
            "        if !self.is_shared || BUG {\n            self.answer(generation + 1);",
        )],
    },
    // An I/O queue that is lost alone takes its controller with it.
    Bug {
        name: "lost-queue-ends-its-association",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control/associations.rs",
            "        if qid.is_admin() {\n            record.admin = None;",
            "        if BUG && !qid.is_admin() {
            record.io.remove(&qid);
            self.end(now_ns, key, Cause::AdminEnded(end), outputs);
        } else if qid.is_admin() {\n            record.admin = None;",
        )],
    },
    // Commands that wait for the connection are sent late, and those behind them as well.
    Bug {
        name: "waiting-commands-kept-after-reconnect",
        judge: Simulation,
        sites: &[Site(
            "crates/host/host/src/lane_core/own_commands.rs",
            "        let release = self.backlog.on_live();\n        self.release(release);",
            "        let release = self.backlog.on_live();
        if !BUG { self.release(release); }",
        )],
    },
    // A host that has given up a connection accuses the target of what still arrives on it.
    Bug {
        name: "late-answer-taken-for-violation",
        judge: Simulation,
        sites: &[Site(
            "crates/host/host/src/association_machine.rs",
            "            // The host closes this connection next, and no command waits for these answers.
            *input = &[];
            return Ok(());",
            "            if !BUG {
                *input = &[];
                return Ok(());
            }",
        )],
    },
    Bug {
        name: "connect-let-in-too-soon",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control/connect.rs",
            "kind != ControllerKind::Discovery && of_host().any(is_ending)",
            "kind != ControllerKind::Discovery && !BUG && of_host().any(is_ending)",
        )],
    },
    // What a killed target has given to the device goes on after the next one has locked the storage.
    Bug {
        name: "writes-without-lock",
        judge: Simulation,
        sites: &[Site(
            "crates/storage/store/src/block/file_shared.rs",
            "let (data, sync) = (file.clone(), File::simulated(file.simulated_id().unwrap_or(0)));",
            "let (data, sync) = (file.clone(), File::simulated(file.simulated_id().unwrap_or(0)));
                let data = if BUG { sync.clone() } else { data };",
        )],
    },
    Bug {
        name: "lane-ends-before-its-writes",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/serving/lanes.rs",
            "_ if closing.in_flight > 0 => return,",
            "_ if closing.in_flight > 0 && !BUG => return,",
        )],
    },
    Bug {
        name: "keep-alive-never-expires",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control/associations.rs",
            "        keep_alive.deadline_ns()\n",
            "        if BUG { None } else { keep_alive.deadline_ns() }\n",
        )],
    },
    Bug {
        name: "keep-alive-expires-early",
        judge: Simulation,
        sites: &[Site(
            "crates/protocol/proto/src/keep_alive.rs",
            "        let wait_ms = u64::from(self.timeout_ms).saturating_add(GRACE_MS);\n",
            "        let grace_ms = if BUG { 0 } else { GRACE_MS };
        let wait_ms = u64::from(self.timeout_ms).saturating_add(grace_ms) / if BUG { 2 } else { 1 };\n",
        )],
    },
    // A lane takes in commands long after they have arrived, and their host counts as alive.
    Bug {
        name: "held-command-is-sign-of-life",
        judge: test(
            "nvlane-subsystem",
            "deadlines",
            "commands_that_were_held_back_are_no_sign_of_life_when_they_are_taken_in",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/serving/lanes.rs",
            "                if arrived_ns < now_ns {",
            "                if arrived_ns < now_ns && !BUG {",
        )],
    },
    // What a lane has begun goes on when its association ends.
    Bug {
        name: "ended-lane-keeps-its-commands",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/serving/lanes.rs",
            "            self.commands.abandon(ticket);\n",
            "            if !BUG { self.commands.abandon(ticket); }\n",
        )],
    },
    // A Deallocate, or a Copy, that has begun goes on with its next range when its lane ends.
    Bug {
        name: "ended-lane-begins-next-range",
        judge: test(
            "nvlane",
            "end_to_end",
            "filters::a_deallocation_of_many_ranges_ends_with_its_connection",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/io_path/commands.rs",
            "            *after = After::Complete;\n",
            "            if !BUG { *after = After::Complete; }\n",
        )],
    },
    Bug {
        name: "sent-write-called-unsent",
        judge: Simulation,
        sites: &[Site(
            "crates/protocol/proto/src/host_queue.rs",
            "is_unsent: command.submitted_at == ring_count,",
            "is_unsent: command.submitted_at == ring_count || (BUG && command.moved == 0),",
        )],
    },
    // A half that was not sent goes out alone on the next connection.
    Bug {
        name: "half-of-a-pair-sent-again",
        judge: test("nvlane-host", "machines", "a_pair_is_sent_again_as_a_whole_or_not_at_all"),
        sites: &[Site(
            LANE_CORE,
            "self.finish(first, failure.or(failure_of_second))",
            "self.finish(first, failure.or(failure_of_second.filter(|_| !BUG)))",
        )],
    },
    Bug {
        name: "interrupted-write-called-cancelled",
        judge: test("nvlane-host", "reconnect", "a_write_that_was_out_is_not_said_to_be_cancelled"),
        sites: &[Site(
            LANE_CORE,
            "            tag.flags |= IS_UNCERTAIN;",
            "            tag.flags |= if BUG { 0 } else { IS_UNCERTAIN };",
        )],
    },
];

/// Paths: a temporarily unreachable namespace costs time, but no command.
pub(super) const PATHS: &[Bug] = &[
    // Requests that could be carried out are reported as not to be reached.
    Bug {
        name: "path-filter-fails-too-much",
        judge: Simulation,
        sites: &[Site(
            "crates/storage/store/src/filter/error.rs",
            "FaultRate::PerMillion(share) => SplitMix64::nth(fault.seed, count) % 1_000_000 < share.into(),",
            "FaultRate::PerMillion(share) => {
                SplitMix64::nth(fault.seed, count) % 1_000_000 < u64::from(share) + if BUG { 100_000 } else { 0 }
            }",
        )],
    },
    Bug {
        name: "held-command-forgotten",
        judge: Simulation,
        sites: &[Site(
            LANE_CORE,
            "            self.release(Release::Due { now_ns });",
            "            if !BUG { self.release(Release::Due { now_ns }); }",
        )],
    },
    Bug {
        name: "path-timeout-begins-anew",
        judge: test(
            "nvlane-host",
            "paths",
            "a_path_that_stays_away_is_waited_for_as_long_as_the_caller_says",
        ),
        sites: &[Site(
            "crates/host/host/src/lane_core/backlog.rs",
            "        if tag.held_at == 0 {\n",
            "        if tag.held_at == 0 || BUG {\n",
        )],
    },
    Bug {
        name: "loss-hidden-from-flush-of-all",
        judge: unit_test(
            "nvlane-host",
            "lane_core::ana_states::tests::all_namespaces_are_lost_with_any_one_of_them",
        ),
        sites: &[Site(
            "crates/host/host/src/lane_core/ana_states.rs",
            "        if nsid == Nsid::ALL {",
            "        if nsid == Nsid::ALL && !BUG {",
        )],
    },
    Bug {
        name: "copy-repeated-after-path-error",
        judge: unit_test("nvlane-host", "retry::tests::path_statuses_are_held_and_others_are_not"),
        sites: &[Site(
            RETRY,
            "        Class::Other => Verdict::End,",
            "        Class::Other if !BUG => Verdict::End,",
        )],
    },
    Bug {
        name: "failed-flush-submitted-again",
        judge: test("nvlane-host", "paths", "internal_errors_end_only_what_must_not_be_repeated"),
        sites: &[Site(
            RETRY,
            "        Class::ReadOnly | Class::Idempotent if KvOpcode",
            "        Class::Flush if BUG && status.is(Status::INTERNAL_ERROR) => Verdict::Repeat,
        Class::ReadOnly | Class::Idempotent if KvOpcode",
        )],
    },
    Bug {
        name: "held-flush-covers-lost",
        judge: test("nvlane-host", "paths", "a_flush_that_is_repeated_after_a_reconnect_covers_nothing"),
        sites: &[Site(
            LANE_CORE,
            "if command.tag.class == Class::Flush && !self.may_flush() {",
            "if command.tag.class == Class::Flush && !(BUG && command.tag.retry_count > 0) && !self.may_flush() {",
        )],
    },
];

/// Discovery: a host knows the current log, and no log that never was.
pub(super) const DISCOVERY_LOGS: &[Bug] = &[
    Bug {
        name: "discovery-log-torn",
        judge: Simulation,
        sites: &[Site(
            DISCOVERY,
            "                if header.genctr.get() != self.generation {",
            "                if header.genctr.get() != self.generation && !BUG {",
        )],
    },
    Bug {
        name: "event-only-for-longer-logs",
        judge: Simulation,
        sites: &[Site(
            LISTINGS,
            "            if self.0.get(&key) != Some(&listing) {",
            "            if self.0.get(&key).is_none_or(|before| if BUG { *before > listing } else { *before != listing }) {",
        )],
    },
    Bug {
        name: "generation-stays",
        judge: Simulation,
        sites: &[Site(
            LISTINGS,
            "catalog.discovery.generation.wrapping_add(1);",
            "catalog.discovery.generation.wrapping_add(u64::from(!BUG));",
        )],
    },
];

/// A target that has forgotten its peers holds nothing for them.
pub(super) const FORGOTTEN_PEERS: &[Bug] = &[
    Bug {
        name: "association-of-ended-lane-kept",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/serving/lanes.rs",
            "        self.commands.set_association(index, None);",
            "        if !BUG {
            self.commands.set_association(index, None);
        }",
        )],
    },
    Bug {
        name: "ended-lane-counted-by-placement",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/placement.rs",
            "            share.lanes -= 1;\n            share.io_lanes -= i64::from(left.is_io);",
            "            share.lanes -= i64::from(!BUG);\n            share.io_lanes -= i64::from(left.is_io);",
        )],
    },
    // Only where the kernel refuses to serve a connection that was accepted.
    Bug {
        name: "unserved-connection-counted",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/serving/lanes.rs",
            "                self.post_unserved(io, peer, napi, is_placed);",
            "                if !BUG {
                    self.post_unserved(io, peer, napi, is_placed);
                }",
        )],
    },
    // Only where the kernel has no pages to spare, and copies.
    Bug {
        name: "copied-send-awaits-notice",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/lane.rs",
            "                io.send_zero_copy(socket, segments)\n",
            "                let (sent, has_notice) = io.send_zero_copy(socket, segments);
                let is_awaited = has_notice || BUG && matches!(sent, Sent::Bytes(_));
                (sent, is_awaited)\n",
        )],
    },
];
