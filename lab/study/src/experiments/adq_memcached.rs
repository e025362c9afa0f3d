//! `adq-memcached`: memcached clients of a reactor that polls its device queue, and of one that waits for interrupts.

use std::net::{Ipv4Addr, SocketAddr};

use super::adq::{KEY_COUNT, MEMCACHED_PORT, POLL_US, gets, within_limit};
use super::prelude::*;
use crate::network::Network;
use crate::text_load::{self, Protocol};

const CONNECTIONS: [u32; 4] = [1, 8, 32, 128];
/// Connections of the search for the highest rate.
const RATE_CONNECTIONS: usize = 32;
const OFF: &str = "off";
const ON: &str = "on";

/// Steps of the binary search for the highest rate.
const STEPS: u32 = 6;

pub(crate) const ABOUT: About = About {
    name: "adq-memcached",
    title: "What do memcached clients gain when a thread owns its device queue?",
    method: "Gets of one key each, values of 32 bytes, over a pair of virtual Ethernet devices between two network namespaces, one core for \
             each side, with GRO and without TSO, so that the devices can be polled. On: `nvlane target --busy-poll 50 --placement \
             napi`: the thread that serves a connection takes its packets out of the queue itself. First one to 128 connections, \
             each with its next get when the last was answered. Then 32 connections with gets at random times: the highest rate at which \
             99.9 % are answered within a millisecond of when they were due, found by halving. Between two machines the network \
             between them takes the place of the virtual devices.",
    claims: &[
        Claim {
            source: "ADQ, Netdev 0x14 (2020)",
            says: "Memcached with ADQ: 99.9 % latency 60 % lower.",
            number: "60 % lower",
            ours: "p999_ratio_32",
        },
        Claim {
            source: "ADQ, Netdev 0x14 (2020)",
            says: "Memcached with ADQ: more operations within the same limit of latency.",
            number: "—",
            ours: "rate_within_1ms_gain",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "ops",
    columns: "ops mean_us p50_us p999_us server_ns polled_percent",
};

/// Gets over a pair of devices, with the reactor on the core of its device queue and elsewhere.
#[derive(Debug, Default)]
pub(crate) struct AdqMemcached;

impl Experiment for AdqMemcached {
    fn cells(&self) -> Vec<Cell> {
        let closed = CONNECTIONS.into_iter().flat_map(|connections| {
            [OFF, ON].map(|switch| {
                Cell::new(cell_name(connections, switch))
                    .with("connections", connections)
                    .with("alignment", switch)
                    .with("load", "closed")
            })
        });
        let open = [OFF, ON].map(|switch| {
            Cell::new(rate_name(switch)).with("alignment", switch).with("load", "highest rate")
        });
        closed.chain(open).collect()
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        Network::check_for(bench)
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let wait_us = if cell.text("alignment") == ON { POLL_US } else { 0 };
        let tuning = TargetTuning { busy_poll_us: Some(wait_us), ..TargetTuning::default() };
        let network = Network::polled(bench)?;
        // A study server chooses another address.
        let ip = network.as_ref().map_or(Ipv4Addr::LOCALHOST, |network| network.target);
        let memcached = Some(SocketAddr::from((ip, MEMCACHED_PORT)));
        let options =
            ServedOptions { memcached, ..ServedOptions::of(["kv:ram:64M"]).on_cores(1).tuned(tuning) };
        let served = match &network {
            Some(network) => network.serve_with(bench, options)?,
            None => bench.serve_with(options)?,
        };
        let address = served.memcached()?;
        text_load::fill(address, Protocol::Memcached, KEY_COUNT)?;
        let run = |connections: usize, rate_per_s: Option<f64>| {
            gets(bench, address, &|| served.counters(None), connections, rate_per_s)
        };
        if cell.text("load") == "closed" {
            return run(usize::try_from(cell.number("connections")).expect("a few"), None);
        }
        // The closed-loop rate is above the highest rate within the time limit.
        let most = run(RATE_CONNECTIONS, None)?["ops"];
        let (mut low, mut high) = (0.0, most);
        // There may be no such rate: stalls of the machine may exceed the limit.
        let mut best = Values::from([("ops", 0.0)]);
        for _ in 0..STEPS {
            let rate = f64::midpoint(low, high);
            match within_limit(0.95 * rate, || run(RATE_CONNECTIONS, Some(rate)))? {
                Some(values) => (low, best) = (rate, values),
                None => high = rate,
            }
        }
        Ok(best)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (key, value) in [("ops_gain", "ops"), ("mean_ratio", "mean_us"), ("p999_ratio", "p999_us")] {
            for connections in CONNECTIONS {
                let ratio = measured.ratio(&cell_name(connections, ON), &cell_name(connections, OFF), value);
                headlines.tell(format!("{key}_{connections}"), ratio);
            }
        }
        for switch in [OFF, ON] {
            headlines.tell(format!("rate_within_1ms_{switch}"), measured.median(&rate_name(switch), "ops"));
        }
        headlines.tell("rate_within_1ms_gain", measured.ratio(&rate_name(ON), &rate_name(OFF), "ops"));
        headlines.tell("polled_percent_1", measured.median(&cell_name(CONNECTIONS[0], ON), "polled_percent"));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, y: Axis, value: &str, note: &str| {
            let of = |switch: &str| {
                let cells = CONNECTIONS.iter().filter_map(|count| measured.cell(&cell_name(*count, switch)));
                line(&format!("alignment {switch}"), cells, "connections", value)
            };
            let ticks = ticks(&CONNECTIONS.map(u64::from), |count| count.to_string());
            let plot = Plot::lines(Axis::log("connections"), ticks, y, [OFF, ON].map(of).into());
            Figure::new(title, note, plot)
        };
        vec![
            figure("Speed", Axis::log("gets per second"), "ops", "Higher is better."),
            figure("Mean", Axis::log("mean µs"), "mean_us", "Lower is better."),
            figure(
                "Tail",
                Axis::log("p99.9 µs"),
                "p999_us",
                "What 99.9 % of the gets stay below. Lower is better.",
            ),
        ]
    }
}

fn cell_name(connections: u32, switch: &str) -> String {
    format!("{connections} connections, {switch}")
}

fn rate_name(switch: &str) -> String {
    format!("highest rate, {switch}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn alignment_is_compared_with_none() {
        let headline = headline_of(&AdqMemcached, |cell| match cell.text("alignment") {
            ON => [("ops", 30.0), ("p999_us", 4.0)],
            _ => [("ops", 20.0), ("p999_us", 10.0)],
        });
        let of = |key| of_key(&headline, key).value;
        assert_eq!((of("p999_ratio_32"), of("rate_within_1ms_gain")), (0.4, 1.5));
    }
}
