//! `nvlane kv check` and `nvlane kv repair`: key-value files of a target that does not run.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use store::{Damage, DamageKind, ExaminedFile, PartitionReport};

use crate::exit::{Ended, Failure};
use crate::human_size::HumanSize;
use crate::output::Output;

#[derive(Debug, Args)]
#[command(after_help = "\
Reads the whole file, which no target may use meanwhile, and changes nothing. For each partition (one per thread of the target) it prints \
the keys and bytes that `nvlane kv repair` would keep, and what is damaged, where, and how many keys that costs at least.

A key is uncertain if a damaged range behind its newest readable record may have held a newer one.

Exit code 0: the file is whole. 1: it is damaged. 2: it is in use, or no key-value file.")]
pub(crate) struct CheckArguments {
    /// The file of a `kv:file:` namespace.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane kv repair pairs --out pairs.new --lost lost.txt && mv pairs.new pairs

FILE is not changed. The new file has the same number of partitions, and the pairs that are certain: no key in it has an older version than \
it had. Left out are keys whose values are damaged, and keys of which a damaged range may have held a newer version. --keep-uncertain keeps \
these, with the newest version that can be read, which may be an old one, or removed since.

Exit code 0: every key was kept. 1: keys were left out or are uncertain, as printed. 2: nothing was done.")]
pub(crate) struct RepairArguments {
    /// The damaged file of a `kv:file:` namespace.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The file to be written, which must not exist.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Keep keys of which a damaged range may have held a newer version.
    #[arg(long)]
    keep_uncertain: bool,
    /// Write the keys that are left out to this file, which must not exist, one a line, with escapes as in "\x00".
    #[arg(long, value_name = "FILE")]
    lost: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn check(arguments: &CheckArguments) -> Ended {
    let examined = examine(&arguments.file)?;
    let report = Report::new(&examined, None);
    arguments.output.print(&report)?;
    Ok(ExitCode::from(u8::from(!report.is_whole)))
}

pub(crate) fn repair(arguments: &RepairArguments) -> Ended {
    if let Some(lost) = &arguments.lost {
        check_new(lost, &arguments.out)?;
    }
    let examined = examine(&arguments.file)?;
    examined.repair(&arguments.out, arguments.keep_uncertain).map_err(Failure::usage)?;
    if let Some(path) = &arguments.lost {
        write_lost(&examined, arguments.keep_uncertain, path)?;
    }
    let repaired = Repaired { path: arguments.out.clone(), keeps_uncertain: arguments.keep_uncertain };
    let report = Report::new(&examined, Some(repaired));
    arguments.output.print(&report)?;
    let is_complete = report.partitions.iter().all(|partition| {
        partition.uncertain == 0 && partition.lost == 0 && !partition.unknown_keys_may_be_lost
    });
    Ok(ExitCode::from(u8::from(!is_complete)))
}

/// Files of this size and more are read with progress on standard error, bytes.
const LARGE_BYTES: u64 = 1 << 30;

fn examine(path: &Path) -> Result<ExaminedFile, Failure> {
    let mut told = 0;
    let on_progress = |done: u64, all: u64| {
        let percent = done * 100 / all.max(1) / 10 * 10;
        if all >= LARGE_BYTES && percent > told {
            told = percent;
            eprintln!("nvlane: {percent} % of {} read", HumanSize(all.into()));
        }
    };
    ExaminedFile::open(path, on_progress).map_err(Failure::usage)
}

/// Checks that the list of lost keys replaces neither a file nor the repaired one.
fn check_new(lost: &Path, out: &Path) -> Result<(), Failure> {
    if lost == out {
        return Err(Failure::usage(format!("--lost and --out both name {}", out.display())));
    }
    if lost.exists() {
        return Err(Failure::usage(format!("--lost {} exists: name a new file", lost.display())));
    }
    crate::output::check_file(Some(lost))
}

fn write_lost(examined: &ExaminedFile, keeps_uncertain: bool, path: &Path) -> Result<(), Failure> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = BufWriter::new(file.with_context(|| path.display().to_string())?);
    let mut written = Ok(());
    examined.left_out(keeps_uncertain, |key| {
        if written.is_ok() {
            written = writeln!(file, "{}", key.escape_ascii());
        }
    });
    written.and_then(|()| file.flush()).with_context(|| path.display().to_string())?;
    Ok(())
}

/// What was found in a file, and what was made of it.
#[derive(Debug, Serialize)]
struct Report {
    file: PathBuf,
    is_whole: bool,
    bytes: u64,
    /// The size that the superblock says.
    bytes_wanted: u64,
    /// First byte of a damaged superblock of the file.
    damaged_superblock: Option<u64>,
    partitions: Vec<Partition>,
    repaired: Option<Repaired>,
}

/// A file that was written.
#[derive(Debug, Serialize)]
struct Repaired {
    path: PathBuf,
    keeps_uncertain: bool,
}

#[derive(Debug, Serialize)]
struct Partition {
    partition: usize,
    oldest_generation: Option<u64>,
    newest_generation: Option<u64>,
    keys: u64,
    bytes: u64,
    uncertain: u64,
    lost: u64,
    unknown_keys_may_be_lost: bool,
    dropped_from: Option<u64>,
    damages: Vec<DamageLine>,
}

#[derive(Debug, Serialize)]
struct DamageLine {
    what: &'static str,
    generation: u64,
    /// `None` for a missing segment: where it was is not known.
    offset: Option<u64>,
    bytes: u64,
    keys: u64,
}

impl Report {
    fn new(examined: &ExaminedFile, repaired: Option<Repaired>) -> Self {
        Self {
            file: examined.path().to_owned(),
            is_whole: examined.is_whole(),
            bytes: examined.bytes,
            bytes_wanted: examined.bytes_wanted,
            damaged_superblock: examined.damaged_superblock,
            partitions: examined.reports().iter().enumerate().map(Partition::new).collect(),
            repaired,
        }
    }
}

impl Partition {
    fn new((partition, report): (usize, &PartitionReport)) -> Self {
        Self {
            partition,
            oldest_generation: report.generations.map(|(oldest, _)| oldest),
            newest_generation: report.generations.map(|(_, newest)| newest),
            keys: report.key_count,
            bytes: report.bytes,
            uncertain: report.uncertain_count,
            lost: report.lost_count,
            unknown_keys_may_be_lost: report.may_have_lost_more,
            dropped_from: report.dropped_from,
            damages: report.damages.iter().map(DamageLine::new).collect(),
        }
    }
}

impl DamageLine {
    fn new(damage: &Damage) -> Self {
        let what = match damage.kind {
            DamageKind::Superblock => "one of two superblocks of the log; the other one suffices",
            DamageKind::Superblocks => "both superblocks of the log: its end is unknown",
            DamageKind::Header => "the header of a segment; its records are found without it",
            DamageKind::Segment => "a segment is missing",
            DamageKind::Bit => "one bit of a record, which is corrected",
            DamageKind::Value => "the value of a record",
            DamageKind::Names => "the names of keys in other records, which are there",
            DamageKind::Records => "records that cannot be read",
        };
        let Damage { generation, bytes, key_count, .. } = *damage;
        let offset = (damage.kind != DamageKind::Segment).then_some(damage.offset);
        Self { what, generation, offset, bytes, keys: key_count }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_whole { "whole" } else { "DAMAGED" };
        writeln!(f, "{}: {verdict}", self.file.display())?;
        if self.bytes < self.bytes_wanted {
            writeln!(
                f,
                "  the file has {} bytes and its superblock says {}: it was cut",
                self.bytes, self.bytes_wanted
            )?;
        }
        if let Some(offset) = self.damaged_superblock {
            writeln!(f, "  byte {offset}: one of two superblocks of the file; the other one suffices")?;
        }
        for partition in &self.partitions {
            partition.fmt(f)?;
        }
        if let Some(repaired) = &self.repaired {
            writeln!(f, "{} was written", repaired.path.display())?;
        } else if !self.is_whole {
            writeln!(
                f,
                "`nvlane kv repair {} --out NEW` writes what is certain to a new file",
                self.file.display()
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partition, keys, uncertain, lost, .. } = self;
        let size = HumanSize(self.bytes.into());
        match self.oldest_generation.zip(self.newest_generation) {
            Some((oldest, newest)) => {
                writeln!(f, "partition {partition}: {keys} keys, {size}, generations {oldest} to {newest}")?;
            }
            None => writeln!(f, "partition {partition}: empty")?,
        }
        for DamageLine { what, generation, offset, bytes, keys } in &self.damages {
            match (offset, generation) {
                (None, generation) => write!(f, "  generation {generation}")?,
                (Some(offset), 0) => write!(f, "  byte {offset}, {bytes} bytes")?,
                (Some(offset), generation) => {
                    write!(f, "  byte {offset}, {bytes} bytes, generation {generation}")?;
                }
            }
            match keys {
                0 => writeln!(f, ": {what}; costs no known key")?,
                keys => writeln!(f, ": {what}; costs {keys} known keys or more")?,
            }
        }
        if let Some(offset) = self.dropped_from {
            writeln!(f, "  byte {offset}: from here on no whole write; a start drops it")?;
        }
        if lost + uncertain > 0 {
            writeln!(
                f,
                "  {lost} keys have lost their value, {uncertain} are uncertain: a newer version may be damaged"
            )?;
        }
        if self.unknown_keys_may_be_lost {
            writeln!(f, "  keys that were only written in damaged ranges are lost, and not known")?;
        }
        Ok(())
    }
}
