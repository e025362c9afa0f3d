//! `nvlane kv get`, `set`, `delete`, `exist` and `list`.

use std::fmt;
use std::io::{IsTerminal, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use command_line::exit::{Failure, Kind};
use command_line::output::{self, Output};
use host::Failure::Unreachable;
use host::{
    Batch, BlockingKeyValue, Error, InvalidCommand, Key, Moved, Pin, StoreAttributes, StoreOptions,
    ValueTransfer,
};
use serde::Serialize;
use wire::kv::batch::Operation;
use wire::kv::operation::PIN_SECONDS_MAX;
use wire::opcode::KvOpcode;
use wire::status::Status;
use wire::text::to_hex;

use super::words::{absent, bytes, key, long_key, range, shown};
use super::{Ended, OnlyPlace, Place};

#[derive(Debug, Args)]
pub(super) struct GetArguments {
    #[command(flatten)]
    place: Place,
    /// The key: 1 to 250 bytes; more than 16 need an nvlane target.
    key: String,
    /// Write only these bytes of the value; may be repeated, then one range after the other is written.
    #[arg(long = "range", value_name = "OFFSET:LENGTH", value_parser = range)]
    ranges: Vec<Range<u32>>,
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
    /// The key: 1 to 250 bytes; more than 16 need an nvlane target.
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
    /// Seconds until the pair expires; 0: never. Needs an nvlane target.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    ttl: u32,
    /// Key and VALUE are hexadecimal; a file is stored as it is.
    #[arg(long)]
    hex: bool,
}

/// The keys of a command on one or several, and of which namespace.
#[derive(Debug, Args)]
pub(super) struct KeysArguments {
    #[command(flatten)]
    place: Place,
    /// The keys: 1 to 250 bytes; more than 16 need an nvlane target.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    /// Keys are hexadecimal.
    #[arg(long)]
    hex: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExistArguments {
    #[command(flatten)]
    of: KeysArguments,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct PinArguments {
    #[command(flatten)]
    of: KeysArguments,
    /// Seconds for which the pairs are not evicted.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=PIN_SECONDS_MAX as i64))]
    seconds: u32,
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
    let GetArguments { place, key: word, ranges, file, hex } = arguments;
    let key = long_key(word, *hex)?;
    let value = match Key::new(&key) {
        Some(short) if ranges.is_empty() => {
            let mut namespace = place.connect()?;
            let is_moved_by_two = moves_longer_ones_by_two(&namespace);
            match namespace.retrieve(&short) {
                Err(Error::Command(InvalidCommand::ValueTooLong { .. })) if is_moved_by_two => {
                    drop(namespace);
                    retrieve(place, &key, ranges)?
                }
                value => value?,
            }
        }
        _ => retrieve(place, &key, ranges)?,
    };
    let value = value.ok_or_else(|| absent(&key, *hex))?;
    let text = if *hex { (to_hex(&value) + "\n").into_bytes() } else { value };
    write(file, text)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn set(arguments: &SetArguments) -> Ended {
    let SetArguments { place, key: word, value, file, new, replace, ttl, hex } = arguments;
    let key = long_key(word, *hex)?;
    let value = match (value, file) {
        (Some(value), _) => bytes(value, *hex)?,
        (None, Some(file)) => read(file)?,
        (None, None) => return Err(Failure::usage("no value: give one, or --file")),
    };
    let mut options = StoreOptions::empty();
    options.set(StoreOptions::MUST_NOT_EXIST, *new);
    options.set(StoreOptions::MUST_EXIST, *replace);
    let is_stored = match Key::new(&key) {
        Some(short) if *ttl == 0 => {
            let mut namespace = place.connect()?;
            let is_moved_by_two = moves_longer_ones_by_two(&namespace);
            match namespace.store_if(&short, &value, options) {
                Err(Error::Command(InvalidCommand::ValueTooLong { .. })) if is_moved_by_two => {
                    drop(namespace);
                    store(place, &key, value, (options, 0))?
                }
                stored => stored?,
            }
        }
        _ => store(place, &key, value, (options, *ttl))?,
    };
    if is_stored {
        return Ok(ExitCode::SUCCESS);
    }
    Err(if *new {
        Failure::new(Kind::Failed, format!("{} exists", shown(&key, *hex)))
    } else {
        absent(&key, *hex)
    })
}

impl KeysArguments {
    /// The bytes of the keys.
    fn keys(&self) -> Result<Vec<Vec<u8>>, Failure> {
        self.keys.iter().map(|word| long_key(word, self.hex)).collect()
    }
}

pub(super) fn delete(arguments: &KeysArguments) -> Ended {
    let keys = arguments.keys()?;
    let mut namespace = arguments.place.connect()?;
    for key in &keys {
        match Key::new(key) {
            Some(key) => namespace.delete(&key)?,
            None => {
                let mut batch = namespace.batch()?;
                batch.push(&Operation::on(KvOpcode::DELETE, key)).map_err(Error::from)?;
                ended(&mut namespace, &mut batch, "Delete")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn exist(ExistArguments { of, output }: &ExistArguments) -> Ended {
    let keys = of.keys()?;
    let mut namespace = of.place.connect()?;
    let mut found = Presences { keys: Vec::new() };
    if let ([key], Some(short)) = (&keys[..], keys.first().and_then(|key| Key::new(key))) {
        let is_there = namespace.exist(&short)?;
        let presence = Presence { key: shown(key, of.hex), is_there };
        output.print(&presence)?;
        found.keys.push(presence);
    } else {
        let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let presence = namespace.exist_many(&asked)?;
        let each = keys.iter().zip(presence.iter());
        found.keys = each.map(|(key, is_there)| Presence { key: shown(key, of.hex), is_there }).collect();
        output.print(&found)?;
    }
    let are_there = found.keys.iter().all(|presence| presence.is_there);
    Ok(if are_there { ExitCode::SUCCESS } else { ExitCode::from(Kind::Failed as u8) })
}

pub(super) fn pin(PinArguments { of, seconds }: &PinArguments) -> Ended {
    let pin = Pin::For { seconds: *seconds };
    change_pins(of, pin, ": not pinned, as it does not exist or too much is pinned")
}

pub(super) fn unpin(arguments: &KeysArguments) -> Ended {
    change_pins(arguments, Pin::End, " does not exist")
}

/// Pins pairs, or takes pins back. Keys for which that was not done are an error.
fn change_pins(arguments: &KeysArguments, pin: Pin, refusal: &str) -> Ended {
    let keys = arguments.keys()?;
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let changed = arguments.place.connect()?.pin_many(&asked, pin)?;
    match keys.iter().zip(changed.iter()).find(|(_, is_changed)| !is_changed) {
        None => Ok(ExitCode::SUCCESS),
        Some((key, _)) => Err(Failure::new(Kind::Failed, format!("{}{refusal}", shown(key, arguments.hex)))),
    }
}

/// Whether two commands move longer values than one does, as beside block namespaces.
fn moves_longer_ones_by_two(namespace: &BlockingKeyValue) -> bool {
    let limits = namespace.namespace();
    limits.paired_value_bytes_max() > limits.value_bytes_max()
}

/// The value of a long key, a value longer than one command moves, or ranges of a value.
fn retrieve(place: &Place, key: &[u8], ranges: &[Range<u32>]) -> Result<Option<Vec<u8>>, Failure> {
    let Some(length) = place.connect()?.value_bytes(key)? else { return Ok(None) };
    let bytes = match ranges {
        [] => length,
        ranges => ranges.iter().map(|range| u64::from(range.end - range.start)).sum(),
    };
    if bytes == 0 || bytes > length || ranges.iter().any(|range| u64::from(range.end) > length) {
        if ranges.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let message =
            format!("the value has {length} bytes: ranges must be within it, and no longer than it");
        return Err(Failure::new(Kind::Failed, message));
    }
    let buffer = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    let mut transfers = [ValueTransfer::of_ranges(key, ranges.to_vec(), vec![buffer])];
    place.values()?.retrieve(&mut transfers)?;
    let [transfer] = transfers;
    match transfer.moved {
        Moved::Whole => Ok(transfer.pieces.into_iter().next()),
        Moved::Missing => Ok(None),
        Moved::OtherLength => Err(Failure::new(Kind::Failed, "the value was replaced meanwhile: try again")),
        Moved::Pending | Moved::Damaged => {
            Err(Error::Failed { command: "Retrieve", failure: Unreachable }.into())
        }
        Moved::Failed(failure) => Err(Error::Failed { command: "Retrieve", failure }.into()),
    }
}

/// Stores a value under a long key, one longer than one command moves, or one with a time to live. Returns whether its condition held.
fn store(
    place: &Place,
    key: &[u8],
    value: Vec<u8>,
    (options, ttl_s): (StoreOptions, u32),
) -> Result<bool, Failure> {
    let mut namespace = place.connect()?;
    let mut batch = namespace.batch()?;
    let attributes = StoreAttributes { ttl_s, ..StoreAttributes::default() };
    match batch.store_with(key, &value, options, attributes) {
        Ok(()) => {
            let status = ended(&mut namespace, &mut batch, "Store")?;
            return Ok(status.is_success());
        }
        // Longer than a batch.
        Err(InvalidCommand::BatchFull { .. }) => drop(namespace),
        Err(error) => return Err(Error::from(error).into()),
    }
    let mut transfers = [ValueTransfer { options, ..ValueTransfer::new(key, vec![value]) }];
    place.values()?.store(&mut transfers, ttl_s)?;
    match transfers[0].moved {
        Moved::Whole => Ok(true),
        Moved::Missing => Ok(false),
        Moved::OtherLength => {
            let failure = host::Failure::Status(Status::INVALID_VALUE_SIZE);
            Err(Error::Failed { command: "Store", failure }.into())
        }
        Moved::Pending | Moved::Damaged => {
            Err(Error::Failed { command: "Store", failure: Unreachable }.into())
        }
        Moved::Failed(failure) => Err(Error::Failed { command: "Store", failure }.into()),
    }
}

/// The status of a batch of one operation: success, or that a condition does not hold.
fn ended(
    namespace: &mut BlockingKeyValue,
    batch: &mut Batch,
    command: &'static str,
) -> Result<Status, Failure> {
    let outcome = namespace.run_batch(batch)?.next();
    let status = outcome.ok_or(Error::Malformed { what: "outcomes" })?.status;
    if status.is_success() || [Status::KEY_EXISTS, Status::KEY_DOES_NOT_EXIST].iter().any(|of| status.is(*of))
    {
        return Ok(status);
    }
    Err(Error::Failed { command, failure: host::Failure::Status(status) }.into())
}

#[derive(Debug, Serialize)]
struct Presences {
    keys: Vec<Presence>,
}

impl fmt::Display for Presences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.keys.iter().try_for_each(|presence| presence.fmt(f))
    }
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
