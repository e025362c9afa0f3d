//! The changes that make a layout, in the order that the kernel and the drivers require.

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::config::{Config, PrioritySource, Side, Traffic};
use crate::driver::{Means, rules};
use crate::layout::{Layout, OTHER, PlacedClass, Refusal};
use crate::netlink::ethtool::Channels;
use crate::netlink::filter::{Effect, End, Filter, IpVersion};
use crate::state::{Device, State};

/// Filters of ours have preferences from here: those of others are usually lower.
const PREFERENCE_FIRST: u16 = 0xad00;

/// One step: a change, and why it stands where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The change.
    pub change: Change,
    /// Why it is needed, and why here.
    pub reason: String,
}

/// A plan for one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The device.
    pub device: Device,
    /// The classes and their queues.
    pub layout: Layout,
    /// Which end of the classes' connections this machine is.
    #[serde(default)]
    pub side: Side,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// What the layout does not do, and what may undo it.
    pub warnings: Vec<String>,
}

impl Plan {
    /// Plans `config` on `device`, whose settings are `state`.
    ///
    /// # Errors
    /// Each rule that the configuration breaks.
    pub fn new(config: &Config, device: &Device, state: &State) -> Result<Self, Vec<Refusal>> {
        let rules = rules(&device.driver);
        let layout = Layout::place(config, device, state, &rules)?;
        let mut steps = Vec::new();
        let mut step = |change: Change, reason: String| steps.push(Step { change, reason });

        if layout.means == Means::Channel {
            match state.features.get("hw-tc-offload") {
                Some(feature) if feature.is_on => {}
                Some(feature) if feature.is_changeable => step(
                    Change::Feature { name: "hw-tc-offload".into(), is_on: true },
                    "the driver refuses classes and filters without it".into(),
                ),
                _ => {
                    let interface = &device.identity.interface;
                    let rule = format!(
                        "{interface} cannot turn hw-tc-offload on: its driver or firmware has no offload"
                    );
                    return Err(vec![Refusal { rule, proposal: Some("a newer driver or firmware".into()) }]);
                }
            }
        }
        for (name, is_on, reason) in rules.private_flags {
            if state.private_flags.get(*name).is_some_and(|now| now != is_on) {
                step(Change::PrivateFlag { name: (*name).into(), is_on: *is_on }, (*reason).into());
            }
        }
        let wanted = channels_for(state, layout.queue_count());
        if wanted != state.channels.current {
            step(
                Change::Channels(wanted),
                "the number of queues cannot change while the classes exist, so it comes before them".into(),
            );
        }
        step(
            Change::AddMqprio(layout.mqprio()),
            match layout.means {
                Means::Channel => {
                    "divides the queue pairs into classes; the driver builds its queues again".into()
                }
                Means::Software => "divides the transmit queues into classes".into(),
            },
        );
        let filters = filters(config, &layout, state);
        if !filters.is_empty() && state.filter_holder.is_none() {
            step(Change::AddClsact, "holds the filters".into());
        }
        for (filter, class) in filters {
            let reason = match filter.effect {
                Effect::ReceiveClass(_) => {
                    format!("arriving packets of class {class} get its receive queues")
                }
                Effect::Priority(_) => format!("leaving packets of class {class} get its priority"),
            };
            step(Change::AddFilter(filter), reason);
        }
        for (irq, core, class) in interrupts(&layout, state) {
            step(
                Change::Interrupt { irq, cpus: core.to_string() },
                format!(
                    "a queue of class {class} interrupts the core of its reactor; new queues lose this, so it comes after mqprio"
                ),
            );
        }
        for class in &layout.classes {
            for queue in class.queues.first..class.queues.first + class.queues.count {
                step(
                    Change::symmetric(queue),
                    format!(
                        "class {} answers on the queue on which it was asked; mqprio resets this, so it comes last",
                        class.name
                    ),
                );
            }
        }
        let warnings = warnings(config, device, state, &layout);
        Ok(Self { device: device.clone(), layout, side: config.side, steps, warnings })
    }
}

/// Numbers of queues with `pairs` pairs, in the kinds that the device has.
fn channels_for(state: &State, pairs: u16) -> Channels {
    let mut channels = state.channels.current;
    let pairs = u32::from(pairs);
    if state.channels.max.combined > 0 {
        if channels.combined < pairs {
            channels.combined = pairs;
        }
    } else if state.channels.max.receive > 0 {
        channels.receive = channels.receive.max(pairs);
        channels.transmit = channels.transmit.max(pairs);
    }
    channels
}

/// The filters, each with the name of its class.
fn filters(config: &Config, layout: &Layout, state: &State) -> Vec<(Filter, String)> {
    let mut filters = Vec::new();
    let taken = |preference: u16| state.filters.iter().any(|listed| listed.preference == preference);
    let mut preferences = (PREFERENCE_FIRST..).filter(|preference| !taken(*preference));
    let mut next = || preferences.next().unwrap_or(u16::MAX);
    let of_versions = [(IpVersion::V4, next(), next()), (IpVersion::V6, next(), next())];
    let mut handles = std::collections::BTreeMap::new();
    for class in layout.classes.iter().filter(|class| class.name != OTHER) {
        let effects = effects(class, layout.means);
        for (effect, traffic) in
            effects.iter().flat_map(|effect| class.traffic.iter().map(move |traffic| (*effect, traffic)))
        {
            for (version, receive, leave) in of_versions {
                if !has_version(traffic, version) {
                    continue;
                }
                let is_receive = matches!(effect, Effect::ReceiveClass(_));
                let preference = if is_receive { receive } else { leave };
                let handle = handles.entry(preference).and_modify(|handle| *handle += 1).or_insert(1u32);
                let end = match (config.side, is_receive) {
                    (Side::Target, true) | (Side::Initiator, false) => End::Destination,
                    (Side::Target, false) | (Side::Initiator, true) => End::Source,
                };
                let (address, port) = (traffic.address, traffic.port);
                let filter = Filter { preference, handle: *handle, version, end, address, port, effect };
                filters.push((filter, class.name.clone()));
            }
        }
    }
    filters
}

fn effects(class: &PlacedClass, means: Means) -> Vec<Effect> {
    let mut effects = Vec::new();
    if means == Means::Channel {
        effects.push(Effect::ReceiveClass(class.priority));
    }
    if class.priority_source == PrioritySource::Filter {
        effects.push(Effect::Priority(class.priority.into()));
    }
    effects
}

fn has_version(traffic: &Traffic, version: IpVersion) -> bool {
    traffic.address.is_none_or(|address| address.is_ipv4() == (version == IpVersion::V4))
}

/// Interrupts to move: number, core, class.
fn interrupts(layout: &Layout, state: &State) -> Vec<(u32, u32, String)> {
    let mut moves = Vec::new();
    for class in &layout.classes {
        for (queue, core) in (class.queues.first..).zip(&class.cores) {
            for interrupt in state.interrupts.iter().filter(|interrupt| interrupt.queue == Some(queue)) {
                moves.push((interrupt.irq, *core, class.name.clone()));
            }
        }
    }
    moves
}

fn warnings(config: &Config, device: &Device, state: &State, layout: &Layout) -> Vec<String> {
    let mut warnings = Vec::new();
    if layout.means == Means::Software {
        warnings.push(format!(
            "{} has no offload of classes: this isolates transmit queues only; arriving packets are spread as before",
            device.driver
        ));
    }
    for opponent in &device.opponents {
        warnings.push(format!(
            "{opponent} is running and may undo the layout: stop it, or ban {} in it",
            device.identity.interface
        ));
    }
    for class in &layout.classes {
        if class.priority > 6 && class.priority_source == PrioritySource::Program {
            warnings.push(format!(
                "class {} has priority {}: a program needs CAP_NET_ADMIN for priorities above 6, or priority = \"filter\"",
                class.name, class.priority
            ));
        }
        if !class.cores.is_empty()
            && !(class.queues.first..class.queues.first + class.queues.count)
                .all(|queue| state.interrupts.iter().any(|interrupt| interrupt.queue == Some(queue)))
        {
            warnings.push(format!(
                "class {} names cores, but the interrupts of its queues cannot be told by their names; they stay",
                class.name
            ));
        }
    }
    if config.side == Side::Initiator && layout.means == Means::Channel {
        warnings
            .push("other connections of this machine to the same address and port get the class too".into());
    }
    warnings
}
