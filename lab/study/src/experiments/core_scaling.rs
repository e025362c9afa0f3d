//! `core-scaling`: throughput over the cores of each side, a lane on each.

use host::Receive;

use super::prelude::*;
use crate::doorbell::{CARAVANS, SINGLE, WAYS};

/// Cores of each side.
const COUNTS: [u32; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24];

/// Operations in flight on each lane.
const DEPTH: u32 = 128;

pub(crate) const ABOUT: About = About {
    name: "core-scaling",
    title: "Does each additional core carry as much load as the first?",
    method: "Reads of 4 KiB from a null namespace, on 1 to 24 cores of each side, as far as available: a lane with 128 \
             operations in flight on each core of the host, and a reactor of one target on each of its cores, which has one of the lanes. \
             Single: every PDU has a send and a receive of its own. Caravans: everything that is due leaves and arrives together. \
             Linear is that number of cores times the throughput of one, in the same round.",
    claims: &[Claim {
        source: "i10, Netdev 0x14 (2020)",
        says: "Throughput grows with every core up to 24, to 3.1 million operations per second, which fill 100 Gb/s on 22 cores.",
        number: "on 22 cores",
        ours: "linear_share_caravans",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops iops_per_side_core p50_us p99_us host_us target_us",
};

/// A target with a growing number of reactors under a lane for each.
#[derive(Debug, Default)]
pub(crate) struct CoreScaling;

impl Experiment for CoreScaling {
    fn cells(&self) -> Vec<Cell> {
        let of =
            |count: u32, way: &str| Cell::new(cell_name(count, way)).with("cores", count).with("way", way);
        COUNTS.into_iter().flat_map(|count| WAYS.map(|(way, ..)| of(count, way))).collect()
    }

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        let count = cell.word("cores");
        bench.core_count_for(count) == count
    }

    fn conditions(&self, measured: &Measured) -> Option<String> {
        Some(what_more_needs(most_cores(measured)?))
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let count = cell.word("cores");
        let (_, policy, receive) = cell.one_of("way", WAYS, |way| way.0);
        let tuning =
            TargetTuning { doorbell: policy.parse().ok(), receive: Some(receive), ..TargetTuning::default() };
        let served = bench.serve_with(ServedOptions::of(["null:1T"]).tuned(tuning).on_cores(count))?;
        let mut load =
            bench.load("randread", None, IO_BYTES, DEPTH).with_doorbell(policy).with_receive(receive);
        load.workload.lanes = count;
        load.cores = bench.host_side(count);
        let mut values = values(&bench.run(&served, load)?.report);
        served.stop()?;
        values.insert("iops_per_side_core", values["iops"] / f64::from(count));
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let most = most_cores(measured);
        for (way, ..) in WAYS {
            let share = most.filter(|count| *count > 1).and_then(|count| linear_share(measured, way, count));
            headlines.tell(format!("linear_share_{way}"), share);
            let iops = most.and_then(|count| measured.median(&cell_name(count, way), "iops"));
            headlines.tell(format!("most_iops_{way}"), iops);
        }
        let gain = |count| measured.ratio(&cell_name(count, CARAVANS), &cell_name(count, SINGLE), "iops");
        headlines.tell("caravans_gain_one_core", gain(1));
        headlines.tell("caravans_gain_most_cores", most.filter(|count| *count > 1).and_then(gain));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let note = |what: &str| {
            let more = most_cores(measured).map(what_more_needs).unwrap_or_default();
            format!("{what} {more}")
        };
        let numbers: Vec<u64> = counts(measured).into_iter().map(u64::from).collect();
        let plot = |y, series| {
            let cores = ticks(&numbers, |count| count.to_string());
            Plot::lines(Axis::linear("cores of each side"), cores, y, series)
        };
        let over = |value: &'static str| {
            move |(way, ..): (&str, &str, Receive)| line(way, measured.of("way", way), "cores", value)
        };
        let linear = |(way, ..): (&str, &str, Receive)| {
            let one = measured.cell(&cell_name(1, way)).and_then(|cell| cell.spread("iops"));
            let at = |&count: &u64| {
                let count = count as f64;
                one.map(|one| Point {
                    x: count,
                    y: one.median * count,
                    low: one.quartile_1 * count,
                    high: one.quartile_3 * count,
                })
            };
            let points = numbers.iter().filter_map(at).collect();
            Series::of(format!("{way}, linear"), points).as_reference()
        };
        let speed = WAYS.map(linear).into_iter().chain(WAYS.map(over("iops"))).collect();
        vec![
            Figure::new(
                "Speed over cores",
                note(
                    "Reads of 4 KiB per second of all lanes. Higher is better. Linear: so many times one core.",
                ),
                plot(Axis::linear("IOPS"), speed),
            ),
            Figure::new(
                "Speed of each core",
                note("Reads of 4 KiB per second for each core of a side. Flat is linear."),
                plot(Axis::linear("IOPS per core of a side"), WAYS.map(over("iops_per_side_core")).into()),
            ),
        ]
    }
}

/// The numbers of cores that each side had.
fn counts(measured: &Measured) -> Vec<u32> {
    let mut counts: Vec<u32> = measured.cells.iter().map(|cell| cell.cell.word("cores")).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn most_cores(measured: &Measured) -> Option<u32> {
    counts(measured).last().copied()
}

/// The requirement of the next number of cores, in a sentence.
fn what_more_needs(most: u32) -> String {
    let has = if most == 1 { "one core".to_owned() } else { format!("{most} cores") };
    match COUNTS.into_iter().find(|count| *count > most) {
        Some(next) => format!(
            "Each side had at most {has}: {next} need {} cores that this process may use, or {next} on each of two machines.",
            2 * next
        ),
        None => format!("Each side had up to {has}."),
    }
}

/// Throughput of a number of cores over that of one core times this number: the median of rounds.
fn linear_share(measured: &Measured, way: &str, count: u32) -> Option<f64> {
    let ratio = measured.ratio(&cell_name(count, way), &cell_name(1, way), "iops")?;
    Some(ratio / f64::from(count))
}

fn cell_name(count: u32, way: &str) -> String {
    format!("{count} {} {way}", if count == 1 { "core" } else { "cores" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Cores;
    use crate::experiments::testing::of_key;
    use crate::measured::of_rounds;

    /// Cells of up to this number of cores, of which each further one carries nine tenths of the first.
    fn up_to(most: u32) -> Measured {
        let cells = CoreScaling.cells().into_iter().filter(|cell| cell.word("cores") <= most);
        let rounds = |cell: Cell| {
            let count = f64::from(cell.word("cores"));
            let one = if cell.text("way") == SINGLE { 2e5 } else { 1e6 };
            let of = |factor: f64| {
                let iops = factor * one * (1.0 + 0.9 * (count - 1.0));
                vec![("iops", iops), ("iops_per_side_core", iops / count)]
            };
            (cell, [1.0, 1.1, 0.9].map(of).to_vec())
        };
        of_rounds(cells.map(rounds).collect())
    }

    #[test]
    fn many_cores_are_compared_with_as_many_times_one() {
        let headline = CoreScaling.headline(&up_to(4));
        let share = of_key(&headline, "linear_share_caravans").value;
        assert!((share - 3.7 / 4.0).abs() < 1e-9, "{share}");
        assert!((of_key(&headline, "caravans_gain_most_cores").value - 5.0).abs() < 1e-9);
        assert!((of_key(&headline, "most_iops_single").value - 7.4e5).abs() < 1e-3);
        let figures = CoreScaling.figures(&up_to(4));
        let linear = figures[0].plot.series.iter().find(|series| series.name == "caravans, linear").unwrap();
        let last = linear.points.last().unwrap();
        assert_eq!((last.x, last.y, last.low, last.high), (4.0, 4e6, 3.8e6, 4.2e6));
        assert!(figures[0].note.contains("at most 4 cores: 6 need 12 cores"), "{}", figures[0].note);
    }

    #[test]
    fn one_core_is_not_compared_with_itself_and_says_what_more_needs() {
        let measured = up_to(1);
        let headline = CoreScaling.headline(&measured);
        let keys: Vec<_> = headline.iter().map(|headline| headline.key.as_str()).collect();
        assert_eq!(keys, ["most_iops_single", "most_iops_caravans", "caravans_gain_one_core"]);
        let told = CoreScaling.conditions(&measured).unwrap();
        assert!(told.starts_with("Each side had at most one core: 2 need 4 cores"), "{told}");
        assert_eq!(CoreScaling.conditions(&Measured::default()), None);
        assert_eq!(what_more_needs(24), "Each side had up to 24 cores.");
    }

    #[test]
    fn rows_need_a_pair_of_cores_for_each_lane() {
        let pairs = (0..3).map(|at| Cores { host: 2 * at, target: 2 * at + 1 }).collect();
        let bench = Bench { pairs, ..Bench::for_tests() };
        let suited = |bench: &Bench| -> Vec<u32> {
            let cells = CoreScaling.cells().into_iter().filter(|cell| CoreScaling.suits(cell, bench));
            cells.filter(|cell| cell.text("way") == SINGLE).map(|cell| cell.word("cores")).collect()
        };
        assert_eq!(suited(&bench), [1, 2, 3]);
        assert_eq!(suited(&Bench::for_tests()), [1], "both sides on the only core");
    }
}
