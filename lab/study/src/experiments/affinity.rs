//! `affinity`: the effect of the cores that threads run on, and of the reactor that serves a lane.

use super::prelude::*;
use crate::target_options::Placement;

const DEPTHS: [u32; 2] = [1, 32];

/// Each side on a separate core.
const PINNED: &str = "a core each";
/// The scheduler chooses the core of the host's thread.
const FREE: &str = "host anywhere";
/// The lane is placed by its queue identifier: on the reactor that shares its core with no other thread.
const QUEUE: &str = "placed by queue";
/// The lane is placed by load.
const LOAD: &str = "placed by load";
/// The lane is placed by the core that receives its packets: over loopback that of the host, which both then share.
const CPU: &str = "placed by cpu";

const VARIANTS: [&str; 5] = [PINNED, FREE, QUEUE, LOAD, CPU];

pub(crate) const ABOUT: About = About {
    name: "affinity",
    title: "What do pinned threads and the placement of lanes gain?",
    method: "One lane, reads of 4 KiB, one and 32 in flight. The target has one core. The host's thread is tied to another \
             one, or left to the scheduler. Then the target has a reactor on each of the two cores, the host's thread is \
             on the second, and the lane is placed by policy: by its queue's number (a core of its own), by load (the \
             target cannot know that the host's thread is there), or by the core that takes its packets in, which over loopback is \
             the host's own: there each must wait for the other to sleep. The column reactor shows where the lane was. Between two machines the reactors have the first two \
             cores of the study server, and no core is shared; with one core there the placements are left out.",
    claims: &[
        Claim {
            source: "Sagi Grimberg, NVMe over TCP optimisations (2021)",
            says: "I/O threads of each queue map aligned with the application's core: 10 % less latency at depth 1.",
            number: "10 %",
            ours: "gain_qd1",
        },
        Claim {
            source: "Sagi Grimberg, NVMe over TCP optimisations (2021)",
            says: "The same at depth 32: 179,000 operations per second became 231,000.",
            number: "1.29 times",
            ours: "gain_qd32",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops p50_us p99_us p999_us reactor host_us target_us",
};

/// The same load with threads and lanes on different cores.
#[derive(Debug, Default)]
pub(crate) struct Affinity {
    served: Kept<(), Served>,
    /// Targets with a reactor on each core, by placement policy.
    placing: Kept<Placement, Served>,
}

/// The placement policy of a variant, if it has one.
fn policy(variant: &str) -> Option<Placement> {
    match variant {
        QUEUE => Some(Placement::Queue),
        LOAD => Some(Placement::Load),
        CPU => Some(Placement::Cpu),
        _ => None,
    }
}

impl Affinity {
    /// Starts a target with a reactor on the target's core, and another on the host's; on a study server with one on each of
    /// its first two cores.
    fn placing(&mut self, bench: &Bench, policy: Placement) -> Result<&Served, Error> {
        let make = || {
            let tuning = TargetTuning { placement: Some(policy), ..TargetTuning::default() };
            let options = ServedOptions { tells: true, ..ServedOptions::of(["null:1T"]) }.tuned(tuning);
            if bench.is_remote() {
                return bench.serve_with(options.on_cores(2));
            }
            let cores = bench.cores.map(|cores| format!("{},{}", cores.target, cores.host));
            let arguments = cores.map(|cores| vec!["--cores".to_owned(), cores]).unwrap_or_default();
            Served::start(&bench.program, &ServedOptions { arguments, ..options })
        };
        Ok(self.placing.get(policy, make)?)
    }
}

impl Experiment for Affinity {
    fn cells(&self) -> Vec<Cell> {
        let of = |depth: u32, variant| {
            Cell::new(cell_name(depth, variant)).with("depth", depth).with("place", variant)
        };
        DEPTHS.into_iter().flat_map(|depth| VARIANTS.map(|variant| of(depth, variant))).collect()
    }

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        let has_two = bench.server.as_ref().is_none_or(|server| server.machine.cores.len() > 1);
        has_two || policy(cell.text("place")).is_none()
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        bench.check_cores()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let mut load = bench.load("randread", None, IO_BYTES, cell.word("depth"));
        let place = cell.text("place");
        if let Some(policy) = policy(place) {
            let served = self.placing(bench, policy)?;
            let before = placed(served)?;
            let mut values = values(&bench.run(served, load)?.report);
            let after = placed(served)?;
            let reactor = (0u8..).zip(after.iter().zip(&before)).find(|(_, (after, before))| after > before);
            values.extend(reactor.map(|(reactor, _)| ("reactor", f64::from(reactor))));
            return Ok(values);
        }
        let one = || bench.serve_with(ServedOptions::of(["null:1T"]).on_cores(1));
        let served = self.served.get((), one)?;
        if place == FREE {
            load.cores.clear();
        }
        Ok(values(&bench.run(served, load)?.report))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (key, better, other) in [
            ("gain", PINNED, FREE),
            ("right_over_wrong_core", QUEUE, CPU),
            ("load_over_wrong_core", LOAD, CPU),
        ] {
            for depth in DEPTHS {
                let gain = measured.ratio(&cell_name(depth, better), &cell_name(depth, other), "iops");
                headlines.tell(format!("{key}_qd{depth}"), gain);
            }
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, note: &str, y: Axis, value: &str| {
            let names = DEPTHS.map(|depth| format!("depth {depth}")).to_vec();
            let of =
                |variant: &str| bars(variant, measured, DEPTHS.map(|depth| cell_name(depth, variant)), value);
            Figure::new(title, note, Plot::bars("", names, y, VARIANTS.map(of).into()))
        };
        vec![
            figure("Speed", "Operations per second. Higher is better.", Axis::log("IOPS"), "iops"),
            figure(
                "Latency",
                "What 99 % of the operations stay below. Lower is better.",
                Axis::log("p99 µs"),
                "p99_us",
            ),
        ]
    }
}

/// Number of I/O lanes that each reactor has served.
fn placed(served: &Served) -> Result<Vec<u64>, Error> {
    let state = served.state()?;
    let reactors = state["reactors"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(reactors.iter().map(|reactor| reactor["io_lanes_ever"].as_u64().unwrap_or(0)).collect())
}

fn cell_name(depth: u32, variant: &str) -> String {
    format!("qd{depth} {variant}")
}
