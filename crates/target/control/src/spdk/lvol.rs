//! SPDK's logical volumes: a pool is a store of them, and a volume or a snapshot one. They are always thin.

use serde_json::{Map, Value, json};
use store::pool::{Volume, VolumeKind};
use store::{Source, Spec};
use subsystem::config::PoolConfig;
use subsystem::identity::{ROOT, named};

use super::{Given, no_device};
use crate::control::{Control, Plant};
use crate::error::{BUSY, CallError, EXISTS, MISSING, NO_SPACE, QUOTA};
use crate::rpc::Call;

/// Unit of sizes, and of a store's free space, bytes.
const MIB: u64 = 1 << 20;

/// A volume, and its pool.
pub(super) struct Lvol<'a> {
    pool: &'a PoolConfig,
    pub(super) volume: Volume,
}

impl Lvol<'_> {
    /// `POOL/NAME`, as calls on volumes and SPDK's alias have it.
    pub(super) fn alias(&self) -> String {
        format!("{}/{}", self.pool.name, self.volume.record.name)
    }

    /// The storage of a namespace on it.
    pub(super) fn spec(&self) -> String {
        let path = self.pool.directory.join(&self.volume.record.name);
        Spec::new(Source::Volume { path }).to_string()
    }

    fn is_snapshot(&self) -> bool {
        self.volume.record.kind == VolumeKind::Snapshot
    }
}

/// Pools have no UUID of their own; SPDK's clients ask for one.
fn uuid_of(pool: &PoolConfig) -> String {
    named(ROOT, &format!("pool {}", pool.directory.display())).to_string()
}

/// The number that SPDK has for an error.
fn of_spdk(error: CallError) -> CallError {
    let code = match error.code {
        MISSING => -19,
        EXISTS => -17,
        BUSY => -16,
        NO_SPACE | QUOTA => -28,
        code => code,
    };
    CallError { code, ..error }
}

impl Control {
    /// All volumes and snapshots. A pool that cannot be read has none.
    pub(super) fn lvols(&self) -> impl Iterator<Item = Lvol<'_>> {
        self.config().pools.iter().flat_map(|pool| {
            let volumes = pool.open().list().unwrap_or_default();
            volumes.into_iter().map(move |volume| Lvol { pool, volume })
        })
    }

    /// The volume or snapshot with this UUID or alias.
    pub(super) fn lvol(&self, name: &str) -> Option<Lvol<'_>> {
        self.lvols().find(|lvol| lvol.alias() == name || lvol.volume.record.uuid.to_string() == name)
    }

    fn lvol_store(&self, given: &Given<'_>, uuid: &str) -> Result<Option<&PoolConfig>, CallError> {
        let (name, uuid) = (given.maybe::<String>("lvs_name")?, given.maybe::<String>(uuid)?);
        let Some(wanted) = name.as_ref().or(uuid.as_ref()) else { return Ok(None) };
        let is_it = |pool: &&PoolConfig| match (&name, &uuid) {
            (Some(name), _) => pool.name == *name,
            (None, uuid) => Some(uuid_of(pool)) == *uuid,
        };
        let found = self.config().pools.iter().find(is_it);
        found.map(Some).ok_or_else(|| no_device("lvol store", wanted))
    }

    /// Carries out a method of logical volumes.
    pub(super) fn perform_lvol(
        &self,
        method: &str,
        given: &Given<'_>,
        plant: &mut dyn Plant,
    ) -> Result<Value, CallError> {
        let lvol = |name: &str| self.lvol(name).ok_or_else(|| no_device("lvol", name));
        let size = || -> Result<u64, CallError> {
            let mib: u64 = given.needed("size_in_mib")?;
            mib.checked_mul(MIB).ok_or_else(|| CallError::invalid(Some("size_in_mib"), "too much"))
        };
        let mut call = |method: &str, params: Value| {
            let params = match params {
                Value::Object(params) => params,
                _ => Map::new(),
            };
            self.perform_volumes(&Call { method: method.into(), params }, plant).map_err(of_spdk)
        };
        let uuid = |made: Value| made["uuid"].clone();
        match method {
            "bdev_lvol_get_lvstores" => {
                let only = self.lvol_store(given, "uuid")?;
                let pools = self.config().pools.iter();
                let pools = pools.filter(|pool| only.is_none_or(|only| only.name == pool.name));
                Ok(pools.map(store_object).collect())
            }
            "bdev_lvol_get_lvols" => {
                let only = self.lvol_store(given, "lvs_uuid")?;
                let lvols = self.lvols().filter(|lvol| only.is_none_or(|only| only.name == lvol.pool.name));
                Ok(lvols.map(|lvol| lvol_object(&lvol)).collect())
            }
            "bdev_lvol_create" => {
                let pool = self.lvol_store(given, "uuid")?;
                let pool = pool.ok_or_else(|| CallError::invalid(Some("lvs_name"), "missing"))?;
                let name = format!("{}/{}", pool.name, given.needed::<String>("lvol_name")?);
                call("volume_create", json!({ "name": name, "size": size()? })).map(uuid)
            }
            "bdev_lvol_snapshot" | "bdev_lvol_clone" => {
                let is_clone = method == "bdev_lvol_clone";
                let (from, to) =
                    if is_clone { ("snapshot_name", "clone_name") } else { ("lvol_name", "snapshot_name") };
                let source = lvol(&given.needed::<String>(from)?)?;
                let name = format!("{}/{}", source.pool.name, given.needed::<String>(to)?);
                let made = match is_clone {
                    true => call("volume_clone", json!({ "name": name, "source": source.alias() })),
                    false => call("snapshot_create", json!({ "name": name, "volume": source.alias() })),
                };
                made.map(uuid)
            }
            "bdev_lvol_resize" => {
                let name = lvol(&given.needed::<String>("name")?)?.alias();
                call("volume_resize", json!({ "name": name, "size": size()? })).map(|_| true.into())
            }
            _ => {
                let lvol = lvol(&given.needed::<String>("name")?)?;
                let method = if lvol.is_snapshot() { "snapshot_delete" } else { "volume_delete" };
                call(method, json!({ "name": lvol.alias() })).map(|_| true.into())
            }
        }
    }
}

fn store_object(pool: &PoolConfig) -> Value {
    let state = pool.state();
    json!({
        "uuid": uuid_of(pool),
        "name": pool.name,
        "base_bdev": state.dir,
        "total_data_clusters": state.total / MIB,
        "free_clusters": state.left / MIB,
        "block_size": super::BLOCK_BYTES,
        "cluster_size": MIB,
    })
}

fn lvol_object(lvol: &Lvol<'_>) -> Value {
    let record = &lvol.volume.record;
    json!({
        "alias": lvol.alias(),
        "uuid": record.uuid.to_string(),
        "name": record.name,
        "is_thin_provisioned": true,
        "is_snapshot": lvol.is_snapshot(),
        "is_clone": !lvol.is_snapshot() && record.source.is_some(),
        "is_esnap_clone": false,
        "is_degraded": false,
        "lvs": { "name": lvol.pool.name, "uuid": uuid_of(lvol.pool) },
    })
}
