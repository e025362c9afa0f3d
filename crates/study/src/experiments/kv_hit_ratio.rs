//! `kv-hit-ratio`: hits of a cache in nvlane, in memcached, and with simulated policies.

use super::prelude::*;
use crate::hit_ratio::policies::{BELADY, POLICIES};
use crate::hit_ratio::requests::{Requests, Workload};
use crate::hit_ratio::{in_process, served, simulated};
use crate::peers::{MEMCACHED, free_place};

/// A partition of ours without sockets.
const OURS: &str = "nvlane";
/// Servers.
const OURS_SERVED: &str = "nvlane, served";
const MEMCACHED_SERVED: &str = "memcached, served";

const MEMORIES_MIB: [u32; 5] = [16, 32, 64, 128, 256];
/// The memory with bars, and that of servers.
const MEMORY_MIB: u32 = 64;

pub(crate) const ABOUT: About = About {
    name: "kv-hit-ratio",
    title: "How often does a cache hit?",
    method: "Two million requests for 600,000 keys with values of 100 to 4,000 bytes; a miss stores the value. The popularity of keys \
             follows Zipf's law with exponent 0.99 (steady); a third of the requests is for keys that come once (scan; they do not \
             count); or the popularity moves on by 50 keys in a thousand requests (drift). NVLANE_CACHE_TRACE names a recorded trace \
             in libCacheSim's oracleGeneral format. Hits of the second half. Simulated policies hold keys and values without any \
             overhead in the same bytes; Belady knows the future, and is the bound for values of one length. Servers get 32 requests \
             at a time; memcached comes from the path or from NVLANE_MEMCACHED_BIN, and is left out if there is none.",
    claims: &[],
    judged_by: "hit_ratio",
    columns: &["hit_ratio"],
};

/// The same requests to caches with different policies.
#[derive(Default)]
pub(crate) struct KvHitRatio {
    requests: Kept<Workload, Requests>,
    /// By cell: requests and policies are the same in each round.
    ratios: Kept<String, f64>,
}

impl KvHitRatio {
    fn hit_ratio(requests: &Requests, cell: &Cell, bench: &Bench) -> Result<f64, Error> {
        let memory_mib = cell.word("memory_mib");
        match cell.text("cache") {
            OURS => in_process(requests, (memory_mib as usize) << 20),
            OURS_SERVED => {
                let address = free_place()?;
                let arguments = vec!["--memcached".into(), address.to_string()];
                let namespace = format!("kv:ram:{memory_mib}M");
                let target =
                    bench.serve_with(ServedOptions { arguments, ..ServedOptions::of([namespace]) })?;
                let ratio = served(requests, address)?;
                target.stop()?;
                Ok(ratio)
            }
            MEMCACHED_SERVED => served(requests, MEMCACHED.start(bench, memory_mib)?.place),
            policy => {
                let (_, make) = POLICIES.iter().find(|(name, _)| *name == policy).expect("a cell of ours");
                simulated(requests, &mut *make(u64::from(memory_mib) << 20, requests.key_count))
            }
        }
    }
}

impl Experiment for KvHitRatio {
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for workload in Workload::all() {
            let mut add = |cache: &str, memory_mib: u32| {
                let cell =
                    Cell::new(cell_name(workload, cache, memory_mib)).with("workload", workload.name());
                cells.push(cell.with("cache", cache).with("memory_mib", memory_mib));
            };
            for memory_mib in MEMORIES_MIB {
                add(OURS, memory_mib);
                POLICIES.iter().for_each(|(policy, _)| add(policy, memory_mib));
            }
            if workload != Workload::Recorded {
                add(OURS_SERVED, MEMORY_MIB);
                if MEMCACHED.version().is_ok() {
                    add(MEMCACHED_SERVED, MEMORY_MIB);
                }
            }
        }
        cells
    }

    fn seen(&self) -> Vec<String> {
        MEMCACHED.version().map(|version| format!("memcached {version}")).into_iter().collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let workload = Workload::all().find(|workload| workload.name() == cell.text("workload"));
        let workload = workload.expect("a cell of ours");
        let requests = self.requests.get(workload, || workload.requests())?;
        let ratio = self.ratios.get(cell.name.clone(), || Self::hit_ratio(requests, cell, bench))?;
        Ok(Values::from([("hit_ratio", *ratio)]))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for workload in Workload::all() {
            let of = |cache| measured.median(&cell_name(workload, cache, MEMORY_MIB), "hit_ratio");
            let name = workload.name();
            let is_judged = workload != Workload::Recorded;
            headlines.push(name, of(OURS), None);
            let policies = POLICIES.iter().filter(|(policy, _)| *policy != BELADY);
            let best = policies.filter_map(|(policy, _)| of(policy)).reduce(f64::max);
            let above = |ours: Option<f64>, other: Option<f64>| Some(ours? - other?);
            let bar = |least: f64| is_judged.then_some(Bar::AtLeast(least));
            headlines.push(format!("{name}_above_best"), above(of(OURS), best), bar(-0.01));
            if of(MEMCACHED_SERVED).is_some() {
                let above = above(of(OURS_SERVED), of(MEMCACHED_SERVED));
                headlines.push(format!("{name}_above_memcached"), above, bar(0.02));
            }
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure =
            |workload: Workload| {
                let of = |cache: &str| {
                    let cells = MEMORIES_MIB
                        .iter()
                        .filter_map(|&memory| measured.cell(&cell_name(workload, cache, memory)));
                    line(cache, cells, "memory_mib", "hit_ratio")
                };
                let mut series = vec![of(OURS)];
                series.extend(POLICIES.iter().map(|(policy, _)| {
                    if *policy == BELADY { of(policy).as_reference() } else { of(policy) }
                }));
                let memories = ticks(&MEMORIES_MIB.map(u64::from), |mib| mib.to_string());
                Figure::new(
                    format!("Hit ratio, {}", workload.name()),
                    "Part of the requests that hit, over the memory of the cache. Higher is better.",
                    Plot::lines(Axis::log("MiB"), memories, Axis::linear("hit ratio"), series),
                )
            };
        Workload::all().map(figure).collect()
    }
}

fn cell_name(workload: Workload, cache: &str, memory_mib: u32) -> String {
    format!("{}, {cache}, {memory_mib} MiB", workload.name())
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
