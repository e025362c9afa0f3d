//! Parser of specifications: works piece by piece, so that an error has its position.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::key_value::ITEM_BYTES_DEFAULT;
use ceph::{ClusterName, ImageName};
use kv::log::Sync;
use wire::uuid::Uuid;

use super::{LOCKS, SYNCS, Source, Spec, SpecError, TIME_UNITS};
use crate::block::{
    CONNECTION_LIMIT_DEFAULT, DEADLINE_S_DEFAULT, LockPolicy, NBD_DEADLINE_S_DEFAULT, NbdPlace, NbdServer,
    RbdPlace, VHOST_USER_DEADLINE_S_DEFAULT, VhostUserPlace,
};
use crate::filter::{Delay, Fault, FaultKind, FaultRate, Filter, Kind, Limit};
use crate::key_value::{
    MEMORY_BYTES_MIN, MEMORY_BYTES_MIN_WITH_LOG, NAMESPACE_DEFAULT, RADOS_MEMORY_BYTES_DEFAULT, RadosPlace,
    superblock,
};
use crate::namespace::BLOCK_BYTES;
use crate::near::nearest;
use crate::size::Size;

/// A part of the text, and its offset, bytes.
#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    at: usize,
}

/// An error, and its offset.
struct Wrong {
    at: usize,
    message: String,
}

type Parsed<T> = Result<T, Wrong>;

impl<'a> Piece<'a> {
    fn wrong<T>(self, message: impl Into<String>) -> Parsed<T> {
        Err(Wrong { at: self.at, message: message.into() })
    }

    /// The text after the first `count` bytes.
    fn skip(self, count: usize) -> Self {
        Self { text: &self.text[count..], at: self.at + count }
    }

    /// The parts before and after the first `separator`.
    fn split(self, separator: char) -> (Self, Option<Self>) {
        match self.text.find(separator) {
            Some(at) => (Self { text: &self.text[..at], ..self }, Some(self.skip(at + separator.len_utf8()))),
            None => (self, None),
        }
    }

    /// The pieces between separators.
    fn pieces(self, separator: char) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let (piece, after) = rest?.split(separator);
            rest = after;
            Some(piece)
        })
    }

    fn size(self) -> Parsed<u64> {
        let size = Size::parse(self.text).map_err(|(at, message)| Wrong { at: self.at + at, message })?;
        Ok(size.0)
    }

    fn number(self) -> Parsed<u64> {
        let is_number = !self.text.is_empty() && self.text.bytes().all(|byte| byte.is_ascii_digit());
        match self.text.parse() {
            Ok(number) if is_number => Ok(number),
            _ => self.wrong("expected a number"),
        }
    }

    /// A time, us.
    fn time(self) -> Parsed<u64> {
        let end = self.text.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.text.len());
        let (digits, unit) = (&self.text[..end], &self.text[end..]);
        let factor = TIME_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
        match (digits.parse::<u64>(), factor) {
            (Ok(count), Some(factor)) => match count.checked_mul(factor).filter(|us| *us <= TIME_US_MAX) {
                Some(us) => Ok(us),
                None => self.wrong("more than a day"),
            },
            (Ok(_), None) => self.skip(end).wrong("expected a unit of time: us, ms or s, as in 100us"),
            (Err(_), _) => self.wrong("expected a time such as 100us, 5ms or 1s"),
        }
    }

    /// `[KIND:]rest`
    fn kind(self) -> Parsed<(Option<Kind>, Self)> {
        let (name, Some(rest)) = self.split(':') else { return Ok((None, self)) };
        match Kind::ALL.into_iter().find(|kind| kind.name() == name.text) {
            Some(kind) => Ok((Some(kind), rest)),
            None => name.wrong(format!("expected one of {}", list(Kind::ALL.map(Kind::name)))),
        }
    }
}

/// One day.
const TIME_US_MAX: u64 = 24 * 3600 * 1_000_000;

/// The kinds of storage, for messages.
const SOURCES: &str = "ram:SIZE, null:SIZE, file:PATH, device:PATH, pool:DIR/VOLUME, rbd:POOL/IMAGE, nbd://HOST/EXPORT, vhost-user:SOCKET, kv:ram:SIZE, kv:file:PATH or kv:rados:POOL";

/// The kinds of storage for keys and values.
const KEY_VALUE_OPTIONS: &str = "only evict, item, flush, prefault and uuid go with kv:ram:";
const KEY_VALUE_FILE_OPTIONS: &str =
    "only size, sparse, memory, sync, item, flush, prefault, uuid and filters go with kv:file:";

const KEY_VALUE_RADOS_OPTIONS: &str =
    "only conf, id, cluster, namespace, memory, lock, item and uuid go with kv:rados:";

const RBD_OPTIONS: &str =
    "only conf, id, cluster, namespace, create, lock, deadline, lba, uuid, readonly and filters go with rbd:";

const NBD_OPTIONS: &str = "only socket, connections, deadline, lba, uuid, readonly and filters go with nbd:";

const VHOST_USER_OPTIONS: &str = "only deadline, lba, uuid, readonly and filters go with vhost-user:";

/// Those of nbd:, which nobody means elsewhere.
const NBD_NAMES: [&str; 3] = ["socket", "connections", "deadline"];

/// All options.
const OPTIONS: [&str; 16] = [
    "lba", "size", "uuid", "readonly", "small", "huge", "delay", "error", "limit", "trace", "evict",
    "memory", "sync", "item", "flush", "prefault",
];

/// Those of rbd:, which nobody means elsewhere.
const RBD_NAMES: [&str; 7] = ["conf", "id", "cluster", "namespace", "create", "lock", "deadline"];

/// The option that was probably meant.
fn suggestion<const N: usize>(word: &str, names: [&str; N]) -> String {
    nearest(word, names).map_or_else(String::new, |name| format!(" (did you mean {name}?)"))
}

fn list<const N: usize>(names: [&str; N]) -> String {
    let (last, others) = names.split_last().expect("lists are not empty");
    format!("{} or {last}", others.join(", "))
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        parse(Piece { text, at: 0 }).map_err(|Wrong { at, message }| SpecError {
            text: text.to_owned(),
            position: text[..at].chars().count() + 1,
            message,
        })
    }
}

fn parse(text: Piece<'_>) -> Parsed<Spec> {
    let (source, options) = text.split('?');
    let mut spec = Spec::new(parse_source(source)?);
    let mut given: Vec<&str> = Vec::new();
    for option in options.into_iter().flat_map(|options| options.pieces('&')) {
        let (name, value) = option.split('=');
        let is_filter = matches!(name.text, "delay" | "error" | "limit" | "trace");
        if !is_filter && given.contains(&name.text) {
            return name.wrong(format!("{} is given twice", name.text));
        }
        given.push(name.text);
        parse_option(&mut spec, name, value)?;
    }
    if let Source::Nbd(place) = &spec.source
        && place.server == NbdServer::Unix(PathBuf::new())
    {
        let end = text.skip(text.text.len());
        return end.wrong("expected the server's socket, as in nbd+unix:///?socket=/run/nbd.sock");
    }
    Ok(spec)
}

fn parse_source(text: Piece<'_>) -> Parsed<Source> {
    let (scheme, Some(place)) = text.split(':') else {
        let meant = match text.text {
            path if path.starts_with("/dev/") => format!(", did you mean device:{path}?"),
            path if path.starts_with('/') => format!(", did you mean file:{path}?"),
            size if Size::parse(size).is_ok() => format!(", did you mean ram:{size}?"),
            _ => String::new(),
        };
        return text.wrong(format!("expected {SOURCES}{meant}"));
    };
    match scheme.text {
        "ram" => Ok(Source::Memory { bytes: parse_bytes(place)?, huge_pages: true }),
        "null" => Ok(Source::Null { bytes: parse_bytes(place)? }),
        "file" => Ok(Source::File { path: parse_path(place)?, bytes: None }),
        "kv" => match place.split(':') {
            (Piece { text: "ram", .. }, Some(size)) => {
                let bytes = parse_memory(size, MEMORY_BYTES_MIN)?;
                Ok(Source::KeyValue {
                    bytes,
                    evicts: true,
                    item_bytes: ITEM_BYTES_DEFAULT,
                    allows_flush: false,
                    prefaults: false,
                })
            }
            (Piece { text: "file", .. }, Some(path)) => Ok(Source::KeyValueFile {
                path: parse_path(path)?,
                bytes: None,
                memory_bytes: None,
                sync: Sync::default(),
                item_bytes: ITEM_BYTES_DEFAULT,
                allows_flush: false,
                prefaults: false,
                is_sparse: false,
            }),
            (Piece { text: "rados", .. }, Some(pool)) => Ok(Source::KeyValueRados(Box::new(RadosPlace {
                cluster: ClusterName::default(),
                pool: parse_pool(pool)?,
                namespace: NAMESPACE_DEFAULT.into(),
                memory_bytes: RADOS_MEMORY_BYTES_DEFAULT,
                item_bytes: ITEM_BYTES_DEFAULT,
                refuses: false,
            }))),
            _ => place.wrong("expected ram:SIZE, file:PATH or rados:POOL, as in kv:ram:4G"),
        },
        "device" => Ok(Source::Device { path: parse_path(place)? }),
        "pool" => Ok(Source::Volume { path: parse_path(place)? }),
        "rbd" => Ok(Source::Rbd(Box::new(parse_image(place)?))),
        "nbd" if place.text.starts_with("nbd") => parse_source(place),
        "nbd" | "nbd+unix" => Ok(Source::Nbd(Box::new(parse_export(scheme.text == "nbd+unix", place)?))),
        "vhost-user" => {
            let (socket, deadline_s) = (parse_path(place)?, VHOST_USER_DEADLINE_S_DEFAULT);
            Ok(Source::VhostUser(VhostUserPlace { socket, deadline_s }))
        }
        "nbds" | "nbds+unix" => {
            scheme.wrong("there is no TLS to NBD servers: nbd://HOST/EXPORT within a network that you trust")
        }
        unknown => scheme.wrong(format!(
            "there is no '{unknown}'{}: expected {SOURCES}",
            suggestion(unknown, ["ram", "null", "file", "device", "pool", "rbd", "nbd", "vhost-user", "kv"])
        )),
    }
}

/// A size that is not 0.
fn parse_bytes(text: Piece<'_>) -> Parsed<u64> {
    match text.size()? {
        0 => text.wrong("a namespace of no bytes"),
        bytes => Ok(bytes),
    }
}

/// Memory for keys and values, `bytes_min` at least.
fn parse_memory(text: Piece<'_>, bytes_min: u64) -> Parsed<u64> {
    match parse_bytes(text)? {
        bytes if bytes < bytes_min => text.wrong(format!(
            "too little for keys and values: take {} or more for each thread",
            Size(bytes_min)
        )),
        bytes => Ok(bytes),
    }
}

/// The size of a file of keys and values.
fn parse_log_bytes(text: Piece<'_>) -> Parsed<u64> {
    let (one, two) = (superblock::bytes_min(1), superblock::bytes_min(2));
    match parse_bytes(text)? {
        bytes if bytes < one => text.wrong(format!(
            "too little for a log of keys and values: take {} or more, and {} more for each further thread",
            Size(one),
            Size(two - one)
        )),
        bytes => Ok(bytes),
    }
}

fn parse_path(text: Piece<'_>) -> Parsed<PathBuf> {
    if text.text.is_empty() {
        return text.wrong("expected a path");
    }
    // An option behind the wrong sign would become part of a file's name.
    for (at, _) in text.text.match_indices('&') {
        let option = text.skip(at + 1);
        if OPTIONS.contains(&option.split('=').0.text) {
            return text.skip(at).wrong(format!(
                "the first option follows a question mark: write ?{} (or %26 for the sign & in a path)",
                option.text
            ));
        }
    }
    Ok(OsString::from_vec(unescape(text, "a path")?).into())
}

/// The name of a pool alone.
fn parse_pool(text: Piece<'_>) -> Parsed<String> {
    match text.split('/') {
        (_, Some(rest)) => {
            rest.wrong("the namespace in the pool is an option, as in kv:rados:keys?namespace=tenant")
        }
        (pool, None) => parse_name(pool),
    }
}

/// The image in `POOL/IMAGE`, `POOL/NAMESPACE/IMAGE` or one of them with `@SNAPSHOT`.
fn parse_image(text: Piece<'_>) -> Parsed<RbdPlace> {
    let parts: Vec<Piece<'_>> = text.pieces('/').collect();
    let (pool, namespace, image) = match *parts.as_slice() {
        [pool, image] => (pool, None, image),
        [pool, namespace, image] => (pool, Some(namespace), image),
        _ => return text.wrong("expected POOL/IMAGE, as in rbd:volumes/db"),
    };
    let (image, snapshot) = image.split('@');
    Ok(RbdPlace {
        cluster: ClusterName::default(),
        image: ImageName {
            pool: parse_name(pool)?,
            namespace: namespace.map_or_else(|| Ok(String::new()), parse_name)?,
            image: parse_name(image)?,
            snapshot: snapshot.map(parse_name).transpose()?,
        },
        create_bytes: None,
        lock: LockPolicy::default(),
        sharing: None,
        deadline_s: DEADLINE_S_DEFAULT,
    })
}

/// The export in `//HOST[:PORT][/EXPORT]`, or in `///EXPORT` with the socket in an option.
fn parse_export(is_unix: bool, text: Piece<'_>) -> Parsed<NbdPlace> {
    if !text.text.starts_with("//") {
        return text.wrong("expected a URI, as in nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=PATH");
    }
    let (authority, export) = text.skip(2).split('/');
    let server = match (is_unix, authority.text) {
        (true, "") => NbdServer::Unix(PathBuf::new()),
        (true, _) => return authority.wrong("expected a third /: the socket is an option, ?socket=PATH"),
        (false, _) => parse_server(authority)?,
    };
    let export = match export {
        Some(name) if !name.text.is_empty() => parse_name(name)?,
        _ => String::new(),
    };
    let (connection_limit, deadline_s) = (CONNECTION_LIMIT_DEFAULT, NBD_DEADLINE_S_DEFAULT);
    Ok(NbdPlace { server, export, connection_limit, deadline_s })
}

/// A host, and perhaps a port.
fn parse_server(text: Piece<'_>) -> Parsed<NbdServer> {
    let (host, port) = match text.text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, port)) if port.starts_with(':') => (host, Some(text.skip(host.len() + 3))),
            _ => return text.wrong("expected [ADDRESS] or [ADDRESS]:PORT"),
        },
        None => match text.split(':') {
            (host, Some(port)) if port.text.contains(':') => {
                return host.wrong("an IPv6 address stands in brackets, as in nbd://[::1]/");
            }
            (host, port) => (host.text, port),
        },
    };
    if host.is_empty() || host.contains('@') || host.contains('%') {
        return text.wrong("expected a host, as in nbd://storage.example/disk");
    }
    let port = match port {
        None => nbd_wire::PORT,
        Some(port) => match port.number().map(u16::try_from) {
            Ok(Ok(port)) => port,
            _ => return port.wrong("expected a port, as in nbd://HOST:10809/"),
        },
    };
    Ok(NbdServer::Tcp(host.to_owned(), port))
}

/// Whole seconds.
fn parse_deadline(text: Piece<'_>) -> Parsed<u32> {
    let us = text.time()?;
    match u32::try_from(us / 1_000_000) {
        Ok(s @ 1..) if us.is_multiple_of(1_000_000) => Ok(s),
        _ => text.wrong("expected whole seconds, as in 25s"),
    }
}

/// A name in Ceph, or of an export.
fn parse_name(text: Piece<'_>) -> Parsed<String> {
    if text.text.is_empty() {
        return text.wrong("expected a name");
    }
    match String::from_utf8(unescape(text, "a name")?) {
        Ok(name) => Ok(name),
        Err(_) => text.wrong("a name is in UTF-8"),
    }
}

/// The bytes of a text with escaped signs.
fn unescape(text: Piece<'_>, what: &str) -> Parsed<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.text.len());
    let mut rest = text;
    while let (before, Some(after)) = rest.split('%') {
        bytes.extend_from_slice(before.text.as_bytes());
        let code = after.text.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let is_code = after.text.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
        match code.filter(|_| is_code) {
            Some(0) => return after.wrong(format!("{what} has no zero bytes")),
            Some(byte) => bytes.push(byte),
            None => {
                let percent = Piece { at: after.at - 1, ..after };
                return percent
                    .wrong("expected two hexadecimal digits after %: write %25 for the sign itself");
            }
        }
        rest = after.skip(2);
    }
    if rest.text.contains('\0') || bytes.contains(&0) {
        return text.wrong(format!("{what} has no zero bytes"));
    }
    bytes.extend_from_slice(rest.text.as_bytes());
    Ok(bytes)
}

fn parse_option(spec: &mut Spec, name: Piece<'_>, value: Option<Piece<'_>>) -> Parsed<()> {
    let flag = || match value {
        None => Ok(()),
        Some(value) => value.wrong(format!("{} takes no value", name.text)),
    };
    let needed = |example: &str| match value {
        Some(value) if !value.text.is_empty() => Ok(value),
        _ => name.wrong(format!("{} needs a value, as in {}={example}", name.text, name.text)),
    };
    match (name.text, &mut spec.source) {
        ("evict", Source::KeyValue { evicts, .. }) => {
            let value = needed("none")?;
            *evicts = match value.text {
                "none" => false,
                "unused" => true,
                _ => return value.wrong("expected none or unused"),
            };
        }
        ("evict", Source::KeyValueFile { .. }) => {
            return name.wrong("a file keeps its keys: evict goes with kv:ram: only");
        }
        ("memory", Source::KeyValueFile { memory_bytes, .. }) => {
            *memory_bytes = Some(parse_memory(needed("1G")?, MEMORY_BYTES_MIN_WITH_LOG)?);
        }
        ("memory", Source::KeyValueRados(place)) => {
            place.memory_bytes = parse_memory(needed("1G")?, MEMORY_BYTES_MIN)?;
        }
        ("lock", Source::KeyValueRados(place)) => {
            let value = needed("refuse")?;
            place.refuses = match value.text {
                "acquire" => false,
                "refuse" => true,
                _ => return value.wrong("expected acquire or refuse"),
            };
        }
        ("item", Source::KeyValueRados(place)) => place.item_bytes = parse_item(needed("64M")?)?,
        ("namespace", Source::KeyValueRados(place)) => place.namespace = parse_name(needed("tenant")?)?,
        ("sync", Source::KeyValueFile { sync, .. }) => {
            let value = needed("always")?;
            match SYNCS.iter().find(|(word, _)| *word == value.text) {
                Some((_, wanted)) => *sync = *wanted,
                None => return value.wrong("expected always, batch or none"),
            }
        }
        ("item", Source::KeyValue { item_bytes, .. } | Source::KeyValueFile { item_bytes, .. }) => {
            *item_bytes = parse_item(needed("64M")?)?;
        }
        ("flush", Source::KeyValue { allows_flush, .. } | Source::KeyValueFile { allows_flush, .. }) => {
            flag()?;
            *allows_flush = true;
        }
        ("prefault", Source::KeyValue { prefaults, .. } | Source::KeyValueFile { prefaults, .. }) => {
            flag()?;
            *prefaults = true;
        }
        ("sparse", Source::KeyValueFile { is_sparse, .. }) => {
            flag()?;
            *is_sparse = true;
        }
        ("flush", Source::KeyValueRados(_)) => {
            return name.wrong("keys in a cluster are not removed all at once: remove the objects, or take another namespace=");
        }
        (
            "prefault" | "sync" | "sparse" | "lba" | "readonly" | "huge" | "small" | "size" | "delay"
            | "error" | "limit" | "trace" | "evict",
            Source::KeyValueRados(_),
        ) => {
            return name.wrong(KEY_VALUE_RADOS_OPTIONS);
        }
        ("evict", _) => return name.wrong("only kv: has keys and values"),
        ("sparse", _) => return name.wrong("only kv:file: allocates space ahead"),
        ("prefault", _) => return name.wrong("only memory of kv: is touched ahead"),
        ("flush" | "item", _) => return name.wrong("only kv: is reached by memcached's clients"),
        ("memory", _) => return name.wrong("only kv:file: and kv:rados: have memory in front of them"),
        ("sync", _) => return name.wrong("only kv:file: has a log"),
        ("lba" | "readonly" | "huge" | "small", Source::KeyValueFile { .. }) => {
            return name.wrong(KEY_VALUE_FILE_OPTIONS);
        }
        (
            "lba" | "readonly" | "huge" | "small" | "size" | "delay" | "error" | "limit" | "trace",
            Source::KeyValue { .. },
        ) => {
            return name.wrong(KEY_VALUE_OPTIONS);
        }
        ("conf" | "id" | "cluster", Source::Rbd(place)) => parse_cluster(&mut place.cluster, name, needed)?,
        ("conf" | "id" | "cluster", Source::KeyValueRados(place)) => {
            parse_cluster(&mut place.cluster, name, needed)?;
        }
        ("namespace", Source::Rbd(place)) => {
            if !place.image.namespace.is_empty() {
                return name.wrong("the namespace stands between the pool and the image already");
            }
            place.image.namespace = parse_name(needed("tenant")?)?;
        }
        ("create", Source::Rbd(place)) => {
            let bytes = parse_bytes(needed("10G")?)?;
            if place.image.snapshot.is_some() {
                return name.wrong("a snapshot is not created here: rbd snap create makes one");
            }
            place.create_bytes = Some(bytes);
        }
        ("lock", Source::Rbd(place)) => {
            let value = needed("acquire")?;
            match LOCKS.iter().find(|(known, _)| *known == value.text) {
                Some((_, lock)) => place.lock = *lock,
                None => return value.wrong("expected acquire, refuse, break or share"),
            }
        }
        ("deadline", Source::Rbd(place)) => place.deadline_s = parse_deadline(needed("25s")?)?,
        ("deadline", Source::Nbd(place)) => place.deadline_s = parse_deadline(needed("25s")?)?,
        ("deadline", Source::VhostUser(place)) => place.deadline_s = parse_deadline(needed("25s")?)?,
        ("socket", Source::Nbd(place)) => {
            let value = needed("/run/nbd.sock")?;
            match &mut place.server {
                NbdServer::Unix(path) => *path = OsString::from_vec(unescape(value, "a path")?).into(),
                NbdServer::Tcp(..) => {
                    return name.wrong("only nbd+unix:// has a socket, nbd:// has a host and a port");
                }
            }
        }
        ("connections", Source::Nbd(place)) => {
            let value = needed("1")?;
            match value.number().map(u16::try_from) {
                Ok(Ok(count @ 1..)) => place.connection_limit = count,
                _ => return value.wrong("expected a number from 1 to 65535"),
            }
        }
        ("size", Source::Nbd(_) | Source::VhostUser(_)) => {
            return name.wrong("it has the size that its server gives it");
        }
        ("size", Source::Rbd(_)) => {
            return name
                .wrong("an image has the size it has: create=SIZE makes a new one, rbd resize changes it");
        }
        ("create", _) => return name.wrong("only rbd: has it"),
        ("conf" | "id" | "cluster" | "namespace" | "lock", _) => {
            return name.wrong("only rbd: and kv:rados: have it");
        }
        ("deadline", _) => return name.wrong("only rbd:, nbd: and vhost-user: have it"),
        ("socket" | "connections", _) => return name.wrong("only nbd: has it"),
        ("lba", Source::Volume { .. }) => {
            return name.wrong("a volume has the block size that it was created with");
        }
        ("size", Source::Volume { .. }) => {
            return name.wrong("a volume has its own size: nvlane ctl volume resize makes it larger");
        }
        ("lba", _) => {
            let value = needed("4096")?;
            let bytes = u32::try_from(value.size()?).ok();
            let is_right = |bytes: &u32| BLOCK_BYTES.contains(bytes) && bytes.is_power_of_two();
            match bytes.filter(is_right) {
                Some(bytes) => spec.block_bytes = Some(bytes),
                None => return value.wrong("expected a power of two from 512 to 65536"),
            }
        }
        ("uuid", _) => {
            let value = needed("01234567-89ab-cdef-0123-456789abcdef")?;
            match value.text.parse::<Uuid>() {
                Ok(uuid) => spec.uuid = Some(uuid),
                Err(error) => return value.wrong(error.to_string()),
            }
        }
        ("readonly", _) => {
            flag()?;
            spec.is_read_only = true;
        }
        ("huge" | "small", Source::Memory { huge_pages, .. }) => {
            flag()?;
            *huge_pages = name.text == "huge";
        }
        ("size", Source::File { bytes, .. }) => *bytes = Some(parse_bytes(needed("10G")?)?),
        ("size", Source::KeyValueFile { bytes, .. }) => *bytes = Some(parse_log_bytes(needed("10G")?)?),
        ("size", Source::Memory { .. } | Source::Null { .. }) => {
            return name.wrong("the size stands after the colon, as in ram:10G");
        }
        ("size", Source::Device { .. }) => return name.wrong("a device has the size it has"),
        ("delay", _) => spec.filters.push(Filter::Delay(parse_delay(needed("100us")?)?)),
        ("error", _) => spec.filters.push(Filter::Error(parse_fault(needed("1/1000")?)?)),
        ("limit", _) => spec.filters.push(Filter::Limit(parse_limit(needed("10000iops")?)?)),
        ("trace", _) => {
            flag()?;
            spec.filters.push(Filter::Trace);
        }
        ("huge" | "small", _) => return name.wrong("only ram: has pages of a size to choose"),
        ("", _) => return name.wrong("expected an option"),
        (unknown, source) => {
            let options = match source {
                Source::KeyValue { .. } => KEY_VALUE_OPTIONS,
                Source::KeyValueFile { .. } => KEY_VALUE_FILE_OPTIONS,
                Source::KeyValueRados(_) => KEY_VALUE_RADOS_OPTIONS,
                Source::Rbd(_) => RBD_OPTIONS,
                Source::Nbd(_) => NBD_OPTIONS,
                Source::VhostUser(_) => VHOST_USER_OPTIONS,
                _ => "expected lba, size, uuid, readonly, small, delay, error, limit or trace",
            };
            let meant = match source {
                Source::Rbd(_) if nearest(unknown, RBD_NAMES).is_some() => suggestion(unknown, RBD_NAMES),
                Source::VhostUser(_) if nearest(unknown, ["deadline"]).is_some() => {
                    suggestion(unknown, ["deadline"])
                }
                Source::KeyValueRados(_) if nearest(unknown, RBD_NAMES).is_some() => {
                    suggestion(unknown, RBD_NAMES)
                }
                Source::Nbd(_) if nearest(unknown, NBD_NAMES).is_some() => suggestion(unknown, NBD_NAMES),
                _ => suggestion(unknown, OPTIONS),
            };
            return name.wrong(format!("there is no option '{unknown}'{meant}: {options}"));
        }
    }
    Ok(())
}

/// An option that says which cluster, or as whom.
fn parse_cluster<'a>(
    cluster: &mut ClusterName,
    name: Piece<'a>,
    needed: impl Fn(&str) -> Parsed<Piece<'a>>,
) -> Parsed<()> {
    let (place, example) = match name.text {
        "conf" => (&mut cluster.conf, "/etc/ceph/ceph.conf"),
        "id" => (&mut cluster.id, "nvlane"),
        _ => (&mut cluster.cluster, "ceph"),
    };
    *place = Some(parse_name(needed(example)?)?);
    Ok(())
}

/// The longest value of memcached's clients.
fn parse_item(text: Piece<'_>) -> Parsed<u32> {
    match u32::try_from(text.size()?) {
        Ok(bytes @ 1024..=0x1000_0000) => Ok(bytes),
        _ => text.wrong("expected a size from 1K to 256M"),
    }
}

fn parse_delay(text: Piece<'_>) -> Parsed<Delay> {
    let (kind, times) = text.kind()?;
    let (from, to) = times.split('-');
    let from_us = from.time()?;
    let to_us = to.map_or(Ok(from_us), Piece::time)?;
    if to_us < from_us {
        return to.unwrap_or(from).wrong("ends before it begins");
    }
    Ok(Delay { kind, wait_us: from_us..=to_us })
}

fn parse_fault(text: Piece<'_>) -> Parsed<Fault> {
    let mut parts = text.pieces(',');
    let (kind, rate) = parts.next().unwrap_or(text).kind()?;
    let rate = parse_fault_rate(rate)?;
    let mut fault = Fault { kind, rate, range: None, error: FaultKind::default(), seed: 0 };
    for part in parts {
        match part.split('=') {
            (name, Some(value)) if name.text == "as" => {
                match FaultKind::ALL.into_iter().find(|error| error.name() == value.text) {
                    Some(error) => fault.error = error,
                    None => {
                        let names = list(FaultKind::ALL.map(FaultKind::name));
                        return value.wrong(format!("expected one of {names}"));
                    }
                }
            }
            (name, Some(value)) if name.text == "at" => fault.range = Some(parse_range(value)?),
            (name, Some(value)) if name.text == "seed" => fault.seed = value.number()?,
            _ => return part.wrong("expected as=ERROR, at=FROM-TO or seed=NUMBER"),
        }
    }
    Ok(fault)
}

fn parse_fault_rate(text: Piece<'_>) -> Parsed<FaultRate> {
    let expected = "expected 1/N for every N-th, or a chance such as 0.1%";
    if let Some(count) = text.text.strip_prefix("1/") {
        let count = Piece { text: count, at: text.at + 2 }.number()?;
        return if count == 0 { text.wrong(expected) } else { Ok(FaultRate::Every(count)) };
    }
    let Some(percent) = text.text.strip_suffix('%') else { return text.wrong(expected) };
    let (whole, fraction) = percent.split_once('.').unwrap_or((percent, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 3 || !is_number(whole) || !is_number(fraction) {
        return text.wrong(expected);
    }
    if fraction.len() > 4 {
        return text.wrong("a chance has at most four digits after the point");
    }
    let per_million = format!("{whole}{fraction:0<4}").parse().expect("at most seven digits");
    if per_million > 1_000_000 {
        return text.wrong("more than 100%");
    }
    Ok(FaultRate::PerMillion(per_million))
}

fn parse_range(text: Piece<'_>) -> Parsed<Range<u64>> {
    let (from, Some(to)) = text.split('-') else { return text.wrong("expected two places, as in 1M-2M") };
    let range = from.size()?..to.size()?;
    if range.is_empty() {
        return to.wrong("ends before it begins");
    }
    Ok(range)
}

fn parse_limit(text: Piece<'_>) -> Parsed<Limit> {
    let mut limit = Limit { operations_per_s: None, bytes_per_s: None, burst_us: Limit::BURST_US_DEFAULT };
    for part in text.pieces(',') {
        let (rate, given) = if let Some(time) = part.text.strip_prefix("burst=") {
            limit.burst_us = Piece { text: time, at: part.at + "burst=".len() }.time()?;
            continue;
        } else if let Some(count) = part.text.strip_suffix("iops") {
            (Piece { text: count, ..part }.number()?, &mut limit.operations_per_s)
        } else if let Some(size) = part.text.strip_suffix("/s") {
            (Piece { text: size, ..part }.size()?, &mut limit.bytes_per_s)
        } else {
            return part.wrong("expected a rate such as 10000iops or 200M/s, or burst=TIME");
        };
        if rate == 0 {
            return part.wrong("nothing would ever pass");
        }
        if given.replace(rate).is_some() {
            return part.wrong("this is given twice");
        }
    }
    if limit.operations_per_s.is_none() && limit.bytes_per_s.is_none() {
        return text.wrong("expected a rate such as 10000iops or 200M/s");
    }
    Ok(limit)
}
