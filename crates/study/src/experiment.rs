//! What an experiment is: cells that are measured in turn, and what follows from them.

use serde::Serialize;

use crate::bench::Bench;
pub use crate::cell::{Cell, Parameter, Values};
pub use crate::error::Error;
use crate::figure::Figure;
use crate::headline::{Headline, Headlines};
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

    /// Adds the numbers that answer the question.
    fn answer(&self, measured: &Measured, headlines: &mut Headlines);

    /// The numbers that answer the question.
    fn headline(&self, measured: &Measured) -> Vec<Headline> {
        let mut headlines = Headlines::default();
        self.answer(measured, &mut headlines);
        headlines.into_vec()
    }

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
