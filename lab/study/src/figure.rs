//! The data of a figure; `svg` draws it.

use std::collections::{BTreeMap, BTreeSet};

use load::steady::Spread;

use crate::format::{nearly_all, number, table_number, tick};

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

    /// File name: the words of the title, such as `share-of-the-ceiling.svg`.
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
    /// Whether the bars at a name are parts of one bar.
    pub is_stacked: bool,
    /// Of a stacked plot: the measured wholes, whose quartiles are drawn at the bars' ends.
    pub wholes: Vec<Point>,
    /// Horizontal lines, such as a bar to reach.
    pub marks: Vec<Mark>,
}

/// The horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Across {
    /// Numeric: each series is a line.
    Numbers {
        /// The axis.
        axis: Axis,
        /// Positions and labels of ticks; chosen automatically if empty.
        ticks: Vec<(f64, String)>,
    },
    /// Categories: each series has a bar at each. The `x` of a point is the index of its category.
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
    /// Quantity and unit.
    pub label: String,
    /// Scale.
    pub scale: Scale,
}

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from zero.
    Linear,
    /// Logarithmic. Values of zero and below are not shown.
    Log,
    /// Percentages by their number of nines: 0, 90, 99, 99.9 are at equal distances. 100 is at the end.
    Nines,
}

impl Axis {
    /// A linear axis from zero.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Log }
    }

    /// An axis of percentages by their number of nines.
    pub fn nines(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Nines }
    }

    /// Whether the values are microseconds, which from a thousand on are written as milliseconds or seconds.
    fn is_time(&self) -> bool {
        self.label.split(' ').any(|word| word == "µs")
    }

    /// A value of this axis.
    pub(crate) fn value(&self, value: f64) -> String {
        if self.scale == Scale::Nines {
            return format!("{} %", nearly_all(value));
        }
        if self.is_time() { table_number("_us", value) } else { number(value) }
    }

    /// A value of this axis without trailing zeroes, for a tick.
    pub(crate) fn tick(&self, value: f64) -> String {
        if self.scale == Scale::Nines {
            return nearly_all(value);
        }
        match value.abs() {
            size if !self.is_time() || size < 999.5 => tick(value),
            size if size < 999_950.0 => format!("{} ms", tick(value / 1e3)),
            _ => format!("{} s", tick(value / 1e6)),
        }
    }
}

/// Points drawn in one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<Point>,
    /// Points of cells whose measurements were all discarded.
    pub discarded: Vec<Point>,
    /// Whether measurements were discarded, also where none of their values is drawn.
    pub is_discarded: bool,
    /// Its colour; the next one of its plot, if none is given.
    pub colour: Option<usize>,
    /// Whether this is a reference that the other series are compared with.
    pub is_reference: bool,
}

/// A median with its quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Position on the horizontal axis.
    pub x: f64,
    /// The median.
    pub y: f64,
    /// Lower quartile of the rounds.
    pub low: f64,
    /// Upper quartile of the rounds.
    pub high: f64,
}

/// A horizontal line.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Label.
    pub label: String,
    /// Value on the vertical axis.
    pub y: f64,
}

fn points(values: impl IntoIterator<Item = (f64, Option<Spread>)>) -> Vec<Point> {
    let point = |(x, spread): (f64, Option<Spread>)| {
        let Spread { median, quartile_1, quartile_3, .. } = spread?;
        median.is_finite().then_some(Point { x, y: median, low: quartile_1, high: quartile_3 })
    };
    values.into_iter().filter_map(point).collect()
}

impl Series {
    /// A series of measured values, without cells that have none.
    pub fn new(name: impl Into<String>, values: impl IntoIterator<Item = (f64, Option<Spread>)>) -> Self {
        Self::of(name, points(values))
    }

    /// A series of points.
    pub fn of(name: impl Into<String>, points: Vec<Point>) -> Self {
        let name = name.into();
        Self { name, points, discarded: Vec::new(), is_discarded: false, colour: None, is_reference: false }
    }

    /// The same series with values of discarded measurements.
    #[must_use]
    pub fn with_discarded(mut self, values: impl IntoIterator<Item = (f64, Option<Spread>)>) -> Self {
        self.discarded = points(values);
        self.is_discarded |= !self.discarded.is_empty();
        self
    }

    /// The same series; some of its measurements were discarded.
    #[must_use]
    pub fn discarded_if(self, is_discarded: bool) -> Self {
        Self { is_discarded: self.is_discarded || is_discarded, ..self }
    }

    /// The same series as a reference.
    #[must_use]
    pub fn as_reference(self) -> Self {
        Self { is_reference: true, ..self }
    }
}

impl Plot {
    /// A line plot with these ticks on the horizontal axis.
    pub fn lines(x: Axis, ticks: Vec<(f64, String)>, y: Axis, series: Vec<Series>) -> Self {
        Self {
            x: Across::Numbers { axis: x, ticks },
            y,
            series,
            is_stacked: false,
            wholes: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// A bar plot.
    pub fn bars(label: impl Into<String>, names: Vec<String>, y: Axis, series: Vec<Series>) -> Self {
        Self {
            x: Across::Names { label: label.into(), names },
            y,
            series,
            is_stacked: false,
            wholes: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// A plot with one bar at each name, made of a part of each series. A series without any part keeps its colour, and is not
    /// in the legend.
    pub fn stacks(label: impl Into<String>, names: Vec<String>, y: Axis, series: Vec<Series>) -> Self {
        Self { is_stacked: true, ..Self::bars(label, names, y, series) }
    }

    /// The same stacked plot with the quartiles of the whole bars.
    #[must_use]
    pub fn with_wholes(self, wholes: Series) -> Self {
        Self { wholes: wholes.points, ..self }
    }

    /// Whether a series is in the legend.
    pub(crate) fn shows(&self, series: &Series) -> bool {
        !self.is_stacked || series.points.iter().any(|point| point.y > 0.0)
    }

    /// Height of the whole bar at a name of a stacked plot.
    pub(crate) fn stack_height(&self, x: f64) -> f64 {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.filter(|point| point.x == x).map(|point| point.y).sum()
    }

    /// Adds a horizontal line.
    #[must_use]
    pub fn with_mark(mut self, label: impl Into<String>, y: f64) -> Self {
        self.marks.push(Mark { label: label.into(), y });
        self
    }
}

/// Gives each name one colour in all figures, and the names of a plot different ones, as far as there are enough. Parts
/// of stacked bars keep those of their plot.
pub(crate) fn colour_by_name(figures: &mut [Figure], count: usize) {
    let has_colour = |series: &Series| !series.is_reference;
    let plots = || figures.iter().map(|figure| &figure.plot).filter(|plot| !plot.is_stacked);
    let mut colours: BTreeMap<String, usize> = BTreeMap::new();
    for series in plots().flat_map(|plot| &plot.series).filter(|series| has_colour(series)) {
        if colours.contains_key(&series.name) {
            continue;
        }
        let beside = plots().filter(|plot| plot.series.iter().any(|other| other.name == series.name));
        let taken: BTreeSet<usize> = beside
            .flat_map(|plot| &plot.series)
            .filter_map(|other| colours.get(&other.name).copied())
            .collect();
        let free = (0..count).find(|colour| !taken.contains(colour));
        colours.insert(series.name.clone(), free.unwrap_or(colours.len() % count));
    }
    for figure in figures.iter_mut().filter(|figure| !figure.plot.is_stacked) {
        for series in figure.plot.series.iter_mut().filter(|series| has_colour(series)) {
            series.colour = colours.get(&series.name).copied();
        }
    }
}

/// Ticks at these integers, labelled with all their digits.
pub(crate) fn ticks(numbers: &[u64], write: impl Fn(u64) -> String) -> Vec<(f64, String)> {
    numbers.iter().map(|&number| (number as f64, write(number))).collect()
}
