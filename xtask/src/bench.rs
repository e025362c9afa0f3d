//! `make bench`: the measurements of time, and their bars. `make test` runs none of them, as any may fail on a noisy
//! machine.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{cargo, run as run_command, target_dir};

/// A study that is run: its cells whose names contain `only`, or all cells.
struct Measurement {
    study: &'static str,
    only: Option<&'static str>,
    bars: &'static [Bar],
}

/// A headline number of a study, and its bar.
struct Bar {
    key: &'static str,
    what: &'static str,
    is_reached: fn(f64) -> bool,
    limit: &'static str,
}

/// The bar of the processor time per operation of two reactors.
const fn time_of_two(key: &'static str, what: &'static str) -> Bar {
    Bar { key, what, is_reached: |times| times <= 1.15, limit: "at most 1.15" }
}

/// The bars checked here; the studies report more.
const MEASUREMENTS: [Measurement; 4] = [
    Measurement {
        study: "ceiling",
        only: None,
        bars: &[Bar {
            key: "share_read_qd128",
            what: "share of the ceiling, 4 KiB reads at depth 128, one core for each side",
            is_reached: |share| share >= 0.7,
            limit: "at least 0.7",
        }],
    },
    Measurement {
        study: "idle",
        only: None,
        bars: &[Bar {
            key: "cpu_percent_1000",
            what: "percent of a core for 1,000 idle lanes",
            is_reached: |percent| percent < 1.0,
            limit: "below 1",
        }],
    },
    Measurement {
        study: "core-scaling",
        only: Some("reactor"),
        bars: &[
            time_of_two("read_time_2_reactors_over_1", "processor time per 4 KiB read, 2 reactors over 1"),
            time_of_two("write_time_2_reactors_over_1", "processor time per 4 KiB write, 2 reactors over 1"),
            time_of_two("mix_time_2_reactors_over_1", "processor time of 70 % reads, 2 reactors over 1"),
        ],
    },
    Measurement {
        study: "kv-scaling",
        only: None,
        bars: &[
            Bar {
                key: "get_2_reactors_over_1",
                what: "gets in batches, speed of two reactors over one at the same processor time for each",
                is_reached: two_at_most_1_15_times_the_time,
                limit: "at least 1.74: 1.15 times the time per key",
            },
            Bar {
                key: "set_2_reactors_over_1",
                what: "sets in batches, the same",
                is_reached: two_at_most_1_15_times_the_time,
                limit: "at least 1.74: 1.15 times the time per key",
            },
        ],
    },
];

/// Whether two reactors take at most 1.15 times the processor time of one per key, by their speed over that of one.
fn two_at_most_1_15_times_the_time(speed: f64) -> bool {
    2.0 / speed <= 1.15
}

/// Package and name of each bench without external requirements.
const BENCHES: [[&str; 2]; 3] =
    [["nvlane-load", "cost"], ["nvlane-host-core", "cost"], ["nvlane-memcached", "processor"]];

/// Runs the studies with bars, then the benches.
pub(crate) fn run() -> Result<()> {
    let mut build = cargo(&["build", "--release", "--locked"]);
    run_command(build.args(["--package", "nvlane", "--package", "nvlane-lab"]))?;
    let program = target_dir().join("release/nvlane");
    let mut missed = 0;
    let mut lines = Vec::new();
    for Measurement { study, only, bars } in &MEASUREMENTS {
        let out = target_dir().join("bench").join(study);
        let mut command = std::process::Command::new(&program);
        command.args(["study", study, "--quick", "--out"]).arg(&out);
        if let Some(only) = only {
            command.args(["--only", only]);
        }
        run_command(&mut command)?;
        let path = out.join("results.json");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let results: Value = serde_json::from_str(&text).context("results.json")?;
        for bar in *bars {
            let value = results["headline"][bar.key].as_f64();
            let value = value.with_context(|| format!("{} has no {}", path.display(), bar.key))?;
            let is_reached = (bar.is_reached)(value);
            missed += usize::from(!is_reached);
            let word = if is_reached { "ok    " } else { "MISSED" };
            lines.push(format!("{word} {}: {value:.3} ({})", bar.what, bar.limit));
        }
    }
    for [package, bench] in BENCHES {
        run_command(&mut cargo(&["bench", "--locked", "--package", package, "--bench", bench]))?;
    }
    println!("\n{}", lines.join("\n"));
    ensure!(missed == 0, "{missed} of {} bars missed", lines.len());
    Ok(())
}
