//! `ablation`: the gain of each batching technique, added one after the other.

use host::Receive;

use super::prelude::*;
use crate::doorbell::{ADAPTIVE, IMMEDIATE, PolicyTargets, TURN};

const DEPTH: u32 = 128;

/// Name, the policies of host and target, and how both receive. Each adds one thing to those before it.
const STEPS: [(&str, &str, &str, Receive); 5] = [
    ("one send per PDU", IMMEDIATE, IMMEDIATE, Receive::Pdu),
    ("caravans of requests", TURN, IMMEDIATE, Receive::Pdu),
    ("and of responses", TURN, TURN, Receive::Pdu),
    ("and delayed doorbells", ADAPTIVE, ADAPTIVE, Receive::Pdu),
    ("and warm receives", ADAPTIVE, ADAPTIVE, Receive::Staging),
];

/// Bar: all techniques over none.
const GAIN: Bar = Bar::AtLeast(4.0);

pub(crate) const ABOUT: About = About {
    name: "ablation",
    title: "What does each kind of batching gain?",
    method: "One lane, reads of 4 KiB, 128 in flight, one core for each side. First every command and every response leaves in a \
             send of its own, and is received by itself: 8 bytes, the rest of its header, its data, as targets and hosts often do. \
             Then one kind of batching is added after the other; finally receives take all that has arrived, into few warm buffers. \
             Gains are taken within each round.",
    claims: &[Claim {
        source: "i10, Netdev 0x14 (2020)",
        says: "Caravans and delayed doorbells together give 62 % more throughput. Sockets alone allow 6.7 times.",
        number: "1.62 times",
        ours: "batching_gain",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops p50_us p99_us host_us target_us commands_per_send commands_per_receive doorbell_wait_us",
};

/// Caravans and delayed doorbells, added one after the other.
#[derive(Debug, Default)]
pub(crate) struct Ablation {
    targets: PolicyTargets,
}

impl Experiment for Ablation {
    fn cells(&self) -> Vec<Cell> {
        let of = |(name, host, target, receive): (&str, &str, &str, Receive)| {
            Cell::new(name)
                .with("host", host)
                .with("target", target)
                .with("receive", receive.to_string().as_str())
        };
        STEPS.map(of).to_vec()
    }

    fn spins(&self, _: &Cell) -> bool {
        true
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let receive: Receive = cell.text("receive").parse().expect("a known way");
        let served = self.targets.get_with(bench, cell.text("target"), receive)?;
        let load = bench.load("randread", None, IO_BYTES, DEPTH);
        let load = load.with_doorbell(cell.text("host")).with_receive(receive);
        let report = bench.run(served, load)?.report;
        let mut values = values(&report);
        values.extend(batch_values(&report));
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let none = STEPS[0].0;
        let gain = |name| measured.ratio(name, none, "iops");
        let all = STEPS.last().and_then(|(name, ..)| gain(name));
        headlines.push("batching_gain", all, Some(GAIN));
        for (name, ..) in &STEPS[1..] {
            headlines.tell(format!("gain_{}", name.replace(' ', "_")), gain(name));
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = || STEPS.map(|(name, ..)| name.to_owned());
        let plot = |y, value: &str| {
            Plot::bars("", names().to_vec(), y, vec![bars("nvlane", measured, names(), value)])
        };
        vec![
            Figure::new(
                "Speed with one idea after the other",
                "Operations of 4 KiB per second. Higher is better.",
                plot(Axis::linear("IOPS"), "iops"),
            ),
            Figure::new(
                "Commands that left together",
                "Mean number for each send of the host.",
                plot(Axis::linear("commands per send"), "commands_per_send"),
            ),
        ]
    }
}
