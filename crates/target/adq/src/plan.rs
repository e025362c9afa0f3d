//! The changes that make a layout, in the order that the kernel and the drivers require.

mod contexts;

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::config::{Config, PrioritySource, Side, Traffic};
use crate::control_group::Group;
use crate::driver::{Means, Rules, rules};
use crate::layout::{Layout, OTHER, PlacedClass, Refusal};
use crate::moderation::{Delay, Moderation, Moderations};
use crate::netlink::ethtool::Channels;
use crate::netlink::filter::{Effect, End, Filter, IpVersion};
use crate::opponent;
use crate::scaling::{self, Table};
use crate::sock_ops::{RULE_COUNT_MAX, SocketProgram, SocketRule};
use crate::state::{Device, DeviceState};

/// Filters of ours have preferences from here: those of others are usually lower.
const PREFERENCE_FIRST: u16 = 0xad00;

/// One step: a change, and the reason for it and its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The change.
    pub change: Change,
    /// Why it is needed, and why in this place.
    pub reason: String,
}

/// A plan for one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The device.
    pub device: Device,
    /// The classes and their queues.
    pub layout: Layout,
    /// The end of the classes' connections that this machine is.
    #[serde(default)]
    pub side: Side,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Limits of the layout, and causes that may undo it.
    pub warnings: Vec<String>,
}

impl Plan {
    /// Plans `config` on `device`, whose settings are `state`.
    ///
    /// # Errors
    /// Each rule that the configuration breaks.
    pub fn new(config: &Config, device: &Device, state: &DeviceState) -> Result<Self, Vec<Refusal>> {
        let rules = rules(&device.driver, state.scaling.contexts.is_some());
        let layout = Layout::place(config, device, state, &rules)?;
        let mut steps = Vec::new();
        let mut step = |change: Change, reason: String| steps.push(Step { change, reason });

        let feature = match layout.means {
            Means::Channel => Some(("hw-tc-offload", "the driver refuses classes and filters without it")),
            Means::Contexts => Some(("rx-ntuple-filter", "the driver refuses rules without it")),
            Means::Software => None,
        };
        if let Some((name, reason)) = feature {
            match state.features.get(name) {
                Some(feature) if feature.is_on => {}
                Some(feature) if feature.is_changeable => {
                    step(Change::Feature { name: name.into(), is_on: true }, reason.into());
                }
                _ => {
                    let interface = &device.identity.interface;
                    let rule =
                        format!("{interface} cannot turn {name} on: its driver or firmware has no offload");
                    return Err(vec![Refusal { rule, proposal: Some("a newer driver or firmware".into()) }]);
                }
            }
        }
        for (name, is_on, reason) in rules.private_flags {
            if state.private_flags.get(*name).is_some_and(|now| now != is_on) {
                step(Change::PrivateFlag { name: (*name).into(), is_on: *is_on }, (*reason).into());
            }
        }
        if layout.means == Means::Contexts {
            let refusals = contexts::refusals(config, &layout, device, state, &rules);
            if !refusals.is_empty() {
                return Err(refusals);
            }
        }
        let wanted = channels_for(state, layout.queue_count());
        if wanted != state.channels.current {
            if layout.means == Means::Contexts
                && scaling::table_deviation(&Table::Default, &state.scaling, state.receive_queue_count)
                    .is_some()
            {
                step(
                    Change::SetTable(Table::Default),
                    "a table that somebody has set keeps some drivers from changing the number of queues"
                        .into(),
                );
            }
            let reason = match layout.means {
                Means::Contexts => "contexts spread over queues that are there, so it comes before them",
                Means::Channel | Means::Software => {
                    "the number of queues cannot change while the classes exist, so it comes before them"
                }
            };
            step(Change::Channels(wanted), reason.into());
        }
        match layout.means {
            Means::Contexts => {}
            Means::Channel => step(
                Change::AddMqprio(layout.mqprio()),
                "divides the queue pairs into classes; the driver builds its queues again".into(),
            ),
            Means::Software => {
                step(Change::AddMqprio(layout.mqprio()), "divides the transmit queues into classes".into());
            }
        }
        let filters = filters(config, &layout, state, &rules);
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
        if layout.means == Means::Contexts {
            for Step { change, reason } in contexts::steps(config, &layout) {
                step(change, reason);
            }
        }
        for (change, class) in moderations(&layout, device, state)? {
            step(
                change,
                format!("interrupts of class {class} come as late as it wants; new queues lose this too"),
            );
        }
        for (irq, core, class) in interrupts(&layout, state) {
            step(
                Change::Interrupt { irq, cpus: core.to_string() },
                format!(
                    "a queue of class {class} interrupts the core of its reactor; new queues lose this, so it comes after them"
                ),
            );
        }
        let other = layout.classes.first().map(|class| class.queues).unwrap_or_default();
        for class in &layout.classes {
            for queue in class.queue_numbers() {
                let (change, reset) = match layout.means {
                    Means::Contexts => {
                        (contexts::transmit_queue(queue, other, device), "a change of the queues")
                    }
                    Means::Channel | Means::Software => (Change::symmetric(queue), "mqprio"),
                };
                step(
                    change,
                    format!(
                        "class {} answers on the queue on which it was asked; {reset} resets this, so it comes last",
                        class.name
                    ),
                );
            }
        }
        if let Some(program) = socket_program(config, &layout, device, state)? {
            step(
                Change::AttachProgram(program),
                "sockets get the priority of their class as they connect or are accepted; those of before keep theirs"
                    .into(),
            );
        }
        let warnings = warnings(config, device, state, &layout);
        Ok(Self { device: device.clone(), layout, side: config.side, steps, warnings })
    }
}

impl Plan {
    /// The control groups that have programs of the layout.
    #[must_use]
    pub fn groups(&self) -> Vec<String> {
        let group = |step: &Step| match &step.change {
            Change::AttachProgram(program) => Some(program.group.clone()),
            _ => None,
        };
        self.steps.iter().filter_map(group).collect()
    }

    /// The steps that hold once all are done: without a table that a later step replaces.
    pub fn lasting_steps(&self) -> impl Iterator<Item = &Step> {
        let sets_table = |step: &Step| matches!(step.change, Change::SetTable(_));
        let last_table = self.steps.iter().rposition(sets_table);
        let steps = self.steps.iter().enumerate();
        steps.filter(move |(at, step)| !sets_table(step) || Some(*at) == last_table).map(|(_, step)| step)
    }
}

/// Numbers of queues with `pairs` pairs, in the kinds that the device has.
fn channels_for(state: &DeviceState, pairs: u16) -> Channels {
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
fn filters(config: &Config, layout: &Layout, state: &DeviceState, rules: &Rules) -> Vec<(Filter, String)> {
    let mut filters = Vec::new();
    let taken = |preference: u16| state.filters.iter().any(|listed| listed.preference == preference);
    let first = if rules.has_preference_per_filter { 1 } else { PREFERENCE_FIRST };
    let mut preferences = (first..).filter(|preference| !taken(*preference));
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
                let preference = match is_receive {
                    _ if rules.has_preference_per_filter => next(),
                    true => receive,
                    false => leave,
                };
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
    if class.priority_source == PrioritySource::Filter && means != Means::Contexts {
        effects.push(Effect::Priority(class.priority.into()));
    }
    effects
}

fn has_version(traffic: &Traffic, version: IpVersion) -> bool {
    traffic.address.is_none_or(|address| address.is_ipv4() == (version == IpVersion::V4))
}

/// The program that gives sockets their priority, if a class wants one.
///
/// # Errors
/// There is no control group for it, or the kernel has no such programs.
fn socket_program(
    config: &Config,
    layout: &Layout,
    device: &Device,
    state: &DeviceState,
) -> Result<Option<SocketProgram>, Vec<Refusal>> {
    let group = config.cgroup.as_ref().or(device.cgroup.as_ref());
    let interface = &device.identity.interface;
    let name_of_group = group.map_or("", String::as_str);
    let rules = socket_rules(layout);
    if rules.is_empty() {
        return Ok(None);
    }
    let program = SocketProgram::new(rules, config.side, interface, name_of_group, device.network);
    let refusal = |rule: String| Err(vec![Refusal::new(rule, "priority = \"filter\"")]);
    if group.is_none() {
        return refusal(
            "sock_ops programs belong to control groups of version 2, and none is mounted".into(),
        );
    }
    if device.network == 0 {
        return refusal(
            "this kernel does not tell network namespaces apart, so sock_ops would change others' sockets"
                .into(),
        );
    }
    if program.rules.len() > RULE_COUNT_MAX {
        let count = program.rules.len();
        return refusal(format!(
            "{count} addresses and ports: a sock_ops program takes at most {RULE_COUNT_MAX}"
        ));
    }
    match state.groups.get(&program.group) {
        Some(Group::Unusable(reason)) => {
            refusal(format!("no sock_ops program for {}: {reason}", program.group))
        }
        _ => Ok(Some(program)),
    }
}

/// The priorities of the classes that get them from a program of sockets.
fn socket_rules(layout: &Layout) -> Vec<SocketRule> {
    if layout.means == Means::Contexts {
        return Vec::new();
    }
    let classes = layout.classes.iter().filter(|class| class.priority_source == PrioritySource::SockOps);
    let rules = classes.flat_map(|class| {
        let priority = class.priority;
        class.traffic.iter().map(move |traffic| SocketRule { traffic: *traffic, priority })
    });
    rules.collect()
}

/// Interrupts to move: number, core, class.
fn interrupts(layout: &Layout, state: &DeviceState) -> Vec<(u32, u32, String)> {
    let mut moves = Vec::new();
    for class in &layout.classes {
        for (queue, core) in class.queue_numbers().zip(&class.cores) {
            for interrupt in state.interrupts.iter().filter(|interrupt| interrupt.queue == Some(queue)) {
                moves.push((interrupt.irq, *core, class.name.clone()));
            }
        }
    }
    moves
}

/// Delays of interrupts, each with the name of its class.
///
/// # Errors
/// The device has none, or one for all queues while classes want several.
fn moderations(
    layout: &Layout,
    device: &Device,
    state: &DeviceState,
) -> Result<Vec<(Change, String)>, Vec<Refusal>> {
    let fixed = |us| Delay { us, is_adaptive: false };
    let wanted = layout.classes.iter().filter_map(|class| {
        let delay = class.interrupt_delay?;
        let receive = fixed(delay.receive_us);
        Some((class, Moderation { receive, transmit: fixed(delay.transmit_us) }))
    });
    let wanted: Vec<_> = wanted.collect();
    let Some((first, moderation)) = wanted.first().copied() else { return Ok(Vec::new()) };
    let driver = &device.driver;
    match &state.moderations {
        Moderations::None => Err(vec![Refusal::new(
            format!("class \"{}\": {driver} delays no interrupts", first.name),
            "leave interrupt_delay out",
        )]),
        Moderations::Device(_) => match wanted.iter().find(|(_, other)| *other != moderation) {
            Some((other, _)) => Err(vec![Refusal::new(
                format!(
                    "classes \"{}\" and \"{}\" want different delays of interrupts: {driver} has one for all queues",
                    first.name, other.name
                ),
                "the same interrupt_delay in both, or in one of them",
            )]),
            None => Ok(vec![(Change::Moderation { queue: None, wanted: moderation }, first.name.clone())]),
        },
        Moderations::Queues(_) => Ok(wanted
            .into_iter()
            .flat_map(|(class, wanted)| {
                class
                    .queue_numbers()
                    .map(move |queue| (Change::Moderation { queue: Some(queue), wanted }, class.name.clone()))
            })
            .collect()),
    }
}

fn warnings(config: &Config, device: &Device, state: &DeviceState, layout: &Layout) -> Vec<String> {
    let mut warnings = Vec::new();
    if layout.means == Means::Software {
        warnings.push(format!(
            "{} has no offload of classes: this isolates transmit queues only; arriving packets are spread as before",
            device.driver
        ));
    }
    if layout.classes.iter().any(|class| class.interrupt_delay.is_some())
        && matches!(state.moderations, Moderations::Device(_))
    {
        warnings.push(format!(
            "{} delays the interrupts of all queues alike: interrupt_delay applies to other traffic too",
            device.driver
        ));
    }
    for opponent in &device.opponents {
        let interface = &device.identity.interface;
        warnings.push(format!(
            "{}: {}",
            opponent::effect(opponent, interface),
            opponent::remedy(opponent, interface)
        ));
    }
    for class in &layout.classes {
        if class.priority > 6
            && class.priority_source == PrioritySource::Program
            && layout.means != Means::Contexts
        {
            warnings.push(format!(
                "class {} has priority {}: a program needs CAP_NET_ADMIN for priorities above 6, or priority = \"filter\"",
                class.name, class.priority
            ));
        }
        if !class.cores.is_empty()
            && !class
                .queue_numbers()
                .all(|queue| state.interrupts.iter().any(|interrupt| interrupt.queue == Some(queue)))
        {
            warnings.push(format!(
                "class {} names cores, but the interrupts of its queues cannot be told by their names; they stay",
                class.name
            ));
        }
    }
    if config.side == Side::Initiator && layout.means != Means::Software {
        warnings
            .push("other connections of this machine to the same address and port get the class too".into());
    }
    warnings
}
