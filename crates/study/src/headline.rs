//! The numbers that answer an experiment's question, and the bars they are to reach.

use serde::Serialize;

/// A headline number of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline {
    /// Name in `results.json`, ending in the unit, if there is one.
    pub key: String,
    /// Value.
    pub value: f64,
    /// Bar, if there is one.
    pub bar: Option<Bar>,
}

/// Bar of a headline number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// Below this.
    Below(f64),
}

impl Bar {
    /// Whether a number reaches the bar.
    #[must_use]
    pub fn is_reached(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
            Self::Below(limit) => value < limit,
        }
    }

    /// The comparison in words: "at least".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::AtLeast(_) => "at least",
            Self::AtMost(_) => "at most",
            Self::Below(_) => "below",
        }
    }

    /// Value.
    #[must_use]
    pub const fn limit(self) -> f64 {
        match self {
            Self::AtLeast(limit) | Self::AtMost(limit) | Self::Below(limit) => limit,
        }
    }
}

impl Headline {
    /// A number without a bar.
    #[must_use]
    pub fn new(key: impl Into<String>, value: f64) -> Self {
        Self { key: key.into(), value, bar: None }
    }

    /// With a bar.
    #[must_use]
    pub fn with_bar(self, bar: Bar) -> Self {
        Self { bar: Some(bar), ..self }
    }

    /// Whether the number reaches its bar; `None` without a bar.
    #[must_use]
    pub fn is_reached(&self) -> Option<bool> {
        self.bar.map(|bar| bar.is_reached(self.value))
    }
}

/// The headline numbers that could be computed.
#[derive(Debug, Default)]
pub struct Headlines(Vec<Headline>);

impl Headlines {
    /// Adds a number, unless it is `None`.
    pub fn push(&mut self, key: impl Into<String>, value: Option<f64>, bar: Option<Bar>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.0.push(Headline { key: key.into(), value, bar });
        }
    }

    /// The numbers, in the order in which they were added.
    #[must_use]
    pub fn into_vec(self) -> Vec<Headline> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_reached_from_the_right_side() {
        for (bar, value, is_reached) in [
            (Bar::AtLeast(0.9), 0.9, true),
            (Bar::AtLeast(0.9), 0.89, false),
            (Bar::AtMost(2.0), 2.0, true),
            (Bar::AtMost(2.0), 2.1, false),
            (Bar::Below(0.5), 0.5, false),
            (Bar::Below(0.5), 0.4, true),
        ] {
            assert_eq!(bar.is_reached(value), is_reached, "{value} {} {}", bar.words(), bar.limit());
        }
        assert_eq!(Headline::new("x", 1.0).is_reached(), None);
    }

    #[test]
    fn what_could_not_be_computed_is_no_headline() {
        let mut headlines = Headlines::default();
        headlines.push("none", None, None);
        headlines.push("infinite", Some(f64::INFINITY), None);
        headlines.push("some", Some(1.0), Some(Bar::AtLeast(1.0)));
        assert_eq!(headlines.into_vec(), [Headline::new("some", 1.0).with_bar(Bar::AtLeast(1.0))]);
    }
}
