//! `copies`: the size from which receiving in place and sending without a copy pay off.

use host::ZeroCopy;
use load::workload::format_bytes;

use super::prelude::*;
use crate::target_options::SendCopies;

const SIZES: [u32; 9] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];

const DEPTH: u32 = 8;

const DIRECTIONS: [(&str, &str); 2] = [("read", "randread"), ("write", "randwrite")];

/// Receivers use a staging buffer or receive in place; senders copy or use zero copy.
const COPIED: &str = "copied";
const IN_PLACE: &str = "in place";
const ZERO_COPY: &str = "zero-copy";
const WAYS: [&str; 3] = [COPIED, IN_PLACE, ZERO_COPY];

/// A threshold above every transfer size.
const NEVER_BYTES: u64 = 1 << 30;

pub(crate) const ABOUT: About = About {
    name: "copies",
    title: "From which size on does a copy cost more than avoiding it?",
    method: "One lane, 8 operations in flight, one core for each side. The receiver copies the data out of a warm \
             buffer (copied), or receives each piece at its destination (in place); or the sender leaves the data where it is \
             (zero-copy), which within one machine the kernel replaces by a copy of its own. Gains are taken within each round.",
    claims: &[Claim {
        source: "MSG_ZEROCOPY, Netdev 2.1 (2017)",
        says: "Sends without a copy pay from about 10 KiB on, where packets leave the machine.",
        number: "10 KiB",
        ours: "zero_copy_from_write",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops mib_per_s p50_us p99_us host_us target_us",
};

/// Copies of large data, and the cost of avoiding them.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    targets: Kept<&'static str, Served>,
}

impl Copies {
    /// The target with these settings, started on first use.
    fn target(&mut self, bench: &Bench, way: &'static str) -> Result<&Served, Error> {
        let (in_place_bytes, zero_copy) = match way {
            IN_PLACE => (1, SendCopies::Off),
            ZERO_COPY => (NEVER_BYTES, SendCopies::From(4 << 10)),
            _ => (NEVER_BYTES, SendCopies::Off),
        };
        let tuning = TargetTuning {
            in_place_bytes: Some(in_place_bytes),
            zero_copy: Some(zero_copy),
            ..TargetTuning::default()
        };
        let options = ServedOptions::of(["null:1T"]).tuned(tuning);
        Ok(self.targets.get(way, || bench.serve_with(options))?)
    }
}

impl Experiment for Copies {
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (direction, _) in DIRECTIONS {
            for size in SIZES {
                cells.extend(WAYS.map(|way| {
                    Cell::new(cell_name(direction, size, way))
                        .with("direction", direction)
                        .with("bytes", size)
                        .with("way", way)
                        .with("series", series(direction, way).as_str())
                }));
            }
        }
        cells
    }

    fn spins(&self, _: &Cell) -> bool {
        true
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let way = cell.one_of("way", WAYS, |way| way);
        let (_, pattern) = cell.one_of("direction", DIRECTIONS, |direction| direction.0);
        let served = self.target(bench, way)?;
        let mut load = bench.load(pattern, None, cell.word("bytes"), DEPTH);
        load.options = load.options.tuned(|tuning| {
            tuning.in_place_bytes = if way == IN_PLACE { 1 } else { u32::MAX };
            tuning.zero_copy = if way == ZERO_COPY { ZeroCopy::From(4 << 10) } else { ZeroCopy::Off };
        });
        Ok(values(&bench.run(served, load)?.report))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (way, key) in [(IN_PLACE, "in_place"), (ZERO_COPY, "zero_copy")] {
            for (direction, _) in DIRECTIONS {
                let gain = |size| {
                    let (with, without) =
                        (cell_name(direction, size, way), cell_name(direction, size, COPIED));
                    measured.ratio(&with, &without, "iops")
                };
                headlines.tell(
                    format!("{key}_from_{direction}"),
                    pays_from(&SIZES.map(|size| (size, gain(size)))),
                );
                for size in [16 << 10, 64 << 10, 1 << 20] {
                    let name = format_bytes(size.into());
                    headlines.tell(format!("{key}_gain_{direction}_{name}"), gain(size));
                }
            }
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let sizes = SIZES.map(u64::from);
        let figure = |(direction, _): (&str, _)| {
            let series = WAYS.map(|way| {
                let name = series(direction, way);
                line(way, measured.of("series", &name), "bytes", "mib_per_s")
            });
            Figure::new(
                format!("Throughput of {direction}s over size"),
                "8 operations in flight on one lane. Higher is better.",
                Plot::lines(
                    Axis::log("bytes of an operation"),
                    ticks(&sizes, format_bytes),
                    Axis::log("MiB/s"),
                    series.to_vec(),
                ),
            )
        };
        DIRECTIONS.map(figure).to_vec()
    }
}

/// The smallest size from which on no size is slower; `None` if there is none, or if a size was not measured.
fn pays_from(gains: &[(u32, Option<f64>)]) -> Option<f64> {
    let mut from = None;
    for (size, gain) in gains.iter().rev() {
        if gain.as_ref().copied()? < 1.0 {
            break;
        }
        from = Some(f64::from(*size));
    }
    from
}

fn series(direction: &str, way: &str) -> String {
    format!("{direction} {way}")
}

fn cell_name(direction: &str, size: u32, way: &str) -> String {
    format!("{direction} {} {way}", format_bytes(size.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossover_is_where_nothing_above_loses() {
        let of =
            |gains: [f64; 4]| pays_from(&[4, 8, 16, 32].into_iter().zip(gains.map(Some)).collect::<Vec<_>>());
        assert_eq!(of([0.8, 0.9, 1.0, 1.2]), Some(16.0));
        assert_eq!(of([1.1, 0.9, 1.3, 1.2]), Some(16.0), "a lucky small one is not it");
        assert_eq!(of([1.1; 4]), Some(4.0));
        assert_eq!(of([1.2, 1.2, 1.2, 0.9]), None);
        assert_eq!(pays_from(&[(4, Some(2.0)), (8, None)]), None);
    }
}
