//! Throughput and latency of a lane with TLS: beside its ceiling, and beside an unencrypted lane.

use load::workload::format_bytes;

use super::Targets;
use crate::bench::Load;
use crate::experiments::prelude::*;
use crate::load_values::{us, values};

/// Share of the ceiling.
pub(super) const SHARE: Bar = Bar::AtLeast(0.9);
/// The time that TLS adds to the median of a single operation of 4 KiB, µs.
pub(super) const ADDED_US: Bar = Bar::AtMost(4.0);
/// Throughput of large reads with TLS over that without.
pub(super) const LARGE_READ: Bar = Bar::AtLeast(0.5);

const LARGE_BYTES: u32 = 128 << 10;
pub(super) const SIZES: [u32; 2] = [IO_BYTES, LARGE_BYTES];
pub(super) const DEPTHS: [u32; 3] = [1, 32, 128];
/// Name, and percentage of reads.
pub(super) const DIRECTIONS: [(&str, u8); 2] = [("read", 100), ("write", 0)];

pub(super) const KIND: &str = "load";

/// Each load without TLS, then with it.
pub(super) fn cells() -> impl Iterator<Item = Cell> {
    DIRECTIONS.into_iter().flat_map(|(direction, _)| {
        SIZES.into_iter().flat_map(move |bytes| {
            DEPTHS.into_iter().flat_map(move |depth| {
                ["clear", "tls"].map(|channel| {
                    Cell::new(name(direction, bytes, depth, channel))
                        .with("kind", KIND)
                        .with("direction", direction)
                        .with("bytes", bytes)
                        .with("depth", depth)
                        .with("channel", channel)
                })
            })
        })
    })
}

pub(super) fn measure(targets: &mut Targets, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
    let (direction, read_percent) = cell.one_of("direction", DIRECTIONS, |direction| direction.0);
    let load =
        bench.load(&format!("rand{direction}"), Some(read_percent), cell.word("bytes"), cell.word("depth"));
    if cell.text("channel") == "clear" {
        return Ok(values(&bench.run(targets.clear(bench)?, load)?.report));
    }
    let mut load: Load = load;
    load.options.tls = Some(targets.keys()?.tls());
    let served = targets.tls(bench)?;
    let ceiling = bench.ceiling(&load, read_percent, IN_CAPSULE_BYTES, 0)?;
    let mut values = values(&bench.run(served, load)?.report);
    values.insert("share", values["iops"] / ceiling.iops());
    values.insert("ceiling_iops", ceiling.iops());
    values.insert("ceiling_p50_us", us(ceiling.latency.percentile(50.0)));
    Ok(values)
}

pub(super) fn answer(measured: &Measured, headlines: &mut Headlines) {
    let shares = cells().filter_map(|cell| Some((cell.name.clone(), measured.median(&cell.name, "share")?)));
    let shares: Vec<_> = shares.collect();
    let least = shares.iter().map(|(_, share)| *share).min_by(f64::total_cmp);
    headlines.push("share_min", least, Some(SHARE));
    for (name, share) in shares {
        let name = name.trim_end_matches(" tls").replace(' ', "_");
        headlines.push(format!("share_{name}"), Some(share), Some(SHARE));
    }
    for (direction, _) in DIRECTIONS {
        let of = |channel| name(direction, IO_BYTES, 1, channel);
        let added = measured.difference(&of("tls"), &of("clear"), "p50_us");
        headlines.push(format!("{direction}_4k_qd1_added_p50_us"), added, Some(ADDED_US));
    }
    for (direction, _) in DIRECTIONS {
        for bytes in SIZES {
            for depth in DEPTHS {
                let of = |channel| name(direction, bytes, depth, channel);
                let ratio = measured.ratio(&of("tls"), &of("clear"), "iops");
                // A single operation is encrypted and decrypted one after the other: its throughput is its latency.
                let has_bar = direction == "read" && bytes == LARGE_BYTES && depth > 1;
                let key = format!("{direction}_{}_qd{depth}_tls_over_clear", format_bytes(bytes.into()));
                headlines.push(key, ratio, has_bar.then_some(LARGE_READ));
            }
        }
    }
}

pub(super) fn figures(measured: &Measured) -> Vec<Figure> {
    let depths: Vec<u64> = DEPTHS.map(u64::from).to_vec();
    let axis = || Axis::log("operations in flight");
    let over_depth = |label: &str, direction: &str, bytes: u32, channel: &str, value: &str| {
        let names = DEPTHS.map(|depth| name(direction, bytes, depth, channel));
        line(label, names.iter().filter_map(|name| measured.cell(name)), "depth", value)
    };
    let loads = || DIRECTIONS.into_iter().flat_map(|(direction, _)| SIZES.map(|bytes| (direction, bytes)));
    let shares = loads().map(|(direction, bytes)| {
        let label = format!("{direction} {}", format_bytes(bytes.into()));
        over_depth(&label, direction, bytes, "tls", "share")
    });
    let share = Plot::lines(axis(), labels(&depths), Axis::linear("share of the ceiling"), shares.collect())
        .with_mark("goal 0.9", SHARE.limit());
    let mut figures = vec![Figure::new(
        "Share of the ceiling with TLS",
        "1 is what sockets with the same TLS streams reach without NVMe.",
        share,
    )];
    for (direction, bytes) in loads() {
        let series = vec![
            over_depth("nvlane with TLS", direction, bytes, "tls", "mib_per_s"),
            over_depth("nvlane in cleartext", direction, bytes, "clear", "mib_per_s").as_reference(),
        ];
        figures.push(Figure::new(
            format!("Throughput: {direction} {}", format_bytes(bytes.into())),
            "One lane, with TLS_AES_128_GCM_SHA256 and in cleartext. Higher is better.",
            Plot::lines(axis(), labels(&depths), Axis::linear("MiB/s"), series),
        ));
    }
    figures
}

fn labels(depths: &[u64]) -> Vec<(f64, String)> {
    ticks(depths, |depth| depth.to_string())
}

pub(super) fn name(direction: &str, bytes: u32, depth: u32, channel: &str) -> String {
    format!("{direction} {} qd{depth} {channel}", format_bytes(bytes.into()))
}
