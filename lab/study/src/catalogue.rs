//! All experiments, by name.

use crate::experiment::{About, Experiment};
use crate::experiments::{
    ablation, adq, adq_memcached, affinity, batch_sweep, busy_poll, ceiling, ceph, connections, copies,
    core_latency, core_scaling, cost, digests, generator, idle, inline_send, iosize, kv_accesses,
    kv_allocation, kv_atomics, kv_batching, kv_cache, kv_clients, kv_hit_ratio, kv_hot_keys, kv_large,
    kv_memory, kv_neighbour, kv_peers, kv_scaling, kv_vector, kv_ycsb, layers, low_load_latency, mixed_lanes,
    mtu, programs, qos, stacks, tls,
};

/// An experiment of the catalogue.
#[derive(Debug)]
pub struct Entry {
    /// Description of the experiment.
    pub about: About,
    make: fn() -> Box<dyn Experiment>,
}

impl Entry {
    const fn of<E: Experiment + Default + 'static>(about: About) -> Self {
        Self { about, make: || Box::new(E::default()) }
    }

    /// The experiment, before its first cell.
    pub fn make(&self) -> Box<dyn Experiment> {
        (self.make)()
    }
}

/// Every experiment, in the order of `nvlane study list`.
pub const ALL: &[Entry] = &[
    Entry::of::<ceiling::Ceiling>(ceiling::ABOUT),
    Entry::of::<ablation::Ablation>(ablation::ABOUT),
    Entry::of::<batch_sweep::BatchSweep>(batch_sweep::ABOUT),
    Entry::of::<layers::Layers>(layers::ABOUT),
    Entry::of::<stacks::Stacks>(stacks::ABOUT),
    Entry::of::<low_load_latency::LowLoadLatency>(low_load_latency::ABOUT),
    Entry::of::<core_latency::CoreLatency>(core_latency::ABOUT),
    Entry::of::<core_scaling::CoreScaling>(core_scaling::ABOUT),
    Entry::of::<cost::Cost>(cost::ABOUT),
    Entry::of::<mixed_lanes::MixedLanes>(mixed_lanes::ABOUT),
    Entry::of::<qos::Qos>(qos::ABOUT),
    Entry::of::<inline_send::InlineSend>(inline_send::ABOUT),
    Entry::of::<busy_poll::BusyPolling>(busy_poll::ABOUT),
    Entry::of::<affinity::Affinity>(affinity::ABOUT),
    Entry::of::<connections::Connections>(connections::ABOUT),
    Entry::of::<idle::Idle>(idle::ABOUT),
    Entry::of::<iosize::IoSize>(iosize::ABOUT),
    Entry::of::<copies::Copies>(copies::ABOUT),
    Entry::of::<digests::Digests>(digests::ABOUT),
    Entry::of::<tls::Tls>(tls::ABOUT),
    Entry::of::<mtu::Mtu>(mtu::ABOUT),
    Entry::of::<generator::Generators>(generator::ABOUT),
    Entry::of::<programs::Programs>(programs::ABOUT),
    Entry::of::<ceph::Ceph>(ceph::ABOUT),
    Entry::of::<kv_batching::KvBatching>(kv_batching::ABOUT),
    Entry::of::<kv_vector::KvVector>(kv_vector::ABOUT),
    Entry::of::<kv_atomics::KvAtomics>(kv_atomics::ABOUT),
    Entry::of::<kv_scaling::KvScaling>(kv_scaling::ABOUT),
    Entry::of::<kv_clients::KvClients>(kv_clients::ABOUT),
    Entry::of::<kv_neighbour::KvNeighbour>(kv_neighbour::ABOUT),
    Entry::of::<kv_memory::KvMemory>(kv_memory::ABOUT),
    Entry::of::<kv_accesses::KvAccesses>(kv_accesses::ABOUT),
    Entry::of::<kv_allocation::KvAllocation>(kv_allocation::ABOUT),
    Entry::of::<kv_hot_keys::KvHotKeys>(kv_hot_keys::ABOUT),
    Entry::of::<kv_hit_ratio::KvHitRatio>(kv_hit_ratio::ABOUT),
    Entry::of::<kv_ycsb::KvYcsb>(kv_ycsb::ABOUT),
    Entry::of::<kv_large::KvLarge>(kv_large::ABOUT),
    Entry::of::<kv_cache::KvCache>(kv_cache::ABOUT),
    Entry::of::<kv_peers::KvPeers>(kv_peers::ABOUT),
    Entry::of::<adq::Adq>(adq::ABOUT),
    Entry::of::<adq_memcached::AdqMemcached>(adq_memcached::ABOUT),
];

/// The experiment with this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.about.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::figure::Figure;
    use crate::measured::{CellRounds, Measured};

    #[test]
    fn names_are_there_once() {
        let names: Vec<_> = ALL.iter().map(|entry| entry.about.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names.iter().all(|name| find(name).is_some()));
        assert!(find("no-such").is_none());
    }

    #[test]
    fn cells_of_an_experiment_have_names_of_their_own() {
        for entry in ALL {
            let cells = entry.make().cells();
            let names: BTreeSet<_> = cells.iter().map(|cell| &cell.name).collect();
            assert_eq!(names.len(), cells.len(), "{}", entry.about.name);
        }
    }

    #[test]
    fn what_was_never_measured_breaks_no_experiment() {
        for entry in ALL {
            let experiment = entry.make();
            let cells = experiment.cells().into_iter().map(CellRounds::new);
            let measured = Measured { cells: cells.collect(), is_stable: false };
            assert_eq!(experiment.headline(&measured), [], "{}", entry.about.name);
            let figures = experiment.figures(&measured);
            let files: BTreeSet<_> = figures.iter().map(Figure::file_name).collect();
            assert_eq!(files.len(), figures.len(), "{}", entry.about.name);
            let _ = experiment.headline(&Measured::default());
            let _ = experiment.figures(&Measured::default());
        }
    }
}
