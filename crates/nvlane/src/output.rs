//! Results on standard output: text for people, JSON for programs.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::exit::Failure;

#[derive(Debug, Args)]
pub(crate) struct Output {
    /// How to write the result.
    #[arg(
        short = 'o',
        long = "output-format",
        alias = "output",
        value_name = "FORMAT",
        default_value = "text"
    )]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    #[value(alias = "normal")]
    Text,
    /// For programs, with the names nvme-cli uses where it has the same.
    Json,
}

impl Output {
    /// Writes a result in the form asked for.
    pub(crate) fn print(&self, result: &(impl Display + Serialize)) -> Result<(), Failure> {
        let text = match self.format {
            Format::Text => result.to_string(),
            Format::Json => serde_json::to_string_pretty(result).context("JSON")? + "\n",
        };
        let mut stdout = std::io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            // Whoever read has seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written.context("standard output")?),
        }
    }
}
