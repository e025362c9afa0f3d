//! An axis: the position of each value, and the ticks.

use crate::figure::Scale;

/// An axis between two values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ruler {
    scale: Scale,
    /// Values at the ends; their logarithms on a logarithmic axis, their numbers of nines on one of those.
    from: f64,
    to: f64,
    /// Positions of the ends.
    places: (f64, f64),
}

impl Ruler {
    /// An axis that includes all values, with a round number at each end; from zero unless it is logarithmic.
    pub(super) fn around(scale: Scale, values: impl Iterator<Item = f64>, places: (f64, f64)) -> Self {
        let (from, to) = range(scale, values);
        let (from, to) = match scale {
            Scale::Linear => {
                let (low, high) = (from.min(0.0), to.max(0.0) + (to.max(0.0) - from.min(0.0)) * 0.04);
                let step = step(low, high);
                ((low / step).floor() * step, (high / step).ceil() * step)
            }
            Scale::Log => (below(from), above(to)),
            // From 0 to at least 90 %.
            Scale::Nines => (0.0, (to - 1e-9).ceil().max(1.0)),
        };
        Self { scale, from, to, places }
    }

    /// An axis from the smallest value to the largest.
    pub(super) fn over(scale: Scale, values: impl Iterator<Item = f64>, places: (f64, f64)) -> Self {
        let (from, to) = range(scale, values);
        // A single value is in the middle.
        let (from, to) = if to > from { (from, to) } else { (from - 1.0, to + 1.0) };
        Self { scale, from, to, places }
    }

    /// Position of a value.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log if value > 0.0 => value.log10(),
            Scale::Log => self.from,
            Scale::Nines => nines(value),
        };
        let part = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        self.places.0 + part * (self.places.1 - self.places.0)
    }

    /// Position of the lower end.
    pub(super) fn bottom(&self) -> f64 {
        self.places.0
    }

    /// Position of the upper end.
    pub(super) fn top(&self) -> f64 {
        self.places.1
    }

    /// Position of zero on a linear axis.
    pub(super) fn zero(&self) -> f64 {
        self.place(0.0)
    }

    /// Values of the ticks.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let values = match self.scale {
            Scale::Linear => {
                let step = step(self.from, self.to);
                let first = (self.from / step).ceil();
                let values = (0..20).map(|index| (first + f64::from(index)) * step);
                values.take_while(|value| *value <= self.to + step * 1e-6).collect()
            }
            Scale::Log => self.log_ticks(),
            Scale::Nines => self.nines_ticks(),
        };
        // Rounding error around zero is zero.
        let tidy = |value: f64| if value.abs() < 1e-12 { 0.0 } else { value };
        values.into_iter().map(tidy).collect()
    }

    /// 0, 50, 90, 99, 99.9 and so on.
    fn nines_ticks(&self) -> Vec<f64> {
        let decades = (1..20).map(|count| 100.0 - 10_f64.powi(2 - count));
        let values = [0.0, 50.0].into_iter().chain(decades);
        values.filter(|value| (self.from - 1e-9..=self.to + 1e-9).contains(&nines(*value))).collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let decades = self.to - self.from;
        let digits: &[f64] = match decades {
            _ if decades > 3.5 => &[1.0],
            _ if decades > 1.2 => &[1.0, 3.0],
            _ => &[1.0, 2.0, 3.0, 5.0, 7.0],
        };
        #[allow(clippy::cast_possible_truncation)] // Some 300 decades at most.
        let (first, last) = (self.from.floor() as i32, self.to.ceil() as i32);
        let values =
            (first..=last).flat_map(|decade| digits.iter().map(move |digit| digit * 10f64.powi(decade)));
        values.filter(|value| (self.from - 1e-9..=self.to + 1e-9).contains(&value.log10())).collect()
    }
}

/// The number of nines of a percentage: 1 of 90, 2 of 99; infinite of 100.
fn nines(percent: f64) -> f64 {
    -(1.0 - percent.clamp(0.0, 100.0) / 100.0).log10()
}

/// The smallest and the largest of the values that can be shown, as the ends of an axis have them.
fn range(scale: Scale, values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values: Vec<f64> = match scale {
        Scale::Linear => values.filter(|value| value.is_finite()).collect(),
        Scale::Log => values.filter(|value| *value > 0.0 && value.is_finite()).map(f64::log10).collect(),
        Scale::Nines => values.map(nines).filter(|nines| nines.is_finite()).collect(),
    };
    let from = values.iter().copied().fold(f64::INFINITY, f64::min);
    let to = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if from <= to { (from, to) } else { (0.0, 1.0) }
}

/// A round distance between ticks (0.2, 50, 1,000,000) that gives four to nine of them.
fn step(from: f64, to: f64) -> f64 {
    let rough = (to - from) / 6.0;
    if rough <= 0.0 || !rough.is_finite() {
        return 1.0;
    }
    let decade = 10f64.powf(rough.log10().floor());
    let digit = rough / decade;
    let round = [(1.3, 1.0), (2.7, 2.0), (6.5, 5.0)].into_iter().find(|(limit, _)| digit <= *limit);
    decade * round.map_or(10.0, |(_, round)| round)
}

/// The logarithm of the nearest of 1, 2, 5, 10 … below.
fn below(log: f64) -> f64 {
    nearest(log, f64::floor)
}

/// The logarithm of the nearest of 1, 2, 5, 10 … above.
fn above(log: f64) -> f64 {
    nearest(log, f64::ceil)
}

fn nearest(log: f64, round: fn(f64) -> f64) -> f64 {
    let decade = log.floor();
    let digits = [0.0, 2f64.log10(), 5f64.log10(), 1.0];
    let part = log - decade;
    let is_up = round(0.5) > 0.5;
    let fits = |digit: &&f64| if is_up { **digit >= part - 1e-9 } else { **digit <= part + 1e-9 };
    let digit = if is_up { digits.iter().find(fits) } else { digits.iter().rev().find(fits) };
    decade + digit.copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tick;

    fn written(ruler: &Ruler) -> Vec<String> {
        ruler.ticks().into_iter().map(tick).collect()
    }

    #[test]
    fn even_axes_begin_at_zero_and_end_at_a_round_number() {
        let ruler = Ruler::around(Scale::Linear, [0.62, 0.93].into_iter(), (100.0, 0.0));
        assert_eq!(written(&ruler), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!((ruler.place(0.0), ruler.place(0.5), ruler.place(1.0)), (100.0, 50.0, 0.0));
        let ruler = Ruler::around(Scale::Linear, [1_180_000.0].into_iter(), (0.0, 1.0));
        assert_eq!(written(&ruler).last().unwrap(), "1.4M");
        let below_zero = Ruler::around(Scale::Linear, [-3.0, 5.0].into_iter(), (0.0, 1.0));
        assert_eq!(written(&below_zero), ["-4", "-2", "0", "2", "4", "6"]);
    }

    #[test]
    fn axes_of_ratios_have_as_many_numbers_as_can_be_read() {
        let written = |values: [f64; 2]| written(&Ruler::around(Scale::Log, values.into_iter(), (0.0, 1.0)));
        assert_eq!(written([9.0, 33.0]), ["5", "7", "10", "20", "30", "50"]);
        assert_eq!(written([9.0, 900.0]), ["10", "30", "100", "300", "1000"]);
        assert_eq!(written([1.0, 1e6]), ["1", "10", "100", "1000", "10k", "100k", "1M"]);
    }

    #[test]
    fn each_nine_has_the_same_room() {
        let ruler = Ruler::around(Scale::Nines, [12.0, 99.95, 100.0].into_iter(), (400.0, 0.0));
        let ticks: Vec<_> = ruler.ticks().into_iter().map(crate::format::nearly_all).collect();
        assert_eq!(ticks, ["0", "50", "90", "99", "99.9", "99.99"]);
        let places = [0.0, 90.0, 99.0, 99.9, 100.0].map(|percent| ruler.place(percent).round());
        assert_eq!(places, [400.0, 300.0, 200.0, 100.0, 0.0]);
        let few = Ruler::around(Scale::Nines, [30.0].into_iter(), (400.0, 0.0));
        assert_eq!(few.place(90.0), 0.0);
        assert!(Ruler::over(Scale::Nines, [].into_iter(), (0.0, 1.0)).place(50.0).is_finite());
    }

    #[test]
    fn ratios_are_distances() {
        let ruler = Ruler::over(Scale::Log, [1.0, 100.0].into_iter(), (0.0, 200.0));
        assert_eq!([1.0, 10.0, 100.0].map(|value| ruler.place(value)), [0.0, 100.0, 200.0]);
        assert_eq!(ruler.place(0.0), 0.0, "at the end if it has no place");
    }

    #[test]
    fn one_value_stands_in_the_middle() {
        let ruler = Ruler::over(Scale::Linear, [5.0].into_iter(), (0.0, 10.0));
        assert_eq!(ruler.place(5.0), 5.0);
        let none = Ruler::around(Scale::Linear, [].into_iter(), (0.0, 1.0));
        assert!(none.place(0.5).is_finite());
    }
}
