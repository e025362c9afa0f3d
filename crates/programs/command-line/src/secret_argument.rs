//! Secrets and TLS keys that options name: a file, or a reference as in the target's configuration.

use std::path::{Path, PathBuf};

use subsystem::config::SecretSource;

use crate::exit::Failure;

/// Where the secret is that an option names: a file, or `keyring:NAME`, `env:NAME` or `credential:NAME`.
///
/// # Errors
/// The argument is the secret itself.
pub fn source_of(argument: &Path) -> Result<SecretSource, Failure> {
    let text = argument.to_str().unwrap_or_default();
    // As nvme-cli takes it: every user could read it, and the shell remembers it.
    if ["DHHC-1:", "NVMeTLSkey-1:"].iter().any(|form| text.starts_with(form)) {
        return Err(Failure::usage("a secret cannot be an argument: write it to a file and name the file"));
    }
    match text.split_once(':') {
        Some(("keyring" | "env" | "credential" | "file", _)) => text.parse().map_err(Failure::usage),
        _ => Ok(SecretSource::File(PathBuf::from(argument))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_references_are_told_apart() {
        for (text, source) in [
            ("host.key", SecretSource::File("host.key".into())),
            ("./keyring:x", SecretSource::File("./keyring:x".into())),
            ("file:/etc/key", SecretSource::File("/etc/key".into())),
            ("keyring:nvlane:host", SecretSource::Keyring("nvlane:host".into())),
            ("env:KEY", SecretSource::Environment("KEY".into())),
        ] {
            assert_eq!(source_of(Path::new(text)).expect("a reference"), source, "{text}");
        }
        for (text, part) in [
            ("DHHC-1:00:c2VjcmV0:", "cannot be an argument"),
            ("NVMeTLSkey-1:01:c2VjcmV0:", "cannot be an argument"),
            ("keyring:", "expected file:PATH"),
        ] {
            let error = source_of(Path::new(text)).expect_err("no reference").to_string();
            assert!(error.contains(part) && !error.contains("c2VjcmV0"), "{error}");
        }
    }
}
