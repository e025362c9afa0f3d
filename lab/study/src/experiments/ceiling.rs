//! `ceiling`: NVMe/TCP throughput as a share of that of plain TCP sockets, and on a file as a share of that of the same
//! file without a network.

use host::{Options, Receive};
use load::cache_line::Regime;

use super::prelude::*;
use crate::bench::Load;
use crate::one_regime::share_in;
use crate::study_file::StudyFile;
use crate::table;

/// Name, pattern and percentage of reads.
const WORKLOADS: [(&str, &str, u8); 3] =
    [("read", "randread", 100), ("write", "randwrite", 0), ("mix", "randrw", 70)];

/// Storage and host of a group of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// First word of its cells' names.
    name: &'static str,
    /// Value of `--storage`.
    storage: &'static str,
    receive: Receive,
    depths: [u32; 4],
    /// Workloads, of those above.
    workloads: &'static [&'static str],
    /// IOPS over those of its reference.
    judged: &'static str,
    /// Least depth at which the bar holds; `None` without a bar.
    bar_from: Option<u32>,
    says: &'static str,
}

const ALL: &[&str] = &["read", "write", "mix"];

const ROWS: [Row; 4] = [
    Row {
        name: "",
        storage: "null",
        receive: Receive::Staging,
        depths: [1, 4, 32, 128],
        workloads: ALL,
        judged: "share",
        bar_from: Some(1),
        says: "a namespace that needs no time of its own; the ceiling is plain sockets",
    },
    Row {
        name: "pdu host",
        storage: "null",
        receive: Receive::Pdu,
        depths: [1, 4, 32, 128],
        workloads: &["read", "mix"],
        judged: "over_sockets",
        bar_from: None,
        says: "a host that receives PDU by PDU, as other implementations do. The near end of the sockets does the same, which is \
               no ceiling: how the far end sends decides how often it waits",
    },
    Row {
        name: "ram",
        storage: "ram",
        receive: Receive::Staging,
        depths: [1, 4, 32, 128],
        workloads: ALL,
        judged: "share",
        bar_from: Some(1),
        says: "1 GiB of memory, written once; the far end of the ceiling has the same memory",
    },
    Row {
        name: "file",
        storage: "file",
        receive: Receive::Staging,
        depths: [1, 8, 32, 128],
        workloads: ALL,
        judged: "share",
        bar_from: Some(8),
        says: "a file of 1 GiB, written once; the ceiling is the same file without a network",
    },
];

/// Size of RAM namespace and file, bytes.
const STORAGE_BYTES: usize = 1 << 30;

/// Rounds from which on the median of one regime decides.
const JUDGED_ROUNDS: usize = 3;

/// Bar of every share.
const SHARE: Bar = Bar::AtLeast(0.9);

/// Bar of the time that the network adds to the median of a single read from a file, us.
const ADDED_US: Bar = Bar::AtMost(10.0);

pub(crate) const ABOUT: About = About {
    name: "ceiling",
    title: "What share of the kernel's TCP throughput does NVMe reach?",
    method: "One lane, operations of 4 KiB, one core for each side. Each measurement follows one of plain sockets that \
             move the same bytes in the same directions, batched as well as we know how, both sides spinning, with no \
             NVMe at all. On a namespace in RAM (--storage ram) their far end has the same memory. On a file (--storage \
             file) each measurement follows one of the same file driven locally through io_uring. The share is taken \
             within each round. Where the cores of a virtual machine share a cache in one round and none in another, \
             each case has medians of its own, and the smaller decides. Between two machines the plain sockets are \
             between them, too.",
    claims: &[Claim {
        source: "i10, Netdev 0x14 (2020)",
        says: "With lanes, caravans and delayed doorbells NVMe over TCP needs about the processor time of RDMA. The \
               sockets' own limit is the harder comparison: it is what any such design can reach at all.",
        number: "≈ RDMA",
        ours: "share_min",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "share",
    columns: "share over_sockets iops ceiling_iops p50_us ceiling_p50_us p99_us ceiling_p99_us host_us \
              ceiling_host_us target_us line_ns",
};

/// Each workload at each depth, compared with plain sockets that move the same bytes, or with the file alone.
#[derive(Debug, Default)]
pub(crate) struct Ceiling {
    served: Kept<&'static str, Served>,
    file: Kept<(), StudyFile>,
}

impl Experiment for Ceiling {
    fn cells(&self) -> Vec<Cell> {
        let cells = ROWS.iter().flat_map(|row| {
            let depths = |&workload| row.depths.map(|depth| row.cell(workload, depth));
            row.workloads.iter().flat_map(depths)
        });
        cells.collect()
    }

    fn conditions(&self, measured: &Measured) -> Option<String> {
        let lines = measured.cells.iter().flat_map(|cell| cell.each("line_ns"));
        let (shared, own): (Vec<_>, Vec<_>) =
            lines.partition(|line_ns| Regime::of(*line_ns) == Regime::SharedCache);
        let times = [(Regime::SharedCache, shared), (Regime::OwnCaches, own)];
        let each = times.iter().filter_map(|(regime, times)| {
            let least = times.iter().copied().reduce(f64::min)?;
            let most = times.iter().copied().reduce(f64::max)?;
            let count = times.len();
            Some(format!("{count} where {} (a cache line takes {least:.0} to {most:.0} ns)", regime.name()))
        });
        let each: Vec<_> = each.collect();
        (!each.is_empty()).then(|| format!("Measurements by regime: {}.", each.join(", ")))
    }

    fn spins(&self, cell: &Cell) -> bool {
        // On a file both sides wait for a device.
        row_of(cell).storage != "file"
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let row = row_of(cell);
        let (_, pattern, read_percent) = cell.one_of("workload", WORKLOADS, |workload| workload.0);
        let load = bench.load(pattern, Some(read_percent), IO_BYTES, cell.word("depth"));
        let load = Load { options: Options::default().tuned(|tuning| tuning.receive = row.receive), ..load };
        let mut values = match row.storage {
            "file" => self.measure_file(bench, load)?,
            _ => self.measure_memory(row, bench, load, read_percent)?,
        };
        let over_ceiling = values["iops"] / values["ceiling_iops"];
        values.insert(row.judged, over_ceiling);
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let shares = measured.cells.iter().filter_map(|cell| Some((cell, least_share(cell)?)));
        let shares: Vec<_> = shares.collect();
        let with_bar = shares.iter().filter(|(cell, _)| bar_of(cell).is_some());
        let min = with_bar.map(|(_, share)| *share).min_by(f64::total_cmp);
        headlines.push("share_min", min, Some(SHARE));
        for (cell, share) in shares {
            headlines.push(key(row_of(&cell.cell).judged, cell), Some(share), bar_of(cell));
        }
        let single = measured.cell("file read qd1");
        let added = single.and_then(|cell| {
            let each = cell.rounds.iter();
            let each = each.filter_map(|round| Some(round.get("p50_us")? - round.get("ceiling_p50_us")?));
            cell.median_of(&each.collect::<Vec<_>>())
        });
        headlines.push("file_read_qd1_added_p50_us", added, Some(ADDED_US));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let rows =
            ROWS.iter().filter(|row| row.cells(measured).any(|cell| cell.median(row.judged).is_some()));
        rows.flat_map(|row| row.figures(measured)).collect()
    }

    fn tables(&self, measured: &Measured) -> Vec<Table> {
        let rows = |row: &Row| {
            let is_told = |cell: &&CellRounds| {
                [Regime::SharedCache, Regime::OwnCaches]
                    .iter()
                    .any(|regime| cell.median(share_in(*regime)).is_some())
            };
            let cells = row.cells(measured).filter(is_told);
            cells
                .map(|cell| table::Row { name: cell.cell.name.clone(), cell: cell.cell.name.clone() })
                .collect()
        };
        let groups: Vec<Vec<_>> = ROWS.iter().map(rows).filter(|rows: &Vec<_>| !rows.is_empty()).collect();
        let table = Table {
            title: "Share of the ceiling by regime".to_owned(),
            note: format!(
                "Medians of the rounds in which both cores shared a cache, and of those in which they did not. A number \
                 above is the smaller of both, of regimes with {JUDGED_ROUNDS} rounds or more."
            ),
            columns: vec![share_in(Regime::SharedCache), share_in(Regime::OwnCaches)],
            groups,
        };
        if table.groups.is_empty() { Vec::new() } else { vec![table] }
    }
}

impl Ceiling {
    /// On a namespace in memory or on none: beside plain sockets.
    fn measure_memory(
        &mut self,
        row: Row,
        bench: &Bench,
        load: Load,
        read_percent: u8,
    ) -> Result<Values, Error> {
        let is_ram = row.storage == "ram";
        let served =
            self.served.get(row.storage, || if is_ram { serve_ram(bench) } else { bench.serve() })?;
        let far_memory_bytes = if is_ram { STORAGE_BYTES } else { 0 };
        let ceiling = bench.ceiling(&load, read_percent, IN_CAPSULE_BYTES, far_memory_bytes)?;
        let mut values = values(&bench.run(served, load)?.report);
        values.insert("ceiling_iops", ceiling.iops());
        values.insert("ceiling_p50_us", us(ceiling.latency.percentile(50.0)));
        values.insert("ceiling_p99_us", us(ceiling.latency.percentile(99.0)));
        Ok(values)
    }

    /// On a file: beside the file alone, which the target gives up for that time.
    fn measure_file(&mut self, bench: &Bench, load: Load) -> Result<Values, Error> {
        let file = self.file.get((), || StudyFile::new(bench, STORAGE_BYTES as u64))?;
        let local = file.run(bench, load.clone())?;
        let served = bench.serve_with(file.served())?;
        let mut values = self::values(&bench.run(&served, load)?.report);
        served.stop()?;
        for (ceiling, name) in [
            ("ceiling_iops", "iops"),
            ("ceiling_p50_us", "p50_us"),
            ("ceiling_p99_us", "p99_us"),
            ("ceiling_host_us", "host_us"),
        ] {
            values.extend(local.get(name).map(|value| (ceiling, *value)));
        }
        Ok(values)
    }
}

/// The share that decides: the median, or the smaller of the medians of both regimes if both were seen often enough.
fn least_share(cell: &CellRounds) -> Option<f64> {
    let medians = [Regime::SharedCache, Regime::OwnCaches].into_iter().filter_map(|regime| {
        let shares = cell.each(share_in(regime));
        (shares.len() >= JUDGED_ROUNDS).then(|| cell.median_of(&shares)).flatten()
    });
    medians.reduce(f64::min).or_else(|| cell.median(row_of(&cell.cell).judged))
}

/// A target with memory that has been written once: pages that were never written are one page of zeroes.
fn serve_ram(bench: &Bench) -> Result<Served, Error> {
    let served = bench.serve_with(ServedOptions::of([format!("ram:{STORAGE_BYTES}")]))?;
    let mut fill = bench.load("read", None, 1 << 20, 4);
    fill.workload.fill = true;
    bench.run(&served, fill)?;
    Ok(served)
}

impl Row {
    fn cell(self, workload: &str, depth: u32) -> Cell {
        let name = format!("{} {workload} qd{depth}", self.name);
        Cell::new(name.trim_start())
            .with("workload", workload)
            .with("depth", depth)
            .with("storage", self.storage)
            .with("receive", self.receive.to_string().as_str())
    }

    /// Its cells of those measured.
    fn cells(self, measured: &Measured) -> impl Iterator<Item = &CellRounds> {
        measured.cells.iter().filter(move |cell| row_of(&cell.cell) == self)
    }

    fn over_depth(self, measured: &Measured, workload: &str, name: &str, value: &str) -> Series {
        let cells = self.cells(measured).filter(|cell| cell.cell.text("workload") == workload);
        line(name, cells, "depth", value)
    }

    /// The reference of this row, in a word or two.
    fn beside(self) -> &'static str {
        if self.storage == "file" { "the file alone" } else { "plain sockets" }
    }

    /// A title for a figure of this row.
    fn title(self, text: &str) -> String {
        if self.name.is_empty() { text.to_owned() } else { format!("{text} ({})", self.name) }
    }

    fn figures(self, measured: &Measured) -> Vec<Figure> {
        let depths: Vec<u64> = self.depths.map(u64::from).to_vec();
        let depth_axis = || Axis::log("operations in flight");
        let depth_ticks = || ticks(&depths, |depth| depth.to_string());
        let shares = self.workloads.iter().map(|name| self.over_depth(measured, name, name, self.judged));
        let (title, axis) = match self.judged {
            "share" => ("Share of the ceiling", "share of the ceiling"),
            _ => ("IOPS over plain sockets", "IOPS over those of sockets"),
        };
        let share = Plot::lines(depth_axis(), depth_ticks(), Axis::linear(axis), shares.collect());
        let share = match self.bar_from {
            Some(_) => share.with_mark("goal 0.9", SHARE.limit()),
            None => share,
        };
        let says = format!("1 is what {} reach{}. On {}.", self.beside(), self.ending(), self.says);
        let mut figures = vec![Figure::new(self.title(title), says, share)];
        for name in self.workloads {
            let of = |label: &str, value| self.over_depth(measured, name, label, value);
            let iops = vec![of("nvlane", "iops"), of(self.beside(), "ceiling_iops").as_reference()];
            figures.push(Figure::new(
                self.title(&format!("Speed: {name}")),
                "Operations of 4 KiB per second on one lane. Higher is better.",
                Plot::lines(depth_axis(), depth_ticks(), Axis::linear("IOPS"), iops),
            ));
        }
        let beside = self.beside();
        let of = |name: &str, value| self.over_depth(measured, "read", name, value);
        let latency = vec![
            of("p50", "p50_us"),
            of("p99", "p99_us"),
            of(&format!("p50 of {beside}"), "ceiling_p50_us").as_reference(),
            of(&format!("p99 of {beside}"), "ceiling_p99_us").as_reference(),
        ];
        figures.push(Figure::new(
            self.title("Latency: read"),
            "From submission to completion. Lower is better.",
            Plot::lines(depth_axis(), depth_ticks(), Axis::log("µs"), latency),
        ));
        figures
    }

    /// The ending of a verb behind [`beside`](Self::beside).
    fn ending(self) -> &'static str {
        if self.storage == "file" { "es" } else { "" }
    }
}

/// The row that a cell is of.
fn row_of(cell: &Cell) -> Row {
    let (storage, receive) = (cell.text("storage"), cell.text("receive"));
    let row = ROWS.into_iter().find(|row| row.storage == storage && row.receive.to_string() == receive);
    row.expect("a cell of ours")
}

/// The bar of a cell's share, if it has one.
fn bar_of(cell: &CellRounds) -> Option<Bar> {
    let from = row_of(&cell.cell).bar_from?;
    (cell.cell.number("depth") >= from.into()).then_some(SHARE)
}

fn key(what: &str, cell: &CellRounds) -> String {
    format!("{what}_{}", cell.cell.name.replace(' ', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};
    use crate::measured::of_rounds;

    #[test]
    fn the_smallest_share_with_a_bar_leads() {
        let share = |cell: &Cell| match cell.name.as_str() {
            "mix qd128" => 0.5,
            // Without a bar.
            "pdu host read qd1" | "file read qd1" => 0.3,
            _ => 0.95,
        };
        let headline = headline_of(&Ceiling::default(), |cell| [(row_of(cell).judged, share(cell))]);
        assert_eq!((headline[0].key.as_str(), headline[0].value), ("share_min", 0.5));
        assert_eq!(headline.len(), 1 + 12 + 8 + 12 + 12);
        assert_eq!(headline[1].key, "share_read_qd1");
        assert_eq!(headline[12].key, "share_mix_qd128");
        assert_eq!(headline[12].is_reached(), Some(false));
        assert_eq!(of_key(&headline, "over_sockets_pdu_host_read_qd1").is_reached(), None);
        assert_eq!(of_key(&headline, "share_ram_write_qd32").is_reached(), Some(true));
        assert_eq!(of_key(&headline, "share_file_read_qd1").is_reached(), None);
        assert_eq!(of_key(&headline, "share_file_read_qd8").is_reached(), Some(true));
    }

    #[test]
    fn what_the_network_adds_to_a_single_read_has_a_bar_of_its_own() {
        let added = |p50_us| {
            let headline =
                headline_of(&Ceiling::default(), |_| [("p50_us", p50_us), ("ceiling_p50_us", 13.0)]);
            let added = of_key(&headline, "file_read_qd1_added_p50_us");
            (added.value, added.is_reached())
        };
        assert_eq!(added(22.0), (9.0, Some(true)));
        assert_eq!(added(30.0), (17.0, Some(false)));
    }

    /// Rounds of each cell with these times of a cache line and shares.
    fn with_lines(rounds: &[(f64, f64)]) -> Measured {
        let round = |&(line_ns, share): &(f64, f64)| {
            vec![("line_ns", line_ns), ("share", share), (share_in(Regime::of(line_ns)), share)]
        };
        let cells = Ceiling::default().cells().into_iter();
        of_rounds(cells.map(|cell| (cell, rounds.iter().map(round).collect())).collect())
    }

    #[test]
    fn measurements_are_counted_by_regime() {
        let conditions = |lines: &[f64]| {
            let rounds: Vec<_> = lines.iter().map(|line_ns| (*line_ns, 0.9)).collect();
            Ceiling::default().conditions(&with_lines(&rounds))
        };
        let cells = Ceiling::default().cells().len();
        assert_eq!(
            conditions(&[25.0, 27.0, 130.0]).unwrap(),
            format!(
                "Measurements by regime: {} where both cores share a cache (a cache line takes 25 to 27 ns), {cells} where \
                 each core has caches of its own (a cache line takes 130 to 130 ns).",
                2 * cells
            )
        );
        assert_eq!(conditions(&[]), None);
    }

    #[test]
    fn the_smaller_median_of_both_regimes_decides() {
        let share = |rounds: &[(f64, f64)]| least_share(&with_lines(rounds).cells[0]);
        let own = [(200.0, 0.95); 3];
        let shared = [(40.0, 0.8), (42.0, 0.7), (45.0, 0.75)];
        assert_eq!(share(&[own, shared].concat()), Some(0.75));
        assert_eq!(share(&[&own[..], &shared[..2]].concat()), Some(0.95), "two rounds decide nothing");
        assert_eq!(share(&[(40.0, 0.75), (200.0, 1.0)]), Some(0.875), "too few of either: all rounds");
        let tables = Ceiling::default().tables(&with_lines(&own));
        assert_eq!(tables[0].groups.len(), ROWS.len());
        assert!(Ceiling::default().tables(&with_lines(&[])).is_empty());
    }

    #[test]
    fn each_row_that_was_measured_has_its_figures() {
        let experiment = Ceiling::default();
        let figures = |storage: &str| {
            let cells = experiment.cells().into_iter().filter(|cell| cell.text("storage") == storage);
            let round = || {
                vec![
                    ("share", 0.9),
                    ("over_sockets", 1.2),
                    ("iops", 9e5),
                    ("ceiling_iops", 1e6),
                    ("p50_us", 9.0),
                ]
            };
            let measured = of_rounds(cells.map(|cell| (cell, vec![round(), round()])).collect());
            experiment.figures(&measured).into_iter().map(|figure| figure.title).collect::<Vec<_>>()
        };
        assert_eq!(figures("null").len(), 5 + 4);
        assert_eq!(figures("null")[0], "Share of the ceiling");
        assert_eq!(
            figures("file"),
            [
                "Share of the ceiling (file)",
                "Speed: read (file)",
                "Speed: write (file)",
                "Speed: mix (file)",
                "Latency: read (file)"
            ]
        );
        assert_eq!(figures("ram").len(), 5);
    }
}
