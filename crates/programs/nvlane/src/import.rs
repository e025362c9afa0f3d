//! `nvlane import`: the configuration of another target, as a configuration file of nvlane.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use command_line::exit::{Ended, Failure};
use command_line::output::write;
use linux::small_file::SmallFile;
use wire::text::without_hidden;

#[derive(Debug, Args)]
#[command(after_help = "\
  nvmetcli save nvmet.json && nvlane import nvmet.json > nvlane.toml
  spdk-rpc save_config > spdk.json && nvlane import spdk.json > nvlane.toml
  nvlane check --config nvlane.toml

Prints the configuration, and says on standard error what could not be carried over: other transports, other kinds of storage, \
ANA groups. Secrets are not copied: put them into files, and name these.")]
pub(crate) struct ImportArguments {
    /// JSON of nvmetcli (`nvmetcli save`) or SPDK (`save_config`).
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Limit of a configuration, bytes.
const BYTES_MAX: usize = 64 << 20;

pub(crate) fn import(arguments: &ImportArguments) -> Ended {
    let shown = arguments.file.display();
    let text = SmallFile::open(&arguments.file).and_then(|file| file.read_text(BYTES_MAX));
    let text = text.map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")))?;
    let imported = control::import::import(&text).map_err(|why| Failure::usage(format!("{shown}: {why}")))?;
    for line in &imported.left_out {
        eprintln!("not carried over: {}", without_hidden(line, false));
    }
    write(imported.toml)?;
    Ok(ExitCode::SUCCESS)
}
