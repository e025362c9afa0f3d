//! Limits how often something is written for each kind and source: a flood of one source uses up its own allowance.
//!
//! Each source has an allowance for each kind. All sources together have one for each kind as well, several times as large:
//! many sources fill a disk slowly, too. The number of allowances is bounded; sources beyond it share one for each kind.

use std::collections::BTreeMap;

use reactor::Source;

/// Allowances of single sources that are kept.
const SOURCE_COUNT_MAX: usize = 8192;

/// Interval between two searches for allowances that are full again, ns.
const SWEEP_NS: u64 = 1_000_000_000;

/// How many lines may be written at once, and in the long run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// At once.
    pub(crate) burst: f64,
    /// Per second, sustained.
    pub(crate) per_s: f64,
}

/// The unused part of a rate.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: f64,
    since_ns: u64,
}

impl Allowance {
    fn earn(&mut self, rate: Rate, now_ns: u64) {
        let earned = now_ns.saturating_sub(self.since_ns) as f64 / 1e9 * rate.per_s;
        (self.left, self.since_ns) = ((self.left + earned).min(rate.burst), now_ns.max(self.since_ns));
    }

    fn has_one(&self) -> bool {
        self.left >= 1.0
    }
}

/// The allowances of all kinds and sources.
#[derive(Debug)]
pub(crate) struct Allowances {
    of_source: Rate,
    of_all: Rate,
    /// Of each source, and under `None` of sources for which there is no room.
    sources: BTreeMap<(&'static str, Option<Source>), Allowance>,
    kinds: BTreeMap<&'static str, Allowance>,
    sweep_ns: u64,
}

impl Allowances {
    /// Each source may have `of_source` of each kind, all of them together `of_all`.
    pub(crate) fn new(of_source: Rate, of_all: Rate) -> Self {
        Self { of_source, of_all, sources: BTreeMap::new(), kinds: BTreeMap::new(), sweep_ns: 0 }
    }

    /// Whether one of this kind may be written now for this source.
    pub(crate) fn take(&mut self, now_ns: u64, kind: &'static str, source: Source) -> bool {
        let key = self.key(now_ns, kind, source);
        let whole = |rate: Rate| Allowance { left: rate.burst, since_ns: now_ns };
        let of_source = self.sources.entry(key).or_insert_with(|| whole(self.of_source));
        let of_all = self.kinds.entry(kind).or_insert_with(|| whole(self.of_all));
        of_source.earn(self.of_source, now_ns);
        of_all.earn(self.of_all, now_ns);
        // A line that one of them refuses is not charged to the other.
        let may = of_source.has_one() && of_all.has_one();
        if may {
            of_source.left -= 1.0;
            of_all.left -= 1.0;
        }
        may
    }

    /// The key of a source's allowance.
    fn key(&mut self, now_ns: u64, kind: &'static str, source: Source) -> (&'static str, Option<Source>) {
        let key = (kind, Some(source));
        if self.sources.len() < SOURCE_COUNT_MAX || self.sources.contains_key(&key) {
            return key;
        }
        if now_ns >= self.sweep_ns {
            self.sweep_ns = now_ns.saturating_add(SWEEP_NS);
            // A full allowance need not be kept: a new one begins full.
            let rate = self.of_source;
            self.sources.retain(|_, allowance| {
                allowance.earn(rate, now_ns);
                allowance.left < rate.burst
            });
        }
        if self.sources.len() < SOURCE_COUNT_MAX { key } else { (kind, None) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn allowances() -> Allowances {
        Allowances::new(Rate { burst: 500.0, per_s: 10.0 }, Rate { burst: 4000.0, per_s: 80.0 })
    }

    fn source(number: u32) -> Source {
        Source::from(Some(SocketAddr::from((number.to_be_bytes(), 4000))))
    }

    fn count(allowances: &mut Allowances, now_ns: u64, source: Source) -> usize {
        (0..5000).filter(|_| allowances.take(now_ns, "flood", source)).count()
    }

    #[test]
    fn a_flood_is_cut_to_its_burst_and_then_to_its_rate() {
        let mut allowances = allowances();
        assert_eq!(count(&mut allowances, SECOND_NS, source(1)), 500);
        assert_eq!(count(&mut allowances, 3 * SECOND_NS, source(1)), 20);
    }

    #[test]
    fn a_flood_of_one_source_leaves_the_others_theirs() {
        let mut allowances = allowances();
        assert_eq!(count(&mut allowances, 0, source(1)), 500);
        assert!(allowances.take(0, "flood", source(2)) && allowances.take(0, "other", source(1)));
        for number in 2..10 {
            count(&mut allowances, 0, source(number));
        }
        assert_eq!(count(&mut allowances, 0, source(100)), 0, "all sources together have a limit, too");
        assert_eq!(count(&mut allowances, 2 * SECOND_NS, source(101)), 160);
    }

    #[test]
    fn a_trickle_is_not_limited_and_a_clock_that_goes_back_earns_nothing() {
        let mut allowances = allowances();
        assert!((0..10_000).all(|tenths| allowances.take(tenths * SECOND_NS * 101 / 1000, "k", source(1))));
        assert_eq!(count(&mut allowances, 100 * SECOND_NS, source(2)), 500);
        assert_eq!(count(&mut allowances, 50 * SECOND_NS, source(2)), 0);
        assert_eq!(count(&mut allowances, 100 * SECOND_NS, source(2)), 0);
    }

    #[test]
    fn a_flood_of_sources_takes_bounded_memory() {
        let mut allowances = allowances();
        for number in 0..20_000 {
            allowances.take(SECOND_NS, "flood", source(number));
        }
        assert!(allowances.sources.len() <= SOURCE_COUNT_MAX + 1);
        // Those that earned their line again make room.
        for number in 0..100 {
            assert!(allowances.take(60 * SECOND_NS, "other", source(number)));
        }
        assert!(allowances.sources.len() <= 101 + 1);
    }
}
