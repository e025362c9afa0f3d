//! Figures of the stacks that were measured.

use load::steady::Spread;

use super::stack::{LOCAL, STACKS, Stack};
use super::{DEPTHS, PARTS_DEPTH, READ, WRITE, cell_name};
use crate::experiments::prelude::*;

/// Percentiles of the distribution of latency: their value, label, and place on an axis of the number of nines.
const PERCENTILES: [(&str, &str, f64); 5] = [
    ("p50_us", "50 %", 0.301),
    ("p90_us", "90 %", 1.0),
    ("p99_us", "99 %", 2.0),
    ("p999_us", "99.9 %", 3.0),
    ("p9999_us", "99.99 %", 4.0),
];

/// All figures.
pub(super) fn figures(measured: &Measured) -> Vec<Figure> {
    let stacks =
        || STACKS.iter().filter(|stack| measured.of("stack", stack.name).any(|cell| cell.calm_count() > 0));
    let shown =
        |stack: &Stack, series: Series| if stack.name == LOCAL { series.as_reference() } else { series };
    let mut figures = Vec::new();
    for workload in [READ, WRITE] {
        let of = |stack: &Stack| {
            let cells =
                measured.of("stack", stack.name).filter(|cell| cell.cell.text("workload") == workload);
            shown(stack, line(stack.name, cells, "depth", "iops"))
        };
        let depths = ticks(&DEPTHS.map(u64::from), |depth| depth.to_string());
        let plot = Plot::lines(
            Axis::log("operations in flight"),
            depths,
            Axis::log("IOPS"),
            stacks().map(of).collect(),
        );
        figures.push(Figure::new(
            format!("Speed: {workload}"),
            "Operations of 4 KiB per second on one queue. Higher is better.",
            plot,
        ));
    }
    for depth in [1, 32] {
        let of = |stack: &Stack| {
            let cell = measured.cell(&cell_name(stack.name, READ, depth));
            let point = |(value, _, x): (&str, &str, f64)| (x, cell.and_then(|cell| cell.spread(value)));
            shown(stack, Series::new(stack.name, PERCENTILES.map(point)))
        };
        let labels = PERCENTILES.map(|(_, label, x)| (x, label.to_owned())).to_vec();
        let plot = Plot::lines(
            Axis::linear("part of the reads, whose latency is below the line"),
            labels,
            Axis::log("µs"),
            stacks().map(of).collect(),
        );
        figures.push(Figure::new(
            format!("Distribution of latency: read, depth {depth}"),
            "Each percentile of the reads. Lower is better, and flat is steady.",
            plot,
        ));
    }
    let names = DEPTHS.map(|depth| format!("depth {depth}")).to_vec();
    let of = |stack: &Stack| {
        bars(stack.name, measured, DEPTHS.map(|depth| cell_name(stack.name, READ, depth)), "machine_us")
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

/// Parts of the processor time of an operation: name, and the value, or what the machine used beyond all of them.
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
    #[allow(clippy::cast_precision_loss)] // The index of a name.
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
        "Of the processes of host and target, in user space and in the kernel. Neither process: the kernel's own threads, which are          its NVMe host and target, interrupts, and other programs. The line at the end of a bar is between the quartiles of the          whole. Lower is better.",
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

/// What the machine used beside the two processes. Its time is counted in ticks and may come out a little below theirs.
fn each_rest(cell: &CellRounds) -> Vec<f64> {
    each_machine(cell).map(|(machine, processes)| (machine - processes).max(0.0)).collect()
}

fn each_whole(cell: &CellRounds) -> Vec<f64> {
    each_machine(cell).map(|(machine, processes)| machine.max(processes)).collect()
}
