//! Figures of the stacks that were measured.

use super::stack::{LOCAL, STACKS, Stack};
use super::{DEPTHS, READ, WRITE, cell_name};
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
    figures
}
