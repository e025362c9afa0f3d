//! Results on standard output: text for people, JSON for programs.

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;
use wire::text::{is_hidden, without_hidden};

use crate::exit::Failure;

/// The form of a result.
#[derive(Debug, Args)]
pub struct Output {
    /// Output format.
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
    /// Text for people.
    #[value(alias = "normal")]
    Text,
    /// JSON for programs, with the field names of nvme-cli where it has the same field.
    Json,
}

impl Output {
    /// Whether the result is for programs.
    #[must_use]
    pub fn is_json(&self) -> bool {
        matches!(self.format, Format::Json)
    }

    /// Writes a result in the chosen format.
    ///
    /// # Errors
    /// Standard output cannot be written to.
    pub fn print(&self, result: &(impl Display + Serialize)) -> Result<(), Failure> {
        let text = match self.format {
            // It may contain text from a target.
            Format::Text => without_hidden(&result.to_string(), true).into_owned(),
            Format::Json => return write_json(result),
        };
        write(text)
    }
}

/// Writes a result as JSON, at once.
///
/// # Errors
/// Standard output cannot be written to.
pub fn write_json(result: &impl Serialize) -> Result<(), Failure> {
    write(escaped_json(&serde_json::to_string_pretty(result).context("JSON")?) + "\n")
}

/// Escapes hidden characters in JSON, which only JSON strings can contain: the output may go to a terminal.
#[must_use]
pub fn escaped_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for char in json.chars() {
        if char != '\n' && is_hidden(char) {
            let units = &mut [0; 2];
            escaped.extend(char.encode_utf16(units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// Writes to standard output, at once.
///
/// # Errors
/// It cannot be written to.
pub fn write(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes.as_ref()).and_then(|()| stdout.flush()).map_err(Failure::output)
}

/// Whether a path of the command line stands for standard input or output.
pub fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Checks that results can be written to this file, before the work begins.
///
/// # Errors
/// They cannot.
pub fn check_file(path: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = path.filter(|path| !is_standard(path)) else { return Ok(()) };
    let opened = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => fs::remove_file(path),
        // Opening and closing a pipe here would look like the end of output to its reader.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && !(path.is_file() || path.is_dir()) => {
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            OpenOptions::new().append(true).open(path).map(drop)
        }
        Err(error) => Err(error),
    };
    opened.map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))
}

/// Writes results: as a table, and as JSON if there is a file for it, or in the table's place if that is `-`.
///
/// # Errors
/// Standard output or the file cannot be written to.
pub fn tell(
    table: impl FnOnce() -> String,
    json: impl FnOnce() -> serde_json::Result<String>,
    file: Option<&Path>,
) -> Result<(), Failure> {
    let Some(path) = file else { return write(table()) };
    let json = json().context("JSON")? + "\n";
    if is_standard(path) {
        return write(json);
    }
    // The table comes first: if the disk is full by now, the results are at least printed.
    let shown = write(table());
    fs::write(path, json).with_context(|| path.display().to_string())?;
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_its_value_and_hides_nothing() {
        let value = serde_json::json!({ "sn": "a\u{202e}\u{7f}\u{e0041}\u{e9}\n\"\u{1b}", "n": [1, 2] });
        let json = escaped_json(&serde_json::to_string_pretty(&value).expect("JSON"));
        assert!(!json.chars().any(|char| char != '\n' && is_hidden(char)), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).expect("JSON"), value);
    }

    #[test]
    fn a_file_is_checked_without_a_trace() {
        let directory = tempfile::tempdir().expect("a directory");
        let (new, old) = (directory.path().join("new"), directory.path().join("old"));
        fs::write(&old, "kept").expect("written");
        check_file(None).expect("nothing to check");
        check_file(Some(Path::new("-"))).expect("standard output");
        check_file(Some(&new)).expect("it can be made");
        check_file(Some(&old)).expect("it can be replaced");
        check_file(Some(Path::new("/dev/null"))).expect("a device");
        assert!(!new.exists() && fs::read(&old).expect("there") == b"kept");
        for bad in [directory.path().to_owned(), directory.path().join("none/new")] {
            assert!(check_file(Some(&bad)).is_err(), "{}", bad.display());
        }
    }
}
