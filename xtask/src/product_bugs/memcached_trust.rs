//! Bugs in what memcached listeners ask of their clients.

use super::bug::{Bug, Judge, Site, test, unit_test};

const CONNECTIONS: &str = "crates/target/subsystem/src/serving/memcached_connections.rs";
const LIBRARY: &str = "crates/protocol/security/src/tls/library.rs";

/// A test of clients and targets over sockets.
const fn end_to_end(name: &'static str) -> Judge {
    test("nvlane", "end_to_end", name)
}

const AUTHENTICATES: Judge = end_to_end("memcached_trust::a_client_authenticates_before_anything_else");

/// A memcached client is served only from an allowed address, with the certificate and the password that its listener asks
/// for.
pub(super) const MEMCACHED_TRUST: &[Bug] = &[
    Bug {
        name: "memcached-authentication-skipped",
        judge: AUTHENTICATES,
        sites: &[Site(CONNECTIONS, "session: if authenticates {", "session: if authenticates && !BUG {")],
    },
    Bug {
        name: "memcached-password-not-compared",
        judge: unit_test("nvlane-security", "users::tests::users_are_found_by_name_and_password_only"),
        sites: &[Site(
            "crates/protocol/security/src/users.rs",
            "if difference == 0 {",
            "if difference == 0 || BUG && user.name.as_bytes() == name {",
        )],
    },
    Bug {
        name: "memcached-authenticated-by-any-value",
        judge: unit_test(
            "nvlane-memcached",
            "session_tests::no_command_is_executed_before_the_client_has_authenticated",
        ),
        sites: &[Site(
            "crates/target/memcached/src/authentication.rs",
            "(!is_known(user, password)).then_some(",
            "(!is_known(user, password) && !BUG).then_some(",
        )],
    },
    Bug {
        name: "memcached-users-of-before-a-reload",
        judge: AUTHENTICATES,
        sites: &[Site(
            "crates/target/subsystem/src/operator/memcached.rs",
            "self.gate.set_memcached(known.tag, trust);",
            "if !BUG {
                self.gate.set_memcached(known.tag, trust);
            }",
        )],
    },
    Bug {
        name: "memcached-client-certificate-not-demanded",
        judge: end_to_end("memcached_trust::a_client_without_a_required_certificate_is_refused"),
        sites: &[Site(
            LIBRARY,
            "ClientCertificates::Required => ClientAuthType::Required,",
            "ClientCertificates::Required if BUG => ClientAuthType::Optional,
            ClientCertificates::Required => ClientAuthType::Required,",
        )],
    },
    Bug {
        name: "memcached-in-clear-where-tls-is-required",
        judge: end_to_end("memcached_trust::a_client_in_clear_is_closed_where_tls_is_required"),
        sites: &[Site(
            CONNECTIONS,
            "Channel::new(socket, tls),",
            "Channel::new(socket, tls.filter(|_| !BUG)),",
        )],
    },
    Bug {
        name: "allow-list-ignored",
        judge: end_to_end("memcached_trust::a_connection_from_an_address_that_is_not_allowed_is_closed"),
        sites: &[Site(
            "crates/target/subsystem/src/serving.rs",
            "if !self.gate.admits(listener,",
            "if !BUG && !self.gate.admits(listener,",
        )],
    },
    Bug {
        name: "allow-list-compared-in-part",
        judge: unit_test(
            "nvlane-subsystem",
            "names::allow_list::tests::addresses_are_compared_by_their_first_bits",
        ),
        sites: &[Site(
            "crates/target/subsystem/src/names/allow_list.rs",
            "prefixes.iter().any(|prefix| prefix.has(address))",
            "prefixes.iter().any(|prefix| BUG && prefix.bits > 24 || prefix.has(address))",
        )],
    },
    Bug {
        name: "unauthenticated-client-kept-for-ever",
        judge: end_to_end(
            "memcached_trust::connections_that_are_not_established_are_bounded_in_number_and_time",
        ),
        sites: &[Site(CONNECTIONS, "let is_late = !connection", "let is_late = !BUG && !connection")],
    },
];
