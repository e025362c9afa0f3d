//! How nvme-cli connects to a subsystem: options that its listener and its secrets require.

use std::path::Path;

use subsystem::config::{AuthenticationConfig, SecretSource, SubsystemConfig, TlsPolicy};

/// Options of `nvme connect` for a subsystem at a listener with this TLS policy, each with a space before it. A secret
/// is read from its file, which is where the target has it; other secrets are to be filled in.
pub(super) fn options(tls: TlsPolicy, subsystem: &SubsystemConfig) -> String {
    let mut options = match tls {
        TlsPolicy::Required => " --tls",
        TlsPolicy::Concatenated if subsystem.tls_keys.is_empty() => " --concat",
        TlsPolicy::Concatenated => " --tls",
        TlsPolicy::Off | TlsPolicy::Allowed => "",
    }
    .to_owned();
    let AuthenticationConfig { hosts, others, .. } = &subsystem.authentication;
    let secret = match (others, hosts.first_key_value()) {
        (Some(secret), _) => secret,
        (None, Some((host, secret))) => {
            options.push_str(&format!(" --hostnqn {}", quoted(&host.to_string())));
            secret
        }
        (None, None) => return options,
    };
    options + &format!(" --dhchap-secret {}", content(&secret.host, "DHHC-1:..."))
}

/// The command that gives the host's kernel the TLS key, if the listener asks for one that is configured.
pub(super) fn insert_key(tls: TlsPolicy, subsystem: &SubsystemConfig) -> Option<String> {
    let keys = &subsystem.tls_keys;
    if !matches!(tls, TlsPolicy::Required | TlsPolicy::Concatenated) || keys.is_empty() {
        return None;
    }
    let (host, key) = match (&keys.others, keys.hosts.first_key_value()) {
        (Some(key), _) => ("\"$(cat /etc/nvme/hostnqn)\"".to_owned(), key),
        (None, Some((host, key))) => (quoted(&host.to_string()), key),
        (None, None) => return None,
    };
    Some(format!(
        "nvme check-tls-key --insert --identity=1 --hostnqn={host} --subsysnqn={} --keydata={}",
        quoted(subsystem.nqn.as_str()),
        content(key, "NVMeTLSkey-1:...")
    ))
}

/// A secret for a shell: never the secret itself, which the log must not have.
fn content(source: &SecretSource, form: &str) -> String {
    match source {
        SecretSource::File(path) => format!("\"$(cat {})\"", quoted(&absolute(path))),
        _ => form.to_owned(),
    }
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "/._:-+@%".contains(sign);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use subsystem::config::SecretSources;

    use super::*;

    fn subsystem() -> SubsystemConfig {
        SubsystemConfig::new("nqn.2026-01.io.nvlane:disks".parse().expect("well formed"))
    }

    fn secret(source: SecretSource) -> SecretSources {
        SecretSources { host: source, controller: None }
    }

    #[test]
    fn the_options_are_those_that_the_listener_and_the_subsystem_ask_for() {
        let mut subsystem = subsystem();
        for (tls, expected) in [
            (TlsPolicy::Off, ""),
            (TlsPolicy::Allowed, ""),
            (TlsPolicy::Concatenated, " --concat"),
            (TlsPolicy::Required, " --tls"),
        ] {
            assert_eq!(options(tls, &subsystem), expected);
        }
        subsystem.authentication.others = Some(secret(SecretSource::File("/etc/nvlane/host.key".into())));
        assert_eq!(
            options(TlsPolicy::Required, &subsystem),
            " --tls --dhchap-secret \"$(cat /etc/nvlane/host.key)\""
        );
        subsystem.authentication.others = None;
        let host = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
        let of_environment = secret(SecretSource::Environment("SECRET".into()));
        subsystem.authentication.hosts.insert(host.parse().expect("a name"), of_environment);
        assert_eq!(
            options(TlsPolicy::Off, &subsystem),
            format!(" --hostnqn {host} --dhchap-secret DHHC-1:...")
        );
    }

    #[test]
    fn a_tls_key_is_inserted_for_the_names_that_it_belongs_to() {
        let mut subsystem = subsystem();
        assert_eq!(insert_key(TlsPolicy::Required, &subsystem), None, "there is none");
        subsystem.tls_keys.others = Some(SecretSource::File("/srv/a key's".into()));
        assert_eq!(insert_key(TlsPolicy::Off, &subsystem), None, "none is needed");
        assert_eq!(
            insert_key(TlsPolicy::Required, &subsystem).expect("needed"),
            "nvme check-tls-key --insert --identity=1 --hostnqn=\"$(cat /etc/nvme/hostnqn)\" \
             --subsysnqn=nqn.2026-01.io.nvlane:disks --keydata=\"$(cat '/srv/a key'\\''s')\""
        );
    }
}
