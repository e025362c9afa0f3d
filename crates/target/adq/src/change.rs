//! One change of a device's settings: how to see that it holds, and how to take it back.

use serde::{Deserialize, Serialize};

use crate::moderation::{self, Moderation};
use crate::netlink::ethtool::Channels;
use crate::netlink::filter::{Effect, End, Filter};
use crate::netlink::qdisc::{Mqprio, Offload, QueueRange, RateRange};
use crate::rate::Rate;
use crate::scaling::{self, Rule, Table};
use crate::sock_ops::SocketProgram;
use crate::state::{DeviceState, TransmitQueue, mask_of};

/// Handle of our mqprio: the major number of a discipline that `tc` would choose last.
pub const MQPRIO_HANDLE: u32 = 0xad00_0000;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Turns a feature on or off.
    Feature {
        /// Its name in the kernel.
        name: String,
        /// The value.
        is_on: bool,
    },
    /// Sets a private flag of the driver.
    PrivateFlag {
        /// Its name.
        name: String,
        /// The value.
        is_on: bool,
    },
    /// Changes the numbers of queues.
    Channels(Channels),
    /// Makes mqprio the root discipline.
    AddMqprio(Mqprio),
    /// Deletes the root discipline; the kernel installs its default.
    DeleteRoot,
    /// Adds the holder of filters.
    AddClsact,
    /// Deletes the holder of filters.
    DeleteClsact,
    /// Adds a filter.
    AddFilter(Filter),
    /// Deletes a filter.
    DeleteFilter(Filter),
    /// Sets the table that spreads packets which no rule steers.
    SetTable(Table),
    /// Makes a context that spreads packets over these queues.
    AddContext(QueueRange),
    /// Deletes a context.
    DeleteContext(u32),
    /// Adds a rule that steers packets to a context.
    AddRule(Rule),
    /// Deletes the rule at a location.
    DeleteRule(u32),
    /// Sets how long interrupts are delayed.
    Moderation {
        /// The queue pair, or the whole device.
        queue: Option<u16>,
        /// The delays.
        wanted: Moderation,
    },
    /// Moves an interrupt to processors.
    Interrupt {
        /// Its number.
        irq: u32,
        /// The processors, as a list.
        cpus: String,
    },
    /// Chooses the users of a transmit queue.
    TransmitQueue {
        /// The queue.
        queue: u16,
        /// Its users.
        users: TransmitQueue,
    },
    /// Attaches a program of sockets to its control group.
    AttachProgram(SocketProgram),
    /// Detaches a program of sockets from its control group.
    DetachProgram(SocketProgram),
}

impl Change {
    /// The transmit queue `queue` serves the connections of the receive queue of the same number.
    #[must_use]
    pub fn symmetric(queue: u16) -> Self {
        Self::TransmitQueue {
            queue,
            users: TransmitQueue { receive_queues: mask_of([queue]), cpus: "0".into() },
        }
    }

    /// The difference of `state` from the change; `None` if it holds.
    #[must_use]
    pub fn deviation(&self, state: &DeviceState) -> Option<String> {
        match self {
            Self::Feature { name, is_on } => {
                let value = state.features.get(name).map(|feature| feature.is_on);
                (value != Some(*is_on)).then(|| format!("feature {name} is {}", on_off(value)))
            }
            Self::PrivateFlag { name, is_on } => {
                let value = state.private_flags.get(name).copied();
                (value != Some(*is_on)).then(|| format!("private flag {name} is {}", on_off(value)))
            }
            Self::Channels(channels) => {
                let now = state.channels.current;
                (now != *channels)
                    .then(|| format!("{} queue pairs instead of {}", now.pairs(), channels.pairs()))
            }
            Self::AddMqprio(wanted) => mqprio_deviation(wanted, state),
            Self::DeleteRoot => state.mqprio().map(|_| "mqprio is the root discipline".into()),
            Self::AddClsact => state.filter_holder.is_none().then(|| "no discipline holds filters".into()),
            Self::DeleteClsact => state.filter_holder.as_ref().map(|kind| format!("{kind} is present")),
            Self::AddFilter(filter) => match state.filters.iter().find(|listed| listed.is(filter)) {
                None => Some(format!("the filter for {} is missing", described(filter))),
                Some(listed) if is_receive(filter) && !listed.is_in_hardware => {
                    Some(format!("the filter for {} is not in the device", described(filter)))
                }
                Some(_) => None,
            },
            Self::DeleteFilter(filter) => state
                .filters
                .iter()
                .any(|listed| listed.is(filter))
                .then(|| format!("the filter for {} is present", described(filter))),
            Self::SetTable(table) => {
                scaling::table_deviation(table, &state.scaling, state.receive_queue_count)
            }
            Self::AddContext(queues) => scaling::context_deviation(*queues, &state.scaling),
            Self::DeleteContext(id) => state
                .scaling
                .contexts
                .as_ref()
                .is_some_and(|contexts| contexts.contains_key(id))
                .then(|| format!("RSS context {id} is present")),
            Self::AddRule(rule) => rule.deviation(&state.scaling),
            Self::DeleteRule(location) => state
                .scaling
                .rules
                .iter()
                .any(|listed| listed.location == *location)
                .then(|| format!("rule {location} is present")),
            Self::Moderation { queue, wanted } => moderation::deviation(*queue, *wanted, &state.moderations),
            Self::Interrupt { irq, cpus } => {
                match state.interrupts.iter().find(|interrupt| interrupt.irq == *irq) {
                    None => Some(format!("interrupt {irq} is gone")),
                    Some(interrupt) if interrupt.cpus != *cpus => Some(format!(
                        "interrupt {irq} goes to processors {} instead of {cpus}",
                        interrupt.cpus
                    )),
                    Some(_) => None,
                }
            }
            Self::TransmitQueue { queue, users } => match state.transmit_queues.get(usize::from(*queue)) {
                None => Some(format!("transmit queue {queue} is gone")),
                Some(now) if now != users => Some(format!(
                    "transmit queue {queue} serves receive queues {} and processors {} instead of {} and {}",
                    now.receive_queues, now.cpus, users.receive_queues, users.cpus
                )),
                Some(_) => None,
            },
            Self::AttachProgram(program) => program.deviation(&state.groups),
            Self::DetachProgram(program) => program
                .may_remain(&state.groups)
                .then(|| format!("the sock_ops program {} is attached to {}", program.name, program.group)),
        }
    }

    /// The changes that take it back: from the settings `now` to those `before` it, in order. Empty if nothing of the
    /// change is there. Settings of others are never touched: another root discipline, other filters.
    #[must_use]
    pub fn undo(&self, before: &DeviceState, now: &DeviceState) -> Vec<Self> {
        let mut changes = Vec::new();
        match self {
            Self::Feature { name, .. } => {
                if let (Some(before), Some(now)) = (before.features.get(name), now.features.get(name))
                    && before.is_on != now.is_on
                {
                    changes.push(Self::Feature { name: name.clone(), is_on: before.is_on });
                }
            }
            Self::PrivateFlag { name, .. } => {
                if let (Some(before), Some(now)) =
                    (before.private_flags.get(name), now.private_flags.get(name))
                    && before != now
                {
                    changes.push(Self::PrivateFlag { name: name.clone(), is_on: *before });
                }
            }
            Self::Channels(_) => {
                if now.channels.current != before.channels.current {
                    changes.push(Self::Channels(before.channels.current));
                }
            }
            Self::AddMqprio(ours) => {
                if now.root.as_ref().is_some_and(|root| {
                    root.handle == MQPRIO_HANDLE
                        && root.mqprio.as_ref().is_some_and(|mqprio| mqprio.queues == ours.queues)
                }) {
                    changes.push(Self::DeleteRoot);
                }
            }
            Self::AddClsact => {
                let is_ours =
                    before.filter_holder.is_none() && now.filter_holder.as_deref() == Some("clsact");
                if is_ours && now.filters.is_empty() {
                    changes.push(Self::DeleteClsact);
                }
            }
            Self::AddFilter(filter) => {
                if now.filters.iter().any(|listed| listed.is(filter)) {
                    changes.push(Self::DeleteFilter(*filter));
                }
            }
            Self::SetTable(_) => {
                let before = (&before.scaling, before.receive_queue_count);
                let now = (&now.scaling, now.receive_queue_count);
                changes.extend(scaling::undo_table(before, now).map(Self::SetTable));
            }
            Self::AddContext(queues) => {
                let remaining = scaling::remaining_contexts(*queues, &before.scaling, &now.scaling);
                changes.extend(remaining.into_iter().map(Self::DeleteContext));
            }
            Self::AddRule(rule) => {
                let remains = rule.remains(&before.scaling, &now.scaling);
                changes.extend(remains.into_iter().map(Self::DeleteRule));
            }
            Self::Moderation { queue, .. } => {
                let wanted = moderation::undo(*queue, &before.moderations, &now.moderations);
                changes.extend(wanted.map(|wanted| Self::Moderation { queue: *queue, wanted }));
            }
            Self::Interrupt { irq, .. } => {
                let of = |state: &DeviceState| {
                    state.interrupts.iter().find(|interrupt| interrupt.irq == *irq).cloned()
                };
                if let (Some(before), Some(now)) = (of(before), of(now))
                    && before.cpus != now.cpus
                {
                    changes.push(Self::Interrupt { irq: *irq, cpus: before.cpus });
                }
            }
            Self::TransmitQueue { queue, .. } => {
                let queue_index = usize::from(*queue);
                if let (Some(before), Some(now)) =
                    (before.transmit_queues.get(queue_index), now.transmit_queues.get(queue_index))
                    && before != now
                {
                    changes.push(Self::TransmitQueue { queue: *queue, users: before.clone() });
                }
            }
            Self::AttachProgram(program) => {
                if program.may_remain(&now.groups) {
                    changes.push(Self::DetachProgram(program.clone()));
                }
            }
            Self::DeleteRoot
            | Self::DetachProgram(_)
            | Self::DeleteClsact
            | Self::DeleteFilter(_)
            | Self::DeleteContext(_)
            | Self::DeleteRule(_) => {}
        }
        changes
    }

    /// The same change as a command, for copy and paste.
    #[must_use]
    pub fn command(&self, interface: &str) -> String {
        match self {
            Self::Feature { name, is_on } => {
                format!("ethtool -K {interface} {name} {}", on_off(Some(*is_on)))
            }
            Self::PrivateFlag { name, is_on } => {
                format!("ethtool --set-priv-flags {interface} {name} {}", on_off(Some(*is_on)))
            }
            Self::Channels(channels) => {
                let kinds =
                    [("rx", channels.receive), ("tx", channels.transmit), ("combined", channels.combined)];
                let counts: String = kinds
                    .iter()
                    .filter(|(_, count)| *count > 0)
                    .map(|(kind, count)| format!(" {kind} {count}"))
                    .collect();
                format!("ethtool -L {interface}{counts}")
            }
            Self::AddMqprio(mqprio) => mqprio_command(mqprio, interface),
            Self::DeleteRoot => format!("tc qdisc del dev {interface} root"),
            Self::AddClsact => format!("tc qdisc add dev {interface} clsact"),
            Self::DeleteClsact => format!("tc qdisc del dev {interface} clsact"),
            Self::AddFilter(filter) => {
                let effect = match filter.effect {
                    Effect::ReceiveClass(class) => format!("skip_sw hw_tc {class}"),
                    Effect::Priority(priority) => format!("action skbedit priority {priority}"),
                };
                format!("tc filter add dev {interface} {} flower{} {effect}", place(filter), keys(filter))
            }
            Self::DeleteFilter(filter) => format!("tc filter del dev {interface} {} flower", place(filter)),
            Self::SetTable(table) => scaling::table_command(table, interface),
            Self::AddContext(queues) => {
                format!("ethtool -X {interface} context new start {} equal {}", queues.first, queues.count)
            }
            Self::DeleteContext(id) => format!("ethtool -X {interface} context {id} delete"),
            Self::AddRule(rule) => scaling::rule_command(rule, interface),
            Self::DeleteRule(location) => format!("ethtool -N {interface} delete {location}"),
            Self::Moderation { queue, wanted } => moderation::command(*queue, *wanted, interface),
            Self::Interrupt { irq, cpus } => format!("echo {cpus} > /proc/irq/{irq}/smp_affinity_list"),
            Self::TransmitQueue { queue, users } => format!(
                "cd /sys/class/net/{interface}/queues/tx-{queue} && echo {} > xps_cpus && echo {} > xps_rxqs",
                users.cpus, users.receive_queues
            ),
            // No tool has a command for a program that is in no file.
            Self::AttachProgram(SocketProgram { name, group, .. }) => {
                format!(
                    "# bpf(BPF_PROG_LOAD), bpf(BPF_PROG_ATTACH): see `bpftool cgroup show {group}`, {name}"
                )
            }
            Self::DetachProgram(SocketProgram { name, group, .. }) => {
                format!("bpftool cgroup detach {group} sock_ops name {name}")
            }
        }
    }
}

fn on_off(value: Option<bool>) -> &'static str {
    match value {
        Some(true) => "on",
        Some(false) => "off",
        None => "missing",
    }
}

fn is_receive(filter: &Filter) -> bool {
    matches!(filter.effect, Effect::ReceiveClass(_))
}

fn described(filter: &Filter) -> String {
    let address = filter
        .address
        .map_or_else(|| format!("any {} address", filter.version.name()), |address| address.to_string());
    format!("port {} of {address}", filter.port)
}

fn place(filter: &Filter) -> String {
    let side = if is_receive(filter) { "ingress" } else { "egress" };
    format!("{side} protocol {} prio {} handle {}", filter.version.name(), filter.preference, filter.handle)
}

fn keys(filter: &Filter) -> String {
    let end = if filter.end == End::Source { "src" } else { "dst" };
    let address = filter.address.map(|address| format!(" {end}_ip {address}")).unwrap_or_default();
    format!("{address} ip_proto tcp {end}_port {}", filter.port)
}

fn mqprio_deviation(wanted: &Mqprio, state: &DeviceState) -> Option<String> {
    let Some(now) = state.mqprio() else {
        let kind = state.root.as_ref().map_or("noqueue", |root| root.kind.as_str());
        return Some(format!("the root discipline is {kind} instead of mqprio"));
    };
    if now.queues != wanted.queues {
        return Some(format!("the classes have queues {} instead of {}", queues(now), queues(wanted)));
    }
    if now.classes_of_priorities != wanted.classes_of_priorities {
        // A change of the number of queues leaves the classes in the list and empties this map.
        return Some("the map from priorities to classes is another one".into());
    }
    if now.offload != wanted.offload {
        return Some("the device does not carry mqprio out".into());
    }
    // A driver may round rates; one that lost them reports none.
    (now.rates.is_empty() != wanted.rates.is_empty()).then(|| "the rates of the classes are gone".into())
}

fn queues(mqprio: &Mqprio) -> String {
    let ranges: Vec<_> =
        mqprio.queues.iter().map(|queues| format!("{}@{}", queues.count, queues.first)).collect();
    ranges.join(" ")
}

fn mqprio_command(mqprio: &Mqprio, interface: &str) -> String {
    let map: Vec<_> = mqprio.classes_of_priorities.iter().map(ToString::to_string).collect();
    let head = format!(
        "tc qdisc add dev {interface} root handle {:x}: mqprio num_tc {} map {} queues {}",
        MQPRIO_HANDLE >> 16,
        mqprio.queues.len(),
        map.join(" "),
        queues(mqprio)
    );
    let rates = |rate: fn(&RateRange) -> u64| -> String {
        mqprio.rates.iter().map(|range| format!(" {}", Rate::from_bits(rate(range) * 8))).collect()
    };
    match mqprio.offload {
        Offload::Software => format!("{head} hw 0"),
        Offload::Channel if mqprio.rates.is_empty() => format!("{head} hw 1 mode channel"),
        Offload::Channel => format!(
            "{head} hw 1 mode channel shaper bw_rlimit min_rate{} max_rate{}",
            rates(|range| range.min),
            rates(|range| range.max)
        ),
    }
}
