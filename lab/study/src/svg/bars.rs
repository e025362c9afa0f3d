//! The values at each name of a plot, side by side: bars from zero, or on a logarithmic axis, which has no zero, dots. Both
//! have a whisker between the quartiles.

use maud::{Markup, html};

use super::axis::Ruler;
use super::{
    BAR_WIDTH_MAX, LEFT, LETTER, Sheet, centred, circle, colour, discarded, names, px, title, vertical_line,
};
use crate::figure::{Plot, Point, Scale, Series};

/// The series of a plot over the names of its horizontal axis.
pub(super) fn draw(plot: &Plot, names: &[String], y: &Ruler, sheet: &Sheet) -> Markup {
    let group = (sheet.right() - LEFT) / names.len().max(1) as f64;
    let count = plot.series.len().max(1) as f64;
    let width = (group * 0.74 / count).min(BAR_WIDTH_MAX);
    let is_log = plot.y.scale == Scale::Log;
    let points = plot.series.iter().flat_map(|series| &series.points);
    let widest = points.map(|point| names::width(&plot.y.value(point.y))).fold(0.0, f64::max);
    // A number may reach over its bar, but not to the number of the next one. Over a dot it stands as high as the next dot's.
    let between = if is_log { LETTER } else { -LETTER };
    let has_numbers = widest + between <= if count > 1.0 { width } else { group };
    let above = if is_log { 9.0 } else { 5.0 };
    let has_value = |index: usize| {
        let points = plot.series.iter().flat_map(|series| series.points.iter().chain(&series.discarded));
        points.into_iter().any(|point| point.x == index as f64)
    };
    let middle =
        |index: usize, x: f64| LEFT + (x + 0.5) * group + (index as f64 - (count - 1.0) / 2.0) * width;
    #[allow(clippy::cast_possible_truncation)] // The index of a name.
    let name_of = |point: &Point| names.get(point.x as usize).map_or("", String::as_str);
    let bar = |index: usize, series: &Series, point: &Point| {
        let (middle, place) = (middle(index, point.x), y.place(point.y));
        html! {
            g.point {
                (title(plot, series, name_of(point), point))
                @if !is_log {
                    rect.bar x=(px(middle - width / 2.0 + 1.0)) y=(px(place.min(y.zero())))
                        width=(px(width - 2.0)) height=(px((place - y.zero()).abs())) rx="2" {}
                }
                @if point.low < point.high {
                    (vertical_line("whisker", middle, (y.place(point.low), y.place(point.high))))
                }
                @if is_log { (circle("aim", (middle, place), 11.0)) (circle("dot", (middle, place), 4.5)) }
                @if has_numbers {
                    (centred(
                        "number",
                        (middle, y.place(point.high.max(point.y)).min(place) - above),
                        &plot.y.value(point.y),
                    ))
                }
            }
        }
    };
    html! {
        @for (index, name) in names.iter().enumerate() {
            @let middle = LEFT + (index as f64 + 0.5) * group;
            (sheet.names.write(name, (middle, sheet.floor + 18.0)))
            @if !has_value(index) { (centred("tick", (middle, sheet.floor - 8.0), "n/a")) }
            @if index > 0 && is_log {
                (vertical_line("grid", LEFT + index as f64 * group, (y.top(), y.bottom())))
            }
        }
        @for (index, series) in plot.series.iter().enumerate() {
            @for point in &series.discarded {
                (discarded(plot, index, name_of(point), point, (middle(index, point.x), y.place(point.y))))
            }
            g class=(colour(plot, index)) {
                @for point in series.points.iter().filter(|point| !is_log || point.y > 0.0) {
                    (bar(index, series, point))
                }
            }
        }
    }
}
