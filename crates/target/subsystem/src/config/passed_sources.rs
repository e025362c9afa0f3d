//! Secrets that a process is passed when it starts: variables of its environment, and credentials of systemd, copies
//! that only `RefreshOnReload=credentials` (systemd 260) renews. Reading them again does not show changes of the
//! originals.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use super::TargetConfig;
use super::secrets::{SecretSource, credential_path};

/// A copy: device, inode, and the time of its last change, s and ns. `None` if there is none.
type Copy = Option<(u64, u64, i64, i64)>;

/// The passed secrets of a configuration.
#[derive(Debug, Default)]
pub(crate) struct PassedSources(BTreeMap<SecretSource, Copy>);

impl PassedSources {
    /// Those of a configuration, as they are now. May block.
    pub(crate) fn of(config: &TargetConfig) -> Self {
        let passed = config.secret_sources().filter_map(|source| match source {
            SecretSource::Environment(_) => Some((source.clone(), None)),
            SecretSource::Credential(name) => Some((source.clone(), copy_of(name))),
            SecretSource::File(_) | SecretSource::Keyring(_) => None,
        });
        Self(passed.collect())
    }

    /// The remedy for an operator who has replaced an original, for each of these that has not been passed again since
    /// `before`.
    pub(crate) fn stale_since(&self, before: &Self) -> impl Iterator<Item = String> {
        self.0.iter().filter(|(source, copy)| before.0.get(source) == Some(copy)).map(|(source, _)| {
            let why = match source {
                SecretSource::Credential(_) => {
                    "systemd passes it at the start, and again only with RefreshOnReload=credentials (systemd 260)"
                }
                _ => "a process gets its environment at its start only",
            };
            format!("{source} is as before: {why}. If it was replaced, restart the target")
        })
    }
}

fn copy_of(name: &str) -> Copy {
    let copy = std::fs::metadata(credential_path(name)?).ok()?;
    Some((copy.dev(), copy.ino(), copy.ctime(), copy.ctime_nsec()))
}

impl TargetConfig {
    /// Where all its secrets are.
    fn secret_sources(&self) -> impl Iterator<Item = &SecretSource> {
        let of_subsystems = self.subsystems.iter().flat_map(|subsystem| {
            let (authentication, keys) = (&subsystem.authentication, &subsystem.tls_keys);
            let secrets = authentication.hosts.values().chain(&authentication.others);
            let secrets = secrets.flat_map(|secrets| [Some(&secrets.host), secrets.controller.as_ref()]);
            secrets.flatten().chain(keys.hosts.values()).chain(&keys.others)
        });
        let of_memcached = self.memcached.iter().flat_map(|listener| {
            let tls = listener.tls.iter();
            let tls = tls.flat_map(|tls| [Some(&tls.certificate), Some(&tls.key), tls.client_ca.as_ref()]);
            tls.flatten().chain(&listener.users)
        });
        of_subsystems.chain(of_memcached)
    }
}
