//! `nvlane quickstart`: a target, verified load, speed relative to the ceiling, and next steps, without configuration.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use command_line::exit::{Ended, Failure, Kind};
use command_line::output;
use command_line::signals::EndOnSignal;
use host::{Address, Association, Options, Receive};
use linux::CoreList;
use load::account::ProcessAccount;
use load::ceiling::{CeilingSpec, measure};
use load::disturbance::{Disturbance, Unmeasured};
use load::environment::Environment;
use load::report::Report;
use load::runner::{self, Finished, RunSettings};
use load::steady::median;
use load::target_process::TargetProcess;
use load::workload::{Pattern, Sizes, Stop, Workload};
use serde_json::{Value, json};
use wire::id::Nsid;

use crate::perf;

/// Size of each namespace.
const NAMESPACE: &str = "128M";

/// Bytes per operation of the speed measurements.
const IO_BYTES: u32 = 4096;

/// Rounds per speed, alternating with the ceiling; the medians are reported.
const ROUND_COUNT: usize = 3;

/// Maximum rounds of a cell, if some were disturbed by other load.
const ROUND_COUNT_MAX: usize = 6;

#[derive(Debug, Args)]
#[command(after_help = "\
Takes about a minute. Starts a target with a namespace in memory and one in a file on a free port of 127.0.0.1, writes and reads both \
with every block checked, measures reads and writes of 4 KiB at depths 1, 32 and 128 on a namespace that discards all data, compares them \
with plain sockets that move the same bytes (`nvlane perf ceiling`), and prints how to mount such a target.")]
pub(crate) struct QuickstartArguments {
    /// Directory for the file of the second namespace, which is removed at the end. [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Write the results as JSON to this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The core of each side, if this process may use two.
#[derive(Clone, Copy, Debug)]
struct Cores {
    host: usize,
    target: usize,
}

/// One line of the table.
struct Cell {
    kind: &'static str,
    depth: u32,
    /// Rounds that were discarded.
    discarded: usize,
    /// Disturbance of the worst discarded round.
    disturbance: Disturbance,
    result: Result<Medians, Unmeasured>,
}

/// Medians of the rounds.
struct Medians {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    ceiling_iops: f64,
    share: f64,
    host_us: f64,
    target_us: Option<f64>,
}

pub(crate) fn quickstart(arguments: &QuickstartArguments) -> Ended {
    let cores = match CoreList::allowed().context("cores")?.cores() {
        &[host, target, ..] => Some(Cores { host, target }),
        _ => None,
    };
    output::check_file(arguments.json.as_deref())?;
    let directory = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
    let stops = Arc::new(AtomicBool::new(false));
    let _handlers = EndOnSignal::new(&stops)?;
    // Removed with its file after the target has ended: a namespace whose file is deleted accepts no writes.
    let directory = tempfile::Builder::new().prefix("nvlane-quickstart-").tempdir_in(&directory);
    let directory = directory.context("a directory for the file of a namespace")?;
    let served = serve(directory.path(), cores)?;
    let environment = Environment::collect(None, Duration::from_millis(20));
    print_heading(served.address(), cores, &environment)?;

    let mut verified = Vec::new();
    for (nsid, name) in [(1, "memory"), (2, "file")] {
        verified.push(verify(&served, nsid, name, cores, &stops)?);
    }
    output::write(format!(
        "\n{:<10}{:>6}{:>9}{:>8}{:>8}{:>10}{:>7}{:>9}{:>10}\n",
        "4 KiB", "depth", "IOPS", "p50 us", "p99 us", "ceiling", "share", "host us", "target us"
    ))?;
    let mut cells = Vec::new();
    for kind in ["randread", "randwrite"] {
        for depth in [1, 32, 128] {
            let cell = measure_cell(&served, kind, depth, cores, &stops)?;
            print_cell(&cell)?;
            cells.push(cell);
        }
    }
    served.stop()?;
    print_disturbance(&cells)?;
    print_explanation(cores)?;
    if let Some(path) = &arguments.json {
        let document = json!({
            "environment": environment,
            "verified": verified,
            "cells": cells.iter().map(cell_value).collect::<Vec<_>>(),
        });
        let text = serde_json::to_string_pretty(&document).context("JSON")? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A target with a namespace in memory (1), one in a file (2), and one that discards all data (3).
fn serve(directory: &Path, cores: Option<Cores>) -> Result<TargetProcess, Failure> {
    let file = directory.join("namespace.img");
    let mut command = Command::new(std::env::current_exe().context("which program this is")?);
    command.args(["--log", "warn", "target", "--listen", "127.0.0.1:0"]);
    command.args(["--namespace", &format!("ram:{NAMESPACE}")]);
    command.args(["--namespace", &format!("file:{}?size={NAMESPACE}", file.display())]);
    command.args(["--namespace", &format!("null:{NAMESPACE}")]);
    if let Some(cores) = cores {
        command.args(["--cores", &cores.target.to_string()]);
    }
    Ok(TargetProcess::start(command)?)
}

fn associate(address: &Address, nsid: u32) -> Result<Association, host::Error> {
    let address = address.clone().with_nsid(Nsid::new(nsid));
    Association::connect(&address, Options::default().with_lanes(2))
}

/// Load of reads and writes of several sizes, every block checked.
fn verify(
    served: &TargetProcess,
    nsid: u32,
    name: &str,
    cores: Option<Cores>,
    stops: &Arc<AtomicBool>,
) -> Result<Value, Failure> {
    let workload = Workload {
        pattern: Pattern::named("randrw", Some(70)).map_err(Failure::usage)?,
        sizes: "4k/60:64k/30:256k/10".parse::<Sizes>().map_err(Failure::usage)?,
        lanes: 2,
        verify: true,
        fill: true,
        warm_up: Duration::ZERO,
        stop: Stop { runtime: Some(Duration::from_secs(3)), ..Stop::default() },
        ..Workload::default()
    };
    let finished = load(served, nsid, &workload, cores, stops)?;
    let Report { total, counters, .. } = &finished.report;
    output::write(format!(
        "{name:<8} {:>9} operations of 4 to 256 KiB, {:>9} blocks checked, {} wrong, {} failed\n",
        total.operations, counters.blocks_checked, counters.mismatch_count, total.error_count
    ))?;
    for mismatch in &finished.report.mismatches {
        output::write(format!("  {mismatch}\n"))?;
    }
    if counters.mismatch_count > 0 {
        return Err(Failure::new(Kind::Mismatch, "data differs from what was written"));
    }
    if total.error_count > 0 || finished.error.is_some() {
        return Err(Failure::new(Kind::Failed, "operations failed"));
    }
    Ok(json!({
        "namespace": name,
        "operations": total.operations,
        "blocks_checked": counters.blocks_checked,
        "mismatch_count": counters.mismatch_count,
    }))
}

fn load(
    served: &TargetProcess,
    nsid: u32,
    workload: &Workload,
    cores: Option<Cores>,
    stops: &Arc<AtomicBool>,
) -> Result<Finished, Failure> {
    let association = associate(served.address(), nsid)?;
    let namespace = association.addressed_namespace()?;
    let settings = RunSettings {
        cores: cores.map(|cores| cores.host).into_iter().collect(),
        target: Some(Arc::new(ProcessAccount(served.pid()))),
        ..RunSettings::default()
    };
    let mut live = perf::live::Live::ended_by(Arc::clone(stops), workload);
    let finished = runner::run(&association, &namespace, workload, &settings, &mut live);
    association.close();
    if stops.load(Ordering::Relaxed) {
        return Err(Failure::new(Kind::Failed, "stopped"));
    }
    finished.map_err(Failure::from)
}

/// Measures one speed and its ceiling, in alternation.
fn measure_cell(
    served: &TargetProcess,
    kind: &'static str,
    depth: u32,
    cores: Option<Cores>,
    stops: &Arc<AtomicBool>,
) -> Result<Cell, Failure> {
    let pattern = Pattern::named(kind, None).map_err(Failure::usage)?;
    let spec = CeilingSpec {
        depth,
        connections: 1,
        io_bytes: IO_BYTES,
        read_percent: perf::ceiling::read_percent(&pattern).unwrap_or(100),
        in_capsule_bytes: perf::ceiling::IN_CAPSULE_BYTES,
        memory_bytes: 0,
        far_memory_bytes: 0,
        near_receives: Receive::default(),
        tls: None,
        duration: Duration::from_millis(450),
        warm_up: Duration::from_millis(150),
        cores: cores.map(|cores| (cores.host, cores.target)),
        far_sleeps: false,
        seed: 1,
    };
    let workload = Workload {
        pattern,
        depth,
        warm_up: Duration::from_millis(200),
        stop: Stop { runtime: Some(Duration::from_millis(700)), ..Stop::default() },
        ..Workload::default()
    };
    let (mut rounds, mut discarded) = (Vec::new(), 0);
    let (mut lost, mut last) = (Disturbance::default(), Unmeasured::Nothing);
    for _ in 0..ROUND_COUNT_MAX {
        // In a thread of its own: pinning it must not affect processes that are started later.
        let ceiling = std::thread::scope(|scope| scope.spawn(|| measure(&spec)).join());
        let ceiling = ceiling.expect("the ceiling does not panic").context("the ceiling")?;
        let report = load(served, 3, &workload, cores, stops)?.report;
        let share = report.total.iops / ceiling.iops();
        let mut disturbance = Disturbance::default();
        // Two sides that share one core disturb each other by design.
        if cores.is_some() {
            disturbance.merge(&ceiling.disturbance);
            disturbance.merge(&report.disturbance);
        }
        match disturbance.judge(Some(report.total.iops), Some(share)) {
            Ok(()) => rounds.push((ceiling.iops(), report)),
            Err(reason) => {
                discarded += 1;
                let percent = |of: &Disturbance| of.worst().map_or(0.0, |(_, loss)| loss.percent());
                if percent(&disturbance) >= percent(&lost) {
                    (lost, last) = (disturbance, reason);
                }
            }
        }
        if rounds.len() >= ROUND_COUNT {
            break;
        }
    }
    if rounds.is_empty() {
        return Ok(Cell { kind, depth, discarded, disturbance: lost, result: Err(last) });
    }
    let middle = |value: &dyn Fn(&(f64, Report)) -> f64| {
        median(&rounds.iter().map(value).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let percentile = |report: &Report, percent| {
        report
            .total
            .latency()
            .percentile_ns(percent)
            .map_or(0.0, |ns| Duration::from_nanos(ns).as_secs_f64() * 1e6)
    };
    let has_target = rounds.iter().all(|(_, report)| report.cpu.target.is_some());
    let share_us =
        |share: Option<load::report::CpuShare>| share.map_or(0.0, |share| share.ns_per_operation() / 1e3);
    let medians = Medians {
        iops: middle(&|(_, report)| report.total.iops),
        p50_us: middle(&|(_, report)| percentile(report, 50.0)),
        p99_us: middle(&|(_, report)| percentile(report, 99.0)),
        ceiling_iops: middle(&|(ceiling_iops, _)| *ceiling_iops),
        share: middle(&|(ceiling_iops, report)| report.total.iops / ceiling_iops),
        host_us: middle(&|(_, report)| share_us(report.cpu.generator)),
        target_us: has_target.then(|| middle(&|(_, report)| share_us(report.cpu.target))),
    };
    Ok(Cell { kind, depth, discarded, disturbance: lost, result: Ok(medians) })
}

fn print_heading(address: &Address, cores: Option<Cores>, environment: &Environment) -> Result<(), Failure> {
    let kernel = environment.kernel.as_deref().unwrap_or("?");
    let cpu = environment.cpu_model.as_deref().unwrap_or(&environment.architecture);
    let sides = match cores {
        Some(Cores { host, target }) => {
            format!("host on core {host}, target on core {target}, over loopback")
        }
        None => "host and target share one core: speeds mean little here".into(),
    };
    let core_count = environment.core_count;
    output::write(format!("target at {address}, kernel {kernel}, {core_count} cores of {cpu}\n{sides}\n\n"))
}

fn print_cell(cell: &Cell) -> Result<(), Failure> {
    let start = format!("{:<10}{:>6}", cell.kind, cell.depth);
    let medians = match &cell.result {
        Ok(medians) => medians,
        Err(reason) => return output::write(format!("{start}{:>9}  {reason}\n", "n/a")),
    };
    let Medians { iops, p50_us, p99_us, ceiling_iops, share, host_us, target_us } = medians;
    let target_us = target_us.map_or_else(|| "-".into(), |us| format!("{us:.2}"));
    output::write(format!(
        "{start}{iops:>9.0}{p50_us:>8.1}{p99_us:>8.1}{ceiling_iops:>10.0}{share:>7.2}{host_us:>9.2}{target_us:>10}\n"
    ))
}

/// Prints how many measurements were discarded, if any.
fn print_disturbance(cells: &[Cell]) -> Result<(), Failure> {
    let discarded: usize = cells.iter().map(|cell| cell.discarded).sum();
    if discarded == 0 {
        return Ok(());
    }
    let unmeasured = cells.iter().filter(|cell| cell.result.is_err()).count();
    let lost = cells.iter().filter_map(|cell| cell.disturbance.worst());
    let worst = lost.max_by(|(_, a), (_, b)| a.percent().total_cmp(&b.percent()));
    let worst = worst.map_or_else(String::new, |(side, loss)| {
        format!("; at worst other load took {:.0} % of the {side}'s core", loss.percent())
    });
    output::write(format!(
        "\nThe machine was disturbed: {discarded} measurements were discarded, {unmeasured} of {} cells have none{worst}.\n\
         For valid numbers, stop other programs on this machine and run it again.\n",
        cells.len()
    ))
}

fn print_explanation(cores: Option<Cores>) -> Result<(), Failure> {
    let on = cores.map_or_else(String::new, |cores| format!(" --cores {}", cores.target));
    output::write(format!(
        "
The ceiling moves the same bytes over the same kind of socket without NVMe. share: nvlane's IOPS divided by the ceiling's, the median of
{ROUND_COUNT} rounds that alternate. Neither uses storage (the namespace discards all data), so the difference is the cost of the protocol.
host us and target us: processor time per operation, with a resolution of 10 ms in total. A round in which other load took more than
5 % of a side's core is discarded; n/a is a cell without any round left.

Serve the same, and mount it from this machine's kernel:
  nvlane target --namespace ram:1G{on}
  modprobe nvme-tcp && nvme connect-all -t tcp -a 127.0.0.1 -s 8009
From another machine: nvlane target --listen 0.0.0.0:4420 ..., and its address after -a, with -s 4420. The target logs the link to each
disk in /dev/disk/by-id. More load: nvlane perf --help
"
    ))
}

fn cell_value(cell: &Cell) -> Value {
    let medians = cell.result.as_ref().ok();
    json!({
        "pattern": cell.kind,
        "io_bytes": IO_BYTES,
        "depth": cell.depth,
        "iops": medians.map(|medians| medians.iops),
        "p50_us": medians.map(|medians| medians.p50_us),
        "p99_us": medians.map(|medians| medians.p99_us),
        "ceiling_iops": medians.map(|medians| medians.ceiling_iops),
        "share": medians.map(|medians| medians.share),
        "host_us_per_operation": medians.map(|medians| medians.host_us),
        "target_us_per_operation": medians.and_then(|medians| medians.target_us),
        "discarded_rounds": cell.discarded,
        "disturbance": cell.disturbance,
        "reason": cell.result.as_ref().err(),
    })
}
