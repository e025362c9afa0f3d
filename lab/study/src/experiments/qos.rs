//! `qos`: what a noisy neighbour costs a quiet host, and what rate limits and a guaranteed rate give back.

use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use host::{HostIdentity, Options};
use load::workload::{Arrival, Pace};
use tempfile::TempDir;
use wire::uuid::Uuid;

use super::prelude::*;

/// The quiet host: reads per second of an open loop.
const QUIET_PER_S: f64 = 2000.0;
/// The noisy one: lanes, and reads in flight on each.
const NOISY_LANES: u32 = 4;
const NOISY_DEPTH: u32 = 64;

const ALONE: &str = "alone";
const BESIDE: &str = "beside a noisy host";
const LIMITED: &str = "noisy host limited";
const GUARANTEED: &str = "quiet host guaranteed";
/// What is set for the two hosts.
const NEIGHBOURS: [(&str, Setting); 4] = [
    (ALONE, Setting { noisy: &[], quiet: &[], is_noisy: false }),
    (BESIDE, Setting { noisy: &[], quiet: &[], is_noisy: true }),
    (LIMITED, Setting { noisy: &["--iops", "20000"], quiet: &[], is_noisy: true }),
    (GUARANTEED, Setting { noisy: &[], quiet: &["--min-iops", "25000"], is_noisy: true }),
];

const FREE: &str = "32 in flight, no limits";
const UNUSED: &str = "32 in flight, limits not reached";
/// One host with 32 reads in flight, without limits and with limits that it does not reach. A closed loop: at 2,000 reads
/// per second, p99 is what the machine does meanwhile.
const UNREACHED: [(&str, &[&str]); 2] =
    [(FREE, &[]), (UNUSED, &["--iops", "10000000", "--bytes-per-s", "64G"])];

/// Limits whose accuracy is measured: name, options, and operations of 4 KiB per second.
const LIMITS: [(&str, &[&str], f64); 4] = [
    ("1,000 IOPS", &["--iops", "1000"], 1000.0),
    ("20,000 IOPS", &["--iops", "20000"], 20_000.0),
    ("10 MiB/s", &["--bytes-per-s", "10M"], 2560.0),
    ("100 MiB/s", &["--bytes-per-s", "100M"], 25_600.0),
];

/// Reads in flight on each lane at a limit. A rate counts those of the measured time over the time until the last of
/// them has ended: at low limits many in flight would take a part of it.
fn depth_at(rate: f64) -> u32 {
    if rate < 10_000.0 { 1 } else { 16 }
}

/// Bars: what limits that are not reached add to p99, and the error of the rate at any limit.
const UNUSED_P99: Bar = Bar::AtMost(1.05);
const ERROR: Bar = Bar::AtMost(2.0);

pub(crate) const ABOUT: About = About {
    name: "qos",
    title: "What do rate limits give a quiet host beside a noisy one?",
    method: "A quiet host reads 4 KiB 2,000 times a second, as a Poisson process, from a null namespace; a noisy one has 4 lanes with 64 reads in \
             flight each. p99 of the quiet host alone, beside the noisy one, with the noisy one limited to 20,000 IOPS (nvlane ctl host set \
             --iops), and with a rate of 25,000 guaranteed to the quiet one (--min-iops). Limits are set while the target runs. Then one host \
             with 32 reads in flight, without limits and with limits that it does not reach; and 4 lanes \
             with 16 reads in flight each (1 at less than 10,000 IOPS) against a limit of the namespace, on two reactors: the difference to the limit. Target and hosts have \
             a core each; the noisy host shares that of the quiet one, as both would share a network card.",
    claims: &[Claim {
        source: "SPDK, bdev_set_qos_limit",
        says: "Limits of a bdev in steps of 1,000 IOPS and 1 MiB/s, in time slices of 1 ms; none for a host, and no guaranteed rate.",
        number: "1,000 IOPS",
        ours: "error_1000iops_percent",
    }],
    machines: Machines::Here("the limits are set through the control socket of a target on this machine"),
    judged_by: "p99_us",
    columns: "p50_us p99_us iops noisy_iops error_percent",
};

#[derive(Clone, Copy, Debug, PartialEq)]
struct Setting {
    noisy: &'static [&'static str],
    quiet: &'static [&'static str],
    is_noisy: bool,
}

/// Hosts beside each other, and the accuracy of limits.
#[derive(Debug, Default)]
pub(crate) struct Qos {
    served: Kept<u32, Controlled>,
}

/// A target with its control socket.
#[derive(Debug)]
struct Controlled {
    served: Served,
    directory: TempDir,
}

/// Options of the host of this number.
fn options_of(number: u8) -> Options {
    Options::default().with_identity(Some(HostIdentity::from_uuid(Uuid::from_bytes([number; 16]))))
}

fn name_of(number: u8) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", Uuid::from_bytes([number; 16]))
}

const QUIET: u8 = 1;
const NOISY: u8 = 2;

impl Controlled {
    fn start(bench: &Bench, reactors: u32) -> Result<Self, Error> {
        let directory = tempfile::Builder::new().prefix("nvlane-study-").tempdir();
        let directory = directory.doing("a directory for the control socket")?;
        let socket = directory.path().join("control.sock").display().to_string();
        let mut options = ServedOptions::of(["null:1T"]);
        options.arguments = vec!["--control".into(), socket];
        let served = match reactors {
            1 => bench.serve_with(options)?,
            // One on each core that there is, that of the load included: they wait most of the time.
            _ => Served::start(&bench.program, &options)?,
        };
        Ok(Self { served, directory })
    }

    /// Runs `nvlane ctl`.
    fn ctl(&self, bench: &Bench, words: &[&str]) -> Result<(), Error> {
        let socket = self.directory.path().join("control.sock");
        let output =
            Command::new(&bench.program).arg("ctl").arg("--control").arg(socket).args(words).output();
        let output = output.doing("nvlane ctl")?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Error::Target(format!("refuses: {}", String::from_utf8_lossy(&output.stderr)))),
        }
    }

    /// Sets the limits of a host: these, and no others.
    fn limit_host(&self, bench: &Bench, number: u8, limits: &[&str]) -> Result<(), Error> {
        let name = name_of(number);
        let all = ["iops", "bytes_per_s", "min_iops"].map(|key| ["--unset", key]).concat();
        // It is there with a limit, and goes with its last one.
        self.ctl(bench, &["host", "add", &name, "--iops", "1000000"])?;
        self.ctl(bench, &[&["host", "set", &name], &all[..]].concat())?;
        match limits {
            [] => Ok(()),
            limits => self.ctl(bench, &[&["host", "add", &name], limits].concat()),
        }
    }
}

impl Experiment for Qos {
    fn cells(&self) -> Vec<Cell> {
        let neighbours = NEIGHBOURS.map(|(name, _)| Cell::new(name).with("neighbour", name));
        let unreached = UNREACHED.map(|(name, _)| Cell::new(name).with("host", name));
        let limits = LIMITS.map(|(name, ..)| Cell::new(format!("limit {name}")).with("limit", name));
        neighbours.into_iter().chain(unreached).chain(limits).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        if let Some((_, setting)) = NEIGHBOURS.into_iter().find(|(name, _)| *name == cell.name) {
            let target = self.served.get(1, || Controlled::start(bench, 1))?;
            target.limit_host(bench, QUIET, setting.quiet)?;
            target.limit_host(bench, NOISY, setting.noisy)?;
            return beside(target, bench, setting.is_noisy);
        }
        if let Some((_, limits)) = UNREACHED.into_iter().find(|(name, _)| *name == cell.name) {
            let target = self.served.get(1, || Controlled::start(bench, 1))?;
            target.limit_host(bench, QUIET, limits)?;
            target.limit_host(bench, NOISY, &[])?;
            let mut load = bench.load("randread", None, IO_BYTES, 32);
            load.options = options_of(QUIET);
            return Ok(bench.values_of(&bench.run(&target.served, load)?));
        }
        let (_, limit, rate) = cell.one_of("limit", LIMITS, |limit| limit.0);
        let target = self.served.get(2, || Controlled::start(bench, 2))?;
        let unset = ["iops", "bytes_per_s"].map(|key| ["--unset", key]).concat();
        target.ctl(bench, &[&["namespace", "set", "1"], &unset[..]].concat())?;
        target.ctl(bench, &[&["namespace", "set", "1"], limit].concat())?;
        let mut load = bench.load("randread", None, IO_BYTES, depth_at(rate));
        load.workload.lanes = NOISY_LANES;
        let finished = bench.run(&target.served, load)?;
        let mut values = bench.values_of(&finished);
        let iops = values.get("iops").copied().unwrap_or(0.0);
        values.insert("error_percent", ((iops - rate) / rate).abs() * 100.0);
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let ratio = |cell: &str| measured.ratio(cell, ALONE, "p99_us");
        headlines.push("unused_limits_p99_ratio", measured.ratio(UNUSED, FREE, "p99_us"), Some(UNUSED_P99));
        headlines.tell("noisy_p99_ratio", ratio(BESIDE));
        headlines.tell("limited_p99_ratio", ratio(LIMITED));
        headlines.tell("guaranteed_p99_ratio", ratio(GUARANTEED));
        for (name, ..) in LIMITS {
            let key = name.to_lowercase().replace("/s", "").replace([' ', ','], "");
            let error = measured.median(&format!("limit {name}"), "error_percent");
            headlines.push(format!("error_{key}_percent"), error, Some(ERROR));
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = || NEIGHBOURS.map(|(name, _)| name.to_owned());
        let of = |label: &str, value: &str| bars(label, measured, names(), value);
        let limits = LIMITS.map(|(name, ..)| name.to_owned());
        let errors =
            bars("4 lanes", measured, LIMITS.map(|(name, ..)| format!("limit {name}")), "error_percent");
        vec![
            Figure::new(
                "Latency of the quiet host",
                "2,000 reads of 4 KiB per second. Lower is better.",
                Plot::bars(
                    "",
                    names().into(),
                    Axis::log("µs"),
                    vec![of("p50", "p50_us"), of("p99", "p99_us")],
                ),
            ),
            Figure::new(
                "The noisy host meanwhile",
                "Reads of 4 KiB, 256 in flight.",
                Plot::bars("", names().into(), Axis::log("IOPS"), vec![of("noisy host", "noisy_iops")]),
            ),
            Figure::new(
                "Difference to the limit",
                "4 lanes on two reactors. Lower is better.",
                Plot::bars("", limits.into(), Axis::linear("%"), vec![errors])
                    .with_mark("goal", ERROR.limit()),
            ),
        ]
    }
}

/// The quiet host, beside the noisy one or not.
fn beside(target: &Controlled, bench: &Bench, is_noisy: bool) -> Result<Values, Error> {
    let mut quiet = bench.load("randread", None, IO_BYTES, 32);
    quiet.options = options_of(QUIET);
    quiet.workload.pace = Pace::Open { rate_per_s: QUIET_PER_S, arrival: Arrival::Poisson };
    if !is_noisy {
        return Ok(bench.values_of(&bench.run(&target.served, quiet)?));
    }
    let mut noisy = bench.load("randread", None, IO_BYTES, NOISY_DEPTH);
    noisy.options = options_of(NOISY);
    noisy.workload.lanes = NOISY_LANES;
    // It begins before the quiet one's measurement, and ends behind it. What both take from each other is no disturbance.
    let mut times = bench.times;
    times.measure += 2 * times.warm_up + Duration::from_millis(200);
    times.warm_up = Duration::from_millis(100);
    let loud = Bench { times, lost: Arc::default(), latency: Arc::default(), ..bench.clone() };
    let calm = Bench { lost: Arc::default(), ..bench.clone() };
    let (noise, quiet) = thread::scope(|scope| {
        let noise = scope.spawn(|| loud.run(&target.served, noisy));
        calm.sleep(Duration::from_millis(100));
        let quiet = calm.run(&target.served, quiet);
        (noise.join().expect("the load does not panic"), quiet)
    });
    let mut values = bench.values_of(&quiet?);
    values.insert("noisy_iops", noise?.report.total.iops);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn limits_are_judged_by_what_they_add_and_by_their_error() {
        let headline = headline_of(&Qos::default(), |cell| {
            let p99 = if cell.name == BESIDE { 2000.0 } else { 100.0 };
            let error = if cell.name.ends_with("1,000 IOPS") { 3.0 } else { 0.5 };
            [("p99_us", p99), ("error_percent", error)]
        });
        let of = |key| of_key(&headline, key);
        assert_eq!((of("noisy_p99_ratio").value, of("limited_p99_ratio").value), (20.0, 1.0));
        assert_eq!(of("unused_limits_p99_ratio").is_reached(), Some(true));
        assert_eq!(of("error_1000iops_percent").is_reached(), Some(false));
        assert_eq!(of("error_100mib_percent").is_reached(), Some(true));
    }
}
