//! `kv-hit-ratio`: hits of a cache in nvlane, in memcached, and with simulated policies.

use super::prelude::*;
use crate::hit_ratio::policies::{BELADY, POLICIES};
use crate::hit_ratio::requests::{RECORDED, Requests, Workload};
use crate::hit_ratio::{in_process, served, simulated};
use crate::peers::{MEMCACHED, free_place};
use crate::running_peer::{RunningPeer, version};

/// A partition of ours without sockets.
const OURS: &str = "nvlane";
/// Servers.
const OURS_SERVED: &str = "nvlane, served";
const MEMCACHED_SERVED: &str = "memcached, served";

const MEMORIES_MIB: [u32; 5] = [16, 32, 64, 128, 256];
/// The memory with bars, and that of servers.
const MEMORY_MIB: u32 = 64;
/// The memories for a recorded trace, percent of the bytes of all its values.
const MEMORIES_PERCENT: [u32; 6] = [2, 3, 6, 12, 25, 50];

/// The memories that a workload is tried with.
struct Memories {
    all: &'static [u32],
    /// The column of cells that has the memory, and its unit.
    column: &'static str,
    unit: &'static str,
    /// Those whose distance to the best policy has a bar.
    judged: &'static [u32],
}

fn memories(workload: Workload) -> Memories {
    match workload {
        Workload::Recorded => Memories {
            all: &MEMORIES_PERCENT,
            column: "memory_percent",
            unit: "%",
            judged: &MEMORIES_PERCENT,
        },
        _ => Memories { all: &MEMORIES_MIB, column: "memory_mib", unit: "MiB", judged: &[MEMORY_MIB] },
    }
}

pub(crate) const ABOUT: About = About {
    name: "kv-hit-ratio",
    title: "What hit ratio does the cache reach?",
    method: "Two million requests for 600,000 keys with values of 100 to 4,000 bytes; a miss stores the value. The popularity of keys \
             follows Zipf's law with exponent 0.99 (steady); a third of the requests is for keys that come once (scan; they do not \
             count); the popularity moves on by 50 keys in a thousand requests (drift); or a third of the requests goes round 100,000 \
             other keys in order (loop). NVLANE_CACHE_TRACE names a recorded trace in libCacheSim's oracleGeneral format, which is \
             tried with memories of 2 to 50 % of its bytes. Hits of the second half. Simulated policies hold keys and values without \
             any overhead in the same bytes; Belady knows the future, and is the bound for values of one length. Servers get 32 \
             requests at a time; memcached comes from the path or from NVLANE_MEMCACHED_BIN, and is left out if there is none. Between two \
             machines the servers run on the study server's; the other caches are in this process.",
    claims: &[],
    machines: Machines::OneOrTwo,
    judged_by: "hit_ratio",
    columns: "hit_ratio",
};

/// The same requests to caches with different policies.
#[derive(Default)]
pub(crate) struct KvHitRatio {
    requests: Kept<Workload, Requests>,
    /// By cell: requests and policies are the same in each round.
    ratios: Kept<String, f64>,
    /// Version of memcached, if it was measured.
    memcached: Option<String>,
}

impl KvHitRatio {
    fn hit_ratio(requests: &Requests, cell: &Cell, bench: &Bench) -> Result<f64, Error> {
        let memory_bytes = match cell.text("workload") {
            RECORDED => requests.value_bytes() / 100 * cell.number("memory_percent"),
            _ => cell.number("memory_mib") << 20,
        };
        match cell.text("cache") {
            OURS => in_process(requests, usize::try_from(memory_bytes).expect("it can be addressed")),
            OURS_SERVED => {
                let memcached = Some(free_place()?);
                let namespace = format!("kv:ram:{memory_bytes}");
                let target =
                    bench.serve_with(ServedOptions { memcached, ..ServedOptions::of([namespace]) })?;
                let ratio = served(requests, target.memcached()?)?;
                target.stop()?;
                Ok(ratio)
            }
            MEMCACHED_SERVED => {
                served(requests, RunningPeer::start(&MEMCACHED, bench, cell.word("memory_mib"))?.place)
            }
            policy => {
                let (_, make) = POLICIES.iter().find(|(name, _)| *name == policy).expect("a cell of ours");
                simulated(requests, &mut *make(memory_bytes, requests.key_count))
            }
        }
    }
}

impl Experiment for KvHitRatio {
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for workload in Workload::all() {
            let memories = memories(workload);
            let mut add = |cache: &str, memory: u32| {
                let cell = Cell::new(cell_name(workload, cache, memory)).with("workload", workload.name());
                cells.push(cell.with("cache", cache).with(memories.column, memory));
            };
            for &memory in memories.all {
                add(OURS, memory);
                POLICIES.iter().for_each(|(policy, _)| add(policy, memory));
            }
            if workload != Workload::Recorded {
                add(OURS_SERVED, MEMORY_MIB);
                add(MEMCACHED_SERVED, MEMORY_MIB);
            }
        }
        cells
    }

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        cell.text("cache") != MEMCACHED_SERVED || version(&MEMCACHED, bench).is_ok()
    }

    fn seen(&self) -> Vec<String> {
        self.memcached.iter().map(|version| format!("memcached {version}")).collect()
    }

    fn is_disturbed_by_others(&self, _: &Cell) -> bool {
        false
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let workload = cell.one_of("workload", Workload::all(), |workload| workload.name());
        if cell.text("cache") == MEMCACHED_SERVED && self.memcached.is_none() {
            self.memcached = Some(version(&MEMCACHED, bench)?);
        }
        let requests = self.requests.get(workload, || workload.requests())?;
        let ratio = self.ratios.get(cell.name.clone(), || Self::hit_ratio(requests, cell, bench))?;
        Ok(Values::from([("hit_ratio", *ratio)]))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for workload in Workload::all() {
            let of = |cache, memory| measured.median(&cell_name(workload, cache, memory), "hit_ratio");
            let above = |ours, other, memory| {
                let [ours, other] = [ours, other].map(|cache| cell_name(workload, cache, memory));
                measured.difference(&ours, &other, "hit_ratio")
            };
            let above_best = |memory| {
                let policies = POLICIES.iter().filter(|(policy, _)| *policy != BELADY);
                policies.filter_map(|(policy, _)| above(OURS, policy, memory)).reduce(f64::min)
            };
            let (name, memories) = (workload.name(), memories(workload));
            if workload != Workload::Recorded {
                headlines.tell(name, of(OURS, MEMORY_MIB));
            }
            let least = memories.judged.iter().filter_map(|&memory| above_best(memory)).reduce(f64::min);
            headlines.push(format!("{name}_above_best"), least, Some(Bar::AtLeast(-0.01)));
            if of(MEMCACHED_SERVED, MEMORY_MIB).is_some() {
                let above = above(OURS_SERVED, MEMCACHED_SERVED, MEMORY_MIB);
                headlines.push(format!("{name}_above_memcached"), above, Some(Bar::AtLeast(0.02)));
            }
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure =
            |workload: Workload| {
                let tried = memories(workload);
                let of = |cache: &str| {
                    let cells = tried
                        .all
                        .iter()
                        .filter_map(|&memory| measured.cell(&cell_name(workload, cache, memory)));
                    line(cache, cells, tried.column, "hit_ratio")
                };
                let mut series = vec![of(OURS)];
                series.extend(POLICIES.iter().map(|(policy, _)| {
                    if *policy == BELADY { of(policy).as_reference() } else { of(policy) }
                }));
                let places: Vec<u64> = tried.all.iter().map(|&memory| memory.into()).collect();
                let memories = ticks(&places, |memory| memory.to_string());
                Figure::new(
                    format!("Hit ratio, {}", workload.name()),
                    "Part of the requests that hit, over the memory of the cache. Higher is better.",
                    Plot::lines(Axis::log(tried.unit), memories, Axis::linear("hit ratio"), series),
                )
            };
        Workload::all().map(figure).collect()
    }
}

fn cell_name(workload: Workload, cache: &str, memory: u32) -> String {
    format!("{}, {cache}, {memory} {}", workload.name(), memories(workload).unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn the_best_policy_without_foresight_is_the_measure() {
        let ratio = |cell: &Cell| match cell.text("cache") {
            OURS | OURS_SERVED => 0.74,
            BELADY => 0.9,
            "ARC" => 0.76,
            _ => 0.7,
        };
        let headline = headline_of(&KvHitRatio::default(), |cell| [("hit_ratio", ratio(cell))]);
        let drift = of_key(&headline, "drift_above_best");
        assert!((drift.value + 0.02).abs() < 1e-9);
        assert_eq!(drift.is_reached(), Some(false));
    }
}
