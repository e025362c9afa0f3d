//! `nvlane keys generate`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use command_line::exit::{Ended, Failure};
use command_line::output;
use linux::randomness::Randomness;
use security::hash::HashFunction;
use security::secret::Secret;
use security::secret_bytes::SecretBytes;
use security::tls_key::TlsKey;
use wire::nqn::HostName;

use super::file;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane keys generate --out host.key            32 random bytes, used as they are; a file that only you can read
  nvlane keys generate --hmac 3                  64 bytes, transformed with SHA-512 and the name of their owner
  nvlane keys generate --tls --hmac 2            a PSK for TLS_AES_256_GCM_SHA384
  echo 0123...ef | nvlane keys generate --from - the text of a secret that exists

With --nqn the bytes are transformed with this name before they are written, as `nvme gen-dhchap-key` before 3.0 does if \
--hmac is not 0. Host and controller transform them again. Random bytes gain nothing by it; it gives the same text as that program \
for the same --from. Without it the bytes are written as they are, as nvme-cli 3.0 does.

Linux before 6.7 needs a secret as long as the digest of --hmac, which is the default.")]
pub(crate) struct GenerateArguments {
    /// Make a key of TLS (NVMeTLSkey-1) instead of a secret of authentication (DHHC-1).
    #[arg(long)]
    tls: bool,
    /// Transforming hash function: 0 none, 1 SHA-256, 2 SHA-384, 3 SHA-512 [default: 0; of TLS 1]
    #[arg(long, short = 'm', value_name = "HMAC", value_parser = clap::value_parser!(u8).range(0..=3), hide_default_value = true)]
    hmac: Option<u8>,
    /// Bytes: 32, 48, 64 [default: those of the digest, or 32]
    #[arg(long, short = 'l', value_name = "BYTES", conflicts_with = "from")]
    length: Option<usize>,
    /// Transform the bytes with this name before writing them, as nvme-cli 2 does.
    #[arg(long, short = 'n', value_name = "NQN", conflicts_with = "tls")]
    nqn: Option<HostName>,
    /// Take the bytes from this file, in hexadecimal, instead of random ones; - for standard input.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Write the key to this file, which must not exist, instead of standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn generate(arguments: &GenerateArguments) -> Ended {
    let hash = HashFunction::from_id(arguments.hmac.unwrap_or(u8::from(arguments.tls)));
    let bytes = match &arguments.from {
        Some(path) => file::read_hex(path)?,
        None => {
            let length = arguments.length.unwrap_or_else(|| hash.map_or(32, HashFunction::digest_bytes));
            // Unusual lengths are refused below; this bounds the memory.
            random(length.min(128))?
        }
    };
    let mut text = if arguments.tls {
        TlsKey::new(hash, bytes).map_err(Failure::usage)?.to_text()
    } else {
        let secret = Secret::new(hash, bytes).map_err(Failure::usage)?;
        match &arguments.nqn {
            Some(nqn) => Secret::new(hash, secret.key_of(nqn.as_str())).map_err(Failure::usage)?,
            None => secret,
        }
        .to_text()
    };
    text.push('\n');
    match &arguments.out {
        Some(path) => file::write(path, &text)?,
        None => output::write(text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Bytes of the system's random number generator, which waits at boot until it is ready.
fn random(length: usize) -> Result<SecretBytes, Failure> {
    let mut bytes = vec![0; length];
    Randomness::System.fill(&mut bytes).context("random numbers")?;
    Ok(bytes.into())
}
