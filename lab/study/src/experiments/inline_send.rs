//! `inline-send`: the submitting thread sends, or hands commands to a driver thread.

use super::prelude::*;

const DEPTHS: [u32; 2] = [1, 32];

/// The submitting thread owns the lane.
const INLINE: &str = "inline";
/// The submitting thread hands commands to the lane's driver thread through its mailbox.
const HANDED_OVER: &str = "handed over";

pub(crate) const ABOUT: About = About {
    name: "inline-send",
    title: "What does sending from the submitting thread save?",
    method: "One lane, reads of 4 KiB, one and 32 in flight, the host's threads on one core, the target on another. Inline, the \
             thread that submits owns the lane, sends from the call itself where the lane is idle, and polls for the answer. \
             Handed over, the same thread passes each command through a mailbox to a thread that drives the lane, and gets its \
             end back through another (`nvlane perf --submit inline` and `mailbox`).",
    claims: &[
        Claim {
            source: "Sagi Grimberg, NVMe over TCP optimisations (2021)",
            says: "Sending from the submitter's context and completing in the poller's: 10 % less latency at depth 1.",
            number: "10 %",
            ours: "gain_qd1",
        },
        Claim {
            source: "Sagi Grimberg, NVMe over TCP optimisations (2021)",
            says: "The same at depth 32: 230,000 operations per second became 247,000.",
            number: "1.07 times",
            ours: "gain_qd32",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops p50_us p99_us host_us target_us",
};

/// Lanes driven by the submitting thread, and by a driver thread.
#[derive(Debug, Default)]
pub(crate) struct InlineSend {
    served: Kept<(), Served>,
}

impl Experiment for InlineSend {
    fn cells(&self) -> Vec<Cell> {
        let of = |depth: u32, sender| {
            Cell::new(cell_name(depth, sender)).with("depth", depth).with("sender", sender)
        };
        DEPTHS.into_iter().flat_map(|depth| [HANDED_OVER, INLINE].map(|sender| of(depth, sender))).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let served = self.served.get((), || bench.serve())?;
        let mut load = bench.load("randread", None, IO_BYTES, cell.word("depth"));
        let is_inline = cell.text("sender") == INLINE;
        (load.options.tuning.inline_send, load.hand_over) = (is_inline, !is_inline);
        Ok(values(&bench.run(served, load)?.report))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for depth in DEPTHS {
            let gain = measured.ratio(&cell_name(depth, INLINE), &cell_name(depth, HANDED_OVER), "iops");
            headlines.tell(format!("gain_qd{depth}"), gain);
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, y: Axis, value: &str, note: &str| {
            let names = DEPTHS.map(|depth| format!("depth {depth}")).to_vec();
            let of =
                |sender: &str| bars(sender, measured, DEPTHS.map(|depth| cell_name(depth, sender)), value);
            let plot = Plot::bars("", names, y, [HANDED_OVER, INLINE].map(of).into());
            Figure::new(title, note, plot)
        };
        vec![
            figure("Speed", Axis::log("IOPS"), "iops", "Operations per second. Higher is better."),
            figure(
                "Latency",
                Axis::log("p50 µs"),
                "p50_us",
                "Half of the operations stay below. Lower is better.",
            ),
        ]
    }
}

fn cell_name(depth: u32, sender: &str) -> String {
    format!("qd{depth} {sender}")
}
