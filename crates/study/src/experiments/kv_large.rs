//! `kv-large`: values from a kibibyte to 256 MiB.

use load::key_value::{KeyValueLoad, Mix};
use load::workload::Sizes;

use super::line;
use crate::bench::Bench;
use crate::experiment::{About, Cell, Error, Experiment, Values};
use crate::figure::{Axis, Figure, Plot, ticks};
use crate::headline::{Headline, Headlines};
use crate::key_value::{Pairs, values};
use crate::measured::Measured;
use crate::served::ServedOptions;

const VALUE_BYTES: [u64; 9] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20];
const KINDS: [&str; 2] = ["get", "set"];

/// Bytes of all values together, unless two are longer.
const TOTAL_BYTES: u64 = 128 << 20;

/// Bytes in flight at most.
const FLIGHT_BYTES: u64 = 4 << 20;

/// Gets and sets of larger and larger values, by commands of their own.
#[derive(Debug, Default)]
pub(crate) struct KvLarge {
    /// A target for each length.
    pairs: Vec<(u64, Pairs)>,
}

impl Experiment for KvLarge {
    fn about(&self) -> About {
        About {
            name: "kv-large",
            title: "How fast are large values?",
            method: "Retrieves and Stores of values from 1 KiB to 256 MiB, the longest there are; 128 MiB of them in all or two, up to 32 and 4 MiB or \
                     one in flight on one lane, one core for each side. Beyond 1 MiB they are received in parts and sent from where they lie.",
            claims: Vec::new(),
            judged_by: "mib_per_s",
            columns: &["mib_per_s", "ops", "target_ns", "p50_us", "p99_us"],
        }
    }

    fn cells(&self) -> Vec<Cell> {
        let of = |kind: &'static str, bytes: u64| {
            Cell::new(cell_name(kind, bytes)).with("kind", kind).with("bytes", bytes)
        };
        VALUE_BYTES.into_iter().flat_map(|bytes| KINDS.map(|kind| of(kind, bytes))).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let bytes = cell.number("bytes");
        let at = match self.pairs.iter().position(|(of, _)| *of == bytes) {
            Some(at) => at,
            None => {
                // Room for what is there and for what takes its place, and as much again.
                let namespace = if bytes <= 1 << 20 { "kv:ram:512M" } else { "kv:ram:2G" };
                self.pairs.push((bytes, Pairs::serve(bench, ServedOptions::of([namespace]))?));
                self.pairs.len() - 1
            }
        };
        let load = KeyValueLoad {
            mix: cell.text("kind").parse::<Mix>().expect("a mix of one kind"),
            keys: (TOTAL_BYTES / bytes).max(2),
            sizes: Sizes::one(u32::try_from(bytes).expect("at most 256 MiB")),
            depth: u16::try_from((FLIGHT_BYTES / bytes).clamp(1, 32)).expect("at most 32"),
            ..KeyValueLoad::default()
        };
        Ok(values(&self.pairs[at].1.run(bench, load)?))
    }

    fn headline(&self, measured: &Measured) -> Vec<Headline> {
        let mut headlines = Headlines::default();
        for kind in KINDS {
            for (name, bytes) in [("1m", 1 << 20), ("256m", 256 << 20)] {
                let rate = measured.median(&cell_name(kind, bytes), "mib_per_s");
                headlines.push(format!("{kind}_{name}_mib_per_s"), rate, None);
            }
        }
        headlines.into_vec()
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let over = |kind: &str| {
            let cells = measured.cells.iter().filter(|cell| cell.cell.text("kind") == kind);
            line(kind, cells, "bytes", "mib_per_s")
        };
        vec![Figure {
            title: "Bandwidth".into(),
            note: "Bytes of values. Higher is better.".into(),
            plot: Plot::lines(
                Axis::log("bytes of a value"),
                ticks(&VALUE_BYTES, |bytes| match bytes >> 20 {
                    0 => format!("{}k", bytes >> 10),
                    mebibytes => format!("{mebibytes}M"),
                }),
                Axis::linear("MiB/s"),
                KINDS.map(over).into(),
            ),
        }]
    }
}

fn cell_name(kind: &str, bytes: u64) -> String {
    format!("{kind} {} KiB", bytes >> 10)
}
