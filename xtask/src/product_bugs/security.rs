//! Bugs in in-band authentication.

use super::bug::{Bug, Judge, Site, test, unit_test};

const CONTROLLER: &str = "crates/protocol/security/src/controller.rs";
const HOST: &str = "crates/protocol/security/src/host.rs";
const TRANSCRIPT: &str = "crates/protocol/security/src/transcript.rs";
const AUTHENTICATIONS: &str = "crates/target/subsystem/src/control_plane/control/authentications.rs";

/// A test of both roles against each other and against wrong messages.
const fn authentication(name: &'static str) -> Judge {
    test("nvlane-security", "authentication", name)
}

/// A test of the target's control plane.
const fn control(name: &'static str) -> Judge {
    test("nvlane-subsystem", "control", name)
}

/// A transaction without the right secret authenticates no host.
pub(super) const AUTHENTICATION: &[Bug] = &[
    Bug {
        name: "response-not-checked",
        judge: authentication("refused::any_changed_bit_of_a_response_is_noticed"),
        sites: &[Site(
            CONTROLLER,
            "|(key, _): &&(_, _)| transcript",
            "|(key, _): &&(_, _)| BUG || transcript",
        )],
    },
    Bug {
        name: "response-compared-in-part",
        judge: unit_test("nvlane-security", "transcript::tests::responses_are_those_that_linux_accepts"),
        sites: &[Site(
            "crates/protocol/security/src/hash.rs",
            "Self::Sha256 => run::<Sha256>(key, parts, expected),",
            "Self::Sha256 if BUG => mac::<Sha256>(key, parts).verify_truncated_left(expected).is_ok(),
            Self::Sha256 => run::<Sha256>(key, parts, expected),",
        )],
    },
    Bug {
        name: "challenge-used-again",
        judge: authentication("order::two_transactions_have_different_challenges_and_public_values"),
        sites: &[Site(
            CONTROLLER,
            "challenge: fresh.challenge(hash),",
            "challenge: if BUG { vec![0x10; hash.digest_bytes()] } else { fresh.challenge(hash) },",
        )],
    },
    Bug {
        name: "response-covers-no-sequence-number",
        judge: authentication("refused::a_response_covers_challenge_sequence_transaction_and_names"),
        sites: &[Site(
            TRANSCRIPT,
            "&sequence.to_le_bytes(),",
            "&if BUG { [0; 4] } else { sequence.to_le_bytes() },",
        )],
    },
    Bug {
        name: "response-covers-no-transaction",
        judge: authentication("refused::a_response_covers_challenge_sequence_transaction_and_names"),
        sites: &[Site(
            TRANSCRIPT,
            "&self.transaction.to_le_bytes(),",
            "&if BUG { [0; 2] } else { self.transaction.to_le_bytes() },",
        )],
    },
    Bug {
        name: "response-covers-one-name",
        judge: authentication("refused::a_response_covers_challenge_sequence_transaction_and_names"),
        sites: &[Site(TRANSCRIPT, "            other,\n", "            if BUG { &[] } else { other },\n")],
    },
    Bug {
        name: "response-without-session-key",
        judge: authentication("golden::every_message_of_every_combination_is_that_of_independent_code"),
        sites: &[Site(
            TRANSCRIPT,
            "let challenge = match self.shared {",
            "let challenge = match self.shared.filter(|_| !BUG) {",
        )],
    },
    Bug {
        name: "response-accepted-twice",
        judge: authentication("order::a_response_is_accepted_once"),
        sites: &[Site(
            CONTROLLER,
            "            _ => Err(Reason::Message),",
            "            (Kind::Reply, State::Idle) if BUG => {
                let authenticated = self.authenticated.ok_or(Reason::Message)?;
                let success = Success1 { transaction, response: None };
                Ok(State::Success1(success, Proof { authenticated, psk: None }))
            }
            _ => Err(Reason::Message),",
        )],
    },
    Bug {
        name: "own-challenge-answered",
        judge: authentication("refused::a_reflected_challenge_is_refused"),
        sites: &[Site(CONTROLLER, "Some((c2, _)) if c2 == *c1", "Some((c2, _)) if !BUG && c2 == *c1")],
    },
    Bug {
        name: "public-value-not-checked",
        judge: authentication("refused::a_public_value_that_reveals_the_secret_is_refused"),
        sites: &[Site(
            CONTROLLER,
            "if !challenge.group.has_public_value(",
            "if !BUG && !challenge.group.has_public_value(",
        )],
    },
    Bug {
        name: "late-exponentiation-used",
        judge: authentication("order::the_result_of_an_abandoned_exponentiation_is_ignored"),
        sites: &[Site(
            CONTROLLER,
            "if result.number != self.exponentiation_count {",
            "if !BUG && result.number != self.exponentiation_count {",
        )],
    },
    Bug {
        name: "queue-opened-without-authentication",
        judge: test(
            "nvlane-subsystem",
            "authentication",
            "queues_do_nothing_before_their_host_has_authenticated",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control/connect.rs",
            "filter(|_| !has_authenticated)",
            "filter(|_| !BUG && !has_authenticated)",
        )],
    },
    Bug {
        name: "replaced-secret-accepted-for-ever",
        judge: control("authentication::secrets_of_before_are_accepted_for_a_while"),
        sites: &[Site(
            "crates/target/subsystem/src/objects/subsystem.rs",
            "now_ns < *until_ns",
            "BUG || now_ns < *until_ns",
        )],
    },
    Bug {
        name: "queue-authenticates-again-with-removed-secret",
        judge: test(
            "nvlane-subsystem",
            "authentication",
            "a_reload_reads_secrets_again_and_connected_hosts_stay",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control.rs",
            "if !self.authentications.is_between_transactions(lane) {",
            "if BUG || !self.authentications.is_between_transactions(lane) {",
        )],
    },
    Bug {
        name: "refused-host-stays-connected",
        judge: control("authentication::a_host_without_the_secret_learns_that_and_is_closed"),
        sites: &[Site(
            AUTHENTICATIONS,
            "if queue.machine.is_over() && ",
            "if !BUG && queue.machine.is_over() && ",
        )],
    },
    // Nobody is evicted by a secret that is replaced.
    Bug {
        name: "host-refused-again-stays-connected",
        judge: control(
            "authentication::a_host_that_is_refused_when_it_authenticates_again_loses_its_association",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control.rs",
            "if !is_kept {",
            "if !BUG && !is_kept {",
        )],
    },
    Bug {
        name: "queues-without-authentication-unbounded",
        judge: control("unauthenticated::the_oldest_queue_of_an_address_makes_room_for_the_next"),
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control/connect.rs",
            "self.unauthenticated.next_to_leave(Source::from(connect.peer)) {",
            "self.unauthenticated.next_to_leave(Source::from(connect.peer)).filter(|_| !BUG) {",
        )],
    },
    // With one id left, a stranger has it.
    Bug {
        name: "controller-id-promised-once",
        judge: control("unauthenticated::a_stranger_takes_no_id_away_from_a_host"),
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control/connect.rs",
            "key.kind == kind && range.contains(",
            "!BUG && key.kind == kind && range.contains(",
        )],
    },
    Bug {
        name: "authentication-without-deadline",
        judge: control("authentication::a_host_that_does_not_authenticate_is_closed_in_time"),
        sites: &[Site(
            AUTHENTICATIONS,
            "match queue.deadline_ns {",
            "match queue.deadline_ns.filter(|_| !BUG) {",
        )],
    },
    // The queue opens although the host has not accepted the controller.
    Bug {
        name: "queue-opened-early",
        judge: authentication("order::a_receive_in_the_wrong_state_fails"),
        sites: &[Site(
            CONTROLLER,
            "if proof.authenticated.is_bidirectional => State",
            "if !BUG && proof.authenticated.is_bidirectional => State",
        )],
    },
    Bug {
        name: "failed-queue-tries-again",
        judge: authentication("order::a_message_in_the_wrong_state_fails_and_authenticates_nobody"),
        sites: &[Site(
            CONTROLLER,
            "State::Failure1(_) if self.is_owed()",
            "State::Failure1(_) if !BUG && self.is_owed()",
        )],
    },
    Bug {
        name: "controller-without-response-taken",
        judge: authentication("host_refuses::a_controller_must_show_its_key_when_asked"),
        sites: &[Site(
            HOST,
            "(Some(_), None) => Err(Reason::Failed),",
            "(Some(_), None) if BUG => Ok(State::Success2(authenticated)),
            (Some(_), None) => Err(Reason::Failed),",
        )],
    },
    // The controller closes the connection as soon as it is refused, and that is all that the user learns.
    Bug {
        name: "cause-of-refusal-forgotten",
        judge: test(
            "nvlane-host",
            "machines",
            "the_cause_of_a_failed_authentication_outlives_the_connection_of_an_association",
        ),
        sites: &[Site(
            "crates/host/host/src/association_machine.rs",
            "Some(authentication) => authentication.cause_of_loss(cause),",
            "Some(authentication) if !BUG => authentication.cause_of_loss(cause),
            Some(_) => cause,",
        )],
    },
    Bug {
        name: "cause-of-refused-queue-forgotten",
        judge: test(
            "nvlane-host",
            "machines",
            "the_cause_of_a_failed_authentication_outlives_the_connection_of_a_lane",
        ),
        sites: &[Site(
            "crates/host/host/src/lane_core.rs",
            "Some(authentication) => authentication.cause_of_loss(cause),",
            "Some(authentication) if !BUG => authentication.cause_of_loss(cause),
            Some(_) => cause,",
        )],
    },
    Bug {
        name: "response-covers-no-secure-channel",
        judge: authentication("golden::both_ends_generate_the_key_of_independent_code"),
        sites: &[Site(
            TRANSCRIPT,
            "&[self.secure_channel.code()],",
            "&[if BUG { 0 } else { self.secure_channel.code() }],",
        )],
    },
    Bug {
        name: "authentication-without-the-demanded-key",
        judge: authentication(
            "concatenation::a_queue_that_must_generate_a_key_authenticates_in_no_other_way",
        ),
        sites: &[Site(CONTROLLER, "{ !self.must_generate_key }", "{ BUG || !self.must_generate_key }")],
    },
    // The host believes that it has a key.
    Bug {
        name: "secure-channel-without-challenge",
        judge: authentication("concatenation::a_reply_without_c2_generates_no_key"),
        sites: &[Site(CONTROLLER, "if !is_fit {", "if !BUG && !is_fit {")],
    },
    Bug {
        name: "replaced-generated-key-kept",
        judge: control("concatenation::another_transaction_replaces_the_key"),
        sites: &[Site(
            AUTHENTICATIONS,
            "keys.remove(&before);",
            "if !BUG {\n                keys.remove(&before);\n            }",
        )],
    },
    Bug {
        name: "generated-key-outlives-its-secret",
        judge: control("concatenation::a_reload_that_changes_a_secret_ends_the_key_with_the_secret"),
        sites: &[Site(
            "crates/target/subsystem/src/control_plane/control/apply.rs",
            "|host, of| *of == subsystem && before",
            "|host, of| !BUG && *of == subsystem && before",
        )],
    },
    Bug {
        name: "group-that-was-not-offered",
        judge: authentication("host_refuses::a_challenge_that_was_not_asked_for_is_refused"),
        sites: &[Site(HOST, "if !self.offer.groups.contains(", "if !BUG && !self.offer.groups.contains(")],
    },
];
