//! `kv-scaling`: one target with more reactors, and more targets.

use linux::CoreList;
use load::key_value::{KeyValueLoad, KeyValueResult};

use super::prelude::*;
use crate::division::{self, Division};
use crate::key_value::{Pairs, mix};

/// Reactors of one target, or targets with one reactor each.
const COUNTS: [u32; 4] = [1, 2, 4, 8];

const REACTORS: &str = "reactors";
/// Reactors, each of which gets only the keys of its own partition.
const WITH_MAP: &str = "reactors with map";
const TARGETS: &str = "targets";
const WAYS: [&str; 3] = [REACTORS, WITH_MAP, TARGETS];

const KINDS: [&str; 2] = ["get", "set"];

/// Bars: operations of a target with this number of reactors over those of one with one. 1.15 times the time per key, and 7
/// of 8 cores.
const REACTORS_OVER_ONE: [(u32, f64); 2] = [(2, 1.74), (8, 7.0)];

/// Operations of a batch, and batches in flight on each lane.
const BATCH: u16 = 64;
const DEPTH: u16 = 4;

pub(crate) const ABOUT: About = About {
    name: "kv-scaling",
    title: "Do n cores serve n times the operations of one?",
    method: "Gets and sets on 100,000 keys of 16 bytes, values of 32, batches of 64, four in flight on each lane. Reactors: one target with a \
             reactor and a lane for each core, each of which uses the partitions of keys of all where they lie. Reactors with map: the host \
             learns how the target divides keys, places a lane on each reactor, and sends each key on the lane of its partition. Targets: \
             processes with one reactor and one lane each, whose keys have nothing to do with each other, which is what KV-Direct's cards \
             are in one server. Each reactor has a core, the load has as many others where there are enough; otherwise all share all cores, and \
             the row says so. Speed is for each second of the targets' processor time, so it does not matter how long they wait for a shared \
             core; times the number of cores it is what they would carry if they had them whole, with a load that keeps them busy. \
             Counts for which there are too few cores are n/a. Between two machines the targets have the cores of the server, the load those \
             of this machine.",
    claims: &[Claim {
        source: "KV-Direct (SOSP 2017)",
        says: "Ten cards in one server: 1.22 billion operations per second, 180 million with one; almost linear.",
        number: "6.8 times with ten",
        ours: "get_2_targets_over_1",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "ops_per_cpu",
    columns: "whole_cores_ops ops_per_cpu ops target_ns cores_used is_shared",
};

/// The targets of each row, by whether each has one reactor, and their number.
#[derive(Debug, Default)]
pub(crate) struct KvScaling {
    pairs: Kept<(bool, u32), Vec<Pairs>>,
    /// Cores of this machine, or of the study server for targets.
    core_count: usize,
    is_remote: bool,
}

impl KvScaling {
    /// The targets of a row, each of them filled.
    fn targets(&mut self, cell: &Cell, cores: &[usize], bench: &Bench) -> Result<&mut Vec<Pairs>, Error> {
        let way = cell.text("way");
        let fill = || {
            let serve = |(first, cores): (u32, &[usize])| {
                let mut options = ServedOptions::of(["kv:ram:64M"]).without_spin();
                let mut pairs = if bench.is_remote() {
                    let count = u32::try_from(cores.len()).expect("a few cores");
                    Pairs::serve(bench, options.behind_cores(first).on_cores(count))?
                } else {
                    let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
                    options.arguments = vec!["--cores".into(), list];
                    Pairs::serve_anywhere(bench, &options)?
                };
                pairs.fill(bench, load("set", 1))?;
                Ok(pairs)
            };
            if way == TARGETS {
                (0..).zip(cores.chunks(1)).map(serve).collect()
            } else {
                serve((0, cores)).map(|pairs| vec![pairs])
            }
        };
        self.pairs.get((way == TARGETS, cell.word("count")), fill)
    }
}

/// A load of one kind on `lanes` lanes.
fn load(kind: &str, lanes: u16) -> KeyValueLoad {
    KeyValueLoad { mix: mix(kind), lanes, batch: BATCH, depth: DEPTH, ..KeyValueLoad::default() }
}

impl Experiment for KvScaling {
    fn cells(&self) -> Vec<Cell> {
        let of = |kind: &'static str, way: &'static str, count: u32| {
            Cell::new(cell_name(kind, way, count)).with("kind", kind).with("way", way).with("count", count)
        };
        // With one reactor there is no map.
        let is_meant = |way: &str, count: u32| way != WITH_MAP || count > 1;
        let of_way = |(kind, way)| {
            COUNTS
                .into_iter()
                .filter(move |count| is_meant(way, *count))
                .map(move |count| of(kind, way, count))
        };
        KINDS.into_iter().flat_map(|kind| WAYS.map(|way| (kind, way))).flat_map(of_way).collect()
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        bench.check_cores()
    }

    fn conditions(&self, measured: &Measured) -> Option<String> {
        let is_shared = |count| {
            let of = |kind| measured.median(&cell_name(kind, REACTORS, count), "is_shared") == Some(1.0);
            KINDS.into_iter().any(of)
        };
        let place = if self.is_remote { " for targets on their machine" } else { "" };
        division::told(&COUNTS, self.core_count, place, "targets", is_shared)
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let count = cell.word("count");
        let division = match &bench.server {
            Some(server) => {
                let cores = &server.machine.cores;
                (self.core_count, self.is_remote) = (cores.len(), true);
                Division::apart(cores, &bench.host_cores, count as usize)
            }
            None => {
                let allowed = CoreList::allowed().doing("the cores")?;
                self.core_count = allowed.cores().len();
                Division::of(allowed.cores(), count as usize)
            }
        };
        let Some(division) = division else { return Ok(Values::new()) };
        let is_shared = division.is_shared;
        let (kind, way) = (cell.text("kind"), cell.text("way"));
        let targets = self.targets(cell, &division.targets, bench)?;
        let lanes = if way == TARGETS { 1 } else { u16::try_from(count).expect("a few reactors") };
        let load = KeyValueLoad { follows_partitions: way == WITH_MAP, ..load(kind, lanes) };
        let results = run_together(targets, &division, &load, bench)?;
        if results.iter().any(|result| result.is_divided != load.follows_partitions) {
            return Err(Error::Load(format!("the keys of {way:?} are not divided as they should be")));
        }
        Ok(values(&results, count, is_shared))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for kind in KINDS {
            for way in WAYS {
                for count in COUNTS.into_iter().skip(1) {
                    let one = cell_name(kind, if way == TARGETS { TARGETS } else { REACTORS }, 1);
                    let times = measured.ratio(&cell_name(kind, way, count), &one, "whole_cores_ops");
                    let bar = REACTORS_OVER_ONE.iter().find(|(of, _)| way == REACTORS && *of == count);
                    let key = format!("{kind}_{count}_{}_over_1", way.replace(' ', "_"));
                    headlines.push(key, times, bar.map(|(_, times)| Bar::AtLeast(*times)));
                }
            }
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let name = |count: u32| {
            let is_shared = measured.median(&cell_name(KINDS[0], REACTORS, count), "is_shared") == Some(1.0);
            format!("{count}{}", if is_shared { " (shared cores)" } else { "" })
        };
        let figure = |title: String, note: &str, kind: &str, value: &str| {
            let of = |way: &str| {
                let label = match way {
                    REACTORS => "one target",
                    WITH_MAP => "one target, keys by its map",
                    _ => "a target for each core",
                };
                bars(label, measured, COUNTS.map(|count| cell_name(kind, way, count)), value)
            };
            let names = COUNTS.map(name).to_vec();
            let y = Axis::linear("operations per second");
            Figure::new(title, note, Plot::bars("cores of the targets", names, y, WAYS.map(of).into()))
        };
        let whole = "Operations for each second of the targets' processor time, times their cores: twice as many with twice the cores is \
                     linear. Higher is better. n/a: there are fewer cores, or other load disturbed all rounds.";
        let seen = "What went over the lanes, with the load on other cores or on the same ones (shared). Higher is better.";
        let of_kind = |kind: &str| {
            let titles = [format!("Whole cores: {kind}"), format!("Measured: {kind}")];
            let [first, second] = titles;
            [figure(first, whole, kind, "whole_cores_ops"), figure(second, seen, kind, "ops")]
        };
        KINDS.into_iter().flat_map(of_kind).collect()
    }
}

/// Runs the same load on each target at the same time.
fn run_together(
    targets: &mut [Pairs],
    division: &Division,
    load: &KeyValueLoad,
    bench: &Bench,
) -> Result<Vec<KeyValueResult>, Error> {
    let benches = (0..targets.len()).map(|at| {
        // A lane of each target has a core in turn.
        let mut host_cores = division.load.clone();
        host_cores.rotate_left(at % division.load.len());
        let bench = Bench { host_cores, ..bench.clone() };
        // On shared cores each side takes time from the other, and that is no disturbance.
        if division.is_shared { Bench { lost: std::sync::Arc::default(), ..bench } } else { bench }
    });
    let benches: Vec<Bench> = benches.collect();
    std::thread::scope(|scope| {
        let runs = targets.iter_mut().zip(&benches).map(|(pairs, bench)| {
            let load = load.clone();
            scope.spawn(move || pairs.run(bench, load))
        });
        let runs: Vec<_> = runs.collect();
        runs.into_iter().map(|run| run.join().expect("the load does not panic")).collect()
    })
}

/// The values of a row, from the result of each of its targets.
fn values(results: &[KeyValueResult], core_count: u32, is_shared: bool) -> Values {
    let ops: f64 = results.iter().map(KeyValueResult::per_second).sum();
    let count: u64 = results.iter().map(KeyValueResult::count).sum();
    let mut values = Values::from([("ops", ops), ("is_shared", f64::from(u8::from(is_shared)))]);
    let used_ns: Option<u64> = results.iter().map(|result| Some(result.target?.total_ns())).sum();
    let elapsed_s = results.iter().map(|result| result.elapsed.as_secs_f64()).fold(0.0, f64::max);
    if let Some(used_ns) = used_ns.filter(|ns| *ns > 0) {
        let per_core = count as f64 / used_ns as f64 * 1e9;
        values.insert("ops_per_cpu", per_core);
        values.insert("whole_cores_ops", per_core * f64::from(core_count));
        values.insert("target_ns", used_ns as f64 / count.max(1) as f64);
        values.insert("cores_used", used_ns as f64 / 1e9 / elapsed_s.max(1e-9));
    }
    values
}

fn cell_name(kind: &str, way: &str, count: u32) -> String {
    let way = if count == 1 { way.trim_end_matches('s') } else { way };
    format!("{kind}, {count} {way}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use load::cpu::CpuTime;

    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    /// The result of a target that did a million operations in two seconds, with this processor time.
    fn result(target_ns: u64) -> KeyValueResult {
        let mut result = KeyValueResult { elapsed: Duration::from_secs(2), ..KeyValueResult::default() };
        result.kinds[0].count = 1_000_000;
        result.target = Some(CpuTime { user_ns: target_ns, ..CpuTime::default() });
        result
    }

    #[test]
    fn whole_cores_carry_what_the_used_time_allows() {
        let values = values(&[result(500_000_000), result(1_500_000_000)], 2, true);
        assert_eq!((values["ops"], values["ops_per_cpu"], values["whole_cores_ops"]), (1e6, 1e6, 2e6));
        assert_eq!((values["target_ns"], values["cores_used"], values["is_shared"]), (1000.0, 1.0, 1.0));
        let unknown = super::values(&[KeyValueResult { target: None, ..result(1) }], 1, false);
        assert!(!unknown.contains_key("ops_per_cpu"));
    }

    #[test]
    fn rows_without_cores_have_no_number_and_a_reason() {
        let cells = KvScaling::default().cells().into_iter().map(|cell| {
            let count = cell.word("count");
            let ops = f64::from(count) * if cell.text("way") == TARGETS { 1.0 } else { 0.8 };
            let round = vec![("whole_cores_ops", ops), ("is_shared", f64::from(u8::from(count == 2)))];
            (cell, vec![if count <= 2 { round } else { Vec::new() }])
        });
        let measured = crate::measured::of_rounds(cells.collect());
        let scaling = KvScaling { core_count: 2, ..KvScaling::default() };
        let headline = scaling.headline(&measured);
        assert_eq!(of_key(&headline, "get_2_targets_over_1").value, 2.0);
        assert_eq!(of_key(&headline, "set_2_reactors_over_1").value, 2.0);
        assert_eq!(of_key(&headline, "get_2_reactors_with_map_over_1").value, 2.0);
        assert_eq!(headline.len(), 6);
        assert_eq!(
            scaling.conditions(&measured).unwrap(),
            "There are 2 cores. With 2 the load shares the cores of the targets. 4, 8: n/a, because there are fewer cores."
        );
        assert_eq!(scaling.figures(&measured)[0].plot.series[0].points.len(), 2);
    }

    #[test]
    fn factors_are_told_by_way_and_number() {
        let headline =
            headline_of(&KvScaling::default(), |cell| [("whole_cores_ops", f64::from(cell.word("count")))]);
        let eight = of_key(&headline, "get_8_reactors_over_1");
        assert_eq!((eight.value, eight.is_reached()), (8.0, Some(true)));
        assert_eq!(of_key(&headline, "get_8_targets_over_1").is_reached(), None);
    }
}
