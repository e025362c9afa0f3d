//! `kv-peers`: the memcached protocol on nvlane, memcached and redis.

use super::prelude::*;
use crate::peers::{MEMCACHED, Peer, REDIS, free_place};
use crate::running_peer::{RunningPeer, version};
use crate::text_load::{self, Kind, TextLoad};
use crate::text_sockets::TextSockets;

const OURS: &str = "nvlane";
const PEERS: [Peer; 2] = [MEMCACHED, REDIS];

/// The server that only receives and sends, and its work.
const SOCKETS: &str = "sockets";
const SOCKETS_WORK: &str = "get, 64 connections";

/// Bars: operations per second over those of the sockets, and p99 over theirs.
const OVER_SOCKETS: Bar = Bar::AtLeast(0.97);
const P99_OVER_SOCKETS: Bar = Bar::AtMost(1.0);

const KEY_COUNT: u64 = 1_000_000;

/// Requests, and the bar: nvlane's throughput over that of the better peer.
struct Work {
    name: &'static str,
    kind: Kind,
    batch: usize,
    connections: usize,
    bar: Bar,
}

const fn work(name: &'static str, kind: Kind, batch: usize, connections: usize, bar: f64) -> Work {
    Work { name, kind, batch, connections, bar: Bar::AtLeast(bar) }
}

const WORKS: [Work; 7] = [
    work("get in 256", Kind::Get, 256, 4, 6.0),
    work("multiget of 256", Kind::MultiGet, 256, 4, 6.0),
    work("get in 64", Kind::Get, 64, 4, 4.0),
    work("multiget of 64", Kind::MultiGet, 64, 4, 4.0),
    work("set in 256", Kind::Set, 256, 4, 5.0),
    work("incr of one key in 256", Kind::Increment, 256, 4, 4.0),
    work(SOCKETS_WORK, Kind::Get, 1, 64, 1.5),
];

pub(crate) const ABOUT: About = About {
    name: "kv-peers",
    title: "How many operations does one core serve in nvlane, memcached and redis?",
    method: "A million keys of 16 bytes with values of 32, each server with one thread on the same core, one generator on another. \
             Pipelines of 256 and 64 commands and multigets of as many keys on four connections, and one command at a time on 64. \
             Plain sockets: a thread that receives one command at a time on 64 connections, and sends the same value to each. \
             Speed is for each second of the server's own processor time. memcached and redis-server come from the path, or \
             from NVLANE_MEMCACHED_BIN and NVLANE_REDIS_BIN, between two machines those of the study server.",
    claims: &[Claim {
        source: "KV-Direct (SOSP 2017)",
        says: "One network card with the processor does what 20 to 30 cores of the best software then did; memcached: 1.5 \
               million operations per second.",
        number: "—",
        ours: "get_256_over_memcached",
    }],
    machines: Machines::TwoWithout("plain sockets, whose server is a thread of the load's machine"),
    judged_by: "ops_per_cpu",
    columns: "ops_per_cpu ops server_ns p50_us p99_us",
};

/// The same requests to three servers.
#[derive(Debug, Default)]
pub(crate) struct KvPeers {
    /// By name.
    servers: Kept<String, RunningPeer>,
    /// Names and versions of the peers.
    seen: Vec<String>,
}

impl KvPeers {
    /// The server with this name, filled with all keys.
    fn server(&mut self, name: &str, bench: &Bench) -> Result<&RunningPeer, Error> {
        let seen = &mut self.seen;
        let start = || {
            let server = match PEERS.iter().find(|peer| peer.name == name) {
                Some(peer) => {
                    seen.push(format!("{} {}", peer.name, version(peer, bench)?));
                    RunningPeer::start(peer, bench, 1024)?
                }
                None if name == SOCKETS => {
                    let core = bench.cores.map(|cores| cores.target);
                    return Ok(RunningPeer::sockets(TextSockets::start(core)?));
                }
                None => {
                    let memcached = Some(free_place()?);
                    let options = ServedOptions::of(["kv:ram:512M"]).on_cores(1);
                    RunningPeer::ours(bench.serve_with(ServedOptions { memcached, ..options })?)?
                }
            };
            text_load::fill(server.place, server.protocol, KEY_COUNT)?;
            Ok(server)
        };
        self.servers.get(name.to_owned(), start).map(|server| &*server)
    }
}

impl Experiment for KvPeers {
    fn cells(&self) -> Vec<Cell> {
        let of = |work: &Work, server: &'static str| {
            Cell::new(cell_name(work.name, server)).with("work", work.name).with("server", server)
        };
        let servers = |work: &Work| {
            let sockets = (work.name == SOCKETS_WORK).then_some(SOCKETS);
            [OURS, MEMCACHED.name, REDIS.name].into_iter().chain(sockets)
        };
        WORKS.iter().flat_map(|work| servers(work).map(|server| of(work, server))).collect()
    }

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        !bench.is_remote() || cell.text("server") != SOCKETS
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        bench.check_cores()?;
        PEERS.iter().try_for_each(|peer| version(peer, bench).map(drop))
    }

    fn seen(&self) -> Vec<String> {
        self.seen.clone()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let server = self.server(cell.text("server"), bench)?;
        let work = cell.one_of("work", &WORKS, |work| work.name);
        let times = (bench.times.warm_up, bench.times.measure);
        let load = TextLoad::new((work.kind, work.batch), work.connections, KEY_COUNT, times);
        let (result, used_ns) = server.run(&load, bench.cores.map(|cores| cores.host), bench)?;
        let (count, used_ns) = (result.operations.max(1) as f64, used_ns as f64);
        Ok(Values::from([
            ("ops", result.per_second()),
            ("ops_per_cpu", count / used_ns * 1e9),
            ("server_ns", used_ns / count),
            ("p50_us", us(result.latency.percentile(50.0))),
            ("p99_us", us(result.latency.percentile(99.0))),
        ]))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for work in &WORKS {
            let over = |peer: &Peer| {
                let (ours, theirs) = (cell_name(work.name, OURS), cell_name(work.name, peer.name));
                measured.ratio(&ours, &theirs, "ops_per_cpu")
            };
            let ratios = PEERS.map(|peer| over(&peer));
            let key = key(work.name);
            for (peer, ratio) in PEERS.iter().zip(ratios) {
                headlines.tell(format!("{key}_over_{}", peer.name), ratio);
            }
            let over_better = ratios.iter().flatten().copied().reduce(f64::min);
            let is_whole = ratios.iter().all(Option::is_some);
            headlines.push(format!("{key}_over_better"), over_better.filter(|_| is_whole), Some(work.bar));
        }
        let over_sockets =
            |value| measured.ratio(&cell_name(SOCKETS_WORK, OURS), &cell_name(SOCKETS_WORK, SOCKETS), value);
        headlines.push("get_64_connections_over_sockets", over_sockets("ops"), Some(OVER_SOCKETS));
        headlines.push("get_64_connections_p99_over_sockets", over_sockets("p99_us"), Some(P99_OVER_SOCKETS));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = WORKS.iter().map(|work| work.name.to_owned()).collect();
        let of = |server: &str| {
            bars(server, measured, WORKS.iter().map(|work| cell_name(work.name, server)), "ops_per_cpu")
        };
        vec![Figure::new(
            "Speed per core of the server",
            "Operations for each second of the server's processor time. Higher is better.",
            Plot::bars(
                "",
                names,
                Axis::log("operations per core"),
                [OURS, MEMCACHED.name, REDIS.name].map(of).into(),
            ),
        )]
    }
}

fn cell_name(work: &str, server: &str) -> String {
    format!("{work}, {server}")
}

/// Key of a workload in the headline: `get in 256` is `get_256`.
fn key(work: &str) -> String {
    let words = work.split([' ', ',']).filter(|word| !matches!(*word, "" | "in" | "of" | "one" | "key"));
    words.collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn the_better_peer_is_the_measure() {
        let value = |cell: &Cell| match cell.text("server") {
            OURS => 12.0,
            "redis" => 3.0,
            _ => 2.0,
        };
        let headline = headline_of(&KvPeers::default(), |cell| [("ops_per_cpu", value(cell))]);
        let of = |key| of_key(&headline, key);
        assert_eq!((of("get_256_over_memcached").value, of("get_256_over_redis").value), (6.0, 4.0));
        assert_eq!(
            (of("get_256_over_better").value, of("get_256_over_better").is_reached()),
            (4.0, Some(false))
        );
        assert_eq!(of("incr_256_over_better").is_reached(), Some(true));
        assert_eq!(of("get_64_connections_over_better").is_reached(), Some(true));
        assert_eq!(headline.iter().find(|number| number.key.contains("over_sockets")), None);
    }

    #[test]
    fn sockets_have_one_row_and_stand_for_what_is_possible() {
        let rows = KvPeers::default().cells();
        assert_eq!(rows.iter().filter(|cell| cell.text("server") == SOCKETS).count(), 1);
        let is_ours = |cell: &Cell| cell.text("server") == OURS;
        let headline = headline_of(&KvPeers::default(), |cell| {
            [
                ("ops", if is_ours(cell) { 0.98 } else { 1.0 }),
                ("p99_us", if is_ours(cell) { 3.0 } else { 2.0 }),
            ]
        });
        let of = |key| of_key(&headline, key);
        assert_eq!(of("get_64_connections_over_sockets").is_reached(), Some(true));
        assert_eq!(of("get_64_connections_p99_over_sockets").is_reached(), Some(false));
    }
}
