//! A device and its kernel as facts in memory, with the kernel's side effects.

use std::collections::BTreeMap;

use nvlane_adq::change::{Change, MQPRIO_HANDLE};
use nvlane_adq::config::{Class, Config, Side};
use nvlane_adq::control_group::Group;
use nvlane_adq::kernel::{Failure, Kernel};
use nvlane_adq::moderation::{Delay, Moderation, Moderations};
use nvlane_adq::netlink::ethtool::{ChannelLimits, Channels, Feature};
use nvlane_adq::netlink::filter::{Effect, End, Filter, Listed};
use nvlane_adq::netlink::qdisc::Offload;
use nvlane_adq::rate::Rate;
use nvlane_adq::scaling::{Action, ListedRule, Scaling, Table};
use nvlane_adq::sock_ops::SocketProgram;
use nvlane_adq::state::{Device, DeviceState, Identity, Interrupt, RootDiscipline, TransmitQueue, mask_of};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Change number `n`, from 0, is refused.
    Refused(usize),
    /// Change number `n` is accepted and does nothing, as a feature that cannot be changed.
    Ignored(usize),
    /// Change number `n` is done, and then the program is killed: each later call fails.
    KilledAfter(usize),
}

/// The interrupt moderation that a driver sets by itself.
const ADAPTIVE: Moderation = Moderation {
    receive: Delay { us: 50, is_adaptive: true },
    transmit: Delay { us: 50, is_adaptive: true },
};

/// The model.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) device: Device,
    pub(crate) state: DeviceState,
    pub(crate) fault: Option<Fault>,
    /// Changes carried out since the model was made.
    pub(crate) change_count: usize,
    /// Entries of the RSS table: follows the number of queues on some devices.
    table_length: usize,
    /// Somebody has set the RSS table.
    is_table_set: bool,
    is_killed: bool,
}

impl Model {
    /// A device of `driver` with `pairs` queue pairs active, and at most `pairs_max`.
    pub(crate) fn new(driver: &str, pairs: u16, pairs_max: u16) -> Self {
        let features = ["hw-tc-offload", "rx-ntuple-filter"]
            .map(|name| (name.to_owned(), Feature { is_on: false, is_changeable: driver != "virtio_net" }));
        let private_flags = if driver == "ice" {
            BTreeMap::from([
                ("fw-lldp-agent".to_owned(), true),
                ("channel-pkt-inspect-optimize".to_owned(), true),
            ])
        } else {
            BTreeMap::new()
        };
        let mut model = Self {
            device: Device {
                identity: Identity {
                    interface: "eth0".into(),
                    ifindex: 2,
                    address: "02:00:00:00:00:01".into(),
                    boot: "1".into(),
                },
                driver: driver.into(),
                speed: Some("100Gbit".parse().unwrap()),
                master: None,
                lower: None,
                cpu_count: 8,
                online_cpus: (0..8).collect(),
                is_up: true,
                opponents: Vec::new(),
                network: 7,
                cgroup: Some("/cgroup".into()),
            },
            state: DeviceState {
                channels: ChannelLimits {
                    current: Channels { combined: 0, ..Channels::default() },
                    max: Channels { combined: pairs_max.into(), ..Channels::default() },
                },
                features: features.into(),
                private_flags,
                root: Some(RootDiscipline { kind: "mq".into(), handle: 0, mqprio: None }),
                scaling: Scaling {
                    table: if driver == "virtio_net" { Vec::new() } else { vec![0; 32] },
                    contexts: matches!(driver, "mlx5_core" | "bnxt_en" | "sfc" | "fbnic").then(BTreeMap::new),
                    rules: Vec::new(),
                },
                moderations: match driver {
                    "virtio_net" => Moderations::None,
                    "bnxt_en" => Moderations::Device(ADAPTIVE),
                    _ => Moderations::Queues(Vec::new()),
                },
                groups: [("/cgroup".to_owned(), Group::Programs(vec!["of_others".into()]))].into(),
                ..DeviceState::default()
            },
            fault: None,
            change_count: 0,
            table_length: if driver == "virtio_net" { 0 } else { 32 },
            is_table_set: false,
            is_killed: false,
        };
        model.set_channels(pairs.into());
        for (queue, users) in model.state.transmit_queues.iter_mut().enumerate() {
            users.cpus = mask_of([u16::try_from(queue).unwrap()]);
        }
        model
    }

    /// The process starts again after it was killed.
    pub(crate) fn revive(&mut self) {
        self.is_killed = false;
        self.fault = None;
    }

    fn set_channels(&mut self, pairs: u32) {
        let count = usize::try_from(pairs).unwrap();
        self.state.channels.current.combined = pairs;
        self.state.receive_queue_count = u16::try_from(pairs).unwrap();
        self.state
            .transmit_queues
            .resize(count, TransmitQueue { receive_queues: "0".into(), cpus: "0".into() });
        let interrupts = (0u16..).zip(100..).take(count).map(|(queue, irq)| Interrupt {
            irq,
            queue: Some(queue),
            cpus: "0-7".into(),
        });
        self.state.interrupts = interrupts.collect();
        // mlx5 has a longer table for more queues, and the kernel's choice follows their number.
        if self.device.driver == "mlx5_core" {
            self.table_length = if count > 8 { 64 } else { 32 };
        }
        if !self.is_table_set {
            self.state.scaling.table =
                Table::Default.entries(self.table_length, self.state.receive_queue_count);
        }
        if let Moderations::Queues(queues) = &mut self.state.moderations {
            let first = queues.first().copied().unwrap_or(ADAPTIVE);
            queues.resize(count, first);
        }
        // Class 1 and above lose the priorities that led to them.
        if let Some(mqprio) = self.state.root.as_mut().and_then(|root| root.mqprio.as_mut()) {
            mqprio.classes_of_priorities = [0; 16];
        }
    }

    /// The last queue that a table which somebody has set, or a context, leads to.
    fn last_used_queue(&self) -> u32 {
        let default = self.state.scaling.table.iter().filter(|_| self.is_table_set);
        let contexts = self.state.scaling.contexts.iter().flatten().flat_map(|(_, table)| table);
        default.chain(contexts).copied().max().unwrap_or(0)
    }

    fn reset_transmit_queues(&mut self) {
        for users in &mut self.state.transmit_queues {
            *users = TransmitQueue { receive_queues: "0".into(), cpus: "0".into() };
        }
    }

    fn reset_interrupts(&mut self) {
        for interrupt in &mut self.state.interrupts {
            interrupt.cpus = "0-7".into();
        }
        if let Moderations::Queues(queues) = &mut self.state.moderations {
            queues.fill(ADAPTIVE);
        }
    }

    fn perform(&mut self, change: &Change) -> Result<(), Failure> {
        let refuse = |reason: &str| Err(Failure(reason.into()));
        let has_classes = self.state.mqprio().is_some();
        match change {
            Change::Feature { name, is_on } => {
                if let Some(feature) = self.state.features.get_mut(name)
                    && feature.is_changeable
                {
                    feature.is_on = *is_on;
                }
            }
            Change::PrivateFlag { name, is_on } => {
                self.state.private_flags.insert(name.clone(), *is_on);
            }
            Change::Channels(_) if has_classes && self.device.driver == "ice" => {
                return refuse("Cannot set channels with ADQ configured.");
            }
            Change::Channels(_) if self.is_table_set && self.device.driver == "mlx5_core" => {
                return refuse("RXFH is configured, cannot change the number of channels");
            }
            Change::Channels(channels) if self.last_used_queue() >= channels.combined => {
                return refuse(
                    "requested channel counts are too low for existing indirection table settings",
                );
            }
            Change::Channels(channels) => self.set_channels(channels.combined),
            Change::AddMqprio(mqprio) => {
                if has_classes {
                    return refuse("Exclusivity flag on, cannot modify.");
                }
                let is_offloaded = mqprio.offload == Offload::Channel;
                if is_offloaded && !self.state.features["hw-tc-offload"].is_on {
                    return refuse("Device does not support hardware offload.");
                }
                let last = mqprio.queues.iter().map(|queues| queues.first + queues.count).max().unwrap();
                if usize::from(last) > self.state.transmit_queues.len() {
                    return refuse("Queues exceed the TX queues available.");
                }
                self.state.root = Some(RootDiscipline {
                    kind: "mqprio".into(),
                    handle: MQPRIO_HANDLE,
                    mqprio: Some(mqprio.clone()),
                });
                self.reset_transmit_queues();
                self.reset_interrupts();
            }
            Change::DeleteRoot => {
                self.state.root = Some(RootDiscipline { kind: "mq".into(), handle: 0, mqprio: None });
                self.reset_transmit_queues();
                self.reset_interrupts();
            }
            Change::AddClsact if self.state.filter_holder.is_some() => {
                return refuse("Exclusivity flag on, cannot modify.");
            }
            Change::AddClsact => self.state.filter_holder = Some("clsact".into()),
            Change::DeleteClsact => {
                self.state.filter_holder = None;
                self.state.filters.clear();
            }
            Change::AddFilter(filter) => {
                if self.state.filter_holder.is_none() {
                    return refuse("No such file or directory");
                }
                self.state.filters.push(listed(filter));
            }
            Change::DeleteFilter(filter) => self.state.filters.retain(|listed| !listed.is(filter)),
            Change::SetTable(table) => {
                self.is_table_set = *table != Table::Default;
                self.state.scaling.table = table.entries(self.table_length, self.state.receive_queue_count);
            }
            Change::AddContext(queues) => {
                if !self.state.features["rx-ntuple-filter"].is_on {
                    return refuse("Enable ntuple filtering before adding RSS contexts");
                }
                let Some(contexts) = &mut self.state.scaling.contexts else {
                    return refuse("Operation not supported");
                };
                let id = (1..).find(|id| !contexts.contains_key(id)).unwrap();
                contexts.insert(id, Table::Queues(*queues).entries(self.table_length, 0));
            }
            Change::DeleteContext(id) => {
                if self.state.scaling.rules.iter().any(|rule| rule.action == Action::Context(*id)) {
                    return refuse("Device or resource busy");
                }
                let contexts = self.state.scaling.contexts.as_mut();
                if contexts.and_then(|contexts| contexts.remove(id)).is_none() {
                    return refuse("No such file or directory");
                }
            }
            Change::AddRule(rule) => {
                let Some(id) = self.state.scaling.context_of(rule.queues) else {
                    return refuse("No such file or directory");
                };
                let is_free =
                    |location: &u32| self.state.scaling.rules.iter().all(|rule| rule.location != *location);
                let location = (0..1024).rev().find(is_free).unwrap();
                let (flow, action) = (Some(rule.flow), Action::Context(id));
                self.state.scaling.rules.push(ListedRule { location, flow, action });
            }
            Change::DeleteRule(location) => {
                self.state.scaling.rules.retain(|rule| rule.location != *location);
            }
            Change::Moderation { queue, wanted } => match (&mut self.state.moderations, queue) {
                (Moderations::Device(now), None) => *now = *wanted,
                (Moderations::Queues(queues), Some(queue)) => {
                    let now = queues.get_mut(usize::from(*queue));
                    *now.ok_or_else(|| Failure("no such queue".into()))? = *wanted;
                }
                _ => return refuse("Operation not supported"),
            },
            Change::Interrupt { irq, cpus } => {
                let interrupt = self.state.interrupts.iter_mut().find(|interrupt| interrupt.irq == *irq);
                interrupt.ok_or_else(|| Failure("no such interrupt".into()))?.cpus.clone_from(cpus);
            }
            Change::AttachProgram(SocketProgram { group, name, .. }) => {
                match self.state.groups.get_mut(group) {
                    Some(Group::Programs(names)) => names.push(name.clone()),
                    _ => return refuse("No such file or directory"),
                }
            }
            Change::DetachProgram(SocketProgram { group, name, .. }) => {
                match self.state.groups.get_mut(group) {
                    Some(Group::Programs(names)) => names.retain(|attached| attached != name),
                    _ => return refuse("No such file or directory"),
                }
            }
            Change::TransmitQueue { queue, users } => {
                match self.state.transmit_queues.get_mut(usize::from(*queue)) {
                    Some(now) => now.clone_from(users),
                    None => return refuse("no such queue"),
                }
            }
        }
        Ok(())
    }
}

fn listed(filter: &Filter) -> Listed {
    let (receive_class, priority) = match filter.effect {
        Effect::ReceiveClass(class) => (Some(class), None),
        Effect::Priority(priority) => (None, Some(priority)),
    };
    Listed {
        parent: filter.parent(),
        preference: filter.preference,
        ether_type: filter.version.ether_type(),
        handle: filter.handle,
        kind: "flower".into(),
        is_in_hardware: receive_class.is_some(),
        port: Some((filter.end, filter.port)),
        receive_class,
        priority,
    }
}

/// A filter of another program.
pub(crate) fn filter_of_others() -> Listed {
    Listed {
        parent: 0xffff_fff2,
        preference: 1,
        ether_type: 3,
        handle: 1,
        kind: "bpf".into(),
        is_in_hardware: false,
        port: Some((End::Source, 1)),
        receive_class: None,
        priority: None,
    }
}

impl Kernel for Model {
    fn device(&mut self) -> Result<Device, Failure> {
        Ok(self.device.clone())
    }

    fn state(&mut self) -> Result<DeviceState, Failure> {
        if self.is_killed { Err(Failure("killed".into())) } else { Ok(self.state.clone()) }
    }

    fn carry_out(&mut self, change: &Change) -> Result<(), Failure> {
        if self.is_killed {
            return Err(Failure("killed".into()));
        }
        let number = self.change_count;
        self.change_count += 1;
        match self.fault {
            Some(Fault::Refused(at)) if at == number => Err(Failure("Invalid argument".into())),
            Some(Fault::Ignored(at)) if at == number => Ok(()),
            Some(Fault::KilledAfter(at)) if at == number => {
                self.is_killed = true;
                self.perform(change)
            }
            _ => self.perform(change),
        }
    }
}

/// A configuration of `classes` in the form of the command line.
pub(crate) fn config(classes: &[&str]) -> Config {
    let classes: Vec<Class> = classes.iter().map(|class| class.parse().unwrap()).collect();
    Config { interface: "eth0".into(), side: Side::Target, other_queues: None, cgroup: None, classes }
}

/// A rate.
pub(crate) fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}
