//! Bars whose parts are stacked: one bar at each name, with the quartiles of the whole where they are known, and its sum above it.

use maud::{Markup, html};

use super::axis::Ruler;
use super::{BAR_WIDTH_MAX, LEFT, Sheet, centred, colour, px, title, vertical_line};
use crate::figure::{Plot, Point};

/// The bars of a plot over the names of its horizontal axis, the first series at the bottom.
pub(super) fn draw(plot: &Plot, names: &[String], y: &Ruler, sheet: &Sheet) -> Markup {
    let group = (sheet.right() - LEFT) / names.len().max(1) as f64;
    let width = (group * 0.74).min(BAR_WIDTH_MAX);
    let middle = |index: usize| LEFT + (index as f64 + 0.5) * group;
    let mut tops = vec![0.0; names.len()];
    let mut part = |point: &Point| {
        #[allow(clippy::cast_possible_truncation)] // The index of a name.
        let at = point.x as usize;
        let (name, top) = (names.get(at)?, tops.get_mut(at)?);
        let bottom = y.place(*top);
        *top += point.y;
        let (y, height) = (format!("{:.2}", y.place(*top)), format!("{:.2}", bottom - y.place(*top)));
        Some((name, px(middle(at) - width / 2.0), y, height))
    };
    html! {
        @for (index, name) in names.iter().enumerate() {
            (sheet.names.write(name, (middle(index), sheet.floor + 18.0)))
            @if plot.stack_height(index as f64) == 0.0 {
                (centred("tick", (middle(index), sheet.floor - 8.0), "n/a"))
            }
        }
        @for (index, series) in plot.series.iter().enumerate() {
            g class=(colour(plot, index)) {
                @for point in series.points.iter().filter(|point| point.y > 0.0) {
                    @if let Some((name, x, y, height)) = part(point) {
                        g.point {
                            (title(plot, series, name, point))
                            rect.part x=(x) y=(y) width=(px(width)) height=(height) {}
                        }
                    }
                }
            }
        }
        @for index in 0..names.len() {
            @let top = plot.stack_height(index as f64);
            @let is_here = |whole: &&Point| whole.x == index as f64 && whole.low < whole.high;
            @let wholes = || plot.wholes.iter().filter(is_here);
            @if top > 0.0 {
                @for whole in wholes() {
                    (vertical_line("whisker", middle(index), (y.place(whole.low), y.place(whole.high))))
                }
                @let highest = wholes().map(|whole| whole.high).fold(top, f64::max);
                (centred("number", (middle(index), y.place(highest) - 5.0), &plot.y.value(top)))
            }
        }
    }
}
