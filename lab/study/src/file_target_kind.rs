//! The kinds of targets that are none of nvlane's, as studies name them to study servers.

use serde::{Deserialize, Serialize};

/// Whose target, and its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileTargetKind {
    KernelTcp,
    KernelRdma,
    Spdk,
}
