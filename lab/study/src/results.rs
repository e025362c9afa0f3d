//! `results.json`: every number of every round, for programs.

use load::environment::Environment;
use load::steady::Spread;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::bench::{Bench, Times};
use crate::distribution;
use crate::experiment::{About, Experiment, Lacking};
use crate::figure::{Figure, colour_by_name};
use crate::headline::{Bar, Headline, Verdict};
use crate::interval::Interval;
use crate::judged;
use crate::machine::Rounds;
use crate::measured::{CellRounds, Measured, Rejected};
use crate::svg::COLOUR_COUNT;
use crate::table::Table;
use crate::two_machines::TargetMachine;

/// Version of the form of `results.json`, described in docs/study.md. A field that goes, or changes its meaning, raises it.
pub const SCHEMA: u32 = 1;

/// A completed study.
#[derive(Clone, Debug)]
pub struct Study {
    /// The experiment.
    pub about: About,
    /// This machine.
    pub environment: Environment,
    /// The targets' machine, if that is another one.
    pub target_machine: Option<TargetMachine>,
    /// The remark that it ran on this machine alone although a study server was named.
    pub only_here: Option<String>,
    /// Settings.
    pub settings: Settings,
    /// Other programs that were run, with their versions.
    pub seen: Vec<String>,
    /// Conditions that decide which other results these can be compared with.
    pub conditions: Option<String>,
    /// Missing measurements, and their requirements.
    pub lacking: Vec<Lacking>,
    /// Measurements.
    pub measured: Measured,
    /// Headline numbers.
    pub headline: Vec<Headline>,
    /// Headline numbers that depend on cells without a measurement, and have no value.
    pub unmeasured: Vec<Unmeasurable>,
    /// Figures.
    pub figures: Vec<Figure>,
    /// Tables of some of the cells.
    pub tables: Vec<Table>,
    /// More fields of `results.json`.
    pub details: Map<String, Value>,
}

/// Settings of a study.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Whether `--quick` was given.
    pub is_quick: bool,
    /// Core of the host; absent if the scheduler chose the cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_core: Option<usize>,
    /// Core of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_core: Option<usize>,
    /// Warm-up, s.
    pub warm_up_s: f64,
    /// Measurement under load, s.
    pub measure_s: f64,
    /// Measurement of idle lanes, s.
    pub idle_s: f64,
    /// Minimum of rounds.
    pub rounds_min: usize,
    /// Maximum of rounds.
    pub rounds_max: usize,
    /// Maximum while a number has no verdict.
    pub rounds_judged_max: usize,
    /// Medians are stable when half the width of each 95 % interval is at most this fraction of the median.
    pub tolerance: f64,
}

impl Settings {
    /// The settings of a bench and its rounds.
    pub fn new(bench: &Bench, rounds: Rounds, is_quick: bool) -> Self {
        let Times { warm_up, measure, idle } = bench.times;
        Self {
            is_quick,
            host_core: bench.cores.map(|cores| cores.host),
            target_core: bench.cores.map(|cores| cores.target),
            warm_up_s: warm_up.as_secs_f64(),
            measure_s: measure.as_secs_f64(),
            idle_s: idle.as_secs_f64(),
            rounds_min: rounds.min,
            rounds_max: rounds.max,
            rounds_judged_max: rounds.judged_max,
            tolerance: rounds.tolerance,
        }
    }
}

/// A headline number that depends on cells without a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Unmeasurable {
    /// Key.
    pub key: String,
    /// Bar.
    pub bar: Option<Bar>,
}

/// The headline numbers, and those without a value because measurements were discarded: they depend on a cell without any, or
/// on several cells that no round has all of.
fn headline(experiment: &dyn Experiment, measured: &Measured) -> (Vec<Headline>, Vec<Unmeasurable>) {
    let mut told = experiment.headline(measured);
    if measured.cells.iter().all(|cell| cell.rejected.is_empty()) {
        judged::add_intervals(experiment, &measured.cells, &mut told);
        return (told, Vec::new());
    }
    let [low, high] = [0.01, 100.0].map(|factor| experiment.headline(&measured.as_if_measured(factor)));
    told.retain(|wanted| [&low, &high].iter().all(|others| others.contains(wanted)));
    let mut unknown: Vec<Unmeasurable> = Vec::new();
    for Headline { key, bar, .. } in experiment.headline(&measured.as_if_calm()).into_iter().chain(low) {
        let is_told = told.iter().any(|known| known.key == key) || unknown.iter().any(|none| none.key == key);
        if !is_told {
            unknown.push(Unmeasurable { key, bar });
        }
    }
    judged::add_intervals(experiment, &measured.cells, &mut told);
    (told, unknown)
}

/// A bar and whether it was reached; `None` without a number, or where its interval has the bar within it.
#[derive(Clone, Debug, Serialize)]
struct BarResult<'a> {
    key: &'a str,
    #[serde(flatten)]
    bar: Bar,
    value: Option<f64>,
    interval: Option<Interval>,
    is_reached: Option<bool>,
}

impl Study {
    /// Computes the results of an experiment from its measurements.
    pub fn new(
        about: &About,
        experiment: &dyn Experiment,
        measured: Measured,
        environment: Environment,
        target_machine: Option<TargetMachine>,
        settings: Settings,
    ) -> Self {
        let (headline, unmeasured) = headline(experiment, &measured);
        let mut figures = experiment.figures(&measured);
        colour_by_name(&mut figures, COLOUR_COUNT);
        Self {
            about: about.clone(),
            headline,
            unmeasured,
            figures,
            tables: experiment.tables(&measured),
            seen: experiment.seen(),
            conditions: experiment.conditions(&measured),
            details: experiment.details(),
            lacking: experiment.lacking(),
            environment,
            target_machine,
            only_here: None,
            settings,
            measured,
        }
    }

    /// The headline number with this key.
    pub fn value(&self, key: &str) -> Option<f64> {
        self.headline.iter().find(|headline| headline.key == key).map(|headline| headline.value)
    }

    /// Whether one of the machines is emulated.
    pub fn is_emulated(&self) -> bool {
        let target = self.target_machine.as_ref().map(|target| &target.machine.environment);
        self.environment.emulated || target.is_some_and(|environment| environment.emulated)
    }

    /// Number of disturbed cells and the cause, in a sentence; `None` if there are none.
    pub fn disturbance(&self) -> Option<String> {
        let cells = &self.measured.cells;
        let rejected: Vec<_> = cells.iter().flat_map(|cell| &cell.rejected).collect();
        let worst = rejected.iter().max_by(|a, b| {
            let percent = |rejected: &Rejected| rejected.disturbance.percent();
            percent(a).total_cmp(&percent(b))
        })?;
        let lost = self.measured.unmeasured().count();
        let (total, rounds) = (cells.len(), cells.iter().map(|cell| cell.rounds.len()).sum::<usize>());
        Some(format!(
            "The machine was disturbed: {} of {rounds} measurements were discarded, {lost} of {total} cells have none \
             (n/a, no verdict). The worst: {}.",
            rejected.len(),
            worst.reason
        ))
    }

    /// Whether every cell was measured and every bar reached.
    pub fn is_reached(&self) -> bool {
        self.measured.unmeasured().next().is_none()
            && self.unmeasured.is_empty()
            && self
                .headline
                .iter()
                .all(|headline| matches!(headline.verdict(), None | Some(Verdict::Reached)))
    }

    /// Number of bars without a verdict although there is a number: its interval has the bar within it.
    pub fn open_count(&self) -> usize {
        self.headline.iter().filter(|headline| headline.verdict() == Some(Verdict::Open)).count()
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let headline: Map<String, Value> =
            self.headline.iter().map(|headline| (headline.key.clone(), json!(headline.value))).collect();
        let mut headline = headline;
        headline.extend(self.unmeasured.iter().map(|unmeasured| (unmeasured.key.clone(), Value::Null)));
        let bars = self.headline.iter().filter_map(|headline| {
            let bar = headline.bar?;
            let Headline { key, value, interval, .. } = headline;
            let is_reached = match bar.verdict(*interval) {
                Verdict::Reached => Some(true),
                Verdict::Missed => Some(false),
                Verdict::Open => None,
            };
            Some(BarResult { key, bar, value: Some(*value), interval: *interval, is_reached })
        });
        let bars = bars.chain(self.unmeasured.iter().filter_map(|Unmeasurable { key, bar }| {
            Some(BarResult { key, bar: (*bar)?, value: None, interval: None, is_reached: None })
        }));
        let intervals = self.headline.iter();
        let intervals: Map<String, Value> = intervals
            .filter_map(|headline| Some((headline.key.clone(), json!(headline.interval?))))
            .collect();
        let mut results = json!({
            "schema": SCHEMA,
            "experiment": self.about.name,
            "title": self.about.title,
            "claims": self.about.claims,
            "environment": self.environment,
            "settings": self.settings,
            "rounds": self.measured.round_count(),
            "is_stable": self.measured.is_stable,
            "headline": headline,
            "intervals": intervals,
            "bars": bars.collect::<Vec<_>>(),
            "cells": self.measured.cells.iter().map(cell).collect::<Vec<_>>(),
        });
        for (name, value) in [
            ("target_machine", json!(self.target_machine)),
            ("only_here", json!(self.only_here)),
            ("disturbance", json!(self.disturbance())),
            ("conditions", json!(self.conditions)),
            ("seen", json!(self.seen)),
            ("lacking", json!(self.lacking)),
        ] {
            if value != Value::Null && value != json!([]) {
                results[name] = value;
            }
        }
        for (name, detail) in &self.details {
            results[name] = detail.clone();
        }
        results
    }
}

/// A cell with the quartiles of each of its values.
fn cell(cell: &CellRounds) -> Value {
    let names = cell.rounds.iter().flat_map(|round| round.keys().copied());
    let values: std::collections::BTreeMap<&str, Spread> =
        names.filter_map(|name| Some((name, cell.spread(name)?))).collect();
    let mut value = json!(cell);
    // A cell without a measurement has a reason instead of values.
    value["values"] = match cell.unmeasured() {
        None => json!(values),
        Some(reason) => {
            value["reason"] = json!(reason);
            Value::Null
        }
    };
    if !cell.distributions.is_empty() {
        value["distribution"] = distribution::to_json(&distribution::over_rounds(&cell.distributions));
    }
    value
}

#[cfg(test)]
pub(crate) mod example {
    use super::*;
    use crate::experiment::{Cell, Claim, Machines};
    use crate::figure::{Axis, Plot, Series};
    use crate::measured::of_rounds;

    /// An invented study.
    pub(crate) fn study() -> Study {
        let rounds = |iops: [f64; 3]| iops.map(|iops| vec![("iops", iops), ("p50_us", 8.5)]).to_vec();
        let measured = of_rounds(vec![
            (Cell::new("one").with("depth", 1_u32), rounds([100_000.0, 101_000.0, 99_000.0])),
            (Cell::new("many").with("depth", 128_u32), rounds([1.2e6, 1.1e6, 1.3e6])),
        ]);
        let series = Series::new("nvlane", [(1.0, measured.cells[0].spread("iops"))]);
        Study {
            about: About {
                name: "example",
                title: "How much faster are many than one?",
                method: "One, and then many.",
                claims: &[Claim {
                    source: "A talk, 2020",
                    says: "many are <faster>",
                    number: "1.62 times",
                    ours: "gain",
                }],
                machines: Machines::OneOrTwo,
                judged_by: "iops",
                columns: "iops p50_us",
            },
            environment: Environment {
                command_line: "nvlane study example --quick".into(),
                kernel: Some("6.12.1".into()),
                core_count: 2,
                ..Environment::default()
            },
            target_machine: None,
            only_here: None,
            settings: Settings {
                is_quick: true,
                host_core: Some(0),
                target_core: Some(1),
                warm_up_s: 0.1,
                measure_s: 0.35,
                idle_s: 3.0,
                rounds_min: 3,
                rounds_max: 3,
                rounds_judged_max: 6,
                tolerance: 0.05,
            },
            seen: Vec::new(),
            conditions: Some("Both cores share a cache.".into()),
            details: Map::new(),
            lacking: Vec::new(),
            measured,
            unmeasured: Vec::new(),
            headline: vec![
                Headline::new("gain", 12.0).with_bar(Bar::AtLeast(4.0)).within(11.0, 13.0),
                Headline::new("share_min", 0.85).with_bar(Bar::AtLeast(0.9)).within(0.83, 0.87),
                Headline::new("p50_us", 8.5).within(8.5, 8.5),
            ],
            tables: Vec::new(),
            figures: vec![Figure {
                title: "Speed".into(),
                note: "Higher is better.".into(),
                plot: Plot::lines(Axis::log("depth"), Vec::new(), Axis::linear("IOPS"), vec![series]),
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use load::disturbance::Disturbance;

    use super::*;
    use crate::distribution::Distribution;
    use crate::experiment::{Cell, Error, Values};
    use crate::headline::Headlines;

    #[test]
    fn every_round_is_written_down_with_its_spread() {
        let text = serde_json::to_string_pretty(&example::study().to_json()).unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_distribution_is_written_down_with_its_cell() {
        let mut study = example::study();
        study.measured.cells[1].distributions = vec![Distribution::of([(10.0, 3), (100.0, 1)]).unwrap(); 3];
        let json = study.to_json();
        assert!(json["cells"][0]["distribution"].is_null());
        let distribution = &json["cells"][1]["distribution"];
        assert_eq!((&distribution["us"][1], &distribution["percent"][1]), (&json!(10.0), &json!(75.0)));
        assert_eq!(distribution["quartile_3"].as_array().unwrap().last(), Some(&json!(100.0)));
    }

    #[test]
    fn a_second_machine_is_written_down_with_its_environment() {
        let study =
            Study { target_machine: Some(crate::two_machines::example::machine()), ..example::study() };
        let machine = &study.to_json()["target_machine"];
        assert_eq!((&machine["data_address"], &machine["cores"]), (&json!("192.0.2.2"), &json!([2, 3])));
        assert_eq!(machine["environment"]["kernel"], "6.1.9");
        assert_eq!(machine["host_cores"], json!([0]));
    }

    /// The ratio of two cells, with a bar.
    struct Gain;

    impl Experiment for Gain {
        fn cells(&self) -> Vec<Cell> {
            ["one", "many"].map(Cell::new).to_vec()
        }

        fn measure(&mut self, _: &Cell, _: &Bench) -> Result<Values, Error> {
            Err(Error::Stopped)
        }

        fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
            headlines.push("gain", measured.ratio("many", "one", "iops"), Some(Bar::AtLeast(4.0)));
        }

        fn figures(&self, _: &Measured) -> Vec<Figure> {
            Vec::new()
        }
    }

    #[test]
    fn a_ratio_of_cells_that_no_round_has_both_of_gets_no_verdict() {
        // The values of both cells in each round; 0 is discarded, as no operation finished.
        let study_of = |rounds: &[[f64; 2]]| {
            let mut cells = Gain.cells().into_iter().map(CellRounds::new).collect::<Vec<_>>();
            for values in rounds {
                for (cell, iops) in cells.iter_mut().zip(values) {
                    cell.push([("iops", *iops)].into(), Disturbance::default());
                }
            }
            let measured = Measured { cells, is_stable: true };
            let Study { about, environment, settings, .. } = example::study();
            Study::new(&about, &Gain, measured, environment, None, settings)
        };
        let none = study_of(&[[100.0, 0.0], [0.0, 900.0]]);
        assert_eq!((none.headline.len(), none.measured.unmeasured().count()), (0, 0));
        assert_eq!(none.unmeasured, [Unmeasurable { key: "gain".into(), bar: Some(Bar::AtLeast(4.0)) }]);
        assert!(!none.is_reached());
        let some = study_of(&[[100.0, 0.0], [100.0, 900.0]]);
        assert_eq!((some.value("gain"), some.unmeasured.len()), (Some(9.0), 0));
        assert_eq!((some.open_count(), some.is_reached()), (1, false), "one round has both");
        let more = study_of(&[[100.0, 0.0], [100.0, 900.0], [101.0, 907.0], [99.0, 893.0]]);
        assert!(more.is_reached(), "{:?}", more.headline);
        assert_eq!(study_of(&[[100.0, 0.0]]).unmeasured.len(), 1, "a cell without a measurement");
    }

    #[test]
    fn the_least_of_several_numbers_has_the_least_of_their_ends() {
        /// The least gain of two, and a cost.
        struct Least;
        impl Experiment for Least {
            fn cells(&self) -> Vec<Cell> {
                ["one", "two", "three"].map(Cell::new).to_vec()
            }
            fn measure(&mut self, _: &Cell, _: &Bench) -> Result<Values, Error> {
                Err(Error::Stopped)
            }
            fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
                let gain = |of| measured.ratio(of, "one", "iops");
                let least = gain("two").zip(gain("three")).map(|(a, b)| a.min(b));
                headlines.push("least", least, Some(Bar::AtLeast(2.0)));
                headlines.push("cost", gain("two").map(|gain| 10.0 - gain), Some(Bar::AtMost(7.5)));
            }
            fn figures(&self, _: &Measured) -> Vec<Figure> {
                Vec::new()
            }
        }
        // The machine is at half speed in some rounds: ratios do not know it.
        let rounds = |of: fn(f64) -> f64| {
            let speed = |round: u32| if round.is_multiple_of(3) { 50.0 } else { 100.0 };
            (0..8).map(|round| vec![("iops", speed(round) * of(f64::from(round)))]).collect()
        };
        let of = |name, values| (Cell::new(name), values);
        let measured = crate::measured::of_rounds(vec![
            of("one", rounds(|_| 1.0)),
            of("two", rounds(|round| 2.1 + round)),
            of("three", rounds(|round| 3.0 - round / 10.0)),
        ]);
        let Study { about, environment, settings, .. } = example::study();
        let study = Study::new(&about, &Least, measured, environment, None, settings);
        let [least, cost] = study.headline.as_slice() else { panic!("{:?}", study.headline) };
        let interval = |headline: &Headline| {
            headline.interval.map(|Interval { low, high }| [low, high].map(|end| (end * 10.0).round() / 10.0))
        };
        assert_eq!(interval(least), Some([2.1, 3.0]));
        assert_eq!((least.verdict(), cost.verdict()), (Some(Verdict::Reached), Some(Verdict::Open)));
        assert_eq!(interval(cost), Some([0.9, 7.9]));
        let json = study.to_json();
        assert_eq!(
            (&json["bars"][1]["is_reached"], &json["bars"][1]["interval"][1]),
            (&Value::Null, &json!(7.9))
        );
    }

    #[test]
    fn a_bar_that_is_missed_is_known() {
        let mut study = example::study();
        assert!(!study.is_reached());
        study.headline.remove(1);
        assert!(study.is_reached(), "a number without a bar misses none");
        assert_eq!(study.value("gain"), Some(12.0));
    }
}
