//! `kv-neighbour`: the loss of a program that is bound by memory beside a loaded target.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use load::disturbance::{Side, Watch};
use load::key_value::{KeyValueLoad, KeyValueResult};

use super::prelude::*;
use crate::bench::on_core;
use crate::key_value::{Pairs, mix};
use crate::memory_load::{Access, MEMORY_BYTES, MemoryLoad};
use crate::remote::{Request, StartMemoryReader};
use crate::side_load::Place;

const ALONE: &str = "alone";
const GET: &str = "get";
const SET: &str = "set";
/// The work of the target meanwhile.
const LOADS: [&str; 3] = [ALONE, GET, SET];

const ACCESSES: [(&str, Access); 2] = [("random", Access::Random), ("sequential", Access::Sequential)];

/// Memory of the target.
const TARGET_BYTES: u64 = 512 << 20;
/// Keys, which take most of it.
const KEY_COUNT: u64 = 6_000_000;

/// Operations of a batch, and batches in flight.
const BATCH: u16 = 256;
const DEPTH: u16 = 4;

pub(crate) const ABOUT: About = About {
    name: "kv-neighbour",
    title: "How much slower does another program run beside the target?",
    method: "A program that does nothing but read 512 MiB of memory, a line of 64 bytes here and there or one after the other, on a core of its \
             own: alone, while the target has nothing to do, and beside a target with six million pairs of 16 and 32 bytes, in batches of 256 \
             GETs or SETs of random keys, four in flight. Target and load have a core each; with two cores in all they share one, so that the \
             program has the other for itself. What the program loses is what caches and memory that all cores share give to the target \
             and its load. KV-Direct leaves the host's processor idle; here the target takes up to a core, which the table has as \
             target cores. Between two machines the program runs beside the target, on the second core of the study server.",
    claims: &[
        Claim {
            source: "KV-Direct (SOSP 2017)",
            says: "With the card at its peak, random reads of the host's processor stay at 14.4 GB/s.",
            number: "1.00 times",
            ours: "random_beside_get_over_alone",
        },
        Claim {
            source: "KV-Direct (SOSP 2017)",
            says: "With the card at its peak, sequential reads go from 60.3 GB/s to 55.8 GB/s.",
            number: "0.93 times",
            ours: "sequential_beside_get_over_alone",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "gb_per_s",
    columns: "gb_per_s ops target_cores",
};

/// Cores of the three: program, target and load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    program: usize,
    target: usize,
    load: usize,
    /// Whether target and load share a core.
    is_shared: bool,
}

impl Division {
    /// The program has a core of its own. `None` if there is one core only.
    fn of(bench: &Bench) -> Result<Option<Self>, Error> {
        let Some(cores) = bench.cores else { return Ok(None) };
        if let Some(server) = &bench.server {
            let &[target, program, ..] = server.machine.cores.as_slice() else { return Ok(None) };
            return Ok(Some(Self { program, target, load: cores.host, is_shared: false }));
        }
        let place = Place::of(bench)?;
        let third = if place.is_shared() { None } else { place.first_core() };
        Ok(Some(Self::among((cores.host, cores.target), third)))
    }

    fn among((host, target): (usize, usize), third: Option<usize>) -> Self {
        match third {
            Some(third) => Self { program: third, target, load: host, is_shared: false },
            None => Self { program: target, target: host, load: host, is_shared: true },
        }
    }
}

/// A program's reads, beside a target.
#[derive(Debug, Default)]
pub(crate) struct KvNeighbour {
    pairs: Kept<(), Pairs>,
    memory: Option<MemoryLoad>,
    division: Option<Division>,
    is_remote: bool,
}

/// The load of a row.
fn load(kind: &str) -> KeyValueLoad {
    KeyValueLoad { mix: mix(kind), keys: KEY_COUNT, batch: BATCH, depth: DEPTH, ..KeyValueLoad::default() }
}

impl Experiment for KvNeighbour {
    fn cells(&self) -> Vec<Cell> {
        let of = |access: &'static str, load: &'static str| {
            Cell::new(cell_name(access, load)).with("access", access).with("load", load)
        };
        ACCESSES.into_iter().flat_map(|(access, _)| LOADS.map(|load| of(access, load))).collect()
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        bench.check_cores()?;
        if bench.server.as_ref().is_some_and(|server| server.machine.cores.len() < 2) {
            return Err(Error::Lacking(
                "this needs a second core of the study server, for the program".into(),
            ));
        }
        bench.check_memory(2 * (TARGET_BYTES + MEMORY_BYTES as u64))
    }

    fn conditions(&self, _: &Measured) -> Option<String> {
        let Division { program, target, load, is_shared } = self.division?;
        let program = format!("The program on core {program}");
        Some(if self.is_remote {
            format!(
                "{program} and the target on core {target} of their machine, the load on core {load} of this one."
            )
        } else if is_shared {
            format!("{program}; target and load share core {target}, as there are two cores.")
        } else {
            format!("{program}, the target on core {target}, the load on core {load}.")
        })
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let division = Division::of(bench)?.expect("checked");
        self.division = Some(division);
        self.is_remote = bench.is_remote();
        let load_bench = Bench { host_cores: vec![division.load], ..bench.clone() };
        // On one core load and target take time from each other, and that is no disturbance.
        let load_bench =
            if division.is_shared { Bench { lost: Arc::default(), ..load_bench } } else { load_bench };
        let pairs = self.pairs.get((), || {
            let options = ServedOptions {
                core: Some(division.target),
                ..ServedOptions::of([format!("kv:ram:{TARGET_BYTES}")])
            };
            let options = options.without_spin();
            let options = if bench.is_remote() { options.on_cores(1) } else { options };
            let mut pairs = Pairs::serve(&load_bench, options)?;
            pairs.fill(&load_bench, load(SET))?;
            Ok::<_, Error>(pairs)
        })?;
        let (_, access) = cell.one_of("access", ACCESSES, |access| access.0);
        let (warm_up, measure) = (bench.times.warm_up, bench.times.measure);
        // The load begins before the program's measurement, and ends behind it.
        let times = (warm_up / 2, warm_up + measure);
        let target = || match cell.text("load") {
            ALONE => Ok(None),
            kind => pairs.run_for(&load_bench, load(kind), times, &mut || ()).map(Some),
        };
        let (bytes_per_s, loaded) = if let Some(server) = &bench.server {
            let start = StartMemoryReader { access, warm_up, measure };
            server.request::<()>(&Request::StartMemoryReader(start))?;
            let end = Instant::now() + warm_up + measure;
            let loaded = thread::scope(|scope| scope.spawn(target).join().expect("the load does not panic"))?;
            bench.sleep(end.saturating_duration_since(Instant::now()));
            let (bytes_per_s, loss) = server.request(&Request::EndMemoryReader)?;
            bench.note_loss(Side::Target, loss);
            (bytes_per_s, loaded)
        } else {
            let memory = self.memory.get_or_insert_with(|| MemoryLoad::new(MEMORY_BYTES));
            let program = || {
                let watch = Watch::thread();
                let bytes_per_s = memory.run(access, (warm_up, measure), &|| bench.is_stopped())?;
                bench.note_loss(Side::Host, watch.loss());
                Ok(bytes_per_s)
            };
            let (read, loaded) = thread::scope(|scope| {
                let target = scope.spawn(target);
                let read = on_core(Some(division.program), program);
                (read, target.join().expect("the load does not panic"))
            });
            (read?, loaded?)
        };
        Ok(values(bytes_per_s, loaded.as_ref()))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (access, _) in ACCESSES {
            for load in [GET, SET] {
                let of = |load| cell_name(access, load);
                let ratio = measured.ratio(&of(load), &of(ALONE), "gb_per_s");
                headlines.tell(format!("{access}_beside_{load}_over_alone"), ratio);
            }
        }
        for load in [GET, SET] {
            let cores = measured.median(&cell_name(ACCESSES[0].0, load), "target_cores");
            headlines.tell(format!("target_cores_{load}"), cores);
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = ACCESSES.map(|(access, _)| access.to_owned()).to_vec();
        let of = |load: &str| {
            let name = if load == ALONE { ALONE.to_owned() } else { format!("beside {load}s") };
            bars(&name, measured, ACCESSES.map(|(access, _)| cell_name(access, load)), "gb_per_s")
        };
        vec![Figure::new(
            "Reads of a program beside the target",
            "Of 512 MiB of memory, by one thread on a core of its own. Higher is better.",
            Plot::bars("", names, Axis::linear("GB/s"), LOADS.map(of).into()),
        )]
    }
}

/// The values of a row: reads of the program, and the load beside it.
fn values(bytes_per_s: f64, loaded: Option<&KeyValueResult>) -> Values {
    let mut values = Values::from([("gb_per_s", bytes_per_s / 1e9)]);
    if let Some(loaded) = loaded {
        values.insert("ops", loaded.per_second());
        let used = loaded.target.map(|time| time.total_ns() as f64 / loaded.elapsed.as_nanos().max(1) as f64);
        values.extend(used.map(|cores| ("target_cores", cores)));
    }
    values
}

fn cell_name(access: &str, load: &str) -> String {
    if load == ALONE { format!("{access} {load}") } else { format!("{access} beside {load}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use load::cpu::CpuTime;

    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn the_program_has_a_core_of_its_own() {
        let two = Division::among((0, 1), None);
        assert_eq!(two, Division { program: 1, target: 0, load: 0, is_shared: true });
        let three = Division::among((0, 1), Some(2));
        assert_eq!(three, Division { program: 2, target: 1, load: 0, is_shared: false });
    }

    #[test]
    fn what_is_lost_is_told_for_each_kind_of_read_and_load() {
        let headline = headline_of(&KvNeighbour::default(), |cell| {
            let share = match (cell.text("access"), cell.text("load")) {
                (_, ALONE) => 1.0,
                ("random", _) => 0.75,
                _ => 0.5,
            };
            [("gb_per_s", 8.0 * share), ("target_cores", 0.9)]
        });
        let of = |key| of_key(&headline, key).value;
        assert_eq!((of("random_beside_get_over_alone"), of("sequential_beside_set_over_alone")), (0.75, 0.5));
        assert_eq!(of("target_cores_set"), 0.9);
    }

    #[test]
    fn a_row_has_the_load_beside_it() {
        assert_eq!(values(2e9, None), Values::from([("gb_per_s", 2.0)]));
        let mut loaded = KeyValueResult { elapsed: Duration::from_secs(2), ..KeyValueResult::default() };
        loaded.kinds[0].count = 4;
        loaded.target = Some(CpuTime { system_ns: 1_000_000_000, ..CpuTime::default() });
        let values = values(2e9, Some(&loaded));
        assert_eq!((values["ops"], values["target_cores"]), (2.0, 0.5));
    }
}
