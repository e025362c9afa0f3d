//! Differences between the running and the wanted configuration, and which of them can be applied.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::discriminant;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use proto::doorbell::Policy as DoorbellPolicy;
use store::{Size, Source, Spec};
use wire::id::Nsid;
use wire::nqn::{HostName, Nqn};
use wire::uuid::Uuid;

use crate::config::{
    ControlConfig, ListenerConfig, MemcachedAddress, MemcachedListenerConfig, Problem, ReactorConfig,
    ResolvedNamespace, ResolvedSubsystem, TargetConfig,
};
use crate::names::identity::{TargetIdentity, storage_name};
use crate::names::placement_policy::PlacementPolicy;
use crate::names::slow_threshold::SlowThreshold;
use crate::objects::access::HostRights;
use crate::objects::authentication::Authentication;
use crate::objects::discovery::Referral;
use crate::objects::rate_limit::RateLimits;
use crate::objects::subsystem::Access;

/// One difference. Its text says what changes; the report adds the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Close a listener. Associations that came in there end after a grace.
    RemoveListener(SocketAddr),
    /// Add a listener.
    AddListener(ListenerConfig),
    /// Change the role or advertised address of a listener.
    ChangeListener(ListenerConfig),
    /// Close a memcached listener, and its connections.
    RemoveMemcachedListener(MemcachedAddress),
    /// Change what a memcached listener asks of its clients.
    ChangeMemcachedListener(MemcachedListenerConfig),
    /// Add a memcached listener.
    AddMemcachedListener(MemcachedListenerConfig),
    /// Refer hosts to these discovery services.
    SetReferrals(Vec<Referral>),
    /// Set the placement policy for new lanes.
    SetPlacement(PlacementPolicy),
    /// Set the doorbell policy where neither listener nor subsystem has one.
    SetDoorbell(DoorbellPolicy),
    /// Log commands that take longer than this.
    SetSlow(SlowThreshold),
    /// Set the doorbell policy of a subsystem.
    SetSubsystemDoorbell(Nqn, Option<DoorbellPolicy>),
    /// Remove a subsystem with all its namespaces.
    RemoveSubsystem(Nqn),
    /// Remove a namespace.
    RemoveNamespace(Nqn, Nsid, Spec),
    /// Add a subsystem, without its namespaces.
    AddSubsystem(ResolvedSubsystem),
    /// Change the hosts allowed in.
    SetAccess(Nqn, Access),
    /// Require other secrets of hosts.
    SetAuthentication(Nqn, Arc<Authentication>),
    /// Change the ids for new controllers.
    SetCntlids(Nqn, RangeInclusive<u16>),
    /// Resize a namespace: grow it, or shrink one in RAM.
    ResizeNamespace {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// Namespace id.
        nsid: Nsid,
        /// Its new specification.
        spec: Spec,
        /// Its new size.
        bytes: u64,
    },
    /// Change the memory of a key-value namespace.
    SetMemory {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// Namespace id.
        nsid: Nsid,
        /// Its new specification.
        spec: Spec,
        /// The memory, bytes.
        bytes: u64,
    },
    /// Replace the storage of a namespace by other storage with the same contents.
    ReplaceNamespace(Nqn, Nsid, ResolvedNamespace),
    /// Change which hosts see a namespace, and which may write to it.
    SetRights(Nqn, Nsid, HostRights),
    /// Change the rate limits of a namespace.
    SetNamespaceLimits(Nqn, Nsid, RateLimits),
    /// Change the rate limits of hosts.
    SetHostLimits(Nqn, BTreeMap<HostName, RateLimits>),
    /// Add a namespace.
    AddNamespace(Nqn, Nsid, ResolvedNamespace),
    /// A difference that only a restart applies.
    NeedsRestart(String),
    /// A difference that is refused while the target runs.
    Refused {
        /// The change.
        what: String,
        /// The reason and the remedy.
        why: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveListener(address) => write!(f, "remove listener {address}"),
            Self::AddListener(listener) => write!(f, "add listener {}", listener.address),
            Self::ChangeListener(listener) => write!(f, "change listener {}", listener.address),
            Self::RemoveMemcachedListener(address) => write!(f, "remove memcached listener {address}"),
            Self::ChangeMemcachedListener(listener) => {
                write!(f, "change memcached listener {}", listener.address)
            }
            Self::AddMemcachedListener(listener) => write!(f, "add memcached listener {}", listener.address),
            Self::SetReferrals(referrals) => {
                write!(f, "refer hosts to {}", counted(referrals.len(), "discovery service"))
            }
            Self::SetPlacement(policy) => write!(f, "place lanes to come by {policy}"),
            Self::SetDoorbell(policy) => write!(f, "ring doorbells by {policy}"),
            Self::SetSlow(SlowThreshold::OFF) => f.write_str("log no slow commands"),
            Self::SetSlow(threshold) => write!(f, "log commands that take {threshold} or more"),
            Self::SetSubsystemDoorbell(nqn, Some(policy)) => write!(f, "ring doorbells of {nqn} by {policy}"),
            Self::SetSubsystemDoorbell(nqn, None) => {
                write!(f, "ring doorbells of {nqn} as those of its listeners")
            }
            Self::RemoveSubsystem(nqn) => write!(f, "remove subsystem {nqn}"),
            Self::RemoveNamespace(nqn, nsid, spec) => write!(f, "remove {nqn} namespace {nsid} ({spec})"),
            Self::AddSubsystem(subsystem) => write!(f, "add subsystem {}", subsystem.nqn),
            Self::SetAccess(nqn, Access::Any) => write!(f, "open {nqn} to any host"),
            Self::SetAccess(nqn, Access::Only(hosts)) => {
                write!(f, "open {nqn} to {} only", counted(hosts.len(), "host"))
            }
            Self::SetAuthentication(nqn, _) => write!(f, "change the secrets of {nqn}"),
            Self::SetCntlids(nqn, range) => {
                write!(f, "give controllers of {nqn} the ids {} to {}", range.start(), range.end())
            }
            Self::ResizeNamespace { subsystem, nsid, bytes, .. } => {
                write!(f, "resize {subsystem} namespace {nsid} to {}", Size(*bytes))
            }
            Self::SetMemory { subsystem, nsid, bytes, .. } => {
                write!(f, "give {subsystem} namespace {nsid} {} of memory", Size(*bytes))
            }
            Self::SetRights(nqn, nsid, rights) => {
                write!(f, "show {nqn} namespace {nsid} to {}", described(rights))
            }
            Self::SetNamespaceLimits(nqn, nsid, limits) => {
                write!(f, "limit {nqn} namespace {nsid}: {limits}")
            }
            Self::SetHostLimits(nqn, limits) => {
                write!(f, "limit {} of {nqn}", counted(limits.len(), "host"))
            }
            Self::ReplaceNamespace(nqn, nsid, namespace) => {
                write!(f, "put {} in the place of {nqn} namespace {nsid}", namespace.spec)
            }
            Self::AddNamespace(nqn, nsid, namespace) => {
                write!(f, "add {nqn} namespace {nsid} ({})", namespace.spec)
            }
            Self::NeedsRestart(what) => write!(f, "change {what}"),
            Self::Refused { what, .. } => f.write_str(what),
        }
    }
}

/// The hosts that see a namespace, those that may write to it, and those that may use only some of its keys.
fn described(rights: &HostRights) -> String {
    let hosts = |access: &Access| match access {
        Access::Any => "all hosts of the subsystem".to_owned(),
        Access::Only(hosts) => format!("{} only", counted(hosts.len(), "host")),
    };
    let visible_to = hosts(&rights.visible_to);
    let seen_and_written = match &rights.writable_by {
        Access::Any => visible_to,
        writable_by => format!("{visible_to}, for writing to {}", hosts(writable_by)),
    };
    match rights.keys.prefixes() {
        None => seen_and_written,
        Some(prefixes) => {
            format!("{seen_and_written}, with key prefixes of {}", counted(prefixes.len(), "host"))
        }
    }
}

/// A number with its noun.
pub(super) fn counted(count: usize, thing: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{s}")
}

/// A running or wanted configuration in comparable form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Everything but the subsystems.
    pub config: TargetConfig,
    /// The subsystems, resolved.
    pub subsystems: BTreeMap<Nqn, ResolvedSubsystem>,
}

impl Outline {
    /// Creates it from a checked configuration, without secrets.
    #[must_use]
    pub fn new(config: &TargetConfig, identity: &TargetIdentity) -> Self {
        Self { config: config.clone(), subsystems: config.resolve(identity) }
    }

    /// Creates it from a checked configuration, and reads the secrets. May block.
    ///
    /// # Errors
    /// The secrets that cannot be read.
    pub(super) fn with_secrets(
        config: &TargetConfig,
        identity: &TargetIdentity,
    ) -> Result<Self, Vec<Problem>> {
        let mut outline = Self::new(config, identity);
        for (nqn, authentication) in config.read_secrets()? {
            let resolved = outline.subsystems.get_mut(&nqn);
            resolved.into_iter().for_each(|resolved| resolved.authentication = Arc::clone(&authentication));
        }
        Ok(outline)
    }
}

/// The changes that lead from the running to the wanted configuration, in an applicable order: removals, then changes,
/// then additions.
#[must_use]
pub fn diff(running: &Outline, wanted: &Outline) -> Vec<Change> {
    let mut changes = Vec::new();
    listeners(&running.config.listeners, &wanted.config.listeners, &mut changes);
    memcached_listeners(&running.config.memcached, &wanted.config.memcached, &mut changes);
    if running.config.discovery.referrals != wanted.config.discovery.referrals {
        changes.push(Change::SetReferrals(wanted.config.discovery.referrals.clone()));
    }
    let (before, after) = (&running.config.reactors, &wanted.config.reactors);
    if before.placement != after.placement {
        changes.push(Change::SetPlacement(after.placement));
    }
    if before.doorbell != after.doorbell {
        changes.push(Change::SetDoorbell(after.doorbell));
    }
    if running.config.log.slow != wanted.config.log.slow {
        changes.push(Change::SetSlow(wanted.config.log.slow));
    }
    for nqn in running.subsystems.keys().filter(|nqn| !wanted.subsystems.contains_key(nqn)) {
        changes.push(Change::RemoveSubsystem(nqn.clone()));
    }
    let (mut removed, mut changed, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for (nqn, wanted) in &wanted.subsystems {
        match running.subsystems.get(nqn) {
            Some(running) => subsystem(running, wanted, &mut removed, &mut changed, &mut added),
            None => {
                added.push(Change::AddSubsystem(wanted.clone()));
                let namespaces = wanted.namespaces.iter();
                let new = |(nsid, namespace): (&Nsid, &ResolvedNamespace)| {
                    Change::AddNamespace(nqn.clone(), *nsid, namespace.clone())
                };
                added.extend(namespaces.map(new));
            }
        }
    }
    changes.extend(removed.into_iter().chain(changed).chain(added));
    restart(&running.config, &wanted.config, &mut changes);
    changes
}

fn listeners(running: &[ListenerConfig], wanted: &[ListenerConfig], changes: &mut Vec<Change>) {
    // Listeners on port 0 have the same address in the configuration: each is paired with one.
    let mut unpaired: Vec<&ListenerConfig> = running.iter().collect();
    let (mut changed, mut added) = (Vec::new(), Vec::new());
    for listener in wanted {
        match unpaired.iter().position(|running| running.address == listener.address) {
            Some(at) if unpaired.remove(at) == listener => {}
            Some(_) => changed.push(Change::ChangeListener(listener.clone())),
            None => added.push(Change::AddListener(listener.clone())),
        }
    }
    changes.extend(unpaired.iter().map(|listener| Change::RemoveListener(listener.address)));
    changes.extend(changed.into_iter().chain(added));
}

fn memcached_listeners(
    running: &[MemcachedListenerConfig],
    wanted: &[MemcachedListenerConfig],
    changes: &mut Vec<Change>,
) {
    let mut unpaired: Vec<&MemcachedListenerConfig> = running.iter().collect();
    let (mut changed, mut added) = (Vec::new(), Vec::new());
    for listener in wanted {
        let address = &listener.address;
        match unpaired.iter().position(|running| running.address.is_same_place(address)) {
            Some(at) => {
                let running = unpaired.remove(at);
                if running.address != *address {
                    added.push(Change::Refused {
                        what: format!("change memcached listener {} to {address}", running.address),
                        why: "its file has its permissions already: remove the listener, reload, and add it again"
                            .into(),
                    });
                } else if running != listener {
                    changed.push(Change::ChangeMemcachedListener(listener.clone()));
                }
            }
            None => added.push(Change::AddMemcachedListener(listener.clone())),
        }
    }
    changes.extend(unpaired.iter().map(|running| Change::RemoveMemcachedListener(running.address.clone())));
    changes.extend(changed.into_iter().chain(added));
}

fn subsystem(
    running: &ResolvedSubsystem,
    wanted: &ResolvedSubsystem,
    removed: &mut Vec<Change>,
    changed: &mut Vec<Change>,
    added: &mut Vec<Change>,
) {
    let nqn = &wanted.nqn;
    if running.access != wanted.access {
        changed.push(Change::SetAccess(nqn.clone(), wanted.access.clone()));
    }
    if running.authentication != wanted.authentication {
        changed.push(Change::SetAuthentication(nqn.clone(), Arc::clone(&wanted.authentication)));
    }
    let shares = |subsystem: &ResolvedSubsystem| subsystem.namespaces.values().any(|it| it.spec.is_shared());
    if running.cntlids != wanted.cntlids && shares(running) && shares(wanted) {
        changed.push(Change::Refused {
            what: format!("set the controller ids of {nqn}"),
            why: "other targets that share an image with this one rely on them: restart".into(),
        });
    } else if running.cntlids != wanted.cntlids {
        changed.push(Change::SetCntlids(nqn.clone(), wanted.cntlids.clone()));
    }
    if running.doorbell != wanted.doorbell {
        changed.push(Change::SetSubsystemDoorbell(nqn.clone(), wanted.doorbell));
    }
    if running.host_meters != wanted.host_meters {
        let limits = wanted.host_meters.iter().map(|(host, meter)| (host.clone(), meter.limits));
        changed.push(Change::SetHostLimits(nqn.clone(), limits.collect()));
    }
    if (&running.serial, &running.model) != (&wanted.serial, &wanted.model) {
        // Hosts keep the first values they saw, and refuse a controller with others.
        changed.push(Change::NeedsRestart(format!("serial or model of {nqn}")));
    }
    if let Some(refused) = renumbered(running, wanted) {
        changed.push(refused);
        return;
    }
    for (nsid, namespace) in &running.namespaces {
        match wanted.namespaces.get(nsid) {
            Some(wanted) => {
                // Where other storage is refused, its rights are not those of the storage that stays.
                if namespace.rights != wanted.rights && is_same_storage(namespace, wanted) {
                    changed.push(Change::SetRights(nqn.clone(), *nsid, wanted.rights.clone()));
                }
                if namespace.limits != wanted.limits && is_same_storage(namespace, wanted) {
                    changed.push(Change::SetNamespaceLimits(nqn.clone(), *nsid, wanted.limits));
                }
                changed.extend(in_place(nqn, *nsid, namespace, wanted));
            }
            None => removed.push(Change::RemoveNamespace(nqn.clone(), *nsid, namespace.spec.clone())),
        }
    }
    let new = wanted.namespaces.iter().filter(|(nsid, _)| !running.namespaces.contains_key(nsid));
    added.extend(new.map(|(nsid, namespace)| Change::AddNamespace(nqn.clone(), *nsid, namespace.clone())));
}

/// Whether implicit numbering would move storage to other namespace ids while hosts use it.
fn renumbered(running: &ResolvedSubsystem, wanted: &ResolvedSubsystem) -> Option<Change> {
    let is_same = |one: &Spec, other: &Spec| match (storage_name(one), storage_name(other)) {
        (Some(one), Some(other)) => one == other,
        (None, None) => one == other,
        _ => false,
    };
    for (nsid, namespace) in wanted.namespaces.iter().filter(|(_, namespace)| !namespace.is_numbered) {
        let is_this = |running: &ResolvedNamespace| is_same(&running.spec, &namespace.spec);
        if running.namespaces.get(nsid).is_some_and(is_this) {
            continue;
        }
        let before = running.namespaces.iter().find(|(_, running)| is_this(running));
        if let Some((before, ResolvedNamespace { spec, uuid, .. })) = before {
            // With the namespace id alone it would get the identity of that id.
            return Some(Change::Refused {
                what: format!("change the namespaces of {}", wanted.nqn),
                why: format!(
                    "{spec} would get the number {nsid} under its hosts: write nsid = {before}, uuid = \"{uuid}\" with it"
                ),
            });
        }
    }
    None
}

/// Whether a namespace keeps its storage, or storage of the same contents.
fn is_same_storage(running: &ResolvedNamespace, wanted: &ResolvedNamespace) -> bool {
    storage_name(&running.spec) == storage_name(&wanted.spec)
        && discriminant(&running.spec.source) == discriminant(&wanted.spec.source)
}

/// The change of a namespace that keeps its number.
fn in_place(nqn: &Nqn, nsid: Nsid, running: &ResolvedNamespace, wanted: &ResolvedNamespace) -> Vec<Change> {
    let is_null = |spec: &Spec| matches!(spec.source, Source::Null { .. });
    // Hosts write cached data of the old storage to the new. Storage without contents cannot differ.
    if !is_same_storage(running, wanted) {
        return vec![Change::Refused {
            what: format!("put {} in the place of {nqn} namespace {nsid}", wanted.spec),
            why: format!(
                "hosts would take it for {}, and mix what they have cached of the one with the other: give the new storage an nsid of its \
                 own, and remove namespace {nsid} when nothing uses it",
                running.spec
            ),
        }];
    }
    // Linux drops a namespace whose identity changes, and finds it again only on a manual rescan. wire §10.3
    if (running.uuid, running.nguid) != (wanted.uuid, wanted.nguid) {
        let (uuid, nguid) = (running.uuid, Uuid::from_bytes(running.nguid));
        let given = if running.nguid == running.uuid.to_bytes() {
            format!("uuid = \"{uuid}\"")
        } else {
            format!("uuid = \"{uuid}\", nguid = \"{nguid}\"")
        };
        return vec![Change::Refused {
            what: format!("give {nqn} namespace {nsid} the uuid {}", wanted.uuid),
            why: format!(
                "hosts would lose the disk that they know as {uuid}: keep {given}, or remove the namespace, reload, and add it again \
                 under another nsid"
            ),
        }];
    }
    if same_but_size(&running.spec, &wanted.spec) {
        let (before, after) = (size(&running.spec), size(&wanted.spec));
        let is_in_memory = matches!(
            wanted.spec.source,
            Source::Memory { .. } | Source::Null { .. } | Source::KeyValue { .. }
        );
        return match after.filter(|after| before != Some(*after)) {
            None if running.spec.memory_setting() != wanted.spec.memory_setting() => {
                let (spec, bytes) = (wanted.spec.clone(), wanted.spec.memory_bytes());
                vec![Change::SetMemory { subsystem: nqn.clone(), nsid, spec, bytes }]
            }
            None => Vec::new(),
            Some(after) if before.is_some_and(|before| after < before) && !is_in_memory => {
                vec![Change::Refused {
                    what: format!("cut {nqn} namespace {nsid} to {}", Size(after)),
                    why: "what lies behind would be lost: remove it from the configuration, cut the file, and add it \
                          again"
                        .into(),
                }]
            }
            Some(bytes) => {
                let spec = wanted.spec.clone();
                vec![Change::ResizeNamespace { subsystem: nqn.clone(), nsid, spec, bytes }]
            }
        };
    }
    if !is_null(&wanted.spec) {
        return vec![Change::Refused {
            what: format!("make {nqn} namespace {nsid} {}", wanted.spec),
            why: format!(
                "it is open as {}: remove it from the configuration, and add it again after a reload, or restart",
                running.spec
            ),
        }];
    }
    vec![Change::ReplaceNamespace(nqn.clone(), nsid, wanted.clone())]
}

/// Whether two specifications differ only in the size of the storage, its memory, and the identity, which is compared
/// elsewhere.
fn same_but_size(one: &Spec, other: &Spec) -> bool {
    let shape = |spec: &Spec| {
        let mut spec = Spec { uuid: None, ..spec.clone() };
        match &mut spec.source {
            Source::Memory { bytes, .. } | Source::Null { bytes } | Source::KeyValue { bytes, .. } => {
                *bytes = 0;
            }
            Source::File { bytes, .. } => *bytes = None,
            Source::KeyValueFile { bytes, memory_bytes, .. } => (*bytes, *memory_bytes) = (None, None),
            Source::KeyValueRados(place) => place.memory_bytes = 0,
            // The size of a new image is nothing to the one there is, and controller IDs are compared elsewhere.
            Source::Rbd(place) => (place.create_bytes, place.sharing) = (None, None),
            Source::Device { .. } | Source::Volume { .. } | Source::Nbd(_) | Source::VhostUser(_) => {}
        }
        spec
    };
    shape(one) == shape(other)
}

/// The size in a specification.
fn size(spec: &Spec) -> Option<u64> {
    match spec.source {
        Source::Memory { bytes, .. } | Source::Null { bytes } | Source::KeyValue { bytes, .. } => Some(bytes),
        Source::File { bytes, .. } | Source::KeyValueFile { bytes, .. } => bytes,
        Source::Device { .. }
        | Source::Volume { .. }
        | Source::KeyValueRados(_)
        | Source::Rbd(_)
        | Source::Nbd(_)
        | Source::VhostUser(_) => None,
    }
}

fn restart(running: &TargetConfig, wanted: &TargetConfig, changes: &mut Vec<Change>) {
    // These two change while the target runs.
    let (doorbell, placement) = (wanted.reactors.doorbell, wanted.reactors.placement);
    let reactors = ReactorConfig { doorbell, placement, ..running.reactors.clone() };
    // The keys of callers are followed.
    let control = ControlConfig { tls_keys: wanted.control.tls_keys.clone(), ..running.control.clone() };
    let differing = [
        ("reactors", reactors != wanted.reactors),
        ("machine", running.machine != wanted.machine),
        ("limits", running.limits != wanted.limits),
        ("timeouts", running.timeouts != wanted.timeouts),
        ("nqn of discovery", running.discovery.nqn != wanted.discovery.nqn),
        ("control socket", control != wanted.control),
    ];
    let differing = differing.iter().filter(|(_, differs)| *differs);
    changes.extend(differing.map(|(what, _)| Change::NeedsRestart((*what).to_owned())));
}
