//! `nvlane kv check` and `nvlane kv repair`: key-value files of a target that does not run.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use command_line::exit::{Ended, Failure};
use command_line::output::Output;
use serde::Serialize;
use store::{Certainty, Damage, DamageKind, ExaminedFile, PartitionReport, Unfinished};

use crate::human_size::HumanSize;

#[derive(Debug, Args)]
#[command(after_help = "\
Reads the whole file, which no target may use meanwhile, and changes nothing. For each partition (one per thread of the target) it prints \
the keys and bytes that `nvlane kv repair` would keep, what is damaged and where, and the least number of lost keys.

A key is uncertain if a damaged range behind its newest readable record may have held a newer one. A target serves a damaged file too if the \
rest of it is certain: commands that need a lost value are refused, and its log names the keys.

Exit code 0: the file is whole. 1: it is damaged. 2: it is in use, or not a key-value file.")]
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
  nvlane kv repair pairs --out pairs.new --lost lost.txt
  nvlane kv repair pairs --in-place --lost lost.txt

The new file has the same number of partitions, and the pairs that are certain: no key in it has an older version than it had. It leaves out \
keys whose values are damaged, and keys of which a damaged range may have held a newer version. --keep-uncertain keeps these, with the newest \
version that can be read, which may be an old one, or removed since.

A new file gets its name once it is whole and durable. --in-place writes it beside FILE, which needs as much space again, and then gives it \
FILE's name, owner and rights; a file that is whole is left alone. A repair that is killed has changed nothing, and can be run again.

A line of the list has a key, with escapes as in \"\\x00\", a tab, and what is known: \"damaged\" (its value), \"uncertain\", or \"kept, \
uncertain\". For keys of which nothing else can be read it has only the CRC32C of the key after the tab: \"unknown, CRC32C 1a2b3c4d\".

Exit code 0: every key was kept. 1: keys were left out or are uncertain, as printed. 2: nothing was done.")]
pub(crate) struct RepairArguments {
    /// The damaged file of a `kv:file:` namespace.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The file to be written, which must not exist.
    #[arg(long, value_name = "FILE", required_unless_present = "in_place", conflicts_with = "in_place")]
    out: Option<PathBuf>,
    /// Replace FILE by what is certain in it.
    #[arg(long)]
    in_place: bool,
    /// Keep keys of which a damaged range may have held a newer version.
    #[arg(long)]
    keep_uncertain: bool,
    /// Write the keys that are left out or uncertain to this file, one a line. An equal list may exist already.
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
    let RepairArguments { file, out, keep_uncertain, lost, .. } = arguments;
    let target = out.as_ref().unwrap_or(file);
    if let Some(out) = out
        && out.symlink_metadata().is_ok()
    {
        return Err(Failure::usage(format!("--out {} exists: name a new file", out.display())));
    }
    if let Some(lost) = lost {
        check_list(lost, [file, target])?;
    }
    let examined = examine(file)?;
    let is_left_alone = out.is_none() && examined.is_whole();
    if let Some(lost) = lost.as_ref().filter(|_| !is_left_alone) {
        write_lost(&examined, *keep_uncertain, lost)?;
    }
    let repaired = match out {
        Some(out) => examined.repair(out, *keep_uncertain).map(|()| true),
        None if is_left_alone => Ok(false),
        None => examined.repair_in_place(*keep_uncertain).map(|()| true),
    };
    let is_written = repaired.map_err(Failure::usage)?;
    let repaired = Repaired { path: target.clone(), keeps_uncertain: *keep_uncertain };
    let report = Report::new(&examined, Some(repaired).filter(|_| is_written));
    arguments.output.print(&report)?;
    let is_complete = report.partitions.iter().all(|partition| {
        partition.uncertain + partition.lost + partition.unknown_keys == 0
            && !partition.unknown_keys_may_be_lost
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

/// Checks that the list of lost keys replaces neither the file nor the repaired one, and can be written.
fn check_list(lost: &Path, others: [&PathBuf; 2]) -> Result<(), Failure> {
    let is_same = |other: &&PathBuf| lost == **other || same_file(lost, other);
    if let Some(other) = others.into_iter().find(is_same) {
        return Err(Failure::usage(format!("--lost would replace {}: name another file", other.display())));
    }
    command_line::output::check_file(Some(lost))
}

fn same_file(one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| std::fs::canonicalize(path).ok();
    canonical(one).is_some_and(|one| canonical(other) == Some(one))
}

/// Writes the list of lost keys, unless a repair that was killed has left the same.
fn write_lost(examined: &ExaminedFile, keeps_uncertain: bool, path: &Path) -> Result<(), Failure> {
    let context = || path.display().to_string();
    let list = Unfinished::new(path).with_context(context)?;
    let mut file = BufWriter::new(list.file());
    let mut written = Ok(());
    examined.doubtful(|key| {
        if written.is_ok() {
            written = match key {
                Ok((key, Certainty::Uncertain)) if keeps_uncertain => {
                    writeln!(file, "{}\tkept, uncertain", key.escape_ascii())
                }
                Ok((key, Certainty::Uncertain)) => writeln!(file, "{}\tuncertain", key.escape_ascii()),
                Ok((key, _)) => writeln!(file, "{}\tdamaged", key.escape_ascii()),
                Err(name) => writeln!(file, "\tunknown, CRC32C {name:08x}"),
            };
        }
    });
    written.and_then(|()| file.flush()).with_context(context)?;
    drop(file);
    if path.symlink_metadata().is_ok() {
        let is_equal = File::open(path).and_then(|before| has_same_content(list.file(), before));
        list.abandon();
        return match is_equal.with_context(context)? {
            true => Ok(()),
            false => Err(Failure::usage(format!("--lost {} exists: name a new file", path.display()))),
        };
    }
    list.finish().with_context(context)?;
    Ok(())
}

fn has_same_content(mut one: &File, mut other: File) -> io::Result<bool> {
    one.rewind()?;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    one.read_to_end(&mut first)?;
    other.read_to_end(&mut second)?;
    Ok(first == second)
}

/// The findings in a file, and the result of the repair.
#[derive(Debug, Serialize)]
struct Report {
    file: PathBuf,
    is_whole: bool,
    bytes: u64,
    /// The size that the superblock says.
    bytes_wanted: u64,
    /// First byte of a damaged superblock of the file.
    damaged_superblock: Option<u64>,
    /// First bytes of sectors of 4,096 bytes that the disk cannot read.
    unreadable: Vec<u64>,
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
    /// Keys of which nothing can be read.
    unknown_keys: u64,
    /// Whether there may be more such keys.
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
            unreadable: examined.unreadable.iter().copied().collect(),
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
            unknown_keys: report.unknown_count,
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
        for sector in &self.unreadable {
            writeln!(f, "  byte {sector}, 4096 bytes: the disk cannot read them (EIO); they count as lost")?;
        }
        for partition in &self.partitions {
            partition.fmt(f)?;
        }
        if let Some(repaired) = &self.repaired {
            writeln!(f, "{} was written", repaired.path.display())?;
        } else if !self.is_whole {
            writeln!(
                f,
                "`nvlane kv repair {} --out NEW` writes what is certain to a new file, --in-place to this one",
                self.file.display()
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partition, keys, uncertain, lost, unknown_keys, .. } = self;
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
        } else if *unknown_keys > 0 {
            writeln!(
                f,
                "  {unknown_keys} keys that were only written in damaged ranges are lost, and not known"
            )?;
        }
        Ok(())
    }
}
