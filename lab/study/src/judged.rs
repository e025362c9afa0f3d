//! The headline numbers of an experiment, each with its interval.

use crate::experiment::Experiment;
use crate::headline::{Headline, Verdict};
use crate::interval::{Interval, Rank};
use crate::measured::{CellRounds, Measured};

/// Adds its interval to each number: it is computed from the medians of rounds, and once more from the lower and from the upper ends of
/// their intervals. So the least of several numbers has the least of their ends, and a difference that falls as its number rises has both
/// ends exchanged.
pub(crate) fn add_intervals(experiment: &dyn Experiment, cells: &[CellRounds], headlines: &mut [Headline]) {
    let at = |rank| {
        let cells = cells.iter().map(|cell| cell.at(rank)).collect();
        experiment.headline(&Measured { cells, is_stable: false })
    };
    let ends = [at(Rank::Low), at(Rank::High)];
    for Headline { key, value, interval, .. } in headlines {
        let [a, b] = ends.each_ref().map(|end| end.iter().find(|headline| headline.key == *key));
        *interval = a.zip(b).map(|(a, b)| Interval {
            low: a.value.min(b.value).min(*value),
            high: a.value.max(b.value).max(*value),
        });
    }
}

/// Whether there are numbers with a goal, and whether more rounds may bring one of them a verdict.
pub(crate) fn goals(experiment: &dyn Experiment, cells: &[CellRounds]) -> (bool, bool) {
    let measured =
        Measured { cells: cells.iter().map(|cell| cell.at(Rank::Median)).collect(), is_stable: false };
    let mut headlines = experiment.headline(&measured);
    headlines.retain(|headline| headline.bar.is_some());
    add_intervals(experiment, cells, &mut headlines);
    (!headlines.is_empty(), headlines.iter().any(|headline| headline.verdict() == Some(Verdict::Open)))
}
