//! `kv-cache`: a cache of language-model states in nvlane and elsewhere.

use std::cell::OnceCell;
use std::path::Path;
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use host::{Options, SpreadOptions, SpreadTarget, ValueSpread};
use load::account::Account;
use load::prompts::{ChunkStore, PromptEnd, PromptLoad, PromptResult, run};
use rustix::process::{Pid, Signal, kill_process};

use super::prelude::*;
use crate::bench::on_core;
use crate::chunk_servers::{FileChunks, TextChunks};
use crate::experiment::There;
use crate::peers::{MEMCACHED, Peer, PeerServer, REDIS, free_place};

const OURS: &str = "nvlane";
const THREE: &str = "nvlane on three";
const FILES: &str = "tmpfs";
const SERVERS: [&str; 5] = [OURS, THREE, REDIS.name, MEMCACHED.name, FILES];

/// A file system in memory.
const TMPFS: &str = "/dev/shm";

const CHUNK_MIB: [u32; 5] = [1, 4, 10, 32, 80];

/// Bytes of a document and of a prompt's own chunks: about the same in chunks of every size.
const SHARED_MIB: u32 = 160;
const OWN_MIB: u32 = 80;
const DOCUMENTS: u64 = 4;

/// Memory for values of each server, of all three targets together.
const MEMORY_MIB: u32 = 1280;
const MEMORY_OF_THREE_MIB: u32 = 512;

/// Memory that the experiment needs: five servers, three targets that are restarted, and the load.
const NEEDED_BYTES: u64 = 10 << 30;

/// Measurement: some prompts of the slowest server.
const TIME: Duration = Duration::from_secs(2);

/// Targets of the rows with a restart, their measurement, and when one of them is killed and started again.
const RESTARTS: [(&str, usize); 2] = [("restart of one of three", 3), ("restart of the only one", 1)];
const RESTART_TIME: Duration = Duration::from_secs(6);
const KILLED_AT: Duration = Duration::from_millis(1500);
const STARTED_AT: Duration = Duration::from_millis(2500);
const RESTART_CHUNK_MIB: u32 = 4;

/// What the last part of a restart's measurement is: everything should be as before then.
const LAST: Duration = Duration::from_millis(1500);

/// Limit of silence, with restarts; without any, targets may have to touch much memory for the first time.
const DEADLINE: Duration = Duration::from_secs(1);
const LONG_DEADLINE: Duration = Duration::from_secs(30);

/// Bars: retrieval over redis's, the least over the most of all sizes, the longest prompt while a target is away.
const OVER_REDIS: Bar = Bar::AtLeast(2.0);
const FLATNESS: Bar = Bar::AtLeast(0.85);
const LONGEST_MS: Bar = Bar::AtMost(1200.0);

pub(crate) const ABOUT: About = About {
    name: "kv-cache",
    title: "How fast is a cache of language-model states?",
    method: "Prompts that begin with one of four documents of 160 MiB, drawn by Zipf's law, and go on with 80 MiB of their own, in chunks of \
             1 to 80 MiB under keys of 90 bytes. Each asks which of its chunks exist, retrieves the leading ones at once and stores the \
             rest; every retrieved chunk is checked. A thread on one core is the client, each server has another core and 1,280 MiB, \
             less than all chunks: nvlane with one lane; three targets with 512 MiB each on that one core; redis and memcached (-I 128m) \
             through one connection whose client pipelines and receives in place; a file for each chunk on a tmpfs, without a network. \
             Speeds are those of the calls, without the time in which the load writes and checks chunks. With restarts, a target \
             is killed after 1.5 s and started again, empty, a second later.",
    claims: &[Claim {
        source: "LMCache 0.5.6, resp.rst",
        says: "Redis 8.2 with eight workers: 5.9 GB/s for chunks of 4 MB, and 1.4 GB/s for 8 MB.",
        number: "5.9 GB/s",
        ours: "get_4m_mib_per_s",
    }],
    machines: Machines::Here(
        "it kills and starts its targets, and compares them with files in this machine's memory",
    ),
    judged_by: "get_mib_per_s",
    columns: "get_mib_per_s set_mib_per_s exist_us hit_percent prompts_per_s share host_us_per_mib target_us_per_mib \
              longest_ms lost_percent last_hit_percent failed",
};

/// Servers of chunks, started on first use.
#[derive(Debug, Default)]
pub(crate) struct KvCache {
    targets: Kept<&'static str, Vec<Served>>,
    peers: Kept<&'static str, PeerServer>,
    files: Option<FileChunks>,
    there: OnceCell<There>,
    /// Prompts of a later cell are not those of an earlier one.
    run_count: u64,
}

/// Which servers this machine has.
fn there() -> There {
    let mut there = There::default();
    for peer in [REDIS, MEMCACHED] {
        let version = peer.any_version().map(|version| Some(format!("{} {version}", peer.name)));
        there.add(peer.name, version.map_err(|error| error.to_string()));
    }
    let has_tmpfs = Path::new(TMPFS).is_dir();
    there.add(FILES, has_tmpfs.then_some(None).ok_or_else(|| format!("a tmpfs on {TMPFS}")));
    there
}

fn peer(name: &str) -> Option<&'static Peer> {
    const PEERS: [Peer; 2] = [REDIS, MEMCACHED];
    PEERS.iter().find(|peer| peer.name == name)
}

/// The load of a cell with chunks of this size.
fn prompt_load(chunk_mib: u32, runtime: Duration, warm_up: Duration) -> PromptLoad {
    PromptLoad {
        documents: DOCUMENTS,
        shared_chunks: SHARED_MIB / chunk_mib,
        own_chunks: OWN_MIB / chunk_mib,
        chunk_bytes: chunk_mib << 20,
        warm_up,
        runtime,
        ..PromptLoad::default()
    }
}

/// Connects to targets.
fn connect(targets: &[Served], deadline: Duration) -> Result<ValueSpread<Vec<u8>>, Error> {
    let members = targets.iter().map(|target| SpreadTarget::new(target.address().clone()));
    let options = Options::default().with_lanes(1).with_command_timeout(LONG_DEADLINE);
    Ok(ValueSpread::connect(members.collect(), options, SpreadOptions::default().with_deadline(deadline))?)
}

impl KvCache {
    fn measure_server(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let chunk_mib = cell.word("mib");
        self.run_count += 1;
        let load = prompt_load(chunk_mib, bench.times.measure.max(TIME), bench.times.warm_up);
        let load = PromptLoad { run: self.run_count, ..load };
        let name = SERVERS.into_iter().find(|name| *name == cell.text("server")).expect("a known server");
        let core = bench.cores.map(|cores| cores.target);
        let mut accounts: Vec<Arc<dyn Account>> = Vec::new();
        let mut share = None;
        let mut connection: Box<dyn ChunkStore + Send + '_> = if let Some(peer) = peer(name) {
            let server =
                self.peers.get(name, || peer.start_for_chunks(free_place()?, core.as_slice(), MEMORY_MIB))?;
            accounts.push(server.account());
            Box::new(TextChunks::connect(server.place, peer.protocol)?)
        } else if name == FILES {
            let limit_bytes = u64::from(MEMORY_MIB) << 20;
            let files = match &mut self.files {
                Some(files) => files,
                none => none.insert(FileChunks::new(Path::new(TMPFS), limit_bytes)?),
            };
            Box::new(files)
        } else {
            let (count, mib) = if name == THREE { (3, MEMORY_OF_THREE_MIB) } else { (1, MEMORY_MIB) };
            let targets = self.targets.get(name, || {
                let serve = |_| bench.serve_with(ServedOptions::of([format!("kv:ram:{mib}M")]));
                (0..count).map(serve).collect::<Result<_, _>>()
            })?;
            accounts.extend(targets.iter().map(Served::account));
            if name == OURS {
                // One operation of the plain sockets is 1 MiB.
                share = Some(bench.ceiling_of_memory(1, 100, 64 << 20, bench.times.measure / 2)?.iops());
            }
            Box::new(connect(targets, LONG_DEADLINE)?)
        };
        let mut edges = Vec::new();
        let result = on_core(bench.cores.map(|cores| cores.host), || {
            let mut on_edge = || edges.push(used_ns(&accounts));
            prompts(&mut *connection, &load, &mut on_edge, bench)
        })?;
        let moved_mib = (result.retrieved_bytes + result.stored_bytes) as f64 / f64::from(1 << 20);
        let mut values = values(&result);
        values.insert("host_us_per_mib", result.generator_ns as f64 / 1e3 / moved_mib);
        if let (Some([before, after]), false) = (edges.first_chunk(), accounts.is_empty()) {
            values.insert("target_us_per_mib", after.saturating_sub(*before) as f64 / 1e3 / moved_mib);
        }
        if let Some(ceiling) = share {
            values.insert("share", values["get_mib_per_s"] / ceiling);
        }
        Ok(values)
    }

    /// One of several targets, or the only one, is killed and comes back empty.
    fn measure_restart(&mut self, count: usize, bench: &Bench) -> Result<Values, Error> {
        let options = || -> Result<_, Error> {
            let mib = if count == 1 { MEMORY_MIB } else { MEMORY_OF_THREE_MIB };
            let listen = free_place()?.to_string();
            Ok(ServedOptions { listen, ..ServedOptions::of([format!("kv:ram:{mib}M")]) })
        };
        let options = (0..count).map(|_| options()).collect::<Result<Vec<_>, _>>()?;
        let mut targets =
            options.iter().map(|options| bench.serve_with(options.clone())).collect::<Result<Vec<_>, _>>()?;
        self.run_count += 1;
        let load = prompt_load(RESTART_CHUNK_MIB, RESTART_TIME, bench.times.warm_up);
        let load = PromptLoad { run: self.run_count, ..load };
        let mut connection = connect(&targets, DEADLINE)?;
        let (victim, again) = (targets.remove(0), &options[0]);
        let (measuring, begins) = std::sync::mpsc::channel();
        let (result, restarted) = scope(|scope| {
            let restart = scope.spawn(move || {
                if begins.recv().is_err() {
                    return Err(Error::Stopped);
                }
                let began = Instant::now();
                sleep(KILLED_AT);
                let pid = i32::try_from(victim.pid()?).ok().and_then(Pid::from_raw);
                let pid = pid.ok_or_else(|| Error::Target("has no process".into()))?;
                kill_process(pid, Signal::KILL).doing("kill a target")?;
                drop(victim);
                sleep(STARTED_AT.saturating_sub(began.elapsed()));
                bench.serve_with(again.clone())
            });
            let result = on_core(bench.cores.map(|cores| cores.host), || {
                let mut on_edge = || {
                    // The other thread waits for the first one only.
                    let _ = measuring.send(());
                };
                prompts(&mut connection, &load, &mut on_edge, bench)
            });
            // Without a measurement, the other thread waits for its beginning.
            drop(measuring);
            (result, restart.join().expect("the thread does not panic"))
        });
        let result = result?;
        restarted?;
        let mut values = values(&result);
        let hits = |prompts: &mut dyn Iterator<Item = &PromptEnd>| {
            let (hits, count) = prompts.fold((0, 0), |(hits, count), end| (hits + end.hit_count, count + 1));
            f64::from(hits) * 100.0 / f64::from((count * load.shared_chunks).max(1))
        };
        let within = |from: Duration, to: Duration| {
            hits(
                &mut result
                    .prompts
                    .iter()
                    .filter(|end| (from..to).contains(&Duration::from_nanos(end.at_ns))),
            )
        };
        let before = within(Duration::ZERO, KILLED_AT);
        values.insert("lost_percent", before - within(KILLED_AT, STARTED_AT));
        values.insert("last_hit_percent", within(RESTART_TIME - LAST, Duration::MAX));
        Ok(values)
    }
}

/// Runs a load whose chunks must be right.
fn prompts(
    store: &mut dyn ChunkStore,
    load: &PromptLoad,
    on_edge: &mut dyn FnMut(),
    bench: &Bench,
) -> Result<PromptResult, Error> {
    let result = run(store, load, on_edge, &mut || bench.is_stopped());
    let result = result.map_err(|error| Error::Load(error.to_string()))?;
    if bench.is_stopped() {
        return Err(Error::Stopped);
    }
    match result.mismatch_count {
        0 => Ok(result),
        count => Err(Error::Load(format!("{count} chunks had other bytes than the stored ones"))),
    }
}

/// Processor time of servers.
fn used_ns(accounts: &[Arc<dyn Account>]) -> u64 {
    accounts.iter().filter_map(|account| account.read()).map(|reading| reading.run_ns()).sum()
}

fn values(result: &PromptResult) -> Values {
    let mib = |bytes_per_s: f64| bytes_per_s / f64::from(1 << 20);
    let longest_ns = result.prompts.iter().map(|end| end.took_ns).max().unwrap_or(0);
    Values::from([
        ("get_mib_per_s", mib(result.retrieved_per_s())),
        ("set_mib_per_s", mib(result.stored_per_s())),
        ("exist_us", us(result.exist.percentile(50.0))),
        ("hit_percent", result.hit_percent()),
        ("prompts_per_s", result.prompts.len() as f64 / result.elapsed.as_secs_f64().max(1e-9)),
        ("longest_ms", us(longest_ns) / 1e3),
        ("failed", result.failed_count as f64),
    ])
}

impl Experiment for KvCache {
    fn cells(&self) -> Vec<Cell> {
        let of = |server: &'static str, mib: u32| {
            Cell::new(cell_name(server, mib)).with("server", server).with("mib", mib)
        };
        let sizes = CHUNK_MIB.into_iter().flat_map(|mib| SERVERS.map(|server| of(server, mib)));
        let restart = |(name, _): (&'static str, usize)| {
            Cell::new(name).with("server", name).with("mib", RESTART_CHUNK_MIB)
        };
        sizes.chain(RESTARTS.map(restart)).collect()
    }

    fn suits(&self, cell: &Cell, _: &Bench) -> bool {
        self.there.get_or_init(there).has(cell.text("server"))
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        bench.check_memory(NEEDED_BYTES)
    }

    fn there(&self) -> Option<&There> {
        self.there.get()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        match RESTARTS.iter().find(|(name, _)| *name == cell.text("server")) {
            Some(&(_, count)) => self.measure_restart(count, bench),
            None => self.measure_server(cell, bench),
        }
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let of = |server, mib, value| measured.median(&cell_name(server, mib), value);
        for mib in CHUNK_MIB {
            headlines.tell(format!("get_{mib}m_mib_per_s"), of(OURS, mib, "get_mib_per_s"));
            headlines.tell(format!("set_{mib}m_mib_per_s"), of(OURS, mib, "set_mib_per_s"));
        }
        for (call, value) in [("get", "get_mib_per_s"), ("set", "set_mib_per_s")] {
            let all = || CHUNK_MIB.into_iter().map(|mib| of(OURS, mib, value));
            let is_whole = all().all(|rate| rate.is_some());
            let [least, most] = [f64::min, f64::max].map(|choose| all().flatten().reduce(choose));
            let flatness = least.zip(most).map(|(least, most)| least / most).filter(|_| is_whole);
            headlines.push(format!("{call}_least_over_most"), flatness, Some(FLATNESS));
            for mib in CHUNK_MIB {
                let over = |server| measured.ratio(&cell_name(OURS, mib), &cell_name(server, mib), value);
                headlines.push(format!("{call}_{mib}m_over_redis"), over(REDIS.name), Some(OVER_REDIS));
                headlines.tell(format!("{call}_{mib}m_over_memcached"), over(MEMCACHED.name));
                headlines.tell(format!("{call}_{mib}m_over_tmpfs"), over(FILES));
            }
        }
        for (name, count) in RESTARTS {
            headlines.push(
                format!("longest_ms_with_restart_of_{count}"),
                measured.median(name, "longest_ms"),
                Some(LONGEST_MS),
            );
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let over = |server: &str, value: &str| {
            let cells = CHUNK_MIB.iter().filter_map(|&mib| measured.cell(&cell_name(server, mib)));
            line(server, cells, "mib", value)
        };
        let figure = |title: &str, value: &'static str| {
            let sizes = ticks(&CHUNK_MIB.map(u64::from), |mib| mib.to_string());
            let series = SERVERS.map(|server| over(server, value)).into();
            let plot = Plot::lines(Axis::log("MiB of a chunk"), sizes, Axis::linear("MiB/s"), series);
            Figure::new(title, "Bytes per second of the calls. Higher is better.", plot)
        };
        vec![
            figure("Retrieving the beginning of a prompt", "get_mib_per_s"),
            figure("Storing the rest", "set_mib_per_s"),
        ]
    }
}

fn cell_name(server: &str, mib: u32) -> String {
    format!("{server}, {mib} MiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn servers_are_compared_within_a_size_and_sizes_within_a_server() {
        let headline = headline_of(&KvCache::default(), |cell| {
            let rate = match (cell.text("server"), cell.word("mib")) {
                (OURS, 80) => 3000.0,
                (OURS, _) => 4000.0,
                ("redis", _) => 1000.0,
                _ => 2000.0,
            };
            [("get_mib_per_s", rate), ("set_mib_per_s", rate), ("longest_ms", 1300.0)]
        });
        let of = |key| of_key(&headline, key);
        assert_eq!((of("get_1m_over_redis").value, of("set_80m_over_redis").value), (4.0, 3.0));
        assert_eq!(of("get_4m_over_memcached").value, 2.0);
        assert_eq!(
            (of("get_least_over_most").value, of("get_least_over_most").is_reached()),
            (0.75, Some(false))
        );
        assert_eq!(of("longest_ms_with_restart_of_3").is_reached(), Some(false));
    }

    #[test]
    fn prompts_of_every_size_fit_what_all_servers_have() {
        for mib in CHUNK_MIB {
            let load = prompt_load(mib, TIME, TIME);
            let shared = u64::from(load.shared_chunks) * u64::from(mib);
            assert!(
                load.own_chunks > 0
                    && shared * DOCUMENTS + 2 * load.prompt_bytes() / (1 << 20) <= u64::from(MEMORY_MIB)
            );
            assert_eq!(load.shared_chunks * mib, SHARED_MIB);
            assert_eq!(load.own_chunks * mib, if mib == 32 { 64 } else { OWN_MIB });
        }
    }
}
