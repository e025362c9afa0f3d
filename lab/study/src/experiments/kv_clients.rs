//! `kv-clients`: memcached clients at one port of a target with more reactors, and of memcached with as many threads.

use linux::CoreList;

use super::prelude::*;
use crate::division::{self, Division};
use crate::peers::{MEMCACHED, free_place};
use crate::running_peer::RunningPeer;
use crate::text_load::{self, Kind, Protocol, TextLoad, TextResult};

const OURS: &str = "nvlane";
const SERVERS: [&str; 2] = [OURS, MEMCACHED.name];

/// Threads of a server.
const COUNTS: [u32; 4] = [1, 2, 4, 7];

const KEY_COUNT: u64 = 1_000_000;

/// Memory of memcached, MiB.
const MEMORY_MIB: u32 = 1024;

/// The requests of each generator, and the bars: operations of 2, 4 and 7 threads over those of one.
struct Work {
    name: &'static str,
    kind: Kind,
    batch: usize,
    connections: usize,
    over_one: Option<[f64; 3]>,
}

const fn work(name: &'static str, kind: Kind, batch: usize, over_one: [f64; 3]) -> Work {
    Work { name, kind, batch, connections: 4, over_one: Some(over_one) }
}

const WORKS: [Work; 5] = [
    work("get in 256", Kind::Get, 256, [1.8, 3.5, 6.0]),
    work("get in 32", Kind::Get, 32, [1.8, 3.5, 6.0]),
    work("multiget of 64", Kind::MultiGet, 64, [1.8, 3.5, 6.0]),
    work("set in 256", Kind::Set, 256, [1.8, 3.5, 4.5]),
    Work { name: ALONE, kind: Kind::Get, batch: 1, connections: 64, over_one: None },
];

/// One command at a time, and the bar over memcached with as many threads.
const ALONE: &str = "get, 64 connections";
const OVER_MEMCACHED: Bar = Bar::AtLeast(1.2);

pub(crate) const ABOUT: About = About {
    name: "kv-clients",
    title: "Do n threads serve memcached clients n times as fast as one?",
    method: "A million keys of 16 bytes with values of 32 behind one port. nvlane has a reactor for each core, memcached as many threads. A \
             generator for each of them, on cores of its own where there are enough: pipelines of 256 and 32 gets, multigets of 64 and \
             pipelines of 256 sets on four connections, and one get at a time on 64. Otherwise all share all cores, and the row says so. Speed is \
             for each second of the server's processor time, times its cores: what it would carry if it had them whole. Counts for which \
             there are too few cores are n/a. memcached comes from the path, or from NVLANE_MEMCACHED_BIN.",
    claims: &[],
    machines: Machines::Here("the generators have as many cores as the server"),
    judged_by: "ops_per_cpu",
    columns: "whole_cores_ops ops_per_cpu ops server_ns p99_us is_shared",
};

/// Starts a server with all keys.
fn start(name: &str, cores: &[usize], bench: &Bench) -> Result<RunningPeer, Error> {
    let server = if name == OURS {
        let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let options = ServedOptions {
            memcached: Some(free_place()?),
            arguments: vec!["--cores".into(), list],
            ..ServedOptions::of(["kv:ram:512M"]).without_spin()
        };
        RunningPeer::ours(Served::start(&bench.program, &options)?)?
    } else {
        RunningPeer::here(&MEMCACHED, cores, MEMORY_MIB)?
    };
    text_load::fill(server.place, Protocol::Memcached, KEY_COUNT)?;
    Ok(server)
}

/// The servers, by name and number of threads.
#[derive(Debug, Default)]
pub(crate) struct KvClients {
    servers: Kept<(bool, u32), RunningPeer>,
    core_count: usize,
    /// Version of memcached.
    seen: Option<String>,
}

impl Experiment for KvClients {
    fn cells(&self) -> Vec<Cell> {
        let of = |work: &Work, server: &'static str, count: u32| {
            let cell = Cell::new(cell_name(work.name, server, count)).with("work", work.name);
            cell.with("server", server).with("count", count)
        };
        let of_work =
            |work| SERVERS.into_iter().flat_map(move |server| COUNTS.map(|count| of(work, server, count)));
        WORKS.iter().flat_map(of_work).collect()
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        bench.check_cores()?;
        MEMCACHED.version().map(drop)
    }

    fn seen(&self) -> Vec<String> {
        self.seen.iter().cloned().collect()
    }

    fn conditions(&self, measured: &Measured) -> Option<String> {
        let is_shared =
            |count| measured.median(&cell_name(WORKS[0].name, OURS, count), "is_shared") == Some(1.0);
        division::told(&COUNTS, self.core_count, "", "server", is_shared)
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let count = cell.word("count");
        let allowed = CoreList::allowed().doing("the cores")?;
        self.core_count = allowed.cores().len();
        let Some(division) = Division::of(allowed.cores(), count as usize) else { return Ok(Values::new()) };
        if self.seen.is_none() {
            self.seen = Some(format!("{} {}", MEMCACHED.name, MEMCACHED.version()?));
        }
        let name = cell.text("server");
        let server = self.servers.get((name == OURS, count), || start(name, &division.targets, bench))?;
        let work = cell.one_of("work", &WORKS, |work| work.name);
        let times = (bench.times.warm_up, bench.times.measure);
        let load = TextLoad::new((work.kind, work.batch), work.connections, KEY_COUNT, times);
        let (results, used_ns) = run_together(server, &division, &load, count, bench)?;
        Ok(values(&results, used_ns, count, division.is_shared))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for work in &WORKS {
            let key = work.name.split([' ', ',']).filter(|word| !matches!(*word, "" | "in" | "of"));
            let key = key.collect::<Vec<_>>().join("_");
            for (at, count) in COUNTS.into_iter().enumerate() {
                let name = |server, count| cell_name(work.name, server, count);
                if let (Some(over_one), true) = (work.over_one, at > 0) {
                    let ratio = measured.ratio(&name(OURS, count), &name(OURS, 1), "whole_cores_ops");
                    headlines.push(
                        format!("{key}_{count}_over_1"),
                        ratio,
                        Some(Bar::AtLeast(over_one[at - 1])),
                    );
                }
                let ratio =
                    measured.ratio(&name(OURS, count), &name(MEMCACHED.name, count), "whole_cores_ops");
                let bar = work.over_one.is_none().then_some(OVER_MEMCACHED);
                headlines.push(format!("{key}_{count}_over_memcached"), ratio, bar);
            }
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |work: &Work| {
            let of = |server: &'static str| {
                let cells = COUNTS.map(|count| cell_name(work.name, server, count));
                bars(server, measured, cells, "whole_cores_ops")
            };
            let names = COUNTS.map(|count| count.to_string()).to_vec();
            Figure::new(
                format!("Whole cores: {}", work.name),
                "Operations for each second of the server's processor time, times its threads: twice as many with twice the threads is \
                 linear. Higher is better. n/a: there are fewer cores, or other load disturbed all rounds.",
                Plot::bars(
                    "threads of the server",
                    names,
                    Axis::linear("operations per second"),
                    SERVERS.map(of).into(),
                ),
            )
        };
        WORKS.iter().map(figure).collect()
    }
}

/// Runs a generator for each thread of the server at the same time. Returns their results, and the server's processor
/// time while the first one measured, ns.
fn run_together(
    server: &RunningPeer,
    division: &Division,
    load: &TextLoad,
    count: u32,
    bench: &Bench,
) -> Result<(Vec<TextResult>, u64), Error> {
    let run = |number: u32| {
        let load = TextLoad { seed: u64::from(number) + 1, ..*load };
        let core = division.load[number as usize % division.load.len()];
        server.run(&load, Some(core), bench)
    };
    let results = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..count).map(|number| scope.spawn(move || run(number))).collect();
        let ended = runs.into_iter().map(|run| run.join().expect("the load does not panic"));
        ended.collect::<Result<Vec<_>, Error>>()
    })?;
    let used_ns = results[0].1;
    Ok((results.into_iter().map(|(result, _)| result).collect(), used_ns))
}

/// The values of a row, from the results of its generators.
fn values(results: &[TextResult], used_ns: u64, count: u32, is_shared: bool) -> Values {
    let ops: f64 = results.iter().map(TextResult::per_second).sum();
    // Generators measure for the same time, and begin some microseconds apart.
    let elapsed_s = results.first().map_or(0.0, |result| result.elapsed.as_secs_f64());
    let per_core = ops * elapsed_s / used_ns as f64 * 1e9;
    let p99 = results.iter().map(|result| result.latency.percentile(99.0)).max();
    Values::from([
        ("ops", ops),
        ("ops_per_cpu", per_core),
        ("whole_cores_ops", per_core * f64::from(count)),
        ("server_ns", 1e9 / per_core.max(1e-9)),
        ("p99_us", us(p99.unwrap_or_default())),
        ("is_shared", f64::from(u8::from(is_shared))),
    ])
}

fn cell_name(work: &str, server: &str, count: u32) -> String {
    format!("{work}, {server} {count}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use load::histogram::Histogram;

    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn bars_are_over_one_thread_and_over_memcached() {
        let speed = |cell: &Cell| {
            let of_server = if cell.text("server") == OURS { 3.0 } else { 2.0 };
            of_server * f64::from(cell.word("count")).min(4.0)
        };
        let headline = headline_of(&KvClients::default(), |cell| [("whole_cores_ops", speed(cell))]);
        let of = |key| of_key(&headline, key);
        assert_eq!((of("get_256_4_over_1").value, of("get_256_4_over_1").is_reached()), (4.0, Some(true)));
        assert_eq!(of("get_256_7_over_1").is_reached(), Some(false));
        assert_eq!(of("get_64_connections_7_over_memcached").value, 1.5);
        assert_eq!(of("get_64_connections_7_over_memcached").is_reached(), Some(true));
        assert_eq!(of("set_256_2_over_memcached").is_reached(), None);
    }

    #[test]
    fn whole_cores_carry_what_the_used_time_allows() {
        let result = || TextResult {
            operations: 1_000_000,
            elapsed: Duration::from_secs(2),
            latency: Histogram::new(),
        };
        let values = values(&[result(), result()], 1_000_000_000, 2, true);
        assert_eq!((values["ops"], values["ops_per_cpu"], values["whole_cores_ops"]), (1e6, 2e6, 4e6));
        assert_eq!((values["server_ns"], values["is_shared"]), (500.0, 1.0));
    }
}
