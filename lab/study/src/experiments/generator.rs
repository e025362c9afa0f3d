//! `generator`: the cost of generating load.

use std::process::{Command, Stdio};
use std::time::Instant;

use load::cpu;
use load::generator::{Generator, Operation};
use load::recorder::Recorder;
use load::workload::{Deallocated, Geometry, Stop, Workload};
use serde_json::Value;

use super::prelude::*;
use crate::bench::on_core;

const DEPTHS: [u32; 3] = [1, 32, 128];
const OURS: &str = "nvlane";
const FIO: &str = "fio";

pub(crate) const ABOUT: About = About {
    name: "generator",
    title: "What does the load generator cost?",
    method: "Random reads of 4 KiB that complete at once, without a target: fio with its null engine, and the generator, \
             histogram and clock of `nvlane perf` around an equally empty queue. Each on the host's core, in turn.",
    claims: &[Claim {
        source: "NVMe/TCP versus RoCE, Netdev 0x13 (2019)",
        says: "The same target showed 15 to 34 % more operations with a leaner generator than with fio.",
        number: "15 – 34 %",
        ours: "perf_over_fio",
    }],
    machines: Machines::Here("it has no target"),
    judged_by: "iops",
    columns: "iops host_us",
};

/// nvlane's and fio's generators without a namespace: operations complete at once.
#[derive(Debug, Default)]
pub(crate) struct Generators;

impl Experiment for Generators {
    fn cells(&self) -> Vec<Cell> {
        let of = |depth: u32, tool| Cell::new(cell_name(depth, tool)).with("depth", depth).with("tool", tool);
        DEPTHS.into_iter().flat_map(|depth| [OURS, FIO].map(|tool| of(depth, tool))).collect()
    }

    fn check(&self, _: &Bench) -> Result<(), Error> {
        let found = Command::new("fio").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        match found {
            Ok(status) if status.success() => Ok(()),
            _ => Err(Error::Lacking("fio is missing: apt install fio, or dnf install fio".into())),
        }
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let depth = cell.word("depth");
        if cell.text("tool") == FIO { fio(bench, depth) } else { ours(bench, depth) }
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let over_fio = |depth| measured.ratio(&cell_name(depth, OURS), &cell_name(depth, FIO), "iops");
        headlines.tell("perf_over_fio", over_fio(32));
        for depth in DEPTHS {
            headlines.tell(format!("perf_over_fio_qd{depth}"), over_fio(depth));
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = || DEPTHS.map(|depth| format!("depth {depth}")).to_vec();
        let of = |value: &'static str| {
            [OURS, FIO].map(|tool| bars(tool, measured, DEPTHS.map(|depth| cell_name(depth, tool)), value))
        };
        vec![
            Figure::new(
                "Operations per second from one core",
                "With nothing behind them. Higher is better.",
                Plot::bars("", names(), Axis::linear("IOPS"), of("iops").into()),
            ),
            Figure::new(
                "Processor time of an operation",
                "The part of each measured operation that is the generator's. Lower is better.",
                Plot::bars("", names(), Axis::linear("µs"), of("host_us").into()),
            ),
        ]
    }
}

fn cell_name(depth: u32, tool: &str) -> String {
    format!("qd{depth} {tool}")
}

/// Driver without lanes: completes every operation at once, at the full depth.
fn ours(bench: &Bench, depth: u32) -> Result<Values, Error> {
    let geometry = Geometry {
        lba_bytes: IO_BYTES,
        block_count: 1 << 28,
        transfer_limit_bytes: None,
        deallocated: Deallocated::NotReported,
    };
    let stop = Stop { runtime: Some(bench.times.measure), ..Stop::default() };
    let workload = Workload { depth, warm_up: bench.times.warm_up, stop, ..Workload::default() };
    let plan =
        workload.plan(&geometry, load::verify::new_run_id()).map_err(load::runner::RunError::Workload)?;
    on_core(bench.cores.map(|cores| cores.host), || {
        let clock = Instant::now();
        let now_ns = || u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut generator = Generator::new(&plan, 0);
        let mut recorder = Recorder::new(false);
        let mut in_flight: Vec<Operation> = Vec::with_capacity(depth as usize);
        generator.start(now_ns());
        let measured_from_ns = generator.measured_from_ns().unwrap_or(0);
        let cpu_time = || cpu::of_thread().doing("read processor time");
        let mut used_before = None;
        while !generator.is_over() {
            let now = now_ns();
            if used_before.is_none() && now >= measured_from_ns {
                used_before = Some(cpu_time()?);
            }
            while let Some(operation) = generator.next_operation(now) {
                in_flight.push(operation);
            }
            let done_ns = now_ns();
            for operation in in_flight.drain(..) {
                generator.on_done(&operation, done_ns, &mut recorder);
            }
        }
        let elapsed_ns = now_ns() - measured_from_ns;
        let used = cpu_time()? - used_before.unwrap_or_default();
        let operations = recorder.into_total().all().operations();
        Ok(of_counts(operations, elapsed_ns, used.total_ns()))
    })
}

fn of_counts(operations: u64, elapsed_ns: u64, used_ns: u64) -> Values {
    Values::from([
        ("iops", operations as f64 * 1e9 / elapsed_ns as f64),
        ("host_us", us(used_ns) / operations.max(1) as f64),
    ])
}

fn fio(bench: &Bench, depth: u32) -> Result<Values, Error> {
    let mut command = Command::new("fio");
    command.args(["--name=null", "--ioengine=null", "--rw=randread", "--size=1T", "--thread"]);
    command.args(["--time_based", "--norandommap", "--output-format=json"]);
    command.arg(format!("--bs={IO_BYTES}")).arg(format!("--iodepth={depth}"));
    command.arg(format!("--runtime={}ms", bench.times.measure.as_millis()));
    command.arg(format!("--ramp_time={}ms", bench.times.warm_up.as_millis()));
    if let Some(cores) = bench.cores {
        command.arg(format!("--cpus_allowed={}", cores.host));
    }
    let output = command.output().doing("cannot run fio")?;
    let result = serde_json::from_slice(&output.stdout).ok().and_then(|json| parse_fio(&json));
    result.ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        Error::Load(format!("fio has no results: {}", said.lines().next().unwrap_or_default()))
    })
}

/// Throughput and processor time of fio's only job.
fn parse_fio(json: &Value) -> Option<Values> {
    let job = json.get("jobs")?.get(0)?;
    let number = |value: &Value, name: &str| value.get(name)?.as_f64();
    let iops = number(job.get("read")?, "iops")?;
    let busy_percent = number(job, "usr_cpu")? + number(job, "sys_cpu")?;
    Some(Values::from([("iops", iops), ("host_us", busy_percent / 100.0 * 1e6 / iops)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_fio_are_read() {
        let json = serde_json::json!({
            "jobs": [{ "read": { "iops": 2_000_000.0 }, "usr_cpu": 90.0, "sys_cpu": 10.0 }]
        });
        assert_eq!(parse_fio(&json).unwrap(), Values::from([("iops", 2e6), ("host_us", 0.5)]));
        assert_eq!(parse_fio(&Value::Null), None);
    }

    #[test]
    fn our_generator_runs_without_a_target() {
        let mut bench = Bench::for_tests();
        bench.times = crate::bench::Times::of(std::time::Duration::from_millis(20));
        let values = ours(&bench, 4).unwrap();
        assert!(values["iops"] > 0.0);
    }
}
