//! `idle`: the cost of idle lanes.

use super::prelude::*;
use crate::idle_lanes;

const LANE_COUNTS: [u64; 3] = [0, 1_000, 10_000];

/// Processor time that 1,000 and 10,000 idle lanes may use, percent of a core.
const CPU_1000: Bar = Bar::Below(0.5);
const CPU_10000: Bar = Bar::Below(3.0);
/// Private memory of the target that an idle lane may use, bytes.
const MEMORY: Bar = Bar::AtMost(16_384.0);

pub(crate) const ABOUT: About = About {
    name: "idle",
    title: "What does an idle target cost?",
    method: "Lanes of 128 commands each connect to a fresh target, execute eight reads at once, and are left alone; only \
             their associations' keep-alives go on. Then the target's time on its core is taken to the nanosecond, and \
             its own memory beside what it had before.",
    claims: &[Claim {
        source: "SPDK and other polling targets",
        says: "A target that polls keeps each of its cores busy whether or not anything is to be done.",
        number: "100 %",
        ours: "cpu_percent_1000",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "bytes_per_lane",
    columns: "cpu_percent bytes_per_lane fresh_bytes_per_lane memory_mib connect_us",
};

/// Lanes that were used and are idle now.
#[derive(Debug, Default)]
pub(crate) struct Idle;

impl Experiment for Idle {
    fn cells(&self) -> Vec<Cell> {
        LANE_COUNTS.map(|lanes| Cell::new(format!("{lanes} lanes")).with("lanes", lanes)).to_vec()
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        idle_lanes::check(bench, LANE_COUNTS.into_iter().max().unwrap_or(0))
    }

    fn is_disturbed_by_others(&self, _: &Cell) -> bool {
        false
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        idle_lanes::measure(bench, bench.serve()?, cell.number("lanes"), None)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let cpu = |lanes: &str| measured.median(lanes, "cpu_percent");
        headlines.tell("cpu_percent_0", cpu("0 lanes"));
        headlines.push("cpu_percent_1000", cpu("1000 lanes"), Some(CPU_1000));
        headlines.push("cpu_percent_10000", cpu("10000 lanes"), Some(CPU_10000));
        let bytes = |lanes: &str| measured.median(lanes, "bytes_per_lane");
        headlines.push("bytes_per_idle_lane", bytes("10000 lanes").or(bytes("1000 lanes")), Some(MEMORY));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names: Vec<String> = measured.cells.iter().map(|cell| cell.cell.name.clone()).collect();
        let over = |name: &str, value: &str| {
            bars(name, measured, measured.cells.iter().map(|cell| cell.cell.name.clone()), value)
        };
        let cpu = Plot::bars(
            "idle lanes",
            names.clone(),
            Axis::linear("% of one core"),
            vec![over("target", "cpu_percent")],
        );
        let memory = vec![over("used", "bytes_per_lane"), over("never used", "fresh_bytes_per_lane")];
        let memory =
            Plot::bars("idle lanes", names, Axis::linear("bytes of the target's own for each"), memory);
        vec![
            Figure::new(
                "Processor time of the target",
                "What a polling target would show here is 100. Lower is better.",
                cpu.with_mark("goal for 1000 lanes", CPU_1000.limit()),
            ),
            Figure::new(
                "Memory of an idle lane",
                "User memory; the kernel's sockets are not in it. Lower is better.",
                memory.with_mark("goal 16 KiB", MEMORY.limit()),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::headline_of;

    #[test]
    fn bars_are_of_a_thousand_and_ten_thousand_lanes() {
        let headline = headline_of(&Idle, |cell| {
            [("cpu_percent", f64::from(cell.word("lanes")) / 10_000.0), ("bytes_per_lane", 15_000.0)]
        });
        let told: Vec<_> = headline
            .iter()
            .map(|headline| (headline.key.as_str(), headline.value, headline.is_reached()))
            .collect();
        assert_eq!(
            told,
            [
                ("cpu_percent_0", 0.0, None),
                ("cpu_percent_1000", 0.1, Some(true)),
                ("cpu_percent_10000", 1.0, Some(true)),
                ("bytes_per_idle_lane", 15_000.0, Some(true)),
            ]
        );
    }
}
