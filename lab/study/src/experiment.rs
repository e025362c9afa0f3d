//! The interface of an experiment: cells that are measured in turn, and the numbers and figures computed from them.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::bench::Bench;
pub use crate::cell::{Cell, Parameter, Values};
pub use crate::error::Error;
use crate::figure::Figure;
use crate::headline::{Headline, Headlines};
use crate::measured::Measured;
use crate::table::Table;

/// An experiment.
pub trait Experiment {
    /// Cells measured in each round. Cells that are compared are adjacent: one is measured right after the other.
    fn cells(&self) -> Vec<Cell>;

    /// Whether a cell can be measured on this bench.
    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        let _ = (cell, bench);
        true
    }

    /// Checks that the experiment can run on this machine.
    ///
    /// # Errors
    /// [`Error::Lacking`]: what is missing, and how to get it.
    fn check(&self, bench: &Bench) -> Result<(), Error> {
        let _ = bench;
        Ok(())
    }

    /// What the machines have of what it needs, once that is known.
    fn there(&self) -> Option<&There> {
        None
    }

    /// Other programs that the experiment runs, with their versions.
    fn seen(&self) -> Vec<String> {
        self.there().map(|there| there.seen.clone()).unwrap_or_default()
    }

    /// Conditions of the measurement that decide which other results it can be compared with, in a sentence.
    fn conditions(&self, measured: &Measured) -> Option<String> {
        let _ = measured;
        None
    }

    /// Measurements that are missing, and their requirements.
    fn lacking(&self) -> Vec<Lacking> {
        self.there().map(|there| there.absent.clone()).unwrap_or_default()
    }

    /// More fields of `results.json`, by name.
    fn details(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Whether both sides of a cell spin while they wait. Such a cell is measured on cores that do not halt, and while the time
    /// of a cache line between them stays about the same.
    fn spins(&self, cell: &Cell) -> bool {
        let _ = cell;
        false
    }

    /// Whether the values of a cell depend on other programs on the machine. Counts, and time that the kernel counts
    /// for one process, do not.
    fn is_disturbed_by_others(&self, cell: &Cell) -> bool {
        let _ = cell;
        true
    }

    /// Processes of this machine that take part without being started by the study: their time is no disturbance.
    fn partners(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Measures a cell once. Targets that it needs are started on first use, and kept.
    ///
    /// # Errors
    /// The measurement fails; the study ends.
    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error>;

    /// Adds the numbers that answer the question.
    fn answer(&self, measured: &Measured, headlines: &mut Headlines);

    /// The numbers that answer the question.
    fn headline(&self, measured: &Measured) -> Vec<Headline> {
        let mut headlines = Headlines::default();
        self.answer(measured, &mut headlines);
        headlines.into_vec()
    }

    /// Figures of the measurements.
    fn figures(&self, measured: &Measured) -> Vec<Figure>;

    /// Tables of some of the cells, beside that of all of them.
    fn tables(&self, measured: &Measured) -> Vec<Table> {
        let _ = measured;
        Vec::new()
    }
}

/// What the machines of a study have of the parts of an experiment.
#[derive(Debug, Default)]
pub struct There {
    /// Parts that they lack, with their requirements.
    pub absent: Vec<Lacking>,
    /// Facts about those that they have, for the reader.
    pub seen: Vec<String>,
}

impl There {
    /// Adds a part: a fact about it, or its requirements.
    pub fn add(&mut self, name: &str, found: Result<Option<String>, String>) {
        match found {
            Ok(fact) => {
                let new = fact.filter(|fact| !self.seen.contains(fact));
                self.seen.extend(new);
            }
            Err(needs) => self.absent.push(Lacking { name: name.to_owned(), needs }),
        }
    }

    /// Whether they have a part.
    pub fn has(&self, name: &str) -> bool {
        self.absent.iter().all(|absent| absent.name != name)
    }
}

/// A measurement that an experiment lacks on these machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lacking {
    /// Its name.
    pub name: String,
    /// The requirement.
    pub needs: String,
}

impl Lacking {
    /// Both in a line.
    pub fn line(&self) -> String {
        format!("{} (needs {})", self.name, self.needs)
    }
}

/// Description of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct About {
    /// Name on the command line.
    pub name: &'static str,
    /// The question it answers.
    pub title: &'static str,
    /// Method, in a few sentences.
    pub method: &'static str,
    /// Published results on the same question.
    pub claims: &'static [Claim],
    /// Whether its targets may run on another machine.
    #[serde(skip)]
    pub machines: Machines,
    /// The value whose stability decides whether more rounds are needed.
    #[serde(skip)]
    pub judged_by: &'static str,
    /// Values shown in the table, in this order, with spaces between them.
    #[serde(skip)]
    pub columns: &'static str,
}

impl About {
    /// Values shown in the table, in this order.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.columns.split_ascii_whitespace()
    }
}

/// Number of machines that an experiment can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machines {
    /// The load's machine, also beside a study server, for this reason.
    Here(&'static str),
    /// One, or two: the targets run on the second.
    OneOrTwo,
    /// One or two; with two, this part is not measured.
    TwoWithout(&'static str),
}

/// A published number to compare with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// Author, place and date.
    pub source: &'static str,
    /// The claim, in our words.
    pub says: &'static str,
    /// The number in short.
    pub number: &'static str,
    /// Key of the headline number to compare with.
    pub ours: &'static str,
}
