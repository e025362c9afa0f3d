//! Traffic of one namespace: each reactor counts for itself, the control plane adds the counts up.

use std::sync::OnceLock;

use reactor::Counter;

use crate::names::lane_counters::{LaneTotals, PhaseCounters, PhaseTotals};

/// The counters of all reactors for one namespace.
#[derive(Debug)]
pub struct NamespaceTraffic {
    reactors: Box<[ReactorTraffic]>,
}

/// Commands of NVMe hosts that have completed in one namespace, as one reactor counts them. Reactors write to cache
/// lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ReactorTraffic {
    reads: Counter,
    read_bytes: Counter,
    writes: Counter,
    written_bytes: Counter,
    media_errors: Counter,
    throttled: Counter,
    throttled_ns: Counter,
    /// Time by phase of the commands that are followed with a clock; set with the first of them.
    phases: OnceLock<Box<PhaseCounters>>,
}

impl NamespaceTraffic {
    /// Counters at zero for this many reactors.
    #[must_use]
    pub fn new(reactor_count: u16) -> Self {
        Self { reactors: (0..reactor_count).map(|_| ReactorTraffic::default()).collect() }
    }

    /// The counters that a reactor writes; `None` if it is not one of the announced ones.
    #[inline]
    #[must_use]
    pub fn of(&self, reactor: usize) -> Option<&ReactorTraffic> {
        self.reactors.get(reactor)
    }

    /// The sum over all reactors.
    #[must_use]
    pub fn totals(&self) -> LaneTotals {
        let mut totals = LaneTotals::default();
        for reactor in &self.reactors {
            totals.merge(&LaneTotals {
                read_count: reactor.reads.get(),
                write_count: reactor.writes.get(),
                read_bytes: reactor.read_bytes.get(),
                written_bytes: reactor.written_bytes.get(),
                media_error_count: reactor.media_errors.get(),
                throttled_count: reactor.throttled.get(),
                throttled_ns: reactor.throttled_ns.get(),
                ..LaneTotals::default()
            });
        }
        totals
    }

    /// Time by phase of the followed commands of all reactors.
    #[must_use]
    pub fn phases(&self) -> PhaseTotals {
        let mut totals = PhaseTotals::default();
        self.reactors.iter().filter_map(|reactor| reactor.phases.get()).for_each(|phases| totals.add(phases));
        totals
    }
}

impl ReactorTraffic {
    /// Time by phase of the followed commands.
    pub(crate) fn phases(&self) -> &PhaseCounters {
        self.phases.get_or_init(Box::default)
    }

    /// A Read, or a Retrieve, has completed with this many bytes.
    #[inline]
    pub fn on_read(&self, bytes: u64) {
        self.reads.add(1);
        self.read_bytes.add(bytes);
    }

    /// A Write, or a Store, of this many bytes has completed.
    #[inline]
    pub fn on_written(&self, bytes: u64) {
        self.writes.add(1);
        self.written_bytes.add(bytes);
    }

    /// A command has waited this long for a rate limit.
    pub fn on_throttled(&self, waited_ns: u64) {
        self.throttled.add(1);
        self.throttled_ns.add(waited_ns);
    }

    /// A command has failed with a media error.
    pub fn on_media_error(&self) {
        self.media_errors.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_all_reactors_are_added_up() {
        let traffic = NamespaceTraffic::new(2);
        traffic.of(0).unwrap().on_read(4096);
        traffic.of(1).unwrap().on_read(512);
        traffic.of(1).unwrap().on_written(8192);
        traffic.of(1).unwrap().on_media_error();
        assert!(traffic.of(2).is_none());
        let totals = traffic.totals();
        assert_eq!((totals.read_count, totals.read_bytes), (2, 4608));
        assert_eq!((totals.write_count, totals.written_bytes, totals.media_error_count), (1, 8192, 1));
    }
}
