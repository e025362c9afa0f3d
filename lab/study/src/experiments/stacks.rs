//! `stacks`: the same file through nvlane, through the kernel's and SPDK's hosts and targets, over TCP and RDMA, and without a
//! network.

mod figures;
mod stack;

use std::cell::OnceCell;

use super::prelude::*;
use crate::experiment::There;
use crate::queue_load::QueueLoad;
use crate::study_file::StudyFile;
use stack::{KERNEL, LOCAL, SPDK, SPDK_ON_OURS, STACKS, Stack};
pub(crate) use stack::{KERNEL_RDMA, OURS};

/// Depths of one job, and of many.
const DEPTHS: [u32; 4] = [1, 4, 32, 128];
const JOB_DEPTHS: [u32; 3] = [1, 8, 32];

/// Queues of the rows with many jobs.
const JOBS: u32 = 32;

/// Depth of many jobs that is compared and whose distribution of latency is drawn.
const JOB_DEPTH: u32 = 8;

pub(crate) const READ: &str = "read";
const WRITE: &str = "write";

/// Depth at which the processor time of an operation is divided.
const PARTS_DEPTH: u32 = 32;

/// Size of the file, bytes.
const FILE_BYTES: u64 = 256 << 20;

/// Bar: SPDK's host on nvlane's target over the same on SPDK's, at depth 128.
const OF_SPDKS_HOST: Bar = Bar::AtLeast(1.05);

pub(crate) const ABOUT: About = About {
    name: "stacks",
    title: "How fast does each stack serve the same file?",
    method: "Random reads and writes of 4 KiB with direct I/O on one queue, and on 32 (jobs), to a file of 256 MiB that was written once: the file itself \
             through io_uring, nvlane's host on nvlane's target, and the host and target of the kernel (nvme-tcp, nvme-rdma; nvmet) and \
             of SPDK, each with nvlane's and with each other. One generator makes the load of all but SPDK's host, which is its own \
             (spdk_nvme_perf): on the kernel's hosts it drives their block device. Targets of nvlane and SPDK and the load have a core \
             each, with 32 jobs up to 32 cores each, as far as available; the kernel's threads run where the kernel puts them. So processor time is that of the whole machine, per operation, \
             other programs included, and that of the processes of both sides, in user space and in the kernel; SPDK's programs use all of \
             their cores at any load. A stack whose modules or programs are missing \
             is left out, and named.",
    claims: &[
        Claim {
            source: "NVMe TCP and NVMe RoCE, Netdev 0x13 (2019)",
            says: "A single read of 4 KiB takes 60 us over the kernel's TCP and 21 us over its RoCE, between two machines.",
            number: "39 us apart",
            ours: "added_p50_us_kernel",
        },
        Claim {
            source: "i10, Netdev 0x14 (2020)",
            says: "A core carries about twice as much over RDMA, and with i10, as over the kernel's NVMe over TCP.",
            number: "≈ 2 times",
            ours: "iops_over_kernel_read_qd128",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops cores_per_side p50_us p90_us p99_us p999_us p9999_us machine_us host_us host_user_us \
              host_kernel_us target_us target_user_us target_kernel_us",
};

/// Every stack that is there.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    file: Kept<(), StudyFile>,
    there: OnceCell<There>,
}

/// Which stacks the machines of a study have.
fn there(bench: &Bench) -> There {
    let mut there = There::default();
    for stack in STACKS {
        let described = || stack.target_described(bench).or_else(|| stack.host_described());
        there.add(stack.name, stack.check(bench).map(|()| described()));
    }
    there
}

impl Experiment for Stacks {
    fn cells(&self) -> Vec<Cell> {
        let of = |stack: Stack, workload, (jobs, depth): (u32, u32)| {
            Cell::new(cell_of_jobs(stack.name, workload, jobs, depth))
                .with("stack", stack.name)
                .with("workload", workload)
                .with("jobs", jobs)
                .with("depth", depth)
        };
        let loads = DEPTHS.map(|depth| (1, depth)).into_iter().chain(JOB_DEPTHS.map(|depth| (JOBS, depth)));
        let places = loads.flat_map(|load| [READ, WRITE].map(|workload| (workload, load)));
        places.flat_map(|(workload, load)| STACKS.map(|stack| of(stack, workload, load))).collect()
    }

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        self.there.get_or_init(|| there(bench)).has(stack_of(cell).name)
    }

    fn there(&self) -> Option<&There> {
        self.there.get()
    }

    fn conditions(&self, measured: &Measured) -> Option<String> {
        figures::shared_cores(measured)
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let file = self.file.get((), || StudyFile::new(bench, FILE_BYTES))?;
        let pattern = if cell.text("workload") == READ { "randread" } else { "randwrite" };
        let (jobs, depth) = (cell.word("jobs"), cell.word("depth"));
        let load = QueueLoad { pattern, io_bytes: IO_BYTES, jobs, depth };
        let mut values = stack_of(cell).run(bench, file, load)?;
        values.insert("cores_per_side", bench.core_count_for(jobs).into());
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for workload in [READ, WRITE] {
            for (jobs, depth) in [(1, 32), (1, 128), (JOBS, JOB_DEPTH)] {
                let cell = |stack: &str| cell_of_jobs(stack, workload, jobs, depth);
                let ratio = |other: &str| measured.ratio(&cell(OURS), &cell(other), "iops");
                let workload =
                    if jobs == 1 { workload.to_owned() } else { format!("{workload}_{jobs}_jobs") };
                headlines.tell(format!("iops_over_local_{workload}_qd{depth}"), ratio(LOCAL));
                headlines.tell(format!("iops_over_kernel_{workload}_qd{depth}"), ratio(KERNEL));
                headlines.tell(format!("iops_over_rdma_{workload}_qd{depth}"), ratio(KERNEL_RDMA));
                headlines.tell(format!("iops_over_spdk_{workload}_qd{depth}"), ratio(SPDK));
                let of_spdks_host = measured.ratio(&cell(SPDK_ON_OURS), &cell(SPDK), "iops");
                let key = format!("spdks_host_on_nvlane_over_spdk_{workload}_qd{depth}");
                headlines.push(key, of_spdks_host, (depth == 128).then_some(OF_SPDKS_HOST));
            }
        }
        for (key, stack) in [("nvlane", OURS), ("kernel", KERNEL), ("rdma", KERNEL_RDMA), ("spdk", SPDK)] {
            let of = |stack| cell_name(stack, READ, 1);
            let added = measured.difference(&of(stack), &of(LOCAL), "p50_us");
            headlines.tell(format!("added_p50_us_{key}"), added);
        }
        for (key, stack) in [("local", LOCAL), ("nvlane", OURS), ("kernel", KERNEL), ("spdk", SPDK)] {
            let [many, one] =
                [(JOBS, 1), (1, JOBS)].map(|(jobs, depth)| cell_of_jobs(stack, READ, jobs, depth));
            headlines
                .tell(format!("iops_of_{JOBS}_jobs_over_one_{key}"), measured.ratio(&many, &one, "iops"));
        }
        let at_depth = |stack: &str| cell_name(stack, READ, PARTS_DEPTH);
        for (key, other) in [("kernel", KERNEL), ("rdma", KERNEL_RDMA)] {
            let ratio = measured.ratio(&at_depth(OURS), &at_depth(other), "machine_us");
            headlines.tell(format!("machine_time_over_{key}_read_qd32"), ratio);
        }
        for (key, stack) in [("nvlane", OURS), ("spdk", SPDK)] {
            let cell = measured.cell(&at_depth(stack));
            for (side, kernel, whole) in
                [("host", "host_kernel_us", "host_us"), ("target", "target_kernel_us", "target_us")]
            {
                let percent = cell.and_then(|cell| median_percent(cell, kernel, whole));
                headlines.tell(format!("{side}_kernel_percent_{key}"), percent);
            }
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        figures::figures(measured)
    }

    fn tables(&self, measured: &Measured) -> Vec<Table> {
        figures::tables(measured)
    }
}

/// A value in percent of another of the same cell: the median of rounds.
fn median_percent(cell: &CellRounds, part: &str, whole: &str) -> Option<f64> {
    let percents = cell.rounds.iter().filter_map(|round| Some(round.get(part)? / round.get(whole)? * 100.0));
    let percents: Vec<f64> = percents.filter(|percent| percent.is_finite()).collect();
    cell.median_of(&percents)
}

fn stack_of(cell: &Cell) -> Stack {
    cell.one_of("stack", STACKS, |stack| stack.name)
}

/// The name of the cell of a stack with one job.
pub(crate) fn cell_name(stack: &str, workload: &str, depth: u32) -> String {
    cell_of_jobs(stack, workload, 1, depth)
}

/// The name of the cell of a stack.
fn cell_of_jobs(stack: &str, workload: &str, jobs: u32, depth: u32) -> String {
    match jobs {
        1 => format!("{stack}, {workload} qd{depth}"),
        jobs => format!("{stack}, {workload} {jobs} jobs qd{depth}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribution::Distribution;
    use crate::experiments::testing::{headline_of, of_key};
    use crate::figure::Across;
    use crate::measured::of_rounds;

    fn values_of(cell: &Cell) -> [(&'static str, f64); 3] {
        let (iops, p50_us, machine_us) = match cell.text("stack") {
            LOCAL => (200e3, 10.0, 4.0),
            OURS => (180e3, 15.0, 8.0),
            KERNEL => (90e3, 40.0, 16.0),
            _ => (100e3, 30.0, 10.0),
        };
        [("iops", iops), ("p50_us", p50_us), ("machine_us", machine_us)]
    }

    #[test]
    fn stacks_are_compared_with_the_file_and_with_each_other() {
        let headline = headline_of(&Stacks::default(), values_of);
        for (key, expected) in [
            ("iops_over_local_read_qd32", 0.9),
            ("iops_over_kernel_write_qd128", 2.0),
            ("added_p50_us_kernel", 30.0),
            ("added_p50_us_nvlane", 5.0),
            ("machine_time_over_kernel_read_qd32", 0.5),
        ] {
            assert!((of_key(&headline, key).value - expected).abs() < 1e-9, "{key}");
        }
    }

    #[test]
    fn a_stack_that_is_not_there_is_in_no_figure() {
        let stacks = Stacks::default();
        let is_there = |cell: &Cell| [LOCAL, OURS].contains(&cell.text("stack"));
        let rounds = |cell: Cell| {
            let round = if is_there(&cell) { vec![values_of(&cell).to_vec()] } else { Vec::new() };
            (cell, round)
        };
        let figures = stacks.figures(&of_rounds(stacks.cells().into_iter().map(rounds).collect()));
        assert_eq!(figures.len(), 10);
        for figure in figures {
            let names: Vec<_> = match figure.plot.x {
                Across::Names { names, .. } if figure.plot.is_stacked => names,
                _ => figure.plot.series.into_iter().map(|series| series.name).collect(),
            };
            assert_eq!(names, [LOCAL, OURS], "{}", figure.title);
        }
    }

    #[test]
    fn processor_time_is_divided_by_side_and_what_remains_is_of_neither() {
        let stacks = Stacks::default();
        let rounds = |cell: Cell| {
            let time = [("host_us", 3.0), ("host_user_us", 1.0), ("host_kernel_us", 2.0)];
            let target = [("target_us", 4.0), ("target_user_us", 1.0), ("target_kernel_us", 3.0)];
            let round = |machine_us| match cell.text("stack") {
                OURS => [&time[..], &target, &[("machine_us", machine_us)]].concat(),
                // Neither the file nor the kernel's target has a process.
                LOCAL | "nvlane host, kernel target" => [&time[..], &[("machine_us", machine_us)]].concat(),
                _ => Vec::new(),
            };
            let mut rounds = [8.0, 8.5, 6.5].map(round).to_vec();
            rounds.retain(|round| !round.is_empty());
            (cell, rounds)
        };
        let measured = of_rounds(stacks.cells().into_iter().map(rounds).collect());
        let figures = stacks.figures(&measured);
        let of = |workload| {
            let title = format!("Processor time by side: {workload}, depth 32");
            &figures.iter().find(|figure| figure.title == title).unwrap().plot
        };
        for plot in [of(READ), of(WRITE)] {
            let part = |name: &str, at: usize| {
                let series = plot.series.iter().find(|series| series.name == name).unwrap();
                series.points.iter().find(|point| point.x == at as f64).map(|point| point.y)
            };
            assert_eq!((part("host, kernel", 1), part("target, kernel", 1)), (Some(2.0), Some(3.0)));
            // 6.5 of the machine are less than the 7 of the processes, because ticks are coarse.
            assert_eq!((part("neither process", 0), part("neither process", 1)), (Some(5.0), Some(1.0)));
            assert_eq!((part("target, user", 2), part("neither process", 2)), (None, Some(5.0)));
            let wholes: Vec<_> = plot.wholes.iter().map(|whole| whole.y).collect();
            assert_eq!(wholes, [8.0, 8.0, 8.0]);
        }
        let headline = stacks.headline(&measured);
        assert_eq!(of_key(&headline, "target_kernel_percent_nvlane").value, 75.0);
        assert!(headline.iter().all(|headline| headline.key != "host_kernel_percent_spdk"));
    }

    #[test]
    fn the_distribution_of_latency_is_drawn_with_its_quartiles_up_to_four_nines() {
        let stacks = Stacks::default();
        let mut measured = of_rounds(
            stacks.cells().into_iter().map(|cell| (cell.clone(), vec![values_of(&cell).to_vec()])).collect(),
        );
        let cell = measured.cells.iter_mut().find(|cell| cell.cell.name == "nvlane, read qd32").unwrap();
        cell.distributions = [9_000, 8_000, 7_000]
            .map(|fast| {
                Distribution::of([(10.0, fast), (100.0, 9_990 - fast), (1000.0, 10), (9000.0, 2)]).unwrap()
            })
            .to_vec();
        let figures = stacks.figures(&measured);
        let title = "Distribution of latency: read, depth 32";
        let plot = &figures.iter().find(|figure| figure.title == title).unwrap().plot;
        let series = plot.series.iter().find(|series| series.name == OURS).unwrap();
        let at = |us: f64| series.points.iter().find(|point| (point.x - us).abs() < 1e-6).unwrap();
        assert_eq!([at(10.0).low, at(10.0).y, at(10.0).high].map(f64::round), [75.0, 80.0, 85.0]);
        assert!((at(100.0).y - 99.88).abs() < 0.01 && (at(1000.0).y - 99.98).abs() < 0.001);
        assert!(series.points.last().unwrap().x < 9000.0, "two of ten thousand are no part of the curve");
        assert_eq!(series.points[0].y, 0.0);
        assert!(plot.series.iter().all(|series| series.name == OURS || series.points.is_empty()));

        let tables = stacks.tables(&measured);
        let titles: Vec<_> = tables.iter().map(|table| table.title.as_str()).collect();
        assert_eq!(titles, ["Latency: read", "Latency: write"]);
        assert!(
            tables
                .iter()
                .flat_map(|table| table.groups.iter().flatten())
                .all(|row| measured.cell(&row.cell).is_some())
        );
        assert!(
            stacks.tables(&Measured::default()).iter().flat_map(|table| &table.groups).all(Vec::is_empty)
        );
    }

    #[test]
    fn many_jobs_are_compared_and_say_that_they_share_cores() {
        let stacks = Stacks::default();
        let of = |cores: f64| {
            let rounds = |cell: Cell| {
                let iops = if cell.word("jobs") == 1 { 200e3 } else { 150e3 };
                let iops = if cell.text("stack") == KERNEL { iops / 2.0 } else { iops };
                (cell, vec![vec![("iops", iops), ("cores_per_side", cores)]])
            };
            of_rounds(stacks.cells().into_iter().map(rounds).collect())
        };
        let headline = stacks.headline(&of(1.0));
        assert_eq!(of_key(&headline, "iops_of_32_jobs_over_one_nvlane").value, 0.75);
        assert_eq!(of_key(&headline, "iops_over_kernel_read_32_jobs_qd8").value, 2.0);
        let told = |cores| stacks.conditions(&of(cores)).unwrap_or_default();
        assert!(told(1.0).ends_with("32 jobs share one core of each side."), "{}", told(1.0));
        assert!(told(4.0).ends_with("32 jobs share 4 cores of each side."));
        assert!(!told(32.0).contains("share"));
        let figures = stacks.figures(&of(1.0));
        let jobs = figures.iter().find(|figure| figure.title == "Speed: read, 32 jobs").unwrap();
        assert!(jobs.note.contains("32 jobs share one core of each side."));
        let depths: Vec<_> = jobs.plot.series[0].points.iter().map(|point| point.x).collect();
        assert_eq!(depths, JOB_DEPTHS.map(f64::from));
        let single = figures.iter().find(|figure| figure.title == "Speed: read").unwrap();
        assert_eq!(single.plot.series[0].points.len(), DEPTHS.len(), "of one job only");
    }

    #[test]
    fn what_is_not_there_is_named_with_what_it_needs() {
        let (stacks, bench) = (Stacks::default(), Bench::for_tests());
        let suited = stacks.cells().into_iter().filter(|cell| stacks.suits(cell, &bench));
        let suited: Vec<_> = suited.map(|cell| cell.text("stack").to_owned()).collect();
        let told: Vec<_> = stacks.lacking().iter().map(crate::experiment::Lacking::line).collect();
        for stack in STACKS {
            let is_told = told.iter().any(|told| told.starts_with(&format!("{} (needs ", stack.name)));
            assert_eq!(is_told, stack.check(&bench).is_err(), "{told:?}");
            assert_eq!(is_told, !suited.contains(&stack.name.to_owned()), "{told:?}");
        }
    }
}
