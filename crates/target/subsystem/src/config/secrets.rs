//! References to secrets, which a configuration has in place of the secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use linux::small_file::SmallFile;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use security::secret::Secret;
use security::tls::{Keyring, KnownKey};
use security::tls_key::TlsKey;
use wire::nqn::{HostName, Nqn};
use zeroize::Zeroizing;

use super::{ConfigPlace, Problem, TargetConfig, kernel_keyring};
use crate::objects::authentication::{Authentication, Secrets};

/// Limit of a file with a secret, bytes; the text of a secret is far shorter.
const FILE_BYTES_MAX: usize = 4096;

/// Where a secret is: `file:PATH`, `env:NAME`, `credential:NAME` for a systemd credential, or `keyring:NAME` for a key in
/// the kernel's keyrings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SecretSource {
    /// A file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// A file in the directory of systemd's credentials.
    Credential(String),
    /// A key of type `user` in the session keyring or the user's, by its description.
    Keyring(String),
}

/// Where the secrets of an association are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretSources {
    /// The host's.
    pub host: SecretSource,
    /// The subsystem's, for hosts that ask for it.
    pub controller: Option<SecretSource>,
}

/// Which hosts of a subsystem must authenticate, and where their secrets are.
pub type AuthenticationConfig = Authentication<SecretSources>;

impl AuthenticationConfig {
    /// Reads the secrets.
    ///
    /// # Errors
    /// The first that cannot be read, and why.
    fn read(&self) -> Result<Authentication, String> {
        let host = |(host, sources): (&HostName, &SecretSources)| Ok((host.clone(), sources.read()?));
        Ok(Authentication {
            hosts: self.hosts.iter().map(host).collect::<Result<_, String>>()?,
            others: self.others.as_ref().map(SecretSources::read).transpose()?,
            hashes: self.hashes.clone(),
            groups: self.groups.clone(),
            refused_again: self.refused_again,
        })
    }
}

impl TargetConfig {
    /// Reads the secrets of each subsystem. May block.
    ///
    /// # Errors
    /// Those that cannot be read.
    pub fn read_secrets(&self) -> Result<BTreeMap<Nqn, Arc<Authentication>>, Vec<Problem>> {
        let (mut read, mut problems) = (BTreeMap::new(), Vec::new());
        for (at, subsystem) in self.subsystems.iter().enumerate() {
            match subsystem.authentication.read() {
                Ok(authentication) => drop(read.insert(subsystem.nqn.clone(), Arc::new(authentication))),
                Err(message) => {
                    problems.push(Problem { place: ConfigPlace::Subsystem(at, "dhchap_secret"), message });
                }
            }
        }
        if problems.is_empty() { Ok(read) } else { Err(problems) }
    }
}

/// Where the pre-shared keys of TLS of a subsystem are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsKeySources {
    /// By name of the host.
    pub hosts: BTreeMap<HostName, SecretSource>,
    /// That of all other hosts.
    pub others: Option<SecretSource>,
}

impl TlsKeySources {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.others.is_none()
    }
}

impl TargetConfig {
    /// Reads the keys of TLS of all subsystems. May block.
    ///
    /// # Errors
    /// Those that cannot be read.
    pub fn read_tls_keys(&self) -> Result<Keyring, Vec<Problem>> {
        let (mut keys, mut problems) = (Vec::new(), Vec::new());
        for (at, subsystem) in self.subsystems.iter().enumerate() {
            let hosts = subsystem.tls_keys.hosts.iter().map(|(host, source)| (Some(host.clone()), source));
            let others = subsystem.tls_keys.others.iter().map(|source| (None, source));
            for (host, source) in hosts.chain(others) {
                match source.read::<TlsKey>() {
                    Ok(key) => keys.push(KnownKey { subsystem: Some(subsystem.nqn.clone()), host, key }),
                    Err(message) => {
                        problems.push(Problem { place: ConfigPlace::Subsystem(at, "tls_key"), message });
                    }
                }
            }
        }
        if problems.is_empty() { Ok(Keyring::new(keys)) } else { Err(problems) }
    }
}

impl TargetConfig {
    /// Reads the keys of callers of the control port. May block.
    ///
    /// # Errors
    /// Those that cannot be read.
    pub fn read_control_keys(&self) -> Result<Keyring, Vec<Problem>> {
        let (mut keys, mut problems) = (Vec::new(), Vec::new());
        for (name, source) in &self.control.tls_keys {
            match source.read::<TlsKey>() {
                Ok(key) => keys.push((name.clone(), key)),
                Err(message) => {
                    let message = format!("the key of {name}: {message}");
                    problems.push(Problem { place: ConfigPlace::Control("tls_keys"), message });
                }
            }
        }
        if problems.is_empty() { Ok(Keyring::of_callers(keys)) } else { Err(problems) }
    }
}

impl SecretSources {
    fn read(&self) -> Result<Secrets, String> {
        let controller = self.controller.as_ref().map(SecretSource::read::<Secret>).transpose()?;
        let secrets = Secrets { host: self.host.read()?, controller };
        // A host that knows its own secret could otherwise answer for the subsystem.
        match &secrets.controller {
            Some(controller) if controller.is_same(&secrets.host) => {
                Err(format!("{}: the secrets of host and subsystem are the same", self.host))
            }
            _ => Ok(secrets),
        }
    }
}

impl SecretSource {
    /// Reads the secret or key. May block.
    ///
    /// # Errors
    /// It cannot be read, or is malformed.
    pub fn read<K: FromStr<Err: fmt::Display>>(&self) -> Result<K, String> {
        let secret = self.read_text(FILE_BYTES_MAX, Kind::Secret)?;
        secret.trim().parse::<K>().map_err(|why| format!("{self}: {why}"))
    }

    /// Reads a text of at most `bytes_max` bytes. May block.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn read_text(&self, bytes_max: usize, kind: Kind) -> Result<Zeroizing<String>, String> {
        if kind == Kind::Secret {
            keep_out_of_dumps();
        }
        let file = |path: &Path| read_file(path, bytes_max, kind).map_err(|error| error.to_string());
        let text = match self {
            Self::File(path) => file(path),
            Self::Environment(name) => match std::env::var(name) {
                Ok(text) => Ok(Zeroizing::new(text)),
                Err(_) => Err("there is no such variable, or it is not text".into()),
            },
            Self::Credential(name) => match credential_path(name) {
                Some(path) => file(&path),
                None => {
                    Err("systemd has passed no credentials: see LoadCredential= in systemd.exec(5)".into())
                }
            },
            Self::Keyring(description) => kernel_keyring::read(description),
        };
        text.map_err(|why| format!("{self}: {why}"))
    }
}

/// The file of a systemd credential.
pub(super) fn credential_path(name: &str) -> Option<PathBuf> {
    Some(Path::new(&std::env::var_os("CREDENTIALS_DIRECTORY")?).join(name))
}

/// Reads a file with a secret, or another key as text. Warns if every user can read it.
///
/// # Errors
/// It cannot be read, is too long, or is not text.
pub fn read_secret_file(path: &Path) -> io::Result<Zeroizing<String>> {
    keep_out_of_dumps();
    Ok(Zeroizing::new(read_file(path, FILE_BYTES_MAX, Kind::Secret)?.trim().to_owned()))
}

/// A process that reads a secret leaves no core dump, and other processes of its user cannot read its memory.
fn keep_out_of_dumps() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "core dumps of this process will contain its secrets");
    }
}

/// Whether a text must not be read by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It must not.
    Secret,
    /// Everybody may read it.
    Public,
}

fn read_file(path: &Path, bytes_max: usize, kind: Kind) -> io::Result<Zeroizing<String>> {
    let file = SmallFile::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => io::Error::new(error.kind(), remedy(path, &error)),
        _ => error,
    })?;
    // A group may be the one by which the target's user reads it.
    if kind == Kind::Secret && file.metadata().permissions().mode() & 0o004 != 0 {
        tracing::warn!("other users can read the key in {}; run chmod o-r on it", path.display());
    }
    read_all(file, bytes_max)
}

/// The remedy for a file that this process may not read.
fn remedy(path: &Path, error: &io::Error) -> String {
    let (user, path) = (rustix::process::geteuid().as_raw(), path.display());
    format!(
        "{error}: user {user} may not read it, with which this process runs. Give the file to a group of that user \
         (chgrp GROUP {path}; chmod 640 {path}; SupplementaryGroups=GROUP in a systemd unit), or run setfacl -m u:{user}:r {path}"
    )
}

/// As [`read_secret_file`], from an open file.
///
/// # Errors
/// As [`read_secret_file`].
pub fn read_secret(from: impl Read) -> io::Result<Zeroizing<String>> {
    keep_out_of_dumps();
    Ok(Zeroizing::new(read_all(from, FILE_BYTES_MAX)?.trim().to_owned()))
}

fn read_all(from: impl Read, bytes_max: usize) -> io::Result<Zeroizing<String>> {
    // Of the full size at once: a buffer that grows would leave copies behind.
    let mut text = Zeroizing::new(String::with_capacity(bytes_max + 1));
    from.take(bytes_max as u64 + 1).read_to_string(&mut text)?;
    if text.len() > bytes_max {
        let message = format!("more than {bytes_max} bytes: not a key");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(text)
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Environment(name) => write!(f, "env:{name}"),
            Self::Credential(name) => write!(f, "credential:{name}"),
            Self::Keyring(description) => write!(f, "keyring:{description}"),
        }
    }
}

impl FromStr for SecretSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A secret in its place, which the error must not repeat.
        if text.starts_with("DHHC-1:") || text.starts_with("NVMeTLSkey-1:") {
            return Err("secrets are not written into the configuration: put it into a file of its own, and write file:PATH".into());
        }
        match text.split_once(':') {
            Some(("file", path)) if path.starts_with('/') => Ok(Self::File(path.into())),
            Some(("file", _)) => Err(format!("expected an absolute path behind file:, not '{text}'")),
            Some(("env", name)) if !name.is_empty() => Ok(Self::Environment(name.into())),
            Some(("credential", name)) if !name.is_empty() && !name.contains('/') => {
                Ok(Self::Credential(name.into()))
            }
            Some(("keyring", description)) if !description.is_empty() && !description.contains('\0') => {
                Ok(Self::Keyring(description.into()))
            }
            _ => Err("expected file:PATH, env:NAME, credential:NAME or keyring:NAME".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TEXT: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

    #[test]
    fn a_secret_is_read_from_where_its_reference_says() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, " {TEXT} ").expect("written");
        let source = format!("file:{}", file.path().display()).parse::<SecretSource>().expect("a reference");
        assert_eq!(*source.read::<Secret>().expect("a secret").to_text(), TEXT);
        let behavior = rustix::process::dumpable_behavior().expect("Linux");
        assert_eq!(behavior, DumpableBehavior::NotDumpable, "no core dump has it");
        let both = SecretSources { host: source.clone(), controller: Some(source) };
        assert!(both.read().expect_err("one secret").ends_with("are the same"));
    }

    #[test]
    fn errors_name_the_reference_and_no_secret() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "{}", TEXT.replace("AQID", "QQID")).expect("written");
        let damaged = format!("file:{}", file.path().display());
        for (text, part) in [
            (damaged.as_str(), "file:"),
            ("file:/nowhere/key", "No such file"),
            ("file:/dev/zero", "it is a device"),
            ("file:/", "it is a directory"),
            ("env:NVLANE_NOT_SET", "no such variable"),
            ("credential:key", "credentials"),
            ("keyring:nvlane-not-added", "key"),
        ] {
            let source = text.parse::<SecretSource>().expect("a reference");
            let error = source.read::<Secret>().expect_err("no secret");
            assert!(error.starts_with(text) && error.contains(part), "{error}");
            assert!(!error.contains("QQID"), "{error}");
        }
    }

    #[test]
    fn references_are_told_from_secrets_and_mistakes() {
        for text in ["file:/etc/nvlane/key", "env:KEY", "credential:key", "keyring:nvlane:host"] {
            assert_eq!(text.parse::<SecretSource>().map(|source| source.to_string()), Ok(text.into()));
        }
        for text in ["", "key", "file:key", "env:", "keyring:", "credential:", "credential:a/b", TEXT] {
            let error = text.parse::<SecretSource>().expect_err(text);
            assert!(!error.contains("AQID"), "{error}");
        }
    }
}
