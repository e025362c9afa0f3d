//! `nvlane keys`: secrets of in-band authentication and pre-shared keys of TLS.

mod check;
mod derive;
mod file;
mod generate;

use clap::{Args, Subcommand};
use command_line::exit::Ended;

#[derive(Debug, Args)]
#[command(after_help = "\
Set up authentication in both directions between a host and a subsystem:
  nvlane keys generate --out host.key            the host's secret; both sides need it
  nvlane keys generate --out controller.key      the controller's secret; both sides need it
  nvme connect -t tcp -a ADDR -n NQN -q HOSTNQN \\
    --dhchap-secret \"$(cat host.key)\" --dhchap-ctrl-secret \"$(cat controller.key)\"

Texts of keys are those of nvme-cli (gen-dhchap-key, gen-tls-key) and Linux:
  DHHC-1:XX:BASE64:         a secret; XX: used as it is (00), or transformed with SHA-256, 384 or 512 (01 to 03)
  NVMeTLSkey-1:XX:BASE64:   a configured PSK; XX: retained as it is (00), or made with SHA-256 or 384 (01, 02)
BASE64 holds 32, 48 or 64 bytes and their CRC-32. XX does not restrict the hash function of the authentication.

A process's arguments can be read by every user of the machine: give keys in files, or on standard input (-). \
The protocols, and what they protect against: docs/security.md.

Exit codes: 0 done; 1 the key is not valid (check), or it failed on the way; 2 wrong options, files or keys.")]
pub(crate) struct KeysArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a new secret, or a key of TLS.
    Generate(Box<generate::GenerateArguments>),
    /// Check the text of a key: its form, length and checksum.
    Check(check::CheckArguments),
    /// Print what both sides derive from a key, to compare it with another implementation.
    Derive(Box<derive::DeriveArguments>),
}

pub(crate) fn keys(arguments: &KeysArguments) -> Ended {
    match &arguments.verb {
        Verb::Generate(arguments) => generate::generate(arguments),
        Verb::Check(arguments) => check::check(arguments),
        Verb::Derive(arguments) => derive::derive(arguments),
    }
}
