//! `nvlane keys derive`.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use command_line::exit::{Ended, Failure};
use command_line::output::Output;
use security::hash::HashFunction;
use security::psk::{IdentityVersion, Psk};
use security::secret::Secret;
use security::tls_key::TlsKey;
use serde::Serialize;
use wire::nqn::HostName;

use super::file;
use crate::columns::Columns;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane keys derive dhchap --secret host.key --nqn HOSTNQN             the key with which the host authenticates
  nvlane keys derive dhchap --secret controller.key --nqn NQN           the key of the controller
  nvlane keys derive tls --key tls.key --host HOSTNQN --subsystem NQN   identities and keys, as the keyring has them

The results are secrets, too.")]
pub(crate) struct DeriveArguments {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// The transformed key of a secret: the key of the HMAC in a response.
    Dhchap(SecretArguments),
    /// Identities and keys of TLS from a configured PSK.
    Tls(KeyArguments),
    /// Identities and keys of TLS from an authentication (secure channel concatenation).
    Generated(GeneratedArguments),
}

#[derive(Debug, Args)]
struct SecretArguments {
    /// A file with the secret; - for standard input.
    #[arg(long, value_name = "FILE")]
    secret: PathBuf,
    /// Its owner: the host for the host's secret, the subsystem for the controller's.
    #[arg(long, value_name = "NQN")]
    nqn: HostName,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct NamesArguments {
    /// The host.
    #[arg(long, value_name = "NQN")]
    host: HostName,
    /// The subsystem; for discovery, the discovery NQN that hosts connect to.
    #[arg(long, value_name = "NQN")]
    subsystem: HostName,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct KeyArguments {
    /// A file with the configured PSK; - for standard input.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    #[command(flatten)]
    names: NamesArguments,
}

#[derive(Debug, Args)]
struct GeneratedArguments {
    /// Hash function of the authentication: 1 SHA-256, 2 SHA-384.
    #[arg(long, value_name = "HMAC", value_parser = clap::value_parser!(u8).range(1..=2))]
    hmac: u8,
    /// A file with the session key, in hexadecimal: the digest of the Diffie-Hellman secret.
    #[arg(long, value_name = "FILE")]
    session_key: PathBuf,
    /// The controller's challenge, in hexadecimal.
    #[arg(long, value_name = "HEX")]
    c1: String,
    /// The host's challenge, in hexadecimal.
    #[arg(long, value_name = "HEX")]
    c2: String,
    #[command(flatten)]
    names: NamesArguments,
}

#[derive(Serialize)]
struct DhchapKey {
    nqn: String,
    key: String,
}

impl fmt::Display for DhchapKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.key)
    }
}

#[derive(Serialize)]
struct TlsKeys {
    cipher: String,
    psk: String,
    keys: Vec<Identified>,
}

/// A key of TLS under its identity.
#[derive(Serialize)]
struct Identified {
    version: u8,
    identity: String,
    tls_psk: String,
}

impl fmt::Display for TlsKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = Columns::list();
        list.fact("Cipher suite", &self.cipher);
        list.fact("PSK", &self.psk);
        for Identified { version, identity, tls_psk } in &self.keys {
            list.fact(&format!("Identity, version {version}"), identity);
            list.fact(&format!("TLS PSK, version {version}"), tls_psk);
        }
        list.fmt(f)
    }
}

pub(crate) fn derive(arguments: &DeriveArguments) -> Ended {
    match &arguments.from {
        From::Dhchap(SecretArguments { secret, nqn, output }) => {
            let key = parsed::<Secret>(secret)?.key_of(nqn.as_str());
            output.print(&DhchapKey { nqn: nqn.to_string(), key: file::to_hex(&key).to_string() })?;
        }
        From::Tls(KeyArguments { key, names }) => {
            print(&parsed::<TlsKey>(key)?.retained(names.host.as_str()), names)?;
        }
        From::Generated(GeneratedArguments { hmac, session_key, c1, c2, names }) => {
            let session_key = file::read_hex(session_key)?;
            let hash = HashFunction::from_id(*hmac).unwrap_or(HashFunction::Sha256);
            let bytes = |what: &str, digits: &str| {
                file::from_hex(digits).filter(|bytes| bytes.expose().len() == hash.digest_bytes()).ok_or_else(
                    || {
                        Failure::usage(format!(
                            "--{what}: expected {} bytes in hexadecimal",
                            hash.digest_bytes()
                        ))
                    },
                )
            };
            let (c1, c2) = (bytes("c1", c1)?, bytes("c2", c2)?);
            let psk = Psk::generated(hash, &session_key, c1.expose(), c2.expose());
            print(&psk.ok_or_else(|| Failure::usage(format!("no cipher suite has {hash}")))?, names)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn parsed<K: std::str::FromStr<Err: fmt::Display>>(path: &std::path::Path) -> Result<K, Failure> {
    file::read(path)?.parse().map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

fn print(psk: &Psk, names: &NamesArguments) -> Result<(), Failure> {
    let keys =
        [(0, IdentityVersion::Zero), (1, IdentityVersion::One)].into_iter().filter_map(|(version, of)| {
            let tls = psk.tls(of, names.host.as_str(), names.subsystem.as_str())?;
            Some(Identified { version, tls_psk: file::to_hex(&tls.key).to_string(), identity: tls.identity })
        });
    let cipher = psk.cipher().to_string();
    names.output.print(&TlsKeys { cipher, psk: file::to_hex(psk.key()).to_string(), keys: keys.collect() })
}
