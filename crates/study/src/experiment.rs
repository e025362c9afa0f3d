//! What an experiment is: cells that are measured in turn, and what follows from them.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;

use crate::bench::Bench;
use crate::figure::Figure;
use crate::headline::Headline;
use crate::measured::Measured;

/// A question to this machine.
pub trait Experiment {
    /// Description of the experiment.
    fn about(&self) -> About;

    /// What is measured in each round. Cells to be compared stand side by side: they are measured one after the other.
    fn cells(&self) -> Vec<Cell>;

    /// Whether it can be carried out here.
    ///
    /// # Errors
    /// [`Error::Lacking`]: what is missing, and how to get it.
    fn check(&self, bench: &Bench) -> Result<(), Error> {
        let _ = bench;
        Ok(())
    }

    /// What else was used, with its version, if anything was.
    fn seen(&self) -> Vec<String> {
        Vec::new()
    }

    /// Measures one of its cells once. Whatever must run for that is started when it is first needed, and kept.
    ///
    /// # Errors
    /// What went wrong. The study ends.
    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error>;

    /// The numbers that answer the question.
    fn headline(&self, measured: &Measured) -> Vec<Headline>;

    /// Pictures of what was measured.
    fn figures(&self, measured: &Measured) -> Vec<Figure>;
}

/// What an experiment is about, in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct About {
    /// As it is called on the command line.
    pub name: &'static str,
    /// The question it answers.
    pub title: &'static str,
    /// What is done, in a few sentences.
    pub method: &'static str,
    /// What others have said about it.
    pub claims: Vec<Claim>,
    /// The value by which it is seen whether more rounds are needed.
    #[serde(skip)]
    pub judged_by: &'static str,
    /// Values shown in the table, in this order.
    #[serde(skip)]
    pub columns: &'static [&'static str],
}

/// A published number to compare with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// Who, where and when.
    pub source: &'static str,
    /// What was said, in our words.
    pub says: &'static str,
    /// The number in short.
    pub number: &'static str,
    /// Key of our number in the headline.
    pub ours: &'static str,
}

/// One thing to measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Short name, unique within the experiment.
    pub name: String,
    /// The same by names.
    pub parameters: BTreeMap<&'static str, Parameter>,
}

/// What a cell differs by from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Parameter {
    /// A word.
    Text(String),
    /// A count or a size.
    Number(u64),
}

impl From<&str> for Parameter {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Parameter {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Parameter {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl Cell {
    /// A cell without parameters.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), parameters: BTreeMap::new() }
    }

    /// With one more.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Parameter>) -> Self {
        self.parameters.insert(name, value.into());
        self
    }

    /// A parameter that is a number.
    ///
    /// # Panics
    /// If there is none: experiments ask their own cells.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        match self.parameters.get(name) {
            Some(Parameter::Number(number)) => *number,
            other => panic!("cell {} has no number {name}: {other:?}", self.name),
        }
    }

    /// The same, as depths and sizes of operations have it.
    ///
    /// # Panics
    /// As [`number`](Self::number), and if it has more than 32 bits.
    #[must_use]
    pub fn word(&self, name: &str) -> u32 {
        u32::try_from(self.number(name)).expect("depths and sizes have 32 bits")
    }

    /// A parameter that is a word.
    ///
    /// # Panics
    /// If there is none: experiments ask their own cells.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        match self.parameters.get(name) {
            Some(Parameter::Text(text)) => text,
            other => panic!("cell {} has no word {name}: {other:?}", self.name),
        }
    }
}

/// What one measurement of a cell gave, by name. The unit ends the name: `p99_us`, `target_percent`.
pub type Values = BTreeMap<&'static str, f64>;

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is documented by its message")]
pub enum Error {
    #[error("{0}")]
    Lacking(String),
    #[error("{doing}: {cause}")]
    System { doing: &'static str, cause: io::Error },
    #[error("the target {0}")]
    Target(String),
    #[error(transparent)]
    Host(#[from] host::Error),
    #[error(transparent)]
    Run(#[from] load::runner::RunError),
    #[error("the load went wrong: {0}")]
    Load(String),
    #[error("stopped before the first round was over")]
    Stopped,
}

impl Error {
    pub(crate) fn system(doing: &'static str, cause: io::Error) -> Self {
        Self::System { doing, cause }
    }
}
