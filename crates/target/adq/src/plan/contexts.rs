//! The steps for drivers with RSS contexts, and obstacles to them on a device.

use super::Step;
use crate::change::Change;
use crate::config::{Config, Side};
use crate::driver::Rules;
use crate::layout::{Layout, OTHER, PlacedClass, Refusal};
use crate::netlink::filter::{End, IpVersion};
use crate::netlink::qdisc::QueueRange;
use crate::scaling::{Action, Flow, Rule, Table};
use crate::state::{Device, DeviceState, TransmitQueue, mask_of};

/// Obstacles to a layout with contexts on this device.
pub(super) fn refusals(
    config: &Config,
    layout: &Layout,
    device: &Device,
    state: &DeviceState,
    rules: &Rules,
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let (interface, driver) = (&device.identity.interface, &device.driver);
    if rules.needs_up && !device.is_up {
        refusals.push(Refusal::new(
            format!("{interface} is down: {driver} makes RSS contexts only while the interface is up"),
            format!("ip link set {interface} up"),
        ));
    }
    let length = state.scaling.table.len();
    for class in &layout.classes {
        let (name, count) = (&class.name, class.queues.count);
        if usize::from(count) > length {
            refusals.push(Refusal::new(
                format!(
                    "class \"{name}\" has {count} queues: the RSS table of {interface} has {length} entries"
                ),
                format!("{length} queues"),
            ));
        }
        if rules.needs_address
            && let Some(traffic) = class.traffic.iter().find(|traffic| traffic.address.is_none())
        {
            refusals.push(Refusal::new(
                format!(
                    "class \"{name}\": {driver} matches a port only together with an address, not {traffic}"
                ),
                format!("each address of this machine with port {}", traffic.port),
            ));
        }
    }
    refusals.extend(of_others(config, layout, state));
    refusals
}

/// Contexts and rules of others that lead into the queues of a class, or take its packets elsewhere.
fn of_others(config: &Config, layout: &Layout, state: &DeviceState) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let interface = &config.interface;
    let class_of = |queue: u64| {
        let mut classes = layout.classes.iter().filter(|class| class.name != OTHER);
        classes.find(|class| class.queue_numbers().any(|number| u64::from(number) == queue))
    };
    for (id, table) in state.scaling.contexts.iter().flatten() {
        if let Some(class) = table.iter().find_map(|queue| class_of((*queue).into())) {
            refusals.push(Refusal::new(
                format!("RSS context {id} of somebody spreads over queues of class \"{}\"", class.name),
                format!("ethtool -X {interface} context {id} delete"),
            ));
        }
    }
    let ours: Vec<_> = steering(config, layout).collect();
    for rule in &state.scaling.rules {
        let remedy = format!("ethtool -N {interface} delete {}", rule.location);
        if let Some((ours, class)) = ours.iter().find(|(ours, _)| rule.flow == Some(ours.flow)) {
            let rule = format!(
                "rule {} of somebody steers {}, traffic of class \"{}\"",
                rule.location,
                ours.described(),
                class.name
            );
            refusals.push(Refusal::new(rule, remedy));
        } else if let Action::Queue(queue) = rule.action
            && let Some(class) = class_of(queue)
        {
            let rule = format!(
                "rule {} of somebody leads to queue {queue} of class \"{}\"",
                rule.location, class.name
            );
            refusals.push(Refusal::new(rule, remedy));
        }
    }
    refusals
}

/// The steps: other traffic leaves the queues of the classes, each class gets a context, and its packets the context.
pub(super) fn steps(config: &Config, layout: &Layout) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut step = |change, reason: String| steps.push(Step { change, reason });
    for class in &layout.classes {
        if class.name == OTHER {
            step(
                Change::SetTable(Table::Queues(class.queues)),
                "arriving packets of other traffic leave the queues of the classes".into(),
            );
        } else {
            step(
                Change::AddContext(class.queues),
                format!("spreads arriving packets over the queues of class {}", class.name),
            );
        }
    }
    for (rule, class) in steering(config, layout) {
        step(
            Change::AddRule(rule),
            format!("arriving packets of class {} get its context, which therefore comes first", class.name),
        );
    }
    steps
}

/// The rules, each with its class.
fn steering<'a>(config: &Config, layout: &'a Layout) -> impl Iterator<Item = (Rule, &'a PlacedClass)> {
    let end = if config.side == Side::Target { End::Destination } else { End::Source };
    layout.classes.iter().flat_map(move |class| {
        class.traffic.iter().flat_map(move |traffic| {
            let versions = [IpVersion::V4, IpVersion::V6].into_iter();
            versions.filter(|version| super::has_version(traffic, *version)).map(move |version| {
                let flow = Flow { version, end, address: traffic.address, port: traffic.port };
                (Rule { flow, queues: class.queues }, class)
            })
        })
    })
}

/// The users of a transmit queue: the connections of its receive queue. Packets of no connection, and the first of a
/// connection, take the queues of other traffic, which share the processors.
pub(super) fn transmit_queue(queue: u16, other: QueueRange, device: &Device) -> Change {
    let is_other = (other.first..other.first + other.count).contains(&queue);
    let cpus = device.online_cpus.iter().zip((other.first..other.first + other.count).cycle());
    let cpus = cpus.filter(|(_, of)| is_other && *of == queue).map(|(cpu, _)| *cpu);
    let users = TransmitQueue { receive_queues: mask_of([queue]), cpus: mask_of(cpus) };
    Change::TransmitQueue { queue, users }
}
