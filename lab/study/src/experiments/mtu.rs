//! `mtu`: the effect of packet size, with and without offloads. On one machine the devices are virtual, and have the MTU of a
//! cell. Between two the devices are the machines', and TCP's maximum segment size makes packets as small.

use std::net::IpAddr;

use host::MaxSegment;
use load::environment::interface_towards;
use load::report::Report;
use load::workload::format_bytes;

use super::prelude::*;
use crate::network::{Link, Network, Offloads};

const SIZES: [u32; 3] = [4 << 10, 16 << 10, 128 << 10];
const MTUS: [u32; 2] = [1500, 9000];
const OFFLOADS: [(&str, Offloads); 2] = [("offloads", Offloads::All), ("none", Offloads::None)];
const DEPTH: u32 = 32;

pub(crate) const ABOUT: About = About {
    name: "mtu",
    title: "What do jumbo frames gain?",
    method: "One lane, random reads, 32 in flight, over a pair of virtual Ethernet devices between two network namespaces, one \
             core for each side. With segmentation offloads the stack hands over up to 64 KiB at once, as to a network card; \
             without them it cuts every packet itself. Between two machines the packets of the network between them are as large as \
             with that MTU, by TCP's maximum segment size in both directions; offloads are as the machines have them.",
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
    machines: Machines::TwoWithout("the rows without offloads, which the machines keep as they are"),
    judged_by: "iops",
    columns: "iops mib_per_s segment_bytes p50_us p99_us host_us target_us",
};

/// Packets of both sizes, with and without offloads.
#[derive(Debug, Default)]
pub(crate) struct Mtu {
    /// MTU between two machines: the smaller of both interfaces'.
    between: Option<u32>,
}

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

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        !bench.is_remote()
            || cell.text("offloads") == OFFLOADS[0].0
                && mtu_between(bench).is_some_and(|mtu| cell.word("mtu") <= mtu)
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        Network::check_for(bench)
    }

    fn conditions(&self, _: &Measured) -> Option<String> {
        self.between.map(in_words)
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let mut load = bench.load("randread", None, cell.word("bytes"), DEPTH);
        let mtu = cell.word("mtu");
        if let Some(server) = &bench.server {
            self.between = mtu_between(bench);
            load.options.tuning.max_segment = MaxSegment::of_mtu(mtu, server.machine.data_address);
            return Ok(with_segments(&bench.run(&bench.serve()?, load)?.report));
        }
        let (_, offloads) = cell.one_of("offloads", OFFLOADS, |offloads| offloads.0);
        let network = Network::new(Link { mtu, offloads })?;
        Ok(with_segments(&bench.run(&network.serve(bench)?, load)?.report))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (offloads, key) in [("offloads", "gain"), ("none", "gain_without_offloads")] {
            for size in SIZES {
                let [small, jumbo] = MTUS.map(|mtu| cell_name(size, offloads, mtu));
                let gain = measured.ratio(&jumbo, &small, "iops");
                headlines.tell(format!("{key}_{}", format_bytes(size.into())), gain);
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

/// The values of a cell, with the data of a full segment as proof of the packets' size.
fn with_segments(report: &Report) -> Values {
    let mut values = values(report);
    let segment_bytes = report.lanes.first().and_then(|lane| lane.counters.get("segment_bytes")?.as_f64());
    values.extend(segment_bytes.map(|bytes| ("segment_bytes", bytes)));
    values
}

/// The smaller MTU of both machines' interfaces on the path between them.
fn mtu_between(bench: &Bench) -> Option<u32> {
    let machine = &bench.server.as_ref()?.machine;
    let theirs = machine.environment.interface.as_ref()?.mtu;
    Some(theirs.min(mtu_towards(machine.data_address)?))
}

fn mtu_towards(address: IpAddr) -> Option<u32> {
    interface_towards(address).map(|interface| interface.mtu)
}

/// How packets got their size between two machines, in a sentence.
fn in_words(mtu: u32) -> String {
    let by = "Between two machines TCP's maximum segment size limits packets in both directions";
    let jumbo = MTUS[1];
    if mtu < jumbo {
        return format!("{by}; jumbo frames need an MTU of {jumbo} on both machines, here it is {mtu}.");
    }
    format!("{by}; the interfaces have an MTU of {mtu}.")
}

fn cell_name(size: u32, offloads: &str, mtu: u32) -> String {
    let without = if offloads == "none" { " without offloads" } else { "" };
    format!("{} mtu {mtu}{without}", format_bytes(size.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_what_jumbo_frames_lack() {
        let told = in_words(1500);
        assert!(
            told.ends_with("jumbo frames need an MTU of 9000 on both machines, here it is 1500."),
            "{told}"
        );
        assert!(in_words(9000).ends_with("the interfaces have an MTU of 9000."));
    }

    #[test]
    fn every_packet_size_has_a_segment_size() {
        for (address, expected) in [("192.0.2.1", [1460, 8960]), ("2001:db8::1", [1440, 8940])] {
            let address: IpAddr = address.parse().unwrap();
            let segments = MTUS.map(|mtu| MaxSegment::of_mtu(mtu, address).unwrap().bytes());
            assert_eq!(segments, expected);
        }
    }
}
