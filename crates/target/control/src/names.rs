//! What callers with SPDK's methods have named, and a configuration has no place for.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What callers with SPDK's methods have named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Names {
    /// Storage by the name of its bdev.
    pub(crate) bdevs: BTreeMap<String, String>,
    /// Rate limits by the name of the bdev: keys of a namespace.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) limits: BTreeMap<String, Map<String, Value>>,
    /// Files of keys by their names.
    pub(crate) keys: BTreeMap<String, PathBuf>,
    /// Listeners that were added, each with the subsystem that it was added for.
    pub(crate) listeners: Vec<(String, String)>,
    /// The listed hosts of subsystems that any host may connect to: the list counts again when that ends.
    pub(crate) hosts: BTreeMap<String, Vec<String>>,
}

impl Names {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
