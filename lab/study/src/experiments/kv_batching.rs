//! `kv-batching`: from one operation to hundreds in a capsule.

use load::key_value::KeyValueLoad;

use super::prelude::*;
use crate::key_value::{Pairs, mix, values};

const KINDS: [&str; 3] = ["get", "set", "add"];
const SIZES: [u32; 4] = [1, 16, 64, 256];

/// Batches in flight.
const BATCH_DEPTH: u16 = 4;
/// Commands in flight that carry one operation each: as many operations as the largest batches have.
const SINGLE_DEPTH: u16 = 1023;

const GAIN: Bar = Bar::AtLeast(10.0);

pub(crate) const ABOUT: About = About {
    name: "kv-batching",
    title: "What do many key-value operations in one capsule save?",
    method: "Gets, sets and increments on 100,000 keys of 16 bytes, values of 32, one lane, one core for each side. Batches of 16 to 256: \
             one pair of commands for all of them, four batches in flight. Single: one command for each operation, as many \
             operations in flight as in batches of 256, which share sends and receives already; or, sparse, as many commands \
             in flight as batches. Speed is for each second of the target's processor time, and the target never spins: what it \
             waits for the load is not counted. Latency is from the submission of a batch to the completion of all of it: at that speed, and \
             alone, with one batch or one command in flight and a target that spins while that pays, which is what an operation more in the \
             capsule costs.",
    claims: &[
        Claim {
            source: "KV-Direct (SOSP 2017)",
            says: "Batching on the client's side: up to four times the throughput.",
            number: "4 times",
            ours: "get_256_over_single",
        },
        Claim {
            source: "KV-Direct (SOSP 2017)",
            says: "Batching on the client's side: less than a microsecond more latency.",
            number: "< 1 µs",
            ours: "get_16_batch_added_p50_us",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "ops_per_cpu",
    columns: "ops_per_cpu ops target_ns host_ns p50_us p99_us",
};

/// The operations in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    /// As much as one lane carries.
    Full,
    /// As many single commands as there are batches otherwise.
    Sparse,
    /// One batch, or one command.
    Alone,
}

impl Flight {
    const ALL: [Self; 3] = [Self::Full, Self::Sparse, Self::Alone];

    const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Sparse => "sparse",
            Self::Alone => "alone",
        }
    }

    fn of(cell: &Cell) -> Self {
        cell.one_of("flight", Self::ALL, |flight| flight.name())
    }

    /// Batches, or single commands, in flight.
    const fn depth(self, batch: u16) -> u16 {
        match (self, batch) {
            (Self::Full, 1) => SINGLE_DEPTH,
            (Self::Full | Self::Sparse, _) => BATCH_DEPTH,
            (Self::Alone, _) => 1,
        }
    }
}

/// The same operations in separate commands, and in batches.
#[derive(Debug, Default)]
pub(crate) struct KvBatching {
    /// A target that never spins, and one that does while that pays, for single operations.
    pairs: Kept<bool, Pairs>,
}

impl Experiment for KvBatching {
    fn cells(&self) -> Vec<Cell> {
        let of = |flight: Flight, kind: &'static str, size: u32| {
            let cell = Cell::new(cell_name(flight, kind, size)).with("kind", kind).with("batch", size);
            cell.with("flight", flight.name())
        };
        let of_kind = |kind: &'static str| {
            let full = SIZES.map(|size| of(Flight::Full, kind, size));
            let alone = SIZES.map(|size| of(Flight::Alone, kind, size));
            full.into_iter().chain([of(Flight::Sparse, kind, 1)]).chain(alone)
        };
        KINDS.into_iter().flat_map(of_kind).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let flight = Flight::of(cell);
        let is_alone = flight == Flight::Alone;
        let pairs = self.pairs.get(is_alone, || {
            let spin = (!is_alone).then_some(Spin::Never);
            let tuning = TargetTuning { spin, ..TargetTuning::default() };
            Pairs::serve(bench, ServedOptions::of(["kv:ram:256M"]).tuned(tuning))
        })?;
        let batch = u16::try_from(cell.number("batch")).expect("batches of ours");
        let mix = mix(cell.text("kind"));
        let load = KeyValueLoad { mix, batch, depth: flight.depth(batch), ..KeyValueLoad::default() };
        let mut values = values(&pairs.run(bench, load)?);
        if is_alone {
            // The processor time of a target that spins is that of waiting.
            values.retain(|name, _| !matches!(*name, "ops_per_cpu" | "target_ns"));
        }
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let full = |kind, size| cell_name(Flight::Full, kind, size);
        for kind in KINDS {
            for size in [16, 64, 256] {
                let gain = measured.ratio(&full(kind, size), &full(kind, 1), "ops_per_cpu");
                let bar = (size == 256).then_some(GAIN);
                headlines.push(format!("{kind}_{size}_over_single"), gain, bar);
            }
            let sparse = cell_name(Flight::Sparse, kind, 1);
            let gain = measured.ratio(&full(kind, 256), &sparse, "ops_per_cpu");
            headlines.tell(format!("{kind}_256_over_sparse"), gain);
            let alone = |size| cell_name(Flight::Alone, kind, size);
            for size in [16, 64, 256] {
                for value in ["p50_us", "p99_us"] {
                    let added = measured.difference(&alone(size), &alone(1), value);
                    headlines.tell(format!("{kind}_{size}_batch_added_{value}"), added);
                }
            }
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = KINDS.map(str::to_owned).to_vec();
        let of = |size: u32| {
            let name = if size == 1 { "single".to_owned() } else { format!("batches of {size}") };
            bars(&name, measured, KINDS.map(|kind| cell_name(Flight::Full, kind, size)), "ops_per_cpu")
        };
        let sparse = KINDS.map(|kind| cell_name(Flight::Sparse, kind, 1));
        let sparse = bars("single, sparse", measured, sparse, "ops_per_cpu");
        let latency = |title: &str, note: &str, flight: Flight, value: &str| {
            let of = |kind: &str| {
                let cells = SIZES.iter().filter_map(|&size| measured.cell(&cell_name(flight, kind, size)));
                line(kind, cells, "batch", value)
            };
            let sizes = ticks(&SIZES.map(u64::from), |size| size.to_string());
            let x = Axis::log("operations in a capsule");
            Figure::new(title, note, Plot::lines(x, sizes, Axis::log("µs"), KINDS.map(of).into()))
        };
        let alone = "From the submission of a batch to the completion of all of it, nothing else in flight. Lower is better.";
        let full = "The same with four batches in flight, or 1,023 single commands: most of it is waiting. Lower is better.";
        vec![
            Figure::new(
                "Speed per core of the target",
                "Operations for each second of the target's processor time. Higher is better.",
                Plot::bars(
                    "",
                    names,
                    Axis::log("operations per core"),
                    [sparse].into_iter().chain(SIZES.map(of)).collect(),
                ),
            ),
            latency("Latency of one batch: p50", alone, Flight::Alone, "p50_us"),
            latency("Latency of one batch: p99", alone, Flight::Alone, "p99_us"),
            latency("Latency at full speed: p50", full, Flight::Full, "p50_us"),
            latency("Latency at full speed: p99", full, Flight::Full, "p99_us"),
        ]
    }
}

fn cell_name(flight: Flight, kind: &str, size: u32) -> String {
    let name = if size == 1 { format!("{kind} single") } else { format!("{kind} in {size}") };
    if flight == Flight::Full { name } else { format!("{name}, {}", flight.name()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn batches_are_compared_with_single_commands() {
        let value = |cell: &Cell| if cell.number("batch") == 256 { 12e6 } else { 1e6 };
        let headline = headline_of(&KvBatching::default(), |cell| [("ops_per_cpu", value(cell))]);
        let of = |key| of_key(&headline, key);
        assert_eq!(
            (of("get_256_over_single").value, of("get_256_over_single").is_reached()),
            (12.0, Some(true))
        );
        assert_eq!((of("add_16_over_single").value, of("add_16_over_single").is_reached()), (1.0, None));
    }

    #[test]
    fn what_a_batch_adds_is_told_of_batches_that_are_alone() {
        let headline = headline_of(&KvBatching::default(), |cell| {
            let alone_us = 10.0 + f64::from(cell.word("batch")) / 8.0;
            let p50_us = if Flight::of(cell) == Flight::Alone { alone_us } else { 900.0 };
            [("p50_us", p50_us), ("p99_us", 2.0 * p50_us)]
        });
        let of = |key| of_key(&headline, key).value;
        assert_eq!((of("get_16_batch_added_p50_us"), of("get_16_batch_added_p99_us")), (1.875, 3.75));
        assert_eq!(of("add_256_batch_added_p50_us"), 31.875);
    }

    #[test]
    fn batches_and_single_commands_have_as_many_operations_in_flight() {
        let depth = |flight: Flight, batch| flight.depth(batch);
        assert_eq!((depth(Flight::Full, 256), depth(Flight::Full, 1)), (4, 1023));
        assert_eq!((depth(Flight::Sparse, 1), depth(Flight::Alone, 1), depth(Flight::Alone, 64)), (4, 1, 1));
    }
}
