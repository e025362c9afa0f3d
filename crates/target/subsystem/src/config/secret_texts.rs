//! The texts of all secrets that a configuration refers to, for programs that must not show any.

use zeroize::Zeroizing;

use super::secrets::Kind;
use super::{SecretSource, TargetConfig};

/// Longest text of a secret, bytes: a list of users.
const BYTES_MAX: usize = 128 << 10;

/// A text that the configuration refers to and that nobody may see.
pub struct SecretText {
    /// Its reference.
    pub source: SecretSource,
    /// The text, or why it cannot be read.
    pub text: Result<Zeroizing<String>, String>,
}

impl TargetConfig {
    /// The references to what nobody may see, each once: secrets of hosts and subsystems, keys of TLS, private keys, and
    /// users with their passwords. Certificates are not among them.
    #[must_use]
    pub fn private_sources(&self) -> Vec<&SecretSource> {
        let of_subsystems = self.subsystems.iter().flat_map(|subsystem| {
            let (authentication, keys) = (&subsystem.authentication, &subsystem.tls_keys);
            let secrets = authentication.hosts.values().chain(&authentication.others);
            let secrets =
                secrets.flat_map(|sources| [Some(&sources.host), sources.controller.as_ref()]).flatten();
            secrets.chain(keys.hosts.values()).chain(&keys.others)
        });
        let of_memcached = self
            .memcached
            .iter()
            .flat_map(|listener| listener.tls.iter().map(|tls| &tls.key).chain(&listener.users));
        let mut sources: Vec<&SecretSource> =
            of_subsystems.chain(of_memcached).chain(self.control.tls_keys.values()).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// Reads all secrets. May block.
    #[must_use]
    pub fn secret_texts(&self) -> Vec<SecretText> {
        let read = |source: &SecretSource| SecretText {
            source: source.clone(),
            text: source.read_text(BYTES_MAX, Kind::Secret),
        };
        self.private_sources().into_iter().map(read).collect()
    }

    /// For each memcached listener with a certificate that can be read: its reference, and when it expires, Unix time in
    /// seconds. May block.
    #[must_use]
    pub fn certificate_expiries(&self) -> Vec<(SecretSource, i64)> {
        let expiry = |listener: &super::MemcachedListenerConfig| {
            let source = listener.tls.as_ref()?.certificate.clone();
            let certificate = listener.read_trust().ok()?.tls?;
            Some((source, certificate.fields().not_after_unix_s))
        };
        self.memcached.iter().filter_map(expiry).collect()
    }
}
