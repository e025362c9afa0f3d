//! Names of simulated hosts.

use wire::nqn::Nqn;

/// A host's name.
pub(crate) fn name(index: usize) -> Nqn {
    format!("nqn.2026-01.io.nvlane:host-{index}").parse().expect("a name")
}
