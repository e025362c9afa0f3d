//! The host's configuration in libnvme's format, by default `/etc/nvme/config.json`: names, secrets and TLS keys for the
//! subsystems that this machine connects to. wire §21, docs/host-config.md
//!
//! ```text
//! hosts ─▶ subsystems ─▶ ports      file.rs: the format, read tolerantly: other tools have keys of their own
//!    best match for an address ─▶   choice.rs
//! ```

mod choice;
mod file;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use host::security::secret::Secret;
use host::security::tls_key::TlsKey;
use host::{Address, HostIdentity};
use wire::nqn::{HostId, Nqn};
use wire::text::quoted;

use crate::exit::Failure;
use choice::Choice;
use file::{Host, Key};

/// The file of nvme-cli and libnvme.
pub(crate) const DEFAULT_PATH: &str = "/etc/nvme/config.json";

/// In place of a path: no file.
const NONE: &str = "none";

/// A configuration that has been read.
#[derive(Debug)]
pub(crate) struct HostConfig {
    path: PathBuf,
    hosts: Vec<Host>,
}

/// The settings of the configuration for an address.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) identity: Option<HostIdentity>,
    pub(crate) host_secret: Option<Secret>,
    pub(crate) controller_secret: Option<Secret>,
    /// Whether the connection uses TLS.
    pub(crate) tls: bool,
    pub(crate) tls_key: Option<TlsKey>,
    /// Whether authentication generates the key of TLS.
    pub(crate) concat: bool,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
}

impl HostConfig {
    /// Reads the file that is named, or else the default one, if there is one that this user can read.
    ///
    /// # Errors
    /// It cannot be read, or is not in libnvme's format.
    pub(crate) fn read(named: Option<&Path>) -> Result<Option<Self>, Failure> {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        if path.as_os_str() == NONE {
            return Ok(None);
        }
        match file::read(path) {
            Ok(hosts) => Ok(Some(Self { path: path.to_owned(), hosts })),
            Err(file::Problem::Read(error)) if named.is_none() && error.kind() == ErrorKind::NotFound => {
                Ok(None)
            }
            Err(file::Problem::Read(error))
                if named.is_none() && error.kind() == ErrorKind::PermissionDenied =>
            {
                tracing::info!(%error, path = DEFAULT_PATH, "cannot read the host's configuration as this user: ignored");
                Ok(None)
            }
            Err(problem) => {
                let remedy = if named.is_none() { "; --config none ignores it" } else { "" };
                Err(Failure::usage(format!("{}: {problem}{remedy}", path.display())))
            }
        }
    }

    /// Its settings for connections to this address: of the host of this name, or of `own()` or any other.
    ///
    /// # Errors
    /// The address has several hosts, or a value cannot be used.
    pub(crate) fn wanted(
        &self,
        address: &Address,
        hostnqn: Option<&Nqn>,
        own: impl FnOnce() -> Nqn,
    ) -> Result<Wanted, Failure> {
        let choice = choice::choose(&self.hosts, address, hostnqn, own)
            .map_err(|message| Failure::usage(format!("{}: {message}", self.path.display())))?;
        match choice {
            None => Ok(Wanted::default()),
            Some(choice) => self.resolve(&choice),
        }
    }

    fn resolve(&self, choice: &Choice<'_>) -> Result<Wanted, Failure> {
        let wrong = |key: &str, why: &dyn std::fmt::Display| {
            let (path, host) = (self.path.display(), quoted(&choice.host.hostnqn));
            Failure::usage(format!("{path}: {key} of host {host}: {why}"))
        };
        let Choice { host, subsystem, port } = *choice;
        let nqn = host.hostnqn.parse::<Nqn>().map_err(|error| wrong("hostnqn", &error))?;
        let mut identity = HostIdentity::of_name(nqn);
        if let Some(hostid) = &host.hostid {
            identity.id = hostid.parse::<HostId>().map_err(|error| wrong("hostid", &error))?;
        }
        let secret = |key: &str, text: Option<&Key>| {
            text.map(|text| text.parse::<Secret>().map_err(|error| wrong(key, &error))).transpose()
        };
        let of_host = port.and_then(|port| port.dhchap_key.as_ref());
        let of_host = of_host.or(subsystem.and_then(|subsystem| subsystem.dhchap_key.as_ref()));
        let host_secret = secret("dhchap_key", of_host.or(host.dhchap_key.as_ref()))?;
        let controller_secret =
            secret("dhchap_ctrl_key", port.and_then(|port| port.dhchap_ctrl_key.as_ref()))?;
        if controller_secret.is_some() && host_secret.is_none() {
            return Err(wrong(
                "dhchap_ctrl_key",
                &"the target proves its secret only to hosts with a dhchap_key: add that",
            ));
        }
        let Some(port) = port else {
            return Ok(Wanted { identity: Some(identity), host_secret, ..Wanted::default() });
        };
        let (tls, concat) = (port.tls.unwrap_or(false), port.concat.unwrap_or(false));
        if concat && host_secret.is_none() {
            return Err(wrong("concat", &"authentication generates the key of TLS: add a dhchap_key"));
        }
        if concat && tls {
            return Err(wrong(
                "concat",
                &"authentication generates the key of TLS: leave out tls and tls_key",
            ));
        }
        if !tls && port.tls_key.is_some() {
            tracing::warn!(path = %self.path.display(), "tls_key without \"tls\": true: the connection is in cleartext");
        }
        let tls_key = port.tls_key.as_ref().filter(|_| tls);
        let tls_key = tls_key.map(|text| text.parse::<TlsKey>().map_err(|error| wrong("tls_key", &error)));
        Ok(Wanted {
            identity: Some(identity),
            host_secret,
            controller_secret,
            tls,
            tls_key: tls_key.transpose()?,
            concat,
            header_digest: port.hdr_digest.unwrap_or(false),
            data_digest: port.data_digest.unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
    const DISK: &str = "192.0.2.1:4420/nqn.2026-01.io.nvlane:disk";

    fn config(text: &str) -> HostConfig {
        HostConfig { path: "config.json".into(), hosts: file::parse(text).expect("the format") }
    }

    fn wanted(text: &str, address: &str) -> Result<Wanted, String> {
        let own = || "nqn.2026-01.io.nvlane:own".parse().expect("a name");
        let address = address.parse().expect("an address");
        config(text).wanted(&address, None, own).map_err(|failure| failure.to_string())
    }

    fn with_port(port: &str) -> String {
        format!(
            r#"[{{"hostnqn": "nqn.2026-01.io.nvlane:h", "hostid": "11111111-2222-3333-4444-555555555555", "dhchap_key": "{SECRET}",
                 "subsystems": [{{"nqn": "nqn.2026-01.io.nvlane:disk", "ports": [{{"transport": "tcp", "traddr": "192.0.2.1", {port}}}]}}]}}]"#
        )
    }

    #[test]
    fn a_port_gives_names_secrets_and_digests() {
        let text =
            with_port(&format!(r#""trsvcid": "4420", "dhchap_ctrl_key": "{SECRET}", "hdr_digest": true"#));
        let wanted = wanted(&text, DISK).expect("usable");
        let identity = wanted.identity.expect("a name");
        assert_eq!(identity.nqn.as_str(), "nqn.2026-01.io.nvlane:h");
        assert_eq!(identity.id.to_string(), "11111111-2222-3333-4444-555555555555");
        assert!(wanted.host_secret.is_some() && wanted.controller_secret.is_some());
        assert!(wanted.header_digest && !wanted.data_digest && !wanted.tls && !wanted.concat);
    }

    #[test]
    fn another_port_gives_only_what_belongs_to_the_host() {
        let text = with_port(r#""trsvcid": "4421", "tls": true, "hdr_digest": true"#);
        let wanted = wanted(&text, DISK).expect("usable");
        assert!(wanted.identity.is_some() && wanted.host_secret.is_some());
        assert!(!wanted.tls && !wanted.header_digest);
    }

    #[test]
    fn values_that_cannot_be_used_are_named_and_not_repeated() {
        let damaged = SECRET.replace("AQID", "QQID");
        for (port, part) in [
            (format!(r#""dhchap_key": "{damaged}""#), "dhchap_key of host"),
            (r#""tls": true, "tls_key": "NVMeTLSkey-1:01:QQID:""#.into(), "tls_key of host"),
            (r#""tls": true, "concat": true"#.into(), "leave out tls"),
        ] {
            let error = wanted(&with_port(&port), DISK).expect_err("not usable");
            assert!(error.starts_with("config.json: ") && error.contains(part), "{error}");
            assert!(!error.contains("QQID"), "{error}");
        }
        let text = with_port(r#""tls": false"#).replace("11111111-", "x");
        assert!(wanted(&text, DISK).expect_err("no id").contains("hostid of host"));
    }
}
