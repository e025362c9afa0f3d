//! All experiments, by name.

use crate::experiment::Experiment;
use crate::experiments::{
    ablation, adq_memcached, affinity, busy_poll, ceiling, connections, copies, core_latency, digests,
    generator, idle, inline_send, iosize, kv_atomics, kv_batching, kv_hit_ratio, kv_large, kv_memory,
    kv_peers, kv_vector, kv_ycsb, low_load_latency, mixed_lanes, mtu,
};

/// Every experiment, in the order of `nvlane study list`.
#[must_use]
pub fn all() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(ceiling::Ceiling::default()),
        Box::new(ablation::Ablation::default()),
        Box::new(low_load_latency::LowLoadLatency),
        Box::new(core_latency::CoreLatency::default()),
        Box::new(mixed_lanes::MixedLanes::default()),
        Box::new(inline_send::InlineSend::default()),
        Box::new(busy_poll::BusyPolling),
        Box::new(affinity::Affinity::default()),
        Box::new(connections::Connections),
        Box::new(idle::Idle),
        Box::new(iosize::IoSize::default()),
        Box::new(copies::Copies::default()),
        Box::new(digests::Digests::default()),
        Box::new(mtu::Mtu),
        Box::new(generator::Generators),
        Box::new(kv_batching::KvBatching::default()),
        Box::new(kv_vector::KvVector::default()),
        Box::new(kv_atomics::KvAtomics::default()),
        Box::new(kv_memory::KvMemory),
        Box::new(kv_hit_ratio::KvHitRatio::default()),
        Box::new(kv_ycsb::KvYcsb::default()),
        Box::new(kv_large::KvLarge::default()),
        Box::new(kv_peers::KvPeers::default()),
        Box::new(adq_memcached::AdqMemcached),
    ]
}

/// The experiment with this name.
#[must_use]
pub fn find(name: &str) -> Option<Box<dyn Experiment>> {
    all().into_iter().find(|experiment| experiment.about().name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::figure::Figure;
    use crate::measured::{CellRounds, Measured};

    #[test]
    fn names_are_there_once() {
        let names: Vec<_> = all().iter().map(|experiment| experiment.about().name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names.iter().all(|name| find(name).is_some()));
        assert!(find("no-such").is_none());
    }

    #[test]
    fn cells_of_an_experiment_have_names_of_their_own() {
        for experiment in all() {
            let cells = experiment.cells();
            let names: BTreeSet<_> = cells.iter().map(|cell| &cell.name).collect();
            assert_eq!(names.len(), cells.len(), "{}", experiment.about().name);
        }
    }

    #[test]
    fn what_was_never_measured_breaks_no_experiment() {
        for experiment in all() {
            let cells = experiment.cells().into_iter().map(CellRounds::new);
            let measured = Measured { cells: cells.collect(), is_stable: false };
            assert_eq!(experiment.headline(&measured), [], "{}", experiment.about().name);
            let figures = experiment.figures(&measured);
            let files: BTreeSet<_> = figures.iter().map(Figure::file_name).collect();
            assert_eq!(files.len(), figures.len(), "{}", experiment.about().name);
            let _ = experiment.headline(&Measured::default());
            let _ = experiment.figures(&Measured::default());
        }
    }
}
