//! `nvlane check`: finds mistakes in a configuration, and prints what a target with it would serve.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use command_line::exit::Ended;
use command_line::exit::Failure;
use command_line::output;
use store::pool::volume_at;
use store::{Size, Source};
use subsystem::access::HostRights;
use subsystem::config::{
    AuthenticationConfig, ClientCertificates, ConfigFile, ListenerConfig, LivePage, MemcachedAddress,
    MemcachedListenerConfig, ResolvedNamespace, ResolvedSubsystem, TargetConfig,
};
use subsystem::identity::TargetIdentity;
use subsystem::key_rights::KeyRights;
use subsystem::machine::{Machine, hostname};
use subsystem::subsystem::Access;
use wire::nqn::HostName;

use crate::disk_path::disk_path;
use crate::local_address::from_elsewhere;
use crate::memory_limit;

#[derive(Debug, Args)]
#[command(after_help = "\
Prints what would be served: where hosts connect, which subsystems they find, who may use them, and where each namespace \
appears on a Linux host. Warns of lists of hosts that need not authenticate, and of listeners that accept anyone from \
other machines. Nothing is created, opened for writing or bound. Exit code 2 and lines of FILE:LINE:COLUMN if something is wrong.")]
pub(crate) struct CheckArguments {
    /// The configuration.
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
    /// Identifies this machine, as for `nvlane target`. [default: a hash of /etc/machine-id and the hardware]
    #[arg(long, value_name = "ID", env = "NVLANE_MACHINE_ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    machine: Option<String>,
    /// Check the text only, not the storage it names.
    #[arg(long)]
    text_only: bool,
}

pub(crate) fn check(arguments: &CheckArguments) -> Ended {
    let mut file = ConfigFile::read(&arguments.config).map_err(Failure::usage)?;
    if let Some(machine) = &arguments.machine {
        file.config.machine = Some(machine.clone());
    }
    let inspected = if arguments.text_only { Ok(()) } else { file.inspect() };
    let verdict = match &inspected {
        Ok(()) => "no mistakes found",
        Err(_) => "the text is correct, but not the storage or the secrets, see below",
    };
    output::write(format!("{}: {verdict}\n\n{}", arguments.config.display(), plan(&file.config)))?;
    if let Some(warning) = memory_limit::warning(&file.config) {
        eprintln!("warning: {warning}");
    }
    for warning in file.located(&file.config.warnings()).0 {
        eprintln!("warning: {warning}");
    }
    for storage in file
        .config
        .subsystems
        .iter()
        .flat_map(|subsystem| &subsystem.namespaces)
        .map(|namespace| &namespace.storage)
    {
        if let Some((missing, free)) = storage.lacking_space().filter(|_| !arguments.text_only) {
            let (missing, free) = (Size(missing), Size(free));
            eprintln!("warning: {storage} can grow by {missing}, and its file system has {free} free");
        }
    }
    inspected.map_err(Failure::usage)?;
    Ok(ExitCode::SUCCESS)
}

/// Describes the namespaces and listeners of a target with this configuration.
fn plan(config: &TargetConfig) -> String {
    let mut text = String::from("Hosts connect at\n");
    for listener in &config.listeners {
        let _ = writeln!(text, "  {}", listener_line(listener));
    }
    let first = config.listeners.first().map(|listener| listener.address);
    // A free port is known once the target listens.
    let identity = Machine::known(config.machine.as_deref())
        .zip(first.filter(|address| address.port() != 0))
        .map(|(machine, first)| TargetIdentity::new(machine, &hostname(), first));
    let placeholder = TargetIdentity::new(Machine::named("unknown"), "", ([127, 0, 0, 1], 0).into());
    let subsystems = config.resolve(identity.as_ref().unwrap_or(&placeholder));
    for listener in &config.memcached {
        let _ = writeln!(text, "{}", memcached_line(listener, config.reactors.threads.count()));
    }
    if let Some(file) = &config.audit.file {
        let _ = writeln!(text, "Connects, authentications and refusals are appended to {}", file.display());
    }
    if let Some(address) = config.metrics.address {
        let _ = writeln!(text, "Metrics for Prometheus are at http://{address}/metrics");
        match config.metrics.live_page {
            LivePage::Loopback => {
                let _ = writeln!(text, "The live page at http://{address}/ is for users of this machine");
            }
            LivePage::Any => {
                let _ = writeln!(text, "The live page at http://{address}/ is for everyone who reaches it");
            }
            LivePage::Off => {}
        }
    }
    if subsystems.is_empty() {
        text.push_str("\nThere is no subsystem: hosts find nothing. Add a [[subsystem]] with a [[subsystem.namespace]].\n");
    }
    // In the order of the file.
    for subsystem in config.subsystems.iter().filter_map(|subsystem| subsystems.get(&subsystem.nqn)) {
        let _ = write!(text, "\nSubsystem {}\n", subsystem.nqn);
        let serial =
            config.subsystems.iter().any(|known| known.nqn == subsystem.nqn && known.serial.is_some());
        if serial || identity.is_some() {
            let _ = writeln!(text, "  serial number {}", subsystem.serial);
        }
        let mut known = config.subsystems.iter();
        let known = known.find(|known| known.nqn == subsystem.nqn).map(|known| &known.authentication);
        let authentication = known.cloned().unwrap_or_default();
        let _ = writeln!(text, "  {}", access_line(subsystem, config, &authentication));
        for (nsid, namespace) in &subsystem.namespaces {
            let _ = writeln!(text, "  namespace {nsid}: {}", namespace.spec);
            let _ = writeln!(text, "    {}", contents_line(namespace));
            for line in rights_lines(&namespace.rights) {
                let _ = writeln!(text, "    {line}");
            }
            let _ = writeln!(text, "    {}", disk_line(namespace, identity.is_some()));
        }
        if subsystem.namespaces.is_empty() {
            text.push_str("  no namespace: hosts connect but find no disk\n");
        }
    }
    text
}

fn listener_line(listener: &ListenerConfig) -> String {
    let leads_to = match (listener.subsystems, listener.discovery) {
        (true, true) => "subsystems and discovery",
        (true, false) => "subsystems",
        _ => "discovery only",
    };
    let address = listener.address;
    let reach = match listener.advertise {
        Some(advertised) => {
            let port = advertised.port.unwrap_or(address.port());
            format!(", advertised to hosts as {}", std::net::SocketAddr::new(advertised.ip, port))
        }
        None if address.ip().is_unspecified() => {
            format!(", any address of this machine: {} from elsewhere", from_elsewhere(address))
        }
        None if address.ip().is_loopback() => ", from this machine only".into(),
        None => String::new(),
    };
    let from = listener.allow.prefixes().map(|prefixes| format!(", from {} only", prefixes.join(", ")));
    format!("{address}: {leads_to}{reach}{}", from.unwrap_or_default())
}

/// Where memcached clients connect, and the requirements on them.
fn memcached_line(listener: &MemcachedListenerConfig, reactor_count: usize) -> String {
    let mut demands = Vec::new();
    if let Some(tls) = &listener.tls {
        demands.push(match (&tls.client_ca, tls.clients) {
            (Some(_), ClientCertificates::Required) => "with TLS and a certificate of their own".to_owned(),
            _ => "with TLS".to_owned(),
        });
    }
    if let Some(users) = &listener.users {
        demands.push(format!("with a user and a password in {users}"));
    }
    if let Some(prefixes) = listener.allow.prefixes() {
        demands.push(format!("from {}", prefixes.join(", ")));
    }
    let demands = if demands.is_empty() { "without any restriction".into() } else { demands.join(", ") };
    let MemcachedAddress::Partitions(first) = listener.address else {
        let address = &listener.address;
        return format!(
            "memcached clients connect at {address}, {demands}, to the first key-value namespace"
        );
    };
    let ports = match first.port() {
        0 => format!("{}, {reactor_count} free ports", first.ip()),
        port => format!("{first} to {}", usize::from(port) + reactor_count.saturating_sub(1)),
    };
    format!("memcached clients connect at {ports}, {demands}: each port has the keys of one partition")
}

fn access_line(
    subsystem: &ResolvedSubsystem,
    config: &TargetConfig,
    authentication: &AuthenticationConfig,
) -> String {
    let serving: Vec<_> = config.listeners.iter().filter(|listener| listener.subsystems).collect();
    let is_local = serving.iter().all(|listener| listener.address.ip().is_loopback());
    match &subsystem.access {
        Access::Any if let Some(sources) = &authentication.others => {
            format!("open to every host that has the secret in {}: hosts = \"any\"", sources.host)
        }
        Access::Any if is_local => "open to every program on this machine: hosts = \"any\"".into(),
        Access::Any => {
            "OPEN TO ANYONE who reaches a listener, for reading and writing: hosts = \"any\"".into()
        }
        Access::Only(hosts) if hosts.is_empty() => "open to no host: the list of hosts is empty".into(),
        Access::Only(hosts) => {
            let line = |host: &HostName| match authentication.of(host) {
                Some(sources) => format!("{host}, with the secret in {}", sources.host),
                None => format!("{host} (its name is not verified)"),
            };
            let lines: Vec<String> = hosts.iter().map(line).collect();
            format!("for these hosts:\n    {}", lines.join("\n    "))
        }
    }
}

/// Which hosts see a namespace and may write to it, unless all do.
fn rights_lines(rights: &HostRights) -> impl Iterator<Item = String> {
    let line = |what: &str, access: &Access| match access {
        Access::Any => None,
        Access::Only(hosts) if hosts.is_empty() => Some(format!("{what} no host")),
        Access::Only(hosts) => {
            let names: Vec<String> = hosts.iter().map(ToString::to_string).collect();
            Some(format!("{what} {} only", names.join(", ")))
        }
    };
    let lists = [line("visible to", &rights.visible_to), line("written by", &rights.writable_by)];
    lists.into_iter().flatten().chain(key_lines(&rights.keys))
}

/// Which keys each host may use, unless all may use all.
fn key_lines(rights: &KeyRights) -> Vec<String> {
    let Some(prefixes) = rights.prefixes() else { return Vec::new() };
    let of_host = |(host, prefixes): (&String, &Vec<String>)| match &prefixes[..] {
        [] => format!("{host} uses no key"),
        _ if prefixes.iter().any(String::is_empty) => format!("{host} uses all keys"),
        _ => {
            let quoted: Vec<_> = prefixes.iter().map(|prefix| format!("{prefix:?}")).collect();
            format!("{host} uses keys that begin with {}", quoted.join(" or "))
        }
    };
    let others = "other hosts use no key".to_owned();
    prefixes.iter().map(of_host).chain([others]).collect()
}

fn contents_line(namespace: &ResolvedNamespace) -> String {
    let contents = match &namespace.spec.source {
        Source::Memory { .. } => "in memory: empty at each start",
        Source::Null { .. } => "discards all data, reads return zeroes: for measurements",
        Source::KeyValue { .. } => "keys and values in memory: empty at each start",
        Source::KeyValueFile { path, .. } if !path.exists() => "keys and values in a file, to be created",
        Source::KeyValueFile { .. } => "keys and values in a file",
        Source::KeyValueRados(_) => "keys and values in a pool of a Ceph cluster",
        Source::File { path, .. } if !path.exists() => "in a file, to be created",
        Source::File { .. } => "in an existing file",
        Source::Device { .. } => "a block device of this machine",
        Source::Volume { .. } => "a volume of a pool",
        Source::Rbd(place) if place.image.snapshot.is_some() => {
            "a snapshot of an image in a Ceph cluster, read only"
        }
        Source::Rbd(_) => "an image in a Ceph cluster",
        Source::Nbd(_) => "an export of an NBD server",
        Source::VhostUser(_) => "a block device behind a vhost-user socket",
    };
    let access = if namespace.spec.is_read_only { ", read only" } else { "" };
    format!("{contents}{access}")
}

/// How a host finds a namespace.
fn disk_line(namespace: &ResolvedNamespace, is_machine_known: bool) -> String {
    if namespace.spec.is_key_value() {
        return "use it with nvlane kv".into();
    }
    let of_file = match &namespace.spec.source {
        Source::File { path, .. } => Some(store::identity::read(path)),
        Source::Volume { path } => Some(volume_at(path).ok().map(|volume| volume.record.uuid)),
        // The cluster has it.
        Source::Rbd(_) => Some(None),
        _ => None,
    };
    let uuid = match of_file {
        _ if namespace.is_uuid_given => Some(namespace.uuid),
        Some(kept) => kept,
        None => is_machine_known.then_some(namespace.uuid),
    };
    match uuid {
        Some(uuid) => {
            format!("on Linux hosts: {}", disk_path(Some(uuid), None, None).unwrap_or_default())
        }
        None => {
            "on Linux hosts: /dev/disk/by-id/nvme-uuid.…, logged once the target has generated the identity"
                .into()
        }
    }
}
