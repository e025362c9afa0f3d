//! A layout drawn: its classes, queues, cores and traffic, as text and as SVG.

use std::fmt::Write as _;

use crate::driver::Means;
use crate::layout::{Layout, PlacedClass};
use crate::plan::Plan;

/// Width of a queue in the SVG drawing, and of the room for texts beside the queues, in pixels.
const QUEUE_WIDTH: u32 = 34;
const TEXT_WIDTH: u32 = 360;
const ROW_HEIGHT: u32 = 64;
const QUEUES_PER_ROW: u16 = 16;

/// Fill of each class's queues, in order; it repeats after the last.
const FILLS: [&str; 6] = ["#8a94a6", "#2f7ed8", "#2e9e6b", "#c77700", "#9457c9", "#c2415b"];

/// The layout as text, one class per paragraph.
#[must_use]
pub fn text(plan: &Plan) -> String {
    let mut text = String::new();
    let device = &plan.device;
    let speed = device.speed.map(|speed| format!(", {speed}/s")).unwrap_or_default();
    let (interface, driver) = (&device.identity.interface, &device.driver);
    let _ = writeln!(text, "{interface} ({driver}{speed}): {} queue pairs", plan.layout.queue_count());
    for class in &plan.layout.classes {
        let queues: String = class.queue_numbers().map(|queue| format!("[{queue}]")).collect();
        let _ = write!(text, "\n  {}  {queues}\n    {}\n", class.name, traffic(class));
        for line in details(class, plan.layout.means) {
            let _ = writeln!(text, "    {line}");
        }
    }
    for warning in &plan.warnings {
        let _ = write!(text, "\nnote: {warning}\n");
    }
    text
}

fn traffic(class: &PlacedClass) -> String {
    if class.traffic.is_empty() {
        return "all other traffic".into();
    }
    let traffic: Vec<_> = class.traffic.iter().map(ToString::to_string).collect();
    format!("TCP {}", traffic.join(", "))
}

/// Priority, rates, cores and interrupts of a class, a line each.
fn details(class: &PlacedClass, means: Means) -> Vec<String> {
    let mut lines = Vec::new();
    if class.priority > 0 {
        let count = class.queues.count;
        let reactors = if count == 1 { "1 reactor".into() } else { format!("{count} reactors") };
        let serve = format!("{reactors} can serve it without sharing a queue");
        lines.push(match means {
            Means::Channel | Means::Software => {
                format!("priority {} of its sockets; {serve}", class.priority)
            }
            Means::Contexts => serve,
        });
    }
    match (class.min_rate, class.max_rate) {
        (None, None) => {}
        (Some(min), None) => lines.push(format!("at least {min}/s")),
        (None, Some(max)) => lines.push(format!("at most {max}/s")),
        (Some(min), Some(max)) => lines.push(format!("{min}/s to {max}/s")),
    }
    if !class.cores.is_empty() {
        let cores: Vec<_> = class.cores.iter().map(ToString::to_string).collect();
        lines.push(format!("interrupts on cores {}", cores.join(", ")));
    }
    if let Some(delay) = class.interrupt_delay {
        lines.push(format!(
            "interrupts at most {} µs after a packet has arrived, {} µs after one was sent",
            delay.receive_us, delay.transmit_us
        ));
    }
    lines
}

/// The layout as an SVG image, which follows the reader's light or dark colours.
#[must_use]
pub fn svg(plan: &Plan) -> String {
    let rows: Vec<(u32, &PlacedClass)> = {
        let mut top = 40;
        plan.layout
            .classes
            .iter()
            .map(|class| {
                let at = top;
                top += row_height(class, plan.layout.means);
                (at, class)
            })
            .collect()
    };
    let height = rows.last().map_or(40, |(top, class)| top + row_height(class, plan.layout.means));
    let width = TEXT_WIDTH + QUEUE_WIDTH * u32::from(widest(&plan.layout)) + 20;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-label=\"Queues of {interface} by class\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <style>text {{ fill: #1d2430 }} .detail {{ fill: #566073; font-size: 12px }} .queue {{ fill: #ffffff }}\n\
         @media (prefers-color-scheme: dark) {{ text {{ fill: #e6e9ef }} .detail {{ fill: #a4adbd }} .queue {{ fill: #ffffff }} }}</style>\n\
         <text x=\"10\" y=\"24\" font-weight=\"600\">{interface} ({driver}), {count} queue pairs</text>\n",
        interface = escaped(&plan.device.identity.interface),
        driver = escaped(&plan.device.driver),
        count = plan.layout.queue_count(),
    );
    for (fill, (top, class)) in FILLS.iter().cycle().zip(rows) {
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{}\" font-weight=\"600\">{}</text>",
            top + 18,
            escaped(&class.name)
        );
        let lines = std::iter::once(traffic(class)).chain(details(class, plan.layout.means));
        for (line, y) in lines.zip((top + 34..).step_by(15)) {
            let _ = writeln!(svg, "<text x=\"10\" y=\"{y}\" class=\"detail\">{}</text>", escaped(&line));
        }
        for (place, queue) in (0u16..).zip(class.queue_numbers()) {
            let x = TEXT_WIDTH + u32::from(place % QUEUES_PER_ROW) * QUEUE_WIDTH;
            let y = top + 4 + u32::from(place / QUEUES_PER_ROW) * (QUEUE_WIDTH - 4);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"26\" rx=\"4\" fill=\"{fill}\"/>\
                 <text class=\"queue\" x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"12\">{queue}</text>",
                QUEUE_WIDTH - 4,
                x + QUEUE_WIDTH / 2 - 2,
                y + 17,
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn widest(layout: &Layout) -> u16 {
    layout.classes.iter().map(|class| class.queues.count).max().unwrap_or(1).clamp(1, QUEUES_PER_ROW)
}

fn row_height(class: &PlacedClass, means: Means) -> u32 {
    let lines = u32::try_from(details(class, means).len() + 1).unwrap_or(1);
    let queue_rows = u32::from(class.queues.count.div_ceil(QUEUES_PER_ROW));
    (28 + lines * 15).max(12 + queue_rows * (QUEUE_WIDTH - 4)).max(ROW_HEIGHT)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
