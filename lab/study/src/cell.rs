//! A cell of an experiment: its parameters, and the values of one measurement.

use std::collections::BTreeMap;

use serde::Serialize;

/// One configuration to measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Short name, unique within the experiment.
    pub name: String,
    /// Parameters, by name.
    pub parameters: BTreeMap<&'static str, Parameter>,
}

/// Value of a parameter.
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
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), parameters: BTreeMap::new() }
    }

    /// Adds a parameter.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Parameter>) -> Self {
        self.parameters.insert(name, value.into());
        self
    }

    /// The numeric parameter with this name.
    ///
    /// # Panics
    /// There is none: experiments ask their own cells.
    pub fn number(&self, name: &str) -> u64 {
        match self.parameters.get(name) {
            Some(Parameter::Number(number)) => *number,
            other => panic!("cell {} has no number {name}: {other:?}", self.name),
        }
    }

    /// The numeric parameter with this name, such as a depth or size, in 32 bits.
    ///
    /// # Panics
    /// As [`number`](Self::number), and the value has more than 32 bits.
    pub fn word(&self, name: &str) -> u32 {
        u32::try_from(self.number(name)).expect("depths and sizes have 32 bits")
    }

    /// The one of these that a text parameter names.
    ///
    /// # Panics
    /// None has that name: experiments ask their own cells.
    pub(crate) fn one_of<One>(
        &self,
        parameter: &str,
        all: impl IntoIterator<Item = One>,
        name: impl Fn(&One) -> &str,
    ) -> One {
        let wanted = self.text(parameter);
        all.into_iter().find(|one| name(one) == wanted).expect("a cell of ours")
    }

    /// The text parameter with this name.
    ///
    /// # Panics
    /// There is none: experiments ask their own cells.
    pub fn text(&self, name: &str) -> &str {
        match self.parameters.get(name) {
            Some(Parameter::Text(text)) => text,
            other => panic!("cell {} has no word {name}: {other:?}", self.name),
        }
    }
}

/// Values of one measurement of a cell, by key. The key ends in the unit: `p99_us`, `target_percent`.
pub type Values = BTreeMap<&'static str, f64>;
