//! `mixed-lanes`: small reads on the same lane as large writes, and on a separate lane.

use host::QueueMap;

use super::prelude::*;
use crate::driver::{Class, Spread, drive};

/// Reads in flight, each followed by the next when it completes.
const READER_COUNT: usize = 16;

/// Writes of a burst, and their size.
const BURST_COUNT: usize = 16;
const WRITE_BYTES: u32 = 1 << 20;

const SHARED: &str = "shared lane";
const SEPARATE: &str = "lanes of their own";

/// Bars: ratio of reads per second, and of the p99 latency.
const GAIN: Bar = Bar::AtLeast(2.1);
const TAIL: Bar = Bar::AtMost(0.1);

pub(crate) const ABOUT: About = About {
    name: "mixed-lanes",
    title: "What do small reads gain from a lane of their own?",
    method: "16 readers of 4 KiB, each waiting for one read before the next, and a writer that begins 16 writes of 1 MiB \
             at once whenever those before have ended, on a namespace in memory. First all on one lane, where a read waits \
             behind whatever is being written; then with a lane for reads beside it (queue map default=1,read=1). One core \
             for each side.",
    claims: &[
        Claim {
            source: "Sagi Grimberg, NVMe over TCP optimisations (2021)",
            says: "80,000 reads per second beside a writer became 171,000 once reads had queues of their own.",
            number: "2.1 times",
            ours: "read_iops_gain",
        },
        Claim {
            source: "Sagi Grimberg, NVMe over TCP optimisations (2021)",
            says: "The latency that 99.99 % of the reads stay below, 14 ms before, fell by an order of magnitude.",
            number: "a tenth",
            ours: "read_p9999_ratio",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops mean_us p50_us p99_us p9999_us write_mib_per_s",
};

/// Readers and a writer, on one lane and on two.
#[derive(Debug, Default)]
pub(crate) struct MixedLanes {
    served: Kept<(), Served>,
}

impl Experiment for MixedLanes {
    fn cells(&self) -> Vec<Cell> {
        [SHARED, SEPARATE].map(|name| Cell::new(name).with("lanes", name)).to_vec()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let served = self.served.get((), || bench.serve_with(ServedOptions::of(["ram:256M"])))?;
        let read = u16::from(cell.text("lanes") == SEPARATE);
        let spread = Spread::ByClass(QueueMap { default: 1, read, poll: 0 });
        let reads = Class { is_write: false, io_bytes: IO_BYTES, depth: READER_COUNT, is_burst: false };
        let writes = Class { is_write: true, io_bytes: WRITE_BYTES, depth: BURST_COUNT, is_burst: true };
        let driven = drive(bench, served, spread, &[reads, writes])?;
        let latency = &driven.classes[0].latency;
        Ok(Values::from([
            ("iops", driven.iops(0)),
            ("mean_us", latency.mean() / 1e3),
            ("p50_us", us(latency.percentile(50.0))),
            ("p99_us", us(latency.percentile(99.0))),
            ("p9999_us", us(latency.percentile(99.99))),
            ("write_mib_per_s", driven.iops(1) * f64::from(WRITE_BYTES) / f64::from(1 << 20)),
        ]))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let ratio = |value| measured.ratio(SEPARATE, SHARED, value);
        headlines.push("read_iops_gain", ratio("iops"), Some(GAIN));
        headlines.push("read_p9999_ratio", ratio("p9999_us"), Some(TAIL));
        headlines.tell("read_mean_ratio", ratio("mean_us"));
        headlines.tell("write_gain", ratio("write_mib_per_s"));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = || [SHARED, SEPARATE].map(str::to_owned);
        let of = |label: &str, value: &str| bars(label, measured, names(), value);
        let latency = ["mean_us", "p50_us", "p99_us", "p9999_us"]
            .map(|value| of(&crate::format::value_name(value), value));
        vec![
            Figure::new(
                "Reads per second beside the writer",
                "Higher is better.",
                Plot::bars("", names().into(), Axis::linear("IOPS"), vec![of("reads", "iops")]),
            ),
            Figure::new(
                "Latency of the reads",
                "Lower is better.",
                Plot::bars("", names().into(), Axis::log("µs"), latency.into()),
            ),
            Figure::new(
                "The writer meanwhile",
                "What the reads gain is not to be the writer's loss.",
                Plot::bars("", names().into(), Axis::linear("MiB/s"), vec![of("writes", "write_mib_per_s")]),
            ),
        ]
    }
}
