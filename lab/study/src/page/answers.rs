//! The three questions of a decision maker, answered from the experiments that measure them: a sentence, a picture, and
//! how certain the numbers are.

use load::steady::Spread;

use super::absent::Absent;
use crate::experiments::{IO_BYTES, stacks};
use crate::figure::{Axis, Figure, Plot, Series, ticks};
use crate::format::{micros, number};
use crate::results::Study;

/// A question with its answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) question: &'static str,
    /// The experiments that it is answered from.
    pub(super) sources: &'static [&'static str],
    /// The sentence, and how certain its numbers are; `None` if a measurement that it needs is missing.
    pub(super) sentence: Option<(String, String)>,
    pub(super) figure: Option<Figure>,
    /// Missing measurements, and their requirements.
    pub(super) needs: Vec<String>,
}

const TRANSPORT: &str = "TCP or RDMA?";

/// The questions, in order.
pub(super) fn answers(studies: &[Study], absent: &[Absent]) -> [Answer; 3] {
    let find = |name: &str| studies.iter().find(|study| study.about.name == name);
    let (ceiling, ablation, low_load) = (find("ceiling"), find("ablation"), find("low-load-latency"));
    let beside_rdma = find("stacks").and_then(|study| Some((beside_rdma(study)?, study)));
    let transport = match beside_rdma {
        Some((sentence, study)) => Answer {
            question: TRANSPORT,
            sources: &["stacks"],
            sentence: Some(sentence),
            figure: figure_named(study, "Distribution of latency: read, depth 1"),
            needs: Vec::new(),
        },
        None => Answer {
            question: TRANSPORT,
            sources: &["ceiling"],
            sentence: ceiling.and_then(transport),
            figure: ceiling.and_then(|study| figure_named(study, "Latency: read")),
            needs: transport_needs(find("stacks"), absent),
        },
    };
    [
        transport,
        Answer {
            question: "What does batching cost?",
            sources: &["ablation", "low-load-latency"],
            sentence: ablation.zip(low_load).and_then(|(ablation, low_load)| batching(ablation, low_load)),
            figure: ablation.and_then(|study| study.figures.first().cloned()),
            needs: Vec::new(),
        },
        Answer {
            question: "What does a core carry?",
            sources: &["ceiling"],
            sentence: ceiling.and_then(per_core),
            figure: ceiling.map(per_core_figure),
            needs: Vec::new(),
        },
    ]
}

/// The requirements of the comparison with RDMA where it was not measured.
fn transport_needs(stacks: Option<&Study>, absent: &[Absent]) -> Vec<String> {
    match stacks {
        Some(study) => super::lacking(study),
        None => absent
            .iter()
            .filter(|absent| absent.name == stacks::ABOUT.name)
            .map(|absent| format!("{}: {}", absent.name, absent.reason))
            .collect(),
    }
}

fn figure_named(study: &Study, title: &str) -> Option<Figure> {
    study.figures.iter().find(|figure| figure.title == title).cloned()
}

/// A value of a cell, if the cell was measured.
fn spread(study: &Study, cell: &str, value: &str) -> Option<Spread> {
    study.measured.cell(cell)?.spread(value)
}

/// A number by name, and how it is written.
type Named<'a> = (&'a str, &'a Spread, fn(f64) -> String);

/// The quartiles of some numbers, in words.
fn certainty(of: &[Named<'_>]) -> String {
    let parts = of.iter().map(|(name, spread, write)| {
        let (low, high) = (write(spread.quartile_1), write(spread.quartile_3));
        match spread.count {
            1 => format!("{name} {low} in one round"),
            count => format!("{name} {low} to {high} in {count} rounds"),
        }
    });
    format!("Quartiles: {}.", parts.collect::<Vec<_>>().join("; "))
}

/// nvlane over TCP and the kernel over RDMA, where both were measured.
fn beside_rdma(study: &Study) -> Option<(String, String)> {
    let of =
        |stack: &str, depth: u32, value| spread(study, &stacks::cell_name(stack, stacks::READ, depth), value);
    let latency = |stack| of(stack, 1, "p50_us");
    let (tcp, rdma) = (latency(stacks::OURS)?, latency(stacks::KERNEL_RDMA)?);
    let rates = [of(stacks::OURS, 32, "iops")?, of(stacks::KERNEL_RDMA, 32, "iops")?];
    let time = study.value("machine_time_over_rdma_read_qd32")?;
    let sentence = format!(
        "A read of 4 KiB of the same file takes {} with nvlane over TCP and {} with the kernel over RDMA ({}) at depth 1. At depth 32 one \
         queue carries {} and {} reads per second, and nvlane takes {time:.1} times the processor time of the machine for each. Both \
         sides share this machine. Between two machines Linux took 60 µs over TCP and 21 µs over RoCE in 2019 (Netdev 0x13).",
        micros(tcp.median),
        micros(rdma.median),
        study.seen.join(", "),
        number(rates[0].median),
        number(rates[1].median),
    );
    let certainty = certainty(&[
        ("p50 over TCP", &tcp, micros),
        ("over RDMA", &rdma, micros),
        ("reads per second over TCP", &rates[0], number),
        ("over RDMA", &rates[1], number),
    ]);
    Some((sentence, certainty))
}

fn transport(study: &Study) -> Option<(String, String)> {
    let latency = spread(study, "read qd1", "p50_us")?;
    let rate = spread(study, "read qd128", "iops")?;
    let share = spread(study, "read qd128", "share")?;
    let sentence = format!(
        "A read of 4 KiB takes {} at depth 1, and one lane carries {} reads per second at depth 128: {:.0} % of what \
         plain sockets reach here, so what another transport could save here is the sockets' own cost. Between two machines \
         Linux took 60 µs over TCP and 21 µs over RoCE in 2019 (Netdev 0x13). Here both sides share one machine, and no RDMA \
         device was measured.",
        micros(latency.median),
        number(rate.median),
        share.median * 100.0
    );
    let certainty = certainty(&[
        ("p50", &latency, micros),
        ("reads per second", &rate, number),
        ("share", &share, number),
    ]);
    Some((sentence, certainty))
}

fn batching(ablation: &Study, low_load: &Study) -> Option<(String, String)> {
    let gain = ablation.value("batching_gain")?;
    let added = low_load.value("adaptive_p99_added_us")?;
    let added = if added > 0.0 { micros(added) } else { "nothing".to_owned() };
    let fixed = low_load.value("fixed_p99_added_us");
    let fixed = fixed.map_or(String::new(), |fixed| format!(" (a fixed doorbell adds {})", micros(fixed)));
    let [first, last] = [ablation.measured.cells.first()?, ablation.measured.cells.last()?];
    let sentence = format!(
        "All kinds of batching together carry {gain:.1} times the reads of one send per PDU at depth 128, and the adaptive \
         doorbell adds {added} to p99 where there is nothing to batch{fixed}. The talk on i10 (Netdev 0x14) reported 1.62 times \
         and 117 µs."
    );
    let certainty = certainty(&[
        ("reads per second without batching", &first.spread("iops")?, number),
        ("with it", &last.spread("iops")?, number),
    ]);
    Some((sentence, certainty))
}

/// Operations that a core carries if each costs this much processor time, µs.
fn rate(spread: &Spread) -> Spread {
    let of = |us: f64| 1e6 / us;
    Spread {
        median: of(spread.median),
        quartile_1: of(spread.quartile_3),
        quartile_3: of(spread.quartile_1),
        ..*spread
    }
}

fn per_core(study: &Study) -> Option<(String, String)> {
    let target = rate(&spread(study, "read qd128", "target_us")?);
    let host = rate(&spread(study, "read qd128", "host_us")?);
    let single = rate(&spread(study, "read qd1", "target_us")?);
    let sentence = format!(
        "At depth 128 a core of the target carries {} reads of 4 KiB per second, {:.1} GB/s, and a core of the host {}; at \
         depth 1, where nothing is batched, a core of the target carries {}.",
        number(target.median),
        target.median * f64::from(IO_BYTES) / 1e9,
        number(host.median),
        number(single.median)
    );
    let certainty = certainty(&[
        ("target", &target, number),
        ("host", &host, number),
        ("target at depth 1", &single, number),
    ]);
    Some((sentence, certainty))
}

fn per_core_figure(study: &Study) -> Figure {
    const DEPTHS: [u64; 4] = [1, 4, 32, 128];
    let series = |name: &str, value: &str| {
        let at =
            |depth: u64| (depth as f64, spread(study, &format!("read qd{depth}"), value).map(|of| rate(&of)));
        Series::new(name, DEPTHS.map(at))
    };
    Figure::new(
        "Reads per core",
        "Reads of 4 KiB per second of processor time. Higher is better.",
        Plot::lines(
            Axis::log("operations in flight"),
            ticks(&DEPTHS, |depth| depth.to_string()),
            Axis::linear("reads per core and second"),
            vec![series("target", "target_us"), series("host", "host_us")],
        ),
    )
}
