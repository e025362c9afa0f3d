//! The configuration file: TOML, documented by `examples/nvlane.toml`. Errors have line and column.

mod memcached;
mod mistakes;
mod rate_limits;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use config_file::{
    RawControl, RawDiscovery, RawFile, RawHost, RawHosts, RawLimits, RawListener, RawNamespace, RawPool,
    RawReactors, RawSize, RawSubsystem, RawTimeouts,
};
use linux::CoreList;
use linux::small_file::SmallFile;
use reactor::{BusyPoll, EngineKind};
use security::group::Group;
use store::pool::SpaceLow;
use store::{Size, Spec};
use toml::Spanned;
use wire::discovery::{DISCOVERY_PORT, IO_PORT};
use wire::id::Nsid;
use wire::nqn::{HostName, Nqn};
use wire::pdu::DataAlignment;
use wire::text::quoted;
use wire::uuid::Uuid;

use self::mistakes::explained;
use self::rate_limits::rates;
use super::{
    AuditConfig, AuthenticationConfig, CONTROL_PORT, ConfigPlace, ControlConfig, DiscoveryConfig,
    ListenerConfig, LogConfig, METRICS_PORT, MetricsConfig, NamespaceConfig, PoolConfig, Problem,
    ReactorConfig, SecretSources, SubsystemConfig, TargetConfig, Threads, TimeoutConfig, TlsKeySources,
    listen_address,
};
use crate::names::allow_list::AllowList;
use crate::names::limits::Limits;
use crate::objects::access::HostRights;
use crate::objects::authentication::HASHES;
use crate::objects::discovery::{Advertised, Referral};
use crate::objects::key_rights::{KeyRights, KeyScope};
use crate::objects::rate_limit::RateLimits;
use crate::objects::subsystem::Access;

/// Limit of a configuration file, bytes: some hundred thousand hosts.
const FILE_BYTES_MAX: usize = 64 << 20;

/// An error in a configuration file, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The name of the file.
    pub file: String,
    /// Line and column, both from 1; `None` if the error concerns the whole file.
    pub position: Option<(usize, usize)>,
    /// The problem and its remedy.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some((line, column)) => write!(f, "{}:{line}:{column}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

/// Everything that is wrong with a configuration file, a line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// A configuration with the file that it came from.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// The configuration.
    pub config: TargetConfig,
    source: Source,
    spans: Spans,
}

/// A text with a name.
#[derive(Clone, Debug)]
struct Source {
    name: String,
    text: String,
}

/// The position of each place in the text.
type Spans = BTreeMap<ConfigPlace, Range<usize>>;

impl Source {
    fn error(&self, span: Option<Range<usize>>, message: impl Into<String>) -> ConfigError {
        let position = span.map(|span| {
            let before = &self.text[..self.text.floor_char_boundary(span.start)];
            let line_start = before.rfind('\n').map_or(0, |at| at + 1);
            (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
        });
        ConfigError { file: self.name.clone(), position, message: message.into() }
    }
}

impl ConfigFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong, or why it cannot be read.
    pub fn read(path: &Path) -> Result<Self, ConfigErrors> {
        let name = path.display().to_string();
        match SmallFile::open(path).and_then(|file| file.read_text(FILE_BYTES_MAX)) {
            Ok(text) => Self::parse(&name, &text),
            Err(error) => {
                let message = format!("cannot be read: {error}");
                Err(ConfigErrors(vec![ConfigError { file: name, position: None, message }]))
            }
        }
    }

    /// Reads and checks the text of a file that is called `name`.
    ///
    /// # Errors
    /// All errors; for invalid TOML or unknown keys, only the first.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigErrors> {
        let source = Source { name: name.into(), text: text.into() };
        let raw = config_file::parse(text)
            .map_err(|error| ConfigErrors(vec![source.error(error.span(), explained(&error, text))]))?;
        let mut reader = Reader { source: &source, spans: Spans::new(), errors: Vec::new() };
        let mut config = reader.file(raw);
        config.resolve_pools();
        let Reader { spans, errors, .. } = reader;
        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        let file = Self { config, source, spans };
        match file.config.check() {
            problems if problems.is_empty() => Ok(file),
            problems => Err(file.located(&problems)),
        }
    }

    /// Looks at the storage and the secrets, and changes nothing. May block.
    ///
    /// # Errors
    /// Everything that is not in order with them.
    pub fn inspect(&self) -> Result<(), ConfigErrors> {
        let problems = self.config.inspect();
        if problems.is_empty() { Ok(()) } else { Err(self.located(&problems)) }
    }

    /// Adds positions in the file to problems.
    #[must_use]
    pub fn located(&self, problems: &[Problem]) -> ConfigErrors {
        let error = |problem: &Problem| {
            let span = self.spans.get(&problem.place).or_else(|| self.spans.get(&table_of(problem.place)));
            self.source.error(span.cloned(), problem.message.clone())
        };
        ConfigErrors(problems.iter().map(error).collect())
    }
}

/// The table that a place is a key of.
fn table_of(place: ConfigPlace) -> ConfigPlace {
    match place {
        ConfigPlace::Subsystem(at, _) => ConfigPlace::Subsystem(at, ""),
        ConfigPlace::Pool(at, _) => ConfigPlace::Pool(at, ""),
        ConfigPlace::Namespace(subsystem_at, at, _) => ConfigPlace::Namespace(subsystem_at, at, ""),
        other => other,
    }
}

/// Converts the TOML values to the configuration, and collects invalid ones.
struct Reader<'a> {
    source: &'a Source,
    spans: Spans,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    fn wrong(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.errors.push(self.source.error(Some(span), message));
    }

    /// Parses a text, or records its error.
    fn parsed<T: FromStr<Err: fmt::Display>>(&mut self, text: &Spanned<String>, remedy: &str) -> Option<T> {
        match text.get_ref().parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.wrong(text.span(), format!("{error}{remedy}"));
                None
            }
        }
    }

    fn nqn(&mut self, text: &Spanned<String>) -> Option<Nqn> {
        self.parsed(text, ": write nqn.YYYY-MM.reverse.domain:name")
    }

    fn size(&mut self, size: &Spanned<RawSize>) -> Option<u64> {
        match size.get_ref() {
            RawSize::Bytes(bytes) => Some(*bytes),
            RawSize::Text(text) => match Size::parse(text) {
                Ok(size) => Some(size.0),
                Err((_, message)) => {
                    self.wrong(size.span(), message);
                    None
                }
            },
        }
    }

    /// A limit in bytes, which fits into 32 bits.
    fn bytes(&mut self, key: &'static str, size: Option<Spanned<RawSize>>, default: u32) -> u32 {
        let Some(size) = size else { return default };
        self.spans.insert(ConfigPlace::Limits(key), size.span());
        let Some(bytes) = self.size(&size) else { return default };
        u32::try_from(bytes).unwrap_or_else(|_| {
            self.wrong(size.span(), format!("{} is more than this can be", Size(bytes)));
            default
        })
    }

    /// A value, whose position is kept for later errors.
    fn kept<T>(&mut self, place: ConfigPlace, value: Option<Spanned<T>>) -> Option<T> {
        let value = value?;
        self.spans.insert(place, value.span());
        Some(value.into_inner())
    }

    fn number<T>(&mut self, place: ConfigPlace, number: Option<Spanned<T>>, default: T) -> T {
        self.kept(place, number).unwrap_or(default)
    }

    fn limit<T>(&mut self, key: &'static str, number: Option<Spanned<T>>, default: T) -> T {
        self.number(ConfigPlace::Limits(key), number, default)
    }

    /// Takes the place of `setting` if a text is given.
    fn set<T: FromStr<Err: fmt::Display>>(&mut self, setting: &mut T, text: Option<Spanned<String>>) {
        if let Some(value) = text.and_then(|text| self.parsed(&text, "")) {
            *setting = value;
        }
    }

    fn alignment(&mut self, bytes: Option<Spanned<u8>>) -> Option<DataAlignment> {
        let bytes = bytes?;
        let given = *bytes.get_ref();
        let units = (given.is_multiple_of(4) && given > 0).then(|| given / 4 - 1);
        let alignment = units.and_then(DataAlignment::from_raw);
        if alignment.is_none() {
            let message = format!("alignment is {given}: take a multiple of 4 from 4 to 128");
            self.wrong(bytes.span(), message);
        }
        alignment
    }

    /// An address with a port, or alone.
    fn address(&mut self, text: &Spanned<String>, port: u16) -> Option<SocketAddr> {
        match listen_address(text.get_ref(), port) {
            Ok(address) => Some(address),
            Err(message) => {
                self.wrong(text.span(), message);
                None
            }
        }
    }

    fn address_and_port(&mut self, text: &Spanned<String>) -> Option<(IpAddr, Option<u16>)> {
        let written = text.get_ref();
        let bare = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(written);
        if let Ok(address) = written.parse::<SocketAddr>() {
            return Some((address.ip(), Some(address.port())));
        }
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Some((ip, None));
        }
        let message =
            format!("\"{written}\" is no address: write IP or IP:PORT, as in 192.0.2.1:4420 or [::]:4420");
        self.wrong(text.span(), message);
        None
    }

    fn file(&mut self, raw: RawFile) -> TargetConfig {
        let machine = self.machine(raw.machine);
        let reactors = self.reactors(raw.reactors);
        let limits = self.limits(raw.limits);
        let timeouts = self.timeouts(raw.timeouts);
        let listeners = match raw.listener {
            None => ListenerConfig::usual(IpAddr::from([127, 0, 0, 1])),
            Some(listeners) => self.listeners(listeners),
        };
        let memcached = self.memcached(raw.memcached);
        let discovery = self.discovery(raw.discovery);
        let pools = raw.pool.into_iter().enumerate();
        let pools = pools.filter_map(|(at, pool)| self.pool(at, pool)).collect();
        let subsystems = raw.subsystem.into_iter().enumerate();
        let subsystems = subsystems.filter_map(|(at, subsystem)| self.subsystem(at, subsystem)).collect();
        let audit = AuditConfig { file: self.kept(ConfigPlace::Audit, raw.audit.file) };
        let control = self.control(raw.control);
        let metrics = raw.metrics.address.and_then(|address| {
            let bound = self.address(&address, METRICS_PORT)?;
            self.spans.insert(ConfigPlace::Metrics, address.span());
            Some(bound)
        });
        let live_page = raw.metrics.live_page.and_then(|who| self.parsed(&who, ""));
        let metrics = MetricsConfig { address: metrics, live_page: live_page.unwrap_or_default() };
        let mut log = LogConfig::default();
        self.set(&mut log.slow, raw.log.slow);
        TargetConfig {
            machine,
            reactors,
            limits,
            timeouts,
            listeners,
            memcached,
            discovery,
            pools,
            subsystems,
            audit,
            control,
            metrics,
            log,
        }
    }

    fn control(&mut self, raw: RawControl) -> ControlConfig {
        let tls = raw.tls.and_then(|address| {
            self.spans.insert(ConfigPlace::Control("tls"), address.span());
            self.address(&address, CONTROL_PORT)
        });
        let mut tls_keys = BTreeMap::new();
        for (name, source) in raw.tls_keys {
            self.spans.entry(ConfigPlace::Control("tls_keys")).or_insert_with(|| name.span());
            if let (Some(name), Some(source)) = (self.parsed(&name, ""), self.parsed(&source, "")) {
                tls_keys.insert(name, source);
            }
        }
        ControlConfig {
            socket: self.kept(ConfigPlace::Control("socket"), raw.socket),
            changes: self.kept(ConfigPlace::Control("changes"), raw.changes),
            tls,
            tls_keys,
        }
    }

    fn pool(&mut self, at: usize, raw: Spanned<RawPool>) -> Option<PoolConfig> {
        self.spans.insert(ConfigPlace::Pool(at, ""), raw.span());
        let RawPool { name, dir, quota, space_low } = raw.into_inner();
        self.spans.insert(ConfigPlace::Pool(at, "name"), name.span());
        self.spans.insert(ConfigPlace::Pool(at, "dir"), dir.span());
        let quota_bytes = match quota {
            None => None,
            Some(quota) => {
                self.spans.insert(ConfigPlace::Pool(at, "quota"), quota.span());
                Some(self.size(&quota)?)
            }
        };
        let space_low = match space_low {
            None => SpaceLow::default(),
            Some(text) => self.parsed(&text, "")?,
        };
        let (name, directory) = (name.into_inner(), dir.into_inner());
        Some(PoolConfig { name, directory, quota_bytes, space_low })
    }

    fn machine(&mut self, machine: Option<Spanned<String>>) -> Option<String> {
        let machine = machine?;
        if machine.get_ref().trim().is_empty() {
            self.wrong(
                machine.span(),
                "machine is empty: write a name that no other machine has, or leave it out",
            );
        }
        Some(machine.into_inner())
    }

    fn reactors(&mut self, raw: RawReactors) -> ReactorConfig {
        let mut reactors = ReactorConfig::default();
        if let Some(cores) = &raw.cores {
            if let Some(cores) = self.parsed::<CoreList>(cores, "") {
                reactors.threads = Threads::Cores(cores);
            }
            if let Some(count) = &raw.count {
                self.wrong(count.span(), "cores says already how many there are: leave one of them out");
            }
        } else if let Some(count) = self.kept(ConfigPlace::Reactors("count"), raw.count) {
            reactors.threads = Threads::Count(count);
        }
        if let Some(engine) = raw.engine {
            reactors.engine = match engine.get_ref().as_str() {
                "auto" => None,
                "uring" => Some(EngineKind::Uring),
                "epoll" => Some(EngineKind::Epoll),
                other => {
                    let message = format!("there is no engine \"{other}\": write auto, uring or epoll");
                    self.wrong(engine.span(), message);
                    None
                }
            };
        }
        self.set(&mut reactors.doorbell, raw.doorbell);
        self.set(&mut reactors.spin, raw.spin);
        self.set(&mut reactors.placement, raw.placement);
        reactors.busy_poll = BusyPoll {
            wait_us: self.number(ConfigPlace::Reactors("busy_poll_us"), raw.busy_poll_us, 0),
            prefers: self.number(ConfigPlace::Reactors("prefer_busy_poll"), raw.prefer_busy_poll, false),
            budget: self.kept(ConfigPlace::Reactors("busy_poll_budget"), raw.busy_poll_budget),
        };
        self.set(&mut reactors.receive, raw.receive);
        if let Some(in_place) = raw.in_place
            && let Some(bytes) = self.size(&in_place)
        {
            // No data is longer than the address space.
            reactors.in_place_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        self.set(&mut reactors.zero_copy, raw.zero_copy);
        if let Some(pool) = raw.pool {
            self.spans.insert(ConfigPlace::Reactors("pool"), pool.span());
            if let Some(bytes) = self.size(&pool) {
                reactors.pool_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            }
        }
        reactors
    }

    fn limits(&mut self, raw: RawLimits) -> Limits {
        let defaults = Limits::default();
        let controllers = u16::try_from(defaults.controller_count_max).unwrap_or(u16::MAX);
        let per_host = u16::try_from(defaults.controller_count_per_host_max).unwrap_or(u16::MAX);
        Limits {
            transfer_bytes_max: self.bytes("transfer", raw.transfer, defaults.transfer_bytes_max),
            in_capsule_bytes: self.bytes("in_capsule", raw.in_capsule, defaults.in_capsule_bytes),
            key_value_in_capsule_bytes: self.bytes(
                "kv_in_capsule",
                raw.kv_in_capsule,
                defaults.key_value_in_capsule_bytes,
            ),
            h2c_data_bytes_max: self.bytes("h2c_data", raw.h2c_data, defaults.h2c_data_bytes_max),
            window_bytes_max: self.bytes("window", raw.window, defaults.window_bytes_max),
            window_count_max: self.limit("windows", raw.windows, defaults.window_count_max),
            data_alignment: self.alignment(raw.alignment).unwrap_or(defaults.data_alignment),
            queue_entries_max: self.limit("queue_entries", raw.queue_entries, defaults.queue_entries_max),
            io_queue_count_max: self.limit("io_queues", raw.io_queues, defaults.io_queue_count_max),
            controller_count_max: self.limit("controllers", raw.controllers, controllers).into(),
            controller_count_per_host_max: self
                .limit("controllers_per_host", raw.controllers_per_host, per_host)
                .into(),
            connection_count_max: self.limit("connections", raw.connections, defaults.connection_count_max),
            connection_count_per_address_max: self.limit(
                "connections_per_address",
                raw.connections_per_address,
                defaults.connection_count_per_address_max,
            ),
            memcached_connection_count_max: self.limit(
                "memcached_connections",
                raw.memcached_connections,
                defaults.memcached_connection_count_max,
            ),
            memcached_connection_count_per_address_max: self.limit(
                "memcached_connections_per_address",
                raw.memcached_connections_per_address,
                defaults.memcached_connection_count_per_address_max,
            ),
            unconnected_count_max: self.limit("unconnected", raw.unconnected, defaults.unconnected_count_max),
            connections_per_s_max: self.limit(
                "connections_per_s",
                raw.connections_per_s,
                defaults.connections_per_s_max,
            ),
            ..defaults
        }
    }

    fn timeouts(&mut self, raw: RawTimeouts) -> TimeoutConfig {
        let defaults = TimeoutConfig::default();
        let mut ms = |key, seconds: Option<Spanned<u32>>, default_ms| {
            self.kept(ConfigPlace::Timeouts(key), seconds)
                .map_or(default_ms, |seconds| u64::from(seconds) * 1000)
        };
        TimeoutConfig {
            connect_ms: ms("connect_s", raw.connect_s, defaults.connect_ms),
            pdu_ms: ms("pdu_s", raw.pdu_s, defaults.pdu_ms),
            send_ms: ms("send_s", raw.send_s, defaults.send_ms),
            data_ms: ms("data_s", raw.data_s, defaults.data_ms),
            contended_ms: ms("contended_s", raw.contended_s, defaults.contended_ms),
            stop_ms: ms("stop_s", raw.stop_s, defaults.stop_ms),
            memcached_idle_ms: ms("memcached_idle_s", raw.memcached_idle_s, defaults.memcached_idle_ms),
            secret_overlap_ms: ms("secret_overlap_s", raw.secret_overlap_s, defaults.secret_overlap_ms),
        }
    }

    fn listeners(&mut self, raw: Vec<Spanned<RawListener>>) -> Vec<ListenerConfig> {
        let mut listeners = Vec::new();
        for listener in raw {
            let listener = listener.into_inner();
            let port = if listener.subsystems == Some(false) { DISCOVERY_PORT } else { IO_PORT };
            let span = listener.address.span();
            let advertise = listener.advertise.and_then(|advertise| {
                let (ip, port) = self.address_and_port(&advertise)?;
                if ip.is_unspecified() {
                    self.wrong(
                        advertise.span(),
                        "hosts cannot connect to a wildcard: advertise an address of its own",
                    );
                }
                Some(Advertised { ip, port })
            });
            let Some(address) = self.address(&listener.address, port) else { continue };
            let subsystems = listener.subsystems.unwrap_or(address.port() != DISCOVERY_PORT);
            self.spans.insert(ConfigPlace::Listener(listeners.len()), span);
            let discovery = listener.discovery.unwrap_or(true);
            let doorbell = listener.doorbell.and_then(|doorbell| self.parsed(&doorbell, ""));
            let tls = listener.tls.and_then(|tls| self.parsed(&tls, "")).unwrap_or_default();
            let allow = self.allowed(listener.allow);
            listeners.push(ListenerConfig {
                address,
                advertise,
                subsystems,
                discovery,
                doorbell,
                tls,
                allow,
            });
        }
        listeners
    }

    /// The addresses that connections may come from.
    fn allowed(&mut self, prefixes: Option<Spanned<Vec<String>>>) -> AllowList {
        let Some(prefixes) = prefixes else { return AllowList::Any };
        let span = prefixes.span();
        if prefixes.get_ref().is_empty() {
            self.wrong(
                span.clone(),
                "nobody may connect: list addresses or prefixes, or leave allow out for all",
            );
        }
        let mut parsed = Vec::new();
        for prefix in prefixes.get_ref() {
            match prefix.parse() {
                Ok(prefix) => parsed.push(prefix),
                Err(error) => self.wrong(span.clone(), format!("{error}")),
            }
        }
        AllowList::Only(parsed)
    }

    fn discovery(&mut self, raw: RawDiscovery) -> DiscoveryConfig {
        let mut discovery = DiscoveryConfig::default();
        if let Some(nqn) = raw.nqn {
            self.spans.insert(ConfigPlace::DiscoveryNqn, nqn.span());
            discovery.nqn = self.nqn(&nqn);
        }
        for referral in raw.referral {
            let span = referral.address.span();
            let nqn = match &referral.nqn {
                None => Some(Nqn::discovery()),
                Some(nqn) => self.nqn(nqn),
            };
            let address = self.address_and_port(&referral.address);
            let address = address.map(|(ip, port)| SocketAddr::new(ip, port.unwrap_or(DISCOVERY_PORT)));
            let (Some(address), Some(nqn)) = (address, nqn) else {
                continue;
            };
            self.spans.insert(ConfigPlace::Referral(discovery.referrals.len()), span);
            discovery.referrals.push(Referral { address, nqn });
        }
        discovery
    }

    fn subsystem(&mut self, at: usize, raw: Spanned<RawSubsystem>) -> Option<SubsystemConfig> {
        let table = raw.span();
        let raw = raw.into_inner();
        self.spans.insert(ConfigPlace::Subsystem(at, ""), table.clone());
        self.spans.insert(ConfigPlace::Subsystem(at, "nqn"), raw.nqn.span());
        let mut subsystem = self.nqn(&raw.nqn).map(SubsystemConfig::new);
        let opens_to_memcached = raw.memcached.is_some_and(|memcached| self.opens_to_memcached(&memcached));
        let access = match raw.hosts {
            Some(hosts) => {
                self.spans.insert(ConfigPlace::Subsystem(at, "hosts"), hosts.span());
                self.access(&hosts)
            }
            None => {
                let message = "who may connect is not said: add hosts = \"any\", or a list of host NQNs";
                self.wrong(table, message);
                None
            }
        };
        let serial = self.kept(ConfigPlace::Subsystem(at, "serial"), raw.serial);
        let model = self.kept(ConfigPlace::Subsystem(at, "model"), raw.model);
        let doorbell = raw.doorbell.and_then(|doorbell| self.parsed(&doorbell, ""));
        if let Some(span) = raw.dhchap_secret.as_ref().map(Spanned::span) {
            self.spans.insert(ConfigPlace::Subsystem(at, "dhchap_secret"), span);
        }
        let mut authentication = AuthenticationConfig {
            others: self.secrets(raw.dhchap_secret, raw.dhchap_ctrl_secret),
            ..AuthenticationConfig::default()
        };
        if let Some(names) = raw.dhchap_hash {
            self.spans.insert(ConfigPlace::Subsystem(at, "dhchap_hash"), names.span());
            authentication.hashes = self.choices(&names, "hash function", &HASHES);
        }
        if let Some(names) = raw.dhchap_dhgroup {
            self.spans.insert(ConfigPlace::Subsystem(at, "dhchap_dhgroup"), names.span());
            authentication.groups = self.choices(&names, "group", &Group::ALL);
        }
        if let Some(refused) = raw.refused_reauthentication {
            self.spans.insert(ConfigPlace::Subsystem(at, "refused_reauthentication"), refused.span());
            authentication.refused_again = self.parsed(&refused, "").unwrap_or_default();
        }
        if let Some(span) = raw.tls_key.as_ref().map(Spanned::span) {
            self.spans.insert(ConfigPlace::Subsystem(at, "tls_key"), span);
        }
        let mut tls_keys = TlsKeySources {
            others: raw.tls_key.and_then(|tls_key| self.parsed(&tls_key, "")),
            ..TlsKeySources::default()
        };
        let mut host_limits = BTreeMap::new();
        for host in raw.host {
            let raw = host.into_inner();
            let limits = self.rate_limits(rates!(raw), |_| None);
            let RawHost { nqn, dhchap_secret, dhchap_ctrl_secret, tls_key, .. } = raw;
            let has_limits = limits != RateLimits::default();
            if dhchap_secret.is_none() && dhchap_ctrl_secret.is_none() && tls_key.is_none() && !has_limits {
                let message = "nothing is said of this host: add dhchap_secret, tls_key or a rate limit";
                self.wrong(nqn.span(), message);
            }
            let name = self.parsed::<HostName>(&nqn, "");
            let secrets = self.secrets(dhchap_secret, dhchap_ctrl_secret);
            let tls_key = tls_key.and_then(|tls_key| self.parsed(&tls_key, ""));
            let Some(name) = name else { continue };
            let is_known = [
                secrets.is_some_and(|secrets| authentication.hosts.insert(name.clone(), secrets).is_some()),
                tls_key.is_some_and(|tls_key| tls_keys.hosts.insert(name.clone(), tls_key).is_some()),
                has_limits && host_limits.insert(name, limits).is_some(),
            ];
            if is_known.contains(&true) {
                self.wrong(nqn.span(), "this host is there twice: remove one");
            }
        }
        let namespaces = raw.namespace.into_iter().enumerate();
        let namespaces =
            namespaces.filter_map(|(namespace_at, namespace)| self.namespace(at, namespace_at, namespace));
        let namespaces: Vec<NamespaceConfig> = namespaces.collect();
        if let Some(subsystem) = &mut subsystem {
            subsystem.serial = serial;
            subsystem.doorbell = doorbell;
            subsystem.model = model.unwrap_or_else(|| std::mem::take(&mut subsystem.model));
            subsystem.access = access.unwrap_or(Access::Any);
            subsystem.authentication = authentication;
            subsystem.tls_keys = tls_keys;
            subsystem.host_limits = host_limits;
            subsystem.opens_to_memcached = opens_to_memcached;
            subsystem.namespaces = namespaces;
            if let Some((first, last)) = self.kept(ConfigPlace::Subsystem(at, "cntlids"), raw.cntlids) {
                subsystem.cntlids = first..=last;
            }
        }
        subsystem
    }

    /// References to the secrets of an association.
    fn secrets(
        &mut self,
        host: Option<Spanned<String>>,
        controller: Option<Spanned<String>>,
    ) -> Option<SecretSources> {
        let controller_span = controller.as_ref().map(Spanned::span);
        let controller = controller.and_then(|controller| self.parsed(&controller, ""));
        match (host, controller_span) {
            (Some(host), _) => Some(SecretSources { host: self.parsed(&host, "")?, controller }),
            (None, Some(span)) => {
                self.wrong(
                    span,
                    "the subsystem shows its secret only to hosts that have one: add dhchap_secret",
                );
                None
            }
            (None, None) => None,
        }
    }

    /// Values by their names, in lower case and without hyphens.
    fn choices<T: Copy + fmt::Display>(
        &mut self,
        names: &Spanned<Vec<String>>,
        what: &str,
        all: &[T],
    ) -> Vec<T> {
        let name_of = |choice: &T| choice.to_string().to_lowercase().replace('-', "");
        let known: Vec<String> = all.iter().map(name_of).collect();
        let mut chosen = Vec::new();
        for name in names.get_ref() {
            match known.iter().position(|known| known == name) {
                Some(at) => chosen.push(all[at]),
                None => {
                    let message = format!("no {what} \"{name}\": take some of {}", known.join(", "));
                    self.wrong(names.span(), message);
                }
            }
        }
        if names.get_ref().is_empty() {
            self.wrong(names.span(), format!("no {what} is left: take some of {}", known.join(", ")));
        }
        chosen
    }

    fn opens_to_memcached(&mut self, memcached: &Spanned<String>) -> bool {
        let is_any = memcached.get_ref() == "any";
        if !is_any {
            let message = format!(
                "\"{}\" names a host, and the memcached protocol has no host names: write \"any\", or leave it out",
                memcached.get_ref()
            );
            self.wrong(memcached.span(), message);
        }
        is_any
    }

    fn access(&mut self, hosts: &Spanned<RawHosts>) -> Option<Access> {
        match hosts.get_ref() {
            RawHosts::Word(word) if word == "any" => Some(Access::Any),
            RawHosts::Word(word) => {
                let remedy = match word.starts_with("nqn.") {
                    true => format!("write [\"{word}\"]"),
                    false => "write \"any\" for all hosts, or a list of host NQNs".to_owned(),
                };
                self.wrong(hosts.span(), format!("\"{word}\" is neither \"any\" nor a list: {remedy}"));
                None
            }
            RawHosts::List(names) => {
                let mut access = std::collections::BTreeSet::new();
                for name in names {
                    // Hosts use names of any form, so a list accepts all that Connect accepts. wire §21
                    match name.parse::<HostName>() {
                        Ok(host) => drop(access.insert(host)),
                        Err(error) => self.wrong(hosts.span(), format!("host {}: {error}", quoted(name))),
                    }
                }
                Some(Access::Only(access))
            }
        }
    }

    fn key_rights(&mut self, prefixes: &Spanned<BTreeMap<String, Vec<String>>>) -> KeyRights {
        let mut scopes = BTreeMap::new();
        for (name, prefixes_of_host) in prefixes.get_ref() {
            match (name.parse::<HostName>(), KeyScope::new(prefixes_of_host)) {
                (Ok(host), Ok(scope)) => drop(scopes.insert(host, Arc::new(scope))),
                (Err(error), _) => self.wrong(prefixes.span(), format!("host {}: {error}", quoted(name))),
                (_, Err(error)) => self.wrong(prefixes.span(), format!("host {}: {error}", quoted(name))),
            }
        }
        KeyRights::Scopes(scopes)
    }

    fn namespace(
        &mut self,
        subsystem_at: usize,
        at: usize,
        raw: Spanned<RawNamespace>,
    ) -> Option<NamespaceConfig> {
        self.spans.insert(ConfigPlace::Namespace(subsystem_at, at, ""), raw.span());
        let raw = raw.into_inner();
        let place = |key| ConfigPlace::Namespace(subsystem_at, at, key);
        self.spans.insert(place("storage"), raw.storage.span());
        let mut namespace = self.parsed::<Spec>(&raw.storage, "").map(NamespaceConfig::new);
        let nsid = self.kept(place("nsid"), raw.nsid).map(Nsid::new);
        let mut id = |key, text: Option<Spanned<String>>| {
            let text = text?;
            self.spans.insert(place(key), text.span());
            self.parsed::<Uuid>(&text, "")
        };
        // An NGUID has as many digits as a UUID, and is as often written with hyphens.
        let (uuid, nguid) = (id("uuid", raw.uuid), id("nguid", raw.nguid));
        let mut access = |key, hosts: Option<Spanned<RawHosts>>| {
            let hosts = hosts?;
            self.spans.insert(place(key), hosts.span());
            self.access(&hosts)
        };
        let (visible_to, writable_by) = (access("hosts", raw.hosts), access("write_hosts", raw.write_hosts));
        let keys = raw.key_prefixes.map(|prefixes| {
            self.spans.insert(place("key_prefixes"), prefixes.span());
            self.key_rights(&prefixes)
        });
        let limits = self.rate_limits(rates!(raw), |key| Some(place(key)));
        if let Some(namespace) = &mut namespace {
            namespace.rights = HostRights {
                visible_to: visible_to.unwrap_or(Access::Any),
                writable_by: writable_by.unwrap_or(Access::Any),
                keys: keys.unwrap_or(KeyRights::All),
            };
            namespace.limits = limits;
            namespace.nsid = nsid;
            namespace.uuid = uuid;
            namespace.nguid = nguid.map(Uuid::to_bytes);
        }
        namespace
    }
}
