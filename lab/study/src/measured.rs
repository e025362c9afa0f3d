//! The measurements of all rounds, and comparisons between cells.

use load::cache_line::Regime;
use load::disturbance::{Disturbance, SHARE_MAX, Unmeasured};
use load::steady::Spread;
use serde::{Serialize, Serializer};

use crate::cell::{Cell, Values};
use crate::distribution::Distribution;
use crate::interval::Rank;

/// A cell and its rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellRounds {
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Values of each round, in order; `None` for a discarded round.
    #[serde(serialize_with = "serialize_rounds")]
    pub rounds: Vec<Values>,
    /// Discarded rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<Rejected>,
    /// Processor time that each side lost to other load, by round.
    #[serde(skip)]
    disturbances: Vec<Disturbance>,
    /// Distributions of latency of the valid rounds, if the experiment records them.
    #[serde(skip)]
    pub distributions: Vec<Distribution>,
    /// The number in place of the medians of its rounds.
    #[serde(skip)]
    rank: Rank,
}

/// A discarded round of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rejected {
    /// Index of the round, from 0.
    pub round: usize,
    /// Reason.
    pub reason: Unmeasured,
    /// Processor time that each side lost to other load.
    pub disturbance: Disturbance,
    /// The values, which no number and no verdict is computed from.
    pub values: Values,
}

/// `None` is `null`.
fn serialize_rounds<S: Serializer>(rounds: &[Values], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rounds.iter().map(|values| (!values.is_empty()).then_some(values)))
}

impl CellRounds {
    /// A cell before its first round.
    pub fn new(cell: Cell) -> Self {
        Self {
            cell,
            rounds: Vec::new(),
            rejected: Vec::new(),
            disturbances: Vec::new(),
            distributions: Vec::new(),
            rank: Rank::Median,
        }
    }

    /// A copy in which this is used in place of the medians, without distributions.
    pub fn at(&self, rank: Rank) -> Self {
        Self {
            rejected: self.rejected.clone(),
            rounds: self.rounds.clone(),
            rank,
            ..Self::new(self.cell.clone())
        }
    }

    /// Adds a round: its values, or the reason why it is discarded. Returns whether it is valid.
    ///
    /// A round is not judged by its share of the ceiling: without the rounds whose share came out large, the median of the
    /// others would be too small. [`settle`](Self::settle) judges the median.
    pub fn push(&mut self, values: Values, disturbance: Disturbance) -> bool {
        let operations = values.get("iops").or_else(|| values.get("ops")).copied();
        let judged = disturbance.judge(operations, None);
        self.disturbances.push(disturbance.clone());
        match judged {
            Ok(()) => {
                self.rounds.push(values);
                true
            }
            Err(reason) => {
                let round = self.rounds.len();
                self.rejected.push(Rejected { round, reason, disturbance, values });
                self.rounds.push(Values::new());
                false
            }
        }
    }

    /// Number of valid rounds: none while their median share of the ceiling is above [`SHARE_MAX`].
    pub fn calm_count(&self) -> usize {
        if self.impossible_share().is_some() { 0 } else { self.rounds.len() - self.rejected.len() }
    }

    /// Discards all rounds if their median share of the ceiling is above [`SHARE_MAX`]. After the last round.
    pub fn settle(&mut self) {
        let Some(share) = self.impossible_share() else { return };
        for (round, values) in self.rounds.iter_mut().enumerate().filter(|(_, values)| !values.is_empty()) {
            let (reason, disturbance) =
                (Unmeasured::Share(share), self.disturbances.get(round).cloned().unwrap_or_default());
            self.rejected.push(Rejected { round, reason, disturbance, values: std::mem::take(values) });
        }
        self.rejected.sort_by_key(|rejected| rejected.round);
        self.distributions.clear();
    }

    /// The median share of the ceiling if it is above [`SHARE_MAX`].
    fn impossible_share(&self) -> Option<f64> {
        self.median("share").filter(|share| *share > SHARE_MAX)
    }

    /// Reason why all rounds were discarded; `None` if one is valid.
    pub fn unmeasured(&self) -> Option<Unmeasured> {
        if self.calm_count() > 0 { None } else { self.rejected.last().map(|rejected| rejected.reason) }
    }

    /// The absence of a value in words, with the reason if rounds were discarded. A cell that this machine cannot
    /// measure has rounds without values, and its experiment gives the reason among its conditions.
    pub fn not_available(&self) -> Option<String> {
        match self.unmeasured() {
            Some(reason) => Some(format!("n/a: {reason}")),
            None => self.rounds.iter().all(Values::is_empty).then(|| "n/a".to_owned()),
        }
    }

    /// This cell with its discarded rounds taken as valid, all values times `factor`.
    fn with_rejected(&self, factor: f64) -> Self {
        let mut cell = Self { rejected: Vec::new(), ..self.clone() };
        // A round in which no operation completed has no values.
        let scaled = |value: f64| if value.is_finite() && value != 0.0 { value * factor } else { factor };
        for Rejected { round, values, .. } in &self.rejected {
            if let Some(place) = cell.rounds.get_mut(*round) {
                *place = values.iter().map(|(name, value)| (*name, scaled(*value))).collect();
            }
        }
        cell
    }

    /// Quartiles of a value over all rounds; `None` if it was never measured.
    pub fn spread(&self, value: &str) -> Option<Spread> {
        Spread::of(&self.each(value))
    }

    /// Median of a value over all rounds.
    pub fn median(&self, value: &str) -> Option<f64> {
        self.median_of(&self.each(value))
    }

    /// As above where a number falls as this one rises: the other end, where an end of the interval is used in place of
    /// the median.
    pub fn opposite_median(&self, value: &str) -> Option<f64> {
        self.rank.opposite().of(&self.each(value))
    }

    /// Median of numbers computed from each round.
    pub fn median_of(&self, rounds: &[f64]) -> Option<f64> {
        self.rank.of(rounds)
    }

    /// Quartiles of a value over the discarded rounds of a cell without a valid one.
    pub fn discarded_spread(&self, value: &str) -> Option<Spread> {
        self.unmeasured()?;
        let values = self.rejected.iter().filter_map(|rejected| rejected.values.get(value).copied());
        Spread::of(&values.filter(|value| value.is_finite()).collect::<Vec<_>>())
    }

    /// A value of each round that has it.
    pub fn each(&self, value: &str) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| round.get(value).copied()).collect()
    }
}

/// All cells of a study.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Every cell, in the experiment's order.
    pub cells: Vec<CellRounds>,
    /// Whether the medians were stable at the end.
    pub is_stable: bool,
}

impl Measured {
    /// The cell with this name.
    pub fn cell(&self, name: &str) -> Option<&CellRounds> {
        self.cells.iter().find(|cell| cell.cell.name == name)
    }

    /// Median of a value of the cell with this name.
    pub fn median(&self, name: &str, value: &str) -> Option<f64> {
        self.cell(name)?.median(value)
    }

    /// The cells whose parameter has this value, in order.
    pub fn of<'a>(&'a self, parameter: &'a str, value: &'a str) -> impl Iterator<Item = &'a CellRounds> {
        self.cells.iter().filter(move |cell| cell.cell.text(parameter) == value)
    }

    /// Ratio of the values of two cells: the median of the ratios within each round, which cancels disturbances of
    /// both. A round in which the cores shared a cache for one cell and not for the other does not count.
    pub fn ratio(&self, above: &str, below: &str, value: &str) -> Option<f64> {
        self.compare(above, below, value, |above, below| above / below)
    }

    /// Difference between the values of two cells: the median of the differences within each round.
    pub fn difference(&self, larger: &str, smaller: &str, value: &str) -> Option<f64> {
        self.compare(larger, smaller, value, |larger, smaller| larger - smaller)
    }

    fn compare(&self, a: &str, b: &str, value: &str, how: fn(f64, f64) -> f64) -> Option<f64> {
        let (a, b) = (self.cell(a)?, self.cell(b)?);
        let rounds = a.rounds.iter().zip(&b.rounds).filter(|(a, b)| regime_of(a) == regime_of(b));
        let both = rounds.filter_map(|(a, b)| Some(how(*a.get(value)?, *b.get(value)?)));
        a.median_of(&both.filter(|ratio| ratio.is_finite()).collect::<Vec<_>>())
    }

    /// Cells without a valid round.
    pub fn unmeasured(&self) -> impl Iterator<Item = (&CellRounds, Unmeasured)> {
        self.cells.iter().filter_map(|cell| Some((cell, cell.unmeasured()?)))
    }

    /// A copy in which the discarded rounds of cells without a valid one count, with values times `factor`: headline
    /// numbers that depend on such cells differ between factors.
    pub fn as_if_measured(&self, factor: f64) -> Self {
        let cells = self.cells.iter().map(|cell| match cell.unmeasured() {
            Some(_) => cell.with_rejected(factor),
            None => cell.clone(),
        });
        Self { cells: cells.collect(), is_stable: self.is_stable }
    }

    /// A copy in which all discarded rounds count: the headline numbers that there would be without a disturbance.
    pub fn as_if_calm(&self) -> Self {
        let cells = self.cells.iter().map(|cell| cell.with_rejected(1.0));
        Self { cells: cells.collect(), is_stable: self.is_stable }
    }

    /// Largest number of rounds of a cell.
    pub fn round_count(&self) -> usize {
        self.cells.iter().map(|cell| cell.rounds.len()).max().unwrap_or(0)
    }
}

/// The regime of a round, of cells whose sides spin on this machine.
fn regime_of(round: &Values) -> Option<Regime> {
    round.get("line_ns").map(|line_ns| Regime::of(*line_ns))
}

/// A round of a cell, for tests.
#[cfg(test)]
pub(crate) type Round = Vec<(&'static str, f64)>;

/// Measurements for tests: each cell with its rounds.
#[cfg(test)]
pub(crate) fn of_rounds(cells: Vec<(Cell, Vec<Round>)>) -> Measured {
    let rounds = |rounds: Vec<Round>| rounds.into_iter().map(|values| values.into_iter().collect()).collect();
    let cells = cells
        .into_iter()
        .map(|(cell, of_cell)| CellRounds { rounds: rounds(of_cell), ..CellRounds::new(cell) });
    Measured { cells: cells.collect(), is_stable: true }
}

#[cfg(test)]
mod tests {
    use load::disturbance::{Loss, Side};

    use super::*;

    fn two(a: [f64; 3], b: [f64; 3]) -> Measured {
        let rounds = |values: [f64; 3]| values.map(|value| vec![("iops", value)]).to_vec();
        of_rounds(vec![(Cell::new("a"), rounds(a)), (Cell::new("b"), rounds(b))])
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        // A machine at half speed in one round halves both values.
        let measured = two([200.0, 100.0, 210.0], [100.0, 50.0, 100.0]);
        assert_eq!(measured.ratio("a", "b", "iops"), Some(2.0));
        assert_eq!(measured.difference("a", "b", "iops"), Some(100.0));
        assert_eq!(measured.ratio("a", "c", "iops"), None);
        assert_eq!(measured.ratio("a", "b", "p50_us"), None);
    }

    #[test]
    fn rounds_of_two_regimes_are_not_compared() {
        let rounds = |of: [(f64, f64); 3]| {
            of.map(|(iops, line_ns)| vec![("iops", iops), ("line_ns", line_ns)]).to_vec()
        };
        let a = rounds([(300.0, 40.0), (100.0, 200.0), (300.0, 40.0)]);
        let b = rounds([(100.0, 200.0), (50.0, 210.0), (100.0, 42.0)]);
        let measured = of_rounds(vec![(Cell::new("a"), a), (Cell::new("b"), b)]);
        assert_eq!(measured.ratio("a", "b", "iops"), Some(2.5), "of 2 and 3, without the first round");
    }

    #[test]
    fn a_cell_without_values_is_not_available() {
        let mut cell = CellRounds::new(Cell::new("a"));
        cell.push(Values::new(), Disturbance::default());
        assert_eq!((cell.not_available().as_deref(), cell.unmeasured()), (Some("n/a"), None));
        cell.push([("iops", 1.0)].into(), Disturbance::default());
        assert_eq!(cell.not_available(), None);
        let mut cell = CellRounds::new(Cell::new("b"));
        cell.push([("iops", 0.0)].into(), Disturbance::default());
        assert_eq!(cell.not_available().as_deref(), Some("n/a: no operation finished"));
    }

    #[test]
    fn the_median_share_decides_and_not_that_of_a_round() {
        let mut disturbance = Disturbance::default();
        disturbance.add(Side::Target, Some(Loss { elapsed_ns: 100, wait_ns: 2, ..Loss::default() }));
        let shares = |shares: &[f64]| {
            let mut cell = CellRounds::new(Cell::new("a"));
            for share in shares {
                assert!(cell.push([("iops", 1.0), ("share", *share)].into(), disturbance.clone()));
            }
            cell
        };
        let mut high = shares(&[0.8, 1.0, 1.3]);
        high.settle();
        assert_eq!((high.median("share"), high.calm_count()), (Some(1.0), 3), "of all rounds");
        let mut impossible = shares(&[0.8, 1.2, 2.25]);
        assert_eq!(impossible.calm_count(), 0, "which asks for more rounds");
        impossible.settle();
        assert_eq!((impossible.median("share"), impossible.calm_count()), (None, 0));
        assert_eq!(impossible.unmeasured(), Some(Unmeasured::Share(1.2)));
        assert_eq!(impossible.rejected.iter().map(|rejected| rejected.round).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(
            impossible.rejected.iter().all(|rejected| rejected.disturbance == disturbance),
            "with their losses"
        );
    }

    #[test]
    fn what_was_nothing_has_no_ratio() {
        assert_eq!(two([1.0; 3], [0.0; 3]).ratio("a", "b", "iops"), None);
    }
}
