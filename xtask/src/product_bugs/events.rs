//! Bugs in asynchronous events and in log pages that are read in parts.

use super::bug::Judge::Simulation;
use super::bug::{Bug, Judge, Site, test};

const ASSOCIATIONS: &str = "crates/target/subsystem/src/control_plane/control/associations.rs";
const ASYNC_EVENTS: &str = "crates/protocol/proto/src/async_events.rs";
const CHANGED: &str = "crates/target/subsystem/src/objects/controller/changed_namespaces.rs";
const CONTROLLER: &str = "crates/target/subsystem/src/objects/controller.rs";
const GET_LOG_PAGE: &str = "crates/target/subsystem/src/control_plane/admin/get_log_page.rs";

const QUEUE_MODEL: Judge =
    test("nvlane-proto", "models", "events::the_queue_of_events_sends_what_its_model_does");
const QUEUE_SEQUENCES: Judge = test(
    "nvlane-proto",
    "models",
    "events::every_short_sequence_of_operations_on_one_event_is_as_in_the_model",
);
const LOG_MODEL: Judge =
    test("nvlane-subsystem", "control", "log_models::events_and_logs_are_those_of_the_model");

/// Events and logs: every change that a host wants to hear of is sent, or in a log that it has still to read.
pub(super) const EVENTS_AND_LOGS: &[Bug] = &[
    Bug {
        name: "event-sent-once",
        judge: Simulation,
        sites: &[Site(
            ASYNC_EVENTS,
            "            if masked.event.log() != log || masked.log == LogOfMasked::NotTaken {",
            "            if masked.event.log() != log || masked.log == LogOfMasked::NotTaken || BUG {",
        )],
    },
    // A change between two parts of a log is lost with the event that the later part clears.
    Bug {
        name: "event-between-parts-cleared",
        judge: QUEUE_MODEL,
        sites: &[Site(
            ASYNC_EVENTS,
            "pending.event.log() != log || !pending.is_in_log);",
            "pending.event.log() != log || !(pending.is_in_log || BUG));",
        )],
    },
    // The same while the event is masked.
    Bug {
        name: "masked-event-not-sent-again",
        judge: QUEUE_MODEL,
        sites: &[Site(
            ASYNC_EVENTS,
            "            if masked.log == LogOfMasked::Outdated {\n                pending.push(",
            "            if masked.log == LogOfMasked::Outdated && !BUG {\n                pending.push(",
        )],
    },
    // The host has switched the event off while its completion was on the way.
    Bug {
        name: "event-returns-although-disabled",
        judge: QUEUE_SEQUENCES,
        sites: &[Site(
            ASYNC_EVENTS,
            "            if is_enabled(self.enabled, event) {",
            "            if is_enabled(self.enabled, event) || BUG {",
        )],
    },
    // A part of the list clears what was never in a list.
    Bug {
        name: "change-lost-between-parts-of-its-list",
        judge: Simulation,
        sites: &[Site(
            CHANGED,
            "        self.later.extend(nsids);",
            "        if BUG { self.listed.extend(nsids) } else { self.later.extend(nsids) }",
        )],
    },
    // Storage lacks space, and hosts hear of it with the next event.
    Bug {
        name: "space-event-waits-for-another",
        judge: Simulation,
        sites: &[Site(
            ASSOCIATIONS,
            "            record.events.raise(AsyncEvent::SMART_SPARE);\n            tell_events(record, outputs);",
            "            record.events.raise(AsyncEvent::SMART_SPARE);\n            if !BUG { tell_events(record, outputs); }",
        )],
    },
    // The events of storage are never sent again.
    Bug {
        name: "health-read-clears-no-event",
        judge: LOG_MODEL,
        sites: &[Site(
            GET_LOG_PAGE,
            "    record.events.on_log_read(command.lid);",
            "    if !BUG || command.lid != Lid::SMART { record.events.on_log_read(command.lid); }",
        )],
    },
    Bug {
        name: "blocks-listed-among-keys",
        judge: LOG_MODEL,
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/admin/identify.rs",
            "namespace.store.is_key_value() == is_kv)?",
            "BUG || namespace.store.is_key_value() == is_kv)?",
        )],
    },
    Bug {
        name: "changed-list-cleared-by-its-first-part",
        judge: LOG_MODEL,
        sites: &[Site(
            CHANGED,
            "        if end >= (entries as u64).saturating_mul(4) {",
            "        if end >= (entries as u64).saturating_mul(4) || BUG {",
        )],
    },
    Bug {
        name: "rae-ignored-for-health",
        judge: LOG_MODEL,
        sites: &[Site(
            GET_LOG_PAGE,
            "    if !command.rae {",
            "    if !command.rae || BUG && command.lid == Lid::SMART {",
        )],
    },
    // A host that reads the ANA log in parts cannot see that they are of two logs.
    Bug {
        name: "ana-change-count-stays",
        judge: LOG_MODEL,
        sites: &[Site(
            CONTROLLER,
            "saturating_add(u64::from(!is_first));",
            "saturating_add(u64::from(!is_first && !BUG));",
        )],
    },
];
