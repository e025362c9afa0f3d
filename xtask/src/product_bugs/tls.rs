//! Bugs in TLS: who is let in, in cleartext or by which key, and how a session ends.

use super::bug::{Bug, Judge, Site, test, unit_test};

const DISPATCH: &str = "crates/target/subsystem/src/serving/dispatch.rs";
const GATE: &str = "crates/target/subsystem/src/names/listener_gate.rs";
const KEYRING: &str = "crates/protocol/security/src/tls/keyring.rs";
const RECORDS: &str = "crates/protocol/security/src/tls/records.rs";
const SECURE: &str = "crates/target/subsystem/src/io_path/lane/secure.rs";
const SESSION: &str = "crates/protocol/security/src/tls/session.rs";
const STREAM: &str = "crates/protocol/security/src/tls/stream.rs";

/// A listener that requires TLS takes connections in cleartext.
const ALLOWS_CLEAR: &[Site] = &[
    Site(
        GATE,
        "Policy::Required => Passage",
        "Policy::Required if BUG => Passage::Tls(Box::new(Stream::allowing_clear(session()))),
            Policy::Required => Passage",
    ),
    Site(GATE, PERMITS_CLEAR, ALWAYS_PERMITS_CLEAR),
];

/// A test of hosts and targets over sockets.
const fn end_to_end(name: &'static str) -> Judge {
    test("nvlane", "end_to_end", name)
}

/// A test of sessions without a socket.
const fn session(name: &'static str) -> Judge {
    test("nvlane-security", "tls", name)
}

const NAMES: Judge = end_to_end("tls::a_connect_under_other_names_than_those_of_the_key_ends_the_connection");

const PERMITS_CLEAR: &str = "self.lock().policies.get(&listener).is_some_and(";
const ALWAYS_PERMITS_CLEAR: &str = "BUG || self.lock().policies.get(&listener).is_some_and(";

/// Where TLS is required nothing is taken in cleartext, and a connection is one of the host and subsystem whose key it
/// has shown.
pub(super) const TLS: &[Bug] = &[
    // A target that ends the handshake at the first identity it does not know is never offered another.
    Bug {
        name: "identities-refused-once-for-all",
        judge: end_to_end("tls::a_target_that_ends_the_handshake_at_version_1_gets_version_0"),
        sites: &[Site(
            "crates/host/host/src/association_machine.rs",
            "self.opens_again() && !self.has_offered_others",
            "!BUG && self.opens_again() && !self.has_offered_others",
        )],
    },
    Bug {
        name: "tls-identity-not-checked",
        judge: NAMES,
        sites: &[Site(
            DISPATCH,
            "filter(|_| is_connect).and_then(|tls| tls.refusal(&data))",
            "filter(|_| is_connect && !BUG).and_then(|tls| tls.refusal(&data))",
        )],
    },
    Bug {
        name: "tls-identity-checked-in-part",
        judge: NAMES,
        sites: &[Site(
            SECURE,
            "&& subsystem_asked.as_ref() == Ok(subsystem)",
            "&& (BUG || subsystem_asked.as_ref() == Ok(subsystem))",
        )],
    },
    Bug {
        name: "clear-taken-where-tls-is-required",
        judge: end_to_end(
            "tls::a_host_in_clear_is_refused_where_tls_is_required_and_served_where_it_is_allowed",
        ),
        sites: ALLOWS_CLEAR,
    },
    // It was accepted before TLS was required.
    Bug {
        name: "queue-connected-in-clear-after-a-reload",
        judge: end_to_end("tls::a_connection_from_before_a_reload_connects_nothing_in_clear_after_it"),
        sites: &[Site(GATE, PERMITS_CLEAR, ALWAYS_PERMITS_CLEAR)],
    },
    Bug {
        name: "connection-of-an-unknown-listener-served",
        judge: unit_test(
            "nvlane-subsystem",
            "names::listener_gate::tests::no_connection_of_an_unknown_listener_is_served",
        ),
        sites: &[Site(
            GATE,
            "match gate.policies.get(&listener)? {",
            "match gate.policies.get(&listener).or(BUG.then_some(&Policy::Off))? {",
        )],
    },
    Bug {
        name: "tls-key-of-another-host-taken",
        judge: end_to_end("tls::a_key_is_for_the_host_that_it_is_configured_for"),
        sites: &[Site(
            KEYRING,
            "Some(host) => *host == parts.host,",
            "Some(host) => BUG || *host == parts.host,",
        )],
    },
    Bug {
        name: "shared-tls-key-taken-for-host-with-own",
        judge: unit_test(
            "nvlane-security",
            "tls::keyring::tests::a_key_is_for_its_host_and_subsystem_and_for_discovery",
        ),
        sites: &[Site(KEYRING, "None => !has_own(known),", "None => BUG || !has_own(known),")],
    },
    Bug {
        name: "replaced-tls-key-taken",
        judge: end_to_end("tls::a_changed_key_is_for_new_connections_and_a_connected_host_stays"),
        sites: &[Site(
            GATE,
            "self.lock().keyring = keyring;",
            "let mut gate = self.lock();
        if !BUG || gate.keyring.is_empty() {
            gate.keyring = keyring;
        }",
        )],
    },
    Bug {
        name: "generated-key-of-another-host-taken",
        judge: unit_test(
            "nvlane-security",
            "tls::generated::tests::a_key_is_found_by_its_whole_identity_only",
        ),
        sites: &[Site(
            "crates/protocol/security/src/tls/generated.rs",
            "let entry = state.keys.get(identity)?;",
            "let digest = identity.rsplit(' ').next();
        let mut others = state.keys.iter().filter(|(known, _)| BUG && known.rsplit(' ').next() == digest);
        let entry = state.keys.get(identity).or_else(|| Some(others.next()?.1))?;",
        )],
    },
    Bug {
        name: "lane-in-clear-after-concatenation",
        judge: test(
            "nvlane-subsystem",
            "control",
            "concatenation::no_queue_in_clear_belongs_to_a_controller_with_a_secure_channel",
        ),
        sites: &[
            Site(
                "crates/target/subsystem/src/control_plane/control/connect.rs",
                "if wish.command.qid.is_admin() || !connect.channel.is_clear() {",
                "if BUG || wish.command.qid.is_admin() || !connect.channel.is_clear() {",
            ),
            Site(
                "crates/target/subsystem/src/control_plane/control/connect.rs",
                "if self.is_secured(record) && connect.channel.is_clear() {",
                "if !BUG && self.is_secured(record) && connect.channel.is_clear() {",
            ),
        ],
    },
    // A host that asks for no key uses its queues in cleartext.
    Bug {
        name: "key-of-concatenation-not-demanded",
        judge: end_to_end(
            "concatenation::a_listener_that_demands_a_key_serves_no_queue_in_clear_without_one",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/serving/lanes/placing.rs",
            "&& self.tls.demands_key(lane.listener)",
            "&& !BUG\n            && self.tls.demands_key(lane.listener)",
        )],
    },
    // What comes after it is taken for more of the session.
    Bug {
        name: "close-notify-ignored",
        judge: unit_test(
            "nvlane-security",
            "tls::records::tests::alerts_of_the_peer_end_its_direction_or_the_session",
        ),
        sites: &[Site(
            RECORDS,
            "Alert::CLOSE_NOTIFY => self.is_peer_closed = true,",
            "Alert::CLOSE_NOTIFY => self.is_peer_closed = !BUG,",
        )],
    },
    Bug {
        name: "bytes-behind-close-notify-delivered",
        judge: session("pair::nothing_behind_a_close_notify_is_delivered"),
        sites: &[Site(
            RECORDS,
            "if self.is_peer_closed {",
            "if self.is_peer_closed && !(BUG && self.start < self.end) {",
        )],
    },
    // A record that is sent again is delivered again.
    Bug {
        name: "records-have-one-nonce",
        judge: session("damage::records_that_are_moved_end_the_session"),
        sites: &[Site(
            "crates/protocol/security/src/tls/record_key.rs",
            "low.iter_mut().zip(self.record_count.to_be_bytes())",
            "low.iter_mut().zip(if BUG { [0; 8] } else { self.record_count.to_be_bytes() })",
        )],
    },
    Bug {
        name: "key-update-of-the-peer-ignored",
        judge: session("pair::keys_are_updated_both_ways_and_data_goes_on"),
        sites: &[Site(
            RECORDS,
            "self.opening.update();",
            "if !BUG {
                            self.opening.update();
                        }",
        )],
    },
    // Both ends would go on, but the peer with the wrong key.
    Bug {
        name: "key-update-not-answered",
        judge: unit_test(
            "nvlane-security",
            "tls::records::tests::a_key_update_that_asks_for_one_is_answered_once_before_the_next_data",
        ),
        sites: &[Site(
            RECORDS,
            "self.updates_key |= wants_answer;",
            "self.updates_key |= wants_answer && !BUG;",
        )],
    },
    Bug {
        name: "rest-of-a-record-dropped",
        judge: session("damage::everything_arrives_however_it_is_cut"),
        sites: &[Site(
            RECORDS,
            "self.plain_start = self.plain_start.saturating_add(count);",
            "self.plain_start = if BUG { self.plain_end } else { self.plain_start.saturating_add(count) };",
        )],
    },
    Bug {
        name: "tls-records-without-end",
        judge: session("refusals::a_peer_that_only_keeps_the_other_end_busy_is_refused"),
        sites: &[Site(
            SESSION,
            "if self.quiet_bytes <= QUIET_BYTES_MAX {",
            "if BUG || self.quiet_bytes <= QUIET_BYTES_MAX {",
        )],
    },
    // A host that connects in cleartext is served.
    Bug { name: "clear-answered-where-tls-is-required", judge: Judge::Simulation, sites: ALLOWS_CLEAR },
    Bug {
        name: "key-of-before-the-reload-taken",
        judge: Judge::Simulation,
        sites: &[Site(
            "crates/target/subsystem/src/operator.rs",
            "self.gate.set_keyring(keyring);",
            "if !BUG || self.gate.keyring().is_empty() {
            self.gate.set_keyring(keyring);
        }",
        )],
    },
    // The connection stays, and its host waits.
    Bug {
        name: "failed-session-taken-for-a-silent-one",
        judge: Judge::Simulation,
        sites: &[Site(
            STREAM,
            "Err(failure) if count == 0 => return Received::Failed(io::Error::other(failure)),",
            "Err(_) if BUG && count == 0 => return Received::Dry,
                    Err(failure) if count == 0 => return Received::Failed(io::Error::other(failure)),",
        )],
    },
    Bug {
        name: "unsent-part-of-a-record-dropped",
        judge: Judge::Simulation,
        sites: &[Site(
            STREAM,
            "self.session.on_sent(count);",
            "self.session.on_sent(if BUG { usize::MAX } else { count });",
        )],
    },
    Bug {
        name: "byte-of-a-blocked-record-sent-again",
        judge: Judge::Simulation,
        sites: &[Site(
            STREAM,
            "let mut skip = std::mem::take(&mut self.owed);",
            "let mut skip = std::mem::take(&mut self.owed) * usize::from(!BUG);",
        )],
    },
    Bug {
        name: "host-goes-on-in-clear-after-a-failed-handshake",
        judge: Judge::Simulation,
        sites: &[Site(
            "crates/host/host/src/connection_tls.rs",
            "let outcome = stream.handshake(socket);",
            "let outcome = stream.handshake(socket);
        if BUG && outcome.is_err() {
            self.stream = None;
            return Ok(true);
        }",
        )],
    },
];
