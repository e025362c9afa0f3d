//! `kv-vector`: a vector updated in place by one command, element by element, or at the host.

use load::key_value::KeyValueLoad;
use load::workload::Sizes;

use super::prelude::*;
use crate::key_value::{Pairs, mix, values};

const VECTOR_BYTES: [u32; 3] = [64, 512, 4096];

/// Place of the update.
const COMMAND: &str = "vector command";
const BATCH: &str = "vector commands in batches";
const ELEMENTS: &str = "a key for each element";
const FETCH: &str = "retrieve and store";
const WAYS: [&str; 4] = [COMMAND, BATCH, ELEMENTS, FETCH];

const VECTOR_COUNT: u64 = 1000;

/// Vectors updated at once.
const DEPTH: u16 = 32;

/// Vectors of one batch.
const BATCH_SIZE: u16 = 128;

pub(crate) const ABOUT: About = About {
    name: "kv-vector",
    title: "What does updating a vector in place save?",
    method: "Vectors of 64-bit numbers, 64 bytes to 4 KiB, whose elements all grow by one; one lane, one core for each side. By a \
             vector command, 32 in flight; by vector commands in batches of 128; with each element under a key of its own and \
             a fetch-and-add for each, 128 in flight; by a Retrieve, and a Store when it has come, 32 in flight. Speed is in \
             vectors for each second of the target's processor time, and the target never spins.",
    claims: &[
        Claim {
            source: "KV-Direct (SOSP 2017)",
            says: "Vector updates without returning the vector: 11.5 GB/s, against 2.1 with a key for each element.",
            number: "5.5 times",
            ours: "4096_over_elements",
        },
        Claim {
            source: "KV-Direct (SOSP 2017)",
            says: "The same against fetching, computing and storing at the client: 0.03 to 1.4 GB/s.",
            number: "8 times and more",
            ours: "4096_over_fetch",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "vectors_per_cpu",
    columns: "vectors_per_cpu vectors p50_us p99_us",
};

/// Adds one to every element of a vector.
#[derive(Debug, Default)]
pub(crate) struct KvVector {
    /// A target for each length, with vectors of that length.
    pairs: Kept<u32, Pairs>,
}

impl Experiment for KvVector {
    fn cells(&self) -> Vec<Cell> {
        let of = |bytes: u32, way| Cell::new(cell_name(bytes, way)).with("bytes", bytes).with("way", way);
        VECTOR_BYTES.into_iter().flat_map(|bytes| WAYS.map(|way| of(bytes, way))).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let bytes = cell.word("bytes");
        let pairs = self
            .pairs
            .get(bytes, || Pairs::serve(bench, ServedOptions::of(["kv:ram:256M"]).without_spin()))?;
        let elements = u64::from(bytes / 8);
        let load = KeyValueLoad {
            keys: VECTOR_COUNT,
            sizes: Sizes::one(bytes),
            depth: DEPTH,
            ..KeyValueLoad::default()
        };
        let (load, operations) = match cell.text("way") {
            COMMAND => (KeyValueLoad { mix: mix("update"), ..load }, 1),
            BATCH => (KeyValueLoad { mix: mix("update"), batch: BATCH_SIZE, depth: 2, ..load }, 1),
            FETCH => (KeyValueLoad { mix: mix("modify"), ..load }, 1),
            // Counters are created on first use: there is nothing to fill.
            _ => {
                let keys = VECTOR_COUNT * elements;
                (KeyValueLoad { mix: mix("add"), keys, fill: false, depth: 128, ..load }, elements)
            }
        };
        let values = values(&pairs.run(bench, load)?);
        let per_vector = operations as f64;
        let mut told = Values::from([("vectors", values["ops"] / per_vector)]);
        if let Some(rate) = values.get("ops_per_cpu") {
            told.insert("vectors_per_cpu", rate / per_vector);
        }
        told.extend(values.into_iter().filter(|(name, _)| name.ends_with("_us")));
        Ok(told)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for bytes in VECTOR_BYTES {
            let gain = |way, over| {
                let of = |way| cell_name(bytes, way);
                measured.ratio(&of(way), &of(over), "vectors_per_cpu")
            };
            let bar = |least| (bytes == 4096).then_some(Bar::AtLeast(least));
            headlines.push(format!("{bytes}_over_elements"), gain(COMMAND, ELEMENTS), bar(50.0));
            headlines.push(format!("{bytes}_over_fetch"), gain(COMMAND, FETCH), bar(10.0));
            headlines.tell(format!("{bytes}_batch_over_fetch"), gain(BATCH, FETCH));
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = VECTOR_BYTES.map(|bytes| format!("{bytes} bytes")).to_vec();
        let of = |way: &str| {
            bars(way, measured, VECTOR_BYTES.map(|bytes| cell_name(bytes, way)), "vectors_per_cpu")
        };
        vec![Figure::new(
            "Vectors updated per core of the target",
            "Vectors for each second of the target's processor time. Higher is better.",
            Plot::bars("", names, Axis::log("vectors per core"), WAYS.map(of).into()),
        )]
    }
}

fn cell_name(bytes: u32, way: &str) -> String {
    format!("{bytes} B, {way}")
}
