//! Measurement in rounds: every cell in turn until the medians are stable.
//!
//! ```text
//! round 1   A B C D        a disturbance of the machine affects all cells alike,
//! round 2   D C B A        and no cell always follows the same one
//! round 3   A B C D        ends when every median is stable, or at the maximum of rounds
//! ```
//!
//! A round of a cell during which other programs had processor time of its cores is discarded ([`load::others`]), and all rounds of
//! a cell whose median share of the ceiling is impossible. Cells with fewer measurements than the minimum get more rounds, within
//! a time limit. So do numbers with a goal until their interval is on one side of it, up to a number of rounds.

use std::time::Instant;

use load::disturbance::Place;
use load::others::{Census, Others};
use load::steady::Spread;

use crate::bench::Bench;
use crate::experiment::{About, Cell, Error, Experiment};
use crate::judged;
use crate::measured::{CellRounds, Measured};
use crate::one_regime;
use crate::progress::{Progress, Step};
use crate::remote::others::Counts;
pub use crate::rounds::Rounds;

/// Half the width of the median's 95 % interval, as a fraction of the median: the notch of a box plot.
fn notch(spread: &Spread) -> f64 {
    let rounds = spread.count as f64;
    1.57 * spread.interquartile() / rounds.sqrt() / spread.median.abs()
}

/// Whether the median of every cell is stable. NaN (zero of zero) counts as stable.
pub fn is_stable(cells: &[CellRounds], judged_by: &str, tolerance: f64) -> bool {
    let spreads = cells.iter().filter_map(|cell| cell.spread(judged_by));
    spreads.map(|spread| notch(&spread)).all(|notch| notch.is_nan() || notch <= tolerance)
}

/// Runs an experiment. When stopped, it returns the complete rounds.
///
/// # Errors
/// A cell cannot be measured, or [`Error::Stopped`] within the first round.
pub fn run(
    about: &About,
    experiment: &mut dyn Experiment,
    cells: Vec<Cell>,
    bench: &Bench,
    rounds: Rounds,
    progress: &mut dyn Progress,
) -> Result<Measured, Error> {
    experiment.check(bench)?;
    let count = cells.len();
    let mut cells: Vec<_> = cells.into_iter().map(CellRounds::new).collect();
    let mut is_stable = false;
    let start = Instant::now();
    let mut extra_end = None;
    for round in 0.. {
        if round >= rounds.max {
            let end = *extra_end
                .get_or_insert_with(|| Instant::now() + rounds.extra.unwrap_or_else(|| start.elapsed()));
            let is_lacking = cells.iter().any(|cell| cell.calm_count() < rounds.min);
            let is_open = || round < rounds.judged_max && judged::goals(experiment, &cells).1;
            if !(is_lacking && Instant::now() < end || is_open()) {
                break;
            }
        }
        let mut values = vec![None; count];
        for turn in 0..count {
            let index = if round % 2 == 0 { turn } else { count - 1 - turn };
            let cell = &cells[index].cell;
            progress.on_step(&Step { experiment: about.name, cell: &cell.name, turn, count, round, rounds });
            drop((bench.take_noted(), bench.take_latency()));
            let watch = Watch::start(bench, experiment.partners())?;
            let measured = if experiment.spins(cell) {
                one_regime::measure(bench, || experiment.measure(cell, bench))
            } else {
                experiment.measure(cell, bench)
            };
            if let Some(server) = &bench.server {
                // A measurement fails first if the server takes its targets with it.
                let lost = if measured.is_err() { server.loss_now() } else { server.loss() };
                lost.map_or(Ok(()), Err)?;
            }
            if bench.is_stopped() {
                break;
            }
            let measured = measured?;
            let mut disturbance = bench.take_noted();
            let others = watch.end(bench)?;
            if experiment.is_disturbed_by_others(cell) {
                others.into_iter().for_each(|(place, others)| disturbance.add_others(place, others));
            }
            disturbance.count(measured.get("iops").map(|iops| iops * bench.times.measure.as_secs_f64()));
            values[index] = Some((measured, disturbance, bench.take_latency()));
        }
        // An incomplete round allows no comparison.
        let Some(values) = values.into_iter().collect::<Option<Vec<_>>>() else { break };
        for (cell, (values, disturbance, latency)) in cells.iter_mut().zip(values) {
            if cell.push(values, disturbance) {
                cell.distributions.extend(latency);
            }
        }
        is_stable = self::is_stable(&cells, about.judged_by, rounds.tolerance)
            && cells.iter().all(|cell| cell.calm_count() > 0);
        let is_enough = cells.iter().all(|cell| cell.calm_count() >= rounds.min);
        if is_stable && is_enough && round + 1 >= rounds.min {
            let (has_goals, is_open) = judged::goals(experiment, &cells);
            if !has_goals || !is_open && round + 1 >= rounds.judged_min {
                break;
            }
        }
    }
    cells.iter_mut().for_each(CellRounds::settle);
    progress.on_end();
    let measured = Measured { cells, is_stable };
    if measured.round_count() == 0 { Err(Error::Stopped) } else { Ok(measured) }
}

/// Shorter measurements are not judged by others.
const WATCHED_NS_MIN: u64 = 100_000_000;

/// Counts the time of others on the cores while a cell is measured, on each machine.
#[derive(Debug)]
struct Watch {
    census: Census,
    /// Processes of this machine that take part: those of the experiment, and the study server if it is one.
    partners: Vec<u32>,
    /// Whether the study server is on another machine.
    is_server_there: bool,
}

impl Watch {
    fn start(bench: &Bench, mut partners: Vec<u32>) -> Result<Self, Error> {
        bench.forget_cores();
        let server = bench.server.as_ref().map(|server| server.watch_others()).transpose()?;
        let is_server_there = matches!(server, Some(Counts::There));
        if let Some(Counts::Here(process)) = server {
            partners.push(process);
        }
        Ok(Self { census: Census::now(&partners), partners, is_server_there })
    }

    fn end(self, bench: &Bench) -> Result<Vec<(Place, Others)>, Error> {
        let census = Census::now(&self.partners);
        let mut others = vec![(Place::Here, census.others_since(&self.census, &bench.used_cores()))];
        if let Some(server) = bench.server.as_ref().filter(|_| self.is_server_there) {
            others.push((Place::Targets, server.others()?));
        }
        // The kernel counts in hundredths of a second.
        others.retain(|(_, others)| others.elapsed_ns >= WATCHED_NS_MIN);
        Ok(others)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::distribution::Distribution;
    use crate::experiment::{Machines, Values};
    use crate::figure::Figure;
    use crate::headline::{Bar, Headlines};

    const ABOUT: About = About {
        name: "known",
        title: "",
        method: "",
        claims: &[],
        machines: Machines::OneOrTwo,
        judged_by: "iops",
        columns: "iops",
    };

    /// Cells with given values, and the order in which they were measured.
    struct Known {
        values: Vec<f64>,
        asked: Vec<String>,
    }

    impl Experiment for Known {
        fn cells(&self) -> Vec<Cell> {
            ["a", "b", "c"].map(Cell::new).to_vec()
        }

        fn is_disturbed_by_others(&self, _: &Cell) -> bool {
            false
        }

        fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
            self.asked.push(cell.name.clone());
            let round = (self.asked.len() - 1) / 3;
            if cell.name == "b" {
                bench.note_latency(Distribution::of([(10.0, 1)]));
            }
            Ok([("iops", self.values[round % self.values.len()])].into())
        }

        fn answer(&self, _: &Measured, _: &mut Headlines) {}

        fn figures(&self, _: &Measured) -> Vec<Figure> {
            Vec::new()
        }
    }

    /// A number with a goal of 100, which changes from round to round.
    struct Judged {
        values: Vec<f64>,
        round: usize,
    }

    impl Experiment for Judged {
        fn cells(&self) -> Vec<Cell> {
            vec![Cell::new("a")]
        }

        fn is_disturbed_by_others(&self, _: &Cell) -> bool {
            false
        }

        fn measure(&mut self, _: &Cell, _: &Bench) -> Result<Values, Error> {
            self.round += 1;
            Ok([("p99_us", self.values[(self.round - 1) % self.values.len()])].into())
        }

        fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
            headlines.push("p99_us", measured.median("a", "p99_us"), Some(Bar::AtMost(100.0)));
        }

        fn figures(&self, _: &Measured) -> Vec<Figure> {
            Vec::new()
        }
    }

    #[test]
    fn rounds_go_on_until_there_is_a_verdict() {
        let rounds_of = |values: &[f64], rounds| {
            let mut judged = Judged { values: values.to_vec(), round: 0 };
            let cells = judged.cells();
            let about = About { judged_by: "p99_us", ..ABOUT };
            run(&about, &mut judged, cells, &Bench::for_tests(), rounds, &mut ()).unwrap().round_count()
        };
        assert_eq!(rounds_of(&[90.0, 91.0, 92.0], Rounds::USUAL), 6, "far below");
        assert_eq!(rounds_of(&[99.0, 99.2, 98.7, 99.5], Rounds::QUICK), 5, "a little below");
        assert_eq!(rounds_of(&[99.0, 101.0], Rounds::USUAL), 18, "around it");
        assert_eq!(rounds_of(&[99.0, 101.0], Rounds::exactly(4)), 4);
    }

    fn run_known(values: &[f64], rounds: Rounds) -> (Measured, String) {
        let mut known = Known { values: values.to_vec(), asked: Vec::new() };
        let cells = known.cells();
        let measured = run(&ABOUT, &mut known, cells, &Bench::for_tests(), rounds, &mut ()).unwrap();
        (measured, known.asked.concat())
    }

    #[test]
    fn every_second_round_goes_backwards() {
        let (measured, asked) = run_known(&[100.0], Rounds::exactly(3));
        assert_eq!(asked, "abccbaabc");
        assert_eq!(measured.round_count(), 3);
    }

    #[test]
    fn rounds_go_on_until_the_medians_are_known() {
        let (steady, _) = run_known(&[100.0, 101.0, 99.0], Rounds::USUAL);
        assert_eq!((steady.round_count(), steady.is_stable), (3, true));
        let (wild, _) = run_known(&[100.0, 300.0, 10.0], Rounds::USUAL);
        assert_eq!((wild.round_count(), wild.is_stable), (9, false));
        let (settling, _) = run_known(&[100.0, 120.0, 100.0, 100.0, 100.0], Rounds::USUAL);
        assert_eq!((settling.round_count(), settling.is_stable), (4, true));
    }

    #[test]
    fn cells_where_nothing_finished_are_no_measurement() {
        let rounds = Rounds { extra: Some(Duration::ZERO), ..Rounds::exactly(3) };
        let (measured, _) = run_known(&[0.0], rounds);
        assert_eq!((measured.round_count(), measured.unmeasured().count()), (3, 3));
        assert_eq!(measured.cells[0].median("iops"), None);
    }

    #[test]
    fn disturbed_rounds_are_taken_again_while_there_is_time() {
        let rounds = Rounds { extra: Some(Duration::from_secs(60)), ..Rounds::exactly(3) };
        let (measured, _) = run_known(&[100.0, 0.0, 100.0, 100.0], rounds);
        assert_eq!((measured.round_count(), measured.cells[0].calm_count()), (4, 3));
        assert_eq!(measured.unmeasured().count(), 0);
        assert_eq!(measured.cells[0].median("iops"), Some(100.0));
        let counts: Vec<_> = measured.cells.iter().map(|cell| cell.distributions.len()).collect();
        assert_eq!(counts, [0, 3, 0], "of the cell that has some, and of calm rounds only");
    }

    #[test]
    fn a_study_that_is_stopped_at_once_has_no_results() {
        let mut known = Known { values: vec![1.0], asked: Vec::new() };
        let bench = Bench::for_tests();
        bench.stop();
        let ended = run(&ABOUT, &mut known, vec![Cell::new("a")], &bench, Rounds::USUAL, &mut ());
        assert!(matches!(ended, Err(Error::Stopped)));
    }
}
