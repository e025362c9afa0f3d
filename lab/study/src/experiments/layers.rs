//! `layers`: the processor time of an operation, by layer, on both sides.

use std::time::Instant;

use load::report::CpuShare;
use load::steady::Spread;
use serde_json::{Map, Value, json};

use super::prelude::*;
use crate::bench::Times;
use crate::doorbell::{CARAVANS, PolicyTargets, SINGLE, WAYS};
use crate::profile::{Layer, PERIOD, Placed, ProcessSampling, Resolver, Sampled, Scope};
use crate::target_sampling::TargetSampling;

const DEPTHS: [u32; 3] = [1, 32, 128];

const WORKLOADS: [(&str, &str); 2] = [("read", "randread"), ("write", "randwrite")];

/// A side: its name, and the keys of its values.
struct SideKeys {
    name: &'static str,
    layers: [&'static str; LAYER_COUNT],
    samples: &'static str,
}

/// The keys of a side, which begin with its name.
macro_rules! side_keys {
    ($name:literal) => {
        SideKeys {
            name: $name,
            layers: [
                concat!($name, "_application_us"),
                concat!($name, "_nvme_us"),
                concat!($name, "_storage_us"),
                concat!($name, "_system_calls_us"),
                concat!($name, "_transmit_us"),
                concat!($name, "_receive_us"),
                concat!($name, "_copies_us"),
                concat!($name, "_scheduling_us"),
                concat!($name, "_memory_us"),
                concat!($name, "_other_us"),
                concat!($name, "_not_named_us"),
            ],
            samples: concat!($name, "_samples"),
        }
    };
}

const HOST: SideKeys = side_keys!("host");
const TARGET: SideKeys = side_keys!("target");

const LAYER_COUNT: usize = Layer::ALL.len();

const SIDES: [&SideKeys; 2] = [&HOST, &TARGET];

/// Name of the threads that make the load.
const LOAD_THREAD: &str = "nvlane-load";

/// Functions of each layer in `results.json`, and of the layer `other`, which shows what the table lacks.
const FUNCTIONS_MAX: usize = 12;
const OTHER_FUNCTIONS_MAX: usize = 60;

/// Bar of the time in functions that the table does not know, percent of a side's time in any cell.
const OTHER_PERCENT: Bar = Bar::AtMost(5.0);

pub(crate) const ABOUT: About = About {
    name: "layers",
    title: "Which layer takes the processor time of an operation?",
    method: "One lane, operations of 4 KiB on a null namespace, one core for each side. While the load runs, the \
             threads of both sides are sampled every 0.2 ms of their processor time (perf_event_open), each on its machine, and each sample \
             belongs to the layer of its function; the shares divide the side's processor time per operation. Single: every PDU has a send \
             and a receive of its own. Caravans: everything that is due leaves and arrives together. A side that spins while it \
             waits spends that time in these layers, too. Over loopback the sender's thread carries a packet up to the receiver's \
             socket, so a part of TCP receive is the other side's.",
    claims: &[
        Claim {
            source: "i10, Netdev 0x14 (2020)",
            says: "Most processor time of NVMe over TCP goes to the network stack.",
            number: "most",
            ours: "network_percent",
        },
        Claim {
            source: "i10, Netdev 0x14 (2020)",
            says: "Within the network stack, transmitting costs more than receiving.",
            number: "> 1×",
            ours: "transmit_over_receive",
        },
        Claim {
            source: "i10, Netdev 0x14 (2020)",
            says: "Each request of the kernel's host costs 1 to 3 µs of thread switches. This host has none between \
                   application and socket.",
            number: "1 to 3 µs",
            ours: "scheduling_us",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "iops \
              host_us host_application_us host_nvme_us host_storage_us host_system_calls_us host_transmit_us \
              host_receive_us host_copies_us host_scheduling_us host_memory_us host_other_us host_not_named_us \
              target_us target_application_us target_nvme_us target_storage_us target_system_calls_us \
              target_transmit_us target_receive_us target_copies_us target_scheduling_us target_memory_us \
              target_other_us target_not_named_us",
};

/// Samples of both sides in each cell.
#[derive(Default)]
pub(crate) struct Layers {
    targets: PolicyTargets,
    resolver: Resolver,
    scope: Option<Scope>,
    /// Samples of all cells: of the host, and of the target.
    placed: [Placed; 2],
    /// Samples of each for which there was no room.
    lost: [u64; 2],
    /// The limits of the samples, in sentences.
    limits: Vec<String>,
}

impl Layers {
    /// Adds the samples of a side in a measurement. `whose`: its machine, if there are two.
    fn add(&mut self, side: usize, sampled: &Sampled, whose: &str) {
        self.placed[side].merge(&sampled.placed);
        self.lost[side] += sampled.lost;
        for limit in &sampled.limits {
            self.tell(format!("Not complete{whose}: {limit}."));
        }
    }

    /// Adds a sentence, unless it is known.
    fn tell(&mut self, limit: String) {
        if !self.limits.contains(&limit) {
            self.limits.push(limit);
        }
    }
}

impl Experiment for Layers {
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (workload, _) in WORKLOADS {
            for depth in DEPTHS {
                cells.extend(WAYS.map(|(way, policy, receive)| {
                    Cell::new(cell_name(workload, depth, way))
                        .with("workload", workload)
                        .with("depth", depth)
                        .with("way", way)
                        .with("doorbell", policy)
                        .with("receive", receive.to_string().as_str())
                }));
            }
        }
        cells
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        Scope::permitted().map(|_| ()).map_err(|error| match error {
            Error::Lacking(reason) if bench.is_remote() => {
                Error::Lacking(format!("on the host's machine: {reason}"))
            }
            error => error,
        })
    }

    fn conditions(&self, _: &Measured) -> Option<String> {
        self.scope?;
        let of_side = |side: usize| {
            let lost = match self.lost[side] {
                0 => String::new(),
                lost => format!(" ({lost} lost)"),
            };
            match self.placed[side].total() {
                0 => format!("n/a of the {}{lost}", SIDES[side].name),
                total => format!("{total} of the {}{lost}", SIDES[side].name),
            }
        };
        let period_us = PERIOD.as_micros();
        let mut text = format!("Samples of cpu-clock every {period_us} µs: {}, {}.", of_side(0), of_side(1));
        for limit in &self.limits {
            text += " ";
            text += limit;
        }
        Some(text)
    }

    fn details(&self) -> Map<String, Value> {
        if self.scope.is_none() {
            return Map::new();
        }
        let sides = SIDES.iter().zip(&self.placed);
        let functions: Map<_, _> =
            sides.map(|(side, placed)| (side.name.to_owned(), functions(placed))).collect();
        Map::from_iter([("functions".to_owned(), Value::Object(functions))])
    }

    fn spins(&self, _: &Cell) -> bool {
        true
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let scope = match self.scope {
            Some(scope) => scope,
            None => *self.scope.insert(Scope::permitted()?),
        };
        let (_, policy, receive) = cell.one_of("way", WAYS, |way| way.0);
        let (_, pattern) = cell.one_of("workload", WORKLOADS, |workload| workload.0);
        let served = self.targets.get_with(bench, policy, receive)?;
        let load = bench.load(pattern, None, IO_BYTES, cell.word("depth"));
        let load = load.with_doorbell(policy).with_receive(receive);
        let whose = match &bench.server {
            Some(server) => [
                " on the host's machine".to_owned(),
                format!(" on the targets' machine, {}", server.address.ip()),
            ],
            None => [String::new(), String::new()],
        };
        let mut sampling = Sampling::new(bench, scope, served);
        let report = bench.run_watched(served, load, &mut || sampling.look())?.report;
        let samples = sampling.finish(&mut self.resolver);
        let mut values = values(&report);
        let times = [report.cpu.generator, report.cpu.target];
        for (side, sampled) in samples.into_iter().flatten().enumerate() {
            let sampled = match sampled {
                Ok(sampled) => sampled,
                Err(Error::Lacking(reason)) if side == 1 && bench.is_remote() => {
                    self.tell(format!("The layers of the target are n/a: {reason}."));
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Some(time) = times[side] {
                values.extend(by_layer(SIDES[side], &sampled.placed, time, sampled.scope));
            }
            self.add(side, &sampled, &whose[side]);
        }
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (way, ending) in [(SINGLE, ""), (CARAVANS, "_caravans")] {
            let name = cell_name("read", 128, way);
            let cell = measured.cell(&name);
            let of = |layer: Layer| cell?.median(HOST.layers[layer as usize]);
            let share = |us: Option<f64>| Some(us? / whole(cell?, &HOST)? * 100.0);
            let network = of(Layer::Transmit).zip(of(Layer::Receive)).map(|(send, receive)| send + receive);
            headlines.tell(format!("network_percent{ending}"), share(network));
            let ratio = of(Layer::Transmit).zip(of(Layer::Receive)).map(|(send, receive)| send / receive);
            headlines.tell(format!("transmit_over_receive{ending}"), ratio);
            headlines.tell(format!("scheduling_us{ending}"), of(Layer::Scheduling));
            headlines.tell(format!("copies_percent{ending}"), share(of(Layer::Copies)));
        }
        let others = measured.cells.iter().flat_map(|cell| {
            SIDES.into_iter().filter_map(|side| {
                let percent = |round: &Values| {
                    let of = |key: &&str| round.get(*key).copied();
                    let whole: f64 = side.layers.iter().map(of).sum::<Option<f64>>()?;
                    Some(of(&side.layers[Layer::Other as usize])? / whole * 100.0)
                };
                cell.median_of(&cell.rounds.iter().filter_map(percent).collect::<Vec<_>>())
            })
        });
        headlines.push("other_percent_max", others.max_by(f64::total_cmp), Some(OTHER_PERCENT));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (workload, _) in WORKLOADS {
            figures.extend(SIDES.map(|side| times(measured, workload, side)));
        }
        for (workload, _) in WORKLOADS {
            figures.extend(SIDES.map(|side| shares(measured, workload, side)));
        }
        figures
    }
}

/// The time of a side's operations.
fn times(measured: &Measured, workload: &str, side: &SideKeys) -> Figure {
    let plot = stacks(Axis::linear("µs per operation"), measured, workload, |cell, layer| {
        cell.spread(side.layers[layer as usize])
    });
    let note = format!(
        "Processor time of the {} per {workload} of 4 KiB. Single: one PDU in each send and receive. Lower is better.",
        side.name
    );
    Figure::new(format!("{} by layer: {workload}", capitalized(side.name)), note, plot)
}

/// The shares of the layers in that time.
fn shares(measured: &Measured, workload: &str, side: &SideKeys) -> Figure {
    let plot = stacks(Axis::linear("percent"), measured, workload, |cell, layer| {
        let of_round = |round: &Values| {
            let whole: f64 = side.layers.iter().filter_map(|key| round.get(key)).sum();
            // The kernel counts in ticks, and a side may have been given none.
            let part = round.get(side.layers[layer as usize])?;
            (whole > 0.0).then_some(part / whole * 100.0)
        };
        Spread::of(&cell.rounds.iter().filter_map(of_round).collect::<Vec<_>>())
    });
    let note = format!("The same for the {}, as shares of its processor time.", side.name);
    Figure::new(format!("{} in shares: {workload}", capitalized(side.name)), note, plot)
}

/// A bar for each depth and way.
fn stacks(
    y: Axis,
    measured: &Measured,
    workload: &str,
    value: impl Fn(&CellRounds, Layer) -> Option<Spread>,
) -> Plot {
    let bars = DEPTHS.into_iter().flat_map(|depth| WAYS.map(|(way, ..)| (depth, way)));
    let bars: Vec<_> = bars.collect();
    let series = Layer::ALL.into_iter().map(|layer| {
        let of = |&(depth, way): &(u32, &str)| value(measured.cell(&cell_name(workload, depth, way))?, layer);
        let values = bars.iter().enumerate().map(|(index, bar)| (index as f64, of(bar)));
        let series = Series::new(layer.name(), values);
        if layer == Layer::Other { series.as_reference() } else { series }
    });
    let names = bars.iter().map(|(depth, way)| format!("{depth} {way}")).collect();
    Plot::stacks("operations in flight", names, y, series.collect())
}

fn capitalized(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

/// Sum of a side's layers in a cell, of which its shares are taken.
fn whole(cell: &CellRounds, side: &SideKeys) -> Option<f64> {
    side.layers.iter().map(|key| cell.median(key)).sum()
}

/// The time of an operation, divided by the samples. Where the kernel is not sampled, its time is not named.
fn by_layer(side: &SideKeys, placed: &Placed, time: CpuShare, scope: Scope) -> Values {
    let mut values = Values::from([(side.samples, placed.total() as f64)]);
    if placed.total() == 0 {
        return values;
    }
    let us = match scope {
        Scope::All => time.ns_per_operation() / 1e3,
        Scope::User => time.user_ns_per_operation / 1e3,
    };
    for layer in Layer::ALL {
        let mut part = us * placed.count(layer) as f64 / placed.total() as f64;
        if layer == Layer::Unnamed && scope == Scope::User {
            part += time.system_ns_per_operation / 1e3;
        }
        values.insert(side.layers[layer as usize], part);
    }
    values
}

/// Share of each layer and of its functions in the side's samples, percent.
fn functions(placed: &Placed) -> Value {
    let percent = |count: u64| (count as f64 / placed.total().max(1) as f64 * 1e5).round() / 1e3;
    let layers = Layer::ALL.into_iter().map(|layer| {
        let max = if layer == Layer::Other { OTHER_FUNCTIONS_MAX } else { FUNCTIONS_MAX };
        let functions = placed.functions(layer).into_iter().take(max);
        let functions: Vec<_> =
            functions.map(|(name, count)| json!({ "function": name, "percent": percent(count) })).collect();
        let of_layer = json!({ "percent": percent(placed.count(layer)), "functions": functions });
        (layer.name().to_owned(), of_layer)
    });
    Value::Object(layers.collect())
}

/// The samplings of a measurement: they start when the warm-up is over.
struct Sampling<'a> {
    scope: Scope,
    served: &'a Served,
    times: Times,
    /// When the threads of the load were first seen.
    seen: Option<Instant>,
    sides: Option<(Result<ProcessSampling, Error>, Result<TargetSampling, Error>)>,
}

impl<'a> Sampling<'a> {
    fn new(bench: &Bench, scope: Scope, served: &'a Served) -> Self {
        Self { scope, served, times: bench.times, seen: None, sides: None }
    }

    /// Starts the samplings when it is time, and takes their samples.
    fn look(&mut self) {
        if let Some((host, target)) = &mut self.sides {
            if let Ok(host) = host {
                host.collect();
            }
            if let Ok(target) = target {
                target.collect();
            }
            return;
        }
        let since = self.seen.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.times.warm_up {
            let is_wanted = |name: &str| name == LOAD_THREAD;
            let host = ProcessSampling::start(std::process::id(), self.scope, is_wanted);
            self.sides = Some((host, self.served.sample(self.scope, self.times.measure)));
        }
    }

    /// Ends both: the samples of the host, then of the target. `None` if the measurement was over before they started.
    fn finish(self, resolver: &mut Resolver) -> Option<[Result<Sampled, Error>; 2]> {
        let (host, target) = self.sides?;
        // Functions get their names once both have ended.
        let ended = [host.map(TargetSampling::Here), target].map(|side| side.and_then(TargetSampling::end));
        Some(ended.map(|name| name.and_then(|name| name(resolver))))
    }
}

fn cell_name(workload: &str, depth: u32, way: &str) -> String {
    format!("{workload} qd{depth} {way}")
}

#[cfg(test)]
mod tests {
    use load::cpu::CpuTime;

    use super::*;
    use crate::experiments::testing::{headline_of, of_key};
    use crate::measured::of_rounds;

    /// As many samples of each layer as its place in the list, from 0 on.
    fn placed() -> Placed {
        let mut placed = Placed::default();
        for (index, layer) in Layer::ALL.into_iter().enumerate() {
            placed.add(layer, layer.name(), index as u64);
        }
        placed
    }

    fn time(user_ns: u64, system_ns: u64) -> CpuShare {
        CpuShare::new(CpuTime { user_ns, system_ns, ..CpuTime::default() }, 1_000_000, 10)
    }

    #[test]
    fn each_side_has_its_layers_behind_its_whole_time() {
        let of = |side: &SideKeys, whole| [&[whole], &side.layers[..]].concat();
        let expected = [vec!["iops"], of(&HOST, "host_us"), of(&TARGET, "target_us")].concat();
        assert_eq!(ABOUT.columns().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_layers_share_the_time_of_an_operation() {
        let values = by_layer(&HOST, &placed(), time(50_000, 500_000), Scope::All);
        assert_eq!(values["host_samples"], 55.0);
        assert_eq!((values["host_application_us"], values["host_nvme_us"]), (0.0, 1.0));
        let sum: f64 = HOST.layers.iter().map(|key| values[key]).sum();
        assert!((sum - 55.0).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn where_the_kernel_is_not_sampled_its_time_is_not_named() {
        let mut placed = Placed::default();
        placed.add(Layer::Application, "give_out", 1);
        placed.add(Layer::Nvme, "poll", 3);
        let values = by_layer(&TARGET, &placed, time(40_000, 500_000), Scope::User);
        assert_eq!((values["target_application_us"], values["target_nvme_us"]), (1.0, 3.0));
        assert_eq!(values["target_not_named_us"], 50.0);
    }

    #[test]
    fn no_samples_are_no_layers() {
        let values = by_layer(&HOST, &Placed::default(), time(1, 1), Scope::All);
        assert_eq!(values, Values::from([("host_samples", 0.0)]));
    }

    #[test]
    fn the_network_stack_is_compared_with_the_talk() {
        let headline = headline_of(&Layers::default(), |cell| {
            let factor = if cell.text("way") == SINGLE { 2.0 } else { 1.0 };
            let mut values = HOST.layers.map(|key| (key, 1.0));
            values[Layer::Transmit as usize].1 = 4.0 * factor;
            values[Layer::Receive as usize].1 = 2.0;
            values[Layer::Other as usize].1 = if cell.name == "write qd1 single" { 10.0 } else { 0.0 };
            values
        });
        // Of 8 layers with 1, transmit and receive.
        assert_eq!(of_key(&headline, "network_percent").value, 10.0 / 18.0 * 100.0);
        assert_eq!(of_key(&headline, "network_percent_caravans").value, 6.0 / 14.0 * 100.0);
        assert_eq!(of_key(&headline, "transmit_over_receive").value, 4.0);
        assert_eq!(of_key(&headline, "scheduling_us").value, 1.0);
        let other = of_key(&headline, "other_percent_max");
        assert!((other.value - 10.0 / 28.0 * 100.0).abs() < 1e-9);
        assert_eq!(other.is_reached(), Some(false));
    }

    #[test]
    fn each_side_and_direction_has_bars_without_layers_that_took_nothing() {
        let experiment = Layers::default();
        let round =
            |us: f64| vec![("host_nvme_us", us), ("host_receive_us", 2.0 * us), ("host_other_us", 0.0)];
        // In one round the host was given no time.
        let rounds = vec![round(0.0), round(1.0), round(1.0)];
        let cells = experiment.cells().into_iter().map(|cell| (cell, rounds.clone()));
        let figures = experiment.figures(&of_rounds(cells.collect()));
        let titles: Vec<_> = figures.iter().map(|figure| figure.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "Host by layer: read",
                "Target by layer: read",
                "Host by layer: write",
                "Target by layer: write",
                "Host in shares: read",
                "Target in shares: read",
                "Host in shares: write",
                "Target in shares: write",
            ]
        );
        let shown = |figure: &Figure| {
            let plot = &figure.plot;
            let shown = plot.series.iter().filter(|series| plot.shows(series));
            shown.map(|series| series.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(shown(&figures[0]), ["NVMe/TCP", "TCP receive"]);
        assert_eq!(shown(&figures[1]), [] as [&str; 0]);
        assert_eq!(figures[0].plot.stack_height(5.0), 3.0);
        assert!((figures[4].plot.stack_height(5.0) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn what_the_samples_lack_is_told_once_with_the_machine() {
        let mut layers = Layers { scope: Some(Scope::All), ..Layers::default() };
        let sampled = |lost, limits: &[&str]| Sampled {
            placed: placed(),
            scope: Scope::All,
            lost,
            limits: limits.iter().map(ToString::to_string).collect(),
        };
        let told = |layers: &Layers| layers.conditions(&Measured::default()).unwrap();
        assert_eq!(told(&layers), "Samples of cpu-clock every 199 µs: n/a of the host, n/a of the target.");
        for _ in 0..2 {
            layers.add(0, &sampled(0, &[]), " on the host's machine");
            layers.add(1, &sampled(3, &["no names"]), " on the targets' machine, 192.0.2.2");
        }
        assert_eq!(
            told(&layers),
            "Samples of cpu-clock every 199 µs: 110 of the host, 110 of the target (6 lost). \
             Not complete on the targets' machine, 192.0.2.2: no names."
        );
    }

    #[test]
    fn the_functions_of_each_layer_are_told_by_their_share() {
        let functions = functions(&placed());
        let copies = json!({ "percent": 10.909, "functions": [{ "function": "copies", "percent": 10.909 }] });
        assert_eq!(functions["copies"], copies);
        assert_eq!(functions["storage"]["percent"], json!(3.636));
    }
}
