//! Authentication in a run: the secrets of its hosts, and those that the target asks for.

use host_core::Credentials;
use linux::random::SplitMix64;
use linux::randomness::Randomness;
use subsystem::authentication::{Authentication, Secrets};
use subsystem::config::{AuthenticationConfig, SecretSources, TlsPolicy};

use crate::keys::{secret, secret_source};
use crate::names::name;
use crate::scenario::Scenario;

/// Number that the target's secret is made from.
const TARGET: usize = 255;

/// Number that the secrets of hosts that do not exist are made from.
const STRANGER: usize = 254;

/// The secrets that hosts must have, and the secret of the target that each sees, where the configuration does not give
/// them: in some of these runs there are hosts without a secret.
pub(crate) fn authentication(scenario: &Scenario) -> Option<Authentication> {
    scenario.security.authentication.filter(|_| scenario.security.tls != TlsPolicy::Concatenated)?;
    let secrets = |index| Secrets { host: secret(index), controller: Some(secret(TARGET)) };
    let hosts = (0..scenario.hosts.count).map(|index| (name(index).into(), secrets(index))).collect();
    Some(Authentication { hosts, ..Authentication::default() })
}

/// Where the configuration finds the secrets of hosts that generate keys of TLS.
pub(crate) fn authentication_config(scenario: &Scenario) -> AuthenticationConfig {
    if scenario.security.tls != TlsPolicy::Concatenated {
        return AuthenticationConfig::default();
    }
    let sources =
        |index| SecretSources { host: secret_source(index), controller: Some(secret_source(TARGET)) };
    let hosts = (0..scenario.hosts.count).map(|index| (name(index).into(), sources(index))).collect();
    AuthenticationConfig { hosts, others: Some(sources(STRANGER)), ..AuthenticationConfig::default() }
}

/// The secrets of a host.
pub(crate) fn credentials(scenario: &Scenario, index: usize) -> Option<Credentials> {
    let group = scenario.security.authentication?;
    let random = SplitMix64::new(scenario.seed ^ (index as u64) << 32);
    Some(Credentials {
        groups: vec![group],
        randomness: Randomness::Simulated(random),
        ..Credentials::new(secret(index), Some(secret(TARGET)))
    })
}
