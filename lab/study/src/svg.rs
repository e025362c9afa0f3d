//! A plot as SVG, inside a page or as a file. Its colours follow the reader's light or dark scheme.
//!
//! ```text
//! y label                  ── a  ── b
//!  1 M ┤        ╭──●        lines have a band between the quartiles,
//!      │   ●────╯           bars and dots over names a whisker, stacked
//!  0   └───┬────┬──┬        bars one for the whole; a point under the mouse shows its numbers
//!          1    4  32   x label
//! ```

mod axis;
mod bars;
mod names;
mod stacks;

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};

use crate::figure::{Across, Axis, Figure, Plot, Point, Scale, Series};
use axis::Ruler;
use names::Names;

/// Width of a drawing for screens of some size, which two columns of a page show at about its own scale.
const WIDE: f64 = 540.0;
/// Width of one for a narrow screen, whose text would become too small if the other were scaled down.
const NARROW: f64 = 332.0;
const HEIGHT: f64 = 330.0;
/// The widest bar.
const BAR_WIDTH_MAX: f64 = 46.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 16.0;
/// Height below the axis with one line of tick labels.
const BOTTOM: f64 = 52.0;
/// Height of a line of the legend, and of the label above the axis.
const LINE: f64 = 22.0;
/// Mean width of a letter.
const LETTER: f64 = 7.2;
/// Most dots of a line.
const DOTS_MAX: usize = 24;
pub(crate) const COLOUR_COUNT: usize = 10;

/// The colours of both schemes, by name.
pub(crate) const COLOURS: &str = include_str!("svg/colours.css");

/// The styles of a plot's parts.
pub(crate) const PLOT: &str = include_str!("svg/plot.css");

/// The sheet that a plot is drawn on.
struct Sheet {
    width: f64,
    /// The form of the names below a bar plot.
    names: Names,
    /// The horizontal axis.
    floor: f64,
}

impl Sheet {
    fn of(plot: &Plot, width: f64) -> Self {
        let names = match &plot.x {
            Across::Names { names, .. } => Names::fitted(names, width - LEFT - RIGHT),
            Across::Numbers { .. } => Names::default(),
        };
        // A long legend, such as that of a stack's parts, takes none of the plot's height.
        let has_room_for = if plot.is_stacked { 1.0 } else { 2.0 };
        let lines = legend_places(&legend_entries(plot), width - RIGHT).1 - has_room_for;
        Self { width, names, floor: HEIGHT - BOTTOM + LINE * lines.max(0.0) }
    }

    /// The right end of the axis.
    fn right(&self) -> f64 {
        self.width - RIGHT
    }

    fn height(&self) -> f64 {
        self.floor + BOTTOM + self.names.extra_height()
    }
}

/// A figure as an SVG file, with a background.
pub fn file(figure: &Figure) -> String {
    let sheet = Sheet::of(&figure.plot, WIDE);
    let view = format!("-16 -14 {} {}", sheet.width + 32.0, sheet.height() + 28.0);
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox=(view) {
            title { (figure.title) }
            style { (PreEscaped([COLOURS, &with_light_colours(PLOT)].concat())) }
            rect x="-16" y="-14" width="100%" height="100%" rx="12" style=(with_light_colours("fill: var(--card)")) {}
            (body(&figure.plot, &sheet))
        }
    };
    drawing.into_string()
}

/// The same rules, each colour preceded by that of the light scheme: viewers of files that have no CSS variables use it.
fn with_light_colours(rules: &str) -> String {
    let light = |name: &str| {
        let (_, value) = COLOURS.split_once(&format!("{name}: ")).expect("a colour of the scheme");
        value.split(';').next().unwrap_or_default()
    };
    let with_light = |rule: &str| match rule.split_once("var(").and_then(|(_, rest)| rest.split_once(')')) {
        Some((name, _)) => {
            let at = rule.rfind(['{', '\n']).map_or(0, |at| at + 1);
            let (start, declaration) = rule.split_at(at);
            let plain = declaration.replace(&format!("var({name})"), light(name));
            format!("{start}{plain}{}{declaration}", if plain.ends_with(';') { "" } else { ";" })
        }
        None => rule.to_owned(),
    };
    rules.split_inclusive(';').map(with_light).collect()
}

/// A plot for a page that has the styles: one drawing for wide screens, one for narrow ones.
pub(crate) fn draw(plot: &Plot) -> Markup {
    let drawing = |class: &str, width: f64| {
        let sheet = Sheet::of(plot, width);
        let view = format!("0 0 {width} {}", sheet.height());
        html! {
            svg class={ "plot " (class) } viewBox=(view) role="img" aria-label=(in_words(plot)) {
                (body(plot, &sheet))
            }
        }
    };
    html! { (drawing("wide", WIDE)) (drawing("narrow", NARROW)) }
}

/// The plot as text, for screen readers: its quantities, and of each series the first and last value, or over names every value.
fn in_words(plot: &Plot) -> String {
    let across = match &plot.x {
        Across::Numbers { axis, .. } => &axis.label,
        Across::Names { label, .. } => label,
    };
    let mut words = plot.y.label.clone();
    if !across.is_empty() {
        let _ = write!(words, " over {across}");
    }
    for series in plot.series.iter().filter(|series| plot.shows(series)) {
        let (Some(first), Some(last)) = (series.points.first(), series.points.last()) else {
            let _ = write!(words, "; {}: {}", series.name, without_points(series));
            continue;
        };
        #[allow(clippy::cast_possible_truncation)] // The index of a name.
        let place = |x: f64| match &plot.x {
            Across::Names { names, .. } => names.get(x as usize).cloned().unwrap_or_default(),
            Across::Numbers { ticks, axis } => {
                let tick = ticks.iter().find(|(value, _)| *value == x);
                tick.map_or_else(|| axis.value(x), |(_, text)| text.clone())
            }
        };
        let said = |point: &Point| format!("{} at {}", plot.y.value(point.y), place(point.x));
        let said: Vec<String> = match plot.x {
            Across::Numbers { .. } if first.x < last.x => vec![said(first), said(last)],
            Across::Numbers { .. } => vec![said(first)],
            // Names have no order that their first and last would stand for.
            Across::Names { .. } => series.points.iter().map(said).collect(),
        };
        let _ = write!(words, "; {}: {}", series.name, said.join(", "));
    }
    words
}

/// A place, with one decimal.
fn px(place: f64) -> String {
    format!("{place:.1}")
}

/// Text whose middle is at a place.
fn centred(class: &str, (x, y): (f64, f64), text: &str) -> Markup {
    html! { text class=(class) x=(px(x)) y=(px(y)) text-anchor="middle" { (text) } }
}

/// A line along an axis: horizontal from one place to another, or vertical.
fn horizontal(class: &str, (from, to): (f64, f64), y: f64) -> Markup {
    html! { line class=(class) x1=(px(from)) x2=(px(to)) y1=(px(y)) y2=(px(y)) {} }
}

fn vertical_line(class: &str, x: f64, (from, to): (f64, f64)) -> Markup {
    html! { line class=(class) x1=(px(x)) x2=(px(x)) y1=(px(from)) y2=(px(to)) {} }
}

fn circle(class: &str, (x, y): (f64, f64), radius: f64) -> Markup {
    html! { circle class=(class) cx=(px(x)) cy=(px(y)) r=(radius) {} }
}

fn body(plot: &Plot, sheet: &Sheet) -> Markup {
    let (legend, legend_height) = legend(plot, sheet);
    let top = legend_height + LINE + 8.0;
    let y = vertical(plot, top, sheet);
    let is_empty = |series: &Series| series.points.is_empty() && series.discarded.is_empty();
    let right = sheet.right();
    html! {
        (legend)
        text.label x="4" y=(px(legend_height + 14.0)) { (plot.y.label) }
        @if plot.series.iter().all(is_empty) {
            (centred("tick", (f64::midpoint(LEFT, right), f64::midpoint(top, sheet.floor)), "no data"))
        } @else {
            @for value in y.ticks() {
                (horizontal("grid", (LEFT, right), y.place(value)))
                text.tick x=(px(LEFT - 8.0)) y=(px(y.place(value) + 4.0)) text-anchor="end" { (plot.y.tick(value)) }
            }
            @for mark in &plot.marks { (horizontal("mark", (LEFT, right), y.place(mark.y))) }
            @match &plot.x {
                Across::Numbers { axis, ticks } => { (lines(plot, axis, ticks, &y, sheet)) },
                Across::Names { label, names } if plot.is_stacked => {
                    (stacks::draw(plot, names, &y, sheet)) (x_label(label, sheet))
                },
                Across::Names { label, names } => { (bars::draw(plot, names, &y, sheet)) (x_label(label, sheet)) },
            }
        }
    }
}

/// Number of series of the same kind before this one.
fn rank(plot: &Plot, index: usize) -> usize {
    let is_alike = |series: &&Series| series.is_reference == plot.series[index].is_reference;
    plot.series[..index].iter().filter(is_alike).count()
}

/// Colour of a series; references have a separate one.
fn colour(plot: &Plot, index: usize) -> String {
    if plot.series[index].is_reference {
        return "c-reference".to_owned();
    }
    format!("c{}", plot.series[index].colour.unwrap_or_else(|| rank(plot, index)) % COLOUR_COUNT)
}

/// The name of each series and its colour.
#[cfg(test)]
pub(crate) fn colours(plot: &Plot) -> Vec<(String, String)> {
    let of = |(index, series): (usize, &Series)| (series.name.clone(), colour(plot, index));
    plot.series.iter().enumerate().map(of).collect()
}

/// Dash pattern of a line, which distinguishes references.
fn dashes(plot: &Plot, index: usize) -> &'static str {
    match (plot.series[index].is_reference && !plot.is_stacked, rank(plot, index) % 2) {
        (false, _) => "",
        (true, 0) => " dashed",
        (true, _) => " dotted",
    }
}

/// Why a series has no points.
fn without_points(series: &Series) -> &'static str {
    if series.is_discarded { "discarded" } else { "no data" }
}

/// Class of discarded measurements.
const DISCARDED: &str = "c-discarded";

/// The entries of the legend: class of the key, and name. A single series without a mark has none.
fn legend_entries(plot: &Plot) -> Vec<(String, String)> {
    let has_discarded = plot.series.iter().any(|series| !series.discarded.is_empty());
    if plot.series.len() < 2 && plot.marks.is_empty() && !has_discarded {
        return Vec::new();
    }
    let series = plot.series.iter().enumerate().filter(|(_, series)| plot.shows(series));
    let series = series.map(|(index, series)| {
        let name = if series.points.is_empty() {
            format!("{}: {}", series.name, without_points(series))
        } else {
            series.name.clone()
        };
        (format!("key {}{}", colour(plot, index), dashes(plot, index)), name)
    });
    let marks = plot.marks.iter().map(|mark| ("key mark".to_owned(), mark.label.clone()));
    let discarded = has_discarded.then(|| (format!("key {DISCARDED}"), "discarded measurements".to_owned()));
    series.chain(marks).chain(discarded).collect()
}

/// Place of each entry of the legend, and its number of lines.
fn legend_places(entries: &[(String, String)], right: f64) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut line) = (LEFT, 0.0);
    let place = |(_, name): &(String, String)| {
        let width = 26.0 + names::width(name);
        if x > LEFT && x + width > right {
            (x, line) = (LEFT, line + 1.0);
        }
        let place = (x, 14.0 + LINE * line);
        x += width + 10.0;
        place
    };
    let places: Vec<_> = entries.iter().map(place).collect();
    let lines = if places.is_empty() { 0.0 } else { line + 1.0 };
    (places, lines)
}

/// The legend and its height.
fn legend(plot: &Plot, sheet: &Sheet) -> (Markup, f64) {
    let entries = legend_entries(plot);
    let (places, lines) = legend_places(&entries, sheet.right());
    let legend = html! {
        @for ((class, name), (x, y)) in entries.iter().zip(places) {
            @if class.ends_with(DISCARDED) {
                (circle(&format!("ring {DISCARDED}"), (x + 8.0, y - 4.0), 4.2))
            } @else {
                (horizontal(class, (x, x + 16.0), y - 4.0))
            }
            text.name x=(px(x + 21.0)) y=(px(y)) { (name) }
        }
    };
    (legend, LINE * lines)
}

/// The vertical axis, which includes every point and line.
fn vertical(plot: &Plot, top: f64, sheet: &Sheet) -> Ruler {
    let points = plot.series.iter().flat_map(|series| &series.points);
    let values = points.flat_map(|point| {
        if plot.is_stacked { [plot.stack_height(point.x); 3] } else { [point.y, point.low, point.high] }
    });
    let values: Vec<f64> = values.chain(plot.marks.iter().map(|mark| mark.y)).collect();
    // Discarded values must not squeeze the others: further out they are drawn at the edge.
    let most = values.iter().copied().fold(0.0, f64::max);
    let discarded = plot.series.iter().flat_map(|series| &series.discarded).map(|point| point.y);
    let discarded = discarded.filter(|y| plot.y.scale == Scale::Log || most == 0.0 || *y <= 2.0 * most);
    let values = values.into_iter().chain(discarded);
    let values = values.chain(plot.wholes.iter().map(|whole| whole.high));
    Ruler::around(plot.y.scale, values, (sheet.floor, top))
}

/// A point of the discarded measurements of a series: grey around its colour.
fn discarded(plot: &Plot, index: usize, place: &str, point: &Point, at: (f64, f64)) -> Markup {
    html! {
        g class={ "point " (DISCARDED) } {
            title { (plot.series[index].name) " · " (place) ": " (plot.y.value(point.y)) ", discarded" }
            (circle("aim", at, 11.0))
            (circle("dot", at, 4.2))
            (circle(&format!("core {}", colour(plot, index)), at, 1.7))
        }
    }
}

/// The tooltip of a point.
fn title(plot: &Plot, series: &Series, place: &str, point: &Point) -> Markup {
    let value = |value| plot.y.value(value);
    html! {
        title {
            (series.name) " · " (place) ": " (value(point.y))
            @if point.low != point.high { " (quartiles " (value(point.low)) " to " (value(point.high)) ")" }
        }
    }
}

fn x_label(label: &str, sheet: &Sheet) -> Markup {
    centred("label", (f64::midpoint(LEFT, sheet.right()), sheet.height() - 8.0), label)
}

fn lines(plot: &Plot, axis: &Axis, ticks: &[(f64, String)], y: &Ruler, sheet: &Sheet) -> Markup {
    let points = plot.series.iter().flat_map(|series| series.points.iter().chain(&series.discarded));
    let values = points.map(|point| point.x).chain(ticks.iter().map(|&(value, _)| value));
    let x = Ruler::over(axis.scale, values, (LEFT + 14.0, sheet.right() - 14.0));
    let chosen = || x.ticks().into_iter().map(|value| (value, axis.tick(value))).collect();
    let own_ticks = if ticks.is_empty() { chosen() } else { ticks.to_vec() };
    // A label that would touch the one before it is left out; its tick has its point.
    let mut free_from = f64::NEG_INFINITY;
    let labels = own_ticks.iter().filter(|(value, text)| {
        let (place, half) = (x.place(*value), names::width(text) / 2.0);
        let is_free = place - half >= free_from;
        free_from = if is_free { place + half + LETTER } else { free_from };
        is_free
    });
    let named = |value: f64| {
        let tick = own_ticks.iter().find(|&&(tick, _)| tick == value);
        tick.map_or_else(|| axis.value(value), |(_, text)| text.clone())
    };
    let has_place = |point: &&Point| axis.scale != Scale::Log || point.x > 0.0;
    let place = |point: &Point| (x.place(point.x), y.place(point.y));
    let has_curves = plot.series.iter().any(|series| series.points.len() > DOTS_MAX);
    let curve = |index: usize| {
        let series = &plot.series[index];
        let is_shown = |point: &&Point| (plot.y.scale != Scale::Log || point.y > 0.0) && has_place(point);
        let points: Vec<&Point> = series.points.iter().filter(is_shown).collect();
        let place_of = |at: f64, value: f64| format!("{:.1},{:.1}", x.place(at), y.place(value));
        let there = points.iter().map(|point| place_of(point.x, point.high));
        let back = points.iter().rev().map(|point| place_of(point.x, point.low));
        let band: Vec<String> = there.chain(back).collect();
        let line: Vec<String> = points.iter().map(|point| place_of(point.x, point.y)).collect();
        // Of a curve of many points some show their numbers, and no dot until the mouse is there.
        let distance = points.len().div_ceil(DOTS_MAX).max(1);
        html! {
            g class={ (colour(plot, index)) @if has_curves { " dense" } } {
                polygon.band points=(band.join(" ")) {}
                polyline class={ "line" (dashes(plot, index)) } points=(line.join(" ")) {}
                @for point in points.into_iter().step_by(distance) {
                    g.point {
                        (title(plot, series, &named(point.x), point))
                        (circle("aim", place(point), 11.0))
                        (circle("dot", place(point), 3.6))
                    }
                }
            }
        }
    };
    // References are drawn first, below the others.
    let mut order: Vec<usize> = (0..plot.series.len()).collect();
    order.sort_by_key(|&index| !plot.series[index].is_reference);
    html! {
        @for (value, text) in labels { (centred("tick", (x.place(*value), sheet.floor + 18.0), text)) }
        (x_label(&axis.label, sheet))
        @for (index, series) in plot.series.iter().enumerate() {
            @for point in series.discarded.iter().filter(has_place) {
                (discarded(plot, index, &named(point.x), point, place(point)))
            }
        }
        @for index in order { (curve(index)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::ticks;

    fn draw(plot: &Plot) -> String {
        super::draw(plot).into_string()
    }

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, low: y * 0.95, high: y * 1.05 }
    }

    fn series(name: &str, points: &[(f64, f64)]) -> Series {
        let points = points.iter().map(|&(x, y)| point(x, y)).collect();
        Series::of(name, points)
    }

    fn example() -> Plot {
        let depths = ticks(&[1, 4, 32, 128], |depth| depth.to_string());
        let ours = series("nvlane", &[(1.0, 1e5), (4.0, 3e5), (32.0, 8e5), (128.0, 1.1e6)]);
        let ceiling = series("ceiling <sockets>", &[(1.0, 1.1e5), (4.0, 3.4e5), (32.0, 9e5), (128.0, 1.2e6)]);
        Plot::lines(Axis::log("depth"), depths, Axis::linear("IOPS"), vec![ceiling.as_reference(), ours])
            .with_mark("goal", 1e6)
    }

    #[test]
    fn lines_are_drawn_as_they_always_were() {
        // One element per line, for readability.
        insta::assert_snapshot!(draw(&example()).replace("><", ">\n<"));
    }

    #[test]
    fn bars_are_drawn_as_they_always_were() {
        let names = ["read", "write"].map(str::to_owned).to_vec();
        let plot = Plot::bars(
            "kind",
            names,
            Axis::linear("share"),
            vec![series("qd1", &[(0.0, 0.9), (1.0, 0.8)]), series("qd32", &[(0.0, 0.7), (1.0, 0.95)])],
        );
        insta::assert_snapshot!(draw(&plot).replace("><", ">\n<"));
    }

    #[test]
    fn what_was_discarded_is_grey_and_in_the_legend() {
        let spread = |y| load::steady::Spread::of(&[y]);
        let plot = |y: Axis, is_bars: bool| {
            let none = series("kernel", &[]).with_discarded([(1.0, spread(20.7)), (32.0, spread(900.0))]);
            let some = series("nvlane", &[(1.0, 1e5)]).with_discarded([(32.0, spread(3e5))]);
            let without_values = series("SPDK", &[]).discarded_if(true);
            let of = vec![some, none, without_values, series("other", &[])];
            if is_bars {
                let index = |mut series: Series| {
                    for point in series.points.iter_mut().chain(&mut series.discarded) {
                        point.x = if point.x == 1.0 { 0.0 } else { 1.0 };
                    }
                    series
                };
                let names = ["qd1", "qd32"].map(str::to_owned).to_vec();
                Plot::bars("", names, y, of.into_iter().map(index).collect())
            } else {
                Plot::lines(Axis::log("depth"), ticks(&[1, 32], |depth| depth.to_string()), y, of)
            }
        };
        for (y, is_bars) in [
            (Axis::log("IOPS"), false),
            (Axis::linear("IOPS"), false),
            (Axis::log("IOPS"), true),
            (Axis::linear("IOPS"), true),
        ] {
            let drawn = draw(&plot(y, is_bars));
            for name in
                ["nvlane", "kernel: discarded", "SPDK: discarded", "other: no data", "discarded measurements"]
            {
                assert!(drawn.contains(&format!(">{name}</text>")), "{name}: {drawn}");
            }
            assert_eq!(drawn.matches("class=\"point c-discarded\"").count(), 2 * 3, "{drawn}");
            assert!(
                drawn.contains(": 20.7, discarded</title>") && drawn.contains("; kernel: discarded;"),
                "{drawn}"
            );
            assert!(!drawn.contains("NaN") && !drawn.contains(">n/a<"));
        }
    }

    #[test]
    fn values_over_names_are_dots_where_no_bar_can_begin_at_zero() {
        let names = ["read", "write"].map(str::to_owned).to_vec();
        let of = |y| {
            let values = vec![series("p50", &[(0.0, 12.0)]), series("p99", &[(0.0, 12_100.0)])];
            draw(&Plot::bars("", names.clone(), y, values))
        };
        let dots = of(Axis::log("p99 µs"));
        assert_eq!((dots.matches("class=\"dot\"").count(), dots.matches("<rect").count()), (4, 0), "{dots}");
        assert_eq!(dots.matches("class=\"whisker\"").count(), 4);
        assert!(dots.contains("p99 · read: 12.1 ms (quartiles 11.5 ms to 12.7 ms)"), "{dots}");
        assert!(dots.contains(">10 ms</text>") && !dots.contains("10k"), "{dots}");
        assert_eq!(dots.matches(">n/a</text>").count(), 2, "a name without a value, in both drawings");
        assert_eq!(of(Axis::linear("p99 µs")).matches("<rect").count(), 4);
    }

    #[test]
    fn stacked_bars_are_drawn_as_they_always_were() {
        let names = ["qd1", "qd32"].map(str::to_owned).to_vec();
        let parts = vec![
            series("application", &[(0.0, 2.0), (1.0, 0.5)]),
            series("transmit", &[(0.0, 3.0), (1.0, 0.02)]),
            series("none", &[(0.0, 0.0), (1.0, 0.0)]),
            series("other", &[(0.0, 0.5)]).as_reference(),
        ];
        let plot = Plot::stacks("depth", names, Axis::linear("µs"), parts);
        assert!(!draw(&plot).contains("class=\"whisker\""));
        let wholes = series("whole", &[(0.0, 5.4), (1.0, 0.5)]);
        let drawn = draw(&plot.clone().with_wholes(wholes));
        assert_eq!(drawn.matches("class=\"whisker\"").count(), 4, "{drawn}");
        insta::assert_snapshot!(draw(&plot).replace("><", ">\n<"));
    }

    #[test]
    fn a_long_legend_takes_no_height_of_the_plot() {
        let parts = |count| (0..count).map(|_| series("scheduling, wake-ups", &[(0.0, 1.0)])).collect();
        let floor = |count: u32| {
            let plot = Plot::stacks("", vec!["one".into()], Axis::linear("µs"), parts(count));
            Sheet::of(&plot, NARROW).floor
        };
        assert_eq!(floor(1), HEIGHT - BOTTOM);
        assert_eq!(floor(10) - floor(1), 9.0 * LINE);
        let floor = |count: u32| {
            let plot = Plot::lines(Axis::log("depth"), Vec::new(), Axis::linear("IOPS"), parts(count));
            Sheet::of(&plot, NARROW).floor
        };
        assert_eq!([floor(1), floor(2)], [HEIGHT - BOTTOM; 2]);
        assert_eq!(floor(10) - floor(1), 8.0 * LINE);
    }

    #[test]
    fn a_file_has_its_title_colours_and_background() {
        let drawn = file(&Figure::new("Speed & size", "", example()));
        for part in
            ["<title>Speed &amp; size</title>", "prefers-color-scheme: dark", ".plot .grid", "var(--card)"]
        {
            assert!(drawn.contains(part), "{part}");
        }
        assert!(drawn.contains(&body(&example(), &Sheet::of(&example(), WIDE)).into_string()));
    }

    #[test]
    fn each_colour_of_a_file_follows_one_that_needs_no_variables() {
        assert_eq!(
            with_light_colours("a { fill: var(--ink); x: 1; }"),
            "a { fill: #16202e; fill: var(--ink); x: 1; }"
        );
        assert_eq!(with_light_colours("fill: var(--card)"), "fill: #ffffff;fill: var(--card)");
        let rules = with_light_colours(PLOT);
        let (plain, variable) = (rules.matches(": #").count(), rules.matches("var(").count());
        assert!(plain == variable && variable == PLOT.matches("var(").count(), "{rules}");
    }

    #[test]
    fn a_curve_of_many_points_has_few_that_show_their_numbers() {
        let points: Vec<_> = (1..=100).map(|index| (f64::from(index), f64::from(index) * 0.9)).collect();
        let plot =
            Plot::lines(Axis::log("µs"), Vec::new(), Axis::nines("% of reads"), vec![series("a", &points)]);
        let drawn = draw(&plot);
        assert_eq!(drawn.matches("class=\"dot\"").count(), 2 * 20);
        assert_eq!(drawn.matches("<g class=\"c0 dense\">").count(), 2);
        let mut both = plot.clone();
        both.series.push(series("b", &[(1.0, 5.0)]));
        assert!(draw(&both).contains("<g class=\"c1 dense\">"), "all of a plot's lines, or none");
        assert!(drawn.contains("a · 96.0: 86 % (quartiles 82 % to 90.7 %)"));
        assert!(drawn.contains("% of reads over µs; a: 1 % at 1.00, 90 % at 100"));
        let few: Vec<_> = points.into_iter().take(DOTS_MAX).collect();
        let plot = Plot::lines(Axis::log("µs"), Vec::new(), Axis::linear("IOPS"), vec![series("a", &few)]);
        assert_eq!(draw(&plot).matches("class=\"dot\"").count(), 2 * DOTS_MAX);
        assert!(!draw(&plot).contains("dense"));
    }

    #[test]
    fn names_cannot_break_the_picture() {
        let drawn = draw(&example());
        assert!(drawn.contains("ceiling &lt;sockets&gt;") && !drawn.contains("<sockets>"));
    }

    #[test]
    fn nothing_at_all_is_an_empty_picture() {
        let plot = Plot::lines(Axis::log("x"), Vec::new(), Axis::log("y"), vec![series("none", &[])]);
        assert!(draw(&plot).contains("</svg>"));
        assert!(!draw(&plot).contains("NaN") && !draw(&plot).contains("inf"));
        let plot = Plot::bars("x", Vec::new(), Axis::linear("y"), Vec::new());
        assert!(!draw(&plot).contains("NaN"));
    }

    #[test]
    fn what_is_not_above_zero_has_no_place_among_ratios() {
        let zero = series("some", &[(0.0, 5.0), (1.0, 0.0), (2.0, 5.0)]);
        let drawn = draw(&Plot::lines(Axis::log("x"), Vec::new(), Axis::log("y"), vec![zero]));
        assert_eq!(drawn.matches("class=\"dot\"").count(), 2, "one in each drawing");
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
    }
}
