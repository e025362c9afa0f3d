//! The values at each name of a plot, side by side: bars from zero, or on a logarithmic axis, which has no zero, dots. Both
//! have a whisker between the quartiles.

use std::fmt::Write;

use super::axis::Ruler;
use super::{BAR_WIDTH_MAX, LEFT, LETTER, Sheet, colour, draw_discarded, names, title, x_label};
use crate::figure::{Plot, Scale, Series};

/// Draws the series of a plot over the names of its horizontal axis.
#[allow(clippy::cast_precision_loss)] // A few bars.
pub(super) fn draw(
    body: &mut String,
    plot: &Plot,
    (label, names): (&str, &[String]),
    y: &Ruler,
    sheet: &Sheet,
) {
    let group = (sheet.right() - LEFT) / names.len().max(1) as f64;
    let count = plot.series.len().max(1) as f64;
    let width = (group * 0.74 / count).min(BAR_WIDTH_MAX);
    let is_log = plot.y.scale == Scale::Log;
    for (index, name) in names.iter().enumerate() {
        let middle = LEFT + (index as f64 + 0.5) * group;
        sheet.names.write(body, name, (middle, sheet.floor + 18.0));
        let is_empty = |series: &&Series| {
            !series.points.iter().chain(&series.discarded).any(|point| point.x == index as f64)
        };
        if plot.series.iter().all(|series| is_empty(&series)) {
            let _ = write!(
                body,
                r#"<text class="tick" x="{middle:.1}" y="{:.1}" text-anchor="middle">n/a</text>"#,
                sheet.floor - 8.0
            );
        }
        if index > 0 && is_log {
            let x = LEFT + index as f64 * group;
            let _ = write!(
                body,
                r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}"/>"#,
                y.top(),
                y.bottom()
            );
        }
    }
    x_label(body, label, sheet);
    let points = plot.series.iter().flat_map(|series| &series.points);
    let widest = points.map(|point| names::width(&plot.y.value(point.y))).fold(0.0, f64::max);
    // A number may reach over its bar, but not to the number of the next one. Over a dot it stands as high as the next dot's.
    let between = if is_log { LETTER } else { -LETTER };
    let has_numbers = widest + between <= if count > 1.0 { width } else { group };
    for (index, series) in plot.series.iter().enumerate() {
        for point in &series.discarded {
            let middle = LEFT + (point.x + 0.5) * group + (index as f64 - (count - 1.0) / 2.0) * width;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The index of a name.
            let name = names.get(point.x as usize).map_or("", String::as_str);
            draw_discarded(body, plot, index, name, point, (middle, y.place(point.y)));
        }
        let _ = write!(body, r#"<g class="{}">"#, colour(plot, index));
        for point in series.points.iter().filter(|point| !is_log || point.y > 0.0) {
            let middle = LEFT + (point.x + 0.5) * group + (index as f64 - (count - 1.0) / 2.0) * width;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The index of a name.
            let name = names.get(point.x as usize).map_or("", String::as_str);
            let _ = write!(body, r#"<g class="point"><title>{}</title>"#, title(plot, series, name, point));
            let place = y.place(point.y);
            if !is_log {
                let top = place.min(y.zero());
                let _ = write!(
                    body,
                    r#"<rect class="bar" x="{:.1}" y="{top:.1}" width="{:.1}" height="{:.1}" rx="2"/>"#,
                    middle - width / 2.0 + 1.0,
                    width - 2.0,
                    (place - y.zero()).abs()
                );
            }
            if point.low < point.high {
                let _ = write!(
                    body,
                    r#"<line class="whisker" x1="{middle:.1}" x2="{middle:.1}" y1="{:.1}" y2="{:.1}"/>"#,
                    y.place(point.low),
                    y.place(point.high)
                );
            }
            if is_log {
                let _ = write!(
                    body,
                    r#"<circle class="aim" cx="{middle:.1}" cy="{place:.1}" r="11"/><circle class="dot" cx="{middle:.1}" cy="{place:.1}" r="4.5"/>"#
                );
            }
            if has_numbers {
                let above = if is_log { 9.0 } else { 5.0 };
                let _ = write!(
                    body,
                    r#"<text class="number" x="{middle:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                    y.place(point.high.max(point.y)).min(place) - above,
                    plot.y.value(point.y)
                );
            }
            body.push_str("</g>");
        }
        body.push_str("</g>");
    }
}
