//! A configuration placed on a device: which queues each class has, or why that cannot work.

use serde::{Deserialize, Serialize};

use crate::change::MQPRIO_HANDLE;
use crate::config::{Class, Config, InterruptDelay, PrioritySource, Traffic};
use crate::driver::{Means, QueueCounts, Rates, Rules};
use crate::netlink::qdisc::{CLASS_COUNT_MAX, Mqprio, Offload, QueueRange, RateRange};
use crate::rate::Rate;
use crate::state::{Device, DeviceState};

/// Name of the class of all traffic that no class matches.
pub const OTHER: &str = "other";

/// A class and its queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedClass {
    /// Its name.
    pub name: String,
    /// Its queue pairs.
    pub queues: QueueRange,
    /// The priority of its sockets; also its number on the device.
    pub priority: u8,
    /// Its minimum rate.
    pub min_rate: Option<Rate>,
    /// Its maximum rate.
    pub max_rate: Option<Rate>,
    /// Its traffic.
    pub traffic: Vec<Traffic>,
    /// The source of the priority of its packets.
    pub priority_source: PrioritySource,
    /// Cores that take its interrupts, one per queue, or none.
    pub cores: Vec<u32>,
    /// The delay of its interrupts, if that is set.
    #[serde(default)]
    pub interrupt_delay: Option<InterruptDelay>,
}

/// The classes of a device; the first has all traffic that no other matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// How the device separates them.
    pub means: Means,
    /// The classes, in order of their queues.
    pub classes: Vec<PlacedClass>,
}

/// A rule that the configuration breaks on this device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{rule}{}", proposal.as_ref().map(|proposal| format!(" (instead: {proposal})")).unwrap_or_default())]
pub struct Refusal {
    /// The rule, and what breaks it.
    pub rule: String,
    /// A configuration that would work.
    pub proposal: Option<String>,
}

impl Refusal {
    pub(crate) fn new(rule: impl Into<String>, proposal: impl Into<String>) -> Self {
        Self { rule: rule.into(), proposal: Some(proposal.into()) }
    }

    pub(crate) fn alone(rule: impl Into<String>) -> Self {
        Self { rule: rule.into(), proposal: None }
    }
}

impl PlacedClass {
    /// The numbers of its queues.
    pub fn queue_numbers(&self) -> impl Iterator<Item = u16> + use<> {
        self.queues.first..self.queues.first.saturating_add(self.queues.count)
    }
}

impl Layout {
    /// Places the classes of `config` on a device with the settings `state`, by the driver's `rules`.
    ///
    /// # Errors
    /// Each rule that the configuration breaks.
    pub fn place(
        config: &Config,
        device: &Device,
        state: &DeviceState,
        rules: &Rules,
    ) -> Result<Self, Vec<Refusal>> {
        let mut refusals = device_refusals(device, state);
        if rules.excludes_rules && !state.scaling.rules.is_empty() {
            let locations: Vec<_> =
                state.scaling.rules.iter().map(|rule| rule.location.to_string()).collect();
            refusals.push(Refusal::new(
                format!("{} takes no classes beside n-tuple rules: {}", device.driver, locations.join(", ")),
                format!("ethtool -N {} delete each of them", device.identity.interface),
            ));
        }
        refusals.extend(rate_refusals(config, device, rules));
        let class_count = config.classes.len() + 1;
        if class_count > rules.class_count_max {
            let possible = rules.class_count_max - 1;
            refusals.push(Refusal::new(
                format!("{} has at most {possible} classes besides the one for other traffic", device.driver),
                "unite classes, or leave some in the class for other traffic",
            ));
        }
        match queue_counts(config, device, state, rules) {
            _ if state.queue_pairs_max() < 2 => Err(refusals),
            Ok(counts) if refusals.is_empty() => {
                Ok(Self { means: rules.means, classes: placed(config, &counts) })
            }
            Ok(_) => Err(refusals),
            Err(refusal) => {
                refusals.push(refusal);
                Err(refusals)
            }
        }
    }

    /// Queue pairs of all classes.
    #[must_use]
    pub fn queue_count(&self) -> u16 {
        self.classes.iter().map(|class| class.queues.count).sum()
    }

    /// mqprio for this layout.
    #[must_use]
    pub fn mqprio(&self) -> Mqprio {
        let mut classes_of_priorities = [0; CLASS_COUNT_MAX];
        for class in &self.classes {
            classes_of_priorities[usize::from(class.priority)] = class.priority;
        }
        let has_rates = self.classes.iter().any(|class| class.min_rate.is_some() || class.max_rate.is_some());
        let bytes = |rate: Option<Rate>| rate.map_or(0, Rate::bytes);
        let rates = self
            .classes
            .iter()
            .filter(|_| has_rates)
            .map(|class| RateRange { min: bytes(class.min_rate), max: bytes(class.max_rate) })
            .collect();
        Mqprio {
            classes_of_priorities,
            queues: self.classes.iter().map(|class| class.queues).collect(),
            offload: match self.means {
                Means::Channel => Offload::Channel,
                Means::Software | Means::Contexts => Offload::Software,
            },
            rates,
        }
    }
}

fn placed(config: &Config, counts: &[u16]) -> Vec<PlacedClass> {
    let other = PlacedClass {
        name: OTHER.into(),
        queues: QueueRange { first: 0, count: counts[0] },
        priority: 0,
        min_rate: None,
        max_rate: None,
        traffic: Vec::new(),
        priority_source: PrioritySource::Program,
        cores: Vec::new(),
        interrupt_delay: None,
    };
    let mut classes = vec![other];
    let mut first = counts[0];
    for (number, (class, count)) in (1..).zip(config.classes.iter().zip(&counts[1..])) {
        let Class {
            name,
            min_rate,
            max_rate,
            traffic,
            priority: priority_source,
            cores,
            interrupt_delay,
            ..
        } = class.clone();
        let queues = QueueRange { first, count: *count };
        classes.push(PlacedClass {
            name,
            queues,
            priority: number,
            min_rate,
            max_rate,
            traffic,
            priority_source,
            cores,
            interrupt_delay,
        });
        first += count;
    }
    classes
}

/// Problems of the device itself, whatever the classes.
fn device_refusals(device: &Device, state: &DeviceState) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let interface = &device.identity.interface;
    if let Some(lower) = &device.lower {
        refusals.push(Refusal::new(
            format!("{interface} lies on {lower} and has no queues of its own"),
            format!("--interface {lower}"),
        ));
    }
    if let Some(master) = &device.master {
        refusals.push(Refusal::new(
            format!("{interface} is a port of {master}, which chooses the port of each packet"),
            format!("take {interface} out of {master}"),
        ));
    }
    if let Some(root) = &state.root
        && root.handle != 0
    {
        refusals.push(if root.handle == MQPRIO_HANDLE {
            let remedy = format!("nvlane adq remove --interface {interface}");
            Refusal::new(format!("{interface} has a layout; it cannot be changed: remove it first"), remedy)
        } else {
            let kind = &root.kind;
            let rule =
                format!("the root queueing discipline of {interface} is {kind} and was set by somebody");
            Refusal::new(rule, format!("tc qdisc del dev {interface} root"))
        });
    }
    if state.queue_pairs_max() < 2 {
        refusals.push(Refusal::alone(format!(
            "{interface} has one queue pair; two classes need at least two (a virtual device may get more from its host)"
        )));
    }
    refusals
}

fn rate_refusals(config: &Config, device: &Device, rules: &Rules) -> Vec<Refusal> {
    let driver = &device.driver;
    let mut refusals = Vec::new();
    let mut min_sum = 0u64;
    for class in &config.classes {
        let rates = [
            ("minimum", class.min_rate, matches!(rules.rates, Rates::MinAndMax(_))),
            ("maximum", class.max_rate, !matches!(rules.rates, Rates::None)),
        ];
        for (kind, rate, is_possible) in rates {
            let Some(rate) = rate.filter(|rate| rate.bits() > 0) else { continue };
            let name = &class.name;
            if !is_possible {
                refusals.push(Refusal::new(
                    format!("class \"{name}\": {driver} has no {kind} rates"),
                    format!("leave the {kind} rate out"),
                ));
                continue;
            }
            let (Rates::Max(unit) | Rates::MinAndMax(unit)) = rules.rates else { continue };
            if !rate.bits().is_multiple_of(unit.bits()) {
                let nearest = Rate::from_bits(rate.bits().next_multiple_of(unit.bits()));
                refusals.push(Refusal::new(
                    format!("class \"{name}\": {driver} takes rates in steps of {unit}, not {rate}"),
                    nearest.to_string(),
                ));
            }
            if let Some(speed) = device.speed
                && rate > speed
            {
                refusals.push(Refusal::new(
                    format!("class \"{name}\": {rate} is above the link's {speed}"),
                    speed.to_string(),
                ));
            }
            if kind == "minimum" {
                min_sum = min_sum.saturating_add(rate.bits());
            }
        }
    }
    if let Some(speed) = device.speed
        && min_sum > speed.bits()
    {
        let sum = Rate::from_bits(min_sum);
        refusals
            .push(Refusal::alone(format!("the minimum rates are {sum} together, above the link's {speed}")));
    }
    refusals
}

/// The queue pairs of each class, the one for other traffic first.
fn queue_counts(
    config: &Config,
    device: &Device,
    state: &DeviceState,
    rules: &Rules,
) -> Result<Vec<u16>, Refusal> {
    let possible = state.queue_pairs_max();
    let wanted: u32 = config.classes.iter().map(|class| u32::from(class.queues)).sum();
    let interface = &device.identity.interface;
    let remaining = u32::from(possible).saturating_sub(wanted);
    if remaining == 0 {
        return Err(Refusal::new(
            format!(
                "{interface} has {possible} queue pairs; the classes take {wanted} and leave none for other traffic"
            ),
            format!("{} queue pairs for all classes together", possible.saturating_sub(1)),
        ));
    }
    let remaining = u16::try_from(remaining).unwrap_or(u16::MAX);
    let other = match config.other_queues {
        Some(0) => return Err(Refusal::new("other traffic needs a queue pair", "other_queues = 1")),
        Some(other) if other > remaining => {
            return Err(Refusal::new(
                format!(
                    "{interface} has {possible} queue pairs; the classes leave {remaining} for other traffic, not {other}"
                ),
                format!("other_queues = {remaining}"),
            ));
        }
        Some(other) => other,
        None => {
            let cpus = u16::try_from(device.cpu_count).unwrap_or(u16::MAX);
            let sensible = remaining.min(cpus.max(1));
            match rules.queue_counts {
                QueueCounts::PowersOfTwo | QueueCounts::PowersOfTwoAndLargest => 1 << sensible.ilog2(),
                QueueCounts::Any => sensible,
            }
        }
    };
    let counts: Vec<u16> =
        std::iter::once(other).chain(config.classes.iter().map(|class| class.queues)).collect();
    match rules.queue_counts {
        QueueCounts::Any => {}
        QueueCounts::PowersOfTwo => check_powers_of_two(config, device, &counts, 0)?,
        QueueCounts::PowersOfTwoAndLargest => {
            let largest = counts.iter().copied().max().unwrap_or(0);
            check_powers_of_two(config, device, &counts, largest)?;
        }
    }
    Ok(counts)
}

/// Refuses numbers that are no powers of two, except for `other`, if that is not 0.
fn check_powers_of_two(config: &Config, device: &Device, counts: &[u16], other: u16) -> Result<(), Refusal> {
    let is_wrong = |count: u16| !count.is_power_of_two() && count != other;
    let Some(class) = counts.iter().position(|count| is_wrong(*count)) else { return Ok(()) };
    let name = class.checked_sub(1).map_or(OTHER, |class| &config.classes[class].name);
    let count = counts[class];
    let lower = 1u16 << count.ilog2();
    let exception = if other == 0 { "" } else { "; one other number is possible if it is the largest" };
    Err(Refusal::new(
        format!("class \"{name}\" has {count} queues: {} takes powers of two{exception}", device.driver),
        format!("{lower} or {} queues", u32::from(lower) * 2),
    ))
}
