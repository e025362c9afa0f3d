//! The offer of the target, as the operator has it: listeners, subsystems and who may use them, other discovery
//! services. And the logs that a host may have read of it.
//!
//! Each order makes a new version. A log that was read is one version as its host may see it, whole, and none that was
//! over before the reading began. All logs with one generation are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use reactor::ListenerTag;
use subsystem::allow_list::AllowList;
use subsystem::config::{ListenerConfig, TlsPolicy};
use subsystem::discovery::{Advertised, ListenerEntry, Referral};
use subsystem::subsystem::Access;
use wire::discovery::{DiscoveryEntry, SubsystemType};
use wire::nqn::{HostName, Nqn};

use crate::finding::Finding;
use crate::names;
use crate::random::Random;
use crate::scout::Reading;

/// The discovery service's own name.
pub(crate) const SERVICE: &str = "nqn.2026-01.io.nvlane:discovery";

/// The listener at which everybody arrives. It stays.
const FIRST_LISTENER: ListenerTag = 1;

/// Others that may come and go, and as many subsystems and services: together too many for one part of a log.
const OTHER_COUNT: u64 = 5;

/// One version of the offer.
#[derive(Clone, Debug)]
struct Version {
    listeners: BTreeMap<ListenerTag, ListenerEntry>,
    subsystems: BTreeMap<Nqn, Access>,
    referrals: Vec<Referral>,
}

/// A line of a log: kind, address, name.
type Line = (u8, SocketAddr, String);

/// The present offer, and the former ones.
#[derive(Debug)]
pub(crate) struct Offer {
    version: Version,
    /// By host that reads logs: the lines that each version shows it, and since when these have surely been replaced,
    /// ns.
    shown: Vec<Vec<(BTreeSet<Line>, u64)>>,
    /// By host and generation: the lines that were read.
    read: BTreeMap<(usize, u64), BTreeSet<Line>>,
    /// By host: the lines that were read last.
    last: Vec<Option<BTreeSet<Line>>>,
    /// Orders since the first version.
    version_count: usize,
    random: Random,
}

impl Version {
    fn lines(&self, host: &HostName) -> BTreeSet<Line> {
        let address = |listener: &ListenerEntry| match listener.advertise {
            Some(told) => SocketAddr::new(told.ip, told.port.unwrap_or(listener.address.port())),
            None => listener.address,
        };
        let mut lines = BTreeSet::new();
        for listener in self.listeners.values() {
            if listener.serves_discovery {
                lines.insert((SubsystemType::DISCOVERY.raw(), address(listener), SERVICE.to_owned()));
            }
            if !listener.serves_subsystems {
                continue;
            }
            let allowed = self.subsystems.iter().filter(|(_, access)| match access {
                Access::Any => true,
                Access::Only(hosts) => hosts.contains(host),
            });
            lines.extend(
                allowed.map(|(nqn, _)| (SubsystemType::NVM.raw(), address(listener), nqn.to_string())),
            );
        }
        let referral =
            |referral: &Referral| (SubsystemType::REFERRAL.raw(), referral.address, referral.nqn.to_string());
        lines.extend(self.referrals.iter().map(referral));
        lines
    }
}

fn listener(tag: ListenerTag) -> ListenerEntry {
    ListenerEntry {
        address: ([192, 0, 2, 1], 4419 + tag as u16).into(),
        advertise: None,
        serves_subsystems: true,
        serves_discovery: true,
        doorbell: None,
        tls: TlsPolicy::Off,
    }
}

fn subsystem(number: u64) -> Nqn {
    format!("nqn.2026-01.io.nvlane:offered-{number}").parse().expect("a name")
}

impl Offer {
    /// One listener, and the subsystem that all runs have.
    pub(crate) fn new(seed: u64, scout_count: usize, main: Nqn, access: Access, tls: TlsPolicy) -> Self {
        let version = Version {
            listeners: BTreeMap::from([(FIRST_LISTENER, ListenerEntry { tls, ..listener(FIRST_LISTENER) })]),
            subsystems: BTreeMap::from([(main, access)]),
            referrals: Vec::new(),
        };
        let shown = |index| vec![(version.lines(&names::name(index).into()), u64::MAX)];
        Self {
            shown: (0..scout_count).map(shown).collect(),
            read: BTreeMap::new(),
            last: vec![None; scout_count],
            version_count: 0,
            random: Random::new(seed, 8),
            version,
        }
    }

    /// The listeners as a configuration has them.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = ListenerConfig> {
        self.version.listeners.values().map(|entry| ListenerConfig {
            address: entry.address,
            advertise: entry.advertise,
            subsystems: entry.serves_subsystems,
            discovery: entry.serves_discovery,
            doorbell: entry.doorbell,
            tls: entry.tls,
            allow: AllowList::Any,
        })
    }

    /// Other discovery services.
    pub(crate) fn referrals(&self) -> &[Referral] {
        &self.version.referrals
    }

    /// The subsystems, and who may use them.
    pub(crate) fn subsystems(&self) -> impl Iterator<Item = (&Nqn, &Access)> {
        self.version.subsystems.iter()
    }

    /// The operator lets other hosts in.
    pub(crate) fn set_access(&mut self, nqn: &Nqn, access: Access) {
        self.version.subsystems.insert(nqn.clone(), access);
    }

    /// Draws a random change of this number of steps.
    pub(crate) fn change(&mut self, step_count: u8) {
        (0..step_count).for_each(|_| self.step());
    }

    fn step(&mut self) {
        let number = self.random.below(OTHER_COUNT);
        let tag = FIRST_LISTENER + 1 + number as ListenerTag;
        let nqn = subsystem(number);
        let version = &mut self.version;
        match self.random.below(7) {
            0 | 1 => {
                if version.listeners.remove(&tag).is_none() {
                    version.listeners.insert(tag, listener(tag));
                }
            }
            2 => {
                let tag = if version.listeners.contains_key(&tag) { tag } else { FIRST_LISTENER };
                let advertise = self.random.one_in(2).then(|| Advertised {
                    ip: [203, 0, 113, tag as u8].into(),
                    port: self.random.one_in(2).then_some(14_420),
                });
                let tls = version.listeners.get(&tag).map_or(TlsPolicy::Off, |entry| entry.tls);
                let mut entry = ListenerEntry { advertise, tls, ..listener(tag) };
                if tag != FIRST_LISTENER {
                    (entry.serves_subsystems, entry.serves_discovery) =
                        self.random.pick(&[(true, true), (true, false), (false, true)]);
                }
                version.listeners.insert(tag, entry);
            }
            3 => {
                let count = self.random.below(OTHER_COUNT);
                let referral = |number: u64| Referral {
                    address: ([198, 51, 100, number as u8], 8009).into(),
                    nqn: Nqn::discovery(),
                };
                version.referrals = (0..count).map(referral).collect();
            }
            4 if version.subsystems.contains_key(&nqn) => {
                let access = self.random.pick(&[None, Some(0), Some(1)]);
                let access =
                    access.map_or(Access::Any, |only| Access::Only([names::name(only).into()].into()));
                version.subsystems.insert(nqn, access);
            }
            _ => {
                if version.subsystems.remove(&nqn).is_none() {
                    version.subsystems.insert(nqn, Access::Any);
                }
            }
        }
    }

    /// All of a change is drawn, and on its way to the target. Returns the number of the new version.
    pub(crate) fn on_ordered(&mut self) -> usize {
        for (index, versions) in self.shown.iter_mut().enumerate() {
            versions.push((self.version.lines(&names::name(index).into()), u64::MAX));
        }
        self.version_count += 1;
        self.version_count
    }

    /// The target has applied a version: it no longer shows the versions before.
    pub(crate) fn on_applied(&mut self, number: usize, now_ns: u64) {
        self.replace(number, now_ns);
    }

    /// A target has started with the present offer.
    pub(crate) fn on_start(&mut self, now_ns: u64) {
        self.replace(self.version_count, now_ns);
    }

    /// Nothing before this version is shown any more.
    fn replace(&mut self, number: usize, now_ns: u64) {
        for versions in &mut self.shown {
            versions.iter_mut().take(number).for_each(|(_, until_ns)| *until_ns = now_ns.min(*until_ns));
        }
    }

    /// Whether a host may have read this.
    pub(crate) fn judge(&mut self, index: usize, reading: &Reading) -> Result<(), Finding> {
        let generation = reading.log.generation;
        let mut lines = BTreeSet::new();
        for entry in &reading.log.entries {
            let line = line(entry)?;
            if !lines.insert(line.clone()) {
                return Err(format!("generation {generation} of the log lists {line:?} twice"));
            }
        }
        let versions = &self.shown[index];
        let begin_ns = reading.begin_ns;
        if !versions.iter().any(|(shown, replaced_ns)| *shown == lines && *replaced_ns >= begin_ns) {
            let is_old = versions.iter().any(|(shown, _)| *shown == lines);
            let why = if is_old { "was replaced before it was read" } else { "is none that there was" };
            return Err(format!("host {index} has read generation {generation} of the log, which {why}"));
        }
        let known = self.read.entry((index, generation)).or_insert_with(|| lines.clone());
        if *known != lines {
            return Err(format!("generation {generation} of the log is two different ones"));
        }
        self.last[index] = Some(lines);
        Ok(())
    }

    /// Whether the last reading of a host is the present offer.
    pub(crate) fn is_known(&self, index: usize) -> bool {
        let now = self.shown[index].last().map(|(shown, _)| shown);
        self.last[index].as_ref() == now
    }
}

fn line(entry: &DiscoveryEntry) -> Result<Line, Finding> {
    let address = format!("{}:{}", entry.address(), entry.service_id());
    let address = address.parse().map_err(|error| format!("{address} is no address: {error}"))?;
    let nqn = entry.subsystem().map_err(|error| format!("a name of the log: {error}"))?;
    Ok((entry.subtype.raw(), address, nqn.to_string()))
}
