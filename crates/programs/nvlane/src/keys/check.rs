//! `nvlane keys check`.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use command_line::exit::{Ended, Failure, Kind};
use command_line::output::Output;
use security::hash::HashFunction;
use security::secret::{KeyTextError, Secret};
use security::tls_key::TlsKey;
use serde::Serialize;
use zeroize::Zeroizing;

use super::file;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane keys check --file host.key
  nvlane keys check - < host.key
  nvlane keys check 'DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:'

A key whose checksum is right was copied completely. Only a connect shows whether it is the peer's key.")]
pub(crate) struct CheckArguments {
    /// The text of the key, or - for standard input. Every user of the machine can read a process's arguments.
    #[arg(value_name = "SECRET", required_unless_present = "file")]
    secret: Option<Zeroizing<String>>,
    /// Read the key from a file.
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    file: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// A valid key.
#[derive(Serialize)]
struct Valid {
    kind: &'static str,
    hmac: u8,
    length: usize,
    crc: u32,
}

/// The line of nvme-cli's `check-dhchap-key`, and its meaning.
impl fmt::Display for Valid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, hmac, length, crc } = self;
        writeln!(f, "Key is valid (HMAC {hmac}, length {length}, CRC {crc:08x})")?;
        match HashFunction::from_id(*hmac) {
            None => writeln!(f, "{kind}, used as it is"),
            Some(hash) => writeln!(f, "{kind}, transformed with {hash}"),
        }
    }
}

pub(crate) fn check(arguments: &CheckArguments) -> Ended {
    let text = match (&arguments.file, arguments.secret.as_ref()) {
        (Some(path), _) => file::read(path)?,
        (None, Some(secret)) if secret.as_str() != "-" => secret.clone(),
        _ => file::read("-".as_ref())?,
    };
    let valid =
        valid(&text).map_err(|error| Failure::new(Kind::Failed, format!("the key is not valid: {error}")))?;
    arguments.output.print(&valid)?;
    Ok(ExitCode::SUCCESS)
}

fn valid(text: &str) -> Result<Valid, KeyTextError> {
    let id = |hash: Option<HashFunction>| hash.map_or(0, HashFunction::id);
    if text.trim_start().starts_with("NVMeTLSkey") {
        let key: TlsKey = text.parse()?;
        let (hmac, length, crc) = (id(key.hash()), key.length_bytes(), key.checksum());
        return Ok(Valid { kind: "configured PSK of TLS", hmac, length, crc });
    }
    let secret: Secret = text.parse()?;
    let (hmac, length, crc) = (id(secret.transform()), secret.length_bytes(), secret.checksum());
    Ok(Valid { kind: "secret of in-band authentication", hmac, length, crc })
}
