//! Bugs in what a target tells apart and what it bears.

use super::bug::Judge::Simulation;
use super::bug::{Bug, Site, test, unit_test};

const LANES: &str = "crates/target/subsystem/src/serving/lanes.rs";

/// Identity: no host takes two disks for one, or other storage for the storage it knew.
pub(super) const IDENTITY: &[Bug] = &[
    // A host that may only read a namespace writes to it.
    Bug {
        name: "right-to-read-taken-for-write",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/attached.rs",
            "(Right::Read, Self::Blocks(at)) => Some(Self::BlocksToRead(at)),",
            "(Right::Read, Self::Blocks(at)) if !BUG => Some(Self::BlocksToRead(at)),",
        )],
    },
    // Every host sees all namespaces of its subsystem.
    Bug {
        name: "hidden-namespace-found",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/attached.rs",
            "views.listed.get(host).copied().unwrap_or(views.unlisted)",
            "if BUG { views.whole } else { views.listed.get(host).copied().unwrap_or(views.unlisted) }",
        )],
    },
    // A host uses the keys of others.
    Bug {
        name: "key-prefix-not-checked",
        judge: test("nvlane-subsystem", "key_rights", "a_host_uses_the_keys_with_its_prefixes_only"),
        sites: &[Site(
            "crates/target/subsystem/src/io_path/key_value_io/execute.rs",
            "&& !scope.contains(key.as_bytes())",
            "&& !(BUG || scope.contains(key.as_bytes()))",
        )],
    },
    Bug {
        name: "key-prefixes-of-batch-not-checked",
        judge: test("nvlane-subsystem", "key_rights", "a_host_uses_the_keys_with_its_prefixes_only"),
        sites: &[Site(
            "crates/target/subsystem/src/io_path/key_value_io/batch.rs",
            "operations.all(|operation| scope.contains(operation.key))",
            "operations.all(|operation| BUG || scope.contains(operation.key))",
        )],
    },
    Bug {
        name: "keys-of-others-listed",
        judge: test("nvlane-subsystem", "key_rights", "a_host_uses_the_keys_with_its_prefixes_only"),
        sites: &[Site(
            "crates/target/subsystem/src/messages/key_value/perform.rs",
            "if scope.is_some_and(|scope| !scope.contains(key.as_bytes())) {",
            "if scope.is_some_and(|scope| !(BUG || scope.contains(key.as_bytes()))) {",
        )],
    },
    // A right that is taken away holds until every reactor serves the change.
    Bug {
        name: "right-lost-late",
        judge: unit_test(
            "nvlane-subsystem",
            "objects::access::tests::a_right_is_lost_at_once_and_gained_when_every_reactor_serves_it",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/objects/access.rs",
            "fold(self.newest.of(host), Right::min)",
            "fold(self.newest.of(host), if BUG { Right::max } else { Right::min })",
        )],
    },
    // After a reconnect another machine answers, with other storage under the same namespace id.
    Bug {
        name: "other-disk-taken-for-known",
        judge: Simulation,
        sites: &[Site(
            "crates/host/host/src/known_namespaces.rs",
            "        self.replaced = replaced;",
            "        self.replaced = if BUG { Vec::new() } else { replaced };",
        )],
    },
    // A scan has missed a part of a namespace's identity, and the namespace passes for another one from then on.
    Bug {
        name: "identity-known-in-part",
        judge: unit_test(
            "nvlane-host",
            "known_namespaces::tests::a_namespace_of_which_a_scan_has_missed_a_part_is_the_same",
        ),
        sites: &[Site(
            "crates/host/host/src/known_namespaces.rs",
            "let is_same = compare.contains(&Some(true)) && !compare.contains(&Some(false));",
            "let is_same = compare.contains(&Some(true)) && !compare.contains(&Some(false)) && !(BUG && *self != other);",
        )],
    },
    // Its id is given to another namespace before the scan comes to it, and a part of the other's identity is taken for
    // the whole.
    Bug {
        name: "namespace-removed-within-scan",
        judge: unit_test(
            "nvlane-proto",
            "host_namespaces::tests::a_namespace_that_is_removed_after_the_list_was_read_is_not_there",
        ),
        sites: &[Site(
            "crates/protocol/proto/src/host_namespaces.rs",
            "Asked::Descriptors(_) if status.is(Status::INVALID_NAMESPACE) => {}",
            "Asked::Descriptors(_) if status.is(Status::INVALID_NAMESPACE) && !BUG => {}",
        )],
    },
    // Storage whose namespace gets another identity is attached a second time.
    Bug {
        name: "storage-attached-twice",
        judge: test(
            "nvlane-subsystem",
            "control",
            "namespaces::storage_keeps_its_name_under_another_identity_and_in_another_subsystem",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/objects/catalog.rs",
            ".find(|(_, known)| known.is_same(store))",
            ".find(|(_, known)| !BUG && known.is_same(store))",
        )],
    },
    Bug {
        name: "copy-keeps-its-identity",
        judge: unit_test("nvlane-store", "names::identity::tests::a_copy_gets_an_identity_of_its_own"),
        sites: &[Site(
            "crates/storage/store/src/identity.rs",
            "let is_other = FileId::from(&other.metadata().ok()?) != this;",
            "let that = FileId::from(&other.metadata().ok()?);
    let is_other = if BUG { that.device != this.device } else { that != this };",
        )],
    },
    Bug {
        name: "second-disk-of-one-identity",
        judge: test(
            "nvlane-subsystem",
            "control",
            "reload::a_copy_with_the_identity_of_its_original_is_told_apart_or_refused",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/operator/identities.rs",
            "others.clone().find(|(_, other)| is_same(other))",
            "others.clone().find(|((nqn, _), other)| is_same(other) && !(BUG && nqn == &key.0))",
        )],
    },
    Bug {
        name: "identity-changed-by-reload",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/operator/diff.rs",
            "if (running.uuid, running.nguid) != (wanted.uuid, wanted.nguid) {",
            "if !BUG && (running.uuid, running.nguid) != (wanted.uuid, wanted.nguid) {",
        )],
    },
    Bug {
        name: "storage-swapped-by-reload",
        judge: test("nvlane-subsystem", "control", "reload::storage_is_not_swapped_under_hosts"),
        sites: &[Site(
            "crates/target/subsystem/src/operator/diff.rs",
            "    storage_name(&running.spec) == storage_name(&wanted.spec)\n        && ",
            "    (BUG || storage_name(&running.spec) == storage_name(&wanted.spec))\n        && ",
        )],
    },
    Bug {
        name: "other-file-reopened",
        judge: unit_test(
            "nvlane-store",
            "block::file::tests::a_file_that_was_deleted_or_replaced_closes_its_namespace_until_it_is_back",
        ),
        sites: &[Site(
            "crates/storage/store/src/block/file_shared.rs",
            "Some(before)) if !may_follow(&opened, before) =>",
            "Some(before)) if !may_follow(&opened, before) && !BUG =>",
        )],
    },
];

/// Under attack: what peers can use up is bounded and is returned.
pub(super) const UNDER_ATTACK: &[Bug] = &[
    Bug {
        name: "pdu-deadline-begins-anew",
        judge: test("nvlane-subsystem", "deadlines", "a_pdu_that_comes_byte_by_byte_is_not_waited_for"),
        sites: &[Site(
            LANES,
            "if had_command || !lane.deadlines.is_on(Wait::Pdu) {",
            "if had_command || !lane.deadlines.is_on(Wait::Pdu) || BUG {",
        )],
    },
    Bug {
        name: "data-deadline-forgotten",
        judge: test("nvlane-subsystem", "deadlines", "data_that_comes_bit_by_bit_is_not_waited_for"),
        sites: &[Site(
            LANES,
            "        lane.deadlines.set(Wait::Data, asked_since_ns);",
            "        lane.deadlines.set(Wait::Data, asked_since_ns.filter(|_| !BUG));",
        )],
    },
    Bug {
        name: "full-socket-has-no-deadline",
        judge: test("nvlane-subsystem", "deadlines", "a_host_that_reads_nothing_is_not_waited_for"),
        sites: &[Site(
            LANES,
            "            Flushed::Blocked => {\n                lane.arm_timer(io, &self.settings.timeouts);",
            "            Flushed::Blocked => {\n                if !BUG { lane.arm_timer(io, &self.settings.timeouts); }",
        )],
    },
    Bug {
        name: "closed-lane-leaves-its-association",
        judge: test(
            "nvlane-subsystem",
            "deadlines",
            "what_a_lane_has_begun_does_not_delay_the_end_of_its_association",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control.rs",
            "            self.associations.end(now_ns, controller, cause, &mut self.outputs);",
            "            if !BUG { self.associations.end(now_ns, controller, cause, &mut self.outputs); }",
        )],
    },
    // What is left in the socket of a connection that closes wakes its reactor time and again.
    Bug {
        name: "closing-connection-keeps-reactor-awake",
        judge: test(
            "nvlane-subsystem",
            "key_value",
            "a_connection_that_closes_and_has_input_lets_its_reactor_sleep",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/serving/memcached_connections.rs",
            "let is_paused = self.is_stalled || self.is_closing;",
            "let is_paused = self.is_stalled || self.is_closing && !BUG;",
        )],
    },
    Bug {
        name: "connection-counted-for-ever",
        judge: unit_test(
            "nvlane-subsystem",
            "control_plane::admission::tests::a_connection_that_ended_leaves_no_trace",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/admission.rs",
            "            *count -= 1;\n            if *count == 0 {",
            "            *count -= u32::from(!BUG);\n            if *count == 0 {",
        )],
    },
    Bug {
        name: "newest-connection-makes-room",
        judge: unit_test(
            "nvlane-subsystem",
            "names::unconnected::tests::the_oldest_lane_of_the_list_makes_room",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/names/unconnected.rs",
            "self.oldest != NONE).then_some(self.oldest)",
            "self.oldest != NONE).then_some(if BUG { self.newest } else { self.oldest })",
        )],
    },
    Bug {
        name: "unconnected-limit-reached-early",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/names/unconnected.rs",
            "(self.count > self.count_max &&",
            "(self.count > if BUG { self.count_max / 2 } else { self.count_max } &&",
        )],
    },
    Bug {
        name: "connection-limit-exceeded",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/admission.rs",
            "if self.count >= self.count_max {",
            "if self.count >= self.count_max.saturating_add(u32::from(BUG)) {",
        )],
    },
    Bug {
        name: "address-limit-reached-early",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/admission.rs",
            "if of_address >= self.count_per_address_max {",
            "if of_address + u32::from(BUG) >= self.count_per_address_max {",
        )],
    },
    // The count of the address never goes down again.
    Bug {
        name: "address-of-handed-over-connection-lost",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/serving/lanes/placing.rs",
            "(connection.peer, connection.local) = (lane.peer, lane.local);\n        let (listener",
            "if !BUG { (connection.peer, connection.local) = (lane.peer, lane.local); }\n        let (listener",
        )],
    },
    Bug {
        name: "controllers-of-host-exceeded",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control/connect.rs",
            "|| of_host().count() >= limits.controller_count_per_host_max;",
            "|| of_host().count() >= limits.controller_count_per_host_max + usize::from(BUG);",
        )],
    },
    Bug {
        name: "controller-limit-reached-early",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control/connect.rs",
            "self.associations.all().len() >= limits.controller_count_max\n",
            "self.associations.all().len() + usize::from(BUG) >= limits.controller_count_max\n",
        )],
    },
    Bug {
        name: "admin-queue-held-to-limit-of-others",
        judge: test(
            "nvlane-subsystem",
            "control",
            "connect::a_small_limit_of_queue_entries_is_for_io_queues_and_leaves_admin_queues_of_32",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/names/limits.rs",
            "if is_admin {",
            "if is_admin && !BUG {",
        )],
    },
    // Peers that are slow, and not too slow, lose their connections.
    Bug {
        name: "deadline-of-peer-too-early",
        judge: Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/io_path/lane/deadlines.rs",
            ".saturating_add(wait.timeout_ns(timeouts)), wait))",
            ".saturating_add(wait.timeout_ns(timeouts) / if BUG { 32 } else { 1 }), wait))",
        )],
    },
    // Small transfers of other lanes take what becomes free, for two seconds.
    Bug {
        name: "large-transfers-starve",
        judge: unit_test(
            "nvlane-subsystem",
            "io_path::buffer_quota::tests::until_then_it_is_so_in_windows_for_a_third_of_the_time",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/io_path/buffer_quota.rs",
            "_ if now_ns < self.equal_until_ns => return,",
            "_ if BUG || now_ns < self.equal_until_ns => return,",
        )],
    },
    // One lane is served strictly first all the time, although peers withhold what it waits for.
    Bug {
        name: "first-lane-blocks-all",
        judge: unit_test(
            "nvlane-subsystem",
            "io_path::buffer_quota::tests::until_then_it_is_so_in_windows_for_a_third_of_the_time",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/io_path/buffer_quota.rs",
            "now_ns + 2 * (over.until_ns - over.since_ns)",
            "now_ns + if BUG { 0 } else { 2 } * (over.until_ns - over.since_ns)",
        )],
    },
    Bug {
        name: "quota-ignores-unsent-answers",
        judge: unit_test(
            "nvlane-subsystem",
            "io_path::buffer_quota::tests::unsent_answers_count_for_the_quota",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/io_path/buffer_quota.rs",
            "map_or(0, |of_lane| of_lane.unsent_bytes);",
            "map_or(0, |of_lane| if BUG { 0 } else { of_lane.unsent_bytes });",
        )],
    },
];
