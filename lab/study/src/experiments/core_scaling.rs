//! `core-scaling`: throughput over the cores of each side, a lane on each; processor time of one reactor and of two.

use std::sync::Arc;
use std::time::Duration;

use host::Receive;
use linux::CoreList;

use super::prelude::*;
use crate::bench::{Cores, Load};
use crate::division::Division;
use crate::doorbell::{CARAVANS, SINGLE, WAYS};

/// Cores of each side.
const COUNTS: [u32; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24];

/// Name, pattern and percentage of reads. Reads are measured both ways, the others in caravans.
const KINDS: [(&str, &str, u8); 3] =
    [(READ, "randread", 100), ("write", "randwrite", 0), ("mix", "randrw", 70)];
const READ: &str = "read";

/// Reactors of a target whose processor time is compared.
const REACTOR_COUNTS: [u32; 2] = [1, 2];

/// Word of the cells that compare it.
const REACTORS: &str = "reactors";

/// Operations in flight on each lane.
const DEPTH: u32 = 128;

/// Size of the RAM namespace of reactors, bytes.
const RAM_BYTES: u64 = 256 << 20;

/// Bar of the throughput over that of as many pairs of plain sockets.
const OVER_SOCKETS: Bar = Bar::AtLeast(0.9);

/// Bar of the processor time per operation with two reactors over that with one.
const TIME: Bar = Bar::AtMost(1.15);

pub(crate) const ABOUT: About = About {
    name: "core-scaling",
    title: "Does each additional core carry as much load as the first?",
    method: "Reads, writes, and both (70 % reads) of 4 KiB, with 1 to 24 cores of each side, as far as available: a lane with 128 \
             operations in flight on each core of the host, and a reactor of one target on each of its cores, which has one of the lanes. \
             The namespace is null: it needs no time of its own. \
             Single (reads): every PDU has a send and a receive of its own. Caravans: everything that is due leaves and arrives together. \
             Linear is that number of cores times the throughput of one, in the same round. Over sockets: over the sum of as many \
             pairs of plain sockets, on the same cores, that move the same bytes at the same time. \
             Reactors: the target's processor time per operation on a namespace in RAM, with one reactor and with two. Neither side spins. \
             With two cores the load shares them with both reactors, and it does not matter how long they wait for them.",
    claims: &[Claim {
        source: "i10, Netdev 0x14 (2020)",
        says: "Throughput grows with every core up to 24, to 3.1 million operations per second, which fill 100 Gb/s on 22 cores.",
        number: "on 22 cores",
        ours: "linear_share_caravans",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops iops_per_side_core over_sockets sockets_iops p50_us p99_us host_us target_us",
};

/// A target with a growing number of reactors under a lane for each.
#[derive(Debug, Default)]
pub(crate) struct CoreScaling {
    /// Targets with a namespace in RAM, by number of reactors.
    reactors: Kept<u32, Served>,
}

impl Experiment for CoreScaling {
    fn cells(&self) -> Vec<Cell> {
        let of = |count: u32, way: &str, kind: &str| {
            let cell = Cell::new(cell_name(count, way, kind));
            cell.with("cores", count).with("way", way).with("kind", kind)
        };
        let of_count = |count| {
            let reads = WAYS.map(|(way, ..)| of(count, way, READ));
            let others = KINDS.iter().skip(1).map(move |(kind, ..)| of(count, CARAVANS, kind));
            reads.into_iter().chain(others)
        };
        let of_kind =
            |(kind, ..): (&'static str, _, _)| REACTOR_COUNTS.map(|count| of(count, REACTORS, kind));
        COUNTS.into_iter().flat_map(of_count).chain(KINDS.into_iter().flat_map(of_kind)).collect()
    }

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        let count = cell.word("cores");
        match cell.text("way") {
            REACTORS => bench.cores.is_some() && !bench.is_remote(),
            _ => bench.core_count_for(count) == count,
        }
    }

    fn conditions(&self, measured: &Measured) -> Option<String> {
        Some(what_more_needs(most_cores(measured)?))
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let count = cell.word("cores");
        let (_, pattern, read_percent) = cell.one_of("kind", KINDS, |kind| kind.0);
        let load = bench.load(pattern, Some(read_percent), IO_BYTES, DEPTH);
        if cell.text("way") == REACTORS {
            return self.measure_reactors(count, load, bench);
        }
        let (way, policy, receive) = cell.one_of("way", WAYS, |way| way.0);
        let tuning =
            TargetTuning { doorbell: policy.parse().ok(), receive: Some(receive), ..TargetTuning::default() };
        let mut load = load.with_doorbell(policy).with_receive(receive);
        let sockets = match way {
            CARAVANS => sockets_iops(&load, read_percent, count, bench)?,
            _ => None,
        };
        let served = bench.serve_with(ServedOptions::of(["null:1T"]).tuned(tuning).on_cores(count))?;
        load.workload.lanes = count;
        load.cores = bench.host_side(count);
        let mut values = values(&bench.run(&served, load)?.report);
        served.stop()?;
        values.insert("iops_per_side_core", values["iops"] / f64::from(count));
        if let Some(sockets) = sockets {
            values.insert("sockets_iops", sockets);
            values.insert("over_sockets", values["iops"] / sockets);
        }
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let most = most_cores(measured);
        for (way, ..) in WAYS {
            let share = most.filter(|count| *count > 1).and_then(|count| linear_share(measured, way, count));
            headlines.tell(format!("linear_share_{way}"), share);
            let iops = most.and_then(|count| measured.median(&cell_name(count, way, READ), "iops"));
            headlines.tell(format!("most_iops_{way}"), iops);
        }
        for (kind, ..) in KINDS {
            for count in counts(measured) {
                let over = measured.median(&cell_name(count, CARAVANS, kind), "over_sockets");
                headlines.push(format!("{kind}_{count}_over_sockets"), over, Some(OVER_SOCKETS));
            }
            let [one, two] = REACTOR_COUNTS.map(|count| cell_name(count, REACTORS, kind));
            let times = measured.ratio(&two, &one, "target_us");
            headlines.push(format!("{kind}_time_2_reactors_over_1"), times, Some(TIME));
        }
        let gain = |count| {
            measured.ratio(&cell_name(count, CARAVANS, READ), &cell_name(count, SINGLE, READ), "iops")
        };
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
            move |(way, ..): (&str, &str, Receive)| line(way, of(measured, way, READ), "cores", value)
        };
        let linear = |(way, ..): (&str, &str, Receive)| {
            let one = measured.cell(&cell_name(1, way, READ)).and_then(|cell| cell.spread("iops"));
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
        let over_sockets =
            |(kind, ..): (&str, &str, u8)| line(kind, of(measured, CARAVANS, kind), "cores", "over_sockets");
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
            Figure::new(
                "Over plain sockets",
                note("IOPS in caravans over those of as many pairs of plain sockets. 1 is what they reach."),
                plot(Axis::linear("IOPS over those of sockets"), KINDS.map(over_sockets).into())
                    .with_mark("goal 0.9", OVER_SOCKETS.limit()),
            ),
        ]
    }
}

impl CoreScaling {
    /// The processor time of a target with this number of reactors, which share a namespace in RAM.
    fn measure_reactors(&mut self, count: u32, load: Load, bench: &Bench) -> Result<Values, Error> {
        let allowed = CoreList::allowed().doing("the cores")?;
        let Some(division) = Division::of(allowed.cores(), count as usize) else { return Ok(Values::new()) };
        let mut load = Load { cores: division.load, ..load };
        load.options.tuning.spin = Duration::ZERO;
        load.workload.lanes = count;
        // On shared cores each side takes time from the other, and that is no disturbance.
        let bench =
            if division.is_shared { Bench { lost: Arc::default(), ..bench.clone() } } else { bench.clone() };
        let served = self.reactors.get(count, || {
            let mut options = ServedOptions::of([format!("ram:{RAM_BYTES}")]).without_spin();
            let list: Vec<_> = division.targets.iter().map(usize::to_string).collect();
            options.arguments = vec!["--cores".into(), list.join(",")];
            let served = Served::start(&bench.program, &options)?;
            // Pages that were never written are one page of zeroes.
            let mut fill = bench.load("read", None, 1 << 20, 4);
            fill.workload.fill = true;
            bench.run(&served, fill)?;
            Ok::<_, Error>(served)
        })?;
        Ok(values(&bench.run(served, load)?.report))
    }
}

/// Throughput of as many pairs of plain sockets as there are cores of each side, all at the same time; `None` beside a study
/// server.
fn sockets_iops(load: &Load, read_percent: u8, count: u32, bench: &Bench) -> Result<Option<f64>, Error> {
    if bench.is_remote() {
        return Ok(None);
    }
    let pairs: Vec<Option<Cores>> = match bench.pairs.get(..count as usize) {
        Some(pairs) => pairs.iter().copied().map(Some).collect(),
        None => vec![bench.cores],
    };
    let benches: Vec<Bench> = pairs.into_iter().map(|cores| Bench { cores, ..bench.clone() }).collect();
    let each: Result<Vec<f64>, Error> = std::thread::scope(|scope| {
        let measure = |bench| move || Bench::ceiling(bench, load, read_percent, IN_CAPSULE_BYTES, 0);
        let runs: Vec<_> = benches.iter().map(|bench| scope.spawn(measure(bench))).collect();
        let ends = runs.into_iter().map(|run| run.join().expect("the sockets do not panic"));
        ends.map(|ceiling| Ok(ceiling?.iops())).collect()
    });
    Ok(Some(each?.iter().sum()))
}

/// The cells of a way and kind.
fn of<'a>(measured: &'a Measured, way: &'a str, kind: &'a str) -> impl Iterator<Item = &'a CellRounds> {
    measured.of("way", way).filter(move |cell| cell.cell.text("kind") == kind)
}

/// The numbers of cores that each side had.
fn counts(measured: &Measured) -> Vec<u32> {
    let lanes = measured.cells.iter().filter(|cell| cell.cell.text("way") != REACTORS);
    let mut counts: Vec<u32> = lanes.map(|cell| cell.cell.word("cores")).collect();
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
    let ratio = measured.ratio(&cell_name(count, way, READ), &cell_name(1, way, READ), "iops")?;
    Some(ratio / f64::from(count))
}

fn cell_name(count: u32, way: &str, kind: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    match (way, kind) {
        (REACTORS, _) => format!("{count} reactor{plural} {kind}"),
        (_, READ) => format!("{count} core{plural} {way}"),
        _ => format!("{count} core{plural} {way} {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};
    use crate::measured::of_rounds;

    /// Cells of up to this number of cores, of which each further one carries nine tenths of the first.
    fn up_to(most: u32) -> Measured {
        let cells = CoreScaling::default().cells().into_iter();
        let cells = cells.filter(|cell| cell.text("way") != REACTORS && cell.word("cores") <= most);
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
        let headline = CoreScaling::default().headline(&up_to(4));
        let share = of_key(&headline, "linear_share_caravans").value;
        assert!((share - 3.7 / 4.0).abs() < 1e-9, "{share}");
        assert!((of_key(&headline, "caravans_gain_most_cores").value - 5.0).abs() < 1e-9);
        assert!((of_key(&headline, "most_iops_single").value - 7.4e5).abs() < 1e-3);
        let figures = CoreScaling::default().figures(&up_to(4));
        let linear = figures[0].plot.series.iter().find(|series| series.name == "caravans, linear").unwrap();
        let last = linear.points.last().unwrap();
        assert_eq!((last.x, last.y, last.low, last.high), (4.0, 4e6, 3.8e6, 4.2e6));
        assert!(figures[0].note.contains("at most 4 cores: 6 need 12 cores"), "{}", figures[0].note);
    }

    #[test]
    fn one_core_is_not_compared_with_itself_and_says_what_more_needs() {
        let measured = up_to(1);
        let headline = CoreScaling::default().headline(&measured);
        let keys: Vec<_> = headline.iter().map(|headline| headline.key.as_str()).collect();
        assert_eq!(keys, ["most_iops_single", "most_iops_caravans", "caravans_gain_one_core"]);
        let told = CoreScaling::default().conditions(&measured).unwrap();
        assert!(told.starts_with("Each side had at most one core: 2 need 4 cores"), "{told}");
        assert_eq!(CoreScaling::default().conditions(&Measured::default()), None);
        assert_eq!(what_more_needs(24), "Each side had up to 24 cores.");
    }

    #[test]
    fn rows_need_a_pair_of_cores_for_each_lane() {
        let pairs = (0..3).map(|at| Cores { host: 2 * at, target: 2 * at + 1 }).collect();
        let bench = Bench { pairs, ..Bench::for_tests() };
        let suited = |bench: &Bench| -> Vec<u32> {
            let cells = CoreScaling::default().cells().into_iter();
            let cells = cells.filter(|cell| CoreScaling::default().suits(cell, bench));
            cells.filter(|cell| cell.text("way") == SINGLE).map(|cell| cell.word("cores")).collect()
        };
        assert_eq!(suited(&bench), [1, 2, 3]);
        assert_eq!(suited(&Bench::for_tests()), [1], "both sides on the only core");
    }

    #[test]
    fn throughput_is_held_against_sockets_and_time_against_one_reactor() {
        let values = |cell: &Cell| {
            let count = f64::from(cell.word("cores"));
            let write = if cell.text("kind") == "write" { 0.2 } else { 0.0 };
            let more = (0.1 + write) * (count - 1.0);
            [("iops", 1e6), ("over_sockets", 1.0 - write), ("target_us", 1.0 + more)]
        };
        let headline = headline_of(&CoreScaling::default(), values);
        for (key, value, is_reached) in [
            ("read_4_over_sockets", 1.0, true),
            ("write_4_over_sockets", 0.8, false),
            ("mix_time_2_reactors_over_1", 1.1, true),
            ("write_time_2_reactors_over_1", 1.3, false),
        ] {
            let told = of_key(&headline, key);
            assert!((told.value - value).abs() < 1e-9, "{key}: {}", told.value);
            assert_eq!(told.is_reached(), Some(is_reached), "{key}");
        }
    }

    #[test]
    fn reactors_are_compared_where_there_are_two_cores() {
        let suited = |bench: &Bench| -> Vec<String> {
            let cells = CoreScaling::default().cells().into_iter();
            let cells = cells.filter(|cell| cell.text("way") == REACTORS);
            cells.filter(|cell| CoreScaling::default().suits(cell, bench)).map(|cell| cell.name).collect()
        };
        let two = Bench { cores: Some(Cores { host: 0, target: 1 }), ..Bench::for_tests() };
        let names = ["1 reactor read", "2 reactors read", "1 reactor write", "2 reactors write"];
        assert_eq!(suited(&two)[..4], names);
        assert!(suited(&Bench::for_tests()).is_empty());
    }
}
