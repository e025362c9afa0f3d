//! The configuration of the target, and its reloads under load through the product's own operator: the difference is
//! computed, checked, prepared and ordered by it.
//!
//! The first namespace is on the simulated disk, which no specification names: it is added beside the configuration.

use std::cell::RefCell;
use std::sync::mpsc::{TryRecvError, channel};

use reactor::Listener;
use store::Spec;
use subsystem::access::{Access, HostRights, Right};
use subsystem::config::{NamespaceConfig, SubsystemConfig, TargetConfig, TlsKeySources, TlsPolicy};
use subsystem::message::{ControlMessage, Message, Order, OrderKind, Step};
use subsystem::operator::{ChangeOutcome, Operator, Report};
use wire::id::Nsid;
use wire::uuid::Uuid;

use super::machines::Machine;
use super::{Stage, World};
use crate::authentication::authentication_config;
use crate::host::SUBSYSTEM;
use crate::keys;
use crate::names;
use crate::offer::SERVICE;
use crate::scenario::MS;

/// The namespace that only reloads add, change and remove.
const THIRD: Nsid = Nsid::new(3);

/// Storage that takes the number of the second namespace, or of which it would be another kind.
const OTHER_STORAGE: &str = "null:1M";

/// A change of the configuration that is not applied while the target runs: no part of it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unapplied {
    Storage,
    Filters,
    Identity,
    SameIdentity,
    Serial,
    Machine,
    Reactors,
    Timeouts,
    NamespaceLimit,
}

const UNAPPLIED: [Unapplied; 9] = [
    Unapplied::Storage,
    Unapplied::Filters,
    Unapplied::Identity,
    Unapplied::SameIdentity,
    Unapplied::Serial,
    Unapplied::Machine,
    Unapplied::Reactors,
    Unapplied::Timeouts,
    Unapplied::NamespaceLimit,
];

/// A uuid made from a number.
fn uuid(name: u8) -> Uuid {
    Uuid::from_bytes([name; 16])
}

impl World {
    /// The configuration file.
    fn config(&self) -> TargetConfig {
        let scenario = &self.shared.scenario;
        let mut config = TargetConfig {
            machine: Some("simulated".into()),
            limits: self.operator.limits,
            timeouts: scenario.target.timeouts,
            listeners: self.offer.listeners().collect(),
            ..TargetConfig::default()
        };
        config.reactors.pool_bytes =
            config.reactors.pool_bytes.max(4 * scenario.target.limits.transfer_bytes_max as usize);
        config.discovery.nqn = Some(SERVICE.parse().expect("a name"));
        config.discovery.referrals = self.offer.referrals().to_vec();
        let main = SubsystemConfig {
            serial: Some("SIMULATED".into()),
            namespaces: self.namespaces(),
            access: self.access(),
            authentication: authentication_config(scenario),
            tls_keys: self.tls_key_sources(),
            host_limits: [(names::name(0).into(), scenario.rates.host)].into(),
            ..SubsystemConfig::new(SUBSYSTEM.parse().expect("a name"))
        };
        let offered = self.offer.subsystems().filter(|(nqn, _)| **nqn != main.nqn).map(|(nqn, access)| {
            let (serial, access) = (Some("OFFERED".into()), access.clone());
            SubsystemConfig { serial, access, ..SubsystemConfig::new(nqn.clone()) }
        });
        config.subsystems = offered.collect();
        config.subsystems.push(main);
        config
    }

    /// Where the key of TLS is, if there is one.
    fn tls_key_sources(&self) -> TlsKeySources {
        let has_key = matches!(self.shared.scenario.security.tls, TlsPolicy::Allowed | TlsPolicy::Required);
        let others = has_key.then(|| keys::tls_key_source(self.shared.tls_keys.current));
        TlsKeySources { others, ..TlsKeySources::default() }
    }

    /// The namespaces in memory.
    fn namespaces(&self) -> Vec<NamespaceConfig> {
        let namespace = |nsid: Nsid, spec: &str, name: u8| {
            let storage: Spec = spec.parse().expect("a specification");
            NamespaceConfig {
                nsid: Some(nsid),
                uuid: Some(uuid(self.name_on_machine(name))),
                ..NamespaceConfig::new(storage)
            }
        };
        let second =
            self.shared.scenario.second.spec.as_deref().filter(|_| self.second.presence.is_configured());
        let second = second.map(|spec| NamespaceConfig {
            rights: self.host_rights(),
            limits: self.shared.scenario.rates.second,
            ..namespace(Nsid::new(2), spec, self.second.name)
        });
        // A host that finds it on the second machine first would know it as that one's.
        let third = self.operator.third.filter(|_| self.target.machine.is_first());
        let third = third.map(|blocks| namespace(THIRD, &format!("ram:{}?small&lba=512", blocks * 512), 3));
        second.into_iter().chain(third).collect()
    }

    /// The rights to the second namespace, of hosts that may connect.
    fn host_rights(&self) -> HostRights {
        let (rights, access) = (self.second.rights.present(), self.access());
        let hosts = |least: Right| {
            if rights.iter().all(|right| *right >= least) {
                return Access::Any;
            }
            let listed = (0..rights.len()).filter(|host| rights[*host] >= least);
            let names = listed.map(|index| names::name(index).into());
            Access::Only(names.filter(|name| access.allows(name)).collect())
        };
        HostRights { visible_to: hosts(Right::Read), writable_by: hosts(Right::Write), ..HostRights::ALL }
    }

    /// Opens everything that the configuration names, and returns the steps with which a target starts.
    pub(super) fn start_operator(&mut self) -> Vec<Step> {
        let count = self.shared.scenario.target.reactor_count;
        let bind = |address| Listener::simulated(address).map_err(|error| error.to_string());
        match Operator::start_with(&self.config(), count, bind, self.shared.scenario.first.page_bytes) {
            Ok((operator, steps)) => {
                self.operator.thread = Some(operator);
                steps
            }
            Err(problems) => {
                self.shared.find(format!("the configuration is refused: {problems:?}"));
                Vec::new()
            }
        }
    }

    /// Whether the operator waits for the target.
    pub(super) fn is_operator_busy(&self) -> bool {
        self.operator.thread.is_none() && self.target.is_up()
    }

    /// Reloads the configuration as it is now: all of it must be applied, except for limits that wait for a restart.
    pub(super) fn reload(&mut self) {
        let config = self.config();
        let Some(report) = self.reload_as(&config) else { return };
        if let Some(line) = report.lines.iter().find(|line| line.outcome == ChangeOutcome::Failed) {
            self.shared.find(format!("a reload was not applied: {}", line.text));
        }
    }

    /// Applies a configuration by the operator; `None` if there is no target, or it has ended meanwhile.
    fn reload_as(&mut self, config: &TargetConfig) -> Option<Report> {
        let mut operator = self.operator.thread.take()?;
        let start_count = self.target.start_count;
        let world = RefCell::new(&mut *self);
        let report = operator.reload(config, &|order| world.borrow_mut().carry_out(order));
        let is_same = start_count == self.target.start_count && self.target.is_up();
        if !is_same || !self.shared.findings.is_empty() {
            return None;
        }
        self.operator.thread = Some(operator);
        let lines: Vec<&str> = report.lines.iter().map(|line| line.text.as_str()).collect();
        self.shared.say(|| format!("reload: {}", lines.join("; ")));
        Some(report)
    }

    /// Hands an order of the operator's thread to the target, and runs the world until it is answered.
    fn carry_out(&mut self, order: Order) -> bool {
        let (answers, received) = channel();
        let Order { kind, answers: operator } = order;
        let is_of_second =
            |step: &Step| matches!(step, Step::RemoveNamespace { nsid, .. } if nsid.get() == 2);
        let removes_second = matches!(&kind, OrderKind::Apply(steps) if steps.iter().any(is_of_second));
        self.target.post(
            &mut self.shared,
            0,
            Message::Control(ControlMessage::Order(Order { kind, answers })),
        );
        loop {
            match received.try_recv() {
                Ok(answer) => {
                    // Storage that is released is released to the world.
                    if removes_second {
                        self.operator.releases.push(received);
                    }
                    return operator.send(answer).is_ok();
                }
                Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => {}
            }
            if self.progress.stage == Stage::Over || !self.shared.findings.is_empty() {
                return true;
            }
            self.step();
        }
    }

    /// A reload with a change of its own, or with one that must not be applied.
    pub(super) fn change_configuration(&mut self, which: u8) {
        let is_late = self.progress.stage > Stage::Settle || !self.target.machine.is_first();
        if is_late || !self.target.is_up() {
            return;
        }
        let what = usize::from(which) % (UNAPPLIED.len() + 3);
        match what.checked_sub(3) {
            Some(at) => self.reload_unapplied(UNAPPLIED[at]),
            None if what == 2 => self.reload_limits(which),
            None => {
                // Added, resized or removed.
                self.operator.third = if self.operator.third.is_some() && which & 16 == 0 {
                    None
                } else {
                    Some(8 + u64::from(which))
                };
                self.shared.reach_event("reload: third namespace");
                self.reload();
            }
        }
    }

    /// Other limits: hosts are held to them once the target has started again.
    fn reload_limits(&mut self, which: u8) {
        self.operator.limits.h2c_data_bytes_max = (4096 << (which & 3)) + 4 * u32::from(which);
        self.operator.limits.window_bytes_max = 4096 << (which >> 2 & 3);
        let config = self.config();
        let Some(report) = self.reload_as(&config) else { return };
        self.shared.reach_event("reload: limits");
        let is_wrong = |line: &&subsystem::operator::ReportLine| line.outcome != ChangeOutcome::NeedsRestart;
        if let Some(line) = report.lines.iter().find(is_wrong) {
            self.shared
                .find(format!("new limits are applied, or refused, while the target runs: {}", line.text));
        }
    }

    fn reload_unapplied(&mut self, what: Unapplied) {
        let mut config = self.config();
        let main = config.subsystems.last_mut().expect("the subsystem of all runs");
        let second = main.namespaces.iter_mut().find(|namespace| namespace.nsid != Some(THIRD));
        match (what, second) {
            (Unapplied::Storage, Some(second)) => {
                second.storage = OTHER_STORAGE.parse().expect("a specification");
            }
            (Unapplied::Filters, Some(second)) => {
                let spec = self.shared.scenario.second.spec.as_deref().unwrap_or_default();
                second.storage = format!("{spec}&delay=1us").parse().expect("a specification");
            }
            (Unapplied::Identity, Some(second)) => second.uuid = Some(uuid(0x55)),
            (Unapplied::SameIdentity, Some(second)) => {
                let storage = OTHER_STORAGE.parse().expect("a specification");
                let twin = NamespaceConfig { nsid: Some(Nsid::new(4)), storage, ..second.clone() };
                main.namespaces.push(twin);
            }
            (Unapplied::Serial, _) => main.serial = Some("ANOTHER".into()),
            (Unapplied::Machine, _) => config.machine = Some("another".into()),
            (Unapplied::Reactors, _) => config.reactors.pool_bytes *= 2,
            (Unapplied::Timeouts, _) => config.timeouts.pdu_ms += 1000,
            (Unapplied::NamespaceLimit, _) => {
                let storage = OTHER_STORAGE.parse().expect("a specification");
                let nsid = Some(Nsid::new(self.operator.limits.nsid_max + 1));
                main.namespaces.push(NamespaceConfig {
                    nsid,
                    uuid: Some(uuid(0x56)),
                    ..NamespaceConfig::new(storage)
                });
            }
            (_, None) => return,
        }
        let Some(report) = self.reload_as(&config) else { return };
        self.shared.reach_event(what.name());
        // Other limits may wait for a restart as well.
        if report.lines.is_empty() || report.lines.iter().any(|line| line.outcome == ChangeOutcome::Done) {
            self.shared.find(format!("{what:?} is applied while the target runs: {report}"));
        }
    }

    /// The number of an identity on the machine that has the address.
    fn name_on_machine(&self, name: u8) -> u8 {
        match self.target.machine {
            Machine::First => name,
            Machine::Second { .. } => name | crate::foreign::FOREIGN_NAME,
        }
    }
}

impl Unapplied {
    fn name(self) -> &'static str {
        match self {
            Self::Storage => "reload: other storage",
            Self::Filters => "reload: other filters",
            Self::Identity => "reload: other identity",
            Self::SameIdentity => "reload: two with one identity",
            Self::Serial => "reload: other serial number",
            Self::Machine => "reload: other machine",
            Self::Reactors => "reload: other reactors",
            Self::Timeouts => "reload: other timeouts",
            Self::NamespaceLimit => "reload: namespace beyond the limit",
        }
    }
}

/// How long the operator waits before it checks again whether its last change is through, ns.
pub(super) const AGAIN_NS: u64 = 2 * MS;
