//! SPDK's names for the same changes: what users' tools call, such as `spdk-rpc` and scripts made for `rpc.py`.
//!
//! Parameters that such tools send with their defaults are accepted and checked: a value that nvlane cannot follow is
//! refused. A bdev is the specification of a namespace's storage under a name; it is opened when it becomes a namespace. A
//! listener of nvlane leads to all subsystems; which one asked for it is kept, so that it goes with the last of them.

mod lvol;
mod parameters;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use linux::randomness::Randomness;
use serde_json::{Map, Value, json};
use store::pool::{Volume, volume_at};
use store::{Size, Source, Spec};
use subsystem::config::TlsPolicy;
use wire::discovery::IO_PORT;
use wire::id::Nsid;
use wire::nqn::Nqn;
use wire::uuid::Uuid;

use self::parameters::{Given, LISTEN_ADDRESS, NAMESPACE, parameters_of};
pub(crate) use self::parameters::{METHODS, is_change, knows};
use crate::control::{Control, Edit, Plant};
use crate::edits::{add_host, add_number, keep_numbers, remove_named, text_of};
use crate::error::{CallError, INTERNAL, PARAMETERS};
use crate::methods;
use crate::names::Names;
use crate::rpc::Call;
use crate::tree::names;

/// Block size where a namespace has none of its own.
const BLOCK_BYTES: u32 = 4096;

/// SPDK's error for what does not exist: `-ENODEV`.
const NO_DEVICE: i64 = -19;

/// Name of the discovery service.
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The limits of `bdev_set_qos_limit`, the keys of a namespace that they become, and the unit.
const QOS_LIMITS: [(&str, &str, u64); 4] = [
    ("rw_ios_per_sec", "iops", 1),
    ("rw_mbytes_per_sec", "bytes_per_s", 1 << 20),
    ("r_mbytes_per_sec", "read_bytes_per_s", 1 << 20),
    ("w_mbytes_per_sec", "write_bytes_per_s", 1 << 20),
];

fn no_device(what: &str, name: &str) -> CallError {
    CallError::new(NO_DEVICE, format!("no {what} {name}"))
}

/// A change under way.
struct Work {
    tree: Value,
    names: Names,
    /// The storage of the volume that the call names as a bdev.
    volume: Option<String>,
}

impl Work {
    fn subsystem(&mut self, nqn: &str) -> Result<&mut Map<String, Value>, CallError> {
        let list = self.tree.get_mut("subsystem").and_then(Value::as_array_mut);
        let found = list.into_iter().flatten().find(|subsystem| subsystem["nqn"] == nqn);
        found.and_then(Value::as_object_mut).ok_or_else(|| no_device("subsystem", nqn))
    }

    fn list<'a>(table: &'a mut Map<String, Value>, key: &str) -> Result<&'a mut Vec<Value>, CallError> {
        let list = table.entry(key).or_insert_with(|| json!([]));
        list.as_array_mut().ok_or_else(|| CallError::new(INTERNAL, format!("{key} is no list")))
    }

    fn root(&mut self, key: &str) -> Result<&mut Vec<Value>, CallError> {
        let root = self.tree.as_object_mut().ok_or_else(|| CallError::new(INTERNAL, "no table"))?;
        Self::list(root, key)
    }

    /// Adds a bdev. Returns its name.
    fn add_bdev(&mut self, name: Option<String>, kind: &str, spec: &str) -> Result<String, CallError> {
        let name = name.unwrap_or_else(|| {
            let free = (0_u64..).map(|number| format!("{kind}{number}"));
            free.into_iter().find(|name| !self.names.bdevs.contains_key(name)).unwrap_or_default()
        });
        let spec = spec.parse::<Spec>().map_err(|error| CallError::invalid(None, error.to_string()))?;
        if name.is_empty() || self.names.bdevs.contains_key(&name) {
            return Err(CallError::invalid(Some("name"), format!("there is a bdev {name} already")));
        }
        self.names.bdevs.insert(name.clone(), spec.to_string());
        Ok(name)
    }

    /// Sets limits of a bdev, and of the namespace that it has become; `null` for no limit.
    fn limit_bdev(&mut self, name: &str, limits: &Map<String, Value>) -> Result<(), CallError> {
        let set = |table: &mut Map<String, Value>| {
            for (key, value) in limits {
                match value {
                    Value::Null => drop(table.remove(key)),
                    value => drop(table.insert(key.clone(), value.clone())),
                }
            }
        };
        let named = self.names.bdevs.get(name);
        let mut is_known = named.is_some();
        let spec = named.or(self.volume.as_ref());
        for subsystem in self.tree.get_mut("subsystem").and_then(Value::as_array_mut).into_iter().flatten() {
            let nqn = text_of(&subsystem["nqn"]);
            for namespace in
                subsystem.get_mut("namespace").and_then(Value::as_array_mut).into_iter().flatten()
            {
                let is_it = match spec {
                    Some(spec) => namespace["storage"] == spec.as_str(),
                    None => name == format!("{nqn}/{}", namespace["nsid"]),
                };
                if let Some(table) = namespace.as_object_mut().filter(|_| is_it) {
                    set(table);
                    is_known = true;
                }
            }
        }
        if !is_known && self.volume.is_some() {
            let message =
                format!("{name} is no namespace yet: limits of a volume are those of its namespace");
            return Err(CallError::invalid(Some("name"), message));
        }
        if !is_known {
            return Err(no_device("bdev", name));
        }
        if self.names.bdevs.contains_key(name) {
            set(self.names.limits.entry(name.to_owned()).or_default());
            self.names.limits.retain(|_, limits| !limits.is_empty());
        }
        Ok(())
    }

    /// Removes a bdev, and the namespaces that it has become.
    fn remove_bdev(&mut self, name: &str, prefixes: &[&str]) -> Result<(), CallError> {
        let is_it = |spec: &&String| prefixes.iter().any(|prefix| spec.starts_with(prefix));
        let spec = self.names.bdevs.get(name).filter(is_it).cloned();
        let spec = spec.ok_or_else(|| no_device("bdev", name))?;
        self.names.bdevs.remove(name);
        self.names.limits.remove(name);
        for subsystem in self.tree.get_mut("subsystem").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(list) = subsystem.get_mut("namespace").and_then(Value::as_array_mut) else { continue };
            while let Some(at) = list.iter().position(|namespace| namespace["storage"] == spec.as_str()) {
                let removed = list.remove(at);
                keep_numbers(list, removed["nsid"].as_u64());
            }
        }
        Ok(())
    }

    /// Removes a listener that was added for this subsystem, unless others need it.
    fn remove_listener(&mut self, nqn: &str, address: &str) -> Result<(), CallError> {
        self.names.listeners.retain(|known| (known.0.as_str(), known.1.as_str()) != (nqn, address));
        if !self.names.listeners.iter().any(|(_, known)| known == address)
            && let Some(root) = self.tree.as_object_mut()
        {
            remove_named(root, "listener", "address", address);
        }
        Ok(())
    }
}

impl Control {
    pub(crate) fn perform_spdk(&mut self, call: &Call, plant: &mut dyn Plant) -> Result<Value, CallError> {
        let given = Given::new(&call.params, parameters_of(&call.method).unwrap_or_default())?;
        match call.method.as_str() {
            "rpc_get_methods" => {
                let names = METHODS.iter().map(|(name, _)| *name).chain(methods::METHODS);
                return Ok(names.collect());
            }
            "spdk_get_version" => {
                let version = env!("CARGO_PKG_VERSION");
                let mut numbers = version.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
                let mut next = || numbers.next().unwrap_or(0);
                let fields = json!({ "major": next(), "minor": next(), "patch": next(), "suffix": "" });
                return Ok(json!({ "version": format!("nvlane v{version}"), "fields": fields }));
            }
            "framework_wait_init" | "framework_start_init" => return Ok(true.into()),
            "nvmf_create_transport" => return check_transport(&given),
            "nvmf_get_transports" => return Ok(self.transports()),
            "nvmf_get_subsystems" => return self.subsystems(given.maybe("nqn")?, plant),
            "nvmf_subsystem_get_listeners" => {
                return self.listeners_of(&given.needed::<String>("nqn")?, plant);
            }
            "bdev_get_bdevs" => return self.bdevs(given.maybe("name")?, plant),
            method if method.starts_with("bdev_lvol_") => return self.perform_lvol(method, &given, plant),
            "keyring_get_keys" => {
                let key = |(name, path): (&String, &PathBuf)| json!({ "name": name, "path": path, "module": "keyring_file" });
                return Ok(self.names.keys.iter().map(key).collect());
            }
            _ => {}
        }
        let of_namespace = call.params.get("namespace").map(|namespace| &namespace["bdev_name"]);
        let bdev = of_namespace.or_else(|| call.params.get("name")).and_then(Value::as_str);
        let volume =
            bdev.filter(|bdev| !self.names.bdevs.contains_key(*bdev)).and_then(|bdev| self.lvol(bdev));
        let volume = volume.map(|lvol| lvol.spec());
        let mut work = Work { tree: self.tree.clone(), names: self.names.clone(), volume };
        let answer = change(&mut work, call, &given)?;
        let Work { tree, names, .. } = work;
        let edit = Edit { tree, names, revision: None, is_forced: false };
        self.edit(edit, plant)?;
        Ok(answer)
    }

    fn transports(&self) -> Value {
        let limits = &self.config().limits;
        json!([{
            "trtype": "TCP",
            "max_queue_depth": limits.queue_entries_max,
            "max_io_qpairs_per_ctrlr": limits.io_queue_count_max,
            "in_capsule_data_size": limits.in_capsule_bytes,
            "max_io_size": limits.transfer_bytes_max,
            "io_unit_size": limits.transfer_bytes_max,
            "c2h_success": true,
        }])
    }

    fn listen_addresses(&self, plant: &dyn Plant) -> Vec<Value> {
        let leads_to_subsystems = |listener: &&subsystem::config::ListenerConfig| listener.subsystems;
        let shown = |listener: &subsystem::config::ListenerConfig| {
            let bound = plant.bound(&listener.address.to_string()).and_then(|bound| bound.parse().ok());
            let address: std::net::SocketAddr = bound.unwrap_or(listener.address);
            json!({
                "trtype": "TCP",
                "adrfam": if address.is_ipv4() { "IPv4" } else { "IPv6" },
                "traddr": address.ip().to_string(),
                "trsvcid": address.port().to_string(),
            })
        };
        self.config().listeners.iter().filter(leads_to_subsystems).map(shown).collect()
    }

    fn listeners_of(&self, nqn: &str, plant: &dyn Plant) -> Result<Value, CallError> {
        if !self.config().subsystems.iter().any(|subsystem| subsystem.nqn.as_str() == nqn) {
            return Err(no_device("subsystem", nqn));
        }
        let addresses = self.listen_addresses(plant).into_iter();
        Ok(addresses.map(|address| json!({ "address": address, "ana_states": [] })).collect())
    }

    fn subsystems(&self, only: Option<String>, plant: &dyn Plant) -> Result<Value, CallError> {
        let addresses = self.listen_addresses(plant);
        let mut shown = vec![json!({
            "nqn": DISCOVERY, "subtype": "Discovery", "listen_addresses": [], "allow_any_host": true, "hosts": [],
        })];
        for (table, config) in
            self.tree["subsystem"].as_array().into_iter().flatten().zip(&self.config().subsystems)
        {
            let nqn = config.nqn.as_str();
            let running = plant.running().and_then(|running| running.subsystems.get(&config.nqn));
            let hosts = table["hosts"].as_array();
            let kept = self
                .names
                .hosts
                .get(nqn)
                .map(|listed| listed.iter().map(|host| json!(host)).collect::<Vec<_>>());
            let shown_hosts = hosts.or(kept.as_ref()).into_iter().flatten();
            let shown_hosts: Vec<Value> = shown_hosts.map(|host| json!({ "nqn": host })).collect();
            let namespaces = table["namespace"].as_array().into_iter().flatten();
            let namespace = |namespace: &Value| {
                let nsid = u32::try_from(namespace["nsid"].as_u64()?).ok()?;
                let bdev = self.bdev_of(namespace, nqn);
                let mut shown = json!({ "nsid": nsid, "bdev_name": bdev, "name": bdev });
                if let Some(running) = running.and_then(|running| running.namespaces.get(&Nsid::new(nsid))) {
                    shown["uuid"] = running.uuid.to_string().into();
                    shown["nguid"] =
                        Uuid::from_bytes(running.nguid).to_string().replace('-', "").to_uppercase().into();
                }
                Some(shown)
            };
            shown.push(json!({
                "nqn": nqn,
                "subtype": "NVMe",
                "listen_addresses": addresses,
                "allow_any_host": hosts.is_none(),
                "hosts": shown_hosts,
                "serial_number": running.map(|running| running.serial.clone()).or_else(|| config.serial.clone()),
                "model_number": config.model,
                "max_namespaces": self.config().limits.nsid_max,
                "min_cntlid": config.cntlids.start(),
                "max_cntlid": config.cntlids.end(),
                "namespaces": namespaces.filter_map(namespace).collect::<Vec<_>>(),
            }));
        }
        let Some(only) = only else { return Ok(shown.into()) };
        shown.retain(|subsystem| subsystem["nqn"] == only.as_str());
        if shown.is_empty() { Err(no_device("subsystem", &only)) } else { Ok(shown.into()) }
    }

    /// Name of the bdev of a namespace.
    fn bdev_of(&self, namespace: &Value, nqn: &str) -> String {
        let mut named = self.names.bdevs.iter();
        match named.find(|(_, spec)| namespace["storage"] == spec.as_str()) {
            Some((name, _)) => name.clone(),
            // As SPDK names the bdev of a logical volume.
            None => match volume_of(namespace) {
                Some(volume) => volume.record.uuid.to_string(),
                None => format!("{nqn}/{}", namespace["nsid"]),
            },
        }
    }

    /// The bdevs: those that were made by SPDK's methods, and the storage of other namespaces.
    fn bdevs(&self, only: Option<String>, plant: &dyn Plant) -> Result<Value, CallError> {
        let named = self.names.bdevs.iter().map(|(name, spec)| {
            let limits = self.names.limits.get(name).cloned().unwrap_or_default();
            (name.clone(), (spec.clone(), None, false, Value::from(limits)))
        });
        let mut found: BTreeMap<String, (String, Option<Uuid>, bool, Value)> = named.collect();
        for table in self.tree["subsystem"].as_array().into_iter().flatten() {
            let nqn = table["nqn"].as_str().unwrap_or_default();
            for namespace in table["namespace"].as_array().into_iter().flatten() {
                let uuid = nqn.parse::<Nqn>().ok().and_then(|nqn| {
                    let nsid = Nsid::new(u32::try_from(namespace["nsid"].as_u64()?).ok()?);
                    Some(plant.running()?.subsystems.get(&nqn)?.namespaces.get(&nsid)?.uuid)
                });
                let spec = namespace["storage"].as_str().unwrap_or_default().to_owned();
                found.insert(self.bdev_of(namespace, nqn), (spec, uuid, true, namespace.clone()));
            }
        }
        let mut aliases = BTreeMap::new();
        for lvol in self.lvols() {
            let uuid = lvol.volume.record.uuid;
            aliases.insert(uuid.to_string(), lvol.alias());
            found.entry(uuid.to_string()).or_insert_with(|| (lvol.spec(), Some(uuid), false, Value::Null));
        }
        if let Some(only) = only {
            found.retain(|name, (_, uuid, ..)| {
                let is_alias = aliases.get(name).is_some_and(|alias| *alias == only);
                *name == only || is_alias || uuid.is_some_and(|uuid| uuid.to_string() == only)
            });
            if found.is_empty() {
                return Err(no_device("bdev", &only));
            }
        }
        Ok(found
            .into_iter()
            .map(|(name, (spec, uuid, is_claimed, limits))| {
                let mut shown = bdev(&name, &spec, uuid, is_claimed);
                shown["assigned_rate_limits"] = assigned(&limits);
                if let Some(alias) = aliases.get(&name) {
                    shown["aliases"] = json!([alias]);
                }
                shown
            })
            .collect())
    }
}

/// The volume that a namespace is on.
fn volume_of(namespace: &Value) -> Option<Volume> {
    let spec: Spec = namespace["storage"].as_str()?.parse().ok()?;
    let Source::Volume { path } = spec.source else { return None };
    volume_at(&path).ok()
}

/// Limits in SPDK's units; 0 for none.
fn assigned(limits: &Value) -> Value {
    let number = |(name, key, unit): (&str, &str, u64)| {
        let amount = match &limits[key] {
            Value::String(text) => Size::parse(text).map_or(0, |size| size.0),
            value => value.as_u64().unwrap_or(0),
        };
        (name.to_owned(), Value::from(amount / unit))
    };
    Value::Object(QOS_LIMITS.map(number).into_iter().collect())
}

/// A bdev as SPDK shows it.
fn bdev(name: &str, spec: &str, uuid: Option<Uuid>, is_claimed: bool) -> Value {
    let Ok(spec) = spec.parse::<Spec>() else { return json!({ "name": name }) };
    let of_file = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let (product, bytes) = match &spec.source {
        Source::Memory { bytes, .. } => ("Malloc disk", *bytes),
        Source::Null { bytes } => ("Null disk", *bytes),
        Source::File { path, bytes } => ("AIO disk", bytes.unwrap_or_else(|| of_file(path))),
        Source::Device { .. } => ("AIO disk", 0),
        Source::Volume { path } => ("Logical Volume", of_file(path)),
        Source::Rbd(_) => ("Ceph Rbd Disk", 0),
        Source::Nbd(_) => ("NBD Disk", 0),
        Source::VhostUser(_) => ("Virtio Block Disk", 0),
        Source::KeyValue { bytes, .. } => ("nvlane keys and values", *bytes),
        Source::KeyValueRados(_) => ("nvlane keys and values", 0),
        Source::KeyValueFile { bytes, .. } => ("nvlane keys and values", bytes.unwrap_or(0)),
    };
    let block_bytes = match &spec.source {
        Source::Volume { path } => volume_at(path).map_or(BLOCK_BYTES, |volume| volume.record.block_bytes),
        _ => spec.block_bytes.unwrap_or(BLOCK_BYTES),
    };
    let uuid = uuid.or(spec.uuid).map(|uuid| uuid.to_string());
    json!({
        "name": name,
        "aliases": uuid.iter().collect::<Vec<_>>(),
        "product_name": product,
        "block_size": block_bytes,
        "num_blocks": bytes / u64::from(block_bytes),
        "uuid": uuid,
        "claimed": is_claimed,
        "supported_io_types": {
            "read": true, "write": !spec.is_read_only, "unmap": true, "flush": true, "write_zeroes": true,
            "compare": true, "compare_and_write": true, "abort": true, "copy": true, "nvme_io": false,
        },
        "driver_specific": {},
    })
}

fn check_transport(given: &Given<'_>) -> Result<Value, CallError> {
    is_tcp(&given.needed::<String>("trtype")?)?;
    Ok(true.into())
}

fn is_tcp(transport: &str) -> Result<(), CallError> {
    match transport.eq_ignore_ascii_case("tcp") {
        true => Ok(()),
        false => Err(CallError::invalid(Some("trtype"), format!("nvlane speaks TCP, not {transport}"))),
    }
}

/// A listen address in nvlane's form.
fn address(given: &Given<'_>) -> Result<String, CallError> {
    let given = given.table("listen_address", LISTEN_ADDRESS)?;
    if let Some(transport) = given.maybe::<String>("trtype")? {
        is_tcp(&transport)?;
    }
    let text: String = given.needed("traddr")?;
    let ip: IpAddr =
        text.parse().map_err(|_| CallError::invalid(Some("traddr"), format!("{text} is no IP address")))?;
    let family = given.maybe::<String>("adrfam")?;
    if family.is_some_and(|family| !family.eq_ignore_ascii_case(if ip.is_ipv4() { "ipv4" } else { "ipv6" })) {
        return Err(CallError::invalid(Some("adrfam"), format!("{ip} is of another family")));
    }
    let port = match given.0.get("trsvcid") {
        None | Some(Value::Null) => IO_PORT,
        Some(port) => {
            let text = port.as_str().map_or_else(|| port.to_string(), str::to_owned);
            text.parse().map_err(|_| CallError::invalid(Some("trsvcid"), format!("{text} is no port")))?
        }
    };
    Ok(std::net::SocketAddr::new(ip, port).to_string())
}

/// A size in blocks as a specification has it, with the identity that its namespace will have.
fn sized(kind: &str, given: &Given<'_>) -> Result<String, CallError> {
    let (count, block_bytes): (u64, u32) = (given.needed("num_blocks")?, given.needed("block_size")?);
    let bytes = count.checked_mul(block_bytes.into()).filter(|bytes| *bytes > 0);
    let bytes =
        bytes.ok_or_else(|| CallError::invalid(Some("num_blocks"), format!("{count} blocks are no size")))?;
    let uuid = match given.maybe::<String>("uuid")? {
        Some(text) => {
            text.parse::<Uuid>().map_err(|error| CallError::invalid(Some("uuid"), error.to_string()))?
        }
        None => new_uuid()?,
    };
    Ok(format!("{kind}:{bytes}?lba={block_bytes}&uuid={uuid}"))
}

/// A random UUID.
fn new_uuid() -> Result<Uuid, CallError> {
    let mut bytes = [0; 16];
    Randomness::System
        .fill(&mut bytes)
        .map_err(|error| CallError::new(INTERNAL, format!("no random numbers: {error}")))?;
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Ok(Uuid::from_bytes(bytes))
}

/// A path in a specification.
fn in_spec(path: &str) -> String {
    path.replace('%', "%25").replace('?', "%3F")
}

fn change(work: &mut Work, call: &Call, given: &Given<'_>) -> Result<Value, CallError> {
    match call.method.as_str() {
        "bdev_malloc_create" => {
            Ok(work.add_bdev(given.maybe("name")?, "Malloc", &sized("ram", given)?)?.into())
        }
        "bdev_null_create" => {
            Ok(work.add_bdev(Some(given.needed("name")?), "Null", &sized("null", given)?)?.into())
        }
        "bdev_aio_create" => {
            let path: String = given.needed("filename")?;
            let kind = std::fs::metadata(&path)
                .map_err(|error| CallError::invalid(Some("filename"), format!("{path}: {error}")))?;
            let kind = if kind.file_type().is_block_device() { "device" } else { "file" };
            let mut options = Vec::new();
            if let Some(bytes) = given.maybe::<u32>("block_size")?.filter(|bytes| *bytes > 0) {
                options.push(format!("lba={bytes}"));
            }
            if let Some(uuid) = given.maybe::<String>("uuid")? {
                options.push(format!("uuid={uuid}"));
            }
            if given.flag("readonly")? {
                options.push("readonly".into());
            }
            let mark = if options.is_empty() { "" } else { "?" };
            let spec = format!("{kind}:{}{mark}{}", in_spec(&path), options.join("&"));
            Ok(work.add_bdev(Some(given.needed("name")?), "Aio", &spec)?.into())
        }
        "bdev_malloc_delete" => {
            work.remove_bdev(&given.needed::<String>("name")?, &["ram:"]).map(|()| true.into())
        }
        "bdev_null_delete" => {
            work.remove_bdev(&given.needed::<String>("name")?, &["null:"]).map(|()| true.into())
        }
        "bdev_aio_delete" => {
            work.remove_bdev(&given.needed::<String>("name")?, &["file:", "device:"]).map(|()| true.into())
        }
        "bdev_set_qos_limit" => {
            let mut limits = Map::new();
            for (name, key, unit) in QOS_LIMITS {
                let Some(amount) = given.maybe::<u64>(name)? else { continue };
                let amount = amount.checked_mul(unit);
                let amount = amount.ok_or_else(|| CallError::invalid(Some(name), "too much"))?;
                let value = match (amount, unit) {
                    (0, _) => Value::Null,
                    (_, 1) => amount.into(),
                    _ => Size(amount).to_string().into(),
                };
                limits.insert(key.to_owned(), value);
            }
            if limits.is_empty() {
                let names = QOS_LIMITS.map(|(name, ..)| name).join(", ");
                return Err(CallError::invalid(None, format!("no limit: give one of {names}")));
            }
            work.limit_bdev(&given.needed::<String>("name")?, &limits).map(|()| true.into())
        }
        "keyring_file_add_key" => {
            let (name, path): (String, PathBuf) = (given.needed("name")?, given.needed("path")?);
            if !path.is_absolute() {
                return Err(CallError::invalid(Some("path"), "write an absolute path"));
            }
            if work.names.keys.contains_key(&name) {
                return Err(CallError::invalid(Some("name"), format!("there is a key {name} already")));
            }
            work.names.keys.insert(name, path);
            Ok(true.into())
        }
        "keyring_file_remove_key" => {
            let name: String = given.needed("name")?;
            work.names.keys.remove(&name).ok_or_else(|| no_device("key", &name))?;
            Ok(true.into())
        }
        method => of_subsystem(work, method, given),
    }
}

fn of_subsystem(work: &mut Work, method: &str, given: &Given<'_>) -> Result<Value, CallError> {
    let nqn: String = given.needed("nqn")?;
    match method {
        "nvmf_create_subsystem" => {
            let list = work.root("subsystem")?;
            if names("nqn", list).contains(&nqn) {
                return Err(CallError::new(PARAMETERS, format!("there is a subsystem {nqn} already")));
            }
            let hosts = if given.flag("allow_any_host")? { json!("any") } else { json!([]) };
            let mut subsystem = json!({ "nqn": nqn, "hosts": hosts });
            for (key, from) in [("serial", "serial_number"), ("model", "model_number")] {
                if let Some(text) = given.maybe::<String>(from)? {
                    subsystem[key] = text.into();
                }
            }
            let (first, last) = (given.maybe::<u16>("min_cntlid")?, given.maybe::<u16>("max_cntlid")?);
            if first.is_some() || last.is_some() {
                subsystem["cntlids"] = json!([first.unwrap_or(1), last.unwrap_or(0xFFEF)]);
            }
            list.push(subsystem);
            Ok(true.into())
        }
        "nvmf_delete_subsystem" => {
            work.subsystem(&nqn)?;
            if let Some(root) = work.tree.as_object_mut() {
                remove_named(root, "subsystem", "nqn", &nqn);
            }
            work.names.hosts.remove(&nqn);
            let added = work.names.listeners.iter().filter(|(of, _)| *of == nqn);
            let added: Vec<String> = added.map(|(_, address)| address.clone()).collect();
            for address in added {
                // Hosts may need the last one for the subsystems to come.
                let is_last = work.root("listener")?.len() == 1;
                if is_last {
                    work.names.listeners.retain(|(of, _)| *of != nqn);
                } else {
                    work.remove_listener(&nqn, &address)?;
                }
            }
            Ok(true.into())
        }
        "nvmf_subsystem_add_ns" => {
            let namespace = given.table("namespace", NAMESPACE)?;
            let bdev: String = namespace.needed("bdev_name")?;
            let spec = work.names.bdevs.get(&bdev).cloned().or_else(|| work.volume.take());
            let spec = spec.ok_or_else(|| no_device("bdev", &bdev))?;
            let subsystems = work.tree.get("subsystem").and_then(Value::as_array).into_iter().flatten();
            let mut namespaces =
                subsystems.filter_map(|subsystem| subsystem["namespace"].as_array()).flatten();
            if namespaces.any(|namespace| namespace["storage"] == spec.as_str()) {
                return Err(CallError::new(PARAMETERS, format!("bdev {bdev} is a namespace already")));
            }
            let limits = work.names.limits.get(&bdev).cloned().unwrap_or_default();
            let list = Work::list(work.subsystem(&nqn)?, "namespace")?;
            let mut values = Map::from_iter([("storage".to_owned(), Value::from(spec))]);
            if let Some(nsid) = namespace.maybe::<u32>("nsid")?.filter(|nsid| *nsid > 0) {
                if list.iter().any(|known| known["nsid"] == nsid) {
                    return Err(CallError::invalid(
                        Some("nsid"),
                        format!("there is a namespace {nsid} already"),
                    ));
                }
                values.insert("nsid".into(), nsid.into());
            }
            for key in ["uuid", "nguid"] {
                if let Some(text) = namespace.maybe::<String>(key)? {
                    values.insert(key.into(), text.into());
                }
            }
            values.extend(limits);
            add_number(&mut values, list);
            let nsid = values["nsid"].clone();
            list.push(values.into());
            Ok(nsid)
        }
        "nvmf_subsystem_remove_ns" => {
            let nsid: u32 = given.needed("nsid")?;
            let list = Work::list(work.subsystem(&nqn)?, "namespace")?;
            let at = list.iter().position(|namespace| namespace["nsid"] == nsid);
            list.remove(at.ok_or_else(|| no_device("namespace", &nsid.to_string()))?);
            keep_numbers(list, Some(nsid.into()));
            Ok(true.into())
        }
        "nvmf_subsystem_add_listener" => {
            let address = address(given)?;
            if nqn != DISCOVERY {
                work.subsystem(&nqn)?;
            }
            let tls = if given.flag("secure_channel")? { TlsPolicy::Required } else { TlsPolicy::Off };
            let list = work.root("listener")?;
            match list.iter().find(|listener| listener["address"] == address.as_str()) {
                Some(listener) => {
                    let known = listener["tls"].as_str().unwrap_or("off");
                    if known != tls.to_string() {
                        let message =
                            format!("the listener on {address} is there already, with tls = {known}");
                        return Err(CallError::invalid(Some("secure_channel"), message));
                    }
                }
                None => {
                    let mut listener = json!({ "address": address, "subsystems": nqn != DISCOVERY });
                    if tls != TlsPolicy::Off {
                        listener["tls"] = tls.to_string().into();
                    }
                    list.push(listener);
                    work.names.listeners.push((nqn, address));
                    return Ok(true.into());
                }
            }
            let pair = (nqn, address);
            // One of the configuration file stays whoever uses it.
            let was_added = work.names.listeners.iter().any(|(_, known)| *known == pair.1);
            if was_added && !work.names.listeners.contains(&pair) {
                work.names.listeners.push(pair);
            }
            Ok(true.into())
        }
        "nvmf_subsystem_remove_listener" => {
            let address = address(given)?;
            if !work.names.listeners.contains(&(nqn.clone(), address.clone())) {
                let is_there =
                    work.root("listener")?.iter().any(|listener| listener["address"] == address.as_str());
                return Err(match is_there {
                    true => CallError::invalid(
                        Some("listen_address"),
                        format!(
                            "{address} leads to all subsystems: remove it with nvlane ctl listener remove {address}"
                        ),
                    ),
                    false => no_device("listener", &address),
                });
            }
            work.remove_listener(&nqn, &address)?;
            Ok(true.into())
        }
        "nvmf_subsystem_add_host" => {
            let host: String = given.needed("host")?;
            let mut values = Map::from_iter([("nqn".to_owned(), Value::from(host.clone()))]);
            for (key, from) in [
                ("tls_key", "psk"),
                ("dhchap_secret", "dhchap_key"),
                ("dhchap_ctrl_secret", "dhchap_ctrlr_key"),
            ] {
                if let Some(name) = given.maybe::<String>(from)? {
                    let path = work.names.keys.get(&name);
                    let path = path.ok_or_else(|| {
                        CallError::invalid(Some(from), format!("no key {name}: keyring_file_add_key adds it"))
                    })?;
                    values.insert(key.into(), format!("file:{}", path.display()).into());
                }
            }
            let is_any = !work.subsystem(&nqn)?.get("hosts").is_some_and(Value::is_array);
            let has_secrets = values.len() > 1;
            if is_any {
                let listed = work.names.hosts.entry(nqn.clone()).or_default();
                if listed.contains(&host) && !has_secrets {
                    return Err(CallError::new(PARAMETERS, format!("host {host} is there already")));
                }
                listed.retain(|known| *known != host);
                listed.push(host);
            }
            if !is_any || has_secrets {
                add_host(work.subsystem(&nqn)?, values)?;
            }
            Ok(true.into())
        }
        "nvmf_subsystem_remove_host" => {
            let host: String = given.needed("host")?;
            let listed = work.names.hosts.get_mut(&nqn);
            let in_names = listed.is_some_and(|listed| {
                let count = listed.len();
                listed.retain(|known| *known != host);
                listed.len() < count
            });
            work.names.hosts.retain(|_, listed| !listed.is_empty());
            let subsystem = work.subsystem(&nqn)?;
            let hosts = subsystem.get_mut("hosts").and_then(Value::as_array_mut);
            let in_list = hosts.is_some_and(|hosts| {
                let count = hosts.len();
                hosts.retain(|known| *known != host.as_str());
                hosts.len() < count
            });
            if !in_names && !in_list {
                return Err(no_device("host", &host));
            }
            remove_named(subsystem, "host", "nqn", &host);
            Ok(true.into())
        }
        "nvmf_subsystem_allow_any_host" => {
            let is_any: bool = given.needed("allow_any_host")?;
            let listed = work.names.hosts.remove(&nqn).unwrap_or_default();
            let subsystem = work.subsystem(&nqn)?;
            match (is_any, subsystem.get("hosts").cloned()) {
                (true, Some(Value::Array(hosts))) => {
                    subsystem.insert("hosts".into(), "any".into());
                    let hosts = hosts.iter().filter_map(Value::as_str).map(str::to_owned);
                    let hosts: Vec<String> = hosts.collect();
                    if !hosts.is_empty() {
                        work.names.hosts.insert(nqn, hosts);
                    }
                }
                (true, _) if !listed.is_empty() => drop(work.names.hosts.insert(nqn, listed)),
                (false, Some(Value::Array(_))) | (true, _) => {}
                // Nobody, until a host is added.
                (false, _) => drop(subsystem.insert("hosts".into(), json!(listed))),
            }
            Ok(true.into())
        }
        other => Err(CallError::new(INTERNAL, format!("{other} is listed, but not served"))),
    }
}
