//! `kv-large`: values from a kibibyte to 256 MiB.

use load::key_value::{KeyValueLoad, Kind, Mix};
use load::workload::Sizes;

use std::time::Duration;

use super::prelude::*;
use crate::key_value::{Pairs, mix, values};

const VALUE_BYTES: [u64; 9] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20];
const KINDS: [&str; 2] = ["get", "set"];

/// Total bytes of all values, unless two values are longer.
const TOTAL_BYTES: u64 = 128 << 20;

/// Maximum of bytes in flight.
const FLIGHT_BYTES: u64 = 4 << 20;

/// Concurrent clients of the longest values.
const CLIENT_COUNT: u16 = 16;

/// Memory of the namespace: the values of all clients, and those that replace them.
const CLIENTS_NAMESPACE: &str = "kv:ram:9G";

/// Memory that the experiment needs: the namespace, the buffers of the clients, and a reserve.
const CLIENTS_BYTES: u64 = 14 << 30;

/// Length from which on values have a longer warm-up and measurement: storing one takes tenths of a second, and seconds
/// into memory that was never touched.
const LONG_BYTES: u64 = 64 << 20;
const LONG_WARM_UP: Duration = Duration::from_secs(6);
const LONG_TIME: Duration = Duration::from_secs(2);

/// Minimum measurement of the values of all clients: storing all once takes half a second and more.
const CLIENTS_TIME: Duration = Duration::from_secs(8);

/// Warm-up: first use of memory is slow. The first time is for the clients' memory, the second, once, for the target's.
const CLIENTS_WARM_UP: Duration = Duration::from_secs(8);
const TARGET_WARM_UP: Duration = Duration::from_secs(20);

/// Buffer of each plain socket that is measured for comparison: together larger than any processor cache.
const CEILING_BYTES: usize = 64 << 20;

/// Bar: share of the plain sockets' bandwidth.
const SHARE: Bar = Bar::AtLeast(0.8);

/// Memory of the target per connection, without the namespace, KiB.
const CONNECTION_KIB: Bar = Bar::AtMost(1024.0);

pub(crate) const ABOUT: About = About {
    name: "kv-large",
    title: "How fast are large values?",
    method: "Retrieves and Stores of values from 1 KiB to 256 MiB, the longest there are; 128 MiB of them in all or two, up to 32 and 4 MiB or \
             one in flight on one lane, one core for each side. Beyond 1 MiB they are received in parts and sent from where they lie. \
             Then 16 clients with a value of 256 MiB each at once, beside plain sockets on as many connections that move data out of \
             as much memory as no cache holds and into as much: the share of their bandwidth, and the target's memory for each \
             connection beside the namespace's.",
    claims: &[],
    machines: Machines::OneOrTwo,
    judged_by: "mib_per_s",
    columns: "mib_per_s ops target_ns p50_us p99_us share connection_kib",
};

/// Retrieve and Store of values of growing length, one value per command.
#[derive(Debug, Default)]
pub(crate) struct KvLarge {
    /// A target for each length.
    pairs: Kept<u64, Pairs>,
    /// A target for many clients.
    clients: Option<Clients>,
}

/// A target for many clients.
#[derive(Debug)]
struct Clients {
    pairs: Pairs,
    /// Memory before the first client connected, without the namespace, bytes.
    idle_bytes: u64,
}

impl Experiment for KvLarge {
    fn cells(&self) -> Vec<Cell> {
        let of = |kind: &'static str, bytes: u64| {
            Cell::new(cell_name(kind, bytes)).with("kind", kind).with("bytes", bytes)
        };
        let clients = KINDS.map(|kind| {
            Cell::new(clients_name(kind)).with("kind", kind).with("clients", u32::from(CLIENT_COUNT))
        });
        VALUE_BYTES.into_iter().flat_map(|bytes| KINDS.map(|kind| of(kind, bytes))).chain(clients).collect()
    }

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        let Some(server) = &bench.server else { return true };
        // The targets' machine reports how much it has; the study would end where it has too little.
        let is_of_clients = cell.name == clients_name(cell.text("kind"));
        !is_of_clients || server.machine.environment.memory_bytes.is_none_or(|bytes| bytes >= CLIENTS_BYTES)
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let mix = mix(cell.text("kind"));
        if cell.name == clients_name(cell.text("kind")) {
            return self.measure_clients(mix, bench);
        }
        let bytes = cell.number("bytes");
        let load = KeyValueLoad {
            mix,
            keys: (TOTAL_BYTES / bytes).max(2),
            sizes: Sizes::one(u32::try_from(bytes).expect("at most 256 MiB")),
            depth: u16::try_from((FLIGHT_BYTES / bytes).clamp(1, 32)).expect("at most 32"),
            ..KeyValueLoad::default()
        };
        let pairs = self.pairs.get(bytes, || {
            // The values, those that replace them, and as much again.
            let namespace = if bytes <= 1 << 20 { "kv:ram:512M" } else { "kv:ram:2G" };
            let mut pairs = Pairs::serve(bench, ServedOptions::of([namespace]))?;
            if bytes >= LONG_BYTES {
                touch(&mut pairs, bench, &load, LONG_WARM_UP)?;
            }
            Ok::<_, Error>(pairs)
        })?;
        let mut time = bench.times.measure;
        if bytes >= LONG_BYTES {
            time = time.max(LONG_TIME);
        }
        Ok(values(&pairs.run_for(bench, load, (bench.times.warm_up, time), &mut || ())?))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for kind in KINDS {
            for (name, bytes) in [("1m", 1 << 20), ("256m", 256 << 20)] {
                let rate = measured.median(&cell_name(kind, bytes), "mib_per_s");
                headlines.tell(format!("{kind}_{name}_mib_per_s"), rate);
            }
        }
        for kind in KINDS {
            let of = |value| measured.median(&clients_name(kind), value);
            headlines.push(format!("{kind}_clients_share"), of("share"), Some(SHARE));
            headlines.push(
                format!("{kind}_clients_connection_kib"),
                of("connection_kib"),
                Some(CONNECTION_KIB),
            );
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let over = |kind: &str| {
            let of_one = |cell: &&CellRounds| cell.cell.name != clients_name(kind);
            let cells = measured.cells.iter().filter(|cell| cell.cell.text("kind") == kind).filter(of_one);
            line(kind, cells, "bytes", "mib_per_s")
        };
        vec![Figure::new(
            "Bandwidth",
            "Bytes of values. Higher is better.",
            Plot::lines(
                Axis::log("bytes of a value"),
                ticks(&VALUE_BYTES, |bytes| match bytes >> 20 {
                    0 => format!("{}k", bytes >> 10),
                    mebibytes => format!("{mebibytes}M"),
                }),
                Axis::linear("MiB/s"),
                KINDS.map(over).into(),
            ),
        )]
    }
}

impl KvLarge {
    /// Measures many clients with one value of the longest length each.
    fn measure_clients(&mut self, mix: Mix, bench: &Bench) -> Result<Values, Error> {
        if self.clients.is_none() {
            bench.check_memory(CLIENTS_BYTES)?;
        }
        let time = bench.times.measure.max(CLIENTS_TIME);
        let read_percent = if mix.has(Kind::Get) { 100 } else { 0 };
        let ceiling = bench.ceiling_of_memory(CLIENT_COUNT.into(), read_percent, CEILING_BYTES, time / 4)?;
        let load = KeyValueLoad {
            mix,
            keys: CLIENT_COUNT.into(),
            sizes: Sizes::one(256 << 20),
            depth: 1,
            lanes: CLIENT_COUNT,
            ..KeyValueLoad::default()
        };
        let Clients { pairs, idle_bytes } = match &mut self.clients {
            Some(clients) => clients,
            none => {
                let mut pairs = Pairs::serve(bench, ServedOptions::of([CLIENTS_NAMESPACE]))?;
                // Before the first load, because the target does not return memory.
                let idle_bytes = pairs.served().small_mappings()()?;
                touch(&mut pairs, bench, &load, TARGET_WARM_UP)?;
                none.insert(Clients { pairs, idle_bytes })
            }
        };
        let memory = pairs.served().small_mappings();
        let mut most = *idle_bytes;
        let mut values = values(&pairs.run_for(bench, load, (CLIENTS_WARM_UP, time), &mut || {
            most = most.max(memory().unwrap_or(0));
        })?);
        values.insert("connection_kib", (most - *idle_bytes) as f64 / 1024.0 / f64::from(CLIENT_COUNT));
        // One operation of the plain sockets is 1 MiB.
        values.insert("share", values["mib_per_s"] / ceiling.iops());
        Ok(values)
    }
}

/// Stores the values of a load for a while, so that their memory has been touched.
fn touch(pairs: &mut Pairs, bench: &Bench, load: &KeyValueLoad, time: Duration) -> Result<(), Error> {
    let sets = KeyValueLoad { mix: Mix::only(Kind::Set), ..load.clone() };
    pairs.run_for(bench, sets, (Duration::ZERO, time), &mut || ()).map(|_| ())
}

fn clients_name(kind: &str) -> String {
    format!("{kind} of {CLIENT_COUNT} clients")
}

fn cell_name(kind: &str, bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{kind} {} KiB", bytes >> 10),
        mebibytes => format!("{kind} {mebibytes} MiB"),
    }
}
