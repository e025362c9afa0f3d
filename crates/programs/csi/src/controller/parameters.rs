//! Parameters of a StorageClass.

use std::collections::BTreeMap;

use tonic::Status;

use crate::authentication::{CONTROLLER_SECRET, HOST_SECRET, References};
use crate::refusal::invalid;

/// Parameters of a class of volumes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Name of the pool.
    pub(super) pool: Option<String>,
    /// Size of blocks.
    pub(super) block_bytes: Option<u64>,
    /// Where the target has the secrets of nodes.
    pub(super) references: References,
}

const NAMES: [&str; 4] = ["pool", "blockBytes", HOST_SECRET, CONTROLLER_SECRET];

/// Names that begin so are those of Kubernetes' own programs, which may pass them on.
const KUBERNETES: &str = "csi.storage.k8s.io/";

impl Parameters {
    /// Reads the parameters of a class of volumes.
    ///
    /// # Errors
    /// One is unknown, or has an impossible value.
    pub(super) fn read(parameters: &BTreeMap<String, String>) -> Result<Self, Status> {
        let mut read = Self { references: References::read("parameters", parameters)?, ..Self::default() };
        for (name, value) in parameters {
            let field = format!("parameters.{name}");
            match name.as_str() {
                "pool" => read.pool = Some(value.clone()),
                "blockBytes" => {
                    let is_size = |bytes: &u64| bytes.is_power_of_two() && (512..=65536).contains(bytes);
                    let bytes = value.parse().ok().filter(is_size);
                    let bytes =
                        bytes.ok_or_else(|| invalid(&field, "write a power of two from 512 to 65536"))?;
                    read.block_bytes = Some(bytes);
                }
                HOST_SECRET | CONTROLLER_SECRET => {}
                name if name.starts_with(KUBERNETES) => {}
                name => return Err(unknown(&field, name, &NAMES)),
            }
        }
        Ok(read)
    }

    /// Checks the parameters of a class of snapshots, of which there are none.
    pub(super) fn none_in(parameters: &BTreeMap<String, String>) -> Result<(), Status> {
        match parameters.keys().find(|name| !name.starts_with(KUBERNETES)) {
            Some(name) => Err(unknown(&format!("parameters.{name}"), name, &[])),
            None => Ok(()),
        }
    }
}

fn unknown(field: &str, name: &str, known: &[&str]) -> Status {
    match store::nearest(name, known.iter().copied()) {
        Some(near) => invalid(field, format_args!("no such parameter: did you mean {near}?")),
        None if known.is_empty() => invalid(field, "no such parameter: there is none"),
        None => invalid(field, format_args!("no such parameter: there is {}", known.join(", "))),
    }
}
