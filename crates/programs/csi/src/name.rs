//! Names: a volume or snapshot is `POOL/NAME` for the target and for Kubernetes, and `PREFIX:POOL:NAME` is the NQN of the subsystem
//! that serves it.

use std::fmt;

use sha2::{Digest, Sha256};

/// Limit of an id, by the interface's specification.
const ID_BYTES_MAX: usize = 128;

/// Digits of the hash in a name that cannot be taken as it is.
const HASH_DIGITS: usize = 32;

/// What the pool's name of a snapshot begins with: snapshots and volumes of a pool share one space of names.
const SNAPSHOT: &str = "snapshot-";

/// A volume or snapshot of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) pool: String,
    pub(crate) name: String,
}

impl Id {
    /// The id in this text; `None` if no volume or snapshot can have it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (pool, name) = text.split_once('/')?;
        let is_id = text.len() <= ID_BYTES_MAX && is_plain(pool) && is_plain(name);
        is_id.then(|| Self { pool: pool.into(), name: name.into() })
    }

    /// The volume that Kubernetes calls so.
    pub(crate) fn of_volume(pool: &str, name: &str) -> Self {
        Self { pool: pool.into(), name: shortened(name, ID_BYTES_MAX.saturating_sub(pool.len() + 1)) }
    }

    /// The snapshot that Kubernetes calls so.
    pub(crate) fn of_snapshot(pool: &str, name: &str) -> Self {
        match name.starts_with(SNAPSHOT) {
            true => Self::of_volume(pool, name),
            false => Self::of_volume(pool, &format!("{SNAPSHOT}{name}")),
        }
    }

    /// The subsystem that serves it.
    pub(crate) fn nqn(&self, prefix: &str) -> String {
        format!("{prefix}:{}:{}", self.pool, self.name)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.name)
    }
}

/// Whether the target takes this name of a pool, volume or snapshot.
fn is_plain(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(is_part)
        && !name.ends_with(".new")
}

/// The name as it is, if the target takes it; else its beginning and a hash of all of it.
fn shortened(name: &str, bytes_max: usize) -> String {
    if is_plain(name) && name.len() <= bytes_max {
        return name.into();
    }
    let hash = Sha256::digest(name.as_bytes());
    let mut digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(HASH_DIGITS);
    let plain = name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' });
    let start: String = plain.take(bytes_max.saturating_sub(HASH_DIGITS + 2)).collect();
    format!("v{start}-{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_names_stay_and_others_get_a_hash_and_fit() {
        assert_eq!(Id::of_volume("fast", "pvc-1").to_string(), "fast/pvc-1");
        assert_eq!(Id::of_snapshot("fast", "snapshot-1").to_string(), "fast/snapshot-1");
        assert_eq!(Id::of_snapshot("fast", "pvc-1").to_string(), "fast/snapshot-pvc-1");
        let long = "x".repeat(ID_BYTES_MAX);
        for name in ["Größe/2", "a.new", "-x", ".", &long, "ok\n"] {
            for id in [Id::of_volume("fast", name), Id::of_snapshot("fast", name)] {
                assert_eq!(Id::parse(&id.to_string()), Some(id.clone()), "{name}");
                assert_eq!(Id::of_volume("fast", name), Id::of_volume("fast", name));
            }
        }
        assert_ne!(Id::of_volume("fast", "a/b"), Id::of_volume("fast", "a-b"));
        assert_ne!(Id::of_volume("fast", &long), Id::of_volume("fast", &format!("{long}y")));
    }

    #[test]
    fn what_cannot_be_an_id_is_none() {
        for text in ["", "fake-vol-id", "/", "a/", "/b", "a/b/c", "a/..", "../a", "a/b.new", "a b/c"] {
            assert_eq!(Id::parse(text), None, "{text}");
        }
        assert_eq!(Id::parse(&format!("a/{}", "b".repeat(ID_BYTES_MAX))), None);
    }
}
