//! `ceiling`: NVMe/TCP throughput as a share of what plain TCP sockets reach.

use super::prelude::*;

/// Name, pattern and percentage of reads.
const WORKLOADS: [(&str, &str, u8); 3] =
    [("read", "randread", 100), ("write", "randwrite", 0), ("mix", "randrw", 70)];

const DEPTHS: [u32; 4] = [1, 4, 32, 128];

/// Bar of every share.
const SHARE: Bar = Bar::AtLeast(0.9);

pub(crate) const ABOUT: About = About {
    name: "ceiling",
    title: "How much of what the kernel's TCP can do is left after NVMe?",
    method: "One lane, operations of 4 KiB on a namespace that needs no time of its own, one core for each side. Each \
             measurement follows one of plain sockets that move the same bytes in the same directions, batched as well \
             as we know how, both sides spinning, with no NVMe at all. The share is taken within each round.",
    claims: &[Claim {
        source: "i10, Netdev 0x14 (2020)",
        says: "With lanes, caravans and delayed doorbells NVMe over TCP needs about the processor time of RDMA. The \
               sockets' own limit is the harder comparison: it is what any such design can reach at all.",
        number: "≈ RDMA",
        ours: "share_min",
    }],
    judged_by: "share",
    columns: &[
        "share",
        "iops",
        "ceiling_iops",
        "p50_us",
        "ceiling_p50_us",
        "p99_us",
        "ceiling_p99_us",
        "host_us",
        "target_us",
    ],
};

/// Each workload at each depth, compared with plain sockets that move the same bytes.
#[derive(Debug, Default)]
pub(crate) struct Ceiling {
    served: Kept<(), Served>,
}

impl Experiment for Ceiling {
    fn cells(&self) -> Vec<Cell> {
        let of = |(name, _, _): (&str, &str, u8), depth: u32| {
            Cell::new(format!("{name} qd{depth}")).with("workload", name).with("depth", depth)
        };
        WORKLOADS.into_iter().flat_map(|workload| DEPTHS.map(|depth| of(workload, depth))).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let served = self.served.get((), || bench.serve())?;
        let workload = WORKLOADS.into_iter().find(|workload| workload.0 == cell.text("workload"));
        let (_, pattern, read_percent) = workload.expect("a cell of ours");
        let load = bench.load(pattern, Some(read_percent), IO_BYTES, cell.word("depth"));
        let ceiling = bench.ceiling(&load, read_percent, IN_CAPSULE_BYTES)?;
        let mut values = values(&bench.run(served, load)?.report);
        values.insert("ceiling_iops", ceiling.iops());
        values.insert("ceiling_p50_us", us(ceiling.latency.percentile(50.0)));
        values.insert("ceiling_p99_us", us(ceiling.latency.percentile(99.0)));
        values.insert("share", values["iops"] / ceiling.iops());
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let shares = measured.cells.iter().filter_map(|cell| Some((key(cell), cell.median("share")?)));
        let shares: Vec<_> = shares.collect();
        let min = shares.iter().map(|(_, share)| *share).min_by(f64::total_cmp);
        headlines.push("share_min", min, Some(SHARE));
        for (key, share) in shares {
            headlines.push(key, Some(share), Some(SHARE));
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let depths: Vec<u64> = DEPTHS.map(u64::from).to_vec();
        let depth_axis = || Axis::log("operations in flight");
        let depth_ticks = || ticks(&depths, |depth| depth.to_string());
        let shares = WORKLOADS.map(|(name, ..)| over_depth(measured, name, name, "share"));
        let share =
            Plot::lines(depth_axis(), depth_ticks(), Axis::linear("share of the ceiling"), shares.into())
                .with_mark("goal 0.9", SHARE.limit());
        let mut figures = vec![Figure::new(
            "Share of the ceiling",
            "1 is what plain sockets reach with the same bytes.",
            share,
        )];
        for (name, ..) in WORKLOADS {
            let of = |label: &str, value| over_depth(measured, name, label, value);
            let iops = vec![of("nvlane", "iops"), of("plain sockets", "ceiling_iops").as_reference()];
            figures.push(Figure::new(
                format!("Speed: {name}"),
                "Operations of 4 KiB per second on one lane. Higher is better.",
                Plot::lines(depth_axis(), depth_ticks(), Axis::linear("IOPS"), iops),
            ));
        }
        let latency = vec![
            over_depth(measured, "read", "p50", "p50_us"),
            over_depth(measured, "read", "p99", "p99_us"),
            over_depth(measured, "read", "p50 of plain sockets", "ceiling_p50_us").as_reference(),
            over_depth(measured, "read", "p99 of plain sockets", "ceiling_p99_us").as_reference(),
        ];
        figures.push(Figure::new(
            "Latency: read",
            "From submission to completion. Lower is better.",
            Plot::lines(depth_axis(), depth_ticks(), Axis::log("µs"), latency),
        ));
        figures
    }
}

fn key(cell: &CellRounds) -> String {
    format!("share_{}_qd{}", cell.cell.text("workload"), cell.cell.number("depth"))
}

fn over_depth(measured: &Measured, workload: &str, name: &str, value: &str) -> Series {
    line(name, measured.of("workload", workload), "depth", value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::headline_of;

    #[test]
    fn the_smallest_share_leads() {
        let share = |cell: &Cell| if cell.name == "mix qd128" { 0.5 } else { 0.95 };
        let headline = headline_of(&Ceiling::default(), |cell| [("share", share(cell))]);
        assert_eq!((headline[0].key.as_str(), headline[0].value), ("share_min", 0.5));
        assert_eq!(headline.len(), 13);
        assert_eq!(headline[1].key, "share_read_qd1");
        assert_eq!(headline[12].key, "share_mix_qd128");
        assert_eq!(headline[12].is_reached(), Some(false));
    }
}
