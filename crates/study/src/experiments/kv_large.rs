//! `kv-large`: values from a kibibyte on.

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

const VALUE_BYTES: [u64; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const KINDS: [&str; 2] = ["get", "set"];

/// Bytes of all values together.
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
            method: "Retrieves and Stores of values from 1 KiB to 1 MiB, as long as one command moves, 128 MiB of them in all, up to 32 and 4 MiB in flight on \
                     one lane, one core for each side.",
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
                self.pairs.push((bytes, Pairs::serve(bench, ServedOptions::of(["kv:ram:512M"]))?));
                self.pairs.len() - 1
            }
        };
        let load = KeyValueLoad {
            mix: cell.text("kind").parse::<Mix>().expect("a mix of one kind"),
            keys: TOTAL_BYTES / bytes,
            sizes: Sizes::one(u32::try_from(bytes).expect("at most a transfer")),
            depth: u16::try_from((FLIGHT_BYTES / bytes).clamp(4, 32)).expect("at most 32"),
            ..KeyValueLoad::default()
        };
        Ok(values(&self.pairs[at].1.run(bench, load)?))
    }

    fn headline(&self, measured: &Measured) -> Vec<Headline> {
        let mut headlines = Headlines::default();
        for kind in KINDS {
            let rate = measured.median(&cell_name(kind, 1 << 20), "mib_per_s");
            headlines.push(format!("{kind}_1m_mib_per_s"), rate, None);
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
                ticks(&VALUE_BYTES, |bytes| format!("{}k", bytes >> 10)),
                Axis::linear("MiB/s"),
                KINDS.map(over).into(),
            ),
        }]
    }
}

fn cell_name(kind: &str, bytes: u64) -> String {
    format!("{kind} {} KiB", bytes >> 10)
}
