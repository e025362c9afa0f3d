//! `affinity`: whether it matters which thread runs where.

use super::{IO_BYTES, bars};
use crate::bench::{Bench, values};
use crate::experiment::{About, Cell, Claim, Error, Experiment, Values};
use crate::figure::{Axis, Figure, Plot};
use crate::headline::{Headline, Headlines};
use crate::measured::Measured;
use crate::served::Served;

const DEPTHS: [u32; 2] = [1, 32];

/// Each side on a core of its own.
const PINNED: &str = "a core each";
/// The host's thread runs where the system puts it.
const FREE: &str = "host anywhere";
/// Both on one core.
const TOGETHER: &str = "one core for both";

const VARIANTS: [&str; 3] = [PINNED, FREE, TOGETHER];

/// The same load from threads in different places.
#[derive(Debug, Default)]
pub(crate) struct Affinity {
    served: Option<Served>,
}

impl Experiment for Affinity {
    fn about(&self) -> About {
        About {
            name: "affinity",
            title: "What is it worth to keep threads where they are?",
            method: "One lane, reads of 4 KiB, one and 32 in flight. The target has one core. The host's thread is tied to another \
                     one; left to the scheduler; or tied to the target's own core, where each must wait for the other to sleep.",
            claims: vec![
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
            judged_by: "iops",
            columns: &["iops", "p50_us", "p99_us", "p999_us", "host_us", "target_us"],
        }
    }

    fn cells(&self) -> Vec<Cell> {
        let of = |depth: u32, variant| {
            Cell::new(cell_name(depth, variant)).with("depth", depth).with("place", variant)
        };
        DEPTHS.into_iter().flat_map(|depth| VARIANTS.map(|variant| of(depth, variant))).collect()
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        match bench.cores {
            Some(_) => Ok(()),
            None => Err(Error::Lacking("this needs two cores, and there is one for us".into())),
        }
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let served = match &mut self.served {
            Some(served) => served,
            none => none.insert(bench.serve()?),
        };
        let mut load = bench.load("randread", None, IO_BYTES, cell.word("depth"));
        match cell.text("place") {
            FREE => load.cores.clear(),
            TOGETHER => load.cores = bench.cores.map(|cores| cores.target).into_iter().collect(),
            _ => {}
        }
        Ok(values(&bench.run(served, load)?.report))
    }

    fn headline(&self, measured: &Measured) -> Vec<Headline> {
        let mut headlines = Headlines::default();
        for (key, other) in [("gain", FREE), ("gain_over_one_core", TOGETHER)] {
            for depth in DEPTHS {
                let gain = measured.ratio(&cell_name(depth, PINNED), &cell_name(depth, other), "iops");
                headlines.push(format!("{key}_qd{depth}"), gain.map(|gain| gain.median), None);
            }
        }
        headlines.into_vec()
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, note: &str, y: Axis, value: &str| {
            let names = DEPTHS.map(|depth| format!("depth {depth}")).to_vec();
            let of =
                |variant: &str| bars(variant, measured, DEPTHS.map(|depth| cell_name(depth, variant)), value);
            Figure {
                title: title.into(),
                note: note.into(),
                plot: Plot::bars("", names, y, VARIANTS.map(of).into()),
            }
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

fn cell_name(depth: u32, variant: &str) -> String {
    format!("qd{depth} {variant}")
}
