//! A device and its kernel as facts in memory, with the kernel's side effects.

use std::collections::BTreeMap;

use nvlane_adq::change::{Change, MQPRIO_HANDLE};
use nvlane_adq::config::{Class, Config, Side};
use nvlane_adq::kernel::{Failure, Kernel};
use nvlane_adq::netlink::ethtool::{ChannelLimits, Channels, Feature};
use nvlane_adq::netlink::filter::{Effect, End, Filter, Listed};
use nvlane_adq::netlink::qdisc::Offload;
use nvlane_adq::rate::Rate;
use nvlane_adq::state::{Device, Identity, Interrupt, RootDiscipline, State, TransmitQueue, mask_of};

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

/// The model.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) device: Device,
    pub(crate) state: State,
    pub(crate) fault: Option<Fault>,
    /// Changes carried out since the model was made.
    pub(crate) change_count: usize,
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
                opponents: Vec::new(),
            },
            state: State {
                channels: ChannelLimits {
                    current: Channels { combined: 0, ..Channels::default() },
                    max: Channels { combined: pairs_max.into(), ..Channels::default() },
                },
                features: features.into(),
                private_flags,
                root: Some(RootDiscipline { kind: "mq".into(), handle: 0, mqprio: None }),
                ..State::default()
            },
            fault: None,
            change_count: 0,
            is_killed: false,
        };
        model.set_channels(pairs.into());
        for (queue, users) in model.state.transmit_queues.iter_mut().enumerate() {
            users.cpus = mask_of(u16::try_from(queue).unwrap());
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
        // Class 1 and above lose the priorities that led to them.
        if let Some(mqprio) = self.state.root.as_mut().and_then(|root| root.mqprio.as_mut()) {
            mqprio.classes_of_priorities = [0; 16];
        }
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
            Change::Interrupt { irq, cpus } => {
                let interrupt = self.state.interrupts.iter_mut().find(|interrupt| interrupt.irq == *irq);
                interrupt.ok_or_else(|| Failure("no such interrupt".into()))?.cpus.clone_from(cpus);
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

    fn state(&mut self) -> Result<State, Failure> {
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
    Config { interface: "eth0".into(), side: Side::Target, other_queues: None, classes }
}

/// A rate.
pub(crate) fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}
