//! TLS sessions against each other, and against OpenSSL and GnuTLS over real sockets.

mod certificates;
mod damage;
mod pair;
mod peers;
mod refusals;
mod streams;

use nvlane_security::hash::HashFunction;
use nvlane_security::psk::Derivation;
use nvlane_security::tls::{HostKeys, Keyring, KnownKey};
use nvlane_security::tls_key::TlsKey;
use wire::nqn::{HostName, Nqn};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const SUBSYSTEM: &str = "nqn.2016-06.io.nvlane:disk";

fn host_name() -> HostName {
    HOST.parse().expect("a name")
}

fn subsystem() -> Nqn {
    SUBSYSTEM.parse().expect("a name")
}

/// A configured PSK of 32 bytes for SHA-256, or of 48 for SHA-384.
fn key(hash: HashFunction, byte: u8) -> TlsKey {
    TlsKey::new(Some(hash), vec![byte; hash.digest_bytes()].into()).expect("a key")
}

fn host_keys(key: TlsKey) -> HostKeys {
    HostKeys { key, derivation: Derivation::Standard }
}

fn keyring(keys: impl IntoIterator<Item = TlsKey>) -> std::sync::Arc<Keyring> {
    let known = keys.into_iter().map(|key| KnownKey { subsystem: None, host: None, key });
    std::sync::Arc::new(Keyring::new(known.collect()))
}
