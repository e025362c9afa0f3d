//! Printing of specifications: the text parses back to the same specification.

use crate::key_value::{ITEM_BYTES_DEFAULT, NAMESPACE_DEFAULT, RADOS_MEMORY_BYTES_DEFAULT};
use std::ffi::OsStr;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;

use ceph::ClusterName;
use kv::log::Sync;

use super::{LOCKS, SYNCS, Source, Spec, TIME_UNITS};
use crate::block::{
    CONNECTION_LIMIT_DEFAULT, DEADLINE_S_DEFAULT, LockPolicy, NBD_DEADLINE_S_DEFAULT, NbdServer,
    VHOST_USER_DEADLINE_S_DEFAULT,
};
use crate::filter::{Delay, Fault, FaultKind, FaultRate, Filter, Kind, Limit};
use crate::size::Size;

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = '?';
        let mut option = |f: &mut fmt::Formatter<'_>, option: fmt::Arguments<'_>| {
            f.write_char(std::mem::replace(&mut separator, '&'))?;
            f.write_fmt(option)
        };
        match &self.source {
            Source::Memory { bytes, huge_pages } => {
                write!(f, "ram:{}", Size(*bytes))?;
                if !huge_pages {
                    option(f, format_args!("small"))?;
                }
            }
            Source::Null { bytes } => write!(f, "null:{}", Size(*bytes))?,
            Source::KeyValue { bytes, evicts, .. } => {
                write!(f, "kv:ram:{}", Size(*bytes))?;
                if !evicts {
                    option(f, format_args!("evict=none"))?;
                }
            }
            Source::File { path, bytes } => {
                write!(f, "file:{}", PathText(path.as_os_str()))?;
                if let Some(bytes) = bytes {
                    option(f, format_args!("size={}", Size(*bytes)))?;
                }
            }
            Source::KeyValueFile { path, bytes, memory_bytes, sync, .. } => {
                write!(f, "kv:file:{}", PathText(path.as_os_str()))?;
                if let Some(bytes) = bytes {
                    option(f, format_args!("size={}", Size(*bytes)))?;
                }
                if let Some(bytes) = memory_bytes {
                    option(f, format_args!("memory={}", Size(*bytes)))?;
                }
                if *sync != Sync::default() {
                    let name = SYNCS.iter().find(|(_, known)| known == sync).map_or("", |(name, _)| name);
                    option(f, format_args!("sync={name}"))?;
                }
            }
            Source::KeyValueRados(place) => {
                write!(f, "kv:rados:{}", Escaped(&place.pool, NAME_SIGNS))?;
                let namespace = Some(&place.namespace).filter(|name| *name != NAMESPACE_DEFAULT);
                for (name, value) in names_of_cluster(&place.cluster, namespace) {
                    if let Some(value) = value {
                        option(f, format_args!("{name}={}", Escaped(value, VALUE_SIGNS)))?;
                    }
                }
                if place.memory_bytes != RADOS_MEMORY_BYTES_DEFAULT {
                    option(f, format_args!("memory={}", Size(place.memory_bytes)))?;
                }
                if place.refuses {
                    option(f, format_args!("lock=refuse"))?;
                }
                if place.item_bytes != ITEM_BYTES_DEFAULT {
                    option(f, format_args!("item={}", place.item_bytes))?;
                }
            }
            Source::Device { path } => write!(f, "device:{}", PathText(path.as_os_str()))?,
            Source::Volume { path } => write!(f, "pool:{}", PathText(path.as_os_str()))?,
            Source::Nbd(place) => {
                write!(f, "{}/{}", place.server, Escaped(&place.export, NAME_SIGNS))?;
                if let NbdServer::Unix(path) = &place.server {
                    option(f, format_args!("socket={}", PathValue(path.as_os_str())))?;
                }
                if place.connection_limit != CONNECTION_LIMIT_DEFAULT {
                    option(f, format_args!("connections={}", place.connection_limit))?;
                }
                if place.deadline_s != NBD_DEADLINE_S_DEFAULT {
                    option(f, format_args!("deadline={}s", place.deadline_s))?;
                }
            }
            Source::VhostUser(place) => {
                write!(f, "vhost-user:{}", PathText(place.socket.as_os_str()))?;
                if place.deadline_s != VHOST_USER_DEADLINE_S_DEFAULT {
                    option(f, format_args!("deadline={}s", place.deadline_s))?;
                }
            }
            Source::Rbd(place) => {
                let image = &place.image;
                write!(f, "rbd:{}/{}", Escaped(&image.pool, NAME_SIGNS), Escaped(&image.image, NAME_SIGNS))?;
                if let Some(snapshot) = &image.snapshot {
                    write!(f, "@{}", Escaped(snapshot, NAME_SIGNS))?;
                }
                let namespace = Some(&image.namespace).filter(|namespace| !namespace.is_empty());
                for (name, value) in names_of_cluster(&place.cluster, namespace) {
                    if let Some(value) = value {
                        option(f, format_args!("{name}={}", Escaped(value, VALUE_SIGNS)))?;
                    }
                }
                if let Some(bytes) = place.create_bytes {
                    option(f, format_args!("create={}", Size(bytes)))?;
                }
                if place.lock != LockPolicy::default() {
                    let name =
                        LOCKS.iter().find(|(_, known)| *known == place.lock).map_or("", |(name, _)| name);
                    option(f, format_args!("lock={name}"))?;
                }
                if place.deadline_s != DEADLINE_S_DEFAULT {
                    option(f, format_args!("deadline={}s", place.deadline_s))?;
                }
            }
        }
        if let Source::KeyValue { item_bytes, allows_flush, prefaults, .. }
        | Source::KeyValueFile { item_bytes, allows_flush, prefaults, .. } = &self.source
        {
            if *item_bytes != ITEM_BYTES_DEFAULT {
                option(f, format_args!("item={item_bytes}"))?;
            }
            if *allows_flush {
                option(f, format_args!("flush"))?;
            }
            if *prefaults {
                option(f, format_args!("prefault"))?;
            }
        }
        if matches!(self.source, Source::KeyValueFile { is_sparse: true, .. }) {
            option(f, format_args!("sparse"))?;
        }
        if let Some(block_bytes) = self.block_bytes {
            option(f, format_args!("lba={block_bytes}"))?;
        }
        if let Some(uuid) = self.uuid {
            option(f, format_args!("uuid={uuid}"))?;
        }
        if self.is_read_only {
            option(f, format_args!("readonly"))?;
        }
        for filter in &self.filters {
            option(f, format_args!("{filter}"))?;
        }
        Ok(())
    }
}

/// The options that say which cluster, as whom, and which namespace in the pool.
fn names_of_cluster<'a>(
    cluster: &'a ClusterName,
    namespace: Option<&'a String>,
) -> [(&'static str, Option<&'a String>); 4] {
    let ClusterName { conf, id, cluster } = cluster;
    [("conf", conf.as_ref()), ("id", id.as_ref()), ("cluster", cluster.as_ref()), ("namespace", namespace)]
}

/// Signs that end a name of an image, and the value of an option.
const NAME_SIGNS: &str = "%?/@";
const VALUE_SIGNS: &str = "%&";

/// A text with these signs escaped.
struct Escaped<'a>(&'a str, &'static str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match self.1.contains(character) {
            true => write!(f, "%{:02X}", u32::from(character)),
            false => f.write_char(character),
        })
    }
}

/// A path in a specification: valid text, with special characters escaped.
struct PathText<'a>(&'a OsStr);

/// A path that is the value of an option.
struct PathValue<'a>(&'a OsStr);

impl fmt::Display for PathText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_path(f, self.0, "?%")
    }
}

impl fmt::Display for PathValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_path(f, self.0, VALUE_SIGNS)
    }
}

fn write_path(f: &mut fmt::Formatter<'_>, path: &OsStr, signs: &'static str) -> fmt::Result {
    for chunk in path.as_bytes().utf8_chunks() {
        write!(f, "{}", Escaped(chunk.valid(), signs))?;
        for byte in chunk.invalid() {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}
/// A time with the largest unit that leaves a whole number.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = TIME_UNITS.iter().find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor));
        let (unit, factor) = fitting.unwrap_or(&("us", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |f: &mut fmt::Formatter<'_>, kind: Option<Kind>| match kind {
            Some(kind) => write!(f, "{}:", kind.name()),
            None => Ok(()),
        };
        match self {
            Self::Delay(Delay { kind, wait_us }) => {
                f.write_str("delay=")?;
                of(f, *kind)?;
                write!(f, "{}", Time(*wait_us.start()))?;
                if wait_us.start() == wait_us.end() { Ok(()) } else { write!(f, "-{}", Time(*wait_us.end())) }
            }
            Self::Error(Fault { kind, rate, range, error, seed }) => {
                f.write_str("error=")?;
                of(f, *kind)?;
                write!(f, "{rate}")?;
                if *error != FaultKind::default() {
                    write!(f, ",as={}", error.name())?;
                }
                if let Some(range) = range {
                    write!(f, ",at={}-{}", Size(range.start), Size(range.end))?;
                }
                if *seed == 0 { Ok(()) } else { write!(f, ",seed={seed}") }
            }
            Self::Limit(Limit { operations_per_s, bytes_per_s, burst_us }) => {
                f.write_str("limit=")?;
                if let Some(rate) = operations_per_s {
                    write!(f, "{rate}iops")?;
                }
                if let Some(rate) = bytes_per_s {
                    let comma = if operations_per_s.is_some() { "," } else { "" };
                    write!(f, "{comma}{}/s", Size(*rate))?;
                }
                match *burst_us {
                    Limit::BURST_US_DEFAULT => Ok(()),
                    burst_us => write!(f, ",burst={}", Time(burst_us)),
                }
            }
            Self::Trace => f.write_str("trace"),
        }
    }
}

impl fmt::Display for FaultRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Every(n) => write!(f, "1/{n}"),
            Self::PerMillion(share) => {
                let (whole, fraction) = (share / 10_000, format!("{:04}", share % 10_000));
                match fraction.trim_end_matches('0') {
                    "" => write!(f, "{whole}%"),
                    digits => write!(f, "{whole}.{digits}%"),
                }
            }
        }
    }
}
