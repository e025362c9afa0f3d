//! Secrets and keys of simulated hosts and their target, and where a configuration finds them: in files of memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use security::hash::HashFunction;
use security::psk::Derivation;
use security::secret::Secret;
use security::tls::HostKeys;
use security::tls_key::TlsKey;
use subsystem::config::SecretSource;

/// The key of TLS that the target never has.
pub(crate) const OTHER_KEY: u8 = 0xff;

/// The secret of a host, or of the target.
pub(crate) fn secret(owner: usize) -> Secret {
    Secret::new(Some(HashFunction::Sha256), vec![owner as u8; 32].into()).expect("a length that exists")
}

/// A configured key of TLS: those with odd numbers are for SHA-384.
fn tls_key(number: u8) -> TlsKey {
    let (hash, length) =
        if number.is_multiple_of(2) { (HashFunction::Sha256, 32) } else { (HashFunction::Sha384, 48) };
    TlsKey::new(Some(hash), vec![number; length].into()).expect("a length that exists")
}

/// This key as a host has it.
pub(crate) fn host_keys(number: u8) -> HostKeys {
    HostKeys { key: tls_key(number), derivation: Derivation::Standard }
}

/// Where a configuration finds a secret.
pub(crate) fn secret_source(owner: usize) -> SecretSource {
    source(&secret(owner).to_text())
}

/// Where a configuration finds a key of TLS.
pub(crate) fn tls_key_source(number: u8) -> SecretSource {
    source(&tls_key(number).to_text())
}

/// The file with this text.
fn source(text: &str) -> SecretSource {
    static FILES: Mutex<BTreeMap<String, File>> = Mutex::new(BTreeMap::new());
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let file = files.entry(text.to_owned()).or_insert_with(|| {
        let file = memfd_create("nvlane-sim-key", MemfdFlags::CLOEXEC).expect("a little memory");
        fchmod(&file, Mode::RUSR | Mode::WUSR).expect("it is ours");
        let mut file = File::from(file);
        file.write_all(text.as_bytes()).expect("a little memory");
        file
    });
    SecretSource::File(format!("/proc/self/fd/{}", file.as_raw_fd()).into())
}
