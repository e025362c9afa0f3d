//! The numbers that answer an experiment's question, and the bars they are to reach.

use serde::Serialize;

use crate::interval::Interval;

/// A headline number of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline {
    /// Name in `results.json`, ending in the unit, if there is one.
    pub key: String,
    /// Value.
    pub value: f64,
    /// The interval that the value lies in; `None` if there are too few rounds for one.
    pub interval: Option<Interval>,
    /// Bar, if there is one.
    pub bar: Option<Bar>,
}

/// The verdict of the measurements on a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval is on its side.
    Reached,
    /// All of it is on the other.
    Missed,
    /// The bar is within the interval, or there is none.
    Open,
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
    pub fn is_reached(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
            Self::Below(limit) => value < limit,
        }
    }

    /// The verdict of an interval.
    pub fn verdict(self, interval: Option<Interval>) -> Verdict {
        let ends = interval.map(|Interval { low, high }| [low, high].map(|end| self.is_reached(end)));
        match ends {
            Some([true, true]) => Verdict::Reached,
            Some([false, false]) => Verdict::Missed,
            _ => Verdict::Open,
        }
    }

    /// The comparison in words: "at least".
    pub const fn words(self) -> &'static str {
        match self {
            Self::AtLeast(_) => "at least",
            Self::AtMost(_) => "at most",
            Self::Below(_) => "below",
        }
    }

    /// Value.
    pub const fn limit(self) -> f64 {
        match self {
            Self::AtLeast(limit) | Self::AtMost(limit) | Self::Below(limit) => limit,
        }
    }
}

impl Headline {
    /// A number without a bar.
    pub fn new(key: impl Into<String>, value: f64) -> Self {
        Self { key: key.into(), value, interval: None, bar: None }
    }

    /// With a bar.
    #[must_use]
    pub fn with_bar(self, bar: Bar) -> Self {
        Self { bar: Some(bar), ..self }
    }

    /// With the interval that it lies in.
    #[must_use]
    pub fn within(self, low: f64, high: f64) -> Self {
        Self { interval: Some(Interval { low, high }), ..self }
    }

    /// The verdict of the measurements on its bar; `None` without a bar.
    pub fn verdict(&self) -> Option<Verdict> {
        self.bar.map(|bar| bar.verdict(self.interval))
    }

    /// Whether the number is on the right side of its bar, however uncertain it is; `None` without a bar.
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
            self.0.push(Headline { key: key.into(), value, interval: None, bar });
        }
    }

    /// Adds a number without a bar, unless it is `None`.
    pub fn tell(&mut self, key: impl Into<String>, value: Option<f64>) {
        self.push(key, value, None);
    }

    /// The numbers, in the order in which they were added.
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
    fn a_verdict_needs_an_interval_on_one_side_of_the_bar() {
        let of = |low, high| Headline::new("x", 1.0).with_bar(Bar::AtMost(2.0)).within(low, high).verdict();
        assert_eq!(of(-3.8, 1.9), Some(Verdict::Reached));
        assert_eq!(of(-3.8, 86.8), Some(Verdict::Open));
        assert_eq!(of(2.1, 86.8), Some(Verdict::Missed));
        let alone = Headline::new("x", 1.0).with_bar(Bar::AtLeast(0.5));
        assert_eq!((alone.verdict(), alone.is_reached()), (Some(Verdict::Open), Some(true)), "one round");
        assert_eq!(Headline::new("x", 1.0).within(0.0, 2.0).verdict(), None);
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
