//! Figures of the stacks that were measured.

use load::steady::Spread;

use super::stack::{LOCAL, STACKS, Stack};
use super::{DEPTHS, JOB_DEPTH, JOB_DEPTHS, JOBS, PARTS_DEPTH, READ, WRITE, cell_name, cell_of_jobs};
use crate::distribution::{Share, over_rounds};
use crate::experiments::prelude::*;

/// Reads whose distribution of latency is drawn: jobs and depth.
const DISTRIBUTIONS: [(u32, u32); 3] = [(1, 1), (1, 32), (JOBS, JOB_DEPTH)];

/// The highest percentage that is drawn: beyond it are a few operations of a round.
const PERCENT_MAX: f64 = 99.99;

/// Percentiles of the table of latencies.
const PERCENTILES: [&str; 5] = ["p50_us", "p90_us", "p99_us", "p999_us", "p9999_us"];

/// The stacks that were measured, also those whose measurements were discarded: each has its colour in all figures.
fn present(measured: &Measured) -> impl Iterator<Item = &'static Stack> {
    let is_there = |cell: &CellRounds| cell.calm_count() > 0 || !cell.rejected.is_empty();
    STACKS.iter().filter(move |stack| measured.of("stack", stack.name).any(is_there))
}

/// The cumulative distribution of latency of a cell.
fn curve(name: &str, cell: Option<&CellRounds>) -> Series {
    let shares = cell.map(|cell| over_rounds(&cell.distributions)).unwrap_or_default();
    let shares = shares.into_iter().take_while(|share| share.percent.median <= PERCENT_MAX);
    let point = |Share { us, percent }: Share| Point {
        x: us,
        y: percent.median,
        low: percent.quartile_1,
        high: percent.quartile_3.min(PERCENT_MAX),
    };
    Series::of(name, shares.map(point).collect())
        .discarded_if(cell.is_some_and(|cell| cell.unmeasured().is_some()))
}

/// Percentiles of every stack, at each depth.
pub(super) fn tables(measured: &Measured) -> Vec<Table> {
    let table = |workload: &str| {
        let row = |stack: &Stack, (jobs, depth): (u32, u32)| Row {
            name: format!("{}, {}", load_name(jobs, depth), stack.name),
            cell: cell_of_jobs(stack.name, workload, jobs, depth),
        };
        let group = |load| present(measured).map(|stack| row(stack, load)).collect();
        let loads = DEPTHS.map(|depth| (1, depth)).into_iter().chain(JOB_DEPTHS.map(|depth| (JOBS, depth)));
        Table {
            title: format!("Latency: {workload}"),
            note: "Percentiles, of the rounds the median ± half the distance of the quartiles.".into(),
            columns: PERCENTILES.to_vec(),
            groups: loads.map(group).collect(),
        }
    };
    [READ, WRITE].map(table).to_vec()
}

/// Jobs and depth in words.
fn load_name(jobs: u32, depth: u32) -> String {
    if jobs == 1 { format!("depth {depth}") } else { format!("{jobs} jobs of depth {depth}") }
}

/// Number of cores of the jobs, if there were fewer cores than jobs.
pub(super) fn shared_cores(measured: &Measured) -> Option<String> {
    let of_many = measured.cells.iter().filter(|cell| cell.cell.word("jobs") == JOBS);
    let cores = of_many.filter_map(|cell| cell.median("cores_per_side")).reduce(f64::min)?;
    (cores < f64::from(JOBS)).then(|| {
        let cores = if cores < 1.5 { "one core".to_owned() } else { format!("{cores:.0} cores") };
        format!("{JOBS} jobs share {cores} of each side.")
    })
}

/// All figures.
pub(super) fn figures(measured: &Measured) -> Vec<Figure> {
    let stacks = || present(measured);
    let shown =
        |stack: &Stack, series: Series| if stack.name == LOCAL { series.as_reference() } else { series };
    let mut figures = Vec::new();
    for (jobs, depths) in [(1, &DEPTHS[..]), (JOBS, &JOB_DEPTHS[..])] {
        let depths: Vec<u64> = depths.iter().copied().map(u64::from).collect();
        for workload in [READ, WRITE] {
            let of = |stack: &Stack| {
                let is_of = |cell: &Cell| cell.text("workload") == workload && cell.word("jobs") == jobs;
                let cells = measured.of("stack", stack.name).filter(|cell| is_of(&cell.cell));
                shown(stack, line(stack.name, cells, "depth", "iops"))
            };
            let (title, across, note) = match jobs {
                1 => (
                    format!("Speed: {workload}"),
                    "operations in flight",
                    "Operations of 4 KiB per second on one queue. Higher is better.".to_owned(),
                ),
                jobs => (
                    format!("Speed: {workload}, {jobs} jobs"),
                    "operations in flight on each of the queues",
                    format!(
                        "Operations of 4 KiB per second on {jobs} queues together. {} Higher is better.",
                        shared_cores(measured).unwrap_or_default()
                    ),
                ),
            };
            let plot = Plot::lines(
                Axis::log(across),
                ticks(&depths, |depth| depth.to_string()),
                Axis::log("IOPS"),
                stacks().map(of).collect(),
            );
            figures.push(Figure::new(title, note, plot));
        }
    }
    for (jobs, depth) in DISTRIBUTIONS {
        let of = |stack: &Stack| {
            let cell = measured.cell(&cell_of_jobs(stack.name, READ, jobs, depth));
            shown(stack, curve(stack.name, cell))
        };
        let plot = Plot::lines(
            Axis::log("µs from submission to completion"),
            Vec::new(),
            Axis::nines("% of the reads that took no longer"),
            stacks().map(of).collect(),
        );
        figures.push(Figure::new(
            format!("Distribution of latency: read, {}", load_name(jobs, depth)),
            "Cumulative: at a height of 99 %, the latency that one of a hundred reads exceeds. To the left is better, and steep is steady.",
            plot,
        ));
    }
    let names = DEPTHS.map(|depth| format!("depth {depth}")).to_vec();
    let of = |stack: &Stack| {
        let cells = DEPTHS.map(|depth| cell_name(stack.name, READ, depth));
        shown(stack, bars(stack.name, measured, cells, "machine_us"))
    };
    figures.push(Figure::new(
        "Processor time: read",
        "Of the whole machine, for each read: load, host, target, kernel and interrupts. Lower is better.",
        Plot::bars("", names, Axis::linear("µs per operation"), stacks().map(of).collect()),
    ));
    for workload in [READ, WRITE] {
        figures.push(parts_of_time(measured, workload, &stacks().collect::<Vec<_>>()));
    }
    figures
}

/// Parts of the processor time of an operation: name, and the value, or the machine's time beyond all of them.
const PARTS: [(&str, Option<&str>); 5] = [
    ("host, user", Some("host_user_us")),
    ("host, kernel", Some("host_kernel_us")),
    ("target, user", Some("target_user_us")),
    ("target, kernel", Some("target_kernel_us")),
    ("neither process", None),
];

/// Processor time at depth [`PARTS_DEPTH`], by side, and in user space or in the kernel.
fn parts_of_time(measured: &Measured, workload: &str, stacks: &[&Stack]) -> Figure {
    let cell = |stack: &Stack| measured.cell(&cell_name(stack.name, workload, PARTS_DEPTH));
    let over_stacks = |name: &str, of: &dyn Fn(&CellRounds) -> Option<Spread>| {
        Series::new(name, stacks.iter().enumerate().map(|(at, stack)| (at as f64, cell(stack).and_then(of))))
    };
    let part = |(name, value): (&str, Option<&str>)| match value {
        Some(value) => over_stacks(name, &|cell| cell.spread(value)),
        None => over_stacks(name, &|cell| Spread::of(&each_rest(cell))).as_reference(),
    };
    let names = stacks.iter().map(|stack| stack.name.to_owned()).collect();
    let plot =
        Plot::stacks("", names, Axis::linear("µs per operation"), PARTS.into_iter().map(part).collect());
    Figure::new(
        format!("Processor time by side: {workload}, depth {PARTS_DEPTH}"),
        "Of the processes of host and target, in user space and in the kernel. Neither process: the kernel's own threads, which are \
         its NVMe host and target, interrupts, and other programs. The line at the end of a bar is between the quartiles of the \
         whole. Lower is better.",
        plot.with_wholes(over_stacks("", &|cell| Spread::of(&each_whole(cell)))),
    )
}

/// Of each round: the machine's time per operation, and the part of it that is of the processes of host and target, µs.
fn each_machine(cell: &CellRounds) -> impl Iterator<Item = (f64, f64)> {
    cell.rounds.iter().filter_map(|round| {
        let of = |value: &str| round.get(value).copied().unwrap_or(0.0);
        Some((*round.get("machine_us")?, of("host_us") + of("target_us")))
    })
}

/// The machine's time beside the two processes. It is counted in ticks and may come out a little below theirs.
fn each_rest(cell: &CellRounds) -> Vec<f64> {
    each_machine(cell).map(|(machine, processes)| (machine - processes).max(0.0)).collect()
}

fn each_whole(cell: &CellRounds) -> Vec<f64> {
    each_machine(cell).map(|(machine, processes)| machine.max(processes)).collect()
}
