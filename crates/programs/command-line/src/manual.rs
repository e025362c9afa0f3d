//! Completion scripts and manual pages, generated from the definition of `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit::Ended;
use crate::output;

/// Options of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell.
    pub shell: Shell,
}

/// Options of `man`.
#[derive(Debug, Args)]
pub struct ManArguments {
    /// Write one page per command into this directory, instead of the main page to standard output.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Writes the completion script of a program.
///
/// # Errors
/// Standard output cannot be written to.
pub fn completions(arguments: &CompletionsArguments, command: &mut Command) -> Ended {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(arguments.shell, command, name, &mut script);
    output::write(script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the manual pages of a program.
///
/// # Errors
/// They cannot be written.
pub fn man(arguments: &ManArguments, command: Command) -> Ended {
    match &arguments.out {
        Some(directory) => {
            std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
            clap_mangen::generate_to(command, directory).with_context(|| directory.display().to_string())?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page).context("manual page")?;
            output::write(page)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
