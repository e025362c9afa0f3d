//! The control plane on reactor 0: Connect, admin commands, which connections are admitted, and to which reactor.

pub mod admin;
pub(crate) mod admission;
pub mod control;
pub mod placement;
