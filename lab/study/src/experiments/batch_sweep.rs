//! `batch-sweep`: the gain of batching for other shares of reads, other doorbell timers and other sizes of a batch.

use host::Receive;
use load::workload::format_bytes;

use super::prelude::*;
use crate::doorbell::{self, CARAVANS, SINGLE, TURN, WAYS};

/// Percentages of reads.
const READ_PERCENTS: [u32; 5] = [0, 25, 50, 75, 100];

/// How long PDUs wait for others, µs. With 0 they leave at the end of the turn.
const TIMERS_US: [u32; 6] = [0, 10, 25, 50, 100, 200];

/// Batches of the rows with a timer: those of i10.
const TIMER_BATCH: (u32, u32) = (16, 64 << 10);

/// Depths of the rows with a timer: one that never fills a batch, and one that always does.
const SPARSE: u32 = 8;
const DEEP: u32 = 128;

/// Commands of a batch, without another limit.
const BATCH_COMMANDS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Bytes of a batch of the target, without another limit. The least is exceeded by a single response to a read.
const BATCH_BYTES: [u32; 6] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];

/// Limits that the other rows do not reach.
const NO_COMMANDS: u32 = 1 << 20;
const NO_BYTES: u32 = 1 << 30;

/// Wait of the last batch, whose other commands are on their way, µs.
const BATCH_WAIT_US: u32 = 200;

const READS: &str = "share of reads";
const TIMER: &str = "timer";
const COMMANDS: &str = "commands";
const BYTES: &str = "bytes";

pub(crate) const ABOUT: About = About {
    name: "batch-sweep",
    title: "What effect do the mix, the timer and the batch size have?",
    method: "One lane, operations of 4 KiB on a null namespace, one core for each side; both sides have the same doorbell, unless \
             said otherwise. Share of reads: 128 in flight, 100 to 0 % reads, each PDU by itself and in caravans. Timer: batches of 16 \
             commands or 64 KiB that leave after 0 to 200 µs in any case, with 8 reads in flight, which never fill a batch, and with \
             128. Size: 128 reads in flight, in batches of 1 to 64 commands, and with responses in batches of 4 to 128 KiB, where the \
             host sends at the end of each turn. Each row is compared with the one without its batching in the same round: by \
             itself, without a timer, one command, 4 KiB.",
    claims: &[Claim {
        source: "i10, Netdev 0x14 (2020)",
        says: "Under little load, waiting for a timer of 50 µs at both ends is the whole added tail latency.",
        number: "50 + 50 µs",
        ours: "timer_50_added_p99_us",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops p50_us p99_us commands_per_send commands_per_receive doorbell_wait_us host_us target_us",
};

/// One parameter of batching varied at a time.
#[derive(Debug, Default)]
pub(crate) struct BatchSweep;

impl Experiment for BatchSweep {
    fn cells(&self) -> Vec<Cell> {
        let of = |kind: &str, name: String, (value, depth): (u32, u32)| {
            Cell::new(name).with("kind", kind).with("value", value).with("depth", depth)
        };
        let with = |cell: Cell, reads: u32, (host, target): (&str, &str), receive: Receive| {
            let receive = receive.to_string();
            cell.with("reads", reads)
                .with("host", host)
                .with("target", target)
                .with("receive", receive.as_str())
        };
        let mut cells = Vec::new();
        for percent in READ_PERCENTS {
            cells.extend(WAYS.map(|(way, policy, receive)| {
                let cell = of(READS, reads_name(percent, way), (percent, DEEP));
                with(cell, percent, (policy, policy), receive)
            }));
        }
        let of_reads = |cell, host: &str, target: &str| with(cell, 100, (host, target), Receive::Staging);
        for depth in [SPARSE, DEEP] {
            let (commands, bytes) = TIMER_BATCH;
            cells.extend(TIMERS_US.map(|us| {
                let policy = format!("fixed:{commands},{bytes},{us}");
                of_reads(of(TIMER, timer_name(us, depth), (us, depth)), &policy, &policy)
            }));
        }
        cells.extend(BATCH_COMMANDS.map(|commands| {
            let policy = format!("fixed:{commands},{NO_BYTES},{BATCH_WAIT_US}");
            of_reads(of(COMMANDS, commands_name(commands), (commands, DEEP)), &policy, &policy)
        }));
        cells.extend(BATCH_BYTES.map(|bytes| {
            let policy = format!("fixed:{NO_COMMANDS},{bytes},{BATCH_WAIT_US}");
            // Requests of the host are too short to ever fill such a batch.
            of_reads(of(BYTES, bytes_name(bytes), (bytes, DEEP)), TURN, &policy)
        }));
        cells
    }

    fn spins(&self, _: &Cell) -> bool {
        true
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let receive: Receive = cell.text("receive").parse().expect("a known way");
        // A target for each measurement: there are too many policies for their targets to wait beside the measured one.
        let tuning = TargetTuning { receive: Some(receive), ..TargetTuning::default() };
        let served = doorbell::serve(bench, cell.text("target"), tuning)?;
        let (pattern, reads) = match cell.word("reads") {
            100 => ("randread", None),
            0 => ("randwrite", None),
            percent => ("randrw", u8::try_from(percent).ok()),
        };
        let load = bench.load(pattern, reads, IO_BYTES, cell.word("depth"));
        let report = bench.run(&served, load.with_doorbell(cell.text("host")).with_receive(receive))?.report;
        served.stop()?;
        let mut values = values(&report);
        values.extend(batch_values(&report));
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for percent in READ_PERCENTS {
            let gain = measured.ratio(&reads_name(percent, CARAVANS), &reads_name(percent, SINGLE), "iops");
            headlines.tell(format!("gain_of_caravans_reads_{percent}"), gain);
        }
        let [none, timers @ ..] = TIMERS_US;
        for us in timers {
            let added = measured.difference(&timer_name(us, SPARSE), &timer_name(none, SPARSE), "p99_us");
            headlines.tell(format!("timer_{us}_added_p99_us"), added);
            let ratio = measured.ratio(&timer_name(us, DEEP), &timer_name(none, DEEP), "iops");
            headlines.tell(format!("timer_{us}_iops_over_none"), ratio);
        }
        let [one, more @ ..] = BATCH_COMMANDS;
        for commands in more {
            let ratio = measured.ratio(&commands_name(commands), &commands_name(one), "iops");
            headlines.tell(format!("batch_{commands}_iops_over_one"), ratio);
        }
        let [least, more @ ..] = BATCH_BYTES;
        for bytes in more {
            let ratio = measured.ratio(&bytes_name(bytes), &bytes_name(least), "iops");
            headlines.tell(format!("batch_{}_iops_over_4k", format_bytes(bytes.into())), ratio);
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let kind = |kind: &'static str| measured.of("kind", kind);
        let of_way = |(way, policy, _): (&str, &str, Receive)| {
            line(way, kind(READS).filter(|cell| cell.cell.text("host") == policy), "value", "iops")
        };
        let at_depth = |depth: u32, value: &str, name: &str| {
            line(name, kind(TIMER).filter(|cell| cell.cell.word("depth") == depth), "value", value)
        };
        let us = || ticks(&TIMERS_US.map(u64::from), |us| us.to_string());
        let counts = || ticks(&BATCH_COMMANDS.map(u64::from), |count| count.to_string());
        let sizes = ticks(&BATCH_BYTES.map(u64::from), format_bytes);
        let percents = ticks(&READ_PERCENTS.map(u64::from), |percent| percent.to_string());
        let timer = || Axis::linear("doorbell timer, µs");
        let commands = || Axis::log("commands of a batch at most");
        let over_commands = |name: &str, value: &str| line(name, kind(COMMANDS), "value", value);
        vec![
            Figure::new(
                "Speed over the share of reads",
                "Operations of 4 KiB per second, 128 in flight. Higher is better.",
                Plot::lines(Axis::linear("% reads"), percents, Axis::linear("IOPS"), WAYS.map(of_way).into()),
            ),
            Figure::new(
                "Latency over the doorbell timer, depth 8",
                "8 reads never fill a batch of 16, so each caravan waits for the timer. Lower is better.",
                Plot::lines(
                    timer(),
                    us(),
                    Axis::log("µs"),
                    vec![at_depth(SPARSE, "p50_us", "p50"), at_depth(SPARSE, "p99_us", "p99")],
                ),
            ),
            Figure::new(
                "Speed over the doorbell timer",
                "Reads of 4 KiB per second. Higher is better.",
                Plot::lines(
                    timer(),
                    us(),
                    Axis::log("IOPS"),
                    vec![at_depth(SPARSE, "iops", "depth 8"), at_depth(DEEP, "iops", "depth 128")],
                ),
            ),
            Figure::new(
                "Speed over the commands of a batch",
                "128 reads of 4 KiB in flight. Higher is better.",
                Plot::lines(
                    commands(),
                    counts(),
                    Axis::linear("IOPS"),
                    vec![over_commands("nvlane", "iops")],
                ),
            ),
            Figure::new(
                "Latency over the commands of a batch",
                "128 reads of 4 KiB in flight. Lower is better.",
                Plot::lines(
                    commands(),
                    counts(),
                    Axis::log("µs"),
                    vec![over_commands("p50", "p50_us"), over_commands("p99", "p99_us")],
                ),
            ),
            Figure::new(
                "Speed over the bytes of a batch",
                "128 reads of 4 KiB in flight; a batch has one response at least. Higher is better.",
                Plot::lines(
                    Axis::log("bytes of a batch at most"),
                    sizes,
                    Axis::linear("IOPS"),
                    vec![line("nvlane", kind(BYTES), "value", "iops")],
                ),
            ),
        ]
    }
}

fn reads_name(percent: u32, way: &str) -> String {
    format!("{percent} % reads {way}")
}

fn timer_name(us: u32, depth: u32) -> String {
    format!("timer {us} us qd{depth}")
}

fn commands_name(commands: u32) -> String {
    format!("batch of {commands}")
}

fn bytes_name(bytes: u32) -> String {
    format!("batch of {}", format_bytes(bytes.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};
    use crate::measured::of_rounds;

    fn values_of(cell: &Cell) -> [(&'static str, f64); 3] {
        let value = f64::from(cell.word("value"));
        let (iops, p99_us) = match cell.text("kind") {
            READS => (if cell.name.ends_with(SINGLE) { 2e5 } else { 8e5 }, 100.0),
            TIMER => (1e6 - value * 1e3, 20.0 + 2.0 * value),
            COMMANDS => (1e5 * (1.0 + value.log2()), 100.0),
            _ => (value * 10.0, 100.0),
        };
        [("iops", iops), ("p50_us", p99_us / 2.0), ("p99_us", p99_us)]
    }

    #[test]
    fn each_row_is_compared_with_the_one_without_its_batching() {
        let headline = headline_of(&BatchSweep, values_of);
        for (key, expected) in [
            ("gain_of_caravans_reads_25", 4.0),
            ("timer_50_added_p99_us", 100.0),
            ("timer_200_iops_over_none", 0.8),
            ("batch_16_iops_over_one", 5.0),
            ("batch_64k_iops_over_4k", 16.0),
        ] {
            assert!((of_key(&headline, key).value - expected).abs() < 1e-9, "{key}");
        }
        assert!(headline.iter().all(|headline| !headline.key.contains("timer_0_")), "none over none");
    }

    #[test]
    fn every_row_has_a_policy_that_host_and_target_know() {
        for cell in BatchSweep.cells() {
            let (host, target) = (cell.text("host"), cell.text("target"));
            assert!(host.parse::<host::DoorbellPolicy>().is_ok(), "{host}");
            assert!(target.parse::<host::DoorbellPolicy>().is_ok(), "{target}");
        }
    }

    #[test]
    fn each_figure_has_the_rows_of_its_kind() {
        let rounds = |cell: Cell| (cell.clone(), vec![values_of(&cell).to_vec()]);
        let figures = BatchSweep.figures(&of_rounds(BatchSweep.cells().into_iter().map(rounds).collect()));
        let counts: Vec<Vec<usize>> = figures
            .iter()
            .map(|figure| figure.plot.series.iter().map(|series| series.points.len()).collect())
            .collect();
        assert_eq!(counts, [vec![5, 5], vec![6, 6], vec![6, 6], vec![7], vec![7, 7], vec![6]]);
    }
}
