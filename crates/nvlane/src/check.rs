//! `nvlane check`: what is wrong with a configuration, before anything runs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use target::config::ConfigFile;

use crate::exit::Failure;
use crate::{Ended, output};

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// The configuration.
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
    /// Look at the text only, not at the storage it names.
    #[arg(long)]
    text_only: bool,
}

pub(crate) fn check(arguments: &CheckArguments) -> Ended {
    let file = ConfigFile::read(&arguments.config).map_err(Failure::usage)?;
    if !arguments.text_only {
        file.inspect().map_err(Failure::usage)?;
    }
    let config = &file.config;
    let namespaces: usize = config.subsystems.iter().map(|subsystem| subsystem.namespaces.len()).sum();
    output::write(format!(
        "{}: good: {} listeners, {} subsystems, {namespaces} namespaces\n",
        arguments.config.display(),
        config.listeners.len(),
        config.subsystems.len(),
    ))?;
    Ok(ExitCode::SUCCESS)
}
