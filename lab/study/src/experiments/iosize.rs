//! `iosize`: transfers from 512 B to 1 MiB.

use load::workload::format_bytes;

use super::prelude::*;

const SIZES: [u32; 12] = [
    512,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
];

const DEPTH: u32 = 32;

const DIRECTIONS: [(&str, &str, u8); 2] = [("read", "randread", 100), ("write", "randwrite", 0)];

pub(crate) const ABOUT: About = About {
    name: "iosize",
    title: "At which size does the data cost more than the command?",
    method: "One lane, 32 operations in flight, one core for each side, each measurement after one of plain sockets that \
             move the same bytes. Writes up to 8 KiB bring their data in the command's capsule; larger ones are asked for \
             it (R2T). Large payloads are received where they belong, without a copy.",
    claims: &[Claim {
        source: "NVMe/TCP versus RoCE, Netdev 0x13 (2019)",
        says: "28 % to 3 times more operations with RoCE than with kernel NVMe over TCP, sizes of 4 KiB and depths varied.",
        number: "28 % – 3 times less",
        ours: "share_read_4k",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "share iops mib_per_s ceiling_iops p50_us p99_us host_us target_us",
};

/// Reads and writes of every size, compared with plain sockets.
#[derive(Debug, Default)]
pub(crate) struct IoSize {
    served: Kept<(), Served>,
}

impl Experiment for IoSize {
    fn cells(&self) -> Vec<Cell> {
        let of = |name: &str, size: u32| {
            Cell::new(cell_name(name, size)).with("direction", name).with("bytes", size)
        };
        DIRECTIONS.into_iter().flat_map(|(name, ..)| SIZES.map(|size| of(name, size))).collect()
    }

    fn spins(&self, _: &Cell) -> bool {
        true
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let served = self.served.get((), || bench.serve_with(ServedOptions::of(["null:1T?lba=512"])))?;
        let (_, pattern, read_percent) = cell.one_of("direction", DIRECTIONS, |direction| direction.0);
        let load = bench.load(pattern, None, cell.word("bytes"), DEPTH);
        let ceiling = bench.ceiling(&load, read_percent, IN_CAPSULE_BYTES, 0)?;
        let mut values = values(&bench.run(served, load)?.report);
        let mib = f64::from(cell.word("bytes")) / f64::from(1 << 20);
        values.insert("ceiling_iops", ceiling.iops());
        values.insert("ceiling_mib_per_s", ceiling.iops() * mib);
        values.insert("share", values["iops"] / ceiling.iops());
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (direction, ..) in DIRECTIONS {
            for size in [512, 4 << 10, 64 << 10, 1 << 20] {
                let share = measured.median(&cell_name(direction, size), "share");
                headlines.tell(format!("share_{direction}_{}", format_bytes(size.into())), share);
            }
            let speeds = measured.of("direction", direction).filter_map(|cell| cell.median("mib_per_s"));
            headlines.tell(format!("mib_per_s_max_{direction}"), speeds.max_by(f64::total_cmp));
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let sizes = SIZES.map(u64::from);
        let mut figures = Vec::new();
        let units = [
            ("Throughput", "MiB/s", "mib_per_s", "ceiling_mib_per_s"),
            ("Speed", "operations per second", "iops", "ceiling_iops"),
        ];
        for (what, unit, ours, ceiling) in units {
            let mut series = Vec::new();
            for (direction, ..) in DIRECTIONS {
                let cells = || measured.of("direction", direction);
                series.push(line(direction, cells(), "bytes", ours));
                let name = format!("{direction}, plain sockets");
                series.push(line(&name, cells(), "bytes", ceiling).as_reference());
            }
            figures.push(Figure::new(
                format!("{what} over size"),
                "32 operations in flight on one lane. Higher is better.",
                Plot::lines(
                    Axis::log("bytes of an operation"),
                    ticks(&sizes, format_bytes),
                    Axis::log(unit),
                    series,
                ),
            ));
        }
        figures
    }
}

fn cell_name(direction: &str, size: u32) -> String {
    format!("{direction} {}", format_bytes(size.into()))
}
