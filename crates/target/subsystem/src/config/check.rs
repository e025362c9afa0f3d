//! Checks of a configuration: contradictions and values out of range, found before anything is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proto::WINDOW_COUNT_MAX;
use proto::handshake::H2C_DATA_BYTES_MIN;
use reactor::{BUSY_POLL_BUDGET_MAX, BUSY_POLL_US_MAX};
use security::group::Group;
use security::psk::Cipher;
use store::{Size, Source};
use wire::id::Cntlid;
use wire::nqn::HostName;
use wire::uuid::Uuid;

use super::{ListenerConfig, MemcachedAddress, SubsystemConfig, TargetConfig, Threads, TlsPolicy};
use crate::names::allow_list::AllowList;
use crate::names::identity::storage_name;
use crate::objects::access::HostRights;
use crate::objects::authentication::{Authentication, RefusedAgain};
use crate::objects::key_rights::KeyRights;
use crate::objects::subsystem::Access;

/// The place of a problem: the position in the lists of a [`TargetConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigPlace {
    /// The identifier of the machine.
    Machine,
    /// Reactors: which key.
    Reactors(&'static str),
    /// Limits: which key.
    Limits(&'static str),
    /// Timeouts: which key.
    Timeouts(&'static str),
    /// A listener.
    Listener(usize),
    /// A memcached listener.
    Memcached(usize),
    /// The name of the discovery service.
    DiscoveryNqn,
    /// A referral.
    Referral(usize),
    /// A subsystem: which key.
    Subsystem(usize, &'static str),
    /// The audit log.
    Audit,
    /// The control socket: which key.
    Control(&'static str),
    /// Metrics.
    Metrics,
    /// A pool of volumes: which key.
    Pool(usize, &'static str),
    /// A namespace of a subsystem: which key.
    Namespace(usize, usize, &'static str),
}

/// A problem of the configuration, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// Its place.
    pub place: ConfigPlace,
    /// The line to show.
    pub message: String,
}

/// Collects problems.
pub(super) struct Findings(Vec<Problem>);

impl Findings {
    pub(super) fn add(&mut self, place: ConfigPlace, message: String) {
        self.0.push(Problem { place, message });
    }

    /// Notes a number that is not in its range.
    fn range(&mut self, place: ConfigPlace, name: &str, value: u64, range: std::ops::RangeInclusive<u64>) {
        if !range.contains(&value) {
            let (first, last) = range.into_inner();
            self.add(place, format!("{name} is {value}: take {first} to {last}"));
        }
    }
}

/// How the findings about listeners that demand a generated key begin.
const CONCATENATED: &str = "tls = \"concatenated\": a host generates a key of TLS";

/// The most connections: more would not fit into the numbers of lanes and sockets.
const CONNECTION_COUNT_MAX: u64 = 1 << 20;

/// The largest transfer, bytes: its data lies in one buffer of a reactor's pool.
const TRANSFER_BYTES_MAX: u32 = 4 << 20;
const _: () = assert!(TRANSFER_BYTES_MAX as usize == memory::BLOCK_BYTES_MAX);

/// The largest in-capsule data, bytes.
const IN_CAPSULE_BYTES_MAX: u32 = 64 << 10;

impl TargetConfig {
    /// The problems of the configuration, in its order; empty if it is valid.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        let mut findings = Findings(Vec::new());
        self.check_reactors(&mut findings);
        self.check_limits(&mut findings);
        self.check_timeouts(&mut findings);
        self.check_listeners(&mut findings);
        self.check_discovery(&mut findings);
        self.check_subsystems(&mut findings);
        self.check_tls(&mut findings);
        self.check_concatenation(&mut findings);
        self.check_identities(&mut findings);
        self.check_control(&mut findings);
        self.check_pools(&mut findings);
        findings.0
    }

    fn check_reactors(&self, findings: &mut Findings) {
        if let Threads::Count(count) = self.reactors.threads {
            findings.range(ConfigPlace::Reactors("count"), "count", count.into(), 1..=1024);
        }
        let busy_poll = self.reactors.busy_poll;
        let wait_us = busy_poll.wait_us.into();
        let most_us = u64::from(BUSY_POLL_US_MAX);
        findings.range(ConfigPlace::Reactors("busy_poll_us"), "busy_poll_us", wait_us, 0..=most_us);
        if let Some(budget) = busy_poll.budget {
            let most = BUSY_POLL_BUDGET_MAX.into();
            findings.range(
                ConfigPlace::Reactors("busy_poll_budget"),
                "busy_poll_budget",
                budget.into(),
                1..=most,
            );
        }
        for (key, is_said) in
            [("prefer_busy_poll", busy_poll.prefers), ("busy_poll_budget", busy_poll.budget.is_some())]
        {
            if is_said && !busy_poll.is_on() {
                let message =
                    format!("{key} says how to poll, but busy_poll_us is 0: set it, or leave this out");
                findings.add(ConfigPlace::Reactors(key), message);
            }
        }
        // One transfer, and some space for everything else.
        let least = 4 * u64::from(self.limits.transfer_bytes_max);
        if (self.reactors.pool_bytes as u64) < least {
            let (pool, least) = (Size(self.reactors.pool_bytes as u64), Size(least));
            let message = format!(
                "a pool of {pool} is too small for transfers as large as allowed: take {least} or more"
            );
            findings.add(ConfigPlace::Reactors("pool"), message);
        }
    }

    /// The target may have another working directory than the one that writes or reads these paths.
    fn check_control(&self, findings: &mut Findings) {
        let control = &self.control;
        for (key, path) in [("socket", &control.socket), ("changes", &control.changes)] {
            if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
                let message = format!("{key} is {}: write an absolute path", path.display());
                findings.add(ConfigPlace::Control(key), message);
            }
        }
        if !control.is_on() && control.changes.is_some() {
            let message = "changes are made through the control socket: add socket, or leave this out".into();
            findings.add(ConfigPlace::Control("changes"), message);
        }
        match control.tls {
            Some(_) if control.tls_keys.is_empty() => {
                let message = "nobody has a key for the control port: name each caller with its key, \
                               tls_keys = { csi = \"file:PATH\" } (--control-key csi=file:PATH)";
                findings.add(ConfigPlace::Control("tls"), message.into());
            }
            None if !control.tls_keys.is_empty() => {
                let message = "there is no control port for these callers: add tls = \"ADDR:PORT\" (--control-tls ADDR:PORT)";
                findings.add(ConfigPlace::Control("tls_keys"), message.into());
            }
            _ => {}
        }
        if let Some(message) = control.tls.and_then(not_listenable) {
            findings.add(ConfigPlace::Control("tls"), message);
        }
    }

    fn check_limits(&self, findings: &mut Findings) {
        let limits = &self.limits;
        let transfer = limits.transfer_bytes_max;
        if !transfer.is_power_of_two() || !(8192..=TRANSFER_BYTES_MAX).contains(&transfer) {
            let (given, most) = (Size(transfer.into()), Size(TRANSFER_BYTES_MAX.into()));
            findings.add(
                ConfigPlace::Limits("transfer"),
                format!("transfer is {given}: take a power of two from 8K to {most}"),
            );
        }
        for (key, bytes) in
            [("in_capsule", limits.in_capsule_bytes), ("kv_in_capsule", limits.key_value_in_capsule_bytes)]
        {
            if !bytes.is_multiple_of(16) || bytes > IN_CAPSULE_BYTES_MAX {
                let message = format!("{key} is {bytes}: take a multiple of 16 up to 64K");
                findings.add(ConfigPlace::Limits(key), message);
            }
        }
        for (key, bytes, least) in [
            ("h2c_data", limits.h2c_data_bytes_max, H2C_DATA_BYTES_MIN),
            ("window", limits.window_bytes_max, 4),
        ] {
            if !bytes.is_multiple_of(4) || !(least..=TRANSFER_BYTES_MAX).contains(&bytes) {
                let most = Size(TRANSFER_BYTES_MAX.into());
                let message = format!("{key} is {bytes}: take a multiple of 4 from {least} to {most}");
                findings.add(ConfigPlace::Limits(key), message);
            }
        }
        let mut range = |key, value: u64, range| findings.range(ConfigPlace::Limits(key), key, value, range);
        range("windows", limits.window_count_max.into(), 1..=WINDOW_COUNT_MAX as u64);
        range("queue_entries", limits.queue_entries_max.into(), 16..=proto::SLOT_COUNT_MAX.into());
        range("io_queues", limits.io_queue_count_max.into(), 1..=1024);
        range("controllers", limits.controller_count_max as u64, 1..=u64::from(Cntlid::MAX.get()));
        range(
            "controllers_per_host",
            limits.controller_count_per_host_max as u64,
            1..=u64::from(Cntlid::MAX.get()),
        );
        // One association with one I/O queue, at least.
        range("connections", limits.connection_count_max.into(), 2..=CONNECTION_COUNT_MAX);
        let per_address = limits.connection_count_per_address_max.into();
        range("connections_per_address", per_address, 2..=CONNECTION_COUNT_MAX);
        let memcached = [
            ("memcached_connections", limits.memcached_connection_count_max),
            ("memcached_connections_per_address", limits.memcached_connection_count_per_address_max),
        ];
        for (key, count) in memcached {
            range(key, count.into(), 1..=CONNECTION_COUNT_MAX);
        }
        range("unconnected", limits.unconnected_count_max.into(), 16..=CONNECTION_COUNT_MAX);
        range("connections_per_s", limits.connections_per_s_max.into(), 10..=1_000_000);
    }

    fn check_timeouts(&self, findings: &mut Findings) {
        let timeouts = &self.timeouts;
        for (key, timeout_ms) in [
            ("connect_s", timeouts.connect_ms),
            ("pdu_s", timeouts.pdu_ms),
            ("send_s", timeouts.send_ms),
            ("data_s", timeouts.data_ms),
            ("contended_s", timeouts.contended_ms),
        ] {
            if timeout_ms == 0 {
                findings.add(
                    ConfigPlace::Timeouts(key),
                    format!("{key} is 0: no peer could meet it, take 1 or more"),
                );
            }
        }
    }

    fn check_listeners(&self, findings: &mut Findings) {
        if self.listeners.is_empty() {
            findings.add(
                ConfigPlace::Listener(0),
                "there is no listener: add one, so that hosts can connect".into(),
            );
        }
        for (at, listener) in self.listeners.iter().enumerate() {
            let address = listener.address;
            if !listener.subsystems && !listener.discovery {
                let message =
                    format!("the listener on {address} leads to nothing: turn on subsystems or discovery");
                findings.add(ConfigPlace::Listener(at), message);
            }
            if let Some(message) = not_listenable(address) {
                findings.add(ConfigPlace::Listener(at), message);
            }
            let overlaps = |other: &SocketAddr| {
                let is_wild = address.ip().is_unspecified() || other.ip().is_unspecified();
                let same_family = address.is_ipv4() == other.is_ipv4();
                address.port() != 0
                    && address.port() == other.port()
                    && (address.ip() == other.ip() || is_wild && same_family)
            };
            let before = self.listeners[..at].iter().map(|listener| listener.address);
            if let Some(other) = before.into_iter().find(overlaps) {
                let message = format!("the listeners on {other} and {address} overlap: remove one of them");
                findings.add(ConfigPlace::Listener(at), message);
            }
        }
        let has_keys = |subsystem: &SubsystemConfig| {
            subsystem.namespaces.iter().any(|namespace| namespace.storage.is_key_value())
        };
        if !self.memcached.is_empty() && !self.subsystems.iter().any(has_keys) {
            let message = "memcached's clients need a key-value namespace: add one, such as kv:ram:1G".into();
            findings.add(ConfigPlace::Memcached(0), message);
        }
        for (at, listener) in self.memcached.iter().enumerate() {
            if let Some(message) = listener.address.ip().and_then(not_listenable) {
                findings.add(ConfigPlace::Memcached(at), message);
            }
            if listener.address.ip().is_none() && listener.allow != AllowList::Any {
                let message = format!(
                    "{} is a Unix socket, whose clients have no address: leave allow out, and set the permissions of its file \
                     (?mode=0660)",
                    listener.address
                );
                findings.add(ConfigPlace::Memcached(at), message);
            }
        }
        self.check_memcached(findings);
        self.check_partition_ports(findings);
        let has_subsystems = self.listeners.iter().any(|listener| listener.subsystems);
        if !has_subsystems && !self.subsystems.is_empty() && !self.listeners.is_empty() {
            let message = "no listener leads to subsystems: turn subsystems on for one of them".into();
            findings.add(ConfigPlace::Listener(0), message);
        }
    }

    /// memcached's clients have no identity that a list of hosts could be compared with. They are led to the oldest
    /// namespace with keys, which after reloads may be that of any subsystem.
    fn check_memcached(&self, findings: &mut Findings) {
        let Some(address) = self.memcached.first().map(|listener| &listener.address) else { return };
        for (at, subsystem) in self.subsystems.iter().enumerate() {
            if subsystem.opens_to_memcached {
                continue;
            }
            for (namespace_at, namespace) in subsystem.namespaces.iter().enumerate() {
                if namespace.storage.is_key_value() && namespace.rights != HostRights::ALL {
                    let message = format!(
                        "a namespace of {} is for certain hosts only, but the memcached listener on {address} opens keys to anyone who \
                         reaches it: write memcached = \"any\" in the subsystem if that is meant, or serve one of them from a target of \
                         its own",
                        subsystem.nqn
                    );
                    let key = match &namespace.rights {
                        HostRights { visible_to: Access::Only(_), .. } => "hosts",
                        HostRights { writable_by: Access::Only(_), .. } => "write_hosts",
                        _ => "key_prefixes",
                    };
                    findings.add(ConfigPlace::Namespace(at, namespace_at, key), message);
                }
            }
            let has_keys = subsystem.namespaces.iter().any(|namespace| namespace.storage.is_key_value());
            if has_keys && matches!(subsystem.access, Access::Only(_)) {
                let message = format!(
                    "{} is for certain hosts only, but the memcached listener on {address} opens keys to anyone who reaches it: write \
                     memcached = \"any\" beside hosts if that is meant, or serve one of them from a target of its own",
                    subsystem.nqn
                );
                findings.add(ConfigPlace::Subsystem(at, "hosts"), message);
            }
        }
    }

    /// Checks listeners with `?partitions`. A key may be in several partitions there, so no plain listener and no second
    /// key-value namespace may be beside them.
    fn check_partition_ports(&self, findings: &mut Findings) {
        let Some(at) = self.memcached.iter().position(|listener| listener.address.is_by_partition()) else {
            return;
        };
        let (place, address) = (ConfigPlace::Memcached(at), &self.memcached[at].address);
        if let Some(plain) = self.memcached.iter().find(|listener| !listener.address.is_by_partition()) {
            let message = format!(
                "each port of {address} has keys of its own, which clients of {} would find only in part: give ?partitions to both, or \
                 to none",
                plain.address
            );
            findings.add(place, message);
        }
        let namespaces = self.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let specs: Vec<_> =
            namespaces.map(|namespace| &namespace.storage).filter(|spec| spec.is_key_value()).collect();
        match specs[..] {
            // Reported by those before.
            [] => {}
            [spec] if matches!(spec.source, Source::KeyValue { .. }) => {}
            [spec] => {
                let message = format!(
                    "{address} has a port for each partition in memory, and {spec} is in a file: take kv:ram, or leave ?partitions out"
                );
                findings.add(place, message);
            }
            _ => {
                let message = format!(
                    "{address} has a port for each partition of the key-value namespace, and there are {} of them, which no host would \
                     see: serve the others from a target of their own",
                    specs.len()
                );
                findings.add(place, message);
            }
        }
        let count = self.reactors.threads.count();
        for (at, listener) in self.memcached.iter().enumerate() {
            let MemcachedAddress::Partitions(first) = &listener.address else { continue };
            if first.port() != 0 && usize::from(first.port()) + count > 1 << 16 {
                let message = format!(
                    "{} needs a port for each of {count} reactors, and the last port is 65535: begin at {} or below",
                    listener.address,
                    (1 << 16) - count
                );
                findings.add(ConfigPlace::Memcached(at), message);
            }
        }
    }

    fn check_discovery(&self, findings: &mut Findings) {
        if self.discovery.nqn.as_ref().is_some_and(wire::nqn::Nqn::is_discovery) {
            let message = "this is the name of every discovery service, which this one answers to anyway: \
                           give it one of its own, or none";
            findings.add(ConfigPlace::DiscoveryNqn, message.into());
        }
        for (at, referral) in self.discovery.referrals.iter().enumerate() {
            let is_ours = |listener: &super::ListenerConfig| {
                let advertised = listener.advertise.map(|advertised| {
                    SocketAddr::new(advertised.ip, advertised.port.unwrap_or(listener.address.port()))
                });
                listener.address == referral.address || advertised == Some(referral.address)
            };
            // Older tools follow referrals in circles. wire §20
            if self.listeners.iter().any(is_ours) {
                let message =
                    format!("the referral to {} leads back to this target: remove it", referral.address);
                findings.add(ConfigPlace::Referral(at), message);
            }
        }
    }

    fn check_subsystems(&self, findings: &mut Findings) {
        let mut names = BTreeSet::new();
        for (at, subsystem) in self.subsystems.iter().enumerate() {
            let nqn = &subsystem.nqn;
            if !names.insert(nqn) {
                findings.add(
                    ConfigPlace::Subsystem(at, "nqn"),
                    format!("there are two subsystems {nqn}: rename or remove one"),
                );
            }
            if nqn.is_discovery() || self.discovery.nqn.as_ref() == Some(nqn) {
                let message =
                    format!("{nqn} is the name of the discovery service: give the subsystem another one");
                findings.add(ConfigPlace::Subsystem(at, "nqn"), message);
            }
            check_text(
                findings,
                ConfigPlace::Subsystem(at, "serial"),
                "serial",
                subsystem.serial.as_deref(),
                20,
            );
            check_text(findings, ConfigPlace::Subsystem(at, "model"), "model", Some(&subsystem.model), 40);
            let (first, last) = (*subsystem.cntlids.start(), *subsystem.cntlids.end());
            if first == 0 || first > last || last > Cntlid::MAX.get() {
                let message =
                    format!("controller ids {first} to {last}: take a range within 1 to {}", Cntlid::MAX);
                findings.add(ConfigPlace::Subsystem(at, "cntlids"), message);
            }
            check_hosts(at, subsystem, findings);
            check_secrets(at, subsystem, findings);
            self.check_namespaces(at, findings);
            check_rights(at, subsystem, findings);
        }
    }

    /// Listeners with TLS and keys belong together.
    fn check_tls(&self, findings: &mut Findings) {
        let with_tls = self.listeners.iter().position(|listener| listener.tls != TlsPolicy::Off);
        let with_key = self.subsystems.iter().position(|subsystem| !subsystem.tls_keys.is_empty());
        // Where TLS is allowed, hosts with a secret generate a key by authenticating on an unencrypted connection.
        let is_allowed = self
            .listeners
            .iter()
            .any(|listener| matches!(listener.tls, TlsPolicy::Allowed | TlsPolicy::Concatenated));
        let with_secret = self.subsystems.iter().any(|subsystem| !subsystem.authentication.is_empty());
        match (with_tls, with_key) {
            (Some(_), None) if is_allowed && with_secret => {}
            (Some(at), None) => {
                let message = "the listener speaks TLS, but no host has a key: add tls_key to a subsystem, or, with tls = \
                               \"allowed\" or \"concatenated\", dhchap_secret for hosts that generate one (nvme connect --concat)"
                    .into();
                findings.add(ConfigPlace::Listener(at), message);
            }
            (None, Some(at)) => {
                let message =
                    "there is a key, but no listener speaks TLS: add tls = \"required\" to one".into();
                findings.add(ConfigPlace::Subsystem(at, "tls_key"), message);
            }
            _ => {}
        }
    }

    /// Hosts must be able to generate a key where a listener demands that.
    fn check_concatenation(&self, findings: &mut Findings) {
        // Without keys and secrets there is a finding about TLS itself.
        let has_key = self.subsystems.iter().any(|subsystem| !subsystem.tls_keys.is_empty());
        let demands = |listener: &ListenerConfig| listener.tls == TlsPolicy::Concatenated;
        for (at, listener) in self.listeners.iter().enumerate().filter(|(_, listener)| demands(listener)) {
            if !listener.subsystems {
                let message = "tls = \"concatenated\": discovery does not authenticate, so no host generates a key on a \
                               listener for discovery alone: write off, allowed or required"
                    .into();
                findings.add(ConfigPlace::Listener(at), message);
            } else if has_key && self.subsystems.iter().all(|subsystem| subsystem.authentication.is_empty()) {
                let message = format!(
                    "{CONCATENATED} with its secret, but no host has one: add dhchap_secret to a subsystem"
                );
                findings.add(ConfigPlace::Listener(at), message);
            }
        }
        if !self.listeners.iter().any(demands) {
            return;
        }
        for (at, subsystem) in self.subsystems.iter().enumerate() {
            let Authentication { hashes, groups, .. } = &subsystem.authentication;
            if !hashes.iter().any(|hash| Cipher::of(*hash).is_some()) {
                let message = format!("{CONCATENATED} with sha256 or sha384: add one of them");
                findings.add(ConfigPlace::Subsystem(at, "dhchap_hash"), message);
            }
            if groups.iter().all(|group| *group == Group::Null) {
                let message = format!("{CONCATENATED} with a Diffie-Hellman group: add ffdhe2048, say");
                findings.add(ConfigPlace::Subsystem(at, "dhchap_dhgroup"), message);
            }
        }
    }

    fn check_namespaces(&self, subsystem_at: usize, findings: &mut Findings) {
        let subsystem = &self.subsystems[subsystem_at];
        let authentication = &subsystem.authentication;
        if authentication.refused_again == RefusedAgain::Keep && authentication.is_empty() {
            let message = "refused_reauthentication = \"keep\" is for hosts that authenticate, and none has a secret: add \
                           dhchap_secret, or leave it out"
                .into();
            findings.add(ConfigPlace::Subsystem(subsystem_at, "refused_reauthentication"), message);
        }
        let mut numbers = BTreeSet::new();
        for (at, namespace) in subsystem.namespaces.iter().enumerate() {
            let place = |key| ConfigPlace::Namespace(subsystem_at, at, key);
            if let Some(nsid) = namespace.nsid {
                findings.range(place("nsid"), "nsid", nsid.get().into(), 1..=self.limits.nsid_max.into());
                if !numbers.insert(nsid) {
                    let message =
                        format!("{} has two namespaces {nsid}: give one another number", subsystem.nqn);
                    findings.add(place("nsid"), message);
                }
            }
            if let (Some(given), Some(specified)) = (namespace.uuid, namespace.storage.uuid)
                && given != specified
            {
                let message = "the storage says another uuid: leave one of them out".into();
                findings.add(place("uuid"), message);
            }
            if namespace.uuid.or(namespace.storage.uuid).is_some_and(wire::uuid::Uuid::is_nil) {
                findings.add(
                    place("uuid"),
                    "a uuid of zeroes identifies nothing: leave it out to have one made".into(),
                );
            }
            if namespace.nguid == Some([0; 16]) {
                findings.add(
                    place("nguid"),
                    "an nguid of zeroes identifies nothing: leave it out to have one made".into(),
                );
            }
        }
        if subsystem.namespaces.len() > self.limits.nsid_max as usize {
            let message =
                format!("more than {} namespaces: put some into another subsystem", self.limits.nsid_max);
            findings.add(ConfigPlace::Subsystem(subsystem_at, "nqn"), message);
        }
    }

    /// No two namespaces of the target may share an identity, or write to the same place.
    fn check_identities(&self, findings: &mut Findings) {
        if !findings.0.is_empty() {
            // Numbers may not make sense yet.
            return;
        }
        let mut by_uuid = BTreeMap::new();
        let mut by_nguid = BTreeMap::new();
        let mut by_storage: BTreeMap<String, (String, bool)> = BTreeMap::new();
        for (subsystem_at, subsystem) in self.subsystems.iter().enumerate() {
            for (at, (nsid, namespace)) in
                subsystem.numbers().into_iter().zip(&subsystem.namespaces).enumerate()
            {
                let place = |key| ConfigPlace::Namespace(subsystem_at, at, key);
                let this = format!("{} namespace {nsid}", subsystem.nqn);
                // Linux refuses the second one. wire §10.3
                let uuid = namespace.uuid();
                let nguid = namespace.nguid.or_else(|| uuid.map(Uuid::to_bytes));
                let same_uuid = uuid.and_then(|uuid| by_uuid.insert(uuid, this.clone()));
                let same_nguid = nguid.filter(|_| same_uuid.is_none());
                let same_nguid = same_nguid.and_then(|nguid| by_nguid.insert(nguid, this.clone()));
                if let Some(other) = same_uuid {
                    let message = format!("{this} has the uuid of {other}: hosts would take them for one");
                    findings.add(place("uuid"), message);
                } else if let Some(other) = same_nguid {
                    let message = format!("{this} has the nguid of {other}: hosts would take them for one");
                    findings.add(place("nguid"), message);
                }
                let Some(name) = storage_name(&namespace.storage) else { continue };
                let is_read_only = namespace.storage.is_read_only;
                match by_storage.get(&name) {
                    Some((other, other_is_read_only)) if !(is_read_only && *other_is_read_only) => {
                        let message = format!(
                            "{this} and {other} have the same storage: two would destroy each other's data, \
                             unless both are readonly"
                        );
                        findings.add(place("storage"), message);
                    }
                    _ => {
                        by_storage.insert(name, (this, is_read_only));
                    }
                }
            }
        }
    }
}

/// Why nothing can listen on an address, whatever addresses the machine has.
fn not_listenable(address: SocketAddr) -> Option<String> {
    let what = match address.ip() {
        ip if ip.is_multicast() => "the address of a group",
        IpAddr::V4(ip) if ip.is_broadcast() => "the address of all machines",
        IpAddr::V4(ip) if ip.octets()[0] >= 240 => "a reserved address",
        _ => return None,
    };
    Some(format!("cannot listen on {address}, {what}: take one of this machine, or 0.0.0.0 or [::] for all"))
}

/// Wildcards in lists of hosts, where they are ordinary names, which no host has.
fn check_hosts(at: usize, subsystem: &SubsystemConfig, findings: &mut Findings) {
    let mut check = |place, access: &Access| {
        let Access::Only(hosts) = access else { return };
        for host in hosts.iter().filter(|host| matches!(host.as_str(), "any" | "all" | "*")) {
            let message = format!(
                "a list names single hosts, and \"{host}\" is none: write hosts = \"any\", without brackets"
            );
            findings.add(place, message);
        }
    };
    check(ConfigPlace::Subsystem(at, "hosts"), &subsystem.access);
    for (namespace_at, namespace) in subsystem.namespaces.iter().enumerate() {
        check(ConfigPlace::Namespace(at, namespace_at, "hosts"), &namespace.rights.visible_to);
        check(ConfigPlace::Namespace(at, namespace_at, "write_hosts"), &namespace.rights.writable_by);
    }
}

/// Secrets that protect nothing: hosts connect under other names without one, or their names are not allowed to
/// connect.
fn check_secrets(at: usize, subsystem: &SubsystemConfig, findings: &mut Findings) {
    let authentication = &subsystem.authentication;
    match &subsystem.access {
        Access::Any if authentication.others.is_none() && !authentication.hosts.is_empty() => {
            let message = format!(
                "some hosts of {} have secrets, but with hosts = \"any\" a host under any other name connects without a secret: list the \
                 hosts, or add dhchap_secret for all others",
                subsystem.nqn
            );
            findings.add(ConfigPlace::Subsystem(at, "hosts"), message);
        }
        Access::Any => {}
        Access::Only(allowed) => {
            for host in authentication.hosts.keys().filter(|host| !allowed.contains(host)) {
                let message =
                    format!("{host} has a secret, but is not in hosts: add it there, or remove its secret");
                findings.add(ConfigPlace::Subsystem(at, "hosts"), message);
            }
        }
    }
}

/// Lists of a namespace that name hosts which other lists keep out.
fn check_rights(at: usize, subsystem: &SubsystemConfig, findings: &mut Findings) {
    let numbers = subsystem.numbers();
    for (namespace_at, (namespace, nsid)) in subsystem.namespaces.iter().zip(numbers).enumerate() {
        let HostRights { visible_to, writable_by, keys } = &namespace.rights;
        if *keys != KeyRights::All && !namespace.storage.is_key_value() {
            let message = format!("namespace {nsid} has blocks, and no keys: remove key_prefixes");
            findings.add(ConfigPlace::Namespace(at, namespace_at, "key_prefixes"), message);
        }
        let mut check = |key, listed: Vec<&HostName>, allowed: &Access, of: &str| {
            for host in listed.into_iter().filter(|host| !allowed.allows(host)) {
                let message = format!(
                    "{host} is in {key} of namespace {nsid}, but not in hosts of {of}: add it there, or remove it here"
                );
                findings.add(ConfigPlace::Namespace(at, namespace_at, key), message);
            }
        };
        check("hosts", visible_to.listed().collect(), &subsystem.access, subsystem.nqn.as_str());
        let (allowed, of) = match visible_to {
            Access::Any => (&subsystem.access, subsystem.nqn.as_str()),
            Access::Only(_) => (visible_to, "the namespace"),
        };
        check("write_hosts", writable_by.listed().collect(), allowed, of);
        check("key_prefixes", keys.listed().collect(), allowed, of);
    }
}

fn check_text(findings: &mut Findings, place: ConfigPlace, name: &str, text: Option<&str>, limit: usize) {
    let Some(text) = text else { return };
    let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if text.trim().is_empty() || text.len() > limit || !is_printable {
        findings.add(place, format!("{name} is {text:?}: take 1 to {limit} printable ASCII characters"));
    }
}
