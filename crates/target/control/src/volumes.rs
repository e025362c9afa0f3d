//! Calls on the volumes and snapshots of pools. They change files, not the configuration, so they have no revision: what a call has
//! done is there after a crash, and can be asked for again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use store::pool::{Pool, PoolError, Volume, VolumeKind};
use store::{Size, Source, Spec};
use subsystem::config::{PoolConfig, TargetConfig};

use crate::control::{Control, Plant};
use crate::error::{BUSY, CallError, EXISTS, MISSING, NO_SPACE, QUOTA, REFUSED, UNSUPPORTED};
use crate::rpc::Call;

/// Methods of volumes and snapshots.
pub(crate) const METHODS: [&str; 12] = [
    "pool_list",
    "volume_create",
    "volume_clone",
    "volume_list",
    "volume_show",
    "volume_resize",
    "volume_delete",
    "snapshot_create",
    "snapshot_list",
    "snapshot_show",
    "snapshot_delete",
    "snapshot_rollback",
];

/// Block size of volumes, unless another is asked for.
const BLOCK_BYTES: u32 = 4096;

/// Whether it is a method of volumes that changes something.
pub(crate) fn is_change(method: &str) -> bool {
    METHODS.contains(&method) && !method.ends_with("_list") && !method.ends_with("_show")
}

/// A size in bytes, or with a unit.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected bytes, or a size such as \"10G\"")]
enum SizeParam {
    Bytes(u64),
    Text(String),
}

impl SizeParam {
    fn bytes(&self) -> Result<u64, CallError> {
        match self {
            Self::Bytes(bytes) => Ok(*bytes),
            Self::Text(text) => match Size::parse(text) {
                Ok(Size(bytes)) => Ok(bytes),
                Err((_, why)) => Err(CallError::invalid(Some("size"), why)),
            },
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: String,
    size: SizeParam,
    block_bytes: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Clone {
    name: String,
    source: String,
    size: Option<SizeParam>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resize {
    name: String,
    size: SizeParam,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateSnapshot {
    name: String,
    volume: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    pool: Option<String>,
    volume: Option<String>,
}

/// The pool of a call, and names in it.
struct Place<'a> {
    config: &'a PoolConfig,
    pool: Pool,
    name: &'a str,
}

/// The namespaces on each volume, by its path.
struct Served(BTreeMap<PathBuf, Vec<Value>>);

impl Served {
    fn of(config: &TargetConfig) -> Self {
        let mut served: BTreeMap<PathBuf, Vec<Value>> = BTreeMap::new();
        for (subsystem, numbers) in config.subsystems.iter().zip(config.namespace_numbers()) {
            for (namespace, nsid) in subsystem.namespaces.iter().zip(numbers) {
                if let Source::Volume { path } | Source::File { path, .. } = &namespace.storage.source {
                    let by = json!({ "subsystem": subsystem.nqn.as_str(), "nsid": nsid.get() });
                    served.entry(path.clone()).or_default().push(by);
                }
            }
        }
        Self(served)
    }

    fn by(&self, path: &Path) -> &[Value] {
        self.0.get(path).map_or(&[], Vec::as_slice)
    }
}

impl Place<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.config.directory.join(name)
    }

    fn object(&self, volume: &Volume, served: &Served) -> Value {
        let record = &volume.record;
        let full = |name: &str| format!("{}/{name}", self.config.name);
        let path = self.path(&record.name);
        let source = record.source.as_ref();
        let source =
            source.map(|source| json!({ "name": full(&source.name), "uuid": source.uuid.to_string() }));
        json!({
            "name": full(&record.name),
            "pool": self.config.name,
            "kind": record.kind.name(),
            "uuid": record.uuid.to_string(),
            "size": volume.bytes,
            "allocated": volume.allocated_bytes,
            "block_bytes": record.block_bytes,
            "created_s": record.created_s,
            "source": source,
            "storage": Spec::new(Source::Volume { path: path.clone() }).to_string(),
            "served_by": served.by(&path),
        })
    }

    /// The name of another volume of the same pool.
    fn sibling<'a>(&self, field: &str, name: &'a str) -> Result<&'a str, CallError> {
        match name.split_once('/') {
            Some((pool, name)) if pool == self.config.name => Ok(name),
            None => Err(CallError::invalid(
                Some(field),
                format!("{name} is no POOL/NAME: write {}/{name}", self.config.name),
            )),
            _ => {
                let message = format!(
                    "{name} is not in pool {}, and blocks are shared within one only",
                    self.config.name
                );
                Err(CallError::invalid(Some(field), message))
            }
        }
    }

    fn find(&mut self, kind: VolumeKind) -> Result<Volume, CallError> {
        let name = self.name;
        self.pool.find(name, kind).map_err(|error| self.refusal(error, &Served(BTreeMap::new())))
    }

    /// Refuses what would pull a volume from under a namespace.
    fn check_unserved(&self, name: &str, served: &Served) -> Result<(), CallError> {
        let by = served.by(&self.path(name));
        let named =
            |by: &Value| format!("{} namespace {}", by["subsystem"].as_str().unwrap_or_default(), by["nsid"]);
        match by {
            [] => Ok(()),
            by => Err(CallError {
                code: BUSY,
                message: format!(
                    "{}/{name} is served as {}: remove the namespace first",
                    self.config.name,
                    by.iter().map(named).collect::<Vec<_>>().join(" and ")
                ),
                data: Some(json!({ "served_by": by })),
            }),
        }
    }

    fn refusal(&mut self, error: PoolError, served: &Served) -> CallError {
        let message = format!("pool {}: {error}", self.config.name);
        let (code, data) = match error {
            PoolError::Parameter { field, message } => return CallError::invalid(Some(field), message),
            PoolError::Missing { what, name } => {
                let known = self.pool.list().unwrap_or_default();
                let known = known.iter().map(|volume| volume.record.name.as_str());
                let hint = store::nearest(&name, known).filter(|near| *near != name);
                let hint = hint
                    .map_or_else(String::new, |near| format!(": did you mean {}/{near}?", self.config.name));
                return CallError::new(MISSING, format!("no {what} {}/{name}{hint}", self.config.name));
            }
            PoolError::Exists { volume, is_same } => {
                let object = self.object(&volume, served);
                (EXISTS, Some(json!({ "object": object, "same": is_same })))
            }
            PoolError::InUse { .. } => (BUSY, Some(json!({ "served_by": [] }))),
            PoolError::Quota { quota_bytes, committed_bytes, needed_bytes } => {
                let data =
                    json!({ "quota": quota_bytes, "committed": committed_bytes, "needed": needed_bytes });
                (QUOTA, Some(data))
            }
            PoolError::NoSpace { .. } => (NO_SPACE, None),
            PoolError::Unsupported { .. } => (UNSUPPORTED, None),
            _ => (REFUSED, None),
        };
        CallError { code, message, data }
    }
}

fn parsed<T: DeserializeOwned>(call: &Call) -> Result<T, CallError> {
    serde_json::from_value(Value::Object(call.params.clone()))
        .map_err(|error| CallError::invalid(None, error.to_string()))
}

impl Control {
    /// Carries out a call on volumes.
    pub(crate) fn perform_volumes(&self, call: &Call, plant: &mut dyn Plant) -> Result<Value, CallError> {
        let served = Served::of(self.config());
        let named = |kind| -> Result<(Named, VolumeKind), CallError> { Ok((parsed(call)?, kind)) };
        match call.method.as_str() {
            "pool_list" => {
                let List { pool: None, volume: None } = parsed(call)? else {
                    return Err(CallError::invalid(None, "pool_list has no parameters"));
                };
                let objects: Vec<Value> = self.config().pools.iter().map(pool_object).collect();
                Ok(json!({ "objects": objects }))
            }
            "volume_list" => self.list_volumes(&parsed(call)?, VolumeKind::Volume, &served),
            "snapshot_list" => self.list_volumes(&parsed(call)?, VolumeKind::Snapshot, &served),
            "volume_show" | "snapshot_show" => {
                let kind =
                    if call.method == "volume_show" { VolumeKind::Volume } else { VolumeKind::Snapshot };
                let (Named { name }, kind) = named(kind)?;
                let mut place = self.pool_of(&name)?;
                let volume = place.find(kind)?;
                Ok(place.object(&volume, &served))
            }
            "volume_create" => {
                let Create { name, size, block_bytes } = parsed(call)?;
                let (mut place, bytes) = (self.pool_of(&name)?, size.bytes()?);
                let made = place.pool.create(place.name, bytes, block_bytes.unwrap_or(BLOCK_BYTES));
                place.answer(made, &served)
            }
            "volume_clone" => {
                let Clone { name, source, size } = parsed(call)?;
                let mut place = self.pool_of(&name)?;
                let bytes = size.map(|size| size.bytes()).transpose()?;
                let source = place.sibling("source", &source)?;
                let made = place.pool.clone_volume(place.name, source, bytes);
                place.answer(made, &served)
            }
            "snapshot_create" => {
                let CreateSnapshot { name, volume } = parsed(call)?;
                let mut place = self.pool_of(&name)?;
                let volume = place.sibling("volume", &volume)?;
                let made = place.pool.snapshot(place.name, volume);
                place.answer(made, &served)
            }
            "volume_resize" => {
                let Resize { name, size } = parsed(call)?;
                let (mut place, bytes) = (self.pool_of(&name)?, size.bytes()?);
                let resized = place.pool.resize(place.name, bytes);
                let answer = place.answer(resized, &served)?;
                // Its hosts hear of it.
                plant.look_after_storage();
                Ok(answer)
            }
            "snapshot_rollback" => {
                let Named { name } = parsed(call)?;
                let mut place = self.pool_of(&name)?;
                let snapshot = place.find(VolumeKind::Snapshot)?;
                if let Some(source) = &snapshot.record.source {
                    place.check_unserved(&source.name, &served)?;
                }
                let rolled_back = place.pool.roll_back(place.name);
                place.answer(rolled_back, &served)
            }
            method => {
                let kind = if method == "volume_delete" { VolumeKind::Volume } else { VolumeKind::Snapshot };
                let (Named { name }, kind) = named(kind)?;
                let mut place = self.pool_of(&name)?;
                place.find(kind)?;
                place.check_unserved(place.name, &served)?;
                let deleted = place.pool.delete(place.name, kind);
                deleted.map(|()| json!({})).map_err(|error| place.refusal(error, &served))
            }
        }
    }

    fn list_volumes(&self, list: &List, kind: VolumeKind, served: &Served) -> Result<Value, CallError> {
        let List { pool, volume } = list;
        if volume.is_some() && kind == VolumeKind::Volume {
            return Err(CallError::invalid(Some("volume"), "volume_list has one parameter, pool"));
        }
        let only = match (pool, volume) {
            (Some(pool), _) => Some(self.pool_named(pool)?.name.clone()),
            (None, Some(volume)) => Some(self.pool_of(volume)?.config.name.clone()),
            (None, None) => None,
        };
        let mut objects = Vec::new();
        for config in &self.config().pools {
            if only.as_ref().is_some_and(|only| *only != config.name) {
                continue;
            }
            let mut place = Place { config, pool: config.open(), name: "" };
            let volumes = place.pool.list().map_err(|error| place.refusal(error, served))?;
            let is_of = |found: &&Volume| {
                let source = found.record.source.as_ref();
                let name = source.map(|source| format!("{}/{}", config.name, source.name));
                found.record.kind == kind && volume.as_ref().is_none_or(|of| name.as_ref() == Some(of))
            };
            objects.extend(volumes.iter().filter(is_of).map(|volume| place.object(volume, served)));
        }
        Ok(json!({ "objects": objects }))
    }

    fn pool_named(&self, name: &str) -> Result<&PoolConfig, CallError> {
        let pools = &self.config().pools;
        pools.iter().find(|pool| pool.name == name).ok_or_else(|| {
            let known: Vec<String> = pools.iter().map(|pool| pool.name.clone()).collect();
            CallError::missing("pool", name, &known)
        })
    }

    /// The pool of `POOL/NAME`.
    fn pool_of<'a>(&'a self, name: &'a str) -> Result<Place<'a>, CallError> {
        let Some((pool, name)) = name.split_once('/') else {
            let message = format!("{name} is no POOL/NAME");
            return Err(CallError::invalid(Some("name"), message));
        };
        let config = self.pool_named(pool)?;
        Ok(Place { config, pool: config.open(), name })
    }
}

impl Place<'_> {
    fn answer(&mut self, volume: Result<Volume, PoolError>, served: &Served) -> Result<Value, CallError> {
        match volume {
            Ok(volume) => Ok(self.object(&volume, served)),
            Err(error) => Err(self.refusal(error, served)),
        }
    }
}

/// A pool, with its space.
pub(crate) fn pool_object(config: &PoolConfig) -> Value {
    let mut object = serde_json::to_value(config.state()).unwrap_or_default();
    object["can_clone"] = config.open().can_share().into();
    object
}
