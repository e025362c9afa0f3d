//! Measurements of cells whose sides spin, each within one regime: both cores share a cache, or neither does.
//!
//! The cores do not halt meanwhile ([`Awake`]), and the time of a cache line between them is measured before, after, and
//! behind each ceiling. A measurement during which the regime changed is repeated; the last of several such is discarded.

use load::cache_line::Regime;
use load::disturbance::Disturbance;

use crate::awake::Awake;
use crate::bench::Bench;
use crate::cell::Values;
use crate::error::Error;

/// Measurements of a cell in one round, if the regime changes in each.
const TRIES: usize = 3;

/// The name of a share of the ceiling in one regime.
pub(crate) const fn share_in(regime: Regime) -> &'static str {
    match regime {
        Regime::SharedCache => "share_shared_cache",
        Regime::OwnCaches => "share_own_caches",
    }
}

/// Calls `measure` until the regime stays the same, [`TRIES`] times at most. Adds the time of a cache line (`line_ns`) to the
/// values, and the share of the ceiling under the name of its regime. On another machine's targets, and on one core, there are
/// no regimes: `measure` is called once.
pub(crate) fn measure(
    bench: &Bench,
    mut measure: impl FnMut() -> Result<Values, Error>,
) -> Result<Values, Error> {
    let Some(cores) = bench.cores.filter(|_| !bench.is_remote()) else { return measure() };
    let _awake = Awake::start(cores)?;
    let mut tries = 0;
    loop {
        tries += 1;
        drop((bench.take_noted(), bench.take_latency(), bench.take_line_times()));
        bench.note_line_time()?;
        let mut values = measure()?;
        bench.note_line_time()?;
        let mut times = bench.take_line_times();
        times.sort_by(f64::total_cmp);
        let (Some(&fastest), Some(&slowest)) = (times.first(), times.last()) else { return Ok(values) };
        let is_mixed = Regime::of(fastest) != Regime::of(slowest);
        if is_mixed && tries < TRIES && !bench.is_stopped() {
            continue;
        }
        let line_ns = times[times.len() / 2];
        values.insert("line_ns", line_ns);
        if is_mixed {
            bench.note(&Disturbance::of_mixed_regimes());
        } else if let Some(&share) = values.get("share") {
            values.insert(share_in(Regime::of(line_ns)), share);
        }
        return Ok(values);
    }
}

#[cfg(test)]
mod tests {
    use load::disturbance::Unmeasured;

    use super::*;
    use crate::bench::Cores;

    /// A bench on one core, whose threads never run at the same time: times of a cache line are those that a test adds.
    fn bench() -> Bench {
        let core = linux::CoreList::allowed().unwrap().cores()[0];
        Bench { cores: Some(Cores { host: core, target: core }), ..Bench::for_tests() }
    }

    /// Measures with these times of a cache line in each try. Returns the values, and the number of tries.
    fn measure_with(bench: &Bench, tries: &[&[f64]]) -> (Values, usize) {
        let mut count = 0;
        let values = measure(bench, || {
            drop(bench.take_line_times());
            bench.line_times.lock().unwrap().extend_from_slice(tries[count]);
            count += 1;
            Ok([("share", 0.9)].into())
        });
        (values.unwrap(), count)
    }

    #[test]
    fn a_share_has_the_name_of_its_regime() {
        let (values, count) = measure_with(&bench(), &[&[40.0, 45.0, 42.0]]);
        assert_eq!(values, [("share", 0.9), ("share_shared_cache", 0.9), ("line_ns", 42.0)].into());
        assert_eq!(count, 1);
    }

    #[test]
    fn a_change_of_the_regime_is_measured_again() {
        let (values, count) = measure_with(&bench(), &[&[40.0, 200.0], &[210.0, 220.0, 230.0]]);
        assert_eq!((values.get("share_own_caches"), values.get("line_ns")), (Some(&0.9), Some(&220.0)));
        assert_eq!(count, 2);
    }

    #[test]
    fn a_regime_that_changes_in_each_try_is_no_measurement() {
        let bench = bench();
        let (values, count) = measure_with(&bench, &[&[40.0, 200.0][..]; TRIES]);
        assert_eq!((values.get("share_own_caches"), values.get("share_shared_cache")), (None, None));
        assert_eq!(count, TRIES);
        assert_eq!(bench.take_noted().judge(None, None), Err(Unmeasured::Regime));
    }

    #[test]
    fn without_two_cores_there_are_no_regimes() {
        let (values, count) = measure_with(&Bench::for_tests(), &[&[40.0, 200.0]]);
        assert_eq!((values, count), ([("share", 0.9)].into(), 1));
    }
}
