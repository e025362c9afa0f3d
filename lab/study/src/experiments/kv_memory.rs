//! `kv-memory`: the number of pairs that fit into a namespace.

use host::BlockingKeyValue;
use host::{Options, StoreOptions};
use load::key_value::{fill, key};
use wire::status::Status;

use super::prelude::*;

const VALUE_BYTES: [u32; 5] = [4, 32, 100, 500, 4000];

/// Memory of the namespace.
const MEMORY_BYTES: u32 = 64 << 20;

/// Bytes of a key here.
const KEY_BYTES: u32 = 16;

const BYTES_PER_PAIR: Bar = Bar::AtMost(72.0);

pub(crate) const ABOUT: About = About {
    name: "kv-memory",
    title: "How much memory does a pair take?",
    method: "Pairs with keys of 16 bytes and values of 4 to 4,000 are stored in a namespace of 64 MiB without eviction, until one is refused; no \
             setting names their length. All memory, the index included, over the pairs that were stored.",
    claims: &[],
    machines: Machines::OneOrTwo,
    judged_by: "bytes_per_pair",
    columns: "bytes_per_pair overhead_bytes used_percent pairs",
};

/// Stores pairs until a Store is refused.
#[derive(Debug, Default)]
pub(crate) struct KvMemory;

impl Experiment for KvMemory {
    fn cells(&self) -> Vec<Cell> {
        VALUE_BYTES.map(|bytes| Cell::new(cell_name(bytes)).with("value_bytes", bytes)).to_vec()
    }

    fn is_disturbed_by_others(&self, _: &Cell) -> bool {
        false
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let value_bytes = cell.word("value_bytes");
        let pair = value_bytes + KEY_BYTES;
        let spec = format!("kv:ram:{}M?evict=none", MEMORY_BYTES >> 20);
        let served = bench.serve_with(ServedOptions::of([spec]))?;
        let count = store_until_full(bench, served.address(), value_bytes as usize)?;
        served.stop()?;
        let count = count.max(1) as f64;
        let each = f64::from(MEMORY_BYTES) / count;
        Ok(Values::from([
            ("pairs", count),
            ("bytes_per_pair", each),
            ("overhead_bytes", each - f64::from(pair)),
            ("used_percent", f64::from(pair) / each * 100.0),
        ]))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for bytes in VALUE_BYTES {
            let median = measured.median(&cell_name(bytes), "bytes_per_pair");
            let bar = (bytes == 32).then_some(BYTES_PER_PAIR);
            headlines.push(format!("bytes_per_pair_{KEY_BYTES}_{bytes}"), median, bar);
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = VALUE_BYTES.map(|bytes| format!("{KEY_BYTES} + {bytes}")).to_vec();
        let overhead = bars("beside key and value", measured, VALUE_BYTES.map(cell_name), "overhead_bytes");
        vec![Figure::new(
            "Memory beside key and value",
            "Bytes for each pair in a full namespace, the index included. Lower is better.",
            Plot::bars("key + value, bytes", names, Axis::log("bytes"), vec![overhead]),
        )]
    }
}

/// Stores pairs until one is refused for lack of memory. Returns their number.
fn store_until_full(bench: &Bench, address: &host::Address, value_bytes: usize) -> Result<u64, Error> {
    let mut namespace = BlockingKeyValue::connect(address, Options::default())?;
    let mut batch = namespace.batch()?;
    let (mut value, mut count, mut next) = (vec![0; value_bytes], 0, 0);
    while !bench.is_stopped() {
        batch.clear();
        loop {
            fill(next, 0, &mut value);
            if batch.store(&key(next), &value, StoreOptions::empty()).is_err() {
                break;
            }
            next += 1;
        }
        for outcome in namespace.run_batch(&mut batch)? {
            match outcome.status {
                status if status.is_success() => count += 1,
                status if status.is(Status::CAPACITY_EXCEEDED) => return Ok(count),
                status => return Err(Error::Load(status.to_string())),
            }
        }
    }
    Err(Error::Stopped)
}

fn cell_name(value_bytes: u32) -> String {
    format!("{KEY_BYTES} + {value_bytes} B")
}
