//! Writes a configuration as TOML: what differs from the defaults, in one form. Reading the text gives the same
//! configuration. Secrets are references there, so the text has none.

use proto::doorbell::Policy as DoorbellPolicy;
use reactor::{EngineKind, SpinPolicy};
use store::Size;
use store::pool::SpaceLow;
use toml::{Table, Value};
use wire::id::Nsid;
use wire::uuid::Uuid;

use super::{
    AuthenticationConfig, ListenerConfig, LivePage, MemcachedListenerConfig, NamespaceConfig, PoolConfig,
    ReactorConfig, SecretSources, SubsystemConfig, TargetConfig, Threads, TimeoutConfig,
};
use crate::names::allow_list::AllowList;
use crate::names::limits::Limits;
use crate::objects::authentication::RefusedAgain;
use crate::objects::discovery::Referral;
use crate::objects::rate_limit::RateLimits;
use crate::objects::subsystem::Access;

/// A table whose keys are left out if they have their defaults.
#[derive(Default)]
struct Writer(Table);

impl Writer {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    fn text(&mut self, key: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.set(key, value.to_string());
        }
    }

    fn number(&mut self, key: &str, value: u64, default: u64) {
        if value != default {
            self.set(key, i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    fn size(&mut self, key: &str, value: u64, default: u64) {
        self.text(key, (value != default).then_some(Size(value)));
    }

    fn texts(&mut self, key: &str, values: Option<impl IntoIterator<Item = String>>) {
        if let Some(values) = values {
            self.set(key, values.into_iter().map(Value::String).collect::<Vec<_>>());
        }
    }

    /// Tables of one kind, if there are any.
    fn tables(&mut self, key: &str, tables: impl Iterator<Item = Self>) {
        let tables: Vec<Value> = tables.map(|table| Value::Table(table.0)).collect();
        if !tables.is_empty() {
            self.set(key, tables);
        }
    }

    /// A table, if anything is in it.
    fn table(&mut self, key: &str, table: Self) {
        if !table.0.is_empty() {
            self.set(key, table.0);
        }
    }
}

impl TargetConfig {
    /// The configuration as TOML. Listeners are there even if they are the default ones, addresses have their ports, and
    /// namespaces a number only if one was given.
    #[must_use]
    pub fn to_toml(&self) -> Table {
        let mut all = Writer::default();
        all.text("machine", self.machine.as_ref());
        all.table("reactors", reactors(&self.reactors));
        all.table("limits", limits(&self.limits));
        all.table("timeouts", timeouts(&self.timeouts));
        let mut discovery = Writer::default();
        discovery.text("nqn", self.discovery.nqn.as_ref());
        discovery.tables("referral", self.discovery.referrals.iter().map(referral));
        all.table("discovery", discovery);
        let mut audit = Writer::default();
        audit.text("file", self.audit.file.as_ref().map(|file| file.display()));
        all.table("audit", audit);
        let mut control = Writer::default();
        control.text("socket", self.control.socket.as_ref().map(|path| path.display()));
        control.text("changes", self.control.changes.as_ref().map(|path| path.display()));
        control.text("tls", self.control.tls);
        let mut tls_keys = Writer::default();
        for (name, source) in &self.control.tls_keys {
            tls_keys.set(&name.to_string(), source.to_string());
        }
        control.table("tls_keys", tls_keys);
        all.table("control", control);
        let mut metrics = Writer::default();
        metrics.text("address", self.metrics.address);
        let live_page = self.metrics.live_page;
        metrics.text("live_page", (live_page != LivePage::default()).then_some(live_page));
        all.table("metrics", metrics);
        let mut log = Writer::default();
        log.text("slow", self.log.slow.is_on().then_some(self.log.slow));
        all.table("log", log);
        all.tables("listener", self.listeners.iter().map(listener));
        all.tables("memcached", self.memcached.iter().map(memcached));
        all.tables("pool", self.pools.iter().map(pool));
        all.tables("subsystem", self.subsystems.iter().map(subsystem));
        all.0
    }

    /// The numbers of the namespaces of each subsystem, in the order of the configuration.
    #[must_use]
    pub fn namespace_numbers(&self) -> Vec<Vec<Nsid>> {
        self.subsystems.iter().map(SubsystemConfig::numbers).collect()
    }
}

fn reactors(reactors: &ReactorConfig) -> Writer {
    let (mut table, defaults) = (Writer::default(), ReactorConfig::default());
    match &reactors.threads {
        Threads::Auto => {}
        Threads::Count(count) => table.set("count", i64::from(*count)),
        Threads::Cores(cores) => table.text("cores", Some(cores)),
    }
    table.text(
        "engine",
        reactors.engine.map(|engine| match engine {
            EngineKind::Uring => "uring",
            EngineKind::Epoll => "epoll",
        }),
    );
    table.text("doorbell", (reactors.doorbell != defaults.doorbell).then_some(reactors.doorbell));
    let spin = match reactors.spin {
        SpinPolicy::Auto => None,
        SpinPolicy::Always => Some("always"),
        SpinPolicy::Never => Some("never"),
    };
    table.text("spin", spin);
    table.text("placement", (reactors.placement != defaults.placement).then_some(reactors.placement));
    let busy_poll = reactors.busy_poll;
    table.number("busy_poll_us", busy_poll.wait_us.into(), 0);
    if busy_poll.prefers {
        table.set("prefer_busy_poll", true);
    }
    if let Some(budget) = busy_poll.budget {
        table.set("busy_poll_budget", i64::from(budget));
    }
    table.text("receive", (reactors.receive != defaults.receive).then_some(reactors.receive));
    table.size("in_place", reactors.in_place_bytes as u64, defaults.in_place_bytes as u64);
    table.text("zero_copy", (reactors.zero_copy != defaults.zero_copy).then_some(reactors.zero_copy));
    table.size("pool", reactors.pool_bytes as u64, defaults.pool_bytes as u64);
    table
}

fn limits(limits: &Limits) -> Writer {
    let (mut table, defaults) = (Writer::default(), Limits::default());
    for (key, of) in [
        ("transfer", (|limits| limits.transfer_bytes_max) as fn(&Limits) -> u32),
        ("in_capsule", |limits| limits.in_capsule_bytes),
        ("kv_in_capsule", |limits| limits.key_value_in_capsule_bytes),
        ("h2c_data", |limits| limits.h2c_data_bytes_max),
        ("window", |limits| limits.window_bytes_max),
    ] {
        table.size(key, of(limits).into(), of(&defaults).into());
    }
    for (key, of) in [
        ("windows", (|limits| limits.window_count_max.into()) as fn(&Limits) -> u64),
        ("alignment", |limits| u64::from(limits.data_alignment.bytes())),
        ("queue_entries", |limits| limits.queue_entries_max.into()),
        ("io_queues", |limits| limits.io_queue_count_max.into()),
        ("controllers", |limits| limits.controller_count_max as u64),
        ("controllers_per_host", |limits| limits.controller_count_per_host_max as u64),
        ("connections", |limits| limits.connection_count_max.into()),
        ("connections_per_address", |limits| limits.connection_count_per_address_max.into()),
        ("memcached_connections", |limits| limits.memcached_connection_count_max.into()),
        ("memcached_connections_per_address", |limits| {
            limits.memcached_connection_count_per_address_max.into()
        }),
        ("unconnected", |limits| limits.unconnected_count_max.into()),
        ("connections_per_s", |limits| limits.connections_per_s_max.into()),
    ] {
        table.number(key, of(limits), of(&defaults));
    }
    table
}

fn timeouts(timeouts: &TimeoutConfig) -> Writer {
    let (mut table, defaults) = (Writer::default(), TimeoutConfig::default());
    for (key, of) in [
        ("connect_s", (|timeouts| timeouts.connect_ms) as fn(&TimeoutConfig) -> u64),
        ("pdu_s", |timeouts| timeouts.pdu_ms),
        ("send_s", |timeouts| timeouts.send_ms),
        ("data_s", |timeouts| timeouts.data_ms),
        ("contended_s", |timeouts| timeouts.contended_ms),
        ("stop_s", |timeouts| timeouts.stop_ms),
        ("memcached_idle_s", |timeouts| timeouts.memcached_idle_ms),
        ("secret_overlap_s", |timeouts| timeouts.secret_overlap_ms),
    ] {
        table.number(key, of(timeouts) / 1000, of(&defaults) / 1000);
    }
    table
}

fn referral(referral: &Referral) -> Writer {
    let mut table = Writer::default();
    table.text("address", Some(referral.address));
    table.text("nqn", Some(&referral.nqn));
    table
}

fn pool(pool: &PoolConfig) -> Writer {
    let mut table = Writer::default();
    table.text("name", Some(&pool.name));
    table.text("dir", Some(pool.directory.display()));
    table.text("quota", pool.quota_bytes.map(Size));
    table.text("space_low", (pool.space_low != SpaceLow::default()).then_some(pool.space_low));
    table
}

fn listener(listener: &ListenerConfig) -> Writer {
    let mut table = Writer::default();
    let defaults = ListenerConfig::new(listener.address);
    table.text("address", Some(listener.address));
    let advertised = listener.advertise.map(|advertised| match advertised.port {
        Some(port) => std::net::SocketAddr::new(advertised.ip, port).to_string(),
        None => advertised.ip.to_string(),
    });
    table.text("advertise", advertised);
    if listener.subsystems != defaults.subsystems {
        table.set("subsystems", listener.subsystems);
    }
    if !listener.discovery {
        table.set("discovery", false);
    }
    table.text("doorbell", listener.doorbell);
    table.text("tls", (listener.tls != defaults.tls).then_some(listener.tls));
    allow(&mut table, &listener.allow);
    table
}

fn allow(table: &mut Writer, allow: &AllowList) {
    table.texts("allow", allow.prefixes());
}

fn memcached(listener: &MemcachedListenerConfig) -> Writer {
    let mut table = Writer::default();
    table.text("address", Some(&listener.address));
    if let Some(tls) = &listener.tls {
        table.text("tls_certificate", Some(&tls.certificate));
        table.text("tls_key", Some(&tls.key));
        table.text("tls_client_ca", tls.client_ca.as_ref());
        table.text("tls_clients", tls.client_ca.as_ref().map(|_| tls.clients));
    }
    table.text("users", listener.users.as_ref());
    allow(&mut table, &listener.allow);
    table
}

fn hosts(table: &mut Writer, key: &str, access: &Access) {
    match access {
        Access::Any => table.set(key, "any"),
        Access::Only(hosts) => table.texts(key, Some(hosts.iter().map(ToString::to_string))),
    }
}

/// The names of choices, as the reader takes them.
fn choices<T: std::fmt::Display>(chosen: &[T]) -> Vec<String> {
    chosen.iter().map(|choice| choice.to_string().to_lowercase().replace('-', "")).collect()
}

fn secrets(table: &mut Writer, sources: Option<&SecretSources>) {
    table.text("dhchap_secret", sources.map(|sources| &sources.host));
    table.text("dhchap_ctrl_secret", sources.and_then(|sources| sources.controller.as_ref()));
}

fn subsystem(subsystem: &SubsystemConfig) -> Writer {
    let mut table = Writer::default();
    let defaults = SubsystemConfig::new(subsystem.nqn.clone());
    table.text("nqn", Some(&subsystem.nqn));
    table.text("serial", subsystem.serial.as_ref());
    table.text("model", (subsystem.model != defaults.model).then_some(&subsystem.model));
    hosts(&mut table, "hosts", &subsystem.access);
    table.text("memcached", subsystem.opens_to_memcached.then_some("any"));
    if subsystem.cntlids != defaults.cntlids {
        let ends = [subsystem.cntlids.start(), subsystem.cntlids.end()];
        table.set("cntlids", ends.map(|id| Value::Integer(i64::from(*id))).to_vec());
    }
    table.text("doorbell", subsystem.doorbell.map(|policy: DoorbellPolicy| policy));
    let (authentication, of_none) = (&subsystem.authentication, AuthenticationConfig::default());
    secrets(&mut table, authentication.others.as_ref());
    let hashes = (authentication.hashes != of_none.hashes).then(|| choices(&authentication.hashes));
    table.texts("dhchap_hash", hashes);
    let groups = (authentication.groups != of_none.groups).then(|| choices(&authentication.groups));
    table.texts("dhchap_dhgroup", groups);
    if authentication.refused_again == RefusedAgain::Keep {
        table.set("refused_reauthentication", "keep");
    }
    table.text("tls_key", subsystem.tls_keys.others.as_ref());
    let mut names: Vec<_> = authentication
        .hosts
        .keys()
        .chain(subsystem.tls_keys.hosts.keys())
        .chain(subsystem.host_limits.keys())
        .collect();
    names.sort_unstable();
    names.dedup();
    let of_host = |name| {
        let mut host = Writer::default();
        host.text("nqn", Some(name));
        secrets(&mut host, authentication.hosts.get(name));
        host.text("tls_key", subsystem.tls_keys.hosts.get(name));
        rate_limits(&mut host, &subsystem.host_limits.get(name).copied().unwrap_or_default());
        host
    };
    table.tables("host", names.into_iter().map(of_host));
    table.tables("namespace", subsystem.namespaces.iter().map(namespace));
    table
}

fn rate_limits(table: &mut Writer, limits: &RateLimits) {
    for (key, value) in limits.keys() {
        match value {
            Some(value) if RateLimits::is_size(key) => table.text(key, Some(Size(value))),
            Some(value) => table.set(key, i64::try_from(value).unwrap_or(i64::MAX)),
            None => {}
        }
    }
}

fn namespace(namespace: &NamespaceConfig) -> Writer {
    let mut table = Writer::default();
    if let Some(nsid) = namespace.nsid {
        table.set("nsid", i64::from(nsid.get()));
    }
    table.text("storage", Some(&namespace.storage));
    table.text("uuid", namespace.uuid);
    table.text("nguid", namespace.nguid.map(Uuid::from_bytes));
    for (key, access) in
        [("hosts", &namespace.rights.visible_to), ("write_hosts", &namespace.rights.writable_by)]
    {
        if *access != Access::Any {
            hosts(&mut table, key, access);
        }
    }
    if let Some(prefixes) = namespace.rights.keys.prefixes() {
        let texts = |texts: Vec<String>| Value::Array(texts.into_iter().map(Value::String).collect());
        let prefixes: Table = prefixes.into_iter().map(|(host, of_host)| (host, texts(of_host))).collect();
        table.set("key_prefixes", prefixes);
    }
    rate_limits(&mut table, &namespace.limits);
    table
}
