//! `connections`: throughput from one lane to thousands.

use super::prelude::*;
use crate::descriptors::host_lane_count_max;
use crate::driver::{Class, Spread, drive};
use crate::held_lanes::HeldLanes;

const LANE_COUNTS: [u32; 7] = [1, 4, 16, 64, 256, 1024, 4096];

/// Total operations in flight on all lanes: the maximum depth of one lane.
const DEPTH: usize = 1023;

/// Depth of the lanes whose memory is measured.
const IDLE_DEPTH: u16 = 128;

const EFFICIENCY: Bar = Bar::AtLeast(0.85);
/// For each number of lanes: IOPS over those of as many plain sockets, p99 over theirs, and the p99 of the lane with the
/// highest over that of the median lane.
const SHARE: Bar = Bar::AtLeast(0.9);
const TAIL: Bar = Bar::AtMost(1.3);
const SPREAD: Bar = Bar::AtMost(1.5);
const MEMORY: Bar = Bar::AtMost(16_384.0);

pub(crate) const ABOUT: About = About {
    name: "connections",
    title: "Does a target slow down with thousands of connections?",
    method: "1,023 reads of 4 KiB in flight, going round 1 to 4,096 lanes of as many connections, one core for each side. \
             Speed is per core of the target's processor time. The more lanes, the fewer operations share a send and a \
             receive, which is what a connection costs in any case: plain sockets move the same bytes over as many \
             connections beside it, with no NVMe at all. p99 is that of all lanes, and the highest of a lane over that of the \
             median lane. Memory is that of the same lanes when used and then left alone.",
    claims: &[Claim {
        source: "ADQ, Netdev 0x14 (2020)",
        says: "Memcached with ADQ: the gain in throughput holds to the largest number of connections.",
        number: "holds",
        ours: "iops_per_cpu_1024_over_1",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "iops_per_cpu",
    columns: "iops_per_cpu ceiling_iops_per_cpu share iops iops_over_sockets p50_us p99_us p99_over_sockets \
              lane_p99_worst_over_median target_percent bytes_per_lane",
};

/// The same number of operations in flight over a growing number of lanes.
#[derive(Debug, Default)]
pub(crate) struct Connections;

impl Experiment for Connections {
    fn cells(&self) -> Vec<Cell> {
        LANE_COUNTS.map(|lanes| Cell::new(cell_name(lanes)).with("lanes", lanes)).to_vec()
    }

    fn check(&self, _: &Bench) -> Result<(), Error> {
        let most = host_lane_count_max(linux::allow_descriptors());
        match LANE_COUNTS.into_iter().find(|&lanes| u64::from(lanes) > most) {
            None => Ok(()),
            Some(lanes) => Err(Error::Lacking(format!(
                "{lanes} lanes need {} descriptors, more than this user may have: raise the limit (`ulimit -Hn 65536` as root)",
                lanes * 2
            ))),
        }
    }

    fn spins(&self, _: &Cell) -> bool {
        true
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let served = bench.serve()?;
        let lanes = cell.word("lanes");
        let before_bytes = served.own_memory_bytes()?;
        let mut held_lanes = HeldLanes::connect(&served, lanes.into(), IDLE_DEPTH, None)?;
        held_lanes.exercise()?;
        let used_bytes = served.own_memory_bytes()?.saturating_sub(before_bytes);
        drop(held_lanes);

        let lane_count = lanes as usize;
        let reads = Class { is_write: false, io_bytes: IO_BYTES, depth: DEPTH, is_burst: false };
        let driven = drive(bench, &served, Spread::Round(lane_count), &[reads])?;
        served.stop()?;
        let depth = u32::try_from(DEPTH).expect("a small number");
        let ceiling = bench.ceiling_of_many(lanes, depth, IO_BYTES)?;
        let latency = &driven.classes[0].latency;
        let seconds = driven.elapsed.as_secs_f64();
        let (target_s, used_bytes) = (driven.target_ns as f64 / 1e9, used_bytes as f64);
        let iops_per_cpu = driven.iops(0) * seconds / target_s;
        let ceiling_iops_per_cpu = ceiling.operations as f64 * 1e9 / ceiling.far.total_ns() as f64;
        let mut values = Values::from([
            ("iops", driven.iops(0)),
            ("iops_per_cpu", iops_per_cpu),
            ("target_percent", target_s / seconds * 100.0),
            ("p50_us", us(latency.percentile(50.0))),
            ("p99_us", us(latency.percentile(99.0))),
            ("bytes_per_lane", used_bytes / f64::from(lanes)),
            ("ceiling_iops_per_cpu", ceiling_iops_per_cpu),
            ("share", iops_per_cpu / ceiling_iops_per_cpu),
            ("iops_over_sockets", driven.iops(0) / ceiling.iops()),
            ("p99_over_sockets", us(latency.percentile(99.0)) / us(ceiling.latency.percentile(99.0))),
        ]);
        values.extend(driven.lanes.worst_over_median().map(|spread| ("lane_p99_worst_over_median", spread)));
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let over_one = |lanes, value| measured.ratio(&cell_name(lanes), &cell_name(1), value);
        headlines.push("iops_per_cpu_1024_over_1", over_one(1024, "iops_per_cpu"), Some(EFFICIENCY));
        headlines.tell("iops_per_cpu_4096_over_1", over_one(4096, "iops_per_cpu"));
        headlines.tell("ceiling_1024_over_1", over_one(1024, "ceiling_iops_per_cpu"));
        let share = |lanes| measured.median(&cell_name(lanes), "share");
        headlines.tell("share_of_ceiling_1", share(1));
        headlines.tell("share_of_ceiling_1024", share(1024));
        let bars = [
            ("iops_over_sockets", SHARE),
            ("p99_over_sockets", TAIL),
            ("lane_p99_worst_over_median", SPREAD),
        ];
        for (value, bar) in bars {
            for lanes in LANE_COUNTS {
                let median = measured.median(&cell_name(lanes), value);
                headlines.push(format!("{value}_{lanes}"), median, Some(bar));
            }
        }
        let bytes = |lanes| measured.median(&cell_name(lanes), "bytes_per_lane");
        headlines.push("bytes_per_idle_lane", bytes(4096).or(bytes(1024)), Some(MEMORY));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let counts = LANE_COUNTS.map(u64::from);
        let over = |name: &str, value: &str| line(name, measured.cells.iter(), "lanes", value);
        let plot =
            |y, series| Plot::lines(Axis::log("lanes"), ticks(&counts, |count| count.to_string()), y, series);
        vec![
            Figure::new(
                "Speed per core of the target",
                "Operations of 4 KiB for each second of the target's processor time. Higher is better.",
                plot(
                    Axis::linear("IOPS per core"),
                    vec![
                        over("nvlane", "iops_per_cpu"),
                        over("plain sockets", "ceiling_iops_per_cpu").as_reference(),
                    ],
                ),
            ),
            Figure::new(
                "Latency",
                "With 1,023 operations in flight in any case. Lower is better.",
                plot(Axis::log("µs"), vec![over("p50", "p50_us"), over("p99", "p99_us")]),
            ),
        ]
    }
}

fn cell_name(lanes: u32) -> String {
    format!("{lanes} {}", if lanes == 1 { "lane" } else { "lanes" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn efficiency_is_compared_with_one_lane() {
        let iops = |cell: &Cell| if cell.name == "1 lane" { 1e6 } else { 9e5 };
        let headline =
            headline_of(&Connections, |cell| [("iops_per_cpu", iops(cell)), ("bytes_per_lane", 5000.0)]);
        assert_eq!((headline[0].key.as_str(), headline[0].value), ("iops_per_cpu_1024_over_1", 0.9));
        let memory = headline.last().expect("several");
        assert_eq!((memory.key.as_str(), memory.is_reached()), ("bytes_per_idle_lane", Some(true)));
    }

    #[test]
    fn each_number_of_lanes_has_its_bars() {
        let ratio = |cell: &Cell| f64::from(cell.word("lanes")) / 4096.0;
        let headline = headline_of(&Connections, |cell| {
            [
                ("iops_over_sockets", ratio(cell)),
                ("p99_over_sockets", 1.0 + ratio(cell)),
                ("lane_p99_worst_over_median", 1.0 + ratio(cell)),
            ]
        });
        let is_reached = |key: &str, lanes: u32| of_key(&headline, &format!("{key}_{lanes}")).is_reached();
        for lanes in LANE_COUNTS {
            assert_eq!(is_reached("iops_over_sockets", lanes), Some(lanes == 4096));
            assert_eq!(is_reached("p99_over_sockets", lanes), Some(lanes != 4096));
            assert_eq!(is_reached("lane_p99_worst_over_median", lanes), Some(lanes != 4096));
        }
        assert_eq!(of_key(&headline, "p99_over_sockets_1024").value, 1.25);
    }
}
