//! What a target has when all hosts have gone, and what it must not have more of after hours.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use load::histogram::Histogram;

use crate::flood::{descriptors, resident_bytes};
use crate::target::Target;

/// Growth of memory that is allowed between the second and the last quarter of an uninterrupted process' life: a
/// twentieth, and these bytes.
const GROWTH_BYTES_MAX: u64 = 4 << 20;

/// Growth of the median of p99 latencies that is allowed likewise. Other processes of the machine are in it, too.
const SLOWER_MAX: f64 = 2.0;

/// Rounds below which growth cannot be told from a start.
const ROUNDS_MIN: usize = 16;

/// Time within which descriptors of answered calls and read files are closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// A target without hosts, after a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    resident_bytes: u64,
    descriptor_count: usize,
    thread_count: usize,
    /// Free bytes of the buffer pools.
    free_bytes: u64,
    p50_us: f64,
    p99_us: f64,
}

impl Sample {
    /// Waits for a moment if there are more descriptors than after the first round of the process.
    pub(super) fn take(target: &Target, latencies: &Histogram, health: &Health) -> Result<Self> {
        let state = target.state().context("the target does not tell its state")?;
        // It may still have the file open.
        std::thread::sleep(Duration::from_millis(100));
        let until = Instant::now() + CLOSE_LIMIT;
        let expected = health.first.map_or(usize::MAX, |first| first.descriptor_count);
        while descriptors(target.pid())? > expected {
            if Instant::now() > until {
                println!("descriptors: {}", descriptor_names(target.pid())?.join(" "));
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let us = |percent| latencies.percentile(percent) as f64 / 1000.0;
        let reactors = state["reactors"].as_array().into_iter().flatten();
        Ok(Self {
            resident_bytes: resident_bytes(target.pid())?,
            descriptor_count: descriptors(target.pid())?,
            thread_count: thread_count(target.pid())?,
            free_bytes: reactors.filter_map(|reactor| reactor["buffers"]["free_bytes"].as_u64()).sum(),
            p50_us: us(50.0),
            p99_us: us(99.0),
        })
    }
}

/// Threads of a process without the kernel's own, which come and go with the work of rings.
fn thread_count(pid: u32) -> Result<usize> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    Ok(names.filter(|name| !name.starts_with("iou-")).count())
}

/// What the descriptors of a process lead to.
fn descriptor_names(pid: u32) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))?;
    let names = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    Ok(names.map(|name| name.display().to_string()).collect())
}

/// Whether no host and no client is connected.
pub(super) fn is_deserted(target: &Target) -> bool {
    let Some(state) = target.state() else { return false };
    let count = |name: &str| state["connections"][name].as_u64();
    count("count") == Some(0) && count("memcached_count") == Some(0)
}

/// The samples of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Of the first process, up to its kill.
    first_life: Vec<Sample>,
    /// The first sample of the present process.
    first: Option<Sample>,
    last: Sample,
    has_been_killed: bool,
}

impl Health {
    /// The process was killed: the next sample is the first one of another.
    pub(super) fn forget(&mut self) {
        self.has_been_killed = true;
        self.first = None;
    }

    /// Adds the sample of a round; returns what it has more of than the first one of its process.
    pub(super) fn add(&mut self, sample: Sample) -> Vec<String> {
        self.last = sample;
        if !self.has_been_killed {
            self.first_life.push(sample);
        }
        let first = *self.first.get_or_insert(sample);
        let mut findings = Vec::new();
        let mut differs = |what: &str, first: u64, now: u64| {
            if first != now {
                findings.push(format!("{what} without hosts: {first} after the first round, {now} now"));
            }
        };
        differs("descriptors", first.descriptor_count as u64, sample.descriptor_count as u64);
        differs("threads", first.thread_count as u64, sample.thread_count as u64);
        differs("free bytes of buffers", first.free_bytes, sample.free_bytes);
        findings
    }

    /// What has grown in the uninterrupted part.
    pub(super) fn judge(&self) -> Vec<String> {
        let quarter = self.first_life.len() / 4;
        if self.first_life.len() < ROUNDS_MIN {
            return Vec::new();
        }
        let (second, fourth) = (&self.first_life[quarter..2 * quarter], &self.first_life[3 * quarter..]);
        let mut findings = Vec::new();
        let bytes = |of: &[Sample]| of.iter().map(|sample| sample.resident_bytes).max().unwrap_or(0);
        let (before, after) = (bytes(second), bytes(fourth));
        if after > before + GROWTH_BYTES_MAX.max(before / 20) {
            findings.push(format!("memory without hosts grows: {before} bytes, and later {after}"));
        }
        let (before, after) = (p99_us(second), p99_us(fourth));
        if after > before * SLOWER_MAX {
            findings.push(format!("reads get slower: p99 of {before:.0} us, and later {after:.0}"));
        }
        findings
    }

    /// The last sample, in a few words.
    pub(super) fn last(&self) -> String {
        let Sample { resident_bytes, descriptor_count, p50_us, p99_us, .. } = self.last;
        format!(
            "{} MiB, {descriptor_count} descriptors, reads {p50_us:.0} us, p99 {p99_us:.0}",
            resident_bytes >> 20
        )
    }

    /// The uninterrupted part by quarters, as lines.
    pub(super) fn print(&self) {
        let quarter = (self.first_life.len() / 4).max(1);
        for (at, samples) in self.first_life.chunks(quarter).take(4).enumerate() {
            let kib = samples.iter().map(|sample| sample.resident_bytes >> 10);
            println!(
                "  quarter {} before kills: {} to {} KiB, {} descriptors, reads p99 {:.0} us",
                at + 1,
                kib.clone().min().unwrap_or(0),
                kib.max().unwrap_or(0),
                samples.last().map_or(0, |sample| sample.descriptor_count),
                p99_us(samples),
            );
        }
    }
}

/// Median of the p99 latencies.
fn p99_us(samples: &[Sample]) -> f64 {
    let mut all: Vec<f64> = samples.iter().map(|sample| sample.p99_us).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

/// The samples as a file.
pub(super) struct Csv(File);

impl Csv {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let mut file = File::create(path).with_context(|| path.display().to_string())?;
        writeln!(file, "seconds,kills,resident_bytes,descriptors,threads,free_bytes,p50_us,p99_us")?;
        Ok(Self(file))
    }

    pub(super) fn write(&mut self, time: Duration, kills: u32, sample: &Sample) -> Result<()> {
        let Sample { resident_bytes, descriptor_count, thread_count, free_bytes, p50_us, p99_us } = sample;
        let seconds = time.as_secs_f64();
        writeln!(
            self.0,
            "{seconds:.1},{kills},{resident_bytes},{descriptor_count},{thread_count},{free_bytes},{p50_us:.1},{p99_us:.1}"
        )?;
        Ok(())
    }
}
