//! `digests`: the cost of header and data digests.

use load::workload::format_bytes;
use wire::pdu::Digests as Bits;

use super::prelude::*;

const VARIANTS: [(&str, Bits); 4] =
    [("none", Bits::empty()), ("header", Bits::HEADER), ("data", Bits::DATA), ("both", Bits::all())];

const DEPTH: u32 = 32;

const LOADS: [(&str, u32); 4] =
    [("randread", IO_BYTES), ("randwrite", IO_BYTES), ("randread", 128 << 10), ("randwrite", 128 << 10)];

/// IOPS that header and data digests may cost at 4 KiB, percent.
const COST: Bar = Bar::AtMost(10.0);

pub(crate) const ABOUT: About = About {
    name: "digests",
    title: "What do header and data digests cost?",
    method: "One lane, 32 operations in flight, one core for each side. Each load without digests, with those of the header, \
             of the data, and both, which host and target compute and check in software (CRC32C). Costs are taken within \
             each round.",
    claims: &[],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops mib_per_s p50_us p99_us host_us target_us",
};

/// Digests on and off.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    served: Kept<(), Served>,
}

impl Experiment for Digests {
    fn cells(&self) -> Vec<Cell> {
        let of = |(pattern, bytes): (&str, u32), variant: &str| {
            let cell = Cell::new(cell_name(pattern, bytes, variant));
            cell.with("pattern", pattern).with("bytes", bytes).with("digests", variant)
        };
        LOADS.into_iter().flat_map(|load| VARIANTS.map(|(variant, _)| of(load, variant))).collect()
    }

    fn spins(&self, _: &Cell) -> bool {
        true
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let served = self.served.get((), || bench.serve())?;
        let (_, digests) = cell.one_of("digests", VARIANTS, |variant| variant.0);
        let mut load = bench.load(cell.text("pattern"), None, cell.word("bytes"), DEPTH);
        load.options = load.options.with_only_digests(digests);
        Ok(values(&bench.run(served, load)?.report))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let cost = |(pattern, bytes): (&str, u32)| {
            let name = |variant| cell_name(pattern, bytes, variant);
            let ratio = measured.ratio(&name("both"), &name("none"), "iops")?;
            Some((1.0 - ratio) * 100.0)
        };
        let small = LOADS.into_iter().filter(|(_, bytes)| *bytes == IO_BYTES).filter_map(cost);
        headlines.push("cost_percent_4k", small.max_by(f64::total_cmp), Some(COST));
        for load in LOADS {
            let (direction, size) = (direction(load.0), format_bytes(load.1.into()));
            headlines.tell(format!("cost_{direction}_{size}_percent"), cost(load));
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, bytes: u32| {
            let loads: Vec<_> = LOADS.into_iter().filter(|load| load.1 == bytes).collect();
            let names = loads.iter().map(|(pattern, _)| direction(pattern).to_owned()).collect();
            let series = VARIANTS.map(|(variant, _)| {
                bars(
                    variant,
                    measured,
                    loads.iter().map(|(pattern, bytes)| cell_name(pattern, *bytes, variant)),
                    "iops",
                )
            });
            let plot = Plot::bars("", names, Axis::linear("IOPS"), series.into());
            Figure::new(title, "Operations per second with each kind of digest. Higher is better.", plot)
        };
        vec![figure("Digests at 4 KiB", IO_BYTES), figure("Digests at 128 KiB", 128 << 10)]
    }
}

fn direction(pattern: &str) -> &str {
    pattern.trim_start_matches("rand")
}

fn cell_name(pattern: &str, bytes: u32, variant: &str) -> String {
    format!("{} {} {variant}", direction(pattern), format_bytes(bytes.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::headline_of;

    #[test]
    fn the_dearer_of_read_and_write_is_the_cost() {
        let iops = |cell: &Cell| match cell.name.as_str() {
            "read 4k both" => 95.0,
            "write 4k both" => 80.0,
            _ => 100.0,
        };
        let headline = headline_of(&Digests::default(), |cell| [("iops", iops(cell))]);
        assert_eq!(headline[0].key, "cost_percent_4k");
        assert!((headline[0].value - 20.0).abs() < 1e-9);
        assert_eq!(headline[0].is_reached(), Some(false));
    }
}
