//! `busy-poll`: the waiting thread receives packets from the device itself.

use host::BusyPoll;
use load::report::Report;
use serde_json::Value;

use super::prelude::*;
use crate::network::Network;
use crate::process::busy_polled_packets;

const DEPTHS: [u32; 2] = [1, 32];
const OFF: &str = "off";
const ON: &str = "on";

/// How long a socket polls its device before it sleeps, µs.
const POLL_US: u32 = 50;

pub(crate) const ABOUT: About = About {
    name: "busy-poll",
    title: "What does polling the device gain over waiting for its interrupt?",
    method: "One lane, reads of 4 KiB, one and 32 in flight, over a pair of virtual Ethernet devices between two network \
             namespaces (or between two machines), one core for each side, with GRO and without TSO, so that the devices can be polled. On: \
             nvlane target --busy-poll 50 --placement napi, and the same of the host: receives and waits of both sides look \
             into the device's queue themselves. Proof beside the gain: the device queues that both sides name (NAPI ids, 0 for \
             none), what the kernel granted, and the share of packets that it says were taken in by polling. Where \
             there are none, the comparison says nothing.",
    claims: &[
        Claim {
            source: "Sagi Grimberg, NVMe over TCP optimisations (2021)",
            says: "With ADQ's queues of its own and polling: 245,000 operations per second at depth 32 became 341,000.",
            number: "1.39 times",
            ours: "gain_qd32",
        },
        Claim {
            source: "ADQ, Netdev 0x14 (2020)",
            says: "Memcached with ADQ: 99.9 % latency 60 % lower.",
            number: "60 % lower",
            ours: "p999_ratio_qd1",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops p50_us p99_us p999_us polled_percent host_napi_id target_napi_id granted \
              target_spin_hits host_us target_us",
};

/// Sockets that poll their device, and sockets that wait for its interrupt.
#[derive(Debug, Default)]
pub(crate) struct BusyPolling;

impl Experiment for BusyPolling {
    fn cells(&self) -> Vec<Cell> {
        let of = |depth: u32, switch| {
            Cell::new(cell_name(depth, switch)).with("depth", depth).with("polling", switch)
        };
        DEPTHS.into_iter().flat_map(|depth| [OFF, ON].map(|switch| of(depth, switch))).collect()
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        Network::check_for(bench)
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let is_on = cell.text("polling") == ON;
        let wait_us = if is_on { POLL_US } else { 0 };
        let tuning = TargetTuning { busy_poll_us: Some(wait_us), ..TargetTuning::default() };
        let options = ServedOptions { tells: true, ..ServedOptions::of(["null:1T"]).tuned(tuning) };
        let network = Network::polled(bench)?;
        let served = match &network {
            Some(network) => network.serve_with(bench, options)?,
            None => bench.serve_with(options)?,
        };
        let polled = || {
            let target = served.counters(None).ok()?.polled?;
            Some(target + busy_polled_packets(std::process::id())?)
        };
        let before = polled();
        let mut load = bench.load("randread", None, IO_BYTES, cell.word("depth"));
        load.options.tuning.busy_poll = BusyPoll::us(wait_us);
        let finished = bench.run(&served, load)?;
        let mut values = values(&finished.report);
        values.extend(proof(&finished.report, &served.state()?, is_on));
        if let (Some(before), Some(after)) = (before, polled()) {
            let polled = (after - before) as f64;
            let operations = finished.report.total.operations as f64;
            // At least one packet in each direction.
            values.insert("polled_percent", polled / (2.0 * operations) * 100.0);
        }
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (key, value) in [("gain", "iops"), ("p999_ratio", "p999_us")] {
            for depth in DEPTHS {
                let ratio = measured.ratio(&cell_name(depth, ON), &cell_name(depth, OFF), value);
                headlines.tell(format!("{key}_qd{depth}"), ratio);
            }
        }
        for key in ["host_napi_id", "target_napi_id", "granted"] {
            headlines.tell(key, measured.median(&cell_name(1, ON), key));
        }
        headlines.tell("polled_percent_qd1", measured.median(&cell_name(1, ON), "polled_percent"));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, y: Axis, value: &str, note: &str| {
            let names = DEPTHS.map(|depth| format!("depth {depth}")).to_vec();
            let of = |switch: &str| {
                bars(
                    &format!("busy polling {switch}"),
                    measured,
                    DEPTHS.map(|depth| cell_name(depth, switch)),
                    value,
                )
            };
            let plot = Plot::bars("", names, y, [OFF, ON].map(of).into());
            Figure::new(title, note, plot)
        };
        vec![
            figure("Speed", Axis::log("IOPS"), "iops", "Operations per second. Higher is better."),
            figure(
                "Tail",
                Axis::log("p99.9 µs"),
                "p999_us",
                "What 99.9 % of the operations stay below. Lower is better.",
            ),
        ]
    }
}

/// Counters that show whether devices were polled.
fn proof(report: &Report, target: &Value, is_on: bool) -> Values {
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0) as f64;
    let host = report.lanes.first().map(|lane| &lane.counters);
    let reactors = target["reactors"].as_array().map_or(&[][..], Vec::as_slice);
    let seen = target["placement"]["napi_ids_seen"].as_array().and_then(|ids| ids.last());
    let granted_to_target = reactors
        .iter()
        .all(|reactor| reactor["busy_poll"]["engine"] == "on" && reactor["busy_poll"]["sockets"] == "on");
    let granted_to_host = host.is_some_and(|lane| number(lane.get("busy_polled_links")) > 0.0);
    let hits = reactors.iter().map(|reactor| {
        number(reactor["busy_poll"].get("spin_hits")) + number(reactor["busy_poll"].get("polled_hits"))
    });
    Values::from([
        ("host_napi_id", host.map_or(0.0, |lane| number(lane.get("napi_id")))),
        ("target_napi_id", number(seen)),
        ("granted", f64::from(u8::from(is_on && granted_to_target && granted_to_host))),
        ("target_spin_hits", hits.sum()),
    ])
}

fn cell_name(depth: u32, switch: &str) -> String {
    format!("qd{depth} {switch}")
}
