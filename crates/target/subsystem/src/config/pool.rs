//! Pools of volumes: their configuration, and the volumes that it names.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Serialize;
use store::Source;
use store::pool::{Pool, SpaceLow};

use super::check::Findings;
use super::{ConfigPlace, Problem, TargetConfig};

/// A pool of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub directory: PathBuf,
    /// The most that its volumes may come to, bytes.
    pub quota_bytes: Option<u64>,
    /// Free space below which it is low.
    pub space_low: SpaceLow,
}

impl PoolConfig {
    /// The pool.
    #[must_use]
    pub fn open(&self) -> Pool {
        Pool::new(&self.directory, self.quota_bytes)
    }
}

/// A pool and its space. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolState {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub dir: String,
    /// The most that its volumes may come to.
    pub quota: Option<u64>,
    /// Why it cannot be used; the numbers are 0 then.
    pub error: Option<String>,
    /// Free space below which it is low.
    pub space_low: u64,
    /// Size of the file system, or the quota if that is less.
    pub total: u64,
    /// Free space of the file system.
    pub free: u64,
    /// Space that writes can still take, of the file system and of the quota.
    pub left: u64,
    /// Blocks of all files; shared ones count in each.
    pub allocated: u64,
    /// What its volumes may come to.
    pub committed: u64,
    /// The size that a new volume may have.
    pub available: u64,
    /// Number of volumes.
    pub volumes: u64,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Whether writes can take less than `space_low`.
    pub is_low: bool,
}

impl PoolConfig {
    /// Its space now. May block.
    #[must_use]
    pub fn state(&self) -> PoolState {
        let state = PoolState {
            name: self.name.clone(),
            dir: self.directory.display().to_string(),
            quota: self.quota_bytes,
            ..PoolState::default()
        };
        let usage = match self.open().usage() {
            Ok(usage) => usage,
            Err(error) => return PoolState { error: Some(error.to_string()), ..state },
        };
        let (space_low, left) = (self.space_low.bytes(usage.total_bytes), usage.left_bytes());
        PoolState {
            space_low,
            total: usage.total_bytes,
            free: usage.free_bytes,
            left,
            allocated: usage.allocated_bytes,
            committed: usage.committed_bytes,
            available: usage.available_bytes(),
            volumes: usage.volume_count,
            snapshots: usage.snapshot_count,
            is_low: left < space_low,
            ..state
        }
    }
}

impl FromStr for PoolConfig {
    type Err = String;

    /// `NAME=DIR`
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, directory) = text.split_once('=').ok_or("write NAME=DIR, as in fast=/srv/fast")?;
        check_name(name)?;
        let directory = std::path::absolute(directory).map_err(|error| format!("{directory:?}: {error}"))?;
        Ok(Self { name: name.to_owned(), directory, quota_bytes: None, space_low: SpaceLow::default() })
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = name.len() <= 64 && name.bytes().all(is_right) && !name.starts_with(['.', '-']);
    match is_name && !name.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{name:?} is no name of a pool: write up to 64 letters, digits, dots, hyphens and underscores"
        )),
    }
}

impl TargetConfig {
    /// Replaces `pool:NAME/VOLUME` by `pool:DIR/VOLUME` where there is a pool of that name.
    pub fn resolve_pools(&mut self) {
        let pools = &self.pools;
        let namespaces = self.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.namespaces);
        for namespace in namespaces {
            let Source::Volume { path } = &mut namespace.storage.source else { continue };
            let found = pools.iter().find_map(|pool| {
                let volume = path.strip_prefix(&pool.name).ok()?;
                Some(pool.directory.join(volume))
            });
            if let Some(found) = found {
                *path = found;
            }
        }
    }

    pub(super) fn check_pools(&self, findings: &mut Findings) {
        for (at, pool) in self.pools.iter().enumerate() {
            let mut add = |key, message| findings.add(ConfigPlace::Pool(at, key), message);
            if let Err(message) = check_name(&pool.name) {
                add("name", message);
            }
            if !pool.directory.is_absolute() {
                add("dir", format!("dir is {}: write an absolute path", pool.directory.display()));
            }
            if pool.quota_bytes == Some(0) {
                add("quota", "a pool of no bytes: leave quota out for all of the file system".into());
            }
            let before = &self.pools[..at];
            if before.iter().any(|other| other.name == pool.name) {
                add("name", format!("there are two pools {}: give one of them another name", pool.name));
            }
            if let Some(other) = before.iter().find(|other| other.directory == pool.directory) {
                add("dir", format!("it is the directory of pool {} too: remove one of them", other.name));
            }
        }
        for (subsystem_at, subsystem) in self.subsystems.iter().enumerate() {
            for (at, namespace) in subsystem.namespaces.iter().enumerate() {
                let Source::Volume { path } = &namespace.storage.source else { continue };
                if path.is_absolute() {
                    continue;
                }
                let name = path.iter().next().map(|name| name.to_string_lossy()).unwrap_or_default();
                let known = self.pools.iter().map(|pool| pool.name.as_str());
                let hint = match store::nearest(&name, known) {
                    Some(near) => format!("did you mean pool:{near}/VOLUME?"),
                    None => format!(
                        "add [[pool]] with name = \"{name}\" (--pool {name}=DIR), or write pool:/DIR/VOLUME"
                    ),
                };
                let place = ConfigPlace::Namespace(subsystem_at, at, "storage");
                findings.add(place, format!("there is no pool {name}: {hint}"));
            }
        }
    }

    /// The pools whose directories cannot be used. May block.
    pub(super) fn inspect_pools(&self) -> impl Iterator<Item = Problem> {
        self.pools.iter().enumerate().filter_map(|(at, pool)| {
            let error = pool.open().usage().err()?;
            let message = format!("pool {}: {error}", pool.name);
            Some(Problem { place: ConfigPlace::Pool(at, "dir"), message })
        })
    }
}
