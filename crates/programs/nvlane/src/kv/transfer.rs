//! `nvlane kv load` and `dump`: pairs as lines of JSON.
//!
//! ```text
//! {"key":"greeting","value":"hello"}
//! {"key_hex":"00ff","value_hex":"0102"}        bytes that are not text
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use command_line::exit::{Failure, Kind};
use command_line::output;
use host::BlockingKeyValue;
use host::{Address, Batch, Key, StoreOptions};
use serde::{Deserialize, Serialize};
use wire::status::Status;
use wire::text::to_hex;

use super::words::from_hex;
use super::{Ended, OnlyPlace, Way};

/// Operations per batch.
const BATCH_COUNT: usize = 128;

/// Bytes of values in one batch; longer values use single commands.
const BATCH_BYTES: usize = 256 << 10;

#[derive(Debug, Args)]
#[command(after_help = "\
Each line is a pair as JSON; bytes that are not text are hexadecimal:
  {\"key\":\"greeting\",\"value\":\"hello\"}
  {\"key_hex\":\"00ff\",\"value_hex\":\"0102\"}

Pairs stored before an invalid line, or before the target refused a pair, remain; the error says how many.")]
pub(super) struct LoadArguments {
    /// The namespace: `HOST[:PORT]/NQN[?ns=1]`.
    #[arg(value_name = "ADDR")]
    address: Address,
    #[command(flatten)]
    way: Way,
    /// File of lines as `dump` writes them; - for standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Skip keys that exist.
    #[arg(long)]
    new: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A dump contains every pair that exists throughout exactly once; pairs stored or deleted meanwhile may be missing. It does not contain \
memcached's flags, expiry, and pairs with keys of more than 16 bytes, which NVMe's commands do not have: a line on standard error says so. \
`load` stores pairs without flags, which never expire.

Pairs whose values are lost by damage are named on standard error.

Exit code 0: every pair was written. 1: the values of some are lost.")]
pub(super) struct DumpArguments {
    #[command(flatten)]
    place: OnlyPlace,
    /// File to write; - for standard output.
    #[arg(long, value_name = "FILE", default_value = "-")]
    file: PathBuf,
}

/// A line of the file.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

impl Line {
    fn new(key: &[u8], value: &[u8]) -> Self {
        let either = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(to_hex(bytes))),
        };
        let ((key, key_hex), (value, value_hex)) = (either(key), either(value));
        Self { key, key_hex, value, value_hex }
    }

    fn pair(&self) -> Result<(Key, Vec<u8>), String> {
        let either = |text: &Option<String>, hex: &Option<String>, what: &str| match (text, hex) {
            (Some(text), None) => Ok(text.as_bytes().to_vec()),
            (None, Some(hex)) => from_hex(hex).ok_or_else(|| format!("{what}_hex is not hexadecimal")),
            _ => Err(format!("it needs one of {what} and {what}_hex")),
        };
        let key = either(&self.key, &self.key_hex, "key")?;
        let length = key.len();
        let key = Key::new(&key).ok_or_else(|| format!("a key of {length} bytes: 1 to 16 are possible"))?;
        Ok((key, either(&self.value, &self.value_hex, "value")?))
    }
}

/// Progress line on a terminal.
struct Progress {
    is_seen: bool,
    begun: Instant,
    shown: Instant,
    count: u64,
}

impl Progress {
    fn new() -> Self {
        let now = Instant::now();
        Self { is_seen: std::io::stderr().is_terminal(), begun: now, shown: now, count: 0 }
    }

    fn add(&mut self, count: u64, doing: &str) {
        self.count += count;
        if self.is_seen && self.shown.elapsed() > Duration::from_millis(500) {
            self.shown = Instant::now();
            #[allow(clippy::cast_precision_loss)] // A rate.
            let rate = self.count as f64 / self.begun.elapsed().as_secs_f64().max(1e-9);
            eprint!("\r\x1b[K{doing}: {} pairs, {rate:.0} per second", self.count);
        }
    }

    /// Prints the final count.
    fn end(&self, done: &str) {
        if self.is_seen {
            eprintln!("\r\x1b[K{done} {} pairs in {:.1} s", self.count, self.begun.elapsed().as_secs_f64());
        }
    }

    /// The failure with the number of pairs stored before it.
    fn failed(&self, failure: Failure) -> Failure {
        match self.count {
            0 => failure,
            count => failure.later(format_args!("; {count} pairs were stored before")),
        }
    }
}

impl Drop for Progress {
    /// Clears the progress line.
    fn drop(&mut self) {
        if self.is_seen {
            eprint!("\r\x1b[K");
        }
    }
}

pub(super) fn load(arguments: &LoadArguments) -> Ended {
    let LoadArguments { address, way, file, new } = arguments;
    let input: Box<dyn BufRead> = if output::is_standard(file) {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(file).with_context(|| file.display().to_string())?))
    };
    let mut keys = way.connect(address)?;
    let options = if *new { StoreOptions::MUST_NOT_EXIST } else { StoreOptions::empty() };
    let mut progress = Progress::new();
    load_lines(input, file, &mut keys, options, &mut progress).map_err(|failure| progress.failed(failure))?;
    progress.end("loaded");
    Ok(ExitCode::SUCCESS)
}

fn load_lines(
    input: Box<dyn BufRead>,
    file: &Path,
    keys: &mut BlockingKeyValue,
    options: StoreOptions,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let mut batch = keys.batch().ok();
    for (at, line) in (1u64..).zip(input.lines()) {
        let line = line.with_context(|| file.display().to_string())?;
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |why: String| Failure::usage(format!("{}:{at}: {why}", file.display()));
        let (key, value) = match serde_json::from_str::<Line>(&line) {
            Ok(parsed) => parsed.pair().map_err(wrong)?,
            // The line number is ours; serde_json gives the column.
            Err(error) => {
                let text = error.to_string();
                let what = text.split(" at line ").next().unwrap_or(&text);
                return Err(wrong(format!("column {}: {what}", error.column())));
            }
        };
        match &mut batch {
            Some(batch) if value.len() <= BATCH_BYTES / 4 => {
                let is_full = batch.len() >= BATCH_COUNT || batch.data().len() + value.len() > BATCH_BYTES;
                if is_full || batch.store(&key, &value, options).is_err() {
                    store_all(keys, batch, progress)?;
                    batch.store(&key, &value, options).map_err(host::Error::from)?;
                }
            }
            _ => {
                let is_stored = keys.store_if(&key, &value, options)?;
                progress.add(is_stored.into(), "loading");
            }
        }
    }
    if let Some(batch) = &mut batch {
        store_all(keys, batch, progress)?;
    }
    Ok(())
}

fn store_all(keys: &mut BlockingKeyValue, batch: &mut Batch, progress: &mut Progress) -> Result<(), Failure> {
    let (mut failed, mut stored) = (None, 0);
    for outcome in keys.run_batch(batch)? {
        if outcome.status.is_success() {
            stored += 1;
        } else if !outcome.status.is(Status::KEY_EXISTS) {
            failed = failed.or(Some(outcome.status));
        }
    }
    progress.add(stored, "loading");
    batch.clear();
    match failed {
        None => Ok(()),
        Some(status) => Err(Failure::new(Kind::Failed, format!("a pair was not stored: {status}"))),
    }
}

pub(super) fn dump(arguments: &DumpArguments) -> Ended {
    let DumpArguments { place, file } = arguments;
    let mut keys = place.connect()?;
    let is_standard = output::is_standard(file);
    let written = |error: std::io::Error| match is_standard {
        true => Failure::output(error),
        false => anyhow::Error::new(error).context(file.display().to_string()).into(),
    };
    let mut output: Box<dyn Write> = if is_standard {
        Box::new(BufWriter::new(std::io::stdout().lock()))
    } else {
        Box::new(BufWriter::new(File::create(file).with_context(|| file.display().to_string())?))
    };
    let mut progress = Progress::new();
    let (mut lost_count, mut last) = (0, None::<Key>);
    loop {
        let page = keys.list(last.as_ref())?;
        let skipped = usize::from(last.is_some() && page.first() == last.as_ref());
        let Some(new) = page.get(skipped..).filter(|new| !new.is_empty()) else { break };
        for some in new.chunks(BATCH_COUNT) {
            for_each_value(&mut keys, some, |key, value| {
                let Some(value) = value else {
                    eprintln!("nvlane: the value of {} is lost by damage", key.as_bytes().escape_ascii());
                    lost_count += 1;
                    return Ok(());
                };
                let line = serde_json::to_string(&Line::new(key.as_bytes(), value)).context("JSON")?;
                writeln!(output, "{line}").map_err(written)?;
                progress.add(1, "dumping");
                Ok(())
            })?;
        }
        last = new.last().copied();
    }
    output.flush().map_err(written)?;
    progress.end("dumped");
    eprintln!(
        "nvlane: not in a dump: flags and expiry times of memcached clients, and their keys of more than 16 bytes"
    );
    Ok(ExitCode::from(u8::from(lost_count > 0)))
}

/// Calls `each` with those of the keys that exist and their values, or `None` for one that is lost: in batches if the
/// target has them, after asking for the lengths, and long values one by one.
fn for_each_value(
    namespace: &mut BlockingKeyValue,
    keys: &[Key],
    mut each: impl FnMut(&Key, Option<&[u8]>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut alone: Vec<Key> = Vec::new();
    match namespace.batch() {
        Err(_) => alone.extend(keys),
        Ok(mut batch) => {
            keys.iter().try_for_each(|key| batch.exist(key)).map_err(host::Error::from)?;
            let lengths: Vec<u64> = namespace
                .run_batch(&mut batch)?
                .map(|outcome| if outcome.status.is_success() { outcome.result } else { u64::MAX })
                .collect();
            batch.clear();
            let mut asked = Vec::new();
            for (key, length) in keys.iter().zip(lengths) {
                match u32::try_from(length) {
                    Ok(length) if batch.retrieve(key, length).is_ok() => asked.push(*key),
                    Ok(_) => alone.push(*key),
                    // Deleted meanwhile.
                    Err(_) => {}
                }
            }
            for (key, outcome) in asked.iter().zip(namespace.run_batch(&mut batch)?) {
                if !outcome.status.is_success() {
                    // Deleted meanwhile, or failed for a reason that the single command reports.
                    alone.extend(Some(*key).filter(|_| !outcome.status.is(Status::KEY_DOES_NOT_EXIST)));
                    continue;
                }
                if outcome.result > outcome.data.len() as u64 {
                    // Replaced by a longer value meanwhile.
                    alone.push(*key);
                } else {
                    each(key, Some(outcome.data))?;
                }
            }
        }
    }
    for key in alone {
        match namespace.retrieve(&key) {
            Ok(Some(value)) => each(&key, Some(&value))?,
            Ok(None) => {}
            Err(host::Error::Failed { failure, .. })
                if failure.status().is_some_and(|status| status.is(Status::KV_UNRECOVERED_ERROR)) =>
            {
                each(&key, None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hold_text_as_text_and_the_rest_as_digits() {
        let text = |key: &[u8], value: &[u8]| serde_json::to_string(&Line::new(key, value)).expect("JSON");
        assert_eq!(text(b"greeting", b"hello"), r#"{"key":"greeting","value":"hello"}"#);
        assert_eq!(text(&[0xFF], &[1, 0xFE]), r#"{"key_hex":"ff","value_hex":"01fe"}"#);
        let read = |text: &str| serde_json::from_str::<Line>(text).expect("JSON").pair();
        let (key, value) = read(r#"{"key":"k","value_hex":"01fe"}"#).expect("a pair");
        assert_eq!((key.as_bytes(), value), (&b"k"[..], vec![1, 0xFE]));
        for bad in [
            r#"{"value":"x"}"#,
            r#"{"key":"k"}"#,
            r#"{"key":"k","key_hex":"00","value":""}"#,
            r#"{"key":"","value":""}"#,
            r#"{"key":"k","value_hex":"0"}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<Line>(r#"{"key":"k","value":"","ttl":3}"#).is_err());
    }
}
