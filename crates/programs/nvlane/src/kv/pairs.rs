//! `nvlane kv get`, `set`, `delete`, `exist` and `list`.

use std::fmt;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use command_line::exit::{Failure, Kind};
use command_line::output::{self, Output};
use host::{Key, StoreOptions};
use serde::Serialize;
use wire::text::to_hex;

use super::words::{absent, bytes, key, shown};
use super::{Ended, OnlyPlace, Place};

#[derive(Debug, Args)]
pub(super) struct GetArguments {
    #[command(flatten)]
    place: Place,
    /// The key: 1 to 16 bytes.
    key: String,
    /// Write the value to this file; - for standard output.
    #[arg(long, value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// The key is hexadecimal, and the value is printed as hexadecimal.
    #[arg(long)]
    hex: bool,
}

#[derive(Debug, Args)]
pub(super) struct SetArguments {
    #[command(flatten)]
    place: Place,
    /// The key: 1 to 16 bytes.
    key: String,
    /// The value, unless --file is given.
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    value: Option<String>,
    /// Read the value from this file; - for standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Store only if the key does not exist: exit code 1 if it does.
    #[arg(long, conflicts_with = "replace")]
    new: bool,
    /// Store only if the key exists: exit code 1 if it does not.
    #[arg(long)]
    replace: bool,
    /// Key and VALUE are hexadecimal; a file is stored as it is.
    #[arg(long)]
    hex: bool,
}

#[derive(Debug, Args)]
pub(super) struct DeleteArguments {
    #[command(flatten)]
    place: Place,
    /// The keys. A missing key is not an error.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    /// Keys are hexadecimal.
    #[arg(long)]
    hex: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExistArguments {
    #[command(flatten)]
    place: Place,
    /// The key: 1 to 16 bytes.
    key: String,
    /// The key is hexadecimal.
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct ListArguments {
    #[command(flatten)]
    place: OnlyPlace,
    /// Begin with this key, if it exists. The order is the target's own.
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// Maximum number of keys.
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Keys are hexadecimal.
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    output: Output,
}

pub(super) fn get(arguments: &GetArguments) -> Ended {
    let GetArguments { place, key: word, file, hex } = arguments;
    let key = key(word, *hex)?;
    let mut keys = place.connect()?;
    let value = keys.retrieve(&key)?.ok_or_else(|| absent(&key, *hex))?;
    let text = if *hex { (to_hex(&value) + "\n").into_bytes() } else { value };
    write(file, text)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn set(arguments: &SetArguments) -> Ended {
    let SetArguments { place, key: word, value, file, new, replace, hex } = arguments;
    let key = key(word, *hex)?;
    let value = match (value, file) {
        (Some(value), _) => bytes(value, *hex)?,
        (None, Some(file)) => read(file)?,
        (None, None) => return Err(Failure::usage("no value: give one, or --file")),
    };
    let mut options = StoreOptions::empty();
    options.set(StoreOptions::MUST_NOT_EXIST, *new);
    options.set(StoreOptions::MUST_EXIST, *replace);
    if place.connect()?.store_if(&key, &value, options)? {
        return Ok(ExitCode::SUCCESS);
    }
    Err(if *new {
        Failure::new(Kind::Failed, format!("{} exists", shown(&key, *hex)))
    } else {
        absent(&key, *hex)
    })
}

pub(super) fn delete(arguments: &DeleteArguments) -> Ended {
    let keys: Vec<Key> =
        arguments.keys.iter().map(|word| key(word, arguments.hex)).collect::<Result<_, _>>()?;
    let mut namespace = arguments.place.connect()?;
    for key in &keys {
        namespace.delete(key)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn exist(arguments: &ExistArguments) -> Ended {
    let key = key(&arguments.key, arguments.hex)?;
    let is_there = arguments.place.connect()?.exist(&key)?;
    arguments.output.print(&Presence { key: shown(&key, arguments.hex), is_there })?;
    Ok(if is_there { ExitCode::SUCCESS } else { ExitCode::from(Kind::Failed as u8) })
}

#[derive(Debug, Serialize)]
struct Presence {
    key: String,
    is_there: bool,
}

impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.key, if self.is_there { "exists" } else { "does not exist" })
    }
}

pub(super) fn list(arguments: &ListArguments) -> Ended {
    let from = arguments.from.as_deref().map(|word| key(word, arguments.hex)).transpose()?;
    let mut namespace = arguments.place.connect()?;
    let limit = arguments.limit.unwrap_or(usize::MAX);
    let mut keys = Vec::new();
    if limit > 0 {
        namespace.for_each_key_from(from.as_ref(), |key| {
            keys.push(shown(key, arguments.hex));
            keys.len() < limit
        })?;
    }
    arguments.output.print(&Keys { keys })?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Serialize)]
struct Keys {
    keys: Vec<String>,
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.keys.iter().try_for_each(|key| writeln!(f, "{key}"))
    }
}

/// A file's bytes, or those of standard input.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    if output::is_standard(path) {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
        return Ok(bytes);
    }
    Ok(std::fs::read(path).with_context(|| path.display().to_string())?)
}

fn write(path: &Path, mut bytes: Vec<u8>) -> Result<(), Failure> {
    if !output::is_standard(path) {
        return Ok(std::fs::write(path, bytes).with_context(|| path.display().to_string())?);
    }
    // Without a trailing newline if a program reads it.
    if std::io::stdout().is_terminal() && bytes.last() != Some(&b'\n') {
        bytes.push(b'\n');
    }
    output::write(bytes)
}
