//! What a controller tells a node of a published volume: the keys of its publish context.

/// NQN of the subsystem.
pub(crate) const NQN: &str = "nqn";
/// `ADDR:PORT` of the target, with commas between several.
pub(crate) const ADDRESSES: &str = "addresses";
/// Names of the secrets that the node needs, with commas between several; missing if it needs none.
pub(crate) const SECRETS: &str = "secrets";
/// UUID of the namespace.
pub(crate) const UUID: &str = "uuid";
