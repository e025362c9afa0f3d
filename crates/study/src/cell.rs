//! A cell of an experiment: what is measured, and the values that one measurement gives.

use std::collections::BTreeMap;

use serde::Serialize;

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
