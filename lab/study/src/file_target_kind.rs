//! The kinds of targets other than nvlane's, as studies name them to study servers.

use serde::{Deserialize, Serialize};

/// Software of the target, and its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileTargetKind {
    KernelTcp,
    KernelRdma,
    Spdk,
}
