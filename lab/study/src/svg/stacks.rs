//! Bars whose parts are stacked: one bar at each name, with the quartiles of the whole where they are known, and its sum above it.

use std::fmt::Write;

use super::axis::Ruler;
use super::{BAR_WIDTH_MAX, LEFT, Sheet, colour, title, x_label};
use crate::figure::Plot;

/// Draws the bars of a plot over the names of its horizontal axis, the first series at the bottom.
#[allow(clippy::cast_precision_loss)] // A few bars.
pub(super) fn draw(
    body: &mut String,
    plot: &Plot,
    (label, names): (&str, &[String]),
    y: &Ruler,
    sheet: &Sheet,
) {
    let group = (sheet.right() - LEFT) / names.len().max(1) as f64;
    let width = (group * 0.74).min(BAR_WIDTH_MAX);
    for (index, name) in names.iter().enumerate() {
        let middle = LEFT + (index as f64 + 0.5) * group;
        sheet.names.write(body, name, (middle, sheet.floor + 18.0));
        if plot.stack_height(index as f64) == 0.0 {
            let _ = write!(
                body,
                r#"<text class="tick" x="{middle:.1}" y="{:.1}" text-anchor="middle">n/a</text>"#,
                sheet.floor - 8.0
            );
        }
    }
    x_label(body, label, sheet);
    let mut tops = vec![0.0; names.len()];
    for (index, series) in plot.series.iter().enumerate() {
        let _ = write!(body, r#"<g class="{}">"#, colour(plot, index));
        for point in series.points.iter().filter(|point| point.y > 0.0) {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The index of a name.
            let at = point.x as usize;
            let (Some(name), Some(top)) = (names.get(at), tops.get_mut(at)) else { continue };
            let bottom = y.place(*top);
            *top += point.y;
            let _ = write!(
                body,
                r#"<g class="point"><title>{}</title><rect class="part" x="{:.1}" y="{:.2}" width="{width:.1}" height="{:.2}"/></g>"#,
                title(plot, series, name, point),
                LEFT + (point.x + 0.5) * group - width / 2.0,
                y.place(*top),
                bottom - y.place(*top)
            );
        }
        body.push_str("</g>");
    }
    for (index, top) in tops.into_iter().enumerate().filter(|(_, top)| *top > 0.0) {
        let middle = LEFT + (index as f64 + 0.5) * group;
        let mut highest = top;
        for whole in plot.wholes.iter().filter(|whole| whole.x == index as f64 && whole.low < whole.high) {
            let _ = write!(
                body,
                r#"<line class="whisker" x1="{middle:.1}" x2="{middle:.1}" y1="{:.1}" y2="{:.1}"/>"#,
                y.place(whole.low),
                y.place(whole.high)
            );
            highest = highest.max(whole.high);
        }
        let _ = write!(
            body,
            r#"<text class="number" x="{middle:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            y.place(highest) - 5.0,
            plot.y.value(top)
        );
    }
}
