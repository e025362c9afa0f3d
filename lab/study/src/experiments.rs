//! The experiments, one file each, and figures that several of them draw.

pub(crate) mod ablation;
pub(crate) mod adq;
pub(crate) mod adq_memcached;
pub(crate) mod affinity;
pub(crate) mod batch_sweep;
pub(crate) mod busy_poll;
pub(crate) mod ceiling;
pub(crate) mod ceph;
pub(crate) mod connections;
pub(crate) mod copies;
pub(crate) mod core_latency;
pub(crate) mod core_scaling;
pub(crate) mod cost;
pub(crate) mod digests;
pub(crate) mod generator;
pub(crate) mod idle;
pub(crate) mod inline_send;
pub(crate) mod iosize;
pub(crate) mod kv_accesses;
pub(crate) mod kv_allocation;
pub(crate) mod kv_atomics;
pub(crate) mod kv_batching;
pub(crate) mod kv_cache;
pub(crate) mod kv_clients;
pub(crate) mod kv_hit_ratio;
pub(crate) mod kv_hot_keys;
pub(crate) mod kv_large;
pub(crate) mod kv_memory;
pub(crate) mod kv_neighbour;
pub(crate) mod kv_peers;
pub(crate) mod kv_scaling;
pub(crate) mod kv_vector;
pub(crate) mod kv_ycsb;
pub(crate) mod layers;
pub(crate) mod low_load_latency;
pub(crate) mod mixed_lanes;
pub(crate) mod mtu;
pub(crate) mod programs;
pub(crate) mod qos;
pub(crate) mod stacks;
pub(crate) mod tls;

/// Imports of every experiment.
mod prelude {
    pub(super) use super::{IN_CAPSULE_BYTES, IO_BYTES, against, bars, line};
    pub(super) use crate::bench::Bench;
    pub(super) use crate::error::Doing;
    pub(super) use crate::experiment::{About, Cell, Claim, Error, Experiment, Machines, Values};
    pub(super) use crate::figure::{Axis, Figure, Plot, Point, Series, ticks};
    pub(super) use crate::headline::{Bar, Headlines};
    pub(super) use crate::kept::Kept;
    pub(super) use crate::load_values::{batch_values, us, values};
    pub(super) use crate::measured::{CellRounds, Measured};
    pub(super) use crate::served::Served;
    pub(super) use crate::served_options::ServedOptions;
    pub(super) use crate::table::{Row, Table};
    pub(super) use crate::target_options::{Spin, TargetTuning};
}

use crate::figure::Series;
use crate::measured::{CellRounds, Measured};

/// Default size of an operation, bytes.
pub(crate) const IO_BYTES: u32 = 4096;

/// In-capsule data size of the target, bytes.
pub(crate) const IN_CAPSULE_BYTES: u32 = 8192;

/// A series of a value over a numeric parameter of the cells.
fn line<'a>(name: &str, cells: impl Iterator<Item = &'a CellRounds>, x: &str, value: &str) -> Series {
    let cells: Vec<_> = cells.map(|cell| (cell.cell.number(x) as f64, cell)).collect();
    Series::new(name, cells.iter().map(|(x, cell)| (*x, cell.spread(value))))
        .with_discarded(cells.iter().map(|(x, cell)| (*x, cell.discarded_spread(value))))
}

/// A series of a value over another value that was measured with it.
fn against<'a>(
    name: &str,
    cells: impl IntoIterator<Item = &'a CellRounds>,
    (x, value): (&str, &str),
) -> Series {
    let cells: Vec<_> = cells.into_iter().collect();
    let place = |cell: &&CellRounds| Some((cell.median(x)?, cell.spread(value)));
    let discarded =
        |cell: &&CellRounds| Some((cell.discarded_spread(x)?.median, cell.discarded_spread(value)));
    Series::new(name, cells.iter().filter_map(place)).with_discarded(cells.iter().filter_map(discarded))
}

/// A value of the cells with these names, one bar for each, without cells that have none.
fn bars(name: &str, measured: &Measured, cells: impl IntoIterator<Item = String>, value: &str) -> Series {
    let cells: Vec<_> =
        cells.into_iter().enumerate().map(|(index, cell)| (index as f64, measured.cell(&cell))).collect();
    Series::new(name, cells.iter().map(|(x, cell)| (*x, cell.and_then(|cell| cell.spread(value)))))
        .with_discarded(
            cells.iter().map(|(x, cell)| (*x, cell.and_then(|cell| cell.discarded_spread(value)))),
        )
}

/// Shared code of the experiments' tests.
#[cfg(test)]
mod testing {
    use super::prelude::*;
    use crate::headline::Headline;
    use crate::measured::of_rounds;

    /// The headline numbers of an experiment each of whose cells was measured once.
    pub(super) fn headline_of<const N: usize>(
        experiment: &dyn Experiment,
        values: impl Fn(&Cell) -> [(&'static str, f64); N],
    ) -> Vec<Headline> {
        let rounds = |cell: Cell| {
            let round = values(&cell).to_vec();
            (cell, vec![round])
        };
        experiment.headline(&of_rounds(experiment.cells().into_iter().map(rounds).collect()))
    }

    /// The headline number with this key.
    pub(super) fn of_key<'a>(headline: &'a [Headline], key: &str) -> &'a Headline {
        headline.iter().find(|headline| headline.key == key).expect("a number with this key")
    }
}
