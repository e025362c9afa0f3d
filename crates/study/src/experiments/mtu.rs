//! `mtu`: the effect of packet size, with and without offloads.

use load::workload::format_bytes;

use super::prelude::*;
use crate::network::{Link, Network, Offloads};

const SIZES: [u32; 3] = [4 << 10, 16 << 10, 128 << 10];
const MTUS: [u32; 2] = [1500, 9000];
const OFFLOADS: [(&str, Offloads); 2] = [("offloads", Offloads::All), ("none", Offloads::None)];
const DEPTH: u32 = 32;

pub(crate) const ABOUT: About = About {
    name: "mtu",
    title: "What are jumbo frames worth?",
    method: "One lane, random reads, 32 in flight, over a pair of virtual Ethernet devices between two network namespaces, one \
             core for each side. With segmentation offloads the stack hands over up to 64 KiB at once, as to a network card; \
             without them it cuts every packet itself.",
    claims: &[
        Claim {
            source: "NVMe/TCP versus RoCE, Netdev 0x13 (2019)",
            says: "28 to 50 % more operations with an MTU of 9000, for large operations.",
            number: "28 – 50 %",
            ours: "gain_128k",
        },
        Claim {
            source: "i10, Netdev 0x14 (2020)",
            says: "Jumbo frames, TSO and GRO together give 14 %; others see nothing once the offloads are there.",
            number: "14 %",
            ours: "gain_4k",
        },
    ],
    machines: Machines::One(
        "it makes two virtual Ethernet devices, and changes their packet size and offloads",
    ),
    judged_by: "iops",
    columns: &["iops", "mib_per_s", "p50_us", "p99_us", "host_us", "target_us"],
};

/// Packets of both sizes, with and without offloads.
#[derive(Debug, Default)]
pub(crate) struct Mtu;

impl Experiment for Mtu {
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for size in SIZES {
            for (offloads, _) in OFFLOADS {
                for mtu in MTUS {
                    let cell = Cell::new(cell_name(size, offloads, mtu));
                    cells.push(cell.with("bytes", size).with("offloads", offloads).with("mtu", mtu));
                }
            }
        }
        cells
    }

    fn check(&self, _: &Bench) -> Result<(), Error> {
        Network::check()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let offloads = OFFLOADS.into_iter().find(|(name, _)| *name == cell.text("offloads"));
        let (_, offloads) = offloads.expect("a cell of ours");
        let network = Network::new(Link { mtu: cell.word("mtu"), offloads })?;
        let served = network.serve(bench)?;
        let load = bench.load("randread", None, cell.word("bytes"), DEPTH);
        Ok(values(&bench.run(&served, load)?.report))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (offloads, key) in [("offloads", "gain"), ("none", "gain_without_offloads")] {
            for size in SIZES {
                let [small, jumbo] = MTUS.map(|mtu| cell_name(size, offloads, mtu));
                let gain = measured.ratio(&jumbo, &small, "iops");
                headlines.push(format!("{key}_{}", format_bytes(size.into())), gain, None);
            }
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, offloads: &str| {
            let names = SIZES.map(|size| format_bytes(size.into())).to_vec();
            let of = |mtu: u32| {
                bars(
                    &format!("MTU {mtu}"),
                    measured,
                    SIZES.map(|size| cell_name(size, offloads, mtu)),
                    "mib_per_s",
                )
            };
            let plot = Plot::bars("bytes of an operation", names, Axis::linear("MiB/s"), MTUS.map(of).into());
            Figure::new(title, "Higher is better.", plot)
        };
        vec![figure("With segmentation offloads", "offloads"), figure("Every packet by itself", "none")]
    }
}

fn cell_name(size: u32, offloads: &str, mtu: u32) -> String {
    let without = if offloads == "none" { " without offloads" } else { "" };
    format!("{} mtu {mtu}{without}", format_bytes(size.into()))
}
