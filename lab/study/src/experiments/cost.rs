//! `cost`: the processor time of an operation, and its energy where the processor counts it.

use load::key_value::KeyValueLoad;

use super::prelude::*;
use crate::key_value::{self, Pairs};
use crate::power::Power;
use crate::words::words;

/// Reads or writes of blocks.
struct Blocks {
    name: &'static str,
    pattern: &'static str,
    io_bytes: u32,
    depth: u32,
}

const BLOCKS: [Blocks; 5] = [
    Blocks { name: "read 4k qd1", pattern: "randread", io_bytes: 4 << 10, depth: 1 },
    Blocks { name: "read 4k qd128", pattern: "randread", io_bytes: 4 << 10, depth: 128 },
    Blocks { name: "write 4k qd128", pattern: "randwrite", io_bytes: 4 << 10, depth: 128 },
    Blocks { name: "read 128k qd32", pattern: "randread", io_bytes: 128 << 10, depth: 32 },
    Blocks { name: "write 128k qd32", pattern: "randwrite", io_bytes: 128 << 10, depth: 32 },
];

/// Batches of 256 gets, four in flight.
const GETS: &str = "get in 256";
const BATCH: u16 = 256;
const DEPTH: u16 = 4;

/// Targets that wait for work.
const IDLE: &str = "idle";

pub(crate) const ABOUT: About = About {
    name: "cost",
    title: "What does an operation cost in processor time and energy?",
    method: "One lane, a core for each side: random reads and writes of blocks that have no time of their own (null:1T), and GETs of pairs of 16 \
             and 32 bytes in batches of 256, four in flight. Operations and bytes are for each second of processor time of the target, of the \
             host, and of both together; a side that spins at depth 1 spends its core on waiting. Watts are those of the processor packages of this \
             machine and its memory (RAPL), between two machines of both, the mean of warm-up and measurement, everything else on the machine \
             included: the row idle is what they take while the targets wait. Power supplies, fans and cards are not counted.",
    claims: &[Claim {
        source: "KV-Direct (SOSP 2017)",
        says: "A server with ten cards does 3,417 thousand GETs per second for each watt that it takes; memcached did 5 thousand.",
        number: "3417 per W",
        ours: "kops_per_watt_get_in_256",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "both_ops_per_cpu",
    columns: "target_ops_per_cpu host_ops_per_cpu both_ops_per_cpu target_gb_per_cpu both_gb_per_cpu iops \
              watts joules_per_million",
};

/// The same loads, with the processor's energy counters.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    served: Kept<(), Served>,
    pairs: Kept<(), Pairs>,
    /// The energy counters, or why there are none; `None` before the first measurement.
    power: Option<Result<Power, String>>,
    /// Whether the targets have a study server.
    is_remote: bool,
}

impl Cost {
    fn power(&mut self, bench: &Bench) -> Result<Option<Power>, Error> {
        if self.power.is_none() {
            self.is_remote = bench.is_remote();
            self.power = Some(match Power::open(bench.server.as_ref()) {
                Ok(power) => Ok(power),
                Err(Error::Lacking(reason)) => Err(reason),
                Err(error) => return Err(error),
            });
        }
        Ok(self.power.as_ref().and_then(|power| power.as_ref().ok()).cloned())
    }

    /// Rates and processor time of a row's load; none of an idle row.
    fn load(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let name = cell.text("load");
        if let Some(blocks) = BLOCKS.iter().find(|blocks| blocks.name == name) {
            let served = self.served.get((), || bench.serve())?;
            let load = bench.load(blocks.pattern, None, blocks.io_bytes, blocks.depth);
            let load = values(&bench.run(served, load)?.report);
            let us = |name| load.get(name).copied();
            let mut told = per_core(us("target_us"), us("host_us"), f64::from(blocks.io_bytes));
            told.extend(load.get("iops").map(|iops| ("iops", *iops)));
            return Ok(told);
        }
        let pairs = self.pairs.get((), || Pairs::serve(bench, ServedOptions::of(["kv:ram:256M"])))?;
        let load = KeyValueLoad {
            mix: key_value::mix("get"),
            batch: BATCH,
            depth: DEPTH,
            ..KeyValueLoad::default()
        };
        if name == IDLE {
            pairs.fill(bench, load)?;
            self.served.get((), || bench.serve())?;
            bench.sleep(bench.times.warm_up + bench.times.measure);
            return Ok(Values::new());
        }
        let load = key_value::values(&pairs.run(bench, load)?);
        let us = |name| load.get(name).map(|ns| ns / 1e3);
        let mut told = per_core(us("target_ns"), us("host_ns"), 32.0);
        told.extend(load.get("ops").map(|ops| ("iops", *ops)));
        Ok(told)
    }
}

impl Experiment for Cost {
    fn cells(&self) -> Vec<Cell> {
        let names = BLOCKS.iter().map(|blocks| blocks.name).chain([GETS, IDLE]);
        names.map(|name| Cell::new(name).with("load", name)).collect()
    }

    fn conditions(&self, _: &Measured) -> Option<String> {
        match self.power.as_ref()? {
            Err(reason) => Some(format!("Watts are n/a: {reason}.")),
            Ok(power) if self.is_remote && power.is_of_one() => Some(
                "Watts are those of one machine: the study server runs on the machine of the load."
                    .to_owned(),
            ),
            Ok(_) => None,
        }
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let power = self.power(bench)?;
        let before = power.as_ref().map(Power::read).transpose()?;
        let mut values = self.load(cell, bench)?;
        let after = power.as_ref().map(Power::read).transpose()?;
        if let (Some(power), Some(before), Some(after)) = (&power, &before, &after) {
            let watts = power.watts(before, after);
            values.insert("watts", watts);
            let rate = values.get("iops").copied().filter(|rate| *rate > 0.0);
            values.extend(rate.map(|rate| ("joules_per_million", watts / rate * 1e6)));
        }
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let names = || BLOCKS.iter().map(|blocks| blocks.name).chain([GETS]);
        for (begins, value) in [
            ("ops_per_cpu_of_target", "target_ops_per_cpu"),
            ("ops_per_cpu_of_both", "both_ops_per_cpu"),
            ("gb_per_cpu_of_target", "target_gb_per_cpu"),
            ("joules_per_million", "joules_per_million"),
        ] {
            for name in names() {
                headlines.tell(format!("{begins}_{}", key(name)), measured.median(name, value));
            }
        }
        headlines.tell("watts_idle", measured.median(IDLE, "watts"));
        for name in names() {
            headlines.tell(format!("watts_{}", key(name)), measured.median(name, "watts"));
        }
        let rate = measured.median(GETS, "iops").zip(measured.median(GETS, "watts"));
        headlines.tell("kops_per_watt_get_in_256", rate.map(|(rate, watts)| rate / watts / 1e3));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let cells = || BLOCKS.iter().map(|blocks| blocks.name).chain([GETS]).map(str::to_owned);
        let names = || cells().map(|name| words(&key(&name)));
        let sides = [("target", "target"), ("host", "host"), ("both together", "both")];
        let of_sides = |ending: &str| {
            let of =
                |(label, side): (&str, &str)| bars(label, measured, cells(), &format!("{side}_{ending}"));
            sides.map(of).to_vec()
        };
        let watts = bars("watts", measured, cells().chain([IDLE.to_owned()]), "watts");
        let joules = bars("joules", measured, cells(), "joules_per_million");
        let figure = |title: &str, note: &str, names: Vec<String>, y: Axis, series: Vec<Series>| {
            Figure::new(title, note, Plot::bars("", names, y, series))
        };
        vec![
            figure(
                "Operations per core",
                "For each second of processor time. Higher is better.",
                names().collect(),
                Axis::log("operations per core"),
                of_sides("ops_per_cpu"),
            ),
            figure(
                "Bytes per core",
                "Payload for each second of processor time. Higher is better.",
                names().collect(),
                Axis::log("GB/s per core"),
                of_sides("gb_per_cpu"),
            ),
            figure(
                "Power",
                "Of the processor packages and their memory, everything on the machine included. No data: the reason stands above.",
                names().chain([IDLE.to_owned()]).collect(),
                Axis::linear("watts"),
                vec![watts],
            ),
            figure(
                "Energy of a million operations",
                "Of the same, idle power included. Lower is better. No data: the reason stands above.",
                names().collect(),
                Axis::log("joules"),
                vec![joules],
            ),
        ]
    }
}

/// Operations and bytes for each second of processor time of each side, from the time that an operation takes there.
fn per_core(target_us: Option<f64>, host_us: Option<f64>, bytes: f64) -> Values {
    let both_us = target_us.zip(host_us).map(|(target, host)| target + host);
    let mut values = Values::new();
    for (us, ops, gb) in [
        (target_us, "target_ops_per_cpu", "target_gb_per_cpu"),
        (host_us, "host_ops_per_cpu", "host_gb_per_cpu"),
        (both_us, "both_ops_per_cpu", "both_gb_per_cpu"),
    ] {
        if let Some(us) = us.filter(|us| *us > 0.0) {
            values.insert(ops, 1e6 / us);
            values.insert(gb, bytes / us / 1e3);
        }
    }
    values
}

/// The name of a row as part of a key: `read 4k qd1` is `read_4k_qd1`.
fn key(name: &str) -> String {
    name.replace(' ', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::energy::example::zone;
    use crate::experiments::testing::{headline_of, of_key};
    use crate::power::example;

    #[test]
    fn a_side_does_as_many_operations_as_its_time_has_room_for() {
        let values = per_core(Some(2.0), Some(3.0), 4096.0);
        assert_eq!((values["target_ops_per_cpu"], values["both_ops_per_cpu"]), (5e5, 2e5));
        assert_eq!((values["target_gb_per_cpu"], values["both_gb_per_cpu"]), (2.048, 0.8192));
        let half = per_core(None, Some(4.0), 4096.0);
        assert_eq!((half.len(), half["host_ops_per_cpu"]), (2, 2.5e5));
    }

    #[test]
    fn energy_is_told_where_it_was_measured_and_the_reason_where_not() {
        let cost = Cost { power: Some(Err("no counters".into())), ..Cost::default() };
        assert_eq!(cost.conditions(&Measured::default()).unwrap(), "Watts are n/a: no counters.");
        let directory = tempfile::tempdir().unwrap();
        zone(directory.path(), "intel-rapl:0", "package-0", 1);
        let of = |is_remote| Cost {
            power: Some(Ok(example::here(directory.path()))),
            is_remote,
            ..Cost::default()
        };
        assert_eq!(of(false).conditions(&Measured::default()), None);
        assert!(of(true).conditions(&Measured::default()).unwrap().contains("those of one machine"));
        let headline = headline_of(&cost, |cell| {
            [("target_ops_per_cpu", 1e6), ("iops", f64::from(cell.name.len() == 10))]
        });
        assert_eq!(of_key(&headline, "ops_per_cpu_of_target_read_4k_qd1").value, 1e6);
        assert!(!headline.iter().any(|known| known.key.contains("watt") || known.key.contains("joules")));
        let headline = headline_of(&cost, |cell| {
            let watts = if cell.name == IDLE { 30.0 } else { 50.0 };
            [("watts", watts), ("iops", 5e6), ("joules_per_million", watts / 5.0)]
        });
        assert_eq!(
            (of_key(&headline, "watts_idle").value, of_key(&headline, "watts_get_in_256").value),
            (30.0, 50.0)
        );
        assert_eq!(of_key(&headline, "kops_per_watt_get_in_256").value, 100.0);
        assert_eq!(of_key(&headline, "joules_per_million_read_4k_qd128").value, 10.0);
    }
}
