//! `nvlane kv incr` and `cas`: atomic changes of numbers.

use std::fmt;
use std::process::ExitCode;

use clap::Args;
use command_line::exit::Kind;
use command_line::output::Output;
use host::{AtomicFunction, AtomicOperation};
use serde::Serialize;

use super::words::{failed, key, number, shown};
use super::{Ended, Place};

#[derive(Debug, Args)]
pub(super) struct IncrArguments {
    #[command(flatten)]
    place: Place,
    /// The key of the number.
    key: String,
    /// Number to add, or with --floor to subtract. Negative numbers are allowed; the result wraps below 0.
    #[arg(value_name = "BY", default_value = "1", allow_negative_numbers = true, value_parser = number)]
    by: u64,
    /// Initial value if the key does not exist. [default: a missing key is an error]
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    initial: Option<u64>,
    /// Add only if the sum is at most this: exit code 1 if it would exceed it.
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    limit: Option<u64>,
    /// Subtract BY, but never below 0: exit code 1 if the number is smaller than BY.
    #[arg(long, conflicts_with = "limit")]
    floor: bool,
    #[command(flatten)]
    width: Width,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct CasArguments {
    #[command(flatten)]
    place: Place,
    /// The key of the number.
    key: String,
    /// The expected number.
    #[arg(allow_negative_numbers = true, value_parser = number)]
    expected: u64,
    /// The new number.
    #[arg(allow_negative_numbers = true, value_parser = number)]
    new: u64,
    #[command(flatten)]
    width: Width,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Width {
    /// The number has 4 bytes instead of 8.
    #[arg(long)]
    narrow: bool,
    /// The key is hexadecimal.
    #[arg(long)]
    hex: bool,
}

pub(super) fn incr(arguments: &IncrArguments) -> Ended {
    let IncrArguments { by, initial, limit, floor, .. } = arguments;
    let atomic = match limit {
        Some(limit) => AtomicOperation::add_up_to(*by, *limit),
        None if *floor => AtomicOperation::new(AtomicFunction::TAKE_AWAY, *by),
        None => AtomicOperation::new(AtomicFunction::ADD, *by),
    };
    let atomic = initial.map_or(atomic, |initial| atomic.or_create(initial));
    run(&arguments.place, &arguments.key, &arguments.width, atomic, &arguments.output)
}

pub(super) fn cas(arguments: &CasArguments) -> Ended {
    let atomic = AtomicOperation::compare_and_swap(arguments.expected, arguments.new);
    run(&arguments.place, &arguments.key, &arguments.width, atomic, &arguments.output)
}

fn run(place: &Place, word: &str, width: &Width, atomic: AtomicOperation, output: &Output) -> Ended {
    let atomic = if width.narrow { atomic.narrow() } else { atomic };
    let key = key(word, width.hex)?;
    let wanted = if width.narrow { "a number of 4 bytes" } else { "a number of 8 bytes" };
    let outcome = place.connect()?.atomic(&key, &atomic);
    let outcome = outcome.map_err(|error| failed(error, &key, width.hex, wanted))?;
    let before = outcome.before;
    let after = match (outcome.took_effect, atomic.function) {
        (false, _) => before,
        (true, AtomicFunction::COMPARE_AND_SWAP) => atomic.operand & atomic.mask(),
        (true, AtomicFunction::TAKE_AWAY) => before - atomic.operand,
        (true, _) => before.wrapping_add(atomic.operand) & atomic.mask(),
    };
    let changed = outcome.took_effect;
    output.print(&Changed { key: shown(&key, width.hex), before, after, changed })?;
    Ok(if changed { ExitCode::SUCCESS } else { ExitCode::from(Kind::Failed as u8) })
}

#[derive(Debug, Serialize)]
struct Changed {
    key: String,
    before: u64,
    after: u64,
    changed: bool,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.changed {
            true => writeln!(f, "{}: {} -> {}", self.key, self.before, self.after),
            false => writeln!(f, "{}: {}, unchanged", self.key, self.before),
        }
    }
}
