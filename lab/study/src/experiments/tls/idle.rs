//! Idle lanes with TLS, beside as many without.

use super::Targets;
use crate::experiments::prelude::*;
use crate::idle_lanes;
use crate::target_options::KeyAccess;

pub(super) const LANES: u64 = 1000;

/// Memory of the target that TLS adds to an idle lane, bytes.
pub(super) const MEMORY: Bar = Bar::AtMost(32_768.0);
/// Processor time that 1,000 idle lanes with TLS may use, percent of a core.
pub(super) const CPU: Bar = Bar::Below(0.5);

pub(super) const KIND: &str = "idle";

pub(super) fn cells() -> impl Iterator<Item = Cell> {
    ["clear", "tls"].into_iter().map(|channel| {
        Cell::new(name(channel)).with("kind", KIND).with("lanes", LANES).with("channel", channel)
    })
}

pub(super) fn check(bench: &Bench) -> Result<(), Error> {
    idle_lanes::check(bench, LANES)
}

pub(super) fn measure(targets: &mut Targets, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
    if cell.text("channel") == "clear" {
        return idle_lanes::measure(bench, bench.serve()?, cell.number("lanes"), None);
    }
    let keys = targets.keys()?;
    let served = bench.serve_with(super::options(keys, KeyAccess::Tls).on_cores(1))?;
    idle_lanes::measure(bench, served, cell.number("lanes"), Some(keys))
}

pub(super) fn answer(measured: &Measured, headlines: &mut Headlines) {
    let added = measured.difference(&name("tls"), &name("clear"), "bytes_per_lane");
    headlines.push("idle_lane_added_bytes", added, Some(MEMORY));
    headlines.push("idle_1000_lanes_cpu_percent", measured.median(&name("tls"), "cpu_percent"), Some(CPU));
}

pub(super) fn figure(measured: &Measured) -> Figure {
    let channels = ["clear", "tls"];
    let names = channels.map(str::to_owned).to_vec();
    let memory = |label, value| bars(label, measured, channels.map(name), value);
    let plot = Plot::bars(
        "1,000 idle lanes",
        names,
        Axis::linear("bytes of the target's own for each"),
        vec![memory("used", "bytes_per_lane"), memory("never used", "fresh_bytes_per_lane")],
    );
    Figure::new(
        "Memory of an idle lane with TLS",
        "User memory; the kernel's sockets are not in it. Lower is better. The goal is 32 KiB more than in cleartext.",
        plot,
    )
}

fn name(channel: &str) -> String {
    format!("{LANES} idle {channel}")
}
