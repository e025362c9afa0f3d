//! The data of a figure; `svg` draws it.

use load::steady::Spread;

/// A figure with its title and caption.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Title.
    pub title: String,
    /// Caption.
    pub note: String,
    /// The plot.
    pub plot: Plot,
}

impl Figure {
    /// A figure with this title and caption.
    pub fn new(title: impl Into<String>, note: impl Into<String>, plot: Plot) -> Self {
        Self { title: title.into(), note: note.into(), plot }
    }

    /// Name of its file: the title's words, such as `share-of-the-ceiling.svg`.
    #[must_use]
    pub fn file_name(&self) -> String {
        let words = self.title.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '.');
        let words: Vec<_> = words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect();
        words.join("-") + ".svg"
    }
}

/// Lines over numbers, or bars over names.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// The horizontal axis.
    pub x: Across,
    /// The vertical axis.
    pub y: Axis,
    /// The lines or bars.
    pub series: Vec<Series>,
    /// Straight lines across, such as a goal.
    pub marks: Vec<Mark>,
}

/// The axis along the bottom.
#[derive(Clone, Debug, PartialEq)]
pub enum Across {
    /// Numbers: each series is a line.
    Numbers {
        /// The axis.
        axis: Axis,
        /// Positions and labels of ticks; chosen automatically if empty.
        ticks: Vec<(f64, String)>,
    },
    /// Names: each series has a bar at each. A point's `x` is the index of its name.
    Names {
        /// Label of the axis.
        label: String,
        /// The names.
        names: Vec<String>,
    },
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it measures, with the unit.
    pub label: String,
    /// How numbers are spaced.
    pub scale: Scale,
}

/// How numbers are spaced on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By their ratios. What is not above zero is not shown.
    Log,
}

impl Axis {
    /// An axis from zero.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear }
    }

    /// An axis of ratios.
    pub fn log(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Log }
    }
}

/// Points of one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<Point>,
    /// Whether it is only there to compare with.
    pub is_reference: bool,
}

/// One number with its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where it stands.
    pub x: f64,
    /// The median.
    pub y: f64,
    /// A quarter of the rounds lay below this.
    pub low: f64,
    /// A quarter of the rounds lay above this.
    pub high: f64,
}

/// A straight line across.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// What it means.
    pub label: String,
    /// Where it is.
    pub y: f64,
}

impl Series {
    /// A series of measured values; those that were not measured are left out.
    pub fn new(name: impl Into<String>, values: impl IntoIterator<Item = (f64, Option<Spread>)>) -> Self {
        let point = |(x, spread): (f64, Option<Spread>)| {
            let Spread { median, quartile_1, quartile_3, .. } = spread?;
            median.is_finite().then_some(Point { x, y: median, low: quartile_1, high: quartile_3 })
        };
        Self {
            name: name.into(),
            points: values.into_iter().filter_map(point).collect(),
            is_reference: false,
        }
    }

    /// The same to compare with.
    #[must_use]
    pub fn as_reference(self) -> Self {
        Self { is_reference: true, ..self }
    }
}

impl Plot {
    /// Lines over numbers that are written where these ticks are.
    pub fn lines(x: Axis, ticks: Vec<(f64, String)>, y: Axis, series: Vec<Series>) -> Self {
        Self { x: Across::Numbers { axis: x, ticks }, y, series, marks: Vec::new() }
    }

    /// Bars over names.
    pub fn bars(label: impl Into<String>, names: Vec<String>, y: Axis, series: Vec<Series>) -> Self {
        Self { x: Across::Names { label: label.into(), names }, y, series, marks: Vec::new() }
    }

    /// With a line across.
    #[must_use]
    pub fn with_mark(mut self, label: impl Into<String>, y: f64) -> Self {
        self.marks.push(Mark { label: label.into(), y });
        self
    }
}

/// Ticks at these whole numbers, written as they are.
#[allow(clippy::cast_precision_loss)] // Depths, counts and sizes.
pub(crate) fn ticks(numbers: &[u64], write: impl Fn(u64) -> String) -> Vec<(f64, String)> {
    numbers.iter().map(|&number| (number as f64, write(number))).collect()
}
