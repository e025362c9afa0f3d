//! A TLS key and a host's secret of one study: in files for targets and processes that it starts, and as options of its own
//! hosts.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use host::Credentials;
use linux::randomness::Randomness;
use security::group::Group;
use security::hash::HashFunction;
use security::psk::Derivation;
use security::secret::Secret;
use security::tls::HostKeys;
use security::tls_key::TlsKey;
use tempfile::TempDir;

use crate::error::{Doing, Error};
use crate::served_options::KeyFiles;
use crate::target_options::KeyAccess;

/// Bytes of the secret and of the key, which is one of SHA-256: `TLS_AES_128_GCM_SHA256`.
const KEY_BYTES: usize = 32;

/// Random keys, and the files that have them, which are removed with this value.
#[derive(Debug)]
pub(crate) struct Keys {
    tls: TlsKey,
    pub(crate) secret: Secret,
    /// Removed with the keys.
    _directory: TempDir,
    tls_path: PathBuf,
    secret_path: PathBuf,
}

impl Keys {
    /// New keys, in files that only this user can read.
    pub(crate) fn generate() -> Result<Self, Error> {
        let make = || -> io::Result<Self> {
            let random = || -> io::Result<Vec<u8>> {
                let mut bytes = vec![0; KEY_BYTES];
                Randomness::System.fill(&mut bytes)?;
                Ok(bytes)
            };
            let tls = TlsKey::new(Some(HashFunction::Sha256), random()?.into()).map_err(io::Error::other)?;
            let secret = Secret::new(None, random()?.into()).map_err(io::Error::other)?;
            Self::keep(tls, secret)
        };
        make().doing("make files with keys")
    }

    /// These keys, in files that only this user can read.
    pub(crate) fn keep(tls: TlsKey, secret: Secret) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("nvlane-study-keys-").tempdir()?;
        let (tls_path, secret_path) = (directory.path().join("tls.key"), directory.path().join("host.key"));
        let keys = Self { tls, secret, _directory: directory, tls_path, secret_path };
        write(&keys.tls_path, &keys.tls.to_text())?;
        write(&keys.secret_path, &keys.secret.to_text())?;
        Ok(keys)
    }

    /// The files, for a target with these demands on its hosts.
    pub(crate) fn files(&self, access: KeyAccess) -> KeyFiles {
        KeyFiles { tls_key: self.tls_path.clone(), secret: self.secret_path.clone(), access }
    }

    /// The file with the key of TLS.
    pub(crate) fn tls_path(&self) -> &Path {
        &self.tls_path
    }

    /// The key of TLS, for options of a host.
    pub(crate) fn tls(&self) -> Arc<HostKeys> {
        of_host(self.tls.clone())
    }

    /// The secret, for a host that offers only this group.
    pub(crate) fn credentials(&self, group: Group) -> Arc<Credentials> {
        Arc::new(Credentials { groups: vec![group], ..Credentials::new(self.secret.clone(), None) })
    }
}

/// The key of TLS in a file, for options of a host.
pub(crate) fn tls_of_file(path: &Path) -> Result<Arc<HostKeys>, Error> {
    let read =
        || -> io::Result<TlsKey> { std::fs::read_to_string(path)?.trim().parse().map_err(io::Error::other) };
    read().map(of_host).doing("the file with the key of TLS")
}

fn of_host(key: TlsKey) -> Arc<HostKeys> {
    Arc::new(HostKeys { key, derivation: Derivation::Standard })
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{text}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_files_have_the_keys_for_this_user_only_and_go_with_them() {
        let (keys, other) = (Keys::generate().unwrap(), Keys::generate().unwrap());
        assert_eq!(tls_of_file(keys.tls_path()).unwrap().key.checksum(), keys.tls.checksum());
        assert_ne!(keys.tls.checksum(), other.tls.checksum());
        let text = std::fs::read_to_string(&keys.secret_path).unwrap();
        assert!(text.trim().parse::<Secret>().unwrap().is_same(&keys.secret));
        let mode = std::fs::metadata(&keys.secret_path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let path = keys.tls_path().to_owned();
        drop(keys);
        assert!(!path.exists() && other.tls_path().exists());
        assert!(tls_of_file(&path).is_err());
    }
}
